"""`mxnet.gluon`: `Trainer`, which lets a store add up gradients and update, over parameters of torch.

A step forgets the gradients, so the next ``backward()`` writes them anew, as MXNet's does unless told otherwise. Losses
are summed, not averaged, before ``backward()``: ``step(batch_size)`` divides.

Costs: one call of the store a step, with all parameters. Without a store, or with updates outside it, parameters are
updated on the first device and copied to the others.

As in MXNet the store is made at the first step, behind the first ``backward()``: only then do all copies on all workers
get the first one's values of worker 0. Begin with equal ones, by an equal seed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from feedline.kvstore.optimizer_states import load_states, save_states
from feedline.kvstore.optimizers import Optimizer
from feedline.mxnet import kvstore as kv
from feedline.mxnet._names import explain
from feedline.mxnet.base import MXNetError, as_mxnet
from feedline.mxnet.optimizer import create

__all__ = ["Trainer"]

#: Elements of a parameter above which a ``local`` store does not update unless told to.
_LARGE = 16 << 20


class Trainer:
    """Updates parameters from their gradients, over the devices and workers of a store.

    Args:
        params: torch parameters by name (``dict(model.named_parameters())``), sorted by it, or a list of them; where
            there are several devices, for each parameter a list of its copies.
        optimizer: an optimizer of `mxnet.optimizer`, or its name.
        optimizer_params: its numbers, with a name.
        kvstore: a store or its type; None: none. A type without ``dist`` in it makes no store for one device.
        compression_params: as `KVStore.set_gradient_compression` takes them; without a store nothing travels.
        update_on_kvstore: whether the store updates; None: wherever it can.

    Raises:
        ValueError: params that are no list or dict, or an optimizer together with numbers.
        TypeError: a kvstore that is none.
    """

    def __init__(
        self,
        params: Mapping[str, Any] | Sequence[Any],
        optimizer: str | Optimizer,
        optimizer_params: Mapping[str, Any] | None = None,
        kvstore: str | kv.KVStore | None = "device",
        compression_params: Mapping[str, Any] | None = None,
        update_on_kvstore: bool | None = None,
    ) -> None:
        self._names, self._copies = _listed(params)
        if isinstance(optimizer, Optimizer):
            if optimizer_params:
                raise ValueError("expected optimizer_params with the name of an optimizer alone, not beside an object")
            self._optimizer = optimizer
        else:
            self._optimizer = create(optimizer, **(optimizer_params or {}))
        if not (kvstore is None or isinstance(kvstore, (str, kv.KVStore))):
            raise TypeError(f"kvstore must be KVStore, str or None, got {kvstore!r}")
        self._scale = self._optimizer.rescale_grad
        self._asked, self._compression, self._asked_on = kvstore, compression_params, update_on_kvstore
        self._store: kv.KVStore | None = None
        self._on_store = False
        self._begun = False

    # ---- the rate -------------------------------------------------------------------------------------------

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer."""
        return self._optimizer

    @property
    def learning_rate(self) -> float:
        """Of the next step."""
        return self._optimizer.learning_rate

    def set_learning_rate(self, lr: float) -> None:
        """Go on at another rate; on every worker of ``dist_sync``.

        Raises:
            MXNetError: the servers of ``dist_async`` have the optimizer.
        """
        self._change("learning_rate", lr)

    def _change(self, name: str, value: float) -> None:
        if getattr(self._optimizer, name) == value:
            return
        if self._on_store and self._store is not None and self._store.type == "dist_async":
            raise MXNetError(
                f"expected no other {name} once the servers of 'dist_async' have the optimizer, got {value} after "
                f"{getattr(self._optimizer, name)}; use 'dist_sync', or update_on_kvstore=False"
            )
        setattr(self._optimizer, name, value)

    # ---- a step ---------------------------------------------------------------------------------------------

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Add up the gradients over devices and workers, and update.

        Args:
            batch_size: what gradients are divided by: samples of all workers.
            ignore_stale_grad: leave parameters without a gradient as they are.

        Raises:
            UserWarning: a parameter has no gradient, unless that is to be ignored. As in MXNet, it is raised.
            StoreError: a worker is missing.
        """
        self._change("rescale_grad", self._scale / batch_size)
        self._begin()
        used = self._fresh(ignore_stale_grad)
        if self._on_store:
            assert self._store is not None
            with as_mxnet():
                self._push_and_pull(self._store._store, used)
        else:
            with self._whole():
                self._add_up(used)
                self._update(used)
        self._forget(used)

    def _whole(self) -> contextlib.AbstractContextManager[None]:
        """A step that all workers make or none: Ctrl-C between the sums and the update would leave one behind."""
        ranks = None if self._store is None else getattr(self._store._store, "ranks", None)
        return contextlib.nullcontext() if ranks is None else ranks.step()

    def allreduce_grads(self) -> None:
        """Add up the gradients over devices and workers, in place; `update` follows. Not where the store updates."""
        self._begin()
        assert not self._on_store, "allreduce_grads() needs a Trainer with update_on_kvstore=False; call step()"
        with self._whole():
            self._add_up([i for i, copies in enumerate(self._copies) if all(c.grad is not None for c in copies)])

    def update(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Update from gradients that `allreduce_grads` has added up; as `step`. Not where the store updates."""
        self._change("rescale_grad", self._scale / batch_size)
        self._begin()
        assert not self._on_store, "update() needs a Trainer with update_on_kvstore=False; call step()"
        used = self._fresh(ignore_stale_grad)
        self._update(used)
        self._forget(used)

    def _fresh(self, ignore: bool) -> list[int]:
        """Places of the parameters that have gradients on all devices."""
        stale = [i for i, copies in enumerate(self._copies) if any(copy.grad is None for copy in copies)]
        if stale and not ignore:
            raise UserWarning(
                f"expected gradients of all parameters since the last step, {self._names[stale[0]]!r} has none; call "
                "backward() on a loss that depends on it, or pass ignore_stale_grad=True"
            )
        left = set(stale)
        return [i for i in range(len(self._copies)) if i not in left]

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
            self._store._store.pushpull(used, gradients)

    def _update(self, used: Sequence[int]) -> None:
        with as_mxnet(), torch.no_grad():
            for i in used:
                first, *others = (copy.detach() for copy in self._copies[i])
                gradient = self._copies[i][0].grad
                self._optimizer.prepare(i, first)
                self._optimizer(i, gradient if gradient.layout is torch.strided else gradient.coalesce(), first)
                for other in others:
                    other.copy_(first)

    def _forget(self, used: Sequence[int]) -> None:
        for i in used:
            for copy in self._copies[i]:
                copy.grad = None

    # ---- the store ------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Make the store, once, and let all copies on all workers be the first one's of worker 0."""
        if self._begun:
            return
        asked, several = self._asked, len(self._copies[0]) > 1
        if isinstance(asked, str):
            self._store = kv.create(asked) if several or "dist" in asked.lower() else None
        else:
            self._store = asked
        self._on_store = self._where(self._store)
        store = self._store
        if store is not None:
            if self._compression:
                store.set_gradient_compression(self._compression)
            if self._on_store:
                store.set_optimizer(self._optimizer)
            with as_mxnet():
                keys = list(range(len(self._copies)))
                store._store.broadcast(keys, [copies[0] for copies in self._copies], self._copies)
        self._begun = True

    def _where(self, store: kv.KVStore | None) -> bool:
        """Whether the store updates."""
        asked, able = self._asked_on, store is not None and store.is_capable("optimizer")
        if asked and not able:
            got = "none" if store is None else repr(store.type)
            raise ValueError(f"expected a store that takes an optimizer for update_on_kvstore=True, got {got}")
        if store is not None and store.type == "dist_async" and asked is False:
            raise ValueError("expected update_on_kvstore=True or None with 'dist_async', which never adds up")
        if asked is None and self._asked == "local" and max(copies[0].numel() for copies in self._copies) > _LARGE:
            return False
        return able if asked is None else asked

    # ---- states ---------------------------------------------------------------------------------------------

    def save_states(self, fname: str) -> None:
        """Write the optimizer's states and numbers: safetensors and JSON."""
        self._begin()
        if self._on_store:
            assert self._store is not None
            self._store.save_optimizer_states(fname, dump_optimizer=True)
        else:
            save_states(Path(fname), self._optimizer, True)

    def load_states(self, fname: str) -> None:
        """Take over what `save_states` wrote.

        Raises:
            StateError: the file is damaged, of another optimizer or of other shapes.
        """
        self._begin()
        if self._on_store:
            assert self._store is not None
            self._store.load_optimizer_states(fname)
        else:
            with as_mxnet():
                load_states(Path(fname), self._optimizer, {i: copies[0] for i, copies in enumerate(self._copies)})


def _listed(params: Any) -> tuple[list[str], list[list[Any]]]:
    """Names, and for each parameter its copies."""
    if isinstance(params, Mapping):
        items: Iterator[tuple[str, Any]] = ((name, params[name]) for name in sorted(params))
    elif isinstance(params, (list, tuple)):
        items = ((str(place), one) for place, one in enumerate(params))
    else:
        raise ValueError(f"expected a list or dict of parameters, got {type(params).__name__}; wrap it in list(...)")
    names, copies = [], []
    for name, one in items:
        names.append(name)
        copies.append(list(one) if isinstance(one, (list, tuple)) else [one])
    if not copies or len({len(one) for one in copies}) != 1 or not copies[0]:
        raise ValueError(f"expected as many copies of every parameter, got {[len(one) for one in copies]}")
    for name, one in zip(names, copies, strict=True):
        if not all(isinstance(copy, torch.Tensor) for copy in one):
            raise ValueError(f"expected parameter {name!r} to be a tensor of torch, or a list of them")
    return names, copies


def __getattr__(name: str) -> Any:
    raise explain("mxnet.gluon", name)
