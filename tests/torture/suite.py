"""The suite: scenarios take turns until the time is up. A table at the end."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from tests.forked import die
from tests.torture.arena import Arena, Outcome, die_with_parent
from tests.torture.case import COUNTERS
from tests.torture.scenario import Scenario

MAX_SHOWN = 5
"""Number of failures per scenario and counter that are printed in full."""


@dataclass
class Row:
    """One line of the table."""

    cases: int = 0
    seconds: float = 0.0
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    tallies: collections.Counter[str] = field(default_factory=collections.Counter)

    def add(self, outcome: Outcome) -> None:
        """Another case."""
        self.cases += 1
        self.seconds += outcome.seconds
        self.counts.update(counter for counter, _ in outcome.failures)
        self.tallies.update(outcome.tallies)


class Suite:
    """Runner of scenarios, which reports their findings.

    Args:
        scenarios: to take part.
        seed: seed of all random numbers.
        jobs: cases at a time.
        keep: leave the folders of cases that failed.
        out: stream for the report.
        data: result of `prepare`. None: it is made for this run.
    """

    def __init__(
        self,
        scenarios: Sequence[Scenario],
        seed: int,
        jobs: int = 1,
        keep: bool = False,
        out: TextIO | None = None,
        data: Path | None = None,
    ) -> None:
        self.seed, self.jobs, self.keep, self.out, self._data = seed, jobs, keep, out or sys.stdout, data
        self.skipped = {s.name: reason for s in scenarios if (reason := s.missing())}
        self.scenarios = [s for s in scenarios if s.name not in self.skipped]
        self.rows = {s.name: Row() for s in self.scenarios}
        self.findings: list[str] = []
        self._shown: collections.Counter[tuple[str, str]] = collections.Counter()

    def run(self, seconds: float) -> dict[str, Row]:
        """Run all scenarios in turn for some time, each at least once."""
        for scenario in [s for s in self.scenarios if s.least > seconds]:
            self.skipped[scenario.name] = f"only in runs of {scenario.least / 60:g} minutes or more"
            self.scenarios.remove(scenario)
            del self.rows[scenario.name]
        return self._run(lambda arena, j, tell: self._turns(arena, j, tell, seconds), self.jobs)

    def repeat(self, scenario: Scenario, numbers: Sequence[int], until: Sequence[str] = ()) -> dict[str, Row]:
        """Run these cases of a scenario, or until a counter rises."""

        def each(arena: Arena, j: int, tell: Callable[[Outcome], None]) -> None:
            for number in numbers:
                outcome = arena.run(scenario, number)
                tell(outcome)
                if any(counter in until for counter, _ in outcome.failures):
                    return

        return self._run(each, 1)

    def _turns(self, arena: Arena, job: int, tell: Callable[[Outcome], None], seconds: float) -> None:
        until = time.monotonic() + seconds
        spent = {scenario.name: 0.0 for scenario in self.scenarios}
        numbers = dict.fromkeys(spent, job)
        order = random.Random(f"{self.seed}/{job}").sample(self.scenarios, len(self.scenarios))
        # Half of the first turns belong to each job, so that every scenario has one early.
        for k, scenario in enumerate(order):
            spent[scenario.name] = -1.0 if k % self.jobs == job else 0.0
        while time.monotonic() < until or min(spent.values()) < 0:
            scenario = min(order, key=lambda s: spent[s.name])
            outcome = arena.run(scenario, numbers[scenario.name])
            numbers[scenario.name] += self.jobs
            spent[scenario.name] = max(spent[scenario.name], 0.0) + outcome.seconds
            tell(outcome)

    # ---- runners ------------------------------------------------------------------------------------

    def _run(self, what: Callable[[Arena, int, Callable[[Outcome], None]], None], jobs: int) -> dict[str, Row]:
        with temporary(self.keep) as work:
            if self._data is None:
                self._data = work / "data"
                in_child(lambda: prepare(work / "data"))
            self._runners(work, what, jobs)
            if self.keep and self.failed:
                self._say(f"kept: {work}")
        return self.rows

    def _runners(self, work: Path, what: Callable[[Arena, int, Callable[[Outcome], None]], None], jobs: int) -> None:
        pipes: dict[int, int] = {}
        for job in range(jobs):
            reading, writing = os.pipe()
            self.out.flush()
            pid = os.fork()
            if pid == 0:
                os.close(reading)
                _runner(lambda: Arena(work, self._data, self.seed, self.keep), what, job, writing)
            os.close(writing)
            pipes[reading] = pid
        try:
            self._listen(list(pipes))
        except BaseException:
            for pid in pipes.values():
                os.kill(pid, signal.SIGKILL)
            raise
        finally:
            codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pipes.values()]
        if any(codes):
            raise RuntimeError(f"a runner of the suite itself failed: exit codes {codes}")

    def _listen(self, open_: list[int]) -> None:
        buffers = dict.fromkeys(open_, b"")
        while open_:
            for pipe in select.select(open_, [], [])[0]:
                block = os.read(pipe, 1 << 16)
                if not block:
                    open_.remove(pipe)
                    os.close(pipe)
                *lines, buffers[pipe] = (buffers[pipe] + block).split(b"\n")
                for line in lines:
                    told = json.loads(line)
                    tallies = collections.Counter(told.pop("tallies"))
                    failures = [(counter, text) for counter, text in told.pop("failures")]
                    self._take(Outcome(**told, failures=failures, tallies=tallies))

    # ---- reports ------------------------------------------------------------------------------------

    def _take(self, outcome: Outcome) -> None:
        name = outcome.name.split("/")[0]
        self.rows[name].add(outcome)
        for counter, what in outcome.failures:
            self._shown[name, counter] += 1
            if self._shown[name, counter] <= MAX_SHOWN:
                again = f"make torture SEED={self.seed} CASE={outcome.name}"
                self.findings.append(f"{counter.upper()} in {outcome.name}: {what}\n  again: {again}")
                self._say(f"\n{self.findings[-1]}")

    def table(self) -> str:
        """Return cases, seconds and counts by scenario."""
        heads = ["scenario", "cases", "seconds", *COUNTERS]
        lines = [
            [name, str(row.cases), f"{row.seconds:.0f}", *(str(row.counts[c]) for c in COUNTERS)]
            for name, row in sorted(self.rows.items())
        ]
        total = Row()
        for row in self.rows.values():
            total.cases += row.cases
            total.seconds += row.seconds
            total.counts.update(row.counts)
        lines.append(["together", str(total.cases), f"{total.seconds:.0f}", *(str(total.counts[c]) for c in COUNTERS)])
        widths = [max(len(line[k]) for line in [heads, *lines]) for k in range(len(heads))]

        def shown(line: list[str]) -> str:
            return "  ".join(
                [line[0].ljust(widths[0]), *(w.rjust(n) for w, n in zip(line[1:], widths[1:], strict=True))]
            )

        rule = "─" * len(shown(heads))
        done = [
            f"{name}: " + ", ".join(f"{count:,} {what}" for what, count in sorted(row.tallies.items()))
            for name, row in sorted(self.rows.items())
            if row.tallies
        ]
        not_run = [f"not run: {name}: {reason}" for name, reason in sorted(self.skipped.items())]
        return "\n".join([shown(heads), rule, *map(shown, lines[:-1]), rule, shown(lines[-1]), "", *done, *not_run])

    @property
    def failed(self) -> bool:
        """Return whether any failure was counted."""
        return any(row.counts.total() for row in self.rows.values())

    def _say(self, text: str) -> None:
        print(text, file=self.out, flush=True)


@contextlib.contextmanager
def temporary(keep: bool = False) -> Iterator[Path]:
    """A folder that is removed afterwards, unless it is kept."""
    folder = Path(tempfile.mkdtemp(prefix="feedline-torture-"))
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def prepare(folder: Path) -> None:
    """Prepare data for all cases: corpora, an uninterrupted training and a stopped one."""
    from tests.torture import data, training

    data.build(folder)
    training.prepare(folder)


def _runner(
    make: Callable[[], Arena],
    what: Callable[[Arena, int, Callable[[Outcome], None]], None],
    job: int,
    writing: int,
) -> None:
    """Run a runner's process. Does not return."""
    code = 1
    try:
        os.setpgid(0, 0)  # the suite handles Ctrl-C
        die_with_parent()

        def tell(outcome: Outcome) -> None:
            line = json.dumps(vars(outcome)).encode() + b"\n"
            while line:
                line = line[os.write(writing, line) :]

        what(make(), job, tell)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        die(code)


def in_child(call: Callable[[], None]) -> None:
    """Run in a forked child: the threads that it starts are then not ours, and forking stays safe."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            die_with_parent()
            call()
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            die(code)
    if code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise RuntimeError(f"preparing the data failed: exit code {code}")
