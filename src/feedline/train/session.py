"""A training run as data: what is read, what is learned, how often to look, to validate and to save.

`TrainingSession.run` goes from the latest checkpoint, or from the start, to the end. Everything that decides what
happens next stands in a checkpoint: model and learners, the source's position, random generators, counters and running
sums, controllers, whether it was stopped. Law (tests/train/test_session.py): killed at any point and started again, a
run on the CPU ends with the parameters, bit for bit, of the run that never stopped.

What happens after an update, in this order: progress, validation, controllers at the end of an epoch, checkpoint. A
checkpoint therefore holds the outcome of all that came before it. Spans count label samples, minibatches or sweeps of
the run; a minibatch that crosses several marks makes one action.
"""

from __future__ import annotations

import logging
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from feedline.data import Minibatch, Position, Span, Unit
from feedline.errors import StateError
from feedline.feed.protocol import whole_number
from feedline.runs.feeding import Fed, Feeding
from feedline.train.checkpoint import Checkpoint, Checkpoints
from feedline.train.ranks import Ranks, rank, restore_random_state
from feedline.train.schedules import Schedule
from feedline.train.trainer import NOTHING, Summary, Trainer

Size = int | Schedule

_log = logging.getLogger("feedline")


class Source(Protocol):
    """What a session reads from: a `MinibatchSource` or a user's own source."""

    @property
    def position(self) -> Position:
        """What follows the last minibatch."""

    @property
    def is_infinite(self) -> bool:
        """Whether it ends by itself."""

    def next_minibatch(self, size: int, partition: tuple[int, int] | None = None) -> Minibatch:
        """The next minibatch, false at the end; this rank's part, or the one that ``partition`` says."""

    def state_dict(self) -> dict[str, Any]:
        """Where it stands."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go there."""


class Reporter(Protocol):
    """Told what happens; see `feedline.train.report` for some. All sums are over label samples."""

    def on_start(self, run: TrainingSession) -> None:
        """The run begins or goes on."""

    def on_update(self, run: TrainingSession, summary: Summary) -> None:
        """A minibatch was trained on."""

    def on_progress(self, run: TrainingSession, progress: Progress) -> None:
        """A progress span is full, or the run ends with one begun."""

    def on_test(self, run: TrainingSession, what: str, result: Evaluated) -> None:
        """A validation (``what`` is ``"validation"``) or the test at the end (``"test"``) is done."""

    def on_checkpoint(self, run: TrainingSession, path: Path) -> None:
        """A checkpoint is on disk."""

    def on_end(self, run: TrainingSession) -> None:
        """The run is over, one way or another."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What was done since the last progress.

    Attributes:
        number: from 1.
        summary: sums over its label samples.
        minibatches: updates in it.
        seconds: wall time in it, without the time between a checkpoint and the restore from it.
        waiting, evaluating, saving: shares of that time spent waiting for the source, in validations, and writing
            checkpoints, 0 to 1.
        fed: what this rank's feed delivered in it.
    """

    number: int
    summary: Summary
    minibatches: int
    seconds: float
    waiting: float
    evaluating: float
    saving: float
    fed: Fed


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The outcome of a validation or test.

    Attributes:
        number: from 0.
        summary: sums over its label samples; without samples where there is no source.
        minibatches: how many.
    """

    number: int
    summary: Summary
    minibatches: int


@dataclass(slots=True)
class Saving:
    """When and where to checkpoint.

    Args:
        folder: one folder a run.
        every: a span, seconds, or text such as ``"30min"``, ``"2h"``, ``"90s"``: a power cut costs no more. None: at
            the end only. Wall time is decided by rank 0 for all ranks.
        keep: the newest so many; None: all.
        restore: go on from the latest checkpoint in the folder.
    """

    folder: str | Path
    every: Span | float | str | None = None
    keep: int | None = 3
    restore: bool = True


@dataclass(slots=True)
class Evaluation:
    """What to validate or test on.

    Args:
        source: a limited source, read from its position and put back there afterwards; None: only a callback.
        every: validation only: how often; None: at the end.
        size: minibatch size, or a schedule of it over the samples of one pass.
        max_samples: samples to look at; None: all.
        callback: validation only: called with `Evaluated`; returning False ends the training.
    """

    source: Source | None = None
    every: Span | None = None
    size: Size = 32
    max_samples: int | None = None
    callback: Callable[[Evaluated], bool | None] | None = None


class Controller(Protocol):
    """Adjusts the run at the end of an epoch; see `feedline.train.controllers`."""

    def on_epoch_end(self, run: TrainingSession, training: Summary, validation: Summary | None) -> None:
        """An epoch is over; ``validation`` is the one made at this place, if there was one."""

    def state_dict(self) -> dict[str, Any]:
        """In JSON types."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""


