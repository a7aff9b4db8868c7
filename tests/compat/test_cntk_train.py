"""Training under CNTK's names: arguments of trainers, events and callbacks of sessions, errors."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline as fl  # noqa: E402
import feedline.cntk as C  # noqa: E402
from feedline.cntk import DataUnit  # noqa: E402
from tests.compat.logistic import Logistic, Recorder, error, loss  # noqa: E402
from tests.effort import examples  # noqa: E402

ROWS = 23


def data(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(ROWS, 2)).astype(np.float32)
    return {"x": x, "y": scipy.sparse.csr_matrix(np.eye(3, dtype=np.float32)[rng.integers(0, 3, ROWS)])}


def trainer_of(lr=0.1, metric=error, writers=None):
    model = Logistic([[0.1, -0.2, 0.3], [0.0, 0.5, -0.1]], [0.0, 0.1, 0.0])
    return C.Trainer(model, (loss, metric), [C.sgd(model.parameters(), lr)], writers)


def weights(trainer):
    return trainer.model.W.tolist() + trainer.model.b.tolist()


# ---- trainers -------------------------------------------------------------------------------------


def forms():
    """The same minibatch in every form that a script may have it in."""
    given = data()
    x, y = given["x"], given["y"]
    source = C.io.MinibatchSourceFromData(given, max_samples=ROWS)
    read = source.next_minibatch(ROWS)
    named = {info.name: minibatch for info, minibatch in read.items()}
    return {
        "minibatch data": named,
        "arrays": {"x": x, "y": y},
        "values": {"x": C.Value(x), "y": C.Value.one_hot([[int(k)] for k in y.indices], 3)},
        "sequences": {"x": [row[None] for row in x], "y": [y[i] for i in range(ROWS)]},
        "feedline values": {"x": fl.Value.from_dense(x), "y": fl.Value.from_scipy(y)},
        "values of minibatch data": {name: minibatch.data for name, minibatch in named.items()},
    }


@pytest.mark.parametrize("form", forms())
def test_every_form_of_a_minibatch_is_the_same(form):
    trainer, other = trainer_of(), trainer_of()
    assert trainer.train_minibatch(forms()[form])
    assert other.train_minibatch(forms()["arrays"])
    assert weights(trainer) == weights(other)
    assert trainer.total_number_of_samples_seen == trainer.previous_minibatch_sample_count == ROWS
    assert trainer.test_minibatch(forms()[form]) == other.test_minibatch(forms()["arrays"])


def test_sequences_keep_their_lengths():
    seen = []
    model = Logistic([[0.0] * 3] * 2, [0.0] * 3)
    model.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    trainer = C.Trainer(model, (loss, error), C.sgd(model.parameters(), 0.1))
    rows = [np.ones((n, 2), np.float32) for n in (3, 1, 2)]
    labels = C.Value.one_hot([[0, 1, 2], [1], [0, 0]], 3)
    trainer.train_minibatch({"x": rows, "y": labels}, is_sweep_end=True)
    (minibatch,) = seen
    assert minibatch["x"].lengths.tolist() == [3, 1, 2]
    assert (list(minibatch), len(minibatch), minibatch.num_sequences, minibatch.sweep_end) == (["x", "y"], 2, 3, True)
    assert trainer.previous_minibatch_sample_count == 6
    assert trainer.parameter_learners[0].modern.sweeps == 1
    with pytest.raises(KeyError, match="of 'x', 'y', got 'z'"):
        minibatch["z"]


def test_pieces_know_their_lanes(tmp_path):
    """Under truncation a model knows which lanes continue, and which begin with a new state."""
    fl.write_ctf(tmp_path / "s.ctf", x=[np.ones((n, 2), np.float32) for n in (3, 1, 4)])
    streams = C.io.StreamDefs(x=C.io.StreamDef("x", 2))
    source = C.io.MinibatchSource(
        C.io.CTFDeserializer(str(tmp_path / "s.ctf"), streams), randomize=False, max_sweeps=1, truncation_length=2
    )
    model, told = torch.nn.Linear(2, 1), []

    def forward(minibatch):
        told.append((minibatch.lanes.tolist(), minibatch.begins.tolist()))
        return torch.nn.Linear.forward(model, torch.from_numpy(minibatch["x"].rows))

    model.forward = forward
    trainer = C.Trainer(model, lambda output, minibatch: output[:, 0] ** 2, C.sgd(model.parameters(), 0.1))
    C.training_session(trainer, source, 4, {"x": source.streams.x}).train()
    assert told[:2] == [([0, 1, 1], [True, True, True]), ([0, 1], [False, False])]


def test_reports_of_trainers():
    writer = Recorder()
    trainer = trainer_of(writers=writer)
    assert (trainer.loss_function, trainer.evaluation_function) == (loss, error)
    assert [type(learner) for learner in trainer.parameter_learners] == [C.Learner]
    for name in ("previous_minibatch_loss_average", "previous_minibatch_evaluation_average"):
        with pytest.raises(RuntimeError, match="no preceding call"):
            getattr(trainer, name)
    minibatch = data()
    values = forms()["feedline values"]
    expected = loss(trainer.model(values), values).mean().item()
    assert trainer.train_minibatch(minibatch) is True
    assert trainer.previous_minibatch_loss_average == pytest.approx(expected)
    assert trainer.train_minibatch({}) is False
    with pytest.raises(RuntimeError, match="empty"):
        trainer.previous_minibatch_loss_average  # noqa: B018
    assert [event[0] for event in writer.events] == ["write", "training_update"]
    assert np.isnan(trainer.test_minibatch({}))


def test_trainers_refuse():
    model = Logistic([[0.0] * 3] * 2, [0.0] * 3)
    learner = C.sgd(model.parameters(), 0.1)
    with pytest.raises(fl.CompatError, match=r"torch\.nn"):
        C.Trainer(None, (loss, error), learner)
    for criterion in ((), (loss, error, error), (None, error), ("loss",)):
        with pytest.raises(ValueError, match="criterion"):
            C.Trainer(model, criterion, learner)
    with pytest.raises(ValueError, match="at least one learner"):
        C.Trainer(model, loss, [])
    with pytest.raises(TypeError, match="Learner"):
        C.Trainer(model, loss, [learner.modern])
    with pytest.raises(TypeError, match="ProgressWriter"):
        C.Trainer(model, loss, learner, [print])
    with pytest.raises(ValueError, match="parameters of the model"):
        C.Trainer(model, loss, C.sgd([torch.zeros(1)], 0.1))
    with pytest.raises(ValueError, match="one learner"):
        C.Trainer(model, loss, [learner, C.sgd([model.W], 0.1)])
    with pytest.warns(UserWarning, match="no learner updates b"):
        C.Trainer(model, loss, C.sgd([model.W], 0.1))
    trainer = C.Trainer(model, (loss, None), learner)
    with pytest.raises(fl.CompatError, match="outputs"):
        trainer.train_minibatch(data(), outputs=[model])
    with pytest.raises(ValueError, match="metric"):
        trainer.test_minibatch(data())
    trainer.train_minibatch(data())
    with pytest.raises(RuntimeError, match="metric"):
        trainer.previous_minibatch_evaluation_average  # noqa: B018
    with pytest.raises(ValueError, match="is_sweep_end"):
        trainer.train_minibatch(forms()["minibatch data"], is_sweep_end=True)
    with pytest.raises(ValueError, match="one number of sequences"):
        trainer.train_minibatch({"x": data()["x"], "y": data()["y"][:3]})
    with pytest.raises(fl.CompatError, match="dictionary"):
        trainer.train_minibatch(data()["x"])


class Criterion:
    """A loss that declares its arguments, as CNTK's functions do."""

    def __init__(self, *arguments):
        self.arguments = arguments

    def __call__(self, output, minibatch):
        return output.square().sum(1)


