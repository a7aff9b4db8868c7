"""A script's data on its way to a network: every form that CNTK takes, through every call that takes data."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import scipy.sparse as sp

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline.cntk as C  # noqa: E402
from feedline.cntk.io import MinibatchData  # noqa: E402

close = functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6)
RATE = C.learning_parameter_schedule_per_sample(0.1)
f4 = np.float32
EYE = np.eye(3, dtype=f4)[:2]

# Data of the batch [1, 0, 0], [0, 1, 0] for an input of shape 3 without a sequence axis.
BATCHES = {
    "array": EYE,
    "double precision": EYE.astype("f8"),
    "int64": EYE.astype("i8"),
    "uint8": EYE.astype("u1"),
    "booleans": EYE.astype("?"),
    "with an axis of one step": EYE[:, None],
    "vectors": list(EYE),
    "vectors of int64": list(EYE.astype("i8")),
    "rows": [EYE[:1], EYE[1:]],
    "nested lists": EYE.tolist(),
    "matrix": sp.csr_matrix(EYE),
    "matrices": [sp.csr_matrix(EYE[:1]), sp.csr_matrix(EYE[1:])],
    "value": C.Value(EYE),
    "value of sequences": C.Value([EYE[:1], EYE[1:]]),
    "minibatch data": MinibatchData(C.Value(EYE), 2, 2, False),
    "class numbers": C.Value.one_hot([0, 1], 3),
    "class numbers of sequences": C.Value.one_hot([[0], [1]], 3),
    "unmarked pair": (EYE, None),
}
# Data of the two sequences [1], and [2], [3], for an input of shape 1 with a sequence axis.
SEQUENCES = {
    "columns": [f4([[1]]), f4([[2], [3]])],
    "vectors": [f4([1]), f4([2, 3])],
    "vectors of int64": [np.array([1]), np.array([2, 3])],
    "nested lists": [[[1]], [[2], [3]]],
    "value": C.Value([f4([[1]]), f4([[2], [3]])]),
    "marked": ([f4([[1]]), f4([[2], [3]])], [True, True]),
}


def eval_(f, x, data):
    return f.eval({x: data})


def eval_alone(f, x, data):
    return f.eval(data)


def eval_by_name(f, x, data):
    return f.eval({x.name: data})


def call(f, x, data):
    return f(data)


def evaluate(f, x, data):
    return next(iter(f.evaluate({x: data}).values())).asarray()


def forward(f, x, data):
    return f.forward({x: data})[1][f.output]


def grad_value(f, x, data):
    return f.grad({x: data}, wrt=[x], outputs=[f.output])[1]


DOORS = [eval_, eval_alone, eval_by_name, call, evaluate, forward, grad_value]


@pytest.mark.parametrize("form", BATCHES)
def test_functions_take_each_form_of_a_batch(form):
    x = C.input_variable(3, name="x")
    f = C.reduce_sum(x * [1, 2, 4])
    for door in DOORS:
        close(door(f, x, BATCHES[form]), [1, 2], err_msg=door.__name__)


@pytest.mark.parametrize("form", SEQUENCES)
def test_functions_take_each_form_of_sequences(form):
    x = C.sequence.input_variable(1, name="x")
    for door in (eval_, eval_alone, eval_by_name, call, forward):
        for sequence, expected in zip(door(x * 2, x, SEQUENCES[form]), [[[2]], [[4], [6]]], strict=True):
            close(sequence, expected, err_msg=door.__name__)


def weighted(x):
    w = C.parameter((*x.shape, 1), init=1)
    per_sample = C.times(x, w, output_rank=1)
    return w, C.reduce_sum(C.sequence.reduce_sum(per_sample) if x.has_sequence_axis() else per_sample)


def train(x, data):
    """Return the weights after a step of 0.1 per sample, and the number of samples."""
    w, loss = weighted(x)
    trainer = C.Trainer(loss, (loss, loss), [C.sgd([w], RATE)])
    assert trainer.test_minibatch({x: data}) == C.Evaluator(loss).test_minibatch({x: data})
    assert trainer.train_minibatch({x: data})
    return w.value.ravel(), trainer.previous_minibatch_sample_count


@pytest.mark.parametrize("form", BATCHES)
def test_trainers_take_each_form_of_a_batch(form):
    weights, samples = train(C.input_variable(3), BATCHES[form])
    close(weights, [0.9, 0.9, 1])
    assert samples == 2


@pytest.mark.parametrize("form", SEQUENCES)
def test_trainers_take_each_form_of_sequences(form):
    weights, samples = train(C.sequence.input_variable(1), SEQUENCES[form])
    close(weights, [1 - 0.1 * 6])
    assert samples == 2


@pytest.mark.parametrize(
    ("shape", "data", "expected", "samples"),
    [
        (3, [f4([1, 0, 0])], [0.9, 1, 1], 1),
        (3, f4([1, 0, 0]), [0.9, 1, 1], 1),
        (1, [f4([1]), f4([2])], [0.7], 2),
        ((2, 2), [np.ones((2, 2), f4)] * 2, [0.8] * 4, 2),
    ],
    ids=["a list of one vector", "a vector", "scalars", "a list of matrices"],
)
def test_lists_of_samples_train(shape, data, expected, samples):
    x = C.input_variable(shape)
    w = C.parameter((*x.shape, 1), init=1)
    loss = C.reduce_sum(C.element_times(C.reshape(w, x.shape), x))
    trainer = C.Trainer(loss, (loss, None), [C.sgd([w], RATE)])
    trainer.train_minibatch({x: data})
    close(w.value.ravel(), expected)
    assert trainer.previous_minibatch_sample_count == samples


def test_a_vector_is_a_sequence_of_one_step():
    weights, samples = train(C.sequence.input_variable(3), [f4([1, 2, 3])])
    close(weights, [0.9, 0.8, 0.7])
    assert samples == 1


def test_a_list_is_the_data_of_the_only_argument():
    x = C.input_variable(2)
    w, loss = weighted(x)
    trainer = C.Trainer(loss, (loss, None), [C.sgd([w], RATE)])
    trainer.train_minibatch([f4([1, 0])])
    close(w.value.ravel(), [0.9, 1])
    close((x + 1).eval([f4([1, 0])]), [[2, 1]])


def test_data_that_is_not_needed_is_ignored():
    x, unused = C.input_variable(2), C.input_variable(3)
    w, loss = weighted(x)
    data = {x: np.ones((1, 2), f4), unused: np.ones((5, 3), f4)}
    close((x + 1).eval(data), [[2, 2]])
    trainer = C.Trainer(loss, (loss, loss), [C.sgd([w], RATE)])
    assert trainer.test_minibatch(data) == C.Evaluator(loss).test_minibatch(data) == 2
    trainer.train_minibatch(data)
    close(w.value.ravel(), [0.9, 0.9])


def test_functions_train_and_test_on_integers():
    x, y = C.input_variable(2), C.input_variable(2)
    z = C.layers.Dense(2, init=1)(x)
    loss = C.squared_error(z, y)
    data = (np.array([[1, 2], [3, 4]]), [np.array([1, 2]), np.array([3, 4])])
    learner = C.sgd(z.parameters, C.learning_parameter_schedule(0.001))
    progress = loss.train(data, minibatch_size=2, parameter_learners=[learner])
    assert progress.epoch_summaries[0].samples == 2
    close(progress.epoch_summaries[0].loss, (2**2 + 1 + 4**2 + 3**2) / 2)
    assert loss.test(data, minibatch_size=2).samples == 2


# ---- where sequences begin --------------------------------------------------------------------------


def test_marks_make_a_sequence_of_each_row():
    x = C.sequence.input_variable(2)
    last, rows = C.sequence.last(x), np.array([[1, 2], [2, 3]])
    close(last.eval({x: rows}), [[2, 3]])
    close(last.eval({x: (rows, [True, True])}), rows)
    with pytest.raises(ValueError, match="whole sequences"):
        last.eval({x: (rows, [True, False])})


def test_marks_of_one_variable_continue_sequences():
    x = C.sequence.input_variable(1)
    before = C.sequence.past_value(x)
    close(before.eval({x: ([f4([[1], [2]])], [True])})[0], [[0], [1]])
    close(before.eval({x: ([f4([[3]])], [False])})[0], [[2]])
    close(before.eval({x: C.Value([f4([[4]])], seq_starts=[False])})[0], [[3]])


def test_marks_that_mean_nothing_are_errors():
    x, flat = C.sequence.input_variable(2), C.input_variable(2)
    rows = np.ones((2, 2), f4)
    for arguments in ({flat: (rows, [True, True])}, (rows, [True, True])):
        with pytest.raises(ValueError, match="no sequence axis, got 2"):
            (flat + 1).eval(arguments)
    with pytest.raises(ValueError, match="got them for all data and for one variable"):
        (x + 1).eval(({x: (rows, [True, True])}, [True, True]))
    with pytest.raises(ValueError, match="a Value without marks"):
        (x + 1).eval({x: (C.Value(rows), [True])})
    with pytest.raises(ValueError, match="one bool per sequence, got a tuple of 2 items"):
        (x + 1).eval((rows, rows))
    with pytest.raises(ValueError, match="list of matrices with marks"):
        (x + 1).eval({x: (sp.csr_matrix(rows), [True, True])})


# ---- errors -----------------------------------------------------------------------------------------


def test_several_arguments_need_a_dictionary():
    x, y = C.input_variable(2, name="x"), C.input_variable(2, name="y")
    loss = C.reduce_sum(C.times(x, C.parameter((2, 1), init=1))) + C.reduce_sum(y)
    trainer = C.Trainer(loss, (loss, loss), [C.sgd(loss.parameters, RATE)])
    for take in (loss.eval, loss.forward, trainer.train_minibatch, trainer.test_minibatch):
        with pytest.raises(ValueError, match=r"a dictionary of data for 2 arguments, .*`x`, .*`y`, got list"):
            take([[[1, 2]], [[1, 2]]])
    with pytest.raises(ValueError, match=r"for 2 arguments, .* got none"):
        loss.eval()


def test_names_must_be_of_one_argument():
    x, y = C.input_variable(1, name="same"), C.input_variable(1, name="same")
    with pytest.raises(ValueError, match="'same', a name of several"):
        (x + y).eval({"same": [[1]]})
    with pytest.raises(ValueError, match="expected data for input `same`, got it for 'other'"):
        (x + 1).eval({"other": [[1]]})


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ([np.asarray(2)], r"samples of shape \(1,\).* got \(\) as item 0"),
        (3.0, "a CSR matrix, or a list .* got float"),
        ([], "at least one sequence"),
        ([[1], [2, 3]], "one sample per sequence, got 3 in 2 sequences"),
        ([["a"]], "numbers"),
        ([[[1], [2, 3]]], "ragged"),
        (np.ones((2, 3), f4), r"an array \(N, \*\(1,\)\), got \(2, 3\)"),
        (np.ones((2, 3, 1), f4), r"an array \(N, \*\(1,\)\), got \(2, 3, 1\)"),
        ([np.ones((2, 1), f4)], "one sample per sequence, got 2 in 1 sequences"),
        ([sp.csr_matrix(np.ones((1, 2), f4))], r"got \(1, 2\) as item 0"),
    ],
    ids=[
        "a number without an axis",
        "a number",
        "no item",
        "several steps",
        "text",
        "ragged lists",
        "other samples",
        "an array with steps",
        "a sequence",
        "a matrix of other samples",
    ],
)
def test_other_data_is_an_error(data, error):
    x = C.input_variable(1)
    w, loss = weighted(x)
    for take in ((x + 1).eval, C.Trainer(loss, (loss, None), [C.sgd([w], RATE)]).train_minibatch):
        with pytest.raises(ValueError, match=error):
            take({x: data})


def test_an_input_without_axes_takes_an_array_of_its_shape():
    x = C.input_variable(2, dynamic_axes=[])
    for data in (f4([1, 2]), [1, 2], f4([[1, 2]]), C.Value(f4([1, 2])), sp.csr_matrix([[1.0, 2.0]])):
        close((x * 2).eval({x: data}), [2, 4])
    with pytest.raises(ValueError, match=r"of shape \(2,\), got \(2, 2\)"):
        (x * 2).eval({x: np.ones((2, 2), f4)})
    y = C.input_variable(2)
    w = C.parameter(2, init=1)
    loss = C.reduce_sum(w * x * y)
    C.Trainer(loss, (loss, None), [C.sgd([w], RATE)]).train_minibatch({x: f4([1, 2]), y: np.ones((3, 2), f4)})
    close(w.value, [0.7, 0.4])


def test_outputs_must_belong_to_the_function():
    x, y = C.input_variable(2), C.input_variable(2)
    inner = x * y
    f, foreign = inner + 1, x + 2
    data = {x: f4([[2, 1]]), y: f4([[4, 6]])}
    close(f.forward(data, [inner.output])[1][inner.output], [[8, 6]])
    for take in (f.forward, f.eval):
        with pytest.raises(ValueError, match=r"outputs of this function, .* of another one"):
            take(data, foreign.outputs)
    w = C.parameter(2, init=1)
    loss = C.reduce_sum(w * x)
    trainer = C.Trainer(loss, (loss, None), [C.sgd([w], RATE)])
    with pytest.raises(ValueError, match=r"outputs of this function, .* of another one"):
        trainer.train_minibatch(data, outputs=[foreign.output])


def test_a_constant_of_single_precision_goes_with_double_precision():
    kernel = C.constant(value=1.0, shape=(4, 1, 3, 3))
    x = C.input_variable((1, 3, 3), np.float64)
    result = C.convolution(kernel, x, auto_padding=[False, False, False]).eval({x: np.ones((1, 1, 3, 3))})
    assert (result.dtype, result.ravel().tolist()) == (np.float64, [9.0] * 4)


def test_a_double_constant_does_not_widen_single_precision():
    x = C.input_variable((2, 2))
    f = C.constant(np.ones((2, 2))) * x
    with pytest.raises(ValueError, match=r"of one element type, got float32 of .* and float64 of"):
        f.eval({x: [np.ones((2, 2), f4)]})
    w = C.parameter((2, 2), init=1)
    loss = C.reduce_sum(f * w)
    with pytest.raises(ValueError, match=r"of one element type, got float32 of .* and float64 of"):
        C.Trainer(loss, (loss, None), [C.sgd([w], RATE)])
    double = C.input_variable((2, 2), np.float64)
    assert (C.constant(np.ones((2, 2))) * double).eval({double: np.ones((1, 2, 2))}).dtype == np.float64


# ---- gradients --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", ["sgd", "momentum"])
def test_a_loss_without_a_gradient_trains(rate):
    x, y = C.input_variable(2), C.input_variable(2)
    w = C.parameter((2, 2), init=3)
    error = C.classification_error(C.times(x, w), y)
    learner = C.sgd([w], RATE) if rate == "sgd" else C.momentum_sgd([w], RATE, C.momentum_schedule(0.9))
    trainer = C.Trainer(error, (error, error), [learner])
    for _ in range(2):
        assert trainer.train_minibatch({x: f4([[1, 2]]), y: f4([[1, 0]])})
    assert w.value.tolist() == [[3, 3], [3, 3]]
    assert trainer.total_number_of_samples_seen == 2
    assert trainer.previous_minibatch_loss_average == 0


def test_learners_see_gradients_of_zero():
    x = C.input_variable(2)
    w = C.parameter(2, init=3)
    loss = C.reduce_sum(C.stop_gradient(x * w))
    decay = C.sgd([w], RATE, l2_regularization_weight=0.5)
    C.Trainer(loss, (loss, None), [decay]).train_minibatch({x: f4([[1, 2]])})
    close(w.value, [3 - 0.1 * 0.5 * 3] * 2)


def test_gradients_default_to_arguments_that_need_them():
    i, j = C.input_variable(2), C.input_variable(1, needs_gradient=True)
    data = {i: np.ones((1, 2), f4), j: np.ones((1, 1), f4)}
    assert (i.needs_gradient, (i * j).arguments[1].needs_gradient) == (False, True)
    close((i * j).grad(data), [[2]])
    k = C.input_variable(1, needs_gradient=True)
    gradients = (i * j * k).grad({**data, k: f4([[3]])})
    assert set(gradients) == {j, k}
    with pytest.raises(ValueError, match=r"needs_gradient=True, or variables in wrt, got none of input"):
        (i * C.parameter(2, init=2)).grad({i: np.ones((1, 2), f4)})


@pytest.mark.parametrize("form", [C.ModelFormat.CNTKv2, None])
def test_files_remember_which_inputs_need_gradients(tmp_path, form):
    x, y = C.input_variable(1, needs_gradient=True, name="x"), C.input_variable(1, name="y")
    f = x * y * C.parameter(1, init=2)
    f.save(str(tmp_path / "f"), **({} if form is None else {"format": form}))
    loaded = C.Function.load(str(tmp_path / "f"))
    assert {v.name: v.needs_gradient for v in loaded.arguments} == {"x": True, "y": False}


# ---- class numbers and sparse samples ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "shape"),
    [
        ([0, 2], (2, 3)),
        (np.array([0, 2, 1]), (3, 3)),
        ([np.int64(0)], (1, 3)),
        (np.array([[0, 2], [1, 1]]), (2, 2, 3)),
        ([[0, 2], [1]], (2, 2, 3)),
    ],
    ids=["list", "array", "list of NumPy numbers", "array of sequences", "list of sequences"],
)
def test_flat_class_numbers_are_a_batch(batch, shape):
    assert C.Value.one_hot(batch, 3).shape == shape


def test_samples_of_several_axes_are_one_hot_row_by_row():
    indices, shape = [[1, 3, 4, 2, 0, 5], [2, 4]], (2, 6)
    value = C.Value.one_hot(indices, shape)
    assert (value.shape, value.is_sparse) == ((2, 3, 2, 6), True)
    x = C.sequence.input_variable(shape, is_sparse=True)
    w = C.parameter(init=np.random.default_rng(0).normal(size=(6, 4)).astype(f4))
    f = C.times(x, w)
    expected = [np.stack([w.value[indices[0][i : i + 2]] for i in (0, 2, 4)]), w.value[indices[1]][None]]
    for found, sequence in zip(f.eval({x: value}), expected, strict=True):
        close(found, sequence)
    assert [s.toarray().argmax(1).tolist() for s in value.as_sequences(x)] == indices
    counts = np.bincount([i for sequence in indices for i in sequence], minlength=6)
    close(f.grad({x: value}, wrt=[w]), np.repeat(counts[:, None], 4, 1))
    flat = C.input_variable(shape, is_sparse=True)
    close(C.times(flat, w).eval({flat: C.Value.one_hot([[1, 3], [2, 4]], shape)}), w.value[[[1, 3], [2, 4]]])


def test_class_numbers_may_be_skipped_in_samples_of_several_axes():
    value = C.Value.one_hot([[C.Value.ONE_HOT_SKIP, 2]], (2, 3))
    assert np.asarray(value).tolist() == [[[[0, 0, 0], [0, 0, 1]]]]
    with pytest.raises(ValueError, match=r"2 class numbers for each sample of shape \(2, 3\), got 3 in item 0"):
        C.Value.one_hot([[0, 1, 2]], (2, 3))
    with pytest.raises(ValueError, match="from 0 to 2, got 3"):
        C.Value.one_hot([[0, 3]], (2, 3))


def test_matrices_stand_for_samples_of_several_axes():
    data = np.random.default_rng(0).integers(0, 2, (2, 2, 3)).astype(f4)
    view = C.NDArrayView.from_csr(sp.csr_matrix(data.reshape(4, 3)), shape=(2, 2, 3))
    assert (view.shape, np.asarray(view).tolist()) == ((2, 2, 3), data.tolist())
    x, y = C.input_variable((2, 3), is_sparse=True), C.sequence.input_variable((2, 3))
    w = C.parameter(init=np.arange(6, dtype=f4).reshape(3, 2))
    samples = [sp.csr_matrix(sample) for sample in data]
    for form in (view, C.Value(view), samples):
        close(C.times(x, w).eval({x: form}), data @ w.value)
    value = C.Value.create(y, [view, C.NDArrayView.from_dense(data[:1])])
    assert value.shape == (2, 2, 2, 3)
    for shape in ((3, 2, 3), (2, 2, 4)):
        with pytest.raises(ValueError, match="rows and columns of a matrix"):
            C.NDArrayView.from_csr(sp.csr_matrix(data.reshape(4, 3)), shape=shape)


def test_views_take_another_shape():
    view = C.NDArrayView.from_dense(f4([[1, 2]]))
    assert view.as_shape((2,)).asarray().tolist() == [1, 2]
    w = C.parameter(1)
    x = C.input_variable(1)
    value = (x * 0.1).eval({x: f4([[1]])}, as_numpy=False)
    w.value = value.data.as_shape(value.data.shape[1:])
    close(w.value, [0.1])
    with pytest.raises(ValueError, match=r"dense data \(1, 2\), got \(3,\)"):
        view.as_shape(3)


def test_user_deserializers_deliver_sparse_samples_of_several_axes():
    class Rows(C.io.UserDeserializer):
        def stream_infos(self):
            return [C.io.StreamInformation("y", 0, "sparse", f4, (2, 3))]

        def num_chunks(self):
            return 1

        def get_chunk(self, chunk):
            return {"y": sp.csr_matrix(np.arange(12, dtype=f4).reshape(2, 6))}

    source = C.io.MinibatchSource([Rows()], randomize=False, max_sweeps=1)
    data = source.next_minibatch(2)[source.streams.y]
    expected = np.arange(12).reshape(2, 1, 2, 3)
    assert np.asarray(data.asarray()).tolist() == expected.tolist()
    y = C.input_variable((2, 3), is_sparse=True)
    close(C.times(y, np.eye(3, dtype=f4)).eval({y: data}), expected[:, 0])
