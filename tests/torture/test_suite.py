"""The suite finds defects: every counter rises, and every scenario notices a defect planted for it."""

from __future__ import annotations

import io
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.torture.case import COUNTERS, Case
from tests.warm import run

ROOT = Path(__file__).resolve().parents[2]

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.torture import damage, hostile, plants  # noqa: E402
from tests.torture.scenario import Scenario  # noqa: E402
from tests.torture.scenarios import ALL  # noqa: E402
from tests.torture.suite import Suite, in_child  # noqa: E402


class Bad(Scenario):
    """A scenario that behaves like a defect."""

    name = "bad"
    asks = "is this counted?"
    seconds = 2.0

    def __init__(self, what):
        self.what = what

    def run(self, case):
        what = self.what
        if what == "lost":
            case.compare("x", [("a", 1), ("b", 2), ("c", 3)], [("a", 1), ("c", 3)])
        elif what == "twice":
            case.compare("x", [("a", 1), ("b", 2)], [("a", 1), ("b", 2), ("b", 2)])
        elif what == "out of place":
            case.compare("x", [("a", 1), ("b", 2)], [("b", 2), ("a", 1)])
        elif what == "silent":
            case.compare("x", [("a", 1), ("b", 2)], [("a", 1), ("b", 3)])
        elif what == "foreign":
            case.attempt("x", lambda: {}["nothing"])
        elif what == "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif what == "hangs":
            time.sleep(60)
        elif what == "left over":
            Path(tempfile.mkstemp()[1]).write_text("x")


def counted(what, tmp_path):
    """Return the counts of one bad case, run in its own process, as a runner changes its process."""
    found = tmp_path / "counts"

    def run():
        suite = Suite([Bad(what)], 1, out=io.StringIO(), data=tmp_path)
        suite.repeat(suite.scenarios[0], [0])
        found.write_text(" ".join(f"{k}={v}" for k, v in suite.rows["bad"].counts.items()))

    in_child(run)
    return found.read_text()


@pytest.mark.parametrize("counter", COUNTERS)
def test_counters_rise(counter, tmp_path):
    assert counted(counter, tmp_path) == f"{counter}=1"


def test_what_is_well_counts_nothing(tmp_path):
    assert counted("nothing", tmp_path) == ""


def test_a_process_left_over_is_counted_and_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.torture.arena.GRACE", 0.3)
    told = tmp_path / "pid"

    class Leaves(Bad):
        def run(self, case):
            pid = os.fork()
            if pid == 0:
                os.setsid()
                time.sleep(600)
            told.write_text(str(pid))

    monkeypatch.setattr(sys.modules[__name__], "Bad", Leaves)
    assert counted("", tmp_path) == "left over=1"
    assert not Path(f"/proc/{told.read_text()}").exists()


def test_a_case_can_be_run_again(tmp_path):
    """Its random numbers follow from seed, name and number alone."""
    draws = [Case("a/3", 3, 7, tmp_path, tmp_path, -1).rng.random() for _ in range(2)]
    others = [Case(name, 3, seed, tmp_path, tmp_path, -1).rng.random() for name, seed in (("a/4", 7), ("a/3", 8))]
    assert draws[0] == draws[1]
    assert draws[0] not in others


def test_every_scenario_and_counter_has_a_plant():
    planted = {plant.scenario for plant in plants.PLANTS}
    # Ray is not started for this: its own tests kill servers.
    assert {scenario.name for scenario in ALL} - planted == {"killed-servers"}
    assert {counter for plant in plants.PLANTS for counter in plant.counters} == set(COUNTERS)


def test_names_are_unique_and_questions_short():
    assert len({scenario.name for scenario in ALL}) == len(ALL)
    assert all(scenario.asks.endswith("?") and len(scenario.asks) <= 90 for scenario in ALL)


def test_scenarios_and_files_agree():
    """One class a file, named after it."""
    files = {path.stem.replace("_", "-") for path in (ROOT / "tests/torture/scenarios").glob("[a-z]*.py")}
    assert {scenario.name for scenario in ALL} == files


@pytest.mark.parametrize("kind", damage.INSIDE)
def test_changes_change_and_are_repeatable(kind, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    original, other = bytes(range(48, 148)) * 3, bytes(range(100, 200)) * 3
    changed = set()
    for luck in range(20):
        for _ in range(2):
            (tmp_path / "a" / "file").write_bytes(original)
            (tmp_path / "b" / "file").write_bytes(other)
            change = damage.Change("file", kind, 11 + luck, 8, luck)
            assert change.apply(tmp_path / "a", tmp_path / "b") == ((tmp_path / "a/file").read_bytes() != original)
            changed.add((luck, (tmp_path / "a/file").read_bytes()))
    assert len(changed) == 20


def test_trees_change():
    import random

    original = {"a": [1, {"b": "x"}], "c": None}
    found = {repr(hostile.tree(random.Random(seed), original)[0]) for seed in range(200)}
    assert len(found) > 100
    assert original == {"a": [1, {"b": "x"}], "c": None}


@pytest.mark.slow
def test_a_plant_is_noticed():
    """`make torture` begins with all of them."""
    done = run(
        ["-m", "tests.torture", "--plants", "restores late", "--seed", "4"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all 1 plants were noticed" in done.stdout
