"""LitData's index.json: the chunks of a folder, their layout, and the names of leaves.

A sample in LitData is a tree of dicts, lists and tuples. Its leaves, in order, are the fields of an item. Their names
are the keys on the way to them, joined by dots as for JSON Lines: ``x``, ``meta.score``, ``boxes.0``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DataError
from feedline.feed.files.mapped_arrays import map_file
from feedline.feed.files.paths import open_file, read_at, reading
from feedline.feed.formats.detect_shards import INDEX
from feedline.feed.formats.indexed.value_paths import escape_key
from feedline.feed.formats.shards.index_json import DAMAGED, IndexEntry, ShardFile, codec_of, index_of, no_file, size_of

_DTYPES = {  # a dtype's place is its number
    "tensor": "float32 float32 float64 float64 complex64 complex64 complex128 complex128 float16 float16 bfloat16 "
    "uint8 int8 int16 int16 int32 int32 int64 int64 bool uint16",
    "numpy": "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128 bool",
}
_UNSUPPORTED = ("bfloat16",)  # in NumPy
_ROWS_END = struct.Struct("<I8s")  # end of a chunk of rows: size of the Arrow file before it, and a mark
_ROWS_MARK = b"LDARW01\0"
_MAX_DEPTH = 64
_DEFAULT_RUN = 256


class LitDataIndex(NamedTuple):
    """The index of a folder that LitData wrote.

    Attributes:
        folder: the folder.
        layout: ``"items"`` (the leaves of a sample one after the other), ``"tokens"`` (numbers one after the other), or
            ``"rows"`` (an Arrow file after an empty table of offsets).
        shards: the chunks.
        formats: encodings of the leaves.
        names: names of the leaves.
        tokens: number of tokens of each chunk.
    """

    folder: Path
    layout: str
    shards: list[ShardFile]
    formats: list[str]
    names: list[str]
    tokens: list[int]


def dtypes_of(kind: str) -> Mapping[int, np.dtype[Any]]:
    """Return the dtypes of ``"tensor"`` or ``"numpy"`` by LitData's numbers for them."""
    return {n: np.dtype(name) for n, name in enumerate(_DTYPES[kind].split()) if name not in _UNSUPPORTED}


def missing_dtypes(kind: str) -> Mapping[int, str]:
    """Return the names of the dtypes that NumPy lacks, by LitData's numbers for them."""
    return {n: name for n, name in enumerate(_DTYPES[kind].split()) if name in _UNSUPPORTED}


def dtype_of(encoding: str) -> np.dtype[Any] | None:
    """Return the dtype of a leaf such as ``"no_header_tensor:17"``, or None for other leaves and dtypes that NumPy
    lacks."""
    kind, _, number = encoding.partition(":")
    if kind not in ("no_header_tensor", "no_header_numpy") or not number.isascii() or not number.isdigit():
        return None
    return dtypes_of(kind.rpartition("_")[2]).get(int(number[:9]))


def litdata_index(folder: Path, required: str | None = None) -> LitDataIndex:
    """Return the index of a folder, checked against the sizes of its chunks.

    Args:
        folder: the folder.
        required: layout that it must have, by default any.

    Raises:
        DataError: the index is missing or damaged, chunks are encrypted, of a kind that is not read, or of another
            layout than ``required``.
    """
    path = folder / INDEX
    root = IndexEntry(index_of(folder), path, "the object")
    config = IndexEntry(root.data.get("config"), path, "config")
    loader, formats = config.data.get("item_loader"), config.items("data_format", str)
    if config.data.get("encryption") is not None:
        raise _refusal("chunks that are not encrypted", "encrypted ones", path, "write them again without encryption=")
    if loader == "ParquetLoader":
        raise _refusal("chunks", "an index of Parquet files", path, "open these: fl.open_corpus('folder/*.parquet')")
    if loader not in (None, "PyTreeLoader", "TokensLoader") or config.data.get("format") is not None:
        raise _refusal("items or tokens", f"chunks for {loader}", path, "write the data again, for PyTreeLoader")
    # Before chunks named their loader, a single vector was stored without its size.
    bare = loader is None and len(formats) == 1 and formats[0].startswith("no_header_tensor:")
    tokens = loader == "TokensLoader" or bare
    if not formats or (len(formats) > 1 and tokens):
        raise config.error("the formats of leaves", formats)
    chunks = [IndexEntry(item, path, f"chunk {k}") for k, item in enumerate(root.items("chunks", dict))]
    shards = [_shard(chunk, config, folder) for chunk in chunks]
    layout = "tokens" if tokens else "rows" if any(rows_span(shard) for shard in shards[:1]) else "items"
    names = ["tokens"] if tokens else _names(config, len(formats))
    if required not in (None, layout):
        got = f"{layout} of {', '.join(names[:20])}"
        raise _refusal(f"a folder of {required}", got, folder, "open it as fl.LitDataDeserializer(path)")
    counts = [chunk.number("dim") for chunk in chunks] if tokens else []
    return LitDataIndex(folder, layout, shards, formats=formats, names=names, tokens=counts)


def rows_span(shard: ShardFile) -> tuple[int, int] | None:
    """Return begin and end of the Arrow file at the end of a chunk, or None if there is none."""
    begin = 4 * (shard.samples + 2)
    if shard.codec or shard.size < begin + _ROWS_END.size:
        return None
    with open_file(shard.path) as file, reading(shard.path):
        size, mark = _ROWS_END.unpack(read_at(file, _ROWS_END.size, shard.size - _ROWS_END.size).ljust(12, b"\0"))
    end = shard.size - _ROWS_END.size
    return (end - size, end) if mark == _ROWS_MARK and begin <= end - size < end else None


