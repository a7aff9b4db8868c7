"""The table of keys of a store: entries, argument checks, sums, updates. The lock of the store guards it.

Costs: a push reads each value once and writes the sum once. With an updater, the sum is written to a buffer, which is
allocated at the first push of a key, and the stored array is copied first so that a failed update can be undone. (The
optimizers of `feedline.kvstore.optimizers` need neither.) A pull reads the stored array once for all outs. All keys of
a call share one call of the native kernel. The steady state allocates nothing, except for row-sparse gradients and
values on other devices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

from feedline.collective.deferred_interrupts import DeferredInterrupt
from feedline.collective.refusal import RefusedError
from feedline.kvstore import merging
from feedline.kvstore import row_sparse as rows
from feedline.kvstore.base import Key, Updater
from feedline.kvstore.call_arguments import group_by_key, plain_key
from feedline.kvstore.compression import Channel, Compression
from feedline.kvstore.optimizers import Optimizer


class Entry:
    """A key and its array.

    Attributes:
        key: the key.
        place: number of keys created before it.
        stored: stored array, contiguous.
        merged: buffer for sums that an updater receives, allocated when first needed.
        spare: copy of `stored` from before an update, allocated when first needed.
        channels: compression channel for each value of a push.
        lone: whether the key was created alone, in buffers that it does not share.
    """

    __slots__ = ("channels", "key", "lone", "merged", "place", "spare", "stored")

    def __init__(self, key: Key, place: int, stored: Any) -> None:
        self.key, self.place, self.stored = key, place, stored
        self.merged: Any = None
        self.spare: Any = None
        self.channels: list[Channel] = []
        self.lone = False


#: An entry, and its values in a push or outs in a pull.
Group = tuple[Entry, Sequence[Any]]


class Table:
    """Entries by key, and their updater. Not thread-safe.

    Args:
        on_cpu: whether arrays are kept on the CPU. Otherwise each is on the device of the first value of its key.

    Attributes:
        entries: entries by key.
        updater: updater that a push calls. None means that a push assigns the sum.
        compression: compression of pushed values, or None.
        updating: whether the updater is running.
        closed: whether the store was closed.
    """

    def __init__(self, on_cpu: bool) -> None:
        self.on_cpu = on_cpu
        self.entries: dict[Key, Entry] = {}
        self.updater: Updater | None = None
        self.compression: Compression | None = None
        self.updating = self.closed = False

    # ---- checks ---------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise RefusedError for a closed store."""
        if self.closed:
            raise RefusedError("expected an open store, got one that was closed")

    def plain_entry(self, key: Any, tensor: Any) -> Entry | None:
        """Return the entry in the most frequent case, one key and one plain tensor of its shape, otherwise None."""
        # 1.0 equals 1, but is not a key.
        if type(key) is not int and type(key) is not str:
            return None
        entry = self.entries.get(key)
        if (
            entry is None
            or not isinstance(tensor, torch.Tensor)
            or tensor.shape != entry.stored.shape
            or tensor.layout is not torch.strided
            or tensor.requires_grad
            or self.updating
        ):
            return None
        return entry

    def groups(self, arrays: Mapping[Key, Sequence[Any]]) -> list[Group]:
        """Return the entries of keys, in the order in which keys are visited."""
        self.check_open()
        return in_order(self.entries, arrays)

    def check_new(self, initial: Mapping[Key, Sequence[Any]], outs: Mapping[Key, Sequence[Any]] | None = None) -> None:
        """Raise RefusedError for keys that cannot be created, and for outs of their broadcast that do not fit."""
        self.check_open()
        self.check_idle()
        for key, values in initial.items():
            check_new_key(self.entries, key, values)
        for key, tensors in (outs or {}).items():
            check_outs(key, tensors, initial[key][0].shape)

    def check_idle(self) -> None:
        """Raise RefusedError while the updater runs."""
        if self.updating:
            raise RefusedError("expected no push or init from within an updater; change `stored` in place instead")

    def values(self, arrays: Mapping[Key, Sequence[Any]]) -> list[Group]:
        """Check the values of a push, and return them by entry."""
        self.check_idle()
        groups = self.groups(arrays)
        for entry, values in groups:
            if len(values) > 1:
                merging.check_sum(entry.key, entry.stored.dtype)
        if self.compression is None and merging.all_like([(e.stored, values) for e, values in groups], True):
            return groups
        for entry, values in groups:
            check_values(entry.key, values, entry.stored, self.compression)
        return groups

    def outs(self, arrays: Mapping[Key, Sequence[Any]]) -> list[Group]:
        """Check the outs of a pull, and return them by entry."""
        groups = self.groups(arrays)
        if merging.all_like([(e.stored, outs) for e, outs in groups], False):
            return groups
        for entry, outs in groups:
            check_outs(entry.key, outs, entry.stored.shape)
        return groups

    # ---- keys -----------------------------------------------------------------------------------------------

    def add(self, entries: Iterable[Entry]) -> None:
        """Add new entries, all at once."""
        self.entries.update({entry.key: entry for entry in entries})

    def entries_of(self, initial: Mapping[Key, Sequence[Any]]) -> list[Entry]:
        """Create entries with copies of the values. `add` adds them."""
        entries = []
        for place, (key, values) in enumerate(initial.items(), len(self.entries)):
            value = values[0]
            device = torch.device("cpu") if self.on_cpu else value.device
            stored = torch.empty(value.shape, dtype=value.dtype, device=device)
            if value.layout is torch.strided:
                stored.copy_(value)
            else:
                rows.assign(stored, rows.sum_rows([value], device))
            entries.append(Entry(key, place, stored))
        return entries

    # ---- pushes and pulls -----------------------------------------------------------------------------------

    @property
    def cannot_fail(self) -> bool:
        """Whether the updater is an optimizer that cannot fail, so that no copy to undo an update is needed."""
        return isinstance(self.updater, Optimizer) and self.updater.cannot_fail

    @property
    def _plain(self) -> bool:
        """Whether a push assigns its sum unchanged."""
        return self.updater is None and self.compression is None

    def push_one(self, key: Any, value: Any) -> bool:
        """Push in the most frequent case, one plain tensor to one key. Return False if this was not possible."""
        entry = self.plain_entry(key, value)
        if entry is None or not self._plain or value.dtype is not entry.stored.dtype:
            return False
        entry.stored.copy_(value)
        return True

    def update_one(self, key: Any, value: Any) -> bool:
        """Push one plain tensor to one key under an optimizer that cannot fail. Return False if this was not
        possible."""
        if not self.cannot_fail or self.compression is not None:
            return False
        entry = self.plain_entry(key, value)
        if entry is None or value.dtype is not entry.stored.dtype or value.device != entry.stored.device:
            return False
        self.update([(entry, value)])
        return True

    def pull_to(self, key: Any, out: Any) -> None:
        """Copy stored arrays to every out."""
        entry = self.plain_entry(key, out)
        if entry is not None and out.is_contiguous():
            out.copy_(entry.stored)
        else:
            self.pull(self.outs(group_by_key(key, out, "out")))

    def pull_rows(self, outs: Mapping[Key, Sequence[Any]], ids: Mapping[Key, Sequence[Any]]) -> None:
        """Copy rows to every out."""
        jobs = [(e.stored, rows.pair_outs(e.key, e.stored, tensors, ids[e.key])) for e, tensors in self.groups(outs)]
        for stored, pairs in jobs:
            for out, row_ids in pairs:
                rows.pull(stored, row_ids, out)

    def can_fuse(self, values: Sequence[Group], outs: Sequence[Group]) -> bool:
        """Return whether a push and a pull can be one pass: same keys, dense values, no updater, no compression."""
        strided = torch.strided
        return (
            self._plain
            and len(values) == len(outs)
            and all([entry is target for (entry, _), (target, _) in zip(values, outs, strict=True)])  # noqa: C419
            and all([value.layout is strided for _, tensors in values for value in tensors])  # noqa: C419
            and (len(values) == 1 or _shares_no_memory(values, outs))
        )

    def push(self, groups: Sequence[Group]) -> None:
        """Sum the values, and assign the sums or pass them to the updater."""
        if self.compression is not None:
            groups = self._compress_values(groups)
        if self.updater is None:
            with DeferredInterrupt():  # Ctrl-C must not leave some keys assigned
                jobs = []
                for entry, values in groups:
                    if all([value.layout is torch.strided for value in values]):  # noqa: C419  # faster
                        jobs.append((values, (entry.stored,)))
                    else:
                        self._assign_rows(entry, values)
                merging.run(jobs)
        else:
            self.update(self._sum_values(groups))
        if self.compression is not None:
            for entry, values in groups:
                for channel in entry.channels[: len(values)]:
                    channel.commit()

    def pull(self, groups: Iterable[Group]) -> None:
        """Copy stored arrays to outs."""
        merging.run([((entry.stored,), outs) for entry, outs in groups])

    def _compress_values(self, groups: Sequence[Group]) -> list[Group]:
        """Return the values as they are after compression and decoding."""
        assert self.compression is not None
        arrived: list[Group] = []
        for entry, values in groups:
            stored = entry.stored
            while len(entry.channels) < len(values):
                entry.channels.append(Channel(self.compression, stored.shape, stored.dtype, stored.device))
            arrived.append((entry, [entry.channels[i].send(value) for i, value in enumerate(values)]))
        return arrived

    def _assign_rows(self, entry: Entry, values: Sequence[Any]) -> None:
        dense = [value for value in values if value.layout is torch.strided]
        total = rows.sum_rows([v for v in values if v.layout is not torch.strided], entry.stored.device)
        if dense:
            merging.run([(dense, (entry.stored,))])
            entry.stored.add_(total)
        else:
            rows.assign(entry.stored, total)

    def _sum_values(self, groups: Sequence[Group]) -> list[tuple[Entry, Any]]:
        """Return the sum of the values of each key, as the updater receives it."""
        jobs, sums, cannot_fail = [], [], self.cannot_fail
        for entry, values in groups:
            sparse = [value for value in values if value.layout is not torch.strided]
            dense = [value for value in values if value.layout is torch.strided] if sparse else values
            if not dense:
                sums.append((entry, rows.sum_rows(sparse, entry.stored.device)))
            elif cannot_fail and len(values) == 1 and dense[0].device == entry.stored.device:
                sums.append((entry, dense[0]))
            else:
                if entry.merged is None:
                    entry.merged = torch.empty_like(entry.stored)
                sums.append((entry, entry.merged))
                jobs.append((dense, (entry.merged,)))
                if sparse:
                    merging.run([jobs.pop()])
                    entry.merged.add_(rows.sum_rows(sparse, entry.stored.device))
        merging.run(jobs)
        return sums

    def update(self, sums: Sequence[tuple[Entry, Any]]) -> Callable[[], None]:
        """Pass each sum to the updater. An exception undoes the whole update.

        Returns:
            A function that undoes the update, valid until the next one.
        """
        updater = self.updater
        assert updater is not None
        if isinstance(updater, Optimizer):
            for entry, _ in sums:
                updater.prepare(entry.key, entry.stored)
            if self.cannot_fail:
                with DeferredInterrupt():  # without copies, an interrupted update could not be undone
                    self._apply(updater, sums)
                return lambda: None
        undo = self._back_up(updater, sums)
        try:
            self._apply(updater, sums)
        except BaseException:
            undo()
            raise
        return undo

    def _apply(self, updater: Updater, sums: Sequence[tuple[Entry, Any]]) -> None:
        self.updating = True
        try:
            with torch.no_grad():
                if isinstance(updater, Optimizer):
                    updater.update_all([(entry.key, merged, entry.stored) for entry, merged in sums])
                else:
                    for entry, merged in sums:
                        updater(entry.key, merged, entry.stored)
        finally:
            self.updating = False

    def _back_up(self, updater: Updater, sums: Sequence[tuple[Entry, Any]]) -> Callable[[], None]:
        """Copy everything that an updater may change. Return a function that restores it."""
        rule = updater if isinstance(updater, Optimizer) else None
        states: dict[Key, Any] = {}
        if rule is not None:
            before = rule.states([entry.key for entry, _ in sums])
            states = {key: ({n: t.clone() for n, t in s.items()}, count) for key, (s, count) in before.items()}
        for entry, _ in sums:
            if entry.spare is None:
                entry.spare = torch.empty_like(entry.stored)
        merging.run([((entry.stored,), (entry.spare,)) for entry, _ in sums])

        def undo() -> None:
            merging.run([((entry.spare,), (entry.stored,)) for entry, _ in sums])
            if rule is not None:
                rule.set_states(states)

        return undo

    # ---- updaters -------------------------------------------------------------------------------------------

    def set_updater(self, updater: Updater | None, owner: Any = None) -> None:
        """Set the updater.

        Args:
            updater: function or optimizer. None means that pushes assign.
            owner: store to notify before a parameter of an optimizer changes. None means this table.
        """
        for rule, method in ((self.updater, Optimizer.release), (updater, Optimizer.hold)):
            if isinstance(rule, Optimizer):
                method(rule, owner or self)
        self.updater = updater

    def _before_numbers_change(self) -> None:
        """Do nothing, as earlier pushes have been applied with the old parameter."""

    def compress(self, compression: Compression | None) -> None:
        """Set the compression of later pushes, and drop residuals."""
        self.compression = compression
        for entry in self.entries.values():
            entry.channels = []

    @property
    def optimizer(self) -> Optimizer:
        """The updater, if it is an optimizer.

        Raises:
            RefusedError: no optimizer is set, or the store is closed.
        """
        self.check_open()
        if not isinstance(self.updater, Optimizer):
            raise RefusedError("expected a store with an optimizer, got one without; call set_optimizer first")
        return self.updater

    def stored(self) -> dict[Key, Any]:
        """Return the stored arrays by key."""
        return {key: entry.stored for key, entry in self.entries.items()}

    def close(self, owner: Any = None) -> None:
        """Drop everything. Idempotent."""
        self.set_updater(None, owner)
        self.entries, self.closed = {}, True


