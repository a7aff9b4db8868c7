"""Stores of several processes: ``dist_sync`` keeps what it stores on the CPU, ``dist_device_sync`` on the device.

Every worker has a replica. A push adds up what all workers give for a key, and every replica then assigns the same sum
or makes the same update with it, so replicas stay equal, bit for bit. One call of a method is one round: every worker
is counted once in it, and all of them make the same calls with the same keys, in one order, which is checked; what
they give may differ in number, be rows at one and dense at another, or be nothing (``push(key, None)``).

`init` is a round, too, and what worker 0 gives counts; so are `barrier`, `set_updater`, `set_optimizer` and
`set_gradient_compression`. A `pull` is not: it concerns this worker alone.

Keys are laid out in flat buffers at `init`. A push copies what is given into them and lets them travel; it is waited
for at the next call that needs the outcome, so the caller computes meanwhile. Only with an updater that may fail, as a
plain function may, a push waits at once: its exceptions belong to the push. If it fails on one worker, it fails on all.

What goes wrong is as in `feedline.collective.communicator`: a `StoreError` names the worker that is missing, what is
stored stays as it was, and all workers have to start again.

**Ctrl-C drops nothing.** It comes out of a call at once where that waits for other workers. The call is under way
still: the next one of this store completes it, with the values that were given, before it does anything else. (A note
of the KeyboardInterrupt says so.) What is left in the middle all the same makes the store refuse every further call.

Costs of a push: one small exchange, and the bytes through an all-reduce of each buffer, or of the part of it that the
keys of the call make up; so one call with all keys is much faster than one call a key. With an updater that may fail,
another small exchange. Compressed gradients go to all workers as they are, and rows, too.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from feedline.collective.buckets import laid_out
from feedline.collective.communicator import SUMMED, TIMEOUT, Communicator
from feedline.collective.exchanges import Waiting, checked_count, named
from feedline.collective.interrupts import DeferredInterrupt
from feedline.collective.refusal import RefusedError
from feedline.errors import StoreError
from feedline.kvstore import merging
from feedline.kvstore import row_sparse as rows
from feedline.kvstore.arguments import checked_key, checked_priority, grouped
from feedline.kvstore.base import Key, KVStore, Updater, check_updater
from feedline.kvstore.compression import Channel, compression
from feedline.kvstore.optimizer_states import load_states, save_states
from feedline.kvstore.optimizers import Optimizer, optimizer_for
from feedline.kvstore.table import Entry, Group, Table, grouped_ids

#: What a worker has for a key: dense values, nothing, or at least 0 rows.
DENSE, NOTHING = -1, -2


class DistStore(KVStore):
    """A store of several processes; see the module, and `KVStore`.

    Args:
        type: ``dist_sync`` or ``dist_device_sync``.
        group: a torch.distributed group of the workers; None: see `feedline.collective.communicator.Communicator`.
        address: ``"host:port"`` where worker 0 listens for the others.
        rank: number of this worker, with ``address``.
        num_workers: how many there are, with ``address``.
        timeout: seconds that a worker waits for others.

    Raises:
        RuntimeError: no workers are known.
        StoreError: a worker did not come.
    """

    def __init__(
        self,
        type: str = "dist_sync",
        *,
        group: Any = None,
        address: str | None = None,
        rank: int | None = None,
        num_workers: int | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        self.type = type
        self._table = Table(on_cpu=type == "dist_sync")
        self._ranks = Communicator(group, address=address, rank=rank, count=num_workers, timeout=timeout)
        self._lock = self._ranks.turn  # with one of its own, two threads could wait for each other
        self._ranks.agree(f"create {type!r}")
        #: Sums under way, and whose they are.
        self._travelling: list[tuple[Any, list[Entry]]] = []
        #: What the updater raised in a push that has ended; the next to leave the store raises it.
        self._failed: Exception | None = None
        #: Of the file that the optimizer's states come from.
        self._loaded = ""

    @property
    def rank(self) -> int:
        """Number of this worker, from 0."""
        return self._ranks.rank

    @property
    def num_workers(self) -> int:
        """How many workers share the store."""
        return self._ranks.count

    @property
    def ranks(self) -> Communicator:
        """The workers, for exchanges beside the store's: on all of them in one order with its own."""
        return self._ranks

    # ---- the six verbs --------------------------------------------------------------------------------------

    def init(self, key: Any, value: Any) -> None:
        """See `KVStore`."""
        with self._calling():
            given = grouped(key, value, "value")
            self._table.check_new(given)
            self._make(given)

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """See `KVStore`. ``value`` None: this worker has nothing for these keys."""
        checked_priority(priority)
        with self._calling():
            self._push(self._table.values(_given(key, value)))

    def pull(self, key: Any, out: Any, priority: int = 0) -> None:
        """See `KVStore`."""
        checked_priority(priority)
        with self._lock:
            self._settle()
            self._table.pull_to(key, out)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """See `KVStore`. ``value`` may be None, as for `push`; ``out`` is needed then."""
        checked_priority(priority)
        if value is None and out is None:
            raise TypeError("expected an out where a worker has no value, got None")
        with self._calling():
            values = self._table.values(_given(key, value))
            outs = self._table.outs(grouped(key, value if out is None else out, "out"))
            self._push(values)
            self._settle()
            self._table.pull(outs)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """See `KVStore`."""
        checked_priority(priority)
        given, outs = grouped(key, value, "value"), grouped(key, out, "out")
        with self._calling():
            self._table.check_new(given, outs)
            self._make(given)
            self._table.pull([(self._table.entries[name], tensors) for name, tensors in outs.items()])

    def row_sparse_pull(self, key: Any, out: Any, row_ids: Any, priority: int = 0) -> None:
        """See `KVStore`."""
        checked_priority(priority)
        outs = grouped(key, out, "out")
        ids = grouped_ids(key, row_ids, outs)
        with self._lock:
            self._settle()
            self._table.pull_rows(outs, ids)

    # ---- who updates ----------------------------------------------------------------------------------------

    def set_updater(self, updater: Updater | None) -> None:
        """See `KVStore`. All workers set the same."""
        check_updater(updater)
        what = "a function" if updater is not None else "None"
        if isinstance(updater, Optimizer):
            what = f"{updater.name} {updater.parameters()}"

        async def set_it() -> None:
            await self._arrive()
            await self._ranks.exchanges.meet(f"set the updater to {what}")
            self._table.set_updater(updater, self)
            self._loaded = ""

        with self._calling():
            self._run(set_it())

    def set_optimizer(self, optimizer: str | Optimizer, **parameters: Any) -> None:
        """See `KVStore`. All workers set the same."""
        with self._calling():
            self._settle()  # with the states that a rule set again is about to forget
            self.set_updater(optimizer_for(optimizer, parameters, self))

    def _before_numbers_change(self) -> None:
        with self._lock:
            self._settle()

    def set_gradient_compression(self, parameters: Mapping[str, Any] | None) -> None:
        """See `KVStore`. What a worker's values add up to is compressed on its way to the others; for dense values."""
        chosen = None if parameters is None else compression(parameters)

        async def set_it() -> None:
            await self._arrive()
            await self._ranks.exchanges.meet(f"compress by {None if chosen is None else chosen.parameters()}")
            self._table.compress(chosen)

        with self._calling():
            self._run(set_it())

    def save_optimizer_states(self, path: Any, dump_optimizer: bool = False) -> None:
        """See `KVStore`. Every worker has the same states: one of them saves."""
        with self._calling():
            self._settle()
            save_states(path, self._table.optimizer, dump_optimizer)

    def load_optimizer_states(self, path: Any) -> None:
        """See `KVStore`. All workers load the same, which the next push makes sure of."""
        with self._calling():
            self._settle()
            load_states(path, self._table.optimizer, self._table.stored())
            self._loaded = hashlib.blake2b(Path(path).read_bytes(), digest_size=8).hexdigest()

    def is_capable(self, capability: str) -> bool:
        """See `KVStore`. It gives sums unless there is an updater."""
        return super().is_capable(capability) or (capability.lower() == "sum" and self._table.updater is None)

    def barrier(self) -> None:
        """See `KVStore`."""

        async def barrier() -> None:
            await self._arrive()
            await self._ranks.exchanges.meet("barrier")

        with self._calling():
            self._run(barrier())

    def close(self) -> None:
        """See `KVStore`. Others that push afterwards are told that this worker has closed."""
        with self._lock:
            try:
                if not self._table.closed:
                    with contextlib.suppress(StoreError):
                        self._settle()  # others may need what this worker sends
            finally:
                self._ranks.close()
                self._table.close(self)

    # ---- what all workers do together -----------------------------------------------------------------------

    def _check_open(self) -> None:
        self._table.check_open()
        if self._ranks.abandoned is not None:
            raise StoreError(
                "expected a worker that is in step with the others, but this one has left them: "
                f"{self._ranks.abandoned}\n  start all workers again, from the last checkpoint"
            )

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        """A call: it may be left while it waits for others, and nowhere else; and comes after what was left before."""
        with self._lock, DeferredInterrupt(may_leave=True):
            self._complete()
            yield

    def _complete(self) -> None:
        """Complete what Ctrl-C has left."""
        self._check_open()
        if not self._table.updating:  # else it is an updater that asks, and it is in the middle of one
            self._ranks.complete()
            self._raise_failure()

    def _settle(self) -> None:
        """Complete what Ctrl-C has left, and what travels."""
        self._complete()
        if self._travelling and not self._table.updating:
            self._run(self._arrive())

    def _run(self, exchange: Coroutine[Any, Any, None]) -> None:
        self._ranks.run(exchange)
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failed is not None:
            try:
                raise self._failed
            finally:
                self._failed = None

    def _make(self, given: Mapping[Key, Sequence[Any]]) -> None:
        about = "; ".join(f"{key!r} {tuple(v[0].shape)} {v[0].dtype}" for key, v in given.items())
        for key, values in given.items():
            if values[0].dtype not in SUMMED:
                raise RefusedError(f"expected a dtype that workers can add up for key {key!r}, got {values[0].dtype}")
        self._run(self._make_together(about, self._table.entries_of(given)))

    async def _make_together(self, about: str, made: Sequence[Entry]) -> None:
        await self._arrive()
        await self._ranks.exchanges.meet(f"init {about}")
        await self._ranks.exchanges.broadcast([entry.stored for entry in made if entry.stored.numel()])
        like = [entry.stored for entry in made]
        for held, sums in zip(laid_out(like), laid_out(like), strict=True):
            held.fill(like)
            for place, stored, merged in zip(held.places, held.views, sums.views, strict=True):
                made[place].stored, made[place].merged = stored, merged
        self._table.add(made)

    def _push(self, groups: Sequence[Group]) -> None:
        mine = {entry.key for entry, _ in groups}
        if any(entry.key in mine for _, entries in self._travelling for entry in entries):
            self._settle()
        rule = ""
        if isinstance(self._table.updater, Optimizer):
            for entry, _ in groups:
                self._table.updater.prepare(entry.key, entry.stored)
            # Replicas would part if a number were changed, or states were loaded, on one worker alone.
            rule = f" by {self._table.updater.parameters()}"
            if self._loaded:
                rule += f" with states of file {self._loaded}"
        about = f"push {', '.join(repr(entry.key) for entry, _ in groups)}{rule}"
        # What is given is copied before the first wait, which Ctrl-C may leave.
        self._run(self._push_together(about, [_taken(entry, values) for entry, values in groups]))

    async def _push_together(self, about: str, given: Sequence[PushedValue]) -> None:
        sparse = any(one.rows is not None for one in given)
        flags = await self._ranks.exchanges.meet(about, [float(sparse)])
        if self._table.compression is not None:
            await self._push_compressed(given)
        elif any(flag for (flag,) in flags):
            await self._push_rows(about, given)
        else:
            self._send(given)
            if self._may_fail():
                await self._arrive()

    def _may_fail(self) -> bool:
        """Whether the updater may raise, and so has to be waited for."""
        return self._table.updater is not None and not self._table.trusted

    def _send(self, given: Sequence[PushedValue]) -> None:
        """Let sums of dense values travel."""
        for run in _runs([one.entry for one in given]):
            first, total = run[0].merged, sum(entry.merged.numel() for entry in run)
            if total:
                flat = first.as_strided((total,), (1,))
                self._travelling.append((self._ranks.exchanges.sum(flat), run))

    async def _arrive(self) -> None:
        """Wait for what travels, and assign it or update with it."""
        if not self._travelling:
            return
        try:
            await Waiting([work for work, _ in self._travelling])
        finally:  # after an error it is lost; while it is waited for it stays
            travelled, self._travelling = self._travelling, []
        await self._take([(entry, entry.merged) for _, entries in travelled for entry in entries])

    async def _take(self, sums: Sequence[tuple[Entry, Any]]) -> None:
        """Assign the workers' sums, or update with them: on all workers, or on none."""
        if self._table.updater is None:
            for entry, total in sums:
                if total is entry.merged:
                    entry.stored, entry.merged = entry.merged, entry.stored
                else:
                    rows.assign(entry.stored, total)
        elif not self._may_fail():
            self._table.update(sums)
        else:
            await self._update_together(sums)

    async def _update_together(self, sums: Sequence[tuple[Entry, Any]]) -> None:
        exchanges = self._ranks.exchanges
        undo = None
        try:
            undo = self._table.attempt(sums)
        except Exception as error:
            self._failed = error
        flags = await exchanges.meet("update by a function", [float(self._failed is not None)])
        failed = tuple(r for r, (flag,) in enumerate(flags) if flag)
        if not failed:
            return
        told = await exchanges.gather_bytes("tell why the updater failed", repr(self._failed or "").encode())
        if undo is not None:
            undo()
            why = "; ".join(f"rank {r}: {told[r].decode(errors='replace')}" for r in failed)
            self._failed = StoreError(
                f"expected an updater that fails on no worker, it did on {named(failed)}, and the push was taken back "
                f"everywhere\n  {why}",
                ranks=failed,
            )

    async def _push_compressed(self, given: Sequence[PushedValue]) -> None:
        compression = self._table.compression
        assert compression is not None
        await self._arrive()
        sums = []
        entries = [one.entry for one in given]
        for entry in entries:
            stored = entry.stored
            if not entry.channels:
                entry.channels = [Channel(compression, stored.shape, stored.dtype, stored.device)]
            entry.channels[0].send(entry.merged)
        codes = [entry.channels[0].codes.reshape(-1).view(torch.uint8) for entry in entries]
        sizes = [code.numel() for code in codes]
        everywhere = await self._ranks.exchanges.gather_tensors(torch.cat(codes)) if sum(sizes) else []
        for k, entry in enumerate(entries):
            entry.merged.zero_()
            shape, dtype = compression.code_shape(entry.stored.shape)
            for received in everywhere:
                # A copy of its own: codes may be wider than bytes, and parts then lie at odd addresses.
                code = received.split(sizes)[k].clone().view(dtype).view(shape)
                decoded = torch.empty_like(entry.merged)
                compression.decode(code, decoded)
                entry.merged.add_(decoded)
            sums.append((entry, entry.merged))
        await self._take(sums)
        if self._failed is None:
            for entry in entries:
                entry.channels[0].commit()

    async def _push_rows(self, about: str, given: Sequence[PushedValue]) -> None:
        """Where a worker has rows: keys for which nobody has dense values travel as rows."""
        exchanges = self._ranks.exchanges
        await self._arrive()
        kinds = [DENSE if one.dense else NOTHING if one.rows is None else one.rows._nnz() for one in given]
        everywhere = await exchanges.meet(f"rows of {about}", [float(kind) for kind in kinds])
        travelling = []
        sums = []
        for k, one in enumerate(given):
            entry, counts = one.entry, [row[k] for row in everywhere]
            if DENSE in counts or not entry.stored.dim():
                if one.rows is not None:
                    entry.merged.add_(one.rows)
                travelling.append(exchanges.sum(entry.merged.view(-1)))
                sums.append((entry, entry.merged))
            else:
                most = len(entry.stored)
                known = [0 if n == NOTHING else checked_count(r, n, most, "rows") for r, n in enumerate(counts)]
                sums.append((entry, await self._gathered(entry, one.rows, known)))
        await Waiting(travelling)
        await self._take(sums)

    async def _gathered(self, entry: Entry, own: Any, counts: Sequence[int]) -> Any:
        """The sum of all workers' rows, coalesced."""
        stored, most = entry.stored, max(counts)
        ids = torch.zeros(most, dtype=torch.int64, device=stored.device)
        values = torch.zeros((most, *stored.shape[1:]), dtype=stored.dtype, device=stored.device)
        if own is not None:
            ids[: own._nnz()], values[: own._nnz()] = own.indices()[0], own.values()
        if most == 0:
            everything = [torch.sparse_coo_tensor(ids[None], values, stored.shape)]
        else:
            all_ids = await self._ranks.exchanges.gather_tensors(ids)
            all_values = await self._ranks.exchanges.gather_tensors(values)
            for r, (found, count) in enumerate(zip(all_ids, counts, strict=True)):
                try:
                    rows.check_ids(entry.key, found[:count], len(stored))
                except RefusedError as error:
                    raise StoreError(f"{error} from rank {r}", ranks=(r,)) from None
            everything = [
                torch.sparse_coo_tensor(found[None, :count], table[:count], stored.shape, check_invariants=False)
                for found, table, count in zip(all_ids, all_values, counts, strict=True)
            ]
        return rows.merged(everything, stored.device)


