"""Shapes that are known late, or that differ between minibatches. Reductions, pooling and eye by NumPy."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline as fl  # noqa: E402
import feedline.cntk as C  # noqa: E402
from feedline.networks.deferred import add_recipe, later  # noqa: E402
from feedline.networks.node import input_node, placeholder_node  # noqa: E402

FREE = C.FreeDimension


def close(found, expected, tolerance=1e-5):
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


# ---- late -----------------------------------------------------------------------------------------

DATA = np.random.default_rng(0).normal(size=(2, 4, 6, 1)).astype("f4")
CENTRED = DATA - DATA.mean((2, 3), keepdims=True)
SQUARES = np.pad(DATA.astype("f8") ** 2, ((0, 0), (1, 1), (0, 0), (0, 0)))
LATE = {
    "squeeze": (lambda x: C.squeeze(x), DATA[..., 0]),
    "squeeze one": (lambda x: C.squeeze(x, -1), DATA[..., 0]),
    "expand_dims": (lambda x: C.expand_dims(x, 1), DATA[:, :, :, None]),
    "flatten": (lambda x: C.flatten(x, 2), DATA.reshape(2, 24, 1)),
    "swapaxes": (lambda x: C.swapaxes(x, C.Axis(0), -1), DATA.transpose(0, 3, 2, 1)),
    "mean_variance": (
        lambda x: C.mean_variance_normalization(x, epsilon=0.5),
        CENTRED / (np.sqrt((CENTRED**2).mean((2, 3), keepdims=True)) + 0.5),
    ),
    "local_response": (
        lambda x: C.local_response_normalization(x, 1, 2.0, 0.3, 0.75),
        DATA / (2 + 0.3 / 3 * sum(SQUARES[:, i : i + 4] for i in range(3))) ** 0.75,
    ),
    "crop": (lambda x: C.crop_manual(x, C.constant(np.zeros((1, 2, 1))), 0, 3), DATA[:, :, 3:5]),
    "two of them": (lambda x: C.flatten(C.swapaxes(x, 0, 1), 1), DATA.transpose(0, 2, 1, 3).reshape(2, 6, 4)),
}


@pytest.mark.parametrize("case", LATE)
def test_compositions_wait_for_the_shape_of_a_placeholder(case):
    make, expected = LATE[case]
    x, p = C.input_variable(DATA.shape[1:], name="x", needs_gradient=True), C.placeholder(name="p")
    early, waiting = make(x), make(p)
    assert waiting.output.node.type.shape is None
    assert waiting.op_name == ("Crop" if case == "crop" else "Late")
    late = waiting.clone("share", {p: x})
    assert late.shape == early.shape == expected.shape[1:]
    waiting.replace_placeholders({p: x})
    for f in (early, late, waiting):
        close(f.eval({x: DATA}), expected)
    close(late.grad({x: DATA}, wrt=[x]), early.grad({x: DATA}, wrt=[x]))


def test_a_recurrence_may_be_of_compositions():
    """The state's shape follows from a composition over placeholders."""
    x = C.sequence.input_variable((2, 3))
    f = C.layers.Recurrence(lambda h, x: C.swapaxes(C.swapaxes(h, 0, 1) + C.swapaxes(x, 0, 1), 0, 1))(x)
    assert f.shape == (2, 3)
    data = np.arange(12, dtype="f4").reshape(2, 2, 3)
    close(f.eval({x: [data]})[0], np.cumsum(data, 0))


def test_a_composition_that_nothing_fixes_cannot_run():
    add_recipe("test of late", lambda node, label: node)
    node = later("test of late", [placeholder_node()], {})
    assert node.op == "late"
    from feedline.networks.registry import op

    with pytest.raises(ValueError, match="expected known shapes to make its parts"):
        op("late").lower(node)


# ---- free dimensions ------------------------------------------------------------------------------


def test_free_dimensions_flow_through_shapes():
    x = C.input_variable((3, FREE, FREE), name="x")
    assert x.shape == (3, FREE, FREE)
    layers = [
        C.layers.Convolution2D((3, 3), 4, pad=True),
        C.layers.MaxPooling((2, 2), strides=2),
        C.layers.BatchNormalization(map_rank=1),
        C.layers.GlobalAveragePooling(),
        C.layers.Dense(5),
    ]
    shapes = []
    z = x
    for layer in layers:
        z = layer(z)
        shapes.append(z.shape)
    assert shapes == [(4, FREE, FREE), (4, FREE, FREE), (4, FREE, FREE), (4, 1, 1), (5,)]
    assert [p.shape for p in z.parameters if p.name == "W"] == [(4, 1, 1, 5), (4, 3, 3, 3)]
    # The same as a network of the fixed shape with these parameters.
    rng = np.random.default_rng(1)
    for size in ((8, 6), (4, 4), (8, 6)):
        fixed = C.input_variable((3, *size))
        data = rng.normal(size=(2, 3, *size)).astype("f4")
        close(z.eval({x: data}), z.clone("share", {x: fixed}).eval({fixed: data}))
    with pytest.raises(ValueError, match=r"samples of shape \(3, -3, -3\)|expected an array"):
        z.eval({x: np.ones((1, 2, 4, 4), "f4")})


