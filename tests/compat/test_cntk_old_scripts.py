"""Other features that CNTK's examples and tests use: sparse data for dense inputs, small methods, names."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import scipy.sparse as sp

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline.cntk as C  # noqa: E402
from tests.compat import tables  # noqa: E402

EYE = np.eye(5, dtype=np.float32)


def close(found, expected, tolerance=1e-6):
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


# ---- sparse data for inputs that are declared dense -------------------------------------------------

ROWS = [EYE[[1, 2]] * 3, EYE[[3]], (EYE[[0, 4, 4]] + EYE[[1, 0, 2]])]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2,
        lambda x: C.tanh(x),
        lambda x: C.splice(x, x + 1),
        lambda x: C.reshape(x, (5, 1)),
        lambda x: C.layers.Delay(initial_state=C.constant([1, 0, 0, 0, 0]))(x),
        lambda x: C.sequence.past_value(x, initial_state=0.5),
        lambda x: C.layers.Recurrence(C.plus)(x),
        lambda x: C.sequence.last(x),
        lambda x: C.sequence.reduce_sum(x),
        lambda x: C.times(x, C.parameter((5, 2), init=np.arange(10, dtype=np.float32).reshape(5, 2))),
        lambda x: C.times_transpose(x, x),
        lambda x: C.sequence.scatter(C.sequence.first(x), C.sequence.is_first(x)),
        lambda x: C.element_select(C.sequence.is_first(x), x, -x),
        lambda x: C.cross_entropy_with_softmax(x * 2, x),
        lambda x: C.cross_entropy_with_softmax(C.reshape(x, (1, 5)), x),
        lambda x: C.classification_error(C.reshape(x, (1, 5)), x),
        lambda x: C.classification_error(x, x, topN=2) + C.sequence.reduce_sum(x),
    ],
)
def test_sparse_data_for_a_dense_input_is_made_dense(function):
    x = C.sequence.input_variable(5, needs_gradient=True)
    f = function(x)
    sparse = {x: [sp.csr_matrix(rows) for rows in ROWS]}
    found, expected = f.eval(sparse), f.eval({x: ROWS})
    assert type(found) is type(expected)
    for one, other in zip(found, expected, strict=True):
        close(one, other)
    for one, other in zip(f.grad(sparse, wrt=[x]), f.grad({x: ROWS}, wrt=[x]), strict=True):
        close(one, other)


def test_sparse_rows_fill_a_dense_input_of_as_many_numbers():
    x = C.input_variable((1, 5))
    close((x + 1).eval({x: sp.csr_matrix(ROWS[2])}), ROWS[2][:, None] + 1)
    flat = C.input_variable(4)
    with pytest.raises(ValueError, match=r"expected an array \(N, \*\(4,\)\), got \(3, 5\)"):
        (flat + 1).eval({flat: sp.csr_matrix(ROWS[2])})


def test_an_input_declared_sparse_stays_sparse():
    x = C.input_variable(5, is_sparse=True)
    with pytest.raises(TypeError, match="declare the input dense"):
        (x + 1).eval({x: sp.csr_matrix(EYE)})


@pytest.mark.parametrize("lead", [(), (1,), (3,), (2, 2)])
def test_criteria_of_matrices_take_sparse_targets(lead):
    """Each row of the scores meets the target, as for dense ones."""
    rng = np.random.default_rng(0)
    scores = C.input_variable((*lead, 5), needs_gradient=True)
    sparse, plain = C.input_variable(5, is_sparse=True), C.input_variable(5)
    data = rng.normal(size=(4, *lead, 5)).astype("f4")
    target = (rng.uniform(size=(4, 5)) * (rng.uniform(size=(4, 5)) < 0.5)).astype("f4")
    for make in (C.cross_entropy_with_softmax, C.classification_error, C.times_transpose):
        if make is C.classification_error and len(lead) > 1:
            continue
        found, expected = make(scores, sparse), make(scores, plain)
        given = ({scores: data, sparse: sp.csr_matrix(target)}, {scores: data, plain: target})
        assert found.shape == expected.shape
        close(found.eval(given[0]), expected.eval(given[1]), 1e-5)
        close(found.grad(given[0], wrt=[scores]), expected.grad(given[1], wrt=[scores]), 1e-5)


# ---- sequences --------------------------------------------------------------------------------------


def test_scatter_of_one_sample_for_each_sequence():
    x, y = C.sequence.input_variable(2), C.sequence.input_variable(1, sequence_axis=C.Axis("y"))
    f = C.sequence.scatter(C.sequence.first(x), C.sequence.is_first(y))
    data = {x: [np.array([[1, 2], [9, 9]], "f4"), np.array([[3, 4]], "f4")], y: [np.ones((1, 1), "f4")] * 2}
    data[y] = [np.ones((3, 1), "f4"), np.ones((2, 1), "f4")]
    found = f.eval(data)
    close(found[0], [[1, 2], [0, 0], [0, 0]])
    close(found[1], [[3, 4], [0, 0]])
    with pytest.raises(ValueError, match="one step of each sequence"):
        C.sequence.scatter(C.sequence.first(x), y * 1 > 0).eval(data)


def test_broadcast_as_something_without_sequences_is_the_operand():
    x, y = C.sequence.input_variable(2), C.sequence.input_variable(3, sequence_axis=C.Axis("y"))
    f = C.sequence.broadcast_as(C.sequence.last(x), C.sequence.last(y))
    assert f.dynamic_axes == C.sequence.last(y).dynamic_axes
    data = {x: [np.array([[1, 2], [5, 6]], "f4")], y: [np.ones((4, 3), "f4")]}
    close(f.eval(data), [[5, 6]])
    with pytest.raises(ValueError, match="without a sequence axis"):
        C.sequence.broadcast_as(x, C.sequence.last(y))
    with pytest.raises(ValueError, match="second operand with a batch axis"):
        C.sequence.broadcast_as(C.sequence.last(x), C.constant(1))


def test_arrays_of_one_axis_are_sequences_of_single_numbers():
    s = C.sequence.input_variable(1)
    f = C.sequence.reduce_sum(s)
    data = [np.arange(3, dtype=np.float32), np.arange(5, dtype=np.float32)]
    close(f.eval({s: data}), [[3], [10]])
    close(f.eval({s: [np.float32([7])] * 2}), [[7], [7]])


# ---- drawing classes --------------------------------------------------------------------------------


def test_inclusion_frequency():
    weights = np.array([5, 3, 1, 0.5, 0.5], "f4")
    again = C.random_sample_inclusion_frequency(weights, 3, True).eval()
    close(again, 3 * weights / 10)
    once = C.random_sample_inclusion_frequency(weights, 3, False).eval()
    # 1 - (1 - p)^T with the T at which the chances add up to 3, by trying.
    chances = weights.astype("f8") / 10
    draws = np.linspace(3, 30, 2_700_001)
    at = np.searchsorted((1 - (1 - chances) ** draws[:, None]).sum(1), 3)
    close(once, 1 - (1 - chances) ** draws[at], 1e-5)
    assert C.random_sample_inclusion_frequency(weights[None], 2, False).shape == (1, 5)
    close(C.random_sample_inclusion_frequency(np.ones(4, "f4"), 4, False).eval(), np.ones(4), 1e-4)
    with pytest.raises(ValueError, match="at least 6 classes"):
        C.random_sample_inclusion_frequency(weights, 6, False)
    # It follows weights that change.
    p = C.parameter((5,), init=weights)
    f = C.random_sample_inclusion_frequency(p, 1, True)
    before = f.eval()
    p.value = np.ones(5, "f4")
    close((before, f.eval()), (weights / 10, np.full(5, 0.2)))


def test_drawn_classes_stay_sparse_where_they_are_multiplied():
    W = C.parameter((1000, 3), init=np.arange(3000, dtype="f4").reshape(1000, 3))
    drawn = C.random_sample(np.ones(1000, "f4"), 7, False)
    rows, dense = (W_found := C.combine([C.times(drawn, W), drawn])).eval().values()
    assert (rows.shape, dense.shape) == ((7, 3), (7, 1000))
    assert dense.sum(1).tolist() == [1] * 7
    assert (dense.sum(0) <= 1).all()
    close(rows, dense @ W.value)
    assert W_found.outputs[0].shape == (7, 3)
    prior = np.linspace(0, 1, 1000, dtype="f4")
    both = C.combine([C.times_transpose(drawn, C.constant(prior)), drawn]).eval()
    product, dense = both.values()
    close(product, (dense @ prior)[:, None], 1e-5)


# ---- other operations -------------------------------------------------------------------------------


def test_cosine_distance_with_negative_samples():
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(5, 3)).astype("f4") for _ in range(2))
    x, y = C.input_variable(3, needs_gradient=True), C.input_variable(3, needs_gradient=True)
    f = C.cosine_distance_with_negative_samples(x, y, shift=2, num_negative_samples=3)
    expected = np.zeros((5, 4))
    for i in range(5):
        for k, j in enumerate([i, i + 2, i + 3, i + 4]):
            expected[i, k] = a[i] @ b[j % 5] / np.linalg.norm(a[i]) / np.linalg.norm(b[j % 5])
    assert f.shape == (4,)
    close(f.eval({x: a, y: b}), expected)
    gradient = f.grad({x: a, y: b}, wrt=[x])
    moved = a.copy()
    moved[2, 1] += 1e-2
    numeric = (f.eval({x: moved, y: b}).astype("f8").sum() - f.eval({x: a, y: b}).astype("f8").sum()) / 1e-2
    assert abs(gradient[2, 1] - numeric) < 1e-2
    zeros = f.grad({x: np.zeros((5, 3), "f4"), y: b}, wrt=[x])
    assert np.isfinite(zeros).all()
    for shift, many in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="positive numbers"):
            C.cosine_distance_with_negative_samples(x, y, shift, many)
    with pytest.raises(ValueError, match="two samples of one shape"):
        C.cosine_distance_with_negative_samples(x, C.input_variable(4), 1, 1)
    with pytest.raises(ValueError, match="with a batch axis"):
        C.cosine_distance_with_negative_samples(C.constant(a), C.constant(a), 1, 1)


def test_cast():
    x = C.input_variable(2, needs_gradient=True)
    f = C.cast(x, np.float64)
    assert (f.dtype, C.cast(x, "float16").dtype, (f * f).dtype) == (np.float64, np.float16, np.float64)
    found = (f / 3).eval({x: np.float32([[1, 2]])})
    assert found.dtype == np.float64
    close(found, [[1 / 3, 2 / 3]], 1e-15)
    gradient = (f * f).grad({x: np.float32([[1, 2]])}, wrt=[x])
    assert gradient.dtype == np.float32
    close(gradient, [[2, 4]])
    with pytest.raises(ValueError, match="expected a data type"):
        C.cast(x, "complex64")


# ---- functions --------------------------------------------------------------------------------------


def test_outputs_by_number_and_calls_on_data():
    x = C.input_variable(2)
    both = C.combine([x + 1, x * 3])
    data = np.float32([[1, 2]])
    close(both[1].owner.eval({x: data}), [[3, 6]])
    found = both(data)
    assert isinstance(found, tuple)
    close(found[0], [[2, 3]])
    close(found[1], [[3, 6]])
    close((x + 1)[1].eval({x: data}), [[3]])


def test_evaluate_fills_a_dictionary_of_outputs():
    x = C.input_variable(2)
    f, g = x + 1, x * 3
    both = C.combine([f, g])
    wanted = {g.output: None}
    assert both.evaluate({x: np.float32([[1, 2]])}, wanted) is wanted
    close(wanted[g.output].asarray(), [[3, 6]])
    every = both.evaluate({x: np.float32([[1, 2]])})
    assert {type(value) for value in every.values()} == {C.Value}
    assert len(every) == 2


def test_a_node_inside_a_recurrence_is_found_and_evaluated():
    x = C.sequence.input_variable(2)

    def step(h, x):
        return C.alias(h + x, "inner") * 2

    f = C.layers.Recurrence(step)(x)
    assert f.find_by_name("inner") is None  # it is inside the block
    inner = f.find_by_name("inner", depth=-1)
    data = {x: [np.float32([[1, 2], [3, 4]])]}
    for function in (inner, f.inner, C.combine([inner]), C.logging.graph.find_by_name(f, "inner", -1)):
        assert [v.name for v in function.arguments] == [x.name]
        (found,) = function.eval(data)
        close(found, [[1, 2], [5, 8]])
    close(C.combine([f, inner])(data[x])[1][0], [[1, 2], [5, 8]])


def test_attention_weights_are_found_by_name():
    attention = C.layers.AttentionModel(4, name="attention")
    encoded, state = C.sequence.input_variable(3, sequence_axis=C.Axis("e")), C.sequence.input_variable(2)
    f = attention(encoded, state)
    shares = f.attention_weights
    assert shares.shape == (C.FreeDimension, 1)
    data = {encoded: [np.ones((3, 3), "f4"), np.ones((1, 3), "f4")], state: [np.ones((2, 2), "f4")] * 2}
    found = shares.eval(data)
    close(found[0], np.full((2, 3, 1), 1 / 3))
    close(found[1], [[[1], [0], [0]]] * 2)


# ---- views, parameters, learners --------------------------------------------------------------------


def test_views_can_be_cloned_shared_and_set():
    view = C.NDArrayView.from_dense(np.float32([[1, 2], [3, 4]]))
    clone, same = view.deep_clone(), view.alias()
    view.set_value(7)
    assert (clone.asarray().tolist(), same.asarray().tolist()) == ([[1, 2], [3, 4]], [[7, 7], [7, 7]])
    view.set_value(clone)
    assert same.asarray().tolist() == [[1, 2], [3, 4]]
    with pytest.raises(ValueError, match=r"shape \(2, 2\), got \(3,\)"):
        view.set_value(np.zeros(3))
    with pytest.raises(ValueError, match="can be written"):
        view.alias(True).set_value(1)
    sparse = sp.csr_matrix(np.eye(3, dtype="f4"))
    assert C.NDArrayView.from_csr(sparse, shape=(3, 3)).shape == (3, 3)
    with pytest.raises(ValueError, match=r"a matrix \(3, 3\), got \(1, 9\)"):
        C.NDArrayView.from_csr(sparse, shape=(1, 9))
    parameter = C.parameter((2, 2), init=0)
    parameter.set_value(clone)
    assert parameter.value.tolist() == [[1, 2], [3, 4]]


def test_learners_keep_states_and_take_gradients_with_axes_of_one():
    p = C.parameter((2,), init=0)
    learner = C.momentum_sgd([p], C.learning_parameter_schedule(0.5, 1), C.momentum_schedule(0.5))
    learner.update({p: np.float32([[1, 2]])}, 1)
    state, value = learner.create_checkpoint(), p.value
    learner.update({p: np.float32([1, 2])}, 1)
    after = p.value
    learner.restore_from_checkpoint(state)
    p.value = value
    learner.update({p: np.float32([1, 2])}, 1)
    close(p.value, after)
    learner.minibatch_size = 16
    assert learner.minibatch_size == 16
    with pytest.raises(ValueError, match="shape"):
        learner.update({p: np.float32([[1], [2], [3]])}, 1)


def test_a_users_learner_has_its_parameters_by_call():
    p = C.parameter((2,), init=0)

    class Mine(C.UserLearner):
        def update(self, gradient_values, training_sample_count, sweep_end):
            return True

    learner = Mine([p], C.learning_parameter_schedule(0.1))
    assert learner.parameters() == learner.parameters == (p,)


# ---- training ---------------------------------------------------------------------------------------


def trained(**configs):
    x, y = C.input_variable(2), C.input_variable(1)
    z = C.layers.Dense(1, init=0)(x)
    loss, metric = C.squared_error(z, y), C.reduce_sum(x - y)
    trainer = C.Trainer(z, (loss, metric), [C.sgd(z.parameters, C.learning_parameter_schedule(0.0001))])
    made = {name: kind(data, criterion=C.combine([loss, metric])) for name, (kind, data) in configs.items()}
    data = (np.ones((4, 2), "f4"), np.zeros((4, 1), "f4"))
    C.training_session(trainer, data, 4, max_samples=4, **made).train()
    return trainer


def test_configs_take_arrays_in_the_order_of_their_criterion():
    tests = []

    class Writer(C.cntk_py.ProgressWriter):
        def __init__(self):
            super().__init__(1, 0, 1, 0, 1, 0)

        def on_write_test_summary(self, samples, updates, summaries, aggregate_metric, elapsed_milliseconds):
            tests.append((samples, aggregate_metric))

    x, y = C.input_variable(1), C.input_variable(1)
    z = C.layers.Dense(1, init=0)(x)
    loss, metric = C.squared_error(z, y), C.reduce_sum(y)
    trainer = C.Trainer(z, (loss, metric), [C.sgd(z.parameters, C.learning_parameter_schedule(0.0001))], [Writer()])
    streams = (np.ones((4, 1), "f4"), np.zeros((4, 1), "f4"))
    config = C.TestConfig((np.full((3, 1), 5, "f4"), np.full((3, 1), 7, "f4")), criterion=loss)
    C.training_session(trainer, streams, 4, max_samples=4, test_config=config).train()
    assert [tuple(map(float, pair)) for pair in tests] == [(3.0, 21.0)]


def test_examples_split_their_own_criterion():
    x = C.input_variable(1)
    loss, metric = x * 1, x * 2
    split = C.Trainer._get_loss_metric
    assert split((loss, metric)) == (loss, metric)
    assert split(loss) == (loss, None)
    assert [f.node for f in split(C.combine([loss, metric]))] == [loss.node, metric.node]


# ---- debugging and names ----------------------------------------------------------------------------


def test_settings_of_debugging_are_taken(caplog, capsys):
    C.debugging.debug._warn_of_timing.cache_clear()
    with caplog.at_level("WARNING", "feedline"):
        C.debugging.set_node_timing(True)
        C.debugging.set_node_timing(True)
        C.debugging.set_node_timing(False)
    assert [record.getMessage()[:37] for record in caplog.records] == ["the times of single nodes are not mea"]
    assert not C.debugging.get_checked_mode()
    C.debugging.set_checked_mode(True)
    try:
        assert C.debugging.get_checked_mode()
        assert torch.is_anomaly_enabled()
    finally:
        C.debugging.set_checked_mode(False)
    assert not torch.is_anomaly_enabled()
    x, y = C.input_variable(1), C.input_variable(1)
    z = C.layers.Dense(1)(x)
    trainer = C.Trainer(z, C.squared_error(z, y), [C.sgd(z.parameters, C.learning_parameter_schedule(0.1))])
    trainer.print_node_timing()
    assert capsys.readouterr().out.startswith("nodes are not timed")


def test_star_imports_hand_on_what_cntks_do(facade):
    namespace = {}
    exec("from cntk import *\nfrom cntk.layers import *\nfrom cntk.debugging import *", namespace)
    import os
    import sys

    assert (namespace["np"], namespace["os"], namespace["sys"]) == (np, os, sys)
    assert C.layers.splice is C.splice
    assert C.layers.glorot_uniform is C.glorot_uniform
    assert C.layers.blocks.BlockFunction is C.layers.BlockFunction
    assert C.layers.sequence.input_variable is C.sequence.input_variable
    for name, names in tables_of():
        module = importlib.import_module(f"feedline.{name}")
        for handed in names.handed.split():
            assert getattr(module, handed) is not None
            assert handed in module.__all__
    assert not hasattr(C.io, "splice")


def tables_of():
    from tests.docs.cntk_table import NAMES

    return NAMES.items()


def test_eval_is_a_package_and_a_function(facade):
    from cntk.eval import Evaluator
    from cntk.eval.evaluator import Evaluator as same

    assert Evaluator is same is C.Evaluator is C.eval.Evaluator
    x = C.input_variable(2)
    close(C.eval(x * 2, {x: np.float32([[1, 2]])}), [[2, 4]])
    with pytest.raises(AttributeError, match="no attribute 'Trainer'"):
        _ = C.eval.Trainer


def test_the_device_of_a_test_run(facade, monkeypatch):
    import cntk.tests.test_utils as utils

    monkeypatch.delenv("TEST_DEVICE", raising=False)
    utils.set_device_from_pytest_env()
    monkeypatch.setenv("TEST_DEVICE", "cpu")
    utils.set_device_from_pytest_env()
    assert utils.cntk_device(-1) == C.cpu()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("TEST_DEVICE", "gpu")
    with pytest.raises(ValueError, match="torch has none"):
        utils.set_device_from_pytest_env()
    assert tables.module_of("cntk.tests.test_utils") is utils
