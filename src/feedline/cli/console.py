"""Output of commands: a table or one JSON document on stdout, progress and errors on stderr.

Progress is a bar on a terminal, and a line every half minute elsewhere. Errors show the library's messages, and
tracebacks with ``--debug``. With ``--json``, stdout has the document and nothing else. Output of user code and its
processes goes to stderr, and an error is a document, too.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import math
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator
from typing import Annotated, Any, NoReturn, TextIO, TypeVar

import typer
from rich.console import Console
from rich.table import Table

_documents: TextIO | None = None  # the original stdout, once it is reserved for documents


def _reserve_stdout(json: bool) -> bool:
    """Reserve stdout for documents. All other output goes to stderr, also that of user code and its processes."""
    global _documents
    # A caller in this process may have replaced it, and a closed one is None.
    if json and _documents is None and sys.stdout is not None and sys.stdout is sys.__stdout__:
        # A file name may hold undecodable bytes, for which Python's escapes are also JSON's.
        _documents = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
        os.dup2(os.open(os.devnull, os.O_WRONLY) if sys.stderr is None else 2, 1)
    return json


Json = Annotated[
    bool, typer.Option("--json", callback=_reserve_stdout, help="Print one JSON document and nothing else.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

# Python advice in the library's messages, and the command-line equivalent.
_TYPED = {
    "overwrite=True": "--overwrite",
    'pass on_error="skip" to the source to skip such sequences and count them': "convert --skip-errors leaves them out",
    'pass on_error="skip" to skip such rows and count them': "--skip-errors leaves such rows out",
    "=fl.Stream(...)": "=SHAPE after --stream",
    'schema="union"': "--schema union",
    "schema='union'": "--schema union",
    "streams={...} names the columns to take": "--stream NAME=COLUMN names the columns to take",
    "fl.convert(path, 'corpus')": "feedline convert PATH STORE",
    "raise the cache_bytes of fl.Remote to": "raise --cache to",
    "pass shuffle=fl.Window(...)": "pass --window, such as --window 256M",
}

# Advice to declare what becomes of missing samples.
_DECLARED = re.compile(
    r"""declare fl\.Stream\(\(([\d, ]*)\), "(\w+)"(, sparse=True)?, missing=(?:b?""|(\w+))\) for `([^`]+)` """
    "to fill them, with mask=True also to get"
)

F = TypeVar("F", bound=Callable[..., Any])


class UsageError(ValueError):
    """An argument on the command line is wrong. The process exits with 2."""


def stdout() -> Console:
    """Return the console for results. Created on demand, as tests and callers replace the streams."""
    return Console(file=sys.stdout, highlight=False, markup=False, soft_wrap=not sys.stdout.isatty())


def stderr() -> Console:
    """Return the console for progress and errors."""
    return Console(file=sys.stderr, highlight=False)


def print_json(document: Any) -> None:
    """Print one JSON document to stdout. Numbers that are not finite are null in it."""
    text = json.dumps(_finite(document), indent=2, ensure_ascii=False, allow_nan=False)
    print(text, file=_documents or sys.stdout, flush=True)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_failure(kind: str, message: str) -> None:
    """Print the document of an error to stdout."""
    print_json({"error": {"type": kind, "message": message}})


def print_result(result: Any, json: bool, show: Callable[[Any], object]) -> None:
    """Print a result: as one JSON document, or by ``show``."""
    if json:
        print_json(result)
    else:
        show(result)


def print_facts(title: str, facts: dict[str, str]) -> None:
    """Print a title and aligned ``name  value`` lines."""
    console = stdout()
    console.print(title, style="bold")
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        console.print(f"  {name:<{width}}  {value}")


def print_table(columns: list[str], rows: list[list[str]], left: int = 1, folded: bool = False) -> None:
    """Print a table whose first ``left`` columns are left-aligned, all others right-aligned.

    With ``folded``, long texts of the first column take several lines.
    """
    table = Table(box=None, pad_edge=True, header_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i < left else "right", no_wrap=i > 0 or not folded)
    for row in rows:
        table.add_row(*row)
    stdout().print(table)


@contextlib.contextmanager
def progress(what: str, unit: str = "B") -> Iterator[Callable[[int, int], None]]:
    """Show progress on stderr during the block: a bar on a terminal, elsewhere a line every half minute.

    Args:
        what: description, such as ``"converting"``.
        unit: unit of the numbers, ``"B"`` for bytes.

    Yields:
        A function of (done, total), for the library's ``progress=`` arguments.
    """
    from feedline.feed.progress_bar import showing  # imported late to keep `feedline --help` fast

    with showing(True, what, unit) as show:
        assert show is not None
        yield show


def guard(command: F) -> F:
    """Wrap a command to exit with a message and an exit code instead of a traceback."""
    options = frozenset(inspect.signature(command).parameters)

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except BrokenPipeError:
            # The reader has closed the pipe (`feedline plan ... | head`), so write nothing more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), (_documents or sys.stdout).fileno())
            raise typer.Exit(1) from None
        except typer.Exit:
            raise
        except (Exception, KeyboardInterrupt) as error:
            fail(error, bool(kwargs.get("json")), bool(kwargs.get("debug")), options)

    return run  # type: ignore[return-value]


def fail(error: BaseException, json: bool, debug: bool = False, options: Collection[str] = ()) -> NoReturn:
    """Print an error, and end the command with its exit code: 2 for wrong usage, 130 after Ctrl-C, else 1.

    Args:
        error: the error, which is being handled.
        json: whether to print it as a document, too.
        debug: whether to show its traceback, unless it is wrong usage or Ctrl-C.
        options: parameters of the command.
    """
    interrupted, misused = isinstance(error, KeyboardInterrupt), isinstance(error, UsageError)
    kind, text = type(error).__name__, "interrupted" if interrupted else message_of(error, options)
    if json:
        print_failure(kind, text)
    if debug and not (interrupted or misused):
        raise error
    print(text if interrupted else f"{kind}: {text}" if text else kind, file=sys.stderr)
    raise typer.Exit(130 if interrupted else 2 if misused else 1) from None


def message_of(error: BaseException, options: Collection[str] = ()) -> str:
    """Return the message of an error, for a command with these options."""
    if isinstance(error, OSError) and error.strerror is not None:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return use_option_names(str(error), options)


def use_option_names(message: str, options: Collection[str] = ()) -> str:
    """Replace Python arguments in a message of the library by command-line options.

    Args:
        message: the message.
        options: parameters of the command: ``text=`` becomes ``--text``, ``jobs=2`` becomes ``--jobs 2``, and sizes
            next to an option that takes bytes are in MiB.
    """
    for python, option in _TYPED.items():
        message = message.replace(python, option)
    message = re.sub(
        r"partition=fl\.Partition\(mesh, roles=\{(.*)\}\)",
        lambda m: " ".join(f"--role {name}=..." for name in re.findall(r'"([^"]+)": \.\.\.', m[1])),
        message,
    )
    message = _DECLARED.sub(_declared_option, message)
    if options:
        names = "|".join(sorted(options, key=len, reverse=True))
        message = re.sub(
            rf"""\b({names})=(?:(\d+)\b|(["'])(\w+)\3|(?=[\s,.;:)]|$))""",
            lambda m: " ".join(filter(None, [f"--{m[1].replace('_', '-')}", m[2] or m[4]])),
            message,
        )
    if re.search("--(memory|cache)", message):
        message = re.sub(
            r"(--(?:memory|cache)(?: to| of)?) (\d{7,})\b", lambda m: f"{m[1]} {-(-int(m[2]) >> 20)}M", message
        )
        message = re.sub(r"\b(\d{7,}) bytes\b", lambda m: f"{int(m[1]) / (1 << 20):,.1f} MiB", message)
    return message


def _declared_option(advice: re.Match[str]) -> str:
    shape = "x".join(re.findall(r"\d+", advice[1])) or "scalar"
    sparse = ":sparse" if advice[3] else ""
    option = f"--stream {advice[5]}={shape}{sparse}:{advice[2]}:missing={advice[4] or ''}"
    return f"pass {option} to fill them, with :mask also to get"


def show_bytes(n: float | None) -> str:
    """Format a number of bytes: ``1.5 GB``. None is unknown."""
    if n is None:
        return "unknown"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(n) < 1000:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} TB"


def show_count(n: float) -> str:
    """Format a large number: ``1 234 567``."""
    return f"{n:,.0f}".replace(",", "\u202f") if sys.stdout.encoding.lower().startswith("utf") else f"{n:,.0f}"
