"""Stores within one process: ``local`` keeps arrays on the CPU, ``device`` on the device of a key's first value.

Costs: see `feedline.kvstore.key_table`. A `pushpull` reads values, sums them and writes outs in one pass.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from feedline.collective.refusal import RefusedError
from feedline.kvstore import merging
from feedline.kvstore.base import Key, KVStore, Updater, check_updater
from feedline.kvstore.call_arguments import check_priority, group_by_key
from feedline.kvstore.compression import compression
from feedline.kvstore.key_table import Table, group_ids_by_key
from feedline.kvstore.optimizer_states import load_states, save_states
from feedline.kvstore.optimizers import Optimizer, optimizer_for

#: Largest number of elements for which two torch calls cost less than the native kernel.
SMALL = 1 << 14


class LocalStore(KVStore):
    """A store within this process. See `KVStore`.

    Args:
        type: ``local`` or ``device``.
    """

    def __init__(self, type: str = "local") -> None:
        self.type = type
        self._lock: AbstractContextManager[Any] = threading.RLock()
        self._table = Table(on_cpu=type in ("local", "dist_sync"))

    # ---- overridden by stores of several workers ------------------------------------------------------------

    def _calling(self) -> AbstractContextManager[Any]:
        """Return the context of a call that may change the store."""
        return self._lock

    def _after_pushes(self) -> AbstractContextManager[Any]:
        """Return the context of a call that sees all earlier pushes."""
        return self._lock

    def _create(self, initial: Mapping[Key, Sequence[Any]]) -> None:
        """Create keys after `Table.check_new`."""
        self._table.add(self._table.entries_of(initial))

    # ---- the six verbs --------------------------------------------------------------------------------------

    def init(self, key: Any, value: Any) -> None:
        """See `KVStore`."""
        initial = group_by_key(key, value, "value")
        with self._calling():
            self._table.check_new(initial)
            self._create(initial)

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """See `KVStore`."""
        check_priority(priority)
        with self._lock:
            if not (self._table.push_one(key, value) or self._table.update_one(key, value)):
                self._table.push(self._table.values(group_by_key(key, value, "value")))

    def pull(self, key: Any, out: Any, priority: int = 0) -> None:
        """See `KVStore`."""
        check_priority(priority)
        with self._lock:
            self._table.pull_to(key, out)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """See `KVStore`."""
        check_priority(priority)
        table = self._table
        with self._lock:
            if out is None and table.push_one(key, value):
                return  # a single value is its own sum
            entry = None if out is None else table.plain_entry(key, out)
            if entry is not None and out.numel() < SMALL and out.is_contiguous() and table.push_one(key, value):
                out.copy_(entry.stored)
                return
            values = table.values(group_by_key(key, value, "value"))
            outs = table.outs(group_by_key(key, value if out is None else out, "out"))
            if table.can_fuse(values, outs):
                merging.run([(inputs, [e.stored, *to]) for (e, inputs), (_, to) in zip(values, outs, strict=True)])
            else:
                table.push(values)
                table.pull(outs)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """See `KVStore`."""
        check_priority(priority)
        initial, outs = group_by_key(key, value, "value"), group_by_key(key, out, "out")
        with self._calling():
            self._table.check_new(initial, outs)
            self._create(initial)
            self._table.pull([(self._table.entries[name], tensors) for name, tensors in outs.items()])

    def row_sparse_pull(self, key: Any, out: Any, row_ids: Any, priority: int = 0) -> None:
        """See `KVStore`."""
        check_priority(priority)
        outs = group_by_key(key, out, "out")
        ids = group_ids_by_key(key, row_ids, outs)
        with self._after_pushes():
            self._table.pull_rows(outs, ids)

    # ---- who updates ----------------------------------------------------------------------------------------

    def set_updater(self, updater: Updater | None) -> None:
        """See `KVStore`."""
        check_updater(updater)
        with self._lock:
            self._table.check_open()
            self._table.set_updater(updater)

    def set_optimizer(self, optimizer: str | Optimizer, **parameters: Any) -> None:
        """See `KVStore`."""
        self.set_updater(optimizer_for(optimizer, parameters, self._table))

    def set_gradient_compression(self, parameters: Mapping[str, Any] | None) -> None:
        """See `KVStore`. Only for ``device`` stores, as a ``local`` store sends no values."""
        if self.type == "local":
            raise RefusedError("expected a store of type 'device' for compression, got 'local'")
        encoding = None if parameters is None else compression(parameters)
        with self._lock:
            self._table.check_open()
            self._table.compress(encoding)

    def save_optimizer_states(self, path: str | os.PathLike[str], dump_optimizer: bool = False) -> None:
        """See `KVStore`."""
        with self._after_pushes():
            save_states(path, self._table.optimizer, dump_optimizer)

    def load_optimizer_states(self, path: str | os.PathLike[str]) -> None:
        """See `KVStore`."""
        with self._after_pushes():
            load_states(path, self._table.optimizer, self._table.stored())

    def is_capable(self, capability: str) -> bool:
        """See `KVStore`. It is capable of sums unless an updater is set."""
        return super().is_capable(capability) or (capability.lower() == "sum" and self._table.updater is None)

    def close(self) -> None:
        """See `KVStore`."""
        with self._lock:
            self._table.close()