class _Mark:
    """Notices that a span is full: the counts of the run against the last time it was asked."""

    __slots__ = ("_every", "_passed")

    def __init__(self, every: Span | None) -> None:
        if every is not None and not isinstance(every, Span):
            raise TypeError(f"expected a span such as fl.samples(10_000), got {every!r}")
        if every is not None and every.count < 1:
            raise ValueError(f"expected a span of at least 1, got {every}; leave it out to have none")
        self._every, self._passed = every, 0

    def crossed(self, counts: Mapping[Unit, int]) -> bool:
        """Whether it has become full, once or several times, since the last call."""
        if self._every is None:
            return False
        before, self._passed = self._passed, counts[self._every.unit] // self._every.count
        return self._passed != before


class TrainingSession:
    """See the module.

    Args:
        trainer: model, loss, metric, learners.
        source: training data.
        size: minibatch size in samples over all ranks, or a schedule of it over label samples (``Schedule.sizes``);
            a size of 0 ends the training.
        max_samples: label samples to train on; None: until the source ends.
        progress: how often to report; None: once at the end.
        reporters: who is told.
        saving: checkpoints; None: none.
        validation: cross validation; None: none.
        test: a test at the end; None: none.
        epoch: the span at whose end is validated if there are controllers, which look then, and a checkpoint written;
            label samples or sweeps.
        controllers: learning-rate control, minibatch-size scaling and the like.

    Attributes:
        samples, minibatches, sweeps: trained so far.
        stopped: a callback, a controller, `stop` or a rate of 0 ended the training. It is in the checkpoints: a run
            that was stopped is over, and started again it does nothing more.
        interrupted: Ctrl-C ended the last `run`.
        scale: factor on the minibatch size, for controllers.

    Raises:
        ValueError: no end in sight, controllers without an epoch or without the metric they watch, nothing to
            validate or test with, a span of 0, a negative size, a source that cannot be put back where it was though
            it has to, one source for training and testing, one folder for checkpoints and a controller's model.
        TypeError: a size that is no integer, something of another kind than is told above.
    """

    def __init__(
        self,
        trainer: Trainer,
        source: Source,
        size: Size = 256,
        *,
        max_samples: int | None = None,
        progress: Span | None = None,
        reporters: Sequence[Reporter] = (),
        saving: Saving | None = None,
        validation: Evaluation | None = None,
        test: Evaluation | None = None,
        epoch: Span | None = None,
        controllers: Sequence[Controller] = (),
    ) -> None:
        _check_kind("source", source, ("next_minibatch", "state_dict"), "a MinibatchSource or UserMinibatchSource")
        _check_kind("saving", saving, Saving, 'such as Saving("checkpoints")')
        reporters = _listed("reporters", reporters, "on_update")
        controllers = _listed("controllers", controllers, "on_epoch_end")
        if controllers and epoch is None:
            raise ValueError("expected an epoch for controllers to act at its end, got none; pass epoch=fl.sweeps(1)")
        if source.is_infinite and max_samples is None:
            raise ValueError("expected a training source that ends, or max_samples, got neither")
        if trainer.metric is None and any(getattr(c, "watch", None) == "metric" for c in controllers):
            raise ValueError('expected a trainer with a metric for a controller with watch="metric", got one without')
        _check_evaluation("validation", validation, source)
        _check_evaluation("test", test, source)
        if saving is not None and saving.restore:
            _check_resumes("training", source, "pass Saving(..., restore=False)")
        if saving is not None and any(_same_folder(c, saving.folder) for c in controllers):
            raise ValueError(
                f"expected a folder of its own for the best model, got that of the checkpoints, {saving.folder}"
            )
        self.trainer, self.source, self.size = trainer, source, _sizes(size)
        self.max_samples = None if max_samples is None else whole_number("max_samples", max_samples, 0)
        self.reporters, self.controllers = reporters, controllers
        self.saving, self.validation, self.test = saving, validation, test
        self.samples = self.minibatches = self.sweeps = 0
        self.stopped = self.interrupted = False
        self.scale = 1.0

        on_samples = saving.every if saving is not None and isinstance(saving.every, Span) else None
        self._progress_mark, self._epoch_mark, self._saving_mark = _Mark(progress), _Mark(epoch), _Mark(on_samples)
        self._validation_mark = _Mark(validation.every if validation is not None else None)
        self._seconds: float | None = None
        if saving is not None and saving.every is not None and not isinstance(saving.every, Span):
            self._seconds = seconds_of(saving.every)
        self._ranks = Ranks(trainer.workers)
        self._checkpoints = None if saving is None else Checkpoints(saving.folder, saving.keep)
        self._last_save = 0.0
        self._save_asked = self._unsaved = False
        self._progress_done = self._validations_done = 0
        self._since = _Sums()
        self._epoch_sum = NOTHING
        self._validated: Summary | None = None  # the last validation's outcome, made after
        self._validated_at = -1  # so many minibatches

    # ---- the run ------------------------------------------------------------------------------------------------

    def run(self) -> TrainingSession:
        """Train to the end; returns itself.

        Ctrl-C ends it after the update under way, with a checkpoint; a second one at once. Where ranks learn together,
        Ctrl-C at one ends all of them, after the same update.

        Raises:
            StoreError: another rank is missing; names it. Start all again: they go on from the latest checkpoint.
            StateError: the latest checkpoint is of another run: other data, model, learners or controllers.
        """
        self.interrupted = False
        self._restore()
        for reporter in self.reporters:
            reporter.on_start(self)
        self._last_save = time.monotonic()
        self._since.go_on()
        try:
            with _sigint() as interrupt:
                while not self.stopped:
                    summary = self._step(interrupt)
                    if summary is None:
                        break
                    self._after_update(summary)
                    if self.trainer.workers is None:
                        self.interrupted = interrupt.is_set()
                    if self.interrupted:
                        break
                if not self.interrupted:
                    self._finish()
                if self._unsaved:
                    self._save()
            if self.test is not None and not self.interrupted:
                self._report_test("test", self._test(self.test, 0))
        finally:
            self._ranks.close()
            for reporter in self.reporters:
                reporter.on_end(self)
        return self

    def stop(self) -> None:
        """End the training after the update under way, with everything that is due at its end."""
        self.stopped = True

    def save(self) -> None:
        """Write a checkpoint after the update under way, when all that belongs to it is done."""
        self._save_asked = True

    def next_size(self) -> int:
        """Size of the next minibatch in samples; 0: the training ends."""
        size = int(self.size[Position(self.sweeps, 0, self.samples, self.samples)])
        if size and self.scale != 1.0:
            size = max(1, round(size * self.scale))
        if self.trainer.workers is not None:
            size *= self.trainer.workers.scale(self.trainer.samples)
        return size if self.max_samples is None else max(0, min(size, self.max_samples - self.samples))

    def _step(self, interrupt: threading.Event) -> Summary | None:
        """One minibatch; None where the run ends."""
        size = self.next_size()
        if size == 0:
            return None
        if not any(learner.learning_rate() for learner in self.trainer.learners):
            self.stopped = self._unsaved = True  # that is how a schedule ends a training
            return None
        began = time.perf_counter()
        workers = self.trainer.workers
        if workers is None or workers.apart(self.trainer.samples):
            minibatch = self.source.next_minibatch(size)
        else:
            minibatch = self.source.next_minibatch(size, partition=(0, 1))
        self._since.waited += time.perf_counter() - began
        sweeps, ended = self.trainer.sweeps, False
        if workers is None:
            if not minibatch:
                return None
            summary = self.trainer.train_minibatch(minibatch)
        else:
            # Ranks have to end and to save after the same update, so they agree on it with the update. One whose
            # source has ended learns on with the others.
            save = self._save_asked or (rank() == 0 and self._due_by_time())
            summary = self.trainer.train_minibatch(minibatch, (interrupt.is_set(), save, not minibatch))
            interrupted, saving, done = self.trainer.votes
            self.interrupted, self._save_asked = interrupted > 0, saving > 0
            ended = done == workers.ranks.count
        if ended:
            return None
        count = getattr(self.source, "count_label_samples", None)
        if count is not None:
            count(summary.samples)
        self.samples += summary.samples
        self.minibatches += 1
        self.sweeps += bool(minibatch.sweep_end) if workers is None else self.trainer.sweeps - sweeps
        self._since.feeding.add(minibatch)
        return summary

    def _after_update(self, summary: Summary) -> None:
        self._unsaved = True
        for reporter in self.reporters:
            reporter.on_update(self, summary)
        self._since.add(summary)
        if self.controllers:
            self._epoch_sum = _plus(self._epoch_sum, summary)
        counts = self._counts()
        if self._progress_mark.crossed(counts):
            self._report_progress()
        if self._validation_mark.crossed(counts):
            self._validate()
        if self._epoch_mark.crossed(counts):
            self._end_epoch()
            self._save_asked = True
        crossed = self._saving_mark.crossed(counts)
        if crossed or self._save_asked or (self.trainer.workers is None and self._due_by_time()):
            self._save()

    def _counts(self) -> dict[Unit, int]:
        return {Unit.SAMPLE: self.samples, Unit.MINIBATCH: self.minibatches, Unit.SWEEP: self.sweeps}

    def _finish(self) -> None:
        """Whatever has begun and is not done, once; nothing where a restored run was over already."""
        if self.trainer.workers is not None:
            self.trainer.workers.settle()
        if self._since.minibatches:
            self._report_progress()
            self._unsaved = True
        if self.validation is not None and self.minibatches and self._validated_at != self.minibatches:
            self._validate()
            self._unsaved = True

    def _report_progress(self) -> None:
        self._progress_done += 1
        progress = self._since.progress(self._progress_done)
        self._since = _Sums()
        self._since.go_on()
        for reporter in self.reporters:
            reporter.on_progress(self, progress)

    # ---- validation and test ------------------------------------------------------------------------------------

    def _validate(self) -> None:
        assert self.validation is not None
        began = time.perf_counter()
        result = self._test(self.validation, self._validations_done)
        self._since.evaluated += time.perf_counter() - began
        self._validations_done += 1
        self._validated, self._validated_at = result.summary, self.minibatches
        self._report_test("validation", result)
        if self.validation.callback is not None and self.validation.callback(result) is False:
            self.stop()

    def _report_test(self, what: str, result: Evaluated) -> None:
        for reporter in self.reporters:
            reporter.on_test(self, what, result)

    def _test(self, testing: Evaluation, number: int) -> Evaluated:
        if testing.source is None:
            return Evaluated(number, NOTHING, 0)
        if self.trainer.workers is not None:
            self.trainer.workers.settle()
        state = testing.source.state_dict()
        total, minibatches, whole = NOTHING, 0, True
        try:
            for minibatch in self._testing_minibatches(testing):
                total = _plus(total, self.trainer.test_minibatch(minibatch))
                minibatches += 1
                whole = whole and minibatch.num_samples == minibatch.global_samples
        finally:
            testing.source.load_state_dict(state)
        if self.trainer.workers is not None:
            total = _summed(self._ranks, total, whole)
        return Evaluated(number, total, minibatches)

    def _testing_minibatches(self, testing: Evaluation) -> Iterator[Minibatch]:
        assert testing.source is not None
        seen, sizes = 0, _sizes(testing.size)
        while testing.max_samples is None or seen < testing.max_samples:
            size = int(sizes[Position(0, 0, seen, seen)])
            if testing.max_samples is not None:
                size = min(size, testing.max_samples - seen)
            if size == 0:
                return
            minibatch = testing.source.next_minibatch(size)
            if not minibatch:
                return
            seen += minibatch.global_samples
            yield minibatch

    def _end_epoch(self) -> None:
        if self.validation is not None and self._validated_at != self.minibatches and self.controllers:
            self._validate()
        validated = self._validated if self._validated_at == self.minibatches else None
        training, self._epoch_sum = self._epoch_sum, NOTHING
        if self.controllers and self.trainer.workers is not None:
            self.trainer.workers.settle()  # they look at the model
        for controller in self.controllers:
            controller.on_epoch_end(self, training, validated)

    # ---- checkpoints --------------------------------------------------------------------------------------------

    def _save(self) -> None:
        self._last_save = time.monotonic()
        self._save_asked = self._unsaved = False
        if self._checkpoints is None:
            return
        if self.trainer.workers is not None:
            self.trainer.workers.settle(saving=True)
        generators = self._ranks.random_states()
        if rank() != 0:
            return
        tensors, rest = self.trainer.state_dict()
        validation = self.validation.source if self.validation is not None else None
        state = {
            "samples": self.samples,
            "minibatches": self.minibatches,
            "sweeps": self.sweeps,
            "scale": self.scale,
            "stopped": self.stopped,
            "trainer": rest,
            "source": self.source.state_dict(),
            "validation": None if validation is None else validation.state_dict(),
            "progress": [self._progress_done, self._since.to_json()],
            "validated": [
                self._validations_done,
                self._validated_at,
                None if self._validated is None else _summary_to_json(self._validated),
            ],
            "epoch": _summary_to_json(self._epoch_sum),
            "controllers": [[type(controller).__name__, controller.state_dict()] for controller in self.controllers],
            "random": generators,
        }
        began = time.perf_counter()
        path = self._checkpoints.save(self.samples, tensors, state)
        self._since.saved += time.perf_counter() - began
        for reporter in self.reporters:
            reporter.on_checkpoint(self, path)

    def _restore(self) -> None:
        if self._checkpoints is None or self.saving is None or not self.saving.restore:
            return
        found = self._checkpoints.latest()
        if self.trainer.workers is not None:
            _check_same_everywhere(self._ranks, self._checkpoints.folder, found)
        if found is None:
            return
        try:
            self._go_to(found)
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, StateError):
                raise
            raise StateError(f"expected a session's checkpoint in {found.path}, it does not fit: {error!r}") from error
        self._unsaved = False
        if self.stopped:
            _log.warning(
                "the run in %s was stopped after %d label samples and is over; to train anew, take another folder or "
                "restore=False",
                self._checkpoints.folder,
                self.samples,
            )

    def _go_to(self, found: Checkpoint) -> None:
        state = found.state
        saved, current = [kind for kind, _ in state["controllers"]], [type(c).__name__ for c in self.controllers]
        if saved != current:
            raise StateError(
                "expected the controllers of the saved run",
                saved={"controllers": saved},
                current={"controllers": current},
            )
        self.trainer.load_state_dict(found.tensors, state["trainer"])
        self.source.load_state_dict(state["source"])
        if state["validation"] is not None and self.validation is not None and self.validation.source is not None:
            self.validation.source.load_state_dict(state["validation"])
        for controller, (_, own) in zip(self.controllers, state["controllers"], strict=True):
            controller.load_state_dict(own)
        self.samples, self.minibatches, self.sweeps = state["samples"], state["minibatches"], state["sweeps"]
        self.scale, self.stopped = state["scale"], state["stopped"]
        self._progress_done, since = state["progress"]
        self._since = _Sums.from_json(since)
        self._validations_done, self._validated_at, validated = state["validated"]
        self._validated = None if validated is None else _summary_from_json(validated)
        self._epoch_sum = _summary_from_json(state["epoch"])
        # A checkpoint is written when all marks have been asked: where they stand follows from the counts, also for
        # spans other than those of the saved run.
        for mark in (self._progress_mark, self._validation_mark, self._epoch_mark, self._saving_mark):
            mark.crossed(self._counts())
        restore_random_state(state["random"])

    def _due_by_time(self) -> bool:
        return self._seconds is not None and time.monotonic() - self._last_save >= self._seconds


