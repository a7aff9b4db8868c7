"""Arithmetic, comparisons and activations: formulas, and their derivatives as CNTK has them on the edges."""

import math

import numpy as np

from tests.compat.cntk_cases.case import Case, Fixed, Steps

SMALLEST, LOG_OF_SMALLEST = float(np.float32(1e-37)), float(np.float32(-85.1))

# Edges of domains, ties and bounds: -1, 0, 1, halves, and numbers between them.
LINE = np.array([[-2, -1.5, -1, -0.5, -0.25, 0], [0.25, 0.5, 1, 1.5, 2, 3]])
INSIDE = np.array([[-0.9, -0.5, 0, 0.3, 0.8]])
ABOVE = np.array([[0.1, 0.5, 1, 2, 9]])


def each(function):
    return np.vectorize(function, otypes=[float])


def log(x):
    return math.log(x) if x >= SMALLEST else LOG_OF_SMALLEST


def slope_of_log(x):
    return 1 / x if x >= SMALLEST else math.exp(-LOG_OF_SMALLEST)


def unary(function, slope, data=LINE, **more):
    f, s = each(function), each(slope)
    return [
        Case([data], f, slopes=lambda x: (s(x),), **more),
        Case([data.ravel()], f, slopes=lambda x: (s(x),), **more),  # numbers
        Case([data[:1, :1]], f, slopes=lambda x: (s(x),), **more),  # one element
        Case([data.reshape(1, -1, 1, data.shape[0])], f, slopes=lambda x: (s(x),), **more),
        Case([Steps(data.reshape(-1, 1)[:1], data.reshape(-1, 1)[1:])], f, slopes=lambda x: (s(x),), **more),
        Case([Fixed(data)], f, slopes=lambda x: (s(x),), **more),
    ]


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


