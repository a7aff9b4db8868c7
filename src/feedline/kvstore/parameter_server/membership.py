"""A worker's place among the workers of a ``dist_async`` store: its rank, its signs of life, the barrier, the end.

The other side is `feedline.kvstore.parameter_server.coordinator`. Costs: a thread and a small message a second.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from typing import Any

from feedline.collective.refusal import RefusedError
from feedline.errors import StoreError
from feedline.kvstore.parameter_server import coordinator
from feedline.kvstore.parameter_server.ray_cluster import remaining
from feedline.kvstore.parameter_server.server import Server

#: Seconds between looks at what others are to do first.
PAUSE = 0.05


class Membership:
    """This process as a worker of a store; Ray is joined already.

    Args:
        name: of the store.
        workers: how many share it.
        servers: how many hold it, if this is the first worker.
        rank: of this worker; None: the lowest that is free.
        folder: for snapshots; empty: a temporary one.
        every: seconds between snapshots.
        timeout: seconds to get the rank.
        secured: whether Ray must ask for a token.

    Attributes:
        name: of this worker, unlike all others.
        rank: of this worker.
        workers: how many share the store.
        servers: handles of the actors.
        folder: of the servers' snapshots.

    Raises:
        StoreError: the rank is not to be had.
        RefusedError: the first worker said another number of workers; or Ray asks for no token.
    """

    def __init__(
        self,
        name: str,
        workers: int,
        servers: int,
        rank: int | None,
        folder: str,
        every: float,
        timeout: float,
        secured: bool,
    ) -> None:
        import ray

        self.name = uuid.uuid4().hex
        self._timeout = timeout
        #: Of a barrier whose outcome is not known.
        self._ticket: tuple[str, int] | None = None
        self._over = threading.Event()
        member = self._join(name, (workers, servers, folder), rank)
        self.rank, self.workers, self.folder = member.rank, member.workers, member.folder
        if member.workers != workers:
            self._leave()
            raise RefusedError(f"expected {member.workers} workers, as the first one said, got {workers}")
        if secured and member.auth.lower() != "token":
            self._leave()
            raise RefusedError(
                "expected a Ray that asks for a token, as it is not on loopback, got one with RAY_AUTH_MODE "
                f"{member.auth}: whoever reaches it runs code"
            )
        actor = ray.remote(Server)
        self.servers = [
            actor.options(**_lasting(coordinator.server_name(name, i)), scheduling_strategy="SPREAD").remote(
                i, member.folder, every
            )
            for i in range(member.servers)
        ]
        self._thread = threading.Thread(target=self._beat, name="feedline-beat", daemon=True)
        self._thread.start()

    def barrier(self, deadline: float) -> None:
        """Wait until every worker has come.

        A barrier that was left without an answer, as by Ctrl-C, is the one that the next call waits at: the others may
        have passed it.

        Raises:
            StoreError: one has left or is dead, or does not come in time.
        """
        import ray

        missing = dict[int, tuple[bool, str]]()
        settled = False
        try:
            while True:
                settled = False
                try:
                    if self._ticket is None:
                        asked = self._coordinator.ticket.remote(self.name)
                        self._ticket = ray.get(asked, timeout=remaining(deadline) + 1)
                    patience = min(1.0, remaining(deadline))
                    asked = self._coordinator.arrive.remote(self.name, self._ticket, patience)
                    answer = ray.get(asked, timeout=remaining(deadline) + 1)
                except ray.exceptions.ActorUnavailableError:
                    pass  # it comes back, and a beat tells it of us
                except ray.exceptions.RayError as error:
                    raise StoreError(f"expected an answer of the store's coordinator in time, got {error}") from error
                else:
                    settled = True
                    if answer is None:
                        return
                    self._ticket, missing = answer
                dead = {rank: why for rank, (never, why) in missing.items() if never}
                if dead or remaining(deadline) == 0:
                    shown = dead or {rank: why for rank, (_, why) in missing.items()}
                    listed = ", ".join(f"rank {rank}, which {why}" for rank, why in sorted(shown.items()))
                    listed = f"missing {listed}" if listed else "but the store's coordinator is away"
                    raise StoreError(f"expected all {self.workers} workers at the barrier, {listed}")
                if self._ticket is None:  # it does not know us, or does not answer
                    time.sleep(PAUSE)
                    self._be_known(max(0.1, remaining(deadline)))
        finally:
            if settled:
                self._ticket = None
            else:
                with contextlib.suppress(ray.exceptions.RayError):  # else it gives up with the call
                    self._coordinator.withdraw.remote(self.name)

    def close(self) -> None:
        """Stop beating and leave the store."""
        self._over.set()
        self._thread.join(1.0)
        self._leave()

    def _join(self, name: str, first: tuple[Any, ...], rank: int | None) -> coordinator.JoinReply:
        import ray

        deadline = time.monotonic() + self._timeout
        # By value: a process that imported feedline's stores would import torch, too.
        ray.cloudpickle.register_pickle_by_value(coordinator)
        actor = ray.remote(coordinator.Coordinator).options(**_lasting(coordinator.coordinator_name(name)))
        why = ""
        while True:
            try:
                self._coordinator = actor.remote(name, *first)
                asked = self._coordinator.join.remote(self.name, rank, coordinator.here())
                member: coordinator.JoinReply = ray.get(asked, timeout=remaining(deadline))
            except ray.exceptions.RayActorError as error:  # one of an earlier store is on its way out
                again, why = not error.actor_init_failed, str(error)
            except ray.exceptions.GetTimeoutError:
                again, why = False, why or "its coordinator does not answer"
            else:
                if member.rank >= 0:
                    return member
                again, why = member.again, member.why
            if not again or remaining(deadline) == 0:
                raise StoreError(f"expected to become a worker of store {name!r}, but {why}")
            time.sleep(PAUSE)

    def _beat(self) -> None:
        while not self._over.wait(coordinator.BEAT):
            self._be_known(self._timeout)

    def _be_known(self, seconds: float) -> None:
        """A sign of life, to a coordinator that may have been started again since the last one."""
        import ray

        with contextlib.suppress(ray.exceptions.RayError):  # calls will say what is wrong
            if not ray.get(self._coordinator.beat.remote(self.name), timeout=seconds):
                again = self._coordinator.join.remote(self.name, self.rank, coordinator.here())
                ray.get(again, timeout=seconds)

    def _leave(self) -> None:
        import ray

        with contextlib.suppress(ray.exceptions.RayError):  # whoever is silent is taken for dead
            ray.get(self._coordinator.leave.remote(self.name), timeout=5)


def _lasting(name: str) -> dict[str, Any]:
    """Options of an actor that belongs to no worker, and that every worker finds or makes."""
    return {
        "name": name,
        "namespace": coordinator.NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "max_restarts": -1,
        "num_cpus": 0,
    }
