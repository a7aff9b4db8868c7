"""A worker process of the tests of ``dist_async``: ``python -m tests.kvstore.async_worker WHAT NAME``; prints JSON."""

from __future__ import annotations

import json
import os
import sys
import time

import torch

import feedline as fl


def joins(name):
    """Join as rank 0, and return the reason for the refusal."""
    try:
        fl.kvstore.create("dist_async", name=name, rank=0).close()
    except (fl.StoreError, fl.kvstore.RefusedError) as error:
        return {"kind": type(error).__name__, "error": str(error)}
    return {"kind": None}


def waits(name):
    """Hold a store in a private Ray until killed; print the ids of all processes of that Ray."""
    store = fl.kvstore.create("dist_async", name=name)
    store.init("w", torch.zeros(1))
    from feedline.system.descendants import descendants

    folder = os.environ["RAY_AUTH_TOKEN_PATH"].rpartition("/")[0]
    print(json.dumps({"processes": descendants(os.getpid()), "folder": folder}), flush=True)
    while True:
        time.sleep(60)


def shuts_down(name):
    """Shut Ray down under an open store. Return the errors of its methods, and whether they have started a Ray."""
    store = fl.kvstore.create("dist_async", name=name)
    store.init("w", torch.zeros(1))
    ray = sys.modules["ray"]
    ray.shutdown()
    time.sleep(1.5)  # more than the time between heartbeats
    errors = []
    for method in (lambda: store.push("w", torch.ones(1)), store.barrier, store.close, store.close):
        try:
            method()
        except fl.StoreError as error:
            errors.append(str(error))
    return {"errors": errors, "started": ray.is_initialized()}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](sys.argv[2])), flush=True)
