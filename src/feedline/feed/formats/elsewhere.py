"""A corpus whose files lie in object stores: the same in every way, but for where its bytes come from."""

from __future__ import annotations

import contextlib
import contextvars
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.data import Chunk, Stream
from feedline.errors import DataError, SchemaError, shown_path
from feedline.feed.arguments import Remote
from feedline.feed.files.paths import open_file
from feedline.feed.files.remote import by_ranges, check_room, object_at, preadv, settle
from feedline.feed.formats.detect import recognise
from feedline.feed.formats.fetched_views import extents_of, fetched_chunk, in_parts
from feedline.feed.formats.format import Format
from feedline.feed.formats.store.bucket import unfinished_store
from feedline.feed.formats.store.manifest import MANIFEST
from feedline.feed.protocol import (
    Capability,
    Deserializer,
    Extent,
    Fetchable,
    Mapped,
    Piece,
    RandomAccess,
    Sliceable,
    Verifiable,
    can,
    chunk_extents,
    fetches_ahead,
    files_of,
    looks_at_all,
    read_slice,
    required,
    select_by_chunk,
    verified,
)
from feedline.feed.remote.mirror import LookedUp, Mirror, look_up, look_up_listed
from feedline.feed.remote.requests import Patience
from feedline.feed.remote.stores import without_credentials
from feedline.feed.wrapper import Forwarding


@dataclass
class Stores:
    """How addresses are opened; see `open_corpus`.

    Attributes:
        remote: as there.
        used: whether an address was opened.
    """

    remote: Remote
    used: bool = False


_stores: contextvars.ContextVar[Stores | None] = contextvars.ContextVar("_stores", default=None)


@contextlib.contextmanager
def through(stores: Stores) -> Iterator[None]:
    """A context in which addresses are opened like this, also those that a file describes."""
    token = _stores.set(stores)
    try:
        yield
    finally:
        _stores.reset(token)


def open_addresses(what: Any, streams: Mapping[str, Any], memory_bytes: int) -> RemoteCorpus:
    """Open objects by their address, a pattern, or a list of these.

    Raises:
        DataError: there are none, a store does not deliver, or what it delivers is damaged.
        SchemaError: a stream is missing or not as declared.
    """
    stores = _stores.get() or Stores(Remote())
    stores.used = True
    remote = stores.remote
    looked = look_up(what, remote.storage_options or {}, Patience.until(remote.deadline_s))
    _refuse_unfinished(looked)
    return _of_objects(looked, remote.cache, remote.cache_bytes, memory_bytes, dict(streams))


def _refuse_unfinished(looked: LookedUp) -> None:
    """Check that no folder is a store that is still being written: it would be read as the Arrow files it has so far.

    Raises:
        DataError: one is.
    """
    for place in looked.places:
        if isinstance(place, str):
            continue
        root, pattern, infos = place
        folder = f"{pattern}/" if pattern else ""
        names = [info.key[len(folder) :] for info in infos if info.key.startswith(folder)]
        if len(names) == len(infos) and unfinished_store(names):
            raise DataError(
                f"expected a whole store, got {len(names)} of its files without {MANIFEST}: it is being written, or "
                "was not finished",
                path=without_credentials(f"{root}/{pattern}".rstrip("/")),
                hint="wait for fl.convert to end, or repeat the call that wrote it",
            )


def check_streams(declared: Mapping[str, Any]) -> None:
    """Check that streams are declared as such; those of CSV may also be names of columns.

    Raises:
        SchemaError: one is not.
    """
    if wrong := [name for name, what in declared.items() if not isinstance(what, Stream)]:
        raise SchemaError(f"expected a feedline.Stream for stream `{wrong[0]}`, got {declared[wrong[0]]!r}")


def _of_objects(
    looked: LookedUp,
    cache: str | os.PathLike[str] | None,
    cache_bytes: int | None,
    memory_bytes: int,
    streams: Mapping[str, Any],
) -> RemoteCorpus:
    """Open what was looked up; also in another process, which asks the stores nothing."""
    mirror = Mirror(looked, cache, cache_bytes)
    try:
        form, paths = recognise(mirror.paths)
        if more := look_up_listed(looked, mirror, [name for path in paths for name in form.listed(path)]):
            mirror.close()
            looked, mirror = more, Mirror(more, cache, cache_bytes)
            form, paths = recognise(mirror.paths)
        if form.name != "csv":
            check_streams(streams)
        corpus = form.open(paths, streams, memory_bytes)
        views = fetches_ahead(corpus) and not mirror.objects.keys().isdisjoint(corpus.paths())
        if views or any(one.mapped for one in mirror.objects.values()):
            corpus = _of_views(corpus, mirror, form, lambda: form.open(paths, streams, memory_bytes))
    except BaseException:
        mirror.close()
        raise
    return RemoteCorpus(corpus, mirror, form.name, (_of_objects, (looked, cache, cache_bytes, memory_bytes, streams)))


def _of_views(corpus: Deserializer, mirror: Mirror, form: Format, again: Callable[[], Deserializer]) -> Deserializer:
    """Return a corpus with views of mapped files of which parts may be missing, or the same over whole files."""
    if mirror.whole or not (fetches_ahead(corpus) and can(corpus, RandomAccess)):
        # Nothing has to be fetched, or something else than views is read, too, by who would touch the views.
        corpus.close()
        mirror.fetch_whole(form.description)
        return again()
    required(corpus, Mapped).hold_bounds()
    return corpus


