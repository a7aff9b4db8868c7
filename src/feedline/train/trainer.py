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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from feedline.data import Minibatch
from feedline.errors import StateError, shown
from feedline.train.learner import Learner, Workers
from feedline.train.ranks import Ranks

Criterion = Callable[[Any, Minibatch], torch.Tensor]
Forward = Callable[[torch.nn.Module, Minibatch], Any]


@dataclass(frozen=True, slots=True)
class Summary:
    """Sums over the label samples of one or several minibatches.

    Attributes:
        samples: label samples.
        updated: whether parameters were updated; False for an empty minibatch, the end of a source, a rate of 0, and
            for every evaluation.
    """

    loss_sum: torch.Tensor | float
    metric_sum: torch.Tensor | float | None
    samples: int
    updated: bool = False

    @property
    def loss(self) -> float:
        """Average loss a label sample; NaN without samples. Waits for the device."""
        return float(self.loss_sum) / self.samples if self.samples else float("nan")

    @property
    def metric(self) -> float | None:
        """Average metric a label sample; None without a metric. Waits for the device."""
        if self.metric_sum is None:
            return None
        return float(self.metric_sum) / self.samples if self.samples else float("nan")

    def __bool__(self) -> bool:
        return self.updated

    def __add__(self, other: Summary) -> Summary:
        metrics = [m for m in (self.metric_sum, other.metric_sum) if m is not None]
        return Summary(
            self.loss_sum + other.loss_sum,
            sum(metrics[1:], metrics[0]) if metrics else None,
            self.samples + other.samples,
            self.updated or other.updated,
        )

    def __repr__(self) -> str:
        metric = "" if self.metric_sum is None else f", metric {self.metric:.6g}"
        return f"Summary(loss {self.loss:.6g}{metric} over {self.samples} label samples)"


