"""Shapes that are known late, or that differ between minibatches. Reductions, pooling and eye by NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline as fl  # noqa: E402
import feedline.cntk as C  # noqa: E402
from feedline.networks.deferred import add_recipe, later  # noqa: E402
from feedline.networks.node import input_node, placeholder_node  # noqa: E402

FREE, INFERRED = C.FreeDimension, C.InferredDimension


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
    "crop": (lambda x: C.crop_manual(x, C.constant(0, (1, 2, 1)), 0, 3), DATA[:, :, 3:5]),
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


def test_a_parameter_whose_shape_nothing_determines_is_named():
    x = C.input_variable((FREE, 2))
    turned = C.transpose(C.parameter((-1, 3), init=1, name="W"), (1, 0))
    with pytest.raises(ValueError, match=r"expected a parameter of known shape, got \(-1, 3\)"):
        C.times(x, turned).eval({x: np.ones((1, 4, 2), "f4")})


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


def test_products_by_free_and_inferred_dimensions():
    """CNTK's numbers. Data of another width is refused."""
    w = C.parameter(init=np.float32([[2, 5], [1, 3]]))
    for shape in ((FREE, 2), (FREE, INFERRED), (FREE, FREE), (INFERRED, INFERRED)):
        x = C.input_variable(shape)
        f = C.times(x, w)
        assert f.shape == (*shape[:1], 2)
        for rows, expected in (([[0.5, 0.2]], [[1.2, 3.1]]), ([[0.5, 0.2], [0.1, 0.6]], [[1.2, 3.1], [0.8, 2.3]])):
            gradient, value = f.grad({x: np.float32(rows)[None]}, wrt=[w], outputs=[f])
            close(value, [expected])
            close(gradient, np.float32(rows).sum(0)[:, None].repeat(2, 1))
        with pytest.raises(ValueError, match=r"expected an array|first of the right"):
            f.eval({x: np.ones((1, 1, 3), "f4")})
    a, b = C.input_variable((2, 2)), C.input_variable((INFERRED, 2))
    product = C.times(a, b)
    assert product.shape == (2, 2)
    close(product.eval({a: np.eye(2, dtype="f4")[None], b: 3 * np.eye(2, dtype="f4")[None]}), [3 * np.eye(2)])


OPEN = {
    "times": (lambda x: C.times(x, W), (FREE, 2), (FREE, 3)),
    "plus, of a known length": (lambda x: x + np.zeros((4, 2), "f4"), (FREE, 2), (4, 2)),
    "plus, of length 1": (lambda x: x + np.zeros((1, 2), "f4"), (FREE, 2), (FREE, 2)),
    "reshape, to a known shape": (lambda x: C.reshape(x, (4, 2, 1)), (FREE, 2), (4, 2, 1)),
    "reshape, to an unknown length": (lambda x: C.reshape(x, (2, -1)), (FREE, FREE), (2, FREE)),
    "reshape, of some axes": (lambda x: C.reshape(x, -1, 0, 2), (FREE, 2), (FREE,)),
    "splice, along": (lambda x: C.splice(x, np.zeros((3, 2), "f4"), axis=0), (FREE, 2), (FREE, 2)),
    "splice, beside": (lambda x: C.splice(x, np.zeros((4, 3), "f4"), axis=1), (FREE, 2), (4, 5)),
    "splice, of both kinds": (lambda x: C.splice(x, C.constant(0, (3, INFERRED)), axis=0), (FREE, FREE), (FREE, FREE)),
    "slice": (lambda x: C.slice(x, 0, 1, 3), (FREE, 2), (2, 2)),
    "slice, to the end": (lambda x: C.slice(x, 0, 1, 0), (FREE, 2), (FREE, 2)),
    "transpose": (lambda x: C.transpose(x, (1, 0)), (FREE, 2), (2, FREE)),
    "reduce": (lambda x: C.reduce_mean(x, 0), (FREE, 2), (1, 2)),
    "pad": (lambda x: C.pad(x, [(1, 1), (0, 2)], 2), (FREE, 2), (FREE, 4)),
    "convolution": (lambda x: C.convolution(K, x, strides=2), (1, FREE, 2), (2, FREE, 1)),
    "convolution, of any channels": (lambda x: C.convolution(K, x), (FREE, FREE, FREE), (2, FREE, FREE)),
    "pooling": (lambda x: C.pooling(x, C.MAX_POOLING, (2, 1), (2, 1)), (FREE, FREE, 2), (FREE, FREE, 2)),
    "batch normalization": (lambda x: C.layers.BatchNormalization(map_rank=1)(x), (4, FREE), (4, FREE)),
    "squeeze": (lambda x: C.expand_dims(C.squeeze(C.expand_dims(x, -1)), -1), (FREE, 2), (FREE, 2, 1)),
    "squared error": (lambda x: C.squared_error(x, np.zeros((4, 2), "f4")), (FREE, 2), ()),
    "cross entropy": (lambda x: C.cross_entropy_with_softmax(x, np.eye(4, dtype="f4")[1]), (FREE,), (1,)),
}
W, K = np.arange(6, dtype="f4").reshape(2, 3), np.arange(8, dtype="f4").reshape(2, 1, 2, 2)


