"""Workers under CNTK's names: whole sessions of two, with CNTK's counts, and equal models at the end."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline as fl  # noqa: E402
import feedline.cntk as C  # noqa: E402
from feedline.train import SGD  # noqa: E402
from tests.compat.logistic import Logistic, Recorder, error, loss, open_source, streams_of  # noqa: E402
from tests.ranks import run  # noqa: E402


class Counts(Recorder):
    """Samples of each event."""

    def on_write_distributed_sync_update(self, samples, updates, aggregate_metric):
        self.events.append(["sync", list(samples)])


def session(rank, path, way, quantized=32):
    source = open_source(path, randomize=False, max_sweeps=2)
    cv = open_source(path, randomize=False, max_sweeps=1)
    model = Logistic([[0.1, -0.2, 0.3], [0.0, 0.1, -0.1]], [0.0, 0.0, 0.0])
    learner = C.sgd([model.W, model.b], C.learning_parameter_schedule_per_sample(0.05))
    if way == "block":
        learner = C.distributed.block_momentum_distributed_learner(learner, 40)
    elif way != "alone":
        learner = C.train.distributed.data_parallel_distributed_learner(
            learner, distributed_after=60 if way == "later" else 0, num_quantization_bits=quantized
        )
    recorder = Counts()
    C.training_session(
        C.Trainer(model, (loss, error), [learner], [recorder]),
        source,
        30,
        streams_of(source),
        100,
        cv_config=C.CrossValidationConfig(cv, 100, 40),
    ).train()
    seen = learner.total_number_of_samples_seen
    events = [
        [event[0], event[1][1] - event[1][0] if isinstance(event[1], list) else event[1]] for event in recorder.events
    ]
    C.distributed.Communicator.finalize()
    return events, [model.W.tolist(), model.b.tolist()], seen if way != "alone" else seen()


@pytest.fixture
def text(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 2))
    lines = [f"|x {a:.5f} {b:.5f} |y {int(a > 0) + int(b > 0)}:1" for a, b in x]
    (tmp_path / "t.ctf").write_text("\n".join(lines) + "\n")
    return str(tmp_path / "t.ctf")


def counts(events, kind):
    return [samples for name, samples in events if name == kind]


@pytest.mark.parametrize("way", ["parallel", "later"])
def test_data_parallel_is_one_worker_with_more_hands(text, way):
    """CNTK's own counts of such a session: updates of 30, summaries after 120 and 80, validations of 40, 40, 20."""
    first, second = run(session, 2, path=text, way=way)
    assert first == second
    events, parameters, seen = first
    assert counts(events, "training_update") == [30, 30, 30, 30, 30, 30, 20]
    assert counts(events, "training_summary") == [120, 80]
    assert counts(events, "test_update") == [40, 40, 20] * 2
    assert len(counts(events, "sync")) == 7
    assert seen == 200
    (alone,) = run(session, 1, path=text, way="alone")
    assert [e for e in events if e[0] != "sync"] == alone[0]
    for ours, theirs in zip(parameters, alone[1], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("way", "bits"), [("block", 32), ("parallel", 1)])
def test_other_ways_end_with_equal_models(text, way, bits):
    first, second = run(session, 2, path=text, way=way, quantized=bits)
    assert first[1:] == second[1:]
    assert first[2] == 200
    if way == "block":
        assert counts(first[0], "training_update") == [60, 60, 60, 20]  # each worker takes 30


class EndsAfterOne(C.UserLearner):
    """Wants no more from the second minibatch on."""

    def update(self, gradient_values, training_sample_count, sweep_end):
        return self.total_number_of_samples_seen() == 0


def user_learner(rank):
    model = Logistic([[0.1, -0.2, 0.3], [0.0, 0.1, -0.1]], [0.0, 0.0, 0.0])
    learner = EndsAfterOne([model.W, model.b], C.learning_parameter_schedule(0.1))
    trainer = C.Trainer(model, (loss, error), C.distributed.data_parallel_distributed_learner(learner))
    data = {"x": np.ones((4 + rank, 2), "f4"), "y": fl.Value.one_hot([0] * (4 + rank), 3)}
    found = [trainer.train_minibatch(data) for _ in range(3)]
    C.distributed.Communicator.finalize()
    return found, trainer.total_number_of_samples_seen, trainer.previous_minibatch_sample_count


def test_a_user_learner_that_wants_no_more_ends_the_training_of_all_workers():
    """As for a single worker: nothing is counted, and `train_minibatch` returns False."""
    assert run(user_learner, 2) == [([True, False, False], 9, 9)] * 2


def talks(rank):
    communicator = C.distributed.mpi_communicator()
    workers = communicator.workers()
    communicator.barrier()
    found = [communicator.rank(), communicator.num_workers(), communicator.is_main()]
    assert workers[rank] == communicator.current_worker()
    numbers = [worker.global_rank for worker in workers]
    C.distributed.Communicator.finalize()
    return found, numbers


def test_the_communicator_knows_the_workers():
    assert run(talks, 2) == [([0, 2, True], [0, 1]), ([1, 2, False], [0, 1])]


def test_without_a_launcher_there_is_one_worker(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    try:
        assert (C.distributed.Communicator.rank(), C.distributed.Communicator.num_workers()) == (0, 1)
    finally:
        C.distributed.Communicator.finalize()


def too_small(rank):
    with pytest.raises(ValueError, match="Sync period is too small"):
        C.distributed.block_momentum_distributed_learner(learner(), 1)
    C.distributed.Communicator.finalize()


def learner():
    return C.learners.Learner(SGD(torch.nn.Linear(2, 2).parameters(), 0.1))


def test_what_is_refused():
    run(too_small, 2)
    with pytest.raises(RuntimeError, match="asynchronous"):
        C.distributed.data_parallel_distributed_learner(learner(), 0, 32, True)


def test_processes_of_mpiexec_that_train_separately_are_warned(monkeypatch, recwarn):
    x = C.input_variable(2)
    z = C.layers.Dense(1)(x)

    def trainer():
        return C.Trainer(z, (C.reduce_sum(z), None), [C.sgd(z.parameters, C.learning_parameter_schedule(0.1))])

    monkeypatch.setattr("torch.distributed.is_initialized", lambda: False)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.warns(RuntimeWarning, match="has started 2 processes, got local learners: each process trains") as seen:
        trainer()
    assert seen[0].filename == __file__
    recwarn.clear()
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, str(int(name == "WORLD_SIZE")))
    trainer()
    monkeypatch.delenv("RANK")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    trainer()
    assert not [w for w in recwarn if w.category is RuntimeWarning]
