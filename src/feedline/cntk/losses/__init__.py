"""`cntk.losses`: what networks are trained for."""

from __future__ import annotations

from typing import Any

from feedline.cntk._names import explain
from feedline.cntk.ops import (
    binary_cross_entropy,
    cosine_distance,
    cross_entropy_with_softmax,
    squared_error,
    weighted_binary_cross_entropy,
)

__all__ = [
    "binary_cross_entropy",
    "cosine_distance",
    "cross_entropy_with_softmax",
    "squared_error",
    "weighted_binary_cross_entropy",
]


def __getattr__(name: str) -> Any:
    raise explain("cntk.losses", name)
