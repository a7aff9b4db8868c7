"""A training session, which reads, trains, reports, validates and saves at set intervals.

`TrainingSession.run` continues from the latest checkpoint, or from the start, to the end. Checkpoints contain
everything that determines the remaining run: model and learners, the source's position, random generators, counters and
running sums, controllers, whether the run was stopped. Law (tests/train/test_session.py): a run on the CPU that is
killed at any point and restarted ends with the same parameters, bit for bit, as an uninterrupted one.

After an update come, in this order: progress, validation, controllers at the end of an epoch, checkpoint. A checkpoint
therefore contains the outcome of all other actions. Spans count label samples, minibatches or sweeps of the run. A
minibatch that crosses several marks triggers one action. Several ranks make collective decisions, see
`feedline.train.agreement`.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from feedline.data import Position, Span, Unit
from feedline.errors import StateError
from feedline.feed.protocol import whole_number
from feedline.feed.source import MinibatchSource
from feedline.train import session_state
from feedline.train.agreement import RankRequests, combine_requests
from feedline.train.checkpoint import Checkpoint
from feedline.train.evaluation import (
    Evaluated,
    Evaluation,
    SessionSource,
    Size,
    check_evaluation,
    check_kind,
    check_resumes,
    evaluate,
    sizes_schedule,
)
from feedline.train.progress import Progress, SpanMark, Sums
from feedline.train.random_states import check_random_states
from feedline.train.saving import Saver, Saving, tensors_for
from feedline.train.stop_signals import StopSignals
from feedline.train.strategy import Decision, ExchangesInBackward, HoldsParts
from feedline.train.summary import NOTHING, Summary, plus, sum_over_ranks
from feedline.train.trainer import Trainer

_log = logging.getLogger("feedline")


class Reporter(Protocol):
    """Receiver of a session's events. See `feedline.train.report`. All sums are over label samples."""

    def on_start(self, run: TrainingSession) -> None:
        """Called when the run starts or resumes."""

    def on_update(self, run: TrainingSession, summary: Summary) -> None:
        """Called after each update."""

    def on_progress(self, run: TrainingSession, progress: Progress) -> None:
        """Called after each progress span, and at the end of the run if one has begun."""

    def on_test(self, run: TrainingSession, what: str, result: Evaluated) -> None:
        """Called after a validation (``what`` is ``"validation"``) or the final test (``"test"``)."""

    def on_checkpoint(self, run: TrainingSession, path: Path) -> None:
        """Called when a checkpoint is on disk."""

    def on_end(self, run: TrainingSession) -> None:
        """Called when the run has ended, for whatever reason."""


