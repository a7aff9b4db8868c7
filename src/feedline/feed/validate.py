"""Read everything once, to find damaged sequences."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from feedline.data import Chunk
from feedline.errors import DataError
from feedline.feed.conversion.read_ahead import read_ahead
from feedline.feed.files.atomic import atomic_file
from feedline.feed.open_corpus import What, open_corpus
from feedline.feed.progress_bar import Progress, Report, showing
from feedline.feed.protocol import CHUNK_MEMORY, Deserializer, chunk_starts, is_sized, verified, whole_number
from feedline.feed.quarantine import ListedError, line_of

_PIECE_BYTES = 4 << 20
SHOWN = 10


class ValidationSummary(NamedTuple):
    """The result of a validation.

    Attributes:
        sequences: number of sequences in the corpus.
        samples: number of samples, as the minibatch budget counts them.
        bytes: stored bytes read.
        damaged: number of unreadable sequences.
        errors: errors of the first of them, at most ten.
    """

    sequences: int
    samples: int
    bytes: int
    damaged: int
    errors: tuple[DataError, ...]


def validate(
    source: Deserializer | What,
    *,
    quarantine: str | Path | None = None,
    streams: Mapping[str, Any] | None = None,
    jobs: int = 1,
    progress: Progress = None,
    memory: int = CHUNK_MEMORY,
) -> ValidationSummary:
    """Read every sequence of a corpus once, with all checksums and entries checked.

    Args:
        source: a deserializer, or a path as for `open_corpus`.
        quarantine: JSON-lines file to write with a line for each unreadable sequence, as ``on_error="skip"`` does. It
            appears at the end, and only if there is one. An older list is replaced, maybe by an empty one. ``skip=``
            takes it. None: no file.
        streams: with a path: its streams, see `open_corpus`.
        jobs: number of threads that read. Each holds one chunk.
        progress: called as ``progress(done, total)`` in stored bytes after each chunk. True: shown on stderr, as a bar
            or, where it is no terminal, in lines.
        memory: bytes, as for `open_corpus`.

    Raises:
        DataError: the corpus cannot be opened, or the quarantine file not written, which is checked before reading.
        ValueError: the corpus does not know its sizes before it is read.
    """
    jobs = whole_number("jobs", jobs, 1)
    if quarantine is not None:
        _check_place(Path(quarantine))  # before hours of reading
    with contextlib.ExitStack() as stack:
        if isinstance(source, Deserializer):
            if streams is not None:
                raise ValueError(
                    "expected streams= only with a path, got it with a deserializer, which declares its own"
                )
            corpus = source
        else:
            corpus = stack.enter_context(contextlib.closing(open_corpus(source, streams=streams, memory=memory)))
        if not is_sized(corpus):
            raise ValueError(f"expected a corpus that knows its sizes before reading, got {corpus.name}")
        checking = verified(corpus)
        if checking is not corpus:
            stack.enter_context(contextlib.closing(checking))
        damaged = 0
        errors: list[DataError] = []
        lines: list[str] = []
        report = stack.enter_context(showing(progress, "validating"))
        for sequence, error in _find_damaged(checking, jobs, report):
            damaged += 1
            if len(errors) < SHOWN:
                errors.append(error)
            if quarantine is not None:
                lines.append(line_of(sequence, error))
        infos = corpus.chunks()
    if quarantine is not None and (lines or Path(quarantine).exists()):
        try:
            with atomic_file(Path(quarantine)) as file:
                file.writelines(f"{line}\n".encode() for line in lines)
        except OSError as error:
            raise DataError(f"cannot list damaged sequences: {error.strerror}", path=str(quarantine)) from error
    return ValidationSummary(
        sequences=sum(info.sequences for info in infos),
        samples=sum(info.samples for info in infos),
        bytes=sum(info.bytes for info in infos),
        damaged=damaged,
        errors=tuple(errors),
    )


def _check_place(quarantine: Path) -> None:
    if quarantine.is_dir():
        raise DataError("expected a path for the list of damaged sequences, got a folder", path=str(quarantine))
    if not os.access(quarantine.parent, os.W_OK | os.X_OK):
        raise DataError(
            "expected a folder that can be written to, for the list of damaged sequences",
            path=str(quarantine),
            hint="create the folder, or choose another one",
        )


def _find_damaged(corpus: Deserializer, jobs: int, progress: Report | None) -> Iterator[tuple[int, DataError]]:
    """Yield the unreadable sequences, in order."""
    sizes, starts = [info.bytes for info in corpus.chunks()], chunk_starts(corpus)

    def check(number: int) -> dict[int, DataError]:
        try:
            return _errors(corpus.read(number))
        except DataError as error:
            return dict.fromkeys(range(int(starts[number + 1] - starts[number])), error)

    done, total = 0, sum(sizes)
    with contextlib.closing(read_ahead(check, range(len(sizes)), jobs)) as checking:
        for number, errors in enumerate(checking):
            for i, error in sorted(errors.items()):
                if not isinstance(error, ListedError):
                    sequence = int(starts[number]) + i
                    yield sequence, error.located(path=corpus.name, sequence=sequence)
            done += sizes[number]
            if progress is not None:
                progress(done, total)


def _errors(chunk: Chunk) -> dict[int, DataError]:
    errors: dict[int, DataError] = {}
    first = 0
    for piece in chunk.pieces(_PIECE_BYTES):  # copying checks the entries
        errors.update((first + i, error) for i, error in piece.errors.items())
        first += piece.num_sequences
    return errors
