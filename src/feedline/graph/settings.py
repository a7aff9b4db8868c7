"""The settings of operations in one vocabulary: kernel, stride, padding, groups, units, kind, rate, heads.

Libraries use different names (``num_filter``, ``out_channels``, ``kernel_shape``). Importers pass settings under the
names of the library, with the shapes around the operation, as shapes of weights supply settings that no argument
contains. A setting has a value for tables, and words for pictures, which omit usual values (a stride of 1).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from feedline.graph.costs import base
from feedline.graph.graph import Setting, Shape
from feedline.graph.op_families import family

# Names in libraries for each name in the vocabulary. The first name that is present counts.
_ALIASES: dict[str, tuple[str, ...]] = {
    "kind": ("act_type", "pool_type", "nonlinearity", "mode", "activation"),
    "kernel": ("kernel_size", "kernel_shape", "kernel", "window"),
    "size": ("output_size",),
    "stride": ("stride", "strides"),
    "padding": ("padding", "auto_pad", "pads", "pad"),
    "dilation": ("dilation", "dilations", "dilate"),
    "groups": ("groups", "num_group", "group", "num_groups"),
    "units": ("out_features", "out_channels", "num_filter", "num_hidden", "state_size", "hidden_size", "output_dim"),
    "heads": ("num_heads", "nhead", "heads"),
    "layers": ("num_layers",),
    "directions": ("bidirectional", "direction"),
    "rate": ("p", "rate", "ratio", "drop_prob", "dropout", "dropout_p"),
}
# Settings of each family, in the order of display.
_OF_FAMILY: dict[str, tuple[str, ...]] = {
    "convolution": ("kernel", "stride", "padding", "dilation", "groups", "units"),
    "pooling": ("kind", "kernel", "size", "stride", "padding"),
    "activation": ("kind",),
    "dropout": ("rate",),
    "recurrent": ("kind", "units", "layers", "directions", "rate"),
    "attention": ("heads", "rate"),
    "product": ("units",),
    "normalisation": ("groups",),
}
HAVE_SETTINGS = frozenset(_OF_FAMILY)
NAMES = tuple(dict.fromkeys(name for names in _OF_FAMILY.values() for name in names))
_POOLING_KINDS = (("max", "max"), ("average", "average"), ("avg", "average"), ("lp", "power"))


class ShapesAround(NamedTuple):
    """Shapes around an operation.

    Attributes:
        operands: shapes of its arguments, including weights.
        weights: shapes of the parameters among them.
        output: shape of its first output.
    """

    operands: Sequence[Shape | None] = ()
    weights: Sequence[Shape | None] = ()
    output: Shape | None = None


def settings_of(kind: str, arguments: Mapping[str, Any], around: ShapesAround = ShapesAround()) -> tuple[Setting, ...]:  # noqa: B008
    """Return the settings of an operation.

    Args:
        kind: kind of the operation.
        arguments: settings under the names of the library: numbers, sequences of them, bools, or text of these. Other
            values and unknown names are ignored.
        around: shapes around the operation.

    Returns:
        The settings of its family that are known, in the order of display.
    """
    op_family = family(kind)
    values = {name: _value(name, arguments) for name in _OF_FAMILY.get(op_family, ())}
    if op_family == "activation" and [_parse(str(arguments.get(name))) for name in ("min", "max")] == [0, 6]:
        values["kind"] = "relu6"
    is_global = base(kind).startswith("global") or _parse(str(arguments.get("global_pool"))) in (True, 1)
    _complete(op_family, kind, values, around, is_global)
    rank = _rank(kind, values)
    settings = []
    for name, value in values.items():
        text = _text(name, value, rank)
        if text:
            settings.append(Setting(name, text, _words(op_family, kind, name, text)))
    return tuple(settings)


def brief(settings: Iterable[Setting]) -> str:
    """Return the settings in one line, without usual values."""
    return ", ".join(setting.words for setting in settings if setting.words)


def _value(name: str, arguments: Mapping[str, Any]) -> Any:
    for alias in _ALIASES[name]:
        value = arguments.get(alias)
        if isinstance(value, str):
            value = _parse(value)
        if isinstance(value, (list, tuple)) and _are_numbers(value):
            return tuple(value)
        if isinstance(value, (int, float, bool)) or (isinstance(value, str) and re.fullmatch(r"[A-Za-z_]\w*", value)):
            return value
    return None


def _are_numbers(value: Sequence[Any]) -> bool:
    return bool(value) and all(isinstance(n, int) for n in value)


def _parse(text: str) -> Any:
    """Parse a number, a tuple or a bool. Other texts are returned unchanged."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text


