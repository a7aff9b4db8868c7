"""``feedline run --as cntk|mxnet SCRIPT``: run an old script, unchanged, under a façade.

The script runs in this process as ``python SCRIPT`` would run it: as ``__main__``, with its arguments in ``sys.argv``
and its folder first on ``sys.path``. Its exit code and tracebacks are unchanged. A notebook runs likewise, cell by
cell. With ``--json``, the script prints to stderr, and a document about its run is printed at its end.

Training under CNTK's names tries in its first steps whether one thread of torch is as fast as all, and prints the
result. ``--threads`` or ``OMP_NUM_THREADS`` override this.
"""

from __future__ import annotations

import importlib
import os
import platform
import runpy
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import typer

from feedline._version import __version__
from feedline.cli.console import Json, UsageError, fail, print_json
from feedline.cli.notebook import run_statements, statements_of
from feedline.cli.old_names import restore_old_names
from feedline.errors import CompatError, DataError

# Everything after SCRIPT belongs to the script, options too.
SETTINGS: dict[str, Any] = {"allow_interspersed_args": False, "ignore_unknown_options": True}
_FACADES = ("cntk", "mxnet")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def run(
    script: Annotated[Path, typer.Argument(help="A Python script or a notebook.")],
    facade: Annotated[str, typer.Option("--as", metavar="cntk|mxnet", help="Framework of the script.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the script.")] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Number of torch's threads. [default: tried in the first steps]")
    ] = None,
    json: Json = False,
) -> None:
    """Run a script or notebook written for CNTK or MXNet, unchanged."""
    left_out: list[str] = []

    def leave_out(sentence: str) -> None:
        print(sentence, file=sys.stderr)
        left_out.append(sentence)

    try:
        install(facade)
        set_threads(facade, threads)
        restore_old_names(lambda note: print(note, file=sys.stderr))
        if not script.is_file():
            raise FileNotFoundError(f"expected a script, got {script}, which is not a file")
        statements = statements_of(script, leave_out) if script.suffix == ".ipynb" else None
    except (CompatError, DataError, ValueError, FileNotFoundError, KeyboardInterrupt) as error:
        fail(error, json)
    sys.argv = [str(script), *(arguments or [])]
    sys.path.insert(0, str(script.resolve().parent))
    ending: BaseException | None = None
    began, hook, pid = time.perf_counter(), sys.excepthook, os.getpid()
    try:
        if statements is None:
            runpy.run_path(str(script), run_name="__main__")
        else:
            run_statements(statements)
    except (SystemExit, KeyboardInterrupt) as end:
        ending = end
        raise
    except Exception as error:
        ending = error
        names = {str(script)} if statements is None else {statement.co_filename for statement in statements}
        trimmed = error.with_traceback(_of_script(error.__traceback__, names))
        if sys.excepthook is hook:
            traceback.print_exception(trimmed)  # which has the lines of cells, too
        else:
            sys.excepthook(type(trimmed), trimmed, trimmed.__traceback__)
        raise typer.Exit(1) from None
    finally:
        if json and os.getpid() == pid:  # not in a child that the script has forked
            torch = sys.modules.get("torch")
            versions = {"python": platform.python_version(), "feedline": __version__}
            print_json(
                {
                    "script": str(script),
                    "facade": facade,
                    "arguments": arguments or [],
                    **_ending(ending),
                    "seconds": time.perf_counter() - began,
                    "left_out": left_out,
                    "versions": versions if torch is None else versions | {"torch": str(torch.__version__)},
                }
            )


def _ending(ending: BaseException | None) -> dict[str, Any]:
    """Return the exit code that an exception gives a script, and the error, if it is one."""
    if ending is None:
        return {"exit_code": 0}
    if isinstance(ending, SystemExit) and isinstance(ending.code or 0, int):
        return {"exit_code": int(ending.code or 0) & 0xFF}  # the part that the system keeps
    interrupted = isinstance(ending, KeyboardInterrupt)
    message = "interrupted" if interrupted else str(ending)
    return {"exit_code": 130 if interrupted else 1, "error": {"type": type(ending).__name__, "message": message}}


def _of_script(frames: TracebackType | None, names: set[str]) -> TracebackType | None:
    """Return the frames from the first one in files of these names on, without the frames that run a script."""
    while frames is not None and frames.tb_frame.f_code.co_filename not in names:
        frames = frames.tb_next
    return frames


def set_threads(facade: str, threads: int | None) -> None:
    """Set the number of torch's threads. None means that a trainer of CNTK tries it, unless the environment sets it."""
    if threads is not None:
        os.environ.update(dict.fromkeys(_THREADS, str(threads)))
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(threads)
    elif facade == "cntk" and not any(os.environ.get(name) for name in _THREADS):
        importlib.import_module("feedline.cntk._threads").want()


def install(facade: str) -> None:
    """Register a façade under its old name.

    Raises:
        UsageError: there is no such façade.
        CompatError: the framework itself has been imported.
    """
    if facade not in _FACADES:
        raise UsageError(f"expected --as {' or '.join(_FACADES)}, got {facade!r}")
    importlib.import_module(f"feedline.{facade}").install()
