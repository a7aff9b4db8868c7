"""Compilation of a network to a `torch.nn.Module`: a plan made once from the graph, run for every minibatch.

The plan is a list of torch calls in order of computation. Everything that depends only on the node is computed when the
plan is made. Running it adds about a microsecond a node to torch's calls. Torch's autograd computes the gradients.
Parameters belong to the graph's leaves: networks compiled from graphs that share leaves share parameters.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import torch

from feedline.data.value import Value
from feedline.networks.loop import operands
from feedline.networks.loop_outputs import outside
from feedline.networks.node import FREE, Node, Weights, fits, input_node
from feedline.networks.packed_minibatch import PackedBatch, PackedRows, Run, Sequences, SparseRows
from feedline.networks.registry import op
from feedline.networks.traverse import reads, replace, resolve_alias, topological
from feedline.networks.truncation import BPTTState, TruncatedBatch


def tensor_of(weights: Weights) -> torch.nn.Parameter:
    """Return the tensor of a parameter or constant, initialized if it was not.

    Raises:
        ValueError: its shape is not known yet.
    """
    if weights.tensor is None:
        if not weights.is_fixed:
            raise ValueError(f"expected a parameter of known shape, got {weights.shape}: apply its layer to data first")
        value = weights.fill(weights.shape)
        tensor = value if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))
        tensor = tensor.to(getattr(torch, weights.dtype)).expand(weights.shape).contiguous()
        weights.tensor = torch.nn.Parameter(tensor, requires_grad=weights.trains)
    return weights.tensor


class Network(torch.nn.Module):
    """A compiled graph.

    Args:
        roots: nodes to compute.

    Raises:
        ValueError: a placeholder is left, a shape is unknown, or a recurrence cannot be run.

    Attributes:
        roots: nodes to compute.
        inputs: input leaves to feed.
        memories: BPTT states of recurrences, one for training and one for evaluation.
        batch: minibatch of the last run, None before the first.
        postpones_assignments: whether assignments of a run wait for `assign`, until gradients are computed.
        steps: for each operation, in the order in which they run: its slot, the slots of its operands, the function
            that runs it, and the slots that are not needed after it.
    """

    def __init__(self, roots: Iterable[Node]) -> None:
        super().__init__()
        self.roots = tuple(roots)
        # By the shapes of inputs with free dimensions: the network for these shapes, and its inputs.
        self._by_shapes: dict[tuple[Any, ...], tuple[Network, dict[Node, Node]]] = {}
        ends = [resolve_alias(root) for root in outside(self.roots)]
        order = topological(ends, _below)
        for node in order:
            if node.op == "placeholder":
                raise ValueError(f"expected all placeholders to be replaced, got {node.label}")
        slot = {node: i for i, node in enumerate(order)}
        self.inputs = [node for node in order if node.op == "input"]
        labels = _labels(order, ends)
        self._feeds = [(slot[node], node, node in labels) for node in self.inputs]
        self._tensors: list[tuple[int, dict[str, Any], str]] = []
        self.steps: list[tuple[int, list[int], Any, list[int]]] = []
        axes = [root.axes[1] if len(root.axes) > 1 else None for root in self.roots]
        self._results = [(slot[end], axis) for end, axis in zip(ends, axes, strict=True)]
        self.names: dict[Node, str] = {}
        self.memories = {training: BPTTState() for training in (True, False)}
        self.batch: PackedBatch | None = None
        self.postpones_assignments = False
        self._whole_only = [node for node in order if not node.is_leaf and op(node.op).whole]
        outputs = {i for i, _ in self._results}
        self._free = [node for node in self.inputs if FREE in node.shape]
        steps = {} if self._free else _steps(order, ends)
        last = {slot[child]: slot[node] for node, (below, _) in steps.items() for child in below}
        for i, node in enumerate(order):
            if node.weights is not None:
                if node.weights.is_fixed or not self._free:
                    self._add_weights(i, node)
            elif node in steps:
                below, run = steps[node]
                done = [j for j in {slot[c] for c in below} if last[j] == i and j not in outputs]
                self.steps.append((i, [slot[c] for c in below], run, done))
        self._size = len(order)

    def _add_weights(self, i: int, node: Node) -> None:
        weights = node.weights
        assert weights is not None
        tensor = tensor_of(weights)
        base = (node.name or node.op).replace(".", "_")
        name, n = base, 0
        while name in self._parameters or name in self._buffers or hasattr(self, name):
            n += 1
            name = f"{base}_{n}"
        self.names[node] = name
        if weights.trains or weights.keeps:
            self.register_parameter(name, tensor)
            self._tensors.append((i, self._parameters, name))
        else:
            # A buffer moves with the module. It never changes, so it is not saved.
            self.register_buffer(name, tensor.detach(), persistent=False)
            self._tensors.append((i, self._buffers, name))

    @property
    def device(self) -> torch.device:
        """Device of the parameters, or the CPU if there are none."""
        return self._tensors[0][1][self._tensors[0][2]].device if self._tensors else torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the parameters, or of the first input if there are none."""
        for parameter in self._parameters.values():
            if parameter is not None:
                return parameter.dtype
        return getattr(torch, self.inputs[0].dtype) if self.inputs else torch.get_default_dtype()

    def forward(
        self, feeds: Mapping[Node, Value | PackedRows], lanes: Any = None, begins: Any = None
    ) -> tuple[PackedRows, ...]:
        """Run the network on a minibatch.

        Args:
            feeds: value of each of `inputs`, or rows that are on the device already.
            lanes, begins: lanes of truncated sequences, see `feedline.Minibatch`. None means that sequences are whole.

        Returns:
            The rows of each root.

        Raises:
            ValueError: an input is not fed, has a wrong shape, or has another number of sequences than the other
                inputs, or sequences are truncated although an operation needs whole ones.
            StateError: sequences that do not continue from the last minibatch.
        """
        if self._free:
            return self._run_with_shapes(feeds, lanes, begins)
        values: list[Any] = [None] * self._size
        for i, tensors, name in self._tensors:
            values[i] = tensors[name]
        batch = self._feed(values, feeds)
        self.__dict__["batch"] = batch  # a module's attributes cost microseconds otherwise
        if begins is not None:
            if self._whole_only:
                raise ValueError(
                    f"{self._whole_only[0].label}: expected whole sequences, got truncated ones; omit truncation_length"
                )
            batch.cut = TruncatedBatch(lanes, begins, self.memories[self.training])
        for i, below, run, done in self.steps:
            values[i] = run(batch, *[values[j] for j in below])
            for j in done:
                values[j] = None
        if batch.assignments and not self.postpones_assignments:
            assign(batch)
        return tuple(
            [PackedRows(values[i], None if axis is None else batch.sequences[axis]) for i, axis in self._results]
        )

    def _run_with_shapes(self, feeds: Mapping[Node, Any], lanes: Any, begins: Any) -> tuple[PackedRows, ...]:
        """Run the network for the shapes of this data. It is compiled when the shapes first occur."""
        shapes = []
        for node in self._free:
            if feeds.get(node) is None:
                raise ValueError(f"expected data for {node.label}, got it for {_names(feeds)}")
            shapes.append(_sample_shape(node, feeds[node]))
            if not fits(shapes[-1], node.shape):
                raise ValueError(f"{node.label}: expected samples of shape {node.shape}, got {shapes[-1]}")
        key = tuple(shapes)
        if key not in self._by_shapes:
            fixed = [
                input_node(shape, node.axes, node.name, node.sparse, node.dtype)
                for node, shape in zip(self._free, shapes, strict=True)
            ]
            changes = dict(zip(self._free, fixed, strict=True))
            self._by_shapes[key] = Network(replace(outside(self.roots), changes)), changes
        network, changes = self._by_shapes[key]
        network.memories, network.postpones_assignments = self.memories, self.postpones_assignments
        network.to(self.device).train(self.training)
        results: tuple[PackedRows, ...] = network(
            {changes.get(node, node): feed for node, feed in feeds.items()}, lanes, begins
        )
        self.batch = network.batch
        return results

    def _feed(self, values: list[Any], feeds: Mapping[Node, Value | PackedRows]) -> PackedBatch:
        device, dtype = self.device, self.dtype
        sequences: dict[str, Sequences] = {}
        count = 0
        counted: Node | None = None
        for i, node, is_labels in self._feeds:
            feed = feeds.get(node)
            if feed is None:
                raise ValueError(f"expected data for {node.label}, got it for {_names(feeds)}")
            axes = node.axes
            try:
                packed = _pack(node, feed, device, dtype, is_labels) if isinstance(feed, Value) else feed
            except ValueError as error:
                raise ValueError(f"{node.label}: {error}") from error
            data = values[i] = packed.data
            _check_shape(node, packed)
            if not axes:
                continue
            num_sequences = len(data)
            if len(axes) > 1:
                current = packed.sequences
                if current is None:
                    raise ValueError(f"{node.label}: expected sequences, got rows without offsets")
                num_sequences = current.count
                first = sequences.setdefault(axes[1], current)
                if not first.same(current):
                    raise ValueError(
                        f"{node.label}: expected sequences of the same lengths as the other inputs along "
                        f"{axes[1]!r}, got {current.lengths.tolist()[:10]} and {first.lengths.tolist()[:10]}; "
                        "declare it with a separate axis"
                    )
            if counted is None:
                counted, count = node, num_sequences
            elif num_sequences != count:
                raise ValueError(
                    f"{node.label}: expected {count} sequences, as {counted.label} has, got {num_sequences} sequences"
                )
        return PackedBatch(count, sequences, self.training)


