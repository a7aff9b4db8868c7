"""A criterion of functions as feedline's trainer takes it: one module that gives the loss and the metric.

Loss and metric are computed together by one network, once a minibatch; the model is part of it. CNTK's rules for what
they are over: of several numbers a sample the sum counts; the label samples are the samples of the loss; of a loss that
is one number for the whole minibatch they are those of the first variable along the batch that is met below it. A
metric is averaged over the samples of the loss in training, and over its own in testing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from feedline.cntk._feeding import packed_of
from feedline.cntk._order import in_order
from feedline.cntk.device import intended_device
from feedline.cntk.ops.functions import Function
from feedline.cntk.variables import Parameter, Variable
from feedline.networks import Node
from feedline.networks.compile import Network
from feedline.networks.traverse import topological
from feedline.networks.truncation import BPTTState


class CriterionNetwork(Network):
    """Loss and metric of a minibatch.

    Args:
        outputs: nodes of the loss, and of the metric if there is one.
        more: nodes whose values are wanted too.

    Raises:
        ValueError: several numbers for a whole minibatch, or nothing along the batch in them.

    Attributes:
        more: the values of these, of the last minibatch.
    """

    def __init__(self, outputs: Sequence[Node], more: Sequence[Node] = ()) -> None:
        super().__init__([*outputs, *more])
        self._count = len(outputs)
        self._counted = [_counted_by(node) for node in outputs]
        self.more: list[Any] = []
        self._states = {node.uid: f"{node.op}{i}" for i, node in enumerate(topological(self.roots))}
        self._by_name = {node.name: node for node in self.inputs if node.name}

    def forward(self, minibatch: Mapping[Any, Any]) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        """One number a label sample, of each output; in testing the samples are those of the last output.

        Args:
            minibatch: data by variable or by name of one; what no output needs is not looked at.

        Raises:
            ValueError: an input without data, or pieces of sequences where they are needed whole.
            StateError: pieces that go on where no minibatch before has ended.
        """
        feeds: dict[Node, Any] = {}
        for key, value in minibatch.items():
            node = self._by_name.get(key) if isinstance(key, str) else getattr(key, "node", None)
            if node is not None:
                feeds[node] = packed_of(value, node)
        results = super().forward(feeds, *_cut(minibatch))
        self.more = list(results[self._count :])
        assert self.batch is not None
        samples = self.batch.rows(self._counted[0 if self.training else -1])
        pairs = zip(results[: self._count], self.roots, strict=False)
        return tuple(_numbers(packed.data, bool(root.axes), samples) for packed, root in pairs)

    def with_outputs(self, more: Sequence[Node]) -> CriterionNetwork:
        """Another network of the same parameters and states, with more outputs."""
        network = CriterionNetwork(self.roots[: self._count], more)
        network.to(self.device)
        network.memories = self.memories
        return network

    def carried(self) -> dict[str, torch.Tensor]:
        """What recurrences keep for sequences that go on, under names that are the same in every process."""
        return self.memories[True].tensors(self._states)

    def carry_on(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Go on with what `carried` gave."""
        self.memories[True] = BPTTState.of(tensors, {name: key for key, name in self._states.items()})


def _cut(minibatch: Any) -> tuple[Any, Any]:
    return getattr(minibatch, "lanes", None), getattr(minibatch, "begins", None)


def _numbers(data: torch.Tensor, by_sample: bool, samples: int) -> torch.Tensor:
    """As many numbers as samples, of the same sum: what each sample has, or all of it at the first."""
    numbers = data.reshape(len(data), -1).sum(1) if by_sample else data.reshape(1)
    if len(numbers) == samples:
        return numbers
    return torch.cat([numbers.sum().reshape(1), numbers.new_zeros(samples - 1)]) if samples else numbers[:0]


def _counted_by(root: Node) -> tuple[str, ...]:
    """The dynamic axes along which an output has its samples."""
    if not root.axes and math.prod(root.shape) != 1:
        raise ValueError(
            f"expected a loss or metric along the batch, or of one number for all of it, got {root.label} of shape "
            f"{root.shape} without a batch axis"
        )
    found = next((node.axes for node in in_order([root]) if node.type.axes), None)
    if found is None:
        raise ValueError(
            f"expected something along the batch in {root.label}, to count label samples by, got parameters alone"
        )
    return found


def module_of(loss: Any, metric: Any) -> tuple[CriterionNetwork, Any, Any]:
    """The network of a criterion, on the default device, and which of its results are the loss and the metric."""
    outputs = [loss.node] if metric is None else [loss.node, metric.node]
    network = CriterionNetwork(outputs)
    network.to(intended_device().torch())
    return network, _loss, None if metric is None else _metric


def _loss(results: tuple[torch.Tensor, ...], minibatch: Any) -> torch.Tensor:
    return results[0]


def _metric(results: tuple[torch.Tensor, ...], minibatch: Any) -> torch.Tensor:
    return results[1]


def outputs_of(part: Function | Variable) -> list[Variable]:
    """Outputs of a function; a variable is its own."""
    return list(part.outputs) if isinstance(part, Function) else [part]


def functions_of(criterion: Any) -> tuple[Any, Any] | None:
    """(loss, metric or None) of a criterion of functions; None for any other.

    Raises:
        ValueError: a function with more than two outputs.
    """
    parts = list(criterion) if isinstance(criterion, (tuple, list)) else [criterion]
    if not parts or not all(part is None or isinstance(part, (Function, Variable)) for part in parts):
        return None
    nodes = [v for part in parts if part is not None for v in outputs_of(part)]
    if len(nodes) not in (1, 2):
        raise ValueError(f"expected a loss, or a loss and a metric, as criterion, got {len(nodes)} outputs")
    if len(parts) == len(nodes):
        return parts[0], parts[1] if len(parts) == 2 else None
    found = [Function.of([v.node]) for v in nodes]
    return found[0], found[1] if len(found) == 2 else None


def tensors_of(parameters: Iterable[Any]) -> list[Any]:
    """Return pairs of name and tensor for parameters of functions; leave tensors and pairs as they are."""
    given = list(parameters)
    counts: dict[str, int] = {}
    found: list[Any] = []
    for item in given:
        if not isinstance(item, Parameter):
            found.append(item)
            continue
        name = item.name or "parameter"
        n = counts[name] = counts.get(name, -1) + 1
        found.append((f"{name}_{n}" if n else name, item.tensor))
    return found
