"""Operators on every element: arithmetic with symbols and with numbers, comparisons, functions, activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from feedline.mxnet.symbol._operator import Names, Site, define, same
from feedline.mxnet.symbol._parameters import COUNT, Parameter, dtype, flag, real, word
from feedline.networks.ops.edges import ramp

_SCALAR = {"scalar": Parameter(real), "is_int": Parameter(flag, True)}


def _truth(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A comparison whose result is 1 or 0 of the left operand's type."""
    return lambda a, b: function(a, b).to(a.dtype)


def _pair(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda p, training, a, b: function(a, b)


def _number(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def run(p: Any, training: bool, x: Any) -> Any:
        whole = not x.dtype.is_floating_point and p.scalar == int(p.scalar)
        return function(x, int(p.scalar) if whole else p.scalar).to(x.dtype)

    return run


def _maximum(a: Any, b: Any) -> Any:
    """Of equal elements the left one gets the gradient."""
    return torch.where(a >= b, a, b)


def _minimum(a: Any, b: Any) -> Any:
    """Of equal elements the left one gets the gradient."""
    return torch.where(a <= b, a, b)


def _remainder(a: Any, b: Any) -> Any:
    """Of the divisor's sign; 0 for a divisor of 0."""
    b = torch.as_tensor(b, dtype=a.dtype, device=a.device)
    return torch.where(b == 0, torch.zeros_like(b), torch.remainder(a, torch.where(b == 0, 1, b)))


# By MXNet's word: aliases of the operator on equal shapes, the broadcasting ones, and the operation of the graph, whose
# rules at the edges are CNTK's; or a function where MXNet has others.
_ARITHMETIC: dict[str, tuple[str, str, str | Callable[..., Any]]] = {
    "add": ("elemwise_add _plus _Plus", "broadcast_add broadcast_plus", "plus"),
    "sub": ("elemwise_sub _minus _Minus", "broadcast_sub broadcast_minus", "minus"),
    "mul": ("elemwise_mul _mul _Mul", "broadcast_mul", "element_times"),
    "div": ("elemwise_div _div _Div", "broadcast_div", _pair(torch.div)),
    "power": ("_power _Power", "broadcast_power", _pair(torch.pow)),
    "maximum": ("_maximum _Maximum", "broadcast_maximum", _pair(_maximum)),
    "minimum": ("_minimum _Minimum", "broadcast_minimum", _pair(_minimum)),
    "hypot": ("_hypot", "broadcast_hypot", _pair(torch.hypot)),
    "mod": ("_mod _Mod", "broadcast_mod", _pair(_remainder)),
    "equal": ("_equal", "broadcast_equal", "equal"),
    "not_equal": ("_not_equal", "broadcast_not_equal", "not_equal"),
    "greater": ("_greater", "broadcast_greater", "greater"),
    "greater_equal": ("_greater_equal", "broadcast_greater_equal", "greater_equal"),
    "lesser": ("_lesser", "broadcast_lesser", "less"),
    "lesser_equal": ("_lesser_equal", "broadcast_lesser_equal", "less_equal"),
    "logical_and": ("_logical_and", "broadcast_logical_and", _pair(_truth(torch.logical_and))),
    "logical_or": ("_logical_or", "broadcast_logical_or", _pair(_truth(torch.logical_or))),
    "logical_xor": ("_logical_xor", "broadcast_logical_xor", _pair(_truth(torch.logical_xor))),
}

_WITH_NUMBER: dict[str, Callable[[Any, Any], Any]] = {
    "_plus_scalar _PlusScalar": lambda x, n: x + n,
    "_minus_scalar _MinusScalar": lambda x, n: x - n,
    "_rminus_scalar _RMinusScalar": lambda x, n: n - x,
    "_mul_scalar _MulScalar": lambda x, n: x * n,
    "_div_scalar _DivScalar": lambda x, n: x / n,
    "_rdiv_scalar _RDivScalar": lambda x, n: n / x,
    "_power_scalar _PowerScalar": lambda x, n: x**n,
    "_rpower_scalar _RPowerScalar": lambda x, n: n**x,
    "_mod_scalar _ModScalar": _remainder,
    "_rmod_scalar _RModScalar": lambda x, n: _remainder(torch.full_like(x, n), x),
    "_maximum_scalar _MaximumScalar": lambda x, n: _maximum(x, torch.full_like(x, n)),
    "_minimum_scalar _MinimumScalar": lambda x, n: _minimum(x, torch.full_like(x, n)),
    "_equal_scalar": lambda x, n: x == n,
    "_not_equal_scalar": lambda x, n: x != n,
    "_greater_scalar": lambda x, n: x > n,
    "_greater_equal_scalar": lambda x, n: x >= n,
    "_lesser_scalar": lambda x, n: x < n,
    "_lesser_equal_scalar": lambda x, n: x <= n,
}

_UNARY: dict[str, str | Callable[[Any], Any]] = {
    "abs": "abs",
    "arccos": "acos",
    "arccosh": torch.acosh,
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctanh": "atanh",
    "cbrt": lambda x: x.sign() * x.abs().pow(1 / 3),
    "ceil": "ceil",
    "cos": "cos",
    "cosh": "cosh",
    "degrees": torch.rad2deg,
    "erf": torch.erf,
    "erfinv": torch.erfinv,
    "exp": "exp",
    "expm1": torch.expm1,
    "fix": torch.trunc,
    "floor": "floor",
    "gamma": lambda x: torch.where(x < 0, torch.cos(torch.pi * torch.floor(x)), 1.0) * torch.lgamma(x).exp(),
    "gammaln": torch.lgamma,
    "log": torch.log,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "log2": torch.log2,
    "logical_not": lambda x: torch.logical_not(x).to(x.dtype),
    "negative": "negate",
    "radians": torch.deg2rad,
    "rcbrt": lambda x: x.sign() * x.abs().pow(-1 / 3),
    "reciprocal": torch.reciprocal,
    "relu": "relu",
    "rint": lambda x: torch.ceil(x - 0.5),  # halves go down: MXNet's rule, not torch's
    "round": lambda x: torch.trunc(x + 0.5 * x.sign()),  # halves go away from zero
    "rsqrt": torch.rsqrt,
    "sigmoid": "sigmoid",
    "sign": "sign",
    "sin": "sin",
    "sinh": "sinh",
    "softsign": "softsign",
    "sqrt": torch.sqrt,
    "square": "square",
    "tan": "tan",
    "tanh": "tanh",
    "trunc": torch.trunc,
    "_copy identity": torch.clone,
    "BlockGrad stop_gradient": "stop_gradient",
    "ones_like": torch.ones_like,
    "zeros_like": torch.zeros_like,
}


def _broadcast(site: Site) -> None:
    a, b = site.full(0), site.full(1)
    if a is not None and b is not None:
        rank = max(len(a), len(b))
        a, b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
        if any(m != n and 1 not in (m, n) for m, n in zip(a, b, strict=True)):
            site.refuse(f"expected shapes whose lengths are equal or 1, got {a} and {b}")
        site.put_out(tuple(max(m, n) for m, n in zip(a, b, strict=True)))


for _elementwise, _broadcasting, _run in _ARITHMETIC.values():
    define(_elementwise, "lhs rhs", same, _run)
    define(_broadcasting, "lhs rhs", _broadcast, _run)
for _names, _function in _WITH_NUMBER.items():
    define(_names, "data", same, _number(_function), _SCALAR)


def _only(function: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda p, training, x: function(x)


for _names, _of in _UNARY.items():
    define(_names, "data", same, _of if isinstance(_of, str) else _only(_of))

_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softrelu": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "softsign": functional.softsign,
}


def _leaky(p: Any, training: bool, x: Any, gamma: Any = None) -> Any:
    if p.act_type == "leaky":
        return torch.where(x > 0, x, p.slope * x)
    if p.act_type == "elu":
        return torch.where(x > 0, x, p.slope * torch.expm1(x.clamp_max(0)))
    if p.act_type == "prelu":
        slope = gamma.reshape((-1,) + (1,) * (x.dim() - 2)) if x.dim() > 1 and gamma.numel() > 1 else gamma
        return torch.where(x > 0, x, slope * x)
    if p.act_type == "rrelu":
        mean = (p.lower_bound + p.upper_bound) / 2
        slope = torch.empty_like(x).uniform_(p.lower_bound, p.upper_bound) if training else mean
        return torch.where(x > 0, x, slope * x)
    return functional.selu(x) if p.act_type == "selu" else functional.gelu(x)


def _leaky_shape(site: Site) -> None:
    shape = site.ins[0]
    if shape is not None:
        site.put_out(shape)
        if len(site.ins) > 1 and site.ins[1] is None:
            site.put_in(1, (shape[1] if len(shape) > 1 else 1,))


def _leaky_inputs(p: Any) -> Names:
    return ("data", "gamma") if p.act_type == "prelu" else ("data",)


define(
    "Activation activation",
    "data",
    same,
    lambda p, training, x: _ACTIVATIONS[p.act_type](x),
    {"act_type": Parameter(word(*_ACTIVATIONS))},
)
define(
    "LeakyReLU",
    _leaky_inputs,
    _leaky_shape,
    _leaky,
    {
        "act_type": Parameter(word("elu", "gelu", "leaky", "prelu", "rrelu", "selu"), "leaky"),
        "slope": Parameter(real, 0.25),
        "lower_bound": Parameter(real, 0.125),
        "upper_bound": Parameter(real, 0.334),
    },
    weights="gamma",
    hidden=lambda p: int(p.act_type == "rrelu"),
    first={"gamma": '["Constant", {"value": 0.25}]'},
    called="output mask",
)
define(
    "clip",
    "data",
    same,
    lambda p, training, x: x.clamp(p.a_min, p.a_max),
    {"a_min": Parameter(real), "a_max": Parameter(real)},
)
define(
    "hard_sigmoid",
    "data",
    same,
    lambda p, training, x: ramp(p.alpha * x + p.beta),
    {"alpha": Parameter(real, 0.2), "beta": Parameter(real, 0.5)},
)
define(
    "Cast cast",
    "data",
    same,
    lambda p, training, x: x.to(getattr(torch, p.dtype)),
    {"dtype": Parameter(dtype)},
    free="data",
    dtype=lambda p: p.dtype,
)
define(
    "smooth_l1",
    "data",
    same,
    # A parabola within 1 / scalar^2 of zero, and straight beyond.
    lambda p, training, x: torch.where(
        x.abs() < 1 / p.scalar**2, 0.5 * (p.scalar * x) ** 2, x.abs() - 0.5 / p.scalar**2
    ),
    {"scalar": Parameter(real, 1.0)},
)


def _where_shape(site: Site) -> None:
    for shape in (site.ins[1], site.ins[2], site.outs[0]):
        if shape is not None:
            site.put_in(1, shape)
            site.put_in(2, shape)
            site.put_out(shape)
            if site.ins[0] is None:
                site.put_in(0, shape)


define(
    "where",
    "condition x y",
    _where_shape,
    lambda p, training, condition, x, y: torch.where(
        (condition != 0).reshape(condition.shape + (1,) * (x.dim() - condition.dim())), x, y
    ),
    free="condition",
)


def _sum_of_all(p: Any, training: bool, *tensors: Any) -> Any:
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total


define("add_n ElementWiseSum element_wise_sum", "*", same, _sum_of_all, {"num_args": Parameter(COUNT)})
