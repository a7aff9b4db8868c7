"""Why a peer is ahead, or close behind: a sentence each, from a profile."""

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

_COPY = (
    "both copy each row once, and little else; ours copies in a second thread while the loop goes on, and pays for the "
    "hand-over with processor time."
)
_PYTHON_HERE = "in all of them one core runs the Python of samples, which is more than 0.9 of the time."
_PYTHON = (
    "two cores that run the Python of samples and nothing else would deliver twice what one does without workers; ours "
    "delivers 0.9 of that, next to the loop."
)
_LINK = (
    "the link delivers 10,000 samples a second, so nobody can be more than 1.3 to 1.7 times ahead of the peer; ours is "
    "through 0.1 to 0.2 s after the link: it opens first, and all shards arrive together, last. The peer reads one "
    "after the other, which shuffles less."
)
_SOUND = "opening and decoding a recording takes 340 of 355 us, in the same library for all."
_SHARES = (
    "minibatches of a rank are planned and copied one by one; without ranks they are planned together, in two thirds "
    "of the time."
)

#: By workload, peer and number of workers. None is any number.
REASONS: dict[tuple[str, str, int | None], str] = {
    ("resume", "Grain", 0): "both take 10 ms or less, for calling things for the first time.",
    ("many_samples", "Grain", 0): "both take 10 ms or less, for calling things for the first time.",
    ("dense", "torch DataLoader", 0): _COPY,
    ("python_work", "torch DataLoader", 0): _PYTHON_HERE,
    ("python_work", "torch DataLoader", 2): _PYTHON,
    ("python_work", "StatefulDataLoader", 0): _PYTHON_HERE,
    ("python_work", "StatefulDataLoader", 2): _PYTHON,
    ("python_work", "torchdata.nodes", 0): _PYTHON_HERE,
    ("python_work", "Grain", 0): _PYTHON_HERE,
    ("python_work", "SPDL", 0): _PYTHON_HERE,
    ("slow_samples", "Grain", 2): _SLEEP,
    ("slow_samples", "torch DataLoader", 2): _SLEEP,
    ("slow_samples", "StatefulDataLoader", 2): _SLEEP,
    ("slow_samples", "torchdata.nodes", 2): _SLEEP,
    ("slow_samples", "SPDL", 2): _SLEEP,
    ("remote", "WebDataset", None): _LINK,
    ("hub", "torch DataLoader", 0): _LINK,
    ("hub", "LitData", 0): _LINK,
    ("audio", "torch DataLoader", 0): _SOUND,
    ("audio", "torchdata.nodes", 0): _SOUND,
    ("audio", "HF datasets", 0): _SOUND,
    ("audio", "Grain", 2): _SOUND,
    ("meshes", "torch DataLoader", 0): _SHARES,
    ("meshes", "StatefulDataLoader", 0): _SHARES,
    ("tiny", "torch DataLoader", 2): _ARRAYS,
    ("tiny", "torchdata.nodes", 2): _ARRAYS,
    ("tiny", "torchdata.nodes", 0): _ITEMS,
    ("tiny", "torch DataLoader", 0): _ITEMS,
    ("tiny", "StatefulDataLoader", 0): _ITEMS,
}


def reason(workload: str, peer: str, workers: int) -> str:
    """Return the sentence for a line of the table. Empty: there is none yet."""
    return REASONS.get((workload, peer, workers)) or REASONS.get((workload, peer, None)) or ""
