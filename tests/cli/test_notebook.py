"""`feedline run` of notebooks: their Python runs as a script, IPython's commands are left out with a message."""

from __future__ import annotations

import ast
import json

import pytest

from feedline.cli.notebook import statements_of
from feedline.errors import DataError
from tests.cli.shell import feedline


def notebook(path, *cells, **changes):
    """Write a notebook with these code cells after a heading. Lines are a list, as Jupyter writes them."""
    code = [
        {"cell_type": "code", "source": cell.splitlines(keepends=True), "outputs": [], "metadata": {}} for cell in cells
    ]
    about = {"language_info": {"name": "python"}, "kernelspec": {"name": "python3"}}
    heading = {"cell_type": "markdown", "source": ["# %not code"], "metadata": {}}
    path.write_text(
        json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": about, "cells": [heading, *code]} | changes)
    )
    return path


def test_a_notebook_runs_as_a_script(tmp_path):
    """Under a façade, with arguments, modules next to it, and its own name as `__main__`."""
    (tmp_path / "beside.py").write_text("value = 41\n")
    path = notebook(
        tmp_path / "old.ipynb",
        "%matplotlib inline\nimport sys\nimport mxnet as mx\nfrom beside import value\n!pip install mxnet",
        "def added(n):\n    return n + 1\n\nmx.sym.Variable?",
        "print(added(value), mx.sym.Variable('x').name, sys.argv[1:], __name__)",
    )
    done = feedline("run", "--as", "mxnet", path, "an argument", "--flag")
    assert done.stdout == "42 x ['an argument', '--flag'] __main__\n"
    assert done.stderr.splitlines() == [
        "old.ipynb, code cell 1: left out %matplotlib inline",
        "old.ipynb, code cell 1: left out !pip install mxnet",
        "old.ipynb, code cell 2: left out mx.sym.Variable?",
    ]


def test_a_traceback_names_cells_and_their_lines(tmp_path):
    path = notebook(tmp_path / "old.ipynb", "%ls\ndef inner():\n    raise KeyError('mine')", "inner()  # called here")
    told = feedline("run", "--as", "mxnet", path, code=1).stderr
    assert [line for line in told.splitlines()[1:] if line.strip(" ^~")] == [
        "Traceback (most recent call last):",
        '  File "old.ipynb, code cell 2", line 1, in <module>',
        "    inner()  # called here",
        '  File "old.ipynb, code cell 1", line 3, in inner',
        "    raise KeyError('mine')",
        "KeyError: 'mine'",
    ]


def test_imports_from_the_future_hold_from_there_on(tmp_path):
    path = notebook(
        tmp_path / "old.ipynb",
        "%matplotlib inline\nfrom mxnet import nd\nfrom __future__ import division, annotations",
        "def f(x: Unknown): return x\nprint(f.__annotations__)",
    )
    assert feedline("run", "--as", "mxnet", path).stdout == "{'x': 'Unknown'}\n"


def test_what_is_no_notebook(tmp_path):
    path = tmp_path / "old.ipynb"
    path.write_text("print(1)\n")
    told = feedline("run", "--as", "mxnet", path, code=1).stderr
    assert told.startswith("DataError: expected a notebook in JSON")
    assert f"at {path}" in told


@pytest.mark.parametrize(
    ("cell", "script", "left_out"),
    [
        ("x = (7\n% 4)\n'''\n%no\n!no\n'''", "x = (7\n% 4)\n'''\n%no\n!no\n'''", []),
        ("for i in y:\n    !ls {i}\n    z = i", "for i in y:\n    pass\n    z = i", ["!ls {i}"]),
        ("a = 1\n%time b = f(a)", "a = 1\nb = f(a)", ["%time"]),
        ("%%time\nb = 1", "pass\nb = 1", ["%%time"]),
        ("%timeit -n 3 f(a)", "pass", ["%timeit -n 3 f(a)"]),
        ("%%capture out\nb = 1", "pass\nb = 1", ["%%capture out"]),
        ("%%bash\nls", "", ["a cell of %%bash"]),
        ("?print\nprint??\n%load_ext x", "pass\npass\npass", ["?print", "print??", "%load_ext x"]),
        ("!pip install \\\n  a \\\n  b\nc = 1", "pass\n\n\nc = 1", ["!pip install \\"]),
        ("", "", []),
    ],
)
def test_commands_are_left_out(tmp_path, cell, script, left_out):
    told = []
    statements = statements_of(notebook(tmp_path / "n.ipynb", cell), told.append)
    nodes = ast.parse(script).body
    assert [(s.co_code, s.co_consts, s.co_firstlineno) for s in statements] == [
        (s.co_code, s.co_consts, s.co_firstlineno)
        for s in (compile(ast.Module([node], []), "n.ipynb, code cell 1", "exec") for node in nodes)
    ]
    assert told == [f"n.ipynb, code cell 1: left out {line}" for line in left_out]


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("a = 1\nfiles = !ls", "expected Python in code cell 2, line 2, got 'files = !ls"),
        ("print 1", "expected Python in code cell 2, line 1, got 'print 1"),
        ("f(", "expected Python in code cell 2, line 1"),
    ],
)
def test_cells_that_are_neither_python_nor_commands(tmp_path, cell, message):
    with pytest.raises(DataError, match=message):
        statements_of(notebook(tmp_path / "n.ipynb", "b = 0", cell), print)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nbformat": 3}, "got format 3 in 'python'"),
        ({"metadata": {"language_info": {"name": "R"}}}, "got format 4 in 'R'"),
        ({"cells": [{"cell_type": "code"}]}, "expected a notebook in JSON: KeyError"),
        ({"cells": {}, "nbformat": 4, "metadata": []}, "expected a notebook in JSON"),
    ],
)
def test_other_notebooks_are_refused(tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        statements_of(notebook(tmp_path / "n.ipynb", "b = 0", **changes), print)
