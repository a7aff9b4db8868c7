"""CPU seconds of each test, with all processes that it starts: ``make test PYTEST_ARGS='-n 4 -p tests.costs'``.

Each process that runs tests has its own control group (version 2 or 1), so that programs forked from a warm
interpreter count, too. At the end the dearest files and tests are listed.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from pathlib import Path

import pytest

LISTED = 40


class Group:
    """A control group that this process, and all that it starts from now on, is in."""

    def __init__(self, name: str) -> None:
        one = Path("/sys/fs/cgroup/cpuacct")
        self._folder = (one if one.is_dir() else Path("/sys/fs/cgroup")) / name
        self._folder.mkdir(exist_ok=True)
        (self._folder / "cgroup.procs").write_text(str(os.getpid()))

    def seconds(self) -> float:
        """CPU seconds so far."""
        usage = self._folder / "cpuacct.usage"
        if usage.exists():
            return int(usage.read_text()) / 1e9
        entries = dict(line.split() for line in (self._folder / "cpu.stat").read_text().splitlines())
        return int(entries["usage_usec"]) / 1e6

    def leave(self) -> None:
        """Remove the group. Programs that the tests have left running keep it."""
        with contextlib.suppress(OSError):
            (self._folder.parent / "cgroup.procs").write_text(str(os.getpid()))
            self._folder.rmdir()


class Measured:
    """In a process that runs tests, adds the seconds of each test to its last report."""

    def __init__(self, worker: str) -> None:
        self._group = Group(f"feedline-costs-{os.getpid()}")
        self._before = 0.0
        # Interpreters are shared by processes of one run: not by these.
        os.environ["PYTEST_XDIST_TESTRUNUID"] = os.environ.get("PYTEST_XDIST_TESTRUNUID", "") + worker

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if call.when == "teardown" or not self._before:
            seconds = self._group.seconds()
            report.user_properties.append(("cpu_s" if self._before else "collecting_s", seconds - self._before))
            self._before = seconds
        return report

    def pytest_unconfigure(self):
        self._group.leave()


class Listed:
    """In the process that reports: adds up and lists."""

    def __init__(self) -> None:
        self._tests: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report):
        for name, value in report.user_properties:
            if name == "collecting_s" and report.when == "setup":
                self._tests["collecting"] += value
            elif name == "cpu_s" and report.when == "teardown":
                self._tests[report.nodeid] += value

    def pytest_terminal_summary(self, terminalreporter):
        files: Counter[str] = Counter()
        for test, seconds in self._tests.items():
            files[test.partition("::")[0]] += seconds
        terminalreporter.section(f"{sum(files.values()) / 60:.1f} minutes of CPU")
        for costs in (files, self._tests):
            for name, seconds in costs.most_common(LISTED):
                terminalreporter.write_line(f"{seconds:8.1f} s  {name}")


def pytest_configure(config):
    """Measure where tests run, list where they are reported."""
    workers = getattr(config.option, "numprocesses", None)
    if "PYTEST_XDIST_WORKER" in os.environ or not workers:
        config.pluginmanager.register(Measured(os.environ.get("PYTEST_XDIST_WORKER", "")))
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(Listed())
