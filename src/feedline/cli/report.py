"""``feedline report RUN``: a run as one page that opens from disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feedline.cli.console import Debug, Json, print_json
from feedline.runs import report as make


def report(
    run: Annotated[Path, typer.Argument(help="A run folder with run.jsonl, or a log, of bench --log too.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write the page; else report.html beside the log.")
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Make one HTML page of a training run or a bench: what was learned, where the time went, what was fed."""
    page = make(run, output)
    if json:
        print_json({"page": str(page), "bytes": page.stat().st_size})
    else:
        print(page)
