"""Stores of several processes: ``dist_sync`` keeps what it stores on the CPU, ``dist_device_sync`` on the device.

Every worker has a replica. A push adds up what all workers give for a key, and every replica then assigns the same sum
or makes the same update with it, so replicas stay equal, bit for bit. One call of a method is one round: every worker
is counted once in it, and all of them make the same calls with the same keys, in one order, which is checked; what
they give may differ in number, be rows at one and dense at another, or be nothing (``push(key, None)``).

`init` is a round, too, and what worker 0 gives counts; so are `barrier`, `set_updater`, `set_optimizer` and
`set_gradient_compression`. A `pull` is not: it concerns this worker alone.

Keys are laid out in flat buffers at `init`. A push copies what is given into them and lets them travel; it is waited
for at the next call that needs the outcome, so the caller computes meanwhile. Only with an updater that is a plain
function a push waits at once: its exceptions belong to the push.

What goes wrong is as in `feedline.kvstore.collective`: a `StoreError` names the worker that is missing, what is stored
stays as it was, and all workers have to start again.

Costs of a push: one small exchange, and the bytes through an all-reduce of each buffer, or of the part of it that the
keys of the call make up; so one call with all keys is much faster than one call a key. Compressed gradients go to all
workers as they are, and rows, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from feedline.errors import StoreError
from feedline.kvstore import merging, rows
from feedline.kvstore.arguments import checked_key, checked_priority, grouped
from feedline.kvstore.base import Key, RefusedError, Updater
from feedline.kvstore.buckets import laid_out
from feedline.kvstore.collective import SUMMED, TIMEOUT, Collective
from feedline.kvstore.compression import Channel, compression
from feedline.kvstore.local import Entry, Group, LocalStore
from feedline.kvstore.optimizers import Optimizer

#: What a worker has for a key: dense values, nothing, or at least 0 rows.
DENSE, NOTHING = -1, -2


class DistStore(LocalStore):
    """A store of several processes; see the module, and `KVStore`.

    Args:
        type: ``dist_sync`` or ``dist_device_sync``.
        group: a torch.distributed group of the workers; see `feedline.kvstore.collective.Collective` for what counts
            without it.
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
        super().__init__(type)
        self._on_cpu = type == "dist_sync"
        self._ranks = Collective(group, address=address, rank=rank, count=num_workers, timeout=timeout)
        self._ranks.agree(f"create {type!r}")
        #: Sums under way, and whose they are.
        self._travelling: list[tuple[Any, list[Entry]]] = []

    @property
    def rank(self) -> int:
        """Number of this worker, from 0."""
        return self._ranks.rank

    @property
    def num_workers(self) -> int:
        """How many workers share the store."""
        return self._ranks.count

    @property
    def ranks(self) -> Collective:
        """The workers, for exchanges beside the store's: on all of them in one order with its own."""
        return self._ranks

    # ---- the six verbs --------------------------------------------------------------------------------------

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """See `KVStore`. ``value`` None: this worker has nothing for these keys."""
        checked_priority(priority)
        with self._lock:
            self._push(self._values(_given(key, value)))

    def pull(self, key: Any, out: Any, priority: int = 0) -> None:
        """See `KVStore`."""
        with self._lock:
            self._arrive()
            super().pull(key, out, priority)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """See `KVStore`. ``value`` may be None, as for `push`; ``out`` is needed then."""
        checked_priority(priority)
        if value is None and out is None:
            raise TypeError("expected an out where a worker has no value, got None")
        with self._lock:
            values = self._values(_given(key, value))
            outs = self._outs(grouped(key, value if out is None else out, "out"))
            self._push(values)
            self._arrive()
            self._pull(outs)

    def row_sparse_pull(self, key: Any, out: Any, row_ids: Any, priority: int = 0) -> None:
        """See `KVStore`."""
        with self._lock:
            self._arrive()
            super().row_sparse_pull(key, out, row_ids, priority)

    # ---- who updates ----------------------------------------------------------------------------------------

    def set_updater(self, updater: Updater | None) -> None:
        """See `KVStore`. All workers set the same."""
        with self._lock:
            self._arrive()
            what = "a function" if updater is not None else "None"
            if isinstance(updater, Optimizer):
                what = f"{updater.name} {updater.parameters()}"
            self._ranks.agree(f"set the updater to {what}")
            super().set_updater(updater)

    def _before_numbers_change(self) -> None:
        with self._lock:
            self._arrive()

    def set_gradient_compression(self, parameters: Mapping[str, Any] | None) -> None:
        """See `KVStore`. What a worker's values add up to is compressed on its way to the others; for dense values."""
        chosen = None if parameters is None else compression(parameters)
        with self._lock:
            self._check_open()
            self._arrive()
            self._ranks.agree(f"compress by {None if chosen is None else chosen.parameters()}")
            self._compression = chosen
            self._plain = self._updater is None and chosen is None
            for entry in self._entries.values():
                entry.channels = []

    def save_optimizer_states(self, path: Any, dump_optimizer: bool = False) -> None:
        """See `KVStore`. Every worker has the same states: one of them saves."""
        with self._lock:
            self._arrive()
            super().save_optimizer_states(path, dump_optimizer)

    def load_optimizer_states(self, path: Any) -> None:
        """See `KVStore`. All workers load the same."""
        with self._lock:
            self._arrive()
            super().load_optimizer_states(path)

    def barrier(self) -> None:
        """See `KVStore`."""
        with self._lock:
            self._check_open()
            self._arrive()
            self._ranks.agree("barrier")

    def close(self) -> None:
        """See `KVStore`. Others that push afterwards are told that this worker has closed."""
        with self._lock:
            if not self._closed:
                with contextlib.suppress(StoreError):
                    self._arrive()  # others may need what this worker sends
                self._ranks.close()
            super().close()

    # ---- work -----------------------------------------------------------------------------------------------

    def _make(self, given: Mapping[Key, Sequence[Any]]) -> None:
        self._arrive()
        about = "; ".join(f"{key!r} {tuple(v[0].shape)} {v[0].dtype}" for key, v in given.items())
        self._ranks.agree(f"init {about}")
        for key, values in given.items():
            if values[0].dtype not in SUMMED:
                raise RefusedError(f"expected a dtype that workers can add up for key {key!r}, got {values[0].dtype}")
        super()._make(given)
        made = [self._entries[key] for key in given]
        try:
            self._ranks.broadcast([entry.stored for entry in made if entry.stored.numel()])
            like = [entry.stored for entry in made]
            for held, sums in zip(laid_out(like), laid_out(like), strict=True):
                held.fill(like)
                for place, stored, merged in zip(held.places, held.views, sums.views, strict=True):
                    made[place].stored, made[place].merged = stored, merged
        except BaseException:
            for key in given:
                del self._entries[key]
            raise

    def _push(self, groups: Sequence[Group]) -> None:
        mine = {entry.key for entry, _ in groups}
        if any(entry.key in mine for _, entries in self._travelling for entry in entries):
            self._arrive()
        rule = ""
        if isinstance(self._updater, Optimizer):
            for entry, _ in groups:
                self._updater.prepare(entry.key, entry.stored)
            rule = f" by {self._updater.parameters()}"  # replicas would part if it were changed on one worker alone
        sparse = any(value.layout is not torch.strided for _, values in groups for value in values)
        about = ", ".join(repr(entry.key) for entry, _ in groups)
        flags = self._ranks.agree(f"push {about}{rule}", sparse)
        if self._compression is not None:
            self._push_compressed(groups)
        elif any(flags):
            self._push_rows(groups)
        else:
            self._send(groups)
            if self._updater is not None and not isinstance(self._updater, Optimizer):
                self._arrive()

    def _send(self, groups: Sequence[Group]) -> None:
        """Let sums of dense values travel."""
        for run in _runs(groups):
            for entry, values in run:
                if not values:
                    entry.merged.zero_()
            merging.run([(values, (entry.merged,)) for entry, values in run if values])
            first, total = run[0][0].merged, sum(entry.merged.numel() for entry, _ in run)
            if total:
                flat = first.as_strided((total,), (1,))
                self._travelling.append((self._ranks.sum(flat), [entry for entry, _ in run]))

    def _arrive(self) -> None:
        """Wait for what travels, and assign it or update with it."""
        travelled, self._travelling = self._travelling, []
        if travelled:
            self._ranks.wait([work for work, _ in travelled])
            self._take([(entry, entry.merged) for _, entries in travelled for entry in entries])

    def _take(self, sums: Sequence[tuple[Entry, Any]]) -> None:
        """Assign the workers' sums, or update with them."""
        if self._updater is not None:
            self._update(sums)
            return
        for entry, total in sums:
            if total is entry.merged:
                entry.stored, entry.merged = entry.merged, entry.stored
            else:
                rows.assign(entry.stored, total)

    def _push_compressed(self, groups: Sequence[Group]) -> None:
        assert self._compression is not None
        self._arrive()
        sums = []
        for entry, values in groups:
            if values:
                merging.run([(values, (entry.merged,))])
            else:
                entry.merged.zero_()
            stored = entry.stored
            if not entry.channels:
                entry.channels = [Channel(self._compression, stored.shape, stored.dtype, stored.device)]
            entry.channels[0].send(entry.merged)
        codes = [entry.channels[0].codes.reshape(-1).view(torch.uint8) for entry, _ in groups]
        sizes = [code.numel() for code in codes]
        everywhere = self._ranks.gather_tensors(torch.cat(codes)) if sum(sizes) else []
        for k, (entry, _) in enumerate(groups):
            entry.merged.zero_()
            shape, dtype = self._compression.code_shape(entry.stored.shape)
            for received in everywhere:
                # A copy of its own: codes may be wider than bytes, and parts then lie at odd addresses.
                code = received.split(sizes)[k].clone().view(dtype).view(shape)
                decoded = torch.empty_like(entry.merged)
                self._compression.decode(code, decoded)
                entry.merged.add_(decoded)
            sums.append((entry, entry.merged))
        self._take(sums)
        for entry, _ in groups:
            entry.channels[0].commit()

    def _push_rows(self, groups: Sequence[Group]) -> None:
        """Where a worker has rows: keys for which nobody has dense values travel as rows."""
        self._arrive()
        own: list[Any] = []
        kinds = []
        for entry, values in groups:
            dense = any(value.layout is torch.strided for value in values)
            own.append(None if dense or not values else rows.merged(values, entry.stored.device))
            kinds.append(float(DENSE if dense else NOTHING if not values else own[-1]._nnz()))
        everywhere = self._ranks.gather(kinds)
        travelling = []
        sums = []
        for k, (entry, values) in enumerate(groups):
            counts = [int(row[k]) for row in everywhere]
            if DENSE in counts:
                plain = [value for value in values if value.layout is torch.strided]
                if plain:
                    merging.run([(plain, (entry.merged,))])
                else:
                    entry.merged.zero_()
                if len(plain) < len(values):
                    sparse = [value for value in values if value.layout is not torch.strided]
                    entry.merged.add_(rows.merged(sparse, entry.stored.device))
                travelling.append(self._ranks.sum(entry.merged.view(-1)))
                sums.append((entry, entry.merged))
            else:
                sums.append((entry, self._gathered(entry, own[k], [max(0, count) for count in counts])))
        self._ranks.wait(travelling)
        self._take(sums)

    def _gathered(self, entry: Entry, own: Any, counts: Sequence[int]) -> Any:
        """The sum of all workers' rows, coalesced."""
        stored, most = entry.stored, max(counts)
        ids = torch.zeros(most, dtype=torch.int64, device=stored.device)
        values = torch.zeros((most, *stored.shape[1:]), dtype=stored.dtype, device=stored.device)
        if own is not None:
            ids[: own._nnz()], values[: own._nnz()] = own.indices()[0], own.values()
        if most == 0:
            everything = [torch.sparse_coo_tensor(ids[None], values, stored.shape)]
        else:
            everything = [
                torch.sparse_coo_tensor(i[None, :count], v[:count], stored.shape, check_invariants=False)
                for i, v, count in zip(
                    self._ranks.gather_tensors(ids), self._ranks.gather_tensors(values), counts, strict=True
                )
            ]
        return rows.merged(everything, stored.device)


def _given(key: Any, value: Any) -> dict[Key, list[Any]]:
    """Values by key; none for each key where a worker has nothing."""
    if value is not None:
        return grouped(key, value, "value")
    return {checked_key(one): [] for one in (key if isinstance(key, (list, tuple)) else [key])}


def _runs(groups: Sequence[Group]) -> list[list[Group]]:
    """Keys whose buffers lie one behind the other, together."""
    runs: list[list[Group]] = []
    end: tuple[Any, int] | None = None
    for entry, values in sorted(groups, key=lambda group: group[0].place):
        merged = entry.merged
        place = merged.untyped_storage().data_ptr(), merged.storage_offset()
        if place == end:
            runs[-1].append((entry, values))
        else:
            runs.append([(entry, values)])
        end = place[0], place[1] + merged.numel()
    return runs
