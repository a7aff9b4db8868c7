"""``feedline report RUN``: make an HTML page of a run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from feedline.cli.console import Debug, Json, UsageError, print_json
from feedline.runs import report as make
from feedline.runs.watching import RunWatch

_POLL_S = 0.5


def report(
    run: Annotated[
        list[Path],
        typer.Argument(help="A run folder with run.jsonl, or a log (also of bench --log); several are compared."),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Path of the page; default: report.html next to the log.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Make the page again whenever the log grows, until the run ends.")
    ] = False,
    every: Annotated[float, typer.Option("--every", help="Seconds between two pages, with --watch.")] = 5.0,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Make one HTML page of a training run or a bench: what was learned, where the time went, what was fed."""
    if watch and not every >= 1:
        raise UsageError(f"expected --every of at least 1 second, got {every}")
    if watch and len(run) > 1:
        raise UsageError(f"expected one run with --watch, got {len(run)}")
    page = _live(run[0], output, every) if watch else make(run if len(run) > 1 else run[0], output)
    if json:
        print_json({"page": str(page), "bytes": page.stat().st_size})
    elif not watch:
        print(page)


def _live(run: Path, output: Path | None, every_s: float) -> Path:
    """Make the page whenever the log has grown, at most every ``every_s`` seconds, until the run has ended."""
    log, lines, page, made_at = RunWatch(run), -1, None, 0.0
    while True:
        watched = log.look(time.time())
        ended = watched is not None and watched.history.ended is not None
        due = ended or time.monotonic() - made_at >= every_s
        if watched is not None and watched.history.lines != lines and due:
            lines, made_at, before = watched.history.lines, time.monotonic(), page
            page = make(run, output, refresh_s=every_s)
            if before is None:
                print(page, flush=True)  # to be opened once
        if ended and page is not None:
            return page
        time.sleep(_POLL_S)
