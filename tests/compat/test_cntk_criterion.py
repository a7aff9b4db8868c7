"""Criteria that train and test themselves, types of arguments, and ways through a function's graph."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import scipy.sparse

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline as fl  # noqa: E402
import feedline.cntk as C  # noqa: E402
from feedline.cntk.layers.typing import (  # noqa: E402
    ParameterTensor,
    Sequence,
    SequenceOver,
    Signature,
    SparseTensor,
    Tensor,
    tensor,
)

close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6)
RNG = np.random.default_rng(0)
Y = RNG.integers(0, 2, 250)
X = np.float32((RNG.normal(size=(250, 2)) + 3) * (Y[:, None] + 1))
LABELS = scipy.sparse.csr_matrix((np.ones(250, np.float32), (range(250), Y)), shape=(250, 2))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return C.layers.Dense(2)


def criterion_of(model):
    @C.Function.with_signature(Tensor[2], SparseTensor[2])
    def criterion(data, label):
        z = model(data)
        return C.cross_entropy_with_softmax(z, label), C.classification_error(z, label)

    return criterion


# ---- training and testing ---------------------------------------------------------------------------


class Epochs(C.cntk_py.ProgressWriter):
    def __init__(self):
        super().__init__(2, 0, 1, 0, 10, 0)
        self.seen = []

    def on_write_training_summary(self, samples, updates, summaries, loss, metric, elapsed):
        self.seen.append((samples, loss / samples))


def test_a_criterion_trains_on_arrays(model):
    criterion, writer = criterion_of(model), Epochs()
    learner = C.sgd(model.parameters, 0.1)
    progress = criterion.train(
        (X, LABELS), minibatch_size=25, max_epochs=3, epoch_size=125, parameter_learners=[learner], callbacks=[writer]
    )
    assert [e.samples for e in progress.epoch_summaries] == [125, 125, 125]
    assert [(e.samples, e.loss) for e in progress.epoch_summaries] == [
        (samples, pytest.approx(loss)) for samples, loss in writer.seen
    ]
    assert [u.samples for u in progress.updates] == [125] * 3
    assert progress.epoch_summaries[-1].loss < progress.epoch_summaries[0].loss
    tested = criterion.test((X, LABELS), minibatch_size=60)
    z = model(C.input_variable(2)).eval(X)
    assert tested.samples == 250
    close(tested.metric, (z.argmax(1) != Y).mean())


def test_what_it_learns_is_what_a_trainer_learns(model):
    """The same updates as written out: 250 samples in minibatches of 25, once."""
    other = C.layers.Dense(2)
    criterion, written = criterion_of(model), criterion_of(other)
    for mine, theirs in zip(model.parameters, other.parameters, strict=True):
        theirs.value = mine.value
    criterion.train((X, LABELS), minibatch_size=25, parameter_learners=[C.sgd(model.parameters, 0.1)])
    trainer = C.Trainer(None, written, [C.sgd(other.parameters, 0.1)])
    x, y = written.arguments
    for i in range(0, 250, 25):
        trainer.train_minibatch({x: X[i : i + 25], y: LABELS[i : i + 25]})
    for mine, theirs in zip(model.parameters, other.parameters, strict=True):
        np.testing.assert_array_equal(mine.value, theirs.value)


def test_a_criterion_trains_on_a_source(model, tmp_path):
    criterion = criterion_of(model)
    fl.write_ctf(tmp_path / "d.ctf", x=X, y=fl.Value.one_hot([[k] for k in Y], 2))

    def source(**options):
        streams = C.io.StreamDefs(x=C.io.StreamDef("x", 2), y=C.io.StreamDef("y", 2, is_sparse=True))
        return C.io.MinibatchSource(C.io.CTFDeserializer(str(tmp_path / "d.ctf"), streams), **options)

    training, test = source(), source(randomize=False, max_sweeps=1)
    learner = C.sgd(model.parameters, 0.1)
    progress = criterion.train(
        training,
        streams=(training.streams.x, training.streams.y),
        epoch_size=250,
        parameter_learners=[learner],
        callbacks=[C.TestConfig((X, LABELS), 50), C.CheckpointConfig(str(tmp_path / "m"))],
    )
    assert (tmp_path / "m.ckp").is_file()
    assert [e.samples for e in progress.epoch_summaries] == [250]
    x, y = criterion.arguments
    by_source = criterion.test(test, 50, model_inputs_to_streams={x: test.streams.x, y: test.streams.y})
    assert by_source == progress.test_summary == criterion.test((X, LABELS))


def test_what_training_refuses(model):
    criterion, source = criterion_of(model), C.io.MinibatchSourceFromData({"x": X, "y": LABELS})
    learner = C.sgd(criterion.parameters, 0.1)
    for more, message in (
        ({}, "expected epoch_size or max_samples"),
        ({"max_epochs": 1, "max_samples": 5}, "got both"),
        ({"epoch_size": 5, "streams": source.stream_infos(), "model_inputs_to_streams": {1: 2}}, "got both"),
        (
            {"epoch_size": 5, "callbacks": [len]},
            "expected callbacks to be progress writers.*got builtin_function_or_method",
        ),
        ({"epoch_size": 5, "callbacks": [C.TestConfig(), C.TestConfig()]}, "got TestConfig twice"),
    ):
        with pytest.raises(ValueError, match=message):
            criterion.train(source, parameter_learners=[learner], **more)
    with pytest.raises(ValueError, match="without an end"):
        criterion.test(source)


def test_an_evaluator_averages_over_minibatches(model):
    criterion = criterion_of(model)
    x, y = criterion.arguments
    recorded = []

    class Tests(Epochs):
        def on_write_test_summary(self, samples, updates, summaries, metric, elapsed):
            recorded.append((samples, updates, metric))

    loss = criterion.outputs[0]
    evaluator = C.Evaluator(loss, [Tests()])
    assert evaluator.evaluation_function == loss
    averages = [evaluator.test_minibatch({x: X[a:b], y: LABELS[a:b]}) for a, b in ((0, 100), (100, 250))]
    evaluator.summarize_test_progress()
    assert recorded == [(250, 2, pytest.approx(averages[0] * 100 + averages[1] * 150))]
    close(averages[0], criterion.eval({x: X[:100], y: LABELS[:100]})[loss].mean())


def test_a_trainer_hands_out_values_of_the_same_run():
    """Dropout and running statistics belong to the update, which happens once."""
    torch.manual_seed(0)
    x, y = C.input_variable(4), C.input_variable(())
    normal = C.layers.BatchNormalization()(x)
    dropped = C.dropout(normal, 0.5)
    z = C.layers.Dense(())(dropped)
    loss = C.squared_error(z, y)
    trainer = C.Trainer(z, (loss, None), [C.sgd(z.parameters, 0.1)])
    data = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    W, b = z.parameters[0].value, z.parameters[1].value
    going_on, values = trainer.train_minibatch({x: data, y: np.ones(6, np.float32)}, outputs=[dropped, loss])
    assert going_on is True
    assert list(values) == [dropped.output, loss.output]
    shown = values[dropped.output]
    assert 0 < (shown == 0).mean() < 1
    close(values[loss.output], np.square(shown @ W + b - 1))
    close(trainer.previous_minibatch_loss_average, values[loss.output].mean())
    (count,) = (c for c in z.constants if c.name == "aggregate_count")
    assert count.value == 6
    assert trainer.train_minibatch({x: data, y: np.ones(6, np.float32)}) is True


# ---- types ------------------------------------------------------------------------------------------


def test_types_show_shape_axes_and_sparsity():
    axis = C.Axis("mine")
    kinds = {
        "dense": (Tensor[2, 3], (2, 3), False, 1),
        "sparse": (SparseTensor[9], (9,), True, 1),
        "fixed": (ParameterTensor[4], (4,), False, 0),
        "sequence": (Sequence[SparseTensor[9]], (9,), True, 2),
    }
    for kind, shape, sparse, axes in kinds.values():
        assert (kind.shape, kind.is_sparse, len(kind.dynamic_axes)) == (shape, sparse, axes)
        variable = C.input_variable(**kind)
        assert (variable.shape, variable.is_sparse, len(variable.dynamic_axes)) == (shape, sparse, axes)
    assert SequenceOver[axis][Tensor[3]].dynamic_axes[1] is axis
    assert Tensor[np.float64, 3].dtype is np.float64
    assert Sequence[tensor].shape is None
    with pytest.raises(TypeError, match="do not nest"):
        Sequence[Sequence[Tensor[3]]]


def test_functions_take_types_from_decorators_and_annotations():
    @C.Function
    @Signature(Tensor[3], y=Sequence[Tensor[3]])
    def signed(x, y):
        return C.sequence.broadcast_as(x, y) * y

    model = C.layers.Dense(2)
    model.update_signature(Sequence[SparseTensor[3]])
    (fed,) = model.arguments
    assert (fed.is_input, fed.is_sparse, len(fed.dynamic_axes)) == (True, True, 2)
    assert [v.name for v in signed.arguments] == ["x", "y"]
    assert all(v.is_input for v in signed.arguments)
    for given, axes in ((3, 1), ((3,), 1), (C.sequence.input_variable(3), 2)):
        model = C.layers.Dense(2)
        model.update_signature(given)
        (fed,) = model.arguments
        assert (fed.is_input, fed.shape, len(fed.dynamic_axes)) == (True, (3,), axes)
    x, y = signed.arguments
    (found,) = signed.eval({x: np.ones((1, 3)) * 2, y: [np.ones((2, 3))]})
    close(found, 2 * np.ones((2, 3)))
    with pytest.raises(TypeError, match="a type for each of x, y, got 1"):
        Signature(Tensor[3])(lambda x, y: x)
    with pytest.raises(ValueError, match="without annotations"):

        @Signature(Tensor[3])
        def twice(x: int):
            return x


@pytest.mark.parametrize(("kind", "dtype"), [(np.float64, np.float64), (float, np.float64), (np.float32, np.float32)])
def test_types_of_single_numbers(kind, dtype):
    @C.Function
    def later(x):
        return x + 1

    later.update_signature(kind)

    @C.Function
    @Signature(kind)
    def annotated(x):
        return x + 1

    for f in (later, annotated):
        assert (f.shape, f.dtype, len(f.dynamic_axes)) == ((), dtype, 1)
        assert f.eval([1, 2]).tolist() == [2, 3]


def test_an_input_is_replaced_by_an_operand_of_its_shape():
    @C.Function
    @Signature(x=Tensor[13])
    def f(x):
        return C.sigmoid(x)

    for apply in (f, lambda operand: f.clone("share", {f.arguments[0]: operand})):
        with pytest.raises(TypeError, match=r"input `x`: expected an operand of shape \(13,\), got \(42,\) of input"):
            apply(C.input_variable(42))
        # Further leading axes, open ones, and placeholders fit.
        assert apply(C.input_variable((2, 13))).shape == (2, 13)
        assert apply(C.input_variable(C.FreeDimension)).shape == (C.FreeDimension,)
        assert apply(C.placeholder()).shape == (-2,)
        assert apply(C.sequence.input_variable(13)).shape == (13,)


# ---- looking at functions -----------------------------------------------------------------------------


def test_ways_through_a_graph(capsys):
    graph = C.logging.graph
    x = C.input_variable(2, name="x")
    z = C.plus(C.tanh(C.layers.Dense(3, name="inner")(x)), 1, name="z")
    everything = graph.depth_first_search(z, lambda node: True, depth=-1)
    assert everything[0] == z.output.owner or everything[0].uid == z.uid
    assert [v.name for v in graph.depth_first_search(z, lambda n: getattr(n, "is_parameter", False))] == ["W", "b"]
    # By hand from CNTK's algorithm: a closed block is followed by its parameters. One that is entered comes first.
    closed = [getattr(item, "op_name", item.name) for item in graph.depth_first_search(z, lambda node: True)]
    assert closed == ["Plus", "Tanh", "Dense", "W", "b", "x", ""]
    opened = [getattr(item, "op_name", item.name) for item in everything]
    assert opened == ["Plus", "Tanh", "Dense", "", "x", "Plus", "Times", "W", "b"]
    assert graph.find_by_name(z, "x") == x
    assert graph.find_by_name(z, "none") is None
    assert graph.find_by_name(z, "inner").shape == (3,)
    assert graph.get_node_outputs(z)[0] == z.output
    with pytest.raises(ValueError, match="got 2: use find_all_with_name"):
        graph.find_by_name(C.combine(z, C.tanh(x, name="z")), "z")
    C.debugging.dump_signature(z)
    C.debugging.dump_function(z)
    first, second, *lines = capsys.readouterr().out.splitlines()
    assert first == second == "z(x: Tensor[2]) -> z: Tensor[3]"
    assert len(lines) == len(everything)
    C.logging.log_number_of_parameters(z, trace_level=1)
    printed = capsys.readouterr().out
    assert printed.startswith("Training 9 parameters in 2 parameter tensors.")
    assert "(2, 3)" in printed
