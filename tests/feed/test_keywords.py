"""Callables with more than five parameters take them by keyword, in the feed and in its data types."""

import ast
from pathlib import Path

import pytest

import feedline

ROOT = Path(feedline.__file__).parent
MOST = 5

#: Functions that keep their positional parameters, and why.
POSITIONAL = {
    "feed/loader/loader.py:DataLoader.__init__",  # the order of torch's DataLoader
}  # fmt: skip

#: Calls with more arguments in order, and why.
CALLS = {
    "feed/assembly.py:self._gatherer.lacking",  # passes its own arguments on to the kernel
    "feed/reading/io_stalls.py:_log.warning",  # arguments of the format
}  # fmt: skip


def definitions(tree, prefix=""):
    """(qualified name, number of parameters that may be given in order) of every function."""
    for node in ast.iter_child_nodes(tree):
        name = f"{prefix}{getattr(node, 'name', '')}"
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            given = [argument.arg for argument in node.args.posonlyargs + node.args.args]
            yield name, len(given) - (given[:1] in (["self"], ["cls"]))
        yield from definitions(node, f"{name}." if isinstance(node, ast.ClassDef) else prefix)


def calls(tree):
    """Return (callable, number of positional arguments) of every call, including constructors of records."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), sum(not isinstance(argument, ast.Starred) for argument in node.args)


@pytest.mark.parametrize(("found", "allowed"), [(definitions, POSITIONAL), (calls, CALLS)])
def test_more_than_five_parameters_are_given_by_keyword(found, allowed):
    seen = {
        f"{path.relative_to(ROOT).as_posix()}:{name}"
        for folder in ("feed", "data")
        for path in (ROOT / folder).rglob("*.py")
        for name, count in found(ast.parse(path.read_text()))
        if count > MOST
    }
    assert seen - allowed == set(), "add `*`, and give the parameters behind it by name"
    assert allowed - seen == set(), "these keep the rule now: take them off the list"