@dataclass(slots=True)
class _Sums:
    """Running sums of a progress span; its time goes on where a checkpoint left it."""

    summary: Summary = NOTHING
    minibatches: int = 0
    waited: float = 0.0
    evaluated: float = 0.0
    saved: float = 0.0
    feeding: Feeding = field(default_factory=Feeding)
    _before: float = 0.0
    _began: float = 0.0

    def go_on(self) -> None:
        """From now on time counts."""
        self._began = time.perf_counter()

    def add(self, summary: Summary) -> None:
        self.summary = _plus(self.summary, summary)
        self.minibatches += 1

    def progress(self, number: int) -> Progress:
        seconds = self._seconds()
        waiting, evaluating, saving = (
            min(1.0, spent / seconds) if seconds else 0.0 for spent in (self.waited, self.evaluated, self.saved)
        )
        fed = self.feeding.fed()
        return Progress(number, self.summary, self.minibatches, seconds, waiting, evaluating, saving, fed)

    def to_json(self) -> list[Any]:
        spent = [self.waited, self.evaluated, self.saved, self._seconds()]
        return [_summary_to_json(self.summary), self.minibatches, self.feeding.fed().to_json(), *spent]

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> _Sums:
        summary, minibatches, fed, waited, evaluated, saved, seconds = data
        feeding = Feeding(Fed.from_json(fed))
        return cls(_summary_from_json(summary), minibatches, waited, evaluated, saved, feeding, seconds)

    def _seconds(self) -> float:
        return self._before + time.perf_counter() - self._began


