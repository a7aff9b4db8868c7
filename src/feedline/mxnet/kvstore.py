"""`mxnet.kvstore` (`mx.kv`): stores with MXNet's names and behaviour, over `feedline.kvstore`.

`KVStoreBase` is the interface of stores that users write. Its `KVStoreBase.register` puts them into the registry of
`feedline.kvstore`, from which `create` makes all stores.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, ClassVar, NoReturn, TypeVar

import torch

from feedline import kvstore
from feedline.mxnet._names import names_of
from feedline.mxnet._user_rules import as_rule
from feedline.mxnet.base import MXNetError, as_mxnet
from feedline.mxnet.ndarray import NDArray
from feedline.mxnet.ndarray.sparse import RowSparseNDArray, from_dense, from_tensor
from feedline.mxnet.optimizer import Updater

__all__, __getattr__ = names_of(__name__)

#: MXNet's names in addition to ours. MXNet accepted any text that contains one of them, and took any other text as
#: local.
_LEGACY = {
    "local_allreduce_cpu": "local",
    "local_update_cpu": "local",
    "local_allreduce_device": "device",
    "dist": "dist_sync",
    "dist_sync_device": "dist_device_sync",
}

# Stores over other libraries, and the equivalent store here.
_INSTEAD = {"nccl": "device", "horovod": "dist_device_sync", "byteps": "dist_device_sync"}

_log = logging.getLogger("feedline")


def create(name: str = "local") -> KVStoreBase:
    """Create a store by its MXNet name, or the name of a registered class, in any case.

    Raises:
        TypeError: not a str.
        MXNetError: an unknown name.
    """
    if not isinstance(name, str):
        raise TypeError("name must be a string")
    name = name.lower()
    try:
        store: Any = kvstore.create(_LEGACY.get(name, name))
    except ValueError as error:
        if name in _INSTEAD:
            raise MXNetError(f"expected a store without {name}: use {_INSTEAD[name]!r}, which sums by torch") from error
        raise MXNetError(f"{error}, or MXNet's {', '.join(map(repr, _LEGACY))}") from error
    return store if isinstance(store, KVStoreBase) else KVStore(store, name)


_Class = TypeVar("_Class", bound="type[KVStoreBase]")


class KVStoreBase:
    """Interface of stores. A subclass defines `broadcast`, `pushpull`, `is_capable`, ``type``, ``rank`` and
    ``num_workers``."""

    #: Name of the capability to take an optimizer.
    OPTIMIZER: ClassVar[str] = "optimizer"

    @staticmethod
    def register(klass: _Class) -> _Class:
        """Register a class for `create`, under its name in lower case. Usable as a class decorator.

        Raises:
            ValueError: the name is taken.
        """
        assert isinstance(klass, type), f"expected a class, got {klass!r}"
        kvstore.register(klass.__name__.lower(), klass)  # type: ignore[arg-type]
        return klass

    def _lacks(self, member: str) -> NoReturn:
        raise NotImplementedError(f"expected {type(self).__name__} to define {member}")

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Create keys with the values of worker 0, and copy them to ``out``."""
        self._lacks("broadcast")

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Sum the values of each key over devices and workers, and copy the sum to ``out``, or back to the values."""
        self._lacks("pushpull")

    def set_optimizer(self, optimizer: Any) -> None:
        """Set an optimizer as updater."""
        self._lacks("set_optimizer")

    def is_capable(self, capability: str) -> bool:
        """Return whether the store has a capability: `OPTIMIZER` is that `set_optimizer` works."""
        self._lacks("is_capable")

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write the optimizer's states to a file."""
        self._lacks("save_optimizer_states")

    def load_optimizer_states(self, fname: str) -> None:
        """Load the optimizer's states from a file."""
        self._lacks("load_optimizer_states")

    @property
    def type(self) -> str:
        """Name of the store's type."""
        self._lacks("type")

    @property
    def rank(self) -> int:
        """Rank of this worker."""
        self._lacks("rank")

    @property
    def num_workers(self) -> int:
        """Number of workers."""
        self._lacks("num_workers")


