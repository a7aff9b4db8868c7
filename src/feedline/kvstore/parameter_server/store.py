"""``dist_async``: a parameter server. Workers push and pull at any time, and servers apply each push at once.

Guarantees beyond `KVStore`'s:

- a worker's pull has all of its own pushes in it, and of the others' what has come;
- each push is applied once by each server that holds a part of its keys, whole or not at all there; a server that dies
  comes back, and what its last snapshot lacks is sent again (see `feedline.kvstore.parameter_server.connection` for the
  limit);
- a worker that dies stops nobody; what is away for good is a `StoreError` that names it within the timeout;
- what a server's updater raises reaches the worker that pushed, once, at this call or a later one: pushes are not
  waited for;
- Ctrl-C comes out of a call where it waits, and at its end. A push is then made all the same, on all servers: it is
  kept before anything is waited for, and sent by later calls if need be.

Costs: a message for each server and call, whatever the number of keys. A pushed array is copied once on one host.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from feedline.collective.interrupts import DeferredInterrupt
from feedline.collective.refusal import RefusedError
from feedline.errors import StoreError
from feedline.kvstore import merging
from feedline.kvstore import row_sparse as rows
from feedline.kvstore.arguments import checked_priority, grouped
from feedline.kvstore.base import Key, KVStore, Updater, check_updater
from feedline.kvstore.compression import compression
from feedline.kvstore.optimizer_states import load_states, save_states
from feedline.kvstore.optimizers import Optimizer, optimizer_for
from feedline.kvstore.parameter_server.connection import ServerConnection
from feedline.kvstore.parameter_server.membership import PAUSE, Membership
from feedline.kvstore.parameter_server.messages import Group, PushEncoder, ShardedKey, by_server
from feedline.kvstore.parameter_server.placement import RowRange, parts
from feedline.kvstore.parameter_server.ray_cluster import (
    ADDRESS,
    SERVERS,
    SNAPSHOTS,
    WORKERS,
    AsyncCluster,
    RayConnection,
    remaining,
)
from feedline.kvstore.parameter_server.shard import Rule
from feedline.kvstore.parameter_server.sharded_states import cut_states, whole_states
from feedline.kvstore.parameter_server.wire_format import Layout, as_run, dtype_name, received, sliced
from feedline.kvstore.table import check_new_key, check_out, check_values, grouped_ids, unknown_key


class AsyncStore(KVStore):
    """A store on Ray actors; see `KVStore` and this module.

    Args:
        address: ``host:port`` of Ray; None: as an `AsyncCluster` has set it for this process, or else a Ray of our own
            for this one worker.
        workers: how many share the store; None: as the cluster or ``WORLD_SIZE`` says, or 1.
        servers: how many hold it; None: as the cluster says, or one a worker. The first worker's word counts.
        rank: of this worker; None: ``RANK``, or the lowest that is free.
        name: of the store, where one Ray has several.
        timeout: seconds until whoever does not answer is an error.
        snapshots: folder for the servers' snapshots, which they make for the time that the store lives; on several
            hosts one that all share, so that a server may come back on another. None: a temporary one.
        every: seconds between snapshots.
        log_bytes: how much of the pushes that no snapshot contains yet this worker keeps to send again.

    Raises:
        ModuleNotFoundError: Ray is not installed.
        RefusedError: no token for another address than loopback; another number of workers than the first one's.
        StoreError: Ray or the rank is not to be had.
    """

    type = "dist_async"

    def __init__(
        self,
        *,
        address: str | None = None,
        workers: int | None = None,
        servers: int | None = None,
        rank: int | None = None,
        name: str = "store",
        timeout: float = 60.0,
        snapshots: str | os.PathLike[str] | None = None,
        every: float = 30.0,
        log_bytes: int = 128 << 20,
    ) -> None:
        address = address or os.environ.get(ADDRESS)
        workers = workers or int(os.environ.get(WORKERS) or os.environ.get("WORLD_SIZE") or 1)
        servers = servers or int(os.environ.get(SERVERS) or workers)
        if rank is None and "RANK" in os.environ:
            rank = int(os.environ["RANK"])
        self._timeout, self._closed = timeout, False
        self._lock = threading.RLock()
        self._entries: dict[Key, ShardedKey] = {}
        self._packer = PushEncoder()
        self._optimizer: Optimizer | None = None
        self._rules = 0  # how often this worker was told one
        with contextlib.ExitStack() as undo:
            settings = None
            if address is None:
                if workers > 1:
                    raise RefusedError(
                        f"expected the address of a Ray for {workers} workers, got none; start them within a "
                        "feedline.kvstore.AsyncCluster, or give address="
                    )
                cluster = undo.enter_context(AsyncCluster(1, servers, timeout=timeout))
                address, settings = cluster.address, cluster.environment()
            connection = RayConnection(address, settings)
            undo.callback(connection.close)
            folder = os.path.abspath(snapshots) if snapshots else (settings or os.environ).get(SNAPSHOTS, "")
            self._us = Membership(name, workers, servers, rank, folder, every, timeout, secured=not connection.loopback)
            count = len(self._us.servers)
            self._links = [
                ServerConnection(actor, i, count, self._us.name, log_bytes // count)
                for i, actor in enumerate(self._us.servers)
            ]
            self._undo = undo.pop_all()

    @property
    def rank(self) -> int:
        """See `KVStore`."""
        return self._us.rank

    @property
    def num_workers(self) -> int:
        """See `KVStore`."""
        return self._us.workers

    @property
    def lost_pushes(self) -> int:
        """Pushes of this worker that were in no log any more when a server died before its snapshot."""
        return sum(link.lost for link in self._links)

    def barrier(self) -> None:
        """See `KVStore`; all pushes before it are applied.

        Raises:
            StoreError: a worker has left or is dead, or one does not come within the timeout.
        """
        with self._working() as deadline:
            self._drain(deadline)
        self._us.barrier(deadline)

    def close(self) -> None:
        """See `KVStore`; all pushes before it are applied. With the last worker, the servers end."""
        with self._lock:
            if self._closed:
                return
            deadline = time.monotonic() + self._timeout
            try:
                self._drain(deadline)
                if self.num_workers > 1:  # nobody could send our last pushes again
                    self._everywhere("flush", deadline)
            finally:
                self._closed = True
                self._take_optimizer(None)
                self._us.close()
                self._undo.close()

    # ---- the six verbs --------------------------------------------------------------------------------------

    def init(self, key: Any, value: Any) -> None:
        """See `KVStore`. Worker 0's values count; the others wait for them.

        A worker 0 that was restarted finds the keys there, and their values stay: they are what was learned.

        Raises:
            StoreError: worker 0 does not make the keys in time.
        """
        given = grouped(key, value, "value")
        with self._working() as deadline:
            self._init(given, deadline)

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """See `KVStore`."""
        checked_priority(priority)
        with self._working() as deadline:
            self._push(self._values(grouped(key, value, "value")), (), deadline)

    def pull(self, key: Any, out: Any, priority: int = 0) -> None:
        """See `KVStore`."""
        checked_priority(priority)
        with self._working() as deadline:
            self._pull(self._outs(grouped(key, out, "out")), deadline)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """See `KVStore`; one message for both."""
        checked_priority(priority)
        with self._working() as deadline:
            values = self._values(grouped(key, value, "value"))
            outs = self._outs(grouped(key, value if out is None else out, "out"))
            numbers = self._push(values, outs, deadline)
            keys = by_server(outs)
            for server, number in numbers.items():
                run = self._links[server].pulled(number, [entry.key for entry, _, _ in keys[server]], deadline)
                self._fill(outs, server, keys[server], run)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """See `KVStore`."""
        checked_priority(priority)
        given, outs = grouped(key, value, "value"), grouped(key, out, "out")
        with self._working() as deadline:
            for name, tensors in outs.items():
                for tensor in tensors:
                    check_out(name, tensor, given[name][0].shape)
            self._init(given, deadline)
            self._pull(self._outs(outs), deadline)

    def row_sparse_pull(self, key: Any, out: Any, row_ids: Any, priority: int = 0) -> None:
        """See `KVStore`."""
        checked_priority(priority)
        outs = grouped(key, out, "out")
        ids = grouped_ids(key, row_ids, outs)
        with self._working() as deadline:
            tables = [
                (tensor, *self._table(entry, tensor, one))
                for entry, tensors in self._found(outs)
                for tensor, one in _paired(entry, tensors, ids[entry.key])
            ]
            self._pull_rows([(entry, once, table) for _, entry, once, _, table in tables], deadline)
            for tensor, entry, once, places, table in tables:
                if tensor.layout is torch.strided:
                    tensor.copy_(table.index_select(0, places).view(tensor.shape))
                else:
                    shape = entry.meta.shape
                    found = torch.sparse_coo_tensor(once[None], table, shape, is_coalesced=True, check_invariants=False)
                    tensor.copy_(found)

    # ---- who updates ----------------------------------------------------------------------------------------

    def set_updater(self, updater: Updater | None) -> None:
        """See `KVStore`. All workers call this; worker 0's is taken.

        The function runs in the servers, and Ray pickles it on its way there. Of an array of more than
        `feedline.kvstore.parameter_server.placement.SPLIT` elements it sees one part at a time.
        """
        check_updater(updater)
        self._set_rule(None if updater is None else {"object": updater}, None)

    def set_optimizer(self, optimizer: str | Optimizer, **parameters: Any) -> None:
        """See `KVStore`. All workers call this; worker 0's is taken.

        Set again with the same parameters, as a worker 0 does that was restarted, it keeps its states. An optimizer of
        your own is pickled by Ray.
        """
        rule = optimizer_for(optimizer, parameters, self)
        known = type(rule).__module__ == Optimizer.__module__
        self._set_rule({"name": rule.name, "parameters": rule.parameters()} if known else {"object": rule}, rule)

    def _set_rule(self, rule: Rule, optimizer: Optimizer | None) -> None:
        with self._working() as deadline:
            self._drain(deadline)
            made = self._generations(deadline)
            if self.rank == 0:
                generation = max(made) + 1
                pulls = [(link, link.set_rule(rule, generation)) for link in self._links]
                for link, pull in pulls:
                    link.answered(pull, deadline)
            self._rules += 1
            while self.rank and min(made) < self._rules:
                later = self._patience(deadline, f"set an updater for the {self._rules}. time")
                made = self._generations(later)
            for link in self._links:
                link.keep_rule(rule, generation if self.rank == 0 else self._rules)
            self._take_optimizer(optimizer)

    def _take_optimizer(self, optimizer: Optimizer | None) -> None:
        if self._optimizer is not None:
            self._optimizer.release(self)
        if optimizer is not None:
            optimizer.hold(self)
        self._optimizer = optimizer

    def _before_numbers_change(self) -> None:
        raise RefusedError("expected no other number once the servers of 'dist_async' have the optimizer")

    def set_gradient_compression(self, parameters: Mapping[str, Any] | None) -> None:
        """See `KVStore`: of what this worker pushes."""
        chosen = None if parameters is None else compression(parameters)
        with self._working():
            self._packer.compress(chosen)

    def save_optimizer_states(self, path: str | os.PathLike[str], dump_optimizer: bool = False) -> None:
        """See `KVStore`: of all servers, in one file, which stores of other types understand. One worker calls this."""
        with self._working() as deadline:
            rule = self._known_optimizer()
            self._drain(deadline)
            answers = self._everywhere("states", deadline)
            if any(name != rule.name for name, _, _ in answers):
                raise StoreError(f"expected servers that update by {rule.name}, got {[name for name, _, _ in answers]}")
            rule.set_parameters(answers[0][1])
            rule.forget()
            named = [(link.called, states) for link, (_, _, states) in zip(self._links, answers, strict=True)]
            rule.set_states(whole_states(self._entries.values(), named, rule))
            save_states(path, rule, dump_optimizer)
            rule.forget()

    def load_optimizer_states(self, path: str | os.PathLike[str]) -> None:
        """See `KVStore`. One worker calls this."""
        with self._working() as deadline:
            rule = self._known_optimizer()
            load_states(path, rule, {key: entry.meta for key, entry in self._entries.items()})
            pieces = cut_states(rule, len(self._links))
            rule.forget()
            self._drain(deadline)
            pulls = [
                (link, link.pull("set_states", rule.parameters(), piece))
                for link, piece in zip(self._links, pieces, strict=True)
            ]
            for link, pull in pulls:
                link.answered(pull, deadline)

    def _known_optimizer(self) -> Optimizer:
        if self._optimizer is None:
            raise RefusedError("expected a store with an optimizer, got one without; call set_optimizer first")
        return self._optimizer

    # ---- checks ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _working(self) -> Iterator[float]:
        """The lock, an open store, and the moment when patience ends; Ctrl-C comes out of waits alone."""
        with self._lock, DeferredInterrupt(may_leave=True):
            if self._closed:
                raise RefusedError("expected an open store, got one that was closed")
            yield time.monotonic() + self._timeout

    def _found(self, given: Mapping[Key, Sequence[Any]]) -> list[Group]:
        """The entries of keys, in the order in which keys are visited."""
        for key in given:
            if key not in self._entries:
                raise unknown_key(self._entries, key)
        groups = [(self._entries[key], tensors) for key, tensors in given.items()]
        return sorted(groups, key=lambda group: group[0].place if isinstance(group[0].key, str) else group[0].key)

    def _values(self, given: Mapping[Key, Sequence[Any]]) -> list[Group]:
        groups = self._found(given)
        for entry, values in groups:
            dtype = entry.meta.dtype
            if len(values) > 1:
                merging.check_sum(entry.key, dtype)
            check_values(entry.key, values, entry.meta, self._packer.compression)
            if self._optimizer is not None and not dtype.is_floating_point:
                raise RefusedError(f"expected floating point for key {entry.key!r} under an optimizer, got {dtype}")
        return groups

    def _outs(self, given: Mapping[Key, Sequence[Any]]) -> list[Group]:
        groups = self._found(given)
        for entry, outs in groups:
            for out in outs:
                check_out(entry.key, out, entry.meta.shape)
        return groups

    # ---- work -----------------------------------------------------------------------------------------------

    def _init(self, given: Mapping[Key, Sequence[Any]], deadline: float) -> None:
        made, values = [], []
        # What is made in the order of visits lies in it, and is pulled as it lies.
        ordered = sorted(given.items()) if all(isinstance(key, int) for key in given) else given.items()
        for place, (key, value) in enumerate(ordered, len(self._entries)):
            check_new_key(self._entries, key, value)
            meta = torch.empty(value[0].shape, dtype=value[0].dtype, device="meta")
            made.append(ShardedKey(key, place, meta, parts(key, meta.shape, len(self._links))))
            values.append(value[0])
        wanted: dict[int, list[tuple[ShardedKey, RowRange, Any]]] = {}
        for entry, value in zip(made, values, strict=True):
            for part in entry.parts:
                wanted.setdefault(part.server, []).append((entry, part, value))
        later = deadline
        while True:
            pulls = [(s, self._links[s].ask("known", [e.key for e, _, _ in w])) for s, w in wanted.items()]
            known = {server: self._links[server].answered(pull, later) for server, pull in pulls}
            absent = [entry.key for server, w in wanted.items() for entry, _, _ in w if entry.key not in known[server]]
            if not absent or self.rank == 0:
                break
            later = self._patience(deadline, f"initialise key {absent[0]!r}")
        for server, asked in wanted.items():
            for entry, part, _ in asked:
                here = (tuple(sliced(entry.meta, part).shape), dtype_name(entry.meta.dtype))
                there = known[server].get(entry.key, here)
                if there != here:
                    raise RefusedError(
                        f"expected key {entry.key!r} as the servers have it, rows {part.start} to {part.stop} of shape "
                        f"{there[0]} and {there[1]}, got {here[0]} and {here[1]}"
                    )
        if absent:
            pulls = []
            for server, asked in wanted.items():
                items = [(e.key, tuple(sliced(e.meta, part).shape), dtype_name(e.meta.dtype)) for e, part, _ in asked]
                run = as_run([sliced(_dense(value), part) for _, part, value in asked])
                pulls.append((server, self._links[server].ask("make", items, run.numpy())))
            for server, pull in pulls:
                self._links[server].answered(pull, deadline)
        self._entries.update({entry.key: entry for entry in made})
        for server, asked in wanted.items():
            self._links[server].keys += len(asked)

    def _push(self, groups: Sequence[Group], outs: Sequence[Group], deadline: float) -> dict[int, int]:
        """Send a push to all servers concerned; returns its number at each."""
        wanted = {server: [o[0].key for o in asked] for server, asked in by_server(outs).items()}
        numbers = {}
        for server, message in self._packer.messages(groups).items():
            message.layout.write(message.run, message.sources)
            asked = wanted.get(server, [])
            numbers[server] = self._links[server].keep(message.items, message.run.numpy(), asked)
            self._packer.sent(server, message)
        # Whatever is raised from here on, for a push before this one, it is kept everywhere, and gets there.
        for server in numbers:
            self._links[server].flush(deadline)
        return numbers

    def _pull(self, outs: Sequence[Group], deadline: float) -> None:
        wanted = by_server(outs)
        pulls = [(s, self._links[s].pull("pull", [entry.key for entry, _, _ in w])) for s, w in wanted.items()]
        for server, pull in pulls:
            self._fill(outs, server, wanted[server], self._links[server].answered(pull, deadline))

    def _fill(self, outs: Sequence[Group], server: int, wanted: Sequence[Any], run: Any) -> None:
        """Copy what a server sent to the outs."""
        targets = [[sliced(out, part) for out in tensors] for _, part, tensors in wanted]
        layout = self._packer.layouts(outs)[server]
        layout.read(received(run, layout.size, self._links[server].called), targets)

    def _table(self, entry: ShardedKey, out: Any, ids: Any) -> tuple[ShardedKey, Any, Any, Any]:
        """Rows to fetch once, ascending; where each id finds its row; and memory for them."""
        checked = rows.checked_ids(entry.key, ids, entry.meta.shape[0])
        rows.check_out(entry.key, out, checked, entry.meta)
        once, places = torch.unique(checked.reshape(-1).to("cpu", torch.int64), return_inverse=True)
        return entry, once, places, torch.empty((len(once), *entry.meta.shape[1:]), dtype=entry.meta.dtype)

    def _pull_rows(self, tables: Sequence[tuple[ShardedKey, Any, Any]], deadline: float) -> None:
        wanted: dict[int, list[tuple[Key, Any, Any]]] = {}
        for entry, once, table in tables:
            for part in entry.parts:
                low, high = (int(torch.searchsorted(once, bound)) for bound in (part.start, part.stop))
                if low < high:
                    asked = wanted.setdefault(part.server, [])
                    asked.append((entry.key, once[low:high] - part.start, table[low:high]))
        pulls = [
            (server, self._links[server].pull("pull_rows", [k for k, _, _ in asked], [i.numpy() for _, i, _ in asked]))
            for server, asked in wanted.items()
        ]
        for server, pull in pulls:
            places = [place for _, _, place in wanted[server]]
            layout = Layout([(place.shape, place.dtype) for place in places])
            run = self._links[server].answered(pull, deadline)
            layout.read(received(run, layout.size, self._links[server].called), [[place] for place in places])

    def _everywhere(self, method: str, deadline: float) -> list[Any]:
        """What all servers answer, once all pushes so far are in what they store."""
        pulls = [(link, link.pull(method)) for link in self._links]
        return [link.answered(pull, deadline) for link, pull in pulls]

    def _generations(self, deadline: float) -> list[int]:
        """How often the rule of each server was set."""
        pulls = [(link, link.ask("greet", self._us.name)) for link in self._links]
        return [link.answered(pull, deadline).generation for link, pull in pulls]

    def _drain(self, deadline: float) -> None:
        for link in self._links:
            link.drain(deadline)

    def _patience(self, deadline: float, what: str) -> float:
        """Wait a little for worker 0; until when the next look may take: one that began in time is not cut off."""
        if remaining(deadline) == 0:
            raise StoreError(f"expected worker 0 to {what} within {self._timeout:g} s, but it has not")
        time.sleep(PAUSE)
        return time.monotonic() + self._timeout


def _paired(entry: ShardedKey, outs: Sequence[Any], ids: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Each out of a key and its row_ids."""
    if not entry.meta.dim():
        raise RefusedError(f"expected a key with rows, got {entry.key!r}, which holds one number")
    if len(ids) not in (1, len(outs)):
        raise RefusedError(
            f"expected row_ids for {len(outs)} outs of key {entry.key!r}, or one for all, got {len(ids)}"
        )
    return list(zip(outs, [ids[0]] * len(outs) if len(ids) == 1 else ids, strict=True))


def _dense(value: Any) -> Any:
    """An initial value: contiguous, on the CPU."""
    return (value.to_dense() if value.layout is not torch.strided else value).cpu().contiguous()
