"""Who works on a ``dist_async`` store? A Ray actor that counts the workers, and ends the servers after the last.

Workers join, beat every `BEAT` seconds, and leave. One that has not beaten for `SILENT` seconds is taken for dead: its
rank is free again, and a barrier names it. When all have left, or none has beaten for `GRACE` seconds, the servers,
their snapshots and this actor go: nobody else would end them, since they belong to no worker.

A barrier opens when all ranks wait at it in one moment. A worker that gave up, left or was replaced does not wait, so
its arrival does not count.

What it knows it learns again from beats when Ray has restarted it. Costs: a small message a beat; and a process, which
gets this module as it stands here and imports nothing of feedline's, so that it stays small.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

BEAT = 1.0
SILENT = 8.0
GRACE = 60.0
#: Namespace of our actors in a Ray that may have others.
NAMESPACE = "feedline"


class JoinReply(NamedTuple):
    """A worker, as the coordinator answers it.

    Attributes:
        rank: its number; -1: refused.
        workers: how many there are to be.
        servers: how many hold the store.
        folder: for snapshots.
        auth: the authentication mode of this Ray, as its processes see it.
        why: it was refused.
        again: whether another answer is to be expected later: who has the rank may be dead.
    """

    rank: int
    workers: int
    servers: int
    folder: str
    auth: str
    why: str = ""
    again: bool = False


class Coordinator:
    """The coordinator of one store.

    Args:
        name: of the store.
        workers: how many are to join.
        servers: how many hold it.
        folder: for snapshots; empty: a temporary one of the host that a server is on.
    """

    def __init__(self, name: str, workers: int, servers: int, folder: str) -> None:
        import ray

        self._name, self._workers, self._servers = name, workers, servers
        # Not anybody else's, and the same when this actor is started again.
        own = ray.get_runtime_context().get_actor_id()
        self._folder = str(Path(folder or tempfile.gettempdir()) / f"feedline-{name}-{own}")
        self._ranks: dict[str, int] = {}
        self._seen: dict[str, float] = {}
        self._places: dict[int, str] = {}
        self._left: set[int] = set()
        self._life = uuid.uuid4().hex
        self._passed, self._gate = 0, asyncio.Event()
        #: Workers that wait at the barrier, each with the call by which it does.
        self._waiting: dict[str, object] = {}
        self._since = time.monotonic()
        self._watch: asyncio.Task[None] | None = None

    # ---- membership -----------------------------------------------------------------------------------------

    async def join(self, worker: str, rank: int | None, place: str) -> JoinReply:
        """Become a worker, or say again that one is.

        Args:
            worker: its name, unlike all others.
            rank: that it wants; None: the lowest that is free.
            place: host and process.
        """
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._look())
        now, why, wanted = time.monotonic(), "", rank
        taken = {r: w for w, r in self._ranks.items() if now - self._seen[w] < SILENT}
        if worker in self._ranks:
            rank = self._ranks[worker]
        elif rank is None:
            free = [r for r in range(self._workers) if r not in taken and r not in self._left]
            free = free or [r for r in range(self._workers) if r not in taken]
            rank = free[0] if free else -1
            why = "" if free else f"all {self._workers} ranks are taken"
        elif not 0 <= rank < self._workers:
            rank, why = -1, f"rank {rank} is not one of {self._workers}"
        elif rank in taken:
            rank, why = -1, f"rank {rank} is taken by {self._places[rank]}"
        if rank >= 0:
            for other in [w for w, r in self._ranks.items() if r == rank and w != worker]:
                del self._ranks[other], self._seen[other]
                self._waiting.pop(other, None)
            self._ranks[worker], self._seen[worker], self._places[rank] = rank, now, place
            self._left.discard(rank)
        again = bool(why) and (wanted is None or wanted in taken)
        auth = os.environ.get("RAY_AUTH_MODE", "unset")
        return JoinReply(rank, self._workers, self._servers, self._folder, auth, why, again)

    async def beat(self, worker: str) -> bool:
        """A sign of life; False: join again."""
        if worker in self._seen:
            self._seen[worker] = time.monotonic()
        return worker in self._seen

    async def leave(self, worker: str) -> None:
        """The worker needs the store no more."""
        rank = self._ranks.pop(worker, None)
        self._seen.pop(worker, None)
        self._waiting.pop(worker, None)
        if rank is not None:
            self._left.add(rank)

    # ---- barrier --------------------------------------------------------------------------------------------

    async def ticket(self, worker: str) -> tuple[str, int] | None:
        """Which barrier is the next, so that an answer of `arrive` that is lost can be asked for; None: join first."""
        return (self._life, self._passed) if worker in self._ranks else None

    async def arrive(self, worker: str, ticket: tuple[str, int] | None, seconds: float) -> Any:
        """Wait at the barrier, for a while.

        Args:
            worker: its name.
            ticket: of the barrier; None: of the next one.
            seconds: to wait at most.

        Returns:
            None: all have come. Else a ticket, and the missing ranks with what is known of them; the worker does not
            wait any more, until it calls again.
        """
        if worker not in self._ranks:
            return None, {}  # of a life before this one: join first
        if ticket is None or ticket[0] != self._life:
            ticket = self._life, self._passed
        if ticket[1] != self._passed:
            return None
        call = self._waiting[worker] = object()
        try:
            if len(self._waiting) == self._workers:
                self._open()
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._gate.wait(), seconds)
            return None if ticket[1] != self._passed else (ticket, self._missing(worker))
        finally:  # or the call itself was given up
            if self._waiting.get(worker) is call:
                del self._waiting[worker]

    async def withdraw(self, worker: str) -> None:
        """The worker does not wait at the barrier any more."""
        self._waiting.pop(worker, None)

    def _open(self) -> None:
        """Let through everybody who waits."""
        self._passed, self._waiting = self._passed + 1, {}
        self._gate.set()
        self._gate = asyncio.Event()

    def _missing(self, worker: str) -> dict[int, tuple[bool, str]]:
        """Ranks that do not wait with a worker: whether they ever will, and what is known of them."""
        now, found = time.monotonic(), {}
        seen = {r: now - self._seen[w] for w, r in self._ranks.items()}
        here = {self._ranks.get(one) for one in (worker, *self._waiting)}
        for rank in set(range(self._workers)) - here:
            if rank in self._left:
                found[rank] = True, "has closed the store"
            elif rank not in seen:
                found[rank] = False, "has not joined"
            elif seen[rank] > SILENT:
                found[rank] = True, f"gave no sign of life for {seen[rank]:.0f} s ({self._places[rank]})"
            else:
                found[rank] = False, f"is alive ({self._places[rank]})"
        return found

    # ---- the end --------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(BEAT)
            now = time.monotonic()
            latest = max(self._seen.values(), default=self._since)
            self._since = max(self._since, latest)
            if len(self._left) == self._workers or now - self._since > GRACE:
                await self._end()

    async def _end(self) -> None:
        import ray

        for index in range(self._servers):
            with contextlib.suppress(Exception):  # it may be dead, or hang
                server = ray.get_actor(server_name(self._name, index), NAMESPACE)
                await asyncio.wait_for(server.discard.remote(), BEAT)
            with contextlib.suppress(Exception):
                ray.kill(server, no_restart=True)
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def coordinator_name(store: str) -> str:
    """Name of the actor."""
    return f"{store}/coordinator"


def server_name(store: str, index: int) -> str:
    """Name of the actor."""
    return f"{store}/server-{index}"


def here() -> str:
    """Host and process, for messages."""
    return f"{socket.gethostname()}, process {os.getpid()}"
