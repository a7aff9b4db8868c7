"""A worker's connection to one server: pushes in flight, the replay log, and recovery.

A push is appended to the replay log and sent. Up to `WINDOW` pushes are in flight; the next one waits, which is the
back-pressure. The log keeps each push until a snapshot of the server contains it. When a server has been away, the
connection asks how far it has come and replays what is missing, in order. Pushes are numbered, which makes a replay
idempotent (`feedline.kvstore.parameter_server.shard`). What an updater raised at a push is raised here once, whether
the first answer arrived or not. When the log is full its oldest pushes are dropped; only those can be lost, if the
server dies before its next snapshot, and a warning says so.

An answer is looked at before it is believed: what no server says is a `StoreError`. A wait can be left (by Ctrl-C, or a
timeout) and resumed later: what comes next follows from the numbers of what was kept, sent and answered alone.

Costs: a push of more than `INLINE` bytes is copied once, into Ray's shared memory, where the server reads it and the
log keeps it.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from feedline.collective import interrupts
from feedline.errors import StoreError
from feedline.kvstore.base import Key
from feedline.kvstore.parameter_server.ray_cluster import remaining
from feedline.kvstore.parameter_server.server import Answer, Greeting
from feedline.kvstore.parameter_server.shard import Rule
from feedline.kvstore.parameter_server.wire_format import Item

#: Pushes in flight before another one waits.
WINDOW = 4
#: Bytes up to which arrays go with the message.
INLINE = 1 << 16
#: Seconds between looks at a server that is coming back.
PAUSE = 0.05
#: Seconds that a wait goes on before Ctrl-C is looked for.
SLICE = 0.25

_log = logging.getLogger("feedline")


class _Away(Exception):  # noqa: N818  # never leaves this file
    """The server did not answer as a living one does."""


class Push(NamedTuple):
    """A push in the replay log.

    Attributes:
        number: 1 for the first one.
        items: keys, and how they come.
        run: bytes, or a reference to them in Ray's memory.
        wanted: keys to pull with it.
        size: bytes.
        end: bytes of all pushes up to this one.
    """

    number: int
    items: Sequence[Item]
    run: Any
    wanted: Sequence[Key]
    size: int
    end: int


class Flight(NamedTuple):
    """A push in flight."""

    number: int
    answer: Any
    wanted: Sequence[Key]


class Pull(NamedTuple):
    """A request in flight, with what it takes to repeat it."""

    method: str
    arguments: tuple[Any, ...]
    answer: Any


class ServerConnection:
    """A worker's connection to one server.

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
        self._log: deque[Push] = deque()
        self._last = Push(0, (), None, (), 0, 0)
        #: Numbers: of the last push that was sent to the server as it is now; up to which it is known how they went; up
        #: to which some are lost; at which the server has to pass over those.
        self._sent, self._heard, self._lost_to, self._skip = 0, 0, 0, 0
        self._flying: deque[Flight] = deque()
        self._failures: deque[Exception] = deque()
        self._brought: tuple[int, Any] = 0, None
        self._rules: dict[int, Rule] = {}
        self._trouble = ""
        self.keys, self.lost = 0, 0

    # ---- pushes ---------------------------------------------------------------------------------------------

    def keep(self, items: Sequence[Item], run: Any, wanted: Sequence[Key] = ()) -> int:
        """Append a push to the replay log, from which `flush` sends it; returns its number.

        Args:
            items: keys, and how they come.
            run: their bytes, an array of uint8; copied before this returns.
            wanted: keys to pull with the same message; see `pulled`.
        """
        import ray

        size = run.nbytes
        kept = ray.put(run) if size > INLINE else run.copy()
        last = self._last
        self._last = Push(last.number + 1, items, kept, wanted, size, last.end + size)
        self._log.append(self._last)
        # What has never been sent stays, however long the log.
        while self._size > self._room and len(self._log) > 1 and self._log[0].number <= self._sent:
            self._log.popleft()
        return self._last.number

    def flush(self, deadline: float) -> None:
        """Send what was kept; waits only where too many are on their way.

        Raises:
            StoreError: the server does not come back, or says what no server says.
            Exception: what an updater raised at a push before.
        """
        self._send_all(deadline)
        self._settle(deadline, WINDOW)
        self._send_all(deadline)
        self._raise()

    def push(self, items: Sequence[Item], run: Any, wanted: Sequence[Key], deadline: float) -> int:
        """`keep` and `flush`."""
        number = self.keep(items, run, wanted)
        self.flush(deadline)
        return number

    def pulled(self, number: int, keys: Sequence[Key], deadline: float) -> Any:
        """What came back with a push that wanted ``keys``: a run, valid while it is held.

        Where the push was taken, but the answer did not come, or did not bring it, it is asked for again.
        """
        self._send_all(deadline)
        while self._flying and self._flying[0].number <= number:
            self._settle_oldest(deadline)
            self._send_all(deadline)
        self._raise()
        brought, run = self._brought
        self._brought = 0, None
        return run if brought == number else self.answered(self.pull("pull", keys), deadline)

    def drain(self, deadline: float) -> None:
        """Wait until no push is in flight."""
        self._send_all(deadline)
        while self._flying:
            self._settle_oldest(deadline)
            self._send_all(deadline)
        self._raise()

    @property
    def _size(self) -> int:
        """Bytes in the log."""
        return self._last.end - self._log[0].end + self._log[0].size if self._log else 0

    def _send_all(self, deadline: float) -> None:
        while self._sent < self._last.number:
            while len(self._flying) >= WINDOW:
                self._settle_oldest(deadline)
            # The first may have changed meanwhile: a server that comes back gets what it lacks.
            unsent = next((push for push in self._log if push.number > self._sent), None)
            if unsent is None:
                return
            # What came back with an earlier push has been taken already.
            wanted = unsent.wanted if unsent.number > self._heard else ()
            answer = self._actor.push.remote(
                self._worker,
                unsent.number,
                unsent.items,
                unsent.run,
                wanted,
                unsent.number == self._skip,
                2 * self._size > self._room,
                self._heard,
            )
            self._flying.append(Flight(unsent.number, answer, wanted))
            self._sent = unsent.number

    def _settle(self, deadline: float, flying: int) -> None:
        """Wait until at most ``flying`` pushes are in flight, and process the answers that have arrived."""
        import ray

        while self._flying:
            if len(self._flying) <= flying and not ray.wait([self._flying[0].answer], timeout=0)[0]:
                return
            self._settle_oldest(deadline)

    def _settle_oldest(self, deadline: float) -> None:
        """Wait for the oldest push, and note how it went."""
        flight = self._flying[0]
        try:
            answer = self._checked(self._get(flight.answer, deadline))
        except _Away as error:
            self._recover(deadline, error)
            return
        if answer.behind:
            self._recover(deadline, None)
            return
        self._note(answer)
        self._hear(flight.number, answer.failure)
        if flight.wanted and answer.run is not None:
            self._brought = flight.number, answer.run
        self._flying.popleft()

    def _hear(self, number: int, failure: Exception | None) -> None:
        """It is known how a push went: once, as a server that comes back may take it again."""
        if number > self._heard:
            if failure is not None:
                self._failures.append(failure)
            self._heard = number

    def _raise(self) -> None:
        if self._failures:
            raise self._failures.popleft()

    def _note(self, answer: Answer | Greeting) -> None:
        while self._log and self._log[0].number <= answer.durable:
            self._log.popleft()
        if isinstance(answer, Answer) and answer.trouble != self._trouble:
            self._trouble = answer.trouble
            if self._trouble:
                _log.warning("%s cannot write snapshots: %s", self._name, self._trouble)

    def _checked(self, answer: Any) -> Answer:
        """An answer to a push or pull, if it is one.

        Raises:
            StoreError: it is not.
        """
        if (
            not isinstance(answer, Answer)
            or not (answer.failure is None or isinstance(answer.failure, Exception))
            or type(answer.durable) is not int
            or not 0 <= answer.durable <= self._last.number
        ):
            raise StoreError(
                f"expected an answer to push {self._last.number} or one before from {self.called}, got {answer!r:.200}"
            )
        return answer

    # ---- everything else ------------------------------------------------------------------------------------

    def pull(self, method: str, *arguments: Any) -> Pull:
        """Call a method once all pushes so far are in what is stored; it may be called twice. See `answered`."""
        return self._ask(method, (self._worker, self._last.number, *arguments))

    def ask(self, method: str, *arguments: Any) -> Pull:
        """Call a method whatever pushes are in what is stored; it may be called twice. See `answered`."""
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
                if not self._checked(answer).behind:
                    self._note(answer)
                    return answer.run
                self._recover(deadline, None)
            self.drain(deadline)
            pull = self._ask(pull.method, pull.arguments)

    def set_rule(self, rule: Rule, generation: int) -> Pull:
        """Set the server's rule behind all pushes so far, and keep it for a server that cannot; see `answered`."""
        self.keep_rule(rule, generation)
        return self.pull("set_rule", rule, generation)

    def keep_rule(self, rule: Rule, generation: int) -> None:
        """Keep a rule, set from here or by another worker, and the one before: a server may have come to either."""
        before = {known: kept for known, kept in self._rules.items() if known != generation}
        self._rules = {**dict(list(before.items())[-1:]), generation: rule}

    # ---- the way back ---------------------------------------------------------------------------------------

    def _get(self, reference: Any, deadline: float) -> Any:
        import ray

        while True:
            left = remaining(deadline)
            try:
                return ray.get(reference, timeout=min(SLICE, left))
            except ray.exceptions.GetTimeoutError as error:
                if not left:
                    raise StoreError(
                        f"expected an answer of {self.called} in time, got none: it hangs, or is cut off"
                    ) from error
            except ray.exceptions.RayTaskError as error:
                raise (error.cause if isinstance(error.cause, Exception) else error) from error
            except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as error:
                raise _Away from error
            interrupts.deliver()

    def _recover(self, deadline: float, cause: Exception | None) -> None:
        """Wait for the server, and let `flush` begin with what it does not have."""
        if remaining(deadline) == 0:
            raise StoreError(f"expected {self.called} to catch up in time, but it has not") from cause
        greeting = self._greeted(deadline, cause)
        self._place = greeting.place
        missing = next((push.number for push in self._log if push.number > greeting.applied), self._last.number + 1)
        if greeting.keys < self.keys or greeting.applied < self._last.number < missing:
            raise StoreError(
                f"expected {self.keys} keys and the pushes up to {missing - 1} in {self.called}, got {greeting.keys} "
                f"and those up to {greeting.applied}: it has lost its snapshot; on several hosts, give a folder that "
                "all of them share as `snapshots`"
            )
        if missing > greeting.applied + 1:
            self._lose(greeting.applied, missing)
        for number, failure in greeting.failures:
            self._hear(number, failure)
        self._heard = max(self._heard, greeting.applied)
        self._note(greeting)
        # From here on the server has what it said, and the rest is to be sent. This is last: left before, it is done
        # again.
        self._flying.clear()
        self._sent = greeting.applied

    def _greeted(self, deadline: float, cause: Exception | None) -> Greeting:
        """A server that is back, and has its rule."""
        import ray

        while True:
            try:
                greeting = self._get(self._actor.greet.remote(self._worker, self._heard), deadline)
                if not isinstance(greeting, Greeting) or not 0 <= greeting.applied <= self._last.number:
                    raise StoreError(
                        f"expected {self.called} to have at most {self._last.number} pushes, got {greeting!r:.200}"
                    )
                if greeting.missing and greeting.generation in self._rules:
                    rule = self._rules[greeting.generation]
                    self._get(self._actor.bring_rule.remote(rule, greeting.generation), deadline)
                    return greeting
            except _Away as error:
                cause, why = cause or error, error.__cause__
                if isinstance(why, ray.exceptions.ActorDiedError):
                    raise StoreError(f"expected {self.called} to come back, but it is gone: {why}") from cause
                if remaining(deadline) == 0:
                    raise StoreError(f"expected {self.called} to come back in time, but it is still away") from cause
            else:
                if not greeting.missing:
                    return greeting
            if remaining(deadline) == 0:
                raise StoreError(f"expected a worker to bring {self.called} its updater again, but none did")
            time.sleep(PAUSE)
            interrupts.deliver()

    def _lose(self, applied: int, missing: int) -> None:
        """Pushes between the last one that the server has and the first one that could be sent are lost."""
        lost = missing - 1 - max(applied, self._lost_to)
        if lost > 0:
            self.lost += lost
            _log.warning("%d pushes of this worker are lost: %s died before its snapshot", lost, self.called)
        self._lost_to, self._skip = max(self._lost_to, missing - 1), missing

    @property
    def called(self) -> str:
        """The server, for messages."""
        return f"{self._name} ({self._place})" if self._place else self._name
