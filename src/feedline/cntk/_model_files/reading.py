"""Reading CNTK's model files: from a dictionary to nodes of a graph.

Functions are sorted into strongly connected components. A component of one function becomes a node, or several. The
others are recurrences: their delays read states, and `networks.traverse.close` builds a recurrence of the component.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from feedline.cntk._model_files.blocks import Replacement, recognize
from feedline.cntk._model_files.dictionaries import read_dictionary
from feedline.cntk._model_files.file_values import DATA_TYPES, DYNAMIC, FileAxis
from feedline.cntk._model_files.functions import (
    CONSTANT,
    PARAMETER,
    PLACEHOLDER,
    USER,
    FileFunction,
    FileModel,
    LayoutError,
    entry,
)
from feedline.cntk._model_files.operators import PackedIndex, Primitive, Result, make, plain
from feedline.cntk._nodes import axis_names, with_gradient
from feedline.cntk._operand import registered_operation
from feedline.cntk._tracing import block_of
from feedline.cntk.axis import Axis
from feedline.errors import FeedlineError, StateError
from feedline.networks import Node, Weights, apply
from feedline.networks.node import input_node, parameter_node, placeholder_node
from feedline.networks.traverse import close

_DELAYS = ("PastValue", "FutureValue")


def read_model(path: Path) -> list[Node]:
    """Return the outputs of the model in a file.

    Raises:
        StateError: the file is missing, torn or not CNTK's, or its operations do not fit each other.
        CompatError: an operation that feedline does not have. The error names it.
    """
    dictionary = read_dictionary(path)
    with _report_damage(path):
        return _Builder(FileModel(dictionary)).roots()


@contextmanager
def _report_damage(path: Path) -> Iterator[None]:
    """Raise StateError for the errors that a damaged dictionary causes."""
    try:
        yield
    except FeedlineError:
        raise
    except (LayoutError, KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise StateError(
            f"expected a model of CNTK in {path}: expected {error}",
            hint="save the model again with CNTK 2.7, or copy the file again",
        ) from error


def read_weights(path: Path) -> list[tuple[str, str, Any]]:
    """Return kind, name and value of each parameter and constant of the model in a file, in the file's order.

    Raises:
        StateError: the file is missing, torn or not CNTK's.
    """
    dictionary = read_dictionary(path)
    kinds = {PARAMETER: "parameter", CONSTANT: "constant"}
    with _report_damage(path):
        leaves = [leaf for leaf in entry(dictionary, "inputs", list) if leaf.get("kind") in kinds]
        return [(kinds[leaf["kind"]], leaf.get("name", ""), _value(leaf)) for leaf in leaves]


class _Builder:
    """Construction of nodes, each once.

    Args:
        model: functions of the file.
    """

    def __init__(self, model: FileModel) -> None:
        self._model = model
        self._leaves: dict[str, Node] = {}
        self._values: dict[str, Result] = {}
        self._replacements: dict[str, Replacement | None] = {}
        # Running statistics change in training, so they are saved with the parameters even without a name.
        self._statistics = {
            uid for f in model.functions.values() if f.kind == "BatchNormalization" for uid in f.inputs[3:]
        }

    def roots(self) -> list[Node]:
        """Return the nodes of the model's outputs."""
        outputs = self._model.outputs(self._model.root)
        starts = [owner[0].uid for uid in outputs if (owner := self._model.owner(uid)) is not None]
        components = list(_components(starts, self._below))
        users: dict[str, set[str]] = {}
        for uid in (uid for component in components for uid in component):
            for operand in self._inputs(self._model.functions[uid]):
                users.setdefault(self._model.source(operand), set()).add(uid)
        for component in components:
            first = self._model.functions[component[0]]
            if len(component) == 1 and component[0] not in self._below(component[0]):
                self._add(first, {})
            else:
                inside = set(component)
                read = {
                    uid
                    for uid in (output for f in component for output in self._model.outputs(f))
                    if uid in outputs or users.get(uid, set()) - inside
                }
                self._close(component, sorted(read))
        return [plain(self._value_of(uid)) for uid in outputs]

    def _inputs(self, function: FileFunction) -> list[str]:
        """Return the identifiers that a function reads: for a block, its inner outputs and then its operands."""
        if function.kind != "Block":
            return list(function.inputs)
        if function.uid not in self._replacements:
            self._replacements[function.uid] = recognize(self._model, function)
        replacement = self._replacements[function.uid]
        if replacement is not None:
            return list(replacement.inputs)
        return [*self._model.outputs(function.root), *(value for _, value in function.arguments)]

    def _below(self, uid: str) -> list[str]:
        owners = (self._model.owner(operand) for operand in self._inputs(self._model.functions[uid]))
        return [owner[0].uid for owner in owners if owner is not None]

    def _value_of(self, uid: str, states: Mapping[str, Node] | None = None) -> Result:
        uid = self._model.source(uid)
        if states and uid in states:
            return states[uid]
        if uid in self._values:
            return self._values[uid]
        if self._model.owner(uid) is not None:
            raise LayoutError(f"the output {uid} of a function, got a function with fewer outputs")
        if uid not in self._leaves:
            self._leaves[uid] = _leaf(self._model.leaves[uid], uid in self._statistics)
        return self._leaves[uid]

    def _add(self, function: FileFunction, states: Mapping[str, Node]) -> None:
        """Build the nodes of a function whose operands exist. A delay reads ``states`` instead."""
        if function.kind == "Combine":
            return
        uids = self._inputs(function)
        operands = [
            self._value_of(uid, states if function.kind in _DELAYS and i == 0 else None) for i, uid in enumerate(uids)
        ]
        try:
            results = self._results(function, operands)
        except KeyError as error:
            raise LayoutError(f"the setting {error} of {function.label}, got {sorted(function.attributes)}") from error
        except FeedlineError:
            raise
        except (TypeError, ValueError, AttributeError, IndexError, AssertionError) as error:
            raise LayoutError(f"operands and settings that fit {function.label}: {error}") from error
        names = self._model.outputs(function.uid)
        self._values.update(zip(names, results, strict=False))

    def _results(self, function: FileFunction, values: list[Result]) -> list[Result]:
        label = function.name
        if function.kind == USER:
            described = {**function.attributes, "name": label}
            user = registered_operation("create_user")(described, [plain(node) for node in values])
            return list(user._roots)
        if function.kind != "Block":
            if function.kind not in ("PackedIndex", "GatherPacked", "ScatterPacked"):
                values = [plain(node) for node in values]
            return make(Primitive(function.kind, function.uid, label, tuple(values), function.attributes))
        replacement = self._replacements[function.uid]
        if replacement is not None:
            return [apply(replacement.op, [plain(node) for node in values], replacement.attributes, label)]
        count = len(self._model.outputs(function.root))
        if any(isinstance(node, PackedIndex) for node in values[:count]):
            return list(values[:count])
        inside, operands = [plain(node) for node in values[:count]], [plain(node) for node in values[count:]]
        return list(block_of(inside, operands, function.block, label))

    def _close(self, component: list[str], read: list[str]) -> None:
        """Build a recurrence, and the nodes of its values that functions outside it read."""
        inside = set(component)
        states: dict[str, Node] = {}
        for uid in component:
            function = self._model.functions[uid]
            source = self._model.source(function.inputs[0]) if function.kind in _DELAYS else ""
            owner = self._model.owner(source) if source else None
            if owner is not None and owner[0].uid in inside:
                states.setdefault(source, placeholder_node(name=owner[0].name))

        def below(uid: str) -> Iterator[str]:
            function = self._model.functions[uid]
            for i, operand in enumerate(self._inputs(function)):
                if function.kind in _DELAYS and i == 0 and self._model.source(operand) in states:
                    continue
                owner = self._model.owner(operand)
                if owner is not None and owner[0].uid in inside:
                    yield owner[0].uid

        for part in _components(component, below):
            if len(part) > 1 or part[0] in below(part[0]):
                labels = ", ".join(self._model.functions[uid].label for uid in part[:4])
                raise LayoutError(f"recurrences through PastValue or FutureValue, got one without: {labels}")
            self._add(self._model.functions[part[0]], states)
        bodies = [plain(self._value_of(uid)) for uid in read]
        ends = {state: plain(self._value_of(uid)) for uid, state in states.items()}
        try:
            closed = close(bodies, ends)
        except ValueError as error:
            labels = ", ".join(self._model.functions[uid].label for uid in component[:4])
            raise LayoutError(f"a consistent recurrence ({labels}, ...): {error}") from error
        self._values.update(zip(read, closed, strict=False))


