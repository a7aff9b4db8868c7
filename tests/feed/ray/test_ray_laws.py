"""The laws of the loader with workers of Ray: the same items, batches and states as without workers, whatever dies."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import random
import signal
import threading

import pytest

import feedline as fl
from tests.feed.ray.data import Drawing, Sharing, Slow
from tests.laws.items import Augmented, Counting, Killing, Rare, content

# Not imported, as it would read its settings before they are set.
if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed (pip install 'feedline[ray]')", allow_module_level=True)

pytestmark = [
    pytest.mark.frameworks("ray"),
    pytest.mark.slow,
    # Ray's own.
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*worker processes, the number of cores"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork"),
]


HOW = {"batch_size": 8, "shuffle": True, "seed": 5}


def loader_of(dataset, kind, **more):
    workers = {} if kind == "here" else {"num_workers": 2, "workers": kind}
    return fl.DataLoader(dataset, **{**HOW, **workers, **more})


def test_the_same_items_and_states_for_any_workers():
    """Batch by batch for several sweeps, random numbers included: without workers, local ones, and Ray's."""
    with loader_of(Augmented(61), "process") as local, loader_of(Augmented(61), "ray") as ray:
        here = loader_of(Augmented(61), "here")
        for _ in range(3):
            for batches in itertools.zip_longest(here, local, ray):
                expected, *others = (content([batch]) for batch in batches)
                assert others == [expected] * 2
                states = [json.dumps(loader.state_dict()) for loader in (here, local, ray)]
                assert len(set(states)) == 1


def test_the_number_of_workers_changes_within_a_run():
    """Few items draw random numbers, so a worker's guess what has to be seeded is wrong now and then."""
    expected = loader_of(Rare(130), "here")
    with loader_of(Rare(130), "ray") as loader:
        for count in (2, 1):
            loader.num_workers = count
            assert content(loader) == content(expected)
            assert len(loader.stats().workers) == count


@pytest.mark.parametrize(
    ("before", "after", "stop"), [("ray", "here", 5), ("ray", "process", 1), ("process", "ray", 5), ("here", "ray", 1)]
)
def test_a_state_goes_on_under_other_workers(before, after, stop):
    """Another kind of workers, another number, another batch size: the rest of this sweep, and the next one."""
    expected = loader_of(Augmented(61), "here")
    whole = content(expected) + content(expected)
    with loader_of(Augmented(61), before) as first:
        got = content(itertools.islice(iter(first), stop))
        state = json.loads(json.dumps(first.state_dict()))
    more = {} if after == "here" else {"num_workers": 3}
    with loader_of(Augmented(61), after, batch_size=5, **more) as second:
        second.load_state_dict(state)
        got += content(second) + content(second)
    assert got == whole


def test_items_without_batches():
    with loader_of(Augmented(20), "ray", batch_size=None, num_workers=1) as ray:
        got = [(index, numbers.tolist()) for index, numbers in ray]
    assert got == [(index, numbers.tolist()) for index, numbers in loader_of(Augmented(20), "here", batch_size=None)]


# ---- death -------------------------------------------------------------------------------------------


def test_an_item_that_kills_once_changes_nothing(tmp_path):
    expected = content(fl.DataLoader(Augmented(64), batch_size=4, shuffle=True, seed=2))
    data = Killing(64, 33, tmp_path / "killed")
    with fl.DataLoader(data, batch_size=4, shuffle=True, seed=2, num_workers=2, workers="ray") as loader:
        assert content(loader) == expected
        assert data.marker.exists()
        assert sum(worker.restarts for worker in loader.stats().workers) == 1


def test_actors_killed_at_any_moment_lose_and_repeat_nothing():
    """SIGKILL of an actor again and again: the same batches in the same order, each once."""
    rng = random.Random(3)
    expected = loader_of(Slow(96), "here", batch_size=2)
    whole = [content([batch]) for _ in range(3) for batch in expected]
    # Few batches in flight: those of a killed actor have been delivered before the next kill.
    with loader_of(Slow(96), "ray", batch_size=2, prefetch_factor=2) as loader:
        got, killed = [], set()
        for _ in range(3):
            for batch in loader:
                got.append(content([batch]))
                if len(got) % 24 == 3:
                    killed.add(pid := rng.choice([pid for pid in loader.pids if pid]))
                    threading.Timer(rng.uniform(0, 0.01), kill, [pid]).start()
        restarts = sum(worker.restarts for worker in loader.stats().workers)
    assert got == whole
    assert restarts >= len(killed) >= 2  # a successor may not have started when its turn came


def kill(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


# ---- iterable datasets -------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Sharing has no state_dict")
@pytest.mark.parametrize("make", [Counting, Drawing, Sharing])
def test_an_iterable_dataset_is_that_of_local_workers(make):
    """Parts, states and the generators of worker processes; also after a kill, and from a state."""
    pytest.importorskip("torch")
    how = {"batch_size": 4, "seed": 3, "num_workers": 2}
    with (
        fl.DataLoader(make(37), workers="process", **how) as local,
        fl.DataLoader(make(37), workers="ray", **how) as ray,
    ):
        for _ in range(2):
            assert content(ray) == content(local)
        iterator, other = iter(ray), iter(local)
        assert content(itertools.islice(iterator, 3)) == content(itertools.islice(other, 3))
        state = json.loads(json.dumps(ray.state_dict()))
        assert state == local.state_dict()
        for pid in filter(None, ray.pids):
            kill(pid)
        rest = content(other)
        if make is not Drawing:  # a local worker that dies draws its random numbers anew, too
            assert content(iterator) == rest
        with fl.DataLoader(make(37), workers="ray", **how) as restored:
            restored.load_state_dict(state)
            assert content(restored) == rest
