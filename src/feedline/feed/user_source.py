"""A user-defined source that makes minibatches itself, like CNTK's `UserMinibatchSource`.

For data that no corpus of chunks describes: generated, streamed, or sampled in its own order. The author supplies the
next samples and the position. This class makes a feed of them.
"""

from __future__ import annotations

import abc
import functools
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from feedline.data import Minibatch, Position, Schema, Span, Stream
from feedline.data.minibatch import RankShare
from feedline.data.value import counted_lengths
from feedline.errors import SchemaError, StateError
from feedline.feed import states
from feedline.feed.partition import FixedShare, Partition, PartitionLike, partition_of, refuse_cut
from feedline.feed.progress_bar import Progress
from feedline.feed.protocol import whole_number
from feedline.feed.spans import upto
from feedline.feed.user_values import convert_values

STATE_VERSION = 1
DEFAULT_MINIBATCH_SIZE = 256


class UserMinibatch(NamedTuple):
    """A minibatch returned by `UserMinibatchSource.make_minibatch` with more than data.

    Attributes:
        streams: data by stream name.
        sweep_end: whether the global minibatch completes a sweep.
        global_samples, global_sequences: size of the global minibatch, over all ranks. None: the size of this part.
        ids: int64 (num_sequences,), identifier of each sequence. None: numbers in delivered order.
    """

    streams: Mapping[str, Any]
    sweep_end: bool = False
    global_samples: int | None = None
    global_sequences: int | None = None
    ids: ArrayLike | None = None


