"""Collective exchanges, written as coroutines that ``await`` wherever a rank waits for other ranks.

So `Communicator.run`, which drives them, can interrupt a wait and resume it later, and all that follows the wait
happens in order.

Every exchange begins with a frame of a fixed size: a digest of the next exchange, and a few numbers. gloo aborts the
process when two ranks disagree about a size. By their frames, ranks that are about to make different exchanges notice
it before anything of another size is sent. `Exchanges.sum` and `Exchanges.distribute` send no frame, and must follow an
exchange with a frame.

Data from other ranks is not trusted: counts are checked before memory is allocated for them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import torch

from feedline.collective.flat_buffers import lay_out_buckets
from feedline.collective.heartbeat import Heartbeat
from feedline.errors import StoreError

#: Dtypes that both gloo and NCCL sum. Complex numbers are summed as pairs; all other dtypes are only sent as bytes.
SUMMED = frozenset(
    {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8}
    | {torch.bool, torch.complex64, torch.complex128}
)
#: Length of a frame in float64 numbers. The first three are the digest, the count of numbers, and the text's length.
FRAME = 32
_HEAD = 3
#: Largest number of bytes that a rank may send at once.
MAX_BYTES = 1 << 31
#: Bytes of a tensor that are sent at once.
SHARED_BYTES = 1 << 20
#: Largest number of characters of a text in an error.
SHOWN = 300


class Waiting:
    """Awaitable of works of torch.distributed."""

    def __init__(self, works: Sequence[Any]) -> None:
        self._works = works

    def __await__(self) -> Generator[Sequence[Any], None, None]:
        yield self._works


class Announcement(NamedTuple):
    """A rank's announcement of its next exchange. See `Exchanges.announce`.

    Attributes:
        text: description of the exchange.
        numbers: numbers sent with it.
        frames: frames of all ranks, by rank, valid once the work has ended.
        work: work in flight.
    """

    text: bytes
    numbers: list[float]
    frames: list[Any]
    work: Any

    def all_agree(self) -> bool:
        """Return whether all ranks are known to make the same exchange."""
        if not self.work.is_completed():
            return False
        return all(torch.equal(frame[:2], self.frames[0][:2]) for frame in self.frames)


class Exchanges:
    """Exchanges of all ranks, as coroutines.

    Args:
        rank: rank of this process.
        count: number of ranks.
        begin: function ``begin(tensor, method, *arguments)`` that starts a method of the tensor's backend, and returns
            its work.
        heartbeat: heartbeat of this rank, which contains its current exchange.

    Attributes:
        count: number of ranks.
        begin: see above.
    """

    def __init__(self, rank: int, count: int, begin: Callable[..., Any], heartbeat: Heartbeat) -> None:
        self._rank, self.count, self.begin, self._heartbeat = rank, count, begin, heartbeat

    # ---- numbers and text -------------------------------------------------------------------------------------

    async def meet(self, what: str, numbers: Sequence[float] = (), kind: str | None = None) -> list[list[float]]:
        """Verify that all ranks are about to do the same, and gather equally many numbers (float64) from each.

        Args:
            what: description of the exchange.
            numbers: numbers of this rank.
            kind: text that has to be the same on all ranks. None means ``what``.

        Returns:
            The numbers of every rank, by rank.

        Raises:
            StoreError: exchanges or counts of numbers differ. The message lists the exchange of each rank. The ranks
                can continue.
        """
        return await self.finish_meeting(self.announce(what, numbers, kind))

    def announce(self, what: str, numbers: Sequence[float] = (), kind: str | None = None) -> Announcement:
        """Begin to `meet`, without waiting for other ranks. `finish_meeting` waits."""
        self._heartbeat.doing = what
        text = what.encode(errors="backslashreplace")
        digest = digest_of(what if kind is None else kind)
        inline = list(numbers) if len(numbers) <= FRAME - _HEAD else []
        head = [digest, len(numbers), len(text), *inline]
        frame = torch.tensor(head + [0] * (FRAME - len(head)), dtype=torch.float64)
        # NaN differs from every number, in case the exchange fails before a frame arrives.
        frames = [torch.full_like(frame, math.nan) for _ in range(self.count)]
        return Announcement(text, list(numbers), *self.begin_gathering(frame, frames))

    async def finish_meeting(self, announced: Announcement) -> list[list[float]]:
        """Complete a `meet` that `announce` has begun."""
        await Waiting([announced.work])
        rows, numbers = [frame.tolist() for frame in announced.frames], announced.numbers
        if any(row[:2] != rows[0][:2] for row in rows):
            await self._raise_disagreement(announced.text, rows)
        if len(numbers) <= FRAME - _HEAD:
            return [row[_HEAD : _HEAD + len(numbers)] for row in rows]
        return [row.tolist() for row in await self.gather_tensors(torch.tensor(numbers, dtype=torch.float64))]

    async def gather_bytes(self, what: str, data: bytes) -> list[bytes]:
        """Gather bytes of any length from every rank, by rank."""
        rows = await self.meet(what, [float(len(data))])
        return await self._gather_padded(data, [row[0] for row in rows])

    async def _gather_padded(self, data: bytes, lengths: Sequence[float]) -> list[bytes]:
        sizes = [check_count(r, n, MAX_BYTES, "bytes") for r, n in enumerate(lengths)]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        if data:
            padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        rows = await self.gather_tensors(padded) if max(sizes) else [padded] * self.count
        return [row[:n].numpy().tobytes() for row, n in zip(rows, sizes, strict=True)]

    async def _raise_disagreement(self, description: bytes, rows: Sequence[Sequence[float]]) -> None:
        encoded = await self._gather_padded(description, [row[2] for row in rows])
        texts = [text.decode(errors="replace") for text in encoded]
        if len(set(texts)) == 1:
            texts = [f"{text}, with {row[1]:.0f} numbers" for text, row in zip(texts, rows, strict=True)]
        usual = max(texts, key=texts.count)
        different = tuple(r for r, text in enumerate(texts) if text != usual)
        lines = [f"expected all ranks to do the same, got a difference at {list_ranks(different)}"]
        lines += [f"  rank {r}: {text}" for r, text in enumerate(shorten_differing(texts))]
        raise StoreError("\n".join(lines), ranks=different)

    # ---- tensors ----------------------------------------------------------------------------------------------

    async def gather_tensors(self, tensor: Any) -> list[Any]:
        """Gather a contiguous tensor of one shape and dtype from every rank, by rank. No frame."""
        rows, work = self.begin_gathering(tensor)
        await Waiting([work])
        return rows

    def begin_gathering(self, tensor: Any, rows: list[Any] | None = None) -> tuple[list[Any], Any]:
        """Begin `gather_tensors`. Return its result, which is valid once the second item, a work for `Waiting`, has
        ended.

        Args:
            tensor: tensor of this rank, unchanged until the other ranks have it.
            rows: tensors to write to. None means new ones.
        """
        rows = [torch.empty_like(tensor) for _ in range(self.count)] if rows is None else rows
        return rows, self.begin(tensor, "allgather", [[_as_bytes(row) for row in rows]], [_as_bytes(tensor)])

    def begin_sharing(self, flat: Any, rows: list[Any]) -> list[Any]:
        """Begin to share every rank's flat tensor with all ranks. Return a work for each `SHARED_BYTES`. No frame.

        Like `begin_gathering`, for large tensors. They are sent in pieces, so that links carry both directions at once,
        and between two ranks without the copies that the all-gather of gloo makes.

        Args:
            flat: tensor of this rank, contiguous, unchanged until the other ranks have it.
            rows: tensors that receive the tensors of the other ranks, by rank. The one of this rank is replaced by
                ``flat``.
        """
        rows[self._rank] = flat
        pieces = [_as_bytes(row).split(SHARED_BYTES) for row in rows]
        sent, peer = _as_bytes(flat).split(SHARED_BYTES), 1 - self._rank
        if self.count != 2 or not flat.is_cpu:
            return [self.begin(flat, "allgather", [parts], [part]) for part, *parts in zip(sent, *pieces, strict=True)]
        return [
            self.begin(flat, "alltoall_base", received, part, *[[0, len(part)] if peer else [len(part), 0]] * 2)
            for part, received in zip(sent, pieces[peer], strict=True)
        ]

    def sum(self, tensor: Any) -> Any:
        """Start to sum a contiguous tensor over all ranks, in place. Return a work for `Waiting`. No frame.

        Raises:
            TypeError: the dtype is not in `SUMMED`. The ranks can continue.
        """
        if tensor.dtype not in SUMMED:
            raise TypeError(f"expected a dtype that ranks can sum, got {tensor.dtype}")
        plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        return self.begin(tensor, "allreduce", [plain])

    async def broadcast(self, tensors: Sequence[Any]) -> None:
        """Overwrite contiguous ``tensors`` with the tensors of rank 0. Shapes and dtypes are the same on all ranks."""
        if self.count == 1 or not tensors:
            return
        await self.meet(f"send {len(tensors)} tensors of {sum(t.nbytes for t in tensors)} bytes from rank 0")
        buckets = lay_out_buckets(tensors)
        await Waiting([self.begin(b.flat, "broadcast", [_as_bytes(b.fill(tensors))]) for b in buckets])
        if self._rank:
            for bucket in buckets:
                bucket.read(tensors)

    async def distribute(self, parts: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
        """Send part r to rank r. No frame.

        Args:
            parts: one-dimensional tensor of bytes (uint8, on the CPU) for each rank.
            sizes: number of bytes to receive from each rank.

        Returns:
            The bytes received from each rank.
        """
        received = torch.empty(sum(sizes), dtype=torch.uint8)
        sent, lengths = torch.cat(list(parts)), [part.numel() for part in parts]
        await Waiting([self.begin(sent, "alltoall_base", received, sent, list(sizes), lengths)])
        return list(received.split(list(sizes)))


def digest_of(text: str) -> int:
    """Return a digest of 48 bits, which a float64 represents exactly."""
    return int.from_bytes(hashlib.blake2b(text.encode(errors="backslashreplace"), digest_size=6).digest(), "little")


def check_count(rank: int, number: float, limit: int, what: str) -> int:
    """Return a count received from a rank.

    Raises:
        StoreError: the number is not an integer from 0 to ``limit``.
    """
    if not 0 <= number <= limit or number != int(number):
        raise StoreError(f"expected 0 to {limit} {what} from rank {rank}, got {number:g}", ranks=(rank,))
    return int(number)


def list_ranks(ranks: Sequence[int]) -> str:
    """Return ``rank 1``, or ``ranks 1, 2``."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def shorten_differing(texts: Sequence[str]) -> list[str]:
    """Shorten texts for an error: keep the beginning of each, and the part after the first difference between them."""
    if all(len(text) <= SHOWN for text in texts):
        return list(texts)
    difference = next(i for i in range(max(map(len, texts))) if len({text[i : i + 1] for text in texts}) > 1)
    begin = max(0, difference - SHOWN // 6)
    if begin <= SHOWN // 3:
        return [shorten(text) for text in texts]
    return [f"{text[: SHOWN // 3]} ... {shorten(text[begin:], SHOWN // 2)}" for text in texts]


def shorten(text: str, limit: int = SHOWN) -> str:
    """Shorten a text to at most ``limit`` characters."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _as_bytes(tensor: Any) -> Any:
    """View a contiguous tensor as bytes, which can be sent for any dtype."""
    return tensor.view(-1).view(torch.uint8)