class PushedValue(NamedTuple):
    """What a worker gives for a key: the sum of its dense values is in ``entry.merged``, zeros without any.

    Attributes:
        entry: of the key.
        dense: whether there were dense values.
        rows: the sum of those that are rows, in memory of its own; None: there were none.
    """

    entry: Entry
    dense: bool
    rows: Any


def _taken(entry: Entry, values: Sequence[Any]) -> PushedValue:
    """Copies of values."""
    dense = [value for value in values if value.layout is torch.strided]
    sparse = [value for value in values if value.layout is not torch.strided]
    if dense:
        merging.run([(dense, (entry.merged,))])
    else:
        entry.merged.zero_()
    summed = None
    if sparse:
        summed = rows.merged(sparse, entry.stored.device)
        if len(sparse) == 1 and sparse[0].is_coalesced():
            summed = summed.clone()
    return PushedValue(entry, bool(dense), summed)


def _given(key: Any, value: Any) -> dict[Key, list[Any]]:
    """Values by key; none for each key where a worker has nothing."""
    if value is not None:
        return grouped(key, value, "value")
    return {checked_key(one): [] for one in (key if isinstance(key, (list, tuple)) else [key])}


def _runs(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Keys whose buffers lie one behind the other, together."""
    runs: list[list[Entry]] = []
    end: tuple[Any, int] | None = None
    for entry in sorted(entries, key=lambda entry: entry.place):
        merged = entry.merged
        place = merged.untyped_storage().data_ptr(), merged.storage_offset()
        if place == end:
            runs[-1].append(entry)
        else:
            runs.append([entry])
        end = place[0], place[1] + merged.numel()
    return runs
