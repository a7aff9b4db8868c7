"""Flat token files as a corpus: rows of equal length, as views of a memory map.

Token files of nanoGPT and others (``.bin``, numbers without a header), of llm.c and modded-nanogpt (``.bin`` with a
header of 256 int32), one-dimensional ``.npy`` files, Megatron's ``.bin`` with its ``.idx``, and folders that LitData
wrote for its ``TokensLoader``. A row is a sequence of one sample. Rows may overlap. Opening reads only headers and
indexes, and memory does not grow with the files.
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import DTypeLike, NDArray

from feedline.data import Chunk, Schema, Stream, Value
from feedline.data.maps import MappedRange
from feedline.errors import DataError, SchemaError
from feedline.feed.files.digest import ContentDigest
from feedline.feed.files.mapped_arrays import map_file, map_npy, mapped_ranges
from feedline.feed.files.paths import PathLike, list_files, looking, name_of, open_file
from feedline.feed.files.truncation_guard import seals_of
from feedline.feed.formats.detect_shards import folder_of, is_litdata, is_litdata_chunk
from feedline.feed.formats.pickled_by_arguments import PickledByArguments
from feedline.feed.formats.shards.litdata_index import litdata_index, token_arrays
from feedline.feed.protocol import ChunkInfo, Deserializer, Growing, Mapped, RandomAccess, Sliceable, whole_number

CHUNK_BYTES = 16 << 20  # of tokens from the first row of a chunk to the first of the next. Part of the order

# Megatron's index: magic, version, code of the dtype, number of sequences, number of documents. Then the lengths of the
# sequences, int32, their first bytes, int64, and the first sequence of each document, int64.
_INDEX = struct.Struct("<9sQBQQ")
_MAGIC = b"MMIDIDX\0\0"
# The header of llm.c and of projects that adopted its format: magic, version, number of tokens, and zeros, int32.
_HEADER_NUMBERS, _ZEROS_FROM = 256, 16
_HEADERS = {(20240520, 1): "uint16", (20240801, 7): "uint32"}
_DAYS = range(20_230_101, 20_400_101)  # magic numbers of this kind are dates
_DTYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}


class TokensDeserializer(Deserializer, RandomAccess, Sliceable, Mapped, Growing, PickledByArguments):
    """Rows of ``length`` tokens, each as a sequence of one sample.

    Rows begin at every ``stride``-th token of a file. None crosses the end of a file, so tokens at the end of a file
    that do not fill a row are not delivered.

    Args:
        path: a ``.bin`` or ``.npy`` file, Megatron's ``.bin`` or ``.idx``, a folder that LitData wrote, another folder,
            a pattern, or a list of these, see `open_corpus`.
        length: tokens in a row.
        stride: tokens from the beginning of a row to the beginning of the next, by default ``length``. Rows
            overlap if it is less.
        targets: whether rows have one token more, so that ``row[:-1]`` are inputs and ``row[1:]`` their targets.
        dtype: dtype of the tokens of a ``.bin`` file without an index, in native byte order. Other files declare it.
        stream: name of the stream.

    Attributes:
        tokens: number of tokens in all files.

    Raises:
        DataError: a file is missing, damaged, no whole number of tokens, or not of integers, or no file has a row.
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        *,
        length: int,
        stride: int | None = None,
        targets: bool = False,
        dtype: DTypeLike = "uint16",
        stream: str = "tokens",
    ) -> None:
        self._set_arguments(path, length=length, stride=stride, targets=targets, dtype=dtype, stream=stream)
        self._row = whole_number("length", length, 1) + bool(targets)
        self._stride = whole_number("stride", length if stride is None else stride, 1)
        kind = np.dtype(dtype)
        if kind.kind not in "iu":
            raise ValueError(f"expected integers as dtype of tokens, got {kind}")
        opened = _map_files(path, kind)
        self._paths, self._files = [file for file, _ in opened], [tokens for _, tokens in opened]
        self.name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else "token files"
        for file_path, tokens in opened:
            if tokens.dtype != self._files[0].dtype:
                raise DataError(
                    f"expected tokens of {self._files[0].dtype}, as in {name_of(self._paths[:1])}, got {tokens.dtype}",
                    path=str(file_path),
                )
        self.tokens = sum(map(len, self._files))
        self._rows = [max(0, len(file) - self._row) // self._stride + (len(file) >= self._row) for file in self._files]
        if sum(self._rows) == 0:
            raise DataError(
                f"expected at least one row of {self._row} tokens, got {max(map(len, self._files))} tokens",
                path=self.name,
                hint="choose a smaller length",
            )
        # A longer stride gives the same rows, the first of each file, and might not fit into 64 bits.
        self._stride = min(self._stride, max(map(len, self._files)))
        token = self._files[0].dtype.itemsize
        step = max(1, CHUNK_BYTES // (self._stride * token))
        self._chunks = [(f, at, min(step, n - at)) for f, n in enumerate(self._rows) for at in range(0, n, step)]
        self._table = [ChunkInfo(n, n, n * self._stride * token) for _, _, n in self._chunks]
        self.schema = Schema({stream: Stream(self._row, self._files[0].dtype)})
        self._stream = stream
        self._seals = [seals_of([file]) for file in self._files]
        self._ranges = mapped_ranges(self._files)
        if not self._ranges:
            self._lacks = (Mapped,)

    def chunks(self) -> list[ChunkInfo]:
        """Return the size of every chunk. ``bytes`` counts the tokens between the beginnings of its rows."""
        return self._table

    def read(self, chunk: int) -> Chunk:
        """Return views of the rows of chunk number ``chunk``."""
        if not 0 <= chunk < len(self._chunks):
            raise IndexError(f"expected a chunk number from 0 to {len(self._chunks) - 1}, got {chunk}")
        return self.read_slice(chunk, 0, self._chunks[chunk][2])

    def read_slice(self, chunk: int, start: int, stop: int) -> Chunk:
        """Return views of the rows ``start:stop`` of chunk number ``chunk``."""
        number, first, _ = self._chunks[chunk]
        file, token = self._files[number], self._files[number].dtype.itemsize
        begin, count = (first + start) * self._stride, stop - start
        # The last row ends within the file, as counted when it was opened.
        rows = as_strided(file[begin:], (count, self._row), (self._stride * token, token), writeable=False)
        return Chunk(self.schema, {self._stream: Value.from_dense(rows)}, seals=self._seals[number])

    def files(self, chunks: Sequence[int]) -> Sequence[MappedRange]:
        """Return the mapped files, the same for any chunks."""
        return self._ranges

    def paths(self) -> list[str]:
        """Return the paths of the files of tokens."""
        return [str(path) for path in self._paths]

    def digest(self) -> str:
        """Return 32 hex digits over length, stride, and three blocks of each file."""
        return list(self.digests())[-1][1]

    def digests(self) -> Iterator[tuple[int, str]]:
        """Yield the digest after each file. See `Growing.digests`."""
        digest = ContentDigest()
        digest.numbers(self._row, self._stride)
        ends = np.cumsum(np.bincount([file for file, _, _ in self._chunks], minlength=len(self._files)))
        for file, end in zip(self._files, ends.tolist(), strict=True):
            digest.array(file)
            yield end, digest.hexdigest()


def open_files(paths: list[str], streams: Mapping[str, Stream], memory_bytes: int) -> TokensDeserializer:
    """Open token files with the length and the dtype of one declared stream. See `open_corpus`.

    Raises:
        SchemaError: there is no declaration, or none of a vector of integers.
    """
    declared = list(streams.items())
    if len(declared) != 1 or len(declared[0][1].shape) != 1 or declared[0][1].dtype.kind not in "iu":
        raise SchemaError(
            f"expected one stream that says how long rows are and which numbers they hold, for {paths[0]}, "
            f"got {dict(declared) or 'none'}; write tokens=fl.Stream(1024, 'uint16'), or use fl.TokensDeserializer"
        )
    name, stream = declared[0]
    what: Any = paths if len(paths) > 1 else paths[0]
    return TokensDeserializer(what, length=stream.size, dtype=stream.dtype, stream=name)


def _map_files(path: Any, dtype: np.dtype[Any]) -> list[tuple[Path, NDArray[Any]]]:
    """Return the files of tokens and their maps. A pair of Megatron's files is listed once, by its ``.bin`` file."""
    paths = [path] if isinstance(path, (str, os.PathLike)) else path
    if not paths:
        raise ValueError("expected at least one file, got an empty list")
    arrays: dict[Path, NDArray[Any] | None] = {}
    for entry in paths:
        folder = folder_of(entry)
        with looking(folder):
            of_litdata = folder.is_dir() and is_litdata(folder)
        if of_litdata:
            arrays |= dict(token_arrays(litdata_index(folder, "tokens")))
            continue
        files = (file.with_suffix(".bin") if file.suffix == ".idx" else file for file in list_files(entry))
        arrays |= dict.fromkeys(files)
    return [(file, _map_file(file, dtype) if tokens is None else tokens) for file, tokens in arrays.items()]


def _map_file(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the tokens of a file, mapped."""
    wrong = functools.partial(DataError, path=str(path))
    with open_file(path, -1) as file:
        head = file.read(4 * _HEADER_NUMBERS)
        size = os.fstat(file.fileno()).st_size
    try:
        if head.startswith(b"\x93NUMPY"):
            array = map_npy(path)
            if array.ndim != 1 or array.dtype.kind not in "iu" or not array.dtype.isnative:
                got = f"{array.dtype} of shape {array.shape}"
                raise wrong(f"expected one-dimensional integers in native byte order, got {got}")
            return array
        index = path.with_suffix(".idx")
        if path.suffix == ".bin" and index.exists():
            dtype = _megatron_dtype(index, size)
        elif path.suffix == ".bin" and is_litdata_chunk(path):
            what = "expected a file of tokens alone, got a chunk of LitData's, which begins with a table"
            raise wrong(what, hint="open the folder, which index.json describes")
        elif (tokens := _map_llm_c(path, head, size)) is not None:
            return tokens
        if size % dtype.itemsize:
            what = f"expected a whole number of {dtype.name} tokens, got {size} bytes"
            raise wrong(what, hint="the file was truncated, or has another dtype: pass dtype=")
        return map_file(path, dtype) if size else np.empty(0, dtype)
    except (OSError, ValueError, EOFError, SyntaxError, TypeError, MemoryError, OverflowError) as error:
        raise wrong(f"expected a file of tokens: {error}") from error


def _map_llm_c(path: Path, head: bytes, size: int) -> NDArray[Any] | None:
    """Return the mapped tokens after a header as llm.c writes it, or None if the file has no such header.

    Raises:
        DataError: the header has another version, another number of tokens, or is of another kind of file.
    """
    wrong, cut = functools.partial(DataError, path=str(path)), "the file was truncated, or its writer was stopped"
    magic = int.from_bytes(head[:4], "little")
    magics = {code for code, _ in _HEADERS}
    if len(head) < 4 * _HEADER_NUMBERS:
        if magic not in magics:
            return None
        what = f"expected {4 * _HEADER_NUMBERS} bytes of header after {magic}, got {len(head)}"
        raise wrong(what, hint=f"{cut}; write it again")
    numbers = np.frombuffer(head, "<i4")
    version, count = numbers[1:3].tolist()
    if magic not in magics and (magic not in _DAYS or numbers[_ZEROS_FROM:].any()):
        return None
    kind = _HEADERS.get((magic, version))
    if kind is None:
        expected = " or ".join(f"{code} of version {number}" for code, number in _HEADERS)
        what = f"expected tokens with the header {expected}, got {magic} of version {version}"
        raise wrong(what, byte=0, hint="other headers are not known; write the tokens without one, or as .npy")
    dtype = np.dtype(kind)
    if count < 0 or 4 * _HEADER_NUMBERS + count * dtype.itemsize != size:
        got = f"{size - 4 * _HEADER_NUMBERS} bytes after it"
        what = f"expected {count} tokens of {kind}, as the header says, got {got}"
        raise wrong(what, byte=8, hint=f"{cut}; write it again")
    return map_file(path, dtype, 4 * _HEADER_NUMBERS, (count,)) if count else np.empty(0, dtype)


def _megatron_dtype(index: Path, size: int) -> np.dtype[Any]:
    """Return the dtype that Megatron's index declares, after comparing its lengths with the ``size`` of the tokens.

    Raises:
        DataError: the index is damaged, has another version, or belongs to other tokens.
    """

    hint = "the index is damaged or belongs to other tokens; create it again"
    damaged = functools.partial(DataError, path=str(index), hint=hint)
    with open_file(index, -1) as file:
        actual = os.fstat(file.fileno()).st_size
        head = file.read(_INDEX.size)
        if len(head) < _INDEX.size or not head.startswith(_MAGIC):
            raise damaged(f"expected Megatron's index, which begins with {_MAGIC!r}, got {head[:9]!r}", byte=0)
        _, version, code, sequences, documents = _INDEX.unpack(head)
        if version != 1 or code not in _DTYPES:
            raise damaged(f"expected version 1 and a dtype of integers, got version {version} and code {code}", byte=9)
        expected = _INDEX.size + 12 * sequences + 8 * documents
        # Newer writers add a byte per sequence, its mode.
        if actual not in (expected, expected + sequences):
            what = f"expected {expected} bytes for {sequences} sequences and {documents} documents, got {actual}"
            raise damaged(what, byte=18)
        dtype = np.dtype(_DTYPES[code])
        total, remaining = 0, sequences
        while remaining:
            lengths = np.frombuffer(file.read(4 * min(remaining, 1 << 20)), "<i4")
            if len(lengths) < min(remaining, 1 << 20) or lengths.min() < 0:
                raise damaged("expected lengths of sequences of at least 0, got others", byte=_INDEX.size)
            total, remaining = total + int(lengths.sum(dtype=np.int64)), remaining - len(lengths)
    if total * dtype.itemsize != size:
        what = f"expected sequences of {size} bytes in all, as the tokens have, got {total * dtype.itemsize}"
        raise damaged(what, byte=18)
    return dtype
