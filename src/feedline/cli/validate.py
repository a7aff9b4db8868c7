"""``feedline validate``: read a corpus once and list what is damaged."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from feedline.cli.arguments import DEFAULT_CHUNK_SIZE, ChunkSize, CorpusPath, Jobs, Streams
from feedline.cli.console import Debug, Json, print_facts, print_json, progress, show_bytes, show_count, stdout, typed
from feedline.cli.corpus import open_path
from feedline.feed.validate import validate as validate_corpus


def validate(
    path: CorpusPath,
    stream: Streams = None,
    listed: Annotated[
        Path | None,
        typer.Option("--list", help="JSON-lines file to list damaged sequences in, if any; `skip=` takes it."),
    ] = None,
    jobs: Jobs = 1,
    chunk_size: ChunkSize = DEFAULT_CHUNK_SIZE,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Read every sequence once, checksums included. The exit code is 1 if one is damaged."""
    opened = open_path(path, stream, chunk_size)
    with contextlib.closing(opened.corpus) as corpus, progress("validating") as show:
        found = validate_corpus(corpus, quarantine=listed, jobs=jobs, progress=show)
    if json:
        shown = [{"sequence": error.sequence, "error": typed(str(error))} for error in found.errors]
        print_json({"path": opened.corpus.name, **found._asdict(), "errors": shown})
    else:
        facts = {
            "format": opened.format,
            "sequences": show_count(found.sequences),
            "samples": show_count(found.samples),
            "read": show_bytes(found.bytes),
            "damaged": show_count(found.damaged),
        }
        if listed is not None and found.damaged:
            facts["listed in"] = str(listed)
        print_facts(opened.corpus.name, facts)
        for error in found.errors:
            stdout().print(f"\n{typed(str(error))}")
        if found.damaged > len(found.errors):
            more = show_count(found.damaged - len(found.errors))
            stdout().print(f"\n... {more} more" + ("" if listed else "; --list FILE lists them all"))
    if found.damaged:
        raise typer.Exit(1)
