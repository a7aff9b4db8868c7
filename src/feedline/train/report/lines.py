"""Events of a run as JSON lines, for programs, reports and plots.

A progress line has the record of the rank that writes, and as ``ranks`` short ones of all ranks, which go with their
heartbeats, so that a rank may be a few seconds behind.

Every line has ``event`` and ``samples`` (label samples trained so far). An average that is not finite is null, as JSON
has no such numbers. ``counted`` is 0 without samples to average. A restored run appends to the file. Lines of a part
that was trained again repeat earlier numbers of samples, and `read_lines` keeps the last lines. `feedline.report`
renders such a file as a page.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from feedline._version import __version__
from feedline.collective.ranks import rank
from feedline.errors import install_line
from feedline.feed.source import MinibatchSource
from feedline.probes import Recorder
from feedline.runs.log import feed_record, open_log, read_log
from feedline.train.evaluation import Evaluated
from feedline.train.progress import Progress
from feedline.train.report.base import Silent
from feedline.train.report.environment import describe_environment
from feedline.train.session import TrainingSession
from feedline.train.strategy import Alone
from feedline.train.summary import Summary
from feedline.train.unwrap import unwrap_model

_SEND_S = 2.0  # seconds between records that heartbeats carry


class JsonLines(Silent):
    """Reporter that appends JSON lines to a file.

    Args:
        path: file. Its folder is created if missing. Give the reporter to the sessions of all ranks.
        updates: whether to write a line for every update, too. Each update then waits for the device.
        rank: the only rank that writes. None means that all ranks write, each to ``<path>.rank<i>``.
        settings: further settings of the run, such as ``{"width": 64}``, for comparisons with other runs: numbers and
            texts by name.

    Raises:
        TypeError: settings that are not numbers or texts by name.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        updates: bool = False,
        rank: int | None = 0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._settings = {name: _setting(name, value) for name, value in (settings or {}).items()}
        self._path, self._updates, self._rank = Path(path), updates, rank
        self._file: Any = None
        self._recorder: Recorder | None = None
        self._sent_s = 0.0

    def on_start(self, run: TrainingSession) -> None:
        """Open the file, on a rank that writes."""
        self._sent_s = time.monotonic()
        if self._rank is not None and rank() != self._rank:
            self._recorder = Recorder()
            return
        path = self._path if self._rank is not None else self._path.with_name(f"{self._path.name}.rank{rank()}")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file, self._recorder = open_log(path), Recorder()
        self._write("start", run, **_describe(run, self._settings), **describe_environment(), **_feed_position(run))

    def on_update(self, run: TrainingSession, summary: Summary) -> None:
        """Write a line if ``updates`` is set. Let the heartbeat carry this rank's record every few seconds."""
        if self._rank is not None and time.monotonic() - self._sent_s >= _SEND_S:
            self._send_record(run)
        if self._updates:
            self._write("update", run, **_sums(summary))

    def on_progress(self, run: TrainingSession, progress: Progress) -> None:
        """Write sums of the span, learning rates, fractions of time, statistics of the feed, and records of ranks."""
        if self._rank is not None:
            self._send_record(run)
        if self._file is None:
            return
        self._write(
            "progress",
            run,
            number=progress.number,
            minibatches=progress.minibatches,
            seconds=progress.seconds,
            waiting=progress.waiting,
            evaluating=progress.evaluating,
            saving=progress.saving,
            fed=progress.fed.to_json(),
            stats=_stats(run),
            record=self._record(),
            **self._records_of_ranks(run),
            rates=[learner.learning_rate() for learner in run.trainer.learners],
            size=run.next_size(),
            done=_done(run),
            **_feed_position(run),
            **_sums(progress.summary),
        )

    def on_test(self, run: TrainingSession, what: str, result: Evaluated) -> None:
        """Write sums of a validation or test."""
        self._write(what, run, number=result.number, minibatches=result.minibatches, **_sums(result.summary))

    def on_checkpoint(self, run: TrainingSession, path: Path) -> None:
        """Write the path of the checkpoint."""
        self._write("checkpoint", run, path=str(path))

    def on_end(self, run: TrainingSession) -> None:
        """Close the file."""
        self._write("end", run, interrupted=run.interrupted, **_feed_position(run))
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._recorder is not None:
            self._recorder.close()

    def _record(self) -> dict[str, Any] | None:
        """Return the record of this rank since the start of the process, for ``feedline doctor``."""
        return None if self._recorder is None else self._recorder.record().to_json()

    def _send_record(self, run: TrainingSession) -> None:
        heartbeat = run.ranks.heartbeat
        self._sent_s = time.monotonic()
        if heartbeat is not None and self._recorder is not None:
            heartbeat.collects = self._file is not None
            heartbeat.text = json.dumps(self._recorder.loops().to_brief_json(), separators=(",", ":"))

    def _records_of_ranks(self, run: TrainingSession) -> dict[str, Any]:
        """Return the last records of all ranks that are known, unless each rank writes its own."""
        heartbeat = run.ranks.heartbeat
        if self._rank is None or heartbeat is None or run.ranks.count == 1:
            return {}
        return {"ranks": [json.loads(text) for text in heartbeat.texts().values()]}

    def _write(self, event: str, run: TrainingSession, **data: Any) -> None:
        if self._file is not None:
            line = {"event": event, "samples": run.samples, "sweeps": run.sweeps, "time": round(time.time(), 3), **data}
            self._file.write(json.dumps(line, allow_nan=False) + "\n")
            self._file.flush()


