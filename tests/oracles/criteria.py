"""Slow, obvious twins of CNTK's criteria and metrics: one sample at a time, one element at a time, in double precision.

From the formulas that CNTK documents. Their edge cases were compared with CNTK 2.7 (see
tests/compat/cntk_numbers.json). `gradients` has CNTK's gradients, by these formulas' derivatives.
"""

from __future__ import annotations

import math

import numpy as np

# Single precision, for operands of any precision.
EPSILON, ONE_AND_EPSILON = float(np.float32(1e-6)), float(np.float32(1 + 1e-6))
SMALLEST, LOG_OF_SMALLEST = float(np.float32(1e-37)), float(np.float32(-85.1))


def log(x):
    return math.log(x) if x >= SMALLEST else LOG_OF_SMALLEST


def slope_of_log(x):
    return 1 / x if x >= SMALLEST else math.exp(-LOG_OF_SMALLEST)


def log_sum_exp(scores):
    top = max(scores)
    return top + math.log(sum(math.exp(s - top) for s in scores))


def softmax(scores):
    total = log_sum_exp(scores)
    return [math.exp(s - total) for s in scores]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


# ---- cross entropy with softmax -------------------------------------------------------------------


def cross_entropy(scores, targets):
    """Return (1,) for two vectors. For matrices, every row of scores is compared with every row of targets."""
    found = [[log_sum_exp(o) - dot(o, t) for t in _rows(targets)] for o in _rows(scores)]
    return np.array(found).reshape(*scores.shape[:-1], targets.shape[0] if targets.ndim == 2 else 1)


def cross_entropy_gradients(scores, targets):
    """Return the gradients of the summed `cross_entropy` of two vectors: by the scores, and by the targets."""
    total = 1.0
    for_scores = [p * total - t for p, t in zip(softmax(scores), targets, strict=True)]
    return np.array(for_scores), np.array([-s for s in scores])


def cross_entropy_along(scores, targets, axis):
    """Reduce along one axis and keep it. None: reduce all axes and keep none."""
    if axis is None:
        return np.float64(log_sum_exp(scores.ravel()) - dot(scores.ravel(), targets.ravel()))
    o, t = np.moveaxis(scores, axis, -1), np.moveaxis(targets, axis, -1)
    found = np.empty(o.shape[:-1])
    for at in np.ndindex(found.shape):
        found[at] = log_sum_exp(o[at]) - dot(o[at], t[at])
    return np.expand_dims(found, axis)


# ---- classification error -------------------------------------------------------------------------


def first_largest(scores):
    """Return 1 at the first of the largest elements of the whole array, else 0."""
    best = max(range(scores.size), key=lambda i: (scores.ravel()[i], -i))
    return np.array([float(i == best) for i in range(scores.size)]).reshape(scores.shape)


def classification_error(scores, targets):
    """Return 1 minus the target where the score is largest, with shapes as in `cross_entropy`."""
    found = [[1 - dot(o, t) for t in _rows(targets)] for o in _rows(first_largest(scores))]
    return np.array(found).reshape(*scores.shape[:-1], targets.shape[0] if targets.ndim == 2 else 1)


def classification_error_along(scores, targets, axis):
    """Count the vectors whose targets are not 1 at exactly the largest scores and 0 elsewhere."""
    if axis is None:
        scores, targets, axis = scores.reshape(1, -1), targets.reshape(1, -1), -1
    o, t = np.moveaxis(scores, axis, -1), np.moveaxis(targets, axis, -1)
    wrong = [[float(s == max(o[at])) for s in o[at]] != list(t[at]) for at in np.ndindex(o.shape[:-1])]
    return np.float64(sum(wrong) / len(wrong))


def missed_by_the_best(scores, targets, top):
    """Count the samples of a minibatch whose first largest target is not among the ``top`` largest scores."""
    missed = 0
    for o, t in zip(scores, targets, strict=True):
        label = max(range(t.size), key=lambda i: (t.ravel()[i], -i))
        order = sorted(range(o.size), key=lambda i: (-o.ravel()[i], i))
        missed += label not in order[:top]
    return float(missed)


# ---- others ---------------------------------------------------------------------------------------


def binary_cross_entropy(outputs, targets):
    """Element by element."""
    pairs = np.nditer(np.broadcast_arrays(outputs, targets))
    each = [
        -(t * log(p + EPSILON) + (1 - t) * log(ONE_AND_EPSILON - p)) for p, t in (map(float, pair) for pair in pairs)
    ]
    return np.array(each).reshape(np.broadcast_shapes(np.shape(outputs), np.shape(targets)))


def binary_cross_entropy_gradients(outputs, targets):
    """Return the gradients by outputs and by targets, which have the same shape."""
    for_outputs = [
        -t * slope_of_log(p + EPSILON) + (1 - t) * slope_of_log(ONE_AND_EPSILON - p)
        for p, t in zip(outputs, targets, strict=True)
    ]
    for_targets = [log(ONE_AND_EPSILON - p) - log(p + EPSILON) for p in outputs]
    return np.array(for_outputs), np.array(for_targets)


def weighted_binary_cross_entropy(outputs, targets, weights):
    """Return the loss of a whole minibatch, with weights scaled to a mean of 1."""
    total = sum(-w * math.log(t * p + (1 - t) * (1 - p)) for p, t, w in zip(outputs, targets, weights, strict=True))
    return total * len(outputs) / sum(weights)


def weighted_binary_cross_entropy_gradient(outputs, targets, weights):
    """Return CNTK's gradient by the outputs: unscaled weights, another loss where targets are not 0 or 1."""
    return np.array([w * (p - t) / (p * (1 - p)) for p, t, w in zip(outputs, targets, weights, strict=True)])


def squared_error(outputs, targets):
    return np.float64(sum((a - b) ** 2 for a, b in np.nditer(np.broadcast_arrays(outputs, targets))))


def cosine_distance(a, b):
    a, b = a.ravel(), b.ravel()
    return np.float64(dot(a, b) / (math.sqrt(dot(a, a)) * math.sqrt(dot(b, b))))


def _rows(x):
    return x.reshape(-1, x.shape[-1]).tolist()