class OfX(Logistic):
    def forward(self, minibatch):
        return torch.from_numpy(minibatch["x"].rows) @ self.W


def of_x(*arguments):
    model = OfX([[0.1, -0.2, 0.3], [0.0, 0.5, -0.1]], [0.0] * 3)
    return C.Trainer(model, Criterion(*arguments), C.sgd(model.parameters(), 0.1))


def test_one_argument_needs_no_name():
    trainer, other = of_x("x"), of_x("x")
    assert trainer.train_minibatch(data()["x"])
    assert other.train_minibatch({"x": data()["x"]})
    assert weights(trainer) == weights(other)
    with pytest.raises(ValueError, match="2 arguments"):
        of_x("x", "y").train_minibatch(data()["x"])


# ---- learners -------------------------------------------------------------------------------------


class Descent(C.UserLearner):
    def __init__(self, parameters, lr, as_numpy=True, updates=10):
        super().__init__(parameters, lr, as_numpy)
        self.sweep_ends, self.left = [], updates

    def update(self, gradient_values, training_sample_count, sweep_end):
        self.sweep_ends.append(sweep_end)
        self.left -= 1
        for parameter, gradient in gradient_values.items():
            assert isinstance(gradient, np.ndarray) == self.as_numpy
            parameter -= self.learning_rate() / training_sample_count * torch.as_tensor(gradient)
        return self.left > 0


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: Descent(parameters, C.learning_parameter_schedule(0.1)),
        lambda parameters: Descent(parameters, C.learning_parameter_schedule(0.1), as_numpy=False),
        lambda parameters: C.universal(
            lambda own, sums: [w.sub_(0.1 / ROWS * g) for w, g in zip(own, sums, strict=True)], parameters
        ),
    ],
    ids=["user learner", "user learner of tensors", "universal"],
)
def test_custom_rules_get_sums(make):
    expected, model = trainer_of(), trainer_of().model
    learner = make(model.parameters())
    writer = Recorder()
    trainer = C.Trainer(model, (loss, error), learner, writer)
    for end in (False, True):
        expected.train_minibatch(data())
        assert trainer.train_minibatch(data(), is_sweep_end=end)
    np.testing.assert_allclose(np.hstack(weights(trainer)), np.hstack(weights(expected)), rtol=1e-5)
    assert trainer.total_number_of_samples_seen == 2 * ROWS
    assert [event[0] for event in writer.events] == ["training_update"] * 2  # it reports no rate
    if isinstance(learner, Descent):
        assert learner.sweep_ends == [False, True]


