"""Configurations of readers, and the feedline corpora they stand for.

Text is read; binary, image and speech formats are not, and say what to use instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from feedline.cntk import cntk_py
from feedline.cntk.io._streams import StreamConfiguration
from feedline.data import Stream
from feedline.errors import CompatError
from feedline.feed.formats.ctf import CTFDeserializer as TextCorpus

_CTF = "CNTKTextFormatDeserializer"
_FIXED = {"type", "module", "file", "input"}
_OPTIONS = {"cacheIndex", "skipSequenceIds", "maxErrors", "chunkSizeInBytes"}
_IMAGES = (
    "put the encoded images into Parquet or a store (fl.ParquetDeserializer, fl.StoreDeserializer), or write a "
    "fl.UserDeserializer, and decode in transforms=[...] of fl.MinibatchSource"
)
_SPEECH = "write the features as arrays or a store (fl.ArrayDeserializer, fl.StoreWriter), or a fl.UserDeserializer"


def CTFDeserializer(filename: str, streams: Mapping[str, Any]) -> cntk_py.Dictionary:
    """The configuration of a reader of CNTK text.

    Args:
        filename: the file.
        streams: stream name to `StreamDef`.

    Raises:
        ValueError: a stream without ``field``.
        AttributeError: a stream without ``shape``.
        NotImplementedError: a shape that is no int.
    """
    for name, stream in streams.items():
        if stream.stream_alias is None:
            raise ValueError(f"expected the name in the file for stream `{name}`, got none: StreamDef(field=...)")
    return cntk_py.ctf_deserializer(
        filename,
        [
            StreamConfiguration(name, stream.dim, stream.is_sparse, stream.stream_alias, stream["defines_mb_size"])
            for name, stream in streams.items()
        ],
    )


def corpus_of(config: Any, max_errors: int) -> TextCorpus:
    """The corpus that a configuration stands for; opens and indexes the file.

    Args:
        config: a dictionary as `CTFDeserializer` makes it.
        max_errors: allowed errors where the configuration does not say.

    Raises:
        TypeError: not a dictionary.
        CompatError: a reader or an option that is not there.
    """
    if not isinstance(config, Mapping):
        raise TypeError(f"expected a deserializer, got {type(config).__name__}; make one with cntk.io.CTFDeserializer")
    if config.get("type") != _CTF:
        raise CompatError(f"expected a reader of type {_CTF!r}, got {config.get('type')!r}: {_IMAGES}")
    unknown = config.keys() - _FIXED - _OPTIONS
    if unknown:
        raise CompatError(
            f"expected the options {', '.join(sorted(_OPTIONS))} of a text reader, got {', '.join(sorted(unknown))}"
        )
    try:
        streams = {
            name: Stream(
                int(given["dim"]),
                sparse=given["format"] == "sparse",
                field=given["alias"],
                defines_size=bool(given["definesMBSize"]),
            )
            for name, given in config["input"].items()
        }
        file = config["file"]
    except (KeyError, AttributeError, TypeError, OverflowError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(
            f"expected a file, and inputs with dim, format, alias and definesMBSize, got a configuration with {what}; "
            "make it with cntk.io.CTFDeserializer"
        ) from error
    return TextCorpus(
        [file],
        streams,
        fill_missing=True,  # CNTK's rule
        skip_sequence_ids=bool(config.get("skipSequenceIds", False)),
        max_errors=int(config.get("maxErrors", max_errors)),
        chunk_size=int(config.get("chunkSizeInBytes", 32 << 20)),
        cache=bool(config.get("cacheIndex", False)),
    )


def _absent(name: str, instead: str) -> NoReturn:
    raise CompatError(f"cntk.io.{name} is not there: {instead}")


def CBFDeserializer(filename: str, streams: Mapping[str, Any] | None = None) -> NoReturn:
    """Absent; raises CompatError."""
    _absent(
        "CBFDeserializer",
        "binary files were made from text; read that with cntk.io.CTFDeserializer, or `feedline convert` it to a store",
    )


def ImageDeserializer(filename: str, streams: Mapping[str, Any]) -> NoReturn:
    """Absent; raises CompatError."""
    _absent("ImageDeserializer", _IMAGES)


def Base64ImageDeserializer(filename: str, streams: Mapping[str, Any]) -> NoReturn:
    """Absent; raises CompatError."""
    _absent("Base64ImageDeserializer", _IMAGES)


def HTKFeatureDeserializer(streams: Mapping[str, Any]) -> NoReturn:
    """Absent; raises CompatError."""
    _absent("HTKFeatureDeserializer", _SPEECH)


def HTKMLFDeserializer(label_mapping_file: str, streams: Mapping[str, Any], phoneBoundaries: bool = False) -> NoReturn:
    """Absent; raises CompatError."""
    _absent("HTKMLFDeserializer", _SPEECH)


def HTKMLFBinaryDeserializer(streams: Mapping[str, Any]) -> NoReturn:
    """Absent; raises CompatError."""
    _absent("HTKMLFBinaryDeserializer", _SPEECH)


def LatticeDeserializer(lattice_index_file: str, streams: Mapping[str, Any]) -> NoReturn:
    """Absent; raises CompatError."""
    _absent("LatticeDeserializer", _SPEECH)
