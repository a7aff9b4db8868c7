"""Parse arguments: streams, windows, partitions, places on the axis."""

from __future__ import annotations

import re
from typing import Annotated, Any, cast, get_args

import numpy as np
import typer

from feedline.cli.console import UsageError
from feedline.data import Stream
from feedline.feed.formats.widening import SchemaRule
from feedline.feed.protocol import Deserializer, RandomAccess, can
from feedline.feed.timeline import ORDERS, Window

CorpusPath = Annotated[
    str,
    typer.Argument(
        help="File, folder, or quoted pattern ('part-*.parquet', 'part-{00..99}.ctf'), in any format; or an address, "
        "'s3://bucket/part-*.parquet'."
    ),
]
Streams = Annotated[
    list[str] | None,
    typer.Option(
        "--stream",
        metavar="NAME=SHAPE[:sparse][:DTYPE]",
        help="Declare a stream, e.g. x=28x28, word=1000:sparse, y=scalar:float64; `field=NAME`, `size` (defines the "
        "minibatch size), `missing=VALUE` (of nulls and absent keys) and `mask` (a stream NAME_present) may follow, "
        "separated by colons. For CSV, x=a,b makes a stream of the columns a and b. "
        "Repeat for each stream. Without it, streams of a text file are guessed from its beginning.",
    ),
]
ChunkSize = Annotated[
    str, typer.Option(metavar="BYTES", help="Bytes of text per CTF chunk (32M, 128k, 5000); part of the order.")
]
SchemaOption = Annotated[
    str,
    typer.Option(
        "--schema",
        metavar="strict|union",
        help="union: files of Parquet, Arrow, JSON Lines or CSV may differ in their columns; numbers are widened.",
    ),
]
WindowOption = Annotated[
    str | None,
    typer.Option(
        "--window",
        metavar="bytes=N|samples=N|chunks=N|all|none",
        help="How much is shuffled together. A size without a name, 256M, is in bytes. all: everything, none: corpus "
        "order. Default: all for data in memory and stores of up to 4 GiB, else bytes=256M.",
    ),
]
Jobs = Annotated[int, typer.Option(min=1, help="Number of threads that read; each holds one chunk.")]
PartitionOption = Annotated[str, typer.Option("--partition", metavar="I/K", help="Only the part of rank I of K.")]
DEFAULT_CHUNK_SIZE = "32M"


# Powers of two, as for all sizes in the library.
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_count(text: str) -> int:
    """Parse ``5000``, ``128k`` (131072) or ``32MiB``.

    Raises:
        UsageError: it is not a count of at least 1.
    """
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)i?b?", text.strip().lower())
    if match is None or int(match[1]) == 0:
        raise UsageError(f"expected a count of at least 1 such as 5000, 128k or 32M, got {text!r}")
    return int(match[1]) * _UNITS[match[2]]


_RATE_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}  # powers of ten, as of every link
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "min": 60.0}


def parse_rate(text: str) -> float:
    """Parse ``200MB/s`` (2e8) or ``10Gbit/s`` (1.25e9), and return bytes per second.

    Raises:
        UsageError: it is not a rate above 0.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(b|bit)/s", text.strip().lower())
    if match is None or not float(match[1]):
        raise UsageError(f"expected a rate above 0 such as 200MB/s or 10Gbit/s, got {text!r}")
    return float(match[1]) * _RATE_UNITS[match[2]] / (8 if match[3] == "bit" else 1)


def parse_seconds(text: str) -> float:
    """Parse ``0.25s``, ``5ms`` or ``300us``.

    Raises:
        UsageError: it is not a duration.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(us|ms|s|min|)", text.strip().lower())
    if match is None:
        raise UsageError(f"expected a duration such as 0.25s or 5ms, got {text!r}")
    return float(match[1]) * _SECONDS[match[2]]


def parse_streams(declarations: list[str] | None) -> dict[str, Stream]:
    """Parse ``NAME=SHAPE[:sparse][:size][:field=NAME][:missing=VALUE][:mask][:DTYPE]`` declarations, in order.

    Raises:
        UsageError: a declaration is invalid, or a name occurs twice.
    """
    streams: dict[str, Stream] = {}
    for text in declarations or []:
        name, equals, details = text.partition("=")
        shape_text, *words = details.split(":")
        if not name or not equals or not shape_text:
            raise UsageError(f"expected NAME=SHAPE[:sparse][:DTYPE] for --stream, got {text!r}")
        if name in streams:
            raise UsageError(f"expected each stream once, got `{name}` twice")
        streams[name] = _stream(text, shape_text, words)
    return streams


