"""Functions that scripts define in Python are called, copied, saved and loaded as CNTK does."""

from __future__ import annotations

import numpy as np
import pytest

import feedline as fl
import feedline.cntk as C
from feedline.cntk.ops.functions import Function, UserFunction

torch = pytest.importorskip("torch", reason="torch is not installed")

DATA = np.array([[1, 2], [3, 4]], np.float32)


class Recorded(UserFunction):
    """The operand times a factor, with a note of every argument."""

    def __init__(self, x, name="", factor=2.0):
        super().__init__([x], name=name)
        self.factor, self.calls = factor, []

    def infer_outputs(self):
        x = self.inputs[0]
        return [C.output_variable(x.shape, x.dtype, x.dynamic_axes)]

    def forward(self, argument, device, outputs_to_retain):
        self.calls.append((device, set(outputs_to_retain)))
        return "state", argument * self.factor

    def backward(self, state, root_gradients):
        assert state == "state"
        return root_gradients * self.factor

    def clone(self, cloned_inputs):
        return Recorded(*cloned_inputs, name=self.name, factor=self.factor)

    def serialize(self):
        return {"factor": self.factor, "table": np.arange(3.0), "nested": {"list": [1, "a", None]}}

    @staticmethod
    def deserialize(inputs, name, state):
        assert state["nested"] == {"list": [1, "a", None]}
        np.testing.assert_array_equal(state["table"], [0, 1, 2])
        return Recorded(inputs[0], name, state["factor"])


class Pair(UserFunction):
    """Sum and difference of two sequences."""

    def __init__(self, a, b, name="pair"):
        super().__init__([a, b], name=name)

    def infer_outputs(self):
        x = self.inputs[0]
        return [C.output_variable(x.shape, x.dtype, x.dynamic_axes, name=name) for name in ("sum", "difference")]

    def forward(self, arguments, outputs, device=None, outputs_to_retain=None):
        assert device == C.cpu()
        outputs[self.outputs[0]] = [a + b for a, b in zip(*arguments, strict=True)]
        outputs[self.outputs[1]] = [a - b for a, b in zip(*arguments, strict=True)]

    def backward(self, state, root_gradients, variables):
        of_sum, of_difference = (root_gradients[output] for output in self.outputs)
        if self.inputs[0] in variables:
            variables[self.inputs[0]] = [s + d for s, d in zip(of_sum, of_difference, strict=True)]
        if self.inputs[1] in variables:
            variables[self.inputs[1]] = [s - d for s, d in zip(of_sum, of_difference, strict=True)]

    @staticmethod
    def deserialize(inputs, name, state):
        return Pair(*inputs, name=name)


class Halves(UserFunction):
    """Half of a sample, twice, as a dictionary of gradients for a single input."""

    def infer_outputs(self):
        x = self.inputs[0]
        return [C.output_variable(x.shape, x.dtype, x.dynamic_axes) for _ in range(2)]

    def forward(self, argument, outputs):
        for output in outputs:
            outputs[output] = argument / 2

    def backward(self, state, root_gradients):
        return sum(root_gradients.values()) / 2


class Constant(Recorded):
    def infer_outputs(self):
        x = self.inputs[0]
        return [C.output_variable(x.shape, x.dtype, x.dynamic_axes, needs_gradient=False)]

    def backward(self, state, root_gradients):
        raise AssertionError("its output needs no gradient")


def test_forward_gets_the_device_and_the_outputs_to_retain():
    x = C.input_variable(2, needs_gradient=True)
    user = Recorded(x)
    f = C.user_function(user)
    np.testing.assert_array_equal(f.eval({x: DATA}), 2 * DATA)
    np.testing.assert_array_equal((f + 1).grad({x: DATA}, wrt=[x]), [[2, 2], [2, 2]])
    assert user.calls == [(C.cpu(), set()), (C.cpu(), {user.outputs[0]})]


