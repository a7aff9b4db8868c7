"""What ranks tell each other, written as coroutines: an ``await`` is where a rank waits for the others.

So whoever drives them (`Communicator.run`) can leave a wait and resume it later, and what follows the wait is still
done, in order.

Every exchange begins with a frame, which has one size whatever follows: a digest of what the rank is about to do, and
as many numbers as it holds. gloo ends the process when two ranks disagree about a size; frames tell who is about to do
something else before anything of another size is sent. `Exchanges.sum` and `Exchanges.distribute` send no frame, and
have to follow an exchange that did.

Nothing that comes from another rank is trusted: counts are checked before memory is made for them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch

from feedline.collective.buckets import laid_out
from feedline.errors import StoreError

#: What both gloo and NCCL add up. Complex numbers are added as pairs; everything else travels as bytes alone.
SUMMED = frozenset(
    {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8}
    | {torch.bool, torch.complex64, torch.complex128}
)
#: Numbers (float64) in a frame; the first three are the digest, the count of numbers, and the length of the text.
FRAME = 32
_HEAD = 3
#: Bytes that a rank may tell at once.
MOST = 1 << 31
#: Characters of a text that an error shows.
SHOWN = 300


class Waiting:
    """What is awaited: works of torch.distributed."""

    def __init__(self, works: Sequence[Any]) -> None:
        self._works = works

    def __await__(self) -> Generator[Sequence[Any], None, None]:
        yield self._works


class Exchanges:
    """Exchanges of all ranks.

    Args:
        rank: of this process.
        count: ranks.
        begin: starts ``begin(tensor, method, *arguments)`` of the backend for a tensor like that, and returns its work.
        doing: is told what an exchange is.
    """

    def __init__(self, rank: int, count: int, begin: Callable[..., Any], doing: Callable[[str], None]) -> None:
        self._rank, self._count, self._begin, self._doing = rank, count, begin, doing

    # ---- numbers and text -------------------------------------------------------------------------------------

    async def meet(self, what: str, numbers: Sequence[float] = ()) -> list[list[float]]:
        """Find out whether all ranks are about to do the same, and exchange as many numbers (float64) on the way.

        Returns:
            The numbers of every rank, by rank.

        Raises:
            StoreError: they are not, or give another number of numbers; says what each is about to do. The ranks can
                go on.
        """
        self._doing(what)
        text = what.encode(errors="backslashreplace")
        digest = int.from_bytes(hashlib.blake2b(text, digest_size=6).digest(), "little")
        inline = list(numbers) if len(numbers) <= FRAME - _HEAD else []
        head = [digest, len(numbers), len(text), *inline]
        frame = torch.tensor(head + [0] * (FRAME - len(head)), dtype=torch.float64)
        rows = [row.tolist() for row in await self.gather_tensors(frame)]
        if any(row[:2] != rows[0][:2] for row in rows):
            await self._disagree(text, rows)
        if len(numbers) == len(inline):
            return [row[_HEAD : _HEAD + len(numbers)] for row in rows]
        return [row.tolist() for row in await self.gather_tensors(torch.tensor(list(numbers), dtype=torch.float64))]

    async def gather_bytes(self, what: str, own: bytes) -> list[bytes]:
        """What every rank gives, of any lengths, by rank."""
        rows = await self.meet(what, [float(len(own))])
        return await self._padded(own, [row[0] for row in rows])

    async def _padded(self, own: bytes, lengths: Sequence[float]) -> list[bytes]:
        sizes = [checked_count(r, n, MOST, "bytes") for r, n in enumerate(lengths)]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        if own:
            padded[: len(own)] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        rows = await self.gather_tensors(padded) if max(sizes) else [padded] * self._count
        return [row[:n].numpy().tobytes() for row, n in zip(rows, sizes, strict=True)]

    async def _disagree(self, text: bytes, rows: Sequence[Sequence[float]]) -> None:
        found = await self._padded(text, [row[2] for row in rows])
        texts = [got.decode(errors="replace") for got in found]
        if len(set(texts)) == 1:
            texts = [f"{got}, with {row[1]:.0f} numbers" for got, row in zip(texts, rows, strict=True)]
        usual = max(texts, key=texts.count)
        others = tuple(r for r, got in enumerate(texts) if got != usual)
        lines = [f"  rank {r}: {got}" for r, got in enumerate(shown(texts))]
        raise StoreError(
            f"expected all ranks to do the same, got something else from {named(others)}\n" + "\n".join(lines),
            ranks=others,
        )

    # ---- tensors ----------------------------------------------------------------------------------------------

    async def gather_tensors(self, own: Any) -> list[Any]:
        """A tensor of every rank, by rank; of one shape and dtype on all ranks, contiguous. No frame."""
        rows = [torch.empty_like(own) for _ in range(self._count)]
        await Waiting([self._begin(own, "allgather", [[_as_bytes(row) for row in rows]], [_as_bytes(own)])])
        return rows

    def sum(self, tensor: Any) -> Any:
        """Begin to sum a contiguous tensor over all ranks, in place; returns what `Waiting` takes. No frame.

        Raises:
            TypeError: a dtype that is not in `SUMMED`; the ranks can go on.
        """
        if tensor.dtype not in SUMMED:
            raise TypeError(f"expected a dtype that ranks can add up, got {tensor.dtype}")
        plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        return self._begin(tensor, "allreduce", [plain])

    async def broadcast(self, tensors: Sequence[Any]) -> None:
        """Let ``tensors`` hold what rank 0's do; of one list of shapes and dtypes on all ranks, each within memory."""
        if self._count == 1 or not tensors:
            return
        await self.meet(f"send {len(tensors)} tensors of {sum(t.nbytes for t in tensors)} bytes from rank 0")
        buckets = laid_out(tensors)
        await Waiting([self._begin(b.flat, "broadcast", [_as_bytes(b.fill(tensors))]) for b in buckets])
        if self._rank:
            for bucket in buckets:
                bucket.read(tensors)

    async def distribute(self, parts: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
        """Give part r to rank r. No frame.

        Args:
            parts: for each rank a one-dimensional tensor of bytes (uint8), on the CPU.
            sizes: bytes that come from each rank.

        Returns:
            What came from each rank.
        """
        received = torch.empty(sum(sizes), dtype=torch.uint8)
        sent, lengths = torch.cat(list(parts)), [part.numel() for part in parts]
        await Waiting([self._begin(sent, "alltoall_base", received, sent, list(sizes), lengths)])
        return list(received.split(list(sizes)))


def checked_count(rank: int, number: float, most: int, what: str) -> int:
    """A count that a rank has told.

    Raises:
        StoreError: it is none, or above ``most``.
    """
    if not 0 <= number <= most or number != int(number):
        raise StoreError(f"expected 0 to {most} {what} from rank {rank}, got {number:g}", ranks=(rank,))
    return int(number)


def named(ranks: Sequence[int]) -> str:
    """``rank 1``, ``ranks 1, 2``."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def shown(texts: Sequence[str]) -> list[str]:
    """Texts that differ, each short enough for an error: how they begin, and where they begin to differ."""
    if all(len(text) <= SHOWN for text in texts):
        return list(texts)
    same = next(i for i in range(max(map(len, texts))) if len({text[i : i + 1] for text in texts}) > 1)
    begin = max(0, same - SHOWN // 6)
    if begin <= SHOWN // 3:
        return [cut(text) for text in texts]
    return [f"{text[: SHOWN // 3]} ... {cut(text[begin:], SHOWN // 2)}" for text in texts]


def cut(text: str, most: int = SHOWN) -> str:
    """A text that is not longer than ``most``."""
    return text if len(text) <= most else text[: most - 3] + "..."


def _as_bytes(tensor: Any) -> Any:
    """The memory of a contiguous tensor: bytes of any dtype can be sent."""
    return tensor.view(-1).view(torch.uint8)