def test_a_user_learner_ends_the_training():
    model = trainer_of().model
    learner = Descent(model.parameters(), C.learning_parameter_schedule(0.1), updates=2)
    trainer = C.Trainer(model, (loss, error), learner)
    assert [trainer.train_minibatch(data()) for _ in range(2)] == [True, False]
    assert trainer.total_number_of_samples_seen == ROWS
    with pytest.raises(NotImplementedError, match="update"):
        C.UserLearner([torch.zeros(1)], 0.1).modern.update(1, [torch.zeros(1)])


def test_learners_refuse():
    w = torch.zeros(2)
    with pytest.raises(ValueError, match="at least one parameter"):
        C.sgd([], 0.1)
    with pytest.raises(ValueError, match="twice"):
        C.sgd([w, w], 0.1)
    with pytest.raises(TypeError, match="floating-point"):
        C.sgd([1.0], 0.1)
    with pytest.raises(TypeError, match="l3_regularization_weight"):
        C.sgd([w], 0.1, l3_regularization_weight=1)
    with pytest.raises(ValueError, match="momentum"):
        C.momentum_sgd([w], 0.1, C.momentum_as_time_constant_schedule(-5))
    learner = C.sgd([w], 0.1)
    with pytest.raises(ValueError, match="got none for 1 of them"):
        learner.update({}, 1)
    with pytest.raises(ValueError, match="schedule"):
        learner.reset_learning_rate(0.5)
    with pytest.raises(ValueError, match="minibatch"):
        C.sgd([w], 0.1, minibatch_size=4).update({w: [1.0, 1.0]}, 0)
    with pytest.raises(RuntimeError, match="gamma"):
        C.rmsprop([w], 0.1, 1.5, 1.2, 0.7, 10.0, 1e-8)
    with pytest.raises(ValueError, match="twice"):
        C.rmsprop([w, w], 0.1, 1.5, 1.2, 0.7, 10.0, 1e-8)


