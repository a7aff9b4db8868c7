"""Membership of a worker in a ``dist_async`` store: rank, heartbeat, barrier, leave.

The other side is `feedline.kvstore.parameter_server.coordinator`. Costs: a thread, and a small message a second.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from typing import Any

from feedline.collective import silence as silence_module
from feedline.collective.refusal import RefusedError
from feedline.collective.silence import Silence
from feedline.concurrency.named_threads import begin
from feedline.errors import StoreError
from feedline.interop.private_ray import START_S
from feedline.kvstore.parameter_server import coordinator
from feedline.kvstore.parameter_server.server import BEATS, Server

#: Seconds between polls while other workers have to act first.
PAUSE_S = 0.05


class Membership:
    """This process as a worker of a store. Ray must have been joined.

    Args:
        name: name of the store.
        workers: number of workers that share it.
        servers: number of servers, which the first worker decides.
        rank: rank of this worker. None: the lowest free one.
        folder: folder for snapshots; empty: a temporary one.
        every_s: seconds between snapshots.
        timeout_s: seconds to wait for a rank that is taken, and for answers of a coordinator that has started.
        secured: whether Ray must require a token.

    Attributes:
        name: unique name of this worker.
        rank: rank of this worker.
        workers: number of workers that share the store.
        servers: handles of the server actors.
        folder: folder of the servers' snapshots.
        coordinator: handle of the coordinator.

    Raises:
        StoreError: the rank is taken, or the coordinator does not answer.
        RefusedError: the number of workers differs from the first worker's, or Ray requires no token.
    """

    def __init__(
        self,
        name: str,
        workers: int,
        servers: int,
        rank: int | None,
        folder: str,
        every_s: float,
        timeout_s: float,
        secured: bool,
    ) -> None:
        import ray

        self.name = uuid.uuid4().hex
        self._timeout_s = timeout_s
        #: Ticket of a barrier whose outcome is unknown.
        self._ticket: tuple[str, int] | None = None
        self._over = threading.Event()
        member = self._join(name, (workers, servers, folder), rank)
        self.rank, self.workers, self.folder = member.rank, member.workers, member.folder
        if member.workers != workers:
            self._leave()
            raise RefusedError(f"expected {member.workers} workers, as the first worker set, got {workers}")
        if secured and member.auth.lower() != "token":
            self._leave()
            raise RefusedError(
                f"expected Ray to require a token, as it is not on loopback, got RAY_AUTH_MODE {member.auth}: anyone "
                "who can reach it can run code"
            )
        actor = ray.remote(concurrency_groups={BEATS: 1})(Server)
        self.servers = [
            actor.options(**_lasting(coordinator.server_name(name, i)), scheduling_strategy="SPREAD").remote(
                i, member.folder, every_s
            )
            for i in range(member.servers)
        ]
        self._thread = begin("beat", self._beat)

    def barrier(self, timeout_s: float) -> None:
        """Wait until every worker has arrived, up to ``timeout_s`` seconds, while the coordinator knows who is missing.

        After an interrupted call, as by Ctrl-C, the next call waits at the same barrier, which other workers may have
        passed.

        Raises:
            StoreError: a worker has left, is dead, or does not arrive in time.
        """
        import ray

        missing = dict[int, tuple[bool, str]]()
        settled = False
        peers, away = Silence(timeout_s), Silence(max(timeout_s, START_S))
        try:
            while True:
                settled = False
                try:
                    if self._ticket is None:
                        request = self.coordinator.ticket.remote(self.name)
                        self._ticket = ray.get(request, timeout=self._timeout_s)
                    patience = min(1.0, timeout_s)
                    request = self.coordinator.arrive.remote(self.name, self._ticket, patience)
                    answer = ray.get(request, timeout=self._timeout_s + patience)
                except ray.exceptions.ActorUnavailableError:
                    away.passed(PAUSE_S)  # it restarts, and a heartbeat registers this worker again
                except ray.exceptions.RayError as error:
                    raise StoreError(f"expected an answer from the store's coordinator in time, got {error}") from error
                else:
                    settled = True
                    if answer is None:
                        return
                    self._ticket, missing = answer
                    peers.passed(patience if self._ticket is not None else PAUSE_S)
                dead = {rank: why for rank, (never, why) in missing.items() if never}
                if dead or peers.too_long or away.too_long:
                    shown = dead or {rank: why for rank, (_, why) in missing.items()}
                    listed = ", ".join(f"rank {rank}, which {why}" for rank, why in sorted(shown.items()))
                    listed = f"missing {listed}" if listed else "but the store's coordinator is away"
                    raise StoreError(f"expected all {self.workers} workers at the barrier, {listed}")
                if self._ticket is None:  # the coordinator does not know this worker, or does not answer
                    time.sleep(PAUSE_S)
                    self._be_known(self._timeout_s)
        finally:
            if settled:
                self._ticket = None
            else:
                with contextlib.suppress(ray.exceptions.RayError):  # otherwise the wait ends with its timeout
                    self.coordinator.withdraw.remote(self.name)

    def close(self) -> None:
        """Stop the heartbeat and leave the store."""
        self._over.set()
        self._thread.join(1.0)
        self._leave()

    def _join(self, name: str, first: tuple[Any, ...], rank: int | None) -> coordinator.JoinReply:
        import ray

        # Pickled by value, as importing them from feedline would import torch.
        for module in (coordinator, silence_module):
            ray.cloudpickle.register_pickle_by_value(module)
        actor = ray.remote(coordinator.Coordinator).options(**_lasting(coordinator.coordinator_name(name)))
        why, taken = "", Silence(self._timeout_s)
        while True:
            try:
                self.coordinator = actor.remote(name, *first)
                request = self.coordinator.join.remote(self.name, rank, coordinator.host_and_process())
                member: coordinator.JoinReply = ray.get(request, timeout=max(self._timeout_s, START_S))
            except ray.exceptions.RayActorError as error:  # the coordinator of an earlier store is shutting down
                again, why = not error.actor_init_failed, str(error)
            except ray.exceptions.GetTimeoutError:
                again, why = False, why or "its coordinator does not answer"
            else:
                if member.rank >= 0:
                    return member
                again, why = member.again, member.why
            if not again or taken.too_long:
                raise StoreError(f"expected to become a worker of store {name!r}, but {why}")
            time.sleep(PAUSE_S)
            taken.passed(PAUSE_S)

    def _beat(self) -> None:
        while not self._over.wait(coordinator.BEAT_S):
            self._be_known(self._timeout_s)

    def _be_known(self, seconds: float) -> None:
        """Send a heartbeat, and join again if the coordinator was restarted."""
        import ray

        with contextlib.suppress(ray.exceptions.RayError):  # the store's calls report errors
            if not ray.get(self.coordinator.beat.remote(self.name), timeout=seconds):
                again = self.coordinator.join.remote(self.name, self.rank, coordinator.host_and_process())
                ray.get(again, timeout=seconds)

    def _leave(self) -> None:
        import ray

        with contextlib.suppress(ray.exceptions.RayError):  # otherwise its silence frees the rank
            ray.get(self.coordinator.leave.remote(self.name), timeout=5)


def _lasting(name: str) -> dict[str, Any]:
    """Return options of a detached actor that every worker finds or creates."""
    return {
        "name": name,
        "namespace": coordinator.NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "max_restarts": -1,
        "num_cpus": 0,
    }
