"""A script's minibatch: data by variable, converted for a network. There is no other way from data to networks."""

from __future__ import annotations

from collections.abc import Hashable, ItemsView, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.cntk._bound_values import unbound
from feedline.cntk._feeding import packed_of
from feedline.cntk.core import Value
from feedline.data import Value as Packed
from feedline.errors import CompatError
from feedline.networks import Node


class Arguments(Mapping[Hashable, Any]):
    """A minibatch, passed to networks, or to models, losses and metrics of Python.

    Its keys are the nodes of inputs, or the script's keys if there is no network. Its values are `feedline.Value`
    objects, or rows for inputs without a batch axis.

    Attributes:
        num_sequences: number of sequences of each value. It is 0 for an empty minibatch, which is false.
        sweep_end: whether it contains the end of a sweep.
        lanes, begins: under truncation, see `feedline.Minibatch`, else None. Without ``lanes``, the script marked where
            sequences begin.
        partition: (0, 1), as a script divides its data itself.
    """

    partition = (0, 1)

    def __init__(
        self,
        values: Mapping[Any, Any],
        sweep_end: bool = False,
        lanes: NDArray[np.int64] | None = None,
        begins: NDArray[np.bool_] | None = None,
    ) -> None:
        self._values, self.sweep_end, self.lanes, self.begins = dict(values), sweep_end, lanes, begins
        self.num_sequences = next((v.num_sequences for v in self._values.values() if isinstance(v, Packed)), 0)

    def __getitem__(self, key: Hashable) -> Any:
        try:
            return self._values[key]
        except KeyError:
            keys = ", ".join(map(repr, self._values)) or "none"
            raise KeyError(f"expected an argument of {keys}, got {key!r}") from None

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._values)

    def items(self) -> ItemsView[Hashable, Any]:
        """Return pairs of key and value, faster than the method of `Mapping`."""
        return self._values.items()

    def __len__(self) -> int:
        return len(self._values)


def arguments_of(arguments: Any, inputs: Sequence[Node], is_sweep_end: bool | None = None) -> Arguments:
    """Convert a script's minibatch for a network.

    Args:
        arguments: mapping from variables or their names to data, or the data of the only input. Data is
            `MinibatchData`, a `feedline.Value`, or what `Value.create` takes. Data of variables that are not inputs is
            ignored. The data of a variable, or all of ``arguments``, may be a pair of this and a list of one bool per
            sequence: whether it begins here, rather than continuing from the last minibatch.
        inputs: inputs of the network, and of the functions whose data a script may pass as well.
        is_sweep_end: whether the minibatch contains the end of a sweep, if ``arguments`` do not have it.

    Raises:
        ValueError: data that does not fit its variable, no such variable, marks for variables without a sequence axis,
            or ``is_sweep_end`` with data that already has it.
    """
    arguments, marks = _marked(arguments)
    empty = arguments is None or (isinstance(arguments, list) and not arguments)
    if empty and not inputs:
        arguments = {}
    if not isinstance(arguments, Mapping):
        if len(inputs) != 1 or empty:
            names = "".join(f", {node.label}" for node in inputs)
            got = "none" if empty else type(arguments).__name__
            raise ValueError(f"expected a dictionary of data for {len(inputs)} arguments{names}, got {got}")
        arguments = {inputs[0]: arguments}
    values: dict[Node, Value | Packed] = {}
    sweep_ends = []
    for key, item in arguments.items():
        node = _node(key, inputs)
        data, begins = _marked(item)
        if begins is not None and marks is not None:
            raise ValueError("expected marks of where sequences begin once, got them for all data and for one variable")
        if _is_minibatch_data(data):
            sweep_ends.append(data.end_of_sweep)
        values[node] = _value(node, data, marks if begins is None else begins)
    packed = {node: packed_of(value, node) for node, value in values.items()}
    return Arguments(packed, _ends(sweep_ends, is_sweep_end), *_pieces(values.values()))


