"""MXNet's rarer optimizers, as rules of stores: a step for each element, by the norms of a whole array, and others.

AdaDelta, Adamax, Nadam, FTML and Ftrl scale each element by its past gradients. Signum, DCASGD and SGLD change the step
of plain SGD: by its sign, a correction for delay, noise. The step of LAMB, LARS and LBSGD, which are for large batches,
depends on the norms of a whole array. A server of ``dist_async`` computes the norms of its part.

The formulas are MXNet 1.9.1's, with its names and defaults. `feedline.kvstore.optimizer` imports this module when it
gets one of these names.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch

from feedline.collective.refusal import RefusedError
from feedline.kvstore.base import Key
from feedline.kvstore.optimizers import SGD, FormulaOptimizer, FormulaStep, KeyUpdate, States, register_optimizer
from feedline.updates import formulas
from feedline.updates.formulas import norm


@register_optimizer
@dataclass
class AdaDeltaOptimizer(FormulaOptimizer):
    """AdaDelta (Zeiler, 2012), without a learning rate, which is ignored.

    ``n = rho n + (1 - rho) g^2``, ``d = sqrt(s + epsilon) / sqrt(n + epsilon) g``, ``s = rho s + (1 - rho) d^2``,
    ``w -= d + wd w``.

    Attributes:
        rho: decay of both mean squares.
        epsilon: added to both mean squares.
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
        return FormulaStep(formula, [states["mean"], states["largest"]], early_decay=now.wd)


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
        return FormulaStep(formula, [states["mean"], states["variance"]], early_decay=now.wd)


def _nesterov(beta1: float, decay: float, t: int) -> float:
    """Return Nadam's momentum of the update ``t``."""
    return beta1 * (1 - 0.5 * math.pow(0.96, t * decay))


@cache
def _nesterov_products(beta1: float, decay: float) -> list[float]:
    """Return Nadam's products of momenta up to each update, until one minus the product rounds to one."""
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
    """FTML, follow the moving leader (Zheng and Kwok, 2017). ``g`` includes weight decay.

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
        moments = (states["divisor"], states["variance"], states["leader"])
        return FormulaStep(formula, moments, early_decay=now.wd)


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


@register_optimizer
@dataclass
class SignumOptimizer(FormulaOptimizer):
    """Signum (Bernstein et al., 2018): ``m = momentum m - (1 - momentum) (g + wd w)``.

    ``w = (1 - lr wd_lh) w + lr sign(m)``. Without momentum, it is sign SGD: ``w = (1 - lr wd) w - lr sign(g)``.

    Attributes:
        momentum: 0 to 1.
        wd_lh: weight decay apart from the gradient (Loshchilov and Hutter, 2019), only with momentum.
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
        return FormulaStep(formula, [states["momentum"]], late_decay=now.wd)


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

    The normal numbers depend only on ``seed``, the key and its number of updates. So all workers of a synchronous
    store draw the same, and a store that continues from saved states draws as if it had never stopped.

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
        return FormulaStep(formula, late_decay=now.wd, noise=noise.to(weight.device), noise_factor=math.sqrt(lr))


