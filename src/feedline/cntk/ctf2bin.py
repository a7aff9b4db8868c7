"""CNTK's ``ctf2bin``: convert CNTK text to CNTK's binary format, with the same bytes as CNTK's script.

In CNTK it is outside the package, as ``Scripts/ctf2bin.py``. Here it is ``python -m feedline.cntk.ctf2bin`` with the
same arguments, or `process`. Its chunks are reproduced, too: the script never resets the estimated size, so after the
first ``chunk_size`` bytes each sequence becomes a separate chunk. ``--sound-chunks`` resets it, as does
`feedline.write_cbf`, which is many times as fast. Every reader accepts both.
"""

from __future__ import annotations

import argparse
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from feedline.data import Value
from feedline.data.value import DenseValue, SparseValue
from feedline.errors import DataError
from feedline.feed.files.atomic import atomic_file
from feedline.feed.files.paths import open_file
from feedline.feed.formats.cntk.cbf import CbfField
from feedline.feed.formats.cntk.cbf_write import CbfWriter

_INDEX_BYTES = 4


class ElementType:
    """Element types, as numbers of the format."""

    FLOAT, DOUBLE = 0, 1


class _Column:
    """The samples of a stream since the last chunk."""

    def __init__(self, field: CbfField) -> None:
        self.field = field
        self.clear()

    def clear(self) -> None:
        self.lengths: list[int] = []
        self.counts: list[int] = []  # of values, by sample
        self.numbers, self.indices = array("d"), array("q")

    def add(self, words: list[str]) -> int:
        """Add a sample to the last sequence, and return its estimated bytes."""
        size, dim = self.field.dtype.itemsize, self.field.dim
        self.lengths[-1] += 1
        self.counts.append(len(words))
        if not self.field.sparse:
            if len(words) != dim:
                raise ValueError(f"expected {dim} values in a sample of `{self.field.name}`, got {len(words)}")
            self.numbers.extend(map(float, words))
            return size * dim
        for word in words:
            index, _, number = word.partition(":")
            self.indices.append(int(index))
            self.numbers.append(float(number))
            if not 0 <= self.indices[-1] < dim:
                raise ValueError(f"expected an index below {dim} in `{self.field.name}`, got {index}")
        return len(words) * (size + _INDEX_BYTES) + _INDEX_BYTES

    def value(self) -> Value:
        """Return the samples."""
        numbers = np.array(self.numbers, np.float64)
        with np.errstate(over="ignore"):
            cast = numbers.astype(self.field.dtype)
        if (np.isinf(cast) & ~np.isinf(numbers)).any():
            raise ValueError(f"expected numbers that {self.field.dtype.name} can hold in `{self.field.name}`")
        offsets = np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])
        if not self.field.sparse:
            return DenseValue(cast.reshape(-1, self.field.dim), offsets)
        indptr = np.concatenate([[0], np.cumsum(self.counts, dtype=np.int64)])
        return SparseValue(indptr, np.array(self.indices, np.int32), cast, self.field.dim, offsets)


def process(
    input_name: str,
    output_name: str,
    streams: Iterable[str],
    element_type: int,
    chunk_size: int = 32 << 20,
    *,
    sound_chunks: bool = False,
) -> None:
    """Convert a file.

    Args:
        input_name: path of CNTK text.
        output_name: path to write, complete or not at all.
        streams: lines ``name alias dense|sparse dim``: the stream called ``alias`` in the text becomes ``name``.
        element_type: a number of `ElementType`.
        chunk_size: estimated bytes at which a chunk ends.
        sound_chunks: whether to reset the estimate after each chunk, which CNTK's script forgets.

    Raises:
        ValueError: a malformed line of ``streams``, or a sample with a wrong number of values, an index that is too
            large or a value that is not a number. The message names the line.
        DataError: the text cannot be read, or the disk is full.
    """
    dtype: np.dtype[Any] = np.dtype(np.float64 if element_type == ElementType.DOUBLE else np.float32)
    columns = dict(_column(line, dtype) for line in streams)
    with open_file(input_name, -1) as binary, atomic_file(Path(output_name)) as file:
        writer = CbfWriter(file, [column.field for column in columns.values()])

        def end_chunk() -> None:
            writer.chunk([[column.value() for column in columns.values()]])
            for column in columns.values():
                column.clear()

        size = 0
        for lines in _sequences((line.decode() for line in binary), input_name):
            if size >= chunk_size:
                end_chunk()
                size = 0 if sound_chunks else size
            size += _add(columns, lines, input_name)
        end_chunk()
        writer.finish()


def _column(line: str, dtype: np.dtype[Any]) -> tuple[str, _Column]:
    words = line.split()
    if len(words) != 4 or words[2].lower() not in ("dense", "sparse"):
        raise ValueError(f"expected a stream as `name alias dense|sparse dim`, got {line.strip()!r}")
    name, alias, kind, dim = words
    return alias, _Column(CbfField(name, kind.lower() == "sparse", dtype, int(dim)))


def _sequences(text: Iterable[str], path: str) -> Iterable[list[tuple[int, str]]]:
    """Yield the numbered lines of each sequence. A line without an id continues the sequence before it, if any."""
    lines: list[tuple[int, str]] = []
    current = None
    for number, line in enumerate(text, 1):
        prefix, bar, _ = line.partition("|")
        if not bar:
            raise DataError("expected a row of CNTK text with `|`, got none", path=path, line=number)
        prefix = prefix.strip()
        if (not current and not prefix) or (prefix and prefix != current):
            if lines:
                yield lines
            lines, current = [], prefix
        lines.append((number, line))
    if lines:
        yield lines


def _add(columns: dict[str, _Column], lines: list[tuple[int, str]], path: str) -> int:
    """Add a sequence, and return its estimated bytes."""
    size = 0
    for column in columns.values():
        column.lengths.append(0)
    for number, line in lines:
        for sample in line.split("|")[1:]:
            words = sample.split()
            if len(words) < 2 or words[0].startswith("#"):
                continue
            try:
                size += columns[words[0]].add(words[1:])
            except KeyError:
                raise ValueError(f"{path}, line {number}: expected a stream of the header, got `{words[0]}`") from None
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
    return size


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, by default with the program's arguments."""
    parser = argparse.ArgumentParser("ctf2bin", description="Convert CNTK text to CNTK's binary format.")
    parser.add_argument("--input", required=True, help="CNTK text")
    parser.add_argument("--header", required=True, help="file with one line `name alias dense|sparse dim` per stream")
    parser.add_argument("--chunk_size", type=int, required=True, help="estimated bytes of a chunk")
    parser.add_argument("--output", required=True, help="file to write")
    parser.add_argument("--precision", choices=["float", "double"], default="float", help="element type")
    parser.add_argument("--sound-chunks", action="store_true", help="reset the estimate after each chunk, unlike CNTK")
    options = parser.parse_args(arguments)
    element = ElementType.FLOAT if options.precision == "float" else ElementType.DOUBLE
    with open(options.header, encoding="utf-8") as header:
        process(options.input, options.output, header, element, options.chunk_size, sound_chunks=options.sound_chunks)


if __name__ == "__main__":
    main()
