"""Operators on every element: arithmetic with symbols and with numbers, comparisons, functions, activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from feedline.mxnet.symbol._operator import Names, Site, define, same
from feedline.mxnet.symbol._parameters import COUNT, Parameter, dtype, flag, real, word
from feedline.networks.ops.edges import ramp
from feedline.networks.ops.elementwise import BROADCASTING, UNARY

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


# By MXNet's word: names of the operator on equal shapes, names of the broadcasting one, and the function: that of the
# operation in `feedline.networks`, or another where MXNet differs at the edges.
_ARITHMETIC: dict[str, tuple[str, str, Callable[[Any, Any], Any]]] = {
    "add": ("elemwise_add _plus _Plus", "broadcast_add broadcast_plus", BROADCASTING["plus"]),
    "sub": ("elemwise_sub _minus _Minus", "broadcast_sub broadcast_minus", BROADCASTING["minus"]),
    "mul": ("elemwise_mul _mul _Mul", "broadcast_mul", BROADCASTING["element_times"]),
    "div": ("elemwise_div _div _Div", "broadcast_div", torch.div),
    "power": ("_power _Power", "broadcast_power", torch.pow),
    "maximum": ("_maximum _Maximum", "broadcast_maximum", _maximum),
    "minimum": ("_minimum _Minimum", "broadcast_minimum", _minimum),
    "hypot": ("_hypot", "broadcast_hypot", torch.hypot),
    "mod": ("_mod _Mod", "broadcast_mod", _remainder),
    "equal": ("_equal", "broadcast_equal", BROADCASTING["equal"]),
    "not_equal": ("_not_equal", "broadcast_not_equal", BROADCASTING["not_equal"]),
    "greater": ("_greater", "broadcast_greater", BROADCASTING["greater"]),
    "greater_equal": ("_greater_equal", "broadcast_greater_equal", BROADCASTING["greater_equal"]),
    "lesser": ("_lesser", "broadcast_lesser", BROADCASTING["less"]),
    "lesser_equal": ("_lesser_equal", "broadcast_lesser_equal", BROADCASTING["less_equal"]),
    "logical_and": ("_logical_and", "broadcast_logical_and", _truth(torch.logical_and)),
    "logical_or": ("_logical_or", "broadcast_logical_or", _truth(torch.logical_or)),
    "logical_xor": ("_logical_xor", "broadcast_logical_xor", _truth(torch.logical_xor)),
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

_UNARY: dict[str, Callable[[Any], Any]] = {
    "abs": UNARY["abs"],
    "arccos": UNARY["acos"],
    "arccosh": torch.acosh,
    "arcsin": UNARY["asin"],
    "arcsinh": UNARY["asinh"],
    "arctan": UNARY["atan"],
    "arctanh": UNARY["atanh"],
    "cbrt": lambda x: x.sign() * x.abs().pow(1 / 3),
    "ceil": UNARY["ceil"],
    "cos": UNARY["cos"],
    "cosh": UNARY["cosh"],
    "degrees": torch.rad2deg,
    "erf": torch.erf,
    "erfinv": torch.erfinv,
    "exp": UNARY["exp"],
    "expm1": torch.expm1,
    "fix": torch.trunc,
    "floor": UNARY["floor"],
    "gamma": lambda x: torch.where(x < 0, torch.cos(torch.pi * torch.floor(x)), 1.0) * torch.lgamma(x).exp(),
    "gammaln": torch.lgamma,
    "log": torch.log,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "log2": torch.log2,
    "logical_not": lambda x: torch.logical_not(x).to(x.dtype),
    "negative": UNARY["negate"],
    "radians": torch.deg2rad,
    "rcbrt": lambda x: x.sign() * x.abs().pow(-1 / 3),
    "reciprocal": torch.reciprocal,
    "relu": UNARY["relu"],
    "rint": lambda x: torch.ceil(x - 0.5),  # halves go down: MXNet's rule, not torch's
    "round": lambda x: torch.trunc(x + 0.5 * x.sign()),  # halves go away from zero
    "rsqrt": torch.rsqrt,
    "sigmoid": UNARY["sigmoid"],
    "sign": UNARY["sign"],
    "sin": UNARY["sin"],
    "sinh": UNARY["sinh"],
    "softsign": UNARY["softsign"],
    "sqrt": torch.sqrt,
    "square": UNARY["square"],
    "tan": UNARY["tan"],
    "tanh": UNARY["tanh"],
    "trunc": torch.trunc,
    "_copy identity": torch.clone,
    "BlockGrad stop_gradient": UNARY["stop_gradient"],
    "ones_like": torch.ones_like,
    "zeros_like": torch.zeros_like,
}


for _elementwise, _broadcasting, _run in _ARITHMETIC.values():
    define(_elementwise, "lhs rhs", _pair(_run), shape=same)
    define(_broadcasting, "lhs rhs", _pair(_run))
for _names, _function in _WITH_NUMBER.items():
    define(_names, "data", _number(_function), _SCALAR, shape=same)


def _only(function: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda p, training, x: function(x)


for _names, _of in _UNARY.items():
    define(_names, "data", _only(_of), shape=same)

_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": UNARY["relu"],
    "sigmoid": UNARY["sigmoid"],
    "tanh": UNARY["tanh"],
    "softrelu": UNARY["softplus"],
    "softsign": UNARY["softsign"],
}


def _leaky(p: Any, training: bool, x: Any, gamma: Any = None) -> Any:
    if p.act_type == "leaky":
        return torch.where(x > 0, x, p.slope * x)
    if p.act_type == "elu":
        return torch.where(x > 0, x, p.slope * torch.expm1(x.clamp_max(0)))
    if p.act_type == "prelu":
        slope = gamma.reshape((-1,) + (1,) * (x.dim() - 2)) if x.dim() > 1 and gamma.numel() > 1 else gamma
        y = torch.where(x > 0, x, slope * x)
        if y.shape != x.shape:
            raise ValueError(f"expected gamma for data of shape {tuple(x.shape)}, got shape {tuple(gamma.shape)}")
        return y
    if p.act_type == "rrelu":
        mean = (p.lower_bound + p.upper_bound) / 2
        slope = torch.empty_like(x).uniform_(p.lower_bound, p.upper_bound) if training else mean
        return torch.where(x > 0, x, slope * x)
    return functional.selu(x) if p.act_type == "selu" else functional.gelu(x)


def _leaky_shape(site: Site) -> None:
    shape = site.ins[0]
    if shape is not None and len(site.ins) > 1 and site.ins[1] is None:
        site.put_in(1, (shape[1] if len(shape) > 1 else 1,))


def _leaky_inputs(p: Any) -> Names:
    return ("data", "gamma") if p.act_type == "prelu" else ("data",)


define(
    "Activation activation",
    "data",
    lambda p, training, x: _ACTIVATIONS[p.act_type](x),
    {"act_type": Parameter(word(*_ACTIVATIONS))},
    shape=same,
)
define(
    "LeakyReLU",
    _leaky_inputs,
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
    shape=_leaky_shape,
)
define(
    "clip",
    "data",
    lambda p, training, x: x.clamp(p.a_min, p.a_max),
    {"a_min": Parameter(real), "a_max": Parameter(real)},
    shape=same,
)
define(
    "hard_sigmoid",
    "data",
    lambda p, training, x: ramp(p.alpha * x + p.beta),
    {"alpha": Parameter(real, 0.2), "beta": Parameter(real, 0.5)},
    shape=same,
)
define(
    "Cast cast",
    "data",
    lambda p, training, x: x.to(getattr(torch, p.dtype)),
    {"dtype": Parameter(dtype)},
    free="data",
    dtype=lambda p: p.dtype,
    shape=same,
)
define(
    "smooth_l1",
    "data",
    # A parabola within 1 / scalar^2 of zero, and straight beyond.
    lambda p, training, x: torch.where(
        x.abs() < 1 / p.scalar**2, 0.5 * (p.scalar * x) ** 2, x.abs() - 0.5 / p.scalar**2
    ),
    {"scalar": Parameter(real, 1.0)},
    shape=same,
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
    lambda p, training, condition, x, y: torch.where(
        (condition != 0).reshape(condition.shape + (1,) * (x.dim() - condition.dim())), x, y
    ),
    free="condition",
    shape=_where_shape,
)


def _sum_of_all(p: Any, training: bool, *tensors: Any) -> Any:
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total


define("add_n ElementWiseSum element_wise_sum", "*", _sum_of_all, {"num_args": Parameter(COUNT)}, shape=same)
