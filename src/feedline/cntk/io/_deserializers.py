"""Configurations of readers, and the feedline corpora they stand for.

Text is read; binary, image and speech formats are not, and say what to use instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from feedline.cntk import cntk_py
from feedline.cntk._names import explain
from feedline.cntk.io._streams import StreamConfiguration
from feedline.data import Stream
from feedline.errors import CompatError
from feedline.feed.formats.ctf import CTFDeserializer as TextCorpus

__all__ = [
    "Base64ImageDeserializer",
    "CBFDeserializer",
    "CTFDeserializer",
    "HTKFeatureDeserializer",
    "HTKMLFBinaryDeserializer",
    "HTKMLFDeserializer",
    "ImageDeserializer",
    "LatticeDeserializer",
]

_CTF = "CNTKTextFormatDeserializer"
_FIXED = {"type", "module", "file", "input"}
_OPTIONS = {"cacheIndex", "skipSequenceIds", "maxErrors", "chunkSizeInBytes"}


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
        raise CompatError(
            f"expected a reader of type {_CTF!r}, got {config.get('type')!r}: decode images in transforms=[...] of "
            "fl.MinibatchSource over a store or Parquet, or write a fl.UserDeserializer"
        )
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


def _absent(name: str) -> Callable[..., NoReturn]:
    def function(*args: Any, **kwargs: Any) -> NoReturn:
        raise explain("cntk.io", name)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = "Raise CompatError, which says what to use: there is no such reader."
    return function


# Scripts import readers that they do not always call.
Base64ImageDeserializer = _absent("Base64ImageDeserializer")
CBFDeserializer = _absent("CBFDeserializer")
HTKFeatureDeserializer = _absent("HTKFeatureDeserializer")
HTKMLFBinaryDeserializer = _absent("HTKMLFBinaryDeserializer")
HTKMLFDeserializer = _absent("HTKMLFDeserializer")
ImageDeserializer = _absent("ImageDeserializer")
LatticeDeserializer = _absent("LatticeDeserializer")