def test_backward_is_called_for_an_input_that_needs_a_gradient_though_no_parameter_is_below():
    class Counted(Recorded):
        backwards = 0

        def backward(self, state, root_gradients):
            self.backwards += 1
            return super().backward(state, root_gradients)

    weights = C.parameter(2, init=10)
    for needs_gradient, expected in ((True, 3), (False, 0)):
        x = C.input_variable(2, needs_gradient=needs_gradient)
        user = Counted(x)
        z = C.user_function(user) + weights
        trainer = C.Trainer(z, (C.reduce_sum(z), C.reduce_sum(z)), [C.sgd([weights], 0.1)])
        for _ in range(3):
            trainer.train_minibatch({x: DATA})
        z.eval({x: DATA})
        assert (len(user.calls), user.backwards) == (4, expected)
        assert [bool(retained) for _, retained in user.calls] == [needs_gradient] * 3 + [False]


def test_methods_get_as_many_arguments_as_they_take():
    x = C.input_variable(2, needs_gradient=True)
    f = C.user_function(Halves([x]))
    values = f.eval({x: DATA})
    assert [v.tolist() for v in values.values()] == [(DATA / 2).tolist()] * 2
    both = f.outputs[0] + 3 * f.outputs[1]
    np.testing.assert_array_equal(both.grad({x: DATA}, wrt=[x]), [[2, 2], [2, 2]])


def test_several_outputs_of_sequences_of_different_lengths():
    a, b = (C.sequence.input_variable(2, needs_gradient=True, name=name) for name in "ab")
    f = C.user_function(Pair(a, b))
    data = {a: [DATA, DATA[:1]], b: [DATA + 1, DATA[1:]]}
    total, difference = f.eval(data).values()
    assert [t.tolist() for t in total] == [[[3, 5], [7, 9]], [[4, 6]]]
    assert [d.tolist() for d in difference] == [[[-1, -1], [-1, -1]], [[-2, -2]]]
    gradients = (f.outputs[0] + 2 * f.outputs[1]).grad(data, wrt=[a, b])
    assert [g.tolist() for g in gradients[a]] == [[[3, 3], [3, 3]], [[3, 3]]]
    assert [g.tolist() for g in gradients[b]] == [[[-1, -1], [-1, -1]], [[-1, -1]]]


def test_an_output_that_needs_no_gradient_has_none():
    x = C.input_variable(2, needs_gradient=True)
    f = C.user_function(Constant(x)) + x
    np.testing.assert_array_equal(f.grad({x: DATA}, wrt=[x]), [[1, 1], [1, 1]])


class Sign(UserFunction):
    """The sign, whose gradient is that of a hard tanh, computed by functions of CNTK without arrays."""

    def __init__(self, x, name="sign"):
        super().__init__([x], as_numpy=False, name=name)
        self.x, self.weight = (C.input(shape=x.shape, dynamic_axes=x.dynamic_axes) for _ in range(2))
        above = C.greater(self.x, 0)
        self.action = C.element_select(above, above, -1)
        self.slope = C.element_times(self.weight, C.less_equal(abs(self.x), 1))
        self.shapes = []

    def infer_outputs(self):
        x = self.inputs[0]
        return [C.output_variable(x.shape, x.dtype, x.dynamic_axes)]

    def forward(self, argument, device, outputs_to_retain):
        self.shapes.append((argument.shape(), argument.data().shape(), argument.is_sparse(), argument.device()))
        _, values = self.action.forward({self.x: argument}, self.action.outputs, device=device, as_numpy=False)
        return argument.deep_clone(), values[self.action.output]

    def backward(self, state, root_gradients):
        data = {self.x: state, self.weight: root_gradients}
        _, values = self.slope.forward(data, self.slope.outputs, device=state.device(), as_numpy=False)
        return values[self.slope.output]