@pytest.mark.parametrize("case", OPEN)
@pytest.mark.parametrize("length", [FREE, INFERRED])
def test_what_data_determines(case, length):
    """Shapes before the data, then the values and gradients of the same function of a fixed shape."""
    make, declared, expected = OPEN[case]
    declared, expected = (tuple(length if n == FREE else n for n in shape) for shape in (declared, expected))
    sizes = {1: (4,), 2: (4, 2), 3: (1, 4, 2)}[len(declared)]
    x, fixed = C.input_variable(declared, needs_gradient=True), C.input_variable(sizes, needs_gradient=True)
    if case != "squeeze":  # whose number of axes depends on the data
        assert make(x).shape == expected
    data = np.random.default_rng(8).normal(size=(3, *sizes)).astype("f4")
    close(make(x).eval({x: data}), make(fixed).eval({fixed: data}))
    close(make(x).grad({x: data}, wrt=[x]), make(fixed).grad({fixed: data}, wrt=[fixed]))


def test_what_depends_on_inferred_dimensions_is_inferred():
    """Where a dimension is free as well as inferred, CNTK calls it inferred."""
    x = C.input_variable((INFERRED, INFERRED, 3))
    border = C.constant(0, (3, INFERRED, 3))
    assert C.splice(border, x, axis=0).shape == C.splice(x, border, axis=0).shape == (INFERRED, INFERRED, 3)
    assert C.splice(x[0], C.input_variable((FREE, INFERRED, 3)), axis=0).shape == (FREE, INFERRED, 3)
    y = C.input_variable((INFERRED, 3))
    whole = C.unpack_batch(y)
    assert (whole.shape, C.to_batch(whole * 2).shape) == ((FREE, INFERRED, 3), (INFERRED, 3))


def test_shapes_that_do_not_fit_are_refused_with_the_data():
    x = C.input_variable((FREE, 2))
    for make in (lambda: C.times(x, np.ones((3, 2), "f4")), lambda: x + np.ones(3, "f4"), lambda: C.slice(x, 0, 9, 10)):
        f = make()
        with pytest.raises(ValueError, match="expected"):
            f.eval({x: np.ones((1, 4, 2), "f4")})
    reshaped = C.reshape(x, (4,), 0, 2)
    close(reshaped.eval({x: np.ones((1, 2, 2), "f4")}), np.ones((1, 4)))
    with pytest.raises(ValueError, match=r"a shape that reshapes to \(4,\)"):
        reshaped.eval({x: np.ones((1, 3, 2), "f4")})


@pytest.mark.parametrize("length", [FREE, INFERRED])
def test_recurrences_of_open_samples(length):
    """CNTK's numbers."""
    x, h = C.sequence.input_variable((length, 2)), C.placeholder()
    recurrent, kernel = C.parameter(init=np.float32([[2, 5], [1, 3]])), C.parameter(init=np.float32([[1, 4], [2, 5]]))
    f = C.times(x, kernel) + C.times(C.sequence.past_value(h), recurrent)
    f.replace_placeholders({h: f})
    assert f.shape == (length, 2)
    data = np.float32([[0.5, 0.2], [-0.7, 1.2]])
    gradients, value = f.grad({x: data}, wrt=[recurrent, kernel], outputs=[f])
    close(value, [[[[0.9, 3.0], [1.7, 3.2]]]])
    close(gradients[kernel], [[-0.2, -0.2], [1.4, 1.4]])
    # Other shapes of samples, with more steps.
    close(f.eval({x: [np.ones((2, 3, 2), "f4")]})[0], np.tile([[[3.0, 9]], [[18, 51]]], (1, 3, 1)))


