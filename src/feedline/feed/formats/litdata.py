"""LitData's folders in place: a `Deserializer` of index.json and the chunks that it lists.

Chunks of items are shards with offsets, read by `offset_shards`. Chunks of tokens are flat, and their rows are views.
Chunks of rows hold an Arrow file, read as such. Leaves are delivered by name, encoded leaves as bytes or text. Pickled
leaves are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from feedline.data import Stream
from feedline.errors import DataError, SchemaError
from feedline.feed.files.paths import PathLike
from feedline.feed.formats import tokens
from feedline.feed.formats.arrow.arrow import ArrowDeserializer
from feedline.feed.formats.pickled_by_arguments import PickledByArguments
from feedline.feed.formats.shards.index_json import ShardFile, folders_of
from feedline.feed.formats.shards.litdata_index import LitDataIndex, dtype_of, dtypes_of, litdata_index, missing_dtypes
from feedline.feed.formats.shards.litdata_json import json_text
from feedline.feed.formats.shards.offset_shards import CHUNK_BYTES, MEMORY_BYTES, OffsetShards
from feedline.feed.formats.shards.sample_fields import Array, ArrayHead, ShardField
from feedline.feed.protocol import Deserializer, declared_streams, whole_number
from feedline.feed.wrapper import Forwarding

_SCALARS = {"int": "int64", "float": "float64", "bool": "bool"}
# Older versions wrote headers of tensors in little-endian order.
_HEADERS = {"tensor": (">u4", "<u4"), "numpy": ("<u4",)}
_MAX_DIMS = 32
_MAX_LENGTH = (1 << 32) - 1


class LitDataDeserializer(Forwarding, PickledByArguments):
    """A folder that LitData's ``optimize`` wrote, each sample a sequence.

    Chunks are read as they are, compressed by Zstandard (the file, runs of samples, or each sample) or not. If a folder
    has both forms of a chunk, the uncompressed chunk is read. Leaves are named by the keys on the way to them: ``x``,
    ``meta.score``, ``boxes.0``. A sample that is a single leaf is called ``x``.

    =========================================  ==============================================================
    leaf                                       stream
    =========================================  ==============================================================
    ``int``, ``float``, ``bool``               ``fl.Stream((), "int64")``, ``"float64"``, ``"bool"``
    vectors                                    ``fl.Stream(n)`` of their dtype, or if their lengths differ,
                                               sequences of numbers: ``fl.Stream(())``
    arrays and tensors                         the same: ``fl.Stream((2, 3))``, or sequences of ``fl.Stream(3)``
    ``str``, ``text``                          ``"str"``, or numbers that are written as text
    lists and dicts among such leaves          ``"str"``, their JSON text, or numbers: ``fl.Stream(4)``
    ``bytes``, ``jpeg``, ``pil``, ``image``,   ``"bytes"``, as they are encoded
    ``audio``, ``video``, ``file``, ...
    tokens, for ``TokensLoader``               one stream, declared: ``tokens=fl.Stream(1024, "int64")``
    rows (dicts of numbers, text and bytes)    columns, also by path, see `ArrowDeserializer`
    ``pickle``, ``graph``                      refused
    =========================================  ==============================================================

    Args:
        path: the folder, its index.json, or a list of these, which are read one after the other.
        streams: stream name to `Stream`, also as keyword arguments. ``field`` names the leaf, by default the stream's
            name. Any leaf can also be read as ``"bytes"``. By default every leaf is a stream.
        chunk_size: bytes in a chunk, of items that can be read in parts. Part of the order.
        memory: bytes that an unpacked chunk, or its numbers, may take.
        stream_kwargs: more streams.

    Raises:
        DataError: the index or a chunk is missing, damaged or encrypted, or folders differ in their kind or leaves.
        SchemaError: no leaf fills a stream, a leaf is pickled, or tokens have no declaration.
    """

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        streams: Mapping[str, Stream] | None = None,
        *,
        chunk_size: int = CHUNK_BYTES,
        memory: int = MEMORY_BYTES,
        **stream_kwargs: Stream,
    ) -> None:
        chunk_size, memory = whole_number("chunk_size", chunk_size, 1), whole_number("memory", memory, 1)
        declared = declared_streams(streams, stream_kwargs)
        folders = folders_of(path)
        indexes = [litdata_index(folder) for folder in folders]
        layouts = list(dict.fromkeys(index.layout for index in indexes))
        if len(layouts) > 1:
            raise DataError(f"expected folders of one kind, got {' and '.join(layouts)}", path=str(folders[-1]))
        names = [str(folder) for folder in folders]
        corpus: Deserializer
        if layouts == ["tokens"]:
            if not declared:
                raise SchemaError(
                    f"expected one stream that says how long rows are, for the tokens in {names[0]}, got none; write "
                    f"tokens=fl.Stream(1024, '{dtype_of(indexes[0].formats[0])}'), or use fl.TokensDeserializer"
                )
            corpus = tokens.open_files(names, declared, memory)
            for name, stream in declared.items():
                if stream.dtype != corpus.schema[name].dtype:
                    dtype = corpus.schema[name].dtype.name
                    raise SchemaError(
                        f"expected stream `{name}` as the tokens of {corpus.name} are, {dtype}, got {stream}"
                    )
        elif layouts == ["rows"]:
            corpus = ArrowDeserializer(names, declared or None, memory=memory)
            self.nested_paths = corpus.nested_paths
            expected = sum(shard.samples for index in indexes for shard in index.shards)
            got = sum(info.sequences for info in corpus.chunks())
            if got != expected:
                raise DataError(f"expected {expected} rows, as the index says, got {got}", path=names[0])
        else:
            corpus = LitDataItems(indexes, declared, chunk_size=chunk_size, memory_bytes=memory)
        super().__init__(corpus)
        self.name = names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        self._set_arguments(names, dict(corpus.schema.streams), chunk_size=chunk_size, memory=memory)


class LitDataItems(OffsetShards):
    """Folders of items. See `LitDataDeserializer`."""

    def __init__(
        self, indexes: Sequence[LitDataIndex], streams: Mapping[str, Stream], *, chunk_size: int, memory_bytes: int
    ) -> None:
        self._indexes = {index.folder: index for index in indexes}
        folders = [index.folder for index in indexes]
        super().__init__(folders, streams, chunk_size=chunk_size, memory_bytes=memory_bytes, verify=False)

    def _describe_folder(self, folder: Path) -> tuple[list[ShardFile], list[ShardField]]:
        """See `OffsetShards`."""
        index = self._indexes[folder]
        return index.shards, [_field(name, encoding) for name, encoding in zip(index.names, index.formats, strict=True)]


def _field(name: str, encoding: str) -> ShardField:
    kind = encoding.partition(":")[0]
    if kind in _SCALARS:
        return ShardField(name, encoding, None, "array", Array.of(Stream((), _SCALARS[kind])))
    if kind in ("no_header_tensor", "no_header_numpy"):
        dtype = dtype_of(encoding)
        if dtype is None:
            return ShardField(name, encoding, None, "refused", reason="NumPy has no such numbers")
        return ShardField(name, encoding, None, "array", _vector_array(dtype))
    if kind in _HEADERS:
        return ShardField(name, encoding, None, "array", _array_with_header(kind))
    if kind in ("pickle", "graph"):
        return ShardField(name, encoding, None, "refused")
    if kind == "json":
        return ShardField(name, encoding, None, "json", text_of=json_text)
    return ShardField(name, encoding, None, "text" if kind in ("str", "text") else "bytes")


def _vector_array(dtype: np.dtype[Any]) -> Array:
    """Return the encoding of vectors: their numbers alone."""

    def parse(_sample: bytes, size: int) -> Stream:
        if size % dtype.itemsize:
            raise ValueError(f"{size} bytes, no whole number of {dtype.name}")
        return Stream(size // dtype.itemsize, dtype)

    return Array(None, lambda _stream, _ragged: [ArrayHead(b"")], parse, any_length=True, vector=dtype)


def _array_with_header(kind: str) -> Array:
    """Return the encoding of arrays with a header.

    It has the number of the dtype, the number of dimensions, and the dimensions, u32 each.
    """
    dtypes, lacking = dtypes_of(kind), missing_dtypes(kind)

    def heads(stream: Stream, ragged: bool) -> list[ArrayHead]:
        dims = [min(n, _MAX_LENGTH) for n in ((0, *stream.shape) if ragged else stream.shape)]
        numbers = [n for n, dtype in dtypes.items() if dtype == stream.dtype]
        # LitData writes the last number of a dtype.
        return [
            ArrayHead(np.array([number, len(dims), *dims], order).tobytes(), order if ragged else "")
            for order in _HEADERS[kind]
            for number in numbers[::-1]
        ] or [ArrayHead(bytes(4 * (2 + len(dims))).replace(b"\0", b"\xff"))]

    def parse(sample: bytes, size: int) -> Stream:
        for order in _HEADERS[kind]:
            words = np.frombuffer(sample[: len(sample) // 4 * 4], order).tolist()
            if len(words) >= 2 and words[0] in lacking and 4 * (2 + words[1]) <= size:
                raise ValueError(f"numbers of {lacking[words[0]]}, which NumPy lacks: take them as bytes")
            if len(words) >= 2 and words[0] in dtypes and words[1] <= min(_MAX_DIMS, len(words) - 2):
                stream = Stream(tuple(words[2 : 2 + words[1]]), dtypes[words[0]])
                if size == 4 * (2 + words[1]) + stream.size * stream.dtype.itemsize:
                    return stream
        raise ValueError(f"{size} bytes that begin with {sample[:16].hex()}, no header of an array")

    return Array(None, heads, parse, any_length=True)
