"""Feedline's corpora in a `DataLoader`: stores, CTF, Parquet and anything else that `open_corpus` opens.

A `MinibatchSource` reads each sweep, with its order, windows and partition. ``batch_size`` counts sequences,
``batch_samples`` samples. Reading, decoding and copying run in native threads, so no worker processes are started:
``num_workers`` is the number of chunks that are read at once.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Self

from feedline.data import Minibatch, Position
from feedline.data.value import BytesValue, DenseValue
from feedline.errors import SchemaError, StateError
from feedline.feed.loader import collate as collating
from feedline.feed.loader.batches import Batches
from feedline.feed.loader.executors import Executor, InProcessExecutor
from feedline.feed.loader.fetch import Fetched
from feedline.feed.loader.options import LoaderOptions
from feedline.feed.loader.order import Planned, batch_count
from feedline.feed.loader.state import ResumePoint
from feedline.feed.packing.balance import Balance
from feedline.feed.partition import Partition
from feedline.feed.protocol import (
    ChunkInfo,
    Deserializer,
    Growing,
    Ints,
    Ordered,
    finish_of,
    is_sized,
    require,
    says_where_batches_end,
)
from feedline.feed.source import MinibatchSource
from feedline.feed.timeline import Window
from feedline.feed.wrapper import Forwarding
from feedline.interop.meshes import MeshShare, is_jax_placement, is_mesh

# More sequences than any batch of a corpus in batches has, and few enough that a source without end accepts it.
_WHOLE_BATCHES = 1 << 28


class CorpusBatches(Batches):
    """Batches of a corpus. The default ``collate_fn`` is not called."""

    def __init__(self, options: LoaderOptions, seed: int | None) -> None:
        super().__init__(options, seed)
        corpus: Deserializer = options.dataset
        if not is_sized(corpus):
            raise ValueError(
                "expected a corpus that knows the sizes of its chunks before reading them; implement "
                "`UserDeserializer.chunk_info`, convert it to a store, or use a MinibatchSource"
            )
        self._corpus = _SequencesAsSamples(corpus) if options.samples is None else corpus
        self._layout = "padded" if options.by_length is None else options.by_length.layout
        finish = finish_of(corpus)
        self._flat = set() if finish is None else set(finish.flat)
        if options.own_partition.partition.cutting() is not None:
            from feedline.feed.composed.document_cuts import FLAT

            self._flat.update(FLAT)
        self._balance()  # refuses a rule that this corpus has no lengths for
        self._order_state: dict[str, Any] = {}  # the order in the state that was loaded, if any
        self._versions: list[list[Any]] = []  # from which sweep on which data, if it has grown: see `GrownOrder`
        ordered = corpus.capability(Ordered) is not None
        self.places = self._length() if ordered else sum(info.sequences for info in corpus.chunks())
        self.endless = self.places is None
        self.one_seed = ordered or self.endless

    def _in_order(self, **options: Any) -> MinibatchSource:
        """Return a source in the order of this loader."""
        shuffle = self.options.shuffle
        shuffle = shuffle if isinstance(shuffle, Window) else bool(shuffle)
        # Most of them read nothing, so nulls are no errors.
        options = {"on_error": "skip", **options}
        return MinibatchSource(self._corpus, seed=self.seed or 0, shuffle=shuffle, **options)

    def _length(self) -> int | None:
        """Return the number of sequences in a sweep of an `Ordered` corpus, or None if it has no end."""
        source = self._with_loaded_order(self._in_order())
        try:
            return source.num_sequences  # it is not closed, as that would close the corpus
        except ValueError:
            return None

    def _with_loaded_order(self, source: MinibatchSource) -> MinibatchSource:
        """Return a source at the beginning of the order in the loaded state."""
        if self._order_state:
            source.load_state_dict({**source.state_dict(), **self._order_state})
        return source

    def _with_order_state(self, order_state: Mapping[str, Any]) -> Self:
        batches = self.with_options(self.options)
        batches._order_state = dict(order_state)
        batches.places = batches._length()
        batches.endless = batches.places is None
        return batches

    def with_seed(self, seed: int | None, seed_sweep: int | None = None) -> Self:
        """See `Batches.with_seed`."""
        batches = super().with_seed(seed, seed_sweep)
        if self._corpus.capability(Ordered) is not None:
            batches.places = batches._length()
        return batches

    def order_state(self) -> dict[str, Any]:
        """See `Batches.order_state`."""
        return _order_state_of(self._source(0).state_dict())

    def data_state(self) -> dict[str, Any]:
        """See `Batches.data_state`."""
        if self._corpus.capability(Ordered) is not None or self._corpus.capability(Growing) is None:
            return {}
        return {"sequences": self.places, **({"versions": self._versions} if self._versions else {})}

    def loadable(self, saved: Mapping[str, Any]) -> tuple[CorpusBatches, Mapping[str, Any]]:
        """See `Batches.loadable`."""
        batches = self.with_options(self.options)
        batches._versions = []
        source = self._in_order()
        current = source.state_dict()
        is_current = saved.get("corpus") == current["corpus"] and "versions" not in saved
        if is_current or type(saved.get("sweep")) is not int:
            return batches, saved
        names = ("corpus", "sequences", "versions", "sweep", "sequence")
        place = {key: saved[key] for key in names if key in saved}
        following = {**place, "sweep": saved["sweep"] + 1, "sequence": 0}
        others = {key: value for key, value in current.items() if key != "sequences"}
        for where in (place, following):  # all of the sweep may be delivered
            try:
                source.load_state_dict({**others, **where})
            except StateError:
                continue
            batches._versions = source.state_dict().get("versions", [])
            return batches, {**saved, "corpus": current["corpus"]}
        return batches, saved

    def places_in(self, sweep: int) -> int | None:
        """See `Batches.places_in`."""
        version = self._version(sweep)
        return self.places if version is None else version[2]

    def _version(self, sweep: int) -> list[Any] | None:
        """Return the entry of the data of a sweep, or None if that is all there is."""
        entry = next((row for row in reversed(self._versions) if row[0] <= sweep), None)
        return None if entry is None or entry is self._versions[-1] else entry

    def with_saved_order(self, saved: Mapping[str, Any], place: ResumePoint) -> CorpusBatches:
        """See `Batches.with_saved_order`."""
        saved_order = {key: saved[key] for key in self.order_state() if key in saved}
        if not saved_order:
            return self
        source = self._with_order_state(saved_order)._source_at(place)
        return self._with_order_state(_order_state_of(source.state_dict()))

    def with_weights(self, place: ResumePoint, weights: Mapping[str, Any], at: int | None) -> tuple[CorpusBatches, int]:
        """See `Batches.with_weights`."""
        source = self._source_at(place)
        at = source.change_weights(weights, at)
        return self._with_order_state(_order_state_of(source.state_dict())), at

    def _source_at(self, place: ResumePoint) -> MinibatchSource:
        """Return a source at a place, under the order in the loaded state.

        Raises:
            StateError: there is no such place, or the order differs from the declared one before it.
        """
        position, source = self._position(place.sweep, place.start, self.places), self._in_order()
        where = {"sweep": position.sweep, "sequence": position.sequence}
        source.load_state_dict({**source.state_dict(), **self._order_state, **where})
        return source

    def _position(self, sweep: int, start: int, places: int | None) -> Position:
        """Return the position of a source at a place. The place after the last sequence is the start of the next
        sweep."""
        return Position(sweep + 1) if start == places else Position(sweep, start)

    def _source_in(self, sweep: int) -> MinibatchSource:
        """Return a source over the data of a sweep."""
        _, number = self.key(sweep)
        source, version = self._source(number), self._version(sweep)
        if version is not None:
            current = source.state_dict()
            versions = [[0, *version[1:]], [number + 1, current["corpus"], current["sequences"]]]
            source.load_state_dict({**current, "versions": versions})
        return source

    def _source(self, sweep: int) -> MinibatchSource:
        options = self.options
        share = options.own_partition
        cut = share.partition.cutting()
        whole = (0, 1) if cut is None else MeshShare(0, 1, *share.cut())
        source = self._in_order(
            partition=Partition(whole, balance=self._balance(), cut=cut),
            max_sweeps=None if self.endless else sweep + 1,
            threads=max(options.num_workers, 2),
            transforms=options.transforms,
            on_error=options.on_error,
        )
        return self._with_loaded_order(source)

    def _balance(self) -> str | Balance:
        rule, corpus = self.options.own_partition.partition.rule, self.options.dataset
        return "samples" if rule is None else Balance(rule, corpus, same_number=True)

    def global_size(self, partition: tuple[int, int]) -> int:
        """Return the size of a batch over all ranks."""
        size = self.options.samples or self.options.batch_size
        return _WHOLE_BATCHES if size is None else size * partition[1]

    def identity(self) -> dict[str, Any]:
        """See `Batches.identity`."""
        saved = self._source(0).state_dict()
        return {key: saved[key] for key in ("order", "shuffle", "schema", "corpus")}

    def count(self, sweep: int) -> int:
        """See `Batches.count`."""
        if self.places is None:
            raise TypeError(f"expected a corpus that ends for a length, got {self._corpus.name}, which repeats forever")
        size, drop_last = self.global_size(self.options.own_partition.resolve()), self.options.drop_last
        if self.options.samples is None and not says_where_batches_end(self._corpus):
            return batch_count(self.places_in(sweep) or 0, size, drop_last)
        _, number = self.key(sweep)
        sizes = [planned.global_samples for planned in self._source_in(sweep).plan(size, start=Position(number))]
        return len(sizes) - (drop_last and len(sizes) > 0 and sizes[-1] < size)

    def executor(self, place: ResumePoint, previous: Executor | None = None) -> CorpusExecutor:
        """Return the executor for the rest of a sweep, with the windows of the previous one if there is one."""
        _, number = self.key(place.sweep)
        position = self._position(number, place.start, self.places_in(place.sweep))
        source = previous.source if isinstance(previous, CorpusExecutor) else self._source_in(place.sweep)
        if previous is None or source.position[:2] != position[:2]:  # minibatches were read that were not delivered
            source.seek(position)
        return CorpusExecutor(self, source, place.sweep)

    def batch(self, minibatch: Minibatch) -> Any:
        """Return the batch that the loop gets for a minibatch."""
        collate = self.options.collate_fn
        if collate is None or collating.own_form(collate) is not None:
            if is_jax_placement(self.options.device):
                return minibatch
            return _by_stream(minibatch, self._layout, self._flat)
        return collate(_items(minibatch))


class CorpusExecutor(InProcessExecutor):
    """Makes the batches of the rest of a sweep.

    Attributes:
        source: the source that reads the sweep.
    """

    def __init__(self, batches: CorpusBatches, source: MinibatchSource, sweep: int) -> None:
        self.source = source
        remaining = _Sweep(batches, source, batches.places_in(sweep))
        super().__init__(remaining.read, remaining.to_batch)


class _Sweep:
    """The rest of a sweep of a source."""

    def __init__(self, batches: CorpusBatches, source: MinibatchSource, places: int | None) -> None:
        self._places = places
        share = batches.options.own_partition
        pair, ranks = share.resolve(), share.partition.ranks
        # A mesh also decides the cut.
        resolved = ranks if is_mesh(ranks) else MeshShare(*pair, group=share.group or ())
        source.repartition(Partition(resolved, share.partition.roles))  # there are roles only with a mesh
        self._batches, self._source, self._size = batches, source, batches.global_size(pair)
        self._stats = source.stats()  # kept, as each call counts the sequences of each corpus of a mixture
        self._after: Position | None = None  # the position after the last minibatch. None: ask the source

    def read(self) -> tuple[Position, float, float, Minibatch]:
        """Return the position before the next minibatch, the seconds waited and read until then, and the minibatch."""
        before = self._after or self._source.position
        waited, read = self._stats.wait_seconds, self._stats.read_seconds
        return before, waited, read, self._source.next_minibatch(self._size)

    def to_batch(self, read: tuple[Position, float, float, Minibatch]) -> tuple[Planned, Fetched]:
        """Return the batch for the result of `read`.

        Raises:
            StopIteration: the sweep has ended.
        """
        before, waited_s, read_s, minibatch = read
        drop_last = self._batches.options.drop_last
        if not minibatch or (drop_last and minibatch.sweep_end and minibatch.global_samples < self._size):
            raise StopIteration
        self._after, stats = self._source.position, self._stats
        after = self._after
        stop = after.sequence
        if after.sweep != before.sweep:
            assert self._places is not None  # a corpus without end has no next sweep
            stop = self._places
        reading = max(stats.read_seconds - read_s, stats.wait_seconds - waited_s)
        fetched = Fetched(self._batches.batch(minibatch), minibatch.num_sequences, [], reading, 0.0)
        return Planned(before.sweep, before.sequence, stop, None, None), fetched


def _order_state_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the weights of a mixture from a source's state."""
    return {key: state[key] for key in ("windows", "stages") if key in state}


