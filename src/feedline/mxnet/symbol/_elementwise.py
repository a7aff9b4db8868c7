"""Element-wise operators: arithmetic with symbols and numbers, comparisons, functions, activations."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch.nn import functional

from feedline.mxnet.symbol._operator import Site, define, same
from feedline.mxnet.symbol._parameters import ElementType
from feedline.networks.ops.edges import ramp
from feedline.networks.ops.elementwise import BROADCASTING, UNARY


def _truth(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a comparison whose result is 1 or 0 in the left operand's type."""
    return lambda a, b: function(a, b).to(a.dtype)


def _pair(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda lhs, rhs: function(lhs, rhs)


def _number(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def run(data: Any, *, scalar: float, is_int: bool = True) -> Any:
        integral = not data.dtype.is_floating_point and scalar == int(scalar)
        return function(data, int(scalar) if integral else scalar).to(data.dtype)

    return run


def _maximum(a: Any, b: Any) -> Any:
    """Return the maximum. The left one of equal elements gets the gradient."""
    return torch.where(a >= b, a, b)


def _minimum(a: Any, b: Any) -> Any:
    """Return the minimum. The left one of equal elements gets the gradient."""
    return torch.where(a <= b, a, b)


def _remainder(a: Any, b: Any) -> Any:
    """Return the remainder, with the sign of the divisor, or 0 for a divisor of 0."""
    b = torch.as_tensor(b, dtype=a.dtype, device=a.device)
    return torch.where(b == 0, torch.zeros_like(b), torch.remainder(a, torch.where(b == 0, 1, b)))


# For each operation: names of its operator on equal shapes, names of the broadcasting one, and the function, which
# comes from `feedline.networks` unless MXNet differs in edge cases.
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
    "rint": lambda x: torch.ceil(x - 0.5),  # rounds halves down, unlike torch
    "round": lambda x: torch.trunc(x + 0.5 * x.sign()),  # rounds halves away from zero
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
    define(_elementwise, shape=same)(_pair(_run))
    define(_broadcasting)(_pair(_run))
for _names, _function in _WITH_NUMBER.items():
    define(_names, shape=same)(_number(_function))


def _only(function: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda data: function(data)


for _names, _of in _UNARY.items():
    define(_names, shape=same)(_only(_of))


@define("Activation activation", shape=same)
def _activation(data: Any, *, act_type: Literal["relu", "sigmoid", "tanh", "softrelu", "softsign"]) -> Any:
    return UNARY["softplus" if act_type == "softrelu" else act_type](data)


def _leaky_shape(site: Site) -> None:
    shape = site.ins[0]
    if shape is not None and len(site.ins) > 1 and site.ins[1] is None:
        site.put_in(1, (shape[1] if len(shape) > 1 else 1,))


@define(
    "LeakyReLU",
    when={"gamma": lambda p: p.act_type == "prelu"},
    weights="gamma",
    hidden=lambda p: int(p.act_type == "rrelu"),
    first={"gamma": '["Constant", {"value": 0.25}]'},
    called="output mask",
    shape=_leaky_shape,
)
def _leaky(
    data: Any,
    gamma: Any = None,
    *,
    training: bool,
    act_type: Literal["elu", "gelu", "leaky", "prelu", "rrelu", "selu"] = "leaky",
    slope: float = 0.25,
    lower_bound: float = 0.125,
    upper_bound: float = 0.334,
) -> Any:
    if act_type == "elu":
        return torch.where(data > 0, data, slope * torch.expm1(data.clamp_max(0)))
    if act_type in ("selu", "gelu"):
        return functional.selu(data) if act_type == "selu" else functional.gelu(data)
    factor: Any = slope
    if act_type == "prelu":
        factor = gamma.reshape((-1,) + (1,) * (data.dim() - 2)) if data.dim() > 1 and gamma.numel() > 1 else gamma
    elif act_type == "rrelu":
        mean = (lower_bound + upper_bound) / 2
        factor = torch.empty_like(data).uniform_(lower_bound, upper_bound) if training else mean
    y = torch.where(data > 0, data, factor * data)
    if y.shape != data.shape:
        raise ValueError(f"expected gamma for data of shape {tuple(data.shape)}, got shape {tuple(gamma.shape)}")
    return y


@define("_identity_with_attr_like_rhs", shape=same)
def _identity_like(lhs: Any, rhs: Any) -> Any:
    return lhs.clone()


@define("clip", shape=same)
def _clip(data: Any, *, a_min: float, a_max: float) -> Any:
    return data.clamp(a_min, a_max)


@define("hard_sigmoid", shape=same)
def _hard_sigmoid(data: Any, *, alpha: float = 0.2, beta: float = 0.5) -> Any:
    return ramp(alpha * data + beta)


@define("Cast cast", free="data", shape=same)
def _cast(data: Any, *, dtype: ElementType) -> Any:
    return data.to(getattr(torch, dtype))


@define("smooth_l1", shape=same)
def _smooth_l1(data: Any, *, scalar: float = 1.0) -> Any:
    # A parabola within 1 / scalar^2 of zero, linear beyond.
    return torch.where(data.abs() < 1 / scalar**2, 0.5 * (scalar * data) ** 2, data.abs() - 0.5 / scalar**2)


def _where_shape(site: Site) -> None:
    for shape in (site.ins[1], site.ins[2], site.outs[0]):
        if shape is not None:
            site.put_in(1, shape)
            site.put_in(2, shape)
            site.put_out(shape)
            if site.ins[0] is None:
                site.put_in(0, shape)


@define("where", free="condition", shape=_where_shape)
def _where(condition: Any, x: Any, y: Any) -> Any:
    return torch.where((condition != 0).reshape(condition.shape + (1,) * (x.dim() - condition.dim())), x, y)


@define("add_n ElementWiseSum element_wise_sum", shape=same)
def _add_n(*tensors: Any) -> Any:
    return functools.reduce(operator.add, tensors)
