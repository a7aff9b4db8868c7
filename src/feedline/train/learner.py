"""The base class of learners: clock, learning rate, and the steps before and after a rule.

An update has the same eight steps for every rule, in this order. Here c is the number of samples over which the
gradients were summed (1 for means), and w is a parameter.

1. The rate is looked up. If it is 0, nothing changes and `update` returns False.
2. Gradients are clipped at ``clip`` times c, by value, by the norm of each parameter's gradient, or by their common
   norm.
3. L2: ``l2 * c * w`` is added to the gradient.
4. The gradient is converted to a mean or sum over the minibatch (``gradients=``).
5. The rule is applied (see `feedline.train.rules` and `feedline.train.torch_learner`).
6. Gaussian noise is added to the parameters.
7. L1: parameters are shrunk towards 0 by ``l1`` times the rate.
8. The counters advance.

Gradients are read-only. Scaling (step 4) costs nothing: rules multiply it into scalars that they use anyway. On the CPU
native code does steps 2 to 7 in one pass over memory, for all parameters of a dtype in one call (`feedline.updates`).
Parameters of other devices are updated by fused (foreach) operations of torch. Only norms, and rules that divide by a
mean over each parameter, need a further pass. Parameters of half precision have their state in float32, in which their
rules compute.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from feedline.data import Position
from feedline.errors import StateError, install_line, shown
from feedline.runs.fields import amount, whole
from feedline.train.parameters import ParameterGroup, Tensors, copy_saved, group_indices, parameters_by_name
from feedline.train.schedules import Schedule, Values, at_least_zero, one_of, rates_schedule
from feedline.train.strategy import Alone, Strategy
from feedline.train.unwrap import plain_learner_state
from feedline.updates.adjustments import (
    NO_ADJUSTMENTS,
    Adjustments,
    adjust,
    clipping_factors,
    finish,
    global_factor,
)
from feedline.updates.formulas import Formula
from feedline.updates.native_tensors import computing_dtype
from feedline.updates.update import update

try:
    import torch
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"torch is not installed; run: {install_line('torch')}") from error

FORMAT = 1


# Attributes with numbers and texts that are not settings.
_BOOKKEEPING = ("samples", "minibatches", "sweeps", "scale", "seed", "_lr_was_reset")


@dataclass(frozen=True, slots=True)
class Step:
    """Numbers of an update, for a rule.

    Attributes:
        position: clock before the update.
        samples: number of samples in the minibatch, over all ranks.
        rate: factor of the direction of the rule. It fits the gradients that the learner's settings ask for.
        scale: factor that converts the tensors of `ParameterGroup.gradients` to means or sums, as the settings ask.
    """

    position: Position
    samples: int
    rate: float
    scale: float


class Learner:
    """A learner, which updates parameters from gradients by one rule, at the rate of a schedule.

    Learners count samples and sweeps, by which schedules are indexed. The state consists of a few numbers, and of
    tensors in the shapes of the parameters.

    Args:
        parameters: tensors, or (name, tensor) pairs as from ``model.named_parameters()``, floating point, any shapes,
            devices and dtypes. Unnamed ones are named by their index: ``"0"``, ``"1"``, …
        lr: learning rate, at least 0: a `Schedule`, or values for one. With a reference size the rate grows with the
            minibatch, otherwise it is for a whole minibatch of any size.
        gradients: ``"mean"``: the rule uses the mean gradient of a minibatch. ``"sum"``: it uses the sum, and the rate
            is divided by the number of samples, which is CNTK's default. The result of rules that are linear in the
            gradient (sgd, momentum_sgd, nesterov) does not depend on it.
        clip: largest gradient per sample, in absolute value or norm. None means no limit.
        clip_by: ``"value"``: each element is clipped. ``"norm"``: each parameter's gradient is scaled down.
            ``"global_norm"``: the gradients of all parameters of the learner are scaled down together.
        l1: weight of the L1 penalty per sample, at least 0.
        l2: weight of the L2 penalty per sample, at least 0.
        noise: standard deviation of the Gaussian noise added to parameters after each update, a number or schedule.
        seed: seed of the noise, which is a function of (seed, parameters' names, minibatches seen).

    Attributes:
        lr: schedule of the learning rate. See `reset_learning_rate`.
        scale: factor of the scheduled rate, 1 at first. Controllers lower it.
        samples: number of samples counted.
        minibatches: number of updates.
        sweeps: number of sweeps that have ended.
        strategy: strategy of training with other ranks, set by `data_parallel`, `quantized`, `block_momentum`,
            `through_store`.

    Raises:
        TypeError: a parameter is not a floating-point tensor.
        ValueError: no parameters, a repeated one, or an option out of its range.
    """

    #: Name of the rule in states.
    rule: str
    #: Names of each parameter's state tensors, zero at first.
    tensors: ClassVar[tuple[str, ...]] = ()
    #: Names of each parameter's state numbers, 0 at first.
    numbers: ClassVar[tuple[str, ...]] = ()
    #: Whether the rule accepts torch's sparse gradients.
    takes_sparse: ClassVar[bool] = False
    #: Whether the rule receives all parameters at once, whatever their devices and dtypes.
    whole: ClassVar[bool] = False

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: Schedule | Values,
        *,
        gradients: str = "mean",
        clip: float | None = None,
        clip_by: str = "value",
        l1: float = 0.0,
        l2: float = 0.0,
        noise: Schedule | Values = 0.0,
        seed: int = 0,
    ) -> None:
        self._parameters = parameters_by_name(parameters)
        self._list: Tensors = list(self._parameters.values())
        self.lr = rates_schedule(lr)
        one_of("gradients", gradients, ("mean", "sum"))
        one_of("clip_by", clip_by, ("value", "norm", "global_norm"))
        if clip is not None and not clip > 0:
            raise ValueError(f"expected clip to be above 0, got {clip}; None is no limit")
        at_least_zero("l1", l1)
        at_least_zero("l2", l2)
        self._sums, self._clip_by = gradients == "sum", clip_by
        self._clip = math.inf if clip is None else float(clip)
        self._l1, self._l2 = float(l1), float(l2)
        self._noise = Schedule.of(noise)
        at_least_zero("noise", min(self._noise.numbers))
        self.seed = int(seed)
        self.samples, self.minibatches, self.sweeps = 0, 0, 0
        self.scale = 1.0
        self.strategy: Strategy = Alone()
        self._lr_start = (0, 0)  # samples and sweeps when the schedule was set
        self._lr_was_reset = False
        self._state: list[dict[str, torch.Tensor]] = [{} for _ in self._list]
        self._numbers: list[tuple[float, ...]] = [(0,) * len(self.numbers) for _ in self._list]
        self._index_lists: list[list[int]] = []

    # A rule defines one of the next two methods. Most rules are formulas with numbers. Others get lists of parameters.

    def _formula(self, numbers: tuple[float, ...], step: Step, dtype: torch.dtype) -> tuple[Formula, tuple[float, ...]]:
        """Return the formula for parameters with these numbers that compute in a dtype, and their new numbers."""
        raise NotImplementedError(f"the rule {self.rule!r} has no formula")

    def _apply(self, batch: ParameterGroup, step: Step) -> tuple[float, ...]:
        """Apply the rule: change ``batch.parameters`` and ``batch.state`` in place. Return the batch's new numbers."""
        formula, numbers = self._formula(batch.numbers, step, batch.dtype)
        arrays = batch.parameters, batch.gradients, batch.state
        update(formula, *arrays, batch.adjustments, factors=batch.factors, noise=batch.noise)
        return numbers

    # ---- properties -----------------------------------------------------------------------------------------

    @property
    def parameters(self) -> Mapping[str, torch.Tensor]:
        """Parameters by name, in order."""
        return MappingProxyType(self._parameters)

    @property
    def position(self) -> Position:
        """Clock of the learner: label samples and sweeps."""
        return Position(sweep=self.sweeps, samples=self.samples, label_samples=self.samples)

    def learning_rate(self) -> float:
        """Learning rate of the next update, for a minibatch of the reference size."""
        return self.lr[self._lr_position()] * self.scale

    def reset_learning_rate(self, lr: Schedule | Values) -> None:
        """Replace the schedule. The new one starts at the present position.

        From then on the schedule is part of the state. (Before that it is not: a restored learner follows the
        schedule that it was created with.)

        Raises:
            TypeError: values that do not make a schedule.
            ValueError: a negative rate.
        """
        self.lr, self._lr_start, self._lr_was_reset = rates_schedule(lr), (self.samples, self.sweeps), True

    def settings(self) -> dict[str, str]:
        """Return the learner's options as text: schedules, numbers and switches by name."""
        attributes = {name.removeprefix("_"): value for name, value in vars(self).items() if name not in _BOOKKEEPING}
        return {
            name: str(value).removeprefix("Schedule(").removesuffix(")") if isinstance(value, Schedule) else str(value)
            for name, value in attributes.items()
            if isinstance(value, (Schedule, bool, int, float, str))
        }

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self._list)} parameters, {self.samples} samples, lr {self.lr!r}>"

    # ---- an update ------------------------------------------------------------------------------------------

    def update(
        self,
        samples: int,
        gradients: Mapping[str, torch.Tensor] | Sequence[torch.Tensor | None] | None = None,
        *,
        sweep_end: bool = False,
        averaged: bool = False,
    ) -> bool:
        """Make one update.

        A parameter without a gradient is unchanged, and so is its state.

        Args:
            samples: number of label samples in the minibatch, over all ranks, at least 1.
            gradients: sums over the minibatch's samples, read-only: a mapping by name, or one gradient for each
                parameter (None without one). None means the parameters' ``.grad``.
            sweep_end: whether the minibatch contains the end of a sweep.
            averaged: whether ``gradients`` are means over the samples instead of sums.

        Returns:
            Whether it updated: False, with nothing changed or counted, if the rate is 0.

        Raises:
            ValueError: an empty minibatch, gradients that do not fit the parameters, or sparse ones when the rule or an
                option needs dense ones. Nothing has changed.
        """
        if samples < 1:
            raise ValueError(f"expected a minibatch of at least 1 sample, got {samples}; skip empty minibatches")
        rate = self._rate(samples)
        if rate == 0:
            return False
        collected = self._collect_gradients(gradients)
        position = self.position
        if self._sums:
            step = Step(position, samples, rate / samples, samples if averaged else 1.0)
        else:
            step = Step(position, samples, rate, 1.0 if averaged else 1.0 / samples)
        counted, deviation = 1 if averaged else samples, self._noise[position]
        adjustments = Adjustments(
            limit=self._clip * counted if self._clip_by == "value" else math.inf,
            late_decay=self._l2 * counted,
            shrink=rate * self._l1,
        )
        with torch.no_grad():
            generators = self._generators() if deviation > 0 else {}
            factor = self._global_factor(collected, counted)
            for indices in self._index_groups(collected, one_by_one=deviation > 0):
                batch = self._batch(indices, collected, adjustments, self._factors(indices, collected, counted, factor))
                if deviation > 0:
                    batch.noise = [
                        torch.empty_like(p).normal_(0.0, deviation, generator=generators[p.device])
                        for p in batch.parameters
                    ]
                numbers = self._apply_whole(batch, step) if self.whole else self._apply(batch, step)
                for i in indices:
                    self._numbers[i] = numbers
        self.samples += samples
        self.minibatches += 1
        self.sweeps += bool(sweep_end)
        return True

    def skip(self, samples: int, *, sweep_end: bool = False) -> None:
        """Advance the clock without an update, for a minibatch that this learner does not learn from.

        Args:
            samples: number of label samples in the minibatch, over all ranks, at least 0.
            sweep_end: whether the minibatch contains the end of a sweep.
        """
        self.samples += samples
        self.sweeps += bool(sweep_end)

    def forget(self) -> None:
        """Reset the rule's state. The clock is unchanged."""
        self._state = [{} for _ in self._list]
        self._numbers = [(0,) * len(self.numbers) for _ in self._list]

    def _rate(self, samples: int) -> float:
        """Return the rate of this minibatch for mean gradients."""
        return self.lr.rate(self._lr_position(), samples) * self.scale

    def _lr_position(self) -> Position:
        samples, sweeps = self.samples - self._lr_start[0], self.sweeps - self._lr_start[1]
        return Position(sweep=sweeps, samples=samples, label_samples=samples)

    def _collect_gradients(self, gradients: Any) -> list[torch.Tensor | None]:
        """Return one checked gradient, or None, for each parameter."""
        if gradients is None:
            collected = [parameter.grad for parameter in self._list]
        else:
            if isinstance(gradients, Mapping):
                unknown = sorted(set(gradients) - set(self._parameters))
                if unknown:
                    raise ValueError(f"expected gradients of {_listed(self._parameters)}, got also {_listed(unknown)}")
                collected = [gradients.get(name) for name in self._parameters]
            else:
                collected = list(gradients)
            if len(collected) != len(self._list):
                raise ValueError(f"expected {len(self._list)} gradients, one for each parameter, got {len(collected)}")
            for name, parameter, gradient in zip(self._parameters, self._list, collected, strict=True):
                if gradient is not None and gradient.shape != parameter.shape:
                    raise ValueError(
                        f"expected a gradient of shape {tuple(parameter.shape)} for parameter {name!r}, "
                        f"got {tuple(gradient.shape)}"
                    )
        for name, gradient in zip(self._parameters, collected, strict=True):
            if gradient is not None and gradient.layout is not torch.strided:
                self._check_sparse(name)
        return collected

    def _check_sparse(self, name: str) -> None:
        what = f"the rule {self.rule!r}" if not self.takes_sparse else "L2" if self._l2 else "clipping"
        if not self.takes_sparse or self._l2 or self._clip < math.inf:
            raise ValueError(
                f"expected a dense gradient for parameter {name!r}: {what} does not support sparse ones; create the "
                "layer with sparse=False, or use SGD without L2 and clipping"
            )

    def _index_groups(self, gradients: list[torch.Tensor | None], one_by_one: bool) -> Iterator[list[int]]:
        """Yield indices of parameters to update together. With ``one_by_one``, each parameter on the CPU is updated
        alone."""
        if self.whole:
            indices = [i for i, gradient in enumerate(gradients) if gradient is not None]
            yield from [indices] if indices else []
            return
        if not self._index_lists:
            self._index_lists = group_indices(self._list)
        for places in self._index_lists:
            groups: dict[tuple[tuple[float, ...], Any], list[int]] = {}
            for i in places:
                gradient = gradients[i]
                if gradient is not None:
                    groups.setdefault((self._numbers[i], gradient.layout), []).append(i)
            for group in groups.values():
                if one_by_one and self._list[group[0]].is_cpu:
                    yield from ([i] for i in group)
                else:
                    yield group

    def _global_factor(self, gradients: Sequence[Any], counted: int) -> Any:
        """Return the factor that brings the common norm of all gradients within the limit, or None without a limit."""
        present = [gradient for gradient in gradients if gradient is not None]
        if self._clip == math.inf or self._clip_by != "global_norm" or not present:
            return None
        return global_factor(present, self._clip * counted)

    def _factors(self, indices: list[int], gradients: Sequence[Any], counted: int, factor: Any) -> list[Any] | None:
        """Return the factors that bring the norm of each gradient within the limit, or None without a limit."""
        if factor is not None:
            return [factor] * len(indices)
        if self._clip == math.inf or self._clip_by != "norm":
            return None
        return clipping_factors([gradients[i] for i in indices], self._clip * counted)

    def _batch(
        self, indices: list[int], all_gradients: Sequence[Any], adjustments: Adjustments, factors: list[Any] | None
    ) -> ParameterGroup:
        parameters, gradients = [self._list[i] for i in indices], [all_gradients[i] for i in indices]
        dtype = computing_dtype(parameters[0])
        for i in indices:
            if self.tensors and not self._state[i]:
                self._state[i] = {name: torch.zeros_like(self._list[i], dtype=dtype) for name in self.tensors}
        state = [[self._state[i][name] for i in indices] for name in self.tensors]
        return ParameterGroup(parameters, gradients, state, self._numbers[indices[0]], dtype, adjustments, factors)

    def _apply_whole(self, batch: ParameterGroup, step: Step) -> tuple[float, ...]:
        """Apply a rule that takes all parameters at once, between the adjustments."""
        adjustments, noise = batch.adjustments, batch.noise
        batch.gradients = adjust(batch.parameters, batch.gradients, adjustments, batch.factors)
        if step.scale != 1.0:
            batch.gradients = torch._foreach_mul(batch.gradients, step.scale)
        batch.adjustments, batch.factors, batch.noise = NO_ADJUSTMENTS, None, None
        numbers = self._apply(batch, step)
        finish(batch.parameters, adjustments, noise)
        return numbers

    def _generators(self) -> dict[torch.device, torch.Generator]:
        """Return a generator for each device, seeded from seed and minibatch, so that states need not contain them."""
        text = "\n".join([f"{self.seed}", *self._parameters, f"{self.minibatches}"]).encode()
        key = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
        devices = {parameter.device for parameter in self._list}
        return {device: torch.Generator(device).manual_seed(key) for device in devices}

    # ---- state ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state: JSON types, and under ``"tensors"`` a flat mapping of names to tensors.

        The tensors are not copied and change with the next update, so write or copy them before it.
        """
        tensors, rule_state = self._rule_state()
        return {
            "format": FORMAT,
            "rule": self.rule,
            "parameters": [[name, list(parameter.shape)] for name, parameter in self._parameters.items()],
            "samples": self.samples,
            "minibatches": self.minibatches,
            "sweeps": self.sweeps,
            "lr": {**self.lr.to_json(), "start": list(self._lr_start)} if self._lr_was_reset else None,
            "scale": self.scale,
            "own": rule_state,
            "tensors": tensors,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of a learner with the same rule and parameters. Its tensors are copied.

        Options (momentum, penalties, the schedule unless it was reset) are not part of a state.

        Raises:
            StateError: the state is of another rule or format, of other parameters, or incomplete. Nothing has changed.
        """
        self.checked(state)()

    def checked(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """Check a state as `load_state_dict` does, and return a function that loads it."""
        keys = ("format", "rule", "parameters", "samples", "minibatches", "sweeps", "lr", "scale", "own", "tensors")
        if not isinstance(state, Mapping):
            raise StateError(f"expected a learner's state, got {shown(state, 80)}")
        missing = [key for key in keys if key not in state]
        if missing:
            raise StateError(f"expected a learner's state, got one without {', '.join(missing)}")
        state = _with_plain_names(state)
        shapes = [[name, list(parameter.shape)] for name, parameter in self._parameters.items()]
        current = {"format": FORMAT, "rule": self.rule, "parameters": shapes}
        changed = [key for key, value in current.items() if type(state[key]) is not type(value) or state[key] != value]
        if changed:
            raise StateError(
                "the state is of another rule, or of other parameters or another order of them: "
                "create the learner as for the saved run",
                saved={key: state[key] for key in changed},
                current={key: current[key] for key in changed},
            )
        try:
            samples, minibatches, sweeps = (whole(state[key], key) for key in ("samples", "minibatches", "sweeps"))
            scale = amount(state["scale"], "scale")
        except ValueError as error:
            raise StateError(f"expected a learner's state, got one with a malformed number: {error}") from error
        schedule, start = self._check_schedule(state["lr"], samples, sweeps)
        tensors = state["tensors"]
        if not isinstance(tensors, Mapping) or not all(isinstance(t, torch.Tensor) for t in tensors.values()):
            raise StateError(f"expected tensors by name in a learner's state, got {shown(tensors, 80)}")
        restore = self._check_rule_state(tensors, state["own"])

        def load() -> None:
            restore()
            if schedule is not None:
                self.lr, self._lr_start, self._lr_was_reset = schedule, start, True
            self.samples, self.minibatches, self.sweeps = samples, minibatches, sweeps
            self.scale = float(scale)

        return load

    def _check_schedule(self, saved: Any, now: int, sweeps_now: int) -> tuple[Schedule | None, tuple[int, int]]:
        if saved is None:
            if self._lr_was_reset:
                raise StateError(
                    "the state follows the schedule its learner was created with, but this learner's has been reset: "
                    "restore into a new one"
                )
            return None, (0, 0)
        try:
            samples, sweeps = (whole(count, "start") for count in saved["start"])
            if samples > now or sweeps > sweeps_now:
                raise ValueError(f"it starts at {saved['start']}, after {now} samples and {sweeps_now} sweeps")
            data = {key: value for key, value in saved.items() if key != "start"}
            return rates_schedule(Schedule.from_json(data)), (samples, sweeps)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StateError(f"expected a schedule and a start under 'lr', got {shown(saved, 200)}: {error}") from error

    # Rules whose state is more than `tensors` and `numbers` override the methods below.

    def _rule_state(self) -> tuple[dict[str, torch.Tensor], Any]:
        """Return the rule's state: tensors by name, and everything else in JSON types."""
        tensors = {
            f"{kind}.{name}": tensor
            for name, state in zip(self._parameters, self._state, strict=True)
            for kind, tensor in state.items()
        }
        rule_state: dict[str, Any] = {kind: [row[k] for row in self._numbers] for k, kind in enumerate(self.numbers)}
        # This distinguishes a parameter that has had no gradient from one whose tensors were lost.
        rule_state["begun"] = [bool(state) for state in self._state]
        return tensors, rule_state

    def _check_rule_state(self, tensors: Mapping[str, torch.Tensor], rule_state: Any) -> Callable[[], None]:
        """Check the state that `_rule_state` returned (StateError), and return a function that restores it."""
        expected = dict.fromkeys((*self.numbers, "begun"), len(self._list))
        try:
            lengths = {kind: len(values) for kind, values in rule_state.items()}
        except (AttributeError, TypeError) as error:
            raise StateError(f"expected lists of numbers by name in the state, got {shown(rule_state, 80)}") from error
        if lengths != expected:
            raise StateError("expected this rule's numbers in the state", saved=lengths, current=expected)
        try:
            numbers = {kind: [amount(number, kind) for number in rule_state[kind]] for kind in self.numbers}
            if not all(type(begun) is bool for begun in rule_state["begun"]):
                raise ValueError(f"begun: expected true or false, got {shown(rule_state['begun'], 80)}")
        except (TypeError, ValueError) as error:
            raise StateError(f"expected numbers in the state, got others: {error}") from error
        remaining = dict(tensors)
        copies: list[dict[str, torch.Tensor]] = []
        for (name, parameter), begun in zip(self._parameters.items(), rule_state["begun"], strict=True):
            kinds = self.tensors if begun else ()
            lost = [f"{kind}.{name}" for kind in kinds if f"{kind}.{name}" not in remaining]
            if lost:
                raise StateError(f"the state lacks tensors: {_listed(lost)}")
            dtype = computing_dtype(parameter)
            copies.append({k: copy_saved(f"{k}.{name}", remaining.pop(f"{k}.{name}"), parameter, dtype) for k in kinds})
        if remaining:
            raise StateError(f"the state has tensors that belong to no parameter: {_listed(remaining)}")

        def restore() -> None:
            self._state = copies
            self._numbers = [tuple(numbers[kind][i] for kind in self.numbers) for i in range(len(self._list))]

        return restore


def _with_plain_names(state: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return plain_learner_state(state)
    except (AttributeError, TypeError, ValueError):
        return state  # malformed fields are reported below


def _listed(names: Iterable[str]) -> str:
    shown = [repr(name) for name in names]
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")
