"""Losses and metrics, and the drawing of classes for them."""

from __future__ import annotations

from typing import Any

from feedline.cntk._seeds import pass_over
from feedline.cntk.axis import Axis
from feedline.cntk.ops._function import Function
from feedline.cntk.ops._making import made, one_axis

__all__ = [
    "binary_cross_entropy",
    "classification_error",
    "cosine_distance",
    "cross_entropy_with_softmax",
    "random_sample",
    "squared_error",
    "weighted_binary_cross_entropy",
]


def cross_entropy_with_softmax(output_vector: Any, target_vector: Any, axis: Any = -1, name: str = "") -> Function:
    """``logsumexp(output) - target . output``, of shape (1,) for vectors; targets may be sparse.

    Which is ``-sum(target * log(softmax(output)))`` for targets that sum to 1. Of matrices all rows of outputs meet all
    rows of targets, unless another axis than the last is given, which then stays, 1 wide.
    """
    return made("cross_entropy_with_softmax", [output_vector, target_vector], {"axis": _classes(axis)}, name)


def classification_error(
    output_vector: Any, target_vector: Any, axis: Any = -1, topN: int = 1, name: str = ""
) -> Function:
    """1 less the target of the largest output, of shape (1,) for vectors.

    With ``topN``: how many samples of the minibatch have their largest target outside the ``topN`` largest outputs.
    Along another axis than the last: the share of vectors of which the largest outputs are not exactly the targets.

    Raises:
        ValueError: ``topN`` below 1 or above the number of classes, or together with another axis.
    """
    if topN < 1:
        raise ValueError(f"expected topN of at least 1, got {topN}")
    attributes = {"axis": _classes(axis), "top": int(topN)}
    return made("classification_error", [output_vector, target_vector], attributes, name)


def squared_error(output: Any, target: Any, name: str = "") -> Function:
    """Sum of squared differences of a sample."""
    return made("squared_error", [output, target], None, name)


def binary_cross_entropy(output: Any, target: Any, name: str = "") -> Function:
    """``-(target * log(output) + (1 - target) * log(1 - output))``, element by element.

    1e-6 is added to what the logarithms are of.
    """
    return made("binary_cross_entropy", [output, target], None, name)


def weighted_binary_cross_entropy(output: Any, target: Any, weight: Any, name: str = "") -> Function:
    """`binary_cross_entropy` of one number a sample, weighted and summed over the minibatch.

    Its value is for weights of 1 on average, its gradient for the weights as they are: CNTK's.
    """
    return made("weighted_binary_cross_entropy", [output, target, weight], None, name)


def cosine_distance(x: Any, y: Any, name: str = "") -> Function:
    """Cosine of the angle between two samples."""
    return made("cosine_distance", [x, y], None, name)


def random_sample(weights: Any, num_samples: int, allow_duplicates: bool, seed: Any = None, name: str = "") -> Function:
    """Classes drawn by their weights, one-hot: (num_samples, classes), dense; ``seed`` is not used."""
    pass_over(seed)
    attributes = {"many": int(num_samples), "replacement": bool(allow_duplicates)}
    return made("random_sample", [weights], attributes, name)


def _classes(axis: Any) -> int | None:
    """The axis of the classes; None: all of a sample."""
    return None if isinstance(axis, Axis) and axis == Axis.all_static_axes() else one_axis(axis)
