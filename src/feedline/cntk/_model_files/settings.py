"""Primitive operations of CNTK's files for the operations of a graph: kinds, operands in order, settings.

The counterpart of `operators`, whose docstring lists the differences of order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from feedline.cntk._model_files.compositions import file_axis
from feedline.cntk._model_files.file_values import (
    ALL,
    ALL_STATIC,
    DATA_TYPES,
    DYNAMIC,
    END,
    FileAxis,
    Shape,
    Signed,
    Single,
)
from feedline.cntk._model_files.operators import BATCH_AXIS, SIMPLE
from feedline.networks import Node
from feedline.networks.shapes import axes_of

Parts = tuple[str, Sequence[Any], dict[str, Any]]
"""Kind, operands (nodes, or numbers that become constants), settings."""

_BATCH = FileAxis(DYNAMIC, BATCH_AXIS, False)
_NUMBER = {name: number for number, name in DATA_TYPES.items()}
# Sigmoid and StableSigmoid, NoOp and Pass are one operation each.
_KINDS = {op: kind for kind, op in SIMPLE.items() if kind not in ("Sigmoid", "Pass")}
_REDUCTIONS = {"sum": "Sum", "log_sum_exp": "LogSum", "mean": "Mean", "max": "Max", "min": "Min", "prod": "Prod"}


def primitive(node: Node) -> Parts | None:
    """Return the primitive operation that computes a node, or None."""
    if node.op in _KINDS:
        return _KINDS[node.op], node.inputs, {}
    translate = _TABLE.get(node.op)
    if translate is not None:
        return translate(node)
    how = node.op.removeprefix("reduce_")
    if node.op.startswith("reduce_") and how in _REDUCTIONS:
        return _reduce(node, _REDUCTIONS[how])
    return None


def _rank(node: Node) -> int:
    return len(node.inputs[0].shape)


def _softmax(node: Node) -> Parts:
    axis = node.attributes.get("axis", -1)
    return "Softmax", node.inputs, {"axis": FileAxis(ALL_STATIC if axis is None or not _rank(node) else 0)}


def _hardmax(node: Node) -> Parts | None:
    over_all = node.attributes.get("axis") is None or _rank(node) <= 1
    return ("Hardmax", node.inputs, {}) if over_all else None


def _seeds(node: Node) -> dict[str, int]:
    return {"rngSeed": int(node.attributes.get("seed", 0)), "rngOffset": 0}


def _draw(how: str) -> Callable[[Node], Parts]:
    def translate(node: Node) -> Parts:
        arguments = [float(a) for a in node.attributes["arguments"]]
        settings = {"randomDistributionType": how, "randomDistributionArgs": arguments, **_seeds(node)}
        return "RandomDistribution", node.inputs, settings

    return translate


def _sample(kind: str) -> Callable[[Node], Parts]:
    def translate(node: Node) -> Parts:
        get = node.attributes
        settings = {"numSamples": int(get["many"]), "allowDuplicates": bool(get["replacement"]), **_seeds(node)}
        return kind, node.inputs, settings

    return translate


def _transpose(node: Node) -> Parts:
    perm = node.attributes["perm"]
    order = [len(perm) - 1 - i for i in reversed(perm)]
    return "TransposeAxes", node.inputs, {"axisVec": [FileAxis(i) for i in order]}


def _slice(node: Node) -> Parts:
    rank, get = _rank(node), node.attributes
    axes = [file_axis(axis, rank) for axis in get["axis"]]
    begins, ends, strides = ([Signed(n) for n in get[key]] for key in ("begin", "end", "strides"))
    if len(axes) > 1:
        settings: dict[str, Any] = {
            "axisVec": axes,
            "beginIndexVec": begins,
            "endIndexVec": ends,
            "sliceStridesVec": strides,
        }
    else:
        settings = {"axis": axes[0], "beginIndex": begins[0], "endIndex": ends[0], "sliceStrides": strides[0]}
    return "Slice", node.inputs, settings


def _reshape(node: Node) -> Parts:
    begin, end = node.attributes.get("begin") or 0, node.attributes.get("end")
    first, last = FileAxis(0), FileAxis(END)
    if begin or end is not None:
        rank = _rank(node)
        begin = begin if begin >= 0 else begin + rank
        end = rank if end is None else end if end >= 0 else end + rank
        first, last = FileAxis(rank - end), FileAxis(rank - begin)
    return "Reshape", node.inputs, {"newShape": Shape(node.attributes["shape"]), "beginAxis": first, "endAxis": last}


def _splice(node: Node) -> Parts:
    axis, rank = node.attributes["axis"], max(len(child.shape) for child in node.inputs)
    return "Splice", node.inputs, {"axis": FileAxis(END) if axis < -rank else file_axis(axis, len(node.shape))}


def _pad(node: Node) -> Parts:
    get = node.attributes
    head, foot = ([int(pair[i]) for pair in reversed(get["pattern"])] for i in (0, 1))
    settings = {
        "paddingHead": head,
        "paddingFoot": foot,
        "paddingMode": ("constant", "reflect", "symmetric").index(get["mode"]),
        "paddingConstantValue": float(get.get("value", 0.0)),
    }
    return "Pad", node.inputs, settings


def _one_hot(node: Node) -> Parts:
    get = node.attributes
    settings = {
        "numClass": int(get["classes"]),
        "oneHotOutputSparse": bool(get.get("sparse", False)),
        "onehotAxis": file_axis(get["axis"], len(node.shape)),
    }
    return "OneHot", node.inputs, settings


def _times(node: Node) -> Parts:
    rank = int(node.attributes.get("output_rank", 1))
    return "Times", node.inputs[::-1], {"outputRank": rank, "inferInputRankToMap": Signed(-1)}


def _window(node: Node, channels: bool) -> dict[str, Any]:
    """Return the settings of a window; ``channels``: include the axis of channels."""
    strides, pad = tuple(node.attributes["strides"]), [bool(p) for p in reversed(node.attributes["pad"])]
    return {
        "strides": Shape((1, *strides) if channels else strides),
        "autoPadding": [*pad, False] if channels else pad,
        "lowerPad": Shape((0,)),
        "upperPad": Shape((0,)),
    }


def _convolution(node: Node) -> Parts:
    get = node.attributes
    transposed = node.op == "convolution_transpose"
    shape = get.get("shape")
    settings = {
        **_window(node, True),
        "dilation": Shape((1, *get.get("dilation", (1,)))),
        "sharing": [True],
        "sequential": False,
        "transpose": transposed,
        "outputShape": Shape((node.shape[0], *shape) if shape else (0,)),
        "kernelShape": Shape((0,)),
        "maxTempMemSizeInSamples": 0,
        "groups": int(get.get("groups", 1)),
    }
    return "Convolution", node.inputs, settings


def _pooling(maximum: bool) -> Callable[[Node], Parts]:
    def translate(node: Node) -> Parts:
        get = node.attributes
        settings = {
            "poolingType": 0 if maximum else 1,
            "poolingWindowShape": Shape(get["window"]),
            **_window(node, False),
            "ceilOutDim": bool(get.get("ceil", False)),
            "includePad": bool(get.get("count_pad", False)),
        }
        return "Pooling", node.inputs, settings

    return translate


def _global_pooling(kind: int) -> Callable[[Node], Parts]:
    settings = {
        "poolingType": kind,
        "poolingWindowShape": Shape((-2,)),
        "strides": Shape((1,)),
        "autoPadding": [False],
        "lowerPad": Shape((0,)),
        "upperPad": Shape((0,)),
        "ceilOutDim": False,
        "includePad": False,
    }
    return lambda node: ("Pooling", node.inputs, settings)


def _unpooling(node: Node) -> Parts:
    settings = {"poolingType": 0, "unpoolingWindowShape": Shape(node.attributes["window"]), **_window(node, False)}
    return "Unpooling", node.inputs, settings


def _batch_normalization(node: Node) -> Parts:
    get = node.attributes
    settings = {
        "spatial": bool(get["spatial"]),
        "normalizationTimeConstant": float(get["normalization_time_constant"]),
        "blendTimeConstant": float(get["blend_time_constant"]),
        "epsilon": float(get["epsilon"]),
        "useCuDNNEngine": False,
        "disableRegularization": False,
    }
    return "BatchNormalization", node.inputs, settings


def _reduce(node: Node, kind: str) -> Parts:
    axis, rank = node.attributes.get("axis"), _rank(node)
    if axis is None:
        where: dict[str, Any] = {"axis": FileAxis(ALL_STATIC)}
    else:
        axes = [file_axis(a, rank) for a in axes_of(axis, rank)]
        where = {"axis": axes[0]} if len(axes) == 1 else {"axisVec": axes}
    keep = bool(node.attributes.get("keepdims", axis is not None))
    return "ReduceElements", node.inputs, {**where, "reductionOpName": kind, "reductionKeepDimensions": keep}


def _reduced_batch(node: Node) -> Parts:
    rank = _rank(node)
    axes = [*(file_axis(a, rank) for a in axes_of(node.attributes.get("axis", ()), rank)), _BATCH]
    where = {"axis": axes[0]} if len(axes) == 1 else {"axisVec": axes}
    settings = {**where, "reductionOpName": _REDUCTIONS[node.attributes["how"]], "reductionKeepDimensions": True}
    return "ReduceElements", node.inputs, settings


def _reduced_all(node: Node) -> Parts:
    settings = {
        "axis": FileAxis(ALL),
        "reductionOpName": _REDUCTIONS[node.attributes["how"]],
        "reductionKeepDimensions": False,
    }
    return "ReduceElements", node.inputs, settings


def _top_n(node: Node) -> Parts:
    return "ClassificationError", [*node.inputs, float(node.attributes["top"])], {}


def _cosines(node: Node) -> Parts:
    get = node.attributes
    return "CosDistanceWithNegativeSamples", [*node.inputs, float(get["shift"]), float(get["others"])], {}


def _edits(node: Node) -> Parts:
    get = node.attributes
    settings = {
        "SubstitutionPenalty": Single(get["substitution"]),
        "DeletionPenalty": Single(get["deletion"]),
        "InsertionPenalty": Single(get["insertion"]),
        "SquashInputs": bool(get["squash"]),
        "TokensToIgnore": [int(n) for n in get["ignored"]],
    }
    return "EditDistanceError", node.inputs, settings


def _delay(node: Node) -> Parts:
    steps = int(node.attributes["steps"])
    return "PastValue" if steps > 0 else "FutureValue", node.inputs, {"offset": abs(steps)}


_TABLE: dict[str, Callable[[Node], Parts | None]] = {
    "elu": lambda node: ("ELU", node.inputs, {"alpha": float(node.attributes.get("alpha", 1.0))}),
    "softmax": _softmax,
    "hardmax": _hardmax,
    "dropout": lambda node: ("Dropout", node.inputs, {"dropoutRate": float(node.attributes["rate"]), **_seeds(node)}),
    "cast": lambda node: ("Cast", node.inputs, {"newDataType": Signed(_NUMBER[node.attributes["dtype"]])}),
    "eye_rows": lambda node: ("EyeLikeOp", node.inputs, {"OutputSparse": bool(node.attributes.get("sparse", False))}),
    "random_uniform": _draw("uniform"),
    "random_normal": _draw("normal"),
    "random_gumbel": _draw("gumbel"),
    "random_bernoulli": _draw("bernoulli"),
    "random_sample": _sample("RandomSample"),
    "random_sample_inclusion_frequency": _sample("RandomSampleInclusionFrequency"),
    "transpose": _transpose,
    "slice": _slice,
    "reshape": _reshape,
    "splice": _splice,
    "pad": _pad,
    "crop": lambda node: ("Crop", node.inputs, {"offset": [int(node.attributes[f"offset_{axis}"]) for axis in "xy"]}),
    "one_hot": _one_hot,
    "roi_pooling": lambda node: (
        "ROIPooling",
        node.inputs,
        {
            "poolingType": 0,
            "roiOutputShape": Shape(node.attributes["size"]),
            "spatialScale": float(node.attributes["scale"]),
        },
    ),
    "gather": lambda node: ("Gather", node.inputs, {}),
    "times": _times,
    "times_transpose": lambda node: ("TransposeTimes", node.inputs[::-1], {"outputRank": 1}),
    "convolution": _convolution,
    "convolution_transpose": _convolution,
    "max_pooling": _pooling(True),
    "average_pooling": _pooling(False),
    "global_max_pooling": _global_pooling(0),
    "global_average_pooling": _global_pooling(1),
    "max_unpooling": _unpooling,
    "batch_normalization": _batch_normalization,
    "argmax": lambda node: _reduce(node, "Argmax"),
    "argmin": lambda node: _reduce(node, "Argmin"),
    "reduce_batch": _reduced_batch,
    "reduce_everything": _reduced_all,
    "classification_error": _top_n,
    "weighted_binary_cross_entropy": lambda node: ("Logistic", node.inputs, {}),
    "cosine_distance_with_negative_samples": _cosines,
    "edit_distance_error": _edits,
    "delay": _delay,
    "sequence_where": lambda node: ("Where", node.inputs, {}),
}
