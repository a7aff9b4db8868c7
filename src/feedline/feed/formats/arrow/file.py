"""Arrow IPC files and streams as maps, and the places of their record batches.

A stream has no footer, so opening reads the heads of its messages one after the other, natively: about 1 us a batch,
and no data is read. A file is read by its footer, as other readers do, because writers leave out the schema or the end
before it. Arrow parses only the schema. Our own parser (`_native.arrow_batch`) reads the places of buffers and checks
every offset, and only native code reads the map, which survives the truncation of the file.

Parts of a file in an object store may be missing. The heads of its batches are kept when they are read. The other bytes
that views of its buffers need are fetched and pinned by `ArrowFile.hold`.
"""

from __future__ import annotations

import weakref
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.errors import DataError, SchemaError, shown_path
from feedline.feed.files.paths import open_file, read_at, reading, status_of
from feedline.feed.files.remote import object_at, within_reach
from feedline.feed.files.truncation_guard import seal_of
from feedline.feed.formats.arrow.column_paths import ColumnPath
from feedline.feed.formats.arrow.columns import Source
from feedline.feed.formats.magic_numbers import ARROW_FILE, ARROW_STREAM
from feedline.feed.formats.store.compressed import dictionary_id
from feedline.feed.formats.store.mapped_files import FileMap

_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_MAX_COMPRESSED_ROWS = 1 << 31


def prefix_bytes(message: bytes | memoryview) -> int:
    """Return the number of bytes before the metadata of a message: marker and length, or before Arrow 0.15 the
    length."""
    return 8 if message[:4] == ARROW_STREAM else 4


def _begins_stream(head: bytes) -> bool:
    """Return whether 8 bytes may begin a stream: by a marker, or by a length and the offset of a root within it."""
    length, root = int.from_bytes(head[:4], "little"), int.from_bytes(head[4:8], "little")
    return head.startswith(ARROW_STREAM) or 8 <= root < length < 1 << 26


def max_items(nbytes: Any) -> Any:
    """Return the maximum number of items of arrays in ``nbytes`` bytes: eight bits a byte, and some items without
    bytes."""
    return 8 * nbytes + (1 << 20)


class Batch(NamedTuple):
    """A record batch of a file: its first byte, the bytes of its head and of its body, and its rows."""

    start: int
    head: int
    body: int
    rows: int


class Dictionary(NamedTuple):
    """A message with values of a dictionary: its first byte, the bytes of its head and of its body, whether it is
    compressed, the dictionary's id, and whether it adds to the earlier values or replaces them."""

    start: int
    head: int
    body: int
    compressed: bool
    id: int
    adds: bool


