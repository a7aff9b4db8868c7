"""What a key-value store does: the interface that all kinds share, and the registry of kinds.

A store holds one array for each key. Workers push what they have for a key (gradients, mostly) and pull what the store
holds. A push adds up all values given for a key in one call, and then either the sum takes the place of what is stored
(ASSIGN, the default) or an updater changes what is stored in place.

Guarantees, for every kind of store:

- a push copies: what is done to the pushed arrays afterwards does not reach the store;
- keys, shapes and dtypes are checked before anything changes; a refused call leaves the store as it was;
- an updater's exception reaches the caller, and the store is as it was before the push;
- keys are visited in one order, whatever the order in the call: int keys ascending, str keys in the order of `init`;
- several threads may use one store.
"""

from __future__ import annotations

import builtins
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from feedline.collective.refusal import RefusedError

Key = int | str
#: ``f(key, merged, stored)``: changes ``stored`` in place; ``merged`` is valid during the call only.
Updater = Callable[[Any, Any, Any], None]


class KVStore(ABC):
    """Named arrays that workers agree on.

    Wherever a method takes ``key`` and arrays, these forms are understood:

    - a key (int or str; one store has keys of one kind) and an array;
    - a key and a list of arrays: one for each device, of one shape; a push adds them up, a pull fills them all;
    - a list of keys and a list as long, each element an array or a list of arrays. A key may come several times.

    Arrays are torch tensors on any device, or NumPy arrays. Values may also be ``torch.sparse_coo`` tensors whose
    first dimension is sparse: rows of the key's array, as embeddings with ``sparse=True`` get for gradients.
    ``priority`` (int) says which of several calls matters first, larger is sooner; it never changes a result.

    Attributes:
        type: the name that `create` knows it by.

    Raises:
        RefusedError: of any method below: a key that is not there, a shape or dtype that does not fit, a closed store.
        TypeError: a key or array of a wrong type.
    """

    type: str

    @property
    def rank(self) -> int:
        """Number of this worker, from 0."""
        return 0

    @property
    def num_workers(self) -> int:
        """How many workers share the store."""
        return 1

    @abstractmethod
    def init(self, key: Any, value: Any) -> None:
        """Make keys, each with a copy of its value; once for each key. All keys of the call are made, or none."""

    @abstractmethod
    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Add up the values of each key, and assign the sum or hand it to the updater.

        Values have the key's shape and dtype.
        """

    @abstractmethod
    def pull(self, key: Any, out: Any, priority: int = 0) -> None:
        """Copy what is stored to each out. Outs have the key's shape, and any dtype: they are cast to it."""

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Push, then pull to ``out``, or back to the values themselves."""
        self.push(key, value, priority)
        self.pull(key, value if out is None else out, priority)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Make keys, and pull them to ``out``: all workers then hold the value of worker 0."""
        self.init(key, value)
        self.pull(key, out, priority)

    def row_sparse_pull(self, key: Any, out: Any, row_ids: Any, priority: int = 0) -> None:
        """Copy chosen rows.

        Args:
            key: as everywhere.
            out: for each key a dense array of shape ``row_ids.shape + shape of a row``, which gets the rows in the
                order asked for, repeated where they were asked for repeatedly; or a ``torch.sparse_coo`` tensor of the
                key's shape, which gets each row once, ascending.
            row_ids: integers of any shape, one array for all outs of a key, or one for each.
            priority: as everywhere.

        Raises:
            RefusedError: a row that the key does not have.
        """
        raise RefusedError(f"expected a store that pulls rows, got one of type {self.type!r}")

    def set_updater(self, updater: Updater | None) -> None:
        """Let ``updater(key, merged, stored)`` change what is stored in place at each push.

        Args:
            updater: called once for each key of a push, in the caller's thread. ``merged`` is the sum, which it may
                read during the call (a ``torch.sparse_coo`` tensor where only rows were pushed); ``stored`` what it
                changes. None: pushes assign again.
        """
        raise RefusedError(f"expected a store with an updater, got one of type {self.type!r}")

    def _set_updater(self, updater: Updater | None) -> None:
        """MXNet's other name for `set_updater`."""
        self.set_updater(updater)

    def set_optimizer(self, optimizer: Any, **parameters: Any) -> None:
        """Let an optimizer change what is stored, with pushes as gradients.

        Args:
            optimizer: a registered name, with its parameters behind; or a `feedline.kvstore.Optimizer`.
            **parameters: numbers and flags, such as ``learning_rate=0.1``.
        """
        raise RefusedError(f"expected a store with an optimizer, got one of type {self.type!r}")

    def set_gradient_compression(self, parameters: Mapping[str, Any] | None) -> None:
        """Send values in fewer bits; see `feedline.kvstore.compression`. None: as they are."""
        raise RefusedError(f"expected a store that compresses, got one of type {self.type!r}")

    def save_optimizer_states(self, path: str | os.PathLike[str], dump_optimizer: bool = False) -> None:
        """Write the optimizer's states to a file, whole or not at all: safetensors and JSON.

        Args:
            path: replaced if there is one.
            dump_optimizer: whether its parameters (learning rate, …) go with them; but never ``rescale_grad``, which
                depends on how many workers push.
        """
        raise RefusedError(f"expected a store with an optimizer, got one of type {self.type!r}")

    def load_optimizer_states(self, path: str | os.PathLike[str]) -> None:
        """Take over the states of a file, and the parameters if it has them; ``rescale_grad`` stays as it is.

        Raises:
            StateError: the file is damaged, or was written by another optimizer.
        """
        raise RefusedError(f"expected a store with an optimizer, got one of type {self.type!r}")

    def is_capable(self, capability: str) -> bool:
        """Whether the store can do something.

        Args:
            capability: ``"optimizer"``: let an optimizer change what is stored; ``"sum"``: let a `pushpull` give every
                worker the sum of what all workers gave, as the store is set now.

        Raises:
            ValueError: another question.
        """
        asked = capability.lower()
        if asked not in ("optimizer", "sum"):
            raise ValueError(f"expected the capability 'optimizer' or 'sum', got {capability!r}")
        return asked == "optimizer" and type(self).set_optimizer is not KVStore.set_optimizer

    def barrier(self) -> None:  # noqa: B027  # nothing is the right thing for a store without others
        """Wait until every worker has arrived; a store of one worker returns at once."""

    def close(self) -> None:  # noqa: B027
        """Release everything; the store cannot be used afterwards. Idempotent."""

    def __enter__(self) -> KVStore:
        return self

    def __exit__(
        self, kind: builtins.type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.type!r}: worker {self.rank} of {self.num_workers}>"


