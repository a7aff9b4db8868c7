"""Choose the number of torch's threads for a script's training by the time of its first steps.

Threads that wait for tiny operations wait busily: with two threads a small network may need four times the CPU time of
a single thread, and more wall time. So the first trainer runs its steps in turn with all threads and with one, and
continues with the faster number. Steps that take more than `LONGEST` seconds with one thread are tried `FEW` times. A
single long step with all threads proves nothing: where other processes use the processors, threads wait for a thread
that does not run, and a step of 3 ms may take 100. Steps on a GPU are not tried. The number of threads that compute a
sum may change its last bits.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

WARM = 2  # steps before the trial, in which torch allocates and plans
EACH = 5  # steps with either number
LONGEST = 0.02  # seconds: longer steps vary less, and are worth fewer trials
FEW = 2  # steps with either number, if they are longer
WORTH = 1.25  # several threads are chosen if a single thread takes more than this times their time


class ThreadTrial:
    """The first steps of a run.

    Args:
        several: number of threads that torch has.
        use: function that sets the number of threads.
        report: function that is called with a line about the choice.
        now: clock, in seconds.
    """

    def __init__(
        self,
        several: int,
        use: Callable[[int], None],
        report: Callable[[str], None],
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.several, self._use, self._report, self._now = several, use, report, now
        self._steps = 0
        self._took: dict[int, list[float]] = {1: [], several: []}
        self.chosen: int | None = several if several == 1 else None

    @contextmanager
    def step(self) -> Iterator[None]:
        """Run a step, and time it until a number is chosen."""
        if self.chosen is not None:
            yield
            return
        count = self.several if self._steps < WARM else (1, self.several)[(self._steps - WARM) % 2]
        self._use(count)
        begin = self._now()
        try:
            yield
        finally:
            if count != self.several:
                self._use(self.several)  # a test may follow
        seconds = self._now() - begin
        self._steps += 1
        if self._steps <= WARM:
            return
        self._took[count].append(seconds)
        pairs = len(self._took[self.several])
        # The faster of two steps, or the median of five.
        if pairs == EACH or (pairs == FEW and min(self._took[1]) > LONGEST):
            single, several = (statistics.median_low(self._took[n]) for n in (1, self.several))
            self._choose(1 if single <= WORTH * several else self.several)
            self._report(
                f"feedline: steps take {_ms(single)} ms with one thread and {_ms(several)} ms with "
                f"{self.several}: going on with {self.chosen} (--threads N sets another number)"
            )

    def _choose(self, count: int) -> None:
        self.chosen = count
        self._use(count)


def _ms(seconds: float) -> str:
    """Return milliseconds of two digits or more."""
    return f"{seconds * 1e3:.2g}" if seconds < 0.0995 else f"{seconds * 1e3:.0f}"


class _Process:
    """Whether this process tries numbers of threads, and its trial."""

    enabled = False
    trial: ThreadTrial | None = None


def want() -> None:
    """Make the first trainer of this process choose a number, and report it on standard error."""
    _Process.enabled = True


@contextmanager
def trained() -> Iterator[None]:
    """Run a step of training, as part of the trial if there is one."""
    if not _Process.enabled:
        yield
        return
    import torch

    if _Process.trial is None:
        _Process.trial = ThreadTrial(
            torch.get_num_threads(), torch.set_num_threads, lambda line: print(line, file=sys.stderr, flush=True)
        )
    with _Process.trial.step():
        yield
    if _Process.trial.chosen is not None or torch.cuda.is_initialized():
        _Process.enabled = False
