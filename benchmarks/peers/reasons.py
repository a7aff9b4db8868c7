"""Why a peer is ahead, where one is: a sentence each, from a profile."""

from __future__ import annotations

_EVICTED = (
    "in the page cache the same gather takes both the same processor time. Evicted, its map is read in pages, of which "
    "the kernel fetches 8 MiB at a time here, so that all 126 MB are in the page cache after the first epoch; our "
    "stores and arrays are read past the page cache, row by row in a whole shuffle, and again in every epoch."
)
_ITEMS = (
    "it calls the items and stacks them, 1.5 us a sample over the bare items; ours takes 2.2 us, of which a tenth of a "
    "batch watches for random numbers that samples draw, and the rest calls items so that one that fails is named."
)

_ARRAYS = (
    "processes that hand over NumPy arrays take the same processor time a sample as ours, within 5 %, and ours ends in "
    "tensors; who gets a core, of the loop, two workers and other programs, decides, by more than this lead (see the "
    "spread)."
)

#: By workload, peer and number of workers; None stands for any number.
REASONS: dict[tuple[str, str, int | None], str] = {
    ("dense", "torch DataLoader", 0): _EVICTED,
    ("dense", "StatefulDataLoader", 0): _EVICTED,
    ("dense", "torchdata.nodes", None): _EVICTED,
    ("dense", "SPDL", None): _EVICTED,
    ("resume", "Grain", 0): (
        "both take 10 ms of processor time or less, mostly for calling things for the first time; in one profile of "
        "ours, half went into comparing the dataset with the state, and setting up generators of random numbers."
    ),
    ("tiny", "torch DataLoader", 2): _ARRAYS,
    ("tiny", "torchdata.nodes", 2): _ARRAYS,
    ("tiny", "torchdata.nodes", 0): _ITEMS,
    ("tiny", "torch DataLoader", 0): _ITEMS,
    ("tiny", "StatefulDataLoader", 0): _ITEMS,
}


def reason(workload: str, peer: str, workers: int) -> str:
    """The sentence for a line of the table; empty: there is none yet."""
    return REASONS.get((workload, peer, workers)) or REASONS.get((workload, peer, None)) or ""
