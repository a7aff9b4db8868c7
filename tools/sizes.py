"""Print the sizes of interfaces, constructors and folders; fail where one exceeds its limit in `tools/sizes.toml`.

usage: sizes.py

A limit is raised in the commit that needs it, which says why. Code lines have neither docstrings nor comments.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "feedline"
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def definition(place: str) -> ast.ClassDef | ast.FunctionDef:
    """Return the class or function at ``file.py:Name``, below `SOURCE`."""
    file, _, name = place.partition(":")
    for node in ast.parse((SOURCE / file).read_text("utf-8")).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
            return node
    raise SystemExit(f"expected {name} in {SOURCE / file}, which tools/sizes.toml names, found none")


def members(place: str) -> int:
    """Return the number of public methods, properties and attributes that a class defines."""
    found = definition(place)
    names: set[str] = set()
    for node in found.body:
        if isinstance(node, FUNCTIONS):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return sum(not name.startswith("_") for name in names)


def parameters(place: str) -> int:
    """Return the number of parameters of a function, or of the constructor of a class."""
    found = definition(place)
    if isinstance(found, ast.ClassDef):
        found = next(node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    arguments = found.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return sum(argument.arg != "self" for argument in every) + (arguments.kwarg is not None)


def code_lines(path: Path) -> int:
    """Return the number of lines of code of a file."""
    text = path.read_text("utf-8")
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            lines.difference_update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


def lines_of(folder: str) -> int:
    """Return the number of lines of code in a folder below `SOURCE`; "." is the folder itself, without others."""
    files = SOURCE.glob("*.py") if folder == "." else (SOURCE / folder).rglob("*.py")
    return sum(map(code_lines, files))


MEASURES = {"members": members, "parameters": parameters, "lines": lines_of}


def main() -> int:
    """Print each size beside its limit."""
    limits = tomllib.loads((ROOT / "tools" / "sizes.toml").read_text("utf-8"))
    named = {name.split("/")[0] for name in limits["lines"]}
    exceeded = [
        f"a limit for the lines of {folder.name}"
        for folder in SOURCE.iterdir()
        if any(folder.glob("*.py")) and folder.name not in named
    ]
    for kind, measure in MEASURES.items():
        for place, limit in limits[kind].items():
            size = measure(place)
            print(f"{size:7,} of {limit:7,} {kind:10} {place}")
            if size > limit:
                exceeded.append(f"at most {limit:,} {kind} in {place}, found {size:,}")
    for each in exceeded:
        print(f"expected {each}; see tools/sizes.toml", file=sys.stderr)
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
