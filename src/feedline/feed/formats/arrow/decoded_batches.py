"""Record batches that Arrow decodes: compressed batches, and batches with dictionaries, views or unions.

Arrow reads the bytes in private memory. Sizes are compared with the size of the message and with a limit before
anything is decompressed, and every offset is validated before it is followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from feedline import _native
from feedline.feed.byte_strings import TooLargeError
from feedline.feed.formats.arrow.column_paths import storage
from feedline.feed.formats.arrow.file import ArrowFile, Batch, prefix_bytes, read_bytes
from feedline.feed.formats.store.compressed import expanded_bytes


def decode_batch(
    file: ArrowFile, batch: Batch, data: bytes | memoryview, fields: Sequence[str], memory_bytes: int
) -> Any:
    """Return an Arrow record batch with the columns ``fields``.

    Args:
        file: the file.
        batch: place of the batch in the file.
        data: bytes of the batch, head and body.
        fields: names of columns.
        memory_bytes: bytes that the decoded batch may take.

    Raises:
        TooLargeError: the batch claims to take more.
        ValueError, OSError, pyarrow.ArrowException: it is damaged.
    """
    import pyarrow as pa

    rows, compressed, _, _ = _native.arrow_batch(memoryview(data)[: batch.head], batch.body)
    if rows != batch.rows:
        raise ValueError(f"expected {batch.rows} rows, got {rows}")
    size = expanded_bytes(data, prefix_bytes(data), batch.head) if compressed else len(data)
    if size > memory_bytes:
        raise TooLargeError(size)
    numbers = sorted({file.schema.get_field_index(field) for field in fields})
    options = pa.ipc.IpcReadOptions(included_fields=numbers, use_threads=False)
    if file.dictionaries:
        parts = [file.schema_message]
        for message in file.dictionaries_of(batch):
            size += message.head + message.body
            if size > memory_bytes:
                raise TooLargeError(size)
            parts.append(read_bytes(file.path, message.start, message.head + message.body))
            size += expanded_bytes(parts[-1], prefix_bytes(parts[-1]), message.head) if message.compressed else 0
            if size > memory_bytes:
                raise TooLargeError(size)
        decoded = pa.ipc.open_stream(b"".join([*parts, data]), options=options).read_next_batch()
    else:
        # Read texts as bytes, so that a text that is not UTF-8 makes one sequence unreadable, not all.
        schema = pa.schema([pa.field(field.name, _as_bytes(field.type)) for field in file.schema])
        whole_batch = pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(data)), schema)
        decoded = whole_batch.select([file.schema.names[i] for i in numbers])
    if decoded.num_rows != rows:
        raise ValueError(f"expected {rows} rows, got {decoded.num_rows}")
    decoded.validate(full=True)
    return decoded


def _as_bytes(kind: Any) -> Any:
    """Return a type of the same layout, with byte strings for texts."""
    import pyarrow as pa

    kind = storage(kind)
    plain = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}
    if kind in plain:
        return plain[kind]
    makers = {
        pa.types.is_list: pa.list_,
        pa.types.is_large_list: pa.large_list,
        pa.types.is_list_view: pa.list_view,
        pa.types.is_large_list_view: pa.large_list_view,
        pa.types.is_fixed_size_list: lambda item: pa.list_(item, kind.list_size),
    }
    for test, make in makers.items():
        if test(kind):
            return make(_as_bytes(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(kind.field(i).name, _as_bytes(kind.field(i).type)) for i in range(kind.num_fields)])
    return kind
