"""Primitive operations of CNTK's files as nodes of a graph.

Files list axes from the last to the first, and operands of products from right to left; `_TABLE` has, for each
operation, what turns both round. Its functions get a `Primitive` and return a node for each output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from feedline.cntk._model_files.dictionaries import ALL, ALL_STATIC, DATA_TYPES, DYNAMIC, END, FileAxis, Shape
from feedline.cntk._model_files.op_codes import ABSENT
from feedline.cntk._nodes import constant_node
from feedline.errors import CompatError
from feedline.networks import Node, apply

BATCH_AXIS = "defaultBatchAxis"


@dataclass(frozen=True, slots=True)
class PackedIndex:
    """The steps that a condition selects, which files keep apart from selecting them.

    Attributes:
        condition: node of the condition.
        single: whether the file says that there is one for each sequence.
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
        """Apply an operation under the name of this one; to its own operands, if no others are given."""
        return apply(op, self.inputs if inputs is None else inputs, attributes, self.name)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a setting.

        Raises:
            KeyError: the file lacks it, and there is no default.
        """
        if default is None:
            return self.attributes[key]
        return self.attributes.get(key, default)

    def refuse(self, what: str, instead: str) -> CompatError:
        """Return an error that names the operation."""
        return CompatError(f"{self.label}: {what}; {instead}")


Made = Node | PackedIndex


def make(given: Primitive) -> list[Made]:
    """Return a node for each output of an operation.

    Raises:
        CompatError: nothing here computes it, or not with these settings.
        KeyError: it lacks a setting.
        ValueError: shapes or axes that do not fit.
    """
    if given.kind not in _TABLE:
        instead = ABSENT.get(given.kind, "build this part in Python, and take the parameters from the file by restore")
        raise given.refuse("expected an operation that feedline has, got another one", instead)
    made = _TABLE[given.kind](given)
    return made if isinstance(made, list) else [made]


# ---- axes ---------------------------------------------------------------------------------------------


def python_axis(axis: FileAxis) -> int:
    """Return the number that a script would pass: -1 is the last axis of a sample, 0 the first.

    Raises:
        ValueError: not one static axis.
    """
    if axis.index >= ALL:
        raise ValueError(f"expected a static axis, got {axis}")
    return -axis.index - 1


def _axes(given: Primitive) -> list[FileAxis]:
    return [given.attributes["axis"]] if "axis" in given.attributes else list(given.attributes["axisVec"])


def _is_batch(axis: FileAxis) -> bool:
    return axis.index == DYNAMIC and axis.name == BATCH_AXIS


def _rank(given: Primitive, i: int = 0) -> int:
    return len(given.inputs[i].shape)


# ---- operations on elements ---------------------------------------------------------------------------


def _same(op: str, *order: int) -> Callable[[Primitive], Made]:
    """Return the maker of an operation without settings; ``order`` is that of its operands, if not the file's."""

    def maker(given: Primitive) -> Made:
        return given.node(op, [given.inputs[i] for i in order] if order else None)

    return maker


def _elu(given: Primitive) -> Made:
    return given.node("elu", alpha=float(given.get("alpha", 1.0)))


def _softmax(op: str) -> Callable[[Primitive], Made]:
    def maker(given: Primitive) -> Made:
        axis = given.attributes.get("axis")
        return given.node(op, axis=None if axis is None or axis.index == ALL_STATIC else python_axis(axis))

    return maker


def _cast(given: Primitive) -> Made:
    return given.node("cast", dtype=DATA_TYPES[int(given.get("newDataType"))])


def _filled(given: Primitive) -> Made:
    """A constant in the shape and along the axes of the operand."""
    zeros = apply("element_times", [apply("stop_gradient", given.inputs), constant_node(0.0)])
    return given.node("plus", [zeros, constant_node(float(given.get("fillValue")))])


def _drawn(given: Primitive) -> Made:
    how = given.get("randomDistributionType")
    if how not in ("uniform", "normal", "gumbel", "bernoulli"):
        raise given.refuse(f"expected a known distribution, got {how!r}", "build this part in Python")
    like = given.inputs
    if not like:
        kind = DATA_TYPES[int(given.get("newDataType"))]
        like = (constant_node(np.zeros(given.get("newShape"), kind)),)
    return given.node(f"random_{how}", like, arguments=tuple(float(a) for a in given.get("randomDistributionArgs")))


