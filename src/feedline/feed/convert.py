"""Any corpus into a store, and a corpus from a path alone.

Conversion streams chunk by chunk: memory is bounded by one chunk of the source and one of the store, or, where the
store is to be shuffled, by a budget.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.data import Chunk, Schema, Stream
from feedline.errors import DataError, SchemaError
from feedline.feed.files.digest import ContentDigest
from feedline.feed.files.paths import open_file
from feedline.feed.formats.arrays import ArrayDeserializer
from feedline.feed.formats.csv import read_csv_chunks
from feedline.feed.formats.detect import FILES, SUFFIXES, guess_format, infer_ctf_streams
from feedline.feed.formats.store import StoreDeserializer, StoreWriter
from feedline.feed.formats.store.manifest import Manifest
from feedline.feed.protocol import CHUNK_MEMORY, Deserializer, whole_number
from feedline.feed.shuffling import Settings, shuffled

_PIECE_BYTES = 4 << 20


class ConversionSummary(NamedTuple):
    """What a conversion wrote.

    Attributes:
        path: the store.
        schema: its streams.
        sequences: sequences written.
        samples: samples written, as the minibatch budget counts them.
        bytes: bytes of the store's data files.
        skipped: unreadable sequences left out.
    """

    path: str
    schema: Schema
    sequences: int
    samples: int
    bytes: int
    skipped: int

    def __repr__(self) -> str:
        return (
            f"Summary({self.path!r}: {', '.join(self.schema)}; {self.sequences} sequences, {self.samples} samples, "
            f"{self.bytes} bytes, {self.skipped} skipped)"
        )


def convert(
    source: Deserializer | str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    streams: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
    overwrite: bool = False,
    on_error: Literal["raise", "skip"] = "raise",
    chunk_bytes: int | None = None,
    part_bytes: int = 1 << 30,
    compression: str | None = None,
    shuffle: int | None = None,
    memory: int = 1 << 30,
) -> ConversionSummary:
    """Write all sequences of a corpus to a new store.

    Args:
        source: a deserializer, a path as `open_corpus` takes it, or a CSV file.
        destination: folder to make; it appears when everything was written.
        streams: for a path: its streams, see `open_corpus`; for CSV: columns, see `read_csv_chunks`.
        progress: called as ``progress(done, total)`` in stored bytes of the source, after each chunk.
        overwrite: replace a store of that name.
        on_error: ``"raise"`` at the first unreadable sequence, or ``"skip"`` them: the store is then another
            corpus, with other ordinals, and `ConversionSummary.skipped` counts them.
        chunk_bytes: rows of one chunk of the store; None: 32 MiB, 4 MiB if compressed.
        part_bytes: size at which the store's next file is begun.
        compression: of the store's chunks: ``"lz4"``, ``"zstd"``, ``"auto"`` or None, see `StoreWriter`.
        shuffle: None: in the order of the corpus. A seed, 0 <= seed < 2**64: in a random order, so that reading the
            store from front to back, at the speed of the disk, is a good shuffle. Writes the data twice, and needs
            twice its room meanwhile. If it is interrupted or killed, the same call goes on where it stopped.
        memory: bytes that shuffling may hold; above 2 GiB, also what `open_corpus` is told for a path.

    Raises:
        DataError: an unreadable sequence or chunk, or a full disk; nothing is left behind but what a shuffle that was
            interrupted goes on from.
        FileExistsError: something of that name is there already.
        ValueError: a destination named like a file of another format.
    """
    kind = SUFFIXES.get(Path(destination).suffix.lower())
    if kind is not None:
        raise ValueError(
            f"expected the name of a folder for the store, got {os.fspath(destination)!r}, which names {FILES[kind]} "
            "file; only stores are written here (docs/formats/store.md says how to go on from one)"
        )
    if on_error not in ("raise", "skip"):
        raise ValueError(f"expected on_error 'raise' or 'skip', got {on_error!r}")
    if shuffle is not None:
        return _convert_shuffled(
            source,
            Path(os.path.abspath(destination)),
            streams,
            Settings(
                "",
                whole_number("shuffle", shuffle, 0),
                whole_number("memory", memory, 1),
                chunk_bytes,
                whole_number("part_bytes", part_bytes, 1),
                compression,
                on_error,
            ),
            overwrite=overwrite,
            progress=progress,
        )
    writer: StoreWriter | None = None
    skipped = seen = 0
    try:
        for chunk, done, total in _read_all(source, streams, memory):
            if writer is None:
                writer = StoreWriter(
                    destination,
                    chunk.schema,
                    chunk_bytes=chunk_bytes,
                    part_bytes=part_bytes,
                    overwrite=overwrite,
                    compression=compression,
                )
            # Copied piece by piece: entries are checked then, and views of a mapped file are not looked at otherwise.
            for piece in chunk.pieces(_PIECE_BYTES):
                valid, count = piece.valid, piece.num_sequences
                if valid is not None:
                    if on_error == "raise":
                        first = min(piece.errors)
                        raise piece.errors[first].located(sequence=seen + first)
                    skipped += len(piece.errors)
                    piece = piece.take(np.flatnonzero(valid))
                writer.write(piece)
                seen += count
            if progress is not None:
                progress(done, total)
        if writer is None:
            raise DataError("expected at least one chunk to convert, got none")
        writer.close()
    except BaseException:
        if writer is not None:
            writer.abort()
        raise
    assert writer.manifest is not None
    return _summary(destination, writer.manifest, skipped)


def _summary(destination: str | os.PathLike[str], manifest: Manifest, skipped: int) -> ConversionSummary:
    size = sum(part.bytes for part in manifest.parts) + sum(side.bytes for side in manifest.lengths.values())
    return ConversionSummary(
        os.fspath(destination), manifest.schema, manifest.sequences, manifest.samples, size, skipped
    )


def _convert_shuffled(
    source: Deserializer | str | os.PathLike[str],
    destination: Path,
    streams: Mapping[str, Any] | None,
    settings: Settings,
    *,
    overwrite: bool,
    progress: Callable[[int, int], None] | None,
) -> ConversionSummary:
    if settings.seed >= 2**64:
        raise ValueError(f"expected a seed below 2**64 as shuffle, got {settings.seed}")
    content = ContentDigest()
    if isinstance(source, Deserializer):
        content.numbers(source.num_chunks())
        identity = f"{source.digest()} {content.hexdigest()}"
    elif guess_format(source) == "csv":
        with open_file(source) as file:
            content.file(file, os.fstat(file.fileno()).st_size)
        identity = f"{content.hexdigest()} {streams!r}"
    else:
        memory = max(settings.memory, CHUNK_MEMORY)
        with contextlib.closing(open_corpus(source, memory=memory, **(streams or {}))) as corpus:
            return _convert_shuffled(corpus, destination, None, settings, overwrite=overwrite, progress=progress)
    manifest, skipped = shuffled(
        lambda done: _read_all(source, streams, settings.memory, done),
        destination,
        settings._replace(source=identity),
        overwrite=overwrite,
        progress=progress,
    )
    return _summary(destination, manifest, skipped)


def open_corpus(path: str | os.PathLike[str], *, memory: int = CHUNK_MEMORY, **streams: Stream) -> Deserializer:
    """A deserializer for what is at ``path``, whatever its format.

    ============================  ==================================================================
    what                          streams
    ============================  ==================================================================
    store (a folder)              as written
    ``.parquet``, folder of it    columns of numbers, see `ParquetDeserializer`
    ``.npz``, folder of ``.npy``  one stream per array, one sample a sequence
    ``.npy``                      one stream ``x``
    ``.ctf``, ``.txt``            guessed from the first text, see `infer_ctf_streams`
    ============================  ==================================================================

    Args:
        path: file or folder; ``.npy`` files and stores are mapped, ``.npz`` is loaded.
        memory: bytes that a decoded chunk of CTF or Parquet, or all arrays of an ``.npz`` file together, may take.
        streams: declarations. CTF is read with exactly these; for other formats they choose streams, which
            must be what is declared.

    Raises:
        DataError: nothing there, nothing known, or damaged.
        SchemaError: a stream is missing or not as declared.
    """
    whole_number("memory", memory, 1)
    kind = guess_format(path)
    if kind == "ctf":
        from feedline.feed.formats.ctf import CTFDeserializer

        return CTFDeserializer(path, streams or infer_ctf_streams(path), memory=memory)
    if kind == "csv":
        raise DataError(
            "expected a format that can be fed from, got CSV",
            path=os.fspath(path),
            hint="convert it first: fl.convert(path, 'corpus')",
        )
    if kind == "parquet":
        from feedline.feed.formats.parquet import ParquetDeserializer

        return ParquetDeserializer(path, streams or None, memory=memory)
    corpus: Deserializer
    if kind == "store":
        corpus = StoreDeserializer(path, list(streams) or None)
    else:
        corpus = _open_numpy(Path(path), kind, streams, memory)
    _check_declared(corpus, streams)
    return corpus


def _open_numpy(path: Path, kind: str, streams: Mapping[str, Stream], memory: int) -> ArrayDeserializer:
    files = sorted(path.glob("*.npy"), key=os.fsencode) if kind == "npy folder" else [path]
    arrays: dict[str, Any] = {}
    for file in files:
        with open_file(file, -1) as opened:
            try:
                if kind == "npz":
                    arrays.update(_load_npz(opened, streams, memory))
                else:
                    # By its name, as a map takes a file's descriptor only together with it.
                    arrays["x" if kind == "npy" else file.stem] = np.load(file, mmap_mode="r", allow_pickle=False)
            except _TooLargeError as error:
                raise DataError(
                    str(error), path=str(file), hint="raise memory=, or save it as .npy files, which are mapped"
                ) from None
            except Exception as error:  # NumPy lets whatever zipfile, zlib and its own parser raise through
                raise DataError(f"expected arrays of numbers: {error}", path=str(file)) from error
    if missing := [name for name in streams if name not in arrays]:
        raise SchemaError(f"expected the arrays {', '.join(missing)} in {path}, which has {', '.join(arrays)}")
    size = next((name for name, stream in streams.items() if stream.defines_size), None)
    corpus = ArrayDeserializer({name: arrays[name] for name in streams or arrays}, defines_size=size)
    corpus.name = str(path)
    return corpus


class _TooLargeError(Exception):
    pass


def _load_npz(file: BinaryIO, names: Collection[str], memory: int) -> dict[str, NDArray[Any] | None]:
    """The arrays ``names``, or all, of a file that may hold far more than its own size; None for the others."""
    with np.load(file, allow_pickle=False) as found:
        # No more than this is decompressed, whatever the arrays' own headers say.
        sizes = {info.filename.removesuffix(".npy"): info.file_size for info in found.zip.infolist()}
        wanted = [name for name in found.files if not names or name in names]
        total = sum(sizes[name] for name in wanted)
        if total > memory:
            raise _TooLargeError(
                f"expected at most {memory} bytes when loaded (memory), got {total} in {', '.join(wanted)}"
            )
        return {name: found[name] if name in wanted else None for name in found.files}


def _check_declared(corpus: Deserializer, streams: Mapping[str, Stream]) -> None:
    for name, stream in streams.items():
        found = corpus.schema[name]
        if (found.shape, found.dtype, found.sparse) != (stream.shape, stream.dtype, stream.sparse):
            raise SchemaError(f"expected {stream} for stream `{name}`, got {found} in {corpus.name}")


def _read_all(
    source: Deserializer | str | os.PathLike[str], streams: Mapping[str, Any] | None, memory: int, start: int = 0
) -> Iterator[tuple[Chunk, int, int]]:
    """All chunks from number ``start`` on, with the stored bytes read so far and in all."""
    if isinstance(source, Deserializer):
        if streams is not None:
            raise ValueError("expected streams for a path only; this deserializer has declared its own")
        yield from _chunks(source, start)
    elif guess_format(source) == "csv":
        total = os.path.getsize(source)
        read = 0

        def count(done: int) -> None:
            nonlocal read
            read = done

        for chunk in itertools.islice(read_csv_chunks(source, streams, on_block=count), start, None):
            yield chunk, min(read, total), total
    else:
        corpus = open_corpus(source, memory=max(memory, CHUNK_MEMORY), **(streams or {}))
        try:
            yield from _chunks(corpus, start)
        finally:
            corpus.close()


def _chunks(corpus: Deserializer, start: int) -> Iterator[tuple[Chunk, int, int]]:
    if not corpus.sized:
        count = corpus.num_chunks()
        for i in range(start, count):
            yield corpus.read(i), i + 1, count
        return
    table = corpus.chunks()
    total = sum(info.bytes for info in table)
    done = 0
    for i, info in enumerate(table):
        done += info.bytes
        if i >= start:
            yield corpus.read(i), done, total
