"""`cntk.train.trainer`: `Trainer`, over `feedline.train.Trainer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from feedline.cntk._arguments import Arguments, arguments_of
from feedline.cntk._criterion import CriterionNetwork, functions_of, module_of, outputs_of
from feedline.cntk._errors import checkpoint_errors
from feedline.cntk.device import DeviceDescriptor
from feedline.cntk.learners import Learner
from feedline.cntk.logging._writer import ProgressWriter
from feedline.cntk.ops._evaluation import handed
from feedline.cntk.ops.functions import Function
from feedline.cntk.train._first_version import in_present_order
from feedline.cntk.variables import Variable
from feedline.collective.ranks import rank
from feedline.errors import CompatError, StateError, shown
from feedline.interop.tensor_file import load_state, load_tensors, replace_tensors
from feedline.networks import Node
from feedline.train.random_states import checked_random_state, random_state
from feedline.train.summary import NOTHING, Summary
from feedline.train.trainer import Trainer as Modern

__all__ = ["Trainer"]

_FORMAT, _VERSION, _FIRST = "feedline.cntk.Trainer", 2, 1


class Trainer:
    """A model, what is asked of it, and who updates it.

    Args:
        model: a function, or None; or a `torch.nn.Module`: ``model(minibatch)`` gets a mapping from the script's keys
            to `feedline.Value`.
        criterion: ``(loss, metric)``, ``(loss, None)``, ``(loss,)`` or the loss: functions of the graph; or, for a
            module, of its output and of the minibatch, that return one number for each label sample, see
            `feedline.train.Trainer`.
        parameter_learners: one or a list.
        progress_writers: one, a list, or None.

    Raises:
        ValueError: a criterion of other parts, no learner, a learner's parameter that is not the model's, or two
            learners with the same one.
        CompatError: a criterion of Python functions for a model that is no `torch.nn.Module`.

    Attributes:
        modern: the feedline trainer beneath.
    """

    def __init__(
        self,
        model: Any,
        criterion: Any,
        parameter_learners: Learner | Sequence[Learner],
        progress_writers: ProgressWriter | Sequence[ProgressWriter] | None = None,
    ) -> None:
        functions = functions_of(criterion)
        if functions is not None:
            loss, metric = self._functions = functions
            network, loss, metric = module_of(loss, metric)
            self._model = model
            criterion = functions[0]
        elif isinstance(model, torch.nn.Module):
            network = self._model = model
            loss, metric = self._functions = _pair(criterion)
        else:
            raise CompatError(
                f"expected functions as criterion, or a torch.nn.Module as model, got {type(model).__name__} and "
                f"{criterion!r}"
            )
        self._criterion = criterion
        self._learners = _listed(parameter_learners, Learner)
        self._writers: list[ProgressWriter] = _listed(progress_writers or [], ProgressWriter)
        self.modern = Modern(
            network, loss, metric, [learner.modern for learner in self._learners], forward=self._forward
        )
        self._watched: CriterionNetwork | None = None
        self._watching: dict[tuple[Node, ...], CriterionNetwork] = {}
        self._ranks = self.modern.strategy.session_ranks()
        self._last = NOTHING
        self._trained, self._tested = NOTHING, NOTHING

    # ---- what it is -------------------------------------------------------------------------------

    @property
    def model(self) -> Any:
        """The model, as given."""
        return self._model

    @property
    def loss_function(self) -> Any:
        """The loss."""
        return self._functions[0]

    @property
    def evaluation_function(self) -> Any:
        """The metric, or None."""
        return self._functions[1]

    @property
    def parameter_learners(self) -> list[Learner]:
        """The learners."""
        return list(self._learners)

    @property
    def total_number_of_samples_seen(self) -> int:
        """Label samples that the first learner has learned from."""
        return self.modern.samples

    @property
    def previous_minibatch_sample_count(self) -> int:
        """Label samples of the last minibatch."""
        return self._last.samples

    @property
    def previous_minibatch_loss_average(self) -> float:
        """Average loss a label sample of the last minibatch.

        Raises:
            RuntimeError: there was none, or it was empty.
        """
        return self._previous().loss

    @property
    def previous_minibatch_evaluation_average(self) -> float:
        """Average metric a label sample of the last minibatch.

        Raises:
            RuntimeError: there was none, it was empty, or there is no metric.
        """
        metric = self._previous().metric
        if metric is None:
            raise RuntimeError("expected a trainer with a metric, got one without: give it (loss, metric)")
        return metric

    def _previous(self) -> Summary:
        if not self._last.samples:
            raise RuntimeError("There was no preceding call to TrainMinibatch or the minibatch was empty.")
        return self._last

    # ---- minibatches ------------------------------------------------------------------------------

    def train_minibatch(
        self,
        arguments: Any,
        outputs: Any = None,
        device: DeviceDescriptor | None = None,
        is_sweep_end: bool | None = None,
    ) -> Any:
        """One update.

        Args:
            arguments: data by key: `MinibatchData`, values, arrays, CSR matrices, or lists of them, a sequence each;
                empty at the end.
            outputs: functions or variables below the criterion, whose values are wanted too, as from before the update.
            device: taken where the model is.
            is_sweep_end: whether it touches or crosses the end of a sweep, if the data does not say.

        Returns:
            False, with nothing updated, for an empty minibatch, and where every learner's rate is 0. With ``outputs``
            a pair of that and of a dictionary of arrays, or lists of an array a sequence, by variable.

        Raises:
            ValueError: ``is_sweep_end`` together with `MinibatchData`.
            CompatError: ``outputs`` of a model that is no function.
        """
        minibatch = self._minibatch(arguments, is_sweep_end)
        self._watched = self._watch(outputs)
        changed = [pair for learner in self._learners for pair in learner.changed()] if minibatch else []
        try:
            self._last = self.modern.train_minibatch(minibatch)  # type: ignore[arg-type]  # as much of one as it asks for
        finally:
            watched, self._watched = self._watched, None
        for key, value in changed:
            for writer in self._writers:
                writer.write(key, value)
        self._trained = _plus(self._trained, self._last)
        for writer in self._writers:
            writer.update_training(self._last.samples, self._trained.loss_sum, self._trained.metric_sum)
            if not self.modern.strategy.solo and self._last.samples:
                writer.update_distributed_sync(self._last.samples, self._trained.metric_sum)
        return self._last.updated if watched is None else (self._last.updated, handed(watched, watched.more))

    def _watch(self, outputs: Any) -> CriterionNetwork | None:
        """The criterion's network, with more outputs."""
        if outputs is None:
            return None
        model = self.modern.model
        if not isinstance(model, CriterionNetwork):
            raise CompatError("expected no outputs of a torch.nn.Module, got some: call it with the data instead")
        nodes = tuple(v.node for item in outputs for v in getattr(item, "outputs", [item]))
        if nodes not in self._watching:
            self._watching[nodes] = model.with_outputs(nodes)
        network = self._watching[nodes]
        network.train()
        return network

    def _forward(self, model: Any, minibatch: Any) -> Any:
        return (self._watched or model)(minibatch)

    def test_minibatch(self, arguments: Any, device: DeviceDescriptor | None = None) -> float:
        """The average metric of a minibatch over its own samples; NaN if it is empty. See `train_minibatch`.

        Raises:
            ValueError: there is no metric.
        """
        metric = self.test(arguments).metric
        return float("nan") if metric is None else metric

    def test(self, arguments: Any) -> Summary:
        """As `test_minibatch`, with sums and samples."""
        if self.modern.metric is None:
            raise ValueError("expected a trainer with a metric to test with, got one without: give it (loss, metric)")
        summary = self.modern.test_minibatch(self._minibatch(arguments))  # type: ignore[arg-type]  # as above
        self._tested = _plus(self._tested, summary)
        for writer in self._writers:
            writer.update_test(summary.samples, self._tested.metric_sum)
        return summary

    def _minibatch(self, arguments: Any, is_sweep_end: bool | None = None) -> Arguments:
        if isinstance(arguments, Mapping) and not arguments:
            return Arguments({}, False)
        return arguments_of(arguments, self._criterion, is_sweep_end)

    def summarize_training_progress(self) -> None:
        """Tell the writers what was trained since the last time."""
        for writer in self._writers:
            writer.write_training_summary(self._trained.loss_sum, self._trained.metric_sum)
        self._trained = NOTHING

    def summarize_test_progress(self) -> None:
        """Tell the writers what was tested since the last time."""
        for writer in self._writers:
            writer.write_test_summary(self._tested.metric_sum)
        self._tested = NOTHING

    def print_node_timing(self) -> None:
        """Not there.

        Raises:
            CompatError: always.
        """
        raise CompatError("print_node_timing is not there: use torch.profiler around train_minibatch")

    # ---- checkpoints ------------------------------------------------------------------------------

    def save_checkpoint(self, filename: str, external_state: Mapping[str, Any] | None = None) -> None:
        """Write ``<filename>``, the model, and ``<filename>.ckp``, all that restoring needs.

        Both are safetensors files; rank 0 writes them, and all ranks have to call this. Killed at any instant, each is
        the old one or the new one, whole; a new ``<filename>.ckp`` goes with its own model. Random generators are
        in it.

        Args:
            filename: see above.
            external_state: comes back from `restore_from_checkpoint`: strings as keys; None, bool, int, float, str,
                arrays, and lists and dictionaries of these.

        Raises:
            ValueError: an external state of other parts.
        """
        parts: dict[str, torch.Tensor] = {}
        external = _flat(dict(external_state or {}), "external", parts)
        if isinstance(self.modern.model, CriterionNetwork):
            parts |= {f"carried/{name}": tensor for name, tensor in self.modern.model.carried().items()}
        self.modern.strategy.settle(saving=True)
        generators = self._ranks.tell(random_state())
        if rank() != 0:
            return
        tensors, own = self.modern.state_dict()
        state = {"format": _FORMAT, "version": _VERSION, "trainer": own, "external": external, "random": generators}
        # The one that restoring reads comes last: whoever finds it finds its model, and nothing half written.
        if isinstance(self._model, Function):
            self._model.save(filename)
        else:
            replace_tensors(Path(filename), {n.removeprefix("model/"): t for n, t in tensors.items() if _is_model(n)})
        replace_tensors(Path(f"{filename}.ckp"), {**tensors, **parts}, state)

    def _roots(self) -> list[Node]:
        """Of the model and of what is asked of it, as far as they are functions."""
        parts = [self._model, *self._functions]
        return [v.node for part in parts if isinstance(part, (Function, Variable)) for v in outputs_of(part)]

    def restore_from_checkpoint(self, filename: str) -> dict[str, Any]:
        """Go on from ``<filename>.ckp``; learning rates follow the schedule that is in it.

        Returns:
            The external state.

        Raises:
            RuntimeError: it is missing, torn, no checkpoint of this façade, or of another model or other learners.
        """
        path = Path(f"{filename}.ckp")
        with checkpoint_errors():
            saved_state(path)
            tensors, state = load_tensors(path)
            try:
                external: dict[str, Any] = _unflat(state["external"], tensors)
                begin = checked_random_state(state["random"], rank())
                trainer = state["trainer"]
            except (KeyError, TypeError, ValueError) as error:
                raise StateError(
                    f"expected a checkpoint of feedline.cntk in {path}, got another: {shown(error, 200)}"
                ) from error
            own = {name: t for name, t in tensors.items() if not name.startswith(("external/", "carried/"))}
            if state["version"] == _FIRST:
                own, trainer = in_present_order(own, trainer, self._learners, self._roots())
            self.modern.load_state_dict(own, trainer)
            if isinstance(self.modern.model, CriterionNetwork):
                carried = {n.removeprefix("carried/"): t for n, t in tensors.items() if n.startswith("carried/")}
                self.modern.model.carry_on(carried)
            begin()
        self._last = NOTHING
        return external