UNARY = {
    "negate": unary(lambda x: -x, lambda x: -1),
    "reciprocal": unary(lambda x: 1 / x if x else 0, lambda x: -1 / x**2 if x else 0),
    "relu": unary(lambda x: max(x, 0), lambda x: x > 0),
    "sigmoid": unary(sigmoid, lambda x: sigmoid(x) * sigmoid(-x)),
    "tanh": unary(math.tanh, lambda x: 1 - math.tanh(x) ** 2),
    "exp": unary(math.exp, math.exp),
    "log": unary(log, slope_of_log, ABOVE),
    "sqrt": unary(math.sqrt, lambda x: 0.5 / math.sqrt(x), ABOVE),
    "square": unary(lambda x: x * x, lambda x: 2 * x),
    "abs": unary(abs, np.sign),
    "floor": unary(math.floor, lambda x: 0),
    "ceil": unary(math.ceil, lambda x: 0),
    "round": unary(lambda x: math.floor(x + 0.5), lambda x: 0),
    "sin": unary(math.sin, math.cos),
    "cos": unary(math.cos, lambda x: -math.sin(x)),
    "asin": unary(math.asin, lambda x: 1 / math.sqrt(1 - x * x), INSIDE),
    "acos": unary(math.acos, lambda x: -1 / math.sqrt(1 - x * x), INSIDE),
    "atan": unary(math.atan, lambda x: 1 / (1 + x * x)),
    "sinh": unary(math.sinh, math.cosh),
    "cosh": unary(math.cosh, math.sinh),
    "asinh": unary(math.asinh, lambda x: 1 / math.sqrt(1 + x * x)),
    "atanh": unary(math.atanh, lambda x: 1 / (1 - x * x), INSIDE),
    "tan": unary(math.tan, lambda x: 1 / math.cos(x) ** 2, INSIDE, cntk=False),
    "softplus": unary(lambda x: math.log(1 + math.exp(x)), sigmoid)
    + [
        Case(
            [LINE],
            each(lambda x: math.log(1 + math.exp(2 * x)) / 2),
            slopes=lambda x: (each(sigmoid)(2 * x),),
            only=(np.float32,),
            steepness=2,
        )
    ],
    # Its steepness has no effect.
    "softsign": unary(lambda x: x / (1 + abs(x)), lambda x: 1 / (1 + abs(x)) ** 2)
    + [Case([LINE], lambda x: x / (1 + abs(x)), slopes=lambda x: (1 / (1 + abs(x)) ** 2,), steepness=2)],
    "element_not": unary(lambda x: x <= 0, lambda x: 0),
    "stop_gradient": unary(lambda x: x, lambda x: 0),
    "alias": unary(lambda x: x, lambda x: 1),
    "zeros_like": unary(lambda x: 0, lambda x: 0),
    "ones_like": unary(lambda x: 1, lambda x: 0),
    "elu": unary(lambda x: x if x >= 0 else math.expm1(x), lambda x: 1 if x >= 0 else math.exp(x))
    + [
        Case(
            [LINE],
            each(lambda x: x if x >= 0 else 2 * math.expm1(x)),
            slopes=lambda x: (each(lambda v: 1 if v >= 0 else 2 * math.exp(v))(x),),
            alpha=2.0,
        )
    ],
    "selu": unary(
        lambda x: 1.0507009873554805 * (x if x >= 0 else 1.6732632423543772 * math.expm1(x)),
        lambda x: 1.0507009873554805 * (1 if x >= 0 else 1.6732632423543772 * math.exp(x)),
    ),
    "leaky_relu": unary(lambda x: x if x >= 0 else 0.01 * x, lambda x: 1 if x >= 0 else 0.01)
    + [
        Case(
            [LINE],
            each(lambda x: x if x >= 0 else 0.3 * x),
            slopes=lambda x: (each(lambda v: 1 if v >= 0 else 0.3)(x),),
            alpha=0.3,
        )
    ],
    "straight_through_impl": unary(lambda x: 1 if x > 0 else -1, lambda x: abs(x) <= 1),
    "hard_sigmoid": [
        Case(
            [[[-3.5, -2, -1, 0, 2, 3]]],
            lambda x: np.clip(0.25 * x + 0.5, 0, 1),
            slopes=lambda x: (0.25 * ((0.25 * x + 0.5 > 0) & (0.25 * x + 0.5 < 1)),),
            alpha=0.25,
            beta=0.5,
        )
    ],
    "cast": [Case([LINE], lambda x: x, slopes=False, dtype=np.float64)],
}

A = np.array([[-2, -1, 0, 0, 1, 1, 2, 0.5], [3, -0.5, 0.25, 2, -1, 1.5, -2, 4]])
B = np.array([[1, -1, 0, 2, -1, 1, 3, 0.5], [0.5, 2, -0.25, 1, 3, -1.5, 2, -1]])


def reduced(gradient, like):
    """Sum over the axes along which an operand was repeated."""
    lead = gradient.ndim - np.ndim(like)
    gradient = gradient.sum(axis=tuple(range(lead)))
    for axis, n in enumerate(np.shape(like)):
        if n == 1:
            gradient = gradient.sum(axis=axis, keepdims=True)
    return gradient


def binary(function, for_left, for_right, pairs=((A, B),)):
    f, left, right = (np.vectorize(x, otypes=[float]) for x in (function, for_left, for_right))

    def slopes(a, b):
        shape = np.broadcast(a, b).shape
        whole = np.broadcast_to(a, shape), np.broadcast_to(b, shape)
        return reduced(left(*whole), a), reduced(right(*whole), b)

    cases = []
    for a, b in pairs:
        cases += [
            Case([a, b], f, slopes=slopes),
            Case([a.reshape(2, 8, 1), b[:, None, :]], f, slopes=slopes),  # both are repeated
            Case([a, b[:, 3]], f, slopes=slopes),  # a number with a vector
            Case([a, Fixed(b[1])], f, slopes=slopes),
            Case([Fixed(a[1]), Fixed(b[1])], f, slopes=slopes),
            Case([a[:, :1], b[:, 2:3]], f, slopes=slopes),
            Case([Steps(a[:1], a), Steps(b[:1], b)], f, slopes=slopes),
        ]
    return cases


