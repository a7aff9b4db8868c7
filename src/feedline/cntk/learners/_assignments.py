"""Rule of `universal` as documented by CNTK: a function of assignments that runs at every update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from feedline.cntk.ops.functions import Function
from feedline.cntk.variables import Constant, Parameter, variable_of
from feedline.networks.traverse import topological
from feedline.train.learner import Step


class Assignments:
    """Rule that calls ``update_func`` once, and runs its result at every update.

    Args:
        update_func: function ``update_func(parameters, gradients)`` that returns a function of `assign`.
        parameters: parameters to update.

    Raises:
        TypeError: ``update_func`` returned no function.
        RuntimeError: the function does not have one of the parameters.

    Attributes:
        state: tensors of constants that it assigns to, by name.
    """

    def __init__(self, update_func: Callable[[list[Any], list[Any]], Any], parameters: Sequence[Parameter]) -> None:
        self._parameters = parameters
        self._gradients = [Constant(0, p.shape, p.dtype) for p in parameters]
        update = update_func(list(parameters), list(self._gradients))
        if not isinstance(update, Function):
            raise TypeError(
                "expected update_func to return a function, such as combine([assign(p, p - 0.1 * g), ...]), got "
                f"{type(update).__name__}"
            )
        missing = [p for p in parameters if p not in update.parameters]
        if missing:
            raise RuntimeError(
                f"expected update_func to return a function of all parameters, got one without {missing}"
            )
        nodes = topological([v.node for v in update.outputs])
        assigned = [node.inputs[0] for node in nodes if node.op == "assign"]
        assigned_constants = dict.fromkeys(node for node in assigned if node.op == "constant")
        for node in (*assigned_constants, *(g.node for g in self._gradients)):
            # The constant's tensor, which moves with the network.
            assert node.weights is not None
            node.weights.keeps = True
        constants = [variable_of(node) for node in assigned_constants]
        self.state = {f"{c.name or 'constant'}{i}": c.tensor for i, c in enumerate(constants)}  # type: ignore[attr-defined]
        self._network = update.network()

    def __call__(self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], step: Step) -> None:
        """Update the parameters. A missing gradient counts as 0."""
        by_parameter = {id(p): g for p, g in zip(parameters, gradients, strict=True)}
        self._network.to(parameters[0].device)
        for parameter, constant in zip(self._parameters, self._gradients, strict=True):
            gradient = by_parameter.get(id(parameter.tensor))
            if gradient is None:
                constant.tensor.zero_()
            else:
                constant.tensor.copy_(gradient)
        self._network({})
