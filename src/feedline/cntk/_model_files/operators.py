"""Primitive operations of CNTK's files as nodes of a graph.

Files list axes from the last to the first, and operands of products from right to left. The functions in `_TABLE`
reverse both. They take a `Primitive` and return a node for each output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from feedline.cntk._model_files.file_values import ALL, ALL_STATIC, DATA_TYPES, DYNAMIC, END, FileAxis, Shape
from feedline.cntk._model_files.op_codes import ABSENT
from feedline.cntk._nodes import constant_node
from feedline.errors import CompatError
from feedline.networks import Node, apply

BATCH_AXIS = "defaultBatchAxis"


@dataclass(frozen=True, slots=True)
class PackedIndex:
    """The steps that a condition selects. In files, this is an operation apart from the selection itself.

    Attributes:
        condition: node of the condition.
        single: whether the file declares one step for each sequence.
    """

    condition: Node
    single: bool = False


@dataclass(frozen=True, slots=True)
class Primitive:
    """An operation of a file.

    Attributes:
        kind: CNTK's name of the operation.
        uid: identifier in the file.
        name: name given by the user.
        inputs: operands, in the file's order.
        attributes: settings by CNTK's names.
    """

    kind: str
    uid: str
    name: str
    inputs: tuple[Any, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Kind, name and identifier, for messages."""
        return f"{self.kind} `{self.name or self.uid}`" + (f" ({self.uid})" if self.name else "")

    def node(self, op: str, inputs: Sequence[Node] | None = None, **attributes: Any) -> Node:
        """Apply an operation under the name of this one, to its operands if no others are given."""
        return apply(op, self.inputs if inputs is None else inputs, attributes, self.name)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a setting.

        Raises:
            KeyError: the file lacks it, and there is no default.
        """
        if default is None:
            return self.attributes[key]
        return self.attributes.get(key, default)

    def refuse(self, problem: str, remedy: str) -> CompatError:
        """Return an error that names the operation."""
        return CompatError(f"{self.label}: {problem}; {remedy}")


Result = Node | PackedIndex


def make(call: Primitive) -> list[Result]:
    """Return a node for each output of an operation.

    Raises:
        CompatError: feedline does not have the operation, or not with these settings.
        KeyError: a setting is missing.
        ValueError: shapes or axes that do not fit.
    """
    if call.kind not in _TABLE:
        remedy = ABSENT.get(call.kind, "build this part in Python, and take the parameters from the file by restore")
        raise call.refuse("expected an operation that feedline supports, got another one", remedy)
    result = _TABLE[call.kind](call)
    return result if isinstance(result, list) else [result]


# ---- axes ---------------------------------------------------------------------------------------------


def python_axis(axis: FileAxis) -> int:
    """Return the number that a script would pass: -1 is the last axis of a sample, 0 the first.

    Raises:
        ValueError: not one static axis.
    """
    if axis.index >= ALL:
        raise ValueError(f"expected a static axis, got {axis}")
    return -axis.index - 1


def _axes(call: Primitive) -> list[FileAxis]:
    return [call.attributes["axis"]] if "axis" in call.attributes else list(call.attributes["axisVec"])


def _is_batch(axis: FileAxis) -> bool:
    return axis.index == DYNAMIC and axis.name == BATCH_AXIS


def _rank(call: Primitive, i: int = 0) -> int:
    return len(call.inputs[i].shape)


# ---- operations on elements ---------------------------------------------------------------------------


def _same(op: str, *order: int) -> Callable[[Primitive], Result]:
    """Return the maker of an operation without settings; ``order``: of its operands, by default the file's."""

    def maker(call: Primitive) -> Result:
        return call.node(op, [call.inputs[i] for i in order] if order else None)

    return maker


def _elu(call: Primitive) -> Result:
    return call.node("elu", alpha=float(call.get("alpha", 1.0)))


def _softmax(op: str) -> Callable[[Primitive], Result]:
    def maker(call: Primitive) -> Result:
        axis = call.attributes.get("axis")
        return call.node(op, axis=None if axis is None or axis.index == ALL_STATIC else python_axis(axis))

    return maker


def _cast(call: Primitive) -> Result:
    return call.node("cast", dtype=DATA_TYPES[int(call.get("newDataType"))])


