"""Python work of a known length. Imports nothing: worker processes that are started afresh import this."""

from __future__ import annotations


def spin(loops: int) -> int:
    """Python work that takes time in proportion, holding the interpreter; about 27 ns a loop."""
    x = 0
    for i in range(loops):
        x ^= i
    return x
