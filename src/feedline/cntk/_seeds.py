"""Seeds of initial values, as CNTK gives them out.

Every parameter that is filled by random numbers takes a seed when it is made, not when it is first used. Unless a
script has fixed one, these are 0, 1, 2, … within a process, so that two runs of a script begin alike. With
`set_fixed_random_seed` all of them are that one: parameters of one shape and initializer then begin alike, within a
network and from one network to the next.
"""

from __future__ import annotations

import itertools

SentinelValueForAutoSelectRandomSeed = 2**64 - 3  # CNTK's word for none


class _Seeds:
    """Where the seeds come from."""

    def __init__(self) -> None:
        self.fixed: int | None = None
        self._numbers = itertools.count()

    def next(self) -> int:
        """The seed of a new parameter."""
        return next(self._numbers) if self.fixed is None else self.fixed

    def current(self) -> int:
        """What `next` would return."""
        if self.fixed is not None:
            return self.fixed
        found = next(self._numbers)
        self._numbers = itertools.count(found)
        return found

    def reset(self, value: int) -> None:
        """None is fixed, and the next one is this."""
        self.fixed, self._numbers = None, itertools.count(value)


seeds = _Seeds()


def pass_over(seed: int | None) -> None:
    """What draws by other numbers than CNTK's takes its seed all the same: parameters after it depend on that."""
    if seed in (None, SentinelValueForAutoSelectRandomSeed):
        seeds.next()