@pytest.mark.parametrize(
    ("variable", "data", "shape"),
    [
        (C.input_variable(2, needs_gradient=True), np.array([[0.5, -3], [2, -1]], np.float32), (2, 2)),
        (
            C.sequence.input_variable(2, needs_gradient=True),
            [np.array([[0.5, -3], [2, -1]], np.float32), np.array([[7, 0.25]], np.float32)],
            (2, 2, 2),
        ),
    ],
    ids=["batch", "sequences"],
)
def test_without_as_numpy_data_are_values_whose_properties_are_methods(variable, data, shape):
    user = Sign(variable)
    f = C.user_function(user)
    rows = data if isinstance(data, list) else [data]
    signs, slopes = ([function(r) for r in rows] for function in (np.sign, lambda r: 3 * (abs(r) <= 1)))
    results = f.eval({variable: data}), (3 * f).grad({variable: data}, wrt=[variable])
    for result, expected in zip(results, (signs, slopes), strict=True):
        for part, numbers in zip(result if isinstance(data, list) else [result], expected, strict=True):
            np.testing.assert_array_equal(part, numbers)
    assert user.shapes == [(shape, shape, False, C.cpu())] * 2


def test_values_of_bindings_over_a_parameter_and_of_other_shapes():
    class Pairs(UserFunction):
        def __init__(self, x, weights, name=""):
            super().__init__([x, weights], as_numpy=False, name=name)

        def infer_outputs(self):
            x = self.inputs[0]
            return [C.output_variable((2, 2), x.dtype, x.dynamic_axes)]

        def forward(self, arguments, device, outputs_to_retain):
            x, weights = arguments
            assert (x.shape()[0], weights.shape()) == (3, (4,))
            return arguments, C.cntk_py.Value(x.data().as_shape((3, 2, 2)))

        def backward(self, state, root_gradients, variables):
            assert state[1].asarray().tolist() == [1, 1, 1, 1]
            for variable in variables:
                rows = root_gradients.data().as_shape((3, 4))
                variables[variable] = rows if variable == self.inputs[0] else np.asarray(rows).sum(axis=0)

    x, weights = C.input_variable(4, needs_gradient=True), C.parameter(4, init=1)
    f = C.user_function(Pairs(x, weights))
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(f.eval({x: data}), data.reshape(3, 2, 2))
    gradients = (2 * f).grad({x: data}, wrt=[x, weights])
    assert [gradients[v].tolist() for v in (x, weights)] == [[[2] * 4] * 3, [6] * 4]


def test_over_a_placeholder_that_is_replaced_later():
    p, x = C.placeholder(), C.sequence.input_variable(2, needs_gradient=True)
    user = Pair(p, C.sequence.past_value(p))
    assert [v.name for v in user.inputs] == ["", ""]
    f = C.user_function(user)
    total = f.outputs[0] + f.outputs[1]
    total.replace_placeholder(x)
    assert total.shape == (2,)
    assert user.inputs[0] == x
    (result,) = total.eval({x: [DATA]})
    np.testing.assert_array_equal(result, 2 * DATA)


def test_in_networks_of_free_dimensions():
    x = C.input_variable((2, C.FreeDimension), needs_gradient=True)
    f = C.user_function(Recorded(x))
    assert f.shape == (2, C.FreeDimension)
    for width in (3, 5, 3):
        data = np.ones((1, 2, width), np.float32)
        np.testing.assert_array_equal(f.eval({x: data}), 2 * data)
        np.testing.assert_array_equal((f + 0).grad({x: data}, wrt=[x]), 2 * data)


def test_copies_of_a_graph_call_clone():
    x, y = C.input_variable(2, name="x"), C.input_variable(2)
    user = Recorded(x * 1, name="mine", factor=3.0)
    z = C.user_function(user) + 1
    for copy in (z.clone("share"), z.clone("clone", {x: y}), z(y)):
        np.testing.assert_array_equal(copy.eval(DATA), 3 * DATA + 1)
        assert copy.find_by_name("mine").op_name == "UserFunction"
    assert user.calls == []


