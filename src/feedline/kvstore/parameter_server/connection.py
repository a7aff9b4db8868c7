"""A worker's connection to one server: pushes in flight, the replay log, and recovery.

A push is appended to the replay log and sent. Up to `MAX_IN_FLIGHT` pushes are in flight. A further push waits, which
is the back-pressure. The log keeps each push until a snapshot of the server contains it. When a server was away, the
connection asks which push it applied last and replays the missing pushes in order. Pushes are numbered, which makes a
replay idempotent (`feedline.kvstore.parameter_server.shard`). An updater's exception is raised here once, whether the
first answer arrived or not. When the log is full, its oldest pushes are dropped. Only dropped pushes can be lost, if
the server dies before its next snapshot, and a warning is logged then.

Answers are validated: a malformed one is a `StoreError`. A wait can be interrupted (by Ctrl-C, or an error) and
resumed later, since the next step depends only on the numbers of the pushes logged, sent and answered.

A server that works, however slowly, is waited for: it answers `Server.beat` meanwhile. A server that answers neither
call hangs or cannot be reached. That is an error after ``timeout_s``, or after `START_S` while its process starts. A
server that every replay kills again is an error after `MAX_RECOVERIES`.

Costs: a push of more than `INLINE_BYTES` is copied once, into Ray's shared memory, where the server reads it and the
log keeps it.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from feedline.collective import deferred_interrupts
from feedline.collective.silence import Silence
from feedline.errors import StoreError
from feedline.interop.private_ray import START_S
from feedline.kvstore.base import Key
from feedline.kvstore.parameter_server.server import BEATS, Answer, Greeting
from feedline.kvstore.parameter_server.shard import Rule
from feedline.kvstore.parameter_server.wire_format import Item

#: Largest number of pushes in flight.
MAX_IN_FLIGHT = 4
#: Largest size in bytes of arrays that are sent within the message.
INLINE_BYTES = 1 << 16
#: Seconds between polls of a server that restarts.
PAUSE_S = 0.05
#: Seconds between checks for Ctrl-C, and for a heartbeat, during a wait.
SLICE_S = 0.25
#: Largest number of times in a row that a server is restarted, or lacks pushes, without answering one.
MAX_RECOVERIES = 10

_log = logging.getLogger("feedline")


class _Away(Exception):  # noqa: N818  # not raised to callers
    """The server is unavailable: it died, or its answer was lost."""


class Push(NamedTuple):
    """A push in the replay log.

    Attributes:
        number: number of the push, from 1.
        items: keys, and how their values are encoded.
        buffer: bytes of the values, or a reference to them in the memory of Ray.
        pull_keys: keys to pull with it.
        size: bytes of the values.
    """

    number: int
    items: Sequence[Item]
    buffer: Any
    pull_keys: Sequence[Key]
    size: int


class Flight(NamedTuple):
    """A push in flight."""

    number: int
    answer: Any
    pull_keys: Sequence[Key]


class Pull(NamedTuple):
    """A request in flight, and the method and arguments to repeat it."""

    method: str
    arguments: tuple[Any, ...]
    answer: Any


class ServerConnection:
    """A worker's connection to one server.

    Args:
        actor: Ray's handle of the server.
        index: number of the server.
        count: number of servers.
        worker: name of this worker.
        log_bytes: size in bytes of the replay log.
        timeout_s: seconds of silence after which a server that has started hangs.

    Attributes:
        actor: see above.
        timeout_s: see above.
        keys: number of keys that this worker knows to exist on the server.
        lost: number of this worker's pushes that were lost with a server.
    """

    def __init__(self, actor: Any, index: int, count: int, worker: str, log_bytes: int, timeout_s: float) -> None:
        self.actor, self._worker, self._log_bytes = actor, worker, log_bytes
        self._name, self._place = f"server {index} of {count}", ""
        self._log: deque[Push] = deque()
        self._size = 0  # bytes in the log
        self._last = Push(0, (), None, (), 0)
        #: Numbers of pushes: the last one sent to the current server process, the last one whose outcome is known, the
        #: last lost one, and the first one after it, with which the server skips the lost ones.
        self._sent, self._acknowledged, self._lost_to, self._first_after_lost = 0, 0, 0, 0
        self._in_flight: deque[Flight] = deque()
        self._failures: deque[Exception] = deque()
        self._pulled: tuple[int, Any] = 0, None
        self._rules: dict[int, Rule] = {}
        self._snapshot_error = ""
        self._started, self._recoveries = False, 0  # whether the process has answered, and recoveries since then
        self.timeout_s = timeout_s
        self.keys, self.lost = 0, 0

    # ---- pushes ---------------------------------------------------------------------------------------------

    def append(self, items: Sequence[Item], buffer: Any, pull_keys: Sequence[Key] = ()) -> int:
        """Append a push to the replay log, from which `flush` sends it. Return its number.

        Args:
            items: keys, and how their values are encoded.
            buffer: bytes of the values, an array of uint8, copied before this method returns.
            pull_keys: keys to pull with the same message. See `take_pulled`.
        """
        import ray

        size = buffer.nbytes
        stored = ray.put(buffer) if size > INLINE_BYTES else buffer.copy()
        self._last = Push(self._last.number + 1, items, stored, pull_keys, size)
        self._log.append(self._last)
        self._size += size
        # A push that was never sent stays, even if the log is too long.
        while self._size > self._log_bytes and len(self._log) > 1 and self._log[0].number <= self._sent:
            self._size -= self._log.popleft().size
        return self._last.number

    def flush(self) -> None:
        """Send logged pushes. Waits only while too many are in flight.

        Raises:
            StoreError: the server does not come back, or its answer is malformed.
            Exception: exception of an updater in an earlier push.
        """
        import ray

        self._send_all()
        while self._in_flight and ray.wait([self._in_flight[0].answer], timeout=0)[0]:
            self._finish_oldest()
        self._send_all()
        self._raise()

    def take_pulled(self, number: int, keys: Sequence[Key]) -> Any:
        """Return the buffer with ``keys`` that a push asked for, valid while it is referenced.

        If the push was applied but its answer was lost or had no buffer, the keys are pulled again.
        """
        self.drain(number)
        pulled_by, buffer = self._pulled
        self._pulled = 0, None
        return buffer if pulled_by == number else self.wait_for(self.pull("pull", keys))

    def drain(self, number: int | None = None) -> None:
        """Wait until no push is in flight, or none up to ``number``."""
        self._send_all()
        while self._in_flight and (number is None or self._in_flight[0].number <= number):
            self._finish_oldest()
            self._send_all()
        self._raise()

    def _send_all(self) -> None:
        while self._sent < self._last.number:
            while len(self._in_flight) >= MAX_IN_FLIGHT:
                self._finish_oldest()
            # The next push to send may have changed meanwhile: a restarted server needs the pushes that it lacks.
            unsent = next((push for push in self._log if push.number > self._sent), None)
            if unsent is None:
                return
            # A replayed push does not pull again.
            pull_keys = unsent.pull_keys if unsent.number > self._acknowledged else ()
            answer = self.actor.push.remote(
                self._worker,
                unsent.number,
                unsent.items,
                unsent.buffer,
                pull_keys,
                unsent.number == self._first_after_lost,
                2 * self._size > self._log_bytes,
                self._acknowledged,
            )
            self._in_flight.append(Flight(unsent.number, answer, pull_keys))
            self._sent = unsent.number

    def _finish_oldest(self) -> None:
        """Wait for the oldest push in flight, and record its outcome."""
        flight = self._in_flight[0]
        try:
            answer = self._check_answer(self._get(flight.answer))
        except _Away as error:
            self._recover(error)
            return
        if answer.refused:
            self._recover(None)
            return
        self._trim_log(answer)
        self._record_outcome(flight.number, answer.failure)
        if flight.pull_keys and answer.buffer is not None:
            self._pulled = flight.number, answer.buffer
        self._in_flight.popleft()

    def _record_outcome(self, number: int, failure: Exception | None) -> None:
        """Record the outcome of a push, once: a restarted server may apply it again."""
        if number > self._acknowledged:
            if failure is not None:
                self._failures.append(failure)
            self._acknowledged, self._recoveries = number, 0

    def _raise(self) -> None:
        if self._failures:
            raise self._failures.popleft()

    def _trim_log(self, answer: Answer | Greeting) -> None:
        while self._log and self._log[0].number <= answer.durable:
            self._size -= self._log.popleft().size
        if isinstance(answer, Answer) and answer.snapshot_error != self._snapshot_error:
            self._snapshot_error = answer.snapshot_error
            if self._snapshot_error:
                _log.warning("%s cannot write snapshots: %s", self._name, self._snapshot_error)

    def _check_answer(self, answer: Any) -> Answer:
        """Return the answer to a push or pull if it is well-formed.

        Raises:
            StoreError: it is malformed.
        """
        last = self._last.number
        if (
            not isinstance(answer, Answer)
            or not (answer.failure is None or isinstance(answer.failure, Exception))
            or type(answer.durable) is not int
            or not 0 <= answer.durable <= last
        ):
            raise StoreError(f"expected an answer to push {last} or one before from {self.label}, got {answer!r:.200}")
        return answer

    # ---- other calls ----------------------------------------------------------------------------------------

    def pull(self, method: str, *arguments: Any) -> Pull:
        """Call an idempotent method that follows all pushes so far. `wait_for` returns its result."""
        return self.ask(method, self._worker, self._last.number, *arguments)

    def ask(self, method: str, *arguments: Any) -> Pull:
        """Call an idempotent method that need not follow any push. `wait_for` returns its result."""
        return Pull(method, arguments, getattr(self.actor, method).remote(*arguments))

    def wait_for(self, pull: Pull) -> Any:
        """Drain the pushes in flight, then wait for an answer. Repeat the call if the server was restarted.

        Raises:
            StoreError: the server does not come back, or does not answer.
            Exception: exception of the method.
        """
        self.drain()
        while True:
            try:
                answer = self._get(pull.answer)
            except _Away as error:
                self._recover(error)
            else:
                if not isinstance(answer, Answer) or not self._check_answer(answer).refused:
                    self._recoveries = 0
                if not isinstance(answer, Answer):
                    return answer
                if not answer.refused:
                    self._trim_log(answer)
                    return answer.buffer
                self._recover(None)
            self.drain()
            pull = self.ask(pull.method, *pull.arguments)

    def set_rule(self, rule: Rule, generation: int) -> Pull:
        """Set the server's rule after all pushes so far, and keep a copy for its restarts. See `wait_for`."""
        self.keep_rule(rule, generation)
        return self.pull("set_rule", rule, generation)

    def keep_rule(self, rule: Rule, generation: int) -> None:
        """Keep the current rule, set by any worker, and the previous one. A restarted server may need either."""
        before = {n: earlier for n, earlier in self._rules.items() if n != generation}
        self._rules = {**dict(list(before.items())[-1:]), generation: rule}

    # ---- recovery -------------------------------------------------------------------------------------------

    def _get(self, reference: Any) -> Any:
        import ray

        # A server that has to start first may be silent for longer.
        silence, beat = Silence(self.timeout_s if self._started else max(self.timeout_s, START_S)), None
        while True:
            try:
                answer = ray.get(reference, timeout=SLICE_S)
                self._started = True
                return answer
            except ray.exceptions.GetTimeoutError as error:
                if beat is None:
                    beat = self.actor.beat.options(concurrency_group=BEATS).remote()
                silence.add(SLICE_S)
                beats = self._beat_outcome(beat)
                if beats:
                    self._started, silence = True, Silence(self.timeout_s)
                if beats is not None:
                    beat = None
                if silence.too_long:
                    raise StoreError(
                        f"expected an answer from {self.label} in time, got none, nor any other sign of life for "
                        f"{silence.seconds:g} s: it hangs or cannot be reached"
                    ) from error
            except ray.exceptions.RayTaskError as error:
                self._started = True
                raise (error.cause if isinstance(error.cause, Exception) else error) from error
            except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as error:
                self._started = False
                raise _Away from error
            deferred_interrupts.deliver()

    def _beat_outcome(self, beat: Any) -> bool | None:
        """Return whether a heartbeat was answered. None if none was answered yet."""
        import ray

        try:
            ray.get(beat, timeout=0)
        except ray.exceptions.GetTimeoutError:
            return None
        except ray.exceptions.RayError:  # other failures are reported by the awaited answer
            return False
        return True

    def _recover(self, cause: Exception | None) -> None:
        """Wait for the server to come back, so that `flush` continues with the first push that it lacks."""
        self._recoveries += 1
        if self._recoveries > MAX_RECOVERIES:
            self._recoveries = 0
            raise StoreError(
                f"expected {self.label} to catch up, but it has not answered after {MAX_RECOVERIES} restarts or "
                "replays; Ray's logs say why it ends"
            ) from cause
        greeting = self._wait_until_back(cause)
        self._place = greeting.place
        missing = next((push.number for push in self._log if push.number > greeting.applied), self._last.number + 1)
        if greeting.keys < self.keys or greeting.applied < self._last.number < missing:
            raise StoreError(
                f"expected {self.keys} keys and the pushes up to {missing - 1} in {self.label}, got "
                f"{greeting.keys} and those up to {greeting.applied}: it has lost its snapshot; on several "
                "hosts, pass a shared folder as `snapshots`"
            )
        if missing > greeting.applied + 1:
            self._count_lost(greeting.applied, missing)
        for number, failure in greeting.failures:
            self._record_outcome(number, failure)
        self._acknowledged = max(self._acknowledged, greeting.applied)
        self._trim_log(greeting)
        # Send everything after the server's last push. This comes last, so that an interrupted recovery is repeated.
        self._in_flight.clear()
        self._sent = greeting.applied

    def _wait_until_back(self, cause: Exception | None) -> Greeting:
        """Wait until the server is back and has its rule. Return its status."""
        import ray

        server_silence, worker_silence = Silence(max(self.timeout_s, START_S)), Silence(self.timeout_s)
        while True:
            try:
                greeting = self._get(self.actor.greet.remote(self._worker, self._acknowledged))
                if not isinstance(greeting, Greeting) or not 0 <= greeting.applied <= self._last.number:
                    raise StoreError(
                        f"expected a status of {self.label} with at most {self._last.number} pushes, got "
                        f"{greeting!r:.200}"
                    )
                if greeting.lacks_rule and greeting.generation in self._rules:
                    rule = self._rules[greeting.generation]
                    self._get(self.actor.restore_rule.remote(rule, greeting.generation))
                    return greeting
            except _Away as error:
                cause, why = cause or error, error.__cause__
                if isinstance(why, ray.exceptions.ActorDiedError):
                    raise StoreError(f"expected Ray to restart {self.label}, but it is dead: {why}") from cause
                server_silence.add(PAUSE_S)
                if server_silence.too_long:
                    raise StoreError(f"expected Ray to restart {self.label} in time, but it is still away") from cause
            else:
                if not greeting.lacks_rule:
                    return greeting
                worker_silence.add(PAUSE_S)
                if worker_silence.too_long:
                    raise StoreError(f"expected a worker to send {self.label} its updater again, but none did")
            time.sleep(PAUSE_S)
            deferred_interrupts.deliver()

    def _count_lost(self, applied: int, missing: int) -> None:
        """Count as lost the pushes between the last one of the server and the first one in the log."""
        lost = missing - 1 - max(applied, self._lost_to)
        if lost > 0:
            self.lost += lost
            _log.warning("%d pushes of this worker are lost: %s died before its next snapshot", lost, self.label)
        self._lost_to, self._first_after_lost = max(self._lost_to, missing - 1), missing

    @property
    def label(self) -> str:
        """Name and place of the server, for messages."""
        return f"{self._name} ({self._place})" if self._place else self._name