def row_spans(index: LitDataIndex) -> list[tuple[Path, tuple[int, int]]]:
    """Return path, begin and end of the Arrow file in each chunk of a folder of rows.

    Raises:
        DataError: a chunk has no Arrow file.
    """
    spans = []
    for shard in index.shards:
        span = rows_span(shard)
        if span is None:
            what = "rows in Arrow's format at the end of the chunk, as in the first one"
            raise _refusal(what, "none", shard.path, byte=shard.size)
        spans.append((shard.path, span))
    return spans


def token_arrays(index: LitDataIndex) -> list[tuple[Path, NDArray[Any]]]:
    """Return path and mapped tokens of each chunk.

    Raises:
        DataError: tokens are no integers, or compressed, or a chunk has another number of tokens than in the index.
    """
    path, dtype = index.folder / INDEX, dtype_of(index.formats[0])
    if dtype is None or dtype.kind not in "iu":
        raise _refusal("tokens that are integers", f"{index.formats[0]}", path, "read it with litdata, and convert it")
    arrays = []
    for shard, count in zip(index.shards, index.tokens, strict=True):
        begin = 4 * (shard.samples + 2)
        if shard.codec:
            raise _refusal("tokens that can be mapped", "compressed ones", shard.path, "unpack them: zstd -d")
        if shard.size != begin + count * dtype.itemsize:
            what = f"a chunk of {begin + count * dtype.itemsize} bytes, for {count} tokens of {dtype}"
            raise _refusal(what, f"{shard.size}", shard.path)
        with open_file(shard.path) as file, reading(shard.path):
            samples = read_at(file, 4, 0)
        if samples != struct.pack("<I", shard.samples):
            what = f"a chunk of {shard.samples} samples, as {INDEX} says"
            raise _refusal(what, samples.hex(), shard.path, byte=0)
        arrays.append((shard.path, _map_tokens(shard.path, dtype, begin, count)))
    return arrays


def _map_tokens(path: Path, dtype: np.dtype[Any], begin: int, count: int) -> NDArray[Any]:
    if not count:
        return np.empty(0, dtype)
    try:
        return map_file(path, dtype, begin, (count,))
    except (OSError, ValueError) as error:
        raise DataError(f"expected a file that can be mapped: {error}", path=str(path)) from error


def _refusal(expected: str, got: str, path: Path, hint: str = DAMAGED, byte: int | None = None) -> DataError:
    return DataError(f"expected {expected}, got {got}", path=str(path), byte=byte, hint=hint)


def _shard(chunk: IndexEntry, config: IndexEntry, folder: Path) -> ShardFile:
    compression, level = config.data.get("compression"), config.data.get("compression_level")
    samples, counted = chunk.number("chunk_size"), chunk.number("chunk_bytes")
    if samples >= 1 << 30:
        raise chunk.error("a number `chunk_size` of samples", samples)
    # Older writers counted the bytes of the samples alone.
    sizes = (counted, counted + 4 * (samples + 2))
    place = chunk.file_path(folder, "filename")
    codec, run, size = None, 0, size_of(place)
    if compression is not None:
        codec = codec_of(config.text("compression"), folder / INDEX)
        if level in ("batch", "sample"):
            batch = config.data.get("compression_batch_size") or _DEFAULT_RUN
            if type(batch) is not int or not 0 < batch < 1 << 32:
                raise config.error("a number `compression_batch_size`", batch)
            run = batch if level == "batch" else -1
        elif level not in (None, "chunk"):
            raise config.error("chunk, batch or sample as `compression_level`", level)
        else:
            # LitData keeps chunks that it unpacked next to the compressed ones.
            unpacked = place.with_name(place.name.replace(f".{compression}", ""))
            unpacked_size = size_of(unpacked) if unpacked != place else None
            if unpacked_size in sizes:
                place, codec, size = unpacked, None, unpacked_size
    if size is None:
        raise no_file("chunk", place)
    if (codec is None or run) and size not in sizes:
        raise _refusal(f"a chunk of {counted} bytes", f"{size}", place)
    return ShardFile(place, samples, size, unpacked=sizes, codec=codec, run=run)


def _names(config: IndexEntry, count: int) -> list[str]:
    """Return the names of the leaves of a sample.

    Raises:
        DataError: the tree is damaged, or has another number of leaves.
    """
    try:
        version, tree = json.loads(config.text("data_spec"))
        if version != 1:
            raise ValueError(f"version {version}")
        names = [".".join(path) or "x" for path in _leaves(tree, 0)]
        if len(names) != count or len(set(names)) < count:
            raise ValueError(f"{len(names)} leaves, {len(set(names))} names")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise config.error(f"a tree with {count} leaves as `data_spec` ({error})", config.data["data_spec"]) from error
    return names


def _leaves(tree: dict[str, Any], level: int) -> list[list[str]]:
    """Return the path to each leaf of a tree, in order."""
    children: Sequence[dict[str, Any]] = tree["children_spec"]
    if tree["type"] is None:
        return [[]]
    if level == _MAX_DEPTH:
        raise ValueError(f"deeper than {_MAX_DEPTH}")
    keys: Any = tree["context"]
    if isinstance(keys, dict):
        keys = keys["dict_context"]  # of a defaultdict
    elif isinstance(keys, str) and tree["type"] != "collections.namedtuple":
        keys = json.loads(keys)
    if not isinstance(keys, list):
        keys = range(len(children))
    return [
        [escape_key(str(key)), *path]
        for key, child in zip(keys, children, strict=True)
        for path in _leaves(child, level + 1)
    ]