def assign(batch: PackedBatch) -> None:
    """Write the values that a run assigned to parameters and constants."""
    with torch.no_grad():
        for _, target, value in sorted(batch.assignments, key=itemgetter(0)):
            target.copy_(value)
    batch.assignments.clear()


def _below(node: Node) -> Sequence[Node]:
    """Return the nodes to compute before a node, without those inside a recurrence."""
    return operands(node) if node.op == "loop" else reads(node)


def _steps(order: Sequence[Node], ends: Sequence[Node]) -> dict[Node, tuple[Sequence[Node], Run]]:
    """Return the operands and the function of each node, in order, without nodes that run as a part of another."""
    inner = [node for node in order if not node.is_leaf]
    readers = Counter(child for node in inner for child in _below(node))
    readers.update(ends)
    plan: dict[Node, tuple[Sequence[Node], Run]] = {}
    for node in inner:
        below = _below(node)
        part, operand, run = op(node.op).fuse(node, below) or (None, None, None)
        if part is None or operand is None or run is None or readers[part] > 1:
            plan[node] = below, op(node.op).lower(node)
            change = op(node.op).in_place
            if change is not None and readers[below[0]] == 1 and below[0] in plan and op(below[0].op).fresh:
                plan[node] = below, partial(_in_place, change)
        else:
            del plan[part]
            plan[node] = [*_below(part), operand], run
    return plan


