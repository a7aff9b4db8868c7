"""Reporters: the same figures for people, programs, CNTK's format and TensorBoard."""

from __future__ import annotations

import html
import io
import json
import math

import numpy as np
import pytest

import feedline as fl

torch = pytest.importorskip("torch", reason="torch is not installed")

from feedline.train import (  # noqa: E402
    SGD,
    Console,
    JsonLines,
    Metrics,
    ProgressPrinter,
    Summary,
    TensorBoard,
    Trainer,
    TrainingSession,
    plot_losses,
)
from feedline.train.report import Silent, read_lines  # noqa: E402
from feedline.train.saving import Saving  # noqa: E402
from tests.train.test_session import Stop, StopsAfter, session  # noqa: E402


def of(samples, loss, metric):
    """Return a summary of ``samples`` samples with these averages."""
    return Summary(loss * samples, None if metric is None else metric * samples, samples, True)


def test_lines_by_frequency(capsys):
    """Minibatch lines, epoch lines and evaluation lines, to the character."""
    printer = ProgressPrinter(2, first=1, tag="Training", num_epochs=3)
    for loss in (0.5, 0.3, 0.4):
        printer.update(of(30, loss, 0.25))
    printer.epoch(of(90, 0.4, 0.25), 0.018)
    printer.test(of(50, 0.1, 0.31), 4)
    assert capsys.readouterr().out.splitlines() == [
        " Minibatch[   1-   1]: loss = 0.500000 * 30, metric = 25.00% * 30;",
        " Minibatch[   2-   2]: loss = 0.300000 * 30, metric = 25.00% * 30;",
        "Finished Epoch[1 of 3]: [Training] loss = 0.400000 * 90, metric = 25.00% * 90 0.018s (5000.0 samples/s);",
        "Finished Evaluation [1]: Minibatch[1-4]: metric = 31.00% * 50;",
    ]


@pytest.mark.parametrize("frequency", [0, 3])
def test_updates_wait_for_nothing(frequency, capsys):
    """Sums stay on the device until a line is due. On the device "meta" they cannot be read at all."""
    printer = ProgressPrinter(frequency)
    if frequency == 0:
        printer.update(of(10, 0.5, 0.25))
    unread = Summary(torch.zeros((), device="meta"), torch.zeros((), device="meta"), 10, True)
    printer.update(unread)
    if frequency == 3:
        printer.update(unread)
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        printer.update(unread)


def test_geometric_table(capsys):
    """Header at once, then after 1, 3, 7, … updates; blanks where there is no metric."""
    printer = ProgressPrinter(0)
    for i in range(7):
        printer.update(of(10, 0.329 if i == 0 else 0.1, 0.25 if i < 3 else None))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        " average      since    average      since      examples",
        "    loss       last     metric       last              ",
        " ------------------------------------------------------",
        "    0.329      0.329       0.25       0.25            10",
    ]
    assert len(lines) == 6
    assert lines[4].split() == ["0.176", "0.1", "0.25", "0.25", "30"]
    printer = ProgressPrinter(0, metric_is_pct=False)
    printer.update(of(10, 0.5, None))
    assert capsys.readouterr().out.splitlines()[-1] == "      0.5        0.5                                  10"


def test_log_file(tmp_path, capsys):
    """A log file begins and ends as CNTK's, and its name has the rank."""
    name = tmp_path / "logs" / "log.txt"
    printer = ProgressPrinter(log_to_file=name, rank=0, num_epochs=2)
    printer.epoch(of(10, 0.5, None), 0.0)
    printer.close()
    printer.close()
    assert capsys.readouterr().out == f"Redirecting log to file {name}rank0\n"
    assert (tmp_path / "logs" / "log.txtrank0").read_text().splitlines() == [
        f"{name}rank0",
        "CNTKCommandTrainInfo: train : 2",
        "CNTKCommandTrainInfo: CNTKNoMoreCommands_Total : 2",
        "CNTKCommandTrainBegin: train",
        "Finished Epoch[1 of 2]: loss = 0.500000 * 10, metric = 0.00% * 10 0.000s (  0.0 samples/s);",
        "CNTKCommandTrainEnd: train",
    ]


