"""Element-wise operations: arithmetic, comparisons, activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from feedline._facades import defined_in
from feedline.cntk._nodes import constant_node, dtype_name, nodes_of
from feedline.cntk._settings import take_plain_settings
from feedline.cntk.ops._function import Function
from feedline.cntk.ops._operation_helpers import build, kind, one_axis, with_name
from feedline.networks import apply


def _unary(op: str, doc: str) -> Callable[..., Function]:
    def function(x: Any, name: str = "") -> Function:
        return build(op, [x], None, name)

    return with_name(function, op, doc)


def _rounding(op: str, doc: str) -> Callable[..., Function]:
    def function(arg: Any, name: str = "") -> Function:
        return build(op, [arg], None, name)

    return with_name(function, op, doc)


def _binary(op: str, doc: str) -> Callable[..., Function]:
    def function(left: Any, right: Any, name: str = "") -> Function:
        return build(op, [left, right], None, name)

    return with_name(function, op, doc)


def _logical(op: str, doc: str) -> Callable[..., Function]:
    def function(x: Any, y: Any, name: str = "") -> Function:
        return build(op, [x, y], None, name)

    return with_name(function, op, doc)


def _chain(op: str, doc: str) -> Callable[..., Function]:
    def function(left: Any, right: Any, *more: Any, name: str = "") -> Function:
        if more and isinstance(more[-1], str):  # the name may come last, as in CNTK
            *more, name = more  # type: ignore[assignment]
        nodes = nodes_of(left, right, *more)
        total = nodes[0]
        for i, operand in enumerate(nodes[1:], 2):
            total = apply(op, [total, operand], None, name if i == len(nodes) else "")
        return Function.of([total])

    return with_name(function, op, doc)


plus = _chain("plus", "Return the sum of two or more operands, with broadcasting.")
element_times = _chain("element_times", "Return the element-wise product of several operands, with broadcasting.")
element_max = _chain("element_max", "Return the largest of several operands. The last of equal ones gets the gradient.")
element_min = _chain("element_min", "Return the least of several operands. The last of equal ones gets the gradient.")
log_add_exp = _chain("log_add_exp", "Return the logarithm of the sum of exponentials of two or more operands.")
minus = _binary("minus", "Return the difference of two operands, with broadcasting.")
element_divide = _binary("element_divide", "Return the quotient, with broadcasting, and 0 where the divisor is 0.")
equal = _binary("equal", "Return 1 where operands are equal, else 0.")
not_equal = _binary("not_equal", "Return 1 where operands differ, else 0.")
less = _binary("less", "Return 1 where left < right, else 0.")
less_equal = _binary("less_equal", "Return 1 where left <= right, else 0.")
greater = _binary("greater", "Return 1 where left > right, else 0.")
greater_equal = _binary("greater_equal", "Return 1 where left >= right, else 0.")
element_and = _logical("element_and", "Return 1 where both operands are positive, else 0.")
element_or = _logical("element_or", "Return 1 where at least one operand is positive, else 0.")
element_xor = _logical("element_xor", "Return 1 where exactly one operand is positive, else 0.")

negate = _unary("negate", "Return ``-x``.")
reciprocal = _unary("reciprocal", "Return ``1 / x``, and 0 where x is 0.")
relu = _unary("relu", "Return the operand where it is positive, else 0.")
sigmoid = _unary("sigmoid", "Return ``1 / (1 + exp(-x))``.")
tanh = _unary("tanh", "Return the hyperbolic tangent.")
exp = _unary("exp", "Return the exponential.")
log = _unary("log", "Return the natural logarithm, and -85.1 for operands below 1e-37.")
sqrt = _unary("sqrt", "Return the square root, and 0 for negative operands.")
square = _unary("square", "Return the square.")
abs = _unary("abs", "Return the absolute value.")
floor = _rounding("floor", "Round down.")
ceil = _rounding("ceil", "Round up.")
round = _rounding("round", "Round to the nearest integer, halves up.")
sin = _unary("sin", "Return the sine.")
cos = _unary("cos", "Return the cosine.")
tan = _unary("tan", "Return the tangent.")
asin = _unary("asin", "Return the inverse sine.")
acos = _unary("acos", "Return the inverse cosine.")
atan = _unary("atan", "Return the inverse tangent.")
sinh = _unary("sinh", "Return the hyperbolic sine.")
cosh = _unary("cosh", "Return the hyperbolic cosine.")
asinh = _unary("asinh", "Return the inverse hyperbolic sine.")
atanh = _unary("atanh", "Return the inverse hyperbolic tangent.")
element_not = _unary("element_not", "Return 1 where the operand is not positive, else 0.")


def pow(base: Any, exponent: Any, name: str = "") -> Function:
    """Return ``base ** exponent``, and 0 where the base is 0 and the exponent negative."""
    return build("pow", [base, exponent], None, name)


def stop_gradient(input: Any, name: str = "") -> Function:
    """Return the operand, and stop gradients from flowing through it."""
    return build("stop_gradient", [input], None, name)


def straight_through_impl(x: Any, name: str = "") -> Function:
    """Return 1 where the operand is positive, else -1. The gradient passes where the operand is from -1 to 1."""
    return build("straight_through", [x], None, name)


def softplus(x: Any, steepness: float = 1, name: str = "") -> Function:
    """Return ``log(1 + exp(steepness * x)) / steepness``."""
    if steepness == 1:
        return build("softplus", [x], None, name)
    return element_divide(build("softplus", [element_times(x, steepness)], None, ""), steepness, name)


def softsign(x: Any, steepness: float = 1, name: str = "") -> Function:
    """Return ``x / (1 + abs(x))``. ``steepness`` has no effect, as in CNTK."""
    return build("softsign", [x], None, name)


def elu(x: Any, alpha: float = 1.0, name: str = "") -> Function:
    """Return the operand where it is positive, else ``alpha * (exp(x) - 1)``."""
    return build("elu", [x], {"alpha": float(alpha)}, name)


def selu(
    x: Any,
    scale: float = 1.0507009873554804934193349852946,
    alpha: float = 1.6732632423543772848170429916717,
    name: str = "",
) -> Function:
    """Return ``scale`` times `elu`."""
    return build("element_times", [constant_node(scale, kind(x)), elu(x, alpha)], None, name)


def leaky_relu(x: Any, alpha: float = 0.01, name: str = "") -> Function:
    """Return the operand where it is positive, else ``alpha`` times it."""
    return build("leaky_relu", [x], {"alpha": float(alpha)}, name)


def param_relu(alpha: Any, x: Any, name: str = "") -> Function:
    """Return `leaky_relu` with a variable as slope."""
    return build("param_relu", [alpha, x], None, name)


def hard_sigmoid(x: Any, alpha: float, beta: float, name: str = "") -> Function:
    """Return ``alpha * x + beta``, clipped to 0 and 1."""
    return build("hard_sigmoid", [x], {"alpha": float(alpha), "beta": float(beta)}, name)


def clip(x: Any, min_value: Any, max_value: Any, name: str = "") -> Function:
    """Clip the operand to two bounds, which get no gradient. The operand gets its gradient where it equals a bound."""
    return build("clip", [x, min_value, max_value], None, name)


def element_select(flag: Any, value_if_true: Any, value_if_false: Any, name: str = "") -> Function:
    """Return one operand where ``flag`` is not 0, else the other, with broadcasting."""
    return build("element_select", [flag, value_if_true, value_if_false], None, name)


def softmax(x: Any, axis: Any = None, name: str = "") -> Function:
    """Return exponentials divided by their sum along an axis, by default over the whole sample."""
    return build("softmax", [x], {"axis": one_axis(axis, None)}, name)


def log_softmax(x: Any, axis: Any = None, name: str = "") -> Function:
    """Return the logarithm of the softmax along an axis, by default the last."""
    return build("log_softmax", [x], {"axis": one_axis(axis)}, name)


def hardmax(x: Any, name: str = "") -> Function:
    """Return 1 at the largest element of a sample, the first of equal ones, else 0."""
    return build("hardmax", [x], {"axis": None}, name)


def sum(*operands: Any, name: str = "") -> Function:
    """Return the sum of operands, or of a list of them, with broadcasting."""
    items = _flatten(operands)
    return build("alias", items, None, name) if len(items) == 1 else plus(*items, name=name)


def mean(*operands: Any, name: str = "") -> Function:
    """Return the mean of operands, or of a list of them, with broadcasting."""
    return element_divide(sum(*operands), len(_flatten(operands)), name)


def _flatten(operands: tuple[Any, ...]) -> list[Any]:
    return list(operands[0]) if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else list(operands)


def cast(node_input: Any, dtype: Any, name: str = "") -> Function:
    """Return the operand's numbers as another element type, such as ``np.float64`` or ``'float'``."""
    return build("cast", [node_input], {"dtype": dtype_name(dtype)}, name)


if not TYPE_CHECKING:  # type checkers find out themselves
    take_plain_settings(globals())
    __all__ = defined_in(globals())
