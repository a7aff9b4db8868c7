"""Notebooks as scripts: the Python of an ``.ipynb`` file, without IPython's commands.

A line is taken as a command only where it is not valid Python, so that ``% n`` may continue an expression.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from feedline.errors import DataError, shown

# `%ls`, `!ls`, `?name` and `name?`, with their indentation.
_COMMAND = re.compile(r"(\s*)([%!?].*|[\w.]+\?{1,2}\s*)")
# Commands that run Python: the rest of their line, or of their cell.
_TIME = re.compile(r"\s*%time\s+(.+)")
_OVER_PYTHON = ("%%time", "%%timeit", "%%capture", "%%prun")


@contextlib.contextmanager
def as_script(path: Path, warn: Callable[[str], None]) -> Iterator[Path]:
    """Write the Python of a notebook into a temporary file of its name, and remove it at the end.

    Args:
        path: the notebook.
        warn: called with a sentence for each of IPython's commands that is left out.

    Raises:
        DataError: the file is no notebook of format 4 in Python, or a cell is neither Python nor a command.
    """
    text = script_of(path, warn)
    with tempfile.TemporaryDirectory(prefix="feedline-run-") as folder:
        script = Path(folder, path.with_suffix(".py").name)
        script.write_text(text, encoding="utf-8")
        yield script


def script_of(path: Path, warn: Callable[[str], None]) -> str:
    """Return the Python of a notebook, see `as_script`."""
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
    pieces = []
    for number, source in enumerate(sources, 1):
        place = f"{path.name}, code cell {number}"
        try:
            python, commands = _python(source)
        except SyntaxError as error:
            raise DataError(
                f"expected Python in code cell {number}, line {error.lineno}, got {shown(error.text, 80)}: {error.msg}",
                path=str(path),
                hint="rewrite Python 2, and commands of IPython whose results are used",
            ) from error
        for command in commands:
            warn(f"{place}: left out {command}")
        pieces.append(f"# {place}\n{python}\n")
    return "\n".join(pieces)


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
        else:
            return "\n".join(lines), commands