class UserMinibatchSource(abc.ABC):
    """Base class of user-defined sources. Define ``make_minibatch`` and either ``streams`` or the attribute ``schema``.

    To resume, also define ``get_checkpoint_state`` and ``restore_from_checkpoint``. There is no ``__init__`` to call.
    The source works wherever a `MinibatchSource` does.

    The author is responsible for what feedline otherwise guarantees about data:

    - one order: the same state and calls give the same minibatches, under any number of ranks
    - no losses, no repeats: the parts of all ranks make up the data, and all of them end
    - equal steps: every rank gets the same number of minibatches, with an empty part if it has no data
    - the budget: at most ``num_samples`` samples over all ranks, or a single longer sequence
    - one clock: ``global_samples`` and ``global_sequences`` are the same on all ranks. Without them ``position``
      counts the samples of this rank, and positions and states differ between ranks.

    feedline guarantees that streams are as declared, that states are JSON, that the position advances only when a
    minibatch has been delivered, and that every minibatch after the end is false.

    Attributes:
        partition: the share of this rank, see `Partition`. None: that of the mesh or the ranks of the program.
        device: passed to ``make_minibatch``. feedline's own values stay in host memory until
            ``minibatch["x"].torch(device)``.
        is_infinite: whether the source never ends.
    """

    partition: PartitionLike | None = None
    device: Any = None
    is_infinite: bool = False

    # ---- for subclasses ---------------------------------------------------------------------------

    def streams(self) -> Mapping[str, Stream]:
        """Return the streams delivered, by name. Called once."""
        raise NotImplementedError(f"{type(self).__name__} defines neither `streams()` nor the attribute `schema`")

    @abc.abstractmethod
    def make_minibatch(
        self, num_samples: int, number_of_workers: int, worker_rank: int, device: Any
    ) -> Mapping[str, Any] | UserMinibatch | None:
        """Return the next minibatch, or this rank's part of it.

        Args:
            num_samples: maximum number of samples over all ranks, as the longest stream counts them.
            number_of_workers, worker_rank: number of ranks, and this rank, 0 <= worker_rank < number_of_workers:
                deliver only its part.
            device: device on which the caller prefers the data.

        Returns:
            Data by stream name: an array ``(N, *shape)`` or SciPy sparse matrix ``(N, size)`` of N sequences of one
                sample, a list of arrays ``(length, *shape)`` or sparse matrices, or a `Value`. N may be 0. A
                `UserMinibatch` to return more than data. None or ``{}`` at the end.
        """

    def get_checkpoint_state(self) -> Mapping[str, Any]:
        """Return the position of the source, in JSON types."""
        return {}

    def restore_from_checkpoint(self, state: dict[str, Any]) -> None:
        """Seek to where ``state`` was taken. The same minibatches must follow."""
        raise NotImplementedError

    # ---- the feed ---------------------------------------------------------------------------------

    @functools.cached_property
    def schema(self) -> Schema:
        """The streams delivered."""
        return Schema(self.streams())

    @functools.cached_property
    def _progress(self) -> _Progress:
        return _Progress()

    @functools.cached_property
    def _partition(self) -> FixedShare:
        partition = Partition() if self.partition is None else partition_of(self.partition)
        refuse_cut(partition, "a source of your own", "cut its minibatches in `make_minibatch`")
        return FixedShare(partition)

    def next_minibatch(self, size: int, partition: PartitionLike | None = None) -> Minibatch:
        """Return the next minibatch, or this rank's part of it.

        Args:
            size: maximum number of samples over all ranks.
            partition: the share for this call only, instead of the source's own.

        Returns:
            A true `Minibatch`, possibly with an empty part. After the end a false one, every time.

        Raises:
            SchemaError: the data differs from the declarations.
            Exception: an error of ``make_minibatch``.
        """
        return self._next(size, partition)

    def _next(self, size: int, partition: PartitionLike | None) -> Minibatch:
        size = whole_number("a minibatch size", size, 1)
        index, count = self._partition.resolve(partition)
        progress = self._progress
        result = None if progress.ended else self.make_minibatch(size, count, index, self.device)
        returned = result if isinstance(result, UserMinibatch) else UserMinibatch(result or {})
        if not returned.streams:
            progress.ended = True
            return Minibatch.end(self.schema, self.position)
        values = convert_values(self.schema, returned.streams, f"make_minibatch of {type(self).__name__}")
        minibatch = progress.deliver(self.schema, values, returned)
        minibatch.share = RankShare(index, count)
        return minibatch

    def minibatches(
        self,
        size: int = DEFAULT_MINIBATCH_SIZE,
        until: Span | None = None,
        partition: PartitionLike | None = None,
        *,
        progress: Progress = None,
    ) -> Iterator[Minibatch]:
        """Yield minibatches from the current position to the end of the source.

        Args:
            size: see `next_minibatch`.
            until: stop after the minibatch that completes this span, counted from here.
            partition: see `next_minibatch`.
            progress: see `MinibatchSource.minibatches`.
        """
        return upto(lambda: self._next(size, partition), until, progress=progress)

    def __iter__(self) -> Iterator[Minibatch]:
        """Yield minibatches of 256 samples to the end of the source."""
        return self.minibatches()

    @property
    def position(self) -> Position:
        """The position after the last minibatch delivered. ``sequence`` counts sequences since the end of the last
        sweep."""
        return self._progress.position

    def count_label_samples(self, count: int) -> None:
        """Add label samples, summed over all ranks, to the clock. Trainers call it once per update."""
        self._progress.position = states.add_label_samples(self._progress.position, count)

    def state_dict(self) -> dict[str, Any]:
        """Return the state in JSON types: the clock, and the result of ``get_checkpoint_state``.

        Raises:
            StateError: ``get_checkpoint_state`` returns something other than JSON types.
        """
        state = None
        if self.resumes:
            state = self.get_checkpoint_state()
            _check_json(state, f"{type(self).__name__}.get_checkpoint_state()")
            state = json.loads(json.dumps(state))  # a copy, unaffected by the author's later changes
        p = self.position
        return {
            "feedline": STATE_VERSION,
            "order": "user",
            "schema": self.schema.digest,
            "sweep": p.sweep,
            "sequence": p.sequence,
            "samples": p.samples,
            "label_samples": p.label_samples,
            "sequences": self._progress.sequences,
            "state": state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Seek to where ``state`` was taken.

        Raises:
            StateError: the state belongs to another kind of source or other streams, the class cannot be restored, or
                ``restore_from_checkpoint`` raised (see the cause).
        """
        if not isinstance(state, Mapping) or "feedline" not in state:
            raise StateError(f"expected a state of a feedline source, got {type(state).__name__}")
        identity = {"feedline": STATE_VERSION, "order": "user", "schema": self.schema.digest}
        saved = {key: state.get(key) for key in identity}
        differing = [
            key for key in identity if type(saved[key]) is not type(identity[key]) or saved[key] != identity[key]
        ]
        if differing:
            raise StateError(
                "this state was taken from another kind of source or other streams",
                saved={key: saved[key] for key in differing},
                current={key: identity[key] for key in differing},
            )
        try:
            keys = ("sweep", "sequence", "samples", "label_samples", "sequences")
            *place, sequences = (states.counter(state, key) for key in keys)
            _ = state["state"]
        except (KeyError, TypeError) as error:
            what = f"expected `{error.args[0]}`, got none" if isinstance(error, KeyError) else str(error)
            raise StateError(f"this state is damaged: {what}", hint="load another checkpoint") from error
        if not self.resumes or state["state"] is None:
            raise StateError(
                f"{type(self).__name__} cannot be resumed: define get_checkpoint_state and restore_from_checkpoint"
            )
        try:
            self.restore_from_checkpoint(json.loads(json.dumps(state["state"])))
        except Exception as error:
            raise StateError(
                f"restore_from_checkpoint of {type(self).__name__} raised {type(error).__name__}: {error}",
                saved={"state": state["state"]},
            ) from error
        self._progress.position, self._progress.sequences, self._progress.ended = Position(*place), sequences, False

    @property
    def resumes(self) -> bool:
        """Whether it can be restored, as its class defines how."""
        base, kind = UserMinibatchSource, type(self)
        return (
            kind.get_checkpoint_state is not base.get_checkpoint_state
            and kind.restore_from_checkpoint is not base.restore_from_checkpoint
        )

    def close(self) -> None:  # noqa: B027  # optional: most sources hold nothing open
        """Release the source's resources."""

    def __enter__(self) -> UserMinibatchSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Progress:
    """The position, and whether the source has ended."""

    def __init__(self) -> None:
        self.position = Position()
        self.sequences = 0
        self.ended = False

    def deliver(self, schema: Schema, values: dict[str, Any], returned: UserMinibatch) -> Minibatch:
        """Return a user's minibatch as a `Minibatch`, and advance the position past it."""
        count, lengths = next(iter(values.values())).num_sequences, counted_lengths(schema, values)
        samples = count if lengths is None else int(lengths.sum())
        if returned.ids is None:
            ids = np.arange(self.sequences, self.sequences + count, dtype=np.int64)
        else:
            ids = np.asarray(returned.ids, np.int64)
            if ids.shape != (count,):
                raise SchemaError(f"expected one id for each of {count} sequences, got an array of shape {ids.shape}")
        everywhere = samples if returned.global_samples is None else int(returned.global_samples)
        p, sweep_end = self.position, bool(returned.sweep_end)
        minibatch = Minibatch(
            schema, values, ids, num_samples=samples, global_samples=everywhere, position=p, sweep_end=sweep_end
        )
        passed = count if returned.global_sequences is None else int(returned.global_sequences)
        sweep, sequence = (p.sweep + 1, 0) if sweep_end else (p.sweep, p.sequence + passed)
        self.position = Position(sweep, sequence, p.samples + everywhere, p.label_samples)
        self.sequences += passed
        return minibatch


def _check_json(value: Any, where: str) -> None:
    """Refuse values that JSON would lose or change, as a changed state would resume at another place."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise StateError(f"expected strings as keys of {where}, got {key!r}")
            _check_json(item, f"{where}[{key!r}]")
    elif isinstance(value, list):
        for i, item in enumerate(value):
            _check_json(item, f"{where}[{i}]")
    elif not (value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value))):
        hint = "; call .item() or .tolist() on it" if hasattr(value, "tolist") else ""
        hint = "; make it a list" if isinstance(value, tuple) else hint
        raise StateError(
            f"expected JSON types (dict, list, str, int, finite float, bool, None) in {where}, got "
            f"{type(value).__name__} {value!r:.60}{hint}"
        )
