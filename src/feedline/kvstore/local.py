"""Stores within one process: ``local`` keeps what it stores on the CPU, ``device`` where a key's first value lay.

Costs: a push reads each value once and writes the sum once; with an updater the sum goes to a buffer, made at the
first push of a key, and what is stored is copied first, so that a failed updater leaves no trace (the optimizers of
`feedline.kvstore.optimizers` need neither). A pull reads what is stored once for all outs, and `pushpull` saves that
too: values, sum and outs are one pass. All keys of a call share one call of the native kernel. Nothing is allocated in
the steady state, but for gradients of rows and for values on other devices.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from feedline.collective.interrupts import DeferredInterrupt
from feedline.collective.refusal import RefusedError
from feedline.kvstore import merging
from feedline.kvstore import row_sparse as rows
from feedline.kvstore.arguments import checked_key, checked_priority, grouped
from feedline.kvstore.base import Key, KVStore, Updater
from feedline.kvstore.compression import Channel, Compression, compression
from feedline.kvstore.optimizer_states import load_states, save_states
from feedline.kvstore.optimizers import Optimizer, optimizer


class Entry:
    """One key.

    Attributes:
        key: its key.
        place: how many keys were made before it.
        stored: the array, contiguous.
        merged: where sums go before an updater sees them; made when it is first needed.
        spare: what `stored` was before an updater began; made when it is first needed.
        channels: for each value of a push, what compression keeps.
    """

    __slots__ = ("channels", "key", "merged", "place", "spare", "stored")

    def __init__(self, key: Key, place: int, stored: Any) -> None:
        self.key, self.place, self.stored = key, place, stored
        self.merged: Any = None
        self.spare: Any = None
        self.channels: list[Channel] = []


#: Elements up to which two calls of torch cost less than one of the native kernel.
SMALL = 1 << 14
#: A key, and values of one push or outs of one pull.
Group = tuple[Entry, Sequence[Any]]


class LocalStore(KVStore):
    """A store within this process; see `KVStore`.

    Args:
        type: ``local`` or ``device``.
    """

    def __init__(self, type: str = "local") -> None:
        self.type = type
        self._on_cpu = type == "local"
        self._lock = threading.RLock()
        self._entries: dict[Key, Entry] = {}
        self._updater: Updater | None = None
        self._compression: Compression | None = None
        self._plain = True  # neither of the two: a push is a copy
        self._updating = False
        self._closed = False

    # ---- the six verbs --------------------------------------------------------------------------------------

    def init(self, key: Any, value: Any) -> None:
        """See `KVStore`."""
        given = grouped(key, value, "value")
        with self._lock:
            self._check_new(given)
            self._make(given)

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """See `KVStore`."""
        checked_priority(priority)
        with self._lock:
            entry = self._simple(key, value)
            if entry is not None and self._plain and value.dtype is entry.stored.dtype:
                entry.stored.copy_(value)
                return
            self._push(self._values(grouped(key, value, "value")))

    def pull(self, key: Any, out: Any, priority: int = 0) -> None:
        """See `KVStore`."""
        checked_priority(priority)
        with self._lock:
            entry = self._simple(key, out)
            if entry is not None and out.is_contiguous():
                out.copy_(entry.stored)
                return
            self._pull(self._outs(grouped(key, out, "out")))

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """See `KVStore`."""
        checked_priority(priority)
        with self._lock:
            entry = self._simple(key, value)
            if entry is not None and self._plain and value.dtype is entry.stored.dtype:
                if out is None:
                    entry.stored.copy_(value)  # and the values hold the sum already
                    return
                if value.numel() < SMALL and self._simple(key, out) is entry and out.is_contiguous():
                    entry.stored.copy_(value)
                    out.copy_(entry.stored)
                    return
            values = self._values(grouped(key, value, "value"))
            outs = self._outs(grouped(key, value if out is None else out, "out"))
            if self._can_fuse(values, outs):
                merging.run([(given, [e.stored, *to]) for (e, given), (_, to) in zip(values, outs, strict=True)])
            else:
                self._push(values)
                self._pull(outs)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """See `KVStore`."""
        checked_priority(priority)
        given, outs = grouped(key, value, "value"), grouped(key, out, "out")
        with self._lock:
            self._check_new(given)
            for name, tensors in outs.items():
                for tensor in tensors:
                    _check_out(name, tensor, given[name][0].shape)
            self._make(given)
            self._pull([(self._entries[name], tensors) for name, tensors in outs.items()])

    def row_sparse_pull(self, key: Any, out: Any, row_ids: Any, priority: int = 0) -> None:
        """See `KVStore`."""
        checked_priority(priority)
        outs = grouped(key, out, "out")
        ids = _grouped_ids(key, row_ids, outs)
        with self._lock:
            todo = []
            for entry, tensors in self._found(outs):
                if entry.stored.dim() == 0:
                    raise RefusedError(f"expected a key with rows, got {entry.key!r}, which holds one number")
                wanted = [rows.checked_ids(entry.key, one, entry.stored.shape[0]) for one in ids[entry.key]]
                wanted = wanted * len(tensors) if len(wanted) == 1 else wanted
                if len(wanted) != len(tensors):
                    raise RefusedError(
                        f"expected row_ids for {len(tensors)} outs of key {entry.key!r}, or one for all, "
                        f"got {len(wanted)}"
                    )
                for tensor, one in zip(tensors, wanted, strict=True):
                    rows.check_out(entry.key, tensor, one, entry.stored)
                    todo.append((entry.stored, one, tensor))
            for stored, one, tensor in todo:
                rows.pull(stored, one, tensor)

    # ---- who updates ----------------------------------------------------------------------------------------

    def set_updater(self, updater: Updater | None) -> None:
        """See `KVStore`."""
        if updater is not None and not callable(updater):
            raise TypeError(f"expected a function (key, merged, stored), or None, got {updater!r}")
        with self._lock:
            self._check_open()
            self._take_updater(updater)
            self._plain = updater is None and self._compression is None

    def set_optimizer(self, optimizer: str | Optimizer, **parameters: Any) -> None:
        """See `KVStore`."""
        self.set_updater(_rule(optimizer, parameters, self))

    def _take_updater(self, updater: Updater | None) -> None:
        if isinstance(self._updater, Optimizer):
            self._updater.release(self)
        if isinstance(updater, Optimizer):
            updater.hold(self)
        self._updater = updater

    def _before_numbers_change(self) -> None:
        """A number of the optimizer is about to change; pushes before that have been made with the old one."""

    def set_gradient_compression(self, parameters: Mapping[str, Any] | None) -> None:
        """See `KVStore`. Of a ``device`` store alone, as values of a ``local`` one go nowhere."""
        if self._on_cpu:
            raise RefusedError("expected a store of type 'device' for compression, got 'local'")
        chosen = None if parameters is None else compression(parameters)
        with self._lock:
            self._check_open()
            self._compression = chosen
            self._plain = self._updater is None and chosen is None
            for entry in self._entries.values():
                entry.channels = []

    def save_optimizer_states(self, path: str | os.PathLike[str], dump_optimizer: bool = False) -> None:
        """See `KVStore`."""
        with self._lock:
            save_states(path, self._optimizer(), dump_optimizer)

    def load_optimizer_states(self, path: str | os.PathLike[str]) -> None:
        """See `KVStore`."""
        with self._lock:
            load_states(path, self._optimizer(), {key: entry.stored for key, entry in self._entries.items()})

    def is_capable(self, capability: str) -> bool:
        """See `KVStore`. It gives sums unless there is an updater."""
        return super().is_capable(capability) or (capability.lower() == "sum" and self._updater is None)

    def _optimizer(self) -> Optimizer:
        self._check_open()
        if not isinstance(self._updater, Optimizer):
            raise RefusedError("expected a store with an optimizer, got one without; call set_optimizer first")
        return self._updater

    def close(self) -> None:
        """See `KVStore`."""
        with self._lock:
            self._take_updater(None)
            self._entries, self._closed = {}, True

    # ---- checks ---------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise RefusedError("expected an open store, got one that was closed")

    def _simple(self, key: Any, tensor: Any) -> Entry | None:
        """The entry, for the most frequent call of all: one key, one plain tensor of its shape. None: look closer."""
        # 1.0 would be found as 1.
        if type(key) is not int and type(key) is not str:
            return None
        entry = self._entries.get(key)
        if (
            entry is None
            or not isinstance(tensor, torch.Tensor)
            or tensor.shape != entry.stored.shape
            or tensor.layout is not torch.strided
            or tensor.requires_grad
            or self._updating
        ):
            return None
        return entry

    def _found(self, given: Mapping[Key, Sequence[Any]]) -> list[Group]:
        """The entries of keys, in the order in which keys are visited."""
        self._check_open()
        unknown = [key for key in given if key not in self._entries]
        if unknown:
            self._check_kind(unknown[0])
            raise RefusedError(f"expected a key that was initialised, got {unknown[0]!r}; call init first")
        entries = self._entries
        if len(given) < 2:
            order: Iterable[Key] = given
        elif type(next(iter(given))) is int:  # keys of a call are of one kind
            order = sorted(given)
        else:
            order = sorted(given, key=lambda key: entries[key].place)
        return [(entries[key], given[key]) for key in order]

    def _check_kind(self, key: Key) -> None:
        """Raise RefusedError for a str key in a store of int keys, or the other way round."""
        for known in self._entries:
            if type(known) is not type(key):
                kind = type(known).__name__
                raise RefusedError(f"expected a key of type {kind}, as all keys of this store, got {key!r}")
            break

    def _check_new(self, given: Mapping[Key, Sequence[Any]]) -> None:
        self._check_open()
        self._check_idle()
        for key, values in given.items():
            self._check_kind(key)
            if key in self._entries or len(values) > 1:
                again = "is initialised already" if key in self._entries else f"has {len(values)} values"
                raise RefusedError(f"expected one init of each key, with one value, but {key!r} {again}")
            if values[0].layout is not torch.strided:
                rows.check_rows(key, values[0], values[0].shape)

    def _check_idle(self) -> None:
        if self._updating:
            raise RefusedError("expected no push or init from within an updater; change `stored` in place instead")

    def _values(self, given: Mapping[Key, Sequence[Any]]) -> list[Group]:
        """Values of a push, checked."""
        self._check_idle()
        groups = self._found(given)
        for entry, values in groups:
            if len(values) > 1:
                merging.check_sum(entry.key, entry.stored.dtype)
        if self._compression is None and merging.all_like([(e.stored, values) for e, values in groups], True):
            return groups
        strided = torch.strided
        for entry, values in groups:
            stored = entry.stored
            shape, dtype = stored.shape, stored.dtype
            for value in values:
                if value.shape != shape or value.dtype is not dtype:
                    raise RefusedError(
                        f"expected a value of shape {tuple(shape)} and {dtype} for key {entry.key!r}, "
                        f"got {tuple(value.shape)} and {value.dtype}"
                    )
                if value.layout is not strided:
                    if self._compression is not None:
                        raise RefusedError(f"expected dense values under compression, got rows for key {entry.key!r}")
                    rows.check_rows(entry.key, value, shape)
            if self._compression is not None:
                self._compression.check(entry.key, dtype)
        return groups

    def _outs(self, given: Mapping[Key, Sequence[Any]]) -> list[Group]:
        """Outs of a pull, checked."""
        groups = self._found(given)
        if merging.all_like([(e.stored, outs) for e, outs in groups], False):
            return groups
        for entry, outs in groups:
            shape = entry.stored.shape
            for out in outs:
                _check_out(entry.key, out, shape)
        return groups

    # ---- work -----------------------------------------------------------------------------------------------

    def _make(self, given: Mapping[Key, Sequence[Any]]) -> None:
        # Memory may run out on the way: keys appear when all of them are there.
        self._entries.update({entry.key: entry for entry in self._entries_of(given)})

    def _entries_of(self, given: Mapping[Key, Sequence[Any]]) -> list[Entry]:
        """New entries with copies of the values."""
        made = []
        for place, (key, values) in enumerate(given.items(), len(self._entries)):
            value = values[0]
            device = torch.device("cpu") if self._on_cpu else value.device
            stored = torch.empty(value.shape, dtype=value.dtype, device=device)
            if value.layout is torch.strided:
                stored.copy_(value)
            else:
                rows.assign(stored, rows.merged([value], device))
            made.append(Entry(key, place, stored))
        return made

    def _can_fuse(self, values: Sequence[Group], outs: Sequence[Group]) -> bool:
        """Whether a push and a pull can be one pass: of the same keys, dense, and nobody changes the sum."""
        strided = torch.strided
        return (
            self._plain
            and len(values) == len(outs)
            and all([entry is other for (entry, _), (other, _) in zip(values, outs, strict=True)])  # noqa: C419
            and all([value.layout is strided for _, given in values for value in given])  # noqa: C419
            and (len(values) == 1 or _apart(values, outs))
        )

    def _push(self, groups: Sequence[Group]) -> None:
        if self._compression is not None:
            groups = self._sent(groups)
        if self._updater is None:
            with DeferredInterrupt():  # Ctrl-C finds all keys assigned, or none
                jobs = []
                for entry, values in groups:
                    if all([value.layout is torch.strided for value in values]):  # noqa: C419  # faster
                        jobs.append((values, (entry.stored,)))
                    else:
                        self._assign_rows(entry, values)
                merging.run(jobs)
        else:
            self._update(self._merged(groups))
        if self._compression is not None:
            for entry, values in groups:
                for channel in entry.channels[: len(values)]:
                    channel.commit()

    def _pull(self, groups: Iterable[Group]) -> None:
        merging.run([((entry.stored,), outs) for entry, outs in groups])

    def _sent(self, groups: Sequence[Group]) -> list[Group]:
        """The values as they arrive after compression."""
        assert self._compression is not None
        arrived: list[Group] = []
        for entry, values in groups:
            stored = entry.stored
            while len(entry.channels) < len(values):
                entry.channels.append(Channel(self._compression, stored.shape, stored.dtype, stored.device))
            arrived.append((entry, [entry.channels[i].send(value) for i, value in enumerate(values)]))
        return arrived

    def _assign_rows(self, entry: Entry, values: Sequence[Any]) -> None:
        dense = [value for value in values if value.layout is torch.strided]
        total = rows.merged([v for v in values if v.layout is not torch.strided], entry.stored.device)
        if dense:
            merging.run([(dense, (entry.stored,))])
            entry.stored.add_(total)
        else:
            rows.assign(entry.stored, total)

    def _merged(self, groups: Sequence[Group]) -> list[tuple[Entry, Any]]:
        """The sum of each key's values, as an updater sees it."""
        jobs, sums = [], []
        trusted = isinstance(self._updater, Optimizer) and self._updater.cannot_fail
        for entry, values in groups:
            sparse = [value for value in values if value.layout is not torch.strided]
            dense = [value for value in values if value.layout is torch.strided] if sparse else values
            if not dense:
                sums.append((entry, rows.merged(sparse, entry.stored.device)))
            elif trusted and len(values) == 1 and dense[0].device == entry.stored.device:
                sums.append((entry, dense[0]))
            else:
                if entry.merged is None:
                    entry.merged = torch.empty_like(entry.stored)
                sums.append((entry, entry.merged))
                jobs.append((dense, (entry.merged,)))
                if sparse:
                    merging.run([jobs.pop()])
                    entry.merged.add_(rows.merged(sparse, entry.stored.device))
        merging.run(jobs)
        return sums

    def _update(self, sums: Sequence[tuple[Entry, Any]]) -> None:
        """Hand each sum to the updater; after an exception everything is as it was."""
        self._attempt(sums)

    def _attempt(self, sums: Sequence[tuple[Entry, Any]]) -> Callable[[], None]:
        """As `_update`; returns what takes the update back, for as long as there is no other."""
        updater = self._updater
        assert updater is not None
        if isinstance(updater, Optimizer):
            for entry, _ in sums:
                updater.prepare(entry.key, entry.stored)
            if updater.cannot_fail:
                with DeferredInterrupt():  # of a rule that keeps no copies, half would remain
                    self._hand_over(updater, sums)
                return _nothing
        undo = self._kept(updater, sums)
        try:
            self._hand_over(updater, sums)
        except BaseException:
            undo()
            raise
        return undo

    def _hand_over(self, updater: Updater, sums: Sequence[tuple[Entry, Any]]) -> None:
        self._updating = True
        try:
            with torch.no_grad():
                for entry, merged in sums:
                    updater(entry.key, merged, entry.stored)
        finally:
            self._updating = False

    def _kept(self, updater: Updater, sums: Sequence[tuple[Entry, Any]]) -> Callable[[], None]:
        """Copies of what an updater may change; returns what puts them back."""
        rule = updater if isinstance(updater, Optimizer) else None
        states: dict[Key, Any] = {}
        if rule is not None:
            kept = rule.states([entry.key for entry, _ in sums])
            states = {key: ({n: t.clone() for n, t in s.items()}, count) for key, (s, count) in kept.items()}
        for entry, _ in sums:
            if entry.spare is None:
                entry.spare = torch.empty_like(entry.stored)
        merging.run([((entry.stored,), (entry.spare,)) for entry, _ in sums])

        def undo() -> None:
            merging.run([((entry.spare,), (entry.stored,)) for entry, _ in sums])
            if rule is not None:
                rule.set_states(states)

        return undo


