"""Losses that consist of several operations, or have parameters."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from feedline._facades import defined_in
from feedline.cntk import ops
from feedline.cntk._nodes import InferredDimension as _INFERRED
from feedline.cntk._nodes import node_of
from feedline.cntk._settings import take_plain_settings
from feedline.cntk.initializer import glorot_normal
from feedline.cntk.variables import Constant, Parameter


def fmeasure(output: Any, target: Any, beta: float = 1) -> Any:
    """Return 1 minus the F-measure, ``(1 + beta**2) * precision * recall / (beta**2 * precision + recall)``.

    Args:
        output: prediction, (classes, height, width), counted for each class, or of another shape, counted as a whole.
        target: truth, of the same shape.
        beta: weight of the recall.

    Returns:
        A function of shape (classes, 1, 1), or of one number per sample.

    Raises:
        ValueError: shapes of different numbers of axes.
    """
    rank = len(output.shape)
    if len(target.shape) != rank:
        raise ValueError(f"expected a target of {rank} axes, as the output has, got {target.shape}")
    axis = (1, 2) if rank == 3 else None
    hits = ops.reduce_sum(output * target, axis)
    precision = hits / ops.reduce_sum(output, axis)
    recall = hits / ops.reduce_sum(target, axis)
    return 1 - (1 + beta**2) * precision * recall / (beta**2 * precision + recall)


def nce_loss(
    weights: Any,
    biases: Any,
    inputs: Any,
    labels: Any,
    noise_distribution: Any,
    num_samples: int = 32,
    allow_duplicates: bool = True,
    seed: Any = None,
    name: str = "",
) -> Any:
    """Return the loss of noise contrastive estimation, one number per sample.

    With scores s of classes, probabilities q of the noise and n = ``num_samples`` it is
    ``logaddexp(s, log(n q)) - s`` of the label, plus n times the sum of ``q / f * logaddexp(s, log(n q))`` of the
    classes that `random_sample` draws for the minibatch, minus the sum of ``n q log(n q)`` of all. f is the mean number
    of times that a class is drawn. See `random_sample_inclusion_frequency`.

    Args:
        weights: (classes, size). An unknown size is taken from ``inputs``.
        biases: (classes, 1).
        inputs: vectors (size,).
        labels: one-hot vectors (classes,), best sparse.
        noise_distribution: weight above 0 of each class, an array (classes,), read once.
        num_samples: number of classes to draw.
        allow_duplicates: whether a class can be drawn twice.
        seed: seed of the samples, see `cntk.random`.
        name: name of the function.

    Raises:
        ValueError: other shapes.
    """
    value = noise_distribution.value if hasattr(noise_distribution, "value") else noise_distribution
    noise = np.asarray(value, np.float64)
    if noise.ndim != 1:
        raise ValueError(f"expected noise_distribution to be a vector, got the shape {noise.shape}")
    classes, dtype = len(noise), inputs.dtype
    size = node_of(inputs).shape
    matrix = node_of(weights)
    if matrix.weights is not None and _INFERRED in matrix.weights.shape:
        matrix.weights.fix_shape((classes, *size))
    if weights.shape != (classes, *size) or biases.shape != (classes, 1):
        raise ValueError(
            f"expected weights ({classes}, size), biases ({classes}, 1) and inputs (size,), got {weights.shape}, "
            f"{biases.shape} and {size}"
        )
    q = noise / noise.sum()
    prior = np.log(num_samples * q)
    frequency = ops.random_sample_inclusion_frequency(Constant(q, dtype=np.float64), num_samples, allow_duplicates)
    importance, log_prior = (
        Constant(a, dtype=dtype) for a in (q / np.asarray(frequency.eval(), np.float64).reshape(-1), prior)
    )
    samples = ops.random_sample(Constant(q, dtype=dtype), num_samples, allow_duplicates, seed)
    bias = ops.reshape(biases, (classes,))
    of_samples = ops.times_transpose(inputs, ops.times(samples, weights)) + ops.times(samples, bias, output_rank=0)
    against = ops.times(samples, importance, output_rank=0) * ops.log_add_exp(
        of_samples, ops.times(samples, log_prior, output_rank=0)
    )
    entropy = float((num_samples * q * prior).sum())
    negatives = num_samples * ops.reduce_sum(against) - entropy
    of_label = ops.reduce_sum(inputs * ops.times(labels, weights)) + ops.times(labels, bias, output_rank=0)
    positive = ops.log_add_exp(of_label, ops.times(labels, log_prior, output_rank=0)) - of_label
    return ops.plus(positive, negatives, name=name)


def hierarchical_softmax_layer(
    input_var: Any, label_index: Any, label_dim: int, label_classes: int | None = None
) -> tuple[Any, Any, list[Any]]:
    """Return probabilities of labels that are divided into classes: a softmax of the class, and another within it.

    The parameters are ``hsoftmax_w1`` (size, classes), ``hsoftmax_b1`` (classes,), ``hsoftmax_w2s`` (classes, size,
    labels of a class) and ``hsoftmax_b2s`` (classes, labels of a class).

    Args:
        input_var: vectors (size,).
        label_index: number of the label, (1,).
        label_dim: number of labels.
        label_classes: number of classes. None means the root of ``label_dim``, rounded up.

    Returns:
        The probability of the label (1, 1), the probabilities of the classes (classes,), and a list of the
        probabilities of the labels of each class.
    """
    (size,) = node_of(input_var).shape  # an error if unknown
    classes = label_classes or math.ceil(math.sqrt(label_dim))
    count = math.ceil(label_dim / classes)
    w1 = Parameter((size, classes), glorot_normal(), name="hsoftmax_w1")
    b1 = Parameter((classes,), glorot_normal(), name="hsoftmax_b1")
    w2s = Parameter((classes, size, count), glorot_normal(), name="hsoftmax_w2s")
    b2s = Parameter((classes, count), glorot_normal(), name="hsoftmax_b2s")
    of_class = ops.floor((label_index + 0.5) / count)
    within = ops.round(label_index - of_class * count)
    class_probs = ops.softmax(b1 + ops.times(input_var, w1))
    one_hot = ops.one_hot(of_class, classes)
    w2 = ops.reshape(ops.times(one_hot, w2s, output_rank=2), (size, -1))
    b2 = ops.reshape(ops.times(one_hot, b2s), (-1,))
    in_class = ops.softmax(b2 + ops.times(input_var, w2))
    output_prob = ops.times_transpose(ops.one_hot(within, count), in_class) * ops.times_transpose(one_hot, class_probs)
    all_probs = []
    for i in range(classes):
        row = Constant(np.eye(classes, dtype=np.float32)[i])
        labels = ops.softmax(ops.times(row, b2s) + ops.times(input_var, ops.times(row, w2s, output_rank=2)))
        all_probs.append(labels * ops.times_transpose(row, class_probs))
    return output_prob, class_probs, all_probs


if not TYPE_CHECKING:  # type checkers find out themselves
    take_plain_settings(globals())
    __all__ = defined_in(globals())
