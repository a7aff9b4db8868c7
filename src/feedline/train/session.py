"""A training run as data: what is read, what is learned, how often to look, to validate and to save.

`TrainingSession.run` goes from the latest checkpoint, or from the start, to the end. Everything that decides what
happens next stands in a checkpoint: model and learners, the source's position, random generators, counters and running
sums, controllers, whether it was stopped. Law (tests/train/test_session.py): killed at any point and started again, a
run on the CPU ends with the parameters, bit for bit, of the run that never stopped.

What happens after an update, in this order: progress, validation, controllers at the end of an epoch, checkpoint. A
checkpoint therefore holds the outcome of all that came before it. Spans count label samples, minibatches or sweeps of
the run; a minibatch that crosses several marks makes one action. With several ranks whatever is collective is decided
by all of them together, see `feedline.train.agreement`.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from feedline.data import Minibatch, Position, Span, Unit
from feedline.errors import StateError, shown
from feedline.feed.protocol import whole_number
from feedline.runs.feeding import Fed
from feedline.train import session_state as saved
from feedline.train.agreement import Turn, Wishes, agreed, by_itself, latest, turn
from feedline.train.checkpoint import Checkpoint, Checkpoints
from feedline.train.lock import lock_folders
from feedline.train.ranks import Ranks, checked_random_state
from feedline.train.schedules import Schedule
from feedline.train.session_state import Sums, plus, summed
from feedline.train.stop_signals import Stopping
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
        interrupted: Ctrl-C or SIGTERM ended the last `run`.
        ranks: that run it; see `feedline.train.ranks`.
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
        self.ranks = Ranks(trainer.workers)
        self._stopping = Stopping()
        self._checkpoints = None if saving is None else Checkpoints(saving.folder, saving.keep)
        self._last_save = 0.0
        self._save_asked = self._unsaved = False
        self._progress_done = self._validations_done = 0
        self._since = Sums()
        self._epoch_sum = NOTHING
        self._validated: Summary | None = None  # the last validation's outcome, made after
        self._validated_at = -1  # so many minibatches

    # ---- the run ------------------------------------------------------------------------------------------------

    def run(self) -> TrainingSession:
        """Train to the end; returns itself.

        Ctrl-C or SIGTERM ends it after the update under way, with a checkpoint; a second one at once. After SIGTERM the
        process ends as well, unless it has a handler of its own, which is then called. Where there are several ranks,
        a signal at one ends the run of all of them, after the same update.

        Raises:
            StoreError: another rank is missing; names it. Start all again: they go on from the latest checkpoint.
            StateError: the latest checkpoint is of another run: other data, model, learners or controllers; there are
                checkpoints, and all of them are damaged; or another session writes to the folder.
        """
        self.interrupted = False
        self._stopping = Stopping()
        with self._alone_in_its_folders():
            self._restore()
            for reporter in self.reporters:
                reporter.on_start(self)
            self._last_save = time.monotonic()
            self._since.go_on()
            self.trainer.beside = self.ranks if self.ranks.beside else None
            try:
                with self._stopping:
                    self._train()
                if self.test is not None and not self.interrupted:
                    self._report_test("test", self._test(self.test, 0))
            finally:
                self.trainer.beside = None
                self.ranks.close()
                for reporter in self.reporters:
                    reporter.on_end(self)
        self._stopping.pass_on()
        return self

    def _train(self) -> None:
        self._agree()
        while not self.stopped and not self.interrupted:
            summary = self._step()
            if summary is None:
                break
            self._after_update(summary)
        if not self.interrupted:
            self._finish()
        if self._unsaved:
            self._save()

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

    def _ended_by_rate(self) -> bool:
        """Whether all rates are 0: that is how a schedule ends a training."""
        return not any(learner.learning_rate() for learner in self.trainer.learners)

    def _step(self) -> Summary | None:
        """One minibatch; None where the run ends."""
        size = self.next_size()
        if size == 0:
            return None
        if self._ended_by_rate():
            self.stopped = self._unsaved = True
            return None
        began = time.perf_counter()
        trainer, workers = self.trainer, self.trainer.workers
        if workers is None or workers.apart(trainer.samples):
            minibatch = self.source.next_minibatch(size)
        else:
            minibatch = self.source.next_minibatch(size, partition=(0, 1))
        self._since.waited += time.perf_counter() - began
        sweeps, summary = trainer.sweeps, NOTHING
        if workers is not None:
            # One whose source has ended learns on with the others.
            summary = trainer.train_minibatch(minibatch, (not minibatch,))
            if trainer.votes[0] == workers.ranks.count:
                return None
        else:
            what = turn(self.ranks, minibatch, trainer.joins)
            if what is Turn.END:
                return None
            if what is Turn.LEARN:
                summary = trainer.train_minibatch(minibatch)
            else:
                trainer.pass_by(minibatch)
        count = getattr(self.source, "count_label_samples", None)
        if count is not None:
            count(trainer.counted)
        self.samples += trainer.counted
        self.minibatches += 1
        self.sweeps += bool(minibatch.sweep_end) if self.ranks.alone else trainer.sweeps - sweeps
        self._since.feeding.add(minibatch)
        return summary

    def _after_update(self, summary: Summary) -> None:
        self._unsaved = True
        for reporter in self.reporters:
            reporter.on_update(self, summary)
        self._since.add(summary)
        if self.controllers:
            self._epoch_sum = plus(self._epoch_sum, summary)
        counts = self._counts()
        if self._progress_mark.crossed(counts):
            self._report_progress()
        if self._validation_mark.crossed(counts):
            self._validate()
        due = self._saving_mark.crossed(counts)
        if self._epoch_mark.crossed(counts):
            self._end_epoch()
            due = True
        self._agree()
        if due or self._save_asked:
            self._save()

    def _agree(self) -> None:
        """Let all ranks stop, save and go on alike."""
        save = self._save_asked or (self.ranks.rank == 0 and self._due_by_time())
        size = 0
        if not self.ranks.alone and not self.stopped:
            size = -1 if self._ended_by_rate() else self.next_size()
        wishes = agreed(self.ranks, Wishes(self.stopped, self._stopping.asked, save, size))
        self.stopped, self.interrupted, self._save_asked = wishes.stop, wishes.interrupt, wishes.save

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
        since, self._since = self._since, Sums()
        seconds, summary, fed = since.seconds(), since.summary, since.feeding.fed()
        if self.ranks.beside:
            summary = summed(self.ranks, summary)
        spent = (since.waited, since.evaluated, since.saved)
        waiting, evaluating, saving = (min(1.0, part / seconds) if seconds else 0.0 for part in spent)
        progress = Progress(self._progress_done, summary, since.minibatches, seconds, waiting, evaluating, saving, fed)
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
            with by_itself(self.trainer.model, self.ranks):
                for minibatch in self._testing_minibatches(testing):
                    total = plus(total, self.trainer.test_minibatch(minibatch))
                    minibatches += 1
                    whole = whole and minibatch.num_samples == minibatch.global_samples
        finally:
            testing.source.load_state_dict(state)
        if not self.ranks.alone:
            total = summed(self.ranks, total, whole)
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
        if self.controllers and self.ranks.beside:
            training = summed(self.ranks, training)
        if self.controllers and self.trainer.workers is not None:
            self.trainer.workers.settle()  # they look at the model
        for controller in self.controllers:
            controller.on_epoch_end(self, training, validated)

    # ---- checkpoints --------------------------------------------------------------------------------------------

    @contextmanager
    def _alone_in_its_folders(self) -> Iterator[None]:
        folders = [] if self._checkpoints is None else [self._checkpoints.folder]
        folders += [controller.own_folder for controller in self.controllers if hasattr(controller, "own_folder")]
        try:
            with self.ranks.first(lambda: lock_folders(folders)) or nullcontext():
                yield
        finally:
            self.ranks.close()

    def _save(self) -> None:
        self._last_save = time.monotonic()
        self._save_asked = self._unsaved = False
        if self._checkpoints is None:
            return
        if self.trainer.workers is not None:
            self.trainer.workers.settle(saving=True)
        state = saved.to_json(self, self.ranks, self._standing())
        if self.ranks.rank != 0:
            return
        tensors, state["trainer"] = self.trainer.state_dict()
        began = time.perf_counter()
        path = self._checkpoints.save(self.samples, tensors, state)
        self._since.saved += time.perf_counter() - began
        for reporter in self.reporters:
            reporter.on_checkpoint(self, path)

    def _restore(self) -> None:
        if self._checkpoints is None or self.saving is None or not self.saving.restore:
            return
        found = latest(self._checkpoints, self.ranks)
        if found is None:
            return
        trouble: Exception | None = None
        try:
            self._go_to(found)
        except StateError as error:
            what = f"the run cannot go on from {found.path}: {error.what}"
            trouble = StateError(what, saved=error.saved, current=error.current, hint=error.hint)
            trouble.__cause__ = error
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
            trouble = StateError(
                f"expected a session's checkpoint in {found.path}, it does not fit: {shown(error, 200)}"
            )
            trouble.__cause__ = error
        self.ranks.check(trouble)
        self._unsaved = False
        if self.stopped:
            _log.warning(
                "the run in %s was stopped after %d label samples and is over; to train anew, take another folder or "
                "restore=False",
                self._checkpoints.folder,
                self.samples,
            )

    def _go_to(self, found: Checkpoint) -> None:
        place = saved.from_json(found.state, self.ranks)
        before, current = [kind for kind, _ in place.controllers], [type(c).__name__ for c in self.controllers]
        if before != current:
            raise StateError(
                "expected the controllers of the saved run",
                saved={"controllers": before},
                current={"controllers": current},
            )
        begin = checked_random_state(place.random, self.ranks.rank)
        targets: list[tuple[Any, Any]] = [(self.source, place.source)]
        if place.validation is not None and self.validation is not None and self.validation.source is not None:
            targets.append((self.validation.source, place.validation))
        targets += zip(self.controllers, (own for _, own in place.controllers), strict=True)
        saved.load_together(targets, lambda: self.trainer.load_state_dict(found.tensors, place.trainer))
        self._stand(place.standing)
        # A checkpoint is written when all marks have been asked: where they stand follows from the counts, also for
        # spans other than those of the saved run.
        for mark in (self._progress_mark, self._validation_mark, self._epoch_mark, self._saving_mark):
            mark.crossed(self._counts())
        begin()

    def _standing(self) -> saved.Standing:
        return saved.Standing(
            self.samples,
            self.minibatches,
            self.sweeps,
            self.scale,
            self.stopped,
            self._progress_done,
            self._since,
            self._validations_done,
            self._validated_at,
            self._validated,
            self._epoch_sum,
        )

    def _stand(self, at: saved.Standing) -> None:
        self.samples, self.minibatches, self.sweeps, self.scale, self.stopped = at[:5]
        self._progress_done, self._since = at.progress_done, at.since
        self._validations_done, self._validated_at, self._validated = at.validations_done, at.validated_at, at.validated
        self._epoch_sum = at.epoch_sum

    def _due_by_time(self) -> bool:
        return self._seconds is not None and time.monotonic() - self._last_save >= self._seconds


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