def power(a, b):
    return 0.0 if a == 0 and b < 0 else a**b


def nothing(a, b):
    return 0


BINARY = {
    "minus": binary(lambda a, b: a - b, lambda a, b: 1, lambda a, b: -1),
    "element_divide": binary(
        lambda a, b: a / b if b else 0, lambda a, b: 1 / b if b else 0, lambda a, b: -a / b**2 if b else 0
    ),
    "pow": binary(
        power,
        lambda a, b: b * power(a, b - 1),
        lambda a, b: power(a, b) * math.log(a) if a > 0 else 0,
        pairs=((A, np.round(B)), (np.abs(A) + 0.5, B)),
    ),
    "equal": binary(lambda a, b: a == b, nothing, nothing),
    "not_equal": binary(lambda a, b: a != b, nothing, nothing),
    "less": binary(lambda a, b: a < b, nothing, nothing),
    "less_equal": binary(lambda a, b: a <= b, nothing, nothing),
    "greater": binary(lambda a, b: a > b, nothing, nothing),
    "greater_equal": binary(lambda a, b: a >= b, nothing, nothing),
    "element_and": binary(lambda a, b: a > 0 and b > 0, nothing, nothing),
    "element_or": binary(lambda a, b: a > 0 or b > 0, nothing, nothing),
    "element_xor": binary(lambda a, b: (a > 0) != (b > 0), nothing, nothing),
    "plus": binary(lambda a, b: a + b, lambda a, b: 1, lambda a, b: 1),
    "element_times": binary(lambda a, b: a * b, lambda a, b: b, lambda a, b: a),
    "element_max": binary(max, lambda a, b: a > b, lambda a, b: a <= b),
    "element_min": binary(min, lambda a, b: a < b, lambda a, b: a >= b),
    "log_add_exp": binary(
        lambda a, b: math.log(math.exp(a) + math.exp(b)), lambda a, b: sigmoid(a - b), lambda a, b: sigmoid(b - a)
    ),
    "param_relu": binary(
        lambda a, x: x if x >= 0 else a * x, lambda a, x: 0 if x >= 0 else x, lambda a, x: 1 if x >= 0 else a
    ),
}

THREE = [A, B, np.array([[0, 3, -1, 1, 1, 1, 0, 0.5]] * 2)]

