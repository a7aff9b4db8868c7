"""Pushes of single keys are collected, which changes only their duration."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from feedline.kvstore import create, dist  # noqa: E402
from tests.effort import examples  # noqa: E402
from tests.ranks import Job, run, say  # noqa: E402

KEYS = {"a": (3, 4), "b": (5,), "c": (), "d": (7, 2), "e": (0, 3), "f": (400,)}


def script(seed, world):
    """Draw pushes of one key, the same for all workers, with their values, and each worker's action after them."""
    rng = np.random.default_rng(seed)
    steps = []
    for _ in range(40):
        key = str(rng.choice(list(KEYS)))
        values = []
        for _ in range(world):
            # Sums of these are exact, in any order.
            value = torch.from_numpy(np.asarray(rng.integers(-64, 64, KEYS[key]) / 8, dtype="f4"))
            kind = rng.choice(["dense", "dense", "dense", "rows", "nothing"])
            if kind == "rows" and len(KEYS[key]) > 1 and KEYS[key][0]:
                ids = torch.from_numpy(rng.integers(0, KEYS[key][0], 2))
                value = torch.sparse_coo_tensor(ids[None], value[:2], KEYS[key], check_invariants=True)
            values.append(None if kind == "nothing" else value)
        if all(value is None for value in values):
            values[0] = torch.zeros(KEYS[key])
        together = str(rng.choice(["", "", "", "", "sgd", "assign", "barrier", "all"]))
        # Each worker may choose among these.
        apart = [str(rng.choice(["", "", "pull", "rows"])) for _ in range(world)]
        steps.append((key, values, int(rng.integers(-9, 2)), together, apart))
    return steps


def follow(store, steps, worker, world):
    """Return the values that a worker pulled. ``worker`` None: all values after each step, with all workers' pushes."""
    for k, (key, shape) in enumerate(KEYS.items()):
        store.init(key, torch.full(shape, float(k)))
    pulled = []
    for key, values, priority, together, apart in steps:
        if together == "sgd":
            store.set_optimizer("sgd", learning_rate=0.5, momentum=0.5)
        elif together == "assign":
            store.set_updater(None)
        elif together == "barrier":
            store.barrier()
        elif together == "all":
            ones = [torch.ones(shape) for shape in KEYS.values()]
            store.push(list(KEYS), [[one] * world for one in ones] if worker is None else ones)
        if worker is None:
            store.push(key, [value for value in values if value is not None])
        else:
            store.push(key, values[worker], priority)
        now = {}
        for name, shape in KEYS.items():
            if worker is None or (apart[worker] == "pull" and name != "b"):
                store.pull(name, out := torch.full(shape, 99.0))
                now[name] = out.tolist()
        if worker is not None and apart[worker] == "rows":
            store.row_sparse_pull("d", out := torch.empty(2, 2), torch.tensor([6, 0]))
            now["rows"] = out.tolist()
        pulled.append(now)
    return pulled


def follows(rank, seeds, world, limit):
    dist.BUCKET_BYTES = limit
    results = []
    for seed in seeds:
        with create("dist_sync") as store:
            results.append(follow(store, script(seed, world), rank, world))
    return results


@pytest.mark.parametrize("limit", [100, 1 << 30])
@pytest.mark.parametrize("world", [2, 3])
def test_a_pull_sees_exactly_the_pushes_before_it(world, limit):
    """Law: wherever a worker pulls, it gets the values of one store that has got all pushes so far."""
    seeds = list(range(examples(3)))
    for k, by_seed in enumerate(zip(*run(follows, world, seeds=seeds, world=world, limit=limit), strict=True)):
        alone = follow(create("local"), script(seeds[k], world), None, world)
        for rank_pulls in by_seed:
            for now, everything in zip(rank_pulls, alone, strict=True):
                rows = now.pop("rows", None)
                assert now == {name: everything[name] for name in now}
                if rows is not None:
                    assert rows == [everything["d"][6], everything["d"][0]]


def exchanges(rank, count):
    """Return the number of exchanges to push and pull ``count`` keys one by one, twice."""
    store = create("dist_sync")
    for key in range(count):
        store.init(key, torch.zeros(10))
    counts = []
    for step in range(3):
        begun, values = (
            store.ranks.heartbeat.round,
            [torch.full((10,), float(step + key + rank)) for key in range(count)],
        )
        for key, value in enumerate(values):
            store.push(key, value, priority=-key)
            value.fill_(99)  # pushed values were copied
        for key in range(count):
            store.pull(key, out := torch.empty(10), priority=-key)
            assert out.tolist() == [2.0 * (step + key) + 1] * 10
        counts.append(store.ranks.heartbeat.round - begun)
    return counts


def test_key_by_key_takes_as_many_exchanges_as_one_call():
    assert run(exchanges, 2, count=20) == [[2, 2, 2]] * 2


def other_keys(rank):
    store = create("dist_sync")
    for key in "abc":
        store.init(key, torch.zeros(2))
    store.push("a", torch.ones(2))
    store.push("b" if rank else "c", torch.ones(2))
    try:
        store.pull("a", torch.empty(2))
    except Exception as error:
        say((type(error).__name__, str(error)))
    for key in "abc":
        store.push(key, torch.ones(2))
    outs = [torch.empty(2) for _ in "abc"]
    for key, out in zip("abc", outs, strict=True):
        store.pull(key, out)
    return [out.tolist() for out in outs]


def test_workers_that_push_other_keys_get_an_error_with_the_keys_and_go_on():
    with Job(other_keys, 2) as job:
        for kind, text in job.results():
            assert kind == "StoreError"
            assert "rank 0: push 'a', 'c'" in text
            assert "rank 1: push 'a', 'b'" in text
        assert job.results() == [[[2.0, 2.0]] * 3] * 2


def refused(rank):
    store = create("dist_sync")
    store.init("a", torch.zeros(2))
    store.init("b", torch.zeros(2))
    store.push("a", torch.ones(2))
    with pytest.raises(ValueError, match="key 'b'"):
        store.push("b", torch.ones(3))
    store.push("b", torch.ones(2))
    store.pull("a", out := torch.empty(2))
    return out.tolist()


def test_what_is_wrong_with_a_push_is_found_at_the_push():
    assert run(refused, 2) == [[2.0, 2.0]] * 2