def test_networks_of_free_dimensions_train():
    """Two sizes in turn. The updates equal the updates of networks of fixed shapes that share the parameters."""
    rng = np.random.default_rng(2)
    batches = [(rng.normal(size=(4, 1, n)).astype("f4"), rng.normal(size=(4, 2)).astype("f4")) for n in (5, 9, 5)]

    def trained(free):
        C.cntk_py.set_fixed_random_seed(3)
        x, y = C.input_variable((1, FREE)), C.input_variable(2)
        model = C.layers.Sequential([C.layers.Convolution1D(3, 2, activation=C.tanh), C.layers.GlobalMaxPooling()])(x)
        model = C.squeeze(model) if free else model
        loss = C.squared_error(C.reshape(model, (2,)), y)
        learner = C.sgd(loss.parameters, C.learning_parameter_schedule(0.1, 1))
        found = []
        for data, target in batches:
            if free:
                trainer = C.Trainer(model, loss, [learner])
                trainer.train_minibatch({x: data, y: target})
            else:
                fixed = C.input_variable(data.shape[1:])
                made = loss.clone("share", {x: fixed, y: y})
                trainer = C.Trainer(None, made, [learner])
                trainer.train_minibatch({fixed: data, y: target})
            found.append(trainer.previous_minibatch_loss_average)
        return found, [p.value for p in loss.parameters]

    (losses, parameters), (expected, others) = trained(True), trained(False)
    C.cntk_py.reset_random_seed(0)
    close(losses, expected)
    for one, other in zip(parameters, others, strict=True):
        close(one, other)


def test_what_depends_on_a_free_dimension_waits():
    x = C.input_variable((FREE, 2), name="x")
    weights = C.parameter((-1, 3), init=1)
    product = C.times(C.flatten(x, 0), weights)
    assert product.output.node.type.shape in (None, (1, 3))
    assert weights.shape[0] in (-1,)
    close(product.eval({x: np.ones((1, 4, 2), "f4")}), [[[8, 8, 8]]])
    assert weights.shape == (8, 3)
    with pytest.raises(ValueError, match="first of the right"):
        product.eval({x: np.ones((1, 3, 2), "f4")})
    with pytest.raises(fl.CompatError, match="only inputs and placeholders"):
        C.parameter((FREE, 2))
    y = C.input_variable((FREE,), name="y")
    with pytest.raises(ValueError, match="expected data for input `y`"):
        (y * 2).eval({})


def test_a_mistake_is_found_when_the_data_gives_the_shape():
    x, y = C.input_variable((FREE, 2)), C.input_variable((3, 2))
    total = x + y
    close(total.eval({x: np.ones((1, 3, 2), "f4"), y: np.ones((1, 3, 2), "f4")}), np.full((1, 3, 2), 2))
    with pytest.raises(ValueError, match="shapes that broadcast"):
        total.eval({x: np.ones((1, 4, 2), "f4"), y: np.ones((1, 3, 2), "f4")})
    fixed = input_node((2, 2))
    assert fixed.shape == (2, 2)


def test_sequences_of_free_samples():
    x = C.sequence.input_variable((FREE,))
    f = C.sequence.reduce_sum(x * 2)
    close(f.eval({x: [np.ones((2, 5), "f4"), np.ones((3, 5), "f4")]}), [[4] * 5, [6] * 5])
    close(f.eval({x: [np.ones((2, 1), "f4")]}), [[4]])


# ---- unpacked sequences ---------------------------------------------------------------------------


