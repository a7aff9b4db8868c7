"""A corpus whose files lie in object stores: the same in every way, but for where its bytes come from."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feedline.data import Stream
from feedline.errors import DataError, SchemaError, shown_path
from feedline.feed.formats.detect import recognise
from feedline.feed.formats.forwarding import Forwarding
from feedline.feed.formats.store.bucket import unfinished_store
from feedline.feed.formats.store.manifest import MANIFEST
from feedline.feed.protocol import Deserializer
from feedline.feed.remote.mirror import LookedUp, Mirror, look_up
from feedline.feed.remote.peers import RayPeers
from feedline.feed.remote.requests import Patience
from feedline.feed.remote.stores import without_credentials


@dataclass
class Stores:
    """How addresses are opened; see `open_corpus`.

    Attributes:
        cache, cache_bytes, cache_peers, storage_options, patience: as there.
        used: whether an address was opened.
    """

    cache: str | os.PathLike[str] | None = None
    cache_bytes: int | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    patience: Patience = field(default_factory=Patience)
    cache_peers: str | None = None
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
    stores = _stores.get() or Stores()
    stores.used = True
    looked = look_up(what, stores.storage_options, stores.patience)
    _refuse_unfinished(looked)
    return _of_objects(looked, stores.cache, stores.cache_bytes, memory_bytes, dict(streams), peers=stores.cache_peers)


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
    *,
    peers: str | None,
    cluster: str | None = None,
) -> RemoteCorpus:
    """Open what was looked up; also in another process, which asks the stores nothing."""
    mirror = Mirror(looked, cache, cache_bytes)
    try:
        if peers is not None:
            own = mirror.cache
            own.peers = own.peers or RayPeers(own.folder, cluster)
            cluster = own.peers.address
        form, paths = recognise(mirror.paths)
        if not all(form.reads_by_ranges(Path(path)) for path in paths):
            mirror.fetch_whole(form.a)
        if form.name != "csv":
            check_streams(streams)
        corpus = form.open(paths, streams, memory_bytes)
    except BaseException:
        mirror.close()
        raise
    again = functools.partial(_of_objects, peers=peers, cluster=cluster)
    return RemoteCorpus(corpus, mirror, form.name, (again, (looked, cache, cache_bytes, memory_bytes, streams)))


class RemoteCorpus(Forwarding):
    """A corpus over placeholders of objects.

    Args:
        corpus: the corpus.
        mirror: the objects.
        form: name of their format.
        again: what opens it in another process: a function, and its arguments.

    Attributes:
        mirror: the objects, and the cache that holds parts of them.
        format: name of their format, see `detect.FORMATS`.
    """

    def __init__(
        self, corpus: Deserializer, mirror: Mirror, form: str, again: tuple[Callable[..., Any], tuple[Any, ...]]
    ) -> None:
        super().__init__(corpus)
        self.name = shown_path(corpus.name)
        self.mirror, self.format, self._again = mirror, form, again

    def __reduce__(self) -> tuple[Any, ...]:
        return self._again

    def __repr__(self) -> str:
        return f"{type(self._corpus).__name__}({self.name})"

    def verified(self) -> Deserializer:  # type: ignore[override]
        """Return the same over the verified corpus; itself if that is the corpus."""
        corpus = self._corpus.verified()
        return self if corpus is self._corpus else RemoteCorpus(corpus, self.mirror, self.format, self._again)

    def close(self) -> None:
        """Close the corpus; chunks that it returned must not be used any more. What was fetched stays in the cache."""
        super().close()
        self.mirror.close()
