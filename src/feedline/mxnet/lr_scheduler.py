"""`mxnet.lr_scheduler`: learning rates by the number of updates, as MXNet 1.9.1 computes them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from feedline.mxnet._names import names_of

__all__, __getattr__ = names_of(__name__)


class LRScheduler:
    """Base class: a warm-up, from ``warmup_begin_lr`` to ``base_lr``, then the schedule of a subclass.

    Args:
        base_lr: learning rate after the warm-up.
        warmup_steps: number of updates of the warm-up.
        warmup_begin_lr: learning rate at its start.
        warmup_mode: ``linear``, or ``constant`` at the initial rate.

    Raises:
        ValueError: a negative or fractional number of steps, a larger rate at the start, or an unknown mode.
    """

    def __init__(
        self, base_lr: float = 0.01, warmup_steps: int = 0, warmup_begin_lr: float = 0, warmup_mode: str = "linear"
    ) -> None:
        if not isinstance(warmup_steps, int) or warmup_steps < 0 or warmup_begin_lr > base_lr:
            raise ValueError(
                f"expected warmup_steps of at least 0 and a warmup_begin_lr up to base_lr, got {warmup_steps} and "
                f"{warmup_begin_lr} for {base_lr}"
            )
        if warmup_mode not in ("linear", "constant"):
            raise ValueError(f"expected a warmup_mode of linear or constant, got {warmup_mode!r}")
        self.base_lr, self.warmup_steps = base_lr, warmup_steps
        self.warmup_begin_lr, self.warmup_final_lr, self.warmup_mode = warmup_begin_lr, base_lr, warmup_mode

    def get_warmup_lr(self, num_update: int) -> float:
        """Return the learning rate of an update of the warm-up."""
        assert num_update < self.warmup_steps
        if self.warmup_mode == "constant":
            return self.warmup_begin_lr
        rise = (self.warmup_final_lr - self.warmup_begin_lr) * num_update / self.warmup_steps
        return self.warmup_begin_lr + rise

    def __call__(self, num_update: int) -> float:
        """Return the learning rate of an update, numbered from 1.

        Raises:
            NotImplementedError: not overridden.
        """
        raise NotImplementedError("expected __call__(num_update) to be overridden: return the learning rate")


class FactorScheduler(LRScheduler):
    """``base_lr`` times ``factor`` after every ``step`` updates, down to ``stop_factor_lr``."""

    def __init__(
        self, step: int, factor: float = 1, stop_factor_lr: float = 1e-8, base_lr: float = 0.01, **warmup: object
    ) -> None:
        super().__init__(base_lr, **warmup)  # type: ignore[arg-type]
        if step < 1 or factor > 1:
            raise ValueError(f"expected a step of at least 1 and a factor up to 1, got {step} and {factor}")
        self.step, self.factor, self.stop_factor_lr, self.count = step, factor, stop_factor_lr, 0

    def __call__(self, num_update: int) -> float:
        """See `LRScheduler`."""
        if num_update < self.warmup_steps:
            return self.get_warmup_lr(num_update)
        while num_update > self.count + self.step:
            self.count += self.step
            self.base_lr = max(self.base_lr * self.factor, self.stop_factor_lr)
        return self.base_lr


class MultiFactorScheduler(LRScheduler):
    """``base_lr`` times ``factor`` after each of the numbers of updates in ``step``, which increase."""

    def __init__(self, step: Sequence[int], factor: float = 1, base_lr: float = 0.01, **warmup: object) -> None:
        super().__init__(base_lr, **warmup)  # type: ignore[arg-type]
        steps = list(step)
        if not steps or steps[0] < 1 or any(b <= a for a, b in itertools.pairwise(steps)) or factor > 1:
            raise ValueError(f"expected increasing steps from 1 and a factor up to 1, got {step} and {factor}")
        self.step, self.factor, self.cur_step_ind, self.count = steps, factor, 0, 0

    def __call__(self, num_update: int) -> float:
        """See `LRScheduler`."""
        if num_update < self.warmup_steps:
            return self.get_warmup_lr(num_update)
        while self.cur_step_ind < len(self.step) and num_update > self.step[self.cur_step_ind]:
            self.count = self.step[self.cur_step_ind]
            self.cur_step_ind += 1
            self.base_lr *= self.factor
        return self.base_lr


class PolyScheduler(LRScheduler):
    """From ``base_lr`` to ``final_lr`` along ``(1 - progress) ** pwr``, over ``max_update`` updates."""

    def __init__(
        self, max_update: int, base_lr: float = 0.01, pwr: float = 2, final_lr: float = 0, **warmup: object
    ) -> None:
        super().__init__(base_lr, **warmup)  # type: ignore[arg-type]
        self.max_steps = _steps(max_update, self.warmup_steps)
        self.max_update, self.power, self.base_lr_orig, self.final_lr = max_update, pwr, base_lr, final_lr

    def __call__(self, num_update: int) -> float:
        """See `LRScheduler`."""
        if num_update < self.warmup_steps:
            return self.get_warmup_lr(num_update)
        if num_update <= self.max_update:
            remaining = 1 - (num_update - self.warmup_steps) / self.max_steps
            self.base_lr = self.final_lr + (self.base_lr_orig - self.final_lr) * remaining**self.power
        return self.base_lr


class CosineScheduler(LRScheduler):
    """From ``base_lr`` to ``final_lr`` along half a cosine, over ``max_update`` updates."""

    def __init__(self, max_update: int, base_lr: float = 0.01, final_lr: float = 0, **warmup: object) -> None:
        super().__init__(base_lr, **warmup)  # type: ignore[arg-type]
        self.max_steps = _steps(max_update, self.warmup_steps)
        self.max_update, self.base_lr_orig, self.final_lr = max_update, base_lr, final_lr

    def __call__(self, num_update: int) -> float:
        """See `LRScheduler`."""
        if num_update < self.warmup_steps:
            return self.get_warmup_lr(num_update)
        if num_update <= self.max_update:
            turn = math.pi * (num_update - self.warmup_steps) / self.max_steps
            self.base_lr = self.final_lr + (self.base_lr_orig - self.final_lr) * (1 + math.cos(turn)) / 2
        return self.base_lr


def _steps(max_update: int, warmup_steps: int) -> int:
    if not isinstance(max_update, int) or max_update < 1:
        raise ValueError(f"expected a max_update of at least 1, got {max_update}")
    return max_update - warmup_steps