@KVStoreBase.register
class TestStore(KVStoreBase):
    """A store of one worker that keeps nothing: `pushpull` sums the values of its call."""

    type, rank, num_workers = "teststore", 0, 1

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Copy the value to each out."""
        for item in out if isinstance(out, list) else [out]:
            value.copyto(item)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Copy the sum of the values to each out, or back to the values."""
        values = value if isinstance(value, list) else [value]
        total = values[0].copy()
        for item in values[1:]:
            total += item.as_in_context(total.context)
        for item in values if out is None else out if isinstance(out, list) else [out]:
            total.copyto(item)

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Return False for an ``"optimizer"``.

        Raises:
            ValueError: another capability.
        """
        if capability.lower() != KVStoreBase.OPTIMIZER:
            raise ValueError(f"expected the capability {KVStoreBase.OPTIMIZER!r}, got {capability!r}")
        return False


class KVStore(KVStoreBase):
    """MXNet's interface to a `feedline.kvstore.KVStore`, with NDArrays as values.

    Raises:
        AssertionError: keys or values of a wrong type or number, as in MXNet.
        MXNetError: the store refused the call.
    """

    def __init__(self, store: kvstore.KVStore, type: str) -> None:
        self._store, self._type = store, type
        self._sparse: dict[Any, bool] = {}  # whether a key is of stype row_sparse
        self._assigns, self._has_optimizer = True, False

    type = property(attrgetter("_type"), doc="Name that the store was created by, in lower case.")
    rank = property(attrgetter("_store.rank"), doc="Rank of this worker.")
    num_workers = property(attrgetter("_store.num_workers"), doc="Number of workers.")

    # ---- keys and values --------------------------------------------------------------------------------------

    def init(self, key: Any, value: Any) -> None:
        """Create keys, each with a copy of its value."""
        pairs = _pairs(key, value)
        with as_mxnet():
            self._store.init(_keys(key), _unwrap(value))
        self._sparse.update({k: isinstance(item, RowSparseNDArray) for k, item in pairs})

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Sum the values of each key, and assign the sum or pass it to the updater."""
        pairs = _pairs(key, value)
        with as_mxnet():
            self._store.push(_keys(key), _unwrap(value), priority)
        if self._assigns:
            dense = {k for k, item in pairs if isinstance(item, NDArray)}
            self._sparse.update({k: k not in dense for k, _ in pairs})

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Copy the stored array to each out. Row-sparse outs are ignored unless ``ignore_sparse=False``."""
        assert out is not None
        pairs = _pairs(key, out)
        dense = [(k, item.tensor) for k, item in pairs if isinstance(item, NDArray)]
        sparse = [(k, item) for k, item in pairs if isinstance(item, RowSparseNDArray)]
        tables = [(k, torch.empty(item.shape, dtype=item._rows.dtype)) for k, item in sparse]
        todo = dense if ignore_sparse else dense + tables
        with as_mxnet():
            self._check_known([k for k, _ in pairs])
            if todo:
                self._store.pull([k for k, _ in todo], [tensor for _, tensor in todo], priority)
        if ignore_sparse:
            for k, _ in sparse:
                _log.info("pull of key %r into a row_sparse array is ignored; use row_sparse_pull", k)
            return
        for (_, item), (_, table) in zip(sparse, tables, strict=True):
            from_dense(table, item.context).copyto(item)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Push, then pull to ``out``, or back to the values."""
        pairs = _pairs(key, value) + ([] if out is None else _pairs(key, out))
        if any(isinstance(item, RowSparseNDArray) for _, item in pairs):
            self.push(key, value, priority)
            self.pull(key, value if out is None else out, priority)
            return
        with as_mxnet():
            self._store.pushpull(_keys(key), _unwrap(value), None if out is None else _unwrap(out), priority)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Create keys, and pull them to ``out``."""
        pairs = _pairs(key, value)
        _pairs(key, out)
        with as_mxnet():
            self._store.broadcast(_keys(key), _unwrap(value), _unwrap(out), priority)
        self._sparse.update({k: isinstance(item, RowSparseNDArray) for k, item in pairs})

    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        """Copy the rows of ``row_ids`` to row-sparse arrays, in ascending order without duplicates."""
        assert out is not None
        assert row_ids is not None
        outs = _pairs(key, out)
        ids = _pairs(key, row_ids)
        if len(ids) == 1 and not isinstance(key, (list, tuple)):
            ids *= len(outs)
        assert len(ids) == len(outs), "the number of row_ids doesn't match the number of values"
        todo = []
        with as_mxnet():
            self._check_known([k for k, _ in outs])
            for (k, item), (_, indices) in zip(outs, ids, strict=True):
                if not isinstance(item, RowSparseNDArray):
                    raise MXNetError(f"expected row_sparse outs for row_sparse_pull, got a dense one for key {k!r}")
                if not self._sparse[k]:
                    raise MXNetError(f"expected a row_sparse key for row_sparse_pull, got {k!r}, a dense one")
                index = torch.unique(indices.tensor.reshape(-1).to(torch.int64))
                rows = torch.empty((len(index), *item.shape[1:]), dtype=item._rows.dtype, device=item._rows.device)
                todo.append((k, item, index, rows))
            keys = [k for k, *_ in todo]
            self._store.row_sparse_pull(keys, [rows for *_, rows in todo], [index for _, _, index, _ in todo], priority)
        for _, item, index, rows in todo:
            item.set(index, rows)

    def _check_known(self, keys: list[Any]) -> None:
        for key in keys:
            if key not in self._sparse:
                raise MXNetError(f"expected a key that was initialised, got {key!r}; call init first")

    # ---- updates ----------------------------------------------------------------------------------------

    def set_updater(self, updater: Callable[[Any, Any, Any], None] | None) -> None:
        """Set ``updater(key, received, stored)``, which changes stored arrays in place at each push. None means that
        pushes assign."""
        if isinstance(updater, Updater):
            self.set_optimizer(updater.optimizer)
            return
        self._assigns, self._has_optimizer = updater is None, False
        with as_mxnet():
            self._store.set_updater(None if updater is None else self._wrap(updater))

    _set_updater = set_updater

    def _wrap(self, updater: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
        def wrapped(key: Any, merged: Any, stored: Any) -> None:
            array: Any = from_tensor(stored)
            if self._sparse[key]:
                array = RowSparseNDArray(None, stored, array.shape, array.context)
            updater(key, from_tensor(merged), array)

        return wrapped

    def set_optimizer(self, optimizer: Any) -> None:
        """Set an optimizer of `mxnet.optimizer`, or its name, as updater."""
        with as_mxnet():
            self._store.set_optimizer(as_rule(optimizer))
        self._assigns, self._has_optimizer = False, True

    def set_gradient_compression(self, compression_params: Mapping[str, Any]) -> None:
        """Compress pushed values."""
        assert isinstance(compression_params, Mapping)
        with as_mxnet():
            self._store.set_gradient_compression(compression_params)

    def is_capable(self, capability: str) -> bool:
        """Return whether the store supports an ``"optimizer"``."""
        return self._store.is_capable(capability)

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write the optimizer's states and, with ``dump_optimizer``, its parameters except ``rescale_grad``.

        MXNet writes ``rescale_grad``, too, which is wrong for another number of workers.
        """
        self._check_optimizer("save")
        with as_mxnet():
            self._store.save_optimizer_states(fname, dump_optimizer)

    def load_optimizer_states(self, fname: str) -> None:
        """Load states written by `save_optimizer_states`. Files of MXNet, which are pickles, are refused."""
        self._check_optimizer("load")
        with as_mxnet():
            self._store.load_optimizer_states(fname)

    def _check_optimizer(self, verb: str) -> None:
        assert self._has_optimizer, f"expected a store with an optimizer whose states to {verb}, got one without"

    def _barrier(self) -> None:
        self._store.barrier()

    barrier = _barrier

    def close(self) -> None:
        """Release all resources."""
        self._store.close()


