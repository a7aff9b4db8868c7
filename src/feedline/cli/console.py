"""How commands speak: a table or one JSON document on stdout, progress and errors on stderr.

Progress bars are drawn on a terminal only. Errors are the library's messages; tracebacks come with ``--debug``.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

# What messages of the library tell to write in Python, and what to type here instead.
_TYPED = {
    "overwrite=True": "--overwrite",
    'pass on_error="skip" to the source to drop such sequences and count them': "convert --skip-errors leaves them out",
    'pass on_error="skip" to leave such rows out and count them': "--skip-errors leaves such rows out",
    "=fl.Stream(...)": "=SHAPE behind --stream",
    "streams={...} names the columns to take": "--stream NAME=COLUMN says which columns to take",
    "fl.convert(path, 'corpus')": "feedline convert PATH STORE",
}

F = TypeVar("F", bound=Callable[..., Any])


def stdout() -> Console:
    """Where results go. Made when needed, as tests and callers exchange the streams."""
    return Console(file=sys.stdout, highlight=False, soft_wrap=not sys.stdout.isatty())


def stderr() -> Console:
    """Where progress and errors go."""
    return Console(file=sys.stderr, highlight=False)


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


def print_facts(title: str, facts: dict[str, str]) -> None:
    """A title and aligned ``name  value`` lines."""
    console = stdout()
    console.print(title, style="bold", markup=False)
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        console.print(f"  {name:<{width}}  {value}", markup=False)


def print_table(columns: list[str], rows: list[list[str]], left: int = 1) -> None:
    """A table whose first ``left`` columns are aligned to the left, the others to the right."""
    table = Table(box=None, pad_edge=True, header_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i < left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    stdout().print(table, markup=False)


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr for the time of the block, if stderr is a terminal.

    Yields:
        A function of (done, total), as the library's ``progress=`` arguments want it.
    """
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=stderr(), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def guarded(command: F) -> F:
    """A command that ends in a message and an exit code instead of a traceback."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(130) from None
        except BrokenPipeError:
            # The reader has seen enough (`feedline plan ... | head`); nobody is left to tell.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except typer.Exit:
            raise
        except Exception as error:
            if kwargs.get("debug"):
                raise
            print(explain(error), file=sys.stderr)
            raise typer.Exit(1) from None

    return run  # type: ignore[return-value]


def explain(error: BaseException) -> str:
    """An error in a few lines: its class and what it says."""
    said = typed(str(error))
    if isinstance(error, OSError) and error.strerror is not None:
        said = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def typed(message: str) -> str:
    """A message of the library with options of the command line for arguments of Python."""
    for python, option in _TYPED.items():
        message = message.replace(python, option)
    return message


def show_bytes(n: float) -> str:
    """A number of bytes for people: ``1.5 GB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(n) < 1000:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} TB"


def show_count(n: float) -> str:
    """A large number for people: ``1 234 567``."""
    return f"{n:,.0f}".replace(",", "\u202f") if sys.stdout.encoding.lower().startswith("utf") else f"{n:,.0f}"