def _sampled(op: str) -> Callable[[Primitive], Made]:
    return lambda given: given.node(
        op, many=int(given.get("numSamples")), replacement=bool(given.attributes["allowDuplicates"])
    )


# ---- shapes -------------------------------------------------------------------------------------------


def _transpose(given: Primitive) -> Made:
    rank = _rank(given)
    if "axisVec" in given.attributes:
        # Reversing both the axes and their order turns a permutation of the one into that of the other.
        order = [axis.index % rank for axis in given.attributes["axisVec"]]
        perm = [rank - 1 - i for i in reversed(order)]
    else:
        perm = list(range(rank))
        first, second = (python_axis(given.attributes[key]) % rank for key in ("axis1", "axis2"))
        perm[first], perm[second] = perm[second], perm[first]
    return given.node("transpose", perm=tuple(perm))


def _slice(given: Primitive) -> Made:
    if "axis" in given.attributes:
        parts = [[given.attributes[key]] for key in ("axis", "beginIndex", "endIndex")]
        strides = [given.get("sliceStrides", 1)]
    else:
        parts = [list(given.attributes[key]) for key in ("axisVec", "beginIndexVec", "endIndexVec")]
        strides = list(given.get("sliceStridesVec", [1] * len(parts[0])))
    axes, begins, ends = parts
    return given.node(
        "slice",
        axis=tuple(python_axis(axis) for axis in axes),
        begin=tuple(map(int, begins)),
        end=tuple(map(int, ends)),
        strides=tuple(map(int, strides)),
    )


def _reshape(given: Primitive) -> Made:
    shape, begin, end = Shape(given.get("newShape")), None, None
    first = given.attributes.get("beginAxis", FileAxis(0)).index
    last = given.attributes.get("endAxis", FileAxis(END)).index
    if (first, last) != (0, END):
        rank = _rank(given)
        first, last = (rank if i == END else i + rank if i < 0 else i for i in (first, last))
        # The file counts from the last axis: what ends there begins here.
        begin, end = rank - last, rank - first
    return given.node("reshape", shape=tuple(shape), begin=begin, end=end)


def _squeeze(given: Primitive) -> Made:
    shape = given.inputs[0].shape
    if "axisVec" in given.attributes:
        gone = {python_axis(axis) % len(shape) for axis in given.attributes["axisVec"]}
    else:
        gone = {i for i, n in enumerate(shape) if n == 1}
    kept = tuple(n for i, n in enumerate(shape) if i not in gone)
    return given.node("reshape", shape=kept, begin=None, end=None)


def _splice(given: Primitive) -> Made:
    axis = given.get("axis")
    if axis.index == END:
        return given.node("splice", axis=-max(_rank(given, i) for i in range(len(given.inputs))) - 1)
    return given.node("splice", axis=python_axis(axis))


def _pad(given: Primitive) -> Made:
    pattern = zip(reversed(given.get("paddingHead")), reversed(given.get("paddingFoot")), strict=True)
    mode = ("constant", "reflect", "symmetric")[int(given.attributes["paddingMode"])]
    value = float(given.attributes.get("paddingConstantValue", 0.0))
    return given.node("pad", pattern=tuple((int(a), int(b)) for a, b in pattern), mode=mode, value=value)


def _one_hot(given: Primitive) -> Made:
    return given.node(
        "one_hot",
        classes=int(given.get("numClass")),
        axis=python_axis(given.attributes.get("onehotAxis", FileAxis(0))),
        sparse=bool(given.attributes.get("oneHotOutputSparse", False)),
    )


def _gather(given: Primitive) -> Made:
    axis = given.attributes.get("axis")
    number = None if axis is None else python_axis(axis)
    return given.node("gather", axis=None if number == 0 else number)


def _crop(given: Primitive) -> Made:
    if "offset" not in given.attributes:
        raise given.refuse("expected a crop with offsets, got an automatic one", "use crop_manual")
    across, down = (int(n) for n in given.attributes["offset"])
    return given.node("crop", offset_y=down, offset_x=across)


