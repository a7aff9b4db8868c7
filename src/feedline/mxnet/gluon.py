"""`mxnet.gluon`: `Trainer`, which sums gradients and updates torch parameters through a store.

A step clears the gradients, so that the next ``backward()`` overwrites them, as MXNet's does by default. Losses are
summed, not averaged, before ``backward()``: ``step(batch_size)`` divides.

Each step makes one call to the store, with all parameters. Without a store, or with updates outside it, parameters are
updated on the first device and copied to the others.

As in MXNet the store is created at the first step, after the first ``backward()``: only then do all copies on all
workers get the values of worker 0's first copy. Use the same seed everywhere, so that the copies start equal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from feedline.kvstore import optimizers as rules
from feedline.kvstore.optimizer_states import load_states, save_states
from feedline.mxnet import kvstore as kv
from feedline.mxnet._names import names_of
from feedline.mxnet._user_rules import as_rule
from feedline.mxnet.base import MXNetError, as_mxnet
from feedline.mxnet.ndarray.sparse import from_tensor
from feedline.mxnet.optimizer import Optimizer, create

__all__, __getattr__ = names_of(__name__)

#: Largest number of elements of a parameter that a ``local`` store updates by default.
_LARGE = 16 << 20


class Trainer:
    """Updates parameters from their gradients, over the devices and workers of a store.

    Args:
        params: torch parameters by name (``dict(model.named_parameters())``), which are sorted, or a list of them. With
            several devices, a list of copies for each parameter.
        optimizer: optimizer of `mxnet.optimizer`, or its name.
        optimizer_params: parameters of an optimizer passed by name.
        kvstore: store, or its type. None means no store. A type without ``dist`` creates no store for one device.
        compression_params: see `KVStore.set_gradient_compression`. Ignored without a store.
        update_on_kvstore: whether the store updates. By default it does if it can.

    Raises:
        ValueError: params that are not a list or dict, or optimizer_params with an optimizer object.
        TypeError: a kvstore of another type.
    """

    def __init__(
        self,
        params: Mapping[str, Any] | Sequence[Any],
        optimizer: str | Optimizer | rules.Optimizer,
        optimizer_params: Mapping[str, Any] | None = None,
        kvstore: str | kv.KVStoreBase | None = "device",
        compression_params: Mapping[str, Any] | None = None,
        update_on_kvstore: bool | None = None,
    ) -> None:
        self._names, self._copies = _as_lists(params)
        if isinstance(optimizer, (Optimizer, rules.Optimizer)):
            if optimizer_params:
                raise ValueError("expected optimizer_params only with an optimizer's name, got them with an object")
            self._optimizer: Any = optimizer
        else:
            self._optimizer = create(optimizer, **(optimizer_params or {}))
        self._rule = as_rule(self._optimizer)
        if not (kvstore is None or isinstance(kvstore, (str, kv.KVStoreBase))):
            raise TypeError(f"kvstore must be KVStore, str or None, got {kvstore!r}")
        self._scale = self._optimizer.rescale_grad
        self._kvstore, self._compression, self._update_on_kvstore = kvstore, compression_params, update_on_kvstore
        self._store: kv.KVStoreBase | None = None
        self._tensors: Any = None  # the store, with tensors as values
        self._on_store = False
        self._begun = False

    # ---- learning rate -------------------------------------------------------------------------------------------

    optimizer = property(attrgetter("_optimizer"), doc="The optimizer.")
    learning_rate = property(attrgetter("_optimizer.learning_rate"), doc="Learning rate of the next step.")

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate. With ``dist_sync``, every worker calls it.

        Raises:
            MXNetError: the servers of ``dist_async`` have a copy of the optimizer.
            UserWarning: the optimizer has a scheduler, which determines the learning rate.
        """
        if getattr(self._optimizer, "lr_scheduler", None) is not None:
            raise UserWarning("LRScheduler of the optimizer has already been defined: set its base_lr")
        self._change("learning_rate", lr)

    def _change(self, name: str, value: float) -> None:
        if getattr(self._optimizer, name) == value:
            return
        if self._on_store and self._store is not None and self._store.type == "dist_async":
            raise MXNetError(
                f"expected {name} to stay {getattr(self._optimizer, name)}, as the servers of 'dist_async' have copies "
                f"of the optimizer, got {value}; use 'dist_sync', or update_on_kvstore=False"
            )
        setattr(self._optimizer, name, value)

    # ---- steps ---------------------------------------------------------------------------------------------

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Sum the gradients over devices and workers, and update.

        Args:
            batch_size: number of samples of all workers, by which gradients are divided.
            ignore_stale_grad: whether to skip parameters without a gradient.

        Raises:
            UserWarning: a parameter has no gradient, without ``ignore_stale_grad``. MXNet raises it, too.
            StoreError: a worker is missing.
        """
        self._change("rescale_grad", self._scale / batch_size)
        self._begin()
        used = self._fresh(ignore_stale_grad)
        if self._on_store:
            with as_mxnet():
                self._push_and_pull(self._tensors, used)
        else:
            with self._atomic():
                self._add_up(used)
                self._update(used)
        self._forget(used)

    def _atomic(self) -> contextlib.AbstractContextManager[None]:
        """Make a step atomic for all workers, as Ctrl-C between the sums and the update would leave them unequal."""
        ranks = getattr(self._tensors, "ranks", None)
        return contextlib.nullcontext() if ranks is None else ranks.step()

    def allreduce_grads(self) -> None:
        """Sum the gradients over devices and workers, in place, before `update`. Not allowed if the store updates."""
        self._begin()
        assert not self._on_store, "allreduce_grads() needs a Trainer with update_on_kvstore=False; call step()"
        with self._atomic():
            self._add_up([i for i, copies in enumerate(self._copies) if all(c.grad is not None for c in copies)])

    def update(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Update, as in `step`, from gradients summed by `allreduce_grads`. Not allowed if the store updates."""
        self._change("rescale_grad", self._scale / batch_size)
        self._begin()
        assert not self._on_store, "update() needs a Trainer with update_on_kvstore=False; call step()"
        used = self._fresh(ignore_stale_grad)
        self._update(used)
        self._forget(used)

    def _fresh(self, ignore: bool) -> list[int]:
        """Return the indices of the parameters that have gradients on all devices."""
        stale = [i for i, copies in enumerate(self._copies) if any(copy.grad is None for copy in copies)]
        if stale and not ignore:
            raise UserWarning(
                f"expected gradients of all parameters since the last step, got none for {self._names[stale[0]]!r}; "
                "call backward() on a loss that depends on it, or pass ignore_stale_grad=True"
            )
        skipped = set(stale)
        return [i for i in range(len(self._copies)) if i not in skipped]

    def _push_and_pull(self, store: Any, used: Sequence[int]) -> None:
        gradients = [[copy.grad for copy in self._copies[i]] for i in used]
        weights = [self._copies[i] for i in used]
        if all(gradient.layout is torch.strided for copies in gradients for gradient in copies):
            store.pushpull(used, gradients, weights)
        else:
            store.push(used, gradients)
            store.pull(used, weights)

    def _add_up(self, used: Sequence[int]) -> None:
        if self._store is None:
            return
        gradients = [[copy.grad for copy in self._copies[i]] for i in used]
        for i, copies in zip(used, gradients, strict=True):
            if any(gradient.layout is not torch.strided for gradient in copies):
                raise ValueError(
                    f"expected update_on_kvstore=True for sparse gradients, as of parameter {self._names[i]!r}"
                )
        with as_mxnet():
            self._tensors.pushpull(used, gradients)

    def _update(self, used: Sequence[int]) -> None:
        with as_mxnet(), torch.no_grad():
            for i in used:
                first, *replicas = (copy.detach() for copy in self._copies[i])
                gradient = self._copies[i][0].grad
                self._rule.prepare(i, first)
                self._rule(i, gradient if gradient.layout is torch.strided else gradient.coalesce(), first)
                for replica in replicas:
                    replica.copy_(first)

    def _forget(self, used: Sequence[int]) -> None:
        for i in used:
            for copy in self._copies[i]:
                copy.grad = None

    # ---- store ------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Create the store, once, and set all copies on all workers to worker 0's first one."""
        if self._begun:
            return
        kvstore, several = self._kvstore, len(self._copies[0]) > 1
        if isinstance(kvstore, str):
            self._store = kv.create(kvstore) if several or "dist" in kvstore.lower() else None
        else:
            self._store = kvstore
        self._on_store = self._updates_on_store(self._store)
        store = self._store
        if store is not None:
            self._tensors = store._store if isinstance(store, kv.KVStore) else _OfTensors(store)
            if self._compression:
                if not isinstance(store, kv.KVStore):
                    raise ValueError(f"expected no compression_params with the store {store.type!r}, got some")
                store.set_gradient_compression(self._compression)
            if self._on_store:
                store.set_optimizer(self._rule)
            with as_mxnet():
                keys = list(range(len(self._copies)))
                self._tensors.broadcast(keys, [copies[0] for copies in self._copies], self._copies)
        self._begun = True

    def _updates_on_store(self, store: kv.KVStoreBase | None) -> bool:
        """Return whether the store updates."""
        request, able = self._update_on_kvstore, store is not None and store.is_capable("optimizer")
        if request and not able:
            got = "none" if store is None else repr(store.type)
            raise ValueError(f"expected a store that takes an optimizer for update_on_kvstore=True, got {got}")
        if store is not None and store.type == "dist_async" and request is False:
            raise ValueError("expected update_on_kvstore=True or None with 'dist_async', which sums no gradients")
        if request is None and self._kvstore == "local" and max(copies[0].numel() for copies in self._copies) > _LARGE:
            return False
        return able if request is None else request

    # ---- states ---------------------------------------------------------------------------------------------

    def save_states(self, fname: str) -> None:
        """Write the optimizer's states and parameters, as safetensors and JSON."""
        self._begin()
        if self._on_store:
            assert self._store is not None
            self._store.save_optimizer_states(fname, dump_optimizer=True)
        else:
            save_states(Path(fname), self._rule, True)

    def load_states(self, fname: str) -> None:
        """Load a file written by `save_states`.

        Raises:
            StateError: the file is damaged, or of another optimizer or other shapes.
        """
        self._begin()
        if self._on_store:
            assert self._store is not None
            self._store.load_optimizer_states(fname)
        else:
            with as_mxnet():
                load_states(Path(fname), self._rule, {i: copies[0] for i, copies in enumerate(self._copies)})


