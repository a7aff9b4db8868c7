"""Trainer: one minibatch in, one update, a summary out.

The trainer counts *label samples*: the loss returns one number for each label. Gradients are of the sum over the
minibatch, or of the mean over it. So every element of every sequence has the same weight, whatever the length of the
sequence. Learners convert between sum and mean as their settings require.

A minibatch that does not fit the memory of a device is processed in pieces. The update is the same up to rounding.

Costs besides the model: a few microseconds a minibatch. Sums stay tensors on the device until they are read, so that a
step never waits for the device.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from feedline.collective.ranks import Ranks
from feedline.data import Minibatch
from feedline.errors import StateError, shown
from feedline.train.distributed.ddp_fsdp import has_shards, is_in_ddp, strategy_for, strategy_of_model
from feedline.train.functions import call_model, check_functions
from feedline.train.learner import Learner
from feedline.train.strategy import Alone, Contribution, ExchangesInBackward, HoldsParts, KeepsState, Overlapping, Total
from feedline.train.summary import NOTHING, Summary, plus
from feedline.train.unwrap import rename_tensors, unwrap_model

Criterion = Callable[[Any, Minibatch], torch.Tensor]
Forward = Callable[[torch.nn.Module, Minibatch], Any]


_HALF = (torch.float16, torch.bfloat16)


class Trainer:
    """A model with its loss, metric and learners.

    Args:
        model: any `torch.nn.Module`, compiled or not. A model in `DistributedDataParallel`, or sharded by FSDP2
            (`fully_shard`), exchanges gradients itself. Each label sample of all ranks then has the same weight.
        loss: function ``loss(output, minibatch)`` that returns one number for each label sample, in a tensor of any
            shape, as torch's losses do with ``reduction="none"``. It must exclude padding: select by the mask, or pack.
        metric: function like ``loss``, for reports. None means no metric.
        learners: one or several learners. Each updates its own parameters of the model. With `data_parallel`,
            `quantized` or `block_momentum` all ranks of torch.distributed train together.
        forward: function ``forward(model, minibatch)`` that returns the output. None means ``model(minibatch)``.
        microbatch: largest number of samples to process at once. Larger minibatches are processed in pieces whose
            gradients are summed. None means no limit.
        autocast: context manager for forward passes and losses, such as ``torch.autocast("cuda")``, if any.

    Attributes:
        strategy: how the learners train together with other ranks. See `feedline.train.strategy`.
        counted: label samples, over all ranks, by which the last minibatch advanced the clocks.
        ended: whether the sources of all ranks have ended. See `train_minibatch`.

    Raises:
        TypeError: an argument of the wrong kind: an item of ``learners`` that is not a learner, a function that takes
            other arguments, or one of torch's losses, which take tensors.
        ValueError: no learner, a learner with a parameter that the model does not have, two learners with the same
            parameter, learners with different strategies, or a strategy although the model exchanges gradients itself.
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
        check_functions(model, loss, metric, forward)
        self.model, self.loss, self.metric = model, loss, metric
        self.learners = _as_list(learners)
        self.forward: Forward = forward if forward is not None else call_model
        if microbatch is not None and (type(microbatch) is not int or microbatch < 1):
            raise ValueError(f"expected microbatch of at least 1 sample or None, got {microbatch!r}")
        if autocast is not None and not hasattr(autocast, "__enter__"):
            raise TypeError(f'expected autocast to be a context such as torch.autocast("cuda"), got {autocast!r:.80}')
        self.microbatch = microbatch
        self.autocast = autocast if autocast is not None else contextlib.nullcontext()
        self.counted, self.ended = 0, False
        _check_parameters(model, self.learners)
        self._parameters = list(model.parameters())
        self.strategy = self.learners[0].strategy
        if (has_shards(model) or is_in_ddp(model)) and not isinstance(self.strategy, Alone):
            kind = "sharded model" if has_shards(model) else "model in DistributedDataParallel"
            raise ValueError(f"expected learners without a strategy for a {kind}, which exchanges gradients itself")
        if len({isinstance(learner.strategy, Alone) for learner in self.learners}) > 1:
            raise ValueError("expected a strategy for all learners or for none, got one for some of them")
        if isinstance(self.strategy, Alone):
            self.strategy = strategy_of_model(model) or self.strategy
        self.strategy.join(model, self.learners)
        self._rank_sweeps = self.learners[0].sweeps  # number of sweeps whose end this rank has reached

    @property
    def samples(self) -> int:
        """Number of label samples that the first learner has counted."""
        return self.learners[0].samples

    @property
    def sweeps(self) -> int:
        """Number of sweeps that have ended on all ranks, as counted by the first learner."""
        return self.learners[0].sweeps

    @contextlib.contextmanager
    def within(self, ranks: Ranks) -> Iterator[None]:
        """Open a block in which ``ranks`` run the same session. Learners without a strategy count the samples of all
        ranks."""
        before = self.strategy
        if isinstance(before, Alone) and not ranks.alone:
            self.strategy = strategy_for(self.model, ranks)
        try:
            yield
        finally:
            self.strategy = before

    def train_minibatch(self, minibatch: Minibatch, ended: bool = False) -> Summary:
        """Make one update.

        Args:
            minibatch: minibatch, or this rank's part of a global one if ranks train together. An empty one, or the end
                of a source, changes nothing. But if ranks train together, this rank then takes part in the update of
                the other ranks, and all ranks have to call this equally often.
            ended: whether the source of this rank has ended. The attribute `ended` is True when the sources of all
                ranks have.

        Returns:
            Sums over this minibatch, of all ranks that train together. The summary is false if nothing was updated.

        Raises:
            ValueError: loss or metric is not a tensor with one number for each label sample.
            StoreError: another rank is missing. The message names it.
        """
        alone, self.counted, self.ended = isinstance(self.strategy, Alone), 0, ended
        if alone and (not minibatch or minibatch.num_sequences == 0):
            if minibatch and minibatch.sweep_end:  # rates may change with it
                self._skip(0)
            return NOTHING
        if not self.strategy.prepare(minibatch):
            self._step(minibatch, NOTHING)
            return NOTHING
        if not self.model.training:
            self.model.train()
        for parameter in self._parameters:
            parameter.grad = None
        # In one piece the gradients are computed as means, which no learner has to scale. In several pieces, or on
        # several ranks, the count is known only at the end.
        averaged = alone and self.microbatch is None
        if averaged:
            summary, loss_sum = self._criteria(minibatch)
            if summary.samples:
                loss_sum.backward(torch.full_like(loss_sum, 1.0 / summary.samples))
            return self._step(minibatch, summary, averaged)
        with contextlib.ExitStack() as step:
            return self._step(minibatch, self._backward_pieces(minibatch, step))

    def pass_by(self, minibatch: Minibatch) -> None:
        """Skip a minibatch, as all ranks decided. The clocks advance."""
        self.counted = 0
        self._step(minibatch, NOTHING)

    def _step(self, minibatch: Minibatch, part: Summary, averaged: bool = False) -> Summary:
        """Make the same update on every rank, given the sums of this rank's part."""
        strategy, updated = self.strategy, False
        with strategy.step():
            # Within the step, since after Ctrl-C before it the caller would call again.
            common_sweeps = self.learners[0].sweeps  # counted by all ranks, so by this one too
            alone = isinstance(strategy, Alone)
            self._rank_sweeps = common_sweeps if alone else max(common_sweeps, self._rank_sweeps)
            if minibatch and minibatch.sweep_end:
                self._rank_sweeps += 1
            contribution = Contribution(
                samples=part.samples,
                loss_sum=part.loss_sum,
                metric_sum=0.0 if part.metric_sum is None and self.metric is not None else part.metric_sum,
                sweeps=self._rank_sweeps if minibatch else math.inf,
                ended=self.ended,
                share=minibatch.partition[0] if minibatch else -1,
                shares=minibatch.partition[1] if minibatch else 0,
            )
            total = strategy.reduce(contribution)
            self.counted, self.ended = total.counted, total.ended
            # If ranks fill minibatches independently, a sweep ends when all ranks have reached its end.
            sweep_end = self.learners[0].sweeps < total.sweeps < math.inf
            if total.counted:
                updated = self._update(total, sweep_end, averaged or total.averaged)
            elif sweep_end:
                self._skip(0)
        sums = total.summary
        return Summary(sums.loss_sum, sums.metric_sum, sums.samples, True) if updated else sums

    def _update(self, total: Total, sweep_end: bool, averaged: bool) -> bool:
        """Update with all learners. Return False, with nothing counted, if no learner updates."""
        learned, counted = total.learned, total.counted
        updated = [
            learner.update(learned, sweep_end=sweep_end, averaged=averaged) if learned else learner.learning_rate() != 0
            for learner in self.learners
        ]
        if any(updated):
            for learner, did in zip(self.learners, updated, strict=True):
                if not did or not learned:  # a later call may have a rate or samples
                    learner.skip(counted, sweep_end=sweep_end)
                elif counted > learned:
                    learner.skip(counted - learned)
        return any(updated)

    def test_minibatch(self, minibatch: Minibatch) -> Summary:
        """Compute loss and metric without an update, in evaluation mode, on the part of this rank alone."""
        if not minibatch or minibatch.num_sequences == 0:
            return NOTHING
        # Module by module, so that modules frozen in evaluation mode stay frozen.
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
        """Compute loss and metric over all ``minibatches``."""
        total = NOTHING
        for minibatch in minibatches:
            total = plus(total, self.test_minibatch(minibatch))
        return total

    def _backward_pieces(self, minibatch: Minibatch, step: contextlib.ExitStack) -> Summary:
        total, pieces, strategy = NOTHING, list(self._pieces(minibatch)), self.strategy
        exchanging = strategy if isinstance(strategy, ExchangesInBackward) else None
        if self.microbatch is not None and isinstance(strategy, HoldsParts):
            strategy.announce_pieces(len(pieces))
        for remaining, piece in zip(range(len(pieces) - 1, -1, -1), pieces, strict=True):
            with exchanging.accumulating() if exchanging and remaining else contextlib.nullcontext():
                summary, loss_sum = self._criteria(piece)
                # Even without label samples, a rank takes part in its model's exchange of gradients.
                if summary.samples or (exchanging and remaining == 0 and loss_sum.requires_grad):
                    if remaining == 0 and isinstance(strategy, Overlapping):
                        step.enter_context(strategy.step())
                    loss_sum.backward()
                total = plus(total, summary)
        if exchanging and not pieces:
            exchanging.backward_without_data()
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
            _check_one_per_sample("loss", losses)
            # A sum in half precision has three digits, and in float16 at most 65,504.
            loss_sum = losses.sum(dtype=torch.float32) if losses.dtype in _HALF else losses.sum()
            metric_sum = None
            if self.metric is not None:
                with torch.no_grad():
                    measured = self.metric(output, minibatch)
                    _check_one_per_sample("metric", measured)
                    if measured.numel() != losses.numel():
                        raise ValueError(
                            f"expected one metric per label sample, as many as losses ({losses.numel()}), got "
                            f"{measured.numel()}: exclude the same padding from both"
                        )
                    metric_sum = _in_double(measured.sum(dtype=torch.float64))
        return Summary(_in_double(loss_sum.detach()), metric_sum, losses.numel()), loss_sum

    # ---- state ----------------------------------------------------------------------------------------------

    def state_dict(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return the state of model and learners: tensors by name (not copied), and everything else in JSON types."""
        tensors = {f"model/{name}": tensor for name, tensor in _tensors(self.model).items()}
        learner_states: list[dict[str, Any]] = []
        for i, learner in enumerate(self.learners):
            learner_state = learner.state_dict()
            tensors |= {f"learner{i}/{name}": tensor for name, tensor in learner_state.pop("tensors").items()}
            learner_states.append(learner_state)
        strategy_state = self.strategy.state_dict() if isinstance(self.strategy, KeepsState) else {}
        tensors |= {f"workers/{name}": tensor for name, tensor in strategy_state.pop("tensors", {}).items()}
        advice = self.strategy.advice() if isinstance(self.strategy, Overlapping) else {}
        tensors |= {f"advice/{name}": tensor for name, tensor in advice.pop("tensors", {}).items()}
        state = {"learners": learner_states, "training": self.model.training, "workers": strategy_state}
        return tensors, {**state, "advice": advice} if advice else state

    def load_state_dict(self, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
        """Restore a state.

        Raises:
            StateError: the state is of other learners, or of a model with other tensors. Nothing has changed.
        """
        try:
            learners, training, workers = list(state["learners"]), state["training"], state["workers"]
            advice = state.get("advice", {})
            if type(training) is not bool or not isinstance(workers, Mapping) or not isinstance(advice, Mapping):
                raise TypeError(f"training {shown(training, 40)}, workers {shown(workers, 40)}")
            if not all(isinstance(learner_state, Mapping) for learner_state in learners):
                raise TypeError(f"learners {shown(learners, 80)}")
        except (KeyError, TypeError) as error:
            raise StateError(
                f"expected learners, training and workers in a trainer's state: {shown(error, 200)}"
            ) from error
        names = sorted(_tensors(self.model))
        model_tensors = rename_tensors(_under("model/", tensors), names)
        saved = {"learners": len(learners), "model": sorted(model_tensors)}
        current = {"learners": len(self.learners), "model": names}
        if saved != current:
            raise StateError("expected a trainer's state with this model and learners", saved=saved, current=current)
        check_model(self.model, model_tensors)
        loads = [
            learner.checked({**learner_state, "tensors": _under(f"learner{i}/", tensors)})
            for i, (learner, learner_state) in enumerate(zip(self.learners, learners, strict=True))
        ]
        if isinstance(self.strategy, KeepsState):
            loads.append(self.strategy.checked({**workers, "tensors": _under("workers/", tensors)} if workers else {}))
        elif workers:
            raise StateError("expected the state of a lone trainer", saved={"workers": workers.get("way")}, current={})
        if isinstance(self.strategy, Overlapping):
            self.strategy.take_advice({**advice, "tensors": _under("advice/", tensors)})
        load_model(self.model, model_tensors)
        for load in loads:
            load()
        self._rank_sweeps = self.learners[0].sweeps
        if self.model.training != training:
            self.model.train(training)


def check_model(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Check the shapes of a model's tensors, except in modules that override loading.

    Raises:
        StateError: a shape differs. `torch.nn.Module.load_state_dict` would detect it only after changing other
            tensors.
    """
    inner, current = unwrap_model(model), _tensors(model)
    tensors = rename_tensors(tensors, current)
    plain_names = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in inner.named_modules(remove_duplicate=False)
        for name in (*module._parameters, *module._buffers)
        if not module._load_state_dict_pre_hooks and _loads_plainly(module)
    }
    for name in sorted(plain_names & current.keys() & tensors.keys()):
        tensor = current[name]
        if not torch.nn.parameter.is_lazy(tensor) and tensor.shape != tensors[name].shape:
            what = f"expected the state of the same model, got another shape of `{name}`"
            saved = {"shape": tuple(tensors[name].shape)}
            raise StateError(what, saved=saved, current={"shape": tuple(tensor.shape)})


