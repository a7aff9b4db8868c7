"""Python work of a known length. Imports nothing: worker processes that are started afresh import this."""

from __future__ import annotations


def spin(loops: int) -> int:
    """Do Python work in proportion to ``loops``, holding the interpreter. About 27 ns a loop."""
    x = 0
    for i in range(loops):
        x ^= i
    return x
