"""``feedline inspect``: show the format, streams, counts, lengths and first sequences of a corpus."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from feedline.cli.arguments import DEFAULT_CHUNK_SIZE, ChunkSize, CorpusPath, SchemaOption, Streams, parse_schema
from feedline.cli.console import (
    Debug,
    Json,
    print_facts,
    print_result,
    print_table,
    progress,
    show_bytes,
    show_count,
    stdout,
    use_option_names,
)
from feedline.cli.corpus import Opened, open_path
from feedline.cli.cost import cost, print_cost
from feedline.cli.pictures import (
    DEFAULT_STEPS,
    PageOptions,
    decoding,
    looked_at,
    picture_stream,
    shown_sizes,
    write_page,
)
from feedline.cli.stills.sheet import is_factory, made_by, write_stills
from feedline.data import Schema, Value
from feedline.data.value import BytesValue, SparseValue
from feedline.errors import shown
from feedline.feed.formats.images import ImageFolderDeserializer
from feedline.feed.protocol import CountsNulls, Deserializer, RandomAccess, can, finish_of
from feedline.feed.transforms import DrawKeys

_BLOCK_SEQUENCES = 1 << 20  # sequences whose lengths are looked up at a time
_BINS = 12
_SHOWN_SAMPLES, _SHOWN_VALUES, _SHOWN_BYTES = 4, 8, 40
_SHOWN_CLASSES = 8
_BAR = 40
_FREQUENT = 100  # values of each stream, in JSON
_STATISTICS = ["name", "nulls", "mean", "deviation", "least", "median", "greatest", "distinct", "most frequent"]


def inspect(
    path: CorpusPath,
    stream: Streams = None,
    schema: SchemaOption = "strict",
    preview: Annotated[int, typer.Option(min=0, help="Number of sequences to show.")] = 3,
    chunk_size: ChunkSize = DEFAULT_CHUNK_SIZE,
    pictures: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Instead, write a page of N pictures, each next to what training sees. Of other data: of N sequences, "
            "with windows, sounds and packed rows as pictures. PATH may be module:factory, which returns a corpus or "
            "a source.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Path of that page; overwrites.")] = Path("pictures.html"),
    step: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STEP",
            help="A step of feedline.images for these pictures, such as 'CenterCrop(224)'. Repeat for each step. "
            f"Default: {' and '.join(DEFAULT_STEPS)}.",
        ),
    ] = None,
    views: Annotated[int, typer.Option(min=1, max=4, help="Sweeps to show of each picture.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the steps.")] = 0,
    statistics: Annotated[
        bool,
        typer.Option("--statistics", help="Instead, read all data, and show statistics of the streams, with nulls."),
    ] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show format, streams, counts, lengths and the first sequences of a corpus."""
    if pictures is not None and is_factory(path):
        print_result(write_stills(made_by(path), pictures, out), json, _show_page)
        return
    opened = open_path(path, stream, chunk_size, schema)
    with contextlib.closing(opened.corpus):
        if pictures is not None:
            sequences = sum(info.sequences for info in opened.corpus.chunks())
            if step or picture_stream(opened.corpus, sequences) is not None:
                page = write_page(opened, PageOptions(pictures, views, step or (), seed), out)
            else:
                page = write_stills(opened.corpus, pictures, out)
            print_result(page, json, _show_page)
            return
        if statistics:
            print_result(_statistics(opened.corpus if stream else None, path, schema), json, _print_statistics)
            return
        description = describe(opened, preview)
    print_result(description, json, _print)


def _statistics(declared: Deserializer | None, path: str, schema: str) -> dict[str, Any]:
    """Return statistics of a corpus with declared streams, or else of that at a path with all masks, in JSON types."""
    # Imported late to keep `feedline --help` fast.
    from feedline.feed.statistics.corpus_pass import open_masked, statistics

    corpus = open_masked(path, parse_schema(schema)) if declared is None else declared
    with contextlib.closing(corpus), progress("reading", "chunks") as report:
        summary = statistics(corpus, progress=report)
    streams = {}
    for name, stream in summary.items():
        values = [(value if isinstance(value, (int, str)) else repr(value), n) for value, n in stream.values]
        streams[name] = dataclasses.asdict(stream) | {"values": values[:_FREQUENT]}
    return {
        "path": corpus.name,
        "sequences": summary.sequences,
        "streams": streams,
    }