def test_unpack():
    x = C.sequence.input_variable((2,), needs_gradient=True)
    steps, mask = C.sequence.unpack(x, -7).outputs
    assert (steps.shape, mask.shape) == ((FREE, 2), (FREE,))
    assert len(steps.dynamic_axes) == len(mask.dynamic_axes) == 1
    data = [np.float32([[1, 2], [3, 4], [5, 6]]), np.float32([[7, 8]])]
    both = C.combine([steps, mask])
    found = both(data)
    close(found[0], [data[0], [[7, 8], [-7, -7], [-7, -7]]])
    close(found[1], [[1, 1, 1], [1, 0, 0]])
    only = C.sequence.unpack(x, 0, no_mask_output=True)
    assert len(only.outputs) == 1
    total = C.reduce_sum(only * only, axis=0)
    assert total.shape == (1, 2)
    close(total.eval({x: data}), [[[35, 56]], [[49, 64]]])
    for one, rows in zip(total.grad({x: data}, wrt=[x]), data, strict=True):
        close(one, 2 * rows)
    # Softmax over the steps, as attention has it.
    shares = C.softmax(C.reshape(C.sequence.unpack(x[0], 0, no_mask_output=True), (-1,)))
    close(shares.eval({x: data[:1]}), [np.exp([1, 3, 5]) / np.exp([1, 3, 5]).sum()])


# ---- reductions -----------------------------------------------------------------------------------

HOW = {
    "sum": lambda a, axes: a.sum(axes, keepdims=True),
    "mean": lambda a, axes: a.mean(axes, keepdims=True),
    "max": lambda a, axes: a.max(axes, keepdims=True),
    "min": lambda a, axes: a.min(axes, keepdims=True),
    "prod": lambda a, axes: a.prod(axes, keepdims=True),
    "log_sum_exp": lambda a, axes: np.log(np.exp(a).sum(axes, keepdims=True)),
    "l1": lambda a, axes: np.abs(a).sum(axes, keepdims=True),
    "l2": lambda a, axes: np.sqrt((a**2).sum(axes, keepdims=True)),
    "sum_square": lambda a, axes: (a**2).sum(axes, keepdims=True),
}
ROWS = np.random.default_rng(4).normal(size=(5, 2, 3))
BATCH, SEQUENCE = C.Axis.default_batch_axis(), C.Axis.default_dynamic_axis()


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("rows", [ROWS, ROWS[:1], ROWS[:, :1, :1]], ids=["several", "one", "single numbers"])
def test_reductions_over_the_batch(how, rows):
    x = C.input_variable(rows.shape[1:], dtype=np.float64, needs_gradient=True)
    reduce = getattr(C, f"reduce_{how}")
    everything = reduce(x, axis=C.Axis.all_axes())
    close(everything.eval({x: rows}), HOW[how](rows, (0, 1, 2)).ravel()[0], 1e-12)
    assert everything.shape == ()
    for axis, axes in ((BATCH, (0,)), ([BATCH, 0], (0, 1)), ([0, 1, BATCH], (0, 1, 2)), ([BATCH, C.Axis(-1)], (0, 2))):
        f = reduce(x, axis=axis)
        expected = HOW[how](rows, axes)[0]
        assert f.shape == expected.shape
        close(f.eval({x: rows}), expected, 1e-12)
        gradient = f.grad({x: rows}, wrt=[x])
        moved = rows.copy()
        moved[0, 0, 0] += 1e-6
        numeric = (HOW[how](moved, axes).sum() - HOW[how](rows, axes).sum()) / 1e-6
        assert abs(gradient[0, 0, 0] - numeric) < 1e-4


@pytest.mark.parametrize("how", [name for name in HOW if name != "prod"])
def test_reductions_over_sequences(how):
    x = C.sequence.input_variable((2, 3), dtype=np.float64, needs_gradient=True)
    f = getattr(C, f"reduce_{how}")(x, axis=SEQUENCE)
    data = [ROWS[:3], ROWS[3:4], ROWS[4:] * 300]
    expected = [HOW[how](rows, (0,))[0] for rows in data]
    if how == "log_sum_exp":
        expected[2] = data[2][0]  # one step, far beyond what exp can take
    close(f.eval({x: data}), expected, 1e-10)
    assert all(np.isfinite(g).all() for g in f.grad({x: data}, wrt=[x]))


def test_what_cannot_be_reduced_over_sequences():
    x = C.sequence.input_variable(2)
    with pytest.raises(fl.CompatError, match="reduce_sum of logs"):
        C.reduce_prod(x, axis=SEQUENCE)
    with pytest.raises(ValueError, match="only a batch axis"):
        C.reduce_sum(x, axis=BATCH)


# ---- pooling, eye ---------------------------------------------------------------------------------


