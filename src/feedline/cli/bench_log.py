"""``feedline bench --log FILE``: a log in JSON lines, in the format of a session's log, for ``feedline report``.

Writes a line every hundredth of the time. Counting costs about two microseconds per minibatch, which the figures
include.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from feedline._version import __version__
from feedline.data import Minibatch
from feedline.feed.source import MinibatchSource
from feedline.runs.feeding import Feeding

_LINES = 100


class BenchLog:
    """Writes the log of one bench to a new file.

    Args:
        path: path of the file.
        source: source that is measured.
        seconds: duration.
        about: further facts to log, in JSON types.
    """

    def __init__(self, path: Path, source: MinibatchSource, seconds: float, about: dict[str, Any]) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._source, self._every_s = source, seconds / _LINES
        self._feeding, self._waited, self._counted, self._minibatches, self._lines = Feeding(), 0.0, 0, 0, 0
        self._write(
            "start",
            kind="bench",
            feedline=__version__,
            streams={name: repr(stream) for name, stream in source.schema.items()},
            corpus={"sequences": source.num_sequences, "samples": source.num_samples},
            **about,
        )
        self._began = time.perf_counter()

    def count(self, minibatch: Minibatch) -> None:
        """Count a minibatch."""
        self._feeding.add(minibatch)
        self._counted += minibatch.num_samples
        self._minibatches += 1
        if time.perf_counter() - self._began >= self._every_s:
            self._progress()

    def rest(self) -> None:
        """Write a line for the minibatches since the last line, at the end of feeding."""
        if self._minibatches:
            self._progress()

    def end(self, parts: dict[str, float], figures: dict[str, Any]) -> None:
        """Write the last line.

        Args:
            parts: seconds by activity.
            figures: other figures, in JSON types.
        """
        self._write("end", seconds_by_part=parts, figures=figures)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _progress(self) -> None:
        now, stats = time.perf_counter(), self._source.stats()
        seconds, waited = now - self._began, stats.wait_seconds - self._waited
        self._lines += 1
        self._write(
            "progress",
            number=self._lines,
            minibatches=self._minibatches,
            seconds=seconds,
            waiting=min(1.0, waited / seconds),
            fed=self._feeding.fed().to_json(),
            stats=stats.to_json(),
            loss=None,
            metric=None,
            counted=self._counted,
        )
        self._feeding, self._waited, self._counted, self._minibatches = Feeding(), stats.wait_seconds, 0, 0
        self._began = time.perf_counter()  # excludes the cost of writing

    def _write(self, event: str, **fields: Any) -> None:
        samples, sweep = self._source.stats().samples, self._source.position.sweep
        line = {"event": event, "samples": samples, "sweeps": sweep, "time": round(time.time(), 3), **fields}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()