def _fill(call: Primitive) -> Result:
    """Return a constant in the shape and along the axes of the operand."""
    zeros = apply("element_times", [apply("stop_gradient", call.inputs), constant_node(0.0)])
    return call.node("plus", [zeros, constant_node(float(call.get("fillValue")))])


def _draw(call: Primitive) -> Result:
    how = call.get("randomDistributionType")
    if how not in ("uniform", "normal", "gumbel", "bernoulli"):
        raise call.refuse(f"expected a known distribution, got {how!r}", "build this part in Python")
    like = call.inputs
    if not like:
        kind = DATA_TYPES[int(call.get("newDataType"))]
        like = (constant_node(np.zeros(call.get("newShape"), kind)),)
    arguments = tuple(float(a) for a in call.get("randomDistributionArgs"))
    return call.node(f"random_{how}", like, arguments=arguments, **_seed(call))


def _sample(op: str) -> Callable[[Primitive], Result]:
    return lambda call: call.node(
        op,
        many=int(call.get("numSamples")),
        replacement=bool(call.attributes["allowDuplicates"]),
        **_seed(call),
    )


def _seed(call: Primitive) -> dict[str, Any]:
    # CNTK draws from the seed in the file, even if the script set none.
    return {"seed": int(call.attributes["rngSeed"]), "fixed": True} if "rngSeed" in call.attributes else {}


# ---- shapes -------------------------------------------------------------------------------------------


def _transpose(call: Primitive) -> Result:
    rank = _rank(call)
    if "axisVec" in call.attributes:
        # Files number axes from the last: reverse both the axes and their order.
        order = [axis.index % rank for axis in call.attributes["axisVec"]]
        perm = [rank - 1 - i for i in reversed(order)]
    else:
        perm = list(range(rank))
        first, second = (python_axis(call.attributes[key]) % rank for key in ("axis1", "axis2"))
        perm[first], perm[second] = perm[second], perm[first]
    return call.node("transpose", perm=tuple(perm))


def _slice(call: Primitive) -> Result:
    if "axis" in call.attributes:
        parts = [[call.attributes[key]] for key in ("axis", "beginIndex", "endIndex")]
        strides = [call.get("sliceStrides", 1)]
    else:
        parts = [list(call.attributes[key]) for key in ("axisVec", "beginIndexVec", "endIndexVec")]
        strides = list(call.get("sliceStridesVec", [1] * len(parts[0])))
    axes, begins, ends = parts
    return call.node(
        "slice",
        axis=tuple(python_axis(axis) for axis in axes),
        begin=tuple(map(int, begins)),
        end=tuple(map(int, ends)),
        strides=tuple(map(int, strides)),
    )


def _reshape(call: Primitive) -> Result:
    shape, begin, end = Shape(call.get("newShape")), None, None
    first = call.attributes.get("beginAxis", FileAxis(0)).index
    last = call.attributes.get("endAxis", FileAxis(END)).index
    if (first, last) != (0, END):
        rank = _rank(call)
        first, last = (rank if i == END else i + rank if i < 0 else i for i in (first, last))
        # The file counts from the last axis, so its end is the begin in feedline.
        begin, end = rank - last, rank - first
    return call.node("reshape", shape=tuple(shape), begin=begin, end=end)


def _squeeze(call: Primitive) -> Result:
    shape = call.inputs[0].shape
    if "axisVec" in call.attributes:
        removed = {python_axis(axis) % len(shape) for axis in call.attributes["axisVec"]}
    else:
        removed = {i for i, n in enumerate(shape) if n == 1}
    remaining = tuple(n for i, n in enumerate(shape) if i not in removed)
    return call.node("reshape", shape=remaining, begin=None, end=None)


def _splice(call: Primitive) -> Result:
    axis = call.get("axis")
    if axis.index == END:
        return call.node("splice", axis=-max(_rank(call, i) for i in range(len(call.inputs))) - 1)
    return call.node("splice", axis=python_axis(axis))


def _pad(call: Primitive) -> Result:
    pattern = zip(reversed(call.get("paddingHead")), reversed(call.get("paddingFoot")), strict=True)
    mode = ("constant", "reflect", "symmetric")[int(call.attributes["paddingMode"])]
    value = float(call.attributes.get("paddingConstantValue", 0.0))
    return call.node("pad", pattern=tuple((int(a), int(b)) for a, b in pattern), mode=mode, value=value)


