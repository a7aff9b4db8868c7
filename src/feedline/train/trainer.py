"""One minibatch in, one update, a summary out.

The trainer counts *label samples*: the numbers that the loss gives, one for each label. Gradients are of their sum over
the minibatch, or of their mean over all of it: every element of every sequence weighs the same whatever the length, and
learners multiply or divide as their units say.
A minibatch that does not fit the memory of a device is worked off in pieces; the update is the same up to rounding.

Costs on top of the model: a few microseconds a minibatch. Sums stay tensors on the device until somebody reads them,
so that a step never waits for the device.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from feedline.collective.ranks import Ranks
from feedline.data import Minibatch
from feedline.errors import StateError, shown
from feedline.train.distributed.through_model import ThroughModel
from feedline.train.learner import Learner
from feedline.train.strategy import Contribution, Strategy, Total
from feedline.train.summary import NOTHING, Summary, plus

Criterion = Callable[[Any, Minibatch], torch.Tensor]
Forward = Callable[[torch.nn.Module, Minibatch], Any]


_HALF = (torch.float16, torch.bfloat16)


class Trainer:
    """A model, what is asked of it, and who updates it.

    Args:
        model: any `torch.nn.Module`, compiled or not.
        loss: ``loss(output, minibatch)`` returns one number for each label sample, in a tensor of any shape: torch's
            losses with ``reduction="none"``. Padding must not be in it: choose by the mask, or pack.
        metric: likewise, for reports; None: none.
        learners: one or several; each updates its own parameters of the model. With `data_parallel`, `quantized` or
            `block_momentum` all ranks of torch.distributed learn together.
        forward: ``forward(model, minibatch)`` returns the output; None: ``model(minibatch)``.
        microbatch: work a minibatch off in pieces of at most so many samples, adding gradients up; None: whole.
        autocast: a context manager for forward passes and losses, such as ``torch.autocast("cuda")``; None: none.

    Attributes:
        strategy: how the learners learn together with those of other ranks; see `feedline.train.strategy`.
        counted: label samples that the clocks advanced by with the last minibatch, over all ranks.
        ended: whether the sources of all ranks have ended; see `train_minibatch`.

    Raises:
        TypeError: something else than learners.
        ValueError: no learner, one that has a parameter which is not the model's, two with the same parameter, or
            learners of which some learn together with other ranks, or not all in one way.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss: Criterion,
        metric: Criterion | None = None,
        learners: Learner | Sequence[Learner] = (),
        *,
        forward: Forward | None = None,
        microbatch: int | None = None,
        autocast: Any = None,
    ) -> None:
        self.model, self.loss, self.metric = model, loss, metric
        self.learners = _listed(learners)
        self.forward: Forward = forward if forward is not None else _call
        if microbatch is not None and (not isinstance(microbatch, int) or microbatch < 1):
            raise ValueError(f"expected microbatch of at least 1 sample or None, got {microbatch!r}")
        self.microbatch = microbatch
        self.autocast = autocast if autocast is not None else contextlib.nullcontext()
        self.counted, self.ended = 0, False
        _check_parameters(model, self.learners)
        self._parameters = list(model.parameters())
        self.strategy: Strategy = self.learners[0].strategy
        if len({learner.strategy.solo for learner in self.learners}) > 1:
            raise ValueError("expected all learners to learn together with other ranks or none, got some of both")
        self.strategy.join(model, self.learners)
        self._own_sweeps = self.learners[0].sweeps  # whose end this rank has seen

    @property
    def samples(self) -> int:
        """Label samples that the first learner has counted."""
        return self.learners[0].samples

    @property
    def sweeps(self) -> int:
        """Sweeps whose end the first learner has counted; over all ranks that learn together."""
        return self.learners[0].sweeps

    @contextlib.contextmanager
    def within(self, ranks: Ranks) -> Iterator[None]:
        """Open a block in which ``ranks`` run the same session: learners that learn alone go by the samples of all."""
        before = self.strategy
        if before.solo and not ranks.alone:
            self.strategy = ThroughModel(self.model, ranks)
        try:
            yield
        finally:
            self.strategy = before

    def train_minibatch(self, minibatch: Minibatch, ended: bool = False) -> Summary:
        """Make one update.

        Args:
            minibatch: an empty one, or the end of a source, changes nothing. Where ranks learn together, this rank's
                part of a global minibatch; a rank whose part is empty, or whose source has ended, learns from the
                others', and all have to be called equally often.
            ended: whether this rank's source has ended; the attribute `ended` then says whether every rank's has.

        Returns:
            Sums over this minibatch, of all ranks that learn together; false if nothing was updated.

        Raises:
            ValueError: loss or metric is not a tensor of one number a label sample.
            StoreError: another rank is missing; names it.
        """
        solo, self.counted, self.ended = self.strategy.solo, 0, ended
        if solo and (not minibatch or minibatch.num_sequences == 0):
            if minibatch and minibatch.sweep_end:  # rates may change with it
                self._skip(0)
            return NOTHING
        if not self.model.training:
            self.model.train()
        for parameter in self._parameters:
            parameter.grad = None
        # In one piece the gradients are made as means, which no learner has to scale; in several, or on several ranks,
        # the count is known only at the end.
        averaged = solo and self.microbatch is None
        own = self._backward_whole(minibatch) if averaged else self._backward_pieces(minibatch)
        return self._step(minibatch, own, averaged)

    def pass_by(self, minibatch: Minibatch) -> None:
        """Learn nothing from a minibatch, as all ranks decided; clocks go on."""
        self.counted = 0
        self._step(minibatch, NOTHING)

    def _step(self, minibatch: Minibatch, own: Summary, averaged: bool = False) -> Summary:
        """Make the same update on every rank, given the sums of this rank's part."""
        strategy, updated = self.strategy, False
        with strategy.step():
            # Within the step, as Ctrl-C may come before it, and the caller then calls again.
            if strategy.solo:
                self._own_sweeps = self.learners[0].sweeps
            if minibatch and minibatch.sweep_end:
                self._own_sweeps += 1
            contribution = Contribution(
                samples=own.samples,
                loss_sum=own.loss_sum,
                metric_sum=0.0 if own.metric_sum is None and self.metric is not None else own.metric_sum,
                sweeps=self._own_sweeps if minibatch else math.inf,
                ended=self.ended,
                shared=strategy.exchanges_in_backward and minibatch.num_samples == minibatch.global_samples,
            )
            total = strategy.reduce(contribution)
            self.counted, self.ended = total.counted, total.ended
            # Where ranks fill minibatches by themselves, a sweep is over when its end has come everywhere.
            sweep_end = self.learners[0].sweeps < total.sweeps < math.inf
            if total.counted:
                updated = self._update(total, sweep_end, averaged or total.averaged)
            elif sweep_end:
                self._skip(0)
        return replace(total.summary, updated=True) if updated else total.summary

    def _update(self, total: Total, sweep_end: bool, averaged: bool) -> bool:
        """Let all learners learn; False, with nothing counted, if none does."""
        learned, counted = total.learned, total.counted
        updated = [
            learner.update(learned, sweep_end=sweep_end, averaged=averaged) if learned else learner.learning_rate() != 0
            for learner in self.learners
        ]
        if any(updated):
            for learner, did in zip(self.learners, updated, strict=True):
                if not did or not learned:  # another time it may have a rate, or this rank samples
                    learner.skip(counted, sweep_end=sweep_end)
                elif counted > learned:
                    learner.skip(counted - learned)
        return any(updated)

    def test_minibatch(self, minibatch: Minibatch) -> Summary:
        """Loss and metric without an update, in evaluation mode; of this rank's part alone."""
        if not minibatch or minibatch.num_sequences == 0:
            return NOTHING
        # Module by module: a part that is frozen in evaluation mode has to stay so.
        training = [module for module in self.model.modules() if module.training]
        if training:
            self.model.eval()
        try:
            with torch.no_grad():
                total = NOTHING
                for piece in self._pieces(minibatch):
                    summary, _ = self._criteria(piece)
                    total = summary if total is NOTHING else total + summary
                return total
        finally:
            for module in training:
                module.training = True

    def test(self, minibatches: Iterable[Minibatch]) -> Summary:
        """Loss and metric over all of ``minibatches``."""
        total = NOTHING
        for minibatch in minibatches:
            total = plus(total, self.test_minibatch(minibatch))
        return total

    def _backward_whole(self, minibatch: Minibatch) -> Summary:
        summary, summed = self._criteria(minibatch)
        if summary.samples:
            summed.backward(torch.full_like(summed, 1.0 / summary.samples))
        return summary

    def _backward_pieces(self, minibatch: Minibatch) -> Summary:
        total, pieces, strategy = NOTHING, list(self._pieces(minibatch)), self.strategy
        for left, piece in zip(range(len(pieces) - 1, -1, -1), pieces, strict=True):
            with contextlib.nullcontext() if left == 0 else strategy.accumulating():
                summary, summed = self._criteria(piece)
                # Without a label sample a rank still takes part in the exchange that its model makes of gradients.
                if summary.samples or (strategy.exchanges_in_backward and left == 0 and summed.requires_grad):
                    summed.backward()
                total = plus(total, summary)
        if not pieces:
            strategy.backward_of_nothing()
        return total

    def _pieces(self, minibatch: Minibatch) -> Iterable[Minibatch]:
        if not minibatch or minibatch.num_sequences == 0:
            return ()
        return (minibatch,) if self.microbatch is None else minibatch.parts(self.microbatch)

    def _skip(self, samples: int) -> None:
        for learner in self.learners:
            learner.skip(samples, sweep_end=True)

    def _criteria(self, minibatch: Minibatch) -> tuple[Summary, torch.Tensor]:
        with self.autocast:
            output = self.forward(self.model, minibatch)
            losses = self.loss(output, minibatch)
            _check_one_each("loss", losses)
            # Half precision keeps three digits of a sum, and float16 no sum above 65,504.
            summed = losses.sum(dtype=torch.float32) if losses.dtype in _HALF else losses.sum()
            metric = None
            if self.metric is not None:
                with torch.no_grad():
                    measured = self.metric(output, minibatch)
                    _check_one_each("metric", measured)
                    if measured.numel() != losses.numel():
                        raise ValueError(
                            f"expected one metric a label sample, as many as losses ({losses.numel()}), got "
                            f"{measured.numel()}: leave the same padding out of both"
                        )
                    metric = measured.sum(dtype=torch.float64)
        # Sums over an epoch outgrow the precision of the losses.
        return Summary(summed.detach().double(), metric, losses.numel()), summed

    # ---- state ----------------------------------------------------------------------------------------------

    def state_dict(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Model and learners: tensors by name (not copied), and the rest in JSON types."""
        tensors = {f"model/{name}": tensor for name, tensor in _tensors(self.model).items()}
        rest: list[dict[str, Any]] = []
        for i, learner in enumerate(self.learners):
            state = learner.state_dict()
            tensors |= {f"learner{i}/{name}": tensor for name, tensor in state.pop("tensors").items()}
            rest.append(state)
        together = self.strategy.state_dict()
        tensors |= {f"workers/{name}": tensor for name, tensor in together.pop("tensors", {}).items()}
        return tensors, {"learners": rest, "training": self.model.training, "workers": together}

    def load_state_dict(self, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
        """Go on from a state.

        Raises:
            StateError: it is of other learners, or of a model with other tensors. Nothing has changed then.
        """
        try:
            learners, training, workers = list(state["learners"]), state["training"], state["workers"]
            if type(training) is not bool or not isinstance(workers, Mapping):
                raise TypeError(f"training {shown(training, 40)}, workers {shown(workers, 40)}")
            if not all(isinstance(own, Mapping) for own in learners):
                raise TypeError(f"learners {shown(learners, 80)}")
        except (KeyError, TypeError) as error:
            raise StateError(
                f"expected learners, training and workers in a trainer's state: {shown(error, 200)}"
            ) from error
        saved = [len(learners), sorted(n for n in tensors if n.startswith("model/"))]
        current = [len(self.learners), sorted(f"model/{n}" for n in _tensors(self.model))]
        if saved != current:
            raise StateError(
                "expected the state of a trainer with the same model and learners",
                saved={"learners": saved[0], "model": saved[1]},
                current={"learners": current[0], "model": current[1]},
            )
        own_model = _under("model/", tensors)
        check_model(self.model, own_model)
        loads = [
            learner.checked({**own, "tensors": _under(f"learner{i}/", tensors)})
            for i, (learner, own) in enumerate(zip(self.learners, learners, strict=True))
        ]
        together = {**workers, "tensors": _under("workers/", tensors)} if workers else {}
        loads.append(self.strategy.checked(together))
        load_model(self.model, own_model)
        for load in loads:
            load()
        self._own_sweeps = self.learners[0].sweeps
        if self.model.training != training:
            self.model.train(training)


def check_model(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Whether tensors have the shapes that a model's have; modules that load in a way of their own decide themselves.

    Raises:
        StateError: they have not; `torch.nn.Module.load_state_dict` would have changed others before it found out.
    """
    plain, current = uncompiled(model), _tensors(model)
    own = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in plain.named_modules(remove_duplicate=False)
        for name in (*module._parameters, *module._buffers)
        if not module._load_state_dict_pre_hooks and _loads_plainly(module)
    }
    for name in sorted(own & current.keys() & tensors.keys()):
        mine = current[name]
        if not torch.nn.parameter.is_lazy(mine) and mine.shape != tensors[name].shape:
            raise StateError(
                f"expected the state of the same model, got another shape of `{name}`",
                saved={"shape": tuple(tensors[name].shape)},
                current={"shape": tuple(mine.shape)},
            )


