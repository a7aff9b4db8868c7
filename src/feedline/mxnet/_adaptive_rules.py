"""Optimizers with a step for each element, scaled by its past gradients: AdaDelta, Adamax, Nadam, FTML, Ftrl.

The formulas are MXNet 1.9.1's, with its names and defaults.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from feedline.kvstore.optimizers import FormulaOptimizer, FormulaStep, KeyUpdate, States, register_optimizer
from feedline.updates import formulas


@register_optimizer
@dataclass
class AdaDeltaOptimizer(FormulaOptimizer):
    """AdaDelta (Zeiler, 2012), without a learning rate, which is ignored.

    ``n = rho n + (1 - rho) g^2``, ``d = sqrt(s + epsilon) / sqrt(n + epsilon) g``, ``s = rho s + (1 - rho) d^2``,
    ``w -= d + wd w``.

    Attributes:
        rho: decay of both mean squares.
        epsilon: added to both.
    """

    name: ClassVar[str] = "adadelta"
    keeps: ClassVar[tuple[str, ...]] = ("square", "step_square")
    decays: ClassVar[tuple[str, ...]] = ("rho",)
    rho: float = 0.9
    epsilon: float = 1e-5

    def step(self, weight: Any, gradient: Any, states: States, now: KeyUpdate) -> FormulaStep | None:
        """See `FormulaOptimizer`."""
        formula = formulas.AdaDeltaFormula(self.rho, 1 - self.rho, self.epsilon, 1 - now.wd, -1.0)
        return FormulaStep(formula, [states["square"], states["step_square"]])


@register_optimizer
@dataclass
class AdamaxOptimizer(FormulaOptimizer):
    """Adamax (Kingma and Ba, 2015): ``m = beta1 m + (1 - beta1) g``, ``u = max(beta2 u, |g|)``.

    ``w -= lr / (1 - beta1^t) m / u``, where ``g`` includes weight decay. An element whose gradients were all zero
    keeps its weight.

    Attributes:
        beta1: decay of the mean.
        beta2: decay of the largest absolute value.
    """

    name: ClassVar[str] = "adamax"
    keeps: ClassVar[tuple[str, ...]] = ("mean", "largest")
    decays: ClassVar[tuple[str, ...]] = ("beta1", "beta2")
    learning_rate: float = 0.002
    beta1: float = 0.9
    beta2: float = 0.999

    def step(self, weight: Any, gradient: Any, states: States, now: KeyUpdate) -> FormulaStep | None:
        """See `FormulaOptimizer`."""
        rate = now.learning_rate / (1 - self.beta1**now.number)
        formula = formulas.AdaMaxFormula(self.beta1, 1 - self.beta1, self.beta2, 1.0, 0.0, -rate)
        return FormulaStep(formula, [states["mean"], states["largest"]], inner=now.wd)


@register_optimizer
@dataclass
class NadamOptimizer(FormulaOptimizer):
    """Nadam (Dozat, 2016): Adam with Nesterov's momentum, ``b_t = beta1 (1 - 0.96^(schedule_decay t) / 2)``.

    ``m = beta1 m + (1 - beta1) g``, ``v = beta2 v + (1 - beta2) g^2``, and with ``B_t`` the product of ``b_1`` to
    ``b_t``: ``w -= lr ((1 - b_t) g / (1 - B_t) + b_(t+1) m / (1 - B_(t+1))) / (sqrt(v / (1 - beta2^t)) + epsilon)``.
    The gradient includes weight decay.

    Attributes:
        beta1: decay of the mean.
        beta2: decay of the mean square.
        epsilon: added to the root of the mean square.
        schedule_decay: how fast the momentum approaches ``beta1``.
    """

    name: ClassVar[str] = "nadam"
    keeps: ClassVar[tuple[str, ...]] = ("mean", "variance")
    decays: ClassVar[tuple[str, ...]] = ("beta1", "beta2")
    learning_rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    schedule_decay: float = 0.004

    def step(self, weight: Any, gradient: Any, states: States, now: KeyUpdate) -> FormulaStep | None:
        """See `FormulaOptimizer`."""
        count, rate = now.number, now.learning_rate
        momentum, later = (_nesterov(self.beta1, self.schedule_decay, t) for t in (count, count + 1))
        product = _nesterov_product(self.beta1, self.schedule_decay, count)
        formula = formulas.AdamFormula(
            self.beta1,
            1 - self.beta1,
            self.beta2,
            1 - self.beta2,
            1 / (1 - self.beta2**count),
            self.epsilon,
            along=-rate * later / (1 - product * later),
            ahead=-rate * (1 - momentum) / (1 - product),
        )
        return FormulaStep(formula, [states["mean"], states["variance"]], inner=now.wd)


def _nesterov(beta1: float, decay: float, t: int) -> float:
    """Return Nadam's momentum of the update ``t``."""
    return beta1 * (1 - 0.5 * math.pow(0.96, t * decay))


