"""The minibatch source: one order, one clock, resumed from a few numbers.

Joins the parts: a corpus (`formats`), its order (`timeline`), the rule that cuts it (`packing`), chunks in memory
(`prefetch`) and the copy out of them (`assembly`). It guarantees the laws in tests/laws. What it costs: O(chunks) to
open, a window of chunks plus the read-ahead budget in memory, one native call a minibatch.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.data import Minibatch, Position, Schema, Span, Value
from feedline.errors import DataError, StateError
from feedline.feed import transforms as transforming
from feedline.feed.ahead import Ahead
from feedline.feed.assembly import ChunkSet
from feedline.feed.formats.join import Join
from feedline.feed.formats.pieces import joined
from feedline.feed.packing import lanes
from feedline.feed.packing.axis import Axis, Cursor, Part
from feedline.feed.packing.lanes import Lanes
from feedline.feed.packing.local import Local
from feedline.feed.packing.packer import Packer, Plan
from feedline.feed.packing.runs import Content, Run, cut
from feedline.feed.packing.whole import Whole
from feedline.feed.partition import Partition
from feedline.feed.plan import PlannedMinibatch, planned
from feedline.feed.prefetch import BufferedReader, MappedReader, Stats, errors_among
from feedline.feed.protocol import Deserializer, upto
from feedline.feed.quarantine import Quarantine
from feedline.feed.timeline import ORDERS, ChunkTable, Segment, Timeline, UnsizedOrder, Window, WindowPlan
from feedline.feed.timeline.plan import DEFAULT_WINDOW_BYTES

STATE_VERSION = 1
# Values of the readable sequences, their ordinals, and which those are of the sequences asked for (None: all).
Gathered = tuple[dict[str, Value], NDArray[np.int64], NDArray[np.bool_] | None]
DEFAULT_MINIBATCH_SIZE = 256
DEFAULT_READ_AHEAD = 64 << 20


class MinibatchSource:
    """Minibatches of whole sequences from a corpus, in an order that depends on the seed alone.

    Not thread-safe: one thread at a time may use a source. Forked children may use their copy.

    Args:
        corpus: a `Deserializer`; several of them are joined by key, see `Join`.
        seed: of the order and of random transforms; 0 <= seed < 2**64.
        shuffle: True: all data as one window where reading is free (arrays, mapped stores), windows of 256 MiB
            stored bytes elsewhere. A `Window`: that much. False: the order of the corpus.
        partition: (index, count), the share of each minibatch that this reader takes. None: the rank and world size of
            torch.distributed if it is initialised at the first read, else (0, 1).
        max_sweeps, max_samples: where the source ends, counted from the start of the axis, not from a restore, and
            checked before each sequence (the last may overshoot).
        on_error: ``"raise"``, or ``"skip"``: an unreadable sequence keeps its place on the axis, is left out of the
            minibatch and listed in the quarantine file.
        quarantine: JSON-lines file for skipped sequences; None: ``quarantine-rank<i>.jsonl`` in the working directory,
            written when the first one is met.
        max_errors: with ``on_error="skip"``, the number of skipped sequences of this rank after which to raise;
            None: no limit.
        order: ``"feedline"``, or ``"cntk"`` for the order of CNTK 2.7, bit for bit.
        filling: ``"global"``: all ranks plan the same global minibatch and take their parts of it. ``"cntk"``: each
            rank fills its share of the size with sequences it owns, as CNTK 2.7 does; then positions and states
            differ by rank, ranks may end at different times, and `Minibatch.global_samples` counts what was passed
            on the axis.
        truncation_length: for truncated BPTT: cut sequences into pieces of at most so many samples, delivered in
            ``max(1, size // truncation_length)`` lanes (see `Minibatch.lanes`). All streams of a sequence must
            have one length. Positions then name the next sequence to enter a lane, and count the samples that
            have entered one; the state carries what is left in the lanes. `seek` empties them.
        transforms: `Map` objects, or plain functions of a sequence.
        frame_mode: every sequence must have exactly one sample; a longer one is a DataError.
        threads: chunks read at a time.
        read_ahead: bytes of decoded chunks to read ahead of the window in use, and of minibatches to copy ahead of
            need where they are large; 0: none.

    Attributes:
        schema: the streams delivered, after transforms.
        corpus: the deserializer.

    Raises:
        DataError: the corpus is empty.
        ValueError: arguments that contradict each other.
    """

    def __init__(
        self,
        corpus: Deserializer | Sequence[Deserializer],
        *,
        seed: int = 0,
        shuffle: bool | Window = True,
        partition: tuple[int, int] | None = None,
        max_sweeps: int | None = None,
        max_samples: int | None = None,
        on_error: str = "raise",
        quarantine: str | Path | None = None,
        max_errors: int | None = None,
        order: str = "feedline",
        filling: str = "global",
        truncation_length: int | None = None,
        transforms: Sequence[transforming.Map | Callable[..., Mapping[str, Any]]] = (),
        frame_mode: bool = False,
        threads: int = 2,
        read_ahead: int = DEFAULT_READ_AHEAD,
    ) -> None:
        if isinstance(corpus, (list, tuple)):
            corpus = corpus[0] if len(corpus) == 1 else Join(*corpus)
        if not isinstance(corpus, Deserializer):
            raise TypeError(f"expected a feedline Deserializer, got {type(corpus).__name__}; see docs/formats")
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**64:
            raise ValueError(f"expected 0 <= seed < 2**64, got {seed!r}")
        if order not in ORDERS:
            raise ValueError(f"expected order to be one of {', '.join(map(repr, ORDERS))}, got {order!r}")
        if filling not in ("global", "cntk"):
            raise ValueError(f'expected filling to be "global" or "cntk", got {filling!r}')
        if truncation_length is not None and (truncation_length < 1 or frame_mode):
            wrong = "frame_mode=True" if frame_mode else str(truncation_length)
            raise ValueError(f"expected truncation_length >= 1 and no frame_mode with it, got {wrong}")
        if on_error not in ("raise", "skip"):
            raise ValueError(f'expected on_error to be "raise" or "skip", got {on_error!r}')
        if not isinstance(shuffle, (bool, Window)):
            raise TypeError(f"expected shuffle to be True, False or a fl.Window, got {shuffle!r}")
        for name, limit, least in (
            ("max_sweeps", max_sweeps, 0),
            ("max_samples", max_samples, 1),
            ("max_errors", max_errors, 0),
        ):
            if limit is not None and limit < least:
                raise ValueError(f"expected {name} >= {least} or None, got {limit}")
        if threads < 1 or read_ahead < 0:
            raise ValueError(f"expected threads >= 1 and read_ahead >= 0, got {threads} and {read_ahead}")
        self.corpus = corpus
        self._seed = int(seed)
        self._shuffle = shuffle
        self._partition = Partition(partition)
        self._frame_mode = frame_mode
        self._filling, self._truncated = filling, truncation_length is not None
        self._packer: Packer = Local() if filling == "cntk" else Whole()
        if truncation_length is not None:
            self._packer = Lanes(truncation_length, local=filling == "cntk")
        self._transforms = [t if isinstance(t, transforming.Map) else transforming.Map(t) for t in transforms]
        self.schema: Schema = corpus.schema
        for transform in self._transforms:
            self.schema = transform.schema(self.schema)
        self._stats = Stats()
        self._chunks = ChunkSet(corpus.schema)
        self._timeline, self._reader = self._open(order, threads, read_ahead)
        self._axis = Axis(self._timeline, self._lengths, max_sweeps, max_samples)
        # Lanes are cut from whole runs that are read once, and planning windows of unknown size reads them.
        looks = truncation_length is None and corpus.sized
        self._ahead = Ahead(self._packer, self._axis, self._chunks, self._reader, read_ahead if looks else 0)
        self._quarantine = None if on_error == "raise" else Quarantine(quarantine, max_errors)
        self._position = Position(0, 0, 0, 0, 0 if isinstance(self._timeline, UnsizedOrder) else None)
        self._fingerprint: int | None = 0
        self._cursor: Cursor | None = None
        self._lanes: list[list[list[int]]] = []  # as they stand in a state, while there is no cursor
        self._window_in_use: WindowPlan | None = None
        self._digest: str | None = None
        self._closed = False

    def _open(self, order: str, threads: int, read_ahead: int) -> tuple[Timeline, MappedReader | BufferedReader]:
        corpus, shuffled = self.corpus, self._shuffle is not False
        window = self._shuffle if isinstance(self._shuffle, Window) else None
        reader: MappedReader | BufferedReader
        if not corpus.sized:
            if order != "feedline":
                raise ValueError(f'expected order="feedline" for a corpus without chunk_info, got {order!r}')
            if corpus.num_chunks() < 1:
                raise DataError(f"expected at least one chunk in {corpus.name}, got none")
            reader = BufferedReader(corpus, self._chunks, self._stats, corpus.num_chunks(), None, threads, read_ahead)
            return UnsizedOrder(corpus.num_chunks(), self._seed, shuffled, window, reader.counts), reader
        table = ChunkTable(corpus.chunks())
        if table.total_sequences == 0:
            raise DataError(f"expected at least one sequence in {corpus.name}, got none")
        if corpus.random_access:
            reader = MappedReader(corpus, self._chunks, self._stats)
        else:
            reader = BufferedReader(corpus, self._chunks, self._stats, len(table), table.bytes, threads, read_ahead)
            if window is None and order == "feedline":
                window = Window(bytes=DEFAULT_WINDOW_BYTES) if shuffled else Window(chunks=1)
        return ORDERS[order](table, self._seed, shuffled, window), reader

    # ---- reading ----------------------------------------------------------------------------------

    def next_minibatch(self, size: int, partition: tuple[int, int] | None = None) -> Minibatch:
        """The next minibatch, or this rank's part of it.

        Args:
            size: budget of the global minibatch in samples: as many whole sequences as fit, or one longer one; with
                ``truncation_length`` the pieces of as many lanes as fit, or of one.
            partition: (index, count) for this call alone, instead of the source's own.

        Returns:
            A true `Minibatch`, perhaps with an empty part; a false one after the end, every time.

        Raises:
            DataError: the data is damaged (and ``on_error="raise"``). The position stays where it was.
            StateError: the default partition has changed since the first read, or the lanes of a loaded state are
                damaged.
            ValueError: size below 1, or with ``filling="cntk"`` fewer lanes than ranks.
        """
        if size < 1:
            raise ValueError(f"expected a minibatch size of at least 1 sample, got {size}")
        index, count = self._partition.resolve(partition)
        cursor = self._cursor
        if cursor is None:
            cursor = self._start()
            if cursor is None:
                return Minibatch.end(self.schema, self._position)
        plan = self._ahead.plan(cursor, size, index, count)
        if plan.ended:
            self._cursor = plan.after
            return Minibatch.end(self.schema, self.position)
        minibatch = self._assemble(plan) if plan.pieces is None else self._assemble_pieces(plan)
        self._advance(plan.after)
        self._ahead.refill(plan.after, size, index, count, minibatch.num_sequences)
        return minibatch

    def minibatches(
        self,
        size: int = DEFAULT_MINIBATCH_SIZE,
        until: Span | None = None,
        partition: tuple[int, int] | None = None,
    ) -> Iterator[Minibatch]:
        """Minibatches from the current position to the end of the source.

        Args:
            size: see `next_minibatch`.
            until: stop after the minibatch that completes this span, counted from here: ``fl.sweeps(1)`` stops at the
                next minibatch that ends a sweep.
            partition: see `next_minibatch`.
        """
        return upto(lambda: self.next_minibatch(size, partition), until)

    def __iter__(self) -> Iterator[Minibatch]:
        """Minibatches of 256 samples to the end of the source."""
        return self.minibatches()

    def plan(
        self,
        size: int = DEFAULT_MINIBATCH_SIZE,
        start: Position | None = None,
        partition: tuple[int, int] | None = None,
    ) -> Iterator[PlannedMinibatch]:
        """Which sequences are in the minibatches to come; reads no data and leaves the source where it is.

        Args:
            size: see `next_minibatch`.
            start: where to begin; None: at the current position.
            partition: see `next_minibatch`.

        Returns:
            An iterator over the minibatches up to the end of the source, without end if that is infinite.
            Microseconds each.

        Raises:
            ValueError: the corpus tells the sizes of its chunks only when they are read, or size below 1.
            IndexError: no such position.
        """
        if isinstance(self._timeline, UnsizedOrder):
            raise ValueError(
                "expected a corpus that tells the sizes of its chunks before they are read, got one without "
                "chunk_info: which sequences follow is known only once their window is read; implement chunk_info, "
                "or convert the corpus to a store"
            )
        if size < 1:
            raise ValueError(f"expected a minibatch size of at least 1 sample, got {size}")
        index, count = self._partition.peek(partition)
        if start is not None:
            self._check_place(start)
            cursor = self._cursor_at(start, None, [])
        else:
            cursor = self._cursor or self._cursor_at(self._position, None, self._lanes)
        return iter(()) if cursor is None else planned(self._axis, self._packer, cursor, size, index, count)

    def _start(self) -> Cursor | None:
        if self._closed:
            raise ValueError("this source is closed")
        self._cursor = self._cursor_at(self._position, self._fingerprint, self._lanes)
        return self._cursor

    def _cursor_at(self, p: Position, fingerprint: int | None, unfinished: list[list[list[int]]]) -> Cursor | None:
        """The cursor at a position; None where the axis has ended before it."""
        axis = self._axis
        if axis.max_sweeps is not None and p.sweep >= axis.max_sweeps and not unfinished:
            return None
        cursor = axis.at(p, fingerprint)
        if unfinished:
            cursor = cursor._replace(lanes=lanes.from_json(axis, cursor, unfinished))
        return cursor

    def _advance(self, cursor: Cursor) -> None:
        self._cursor = cursor
        plan = cursor.segment.plan
        if plan is not self._window_in_use:
            self._window_in_use = plan
            self._reader.keep([plan], self._timeline.chunks_after(plan, self._axis.max_sweeps))

    def _lengths(self, segment: Segment) -> NDArray[np.int64] | None:
        if isinstance(self._timeline, UnsizedOrder):
            assert isinstance(self._reader, BufferedReader)
            chunks = self._reader.fetch(segment.plan.chunks)
            tables = [chunk.lengths for chunk in chunks]
            if all(table is None for table in tables):
                return None
            ends = [np.ones(c.num_sequences, np.int64) if t is None else t for c, t in zip(chunks, tables, strict=True)]
            flat: NDArray[np.int64] = np.concatenate(ends)[segment.plan.starts[segment.place] + segment.index]
            return flat
        lengths = self.corpus.lengths(segment.ordinals)
        if self._frame_mode and lengths is not None and (lengths != 1).any():
            bad = int(np.flatnonzero(lengths != 1)[0])
            raise DataError(
                f"expected sequences of one sample in frame mode, got one of {int(lengths[bad])} samples",
                path=self.corpus.name,
                sequence=int(segment.ordinals[bad]),
                hint="leave out frame_mode=True to read whole sequences",
            )
        return lengths

    # ---- assembling -------------------------------------------------------------------------------

    def _assemble(self, plan: Plan) -> Minibatch:
        parts = plan.parts
        if not parts:
            # An empty part still says which streams have several samples a sequence, and only chunks tell.
            self._reader.prepare(plan.start.segment)
        values, ids, good = self._gather(parts)
        if good is not None:
            samples = int(_joined(parts, _segment_lengths, np.int64)[good].sum())
        elif len(parts) == 1:
            samples = parts[0].samples
        else:
            samples = sum(part.samples for part in parts)
        self._count(len(ids), samples)
        position = self._axis.position(plan.start, self._position.label_samples)
        return Minibatch(self.schema, values, ids, samples, plan.samples, position, plan.sweep_end)

    def _assemble_pieces(self, plan: Plan) -> Minibatch:
        assert plan.pieces is not None
        entered, window = set(plan.entered), plan.start.segment.plan
        runs = dict.fromkeys((*plan.entered, *(piece.run for piece in plan.pieces)))
        unread = [run for run in runs if run.content is None]
        now = [run for run in unread if run in entered or run.segment.plan is window]
        if now:
            self._keep(now, *self._gather(tuple(Part(*run.place) for run in now)))
        # The others entered before a restart, or in the lane of another rank.
        if len(now) < len(unread):
            old = [run for run in unread if run not in entered and run.segment.plan is not window]
            self._keep(old, *self._gather_again(old))
        values, ids, numbers, begins, samples = cut(self.schema, plan.pieces)
        self._count(int(begins.sum()), samples)
        position = self._axis.position(plan.start, self._position.label_samples)
        return Minibatch(
            self.schema, values, ids, samples, plan.samples, position, plan.sweep_end, lanes=numbers, begins=begins
        )

    def _count(self, sequences: int, samples: int) -> None:
        stats = self._stats
        stats.minibatches += 1
        stats.sequences += sequences
        stats.samples += samples

    def _gather(self, parts: tuple[Part, ...]) -> Gathered:
        """As `_copy`; a window that is no longer needed is let go before the next one is read."""
        for n, part in enumerate(parts):
            plan = part.segment.plan
            if not self._reader.holds(plan):
                if n == 0:
                    self._reader.keep([plan], None)
                else:
                    return _both(self._copy(parts[:n]), self._gather(parts[n:]))
        return self._copy(parts)

    def _copy(self, parts: tuple[Part, ...]) -> Gathered:
        """The readable sequences of ``parts``, copied out of their chunks and transformed."""
        reader = self._reader
        for part in parts:
            reader.prepare(part.segment)
        if len(parts) == 1:
            segment, a, b = parts[0]
            assert segment.slots is not None
            slots, index, ids = segment.slots[a:b], segment.index[a:b], segment.ordinals[a:b]
        else:
            slots = _joined(parts, lambda s: s.slots, np.uint32)
            index = _joined(parts, lambda s: s.index, np.int64)
            ids = _joined(parts, lambda s: s.ordinals, np.int64)
        good = None
        if reader.has_errors:
            good = self._pass_over(errors_among(reader, slots, index), ids)
            if good is not None:
                slots, index, ids = slots[good], index[good], ids[good]
        values = self._ahead.gather(parts, slots, index)
        if self._transforms:
            sweeps = _joined(parts, lambda s: np.full(s.n, s.plan.sweep), np.int64)
            sweeps = sweeps if good is None else sweeps[good]
            values = transforming.apply(self._transforms, self.corpus.schema, values, self._seed, sweeps, ids)
        return values, ids, good

    def _gather_again(self, runs: Sequence[Run]) -> Gathered:
        """As `_gather`, for sequences whose window may be gone: reads their chunks alone, where these are known."""
        if isinstance(self._reader, MappedReader) or not self.corpus.sized:
            return self._copy(tuple(Part(run.segment, run.a, run.b) for run in runs))
        ids = np.concatenate([run.segment.ordinals[run.a : run.b] for run in runs])
        chunk = self.corpus.select(ids)
        good = self._pass_over(chunk.errors, ids)
        if good is not None:
            chunk, ids = chunk.take(np.flatnonzero(good)), ids[good]
        values = chunk.values
        if self._transforms:
            sweeps = np.concatenate([np.full(run.b - run.a, run.segment.plan.sweep) for run in runs])
            sweeps = sweeps if good is None else sweeps[good]
            values = transforming.apply(self._transforms, self.corpus.schema, values, self._seed, sweeps, ids)
        return values, ids, good

    def _keep(
        self, runs: Sequence[Run], values: dict[str, Value], ids: NDArray[np.int64], good: NDArray[np.bool_] | None
    ) -> None:
        """Keep what was read for ``runs`` with them, if each sequence has one length, that which the lanes count."""
        lengths = np.array([b - a for run in runs for a, b in itertools.pairwise(run.ends)], np.int64)
        planned = lengths if good is None else lengths[good]
        uneven: dict[int, DataError] = {}
        for name, value in values.items():
            for i in np.flatnonzero(value.lengths != planned).tolist():
                uneven.setdefault(
                    i,
                    DataError(
                        f"expected {planned[i]} samples in every stream of a sequence that is to be truncated, "
                        f"got {value.lengths[i]}",
                        path=self.corpus.name,
                        sequence=int(ids[i]),
                        stream=name,
                        hint="leave out truncation_length to read sequences whole",
                    ),
                )
        even = self._pass_over(uneven, ids)
        if even is not None:
            values = {name: value.select(np.flatnonzero(even)) for name, value in values.items()}
            good = np.ones(len(lengths), np.bool_) if good is None else good
            good[good] = even
        rows = [0, *np.cumsum(lengths if good is None else lengths * good).tolist()]
        at = 0
        for run in runs:
            run.content = Content(values, rows[at : at + run.b - run.a + 1])
            at += run.b - run.a

    def _pass_over(self, errors: Mapping[int, DataError], ids: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """Mask of readable sequences, or None if all are; raises or records the others."""
        if not errors:
            return None
        good = np.ones(len(ids), np.bool_)
        for i, error in sorted(errors.items()):
            if self._quarantine is None:
                raise error
            self._quarantine.add(int(ids[i]), error, self._partition.resolve(None)[0])
            self._stats.skipped += 1
            good[i] = False
        return good

    # ---- position and state -----------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """What follows the last minibatch delivered; reading ahead does not count."""
        if self._cursor is None:
            return self._position
        return self._axis.position(self._cursor, self._position.label_samples)

    def count_label_samples(self, count: int) -> None:
        """Add label samples, summed over all ranks, to the clock; trainers call it once an update."""
        self._position = self.position._replace(label_samples=self._position.label_samples + count)

    def seek(self, position: Position | None = None, *, samples: int | None = None) -> None:
        """Go to a place on the axis, forwards or backwards; reads no data where chunk sizes are known.

        Args:
            position: the place. Its counters are taken as given.
            samples: instead: the first sequence that starts at or after so many samples from the start of the axis.

        The fingerprint is unknown afterwards (None in the state).

        Raises:
            IndexError: no such place.
            ValueError: not exactly one of the two is given.
        """
        if (position is None) == (samples is None):
            raise ValueError("expected either a position or samples=, not both")
        if position is None:
            assert samples is not None
            if isinstance(self._timeline, UnsizedOrder):
                raise ValueError("a corpus without chunk_info cannot be searched by samples: that would read it")
            if samples < 0:
                raise IndexError(f"expected samples >= 0, got {samples}")
            position = self._axis.position(self._axis.seek_samples(samples), self._position.label_samples)
        else:
            self._check_place(position)
        self._jump(position, None, [])

    def _check_place(self, p: Position) -> None:
        unsized = isinstance(self._timeline, UnsizedOrder)
        if p.sweep < 0 or p.samples < 0 or p.label_samples < 0 or (p.window is None) is unsized:
            raise IndexError(f"expected a position of this source, got {p!r}")
        if isinstance(self._timeline, UnsizedOrder) and not (
            p.ordinal >= 0 and p.window is not None and 0 <= p.window < self._timeline.windows
        ):
            raise IndexError(f"expected 0 <= window < {self._timeline.windows} in a sweep, got {p!r}")
        if not unsized and not 0 <= p.ordinal < self._timeline.table.total_sequences:
            raise IndexError(
                f"expected 0 <= sequence < {self._timeline.table.total_sequences} in a sweep, got {p.ordinal}"
            )

    def _jump(self, position: Position, fingerprint: int | None, unfinished: list[list[list[int]]]) -> None:
        self._ahead.drop()
        self._reader.reset()
        self._reader.keep([], None)
        self._position, self._fingerprint, self._cursor, self._lanes = position, fingerprint, None, unfinished
        self._window_in_use = None

    def state_dict(self) -> dict[str, Any]:
        """Where the source stands, in JSON types: a few numbers, the same on every rank.

        Load it under any minibatch size, partition, thread count or world size. With ``filling="cntk"`` it is the
        state of this rank alone, and exact under the same world size only. With ``truncation_length``, ``lanes``
        lists what has entered each lane and is not delivered: ``[sweep, sequence, count, done]`` for ``count``
        consecutive sequences, ``done`` samples of the first of which were delivered (a fifth number is the window,
        for corpora whose sizes are unknown before reading). It grows with the lanes: tens of bytes each.
        """
        p = self.position
        fingerprint = self._fingerprint if self._cursor is None else self._axis.fingerprint(self._cursor)
        place: dict[str, Any] = {"sweep": p.sweep, "sequence": p.ordinal}
        if p.window is not None:
            place["window"] = p.window
        state = {
            "feedline": STATE_VERSION,
            **self._identity(),
            **place,
            "samples": p.samples,
            "label_samples": p.label_samples,
            "fingerprint": None if fingerprint is None else f"{fingerprint:016x}",
        }
        if self._truncated:
            state["lanes"] = self._lanes_to_json()
        return state

    def _lanes_to_json(self) -> list[list[list[int]]]:
        return self._lanes if self._cursor is None else lanes.to_json(self._timeline, self._cursor.lanes)

    def _identity(self) -> dict[str, Any]:
        """What must be equal for a state to fit."""
        window = self._timeline.window
        shuffle: Any = False
        if self._timeline.shuffle:
            shuffle = "all" if window is None else window.to_json()
        return {
            "order": self._timeline.name,
            "seed": f"{self._seed:016x}",
            "shuffle": shuffle,
            "filling": self._filling,
            "schema": self.corpus.schema.digest,
            "corpus": self._corpus_digest(),
        }

    def _corpus_digest(self) -> str:
        if self._digest is None:
            h = hashlib.blake2b(self.corpus.digest().encode(), digest_size=16)
            table = self._timeline.table
            for column in (table.sequences, table.samples, table.bytes):
                h.update(np.ascontiguousarray(column, "<i8").tobytes())
            self._digest = h.hexdigest()
        return self._digest

    def load_state_dict(self, state: Mapping[str, Any], *, verify: bool = False) -> None:
        """Go to where ``state`` was taken; reads no data, whatever came before.

        Args:
            state: from `state_dict`, of this source or another over the same data, seed and window.
            verify: recompute the order fingerprint from the start of the axis and compare (reads no data, costs
                nanoseconds a sequence passed).

        Raises:
            StateError: the state does not fit; the source stays where it was.
        """
        if not isinstance(state, Mapping) or "feedline" not in state:
            raise StateError(f"expected a state of a feedline source, got {type(state).__name__} {_short(state)}")
        if state["feedline"] != STATE_VERSION:
            raise StateError(
                "this state has another format version",
                saved={"feedline": state["feedline"]},
                current={"feedline": STATE_VERSION},
            )
        identity = self._identity()
        saved = {key: state.get(key) for key in identity}
        differing = [key for key in identity if saved[key] != identity[key]]
        if differing:
            raise StateError(
                "this state was taken from other data, another order or other settings",
                saved={key: saved[key] for key in differing},
                current={key: identity[key] for key in differing},
            )
        try:
            text = state["fingerprint"]
            fingerprint = None if text is None else int(text, 16)
            sweep, ordinal, samples, labels = (
                _integer(state[key]) for key in ("sweep", "sequence", "samples", "label_samples")
            )
            position = Position(sweep, ordinal, samples, labels, state.get("window"))
            self._check_place(position)
            unfinished = lanes.check_json(state.get("lanes", []), position)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise StateError(f"this state is damaged: {error}", saved=dict(state)) from error
        if unfinished and not self._truncated:
            raise StateError(
                "this state holds sequences that were delivered in part: load it with truncation_length",
                saved={"lanes": unfinished},
                current={"lanes": None},
            )
        if verify:
            self._verify(position, fingerprint)
        self._jump(position, fingerprint, unfinished)

    def _verify(self, position: Position, fingerprint: int | None) -> None:
        if fingerprint is None:
            raise StateError("this state has no fingerprint to verify: it was taken after a bare seek")
        if isinstance(self._timeline, UnsizedOrder):
            raise StateError("a corpus without chunk_info cannot be verified: laying out its order reads it")
        axis = Axis(self._timeline, self._lengths)
        cursor, target = axis.at(Position(), 0), position[:2]
        while True:
            segment = cursor.segment
            plan, stop = segment.plan, segment.start + segment.n
            end = self._timeline.position_of(plan, stop)[:2]
            if end >= target:
                k = segment.n if end == target else position.ordinal - plan.first - segment.start
                cursor = cursor._replace(k=k)
                break
            following = axis.settle(cursor._replace(k=segment.n))
            assert following is not None  # an axis without limits does not end
            cursor = following
        found = {"samples": axis.samples(cursor), "fingerprint": f"{axis.fingerprint(cursor):016x}"}
        saved = {"samples": position.samples, "fingerprint": f"{fingerprint:016x}"}
        if found != saved:
            raise StateError("the order up to this state is not the one it was saved with", saved=saved, current=found)

    # ---- the rest ---------------------------------------------------------------------------------

    @property
    def num_sequences(self) -> int:
        """Sequences a sweep."""
        return self._timeline.table.total_sequences

    @property
    def num_samples(self) -> int:
        """Samples a sweep."""
        return self._timeline.table.total_samples

    @property
    def is_infinite(self) -> bool:
        """Whether neither ``max_sweeps`` nor ``max_samples`` ends it."""
        return self._axis.max_sweeps is None and self._axis.max_samples is None

    def stats(self) -> Stats:
        """What was read, held and delivered so far in this process."""
        return self._stats

    def close(self) -> None:
        """Let chunks, threads and files go; the state can still be taken."""
        self._position, self._fingerprint = (
            self.position,
            (self._fingerprint if self._cursor is None else self._axis.fingerprint(self._cursor)),
        )
        self._corpus_digest()
        self._lanes = self._lanes_to_json()
        self._cursor = None
        self._closed = True
        self._ahead.drop()
        self._reader.close()
        self.corpus.close()

    def __enter__(self) -> MinibatchSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        window = self._timeline.window
        how = "in corpus order"
        if self._timeline.shuffle:
            how = f"shuffled by {window!r}" if window is not None else "shuffled as a whole"
        rows = "\n".join(repr(self.schema).splitlines()[1:])
        return f"MinibatchSource({self.corpus.name}, {how}, seed {self._seed}, at {self.position!r})\n{rows}"


def _segment_lengths(segment: Segment) -> NDArray[np.int64]:
    return np.ones(segment.n, np.int64) if segment.ends is None else np.diff(segment.ends)


def _both(one: Gathered, other: Gathered) -> Gathered:
    """What was gathered in two goes, as if in one."""
    (values, ids, good), (more, more_ids, more_good) = one, other
    if good is not None or more_good is not None:
        masks = [(good, ids), (more_good, more_ids)]
        good = np.concatenate([np.ones(len(i), np.bool_) if g is None else g for g, i in masks])
    together = {name: joined([value, more[name]]) for name, value in values.items()}
    return together, np.concatenate([ids, more_ids]), good


def _joined(parts: tuple[Part, ...], column: Callable[[Segment], Any], dtype: Any) -> NDArray[Any]:
    if not parts:
        return np.empty(0, dtype)
    return np.concatenate([column(part.segment)[part.a : part.b] for part in parts])


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"expected an int, got {value!r}")
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
