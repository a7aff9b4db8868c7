"""`cntk.ops`: operations on variables and functions. Each makes one node of a graph, or a few."""

from __future__ import annotations

import builtins
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from feedline.cntk._names import explain
from feedline.cntk._nodes import axis_names, constant_node, dims, dtype_name, node_of, nodes_of
from feedline.cntk._tracing import block_of, roots_of
from feedline.cntk.axis import Axis
from feedline.cntk.ops.functions import (
    BlockFunction,
    CloneMethod,
    Function,
    UserFunction,
    load_model,
)
from feedline.cntk.variables import Constant, Parameter, Variable, placeholder, variable_of
from feedline.errors import CompatError
from feedline.graph import apply
from feedline.graph.node import input_node

__all__ = [
    "AVG_POOLING",
    "CONSTANT_PAD",
    "MAX_POOLING",
    "REFLECT_PAD",
    "SYMMETRIC_PAD",
    "BlockFunction",
    "CloneMethod",
    "Function",
    "PoolingType_Average",
    "PoolingType_Max",
    "UserFunction",
    "abs",
    "acos",
    "alias",
    "argmax",
    "argmin",
    "as_block",
    "as_composite",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "batch_normalization",
    "binary_cross_entropy",
    "ceil",
    "classification_error",
    "clip",
    "combine",
    "constant",
    "convolution",
    "convolution_transpose",
    "cos",
    "cosh",
    "cosine_distance",
    "cross_entropy_with_softmax",
    "dropout",
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
    "expand_dims",
    "eye_like",
    "flatten",
    "floor",
    "gather",
    "greater",
    "greater_equal",
    "hard_sigmoid",
    "hardmax",
    "image_scaler",
    "input_variable",
    "leaky_relu",
    "less",
    "less_equal",
    "load_model",
    "log",
    "log_add_exp",
    "log_softmax",
    "minus",
    "negate",
    "not_equal",
    "one_hot",
    "ones_like",
    "output_variable",
    "pad",
    "param_relu",
    "parameter",
    "per_dim_mean_variance_normalize",
    "placeholder",
    "placeholder_variable",
    "plus",
    "pooling",
    "pow",
    "reciprocal",
    "reconcile_dynamic_axes",
    "reduce_l1",
    "reduce_l2",
    "reduce_log_sum",
    "reduce_log_sum_exp",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_sum",
    "reduce_sum_square",
    "relu",
    "reshape",
    "round",
    "selu",
    "sigmoid",
    "sin",
    "sinh",
    "slice",
    "softmax",
    "softplus",
    "softsign",
    "splice",
    "sqrt",
    "square",
    "squared_error",
    "squeeze",
    "stop_gradient",
    "swapaxes",
    "tan",
    "tanh",
    "times",
    "times_transpose",
    "transpose",
    "user_function",
    "weighted_binary_cross_entropy",
    "zeros_like",
]

TIMES_NO_INFERRED_INPUT_RANK = -1
TIMES_REDUCE_SEQUENCE_AXIS_WITHOUT_INFERRED_INPUT_RANK = -2
MAX_POOLING, AVG_POOLING = 0, 1
PoolingType_Max, PoolingType_Average = MAX_POOLING, AVG_POOLING
CONSTANT_PAD, REFLECT_PAD, SYMMETRIC_PAD = 0, 1, 2

# ---- leaves -------------------------------------------------------------------------------------------


def input_variable(
    shape: Any,
    dtype: Any = np.float32,
    needs_gradient: bool = False,
    is_sparse: bool = False,
    dynamic_axes: Any = None,
    name: str = "",
) -> Variable:
    """A variable that is fed: one sample a sequence, unless ``dynamic_axes`` says otherwise."""
    axes = [Axis.default_batch_axis()] if dynamic_axes is None else dynamic_axes
    named = axis_names([axes] if isinstance(axes, Axis) else axes)
    return variable_of(input_node(dims(shape), named, name, is_sparse, dtype_name(dtype)), needs_gradient)


def output_variable(shape: Any, dtype: Any, dynamic_axes: Any, needs_gradient: bool = True, name: str = "") -> Variable:
    """What a `UserFunction` gives, for its ``infer_outputs``."""
    return variable_of(
        input_node(dims(shape), axis_names(dynamic_axes), name, False, dtype_name(dtype)), needs_gradient
    )


