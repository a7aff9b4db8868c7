"""The minibatch source: one order, one clock, resumed from a few numbers.

It connects a corpus (`formats`), its order (`timeline`), the rule that cuts it into minibatches (`packing`), chunks in
memory (`reading`) and the copy out of them (`assembly`). tests/laws states its guarantees. Opening takes time
O(chunks). Memory holds a window of chunks and the data read ahead, which is the next window. A minibatch is one native
call.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from feedline.concurrency.reentrancy import refusal
from feedline.concurrency.stages import FEEDS
from feedline.data import Minibatch, Position, Schema, Span
from feedline.data.minibatch import RankShare
from feedline.errors import DataError, StateError
from feedline.feed import states
from feedline.feed.argument_errors import refuse
from feedline.feed.arguments import Arcs, Quarantine, quarantine_of, refuse_replaced
from feedline.feed.assembly import ChunkSet
from feedline.feed.composed.skipping import Paths, Skipping
from feedline.feed.device import mover
from feedline.feed.files.remote import by_ranges, materialize
from feedline.feed.formats.missing import check_nulls
from feedline.feed.packing import lanes as bptt_lanes
from feedline.feed.packing.axis import Axis, Cursor
from feedline.feed.packing.balance import Balance
from feedline.feed.packing.jumps import read_jumps
from feedline.feed.packing.rule import rule_of
from feedline.feed.packing.unevenness import Unevenness
from feedline.feed.packing.whole import Whole
from feedline.feed.partition import FixedShare, Partition, PartitionLike, on_this_machine, partition_of
from feedline.feed.progress_bar import Progress
from feedline.feed.protocol import Deserializer, Ordered, check_seed, finish_of, is_sized, sources_of, whole_number
from feedline.feed.quarantine import QuarantineFile
from feedline.feed.reading import lengths
from feedline.feed.reading.call_meter import CallMeter
from feedline.feed.reading.copy_ahead import CopyAhead, FirstStage
from feedline.feed.reading.copy_together import CopyTogether
from feedline.feed.reading.decoding_reader import DecodingReader, ahead_bytes
from feedline.feed.reading.delivery import Delivery
from feedline.feed.reading.facts import facts_of
from feedline.feed.reading.reader import Upcoming, upcoming
from feedline.feed.reading.reader_factory import choose_reader
from feedline.feed.reading.stats import Stats
from feedline.feed.spans import Minibatches, upto
from feedline.feed.timeline import ChunkTable, Timeline, UnsizedOrder, Window, WindowPlan
from feedline.feed.transforms import Map, Transform

# What only some sources need is imported where they do: opening a small file takes little more than imports.
if TYPE_CHECKING:
    from feedline.feed.composed.mixture_order import MixtureOrder
    from feedline.feed.plan import PlannedMinibatch

DEFAULT_MINIBATCH_SIZE = 256

_BARREN_SWEEPS = 3  # sweeps without a readable sequence, from within the first to the beginning of the last


class MinibatchSource:
    """Minibatches of whole sequences from a corpus, in an order that depends on the seed alone.

    Only one thread at a time may use a source. A second one gets an error. `position` and `state_dict` may be called
    from any thread, even while a minibatch is being made. Forked children may use their copy.

    Args:
        corpus: a `Deserializer`. Several of them are joined by key, see `Join`.
        seed: seed of the order and of random transforms, 0 <= seed < 2**64.
        shuffle: True: all data as one window if that is cheap (arrays in memory, and stores and mapped arrays of up to
            4 GiB), else windows of 256 MiB stored bytes. A `Window`: windows of that size. ``"whole"``: all data as one
            window at any cost (corpora with random access). False: the order of the corpus.
        partition: the share of each minibatch that this reader takes: (index, count), a mesh, or a `Partition`. None or
            "auto": the mesh or the ranks of the program, see `Partition`.
        max_sweeps, max_samples: end of the source, counted from the start of the axis, not from a restore, and
            checked before each sequence (the last may overshoot).
        on_error: ``"raise"``, ``"skip"``, or a `Quarantine`. With the last two, an unreadable sequence keeps its place
            on the axis, but is dropped from the minibatch and listed in the quarantine file.
        skip: quarantine file, or several, of sequences to leave out. They keep their places on the axis, without an
            error or a line in the quarantine. States fit with and without it.
        order: ``"feedline"``: the current best. ``"feedline-1"``, ``"feedline-2"``: that version of it, to continue
            from states that name it. ``"cntk"``: the order of CNTK 2.7, bit for bit. An `Arcs`: each rank reads only
            its own parts of the data. In the other orders every rank may need all of the data.
        filling: ``"global"``: all ranks plan the same global minibatch and take their parts of it. ``"cntk"``: each
            rank fills its part of the size with sequences it owns, as CNTK 2.7 does. Then positions and states differ
            by rank, ranks may end at different times, and `Minibatch.global_samples` counts all samples passed on the
            axis.
        truncation_length: samples per piece for truncated BPTT: sequences are cut into pieces of at most this
            length, delivered in ``max(1, size // truncation_length)`` lanes (see `Minibatch.lanes`). All streams of
            a sequence must have the same length. Positions then name the next sequence to enter a lane, and count the
            samples that have entered one. The state holds the remaining content of the lanes. `seek` empties them.
        jumps: ``[(start, stop), ...]``, places on the axis to pass over, from ``start`` to before ``stop``: the steps
            at which a loss went wrong. Each is a `Position`, or a number of sequences from the start of the axis. These
            sequences are neither delivered nor counted. States hold the jumps, so that they need not be passed again,
            and are refused once such a place has been delivered.
        transforms: `Map` objects, or plain functions of a sequence.
        frame_mode: whether every sequence must have exactly one sample. A longer one is a DataError.
        threads: number of chunks read at once.
        read_ahead: bytes of decoded chunks to read ahead of the current window, and of large minibatches to copy
            ahead. 0: none. None: the whole next window, and more up to 64 MiB, or up to two chunks for each thread
            if their sizes are unknown before they are read. With less than a window, the first minibatch of each window
            waits for the rest of it.

    Attributes:
        schema: streams delivered, after transforms.
        corpus: the deserializer.

    Raises:
        DataError: the corpus is empty.
        ValueError: arguments contradict each other.
    """

    @refuse_replaced(
        quarantine="on_error=fl.Quarantine(path)",
        max_errors="on_error=fl.Quarantine(path, limit)",
        lanes="order=fl.Arcs(count)",
    )
    def __init__(
        self,
        corpus: Deserializer | Sequence[Deserializer],
        *,
        seed: int = 0,
        shuffle: bool | str | Window = True,
        partition: PartitionLike | None = None,
        max_sweeps: int | None = None,
        max_samples: int | None = None,
        on_error: str | Quarantine = "raise",
        skip: Paths | None = None,
        order: str | Arcs = "feedline",
        filling: str = "global",
        truncation_length: int | None = None,
        jumps: Sequence[tuple[int | Position, int | Position]] = (),
        transforms: Sequence[Transform | Callable[..., Mapping[str, Any]]] = (),
        frame_mode: bool = False,
        threads: int = 2,
        read_ahead: int | None = None,
    ) -> None:
        if isinstance(corpus, (list, tuple)) and any(isinstance(part, Deserializer) for part in corpus):
            corpus = corpus[0] if len(corpus) == 1 else _joined(corpus)
        if not isinstance(corpus, Deserializer):
            if not isinstance(corpus, (str, Path)):
                refuse(corpus, "MinibatchSource")
            raise TypeError(
                f"expected a feedline Deserializer, got {type(corpus).__name__}; "
                f"fl.open_corpus({str(corpus)!r}) opens a path"
            )
        seed, arcs = check_seed(seed), order.count if isinstance(order, Arcs) else None
        if truncation_length is not None:
            truncation_length = whole_number("truncation_length", truncation_length, 1)
            if frame_mode:
                raise ValueError("expected truncation_length or frame_mode, got both: a frame cannot be truncated")
        quarantine = quarantine_of(on_error)
        max_sweeps, max_samples, read_ahead = (
            None if limit is None else whole_number(name, limit, least)
            for name, limit, least in (
                ("max_sweeps", max_sweeps, 0),
                ("max_samples", max_samples, 1),
                ("read_ahead", read_ahead, 0),
            )
        )
        threads = whole_number("threads", threads, 1)
        if callable(transforms):
            raise TypeError(f"expected a list of transforms, got {transforms!r}; write [{_name(transforms)}]")
        if skip is not None:
            corpus = Skipping(corpus, skip)
        if quarantine is None:
            check_nulls(corpus)
        self.corpus = corpus
        self._seed = seed
        partition = Partition() if partition is None else partition_of(partition)
        self._partition = FixedShare(partition, arcs)
        self._truncated = truncation_length is not None
        balance = Balance.of(partition.rule, corpus)
        packer = self._packer = rule_of(corpus, filling, truncation_length, arcs, balance)
        self._unevenness = Unevenness(packer, corpus, balance) if isinstance(packer, Whole) and arcs is None else None
        self._latest: tuple[Cursor, int, int] | None = None  # start, size and ranks of the last minibatch
        stages: list[Transform] = [t if isinstance(t, Transform) else Map(t) for t in transforms]
        if (finish := finish_of(corpus)) is not None:
            stages.insert(0, finish)
        self.schema: Schema = corpus.schema
        for transform in stages:
            self.schema = transform.schema(self.schema)
        cut = partition.cutting()
        if cut is not None and (frame_mode or truncation_length is not None):
            raise ValueError("expected whole sequences to cut, got frame_mode or truncation_length")
        cuts, self._cuts = None, cut is not None
        if cut is not None:
            from feedline.feed.composed.document_cuts import DocumentCuts

            cuts = DocumentCuts(cut, self.schema, corpus)
            self.schema = cuts.schema
        self._stats = Stats()
        self._meter = CallMeter(self._stats)
        chunks = self._chunks = ChunkSet(corpus.schema)
        timeline, self._reader, sizes, self._paths_to_fetch = choose_reader(
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
            sizes = lengths.require_single(sizes, corpus)
        if timeline.sweep_length is None and max_sweeps is not None:
            raise ValueError(
                f"expected max_samples, got max_sweeps={max_sweeps} for {corpus.name}, which has no end; or give the "
                f'mixture one: when_empty="stop" or "drop"'
            )
        if jumps and isinstance(timeline, UnsizedOrder):
            raise ValueError(
                f"expected a corpus that knows the sizes of its chunks before reading for jumps, got {corpus.name}"
            )
        self._jumps = read_jumps(jumps, timeline.sweep_length)
        self._axis = Axis(timeline, sizes, max_sweeps, max_samples, self._jumps)
        # Endless sources cannot fill a larger minibatch, as every sample takes at least one byte.
        self._largest = min(states.LARGEST, _memory_bytes()) if self.is_infinite else states.LARGEST
        # Lanes are cut from whole runs that are read once, and planning windows of unknown size reads them.
        looks = truncation_length is None and is_sized(corpus)
        copied = ahead_bytes() if read_ahead is None else read_ahead
        # Sequences to skip and frames are looked at before transforms, when a minibatch is requested.
        ahead = bool(stages) and stages[0].works_ahead and not frame_mode and not isinstance(corpus, Skipping)
        first = FirstStage(stages[0], corpus.schema, self._seed) if ahead else None
        budget_bytes = copied if looks else 0
        # Ranks that get the same sequences share the pages of mapped files already.
        self._is_costly = looks and (isinstance(self._reader, DecodingReader) or any(t.works_ahead for t in stages))
        self._group_is_open = True  # whether the ranks that get the same have to be found
        self._ahead = CopyAhead(self._packer, self._axis, chunks, self._reader, budget_bytes=budget_bytes, first=first)
        # Minibatches that are copies of whole sequences and nothing else.
        changed = stages or cuts is not None or frame_mode or isinstance(corpus, Skipping)
        plain = looks and isinstance(self._packer, Whole) and not changed
        sources = None if corpus.capability(Ordered) is None else functools.partial(sources_of, corpus)
        self._copy_together = (
            CopyTogether(
                self._axis,
                chunks=chunks,
                reader=self._reader,
                schema=self.schema,
                sources=sources,
                budget_bytes=budget_bytes,
            )
            if plain
            else None
        )
        self._delivery = Delivery(
            corpus,
            self._axis,
            reader=self._reader,
            chunks=chunks,
            transforms=stages,
            cuts=cuts,
            schema=self.schema,
            seed=self._seed,
            frame_mode=frame_mode,
            quarantine=QuarantineFile.of(quarantine),
            skip=corpus.ordinals if isinstance(corpus, Skipping) else None,
            stats=self._stats,
        )
        self._identity = states.Identity(corpus, timeline, filling)
        self._stats.threads = threads
        self._stats.describe = functools.partial(
            facts_of,
            corpus,
            timeline,
            shuffle=shuffle,
            threads=threads,
            read_ahead=read_ahead,
            transforms=[stage.name for stage in stages],
        )
        FEEDS.add(self._stats)
        # The position while there is no cursor. Its label samples are always the source's.
        self._place = states.SavedPlace(Position(window=None if is_sized(corpus) else 0), 0, [])
        self._cursor: Cursor | None = None
        self._barren: tuple[int, int] | None = None  # sweep, and skipped sequences, at the first of only empty results
        self._window_in_use: WindowPlan | None = None
        self._inside: int | None = None  # the thread inside a call
        self._upcoming: Upcoming | None = None
        self._closed = False

    @property
    def _timeline(self) -> Timeline:
        return self._axis.timeline

    @property
    def _mixture(self) -> MixtureOrder | None:
        """The order of a mixture. None for other corpora."""
        if self.corpus.capability(Ordered) is None:
            return None
        from feedline.feed.composed.mixture_order import MixtureOrder

        return self._timeline if isinstance(self._timeline, MixtureOrder) else None

    # ---- reading ----------------------------------------------------------------------------------

    def next_minibatch(self, size: int, partition: PartitionLike | None = None) -> Minibatch:
        """Return the next minibatch, or this rank's part of it.

        Args:
            size: budget of the global minibatch in samples: as many whole sequences as fit, or a single longer one.
                With ``truncation_length`` the pieces of as many lanes as fit, or of one.
            partition: the share for this call only, instead of the source's own.

        Returns:
            A true `Minibatch`, possibly with an empty part. After the end a false one, every time.

        Raises:
            DataError: the data is damaged (and ``on_error="raise"``), or unreadable for sweeps. The position is
                unchanged.
            StateError: the default partition has changed since the first read, or a loaded state names a place or
                lanes that do not exist, in a corpus of unknown chunk sizes.
            ValueError: size below 1, above 2**62, or of a source without end above the bytes of memory, or with
                ``filling="cntk"`` fewer lanes than ranks.
            RuntimeError: another thread is inside a call of this source.
        """
        return self._next(size, partition)

    def _next(
        self,
        size: int,
        partition: PartitionLike | None,
        finish: Callable[[Minibatch], object] | None = None,
    ) -> Minibatch:
        """Implement `next_minibatch`. ``finish`` is called with the minibatch before it counts as delivered."""
        me = threading.get_ident()
        if self._inside is not None:
            raise refusal("this source", self._inside)
        self._inside = me
        try:
            if type(size) is not int or not 1 <= size <= self._largest:
                size = self._check_size(size)
            index, count = self._partition.resolve(partition)
            if count > 1:
                self._note_sharing(count)
            if self._group_is_open:
                self._join_group()
            cursor, copies = self._cursor, self._copy_together
            meter, measured, taken = self._meter, False, None
            if copies is not None and cursor is not None and cursor == copies.cursor:
                if size == copies.size and count == 1:
                    if copies.copies_singly:
                        meter.left -= 1
                        measured = meter.left <= 0
                        if measured:
                            meter.begin()
                    taken = copies.take(self._place.position.label_samples)
                else:
                    copies.drop()
            if copies is not None and taken is not None:
                stats = self._stats
                minibatch, after = taken
                if measured:
                    meter.gathered()
                if finish is not None:
                    finish(minibatch)
                    if measured:
                        meter.moved()
                if measured:
                    meter.end()
                if copies.is_empty:
                    began = time.perf_counter()
                    if self._upcoming is not None:
                        self._reader.read_on(self._upcoming)
                    copies.refill(after, size, minibatch.num_sequences)
                    stats.note_call(began)
                    if copies.copies_singly:
                        stats.plan_seconds += stats.ended - began
                    else:
                        stats.gather_seconds += stats.ended - began
                stats.minibatches += 1
                stats.sequences += minibatch.num_sequences
                stats.samples += minibatch.num_samples
                self._cursor = after
                return minibatch
            meter.left -= 1
            measured = meter.left <= 0
            if measured:
                self._stats.rank, self._stats.ranks = index, count
                meter.begin()
            if cursor is None:
                cursor = self._start()
                if cursor is None:
                    return Minibatch.end(self.schema, self.position)
            plan, begun = self._ahead.take(cursor, size, index, count)
            if plan.ended:
                self._cursor = plan.after
                return Minibatch.end(self.schema, self.position)
            if measured:
                meter.planned()
            cut = self._partition.cut(partition) if self._cuts else (0, 1)
            minibatch = self._delivery.minibatch(plan, index, self._place.position.label_samples, begun, cut)
            if count > 1 or self._cuts:
                minibatch.share = RankShare(index, count, *cut, plan.share_sizes)
            if measured:
                meter.gathered()
            if finish is not None:
                finish(minibatch)
                if measured:
                    meter.moved()
            after = plan.after
            window = after.segment.plan.part(index, count)
            if count > 1:
                self._latest = plan.start, size, count
            if self._delivery.follows:
                self._stop_reading_ahead(window)
                self._window_in_use, self._cursor = window, after
                return minibatch
            before = self._window_in_use
            if before is None or window.key != before.key or self._upcoming is None:
                if self._upcoming is None or before is None or window.group_key != before.group_key:
                    following = functools.partial(self._axis.chunks_after, window)
                    self._upcoming = upcoming(self._reader, window, following)
                self._reader.keep([window, *self._ahead.windows()], self._upcoming)
            elif self._upcoming is not None:
                self._reader.read_on(self._upcoming)
            if copies is not None and count == 1:
                copies.refill(after, size, minibatch.num_sequences)
            if copies is None or copies.is_empty:
                self._ahead.refill(after, size, index, count, minibatch.num_sequences)
            else:
                self._ahead.drop()
            # A rank does not know whether the others could read theirs, and must not end before them.
            if not minibatch.num_sequences and count == 1:
                self._check_barren(plan.start)
            elif self._barren is not None:
                self._barren = None
            if measured:
                meter.end()
            # Last, with no call before the return: after any interrupt, the position has advanced if and only if the
            # minibatch was delivered.
            self._window_in_use, self._cursor = window, after
            return minibatch
        finally:
            self._inside = None

    def prefetch(self, partition: PartitionLike | None = None) -> None:
        """Begin to read the window of the next minibatch now, while the program is busy with something else.

        Minibatches, positions and states stay what they are, and errors of the data are raised by `next_minibatch`.
        Nothing is read for corpora of unknown chunk sizes, with ``truncation_length`` or ``read_ahead=0``, or if ranks
        of this machine share minibatches.

        Args:
            partition: see `next_minibatch`.
        """
        me = threading.get_ident()
        if self._inside is not None:
            raise refusal("this source", self._inside)
        self._inside = me
        try:
            group = self._partition.partition.mesh_share().group
            fetches = bool(self._paths_to_fetch)  # of whole objects, for which `next_minibatch` waits
            if self._window_in_use is None and not (fetches or self._truncated or (group and len(group) > 1)):
                self._read_window(*self._partition.peek(partition))
        finally:
            self._inside = None

    def _check_barren(self, start: Cursor) -> None:
        """Check that not all sequences of a sweep are unreadable and skipped, as a loop would never end.

        Raises:
            DataError: they are.
        """
        sweep, skipped = self._axis.position(start).sweep, self._stats.skipped
        if self._barren is None or sweep < self._barren[0]:
            self._barren = sweep, skipped
        elif sweep >= self._barren[0] + _BARREN_SWEEPS and skipped > self._barren[1]:
            raise DataError(
                f"expected readable sequences, got none in {_BARREN_SWEEPS - 1} whole sweeps: {skipped} were skipped",
                path=self.corpus.name,
                hint='see the quarantine file, or pass on_error="raise" to see the first error',
            )

    def _read_window(self, index: int, count: int) -> None:
        """Begin to read the window of the next minibatch of a rank."""
        cursor = self._here() if is_sized(self.corpus) else None
        if cursor is None:
            return
        self._note_sharing(count)
        window = cursor.segment.plan.part(index, count)
        following = functools.partial(self._axis.chunks_after, window)
        self._reader.keep([window], upcoming(self._reader, window, following))

    def _note_sharing(self, count: int) -> None:
        """Let the reader know whether other ranks of this machine read the same data."""
        if count > 1 and not self._reader.shared and self._timeline.arcs is None:
            self._reader.shared = on_this_machine(count) > 1

    def _join_group(self) -> None:
        """Share minibatches with the ranks of this machine that get the same, if they cost more than a copy."""
        ranks = self._partition.group
        if ranks is None:
            return  # every call so far has named its share
        self._group_is_open = False
        self._reader.shared = self._reader.shared or len(ranks) > 1
        if len(ranks) > 1 and self._is_costly:
            joined = self._delivery.join(ranks, self._identity.corpus_digest())
            if joined and self._copy_together is not None:
                self._copy_together.drop()
                self._copy_together = None
        else:
            self._delivery.leave()

    def _stop_reading_ahead(self, window: WindowPlan) -> None:
        """Keep no more than ``window``, as another rank reads for this one."""
        if self._upcoming is not None:
            self._leave()
            self._reader.reset()
            self._upcoming = None
        self._reader.keep([window], None)

    def minibatches(
        self,
        size: int = DEFAULT_MINIBATCH_SIZE,
        until: Span | None = None,
        partition: PartitionLike | None = None,
        device: Any = None,
        *,
        progress: Progress = None,
    ) -> Minibatches:
        """Yield minibatches from the current position to the end of the source.

        ``len`` of the iterator is the number of remaining minibatches, as ``tqdm`` uses it. See `__len__`.

        Args:
            size: see `next_minibatch`.
            until: stop after the minibatch that completes this span, counted from here: ``fl.sweeps(1)`` stops at the
                next minibatch that ends a sweep.
            partition: see `next_minibatch`.
            device: torch device: `Minibatch.tensors` holds every stream there, padded (sparse ones as CSR). To CUDA
                they are copied through pinned memory on a separate stream.
            progress: True shows a bar with minibatches per second, remaining time and the share of it spent waiting.
                Where stderr is no terminal, it shows a line every half minute. A function is called as ``progress(done,
                total)``, in minibatches, before each one. An unknown total is 0.

        Raises:
            ModuleNotFoundError: ``progress=True`` on a terminal without rich (``pip install 'feedline[cli]'``).
            TypeError: ``until`` is not a span, or ``progress`` something else.
        """
        began, waited = time.monotonic(), self._stats.wait_seconds

        def remark() -> str:
            passed = time.monotonic() - began
            share = (self._stats.wait_seconds - waited) / passed if passed else 0.0
            return f"{share:.0%} waiting"

        def left(span: Span | None) -> int:
            return self._count_left(size, span, partition)

        if device is None:
            return upto(lambda: self.next_minibatch(size, partition), until, left, progress=progress, remark=remark)
        move = mover(device)
        return upto(lambda: self._next(size, partition, move), until, left, progress=progress, remark=remark)

    def __iter__(self) -> Iterator[Minibatch]:
        """Yield minibatches of 256 samples to the end of the source."""
        return self.minibatches()

    def __len__(self) -> int:
        """Return the number of minibatches that ``iter`` would yield, of 256 samples each, from here to the end.

        Minibatches delivered, also before a restore, do not count. All sweeps up to the end do. Reads no data: with
        one sample per sequence it is a division, otherwise planning takes microseconds per minibatch.

        Raises:
            TypeError: the number is unknown: the source has no end, or the corpus does not know its chunk sizes.
        """
        return self._count_left(DEFAULT_MINIBATCH_SIZE, None, None)

    def __bool__(self) -> bool:
        return True  # not the length: it may be unknown

    def _count_left(self, size: int, until: Span | None, partition: PartitionLike | None) -> int:
        if isinstance(self._timeline, UnsizedOrder):
            raise TypeError(
                "the number of minibatches of a corpus without chunk_info is unknown: its chunks would have to be read"
            )
        if until is None and self.is_infinite:
            raise TypeError("a source without an end has no length; pass max_sweeps or max_samples, or until= a span")
        from feedline.feed.plan import count_left

        size = self._check_size(size)
        index, count = self._partition.peek(partition)
        return count_left(self._axis, self._packer, self._here(), until, size=size, index=index, count=count)

    def plan(
        self,
        size: int = DEFAULT_MINIBATCH_SIZE,
        start: Position | None = None,
        partition: PartitionLike | None = None,
    ) -> Iterator[PlannedMinibatch]:
        """Plan which sequences the next minibatches hold, without reading data or moving the source.

        Args:
            size: see `next_minibatch`.
            start: position to begin at. None: the current one.
            partition: see `next_minibatch`.

        Returns:
            An iterator over the minibatches up to the end of the source, endless if the source is. Takes microseconds
            per minibatch.

        Raises:
            ValueError: the chunk sizes of the corpus are unknown before reading, or `next_minibatch` refuses the size.
            IndexError: there is no such position.
        """
        if isinstance(self._timeline, UnsizedOrder):
            raise ValueError(
                "expected a corpus that knows the sizes of its chunks before reading them, got one without "
                "chunk_info: the next sequences are known only once their window is read; implement "
                "`UserDeserializer.chunk_info`, or convert the corpus to a store"
            )
        from feedline.feed.plan import plan_minibatches

        size = self._check_size(size)
        index, count = self._partition.peek(partition)
        if start is not None:
            start = states.check_fields(start)
            states.check_position(self._timeline, start)
            cursor = self._cursor_at(states.SavedPlace(start, None, []))
        else:
            cursor = self._here()
        return (
            iter(())
            if cursor is None
            else plan_minibatches(
                self._axis, self._packer, cursor, size=size, index=index, count=count, unevenness=self._unevenness
            )
        )

    def _check_size(self, size: Any) -> int:
        """Return a minibatch size as an int, or refuse one that is too large."""
        number = whole_number("a minibatch size", size, 1)
        if number > states.LARGEST:
            raise ValueError(f"expected a minibatch size of at most 2**62, got {number}")
        if number > self._largest:
            raise ValueError(
                f"expected a minibatch size that fits into memory, as this source has no end, got {number} samples for "
                f"{self._largest} bytes; pass max_sweeps=1 to get the rest of a sweep"
            )
        return number

    def _start(self) -> Cursor | None:
        if self._paths_to_fetch:
            materialize(self._paths_to_fetch)
            self._paths_to_fetch = []
        self._cursor = self._cursor_at(self._place)
        return self._cursor

    def _here(self) -> Cursor | None:
        """Return the cursor at the current place, without keeping it, or None if the axis ends before it."""
        return self._cursor or self._cursor_at(self._place)

    def _cursor_at(self, place: states.SavedPlace) -> Cursor | None:
        """Return the cursor at a place, or None if the axis ends before it."""
        if self._closed:
            raise ValueError(f"expected an open source, got a closed one: {self.corpus.name}; create another")
        axis = self._axis
        sweep, _ = axis.skip_jumps(place.position.sweep, place.position.sequence)
        if axis.max_sweeps is not None and sweep >= axis.max_sweeps and not place.lanes:
            return None
        try:
            cursor = axis.at(place.position, place.fingerprint)
        except IndexError as error:  # in a corpus whose windows must be read to know their size
            raise StateError(f"this place is not in the order of {self.corpus.name}: {error}") from error
        if place.lanes:
            cursor = cursor._replace(lanes=bptt_lanes.from_json(axis, cursor, place.lanes))
        return cursor

    # ---- position and state -----------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """The position after the last minibatch delivered. Reading ahead does not count."""
        return self._standing_at(self._place.position, self._cursor)

    def _standing_at(self, place: Position, cursor: Cursor | None) -> Position:
        # Both are read only once: another thread may change them meanwhile.
        return place if cursor is None else self._axis.position(cursor, place.label_samples)

    def count_label_samples(self, count: int) -> None:
        """Add label samples, summed over all ranks, to the clock. Trainers call it once per update."""
        self._place = self._place._replace(position=states.add_label_samples(self._place.position, count))

    def seek(self, position: Position | None = None, *, samples: int | None = None) -> None:
        """Seek to a place on the axis, forwards or backwards. Reads no data if chunk sizes are known.

        The fingerprint is unknown afterwards (None in the state).

        Args:
            position: position to seek to. Its counters are trusted.
            samples: samples from the start of the axis, instead of a position: seek to the first sequence that
                starts there or later.

        Raises:
            IndexError: there is no such place.
            ValueError: both arguments are set, or none.
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
            position = states.check_fields(position)
            states.check_position(self._timeline, position)
        self._jump(states.SavedPlace(position, None, []))

    def _jump(self, place: states.SavedPlace) -> None:
        me = threading.get_ident()
        if self._inside is not None:
            raise refusal("this source", self._inside)
        self._inside = me
        try:
            self._leave()
            if not self._is_in_window(place):
                self._reader.reset()
                self._reader.keep([], None)
                self._window_in_use = self._upcoming = None
            if place.timeline is not None:
                self._axis.timeline = place.timeline
            if place.jumps is not None:
                self._axis.jumps = place.jumps
            self._place, self._cursor, self._latest, self._barren = place, None, None, None
        finally:
            self._inside = None

    def _is_in_window(self, place: states.SavedPlace) -> bool:
        """Return whether a place is in the window in use, as after a step that is taken back. It is not read again."""
        window, (sweep, sequence, *_, number) = self._window_in_use, place.position
        if window is None or window.sweep != sweep or number is not None or self._truncated:
            return False
        if place.timeline not in (None, self._timeline):
            return False
        if place.jumps is not None and place.jumps.ranges != self._axis.jumps.ranges:
            return False
        return window.first <= sequence < window.first + window.count

    def repartition(self, partition: PartitionLike) -> None:
        """Take another share of each minibatch from the next one on, as ranks have joined or left.

        The size of a minibatch is that of all ranks together, so minibatches stay what they were. Windows, caches and
        chunks read ahead stay. Every rank has to do this at the same position. A step that was not completed is
        delivered again, to the new ranks, from the state before it.

        Args:
            partition: see the class. A `Partition` with the balance of the source, or without one.

        Raises:
            ValueError: another balance, more ranks than `Arcs`, or no share.
        """
        renewed = self._partition.renewed(partition)
        self._ahead.repartition(*renewed.peek())
        self._partition, self._group_is_open = renewed, True

    def _leave(self) -> None:
        """Drop minibatches that were copied ahead."""
        self._ahead.drop()
        if self._copy_together is not None:
            self._copy_together.drop()

    def state_dict(self) -> dict[str, Any]:
        """Return the state in JSON types: a few numbers, the same on every rank.

        It can be loaded under any minibatch size, partition, thread count or world size. With ``filling="cntk"`` it is
        the state of this rank only, and exact only under the same world size. With ``truncation_length``, ``lanes``
        lists the undelivered content of each lane: ``[sweep, sequence, count, done]`` for ``count`` consecutive
        sequences, of the first of which ``done`` samples were delivered (a fifth number is the window, for corpora of
        unknown chunk sizes). It grows with the lanes: tens of bytes each.
        """
        return states.to_json(self._identity, self._standing(), self._axis, self._truncated)

    def _standing(self) -> states.SavedPlace:
        place, cursor = self._place, self._cursor
        if cursor is None:
            return place
        position = self._standing_at(place.position, cursor)
        return states.SavedPlace(
            position, self._axis.fingerprint(cursor), bptt_lanes.to_json(self._timeline, cursor.lanes)
        )

    def load_state_dict(self, state: Mapping[str, Any], *, verify: bool = False) -> None:
        """Seek to where ``state`` was taken. Reads no data, not even from before that place.

        Args:
            state: result of `state_dict`, of this source or another one over the same data, seed and window.
            verify: whether to recompute the order fingerprint from the start of the axis and compare it (reads no
                data, takes nanoseconds per sequence passed).

        Raises:
            StateError: the state does not fit. The source is unchanged.
        """
        place = states.from_json(state, self._identity, self._timeline, self._truncated, self._jumps)
        sized = not isinstance(self._timeline, UnsizedOrder)
        if place.lanes and not self._closed and sized and place.timeline is self._timeline:
            self._cursor_at(place)  # checks that each sequence exists, without reading
        if verify:
            states.verify(Axis(place.timeline or self._timeline, self._axis.lengths, jumps=place.jumps), place)
        self._jump(place)

    def change_weights(self, weights: Mapping[str, Any], at: int | None = None) -> int:
        """Change the weights of a `Mixture` from a place on, which states then record.

        Delivered minibatches do not change, and every corpus goes on where it was. All ranks have to make the same
        changes at the same positions.

        Args:
            weights: weight by name, as `Mixture` takes them.
            at: number of sequences of the mixture after which they hold. None: the next border of blocks.

        Returns:
            The place from which they hold.

        Raises:
            TypeError: the corpus is no mixture, or a weight is no number.
            ValueError: the place is not after the next border of blocks, or a weight is out of range.
        """
        standing, timeline = self._standing(), self._mixture
        if timeline is None:
            raise TypeError("expected a Mixture to change its weights, got a corpus that has none")
        changed, at = timeline.with_weights(standing.position[:2], weights, at)
        self._jump(standing._replace(timeline=changed))
        return at

    # ---- other --------------------------------------------------------------------------------------

    @property
    def share_done(self) -> float | None:
        """Share of the source that has been delivered, over all sweeps, 0 to 1. None if its end is unknown."""
        axis, position = self._axis, self.position
        shares = []
        if axis.max_samples is not None and position.samples >= 0:
            shares.append(position.samples / axis.max_samples)
        length = self._timeline.sweep_length
        if axis.max_sweeps is not None and length is not None and position.window is None:
            total = axis.place(axis.max_sweeps, 0)
            shares.append(axis.place(position.sweep, position.sequence) / total if total else 1.0)
        return min(1.0, max(shares)) if shares else None

    @property
    def num_sequences(self) -> int:
        """Number of sequences in a sweep.

        Raises:
            ValueError: it is unknown before reading.
        """
        self._table()
        length = self._timeline.sweep_length
        if length is None:
            raise ValueError(f"{self.corpus.name} has no end, so its sweeps have no number of sequences")
        return length

    @property
    def num_samples(self) -> int:
        """Number of samples in a sweep.

        Raises:
            ValueError: it is unknown before reading.
        """
        self._table()
        samples = self._timeline.sweep_samples
        if samples is None:
            raise ValueError(
                f"the number of samples in a sweep of {self.corpus.name} is unknown without a walk through its order"
            )
        return samples

    def _table(self) -> ChunkTable:
        if isinstance(self._timeline, UnsizedOrder):
            raise ValueError(
                "a corpus without chunk_info cannot be counted: that would read it; implement "
                "`UserDeserializer.chunk_info`"
            )
        return self._timeline.chunk_table

    @property
    def is_infinite(self) -> bool:
        """Whether the source is endless: neither ``max_sweeps`` nor ``max_samples`` is set."""
        return self._axis.max_sweeps is None and self._axis.max_samples is None

    def stats(self) -> Stats:
        """Return figures of reading, memory and delivery so far in this process. For a mixture also the share of each
        corpus, and for several ranks how uneven their work was in the last minibatch."""
        mixture, uneven, latest = self._mixture, self._unevenness, self._latest
        if uneven is not None:
            self._stats.balance = uneven.name
            if latest is not None and uneven.is_cheap and not self._closed:
                self._stats.unevenness = uneven.of(self._axis, *latest)
        self._stats.corpora = {} if mixture is None else mixture.shares(*self.position[:2])
        self._stats.asked_bytes = self._reader.asked_bytes
        return self._stats

    def close(self) -> None:
        """Release chunks, threads and files. The state can still be saved. Idempotent.

        Raises:
            RuntimeError: another thread is inside a call of this source.
        """
        self._close()

    def _close(self, *, interrupted: bool = False) -> None:
        if self._inside not in (None, threading.get_ident()):
            raise refusal("this source", self._inside)
        self._place, self._cursor, self._closed = self._standing(), None, True
        try:
            # Computed now, while the files are open, but not after an interrupt, as a store may not answer.
            if not (interrupted and any(map(by_ranges, self.corpus.paths()))):
                self._identity.corpus_digest()
        finally:
            self._delivery.leave()
            self._leave()
            self._reader.close()
            self.corpus.close()
            self._chunks.release()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a MinibatchSource has threads and chunks in memory and cannot be pickled or copied; "
            "create another over the same corpus and load state_dict() into it"
        )

    def __enter__(self) -> MinibatchSource:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close(interrupted=kind is not None and not issubclass(kind, Exception))

    def __repr__(self) -> str:
        window = self._timeline.window
        how = "in corpus order"
        if self._timeline.shuffle:
            how = f"shuffled by {window!r}" if window is not None else "shuffled as a whole"
        rows = "\n".join(repr(self.schema).splitlines()[1:])
        return f"MinibatchSource({self.corpus.name}, {how}, seed {self._seed}, at {self.position!r})\n{rows}"


def _joined(corpora: Sequence[Deserializer]) -> Deserializer:
    from feedline.feed.composed.join import Join

    return Join(*corpora)


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _name(function: object) -> str:
    return str(getattr(function, "__name__", "function"))