def test_options_by_position_and_unit_gain():
    """Options follow a rule's own in CNTK's order. The global unit gain changes no learner, as in CNTK."""
    before = C.default_unit_gain_value()
    try:
        C.set_default_unit_gain_value(False)
        assert C.default_unit_gain_value() is False
        a, b = torch.ones(2), torch.ones(2)
        C.momentum_sgd([a], 0.5, 0.9, True, 0.1, 0.2).update({a: C.NDArrayView.from_dense(np.ones(2))}, 2)
        options = {"l1_regularization_weight": 0.1, "l2_regularization_weight": 0.2}
        C.momentum_sgd([b], 0.5, 0.9, **options).update({b: torch.ones(2)}, 2)
        assert a.tolist() == b.tolist() != [1.0, 1.0]
    finally:
        C.set_default_unit_gain_value(before)


def test_a_reset_rate_takes_the_learners_size():
    def moved(size):
        """The parameter after an update by 4 samples, whose rate of 0.2 is per ``size`` samples."""
        weight = torch.zeros(2)
        learner = C.sgd([weight], 0.1, minibatch_size=8)
        learner.reset_learning_rate(C.learning_parameter_schedule(0.2, minibatch_size=size))
        learner.update({weight: torch.ones(2)}, 4)
        return weight.tolist()

    assert moved(None) == moved(8) == pytest.approx([-0.025] * 2)
    assert moved(4) == pytest.approx([-0.05] * 2)


# ---- sessions: the order of events ----------------------------------------------------------------

UNITS = list(DataUnit)
frequencies = st.none() | st.integers(1, 60) | st.tuples(st.integers(1, 7), st.sampled_from(UNITS))


