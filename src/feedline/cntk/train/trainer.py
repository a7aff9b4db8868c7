"""`cntk.train.trainer`: `Trainer`, over `feedline.train.Trainer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any
from warnings import warn

import torch

from feedline.cntk._arguments import Arguments, arguments_by_key, arguments_of
from feedline.cntk._criterion import CriterionNetwork, functions_of, module_of
from feedline.cntk._errors import checkpoint_errors
from feedline.cntk._files import is_cntks
from feedline.cntk._names import absent_members
from feedline.cntk._states import flatten_state, unflatten_state
from feedline.cntk._threads import trained
from feedline.cntk._tracing import roots_of
from feedline.cntk.device import DeviceDescriptor
from feedline.cntk.learners import Learner
from feedline.cntk.logging._writer import ProgressWriter
from feedline.cntk.ops._evaluation import check_below, values_of
from feedline.cntk.ops.functions import Function
from feedline.cntk.variables import Variable
from feedline.collective.ranks import rank
from feedline.errors import CompatError, StateError, shown
from feedline.interop.launchers import launcher_rank
from feedline.interop.tensor_file import load_state, load_tensors, replace_tensors
from feedline.networks import Node, leaves
from feedline.networks.loop_outputs import outside
from feedline.train.random_states import check_random_states, random_state
from feedline.train.strategy import Alone
from feedline.train.summary import NOTHING, Summary, plus
from feedline.train.trainer import Trainer as Modern

__all__ = ["Trainer"]

_FORMAT, _VERSION = "feedline.cntk.Trainer", 2


@absent_members("cntk.train.trainer")
class Trainer:
    """A model with its criterion and learners.

    Args:
        model: function, or None, or a `torch.nn.Module` called as ``model(minibatch)`` with a mapping from the script's
            keys to `feedline.Value`.
        criterion: ``(loss, metric)``, ``(loss, None)``, ``(loss,)`` or the loss: functions of the graph, or, for a
            module, Python functions of its output and the minibatch that return one number per label sample, see
            `feedline.train.Trainer`.
        parameter_learners: learner, or a list of them.
        progress_writers: progress writer, list of them, or None.

    Raises:
        ValueError: a malformed criterion, no learner, a learner's parameter that is not the model's, or two learners
            with the same parameter.
        CompatError: a criterion of Python functions for a model that is not a `torch.nn.Module`.

    Attributes:
        modern: underlying feedline trainer.
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
        self._inputs = None if functions is None else leaves(outside(self._roots()), "input")
        self._learners = _as_list(parameter_learners, Learner)
        self._writers: list[ProgressWriter] = _as_list(progress_writers or [], ProgressWriter)
        self.modern = Modern(
            network, loss, metric, [learner.modern for learner in self._learners], forward=self._forward
        )
        self._watched: CriterionNetwork | None = None
        self._watching: dict[tuple[Node, ...], CriterionNetwork] = {}
        if isinstance(self.modern.strategy, Alone):
            _warn_of_several()
        self._ranks = self.modern.strategy.session_ranks()
        self._last = NOTHING
        self._trained, self._tested = NOTHING, NOTHING

    @staticmethod
    def _get_loss_metric(criterion: Any) -> tuple[Any, Any]:
        """Return loss, and metric or None, of a criterion. Examples call it in their ``train``."""
        return functions_of(criterion) or _pair(criterion)

    # ---- parts and results ------------------------------------------------------------------------

    model = property(attrgetter("_model"), doc="The model.")

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
        """Number of label samples that the first learner has learned from."""
        return self.modern.samples

    @property
    def previous_minibatch_sample_count(self) -> int:
        """Number of label samples in the last minibatch."""
        return self._last.samples

    @property
    def previous_minibatch_loss_average(self) -> float:
        """Mean loss per label sample of the last minibatch.

        Raises:
            RuntimeError: no minibatch so far, or an empty one.
        """
        return self._previous().loss

    @property
    def previous_minibatch_evaluation_average(self) -> float:
        """Mean metric per label sample of the last minibatch.

        Raises:
            RuntimeError: no minibatch so far, an empty one, or no metric.
        """
        metric = self._previous().metric
        if metric is None:
            raise RuntimeError("expected a trainer with a metric, got one without; pass (loss, metric)")
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
        """Train on a minibatch.

        Args:
            arguments: data by key: `MinibatchData`, values, arrays, CSR matrices, or lists of these, one per sequence.
                It is empty at the end.
            outputs: functions or variables below the criterion, to return their values before the update.
            device: ignored, as the model's device is used.
            is_sweep_end: whether the minibatch contains the end of a sweep, for data without that information.

        Returns:
            False, with nothing updated, for an empty minibatch, and if every learner's rate is 0. With ``outputs`` a
            pair of this and a dictionary from variables to arrays, or to lists of one array per sequence.

        Raises:
            ValueError: ``is_sweep_end`` together with `MinibatchData`.
            CompatError: ``outputs`` of a model that is not a function.
        """
        minibatch = self._minibatch(arguments, is_sweep_end)
        self._watched = self._watch(outputs)
        changed = [pair for learner in self._learners for pair in learner.changed()] if minibatch else []
        try:
            with trained():
                self._last = self.modern.train_minibatch(minibatch)  # type: ignore[arg-type]  # as much as it asks for
        finally:
            watched, self._watched = self._watched, None
        for key, value in changed:
            for writer in self._writers:
                writer.write(key, value)
        self._trained = plus(self._trained, self._last)
        for writer in self._writers:
            writer.update_training(self._last.samples, self._trained.loss_sum, self._trained.metric_sum)
            if self._last.samples and not isinstance(self.modern.strategy, Alone):
                writer.update_distributed_sync(self._last.samples, self._trained.metric_sum)
        return self._last.updated if watched is None else (self._last.updated, values_of(watched, watched.extra))

    def _watch(self, outputs: Any) -> CriterionNetwork | None:
        """Return the criterion's network with further outputs."""
        if outputs is None:
            return None
        model = self.modern.model
        if not isinstance(model, CriterionNetwork):
            raise CompatError("expected no outputs for a torch.nn.Module, got some; call it with the data instead")
        nodes = tuple(v.node for item in outputs for v in getattr(item, "outputs", [item]))
        if nodes not in self._watching:
            check_below(self._roots(), nodes)
            self._watching[nodes] = model.with_outputs(nodes)
        network = self._watching[nodes]
        network.train()
        return network

    def _forward(self, model: Any, minibatch: Any) -> Any:
        return (self._watched or model)(minibatch)

    def test_minibatch(self, arguments: Any, device: DeviceDescriptor | None = None) -> float:
        """Return the mean metric of a minibatch over its samples, or NaN if it is empty. See `train_minibatch`.

        Raises:
            ValueError: no metric.
        """
        metric = self.test(arguments).metric
        return float("nan") if metric is None else metric

    def test(self, arguments: Any) -> Summary:
        """Test on a minibatch, and return sums and samples. See `test_minibatch`."""
        if self.modern.metric is None:
            raise ValueError("expected a trainer with a metric to test with, got one without; pass (loss, metric)")
        summary = self.modern.test_minibatch(self._minibatch(arguments))  # type: ignore[arg-type]  # as above
        self._tested = plus(self._tested, summary)
        for writer in self._writers:
            writer.update_test(summary.samples, self._tested.metric_sum)
        return summary

    def _minibatch(self, arguments: Any, is_sweep_end: bool | None = None) -> Arguments:
        if isinstance(arguments, Mapping) and not arguments:
            return Arguments({})
        if self._inputs is None:
            return arguments_by_key(arguments, self._criterion, is_sweep_end)
        return arguments_of(arguments, self._inputs, is_sweep_end)

    def summarize_training_progress(self) -> None:
        """Report to the writers the training since the last call."""
        for writer in self._writers:
            writer.write_training_summary(self._trained.loss_sum, self._trained.metric_sum)
        self._trained = NOTHING

    def summarize_test_progress(self) -> None:
        """Report to the writers the tests since the last call."""
        for writer in self._writers:
            writer.write_test_summary(self._tested.metric_sum)
        self._tested = NOTHING

    def print_node_timing(self) -> None:
        """Print that no timing exists. See `cntk.debugging.set_node_timing`."""
        print("nodes are not timed: use cntk.debugging.start_profiler and enable_profiler around train_minibatch")

    # ---- checkpoints ------------------------------------------------------------------------------

    def save_checkpoint(self, filename: str, external_state: Mapping[str, Any] | None = None) -> None:
        """Write the model to ``<filename>``, and the trainer's state to ``<filename>.ckp``.

        Both are safetensors files, written by rank 0. A collective call: on every rank it returns once they are
        written. Each is replaced atomically, and ``<filename>.ckp``, which includes random generators, only after its
        model.

        Args:
            filename: path of the model.
            external_state: state to return from `restore_from_checkpoint`: a dictionary from strings to None, bool,
                int, float, str, arrays, and lists and dictionaries of these.

        Raises:
            ValueError: an external state of other types.
            OSError: rank 0 cannot write. The other ranks raise a StateError.
        """
        parts: dict[str, torch.Tensor] = {}
        external = flatten_state(dict(external_state or {}), "external", parts)
        if isinstance(self.modern.model, CriterionNetwork):
            parts |= {f"carried/{name}": tensor for name, tensor in self.modern.model.carried().items()}
        self.modern.strategy.sync_models(saving=True)
        random = self._ranks.gather_json(random_state())

        def write() -> None:
            tensors, trainer = self.modern.state_dict()
            state = {"format": _FORMAT, "version": _VERSION, "trainer": trainer, "external": external, "random": random}
            # The checkpoint is written last, so that its model is complete when it appears.
            if isinstance(self._model, Function):
                self._model.save(filename)
            else:
                model_tensors = {n.removeprefix("model/"): t for n, t in tensors.items() if n.startswith("model/")}
                replace_tensors(Path(filename), model_tensors)
            replace_tensors(Path(f"{filename}.ckp"), {**tensors, **parts}, state)

        self._ranks.on_rank_0(write)

    def _roots(self) -> list[Node]:
        """Return the root nodes of model and criterion, if they are functions."""
        parts = [self._model, *self._functions]
        return [node for part in parts if isinstance(part, (Function, Variable)) for node in roots_of(part)]

    def restore_from_checkpoint(self, filename: str) -> dict[str, Any]:
        """Restore ``<filename>.ckp``, including the schedules of learning rates.

        Returns:
            The external state.

        Raises:
            RuntimeError: the file is missing, torn, no checkpoint of this façade, or of another model or learners.
            CompatError: it is a checkpoint of CNTK.
        """
        path = Path(f"{filename}.ckp")
        if is_cntks(path):
            raise CompatError(
                f"expected a checkpoint of feedline.cntk in {path}, got one of CNTK: restore the parameters from the "
                f"model's file next to it by model.restore({str(filename)!r}), and continue with new learners"
            )
        with checkpoint_errors():
            saved_state(path)
            tensors, state = load_tensors(path)
            try:
                external: dict[str, Any] = unflatten_state(state["external"], tensors)
                begin = check_random_states(state["random"], rank())
                trainer = state["trainer"]
            except (KeyError, TypeError, ValueError) as error:
                raise StateError(
                    f"expected a checkpoint of feedline.cntk in {path}, got another: {shown(error, 200)}"
                ) from error
            trainer_tensors = {n: t for n, t in tensors.items() if not n.startswith(("external/", "carried/"))}
            self.modern.load_state_dict(trainer_tensors, trainer)
            if isinstance(self.modern.model, CriterionNetwork):
                carried = {n.removeprefix("carried/"): t for n, t in tensors.items() if n.startswith("carried/")}
                self.modern.model.carry_on(carried)
            begin()
        self._last = NOTHING
        return external