def pooled(image, size, stride, count_pad=None, ceil=False, maximum=False):
    """Windows by hand: not padded, but a last one may reach beyond the end."""
    n = image.shape[0]
    count = -(-(n - size) // stride) + 1 if ceil else (n - size) // stride + 1
    out = np.zeros((count, count))
    for i in range(count):
        for j in range(count):
            part = image[i * stride : i * stride + size, j * stride : j * stride + size]
            total = part.max() if maximum else part.sum() / (size * size if count_pad else part.size)
            out[i, j] = total
    return out


@pytest.mark.parametrize(("n", "size", "stride"), [(5, 2, 2), (6, 3, 2), (7, 3, 3), (4, 2, 2), (5, 3, 1)])
@pytest.mark.parametrize("count_pad", [False, True])
def test_windows_that_reach_beyond_the_end(n, size, stride, count_pad):
    x = C.input_variable((1, n, n))
    image = np.random.default_rng(5).normal(size=(1, 1, n, n)).astype("f4")
    for kind, maximum in ((C.MAX_POOLING, True), (C.AVG_POOLING, False)):
        f = C.pooling(x, kind, (size, size), (stride, stride), ceil_out_dim=True, include_pad=count_pad)
        expected = pooled(image[0, 0], size, stride, count_pad, True, maximum)
        assert f.shape == (1, *expected.shape)
        close(f.eval({x: image})[0, 0], expected)


def test_averages_that_count_padding():
    x = C.input_variable((1, 5, 5))
    image = np.random.default_rng(6).normal(size=(1, 1, 5, 5)).astype("f4")
    f = C.pooling(x, C.AVG_POOLING, (3, 3), (1, 1), auto_padding=[True], include_pad=True)
    close(f.eval({x: image})[0, 0], pooled(np.pad(image[0, 0], 1), 3, 1, True))
    plain = C.pooling(x, C.AVG_POOLING, (3, 3), (1, 1), auto_padding=[True])
    assert abs(plain.eval({x: image})[0, 0, 0, 0] - image[0, 0, :2, :2].mean()) < 1e-6


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("count", [1, 3, 5])
def test_an_identity_along_the_batch(sparse, count):
    x = C.input_variable(3)
    f = C.eye_like(x, sparse_output=sparse)
    assert (f.shape, f.dynamic_axes) == ((3,), x.dynamic_axes)
    close(f.eval({x: np.ones((count, 3), "f4")}), np.eye(count, 3))
    W = C.constant(np.arange(6, dtype="f4").reshape(3, 2))
    close(C.times(f, W).eval({x: np.ones((count, 3), "f4")}), np.eye(count, 3) @ W.value)
    with pytest.raises(ValueError, match="expected a matrix"):
        C.eye_like(C.constant(np.ones((1, 2, 3))))


# ---- slices, borders, the batch as an axis ---------------------------------------------------------


@pytest.mark.parametrize(
    ("begin", "end", "stride"), [(0, 0, -1), (1, 5, -1), (0, 0, -2), (1, 6, -3), (-3, -1, -1), (1, 6, 2)]
)
def test_slices_from_the_end(begin, end, stride):
    """CNTK's range is from low to high, for any stride."""
    x = C.input_variable((2, 7), needs_gradient=True)
    data = np.arange(14, dtype="f4").reshape(1, 2, 7)
    f = C.slice(x, 1, begin, end, stride)
    expected = data[:, :, begin : end or None][:, :, ::stride]
    assert f.shape == expected.shape[1:]
    close(f.eval({x: data}), expected)
    gradient = np.zeros((1, 2, 7))
    gradient[:, :, begin : end or None][:, :, ::stride] = 1
    close(f.grad({x: data}, wrt=[x]), gradient)


def test_slices_in_the_documentation_and_pythons():
    a = C.constant(np.float32([[1, 2, -3], [4, 5, 6]]))
    close(C.slice(a, [0, 1], [1, 0], [2, 2], [1, -1]).eval(), [[5, 4]])
    x = C.input_variable(7)
    data = np.arange(7, dtype="f4")[None]
    for part in (np.s_[::-1], np.s_[5:1:-1], np.s_[5:1:-2], np.s_[:2:-1], np.s_[4::-1], np.s_[-2:-5:-1]):
        close(x[part].eval({x: data})[0], data[0][part])
    with pytest.raises(ValueError, match="strides other than 0"):
        C.slice(x, 0, 0, 0, 0)


@pytest.mark.parametrize("pattern", [[(1, 2), (0, 0)], [(2, 2), (3, 1)], [(0, 0), (0, 5)]])
def test_borders_that_mirror_themselves(pattern):
    x = C.input_variable((2, 3), needs_gradient=True)
    data = np.arange(6, dtype="f4").reshape(1, 2, 3)
    f = C.pad(x, pattern, C.ops.SYMMETRIC_PAD)
    expected = np.pad(data, [(0, 0), *pattern], "symmetric")
    assert f.shape == expected.shape[1:]
    close(f.eval({x: data}), expected)
    close(f.grad({x: data}, wrt=[x]).sum(), expected.size)


def test_the_batch_as_an_axis():
    x, w = C.input_variable((2, 3), needs_gradient=True), C.parameter((4, 3), init=np.arange(12).reshape(4, 3))
    data = np.random.default_rng(7).normal(size=(4, 2, 3)).astype("f4")
    whole = C.unpack_batch(x)
    assert (whole.shape, whole.dynamic_axes) == ((FREE, 2, 3), ())
    close(whole.eval({x: data}), data)
    back = C.to_batch(whole * 2)
    assert (back.shape, len(back.dynamic_axes)) == ((2, 3), 1)
    close(back.eval({x: data}), 2 * data)
    close(back.grad({x: data}, wrt=[x]), np.full_like(data, 2))
    rows = C.to_batch(w)
    assert rows.shape == (3,)
    close((rows + 1).eval(), w.value + 1)
    close(C.splice(rows, C.constant([7.0])).eval(), np.append(w.value, np.full((4, 1), 7), 1))
    with pytest.raises(ValueError, match="expected 2 samples, as the inputs have, got 4"):
        C.plus(C.to_batch(w), C.input_variable(3, name="y")).eval({"y": np.ones((2, 3), "f4")})
    with pytest.raises(ValueError, match="without a batch axis"):
        C.to_batch(x)
    with pytest.raises(ValueError, match="only a batch axis"):
        C.unpack_batch(C.sequence.input_variable(2))


# ---- user functions -------------------------------------------------------------------------------


def test_outputs_of_a_users_function_are_asked_for_late():
    """After the constructor of the subclass has ended. ``inputs`` are the operands, not the leaves below them."""

    class Scaled(C.ops.functions.UserFunction):
        def __init__(self, a, b, name=""):
            super().__init__([a, b], name=name)
            self.factor = 3

        def infer_outputs(self):
            assert self.factor == 3
            first = self.inputs[0]
            return [C.output_variable(first.shape, first.dtype, first.dynamic_axes)]

        def forward(self, arguments, device=None, outputs_to_retain=None):
            return arguments, arguments[0] * arguments[1] * self.factor

        def backward(self, state, root_gradients, variables):
            a, b = state
            for variable in variables:
                other = b if variable == self.inputs[0] else a
                variables[variable] = root_gradients * other * self.factor

    x, y = C.input_variable(2, needs_gradient=True), C.input_variable(2, needs_gradient=True)
    f = C.user_function(Scaled(x + 1, y))
    assert (f.shape, f.op_name) == ((2,), "UserFunction")
    data = {x: np.float32([[1, 2]]), y: np.float32([[5, 7]])}
    close(f.eval(data), [[30, 63]])
    gradients = f.grad(data, wrt=[x, y])
    close(gradients[x], [[15, 21]])
    close(gradients[y], [[6, 9]])


# ---- names of operations --------------------------------------------------------------------------


def test_operations_have_cntks_names():
    x, s = C.input_variable((2, 2)), C.sequence.input_variable(2)
    W = C.parameter((2, 3))
    found = {
        "Plus": x + 1, "Minus": x - 1, "ElementTimes": x * x, "Times": C.times(x, W), "ReLU": C.relu(x),
        "TransposeAxes": C.transpose(x, (1, 0)), "Slice": x[0], "Splice": C.splice(x, x), "Clip": C.clip(x, 0, 1),
        "PastValue": C.sequence.past_value(s), "FutureValue": C.sequence.future_value(s), "Reshape": C.reshape(x, 4),
        "ReduceElements": C.reduce_sum(x, 0), "CrossEntropyWithSoftmax": C.cross_entropy_with_softmax(s, s),
        "ClassificationError": C.classification_error(s, s), "SquaredError": C.squared_error(s, s),
        "Select": C.element_select(x, x, x), "Softmax": C.softmax(x), "TopK": C.top_k(x, 1),
        "Dropout": C.dropout(x, 0.5), "Dense": C.layers.Dense(2)(x), "StopGradient": C.stop_gradient(x),
    }  # fmt: skip
    assert {name: f.op_name for name, f in found.items()} == {name: name for name in found}
    assert (x + 1).root_function.op_name == "Plus"
