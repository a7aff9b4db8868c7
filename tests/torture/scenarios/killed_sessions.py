"""Training sessions, killed and interrupted at random instants."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import feedline as fl
from tests.torture import training
from tests.torture.case import Case
from tests.torture.scenario import Scenario
from tests.torture.victims import Victim, draw, run


class KilledSessions(Scenario):
    """Restarted until it is done, a training ends with the parameters, counts and events of an uninterrupted one."""

    name = "killed-sessions"
    asks = "does a training end the same, bit for bit, however often it is killed?"
    seconds = 180.0

    def run(self, case: Case) -> None:
        rng, folder, corpus = case.rng, case.folder / "run", case.data / "few"
        expected = training.reference(case.data)
        if rng.random() < 0.25:
            self._two(case, folder, corpus)
        seconds, operations = 0.3, 500
        for _ in range(rng.randint(1, 5)):
            victim = Victim(case, training.train, folder, corpus, instant=draw(rng, seconds, operations))
            ended = victim.wait()
            case.tally("kills", int(ended.hit))
            if ended.error is not None and ended.error != "KeyboardInterrupt":
                case.fail("lost" if ended.promised else "foreign", f"{victim.told()}: {ended.error}")
                return
            if ended.result is not None and not ended.hit:
                break
        last = run(case, "going on", training.train, folder, corpus)
        if last.result is not None and (wrong := training.differs(expected, last.result)):
            case.fail("silent", f"began at {last.result['began']}; other {wrong}")
        kinds = [{_kind(p, f) for p in f.rglob("*")} for f in (folder, case.data / "whole")]
        if left := kinds[0] - kinds[1]:
            case.fail("left over", f"in the run's folder: {sorted(left)[:5]}")
        case.attempt("report", lambda: fl.report(folder, case.folder / "report.html"))

    def _two(self, case: Case, folder: Path, corpus: Path) -> None:
        """Two sessions in one folder at a time: one of them is refused, and nothing of the other is touched."""
        first = Victim(case, training.train, folder, corpus)
        time.sleep(case.rng.random() * 0.3)
        second = Victim(case, training.train, folder, corpus)
        ends = [first.wait(), second.wait()]
        for ended in ends:
            if ended.error is not None and not ended.promised:
                case.fail("foreign", f"one of two sessions in a folder: {ended.error}")
        if all(ended.error is not None for ended in ends):
            case.fail("lost", f"each of two sessions in a folder was refused: {[ended.error for ended in ends]}")
        trained = [ended.result for ended in ends if ended.result is not None]
        if len(trained) == 2 and trained[1]["began"] < trained[0]["counts"][0]:
            case.fail("silent", f"two sessions in one folder at a time, from {[one['began'] for one in trained]}")
        case.tally("refused sessions", sum(bool(ended.promised) for ended in ends))
        shutil.rmtree(folder)


def _kind(path: Path, folder: Path) -> str:
    return re.sub(r"\d+", "N", str(path.relative_to(folder)))