def _warn_of_several() -> None:
    """Warn that the processes of a launcher train separately, if nothing connects them."""
    share = launcher_rank()
    if share is not None and not torch.distributed.is_initialized():
        warn(
            "expected a distributed learner, such as cntk.train.distributed.data_parallel_distributed_learner, as "
            f"mpiexec, srun or Ray has started {share[1]} processes, got local learners: each process trains a "
            "separate model. Set RANK=0 WORLD_SIZE=1 if that is intended, as checkpoints are refused otherwise",
            RuntimeWarning,
            stacklevel=3,
        )


def saved_state(path: Path) -> dict[str, Any]:
    """Return a checkpoint's state, without its tensors.

    Raises:
        StateError: the file is missing, torn, or no checkpoint of this façade.
    """
    state = load_state(path)
    expected, saved = {"format": _FORMAT, "version": _VERSION}, {k: state.get(k) for k in ("format", "version")}
    if saved != expected:
        raise StateError(f"expected a checkpoint of feedline.cntk in {path}", saved=saved, current=expected)
    return state


def saved_samples(path: Path) -> int:
    """Return the number of label samples that the first learner of a checkpoint had learned from.

    Raises:
        StateError: see `saved_state`.
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
        RuntimeError: the file is missing or damaged.
    """
    with checkpoint_errors():
        load_tensors(path)


def _pair(criterion: Any) -> tuple[Any, Any]:
    parts = tuple(criterion) if isinstance(criterion, (tuple, list)) else (criterion,)
    if len(parts) not in (1, 2) or not callable(parts[0]) or not (parts[-1] is None or callable(parts[-1])):
        raise ValueError(f"expected (loss, metric), (loss, None) or a loss as criterion, got {criterion!r}")
    return parts[0], parts[1] if len(parts) == 2 else None


def _as_list(value: Any, kind: type) -> list[Any]:
    items = [value] if isinstance(value, kind) else list(value)
    for item in items:
        if not isinstance(item, kind):
            raise TypeError(f"expected a cntk {kind.__name__}, got {type(item).__name__}")
    return items
