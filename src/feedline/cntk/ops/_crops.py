"""Crop pictures to the size of other pictures, at given offsets, or at offsets that follow from the graph.

Convolution, pooling and their transposes map the places of their results to places of their operand: place n of the
result is around place ``scale * n + begin`` of the operand. Along a path to a common ancestor the maps compose. Two
operands whose maps have the same scale differ by an offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from feedline._facades import defined_in
from feedline.cntk._nodes import node_of
from feedline.cntk._settings import take_plain_settings
from feedline.cntk.ops._function import Function
from feedline.cntk.ops._operation_helpers import build, late
from feedline.networks import Node

# Operations whose results have the places of all their operands, or of the first.
_SAME = {
    *("plus", "minus", "element_times", "element_divide", "element_max", "element_min", "log_add_exp", "clip"),
    *("negate", "relu", "sigmoid", "tanh", "exp", "log", "sqrt", "square", "abs", "reciprocal", "floor", "ceil"),
    *("round", "elu", "selu", "leaky_relu", "param_relu", "softplus", "softsign", "hard_sigmoid", "stop_gradient"),
    *("sin", "cos", "tan", "pow", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
}
_SAME_AS_FIRST = {"alias", "dropout", "batch_normalization", "cast"}


class _Map(NamedTuple):
    """Places of an axis in an ancestor: ``scale * place + begin``."""

    scale: float
    begin: float

    def after(self, later: _Map) -> _Map:
        """Return the composition that applies ``later`` first, and then this map."""
        return _Map(self.scale * later.scale, self.scale * later.begin + self.begin)


_Maps = tuple[_Map, _Map]
_UNCHANGED: _Maps = (_Map(1.0, 0.0), _Map(1.0, 0.0))


def crop_manual(node_input: Any, node_referent: Any, offset_x: int, offset_y: int, name: str = "") -> Function:
    """Crop the last two axes, from the offsets on, to the size of another operand, which gets no gradient.

    Raises:
        ValueError: a crop that reaches beyond the operand.
    """
    attributes = {"offset_y": int(offset_y), "offset_x": int(offset_x)}
    return build("crop", [node_input, node_referent], attributes, name)


@late(2)
def crop_automatic(node_input: Any, node_referent: Any, name: str = "") -> Function:
    """Crop the last two axes to the size of another operand, at its places.

    Args:
        node_input: operand to crop.
        node_referent: operand that shares an ancestor with it. It gets no gradient.
        name: name of the operation.

    Raises:
        ValueError: no common ancestor along operations that keep or scale places, different scales, a negative offset,
            or a crop that reaches beyond the operand.
    """
    return _crop(node_input, node_referent, (), name)


@late(4)
def crop_automatic_with_ancestors(
    node_input: Any, node_referent: Any, ancestor_input: Any, ancestor_referent: Any, name: str = ""
) -> Function:
    """Crop as `crop_automatic`, where two ancestors, one of each operand, count as the same node."""
    return _crop(node_input, node_referent, (ancestor_input, ancestor_referent), name)


def _crop(node_input: Any, node_referent: Any, ancestors: tuple[Any, ...], name: str) -> Function:
    operand, like = node_of(node_input), node_of(node_referent)
    input_maps, referent_maps = _ancestors(operand), _ancestors(like)
    shared: list[tuple[Node, Node]] = [(node, node) for node in referent_maps if node in input_maps]
    if ancestors:
        a, b = map(node_of, ancestors)
        shared += [(a, b)] if a in input_maps and b in referent_maps else []
    if not shared:
        raise ValueError(
            "expected operands with a common ancestor, connected by operations that keep or scale positions"
        )
    of_input, of_referent = input_maps[shared[0][0]], referent_maps[shared[0][1]]
    offsets = []
    for cut, fixed in zip(of_input, of_referent, strict=True):
        if cut.scale != fixed.scale:
            raise ValueError(f"expected operands of one scale, got {cut.scale:g} and {fixed.scale:g} of their ancestor")
        offsets.append(int((fixed.begin - cut.begin) / cut.scale))
        if fixed.begin < cut.begin:
            raise ValueError(f"expected an offset of at least 0, got {(fixed.begin - cut.begin) / cut.scale:g}")
    return crop_manual(node_input, node_referent, offsets[1], offsets[0], name)


def _ancestors(node: Node) -> dict[Node, _Maps]:
    """Return the maps to the node itself and to the nodes below it, nearest first."""
    ancestors: dict[Node, _Maps] = {node: _UNCHANGED}
    todo = [node]
    while todo:
        current = todo.pop(0)
        for child, maps in _operands(current):
            if child not in ancestors:
                # Map places of the result to the current node, and from it to the child.
                ancestors[child] = (maps[0].after(ancestors[current][0]), maps[1].after(ancestors[current][1]))
                todo.append(child)
    return ancestors


def _operands(node: Node) -> list[tuple[Node, _Maps]]:
    """Return the operands that have places, with the map from the node's."""
    if node.op in _SAME:
        return [(child, _UNCHANGED) for child in node.inputs if len(child.shape) >= 2]
    if node.op in _SAME_AS_FIRST:
        return [(node.inputs[0], _UNCHANGED)]
    if node.op == "convolution":
        kernel, x = node.inputs
        return [(x, _window(node, x, kernel.shape[-2:]))] if len(x.shape) == 3 else []
    if node.op in ("max_pooling", "average_pooling"):
        size = node.attributes["window"]
        return [(node.inputs[0], _window(node, node.inputs[0], size[-2:]))] if len(size) >= 2 else []
    if node.op == "convolution_transpose":
        kernel, x = node.inputs
        forward = _window(node, node, kernel.shape[-2:])
        inverse = (_Map(1 / m.scale, -m.begin / m.scale) for m in forward)
        return [(x, (next(inverse), next(inverse)))] if len(x.shape) == 3 else []
    if node.op == "crop":
        get = node.attributes
        return [(node.inputs[0], (_Map(1.0, get["offset_y"]), _Map(1.0, get["offset_x"])))]
    return []


def _window(node: Node, wide: Node, size: tuple[int, ...]) -> _Maps:
    """Return the map from windows to the middle of each on the last two axes of ``wide``."""
    get = node.attributes
    maps = []
    for n, k, stride, padded in zip(wide.shape[-2:], size, get["strides"][-2:], get["pad"][-2:], strict=True):
        # The windows of padded axes are centred, with an odd extra cell at the end.
        begin = (n - 1) % stride // 2 if padded else (k - 1) // 2
        maps.append(_Map(float(stride), float(begin)))
    return maps[0], maps[1]


if not TYPE_CHECKING:  # type checkers find out themselves
    take_plain_settings(globals())
    __all__ = defined_in(globals())
