"""Optimizers that change what plain SGD adds: its sign (Signum), a correction for delay (DCASGD), noise (SGLD).

The formulas are MXNet 1.9.1's, with its names and defaults.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from feedline.kvstore.base import Key
from feedline.kvstore.optimizers import FormulaOptimizer, FormulaStep, KeyUpdate, States, register_optimizer
from feedline.updates import formulas


@register_optimizer
@dataclass
class SignumOptimizer(FormulaOptimizer):
    """Signum (Bernstein et al., 2018): ``m = momentum m - (1 - momentum) (g + wd w)``.

    ``w = (1 - lr wd_lh) w + lr sign(m)``. Without momentum, it is sign SGD: ``w = (1 - lr wd) w - lr sign(g)``.

    Attributes:
        momentum: 0 to 1.
        wd_lh: weight decay apart from the gradient (Loshchilov and Hutter, 2019); only with momentum.
    """

    name: ClassVar[str] = "signum"
    momentum: float = 0.9
    wd_lh: float = 0.0

    @property
    def keeps(self) -> tuple[str, ...]:  # type: ignore[override]
        """See `Optimizer`."""
        return ("momentum",) if self.momentum else ()

    def step(self, weight: Any, gradient: Any, states: States, now: KeyUpdate) -> FormulaStep | None:
        """See `FormulaOptimizer`."""
        lr = now.learning_rate
        if "momentum" not in states:
            return FormulaStep(formulas.SignFormula(1 - lr * now.wd, -lr))
        formula = formulas.SignumFormula(self.momentum, self.momentum - 1, 1 - lr * self.wd_lh, lr)
        return FormulaStep(formula, [states["momentum"]], outer=now.wd)


@register_optimizer
@dataclass
class DCASGDOptimizer(FormulaOptimizer):
    """SGD that compensates for delay (Zheng et al., 2017), for asynchronous stores.

    ``v = momentum v - lr (g + wd w + lamda g^2 (w - previous w))``, ``w += v``.

    Attributes:
        momentum: 0 to 1.
        lamda: weight of the correction.
    """

    name: ClassVar[str] = "dcasgd"
    momentum: float = 0.0
    lamda: float = 0.04

    @property
    def keeps(self) -> tuple[str, ...]:  # type: ignore[override]
        """See `Optimizer`."""
        return ("momentum", "previous") if self.momentum else ("previous",)

    def initial(self, name: str, weight: Any) -> Any:
        """See `Optimizer`."""
        return weight.clone() if name == "previous" else super().initial(name, weight)

    def step(self, weight: Any, gradient: Any, states: States, now: KeyUpdate) -> FormulaStep | None:
        """See `FormulaOptimizer`."""
        numbers = -now.learning_rate, self.lamda, now.wd
        if "momentum" in states:
            return FormulaStep(
                formulas.DCASGDFormula(self.momentum, *numbers), [states["previous"], states["momentum"]]
            )
        return FormulaStep(formulas.PlainDCASGDFormula(*numbers), [states["previous"]])


@register_optimizer
@dataclass
class SGLDOptimizer(FormulaOptimizer):
    """Stochastic gradient Langevin dynamics: ``w -= lr / 2 (g + wd w)``, then a draw of variance ``lr`` is added.

    The normal numbers depend on ``seed``, the key and its number of updates alone, so that all workers of a
    synchronous store draw the same, and a store that goes on from saved states draws as if it had never stopped.

    Attributes:
        seed: seed of all draws.
    """

    name: ClassVar[str] = "sgld"
    seed: int = 0

    def step(self, weight: Any, gradient: Any, states: States, now: KeyUpdate) -> FormulaStep | None:
        """See `FormulaOptimizer`."""
        lr = now.learning_rate
        noise = torch.randn(weight.shape, generator=drawn_by(self.seed, now.key, now.number), dtype=weight.dtype)
        formula = formulas.StepFormula(-lr / 2)
        return FormulaStep(formula, outer=now.wd, noise=noise.to(weight.device), noise_factor=math.sqrt(lr))


def drawn_by(seed: int, key: Key, count: int) -> torch.Generator:
    """Return the generator of an update's draws, on the CPU."""
    digest = hashlib.blake2b(f"{seed} {key!r} {count}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
