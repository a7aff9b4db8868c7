"""Make a minibatch from a plan: read chunks, skip unreadable sequences, copy, transform.

A minibatch is delivered completely, or an error is raised and nothing is delivered. One window of chunks is held at a
time, even if a minibatch spans several. Cost: one native copy of all streams for the sequences of each window.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data import Minibatch, Position, Schema, Value
from feedline.data.chunk import makers, values_of
from feedline.data.faults import BadEntriesError
from feedline.data.minibatch import Origins
from feedline.errors import DataError
from feedline.feed.assembly import ChunkSet
from feedline.feed.joined_values import join_values
from feedline.feed.packing.axis import Axis, SegmentSlice, sweeps_of
from feedline.feed.packing.packer import Plan
from feedline.feed.packing.runs import Content, LaneRun, copy_pieces
from feedline.feed.partition import IndexAndCount
from feedline.feed.protocol import Deserializer, Ints, Ordered, is_sized, sources_of
from feedline.feed.quarantine import LISTED, ListedError, QuarantineFile
from feedline.feed.reading.copy_ahead import BegunAhead
from feedline.feed.reading.lengths import frame_error
from feedline.feed.reading.reader import Reader, Selecting, Staging
from feedline.feed.reading.stats import Stats
from feedline.feed.timeline import Segment
from feedline.feed.timeline.elements import ended_parts
from feedline.feed.transforms import Begun, DrawKeys, Map, Transform
from feedline.feed.transforms.transform import Transformed

if TYPE_CHECKING:
    from feedline.feed.composed.document_cuts import DocumentCuts
    from feedline.feed.sharing.group import Group

Mask = NDArray[np.bool_]

# Gathered sequences: the values of the readable sequences by stream, their ordinals, and a mask of them among the
# requested sequences (None if all are readable). A plain tuple, as one is made for every minibatch.
Gathered = tuple[dict[str, Value], Ints, Mask | None]


class Delivery:
    """Makes the minibatches of one source.

    Args:
        corpus: corpus of the sequences.
        axis: axis that plans refer to.
        reader: reader that holds the chunks.
        chunks: chunk set to copy from.
        transforms: transforms to run on them.
        cuts: cuts of documents after the transforms. None: sequences stay whole.
        schema: streams of minibatches.
        seed: seed of random transforms.
        frame_mode: whether to refuse sequences of more than one sample in any stream.
        quarantine: list of unreadable sequences. None if they raise.
        skip: ordinals of sequences to leave out. None if all are delivered.
        stats: statistics to update.
    """

    def __init__(
        self,
        corpus: Deserializer,
        axis: Axis,
        *,
        reader: Reader,
        chunks: ChunkSet,
        transforms: Sequence[Transform],
        cuts: DocumentCuts | None,
        schema: Schema,
        seed: int,
        frame_mode: bool,
        quarantine: QuarantineFile | None,
        skip: frozenset[int] | None = None,
        stats: Stats,
    ) -> None:
        self._corpus, self._axis, self._reader, self._chunks = corpus, axis, reader, chunks
        self._staging = reader if isinstance(reader, Staging) else None
        self._selecting = reader if isinstance(reader, Selecting) else None
        self._sources = None if corpus.capability(Ordered) is None else functools.partial(sources_of, corpus)
        self._transforms, self._cuts, self._schema = transforms, cuts, schema
        self._seed, self._frame_mode = seed, frame_mode
        self._quarantine, self._skip, self._stats = quarantine, skip, stats
        self._group: Group | None = None
        # Functions of the user run on every rank, as they may depend on it.
        self._shared_stages = len(list(itertools.takewhile(lambda stage: not isinstance(stage, Map), transforms)))
        self._schemas = [corpus.schema]  # before each transform
        for transform in transforms:
            self._schemas.append(transform.schema(self._schemas[-1]))

    @property
    def follows(self) -> bool:
        """Whether another rank reads for this one."""
        return self._group is not None and self._group.follows

    def join(self, ranks: Sequence[int], corpus_digest: str) -> bool:
        """Share minibatches with the ``ranks`` of a group that deliver the same. Return whether there is a group.

        Args:
            ranks: ranks of this machine, this one included. Fewer than two leave the group.
            corpus_digest: digest of the corpus.
        """
        self.leave()
        if len(ranks) > 1:
            skipped = None if self._skip is None else sorted(self._skip)
            stages = self._transforms[: self._shared_stages]
            content = (corpus_digest, self._corpus.schema.digest, self._seed, self._frame_mode, skipped, *stages)
            from feedline.feed.sharing.group import Group, address_of

            address = address_of(ranks, content)
            self._group = None if address is None else Group(address, self._schemas[self._shared_stages])
        return self._group is not None

    def leave(self) -> None:
        """Leave the group, if there is one."""
        if self._group is not None:
            self._group.close()
            self._group = None

    def minibatch(
        self, plan: Plan, rank: int, label_samples: int, begun: BegunAhead = None, cut: IndexAndCount = (0, 1)
    ) -> Minibatch:
        """Make the part of ``rank`` of a planned minibatch, whose position carries ``label_samples``.

        Args:
            plan: its plan.
            rank: this rank.
            label_samples: label samples of its position.
            begun: its copy, or its first transform, begun ahead. None if neither was begun.
            cut: (index, count) of the cut of each sequence that this rank gets.

        Raises:
            DataError: a chunk, or without a quarantine a sequence, cannot be read.
        """
        parts = plan.parts
        if plan.pieces is not None:
            return self._lane_minibatch(plan, rank, label_samples)
        if self._group is None:
            values, ids, good = self._gather_part(plan, rank, begun)
        else:
            values, ids, good = self._gather_shared(self._group, plan, rank, begun)
        if self._cuts is not None:
            values, samples = self._cuts.take(values, ids, cut)
        elif good is not None:
            samples = int(_column(parts, _segment_lengths, np.int64)[good].sum())
        elif len(parts) == 1:
            samples = parts[0].samples
        else:
            samples = sum(part.samples for part in parts)
        return self._deliver(plan, label_samples, len(ids), values=values, ids=ids, num_samples=samples)

    def _lane_minibatch(self, plan: Plan, rank: int, label_samples: int) -> Minibatch:
        assert plan.pieces is not None
        entered, window = set(plan.entered), plan.start.segment.plan
        runs = dict.fromkeys((*plan.entered, *(piece.run for piece in plan.pieces)))
        unread = [run for run in runs if run.content is None]
        now = [run for run in unread if run in entered or run.segment.plan is window]
        # In the order of windows: the sequences of this window that a restored lane holds are read before the next
        # window replaces it.
        now.sort(key=lambda run: (run.segment.plan.sweep, run.segment.plan.number))
        if now:
            self._store_content(now, rank, self._gather(tuple(SegmentSlice(*run.place) for run in now), rank))
        # The other runs entered before a restart, or in a lane of another rank.
        if len(now) < len(unread):
            old = [run for run in unread if run not in entered and run.segment.plan is not window]
            self._store_content(old, rank, self._gather_again(old, rank))
        values, ids, numbers, begins, samples = copy_pieces(self._schema, plan.pieces)
        return self._deliver(
            plan,
            label_samples,
            int(begins.sum()),
            values=values,
            ids=ids,
            num_samples=samples,
            lanes=numbers,
            begins=begins,
        )

    def _deliver(
        self,
        plan: Plan,
        label_samples: int,
        sequences: int,
        *,
        values: dict[str, Value],
        ids: Ints,
        num_samples: int,
        lanes: Ints | None = None,
        begins: NDArray[np.bool_] | None = None,
    ) -> Minibatch:
        """Count a minibatch in which ``sequences`` sequences begin, and return it."""
        stats = self._stats
        stats.minibatches += 1
        stats.sequences += sequences
        stats.samples += num_samples
        position = self._axis.position(plan.start, label_samples)
        return Minibatch(
            self._schema,
            values,
            ids,
            num_samples=num_samples,
            global_samples=plan.samples,
            position=position,
            sweep_end=plan.sweep_end,
            lanes=lanes,
            begins=begins,
            origins=None if self._sources is None else Origins(self._sources, self._sweep_ends(position, plan)),
        )

    def _sweep_ends(self, position: Position, plan: Plan) -> Callable[[], tuple[str, ...]]:
        timeline, segment = self._axis.timeline, plan.after.segment
        after = timeline.position_of(segment.plan, segment.start + plan.after.k)
        return functools.partial(ended_parts, timeline, position[:2], after[:2])

    # ---- whole sequences --------------------------------------------------------------------------

    def _gather_part(self, plan: Plan, rank: int, begun: BegunAhead, until: int | None = None) -> Gathered:
        """Return the readable sequences of a plan, after the transforms before stage ``until``. None: after all."""
        if not plan.parts:
            # Even for an empty part, only a chunk shows which streams have several samples per sequence.
            self._reader.take((SegmentSlice(plan.held or plan.start.segment, 0, 0),))
        return self._gather(plan.parts, rank, begun, until)

    def _gather_shared(self, group: Group, plan: Plan, rank: int, begun: BegunAhead) -> Gathered:
        """Return what `_gather_part` does, from another rank of the group if it has read it, and else for the group.

        Minibatches with unreadable sequences are not shared: every rank lists them, or raises.
        """
        ids, sweeps = _column(plan.parts, lambda s: s.ordinals, np.int64), sweeps_of(plan.parts)
        key = hashlib.blake2b(sweeps.tobytes() + ids.tobytes(), digest_size=16).digest()
        place, stages = self._axis.samples(plan.start), self._shared_stages
        values = group.receive(key, place)
        if values is not None:
            self._stats.shared_minibatches += 1
            return self._transform((values, ids, None), sweeps, rank, first=stages)
        gathered: Gathered | None = None
        try:
            gathered = self._gather_part(plan, rank, begun, stages)
        finally:
            if gathered is None:
                group.offer(key, None, place)
            else:
                group.offer(key, gathered[0] if gathered[2] is None else None, self._axis.samples(plan.after))
        return self._transform(gathered, sweeps, rank, first=stages)

    def _gather(
        self, parts: tuple[SegmentSlice, ...], rank: int, begun: BegunAhead = None, until: int | None = None
    ) -> Gathered:
        """Return the readable sequences of ``parts``, copied and transformed, see `_gather_part`."""
        holds, transformed = self._reader.holds, None
        for part in parts:
            if not holds(part.segment.plan):
                selects = self._skip is None and self._selecting is not None and self._selecting.selects(parts)
                gathered = self._select(parts, rank) if selects else self._copy_by_window(parts, rank)
                break
        else:
            if begun is None or isinstance(begun, (_native.Copy, _native.Staged)):
                gathered = self._copy(parts, rank, begun)
            else:
                self._reader.take(parts)  # to count the sequences
                gathered, transformed = ({}, _column(parts, lambda s: s.ordinals, np.int64), None), begun
        if self._transforms:
            return self._transform(gathered, sweeps_of(parts), rank, transformed, until=until)
        return gathered

    def _copy_by_window(self, parts: tuple[SegmentSlice, ...], rank: int) -> Gathered:
        """Copy like `_copy`, but release each window, or each group of windows, before the next is read."""
        done = []
        for _, group in itertools.groupby(parts, lambda part: part.segment.plan.group_key):
            same = tuple(group)
            plans = [part.segment.plan for part in same]
            if not all(map(self._reader.holds, plans)):
                self._reader.keep(plans, None)
            done.append(self._copy(same, rank))
        return _concatenate(done)

    def _copy(
        self, parts: tuple[SegmentSlice, ...], rank: int, begun: _native.Copy | _native.Staged | None = None
    ) -> Gathered:
        """Return the readable sequences of ``parts``, copied out of their chunks."""
        slots, index = self._reader.take(parts)
        if len(parts) == 1:
            segment, a, b = parts[0]
            ids = segment.ordinals[a:b]
        else:
            ids = _column(parts, lambda s: s.ordinals, np.int64)
        good = self._skip_unreadable(self._chunks.errors(slots, index), ids, rank)
        if good is not None:
            slots, index, ids = slots[good], index[good], ids[good]
        staging, chunks, which = self._staging, self._chunks, None
        if begun is None and staging is not None and staging.stages and len(index):
            begun = staging.stage(slots, index)
        if isinstance(begun, _native.Staged):
            assert staging is not None
            readable = self._skip_unreadable(staging.wait(begun, ids), ids, rank)
            if readable is not None:
                which, ids, good = np.flatnonzero(readable), ids[readable], _narrow(good, readable)
        try:
            if begun is None:
                values = chunks.gather(slots, index)
            else:
                values = chunks.finish(begun) if isinstance(begun, _native.Copy) else chunks.unstage(begun, which)
        except BadEntriesError as found:
            values, ids, good = self._remove_bad(found, ids, good, rank)
        except DataError:
            if which is not None:
                slots, index = slots[which], index[which]
            again = None
            if self._quarantine is not None and staging is not None:
                again = staging.stage_again(slots, index)
            if again is None:
                raise
            values, ids, good = self._read_again(again, ids, good, rank)
        if self._skip is not None:  # chunks do not mark them, as some readers look at mapped chunks only once
            listed = {i: LISTED for i, ordinal in enumerate(ids.tolist()) if ordinal in self._skip}
            values, ids, good = self._remove(listed, values, ids, good, rank)
        if self._frame_mode:
            self._check_frames(values, ids)
        return values, ids, good

    def _read_again(self, staged: _native.Staged, ids: Ints, good: Mask | None, rank: int) -> Gathered:
        """Read sequences one by one that could not be copied in one call, and skip the unreadable ones."""
        assert self._staging is not None
        readable = self._skip_unreadable(self._staging.wait(staged, ids), ids, rank)
        which = None if readable is None else np.flatnonzero(readable)
        if readable is not None:
            ids, good = ids[readable], _narrow(good, readable)
        try:
            return self._chunks.unstage(staged, which), ids, good
        except BadEntriesError as error:
            return self._remove_bad(error, ids, good, rank)

    def _remove_bad(self, error: BadEntriesError, ids: Ints, good: Mask | None, rank: int) -> Gathered:
        values = values_of(makers(self._corpus.schema), error.arrays)
        errors = error.errors(list(self._corpus.schema), ids.tolist(), self._corpus.name)
        return self._remove(errors, values, ids, good, rank)

    def _transform(
        self,
        gathered: Gathered,
        sweeps: Ints,
        rank: int,
        begun: Begun | None = None,
        *,
        first: int = 0,
        until: int | None = None,
    ) -> Gathered:
        """Run the transforms in turn on gathered sequences.

        Args:
            gathered: the sequences, without values if the first transform has begun.
            sweeps: int64, sweep of each requested sequence.
            rank: this rank.
            begun: the first transform, begun ahead on all sequences.
            first, until: stages to run: from ``first`` to before ``until``. None: to the last.
        """
        values, ids, good = gathered
        stats, began = self._stats, time.perf_counter()
        for stage, transform in enumerate(self._transforms[first:until], first):
            if begun is not None and stage == 0:
                done = begun.result()
            else:
                keys = DrawKeys(self._seed, sweeps if good is None else sweeps[good], ids, stage)
                done = transform.run_all(self._schemas[stage], values, keys)
            self._count_transform(done, ids)
            values, ids, good = self._remove(done.errors, done.values, ids, good, rank)
        stats.transform_wait_seconds += time.perf_counter() - began
        return values, ids, good

    def _count_transform(self, done: Transformed, ids: Ints) -> None:
        stats = self._stats
        stats.transform_seconds += done.seconds
        if done.slowest is not None:
            seconds, i = done.slowest
            stats.sequence_durations.count(done.seconds / len(ids), len(ids))
            stats.sequence_durations.note(seconds, lambda: f"{self._corpus.name}, sequence {ids[i]}")

    def _check_frames(self, values: dict[str, Value], ids: Ints) -> None:
        """Check the streams that do not count towards the budget. They may be longer than the streams that do."""
        for name, value in values.items():
            if not value.one_sample_each and (value.lengths != 1).any():
                bad = int(np.flatnonzero(value.lengths != 1)[0])
                raise frame_error(self._corpus, int(value.lengths[bad]), int(ids[bad]), name)

    def _skip_unreadable(self, errors: Mapping[int, DataError], ids: Ints, rank: int) -> Mask | None:
        """Raise or record the errors of unreadable sequences. Return a mask of the readable ones, or None if all
        are."""
        if not errors:
            return None
        good = np.ones(len(ids), np.bool_)
        for i, unplaced in sorted(errors.items()):
            if isinstance(unplaced, ListedError) or (self._skip is not None and int(ids[i]) in self._skip):
                self._stats.skipped += 1
                good[i] = False
                continue
            error = unplaced.located(path=self._corpus.name, sequence=int(ids[i]))
            if self._quarantine is None:
                note = f"{len(errors)} of the {len(ids)} sequences of this minibatch are unreadable"
                raise _noted(error, note) from error.__cause__
            self._quarantine.add(int(ids[i]), error, rank)
            self._stats.skipped += 1
            good[i] = False
        return good

    def _remove(
        self, errors: Mapping[int, DataError], values: dict[str, Value], ids: Ints, good: Mask | None, rank: int
    ) -> Gathered:
        """Remove sequences that turned out to be unreadable, and raise or record their errors."""
        readable = self._skip_unreadable(errors, ids, rank)
        if readable is None:
            return values, ids, good
        which = np.flatnonzero(readable)
        return {name: value.select(which) for name, value in values.items()}, ids[which], _narrow(good, readable)

    # ---- runs in lanes ----------------------------------------------------------------------------

    def _gather_again(self, runs: Sequence[LaneRun], rank: int) -> Gathered:
        """Gather sequences whose window may have been released. Reads only their chunks, if these are known."""
        parts = tuple(SegmentSlice(*run.place) for run in runs)
        in_memory = all(self._reader.holds(part.segment.plan) for part in parts)
        gathered = self._copy(parts, rank) if in_memory or not is_sized(self._corpus) else self._select(parts, rank)
        return self._transform(gathered, sweeps_of(parts), rank) if self._transforms else gathered

    def _select(self, parts: tuple[SegmentSlice, ...], rank: int) -> Gathered:
        """Return the readable sequences of ``parts``, selected from the corpus one by one."""
        ids = _column(parts, lambda s: s.ordinals, np.int64)
        chunk = self._corpus.select(ids)
        good = self._skip_unreadable(chunk.errors, ids, rank)
        if good is not None:
            chunk, ids = chunk.take(np.flatnonzero(good)), ids[good]
        if self._frame_mode:
            self._check_frames(chunk.values, ids)
        return chunk.values, ids, good

    def _store_content(self, runs: Sequence[LaneRun], rank: int, gathered: Gathered) -> None:
        """Store the gathered sequences in ``runs``, if each sequence has the same length in all streams."""
        values, ids, good = gathered
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
                        path=self._corpus.name,
                        sequence=int(ids[i]),
                        stream=name,
                        hint="leave out truncation_length to read sequences whole",
                    ),
                )
        values, ids, good = self._remove(uneven, values, ids, good, rank)
        rows = [0, *np.cumsum(lengths if good is None else lengths * good).tolist()]
        at = 0
        for run in runs:
            run.content = Content(values, rows[at : at + run.b - run.a + 1])
            at += run.b - run.a


def _narrow(good: Mask | None, which: Mask) -> Mask:
    """Restrict the mask ``good`` to the mask ``which`` of its true entries."""
    if good is None:
        return which
    good = good.copy()
    good[good] = which
    return good


def _concatenate(parts: Sequence[Gathered]) -> Gathered:
    """Concatenate sequences that were gathered in several steps."""
    if len(parts) == 1:
        return parts[0]
    columns, ordinals, masks = zip(*parts, strict=True)
    good = None
    if any(mask is not None for mask in masks):
        all_of = (
            np.ones(len(ids), np.bool_) if mask is None else mask for ids, mask in zip(ordinals, masks, strict=True)
        )
        good = np.concatenate(list(all_of))
    values = {name: join_values([column[name] for column in columns]) for name in columns[0]}
    return values, np.concatenate(ordinals), good


def _segment_lengths(segment: Segment) -> Ints:
    return np.ones(segment.n, np.int64) if segment.ends is None else np.diff(segment.ends)


def _column(parts: tuple[SegmentSlice, ...], column: Callable[[Segment], Any], dtype: Any) -> NDArray[Any]:
    """Return a column of the segments of all parts, concatenated."""
    if not parts:
        return np.empty(0, dtype)
    return np.concatenate([column(part.segment)[part.a : part.b] for part in parts])


def _noted(error: DataError, note: str) -> DataError:
    """Return a copy of an error, with a note. The traceback of the chunk's own error would keep the chunk, and all
    callers, alive."""
    copied = copy.copy(error)
    copied.add_note(note)
    return copied
