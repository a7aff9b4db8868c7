"""Windows in time: samples made of their neighbours in the same sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.data import Chunk, Schema, Stream, Value
from feedline.data.schema import PRESENT
from feedline.data.value import BytesValue, DenseValue
from feedline.data.windowed import WindowedRows, WindowPlaces
from feedline.errors import DataError, SchemaError
from feedline.feed.composed.concat import check_part, lengths_of
from feedline.feed.composed.frames import take_rows
from feedline.feed.composed.windows.grouped_rows import GroupedRows
from feedline.feed.composed.windows.sample_clock import SampleClock
from feedline.feed.files.digest import ContentDigest
from feedline.feed.formats.missing import Filling, fill
from feedline.feed.joined_values import in_sequences
from feedline.feed.protocol import ChunkInfo, Deserializer, Ints, chunk_starts, stream_lengths, whole_number


class TimeWindows(Deserializer):
    """A corpus whose samples are windows of their neighbours in time: a stream of shape ``shape`` gets the shape
    ``(offsets, *shape)``.

    A window ends where its sequence does. For each stream whose windows may reach beyond there is a mask
    ``<name>_present``, bool (offsets,), False there, and where the sample is missing.

    Dense samples are not copied before a minibatch is. With ``within``, each window is a sequence of its own. Without
    it, sequences stay, and `Frames` makes each window one.

    Args:
        corpus: corpus whose sequences have several samples or, with ``within``, one. It must know their lengths before
            reading.
        windows: for each of some streams the offsets of its samples from the present one, such as ``range(0, 50)`` or
            ``(-1, 0)``: in samples or, with ``seconds``, in seconds. Dense streams or, with ``within``, byte strings,
            which become one sample for each offset, with one bool each in the mask.
        within: the sequences of ``corpus`` have one sample each, and consecutive ones with the same value of this
            stream belong together. All data are read once for that. Instead of its name, the lengths of the sequences
            that they make up, int64 (m,).
        every: number of samples from one window to the next, counted from the beginning of each sequence.
        pad: ``"edge"`` repeats the first or last sample of a sequence beyond its ends, ``"zeros"`` has zeros or empty
            byte strings there, and ``"drop"`` leaves out the windows that would need them, so that there is no mask.
        seconds: name of a stream of timestamps that ascend in each sequence, of shape (): seconds or, with a unit such
            as ``"timestamp[ms]"``, what that says. For streams that are sampled at different rates, the name by stream:
            ``{"action": "action_time", "image": "image_time"}``. Then windows are around the samples of the first, and
            the timestamps of the others are left out unless they have windows, too.
        tolerance: seconds by which the timestamp of a sample may differ from where a window has it. If no sample is as
            near, between the first and the last one, the window is unreadable. Without ``within`` its sequence is.

    Attributes:
        windows: offsets by stream.

    Raises:
        DataError: there is no window, or a row is unreadable where ``within`` changes.
        SchemaError: a stream does not exist, is sparse, or is one of byte strings without ``within``.
        TypeError, ValueError: an argument of another kind or out of range, or a corpus of another kind.
    """

    def __init__(
        self,
        corpus: Deserializer,
        windows: Mapping[str, Sequence[float]],
        *,
        within: Any = None,
        every: int = 1,
        pad: str = "edge",
        seconds: str | Mapping[str, str] | None = None,
        tolerance: float = 1e-4,
    ) -> None:
        check_part(corpus, type(self).__name__)
        if pad not in ("edge", "zeros", "drop"):
            raise ValueError(f"expected pad 'edge', 'zeros' or 'drop', got {pad!r}")
        if seconds is not None and pad == "drop":
            raise ValueError("expected pad 'edge' or 'zeros' with seconds, as timestamps decide, got 'drop'")
        if not isinstance(windows, Mapping) or not windows:
            raise TypeError(f"expected offsets by stream, such as {{'x': range(0, 5)}}, got {windows!r:.60}")
        self.name = f"{corpus.name}, in windows"
        self.corpus = corpus if within is None else GroupedRows(corpus, within)
        self._alone = within is not None  # each window is a sequence
        self._every, self._pad = whole_number("every", every, 1), pad
        by_stream = dict(seconds) if isinstance(seconds, Mapping) else {}
        first = next(iter(by_stream.values()), None) if isinstance(seconds, Mapping) else seconds
        self._clock = None if seconds is None else SampleClock(corpus.schema, first, tolerance)
        self._clocks = _other_clocks(corpus.schema, by_stream, first, tolerance)
        self._offsets = {name: _checked_offsets(name, offsets, self._clock) for name, offsets in windows.items()}
        for name, clock in self._clocks.items():
            if name not in self._offsets and name != clock.stream:
                raise ValueError(f"expected offsets of `{name}`, whose samples are taken at other times, got none")
        self.windows = {name: tuple(at.tolist()) for name, at in self._offsets.items()}
        self.schema = self._windowed_schema(corpus.schema)
        self._starts = chunk_starts(self.corpus)
        self._counts = self._window_counts(self._lengths_of(np.arange(self._starts[-1])))
        windows_of = np.diff(np.concatenate([[0], np.cumsum(self._counts)])[self._starts])
        if not self._counts.any():
            raise DataError("expected at least one window, got none: all sequences are shorter", path=corpus.name)
        self._numbers: Ints = np.flatnonzero(windows_of) if self._alone else np.arange(len(windows_of))
        self._infos = [
            ChunkInfo(info.sequences if not self._alone else count, count, info.bytes)
            for info, count in zip(self.corpus.chunks(), windows_of.tolist(), strict=True)
            if count or not self._alone
        ]

    # ---- description ------------------------------------------------------------------------------

    def chunks(self) -> list[ChunkInfo]:
        """Return the size of every chunk."""
        return self._infos

    def lengths(self, ordinals: Ints) -> Ints | None:
        """Return the windows of the sequences ``ordinals``, int64 (n,), or None if each is a window."""
        return None if self._alone else self._counts[ordinals]

    def digest(self) -> str:
        """Return 32 hex digits over the corpus's digest and the windows."""
        content = ContentDigest()
        content.text(self.corpus.digest().encode())
        clock: Any = None if self._clock is None else (self._clock.stream, self._clock.tolerance)
        if self._clocks:
            clock = (*clock, sorted((name, clock.stream) for name, clock in self._clocks.items()))
        offsets = {name: steps.tolist() for name, steps in sorted(self._offsets.items())}
        content.text(repr((offsets, self._alone, self._every, self._pad, clock)).encode())
        return content.hexdigest()

    def paths(self) -> list[str]:
        """Return the paths of the corpus."""
        return list(self.corpus.paths())

    def close(self) -> None:
        """Close the corpus."""
        self.corpus.close()

    def _windowed_schema(self, before: Schema) -> Schema:
        streams: dict[str, Stream] = {}
        for name, stream in before.items():
            masked = name.removesuffix(PRESENT)
            if name not in self._offsets and name in self._clocks:
                continue
            if name in self._offsets:
                streams[name] = self._windowed_stream(name, stream)
            elif masked != name and masked in self._offsets and _is_mask(stream):
                streams[name] = self._mask_stream(masked, before)
            else:
                streams[name] = stream
        for name in self._offsets:
            if name not in before:
                raise SchemaError(f"expected streams {', '.join(before)} for windows, got `{name}`")
            if self._needs_mask(name) and name + PRESENT not in streams:
                streams[name + PRESENT] = self._mask_stream(name, before)
            elif self._needs_mask(name) and not _is_mask(before[name + PRESENT]):
                raise SchemaError(
                    f"expected no stream `{name}{PRESENT}` other than a mask, which windows of `{name}` add: open that "
                    "stream under another name"
                )
        if self._alone and any(stream.is_bytes and name in self._offsets for name, stream in streams.items()):
            # Byte strings have several samples, so another stream says that a window counts as one.
            size = next((name for name, stream in streams.items() if not self._is_several(name, before)), None)
            if size is None:
                raise SchemaError("expected a stream without windows of byte strings, to count windows, got none")
            streams = {name: replace(stream, defines_size=name == size) for name, stream in streams.items()}
        return Schema(streams)

    def _is_several(self, name: str, before: Schema) -> bool:
        """Return whether a window has several samples of a stream."""
        of = name if name in self._offsets else name.removesuffix(PRESENT)
        return of in self._offsets and before[of].is_bytes

    def _windowed_stream(self, name: str, stream: Stream) -> Stream:
        if stream.sparse:
            raise SchemaError(f"expected dense numbers or byte strings in windows, got the sparse stream `{name}`")
        if not stream.is_bytes:
            return replace(stream, shape=(len(self._offsets[name]), *stream.shape), field=None)
        if not self._alone:
            raise SchemaError(
                f"expected dense numbers in windows of sequences, got byte strings in `{name}`: make samples sequences "
                "first, with TimeWindows(Frames(corpus), ..., within=lengths)"
            )
        return stream

    def _mask_stream(self, name: str, before: Schema) -> Stream:
        return Stream(() if before[name].is_bytes else (len(self._offsets[name]),), "bool")

    def _needs_mask(self, name: str) -> bool:
        return self._pad != "drop" and (bool(self._offsets[name].any()) or name in self._clocks)

    def _lengths_of(self, ordinals: Ints) -> Ints:
        """Return the samples of sequences around which there are windows."""
        if self._clock is not None and self._clocks:
            of_first = stream_lengths(self.corpus, self._clock.stream)
            if of_first is not None:
                return of_first(ordinals)
        return lengths_of(self.corpus, ordinals)

    # ---- reading ----------------------------------------------------------------------------------

    def _window_counts(self, lengths: Ints) -> Ints:
        """Return how many windows there are in sequences of some lengths."""
        lowest, beyond = self._margins()
        counts: Ints = np.maximum(0, -((lowest + beyond - lengths) // self._every))
        return counts

    def _margins(self) -> tuple[int, int]:
        """Return the first position of a window in a sequence, and how many samples at its end have none."""
        if self._pad != "drop":
            return 0, 0
        least = min(int(steps.min()) for steps in self._offsets.values())
        most = max(int(steps.max()) for steps in self._offsets.values())
        return -(min(least, 0) // self._every) * self._every, max(most, 0)

    def read(self, chunk: int) -> Chunk:
        """Return the windows of a chunk. Raises the errors of the corpus."""
        number = int(self._numbers[chunk])
        part, of_rows = self._read_rows(number)
        ordinals = np.arange(self._starts[number], self._starts[number + 1])
        errors = self._uneven(part, self._lengths_of(ordinals)) | dict(part.errors)
        times = _Times(self._clock, self._clocks, part, np.array(sorted(of_rows), np.int64))
        errors = times.disorder() | errors
        counts = self._counts[ordinals]
        if not self._alone:
            counts = np.where(_flags(errors, len(ordinals)), 0, counts)
        offsets: Ints = np.concatenate([[0], np.cumsum(counts)])
        owners = np.repeat(np.arange(len(ordinals)), counts)
        places = self._margins()[0] + (np.arange(offsets[-1]) - offsets[owners]) * self._every
        windows = _Windows(part, owners, places)
        steps = {name: windows.steps(name, at, times) for name, at in self._offsets.items()}
        values: dict[str, Value] = {}
        for name in self.schema:
            of = name if name in steps else name.removesuffix(PRESENT)
            if of not in steps:
                values[name] = windows.middle_samples(name)
            elif of == name:
                values[name] = windows.of_samples(name, steps[name], zeros=self._pad == "zeros")
            else:
                values[name] = windows.of_mask(of, steps[of])
        of_windows = windows.errors(steps, of_rows, times, zeros=self._pad == "zeros")
        if not self._alone:
            for i, error in of_windows.items():
                errors.setdefault(int(owners[i]), error)
            values = {name: in_sequences(value, offsets) for name, value in values.items()}
            return Chunk(self.schema, values, errors, seals=part.seals)
        bad = np.flatnonzero(_flags(errors, len(ordinals))[owners]).tolist()
        return Chunk(self.schema, values, of_windows | {i: errors[int(owners[i])] for i in bad}, seals=part.seals)

    def _read_rows(self, number: int) -> tuple[Chunk, dict[int, DataError]]:
        """Return a chunk of sequences, and the errors of single rows."""
        if isinstance(self.corpus, GroupedRows):
            return self.corpus.read_rows(number)
        return self.corpus.read(number), {}

    def _uneven(self, chunk: Chunk, lengths: Ints) -> dict[int, DataError]:
        """Return the errors of sequences of which a stream has another number of samples than it should."""
        errors: dict[int, DataError] = {}
        for name, value in chunk.values.items():
            clock = self._clocks.get(name, self._clocks.get(name.removesuffix(PRESENT)))
            expected = lengths if clock is None else chunk[clock.stream].lengths
            as_in = "the sequence" if clock is None else f"`{clock.stream}`"
            hint = "declare the first stream in seconds with defines_size=True" if self._clocks else None
            for i in np.flatnonzero(value.lengths != expected).tolist():
                what = f"expected {expected[i]} samples, as {as_in} has, for windows, got {value.lengths[i]}"
                errors.setdefault(i, DataError(what, stream=name, hint=hint))
            for i in np.flatnonzero(value.lengths == 0).tolist() if clock is not None else ():
                errors.setdefault(i, DataError("expected at least one sample for windows, got none", stream=name))
        return errors


class _Times:
    """When the samples of a chunk were taken.

    Args:
        clock: that of the present samples. None: windows are not in seconds.
        clocks: by stream, those of streams with another one.
        chunk: the sequences.
        unreadable: rows that are unreadable, ascending int64 (n,).
    """

    def __init__(
        self, clock: SampleClock | None, clocks: Mapping[str, SampleClock], chunk: Chunk, unreadable: Ints
    ) -> None:
        self.clock, self.unreadable = clock, unreadable
        self._clocks, self._chunk = clocks, chunk
        self._times: dict[str, NDArray[np.float64]] = {}
        if clock is not None:
            origin = clock.origin(chunk, unreadable)
            for stream, each in {clock.stream: clock, **{each.stream: each for each in clocks.values()}}.items():
                self._times[stream] = each.times(chunk, origin, unreadable)

    def of(self, name: str) -> tuple[SampleClock | None, NDArray[np.float64]]:
        """Return the clock of a stream, and when its samples were taken, in seconds from an origin for all streams."""
        clock = self._clocks.get(name, self.clock)
        return clock, np.empty(0) if clock is None else self._times[clock.stream]

    def disorder(self) -> dict[int, DataError]:
        """Return the errors of sequences whose timestamps do not ascend, by index."""
        errors: dict[int, DataError] = {}
        for clock in () if self.clock is None else (*self._clocks.values(), self.clock):
            errors |= clock.disorder(self._times[clock.stream], self._chunk[clock.stream].offsets, self.unreadable)
        return errors


class _Windows:
    """The windows of a chunk, one sequence each.

    Args:
        chunk: the sequences.
        owners: int64 (n,), index of the sequence that each window is in.
        places: int64 (n,), place of its present sample in that sequence.
    """

    def __init__(self, chunk: Chunk, owners: Ints, places: Ints) -> None:
        self._chunk, self._owners, self._places = chunk, owners, places

    def _bounds(self, name: str) -> tuple[Ints, Ints, Ints]:
        """Return the rows of present samples in a stream, and the bounds of the rows of their sequences."""
        bounds = self._chunk[name].offsets
        firsts = bounds[self._owners]
        return firsts + self._places, firsts, bounds[self._owners + 1]

    def steps(self, name: str, offsets: NDArray[Any], times: _Times) -> Ints:
        """Return the samples of the windows of a stream: their distances from the present samples, int64 (k,), or
        places in the sequence, int64 (n, k), -2 if there is none."""
        if times.clock is None:
            return offsets
        rows, own_firsts, own_ends = self._bounds(times.clock.stream)
        (clock, moments), present = times.of(name), times.of(times.clock.stream)[1]
        assert clock is not None
        if clock is times.clock and not len(times.unreadable):
            steps = clock.steps(moments, rows, own_firsts, own_ends, offsets)
            if steps is not None:
                return steps
        _, firsts, ends = self._bounds(clock.stream)
        with np.errstate(invalid="ignore"):  # rows of unknown time
            places: Ints = clock.nearest(moments, present[rows, None] + offsets, firsts, ends)
        return places - firsts[:, None]

    def errors(
        self, steps: Mapping[str, Ints], of_rows: Mapping[int, DataError], times: _Times, *, zeros: bool
    ) -> dict[int, DataError]:
        """Return the errors of windows that need an unreadable row, or for which there is no sample, by index."""
        errors: dict[int, DataError] = {}
        for name, places in steps.items():
            clock = times.of(name)[0]
            if clock is not None and places.ndim > 1:
                what = f"expected a sample within {clock.tolerance:g} s of each time in a window, got none"
                for i in np.flatnonzero((places == -2).any(axis=1)).tolist():
                    errors.setdefault(i, DataError(what, stream=clock.stream))
        _, firsts, ends = self._bounds(next(iter(steps)))
        damaged = np.searchsorted(times.unreadable, firsts) < np.searchsorted(times.unreadable, ends)
        for i in np.flatnonzero(damaged).tolist():
            row = next((row for row in self._needed_rows(i, steps, zeros=zeros) if row in of_rows), None)
            if row is not None:
                errors[i] = of_rows[row]
        return errors

    def _needed_rows(self, i: int, steps: Mapping[str, Ints], *, zeros: bool) -> list[int]:
        """Return the rows that a window needs, if all streams have the same rows."""
        present, first, end = (int(rows[i]) for rows in self._bounds(next(iter(steps))))
        needed = [np.array([present])]
        for at in steps.values():
            places = present + at if at.ndim == 1 else first + at[i]
            inside = (first <= places) & (places < end)
            needed.append(places[inside] if zeros else np.clip(places, first, end - 1))
        rows: list[int] = np.concatenate(needed).tolist()
        return rows

    def middle_samples(self, name: str) -> Value:
        """Return the present samples."""
        value, rows = self._chunk[name], self._bounds(name)[0]
        if len(rows) == value.num_samples and (np.diff(rows, prepend=-1) == 1).all():
            return in_sequences(value, None)
        return take_rows(value, rows)

    def of_samples(self, name: str, steps: Ints, *, zeros: bool) -> Value:
        """Return the windows of a stream."""
        value, (rows, firsts, ends) = self._chunk[name], self._bounds(name)
        if isinstance(value, DenseValue):
            return _windowed(np.ascontiguousarray(value.rows), rows, firsts, ends, steps, zeros=zeros)
        assert isinstance(value, BytesValue)
        places = rows[:, None] + steps if steps.ndim == 1 else firsts[:, None] + steps
        near = np.clip(places, firsts[:, None], ends[:, None] - 1)
        taken = take_rows(value, near.reshape(-1))
        if zeros:
            taken = fill(taken, (near != places).reshape(-1), Filling("" if value.text else b"", mask=False))
        return in_sequences(taken, np.arange(len(rows) + 1) * near.shape[1])

    def of_mask(self, name: str, steps: Ints) -> Value:
        """Return the mask of the windows of a stream."""
        mask = self._chunk.values.get(name + PRESENT)
        present = np.ones(self._chunk[name].num_samples, np.bool_) if mask is None else np.ascontiguousarray(mask.rows)
        value = _windowed(present, *self._bounds(name), steps, zeros=True)
        if not isinstance(self._chunk[name], BytesValue):
            return value
        flags = value.rows
        return DenseValue(flags.reshape(-1), np.arange(len(flags) + 1) * flags.shape[1])


def _windowed(array: NDArray[Any], rows: Ints, firsts: Ints, ends: Ints, steps: Ints, *, zeros: bool) -> DenseValue:
    if not len(rows):
        return DenseValue(np.empty((0, steps.shape[-1], *array.shape[1:]), array.dtype), None)
    places = WindowPlaces(rows, firsts, ends, steps)
    if steps.ndim > 1:
        places = WindowPlaces(firsts[:, None] + steps, firsts, ends, None)
    return WindowedRows(array, places, (steps.shape[-1], *array.shape[1:]), zeros=zeros)


def _flags(errors: Mapping[int, DataError], count: int) -> NDArray[np.bool_]:
    flags = np.zeros(count, np.bool_)
    flags[list(errors)] = True
    return flags


def _other_clocks(
    schema: Schema, by_stream: Mapping[str, str], first: str | None, tolerance: float
) -> dict[str, SampleClock]:
    """Return the clocks other than the first, by stream. A stream of timestamps has itself as its clock."""
    for name in by_stream:
        if name not in schema:
            raise SchemaError(f"expected streams {', '.join(schema)} in seconds, got `{name}`")
    clocks = {stream: SampleClock(schema, stream, tolerance) for stream in by_stream.values() if stream != first}
    return {name: clocks[stream] for name, stream in by_stream.items() if stream in clocks} | clocks


def _is_mask(stream: Stream) -> bool:
    return stream.dtype == np.bool_ and not stream.shape and not stream.sparse


def _checked_offsets(name: str, offsets: Any, clock: SampleClock | None) -> NDArray[Any]:
    array = np.asarray(list(offsets) if isinstance(offsets, (range, Sequence, np.ndarray)) else offsets)
    if array.ndim != 1 or not array.size or array.dtype.kind not in ("iuf" if clock is not None else "iu"):
        kind = "integers" if clock is None else "seconds"
        raise TypeError(f"expected offsets of `{name}` as a list of {kind}, got {offsets!r:.60}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"expected finite offsets of `{name}`, got {offsets!r:.60}")
    return array.astype(np.float64 if clock is not None else np.int64)
