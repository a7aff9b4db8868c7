"""What a cache keeps: never too much, and no more is fetched than the best that any rule could do, by windows."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from feedline.feed.reading.cache_policy import CachePolicy, runs
from feedline.feed.reading.next_uses import NextUses

CHUNKS, PAGES = 40, 3


def fetched(order, kept_chunks):
    """Pages that are fetched for each chunk in `order`, windows of chunks, by a cache of some chunks."""
    one = SimpleNamespace(key="k", pages=(PAGES + 1) * CHUNKS)
    # There is a page between chunks, so no two share one.
    keeping = CachePolicy(kept_chunks * PAGES, lambda c: [(one, c * (PAGES + 1), c * (PAGES + 1) + PAGES)])
    uses, found = NextUses(CHUNKS), []
    uses.start(lambda: iter(order))
    for window in order:
        for chunk in window.tolist():
            decision = keeping.decide(chunk, uses)
            assert keeping.count <= kept_chunks * PAGES
            found.append(decision.pages)
    assert keeping.peak <= kept_chunks * PAGES
    return found


def best(order, kept_chunks):
    """Chunks that Belady's rule with bypass fetches, chunk by chunk: slow and obvious."""
    flat, kept, count = [c for window in order for c in window.tolist()], set(), 0
    for i, chunk in enumerate(flat):
        later = lambda c, after=i: flat.index(c, after + 1) if c in flat[after + 1 :] else len(flat)  # noqa: E731
        count += chunk not in kept
        kept.add(chunk)
        if len(kept) > kept_chunks:
            kept.remove(max(kept, key=later))
    return count


def next_window(order, number, chunk):
    """Number of the window after `number` that needs a chunk next."""
    return next((k for k in range(number + 1, len(order)) if chunk in order[k]), len(order))


@pytest.mark.parametrize("budget", [10, 30, 60, 110])
def test_drops_only_what_is_needed_later_and_all_of_it_if_that_suffices(budget):
    """Chunks of 1 to 6 pages. Chunks that this window has begun may stay until the next one."""
    rng = np.random.default_rng(budget)
    order = [w for _ in range(5) for w in np.split(rng.permutation(CHUNKS), CHUNKS // 4)]
    size = rng.integers(1, 7, CHUNKS)
    one = SimpleNamespace(key="k", pages=8 * CHUNKS)
    keeping = CachePolicy(budget, lambda c: [(one, 8 * c, 8 * c + int(size[c]))])
    uses, kept = NextUses(CHUNKS), set()
    uses.start(lambda: iter(order))
    for number, window in enumerate(order[: -CHUNKS // 4]):
        begun = set()
        for chunk in window.tolist():
            free = budget - keeping.count
            decision = keeping.decide(chunk, uses)
            begun.add(chunk)
            mine = next_window(order, number, chunk)
            needed = {c: next_window(order, number if c in begun else number - 1, c) for c in kept}
            later = {c for c in kept if needed[c] > mine}
            dropped = {first // 8 for _, first, _ in decision.drops}
            assert dropped <= later
            if chunk not in kept:
                sure, perhaps = (free + sum(size[c] for c in them) >= size[chunk] for them in (later - begun, later))
                assert sure <= decision.keeps <= perhaps
            kept -= dropped
            kept |= {chunk} if decision.keeps else set()
            assert keeping.count == sum(size[c] for c in kept)


@pytest.mark.parametrize("kept_chunks", [0, 1, 7, 20, 39, 40])
def test_fetches_little_more_than_the_best(kept_chunks):
    rng = np.random.default_rng(kept_chunks)
    order = [w for _ in range(6) for w in np.split(rng.permutation(CHUNKS), CHUNKS // 4)]
    pages = fetched(order, kept_chunks)
    assert all(n in (0, PAGES) for n in pages)
    least = best(order, kept_chunks)
    # Within a window of four chunks the rule does not look.
    assert least <= sum(pages) // PAGES <= least + 0.05 * 6 * CHUNKS
    assert sum(pages[:CHUNKS]) == CHUNKS * PAGES


def test_runs_of_a_mask():
    for bits in itertools.product([False, True], repeat=6):
        mask = np.array(bits)
        again = np.zeros(6, np.bool_)
        for a, b in runs(mask):
            assert a < b
            assert again[max(0, a - 1) : b].sum() == 0
            again[a:b] = True
        assert (again == mask).all()
