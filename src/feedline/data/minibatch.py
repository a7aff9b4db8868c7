"""A minibatch: the chosen sequences, one value per stream, and their position on the axis.

It is a thin wrapper around the arrays of one gather. Creating one costs about a microsecond.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.data.clock import Position
from feedline.data.schema import Schema
from feedline.data.value import BytesValue, Value, counted_lengths


class Origins(NamedTuple):
    """Where the sequences of a minibatch come from, in a corpus of several. Both are computed on access.

    Attributes:
        sources: function from ids to the number of the corpus of each sequence.
        sweep_ends: function that returns the names of the corpora whose sweeps ended.
    """

    sources: Callable[[NDArray[np.int64]], NDArray[np.int64] | None]
    sweep_ends: Callable[[], tuple[str, ...]]


class RankShare(NamedTuple):
    """The share of a global minibatch that one rank gets.

    Attributes:
        part, parts: index of the share, and number of shares.
        cut, cuts: of ranks that have the same sequences and a cut of each, the index and the number.
        sizes: function that returns the number of sequences of each share, int64 (parts,). None if it is unknown.
    """

    part: int = 0
    parts: int = 1
    cut: int = 0
    cuts: int = 1
    sizes: Callable[[], NDArray[np.int64]] | None = None


_WHOLE = RankShare()


class Minibatch(Mapping[str, Value]):
    """A mapping from stream name to `Value`, for this rank's part of one global minibatch.

    It is false only when the source has ended. A rank's part may be empty (``num_sequences == 0``) and is
    still true, so that all ranks make the same number of steps.

    Attributes:
        schema: the streams.
        ids: int64 (num_sequences,), index of each sequence in the corpus, in delivered order.
        num_sequences: sequences in this part.
        num_samples: samples in this part, as the minibatch budget counts them. A skipped sequence counts
            with its indexed length on the axis, but not here.
        global_samples: samples of the whole global minibatch on the axis, over all ranks.
        position: position of the first sequence of the global minibatch.
        sweep_end: the global minibatch contains the last sequence of a sweep. The same on every rank.
        share: which part of the global minibatch this is.
        lanes: int64 (num_sequences,), with ``truncation_length``: the lane of each piece of a sequence.
            A learner carries its BPTT state over from the previous piece in the same lane. None for whole sequences.
        begins: bool (num_sequences,), with ``truncation_length``: whether the piece starts its sequence, so that
            the state of its lane must be reset first. None for whole sequences.
        tensors: torch tensors by stream, on the device that `to` or ``minibatches(..., device=)`` named. None before.
    """

    __slots__ = (
        "_ended",
        "_origins",
        "begins",
        "global_samples",
        "ids",
        "lanes",
        "num_samples",
        "num_sequences",
        "position",
        "schema",
        "share",
        "sweep_end",
        "tensors",
        "values_by_name",
    )

    def __init__(
        self,
        schema: Schema,
        values: dict[str, Value],
        ids: NDArray[np.int64],
        *,
        num_samples: int,
        global_samples: int,
        position: Position,
        sweep_end: bool,
        ended: bool = False,
        lanes: NDArray[np.int64] | None = None,
        begins: NDArray[np.bool_] | None = None,
        origins: Origins | None = None,
        share: RankShare = _WHOLE,
    ) -> None:
        self.schema = schema
        self.values_by_name = values
        self.ids = ids
        self.num_sequences = len(ids)
        self.num_samples = num_samples
        self.global_samples = global_samples
        self.position = position
        self.sweep_end = sweep_end
        self.share = share
        self._ended = ended
        self.lanes = lanes
        self.begins = begins
        self._origins = origins
        self.tensors: dict[str, Any] | None = None

    @classmethod
    def end(cls, schema: Schema, position: Position) -> Minibatch:
        """Return the minibatch that marks the end of a source: false, without streams."""
        ids = np.empty(0, np.int64)
        return cls(schema, {}, ids, num_samples=0, global_samples=0, position=position, sweep_end=False, ended=True)

    def __bool__(self) -> bool:
        return not self._ended

    def __getitem__(self, name: str) -> Value:
        try:
            return self.values_by_name[name]
        except KeyError:
            if self._ended:
                raise KeyError("the source has ended: test `if not minibatch` before using it") from None
            raise KeyError(f"no stream `{name}`; this minibatch has {', '.join(self.values_by_name)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)

    @property
    def source(self) -> NDArray[np.int64] | None:
        """From a `Mixture`: int64 (num_sequences,), the number of the corpus of each sequence. Else None."""
        return None if self._origins is None else self._origins.sources(self.ids)

    @property
    def sweep_ends(self) -> tuple[str, ...]:
        """From a `Mixture`: names of the corpora of which the global minibatch completes a sweep, the same on every
        rank."""
        return () if self._origins is None else self._origins.sweep_ends()

    @property
    def share_sizes(self) -> NDArray[np.int64] | None:
        """int64 (ranks,): number of sequences in the share of each rank, skipped ones included. The same on every rank.

        None if a rank does not know it: with ``truncation_length``, ``filling="cntk"`` or a `UserMinibatchSource` on
        several ranks, and for `parts` of a share.
        """
        if self.share.parts == 1:
            return np.array([self.num_sequences])
        return None if self.share.sizes is None else self.share.sizes()

    @property
    def partition(self) -> tuple[int, int]:
        """(index, count): which part of the samples this is. Ranks of a model-parallel group have the same one. Each
        cut of a share's sequences is a part."""
        share = self.share
        return share.part * share.cuts + share.cut, share.parts * share.cuts

    # ---- devices ---------------------------------------------------------------------------------------

    def to(self, device: Any, non_blocking: bool = False) -> Minibatch:
        """Return this minibatch with `tensors` on a device. The values stay where they are.

        Tensors are laid out as `Value.torch` does by default: padded, sparse ones as CSR. ``minibatch["x"].mask`` shows
        which samples are padding. ``minibatch["x"].torch(device, layout)`` returns other layouts. Streams of bytes and
        of text stay on the host, and out of `tensors`.

        Args:
            device: device, as ``torch.Tensor.to`` takes it.
            non_blocking: whether to copy from pinned memory (see `pin_memory`) without waiting for it.

        Raises:
            ModuleNotFoundError: torch is not installed.
            TypeError: something other than a device.
        """
        if not isinstance(device, (str, int)) and not (hasattr(device, "type") and hasattr(device, "index")):
            raise TypeError(
                f"expected a device, such as 'cuda' or torch.device('cuda', 1), got {device!r}; to convert a stream "
                "write minibatch.tensors[name].to(...)"
            )
        tensors = {name: tensor.to(device, non_blocking=non_blocking) for name, tensor in self._as_tensors().items()}
        return self._with(tensors)

    def pin_memory(self) -> Minibatch:
        """Return this minibatch with `tensors` in pinned memory, from which a device copies by itself.

        Raises:
            ModuleNotFoundError: torch is not installed.
            RuntimeError: torch finds no accelerator.
        """
        return self._with({name: tensor.pin_memory() for name, tensor in self._as_tensors().items()})

    def _as_tensors(self) -> dict[str, Any]:
        if self.tensors is not None:
            return self.tensors
        return {name: value.torch() for name, value in self.values_by_name.items() if not isinstance(value, BytesValue)}

    def _with(self, tensors: dict[str, Any]) -> Minibatch:
        twin = _new(Minibatch)
        for name in self.__slots__:  # `copy.copy` would compute what is computed on access
            setattr(twin, name, getattr(self, name))
        twin.tensors = tensors
        return twin

    def jax(self, sharding: Any = None, pad_to: Mapping[str, int] | None = None) -> dict[str, Any]:
        """Return JAX arrays by stream, laid out as by `Value.jax`. Streams of bytes and of text are left out.

        Of ragged streams, the entry ``"lengths"`` has the number of samples of each sequence, (num_sequences,) by
        stream.

        With a ``NamedSharding`` over devices of several processes, they are global arrays of the whole minibatch: each
        process passes its share, and the sequences are in the order of the shares. The sharding has to divide sequences
        as the partition does, so pass ``partition=mesh`` to the source. Every process has to make this call for every
        minibatch, also for an empty share.

        Args:
            sharding: device or sharding, or one for each stream by name: the others are left out. None: the default
                device. A ``PartitionSpec`` may have more entries than an array has dimensions. The rest is ignored.
            pad_to: padded length of ragged streams, by name, in samples. Where processes have different shares, every
                ragged stream needs one. Elsewhere the default is the length of the longest sequence.

        Raises:
            ModuleNotFoundError: JAX is not installed (``pip install 'feedline[jax]'``).
            ValueError: the batch axis of the sharding does not divide the sequences, or not as the partition does; the
                shares have unequal sizes; a ragged stream has no padded length on several processes, or a sequence is
                longer; or the source has ended.
            SchemaError: a stream is called ``lengths``, and there are ragged streams.
        """
        if self._ended:
            raise ValueError("expected a minibatch, got the end of the source: test `if not minibatch` first")
        export = importlib.import_module("feedline.interop.jax").export_streams
        arrays: dict[str, Any] = export(self.values_by_name, sharding, self.share, pad_to or {})
        return arrays

    def parts(self, budget: int) -> Iterator[Minibatch]:
        """Split this minibatch into parts of at most ``budget`` samples (or one longer sequence), in whole sequences.

        The parts share memory and position with the whole minibatch. Only the last one can end a sweep.

        Raises:
            ValueError: a budget below 1.
        """
        if budget < 1:
            raise ValueError(f"expected a budget of at least 1 sample, got {budget}")
        if self.num_samples <= budget or self._ended:
            yield self
            return
        lengths = counted_lengths(self.schema, self.values_by_name)
        ends = np.arange(self.num_sequences + 1) if lengths is None else np.concatenate([[0], np.cumsum(lengths)])
        a = 0
        while a < self.num_sequences:
            b = max(a + 1, int(np.searchsorted(ends, ends[a] + budget, side="right")) - 1)
            values = {name: value.slice(a, b) for name, value in self.values_by_name.items()}
            samples, last = int(ends[b] - ends[a]), b == self.num_sequences
            yield Minibatch(
                self.schema,
                values,
                self.ids[a:b],
                num_samples=samples,
                global_samples=self.global_samples,
                position=self.position,
                sweep_end=self.sweep_end and last,
                lanes=None if self.lanes is None else self.lanes[a:b],
                begins=None if self.begins is None else self.begins[a:b],
                origins=self._origins if last or self._origins is None else self._origins._replace(sweep_ends=tuple),
                share=self.share._replace(sizes=None),
            )
            a = b

    def __eq__(self, other: object) -> bool:
        """Compare sequences (or pieces and their lanes), bytes and position on the axis."""
        if not isinstance(other, Minibatch):
            return NotImplemented
        return (
            self._ended == other._ended
            and self.position == other.position
            and self.sweep_end == other.sweep_end
            and np.array_equal(self.ids, other.ids)
            and _same(self.lanes, other.lanes)
            and _same(self.begins, other.begins)
            and self.values_by_name == other.values_by_name
        )

    __hash__ = None  # type: ignore[assignment]  # mutable arrays inside

    def __repr__(self) -> str:
        if self._ended:
            return f"Minibatch(end of source, {self.position!r})"
        p = self.position
        noun = "sequence" if self.lanes is None else "piece"
        head = (
            f"Minibatch({_count(self.num_sequences, noun)}, {_count(self.num_samples, 'sample')}, "
            f"from sweep {p.sweep} sequence {p.sequence}{', sweep end' if self.sweep_end else ''})"
        )
        width = max((len(name) for name in self.values_by_name), default=0)
        rows = [f"  {name:<{width}}  {value.describe()}" for name, value in self.values_by_name.items()]
        return "\n".join([head, *rows])

    def __getstate__(self) -> dict[str, Any]:
        state = {name: getattr(self, name) for name in self.__slots__}
        if self._origins is not None:  # computed now: the receiver has no corpus
            state["_origins"] = Origins(*(functools.partial(_return_result, x) for x in (self.source, self.sweep_ends)))
        if self.share.sizes is not None:  # likewise
            state["share"] = self.share._replace(sizes=functools.partial(_return_result, self.share_sizes))
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


def whole_minibatch(
    schema: Schema, values: dict[str, Value], ids: NDArray[np.int64], num_samples: int, position: Position
) -> Minibatch:
    """Return a minibatch of whole sequences that is the global one, and ends no sweep.

    The fields are set one by one: a call of the class takes twice as long, which dominates for small minibatches.
    """
    minibatch = _new(Minibatch)
    minibatch.schema = schema
    minibatch.values_by_name = values
    minibatch.ids = ids
    minibatch.num_sequences = len(ids)
    minibatch.num_samples = minibatch.global_samples = num_samples
    minibatch.position = position
    minibatch.share = _WHOLE
    minibatch.sweep_end = minibatch._ended = False
    minibatch.lanes = minibatch.begins = minibatch._origins = minibatch.tensors = None
    return minibatch


_new = Minibatch.__new__


def _same(a: NDArray[Any] | None, b: NDArray[Any] | None) -> bool:
    return a is b if a is None or b is None else np.array_equal(a, b)


def _return_result(result: Any, *_: Any) -> Any:
    """Return a result that was computed before."""
    return result


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'s' if n != 1 else ''}"
