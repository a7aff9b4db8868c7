"""The membership of a worker in a ``dist_async`` store: rank, heartbeat, barrier, leave.

The counterpart is `feedline.kvstore.parameter_server.coordinator`. Costs: a thread, and a small message a second.
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
from feedline.kvstore.parameter_server.ray_cluster import is_connected
from feedline.kvstore.parameter_server.server import BEATS, Server

#: Seconds between polls while other workers have to act first.
PAUSE_S = 0.05


class Membership:
    """The membership of this process in a store, as a worker. The process must have joined Ray.

    Args:
        name: name of the store.
        workers: number of workers that share it.
        servers: number of servers, which the first worker decides.
        rank: rank of this worker. None means the lowest free one.
        folder: folder for snapshots. Empty for a temporary one.
        every_s: seconds between snapshots.
        timeout_s: seconds to wait for a rank that is taken, and for the answers of a running coordinator.
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
        RefusedError: the first worker set another number of workers, or Ray requires no token.
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
        self._closed = threading.Event()
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
            actor.options(**_actor_options(coordinator.server_name(name, i)), scheduling_strategy="SPREAD").remote(
                i, member.folder, every_s
            )
            for i in range(member.servers)
        ]
        self._thread = begin("beat", self._beat)

    def barrier(self, timeout_s: float) -> None:
        """Wait until every worker has arrived, up to ``timeout_s`` seconds, while the coordinator knows who is missing.

        After a call that was interrupted, as by Ctrl-C, the next call waits at the same barrier, which other workers
        may have passed.

        Raises:
            StoreError: a worker has left, is dead, or does not arrive in time.
        """
        import ray

        missing = dict[int, tuple[bool, str]]()
        answered = False
        worker_silence, coordinator_silence = Silence(timeout_s), Silence(max(timeout_s, START_S))
        try:
            while True:
                answered = False
                try:
                    if self._ticket is None:
                        request = self.coordinator.ticket.remote(self.name)
                        self._ticket = ray.get(request, timeout=self._timeout_s)
                    patience = min(1.0, timeout_s)
                    request = self.coordinator.arrive.remote(self.name, self._ticket, patience)
                    answer = ray.get(request, timeout=self._timeout_s + patience)
                except ray.exceptions.ActorUnavailableError:
                    coordinator_silence.add(PAUSE_S)  # it restarts, and a heartbeat registers this worker again
                except ray.exceptions.RayError as error:
                    raise StoreError(f"expected an answer from the store's coordinator in time, got {error}") from error
                else:
                    answered = True
                    if answer is None:
                        return
                    self._ticket, missing = answer
                    worker_silence.add(patience if self._ticket is not None else PAUSE_S)
                dead = {rank: why for rank, (never, why) in missing.items() if never}
                if dead or worker_silence.too_long or coordinator_silence.too_long:
                    absent = dead or {rank: why for rank, (_, why) in missing.items()}
                    text = ", ".join(f"rank {rank}, which {why}" for rank, why in sorted(absent.items()))
                    text = f"missing {text}" if text else "but the store's coordinator is away"
                    raise StoreError(f"expected all {self.workers} workers at the barrier, {text}")
                if self._ticket is None:  # the coordinator does not know this worker, or does not answer
                    time.sleep(PAUSE_S)
                    self._renew(self._timeout_s)
        finally:
            if answered:
                self._ticket = None
            else:
                with contextlib.suppress(ray.exceptions.RayError):  # otherwise the wait ends with its timeout
                    self.coordinator.withdraw.remote(self.name)

    def close(self) -> None:
        """Stop the heartbeat and leave the store."""
        self._closed.set()
        self._thread.join(1.0)
        self._leave()

    def _join(self, name: str, first: tuple[Any, ...], rank: int | None) -> coordinator.JoinReply:
        import ray

        # Pickled by value, as importing them from feedline would import torch.
        for module in (coordinator, silence_module):
            ray.cloudpickle.register_pickle_by_value(module)
        actor = ray.remote(coordinator.Coordinator).options(**_actor_options(coordinator.coordinator_name(name)))
        why, taken_silence = "", Silence(self._timeout_s)
        while True:
            try:
                self.coordinator = actor.remote(name, *first)
                request = self.coordinator.join.remote(self.name, rank, coordinator.host_and_process())
                member: coordinator.JoinReply = ray.get(request, timeout=max(self._timeout_s, START_S))
            except ray.exceptions.RayActorError as error:  # the coordinator of an earlier store is shutting down
                retry, why = not error.actor_init_failed, str(error)
            except ray.exceptions.GetTimeoutError:
                retry, why = False, why or "its coordinator does not answer"
            else:
                if member.rank >= 0:
                    return member
                retry, why = member.retry, member.refusal
            if not retry or taken_silence.too_long:
                raise StoreError(f"expected to become a worker of store {name!r}, but {why}")
            time.sleep(PAUSE_S)
            taken_silence.add(PAUSE_S)

    def _beat(self) -> None:
        while not self._closed.wait(coordinator.BEAT_S):
            self._renew(self._timeout_s)

    def _renew(self, seconds: float) -> None:
        """Send a heartbeat, and join again if the coordinator was restarted."""
        if not is_connected():
            return
        import ray

        with contextlib.suppress(ray.exceptions.RayError):  # the store's calls report errors
            if not ray.get(self.coordinator.beat.remote(self.name), timeout=seconds):
                again = self.coordinator.join.remote(self.name, self.rank, coordinator.host_and_process())
                ray.get(again, timeout=seconds)

    def _leave(self) -> None:
        if not is_connected():
            return
        import ray

        with contextlib.suppress(ray.exceptions.RayError):  # otherwise its silence frees the rank
            ray.get(self.coordinator.leave.remote(self.name), timeout=5)


def _actor_options(name: str) -> dict[str, Any]:
    """Return options of a detached actor that every worker finds or creates."""
    return {
        "name": name,
        "namespace": coordinator.NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "max_restarts": -1,
        "num_cpus": 0,
    }