def _stream(text: str, shape_text: str, words: list[str]) -> Stream:
    if shape_text in ("scalar", "()"):
        shape: tuple[int, ...] = ()
    elif re.fullmatch(r"\d+([x,]\d+)*", shape_text):
        shape = tuple(int(part) for part in re.split("[x,]", shape_text))
    else:
        raise UsageError(f"expected a shape such as 784, 28x28 or scalar, got {shape_text!r} in --stream {text!r}")
    dtype, sparse, size, mask, field, missing = "float32", False, False, False, None, None
    for word in words:
        if word == "sparse":
            sparse = True
        elif word == "size":
            size = True
        elif word == "mask":
            mask = True
        elif word.startswith("field="):
            field = word.removeprefix("field=")
        elif word.startswith("missing="):
            missing = word.removeprefix("missing=")
        else:
            try:
                dtype = np.dtype(word).name
            except TypeError:
                raise UsageError(
                    f"expected sparse, size, field=NAME, missing=VALUE, mask or a dtype, got {word!r} in --stream "
                    f"{text!r}"
                ) from None
    try:
        value = None if missing is None else _missing_value(missing, np.dtype(dtype))
        return Stream(shape, dtype, sparse, field=field, defines_size=size, missing=value, mask=mask)
    except ValueError as error:
        raise UsageError(f"{error}, in --stream {text!r}") from error


def _missing_value(text: str, dtype: np.dtype[Any]) -> Any:
    """Return the value of missing samples of a dtype.

    Raises:
        ValueError: it is no number.
    """
    if dtype.kind in "SU":
        return text.encode() if dtype.kind == "S" else text
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)


# A shape followed by options, which is no column name.
_DECLARATION = re.compile(r"(scalar|\(\)|\d+([x,]\d+)*)(:.+)+")


def parse_columns(declarations: list[str] | None) -> dict[str, Stream | str | list[str]]:
    """Parse streams of CSV: ``NAME=COLUMN[,COLUMN...]``, or ``NAME=SHAPE:...`` of `parse_streams`.

    A shape alone is a column name.

    Raises:
        UsageError: a declaration is invalid, or a name occurs twice.
    """
    columns: dict[str, Stream | str | list[str]] = {}
    for text in declarations or []:
        name, equals, declared = text.partition("=")
        if not name or not equals or not declared:
            raise UsageError(f"expected NAME=COLUMN[,COLUMN...] for --stream of a CSV file, got {text!r}")
        if name in columns:
            raise UsageError(f"expected each stream once, got `{name}` twice")
        if _DECLARATION.fullmatch(declared):
            columns |= parse_streams([text])
        else:
            columns[name] = declared.split(",") if "," in declared else declared
    return columns


def parse_window(text: str | None, corpus: Deserializer) -> bool | str | Window:
    """Return the ``shuffle`` argument of a `MinibatchSource` over ``corpus``.

    Raises:
        UsageError: it is not a window.
    """
    if text is None:
        return True
    if text == "none":
        return False
    if text == "all":
        return "whole" if can(corpus, RandomAccess) else Window(chunks=max(1, len(corpus.chunks())))
    unit, _, count = text.partition("=") if "=" in text or not text[:1].isdigit() else ("bytes", "=", text)
    if unit not in ("bytes", "samples", "chunks") or not count:
        raise UsageError(f"expected --window bytes=N, samples=N, chunks=N, all or none, got {text!r}")
    return Window(**{unit: parse_count(count)})


def parse_order(text: str) -> str:
    """Return the name of an order.

    Raises:
        UsageError: there is no such order.
    """
    names = ["feedline", *(name for name in ORDERS if not name.startswith("arcs-"))]
    if text not in names:
        raise UsageError(f"expected --order {' or '.join(names)}, got {text!r}")
    return text


def parse_schema(text: str) -> SchemaRule:
    """Return whether the schemas of files may differ.

    Raises:
        UsageError: it is no such rule.
    """
    for rule in get_args(SchemaRule):
        if rule == text:
            return cast(SchemaRule, rule)
    raise UsageError(f"expected --schema {' or '.join(get_args(SchemaRule))}, got {text!r}")


def parse_partition(text: str) -> tuple[int, int]:
    """Parse ``I/K`` with 0 <= I < K.

    Raises:
        UsageError: it is invalid.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not int(match[1]) < int(match[2]):
        raise UsageError(f"expected --partition I/K with 0 <= I < K, got {text!r}")
    return int(match[1]), int(match[2])
