"""Slow, obvious twins of the graph's operations: NumPy on one sample, or on one sequence, at a time."""

from __future__ import annotations

import itertools
import math

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


# ---- one sample -----------------------------------------------------------------------------------


def splice(axis):
    def f(*xs):
        rank = max(x.ndim for x in xs)
        new = axis < -rank or axis >= rank
        rank += new
        xs = [x.reshape((1,) * (rank - x.ndim) + x.shape) for x in xs]
        at = axis if axis >= 0 else rank + axis
        around = np.broadcast_shapes(*[x.shape[:at] + x.shape[at + 1 :] for x in xs])
        xs = [np.broadcast_to(x, (*around[:at], x.shape[at], *around[at:])) for x in xs]
        return np.concatenate(xs, at)

    return f


def times(x, w, rank):
    return np.tensordot(x, w, rank)


def convolve(w, x, strides, pad, dilation=None, groups=1):
    """Convolve cell by cell. CNTK's padding: windows centred on every strided cell, an odd cell over at the end."""
    rank = w.ndim - 2
    dilation = dilation or (1,) * rank
    sizes, kernel = x.shape[1:], w.shape[2:]
    out, first = [], []
    for n, k, s, p, d in zip(sizes, kernel, strides, pad, dilation, strict=True):
        reach = (k - 1) * d + 1
        if p:
            count = -(-n // s)
            first.append((n - ((count - 1) * s + 1)) // 2 - (reach - 1) // 2)
        else:
            count = (n - reach) // s + 1
            first.append(0)
        out.append(count)
    y = np.zeros((w.shape[0], *out))
    per_in, per_out = x.shape[0] // groups, w.shape[0] // groups
    for f in range(w.shape[0]):
        for at in itertools.product(*map(range, out)):
            for c in range(w.shape[1]):
                for k in itertools.product(*map(range, kernel)):
                    cell = tuple(
                        a * s + b + j * d for a, s, b, j, d in zip(at, strides, first, k, dilation, strict=True)
                    )
                    if all(0 <= i < n for i, n in zip(cell, sizes, strict=True)):
                        y[(f, *at)] += w[(f, c, *k)] * x[(f // per_out * per_in + c, *cell)]
    return y


def pool(x, window, strides, pad, reduce):
    """Pool windows of the last axes. Cells outside do not take part."""
    rank = len(window)
    lead, sizes = x.shape[: x.ndim - rank], x.shape[x.ndim - rank :]
    out, first = [], []
    for n, k, s, p in zip(sizes, window, strides, pad, strict=True):
        count = -(-n // s) if p else (n - k) // s + 1
        first.append((n - ((count - 1) * s + 1)) // 2 - (k - 1) // 2 if p else 0)
        out.append(count)
    flat = x.reshape(math.prod(lead), *sizes)
    y = np.zeros((len(flat), *out))
    for i, plane in enumerate(flat):
        for at in itertools.product(*map(range, out)):
            cells = []
            for k in itertools.product(*map(range, window)):
                cell = tuple(a * s + b + j for a, s, b, j in zip(at, strides, first, k, strict=True))
                if all(0 <= c < n for c, n in zip(cell, sizes, strict=True)):
                    cells.append(plane[cell])
            y[(i, *at)] = reduce(cells)
    return y.reshape(*lead, *out)


def unpool(x, like, window, strides, pad):
    """Each element of x where the maximum of its window of ``like`` is, 0 elsewhere."""
    numbers = np.arange(float(like.size)).reshape(like.shape)
    order = like.ravel()

    def largest(cells):
        return max(cells, key=lambda n: order[int(n)])

    where = pool(numbers, window, strides, pad, largest).astype(int)
    y = np.zeros(like.size)
    y[where.ravel()] = x.ravel()
    return y.reshape(like.shape)


# ---- one sequence ---------------------------------------------------------------------------------


def delay(x, steps, initial):
    out = np.empty_like(x)
    for t in range(len(x)):
        out[t] = x[t - steps] if 0 <= t - steps < len(x) else initial
    return out


def lstm(x, W, H, b, h0, c0, backwards=False):
    """CNTK's gates: input, candidate, forget, output."""
    n = H.shape[0]
    h, c = np.full(n, h0, np.float64), np.full(n, c0, np.float64)
    out = np.empty((len(x), n))
    for t in reversed(range(len(x))) if backwards else range(len(x)):
        gates = x[t] @ W + h @ H + b
        i, g, f, o = (gates[k * n : (k + 1) * n] for k in range(4))
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        out[t] = h
    return out


def gru(x, W, H, H1, b):
    """The state is reset before its product."""
    n = H.shape[0]
    h, out = np.zeros(n), np.empty((len(x), n))
    for t in range(len(x)):
        from_x, from_h = x[t] @ W + b, h @ H
        z = sigmoid(from_x[:n] + from_h[:n])
        r = sigmoid(from_x[n : 2 * n] + from_h[n:])
        candidate = np.tanh(from_x[2 * n :] + (h * r) @ H1)
        h = (1 - z) * candidate + z * h
        out[t] = h
    return out


def rnn(x, W, H, b, activation, backwards=False):
    h, out = np.zeros(H.shape[0]), np.empty((len(x), H.shape[0]))
    for t in reversed(range(len(x))) if backwards else range(len(x)):
        h = activation(x[t] @ W + h @ H + b)
        out[t] = h
    return out
