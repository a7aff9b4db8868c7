"""``feedline tune``: search the settings of a feed on the user's data, with paired measurements.

`paired_search` decides what is measured and chosen. `corpora` and `loaders` predict and measure the feed of a path and
of a `DataLoader`. `report` prints.
"""

from __future__ import annotations

import contextlib
import time
from typing import Annotated

import typer

from feedline.cli.arguments import DEFAULT_CHUNK_SIZE, ChunkSize, SchemaOption, Streams, WindowOption
from feedline.cli.console import Debug, Json, UsageError, print_result, progress
from feedline.cli.stills import sheet
from feedline.cli.tune.corpora import Corpora
from feedline.cli.tune.loaders import Loaders
from feedline.cli.tune.paired_search import UnavailableError, search
from feedline.cli.tune.report import Reported, document, show
from feedline.errors import DataError
from feedline.feed.source import DEFAULT_MINIBATCH_SIZE

_SHOW_EVERY_S = 0.1  # seconds between updates of the progress bar


def tune(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="PATH|SCRIPT.py:FACTORY|MODULE:FACTORY",
            help="File, folder, quoted pattern or address, in any format. Or a function that returns a DataLoader, or "
            "(loader, function of a batch).",
        ),
    ],
    seconds: Annotated[float, typer.Option(min=0.1, help="Budget of the search.")] = 60.0,
    size: Annotated[int, typer.Option(min=1, help="Of a path: minibatch size in samples.")] = DEFAULT_MINIBATCH_SIZE,
    window: WindowOption = None,
    threads: Annotated[int, typer.Option(min=1, help="Of a path: the present number of threads.")] = 2,
    cold: Annotated[
        bool, typer.Option("--cold", help="Of a path: evict the data from the page cache, or the cache, every time.")
    ] = False,
    stream: Streams = None,
    schema: SchemaOption = "strict",
    chunk_size: ChunkSize = DEFAULT_CHUNK_SIZE,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Search for faster settings of a feed on your data, and print the arguments to use.

    The present setting is that of the options, or of the loader as the function returns it."""
    began = shown = time.monotonic()
    with progress("tuning", "s") as bar, contextlib.ExitStack() as opened:

        def watch() -> None:
            nonlocal shown
            now = time.monotonic()
            if now - shown > _SHOW_EVERY_S:
                shown = now
                bar(min(round(now - began), round(seconds)), round(seconds))

        feed: Reported
        if sheet.is_factory(subject):
            if cold:
                raise UsageError("expected a path with --cold, got a factory: the files it reads are unknown")
            feed = opened.enter_context(Loaders(subject, watch))
        elif subject.endswith(".py"):
            raise UsageError(
                f"expected the function that returns the loader, got {subject} alone: pass {subject}:FACTORY"
            )
        else:
            feed = opened.enter_context(
                Corpora(
                    subject,
                    size=size,
                    seconds=seconds,
                    window=window,
                    threads=threads,
                    stream=stream,
                    schema=schema,
                    chunk_size=chunk_size,
                    cold=cold,
                    watch=watch,
                )
            )
        try:
            outcome = search(feed, seconds, watch=watch)
        except UnavailableError as error:
            raise DataError(f"expected a feed that can be measured, got one of which {error}") from error
        result = document(feed, outcome, {"subject": subject, "cold": cold})
    print_result(result, json, show)