def _check_evaluation(name: str, testing: Evaluation | None, training: Source) -> None:
    if testing is None:
        return
    _check_kind(name, testing, Evaluation, "such as Evaluation(source)")
    if testing.max_samples is not None:
        whole_number(f"max_samples of the {name}", testing.max_samples, 0)
    _sizes(testing.size)
    if testing.source is None:
        if testing.callback is None:
            raise ValueError(f"expected a source or a callback for the {name}, got neither")
    elif testing.source is training:
        raise ValueError(f"expected a source of its own for the {name}, got the one that is trained on")
    elif testing.source.is_infinite and testing.max_samples is None:
        raise ValueError(f"expected a {name} source that ends, or max_samples, got neither")
    else:
        _check_resumes(name, testing.source, "otherwise it could not be put back where it was")


def _check_resumes(name: str, source: Source, otherwise: str) -> None:
    if not getattr(source, "resumes", True):
        raise ValueError(
            f"expected a {name} source that can be resumed, got {type(source).__name__} without: define "
            f"get_checkpoint_state and restore_from_checkpoint; {otherwise}"
        )


def _check_kind(name: str, given: Any, kind: type | tuple[str, ...], such: str) -> None:
    """Of a class, or with these attributes; None is left to the caller."""
    fits = isinstance(given, kind) if isinstance(kind, type) else all(hasattr(given, method) for method in kind)
    if not fits and (given is not None or not isinstance(kind, type)):
        raise TypeError(f"expected {name} to be {such}, got {given!r:.80}")


