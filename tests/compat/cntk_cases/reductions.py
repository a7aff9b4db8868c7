"""Reductions: over a sample, over some of its axes, over the batch, over everything, over sequences."""

import numpy as np

from tests.compat.cntk_cases.case import Case, Fixed, Steps

X = np.array(
    [
        [[1, 3, 3, -1], [2, 2, 2, 2], [0.5, -4, 0.25, 1]],
        [[-1, -2, -3, -0.5], [5, 1, 5, -5], [1, 1, -1, 1]],
        [[0.5, 2, -2, 1], [1, -1, 2, 3], [-3, -2, -1, 4]],
    ]
)
LENGTHS = (3, 1, 2)
RAGGED = Steps(X[0], X[1][:1], X[2][:2])


def tied(y, x, axis):
    """Every one of several equal extremes gets the whole gradient."""
    return 1.0 * (x == y.max(axis=axis, keepdims=True) if axis is not None else x == y.max())


def extreme(sign):
    def slope(x, axis):
        best = (sign * x).max(axis=axis, keepdims=True)
        return 1.0 * (sign * x == best)

    return slope


def norm(x, axis):
    return np.sqrt((x * x).sum(axis=axis, keepdims=True))


def log_sum_exp(x, axis):
    return np.log(np.exp(x).sum(axis=axis, keepdims=True))


# By name: the function, and its gradient where the sum of results is asked for (None: by differences).
HOW = {
    "reduce_sum": (lambda x, axis: x.sum(axis=axis, keepdims=True), None),
    "reduce_mean": (lambda x, axis: x.mean(axis=axis, keepdims=True), None),
    "reduce_max": (lambda x, axis: x.max(axis=axis, keepdims=True), extreme(1)),
    "reduce_min": (lambda x, axis: x.min(axis=axis, keepdims=True), extreme(-1)),
    "reduce_prod": (lambda x, axis: x.prod(axis=axis, keepdims=True), None),
    "reduce_log_sum_exp": (log_sum_exp, None),
    "reduce_l1": (lambda x, axis: abs(x).sum(axis=axis, keepdims=True), lambda x, axis: np.sign(x)),
    "reduce_l2": (norm, None),
    "reduce_sum_square": (lambda x, axis: (x * x).sum(axis=axis, keepdims=True), None),
}


def along(name, axis, **more):
    f, slope = HOW[name]
    return Case(
        [X],
        lambda x: f(x, axis),
        slopes=slope and (lambda x: (slope(x, axis),)),
        axis=list(axis) if isinstance(axis, tuple) else axis,
        **more,
    )


def dynamic(name):
    f, slope = HOW[name]

    def over(axes, numbers, kept):
        return Case(
            [X],
            lambda x: f(np.asarray(x), numbers).reshape(kept),
            call=lambda C, x: getattr(C, name)(x, axes(C)),
            slopes=slope and (lambda x: (slope(np.asarray(x), numbers),)),
            whole=True,
            typed=kept,
        )

    return [
        over(lambda C: C.Axis.all_axes(), None, ()),
        over(lambda C: C.Axis.default_batch_axis(), (0,), (3, 4)),
        over(lambda C: [C.Axis.default_batch_axis(), 0], (0, 1), (1, 4)),
        over(lambda C: [C.Axis.default_batch_axis(), 0, 1], (0, 1, 2), (1, 1)),
    ]


def of(name):
    f, slope = HOW[name]
    whole = slope and (lambda x: (slope(x, None),))
    cases = [
        Case([X], lambda x: f(x, None).reshape(()), slopes=whole),
        Case(
            [X],
            lambda x: f(x, None).reshape(()),
            call=lambda C, x: getattr(C, name)(x, C.Axis.all_static_axes()),
            slopes=whole,
        ),
        Case([X], lambda x: f(x, (0, 1)), slopes=whole, axis=(0, 1)),
        Case([X[:, 0]], lambda x: f(x, None).reshape(()), slopes=whole),
        Case([X[:1, :1, :1]], lambda x: f(x, 1), slopes=slope and (lambda x: (slope(x, 1),)), axis=1),
        Case([Fixed(X[0])], lambda x: f(x, 0), slopes=slope and (lambda x: (slope(x, 0),)), axis=0),
        Case([X], lambda x: f(x, 1)[:, 0], slopes=slope and (lambda x: (slope(x, 1),)), axis=1, keepdims=False),
        Case([X], lambda x: f(x, (0, 1)).reshape(()), slopes=whole, axis=(0, 1), keepdims=False),
        Case([RAGGED], lambda x: f(x, 1), slopes=slope and (lambda x: (slope(x, 1),)), axis=0),
    ]
    return cases + [along(name, axis) for axis in (0, 1, -1)] + dynamic(name)


def first(x, sign):
    return float((sign * x).argmax())


TABLE = {name: of(name) for name in HOW}
for name, sign in (("argmax", 1), ("argmin", -1)):
    TABLE[name] = [
        Case([X], lambda x, s=sign: first(x, s), slopes=0),
        Case([X], lambda x, s=sign: (s * x).argmax(axis=0)[None], slopes=0, axis=0),
        Case([X], lambda x, s=sign: (s * x).argmax(axis=1)[:, None], slopes=0, axis=1),
        Case([X], lambda x, s=sign: (s * x).argmax(axis=1)[:, None], slopes=0, axis=-1),
        Case([X[:, :1, :1]], lambda x: np.zeros((1, 1)), slopes=0, axis=0),
        Case([RAGGED], lambda x, s=sign: (s * x).argmax(axis=1)[:, None], slopes=0, axis=0),
    ]


def everything(name):
    """Over the steps of all sequences, and over each sequence's steps."""
    f, slope = HOW[name]

    def all_steps(x):
        return np.concatenate([s.ravel() for s in x])

    return [
        Case(
            [RAGGED],
            lambda x: f(all_steps(x), None).reshape(()),
            call=lambda C, x: getattr(C, name)(x, C.Axis.all_axes()),
            slopes=slope and (lambda x: (np.split(slope(all_steps(x), None), np.cumsum([s.size for s in x])[:-1]),)),
            whole=True,
            typed=(),
        ),
    ]


for name in HOW:
    TABLE[name] += everything(name)
for name in ("reduce_sum", "reduce_max"):
    f, slope = HOW[name]
    TABLE["sequence." + name] = [
        Case([RAGGED], lambda x, f=f: f(x, 0)[0], slopes=slope and (lambda x, s=slope: (s(x, 0),))),
        Case(
            [Steps(*[np.round(s[:, :1]) for s in RAGGED.arrays])],
            lambda x, f=f: f(x, 0)[0],
            slopes=slope and (lambda x, s=slope: (s(x, 0),)),
        ),
    ]


def best(x, k):
    return -np.sort(-x, axis=-1)[..., :k]


DISTINCT = np.array([[[3, -1, 2, 7], [0.5, 9, -4, 1]], [[1, 2, 3, 4], [8, 6, 7, 5]]])
TABLE["top_k"] = [
    Case(
        [DISTINCT], lambda x, k=k: best(x, k), call=lambda C, x, k=k: C.combine([C.top_k(x, k).outputs[0]]), slopes=None
    )
    for k in (1, 3, 4)
] + [
    Case(
        [DISTINCT],
        lambda x: np.argsort(-x, axis=-1)[..., :2],
        call=lambda C, x: C.combine([C.top_k(x, 2).outputs[1]]),
        slopes=False,
    ),
    Case([DISTINCT], lambda x: -np.sort(-x, axis=0)[:1], call=lambda C, x: C.combine([C.top_k(x, 1, 0).outputs[0]])),
]
