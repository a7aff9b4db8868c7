"""The ranks of a job, and what they tell each other: the only place that talks to torch.distributed.

A `Collective` has connections of its own, beside whatever groups a program has made: its timeout is its own, and
closing it closes nothing else. Every operation is entered by all ranks, in one order; sums begin when they are asked
for and are waited for afterwards, so that several are under way and the caller computes meanwhile.

Guarantees:

- all ranks get the same bits: sums are computed once and sent, or added in the order of the ranks;
- nobody hangs: a rank that has died is an error at the others' next exchange, or in the one under way, at once; one
  that is silent (stopped, cut off, elsewhere in its program) when ``timeout`` has passed; one that closed, at once;
- a `StoreError` names the rank, which sockets alone do not: `feedline.kvstore.heartbeat` finds out;
- `close`, the garbage collector, or the end of the program leaves no thread and no socket behind; but a meeting point
  that rank 0 serves itself stays as long as its program, for others may come again.

After an error the connections are unusable, on every rank: all have to start again from the last checkpoint.

Nothing is pickled. Nothing is authenticated or encrypted either: whoever reaches the ports takes part, so the network
between the ranks has to be closed.
"""

from __future__ import annotations

import datetime
import hashlib
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch

from feedline.errors import StoreError
from feedline.kvstore.buckets import laid_out
from feedline.kvstore.heartbeat import FAILED, Heartbeat
from feedline.kvstore.meeting import gloo_backend, meet, nccl_backend

T = TypeVar("T")

TIMEOUT = 60.0
#: What both gloo and NCCL add up. Complex numbers are added as pairs; everything else travels as bytes alone.
SUMMED = frozenset(
    {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8}
    | {torch.bool, torch.complex64, torch.complex128}
)
#: Beats that a rank may miss before it is found missing, and a little more.
PATIENCE = 8


