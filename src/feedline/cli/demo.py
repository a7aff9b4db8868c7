"""``feedline demo``: train on real data. The program is examples/demo, installed as ``feedline_demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feedline.cli.console import Debug, Json


def demo(
    quick: Annotated[bool, typer.Option("--quick", help="Half a minute instead of two and a half.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the plot and the report.")] = Path("demo-out"),
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Train on real words, kill -9 halfway, resume with two workers, and prove that stream and model are identical."""
    from feedline_demo.command import demo as run  # imported here, as few runs need it

    run(quick, out, json)
