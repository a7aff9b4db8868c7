"""Choose the order and the reader of a corpus.

The order may depend on the data and on the arguments, never on the machine: other ranks, and this one after a restart,
must choose the same.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import NamedTuple, cast

from feedline.errors import DataError
from feedline.feed.arguments import Arcs
from feedline.feed.assembly import ChunkSet
from feedline.feed.files.remote import check_room
from feedline.feed.formats.fetched_views import may_lack_parts
from feedline.feed.protocol import (
    Deserializer,
    Ints,
    Ordered,
    RandomAccess,
    Sliceable,
    Unsized,
    can,
    fetches_ahead,
    is_sized,
    num_chunks,
    require,
    says_where_batches_end,
)
from feedline.feed.reading import lengths
from feedline.feed.reading.block_corpus import BlockCorpus
from feedline.feed.reading.block_reader import BlockReader
from feedline.feed.reading.decoding_reader import DecodingReader
from feedline.feed.reading.mapped_reader import MappedReader
from feedline.feed.reading.reader import Reader
from feedline.feed.reading.row_reader import RowReader
from feedline.feed.reading.sequential_reader import SequentialReader
from feedline.feed.reading.stats import Stats
from feedline.feed.timeline import (
    ORDERS,
    ArcOrder,
    ChunkTable,
    GrowingUnsizedOrder,
    SweptUnsizedOrder,
    Timeline,
    UnsizedOrder,
    Window,
)

DEFAULT_WINDOW = Window(bytes=256 << 20)

# Orders in a number of arcs, by name.
_IN_ARCS = {name: order for name, order in ORDERS.items() if issubclass(order, ArcOrder)}

# Maximum stored bytes of a corpus on disk that is shuffled as a whole by default. A good disk delivers random rows of 3
# KB at a tenth of its speed: 4 GiB of them in 18 s. That happens once, as they are then in the page cache of any
# machine for training. A corpus of 1 TiB would take hours per sweep.
WHOLE_BYTES = 4 << 30


class ReadyCorpus(NamedTuple):
    """A corpus with its order and reader.

    Attributes:
        timeline: order of the corpus.
        reader: reader that brings its chunks, or the blocks that the order names, into memory.
        lengths: function that returns the samples of sequences.
        paths_to_fetch: paths of objects that `files.remote.materialize` has to fetch before the reader is used.
    """

    timeline: Timeline
    reader: Reader
    lengths: lengths.Lengths
    paths_to_fetch: Sequence[str]


def choose_reader(
    corpus: Deserializer,
    chunks: ChunkSet,
    stats: Stats,
    *,
    order: str | Arcs,
    seed: int,
    shuffle: bool | str | Window,
    threads: int,
    read_ahead: int | None,
) -> ReadyCorpus:
    """Choose the order and the reader. See `MinibatchSource` for the arguments.

    Raises:
        DataError: the corpus is empty.
        ValueError: there is no such order, or the corpus cannot be delivered in it.
    """
    if not is_sized(corpus):
        _check_order(corpus, order, shuffle)
        return _unsized(
            corpus, chunks, stats, order=order, seed=seed, shuffle=shuffle, threads=threads, read_ahead=read_ahead
        )
    timeline, fetched_first = order_of(corpus, order=order, seed=seed, shuffle=shuffle)
    paths_to_fetch = {path for part in fetched_first for path in part.paths()}
    for part in fetched_first:
        check_room(part.paths(), f"{part.name}, which is shuffled as a whole", "pass shuffle=fl.Window(...)")
    parted = may_lack_parts(corpus, paths_to_fetch)
    read_from = corpus if timeline.blocks is None else BlockCorpus(corpus, timeline.blocks)
    reader: Reader
    if fetches_ahead(corpus) and not parted:
        in_order, whole_shuffle = timeline.in_corpus_order, timeline.window is None
        kind = SequentialReader if in_order else RowReader if whole_shuffle else BlockReader
        reader = kind(corpus, timeline, chunks, stats, read_ahead)
    elif can(corpus, RandomAccess) and not parted:
        reader = MappedReader(read_from, timeline.table, chunks, stats)
    else:
        reader = DecodingReader(
            read_from,
            chunks,
            stats,
            total=len(timeline.table),
            table=timeline.table,
            threads=threads,
            budget_bytes=read_ahead,
        )
    return ReadyCorpus(timeline, reader, lengths.of_corpus(corpus), sorted(paths_to_fetch))


def order_of(
    corpus: Deserializer, *, order: str | Arcs, seed: int, shuffle: bool | str | Window
) -> tuple[Timeline, list[Deserializer]]:
    """Choose the order of a corpus that knows its sizes, without reading it.

    Returns:
        The order, and the parts of the corpus (or the corpus itself) that have to be fetched first: they are in object
        stores and shuffled as a whole, so that any of their sequences may be the next one.

    Raises:
        DataError, ValueError: as for `choose_reader`.
    """
    _check_order(corpus, order, shuffle)
    table = ChunkTable(corpus.chunks())
    if table.total_sequences == 0:
        raise DataError(f"expected at least one sequence in {corpus.name}, got none")
    orders = _Orders(order, shuffle)
    return orders.timeline(corpus, table, seed), orders.fetched_first


def _check_order(corpus: Deserializer, order: str | Arcs, shuffle: bool | str | Window) -> None:
    names = ["feedline", *(name for name in ORDERS if name not in _IN_ARCS)]
    if isinstance(order, Arcs):
        _check_arcs(corpus, order)
    elif order in _IN_ARCS:
        raise ValueError(f"expected order=fl.Arcs(count, version={order[-1]}), got {order!r}; the state has the count")
    elif order not in names:
        raise ValueError(f"expected order to be an fl.Arcs, or one of {', '.join(map(repr, names))}, got {order!r}")
    if not isinstance(shuffle, (bool, Window)) and shuffle != "whole":
        raise TypeError(f'expected shuffle to be True, False, "whole" or an fl.Window, got {shuffle!r}')


def _check_arcs(corpus: Deserializer, order: Arcs) -> None:
    """Check that a corpus can be delivered in arcs.

    Raises:
        ValueError: it cannot.
    """
    if not is_sized(corpus):
        raise ValueError(
            f"expected a corpus that knows the sizes of its chunks before reading for {order}, got {corpus.name}; "
            "implement `UserDeserializer.chunk_info`, or convert it to a store"
        )
    if corpus.capability(Ordered) is not None:
        raise ValueError(
            f"expected a corpus without an order of its own for {order}, got {corpus.name}; leave the order out, or "
            "convert the corpus to a store with fl.convert and open the store"
        )


class _Orders:
    """Chooses the orders of a corpus and of its parts.

    Attributes:
        fetched_first: see `order_of`.
    """

    def __init__(self, order: str | Arcs, shuffle: bool | str | Window) -> None:
        self._order, self._shuffle, self._shuffled = order, shuffle, shuffle is not False
        self.fetched_first: list[Deserializer] = []

    def timeline(self, corpus: Deserializer, table: ChunkTable, seed: int) -> Timeline:
        """Return the order of the whole corpus."""
        order, shuffled = self._order, self._shuffled
        window = self._shuffle if isinstance(self._shuffle, Window) else None
        if self._shuffle == "whole" and not can(corpus, RandomAccess):
            raise ValueError(
                f'expected a corpus with random access for shuffle="whole", got {corpus.name}, whose chunks are read '
                "and decoded whole: pass an fl.Window, or convert it once with fl.convert(..., shuffle=seed)"
            )
        if (order == "feedline-2" or (isinstance(order, Arcs) and order.version == 2)) and not can(corpus, Sliceable):
            raise ValueError(
                f"expected a corpus with `read_slice` (`fl.Sliceable`) for order={order!r}, got {corpus.name}, whose "
                "chunks are read whole"
            )
        if order == "cntk" and corpus.capability(Ordered) is None:
            return self._note(ORDERS[order](table, seed, shuffled, window), corpus)
        if window is None:
            if not shuffled:
                window = self._in_order(corpus)
            elif not can(corpus, RandomAccess) or (
                self._shuffle is True and order != "feedline-1" and _too_large(corpus, table)
            ):
                window = DEFAULT_WINDOW
        if isinstance(order, Arcs):
            version = order.version or (2 if self._in_blocks(corpus, window) else 1)
            return self._note(_IN_ARCS[f"arcs-{version}"](table, seed, shuffled, window, order.count), corpus)
        if order != "feedline":
            if corpus.capability(Ordered) is not None:
                raise ValueError(f'expected order="feedline" for {corpus.name}, which has its own order, got {order!r}')
            return self._note(ORDERS[order](table, seed, shuffled, window), corpus)
        return self._current(corpus, seed, window)

    def _current(self, corpus: Deserializer, seed: int, window: Window | None) -> Timeline:
        """Return the current order of a corpus, or of a part of one."""

        def order_of(part: Deserializer, seed: int, window: Window | None) -> Timeline:
            return self._current(part, seed, window if self._shuffled else self._in_order(part))

        if (ordered := corpus.capability(Ordered)) is not None:
            timeline: Timeline = ordered.own_order(seed, self._shuffled, window, order_of)
            return timeline
        name = "feedline-2" if self._in_blocks(corpus, window) else "feedline-1"
        return self._note(ORDERS[name](ChunkTable(corpus.chunks()), seed, self._shuffled, window), corpus)

    def _in_order(self, corpus: Deserializer) -> Window | None:
        """Return the window of a corpus that is not shuffled, or None if it need not be read in windows.

        The window does not change the order, except for batches of like length, which are made within windows. A corpus
        of such batches needs the windows that its files would have on a disk, so it is fetched as a whole.
        """
        if not can(corpus, RandomAccess):
            return Window(chunks=1)
        if not may_lack_parts(corpus, {path for part in self.fetched_first for path in part.paths()}):
            return None
        if says_where_batches_end(corpus):
            self.fetched_first.append(corpus)
            return None
        return Window(chunks=1)

    def _note(self, timeline: Timeline, corpus: Deserializer) -> Timeline:
        """Note a corpus for `fetched_first` if it is shuffled as a whole and parts of its files may be missing."""
        if timeline.shuffle and timeline.window is None and may_lack_parts(corpus):
            self.fetched_first.append(corpus)
        return timeline

    def _in_blocks(self, corpus: Deserializer, window: Window | None) -> bool:
        """Return whether windows of a corpus are filled with blocks."""
        # A window that counts chunks names its own unit, and a whole shuffle does not depend on blocks.
        return self._shuffled and can(corpus, Sliceable) and window is not None and window.chunks is None


def _too_large(corpus: Deserializer, table: ChunkTable) -> bool:
    views = corpus.capability(RandomAccess)
    return not (views is not None and views.in_memory) and int(table.bytes.sum()) > WHOLE_BYTES


def _unsized(
    corpus: Deserializer,
    chunks: ChunkSet,
    stats: Stats,
    *,
    order: str | Arcs,
    seed: int,
    shuffle: bool | str | Window,
    threads: int,
    read_ahead: int | None,
) -> ReadyCorpus:
    if order not in ("feedline", "feedline-1"):
        raise ValueError(f'expected order="feedline" for a corpus without chunk_info, got {order!r}')
    if shuffle == "whole":
        raise ValueError(
            'expected shuffle=True or an fl.Window for a corpus without chunk_info, got "whole": its content is '
            "known only once it is read; implement `UserDeserializer.chunk_info`, or convert it to a store"
        )
    count = num_chunks(corpus)
    if count < 1:
        raise DataError(f"expected at least one chunk in {corpus.name}, got none")
    reader = DecodingReader(corpus, chunks, stats, total=count, table=None, threads=threads, budget_bytes=read_ahead)
    window = shuffle if isinstance(shuffle, Window) else None
    # The reader looks through the windows that follow. If they referred to the reader in turn, a dropped source would
    # stay alive, and continue to read, until the next garbage collection.
    weakly = weakref.proxy(reader)

    def counts(ids: Ints) -> Ints:
        return cast(Ints, weakly.counts(ids))

    timeline: UnsizedOrder
    if not require(corpus, Unsized).swept:
        timeline = UnsizedOrder(count, seed, shuffle is not False, window, counts)
    elif window is None and shuffle and order == "feedline":
        timeline = GrowingUnsizedOrder(count, seed, counts)
    else:
        timeline = SweptUnsizedOrder(count, seed, shuffle is not False, window, counts)
    return ReadyCorpus(timeline, reader, lengths.of_windows(weakly), [])
