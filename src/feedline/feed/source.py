"""The minibatch source: one order, one clock, resumed from a few numbers.

Joins the parts: a corpus (`formats`), its order (`timeline`), the rule that cuts it (`packing`), chunks in memory
(`prefetch`) and the copy out of them (`assembly`). It guarantees the laws in tests/laws. What it costs: O(chunks) to
open, a window of chunks and what is read ahead (the next window) in memory, one native call a minibatch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from feedline.data import Minibatch, Position, Schema, Span
from feedline.errors import StateError
from feedline.feed import lengths, states
from feedline.feed.assembly import ChunkSet
from feedline.feed.copy_ahead import CopyAhead
from feedline.feed.delivery import Delivery
from feedline.feed.device import mover
from feedline.feed.formats.join import Join
from feedline.feed.one_thread import refusal
from feedline.feed.opening import opened
from feedline.feed.packing import lanes
from feedline.feed.packing.axis import Axis, Cursor
from feedline.feed.packing.lanes import Lanes
from feedline.feed.packing.local import Local
from feedline.feed.packing.packer import Packer
from feedline.feed.packing.whole import Whole
from feedline.feed.partition import Partition, on_this_machine
from feedline.feed.plan import PlannedMinibatch, planned
from feedline.feed.prefetch import LEAST_AHEAD, Stats, Upcoming
from feedline.feed.protocol import Deserializer, upto, whole_number
from feedline.feed.quarantine import Quarantine
from feedline.feed.timeline import ORDERS, ChunkTable, UnsizedOrder, Window, WindowPlan
from feedline.feed.transforms import Map

DEFAULT_MINIBATCH_SIZE = 256


class MinibatchSource:
    """Minibatches of whole sequences from a corpus, in an order that depends on the seed alone.

    One thread at a time may use a source; a second one is refused. `position` and `state_dict` may be asked for from
    any thread, also while a minibatch is made. Forked children may use their copy.

    Args:
        corpus: a `Deserializer`; several of them are joined by key, see `Join`.
        seed: of the order and of random transforms; 0 <= seed < 2**64.
        shuffle: True: all data as one window where that is cheap (arrays in memory; stores and mapped arrays of up to
            4 GiB), else windows of 256 MiB stored bytes. A `Window`: that much. ``"whole"``: all data as one window,
            whatever it costs (corpora with random access). False: the order of the corpus.
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
        order: ``"feedline"``: the best we know. ``"feedline-1"``, ``"feedline-2"``: that version of it, to go on from
            states that name it. ``"cntk"``: the order of CNTK 2.7, bit for bit.
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
            need where they are large; 0: none. None: the whole next window, at least 64 MiB; less than a window
            makes the first minibatch of each wait for the rest of it.

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
        shuffle: bool | str | Window = True,
        partition: tuple[int, int] | None = None,
        max_sweeps: int | None = None,
        max_samples: int | None = None,
        on_error: str = "raise",
        quarantine: str | Path | None = None,
        max_errors: int | None = None,
        order: str = "feedline",
        filling: str = "global",
        truncation_length: int | None = None,
        transforms: Sequence[Map | Callable[..., Mapping[str, Any]]] = (),
        frame_mode: bool = False,
        threads: int = 2,
        read_ahead: int | None = None,
    ) -> None:
        if isinstance(corpus, (list, tuple)):
            corpus = corpus[0] if len(corpus) == 1 else Join(*corpus)
        if not isinstance(corpus, Deserializer):
            hint = "see docs/formats"
            if isinstance(corpus, (str, Path)):
                hint = f"fl.open_corpus({str(corpus)!r}) makes one of a path"
            raise TypeError(f"expected a feedline Deserializer, got {type(corpus).__name__}; {hint}")
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**64:
            raise ValueError(f"expected 0 <= seed < 2**64, got {seed!r}")
        if order not in ("feedline", *ORDERS):
            raise ValueError(f"expected order to be one of 'feedline', {', '.join(map(repr, ORDERS))}, got {order!r}")
        if filling not in ("global", "cntk"):
            raise ValueError(f'expected filling to be "global" or "cntk", got {filling!r}')
        if truncation_length is not None:
            whole_number("truncation_length", truncation_length, 1)
            if frame_mode:
                raise ValueError("expected truncation_length or frame_mode, got both: a frame cannot be truncated")
        if on_error not in ("raise", "skip"):
            raise ValueError(f'expected on_error to be "raise" or "skip", got {on_error!r}')
        if not isinstance(shuffle, (bool, Window)) and shuffle != "whole":
            raise TypeError(f'expected shuffle to be True, False, "whole" or a fl.Window, got {shuffle!r}')
        limits = {"max_sweeps": (max_sweeps, 0), "max_samples": (max_samples, 1), "max_errors": (max_errors, 0)}
        for name, (limit, least) in limits.items():
            if limit is not None:
                whole_number(name, limit, least)
        whole_number("threads", threads, 1)
        if read_ahead is not None:
            whole_number("read_ahead", read_ahead, 0)
        if callable(transforms):
            raise TypeError(f"expected a list of transforms, got {transforms!r}; write [{_name(transforms)}]")
        self.corpus = corpus
        self._seed = int(seed)
        self._partition = Partition(partition)
        self._truncated = truncation_length is not None
        self._packer: Packer = Local() if filling == "cntk" else Whole()
        if truncation_length is not None:
            self._packer = Lanes(truncation_length, local=filling == "cntk")
        made = [t if isinstance(t, Map) else Map(t) for t in transforms]
        self.schema: Schema = corpus.schema
        for transform in made:
            self.schema = transform.schema(self.schema)
        self._stats = Stats()
        chunks = ChunkSet(corpus.schema)
        self._timeline, self._reader, sizes = opened(
            corpus,
            chunks,
            self._stats,
            order=order,
            seed=self._seed,
            shuffle=shuffle,
            threads=threads,
            read_ahead=read_ahead,
        )
        if frame_mode:
            sizes = lengths.single(sizes, corpus)
        self._axis = Axis(self._timeline, sizes, max_sweeps, max_samples)
        # Lanes are cut from whole runs that are read once, and planning windows of unknown size reads them.
        looks = truncation_length is None and corpus.sized
        copied = LEAST_AHEAD if read_ahead is None else read_ahead
        self._ahead = CopyAhead(self._packer, self._axis, chunks, self._reader, copied if looks else 0)
        if on_error == "raise" and max_errors is not None:
            raise ValueError('expected on_error="skip" with max_errors, got on_error="raise"')
        listed = None if on_error == "raise" else Quarantine(quarantine, max_errors)
        self._delivery = Delivery(
            corpus,
            self._axis,
            self._reader,
            self._ahead,
            made,
            self.schema,
            self._seed,
            frame_mode,
            listed,
            self._stats,
        )
        self._identity = states.Identity(corpus, self._timeline, filling)
        # Where the source stands while there is no cursor; its label samples are always those of the source.
        self._place = states.SavedPlace(Position(window=None if corpus.sized else 0), 0, [])
        self._cursor: Cursor | None = None
        self._window_in_use: WindowPlan | None = None
        self._inside: int | None = None  # the thread that is in a call
        self._upcoming: Upcoming | None = None
        self._closed = False

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
            StateError: the default partition has changed since the first read, or a loaded state names a place or
                lanes that are not there, of a corpus whose chunks tell their sizes only when read.
            ValueError: size below 1, or with ``filling="cntk"`` fewer lanes than ranks.
            RuntimeError: another thread is in a call of this source.
        """
        return self._next(size, partition)

    def _next(
        self,
        size: int,
        partition: tuple[int, int] | None,
        finish: Callable[[Minibatch], object] | None = None,
    ) -> Minibatch:
        """See `next_minibatch`; ``finish`` is called with the minibatch before it counts as delivered."""
        me = threading.get_ident()
        if self._inside is not None:
            raise refusal("this source", self._inside)
        self._inside = me
        try:
            if type(size) is not int or size < 1:
                size = whole_number("a minibatch size", size, 1)
            index, count = self._partition.resolve(partition)
            if count > 1 and not self._reader.shared:
                self._reader.shared = on_this_machine(count) > 1
            cursor = self._cursor
            if cursor is None:
                cursor = self._start()
                if cursor is None:
                    return Minibatch.end(self.schema, self.position)
            plan = self._ahead.plan(cursor, size, index, count)
            if plan.ended:
                self._cursor = plan.after
                return Minibatch.end(self.schema, self.position)
            minibatch = self._delivery.minibatch(plan, index, self._place.position.label_samples)
            if finish is not None:
                finish(minibatch)
            after = plan.after
            window = after.segment.plan
            if window is not self._window_in_use:
                self._upcoming = Upcoming(self._timeline.chunks_after(window, self._axis.max_sweeps))
                self._reader.keep([window], self._upcoming)
            elif self._upcoming is not None:
                self._reader.read_on(self._upcoming)
            self._ahead.refill(after, size, index, count, minibatch.num_sequences)
            # Last, and nothing is called until the caller has the minibatch: whatever interrupts this, the position has
            # moved if and only if the minibatch was delivered.
            self._window_in_use, self._cursor = window, after
            return minibatch
        finally:
            self._inside = None

    def minibatches(
        self,
        size: int = DEFAULT_MINIBATCH_SIZE,
        until: Span | None = None,
        partition: tuple[int, int] | None = None,
        device: Any = None,
    ) -> Iterator[Minibatch]:
        """Minibatches from the current position to the end of the source.

        Args:
            size: see `next_minibatch`.
            until: stop after the minibatch that completes this span, counted from here: ``fl.sweeps(1)`` stops at the
                next minibatch that ends a sweep.
            partition: see `next_minibatch`.
            device: of torch: `Minibatch.tensors` holds every stream there, padded (sparse ones as CSR); on CUDA they
                are copied through pinned memory by a stream of their own.
        """
        if device is None:
            return upto(lambda: self.next_minibatch(size, partition), until)
        move = mover(device)
        return upto(lambda: self._next(size, partition, move), until)

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
        size = whole_number("a minibatch size", size, 1)
        index, count = self._partition.peek(partition)
        if start is not None:
            start = states.given_position(start)
            states.check_position(self._timeline, start)
            cursor = self._cursor_at(states.SavedPlace(start, None, []))
        else:
            cursor = self._cursor or self._cursor_at(self._place)
        return iter(()) if cursor is None else planned(self._axis, self._packer, cursor, size, index, count)

    def _start(self) -> Cursor | None:
        self._cursor = self._cursor_at(self._place)
        return self._cursor

    def _cursor_at(self, place: states.SavedPlace) -> Cursor | None:
        """The cursor at a place; None where the axis has ended before it."""
        if self._closed:
            raise ValueError(f"expected an open source, got one that is closed: {self.corpus.name}; make another")
        axis = self._axis
        if axis.max_sweeps is not None and place.position.sweep >= axis.max_sweeps and not place.lanes:
            return None
        try:
            cursor = axis.at(place.position, place.fingerprint)
        except IndexError as error:  # of a corpus whose windows have to be read to know how long they are
            raise StateError(f"this place is not in the order of {self.corpus.name}: {error}") from error
        if place.lanes:
            cursor = cursor._replace(lanes=lanes.from_json(axis, cursor, place.lanes))
        return cursor

    # ---- position and state -----------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """What follows the last minibatch delivered; reading ahead does not count."""
        return self._standing_at(self._place.position, self._cursor)

    def _standing_at(self, place: Position, cursor: Cursor | None) -> Position:
        # Both are read once: another thread may move them meanwhile.
        return place if cursor is None else self._axis.position(cursor, place.label_samples)

    def count_label_samples(self, count: int) -> None:
        """Add label samples, summed over all ranks, to the clock; trainers call it once an update."""
        self._place = self._place._replace(position=states.counted(self._place.position, count))

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
            samples = states.integer("samples", samples)
            if not 0 <= samples <= states.LARGEST:
                raise IndexError(f"expected 0 <= samples <= 2**62, got {samples}")
            position = self._axis.position(self._axis.seek_samples(samples), self._place.position.label_samples)
        else:
            position = states.given_position(position)
            states.check_position(self._timeline, position)
        self._jump(states.SavedPlace(position, None, []))

    def _jump(self, place: states.SavedPlace) -> None:
        me = threading.get_ident()
        if self._inside is not None:
            raise refusal("this source", self._inside)
        self._inside = me
        try:
            self._ahead.drop()
            self._reader.reset()
            self._reader.keep([], None)
            self._place, self._cursor, self._window_in_use, self._upcoming = place, None, None, None
        finally:
            self._inside = None

    def state_dict(self) -> dict[str, Any]:
        """Where the source stands, in JSON types: a few numbers, the same on every rank.

        Load it under any minibatch size, partition, thread count or world size. With ``filling="cntk"`` it is the
        state of this rank alone, and exact under the same world size only. With ``truncation_length``, ``lanes``
        lists what has entered each lane and is not delivered: ``[sweep, sequence, count, done]`` for ``count``
        consecutive sequences, ``done`` samples of the first of which were delivered (a fifth number is the window,
        for corpora whose sizes are unknown before reading). It grows with the lanes: tens of bytes each.
        """
        return states.to_json(self._identity, self._standing(), self._truncated)

    def _standing(self) -> states.SavedPlace:
        place, cursor = self._place, self._cursor
        if cursor is None:
            return place
        position = self._standing_at(place.position, cursor)
        return states.SavedPlace(position, self._axis.fingerprint(cursor), lanes.to_json(self._timeline, cursor.lanes))

    def load_state_dict(self, state: Mapping[str, Any], *, verify: bool = False) -> None:
        """Go to where ``state`` was taken; reads no data, whatever came before.

        Args:
            state: from `state_dict`, of this source or another over the same data, seed and window.
            verify: recompute the order fingerprint from the start of the axis and compare (reads no data, costs
                nanoseconds a sequence passed).

        Raises:
            StateError: the state does not fit; the source stays where it was.
        """
        place = states.from_json(state, self._identity, self._timeline, self._truncated)
        if place.lanes and not self._closed and not isinstance(self._timeline, UnsizedOrder):
            self._cursor_at(place)  # finds each sequence, and reads nothing
        if verify:
            states.verify(Axis(self._timeline, self._axis.lengths), place)
        self._jump(place)

    # ---- the rest ---------------------------------------------------------------------------------

    @property
    def num_sequences(self) -> int:
        """Sequences a sweep.

        Raises:
            ValueError: only reading tells.
        """
        return self._table().total_sequences

    @property
    def num_samples(self) -> int:
        """Samples a sweep.

        Raises:
            ValueError: only reading tells.
        """
        return self._table().total_samples

    def _table(self) -> ChunkTable:
        if isinstance(self._timeline, UnsizedOrder):
            raise ValueError("a corpus without chunk_info cannot be counted: that would read it; implement chunk_info")
        return self._timeline.chunk_table

    @property
    def is_infinite(self) -> bool:
        """Whether neither ``max_sweeps`` nor ``max_samples`` ends it."""
        return self._axis.max_sweeps is None and self._axis.max_samples is None

    def stats(self) -> Stats:
        """What was read, held and delivered so far in this process."""
        return self._stats

    def close(self) -> None:
        """Let chunks, threads and files go; the state can still be taken.

        Raises:
            RuntimeError: another thread is in a call of this source.
        """
        if self._inside not in (None, threading.get_ident()):
            raise refusal("this source", self._inside)
        self._place, self._cursor, self._closed = self._standing(), None, True
        try:
            self._identity.corpus_digest()  # which needs the files
        finally:
            self._ahead.drop()
            self._reader.close()
            self.corpus.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a MinibatchSource has threads and chunks in memory and cannot be pickled or copied; "
            "make another over the same corpus and give it state_dict()"
        )

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


def _name(function: object) -> str:
    return str(getattr(function, "__name__", "function"))
