"""MXNet's operators by NumPy, slow and obvious: a loop for each window, a line for each formula."""

from __future__ import annotations

import itertools
import math

import numpy as np


def windows(x, kernel, stride, dilate, out):
    """(place in the result, part of ``x`` under the window) for each place. ``x`` is (batch, channels, *sizes)."""
    for place in itertools.product(*map(range, out)):
        cut = tuple(
            slice(i * s, i * s + d * (k - 1) + 1, d) for i, k, s, d in zip(place, kernel, stride, dilate, strict=True)
        )
        yield place, x[(slice(None), slice(None), *cut)]


def convolution(x, w, b=None, *, stride, dilate, pad, groups=1):
    kernel = w.shape[2:]
    x = np.pad(x, [(0, 0), (0, 0), *((a, a) for a in pad)])
    out = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[2:], kernel, stride, dilate, strict=True)]
    y = np.zeros((len(x), len(w), *out))
    inner, outer = x.shape[1] // groups, len(w) // groups
    for place, part in windows(x, kernel, stride, dilate, out):
        for f in range(len(w)):
            mine = part[:, f // outer * inner : (f // outer + 1) * inner]
            y[(slice(None), f, *place)] = (mine * w[f]).reshape(len(x), -1).sum(1)
    return y if b is None else y + b.reshape(-1, *(1,) * len(kernel))


def deconvolution(x, w, *, stride, pad, adj, groups=1):
    """Add the kernel to the output once for each input cell."""
    kernel, outer = w.shape[2:], w.shape[1]
    inner = x.shape[1] // groups
    sizes = [s * (n - 1) + k + a for n, k, s, a in zip(x.shape[2:], kernel, stride, adj, strict=True)]
    y = np.zeros((len(x), outer * groups, *sizes))
    for place in itertools.product(*map(range, x.shape[2:])):
        cut = tuple(slice(i * s, i * s + k) for i, k, s in zip(place, kernel, stride, strict=True))
        for c in range(x.shape[1]):
            g = c // inner
            for f in range(outer):
                y[(slice(None), g * outer + f, *cut)] += (
                    x[(slice(None), c, *place)].reshape(-1, *(1,) * len(kernel)) * w[c, f]
                )
    return y[(slice(None), slice(None), *(slice(a, n - a) for a, n in zip(pad, sizes, strict=True)))]


def pooling(x, *, how, kernel, stride, pad, convention="valid", include_pad=True, p=2):
    """Pool windows that may extend beyond the input: padding counts towards means, cells beyond it do not."""
    sizes = x.shape[2:]
    rounding = math.ceil if convention == "full" else math.floor
    out = [rounding((n + 2 * a - k) / s) + 1 for n, k, s, a in zip(sizes, kernel, stride, pad, strict=True)]
    if convention == "same":
        out = [math.ceil(n / s) for n, s in zip(sizes, stride, strict=True)]
    y = np.zeros((*x.shape[:2], *out))
    for place in itertools.product(*map(range, out)):
        begins = [i * s - a for i, s, a in zip(place, stride, pad, strict=True)]
        cut = tuple(slice(max(b, 0), min(b + k, n)) for b, k, n in zip(begins, kernel, sizes, strict=True))
        part = x[(slice(None), slice(None), *cut)].reshape(*x.shape[:2], -1)
        covered = math.prod(min(b + k, n + a) - b for b, k, n, a in zip(begins, kernel, sizes, pad, strict=True))
        at = (slice(None), slice(None), *place)
        y[at] = {
            "max": lambda part=part: part.max(2),
            "sum": lambda part=part: part.sum(2),
            "avg": lambda part=part, n=covered: part.sum(2) / (n if include_pad else part.shape[2]),
            "lp": lambda part=part: (abs(part) ** p).sum(2) ** (1 / p),
        }[how]()
    return y


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def batch_norm(x, gamma, beta, mean, variance, *, eps, axis=1):
    wide = [-1 if i == axis else 1 for i in range(x.ndim)]
    mean, variance, gamma, beta = (a.reshape(wide) for a in (mean, variance, gamma, beta))
    return (x - mean) / np.sqrt(variance + eps) * gamma + beta


def group_norm(x, gamma, beta, *, groups, eps=1e-5):
    """Normalise with one scale and offset per group. One group per channel is instance normalisation."""
    y = np.empty_like(x)
    width = x.shape[1] // groups
    for i, g in itertools.product(range(len(x)), range(groups)):
        part = x[i, g * width : (g + 1) * width]
        y[i, g * width : (g + 1) * width] = (part - part.mean()) / np.sqrt(part.var() + eps) * gamma[g] + beta[g]
    return y


def neighbours(x, size, alpha, beta, offset):
    """Divide each channel by a power of the summed squares of its neighbours."""
    y = np.empty_like(x)
    for c in range(x.shape[1]):
        around = x[:, max(0, c - size // 2) : c + size // 2 + 1]
        y[:, c] = x[:, c] / (offset + alpha / size * (around**2).sum(1)) ** beta
    return y


def interpolated(x, sizes, align=True):
    """Interpolate between the four cells around each place. ``align`` aligns corner cells, else edges."""
    y = np.zeros((*x.shape[:2], *sizes))
    for place in itertools.product(*map(range, sizes)):
        weights = [np.zeros(n) for n in x.shape[2:]]
        for weight, i, n, m in zip(weights, place, x.shape[2:], sizes, strict=True):
            at = i * (n - 1) / max(m - 1, 1) if align else max((i + 0.5) * n / m - 0.5, 0)
            low = min(int(at), n - 1)
            weight[low] += 1 - (at - low)
            weight[min(low + 1, n - 1)] += at - low
        y[(slice(None), slice(None), *place)] = (x * np.outer(*weights)).sum((2, 3))
    return y


def into_channels(x, block):
    """Move the cells of each block into channels: all channels of its first cell, then of the next."""
    rows = [x[:, :, i::block, j::block] for i in range(block) for j in range(block)]
    return np.concatenate(rows, 1)


def areas(x, sizes):
    """Return the mean over the cells that each area touches."""
    y = np.zeros((*x.shape[:2], *sizes))
    for place in itertools.product(*map(range, sizes)):
        cut = [slice(i * n // m, -(-(i + 1) * n // m)) for i, n, m in zip(place, x.shape[2:], sizes, strict=True)]
        y[(slice(None), slice(None), *place)] = x[(slice(None), slice(None), *cut)].mean((2, 3))
    return y


def alignment(x, labels, *, blank, times=None):
    """Minus the logarithm of the probability of all paths that read as the labels. Paths are tried one by one."""
    losses = []
    for i, label in enumerate(labels):
        steps = len(x) if times is None else times[i]
        probability = softmax(x[:steps, i], 1)
        total = 0.0
        for path in itertools.product(range(x.shape[2]), repeat=steps):
            read = [k for k, _ in itertools.groupby(path) if k != blank]
            if read == list(label):
                total += math.prod(probability[t, k] for t, k in enumerate(path))
        losses.append(-math.log(total))
    return np.array(losses)


def margin_gradient(x, label, *, margin=1.0, scale=1.0, linear=False):
    """Return SVMOutput's gradient: the right class is pushed above the margin, all others below its negative."""
    gradient = np.zeros_like(x)
    for row, k in itertools.product(range(x.shape[0]), range(x.shape[1])):
        side = 1 if k == label[row] else -1
        if side * x[row, k] < margin:
            gradient[row, k] = -side * scale * (1 if linear else 2 * (margin - side * x[row, k]))
    return gradient


def reshape(shape, codes):
    """Resolve MXNet's codes one by one, except -1, which NumPy knows."""
    out, left, codes = [], list(shape), list(codes)
    while codes:
        code = codes.pop(0)
        if code == 0:
            out.append(left.pop(0))
        elif code == -2:
            out += left
            left = []
        elif code == -3:
            out.append(left.pop(0) * left.pop(0))
        elif code == -4:
            size, a, b = left.pop(0), codes.pop(0), codes.pop(0)
            out += [size // b if a == -1 else a, size // a if b == -1 else b]
        else:
            out.append(code)
            left = left[1:]
    return out


def softmax_gradient(y, label, *, scale=1.0, ignore=None, normalization="null", alpha=0.0, ignore_label=-1):
    """Return SoftmaxOutput's gradient by rows. ``y`` is (rows, classes, places), ``label`` (rows, places)."""
    gradient = y.copy()
    classes = y.shape[1]
    counted = 0
    for row, place in itertools.product(range(y.shape[0]), range(y.shape[2])):
        target = int(label[row, place])
        counted += target != ignore_label
        for k in range(classes):
            gradient[row, k, place] -= 1 - alpha if k == target else alpha / (classes - 1)
        if ignore is not None and target == ignore:
            gradient[row, :, place] = 0
    if normalization == "valid":
        return gradient * scale / max(counted, 1)
    return gradient * scale / y.shape[2] / (len(label) if normalization == "batch" else 1)


def lstm(x, weights, biases, h, c):
    """One layer, one direction. Gates are input, forget, cell, output. (steps, batch, units), last h, last c."""

    def sigmoid(z):
        return 1 / (1 + np.exp(-z))

    out = []
    for step in x:
        z = step @ weights[0].T + biases[0] + h @ weights[1].T + biases[1]
        i, f, g, o = np.split(z, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        out.append(h)
    return np.stack(out), h, c


def gru(x, weights, biases, h):
    """One layer, one direction. Gates are reset, update, new."""

    def sigmoid(z):
        return 1 / (1 + np.exp(-z))

    out = []
    for step in x:
        below = np.split(step @ weights[0].T + biases[0], 3, axis=1)
        before = np.split(h @ weights[1].T + biases[1], 3, axis=1)
        r, z = sigmoid(below[0] + before[0]), sigmoid(below[1] + before[1])
        h = (1 - z) * np.tanh(below[2] + r * before[2]) + z * h
        out.append(h)
    return np.stack(out), h