def placeholder_variable(shape: Any = None, dynamic_axes: Any = None, name: str = "") -> Variable:
    """Former name of `placeholder`."""
    return placeholder(shape, dynamic_axes, name)


def parameter(shape: Any = None, init: Any = None, dtype: Any = None, device: Any = None, name: str = "") -> Parameter:
    """As `Parameter`; without ``init`` by glorot_uniform."""
    if init is None:
        from feedline.cntk.initializer import glorot_uniform

        init = glorot_uniform()
    return Parameter(shape, init, dtype, device, name)


def constant(value: Any = None, shape: Any = None, dtype: Any = None, device: Any = None, name: str = "") -> Constant:
    """As `Constant`."""
    return Constant(value, shape, dtype, device, name)


# ---- element by element -------------------------------------------------------------------------------


def _unary(op: str, what: str) -> Callable[..., Function]:
    def function(x: Any, name: str = "") -> Function:
        return _made(op, [x], None, name)

    function.__name__ = function.__qualname__ = op
    function.__doc__ = what
    return function


def _binary(op: str, what: str) -> Callable[..., Function]:
    def function(left: Any, right: Any, name: str = "") -> Function:
        return _made(op, [left, right], None, name)

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
element_max = _chain("element_max", "The larger of two or more operands, element by element.")
element_min = _chain("element_min", "The smaller of two or more operands, element by element.")
log_add_exp = _chain("log_add_exp", "Logarithm of the sum of exponentials of two or more operands.")
minus = _binary("minus", "Difference of operands that broadcast.")
element_divide = _binary("element_divide", "Quotient of operands that broadcast.")
pow = _binary("pow", "``left`` to the power of ``right``, element by element.")
equal = _binary("equal", "1 where operands are equal, else 0.")
not_equal = _binary("not_equal", "1 where operands differ, else 0.")
less = _binary("less", "1 where left is less, else 0.")
less_equal = _binary("less_equal", "1 where left is not greater, else 0.")
greater = _binary("greater", "1 where left is greater, else 0.")
greater_equal = _binary("greater_equal", "1 where left is not less, else 0.")
element_and = _binary("element_and", "1 where neither operand is 0, else 0.")
element_or = _binary("element_or", "1 where an operand is not 0, else 0.")
element_xor = _binary("element_xor", "1 where exactly one operand is not 0, else 0.")

negate = _unary("negate", "The negative.")
reciprocal = _unary("reciprocal", "1 over the operand.")
relu = _unary("relu", "The operand where it is positive, else 0.")
sigmoid = _unary("sigmoid", "``1 / (1 + exp(-x))``.")
tanh = _unary("tanh", "Hyperbolic tangent.")
exp = _unary("exp", "Exponential.")
log = _unary("log", "Natural logarithm; below 1e-37 that of 1e-37.")
sqrt = _unary("sqrt", "Square root.")
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
element_not = _unary("element_not", "1 where the operand is 0, else 0.")
stop_gradient = _unary("stop_gradient", "The operand, through which no gradient flows.")


def elu(x: Any, alpha: float = 1.0, name: str = "") -> Function:
    """The operand where it is positive, else ``alpha * (exp(x) - 1)``."""
    return _made("elu", [x], {"alpha": float(alpha)}, name)


def selu(
    x: Any,
    scale: float = 1.0507009873554804934193349852946,
    alpha: float = 1.6732632423543772848170429916717,
    name: str = "",
) -> Function:
    """``scale`` times `elu`."""
    return _made("element_times", [constant_node(scale, _kind(x)), elu(x, alpha)], None, name)


def leaky_relu(x: Any, alpha: float = 0.01, name: str = "") -> Function:
    """The operand where it is positive, else ``alpha`` times it."""
    return _made("leaky_relu", [x], {"alpha": float(alpha)}, name)


def param_relu(alpha: Any, x: Any, name: str = "") -> Function:
    """As `leaky_relu`, with a variable slope."""
    return _made("param_relu", [alpha, x], None, name)


def hard_sigmoid(x: Any, alpha: float, beta: float, name: str = "") -> Function:
    """``alpha * x + beta`` kept within 0 and 1."""
    return _made("hard_sigmoid", [x], {"alpha": float(alpha), "beta": float(beta)}, name)


