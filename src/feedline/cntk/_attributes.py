"""Attributes of operations under CNTK's keys, which are the settings of its model files."""

from __future__ import annotations

from typing import Any

from feedline.cntk._model_files.compositions import composition
from feedline.cntk._model_files.file_values import DYNAMIC, FileAxis, Shape, Signed, Single
from feedline.cntk._model_files.settings import primitive
from feedline.networks import Node
from feedline.networks.traverse import change_attribute

_CHANGEABLE = {"dropoutRate": ("rate", float), "rngSeed": ("seed", int)}
_INTERNAL = ("block", "instance")


def attributes_of(node: Node) -> dict[str, Any]:
    """Return the attributes of the operation or block that computes a node.

    Shapes are tuples, axes (ordered or unordered, static or dynamic, index or name). Static axes are numbered from the
    last axis of a sample.

    Raises:
        ValueError: they depend on the shape of a placeholder.
    """
    if node.op == "user_output":
        return dict(node.inputs[0].attributes["user"]._members["user_attributes"] or {})
    if "block" in node.attributes:
        return {key: value for key, value in node.attributes.items() if key not in _INTERNAL}
    recipe = composition(node)
    if recipe is not None:
        settings = dict(recipe.attributes)
    else:
        parts = None if node.is_leaf else primitive(node)
        settings = dict(parts[2]) if parts is not None else {}
        if node.op in ("convolution", "convolution_transpose"):
            settings = _whole_convolution(node, settings)
    result = {key: _plain(value) for key, value in settings.items()}
    if "autoPadding" in result:  # the order of axes of shapes, from the first
        result["autoPadding"].reverse()
    return result


def _whole_convolution(node: Node, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with a value for each axis, which CNTK infers, and without those that newer models have."""
    rank = len(node.inputs[1].shape)
    nothing = Shape((0,) * rank)
    whole = settings | {"sharing": [True] * rank, "lowerPad": nothing, "upperPad": nothing}
    for key in ("strides", "dilation"):
        whole[key] = Shape((*settings[key], *settings[key][-1:] * rank)[:rank])
    whole["kernelShape"] = Shape(node.inputs[0].shape[-rank:])
    del whole["sequential"]
    if whole["groups"] == 1:
        del whole["groups"]
    return whole


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, FileAxis):
        if value.index == DYNAMIC:
            return ("ordered" if value.ordered else "unordered", "dynamic", value.name)
        return ("ordered", "static", value.index)
    if isinstance(value, Shape):
        return tuple(value)
    if isinstance(value, Signed):
        return int(value)
    return float(value) if isinstance(value, Single) else value


def set_attribute(node: Node, name: str, value: Any) -> None:
    """Change the dropout rate, or the seed of random numbers, of all functions that have the node.

    Raises:
        ValueError: the operation has no such attribute, or another attribute.
    """
    if name not in _CHANGEABLE:
        raise ValueError(f"expected {' or '.join(map(repr, _CHANGEABLE))}, got {name!r}: other attributes are fixed")
    key, kind = _CHANGEABLE[name]
    if key not in node.attributes:
        raise ValueError(f"{node.label}: expected an operation with the attribute {name!r}, got none")
    change_attribute(node, key, kind(value))
    if key == "seed":
        change_attribute(node, "fixed", True)
