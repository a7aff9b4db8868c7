"""The law of sessions: killed anywhere and restarted, a run ends like an uninterrupted one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl

torch = pytest.importorskip("torch", reason="torch is not installed")

from feedline.train import Adam, MomentumSGD, Schedule, TorchLearner  # noqa: E402
from feedline.train.controllers import GrowMinibatch, KeepBest, ReduceOnPlateau  # noqa: E402
from feedline.train.evaluation import Evaluation  # noqa: E402
from feedline.train.saving import Saving, seconds_of  # noqa: E402
from feedline.train.session import TrainingSession  # noqa: E402
from feedline.train.summary import Summary  # noqa: E402
from feedline.train.trainer import Trainer  # noqa: E402
from tests import warm  # noqa: E402
from tests.effort import examples  # noqa: E402


class Noisy(torch.nn.Module):
    """A model that draws from all generators that a checkpoint has."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.BatchNorm1d(12), torch.nn.Dropout(0.2))
        self.head = torch.nn.Linear(12, 3)

    def forward(self, minibatch):
        x = minibatch["x"].torch()
        if self.training:
            x = x + 0.01 * random.random() + 0.01 * float(np.random.rand())
        return self.head(torch.relu(self.body(x)))


def losses(output, minibatch):
    return torch.nn.functional.cross_entropy(output, minibatch["y"].torch(), reduction="none")


def wrong(output, minibatch):
    return (output.argmax(1) != minibatch["y"].torch()).float()


