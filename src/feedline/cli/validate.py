"""``feedline validate``: read a corpus once and list damaged sequences."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from feedline.cli.arguments import DEFAULT_CHUNK_SIZE, ChunkSize, CorpusPath, Jobs, SchemaOption, Streams
from feedline.cli.console import (
    Debug,
    Json,
    print_facts,
    print_json,
    progress,
    show_bytes,
    show_count,
    stdout,
    use_option_names,
)
from feedline.cli.corpus import open_path
from feedline.feed.validate import validate as validate_corpus


def validate(
    path: CorpusPath,
    stream: Streams = None,
    schema: SchemaOption = "strict",
    listed: Annotated[
        Path | None,
        typer.Option("--list", help="JSON Lines file for a list of damaged sequences, if any; `skip=` accepts it."),
    ] = None,
    jobs: Jobs = 1,
    chunk_size: ChunkSize = DEFAULT_CHUNK_SIZE,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Read every sequence once, checksums included. The exit code is 1 if one is damaged."""
    opened = open_path(path, stream, chunk_size, schema)
    with contextlib.closing(opened.corpus) as corpus, progress("validating") as show:
        result = validate_corpus(corpus, quarantine=listed, jobs=jobs, progress=show)
    if json:
        shown = [{"sequence": error.sequence, "error": use_option_names(str(error))} for error in result.errors]
        print_json({"path": opened.corpus.name, **result._asdict(), "errors": shown})
    else:
        facts = {
            "format": opened.format,
            "sequences": show_count(result.sequences),
            "samples": show_count(result.samples),
            "read": show_bytes(result.bytes),
            "damaged": show_count(result.damaged),
        }
        if listed is not None and result.damaged:
            facts["listed in"] = str(listed)
        print_facts(opened.corpus.name, facts)
        for error in result.errors:
            stdout().print(f"\n{use_option_names(str(error))}")
        if result.damaged > len(result.errors):
            remaining = show_count(result.damaged - len(result.errors))
            stdout().print(f"\n... {remaining} more" + ("" if listed else "; --list FILE lists them all"))
    if result.damaged:
        raise typer.Exit(1)
