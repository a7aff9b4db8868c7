"""The coordinator of a ``dist_async`` store: a Ray actor that assigns ranks, detects dead workers, and ends servers.

Workers join, send a heartbeat every `BEAT_S` seconds, and leave. One that is silent for `SILENT_S` seconds, as the
coordinator counts, is presumed dead: its rank becomes free, and barriers name it. When all workers have left, or none
has sent a heartbeat for `GRACE_S` seconds, the coordinator ends the servers, deletes their snapshots and ends itself.
Ray does not end these actors, as they are detached.

A barrier opens when all ranks wait at it at the same moment. A worker that gave up, left or was replaced no longer
counts as arrived.

After a restart by Ray, the coordinator rebuilds its state as workers join again. Costs: one small message for each
heartbeat, and a process. To stay small, it receives this module by value and imports nothing else of feedline.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import tempfile
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from feedline.collective.silence import Silence

#: Seconds between heartbeats, of silence until a worker is presumed dead, and until a store without workers ends.
BEAT_S, SILENT_S, GRACE_S = 1.0, 8.0, 60.0
#: Ray namespace of feedline's actors.
NAMESPACE = "feedline"


class JoinReply(NamedTuple):
    """Reply to `Coordinator.join`.

    Attributes:
        rank: rank of the worker, -1 if it was refused.
        workers: number of workers of the store.
        servers: number of its servers.
        folder: folder for snapshots.
        auth: authentication mode of Ray, as seen by its processes.
        refusal: reason of a refusal. Empty if the worker has joined.
        retry: whether to retry later, as the worker that has the rank may turn out to be dead.
    """

    rank: int
    workers: int
    servers: int
    folder: str
    auth: str
    refusal: str = ""
    retry: bool = False


class Coordinator:
    """Coordinator of one store.

    Args:
        name: name of the store.
        workers: number of workers that will join.
        servers: number of servers.
        folder: folder for snapshots. Empty for the temporary folder of the host of each server.

    Attributes:
        silences: time since the last heartbeat of each worker.
        watch: task that ends a store without workers. None before the first worker has joined.
    """

    def __init__(self, name: str, workers: int, servers: int, folder: str) -> None:
        import ray

        self._name, self._workers, self._servers = name, workers, servers
        # Unique, and unchanged when Ray restarts this actor.
        actor_id = ray.get_runtime_context().get_actor_id()
        self._folder = str(Path(folder or tempfile.gettempdir()) / f"feedline-{name}-{actor_id}")
        self._ranks: dict[str, int] = {}
        self.silences: dict[str, Silence] = {}
        self._places: dict[int, str] = {}
        self._left: set[int] = set()
        self._instance = uuid.uuid4().hex
        self._barriers_passed, self._gate = 0, asyncio.Event()
        #: Workers that wait at the barrier, each with a token of the call that waits.
        self._waiting: dict[str, object] = {}
        self._without_workers = Silence(GRACE_S)
        self.watch: asyncio.Task[None] | None = None

    # ---- membership -----------------------------------------------------------------------------------------

    async def join(self, worker: str, rank: int | None, place: str) -> JoinReply:
        """Register a worker, or renew its registration.

        Args:
            worker: unique name of the worker.
            rank: rank that it requests. None means the lowest free one.
            place: host and process.
        """
        if self.watch is None:
            self.watch = asyncio.get_running_loop().create_task(self._watch())
        refusal, requested = "", rank
        taken = {r: w for w, r in self._ranks.items() if not self.silences[w].too_long}
        if worker in self._ranks:
            rank = self._ranks[worker]
        elif rank is None:
            free = [r for r in range(self._workers) if r not in taken and r not in self._left]
            free = free or [r for r in range(self._workers) if r not in taken]
            rank = free[0] if free else -1
            refusal = "" if free else f"all {self._workers} ranks are taken"
        elif not 0 <= rank < self._workers:
            rank, refusal = -1, f"rank {rank} is not one of {self._workers}"
        elif rank in taken:
            rank, refusal = -1, f"rank {rank} is taken by {self._places[rank]}"
        if rank >= 0:
            for replaced in [w for w, r in self._ranks.items() if r == rank and w != worker]:
                del self._ranks[replaced], self.silences[replaced]
                self._waiting.pop(replaced, None)
            self._ranks[worker], self.silences[worker], self._places[rank] = rank, Silence(SILENT_S), place
            self._without_workers.reset()
            self._left.discard(rank)
        retry = bool(refusal) and (requested is None or requested in taken)
        auth = os.environ.get("RAY_AUTH_MODE", "unset")
        return JoinReply(rank, self._workers, self._servers, self._folder, auth, refusal, retry)

    async def beat(self, worker: str) -> bool:
        """Record a heartbeat. Return False if the worker has to join again."""
        if worker in self.silences:
            self.silences[worker].reset()
            self._without_workers.reset()
        return worker in self.silences

    async def leave(self, worker: str) -> None:
        """Remove a worker that has closed the store."""
        rank = self._ranks.pop(worker, None)
        self.silences.pop(worker, None)
        self._waiting.pop(worker, None)
        if rank is not None:
            self._left.add(rank)

    # ---- barrier --------------------------------------------------------------------------------------------

    async def ticket(self, worker: str) -> tuple[str, int] | None:
        """Return a ticket for the next barrier, with which a call of `arrive` can be retried. None means that the
        worker has to join first."""
        return (self._instance, self._barriers_passed) if worker in self._ranks else None

    async def arrive(self, worker: str, ticket: tuple[str, int] | None, seconds: float) -> Any:
        """Wait at the barrier for a limited time.

        Args:
            worker: name of the worker.
            ticket: ticket of the barrier. None means the next one.
            seconds: longest wait.

        Returns:
            None if all have arrived. Else a ticket, and the status of the missing ranks. The worker does not count as
            waiting until it calls again.
        """
        if worker not in self._ranks:
            return None, {}  # joined before a restart of this actor, and has to join again
        if ticket is None or ticket[0] != self._instance:
            ticket = self._instance, self._barriers_passed
        if ticket[1] != self._barriers_passed:
            return None
        call = self._waiting[worker] = object()
        try:
            if len(self._waiting) == self._workers:
                self._open()
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._gate.wait(), seconds)
            return None if ticket[1] != self._barriers_passed else (ticket, self._missing(worker))
        finally:  # also if Ray cancels the call
            if self._waiting.get(worker) is call:
                del self._waiting[worker]

    async def withdraw(self, worker: str) -> None:
        """Stop waiting at the barrier."""
        self._waiting.pop(worker, None)

    def _open(self) -> None:
        """Release all waiting workers."""
        self._barriers_passed, self._waiting = self._barriers_passed + 1, {}
        self._gate.set()
        self._gate = asyncio.Event()

    def _missing(self, worker: str) -> dict[int, tuple[bool, str]]:
        """Return the ranks that are not waiting: whether each has left or is dead, and its status in words."""
        missing = {}
        silences = {r: self.silences[w] for w, r in self._ranks.items()}
        present = {self._ranks.get(name) for name in (worker, *self._waiting)}
        for rank in set(range(self._workers)) - present:
            if rank in self._left:
                missing[rank] = True, "has closed the store"
            elif rank not in silences:
                missing[rank] = False, "has not joined"
            elif silences[rank].too_long:
                missing[rank] = True, f"sent no heartbeat for {silences[rank].seconds:.0f} s ({self._places[rank]})"
            else:
                missing[rank] = False, f"is alive ({self._places[rank]})"
        return missing

    # ---- shutdown -------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            for silence in (self._without_workers, *self.silences.values()):
                silence.add(BEAT_S)
            if len(self._left) == self._workers or self._without_workers.too_long:
                await self._end()

    async def _end(self) -> None:
        import ray

        for index in range(self._servers):
            with contextlib.suppress(Exception):  # it may be dead or hang
                server = ray.get_actor(server_name(self._name, index), NAMESPACE)
                await asyncio.wait_for(server.discard.remote(), BEAT_S)
            with contextlib.suppress(Exception):
                ray.kill(server, no_restart=True)
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def coordinator_name(store: str) -> str:
    """Return the Ray name of a store's coordinator."""
    return f"{store}/coordinator"


def server_name(store: str, index: int) -> str:
    """Return the Ray name of one of a store's servers."""
    return f"{store}/server-{index}"


def host_and_process() -> str:
    """Return host and process id, for messages."""
    return f"{socket.gethostname()}, process {os.getpid()}"
