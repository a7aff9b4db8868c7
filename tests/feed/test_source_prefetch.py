"""`MinibatchSource.prefetch`: reading begins, and nothing else changes."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

import feedline as fl

ROWS = np.arange(4000, dtype="f4").reshape(1000, 4)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prefetch")
    fl.write_ctf(str(folder / "data.ctf"), x=ROWS)
    text = str(folder / "data.ctf")
    fl.convert(fl.ArrayDeserializer(x=ROWS), str(folder / "rows.store"))
    return {
        "text": lambda: fl.CTFDeserializer(text, x=fl.Stream(4), chunk_size=2 << 10),
        "store": lambda: fl.StoreDeserializer(str(folder / "rows.store")),
        "arrays": lambda: fl.ArrayDeserializer(x=ROWS),
    }


OPTIONS = [
    {"shuffle": fl.Window(bytes=8 << 10)},
    {"shuffle": False},
    {"order": fl.Arcs(4), "partition": (1, 2)},
    {"partition": (1, 2), "shuffle": fl.Window(bytes=8 << 10)},
    {"read_ahead": 0, "shuffle": fl.Window(bytes=8 << 10)},
    {"truncation_length": 3},
]


@pytest.mark.parametrize("name", ["text", "store", "arrays"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_changes_no_minibatch_and_no_state(corpora, name, options):
    def run(prefetches):
        rng, source = random.Random(3), fl.MinibatchSource(corpora[name](), seed=2, max_sweeps=3, **options)
        delivered, states = [], [source.state_dict()]
        for _ in range(40):
            action = rng.randrange(4)
            if action == 0:
                source.load_state_dict(rng.choice(states))
            elif action == 1 and "truncation_length" not in options:
                source.seek(samples=rng.randrange(3000))
            if prefetches:
                source.prefetch()
                source.prefetch()
            states.append(source.state_dict())
            delivered.append(source.next_minibatch(rng.choice([1, 7, 90])))
        delivered += source.minibatches(64)
        source.prefetch()
        assert not source.next_minibatch(5)
        return [(minibatch["x"].rows.tolist(), minibatch.ids.tolist()) for minibatch in delivered if minibatch], states

    assert run(True) == run(False)


def test_the_window_is_read_before_it_is_needed(corpora):
    source = fl.MinibatchSource(corpora["text"](), shuffle=fl.Window(bytes=8 << 10))
    assert source.stats().chunks_read == 0
    source.prefetch()
    chunks_read(source, 4)
    source.seek(fl.Position(1, 500))
    before = source.stats().chunks_read
    source.prefetch()
    chunks_read(source, before + 4)


def chunks_read(source, least):
    deadline = time.monotonic() + 60
    while source.stats().chunks_read < least and time.monotonic() < deadline:
        time.sleep(0.01)
    assert source.stats().chunks_read >= least


def test_a_closed_source_and_damage(corpora, tmp_path):
    source = fl.MinibatchSource(corpora["text"]())
    source.close()
    with pytest.raises(ValueError, match="expected an open source"):
        source.prefetch()
    (tmp_path / "bad.ctf").write_text("|x 1 2 3 4\n|x 1 2 what 4\n")
    bad = fl.MinibatchSource(fl.CTFDeserializer(str(tmp_path / "bad.ctf"), x=fl.Stream(4)), shuffle=False)
    bad.prefetch()
    with pytest.raises(fl.DataError):
        bad.next_minibatch(10)
