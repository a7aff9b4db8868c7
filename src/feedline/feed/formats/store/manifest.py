"""The manifest of a store: a description of its files, which is checked before any of them is opened.

The manifest contains a checksum of itself, so damage is detected. Even a hostile manifest can name only files inside
the folder of the store, and places within them.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from feedline import _native
from feedline.data import Schema, Stream
from feedline.errors import DataError, SchemaError
from feedline.feed.files.remote import pread
from feedline.feed.formats.store import stream_columns
from feedline.feed.formats.store.compressed import CODECS
from feedline.feed.formats.store.mapped_files import check_size, open_inside
from feedline.feed.protocol import Ints

MANIFEST = "feedline.json"
FORMAT, VERSION = "feedline-store", 1
# Stores with compressed chunks, which readers of version 1 cannot read.
COMPRESSED_VERSION = 2
# Stores with streams of byte strings, compressed or not, which readers of versions 1 and 2 cannot read.
STRINGS_VERSION = 3
_CHECKSUM = re.compile(rb'"crc32c": "([0-9a-f]{8})"')
_UNSET = b'"crc32c": "00000000"'
_MAX_BYTES = 1 << 30  # of a manifest, in which a chunk takes about fifty


@dataclass(frozen=True)
class StoreFile:
    """One Arrow IPC file.

    Attributes:
        file: name in the store's folder.
        bytes: size of the file.
        ragged: names of the streams whose column has a list level for sequences.
        chunks: int64 arrays, one entry per chunk (a record batch): ``byte`` and ``bytes`` of its message in the file,
            its ``crc32c``, ``sequences`` and ``samples``, and if it is compressed, ``memory``, the maximum bytes to
            which it expands.
        totals: by stream that is ragged anywhere in the store, int64 samples of that stream, one entry per chunk.
    """

    file: str
    bytes: int
    ragged: frozenset[str]
    chunks: dict[str, Ints]
    totals: dict[str, Ints]

    def count(self, what: str) -> int:
        """Return the number of ``"sequences"`` or ``"samples"`` in the file."""
        return int(self.chunks[what].sum())


@dataclass(frozen=True)
class Lengths:
    """A ``.npy`` file with the length of every sequence in one ragged stream, int32 (sequences,)."""

    file: str
    bytes: int
    crc32c: int


def lengths_header(count: int) -> bytes:
    """Return the 128 bytes before the lengths, in NumPy's format 1.0. Only the digits vary."""
    text = f"{{'descr': '<i4', 'fortran_order': False, 'shape': ({count},), }}"
    return b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + text.ljust(117).encode() + b"\n"