def _listed(name: str, given: Any, method: str) -> list[Any]:
    if not isinstance(given, (list, tuple)):
        raise TypeError(f"expected a list of {name}, got {given!r:.80}; put it in a list")
    for item in given:
        if isinstance(item, type) or not hasattr(item, method):
            raise TypeError(f"expected {name} with a method {method}, got {item!r:.80}")
    return list(given)


def _same_folder(controller: Controller, folder: str | Path) -> bool:
    kept = getattr(controller, "folder", None)
    return kept is not None and Path(kept).resolve() == Path(folder).resolve()


def _sizes(size: Size) -> Schedule:
    if not isinstance(size, Schedule):
        return Schedule.sizes(size)
    single = len(size.steps) == 1
    return Schedule.sizes(size.steps[0][1] if single else size.steps, epoch_size=None if single else size.epoch_size)


def seconds_of(duration: float | str) -> float:
    """Seconds of a number of them, or of text such as ``"30min"``, ``"2h"``, ``"1h30min"``, ``"90s"``.

    Raises:
        ValueError: not a duration, or not positive.
    """
    seconds = duration
    if isinstance(duration, str):
        units = {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0}
        parts = re.findall(r"(\d+(?:\.\d+)?)\s*(d|h|min|s)", duration)
        if not parts or re.sub(r"(\d+(?:\.\d+)?)\s*(d|h|min|s)|\s", "", duration):
            raise ValueError(f'expected a duration such as "30min", "2h" or "90s", got {duration!r}')
        seconds = sum(float(n) * units[unit] for n, unit in parts)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise ValueError(f"expected a positive number of seconds, got {duration!r}")
    return float(seconds)


