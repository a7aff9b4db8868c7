"""A worker's link to one server: messages on their way, pushes that may have to be sent again, and the way back.

A push is sent and not waited for; up to `WINDOW` of them are on their way. The link keeps each until a snapshot of the
server contains it. When the server was away, the link asks how far it has come, and sends what is missing, in order;
pushes have numbers, so none is taken twice (`feedline.kvstore.shard`). When a log is full, the oldest pushes leave it;
only those can be lost, and only if the server dies before its next snapshot. It is said when it happens.

Costs: a push of more than `INLINE` bytes is copied once, into Ray's shared memory, where the server reads it and the
log keeps it.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from feedline.errors import StoreError
from feedline.kvstore.base import Key
from feedline.kvstore.cluster import remaining
from feedline.kvstore.server import Answer, Greeting
from feedline.kvstore.shard import Rule
from feedline.kvstore.wire import Item

#: Pushes on their way before another waits.
WINDOW = 4
#: Bytes up to which arrays go with the message.
INLINE = 1 << 16
#: Seconds between looks at a server that is coming back.
PAUSE = 0.05

_log = logging.getLogger("feedline")


class _Away(Exception):  # noqa: N818  # never leaves this file
    """The server did not answer as a living one does."""


class Push(NamedTuple):
    """A push in the log."""

    number: int
    items: Sequence[Item]
    run: Any  # bytes, or a reference to them in Ray's memory
    size: int


class Flight(NamedTuple):
    """A push on its way."""

    number: int
    answer: Any
    wanted: Sequence[Key]


class Pull(NamedTuple):
    """A question on its way, with which it can be asked again."""

    method: str
    arguments: tuple[Any, ...]
    answer: Any


class Link:
    """A worker's link to one server.

    Args:
        actor: Ray's handle of the server.
        index: its number.
        count: of servers.
        worker: this worker's name.
        room: bytes for pushes that may have to be sent again.

    Attributes:
        keys: how many keys this worker knows to be there.
        lost: pushes of this worker that went with a server.
    """

    def __init__(self, actor: Any, index: int, count: int, worker: str, room: int) -> None:
        self._actor, self._worker, self._room = actor, worker, room
        self._name, self._place = f"server {index} of {count}", ""
        self._number = 0
        self._log: deque[Push] = deque()
        self._size = 0
        self._flying: deque[Flight] = deque()
        self._rule: tuple[Rule, int] | None = None
        self._trouble = ""
        self.keys, self.lost = 0, 0

    # ---- pushes ---------------------------------------------------------------------------------------------

    def push(self, items: Sequence[Item], run: Any, wanted: Sequence[Key], deadline: float) -> int:
        """Send a push; returns its number.

        Args:
            items: keys, and how they come.
            run: their bytes, an array of uint8; copied before this returns.
            wanted: keys to pull with the same message; see `pulled`.
            deadline: to have room for it.

        Raises:
            StoreError: the server does not come back.
            Exception: what an updater raised at an earlier push.
        """
        import ray

        self._settle(deadline, WINDOW - 1)
        size = run.nbytes
        kept = ray.put(run) if size > INLINE else run.copy()
        self._number += 1
        push = Push(self._number, items, kept, size)
        self._log.append(push)
        self._size += size
        while self._size > self._room and len(self._log) > 1:
            self._size -= self._log.popleft().size
        self._send(push, wanted, False)
        return self._number

    def pulled(self, number: int, keys: Sequence[Key], deadline: float) -> Any:
        """What came back with a push that wanted ``keys``: a run, valid while it is held."""
        run = None
        while self._flying and self._flying[0].number <= number:
            run = self._settle_oldest(deadline)
        return self.answered(self.pull("pull", keys), deadline) if run is None else run

    def drain(self, deadline: float) -> None:
        """Wait until all pushes are taken."""
        self._settle(deadline, 0)

    def _send(self, push: Push, wanted: Sequence[Key], skip: bool) -> None:
        answer = self._actor.push.remote(
            self._worker, push.number, push.items, push.run, wanted, skip, 2 * self._size > self._room
        )
        self._flying.append(Flight(push.number, answer, wanted))

    def _settle(self, deadline: float, flying: int) -> None:
        """Wait until no more than so many are on their way, and look at those that have come."""
        import ray

        while self._flying:
            if len(self._flying) <= flying and not ray.wait([self._flying[0].answer], timeout=0)[0]:
                return
            self._settle_oldest(deadline)

    def _settle_oldest(self, deadline: float) -> Any:
        """What the oldest push brought; None if it had to be sent again."""
        flight = self._flying[0]
        try:
            answer = self._get(flight.answer, deadline)
        except _Away as error:
            self._recover(deadline, error)
            return None
        if answer.behind:
            self._recover(deadline, None)
            return None
        self._flying.popleft()
        self._note(answer)
        if answer.failure is not None:
            raise answer.failure
        return answer.run

    def _note(self, answer: Answer | Greeting) -> None:
        while self._log and self._log[0].number <= answer.durable:
            self._size -= self._log.popleft().size
        if isinstance(answer, Answer) and answer.trouble != self._trouble:
            self._trouble = answer.trouble
            if self._trouble:
                _log.warning("%s cannot write snapshots: %s", self._name, self._trouble)

    # ---- everything else ------------------------------------------------------------------------------------

    def pull(self, method: str, *arguments: Any) -> Pull:
        """Ask for what is stored, all pushes so far included; see `answered`."""
        return self._ask(method, (self._worker, self._number, *arguments))

    def ask(self, method: str, *arguments: Any) -> Pull:
        """Call a method that may be called twice; see `answered`."""
        return self._ask(method, arguments)

    def _ask(self, method: str, arguments: tuple[Any, ...]) -> Pull:
        return Pull(method, arguments, getattr(self._actor, method).remote(*arguments))

    def answered(self, pull: Pull, deadline: float) -> Any:
        """Wait for an answer, and ask again if the server was away; after all earlier pushes have been looked at.

        Raises:
            StoreError: the server does not come back, or does not answer.
            Exception: what it raised.
        """
        self.drain(deadline)
        while True:
            try:
                answer = self._get(pull.answer, deadline)
            except _Away as error:
                self._recover(deadline, error)
            else:
                if not isinstance(answer, Answer):
                    return answer
                if not answer.behind:
                    self._note(answer)
                    return answer.run
                self._recover(deadline, None)
            self.drain(deadline)
            pull = self._ask(pull.method, pull.arguments)

    def set_rule(self, rule: Rule, generation: int) -> Pull:
        """Set the server's rule, and keep it for a server that cannot; see `answered`."""
        self.keep_rule(rule, generation)
        return self.ask("set_rule", rule, generation)

    def keep_rule(self, rule: Rule, generation: int) -> None:
        """Keep a rule that another worker sets."""
        self._rule = rule, generation

    # ---- the way back ---------------------------------------------------------------------------------------

    def _get(self, reference: Any, deadline: float) -> Any:
        import ray

        try:
            return ray.get(reference, timeout=remaining(deadline))
        except ray.exceptions.GetTimeoutError as error:
            raise StoreError(
                f"expected an answer of {self._called()} in time, got none: it hangs, or is cut off"
            ) from error
        except ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from error
        except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as error:
            raise _Away from error

    def _recover(self, deadline: float, cause: Exception | None) -> None:
        """Wait for the server, and send what it does not have."""
        import ray

        while True:
            try:
                greeting: Greeting = self._get(self._actor.greet.remote(self._worker), deadline)
                if greeting.missing and self._rule is not None and self._rule[1] == greeting.generation:
                    self._get(self._actor.set_rule.remote(*self._rule), deadline)
                    break
            except _Away as error:
                cause, why = cause or error, error.__cause__
                if isinstance(why, ray.exceptions.ActorDiedError):
                    raise StoreError(f"expected {self._called()} to come back, but it is gone: {why}") from cause
                if remaining(deadline) == 0:
                    raise StoreError(f"expected {self._called()} to come back in time, but it is still away") from cause
            else:
                if not greeting.missing:
                    break
                if remaining(deadline) == 0:
                    raise StoreError(f"expected a worker to bring {self._called()} its updater again, but none did")
            time.sleep(PAUSE)
        self._place = greeting.place
        if greeting.keys < self.keys:
            raise StoreError(
                f"expected {self.keys} keys in {self._called()}, got {greeting.keys}: it has lost its snapshot; on "
                "several hosts, give a folder that all of them share as `snapshots`"
            )
        self._flying.clear()
        self._note(greeting)
        missing = [push for push in self._log if push.number > greeting.applied]
        lost = missing[0].number - greeting.applied - 1 if missing else 0
        if lost > 0:
            self.lost += lost
            _log.warning("%d pushes of this worker are lost: %s died before its snapshot", lost, self._called())
        for push in missing:
            self._send(push, (), lost > 0 and push is missing[0])

    def _called(self) -> str:
        return f"{self._name} ({self._place})" if self._place else self._name
