"""Products, and operators that move elements: slices, joins, reshaping, selection."""

import numpy as np

from tests.compat.cntk_cases.case import Case, Fixed, Steps

X = np.arange(1, 49).reshape(2, 2, 3, 4) * 37 % 19 / 4 - 2
M = np.arange(12).reshape(3, 4) * 7 % 5 - 1.5
V = np.array([[1, -2, 0.5], [0, 3, -1]])
STEPS = Steps(V[:1], np.concatenate([V, V[::-1] * 2]))


def linear(operands, formula, **more):
    return Case(operands, formula, **more)


TIMES = [
    linear([V, Fixed(M)], lambda x, w: x @ w),
    linear([X[:, :, :, :3], Fixed(M)], lambda x, w: np.tensordot(x, w, 1)),
    linear([X[:, 0], Fixed(np.arange(24.0).reshape(4, 2, 3) / 7)], lambda x, w: np.tensordot(x, w, 1), output_rank=2),
    linear([V, V], np.outer),
    linear([V[:, None], V[:, :, None]], lambda a, b: a @ b),
    linear([X[:, 0], X[:, 0].swapaxes(1, 2)], lambda a, b: a @ b),
    linear([Fixed(M.T), V], np.multiply.outer),
    linear([Fixed(M.T), Fixed(M)], lambda a, b: a @ b),
    linear([STEPS, Fixed(M)], lambda x, w: x @ w),
    linear([[[0, 1, 0], [2, 0, -1], [0, 0, 0]], Fixed(M)], lambda x, w: x @ w, sparse=(0,), cntk=False),
    linear([[[2]], Fixed([[3.0]])], lambda x, w: x @ w),
]
# The steps of two sequences are multiplied and added up.
NUMBERS = Steps([[2]], [[1], [-1], [0.5], [3]])


def over_steps(C, x, y):
    return C.times(x, y, infer_input_rank_to_map=C.TIMES_REDUCE_SEQUENCE_AXIS_WITHOUT_INFERRED_INPUT_RANK)


TIMES.append(Case([NUMBERS, STEPS], lambda x, y: (x * y).sum(axis=0)[None], call=over_steps))
TRANSPOSED = [
    linear([V, Fixed(M.T)], lambda x, w: x @ w.T),
    linear([X[:, 0], Fixed(M)], lambda x, w: x @ w.T),
    linear([X[:, 0], X[:, 1]], lambda a, b: a @ b.T),
    linear([V, V[::-1]], lambda a, b: np.reshape(a @ b, (1,))),
    linear([STEPS, Fixed(M.T)], lambda x, w: x @ w.T),
]


def cut(*index):
    return lambda x: x[index]