def _nothing() -> None:
    """Takes nothing back."""


def _rule(given: str | Optimizer, parameters: Mapping[str, Any], store: KVStore) -> Optimizer:
    """An optimizer without states, for a store."""
    if isinstance(given, str):
        return optimizer(given, **parameters)
    if not isinstance(given, Optimizer):
        raise TypeError(f"expected the name of an optimizer, or a feedline.kvstore.Optimizer, got {given!r}")
    if parameters:
        raise RefusedError(f"expected parameters with a name alone, got {', '.join(parameters)} beside an optimizer")
    given.check_free(store)
    given.forget()
    return given


def _apart(values: Sequence[Group], outs: Sequence[Group]) -> bool:
    """Whether no out of a key is a value of another, which may still have to be read."""
    owners = {value.data_ptr(): entry for entry, given in values for value in given}
    # Of what two keys share, the last one is the owner, and the other one's outs are then not apart.
    return all([owners.get(out.data_ptr(), entry) is entry for entry, to in outs for out in to])  # noqa: C419


def _check_out(key: Key, out: Any, shape: Any) -> None:
    if out.shape != shape or out.layout is not torch.strided:
        kind = "" if out.layout is torch.strided else f" and {out.layout}; row_sparse_pull fills those"
        raise RefusedError(
            f"expected a dense out of shape {tuple(shape)} for key {key!r}, got {tuple(out.shape)}{kind}"
        )
    rows.check_memory(key, out)


def _grouped_ids(key: Any, row_ids: Any, outs: Mapping[Key, Sequence[Any]]) -> dict[Key, list[Any]]:
    """For each key one array of row numbers, or one for each of its outs."""
    if isinstance(key, (list, tuple)):
        if not isinstance(row_ids, (list, tuple)) or len(row_ids) != len(key):
            got = len(row_ids) if isinstance(row_ids, (list, tuple)) else type(row_ids).__name__
            raise RefusedError(f"expected a list of {len(key)} row_ids, one for each key, got {got}")
        found: dict[Key, list[Any]] = {}
        for one, ids in zip(key, row_ids, strict=True):
            found.setdefault(checked_key(one), []).extend(ids if isinstance(ids, (list, tuple)) else [ids])
        return found
    return {name: list(row_ids) if isinstance(row_ids, (list, tuple)) else [row_ids] for name in outs}
