"""HDF5 files as a corpus: datasets that share their first dimension are streams.

Contiguous datasets of plain numbers, HDF5's default, are mapped and delivered as views. h5py reads only their headers.
All other datasets (chunked, compressed, strings, vectors of any length) are read by h5py, in whole blocks as they are
stored, and by one thread at a time, as the HDF5 library allows no more.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import warnings
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.concurrency.collection import no_collection
from feedline.concurrency.fork_local import PerProcess
from feedline.data import Stream
from feedline.errors import DataError, SchemaError, install_line
from feedline.feed.files.digest import ContentDigest
from feedline.feed.files.mapped_arrays import map_file
from feedline.feed.files.paths import PathLike, list_files, open_file, status_of
from feedline.feed.files.remote import object_at
from feedline.feed.formats.arrays import ArrayDeserializer
from feedline.feed.formats.hdf5_zarr.hdf5_heaps import check_heaps
from feedline.feed.formats.hdf5_zarr.stored_arrays import StoredArrays

_MAX_OPEN = 16  # files that are open at once
_MAX_LINKS = 16  # soft links that lead to one another
_MAX_LISTED = 20  # datasets in an error
_BLOCK_BYTES = 64 << 10  # step in which rows around damage are read, of a dataset without blocks
_HEAP_ROWS = 64  # the same step for strings and vectors
_DEFLATE, _CHECKSUM = 1, 3  # filters of HDF5
_MAX_RATIO = 1032  # bytes that one byte of deflate can expand to
_PART_BYTES = 1 << 20  # of a block that are decoded in one step
_MAX_UNCHECKED = 128 << 20  # bytes that a stored block may expand to without a check
_NO_VARIABLE = "This is a netCDF dimension but not a netCDF variable"
_DAMAGED = "the file is damaged or was truncated; restore it, or write it again"


class HDF5Deserializer(StoredArrays):
    """Datasets of HDF5 files, one row per sequence.

    A row is a sequence of one sample. In a dataset of vectors of any length (``h5py.vlen_dtype``), a row of n numbers
    is a sequence of n samples of shape ``()``. Strings are `bytes` or, if they are marked as UTF-8, `str`. Without
    declared streams, all datasets directly in ``group`` are streams, which must have equally many rows. Links within a
    file are followed. A warning names other links.

    Args:
        path: a file, a list of files (read as their concatenation), a folder, or a pattern, see `open_corpus`.
        streams: streams to deliver, by name, also as keyword arguments. ``field`` is the name of the dataset in the
            group, or its path, ``"train/images"``, by default the stream's name. Shape and dtype must match the file.
            Strings, however they are marked, and vectors of uint8, as encoded pictures are stored, may be declared
            ``"bytes"`` or ``"str"``.
        group: group in which names are looked up.
        chunk_sequences: rows per chunk. By default at most 32 MiB of them, cut where stored blocks end, or 65536 rows
            if all datasets are mapped.
        memory: bytes that a decoded chunk may take.
        stream_kwargs: more streams.

    Raises:
        SchemaError: a stream is missing, or not as declared, datasets have different numbers of rows, are in other
            files, or cannot be a stream (compound types, references, dates).
        DataError: a file is missing, damaged, or no HDF5 file, or has no rows.
        ModuleNotFoundError: h5py is not installed (``pip install 'feedline[hdf5]'``).
    """

    def close(self) -> None:
        """Close the files that are open in this process. Reading opens them again."""
        self._files.close()

    def _list_paths(self, path: PathLike | Sequence[PathLike]) -> list[str]:
        """See `StoredArrays`."""
        self._files = _OpenFiles()
        return [str(file) for file in list_files(path)]

    def _arrays(self, path: str, group: str, streams: Mapping[str, Stream], memory_bytes: int) -> Any:
        """See `StoredArrays`."""
        with self._files.using(path) as file:
            try:
                root = _find(file, group)
                return self._columns_of(
                    lambda name: _Dataset(self._files, path, _dataset(root, name), memory_bytes),
                    lambda: _dataset_names(root),
                    streams,
                    path=path,
                    memory_bytes=memory_bytes,
                )
            except (DataError, SchemaError):
                raise
            except Exception as error:  # h5py raises errors of many types for damaged files
                raise DataError(f"expected readable headers: {error!r}", path=path, hint=_DAMAGED) from error

    def _add_file(self, digest: ContentDigest, path: str, part: ArrayDeserializer) -> None:
        with open_file(path) as file:
            digest.file(file, status_of(file).st_size)


class _OpenFiles:
    """The files of a corpus. Few are open at once, and one thread at a time uses them, as the library has one lock."""

    def __init__(self) -> None:
        self._state: PerProcess[tuple[Any, OrderedDict[str, Any]]] = PerProcess(_new_state)
        self._states: dict[str, tuple[int, ...]] = {}

    @contextlib.contextmanager
    def using(self, path: str) -> Iterator[Any]:
        """Return a context with an open file, in which no other thread uses a file."""
        lock, files = self._state.get()
        # The library holds its lock while it waits for the bytes of an object, and also to free what it made.
        with lock, contextlib.nullcontext() if object_at(path) is None else no_collection():
            yield self._open_locked(files, path)

    def _open_locked(self, files: OrderedDict[str, Any], path: str) -> Any:
        """Return an open file. The caller holds the lock.

        Raises:
            DataError: the file cannot be opened, or has changed since it was first opened.
        """
        if path in files:
            files.move_to_end(path)
            return files[path]
        try:
            import h5py
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"h5py is not installed; run: {install_line('hdf5')}") from error
        with open_file(path) as plain:  # refuses anything but a regular file
            status = status_of(plain)
        state = (status.st_size, status.st_mtime_ns)
        if self._states.setdefault(path, state) != state:
            raise DataError("expected the file as it was when it was opened: it has changed", path=path)
        while len(files) >= _MAX_OPEN:
            files.popitem(last=False)[1].close()
        try:
            files[path] = h5py.File(path if object_at(path) is None else open_file(path, -1), "r")
        except Exception as error:
            raise DataError(f"expected an HDF5 file: {error}", path=path, hint=_DAMAGED) from error
        return files[path]

    def close(self) -> None:
        lock, files = self._state.get()
        with lock:
            while files:
                files.popitem()[1].close()


def _new_state() -> tuple[Any, OrderedDict[str, Any]]:
    # A thread may take the lock again: columns are created and read while their file is open.
    return threading.RLock(), OrderedDict()


class _Dataset:
    """A dataset as a `StoredArray`, created while its file is open.

    Raises:
        SchemaError: it cannot be a stream.
        DataError: its blocks take more than ``memory_bytes``.
    """

    concurrent = True  # the files have a lock

    def __init__(self, files: _OpenFiles, path: str, dataset: Any, memory_bytes: int) -> None:
        import h5py

        self._files, self.path, self._name = files, path, dataset.name
        kind = dataset.dtype
        self.shape: tuple[int, ...] = tuple(map(int, dataset.shape or ()))
        refuse = self._refusal
        if not self.shape:
            raise refuse("a dataset with one row per sequence", "a scalar or an empty dataset", "declare others")
        if dataset.is_virtual:
            raise refuse("data in the file itself", "a virtual dataset, which reads zeros where its sources are "
                         "missing", "pass the list of its source files")  # fmt: skip
        if dataset.external:
            raise refuse("data in the file itself", "a dataset that is stored in another file", "write it into one")
        text, base = h5py.check_string_dtype(kind), h5py.check_vlen_dtype(kind)
        self.ragged = text is None and base is not None
        self._in_heap = self.ragged or (text is not None and text.length is None)
        if self._in_heap and dataset.file.id.get_create_plist().get_sizes() != (8, 8):
            raise refuse("addresses of 8 bytes", "others", "write it again with h5py's defaults")
        if kind.subdtype is not None:
            kind, inner_shape = kind.subdtype
            self.shape += inner_shape
        if text is not None:
            self.dtype = np.dtype("U" if text.encoding == "utf-8" else "S")
        else:
            number = np.dtype(base if self.ragged else kind)
            if number.kind not in "biufc" or h5py.check_ref_dtype(kind) is not None or number.subdtype is not None:
                what = "compound records" if number.names else f"dtype {number}"
                raise refuse("numbers, strings or vectors of numbers", what, "declare the streams that you need: "
                             "x=fl.Stream(..., field='name')")  # fmt: skip
            self.dtype = np.dtype(number.str).newbyteorder("=")
        if (self.ragged or text is not None) and len(self.shape) != 1:
            raise refuse("one string or vector per sequence", f"shape {self.shape}", "write it as shape (N,)")
        self._row = int(np.prod(self.shape[1:], dtype=np.float64)) * max(1, kind.itemsize)
        self.block = max(1, _BLOCK_BYTES // max(1, self._row)) if dataset.chunks is None else int(dataset.chunks[0])
        if self._in_heap and dataset.chunks is None:
            self.block = _HEAP_ROWS
        self._check_storage(dataset, memory_bytes)
        self._place = self._mapped_offset(dataset, kind) if text is None and not self.ragged else None

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        with self._files.using(self.path) as file:
            dataset = file[self._name]
            if self._in_heap and stop > start:
                check_heaps(dataset, self.path, start, stop)
            if self._deflated is not None:
                self._check_blocks(dataset, start, stop, self._deflated)
            data: NDArray[Any] = dataset[start:stop]
        return data

    def map_rows(self) -> NDArray[Any] | None:
        """Return the rows as a view of the file, if they are stored as they are in memory."""
        if self._place is None:
            return None
        try:
            return map_file(self.path, self.dtype, self._place, self.shape)
        except (OSError, ValueError, OverflowError) as error:
            raise DataError(
                f"expected {self._row * self.shape[0]} bytes of dataset `{self._name}`: {error}",
                path=self.path,
                byte=self._place,
                hint=_DAMAGED,
            ) from error

    def fill_values(self) -> tuple[Mapping[str, Any], Any]:
        """See `StoredArray`."""
        import h5py

        with self._files.using(self.path) as file:
            dataset = file[self._name]
            created = dataset.id.get_create_plist()
            declared = created.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED
            return dict(dataset.attrs), dataset.fillvalue if declared else None

    def _refusal(self, expected: str, got: str, hint: str) -> SchemaError:
        return SchemaError(f"expected {expected}, got {got}: dataset `{self._name}` in {self.path}; {hint}")

    def _check_storage(self, dataset: Any, memory_bytes: int) -> None:
        import h5py

        refuse, layout = self._refusal, dataset.id.get_create_plist()
        codes = []
        for i in range(layout.get_nfilters()):
            code, _, _, name = layout.get_filter(i)
            codes.append(code)
            if not h5py.h5z.filter_avail(code):
                what = f"filter {code} ({name.decode('utf-8', 'replace')}), which is missing here"
                raise refuse("readable blocks", what, "import the package that has it, such as hdf5plugin, first")
        self._deflated = codes.index(_DEFLATE) if _DEFLATE in codes else None
        if self._deflated is not None and set(codes[self._deflated + 1 :]) - {_CHECKSUM}:
            raise refuse("deflate as the last filter but a checksum", f"the filters {codes}", "write it again without")
        if dataset.chunks is not None:
            size = int(np.prod([float(n) for n in dataset.chunks]) * dataset.dtype.itemsize)
            if size > memory_bytes:
                raise DataError(
                    f"expected stored blocks of at most {memory_bytes} bytes (memory), got {size} in `{self._name}`",
                    path=self.path,
                    hint="raise memory=, or write it in smaller blocks (chunks=)",
                )

    def _check_blocks(self, dataset: Any, start: int, stop: int, deflated: int) -> None:
        """Check the decoded size of stored blocks. The library would notice it only after it has decoded them.

        Raises:
            DataError: a block becomes too large.
        """
        steps = [int(n) for n in dataset.chunks]
        limit = 2 * int(np.prod(steps, dtype=np.float64)) * max(1, dataset.id.get_type().get_size()) + (64 << 10)
        ends = (stop, *dataset.shape[1:])
        firsts = (start // steps[0] * steps[0], *[0] * (len(steps) - 1))
        for place in itertools.product(*(range(*bounds) for bounds in zip(firsts, ends, steps, strict=True))):
            try:
                mask, data = dataset.id.read_direct_chunk(place)
            except (OSError, RuntimeError, ValueError):
                continue  # never written, or damaged, which the library reports when it reads
            if mask >> deflated & 1 or len(data) * _MAX_RATIO <= max(limit, _MAX_UNCHECKED):
                continue
            unpacker, total = zlib.decompressobj(), 0
            try:
                while total <= limit and (part := unpacker.decompress(data, _PART_BYTES)):
                    total, data = total + len(part), unpacker.unconsumed_tail
            except zlib.error:
                continue
            if total > limit:
                raise DataError(
                    f"expected a stored block of at most {limit} bytes in `{self._name}`, got one that decompresses "
                    f"to more, at {list(place)}",
                    path=self.path,
                    hint=_DAMAGED,
                )

    def _mapped_offset(self, dataset: Any, kind: np.dtype[Any]) -> int | None:
        """Return the first byte of the rows, if they are contiguous numbers in native representation."""
        import h5py

        stored = dataset.id
        if stored.get_create_plist().get_layout() != h5py.h5d.CONTIGUOUS or not kind.isnative or kind.kind == "b":
            return None
        # Equal types only: a type of the same dtype in memory may have padding or another exponent in the file.
        if dataset.dtype.subdtype is not None or stored.get_type() != h5py.h5t.py_create(kind):
            return None
        # A dataset that was never written has no place. The library then reads its fill value.
        complete = stored.get_storage_size() == self._row * self.shape[0] > 0
        place = stored.get_offset() if complete else None
        return None if place is None else int(place)


def _find(place: Any, name: str, links: Iterator[int] | None = None) -> Any:
    """Return the group or dataset of a name. Links to other files are not followed.

    Raises:
        SchemaError: nothing has this name, or it leads to another file.
    """
    import h5py

    where = f"`{name}` in {place.file.filename}"
    budget = iter(range(_MAX_LINKS)) if links is None else links  # for the whole path, which may pass a link many times
    if name.startswith("/"):
        place = place.file
    for part in (part for part in name.split("/") if part not in ("", ".")):
        link = place.get(part, getlink=True) if isinstance(place, h5py.Group) else None
        if isinstance(link, h5py.ExternalLink):
            raise SchemaError(f"expected data in this file, got a link to {link.filename}: {where}; open that file")
        if isinstance(link, h5py.SoftLink):
            if next(budget, None) is None:
                raise SchemaError(f"expected at most {_MAX_LINKS} links that lead to one another: {where}")
            place = _find(place, link.path, budget)
        elif link is None:
            raise SchemaError(f"expected {where}, got nothing there; {_datasets_in(place)}")
        else:
            place = place[part]
    return place


def _dataset(root: Any, name: str) -> Any:
    import h5py

    dataset = _find(root, name)
    if not isinstance(dataset, h5py.Dataset):
        raise SchemaError(f"expected a dataset, got a group: `{name}` in {root.file.filename}; {_datasets_in(dataset)}")
    return dataset


def _dataset_names(root: Any) -> Iterator[str]:
    import h5py

    if not isinstance(root, h5py.Group):
        raise SchemaError(f"expected a group, got a dataset: `{root.name}` in {root.file.filename}")
    names, left_out = list[str](), list[str]()
    for name in root:
        if isinstance(name, bytes):
            left_out.append(repr(name))
            continue
        try:
            item = _find(root, name)
        except SchemaError as error:
            left_out.append(f"{name!r} ({error})")
            continue
        if isinstance(item, h5py.Dataset) and item.shape and not _is_dimension(item):
            names.append(name)
    listed = "; ".join(left_out[:_MAX_LISTED])
    links = f"links that lead nowhere or to other files, and names that are not UTF-8, are not read: {listed}"
    if names and left_out:
        warnings.warn(f"{root.file.filename}: {links}. Declare your streams to silence this warning", stacklevel=2)
    if not names:
        raise SchemaError(
            f"expected datasets in `{root.name}` of {root.file.filename}, got none; {_datasets_in(root)}; "
            f"{f'{links}; ' if left_out else ''}pass group=, or declare streams: x=fl.Stream(..., field='group/name')"
        )
    return iter(names)


def _is_dimension(dataset: Any) -> bool:
    """Return whether netCDF-4 stored a dataset for a dimension without a variable. Its zeros are no data."""
    is_scale = dataset.attrs.get("CLASS") in (b"DIMENSION_SCALE", "DIMENSION_SCALE")
    name = dataset.attrs.get("NAME", b"") if is_scale else b""
    return str(name, "latin-1").startswith(_NO_VARIABLE) if isinstance(name, bytes) else name.startswith(_NO_VARIABLE)


def _datasets_in(place: Any) -> str:
    """Return a sentence that lists the datasets in a group and below, for an error."""
    import h5py

    lines: list[str] = []

    def note(name: str, item: Any) -> bool | None:
        if isinstance(item, h5py.Dataset):
            lines.append(f"{name} {item.shape}")
        return True if len(lines) > _MAX_LISTED else None

    if isinstance(place, h5py.Group):
        place.visititems(note)
    suffix = ", ..." if len(lines) > _MAX_LISTED else ""
    return f"there are: {', '.join(lines[:_MAX_LISTED])}{suffix}" if lines else "there are no datasets"
