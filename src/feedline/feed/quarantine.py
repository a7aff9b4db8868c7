"""The quarantine: unreadable sequences that were passed over, one JSON line each.

One file a rank, appended to, each sequence once a process. A line holds ``sequence`` (index in the corpus), ``path``,
``line``, ``byte``, ``stream`` and ``reason``; it is on disk before the minibatch without the sequence is handed out.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from feedline.errors import DataError
from feedline.feed.files.paths import open_to_append

_log = logging.getLogger("feedline")


class Quarantine:
    """See the module.

    Args:
        path: the file; None: ``quarantine-rank<i>.jsonl`` in the working directory.
        max_errors: number of different sequences after which `add` raises; None: no limit.
    """

    def __init__(self, path: str | Path | None, max_errors: int | None) -> None:
        self._path, self._max_errors = path, max_errors
        self._seen: set[int] = set()

    def add(self, sequence: int, error: DataError, rank: int) -> None:
        """List a sequence, unless it is listed already.

        Raises:
            DataError: more than ``max_errors`` sequences, or the file cannot be written.
        """
        if sequence in self._seen:
            return
        if self._max_errors is not None and len(self._seen) >= self._max_errors:
            raise DataError(
                f"expected at most {self._max_errors} unreadable sequences (max_errors), got one more: {error.what}",
                path=error.path,
                byte=error.byte,
                line=error.line,
                sequence=sequence,
                stream=error.stream,
            ) from error
        path = Path(self._path if self._path is not None else f"quarantine-rank{rank}.jsonl")
        line = {
            "sequence": sequence,
            "path": error.path,
            "line": error.line,
            "byte": error.byte,
            "stream": error.stream,
            "reason": error.what,
        }
        try:
            with open_to_append(path) as file:
                file.write(json.dumps(line, default=_plain) + "\n")
        except OSError as cause:
            raise DataError(
                f"cannot list unreadable sequence {sequence} in the quarantine file: {cause.strerror}",
                path=str(path),
                hint="pass quarantine=<a file that can be written>",
            ) from cause
        if not self._seen:
            # Once, so that a wrong declaration, which makes every sequence unreadable, does not go unnoticed.
            _log.warning("passing over unreadable sequences, listed in %s; the first: %s", path, error)
        self._seen.add(sequence)


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's."""
    return value.item() if hasattr(value, "item") else str(value)
