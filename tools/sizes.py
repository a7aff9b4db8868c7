"""Print the sizes of interfaces, constructors and folders, and count vague names.

usage: sizes.py

Fails where a figure exceeds its limit in `tools/sizes.toml`. Raise a limit in the commit that needs it, and give the
reason in its message. Code lines have neither docstrings nor comments.
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
FACADES = ("cntk", "mxnet")


def definition(place: str) -> ast.ClassDef | ast.FunctionDef:
    """Return the class or function at ``file.py:Name``, below `SOURCE`."""
    file, _, name = place.partition(":")
    for node in ast.parse((SOURCE / file).read_text("utf-8")).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
            return node
    raise SystemExit(f"expected {name} in {SOURCE / file}, which tools/sizes.toml names, found none")


def members(place: str) -> int:
    """Return the number of public methods, properties and attributes that a class defines."""
    cls = definition(place)
    names: set[str] = set()
    for node in cls.body:
        if isinstance(node, FUNCTIONS):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return sum(not name.startswith("_") for name in names)


def parameters(place: str) -> int:
    """Return the number of parameters of a function, or of the constructor of a class."""
    function = definition(place)
    if isinstance(function, ast.ClassDef):
        function = next(node for node in function.body if isinstance(node, FUNCTIONS) and node.name == "__init__")
    arguments = function.args
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
    """Return the number of lines of code in a folder below `SOURCE`; "." is the folder itself, without subfolders."""
    files = SOURCE.glob("*.py") if folder == "." else (SOURCE / folder).rglob("*.py")
    return sum(map(code_lines, files))


def bound_names(tree: ast.Module) -> list[str]:
    """Return the names of parameters and assigned variables, repeats included."""
    return [
        node.arg if isinstance(node, ast.arg) else node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    ]


def public_parameters(body: list[ast.stmt]) -> list[str]:
    """Return the parameters of public functions and methods, and of constructors of public classes."""
    names = []
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            names += public_parameters(node.body)
        elif isinstance(node, FUNCTIONS) and (not node.name.startswith("_") or node.name == "__init__"):
            arguments = node.args
            names += [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return names


def vague_names(words: list[str]) -> dict[str, int]:
    """Count ``words`` among the parameters of public functions, and in a thousand of all names.

    The public functions of the façades have the names of the originals.
    """
    public = every = vague = 0
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        names = bound_names(tree)
        every += len(names)
        vague += sum(name in words for name in names)
        if path.relative_to(SOURCE).parts[0] not in FACADES:
            public += sum(name in words for name in public_parameters(tree.body))
    return {"public parameters": public, "of a thousand names": round(1000 * vague / every)}


MEASURES = {"members": members, "parameters": parameters, "lines": lines_of}


def main() -> int:
    """Print each size with its limit."""
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
    for kind, count in vague_names(limits["vague"].pop("words")).items():
        limit = limits["vague"][kind]
        print(f"{count:7,} of {limit:7,} vague      {kind}")
        if count > limit:
            exceeded.append(f"at most {limit} vague names among {kind}, found {count}")
    for each in exceeded:
        print(f"expected {each}; see tools/sizes.toml", file=sys.stderr)
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
