"""Synchronous stores of several processes. ``dist_sync`` keeps arrays on the CPU, ``dist_device_sync`` on the device.

Every worker holds a replica. A push sums the values of all workers, and every replica then assigns the same sum, or
makes the same update with it. So replicas stay equal bit for bit. Each call is one round. All workers make the same
calls with the same keys in the same order, which is checked. Their values may differ in number, be row-sparse on one
worker and dense on another, or be absent (``push(key, None)``).

`init` is a round, too, in which the values of worker 0 count. So are `barrier`, `set_updater`, `set_optimizer` and
`set_gradient_compression`. A `pull` is local.

`init` lays out keys in flat buffers. Keys created one by one share buffers from their first push together. A push
copies its values into the buffers and starts the all-reduce. The next call that needs the sums waits for them, so the
caller computes in the meantime. An updater that may fail, such as a plain function, makes a push wait at once, so that
its exceptions are raised there. If it fails on one worker, it fails on all.

**Pushes of a single key are collected**, and sent together: when all keys of the store or 25 MB are collected, before a
further push of a collected key, with a push of several keys or of a priority above 0, and before any other call, most
often a pull. So pushing key by key costs about as much as one call. A push that other workers do not make is
detected when the pushes are sent. Workers need not have collected the same pushes. The pushes that all of them have
made are sent, in their common order, and a worker with further pushes waits for the next call of its peers.

Failures are reported as by `feedline.collective.communicator`: a `StoreError` names the missing worker, stored arrays
stay as they were, and all workers have to be restarted.

**Ctrl-C drops nothing.** It interrupts a call at once where it waits for other workers. The call stays pending, and the
next call of this store completes it first, with its values. (A note on the KeyboardInterrupt explains this.)
If a call cannot be completed, the store refuses every further call.

Costs of a push: one small exchange, and an all-reduce of each buffer, or of the part that holds the keys sent together.
An updater that may fail costs another small exchange. Compressed and row-sparse gradients are gathered from all
workers, not reduced.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from feedline.collective.communicator import TIMEOUT_S, Communicator
from feedline.collective.deferred_interrupts import DeferredInterrupt
from feedline.collective.exchanges import SHARED_BYTES, SUMMED, Waiting, check_count, digest_of, list_ranks
from feedline.collective.flat_buffers import BUCKET_BYTES, Bucket, lay_out_buckets
from feedline.collective.refusal import RefusedError
from feedline.collective.sums import BucketSums
from feedline.errors import StoreError
from feedline.kvstore import merging
from feedline.kvstore import row_sparse as rows
from feedline.kvstore.aligned import Layout
from feedline.kvstore.base import Key, Updater, check_updater
from feedline.kvstore.bucket_sums import StoreSums
from feedline.kvstore.call_arguments import check_priority, group_by_key, plain_key
from feedline.kvstore.compression import Channel, Compression, compression
from feedline.kvstore.key_table import Entry, Group
from feedline.kvstore.local_store import LocalStore
from feedline.kvstore.optimizers import Optimizer, optimizer_for

#: Kinds of values that a worker has for a key. A number from 0 on is a number of rows.
DENSE, NOTHING = -1, -2


class DistStore(LocalStore):
    """A synchronous store of several processes. See the module, and `KVStore`.

    Args:
        type: ``dist_sync`` or ``dist_device_sync``.
        group: torch.distributed group of the workers. For None see `feedline.collective.communicator.Communicator`.
        address: ``"host:port"`` at which worker 0 listens.
        rank: number of this worker, with ``address``.
        num_workers: number of workers, with ``address``.
        timeout: seconds to wait for other workers. They have at least five minutes to start.

    Attributes:
        ranks: communicator of the workers. Every worker makes exchanges through it, and calls of the store, in one
            order.

    Raises:
        RuntimeError: neither a process group nor an address is known.
        StoreError: a worker did not arrive in time.
    """

    def __init__(
        self,
        type: str = "dist_sync",
        *,
        group: Any = None,
        address: str | None = None,
        rank: int | None = None,
        num_workers: int | None = None,
        timeout: float = TIMEOUT_S,
    ) -> None:
        super().__init__(type)
        self.ranks = Communicator(group, address=address, rank=rank, count=num_workers, timeout_s=timeout)
        self._lock = self.ranks.lock  # a second lock could deadlock two threads
        self.ranks.agree(f"create {type!r}")
        #: Values pushed and not yet sent, in the order of the pushes, each key once.
        self._collected: list[PushedValue] = []
        #: Buffers for the codes of all workers.
        self._rows: list[Any] | None = None
        #: All-reduces in flight, each with the entries that it sums.
        self._in_flight: list[tuple[Any, list[Entry]]] = []
        #: Exception of the updater in a finished push, raised by the next call that returns to the caller.
        self._update_error: Exception | None = None
        #: Digest of the file that the optimizer's states were loaded from.
        self._states_digest = ""

    @property
    def rank(self) -> int:
        """Number of this worker, from 0."""
        return self.ranks.rank

    @property
    def num_workers(self) -> int:
        """Number of workers that share the store."""
        return self.ranks.count

    def bucket_sums(self, buckets: Sequence[Bucket]) -> BucketSums:
        """Return sums of buckets over the workers, sent as this store sends values, but without keys.

        Strategies of distributed learning call this, within a `Communicator.step` of `ranks`.
        """
        return StoreSums(self.ranks.exchanges, self._table, buckets)

    # ---- the six verbs --------------------------------------------------------------------------------------

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """See `KVStore`. If ``value`` is None, this worker has no values for these keys."""
        check_priority(priority)
        with self._calling(send_collected=False):
            self._push(self._table.values(_values_by_key(key, value)), at_once=priority > 0)

    def pull(self, key: Any, out: Any, priority: int = 0) -> None:
        """See `KVStore`."""
        check_priority(priority)
        with self._lock:
            self._complete_pushes()
            self._table.pull_to(key, out)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """See `KVStore`. ``value`` may be None, as for `push`. Then ``out`` is required."""
        check_priority(priority)
        if value is None and out is None:
            raise TypeError("expected an out in a pushpull without a value, got None")
        with self._calling(send_collected=False):
            values = self._table.values(_values_by_key(key, value))
            outs = self._table.outs(group_by_key(key, value if out is None else out, "out"))
            self._push(values, at_once=True)
            self._complete_pushes()
            self._table.pull(outs)

    # ---- who updates ----------------------------------------------------------------------------------------

    def set_updater(self, updater: Updater | None) -> None:
        """See `KVStore`. All workers set the same updater."""
        check_updater(updater)
        what = "a function" if updater is not None else "None"
        if isinstance(updater, Optimizer):
            what = f"{updater.name} {updater.agreed()}"

        def change() -> None:
            self._table.set_updater(updater, self)
            self._states_digest = ""

        with self._calling():
            self._run(self._change_on_all(f"set the updater to {what}", change))

    def set_optimizer(self, optimizer: str | Optimizer, **parameters: Any) -> None:
        """See `KVStore`. All workers set the same optimizer."""
        with self._calling():
            self._complete_pushes()  # as an optimizer that is set again forgets its states
            self.set_updater(optimizer_for(optimizer, parameters, self))

    def _before_numbers_change(self) -> None:
        with self._lock:
            self._complete_pushes()

    def set_gradient_compression(self, parameters: Mapping[str, Any] | None) -> None:
        """See `KVStore`. The sum of each worker is compressed before it is sent. Only for dense values."""
        encoding = None if parameters is None else compression(parameters)
        what = f"compress by {None if encoding is None else encoding.parameters()}"
        with self._calling():
            self._run(self._change_on_all(what, lambda: self._table.compress(encoding)))

    def load_optimizer_states(self, path: str | os.PathLike[str]) -> None:
        """See `KVStore`. All workers load the same file, which the next push verifies. One worker saves the file."""
        with self._calling():
            super().load_optimizer_states(path)
            self._states_digest = hashlib.blake2b(Path(path).read_bytes(), digest_size=8).hexdigest()

    def barrier(self) -> None:
        """See `KVStore`."""
        with self._calling():
            self._run(self._change_on_all("barrier"))

    def close(self) -> None:
        """See `KVStore`. Notifies peers. If a peer pushes afterwards, its error names this worker."""
        with self._lock:
            try:
                if not self._table.closed:
                    with contextlib.suppress(StoreError):
                        self._complete_pushes()  # peers may be waiting for the values of this worker
            finally:
                self.ranks.close()
                self._table.close(self)

    # ---- rounds ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _calling(self, send_collected: bool = True) -> Iterator[None]:
        """Open a block for a call, after completing an interrupted one. Ctrl-C interrupts only waits for other workers.

        Args:
            send_collected: whether to send collected pushes first.
        """
        with self._lock, DeferredInterrupt(may_leave=True):
            self._complete()
            if send_collected:
                self._send_collected()
            yield

    @contextlib.contextmanager
    def _after_pushes(self) -> Iterator[None]:
        with self._calling():
            self._complete_pushes()
            yield

    def _complete(self) -> None:
        """Complete a call that Ctrl-C interrupted."""
        self._table.check_open()
        if self.ranks.abandoned is not None:
            raise StoreError(
                "expected a worker that is in step with the others, but this one abandoned an exchange: "
                f"{self.ranks.abandoned}\n  restart all workers from the last checkpoint"
            )
        if not self._table.updating:  # called by an updater, amid an update
            self.ranks.complete()
            self._raise_failure()

    def _send_collected(self) -> None:
        while self._collected and not self._table.updating:
            self._run(self._push_collected())

    def _complete_pushes(self) -> None:
        """Complete an interrupted call, collected pushes, and the sums in flight."""
        self._complete()
        self._send_collected()
        if self._in_flight and not self._table.updating:
            self._run(self._await_sums())

    def _run(self, exchange: Coroutine[Any, Any, None]) -> None:
        self.ranks.run(exchange)
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._update_error is not None:
            try:
                raise self._update_error  # not from a variable, which would make a reference cycle with this frame
            finally:
                self._update_error = None

    async def _change_on_all(self, what: str, change: Callable[[], object] = lambda: None) -> None:
        """Make a change on all workers, once the sums of earlier pushes are assigned."""
        await self._await_sums()
        await self.ranks.exchanges.meet(what)
        change()

    def _create(self, initial: Mapping[Key, Sequence[Any]]) -> None:
        description = "; ".join(f"{key!r} {tuple(v[0].shape)} {v[0].dtype}" for key, v in initial.items())
        for key, values in initial.items():
            if values[0].dtype not in SUMMED:
                raise RefusedError(f"expected a dtype that workers can sum for key {key!r}, got {values[0].dtype}")
        self._run(self._create_on_all(description, self._table.entries_of(initial)))

    async def _create_on_all(self, description: str, entries: Sequence[Entry]) -> None:
        await self._await_sums()
        await self.ranks.exchanges.meet(f"init {description}")
        await self.ranks.exchanges.broadcast([entry.stored for entry in entries if entry.stored.numel()])
        like = [entry.stored for entry in entries]
        for bucket, sums in zip(lay_out_buckets(like), lay_out_buckets(like), strict=True):
            bucket.fill(like)
            for place, stored, merged in zip(bucket.places, bucket.views, sums.views, strict=True):
                entries[place].stored, entries[place].merged = stored, merged
                entries[place].lone = len(entries) == 1
        self._table.add(entries)

    def _push(self, groups: Sequence[Group], at_once: bool) -> None:
        keys = {entry.key for entry, _ in groups}
        if any(push.entry.key in keys for push in self._collected):
            self._send_collected()
        if any(entry.key in keys for _, entries in self._in_flight for entry in entries):
            self._complete_pushes()
        if isinstance(self._table.updater, Optimizer):
            for entry, _ in groups:
                self._table.updater.prepare(entry.key, entry.stored)
        # Values are copied before the first wait, which Ctrl-C may interrupt.
        if self._table.compression is None:
            self._collected += [_sum_values(entry, values) for entry, values in groups]
        else:
            self._collected += self._encode(self._table.compression, groups)
        if (
            at_once
            or len(groups) > 1
            or len(self._collected) == len(self._table.entries)
            or self._may_fail()
            or sum(push.entry.stored.nbytes for push in self._collected) >= BUCKET_BYTES
        ):
            self._send_collected()

    def _describe(self, pushes: Sequence[PushedValue]) -> str:
        """Return the description of a push, which has to be the same on all workers."""
        rule = ""
        if isinstance(self._table.updater, Optimizer):
            # Replicas would diverge if one worker alone changed a number or loaded states.
            rule = f" by {self._table.updater.agreed()}"
            if self._states_digest:
                rule += f" with states of file {self._states_digest}"
        return f"push {', '.join(repr(push.entry.key) for push in pushes)}{rule}"

    async def _push_collected(self) -> None:
        """Send the pushes that all workers have collected, in their common order."""
        pushes, exchanges = self._collected, self.ranks.exchanges
        action = self._describe(pushes)
        try:
            rows = await exchanges.meet(action, [len(pushes), digest_of(action), float(_has_rows(pushes))], kind="push")
            common = min(check_count(r, row[0], 1 << 40, "keys") for r, row in enumerate(rows))
            sparse = any(row[2] for row in rows)
            if any(row[:2] != rows[0][:2] for row in rows):
                pushes = pushes[:common]
                action = self._describe(pushes)
                sparse = any(flag for (flag,) in await exchanges.meet(action, [float(_has_rows(pushes))]))
        except StoreError:
            self._collected = []
            raise
        self._collected = self._collected[len(pushes) :]
        if self._table.compression is not None:
            await self._push_compressed(pushes)
        elif sparse:
            await self._push_rows(action, pushes)
        else:
            self._send(pushes)
            if self._may_fail():
                await self._await_sums()

    def _may_fail(self) -> bool:
        """Return whether the updater may raise an exception, in which case a push waits for it."""
        return self._table.updater is not None and not self._table.cannot_fail

    def _send(self, pushes: Sequence[PushedValue]) -> None:
        """Start all-reduces of dense values."""
        self._share_buffers([push.entry for push in pushes])
        for run in _runs([push.entry for push in pushes]):
            first, total = run[0].merged, sum(entry.merged.numel() for entry in run)
            if total:
                flat = first.as_strided((total,), (1,))
                self._in_flight.append((self.ranks.exchanges.sum(flat), run))

    def _share_buffers(self, entries: Sequence[Entry]) -> None:
        """Move keys created one by one, and pushed together, to shared buffers."""
        lone = sorted([entry for entry in entries if entry.lone], key=lambda entry: entry.place)
        if len(lone) > 1:
            for name in ("stored", "merged"):
                tensors = [getattr(entry, name) for entry in lone]
                for bucket in lay_out_buckets(tensors):
                    bucket.fill(tensors)
                    for place, view in zip(bucket.places, bucket.views, strict=True):
                        setattr(lone[place], name, view)
            for entry in lone:
                entry.lone = False

    async def _await_sums(self) -> None:
        """Wait for the sums in flight, then assign them or update with them."""
        if not self._in_flight:
            return
        try:
            await Waiting([work for work, _ in self._in_flight])
        finally:  # also after an error. An interrupted wait resumes here.
            finished, self._in_flight = self._in_flight, []
        await self._apply([(entry, entry.merged) for _, entries in finished for entry in entries])

    async def _apply(self, sums: Sequence[tuple[Entry, Any]]) -> None:
        """Assign the sums, or update with them, on all workers or on none."""
        if self._table.updater is None:
            for entry, total in sums:
                if total is entry.merged:
                    entry.stored, entry.merged = entry.merged, entry.stored
                else:
                    rows.assign(entry.stored, total)
        elif not self._may_fail():
            self._table.update(sums)
        else:
            await self._update_on_all(sums)

    async def _update_on_all(self, sums: Sequence[tuple[Entry, Any]]) -> None:
        exchanges = self.ranks.exchanges
        undo = None
        try:
            undo = self._table.update(sums)
        except Exception as error:
            self._update_error = error
        flags = await exchanges.meet("update by a function", [float(self._update_error is not None)])
        failed = tuple(r for r, (flag,) in enumerate(flags) if flag)
        if not failed:
            return
        reasons = await exchanges.gather_bytes("report why the updater failed", repr(self._update_error or "").encode())
        if undo is not None:
            undo()
            why = "; ".join(f"rank {r}: {reasons[r].decode(errors='replace')}" for r in failed)
            self._update_error = StoreError(
                f"expected an updater that succeeds on every worker, but it failed on {list_ranks(failed)}; the push "
                f"was undone on all workers\n  {why}",
                ranks=failed,
            )

    def _encode(self, compression: Compression, groups: Sequence[Group]) -> list[PushedValue]:
        """Return the pushes of dense values, which are encoded in their channels."""
        jobs = []
        for entry, values in groups:
            stored = entry.stored
            if not entry.channels:
                entry.channels = [Channel(compression, stored.shape, stored.dtype, stored.device)]
            value = values[0] if len(values) == 1 else _sum_values(entry, values).entry.merged
            jobs.append(entry.channels[0].job(value))
        compression.encode(jobs)
        return [PushedValue(entry, True, None) for entry, _ in groups]

    async def _push_compressed(self, pushes: Sequence[PushedValue]) -> None:
        compression = self._table.compression
        assert compression is not None
        await self._await_sums()
        entries = [push.entry for push in pushes]
        sent, layout = _join_codes([entry.channels[0] for entry in entries])
        if sent.numel():
            if self._rows is None or self._rows[0].shape != sent.shape or self._rows[0].device != sent.device:
                self._rows = [torch.empty_like(sent) for _ in range(self.ranks.count)]
            works = self.ranks.exchanges.begin_sharing(sent, self._rows)
            codes, undecoded = [layout.views(row) for row in self._rows], list(range(len(entries)))
            # Codes that have arrived are decoded while the rest is in flight.
            for arrived, work in enumerate(works, 1):
                await Waiting([work])
                jobs = []
                for k in undecoded:
                    if layout.begins[k] + codes[0][k].nbytes > arrived * SHARED_BYTES:
                        break
                    jobs.append(([views[k] for views in codes], entries[k].merged))
                undecoded = undecoded[len(jobs) :]
                compression.decode_sums(jobs)
        await self._apply([(entry, entry.merged) for entry in entries])
        if self._update_error is None:
            for entry in entries:
                entry.channels[0].commit()

    async def _push_rows(self, description: str, pushes: Sequence[PushedValue]) -> None:
        """Push when some worker has rows. Keys for which no worker has dense values are exchanged as rows."""
        exchanges = self.ranks.exchanges
        await self._await_sums()
        kinds = [DENSE if push.dense else NOTHING if push.rows is None else push.rows._nnz() for push in pushes]
        kinds_of_ranks = await exchanges.meet(f"rows of {description}", [float(kind) for kind in kinds])
        pending = []
        sums = []
        for k, push in enumerate(pushes):
            entry, counts = push.entry, [row[k] for row in kinds_of_ranks]
            if DENSE in counts or not entry.stored.dim():
                if push.rows is not None:
                    entry.merged.add_(push.rows)
                pending.append(exchanges.sum(entry.merged.view(-1)))
                sums.append((entry, entry.merged))
            else:
                limit = len(entry.stored)
                row_counts = [0 if n == NOTHING else check_count(r, n, limit, "rows") for r, n in enumerate(counts)]
                sums.append((entry, await self._gather_rows(entry, push.rows, row_counts)))
        await Waiting(pending)
        await self._apply(sums)

    async def _gather_rows(self, entry: Entry, local: Any, counts: Sequence[int]) -> Any:
        """Return the sum of the rows of all workers, coalesced."""
        stored, length = entry.stored, max(counts)
        ids = torch.zeros(length, dtype=torch.int64, device=stored.device)
        values = torch.zeros((length, *stored.shape[1:]), dtype=stored.dtype, device=stored.device)
        if local is not None:
            ids[: local._nnz()], values[: local._nnz()] = local.indices()[0], local.values()
        if length == 0:
            addends = [torch.sparse_coo_tensor(ids[None], values, stored.shape)]
        else:
            all_ids = await self.ranks.exchanges.gather_tensors(ids)
            all_values = await self.ranks.exchanges.gather_tensors(values)
            for r, (rank_ids, count) in enumerate(zip(all_ids, counts, strict=True)):
                try:
                    rows.check_ids(entry.key, rank_ids[:count], len(stored))
                except RefusedError as error:
                    raise StoreError(f"{error} from rank {r}", ranks=(r,)) from None
            addends = [
                torch.sparse_coo_tensor(rank_ids[None, :count], table[:count], stored.shape, check_invariants=False)
                for rank_ids, table, count in zip(all_ids, all_values, counts, strict=True)
            ]
        return rows.sum_rows(addends, stored.device)


class PushedValue(NamedTuple):
    """The sum of the values of a worker for a key. The sum of dense values is in ``entry.merged``, zeros if there are
    none.

    Attributes:
        entry: entry of the key.
        dense: whether there were dense values.
        rows: sum of the row-sparse values, in separate memory. None if there are none.
    """

    entry: Entry
    dense: bool
    rows: Any


def _sum_values(entry: Entry, values: Sequence[Any]) -> PushedValue:
    """Sum values into memory of the store."""
    dense = [value for value in values if value.layout is torch.strided]
    sparse = [value for value in values if value.layout is not torch.strided]
    if dense:
        merging.run([(dense, (entry.merged,))])
    else:
        entry.merged.zero_()
    summed = None
    if sparse:
        summed = rows.sum_rows(sparse, entry.stored.device)
        if len(sparse) == 1 and sparse[0].is_coalesced():
            summed = summed.clone()
    return PushedValue(entry, bool(dense), summed)


def _has_rows(pushes: Sequence[PushedValue]) -> bool:
    return any(push.rows is not None for push in pushes)


def _join_codes(channels: Sequence[Channel]) -> tuple[Any, Layout]:
    """Return one buffer with the codes of all channels, and its layout. The channels encode into it from now on."""
    layout = Layout([(channel.codes.shape, channel.codes.dtype) for channel in channels])
    first = channels[0].codes
    storage = first.untyped_storage()
    places = [(channel, storage.data_ptr() + at) for channel, at in zip(channels, layout.begins, strict=True)]
    if storage.nbytes() == layout.size and all(c.codes.data_ptr() == at for c, at in places if c.codes.numel()):
        return first.new_empty(0, dtype=torch.uint8).set_(storage), layout
    buffer = torch.zeros(layout.size, dtype=torch.uint8, device=first.device)
    for channel, codes in zip(channels, layout.views(buffer), strict=True):
        codes.copy_(channel.codes)
        channel.codes = codes
    return buffer, layout


def _values_by_key(key: Any, value: Any) -> dict[Key, list[Any]]:
    """Return values by key, an empty list for each key if ``value`` is None."""
    if value is not None:
        return group_by_key(key, value, "value")
    return {plain_key(k): [] for k in (key if isinstance(key, (list, tuple)) else [key])}


def _runs(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Group entries whose buffers are adjacent in memory."""
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