def test_json_lines_of_an_interrupted_run(tmp_path):
    """Repeated training is listed once, and equals the uninterrupted run. An incomplete last line is dropped."""
    from tests.train.test_session import Stop, StopsAfter

    uninterrupted, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    session(tmp_path / "a", reporters=[JsonLines(uninterrupted, updates=True)]).run()
    for stop in (5, 9, 10**9):
        try:
            session(tmp_path / "b", reporters=[JsonLines(parts, updates=True), StopsAfter(stop)]).run()
        except Stop:
            with parts.open("a") as file:
                file.write('{"event": "upd')
                file.write("\n")
    timeless = {"time", "seconds", "waiting", "evaluating", "saving", "stats", "record", "path"}

    def figures(path):
        compared_kinds = ("update", "progress", "validation")
        lines = sorted(
            (line for line in read_lines(path) if line["event"] in compared_kinds),
            key=lambda e: (e["samples"], e["event"]),
        )
        return [{k: v for k, v in line.items() if k not in timeless} for line in lines]

    assert figures(parts) == figures(uninterrupted)
    assert {"start", "checkpoint", "end"} <= {line["event"] for line in read_lines(uninterrupted)}
    picture = tmp_path / "loss.svg"
    plot_losses(uninterrupted, picture)
    assert "<svg" in picture.read_text()
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ValueError, match="progress"):
        plot_losses(tmp_path / "empty.jsonl", picture)


def test_console_without_a_terminal(tmp_path):
    """Lines have loss, metric, rate, speed and waiting time. Restored runs are marked."""
    out = io.StringIO()
    session(tmp_path, reporters=[Console(out)], max_samples=500).run()
    session(tmp_path, reporters=[Console(out)]).run()
    lines = out.getvalue().splitlines()
    assert any(line.startswith("[1] ") and "waiting for data" in line and "metric" in line for line in lines)
    assert any(line.startswith("continuing after 5") for line in lines)
    assert any(line.startswith("validation 0: loss") for line in lines)


def test_console_bar():
    """On a terminal there is a progress bar, which is erased at the end."""
    pytest.importorskip("rich", reason="rich is not installed")
    out = io.StringIO()
    session(reporters=[Console(out, bar=True)], max_samples=200).run()
    assert "training" in out.getvalue()


def test_tensorboard(tmp_path):
    """Averages and rates are in the event file."""
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    session(reporters=[TensorBoard(tmp_path, every=4)]).run()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    assert {"summary/avg_loss", "summary/avg_metric", "minibatch/avg_loss", "learner0/rate"} <= tags
    assert {"validation/avg_loss", "feed/waiting"} <= tags
    assert events.Scalars("summary/avg_loss")[-1].step == 960


def test_tensorboard_of_an_interrupted_run(tmp_path):
    """Each point appears once, as repeated training replaces points after the resumed position."""
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def run(*reporters, restore=True):
        saving = Saving(tmp_path / "run", every=fl.minibatches(5), restore=restore)
        board = TensorBoard(tmp_path / "board")
        # The progress at 120 samples, then the checkpoint, and a point after it that is not restored.
        session(
            size=24,
            progress=fl.minibatches(1),
            saving=saving,
            validation=None,
            controllers=[],
            epoch=None,
            reporters=[board, *reporters],
            max_samples=240,
        ).run()

    for updates in (2, 7):  # before the first checkpoint, after it
        with pytest.raises(Stop):
            run(StopsAfter(updates))
    run()
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    assert [point.step for point in events.Scalars("summary/avg_loss")] == list(range(24, 241, 24))