def _check_same_everywhere(ranks: Ranks, folder: Path, found: Checkpoint | None) -> None:
    serial = -1 if found is None else int(found.path.name.split("-")[1])
    everywhere = ranks.gather([float(serial)])
    serials = [int(numbers[0]) for numbers in everywhere]
    if len(set(serials)) > 1:
        seen = {f"rank {i}": None if n < 0 else f"checkpoint-{n:06d}" for i, n in enumerate(serials)}
        raise StateError(
            f"expected all ranks to find the same newest checkpoint in {folder}, got {seen}: the folder has to be one "
            "that all machines share"
        )


def _plus(total: Summary, summary: Summary) -> Summary:
    if summary.samples == 0:
        return total
    return summary if total.samples == 0 else total + summary


def _summed(ranks: Ranks, total: Summary, whole: bool) -> Summary:
    """The sums of all ranks' parts; where every rank saw all of every minibatch, its own."""
    numbers = [float(total.loss_sum), float(total.metric_sum or 0.0), float(total.metric_sum is not None)]
    everywhere = ranks.gather([float(whole), float(total.samples), *numbers])
    if all(row[0] for row in everywhere):
        return total
    _, samples, loss, metric, measured = (sum(column) for column in zip(*everywhere, strict=True))
    return Summary(loss, metric if measured else None, round(samples)) if samples else NOTHING


def _summary_to_json(summary: Summary) -> list[Any]:
    # Sums are kept in the precision they have: a resumed run adds on to the same numbers.
    metric = None if summary.metric_sum is None else float(summary.metric_sum)
    return [float(summary.loss_sum), metric, summary.samples, summary.updated]


def _summary_from_json(data: Sequence[Any]) -> Summary:
    loss, metric, samples, updated = data
    return Summary(loss, metric, samples, updated) if samples else NOTHING


class _sigint:  # noqa: N801  # used like a function
    """Within the block, the first Ctrl-C sets an event instead of raising; the second raises."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._before: Any = None

    def __enter__(self) -> threading.Event:
        # Only the main thread may install a handler; elsewhere Ctrl-C goes where it goes.
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self._event

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._event.is_set():
            raise KeyboardInterrupt
        self._event.set()

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
