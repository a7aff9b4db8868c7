"""Arrays of a Zarr store, decoded by the zarr library in the thread that reads them.

The library decodes in coroutines, by default in a global event loop, in a thread that a forked child lacks. Here each
read runs them in a new loop, and the jobs that they give to other threads run in the thread of the read. So several
threads can read at the same time, a fork or an interrupt finds no unfinished work, and nothing keeps running.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import math
import selectors
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, NoReturn

import numpy as np
import zarr.abc.store as abc_store
from numpy.typing import NDArray
from zarr import AsyncArray
from zarr.storage import StorePath

from feedline.concurrency.thread_pool import call_each
from feedline.errors import DataError, SchemaError
from feedline.feed.formats.hdf5_zarr.zarr_codecs import Bound, add_string_checks, bound_codec_v2, bound_codec_v3
from feedline.feed.formats.hdf5_zarr.zarr_store import V2_ARRAY, Keys, attributes_of, join

_MAX_CHUNKS_PER_ROW = 1 << 14  # chunks that a row may be spread over
_MAX_CHUNKS_PER_CALL = 1 << 12  # chunks in a call of the library, which lists all of them
_MAX_WIDER, _MAX_MORE = 8, 1 << 16  # size of a chunk before its filters: a multiple of its numbers, and more bytes
_TEXT, _BYTES = "vlen-utf8", "vlen-bytes"
_DECLARE_HINT = "declare the streams that you need: x=fl.Stream(..., field='name')"


class ZarrArray:
    """An array as a `StoredArray`.

    Args:
        keys: the store.
        place: key of the array.
        name: name of the array, for errors.
        document: name and content of the document that describes it.
        memory_bytes: bytes that a chunk may take.

    Raises:
        SchemaError: it cannot be a stream.
        DataError: its document is damaged, or its chunks take more than ``memory_bytes``.
    """

    concurrent = True
    ragged = False

    def __init__(self, keys: Keys, place: str, *, name: str, document: tuple[str, dict[str, Any]], memory_bytes: int):
        file_name, described = document
        self.path = keys.path
        self._document, self._name = keys.where(join(place, file_name)), name
        self._store = _Store(keys)
        if file_name == V2_ARRAY:
            self._check_objects(described)
        try:
            text, stored_at = _is_text(file_name, described), StorePath(self._store, place)
            bound = Bound(memory_bytes)
            bounded = _with_bounds(file_name, described, bound)
            self._array = AsyncArray.from_dict(stored_at, bounded)
            if text:
                as_bytes = _as_bytes(file_name, bounded, self._array.metadata.fill_value)
                self._array = AsyncArray.from_dict(stored_at, _with_bounds(file_name, as_bytes, bound))
            bound.max_bytes = _max_decoded_bytes(self._array, memory_bytes)
            bound.max_items = math.prod(map(int, self._array.chunks))
            self.shape: tuple[int, ...] = tuple(map(int, self._array.shape))
            self._chunks: tuple[int, ...] = tuple(map(int, self._array.chunks))
            stored = np.dtype(self._array.dtype)
            if len(self._chunks) != len(self.shape):
                raise ValueError(f"chunks {self._chunks} for the shape {self.shape}")
        except Exception as error:  # of many types
            self._refuse_metadata(error)
        self.dtype = np.dtype("U") if text else self._plain_dtype(stored)
        if not self.shape:
            raise self._refusal("an array with one row per sequence", "a scalar", _DECLARE_HINT)
        if self.dtype.kind in "SU" and len(self.shape) != 1:
            raise self._refusal("one string per sequence", f"shape {self.shape}", "write it as shape (N,)")
        across = [-(-size // max(1, step)) for size, step in zip(self.shape[1:], self._chunks[1:], strict=True)]
        self._across = math.prod(across)
        decoded = math.prod(self._chunks) * max(1, stored.itemsize)
        if decoded > memory_bytes or self._across > _MAX_CHUNKS_PER_ROW:
            raise DataError(
                f"expected chunks of at most {memory_bytes} bytes (memory) and at most {_MAX_CHUNKS_PER_ROW} of them "
                f"across a row, got {decoded} bytes and {self._across} chunks in `{name}`",
                path=self._document,
                hint="raise memory=, or write it in other chunks",
            )
        self.block = max(1, self._chunks[0])
        # Zero is the default, and zeros are seldom missing.
        self._fill_values = attributes_of(keys, place, described), described.get("fill_value") or None

    def fill_values(self) -> tuple[Mapping[str, Any], Any]:
        """See `StoredArray`."""
        return self._fill_values

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Read rows.

        Raises:
            DataError: a chunk cannot be read. The error names its file if the rows belong to one row of chunks.
        """
        step = max(1, _MAX_CHUNKS_PER_CALL // self._across) * self.block
        bounds = [start, *range((start // step + 1) * step, stop, step), stop]
        try:
            parts = [self._read((slice(a, b),)) for a, b in itertools.pairwise(bounds)]
        except Exception as error:
            if start // self.block == (stop - 1) // self.block:
                self._find(start, stop, error)
            raise
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def map_rows(self) -> NDArray[Any] | None:
        """Return None, as chunks are separate files."""
        return None

    def _read(self, where: tuple[slice, ...]) -> NDArray[Any]:
        data: NDArray[Any] = np.asarray(run(lambda: self._array.getitem(where)))
        return data

    def _find(self, start: int, stop: int, error: Exception) -> None:
        """Raise an error with the file of the first chunk of a row of chunks that cannot be read, if there is one."""
        across = zip(self.shape[1:], self._chunks[1:], strict=True)
        cells = [[slice(a, min(a + step, size)) for a in range(0, size, step)] for size, step in across]
        for cell in itertools.product(*cells):
            self._store.last.key = None
            try:
                self._read((slice(start, stop), *cell))
            except Exception as caught:
                key = getattr(self._store.last, "key", None)
                if isinstance(caught, DataError) or key is None:
                    raise
                raise DataError(
                    f"expected a readable chunk of `{self._name}`: {type(caught).__name__}: {caught}",
                    path=self._store.keys.where(key),
                ) from caught

    def _check_objects(self, described: dict[str, Any]) -> None:
        if described.get("dtype") != "|O":
            return
        names = _codecs_v2(described)
        if _TEXT not in names and _BYTES not in names:
            how = f"with the codec `{names[0]}`" if names else "without a codec"
            raise self._refusal("numbers or strings", f"objects {how}", f"write {_TEXT} or {_BYTES}; {_DECLARE_HINT}")

    def _refuse_metadata(self, error: Exception) -> NoReturn:
        if type(error).__name__ == "UnknownCodecError":  # there are two of them
            hint = "import the package that has it first"
            raise self._refusal("codecs that are installed", f"{error}", hint) from error
        raise DataError(
            f"expected an array that the zarr library reads: {type(error).__name__}: {error}",
            path=self._document,
            hint="the metadata are damaged, or of a kind that the library does not support",
        ) from error

    def _plain_dtype(self, stored: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype of numbers, or a dtype of strings of no size."""
        if stored.kind in "biufc":
            return stored.newbyteorder("=")
        if stored.kind in "SO":
            return np.dtype("S")
        if stored.kind == "U":
            return np.dtype("U")
        what = "compound records" if stored.names else f"dtype {stored}"
        raise self._refusal("numbers or strings", what, _DECLARE_HINT)

    def _refusal(self, expected: str, got: str, hint: str) -> SchemaError:
        return SchemaError(f"expected {expected}, got {got}: array `{self._name}` in {self._document}; {hint}")


def _codecs_v2(described: dict[str, Any]) -> list[str]:
    filters = described.get("filters")
    codecs = [*(filters if isinstance(filters, list) else ()), described.get("compressor")]
    return [str(codec["id"]) for codec in codecs if isinstance(codec, dict) and "id" in codec]


def _is_text(document: str, described: dict[str, Any]) -> bool:
    """Return whether the items of an array are texts of any length."""
    if document == V2_ARRAY:
        return described.get("dtype") == "|O" and _TEXT in _codecs_v2(described)
    kind = described.get("data_type")
    return (kind.get("name") if isinstance(kind, dict) else kind) == "string"


def _as_bytes(document: str, described: dict[str, Any], fill: Any) -> dict[str, Any]:
    """Return the document of an array of texts, changed to byte strings, which are stored in the same way.

    So a text that is not UTF-8 makes one row unreadable, and no text is decoded and encoded again.
    """

    as_bytes = _with_codecs(described, lambda codec: _BYTES if codec == _TEXT else None)
    if document != V2_ARRAY:
        as_bytes["data_type"] = "variable_length_bytes"
    as_bytes["fill_value"] = None if fill is None else base64.b64encode(str(fill).encode()).decode()
    return as_bytes


def _with_bounds(document: str, described: dict[str, Any], bound: Bound) -> dict[str, Any]:
    """Return the document of an array with codecs that observe a bound."""

    def bound_codec(entry: Any) -> Any:
        if document == V2_ARRAY:
            return bound_codec_v2(entry, bound) if isinstance(entry, dict) else None
        return bound_codec_v3(entry, bound) if isinstance(entry, (dict, str)) else None

    limited = _with_codecs(described, bound_codec)
    return add_string_checks(limited, bound) if document == V2_ARRAY else limited


def _max_decoded_bytes(array: Any, memory_bytes: int) -> int:
    """Return the bytes that a chunk may decode to, with room for filters that store wider numbers."""
    item = np.dtype(array.dtype)
    if item.kind not in "biufcSU":
        return memory_bytes
    decoded: int = math.prod(map(int, array.shards or array.chunks)) * max(1, item.itemsize)
    return min(memory_bytes, _MAX_WIDER * decoded + _MAX_MORE)


def _with_codecs(described: dict[str, Any], replacement: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the document of an array with parts of its codecs replaced.

    Args:
        described: the document.
        replacement: function that returns the replacement of a part, at any depth, or None if the part stays.
    """

    def replace(part: Any) -> Any:
        if (instead := replacement(part)) is not None:
            return instead
        if isinstance(part, list):
            return [replace(inner) for inner in part]
        if isinstance(part, dict):
            return {key: replace(inner) for key, inner in part.items()}
        return part

    return {key: replace(raw) if key in ("codecs", "filters", "compressor") else raw for key, raw in described.items()}


class _Store(abc_store.Store):
    """A store with the interface that the library needs to read chunks.

    Attributes:
        last: its ``key`` is the last key that the current thread has read.
    """

    supports_writes = supports_deletes = supports_partial_writes = supports_listing = False

    def __init__(self, keys: Keys) -> None:
        super().__init__(read_only=True)
        self.keys, self.last = keys, threading.local()
        self._is_open = True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Store) and other.keys is self.keys

    __hash__ = object.__hash__

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        """Return the value of a key, or a part of it, or None if there is no value."""
        self.last.key = key
        start, stop = 0, None
        if isinstance(byte_range, abc_store.RangeByteRequest):
            start, stop = int(byte_range.start), max(0, int(byte_range.end))
        elif isinstance(byte_range, abc_store.OffsetByteRequest):
            start = int(byte_range.offset)
        elif isinstance(byte_range, abc_store.SuffixByteRequest):
            start = -int(byte_range.suffix)
        data = self.keys.read(key, start, stop)
        return None if data is None else prototype.buffer.from_bytes(data)

    async def get_partial_values(self, prototype: Any, key_ranges: Iterable[tuple[str, Any]]) -> list[Any]:
        """Return parts of values."""
        return [await self.get(key, prototype, part) for key, part in key_ranges]

    async def exists(self, key: str) -> bool:
        """Return whether there is a value."""
        return self.keys.read(key, 0, 0) is not None

    def _not_implemented(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    set = set_partial_values = delete = list = list_prefix = list_dir = _not_implemented


_ROUNDS = 16
"""Maximum steps of the loop until cancelled tasks end."""


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that runs jobs for an executor in its own thread."""

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]  # in fewer words
        """Return a future that is done."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def run(begin: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine to its end, in this thread, or in another thread if this one runs an event loop, as in
    notebooks."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(begin)
    return call_each(_run, [begin], 1)[0]


def _run(begin: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    loop = _Loop(selectors.PollSelector())
    loop.set_exception_handler(lambda *_: None)
    try:
        return loop.run_until_complete(begin())
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        # The tasks wait for nothing, as no job runs in another thread. Run the steps that are ready, but do not wait
        # for the tasks: Ctrl-C may have lost the step that the loop had just taken from its queue.
        for _ in range(_ROUNDS):
            if all(task.done() for task in tasks):
                break
            loop.call_soon(loop.stop)
            loop.run_forever()
        loop.close()