class Controller(Protocol):
    """Adjustment of a run at the end of each epoch. See `feedline.train.controllers`."""

    def on_epoch_end(self, run: TrainingSession, training: Summary, validation: Summary | None) -> None:
        """Called at the end of an epoch. ``validation`` is the result of a validation at that point, if any."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state in JSON types."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""


class TrainingSession(session_state.RunProgress):
    """A training run. See the module.

    Args:
        trainer: trainer with model, loss, metric and learners.
        source: training source.
        size: minibatch size in samples over all ranks, or a schedule of it over label samples (``Schedule.sizes``). A
            size of 0 ends the training.
        max_samples: number of label samples to train on. None means until the source ends.
        progress: span between reports. None means one at the end.
        reporters: receivers of events.
        saving: settings of checkpoints. None means no checkpoints.
        validation: cross validation, if any.
        test: test at the end, if any.
        epoch: span of label samples or sweeps at whose end controllers act, after a validation, and a checkpoint is
            written.
        controllers: controllers of learning rate, minibatch size and the like.

    Attributes:
        samples, minibatches, sweeps: numbers trained so far.
        stopped: whether a callback, a controller, `stop` or a rate of 0 ended the training. Checkpoints contain it: a
            stopped run is over, and does nothing when restarted.
        interrupted: whether Ctrl-C or SIGTERM ended the last `run`.
        ranks: ranks that run it. See `feedline.collective.ranks`.
        scale: factor of the minibatch size, for controllers.

    Raises:
        ValueError: a run without an end, controllers without an epoch or the metric they watch, an evaluation without
            source and callback, a span of 0, a negative size, a source that cannot be resumed or reset but has to be,
            the same source for training and testing, or the same folder for checkpoints and a controller's model.
        TypeError: a size that is not an integer, or another argument of a wrong type.
    """

    def __init__(
        self,
        trainer: Trainer,
        source: SessionSource,
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
        check_kind("trainer", trainer, ("train_minibatch", "strategy"), "a Trainer")
        check_kind("source", source, ("next_minibatch", "state_dict"), "a MinibatchSource or UserMinibatchSource")
        check_kind("saving", saving, Saving, 'such as Saving("checkpoints")')
        reporters = _as_list("reporters", reporters, "on_update")
        controllers = _as_list("controllers", controllers, "on_epoch_end")
        if controllers and epoch is None:
            raise ValueError("expected an epoch, at whose end the controllers act, got none; pass epoch=fl.sweeps(1)")
        if source.is_infinite and max_samples is None:
            raise ValueError("expected a training source that ends, or max_samples, got neither")
        if trainer.metric is None and any(getattr(c, "watch", None) == "metric" for c in controllers):
            raise ValueError('expected a trainer with a metric for a controller with watch="metric", got one without')
        check_evaluation("validation", validation, source)
        check_evaluation("test", test, source)
        if saving is not None and saving.restore:
            check_resumes("training", source, "pass Saving(..., restore=False)")
        if saving is not None and any(_same_folder(c, saving.folder) for c in controllers):
            raise ValueError(f"expected the best model in another folder, got the checkpoints' folder, {saving.folder}")
        super().__init__()
        self.trainer, self.source, self.size = trainer, source, sizes_schedule(size)
        self.max_samples = None if max_samples is None else whole_number("max_samples", max_samples, 0)
        self.reporters, self.controllers = reporters, controllers
        self.saving, self.validation, self.test = saving, validation, test
        self.interrupted = False
        self._progress_mark, self._epoch_mark = SpanMark(progress), SpanMark(epoch)
        self._validation_mark = SpanMark(validation.every if validation is not None else None)
        self._saver = Saver(saving)
        self.ranks = trainer.strategy.session_ranks()
        self._stop_signals = StopSignals()
        self._splits_sums = False  # whether running sums cover this rank's part alone

    # ---- the run ------------------------------------------------------------------------------------------------

    def run(self) -> TrainingSession:
        """Train to the end. Return the session itself.

        Ctrl-C or SIGTERM ends the run after the present update, with a checkpoint. A second one ends it at once. After
        SIGTERM the process ends as well, unless it has a handler, which is then called. A signal to one of several
        ranks ends the run on all of them, after the same update.

        Raises:
            StoreError: another rank is missing. The message names it. Restart all ranks, which continue from the latest
                checkpoint.
            StateError: the latest checkpoint is of a run with other data, model, learners or controllers, all
                checkpoints are damaged, or another session writes to the folder.
        """
        self.interrupted = False
        self._stop_signals = StopSignals()
        with contextlib.ExitStack() as ending:
            ending.callback(self.ranks.close)
            folders = [controller.own_folder for controller in self.controllers if hasattr(controller, "own_folder")]
            ending.enter_context(self._saver.locked(self.ranks, folders))
            ending.enter_context(self.trainer.within(self.ranks))
            self._splits_sums = isinstance(self.trainer.strategy, ExchangesInBackward)
            self._restore()
            started: list[Reporter] = []
            try:
                for reporter in self.reporters:
                    reporter.on_start(self)
                    started.append(reporter)
                self._saver.start_clock()
                self.span_sums.start_clock()
                with self._stop_signals:
                    self._train()
                if self.test is not None and not self.interrupted:
                    self._report_test("test", evaluate(self.trainer, self.test, 0))
            finally:
                self.ranks.close()
                for reporter in started:
                    reporter.on_end(self)
        self._stop_signals.resend()
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
        if self._saver.pending:
            self._save()

    def stop(self) -> None:
        """End the training after the present update, with everything due at its end."""
        self.stopped = True

    def save(self) -> None:
        """Write a checkpoint after the present update, and after everything due with it."""
        self._saver.requested = True

    def next_size(self) -> int:
        """Return the size of the next minibatch in samples, or 0 if the training ends."""
        size = self._full_size()
        return size if self.max_samples is None else max(0, min(size, self.max_samples - self.samples))

    def _full_size(self) -> int:
        """Return the size of the next minibatch, regardless of `max_samples`."""
        size = int(self.size[Position(self.sweeps, 0, self.samples, self.samples)])
        if size and self.scale != 1.0:
            size = max(1, round(size * self.scale))
        return size * self.trainer.strategy.scale(self.trainer.samples)

    def _ended_by_rate(self) -> bool:
        """Return whether all rates are 0, by which a schedule ends a training."""
        return not any(learner.learning_rate() for learner in self.trainer.learners)

    def _step(self) -> Summary | None:
        """Train on one minibatch. None if the run ends."""
        size = self.next_size()
        if size == 0:
            return None
        if self._ended_by_rate():
            self.stopped = self._saver.pending = True
            return None
        began = time.perf_counter()
        trainer, strategy = self.trainer, self.trainer.strategy
        minibatch = self.source.next_minibatch(size, **self._share())
        self.span_sums.waited_s += time.perf_counter() - began
        sweeps, summary = trainer.sweeps, NOTHING
        decision = strategy.decide(minibatch)
        if decision is Decision.SKIP and size < self._full_size():
            decision = Decision.END  # the rest of `max_samples` is too few for all ranks, now and later
        if decision is Decision.LEARN:
            summary = trainer.train_minibatch(minibatch, ended=not minibatch)
        elif decision is not Decision.END:
            trainer.pass_by(minibatch)
        if decision is Decision.END or trainer.ended:
            return None
        count = getattr(self.source, "count_label_samples", None)
        if count is not None:
            count(trainer.counted)
        self.samples += trainer.counted
        self.minibatches += 1
        # A single rank counts the sweeps of the data, even if no learner learned. Several ranks end sweeps together.
        self.sweeps += bool(minibatch.sweep_end) if self.ranks.alone else trainer.sweeps - sweeps
        self.span_sums.feeding.add(minibatch)
        return summary

    def _after_update(self, summary: Summary) -> None:
        self._saver.pending = True
        for reporter in self.reporters:
            reporter.on_update(self, summary)
        self.span_sums.add(summary)
        if self.controllers:
            self.epoch_sum = plus(self.epoch_sum, summary)
        counts = self._counts()
        if self._progress_mark.crossed(counts):
            self._report_progress()
        if self._validation_mark.crossed(counts):
            self._validate()
        due = self._saver.mark.crossed(counts)
        if self._epoch_mark.crossed(counts):
            self._end_epoch()
            due = True
        self._agree()
        if due or self._saver.requested:
            self._save()

    def _agree(self) -> None:
        """Make all ranks agree whether to stop and to save, and on the next size."""
        save = self._saver.requested or (self.ranks.rank == 0 and self._saver.due_by_time())
        size = 0
        if not self.ranks.alone and not self.stopped:
            size = -1 if self._ended_by_rate() else self.next_size()
        requests = RankRequests(self.stopped, self._stop_signals.requested, save, size)
        agreed = combine_requests(self.ranks, requests)
        self.stopped, self.interrupted, self._saver.requested = agreed.stop, agreed.interrupt, agreed.save

    def _counts(self) -> dict[Unit, int]:
        return {Unit.SAMPLE: self.samples, Unit.MINIBATCH: self.minibatches, Unit.SWEEP: self.sweeps}

    def _finish(self) -> None:
        """Complete due actions at the end, once. For a restored run that was over, nothing is due."""
        self.trainer.strategy.sync_models()
        if self.span_sums.minibatches:
            self._report_progress()
            self._saver.pending = True
        if self.validation is not None and self.minibatches and self.validated_at != self.minibatches:
            self._validate()
            self._saver.pending = True

    def _report_progress(self) -> None:
        self.progress_done += 1
        sums, self.span_sums = self.span_sums, Sums()
        progress = sums.progress(self.progress_done, self._sum_over_ranks(sums.summary))
        self.span_sums.start_clock()
        for reporter in self.reporters:
            reporter.on_progress(self, progress)

    def _sum_over_ranks(self, summary: Summary) -> Summary:
        """Return the sums of all ranks, given the running sums of this one."""
        return sum_over_ranks(self.ranks, summary) if self._splits_sums else summary

    # ---- validation and test ------------------------------------------------------------------------------------

    def _validate(self) -> None:
        assert self.validation is not None
        began = time.perf_counter()
        result = evaluate(self.trainer, self.validation, self.validations_done)
        self.span_sums.evaluated_s += time.perf_counter() - began
        self.validations_done += 1
        self.validated, self.validated_at = result.summary, self.minibatches
        self._report_test("validation", result)
        if self.validation.callback is not None and self.validation.callback(result) is False:
            self.stop()

    def _report_test(self, what: str, result: Evaluated) -> None:
        for reporter in self.reporters:
            reporter.on_test(self, what, result)

    def _end_epoch(self) -> None:
        if self.validation is not None and self.validated_at != self.minibatches and self.controllers:
            self._validate()
        validated = self.validated if self.validated_at == self.minibatches else None
        training, self.epoch_sum = self.epoch_sum, NOTHING
        if self.controllers:
            training = self._sum_over_ranks(training)
            self.trainer.strategy.sync_models()  # controllers read the model
        for controller in self.controllers:
            controller.on_epoch_end(self, training, validated)

    # ---- checkpoints --------------------------------------------------------------------------------------------

    def _save(self) -> None:
        if not self._saver.begin():
            return
        self.trainer.strategy.sync_models(saving=True)
        state = session_state.to_json(
            self,
            self.source,
            None if self.validation is None else self.validation.source,
            self.controllers,
            self.ranks,
            self._splits_sums,
        )
        began = time.perf_counter()
        sharded = isinstance(self.trainer.strategy, HoldsParts)
        path = self._saver.write(self.samples, self.trainer.state_dict, state, self.ranks, sharded)
        self.span_sums.saved_s += time.perf_counter() - began
        for reporter in self.reporters if path is not None else ():
            reporter.on_checkpoint(self, path)

    def _restore(self) -> None:
        folder = self._saver.restore(self.ranks, self._load_checkpoint)
        if folder is not None and self.stopped:
            _log.warning(
                "the run in %s was stopped after %d label samples and is over; to train again, use another folder or "
                "restore=False",
                folder,
                self.samples,
            )

    def _load_checkpoint(self, checkpoint: Checkpoint) -> None:
        loaded = session_state.from_json(checkpoint.state, self.ranks, self._splits_sums)
        saved = {"controllers": [kind for kind, _ in loaded.controllers]}
        current = {"controllers": [type(controller).__name__ for controller in self.controllers]}
        if saved != current:
            raise StateError("expected the controllers of the saved run", saved=saved, current=current)
        restore_generators = check_random_states(loaded.random, self.ranks.rank)
        targets: list[tuple[Any, Any]] = [(self.source, loaded.source)]
        if loaded.validation is not None and self.validation is not None and self.validation.source is not None:
            targets.append((self.validation.source, loaded.validation))
        targets += zip(self.controllers, (state for _, state in loaded.controllers), strict=True)
        session_state.load_all(targets, lambda: self._load_trainer(checkpoint, loaded.trainer))
        vars(self).update(vars(loaded.progress))
        # All marks were checked before a checkpoint, so the counts determine them, even if spans differ from those
        # of the saved run.
        for mark in (self._progress_mark, self._validation_mark, self._epoch_mark, self._saver.mark):
            mark.crossed(self._counts())
        restore_generators()

    def _load_trainer(self, checkpoint: Checkpoint, state: Any) -> None:
        """Load the model and the learners, while the source reads what comes next."""
        if isinstance(self.source, MinibatchSource):  # others may draw random numbers when they begin
            self.source.prefetch(**self._share())
        self.trainer.load_state_dict(tensors_for(checkpoint, self.trainer), state)

    def _share(self) -> dict[str, tuple[int, int]]:
        """Return the share of the next minibatch, as an argument of the source, if it is not the source's own."""
        return {} if self.trainer.strategy.trains_on_parts(self.trainer.samples) else {"partition": (0, 1)}


def _as_list(name: str, items: Any, method: str) -> list[Any]:
    if not isinstance(items, (list, tuple)):
        raise TypeError(f"expected a list of {name}, got {items!r:.80}; put it in a list")
    for item in items:
        if isinstance(item, type) or not hasattr(item, method):
            raise TypeError(f"expected {name} with a method {method}, got {item!r:.80}")
    return list(items)


def _same_folder(controller: Controller, folder: str | Path) -> bool:
    model_folder = getattr(controller, "folder", None)
    return model_folder is not None and Path(model_folder).resolve() == Path(folder).resolve()