def test_a_saved_function_is_loaded_by_its_class(tmp_path):
    x = C.input_variable(2, name="x")
    z = C.user_function(Recorded(C.user_function(Recorded(x, "first", 3.0)), "second", 5.0)) + 1
    path = str(tmp_path / "model")
    z.save(path)
    for model in (path, (tmp_path / "model").read_bytes()):
        loaded = Function.load(model)
        np.testing.assert_array_equal(loaded.eval(DATA), 15 * DATA + 1)
        description = loaded.find_by_name("first").serialize()
        assert (description["class"], description["state"]["factor"]) == ("Recorded", 3.0)
    with pytest.raises(fl.CompatError, match="expected a user's function, got Plus"):
        loaded.serialize()


def test_a_saved_function_of_several_outputs(tmp_path):
    a, b = C.sequence.input_variable(2, name="a"), C.sequence.input_variable(2, name="b")
    path = str(tmp_path / "model")
    C.user_function(Pair(a, b)).save(path)
    loaded = C.load_model(path)
    assert [output.name for output in loaded.outputs] == ["sum", "difference"]
    total, difference = loaded.eval({"a": [DATA], "b": [DATA]}).values()
    np.testing.assert_array_equal(total[0], 2 * DATA)
    np.testing.assert_array_equal(difference[0], 0 * DATA)


def test_a_registered_function_loads_the_operation(tmp_path):
    class Named(Recorded):
        @property
        def op_name(self):
            return "tests.named"

    x = C.input_variable(2)
    path = str(tmp_path / "model")
    C.user_function(Named(x, factor=4.0)).save(path)
    Function.register_udf_deserialize_callback("tests.named", lambda x, name, state: Recorded(x[0], name, 7.0))
    np.testing.assert_array_equal(C.load_model(path).eval(DATA), 7 * DATA)
    with pytest.raises(ValueError, match=r"got 'tests\.named' for the second time"):
        Function.register_udf_deserialize_callback("tests.named", lambda x, *unused: Recorded(x[0]))


def test_a_file_never_imports_a_module(tmp_path, monkeypatch):
    x = C.input_variable(2)
    path = str(tmp_path / "model")
    monkeypatch.setattr(Recorded, "__module__", "antigravity")
    C.user_function(Recorded(x, "fly")).save(path)
    monkeypatch.undo()
    with pytest.raises(fl.CompatError, match=r"`fly`: expected the class antigravity\.Recorded.*import antigravity"):
        C.load_model(path)


def test_errors_name_the_method():
    class Faulty(Recorded):
        def infer_outputs(self):
            return [self.not_existing]

    class Bare(Recorded):
        def forward(self, argument, device, outputs_to_retain):
            return argument

    class Forgetful(Pair):
        def forward(self, arguments, outputs, device=None, outputs_to_retain=None):
            outputs[self.outputs[0]] = arguments[0]

    x = C.input_variable(2)
    with pytest.raises(RuntimeError, match=r"Faulty\.infer_outputs: .*not_existing"):
        C.user_function(Faulty(x))
    with pytest.raises(ValueError, match=r"Bare\.forward: expected \(state, result\), got ndarray"):
        C.user_function(Bare(x)).eval(DATA)
    with pytest.raises(ValueError, match=r"Forgetful\.forward: expected a value for each output, got none for \[1\]"):
        C.user_function(Forgetful(x, x)).eval(DATA)


def test_a_state_of_other_types_is_not_saved(tmp_path):
    class Secretive(Recorded):
        def serialize(self):
            return {"what": {"inside": object()}}

    z = C.user_function(Secretive(C.input_variable(2)))
    with pytest.raises(ValueError, match=r"expected a state of strings as keys.*got object at 1/state/what/inside"):
        z.save(str(tmp_path / "model"))
    assert list(tmp_path.iterdir()) == []