def _top_k(given: Primitive) -> list[Made]:
    axis, k = python_axis(given.attributes.get("axis", FileAxis(0))), int(given.get("numItems"))
    return [given.node("top_k", k=k, axis=axis, indices=part) for part in (False, True)]


def _eye(given: Primitive) -> Made:
    node = given.inputs[0]
    if len(node.axes) == 1 and len(node.shape) == 1:
        return given.node("eye_rows", sparse=bool(given.attributes.get("OutputSparse", False)))
    zeros = apply("element_times", [apply("stop_gradient", [node]), constant_node(0.0)])
    return given.node("plus", [zeros, constant_node(np.eye(*node.shape, dtype=np.float32))])


# ---- products, images ---------------------------------------------------------------------------------


def _times(given: Primitive) -> Made:
    if int(given.attributes.get("inferInputRankToMap", -1)) == -2:
        raise given.refuse(
            "expected a product of samples, got one over sequences", "use sequence.reduce_sum of products"
        )
    right, left = given.inputs
    return given.node("times", [left, right], output_rank=int(given.get("outputRank", 1)), map_rank=None)


def _transpose_times(given: Primitive) -> Made:
    right, left = given.inputs
    if int(given.attributes.get("outputRank", 1)) != 1:
        raise given.refuse("expected a product with one axis of the right operand", "transpose it, and use times")
    return given.node("times_transpose", [left, right])


def _spatial(value: Any, rank: int, given: Primitive) -> tuple[Any, ...]:
    """Return one value for each spatial axis, from one for all, one for each, or one for each and for channels.

    A `Shape` is row-major already, channels first; a list is the file's, channels last.
    """
    items = list(value) if isinstance(value, Shape) else list(reversed(value))
    if len(items) == 1:
        return tuple(items * rank)
    if len(items) not in (rank, rank + 1):
        raise ValueError(f"{given.label}: expected settings for {rank} axes, got {items}")
    return tuple(items[len(items) - rank :])


def _window(given: Primitive, rank: int) -> dict[str, Any]:
    padded = [*given.attributes.get("lowerPad", ()), *given.attributes.get("upperPad", ())]
    if any(padded):
        raise given.refuse(f"expected automatic padding or none, got {padded}", "pad the operand first")
    return {
        "strides": _spatial(given.get("strides"), rank, given),
        "pad": tuple(map(bool, _spatial(given.get("autoPadding"), rank, given))),
    }


def _convolution(given: Primitive) -> Made:
    kernel, data = given.inputs
    if given.attributes.get("sequential", False) or not all(given.attributes.get("sharing", [True])):
        raise given.refuse("expected a shared kernel over static axes", "splice delayed sequences instead")
    dilation = given.attributes.get("dilation", Shape((1,)))
    if not given.attributes.get("transpose", False):
        rank = len(data.shape) - 1
        settings = {**_window(given, rank), "dilation": _spatial(dilation, rank, given)}
        return given.node("convolution", **settings, groups=int(given.attributes.get("groups", 1)))
    rank = len(kernel.shape) - 2
    if set(dilation) != {1}:
        raise given.refuse("expected a transposed convolution without dilation", "build this part in torch")
    wanted = tuple(given.attributes.get("outputShape", ()))
    shape = wanted[len(wanted) - rank :] if any(wanted) else None
    return given.node("convolution_transpose", **_window(given, rank), shape=shape)


def _pooling(given: Primitive) -> Made:
    rank = _rank(given)
    window, maximum = tuple(given.get("poolingWindowShape")), int(given.attributes["poolingType"]) == 0
    if window == (-2,):
        return given.node("global_max_pooling" if maximum else "global_average_pooling")
    settings = {"window": window, **_window(given, len(window))}
    settings = _trimmed(settings, rank)
    if given.attributes.get("ceilOutDim", False):
        settings["ceil"] = True
    if given.attributes.get("includePad", False) and not maximum:
        settings["count_pad"] = True
    return given.node("max_pooling" if maximum else "average_pooling", **settings)


def _unpooling(given: Primitive) -> Made:
    if int(given.attributes["poolingType"]) != 0:
        raise given.refuse("expected the inverse of a maximum", "no other exists")
    window = tuple(given.get("unpoolingWindowShape"))
    return given.node("max_unpooling", **_trimmed({"window": window, **_window(given, len(window))}, _rank(given)))


