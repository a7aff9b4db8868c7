"""All commands in one application."""

from __future__ import annotations

from typing import Annotated

import typer

from feedline._version import __version__
from feedline.cli.audit import audit
from feedline.cli.bench import bench
from feedline.cli.console import guarded
from feedline.cli.convert import convert
from feedline.cli.demo import demo
from feedline.cli.inspect import inspect
from feedline.cli.plan import plan
from feedline.cli.report import report
from feedline.cli.run import SETTINGS, run
from feedline.cli.validate import validate
from feedline.cli.watch import watch

app = typer.Typer(
    help="Feed training from disk: same order every time, from any point, larger than memory.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (inspect, convert, validate, plan, audit, bench, report, watch, demo):
    app.command()(guarded(command))
# Not guarded: a script's errors and tracebacks are its own.
app.command(context_settings=SETTINGS)(run)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"feedline {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Feed training from disk: same order every time, from any point, larger than memory."""