def test_random_numbers_are_drawn_once_before_and_after_a_shape_is_known():
    """Operations before an open shape run once, although those after it are compiled for the shape."""
    x = C.input_variable(50)
    noise = C.dropout(x, 0.5)
    pair = C.combine(noise, C.reshape(C.unpack_batch(noise), (-1,)))
    both = list(pair.forward({x: np.ones((2, 50), "f4")}, pair.outputs, pair.outputs)[1].values())
    assert 0 < np.count_nonzero(both[0]) < 100
    close(both[1], both[0].ravel())


def test_an_assignment_below_an_open_shape_runs_with_the_others():
    x, total, rows = C.input_variable(2), C.parameter((4, 2)), C.parameter((), init=0)
    f = C.combine(C.assign(total, C.unpack_batch(x)), C.assign(rows, C.reduce_sum(total)))
    data = np.arange(8, dtype="f4").reshape(4, 2)
    f.eval({x: data})
    close(total.value, data)
    assert rows.value == 0  # read before the assignments
    f.eval({x: data})
    assert rows.value == data.sum()


# ---- unpacked sequences ---------------------------------------------------------------------------


def test_unpacked_steps_as_an_axis_of_any_operation():
    """Steps times steps, a convolution over steps, and a reshape to a known number."""
    x, y = C.sequence.input_variable(2), C.sequence.input_variable(2, sequence_axis=C.Axis("y"))
    a, b = (C.sequence.unpack(s, 0, no_mask_output=True) for s in (x, y))
    products = C.times(a, C.transpose(b, (1, 0)))
    assert products.shape == (FREE, FREE)
    rng = np.random.default_rng(9)
    for lengths, more_lengths in (((3, 1), (2, 4)), ((2, 2), (1, 1)), ((3, 1), (2, 4))):
        data, more = ([rng.normal(size=(n, 2)).astype("f4") for n in sizes] for sizes in (lengths, more_lengths))
        padded, beside = (
            np.stack([np.pad(s, [(0, max(sizes) - len(s)), (0, 0)]) for s in steps])
            for steps, sizes in ((data, lengths), (more, more_lengths))
        )
        close(products.eval({x: data, y: more}), padded @ beside.transpose(0, 2, 1))
    image = C.sequence.input_variable((4, 5))
    kernel = C.constant(1.0, (4, 3, 3, 3))
    steps = C.reshape(C.sequence.unpack(image, 0, no_mask_output=True), (3, 4, 5))
    assert C.convolution(kernel, steps, auto_padding=[False, True, True]).eval(
        {image: np.ones((2, 3, 4, 5), "f4")}
    ).shape == (2, 4, 4, 5)
    any_steps = C.convolution(C.constant(np.ones((1, 1, 1, 1))), C.sequence.unpack(image, 0, no_mask_output=True))
    assert any_steps.shape == (1, 4, 5)


@pytest.mark.parametrize("rank", [1, 2])
def test_products_of_batches(rank):
    shapes = {1: ((2, 3), (3, 2)), 2: ((2, 3, 4), (2, 4, 3))}[rank]
    data = [np.random.default_rng(10).normal(size=(3, *shape)).astype("f4") for shape in shapes]
    x, y = map(C.input_variable, shapes)
    turned = C.transpose(C.unpack_batch(y), range(len(shapes[1]) + 1)[::-1])
    f = C.times(C.unpack_batch(x), turned, output_rank=rank)
    axes = len(shapes[0]) + 1 - rank
    close(f.eval({x: data[0], y: data[1]}), np.tensordot(data[0], np.transpose(data[1]), axes))


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


# ---- steps of sequences ---------------------------------------------------------------------------


@pytest.mark.parametrize(("begin", "end"), [(0, 1), (1, 2), (-1, 0), (-2, -1)])
def test_a_slice_of_one_step_has_no_sequence_axis(begin, end, tmp_path):
    x = C.sequence.input_variable(3, needs_gradient=True, name="x")
    f = C.sequence.slice(x, begin, end, name="step")
    assert (len(f.dynamic_axes), f.shape, f.name, f.op_name) == (1, (3,), "step", "Slice")
    data = [np.arange(9, dtype="f4").reshape(3, 3), np.arange(6, dtype="f4").reshape(2, 3)]
    close(f.eval({x: data}), [s[begin : end or None][0] for s in data])
    gradient = [np.zeros_like(s) for s in data]
    for s in gradient:
        s[begin : end or None] = 1
    for result, expected in zip(f.grad({x: data}, wrt=[x]), gradient, strict=True):
        close(result, expected)
    for form in (C.ModelFormat.CNTKv2, C.ModelFormat.ONNX):
        if form == C.ModelFormat.ONNX:
            pytest.importorskip("onnx")
        f.save(str(tmp_path / "f"), format=form)
        loaded = C.Function.load(str(tmp_path / "f"), format=form)
        close(loaded.eval([s[:2] for s in data]), [s[:2][begin : end or None][0] for s in data])
    with pytest.raises(ValueError, match="steps from 1 to its end"):
        C.sequence.slice(x, 1, 2).eval({x: [data[0][:1]]})


