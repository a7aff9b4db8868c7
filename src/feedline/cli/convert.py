"""``feedline convert``: any corpus, or a CSV file, into a store."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Literal

import typer

from feedline.cli.arguments import DEFAULT_CHUNK_SIZE, ChunkSize, Streams, parse_columns, parse_count
from feedline.cli.console import Debug, Json, print_facts, print_json, progress, show_bytes, show_count
from feedline.cli.corpus import open_path
from feedline.feed.convert import ConversionSummary
from feedline.feed.convert import convert as convert_corpus
from feedline.feed.formats.detect import guess_format
from feedline.feed.protocol import CHUNK_MEMORY


def convert(
    source: Annotated[Path, typer.Argument(help="CTF, CSV, Parquet, NumPy or a store.")],
    destination: Annotated[Path, typer.Argument(help="Folder of the new store.")],
    stream: Streams = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a store of that name.")] = False,
    skip_errors: Annotated[bool, typer.Option("--skip-errors", help="Leave unreadable sequences out.")] = False,
    compression: Annotated[
        str | None, typer.Option(help="lz4, zstd, or auto: the first by which the data shrinks by a third.")
    ] = None,
    shuffle: Annotated[
        int | None,
        typer.Option(help="Write in random order, by this seed; interrupted, the same command goes on.", min=0),
    ] = None,
    memory: Annotated[
        str, typer.Option(help="Bytes that shuffling may hold, as 1GiB; above 2GiB, also a chunk of SOURCE.")
    ] = "1GiB",
    chunk_size: ChunkSize = DEFAULT_CHUNK_SIZE,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a corpus as a store, all or nothing.

    For CSV, --stream x=a,b makes stream x of the columns a and b; without it every column is a stream.
    """
    on_error: Literal["raise", "skip"] = "skip" if skip_errors else "raise"
    guessed = False
    if guess_format(source) == "csv":
        with progress("converting") as show:
            done = convert_corpus(
                source,
                destination,
                streams=parse_columns(stream),
                overwrite=overwrite,
                on_error=on_error,
                progress=show,
                compression=compression,
                shuffle=shuffle,
                memory=parse_count(memory),
            )
    else:
        held = max(parse_count(memory), CHUNK_MEMORY)
        corpus, _, guessed, *_ = open_path(source, stream, chunk_size, held)
        with contextlib.closing(corpus), progress("converting") as show:
            done = convert_corpus(
                corpus,
                destination,
                overwrite=overwrite,
                on_error=on_error,
                progress=show,
                compression=compression,
                shuffle=shuffle,
                memory=parse_count(memory),
            )
    _report(source, done, guessed, json)


def _report(source: Path, done: ConversionSummary, guessed: bool, json: bool) -> None:
    if json:
        print_json(
            {
                "source": str(source),
                "store": done.path,
                "streams": list(done.schema),
                "streams_guessed": guessed,
                "sequences": done.sequences,
                "samples": done.samples,
                "bytes": done.bytes,
                "skipped": done.skipped,
            }
        )
        return
    facts = {
        "streams": ", ".join(f"{n} {s.shape}{' sparse' if s.sparse else ''}" for n, s in done.schema.items()),
        "sequences": show_count(done.sequences),
        "samples": show_count(done.samples),
        "written": show_bytes(done.bytes),
    }
    if done.skipped:
        facts["skipped"] = f"{show_count(done.skipped)} unreadable"
    if guessed:
        facts["guessed"] = "from the first text: what it does not use is missing; declare with --stream to be sure"
    print_facts(f"{source} -> {done.path}", facts)