def clip(x: Any, min_value: Any, max_value: Any, name: str = "") -> Function:
    """The operand, kept within two others."""
    return _made("clip", [x, min_value, max_value], None, name)


def element_select(flag: Any, value_if_true: Any, value_if_false: Any, name: str = "") -> Function:
    """One operand where ``flag`` is not 0, else the other; all broadcast."""
    return _made("element_select", [flag, value_if_true, value_if_false], None, name)


def softmax(x: Any, axis: Any = None, name: str = "") -> Function:
    """Exponentials divided by their sum along an axis; None: the last."""
    return _made("softmax", [x], {"axis": _one_axis(axis)}, name)


def log_softmax(x: Any, axis: Any = None, name: str = "") -> Function:
    """Logarithm of `softmax`."""
    return _made("log_softmax", [x], {"axis": _one_axis(axis)}, name)


def hardmax(x: Any, name: str = "") -> Function:
    """1 at the largest element of a sample, the first of equals, else 0."""
    return _made("hardmax", [x], {"axis": None}, name)


# ---- products -----------------------------------------------------------------------------------------


def times(left: Any, right: Any, output_rank: int = 1, infer_input_rank_to_map: int = -1, name: str = "") -> Function:
    """Product: the last axes of left with the first of right, whose last ``output_rank`` axes stay.

    Args:
        left: dense, or sparse samples.
        right: usually a parameter; one whose dimensions are unknown takes them from left.
        output_rank: axes of right that the result keeps.
        infer_input_rank_to_map: axes of left, from the first, that a parameter of unknown shape leaves alone; -1: as
            many as its own number of axes says.
        name: its name.
    """
    if infer_input_rank_to_map == TIMES_REDUCE_SEQUENCE_AXIS_WITHOUT_INFERRED_INPUT_RANK:
        raise CompatError("expected a product of samples: for one over sequences use sequence.reduce_sum of products")
    map_rank = None if infer_input_rank_to_map == TIMES_NO_INFERRED_INPUT_RANK else infer_input_rank_to_map
    return _made("times", [left, right], {"output_rank": output_rank, "map_rank": map_rank}, name)


def times_transpose(left: Any, right: Any, name: str = "") -> Function:
    """``left`` times the transpose of ``right``, a matrix or a vector."""
    return _made("times_transpose", [left, right], None, name)


# ---- shape --------------------------------------------------------------------------------------------


def reshape(x: Any, shape: Any, begin_axis: Any = None, end_axis: Any = None, name: str = "") -> Function:
    """Another shape of as many elements, one of them -1 if wished, for the axes from ``begin_axis`` to ``end_axis``."""
    begin, end = (None if a is None else _axis_number(a) for a in (begin_axis, end_axis))
    return _made("reshape", [x], {"shape": dims(shape), "begin": begin, "end": end}, name)


def squeeze(x: Any, axes: Any = None, name: str = "") -> Function:
    """Without axes of width 1: all of them, or the given ones."""
    shape = node_of(x).shape
    gone = (
        {a % len(shape) for a in _axis_numbers(axes)}
        if axes is not None
        else {i for i, n in enumerate(shape) if n == 1}
    )
    if any(shape[i] != 1 for i in gone):
        raise ValueError(f"expected axes of width 1, got {sorted(gone)} of the shape {shape}")
    return reshape(x, [n for i, n in enumerate(shape) if i not in gone], name=name)


def expand_dims(x: Any, axis: Any, name: str = "") -> Function:
    """With one more axis of width 1, at ``axis`` of the result."""
    shape = list(node_of(x).shape)
    at = _axis_number(axis)
    shape.insert(at if at >= 0 else at + len(shape) + 1, 1)
    return reshape(x, shape, name=name)


def flatten(x: Any, axis: Any = None, name: str = "") -> Function:
    """A matrix: axes before ``axis`` (None: 0) by all others."""
    shape = node_of(x).shape
    at = 0 if axis is None else _axis_number(axis)
    at = at + len(shape) if at < 0 else at
    return reshape(x, (math.prod(shape[:at]), math.prod(shape[at:])), name=name)


def transpose(x: Any, perm: Any, name: str = "") -> Function:
    """Axes in another order: axis i of the result is axis ``perm[i]``."""
    order = [_axis_number(a) for a in perm]
    return _made("transpose", [x], {"perm": tuple(a + len(order) if a < 0 else a for a in order)}, name)


