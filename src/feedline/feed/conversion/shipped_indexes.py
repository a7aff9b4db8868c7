"""Indexes beside the files of a corpus, so that machines that open it later need not scan the files."""

from __future__ import annotations

import os
import posixpath
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from feedline.data import Stream
from feedline.errors import DataError
from feedline.feed.arguments import Remote
from feedline.feed.files.atomic import atomic_file
from feedline.feed.files.cache_files import make_folder
from feedline.feed.files.paths import INDEX_SUFFIX, PathLike
from feedline.feed.formats.remote_corpus import RemoteCorpus
from feedline.feed.open_corpus import What, open_corpus
from feedline.feed.protocol import Deserializer, Indexed
from feedline.feed.remote.address_text import is_address, without_credentials
from feedline.feed.remote.addresses import open_store
from feedline.feed.remote.requests import Patience
from feedline.feed.remote.stores import Store
from feedline.feed.remote.uploads import Uploads

_Writers = dict[str, Callable[[BinaryIO], None]]


def index(
    path: What,
    *,
    to: PathLike | None = None,
    streams: Mapping[str, Stream | str | Sequence[str]] | None = None,
    remote: Remote | None = None,
) -> list[str]:
    """Write an index beside each file of a corpus, and return the paths or addresses of the indexes.

    `open_corpus` and `DataLoader` use an index with the name of a file and ``.feedline-index`` beside it, instead of
    scanning the file: of tar, RecordIO, TFRecord, JSON Lines, CSV, CTF and MLF. It can be copied with the file. It is
    used if the file has the size that it had, and the same ETag or else the same head, middle and tail of 64 KiB.
    Otherwise a warning says so, and the file is scanned.

    Args:
        path: as for `open_corpus`. Indexes of objects are written to their store.
        to: folder, or address of a folder, for the indexes if they are not to be written beside the files. They have
            the paths of the files below the folder that is common to all.
        streams: as for `open_corpus`. Where rows are lists of samples, an index serves these streams only.
        remote: settings of the object store.

    Raises:
        DataError: as for `open_corpus`, or files of this format have no index, or one cannot be written.
        SchemaError: as for `open_corpus`.
        ValueError: a web server cannot be written to, or ``remote`` is not needed.
    """
    is_remote = is_address(path)
    opened = open_corpus(path, streams=streams, remote=remote if is_remote or not is_address(to) else None)
    with closing(opened) as corpus:
        writers = dict(_indexed(corpus).indexes())
        if to is None:
            return _write_beside(corpus, writers)
        folder = os.path.commonpath([os.path.dirname(os.path.abspath(file)) for file in writers])
        named = {os.path.relpath(os.path.abspath(file), folder): write for file, write in writers.items()}
        if not is_address(to):
            return [_write_file(Path(to) / name, write) for name, write in named.items()]
        settings = remote or Remote()
        store, key = open_store(os.fspath(to), settings.storage_options or {})
        by_key = {posixpath.join(key.rstrip("/"), name): write for name, write in named.items()}
        return _upload(store, by_key, Patience.until(settings.deadline_s))


def _indexed(corpus: Deserializer) -> Indexed:
    """Return a corpus of files that have indexes.

    Raises:
        DataError: the files have none.
    """
    indexed = corpus.capability(Indexed)
    if indexed is None:
        form = corpus.format if isinstance(corpus, RemoteCorpus) else type(corpus).__name__
        raise DataError(
            f"expected files that are scanned when they are first opened, such as tar or JSON Lines, got {form}",
            path=corpus.name,
            hint="it needs no index: open it as it is",
        )
    return indexed


def _write_beside(corpus: Deserializer, writers: _Writers) -> list[str]:
    objects = corpus.placeholders.objects if isinstance(corpus, RemoteCorpus) else {}
    written = [_write_file(Path(file), write) for file, write in writers.items() if file not in objects]
    by_store: dict[Store, _Writers] = {}
    for file, write in writers.items():
        if file in objects:
            by_store.setdefault(objects[file].store, {})[objects[file].info.key] = write
    for store, by_key in by_store.items():
        patience = next(cached.patience for cached in objects.values() if cached.store is store)
        written += _upload(store, by_key, patience)
    return written


def _write_file(path: Path, write: Callable[[BinaryIO], None]) -> str:
    """Write the index of the file at ``path``, and return its path.

    Raises:
        DataError: it cannot be written.
    """
    place = path.with_name(path.name + INDEX_SUFFIX)
    try:
        make_folder(place.parent)
        with atomic_file(place, 0o644) as file:
            write(file)
    except OSError as error:
        raise DataError(
            f"expected to write an index, got: {error.strerror}", path=str(place), hint="pass to=<a folder of yours>"
        ) from error
    return str(place)


def _upload(store: Store, writers: _Writers, patience: Patience) -> list[str]:
    """Write the indexes of objects to their store by their keys, and return their addresses.

    Raises:
        DataError: the store does not take one.
        ValueError: it is a web server.
    """
    if not store.lists:
        raise ValueError(
            f"expected a folder or an object store to write indexes to, got {without_credentials(store.address)}, a "
            "web server; pass to=<a folder>, and copy the indexes to the files"
        )
    folders: dict[str, _Writers] = {}
    for key, write in writers.items():
        folder, name = posixpath.split(key)
        folders.setdefault(f"{folder}/" if folder else "", {})[name] = write
    for prefix, named in folders.items():
        with tempfile.TemporaryDirectory(prefix="feedline-index-") as work:
            uploads = Uploads(store, prefix, Path(work), patience)
            try:
                for name, write in named.items():
                    uploads.begin(Path(_write_file(Path(work) / name, write)))
                uploads.drain()
            except BaseException:
                uploads.abort()
                raise
            uploads.close()
    return [store.url(key + INDEX_SUFFIX) for key in writers]