def _regions(given: Primitive) -> Made:
    if int(given.attributes["poolingType"]) != 0:
        raise given.refuse("expected the maxima of regions", "no other pooling of them exists")
    size, scale = tuple(given.get("roiOutputShape")), float(given.attributes["spatialScale"])
    return given.node("roi_pooling", size=size, scale=scale)


def _alignments(given: Primitive) -> Made:
    # -1, as a number without a sign in a file.
    if int(given.attributes.get("delayConstraint", -1)) not in (-1, 2**64 - 1, 2**32 - 1):
        raise given.refuse("expected alignments that are not bound to steps", "pass delayConstraint=-1 in CNTK")
    return given.node("forward_backward", blank=int(given.get("blankTokenId")))


def _trimmed(settings: dict[str, Any], rank: int) -> dict[str, Any]:
    """Leave out leading axes, such as channels, along which a window is a single cell."""
    window, strides = settings["window"], settings["strides"]
    many = next((i for i, both in enumerate(zip(window, strides, strict=True)) if both != (1, 1)), len(window) - 1)
    begin = max(many, len(window) - rank)
    return {key: value[begin:] for key, value in settings.items()}


def _batch_normalization(given: Primitive) -> Made:
    inputs = list(given.inputs)
    if len(inputs) == 5:  # before version 4 of operations nothing was counted
        inputs.append(constant_node(0.0))
    return given.node(
        "batch_normalization",
        inputs,
        spatial=bool(given.attributes["spatial"]),
        normalization_time_constant=float(given.attributes["normalizationTimeConstant"]),
        blend_time_constant=float(given.attributes.get("blendTimeConstant", 0.0)),
        epsilon=float(given.get("epsilon")),
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


def _reduce(given: Primitive) -> Made:
    axes, kind = _axes(given), given.get("reductionOpName")
    keep = bool(given.attributes.get("reductionKeepDimensions", True))
    whole = [axis for axis in axes if axis.index in (ALL, ALL_STATIC)]
    if kind in ("Argmax", "Argmin"):
        op = kind.lower()
        if whole:
            return given.node(op, axis=None)
        return _squeezed(given, given.node(op, axis=python_axis(axes[0])), [python_axis(axes[0])], keep)
    if kind not in _REDUCTIONS:
        raise given.refuse(f"expected a reduction of {', '.join(_REDUCTIONS)}, got {kind}", "build it in Python")
    how = _REDUCTIONS[kind]
    if any(axis.index == ALL for axis in whole):
        return given.node("reduce_everything", how=how)
    if whole:
        return given.node(f"reduce_{how}", axis=None)
    if any(_is_batch(axis) for axis in axes):
        others = tuple(python_axis(axis) for axis in axes if not _is_batch(axis))
        return given.node("reduce_batch", how=how, axis=others) if others else given.node("reduce_batch", how=how)
    if any(axis.index == DYNAMIC for axis in axes):
        if how not in ("sum", "max", "mean") or len(axes) > 1:
            raise given.refuse(f"expected a sum over sequences, got {kind}", "build it in Python")
        return given.node(f"sequence_reduce_{how}")
    numbers = tuple(python_axis(axis) for axis in axes)
    more: dict[str, Any] = {} if keep else {"keepdims": False}
    return given.node(f"reduce_{how}", axis=numbers, **more)


def _squeezed(given: Primitive, node: Node, axes: list[int], keep: bool) -> Node:
    if keep:
        return node
    shape = node.shape
    gone = {axis % len(shape) for axis in axes}
    kept = tuple(n for i, n in enumerate(shape) if i not in gone)
    return apply("reshape", [node], {"shape": kept, "begin": None, "end": None}, given.name)


def _sum_all(given: Primitive) -> Made:
    return given.node("reduce_everything", how="sum")


# ---- criteria -----------------------------------------------------------------------------------------


def _over_everything(op: str, **attributes: Any) -> Callable[[Primitive], Made]:
    """Return the maker of a criterion that CNTK's first versions summed over the minibatch."""

    def maker(given: Primitive) -> Made:
        each = apply(op, given.inputs[:2], attributes)
        return given.node("reduce_everything", [each], how="sum")

    return maker


def _classification_error(given: Primitive) -> Made:
    if len(given.inputs) == 2:
        return _over_everything("classification_error", axis=-1, top=1)(given)
    top = int(_number(given, 2))
    if top == 1:
        return _over_everything("classification_error", axis=-1, top=1)(given)
    return given.node("classification_error", given.inputs[:2], axis=-1, top=top)


def _logistic(given: Primitive) -> Made:
    if len(given.inputs) == 3:
        return given.node("weighted_binary_cross_entropy")
    return _over_everything("binary_cross_entropy")(given)


def _cosines(given: Primitive) -> Made:
    shift, others = (int(_number(given, i)) for i in (2, 3))
    return given.node("cosine_distance_with_negative_samples", given.inputs[:2], shift=shift, others=others)


def _edits(given: Primitive) -> Made:
    get = given.attributes
    return given.node(
        "edit_distance_error",
        substitution=float(get["SubstitutionPenalty"]),
        deletion=float(get["DeletionPenalty"]),
        insertion=float(get["InsertionPenalty"]),
        squash=bool(get["SquashInputs"]),
        ignored=tuple(int(n) for n in get["TokensToIgnore"]),
    )


def _number(given: Primitive, i: int) -> float:
    """Return the value of an operand that is a constant number."""
    weights = given.inputs[i].weights
    if weights is None or weights.trains:
        raise given.refuse(f"expected operand {i} to be a constant number", "build this part in Python")
    return float(np.asarray(weights.fill(weights.shape)).reshape(()))


# ---- sequences ----------------------------------------------------------------------------------------


def _delay(sign: int) -> Callable[[Primitive], Made]:
    return lambda given: given.node("delay", steps=sign * int(given.attributes.get("offset", 1)))


def _where(given: Primitive) -> Made:
    factors = (given.attributes.get(f"newSequenceAxisLength{key}Factor") for key in ("Scaling", "Additive"))
    return PackedIndex(given.inputs[0], single=tuple(factors) == (0, 1))


def _packed_index(given: Primitive) -> Made:
    chosen = given.inputs[1]
    if not isinstance(chosen, PackedIndex):
        raise given.refuse("expected the steps that a condition selects", "use sequence.gather")
    return chosen


def _gather_packed(given: Primitive) -> Made:
    data, chosen = given.inputs
    if not isinstance(chosen, PackedIndex):
        raise given.refuse("expected the steps that a condition selects", "use sequence.gather")
    if not chosen.single:
        return given.node("sequence_gather", [data, chosen.condition])
    return given.node("sequence_first", [apply("sequence_gather", [data, chosen.condition])])


def _scatter_packed(given: Primitive) -> Made:
    data, chosen, condition = given.inputs
    if not isinstance(chosen, PackedIndex) or chosen.condition is not condition:
        raise given.refuse("expected the steps that the same condition selects", "use sequence.scatter")
    return given.node("sequence_scatter", [data, condition])


def _unpack(given: Primitive) -> list[Made]:
    steps = given.node("sequence_unpacked", padding=float(given.attributes["sequenceUnpackPaddingValue"]))
    if given.attributes["sequenceUnpackSuppressMaskOutput"]:
        return [steps]
    return [steps, given.node("sequence_mask")]


def plain(made: Made, name: str = "") -> Node:
    """Return a node; of selected steps their numbers, as `sequence.where` returns them."""
    return made if isinstance(made, Node) else apply("sequence_where", [made.condition], label=name)


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
    "Hardmax": lambda given: given.node("hardmax", axis=None),
    "ELU": _elu,
    "Softmax": _softmax("softmax"),
    "LogSoftmax": _softmax("log_softmax"),
    "Dropout": lambda given: given.node("dropout", rate=float(given.attributes["dropoutRate"])),
    "Cast": _cast,
    "ConstantOp": _filled,
    "EyeLikeOp": _eye,
    "RandomDistribution": _drawn,
    "RandomSample": _sampled("random_sample"),
    "RandomSampleInclusionFrequency": _sampled("random_sample_inclusion_frequency"),
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
