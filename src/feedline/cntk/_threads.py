"""Choice of the number of torch's threads for a script's training, by the time of its first steps.

Threads that wait for tiny operations wait busily: with two threads a small network may need four times the CPU time of
one, and more time by the clock. So the steps of the first trainer are run in turn with all threads and with one, and
the run goes on with the faster number. Steps that take more than `LONGEST` seconds with one thread are tried `FEW`
times. A long step with all threads decides nothing alone: where others use the processors, threads wait for one that
does not run, and a step of 3 ms may take 100. Steps on a GPU are not tried. How many threads compute a sum may change
its last bits.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

WARM = 2  # steps before the trial, in which torch allocates and plans
EACH = 5  # steps with either number
LONGEST = 0.02  # seconds; longer steps vary less, and are worth fewer trials
FEW = 2  # steps with either number, if they are longer
WORTH = 1.25  # several threads are chosen if one takes more than this times their time


class ThreadTrial:
    """The first steps of a run.

    Args:
        several: number of threads that torch has.
        use: function that sets the number of threads.
        say: function that tells the choice, a line.
        now: clock, in seconds.
    """

    def __init__(
        self,
        several: int,
        use: Callable[[int], None],
        say: Callable[[str], None],
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.several, self._use, self._say, self._now = several, use, say, now
        self._steps = 0
        self._took: dict[int, list[float]] = {1: [], several: []}
        self.chosen: int | None = several if several == 1 else None

    @contextmanager
    def step(self) -> Iterator[None]:
        """Run a step; once a number is chosen, nothing else is done."""
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
                self._use(self.several)  # what follows may be a test
        took = self._now() - begin
        self._steps += 1
        if self._steps <= WARM:
            return
        self._took[count].append(took)
        pairs = len(self._took[self.several])
        # The faster of two, the median of five.
        if pairs == EACH or (pairs == FEW and min(self._took[1]) > LONGEST):
            one, all_of_them = (statistics.median_low(self._took[n]) for n in (1, self.several))
            self._choose(1 if one <= WORTH * all_of_them else self.several)
            self._say(
                f"feedline: steps take {_ms(one)} ms with one thread and {_ms(all_of_them)} ms with "
                f"{self.several}: going on with {self.chosen} (--threads N sets another number)"
            )

    def _choose(self, count: int) -> None:
        self.chosen = count
        self._use(count)


def _ms(seconds: float) -> str:
    """Return milliseconds of two digits or more."""
    return f"{seconds * 1e3:.2g}" if seconds < 0.0995 else f"{seconds * 1e3:.0f}"


class _Process:
    """Whether this process tries, and its trial."""

    wanted = False
    trial: ThreadTrial | None = None


def want() -> None:
    """Make the first trainer of this process choose; said on standard error."""
    _Process.wanted = True


@contextmanager
def trained() -> Iterator[None]:
    """Run a step of training, as part of the trial if there is one."""
    if not _Process.wanted:
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
        _Process.wanted = False
