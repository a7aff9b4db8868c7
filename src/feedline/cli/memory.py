"""The memory of this process, as Linux counts it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple


class ResidentMemory(NamedTuple):
    """Resident bytes of a process.

    Attributes:
        private: anonymous and shared pages (RssAnon + RssShmem), which must stay in memory.
        file_backed: pages of mapped files (RssFile), which the kernel can reclaim.
    """

    private: int
    file_backed: int


def memory() -> ResidentMemory:
    """Return the current memory of this process.

    Raises:
        OSError: there is no /proc (not Linux).
    """
    status = Path("/proc/self/status").read_text()
    sizes = {name: int(kib) << 10 for name, kib in re.findall(r"^(Rss\w+):\s+(\d+) kB$", status, re.MULTILINE)}
    return ResidentMemory(sizes["RssAnon"] + sizes["RssShmem"], sizes["RssFile"])