@cache
def _nesterov_products(beta1: float, decay: float) -> list[float]:
    """Return Nadam's products of momenta up to each update, until they no longer differ from zero beside one."""
    products = [1.0]
    for t in itertools.count(1):
        products.append(products[-1] * _nesterov(beta1, decay, t))
        if products[-1] < 1e-17 or t == 1 << 20:
            return products
    raise AssertionError("unreachable")


def _nesterov_product(beta1: float, decay: float, t: int) -> float:
    products = _nesterov_products(beta1, decay)
    return products[t] if t < len(products) else products[-1]


@register_optimizer
@dataclass
class FTMLOptimizer(FormulaOptimizer):
    """FTML, follow the moving leader (Zheng and Kwok, 2017); ``g`` includes weight decay.

    ``v = beta2 v + (1 - beta2) g^2``, ``d' = (1 - beta1^t) / lr (sqrt(v / (1 - beta2^t)) + epsilon)``,
    ``z = beta1 z + (1 - beta1) g - (d' - beta1 d) w``, ``d = d'``, ``w = -z / d``.

    Attributes:
        beta1: decay of the leader.
        beta2: decay of the mean square.
        epsilon: added to the root of the mean square.
    """

    name: ClassVar[str] = "ftml"
    keeps: ClassVar[tuple[str, ...]] = ("divisor", "variance", "leader")
    decays: ClassVar[tuple[str, ...]] = ("beta1", "beta2")
    beta1: float = 0.6
    beta2: float = 0.999
    epsilon: float = 1e-8

    def step(self, weight: Any, gradient: Any, states: States, now: KeyUpdate) -> FormulaStep | None:
        """See `FormulaOptimizer`."""
        formula = formulas.FTMLFormula(
            self.beta1,
            1 - self.beta1,
            self.beta2,
            1 - self.beta2,
            1 / (1 - self.beta2**now.number),
            self.epsilon,
            (1 - self.beta1**now.number) / now.learning_rate,
        )
        kept = (states["divisor"], states["variance"], states["leader"])
        return FormulaStep(formula, kept, inner=now.wd)


@register_optimizer
@dataclass
class FtrlOptimizer(FormulaOptimizer):
    """FTRL, follow the regularized leader (McMahan et al., 2013).

    ``z += g - (sqrt(n + g^2) - sqrt(n)) w / lr``, ``n += g^2``, and ``w = 0`` where ``|z| <= lamda1``, elsewhere
    ``w = (sign(z) lamda1 - z) / ((beta + sqrt(n)) / lr + wd)``. Row-sparse gradients update only their rows.

    Attributes:
        lamda1: weight of the L1 norm.
        beta: added to the root of the sum of squares.
    """

    name: ClassVar[str] = "ftrl"
    keeps: ClassVar[tuple[str, ...]] = ("leader", "square")
    lazy_update: ClassVar[bool] = True
    learning_rate: float = 0.1
    lamda1: float = 0.01
    beta: float = 1.0

    def step(self, weight: Any, gradient: Any, states: States, now: KeyUpdate) -> FormulaStep | None:
        """See `FormulaOptimizer`."""
        formula = formulas.FtrlFormula(now.learning_rate, self.lamda1, self.beta, now.wd)
        return FormulaStep(formula, [states["leader"], states["square"]])
