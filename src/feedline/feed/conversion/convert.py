"""Convert any corpus or dataset to a store.

Conversion streams chunk by chunk: memory is bounded by one chunk of the source per job and one of the store or, if the
store is shuffled, by a budget. The complete parts of an interrupted conversion are kept for the next call.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from feedline.data import Chunk, Schema
from feedline.errors import DataError, SchemaError
from feedline.feed.arguments import Remote, refuse_replaced
from feedline.feed.composed.skipping import Paths, Skipping, lists
from feedline.feed.conversion.appending import append_store
from feedline.feed.conversion.read_ahead import read_ahead
from feedline.feed.conversion.reading_by_ray import read_by_ray
from feedline.feed.conversion.shuffling import Settings, readable, write_shuffled
from feedline.feed.conversion.unfinished import DONE, unfinished
from feedline.feed.files.digest import ContentDigest
from feedline.feed.files.paths import PathLike
from feedline.feed.formats.detect import SUFFIXES
from feedline.feed.formats.store import stream_columns
from feedline.feed.formats.store.compressed import CODECS
from feedline.feed.formats.store.journal import Journal
from feedline.feed.formats.store.manifest import Manifest
from feedline.feed.formats.store.object_store_target import ObjectStoreFolder
from feedline.feed.formats.store.staging import clear_leftovers
from feedline.feed.formats.store.store_reader import StoreDeserializer
from feedline.feed.formats.store.targets import LocalFolder, Target
from feedline.feed.formats.store.writer import StoreWriter
from feedline.feed.open_corpus import names_files, open_corpus
from feedline.feed.progress_bar import Progress, Report, showing
from feedline.feed.protocol import CHUNK_MEMORY, Deserializer, Ordered, is_sized, num_chunks, whole_number
from feedline.feed.remote.address_text import is_address, without_credentials, without_file
from feedline.feed.remote.requests import Patience

_PIECE_BYTES = 4 << 20


# The counterpart of `_CorpusReader` for datasets, called with (dataset, streams, jobs=, executor=, skip=). By its name,
# as it belongs to the loader, a higher layer than this module.
_DATASET_READER = "feedline.feed.loader.dataset_chunks:DatasetChunks"


class ConversionSummary(NamedTuple):
    """The result of a conversion.

    Attributes:
        path: path of the store.
        schema: its streams.
        sequences: number of sequences written.
        samples: number of samples written, as the minibatch budget counts them.
        bytes: bytes of the store's data files.
        skipped: number of unreadable sequences skipped.
    """

    path: str
    schema: Schema
    sequences: int
    samples: int
    bytes: int
    skipped: int

    def __repr__(self) -> str:
        return (
            f"ConversionSummary({self.path!r}: {', '.join(self.schema)}; {self.sequences} sequences, "
            f"{self.samples} samples, {self.bytes} bytes, {self.skipped} skipped)"
        )


@refuse_replaced(storage_options="remote=fl.Remote(storage_options=...)", deadline_s="remote=fl.Remote(deadline_s=...)")
def convert(
    source: Any,
    destination: PathLike,
    *,
    streams: Mapping[str, Any] | Sequence[str] | None = None,
    jobs: int = 1,
    executor: Literal["local", "ray"] = "local",
    progress: Progress = None,
    overwrite: bool = False,
    on_error: Literal["raise", "skip"] = "raise",
    skip: Paths | None = None,
    chunk_bytes: int | None = None,
    part_bytes: int = 1 << 30,
    compression: str | None = None,
    shuffle: int | None = None,
    memory: int = 1 << 30,
    remote: Remote | None = None,
    work: PathLike | None = None,
    append: bool = False,
) -> ConversionSummary:
    """Write all sequences of a corpus, or all items of a dataset, to a new store.

    Each item of a dataset becomes a sequence. The order stays. The parts of a sample become streams: keys
    of a dictionary, fields of a named tuple, the places of a tuple ("0", "1", ...), ``"box.size"`` for nested parts,
    "x" for a sample that is one array. Numbers, arrays, tensors and lists of numbers keep their shape and dtype. Texts
    and byte strings are stored unchanged. An array whose first dimension differs between items becomes a sequence of
    that many samples. The stream of a part is inferred from some items, spread over the dataset. An item that differs
    from them is an error that names item and stream. A list of texts alone is taken for a list of paths.

    Args:
        source: a deserializer, a path as for `open_corpus`, or a dataset: of torch or Hugging Face, a sequence of
            samples, or an iterable.
        destination: folder to create, which appears once everything is written. Or the address of a folder in an object
            store, ``s3://bucket/folder``: each file is sent as soon as it is complete, and its local copy removed, and
            the manifest comes last. The bytes are the same.
        streams: with a path: its streams, see `open_corpus`, with CSV also columns, see `CSVDeserializer`. With a
            dataset: names for the parts of a tuple, in order, the names of the parts to store, or a mapping from names
            to declarations, or to None for streams to infer.
        jobs: number of threads that read chunks of a corpus, each holding one, or of worker processes that read items
            of a dataset that can be indexed. 1: none. The store is the same for any number, even with random
            augmentation.
        executor: where chunks or items are read: ``"local"``, or by ``jobs`` workers of ``"ray"``, on any machine of
            its cluster. If a worker or a machine dies, another reads its chunk or item again. The store is the same,
            and one executor may continue work that another has begun.
        progress: called as ``progress(done, total)`` after each chunk: in stored bytes of the source, or in items of a
            dataset (a total of 0: unknown). True: shown on stderr, as a bar or, where it is no terminal, in lines.
        overwrite: whether to replace a store of that name.
        on_error: ``"raise"`` at the first unreadable sequence, or ``"skip"`` unreadable sequences: the store is then
            another corpus, with other ordinals, and `ConversionSummary.skipped` counts them.
        skip: quarantine file, or several, of sequences of a corpus to leave out. They are counted, too.
        chunk_bytes: bytes of rows in one chunk of the store. None: 32 MiB, or 4 MiB if compressed.
        part_bytes: size in bytes at which the store begins another file.
        compression: compression of the store's chunks: ``"lz4"``, ``"zstd"``, ``"auto"`` or None, see
            `StoreWriter`.
        shuffle: None keeps the order of the corpus. A seed, 0 <= seed < 2**64, gives a random order, so that reading
            the store sequentially, at the speed of the disk, is a good shuffle. This writes the data twice, and needs
            twice its space meanwhile. If it is interrupted or killed, the same call continues where it stopped.
        memory: bytes that shuffling may hold. Above 2 GiB, also passed to `open_corpus` for a path.
        remote: how to reach the object store of an address as source or destination. None: as `Remote()`. The deadline
            is extended by a second for each MiB of a file to write.
        work: with an address as destination, the folder of this machine for files on their way and for the records that
            let the same call continue. None: ``converting`` in the user's cache folder. It needs room for three files
            of ``part_bytes`` or, with ``shuffle``, for all data twice.
        append: whether to write behind the sequences of a store of that name, if there is one. Its files stay, its
            compression holds for the new ones, and the store appears with both at once. A state of the shorter store
            can be loaded. After a kill, the same call appends once. Not for addresses.

    After an interrupt, an error or a kill, the same call continues after the last complete part, or the last complete
    piece of a shuffle's passes. If there is none, nothing is kept. A hidden folder next to the destination,
    ``.NAME.converting``, holds that work (with an address, a folder in ``work``), and an exception names it.

    Raises:
        DataError: a sequence or chunk is unreadable, the disk is full, or another process converts to the same name.
        FileExistsError: the name is taken.
        SchemaError: samples of a dataset cannot be stored, or differ in their parts, shapes or dtypes.
        TypeError: the source cannot be read.
        ValueError: the destination is named like a file of another format, or is inside the source folder, or the
            source is a corpus with an order, such as a mixture. Or ``append`` with ``overwrite``, an address, or
            another compression than the store's.
    """
    if isinstance(destination, str):
        destination = without_file(destination)
    kind = SUFFIXES.get(Path(destination).suffix.lower())
    if kind is not None:
        raise ValueError(
            f"expected the name of a folder for the store, got {os.fspath(destination)!r}, which names "
            f"{kind.description}; fl.convert writes only stores (docs/formats/store.md shows how to convert a store "
            "to other formats)"
        )
    _refuse_inside(source, destination)
    if append and is_address(destination):
        raise ValueError(
            f"expected a path with append=True, got the address {without_credentials(os.fspath(destination))!r}: "
            "object stores cannot replace several objects at once. Convert the new data to another address, and open "
            "fl.Concat(fl.open_corpus(first), fl.open_corpus(second)), which continues states of the first"
        )
    if append and overwrite:
        raise ValueError(f"expected no overwrite with append=True, got it for {os.fspath(destination)!r}")
    if append:
        destination = os.path.realpath(destination)  # the store itself is replaced, not a link to it
        clear_leftovers(Path(os.path.abspath(destination)))  # may restore the store
    grows = append and os.path.lexists(destination)
    if grows:
        stored = Manifest.load(Path(destination))
        if compression not in (None, stored.compression):
            raise ValueError(f"expected the compression of the store, {stored.compression}, got {compression!r}")
        compression = stored.compression
    if on_error not in ("raise", "skip"):
        raise ValueError(f"expected on_error 'raise' or 'skip', got {on_error!r}")
    if compression not in (None, "auto", *CODECS):
        raise ValueError(f"expected a compression of {', '.join(CODECS)}, auto or None, got {compression!r}")
    if shuffle is not None and whole_number("shuffle", shuffle, 0) >= 2**64:
        raise ValueError(f"expected a seed below 2**64 as shuffle, got {shuffle}")
    settings = Settings(
        source="",
        seed=None if shuffle is None else whole_number("shuffle", shuffle, 0),
        memory=whole_number("memory", memory, 1),
        chunk_bytes=None if chunk_bytes is None else whole_number("chunk_bytes", chunk_bytes, 1),
        part_bytes=whole_number("part_bytes", part_bytes, 1),
        compression=compression,
        on_error=on_error,
    )
    if executor not in ("local", "ray"):
        raise ValueError(f"expected executor 'local' or 'ray', got {executor!r}")
    jobs = whole_number("jobs", jobs, 1)
    target = _target(source, destination, remote, work)
    with contextlib.ExitStack() as stack:
        is_corpus = isinstance(source, Deserializer) or names_files(source)
        if is_corpus:
            if not (streams is None or isinstance(streams, Mapping)):
                raise TypeError(
                    f"expected streams as a mapping, got {streams!r}; a list of names is only for a dataset of items"
                )
            if isinstance(source, Deserializer):
                if streams is not None:
                    raise ValueError("expected streams= only with a path, got a deserializer, which declares its own")
                corpus = source
            else:
                memory = max(settings.memory, CHUNK_MEMORY)
                options = remote if is_address(source) else None
                corpus = open_corpus(source, streams=streams, memory=memory, remote=options)
                stack.enter_context(contextlib.closing(corpus))
            reader = _CorpusReader(corpus, jobs, executor, skip)
        else:
            if skip is not None:
                raise ValueError("expected skip= only with a corpus, got it with a dataset of items")
            if not grows:
                target.refuse_existing(overwrite)  # before items are read
            module, _, name = _DATASET_READER.partition(":")
            make = getattr(importlib.import_module(module), name)
            reader = make(source, streams, jobs=jobs, executor=executor, skip=on_error == "skip")
        settings = settings._replace(source=reader.digest())
        write = _in_order if shuffle is None else write_shuffled
        report = stack.enter_context(showing(progress, "converting", "B" if is_corpus else "items"))
        if grows:
            if is_corpus:
                _refuse_other_streams(stored, corpus.schema, os.fspath(destination))
            parts = functools.partial(write, reader.chunks, settings=settings, overwrite=True, progress=report)
            manifest, skipped = append_store(
                target.local_path, settings._asdict() | {"memory": None}, lambda path: parts(target=LocalFolder(path))
            )
        else:
            manifest, skipped = write(reader.chunks, target, settings, overwrite=overwrite, progress=report)
    size = sum(part.bytes for part in manifest.parts) + sum(side.bytes for side in manifest.lengths.values())
    return ConversionSummary(
        without_credentials(os.fspath(destination)) if is_address(destination) else os.fspath(destination),
        schema=manifest.schema,
        sequences=manifest.sequences,
        samples=manifest.samples,
        bytes=size,
        skipped=skipped,
    )


def _in_order(
    chunks: Callable[[int], Generator[tuple[Chunk, int, int]]],
    target: Target,
    settings: Settings,
    *,
    overwrite: bool,
    progress: Report | None,
) -> tuple[Manifest, int]:
    """Write all sequences of ``chunks`` to a new store, like `write_shuffled`, but in the order of the corpus."""
    plan = settings._asdict() | {"memory": None}  # parts have the same bytes for any budget, which may change
    with unfinished(target, plan, overwrite=overwrite) as work, contextlib.ExitStack() as stack:
        journal = Journal(work, target, DONE)
        start, written, skipped = journal.progress
        sequences = journal.records[-1].sequences - written if journal.records else 0
        writer: StoreWriter | None = None
        # Closed here, as a traceback would keep the workers alive.
        reading = stack.enter_context(contextlib.closing(chunks(start)))
        ordinal = sequences + skipped
        for number, (chunk, done, total) in enumerate(reading, start):
            if writer is None:
                writer = StoreWriter(
                    target.name,
                    chunk.schema,
                    chunk_bytes=settings.chunk_bytes,
                    part_bytes=settings.part_bytes,
                    overwrite=overwrite,
                    compression=settings.compression,
                    journal=journal,
                )
                stack.callback(writer.abort)
            journal.begin_chunk(number, sequences, skipped)
            # Copied piece by piece, as copying checks the entries of views of a mapped file.
            for piece in chunk.pieces(_PIECE_BYTES):
                ordinal += piece.num_sequences
                skipped += len(piece.errors)
                piece = readable(piece, settings.on_error, ordinal - piece.num_sequences)
                sequences += piece.num_sequences
                if written:  # in the first chunk after an interrupt
                    present = min(written, piece.num_sequences)
                    written -= present
                    piece = piece.slice(present, piece.num_sequences)
                writer.write(piece)
            if progress is not None:
                progress(done, total)
        if writer is None:
            raise DataError("expected at least one chunk to convert, got none")
        writer.close()
        assert writer.manifest is not None
        return writer.manifest, skipped


def _refuse_other_streams(stored: Manifest, schema: Schema, path: str) -> None:
    """Check that a corpus has the streams of a store.

    Raises:
        SchemaError: it has others.
    """
    ours = Schema({name: stream_columns.stored_stream(name, stream) for name, stream in schema.items()})
    if ours.digest != stored.schema.digest:
        raise SchemaError(f"expected the streams of the store {path} to append to it,\n{stored.schema}\ngot\n{ours}")


def _refuse_inside(source: Any, destination: PathLike) -> None:
    """Refuse a destination inside the source folder, where the next reader of the source would find the store."""
    if not isinstance(source, StoreDeserializer) and not names_files(source):
        return
    if isinstance(source, Deserializer):
        places: list[PathLike] = [source.name]
    else:
        places = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    if is_address(destination):
        address = os.fspath(destination).rstrip("/")
        for place in places:
            if is_address(place) and f"{address}/".startswith(f"{os.fspath(place).rstrip('/')}/"):
                raise ValueError(
                    f"expected a destination outside the data to read, got {without_credentials(address)}, which is "
                    f"in {without_credentials(os.fspath(place))}; choose another place for the store"
                )
        return
    for folder in map(Path, map(os.path.realpath, places)):
        if not folder.is_dir() or folder not in Path(os.path.realpath(destination)).parents:
            continue
        raise ValueError(
            f"expected a destination outside the data to read, got {os.fspath(destination)!r}, which is in {folder}; "
            "choose another place for the store"
        )


def _target(source: Any, destination: PathLike, remote: Remote | None, work: PathLike | None) -> Target:
    if is_address(destination):
        remote = remote or Remote()
        patience = Patience.until(remote.deadline_s)
        return ObjectStoreFolder(os.fspath(destination), remote.storage_options or {}, patience, work)
    if work is not None:
        raise ValueError("expected work= only with an address, got a destination path: unfinished work is next to it")
    if remote is not None and not (names_files(source) and is_address(source)):
        raise ValueError("expected remote= only with an address as source or destination, got none")
    return LocalFolder(destination)


class _CorpusReader:
    """A corpus, without the sequences that ``skip`` lists, read in order by threads or workers.

    Raises:
        ValueError: the corpus has an order, such as a mixture.
    """

    def __init__(self, corpus: Deserializer, jobs: int, executor: str, skip: Paths | None) -> None:
        if corpus.capability(Ordered) is not None:
            raise ValueError(
                f"expected a corpus without an order of its own to convert, got {corpus.name}: convert its parts, and "
                "mix, pack or bucket the stores"
            )
        self._corpus = corpus if skip is None else Skipping(corpus, skip)
        self._jobs, self._executor = jobs, executor

    def digest(self) -> str:
        """Return a text that identifies the content and its chunks."""
        content = ContentDigest()
        content.numbers(num_chunks(self._corpus))
        if is_sized(self._corpus):
            content.numbers(*(info.sequences for info in self._corpus.chunks()))
        for listed in lists(self._corpus):
            content.numbers(*listed.tolist())
        # The whole schema, as its digest leaves out the fields of the streams.
        return f"{self._corpus.digest()} {content.hexdigest()} {dict(self._corpus.schema)!r}"

    def chunks(self, start: int = 0) -> Generator[tuple[Chunk, int, int]]:
        """Yield the chunks from number ``start`` on, with the bytes or items done and in total (0: unknown)."""
        count = num_chunks(self._corpus)
        sizes = [info.bytes for info in self._corpus.chunks()] if is_sized(self._corpus) else [1] * count
        done, total = sum(sizes[:start]), sum(sizes)
        numbers = range(start, count)
        if self._executor == "ray":
            chunks = read_by_ray(self._corpus, numbers, self._jobs)
        else:
            chunks = read_ahead(self._corpus.read, numbers, self._jobs)
        with contextlib.closing(chunks) as reading:
            for chunk, size in zip(reading, sizes[start:], strict=True):
                done += size
                yield chunk, done, total
