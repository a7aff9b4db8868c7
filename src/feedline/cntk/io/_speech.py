"""CNTK's speech readers over feedline's: features of HTK files, and the labels of their frames.

CNTK 2.7 ignores ``defines_mb_size`` and ``max_sequence_length`` of these streams, because its readers look for them in
a different place than its Python writes them to. They have no effect here either, but a warning is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feedline.cntk import cntk_py
from feedline.data import Stream
from feedline.errors import DataError
from feedline.feed.files.paths import open_file
from feedline.feed.formats.cntk.htk import HTKFeatureDeserializer as Features
from feedline.feed.formats.cntk.mlf import MLFDeserializer as Labels
from feedline.feed.protocol import Deserializer

FEATURES, LABELS = "HTKFeatureDeserializer", "HTKMLFDeserializer"
_DEFAULT_LENGTH = 65535

_log = logging.getLogger("feedline")


def HTKFeatureDeserializer(streams: Mapping[str, Any]) -> cntk_py.Dictionary:
    """Return the configuration of a reader of HTK features.

    Args:
        streams: mapping from names to `StreamDef` with ``shape``, ``scp`` and, if any, ``context`` and ``broadcast``.

    Raises:
        ValueError: no stream, a stream with a ``field``, or a stream without ``scp``.
        AttributeError: a stream without ``shape``.
    """
    inputs = {}
    for name, stream in streams.items():
        if stream.stream_alias is not None:
            raise ValueError(f"expected no field for stream `{name}`, got one: HTK features have no stream names")
        if "scp" not in stream:
            raise ValueError(f"expected a script for stream `{name}`, got none: write StreamDef(scp=...)")
        left, right = stream.get("context", (0, 0))
        _warn_ignored(name, stream)
        inputs[name] = cntk_py.Dictionary(
            {
                "scpFile": str(stream["scp"]),
                "dim": stream.dim,
                "contextWindow": cntk_py.DictionaryValue([left, right]),
                "expandToUtterance": bool(stream.get("broadcast", False)),
                "definesMBSize": stream["defines_mb_size"],
                "maxSequenceLength": stream["max_sequence_length"],
            }
        )
    if not inputs:
        raise ValueError("expected at least one stream, got none")
    return cntk_py.Dictionary({"type": FEATURES, "module": "HTKDeserializers", "input": cntk_py.Dictionary(inputs)})


def HTKMLFDeserializer(
    label_mapping_file: str | None, streams: Mapping[str, Any], phoneBoundaries: bool = False
) -> cntk_py.Dictionary:
    """Return the configuration of a reader of the labels of HTK features.

    Args:
        label_mapping_file: path of the list of states, one per line. None means that labels are numbers.
        streams: mapping from a single name to a `StreamDef` with ``shape``, the number of states, and ``mlf``, a path
            or a list of paths.
        phoneBoundaries: whether the first frame of a state has the value 2.

    Raises:
        ValueError: not exactly one stream, a stream with a ``field``, or a stream without ``mlf``.
        AttributeError: a stream without ``shape``.
    """
    if len(streams) != 1:
        raise ValueError(f"expected exactly one stream of labels, got {len(streams)}: {', '.join(streams)}")
    ((name, stream),) = streams.items()
    if stream.stream_alias is not None:
        raise ValueError(f"expected no field for stream `{name}`, got one: labels have no stream names")
    if "mlf" not in stream:
        raise ValueError(f"expected a master label file for stream `{name}`, got none: write StreamDef(mlf=...)")
    files = stream["mlf"] if isinstance(stream["mlf"], (list, tuple)) else [stream["mlf"]]
    _warn_ignored(name, stream)
    labels = {
        "dim": stream.dim,
        "mlfFileList": cntk_py.DictionaryValue([str(file) for file in files]),
        "labelMappingFile": None if label_mapping_file is None else str(label_mapping_file),
        "phoneBoundaries": bool(phoneBoundaries),
    }
    return cntk_py.Dictionary(
        {"type": LABELS, "module": "HTKDeserializers", "input": cntk_py.Dictionary({name: cntk_py.Dictionary(labels)})}
    )


def feature_corpora(config: Mapping[str, Any]) -> list[Deserializer]:
    """Open the features that a configuration describes, one corpus for each stream.

    Raises:
        DataError: a script without ranges, or one of its files is damaged.
        SchemaError: a dimension that differs from the files.
    """
    return [_features(name, settings) for name, settings in config["input"].items()]


def _features(name: str, settings: Mapping[str, Any]) -> Deserializer:
    scp, dim = Path(settings["scpFile"]), int(settings["dim"])
    left, right = settings["contextWindow"]
    _require_ranges(scp)
    # Without a window, the dimension determines the number of neighbours. With a window, it counts a single frame.
    shape, context = (dim, None) if left == right == 0 else ((left + 1 + right) * dim, (left, right))
    return Features(scp, {name: Stream(shape)}, context=context, broadcast=bool(settings.get("expandToUtterance")))


def label_corpora(config: Mapping[str, Any], frames: bool) -> list[Deserializer]:
    """Open the labels that a configuration describes.

    Raises:
        ValueError: phone boundaries in frame mode.
        DataError: a file is missing or damaged.
    """
    ((name, settings),) = config["input"].items()
    boundaries = bool(settings.get("phoneBoundaries"))
    if boundaries and frames:
        raise RuntimeError(
            "expected phoneBoundaries=False in frame mode, got True: a single frame has no phone boundary"
        )
    return [
        Labels(
            list(settings["mlfFileList"]),
            {name: Stream(int(settings["dim"]), sparse=True)},
            states=settings["labelMappingFile"] or None,
            boundaries=boundaries,
            invalid="drop",
            cache=False,
        )
    ]


def _require_ranges(scp: Path) -> None:
    """Refuse a script without frame ranges, as CNTK does."""
    with open_file(scp, -1) as file:
        for number, line in enumerate(file, 1):
            if line.strip() and b"[" not in line:  # a malformed range is refused when the script is read
                raise DataError(
                    "expected `name=file[first,last]`: this mode requires an input script with start and end frames "
                    "given",
                    path=str(scp),
                    line=number,
                    hint="fl.HTKFeatureDeserializer reads whole files, too",
                )


def _warn_ignored(name: str, stream: Mapping[str, Any]) -> None:
    if stream["defines_mb_size"]:
        _log.warning("stream `%s`: defines_mb_size has no effect on HTK features and labels, as in CNTK 2.7", name)
    if stream["max_sequence_length"] != _DEFAULT_LENGTH:
        _log.warning("stream `%s`: max_sequence_length has no effect on HTK features and labels, as in CNTK 2.7", name)
