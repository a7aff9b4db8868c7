"""Every operator, criterion and metric under CNTK's names against its formula in NumPy: values, gradients and shapes.

The tables are in tests/compat/cntk_cases; a name that the façade has and no table is an error here.
"""

from __future__ import annotations

import inspect

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline.cntk as C  # noqa: E402
from feedline.cntk._names import NAMES  # noqa: E402
from tests.compat.cntk_cases import TABLE  # noqa: E402
from tests.compat.cntk_cases.case import Case, problems  # noqa: E402

#: Operators without a formula, and why.
EXCEPTIONS = {
    "as_block": "groups nodes; test_cntk_networks",
    "as_composite": "returns its operand",
    "input": "makes a variable",
    "input_variable": "makes a variable",
    "output_variable": "makes a variable",
    "parameter": "makes a variable",
    "constant": "makes a variable",
    "placeholder": "makes a variable",
    "placeholder_variable": "makes a variable",
    "load_model": "reads a file; test_cntk_networks",
    "user_function": "calls the script; test_cntk_networks",
    "batch_normalization": "has state; the numbers of CNTK are in cntk_numbers.json",
    "random_sample": "draws; test_cntk_ops",
    "random_sample_inclusion_frequency": "test_cntk_old_scripts",
    "sequence.input": "makes a variable",
    "sequence.input_variable": "makes a variable",
}


def operators():
    """Functions of the façade by the name under which scripts call them."""
    found = {}
    for module, prefix in (("ops", ""), ("ops.sequence", "sequence."), ("losses", ""), ("metrics", "")):
        where = C
        for part in module.split("."):
            where = getattr(where, part)
        for name in NAMES[f"cntk.{module}"].importable:
            if inspect.isfunction(getattr(where, name)) and name[0].islower():
                found[prefix + name] = getattr(where, name)
    return found


def test_every_operator_has_a_formula():
    assert set(operators()) - set(TABLE) - set(EXCEPTIONS) == set()
    assert set(TABLE) | set(EXCEPTIONS) == set(operators()), "names that the façade does not have"
    assert set(TABLE) & set(EXCEPTIONS) == set()
    assert all(TABLE.values())


@pytest.mark.parametrize("name", sorted(TABLE))
def test_operators_are_their_formulas(name):
    found = {}
    for i, case in enumerate(TABLE[name]):
        for dtype in case.only or (np.float32, np.float64):
            wrong = problems(C, name, case, dtype)
            if wrong:
                found[f"case {i}, {np.dtype(dtype).name}"] = wrong
    assert found == {}


def test_a_wrong_formula_is_noticed():
    """Of the value, of the gradient, of the shape."""
    x = [[-1.0, 2.0]]
    right = Case([x], lambda x: np.maximum(x, 0), slopes=lambda x: (1.0 * (x > 0),))
    assert problems(C, "relu", right, np.float32) == []
    for wrong, what in (
        (Case([x], lambda x: x, slopes=right.slopes), "value"),
        (Case([x], right.formula, slopes=lambda x: (1.0 * (x < 0),)), "gradient 0"),
        (Case([x], right.formula, slopes=right.slopes, typed=(2, 1)), "shape (2,)"),
        (Case([x], right.formula, slopes=right.slopes, steepness=1), "TypeError"),
    ):
        (found,) = problems(C, "relu", wrong, np.float64)
        assert found.startswith(what)
