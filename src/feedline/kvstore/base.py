"""The interface of key-value stores, and the registry of their types.

A store holds one array for each key. Workers push values for a key (gradients, mostly) and pull the stored array. A
push sums all values of a key in one call. Then the sum replaces the stored array (the default), or an updater
changes the stored array in place.

Guarantees, for every type of store:

- A push copies: later changes of the pushed arrays do not affect the store.
- Keys, shapes and dtypes are checked before anything changes. A refused call leaves the store as it was.
- An updater's exception reaches the caller, and the store is as it was before the push.
- Keys are visited in one order, whatever their order in a call: int keys ascending, str keys in the order of `init`.
- Stores are thread-safe.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from feedline.collective.refusal import RefusedError

Key = int | str
#: ``f(key, merged, stored)``: changes ``stored`` in place. ``merged`` is valid during the call only.
Updater = Callable[[Any, Any, Any], None]


class KVStore(ABC):
    """Named arrays that workers agree on.

    Methods that take ``key`` and arrays accept these forms:

    - a key (int or str, the same type for all keys of a store) and an array,
    - a key and a list of arrays of one shape, one for each device (a push sums them, a pull fills them all),
    - a list of keys and a list of the same length, each element an array or a list of arrays. Keys may be repeated.

    Arrays are torch tensors on any device, or NumPy arrays. Values may also be row-sparse: ``torch.sparse_coo`` tensors
    whose first dimension is sparse, such as the gradients of embeddings with ``sparse=True``. Calls with a larger
    ``priority`` (int) are sent sooner. It never changes a result.

    Attributes:
        type: name of the store's type in `create`.

    Raises:
        RefusedError: by any method: an unknown key, a shape or dtype that does not fit, or a closed store.
        TypeError: a key or array of a wrong type.
    """

    type: str

    @property
    def rank(self) -> int:
        """Number of this worker, from 0."""
        return 0

    @property
    def num_workers(self) -> int:
        """Number of workers that share the store."""
        return 1

    @abstractmethod
    def init(self, key: Any, value: Any) -> None:
        """Create keys, each with a copy of its value, once for each key. All keys of the call are created, or none."""

    @abstractmethod
    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Sum the values of each key, and assign the sum or pass it to the updater.

        Values have the shape and dtype of the key.
        """

    @abstractmethod
    def pull(self, key: Any, out: Any, priority: int = 0) -> None:
        """Copy the stored array to each out. An out has the shape of the key, and any dtype, to which values are
        cast."""

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Push, then pull to ``out``, or back to the values themselves."""
        self.push(key, value, priority)
        self.pull(key, value if out is None else out, priority)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Create keys, and pull them to ``out``. All workers then hold the values of worker 0."""
        self.init(key, value)
        self.pull(key, out, priority)

    def row_sparse_pull(self, key: Any, out: Any, row_ids: Any, priority: int = 0) -> None:
        """Copy rows of stored arrays.

        Args:
            key: see the class.
            out: for each key a dense array of shape ``row_ids.shape + shape of a row``, which receives the rows in the
                order of ``row_ids``, repetitions included, or a ``torch.sparse_coo`` tensor of the key's shape, which
                receives each row once, ascending. Values are cast to its dtype.
            row_ids: integers of any shape: one array for all outs of a key, or one for each.
            priority: see the class.

        Raises:
            RefusedError: a row number is out of range.
        """
        raise RefusedError(f"expected a store that pulls rows, got one of type {self.type!r}")

    def set_updater(self, updater: Updater | None) -> None:
        """Set the function ``updater(key, merged, stored)``, which changes a stored array in place at each push.

        Args:
            updater: function called once for each key of a push, in the caller's thread. ``merged`` is the sum, to be
                read during the call only (a ``torch.sparse_coo`` tensor where only rows were pushed). ``stored`` is
                the array to change. None means that pushes assign.
        """
        raise RefusedError(f"expected a store with an updater, got one of type {self.type!r}")

    def _set_updater(self, updater: Updater | None) -> None:
        """MXNet's name for `set_updater`."""
        self.set_updater(updater)

    def set_optimizer(self, optimizer: Any, **parameters: Any) -> None:
        """Set an optimizer as updater. Pushed values are its gradients.

        Args:
            optimizer: registered name, or a `feedline.kvstore.Optimizer`.
            **parameters: numbers and flags, such as ``learning_rate=0.1``.
        """
        raise RefusedError(f"expected a store with an optimizer, got one of type {self.type!r}")

    def set_gradient_compression(self, parameters: Mapping[str, Any] | None) -> None:
        """Compress pushed values. See `feedline.kvstore.compression`. None means no compression."""
        raise RefusedError(f"expected a store that compresses, got one of type {self.type!r}")

    def save_optimizer_states(self, path: str | os.PathLike[str], dump_optimizer: bool = False) -> None:
        """Write the states of the optimizer to a file of safetensors and JSON. The file is written completely or not at
        all.

        Args:
            path: path of the file, which is replaced if it exists.
            dump_optimizer: whether to write parameters (learning rate, …) as well, except ``rescale_grad``, which
                depends on the number of workers.
        """
        raise RefusedError(f"expected a store with an optimizer, got one of type {self.type!r}")

    def load_optimizer_states(self, path: str | os.PathLike[str]) -> None:
        """Load the states of a file, and the parameters if it has them. ``rescale_grad`` does not change.

        Raises:
            StateError: the file is damaged, or was written by another optimizer.
        """
        raise RefusedError(f"expected a store with an optimizer, got one of type {self.type!r}")

    def is_capable(self, capability: str) -> bool:
        """Return whether the store has a capability.

        Args:
            capability: ``"optimizer"``: `set_optimizer` works. ``"sum"``: with the present settings, a `pushpull`
                returns the sum of all workers' values to each of them.

        Raises:
            ValueError: an unknown capability.
        """
        lowered = capability.lower()
        if lowered not in ("optimizer", "sum"):
            raise ValueError(f"expected the capability 'optimizer' or 'sum', got {capability!r}")
        return lowered == "optimizer" and type(self).set_optimizer is not KVStore.set_optimizer

    def barrier(self) -> None:  # noqa: B027  # nothing to do in a store of one worker
        """Wait until every worker has arrived. A store of one worker returns at once."""

    def close(self) -> None:  # noqa: B027
        """Release all resources. Idempotent."""

    def __enter__(self) -> KVStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.type!r}: worker {self.rank} of {self.num_workers}>"


