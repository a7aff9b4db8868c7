"""Seeds of initial values, assigned as in CNTK.

Every parameter with random initial values gets a seed when it is created, not when it is first used. Unless a script
fixes the seed, seeds are 0, 1, 2, … within a process, so that runs of a script are reproducible. With
`set_fixed_random_seed` all parameters get that seed, so parameters with the same shape and initializer get the same
values, within a network and across networks.
"""

from __future__ import annotations

import itertools

SentinelValueForAutoSelectRandomSeed = 2**64 - 3  # CNTK's value for none


class _Seeds:
    """Sequence of seeds."""

    def __init__(self) -> None:
        self.fixed: int | None = None
        self._numbers = itertools.count()

    def next(self) -> int:
        """Return the seed of a new parameter."""
        return next(self._numbers) if self.fixed is None else self.fixed

    def current(self) -> int:
        """Return the next seed without advancing."""
        if self.fixed is not None:
            return self.fixed
        seed = next(self._numbers)
        self._numbers = itertools.count(seed)
        return seed

    def reset(self, value: int) -> None:
        """Unfix the seed, and continue counting from this one."""
        self.fixed, self._numbers = None, itertools.count(value)


seeds = _Seeds()


def rng_seed(seed: int | None) -> dict[str, int | bool]:
    """Return the attributes of a random operation: its seed in CNTK, and whether the script set it."""
    if seed is None or seed == SentinelValueForAutoSelectRandomSeed:
        return {"seed": seeds.next(), "fixed": False}
    return {"seed": int(seed), "fixed": True}
