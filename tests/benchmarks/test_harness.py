"""The harness computes correct ratios for contenders with fake clocks, and one benchmark runs."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.linux import linux_only

harness = pytest.importorskip("benchmarks.harness", reason="benchmarks are not part of the wheel")

from benchmarks.__main__ import _asked, load_answer, main  # noqa: E402

from benchmarks import QUESTIONS, disk, groups  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent

pytestmark = pytest.mark.usefixtures("collects_often")


class Clocks:
    """Made-up clocks: each turn of a contender takes the next time of its list."""

    def __init__(self, turns: dict[str, list[float]]) -> None:
        self.turns = {name: list(times) for name, times in turns.items()}
        self.now = dict.fromkeys(turns, 0.0)
        self.order: list[str] = []

    def tick(self, name: str) -> tuple[float, float]:
        return self.now[name], 2 * self.now[name]

    def contender(self, name: str, units: float):
        def run() -> float:
            self.order.append(name)
            self.now[name] += self.turns[name].pop(0)
            return units

        return run

    def race(self, rounds: int, units: dict[str, float], warm_up: int = 0):
        contenders = {name: self.contender(name, units[name]) for name in self.turns}
        return harness.race(contenders, rounds, warm_up=warm_up, tick=self.tick)


def test_a_ratio_is_the_median_of_ratios_inside_a_round():
    # The machine is 1x, 10x and 100x slow in the three rounds. Inside each, the ratios are 2, 4 and 3.
    clocks = Clocks({"a": [1.0, 10.0, 100.0], "b": [2.0, 40.0, 300.0]})
    run = clocks.race(3, {"a": 6.0, "b": 6.0})
    assert run.ratios("a", "b") == pytest.approx([2.0, 4.0, 3.0])
    assert run.ratio("a", "b") == pytest.approx(3.0)
    # Not the ratio of medians, which is 4 here.
    assert run.rate("a") / run.rate("b") == pytest.approx(4.0)


def test_rates_count_units_not_turns():
    clocks = Clocks({"a": [2.0, 2.0], "b": [2.0, 2.0]})
    run = clocks.race(2, {"a": 10.0, "b": 5.0})
    assert run.rate("a") == pytest.approx(5.0)
    assert run.rate("a", "wall") == pytest.approx(2.5)
    assert run.ratio("a", "b") == pytest.approx(2.0)


def test_contenders_alternate_and_take_turns_at_going_first():
    clocks = Clocks({name: [1.0] * 4 for name in "abc"})
    clocks.race(3, dict.fromkeys("abc", 1.0), warm_up=1)
    rounds = ["".join(clocks.order[i : i + 3]) for i in range(0, 12, 3)]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in rounds)
    assert {turn[0] for turn in rounds[1:]} == {"a", "b", "c"}


def test_warm_up_rounds_do_not_count():
    clocks = Clocks({"a": [100.0, 1.0, 1.0], "b": [100.0, 1.0, 1.0]})
    run = clocks.race(2, {"a": 1.0, "b": 1.0}, warm_up=1)
    assert run.rates("a") == pytest.approx([1.0, 1.0])


def test_what_comes_before_a_turn_is_on_no_clock():
    clocks = Clocks({"a": [1.0] * 3, "b": [2.0] * 3})

    def before(name: str) -> None:
        clocks.order.append(name.upper())
        clocks.now[name] += 100.0

    contenders = {name: clocks.contender(name, 6.0) for name in "ab"}
    run = harness.race(contenders, 2, warm_up=1, tick=clocks.tick, before=before)
    assert run.rates("a") == pytest.approx([6.0, 6.0])
    assert run.rates("b") == pytest.approx([3.0, 3.0])
    turns = [clocks.order[i : i + 2] for i in range(0, len(clocks.order), 2)]
    assert len(turns) == 6
    assert all(upper == name.upper() for upper, name in turns)


@pytest.mark.parametrize("bad", [{"rounds": 0}, {"clock": "sundial"}, {"contenders": {}}])
def test_impossible_races_are_refused(bad):
    arguments = {"contenders": {"a": lambda: 1.0}, "rounds": 1, "clock": "thread"} | bad
    with pytest.raises(ValueError, match="expected contenders"):
        harness.race(**arguments)


def test_the_real_clock_sees_work():
    def work(n: int):
        return lambda: float(len([i * i for i in range(n)]) > 0)

    run = harness.race({"little": work(100), "much": work(200_000)}, 3)
    assert run.ratio("little", "much") > 1


def test_spread():
    assert harness.spread([5.0]) == 0.0
    assert harness.spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx((4 - 2) / 2 / 3)


@pytest.mark.parametrize(
    ("kind", "bound", "value", "met"),
    [(">=", 6, 6.0, True), (">=", 6, 5.99, False), ("<=", 20, 20.0, True), ("<=", 20, 20.1, False)],
)
def test_targets(kind, bound, value, met):
    by_ratio = harness.Answer("q", "u", ours=-1.0, ratio=value, target=harness.Target("ratio", kind, bound))
    by_value = harness.Answer("q", "u", ours=value, target=harness.Target("ours", kind, bound))
    assert by_ratio.met is met
    assert by_value.met is met
    assert harness.Answer("q", "u", ours=value).met is None


def test_an_answer_compares_rates_and_keeps_the_rounds():
    clocks = Clocks({"ours": [1.0, 1.0, 2.0], "peer": [3.0, 4.0, 10.0]})
    run = clocks.race(3, {"ours": 2e6, "peer": 2e6})
    answer = harness.compare(run, "ours", "peer", "how fast", "MB/s", 1e-6, at_least=4)
    assert (answer.ours, answer.peer_value, answer.ratio) == pytest.approx((2.0, 0.5, 4.0))
    assert answer.met is True
    assert answer.detail["rates"]["ours"] == pytest.approx([2.0, 2.0, 1.0])
    assert answer.detail["wall_rate"]["peer"] == pytest.approx(0.25)


ANSWERS = [
    harness.Answer(
        "fast", "MB/s", 1234.5, "memcpy", 20000.0, 1 / 16.2, harness.Target("ratio", ">=", 1 / 20, "1/20"), 0.03
    ),
    harness.Answer("small|thin", "MB", 300.0, target=harness.Target("ours", "<=", 200.0)),
    harness.Answer("told", "s", 0.000012, note="no target"),
]


def test_tables_show_every_answer_and_its_verdict():
    text = harness.text_table(ANSWERS).splitlines()
    assert len(text) == 2 + len(ANSWERS)
    assert text[0].split()[0] == "question"
    assert text[2].split() == ["fast", "1,234", "memcpy", "20,000", "MB/s", "0.0617", ">=", "1/20", "met", "3%"]
    assert "MISSED" in text[3]
    assert "met" not in text[4].lower()
    lines = harness.markdown_table(ANSWERS).splitlines()
    assert {line.replace("\\|", "").count("|") for line in lines} == {len(harness.COLUMNS) + 1}


@pytest.mark.parametrize("answer", ANSWERS)
def test_answers_survive_json(answer):
    assert load_answer(json.loads(json.dumps(dataclasses.asdict(answer)))) == answer


def test_every_question_is_a_file_with_the_question():
    folder = ROOT / "benchmarks"
    for name in QUESTIONS:
        text = (folder / f"{name}.py").read_text()
        doc = text.split('"""')[1]
        assert "?" in doc, name
        assert "Unit:" in doc, name
        assert "Measured:" in doc, name