NOTHING = Summary(0.0, None, 0)
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
        votes: see `train_minibatch`.
        counted: label samples that the clocks went on by with the last minibatch, over all ranks.
        beside: ranks that learn from the same minibatches through the model alone, as `DistributedDataParallel` lets
            them; None: none. A session sets it while it runs. Clocks and rates then go by the samples of all ranks.

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
        self.votes: Sequence[float] = ()
        self.counted = 0
        self.beside: Ranks | None = None
        _check_parameters(model, self.learners)
        self._parameters = list(model.parameters())
        self._workers = self.learners[0].workers
        if any((learner.workers is None) != (self._workers is None) for learner in self.learners):
            raise ValueError("expected all learners to learn together with other ranks or none, got some of both")
        if self._workers is not None:
            self._workers.join(model, self.learners)
        self._own_sweeps = self.learners[0].sweeps  # whose end this rank has seen

    @property
    def workers(self) -> Workers | None:
        """Who else learns from the same minibatches; None: nobody."""
        return self._workers

    @property
    def samples(self) -> int:
        """Label samples that the first learner has counted."""
        return self.learners[0].samples

    @property
    def sweeps(self) -> int:
        """Sweeps whose end the first learner has counted; over all ranks that learn together."""
        return self.learners[0].sweeps

    def train_minibatch(self, minibatch: Minibatch, votes: Sequence[float] = ()) -> Summary:
        """One update.

        Args:
            minibatch: an empty one, or the end of a source, changes nothing. Where ranks learn together, this rank's
                part of a global minibatch; a rank whose part is empty, or whose source has ended, learns from the
                others', and all have to be called equally often.
            votes: numbers to be summed over the ranks on the way: `votes` has the sums afterwards.

        Returns:
            Sums of this minibatch, over all ranks that learn together; false if nothing was updated.

        Raises:
            ValueError: loss or metric are no tensors of one number a label sample.
            StoreError: another rank is missing; names it.
        """
        alone, self.votes, self.counted = self._workers is None, tuple(votes), 0
        if alone and self.beside is None and (not minibatch or minibatch.num_sequences == 0):
            return self._nothing(minibatch)
        if not self.model.training:
            self.model.train()
        for parameter in self._parameters:
            parameter.grad = None
        # In one piece the gradients are made as means, which no learner has to scale; in several, or on several ranks,
        # the count is known only at the end.
        averaged = alone and self.beside is None and self.microbatch is None
        total = self._backward_whole(minibatch) if averaged else self._backward_pieces(minibatch)
        if self._workers is not None:
            return self._learn_together(self._workers, minibatch, total)
        if self.beside is not None:
            return self._learn_beside(self.beside, minibatch, total)
        if total.samples == 0:
            return self._nothing(minibatch)
        updated = self._update_all(total.samples, minibatch.sweep_end, averaged)
        return Summary(total.loss_sum, total.metric_sum, total.samples, updated)

    def _update_all(self, samples: int, sweep_end: bool, averaged: bool) -> bool:
        """Let all learners learn; False, with nothing counted, where none does."""
        self.counted = samples
        updated = [learner.update(samples, sweep_end=sweep_end, averaged=averaged) for learner in self.learners]
        if any(updated):
            for learner, did in zip(self.learners, updated, strict=True):
                if not did:  # its rate is 0 here, and may be another one later
                    learner.skip(samples, sweep_end=sweep_end)
        return any(updated)

    def pass_by(self, minibatch: Minibatch) -> None:
        """Learn nothing from a minibatch, of which some rank has no part; all `beside` have to pass it by."""
        assert self.beside is not None
        self.counted = 0
        self._learn_beside(self.beside, minibatch, NOTHING)

    @property
    def joins(self) -> bool:
        """Whether a rank that has nothing to learn from can take part in the exchange of the model's gradients."""
        distributed = torch.distributed.is_available()
        return distributed and isinstance(uncompiled(self.model), torch.nn.parallel.DistributedDataParallel)

    def _take_part(self) -> None:
        """Exchange gradients, with none of one's own."""
        model: Any = uncompiled(self.model)
        module = model.module
        model.module = _Nothing(module)
        try:
            model(None).backward()
        finally:
            model.module = module

    def _learn_beside(self, ranks: Ranks, minibatch: Minibatch, own: Summary) -> Summary:
        """The same update on every rank, from gradients that the model has exchanged by itself."""
        if minibatch and minibatch.sweep_end:
            self._own_sweeps += 1
        sweeps_seen = float(self._own_sweeps) if minibatch else math.inf  # who has nothing holds nobody up
        whole = bool(minibatch) and minibatch.num_samples == minibatch.global_samples
        rows = ranks.gather([own.samples, float(whole), sweeps_seen])
        counts, wholes, sweeps = zip(*rows, strict=True)
        # Where all ranks have the same minibatch, only rank 0's samples count.
        shared = all(wholes)
        counted = round(counts[0] if shared else sum(counts))
        sweep_end = self.learners[0].sweeps < min(sweeps) < math.inf
        updated = False
        if counted:
            # Each rank's gradients were a sum over its part, of which the model has taken the mean.
            gradients = [p.grad for p in self._parameters if p.grad is not None]
            torch._foreach_mul_(gradients, len(rows) / sum(counts))
            updated = self._update_all(counted, sweep_end, True)
        elif sweep_end:
            self._skip(0)
        return NOTHING if shared and ranks.rank else Summary(own.loss_sum, own.metric_sum, own.samples, updated)

    def _update(self, samples: int, counted: int, sweep_end: bool) -> bool:
        """Let the learners learn from gradients over ``samples`` of the ``counted`` ones; the same on every rank."""
        active = [learner.learning_rate() != 0 for learner in self.learners]
        if not any(active):
            return False
        for learner, on in zip(self.learners, active, strict=True):
            if not on or not samples:  # another time it may have a rate, or this rank samples
                learner.skip(counted, sweep_end=sweep_end)
                continue
            learner.update(samples, sweep_end=sweep_end)
            if counted > samples:
                learner.skip(counted - samples)
        return True

    def _learn_together(self, workers: Workers, minibatch: Minibatch, own: Summary) -> Summary:
        if minibatch and minibatch.sweep_end:
            self._own_sweeps += 1
        sweeps_seen = float(self._own_sweeps) if minibatch else math.inf  # who has nothing holds nobody up
        result = NOTHING

        def update(samples: int, rows: list[list[float]]) -> None:
            nonlocal result
            counts, losses, metrics, sweeps, *votes = zip(*rows, strict=True)
            counted, self.votes = round(sum(counts)), tuple(sum(vote) for vote in votes)
            self.counted = counted
            # Where ranks fill minibatches by themselves, a sweep is over when its end has come everywhere.
            sweep_end = self.learners[0].sweeps < min(sweeps) < math.inf
            if counted:
                updated = self._update(samples, counted, sweep_end)
                result = Summary(sum(losses), None if self.metric is None else sum(metrics), counted, updated)
            elif sweep_end:
                self._skip(0)

        metric = 0.0 if own.metric_sum is None else float(own.metric_sum)
        workers.learn([own.samples, float(own.loss_sum), metric, sweeps_seen, *self.votes], update)
        return result

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
            summary = self.test_minibatch(minibatch)
            if summary.samples:
                total = summary if total is NOTHING else total + summary
        return total

    def _backward_whole(self, minibatch: Minibatch) -> Summary:
        summary, summed = self._criteria(minibatch)
        if summary.samples:
            summed.backward(torch.full_like(summed, 1.0 / summary.samples))
        return summary

    def _backward_pieces(self, minibatch: Minibatch) -> Summary:
        total, pieces = NOTHING, list(self._pieces(minibatch))
        for left, piece in zip(range(len(pieces) - 1, -1, -1), pieces, strict=True):
            with self._exchange(now=left == 0):
                summary, summed = self._criteria(piece)
                # A rank without a label sample takes part in the exchange that its model makes of gradients.
                if summary.samples or (self.beside is not None and left == 0 and summed.requires_grad):
                    summed.backward()
                if summary.samples:
                    total = summary if total is NOTHING else total + summary
        if not pieces and self.beside is not None and self.joins:
            self._take_part()
        return total

    def _exchange(self, now: bool) -> Any:
        """A model that exchanges gradients by itself does it with the last piece: ranks may have different numbers."""
        put_off = None if now or self.beside is None else getattr(self.model, "no_sync", None)
        return contextlib.nullcontext() if put_off is None else put_off()

    def _pieces(self, minibatch: Minibatch) -> Iterable[Minibatch]:
        if not minibatch or minibatch.num_sequences == 0:
            return ()
        return (minibatch,) if self.microbatch is None else minibatch.parts(self.microbatch)

    def _nothing(self, minibatch: Minibatch) -> Summary:
        """Nothing to learn from; but a sweep may be over all the same, and rates may change with it."""
        if minibatch and minibatch.sweep_end:
            self._skip(0)
        return NOTHING

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
        together = {} if self._workers is None else self._workers.state_dict()
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
        if self._workers is not None:
            loads.append(self._workers.checked({**workers, "tensors": _under("workers/", tensors)} if workers else {}))
        elif workers:
            raise StateError(
                "expected the state of a trainer that learns alone", saved={"workers": workers.get("way")}, current={}
            )
        load_model(self.model, own_model)
        for load in loads:
            load()
        self._own_sweeps = self.learners[0].sweeps
        if self.model.training != training:
            self.model.train(training)


class _Nothing(torch.nn.Module):
    """In the place of a model, with its parameters and buffers: zero, of which every parameter's gradient is zero."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, _: None) -> Any:
        # Of no elements: zero times a parameter that has become infinite would not be zero.
        return sum(parameter.reshape(-1)[:0].sum() for parameter in self.parameters() if parameter.requires_grad)


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