def _in_place(change: Callable[[torch.Tensor], torch.Tensor], batch: PackedBatch, x: torch.Tensor) -> torch.Tensor:
    return change(x)


def _labels(order: Sequence[Node], ends: Sequence[Node]) -> set[Node]:
    """Return the inputs that are dense vectors and are used only as labels, so that their classes suffice."""
    labels = {n for n in order if n.op == "input" and not n.sparse and n.axes and len(n.shape) == 1 and n.shape[0] > 1}
    labels.difference_update(ends)
    for node in order if labels else ():
        if not node.is_leaf:
            below = _below(node)
            labels.difference_update(below[:1] if op(node.op).labels(node) else below)
    return labels


def _pack(node: Node, value: Value, device: torch.device, dtype: torch.dtype, labels: bool) -> PackedRows:
    """Convert a value for an input. Sparse rows of an input that is declared dense take its shape."""
    packed = PackedRows.of(value, device, dtype, len(node.axes) > 1, not node.sparse, labels=labels)
    data = packed.data
    flat = isinstance(data, SparseRows) and not node.sparse and node.shape != (data.width,)
    if flat and math.prod(node.shape) == data.width:
        packed.data = data.dense().reshape(-1, *node.shape)
    return packed


def _sample_shape(node: Node, feed: Any) -> tuple[int, ...]:
    if isinstance(feed, Value):
        return tuple(feed.shape)
    data = feed.data
    return (data.width,) if isinstance(data, SparseRows) else tuple(data.shape[1:] if node.axes else data.shape)


def _check_shape(node: Node, packed: PackedRows) -> None:
    data = packed.data
    if isinstance(data, torch.Tensor) and node.axes and data.shape[1:] == node.shape:
        return
    shape = _sample_shape(node, packed)
    if shape != node.shape:
        raise ValueError(f"{node.label}: expected samples of shape {node.shape}, got {shape}")


def _names(feeds: Mapping[Node, Any]) -> str:
    return ", ".join(node.label for node in feeds) or "nothing"
