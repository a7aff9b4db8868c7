"""Progress lines of CNTK 2.7, character for character, and their output file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TextIO

TABLE_HEAD = (
    " average      since    average      since      examples",
    "    loss       last     metric       last              ",
    " ------------------------------------------------------",
)
HEARTBEAT = "PROGRESS: 0.00%"
HEARTBEAT_SECONDS = 10.0


def is_table_row(updates: int) -> bool:
    """Return whether the table has a row after this number of updates: 1, 3, 7, 15, …"""
    return (updates + 1) & updates == 0


def table_row(
    loss: float | None, recent_loss: float | None, metric: float | None, recent_metric: float | None, samples: int
) -> str:
    """Format averages since the start and since the last row, with blanks for None."""
    columns = "   ".join(" " * 8 if value is None else f"{value:8.3g}" for value in (loss, recent_loss, metric))
    return f" {columns}   {' ' * 8 if recent_metric is None else f'{recent_metric:8.3g}'}    {samples:10d}"


def minibatch_line(first: int, last: int, loss: float | None, metric: float, samples: int, percent: bool) -> str:
    """Format averages over minibatches ``first`` to ``last``, of training, or of an evaluation if ``loss`` is None."""
    what, loss_text = ("Evaluation ", "") if loss is None else ("", f"loss = {loss:0.6f} * {samples:d}, ")
    return f" {what}Minibatch[{first:4d}-{last:4d}]: {loss_text}metric = {_metric(metric, percent)} * {samples:d};"


def epoch_line(
    number: int, of: int | None, tag: str, loss: float, metric: float, samples: int, seconds: float, percent: bool
) -> str:
    """Format averages over epoch ``number`` (of ``of``, if known), its time and speed."""
    seconds = round(seconds, 3)
    total, label = "" if of is None else f" of {of}", f"[{tag}] " if tag else ""
    speed = samples / seconds if seconds > 0 else 0.0
    return (
        f"Finished Epoch[{number}{total}]: {label}loss = {loss:0.6f} * {samples:d}, "
        f"metric = {_metric(metric, percent)} * {samples:d} {seconds:0.3f}s ({speed:5.1f} samples/s);"
    )


def evaluation_line(number: int, minibatches: int, metric: float, samples: int, percent: bool) -> str:
    """Format the average metric over evaluation ``number``."""
    average = _metric(metric, percent)
    return f"Finished Evaluation [{number}]: Minibatch[1-{minibatches}]: metric = {average} * {samples:d};"


def _metric(value: float, percent: bool) -> str:
    return f"{value * 100.0:0.2f}%" if percent else f"{value:0.6f}"


class ReportFile:
    """Standard output, or a file with CNTK's first and last lines.

    Args:
        path: file to overwrite: ``<path>rank<rank>``, or ``<path>`` without a rank. None means standard output.
        rank: rank of this process. None means the only process.
        epochs: number of epochs for CNTK's first and last lines.
        table: whether to begin with the header of the table.

    Attributes:
        to_file: whether lines are written to a file.
    """

    END = "CNTKCommandTrainEnd: train"

    def __init__(self, path: str | os.PathLike[str] | None, rank: int | None, epochs: int | None, table: bool) -> None:
        self._path = None
        self.to_file = path is not None
        self._file: TextIO | None = None
        if path is not None:
            self._path = Path(path) if rank is None else Path(f"{os.fspath(path)}rank{rank}")
            print(f"Redirecting log to file {self._path}", flush=True)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text("", encoding="utf-8")
            epochs = 300 if epochs is None else epochs
            self.line(str(self._path))
            self.line(f"CNTKCommandTrainInfo: train : {epochs}")
            self.line(f"CNTKCommandTrainInfo: CNTKNoMoreCommands_Total : {epochs}")
            self.line("CNTKCommandTrainBegin: train")
        if table:
            for head in TABLE_HEAD:
                self.line(head)

    def line(self, text: str) -> None:
        """Write one line and flush."""
        if self._path is None:
            print(text, file=sys.stdout, flush=True)
            return
        if self._file is None:
            self._file = self._path.open("a", encoding="utf-8")
        print(text, file=self._file, flush=True)

    def close(self) -> None:
        """Close the file. Another line opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None