def _one_hot(call: Primitive) -> Result:
    return call.node(
        "one_hot",
        classes=int(call.get("numClass")),
        axis=python_axis(call.attributes.get("onehotAxis", FileAxis(0))),
        sparse=bool(call.attributes.get("oneHotOutputSparse", False)),
    )


def _gather(call: Primitive) -> Result:
    axis = call.attributes.get("axis")
    number = None if axis is None else python_axis(axis)
    return call.node("gather", axis=None if number == 0 else number)


def _crop(call: Primitive) -> Result:
    if "offset" not in call.attributes:
        raise call.refuse("expected a crop with offsets, got an automatic one", "use crop_manual")
    across, down = (int(n) for n in call.attributes["offset"])
    return call.node("crop", offset_y=down, offset_x=across)


def _top_k(call: Primitive) -> list[Result]:
    axis, k = python_axis(call.attributes.get("axis", FileAxis(0))), int(call.get("numItems"))
    return [call.node("top_k", k=k, axis=axis, indices=part) for part in (False, True)]


def _eye(call: Primitive) -> Result:
    node = call.inputs[0]
    if len(node.axes) == 1 and len(node.shape) == 1:
        return call.node("eye_rows", sparse=bool(call.attributes.get("OutputSparse", False)))
    zeros = apply("element_times", [apply("stop_gradient", [node]), constant_node(0.0)])
    return call.node("plus", [zeros, constant_node(np.eye(*node.shape, dtype=np.float32))])


# ---- products, images ---------------------------------------------------------------------------------


def _times(call: Primitive) -> Result:
    if int(call.attributes.get("inferInputRankToMap", -1)) == -2:
        raise call.refuse(
            "expected a product of samples, got one over sequences", "use sequence.reduce_sum of products"
        )
    right, left = call.inputs
    return call.node("times", [left, right], output_rank=int(call.get("outputRank", 1)), map_rank=None)


def _transpose_times(call: Primitive) -> Result:
    right, left = call.inputs
    if int(call.attributes.get("outputRank", 1)) != 1:
        raise call.refuse("expected outputRank=1, got more", "transpose the right operand, and use times")
    return call.node("times_transpose", [left, right])


def _spatial(value: Any, rank: int, call: Primitive) -> tuple[Any, ...]:
    """Return a value for each spatial axis, from a value for all, for each, or for each and for channels.

    A `Shape` is row-major already, channels first. A list is in the file's order, channels last.
    """
    items = list(value) if isinstance(value, Shape) else list(reversed(value))
    if len(items) == 1:
        return tuple(items * rank)
    if len(items) not in (rank, rank + 1):
        raise ValueError(f"{call.label}: expected settings for {rank} axes, got {items}")
    return tuple(items[len(items) - rank :])


def _window(call: Primitive, rank: int) -> dict[str, Any]:
    padded = [*call.attributes.get("lowerPad", ()), *call.attributes.get("upperPad", ())]
    if any(padded):
        raise call.refuse(f"expected automatic padding or none, got {padded}", "pad the operand first")
    return {
        "strides": _spatial(call.get("strides"), rank, call),
        "pad": tuple(map(bool, _spatial(call.get("autoPadding"), rank, call))),
    }


def _convolution(call: Primitive) -> Result:
    kernel, data = call.inputs
    if call.attributes.get("sequential", False) or not all(call.attributes.get("sharing", [True])):
        raise call.refuse(
            "expected a shared kernel over static axes, got another one",
            "splice delayed sequences instead",
        )
    dilation = call.attributes.get("dilation", Shape((1,)))
    if not call.attributes.get("transpose", False):
        rank = len(data.shape) - 1
        settings = {**_window(call, rank), "dilation": _spatial(dilation, rank, call)}
        return call.node("convolution", **settings, groups=int(call.attributes.get("groups", 1)))
    rank = len(kernel.shape) - 2
    if set(dilation) != {1}:
        raise call.refuse(
            "expected a transposed convolution without dilation, got a dilation",
            "build this part in torch",
        )
    output_shape = tuple(call.attributes.get("outputShape", ()))
    shape = output_shape[len(output_shape) - rank :] if any(output_shape) else None
    return call.node("convolution_transpose", **_window(call, rank), shape=shape)


