"""For each of MXNet's operators but the loss heads: settings, inputs, and the twin by NumPy."""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from tests.oracles import mxnet as oracle


class Positive(tuple):
    """A shape of numbers above zero."""


class Case:
    """Settings, shapes or arrays of the inputs, and the twin of inputs."""

    def __init__(self, inputs, twin, smooth=True, **settings):
        self.inputs, self.twin, self.smooth, self.settings = inputs, twin, smooth, settings

    def arrays(self):
        rng = np.random.default_rng(1)
        made = []
        for one in self.inputs:
            if isinstance(one, Positive):
                made.append(rng.uniform(0.3, 0.9, one))
            elif isinstance(one, tuple):
                # Away from zero, where many functions have a corner.
                made.append(rng.uniform(0.2, 1.7, one) * rng.choice([-1, 1], one))
            else:
                made.append(np.array(one, "f8"))
        return made


A, B = (2, 3), (2, 3)
P = Positive((2, 3))
LOGICAL = [[[0, 0, 2], [-1, 0, 3]], [[0, 1, 1], [0, 0, -1]]]

UNARY = {
    "abs": (A, np.abs),
    "arccos": (P, np.arccos),
    "arcsin": (P, np.arcsin),
    "arcsinh": (A, np.arcsinh),
    "arctan": (A, np.arctan),
    "arctanh": (P, np.arctanh),
    "cbrt": (A, np.cbrt),
    "ceil": (A, np.ceil),
    "cos": (A, np.cos),
    "cosh": (A, np.cosh),
    "degrees": (A, np.degrees),
    "erf": (A, special.erf),
    "erfinv": (P, special.erfinv),
    "exp": (A, np.exp),
    "expm1": (A, np.expm1),
    "fix": (A, np.fix),
    "floor": (A, np.floor),
    "gamma": (A, special.gamma),
    "gammaln": (P, special.gammaln),
    "log": (P, np.log),
    "log10": (P, np.log10),
    "log1p": (P, np.log1p),
    "log2": (P, np.log2),
    "logical_not": (A, lambda x: (x == 0).astype("f8")),
    "negative": (A, np.negative),
    "radians": (A, np.radians),
    "rcbrt": (A, lambda x: 1 / np.cbrt(x)),
    "reciprocal": (A, np.reciprocal),
    "relu": (A, lambda x: np.maximum(x, 0)),
    "rint": (A, np.rint),
    "round": (A, np.round),
    "rsqrt": (P, lambda x: 1 / np.sqrt(x)),
    "sigmoid": (A, special.expit),
    "sign": (A, np.sign),
    "sin": (A, np.sin),
    "sinh": (A, np.sinh),
    "softsign": (A, lambda x: x / (1 + abs(x))),
    "sqrt": (P, np.sqrt),
    "square": (A, np.square),
    "tan": (P, np.tan),
    "tanh": (A, np.tanh),
    "trunc": (A, np.trunc),
    "_copy": (A, lambda x: x),
    "ones_like": (A, np.ones_like),
    "zeros_like": (A, np.zeros_like),
}

PAIRS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "power": np.power,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "hypot": np.hypot,
    "mod": np.mod,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "lesser": np.less,
    "lesser_equal": np.less_equal,
}
NUMBERS = {
    "_plus_scalar": lambda x: x + 0.75,
    "_minus_scalar": lambda x: x - 0.75,
    "_rminus_scalar": lambda x: 0.75 - x,
    "_mul_scalar": lambda x: x * 0.75,
    "_div_scalar": lambda x: x / 0.75,
    "_rdiv_scalar": lambda x: 0.75 / x,
    "_power_scalar": lambda x: x**0.75,
    "_rpower_scalar": lambda x: 0.75**x,
    "_mod_scalar": lambda x: np.mod(x, 0.75),
    "_rmod_scalar": lambda x: np.mod(0.75, x),
    "_maximum_scalar": lambda x: np.maximum(x, 0.75),
    "_minimum_scalar": lambda x: np.minimum(x, 0.75),
    "_equal_scalar": lambda x: x == 0.75,
    "_not_equal_scalar": lambda x: x != 0.75,
    "_greater_scalar": lambda x: x > 0.75,
    "_greater_equal_scalar": lambda x: x >= 0.75,
    "_lesser_scalar": lambda x: x < 0.75,
    "_lesser_equal_scalar": lambda x: x <= 0.75,
}


