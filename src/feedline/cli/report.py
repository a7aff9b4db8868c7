"""``feedline report RUN``: make an HTML page of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feedline.cli.console import Debug, Json, print_json
from feedline.runs import report as make


def report(
    run: Annotated[Path, typer.Argument(help="A run folder with run.jsonl, or a log (also of bench --log).")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Path of the page; default: report.html next to the log.")
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
