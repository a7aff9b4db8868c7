"""`cntk.train.training_session`: a training run, with CNTK's order of events."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from feedline.cntk._arguments import keys_of
from feedline.cntk._names import absent_members, names_of
from feedline.cntk.core import Value
from feedline.cntk.device import DeviceDescriptor
from feedline.cntk.io._data import MinibatchSourceFromData
from feedline.cntk.learners._schedules import TrainingParameterSchedule, sizes_of
from feedline.cntk.learners._schedules import minibatch_size_schedule as minibatch_size_schedule
from feedline.cntk.train._configs import (
    CheckpointConfig,
    CrossValidationConfig,
    DataUnit,
    Frequency,
    Streams,
    TestConfig,
    every,
)
from feedline.cntk.train._read import read
from feedline.cntk.train.trainer import Trainer, check_whole, saved_samples
from feedline.networks import Node
from feedline.train.strategy import Alone

__all__, __getattr__ = names_of(__name__)

_SOURCE = "TrainingMinibatchSource"
_log = logging.getLogger("feedline")


@absent_members("cntk.train.training_session")
class TrainingSession:
    """A training run, from the newest checkpoint or the start to the end of its data.

    After each minibatch come, in this order and if due: checkpoint, progress, cross validation. A minibatch that
    crosses several marks of an action triggers it once. At the end each action runs again if there was training since.

    Args:
        trainer: trainer.
        mb_source: training source, or a tuple of arrays, one per argument of the trainer's criterion.
        mb_size: minibatch size in samples: int, or a `minibatch_size_schedule` over samples trained.
        model_inputs_to_streams: stream for each key that model and criterion use.
        max_samples: number of label samples to train on. None means until the data ends.
        progress_frequency: number of samples, or ``(count, DataUnit)``, between summaries. None means one at the end.
        checkpoint_config, cv_config, test_config: settings of each action, or None.

    Raises:
        ValueError: no trainer, no source, no streams, or another minibatch size.
        CompatError: arrays with a criterion without ``arguments``.
    """

    def __init__(
        self,
        trainer: Trainer,
        mb_source: Any,
        mb_size: int | TrainingParameterSchedule,
        model_inputs_to_streams: Streams | None,
        max_samples: int | None = None,
        progress_frequency: Frequency = None,
        checkpoint_config: CheckpointConfig | None = None,
        cv_config: CrossValidationConfig | None = None,
        test_config: TestConfig | None = None,
    ) -> None:
        if trainer is None or mb_source is None:
            raise ValueError(f"expected a trainer and a source, got {trainer!r} and {mb_source!r}")
        if isinstance(mb_source, (tuple, list)):
            mb_source, model_inputs_to_streams = from_arrays(trainer.loss_function, mb_source)
        if not model_inputs_to_streams:
            raise ValueError("expected streams for the model's inputs in model_inputs_to_streams, got none")
        self.trainer, self.source, self.streams = trainer, mb_source, dict(model_inputs_to_streams)
        self.size, self.max_samples = sizes_of(mb_size, "mb_size"), max_samples
        self.checkpoint = checkpoint_config or CheckpointConfig(None)
        self.cv, self.test = cv_config or CrossValidationConfig(), test_config or TestConfig()
        for config in (self.cv, self.test):
            if isinstance(config.source, (tuple, list)):
                criterion = trainer.loss_function if config.criterion is None else config.criterion
                config.source, config.streams = from_arrays(criterion, config.source, endless=False)
        self._device: DeviceDescriptor | None = None
        self._actions = [
            _Action(self.checkpoint.frequency, self._save),
            _Action(every(progress_frequency), self._summarize),
            _Action(self.cv.frequency, self._cross_validate),
        ]

    # ---- to be overridden -------------------------------------------------------------------------

    def on_minibatch_start(self) -> None:
        """Handle a minibatch, possibly an empty one, that was read."""

    def on_minibatch_end(self) -> Any:
        """Handle a minibatch that was trained on. Returning False ends the training."""

    def on_checkpoint_start(self, checkpoint_index: int) -> None:
        """Handle a checkpoint that will be written."""

    def on_checkpoint_end(self, checkpoint_index: int) -> None:
        """Handle a checkpoint that is on disk."""

    def on_cross_validation_end(self, index: int, average_error: float, num_samples: int, num_minibatches: int) -> Any:
        """Call the configured callback after a cross validation. Returning False ends the training."""
        if self.cv.callback is None:
            return True
        return self.cv.callback(index, average_error, num_samples, num_minibatches)

    # ---- the run ----------------------------------------------------------------------------------

    def train(self, device: DeviceDescriptor | None = None) -> None:
        """Train to the end.

        Args:
            device: device passed to sources. The model is not moved.

        Raises:
            ValueError: a source without an end.
            RuntimeError: the checkpoint cannot be used.
        """
        self._check_ends()
        self._device = device
        self._restore()
        start = self.trainer.total_number_of_samples_seen
        running, stopped = True, False
        while running:
            minibatch = read(self.source, 0 if stopped else self._next_size(), self.streams, device, self._partition())
            self.on_minibatch_start()
            running = self.trainer.train_minibatch(minibatch, device=device)
            stopped |= self.on_minibatch_end() is False
            for action in self._actions:
                stopped |= action.after(self._counts()) is False
        self.trainer.modern.strategy.sync_models()
        if self.trainer.total_number_of_samples_seen != start:
            for action in self._actions:
                action.at_end(self._counts())
            if self.checkpoint.preserve_all:
                self._write(str(self.checkpoint.filename))
        self._run_test()

    def _next_size(self) -> int:
        samples = self.trainer.total_number_of_samples_seen
        size = int(self.size[samples]) * self.trainer.modern.strategy.scale(samples)
        return size if self.max_samples is None else max(0, min(size, self.max_samples - samples))

    def _partition(self) -> tuple[int, int]:
        """Return the partition of the next minibatch that this worker trains on."""
        strategy, samples = self.trainer.modern.strategy, self.trainer.total_number_of_samples_seen
        if isinstance(strategy, Alone):
            return (0, 1)
        ranks = strategy.session_ranks()
        return (ranks.rank, ranks.count) if strategy.trains_on_parts(samples) else (0, 1)

    def _counts(self) -> dict[DataUnit, int]:
        first = self.trainer.parameter_learners[0].modern
        return {
            DataUnit.sample: first.samples,
            DataUnit.minibatch: first.minibatches,
            DataUnit.sweep: first.sweeps,
        }

    def _check_ends(self) -> None:
        for what, source, limit in (
            ("Train", self.source, self.max_samples),
            ("Test", self.test.source, None),
            ("Cross validation", self.cv.source, self.cv.max_samples),
        ):
            if source is not None and source.is_infinite() and limit is None:
                raise ValueError(f"{what} minibatch source must have a limited number of samples or sweeps.")

    def _summarize(self, index: int) -> None:
        self.trainer.summarize_training_progress()

    def _cross_validate(self, index: int) -> Any:
        source, streams = self.cv.source, self.cv.streams or self.streams
        if source is None:
            return self.on_cross_validation_end(index, 0.0, 0, 0)
        self.trainer.modern.strategy.sync_models()
        start = source.get_checkpoint_state()
        error, samples, minibatches = 0.0, 0, 0
        try:
            while True:
                size = int(self.cv.size[samples])
                if self.cv.max_samples is not None:
                    size = max(0, min(size, self.cv.max_samples - samples))
                minibatch = read(source, size, streams, self._device)
                if not minibatch:
                    break
                tested = self.trainer.test(minibatch)
                error += float(tested.metric_sum or 0.0)
                samples, minibatches = samples + tested.samples, minibatches + 1
        finally:
            source.restore_from_checkpoint(start)
        self.trainer.summarize_test_progress()
        return self.on_cross_validation_end(index, error / samples if samples else 0.0, samples, minibatches)

    def _run_test(self) -> None:
        source, samples = self.test.source, 0
        if source is None:
            return
        while minibatch := read(source, int(self.test.size[samples]), self.test.streams or self.streams, self._device):
            samples += self.trainer.test(minibatch).samples
        self.trainer.summarize_test_progress()

    # ---- checkpoints ------------------------------------------------------------------------------

    def _save(self, index: int) -> None:
        self.on_checkpoint_start(index)
        self._write(f"{self.checkpoint.filename}{index if self.checkpoint.preserve_all else ''}")
        self.on_checkpoint_end(index)

    def _write(self, name: str) -> None:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        self.trainer.save_checkpoint(name, {_SOURCE: self.source.get_checkpoint_state()})

    def _restore(self) -> None:
        """Restore the checkpoint with most samples, unlike CNTK, which takes the checkpoint without a number."""
        name, ranks = self.checkpoint.filename, self.trainer._ranks
        if name is None or not self.checkpoint.restore:
            return
        newest = ranks.gather_json(ranks.on_rank_0(lambda: _newest(_checkpoints(name), str(name))))[0]
        if newest is None:
            return
        print(f"Restoring training session from the checkpoint '{newest}'", file=sys.stderr)
        self.source.restore_from_checkpoint(self.trainer.restore_from_checkpoint(newest)[_SOURCE])
        for action in self._actions:
            action.start(self._counts())


class _Action:
    """An action that runs each time a count has grown by its frequency."""

    def __init__(self, frequency: tuple[int, DataUnit], run: Callable[[int], Any]) -> None:
        (self._every, self._unit), self._run = frequency, run
        self._index = self._done_at = 0

    def start(self, counts: Mapping[DataUnit, int]) -> None:
        """Start counting."""
        self._done_at = counts[self._unit]
        self._index = self._done_at // self._every if self._every else 0

    def after(self, counts: Mapping[DataUnit, int]) -> Any:
        """Run the action if it is due, and return its result."""
        index = counts[self._unit] // self._every if self._every else self._index
        if index == self._index:
            return None
        result = self._run(self._index)
        self.start(counts)
        return result

    def at_end(self, counts: Mapping[DataUnit, int]) -> None:
        """Run the action again if its count has grown since the last time."""
        count = counts[self._unit]
        if self._every and count != self._done_at:
            self._run(self._index)


def training_session(
    trainer: Trainer,
    mb_source: Any,
    mb_size: int | TrainingParameterSchedule,
    model_inputs_to_streams: Streams | None = None,
    progress_frequency: Frequency = None,
    max_samples: int | None = None,
    checkpoint_config: CheckpointConfig | None = None,
    cv_config: CrossValidationConfig | None = None,
    test_config: TestConfig | None = None,
) -> TrainingSession:
    """Create a `TrainingSession`."""
    return TrainingSession(
        trainer,
        mb_source,
        mb_size,
        model_inputs_to_streams,
        max_samples,
        progress_frequency,
        checkpoint_config,
        cv_config,
        test_config,
    )


def from_arrays(criterion: Any, arrays: Any, endless: bool = True) -> tuple[MinibatchSourceFromData, Streams]:
    """Return a source of arrays, one per argument of a criterion, read repeatedly or once."""
    otherwise = "make a cntk.io.MinibatchSourceFromData of the arrays, and name its streams in model_inputs_to_streams"
    keys = keys_of(criterion, len(arrays), otherwise)
    data = {f"argument{i}": _typed(key, array) for i, (key, array) in enumerate(zip(keys, arrays, strict=True))}
    source = MinibatchSourceFromData(data)
    if not endless:
        source = MinibatchSourceFromData(data, max_samples=source.feed.num_samples)
    return source, dict(zip(keys, source.stream_infos(), strict=True))


def _typed(key: Any, array: Any) -> Any:
    """Convert data to the element type of the variable that it is for."""
    node = getattr(key, "node", None)
    return Value.borrow(node, array) if isinstance(node, Node) and not isinstance(array, Value) else array


def _checkpoints(name: str) -> list[str]:
    """Return the names of the checkpoints written by sessions of this name."""
    parent, stem = Path(name).parent, re.escape(Path(name).name)
    files = parent.glob("*.ckp") if parent.is_dir() else []
    return [str(path)[: -len(".ckp")] for path in files if re.fullmatch(rf"{stem}\d*\.ckp", path.name)]


def _newest(names: Sequence[str], name: str) -> str | None:
    """Return the undamaged checkpoint with most samples, in a tie the one without a number. Warn of skipped ones.

    Returns:
        Its name, or None if there are no checkpoints.

    Raises:
        RuntimeError: all checkpoints are damaged.
    """
    candidates: list[tuple[int, bool, str]] = []
    errors = []
    for path in names:
        try:
            candidates.append((saved_samples(Path(f"{path}.ckp")), path == name, path))
        except RuntimeError as error:
            errors.append(error)
    for _, _, path in sorted(candidates, reverse=True):
        try:
            check_whole(Path(f"{path}.ckp"))
        except RuntimeError as error:
            errors.append(error)
            continue
        for failure in errors:
            _log.warning("skipping a checkpoint: %s", failure)
        return path
    if errors:
        raise errors[0]
    return None
