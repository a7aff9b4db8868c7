"""The files of a run folder: the log, quarantine files, the picture of the network.

| file | written by |
|---|---|
| ``run.jsonl``, or the only other log | `feedline.train.JsonLines`, ``feedline bench --log``, ``FEEDLINE_DOCTOR`` |
| ``run.jsonl.rank<i>`` | ranks that each write a log |
| ``quarantine*.jsonl`` | a source with ``on_error=fl.Quarantine(folder / "quarantine.jsonl")`` |
| ``network.svg`` | the user |
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.errors import DataError
from feedline.runs.history import History, LogEvent, Saved, event_of, read_history, spans_of_ranks
from feedline.runs.log import RunLog
from feedline.runs.rank_spans import RanksSpans

LOG, NETWORK, QUARANTINE = "run.jsonl", "network.svg", "quarantine*.jsonl"
MAX_LISTED = 50


@dataclass(frozen=True, slots=True)
class Quarantined:
    """Unreadable sequences.

    Attributes:
        first: lines of the first `MAX_LISTED` distinct sequences.
        count: number of distinct sequences.
        files: names of the files that list them.
    """

    first: list[dict[str, Any]]
    count: int
    files: list[str]


@dataclass(frozen=True, slots=True)
class Run:
    """The contents of a run folder.

    Attributes:
        folder: folder of the log.
        history: contents of the log.
        quarantined: unreadable sequences.
        network: SVG of the network, or None.
    """

    folder: Path
    history: History
    quarantined: Quarantined
    network: bytes | None

    @property
    def name(self) -> str:
        """Name of the run for display."""
        return self.folder.resolve().name

    def still_exists(self, saved: Saved) -> bool:
        """Return whether a checkpoint still exists, at its original path or in a run folder that was moved."""
        path = Path(saved.path)
        moved = (self.folder / path.name, self.folder / path.parent.name / path.name)
        return any(os.path.isdir(place) for place in (path, *moved))  # also False for invalid paths


def read_run(path: str | os.PathLike[str]) -> Run:
    """Read a run folder, or a log in one.

    Raises:
        FileNotFoundError: no such folder or file, or no log in the folder.
        DataError: several logs and none of them is ``run.jsonl``, or a file that is not a log.
    """
    log = log_of(path)
    network = log.parent / NETWORK
    svg = network.read_bytes() if network.is_file() else None
    history, others = read_history(log), RankLogs(log)
    others.read_new_lines()
    history.ranks |= others.spans
    return Run(log.parent, history, _read_quarantine(log.parent), svg)


class RankLogs:
    """The logs that other ranks write beside the log of a rank, which may still grow.

    Args:
        log: path of the log, such as ``run.jsonl.rank0``.

    Attributes:
        spans: what these ranks did, span by span, by rank.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._logs: dict[Path, RunLog[LogEvent | None]] = {}
        self.spans: RanksSpans = {}

    def read_new_lines(self) -> bool:
        """Read the lines that were added since the last call, also of new logs. Return whether there were any.

        Raises:
            DataError: a file is not a log.
        """
        grown = False
        for path in logs_of_ranks(self._log):
            if path != self._log:
                log = self._logs.setdefault(path, RunLog(path, event_of))
                grown |= log.read_new_lines()
        if grown:
            self.spans = {
                rank: spans for log in self._logs.values() for rank, spans in spans_of_ranks(log.events).items()
            }
        return grown


def logs_of_ranks(log: Path) -> list[Path]:
    """Return the logs of all ranks, if each writes its own, such as ``run.jsonl.rank0`` for ``run.jsonl``."""
    name = re.sub(r"\.rank\d+$", "", log.name)
    logs = [path for path in log.parent.glob(f"{glob.escape(name)}.rank*") if path.suffix[5:].isdigit()]
    return sorted(logs, key=lambda path: int(path.suffix[5:]))


def log_of(path: str | os.PathLike[str]) -> Path:
    """Return the log of a run folder, or the log itself. If each rank writes its own, it is the one of rank 0.

    Raises:
        FileNotFoundError: no such folder or file, or no log in the folder.
        DataError: several logs and none of them is ``run.jsonl``.
    """
    path = Path(path)
    if path.is_file():
        return path
    if not path.is_dir():
        logs = logs_of_ranks(path)
        if logs:
            return logs[0]
        raise FileNotFoundError(f"expected a run folder or a log, got {path}, which does not exist")
    for name in (LOG, f"{LOG}.rank0"):
        if (path / name).is_file():
            return path / name
    logs = sorted({*path.glob("*.jsonl"), *path.glob("*.rank0")} - set(path.glob(QUARANTINE)))
    if not logs:
        raise FileNotFoundError(
            f"expected a log in {path}, such as {LOG}, got none; JsonLines(folder / {LOG!r}) among a session's "
            "reporters writes one"
        )
    if len(logs) > 1:
        raise DataError(
            f"expected {LOG} or one other log, got {', '.join(log.name for log in logs)}",
            path=str(path),
            hint="name the file instead of the folder",
        )
    return logs[0]


def _read_quarantine(folder: Path) -> Quarantined:
    files = sorted(folder.glob(QUARANTINE))
    first: list[dict[str, Any]] = []
    keys: set[tuple[str, str]] = set()
    for line in (line for file in files for line in _lines(file)):
        # Every process lists the unreadable sequences that it reads, so a resumed one lists them again.
        key = (str(line.get("path")), str(line.get("sequence")))
        if key not in keys:
            keys.add(key)
            if len(first) < MAX_LISTED:
                first.append(line)
    return Quarantined(first, len(keys), [file.name for file in files])


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    with file.open("rb") as lines:
        for text in lines:
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):  # torn by a kill. A resumed process lists the sequence again
                continue
            if isinstance(line, dict):
                yield line
