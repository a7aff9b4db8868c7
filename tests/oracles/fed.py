"""What `feedline.runs.feeding` adds up, sequence by sequence."""

from __future__ import annotations

import itertools


def add_up(minibatches):
    """The JSON of `Fed`, from the lengths of each stream's sequences: a list of (ids, {stream: lengths}, samples)."""
    total = dict.fromkeys(("minibatches", "sequences", "samples", "pairs", "neighbours", "jumps"), 0)
    total["smallest"] = min((samples for _, _, samples in minibatches), default=0)
    total["largest"] = max((samples for _, _, samples in minibatches), default=0)
    streams = {}
    for ids, lengths_of, samples in minibatches:
        total["minibatches"] += 1
        total["sequences"] += len(ids)
        total["samples"] += samples
        for before, after in itertools.pairwise(ids):
            total["pairs"] += 1
            total["neighbours"] += after == before + 1
            total["jumps"] += abs(after - before)
        for name, lengths in lengths_of.items():
            if not lengths:
                continue
            stream = streams.setdefault(name, {"samples": 0, "padded": 0, "lengths": []})
            stream["samples"] += sum(lengths)
            stream["padded"] += max(lengths) * len(lengths)
            for length in lengths:
                k = length.bit_length()
                stream["lengths"] += [0] * (k + 1 - len(stream["lengths"]))
                stream["lengths"][k] += 1
    return {**total, "streams": streams}
