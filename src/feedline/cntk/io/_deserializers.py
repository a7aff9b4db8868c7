"""Configurations of readers, and the corresponding feedline corpora.

Text, CNTK's binary format, HTK features with labels, and pictures are read. Other readers raise errors that name a
replacement.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from feedline.cntk import cntk_py
from feedline.cntk._names import NAMES, explain
from feedline.cntk.io import _images, _speech
from feedline.cntk.io._images import Base64ImageDeserializer, ImageDeserializer
from feedline.cntk.io._speech import HTKFeatureDeserializer, HTKMLFDeserializer
from feedline.cntk.io._streams import StreamConfiguration
from feedline.data import Stream
from feedline.errors import CompatError
from feedline.feed.formats.cntk.cbf import CBFDeserializer as BinaryCorpus
from feedline.feed.formats.cntk.ctf import CTFDeserializer as TextCorpus
from feedline.feed.protocol import Deserializer

_log = logging.getLogger("feedline")
_ABSENT = NAMES["cntk.io"].absent
__all__ = [
    "Base64ImageDeserializer",
    "CBFDeserializer",
    "CTFDeserializer",
    "HTKFeatureDeserializer",
    "HTKMLFDeserializer",
    "ImageDeserializer",
    *_ABSENT,
]

_CTF = "CNTKTextFormatDeserializer"
_CBF = "CNTKBinaryFormatDeserializer"
_FIXED = {"type", "module", "file", "input"}
_OPTIONS = {"cacheIndex", "skipSequenceIds", "maxErrors", "chunkSizeInBytes"}


def CTFDeserializer(filename: str, streams: Mapping[str, Any]) -> cntk_py.Dictionary:
    """Return the configuration of a reader of CNTK text.

    Args:
        filename: path of the file.
        streams: mapping from stream names to `StreamDef`.

    Raises:
        ValueError: a stream without ``field``.
        AttributeError: a stream without ``shape``.
        NotImplementedError: a shape that is not an int.
    """
    for name, stream in streams.items():
        if stream.stream_alias is None:
            raise ValueError(f"expected the name of stream `{name}` in the file, got none: write StreamDef(field=...)")
    return cntk_py.ctf_deserializer(
        filename,
        [
            StreamConfiguration(name, stream.dim, stream.is_sparse, stream.stream_alias, stream["defines_mb_size"])
            for name, stream in streams.items()
        ],
    )


def CBFDeserializer(filename: str, streams: Mapping[str, Any] | None = None) -> cntk_py.Dictionary:
    """Return the configuration of a reader of CNTK's binary format.

    Args:
        filename: path of the file.
        streams: mapping from names to `StreamDef`, whose ``field`` is the stream's name in the file. The file has the
            other settings. Streams that are not listed keep their names. As in CNTK, definitions of streams that the
            file does not have are passed over.
    """
    inputs = {
        name: cntk_py.Dictionary({"alias": stream.stream_alias or name}) for name, stream in (streams or {}).items()
    }
    return cntk_py.Dictionary(
        {"type": _CBF, "module": "CNTKBinaryReader", "file": str(filename), "input": cntk_py.Dictionary(inputs)}
    )


def corpora_of(config: Any, max_errors: int, frames: bool, first: bool, randomizes: bool) -> list[Deserializer]:
    """Create the corpora that a configuration describes, to be joined. Open and index their files.

    Args:
        config: dictionary as returned by `CTFDeserializer` and others.
        max_errors: number of errors to tolerate in text, unless the configuration sets it.
        frames: whether to split sequences into frames.
        first: whether it determines the order.
        randomizes: whether the order is random.

    Raises:
        TypeError: not a dictionary.
        RuntimeError: a reader at a position that CNTK does not allow for it.
        CompatError: an unsupported reader or option.
    """
    if not isinstance(config, Mapping):
        raise TypeError(f"expected a deserializer, got {type(config).__name__}; make one with cntk.io.CTFDeserializer")
    kind = config.get("type")
    if kind == _CTF:
        return [_text(config, max_errors)]
    if kind == _CBF:
        if not first:
            raise RuntimeError(
                "expected CBFDeserializer as the first deserializer: its sequences have no keys to look up"
            )
        return [_binary(config)]
    if kind == _speech.FEATURES:
        return _speech.feature_corpora(config)
    if kind == _speech.LABELS:
        if first:
            raise RuntimeError(
                "MLFDeserializer currently does not support primary mode: give the features first, then the labels"
            )
        return _speech.label_corpora(config, frames)
    if kind in (_images.MAP, _images.BASE64):
        return _images.image_corpora(config, randomizes)
    types = (_CTF, _CBF, _speech.FEATURES, _speech.LABELS, _images.MAP, _images.BASE64)
    raise CompatError(f"expected a reader of type {', '.join(types)}, got {kind!r}; or write an fl.UserDeserializer")


def _binary(config: Mapping[str, Any]) -> BinaryCorpus:
    # CNTK's order shuffles the file's own chunks.
    names = {settings["alias"]: name for name, settings in config["input"].items()}
    file = BinaryCorpus([config["file"]], chunk_size=0)
    for alias in names.keys() - set(file.schema):
        _log.warning("%s: no stream %r, so its definition is passed over, as in CNTK 2.7", config["file"], alias)
    streams = {
        names.get(name, name): Stream(stream.shape, "float32", stream.sparse, field=name)
        for name, stream in file.schema.items()
    }
    if any(stream.dtype != "float32" for stream in file.schema.values()):
        raise RuntimeError(
            f"expected float32 in {config['file']}, got float64: precision of reader and file must match; write it "
            "again as float32, or read it with fl.CBFDeserializer, which converts"
        )
    return BinaryCorpus([config["file"]], streams, chunk_size=0)


def _text(config: Mapping[str, Any], max_errors: int) -> TextCorpus:
    unknown = config.keys() - _FIXED - _OPTIONS
    if unknown:
        raise CompatError(
            f"expected the options {', '.join(sorted(_OPTIONS))} of a text reader, got {', '.join(sorted(unknown))}"
        )
    try:
        streams = {
            name: Stream(
                int(settings["dim"]),
                sparse=settings["format"] == "sparse",
                field=settings["alias"],
                defines_size=bool(settings["definesMBSize"]),
            )
            for name, settings in config["input"].items()
        }
        file = config["file"]
    except (KeyError, AttributeError, TypeError, OverflowError) as error:
        flaw = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(
            f"expected a file, and inputs with dim, format, alias and definesMBSize, got a configuration with {flaw}; "
            "create it with cntk.io.CTFDeserializer"
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
    function.__doc__ = "Raise CompatError, which names a replacement, as feedline has no such reader."
    return function


# Scripts import readers that they do not always call.
globals().update({name: _absent(name) for name in _ABSENT})