def in_order(entries: Mapping[Key, Any], arrays: Mapping[Key, Sequence[Any]]) -> list[tuple[Any, Sequence[Any]]]:
    """Return the entries of keys, in the order in which keys are visited: ints ascending, strs as they were created.

    Raises:
        RefusedError: an unknown key.
    """
    for key in arrays:
        if key not in entries:
            _check_kind(entries, key)
            raise RefusedError(f"expected a key that was initialised, got {key!r}; call init first")
    order: Iterable[Key] = arrays
    if len(arrays) > 1:
        ints = type(next(iter(arrays))) is int  # keys of a call are of one kind
        order = sorted(arrays) if ints else sorted(arrays, key=lambda key: entries[key].place)
    return [(entries[key], arrays[key]) for key in order]


def check_new_key(existing: Collection[Key], key: Key, values: Sequence[Any]) -> None:
    """Raise RefusedError for a key that cannot be created from these values."""
    _check_kind(existing, key)
    if key in existing or len(values) > 1:
        again = "is initialised already" if key in existing else f"has {len(values)} values"
        raise RefusedError(f"expected one init of each key, with one value, but {key!r} {again}")
    if values[0].layout is not torch.strided:
        rows.check_rows(key, values[0], values[0].shape)


def check_values(key: Key, values: Sequence[Any], like: Any, compression: Compression | None) -> None:
    """Raise RefusedError for pushed values that do not have the shape and dtype of the stored array."""
    shape, dtype, strided = like.shape, like.dtype, torch.strided
    for value in values:
        if value.shape != shape or value.dtype is not dtype:
            raise RefusedError(
                f"expected a value of shape {tuple(shape)} and {dtype} for key {key!r}, "
                f"got {tuple(value.shape)} and {value.dtype}"
            )
        if value.layout is not strided:
            if compression is not None:
                raise RefusedError(f"expected dense values under compression, got rows for key {key!r}")
            rows.check_rows(key, value, shape)
    if compression is not None:
        compression.check(key, dtype)


