"""CNTK's variables and functions: operators and methods that are made above them, and marked defaults of layers."""

from __future__ import annotations

import inspect
import operator

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import feedline.cntk as C
from feedline.cntk import _operand
from feedline.cntk.default_options import default_override_or

BINARY = {
    operator.add: "plus",
    operator.sub: "minus",
    operator.mul: "element_times",
    operator.truediv: "element_divide",
    operator.matmul: "times",
}
COMPARISONS = {
    operator.lt: "less",
    operator.le: "less_equal",
    operator.gt: "greater",
    operator.ge: "greater_equal",
}


@pytest.mark.parametrize("name", sorted(_operand._REGISTERED))
def test_what_is_registered_is_there(name):
    assert callable(_operand.registered_operation(name))


@pytest.mark.parametrize("made", [lambda x: x, lambda x: C.relu(x)], ids=["variable", "function"])
def test_operators_are_operations_in_the_order_of_their_operands(made):
    x, matrix = made(C.input_variable((2, 2))), np.eye(2, dtype=np.float32)
    for apply, name in BINARY.items():
        for result, place in ((apply(x, matrix), 0), (apply(matrix, x), 1)):
            assert (result.node.op, result.node.inputs[place]) == (name, x.node)
    for apply, name in {**COMPARISONS, operator.pow: "pow"}.items():
        result = apply(x, 2)
        assert (result.node.op, result.node.inputs[0]) == (name, x.node)
    assert [(-x).op_name, abs(x).op_name, x[0].op_name] == ["Negate", "Abs", "Slice"]


def test_a_marked_default_is_resolved_wherever_it_is_passed():
    x = C.input_variable(2)
    marked = default_override_or(C.tanh)
    for made in (C.layers.Dense(3, marked), C.layers.Dense(3, activation=marked)):
        assert [f.op_name for f in (made(x).block_root, made(x).block_root)] == ["Tanh", "Tanh"]
    with C.default_options_for(C.layers.Dense, activation=C.relu):
        assert C.layers.Dense(3, marked)(x).block_root.op_name == "ReLU"
        assert C.layers.Dense(3, C.sigmoid)(x).block_root.op_name == "StableSigmoid"


def test_factories_keep_their_signatures_and_refuse_other_arguments():
    assert [*inspect.signature(C.layers.Delay).parameters] == ["T", "initial_state", "name"]
    with pytest.raises(TypeError, match=r"Delay\(\) takes from 0 to 3 positional arguments"):
        C.layers.Delay(1, 0, "", 4)
    with pytest.raises(TypeError, match=r"Delay\(\) got an unexpected keyword argument 'function'"):
        C.layers.Delay(function=1)
    with pytest.raises(TypeError, match=r"Delay\(\) got multiple values for argument 'T'"):
        C.layers.Delay(1, T=2)
