"""A worker process of the tests of ``dist_async``: ``python -m tests.kvstore.async_worker WHAT NAME``; prints JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import torch

import feedline as fl

#: Small and large keys: the last is split over the servers.
SHAPES = {"a": (3,), "b": (), "c": (2, 50_000)}


PUSHES, PAUSE = 100, 0.02


def descend(store):
    """Solve least squares by SGD on this worker's share of the data; return the solution."""
    rng = torch.Generator().manual_seed(store.rank)
    x = torch.randn(400, 5, generator=rng)
    y = x @ torch.arange(5.0)
    w = torch.zeros(5)
    store.broadcast("w", w, out=w)
    store.set_optimizer("sgd", learning_rate=0.05, rescale_grad=1 / 32)
    for step in range(200):
        rows = slice(step * 32 % 384, step * 32 % 384 + 32)
        store.pushpull("w", x[rows].T @ (x[rows] @ w - y[rows]), out=w)
    store.barrier()
    store.pull("w", w)
    return w.tolist()


def prepare(store):
    """The keys of `SHAPES`, and exact sums."""
    store.init(list(SHAPES), [torch.zeros(shape) for shape in SHAPES.values()])
    store.set_optimizer("test")


def push(store, value):
    """Push ``value`` everywhere."""
    store.push(list(SHAPES), [torch.full(shape, float(value)) for shape in SHAPES.values()])


def pulled(store):
    """Return the value of each key, or a list if its elements differ."""
    outs = [torch.empty(shape) for shape in SHAPES.values()]
    store.pull(list(SHAPES), outs)
    return [out.unique().tolist() for out in outs]


def works(name):
    """The second worker of a pair, which dies in the middle of a push."""
    store = fl.kvstore.create("dist_async", name=name, timeout=30)
    descend(store)
    prepare(store)
    for _ in range(PUSHES):
        push(store, 1)
        time.sleep(PAUSE)
    store.barrier()
    print(json.dumps({"rank": store.rank, "lost": store.lost_pushes, "pulled": pulled(store)}), flush=True)
    store.barrier()
    for _ in range(3):
        push(store, 0)
    os.kill(os.getpid(), signal.SIGKILL)


def inherits(name):
    """Take a dead worker's rank, and pull what was learned."""
    with fl.kvstore.create("dist_async", name=name, timeout=30) as store:
        store.init("w", torch.zeros(5))
        prepare(store)
        assert min(pulled(store))[0] >= 2 * PUSHES
        for _ in range(5):
            push(store, 1)


def joins(name):
    """Join as rank 0, and return why it was refused."""
    try:
        fl.kvstore.create("dist_async", name=name, rank=0, timeout=20).close()
    except (fl.StoreError, fl.kvstore.RefusedError, ModuleNotFoundError) as error:
        return {"kind": type(error).__name__, "error": str(error)}
    return {"kind": None}


def without_ray(name):
    """The same, where there is no Ray."""
    import importlib.util

    find = importlib.util.find_spec
    importlib.util.find_spec = lambda package, *rest: None if package == "ray" else find(package, *rest)
    return joins(name)


def waits(name):
    """Hold a store in a private Ray until killed; print the ids of all processes of that Ray."""
    store = fl.kvstore.create("dist_async", name=name)
    store.init("w", torch.zeros(1))
    from feedline.interop.ray_supervisor import descendants

    folder = os.environ["RAY_AUTH_TOKEN_PATH"].rpartition("/")[0]
    print(json.dumps({"processes": descendants(os.getpid()), "folder": folder}), flush=True)
    time.sleep(100)


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](sys.argv[2])), flush=True)
