"""A run as JSON lines: one object an event, for programs, reports and plots.

Every line has ``event`` and ``samples`` (label samples trained so far). An average that is no finite number is null,
as JSON has no word for it; ``counted`` is 0 where there was nothing to average. A restored run appends to the file;
lines of a part that was trained again repeat their samples, and `read_lines` keeps the last of them.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from feedline.train.ranks import rank
from feedline.train.report.base import Silent
from feedline.train.session import Evaluated, Progress, TrainingSession
from feedline.train.trainer import Summary


class JsonLines(Silent):
    """Appends to a file.

    Args:
        path: the file; its folder is made.
        updates: write every update too; each one then waits for the device.
        rank: write on this rank only; None: on all, to ``<path>.rank<i>``.
    """

    def __init__(self, path: str | os.PathLike[str], updates: bool = False, rank: int | None = 0) -> None:
        self._path, self._updates, self._rank = Path(path), updates, rank
        self._file: Any = None

    def on_start(self, run: TrainingSession) -> None:
        """Opens the file."""
        if self._rank is not None and rank() != self._rank:
            return
        path = self._path if self._rank is not None else self._path.with_name(f"{self._path.name}.rank{rank()}")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")
        if _is_torn(path):
            self._file.write("\n")  # or the first line of this run would be lost with what a crash left of the last
        self._write("start", run)

    def on_update(self, run: TrainingSession, summary: Summary) -> None:
        """One line, if asked for."""
        if self._updates:
            self._write("update", run, **_sums(summary))

    def on_progress(self, run: TrainingSession, progress: Progress) -> None:
        """Sums since the last one, learning rates, speed, share of time spent waiting."""
        self._write(
            "progress",
            run,
            number=progress.number,
            minibatches=progress.minibatches,
            seconds=progress.seconds,
            waiting=progress.waiting,
            rates=[learner.learning_rate() for learner in run.trainer.learners],
            size=run.next_size(),
            **_sums(progress.summary),
        )

    def on_test(self, run: TrainingSession, what: str, result: Evaluated) -> None:
        """Sums of a validation or test."""
        self._write(what, run, number=result.number, minibatches=result.minibatches, **_sums(result.summary))

    def on_checkpoint(self, run: TrainingSession, path: Path) -> None:
        """Where."""
        self._write("checkpoint", run, path=str(path))

    def on_end(self, run: TrainingSession) -> None:
        """Closes the file."""
        self._write("end", run, interrupted=run.interrupted)
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, event: str, run: TrainingSession, **more: Any) -> None:
        if self._file is not None:
            line = {"event": event, "samples": run.samples, "sweeps": run.sweeps, **more}
            self._file.write(json.dumps(line, allow_nan=False) + "\n")
            self._file.flush()


def _is_torn(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size == 0:
            return False
        file.seek(size - 1)
        return file.read(1) != b"\n"


def read_lines(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Events of a file in order of samples, each once: of a part that was trained again, the last time.

    What was written after the place where a run began again is that run's to tell. A line torn by a crash is left out.
    """
    kept: dict[tuple[str, int], dict[str, Any]] = {}
    for text in Path(path).read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if line["event"] == "start":
            kept = {key: old for key, old in kept.items() if old["samples"] <= line["samples"]}
        kept.pop((line["event"], line["samples"]), None)
        kept[line["event"], line["samples"]] = line
    return sorted(kept.values(), key=lambda line: line["samples"])


def plot_losses(lines: str | os.PathLike[str], picture: str | os.PathLike[str]) -> None:
    """Draw loss over label samples, training and validation, from a file of `JsonLines`; PNG or SVG by its name.

    Raises:
        ModuleNotFoundError: matplotlib is not installed (``pip install 'feedline[viz]'``).
        ValueError: the file has no progress to draw.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("matplotlib is not installed; run: pip install 'feedline[viz]'") from error
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


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
