"""``dist_async``: a parameter server. Workers push and pull at any time, and servers apply each push at once.

Guarantees in addition to the ones of `KVStore`:

- A worker's pull contains all of its own pushes, and the pushes of other workers that have arrived.
- Each server that holds a part of a push's keys applies it exactly once, whole or not at all. A server that dies is
  restarted, and workers replay the pushes that its last snapshot lacks (`feedline.kvstore.parameter_server.connection`
  gives the limit).
- A worker that dies blocks no other. A `StoreError` names a peer that is silent for longer than the timeout.
- An exception of a server's updater reaches the worker that pushed, once, at this call or a later one, since pushes are
  asynchronous.
- Ctrl-C interrupts a call where it waits, or at its end. Its push still reaches all servers, as it is in the replay log
  before the call waits. Later calls send it if necessary.

Costs: one message for each server and call, whatever the number of keys. On one host a pushed array is copied once.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from feedline.collective.deferred_interrupts import DeferredInterrupt
from feedline.collective.refusal import RefusedError
from feedline.collective.silence import Silence
from feedline.errors import StoreError
from feedline.interop.launchers import launcher_rank
from feedline.kvstore import merging
from feedline.kvstore import row_sparse as rows
from feedline.kvstore.aligned import Layout
from feedline.kvstore.base import Key, KVStore, Updater, check_updater
from feedline.kvstore.call_arguments import check_priority, group_by_key
from feedline.kvstore.compression import compression
from feedline.kvstore.key_table import check_new_key, check_outs, check_values, group_ids_by_key, in_order
from feedline.kvstore.optimizer_states import load_states, save_states
from feedline.kvstore.optimizers import Optimizer, in_every_process, optimizer_for
from feedline.kvstore.parameter_server.connection import Pull, ServerConnection
from feedline.kvstore.parameter_server.membership import PAUSE_S, Membership
from feedline.kvstore.parameter_server.placement import parts
from feedline.kvstore.parameter_server.push_encoder import Group, PushEncoder, ShardedKey, group_by_server
from feedline.kvstore.parameter_server.ray_cluster import (
    ADDRESS,
    SERVERS,
    SNAPSHOTS,
    WORKERS,
    AsyncCluster,
    RayConnection,
    is_connected,
)
from feedline.kvstore.parameter_server.shard import Rule
from feedline.kvstore.parameter_server.sharded_states import join_states, split_states
from feedline.kvstore.parameter_server.wire_format import dtype_name, receive_buffer, slice_rows, to_buffer


class AsyncStore(KVStore):
    """Store on servers that are Ray actors. See `KVStore` and this module.

    Args:
        address: ``host:port`` of Ray. None means the `AsyncCluster` that started this process, or else a private Ray
            for this one worker.
        workers: number of workers that share the store. None means the number of the cluster, ``WORLD_SIZE`` or
            mpiexec, or 1.
        servers: number of servers. None means the number of the cluster, or one per worker. The first worker decides.
        rank: rank of this worker. None means ``RANK``, or the lowest free one.
        name: name of the store, which distinguishes several stores in one Ray.
        timeout: seconds of silence after which a running server, or a worker that has to act first, is an error. A
            server that answers slowly is no error, and a start may take minutes.
        snapshots: folder for the servers' snapshots, deleted with the store. On several hosts it must be shared, as a
            server may be restarted on another host. None means a temporary folder.
        every: seconds between snapshots.
        log_bytes: bytes of this worker's replay log: pushes that no snapshot contains yet.

    Raises:
        ModuleNotFoundError: Ray is not installed.
        RefusedError: an address other than loopback without a token, or another number of workers than the first
            worker set.
        StoreError: Ray cannot be reached, or the rank is taken.
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
        launched_rank, count = launcher_rank() or (os.environ.get("RANK"), os.environ.get("WORLD_SIZE"))
        workers = workers or int(os.environ.get(WORKERS) or count or 1)
        servers = servers or int(os.environ.get(SERVERS) or workers)
        if rank is None and launched_rank is not None:
            rank = int(launched_rank)
        self._timeout_s, self._closed = timeout, False
        self._lock = threading.RLock()
        self._entries: dict[Key, ShardedKey] = {}
        self._encoder = PushEncoder()
        self._optimizer: Optimizer | None = None
        self._rules = 0  # calls of set_updater and set_optimizer on this worker
        with contextlib.ExitStack() as undo:
            settings = None
            if address is None:
                if workers > 1:
                    raise RefusedError(
                        f"expected the address of Ray for {workers} workers, got none; start them within a "
                        "feedline.kvstore.AsyncCluster, or pass address="
                    )
                cluster = undo.enter_context(AsyncCluster(1, servers))
                address, settings = cluster.address, cluster.environment()
            connection = RayConnection(address, settings)
            undo.callback(connection.close)
            folder = os.path.abspath(snapshots) if snapshots else (settings or os.environ).get(SNAPSHOTS, "")
            self._membership = Membership(
                name, workers, servers, rank, folder, every, timeout, secured=not connection.loopback
            )
            count = len(self._membership.servers)
            self._links = [
                ServerConnection(actor, i, count, self._membership.name, log_bytes // count, timeout)
                for i, actor in enumerate(self._membership.servers)
            ]
            self._undo = undo.pop_all()

    @property
    def rank(self) -> int:
        """See `KVStore`."""
        return self._membership.rank

    @property
    def num_workers(self) -> int:
        """See `KVStore`."""
        return self._membership.workers

    @property
    def lost_pushes(self) -> int:
        """Number of this worker's pushes that had left the replay log when a server died before its next snapshot."""
        return sum(link.lost for link in self._links)

    def barrier(self) -> None:
        """See `KVStore`. All earlier pushes are applied.

        Raises:
            StoreError: a worker has left, is dead, or does not arrive within the timeout.
        """
        with self._working():
            self._drain()
        self._membership.barrier(self._timeout_s)

    def close(self) -> None:
        """See `KVStore`. All earlier pushes are applied. The servers end after the last worker has closed."""
        with self._lock:
            if self._closed:
                return
            try:
                _check_connected()
                self._drain()
                if self.num_workers > 1:  # as no other worker could replay the last pushes of this one
                    self._call_all("flush")
            finally:
                self._closed = True
                self._replace_optimizer(None)
                self._membership.close()
                self._undo.close()

    # ---- the six verbs --------------------------------------------------------------------------------------

    def init(self, key: Any, value: Any) -> None:
        """See `KVStore`. Worker 0's values count. Other workers wait for them.

        If worker 0 was restarted and the keys exist, they keep their values, which have been trained.

        Raises:
            StoreError: worker 0 does not create the keys in time.
        """
        initial = group_by_key(key, value, "value")
        with self._working():
            self._init(initial)

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """See `KVStore`."""
        check_priority(priority)
        with self._working():
            self._push(self._values(group_by_key(key, value, "value")), ())

    def pull(self, key: Any, out: Any, priority: int = 0) -> None:
        """See `KVStore`."""
        check_priority(priority)
        with self._working():
            self._pull(self._outs(group_by_key(key, out, "out")))

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """See `KVStore`. One message does both."""
        check_priority(priority)
        with self._working():
            values = self._values(group_by_key(key, value, "value"))
            outs = self._outs(group_by_key(key, value if out is None else out, "out"))
            numbers = self._push(values, outs)
            keys = group_by_server(outs)
            for server, number in numbers.items():
                buffer = self._links[server].take_pulled(number, [entry.key for entry, _, _ in keys[server]])
                self._fill(outs, server, keys[server], buffer)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """See `KVStore`."""
        check_priority(priority)
        initial, outs = group_by_key(key, value, "value"), group_by_key(key, out, "out")
        with self._working():
            for name, tensors in outs.items():
                check_outs(name, tensors, initial[name][0].shape)
            self._init(initial)
            self._pull(self._outs(outs))

    def row_sparse_pull(self, key: Any, out: Any, row_ids: Any, priority: int = 0) -> None:
        """See `KVStore`."""
        check_priority(priority)
        outs = group_by_key(key, out, "out")
        ids = group_ids_by_key(key, row_ids, outs)
        with self._working():
            tables = [
                (tensor, *_table(entry, numbers))
                for entry, tensors in in_order(self._entries, outs)
                for tensor, numbers in rows.pair_outs(entry.key, entry.meta, tensors, ids[entry.key])
            ]
            self._pull_rows([(entry, once, table) for _, entry, once, _, table in tables])
            for tensor, _, once, places, table in tables:
                if tensor.layout is torch.strided:
                    tensor.copy_(table.index_select(0, places).view(tensor.shape))
                else:
                    rows.fill_sparse(tensor, once, table)

    # ---- who updates ----------------------------------------------------------------------------------------

    def set_updater(self, updater: Updater | None) -> None:
        """See `KVStore`. All workers call this. Worker 0's updater is used.

        Ray pickles the function, and it runs in the servers. An array of more than 65536 elements is passed
        to it one part at a time.
        """
        check_updater(updater)
        self._set_rule(None if updater is None else {"object": updater}, None)

    def set_optimizer(self, optimizer: str | Optimizer, **parameters: Any) -> None:
        """See `KVStore`. All workers call this. Worker 0's optimizer is used.

        An optimizer that is set again with the same parameters, as by a restarted worker 0, keeps its states. Ray
        pickles optimizers that feedline does not define.
        """
        rule = optimizer_for(optimizer, parameters, self)
        by_name = {"name": rule.name, "parameters": rule.parameters()}
        self._set_rule(by_name if in_every_process(rule) else {"object": rule}, rule)

    def _set_rule(self, rule: Rule, optimizer: Optimizer | None) -> None:
        with self._working():
            self._drain()
            generations = self._generations()
            if self.rank == 0:
                generation = max(generations) + 1
                self._gather({i: link.set_rule(rule, generation) for i, link in enumerate(self._links)})
            self._rules += 1
            silence = Silence(self._timeout_s)
            while self.rank and min(generations) < self._rules:
                self._pause(silence, f"set an updater (call {self._rules} of this worker)")
                generations = self._generations()
            for link in self._links:
                link.keep_rule(rule, generation if self.rank == 0 else self._rules)
            self._replace_optimizer(optimizer)

    def _replace_optimizer(self, optimizer: Optimizer | None) -> None:
        if self._optimizer is not None:
            self._optimizer.release(self)
        if optimizer is not None:
            optimizer.hold(self)
        self._optimizer = optimizer

    def _before_numbers_change(self) -> None:
        raise RefusedError("expected unchanged parameters, as servers of 'dist_async' have copies; use set_optimizer")

    def set_gradient_compression(self, parameters: Mapping[str, Any] | None) -> None:
        """See `KVStore`. Applies to the pushes of this worker."""
        encoding = None if parameters is None else compression(parameters)
        with self._working():
            self._encoder.compress(encoding)

    def save_optimizer_states(self, path: str | os.PathLike[str], dump_optimizer: bool = False) -> None:
        """See `KVStore`. One worker calls this. The file has the states of all servers, for any type of store."""
        with self._working():
            rule = self._require_optimizer()
            self._drain()
            answers = self._call_all("states")
            if any(name != rule.name for name, _, _ in answers):
                raise StoreError(f"expected {rule.name} on all servers, got {[name for name, _, _ in answers]}")
            rule.set_parameters(answers[0][1])
            rule.forget()
            reports = [(link.label, states) for link, (_, _, states) in zip(self._links, answers, strict=True)]
            rule.set_states(join_states(self._entries.values(), reports, rule))
            save_states(path, rule, dump_optimizer)
            rule.forget()

    def load_optimizer_states(self, path: str | os.PathLike[str]) -> None:
        """See `KVStore`. One worker calls this."""
        with self._working():
            rule = self._require_optimizer()
            load_states(path, rule, {key: entry.meta for key, entry in self._entries.items()})
            pieces = split_states(rule, len(self._links))
            rule.forget()
            self._drain()
            parameters = rule.parameters()
            self._gather({i: self._links[i].pull("set_states", parameters, piece) for i, piece in enumerate(pieces)})

    def _require_optimizer(self) -> Optimizer:
        if self._optimizer is None:
            raise RefusedError("expected a store with an optimizer, got one without; call set_optimizer first")
        return self._optimizer

    # ---- checks ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        """Open a block with the lock of an open store, in which Ctrl-C interrupts only waits."""
        with self._lock, DeferredInterrupt(may_leave=True):
            if self._closed:
                raise RefusedError("expected an open store, got one that was closed")
            _check_connected()
            yield

    def _values(self, arrays: Mapping[Key, Sequence[Any]]) -> list[Group]:
        groups = in_order(self._entries, arrays)
        for entry, values in groups:
            dtype = entry.meta.dtype
            if len(values) > 1:
                merging.check_sum(entry.key, dtype)
            check_values(entry.key, values, entry.meta, self._encoder.compression)
            if self._optimizer is not None and not dtype.is_floating_point:
                raise RefusedError(f"expected floating point for key {entry.key!r} under an optimizer, got {dtype}")
        return groups

    def _outs(self, arrays: Mapping[Key, Sequence[Any]]) -> list[Group]:
        groups = in_order(self._entries, arrays)
        for entry, outs in groups:
            check_outs(entry.key, outs, entry.meta.shape)
        return groups

    # ---- work -----------------------------------------------------------------------------------------------

    def _init(self, initial: Mapping[Key, Sequence[Any]]) -> None:
        groups: list[tuple[ShardedKey, Any]] = []
        # Keys that are created in the order of visits are contiguous on a server, and are pulled without a copy.
        ordered = sorted(initial.items()) if all(isinstance(key, int) for key in initial) else initial.items()
        for place, (key, value) in enumerate(ordered, len(self._entries)):
            check_new_key(self._entries, key, value)
            meta = torch.empty(value[0].shape, dtype=value[0].dtype, device="meta")
            groups.append((ShardedKey(key, place, meta, parts(key, meta.shape, len(self._links))), value[0]))
        pieces_of = group_by_server(groups)
        silence = Silence(self._timeout_s)
        while True:
            keys = {server: [entry.key for entry, _, _ in pieces] for server, pieces in pieces_of.items()}
            shapes = self._gather({server: self._links[server].ask("key_shapes", k) for server, k in keys.items()})
            absent = [e.key for server, w in pieces_of.items() for e, _, _ in w if e.key not in shapes[server]]
            if not absent or self.rank == 0:
                break
            self._pause(silence, f"initialise key {absent[0]!r}")
        for server, pieces in pieces_of.items():
            for entry, part, _ in pieces:
                local = (tuple(slice_rows(entry.meta, part).shape), dtype_name(entry.meta.dtype))
                remote = shapes[server].get(entry.key, local)
                if remote != local:
                    raise RefusedError(
                        f"expected key {entry.key!r} as the servers have it, rows {part.start} to {part.stop} of shape "
                        f"{remote[0]} and {remote[1]}, got {local[0]} and {local[1]}"
                    )
        if absent:
            pulls = {}
            for server, pieces in pieces_of.items():
                items = [(e.key, tuple(slice_rows(e.meta, p).shape), dtype_name(e.meta.dtype)) for e, p, _ in pieces]
                buffer = to_buffer([slice_rows(_dense(value), part) for _, part, value in pieces])
                pulls[server] = self._links[server].ask("create_keys", items, buffer.numpy())
            self._gather(pulls)
        self._entries.update({entry.key: entry for entry, _ in groups})
        for server, pieces in pieces_of.items():
            self._links[server].keys += len(pieces)

    def _push(self, groups: Sequence[Group], outs: Sequence[Group]) -> dict[int, int]:
        """Send a push to the servers that hold its keys. Return its number on each."""
        pull_keys = {server: [o[0].key for o in pieces] for server, pieces in group_by_server(outs).items()}
        numbers = {}
        for server, (items, buffer) in self._encoder.messages(groups).items():
            numbers[server] = self._links[server].append(items, buffer.numpy(), pull_keys.get(server, []))
            self._encoder.commit(server, items)
        # The push is in every replay log, so it will be sent even if an earlier one raises an error below.
        for server in numbers:
            self._links[server].flush()
        return numbers

    def _pull(self, outs: Sequence[Group]) -> None:
        pieces_of = group_by_server(outs)
        pulls = [(s, self._links[s].pull("pull", [entry.key for entry, _, _ in w])) for s, w in pieces_of.items()]
        for server, pull in pulls:
            self._fill(outs, server, pieces_of[server], self._links[server].wait_for(pull))

    def _fill(self, outs: Sequence[Group], server: int, pieces: Sequence[Any], buffer: Any) -> None:
        """Copy a server's buffer to the outs."""
        targets = [[slice_rows(out, part) for out in tensors] for _, part, tensors in pieces]
        layout = self._encoder.layouts(outs)[server]
        layout.read(receive_buffer(buffer, layout.size, self._links[server].label), targets)

    def _pull_rows(self, tables: Sequence[tuple[ShardedKey, Any, Any]]) -> None:
        groups: dict[int, list[tuple[Key, Any, Any]]] = {}
        for entry, once, table in tables:
            for part in entry.parts:
                low, high = (int(torch.searchsorted(once, bound)) for bound in (part.start, part.stop))
                if low < high:
                    group = groups.setdefault(part.server, [])
                    group.append((entry.key, once[low:high] - part.start, table[low:high]))
        pulls = [
            (server, self._links[server].pull("pull_rows", [k for k, _, _ in group], [i.numpy() for _, i, _ in group]))
            for server, group in groups.items()
        ]
        for server, pull in pulls:
            places = [place for _, _, place in groups[server]]
            layout = Layout([(place.shape, place.dtype) for place in places])
            link = self._links[server]
            layout.read(receive_buffer(link.wait_for(pull), layout.size, link.label), [[place] for place in places])

    def _call_all(self, method: str) -> list[Any]:
        """Call a method of all servers after all pushes so far. Return their answers."""
        return list(self._gather({i: link.pull(method) for i, link in enumerate(self._links)}).values())

    def _generations(self) -> list[int]:
        """Return how often the rule of each server was set."""
        requests = {i: link.ask("greet", self._membership.name) for i, link in enumerate(self._links)}
        return [greeting.generation for greeting in self._gather(requests).values()]

    def _gather(self, pulls: Mapping[int, Pull]) -> dict[int, Any]:
        """Wait for the answers of several servers."""
        return {server: self._links[server].wait_for(pull) for server, pull in pulls.items()}

    def _drain(self) -> None:
        for link in self._links:
            link.drain()

    def _pause(self, silence: Silence, what: str) -> None:
        """Pause before worker 0 is polled again."""
        if silence.too_long:
            raise StoreError(f"expected worker 0 to {what} within {self._timeout_s:g} s, but it did not")
        time.sleep(PAUSE_S)
        silence.add(PAUSE_S)


def _check_connected() -> None:
    """Check that the program has not disconnected from the store's Ray."""
    if not is_connected():
        raise StoreError(
            "expected Ray to be connected until the store is closed, but ray.shutdown() was called; close the store "
            "first, or create another one, which loads what was saved"
        )


def _table(entry: ShardedKey, ids: Any) -> tuple[ShardedKey, Any, Any, Any]:
    """Return the entry, the distinct row ids (ascending), the index of each id among them, and memory for rows."""
    once, places = torch.unique(ids.reshape(-1).to("cpu", torch.int64), return_inverse=True)
    return entry, once, places, torch.empty((len(once), *entry.meta.shape[1:]), dtype=entry.meta.dtype)


def _dense(value: Any) -> Any:
    """Return an initial value as a dense, contiguous tensor on the CPU."""
    return (value.to_dense() if value.layout is not torch.strided else value).cpu().contiguous()
