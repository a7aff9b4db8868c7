"""`cntk.losses`: losses to train networks with."""

from __future__ import annotations

from feedline.cntk._names import names_of
from feedline.cntk.losses._compositions import *
from feedline.cntk.ops import (
    binary_cross_entropy,
    cosine_distance,
    cosine_distance_with_negative_samples,
    cross_entropy_with_softmax,
    lambda_rank,
    squared_error,
    weighted_binary_cross_entropy,
)

__all__, __getattr__ = names_of(__name__)
