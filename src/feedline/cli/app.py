"""All commands in one application, which imports only the command that is run."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated

import typer

from feedline import _native
from feedline._version import __version__
from feedline.cli.console import guard, print_failure, print_json
from feedline.cli.schemas import schema
from feedline.system import PORTABLE

# Help of each command in `feedline --help`: the first words of the command's help, which a test compares.
COMMANDS = {
    "inspect": "Show format, streams, counts, lengths and the first sequences of a corpus.",
    "convert": "Convert a corpus to a store, all or nothing. After an interrupt the same command continues.",
    "validate": "Read every sequence once, checksums included. The exit code is 1 if one is damaged.",
    "plan": "Show which sequences are in a minibatch, without reading them, and the cost of the default order on this "
    "machine. For an address, show what a job will fetch from there on.",
    "audit": "Compute from a run's log which sequences were in which step, and how often each corpus of a mixture was "
    "read.",
    "bench": "Feed as fast as possible and show where the time goes, compared with this machine's copy speed.",
    "tune": "Search for faster settings of a feed on your data, and print the arguments to use.",
    "report": "Make one HTML page of a training run or a bench: what was learned, where the time went, what was fed.",
    "watch": "Watch a training run: how far it is, how long it will take, its loss and speed, and what limits it.",
    "doctor": "Say what limits a run: the stage, the rank, the reason with its evidence, and the setting to change.",
    "demo": "Train on real words, kill -9 halfway, resume with two workers, and prove that stream and model are "
    "identical.",
    "index": "Write an index beside each file, so that machines that open the files later need not scan them.",
    "state": "Show in words what saved states say: place, order and data.",
    "export": "Write a network of CNTK or MXNet as ONNX or as a module of torch, or its weights as safetensors.",
    "run": "Run a script or notebook written for CNTK or MXNet, unchanged.",
}


def app_for(selected: str | None) -> typer.Typer:
    """Return the application with the command ``selected``, and the names and help of all others."""
    app = typer.Typer(
        help="Feed training from disk: same order every time, from any point, larger than memory.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(options)
    for name, about in COMMANDS.items():
        if name != selected:
            app.command(name, help=about)(_of_another_call)
            continue
        module = importlib.import_module(f"feedline.cli.{name}")
        # A script's errors and tracebacks pass unchanged.
        command = module.run if name == "run" else guard(getattr(module, name))
        app.command(name, context_settings=module.SETTINGS if name == "run" else None)(command)
    return app


def wanted_of(arguments: list[str]) -> str | None:
    """Return the command among the arguments of the program. None if there is none."""
    return next((argument for argument in arguments if argument in COMMANDS), None)


def main() -> None:
    """Run the command line."""
    arguments = sys.argv[1:]
    try:
        app_for(wanted_of(arguments))(prog_name="feedline")
    except SystemExit as end:
        # typer has printed an error in the arguments, before there was a command that could print a document.
        message = getattr(end.__context__, "format_message", None)
        if message is not None and "--json" in arguments:
            print_failure("UsageError", message())
        raise


def _of_another_call() -> None:
    raise AssertionError("expected the requested command to be imported")


def _show_version(requested: bool) -> None:
    if requested:
        parts = ["portable"] * PORTABLE + ["portable core"] * _native.PORTABLE
        typer.echo(" ".join(["feedline", __version__, *([f"({', '.join(parts)})"] if parts else [])]))
        raise typer.Exit


def _show_schema(command: str | None) -> None:
    if command is not None:
        if command not in COMMANDS:
            raise typer.BadParameter(f"expected {', '.join(COMMANDS)}, got {command!r}")
        print_json(schema(command))
        raise typer.Exit


def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    json_schema: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            callback=_show_schema,
            is_eager=True,
            help="Print the JSON Schema of a command's output with --json, and exit.",
        ),
    ] = None,
) -> None:
    """Feed training from disk: same order every time, from any point, larger than memory."""