def test_lines_have_fed_samples_and_parts_of_the_time(tmp_path):
    """Sums over all spans equal the delivered samples. Parts of the time are positive, and within the time."""
    path = tmp_path / "run.jsonl"
    run = session(tmp_path / "saved", reporters=[JsonLines(path)]).run()
    start, *lines = read_lines(path)
    assert (start["model"], start["corpus"]) == ("Noisy", {"sequences": 240, "samples": 240})
    assert start["parameters"] == sum(parameter.numel() for parameter in run.trainer.model.parameters())
    spans = [line for line in lines if line["event"] == "progress"]
    stats = run.source.stats()
    for name in ("minibatches", "sequences", "samples"):
        assert sum(span["fed"][name] for span in spans) == getattr(stats, name)
    assert {name: stream["lengths"] for name, stream in spans[0]["fed"]["streams"].items()} == {
        name: [0, spans[0]["fed"]["sequences"]] for name in ("x", "y")
    }
    assert spans[-1]["stats"]["samples"] == stats.samples
    shares = [[span[name] for name in ("waiting", "evaluating", "saving")] for span in spans]
    assert all(sum(span) <= 1 for span in shares)
    assert all(max(part) > 0 for part in zip(*shares, strict=True))


def test_lines_show_the_progress(tmp_path):
    """By sweeps or label samples, whichever ends the run. A resumed run continues."""
    path = tmp_path / "run.jsonl"
    with pytest.raises(Stop):
        session(tmp_path / "saved", reporters=[JsonLines(path), StopsAfter(2)]).run()
    session(tmp_path / "saved", reporters=[JsonLines(path)]).run()
    done = [line["done"] for line in read_lines(path) if line["event"] == "progress"]
    assert done == sorted(done)
    assert done[-1] == 1.0
    assert 0 < done[0] < 1
    short = tmp_path / "short.jsonl"
    session(max_samples=60, reporters=[JsonLines(short)]).run()
    assert [line["done"] for line in read_lines(short) if line["event"] == "progress"][-1] == 1.0


def test_json_of_a_run_that_diverged(tmp_path):
    """NaN is written as null, as JSON has no NaN."""
    path = tmp_path / "run.jsonl"
    run = session(reporters=[JsonLines(path, updates=True)], max_samples=60)
    with torch.no_grad():
        run.trainer.model.head.bias.fill_(math.nan)
    run.run()

    def refuse(name):
        raise AssertionError(name)

    lines = [json.loads(text, parse_constant=refuse) for text in path.read_text().splitlines()]
    progress = next(line for line in lines if line["event"] == "progress")
    assert progress["loss"] is None
    assert progress["counted"] > 0


def test_json_types_only(tmp_path):
    """Every line is JSON with event and samples."""
    path = tmp_path / "run.jsonl"
    session(reporters=[JsonLines(path)]).run()
    for text in path.read_text().splitlines():
        line = json.loads(text)
        assert {"event", "samples"} <= line.keys()
    assert isinstance(fl.__version__, str)


def test_lines_after_a_crash(tmp_path):
    """An incomplete line after a crash affects no other line, and lines after the resumed position are ignored."""
    path = tmp_path / "run.jsonl"
    session(size=30, reporters=[JsonLines(path)]).run()
    with path.open("a", encoding="utf-8") as file:
        file.write('{"event": "progr')
    session(size=30, max_samples=120, reporters=[JsonLines(path)]).run()
    events = [(line["event"], line["samples"]) for line in read_lines(path)]
    assert events[0] == ("start", 0)
    assert events[-1] == ("end", 120)
    assert [event for event in events if event[0] == "end"] == [("end", 120)]