def check_updater(updater: Any) -> None:
    """Raise TypeError for an updater that is neither callable nor None."""
    if updater is not None and not callable(updater):
        raise TypeError(f"expected a function (key, merged, stored), or None, got {updater!r}")


_FACTORIES: dict[str, Callable[..., KVStore]] = {}


def register(name: str, factory: Callable[..., KVStore]) -> None:
    """Let `create` know a kind of store.

    Args:
        name: in lower case.
        factory: called with the options of `create`; a class, mostly.

    Raises:
        ValueError: the name is taken, or not in lower case.
    """
    if name != name.lower() or not name:
        raise ValueError(f"expected a name in lower case, got {name!r}")
    if name in _FACTORIES:
        raise ValueError(f"expected a new name, got {name!r}, which is registered already")
    _FACTORIES[name] = factory


def create(type: str = "local", **options: Any) -> KVStore:
    """Make a store.

    Args:
        type: ``local`` merges on the CPU, ``device`` where each key's first value lies; or a registered name.
        **options: of that kind of store.

    Raises:
        ValueError: no such type; the message lists the known.
        TypeError: ``type`` is no str, or an option is unknown.
    """
    if not isinstance(type, str):
        raise TypeError(f"expected the type of a store as str, got {type!r}")
    if type not in _FACTORIES:
        raise ValueError(f"expected one of {', '.join(map(repr, sorted(_FACTORIES)))}, got {type!r}")
    return _FACTORIES[type](**options)
