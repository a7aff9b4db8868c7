"""Key-value stores: named arrays to which workers push gradients, and from which they pull weights.

    store = fl.kvstore.create("local")
    store.init("w", torch.zeros(3))
    store.set_optimizer("sgd", learning_rate=0.1)
    store.push("w", [gradient_of_device_0, gradient_of_device_1])
    store.pull("w", weight)

`create` makes a store, `KVStore` is the interface of all, and `register` adds types. Requires torch.
"""

from functools import partial

from feedline.collective.refusal import RefusedError
from feedline.kvstore.base import Key, KVStore, Updater, create, register
from feedline.kvstore.dist import DistStore
from feedline.kvstore.local_store import LocalStore
from feedline.kvstore.optimizers import Optimizer, optimizer, register_optimizer
from feedline.kvstore.parameter_server import AsyncCluster, AsyncStore

register("local", LocalStore)
register("device", lambda: LocalStore("device"))
register("dist_sync", DistStore)
register("dist_device_sync", partial(DistStore, "dist_device_sync"))


register("dist_async", AsyncStore)

__all__ = [
    "AsyncCluster",
    "DistStore",
    "KVStore",
    "Key",
    "LocalStore",
    "Optimizer",
    "RefusedError",
    "Updater",
    "create",
    "optimizer",
    "register",
    "register_optimizer",
]