@linux_only("a page cache that tells what it holds")
@pytest.mark.slow
def test_a_quick_run_of_one_question_leaves_a_table_and_no_data(tmp_path):
    command = [sys.executable, "-m", "benchmarks", "--only", "minibatch_overhead", "--quick"]
    command += ["--data", str(tmp_path / "data"), "--results", str(tmp_path / "results")]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "torch DataLoader" in ran.stdout
    assert not (tmp_path / "data").exists()
    (report,) = (tmp_path / "results").glob("*.json")
    found = json.loads(report.read_text())
    assert found["quick"]
    assert not found["failed"]
    assert [load_answer(a).met for a in found["answers"]] == [a["met"] for a in found["answers"]]
    assert "memory_gb" in found["machine"]
    (page,) = (tmp_path / "results").glob("*.md")
    assert "Quick run" in page.read_text()


def test_a_subject_selects_its_questions():
    assert _asked(None) == list(QUESTIONS)
    assert _asked(["cold"]) == ["cold", "cold_slow", "cold_peers", "cold_formats"]
    assert _asked(["restore", "cold_peers"]) == ["restore", "cold_peers"]


@linux_only("a page cache that tells what it holds")
@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no file system in memory")
def test_what_does_not_leave_the_page_cache_is_no_cold_row():
    path = Path("/dev/shm") / f"feedline-test-{os.getpid()}"
    path.write_bytes(bytes(1 << 20))
    try:
        assert disk.resident([str(path)]) == 1
        with pytest.raises(RuntimeError, match="100% stays"):
            disk.evict(path)
        disk.evict(path, share=0.5)  # half of it is to stay
    finally:
        path.unlink()


def test_a_ballast_goes_with_its_block():
    before = set(children_of(os.getpid()))  # of earlier tests, forkservers for example
    with groups.ballast(1 << 20) as locked:
        assert locked in (True, False)  # not every user may lock memory
        (child,) = set(children_of(os.getpid())) - before
    assert child not in children_of(os.getpid())


def test_little_memory_is_described_in_words():
    assert groups.Group(0).kind == "locked ballast that leaves memory"
    assert groups.Group(2, Path("/nowhere")).kind == "memory control group (version 2)"
    assert groups.Group(0).arguments() == ("0", ".")
    groups.Group(0).enter()  # nowhere to go
    assert groups.Group(0).page_cache() > 0


def children_of(parent: int) -> list[int]:
    listed = subprocess.run(
        ["ps", "--ppid", str(parent), "-o", "pid=,comm="], capture_output=True, text=True, check=False
    )
    return [int(line.split()[0]) for line in listed.stdout.splitlines() if not line.endswith(" ps")]


def test_a_benchmark_that_fails_fails_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.__main__.ask", lambda *_: None)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine").write_text("")
    (tmp_path / "data" / "bench-theirs").write_text("")
    arguments = ["--only", "startup", "--quick", "--data", str(tmp_path / "data"), "--results", str(tmp_path)]
    assert main(arguments) == 1
    assert "failed: startup" in capsys.readouterr().err
    # An existing folder stays, with the files of others.
    assert [entry.name for entry in (tmp_path / "data").iterdir()] == ["mine"]


def test_questions_of_the_same_day_stay_until_they_are_asked_again(tmp_path, monkeypatch):
    figures = {"startup": 1.0, "restore": 2.0}
    monkeypatch.setattr("benchmarks.__main__.ask", lambda name, *_: [harness.Answer(name, "ms", figures[name])])
    arguments = ["--quick", "--data", str(tmp_path / "data"), "--results", str(tmp_path)]
    assert main(["--only", "startup", "restore", *arguments]) == 0
    figures["restore"] = 3.0
    assert main(["--only", "restore", *arguments]) == 0
    (report,) = tmp_path.glob("*.json")
    answers = json.loads(report.read_text())["answers"]
    assert {answer["question"]: answer["ours"] for answer in answers} == {"startup": 1.0, "restore": 3.0}
    (page,) = tmp_path.glob("*.md")
    assert "| startup | 1 |" in page.read_text()
