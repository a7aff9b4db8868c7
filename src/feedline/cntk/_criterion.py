"""Criteria of CNTK functions for feedline's trainer: one module that computes loss and metric.

One network, which contains the model, computes loss and metric together, once per minibatch. The rules are CNTK's.
Several numbers per sample are summed. Label samples are the samples of the loss, or, if the loss is a single number for
the minibatch, of the first variable below it that has a batch axis. A metric is averaged over the samples of the loss
in training, and over its own samples in testing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from feedline.cntk._nodes import check_element_types
from feedline.cntk._order import in_order
from feedline.cntk._tracing import roots_of
from feedline.cntk.device import intended_device
from feedline.cntk.ops.functions import Function
from feedline.cntk.variables import Parameter, Variable
from feedline.networks import Node
from feedline.networks.compile import Network
from feedline.networks.random_numbers import SeededNumbers
from feedline.networks.traverse import topological
from feedline.networks.truncation import BPTTState


class CriterionNetwork(Network):
    """Network of loss and metric.

    Args:
        outputs: nodes of the loss, and of the metric if there is one.
        extra: further nodes to compute.

    Raises:
        ValueError: several numbers for a whole minibatch, no variable with a batch axis below an output, or an
            operation with operands of several element types.

    Attributes:
        extra: values of the further nodes for the last minibatch.
    """

    def __init__(self, outputs: Sequence[Node], extra: Sequence[Node] = ()) -> None:
        check_element_types([*outputs, *extra])
        super().__init__([*outputs, *extra])
        self._count = len(outputs)
        self._counted = [_counted_by(node) for node in outputs]
        self._by_sample = [bool(node.axes) for node in outputs]
        self.extra: tuple[Any, ...] = ()
        self._states = {node.uid: f"{node.op}{i}" for i, node in enumerate(topological(self.roots))}

    def forward(self, minibatch: Any) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        """Compute one number per label sample for each output. In testing, the last output determines the samples.

        Args:
            minibatch: `feedline.cntk._arguments.Arguments`, which may have data that is not needed.

        Raises:
            ValueError: an input without data, or truncated sequences where whole sequences are needed.
            StateError: sequences that do not continue from the last minibatch.
        """
        results = super().forward(minibatch, minibatch.lanes, minibatch.begins)
        self.__dict__["extra"] = results[self._count :]  # see Network.forward
        assert self.batch is not None
        samples = self.batch.rows(self._counted[0 if self.training else -1])
        pairs = zip(results[: self._count], self._by_sample, strict=True)
        numbers = [_numbers(packed.data, by_sample, samples) for packed, by_sample in pairs]
        if self.training and torch.is_grad_enabled() and not numbers[0].requires_grad:
            numbers[0] = numbers[0] + self._zero(numbers[0].dtype)
        return tuple(numbers)

    def _zero(self, dtype: torch.dtype) -> torch.Tensor:
        """Return 0 with gradients of zero, for losses that no parameter changes differentiably."""
        zero = torch.zeros((), dtype=dtype, device=self.device, requires_grad=True)
        for parameter in self.parameters():
            zero = zero + parameter.flatten()[:0].sum().to(dtype)
        return zero

    def with_outputs(self, extra: Sequence[Node]) -> CriterionNetwork:
        """Return a network with the same parameters and states, and further outputs."""
        network = CriterionNetwork(self.roots[: self._count], extra)
        network.to(self.device)
        network.memories, network.generators = self.memories, self.generators
        return network

    def carried(self) -> dict[str, torch.Tensor]:
        """Return the BPTT state of recurrences, and places in random numbers, under names equal in every process."""
        generators = {
            f"{name}/generator": torch.from_numpy(np.array([numbers.seed, numbers.position], np.uint64).view(np.int64))
            for name, numbers in self.generators.items()
        }
        return {**self.memories[True].tensors(self._states), **generators}

    def carry_on(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore a state returned by `carried`."""
        self.memories[True] = BPTTState.of(tensors, {name: key for key, name in self._states.items()})
        self.generators.clear()
        for name, state in tensors.items():
            stem, _, part = name.rpartition("/")
            if part == "generator":
                seed, position = state.cpu().numpy().view(np.uint64).tolist()
                self.generators[stem] = SeededNumbers(seed, position)


def _numbers(data: torch.Tensor, by_sample: bool, samples: int) -> torch.Tensor:
    """Return one number per sample with the same total: each sample's sum, or the total in the first number."""
    if data.numel() == samples and (by_sample or data.ndim):
        return data
    numbers = data.reshape(len(data), -1).sum(1) if by_sample else data.reshape(1)
    if len(numbers) == samples:
        return numbers
    return torch.cat([numbers.sum().reshape(1), numbers.new_zeros(samples - 1)]) if samples else numbers[:0]


def _counted_by(root: Node) -> tuple[str, ...]:
    """Return the dynamic axes along which the samples of an output are counted."""
    if not root.axes and math.prod(root.shape) != 1:
        raise ValueError(
            f"expected a loss or metric with a batch axis, or of one number, got {root.label} of shape {root.shape} "
            "without a batch axis"
        )
    axes = next((node.axes for node in in_order([root]) if node.type.axes), None)
    if axes is None:
        raise ValueError(
            f"expected a variable with a batch axis in {root.label}, to count label samples, got only parameters"
        )
    return axes


def module_of(loss: Any, metric: Any) -> tuple[CriterionNetwork, Any, Any]:
    """Return the network of a criterion, on the default device, and functions that select its loss and metric."""
    outputs = [loss.node] if metric is None else [loss.node, metric.node]
    network = CriterionNetwork(outputs)
    network.to(intended_device().torch())
    return network, _loss, None if metric is None else _metric


def _loss(results: tuple[torch.Tensor, ...], minibatch: Any) -> torch.Tensor:
    return results[0]


def _metric(results: tuple[torch.Tensor, ...], minibatch: Any) -> torch.Tensor:
    return results[1]


def functions_of(criterion: Any) -> tuple[Any, Any] | None:
    """Return loss, and metric or None, of a criterion of functions, or None for any other criterion.

    Raises:
        ValueError: a function with more than two outputs.
    """
    parts = list(criterion) if isinstance(criterion, (tuple, list)) else [criterion]
    if not parts or not all(part is None or isinstance(part, (Function, Variable)) for part in parts):
        return None
    nodes = [node for part in parts if part is not None for node in roots_of(part)]
    if len(nodes) not in (1, 2):
        raise ValueError(f"expected a loss, or a loss and a metric, as criterion, got {len(nodes)} outputs")
    if len(parts) == len(nodes):
        return parts[0], parts[1] if len(parts) == 2 else None
    functions = [Function.of([node]) for node in nodes]
    return functions[0], functions[1] if len(functions) == 2 else None


def tensors_of(parameters: Iterable[Any]) -> list[Any]:
    """Return pairs of name and tensor for parameters of functions, and other items unchanged."""
    counts: dict[str, int] = {}
    named: list[Any] = []
    for item in parameters:
        if not isinstance(item, Parameter):
            named.append(item)
            continue
        name = item.name or "parameter"
        n = counts[name] = counts.get(name, -1) + 1
        named.append((f"{name}_{n}" if n else name, item.tensor))
    return named
