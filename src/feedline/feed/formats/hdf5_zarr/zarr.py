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
from feedline.feed.formats.hdf5_zarr.stored_arrays import StoredArray, StoredArrays
from feedline.feed.formats.hdf5_zarr.zarr_store import Keys, StoredFiles, is_array, join, metadata, open_keys, stores_at
from feedline.feed.protocol import Deserializer

_ROOT_NAME = "x"  # of the array of a store that is a single array
_MAX_LISTED = 20  # arrays in an error


class ZarrDeserializer(StoredArrays):
    """Arrays of Zarr stores, one row per sequence, which is one sample.

    Strings are `str`, byte strings `bytes`. Without declared streams, all arrays directly in ``group`` are streams,
    which must have equally many rows. The array of a store that is a single array is the stream ``x``.

    Args:
        path: a store (a folder, or a zip archive of one), a list of stores (read as their concatenation), a folder of
            stores with the suffix ``.zarr`` or ``.zarr.zip``, or a pattern, see `open_corpus`.
        streams: stream name to `Stream`, also as keyword arguments. ``field`` is the name of the array in the group, or
            its path, ``"train/images"``, by default the stream's name. Shape and dtype must match the array, but both
            kinds of strings may be declared ``"bytes"`` or ``"str"``.
        group: group in which arrays are looked up.
        chunk_sequences: rows per chunk. By default at most 32 MiB of them, cut where the arrays' chunks end.
        memory: bytes that a decoded chunk may take.
        stream_kwargs: more streams.

    Raises:
        SchemaError: a stream is missing, or not as declared, arrays have different numbers of rows, data cannot be a
            stream (objects, compound types, dates), or have the codec of pickles.
        DataError: a store is missing, damaged, or no Zarr store, or has no rows.
        ModuleNotFoundError: zarr is not installed (``pip install 'feedline[zarr]'``).
    """

    def close(self) -> None:
        """Close archives that are open in this process. Reading opens them again."""
        for keys in self._keys.values():
            keys.close()

    def _list_paths(self, path: PathLike | Sequence[PathLike]) -> list[str]:
        """See `StoredArrays`."""
        self._keys: dict[str, Keys] = {}
        self._used: list[tuple[Keys, str]] = []
        return stores_at(path)

    def _arrays(self, path: str, group: str, streams: Mapping[str, Stream], memory_bytes: int) -> Any:
        """See `StoredArrays`."""
        keys = self._keys[path] = open_keys(path, memory_bytes)
        return self._columns_of(
            lambda name: self._array(keys, group, name, memory_bytes),
            lambda: _array_names(keys, group),
            streams,
            path=path,
            memory_bytes=memory_bytes,
        )

    def _array(self, keys: Keys, group: str, name: str, memory_bytes: int) -> StoredArray:
        place, described = _find(keys, group, name)
        try:
            from feedline.feed.formats.hdf5_zarr.zarr_library import ZarrArray
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"zarr is not installed; run: {install_line('zarr')}") from error
        self._used.append((keys, place))
        return ZarrArray(keys, place, name=place or _ROOT_NAME, document=described, memory_bytes=memory_bytes)

    def shorter(self, sequences: int) -> Iterator[Deserializer]:
        """Yield the corpus of the first sequences. See `Growing.shorter`."""
        return self._first(sequences)

    def paths(self) -> Sequence[str]:
        """Return the paths of the files with the arrays: chunks, shards and archives."""
        return StoredFiles(self._used)

    def _add_file(self, digest: ContentDigest, path: str, part: ArrayDeserializer) -> None:
        digest.numbers(part.step, int(part.digest(), 16))


def _find(keys: Keys, group: str, name: str) -> tuple[str, tuple[str, dict[str, Any]]]:
    """Return the key of an array, and the name and content of the document that describes it.

    Raises:
        SchemaError: there is no such array.
    """
    place = join(group, name)
    described = metadata(keys, place)
    if described is None and join(name) == _ROOT_NAME and is_array(metadata(keys, join(group))):
        place = join(group)
        described = metadata(keys, place)
    if described is None or not is_array(described):
        got = "nothing there" if described is None else "a group"
        raise SchemaError(f"expected an array, got {got}: `{place}` in {keys.path}; {_arrays_in(keys, join(group))}")
    return place, described


def _array_names(keys: Keys, group: str) -> Iterator[str]:
    place = join(group)
    described = metadata(keys, place)
    if is_array(described):
        return iter([_ROOT_NAME])
    names = [name for name in keys.names(place) if is_array(metadata(keys, join(place, name)))]
    if not names:
        what = "no Zarr store" if described is None and not place else "none"
        raise SchemaError(
            f"expected arrays in `/{place}` of {keys.path}, got {what}; {_arrays_in(keys, place)}; pass group=, or "
            "declare streams: x=fl.Stream(..., field='group/name')"
        )
    return iter(names)


def _arrays_in(keys: Keys, place: str) -> str:
    """Return a sentence that lists the arrays in a group and below, for an error."""
    if is_array(metadata(keys, place)):
        return f"there is one array: {_ROOT_NAME}"
    arrays: list[str] = []
    groups = [place]
    while groups and len(arrays) <= _MAX_LISTED:
        group = groups.pop(0)
        for name in keys.names(group)[: 10 * _MAX_LISTED]:
            inner = metadata(keys, join(group, name))
            if inner is not None and is_array(inner):
                shape = inner[1].get("shape")
                arrays.append(f"{join(group, name)} {tuple(shape) if isinstance(shape, list) else shape}")
            elif inner is not None:
                groups.append(join(group, name))
    suffix = ", ..." if len(arrays) > _MAX_LISTED else ""
    return f"there are: {', '.join(arrays[:_MAX_LISTED])}{suffix}" if arrays else "there are no arrays"