def reduction(function):
    return [
        Case([A], lambda x: function(x).reshape(1)),
        Case([(2, 3, 4)], lambda x: function(x, axis=1), axis=1),
        Case([(2, 3, 4)], lambda x: function(x, axis=(0, 2), keepdims=True), axis=(0, 2), keepdims=True),
        Case([(2, 3, 4)], lambda x: function(function(x, axis=2), axis=0), axis=1, exclude=True),
    ]


def parts(x, n, axis):
    return tuple(np.split(x, n, axis))


TABLE = {
    **{name: [Case([where], twin)] for name, (where, twin) in UNARY.items()},
    "arccosh": [Case([[1.5, 2.5]], np.arccosh)],
    **{
        ("elemwise_" if name in ("add", "sub", "mul", "div") else "_") + name: [Case([P, P], twin)]
        for name, twin in PAIRS.items()
    },
    **{
        f"broadcast_{name}": [
            Case([Positive((2, 3)), Positive((2, 1))], twin),
            Case([Positive((1, 3)), Positive((2, 1))], twin),
        ]
        for name, twin in PAIRS.items()
    },
    **{
        prefix + f"logical_{name}": [Case(LOGICAL, twin, smooth=False)]
        for name, twin in {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}.items()
        for prefix in ("_", "broadcast_")
    },
    **{name: [Case([P], twin, scalar=0.75)] for name, twin in NUMBERS.items()},
    "BlockGrad": [Case([A], lambda x: x, smooth=False)],
    "Activation": [
        Case([A], lambda x: np.maximum(x, 0), act_type="relu"),
        Case([A], special.expit, act_type="sigmoid"),
        Case([A], np.tanh, act_type="tanh"),
        Case([A], lambda x: np.log1p(np.exp(x)), act_type="softrelu"),
        Case([A], lambda x: x / (1 + abs(x)), act_type="softsign"),
    ],
    "LeakyReLU": [
        Case([A], lambda x: np.where(x > 0, x, 0.25 * x)),
        Case([A], lambda x: np.where(x > 0, x, 0.1 * x), act_type="leaky", slope=0.1),
        Case([A], lambda x: np.where(x > 0, x, 0.3 * np.expm1(x)), act_type="elu", slope=0.3),
        Case([A], lambda x: x * special.ndtr(x), act_type="gelu"),
        Case([A], lambda x: np.where(x > 0, x, 0.2295 * x), smooth=False, act_type="rrelu"),
        Case(
            [A],
            lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
            act_type="selu",
        ),
        Case([(2, 3, 4), (3,)], lambda x, g: np.where(x > 0, x, g[:, None] * x), act_type="prelu"),
    ],
    "clip": [Case([A], lambda x: np.clip(x, -0.5, 0.9), a_min=-0.5, a_max=0.9)],
    "hard_sigmoid": [
        Case([A], lambda x: np.clip(0.2 * x + 0.5, 0, 1)),
        Case([A], lambda x: np.clip(x - 0.1, 0, 1), alpha=1, beta=-0.1),
    ],
    "argmax_channel": [Case([shape], lambda x: x.argmax(1), smooth=False) for shape in (A, (2, 3, 4))],
    "shape_array": [Case([A], lambda x: np.array(x.shape), smooth=False)],
    "size_array": [Case([A], lambda x: np.array([x.size]), smooth=False)],
    "_identity_with_attr_like_rhs": [Case([A, B], lambda a, b: a)],
    "Cast": [Case([A], lambda x: x.astype("f4"), smooth=False, dtype="float32")],
    "smooth_l1": [
        Case([A], lambda x: np.where(abs(x) < 0.25, 2 * x**2, abs(x) - 0.125), scalar=2.0),
    ],
    "where": [
        Case([[[1, 0, 2], [0, 0, 1]], A, B], lambda c, x, y: np.where(c != 0, x, y)),
        Case([[1, 0], A, B], lambda c, x, y: np.where(c[:, None] != 0, x, y)),
    ],
    "add_n": [Case([A, A, A], lambda *several: sum(several), num_args=3)],
    "FullyConnected": [
        Case([(2, 3, 4), (5, 12), (5,)], lambda x, w, b: x.reshape(2, -1) @ w.T + b, num_hidden=5),
        Case([(2, 3, 4), (5, 4), (5,)], lambda x, w, b: x @ w.T + b, num_hidden=5, flatten=False),
        Case([(2, 3), (5, 3)], lambda x, w: x @ w.T, num_hidden=5, no_bias=True),
    ],
    "Embedding": [
        # Numbers out of range are the first and the last.
        Case(
            [[[0, 2, 9], [-4, 1, 1]], (4, 3)],
            lambda x, w: w[np.clip(x.astype(int), 0, 3)],
            input_dim=4,
            output_dim=3,
        )
    ],
    "Convolution": [
        Case(
            [(2, 3, 5, 6), (4, 3, 3, 2), (4,)],
            lambda x, w, b: oracle.convolution(x, w, b, stride=(1, 1), dilate=(1, 1), pad=(0, 0)),
            kernel=(3, 2),
            num_filter=4,
        ),
        Case(
            [(2, 4, 7, 6), (6, 2, 3, 2)],
            lambda x, w: oracle.convolution(x, w, stride=(2, 1), dilate=(1, 2), pad=(1, 2), groups=2),
            kernel=(3, 2),
            num_filter=6,
            stride=(2, 1),
            dilate=(1, 2),
            pad=(1, 2),
            num_group=2,
            no_bias=True,
        ),
        Case(
            [(2, 2, 6), (3, 2, 3), (3,)],
            lambda x, w, b: oracle.convolution(x, w, b, stride=(2,), dilate=(1,), pad=(1,)),
            kernel=(3,),
            num_filter=3,
            stride=(2,),
            pad=(1,),
        ),
    ],
    "Deconvolution": [
        Case(
            [(2, 2, 3, 3), (2, 3, 3, 2)],
            lambda x, w: oracle.deconvolution(x, w, stride=(2, 1), pad=(1, 0), adj=(1, 0)),
            kernel=(3, 2),
            num_filter=3,
            stride=(2, 1),
            pad=(1, 0),
            adj=(1, 0),
        ),
        Case(
            [(1, 4, 3), (4, 2, 4)],
            lambda x, w: oracle.deconvolution(x, w, stride=(2,), pad=(1,), adj=(0,), groups=2),
            kernel=(4,),
            num_filter=4,
            stride=(2,),
            target_shape=(6,),
            num_group=2,
        ),
    ],
    "Pooling": [
        Case(
            [(2, 2, 7, 6)],
            lambda x, how=how, inside=inside, convention=convention: oracle.pooling(
                x,
                how=how,
                kernel=(3, 2),
                stride=(2, 3),
                pad=(1, 1) if convention != "same" else (0, 0),
                convention=convention,
                include_pad=inside,
            ),
            kernel=(3, 2),
            stride=(2, 3),
            pad=(1, 1) if convention != "same" else (0, 0),
            pool_type=how,
            pooling_convention=convention,
            count_include_pad=inside,
        )
        for how in ("max", "avg", "sum", "lp")
        for inside in (True, False)
        for convention in ("valid", "full", "same")
    ]
    + [
        Case([(2, 3, 4)], lambda x: x.mean(2, keepdims=True), pool_type="avg", global_pool=True, kernel=(2,)),
        Case([(2, 3, 4, 5)], lambda x: x.max((2, 3), keepdims=True), global_pool=True),
    ],
    "BatchNorm": [
        Case(
            [(2, 3, 4), (3,), (3,), (3,), Positive((3,))],
            lambda *a: oracle.batch_norm(*a, eps=1e-3),
            fix_gamma=False,
        ),
        Case(
            [(2, 4, 3), (3,), (3,), (3,), Positive((3,))],
            lambda x, g, *a: oracle.batch_norm(x, np.ones(3), *a, eps=0.1, axis=2),
            eps=0.1,
            axis=-1,
        ),
        Case(
            [(2, 3), (3,), (3,), (3,), Positive((3,))],
            lambda x, g, b, m, v: (
                oracle.batch_norm(x, g, b, m, v, eps=1e-3),
                m,
                1 / np.sqrt(v + 1e-3),
            ),
            fix_gamma=False,
            use_global_stats=True,
            output_mean_var=True,
        ),
    ],
    "LayerNorm": [
        Case(
            [(2, 3, 4), (4,), (4,)],
            lambda x, g, b: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * g + b,
        )
    ],
    "L2Normalization": [
        Case([(2, 3, 4)], lambda x: x / np.sqrt((x**2).sum((1, 2), keepdims=True) + 1e-10)),
        Case([(2, 3, 4)], lambda x: x / np.sqrt((x**2).sum(1, keepdims=True) + 1e-10), mode="channel"),
        Case([(2, 3, 4)], lambda x: x / np.sqrt((x**2).sum(2, keepdims=True) + 1e-10), mode="spatial"),
    ],
    "Dropout": [Case([A], lambda x: x, smooth=False, p=0.7)],
    **{name: reduction(getattr(np, name)) for name in ("sum", "mean", "prod", "max", "min")},
    **{
        name: [*reduction(function), Case([[[2, math.nan, 5]]], lambda x, f=function: f(x, axis=1), False, axis=1)]
        for name, function in {"nansum": np.nansum, "nanprod": np.nanprod}.items()
    },
    "norm": [
        Case([A], lambda x: np.abs(x).sum(1), ord=1, axis=1),
        Case([(2, 3)], lambda x: np.sqrt((x**2).sum(keepdims=True)), keepdims=True),
        Case([A], lambda x: np.sqrt((x**2).sum()).reshape(1)),
        Case([A], lambda x: np.sqrt((x**2).sum(1, keepdims=True)), axis=1, keepdims=True),
    ],
    **{
        name: [
            Case([A], lambda x, best=best: best(x).reshape(1), smooth=False),
            Case([A], lambda x, best=best: best(x, 1), smooth=False, axis=1),
            Case([A], lambda x, best=best: best(x, 0)[None], smooth=False, axis=0, keepdims=True),
        ]
        for name, best in (("argmax", np.argmax), ("argmin", np.argmin))
    },
    "softmax": [
        Case([A], lambda x: oracle.softmax(x, 1)),
        Case([(2, 3, 4)], lambda x: oracle.softmax(x / 2, 1), axis=1, temperature=2.0),
    ],
    "softmin": [Case([A], lambda x: oracle.softmax(-x, 1))],
    "log_softmax": [Case([A], lambda x: np.log(oracle.softmax(x, 0)), axis=0)],
    "SoftmaxActivation": [
        Case([(2, 3, 4)], lambda x: oracle.softmax(x.reshape(2, -1), 1).reshape(x.shape)),
        Case([(2, 3, 4)], lambda x: oracle.softmax(x, 1), mode="channel"),
    ],
    "softmax_cross_entropy": [
        Case([(3, 4), [0, 3, 1]], lambda x, y: -np.log(oracle.softmax(x, 1)[range(3), [0, 3, 1]]).sum().reshape(1))
    ],
    "dot": [
        Case([A, (3, 4)], np.dot),
        Case([(3, 2), (4, 3)], lambda a, b: a.T @ b.T, transpose_a=True, transpose_b=True),
        Case([(3,), (3,)], lambda a, b: np.dot(a, b).reshape(1)),
        Case([(2, 4, 3), (3, 5, 2)], lambda a, b: np.tensordot(a, b, 1)),
    ],
    "batch_dot": [
        Case([(5, 2, 3), (5, 3, 4)], np.matmul),
        Case(
            [(5, 3, 2), (5, 4, 3)],
            lambda a, b: np.matmul(a.swapaxes(1, 2), b.swapaxes(1, 2)),
            transpose_a=1,
            transpose_b=1,
        ),
    ],
    "Flatten": [Case([(2, 3, 4)], lambda x: x.reshape(2, 12)), Case([(3,)], lambda x: x.reshape(3, 1))],
    "Reshape": [
        Case([(2, 3, 4)], lambda x, codes=codes: x.reshape(oracle.reshape(x.shape, codes)), shape=codes)
        for codes in ((4, 0, 2), (6, -1), (0, -3), (-2,), (-4, 1, 2, -2), (0, -4, -1, 3, 0), (-3, 4), (-1,))
    ]
    + [Case([(10, 5, 4)], lambda x: x.reshape(50, 4), shape=(-1, 0), reverse=True)],
    "transpose": [
        Case([(2, 3, 4)], lambda x: x.T),
        Case([(2, 3, 4)], lambda x: x.transpose(1, 2, 0), axes=(1, 2, 0)),
    ],
    "SwapAxis": [Case([(2, 3, 4)], lambda x: x.swapaxes(0, 2), dim1=0, dim2=2)],
    "expand_dims": [
        Case([A], lambda x: x[:, None], axis=1),
        Case([A], lambda x: x[..., None], axis=-1),
    ],
    "squeeze": [
        Case([(1, 3, 1)], lambda x: x.reshape(3)),
        Case([(1, 3, 1)], lambda x: x.reshape(1, 3), axis=2),
        Case([(1, 1)], lambda x: x.reshape(1)),
    ],
    "slice_axis": [
        Case([(2, 5)], lambda x: x[:, 1:4], axis=1, begin=1, end=4),
        Case([(2, 5)], lambda x: x[:, -3:], axis=-1, begin=-3, end=None),
    ],
    "slice": [
        Case([(4, 5)], lambda x: x[1:3, :4], begin=(1, None), end=(3, -1)),
        Case([(4, 5)], lambda x: x[::2, 1::3], begin=(0, 1), end=(4, 5), step=(2, 3)),
    ],
    "SliceChannel": [
        Case([(2, 6)], lambda x: parts(x, 3, 1), num_outputs=3),
        Case([(2, 3)], lambda x: tuple(p[0] for p in parts(x, 2, 0)), num_outputs=2, axis=0, squeeze_axis=True),
        Case([(2, 6)], lambda x: x, num_outputs=1),
    ],
    "Concat": [
        Case([A, (2, 1)], lambda *s: np.concatenate(s, 1), num_args=2),
        Case([A, (4, 3), (1, 3)], lambda *s: np.concatenate(s, 0), num_args=3, dim=0),
    ],
    "stack": [Case([A, A], lambda *s: np.stack(s, 1), num_args=2, axis=1)],
    "tile": [
        Case([A], lambda x: np.tile(x, (2, 2)), reps=(2, 2)),
        Case([A], lambda x: np.tile(x, (2, 1, 1)), reps=(2, 1, 1)),
        Case([A], lambda x: np.tile(x, 2), reps=(2,)),
    ],
    "repeat": [
        Case([A], lambda x: np.repeat(x, 2), repeats=2),
        Case([A], lambda x: np.repeat(x, 3, 1), repeats=3, axis=1),
    ],
    "broadcast_axis": [
        Case([(2, 1, 3, 1)], lambda x: np.broadcast_to(x, (2, 4, 3, 5)), axis=(1, -1), size=(4, 5)),
        Case([(1, 3)], lambda x: np.broadcast_to(x, (2, 3)), axis=0, size=2),
    ],
    "broadcast_to": [
        Case([(1, 3)], lambda x: np.broadcast_to(x, (4, 3)), shape=(4, 3)),
        Case([(1, 3)], lambda x: np.broadcast_to(x, (4, 3)), shape=(4, 0)),
    ],
    "Pad": [
        Case(
            [(1, 2, 3, 3)],
            lambda x: np.pad(x, [(0, 0), (1, 0), (1, 2), (0, 1)], constant_values=2),
            mode="constant",
            pad_width=(0, 0, 1, 0, 1, 2, 0, 1),
            constant_value=2,
        ),
        *[
            Case(
                [(1, 2, 3, 3)],
                lambda x, mode=mode: np.pad(x, [(0, 0), (0, 0), (1, 2), (0, 1)], mode=mode),
                mode=mode,
                pad_width=(0, 0, 0, 0, 1, 2, 0, 1),
            )
            for mode in ("edge", "reflect")
        ],
    ],
    "take": [
        Case([(4, 3), [[0, 9], [-1, 2]]], lambda a, i: a[np.clip(i.astype(int), 0, 3)]),
        Case([(4, 3), [4, -1]], lambda a, i: a[:, [1, 2]], axis=1, mode="wrap"),
    ],
    "pick": [
        Case([(2, 3), [2, 0]], lambda x, i: x[[0, 1], [2, 0]]),
        Case([(2, 3), [1, 9, 0]], lambda x, i: x[[1, 1, 0], [0, 1, 2]][None], axis=0, keepdims=True),
    ],
    "one_hot": [
        Case([[1, 0, 7]], lambda i: np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]], "f4"), smooth=False, depth=3),
        Case([[[1]]], lambda i: np.array([[[-1, 2]]]), smooth=False, depth=2, on_value=2, off_value=-1, dtype="int32"),
    ],
    "_zeros": [Case([], lambda: np.zeros((2, 3)), shape=(2, 3))],
    "_ones": [Case([], lambda: np.ones(3, "i4"), shape=(3,), dtype="int32")],
    "_full": [Case([], lambda: np.full((2, 3), 7, "i4"), shape=(2, 3), value=7, dtype="int32")],
    "_arange": [
        Case([], lambda: np.arange(4.0), start=4),
        Case([], lambda: np.repeat(np.arange(5, 1, -1.5), 2), start=5, stop=1, step=-1.5, repeat=2),
    ],
    "_eye": [
        Case([], lambda: np.eye(3), N=3),
        Case([], lambda: np.eye(3, 4, -1, "i4"), N=3, M=4, k=-1, dtype="int32"),
    ],
    "broadcast_like": [
        Case([(1, 3), (2, 3)], lambda a, b: np.broadcast_to(a, (2, 3))),
        Case([(1, 3), (4, 2)], lambda a, b: np.broadcast_to(a, (2, 3)), lhs_axes=(0,), rhs_axes=(-1,)),
    ],
    "reshape_like": [Case([(6,), (2, 3)], lambda a, b: a.reshape(2, 3))],
    "RNN": [
        Case(
            [(5, 2, 3), (3 * 3 + 3 * 3 + 6,), (1, 2, 3)],
            lambda x, p, h: rnn_tanh(x, p, h),
            state_size=3,
            num_layers=1,
            mode="rnn_tanh",
        ),
        Case(
            [(5, 2, 3), (16 * 3 + 16 * 4 + 32,), (1, 2, 4), (1, 2, 4)],
            lambda x, p, h, c: lstm(x, p, h, c),
            state_size=4,
            num_layers=1,
            mode="lstm",
            state_outputs=True,
        ),
        Case(
            [(5, 2, 3), (2 * (6 * 3 + 6 * 2 + 12),), (2, 2, 2)],
            lambda x, p, h: gru_both(x, p, h),
            state_size=2,
            num_layers=1,
            mode="gru",
            bidirectional=True,
        ),
        Case(
            [(4, 2, 3), ((2 * 3 + 2 * 2) + (2 * 2 + 2 * 2) + 8,), (2, 2, 2)],
            lambda x, p, h: rnn_relu_deep(x, p, h),
            state_size=2,
            num_layers=2,
            mode="rnn_relu",
        ),
    ],
}