class Collective:
    """This process among the ranks of a job. Making one is an exchange of all ranks, too.

    Ranks and meeting point are, in this order: those of ``group``; of ``address``, ``rank`` and ``count``; of
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
        made = place.store.add(f"feedline/{place.name}/made/{self.rank}", 1)
        store = torch.distributed.PrefixStore(f"feedline/{place.name}/{made}", place.store)
        self._broken: str | None = None
        self._serves = place.host == self.rank
        self._pulse = Heartbeat(store, self.rank, self.count, place.host)
        #: What is dropped at the end: the store, and a backend for each kind of tensor.
        self._held: dict[str, Any] = {"store": store}
        self._finalizer = weakref.finalize(self, _let_go, self._held, self._pulse)
        self._backend("gloo")

    # ---- exchanges of numbers and text ------------------------------------------------------------------------

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """As many ``numbers`` (float64) of every rank, by rank."""
        own = torch.tensor(list(numbers), dtype=torch.float64)
        return [row.tolist() for row in self.gather_tensors(own)]

    def gather_bytes(self, own: bytes) -> list[bytes]:
        """What every rank gives, of any lengths, by rank."""
        lengths = [int(row[0]) for row in self.gather([float(len(own))])]
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        if own:
            padded[: len(own)] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        rows = self.gather_tensors(padded) if max(lengths) else [padded] * self.count
        return [bytes(row[:n].tolist()) for row, n in zip(rows, lengths, strict=True)]

    def agree(self, text: str, flag: bool = False) -> list[bool]:
        """Find out whether all ranks are about to do the same, and exchange a flag on the way.

        Returns:
            The flag of every rank, by rank.

        Raises:
            StoreError: they are not; says what each is about to do. The ranks can go on.
        """
        digest = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "little")
        rows = self.gather([float(digest), float(flag)])
        if all(row[0] == rows[0][0] for row in rows):
            return [row[1] > 0 for row in rows]
        texts = [got.decode() for got in self.gather_bytes(text.encode())]
        usual = max(texts, key=texts.count)
        others = tuple(r for r, got in enumerate(texts) if got != usual)
        lines = [f"  rank {r}: {_cut(got)}" for r, got in enumerate(texts)]
        raise StoreError(
            f"expected all ranks to do the same, got something else from {_names(others)}\n" + "\n".join(lines),
            ranks=others,
        )

    def barrier(self) -> None:
        """Wait until all ranks have come here."""
        self.gather([0.0])

    # ---- exchanges of tensors ---------------------------------------------------------------------------------

    def gather_tensors(self, own: Any) -> list[Any]:
        """A tensor of every rank, by rank; of one shape and dtype, contiguous."""
        rows = [torch.empty_like(own) for _ in range(self.count)]
        sent, received = _as_bytes(own), [_as_bytes(row) for row in rows]
        self.wait([self._do(partial(self._backend_for(own).allgather, [received], [sent]))])
        return rows

    def sum(self, tensor: Any) -> Any:
        """Begin to sum a contiguous tensor over all ranks, in place.

        Returns:
            What `wait` takes.

        Raises:
            TypeError: a dtype that is not in `SUMMED`; the ranks can go on.
        """
        if tensor.dtype not in SUMMED:
            raise TypeError(f"expected a dtype that ranks can add up, got {tensor.dtype}")
        plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        return self._do(partial(self._backend_for(tensor).allreduce, [plain]))

    def wait(self, works: Iterable[Any]) -> None:
        """Wait for what has begun.

        Raises:
            StoreError: a rank is missing; names it.
        """
        left = list(works)
        try:
            for work in left:
                if "nccl" in self._held:
                    self._poll(work)
                work.wait()
        except RuntimeError as error:
            raise self._failure(error, left) from error

    def broadcast(self, tensors: Sequence[Any]) -> None:
        """Let ``tensors`` hold what rank 0's do; of one list of shapes and dtypes on all ranks, each within memory."""
        if self.count == 1 or not tensors:
            return
        buckets = laid_out(tensors)
        works = []
        for bucket in buckets:
            begin, flat = self._backend_for(bucket.flat).broadcast, _as_bytes(bucket.fill(tensors))
            works.append(self._do(partial(begin, [flat])))
        self.wait(works)
        if self.rank:
            for bucket in buckets:
                bucket.read(tensors)

    def distribute(self, parts: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
        """Give part r to rank r.

        Args:
            parts: for each rank a one-dimensional tensor of bytes (uint8), on the CPU.
            sizes: bytes that come from each rank.

        Returns:
            What came from each rank.
        """
        received = torch.empty(sum(sizes), dtype=torch.uint8)
        sent, lengths = torch.cat(list(parts)), [part.numel() for part in parts]
        begin = self._backend_for(sent).alltoall_base
        self.wait([self._do(partial(begin, received, sent, list(sizes), lengths))])
        return list(received.split(list(sizes)))

    # ---- the end ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Tell the others, and let go of threads and sockets; again is as once.

        The rank that serves the meeting point stays for up to 3 s, so that the others can read that it has left.
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
        who = f"{_names(ranks)}: {why}" if ranks else f"no rank that can be named: {why}"
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
            "  the ranks cannot go on together: start all of them again, from the last checkpoint; "
            "where ranks are slow rather than gone, give a longer timeout",
            ranks=ranks,
        )

    # ---- torch.distributed ------------------------------------------------------------------------------------

    @property
    def _span(self) -> datetime.timedelta:
        return datetime.timedelta(seconds=self.timeout)

    def _do(self, begin: Callable[[], T]) -> T:
        self._pulse.round += 1
        try:
            return begin()
        except RuntimeError as error:
            raise self._failure(error) from error

    def _poll(self, work: Any) -> None:
        """Wait on the CPU: NCCL's own waiting lets the device wait, for ever if need be."""
        until = time.monotonic() + self.timeout
        while not work.is_completed():
            if time.monotonic() > until:
                self._held["nccl"].abort()
                raise RuntimeError("Timed out")
            time.sleep(2e-5)

    def _backend_for(self, tensor: Any) -> Any:
        if self._broken is not None:
            raise StoreError(f"expected ranks that are connected, but {self._broken}; start all of them again")
        nccl = tensor.device.type == "cuda" and torch.distributed.is_nccl_available()
        return self._backend("nccl" if nccl else "gloo")

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
                    raise self._failure(error) from error
                self._finalizer()
                raise StoreError(
                    f"expected {self.count} ranks within {self.timeout:g} s, rank {self.rank} did not see "
                    f"{_names(absent)}\n  start all ranks with the same meeting point and number of ranks, or give a "
                    "longer timeout",
                    ranks=absent,
                ) from error
        return self._held[name]


def _as_bytes(tensor: Any) -> Any:
    """The memory of a contiguous tensor: bytes of any dtype can be sent."""
    return tensor.view(-1).view(torch.uint8)


def _let_go(held: dict[str, Any], pulse: Heartbeat) -> None:
    pulse.disconnect()
    held.clear()


def _names(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def _cut(text: str) -> str:
    return text if len(text) <= 300 else text[:297] + "..."
