"""The communicator of a job's ranks: the only place that runs exchanges over torch.distributed.

A `Communicator` opens its own connections, separate from any groups of the program, so its timeout and its end affect
nothing else. Every operation is collective: all ranks enter it, in one order. Sums start immediately and are waited for
later, so that several are in flight while the caller computes.

Guarantees:

- All ranks get the same bits: sums are computed once and sent, or added in the order of the ranks.
- No rank hangs. A rank that has died or closed is an error in its peers' current or next exchange, at once. A silent
  rank (stopped, disconnected, or in another part of its program) is an error after ``timeout_s``, also while ranks
  connect.
- A `StoreError` names the rank. Sockets cannot identify it, but `feedline.collective.heartbeat` does. If ranks are in
  different exchanges, the error lists the exchange of each.
- Ctrl-C is safe. An exchange that it interrupts stays in flight and is completed before the next one begins. Within a
  `step` it is deferred to the end. A rank that nevertheless leaves a step, by a second Ctrl-C or an error, can
  make no further exchange, and its peers are notified.
- `close`, garbage collection, or the end of the program ends all threads and sockets, except for a rendezvous that rank
  0 serves itself. It lasts until the program ends, as ranks may come back.

After an error the connections are unusable on every rank, and all ranks have to be restarted from the last checkpoint.

Nothing is pickled. Nothing is authenticated or encrypted either: any process that reaches the ports can take part, so
the ranks need a private network.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from feedline.collective import deferred_interrupts, rendezvous
from feedline.collective.exchanges import Exchanges, list_ranks, shorten
from feedline.collective.heartbeat import FAILED, LEFT, Heartbeat, wait_for_first_beats
from feedline.collective.refusal import RefusedError
from feedline.collective.rendezvous import Rendezvous, closing_on_error, gloo_backend, meet, nccl_backend, request
from feedline.concurrency.named_threads import begin
from feedline.errors import StoreError

T = TypeVar("T")


class ExchangeTally:
    """Waits of this process for other ranks, in exchanges of all communicators.

    On a device they begin when its own work is done. What overlaps with computation is not in them.

    Attributes:
        count: number of waits.
        seconds: time that they took, with the transfers.
    """

    def __init__(self) -> None:
        self.count, self.seconds = 0, 0.0


EXCHANGE_TALLY = ExchangeTally()

TIMEOUT_S = 60.0
#: Number of beats to wait for evidence of a missing rank, more than a rank may miss.
PATIENCE_BEATS = 8
#: Time between checks for Ctrl-C during a wait.
SLICE = datetime.timedelta(seconds=0.25)

_log = logging.getLogger("feedline")


class _DeviceWork:
    """The work that the current device has to do for this rank alone, from now on."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event()
        self._event.record()
        self._ended_s: float | None = None
        self.look()

    def look(self) -> None:
        """Note the time if the work has ended since the last look."""
        if self._ended_s is None and self._event.query():
            self._ended_s = time.perf_counter()

    def ended(self) -> float:
        """Return when it ended, by ``perf_counter``, or the present time if it has not."""
        return time.perf_counter() if self._ended_s is None else self._ended_s


class _PendingExchange:
    """A coroutine of `Exchanges` in flight.

    Attributes:
        exchange: coroutine.
        round: number of exchanges that were begun before it.
        works: works that it waits for.
        waited: whether it has waited for other ranks.
        running: whether its code is running, rather than waiting.
    """

    def __init__(self, exchange: Coroutine[Any, Any, Any], round: int) -> None:
        self.exchange, self.round, self.running, self.waited = exchange, round, False, False
        self.works: Sequence[Any] = ()


