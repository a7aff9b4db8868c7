"""What all learners share: the clock, the rate, what is done to gradients before a rule and to parameters after it.

An update is the same eight steps for every rule, in this order; c is the number of samples that the given gradients
were summed over (1 where they are means), w a parameter:

1. the rate is looked up; if it is 0, nothing changes and `update` returns False;
2. gradients are clipped: element by element, or parameter by parameter to a norm, at ``clip`` times c;
3. L2: ``l2 * c * w`` is added to the gradient;
4. the gradient is seen as mean or as sum over the minibatch, as the learner was told (``gradients=``);
5. the rule: one file each;
6. Gaussian noise is added to the parameters;
7. L1: parameters are drawn towards 0 by ``l1`` times the rate, and stop there;
8. the counters go on.

Gradients are never written to. Scaling (step 4) costs no pass over memory: rules multiply it into scalars they use
anyway. All parameters of a device and dtype are updated by fused (foreach) operations; on the CPU in pieces that fit
a core's cache, which is what makes a rule of many operations several times faster than parameter lists in one piece.

Parameters of half precision keep their state in float32, and their rules compute in it.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from feedline.data import Position
from feedline.errors import StateError, shown
from feedline.runs.fields import amount, whole
from feedline.train.parameters import (
    ParameterGroup,
    Tensors,
    add_noise,
    clipped,
    computing_dtype,
    copied,
    cut_into_pieces,
    named,
    shrink,
)
from feedline.train.schedules import Schedule, Values, at_least_zero, one_of, rates_schedule
from feedline.train.strategy import Alone, Strategy

try:
    import torch
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("torch is not installed; run: pip install 'feedline[torch]'") from error

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Step:
    """What a rule has to know of the minibatch.

    Attributes:
        position: the clock before the update.
        samples: in the minibatch, over all ranks.
        rate: what the rule multiplies its direction by, for gradients as the learner sees them (mean or sum).
        scale: the gradients as the learner sees them are ``scale`` times the tensors given.
    """

    position: Position
    samples: int
    rate: float
    scale: float


class Learner(ABC):
    """Updates parameters from gradients, by one rule, at a rate that a schedule says.

    Learners are told how many samples a minibatch had, and count them: schedules are indexed by label samples seen,
    or by sweeps done. The state is a few numbers, and tensors of the parameters' shapes.

    Args:
        parameters: tensors, or (name, tensor) pairs as of ``model.named_parameters()``; floating point, any shapes,
            devices and dtypes. Unnamed ones are called by their place: ``"0"``, ``"1"``, …
        lr: learning rate, at least 0; a `Schedule`, a number, or a list as a schedule takes it. With a reference
            size the rate grows with the minibatch, otherwise it is for a whole minibatch of any size.
        gradients: ``"mean"``: the rule sees the mean gradient of a minibatch. ``"sum"``: it sees the sum, and the
            rate is divided by the number of samples, which is what CNTK does unless told otherwise. Both are the
            same where a rule is linear in the gradient (sgd, momentum_sgd, nesterov), and differ elsewhere.
        clip: most that a gradient may be for each sample; None: no limit.
        clip_by: ``"value"``: each element is cut off; ``"norm"``: each parameter's gradient is scaled down.
        l1: weight of the L1 penalty a sample, at least 0.
        l2: weight of the L2 penalty a sample, at least 0.
        noise: standard deviation of the Gaussian noise added to parameters after each update; a number or schedule.
        seed: of the noise, which is a function of (seed, parameters' names, minibatches seen).

    Attributes:
        lr: the schedule; see `reset_learning_rate`.
        scale: factor on whatever the schedule says, 1 at first; controllers lower it.
        samples: counted so far.
        minibatches: updates so far.
        sweeps: sweeps so far whose end it was told of.
        strategy: who else learns with it; set by `data_parallel`, `quantized`, `block_momentum`, `through_store`.

    Raises:
        TypeError: a parameter that is no floating-point tensor.
        ValueError: no parameter, the same twice, or an option out of its range.
    """

    #: The rule's name in states.
    rule: str
    #: State tensors of each parameter, by name; they start as zeros.
    tensors: ClassVar[tuple[str, ...]] = ()
    #: State numbers of each parameter, by name; they start as 0.
    numbers: ClassVar[tuple[str, ...]] = ()
    #: Whether the rule takes torch's sparse gradients.
    takes_sparse: ClassVar[bool] = False
    #: Whether the rule gets all parameters at once, as they are, whatever their devices and dtypes.
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
        self._parameters = named(parameters)
        self._list: Tensors = list(self._parameters.values())
        self.lr = rates_schedule(lr)
        one_of("gradients", gradients, ("mean", "sum"))
        one_of("clip_by", clip_by, ("value", "norm"))
        if clip is not None and not clip > 0:
            raise ValueError(f"expected clip to be above 0, got {clip}; None is no limit")
        at_least_zero("l1", l1)
        at_least_zero("l2", l2)
        self._sums, self._by_norm = gradients == "sum", clip_by == "norm"
        self._clip = math.inf if clip is None else float(clip)
        self._l1, self._l2 = float(l1), float(l2)
        self._noise = Schedule.of(noise)
        at_least_zero("noise", min(self._noise.numbers))
        self._noise_key = f"{int(seed)}\n" + "\n".join(self._parameters)
        self.samples, self.minibatches, self.sweeps = 0, 0, 0
        self.scale = 1.0
        self.strategy: Strategy = Alone()
        self._lr_start = (0, 0)  # samples and sweeps at which the schedule was set
        self._lr_was_reset = False
        self._state: list[dict[str, torch.Tensor]] = [{} for _ in self._list]
        self._numbers: list[tuple[float, ...]] = [(0,) * len(self.numbers) for _ in self._list]
        self._pieces: list[list[int]] = []

    @abstractmethod
    def _apply(self, batch: ParameterGroup, step: Step) -> tuple[float, ...]:
        """The rule: changes ``batch.parameters`` and ``batch.state`` in place; returns the batch's new numbers."""

    # ---- what it is -----------------------------------------------------------------------------------------

    @property
    def parameters(self) -> Mapping[str, torch.Tensor]:
        """The parameters by name, in their order."""
        return MappingProxyType(self._parameters)

    @property
    def position(self) -> Position:
        """The learner's clock: label samples and sweeps."""
        return Position(sweep=self.sweeps, samples=self.samples, label_samples=self.samples)

    def learning_rate(self) -> float:
        """The number that the schedule says for the next update, for a minibatch of the reference size."""
        return self.lr[self._lr_position()] * self.scale

    def reset_learning_rate(self, lr: Schedule | Values) -> None:
        """Go on with another schedule, which starts here: its count 0 is the present.

        From then on the schedule is part of the state. (Before, it is not: a restored learner follows the schedule
        it was made with.)

        Raises:
            TypeError: what a schedule cannot be made of.
            ValueError: a negative rate.
        """
        self.lr, self._lr_start, self._lr_was_reset = rates_schedule(lr), (self.samples, self.sweeps), True

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
        """One update.

        A parameter without a gradient is left as it is, and so is its state.

        Args:
            samples: label samples in the minibatch, over all ranks; at least 1.
            gradients: sums over the minibatch's samples: by name, or one for each parameter (None: has none).
                None altogether: the parameters' ``.grad``. They are not written to.
            sweep_end: whether the minibatch contains the end of a sweep.
            averaged: whether ``gradients`` are means over the samples instead of sums.

        Returns:
            Whether it updated: False, with nothing changed or counted, if the rate is 0.

        Raises:
            ValueError: an empty minibatch, gradients that do not fit the parameters, or sparse ones where the rule
                or an option needs dense ones. Nothing has changed then.
        """
        if samples < 1:
            raise ValueError(f"expected a minibatch of at least 1 sample, got {samples}; skip empty minibatches")
        rate = self._rate(samples)
        if rate == 0:
            return False
        given = self._collected(gradients)
        position = self.position
        if self._sums:
            step = Step(position, samples, rate / samples, samples if averaged else 1.0)
        else:
            step = Step(position, samples, rate, 1.0 if averaged else 1.0 / samples)
        counted, std = 1 if averaged else samples, self._noise[position]
        with torch.no_grad():
            generators = self._generators() if std > 0 else {}
            for chosen in self._chosen(given):
                batch = self._batch(chosen, given, counted)
                numbers = self._apply(batch, step)
                for i in chosen:
                    self._numbers[i] = numbers
                if std > 0:
                    add_noise(batch.parameters, std, generators)
                if self._l1 > 0:
                    shrink(batch.parameters, rate * self._l1)
        self.samples += samples
        self.minibatches += 1
        self.sweeps += bool(sweep_end)
        return True

    def skip(self, samples: int, *, sweep_end: bool = False) -> None:
        """Let the clock go on without an update: others learned from this minibatch, or nobody could.

        Args:
            samples: label samples in the minibatch, over all ranks; at least 0.
            sweep_end: whether the minibatch contains the end of a sweep.
        """
        self.samples += samples
        self.sweeps += bool(sweep_end)

    def forget(self) -> None:
        """Let the rule begin anew, as if it had never updated; the clock goes on."""
        self._state = [{} for _ in self._list]
        self._numbers = [(0,) * len(self.numbers) for _ in self._list]

    def _rate(self, samples: int) -> float:
        """The rate of this minibatch for mean gradients."""
        return self.lr.rate(self._lr_position(), samples) * self.scale

    def _lr_position(self) -> Position:
        seen, sweeps = self.samples - self._lr_start[0], self.sweeps - self._lr_start[1]
        return Position(sweep=sweeps, samples=seen, label_samples=seen)

    def _collected(self, gradients: Any) -> list[torch.Tensor | None]:
        """One gradient, or None, for each parameter; checked."""
        if gradients is None:
            given = [parameter.grad for parameter in self._list]
        else:
            if isinstance(gradients, Mapping):
                unknown = sorted(set(gradients) - set(self._parameters))
                if unknown:
                    raise ValueError(f"expected gradients of {_shown(self._parameters)}, got also {_shown(unknown)}")
                given = [gradients.get(name) for name in self._parameters]
            else:
                given = list(gradients)
            if len(given) != len(self._list):
                raise ValueError(f"expected {len(self._list)} gradients, one for each parameter, got {len(given)}")
            for name, parameter, gradient in zip(self._parameters, self._list, given, strict=True):
                if gradient is not None and gradient.shape != parameter.shape:
                    raise ValueError(
                        f"expected a gradient of shape {tuple(parameter.shape)} for parameter {name!r}, "
                        f"got {tuple(gradient.shape)}"
                    )
        for name, gradient in zip(self._parameters, given, strict=True):
            if gradient is not None and gradient.layout is not torch.strided:
                self._check_sparse(name)
        return given

    def _check_sparse(self, name: str) -> None:
        what = f"the rule {self.rule!r}" if not self.takes_sparse else "L2" if self._l2 else "clipping"
        if not self.takes_sparse or self._l2 or self._clip < math.inf:
            raise ValueError(
                f"expected a dense gradient for parameter {name!r}: {what} does not take sparse ones; make the layer "
                "with sparse=False, or use SGD without L2 and clipping"
            )

    def _chosen(self, given: list[torch.Tensor | None]) -> Iterator[list[int]]:
        """Places of parameters that go through the rule together."""
        if self.whole:
            chosen = [i for i, gradient in enumerate(given) if gradient is not None]
            yield from [chosen] if chosen else []
            return
        if not self._pieces:
            self._pieces = cut_into_pieces(self._list, self._passes_often())
        for piece in self._pieces:
            alike: dict[tuple[tuple[float, ...], Any], list[int]] = {}
            for i in piece:
                gradient = given[i]
                if gradient is not None:
                    alike.setdefault((self._numbers[i], gradient.layout), []).append(i)
            yield from alike.values()

    def _passes_often(self) -> bool:
        """Whether an update goes over memory more than once, so that it pays to stay within a cache."""
        plain = self._clip == math.inf and self._l1 == self._l2 == 0 and not any(self._noise.numbers)
        return bool(self.tensors) or not plain

    def _batch(self, chosen: list[int], given: Sequence[Any], counted: int) -> ParameterGroup:
        parameters, gradients = [self._list[i] for i in chosen], [given[i] for i in chosen]
        dtype = computing_dtype(parameters[0])
        if not self.whole and any(gradient.dtype is not dtype for gradient in gradients):
            gradients = [gradient.to(dtype) for gradient in gradients]
        if self._clip < math.inf:
            gradients = clipped(gradients, self._clip * counted, self._by_norm)
        if self._l2 > 0:
            gradients = torch._foreach_add(gradients, parameters, alpha=self._l2 * counted)
        for i in chosen:
            if self.tensors and not self._state[i]:
                self._state[i] = {name: torch.zeros_like(self._list[i], dtype=dtype) for name in self.tensors}
        state = [[self._state[i][name] for i in chosen] for name in self.tensors]
        return ParameterGroup(parameters, gradients, state, self._numbers[chosen[0]], dtype)

    def _generators(self) -> dict[torch.device, torch.Generator]:
        """A generator for each device, a function of seed and minibatch: so no generator is part of the state."""
        text = f"{self._noise_key}\n{self.minibatches}".encode()
        key = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
        devices = {parameter.device for parameter in self._list}
        return {device: torch.Generator(device).manual_seed(key) for device in devices}

    # ---- state ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state: JSON types, and under ``"tensors"`` a flat mapping of names to tensors.

        The tensors are the learner's own and change with the next update: write or copy them before it.
        """
        tensors, own = self._saved()
        return {
            "format": FORMAT,
            "rule": self.rule,
            "parameters": [[name, list(parameter.shape)] for name, parameter in self._parameters.items()],
            "samples": self.samples,
            "minibatches": self.minibatches,
            "sweeps": self.sweeps,
            "lr": {**self.lr.to_json(), "start": list(self._lr_start)} if self._lr_was_reset else None,
            "scale": self.scale,
            "own": own,
            "tensors": tensors,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of a learner of the same rule over the same parameters; its tensors are copied.

        Options (momentum, penalties, the schedule unless it was reset) are those the learner was made with.

        Raises:
            StateError: the state is of another rule or format, of other parameters, or incomplete. Nothing has
                changed then.
        """
        self.checked(state)()

    def checked(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """What loads a state, see `load_state_dict`; raises what that raises, and has changed nothing yet."""
        keys = ("format", "rule", "parameters", "samples", "minibatches", "sweeps", "lr", "scale", "own", "tensors")
        if not isinstance(state, Mapping):
            raise StateError(f"expected a learner's state, got {shown(state, 80)}")
        missing = [key for key in keys if key not in state]
        if missing:
            raise StateError(f"expected a learner's state, got one without {', '.join(missing)}")
        shapes = [[name, list(parameter.shape)] for name, parameter in self._parameters.items()]
        current = {"format": FORMAT, "rule": self.rule, "parameters": shapes}
        differing = [
            key for key, value in current.items() if type(state[key]) is not type(value) or state[key] != value
        ]
        if differing:
            raise StateError(
                "the state is of another rule, or of other parameters or another order of them: "
                "make the learner as it was made then",
                saved={key: state[key] for key in differing},
                current={key: current[key] for key in differing},
            )
        try:
            samples, minibatches, sweeps = (whole(state[key], key) for key in ("samples", "minibatches", "sweeps"))
            scale = amount(state["scale"], "scale")
        except ValueError as error:
            raise StateError(f"expected a learner's state, got one with another number: {error}") from error
        schedule, start = self._lr_of(state["lr"], samples, sweeps)
        tensors = state["tensors"]
        if not isinstance(tensors, Mapping) or not all(isinstance(t, torch.Tensor) for t in tensors.values()):
            raise StateError(f"expected tensors by name in a learner's state, got {shown(tensors, 80)}")
        restore = self._restored(tensors, state["own"])

        def load() -> None:
            restore()
            if schedule is not None:
                self.lr, self._lr_start, self._lr_was_reset = schedule, start, True
            self.samples, self.minibatches, self.sweeps = samples, minibatches, sweeps
            self.scale = float(scale)

        return load

    def _lr_of(self, saved: Any, now: int, sweeps_now: int) -> tuple[Schedule | None, tuple[int, int]]:
        if saved is None:
            if self._lr_was_reset:
                raise StateError(
                    "the state follows the schedule its learner was made with, but this learner's has been reset: "
                    "restore into a newly made one"
                )
            return None, (0, 0)
        try:
            samples, sweeps = (whole(count, "start") for count in saved["start"])
            if samples > now or sweeps > sweeps_now:
                raise ValueError(f"it starts at {saved['start']}, behind {now} samples and {sweeps_now} sweeps")
            data = {key: value for key, value in saved.items() if key != "start"}
            return rates_schedule(Schedule.from_json(data)), (samples, sweeps)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"expected a schedule and where it starts under 'lr', got {shown(saved, 200)}: {error}"
            ) from error

    # What follows is for rules whose state is not made of `tensors` and `numbers` to override.

    def _saved(self) -> tuple[dict[str, torch.Tensor], Any]:
        """The rule's state: tensors by name, and the rest as JSON types."""
        tensors = {
            f"{kind}.{name}": tensor
            for name, state in zip(self._parameters, self._state, strict=True)
            for kind, tensor in state.items()
        }
        own: dict[str, Any] = {kind: [held[k] for held in self._numbers] for k, kind in enumerate(self.numbers)}
        # Without it a parameter whose tensors were lost would look like one that had no gradient yet.
        own["begun"] = [bool(state) for state in self._state]
        return tensors, own

    def _restored(self, tensors: Mapping[str, torch.Tensor], own: Any) -> Callable[[], None]:
        """What takes over what `_saved` gave; raises a StateError where it does not fit, and changes nothing yet."""
        wanted = dict.fromkeys((*self.numbers, "begun"), len(self._list))
        try:
            found = {kind: len(values) for kind, values in own.items()}
        except (AttributeError, TypeError) as error:
            raise StateError(f"expected lists of numbers by name in the state, got {shown(own, 80)}") from error
        if found != wanted:
            raise StateError("expected other numbers in the state", saved=found, current=wanted)
        try:
            numbers = {kind: [amount(number, kind) for number in own[kind]] for kind in self.numbers}
            if not all(type(begun) is bool for begun in own["begun"]):
                raise ValueError(f"begun: expected true or false, got {shown(own['begun'], 80)}")
        except (TypeError, ValueError) as error:
            raise StateError(f"expected numbers in the state, got others: {error}") from error
        left = dict(tensors)
        copies: list[dict[str, torch.Tensor]] = []
        for (name, parameter), begun in zip(self._parameters.items(), own["begun"], strict=True):
            kinds = self.tensors if begun else ()
            lost = [f"{kind}.{name}" for kind in kinds if f"{kind}.{name}" not in left]
            if lost:
                raise StateError(f"the state has lost tensors: {_shown(lost)}")
            dtype = computing_dtype(parameter)
            copies.append({k: copied(f"{k}.{name}", left.pop(f"{k}.{name}"), parameter, dtype) for k in kinds})
        if left:
            raise StateError(f"the state has tensors that belong to no parameter: {_shown(left)}")

        def restore() -> None:
            self._state = copies
            self._numbers = [tuple(numbers[kind][i] for kind in self.numbers) for i in range(len(self._list))]

        return restore


def _shown(names: Iterable[str]) -> str:
    shown = [repr(name) for name in names]
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")
