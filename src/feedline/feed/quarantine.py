"""The quarantine: a list of skipped unreadable sequences, one JSON line each.

Each rank appends to its own file, each sequence once per process. A line holds ``sequence`` (index in the corpus),
``path``, ``line``, ``byte``, ``stream`` and ``reason``. It is written before the minibatch without the sequence is
delivered.

Rows of documents differ between sweeps, so the documents are listed: ``sequence`` is the index of a document, and
``documents`` the name of the corpus that has it. Texts that are tokenized are listed likewise.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from feedline.errors import DataError
from feedline.feed.arguments import Quarantine
from feedline.feed.files.paths import open_to_append
from feedline.feed.protocol import Deserializer

_log = logging.getLogger("feedline")


class ListedError(DataError):
    """The error of a sequence that a quarantine file lists, which is left out under any ``on_error``."""


class DocumentError(DataError):
    """The error of a document, in a corpus that is made from documents.

    Attributes:
        sequence: index of the document in the corpus of documents.
        documents: name of that corpus.
    """

    documents: str

    @classmethod
    def of(cls, error: DataError, sequence: int, documents: Deserializer) -> DataError:
        """Return the error of a document of a corpus, unless ``error`` names a document, or is of a listed one."""
        if isinstance(error, (DocumentError, ListedError)):
            return error
        path = documents.name if error.path is None else error.path
        named = cls(
            error.what,
            path=path,
            byte=error.byte,
            line=error.line,
            sequence=sequence,
            stream=error.stream,
            hint=error.hint,
        )
        named.documents, named.__cause__ = documents.name, error.__cause__
        return named


LISTED = ListedError("expected a sequence that no quarantine file lists")


def line_of(sequence: int, error: DataError) -> str:
    """Return the line of an unreadable sequence, or of the document that makes it unreadable."""
    line = {
        "sequence": sequence,
        "path": error.path,
        "line": error.line,
        "byte": error.byte,
        "stream": error.stream,
        "reason": error.what,
    }
    if isinstance(error, DocumentError):
        line |= {"sequence": error.sequence, "documents": error.documents}
    return json.dumps(line, default=_plain)


class QuarantineFile:
    """A quarantine file, appended to on demand.

    Args:
        quarantine: path of the file, and the maximum of distinct sequences in it.
    """

    def __init__(self, quarantine: Quarantine) -> None:
        self._path, self._limit = quarantine.path, quarantine.limit
        self._seen: set[int | tuple[str, int | None]] = set()

    @classmethod
    def of(cls, quarantine: Quarantine | None) -> QuarantineFile | None:
        """Return the file, or None if unreadable sequences are errors."""
        return None if quarantine is None else cls(quarantine)

    def add(self, sequence: int, error: DataError, rank: int) -> None:
        """Add a sequence, unless it is listed already.

        Raises:
            DataError: more sequences than the limit, or the file cannot be written.
        """
        document = (error.documents, error.sequence) if isinstance(error, DocumentError) else None
        if (document or sequence) in self._seen:
            return
        if self._limit is not None and len(self._seen) >= self._limit:
            raise DataError(
                f"expected at most {self._limit} unreadable sequences, the limit of fl.Quarantine, got one more: "
                f"{error.what}",
                path=error.path,
                byte=error.byte,
                line=error.line,
                sequence=sequence,
                stream=error.stream,
            ) from error
        path = Path(self._path if self._path is not None else f"quarantine-rank{rank}.jsonl")
        try:
            with open_to_append(path) as file:
                file.write(line_of(sequence, error) + "\n")
        except OSError as cause:
            raise DataError(
                f"cannot list unreadable sequence {sequence} in the quarantine file: {cause.strerror}",
                path=str(path),
                hint="pass on_error=fl.Quarantine(<a file that can be written>)",
            ) from cause
        if not self._seen:
            # Once: a wrong declaration makes every sequence unreadable, and must not go unnoticed.
            _log.warning("skipping unreadable sequences, listed in %s; the first: %s", path, error)
        self._seen.add(document or sequence)


def _plain(value: Any) -> Any:
    """Convert NumPy scalars for JSON."""
    return value.item() if hasattr(value, "item") else str(value)