SEVERAL = {
    "plus": [Case(THREE, lambda a, b, c: a + b + c)],
    "sum": [
        Case(THREE, lambda a, b, c: a + b + c),
        Case(THREE[:2], lambda a, b: a + 2 * b, call=lambda C, a, b: C.sum([a, b, b])),
        Case([A], lambda a: a),
    ],
    "mean": [
        Case(THREE, lambda a, b, c: (a + b + c) / 3),
        Case(THREE[:2], lambda a, b: (a + 2 * b) / 3, call=lambda C, a, b: C.mean([a, b, b])),
    ],
    "element_times": [Case(THREE, lambda a, b, c: a * b * c)],
    "log_add_exp": [Case(THREE, lambda a, b, c: np.log(np.exp(a) + np.exp(b) + np.exp(c)))],
    "element_max": [
        Case(
            THREE,
            lambda a, b, c: np.maximum(np.maximum(a, b), c),
            # The last of equal ones gets the gradient.
            slopes=lambda a, b, c: (
                1.0 * ((a > b) & (a > c)),
                1.0 * ((b >= a) & (b > c)),
                1.0 * (c >= np.maximum(a, b)),
            ),
        )
    ],
    "element_min": [
        Case(
            THREE,
            lambda a, b, c: np.minimum(np.minimum(a, b), c),
            slopes=lambda a, b, c: (
                1.0 * ((a < b) & (a < c)),
                1.0 * ((b <= a) & (b < c)),
                1.0 * (c <= np.minimum(a, b)),
            ),
        )
    ],
    "clip": [
        Case(
            [[[-2, -1, -0.5, 0, 1, 2]]],
            lambda x: np.clip(x, -1, 1),
            slopes=lambda x: (1.0 * (abs(x) <= 1),),
            min_value=-1,
            max_value=1,
        ),
        Case(
            [[[1, 0, 5, -5, 0.5]], Fixed([0, 0, 0, 0, 1.0]), Fixed([1, 1, 1, 1, 0.0])],
            lambda x, low, high: np.where(x < low, low, np.where(x > high, high, x)),
            slopes=lambda x, low, high: (1.0 * ((x >= low) & (x <= high)), 0 * x, 0 * x),
        ),
    ],
    "element_select": [
        Case(
            [[[0, 1, -1, 0.5]], [[1, 2, 3, 4]], [[5, 6, 7, 8]]],
            lambda f, a, b: np.where(f != 0, a, b),
            slopes=lambda f, a, b: (0 * f, 1.0 * (f != 0), 1.0 * (f == 0)),
        ),
        Case(
            [[0, 2], [[1, 2, 3]] * 2, Fixed([5.0, 6, 7])],
            lambda f, a, b: np.where(f != 0, a, b),
            slopes=lambda f, a, b: (0 * f, 1.0 * (f != 0) + 0 * a, 1.0 * (f == 0) + 0 * a),
        ),
    ],
    "per_dim_mean_variance_normalize": [
        Case([A, Fixed(B[0]), Fixed(B[1])], lambda x, m, s: (x - m) * s, slopes=lambda x, m, s: (s, -s, x - m)),
    ],
    "image_scaler": [
        Case(
            [np.arange(24).reshape(2, 3, 2, 2)],
            lambda x: x * 0.5 + np.array([1, -2, 3.0])[:, None, None],
            scalar=0.5,
            biases=[1, -2, 3],
        )
    ],
}


def softmax(x, axis=None):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def first_largest(x):
    y = np.zeros(x.size)
    y[x.argmax()] = 1
    return y.reshape(x.shape)


C3 = np.array([[[1, 2, 0], [3, -1, 3]], [[0, 0, 0], [-5, 1, 0.5]]])
TIES = [[[3, 1, 3, 0]], [[1, 1, 1, 1]], [[-1, -2, -1, -1]]]

ALONG = {
    "softmax": [
        Case([C3], softmax),
        Case([A], softmax),
        Case([np.array([[5.0], [2]])], softmax),
        Case([[1000, -1000]], lambda x: 1.0, slopes=lambda x: (0.0,)),
    ]
    + [Case([C3], lambda x, axis=axis: softmax(x, axis), axis=axis) for axis in (0, 1, -1)]
    + [Case([[[1000, 0, -1000]]], softmax), Case([Steps(A[:1], A)], lambda x: softmax(x, 1))],
    "log_softmax": [
        Case([C3], lambda x: np.log(softmax(x, -1))),
        Case([A], lambda x: np.log(softmax(x))),
        Case([np.array([[5.0], [2]])], lambda x: 0 * x),
    ]
    + [Case([C3], lambda x, axis=axis: np.log(softmax(x, axis)), axis=axis) for axis in (0, 1, -1)],
    "hardmax": [
        Case([[t[0] for t in TIES]], first_largest, slopes=0),
        Case([C3], first_largest, slopes=0),
        Case([[[5], [2]]], first_largest, slopes=0),
        Case([Steps(A[:1], A)], lambda x: np.stack([first_largest(row) for row in x]), slopes=0),
    ],
}

TABLE = {}
for table in (UNARY, BINARY, SEVERAL, ALONG):
    for name, cases in table.items():
        TABLE.setdefault(name, []).extend(cases)