def read_lines(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read the events of a file, in order of samples. Of a part that was trained again, only the last events count.

    A restart discards events after the position at which the run continues. A line torn by a crash is skipped.

    Raises:
        DataError: a line is JSON, but not an event.
    """
    return read_log(path, dict).events


def plot_losses(lines: str | os.PathLike[str], picture: str | os.PathLike[str]) -> None:
    """Draw losses of training and validation over label samples, from a file of `JsonLines`, as PNG or SVG by name.

    Raises:
        ModuleNotFoundError: matplotlib is not installed (``pip install 'feedline[viz]'``).
        ValueError: the file has no progress to draw.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"matplotlib is not installed; run: {install_line('viz')}") from error
    events = read_lines(lines)
    curves = {
        name: [(e["samples"], e["loss"]) for e in events if e["event"] == event and e["loss"] is not None]
        for name, event in (("training", "progress"), ("validation", "validation"))
    }
    if not curves["training"]:
        raise ValueError(f"expected progress lines in {lines}, got none")
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for (name, points), style in zip(curves.items(), ("-", "o--"), strict=True):
        if points:
            axes.plot(*zip(*points, strict=True), style, label=name, markersize=4)
    axes.set_xlabel("label samples")
    axes.set_ylabel("average loss")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(picture)


def _sums(summary: Summary) -> dict[str, Any]:
    if not summary.samples:
        return {"loss": None, "metric": None, "counted": 0}
    return {"loss": _finite(summary.loss), "metric": _finite(summary.metric), "counted": summary.samples}


def _setting(name: Any, value: Any) -> str:
    if not isinstance(name, str) or not isinstance(value, (str, bool, int, float, np.integer, np.floating)):
        raise TypeError(f"expected settings of numbers or texts by name, got {name!r:.40}: {value!r:.40}")
    return str(value)


def _describe(run: TrainingSession, settings: Mapping[str, str]) -> dict[str, Any]:
    """Return descriptions of source, model and learners, and the user's settings."""
    learners = run.trainer.learners
    learned = {
        f"{name} of learner {i + 1}" if len(learners) > 1 else name: text
        for i, learner in enumerate(learners)
        for name, text in learner.settings().items()
    }
    trainer = run.trainer
    schema = getattr(run.source, "schema", None)
    return {
        "feedline": __version__,
        "model": type(unwrap_model(trainer.model)).__name__,
        "loss_name": _name_of(run.trainer.loss),
        "metric_name": _name_of(run.trainer.metric),
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
        "learners": [type(learner).__name__ for learner in trainer.learners],
        "workers": 1 if isinstance(learners[0].strategy, Alone) else run.ranks.count,
        "streams": {} if schema is None else {name: repr(stream) for name, stream in schema.items()},
        "settings": {
            "minibatch size": str(run.size).removeprefix("Schedule(").removesuffix(")"),
            **learned,
            **settings,
        },
        "corpus": {name: _count(run.source, f"num_{name}") for name in ("sequences", "samples")},
    }


def _name_of(function: Any) -> str | None:
    """Return the name of a function or module, or None if it has none."""
    if function is None:
        return None
    name = getattr(function, "__name__", type(function).__name__)
    return None if name.startswith("<") or name in ("loss", "metric", "partial") else str(name)


def _feed_position(run: TrainingSession) -> dict[str, Any]:
    """Return the position of a source that can be planned, for `feedline audit`."""
    if not isinstance(run.source, MinibatchSource):
        return {}
    return {"feed": feed_record(run.source, run.minibatches, run.next_size())}


def _done(run: TrainingSession) -> float | None:
    """Return the share of the run that is done, 0 to 1. None if its end is unknown."""
    shares = [getattr(run.source, "share_done", None)]
    if run.max_samples is not None:
        shares.append(min(1.0, run.samples / run.max_samples) if run.max_samples else 1.0)
    defined = [share for share in shares if share is not None]
    return round(max(defined), 6) if defined else None


def _count(source: Any, what: str) -> int | None:
    try:
        return int(getattr(source, what))
    except (AttributeError, ValueError):  # a user-defined source, or one that would have to be read to count
        return None


def _stats(run: TrainingSession) -> dict[str, Any]:
    stats = getattr(run.source, "stats", None)
    return stats().to_json() if callable(stats) else {}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
