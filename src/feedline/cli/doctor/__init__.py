"""``feedline doctor RUN ...``: what limits a run, on which rank, why, and what to change."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feedline.cli.console import Debug, Json, print_result
from feedline.runs.diagnosis import diagnose, findings_document, findings_text, read_records


def doctor(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN ...", help="Run folders, or logs of ranks, also of a run in progress.")
    ],
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Say what limits a run: the stage, the rank, the reason with its evidence, and the setting to change."""
    records = [record for run in runs for record in read_records(run)]
    findings = diagnose(records)
    print_result(findings_document(findings), json, lambda _: typer.echo(findings_text(findings, records)))
