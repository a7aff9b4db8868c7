"""Zarr stores as a corpus: arrays that share their first dimension are streams.

Stores of version 2 and 3, in folders and zip archives, with shards or without. The zarr library decodes whole chunks as
they are stored, in as many threads as read (see `zarr_library`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from feedline.data import Stream
from feedline.errors import SchemaError, install_line
from feedline.feed.files.digest import ContentDigest
from feedline.feed.files.paths import PathLike
from feedline.feed.formats.arrays import ArrayDeserializer
from feedline.feed.formats.stored.arrays import StoredArray, StoredArrays
from feedline.feed.formats.stored.zarr_store import Keys, StoredFiles, document, is_array, join, list_stores, open_keys

_ROOT_NAME = "x"  # of an array that is a store by itself
_MOST_LISTED = 20  # arrays in an error


class ZarrDeserializer(StoredArrays):
    """Arrays of Zarr stores, one row per sequence, which is one sample.

    Strings are `str`, byte strings `bytes`. Without declared streams, all arrays directly in ``group`` are streams,
    which must have equally many rows; an array that is a store by itself is the stream ``x``.

    Args:
        path: a store (a folder, or a zip archive of one), a list of stores (read as their concatenation), a folder of
            stores that are named ``.zarr`` or ``.zarr.zip``, or a pattern, see `open_corpus`.
        streams: stream name to `Stream`; also given as keyword arguments. ``field`` is the array's name in the group,
            or its path, ``"train/images"``; None: the stream's own name. Shape and dtype must be the array's, but
            strings may be declared ``"bytes"`` or ``"str"``, whichever they are.
        group: group in which arrays are looked up.
        chunk_sequences: rows per chunk; None: as many as make 32 MiB or fewer, cut where the arrays' chunks end.
        memory: bytes that a decoded chunk may take.
        stream_kwargs: more streams.

    Raises:
        SchemaError: a stream that is missing, or not as declared; arrays of different numbers of rows; data that
            cannot be a stream (objects, compound types, dates); the codec of pickles.
        DataError: a store is missing, damaged, or no Zarr store, or has no rows.
        ModuleNotFoundError: zarr is not installed (``pip install 'feedline[zarr]'``).
    """

    def close(self) -> None:
        """Close archives that are open in this process; reading opens them again."""
        for keys in self._keys.values():
            keys.close()

    def _list(self, path: PathLike | Sequence[PathLike]) -> list[str]:
        """See `StoredArrays`."""
        self._keys: dict[str, Keys] = {}
        self._used: list[tuple[Keys, str]] = []
        return list_stores(path)

    def _arrays(self, path: str, group: str, streams: Mapping[str, Stream], memory_bytes: int) -> Any:
        """See `StoredArrays`."""
        keys = self._keys[path] = open_keys(path, memory_bytes)
        return self._columns_of(
            lambda name: self._array(keys, group, name, memory_bytes),
            lambda: _own_names(keys, group),
            streams,
            path=path,
            memory_bytes=memory_bytes,
        )

    def _array(self, keys: Keys, group: str, name: str, memory_bytes: int) -> StoredArray:
        place, found = _find(keys, group, name)
        try:
            from feedline.feed.formats.stored.zarr_library import ZarrArray
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"zarr is not installed; run: {install_line('zarr')}") from error
        self._used.append((keys, place))
        return ZarrArray(keys, place, name=place or _ROOT_NAME, found=found, memory_bytes=memory_bytes)

    def paths(self) -> Sequence[str]:
        """Return the paths of the files that hold the arrays: chunks, shards and archives."""
        return StoredFiles(self._used)

    def _add_file(self, digest: ContentDigest, path: str, part: ArrayDeserializer) -> None:
        digest.numbers(part.step, int(part.digest(), 16))


def _find(keys: Keys, group: str, name: str) -> tuple[str, tuple[str, dict[str, Any]]]:
    """Return the key of an array, and the document that describes it after its name.

    Raises:
        SchemaError: there is none.
    """
    place = join(group, name)
    found = document(keys, place)
    if found is None and join(name) == _ROOT_NAME and is_array(document(keys, join(group))):
        place = join(group)
        found = document(keys, place)
    if found is None or not is_array(found):
        got = "nothing there" if found is None else "a group"
        raise SchemaError(f"expected an array, got {got}: `{place}` in {keys.path}; {_listed(keys, join(group))}")
    return place, found


def _own_names(keys: Keys, group: str) -> Iterator[str]:
    place = join(group)
    found = document(keys, place)
    if is_array(found):
        return iter([_ROOT_NAME])
    names = [name for name in keys.names(place) if is_array(document(keys, join(place, name)))]
    if not names:
        what = "no Zarr store" if found is None and not place else "none"
        raise SchemaError(
            f"expected arrays in `/{place}` of {keys.path}, got {what}; {_listed(keys, place)}; pass group=, or "
            "declare streams: x=fl.Stream(..., field='group/name')"
        )
    return iter(names)


def _listed(keys: Keys, place: str) -> str:
    """Return a sentence on the arrays in a group and its groups."""
    if is_array(document(keys, place)):
        return f"there is one array: {_ROOT_NAME}"
    found: list[str] = []
    groups = [place]
    while groups and len(found) <= _MOST_LISTED:
        here = groups.pop(0)
        for name in keys.names(here)[: 10 * _MOST_LISTED]:
            inner = document(keys, join(here, name))
            if inner is not None and is_array(inner):
                shape = inner[1].get("shape")
                found.append(f"{join(here, name)} {tuple(shape) if isinstance(shape, list) else shape}")
            elif inner is not None:
                groups.append(join(here, name))
    more = ", ..." if len(found) > _MOST_LISTED else ""
    return f"there are: {', '.join(found[:_MOST_LISTED])}{more}" if found else "there are no arrays"