class ArrowFile:
    """An Arrow IPC file or stream.

    Args:
        path: path of the file.
        complete: whether a stream must end with its marker, which is missing if its writer was killed.
        span: begin and end of the Arrow data, if the file has other data, too.

    Attributes:
        path, size: path and size of the file.
        schema: its Arrow schema.
        starts, heads, bodies, rows: int64 (batches,), see `Batch`, without batches that have no rows.
        compressed: whether any batch is compressed.
        aligned: whether all buffers start at multiples of 8 bytes, which views need.
        dictionaries: messages with values of dictionaries.
        lacking: paths of the columns in use of which the file has no values.

    Raises:
        DataError: it cannot be opened, is no Arrow file, or is damaged.
    """

    def __init__(self, path: str, *, complete: bool = False, span: tuple[int, int] | None = None) -> None:
        self.path = path
        with open_file(path) as file:
            self.size = status_of(file).st_size
            begin, end = (0, self.size) if span is None else span
            if end > self.size:
                raise self.damage_error("it was truncated", self.size)
            head = read_at(file, 8, begin)
            self._is_stream = not head.startswith(ARROW_FILE)
            if self._is_stream and not _begins_stream(head):
                raise self.damage_error(f"it begins with {head[:6]!r}", begin)
            if not self._is_stream and read_at(file, 6, max(begin + 8, end - 6)) != ARROW_FILE:
                raise self.damage_error("it does not end as it begins, so it was truncated", end)
            try:
                with reading(path):
                    table, ended, swapped, heads, self.schema_message = _native.arrow_messages(
                        file.fileno(), end, begin, not self._is_stream, within_reach(file)
                    )
            except ValueError as error:
                raise self.damage_error(*error.args) from error
            messages = table.reshape(-1, 6)
            if complete and self._is_stream and not ended:
                raise self.damage_error("it has no end, so its writer was killed, or it was truncated", end)
            if not self.schema_message or (messages[1:, 0] == _SCHEMA).any():
                raise self.damage_error("it does not begin with its schema", begin)
            if swapped:
                raise DataError("expected numbers in little-endian byte order, got big-endian ones", path=path)
            self.dictionaries = [self._dictionary(file, row) for row in messages.tolist() if row[0] == _DICTIONARY]
        self.schema = self._parse_schema()
        kinds = set(messages[1:, 0].tolist()) - {_DICTIONARY, _BATCH}
        if kinds:
            raise self.damage_error(f"it holds messages of kind {min(kinds)}", begin)
        with_rows = (messages[:, 0] == _BATCH) & (messages[:, 4] > 0)
        of_batches = messages[with_rows]
        # `heads` has the heads of all messages if they had to be fetched. Otherwise it is empty.
        ends = np.cumsum(messages[:, 2])[with_rows].tolist()
        spans = zip(of_batches[:, 1].tolist(), of_batches[:, 2].tolist(), ends, strict=True)
        self._heads = {start: heads[end - size : end] for start, size, end in spans} if heads else {}
        self.starts, self.heads, self.bodies, self.rows = (np.ascontiguousarray(of_batches[:, i]) for i in (1, 2, 3, 4))
        self.compressed = bool(of_batches[:, 5].any())
        self.aligned = not ((self.starts + self.heads) % 8).any()
        # A row takes at least a bit, unless all of its columns are empty.
        max_rows = np.where(of_batches[:, 5] > 0, _MAX_COMPRESSED_ROWS, max_items(self.bodies))
        if (wrong := np.flatnonzero(self.rows > max_rows)).size:
            at = int(wrong[0])
            raise self.damage_error(
                f"a batch with {int(self.bodies[at])} bytes claims {int(self.rows[at])} rows", int(self.starts[at])
            )
        if not self._is_stream:
            ids: set[int] = set()
            for message in self.dictionaries:
                if message.id in ids and not message.adds:
                    raise self.damage_error("it replaces a dictionary, which only streams may", message.start)
                ids.add(message.id)
        self._map: _Mapped | None = None
        self.lacking: frozenset[ColumnPath] = frozenset()

    @property
    def source(self) -> Source:
        """The file as a source of columns."""
        return Source(shown_path(self.path), self.schema, lambda what: self.damage_error(f"its {what}", 0))

    def batch(self, number: int) -> Batch:
        """Return the place of a batch."""
        return Batch(*(int(column[number]) for column in (self.starts, self.heads, self.bodies, self.rows)))

    def head(self, batch: Batch) -> Any:
        """Return the bytes of the head of a batch.

        Raises:
            DataError: the file was truncated, or its disk fails.
        """
        head = self._heads.get(batch.start)
        return head if head is not None else _native.copied(self.map().bytes[batch.start : batch.start + batch.head])

    def dictionaries_of(self, batch: Batch) -> list[Dictionary]:
        """Return the messages with the dictionaries of a batch. In a stream, later messages and replaced ones do not
        count."""
        needed: list[Dictionary] = []
        for message in self.dictionaries:
            if self._is_stream and message.start > batch.start:
                break
            if not message.adds:
                needed = [earlier for earlier in needed if earlier.id != message.id]
            needed.append(message)
        return needed

    def map(self) -> _Mapped:
        """Return the map of the file. The first call creates it.

        Raises:
            DataError: it cannot be mapped, or its size has changed.
        """
        if self._map is None:
            if (remote := object_at(self.path)) is not None:
                remote.mapped = True
            self._map = _Mapped(self.path, self.size)
        return self._map

    def unmap(self) -> None:
        """Release the map. Chunks that were returned keep it."""
        self._map = None

    def hold(self, begin: int, end: int) -> None:
        """Fetch bytes of a remote file, and pin them in the cache for the life of this object.

        Raises:
            DataError: they cannot be fetched, or the cache has no room for them.
        """
        if (remote := object_at(self.path)) is not None and begin < end:
            weakref.finalize(self, remote.hold(begin, min(end, self.size)).release).atexit = False

    def damage_error(self, what: str, byte: int, stream: str | None = None) -> DataError:
        """Return the error for damage at a byte."""
        return DataError(
            f"expected an Arrow file, but {what}",
            path=self.path,
            byte=byte,
            stream=stream,
            hint="the file is damaged; restore it or write it again",
        )

    def _dictionary(self, file: BinaryIO, row: list[int]) -> Dictionary:
        _, start, head, body, _, compressed = row
        try:
            message = read_at(file, head, start)
            number, adds = dictionary_id(message, prefix_bytes(message))
        except ValueError as error:
            raise self.damage_error(str(error), start) from error
        return Dictionary(start, head, body, compressed=bool(compressed), id=number, adds=adds)

    def _parse_schema(self) -> Any:
        import pyarrow as pa

        try:
            schema = pa.ipc.read_schema(pa.py_buffer(self.schema_message))
            for field in schema:
                _read_names(field)
            return schema
        except pa.ArrowNotImplementedError as error:
            raise unknown_types(error, self.path) from error
        except Exception as error:  # extension types that were registered parse their metadata in Python
            raise self.damage_error(f"its schema cannot be read: {error!r:.300}", 0) from error


def unknown_types(error: Exception, path: str) -> SchemaError:
    """Return the error for a file whose schema has types that pyarrow lacks, such as polars' Int128."""
    return SchemaError(
        f"expected columns of types that pyarrow reads, got others: {error}: {shown_path(path)}; cast these columns to "
        "other types, or leave them out, and write the file again"
    )


def _read_names(field: Any) -> None:
    """Read the names of a field and its child fields.

    Raises:
        ValueError: a name is not UTF-8.
    """
    _ = field.name
    for i in range(field.type.num_fields):
        _read_names(field.type.field(i))


class _Mapped(FileMap):
    """A map of an Arrow file."""

    def __init__(self, path: str, size: int) -> None:
        with open_file(path) as file:
            super().__init__(file, path, size)
        self.advise("random")
        self._seals: list[NDArray[np.uint8]] = []
        _ = self.seals

    @property
    def seals(self) -> list[NDArray[np.uint8]]:
        """The seal of the map, uint8 (8,). The list is empty while parts of a remote file may be missing."""
        if not self._seals:
            remote = object_at(self.path)
            if remote is None or remote.has_pinned(0, remote.size):
                self._seals = [seal_of(self.bytes)]
        return self._seals


def read_bytes(path: str, start: int, size: int) -> bytes:
    """Return bytes of a file, read with ordinary reads.

    Raises:
        DataError: it is too short, or its disk fails.
    """
    with open_file(path) as file:
        parts, done = list[bytes](), 0
        while done < size:
            part = read_at(file, size - done, start + done)
            if not part:
                raise DataError(f"expected {size} bytes, got {done}: truncated", path=path, byte=start + done)
            parts.append(part)
            done += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