def negative(x, block):
    channels, height, width = x.shape
    y = x.reshape(block, block, channels // block**2, height, width)
    return y.transpose(2, 3, 0, 4, 1).reshape(channels // block**2, height * block, width * block)


def positive(x, block):
    channels, height, width = x.shape
    y = x.reshape(channels, height // block, block, width // block, block)
    return y.transpose(2, 4, 0, 1, 3).reshape(channels * block**2, height // block, width // block)


WIDE = np.arange(64.0).reshape(1, 1, 8, 8)


def pool(C, x, size, stride=1, pad=False):
    return C.pooling(x, C.AVG_POOLING, (size, size), (stride, stride), auto_padding=[pad])


def transposed(C, x, size, stride, pad=False):
    kernel = C.constant(np.ones((1, 1, size, size)), dtype=np.float64 if x.dtype == np.float64 else np.float32)
    return C.convolution_transpose(kernel, x, (stride, stride), auto_padding=[False, pad, pad])


def crop(make):
    return lambda C, x: C.crop_automatic(x, make(C, x))


# What the operand is cropped to, the offset, and the size.
CROPS = [
    (lambda C, x: pool(C, x, 3), 1, 6),
    (lambda C, x: pool(C, x, 4), 1, 5),
    (lambda C, x: C.relu(pool(C, pool(C, x + 1, 3), 3)), 2, 4),
    (lambda C, x: pool(C, x, 3, 1, True), 0, 8),
    (lambda C, x: transposed(C, pool(C, x, 3, 2), 2, 2), 1, 6),
    (lambda C, x: transposed(C, pool(C, x, 3, 2), 4, 2), 0, 8),
    (lambda C, x: transposed(C, pool(C, x, 1, 3, True), 4, 3, True), 0, 7),
]
IMAGES = np.arange(2 * 8 * 2 * 4).reshape(2, 8, 2, 4) / 8.0
INDEX = np.array([[2, 0], [1, 1]])

TABLE = {
    "times": TIMES,
    "times_transpose": TRANSPOSED,
    "transpose": [
        Case([X], lambda x, p=p: x.transpose(p), perm=p) for p in ((0, 1, 2), (2, 0, 1), (1, 2, 0), (0, 2, 1))
    ]
    + [
        Case([X], lambda x: x.transpose(0, 2, 1), perm=(0, -1, -2)),
    ],
    "swapaxes": [
        Case([X], lambda x: x.swapaxes(0, 1)),
        Case([X], lambda x: x.swapaxes(0, 2), axis1=0, axis2=2),
        Case([X], lambda x: x.swapaxes(-1, 0), axis1=-1, axis2=0),
    ],
    "reshape": [Case([X], lambda x, s=s: x.reshape(s), shape=s) for s in ((24,), (4, 6), (-1, 4), (2, -1), (1, 24, 1))]
    + [
        Case([X], lambda x: x.reshape(6, 4), shape=(6,), begin_axis=0, end_axis=2),
        Case([X], lambda x: x.reshape(2, 12), shape=(-1,), begin_axis=1),
        Case([X], lambda x: x.reshape(2, 3, 1, 4), shape=(1,), begin_axis=2, end_axis=2),
        Case([STEPS], lambda x: x.reshape(-1, 3, 1), shape=(3, 1)),
        Case([X], lambda x: x.reshape(2, 3, 4, 1), call=lambda C, x: C.reshape(x, (1,), C.Axis.new_leading_axis())),
        Case([X], lambda x: x.reshape(2, 12), call=lambda C, x: C.reshape(x, -1, 1, C.Axis.new_leading_axis())),
    ],
    "squeeze": [
        Case([X[:, :1, :, :1]], lambda x: x.reshape(3)),
        Case([X[:, :1, :, :1]], lambda x: x.reshape(3, 1), axes=[0]),
        Case([X[:, :1, :, :1]], lambda x: x.reshape(3), axes=[0, 2]),
    ],
    "expand_dims": [
        Case([V], lambda x: x[None], axis=-2),
        Case([V], lambda x: x[:, None], axis=-1),
        Case([V], lambda x: x[:, None], axis=0),  # after this axis
        Case([X], lambda x: x[:, None], axis=0),
        Case([X], lambda x: x[:, :, None], axis=1),
        Case([X], lambda x: x[..., None], axis=2),
        Case([X], lambda x: x[:, :, None], axis=-2),
        Case([X], lambda x: x[None], call=lambda C, x: C.expand_dims(x, C.Axis.new_leading_axis())),
    ],
    "flatten": [
        Case([X], lambda x: x.reshape(1, 24)),
        Case([X], lambda x: x.reshape(2, 12), axis=1),
        Case([X], lambda x: x.reshape(6, 4), axis=2),
        Case([X], lambda x: x.reshape(24, 1), axis=-1),
        Case([X], lambda x: x.reshape(6, 4), axis=-2),
        Case([X], lambda x: x.reshape(1, 24), axis=-4),
    ],
    "slice": [
        Case([X], cut(Ellipsis, slice(1, 3)), axis=-1, begin_index=1, end_index=3),
        Case([X], cut(slice(0, 1)), axis=0, begin_index=0, end_index=1),
        Case([X], cut(Ellipsis, slice(-3, -1)), axis=2, begin_index=-3, end_index=-1),
        Case([X], cut(Ellipsis, slice(1, None)), axis=2, begin_index=1, end_index=0),
        Case([X], cut(slice(None), slice(1, 3), slice(0, 2)), axis=[1, 2], begin_index=[1, 0], end_index=[3, 2]),
        Case([X], cut(Ellipsis, slice(0, 4, 2)), axis=2, begin_index=0, end_index=4, strides=2),
        Case([X], cut(Ellipsis, slice(None, None, -1)), axis=2, begin_index=0, end_index=4, strides=-1),
        Case([STEPS], lambda x: x[:, 1:], axis=0, begin_index=1, end_index=3),
    ],
    "splice": [
        Case([V, V * 2], lambda a, b: np.concatenate([a, b])),
        Case(
            [V, V * 2],
            lambda a, b: np.stack([a, b]),
            call=lambda C, a, b: C.splice(a, b, axis=C.Axis.new_leading_axis()),
        ),
        Case([X, X[:, :, :1]], lambda a, b: np.concatenate([a, b], 1), axis=1),
        Case([X, X, X[:, :1]], lambda a, b, c: np.concatenate([a, b, c], 0), axis=0),
        Case([V, Fixed(V[0])], lambda a, b: np.concatenate([a, b])),
        Case([STEPS, STEPS], lambda a, b: np.concatenate([a, b], 1)),
        Case([V], lambda a: a),
    ],
    "pad": [
        Case(
            [X[:, 0]],
            lambda x: np.pad(x, ((1, 0), (2, 3)), "constant", constant_values=1.5),
            pattern=[(1, 0), (2, 3)],
            mode=0,
            constant_value=1.5,
        ),
        Case([X[:, 0]], lambda x: np.pad(x, ((1, 2), (0, 3)), "reflect"), pattern=[(1, 2), (0, 3)], mode=1),
        Case([X[:, 0]], lambda x: np.pad(x, ((1, 2), (0, 3)), "symmetric"), pattern=[(1, 2), (0, 3)], mode=2),
        Case([X[:, 0]], lambda x: x, pattern=[(0, 0), (0, 0)]),
    ],
    "one_hot": [
        Case([INDEX[:, 0]], lambda i: np.eye(4)[int(i)], num_classes=4, slopes=False, typed=(4,)),
        Case([INDEX], lambda i: np.eye(4)[i.astype(int)], num_classes=4, slopes=False),
        Case([INDEX], lambda i: np.eye(4)[i.astype(int)].T, num_classes=4, axis=0, slopes=False),
    ],
    "gather": [
        Case([Fixed(M), INDEX], lambda r, i: r[i.astype(int)], slopes=lambda r, i: (scattered(r, i), 0 * i)),
        Case(
            [Fixed(M), INDEX], lambda r, i: r[:, i.astype(int)], axis=1, slopes=lambda r, i: (scattered(r, i, 1), 0 * i)
        ),
    ],
    "depth_to_space": [Case([IMAGES], lambda x: negative(x, 2), block_size=2)],
    "space_to_depth": [Case([IMAGES], lambda x: positive(x, 2), block_size=2)],
    "crop_manual": [
        Case(
            [IMAGES, IMAGES[:, :1, :1, :2]],
            lambda x, like: x[:, 1:2, 2:4],
            slopes=lambda x, like: (np.pad(np.ones((8, 1, 2)), ((0, 0), (1, 0), (2, 0)), "constant"), 0 * like),
            offset_x=2,
            offset_y=1,
        )
    ],
    "crop_automatic": [
        Case([WIDE], lambda x, b=b, n=n: x[:, b : b + n, b : b + n], call=crop(make)) for make, b, n in CROPS
    ],
    "crop_automatic_with_ancestors": [
        Case(
            [WIDE, WIDE * 2],
            lambda x, y: x[:, 2:6, 2:6],
            call=lambda C, x, y: C.crop_automatic_with_ancestors(x, pool(C, y, 5), x, y),
            slopes=lambda x, y: (np.pad(np.ones((1, 4, 4)), ((0, 0), (2, 2), (2, 2)), "constant"), 0 * y),
        )
    ],
    "to_sequence": [
        Case([X[:, 0]], lambda x: x),
        Case([X], lambda x: x),
        Case(
            [X[:, 0], [[1], [3]]],
            lambda x, n: x[: int(n[0])],
            given=(1,),
            slopes=lambda x, n: (1.0 * (np.arange(3) < n)[:, None] + 0 * x, 0 * n),
        ),
    ],
    "to_sequence_like": [
        Case(
            [X[:, 0], Steps([[0]], [[0], [0], [0]])],
            lambda x, like: x[: len(like)],
            slopes=lambda x, like: (1.0 * (np.arange(3) < len(like))[:, None] + 0 * x, 0 * like),
        )
    ],
    "reconcile_dynamic_axes": [
        Case(
            [V, STEPS],
            lambda x, like: np.repeat(x[None], len(like), 0),
            slopes=lambda x, like: (0 * x + len(like), 0 * like),
            call=lambda C, x, like: C.sequence.broadcast_as(x, like),
        ),
        Case([V, V * 2], lambda x, like: x, slopes=lambda x, like: (0 * x + 1, 0 * like)),
    ],
    "to_batch": [Case([Fixed(M)], lambda x: x, typed=(4,))],
    "unpack_batch": [Case([V], lambda x: x, whole=True, typed=(-3, 3))],
    "eye_like": [
        Case([np.zeros((3, 4))], lambda x: np.eye(3, 4), whole=True, slopes=0, sparse_output=False, typed=(4,)),
        Case([Fixed(M)], lambda x: np.eye(3, 4), slopes=0, sparse_output=False),
    ],
    "combine": [Case([V], lambda x: x)],
    "assign": [Case([Fixed(M), Fixed(M * 2)], lambda p, x: x, slopes=False)],
}


def scattered(reference, index, axis=0):
    counts = np.bincount(index.astype(int).ravel(), minlength=reference.shape[axis]).astype(float)
    return np.ones_like(reference) * counts.reshape([-1 if i == axis else 1 for i in range(reference.ndim)])
