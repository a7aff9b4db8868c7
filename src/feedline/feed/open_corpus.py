"""Open files of any format as a corpus. `formats.detect` recognises the format."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from feedline.data import Stream
from feedline.errors import SchemaError
from feedline.feed.arguments import Remote, refuse_replaced
from feedline.feed.formats.detect import recognise
from feedline.feed.formats.opening import Stores, check_streams, through
from feedline.feed.formats.widening import SchemaRule
from feedline.feed.protocol import CHUNK_MEMORY, Deserializer, whole_number
from feedline.feed.remote.address_text import is_address, without_file

What = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A path, a pattern, or a list of these."""


def names_files(value: Any) -> TypeGuard[What]:
    """Return whether a value is a path, a pattern or a list of these, rather than data."""
    parts = value if isinstance(value, (list, tuple)) and value else [value]
    return all(isinstance(part, (str, os.PathLike)) for part in parts)


@refuse_replaced(
    cache="remote=fl.Remote(cache)",
    cache_bytes="remote=fl.Remote(cache_bytes=...)",
    storage_options="remote=fl.Remote(storage_options=...)",
    deadline_s="remote=fl.Remote(deadline_s=...)",
)
def open_corpus(
    what: What,
    *,
    streams: Mapping[str, Stream | str | Sequence[str]] | None = None,
    memory: int = CHUNK_MEMORY,
    remote: Remote | None = None,
    schema: SchemaRule = "strict",
) -> Deserializer:
    """Return a deserializer for the files at a path or an address, in any format.

    The format is recognised by the first bytes or, if these are ambiguous, by the suffix.

    ==============================  ================================================================
    format                          streams
    ==============================  ================================================================
    store (a folder)                as written
    Arrow, Hugging Face's datasets  columns, see `ArrowDeserializer`
    folder of class folders         ``image`` and ``label``, see `ImageFolderDeserializer`
    image map, base64 file          the same, see `ImageMapDeserializer`, `Base64ImageDeserializer`
    Parquet                         columns, see `ParquetDeserializer`
    LeRobot (a folder)              features, see `LeRobotDeserializer`
    Lance (a folder)                columns, see `LanceDeserializer`
    ``.npz``, folder of ``.npy``    one stream per array, one sample per sequence
    ``.npy``                        one stream ``x``
    HDF5                            datasets of the root, see `HDF5Deserializer`
    Zarr (a folder or ``.zip``)     arrays of the root, see `ZarrDeserializer`
    tar (WebDataset), also packed   suffixes of the first sample, see `TarDeserializer`
    MDS (a folder)                  its columns, see `MDSDeserializer`
    LitData (a folder)              the leaves of its samples, see `LitDataDeserializer`
    TFRecord, also packed           inferred from the first records, see `TFRecordDeserializer`
    RecordIO (MXNet)                ``label`` and ``image``, see `RecordIODeserializer`
    ArrayRecord (Grain)             ``record``, bytes, see `ArrayRecordDeserializer`
    tokens (``.bin``, Megatron)     one, declared: ``{"tokens": fl.Stream(1024, "uint16")}``
    Lhotse's cuts, Shar, NeMo's      ``audio``, ``text``, ``duration``, ``id``, see `LhotseDeserializer`
    MP4, Matroska, WebM             ``frame``, ``video``, ``time``, see `feedline.video.VideoDeserializer`
    JSON Lines, also packed         inferred from the first rows, see `JSONLinesDeserializer`
    CSV, also packed                one per column, see `CSVDeserializer`
    CTF                             inferred from the first lines, see `infer_ctf_streams`
    CBF                             as the file describes them
    HTK features (``.scp``)         ``features``, a frame each, see `HTKFeatureDeserializer`
    HTK labels (MLF)                as declared, without a list of states see `MLFDeserializer`
    YAML, or JSON with `mixture`    streams of the mixture that it describes, see `Mixture`
    ==============================  ================================================================

    Installed packages may add formats (`Format`), for files that none of these recognises.

    Args:
        what: a file or folder, a pattern, or a list of these, kept in order. A pattern has ``*`` or ``**``, sorted by
            the bytes of relative paths, or braces, ``train-{000..099}.parquet`` or ``{a,b}``, in that order. ``.npy``
            files and stores are mapped, ``.npz`` is loaded.
        streams: declarations by name. None: as in the table. Text is read with exactly these. For other formats they
            select streams, which must match. Streams of CSV may also be the name of a column, or a list of names.
        memory: bytes that a decoded chunk of text, Parquet or compressed Arrow, or all arrays of an ``.npz`` file
            together, may take.
        remote: settings of the object store for addresses such as ``s3://bucket/train/*.tar``. None: as `Remote()`.
        schema: ``"union"`` takes files of Parquet, Arrow, JSON Lines or CSV whose schemas differ, see
            `ParquetDeserializer`.

    Raises:
        DataError: no file is found, its format is unknown or not supported, files are of several formats, or one is
            damaged.
        SchemaError: a stream is missing or not as declared.
        FeedlineError: an installed package adds an object that is no `Format`, or whose name is taken.
        TypeError: ``streams`` is no mapping.
        ValueError: ``cache_bytes`` is less than 64 MiB, or ``schema`` is unknown or does not fit the format.
    """
    if not (streams is None or isinstance(streams, Mapping)):
        raise TypeError(f"expected streams as a mapping from names to declarations, got {streams!r}")
    whole_number("memory", memory, 1)
    stores = Stores(remote or Remote())
    declared: dict[str, Any] = dict(streams or {})
    with through(stores):
        if is_address(what):
            # Files on disk need no code for object stores.
            from feedline.feed.formats.remote_corpus import open_addresses

            corpus: Deserializer = open_addresses(without_file(what), declared, memory, schema)
        else:
            form, paths = recognise(without_file(what))
            if form.name != "csv":
                check_streams(declared)
            corpus = form.open(paths, declared, memory, schema)
    if not stores.used and remote is not None:
        corpus.close()
        raise ValueError("expected an address for remote=, got paths")
    for name, stream in declared.items():
        if not isinstance(stream, Stream):
            continue  # columns of CSV
        actual = corpus.schema[name]
        if (actual.shape, actual.dtype, actual.sparse) != (stream.shape, stream.dtype, stream.sparse):
            raise SchemaError(f"expected {stream} for stream `{name}`, got {actual} in {corpus.name}")
    return corpus