def drawn_by(seed: int, key: Key, count: int) -> torch.Generator:
    """Return the generator of an update's draws, on the CPU."""
    digest = hashlib.blake2b(f"{seed} {key!r} {count}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


@register_optimizer
@dataclass
class LAMBOptimizer(FormulaOptimizer):
    """LAMB (You et al., 2020): Adam's step, as long as the weight.

    With Adam's mean ``m`` and mean square ``v``, ``s = m / (sqrt(v) + epsilon) + wd w`` and
    ``w -= lr |w| / |s| s``. A norm of zero makes the quotient one.

    Attributes:
        beta1: decay of the mean.
        beta2: decay of the mean square.
        epsilon: added to the root of the mean square.
        lower_bound: lowest norm of the weight in the quotient. None means no bound.
        upper_bound: highest norm of the weight. None means no bound.
        bias_correction: whether mean and mean square are divided by one minus their beta to the power of the count.
    """

    name: ClassVar[str] = "lamb"
    keeps: ClassVar[tuple[str, ...]] = ("mean", "variance")
    decays: ClassVar[tuple[str, ...]] = ("beta1", "beta2")
    learning_rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    lower_bound: float | None = None
    upper_bound: float | None = None
    bias_correction: bool = True

    def step(self, weight: Any, gradient: Any, states: States, now: KeyUpdate) -> FormulaStep | None:
        """See `FormulaOptimizer`."""
        bias1 = bias2 = 1.0
        if self.bias_correction:
            bias1, bias2 = 1 - self.beta1**now.number, 1 - self.beta2**now.number
        formula = formulas.LAMBFormula(
            self.beta1,
            1 - self.beta1,
            self.beta2,
            1 - self.beta2,
            1 / bias1,
            1 / bias2,
            self.epsilon,
            now.wd,
            -now.learning_rate,
            -math.inf if self.lower_bound is None else self.lower_bound,
            math.inf if self.upper_bound is None else self.upper_bound,
        )
        return FormulaStep(formula, [states["mean"], states["variance"]])


class _LargeBatch(SGD):
    """SGD with a learning rate for each array. It needs the norm of all rows, so lazy updates are refused."""

    def checked(self, name: str, value: Any) -> Any:
        """See `Optimizer`."""
        if name == "lazy_update" and value is True:
            raise RefusedError(
                f"expected lazy_update=False for {self.name}, which needs the norm of all rows, got True"
            )
        return super().checked(name, value)


@register_optimizer
@dataclass
class LARSOptimizer(_LargeBatch):
    """LARS (You et al., 2017): SGD with the learning rate times ``eta |w| / (|g| + wd |w| + eps)``.

    The factor is one for keys whose name ends with ``gamma``, ``beta`` or ``bias``, and where a norm is zero.

    Attributes:
        eta: factor of the quotient.
        eps: added to its denominator.
        momentum_correction: whether the momentum is multiplied by the quotient of a key's learning rate and its last
            one (Goyal et al., 2017). The last one is not saved with the states.
    """

    name: ClassVar[str] = "lars"
    lazy_update: bool = False
    eta: float = 0.001
    eps: float = 0.0
    momentum_correction: bool = True

    def __post_init__(self) -> None:
        self._last: dict[Any, float] = {}

    def forget(self) -> None:
        """See `Optimizer`."""
        super().forget()
        self._last.clear()

    def step(self, weight: Any, gradient: Any, states: States, now: KeyUpdate) -> FormulaStep | None:
        """See `FormulaOptimizer`."""
        rate, last = now.learning_rate, self._last.get(now.key, now.learning_rate)
        self._last[now.key] = rate
        momentum = self.momentum * rate / last if self.momentum_correction and last else self.momentum
        if not self.name_of(now.key).endswith(("gamma", "beta", "bias")):
            length, of_gradient = norm(weight), norm(gradient) * abs(self.rescale_grad)
            if length and of_gradient:
                rate *= self.eta * length / (of_gradient + now.wd * length + self.eps)
        if "momentum" not in states:
            return FormulaStep(formulas.StepFormula(-rate), late_decay=now.wd)
        return FormulaStep(formulas.MomentumFormula(momentum, -rate, 1.0), [states["momentum"]], late_decay=now.wd)


@register_optimizer
@dataclass
class LBSGDOptimizer(_LargeBatch):
    """SGD for large batches: the mean of ``batch_scale`` gradients, with a learning rate that warms up.

    The rate is multiplied by ``1 + (batch_scale - 1) p``, where ``p`` goes from 0 to 1 over the warm-up: as the
    progress (``linear``), its square (``power2``) or its root (``sqrt``). With ``lars``, it is always multiplied by
    LARS's ``sqrt(|w|^2 / (|g|^2 + wd |w|^2))``, from 0.01 to 100.

    Attributes:
        warmup_strategy: ``linear``, ``power2``, ``sqrt`` or ``lars``.
        warmup_epochs: length of the warm-up.
        batch_scale: number of gradients of a key for each update.
        updates_per_epoch: number of gradients of a key in an epoch.
        begin_epoch: epoch of the first gradient.
        num_epochs: no effect, as in MXNet.
    """

    name: ClassVar[str] = "lbsgd"
    lazy_update: bool = False
    warmup_strategy: str = "linear"
    warmup_epochs: int = 5
    batch_scale: int = 1
    updates_per_epoch: int = 32
    begin_epoch: int = 0
    num_epochs: int = 60

    @property
    def keeps(self) -> tuple[str, ...]:  # type: ignore[override]
        """See `Optimizer`."""
        return (*super().keeps, "gradients") if self.batch_scale > 1 else super().keeps

    def checked(self, name: str, value: Any) -> Any:
        """See `Optimizer`."""
        strategies = ("linear", "power2", "sqrt", "lars")
        if name == "warmup_strategy":
            if value not in strategies:
                raise RefusedError(f"expected a warmup_strategy of {', '.join(strategies)}, got {value!r}")
            return value
        value = super().checked(name, value)
        if name == "batch_scale" and (value < 1 or value != int(value)):
            raise RefusedError(f"expected a whole number from 1 as batch_scale of {self.name}, got {value}")
        return value

    def step(self, weight: Any, gradient: Any, states: States, now: KeyUpdate) -> FormulaStep | None:
        """See `FormulaOptimizer`."""
        count = self.begin_epoch * self.updates_per_epoch + now.number
        if "gradients" in states:
            total = states["gradients"].add_(gradient)
            if count % self.batch_scale:
                return None
            gradient = total / self.batch_scale
            total.zero_()
        rate = now.learning_rate * self._factor(weight, gradient, now.wd, count)
        step = super().step(weight, gradient, states, now._replace(learning_rate=rate))
        return None if step is None else step._replace(gradient=gradient)

    def _factor(self, weight: Any, gradient: Any, wd: float, count: int) -> float:
        if self.warmup_strategy == "lars":
            length2, gradient2 = norm(weight) ** 2, norm(gradient) ** 2
            return min(max(math.sqrt(length2 / (gradient2 + wd * length2 + 1e-18)), 0.01), 100.0)
        length = self.warmup_epochs * self.updates_per_epoch
        if count >= length:
            return float(self.batch_scale)
        if length <= 1:
            return 1.0
        power = {"linear": 1.0, "power2": 2.0, "sqrt": 0.5}[self.warmup_strategy]
        return 1.0 + (self.batch_scale - 1) * math.pow(count / length, power)
