"""The comparison with peers: its runner, its table, and the figures that pages quote from it."""

from __future__ import annotations

import copy
import os
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

contender_module = pytest.importorskip("benchmarks.peers.contender", reason="benchmarks are not part of the wheel")

from benchmarks.peers import WORKLOADS, run, table, tree, turns  # noqa: E402
from benchmarks.peers.contender import OURS, Contender, Given, load  # noqa: E402
from benchmarks.peers.reasons import REASONS  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
TORCH = "torch DataLoader"


def turn(*arguments: str | Path, limit_s: float = 120):
    return turns.turn([str(argument) for argument in arguments], limit_s)


# ---- form ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_has_its_question(name):
    doc = (ROOT / "benchmarks" / "peers" / f"{name}.py").read_text().split('"""')[1]
    assert "?" in doc
    assert "Unit:" in doc
    assert "Measured:" in doc


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_has_us_and_others_and_distinct_settings(name):
    workload = load(name)
    assert {contender.form for contender in workload.contenders} <= set(workload.makers)
    assert any(contender.peer == OURS for contender in workload.contenders)
    assert any(contender.peer != OURS for contender in workload.contenders)
    each = [(contender.name, workers) for contender in workload.contenders for workers in contender.workers]
    assert len(set(each)) == len(each)
    for contender in workload.contenders:
        assert workload.find(contender.name).name == contender.name


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="expected a workload, one of dense"):
        load("densest")
    with pytest.raises(ValueError, match="got 'nobody'"):
        load("dense").find("nobody")


# ---- the runner ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize("name", [OURS, f"{TORCH}: usual"])
def test_a_turn_counts_and_checks(tmp_path, name, workers):
    turn("raw", "tiny", "--data", tmp_path / "raw", "--check", tmp_path / "check", "--make", "2000")
    found = turn(
        name,
        "tiny",
        "--data",
        tmp_path / "raw",
        "--check",
        tmp_path / "check",
        "--workers",
        workers,
        "--seconds",
        "0.2",
        "--scratch",
        tmp_path,
    )
    assert found["checked"] == load("tiny").check
    assert found["units"] > 0
    assert found["wall_s"] >= 0.2
    assert found["first_s"] > 0
    assert found["cpu_s"] > 0
    assert found["private"] > 10e6


@pytest.mark.slow
@pytest.mark.parametrize("name", [f"{OURS}: the dataset", f"{TORCH}: read again up to there"])
def test_a_turn_resumes_with_the_right_batches(tmp_path, name):
    turn("raw", "resume", "--data", tmp_path / "raw", "--make", "5000")
    given = [name, "resume", "--data", tmp_path / "raw", "--scratch", tmp_path]
    assert turn(*given, "--save", tmp_path / "state", "--samples", "5000")["state_bytes"] > 0
    assert turn(*given, "--resume", tmp_path / "state")["right"] is True


def needing(workload):
    """Peers of a workload, marked with the packages that they need."""
    packages = {contender.peer: contender.needs for contender in load(workload).contenders if contender.needs}
    return [pytest.param(peer, marks=pytest.mark.frameworks(*needs), id=peer) for peer, needs in packages.items()]


@pytest.mark.slow
@pytest.mark.parametrize("peer", needing("python_work"))
def test_each_peer_that_is_installed_delivers_every_sample(tmp_path, peer):
    workload = load("python_work")
    chosen = next(each for each in workload.contenders if each.peer == peer)
    turn(chosen.form, "python_work", "--data", tmp_path / "data", "--check", tmp_path / "check", "--make", "320")
    given = ["--data", tmp_path / "data", "--check", tmp_path / "check", "--scratch", tmp_path, "--seconds", "0.1"]
    found = turn(chosen.name, "python_work", *given, "--workers", str(chosen.workers[0]))
    assert found["checked"] == workload.check


class Handed:
    """A contender that delivers given numbers."""

    def __init__(self, *batches):
        self.batches = [(np.zeros((len(ids), 1)), np.array(ids)) for ids in batches]

    def __call__(self, given):
        return lambda: self.batches


