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
from feedline.networks.node import Node, Weights, fits, input_node, is_fixed, shape_of_width
from feedline.networks.packed_minibatch import PackedBatch, PackedRows, Run, Sequences, SparseRows
from feedline.networks.random_numbers import SeededNumbers
from feedline.networks.registry import op
from feedline.networks.traverse import element_type, reads, replace, resolve_alias, topological
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
        generators: numbers of random operations with a seed, by a name that is the same in every process.
        batch: minibatch of the last run, None before the first.
        steps: for each operation, in the order in which they run: its slot, the slots of its operands, the function
            that runs it, and the slots that are not needed after it.
    """

    def __init__(self, roots: Iterable[Node]) -> None:
        super().__init__()
        self.roots = tuple(roots)
        beyond = outside(self.roots)
        ends = [resolve_alias(root) for root in beyond]
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
        later = _later(order)
        read = {child for node in later for child in _below(node) if child not in later and child.weights is None}
        # Values that later operations read. The shapes of those that are not fixed select the network of these.
        self._passed = [(slot[node], node) for node in order if node in read]
        self._open = [(i, node) for i, node in self._passed if not _has_fixed_shape(node)]
        self._later_roots = [root for root, end in zip(beyond, ends, strict=True) if end in later]
        self._by_shapes: dict[tuple[Any, ...], tuple[Network, dict[Node, Node]]] = {}
        # A slot and the sequence axis for each root, or None if a later operation computes it.
        self._results = [None if end in later else (slot[end], _sequence_axis(end)) for end in ends]
        self.names: dict[Node, str] = {}
        self.memories = {training: BPTTState() for training in (True, False)}
        self.generators: dict[str, SeededNumbers] = {}
        random = (node for node in topological(self.roots) if "seed" in node.attributes)
        self._random = {node: f"{node.op}{i}" for i, node in enumerate(random)}
        self.batch: PackedBatch | None = None
        self._whole_only = [node for node in order if not node.is_leaf and op(node.op).whole]
        now = [node for node in order if node not in later]
        needed = [*(end for end in ends if end not in later), *(node for _, node in self._passed)]
        outputs = {slot[node] for node in needed}
        steps = _steps(now, needed)
        last_use = {child: slot[node] for node, (below, _) in steps.items() for child in below}
        for i, node in enumerate(order):
            if node.weights is not None:
                # Later operations fix the shapes of parameters that only they read.
                if node.weights.is_fixed or node in last_use or not later:
                    self._add_weights(i, node)
            elif node in steps:
                below, run = steps[node]
                done = [j for j in {slot[c] for c in below} if last_use[order[j]] == i and j not in outputs]
                self.steps.append((i, [slot[c] for c in below], run, done))
        self._size = len(order)
        if self.dtype == torch.float64:  # torch multiplies numbers of one type only
            for name, buffer in self._buffers.items():
                if buffer is not None and buffer.dtype == torch.float32:
                    self._buffers[name] = buffer.double()

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
        self, feeds: Mapping[Node, Value | PackedRows], lanes: Any = None, begins: Any = None, *, assigns: bool = True
    ) -> tuple[PackedRows, ...]:
        """Run the network on a minibatch.

        Args:
            feeds: value of each of `inputs`, or rows that are on the device already.
            lanes, begins: lanes of truncated sequences, see `feedline.Minibatch`. Without ``begins`` sequences are
                whole. Without ``lanes`` sequence i is of lane i, and may be whole if all sequences begin.
            assigns: whether to make the assignments of the run. Otherwise they wait for `assign`, until gradients are
                computed.

        Returns:
            The rows of each root.

        Raises:
            ValueError: an input is not fed, has a wrong shape, or has another number of sequences than the other
                inputs, or sequences are truncated although an operation needs whole ones.
            StateError: sequences that do not continue from the last minibatch.
        """
        values = self._values()
        batch = self._feed(values, feeds)
        self.__dict__["batch"] = batch  # a module's attributes cost microseconds otherwise
        if begins is not None:
            if not self._whole_only:
                lanes = np.arange(len(begins)) if lanes is None else lanes
                batch.cut = TruncatedBatch(lanes, begins, self.memories[self.training])
            elif lanes is not None or not begins.all():
                raise ValueError(
                    f"{self._whole_only[0].label}: expected whole sequences, got truncated ones; omit truncation_length"
                )
        results = self._run(batch, values)
        if batch.assignments and assigns:
            assign(batch)
        return results

    def _values(self) -> list[Any]:
        """Return the slots, with the tensors of parameters and constants."""
        values: list[Any] = [None] * self._size
        for i, tensors, name in self._tensors:
            values[i] = tensors[name]
        return values

    def _run(self, batch: PackedBatch, values: list[Any]) -> tuple[PackedRows, ...]:
        """Run the operations, where ``values`` has the inputs. Return the rows of each root."""
        for i, below, run, done in self.steps:
            values[i] = run(batch, *[values[j] for j in below])
            for j in done:
                values[j] = None
        later = iter(self._run_later(batch, values) if self._later_roots else ())
        return tuple(
            [
                next(later)
                if result is None
                else PackedRows(values[result[0]], None if result[1] is None else batch.sequences[result[1]])
                for result in self._results
            ]
        )

    def _run_later(self, batch: PackedBatch, values: list[Any]) -> tuple[PackedRows, ...]:
        """Run the operations below open shapes, in a network for the shapes of this data.

        It is compiled when the shapes occur. The networks of the last `_REMEMBERED` shapes are kept.
        """
        shapes = {node: _shape_of(node, values[i]) for i, node in self._open}
        key = (*shapes.values(), *(tuple(node.attributes.values()) for node in self._random))  # these can be changed
        if key in self._by_shapes:
            network, changes = self._by_shapes[key] = self._by_shapes.pop(key)
        else:
            known = shapes | {node: node.shape for _, node in self._passed if node not in shapes}
            changes = {
                node: input_node(known[node], node.axes, node.name, node.sparse, _kind(node))
                for _, node in self._passed
            }
            network = Network(replace(self._later_roots, changes))
            network._random = {node: f"later {name}" for node, name in network._random.items()}
            self._by_shapes[key] = network, changes
            if len(self._by_shapes) > _REMEMBERED:
                del self._by_shapes[next(iter(self._by_shapes))]
        network.memories, network.generators = self.memories, self.generators
        network.to(self.device).train(self.training)
        if not any(node.axes for _, node in self._passed):
            # What follows makes its batch by `to_batch`, of any size.
            assignments = batch.assignments
            batch = PackedBatch(0, {}, batch.training, network.generator)
            batch.assignments = assignments
        batch.generator = network.generator
        passed = {changes[node]: values[i] for i, node in self._passed}
        inner = network._values()
        for i, node, _ in network._feeds:
            inner[i] = passed[node]
        return network._run(batch, inner)

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
                packed = pack_rows(node, feed, device, dtype, is_labels) if isinstance(feed, Value) else feed
            except ValueError as error:
                raise ValueError(f"{node.label}: {error}") from error
            data = values[i] = packed.data
            _check_shape(node, data)
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
        return PackedBatch(count, sequences, self.training, self.generator)

    def generator(self, node: Node) -> SeededNumbers:
        """Return the numbers of a random operation with a seed. A new seed starts them anew."""
        name, seed = self._random[node], int(node.attributes["seed"]) % 2**64
        generator = self.generators.get(name)
        if generator is None or generator.seed != seed:
            generator = self.generators[name] = SeededNumbers(seed)
        return generator


# Sequences that are unpacked have as many shapes as lengths.
_REMEMBERED = 256


def _later(order: Sequence[Node]) -> set[Node]:
    """Return the operations that need shapes which only data determines, and all that depend on them."""
    later: set[Node] = set()
    for node in order:
        below = () if node.is_leaf else _below(node)
        if any(child in later or not _has_fixed_shape(child) for child in below):
            later.add(node)
    return later


def _has_fixed_shape(node: Node) -> bool:
    return node.weights is not None or (node.type.shape is not None and is_fixed(node.type.shape))


def _sequence_axis(node: Node) -> str | None:
    return node.axes[1] if len(node.axes) > 1 else None


def _kind(node: Node) -> str:
    return node.dtype if node.op == "input" else element_type(node)


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


def pack_rows(node: Node, value: Value, device: torch.device, dtype: torch.dtype, labels: bool = False) -> PackedRows:
    """Convert a value for an input. Sparse rows for samples of several axes become dense, with the input's shape."""
    dense = not node.sparse or len(node.shape) != 1
    packed = PackedRows.of(value, device, dtype, len(node.axes) > 1, dense, labels=labels)
    data = packed.data
    if isinstance(data, SparseRows) and dense and node.shape != (data.width,):
        shape = shape_of_width(node.shape, data.width)
        if math.prod(shape) == data.width:
            packed.data = data.dense().reshape(-1, *shape)
    return packed


def _shape_of(node: Node, data: Any) -> tuple[int, ...]:
    """Return the shape of one sample of rows."""
    if isinstance(data, SparseRows):
        return (data.width,)
    return tuple(data.shape[1:] if node.axes else data.shape)


def _check_shape(node: Node, data: Any) -> None:
    if isinstance(data, torch.Tensor) and node.axes and data.shape[1:] == node.shape:
        return
    shape = _shape_of(node, data)
    if not fits(shape, node.shape):
        raise ValueError(f"{node.label}: expected samples of shape {node.shape}, got {shape}")


def _names(feeds: Mapping[Node, Any]) -> str:
    return ", ".join(node.label for node in feeds) or "nothing"
