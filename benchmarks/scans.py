"""`scans.c` compiled at run time, or stand-ins in Python where there is no compiler."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Scan = Callable[[NDArray[np.uint8]], int]


def compile_scans(folder: Path) -> dict[str, Scan] | None:
    """Return the scans by name, as functions of a contiguous text. None without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "bench-scans.so"
    source = Path(__file__).with_name("scans.c")
    subprocess.run([compiler, "-O3", "-march=native", "-shared", "-fPIC", "-o", library, source], check=True)
    found = ctypes.CDLL(str(library))
    for name in ("newlines_memchr", "newlines_counted", "index_per_char"):
        getattr(found, name).restype = ctypes.c_size_t
    entries = np.empty(0, np.uint8)

    def per_char(text: NDArray[np.uint8]) -> int:
        nonlocal entries
        room = len(text) // 4
        if len(entries) < 24 * room:
            entries = np.zeros(24 * room, np.uint8)
        return int(
            found.index_per_char(
                ctypes.c_void_p(text.ctypes.data),
                ctypes.c_size_t(len(text)),
                ctypes.c_void_p(entries.ctypes.data),
                ctypes.c_size_t(room),
            )
        )

    def newlines(name: str) -> Scan:
        scan = getattr(found, name)
        return lambda text: int(scan(ctypes.c_void_p(text.ctypes.data), ctypes.c_size_t(len(text))))

    return {
        "memchr a line": newlines("newlines_memchr"),
        "vector count": newlines("newlines_counted"),
        "per character": per_char,
    }