def _pooling(call: Primitive) -> Result:
    rank = _rank(call)
    window, maximum = tuple(call.get("poolingWindowShape")), int(call.attributes["poolingType"]) == 0
    if window == (-2,):
        return call.node("global_max_pooling" if maximum else "global_average_pooling")
    settings = {"window": window, **_window(call, len(window))}
    settings = _trim(settings, rank)
    if call.attributes.get("ceilOutDim", False):
        settings["ceil"] = True
    if call.attributes.get("includePad", False) and not maximum:
        settings["count_pad"] = True
    return call.node("max_pooling" if maximum else "average_pooling", **settings)


def _unpooling(call: Primitive) -> Result:
    if int(call.attributes["poolingType"]) != 0:
        raise call.refuse("expected max unpooling, got another kind", "CNTK 2.7 has no other")
    window = tuple(call.get("unpoolingWindowShape"))
    return call.node("max_unpooling", **_trim({"window": window, **_window(call, len(window))}, _rank(call)))


def _regions(call: Primitive) -> Result:
    if int(call.attributes["poolingType"]) != 0:
        raise call.refuse("expected max pooling of regions, got another kind", "CNTK 2.7 has no other")
    size, scale = tuple(call.get("roiOutputShape")), float(call.attributes["spatialScale"])
    return call.node("roi_pooling", size=size, scale=scale)


def _alignments(call: Primitive) -> Result:
    delay = int(call.attributes.get("delayConstraint", -1))
    if delay in (2**64 - 1, 2**32 - 1):  # -1, as a number without a sign
        delay = -1
    return call.node("forward_backward", blank=int(call.get("blankTokenId")), delay=delay)


def _trim(settings: dict[str, Any], rank: int) -> dict[str, Any]:
    """Leave out leading axes, such as channels, along which a window is a single cell."""
    window, strides = settings["window"], settings["strides"]
    leading = next((i for i, pair in enumerate(zip(window, strides, strict=True)) if pair != (1, 1)), len(window) - 1)
    begin = max(leading, len(window) - rank)
    return {key: value[begin:] for key, value in settings.items()}


def _batch_normalization(call: Primitive) -> Result:
    inputs = list(call.inputs)
    if len(inputs) == 5:  # before version 4 of operations samples were not counted
        inputs.append(constant_node(0.0))
    return call.node(
        "batch_normalization",
        inputs,
        spatial=bool(call.attributes["spatial"]),
        normalization_time_constant=float(call.attributes["normalizationTimeConstant"]),
        blend_time_constant=float(call.attributes.get("blendTimeConstant", 0.0)),
        epsilon=float(call.get("epsilon")),
    )


# ---- reductions ---------------------------------------------------------------------------------------

_REDUCTIONS = {
    "Sum": "sum",
    "LogSum": "log_sum_exp",
    "Mean": "mean",
    "Max": "max",
    "Min": "min",
    "Prod": "prod",
}


def _reduce(call: Primitive) -> Result:
    axes, kind = _axes(call), call.get("reductionOpName")
    keep = bool(call.attributes.get("reductionKeepDimensions", True))
    all_axes = [axis for axis in axes if axis.index in (ALL, ALL_STATIC)]
    if kind in ("Argmax", "Argmin"):
        op = kind.lower()
        if all_axes:
            return call.node(op, axis=None)
        return _squeeze_axes(call, call.node(op, axis=python_axis(axes[0])), [python_axis(axes[0])], keep)
    if kind not in _REDUCTIONS:
        raise call.refuse(f"expected a reduction of {', '.join(_REDUCTIONS)}, got {kind}", "build it in Python")
    how = _REDUCTIONS[kind]
    if any(axis.index == ALL for axis in all_axes):
        return call.node("reduce_everything", how=how)
    if all_axes:
        return call.node(f"reduce_{how}", axis=None)
    if any(_is_batch(axis) for axis in axes):
        static = tuple(python_axis(axis) for axis in axes if not _is_batch(axis))
        return call.node("reduce_batch", how=how, axis=static) if static else call.node("reduce_batch", how=how)
    if any(axis.index == DYNAMIC for axis in axes):
        if how not in ("sum", "max", "mean") or len(axes) > 1:
            raise call.refuse(f"expected a sum over sequences, got {kind}", "build it in Python")
        return call.node(f"sequence_reduce_{how}")
    numbers = tuple(python_axis(axis) for axis in axes)
    settings: dict[str, Any] = {} if keep else {"keepdims": False}
    return call.node(f"reduce_{how}", axis=numbers, **settings)