def session(folder=None, learner="adam", **changes):
    """A run of four sweeps with every object that has a state."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 6)).astype("f4")
    y = (x[:, :3].argmax(1)).astype("i8")
    source = fl.MinibatchSource(fl.ArrayDeserializer(x=x, y=y), seed=3, max_sweeps=4)
    held_out = fl.MinibatchSource(fl.ArrayDeserializer(x=x[:60], y=y[:60]), shuffle=False, max_sweeps=1)
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    torch.set_num_threads(1)
    model = Noisy()
    made = {
        "adam": lambda: [
            Adam(model.body.named_parameters(), Schedule([0.02, 0.01]), momentum=0.9, noise=0.001, seed=4),
            MomentumSGD(model.head.named_parameters(), 0.05, momentum=0.9),
        ],
        "torch": lambda: [TorchLearner(torch.optim.AdamW(model.parameters()), 0.01)],
    }
    settings = {
        "size": Schedule.sizes([(1, 16), (1, 24)], epoch_size=240),
        "progress": fl.samples(100),
        "saving": None if folder is None else Saving(folder, every=fl.minibatches(3)),
        "validation": Evaluation(held_out, every=fl.minibatches(7)),
        "epoch": fl.sweeps(1),
        "controllers": [ReduceOnPlateau(patience=0), GrowMinibatch(limit=4)],
        **changes,
    }
    return TrainingSession(Trainer(model, losses, wrong, made[learner]()), source, **settings)


def fingerprint(run):
    """A digest of the model's parameters and buffers, bit for bit."""
    h = hashlib.sha256()
    for name, tensor in sorted(run.trainer.model.state_dict().items()):
        h.update(name.encode() + tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return h.hexdigest()


class Stop(Exception):
    """Simulates the end of a process."""


class StopsAfter:
    """A reporter that kills the run after ``updates`` updates."""

    def __init__(self, updates):
        self.left = updates

    def on_update(self, run, summary):
        self.left -= 1
        if self.left == 0:
            raise Stop

    def on_start(self, run): ...
    def on_progress(self, run, progress): ...
    def on_test(self, run, what, result): ...
    def on_checkpoint(self, run, path): ...
    def on_end(self, run): ...


class Recorder(StopsAfter):
    """A reporter that records everything."""

    def __init__(self):
        super().__init__(-1)
        self.events = []

    def on_progress(self, run, progress):
        self.events.append(("progress", progress.number, progress.summary.samples, round(progress.summary.loss, 5)))

    def on_test(self, run, what, result):
        self.events.append((what, result.number, result.summary.samples, round(result.summary.loss, 5)))

    def on_checkpoint(self, run, path):
        self.events.append(("checkpoint", path.name))


@pytest.mark.parametrize("learner", ["adam", "torch"])
def test_stopped_anywhere_it_ends_the_same(tmp_path, learner):
    """Stopped after any number of updates, again and again, it has the same parameters and events, bit for bit."""
    heard = Recorder()
    uninterrupted = session(tmp_path / "whole", learner, reporters=[heard]).run()
    expected = fingerprint(uninterrupted)
    assert uninterrupted.samples == 960
    for updates in (1, 2, 3, 4, 5, 8, 13):
        folder = tmp_path / str(updates)
        for _ in range(200):
            again = Recorder()
            run = session(folder, learner, reporters=[StopsAfter(updates + 3), again])
            try:
                run.run()
                break
            except Stop:
                continue
        assert fingerprint(run) == expected
        assert (run.samples, run.minibatches, run.scale) == (
            uninterrupted.samples,
            uninterrupted.minibatches,
            uninterrupted.scale,
        )
        assert again.events[-3:] == heard.events[-3:]


def spans(largest):
    """Spans in any unit, without common multiples."""
    return st.one_of(
        st.integers(1, largest).map(fl.minibatches),
        st.integers(1, 20 * largest).map(fl.samples),
        st.integers(1, 3).map(fl.sweeps),
    )


@settings(max_examples=examples(12))
@given(st.data())
def test_the_law_for_any_spans(tmp_path_factory, data):
    """With random spans, limits, numbers of checkpoints and stops, it has the same parameters and last events."""
    limit = data.draw(st.one_of(st.none(), st.integers(1, 90).map(lambda n: 10 * n)), "max_samples")
    callback_stops = data.draw(st.one_of(st.none(), st.integers(0, 6)), "stops at validation")
    saving = data.draw(st.one_of(spans(9), st.just(1e-9)), "checkpoint")
    num_kept = data.draw(st.sampled_from([1, 2, None]), "keep")
    progress, every, epoch = (data.draw(spans(9), name) for name in ("progress", "validation", "epoch"))
    learner = data.draw(st.sampled_from(["adam", "torch"]), "learner")
    metric = data.draw(st.sampled_from([wrong, None]), "metric")
    size = data.draw(st.sampled_from([30, Schedule.sizes([16, 50, 0], epoch_size=240)]), "size")
    stops = data.draw(st.lists(st.integers(1, 14), max_size=4), "stops")

    def run(folder, reporters):
        callback = None if callback_stops is None else lambda result: result.number < callback_stops
        made = session(
            folder,
            learner,
            size=size,
            reporters=reporters,
            max_samples=limit,
            progress=progress,
            saving=Saving(folder, every=saving, keep=num_kept),
            epoch=epoch,
        )
        made.trainer.metric = metric
        validation = replace(made.validation, every=every, callback=callback)
        return TrainingSession(
            made.trainer,
            made.source,
            made.size,
            max_samples=limit,
            progress=progress,
            reporters=reporters,
            saving=made.saving,
            validation=validation,
            epoch=epoch,
            controllers=made.controllers,
        )

    folder = tmp_path_factory.mktemp("law")
    heard = Recorder()
    uninterrupted = run(folder / "whole", [heard])
    uninterrupted.run()
    for updates in stops:
        with contextlib.suppress(Stop):
            run(folder / "stopped", [StopsAfter(updates)]).run()
    again = Recorder()
    resumed = run(folder / "stopped", [again])
    resumed.run()
    counts = ("samples", "minibatches", "sweeps", "scale", "stopped")
    assert [getattr(resumed, name) for name in counts] == [getattr(uninterrupted, name) for name in counts]
    assert fingerprint(resumed) == fingerprint(uninterrupted)
    told = [event for event in heard.events if event[0] != "checkpoint"]
    told_again = [event for event in again.events if event[0] != "checkpoint"]
    assert told_again == told[len(told) - len(told_again) :]


SCRIPT = textwrap.dedent(
    """
    import sys
    from tests.train.test_session import fingerprint, session
    run = session(sys.argv[1])
    run.run()
    print(fingerprint(run))
    """
)


@pytest.mark.slow
def test_killed_anywhere_it_ends_the_same(tmp_path):
    """With real SIGKILLs at random instants. FEEDLINE_KILLS sets their number."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = ["-c", SCRIPT]
    expected = warm.run(
        [*command, str(tmp_path / "whole")], env=environment, check=True, capture_output=True, text=True
    ).stdout
    rng = random.Random(1)
    kills = int(os.environ.get("FEEDLINE_KILLS", "2"))
    for attempt in range(kills):
        folder = tmp_path / str(attempt)
        process = warm.Python([*command, str(folder)], env=environment, stdout=subprocess.PIPE, text=True)
        while process.poll() is None and not (folder.is_dir() and any(folder.iterdir())):
            time.sleep(0.005)
        time.sleep(rng.random() * 0.6)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        got = warm.run([*command, str(folder)], env=environment, check=True, capture_output=True, text=True)
        assert got.stdout == expected


def test_a_torn_checkpoint_falls_back(tmp_path):
    """If the newest checkpoint is damaged, the run continues from the one before it, to the same end."""
    expected = fingerprint(session(tmp_path / "whole").run())
    run = session(tmp_path / "torn", reporters=[StopsAfter(14)])
    with pytest.raises(Stop):
        run.run()
    newest = sorted((tmp_path / "torn").iterdir())[-1]
    content = (newest / "tensors.safetensors").read_bytes()
    (newest / "tensors.safetensors").write_bytes(content[: len(content) // 2])
    assert fingerprint(session(tmp_path / "torn").run()) == expected


def test_ctrl_c_saves_and_ends(tmp_path):
    """After one SIGINT there is a checkpoint after the current update, and `interrupted`. Restarted, it ends alike."""
    expected = fingerprint(session(tmp_path / "whole").run())

    class Interrupts(StopsAfter):
        def on_update(self, run, summary):
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    run = session(tmp_path / "c", reporters=[Interrupts(8)]).run()
    assert run.interrupted
    assert run.minibatches == 8
    assert signal.getsignal(signal.SIGINT) is before
    again = session(tmp_path / "c").run()
    assert not again.interrupted
    assert fingerprint(again) == expected


class Waiting(torch.nn.Linear):
    """A model that loads until the source has read something."""

    def __init__(self, source):
        super().__init__(6, 1)
        self.source, self.chunks_read = source, 0

    def forward(self, minibatch):
        return super().forward(minibatch["x"].torch())

    def load_state_dict(self, *args, **options):
        deadline = time.monotonic() + 60
        while not self.chunks_read and time.monotonic() < deadline:
            time.sleep(0.01)
            self.chunks_read = self.source.stats().chunks_read
        return super().load_state_dict(*args, **options)


def test_the_source_reads_while_the_model_loads(tmp_path):
    rng = np.random.default_rng(0)
    text = str(tmp_path / "data.ctf")
    fl.write_ctf(text, x=rng.normal(size=(240, 6)).astype("f4"), y=rng.integers(0, 3, (240, 1)).astype("f4"))

    def make(folder, *reporters):
        corpus = fl.CTFDeserializer(text, x=fl.Stream(6), y=fl.Stream(1), chunk_size=2 << 10)
        source = fl.MinibatchSource(corpus, seed=3, shuffle=fl.Window(bytes=4 << 10), max_sweeps=2)
        torch.manual_seed(5)
        model = Waiting(source)
        learner = Adam(model.named_parameters(), 0.01)
        trainer = Trainer(model, lambda z, m: (z - m["y"].torch()).square().mean(1), None, learner)
        return TrainingSession(trainer, source, 16, saving=Saving(folder, every=fl.minibatches(3)), reporters=reporters)

    whole = make(tmp_path / "whole").run()
    with pytest.raises(Stop):
        make(tmp_path / "stopped", StopsAfter(8)).run()
    resumed = make(tmp_path / "stopped").run()
    assert resumed.trainer.model.chunks_read > 0
    assert fingerprint(resumed) == fingerprint(whole)


def test_a_finished_run_does_nothing_again(tmp_path):
    """Started again after its end, it makes no update and no summary, but the test at the end."""
    session(tmp_path).run()
    heard = Recorder()
    rows = np.zeros((5, 6), "f4"), np.zeros(5, "i8")
    held_out = fl.MinibatchSource(fl.ArrayDeserializer(x=rows[0], y=rows[1]), shuffle=False, max_sweeps=1)
    run = session(tmp_path, reporters=[heard], test=Evaluation(held_out)).run()
    assert run.samples == 960
    assert [event[:3] for event in heard.events] == [("test", 0, 5)]


def test_stopped_is_over(tmp_path, caplog):
    """Stopped by a callback and restarted, it makes no update and no validation, and logs a line."""
    stop = Evaluation(every=fl.samples(120), callback=lambda result: result.number < 1)
    options = {"size": 30, "validation": stop, "controllers": [], "epoch": None}
    first = session(tmp_path, **options).run()
    assert (first.samples, first.stopped) == (240, True)
    heard = Recorder()
    again = session(tmp_path, reporters=[heard], **options).run()
    assert (again.samples, again.stopped, heard.events) == (240, True, [])
    assert fingerprint(again) == fingerprint(first)
    assert "was stopped after 240 label samples" in caplog.text


def test_actions_due_at_the_end_are_made_up_for(tmp_path):
    """If it is killed between the last checkpoint and the actions at the end, the next start runs these once."""

    class DiesAtTheEnd(StopsAfter):
        def on_progress(self, run, progress):
            if run.samples == 960:
                raise Stop

    options = {"size": 30, "saving": Saving(tmp_path, every=fl.minibatches(1)), "progress": None}
    options |= {"validation": replace(session().validation, every=None), "controllers": [], "epoch": None}
    with pytest.raises(Stop):
        session(reporters=[DiesAtTheEnd(-1)], **options).run()
    expected = [("progress", 1, 960), ("validation", 0, 60)]
    for told in (expected, []):
        heard = Recorder()
        session(reporters=[heard], **options).run()
        assert [event[:3] for event in heard.events if event[0] != "checkpoint"] == told


def test_another_run_in_the_folder_does_not_remove_new_checkpoints(tmp_path):
    """With `restore=False` after a longer run, or after a damaged newest checkpoint, new checkpoints stay."""
    session(tmp_path, saving=Saving(tmp_path, every=fl.minibatches(3), keep=1)).run()
    saving = Saving(tmp_path, every=fl.minibatches(3), keep=1, restore=False)
    with pytest.raises(Stop):
        session(saving=saving, reporters=[StopsAfter(5)]).run()
    files = list(tmp_path.iterdir())
    assert len(files) == 1
    assert files[0].name.endswith("-48")
    assert session(tmp_path, saving=replace(saving, restore=True)).run().samples == 960


def test_other_spans_after_a_restore(tmp_path):
    """If spans change between two starts, actions run only at multiples of the new spans."""
    with pytest.raises(Stop):
        session(tmp_path, size=30, progress=fl.samples(60), reporters=[StopsAfter(14)]).run()
    heard = Recorder()
    session(tmp_path, size=30, progress=fl.samples(480), reporters=[heard]).run()
    assert [event[1:3] for event in heard.events if event[0] == "progress"] == [(7, 120), (8, 480)]


def test_save_from_a_reporter(tmp_path):
    """A requested checkpoint is saved after everything that belongs to the update, so the law holds for it."""

    class Saves(StopsAfter):
        def on_update(self, run, summary):
            run.save()
            super().on_update(run, summary)

    expected = fingerprint(session(tmp_path / "whole").run())
    saving = Saving(tmp_path / "asked", keep=None)
    with pytest.raises(Stop):
        session(saving=saving, reporters=[Saves(11)]).run()
    assert len(list((tmp_path / "asked").iterdir())) == 10
    assert fingerprint(session(saving=saving).run()) == expected


def test_progress_time_continues_after_a_restore(tmp_path):
    """The seconds of a span cover all its minibatches, before and after the restore."""

    class Sleeps(Recorder):
        def on_update(self, run, summary):
            time.sleep(0.02)
            super().on_update(run, summary)

    saving = Saving(tmp_path, every=fl.minibatches(1))
    with pytest.raises(Stop):
        session(saving=saving, progress=None, reporters=[Sleeps(), StopsAfter(11)]).run()
    late = []

    class Late(StopsAfter):
        def on_progress(self, run, progress):
            late.append((progress.minibatches, progress.seconds))

    session(saving=saving, progress=fl.minibatches(12), reporters=[Late(-1)]).run()
    minibatches, seconds = late[0]
    assert minibatches == 12
    assert seconds >= 10 * 0.02


def test_sizes():
    """A size of 0 ends the training. Sizes below 0 and spans of 0 are refused."""
    run = session(size=Schedule.sizes([30, 0], epoch_size=120), controllers=[], epoch=None)
    assert run.run().samples == 120
    run.scale = 8.0
    assert run.next_size() == 0
    with pytest.raises(ValueError, match="at least 0"):
        session(size=-5)
    with pytest.raises(ValueError, match="at least 1"):
        session(progress=fl.samples(0))


def test_ranks(tmp_path):
    """In torch.distributed, only rank 0 saves."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        run = session(tmp_path, saving=Saving(tmp_path, every="0.000001s")).run()
        assert run.samples == 960
        assert len(list(tmp_path.iterdir())) == 3
    finally:
        torch.distributed.destroy_process_group()


def test_progress_validation_and_limits():
    """Spans are in samples, minibatches and sweeps. Each action runs once per span, and at the end."""
    heard = Recorder()
    run = session(size=30, progress=fl.samples(100), controllers=[], epoch=None, reporters=[heard]).run()
    assert run.minibatches == 32
    assert [e[2] for e in heard.events if e[0] == "progress"] == [120, 90, 90, 120, 90, 90, 120, 90, 90, 60]
    assert [e[1] for e in heard.events if e[0] == "validation"] == [0, 1, 2, 3, 4]
    assert session(size=30, max_samples=100, controllers=[], epoch=None).run().samples == 100
    heard = Recorder()
    session(size=30, progress=fl.sweeps(1), validation=None, controllers=[], epoch=None, reporters=[heard]).run()
    assert [e[2] for e in heard.events] == [240] * 4


def test_a_callback_stops_the_training():
    """Returning False from the validation's callback ends it after the update."""
    reports = []

    def callback(result):
        reports.append(result.number)
        return len(reports) < 2

    run = session(size=30, validation=Evaluation(every=fl.samples(120), callback=callback), controllers=[], epoch=None)
    assert run.run().samples == 240
    assert reports == [0, 1]


def test_a_rate_of_zero_ends_the_training():
    """A schedule that ends in 0 ends the run."""
    run = session(size=30, controllers=[], epoch=None)
    run.trainer.learners[0].reset_learning_rate(Schedule([0.1, 0.0]))
    run.trainer.learners[1].reset_learning_rate(Schedule([0.1, 0.0]))
    assert run.run().samples == run.trainer.samples == run.source.position.samples == 240
    assert run.stopped
    run = session(size=70, controllers=[], epoch=None)
    for learner in run.trainer.learners:
        learner.reset_learning_rate(Schedule([(2, 0.1), 0.0], epoch_size=100))
    assert run.run().samples == run.trainer.samples == 210
    assert run.source.position.samples == 210


def test_wall_time_checkpoints(tmp_path):
    """`every="0.02s"` saves again and again. Durations are written as numbers with a unit."""
    run = session(tmp_path, saving=Saving(tmp_path, every="0.001s", keep=None))
    run.run()
    assert len(list(tmp_path.iterdir())) > 5
    assert [seconds_of(d) for d in (5, "30min", "1h30min", "2 h", "1.5s", "1d")] == [5, 1800, 5400, 7200, 1.5, 86400]
    for wrong in ("soon", "5", "-3s", 0, "3min or so", True):
        with pytest.raises(ValueError, match="expected"):
            seconds_of(wrong)


def test_epochs_end_with_checkpoints(tmp_path):
    """A checkpoint is saved at the end of each epoch by default."""
    session(tmp_path, size=30, saving=Saving(tmp_path, keep=None), progress=None, validation=None).run()
    at = sorted(int(path.name.split("-")[2]) for path in tmp_path.iterdir())
    assert sorted(set(at)) == [240, 480, 720, 960]


def test_controllers(tmp_path):
    """The rate falls when the loss does not improve, the minibatch grows while it does, and the best model is saved."""

    class Told:
        def __init__(self, loss):
            self.loss, self.metric, self.samples = loss, None, 1

    run = session(size=10)
    plateau, grow = ReduceOnPlateau(factor=0.1, patience=1, stop_below=0.05), GrowMinibatch(limit=4)
    best = KeepBest(str(tmp_path / "best"))
    rates, scales = [], []
    for loss in (3.0, 2.0, 2.0, 2.5, 1.0, 1.0, 1.0, 1.0):
        for controller in (plateau, grow, best):
            controller.on_epoch_end(run, Told(loss), None)
        rates.append(run.trainer.learners[1].learning_rate())
        scales.append(run.scale)
    assert rates == pytest.approx([0.05, 0.05, 0.05, 0.005, 0.005, 0.005, 0.0005, 0.0005])
    assert scales == [1, 2, 4, 2, 4, 4, 4, 4]
    assert run.next_size() == 40
    assert best.restore(run.trainer.model) == 1.0
    for controller in (ReduceOnPlateau(patience=0), GrowMinibatch(), KeepBest(str(tmp_path / "nan"))):
        for loss in (math.nan, 2.0, 1.0):
            controller.on_epoch_end(run, Told(loss), None)
        assert controller.best == 1.0
    for controller in (ReduceOnPlateau(), GrowMinibatch(), best):
        controller.load_state_dict(json.loads(json.dumps(controller.state_dict())))
        with pytest.raises(fl.StateError):
            controller.load_state_dict({})


def test_sessions_that_cannot_run_are_refused():
    """Sessions without an end, controllers without an epoch, tests without data."""
    endless = fl.MinibatchSource(fl.ArrayDeserializer(x=np.zeros((4, 6), "f4"), y=np.zeros(4, "i8")))
    trainer = session().trainer
    with pytest.raises(ValueError, match="max_samples"):
        TrainingSession(trainer, endless)
    with pytest.raises(ValueError, match="got one without"):
        unmeasured = session()
        unmeasured.trainer.metric = None
        TrainingSession(
            unmeasured.trainer, unmeasured.source, epoch=fl.sweeps(1), controllers=[ReduceOnPlateau(watch="metric")]
        )
    with pytest.raises(ValueError, match="epoch"):
        TrainingSession(trainer, endless, max_samples=5, controllers=[GrowMinibatch()])
    with pytest.raises(ValueError, match="validation"):
        TrainingSession(trainer, endless, max_samples=5, validation=Evaluation(endless))
    with pytest.raises(ValueError, match="neither"):
        TrainingSession(trainer, endless, max_samples=5, test=Evaluation())


def test_sizes_are_whole_numbers_in_any_schedule():
    """They are not truncated to 0, which would end the run before it began."""
    for bad, error in ((Schedule(0.5), TypeError), (Schedule(-5), ValueError), (Schedule([16, 24.5]), TypeError)):
        with pytest.raises(error, match="minibatch size"):
            session(size=bad)
        with pytest.raises(error, match="minibatch size"):
            session(validation=replace(session().validation, size=bad))
    assert session(size=Schedule([(2, 16), 24], epoch_size=240)).next_size() == 16


class Generated(fl.UserMinibatchSource):
    """A generator of two minibatches, which cannot rewind."""

    schema = fl.Schema({"x": fl.Stream(6), "y": fl.Stream((), "int64")})
    left = 2

    def make_minibatch(self, num_samples, number_of_workers, worker_rank, device):
        self.left -= 1
        return {"x": np.zeros((4, 6), "f4"), "y": np.zeros(4, "i8")} if self.left >= 0 else None


def test_sources_that_cannot_rewind_are_refused_before_the_run(tmp_path):
    """And not after a day of training, when the test ends or the checkpoint is loaded."""
    run = session()
    for bad in (
        {"test": Evaluation(Generated())},
        {"validation": Evaluation(Generated())},
        {"saving": Saving(tmp_path)},
    ):
        with pytest.raises(ValueError, match="get_checkpoint_state"):
            TrainingSession(run.trainer, Generated(), 4, **bad)
    assert TrainingSession(run.trainer, Generated(), 4, saving=Saving(tmp_path, restore=False)).run().samples == 8


def test_the_source_of_the_training_tests_nothing():
    run = session()
    for what in ("validation", "test"):
        with pytest.raises(ValueError, match="separate source"):
            TrainingSession(run.trainer, run.source, **{what: Evaluation(run.source)})


def test_arguments_of_other_types_are_refused(tmp_path):
    """Each error has the expected type."""
    held_out = session().validation.source
    for changes, message in (
        ({"progress": 100}, r"fl\.samples"),
        ({"saving": str(tmp_path)}, r"Saving\("),
        ({"validation": held_out}, r"Evaluation\("),
        ({"test": held_out}, r"Evaluation\("),
        ({"reporters": StopsAfter(1)}, "list of reporters"),
        ({"reporters": [StopsAfter]}, "reporters with"),
        ({"controllers": GrowMinibatch()}, "list of controllers"),
        ({"controllers": [GrowMinibatch]}, "controllers with"),
        ({"max_samples": 1.5}, "max_samples"),
        ({"validation": Evaluation(held_out, max_samples=1.5)}, "max_samples"),
    ):
        with pytest.raises(TypeError, match=message):
            session(**changes)
    with pytest.raises(TypeError, match="MinibatchSource"):
        TrainingSession(session().trainer, iter([]))
    with pytest.raises(ValueError, match="max_samples"):
        session(max_samples=-1)


def test_the_best_model_cannot_replace_the_checkpoints(tmp_path):
    """One folder for both is refused, however its path is written."""
    with pytest.raises(ValueError, match="best model in another folder"):
        session(tmp_path / "run", controllers=[KeepBest(tmp_path / "x" / ".." / "run")])


def test_a_compiled_model_continues_the_same_run(tmp_path):
    """A run begins compiled and ends plain, and the best model of either is read into the other."""

    def forward(model, minibatch):
        return model(minibatch["x"].torch())

    def run(compiled, sweeps):
        made = session(tmp_path / "run", max_samples=240 * sweeps, controllers=[KeepBest(tmp_path / "best")])
        model = torch.nn.Linear(6, 3)
        model = torch.compile(model, backend="eager") if compiled else model
        made.trainer = Trainer(model, losses, wrong, Adam(model.named_parameters(), 0.02), forward=forward)
        return made.run()

    assert run(True, 1).samples == 240
    plain = run(False, 2)
    assert plain.samples == 480
    compiled = torch.compile(torch.nn.Linear(6, 3), backend="eager")
    plain.controllers[0].restore(compiled)


def test_other_controllers_are_refused(tmp_path):
    """Controllers of another type or criterion are refused, as a best loss is not a best metric."""
    session(tmp_path, controllers=[GrowMinibatch()]).run()
    for other in (ReduceOnPlateau(), KeepBest(tmp_path / "best"), GrowMinibatch(watch="metric")):
        with pytest.raises(fl.StateError, match=r"controllers|watch"):
            session(tmp_path, controllers=[other]).run()


def test_a_plateau_of_nan_is_logged(caplog):
    """The criterion was never a number. The rate falls, and its log line is valid."""
    run = session()
    with caplog.at_level("INFO", logger="feedline"):
        told = Summary(math.nan, None, 1)
        ReduceOnPlateau(patience=0).on_epoch_end(run, told, None)
    assert "has not improved on None" in caplog.text


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    """With other data or other learners it is a StateError that names the differences."""
    session(tmp_path).run()
    with pytest.raises(fl.StateError, match="learners"):
        session(tmp_path, "torch").run()


class Declines(MomentumSGD):
    """Learns only from the first minibatch, as a rule in Python may."""

    def update(self, samples, gradients=None, **about):
        return self.minibatches == 0 and super().update(samples, gradients, **about)


def test_sweeps_count_data_whether_or_not_learners_update():
    """Epochs, validations and checkpoints by the sweep continue if a learner skips minibatches."""
    heard = Recorder()
    run = session(reporters=[heard], validation=None, controllers=[], progress=fl.sweeps(1))
    model = run.trainer.model
    learner = Declines(model.named_parameters(), 0.1, momentum=0.5)
    run.trainer = Trainer(model, losses, wrong, learner)
    run.run()
    assert (run.samples, run.sweeps, learner.minibatches) == (960, 4, 1)
    assert [event[0] for event in heard.events] == ["progress"] * 4