class Told(C.train.TrainingSession):
    """A session that records its events."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.events, self.stop_at = [], None

    def on_minibatch_end(self):
        self.events.append(("trained", self.trainer.previous_minibatch_sample_count))
        return sum(event[0] == "trained" for event in self.events) != self.stop_at

    def on_checkpoint_start(self, checkpoint_index):
        self.events.append(("save", checkpoint_index))

    def on_cross_validation_end(self, index, average_error, num_samples, num_minibatches):
        self.events.append(("validate", index, num_samples, num_minibatches))


class Summaries(C.cntk_py.ProgressWriter):
    def __init__(self, events):
        super().__init__(1, 0, 1, 0, 1, 0)
        self.events = events

    def on_write_training_summary(self, samples, *rest):
        self.events().append(("summary", samples))


def told_by(folder, size, max_samples, checkpoint, progress, validation, stop_at=None):
    trainer = trainer_of(writers=[Summaries(lambda: session.events)])
    source = C.io.MinibatchSourceFromData(data(), max_samples=max_samples)
    validated = C.io.MinibatchSourceFromData(data(1), max_samples=7)
    session = Told(
        trainer,
        source,
        size,
        {"x": source.streams.x, "y": source.streams.y},
        progress_frequency=progress,
        checkpoint_config=C.CheckpointConfig(str(folder / "m"), checkpoint, restore=False),
        cv_config=C.CrossValidationConfig(validated, validation, 4),
    )
    session.stop_at = stop_at
    session.train()
    return session.events


def expected_of(size, max_samples, checkpoint, progress, validation, stop_at=None):
    """The specification of a session, written as slowly and plainly as can be."""
    frequencies = [
        f if isinstance(f, tuple) else (f or 10**9, DataUnit.sample) for f in (checkpoint, progress, validation)
    ]
    names = ["save", "summary", "validate"]
    counts, done_at, since, events, step = dict.fromkeys(UNITS, 0), [0, 0, 0], 0, [], 0

    def act(name, index):
        nonlocal since
        events.append(
            (name, since) if name == "summary" else (name, index, 7, 2) if name == "validate" else (name, index)
        )
        since = 0 if name == "summary" else since

    stopped = False
    while True:
        left_in_sweep = ROWS - counts[DataUnit.sample] % ROWS
        taken = 0 if stopped else min(size, left_in_sweep, max_samples - counts[DataUnit.sample])
        events.append(("trained", taken))
        step += 1
        stopped = stopped or step == stop_at
        before = dict(counts)
        if taken:
            counts[DataUnit.sample] += taken
            counts[DataUnit.minibatch] += 1
            counts[DataUnit.sweep] += taken == left_in_sweep or counts[DataUnit.sample] == max_samples
            since += taken
        for i, (every, unit) in enumerate(frequencies):
            if counts[unit] // every != before[unit] // every:
                act(names[i], before[unit] // every)
                done_at[i] = counts[unit]
        if not taken:
            break
    for i, (every, unit) in enumerate(frequencies):
        if counts[unit] % every and counts[unit] != done_at[i]:
            act(names[i], counts[unit] // every)
    return events


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(1, 30), st.integers(1, 70), frequencies, frequencies, frequencies, st.none() | st.integers(1, 5))
def test_order_of_events(tmp_path_factory, size, max_samples, checkpoint, progress, validation, stop_at):
    given = (size, max_samples, checkpoint, progress, validation, stop_at)
    assert told_by(tmp_path_factory.mktemp("session"), *given) == expected_of(*given)


# ---- sessions: sources ----------------------------------------------------------------------------


class Rows(C.io.UserMinibatchSource):
    """Sequences with a label each, repeated. Labels have an axis of length 1 for time."""

    def __init__(self):
        given = data()
        self.x, self.y, self.next, self.asked = given["x"], given["y"].toarray(), 0, []
        self.xs = C.io.StreamInformation("x", 0, "dense", np.float32, (2,))
        self.ys = C.io.StreamInformation("y", 1, "sparse", np.float32, (3,))
        super().__init__()

    def stream_infos(self):
        return [self.xs, self.ys]

    def next_minibatch(self, num_samples, number_of_workers, worker_rank, device):
        self.asked.append((num_samples, number_of_workers, worker_rank, device))
        rows = [i % ROWS for i in range(self.next, self.next + num_samples)]
        self.next += num_samples
        end = any(i == ROWS - 1 for i in rows)
        labels = self.y[rows].argmax(1)
        return {
            self.xs: C.io.MinibatchData(C.Value(self.x[rows][:, None]), len(rows), len(rows), end),
            self.ys: C.io.MinibatchData(C.Value.one_hot([[int(k)] for k in labels], 3), len(rows), len(rows), end),
        }

    def get_checkpoint_state(self):
        return {"next": self.next}

    def restore_from_checkpoint(self, state):
        self.next = state["next"]


def test_a_users_own_source_is_resumed(tmp_path):
    def run(*parts):
        for until in parts:
            source, trainer = Rows(), trainer_of()
            streams = {"x": source.xs, "y": source.ys}
            saving = C.CheckpointConfig(str(tmp_path / str(parts) / "m"), 20)
            C.training_session(trainer, source, 7, streams, max_samples=until, checkpoint_config=saving).train(C.cpu())
        return weights(trainer), source.asked

    whole, asked = run(100)
    parts, asked_last = run(28, 100)
    assert parts == whole
    assert asked[0] == (7, 1, 0, C.cpu())
    assert [call[0] for call in asked] == [7] * 14 + [2]
    assert [call[0] for call in asked_last] == [7] * 10 + [2]


def test_validation_and_test_put_sources_back():
    """Every validation sees the same data, also one that shares the training's source."""
    trainer, source = trainer_of(), Rows()
    streams, told = {"x": source.xs, "y": source.ys}, []
    shared = C.CrossValidationConfig(source, 14, 5, lambda *all: told.append(all[2:]), max_samples=12)
    test = C.io.MinibatchSourceFromData(data(), max_samples=9)
    tested = C.TestConfig(test, C.minibatch_size_schedule([2, 4], 4), {"x": test.streams.x, "y": test.streams.y})
    C.training_session(trainer, source, 7, streams, None, 28, cv_config=shared, test_config=tested).train()
    assert told == [(12, 3), (12, 3)]
    assert source.next == 28
    assert test.next_minibatch(1) == {}


