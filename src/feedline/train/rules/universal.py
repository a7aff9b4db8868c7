"""A rule of the user's own: a function that changes parameters in place. It costs what the function does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from feedline.errors import StateError
from feedline.train.learner import Learner, Step
from feedline.train.parameters import ParameterGroup, Tensors, copied
from feedline.train.schedules import Schedule, Values

#: Gets parameters (to be changed in place), gradients (as the learner sees them) and what there is to know.
Update = Callable[[Tensors, Tensors, Step], None]


class Universal(Learner):
    """Updates by a user's function; rate, penalties, clipping and counters are as for every learner.

    Args:
        parameters: as of `Learner`.
        function: ``function(parameters, gradients, step)``: lists of tensors of the same order, those parameters that
            have a gradient. It changes parameters in place and leaves gradients alone. ``step.rate`` is the rate,
            ``step.samples`` the minibatch's size; gradients are scaled already. Called without autograd.
        lr: as of `Learner`.
        state: tensors that the function changes and that have to be saved and restored with the learner, by name.
        options: further arguments of `Learner`.

    Raises:
        ValueError: what `Learner` raises.
    """

    rule = "universal"
    whole = True

    def __init__(
        self,
        parameters: Iterable[Any],
        function: Update,
        lr: Schedule | Values = 1.0,
        *,
        state: Mapping[str, torch.Tensor] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(parameters, lr, **options)
        self._function, self._own = function, dict(state or {})

    def _apply(self, batch: ParameterGroup, step: Step) -> tuple[float, ...]:
        gradients = batch.gradients
        if step.scale != 1.0:
            gradients = torch._foreach_mul(gradients, step.scale)
        self._function(batch.parameters, gradients, step)
        return batch.numbers

    def _saved(self) -> tuple[dict[str, torch.Tensor], Any]:
        return dict(self._own), {}

    def _restored(self, tensors: Mapping[str, torch.Tensor], own: Any) -> Callable[[], None]:
        if set(tensors) != set(self._own):
            raise StateError(
                "the state has other tensors than this learner's function keeps",
                saved={"state": sorted(tensors)},
                current={"state": sorted(self._own)},
            )
        copies = {name: copied(name, tensors[name], mine, mine.dtype) for name, mine in self._own.items()}

        def restore() -> None:
            with torch.no_grad():
                for name, copy in copies.items():
                    self._own[name].copy_(copy)

        return restore