def swapaxes(x: Any, axis1: Any = 0, axis2: Any = 1, name: str = "") -> Function:
    """With two axes exchanged."""
    order = list(range(len(node_of(x).shape)))
    a, b = _axis_number(axis1), _axis_number(axis2)
    order[a], order[b] = order[b], order[a]
    return transpose(x, order, name)


def slice(x: Any, axis: Any, begin_index: Any, end_index: Any, strides: Any = None, name: str = "") -> Function:
    """Part of a sample along one axis or several; an ``end_index`` of 0 is the end."""
    axes = _axis_numbers(axis)
    starts, ends = _as_list(begin_index), _as_list(end_index)
    steps = [1] * len(axes) if strides is None else _as_list(strides)
    if not len(axes) == len(starts) == len(ends) == len(steps):
        raise ValueError(f"expected as many begins, ends and strides as the {len(axes)} axes")
    attributes = {"axis": tuple(axes), "begin": tuple(starts), "end": tuple(ends), "strides": tuple(steps)}
    return _made("slice", [x], attributes, name)


def splice(*inputs: Any, axis: Any = -1, name: str = "") -> Function:
    """Operands one after the other along an axis."""
    operands = list(inputs[0]) if len(inputs) == 1 and isinstance(inputs[0], (list, tuple)) else list(inputs)
    if len(operands) == 1:
        return alias(operands[0], name)
    return _made(
        "splice", operands, {"axis": -len(_known_rank(operands)) - 1 if _leading(axis) else _axis_number(axis)}, name
    )


def one_hot(x: Any, num_classes: int, sparse_output: bool = False, axis: Any = -1, name: str = "") -> Function:
    """1 at the place that the operand says, along a new axis."""
    attributes = {"classes": int(num_classes), "axis": _axis_number(axis), "sparse": builtins.bool(sparse_output)}
    return _made("one_hot", [x], attributes, name)


def gather(reference: Any, indices: Any, axis: Any = None, name: str = "") -> Function:
    """Parts of ``reference`` along its first axis, or ``axis``, by number."""
    number = None if axis is None else _axis_number(axis)
    return _made("gather", [indices, reference], {"axis": number}, name)


def pad(x: Any, pattern: Any, mode: int = CONSTANT_PAD, constant_value: float = 0, name: str = "") -> Function:
    """With cells before and after, ``pattern`` says how many for each axis."""
    if mode == SYMMETRIC_PAD:
        raise CompatError("expected CONSTANT_PAD or REFLECT_PAD, got SYMMETRIC_PAD, which torch has not")
    kind = {CONSTANT_PAD: "constant", REFLECT_PAD: "reflect"}[mode]
    attributes = {"pattern": tuple(tuple(p) for p in pattern), "mode": kind, "value": float(constant_value)}
    return _made("pad", [x], attributes, name)


# ---- reductions ---------------------------------------------------------------------------------------


def _reduction(op: str, what: str) -> Callable[..., Function]:
    def function(x: Any, axis: Any = None, name: str = "") -> Function:
        return _reduce(op, x, axis, name)

    name = {"reduce_log_sum_exp": "reduce_log_sum"}.get(op, op)
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{what} over an axis, which stays 1 wide; None: over all of a sample, which leaves one number."
    return function


reduce_sum = _reduction("reduce_sum", "Sum")
reduce_mean = _reduction("reduce_mean", "Mean")
reduce_max = _reduction("reduce_max", "Maximum")
reduce_min = _reduction("reduce_min", "Minimum")
reduce_prod = _reduction("reduce_prod", "Product")
reduce_log_sum_exp = _reduction("reduce_log_sum_exp", "Logarithm of the sum of exponentials")
reduce_log_sum = _reduction("reduce_log_sum_exp", "Logarithm of the sum of exponentials")
reduce_l1 = _reduction("reduce_l1", "Sum of absolute values")
reduce_l2 = _reduction("reduce_l2", "Root of the sum of squares")
reduce_sum_square = _reduction("reduce_sum_square", "Sum of squares")


def argmax(x: Any, axis: Any = None, name: str = "") -> Function:
    """Number of the largest element along an axis, or of a flattened sample."""
    return _made("argmax", [x], {"axis": _one_axis(axis, None)}, name)


