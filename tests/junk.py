"""States with something wrong in them, for the law that no state is believed before it was looked at."""

from __future__ import annotations

import copy
import math
from typing import NamedTuple

from hypothesis import strategies as st

DEEP: list = []
for _ in range(2000):
    DEEP = [DEEP]

JUNK = [
    None, True, False, -1, 0, 1, 5, 0.5, -0.5, math.nan, math.inf, 2**53, 2**63 - 1, 2**63, 2**64, 10**400, 10**5000,
    "", "x", "-1", "1", " 12 ", "0x10", "1_0", "f" * 16, "F" * 16, "f" * 17, [], [[]], [0], {}, {"x": 1},
    {"tensor": "x"}, {"list": 3}, DEEP,
]  # fmt: skip


def paths(value, here=()):
    """All places in a state."""
    yield here
    if isinstance(value, dict):
        for key in value:
            yield from paths(value[key], (*here, key))
    elif isinstance(value, list):
        for i, item in enumerate(value[:4]):
            yield from paths(item, (*here, i))


class Change(NamedTuple):
    """One place of a state changed, left out, or doubled. The change is a number, as some values have no ``repr``."""

    path: tuple
    how: str
    junk: int

    def of(self, state):
        """The state with the change."""
        new, junk = copy.deepcopy(state), JUNK[self.junk]
        if not self.path:
            return junk
        *above, last = self.path
        holder = new
        for key in above:
            holder = holder[key]
        if self.how == "leave out":
            del holder[last]
        elif self.how == "replace":
            holder[last] = junk
        elif isinstance(holder, list):
            holder.append(junk)
        else:
            holder[f"{last} too"] = junk
        return new


def changes(state):
    """Strategy of `Change`."""
    how = st.sampled_from(["replace", "replace", "replace", "leave out", "add"])
    return st.builds(Change, st.sampled_from(sorted(paths(state), key=repr)), how, st.integers(0, len(JUNK) - 1))