def test_validation_leaves_half_delivered_sequences_alone(tmp_path):
    """CNTK loses them."""
    fl.write_ctf(tmp_path / "s.ctf", x=[np.full((n, 2), n, np.float32) for n in (3, 1, 4, 2, 5)])

    def seen(**options):
        rows = []
        streams = C.io.StreamDefs(x=C.io.StreamDef("x", 2))
        deserializer = C.io.CTFDeserializer(str(tmp_path / "s.ctf"), streams)
        source = C.io.MinibatchSource(deserializer, randomize=False, max_sweeps=1, truncation_length=2)
        model = OfX([[0.0] * 3] * 2, [0.0] * 3)
        hook = model.register_forward_hook(lambda m, given, out: rows.append(given[0]["x"].rows.tolist()))
        trainer = C.Trainer(model, (Criterion("x"), Criterion("x")), C.sgd(model.parameters(), 0.0001))
        C.training_session(trainer, source, 4, {"x": source.streams.x}, **options).train()
        hook.remove()
        return rows

    config = C.CrossValidationConfig(None, (1, DataUnit.minibatch), callback=lambda *_: True)
    assert seen(cv_config=config) == seen()
    assert sum(len(rows) for rows in seen()) == 15


def test_arrays_as_source():
    trainer, other = of_x("x"), of_x("x")
    C.training_session(trainer, (data()["x"],), 5, max_samples=40).train()
    source = C.io.MinibatchSourceFromData({"any": data()["x"]}, max_samples=40)
    C.training_session(other, source, 5, {"x": source.streams.any}).train()
    assert weights(trainer) == weights(other)
    assert trainer.total_number_of_samples_seen == 40
    with pytest.raises(ValueError, match="limited"):
        C.training_session(of_x("x"), (data()["x"],), 5).train()
    with pytest.raises(ValueError, match="2 arguments"):
        C.training_session(of_x("x", "y"), (data()["x"],), 5)
    with pytest.raises(fl.CompatError, match="MinibatchSourceFromData"):
        C.training_session(trainer_of(), tuple(data().values()), 5, max_samples=40)


def test_a_size_of_0_ends_it():
    trainer, source = trainer_of(), Rows()
    sizes = C.minibatch_size_schedule([(2, 10), (1, 0)], 15)
    C.training_session(trainer, source, sizes, {"x": source.xs, "y": source.ys}, max_samples=1000).train()
    assert trainer.total_number_of_samples_seen == 30


def test_sessions_refuse():
    trainer, source = trainer_of(), Rows()
    streams = {"x": source.xs, "y": source.ys}
    endless = C.io.MinibatchSourceFromData(data())
    for arguments in ((None, source, 1, streams), (trainer, None, 1, streams)):
        with pytest.raises(ValueError, match="trainer and a source"):
            C.training_session(*arguments)
    for none in ({}, None):
        with pytest.raises(ValueError, match="streams"):
            C.training_session(trainer, source, 1, none)
    for size in ("10", 2.5, None):
        with pytest.raises(ValueError, match=r"minibatch_size_schedule\(\)"):
            C.training_session(trainer, source, size, streams)
        with pytest.raises(ValueError, match=r"minibatch_size_schedule\(\)"):
            C.TestConfig(source, size)
    for options, what in (
        ({}, "Train"),
        ({"max_samples": 9, "cv_config": C.CrossValidationConfig(endless, 3)}, "Cross validation"),
        ({"max_samples": 9, "test_config": C.TestConfig(endless)}, "Test"),
    ):
        with pytest.raises(ValueError, match=f"{what} minibatch source must have a limited number"):
            C.training_session(trainer, endless, 1, streams, **options).train()
    with pytest.raises(ValueError, match="filename"):
        C.CheckpointConfig(None, 10)
    with pytest.raises(ValueError, match="neither"):
        C.CrossValidationConfig(None, 10)
    with pytest.raises(ValueError, match="frequency"):
        C.CheckpointConfig("m", -1)
    for config in (C.CrossValidationConfig, C.TestConfig):
        with pytest.warns(DeprecationWarning, match="minibatch_source"):
            assert config(source=source).source is source
        with pytest.warns(DeprecationWarning, match="minibatch_size"):
            assert config(source, mb_size=7).size[0] == 7


def test_frequency_0_is_never(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        configs = C.CheckpointConfig(str(tmp_path / "m"), 0), C.CrossValidationConfig(frequency=0)
    source, trainer = Rows(), trainer_of()
    streams = {"x": source.xs, "y": source.ys}
    C.training_session(
        trainer, source, 5, streams, max_samples=20, checkpoint_config=configs[0], cv_config=configs[1]
    ).train()
    assert list(tmp_path.iterdir()) == []
