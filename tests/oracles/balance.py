"""Sequences divided among ranks by their work, slow and obvious."""

from __future__ import annotations


def balance(work, ranks, counts=None):
    """Return the rank of each sequence: longest first, each to the rank with the least work that has room."""
    owner = [0] * len(work)
    loads = [0] * ranks
    room = [len(work)] * ranks if counts is None else list(counts)
    for i in sorted(range(len(work)), key=lambda i: (-work[i], i)):
        rank = min((load, rank) for rank, load in enumerate(loads) if room[rank])[1]
        owner[i] = rank
        loads[rank] += work[i]
        room[rank] -= 1
    return owner