def _print_statistics(about: dict[str, Any]) -> None:
    """Print a table."""
    print_facts(about["path"], {"sequences": show_count(about["sequences"])})
    rows = []
    for name, stream in about["streams"].items():
        distinct = stream["distinct"]
        rows.append(
            [
                name,
                _share(stream["nulls"], stream["samples"]),
                *(_number(stream[key]) for key in ("mean", "deviation", "low")),
                _number(stream["percentiles"][50]) if stream["percentiles"] else "",
                _number(stream["high"]),
                "" if distinct is None else ("~" if stream["distinct_error"] else "") + show_count(distinct),
                ", ".join(shown(value, 20) for value, _ in stream["values"][:3]),
            ]
        )
    print_table(_STATISTICS, rows)


def _share(nulls: int, count: int) -> str:
    share = nulls / max(count, 1)
    return "<0.01%" if 0 < share < 0.0001 else f"{share:.2%}"


def _number(number: Any) -> str:
    if isinstance(number, list) or number is None:  # one for each element
        return ""
    return "" if math.isnan(number) else f"{number:.4g}"


def _show_page(page: dict[str, Any]) -> None:
    unreadable = f", {page['unreadable']} of them unreadable" if page["unreadable"] else ""
    console = stdout()
    shown = f"{page['pictures']} pictures" if "pictures" in page else f"{page['sequences']} sequences"
    console.print(f"{page['page']}: {shown}{unreadable}")
    for kind, decoder in page.get("decoders", {}).items():
        console.print(f"  {kind} decoded by {decoder}")


def describe(opened: Opened, preview: int) -> dict[str, Any]:
    """Return everything to show, in JSON types."""
    corpus = opened.corpus
    infos = corpus.chunks()
    sequences = sum(info.sequences for info in infos)
    counting = corpus.capability(CountsNulls)
    nulls = {} if counting is None else counting.null_counts()
    return {
        "path": corpus.name,
        "format": opened.format,
        "random_access": can(corpus, RandomAccess),
        "streams": [
            {
                "name": name,
                "shape": list(declared.shape),
                "dtype": declared.dtype.name,
                "sparse": declared.sparse,
                "defines_size": declared.defines_size,
                "unit": declared.unit,
                "nulls": nulls[name].sequences if name in nulls else None,
            }
            for name, declared in _delivered_schema(corpus).items()
        ],
        "streams_guessed": opened.guessed,
        "nested": list(getattr(corpus, "nested_paths", [])),
        "sequences": sequences,
        "samples": sum(info.samples for info in infos),
        "chunks": len(infos),
        "bytes": sum(info.bytes for info in infos),
        "lengths": length_histogram(corpus, sequences),
        "preview": _preview(corpus, min(preview, sequences)),
        "cost": cost(corpus),
        "pictures": _pictures(corpus, sequences),
    }


def _pictures(corpus: Deserializer, sequences: int) -> dict[str, Any] | None:
    """Return the stream of encoded pictures, their decoders and formats. None if there is no such stream.

    Returns:
        ``stream``, ``decoders``, the ``looked_at``, ``formats`` and ``sizes`` of `looked_at`, and ``classes``, the
        number of pictures by name, if folders name them.
    """
    name = picture_stream(corpus, sequences)
    if name is None:
        return None
    classes = corpus.class_counts() if isinstance(corpus, ImageFolderDeserializer) else {}
    return {"stream": name, "decoders": decoding(), **looked_at(corpus, name, sequences), "classes": classes}


def length_histogram(corpus: Deserializer, sequences: int) -> dict[str, Any]:
    """Return a histogram of the lengths of sequences, in samples as the minibatch budget counts them.

    Returns:
        ``min``, ``mean``, ``max``, and ``histogram``: rows ``from``, ``to`` (inclusive), ``sequences``: one row per
        length if there are few, otherwise rows that widen geometrically.
    """
    if sequences == 0:
        return {"min": None, "mean": None, "max": None, "histogram": []}
    low, high, total = np.iinfo(np.int64).max, 0, 0
    for lengths in _lengths(corpus, sequences):
        low, high, total = min(low, int(lengths.min())), max(high, int(lengths.max())), total + int(lengths.sum())
    if high - low < 2 * _BINS:
        edges = np.arange(low, high + 2)
    else:
        edges = np.unique(np.geomspace(max(low, 1), high + 1, _BINS + 1).round().astype(np.int64))
        edges[0], edges[-1] = low, high + 1
    counts = np.zeros(len(edges) - 1, np.int64)
    for lengths in _lengths(corpus, sequences):
        counts += np.histogram(lengths, edges)[0]
    spans = itertools.pairwise(edges.tolist())
    rows = [{"from": a, "to": b - 1, "sequences": n} for (a, b), n in zip(spans, counts.tolist(), strict=True)]
    return {"min": low, "mean": total / sequences, "max": high, "histogram": rows}