def argmin(x: Any, axis: Any = None, name: str = "") -> Function:
    """Number of the smallest element along an axis, or of a flattened sample."""
    return _made("argmin", [x], {"axis": _one_axis(axis, None)}, name)


def _reduce(op: str, x: Any, axis: Any, name: str) -> Function:
    if isinstance(axis, Axis) and not axis.is_static_axis:
        how = op.removeprefix("reduce_")
        if how not in ("sum", "mean", "max", "min"):
            raise CompatError(f"expected a static axis for {op}, got {axis!r}")
        if axis == Axis.all_axes():
            return _made("reduce_everything", [x], {"how": how}, name)
        if axis.is_batch_axis:
            return _made("reduce_batch", [x], {"how": how}, name)
        if how == "min":
            raise CompatError("expected a static axis for reduce_min: negate sequence.reduce_max of the negative")
        return _made(f"sequence_reduce_{how}", [x], None, name)
    numbers_ = None if axis is None or axis == Axis.all_static_axes() else tuple(_axis_numbers(axis))
    return _made(op, [x], {"axis": numbers_}, name)


# ---- losses and metrics -------------------------------------------------------------------------------


def cross_entropy_with_softmax(output_vector: Any, target_vector: Any, axis: Any = -1, name: str = "") -> Function:
    """``-sum(target * log(softmax(output)))`` along an axis, one number a sample; targets may be sparse."""
    return _made("cross_entropy_with_softmax", [output_vector, target_vector], {"axis": _one_axis(axis)}, name)


def classification_error(
    output_vector: Any, target_vector: Any, axis: Any = -1, topN: int = 1, name: str = ""
) -> Function:
    """1 where the largest target is not among the ``topN`` largest outputs, else 0."""
    return _made("classification_error", [output_vector, target_vector], {"axis": _one_axis(axis), "top": topN}, name)


def squared_error(output: Any, target: Any, name: str = "") -> Function:
    """Sum of squared differences of a sample."""
    return _made("squared_error", [output, target], None, name)


def binary_cross_entropy(output: Any, target: Any, name: str = "") -> Function:
    """``-sum(target * log(output) + (1 - target) * log(1 - output))`` of a sample."""
    return _made("binary_cross_entropy", [output, target], None, name)


def weighted_binary_cross_entropy(output: Any, target: Any, weight: Any, name: str = "") -> Function:
    """As `binary_cross_entropy`, each element weighted."""
    return _made("weighted_binary_cross_entropy", [output, target, weight], None, name)


def cosine_distance(x: Any, y: Any, name: str = "") -> Function:
    """Cosine of the angle between two vectors."""
    return _made("cosine_distance", [x, y], None, name)


# ---- convolution --------------------------------------------------------------------------------------


def convolution(
    convolution_map: Any,
    operand: Any,
    strides: Any = (1,),
    sharing: Any = (True,),
    auto_padding: Any = (True,),
    sequential: bool = False,
    dilation: Any = (1,),
    reduction_rank: int = 1,
    groups: int = 1,
    max_temp_mem_size_in_samples: int = 0,
    name: str = "",
) -> Function:
    """Convolution of (channels, *sizes) by (filters, channels, *window).

    Args:
        convolution_map: the kernel.
        operand: the data.
        strides: one for all axes or one each; a first one for channels is taken off.
        sharing: True: all else is refused.
        auto_padding: whether each axis is padded so that windows are centred on all (strided) cells.
        sequential: over a sequence: refused.
        dilation: distance of a kernel's cells.
        reduction_rank: 1, or 0 for data without channels.
        groups: of channels that are convolved alone.
        max_temp_mem_size_in_samples: not used.
        name: its name.

    Raises:
        CompatError: ``sequential``, or no sharing.
    """
    if sequential or not all(_as_list(sharing)):
        raise CompatError("expected a shared kernel over static axes; splice shifted sequences for one over time")
    kernel, data = nodes_of(convolution_map, operand)
    rank = len(kernel.shape) - 1 - reduction_rank
    if reduction_rank == 0:
        kernel = apply("reshape", [kernel], {"shape": (1,), "begin": 1, "end": 1})
        data = apply("reshape", [data], {"shape": (1,), "begin": 0, "end": 0})
    attributes = {
        "strides": _spatial(strides, rank),
        "pad": _spatial(auto_padding, rank),
        "dilation": _spatial(dilation, rank),
        "groups": groups,
    }
    return Function.of([apply("convolution", [kernel, data], attributes, name)])