def load_model(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Load a model's tensors.

    Raises:
        StateError: the tensors do not fit this model.
    """
    try:
        unwrap_model(model).load_state_dict(rename_tensors(tensors, _tensors(model)))
    except RuntimeError as error:
        raise StateError(f"expected the state of the same model: {error}") from error


def _loads_plainly(module: torch.nn.Module) -> bool:
    kind = next(kind for kind in type(module).__mro__ if "_load_from_state_dict" in vars(kind))
    return kind.__module__.startswith("torch.nn.")


def _under(prefix: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _check_one_per_sample(what: str, numbers: Any) -> None:
    """Raise ValueError for a single number in place of a number for each label sample."""
    if not isinstance(numbers, torch.Tensor):
        raise ValueError(f"expected a tensor with one {what} per label sample, got {type(numbers).__name__}")
    if numbers.ndim == 0:
        raise ValueError(
            f'expected one {what} per label sample, got a single number: use reduction="none" and no mean(), so that '
            "every label has the same weight"
        )


def _in_double(total: torch.Tensor) -> torch.Tensor | float:
    """Return a sum in double precision, which sums over an epoch need: a float where reading it does not wait."""
    return total.item() if total.device.type == "cpu" and type(total) is torch.Tensor else total.double()


def _tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    state = unwrap_model(model).state_dict()
    foreign = [name for name, value in state.items() if not isinstance(value, torch.Tensor)]
    if foreign:
        raise TypeError(f"expected tensors only in the model's state, got others in {', '.join(foreign)}")
    return dict(state)


def _as_list(learners: Any) -> list[Learner]:
    items = list(learners) if isinstance(learners, Sequence) else [learners]
    for learner in items:
        if not isinstance(learner, Learner):
            got = f"{learner!r:.80}"
            if isinstance(learner, torch.optim.Optimizer):
                got = f"torch's {type(learner).__name__}; wrap it: TorchLearner(optimizer)"
            raise TypeError(f"expected a learner of feedline.train, or a list of them, got {got}")
    return items


def _check_parameters(model: torch.nn.Module, learners: list[Learner]) -> None:
    if not learners:
        raise ValueError("expected at least one learner, got none")
    names = {id(p): name for name, p in model.named_parameters()}
    owners: dict[int, int] = {}
    for i, learner in enumerate(learners):
        for name, parameter in learner.parameters.items():
            key = id(parameter)
            if key not in names:
                raise ValueError(f"expected parameters of the model in learner {i}, got `{name}`, which is not one")
            if key in owners:
                raise ValueError(f"expected each parameter in one learner, got `{names[key]}` in {owners[key]} and {i}")
            owners[key] = i
    idle = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in owners]
    if idle:
        warnings.warn(f"no learner updates {', '.join(idle[:5])}{' and more' if len(idle) > 5 else ''}", stacklevel=3)