def _lengths(corpus: Deserializer, sequences: int) -> Iterator[NDArray[np.int64]]:
    with progress("lengths", "sequences") as show:
        for start in range(0, sequences, _BLOCK_SEQUENCES):
            ordinals = np.arange(start, min(start + _BLOCK_SEQUENCES, sequences))
            lengths = corpus.lengths(ordinals)
            yield np.ones(len(ordinals), np.int64) if lengths is None else lengths
            show(start + len(ordinals), sequences)


def _preview(corpus: Deserializer, count: int) -> list[dict[str, Any]]:
    if count == 0:
        return []
    chunk = corpus.select(np.arange(count))
    good = np.array([i for i in range(count) if i not in chunk.errors], np.int64)
    values: dict[str, Value] = chunk.take(good).values
    finish = finish_of(corpus)
    if finish is not None:
        keys = DrawKeys(0, np.zeros(len(good), np.int64), good, 0)
        values = finish.run_all(corpus.schema, values, keys).values
    shown: list[dict[str, Any]] = [
        {"sequence": i, "error": use_option_names(str(error))} for i, error in chunk.errors.items() if i < count
    ]
    for k, i in enumerate(good.tolist()):
        streams = {name: _head(value.slice(k, k + 1)) for name, value in values.items()}
        shown.append({"sequence": i, "streams": streams})
    return sorted(shown, key=operator.itemgetter("sequence"))


def _delivered_schema(corpus: Deserializer) -> Schema:
    """Return the streams that minibatches of a corpus have."""
    finish = finish_of(corpus)
    schema: Schema = corpus.schema if finish is None else finish.schema(corpus.schema)
    return schema


def _head(value: Value) -> dict[str, Any]:
    """Return the first samples of one sequence, each with its first values (``[index, value]`` pairs if sparse), or for
    byte strings ``bytes`` and ``first``: the first ones, as a Python literal."""
    low, high = int(value.offsets[0]), int(value.offsets[-1])
    rows: list[Any] = []
    for row in range(low, min(high, low + _SHOWN_SAMPLES)):
        if isinstance(value, SparseValue):
            a, b = (int(n) for n in value.indptr[row : row + 2])
            b = min(b, a + _SHOWN_VALUES)
            pairs = zip(value.indices[a:b].tolist(), value.values[a:b].tolist(), strict=True)
            rows.append([list(pair) for pair in pairs])
        elif isinstance(value, BytesValue):
            rows.append(_shown_string(value, row))
        else:
            rows.append(np.asarray(value.dense().rows[row]).ravel()[:_SHOWN_VALUES].tolist())
    return {"samples": high - low, "first": rows}