def _complete(op_family: str, kind: str, values: dict[str, Any], around: ShapesAround, is_global: bool) -> None:
    """Add settings that follow from kind and shapes. ``is_global`` means a pooling over all of its input."""
    matrices = [shape for shape in around.weights if shape is not None and len(shape) > 1]
    if op_family == "convolution" and matrices:
        _read_kernel(kind, values, matrices[0])
    if op_family == "product" and values["units"] is None and matrices and around.output:
        values["units"] = around.output[-1]
    if kind == "lstm" and values["units"] is None and matrices and around.operands[0]:
        rows, width = matrices[0][0], matrices[0][-1]
        if isinstance(rows, int) and rows % 4 == 0 and width == around.operands[0][-1]:
            values["units"] = rows // 4  # torch's rows are four gates, and outputs may be projected to fewer
    if op_family == "recurrent" and values["units"] is None and matrices and around.output:
        out, two = around.output[-1], values["directions"] in (True, "bidirectional")
        values["units"] = out // 2 if two and isinstance(out, int) else out
    if op_family == "attention" and values["heads"] is None and base(kind) == "scaleddotproductattention":
        query = around.operands[0] if around.operands else None
        values["heads"] = query[-3] if query is not None and len(query) == 4 else None
    if op_family == "pooling":
        word = base(kind)
        names = [name for part, name in _POOLING_KINDS if part in word]
        values["kind"] = {"avg": "average"}.get(values["kind"], values["kind"]) or (names[0] if names else None)
        values["stride"] = values["stride"] or values["kernel"]  # torch's default
        if is_global:
            spatial = (around.output or ())[2:]
            values.update(kernel=None, stride=None, padding=None, size=spatial if _are_numbers(spatial) else 1)
    if op_family == "activation" and values["kind"] is None:
        values["kind"] = word if (word := base(kind)) != "activation" else None


def _read_kernel(kind: str, values: dict[str, Any], weight: Shape) -> None:
    """Read kernel and units from the shape of a weight.

    It is (out, in / groups, *kernel), or for transposed convolutions (in, out / groups, *kernel).
    """
    transposed = "transpose" in base(kind) or base(kind).startswith("deconv")
    if values["kernel"] is None:
        values["kernel"] = weight[2:]
    if values["units"] is None:
        groups = values["groups"] or 1
        out = weight[1] if transposed else weight[0]
        values["units"] = out * groups if transposed and isinstance(out, int) and isinstance(groups, int) else out


def _rank(kind: str, values: Mapping[str, Any]) -> int:
    """Return the number of axes that a single number covers."""
    kernel = values.get("kernel")
    if isinstance(kernel, tuple):
        return len(kernel)
    named = re.search(r"([1-3])d_?$", kind.lower())
    return int(named[1]) if named else 1


def _text(name: str, value: Any, rank: int) -> str:
    if value is None or value == ():
        return ""
    if name == "directions":
        return "both" if value in (True, "bidirectional") else ""
    if name == "padding" and isinstance(value, tuple):
        value = _padding(value, rank)
    if name in ("kernel", "size") and isinstance(value, int):
        value = (value,) * rank
    if isinstance(value, tuple):
        equal = name not in ("kernel", "size") and len(set(value)) == 1
        return str(value[0]) if equal else "×".join(map(str, value))
    if isinstance(value, bool):
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value).lower() if name == "kind" else str(value)


def _padding(value: tuple[Any, ...], rank: int) -> tuple[Any, ...] | str:
    """Return padding in one form. CNTK has a bool for each axis. ONNX lists all beginnings, then all ends."""
    if all(isinstance(n, bool) for n in value):
        spatial = value[len(value) - rank :]
        return "same" if any(spatial) else (0,)
    half = len(value) // 2
    return value[:half] if len(value) == 2 * rank and value[:half] == value[half:] else value


def _words_of(kind: str) -> set[str]:
    """Return the words in a kind: ``max_pool2d`` and ``MaxPool2d`` contain max, ``LeakyReLU`` does not contain elu."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", kind)
    return {base(kind), *(word.lower().replace("average", "avg") for word in words)}


_USUAL = {"stride": "1", "padding": "0", "dilation": "1", "groups": "1", "layers": "1"}


def _words(op_family: str, kind: str, name: str, text: str) -> str:
    if name == "stride" and op_family == "pooling":
        return f"stride {text}"
    if name == "rate" and text == "0" and op_family != "dropout":
        return ""
    if _USUAL.get(name) == text or (name == "padding" and text.lower() in ("notset", "valid")):
        return ""
    if name == "kind":
        # Words that the kind of the operation already contains.
        word = text.replace("average", "avg")
        return "" if word in _words_of(kind) else text
    if name in ("units", "groups", "heads", "layers"):
        noun = "filters" if name == "units" and op_family == "convolution" else name
        return f"{text} {noun.removesuffix('s') if text == '1' else noun}"
    return {"kernel": text, "size": f"to {text}", "directions": "both directions"}.get(name, f"{name} {text}")