class _SequencesAsSamples(Forwarding, Growing):
    """A corpus whose sequences all count as one sample, whatever their length."""

    def digests(self) -> Iterator[tuple[int, str]]:
        """See `Growing.digests`."""
        return require(self._corpus, Growing).digests()

    def shorter(self, sequences: int) -> Iterator[Deserializer]:
        """See `Growing.shorter`."""
        return map(_SequencesAsSamples, require(self._corpus, Growing).shorter(sequences))

    def chunks(self) -> Sequence[ChunkInfo]:
        """See `Deserializer.chunks`."""
        return [ChunkInfo(info.sequences, info.sequences, info.bytes) for info in self._corpus.chunks()]

    def lengths(self, ordinals: Ints) -> Ints | None:
        """Return None: every sequence counts as one sample."""
        return None


def _by_stream(minibatch: Minibatch, layout: str, flat: Collection[str]) -> dict[str, Any]:
    """Return the streams by name, and under "lengths" the lengths of the sequences of streams that have several
    samples per sequence. Streams in ``flat`` describe the batch, not its sequences, and stay in one row."""
    torch = collating.torch_side()
    batch: dict[str, Any] = {}
    lengths: dict[str, Any] = {}
    for name, value in minibatch.values_by_name.items():
        if torch is not None and type(value) is DenseValue and value.one_sample_each:
            batch[name] = _share()(value.rows)  # the most frequent one, in any layout
        elif isinstance(value, BytesValue):
            batch[name] = value.tolist()  # as torch collates strings
        elif value.is_sparse:
            batch[name] = value if torch is None else value.torch()
        elif torch is not None:
            batch[name] = value.torch(layout="packed" if name in flat else layout)
        else:
            batch[name] = value.padded() if layout == "padded" and name not in flat else value.rows
        if not (value.one_sample_each or name in flat):
            lengths[name] = value.lengths if torch is None else torch.from_numpy(value.lengths)
    if lengths:
        if "lengths" in batch:
            raise SchemaError(
                "expected no stream `lengths`: that key holds sequence lengths; rename it, or use MinibatchSource"
            )
        batch["lengths"] = lengths
    return batch


@functools.cache
def _share() -> Callable[[Any], Any]:
    """Return the function that makes a tensor of an array. Found by name, as importing it takes long."""
    share: Callable[[Any], Any] = importlib.import_module("feedline.interop.torch").share
    return share


def _items(minibatch: Minibatch) -> list[dict[str, Any]]:
    """Return one dictionary per sequence: arrays (length, *shape), or (*shape) for streams of one sample per
    sequence. Byte strings are ``bytes`` or ``str``, or a list of them."""
    columns = {
        name: value.tolist()
        if isinstance(value, BytesValue)
        else list(value.rows)
        if value.one_sample_each and not value.is_sparse
        else value.sequences()
        for name, value in minibatch.items()
    }
    return [{name: column[i] for name, column in columns.items()} for i in range(minibatch.num_sequences)]
