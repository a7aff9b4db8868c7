"""Windows in time: each is its neighbours' samples, for any lengths, chunks, offsets, steps, paddings and stops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline.testing import assert_resumes, sequences_of
from tests.effort import examples

OFFSETS = st.lists(st.integers(-4, 4), min_size=1, max_size=4) | st.builds(
    lambda first, count: list(range(first, first + count)), st.integers(-4, 3), st.integers(1, 6)
)


def window(rows, at, offsets, pad):
    """A window of the rows of one sequence, and its mask."""
    places = [at + offset for offset in offsets]
    present = [0 <= place < len(rows) for place in places]
    near = [rows[min(max(place, 0), len(rows) - 1)] for place in places]
    if pad == "zeros":
        near = [row if there else np.zeros_like(row) for row, there in zip(near, present, strict=True)]
    return np.array(near), present


def windows_of(rows, offsets, every, pad):
    """All windows of one sequence, by stream: position, window and mask."""
    for at in range(0, len(rows[next(iter(offsets))]), every):
        made = {name: window(rows[name], at, steps, pad) for name, steps in offsets.items()}
        if pad != "drop" or all(all(present) for _, present in made.values()):
            yield at, made


def rows_in(lengths, rng):
    count = sum(lengths)
    return {"x": rng.integers(0, 99, (count, 3)).astype(np.float32), "y": np.arange(1, count + 1)}


def in_chunks(rows, lengths, cuts):
    """A corpus of sequences, in several parts."""
    bounds = np.cumsum([0, *lengths])
    edges = sorted({0, len(lengths), *(cut % len(lengths) for cut in cuts)})
    parts = []
    for a, b in itertools.pairwise(edges):
        part = slice(bounds[a], bounds[b])
        offsets = bounds[a : b + 1] - bounds[a]
        parts.append(fl.ArrayDeserializer({k: fl.Value.from_dense(v[part], offsets) for k, v in rows.items()}))
    return fl.Concat(*parts)


def as_rows(rows, lengths, cuts):
    """The same rows as a corpus with one sample for each sequence, cut anywhere."""
    count = sum(lengths)
    streams = {**rows, "episode": np.repeat(np.arange(len(lengths)) % 3, lengths)}
    edges = sorted({0, count, *(cut % count for cut in cuts)})
    return fl.Concat(
        *(fl.ArrayDeserializer({k: v[a:b] for k, v in streams.items()}) for a, b in itertools.pairwise(edges))
    )


def delivered(corpus, names):
    source = fl.MinibatchSource(corpus, max_sweeps=1, shuffle=False)
    sequences = []
    for minibatch in source.minibatches(5):
        columns = [minibatch[name].sequences() for name in names]
        sequences += [dict(zip(names, map(np.ndarray.tolist, row), strict=True)) for row in zip(*columns, strict=True)]
    return sequences


CASES = {
    "lengths": st.lists(st.integers(1, 9), min_size=1, max_size=7),
    "cuts": st.lists(st.integers(0, 60), max_size=3),
    "x": OFFSETS,
    "y": OFFSETS,
    "every": st.integers(1, 4),
    "pad": st.sampled_from(["edge", "zeros", "drop"]),
}


@given(**CASES)
@settings(max_examples=examples(150))
def test_windows_are_their_neighbours(lengths, cuts, x, y, every, pad):
    rows = rows_in(lengths, np.random.default_rng(len(lengths)))
    offsets = {"x": x, "y": y}
    bounds = np.cumsum([0, *lengths])
    expected, alone = [], []
    for first, end in itertools.pairwise(bounds):
        own = list(windows_of({k: v[first:end] for k, v in rows.items()}, offsets, every, pad))
        names = [name for name in offsets if pad != "drop" and any(offsets[name])]
        sequence = {name: [made[name][0].tolist() for _, made in own] for name in offsets}
        sequence |= {f"{name}_present": [made[name][1] for _, made in own] for name in names}
        expected.append(sequence)
        alone += [{name: [samples[i]] for name, samples in sequence.items()} for i in range(len(own))]
    sequences, flat = in_chunks(rows, lengths, cuts), as_rows(rows, lengths, cuts)
    if not alone:
        for make in (
            lambda: fl.TimeWindows(sequences, offsets, every=every, pad=pad),
            lambda: fl.TimeWindows(flat, offsets, within="episode", every=every, pad=pad),
        ):
            with pytest.raises(fl.DataError, match="at least one window"):
                make()
        return
    names = list(expected[0])
    kept = fl.TimeWindows(sequences, offsets, every=every, pad=pad)
    assert delivered(kept, names) == expected
    assert delivered(fl.Frames(kept), names) == alone
    for within in ("episode", lengths):
        corpus = fl.TimeWindows(flat, offsets, within=within, every=every, pad=pad)
        assert delivered(corpus, names) == alone
        assert sum(info.sequences for info in corpus.chunks()) == len(alone)


@given(**CASES, seed=st.integers(0, 99))
@settings(max_examples=examples(20))
def test_they_resume_anywhere(lengths, cuts, x, y, every, pad, seed):
    rows = rows_in(lengths, np.random.default_rng(1))
    flat = as_rows(rows, lengths, cuts)
    try:
        corpus = fl.TimeWindows(flat, {"x": x, "y": y}, within=lengths, every=every, pad=pad)
    except fl.DataError:
        return

    def make():
        return fl.MinibatchSource(corpus, seed=seed, max_sweeps=2)

    assert_resumes(make, sizes=(1, 3, 8))
    once = sequences_of(fl.MinibatchSource(corpus, seed=seed, max_sweeps=1).minibatches(4))
    assert sequences_of(fl.MinibatchSource(corpus, seed=seed, max_sweeps=1).minibatches(3)) == once
