"""A corpus whose files are in object stores. It differs from a local corpus only in where its bytes come from."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from feedline.data import Chunk
from feedline.errors import DataError, shown_path
from feedline.feed.files.paths import PathLike, open_file
from feedline.feed.files.remote import by_ranges, check_room, materialize, object_at, preadv
from feedline.feed.formats.detect import recognise
from feedline.feed.formats.fetched_views import extents_of, fetched_chunk, may_lack_parts
from feedline.feed.formats.format import Format
from feedline.feed.formats.opening import check_streams, remote_settings
from feedline.feed.formats.store.manifest import MANIFEST
from feedline.feed.formats.store.object_store_target import is_unfinished_store
from feedline.feed.formats.widening import SchemaRule
from feedline.feed.protocol import (
    Capability,
    Deserializer,
    Extent,
    Fetchable,
    Ints,
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
    require,
    select_by_chunk,
    verified,
)
from feedline.feed.remote.address_text import without_credentials
from feedline.feed.remote.placeholders import Lookup, Placeholders, look_up, look_up_listed
from feedline.feed.remote.requests import Patience
from feedline.feed.wrapper import Forwarding


def open_addresses(
    what: Any, streams: Mapping[str, Any], memory_bytes: int, schema: SchemaRule = "strict"
) -> RemoteCorpus:
    """Open objects by their address, a pattern, or a list of these.

    Raises:
        DataError: there are no objects, a store does not deliver them, or they are damaged.
        SchemaError: a stream is missing or not as declared.
    """
    remote = remote_settings()
    lookup = look_up(what, remote.storage_options or {}, Patience.until(remote.deadline_s), remote.cache)
    _refuse_unfinished(lookup)
    return _open_objects(lookup, remote.cache, remote.cache_bytes, memory_bytes, dict(streams), schema=schema)


def _refuse_unfinished(lookup: Lookup) -> None:
    """Check that no folder is an unfinished store, which would be read as its Arrow files so far.

    Raises:
        DataError: a folder is an unfinished store.
    """
    for place in lookup.places:
        if isinstance(place, str):
            continue
        root, pattern, infos = place
        folder = f"{pattern}/" if pattern else ""
        names = [info.key[len(folder) :] for info in infos if info.key.startswith(folder)]
        if len(names) == len(infos) and is_unfinished_store(names):
            raise DataError(
                f"expected a whole store, got {len(names)} of its files without {MANIFEST}: it is being written, or "
                "was not finished",
                path=without_credentials(f"{root}/{pattern}".rstrip("/")),
                hint="wait for fl.convert to end, or repeat the call that wrote it",
            )


def _open_objects(
    lookup: Lookup,
    cache: PathLike | None,
    cache_bytes: int | None,
    memory_bytes: int,
    streams: Mapping[str, Any],
    *,
    schema: SchemaRule,
) -> RemoteCorpus:
    """Open the objects that were lookup up. Another process does the same, without a request to the stores."""
    placeholders = Placeholders(lookup, cache, cache_bytes)
    try:
        fmt, paths = recognise(placeholders.paths)
        if listed := look_up_listed(lookup, placeholders, [name for path in paths for name in fmt.listed_files(path)]):
            placeholders.close()
            lookup, placeholders = listed, Placeholders(listed, cache, cache_bytes)
            fmt, paths = recognise(placeholders.paths)
        if fmt.name != "csv":
            check_streams(streams)
        corpus = fmt.open(paths, streams, memory_bytes, schema)
        views = fetches_ahead(corpus) and not placeholders.objects.keys().isdisjoint(corpus.paths())
        if views or any(remote_file.mapped for remote_file in placeholders.objects.values()):
            corpus = _prepare_views(corpus, placeholders, fmt, lambda: fmt.open(paths, streams, memory_bytes, schema))
    except BaseException:
        placeholders.close()
        raise
    reopen = functools.partial(_open_objects, schema=schema), (lookup, cache, cache_bytes, memory_bytes, streams)
    return RemoteCorpus(corpus, placeholders, fmt.name, reopen)


def _prepare_views(
    corpus: Deserializer, placeholders: Placeholders, fmt: Format, reopen: Callable[[], Deserializer]
) -> Deserializer:
    """Return a corpus that is safe to read where parts of its mapped files are missing, else one over whole files."""
    if placeholders.whole or not (fetches_ahead(corpus) and can(corpus, RandomAccess)):
        # Nothing has to be fetched, or readers that touch more than views would touch missing parts.
        corpus.close()
        placeholders.fetch_whole(fmt.description)
        return reopen()
    require(corpus, Mapped).hold_bounds()
    return corpus


def _read_extents(extents: Sequence[Extent]) -> list[memoryview]:
    """Read extents.

    Raises:
        DataError: they cannot be fetched.
    """
    pieces = []
    for path, at, size in extents:
        pieces.append(memoryview(bytearray(size)))
        if (remote := object_at(path)) is not None:
            remote.read(at, pieces[-1])
        else:
            with open_file(path) as file:
                preadv(file, pieces[-1], at)
    return pieces


class RemoteCorpus(Forwarding, Sliceable, Fetchable):
    """A corpus over placeholders of objects.

    Args:
        corpus: the corpus.
        placeholders: the objects.
        format: name of their format.
        reopen: a function that opens the corpus in another process, and its arguments.
        owner: the corpus that owns the objects, if it is not this one.

    Attributes:
        placeholders: the objects, and the cache of parts of them.
        format: name of their format, see `detect.FORMATS`.

    Other attributes are those of the corpus, such as `LeRobotDeserializer.fps`.
    """

    def __init__(
        self,
        corpus: Deserializer,
        placeholders: Placeholders,
        format: str,
        reopen: tuple[Callable[..., Any], tuple[Any, ...]],
        *,
        owner: RemoteCorpus | None = None,
    ) -> None:
        super().__init__(corpus)
        self.name = shown_path(corpus.name)
        self.placeholders, self.format, self._reopen = placeholders, format, reopen
        self._owner, self._closed = owner, False
        # Chunks keep their extents, as the bytes of extents may arrive after the files are complete.
        has_objects = not placeholders.objects.keys().isdisjoint(
            corpus.paths()
        )  # the files of a mixture belong to its parts
        self._has_views = self._incomplete = has_objects and may_lack_parts(corpus)

    # ---- views of files of which parts may be missing -------------------------------------------------

    @property
    def _lacks_parts(self) -> bool:
        """Whether views of the corpus must not be touched, as parts of its files are missing."""
        self._check_open()
        self._incomplete = self._incomplete and may_lack_parts(self._corpus)
        return self._incomplete

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"expected an open corpus, but {self.name} was closed")

    def extents(self, chunk: int) -> Sequence[Extent]:
        """Return the extents that the corpus declares, or the extents of its views."""
        self._check_open()
        if not self._has_views or looks_at_all(self._corpus):
            return chunk_extents(self._corpus, chunk)
        return extents_of(self._corpus.read(chunk), files_of(self._corpus, [chunk]))

    def read_fetched(self, chunk: int, pieces: Sequence[Piece]) -> Chunk:
        """Return a chunk of the corpus from its extents, which were fetched."""
        self._check_open()
        if not self._has_views or looks_at_all(self._corpus):
            return require(self._corpus, Fetchable).read_fetched(chunk, pieces)
        return fetched_chunk(self._corpus.read(chunk), files_of(self._corpus, [chunk]), pieces)

    def read(self, chunk: int) -> Chunk:
        """Return a chunk of the corpus. Fetches its bytes if parts of its files may be missing."""
        if not self._lacks_parts:
            # Fetch first, as a library that reads in other threads would hold back an interrupt.
            extents = chunk_extents(self._corpus, chunk)
            if any(by_ranges(extent.path) for extent in extents):
                return require(self._corpus, Fetchable).read_fetched(chunk, _read_extents(extents))
            return self._corpus.read(chunk)
        if looks_at_all(self._corpus):
            fetchable = require(self._corpus, Fetchable)
            return fetchable.read_fetched(chunk, _read_extents(fetchable.extents(chunk)))
        return self._fetch_views(self._corpus.read(chunk), chunk)

    def read_slice(self, chunk: int, start: int, stop: int) -> Chunk:
        """Return a slice of a chunk of the corpus in the same way."""
        if not self._lacks_parts:
            return read_slice(self._corpus, chunk, start, stop)
        if looks_at_all(self._corpus):
            return self.read(chunk).slice(start, stop)
        return self._fetch_views(read_slice(self._corpus, chunk, start, stop), chunk)

    def select(self, ordinals: Ints) -> Chunk:
        """Return sequences of the corpus."""
        return select_by_chunk(self, ordinals) if self._lacks_parts else self._corpus.select(ordinals)

    def _fetch_views(self, views: Chunk, chunk: int) -> Chunk:
        files = files_of(self._corpus, [chunk])
        extents = extents_of(views, files)
        # No bytes are missing, or the files have become complete meanwhile.
        spans = [(object_at(path), at, at + size) for path, at, size in extents]
        if all(remote is None or remote.has_pinned(begin, end) for remote, begin, end in spans):
            return views
        return fetched_chunk(views, files, _read_extents(extents))

    # ---------------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._corpus, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reopen

    def __repr__(self) -> str:
        return f"{type(self._corpus).__name__}({self.name})"

    def capability(self, kind: type[Capability]) -> Capability | None:
        """See `Forwarding.capability`. This corpus fetches the bytes of views, and for checksums whole files."""
        return self if kind in (Verifiable, Fetchable) else super().capability(kind)  # type: ignore[return-value]

    def verified(self) -> Deserializer:  # type: ignore[override]
        """Return this corpus over the verified one, or itself if its corpus is verified already.

        Raises:
            DataError: checksums need whole files, and the cache has no room for them.
        """
        if self._lacks_parts:
            check_room(self.paths(), f"{self.name}, with checksums of whole chunks", "read it without verification")
            materialize(self.paths())
        corpus = verified(self._corpus)
        if corpus is self._corpus:
            return self
        return RemoteCorpus(corpus, self.placeholders, self.format, self._reopen, owner=self)

    def close(self) -> None:
        """Close the corpus. The chunks that it returned must not be used afterwards. The cache keeps fetched bytes."""
        super().close()
        self._closed = True
        if self._owner is None:
            self.placeholders.close()
