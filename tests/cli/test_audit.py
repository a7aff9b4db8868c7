"""``feedline audit``: a log's numbers identify the fed samples."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import feedline as fl
from feedline.cli.audit import read_records
from feedline.feed.audit import LoggedFeed, audit_steps
from feedline.runs import log_feed
from tests.cli.shell import feedline

pytest.importorskip("yaml")


@pytest.fixture
def described(tmp_path):
    """A mixture's description, whose second corpus is small."""
    for name, count in (("web", 700), ("code", 150)):
        np.save(tmp_path / f"{name}.npy", np.arange(count))
    (tmp_path / "mixture.yaml").write_text(
        "mixture: {web: web.npy, code: {path: code.npy, take: 90}}\nweights: {web: 3, code: 1}\nblock: 16\n"
        "stages:\n  - {at: 256, weights: {web: 1, code: 1}}\n"
    )
    return tmp_path / "mixture.yaml"


def fed(source, step, size):
    return {"feed": {"step": step, "size": size, "state": source.state_dict()}}


class Loop:
    """A training loop that logs, stops, goes on elsewhere, and remembers what every step was fed the last time."""

    def __init__(self, path, described):
        self.path, self.described = path, described
        self.steps, self.saved = {}, (0, None)

    def run(self, steps, size, every, keep):
        with (
            fl.MinibatchSource(fl.open_corpus(self.described), seed=4, max_samples=100_000) as source,
            self.path.open("a") as log,
        ):

            def write(event, step):
                log.write(json.dumps({"event": event, "samples": 10 * step, **fed(source, step, size)}) + "\n")

            step, state = self.saved
            if state is not None:
                source.load_state_dict(state)
            write("start", step)
            for k in range(steps):
                minibatch = source.next_minibatch(size)
                self.steps[step] = (minibatch.ids.tolist(), minibatch.source.tolist())
                step += 1
                if step == 13:
                    source.change_weights({"code": 1})
                if step % every == 0:
                    write("progress", step)
                if k + 1 == keep:
                    self.saved = step, source.state_dict()
            if keep == steps:
                write("end", step)
            else:
                log.write('{"event": "prog')  # killed
        if keep < steps:
            self.steps = {k: v for k, v in self.steps.items() if k < self.saved[0]}


def test_the_fed_samples_match_the_log(tmp_path, described):
    """Restarts that repeat steps, other sizes, weights changed in the run, a torn line."""
    loop = Loop(tmp_path / "run.jsonl", described)
    loop.run(9, 16, 4, keep=6)
    with loop.path.open("a") as log:
        log.write("\n")
    loop.run(10, 16, 3, keep=10)
    loop.run(7, 40, 2, keep=7)
    found = {
        step.step: (step.ids.tolist(), step.sources.tolist())
        for step in audit_steps(fl.open_corpus(described), read_records(loop.path))
    }
    assert found == loop.steps
    assert len(found) == 23
    document = json.loads(feedline("audit", loop.path, described, "--json", "--steps", "5:9", "--sequence", 3).stdout)
    assert [step["step"] for step in document["listed"]] == [5, 6, 7, 8]
    for step in document["listed"]:
        ids, sources = loop.steps[step["step"]]
        assert step["ids"] == ids
        assert step["sources"] == [("web", "code")[k] for k in sources]
    where = [step for step, (ids, _) in loop.steps.items() if 3 in ids]
    document = json.loads(feedline("audit", loop.path, described, "--json", "--sequence", 3).stdout)
    assert document["sequence"] == {"id": 3, "steps": where}
    counts = np.bincount([k for _, sources in loop.steps.values() for k in sources])
    for k, (name, size) in enumerate([("web", 700), ("code", 90)]):
        one = document["sources"][name]
        assert one == {"delivered": counts[k], "sequences": size, "times": counts[k] / size}
    text = feedline("audit", loop.path, described, "--steps", "2:4").stdout
    assert "steps 2 to 3" in text
    assert text.count("\nstep ") == 2


@pytest.fixture
def rows(tmp_path):
    """A mixture of two packed corpora, and one of such a mixture."""
    rng = np.random.default_rng(2)
    for name, count in (("web", 300), ("code", 60)):
        tokens = [rng.integers(1, 99, n, dtype=np.int32) for n in rng.integers(1, 30, count)]
        fl.convert(fl.ArrayDeserializer(tokens=tokens), tmp_path / f"{name}.store")
    packed = {name: {"path": f"{name}.store", "packed": {"row": 32}} for name in ("web", "code")}
    (tmp_path / "rows.json").write_text(json.dumps({"mixture": packed, "weights": {"web": 2, "code": 1}, "block": 8}))
    nested = {"outer": {"mixture": packed, "weights": {"web": 1, "code": 1}}}
    (tmp_path / "nested.json").write_text(json.dumps({"mixture": nested}))
    return tmp_path / "rows.json"


