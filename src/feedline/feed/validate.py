"""Read everything once, to find damaged sequences."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from feedline.data import Chunk
from feedline.errors import DataError
from feedline.feed.conversion.read_ahead import read_ahead
from feedline.feed.files.atomic import atomic_file
from feedline.feed.open_corpus import What, open_corpus
from feedline.feed.progress_bar import Progress, Report, showing
from feedline.feed.protocol import (
    CHUNK_MEMORY,
    ChunkInfo,
    Deserializer,
    chunk_starts,
    is_sized,
    num_chunks,
    verified,
    whole_number,
)
from feedline.feed.quarantine import ListedError, line_of
from feedline.feed.timeline.unsized import INDEX_BITS

_PIECE_BYTES = 4 << 20
SHOWN = 10


class ValidationSummary(NamedTuple):
    """The result of a validation.

    Attributes:
        sequences: number of sequences in the corpus.
        samples: number of samples, as the minibatch budget counts them.
        bytes: stored bytes read. 0 for texts that are tokenized.
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
            takes it, except for rows and tokens, whose documents it lists. None: no file.
        streams: with a path: its streams, see `open_corpus`.
        jobs: number of threads that read. Each holds one chunk.
        progress: called as ``progress(done, total)`` in stored bytes after each chunk. True: shown on stderr, as a bar
            or, where it is no terminal, in lines.
        memory: bytes, as for `open_corpus`.

    Raises:
        DataError: the corpus cannot be opened, or the quarantine file not written, which is checked before reading.
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
        checking = verified(corpus)
        if checking is not corpus:
            stack.enter_context(contextlib.closing(checking))
        damaged = 0
        errors: list[DataError] = []
        lines: dict[str, None] = {}  # a document may be in several rows
        infos: list[ChunkInfo] = []
        report = stack.enter_context(showing(progress, "validating"))
        for info, unreadable in _chunk_by_chunk(checking, jobs, report):
            infos.append(info)
            damaged += len(unreadable)
            errors += unreadable.values()
            del errors[SHOWN:]
            if quarantine is not None:
                lines |= dict.fromkeys(line_of(sequence, error) for sequence, error in unreadable.items())
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


def _chunk_by_chunk(
    corpus: Deserializer, jobs: int, progress: Report | None
) -> Iterator[tuple[ChunkInfo, dict[int, DataError]]]:
    """Yield the sizes of each chunk and the errors of its unreadable sequences, by ordinal."""
    count = num_chunks(corpus)
    known = corpus.chunks() if is_sized(corpus) else None
    sizes = [1] * count if known is None else [info.bytes for info in known]
    starts = np.arange(count) << INDEX_BITS if known is None else chunk_starts(corpus)

    def check(number: int) -> tuple[ChunkInfo, dict[int, DataError]]:
        try:
            chunk = corpus.read(number)
        except DataError as error:
            if known is None:
                raise  # nothing is known of its sequences
            return known[number], dict.fromkeys(range(known[number].sequences), error)
        lengths = chunk.lengths
        samples = chunk.num_sequences if lengths is None else int(lengths.sum())
        return ChunkInfo(chunk.num_sequences, samples, 0) if known is None else known[number], _errors(chunk)

    done, total = 0, sum(sizes)
    with contextlib.closing(read_ahead(check, range(count), jobs)) as checking:
        for number, (info, errors) in enumerate(checking):
            located = {}
            for i, error in sorted(errors.items()):
                if not isinstance(error, ListedError):
                    sequence = int(starts[number]) + i
                    located[sequence] = error.located(path=corpus.name, sequence=sequence)
            yield info, located
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
