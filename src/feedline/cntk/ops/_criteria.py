"""Losses and metrics, one number a sample, and the drawing of classes for them."""

from __future__ import annotations

from typing import Any

from feedline.cntk.ops._function import Function
from feedline.cntk.ops._making import made, one_axis


def cross_entropy_with_softmax(output_vector: Any, target_vector: Any, axis: Any = -1, name: str = "") -> Function:
    """``-sum(target * log(softmax(output)))`` along an axis, one number a sample; targets may be sparse."""
    return made("cross_entropy_with_softmax", [output_vector, target_vector], {"axis": one_axis(axis)}, name)


def classification_error(
    output_vector: Any, target_vector: Any, axis: Any = -1, topN: int = 1, name: str = ""
) -> Function:
    """1 where the largest target is not among the ``topN`` largest outputs, else 0."""
    return made("classification_error", [output_vector, target_vector], {"axis": one_axis(axis), "top": topN}, name)


def squared_error(output: Any, target: Any, name: str = "") -> Function:
    """Sum of squared differences of a sample."""
    return made("squared_error", [output, target], None, name)


def binary_cross_entropy(output: Any, target: Any, name: str = "") -> Function:
    """``-sum(target * log(output) + (1 - target) * log(1 - output))`` of a sample."""
    return made("binary_cross_entropy", [output, target], None, name)


def weighted_binary_cross_entropy(output: Any, target: Any, weight: Any, name: str = "") -> Function:
    """As `binary_cross_entropy`, each element weighted."""
    return made("weighted_binary_cross_entropy", [output, target, weight], None, name)


def cosine_distance(x: Any, y: Any, name: str = "") -> Function:
    """Cosine of the angle between two vectors."""
    return made("cosine_distance", [x, y], None, name)


def random_sample(weights: Any, num_samples: int, allow_duplicates: bool, seed: Any = None, name: str = "") -> Function:
    """Classes drawn by their weights, one-hot: (num_samples, classes), dense; ``seed`` is not used."""
    attributes = {"many": int(num_samples), "replacement": bool(allow_duplicates)}
    return made("random_sample", [weights], attributes, name)
