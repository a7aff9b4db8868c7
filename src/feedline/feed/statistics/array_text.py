"""Arrays in JSON, without loss."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray


def text_of(array: NDArray[Any]) -> dict[str, str]:
    """Return a one-dimensional array in types of JSON."""
    return {"dtype": array.dtype.str, "data": base64.b64encode(array.tobytes()).decode()}


def array_of(text: dict[str, str]) -> NDArray[Any]:
    """Return the array of `text_of`."""
    return np.frombuffer(base64.b64decode(text["data"]), np.dtype(text["dtype"])).copy()