def convolution_transpose(
    convolution_map: Any,
    operand: Any,
    strides: Any = (1,),
    sharing: Any = (True,),
    auto_padding: Any = (True,),
    output_shape: Any = None,
    dilation: Any = (1,),
    reduction_rank: int = 1,
    max_temp_mem_size_in_samples: int = 0,
    name: str = "",
) -> Function:
    """What the convolution with this kernel, (channels, filters, *window), takes gradients back by.

    Raises:
        CompatError: no sharing, dilation, or data without channels.
    """
    if not all(_as_list(sharing)) or set(_as_list(dilation)) != {1} or reduction_rank != 1:
        raise CompatError("expected a shared kernel without dilation over data with channels")
    kernel, data = nodes_of(convolution_map, operand)
    rank = len(kernel.shape) - 2
    wanted = None if output_shape is None else dims(output_shape)
    attributes = {
        "strides": _spatial(strides, rank),
        "pad": _spatial(auto_padding, rank),
        "shape": None if wanted is None else wanted[len(wanted) - rank :],
    }
    return Function.of([apply("convolution_transpose", [kernel, data], attributes, name)])


def pooling(
    operand: Any,
    pooling_type: int,
    pooling_window_shape: Any,
    strides: Any = (1,),
    auto_padding: Any = (False,),
    ceil_out_dim: bool = False,
    include_pad: bool = False,
    name: str = "",
) -> Function:
    """Maximum or average of windows over the last axes.

    Raises:
        CompatError: ``ceil_out_dim`` or ``include_pad``.
    """
    if ceil_out_dim or include_pad:
        raise CompatError("expected pooling without ceil_out_dim and include_pad: pad the operand before")
    size = dims(pooling_window_shape)
    op = {MAX_POOLING: "max_pooling", AVG_POOLING: "average_pooling"}[pooling_type]
    attributes = {
        "window": size,
        "strides": _spatial(strides, len(size)),
        "pad": _spatial(auto_padding, len(size)),
    }
    return _made(op, [operand], attributes, name)


def batch_normalization(
    operand: Any,
    scale: Any,
    bias: Any,
    running_mean: Any,
    running_inv_std: Any,
    spatial: bool,
    normalization_time_constant: float = 5000,
    blend_time_constant: float = 0,
    epsilon: float = 0.00001,
    use_cudnn_engine: bool = False,
    disable_regularization: bool = False,
    name: str = "",
    running_count: Any = None,
) -> Function:
    """Normalise by the statistics of the minibatch in training, and by running ones else.

    Args:
        operand: along the batch.
        scale, bias: parameters of the shape of a channel (``spatial``) or of a sample.
        running_mean, running_inv_std: constants of that shape; the second holds the variance, whatever its name.
        spatial: one statistic a channel, the first axis.
        normalization_time_constant: samples after which 1/e of the old statistics is left; negative: average all.
        blend_time_constant: weight in samples of the running statistics while training.
        epsilon: added to the variance.
        use_cudnn_engine, disable_regularization: not used.
        name: its name.
        running_count: a scalar constant: samples that have gone into the statistics.
    """
    attributes = {
        "spatial": builtins.bool(spatial),
        "normalization_time_constant": float(normalization_time_constant),
        "blend_time_constant": float(blend_time_constant),
        "epsilon": float(epsilon),
    }
    count = Constant(0, name="aggregate_count") if running_count is None else running_count
    operands = [operand, scale, bias, running_mean, running_inv_std, count]
    return _made("batch_normalization", operands, attributes, name)


def dropout(x: Any, dropout_rate: float = 0.0, seed: Any = None, name: str = "") -> Function:
    """In training, elements become 0 with this probability, and the others are scaled up; ``seed`` is not used."""
    if not 0 <= dropout_rate < 1:
        raise ValueError(f"expected a dropout rate of at least 0 and below 1, got {dropout_rate}")
    return _made("dropout", [x], {"rate": float(dropout_rate)}, name)


# ---- graphs -------------------------------------------------------------------------------------------


def combine(*operands: Any, name: str = "") -> Function:
    """One function with the outputs of all."""
    items = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else list(operands)
    roots = [root for item in items for root in roots_of(item)]
    if name and len(roots) == 1:
        return alias(variable_of(roots[0]), name)
    return Function.of(roots)


