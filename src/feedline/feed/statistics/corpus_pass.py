"""One pass over a corpus that summarises its streams."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from feedline import _native
from feedline.data import Chunk, Schema
from feedline.data.chunk import present_samples
from feedline.data.schema import mask_of_stream
from feedline.errors import SchemaError
from feedline.feed.conversion.read_ahead import read_ahead
from feedline.feed.files.paths import PathLike
from feedline.feed.formats.widening import SchemaRule
from feedline.feed.open_corpus import What, open_corpus
from feedline.feed.progress_bar import Progress, showing
from feedline.feed.protocol import Deserializer, Mapped, RandomAccess, can, is_sized, num_chunks, whole_number
from feedline.feed.statistics.stream_statistics import CorpusStatistics, read_json, statistics_of, write_json
from feedline.feed.statistics.stream_summary import StreamSummary, first_threshold
from feedline.feed.statistics.value_counts import Present
from feedline.system import usable_cores

_PIECE_BYTES = 8 << 20  # that stay in a processor's cache
_SAVE_S = 30.0  # between two states of a pass
_CHUNK_BITS = 40  # of the number of a sample, for its place in its chunk

Summaries = dict[str, StreamSummary]


def statistics(
    corpus: Deserializer | What,
    *,
    streams: Collection[str] | None = None,
    save: PathLike | None = None,
    jobs: int | None = None,
    progress: Progress = None,
) -> CorpusStatistics:
    """Read every sequence of a corpus once, and return statistics of its streams.

    The numbers are the same for any number of threads. Counts, limits, means and deviations are those of all samples.
    Percentiles are of a sample of 32,768 numbers, or of all if there are no more. Integers and texts have their most
    frequent values, with exact counts if there are fewer than 65,536 values.

    Args:
        corpus: a deserializer, or a path as for `open_corpus`. By its path, nulls are counted. A deserializer needs
            ``fl.Stream(mask=True)`` for that.
        streams: names of the streams. None: all. A stream ``<name>_present`` of bools is the mask of its stream.
        save: JSON file to write. If it has the statistics of this corpus and these streams already, they are returned.
            A pass that is interrupted leaves ``<save>.partial``, from which the next one goes on. None: no file.
        jobs: number of threads that read. None: one for each processor. Each holds one chunk.
        progress: called as ``progress(done, total)`` in chunks. True: shown on stderr.

    Raises:
        DataError: the corpus cannot be opened, a sequence cannot be read, or a file not be written.
        SchemaError: there is no such stream, or its dtype has no statistics.
    """
    jobs = usable_cores() if jobs is None else whole_number("jobs", jobs, 1)
    with contextlib.ExitStack() as stack:
        if not isinstance(corpus, Deserializer):
            corpus = stack.enter_context(contextlib.closing(open_masked(corpus)))
        done = _Pass(corpus, streams, None if save is None else Path(save))
        return done.run(jobs, progress)


def open_masked(path: What, schema: SchemaRule = "strict") -> Deserializer:
    """Open a corpus with a mask for each stream, if its format takes masks. Raises the errors of `open_corpus`."""
    corpus = open_corpus(path, schema=schema)
    masked = {name: dataclasses.replace(stream, mask=True) for name, stream in corpus.schema.items()}
    try:
        with_masks = open_corpus(path, streams=masked, schema=schema)
    except (SchemaError, ValueError):
        return corpus
    corpus.close()
    return with_masks


class _Pass:
    """A pass over a corpus.

    Args:
        corpus: the corpus.
        names: names of the streams. None: all.
        path: file to write, or None.
    """

    def __init__(self, corpus: Deserializer, names: Collection[str] | None, path: Path | None) -> None:
        schema = corpus.schema
        if isinstance(names, str) or (names is not None and not set(names) <= set(schema)):
            raise SchemaError(f"expected streams as a list of {', '.join(schema)}, got {names!r}")
        masks = {mask_of_stream(schema, name) for name in schema}
        self._names = [name for name in schema if (name in names if names is not None else name not in masks)]
        read = {*self._names, *(mask_of_stream(schema, name) for name in self._names)}
        self._schema = Schema({name: stream for name, stream in schema.items() if name in read})
        self._corpus, self._path, self._digest = corpus, path, corpus.digest()
        self._total, self._sequences, self._chunks = self._empty(), 0, 0
        sized = is_sized(corpus)
        self._threshold = first_threshold(sum(info.samples for info in corpus.chunks()) if sized else None)

    def run(self, jobs: int, progress: Progress) -> CorpusStatistics:
        """Read the chunks that are left."""
        finished = self._finished()
        if finished is not None:
            return finished
        self._resume()
        count = num_chunks(self._corpus)
        saved_s = time.monotonic()
        try:
            with (
                contextlib.closing(read_ahead(self._summarize, range(self._chunks, count), jobs)) as summaries,
                showing(progress, "reading") as report,
            ):
                for sequences, summary in summaries:
                    for name, stream in summary.items():
                        self._total[name].merge(stream)
                    self._sequences += sequences
                    self._chunks += 1
                    if report is not None:
                        report(self._chunks, count)
                    if time.monotonic() - saved_s > _SAVE_S:
                        self._save_state()
                        saved_s = time.monotonic()
        except BaseException:
            self._save_state()
            raise
        streams = {name: statistics_of(summary) for name, summary in self._total.items()}
        result = CorpusStatistics(self._digest, self._sequences, streams)
        if self._path is not None:
            result.save(self._path)
            self._partial.unlink(missing_ok=True)
        return result

    @property
    def _partial(self) -> Path:
        assert self._path is not None
        return self._path.with_name(f"{self._path.name}.partial")

    def _empty(self) -> Summaries:
        return {name: StreamSummary(name, self._schema[name]) for name in self._names}

    def _finished(self) -> CorpusStatistics | None:
        """Return the statistics of the file, if they are of this corpus and these streams."""
        if self._path is None or not self._path.exists():
            return None
        saved = CorpusStatistics.load(self._path)
        return saved if saved.digest == self._digest and list(saved) == self._names else None

    def _identity(self) -> dict[str, Any]:
        return {"digest": self._digest, "schema": self._schema.digest, "streams": self._names}

    def _save_state(self) -> None:
        if self._path is not None:
            state = {name: summary.state() for name, summary in self._total.items()}
            progress = {"chunks": self._chunks, "sequences": self._sequences, "summaries": state}
            write_json(self._partial, {**self._identity(), **progress})

    def _resume(self) -> None:
        """Go on from an interrupted pass over the same corpus."""
        if self._path is None or not self._partial.exists():
            return
        saved = read_json(self._partial)
        if not isinstance(saved, dict) or {name: saved.get(name) for name in self._identity()} != self._identity():
            return
        for name, state in saved["summaries"].items():
            self._total[name].load(state)
        self._chunks, self._sequences = saved["chunks"], saved["sequences"]

    def _summarize(self, number: int) -> tuple[int, Summaries]:
        """Return the number of sequences of a chunk, and summaries of its streams."""
        summaries = self._empty()
        samples = [summary.sample for summary in self._total.values() if summary.sample is not None]
        threshold = min(self._threshold, max((sample.threshold for sample in samples), default=0))
        first, sequences = number << _CHUNK_BITS, 0
        for chunk in self._pieces(number):
            if chunk.errors:
                place, error = min(chunk.errors.items())
                raise error.located(path=self._corpus.name, sequence=self._ordinal(number, sequences + place))
            candidates = functools.cache(functools.partial(_native.sample_rows, first, threshold=threshold))
            for name, summary in summaries.items():
                summary.add(chunk.values[name], self._present(chunk, name), candidates)
            first += max(value.num_samples for value in chunk.values.values())
            sequences += chunk.num_sequences
        return sequences, summaries

    def _pieces(self, number: int) -> Iterator[Chunk]:
        """Yield the sequences of a chunk. Views of files are copied in pieces, which checks them."""
        read = self._corpus.read(number)
        chunk = Chunk(self._schema, {name: read[name] for name in self._schema}, read.errors, seals=read.seals)
        sparse = any(stream.sparse for stream in self._schema.values())
        if sparse or can(self._corpus, RandomAccess) or can(self._corpus, Mapped):
            yield from chunk.pieces(_PIECE_BYTES)
        else:
            yield chunk

    def _present(self, chunk: Chunk, name: str) -> Present:
        present = present_samples(self._schema, chunk.values, name)
        return None if present is None else np.ascontiguousarray(present).view(np.uint8)

    def _ordinal(self, chunk: int, place: int) -> int | None:
        if not is_sized(self._corpus):
            return None
        return sum(info.sequences for info in self._corpus.chunks()[:chunk]) + place