def _keys(key: Any) -> Any:
    """Convert keys for the store, with MXNet's errors."""
    if isinstance(key, (list, tuple)):
        keys = [_keys(item) for item in key]
        assert len({type(item) for item in keys}) <= 1, f"expected keys of one kind, got {keys}"
        return keys
    assert isinstance(key, (int, str)), f"expected an int or str as key, got {key!r}, of type {type(key)}"
    return key if isinstance(key, str) else int(key)


def _unwrap(value: Any) -> Any:
    """Convert NDArrays, or lists or nested lists of them, for the store."""
    if isinstance(value, (list, tuple)):
        return [_unwrap(item) for item in value]
    return value.coo() if isinstance(value, RowSparseNDArray) else value.tensor


def _pairs(key: Any, value: Any) -> list[tuple[Any, Any]]:
    """Return (key, array) for every array, with MXNet's errors."""
    keys = _keys(key)
    if isinstance(keys, list):
        assert isinstance(value, (list, tuple)), f"expected a list of arrays for a list of keys, got {type(value)}"
        assert len(value) == len(keys), f"expected {len(keys)} values, one for each key, got {len(value)}"
        return [pair for k, item in zip(keys, value, strict=True) for pair in _pairs(k, item)]
    items = value if isinstance(value, (list, tuple)) else [value]
    for item in items:
        assert isinstance(item, (NDArray, RowSparseNDArray)), f"expected an NDArray, got {type(item)}"
    return [(keys, item) for item in items]