def _components(starts: Iterable[str], below: Any) -> Iterator[list[str]]:
    """Yield strongly connected components, each after the components that it reads (Tarjan, without recursion)."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    waiting: list[str] = []
    inside: set[str] = set()
    for start in starts:
        if start in index:
            continue
        path = [(start, iter(below(start)))]
        index[start] = lowest[start] = len(index)
        waiting.append(start)
        inside.add(start)
        while path:
            node, children = path[-1]
            child = next((child for child in children if child not in index or child in inside), None)
            if child is None:
                path.pop()
                if path:
                    lowest[path[-1][0]] = min(lowest[path[-1][0]], lowest[node])
                if lowest[node] == index[node]:
                    component: list[str] = []
                    while not component or component[-1] != node:
                        component.append(waiting.pop())
                        inside.discard(component[-1])
                    yield component
            elif child in index:
                lowest[node] = min(lowest[node], index[child])
            else:
                index[child] = lowest[child] = len(index)
                waiting.append(child)
                inside.add(child)
                path.append((child, iter(below(child))))


def _leaf(leaf: Mapping[str, Any], statistic: bool) -> Node:
    """Return the node of an input, placeholder, parameter or constant."""
    kind, name, shape = entry(leaf, "kind", int), leaf.get("name", ""), tuple(entry(leaf, "shape", tuple))
    number = leaf.get("data_type", 1)
    dtype = DATA_TYPES.get(number, "float32")
    if kind in (PARAMETER, CONSTANT):
        value = _value(leaf)
        trains = kind == PARAMETER
        weights = Weights(
            value.shape, lambda wanted_shape: value, dtype, trains, keeps=not trains and (statistic or bool(name))
        )
        return parameter_node(weights, name)
    axes = [_axis(axis) for axis in entry(leaf, "dynamic_axis", list)]
    known_axes = None if any(axis in Axis.unknown_dynamic_axes() for axis in axes) else axis_names(axes)
    if kind == PLACEHOLDER or known_axes is None:
        return placeholder_node(None if -2 in shape else shape, known_axes, name)
    node = input_node(shape, known_axes, name, bool(leaf.get("is_sparse", False)), dtype)
    return with_gradient(node) if leaf.get("needs_gradient", False) else node


def _axis(axis: FileAxis) -> Axis:
    return Axis(axis.name, axis.ordered) if axis.index == DYNAMIC else Axis.unknown_dynamic_axes()[0]


def _value(leaf: Mapping[str, Any]) -> Any:
    """Return the value of a parameter or constant, in the shape of the variable."""
    value, shape = entry(leaf, "value", np.ndarray), tuple(entry(leaf, "shape", tuple))
    if value.shape != shape:
        if value.size != int(np.prod(shape)):
            raise LayoutError(f"a value of shape {shape} of {leaf.get('uid')}, got {value.shape}")
        value = value.reshape(shape)
    return value