def arguments_by_key(arguments: Any, criterion: Any, is_sweep_end: bool | None = None) -> Arguments:
    """Convert a script's minibatch for a model of Python, which reads it by the script's keys.

    Args:
        arguments: mapping from keys to data, or the data of the only argument of the criterion, or a pair of these and
            marks, as in `arguments_of`. Arrays ``(N, *shape)`` and matrices are N sequences of one sample.
        criterion: criterion, which may have ``arguments``.
        is_sweep_end: whether the minibatch contains the end of a sweep, if ``arguments`` do not have it.

    Raises:
        ValueError: ``is_sweep_end`` with data that already has it, or different numbers of sequences.
        CompatError: not a mapping, for a criterion without ``arguments``.
    """
    arguments, marks = _marked(arguments)
    if not isinstance(arguments, Mapping):
        arguments = dict(zip(keys_of(criterion, 1, "pass a dictionary of data by key"), [arguments], strict=True))
    sweep_ends = [data.end_of_sweep for data in arguments.values() if _is_minibatch_data(data)]
    values = {}
    for key, item in arguments.items():
        data = item.data if _is_minibatch_data(item) else item
        values[key] = data if isinstance(data, Value) else Value.over(data, marks)
    packed = {key: _rows(value) for key, value in values.items()}
    counts = {key: value.num_sequences for key, value in packed.items()}
    if len(set(counts.values())) > 1:
        raise ValueError(f"expected one number of sequences for all arguments, got {counts}")
    return Arguments(packed, _ends(sweep_ends, is_sweep_end), *_pieces(values.values()))


def _rows(value: Value) -> Packed:
    if value.packed is not None:
        return value.packed
    array = value._rectangular()
    return Packed.from_scipy(array) if hasattr(array, "tocsr") else Packed.from_dense(array)


def _marked(arguments: Any) -> tuple[Any, list[bool] | None]:
    """Split a pair of data and marks: whether each sequence begins."""
    if not isinstance(arguments, tuple):
        return arguments, None
    if len(arguments) == 2:
        data, marks = arguments
        if marks is None:
            return data, None
        if isinstance(marks, (list, tuple)) and all(isinstance(mark, (bool, np.bool_)) for mark in marks):
            return data, list(marks)
    raise ValueError(
        f"expected data, or a pair of data and a list of one bool per sequence, got a tuple of {len(arguments)} items; "
        "pass data of several arguments as a dictionary"
    )


def _node(key: Any, inputs: Sequence[Node]) -> Node:
    """Return the input that a variable, or the name of one, refers to.

    Raises:
        ValueError: neither a variable nor a name, or a name of no input or of several.
    """
    node = key if isinstance(key, Node) else getattr(key, "node", None)
    if isinstance(node, Node) and node.op == "input":
        return node
    nodes = [node for node in inputs if isinstance(key, str) and node.name == key]
    if len(nodes) != 1:
        names = ", ".join(node.label for node in inputs) or "nothing"
        raise ValueError(f"expected data for {names}, got it for {key!r}{', a name of several' if nodes else ''}")
    return nodes[0]


def _value(node: Node, data: Any, marks: list[bool] | None) -> Value | Packed:
    """Return the data of a variable as a value.

    Raises:
        ValueError: marks for a value, for a variable without a sequence axis, or of another number.
    """
    data = data.data if _is_minibatch_data(data) else unbound(data)
    if isinstance(data, (Value, Packed)):
        if marks is not None:
            raise ValueError(f"{node.label}: expected a Value without marks of where sequences begin, got some")
        return data
    if marks is not None and len(node.axes) < 2:
        raise ValueError(
            f"{node.label}: expected no marks of where sequences begin, as it has no sequence axis, got {len(marks)}"
        )
    return Value.borrow(node, data, marks)


def _is_minibatch_data(data: Any) -> bool:
    """Return whether data is `cntk.io.MinibatchData`, whose package imports functions and so cannot be imported."""
    return hasattr(data, "end_of_sweep")


def _ends(sweep_ends: Sequence[bool], is_sweep_end: bool | None) -> bool:
    if sweep_ends and is_sweep_end is not None:
        raise ValueError(f"expected no is_sweep_end with MinibatchData, which already has it, got {is_sweep_end}")
    return any(sweep_ends) or bool(is_sweep_end)


def _pieces(values: Iterable[Any]) -> tuple[Any, Any]:
    """Return (lanes, begins) of sequences that may be pieces, see `feedline.Minibatch`, or (None, None)."""
    for value in values:
        begins = value._starts if isinstance(value, Value) else None
        if begins is not None:
            return value.lanes, begins
    return None, None


def keys_of(criterion: Any, count: int, otherwise: str) -> tuple[Hashable, ...]:
    """Return the ``count`` arguments of a criterion.

    Raises:
        CompatError: the criterion has no ``arguments``. The message ends with ``otherwise``.
        ValueError: it has more or fewer arguments.
    """
    keys = getattr(criterion, "arguments", None)
    if keys is None:
        raise CompatError(f"expected a criterion with `arguments`, got one that names none: {otherwise}")
    if len(keys) != count:
        raise ValueError(f"expected data for the {len(keys)} arguments of the criterion, got {count}")
    return tuple(keys)
