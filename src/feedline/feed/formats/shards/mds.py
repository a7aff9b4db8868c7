"""MosaicML Streaming's folders (MDS) in place: a `Deserializer` of index.json and the shards that it lists.

Columns are delivered by name, encoded columns as bytes or text. Pickled columns are refused. For the cost, see
`offset_shards`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from feedline.data import Stream
from feedline.errors import DataError
from feedline.feed.files.paths import PathLike
from feedline.feed.formats.detect_shards import INDEX
from feedline.feed.formats.shards.index_json import IndexEntry, ShardFile, codec_of, index_of, no_file, size_of
from feedline.feed.formats.shards.offset_shards import CHUNK_BYTES, MEMORY_BYTES, OffsetShards
from feedline.feed.formats.shards.sample_fields import Array, ArrayHead, ShardField
from feedline.feed.protocol import declared_streams

_SCALARS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
# The code of a dtype in the header of an array: the bits of an element, plus 1 for signed integers or 2 for floats.
_CODES = {np.dtype(name): np.dtype(name).itemsize * 8 + "uif".index(np.dtype(name).kind) for name in _SCALARS}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}
_WIDTHS = ("<u1", "<u2", "<u4", "<u8")  # dtypes of the shape, by the lowest two bits of the byte before it
_TEXTS = {"str": "text", "json": "json", "str_int": "text", "str_float": "text", "str_decimal": "text"}
_ENCODED = ("bytes", "pil", "jpeg", "png", "jpeg_array", "jpegarray", "list[pil]", "list[jpeg]", "list[png]")


class MDSDeserializer(OffsetShards):
    """A folder that MosaicML Streaming's ``MDSWriter`` wrote, each sample a sequence of one sample.

    Shards are read as they are, compressed (``zstd``, ``gz``, ``br``, ``bz2``) or not. If a folder has both forms of a
    shard, the uncompressed form is read.

    ===================================  ==============================================================
    encoding                             stream
    ===================================  ==============================================================
    ``int``, ``uint8`` ... ``float64``   ``fl.Stream((), "int64")``, of that dtype
    ``ndarray:float32:2,3``              ``fl.Stream((2, 3), "float32")``
    ``ndarray``, ``ndarray:float32``     the declared shape (and dtype), or as in the first sample
    ``str``, ``json``, ``str_int`` ...   ``"str"``, or numbers that are written as text
    ``bytes``, ``jpeg``, ``png``, ...    ``"bytes"``, as they are encoded
    ``pkl``                              refused
    ===================================  ==============================================================

    Args:
        path: the folder, its index.json, or a list of these, which are read one after the other.
        streams: stream name to `Stream`, also as keyword arguments. ``field`` names the column, by default the
            stream's name. Columns of any size can also be read as ``"bytes"``. By default every column is a stream.
        chunk_size: bytes of a chunk of an uncompressed shard. A compressed shard is one chunk. Part of the order.
        memory: bytes that an unpacked shard, or the numbers of a chunk, may take.
        verify: whether to compare each shard with its hash in the index when it is first read.
        stream_kwargs: more streams.

    Raises:
        DataError: the index or a shard is missing, damaged, or of another version.
        SchemaError: no column fills a stream, or a column is pickled.
    """

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        streams: Mapping[str, Stream] | None = None,
        *,
        chunk_size: int = CHUNK_BYTES,
        memory: int = MEMORY_BYTES,
        verify: bool = False,
        **stream_kwargs: Stream,
    ) -> None:
        declared = declared_streams(streams, stream_kwargs)
        super().__init__(path, declared, chunk_size=chunk_size, memory_bytes=memory, verify=verify)

    def _describe_folder(self, folder: Path) -> tuple[list[ShardFile], list[ShardField]]:
        """See `OffsetShards`."""
        path, index = folder / INDEX, index_of(folder)
        root = IndexEntry(index, path, "the object")
        if index.get("version") != 2:
            raise root.error("version 2", index.get("version"))
        shards: list[ShardFile] = []
        fields: list[ShardField] | None = None
        columns: Any = None
        for number, shard in enumerate(root.items("shards", dict)):
            entry = IndexEntry(shard, path, f"shard {number}")
            if (shard.get("format"), shard.get("version")) != ("mds", 2):
                raise DataError(
                    f"expected shards of format mds, version 2, got {shard.get('format')!r}, version "
                    f"{shard.get('version')!r}, in shard {number}",
                    path=str(path),
                    hint="JSON Lines and CSV shards are read as such: fl.open_corpus('folder/*.jsonl')",
                )
            shard_columns = [shard.get(key) for key in ("column_names", "column_encodings", "column_sizes")]
            if shard_columns != columns:
                if fields is not None:
                    raise entry.error("the columns of the earlier shards", shard_columns)
                columns, fields = shard_columns, _fields(entry)
            shards.append(_shard(entry, folder, path, number))
        return shards, fields or []


def _shard(entry: IndexEntry, folder: Path, path: Path, number: int) -> ShardFile:
    raw = IndexEntry(entry.data.get("raw_data"), path, f"raw_data of shard {number}")
    samples, unpacked = entry.number("samples"), raw.number("bytes")
    place = raw.file_path(folder, "basename")
    file, codec, size = raw, None, size_of(place)
    if size is None and entry.data.get("zip_data") is not None:
        file = IndexEntry(entry.data["zip_data"], path, f"zip_data of shard {number}")
        place = file.file_path(folder, "basename")
        codec, size = codec_of(entry.text("compression"), path), size_of(place)
    if size is None:
        raise no_file("shard", place)
    if size != file.number("bytes"):
        raise DataError(f"expected a shard of {file.number('bytes')} bytes, got {size}", path=str(place))
    if unpacked < 4 * (samples + 2) and samples:
        raise raw.error(f"room for {samples} samples", unpacked)
    hashes = file.data.get("hashes") or {}
    if not isinstance(hashes, dict) or not all(isinstance(h, str) for h in hashes.values()):
        raise file.error("hashes by algorithm", hashes)
    return ShardFile(place, samples, size, unpacked=(unpacked,), codec=codec, hashes=hashes)


def _fields(entry: IndexEntry) -> list[ShardField]:
    names, encodings = entry.items("column_names", str), entry.items("column_encodings", str)
    sizes = entry.data.get("column_sizes")
    if len(set(names)) < len(names) or not names or len(encodings) != len(names):
        raise entry.error("columns of different names, each with an encoding", names)
    if not isinstance(sizes, list) or len(sizes) != len(names):
        raise entry.error("a size for each column", sizes)
    fields = []
    for name, encoding, size in zip(names, encodings, sizes, strict=True):
        field = _field(name, encoding)
        if (size or None) != field.size:
            raise entry.error(f"size {field.size} of column `{name}`, as {encoding} has", size)
        fields.append(field)
    return fields


def _field(name: str, encoding: str) -> ShardField:
    kind, _, details = encoding.partition(":")
    if kind in _TEXTS:
        return ShardField(name, encoding, None, _TEXTS[kind])
    if kind in _ENCODED:
        return ShardField(name, encoding, None, "bytes")
    if kind == "int" or kind in _SCALARS:
        stream = Stream((), "int64" if kind == "int" else kind)
        return ShardField(name, encoding, stream.dtype.itemsize, "array", Array.of(stream))
    if kind != "ndarray":
        return ShardField(name, encoding, None, "refused")
    dtype, _, shape = details.partition(":")
    try:
        dims = tuple(int(n) for n in shape.split(",")) if shape else None
        base = np.dtype(dtype) if dtype else None
    except (ValueError, TypeError):
        return ShardField(name, encoding, None, "refused")
    if (base is not None and base not in _CODES) or (dims is not None and (min(dims) < 1 or base is None)):
        return ShardField(name, encoding, None, "refused")
    if dims is not None and base is not None:
        stream = Stream(dims, base)
        return ShardField(name, encoding, stream.size * stream.dtype.itemsize, "array", Array.of(stream))
    return ShardField(name, encoding, None, "array", _dynamic_array(base))


def _dynamic_array(dtype: np.dtype[Any] | None) -> Array:
    """Return the encoding of arrays with a header that declares their shape and, if ``dtype`` is None, their dtype."""

    def heads(stream: Stream, _ragged: bool) -> list[ArrayHead]:
        code = b"" if dtype is not None else bytes([_CODES.get(stream.dtype, 0)])
        if dtype is not None and stream.dtype != dtype:
            code = b"\0"  # no dtype has this code, so no array fits
        width = next(k for k in range(4) if max(stream.shape, default=0) < 1 << (8 << k))
        dims = bytes([len(stream.shape) << 2 | width]) + np.array(stream.shape, _WIDTHS[width]).tobytes()
        return [ArrayHead(code + dims)]

    def parse(sample: bytes, _size: int) -> Stream:
        kind, at = dtype, 0
        if kind is None:
            kind, at = _DTYPES.get(sample[0] if sample else 0), 1
        if kind is None or len(sample) <= at:
            raise ValueError(f"one that begins with {sample[:4]!r}")
        dims, width = sample[at] >> 2, 1 << (sample[at] & 3)
        raw = sample[at + 1 : at + 1 + dims * width]
        if len(raw) < dims * width:
            raise ValueError(f"one of {dims} dimensions with {len(raw)} bytes of its shape")
        shape = tuple(np.frombuffer(raw, f"<u{width}").tolist())
        return Stream(shape, kind)

    return Array(None, heads, parse)
