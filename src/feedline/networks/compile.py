"""A network as a `torch.nn.Module`: a plan made once from the graph, run for every minibatch.

The plan is a list of torch calls in order of computation; what a node needs to know besides its inputs' data is worked
out when the plan is made. Running it costs about a microsecond a node above torch's own calls. torch's autograd gives
the gradients. Parameters are those of the graph's leaves: networks compiled from graphs that share leaves share them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import torch

from feedline.data.value import Value
from feedline.networks.loop import operands
from feedline.networks.node import Node, Weights
from feedline.networks.packed import Packed, PackedBatch, Sequences, SparseRows
from feedline.networks.registry import op
from feedline.networks.traverse import behind, reads, topological
from feedline.networks.truncation import BPTTState, TruncatedBatch


def tensor_of(weights: Weights) -> torch.nn.Parameter:
    """The tensor behind a parameter or constant, filled now if it was not.

    Raises:
        ValueError: its shape has not settled.
    """
    if weights.tensor is None:
        if not weights.settled:
            raise ValueError(f"expected a parameter of known shape, got {weights.shape}: apply its layer to data first")
        value = weights.fill(weights.shape)
        tensor = value if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))
        tensor = tensor.to(getattr(torch, weights.dtype)).expand(weights.shape).contiguous()
        weights.tensor = torch.nn.Parameter(tensor, requires_grad=weights.trains)
    found: torch.nn.Parameter = weights.tensor
    return found


class Network(torch.nn.Module):
    """A graph to run.

    Args:
        roots: what to compute.

    Raises:
        ValueError: a placeholder is left, a shape is not known, or a recurrence cannot be run.

    Attributes:
        roots: as given.
        inputs: the input leaves that are fed.
        memories: in training and otherwise, what recurrences keep for sequences that go on in the next minibatch.
        batch: the minibatch of the last run; None before.
    """

    def __init__(self, roots: Iterable[Node]) -> None:
        super().__init__()
        self.roots = tuple(roots)
        ends = [behind(root) for root in self.roots]
        order = topological(ends, _below)
        slot = {node: i for i, node in enumerate(order)}
        self.inputs = [node for node in order if node.op == "input"]
        self._fed = [(slot[node], node) for node in self.inputs]
        self._held: list[tuple[int, dict[str, Any], str]] = []
        self._plan: list[tuple[int, list[int], Any, list[int]]] = []
        self._results = [(slot[end], root) for end, root in zip(ends, self.roots, strict=True)]
        self.names: dict[Node, str] = {}
        self.memories = {training: BPTTState() for training in (True, False)}
        self.batch: PackedBatch | None = None
        self._whole = [node for node in order if not node.is_leaf and op(node.op).whole]
        last = {slot[child]: i for i, node in enumerate(order) for child in _below(node)}
        kept = {i for i, _ in self._results}
        for i, node in enumerate(order):
            if node.op == "placeholder":
                raise ValueError(f"expected all placeholders to be replaced, got {node.label}")
            if node.weights is not None:
                self._hold(i, node)
            elif node.op != "input":
                done = [j for j in {slot[c] for c in _below(node)} if last[j] == i and j not in kept]
                self._plan.append((i, [slot[c] for c in _below(node)], op(node.op).lower(node), done))
        self._size = len(order)

    def _hold(self, i: int, node: Node) -> None:
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
            self._held.append((i, self._parameters, name))
        else:
            # Never changes, and so need not be saved; a buffer, to move with the module.
            self.register_buffer(name, tensor.detach(), persistent=False)
            self._held.append((i, self._buffers, name))

    @property
    def device(self) -> torch.device:
        """Where the parameters are; the CPU without any."""
        for _, held, name in self._held:
            found: torch.device = held[name].device
            return found
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters; that of the first input without any."""
        for _, held, name in self._held:
            found: torch.dtype = held[name].dtype
            return found
        named: torch.dtype = getattr(torch, self.inputs[0].dtype) if self.inputs else torch.get_default_dtype()
        return named

    def forward(
        self, feeds: Mapping[Node, Value | Packed], lanes: Any = None, begins: Any = None
    ) -> tuple[Packed, ...]:
        """Run it over a minibatch.

        Args:
            feeds: for each of `inputs` its value, or rows that are on the device already.
            lanes, begins: of sequences that are pieces of longer ones, see `feedline.Minibatch`; None: they are whole.

        Returns:
            for each root its rows.

        Raises:
            ValueError: an input is not fed, has another shape, or another number of sequences than the others; or
                pieces of sequences, and an operation that needs them whole.
            StateError: pieces that go on where no minibatch before has ended.
        """
        values: list[Any] = [None] * self._size
        for i, held, name in self._held:
            values[i] = held[name]
        batch = self.batch = self._feed(values, feeds)
        if begins is not None:
            if self._whole:
                raise ValueError(
                    f"{self._whole[0].label}: expected whole sequences, got pieces of them; leave truncation_length out"
                )
            batch.cut = TruncatedBatch(lanes, begins, self.memories[self.training])
        for i, below, run, done in self._plan:
            values[i] = run(batch, *[values[j] for j in below])
            for j in done:
                values[j] = None
        if batch.assignments:
            with torch.no_grad():
                for _, target, value in sorted(batch.assignments, key=itemgetter(0)):
                    target.copy_(value)
            batch.assignments.clear()
        return tuple(
            Packed(values[i], batch.sequences[root.axes[1]] if len(root.axes) > 1 else None)
            for i, root in self._results
        )

    def _feed(self, values: list[Any], feeds: Mapping[Node, Value | Packed]) -> PackedBatch:
        device, dtype = self.device, self.dtype
        sequences: dict[str, Sequences] = {}
        count = 0
        counted: Node | None = None
        for i, node in self._fed:
            given = feeds.get(node)
            if given is None:
                raise ValueError(f"expected data for {node.label}, got it for {_names(feeds)}")
            ragged = len(node.axes) > 1
            try:
                packed = Packed.of(given, device, dtype, ragged) if isinstance(given, Value) else given
            except ValueError as error:
                raise ValueError(f"{node.label}: {error}") from error
            _check_shape(node, packed)
            values[i] = packed.data
            if not node.axes:
                continue
            mine = len(packed.data)
            if ragged:
                own = packed.sequences
                if own is None:
                    raise ValueError(f"{node.label}: expected sequences, got rows without offsets")
                mine = own.count
                other = sequences.setdefault(node.axes[1], own)
                if not other.same(own):
                    raise ValueError(
                        f"{node.label}: expected sequences of the same lengths as the other inputs along "
                        f"{node.axes[1]!r}, got {own.lengths.tolist()[:10]} and {other.lengths.tolist()[:10]}; "
                        "declare it with an axis of its own"
                    )
            if counted is None:
                counted, count = node, mine
            elif mine != count:
                raise ValueError(
                    f"{node.label}: expected {count} sequences, as {counted.label} has, got {mine} sequences"
                )
        return PackedBatch(count, sequences, self.training)


def _below(node: Node) -> Sequence[Node]:
    """What is computed before a node; a recurrence computes its own inside itself."""
    return operands(node) if node.op == "loop" else reads(node)


def _check_shape(node: Node, packed: Packed) -> None:
    data = packed.data
    shape = (data.width,) if isinstance(data, SparseRows) else tuple(data.shape[1:] if node.axes else data.shape)
    if shape != node.shape:
        raise ValueError(f"{node.label}: expected samples of shape {node.shape}, got {shape}")


def _names(feeds: Mapping[Node, Any]) -> str:
    return ", ".join(node.label for node in feeds) or "nothing"