class Communicator:
    """A connection of this process to the other ranks of a job. Creating it is a collective operation.

    Ranks and rendezvous are taken from, in this order: ``group``, then ``address``, ``rank`` and ``count``, then an
    initialised torch.distributed, then the variables of launchers such as torchrun (``RANK``, ``WORLD_SIZE``,
    ``MASTER_ADDR``, ``MASTER_PORT``, where mpiexec and srun have their own names for the first two).

    Args:
        group: torch.distributed group whose ranks take part.
        address: ``"host:port"`` at which rank 0 listens.
        rank: rank of this process, with ``address``.
        count: number of ranks, with ``address``.
        timeout_s: seconds to wait for other ranks in an exchange. They have at least `rendezvous.START_S` to start.

    Attributes:
        rank: rank of this process.
        count: number of ranks.
        timeout_s: seconds to wait for other ranks in an exchange.
        lock: lock that is held during an exchange.
        exchanges: coroutines for `run`.
        heartbeat: heartbeat of this rank, which counts its exchanges.
        abandoned: reason why this rank abandoned an exchange. None if it did not.

    Raises:
        RuntimeError: no ranks are known.
        ValueError: arguments contradict each other.
        StoreError: a rank did not start in time, or did not connect within ``timeout_s``.
    """

    def __init__(
        self,
        group: Any = None,
        *,
        address: str | None = None,
        rank: int | None = None,
        count: int | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        if not timeout_s > 0:
            raise ValueError(f"expected a timeout above 0 s, got {timeout_s}")
        if not torch.distributed.is_available():
            raise RuntimeError("expected torch with torch.distributed, got a build without it")
        self.timeout_s, self._span = float(timeout_s), datetime.timedelta(seconds=timeout_s)
        place = meet(group, address, rank, count, self._span)
        self.rank, self.count = place.rank, place.count
        with closing_on_error(place):
            store, self.heartbeat = request(lambda: _enter(place), self.timeout_s, lambda pair: pair[1].disconnect())
        self._broken: str | None = None
        self.abandoned: str | None = None
        self._serves = place.host == self.rank
        #: Resources released by `close`: the store, and a backend for each kind of tensor.
        self._resources: dict[str, Any] = {"store": store}
        self._finalizer = weakref.finalize(self, _release, self._resources, self.heartbeat)
        self.lock = threading.RLock()
        #: Exchange that Ctrl-C interrupted, which is completed before any other.
        self._pending: _PendingExchange | None = None
        communicator = weakref.proxy(self)

        def begin_exchange(tensor: Any, method: str, *arguments: Any) -> Any:
            return communicator._begin(tensor, method, *arguments)

        self.exchanges = Exchanges(self.rank, self.count, begin_exchange, self.heartbeat)
        self._backend("gloo")

    # ---- exchanges --------------------------------------------------------------------------------------------

    def gather(self, numbers: Sequence[float], what: str = "gather numbers") -> list[list[float]]:
        """Gather equally many ``numbers`` (float64) from every rank, by rank.

        Args:
            numbers: numbers of this rank.
            what: description of the exchange, which has to be the same on all ranks.

        Raises:
            StoreError: a rank is missing, or is in another exchange.
        """
        return self.run(self.exchanges.meet(what, numbers))

    def gather_bytes(self, data: bytes, what: str = "gather bytes") -> list[bytes]:
        """Gather bytes of any length from every rank, by rank. See `gather`."""
        return self.run(self.exchanges.gather_bytes(what, data))

    def agree(self, text: str, flag: bool = False) -> list[bool]:
        """Verify that all ranks are about to do the same, and gather a flag from each.

        Returns:
            The flag of every rank, by rank.

        Raises:
            StoreError: the texts differ. The message lists the next exchange of each rank. The ranks can continue.
        """
        return [row[0] > 0 for row in self.run(self.exchanges.meet(text, [float(flag)]))]

    def barrier(self) -> None:
        """Wait until every rank has arrived."""
        self.gather([], "barrier")

    def sum(self, tensor: Any) -> Any:
        """Start to sum a contiguous tensor over all ranks, in place. Call it within a `step`, after another exchange.

        Returns:
            A work for `wait`.

        Raises:
            TypeError: the dtype is not in `SUMMED`. The ranks can continue.
        """
        self.complete()
        return self.exchanges.sum(tensor)

    def broadcast(self, tensors: Sequence[Any]) -> None:
        """Overwrite ``tensors`` with the tensors of rank 0. Shapes and dtypes are the same on all ranks."""
        self.run(self.exchanges.broadcast(tensors))

    def distribute(self, parts: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
        """Send part r to rank r. Call it within a `step`, after another exchange. See `Exchanges.distribute`."""
        return self.run(self.exchanges.distribute(parts, sizes))

    def wait(self, works: Iterable[Any]) -> None:
        """Wait for works in flight.

        Raises:
            StoreError: a rank is missing. The message names it.
        """
        unfinished = list(works)
        began = time.perf_counter()
        computing = _DeviceWork() if "nccl" in self._resources else None
        try:
            for work in unfinished:
                self._wait_for(work, computing)
        except RuntimeError as error:
            raise self._failure(error, unfinished) from None
        finally:
            if self.count > 1:
                EXCHANGE_TALLY.count += 1
                EXCHANGE_TALLY.seconds += time.perf_counter() - (began if computing is None else computing.ended())

    # ---- composite exchanges ----------------------------------------------------------------------------------

    def run(self, exchange: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of `exchanges` to its end.

        Ctrl-C interrupts its waits. The coroutine then stays pending and is completed before any other exchange. Its
        result is lost.

        Raises:
            StoreError: a rank is missing, or is in another exchange.
            Exception: exception of the coroutine. Unless it is a StoreError or RefusedError, which all ranks raise, or
                it precedes the first exchange, the ranks cannot continue: see `abandoned`.
        """
        try:
            with self.lock, deferred_interrupts.DeferredInterrupt(may_leave=True):
                self._complete()
                self._pending = _PendingExchange(exchange, self.heartbeat.round)
                result: T = self._drive(self._pending)
                return result
        finally:
            if self._pending is None or self._pending.exchange is not exchange:
                exchange.close()  # a coroutine that was never started would warn

    def complete(self) -> None:
        """Complete the exchange that Ctrl-C interrupted, if any. Raises as `run`."""
        if self._pending is not None:
            with self.lock, deferred_interrupts.DeferredInterrupt(may_leave=True):
                self._complete()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Open a block of exchanges and work between them, which every rank has to complete.

        Ctrl-C is deferred to its end. Any other exception after the first exchange ends the connections (see
        `abandoned`), except a StoreError, which all ranks raise.
        """
        with self.lock, deferred_interrupts.DeferredInterrupt():
            self._complete()
            round = self.heartbeat.round
            try:
                yield
            except BaseException as error:
                if not isinstance(error, StoreError) and self.heartbeat.round > round:
                    self._abandon(error)
                raise

    def _complete(self) -> None:
        if self._pending is not None:
            if self._pending.running:
                raise RefusedError("expected no exchange within another, such as in an updater")
            try:
                self._drive(self._pending)
            except KeyboardInterrupt as error:
                error.add_note("this call has not begun: it was completing an interrupted one, which is still pending")
                raise

    def _drive(self, call: _PendingExchange) -> Any:
        resume: Callable[[Any], Sequence[Any]] = call.exchange.send
        failure: StoreError | None = None
        while True:
            if call.works:
                call.waited = True
                try:
                    self.wait(call.works)  # after Ctrl-C the call is unchanged
                except StoreError as error:
                    resume, failure = call.exchange.throw, error
                except KeyboardInterrupt as error:
                    error.add_note(f"{self.heartbeat.doing!r} has begun; the next call completes it")
                    raise
            call.running = True
            try:
                call.works = resume(failure)
            except StopIteration as end:
                self._pending = None
                return end.value
            except BaseException as error:
                self._pending = None
                begun = call.waited or self.heartbeat.round > call.round
                if begun and not isinstance(error, (StoreError, RefusedError)):
                    self._abandon(error)
                raise
            finally:
                call.running = False
            resume, failure = call.exchange.send, None

    def _abandon(self, error: BaseException) -> None:
        """Abandon the exchange in flight, and notify the peers."""
        if self._broken is not None:
            return
        if self._pending is not None:
            self._pending.exchange.close()
            self._pending = None
        self.abandoned = f"{type(error).__name__} in the middle of {self.heartbeat.doing!r}"
        self._broken = f"this rank abandoned an exchange: {self.abandoned}"
        self.heartbeat.leave(f"{LEFT} {self.abandoned}")
        # Closing backends wakes peers that wait for this rank. In a thread, as closing may wait for the peers.
        backends = [self._resources.pop(name) for name in ("gloo", "nccl") if name in self._resources]
        begin("leave", backends.clear)
        if self._serves:  # otherwise this program may end before its peers have read the message
            self.heartbeat.linger(3.0)

    # ---- closing ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Notify peers and release threads and sockets. Idempotent.

        The rank that serves the rendezvous lingers for up to 3 s, so that its peers can read that it has left.
        """
        if self._finalizer.alive:
            self.heartbeat.leave()
            if self._serves:
                self.heartbeat.linger(3.0)
            self._finalizer()
        self._broken = self._broken or "this rank has closed them"

    def _failure(self, error: RuntimeError, works: Sequence[Any] = ()) -> StoreError:
        """Close the connections after a failed exchange. Return an error that names the missing ranks."""
        timed_out = "imed out" in str(error) or "imeout" in str(error)
        waited_beats = int(self.timeout_s / self.heartbeat.interval_s) if timed_out else 0
        ranks, why = self.heartbeat.missing(max(1, PATIENCE_BEATS - waited_beats))
        who = f"{list_ranks(ranks)}: {why}" if ranks else f"a rank that is unknown: {why}"
        waited = f" in {self.timeout_s:g} s" if timed_out else ""
        self._broken = f"an exchange failed: {who}"
        self.heartbeat.leave(" ".join([FAILED, *map(str, ranks)]))
        if self._serves:  # otherwise peers would find this rank missing
            self.heartbeat.linger(3.0, ranks)
        until = time.monotonic() + 1.0
        while not all(work.is_completed() for work in works) and time.monotonic() < until:
            time.sleep(0.01)
        self._finalizer()
        return StoreError(
            f"expected all {self.count} ranks in an exchange, but rank {self.rank} missed{waited} {who}\n"
            f"  the exchange was {shorten(self.heartbeat.doing)!r}; restart all ranks from the last checkpoint, or "
            "set a longer timeout if a rank is slow rather than gone",
            ranks=ranks,
        )

    # ---- torch.distributed ------------------------------------------------------------------------------------

    def _begin(self, tensor: Any, method: str, *arguments: Any) -> Any:
        """Start an exchange through the backend for a tensor."""
        if self._broken is not None:
            raise StoreError(f"expected connected ranks, but {self._broken}; restart all of them")
        nccl = tensor.device.type == "cuda" and torch.distributed.is_nccl_available()
        begin = getattr(self._backend("nccl" if nccl else "gloo"), method)
        self.heartbeat.round += 1
        try:
            return begin(*arguments)
        except RuntimeError as error:
            raise self._failure(error) from None

    def _wait_for(self, work: Any, computing: _DeviceWork | None) -> None:
        warned = False
        until = time.monotonic() + self.timeout_s
        while True:
            if "nccl" not in self._resources:
                try:
                    work.wait(SLICE)
                    return
                except RuntimeError:
                    if work.is_completed():
                        work.wait()  # raises its error, unless it has just completed
                        return
            # Poll on the CPU: NCCL's wait would block the device, possibly forever.
            elif work.is_completed():
                work.wait()
                return
            elif time.monotonic() > until:
                self._resources["nccl"].abort()
                raise RuntimeError("Timed out")
            else:
                if computing is not None:
                    computing.look()
                time.sleep(2e-5)
            deferred_interrupts.deliver()
            if not warned and deferred_interrupts.waiting():
                warned = True
                _log.warning(
                    "Ctrl-C waits for the other ranks, at most %g s; a second one ends the exchange for all of them "
                    "at once",
                    self.timeout_s,
                )

    def _backend(self, name: str) -> Any:
        if name not in self._resources:
            store = torch.distributed.PrefixStore(name, self._resources["store"])
            start_s = max(rendezvous.START_S, self.timeout_s)
            try:
                # NCCL uses the store at its first exchange only.
                self._resources[name] = (
                    nccl_backend(store, self.rank, self.count, self._span)
                    if name == "nccl"
                    else request(lambda: self._gloo(store, start_s), start_s + self.timeout_s)
                )
            except RuntimeError as error:
                absent = self.heartbeat.absent()
                if not absent:
                    raise self._failure(error) from None
                self._finalizer()
                raise StoreError(
                    f"expected {self.count} ranks within {start_s:g} s, but rank {self.rank} did not see "
                    f"{list_ranks(absent)}\n"
                    "  start all ranks with the same rendezvous and number of ranks, or set a longer timeout",
                    ranks=absent,
                ) from None
        return self._resources[name]

    def _gloo(self, store: Any, start_s: float) -> Any:
        """Connect once all ranks have started, however late."""
        wait_for_first_beats(self._resources["store"], self.count, datetime.timedelta(seconds=start_s))
        return gloo_backend(store, self.rank, self.count, self._span)


def _enter(place: Rendezvous) -> tuple[Any, Heartbeat]:
    """Return the store of the next communicator of these ranks, and this rank's heartbeat in it."""
    # A separate connection: abandoned requests would block the program's connection.
    store = place.store.clone()
    number = store.add(f"feedline/{place.name}/made/{place.rank}", 1)
    scoped = torch.distributed.PrefixStore(f"feedline/{place.name}/{number}", store)
    return scoped, Heartbeat(scoped, place.rank, place.count, place.host, place.idle_connection)


def _release(resources: dict[str, Any], heartbeat: Heartbeat) -> None:
    heartbeat.disconnect()
    resources.clear()
