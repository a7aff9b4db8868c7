"""What is typed into what is meant: streams, windows, partitions, places on the axis."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from feedline.data import Stream
from feedline.feed.protocol import Deserializer
from feedline.feed.timeline import Window

CorpusPath = Annotated[
    Path, typer.Argument(help="Store, CTF text, Parquet file or folder, .npy, .npz or folder of .npy.")
]
Streams = Annotated[
    list[str] | None,
    typer.Option(
        "--stream",
        metavar="NAME=SHAPE[:sparse][:DTYPE]",
        help="Declare a stream, e.g. x=28x28, word=1000:sparse, y=scalar:float64; more of `field=NAME` and `size` "
        "(defines the minibatch size) may follow, parted by colons. Repeat for each stream. CTF streams are "
        "guessed from the first text without it.",
    ),
]
ChunkSize = Annotated[
    str, typer.Option(metavar="BYTES", help="Bytes of text in a chunk, for CTF: part of the order. 32M, 128k, 5000.")
]
WindowOption = Annotated[
    str | None,
    typer.Option(
        "--window",
        metavar="bytes=N|samples=N|chunks=N|all|none",
        help="How much is shuffled together; all: everything, none: corpus order. Default: everything in memory and "
        "stores of up to 4 GiB, else bytes=256M.",
    ),
]
PartitionOption = Annotated[
    str, typer.Option("--partition", metavar="I/K", help="The part of rank I of K instead of the whole.")
]
DEFAULT_CHUNK_SIZE = "32M"

# Powers of two, as everywhere in the library where sizes are given.
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_count(text: str) -> int:
    """``5000``, ``128k`` (131072), ``32MiB``.

    Raises:
        ValueError: not a count of at least 1.
    """
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)i?b?", text.strip().lower())
    if match is None or int(match[1]) == 0:
        raise ValueError(f"expected a count of at least 1 such as 5000, 128k or 32M, got {text!r}")
    return int(match[1]) * _UNITS[match[2]]


def parse_streams(declarations: list[str] | None) -> dict[str, Stream]:
    """``NAME=SHAPE[:sparse][:size][:field=NAME][:DTYPE]`` declarations, in order.

    Raises:
        ValueError: one that cannot be read, or a name twice.
    """
    streams: dict[str, Stream] = {}
    for text in declarations or []:
        name, equals, rest = text.partition("=")
        shape_text, *words = rest.split(":")
        if not name or not equals or not shape_text:
            raise ValueError(f"expected NAME=SHAPE[:sparse][:DTYPE] for --stream, got {text!r}")
        if name in streams:
            raise ValueError(f"expected each stream once, got `{name}` twice")
        streams[name] = _stream(text, shape_text, words)
    return streams


def _stream(text: str, shape_text: str, words: list[str]) -> Stream:
    if shape_text in ("scalar", "()"):
        shape: tuple[int, ...] = ()
    elif re.fullmatch(r"\d+([x,]\d+)*", shape_text):
        shape = tuple(int(part) for part in re.split("[x,]", shape_text))
    else:
        raise ValueError(f"expected a shape such as 784, 28x28 or scalar, got {shape_text!r} in --stream {text!r}")
    dtype, sparse, size, field = "float32", False, False, None
    for word in words:
        if word == "sparse":
            sparse = True
        elif word == "size":
            size = True
        elif word.startswith("field="):
            field = word.removeprefix("field=")
        else:
            try:
                dtype = np.dtype(word).name
            except TypeError:
                raise ValueError(
                    f"expected sparse, size, field=NAME or a dtype, got {word!r} in --stream {text!r}"
                ) from None
    return Stream(shape, dtype=dtype, sparse=sparse, field=field, defines_size=size)


def parse_columns(declarations: list[str] | None) -> dict[str, str | list[str]] | None:
    """``NAME=COLUMN`` or ``NAME=COLUMN,COLUMN,...`` declarations for CSV; None: all columns.

    Raises:
        ValueError: one that cannot be read.
    """
    if not declarations:
        return None
    columns: dict[str, str | list[str]] = {}
    for text in declarations:
        name, equals, rest = text.partition("=")
        if not name or not equals or not rest:
            raise ValueError(f"expected NAME=COLUMN[,COLUMN...] for --stream of a CSV file, got {text!r}")
        columns[name] = rest.split(",") if "," in rest else rest
    return columns


def parse_window(text: str | None, corpus: Deserializer) -> bool | str | Window:
    """What ``shuffle=`` of a `MinibatchSource` over ``corpus`` should be.

    Raises:
        ValueError: not a window.
    """
    if text is None:
        return True
    if text == "none":
        return False
    if text == "all":
        return "whole" if corpus.random_access else Window(chunks=max(1, len(corpus.chunks())))
    unit, _, count = text.partition("=")
    if unit not in ("bytes", "samples", "chunks") or not count:
        raise ValueError(f"expected --window bytes=N, samples=N, chunks=N, all or none, got {text!r}")
    return Window(**{unit: parse_count(count)})


def parse_partition(text: str) -> tuple[int, int]:
    """``I/K`` with 0 <= I < K.

    Raises:
        ValueError: not that.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not int(match[1]) < int(match[2]):
        raise ValueError(f"expected --partition I/K with 0 <= I < K, got {text!r}")
    return int(match[1]), int(match[2])