def test_heartbeat(capsys, monkeypatch):
    """At once, and then every ten seconds, if it is requested."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    for validate, expected in ((True, 2), (False, 0)):
        printer = ProgressPrinter(heartbeat=validate)
        for _ in range(12):
            printer.on_update(None, of(10, 0.5, None))
            now[0] += 1
        assert capsys.readouterr().out.count("PROGRESS: 0.00%\n") == expected


def test_a_run_of_uneven_ranks_says_what_to_write(tmp_path):
    """The log has how uneven all ranks were, whichever rank wrote it, and the report what would help."""
    corpus = fl.ArrayDeserializer(x=[np.ones((n, 1), np.float32) for n in [64, *[4] * 15] * 40])
    model = torch.nn.Linear(1, 1)
    trainer = Trainer(
        model,
        lambda output, _: output[:, 0] ** 2,
        learners=SGD(model.parameters(), 0.001),
        forward=lambda model, minibatch: model(minibatch["x"].torch(layout="packed")),
    )
    source = fl.MinibatchSource(corpus, seed=1, partition=(2, 4), max_sweeps=1)
    planned = [each.unevenness() for each in source.plan(512)]
    log = JsonLines(tmp_path / "run.jsonl")
    TrainingSession(trainer, source, size=512, progress=fl.samples(1), reporters=[log]).run()
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    stats = [line["stats"] for line in lines if line["event"] == "progress"]
    assert [each["unevenness"] for each in stats] == planned
    assert {each["balance"] for each in stats} == {"samples"}
    now, balanced = (np.mean([each[name]["squares"] for each in planned]) for name in ("samples", "squares"))
    text = html.unescape(fl.report(tmp_path).read_text())
    assert f"had {now:.3g} times the mean" in text
    assert f'partition=fl.Partition(..., balance="squares") would make that {balanced:.3g} times.' in text


def test_metrics_of_a_session(tmp_path, leaves_nothing):
    """The reporter exports the session's own figures, beside those of its feeds, while it runs."""
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client is not installed")
    losses = []

    class Watch(Silent):
        def on_progress(self, run, progress):
            losses.append(progress.summary.loss)

        def on_test(self, run, what, result):
            losses.append((what, result.summary.loss, result.summary.metric))

    path = tmp_path / "metrics.prom"
    metrics = Metrics(path=path, port=0)
    run = session(reporters=[metrics, Watch()], test=None).run()
    samples = [s for family in parser.text_string_to_metric_families(path.read_text()) for s in family.samples]
    values = {(s.name, *(v for label, v in sorted(s.labels.items()) if label != "rank")): s.value for s in samples}
    assert values[("feedline_trained_samples_total",)] == run.samples == 960
    assert values[("feedline_trained_minibatches_total",)] == run.minibatches
    averages = [loss for loss in losses if isinstance(loss, tuple)]
    assert averages[-1] == (
        "validation",
        values["feedline_loss", "validation"],
        values["feedline_metric", "validation"],
    )
    assert values["feedline_loss", "training"] == [loss for loss in losses if not isinstance(loss, tuple)][-1]
    for number, learner in enumerate(run.trainer.learners):
        assert values["feedline_learning_rate", str(number)] == learner.learning_rate()
    units = {key[1:]: value for key, value in values.items() if key[0] == "feedline_stage_units_total"}
    assert units["MinibatchSource", "plan"] == run.minibatches  # the source of training works first
    assert units["MinibatchSource 2", "plan"] > 0
    assert metrics.port is None


def test_metrics_end_with_a_failed_session(tmp_path, leaves_nothing):
    with pytest.raises(Stop):
        session(reporters=[Metrics(port=0), StopsAfter(3)]).run()


def test_the_session_does_not_begin_if_the_port_is_in_use(leaves_nothing):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(OSError, match="pass another, or 0 for any"):
        session(reporters=[Metrics(port=server.getsockname()[1])]).run()


def test_reporters_that_have_started_end_when_a_later_one_cannot_start(tmp_path):
    class Refuses(Silent):
        def on_start(self, run):
            raise OSError("no room")

    log = tmp_path / "run.jsonl"
    with pytest.raises(OSError, match="no room"):
        session(tmp_path / "a", reporters=[JsonLines(log), Refuses()]).run()
    assert [line["event"] for line in read_lines(log)] == ["start", "end"]