@dataclass(frozen=True)
class Manifest:
    """The description of a store."""

    schema: Schema
    lengths: dict[str, Lengths]
    parts: list[StoreFile]
    compression: str | None = None
    """One of `compressed.CODECS`, or None."""

    @functools.cached_property
    def sequences(self) -> int:
        """Number of sequences in the store."""
        return sum(part.count("sequences") for part in self.parts)

    @property
    def samples(self) -> int:
        """Number of samples in the store."""
        return sum(part.count("samples") for part in self.parts)

    @property
    def version(self) -> int:
        """The lowest version of the format that can hold the store."""
        if any(stream.is_bytes for stream in self.schema.values()):
            return STRINGS_VERSION
        return VERSION if self.compression is None else COMPRESSED_VERSION

    def digest(self) -> str:
        """Return 32 hex digits over sizes and checksums of all chunks."""
        return list(self.digests())[-1][1]

    def digests(self) -> Iterator[tuple[int, str]]:
        """Yield the number of chunks up to the end of each part, and the digest of these."""
        digest, chunks = hashlib.blake2b(digest_size=16), 0
        for part in self.parts:
            for key in _CHUNK_KEYS[1:]:
                digest.update(part.chunks[key].astype("<i8").tobytes())
            chunks += len(part.chunks["byte"])
            yield chunks, digest.hexdigest()

    def dump(self) -> bytes:
        """Return the bytes of the manifest file, with their checksum."""
        tree = {
            "format": FORMAT,
            "version": self.version,
            "crc32c": "00000000",
            **({} if self.compression is None else {"compression": self.compression}),
            "sequences": self.sequences,
            "samples": self.samples,
            "streams": [{"name": name, **stream_columns.describe(stream)} for name, stream in self.schema.items()],
            "lengths": {name: asdict(side) for name, side in self.lengths.items()},
            "parts": [
                {
                    "file": part.file,
                    "bytes": part.bytes,
                    "sequences": part.count("sequences"),
                    "samples": part.count("samples"),
                    "ragged": sorted(part.ragged),
                    "chunks": {key: array.tolist() for key, array in part.chunks.items()},
                    "totals": {name: array.tolist() for name, array in part.totals.items()},
                }
                for part in self.parts
            ],
        }
        text = (json.dumps(tree, ensure_ascii=True) + "\n").encode()
        return text.replace(_UNSET, b'"crc32c": "%08x"' % _native.crc32c(text), 1)

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Return the manifest of the store in ``folder``, after checks of its consistency and of the sizes of the
        files.

        Raises:
            DataError: there is no store, the manifest is damaged, or its figures contradict each other or the files.
        """
        path = folder / MANIFEST
        if not os.path.lexists(path):
            raise DataError(f"expected a store with a {MANIFEST}", path=str(folder), hint="fl.convert writes one")
        with open_inside(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > _MAX_BYTES:
                raise DataError(f"expected a manifest of at most {_MAX_BYTES} bytes, got {size}", path=str(path))
            try:
                text = pread(file, size, 0)
            except OSError as error:
                raise DataError(f"expected a readable manifest: {error.strerror}", path=str(path)) from error
        manifest = _Parser(str(path)).manifest(text)
        for name, size in [*((p.file, p.bytes) for p in manifest.parts)] + [
            (side.file, side.bytes) for side in manifest.lengths.values()
        ]:
            check_size(folder / name, size)
        return manifest


_CHUNK_KEYS: tuple[str, ...] = ("byte", "bytes", "sequences", "samples", "crc32c")


class _Parser:
    """A parser of manifests that trusts none of their bytes."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.chunk_keys = _CHUNK_KEYS

    def fail(self, what: str) -> NoReturn:
        raise DataError(what, path=self.path, hint="the manifest is damaged; restore it or write the store again")

    def manifest(self, text: bytes) -> Manifest:
        checksum = _CHECKSUM.search(text)
        if checksum is None:
            self.fail("expected a manifest with a checksum, got none")
        expected = int(checksum[1], 16)
        got = _native.crc32c(text[: checksum.start()] + _UNSET + text[checksum.end() :])
        if got != expected:
            self.fail(f"expected a manifest with checksum {expected:08x}, got {got:08x}")
        try:
            tree = json.loads(text)
        except (ValueError, RecursionError) as error:
            self.fail(f"expected JSON: {error}")
        if not isinstance(tree, dict) or tree.get("format") != FORMAT:
            self.fail(f"expected the format {FORMAT!r}")
        version = tree.get("version")
        if type(version) is not int or not VERSION <= version <= STRINGS_VERSION:
            raise DataError(
                f"expected version {VERSION} to {STRINGS_VERSION} of the store format, got {version!r}",
                path=self.path,
                hint="upgrade feedline to read it",
            )
        compression = None
        if version == COMPRESSED_VERSION or (version == STRINGS_VERSION and "compression" in tree):
            compression = tree.get("compression")
            if compression not in CODECS:
                self.fail(f"expected a compression of {', '.join(CODECS)}, got {compression!r}")
            self.chunk_keys = (*_CHUNK_KEYS, "memory")
        schema = self.schema(tree.get("streams"), strings=version == STRINGS_VERSION)
        lengths = self.lengths(tree.get("lengths"), schema)
        parts = [self.part(row, i, schema, lengths) for i, row in enumerate(self.list(tree.get("parts"), "parts"))]
        manifest = Manifest(schema, lengths, parts, compression)
        for what, summed in (("sequences", manifest.sequences), ("samples", manifest.samples)):
            if (total := self.count(tree, what)) != summed:
                self.fail(f"expected {total} {what} in all parts together, got {summed}")
        if manifest.sequences == 0:
            self.fail("expected at least one sequence, got none")
        ragged = frozenset[str]().union(*(part.ragged for part in parts))
        if ragged != set(lengths):
            self.fail(f"expected lengths of the streams {sorted(ragged)}, got {sorted(lengths)}")
        for side in lengths.values():
            size = len(lengths_header(manifest.sequences)) + 4 * manifest.sequences
            if side.bytes != size:
                self.fail(f"expected {size} bytes in {side.file} for {manifest.sequences} sequences, got {side.bytes}")
        files = [part.file for part in parts] + [side.file for side in lengths.values()]
        if len(set(files)) < len(files):
            self.fail(f"expected each file once, got {', '.join(sorted(files))}")
        return manifest

    def schema(self, rows: Any, *, strings: bool) -> Schema:
        streams: dict[str, Stream] = {}
        for row in self.list(rows, "streams"):
            try:
                stream = stream_columns.parse(row, strings)
            except (ValueError, TypeError) as error:
                self.fail(str(error))
            name = row.get("name")
            # JSON can represent lone surrogates, which Arrow cannot.
            if not isinstance(name, str) or name in streams or re.search("[\ud800-\udfff]", name):
                self.fail(f"expected a distinct valid name for each stream, got {name!r}")
            streams[name] = stream
        try:
            return Schema(streams)
        except SchemaError as error:
            self.fail(str(error))

    def lengths(self, rows: Any, schema: Schema) -> dict[str, Lengths]:
        if not isinstance(rows, dict) or not set(rows) <= set(schema):
            self.fail("expected lengths by stream name")
        return {
            name: Lengths(self.file(row, r"lengths-\d{1,9}\.npy"), self.count(row, "bytes"), self.count(row, "crc32c"))
            for name, row in rows.items()
        }

    def part(self, row: Any, number: int, schema: Schema, lengths: dict[str, Lengths]) -> StoreFile:
        file, size = self.file(row, r"part-\d{5,9}\.arrow"), self.count(row, "bytes")
        ragged = self.list(row.get("ragged"), "ragged streams")
        if not all(isinstance(name, str) and name in lengths for name in ragged):
            self.fail(f"expected streams with lengths as ragged streams of {file}, got {ragged!r}")
        tables = row.get("chunks")
        if not isinstance(tables, dict) or set(tables) != set(self.chunk_keys):
            self.fail(f"expected {', '.join(self.chunk_keys)} of the chunks of {file}")
        chunks = {key: self.counts(tables[key], f"{key} of chunks") for key in self.chunk_keys}
        count = len(chunks["byte"])
        totals = row.get("totals")
        if not isinstance(totals, dict) or set(totals) != set(lengths):
            self.fail(f"expected samples of the streams {sorted(lengths)} in {file}")
        by_stream = {name: self.counts(totals[name], f"samples of `{name}`") for name in schema if name in totals}
        if any(len(array) != count for array in [*chunks.values(), *by_stream.values()]) or count == 0:
            self.fail(f"expected tables of equal length, at least 1, for the chunks of {file}")
        start, stop = chunks["byte"], chunks["byte"] + chunks["bytes"]
        # The first message of a file follows the magic, and messages follow one another.
        if start[0] < 16 or (start[1:] < stop[:-1]).any() or stop[-1] > size or (chunks["bytes"] < 8).any():
            self.fail(f"expected consecutive chunks of {file} within its {size} bytes")
        part = StoreFile(file, size, frozenset(ragged), chunks, by_stream)
        for what in ("sequences", "samples"):
            if (total := self.count(row, what)) != part.count(what):
                self.fail(f"expected {total} {what} in the chunks of {file}, got {part.count(what)}")
        if (chunks["sequences"] < 1).any():
            self.fail(f"expected at least one sequence in every chunk of {file}")
        return part

    def list(self, rows: Any, what: str) -> list[Any]:
        if not isinstance(rows, list):
            self.fail(f"expected a list of {what}, got {type(rows).__name__}")
        return rows

    def counts(self, rows: Any, what: str) -> Ints:
        # The sum of a table must stay below 2^63, where it would overflow.
        if not all(type(n) is int and 0 <= n < 2**48 for n in self.list(rows, what)) or sum(rows) >= 2**62:
            self.fail(f"expected counts as {what}")
        return np.array(rows, np.int64)

    def count(self, row: Any, key: str) -> int:
        value = row.get(key) if isinstance(row, dict) else None
        if type(value) is not int or not 0 <= value < 2**63:
            self.fail(f"expected a count as `{key}`, got {value!r}")
        return value

    def file(self, row: Any, pattern: str) -> str:
        name = row.get("file") if isinstance(row, dict) else None
        if not isinstance(name, str) or not re.fullmatch(pattern, name):
            self.fail(f"expected a file name like {pattern}, got {name!r}")
        return name
