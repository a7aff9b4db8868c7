"""How do workers agree? Key-value stores: named arrays; gradients are pushed to them, weights are pulled from them.

    store = fl.kvstore.create("local")
    store.init("w", torch.zeros(3))
    store.set_optimizer("sgd", learning_rate=0.1)
    store.push("w", [gradient_of_device_0, gradient_of_device_1])
    store.pull("w", weight)

`create` makes one; `KVStore` says what all of them do, and `register` adds kinds. Needs torch.
"""

from feedline.kvstore.base import Key, KVStore, RefusedError, Updater, create, register
from feedline.kvstore.local import LocalStore
from feedline.kvstore.optimizers import Optimizer, optimizer, register_optimizer

register("local", LocalStore)
register("device", lambda: LocalStore("device"))

__all__ = [
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
