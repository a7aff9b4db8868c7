"""As operator_cases, for operators on images, on sequences of unequal lengths, and for sorting."""

from __future__ import annotations

import numpy as np

from tests.compat.operator_cases import Case
from tests.oracles import mxnet as oracle

IMAGES = (2, 4, 3, 3)
STEPS = (4, 3, 2)
LENGTHS = [1, 4, 2]
# No two of them are equal, so that the order does not hang on a rounding.
NUMBERS = [[3.0, -1.0, 2.0, 7.0], [0.5, 9.0, -4.0, 1.0]]


def seen(x, lengths, axis=0):
    """Return (step, sequence, whether the sequence has the step) for all, with time in front."""
    for step in range(x.shape[axis]):
        for i, n in enumerate(lengths):
            yield step, i, step < n


def masked(x, lengths, value=0.0, axis=0):
    y = np.moveaxis(x.copy(), axis, 0)
    for step, i, inside in seen(x, lengths, axis):
        if not inside:
            y[step, i] = value
    return np.moveaxis(y, 0, axis)


def turned(x, lengths):
    y = x.copy()
    for step, i, inside in seen(x, lengths):
        if inside:
            y[step, i] = x[int(lengths[i]) - 1 - step, i]
    return y


def large(x, down, across):
    return np.kron(x, np.ones((1, 1, down, across)))