def test_a_slice_keeps_the_axis_for_several_steps():
    x = C.sequence.input_variable(1)
    assert [len(C.sequence.slice(x, *part).dynamic_axes) for part in ((0, 2), (-2, 0), (1, -1), (0, 0))] == [2] * 4


def test_lengths_that_a_selection_promises():
    """Selections of equal promises are along the same sequences. One step for each has no sequence axis."""
    a, b = (C.sequence.input_variable(1, name=n) for n in "ab")
    data = {a: [np.float32([[1], [2]]), np.float32([[3]])], b: [np.float32([[5], [6]]), np.float32([[7]])]}
    last = [C.sequence.gather(x, C.sequence.is_last(x), (0, 1)) for x in (a, b)]
    total = last[0] + last[1]
    assert len(total.dynamic_axes) == 1
    close(total.eval(data), [[8], [10]])
    later = [C.sequence.gather(x, 1 - C.sequence.is_first(x), (1, -1)) for x in (a, b)]
    result = (later[0] + later[1]).eval({**data, a: [data[a][0], data[a][0]], b: [data[b][0], data[b][0]]})
    close(result, [[[8]], [[8]]])
    back = C.sequence.scatter(later[0] * 1, 1 - C.sequence.is_first(a))
    close(back.eval({a: [data[a][0]]})[0], [[0], [2]])
    with pytest.raises(ValueError, match=r"expected \[1, 1\] steps, as new_sequence_axis_typeinfo=\(0, 1\) promises"):
        C.sequence.gather(a, C.sequence.is_first(a) * 0 + 1, (0, 1)).eval({a: data[a]})
    with pytest.raises(fl.CompatError, match="as long as the condition"):
        C.sequence.scatter(later[0], C.sequence.is_first(a), (0, 1))


def test_sparse_samples_are_put_back():
    """CNTK's numbers."""
    a = C.sequence.input_variable(6, is_sparse=True)
    f = C.sequence.scatter(C.sequence.last(a), C.sequence.is_first(a))
    result = C.times(f, np.eye(6)).eval({a: C.Value.one_hot([[1, 3, 5, 5], [2, 4], [0, 2]], 6)})
    for rows, length, place in zip(result, (4, 2, 2), (5, 4, 2), strict=True):
        close(rows, np.eye(6)[[place]].tolist() + [[0] * 6] * (length - 1))


def test_sparse_samples_of_several_axes():
    """They are fed flat. The number of steps is free."""
    x, lengths = C.input_variable((FREE, 3), is_sparse=True), C.input_variable(())
    steps = C.to_sequence(x, lengths)
    rng = np.random.default_rng(12)
    for count in (2, 3):
        data = (rng.random((2, count, 3)) < 0.5).astype("f4")
        sparse = scipy.sparse.csr_matrix(data.reshape(2, -1))
        close(C.times(x, W.T).eval({x: sparse}), data @ W.T)
        result = steps.eval({x: sparse, lengths: np.float32([count, 1])})
        close(result[0], data[0])
        close(result[1], data[1, :1])
    with pytest.raises(ValueError, match=r"expected an array \(N, \*\(-3, 3\)\), got \(1, 5\)"):
        C.times(x, W.T).eval({x: scipy.sparse.csr_matrix(np.ones((1, 5), "f4"))})


def test_axes_are_reconciled():
    x, y = C.sequence.input_variable(2), C.sequence.input_variable(2, sequence_axis=C.Axis("y"))
    total = C.reconcile_dynamic_axes(x, y) + y
    assert total.dynamic_axes == y.dynamic_axes
    steps = [np.ones((3, 2), "f4"), np.ones((1, 2), "f4")]
    for rows, expected in zip(total.eval({x: steps, y: steps}), steps, strict=True):
        close(rows, 2 * expected)
    with pytest.raises(ValueError, match=r"expected steps as the second operand has, \[1, 3\], got \[3, 1\]"):
        total.eval({x: steps, y: steps[::-1]})