def test_documents_of_packed_rows(tmp_path, rows):
    fed, log = [], tmp_path / "rows.jsonl"
    with fl.MinibatchSource(fl.open_corpus(rows), seed=6, max_samples=100_000) as source, log.open("w") as file:
        for step in range(41):
            if step % 8 == 0:
                feed = {"step": step, "size": 7 * 32, "state": source.state_dict()}
                file.write(json.dumps({"event": "progress", "samples": step, "feed": feed}) + "\n")
            minibatch = source.next_minibatch(7 * 32)
            names = [("web", "code")[k] for k in minibatch.source.tolist()]
            fed.append((names, [ids.tolist() for ids in minibatch["document"].sequences()]))
    document = json.loads(feedline("audit", log, rows, "--json", "--steps", "0:40").stdout)
    assert [(step["sources"], step["documents"]) for step in document["listed"]] == fed[:40]
    for name, sought in (("web", 17), ("code", 3), ("code", 59)):
        where = [
            step
            for step, (names, held) in enumerate(fed[:40])
            if any(of == name and sought in ids for of, ids in zip(names, held, strict=True))
        ]
        found = json.loads(feedline("audit", log, rows, "--json", "--document", f"{name}:{sought}").stdout)
        assert found["document"] == {"id": f"{name}:{sought}", "steps": where}
        text = feedline("audit", log, rows, "--document", f"{name}:{sought}").stdout
        assert f"document {name}:{sought} was in steps: {', '.join(map(str, where)) or 'none'}" in text
    planned = json.loads(
        feedline("plan", rows, "--seed", 6, "--size", 7 * 32, "--at", 3, "--steps", 5, "--json").stdout
    )
    assert [(step["sources"], step["documents"]) for step in planned["steps"]] == fed[3:8]
    text = feedline("plan", rows, "--seed", 6, "--size", 7 * 32, "--at", 3).stdout
    assert f"documents {' '.join(map(str, sum(fed[3][1], [])[:12]))}" in text


def test_inspect_shows_rows_as_minibatches_have_them(rows):
    found = json.loads(feedline("inspect", rows, "--json").stdout)
    with fl.MinibatchSource(fl.open_corpus(rows), shuffle=False, max_samples=32) as source:
        minibatch = source.next_minibatch(32)
    assert [stream["name"] for stream in found["streams"]] == list(minibatch) == list(found["preview"][0]["streams"])
    first = found["preview"][0]["streams"]
    assert first["tokens"]["samples"] == 32
    assert [n for (n,) in first["document"]["first"]] == minibatch["document"].rows[:4].tolist()


def test_documents_that_cannot_be_named_are_refused(tmp_path, rows, described):
    log = tmp_path / "run.jsonl"
    Loop(log, described).run(8, 16, 4, keep=8)
    for path, given, message in (
        (described, "web:1", "expected a packed corpus"),
        (rows, "1", "one of web, code"),
        (rows, "web:", "expected --document ID"),
        (rows, "books:1", "one of web, code"),
        (rows.with_name("nested.json"), "outer:1", "expected a packed corpus"),
        (tmp_path / "web.npy", "web:1", "not a mixture"),
        (tmp_path / "web.npy", "1", "expected a packed corpus"),
    ):
        done = feedline("audit", log, path, "--document", given, code=2)
        assert message in " ".join(done.stderr.split()), given


def test_a_run_with_arcs():
    """A state names their number, and the fingerprint shows whether it is right."""
    corpus = fl.ArrayDeserializer(x=np.arange(300), chunk_sequences=7)
    with fl.MinibatchSource(corpus, seed=4, order=fl.Arcs(8), shuffle=fl.Window(chunks=16)) as source:
        a = LoggedFeed(0, 16, source.state_dict())
        fed = [m.ids.tolist() for _, m in zip(range(25), source.minibatches(16), strict=False)]
        b = LoggedFeed(25, 16, source.state_dict())
    assert [step.ids.tolist() for step in audit_steps(corpus, [a, b])] == fed
    with pytest.raises(fl.StateError, match="expected the state of a source in the log"):
        list(audit_steps(corpus, [LoggedFeed(0, 16, {**a.state, "arcs": "8"}), b]))


def test_what_does_not_fit_is_refused(tmp_path, described):
    loop = Loop(tmp_path / "run.jsonl", described)
    loop.run(8, 16, 4, keep=8)
    corpus = fl.open_corpus(described)
    a, b, c = read_records(loop.path)
    with pytest.raises(fl.DataError, match="sizes changed in between"):
        list(audit_steps(corpus, [LoggedFeed(a.step, 15, a.state), b]))
    with pytest.raises(fl.DataError, match="fingerprint"):
        list(audit_steps(corpus, [a, LoggedFeed(b.step, b.size, {**b.state, "fingerprint": "0" * 16})]))
    with pytest.raises(fl.DataError, match="expected step 9"):
        list(audit_steps(corpus, [b, LoggedFeed(9, c.size, c.state)]))
    for broken in ({}, {**a.state, "seed": "x"}, {**a.state, "filling": "cntk"}):
        with pytest.raises(fl.StateError, match="expected the state of a source in the log"):
            list(audit_steps(corpus, [LoggedFeed(0, 16, broken), b]))
    np.save(tmp_path / "web.npy", np.arange(701))
    with pytest.raises(fl.StateError, match="other data"):
        list(audit_steps(fl.open_corpus(described), [a, b]))
    lines = loop.path.read_text().splitlines()
    for damaged in ({"step": 1}, {"step": -1, "size": 3, "state": {"samples": 1}}, {"step": 1, "size": 3, "state": 5}):
        loop.path.write_text("\n".join([*lines, json.dumps({"event": "progress", "samples": 90, "feed": damaged})]))
        with pytest.raises(fl.DataError, match="expected an event") as caught:
            read_records(loop.path)
        assert caught.value.line == len(lines) + 1
    loop.path.write_text('{"event": "start", "samples": 0}\n')
    with pytest.raises(fl.DataError, match="at least two records of the feed"):
        read_records(loop.path)