def _check_kind(existing: Iterable[Key], key: Key) -> None:
    for present in existing:
        if type(present) is not type(key):
            raise RefusedError(f"expected a key of type {type(present).__name__}, like all of this store, got {key!r}")
        break


def _shares_no_memory(values: Sequence[Group], outs: Sequence[Group]) -> bool:
    """Return whether no out of a key shares memory with a value of another key, which may still have to be read."""
    owners = {value.data_ptr(): entry for entry, tensors in values for value in tensors}
    # A value of several keys is assigned to the last one, so outs of the other keys count as sharing its memory.
    return all([owners.get(out.data_ptr(), entry) is entry for entry, to in outs for out in to])  # noqa: C419


def check_outs(key: Key, outs: Sequence[Any], shape: Any) -> None:
    """Raise RefusedError for an out that is sparse or of another shape."""
    for out in outs:
        if out.shape != shape or out.layout is not torch.strided:
            kind = "" if out.layout is torch.strided else f" and {out.layout}; row_sparse_pull fills those"
            raise RefusedError(
                f"expected a dense out of shape {tuple(shape)} for key {key!r}, got {tuple(out.shape)}{kind}"
            )
        rows.check_memory(key, out)


def group_ids_by_key(key: Any, row_ids: Any, outs: Mapping[Key, Sequence[Any]]) -> dict[Key, list[Any]]:
    """Return the arrays of row numbers by key: one, or one for each out."""
    if isinstance(key, (list, tuple)):
        if not isinstance(row_ids, (list, tuple)) or len(row_ids) != len(key):
            got = len(row_ids) if isinstance(row_ids, (list, tuple)) else type(row_ids).__name__
            raise RefusedError(f"expected a list of {len(key)} row_ids, one for each key, got {got}")
        ids_by_key: dict[Key, list[Any]] = {}
        for k, ids in zip(key, row_ids, strict=True):
            ids_by_key.setdefault(plain_key(k), []).extend(ids if isinstance(ids, (list, tuple)) else [ids])
        return ids_by_key
    return {name: list(row_ids) if isinstance(row_ids, (list, tuple)) else [row_ids] for name in outs}