def cut(flat, *shapes):
    found = []
    for shape in shapes:
        found.append(flat[: math.prod(shape)].reshape(shape))
        flat = flat[math.prod(shape) :]
    assert len(flat) == 0
    return found


def rnn_tanh(x, p, h):
    w, u, b, c = cut(p, (3, 3), (3, 3), (3,), (3,))
    out, h = [], h[0]
    for step in x:
        h = np.tanh(step @ w.T + b + h @ u.T + c)
        out.append(h)
    return np.stack(out)


def rnn_relu_deep(x, p, h):
    w1, u1, w2, u2, b1, c1, b2, c2 = cut(p, (2, 3), (2, 2), (2, 2), (2, 2), (2,), (2,), (2,), (2,))
    for w, u, b, c, state in ((w1, u1, b1, c1, h[0]), (w2, u2, b2, c2, h[1])):
        out = []
        for step in x:
            state = np.maximum(step @ w.T + b + state @ u.T + c, 0)
            out.append(state)
        x = np.stack(out)
    return x


def lstm(x, p, h, c):
    w, u, b, d = cut(p, (16, 3), (16, 4), (16,), (16,))
    out, h, c = oracle.lstm(x, (w, u), (b, d), h[0], c[0])
    return out, h[None], c[None]


def gru_both(x, p, h):
    w, u, v, t, b, c, d, e = cut(p, (6, 3), (6, 2), (6, 3), (6, 2), (6,), (6,), (6,), (6,))
    there, _ = oracle.gru(x, (w, u), (b, c), h[0])
    back, _ = oracle.gru(x[::-1], (v, t), (d, e), h[1])
    return np.concatenate([there, back[::-1]], 2)