def _pieces(extents: Sequence[Extent]) -> list[memoryview]:
    """Read extents.

    Raises:
        DataError: they cannot be had.
    """
    pieces = []
    for path, at, size in extents:
        pieces.append(memoryview(bytearray(size)))
        if (one := object_at(path)) is not None:
            one.read(at, pieces[-1])
        else:
            with open_file(path) as file:
                preadv(file, pieces[-1], at)
    return pieces


class RemoteCorpus(Forwarding, Sliceable, Fetchable):
    """A corpus over placeholders of objects.

    Args:
        corpus: the corpus.
        mirror: the objects.
        form: name of their format.
        again: what opens it in another process: a function, and its arguments.
        of: the corpus whose objects these are; None: they are this one's.

    Attributes:
        mirror: the objects, and the cache that holds parts of them.
        format: name of their format, see `detect.FORMATS`.
    """

    def __init__(
        self,
        corpus: Deserializer,
        mirror: Mirror,
        form: str,
        again: tuple[Callable[..., Any], tuple[Any, ...]],
        *,
        of: RemoteCorpus | None = None,
    ) -> None:
        super().__init__(corpus)
        self.name = shown_path(corpus.name)
        self.mirror, self.format, self._again = mirror, form, again
        self._of, self._closed = of, False
        # Chunks have extents for good: who has asked for them may get the bytes when the files are settled.
        own = not mirror.objects.keys().isdisjoint(corpus.paths())  # a mixture's are those of others
        self._views = self._unsettled = own and in_parts(corpus)

    # ---- views of files of which parts may be missing -------------------------------------------------

    @property
    def _parted(self) -> bool:
        """Whether what the corpus reads are views that must not be touched; no longer once its files are settled."""
        self._check_open()
        self._unsettled = self._unsettled and in_parts(self._corpus)
        return self._unsettled

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"expected an open corpus, but {self.name} was closed")

    def extents(self, chunk: int) -> Sequence[Extent]:
        """Return the corpus's extents; of views, the bytes that they consist of."""
        self._check_open()
        if not self._views or looks_at_all(self._corpus):
            return chunk_extents(self._corpus, chunk)
        return extents_of(self._corpus.read(chunk), files_of(self._corpus, [chunk]))

    def read_fetched(self, chunk: int, pieces: Sequence[Piece]) -> Chunk:
        """Return the corpus's chunk, whose extents were fetched."""
        self._check_open()
        if not self._views or looks_at_all(self._corpus):
            return required(self._corpus, Fetchable).read_fetched(chunk, pieces)
        return fetched_chunk(self._corpus.read(chunk), files_of(self._corpus, [chunk]), pieces)

    def read(self, chunk: int) -> Chunk:
        """Return the corpus's chunk; fetches its bytes if parts of its files may be missing."""
        if not self._parted:
            # Fetched first: a library that reads in threads of its own would let no interrupt through.
            extents = chunk_extents(self._corpus, chunk)
            if any(by_ranges(extent.path) for extent in extents):
                return required(self._corpus, Fetchable).read_fetched(chunk, _pieces(extents))
            return self._corpus.read(chunk)
        if looks_at_all(self._corpus):
            fetchable = required(self._corpus, Fetchable)
            return fetchable.read_fetched(chunk, _pieces(fetchable.extents(chunk)))
        return self._fetched(self._corpus.read(chunk), chunk)

    def read_slice(self, chunk: int, start: int, stop: int) -> Chunk:
        """Return the corpus's slice of a chunk in the same way."""
        if not self._parted:
            return read_slice(self._corpus, chunk, start, stop)
        if looks_at_all(self._corpus):
            return self.read(chunk).slice(start, stop)
        return self._fetched(read_slice(self._corpus, chunk, start, stop), chunk)

    def select(self, ordinals: NDArray[np.int64]) -> Chunk:
        """Return the corpus's sequences."""
        return select_by_chunk(self, ordinals) if self._parted else self._corpus.select(ordinals)

    def _fetched(self, views: Chunk, chunk: int) -> Chunk:
        files = files_of(self._corpus, [chunk])
        extents = extents_of(views, files)
        # As on a disk where nothing is missing, or the files are settled by now.
        found = [(object_at(path), at, at + size) for path, at, size in extents]
        if all(one is None or one.stays_there(begin, end) for one, begin, end in found):
            return views
        return fetched_chunk(views, files, _pieces(extents))

    # ---------------------------------------------------------------------------------------------------

    def __reduce__(self) -> tuple[Any, ...]:
        return self._again

    def __repr__(self) -> str:
        return f"{type(self._corpus).__name__}({self.name})"

    def capability(self, kind: type[Capability]) -> Capability | None:
        """See `Forwarding.capability`; checksums of whole chunks need files as a whole, which this one fetches, as it
        does the bytes of views."""
        return self if kind in (Verifiable, Fetchable) else super().capability(kind)  # type: ignore[return-value]

    def verified(self) -> Deserializer:  # type: ignore[override]
        """Return the same over the verified corpus; itself if that is the corpus.

        Raises:
            DataError: checksums are of more than is read, and the cache has no room for all of it.
        """
        if self._parted:
            check_room(
                self.paths(), f"{self.name}, whose checksums are of whole chunks", "read it without verification"
            )
            settle(self.paths())
        corpus = verified(self._corpus)
        if corpus is self._corpus:
            return self
        return RemoteCorpus(corpus, self.mirror, self.format, self._again, of=self)

    def close(self) -> None:
        """Close the corpus; chunks that it returned must not be used any more. What was fetched stays in the cache."""
        super().close()
        self._closed = True
        if self._of is None:
            self.mirror.close()