def _print(about: dict[str, Any]) -> None:
    facts = {
        "format": about["format"] + (" (random access)" if about["random_access"] else ""),
        "sequences": show_count(about["sequences"]),
        "samples": show_count(about["samples"]),
        "chunks": show_count(about["chunks"]),
        "stored": show_bytes(about["bytes"]),
    }
    if about["lengths"]["min"] == about["lengths"]["max"] == 1:
        del facts["samples"]  # one of each sequence
    pictures = about["pictures"]
    if pictures is not None:
        kinds = ", ".join(f"{count} {kind}" for kind, count in pictures["formats"].items())
        facts["pictures"] = f"in {pictures['stream']}: {kinds} of {pictures['looked_at']} looked at"
        if pictures["sizes"]:
            facts["sizes"] = f"{shown_sizes(np.array(pictures['sizes']))}, width × height"
        if pictures["classes"]:
            facts["classes"] = _classes(pictures["classes"])
        facts["decoded"] = ", ".join(f"{kind} by {decoder}" for kind, decoder in pictures["decoders"].items())
    print_facts(about["path"], facts)
    console = stdout()
    guessed = ", guessed from the first text: declare them with --stream to be sure" if about["streams_guessed"] else ""
    console.print(f"\nstreams{guessed}", style="bold")
    rows = []
    for stream in about["streams"]:
        string = stream["dtype"] in ("bytes", "str")
        kind = "any length" if string else "sparse" if stream["sparse"] else "dense"
        kind += ", defines size" if stream["defines_size"] else ""
        kind += f", {stream['unit']}" if stream["unit"] is not None else ""
        nulls = "" if stream["nulls"] is None else _share(stream["nulls"], about["sequences"])
        rows.append([stream["name"], stream["dtype"], str(tuple(stream["shape"])), kind, nulls])
    columns = 5 if any(row[-1] for row in rows) else 4
    print_table(["name", "dtype", "shape", "kind", "nulls"][:columns], [row[:columns] for row in rows], left=4)
    if about["nested"]:
        console.print("\nvalues within columns, for --stream NAME=SHAPE:field=PATH:DTYPE", style="bold")
        for path in about["nested"]:
            console.print(f"  {path}", markup=False)
    if len(about["lengths"]["histogram"]) > 1:
        _print_lengths(about["lengths"])
    if about["cost"] is not None:
        print_cost(about["cost"])
    if about["preview"]:
        console.print("\nfirst sequences", style="bold")
    for sequence in about["preview"]:
        if pictures is not None and "streams" in sequence:
            sequence["streams"].pop(pictures["stream"], None)  # whose bytes are not readable
        if "error" in sequence:
            console.print(f"  {sequence['sequence']}  unreadable: {sequence['error']}")
            continue
        for name, head in sequence["streams"].items():
            console.print(f"  {sequence['sequence']}  {name}: {_show_head(head)}")


def _classes(counts: dict[str, int]) -> str:
    """Format the number of classes, the range of pictures in each, and the first ones."""
    low, high = min(counts.values()), max(counts.values())
    each = show_count(low) if low == high else f"{show_count(low)} to {show_count(high)}"
    first = ", ".join(list(counts)[:_SHOWN_CLASSES]) + (", ..." if len(counts) > _SHOWN_CLASSES else "")
    return f"{show_count(len(counts))} of {each} pictures: {first}"


def _print_lengths(stats: dict[str, Any]) -> None:
    console = stdout()
    console.print(f"\nlengths in samples: {stats['min']} to {stats['max']}, mean {stats['mean']:.4g}", style="bold")
    most = max(row["sequences"] for row in stats["histogram"])
    block = "█" if console.encoding.lower().startswith("utf") else "#"
    rows = []
    for row in stats["histogram"]:
        name = str(row["from"]) if row["from"] == row["to"] else f"{row['from']}-{row['to']}"
        # Bins that are not empty have at least one block.
        bar = block * max(round(_BAR * row["sequences"] / most), 1 if row["sequences"] else 0)
        rows.append((name, show_count(row["sequences"]), bar))
    width, digits = max(len(row[0]) for row in rows), max(len(row[1]) for row in rows)
    for name, count, bar in rows:
        console.print(f"  {name:>{width}}  {count:>{digits}}  {bar}")


def _shown_string(value: BytesValue, row: int) -> dict[str, Any]:
    a, b = (int(n) for n in value.bounds[row : row + 2])
    head = value.data[a : min(b, a + _SHOWN_BYTES)].tobytes()
    # The last character may be cut.
    return {"bytes": b - a, "first": repr(head.decode(errors="ignore") if value.text else head)}


def _show_head(head: dict[str, Any]) -> str:
    samples = []
    for row in head["first"]:
        if isinstance(row, dict):
            dots = " ..." if row["bytes"] > _SHOWN_BYTES else ""
            samples.append(f"{row['first']}{dots} ({row['bytes']} bytes)")
            continue
        cells = [f"{cell[0]}:{cell[1]:g}" if isinstance(cell, list) else f"{cell:g}" for cell in row]
        samples.append(" ".join(cells) + (" ..." if len(row) == _SHOWN_VALUES else ""))
    remaining = head["samples"] - len(samples)
    return " | ".join(samples) + (f" | ... {remaining} more" if remaining > 0 else "")