@pytest.mark.parametrize(
    ("batches", "message"),
    [([[0, 1], [3]], "got 3, of which 1 are missing"), ([[0, 1], [2, 3], [3]], "got 5, of which 0 are missing")],
)
def test_a_sample_that_is_lost_or_comes_twice_is_found(tmp_path, batches, message):
    given = Given(tmp_path, 0, tmp_path)
    run.check(Contender("whole", Handed([2, 0], [1, 3])), given, 4)
    with pytest.raises(RuntimeError, match=message):
        run.check(Contender("not", Handed(*batches)), given, 4)


class Shared:
    """A contender whose ranks deliver given numbers, each those of its share."""

    def __init__(self, *shares):
        self.shares = shares

    def __call__(self, given):
        return Handed(self.shares[given.share])(given)


def test_the_shares_of_all_ranks_are_checked_together(tmp_path):
    given = Given(tmp_path, 0, tmp_path)
    run.check(Contender("divided", Shared([2, 0], [1, 3])), given, 4, shares=2)
    with pytest.raises(RuntimeError, match="got 4, of which 2 are missing"):
        run.check(Contender("all the same", Shared([2, 0], [2, 0])), given, 4, shares=2)


def test_an_empty_epoch_is_an_error():
    with pytest.raises(RuntimeError, match="expected batches in epoch 0"):
        next(run.endless([]))


def test_a_failed_turn_reports_its_last_message(tmp_path):
    with pytest.raises(turns.TurnError, match="expected a contender of this workload"):
        turn("nobody", "tiny", "--data", tmp_path)


def test_a_turn_that_does_not_end_is_ended_with_its_processes(tmp_path):
    before = set(tree.descendants(os.getpid()))
    with pytest.raises(turns.TurnError, match=r"ended after 0\.2 s"):
        turn("raw", "tiny", "--data", tmp_path / "raw", "--make", "100000000", limit_s=0.2)
    assert set(tree.descendants(os.getpid())) <= before


def test_what_descends_from_a_process_is_ended():
    with subprocess.Popen(["sh", "-c", "sleep 100 & sleep 100 & wait"]) as process:
        while len(tree.descendants(process.pid)) < 2:
            time.sleep(0.01)
        tree.end(process.pid)
        assert process.wait(10) == 0
        assert tree.descendants(process.pid) == []


def test_memory_and_processor_time_of_a_process_are_seen():
    held = np.ones(30 << 20, np.uint8)
    assert tree.private_bytes(os.getpid()) > len(held)
    before = tree.cpu_seconds(os.getpid())
    while tree.cpu_seconds(os.getpid()) < before + 0.02:
        held.sum()


# ---- the table -----------------------------------------------------------------------------------------------


def row(peer, setting, rates, workers=0, cold=(), failed=""):
    same = {"wall_s": 1.0, "cpu_s": 0.5, "first_s": 0.1, "private": 1e6}
    warm, evicted = ([same | {"units": units} for units in each] for each in (rates, cold))
    return {
        "name": f"{peer}: {setting}",
        "peer": peer,
        "setting": setting,
        "workers": workers,
        "form": "raw",
        "order": "whole",
        "delivers": "torch",
        "failed": failed,
        "warm": warm,
        "cold": evicted,
    }


def workload(*rows):
    return {
        "title": "t",
        "unit": "samples/s",
        "by": "rate",
        "count": 10,
        "absent": {"Nobody": "why not."},
        "rows": list(rows),
    }


def test_the_better_setting_counts_and_ratios_are_within_a_round():
    found = workload(
        row(OURS, "a", [10, 100, 1000]),
        row(OURS, "b", [1, 1, 1]),
        row("Peer", "slow", [1, 1, 1]),
        row("Peer", "fast", [5, 20, 100]),
        row("Gone", "", [], failed="module: not installed"),
    )
    ours, peer, gone = table.lines(found)
    assert (ours.row["setting"], peer.row["setting"], gone.row["peer"]) == ("a", "fast", "Gone")
    assert peer.ratio == 5
    assert not peer.ahead
    text = "\n".join(table.rates(found))
    assert "Peer (fast)" in text
    assert "slow" not in text
    assert "module: not installed" in text


