"""Losses and metrics, and random samples of classes for them."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

from feedline._facades import defined_in
from feedline.cntk._seeds import rng_seed
from feedline.cntk._settings import take_plain_settings
from feedline.cntk.axis import Axis
from feedline.cntk.ops._function import Function
from feedline.cntk.ops._operation_helpers import build, one_axis


def cross_entropy_with_softmax(output_vector: Any, target_vector: Any, axis: Any = -1, name: str = "") -> Function:
    """Return ``logsumexp(output) - target . output``, of shape (1,) for vectors. Targets may be sparse.

    For targets that sum to 1 this is ``-sum(target * log(softmax(output)))``. For matrices each row of outputs is
    paired with each row of targets, unless ``axis`` is not the last. That axis then has length 1 in the result.
    """
    return build("cross_entropy_with_softmax", [output_vector, target_vector], {"axis": _classes(axis)}, name)


def classification_error(
    output_vector: Any, target_vector: Any, axis: Any = -1, topN: int = 1, name: str = ""
) -> Function:
    """Return 1 minus the target of the largest output, of shape (1,) for vectors.

    With ``topN``, return the number of samples in the minibatch whose largest target is not among the ``topN`` largest
    outputs. Along an axis other than the last, return the fraction of vectors whose one-hot maxima differ from the
    targets.

    Raises:
        ValueError: ``topN`` below 1 or above the number of classes, or together with another axis.
    """
    if topN < 1:
        raise ValueError(f"expected topN of at least 1, got {topN}")
    attributes = {"axis": _classes(axis), "top": int(topN)}
    return build("classification_error", [output_vector, target_vector], attributes, name)


def squared_error(output: Any, target: Any, name: str = "") -> Function:
    """Return the sum of squared differences of each sample."""
    return build("squared_error", [output, target], None, name)


def binary_cross_entropy(output: Any, target: Any, name: str = "") -> Function:
    """Return ``-(target * log(output) + (1 - target) * log(1 - output))``, element by element.

    1e-6 is added to the arguments of the logarithms.
    """
    return build("binary_cross_entropy", [output, target], None, name)


def weighted_binary_cross_entropy(output: Any, target: Any, weight: Any, name: str = "") -> Function:
    """Return the `binary_cross_entropy` of one number per sample, weighted and summed over the minibatch.

    As in CNTK, the value is normalised to a mean weight of 1, but the gradient uses the weights unchanged.
    """
    return build("weighted_binary_cross_entropy", [output, target, weight], None, name)


def cosine_distance(x: Any, y: Any, name: str = "") -> Function:
    """Return the cosine of the angle between two samples."""
    return build("cosine_distance", [x, y], None, name)


def random_sample(weights: Any, num_samples: int, allow_duplicates: bool, seed: Any = None, name: str = "") -> Function:
    """Draw classes by weight, and return them one-hot, (num_samples, classes).

    Without a ``seed``, torch's generator draws them.

    Raises:
        ValueError: no samples, or more than classes without duplicates. When run, a negative weight, or only zeros.
    """
    attributes = {"many": int(num_samples), "replacement": bool(allow_duplicates), **rng_seed(seed)}
    return build("random_sample", [weights], attributes, name)


def random_sample_inclusion_frequency(
    weights: Any, num_samples: int, allow_duplicates: bool, seed: Any = None, name: str = ""
) -> Function:
    """Return the expected number of times that `random_sample` draws each class, in the shape of ``weights``.

    With duplicates it is ``num_samples * weight / sum``. Without them it is ``1 - (1 - weight / sum)**T``, where T is
    the mean number of draws that yield ``num_samples`` classes. As in CNTK, this is an estimate. ``seed`` is not used.

    Raises:
        ValueError: see `random_sample`.
    """
    attributes = {"many": int(num_samples), "replacement": bool(allow_duplicates), **rng_seed(seed)}
    return build("random_sample_inclusion_frequency", [weights], attributes, name)


def cosine_distance_with_negative_samples(
    x: Any, y: Any, shift: int, num_negative_samples: int, name: str = ""
) -> Function:
    """Return the cosine of the angle between a sample and its partner, and between it and later samples' partners.

    Args:
        x: samples, (size,).
        y: their partners, (size,). Negative samples are partners in the same minibatch, which wraps around.
        shift: distance in samples to the first negative sample.
        num_negative_samples: number of negative samples, one sample apart.
        name: name of the operation.

    Returns:
        A function of shape (1 + num_negative_samples,).

    Raises:
        ValueError: no negative samples, or a shift below 1.
    """
    if num_negative_samples < 1 or shift < 1:
        raise ValueError(f"expected positive numbers, got shift={shift}, num_negative_samples={num_negative_samples}")
    attributes = {"shift": int(shift), "others": int(num_negative_samples)}
    return build("cosine_distance_with_negative_samples", [x, y], attributes, name)


def edit_distance_error(
    input_a: Any,
    input_b: Any,
    subPen: float = 1,
    delPen: float = 1,
    insPen: float = 1,
    squashInputs: bool = False,
    tokensToIgnore: Any = (),
    name: str = "",
) -> Function:
    """Return edits divided by labels of the second operand, times the number of samples: a number for the minibatch.

    Args:
        input_a, input_b: sequences along one axis, whose labels are the indices of their largest elements. Without a
            sequence axis each sample is a sequence.
        subPen, delPen, insPen: costs of edits. The cheapest edits count.
        squashInputs: whether runs of a label count as a single label.
        tokensToIgnore: labels to leave out, after squashing.
        name: name of the operation.
    """
    attributes = {
        "substitution": float(subPen),
        "deletion": float(delPen),
        "insertion": float(insPen),
        "squash": builtins.bool(squashInputs),
        "ignored": tuple(int(token) for token in tokensToIgnore),
    }
    return build("edit_distance_error", [input_a, input_b], attributes, name)


def labels_to_graph(labels: Any, name: str = "") -> Function:
    """Return labels as `forward_backward` takes them: the labels themselves."""
    return build("alias", [labels], None, name)


def forward_backward(
    graph: Any, features: Any, blankTokenId: int, delayConstraint: int = -1, name: str = ""
) -> Function:
    """Return minus the logarithm of the probability of the labels, for any alignment, summed over the minibatch (CTC).

    Args:
        graph: labels (classes,) of each step, from `labels_to_graph`: 2 at the class of a label that begins at this
            step, 1 at the class of a label that continues.
        features: scores (classes,) of each step, before a softmax, along the same sequences.
        blankTokenId: class of the blank.
        delayConstraint: how many steps after the begin of the next label in ``graph`` an alignment may leave a label.
            -1 means any number.
        name: name of the operation.

    Raises:
        ValueError: a ``delayConstraint`` below -1, or other shapes or axes.
    """
    if delayConstraint < -1:
        raise ValueError(f"expected a delayConstraint of at least 0, or -1 for none, got {delayConstraint}")
    settings = {"blank": int(blankTokenId), "delay": int(delayConstraint)}
    return build("forward_backward", [graph, features], settings, name)


def lambda_rank(output: Any, gain: Any, group: Any, name: str = "") -> Function:
    """Return the mean of ``1 - NDCG`` over groups, times 100 and the number of samples. Its gradient is LambdaRank's.

    The gradient comes from a sum over the pairs of each group, with the ranks of the scores.

    Args:
        output: score of each sample.
        gain: gain of each sample.
        group: number of each sample's group. Samples of a group are adjacent.
        name: name of the operation.
    """
    return build("lambda_rank", [output, gain, group], None, name)


def ndcg_at_1(output: Any, gain: Any, group: Any, name: str = "") -> Function:
    """Return the mean NDCG at 1 of the groups, times 100 and the number of samples. See `lambda_rank`."""
    return build("ndcg_at_1", [output, gain, group], None, name)


def _classes(axis: Any) -> int | None:
    """Return the axis of the classes, or None for the whole sample."""
    return None if isinstance(axis, Axis) and axis == Axis.all_static_axes() else one_axis(axis)


if not TYPE_CHECKING:  # type checkers find out themselves
    take_plain_settings(globals())
    __all__ = defined_in(globals())