def saved_state(path: Path) -> dict[str, Any]:
    """What a checkpoint says of itself, without its tensors.

    Raises:
        StateError: it is missing, torn, or no checkpoint of this façade.
    """
    state = load_state(path)
    expected, found = {"format": _FORMAT, "version": _VERSION}, {k: state.get(k) for k in ("format", "version")}
    if found not in (expected, {**expected, "version": _FIRST}):
        raise StateError(f"expected a checkpoint of feedline.cntk in {path}", saved=found, current=expected)
    return state


def saved_samples(path: Path) -> int:
    """Label samples that the first learner of a checkpoint had learned from.

    Raises:
        RuntimeError: as `saved_state`.
    """
    with checkpoint_errors():
        state = saved_state(path)
        try:
            return int(state["trainer"]["learners"][0]["samples"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise StateError(f"expected a trainer's state in {path}, got another: {shown(error, 200)}") from error


def check_whole(path: Path) -> None:
    """Read all of a checkpoint's tensors.

    Raises:
        RuntimeError: it is missing, or damaged anywhere.
    """
    with checkpoint_errors():
        load_tensors(path)


def _is_model(name: str) -> bool:
    return name.startswith("model/")


def _pair(criterion: Any) -> tuple[Any, Any]:
    parts = tuple(criterion) if isinstance(criterion, (tuple, list)) else (criterion,)
    if len(parts) not in (1, 2) or not callable(parts[0]) or not (parts[-1] is None or callable(parts[-1])):
        raise ValueError(f"expected (loss, metric), (loss, None) or a loss as criterion, got {criterion!r}")
    return parts[0], parts[1] if len(parts) == 2 else None


def _listed(given: Any, kind: type) -> list[Any]:
    found = [given] if isinstance(given, kind) else list(given)
    for item in found:
        if not isinstance(item, kind):
            raise TypeError(f"expected a cntk {kind.__name__}, got {type(item).__name__}")
    return found


def _plus(total: Summary, more: Summary) -> Summary:
    if not more.samples:
        return total
    return more if not total.samples else total + more


def _flat(value: Any, path: str, parts: dict[str, torch.Tensor]) -> Any:
    """JSON types for an external state; arrays in it are put into ``parts`` under their path."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        try:
            parts[path] = torch.from_numpy(np.array(value))
        except TypeError as error:
            raise ValueError(f"expected an array of numbers at {path}, got {value.dtype}") from error
        return {"array": path}
    if isinstance(value, (list, tuple)):
        return [_flat(item, f"{path}/{i}", parts) for i, item in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"mapping": {key: _flat(item, f"{path}/{key}", parts) for key, item in value.items()}}
    raise ValueError(
        "expected an external state of strings as keys, numbers, text, arrays, lists and dictionaries, got "
        f"{type(value).__name__} at {path}"
    )


def _unflat(value: Any, parts: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_unflat(item, parts) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    return parts[held].numpy() if kind == "array" else {key: _unflat(item, parts) for key, item in held.items()}
