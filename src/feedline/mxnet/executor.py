"""`mxnet.executor`: symbols bound to arrays, defined in `feedline.mxnet.symbol._executor`, which symbols import."""

from __future__ import annotations

from feedline.mxnet._names import names_of
from feedline.mxnet.symbol._executor import Executor  # noqa: F401  # named in __all__

__all__, __getattr__ = names_of(__name__)