def test_with_evicted_files_another_setting_may_be_the_better_one():
    found = workload(
        row(OURS, "whole", [20], cold=[1]),
        row(OURS, "windows", [10], cold=[10]),
        row("Peer", "", [5], cold=[5]),
        row("Far", "", [1]),
    )
    ours, peer, _ = table.lines(found)
    assert ours.row["setting"] == "whole"
    assert (peer.ratio, peer.cold) == (4, 2)
    assert "| 10 (windows) |" in "\n".join(table.rates(found))
    kept = [each["name"] for each in table.worth_evicting(found["rows"], "rate")]
    assert kept == [f"{OURS}: whole", f"{OURS}: windows", "Peer: "]


def report(*rows, load=0.5):
    found = workload(*rows) | {"load": [load, load], "date": "2030-01-01", "seconds": 1}
    return {"machine": {"cores": 2}, "workloads": {"dense": found}}


def test_a_peer_that_is_ahead_or_close_is_named_with_a_reason_or_without_one(monkeypatch):
    given = report(row(OURS, "", [10], cold=[10]), row("Peer", "", [9], cold=[11]))
    assert table.close("dense", given)[0].endswith(table.UNKNOWN)
    monkeypatch.setitem(REASONS, ("dense", "Peer", None), "It does less.")
    assert table.close("dense", given)[0].endswith("It does less.")
    near = report(row(OURS, "", [10], cold=[12]), row("Peer", "", [9], cold=[8]))
    assert table.close("dense", near)[0].startswith("**Peer, 0 workers, is close** (1.11x; evicted 1.5x): ")
    assert table.close("dense", report(row(OURS, "", [11], cold=[12]), row("Peer", "", [9], cold=[8]))) == []


def test_a_busy_machine_excuses_only_what_processor_time_excuses():
    ours, theirs = row(OURS, "", [10]), row("Peer", "", [11])
    theirs["warm"][0]["cpu_s"] = 1.1  # twice as much a sample
    assert "takes 2 times the processor time" in table.close("dense", report(ours, theirs, load=9.0))[0]
    assert table.close("dense", report(ours, theirs))[0].endswith(table.UNKNOWN)
    theirs["warm"][0]["cpu_s"] = 0.4
    assert table.close("dense", report(ours, theirs, load=9.0))[0].endswith(table.UNKNOWN)


def test_slow_peers_and_worse_settings_are_not_measured_again():
    rows = [
        row(OURS, "", [100]),
        row("Peer", "slow", [30]),
        row("Peer", "fast", [40]),
        row("Far", "", [1]),
        row("Gone", "", [], failed="gone"),
    ]
    assert [each["name"] for each in table.worth_repeating(rows, "rate")] == [f"{OURS}: ", "Peer: fast"]


# ---- the committed tables ---------------------------------------------------------------------------------------


def test_every_workload_is_committed():
    reports = table.committed()
    assert not any(report["quick"] for _, report in reports)
    assert list(table.newest(report for _, report in reports)["workloads"]) == list(WORKLOADS)
    # A reason that is found later is written into the page by `python -m benchmarks.peers.table`.
    path, report = reports[-1]
    assert path.with_suffix(".md").read_text() == table.page(report)


def test_no_peer_is_ahead_or_close_without_a_sentence_why():
    report = table.newest(report for _, report in table.committed())
    remarks = [remark for name in report["workloads"] for remark in table.close(name, report)]
    assert [remark for remark in remarks if remark.endswith(table.UNKNOWN)] == []


def test_what_the_readme_quotes_is_what_was_measured():
    report = table.newest(report for _, report in table.committed())
    page = (ROOT / "README.md").read_text()
    for line in table.readme(report):
        assert line in page
    other = copy.deepcopy(report)
    for found in other["workloads"].values():
        for each in found["rows"]:
            for one in each["warm"]:
                for name in ("wall_s", "first_s", "resume_s"):
                    one[name] = one.get(name, 0) * 3
    assert not all(line in page for line in table.readme(other))
