"""Choice of the number of torch's threads for a script's training, by the time of its first short steps.

Threads that wait for tiny operations wait busily: with two threads a small network may need four times the CPU time of
one, and more time by the clock. So the steps of the first trainer are run in turn with all threads and with one, and
the run goes on with the faster number. A step of more than `LONGEST` seconds ends the trial at once, with all threads.
Steps on a GPU are not tried. How many threads compute a sum may change its last bits.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

WARM = 2  # steps before the trial, in which torch allocates and plans
EACH = 5  # steps with either number
LONGEST = 0.02  # seconds; operations of longer steps are worth several threads
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
        yield
        took = self._now() - begin
        self._steps += 1
        if self._steps == 1:
            return
        if took > LONGEST:
            self._choose(self.several)
        elif self._steps > WARM:
            self._took[count].append(took)
            if len(self._took[self.several]) == EACH:
                one, all_of_them = (statistics.median(self._took[n]) for n in (1, self.several))
                self._choose(1 if one <= WORTH * all_of_them else self.several)
                self._say(
                    f"feedline: steps take {one * 1e3:.2g} ms with one thread and {all_of_them * 1e3:.2g} ms with "
                    f"{self.several}: going on with {self.chosen} (--threads N sets another number)"
                )

    def _choose(self, count: int) -> None:
        self.chosen = count
        self._use(count)


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
