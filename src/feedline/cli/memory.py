"""The memory of this process."""

from __future__ import annotations

from typing import NamedTuple

from feedline import system


class ResidentMemory(NamedTuple):
    """Resident bytes of a process. None where the system does not tell.

    Attributes:
        private: anonymous and shared pages, which must stay in memory.
        file_backed: pages of mapped files, which the kernel can reclaim.
    """

    private: int | None
    file_backed: int | None

    def peak(self, later: ResidentMemory) -> ResidentMemory:
        """Return the larger figures of two moments."""
        pairs = zip(self, later, strict=True)
        return ResidentMemory(*(None if a is None or b is None else max(a, b) for a, b in pairs))

    def growth(self, before: ResidentMemory) -> int | None:
        """Return the bytes by which the private memory has grown."""
        return None if self.private is None or before.private is None else self.private - before.private


def memory() -> ResidentMemory:
    """Return the current memory of this process."""
    return ResidentMemory(*(system.resident_bytes() or (None, None)))
