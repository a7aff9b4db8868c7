"""The communicator of a job's ranks: the only place that talks to torch.distributed.

A `Communicator` opens its own connections, apart from any groups that the program has made, so its timeout concerns
nothing else, nor does closing it. Every operation is collective: all ranks enter it, in one order. Sums start
immediately and are waited for later, so that several are in flight while the caller computes.

Guarantees:

- all ranks get the same bits: sums are computed once and sent, or added in the order of the ranks;
- nobody hangs: a rank that has died is an error at the others' next exchange, or in the one under way, at once; one
  that is silent (stopped, cut off, elsewhere in its program) when ``timeout`` has passed; one that closed, at once;
- a `StoreError` names the rank, which sockets alone do not: `feedline.collective.heartbeat` finds out. Where ranks do
  different things it says what each of them does;
- Ctrl-C tears nothing: an exchange that it interrupts stays in flight and is completed before the next one begins.
  Within a `step` it waits for the end. A rank that leaves a step regardless, by a second Ctrl-C or an error, can
  exchange nothing more, and its peers are told;
- `close`, garbage collection, or the end of the program leaves no thread and no socket behind, except for a rendezvous
  that rank 0 serves itself: it stays as long as the program, as ranks may come back.

After an error the connections are unusable, on every rank: all have to start again from the last checkpoint.

Nothing is pickled. Nothing is authenticated or encrypted either: whoever reaches the ports takes part, so the network
between the ranks has to be closed.
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

from feedline.collective import interrupts
from feedline.collective.exchanges import SUMMED, Exchanges, cut, named
from feedline.collective.heartbeat import FAILED, LEFT, Heartbeat
from feedline.collective.refusal import RefusedError
from feedline.collective.rendezvous import gloo_backend, holding, meet, nccl_backend
from feedline.errors import StoreError

__all__ = ["SUMMED", "TIMEOUT", "Communicator"]

T = TypeVar("T")

TIMEOUT = 60.0
#: Beats that a rank may miss before it is found missing, and a little more.
PATIENCE = 8
#: How long a wait goes on before Ctrl-C is looked for.
SLICE = datetime.timedelta(seconds=0.25)

_log = logging.getLogger("feedline")


class _PendingExchange:
    """A coroutine of `Exchanges` in flight.

    Attributes:
        exchange: the coroutine.
        round: exchanges that were begun before it.
        works: what it waits for.
        waited: whether it has waited for others.
        running: whether it is not waiting.
    """

    def __init__(self, exchange: Coroutine[Any, Any, Any], round: int) -> None:
        self.exchange, self.round, self.running, self.waited = exchange, round, False, False
        self.works: Sequence[Any] = ()


class Communicator:
    """This process among the ranks of a job. Creating one is a collective operation.

    Ranks and rendezvous are, in this order: those of ``group``; of ``address``, ``rank`` and ``count``; of
    torch.distributed, where it is initialised; of the variables that launchers such as torchrun set (``RANK``,
    ``WORLD_SIZE``, ``MASTER_ADDR``, ``MASTER_PORT``).

    Args:
        group: a torch.distributed group whose ranks take part.
        address: ``"host:port"`` where rank 0 listens for the others.
        rank: of this process, with ``address``.
        count: how many ranks there are, with ``address``.
        timeout: seconds that a rank waits for others in an exchange.

    Attributes:
        rank: of this process.
        count: ranks.
        timeout: as given.
        turn: a lock that is held while this rank exchanges something.
        exchanges: coroutines for `run`.

    Raises:
        RuntimeError: no ranks are known.
        ValueError: arguments that do not fit together.
        StoreError: a rank did not come within ``timeout``.
    """

    def __init__(
        self,
        group: Any = None,
        *,
        address: str | None = None,
        rank: int | None = None,
        count: int | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        if not timeout > 0:
            raise ValueError(f"expected a timeout above 0 s, got {timeout}")
        if not torch.distributed.is_available():
            raise RuntimeError("expected a torch with torch.distributed, got one that was built without it")
        self.timeout = float(timeout)
        place = meet(group, address, rank, count, self._span)
        self.rank, self.count = place.rank, place.count
        with holding(place):
            made = place.store.add(f"feedline/{place.name}/made/{self.rank}", 1)
            store = torch.distributed.PrefixStore(f"feedline/{place.name}/{made}", place.store)
            self._pulse = Heartbeat(store, self.rank, self.count, place.host, place.line)
        self._broken: str | None = None
        self._abandoned: str | None = None
        self._serves = place.host == self.rank
        #: What is dropped at the end: the store, and a backend for each kind of tensor.
        self._held: dict[str, Any] = {"store": store}
        self._finalizer = weakref.finalize(self, _let_go, self._held, self._pulse)
        self.turn = threading.RLock()
        #: What Ctrl-C has left; it is the first thing that comes next.
        self._left: _PendingExchange | None = None
        ours = weakref.proxy(self)
        self.exchanges = Exchanges(
            self.rank,
            self.count,
            lambda tensor, method, *arguments: ours._begin(tensor, method, *arguments),
            lambda what: ours._tell(what),
        )
        self._backend("gloo")

    # ---- exchanges --------------------------------------------------------------------------------------------

    def gather(self, numbers: Sequence[float], what: str = "gather numbers") -> list[list[float]]:
        """Gather equally many ``numbers`` (float64) from every rank, by rank.

        Args:
            numbers: of this rank.
            what: this is, for the error if a rank does something else.

        Raises:
            StoreError: a rank is missing, or does something else.
        """
        return self.run(self.exchanges.meet(what, numbers))

    def gather_bytes(self, own: bytes, what: str = "gather bytes") -> list[bytes]:
        """Gather bytes of any length from every rank, by rank; as `gather`."""
        return self.run(self.exchanges.gather_bytes(what, own))

    def agree(self, text: str, flag: bool = False) -> list[bool]:
        """Find out whether all ranks are about to do the same, and exchange a flag on the way.

        Returns:
            The flag of every rank, by rank.

        Raises:
            StoreError: they are not; says what each is about to do. The ranks can go on.
        """
        return [row[0] > 0 for row in self.run(self.exchanges.meet(text, [float(flag)]))]

    def barrier(self) -> None:
        """Wait until every rank has arrived."""
        self.gather([], "barrier")

    def gather_tensors(self, own: Any) -> list[Any]:
        """Gather a contiguous tensor from every rank, by rank; all of one shape and dtype."""
        return self.run(self.exchanges.gather_tensors(own))

    def sum(self, tensor: Any) -> Any:
        """Begin to sum a contiguous tensor over all ranks, in place; within a `step`, behind another exchange of it.

        Returns:
            What `wait` takes.

        Raises:
            TypeError: a dtype that is not in `SUMMED`; the ranks can go on.
        """
        self.complete()
        return self.exchanges.sum(tensor)

    def broadcast(self, tensors: Sequence[Any]) -> None:
        """Overwrite ``tensors`` with rank 0's; shapes and dtypes are the same on all ranks."""
        self.run(self.exchanges.broadcast(tensors))

    def distribute(self, parts: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
        """Give part r to rank r; within a `step`, behind another exchange of it. See `Exchanges.distribute`."""
        return self.run(self.exchanges.distribute(parts, sizes))

    def wait(self, works: Iterable[Any]) -> None:
        """Wait for works in flight.

        Raises:
            StoreError: a rank is missing; names it.
        """
        left = list(works)
        try:
            for work in left:
                self._wait_for(work)
        except RuntimeError as error:
            raise self._failure(error, left) from None

    # ---- several of them --------------------------------------------------------------------------------------

    def run(self, exchange: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of `exchanges` to its end.

        Ctrl-C comes out of its waits; it is then under way still, and completed before anything else is exchanged.
        What it returns is lost in that case.

        Raises:
            StoreError: a rank is missing, or does something else.
            Exception: what it raises. Unless it is a StoreError or RefusedError, which all ranks raise alike, or comes
                before the first exchange, the ranks cannot go on: see `abandoned`.
        """
        try:
            with self.turn, interrupts.DeferredInterrupt(may_leave=True):
                self._complete()
                self._left = _PendingExchange(exchange, self._pulse.round)
                result: T = self._drive(self._left)
                return result
        finally:
            if self._left is None or self._left.exchange is not exchange:
                exchange.close()  # what was never begun warns of it

    def complete(self) -> None:
        """Complete the exchange that Ctrl-C interrupted, if there is one.

        Raises:
            As `run`.
        """
        if self._left is not None:
            with self.turn, interrupts.DeferredInterrupt(may_leave=True):
                self._complete()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """A block of exchanges, and of what is done between them, that no rank may leave in the middle.

        Ctrl-C waits for the end of it. Whatever else leaves it after the first exchange, but for a StoreError, which
        all ranks raise alike, ends the connections: see `abandoned`.
        """
        with self.turn, interrupts.DeferredInterrupt():
            self._complete()
            round = self._pulse.round
            try:
                yield
            except BaseException as error:
                if not isinstance(error, StoreError) and self._pulse.round > round:
                    self._leave(error)
                raise

    @property
    def abandoned(self) -> str | None:
        """Why this rank abandoned an exchange; None: it has not."""
        return self._abandoned

    def _complete(self) -> None:
        if self._left is not None:
            if self._left.running:
                raise RefusedError("expected no exchange from within another, as from an updater")
            try:
                self._drive(self._left)
            except KeyboardInterrupt as error:
                error.add_note("this call has not begun: it waited for one that was interrupted before, and still is")
                raise

    def _drive(self, call: _PendingExchange) -> Any:
        resume: Callable[[Any], Sequence[Any]] = call.exchange.send
        given: StoreError | None = None
        while True:
            if call.works:
                call.waited = True
                try:
                    self.wait(call.works)  # Ctrl-C comes out here, and leaves the call as it is
                except StoreError as error:
                    resume, given = call.exchange.throw, error
                except KeyboardInterrupt as error:
                    error.add_note(f"{self._pulse.doing!r} has begun; the next call completes it")
                    raise
            call.running = True
            try:
                call.works = resume(given)
            except StopIteration as end:
                self._left = None
                return end.value
            except BaseException as error:
                self._left = None
                if not isinstance(error, (StoreError, RefusedError)) and (
                    call.waited or self._pulse.round > call.round
                ):
                    self._leave(error)
                raise
            finally:
                call.running = False
            resume, given = call.exchange.send, None

    def _leave(self, error: BaseException) -> None:
        """Abandon the exchange in flight, and notify the peers."""
        if self._broken is not None:
            return
        if self._left is not None:
            self._left.exchange.close()
            self._left = None
        self._abandoned = f"{type(error).__name__} in the middle of {self._pulse.doing!r}"
        self._broken = f"this rank has left them: {self._abandoned}"
        self._pulse.leave(f"{LEFT} {self._abandoned}")
        # Their end may have to wait for the others, and tells those who wait for this rank.
        backends = [self._held.pop(name) for name in ("gloo", "nccl") if name in self._held]
        threading.Thread(target=backends.clear, name="feedline-leave", daemon=True).start()
        if self._serves:  # else this program may end before the others have read it
            self._pulse.linger(3.0)

    # ---- the end ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Notify peers and release threads and sockets. Idempotent.

        The rank that serves the rendezvous lingers for up to 3 s, so that its peers can read that it has left.
        """
        if self._finalizer.alive:
            self._pulse.leave()
            if self._serves:
                self._pulse.linger(3.0)
            self._finalizer()
        self._broken = self._broken or "this rank has closed them"

    def _failure(self, error: RuntimeError, works: Sequence[Any] = ()) -> StoreError:
        """What an exchange broke off for; the connections end with it."""
        timed_out = "imed out" in str(error) or "imeout" in str(error)
        patience = PATIENCE * self._pulse.interval - (self.timeout if timed_out else 0.0)
        ranks, why = self._pulse.missing(patience)
        who = f"{named(ranks)}: {why}" if ranks else f"no rank that can be named: {why}"
        waited = f" in {self.timeout:g} s" if timed_out else ""
        self._broken = f"an exchange broke off: {who}"
        self._pulse.leave(" ".join([FAILED, *map(str, ranks)]))
        if self._serves:  # else the others would miss this rank
            self._pulse.linger(3.0, ranks)
        until = time.monotonic() + 1.0
        while not all(work.is_completed() for work in works) and time.monotonic() < until:
            time.sleep(0.01)
        self._finalizer()
        return StoreError(
            f"expected all {self.count} ranks in an exchange, rank {self.rank} missed{waited} {who}\n"
            f"  it was {cut(self._pulse.doing)!r}; the ranks cannot go on together: start all of them again, from the "
            "last checkpoint; where ranks are slow rather than gone, give a longer timeout",
            ranks=ranks,
        )

    # ---- torch.distributed ------------------------------------------------------------------------------------

    @property
    def _span(self) -> datetime.timedelta:
        return datetime.timedelta(seconds=self.timeout)

    def _begin(self, tensor: Any, method: str, *arguments: Any) -> Any:
        """Begin an exchange through the backend for a tensor."""
        if self._broken is not None:
            raise StoreError(f"expected ranks that are connected, but {self._broken}; start all of them again")
        nccl = tensor.device.type == "cuda" and torch.distributed.is_nccl_available()
        begin = getattr(self._backend("nccl" if nccl else "gloo"), method)
        self._pulse.round += 1
        try:
            return begin(*arguments)
        except RuntimeError as error:
            raise self._failure(error) from None

    def _tell(self, what: str) -> None:
        self._pulse.doing = what

    def _wait_for(self, work: Any) -> None:
        told = False
        until = time.monotonic() + self.timeout
        while True:
            if "nccl" not in self._held:
                try:
                    work.wait(SLICE)
                    return
                except RuntimeError:
                    if work.is_completed():
                        work.wait()  # raises what it came to, unless it came in this moment
                        return
            # On the CPU: NCCL's own waiting lets the device wait, for ever if need be.
            elif work.is_completed():
                work.wait()
                return
            elif time.monotonic() > until:
                self._held["nccl"].abort()
                raise RuntimeError("Timed out")
            else:
                time.sleep(2e-5)
            interrupts.deliver()
            if not told and interrupts.waiting():
                told = True
                _log.warning(
                    "Ctrl-C waits for the other ranks, at most %g s; a second one does not, and ends the exchange "
                    "for all of them",
                    self.timeout,
                )

    def _backend(self, name: str) -> Any:
        if name not in self._held:
            store = torch.distributed.PrefixStore(name, self._held["store"])
            try:
                self._held[name] = (nccl_backend if name == "nccl" else gloo_backend)(
                    store, self.rank, self.count, self._span
                )
            except RuntimeError as error:
                absent = self._pulse.absent()
                if not absent:
                    raise self._failure(error) from None
                self._finalizer()
                raise StoreError(
                    f"expected {self.count} ranks within {self.timeout:g} s, rank {self.rank} did not see "
                    f"{named(absent)}\n  start all ranks with the same meeting point and number of ranks, or give a "
                    "longer timeout",
                    ranks=absent,
                ) from None
        return self._held[name]


def _let_go(held: dict[str, Any], pulse: Heartbeat) -> None:
    pulse.disconnect()
    held.clear()
