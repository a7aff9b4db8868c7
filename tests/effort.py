"""How thoroughly to test: FEEDLINE_EFFORT multiplies the number of trials, 1 unless it is set.

Examples of laws, instants of interrupts and kills, damaged bytes: `make test` tries enough of them to notice planted
defects. ``FEEDLINE_EFFORT=5 make test`` tries five times as many, and `make torture` as many as its time allows.
"""

from __future__ import annotations

import os

EFFORT = float(os.environ.get("FEEDLINE_EFFORT", "1"))


def examples(count):
    """So many examples, times the effort."""
    return max(1, round(count * EFFORT))


def stride(count):
    """Every so-many-th, or more of them the greater the effort."""
    return max(1, round(count / EFFORT))