def check_updater(updater: Any) -> None:
    """Raise TypeError for an updater that is neither callable nor None."""
    if updater is not None and not callable(updater):
        raise TypeError(f"expected a function (key, merged, stored), or None, got {updater!r}")


_FACTORIES: dict[str, Callable[..., KVStore]] = {}


def register(name: str, factory: Callable[..., KVStore]) -> None:
    """Register a type of store for `create`.

    Args:
        name: name of the type, in lower case.
        factory: function or class called with the options of `create`.

    Raises:
        ValueError: the name is taken, or not in lower case.
    """
    if name != name.lower() or not name:
        raise ValueError(f"expected a name in lower case, got {name!r}")
    if name in _FACTORIES:
        raise ValueError(f"expected a new name, got {name!r}, which is registered already")
    _FACTORIES[name] = factory


def create(type: str = "local", **options: Any) -> KVStore:
    """Create a store.

    Args:
        type: ``local`` merges on the CPU, ``device`` on the device of each key's first value. Or a registered name.
        **options: options of that type of store.

    Raises:
        ValueError: an unknown type.
        TypeError: ``type`` is not a str, or an option is unknown.
    """
    if not isinstance(type, str):
        raise TypeError(f"expected the type of a store as str, got {type!r}")
    if type not in _FACTORIES:
        raise ValueError(f"expected one of {', '.join(map(repr, sorted(_FACTORIES)))}, got {type!r}")
    return _FACTORIES[type](**options)