def alias(x: Any, name: str = "") -> Function:
    """The same under another name."""
    return _made("alias", [x], None, name)


def as_block(
    composite: Any,
    block_arguments_map: Sequence[tuple[Any, Any]],
    block_op_name: str,
    block_instance_name: str = "",
) -> Function:
    """A function as one block, its placeholders replaced."""
    changes = {node_of(a): node_of(b) for a, b in block_arguments_map}
    inside = (
        Function.of(composite._roots)({variable_of(a): variable_of(b) for a, b in changes.items()})
        if changes
        else composite
    )
    return Function.of(block_of(inside._roots, list(changes.values()), block_op_name, block_instance_name))


def as_composite(root_function: Function, name: str = "") -> Function:
    """The function itself."""
    return root_function


def user_function(user_func: UserFunction) -> Function:
    """A function that calls a `UserFunction`."""
    return Function.of(user_func._roots, members=user_func._members)


def reconcile_dynamic_axes(x: Any, dynamic_axes_as: Any, name: str = "") -> Function:
    """The operand along the sequences of another one."""
    return _made("sequence_broadcast_as", [x, dynamic_axes_as], None, name)


def per_dim_mean_variance_normalize(operand: Any, mean: Any, inv_stddev: Any, name: str = "") -> Function:
    """``(operand - mean) * inv_stddev``."""
    return element_times(minus(operand, mean), inv_stddev, name=name)


def image_scaler(x: Any, scalar: float, biases: Any, name: str = "") -> Function:
    """``x * scalar + bias``, one bias a channel."""
    shift = np.asarray(biases, np.float32).reshape(-1, 1, 1)
    return plus(element_times(x, scalar), Constant(shift), name=name)


def eye_like(x: Any, sparse_output: bool = True, name: str = "") -> Function:
    """An identity matrix of the operand's shape."""
    shape = node_of(x).shape
    if len(shape) != 2:
        raise ValueError(f"expected a matrix, got the shape {shape}")
    return plus(zeros_like(x), Constant(np.eye(*shape, dtype=np.float32)), name=name)


def zeros_like(x: Any, name: str = "") -> Function:
    """0 in the shape and along the axes of the operand."""
    return element_times(stop_gradient(x), 0, name=name)


def ones_like(x: Any, name: str = "") -> Function:
    """1 in the shape and along the axes of the operand."""
    return plus(zeros_like(x), 1, name=name)


def eval(op: Any, arguments: Any = None) -> Any:
    """Run a function: see `Function.eval`."""
    return op.eval(arguments)


# ---- helpers ------------------------------------------------------------------------------------------


def _made(op: str, operands: Sequence[Any], attributes: Mapping[str, Any] | None, name: str) -> Function:
    return Function.of([apply(op, nodes_of(*operands), attributes, name)])


def _kind(x: Any) -> Any:
    return x.dtype if hasattr(x, "node") else np.float32


def _axis_number(axis: Any) -> int:
    if isinstance(axis, Axis):
        return axis.static_axis_index()
    if isinstance(axis, numbers.Integral):
        return int(axis)
    raise TypeError(f"expected a static axis, got {axis!r}")


def _axis_numbers(axes: Any) -> list[int]:
    return [_axis_number(a) for a in (axes if isinstance(axes, (list, tuple)) else [axes])]


def _one_axis(axis: Any, otherwise: int | None = -1) -> int | None:
    return otherwise if axis is None else _axis_number(axis)


def _leading(axis: Any) -> bool:
    return isinstance(axis, Axis) and axis == Axis.new_leading_axis()


def _known_rank(operands: Sequence[Any]) -> tuple[int, ...]:
    return max((n.shape for n in nodes_of(*operands)), key=len)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _spatial(value: Any, rank: int) -> tuple[Any, ...]:
    """One for each spatial axis: one for all, one each, or one more in front, that of channels."""
    items = _as_list(value)
    if len(items) == 1:
        return tuple(items * rank)
    if len(items) not in (rank, rank + 1):
        raise ValueError(f"expected 1, {rank} or {rank + 1} items, got {items}")
    return tuple(items[len(items) - rank :])


def __getattr__(name: str) -> Any:
    raise explain("cntk.ops", name)
