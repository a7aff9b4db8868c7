"""CNTK's progress writers: the updates they get, the lines they print, the events for TensorBoard."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline.cntk as C  # noqa: E402
from feedline.cntk.logging import ProgressPrinter, TensorBoardProgressWriter  # noqa: E402
from feedline.cntk.logging import progress_print as module  # noqa: E402
from tests.compat.logistic import Logistic, Recorder  # noqa: E402

updates = st.lists(st.tuples(st.integers(0, 9), st.integers(-5, 5), st.integers(0, 5)), max_size=40)


@given(updates, st.integers(0, 5), st.integers(0, 4), st.sets(st.integers(0, 40)))
def test_windows_follow_each_other(told, freq, first, summaries):
    """Windows begin where the last one ended, end by the schedule, and sum since the last summary."""
    writer = Recorder()
    C.cntk_py.ProgressWriter.__init__(writer, freq, first, freq, first, 1, 0)
    expected, sums, window, done = [], [0, 0, 0, 0], [0, 0, 0, 0], 0
    for i, (samples, loss, metric) in enumerate(told):
        if samples:
            sums = [sums[0] + samples, sums[1] + 1, sums[2] + loss, sums[3] + metric]
            n = sums[1]
            if (freq and (n % freq == 0 or n <= first)) or (not freq and n in (1, 3, 7, 15, 31)):
                expected.append(["training_update", *[[a, b] for a, b in zip(window, sums, strict=True)]])
                window = list(sums)
        writer.update_training(samples, sums[2], sums[3])
        if i in summaries:
            done += 1
            expected.append(["training_summary", sums[0], sums[1], done, sums[2], sums[3]])
            writer.write_training_summary(sums[2], sums[3])
            sums, window = [0, 0, 0, 0], [0, 0, 0, 0]
    assert writer.events == expected
    assert writer.total_training_updates() == sum(samples > 0 for samples, _, _ in told)


def test_without_a_metric_it_is_0():
    writer = Recorder()
    writer.update_training(5, 2.0, None)
    writer.update_test(5, None)
    writer.write_training_summary(2.0, None)
    assert [event[-1] for event in writer.events] == [[0.0, 0.0], [0.0, 0.0], 0.0]


class Unread:
    """A sum on a device that must not be read."""

    def __float__(self):
        raise AssertionError("must not be read")


def test_sums_stay_on_the_device_until_they_are_due():
    writer = ProgressPrinter()
    writer.update_training(5, Unread(), Unread())
    writer.update_test(5, Unread())


def test_lines_of_tests_and_meetings(capsys):
    writer = ProgressPrinter(test_freq=2, test_first=1, distributed_freq=2, metric_is_pct=False)
    for i in range(1, 5):
        writer.update_test(10, 2.0 * i)
        writer.update_distributed_sync(20, None)
    writer.write_test_summary(8.0)
    assert capsys.readouterr().out.splitlines() == [
        " Evaluation Minibatch[   1-   1]: metric = 0.200000 * 10;",
        " Evaluation Minibatch[   2-   2]: metric = 0.200000 * 10;",
        "Distributed training: #Syncs elapsed = 2, #Samples elapsed = 40",
        " Evaluation Minibatch[   3-   4]: metric = 0.200000 * 20;",
        "Distributed training: #Syncs elapsed = 2, #Samples elapsed = 40",
        "Finished Evaluation [1]: Minibatch[1-4]: metric = 0.200000 * 40;",
    ]


def test_table_of_tests_has_no_loss(capsys):
    writer = ProgressPrinter(test_freq=0)
    writer.update_test(10, 2.0)
    assert capsys.readouterr().out == " " * 23 + "     0.2        0.2            10\n"


def test_older_scripts_update_by_hand(capsys):
    """The printer without a trainer: the same lines."""
    writer = ProgressPrinter(freq=2, tag="T")
    for loss in (1.0, 0.5):
        with pytest.warns(DeprecationWarning, match="give the printer to the Trainer"):
            writer.update(loss, 10, 0.25)
    with pytest.warns(DeprecationWarning, match="deprecated"):
        assert writer.epoch_summary(with_metric=True) == (0.75, 0.25, 20)
    with pytest.warns(DeprecationWarning, match="deprecated"):
        writer.update(1.0, 10, 0.5)
    with pytest.warns(DeprecationWarning, match="deprecated"):
        assert writer.epoch_summary() == (1.0, 0.5, 10)
    lines = [line.partition("s (")[0].rpartition(" ")[0] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        " Minibatch[   1-   2]: loss = 0.750000 * 20, metric = 25.00% *",
        "Finished Epoch[1]: [T] loss = 0.750000 * 20, metric = 25.00% * 20",
        "Finished Epoch[2]: [T] loss = 1.000000 * 10, metric = 0.00% * 10",
    ]


@pytest.mark.parametrize("wanted", [True, False])
def test_sign_of_life(wanted, capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    writer = ProgressPrinter(gen_heartbeat=wanted)
    for seconds in (0, 9, 1, 1):
        now[0] += seconds
        writer.update_training(1, 0.0, 0.0)
    assert capsys.readouterr().out == "PROGRESS: 0.00%\n" * 2 * wanted


def test_log_in_a_file(tmp_path, capsys):
    writer = ProgressPrinter(log_to_file=str(tmp_path / "logs" / "log"), rank=3)
    writer.log("mine")
    writer.end_progress_print("over")
    writer.log("afterwards")
    writer.end_progress_print()
    assert (tmp_path / "logs" / "logrank3").read_text().splitlines()[-5:] == [
        "mine",
        "CNTKCommandTrainEnd: train",
        "over",
        "afterwards",
        "CNTKCommandTrainEnd: train",
    ]
    assert capsys.readouterr().out == f"Redirecting log to file {tmp_path}/logs/logrank3\n"


def test_callback_at_each_summary():
    told = []
    writer = C.logging.TrainingSummaryProgressCallback(100, lambda *all: told.append(all))
    for loss in (3.0, 1.0):
        writer.update_training(10, loss, 2.0)
        writer.write_training_summary(loss, 2.0)
    assert told == [(0, 3.0, 2.0, 10), (1, 1.0, 2.0, 10)]


def test_number_of_parameters(capsys):
    model = Logistic([[0.0] * 3] * 2, [0.0] * 3)
    C.logging.log_number_of_parameters(model)
    C.logging.log_number_of_parameters(model, trace_level=1)
    line = "Training 9 parameters in 2 parameter tensors.\n"
    assert capsys.readouterr().out == f"{line}{line}\n\t(2, 3)\n\t(3,)\n"


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer = TensorBoardProgressWriter(freq=2, log_dir=str(tmp_path))
    writer.write_test_summary(0.0)
    sums = torch.tensor(0.0)
    for _ in range(4):
        sums = sums + 5.0
        writer.update_training(10, sums, 2 * sums)
    writer.write("Learning rate per minibatch", 0.5)
    writer.update_test(10, 3.0)
    writer.write_test_summary(3.0)
    writer.write_training_summary(sums, 2 * sums)
    writer.write_value("own", 1, 7)
    writer.write_image("picture", {"any": torch.zeros(2, 3, 4, 4).numpy()}, 1)
    writer.flush()
    writer.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    found = {tag: [(e.step, round(e.value, 6)) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert found == {
        "summary/test_avg_metric": [(1, 0.0)],
        "minibatch/avg_loss": [(2, 0.5), (4, 0.5)],
        "minibatch/avg_metric": [(2, 1.0), (4, 1.0)],
        "Learning rate per minibatch": [(4, 0.5)],
        "minibatch/test_avg_metric": [(4, pytest.approx(0.3))],
        "summary/avg_loss": [(1, 0.5)],
        "summary/avg_metric": [(1, 1.0)],
        "own": [(7, 1.0)],
    }
    assert events.Tags()["images"] == ["picture"]
    for use in (writer.flush, writer.close, lambda: writer.write_value("a", 1, 1)):
        with pytest.raises(RuntimeError, match="closed"):
            use()
    with pytest.raises(ValueError, match="channels"):
        TensorBoardProgressWriter(log_dir=str(tmp_path / "images")).write_image("a", [[1.0]], 1)
    with pytest.raises(ValueError, match="freq"):
        TensorBoardProgressWriter(0, str(tmp_path))


def test_other_workers_write_no_events(tmp_path):
    writer = TensorBoardProgressWriter(1, str(tmp_path / "none"), rank=1)
    writer.update_training(1, 1.0, 1.0)
    writer.close()
    assert not (tmp_path / "none").exists()
