"""Notebooks as programs: the Python of an ``.ipynb`` file, without IPython's commands.

A line is taken as a command only where it is not valid Python, so that ``% n`` may continue an expression. Statements
are compiled one by one, as in IPython, so that ``from __future__`` may stand anywhere. Each cell has a file name of its
own, which tracebacks show.
"""

from __future__ import annotations
import __future__

import ast
import functools
import json
import linecache
import operator
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, ModuleType

from feedline.errors import DataError, shown

# `%ls`, `!ls`, `?name` and `name?`, with their indentation.
_COMMAND = re.compile(r"(\s*)([%!?].*|[\w.]+\?{1,2}\s*)")
# Commands that run Python: the rest of their line, or of their cell.
_TIME = re.compile(r"\s*%time\s+(.+)")
# Flags of code that imports from `__future__`.
_FUTURE = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)
_OVER_PYTHON = ("%%time", "%%timeit", "%%capture", "%%prun")


def statements_of(path: Path, warn: Callable[[str], None]) -> list[CodeType]:
    """Return the statements of a notebook. The file name of each is ``"<notebook>, code cell <number>"``.

    Args:
        path: the notebook.
        warn: called with a sentence for each of IPython's commands that is left out.

    Raises:
        DataError: the file is no notebook of format 4 in Python, or a cell is neither Python nor a command.
    """
    statements: list[CodeType] = []
    flags = 0
    for number, source in enumerate(_cells(path), 1):
        cell = f"{path.name}, code cell {number}"
        try:
            python, commands = _python(source)
            for node in ast.parse(python, cell).body:
                statement = compile(ast.Module([node], []), cell, "exec", flags, dont_inherit=True)
                flags |= statement.co_flags & _FUTURE
                statements.append(statement)
        except SyntaxError as error:
            raise DataError(
                f"expected Python in code cell {number}, line {error.lineno}, got {shown(error.text, 80)}: {error.msg}",
                path=str(path),
                hint="rewrite Python 2, and commands of IPython whose results are used",
            ) from error
        linecache.cache[cell] = len(source), None, source.splitlines(keepends=True), cell  # for tracebacks
        for command in commands:
            warn(f"{cell}: left out {command}")
    return statements


def run_statements(statements: Iterable[CodeType]) -> None:
    """Run the statements of a notebook as ``__main__``, a module without a file, as in Jupyter."""
    before = sys.modules["__main__"]
    module = sys.modules["__main__"] = ModuleType("__main__")
    try:
        for statement in statements:
            exec(statement, vars(module))
    finally:
        sys.modules["__main__"] = before


def _cells(path: Path) -> list[str]:
    """Return the texts of the code cells."""
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        version, metadata, cells = notebook["nbformat"], notebook.get("metadata", {}), notebook.get("cells", [])
        language = metadata.get("language_info", {}).get("name", "python")
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"expected a notebook in JSON: {error!r}", path=str(path)) from error
    if version != 4 or language != "python":
        raise DataError(
            f"expected a notebook of format 4 in python, got format {shown(version, 20)} in {shown(language, 20)}",
            path=str(path),
            hint="`jupyter nbconvert --to notebook` converts old formats",
        )
    return sources


def _python(source: str) -> tuple[str, list[str]]:
    """Return a cell without commands, whose lines keep their numbers, and the commands.

    Raises:
        SyntaxError: a line is neither Python nor a command.
    """
    lines, commands = source.splitlines(), []
    if lines and lines[0].startswith("%%") and lines[0].split()[0] not in _OVER_PYTHON:
        return "", [f"a cell of {lines[0].split()[0]}"]
    while True:
        try:
            with warnings.catch_warnings(action="ignore"):  # it is compiled again to run
                ast.parse("\n".join(lines))
        except SyntaxError as error:
            at = (error.lineno or 1) - 1
            line = lines[at] if at < len(lines) else ""
            command = _COMMAND.fullmatch(line)
            if command is None:
                raise
            timed = _TIME.fullmatch(line)
            lines[at] = command[1] + ("pass" if timed is None else timed[1])
            commands.append(line.strip() if timed is None else "%time")
            while timed is None and line.endswith("\\") and at + 1 < len(lines):  # it continues
                at += 1
                line, lines[at] = lines[at], ""
        else:
            return "\n".join(lines), commands
