"""Faults on purpose, for selected requests.

A `Fault` counts the requests that it matches, so the same requests always have the same faults. `Faults` is the list of
a server: a request goes to the first fault that takes it, and later ones do not see it. So "503 twice, then a reset" is
two faults, each with ``times``.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import threading
from dataclasses import dataclass, field
from typing import Any

#: What goes wrong. `at` counts bytes of the response's body, and is half of it if it is None.
KINDS = {
    "status": "answers `status`, with `retry_after` if it is given; nothing is done",
    "drop": "closes the connection without an answer; nothing is done",
    "lost": "does what is asked, and closes the connection without an answer",
    "slow": "waits `seconds` before the answer",
    "short": "announces the whole body, sends `at` bytes and closes",
    "whole": "does not know ranges: answers 200 with the whole object",
    "narrow": "answers a shorter range than is asked for: its first `at` bytes",
    "reset": "sends `at` bytes and resets the connection",
    "stall": "sends `at` bytes, waits `seconds`, sends the rest",
    "wrong": "inverts the byte `at` of the body",
    "changed": "replaces the object before it answers: by `replacement`, or by the same bytes with another ETag",
}


@dataclass
class Fault:
    """A fault, and its requests.

    Args:
        kind: one of `KINDS`.
        key: pattern of ``bucket/key`` (of ``bucket/prefix`` for a listing), for `fnmatch`.
        request: kind of request, such as ``GET`` (see `object_store`). None for all.
        byte: only requests whose range covers this byte of the object.
        skip: matching requests that pass before the first one with the fault.
        every: of the following ones, each n-th has it.
        times: how often. None: always.
    """

    kind: str
    key: str = "*"
    request: str | None = "GET"
    byte: int | None = None
    skip: int = 0
    every: int = 1
    times: int | None = 1
    status: int = 503
    retry_after: float | str | None = None
    at: int | None = None
    seconds: float = 3600.0
    replacement: bytes | None = None
    seen: int = field(default=0, init=False)  # matching requests
    hits: int = field(default=0, init=False)  # requests that had it

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"expected one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.skip < 0 or self.every < 1 or (self.times is not None and self.times < 1):
            raise ValueError(f"expected skip >= 0, every >= 1 and times >= 1: {self}")
        if self.at is not None and self.at < 0:
            raise ValueError(f"expected a number of bytes, got at={self.at}")
        if not 0 <= self.seconds <= threading.TIMEOUT_MAX:
            raise ValueError(f"expected a number of seconds, got {self.seconds}")

    def takes(self, request: str, name: str, span: tuple[int, int]) -> bool:
        """Count a request, and return whether it has this fault."""
        if self.request not in (None, request) or not fnmatch.fnmatchcase(name, self.key):
            return False
        if self.byte is not None and not span[0] <= self.byte < span[1]:
            return False
        after = self.seen - self.skip
        self.seen += 1
        if after < 0 or (after + 1) % self.every or self.hits == self.times:
            return False
        self.hits += 1
        return True

    def described(self) -> dict[str, Any]:
        """Return the fault for JSON. Bytes of the replacement are the characters up to U+00FF."""
        found = dataclasses.asdict(self)
        if self.replacement is not None:
            found["replacement"] = self.replacement.decode("latin-1")
        return found

    @classmethod
    def of(cls, described: dict[str, Any]) -> Fault:
        """The inverse of `described`, with nothing counted yet."""
        given = {name: value for name, value in described.items() if name not in ("seen", "hits")}
        if given.get("replacement") is not None:
            given["replacement"] = given["replacement"].encode("latin-1")
        return cls(**given)


class Faults:
    """The faults of a server, in order. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> Fault:
        """Add one after all others."""
        with self._lock:
            self._faults.append(fault)
        return fault

    def clear(self) -> None:
        """Remove all."""
        with self._lock:
            self._faults.clear()

    def all(self) -> list[Fault]:
        """Those there are."""
        with self._lock:
            return list(self._faults)

    def of(self, request: str, name: str, span: tuple[int, int]) -> Fault | None:
        """The fault of a request."""
        with self._lock:
            return next((fault for fault in self._faults if fault.takes(request, name, span)), None)
