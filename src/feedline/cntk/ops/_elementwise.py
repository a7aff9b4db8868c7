"""Operations on every element: arithmetic, comparisons, activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feedline.cntk._nodes import constant_node, nodes_of
from feedline.cntk.ops._function import Function
from feedline.cntk.ops._making import kind, made, one_axis
from feedline.networks import apply

__all__ = [
    "abs",
    "acos",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "ceil",
    "clip",
    "cos",
    "cosh",
    "element_and",
    "element_divide",
    "element_max",
    "element_min",
    "element_not",
    "element_or",
    "element_select",
    "element_times",
    "element_xor",
    "elu",
    "equal",
    "exp",
    "floor",
    "greater",
    "greater_equal",
    "hard_sigmoid",
    "hardmax",
    "leaky_relu",
    "less",
    "less_equal",
    "log",
    "log_add_exp",
    "log_softmax",
    "mean",
    "minus",
    "negate",
    "not_equal",
    "param_relu",
    "plus",
    "pow",
    "reciprocal",
    "relu",
    "round",
    "selu",
    "sigmoid",
    "sin",
    "sinh",
    "softmax",
    "softplus",
    "softsign",
    "sqrt",
    "square",
    "stop_gradient",
    "sum",
    "tan",
    "tanh",
]


def _unary(op: str, what: str) -> Callable[..., Function]:
    def function(x: Any, name: str = "") -> Function:
        return made(op, [x], None, name)

    function.__name__ = function.__qualname__ = op
    function.__doc__ = what
    return function


def _binary(op: str, what: str) -> Callable[..., Function]:
    def function(left: Any, right: Any, name: str = "") -> Function:
        return made(op, [left, right], None, name)

    function.__name__ = function.__qualname__ = op
    function.__doc__ = what
    return function


def _chain(op: str, what: str) -> Callable[..., Function]:
    def function(left: Any, right: Any, *more: Any, name: str = "") -> Function:
        node = nodes_of(left, right, *more)
        total = node[0]
        for i, other in enumerate(node[1:], 2):
            total = apply(op, [total, other], None, name if i == len(node) else "")
        return Function.of([total])

    function.__name__ = function.__qualname__ = op
    function.__doc__ = what
    return function


plus = _chain("plus", "Sum of two or more operands, which broadcast.")
element_times = _chain("element_times", "Product element by element of two or more operands, which broadcast.")
element_max = _chain("element_max", "The larger of two or more operands; of equal ones the last gets the gradient.")
element_min = _chain("element_min", "The smaller of two or more operands; of equal ones the last gets the gradient.")
log_add_exp = _chain("log_add_exp", "Logarithm of the sum of exponentials of two or more operands.")
minus = _binary("minus", "Difference of operands that broadcast.")
element_divide = _binary("element_divide", "Quotient of operands that broadcast; 0 where the divisor is 0.")
pow = _binary("pow", "``left`` to the power of ``right``; 0 where left is 0 and right below it.")
equal = _binary("equal", "1 where operands are equal, else 0.")
not_equal = _binary("not_equal", "1 where operands differ, else 0.")
less = _binary("less", "1 where left is less, else 0.")
less_equal = _binary("less_equal", "1 where left is not greater, else 0.")
greater = _binary("greater", "1 where left is greater, else 0.")
greater_equal = _binary("greater_equal", "1 where left is not less, else 0.")
element_and = _binary("element_and", "1 where both operands are above 0, else 0.")
element_or = _binary("element_or", "1 where an operand is above 0, else 0.")
element_xor = _binary("element_xor", "1 where exactly one operand is above 0, else 0.")

negate = _unary("negate", "The negative.")
reciprocal = _unary("reciprocal", "1 over the operand; 0 where that is 0.")
relu = _unary("relu", "The operand where it is positive, else 0.")
sigmoid = _unary("sigmoid", "``1 / (1 + exp(-x))``.")
tanh = _unary("tanh", "Hyperbolic tangent.")
exp = _unary("exp", "Exponential.")
log = _unary("log", "Natural logarithm; below 1e-37 it is -85.1.")
sqrt = _unary("sqrt", "Square root; 0 below 0.")
square = _unary("square", "Square.")
abs = _unary("abs", "Absolute value.")
floor = _unary("floor", "The largest integer not above.")
ceil = _unary("ceil", "The smallest integer not below.")
round = _unary("round", "The nearest integer; a half goes up.")
sin = _unary("sin", "Sine.")
cos = _unary("cos", "Cosine.")
tan = _unary("tan", "Tangent.")
asin = _unary("asin", "Inverse sine.")
acos = _unary("acos", "Inverse cosine.")
atan = _unary("atan", "Inverse tangent.")
sinh = _unary("sinh", "Hyperbolic sine.")
cosh = _unary("cosh", "Hyperbolic cosine.")
asinh = _unary("asinh", "Inverse hyperbolic sine.")
atanh = _unary("atanh", "Inverse hyperbolic tangent.")
softplus = _unary("softplus", "``log(1 + exp(x))``.")
softsign = _unary("softsign", "``x / (1 + abs(x))``.")
element_not = _unary("element_not", "1 where the operand is not above 0, else 0.")
stop_gradient = _unary("stop_gradient", "The operand, through which no gradient flows.")


def elu(x: Any, alpha: float = 1.0, name: str = "") -> Function:
    """The operand where it is positive, else ``alpha * (exp(x) - 1)``."""
    return made("elu", [x], {"alpha": float(alpha)}, name)


def selu(
    x: Any,
    scale: float = 1.0507009873554804934193349852946,
    alpha: float = 1.6732632423543772848170429916717,
    name: str = "",
) -> Function:
    """``scale`` times `elu`."""
    return made("element_times", [constant_node(scale, kind(x)), elu(x, alpha)], None, name)


def leaky_relu(x: Any, alpha: float = 0.01, name: str = "") -> Function:
    """The operand where it is positive, else ``alpha`` times it."""
    return made("leaky_relu", [x], {"alpha": float(alpha)}, name)


def param_relu(alpha: Any, x: Any, name: str = "") -> Function:
    """As `leaky_relu`, with a variable slope."""
    return made("param_relu", [alpha, x], None, name)


def hard_sigmoid(x: Any, alpha: float, beta: float, name: str = "") -> Function:
    """``alpha * x + beta`` kept within 0 and 1."""
    return made("hard_sigmoid", [x], {"alpha": float(alpha), "beta": float(beta)}, name)


def clip(x: Any, min_value: Any, max_value: Any, name: str = "") -> Function:
    """The operand, kept within two others, which get no gradient; it has its own on the bounds too."""
    return made("clip", [x, min_value, max_value], None, name)


def element_select(flag: Any, value_if_true: Any, value_if_false: Any, name: str = "") -> Function:
    """One operand where ``flag`` is not 0, else the other; all broadcast."""
    return made("element_select", [flag, value_if_true, value_if_false], None, name)


def softmax(x: Any, axis: Any = None, name: str = "") -> Function:
    """Exponentials divided by their sum along an axis; None: over all of a sample."""
    return made("softmax", [x], {"axis": one_axis(axis, None)}, name)


def log_softmax(x: Any, axis: Any = None, name: str = "") -> Function:
    """Logarithm of the softmax along an axis; None: the last."""
    return made("log_softmax", [x], {"axis": one_axis(axis)}, name)


def hardmax(x: Any, name: str = "") -> Function:
    """1 at the largest element of a sample, the first of equals, else 0."""
    return made("hardmax", [x], {"axis": None}, name)


def sum(*operands: Any, name: str = "") -> Function:
    """Sum of operands, or of a list of them, which broadcast."""
    items = _flattened(operands)
    return made("alias", items, None, name) if len(items) == 1 else plus(*items, name=name)


def mean(*operands: Any, name: str = "") -> Function:
    """Mean of operands, or of a list of them, which broadcast."""
    return element_divide(sum(*operands), len(_flattened(operands)), name)


def _flattened(operands: tuple[Any, ...]) -> list[Any]:
    return list(operands[0]) if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else list(operands)
