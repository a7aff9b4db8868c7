"""Compositions whose parts depend on shapes that are not known yet.

Many functions of old frameworks are a few operations whose settings follow from the operand's shape, such as a
reshape to a matrix. Where that shape depends on a placeholder, or on a dimension that differs between minibatches,
`later` creates one node in place of the parts. `remade` creates the parts once the placeholder is replaced, or the
dimension is fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from feedline.networks.node import Node, is_fixed, placeholder_node
from feedline.networks.registry import Shape, Site, UnknownShapeError, apply, declare

Recipe = Callable[..., Node]
_recipes: dict[str, Recipe] = {}


def add_recipe(name: str, make: Recipe) -> None:
    """Register ``make(*nodes, label, **settings)``, which returns the result of a composition."""
    assert name not in _recipes, name
    _recipes[name] = make


def is_known(nodes: Sequence[Node]) -> bool:
    """Whether the shapes and axes of all nodes are known, without dimensions that data determines."""
    return all(node.type.is_known and (node.weights is not None or is_fixed(node.shape)) for node in nodes)


def later(name: str, nodes: Sequence[Node], settings: Mapping[str, Any], label: str = "") -> Node:
    """Return the composition of this name, or a node that replaces it until the shapes are known."""
    if is_known(nodes):
        return _recipes[name](*nodes, label=label, **settings)
    return apply("late", nodes, {"recipe": name, **settings}, label)


def remade(node: Node, inputs: Sequence[Node]) -> Node:
    """Apply a node that `later` created to other inputs."""
    settings = dict(node.attributes)
    return later(settings.pop("recipe"), inputs, settings, node.name)


def _shape(site: Site) -> Shape:
    """Infer the shape of the composition from placeholders of the inputs' types."""
    inputs = [placeholder_node(t.shape, () if t.axes is None else t.axes) for t in site.types]
    if not is_known(inputs):
        raise UnknownShapeError
    settings = dict(site.attributes)
    return _recipes[settings.pop("recipe")](*inputs, label=site.name, **settings).shape


def _never(node: Node) -> Callable[..., Any]:
    raise ValueError(f"{node.label}: expected known shapes to make its parts, got {[str(n.type) for n in node.inputs]}")


declare("late", _shape, _never)