def load_model(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Load a model's tensors.

    Raises:
        StateError: they are not those of this model.
    """
    try:
        uncompiled(model).load_state_dict(tensors)
    except RuntimeError as error:
        raise StateError(f"expected the state of the same model: {error}") from error


def _loads_plainly(module: torch.nn.Module) -> bool:
    kind = next(kind for kind in type(module).__mro__ if "_load_from_state_dict" in vars(kind))
    return kind.__module__.startswith("torch.nn.")


def _under(prefix: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _check_one_each(what: str, numbers: Any) -> None:
    """One number a label sample, not one for all of them."""
    if not isinstance(numbers, torch.Tensor):
        raise ValueError(f"expected a tensor of one {what} a label sample, got {type(numbers).__name__}")
    if numbers.ndim == 0:
        raise ValueError(
            f'expected one {what} a label sample, got a single number: use reduction="none" and no mean(), so that '
            "every label counts the same"
        )


def _call(model: torch.nn.Module, minibatch: Minibatch) -> Any:
    return model(minibatch)


def uncompiled(model: torch.nn.Module) -> torch.nn.Module:
    """What `torch.compile` was given: a state is under its names, whether the model is compiled or not."""
    module: torch.nn.Module = getattr(model, "_orig_mod", model)
    return module


def _tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    state = uncompiled(model).state_dict()
    other = [name for name, value in state.items() if not isinstance(value, torch.Tensor)]
    if other:
        raise TypeError(f"expected tensors only in the model's state, got others in {', '.join(other)}")
    return dict(state)


def _listed(learners: Any) -> list[Learner]:
    given = list(learners) if isinstance(learners, Sequence) else [learners]
    for learner in given:
        if not isinstance(learner, Learner):
            wrap = "; wrap it: TorchLearner(optimizer)" if isinstance(learner, torch.optim.Optimizer) else ""
            raise TypeError(f"expected a learner of feedline.train, or a list of them, got {learner!r:.80}{wrap}")
    return given


def _check_parameters(model: torch.nn.Module, learners: list[Learner]) -> None:
    if not learners:
        raise ValueError("expected at least one learner, got none")
    mine = {id(p): name for name, p in model.named_parameters()}
    owners: dict[int, int] = {}
    for i, learner in enumerate(learners):
        for name, parameter in learner.parameters.items():
            if id(parameter) not in mine:
                raise ValueError(f"expected parameters of the model, got `{name}` in learner {i}, which is not one")
            if id(parameter) in owners:
                raise ValueError(
                    f"expected each parameter in one learner, got `{mine[id(parameter)]}` in "
                    f"{owners[id(parameter)]} and {i}"
                )
            owners[id(parameter)] = i
    left = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in owners]
    if left:
        warnings.warn(f"no learner updates {', '.join(left[:5])}{' and more' if len(left) > 5 else ''}", stacklevel=3)
