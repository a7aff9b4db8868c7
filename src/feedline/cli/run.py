"""``feedline run --as cntk|mxnet SCRIPT``: an old script, unchanged, under the façade.

The script runs in this process as ``python SCRIPT`` would run it: as ``__main__``, with its arguments in ``sys.argv``
and its folder first on ``sys.path``. Its exit code and tracebacks are its own.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from feedline.cli.console import explain
from feedline.errors import CompatError

# Everything behind SCRIPT belongs to it, options too.
SETTINGS: dict[str, Any] = {"allow_interspersed_args": False, "ignore_unknown_options": True}
_FACADES = ("cntk", "mxnet")


def run(
    script: Annotated[Path, typer.Argument(help="A Python script.")],
    facade: Annotated[str, typer.Option("--as", metavar="cntk|mxnet", help="Whose names the script uses.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the script.")] = None,
) -> None:
    """Run a script written for CNTK or MXNet, unchanged."""
    try:
        install(facade)
        if not script.is_file():
            raise FileNotFoundError(f"expected a script, got {script}, which is no file")
    except (CompatError, ValueError, FileNotFoundError) as error:
        print(explain(error), file=sys.stderr)
        raise typer.Exit(1) from None
    sys.argv = [str(script), *(arguments or [])]
    sys.path.insert(0, str(script.resolve().parent))
    runpy.run_path(str(script), run_name="__main__")


def install(facade: str) -> None:
    """Register a façade under its old name.

    Raises:
        ValueError: no such framework.
        CompatError: the framework itself was imported before.
    """
    if facade not in _FACADES:
        raise ValueError(f"expected --as {' or '.join(_FACADES)}, got {facade!r}")
    importlib.import_module(f"feedline.{facade}").install()
