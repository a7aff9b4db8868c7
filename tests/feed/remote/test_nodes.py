"""Several nodes, each with a cache of its own: with lanes they fetch about one copy of the data together."""

from __future__ import annotations

import numpy as np
import pytest

import feedline as fl
from feedline.feed.remote import cache as caches
from tests.feed.remote.test_cache import MIB, rows

NODES, FILES, GROUPS, GROUP_BYTES = 4, 3, 50, 250_000


@pytest.fixture
def files(store):
    for seed in range(FILES):
        store.put(f"b/{seed}.parquet", rows(seed, GROUPS, GROUP_BYTES))
    return sum(len(rows(seed, GROUPS, GROUP_BYTES)) for seed in range(FILES))


@pytest.mark.parametrize(("lanes", "least", "most"), [(16, 1.0, 1.15), (None, 3.9, 4.4)])
def test_lanes_fetch_one_copy_and_shares_by_position_one_for_each_node(
    store, opened, files, tmp_path, monkeypatch, lanes, least, most
):
    """A chunk that an arc's border cuts is read by two nodes; pages at both ends of chunks are rounded."""
    monkeypatch.setattr(caches, "LEAST_BYTES", MIB)
    sources = [
        fl.MinibatchSource(
            opened("*.parquet", cache=tmp_path / str(node), cache_bytes=2 * MIB),
            seed=3,
            shuffle=fl.Window(bytes=8 * MIB),
            max_sweeps=1,
            read_ahead=MIB,
            partition=(node, NODES),
            lanes=lanes,
        )
        for node in range(NODES)
    ]
    store.reset()
    ids = [[minibatch.ids for minibatch in source.minibatches(64)] for source in sources]
    assert sorted(np.concatenate([np.concatenate(part) for part in ids])) == list(range(FILES * GROUPS * 4))
    assert len({len(part) for part in ids}) == 1
    assert least * files <= store.counters().sent_bytes["GET"] <= most * files
