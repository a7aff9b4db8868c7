"""Convolutions, pooling and normalization, cell by cell."""

import itertools
import math

import numpy as np

from tests.compat.cntk_cases.case import Case, Fixed, Steps

RNG = np.random.RandomState(0)
X = RNG.permutation(2 * 2 * 5 * 4).reshape(2, 2, 5, 4) / 20.0 - 2
SMALL = X[:1]
KERNEL = RNG.randint(-4, 5, (3, 2, 3, 2)) / 4.0
GROUPS = RNG.randint(-4, 5, (4, 1, 3, 2)) / 4.0


def window(size, reach, stride, pad):
    """Number of places of a window along an axis, and where the first begins."""
    if not pad:
        return (size - reach) // stride + 1, 0
    count = -(-size // stride)
    return count, (size - ((count - 1) * stride + 1)) // 2 - (reach - 1) // 2


def cells(at, strides, first, kernel, dilation, sizes):
    for k in itertools.product(*map(range, kernel)):
        cell = tuple(a * s + b + j * d for a, s, b, j, d in zip(at, strides, first, k, dilation))
        if all(0 <= i < n for i, n in zip(cell, sizes)):
            yield k, cell


def convolve(w, x, strides=(1, 1), pad=(True, True), dilation=(1, 1), groups=1):
    sizes, kernel = x.shape[1:], w.shape[2:]
    places = [window(n, (k - 1) * d + 1, s, p) for n, k, s, p, d in zip(sizes, kernel, strides, pad, dilation)]
    out, first = zip(*places)
    y = np.zeros((len(w),) + out)
    own = len(w) // groups
    for f in range(len(w)):
        for at in itertools.product(*map(range, out)):
            for k, cell in cells(at, strides, first, kernel, dilation, sizes):
                for c in range(w.shape[1]):
                    y[(f,) + at] += w[(f, c) + k] * x[(f // own * w.shape[1] + c,) + cell]
    return y


def transposed(w, x, strides, pad, shape):
    """The gradient of the convolution by its data, for the data's shape."""
    y = np.zeros((w.shape[1],) + shape)
    kernel = w.shape[2:]
    first = [window(n, k, s, p)[1] for n, k, s, p in zip(shape, kernel, strides, pad)]
    for at in itertools.product(*map(range, x.shape[1:])):
        for k, cell in cells(at, strides, first, kernel, (1,) * len(kernel), shape):
            for f in range(len(w)):
                y[(slice(None),) + cell] += w[(f, slice(None)) + k] * x[(f,) + at]
    return y


def pool(x, size, strides, pad, average, ceil=False, include=False):
    sizes = x.shape[-len(size) :]
    places = [window(n, k, s, p) for n, k, s, p in zip(sizes, size, strides, pad)]
    out, first = zip(*places)
    if ceil:
        out = tuple(c if p else -(-(n - k) // s) + 1 for c, n, k, s, p in zip(out, sizes, size, strides, pad))
    y = np.empty(x.shape[: -len(size)] + out)
    for at in itertools.product(*map(range, out)):
        found = [x[(Ellipsis,) + cell] for _, cell in cells(at, strides, first, size, (1,) * len(size), sizes)]
        if average:
            y[(Ellipsis,) + at] = sum(found) / (int(np.prod(size)) if include else len(found))
        else:
            y[(Ellipsis,) + at] = np.max(found, axis=0)
    return y


def unpool(values, like, size, strides):
    y = np.zeros_like(like)
    for c in range(len(like)):
        for i, j in np.ndindex(*values.shape[1:]):
            block = like[c, i * strides[0] : i * strides[0] + size[0], j * strides[1] : j * strides[1] + size[1]]
            a, b = np.unravel_index(block.argmax(), block.shape)
            y[c, i * strides[0] + a, j * strides[1] + b] = values[c, i, j]
    return y


def neighbours(x, depth, bias, alpha, beta):
    y = np.empty_like(x)
    for c in range(len(x)):
        around = x[max(0, c - depth) : c + depth + 1]
        y[c] = x[c] / (bias + alpha / (2 * depth + 1) * (around**2).sum(axis=0)) ** beta
    return y


def standard(x, epsilon, across, scaled):
    axes = tuple(range(0 if across else 1, x.ndim))
    y = x - x.mean(axis=axes, keepdims=True)
    return y / (np.sqrt((y * y).mean(axis=axes, keepdims=True)) + epsilon) if scaled else y


def conv(strides=(1, 1), pad=(True, True), dilation=(1, 1), cntk=True):
    return Case(
        [Fixed(KERNEL), SMALL],
        lambda w, x: convolve(w, x, strides, pad, dilation),
        strides=strides,
        auto_padding=[False] + list(pad),
        dilation=dilation,
        cntk=cntk,
    )


def pooled(kind, size, strides=(1, 1), pad=(False, False), **more):
    ceil, include = more.get("ceil_out_dim", False), more.get("include_pad", False)
    return Case(
        [X],
        lambda x: pool(x, size, strides, pad, kind == 1, ceil, include),
        pooling_type=kind,
        pooling_window_shape=size,
        strides=strides,
        auto_padding=list(pad),
        **more,
    )


def along_steps(w, x, strides=(1, 1), pad=(True, True)):
    """Windows whose first axis is along steps: from the first one on, or within the sequence."""
    k, n, stride = w.shape[2], len(x), strides[0]
    before = (k - 1) // 2
    begins = range(-before, n - before, stride) if pad[0] else range(0, n - k + 1, stride)
    found = []
    for begin in begins:
        y = 0
        for j in range(k):
            if 0 <= begin + j < n:
                y = y + convolve(w[:, :, j], x[begin + j], strides[1:], pad[1:])
        found.append(y)
    return np.stack(found)


def spoken(strides=(1, 1), pad=(True, True)):
    return Case(
        [Fixed(KERNEL), Steps(X[0].transpose(1, 0, 2), X[1].transpose(1, 0, 2)[:3])],
        lambda w, x: along_steps(w, x, strides, pad),
        sequential=True,
        strides=strides,
        auto_padding=[False] + list(pad),
    )


def pool_regions(x, regions, size, scale):
    """Windows that begin before the first cell have none."""
    y = np.zeros((len(regions), len(x)) + size)
    for r, region in enumerate(regions):
        left, top, right, bottom = [math.floor(c * scale + 0.5) for c in region]
        down, across = max(bottom - top + 1, 1) / size[0], max(right - left + 1, 1) / size[1]
        for i, j in itertools.product(range(size[0]), range(size[1])):
            a, b = top + math.floor(i * down), top + math.ceil((i + 1) * down)
            c, d = left + math.floor(j * across), left + math.ceil((j + 1) * across)
            if 0 <= a < min(b, x.shape[1]) and 0 <= c < min(d, x.shape[2]):
                y[r, :, i, j] = x[:, a:b, c:d].max(axis=(1, 2))
    return y


REGIONS = np.array([[[0, 0, 3, 3], [1, 2, 3, 4], [2, 2, 2.6, 2.4], [10, 10, 12, 12]]] * 2)
OUTSIDE = np.array([[[-2, -2, 1, 1], [0, -1, 3, 3], [2, 3, 9, 9]]] * 2)

TRANSPOSED_KERNEL = KERNEL[:2, :, :3, :2]

TABLE = {
    "convolution": [
        conv(),
        conv(pad=(False, False)),
        conv(strides=(2, 2)),
        conv(strides=(2, 1), pad=(True, False)),
        conv(strides=(3, 2), pad=(False, True)),
        conv(dilation=(2, 1), cntk=False),  # not on a CPU
        conv(dilation=(2, 2), pad=(False, False), cntk=False),
        Case(
            [Fixed(GROUPS), SMALL],
            lambda w, x: convolve(w, x, groups=2),
            groups=2,
            auto_padding=[False, True, True],
            cntk=False,
        ),
        Case(
            [Fixed(KERNEL[:, :1, :, :1]), X[:, :1, :, :1]],
            lambda w, x: convolve(w, x),
            auto_padding=[False, True, True],
        ),
        Case(
            [Fixed(KERNEL[0, 0]), X[:, 0]],
            lambda w, x: convolve(w[None, None], x[None]),  # of one filter
            reduction_rank=0,
        ),
        Case([Fixed(KERNEL[:, 0]), X[:, 0]], lambda w, x: convolve(w[:, None], x[None]), reduction_rank=0),
        Case(
            [Fixed(KERNEL[:, :1]), X[:, :1]],
            lambda w, x: convolve(w, x)[:, None],
            reduction_rank=0,
            auto_padding=[False, True, True],
        ),
        spoken(),
        spoken(pad=(False, True)),
        spoken(pad=(True, False)),
        spoken(strides=(2, 1)),
        spoken(strides=(2, 2), pad=(False, False)),
        Case(
            [Fixed(KERNEL[:, :, :2, 0]), Steps(X[0, :, :, 0].T, X[1, :, :2, 1].T)],
            lambda w, x: along_steps(w[..., None], x[..., None])[..., 0],
            sequential=True,
            auto_padding=[False, True],
        ),
    ],
    "roipooling": [
        Case(
            [X, REGIONS / scale],
            lambda x, r, size=size, scale=scale: pool_regions(x, r, size, scale),
            given=(1,),
            cntk=False,  # some gradients are lost there
            pooling_type=0,
            roi_output_shape=size,
            spatial_scale=scale,
        )
        for size, scale in (((2, 3), 1.0), ((3, 2), 0.5), ((1, 1), 0.25))
    ]
    + [
        Case(
            [X, regions],
            lambda x, r: pool_regions(x, r, (2, 3), 1.0),
            slopes=False,
            pooling_type=0,
            roi_output_shape=(2, 3),
            spatial_scale=1.0,
        )
        for regions in (REGIONS, OUTSIDE)
    ],
    "convolution_transpose": [
        Case(
            [Fixed(TRANSPOSED_KERNEL), X[:, :, :3, :2]],
            lambda w, x: transposed(w, x, (1, 1), (False, False), (5, 3)),
            auto_padding=[False, False, False],
        ),
        Case(
            [Fixed(TRANSPOSED_KERNEL), X[:, :, :3, :2]],
            lambda w, x: transposed(w, x, (2, 2), (False, False), (7, 4)),
            strides=(2, 2),
            auto_padding=[False, False, False],
        ),
        Case(
            [Fixed(TRANSPOSED_KERNEL), X[:, :, :3, :2]],
            lambda w, x: transposed(w, x, (2, 3), (True, True), (5, 4)),
            strides=(2, 3),
            auto_padding=[False, True, True],
        ),
        Case(
            [Fixed(TRANSPOSED_KERNEL), X[:, :, :3, :2]],
            lambda w, x: transposed(w, x, (2, 2), (True, True), (6, 4)),
            strides=(2, 2),
            auto_padding=[False, True, True],
            output_shape=(2, 6, 4),
        ),
    ],
    "pooling": [
        pooled(kind, size, strides, pad, **more)
        for kind in (0, 1)
        for size, strides, pad, more in (
            ((2, 2), (2, 2), (False, False), {}),
            ((3, 2), (2, 1), (True, False), {}),
            ((2, 3), (2, 2), (True, True), {}),
            ((2, 2), (2, 3), (False, False), {"ceil_out_dim": True}),
            ((5, 4), (1, 1), (False, False), {}),
        )
    ]
    + [pooled(1, (3, 3), (2, 2), (True, True), include_pad=True)],
    "unpooling": [
        Case(
            [X[:, :, :2, :2], X[:, :, :4]],
            lambda v, like: unpool(v, like, (2, 2), (2, 2)),
            slopes=lambda v, like: (0 * v + 1, 0 * like),
            unpooling_type=0,
            unpooling_window_shape=(2, 2),
            strides=(2, 2),
        )
    ],
    "local_response_normalization": [
        Case([X], lambda x, d=d: neighbours(x, d, 1.5, 0.5, 0.75), depth_radius=d, bias=1.5, alpha=0.5, beta=0.75)
        for d in (0,)
    ],
    "mean_variance_normalization": [
        Case(
            [X],
            lambda x, a=a, s=s: standard(x, 0.5, a, s),
            epsilon=0.5,
            use_stats_across_channels=a,
            do_variance_scaling=s,
        )
        for a in (False, True)
        for s in (False, True)
    ],
    "dropout": [Case([X], lambda x: x, dropout_rate=0.0), Case([X], lambda x: x, dropout_rate=0.4, slopes=False)],
}
