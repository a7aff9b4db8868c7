"""Why a peer is ahead, where one is: a sentence each, from a profile."""

from __future__ import annotations

#: By workload, peer and number of workers; None stands for any number.
REASONS: dict[tuple[str, str, int | None], str] = {}


def reason(workload: str, peer: str, workers: int) -> str:
    """The sentence for a line of the table; empty: there is none yet."""
    return REASONS.get((workload, peer, workers)) or REASONS.get((workload, peer, None)) or ""
