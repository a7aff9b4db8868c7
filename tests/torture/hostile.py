"""Malicious inputs for parsers: the base of scenarios that test how a parser reacts.

A case gives a parser a batch of inputs under limits of memory and time. What it may do: read it, or refuse it with an
error that it promises. Memory that an input of a few kilobytes asks for without bound is an error nobody promised.
"""

from __future__ import annotations

import copy
import gc
import os
import random
import resource
import time
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from tests.torture.case import Case, Refused
from tests.torture.scenario import Scenario

VALUES: tuple[Callable[[], Any], ...] = (
    *(lambda n=n: n for n in (None, True, False, -1, 0, 1, 2, 7, 1000, -(2**31), 2**31 - 1, 2**31, 2**32, 2**48)),
    *(lambda n=n: n for n in (2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**70, -(2**63), -(2**70), 10**400)),
    *(lambda x=x: x for x in (0.5, -0.0, 1e308, -1e-320, float("nan"), float("inf"), float("-inf"))),
    *(lambda s=s: s for s in ("", "x", "-1", "12", " 12 ", "0x10", "1_0", "f" * 16, "f" * 17, "١", "\x00", "\ud800")),
    *(lambda s=s: s for s in ("../..", "/etc/passwd", "null", "feedline-1", "float32", "object", "e" * 100_000)),
    *(list, dict, lambda: [[]], lambda: [0] * 5, lambda: {"a": 1}, lambda: [[0, 1], [1, 0]]),
    *(lambda: _nested(400), lambda: list(range(-3, 3)), lambda: {"feedline": 1}, lambda: [None]),
)


def _nested(depth: int) -> Any:
    found: Any = 0
    for _ in range(depth):
        found = [found]
    return found


def value(rng: random.Random) -> Any:
    """Return an unexpected JSON value."""
    return rng.choice(VALUES)()


def tree(rng: random.Random, original: Any) -> tuple[Any, str]:
    """Return a JSON tree with one or a few changes, and their places."""
    found, done = copy.deepcopy(original), []
    for _ in range(rng.choice([1, 1, 1, 1, 2, 4])):
        places = list(_places(found, ()))
        if not places:
            break
        # The depth is drawn first, as leaves of long lists would be drawn nearly always.
        depth = rng.choice(sorted({len(place) for place in places}))
        place = rng.choice([place for place in places if len(place) == depth])
        holder = found
        for key in place[:-1]:
            holder = holder[key]
        key, old = place[-1], holder[place[-1]]
        kind = rng.choice(["value", "value", "value", "near", "delete", "twice", "other"])
        if kind == "delete":
            del holder[key]
        elif kind == "twice" and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(old))
        elif kind == "near" and isinstance(old, (int, float)) and not isinstance(old, bool):
            holder[key] = old + rng.choice([-1, 1, -7, 2**20, -old, old])
        elif kind == "near" and isinstance(old, str) and old:
            at = rng.randrange(len(old))
            holder[key] = old[:at] + rng.choice("0123456789abcdefx-_ \x00é") + old[at + rng.randrange(2) :]
        elif kind == "other":
            *_, last = other = rng.choice(places)
            taken = found
            for step in other[:-1]:
                taken = taken[step]
            holder[key] = copy.deepcopy(taken[last])
        else:
            holder[key] = value(rng)
        done.append(f"{kind} at {list(place)!r:.120}: {_get(holder, key)!r:.60}")
    return found, "; ".join(done)


def _get(holder: Any, key: Any) -> Any:
    try:
        return holder[key]
    except (KeyError, IndexError):
        return "-"


def _places(found: Any, path: tuple[Any, ...]) -> Any:
    children = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    for key, child in children:
        yield (*path, key)
        if len(path) < 12:
            yield from _places(child, (*path, key))


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def limit(memory: int, seconds: int) -> None:
    """Limit this process to some more bytes, and some seconds of processor time."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft = pages * resource.getpagesize() + memory
    resource.setrlimit(resource.RLIMIT_AS, (soft, soft))
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = int(used.ru_utime + used.ru_stime) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 5))


class Hostile(Scenario):
    """A parser and its inputs.

    Attributes:
        batch: inputs of a case.
        memory: bytes that an input may cost.
        processor: seconds of processor time that a case may take.
        allowed: errors that the parser promises. None: feedline's.
    """

    batch: ClassVar[int] = 20
    processor: ClassVar[int] = 50
    memory: ClassVar[int] = 1 << 30

    def run(self, case: Case) -> None:
        self.prepare(case)
        limit(self.memory, self.processor)
        # Otherwise everything would be refused, and nothing tested.
        if isinstance(sound := case.attempt("the original", self.original(case), ()), Refused):
            case.fail("lost", f"the original cannot be read within {self.memory} bytes: {sound.error!r:.500}")
            return
        threads = _threads()
        for k in range(self.batch):
            what, parse = self.draw(case, k)
            case.attempt(what, parse, self.allowed())
            case.tally("inputs")
            # Sources that were dropped end their threads as soon as these are scheduled. Until then they take address
            # space, which is limited here. An error keeps its source until a collection. Threads that stay after that
            # are the process's, such as threads that decode.
            if _threads() > threads:
                gc.collect()
            deadline = time.monotonic() + 2
            while _threads() > threads and time.monotonic() < deadline:
                time.sleep(0.001)
            threads = max(threads, _threads())

    def allowed(self) -> tuple[type[BaseException], ...] | None:
        """Return the errors that the parser promises. None: only feedline's."""
        return None

    def prepare(self, case: Case) -> None:  # most need no preparation
        """Prepare a case, once, without limits."""

    @abstractmethod
    def original(self, case: Case) -> Callable[[], Any]:
        """Return the parser over a valid input."""

    @abstractmethod
    def draw(self, case: Case, k: int) -> tuple[str, Callable[[], Any]]:
        """Return a description of input number ``k``, and the parser over it."""
