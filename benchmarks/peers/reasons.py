"""Why a peer is ahead, where one is: a sentence each, from a profile."""

from __future__ import annotations

_ITEMS = (
    "both call the items and stack them, and the items alone take 0.83 of the peer's time, so that no loader can be "
    "more than 1.2 times ahead; ours also keeps its place, and compares the states of generators before and after each "
    "batch, so that a restart knows the random numbers that samples drew."
)
_ARRAYS = (
    "processes that hand over NumPy arrays take the same processor time a sample as ours, within 5 %, and ours ends in "
    "tensors; who gets a core, of the loop, two workers and other programs, decides, by more than this lead (see the "
    "spread)."
)

_SLEEP = (
    "of what two workers that never wait would deliver, both reach more than nine tenths (see the workload): a few "
    "percent, more or less, are the ends of epochs."
)

#: By workload, peer and number of workers. None is any number.
REASONS: dict[tuple[str, str, int | None], str] = {
    ("resume", "Grain", 0): "both take 10 ms or less, for calling things for the first time.",
    ("many_samples", "Grain", 0): "both take 10 ms or less, for calling things for the first time.",
    ("slow_samples", "Grain", 2): _SLEEP,
    ("tiny", "torch DataLoader", 2): _ARRAYS,
    ("tiny", "torchdata.nodes", 2): _ARRAYS,
    ("tiny", "torchdata.nodes", 0): _ITEMS,
    ("tiny", "torch DataLoader", 0): _ITEMS,
    ("tiny", "StatefulDataLoader", 0): _ITEMS,
}


def reason(workload: str, peer: str, workers: int) -> str:
    """Return the sentence for a line of the table. Empty: there is none yet."""
    return REASONS.get((workload, peer, workers)) or REASONS.get((workload, peer, None)) or ""