@pytest.mark.parametrize(
    ("step", "samples", "fits"),
    [
        (8, 80, True),
        (8, 0, False),
        (8, 79, False),
        (4, 80, False),
        (4, 40, True),
        (12, 60, False),
        (0, 0, True),
        (0, 80, False),
    ],
)
def test_a_start_whose_samples_contradict_its_step_is_refused(tmp_path, described, step, samples, fits):
    """With step 0 and no samples it is a new run. Otherwise earlier steps were once left out of the audit silently."""
    loop = Loop(tmp_path / "run.jsonl", described)
    loop.run(8, 16, 4, keep=8)
    last = {record.step: record for record in read_records(loop.path)}
    state = last.get(step, last[8]).state
    with loop.path.open("a") as log:
        for event, *place in (("start", step, samples), ("progress", step + 4, samples + 40)):
            later = {**state, "samples": state["samples"] + 64 * (event == "progress")}
            feed = {"step": place[0], "size": 16, "state": later}
            log.write(json.dumps({"event": event, "samples": place[1], "feed": feed}) + "\n")
    if fits:
        assert [record.step for record in read_records(loop.path)] == [k for k in (0, 4) if k < step] + [step, step + 4]
        return
    with pytest.raises(
        fl.DataError, match=rf"samples that grow with the steps, got .* {samples} at step {step} \('start'"
    ):
        read_records(loop.path)


def test_a_function_writes_the_lines(tmp_path, described):
    path = tmp_path / "run.jsonl"
    with fl.MinibatchSource(fl.open_corpus(described), seed=4) as source:
        log_feed(path, source, step=0, size=16, event="start")
        fed = [source.next_minibatch(16).ids.tolist() for _ in range(5)]
        with path.open("a") as log:
            log.write('{"event": "prog')  # killed
        log_feed(path, source, step=5, size=16, event="end")
        assert [step.ids.tolist() for step in audit_steps(fl.open_corpus(described), read_records(path))] == fed
        for wrong in ({"event": "update"}, {"size": 0}, {"step": -1}, {"step": True}):
            with pytest.raises(ValueError, match="expected"):
                log_feed(path, source, **{"step": 5, "size": 16, **wrong})
    assert len(path.read_text().splitlines()) == 3


SESSION = """
    import os, signal, sys
    import numpy as np, torch
    import feedline as fl
    from feedline.train import JsonLines, Saving, SGD, Trainer, TrainingSession

    folder, kill = sys.argv[1], int(sys.argv[2])

    class Recording(fl.MinibatchSource):
        def next_minibatch(self, size, partition=None):
            minibatch = super().next_minibatch(size, partition)
            with open(folder + "/fed", "a") as file:
                print(session.minibatches, *minibatch.ids.tolist(), file=file, flush=True)
            if session.minibatches == kill:
                os.kill(os.getpid(), signal.SIGKILL)
            return minibatch

    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)

    def loss(out, minibatch):
        return out[:, 0] ** 2

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, minibatch):
            return self.inner(minibatch["x"].torch().float()[:, None])

    net = Net()
    source = Recording(fl.open_corpus(folder + "/mixture.yaml"), seed=2, max_samples=600)
    session = TrainingSession(
        Trainer(net, loss, learners=SGD(net.parameters(), 0.001)), source, size=20, progress=fl.minibatches(4),
        reporters=[JsonLines(folder + "/run.jsonl")], saving=Saving(folder + "/saved", every=fl.minibatches(5)),
    )
    session.run()
"""


def test_a_session_that_is_killed(tmp_path, described):
    (tmp_path / "session.py").write_text(textwrap.dedent(SESSION))
    for kill in (12, 1 << 30):
        done = subprocess.run(
            [sys.executable, tmp_path / "session.py", tmp_path, str(kill)], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == (-signal.SIGKILL if kill == 12 else 0), done.stderr
    fed = {}
    for line in (tmp_path / "fed").read_text().splitlines():
        step, *ids = map(int, line.split())
        fed[step] = ids
    found = {
        step.step: step.ids.tolist()
        for step in audit_steps(fl.open_corpus(described), read_records(tmp_path / "run.jsonl"))
    }
    assert found == {step: ids for step, ids in fed.items() if ids}
    assert len(found) == 30
    assert os.path.exists(tmp_path / "saved")