def _squeeze_axes(call: Primitive, node: Node, axes: list[int], keep: bool) -> Node:
    if keep:
        return node
    shape = node.shape
    removed = {axis % len(shape) for axis in axes}
    remaining = tuple(n for i, n in enumerate(shape) if i not in removed)
    return apply("reshape", [node], {"shape": remaining, "begin": None, "end": None}, call.name)


def _sum_all(call: Primitive) -> Result:
    return call.node("reduce_everything", how="sum")


# ---- criteria -----------------------------------------------------------------------------------------


def _over_everything(op: str, **attributes: Any) -> Callable[[Primitive], Result]:
    """Return the maker of a criterion that CNTK's first versions summed over the minibatch."""

    def maker(call: Primitive) -> Result:
        losses = apply(op, call.inputs[:2], attributes)
        return call.node("reduce_everything", [losses], how="sum")

    return maker


def _classification_error(call: Primitive) -> Result:
    if len(call.inputs) == 2:
        return _over_everything("classification_error", axis=-1, top=1)(call)
    top = int(_number(call, 2))
    if top == 1:
        return _over_everything("classification_error", axis=-1, top=1)(call)
    return call.node("classification_error", call.inputs[:2], axis=-1, top=top)


def _logistic(call: Primitive) -> Result:
    if len(call.inputs) == 3:
        return call.node("weighted_binary_cross_entropy")
    return _over_everything("binary_cross_entropy")(call)


def _cosines(call: Primitive) -> Result:
    shift, count = (int(_number(call, i)) for i in (2, 3))
    return call.node("cosine_distance_with_negative_samples", call.inputs[:2], shift=shift, others=count)


def _edits(call: Primitive) -> Result:
    get = call.attributes
    return call.node(
        "edit_distance_error",
        substitution=float(get["SubstitutionPenalty"]),
        deletion=float(get["DeletionPenalty"]),
        insertion=float(get["InsertionPenalty"]),
        squash=bool(get["SquashInputs"]),
        ignored=tuple(int(n) for n in get["TokensToIgnore"]),
    )


def _number(call: Primitive, i: int) -> float:
    """Return the value of an operand that is a constant number."""
    weights = call.inputs[i].weights
    if weights is None or weights.trains:
        raise call.refuse(
            f"expected operand {i} to be a constant number, got another operand",
            "build this part in Python",
        )
    return float(np.asarray(weights.fill(weights.shape)).reshape(()))


# ---- sequences ----------------------------------------------------------------------------------------


def _delay(sign: int) -> Callable[[Primitive], Result]:
    return lambda call: call.node("delay", steps=sign * int(call.attributes.get("offset", 1)))


def _where(call: Primitive) -> Result:
    factors = (call.attributes.get(f"newSequenceAxisLength{key}Factor") for key in ("Scaling", "Additive"))
    return PackedIndex(call.inputs[0], single=tuple(factors) == (0, 1))


def _packed_index(call: Primitive) -> Result:
    selection = call.inputs[1]
    if not isinstance(selection, PackedIndex):
        raise call.refuse(f"expected steps that `where` selects, got {selection.label}", "use sequence.gather")
    return selection


def _gather_packed(call: Primitive) -> Result:
    data, selection = call.inputs
    if not isinstance(selection, PackedIndex):
        raise call.refuse(f"expected steps that `where` selects, got {selection.label}", "use sequence.gather")
    lengths = {"lengths": (0, 1)} if selection.single else {}
    return call.node("sequence_gather", [data, selection.condition], **lengths)


def _scatter_packed(call: Primitive) -> Result:
    data, selection, condition = call.inputs
    if not isinstance(selection, PackedIndex) or selection.condition is not condition:
        raise call.refuse("expected steps that the same condition selects, got others", "use sequence.scatter")
    return call.node("sequence_scatter", [data, condition])


