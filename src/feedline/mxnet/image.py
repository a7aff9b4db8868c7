"""`mxnet.image`: `imdecode`, which scripts call on the pictures of records."""

from __future__ import annotations

from typing import Any

import numpy as np

from feedline.mxnet._names import names_of
from feedline.mxnet.ndarray import NDArray, array
from feedline.mxnet.recordio import decoded

__all__, __getattr__ = names_of(__name__)


def imdecode(buf: Any, flag: int = 1, to_rgb: bool = True) -> NDArray:
    """Return the pixels of an encoded picture, uint8 (height, width, 3), or (height, width, 1) with ``flag=0``.

    Args:
        buf: the bytes, or an array of them.
        flag: 1 for colours, 0 for grey.
        to_rgb: whether colours are RGB, not BGR.

    Raises:
        DataError: the picture cannot be decoded.
    """
    if not isinstance(buf, (bytes, bytearray, memoryview)):
        buf = np.asarray(buf.asnumpy() if isinstance(buf, NDArray) else buf, np.uint8)
    pixels = decoded(bytes(buf), ("RGB" if to_rgb else "BGR") if flag else "grey")
    return array(pixels if flag else pixels[:, :, None], dtype=np.uint8)