@pytest.mark.parametrize("steps", [1, 2, -1, -2])
@pytest.mark.parametrize("in_loop", [False, True])
def test_an_initial_state_of_other_lengths(steps, in_loop):
    """A past value takes its last steps, a future value its first ones. One step repeats."""
    x = C.sequence.input_variable(2, needs_gradient=True)
    initial = C.sequence.input_variable(2, sequence_axis=C.Axis("before"), needs_gradient=True)
    rng, count = np.random.default_rng(11), abs(steps)
    data, before = ([rng.normal(size=(n, 2)).astype("f4") for n in sizes] for sizes in ((4, 1, 3), (3, 2, 1)))
    h = C.placeholder()
    f = x + C.sequence.delay(h, initial, steps) if in_loop else C.sequence.delay(x, initial, steps)
    if in_loop:
        f.replace_placeholders({h: f})

    def expected(s, first):
        first = np.repeat(first, count, 0) if len(first) == 1 else first[-count:] if steps > 0 else first[:count]
        out = np.zeros_like(s)
        for t in range(len(s))[:: 1 if steps > 0 else -1]:
            source = t - steps
            inside = 0 <= source < len(s)
            earlier = out if in_loop else s
            past = earlier[source] if inside else first[source if steps > 0 else source - len(s)]
            out[t] = past + s[t] if in_loop else past
        return out

    for result, s, first in zip(f.eval({x: data, initial: before}), data, before, strict=True):
        close(result, expected(s, first))
    gradients = f.grad({x: data, initial: before}, wrt=[initial])
    for i, result in enumerate(gradients):
        moved = before[i].copy()
        moved[0] += 1
        close(result[0], (expected(data[i], moved) - expected(data[i], before[i])).sum(0), 1e-4)
    with pytest.raises(ValueError, match="initial state: expected sequences of 1 or at least 3 samples"):
        C.sequence.past_value(x, initial, 3).eval({x: data, initial: before})


def test_axes_that_an_operand_lacks():
    for shape in ((), 2):
        with pytest.raises(ValueError, match="expected two axes of the operand's"):
            C.swapaxes(C.input_variable(shape))
    assert (C.placeholder() * 2).shape == (-2,)  # CNTK's unknown shape


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
    # A batch of another size, of which nothing else is.
    halves = C.to_batch(C.reshape(C.unpack_batch(x), (-1, 3))) * 2
    assert halves.shape == (3,)
    close(halves.eval({x: data}), 2 * data.reshape(8, 3))
    with pytest.raises(ValueError, match="expected 4 samples, as the inputs have, got 8"):
        C.plus(halves, x[0]).eval({x: data})
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


@pytest.mark.parametrize("data", [DATA[:, :3, :2, 0], [DATA[0, :, :2, 0], DATA[1, :2, :2, 0]]], ids=["batch", "list"])
@pytest.mark.parametrize("open_input", [(), (FREE,), (INFERRED,)])
@pytest.mark.parametrize("open_output", [(), (FREE,)])
def test_users_functions_of_any_size(data, open_input, open_output):
    """Inputs and outputs of open shapes, of samples and of sequences."""

    class Doubled(C.ops.functions.UserFunction):
        def __init__(self, x, shape):
            super().__init__([x], name="doubled")
            self.shape_of_output = shape

        def infer_outputs(self):
            return [C.output_variable(self.shape_of_output, np.float32, self.inputs[0].dynamic_axes)]

        def forward(self, argument, device=None, outputs_to_retain=None):
            return None, [2 * s for s in argument] if isinstance(argument, list) else 2 * argument

        def backward(self, state, root_gradients):
            return [2 * g for g in root_gradients] if isinstance(root_gradients, list) else 2 * root_gradients

    steps = isinstance(data, list)
    fixed = (2,) if steps else (3, 2)
    x = (C.sequence.input_variable if steps else C.input_variable)(
        (*open_input, *fixed[len(open_input) :]), needs_gradient=True
    )
    f = C.user_function(Doubled(x * 1, (*open_output, *fixed[len(open_output) :]))) * 3
    assert f.shape == (*open_output, *fixed[len(open_output) :])
    state, value = f.forward({x: data}, f.outputs, set(f.outputs))
    gradients = f.backward(state, {f.output: [np.ones_like(v) for v in value[f.output]]}, {x})[x]
    for result, gradient, expected in zip(value[f.output], gradients, data, strict=True):
        close(result, 6 * expected)
        close(gradient, np.full_like(expected, 6))


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