def _unpack(call: Primitive) -> list[Result]:
    steps = call.node("sequence_unpacked", padding=float(call.attributes["sequenceUnpackPaddingValue"]))
    if call.attributes["sequenceUnpackSuppressMaskOutput"]:
        return [steps]
    return [steps, call.node("sequence_mask")]


def plain(result: Result, name: str = "") -> Node:
    """Return a node, for selected steps their numbers, as `sequence.where` returns them."""
    return result if isinstance(result, Node) else apply("sequence_where", [result.condition], label=name)


SIMPLE = {
    "Negate": "negate",
    "Sigmoid": "sigmoid",
    "StableSigmoid": "sigmoid",
    "Tanh": "tanh",
    "ReLU": "relu",
    "Exp": "exp",
    "Log": "log",
    "Sqrt": "sqrt",
    "Floor": "floor",
    "Abs": "abs",
    "Reciprocal": "reciprocal",
    "Sin": "sin",
    "Cos": "cos",
    "Tan": "tan",
    "Asin": "asin",
    "Acos": "acos",
    "Atan": "atan",
    "Sinh": "sinh",
    "Cosh": "cosh",
    "Asinh": "asinh",
    "Atanh": "atanh",
    "Plus": "plus",
    "Minus": "minus",
    "ElementTimes": "element_times",
    "Pow": "pow",
    "LogPlus": "log_add_exp",
    "Equal": "equal",
    "NotEqual": "not_equal",
    "Less": "less",
    "LessEqual": "less_equal",
    "Greater": "greater",
    "GreaterEqual": "greater_equal",
    "Select": "element_select",
    "Clip": "clip",
    "StopGradient": "stop_gradient",
    "NoOp": "alias",
    "Pass": "alias",
    "ToBatch": "to_batch",
    "UnpackBatch": "unpack_batch",
    "CosDistance": "cosine_distance",
    "LambdaRank": "lambda_rank",
    "StraightThrough": "straight_through",
    "NDCG": "ndcg_at_1",
    "Assign": "assign",
    "ReconcileDynamicAxis": "sequence_broadcast_as",
}

_TABLE: dict[str, Callable[[Primitive], Any]] = {
    **{kind: _same(op) for kind, op in SIMPLE.items()},
    "Hardmax": lambda call: call.node("hardmax", axis=None),
    "ELU": _elu,
    "Softmax": _softmax("softmax"),
    "LogSoftmax": _softmax("log_softmax"),
    "Dropout": lambda call: call.node("dropout", rate=float(call.attributes["dropoutRate"]), **_seed(call)),
    "Cast": _cast,
    "ConstantOp": _fill,
    "EyeLikeOp": _eye,
    "RandomDistribution": _draw,
    "RandomSample": _sample("random_sample"),
    "RandomSampleInclusionFrequency": _sample("random_sample_inclusion_frequency"),
    "TransposeAxes": _transpose,
    "Slice": _slice,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Splice": _splice,
    "Pad": _pad,
    "OneHot": _one_hot,
    "Gather": _gather,
    "Crop": _crop,
    "ROIPooling": _regions,
    "LabelsToGraph": _same("alias"),
    "ForwardBackward": _alignments,
    "TopK": _top_k,
    "Times": _times,
    "TransposeTimes": _transpose_times,
    "Convolution": _convolution,
    "Pooling": _pooling,
    "Unpooling": _unpooling,
    "BatchNormalization": _batch_normalization,
    "ReduceElements": _reduce,
    "SumAll": _sum_all,
    "SquaredError": _over_everything("squared_error"),
    "CrossEntropyWithSoftmax": _over_everything("cross_entropy_with_softmax", axis=-1),
    "ClassificationError": _classification_error,
    "Logistic": _logistic,
    "CosDistanceWithNegativeSamples": _cosines,
    "EditDistanceError": _edits,
    "PastValue": _delay(1),
    "FutureValue": _delay(-1),
    "Where": _where,
    "PackedIndex": _packed_index,
    "GatherPacked": _gather_packed,
    "ScatterPacked": _scatter_packed,
    "UnpackSequence": _unpack,
}