class _OfTensors:
    """A store that a user wrote, with tensors as values."""

    def __init__(self, store: kv.KVStoreBase) -> None:
        self._store = store

    def broadcast(self, keys: Sequence[int], values: Sequence[Any], outs: Sequence[Sequence[Any]]) -> None:
        for key, value, copies in zip(keys, values, outs, strict=True):
            self._store.broadcast(key, from_tensor(value.detach()), [from_tensor(copy.detach()) for copy in copies])

    def pushpull(self, keys: Sequence[int], values: Sequence[Sequence[Any]], outs: Any = None) -> None:
        for key, copies, to in zip(keys, values, values if outs is None else outs, strict=True):
            arrays = [from_tensor(copy) for copy in copies]
            self._store.pushpull(key, arrays, out=[from_tensor(copy.detach()) for copy in to])


def _as_lists(params: Any) -> tuple[list[str], list[list[Any]]]:
    """Return the names of parameters, and the copies of each."""
    if isinstance(params, Mapping):
        items: Iterator[tuple[str, Any]] = ((name, params[name]) for name in sorted(params))
    elif isinstance(params, (list, tuple)):
        items = ((str(place), value) for place, value in enumerate(params))
    else:
        raise ValueError(f"expected a list or dict of parameters, got {type(params).__name__}; wrap it in list(...)")
    names, copies = [], []
    for name, value in items:
        names.append(name)
        copies.append(list(value) if isinstance(value, (list, tuple)) else [value])
    if not copies or len({len(value) for value in copies}) != 1 or not copies[0]:
        raise ValueError(f"expected equally many copies of every parameter, got {[len(value) for value in copies]}")
    for name, value in zip(names, copies, strict=True):
        if not all(isinstance(copy, torch.Tensor) for copy in value):
            raise ValueError(f"expected parameter {name!r} to be a torch tensor, or a list of them")
    return names, copies