def out_of_channels(x, block):
    """What makes these channels."""
    y = np.zeros((x.shape[0], x.shape[1] // block**2, x.shape[2] * block, x.shape[3] * block))
    places = np.arange(y.size).reshape(y.shape)
    y.flat[oracle.into_channels(places, block).ravel()] = x.ravel()
    return y


def scattered(data, indices, shape):
    y = np.zeros(shape)
    for place, value in zip(indices.astype(int).T, data, strict=True):
        y[tuple(place)] = value
    return y


def best(x, k, axis=-1, ascending=False):
    return np.argsort(x if ascending else -x, axis, kind="stable").take(range(k), axis)


TABLE = {
    "InstanceNorm": [
        Case([IMAGES, (4,), (4,)], lambda x, g, b: oracle.group_norm(x, g, b, groups=4, eps=1e-3)),
        Case([(2, 3, 5), (3,), (3,)], lambda x, g, b: oracle.group_norm(x, g, b, groups=3, eps=0.1), eps=0.1),
    ],
    "GroupNorm": [
        Case([IMAGES, (2,), (2,)], lambda x, g, b: oracle.group_norm(x, g, b, groups=2), num_groups=2),
        Case(
            [(2, 3, 5), (1,), (1,)],
            lambda x, g, b: (
                oracle.group_norm(x, g, b, groups=1),
                x.mean((1, 2))[:, None],
                np.sqrt(x.var((1, 2)) + 1e-5)[:, None],
            ),
            output_mean_var=True,
        ),
    ],
    "LRN": [
        Case([(2, 5, 2, 2)], lambda x: oracle.neighbours(x, 3, 1e-4, 0.75, 2), nsize=3),
        Case([(1, 6, 2, 1)], lambda x: oracle.neighbours(x, 5, 0.5, 2, 1), nsize=5, alpha=0.5, beta=2, knorm=1),
    ],
    "UpSampling": [
        Case([IMAGES], lambda x: large(x, 2, 2), scale=2, sample_type="nearest", num_args=1),
        Case([IMAGES], lambda x: large(x, 1, 3), scale=(1, 3), sample_type="nearest", num_args=1),
        Case(
            [(1, 2, 4, 4), (1, 1, 2, 2)],
            lambda a, b: np.concatenate([large(a, 2, 2), large(b, 4, 4)], 1),
            scale=2,
            sample_type="nearest",
            num_args=2,
        ),
        Case(
            [(1, 2, 4, 4), (1, 2, 8, 8)],
            lambda a, b: large(a, 2, 2) + b,
            scale=2,
            sample_type="nearest",
            num_args=2,
            multi_input_mode="sum",
        ),
        *[
            Case(
                [(1, 2, 3, 4), (2, 1, kernel, kernel)],
                lambda x, w, scale=scale: oracle.deconvolution(
                    x, w, stride=(scale, scale), pad=(scale // 2, scale // 2), adj=(0, 0), groups=2
                ),
                scale=scale,
                sample_type="bilinear",
                num_filter=2,
                num_args=2,
            )
            for scale, kernel in ((2, 4), (3, 5))
        ],
    ],
    "_contrib_BilinearResize2D": [
        Case([(1, 2, 3, 4)], lambda x: oracle.interpolated(x, (5, 2)), height=5, width=2),
        Case(
            [(1, 2, 3, 4)],
            lambda x: oracle.interpolated(x, (6, 8), False),
            mode="size",
            scale_height=2,
            scale_width=2,
            align_corners=False,
        ),
        Case([(1, 2, 3, 4)], lambda x: oracle.interpolated(x, (5, 8)), mode="odd_scale", scale_height=2, scale_width=2),
        Case([(1, 2, 3, 4), (2, 1, 1, 6)], lambda x, like: oracle.interpolated(x, (1, 6)), mode="like"),
        *[
            Case([(1, 2, 3, 4)], lambda x, out=out: oracle.interpolated(x, out), mode=mode)
            for mode, out in {
                "to_even_down": (2, 4),
                "to_even_up": (4, 4),
                "to_odd_down": (3, 3),
                "to_odd_up": (3, 5),
            }.items()
        ],
    ],
    "_contrib_AdaptiveAvgPooling2D": [
        Case([IMAGES], lambda x: x.mean((2, 3), keepdims=True)),
        Case([(1, 2, 5, 3)], lambda x: oracle.areas(x, (3, 3)), output_size=3),
        Case([(1, 2, 5, 3)], lambda x: oracle.areas(x, (2, 4)), output_size=(2, 4)),
    ],
    "space_to_depth": [Case([(2, 3, 4, 6)], lambda x: oracle.into_channels(x, 2), block_size=2)],
    "depth_to_space": [
        Case([(2, 18, 1, 2)], lambda x: out_of_channels(x, 3), block_size=3),
    ],
    "Crop": [
        Case([(1, 2, 5, 6)], lambda x: x[:, :, 1:4, 2:4], num_args=1, offset=(1, 2), h_w=(3, 2)),
        Case([(1, 2, 5, 6), (1, 3, 2, 3)], lambda x, like: x[:, :, :2, :3], num_args=2),
        Case([(1, 2, 5, 6), (1, 3, 2, 3)], lambda x, like: x[:, :, 1:3, 1:4], num_args=2, center_crop=True),
    ],
    "SequenceLast": [
        Case([STEPS], lambda x: x[-1]),
        Case([STEPS], lambda x: x[:, -1], axis=1),
        Case(
            [STEPS, LENGTHS],
            lambda x, n: np.stack([x[int(k) - 1, i] for i, k in enumerate(n)]),
            use_sequence_length=True,
        ),
        Case(
            [STEPS, [3, 1, 2, 2]],
            lambda x, n: np.stack([x[i, int(k) - 1] for i, k in enumerate(n)]),
            use_sequence_length=True,
            axis=1,
        ),
    ],
    "SequenceMask": [
        Case([STEPS], lambda x: x),
        Case([STEPS, LENGTHS], masked, use_sequence_length=True),
        Case([STEPS, [3, 1, 2, 2]], lambda x, n: masked(x, n, -2, 1), use_sequence_length=True, value=-2, axis=1),
    ],
    "SequenceReverse": [
        Case([STEPS], lambda x: x[::-1]),
        Case([STEPS, LENGTHS], turned, use_sequence_length=True),
    ],
    "CTCLoss": [
        Case([(4, 2, 3), [[1, 2], [2, 0]]], lambda x, y: oracle.alignment(x, [[1, 2], [2]], blank=0)),
        Case(
            [(4, 2, 3), [[0, 0], [-1, -1]]],
            lambda x, y: oracle.alignment(x, [[0, 0], []], blank=2),
            blank_label="last",
        ),
        Case(
            [(4, 2, 3), [[1, 2], [2, 1]], [3, 2], [2, 1]],
            lambda x, y, n, m: oracle.alignment(x, [[1, 2], [2]], blank=0, times=[3, 2]),
            use_data_lengths=True,
            use_label_lengths=True,
        ),
    ],
    "sort": [
        Case([NUMBERS], lambda x: np.sort(x)),
        Case([NUMBERS], lambda x: np.sort(x, 0)[::-1], axis=0, is_ascend=False),
        Case([NUMBERS], lambda x: np.sort(x, None), axis=None),
    ],
    "argsort": [
        Case([NUMBERS], lambda x: best(x, 4, ascending=True), smooth=False),
        Case([NUMBERS], lambda x: best(x, 2, 0), smooth=False, axis=0, is_ascend=False, dtype="int32"),
    ],
    "topk": [
        Case([NUMBERS], lambda x: best(x, 1), smooth=False),
        Case([NUMBERS], lambda x: best(x.ravel(), 3), smooth=False, axis=None, k=3, dtype="int32"),
        Case([NUMBERS], lambda x: -np.sort(-x)[:, :2], k=2, ret_typ="value"),
        Case([NUMBERS], lambda x: (np.sort(x, 0), best(x, 2, 0, True)), k=0, ret_typ="both", axis=0, is_ascend=True),
        Case([NUMBERS], lambda x: 1.0 * (x >= np.sort(x)[:, 2:3]), smooth=False, k=2, ret_typ="mask"),
    ],
    "reverse": [
        Case([STEPS], lambda x: x[::-1], axis=0),
        Case([STEPS], lambda x: x[:, ::-1, ::-1], axis=(1, -1)),
    ],
    "slice_like": [
        Case([(4, 5), (2, 3)], lambda x, like: x[:2, :3]),
        Case([(4, 5), (2, 3, 1)], lambda x, like: x[:, :3], axes=(-1,)),
    ],
    "batch_take": [Case([(3, 4), [0, 9, 2]], lambda a, i: a[[0, 1, 2], [0, 3, 2]])],
    "gather_nd": [
        Case([(3, 4), [[0, 2, 2], [1, 3, 3]]], lambda x, i: x[[0, 2, 2], [1, 3, 3]]),
        Case([(3, 4), [[2, 0]]], lambda x, i: x[[2, 0]]),
    ],
    "scatter_nd": [
        Case([(2,), [[0, 2], [1, 3]]], lambda d, i: scattered(d, i, (3, 4)), shape=(3, 4)),
        Case([(2, 4), [[2, 0]]], lambda d, i: scattered(d, i, (3, 4)), shape=(3, 4)),
    ],
}
