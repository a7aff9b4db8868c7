"""One case: its random numbers, its folder, and its findings.

Findings are written to a pipe at once, so that they survive a crash of the case.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import traceback
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

COUNTERS = ("lost", "twice", "out of place", "silent", "foreign", "crashes", "hangs", "left over")
_LONGEST = 4000


class Refused:
    """Result of `Case.attempt` for a call that was refused as promised.

    Attributes:
        error: the exception.
    """

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __bool__(self) -> bool:
        return False


class WrongError(Exception):
    """Wrong data was delivered. Raised by scenarios, counted as silent."""


class Case:
    """A running case.

    Args:
        name: ``scenario/number``.
        number: number of the case in its scenario, for scenarios that go through a list.
        seed: of the suite.
        folder: empty, and the case's own.
        data: corpora for all cases, see `data`. Not to be changed.
        report: descriptor for findings.

    Attributes:
        rng: the only source of randomness.
        doing: the current attempt, for reports of crashes and hangs.
    """

    def __init__(self, name: str, number: int, seed: int, folder: Path, data: Path, report: int) -> None:
        self.name, self.number, self.seed, self.folder, self.data = name, number, seed, folder, data
        self.rng = random.Random(f"{seed}/{name}")
        self._report = report

    # ---- findings -----------------------------------------------------------------------------------

    def fail(self, counter: str, what: str) -> None:
        """Count a failure."""
        if counter not in COUNTERS:
            raise ValueError(f"expected one of {COUNTERS}, got {counter!r}")
        self._write({"fail": counter, "what": what[:_LONGEST]})

    def tally(self, what: str, count: int = 1) -> None:
        """Count an activity: kills, compared sequences."""
        self._write({"tally": what, "count": count})

    def doing(self, what: str) -> None:
        """Report the next action, in case it is the last one of this process."""
        self._write({"doing": what[:_LONGEST]})

    def _write(self, line: dict[str, Any]) -> None:
        # One write of less than PIPE_BUF bytes each, as victims write to the same pipe.
        os.write(self._report, json.dumps(line).encode()[: 1 << 16] + b"\n")

    # ---- trying -------------------------------------------------------------------------------------

    def attempt(
        self, what: str, call: Callable[[], T], allowed: tuple[type[BaseException], ...] | None = None
    ) -> T | Refused:
        """Return the result of ``call``, or its refusal.

        Args:
            what: for the report.
            call: the call to try.
            allowed: exceptions that are a promised answer. None: feedline's. Empty: none.
        """
        from feedline.errors import FeedlineError

        promised = (FeedlineError,) if allowed is None else allowed
        self.doing(what)
        try:
            return call()
        except promised as error:
            self.tally("refused")
            return Refused(error)
        except WrongError as error:
            self.fail("silent", f"{what}: {error}")
            return Refused(error)
        except Exception as error:
            self.fail("foreign", f"{what}: {told(error)}")
            return Refused(error)

    def compare(self, what: str, expected: Sequence[Hashable], got: Sequence[Hashable], identity: int = 0) -> bool:
        """Compare delivered items with expected ones, one by one.

        Args:
            what: for the report.
            expected: the right items: tuples with the item's identity as element ``identity``.
            got: the delivered items.
            identity: see ``expected``.

        Returns:
            Whether both are equal.
        """
        self.tally("compared", len(got))
        if list(expected) == list(got):
            return True
        right = collections.Counter(item[identity] for item in expected)  # type: ignore[index]
        found = collections.Counter(item[identity] for item in got)  # type: ignore[index]
        missing, surplus = right - found, found - right
        if missing:
            self.fail("lost", f"{what}: {missing.total()} of {len(expected)} lost, such as {sorted(missing)[:8]}")
        if surplus:
            self.fail("twice", f"{what}: {surplus.total()} twice or foreign, such as {sorted(surplus)[:8]}")
        if missing or surplus:
            return False
        at = next(i for i, (a, b) in enumerate(zip(expected, got, strict=True)) if a != b)
        if expected[at][identity] != got[at][identity]:  # type: ignore[index]
            self.fail("out of place", f"{what}: expected {expected[at]!r:.80} at place {at}, got {got[at]!r:.80}")
        else:
            self.fail(
                "silent", f"{what}: other content at place {at}: expected {expected[at]!r:.80}, got {got[at]!r:.80}"
            )
        return False

    @contextlib.contextmanager
    def leaving_nothing(self, what: str, *patterns: str) -> Iterator[None]:
        """Within the block no file of these patterns may be added to the case's folder for good."""
        before = self._matching(patterns)
        yield
        if left := self._matching(patterns) - before:
            self.fail("left over", f"{what}: {sorted(left)[:5]}")

    def _matching(self, patterns: Sequence[str]) -> set[str]:
        return {str(path.relative_to(self.folder)) for pattern in patterns for path in self.folder.rglob(pattern)}


def told(error: BaseException) -> str:
    """An exception, and the last frames of its traceback."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    places = " < ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in reversed(frames))
    return f"{type(error).__name__}: {error!s:.300} ({places})"
