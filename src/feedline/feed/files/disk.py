"""Measure the cost of reading a corpus on this machine: its share in the page cache, and the speed of the disk.

Measurements bypass the page cache, so they change nothing. The figures are for people. No order ever depends on them.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline import _native, system
from feedline.concurrency.named_threads import begin
from feedline.errors import DataError

PAGE_BYTES = mmap.PAGESIZE
# Sizes and queue depths at which disks perform best: a few large sequential reads, or many small random ones.
LARGE_BYTES, LARGE_DEPTH = 4 << 20, 4
SMALL_DEPTH = 32
_LOOKS = 4096  # most pages checked for residency


class Survey(NamedTuple):
    """The cost of reading the files of a corpus.

    Attributes:
        bytes: total size of the files.
        resident: share of them in the page cache, 0 to 1, an estimate for more than 4096 pages. None if the system
            does not tell.
        sequential: bytes per second in large reads. None if the file system does not support direct I/O.
        random: reads per second, of ``piece`` bytes at random places. None likewise.
        piece: bytes of a random read.
    """

    bytes: int
    resident: float | None
    sequential: float | None
    random: float | None
    piece: int


def survey(files: Sequence[str], piece: int, seconds: float = 1.0) -> Survey | None:
    """Measure the disk under ``files``.

    Args:
        files: paths of the files that hold the data.
        piece: bytes of a random read, such as the size of one sequence.
        seconds: duration, half of it for each kind of read.

        Returns:
            The survey. None if there are no files, or all are empty.

    Raises:
        DataError: a file cannot be read.
    """
    sizes = np.array([_size(path) for path in files], np.int64)
    total = int(sizes.sum())
    if not total:
        return None
    piece = max(1, min(piece, LARGE_BYTES))
    with contextlib.ExitStack() as opened:
        descriptors: list[int] = []
        try:
            for path in files:
                descriptors.append(system.open_direct(path))
                opened.callback(os.close, descriptors[-1])
        except OSError:
            return Survey(total, _resident(files, sizes), None, None, piece)
        large = _rate(descriptors, sizes, LARGE_BYTES, depth=LARGE_DEPTH, seconds=seconds / 2, files=files)
        small = _rate(descriptors, sizes, piece, depth=SMALL_DEPTH, seconds=seconds / 2, files=files)
    return Survey(total, _resident(files, sizes), large * min(LARGE_BYTES, int(sizes.max())), small, piece)


def evict(files: Sequence[str]) -> None:
    """Ask the kernel to drop ``files`` from the page cache. It keeps mapped pages.

    Raises:
        DataError: a file cannot be opened, or the system has no such request.
    """
    for path in files:
        if not system.KNOWS_PAGE_CACHE:
            raise DataError(
                "expected a system whose page cache can be asked to drop a file, such as Linux, got another one",
                path=path,
                hint="measure without evicting, or after the machine was restarted",
            )
        with _open(path) as descriptor:
            with contextlib.suppress(OSError):
                os.fsync(descriptor)  # dirty pages would stay
            system.drop_cached(descriptor)


def resident(files: Sequence[str]) -> float | None:
    """Return the share of the bytes of ``files`` that the page cache holds, 0 to 1. None if the system does not tell.

    Raises:
        DataError: a file cannot be opened.
    """
    sizes = np.array([_size(path) for path in files], np.int64)
    return _resident(files, sizes) if sizes.sum() else 1.0


def _resident(files: Sequence[str], sizes: NDArray[np.int64]) -> float | None:
    if not system.KNOWS_PAGE_CACHE or _native.PORTABLE:
        return None
    cached, total = 0.0, int(sizes.sum())
    for path, size in zip(files, sizes.tolist(), strict=True):
        if not size:
            continue
        pages = -(-size // PAGE_BYTES)
        looks = max(1, min(pages, _LOOKS * size // total))
        # For mapped files the kernel reports residency without reading, but not for files that the user may not write.
        # For those, pages are read if that does not block.
        with _open(path) as descriptor, mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as mapped:
            view = np.frombuffer(mapped, np.uint8)
            try:
                with _readable(path):
                    reader = _native.Fetcher(depth=1)
                    hits = reader.held(reader.add(path, size, view.ctypes.data, direct=False), 0, size, looks)
            finally:
                del view
        cached += hits / looks * size
    return cached / total


def _rate(
    descriptors: Sequence[int],
    sizes: NDArray[np.int64],
    piece: int,
    *,
    depth: int,
    seconds: float,
    files: Sequence[str],
) -> float:
    """Return the number of reads per second from random aligned places, ``depth`` at a time."""
    # Bytes of all pages that an unaligned piece touches.
    rounded = (-(-piece // PAGE_BYTES) + (piece % PAGE_BYTES > 0)) * PAGE_BYTES
    share, errors = sizes / sizes.sum(), list[DataError]()
    done = [0] * depth
    began = time.perf_counter()

    def read(thread: int) -> None:
        rng = np.random.default_rng()
        with mmap.mmap(-1, rounded) as buffer:
            # At least once: a busy machine may not run a thread in time.
            while not errors and (not done[thread] or time.perf_counter() - began < seconds):
                for i in rng.choice(len(sizes), 16, p=share).tolist():
                    places = max(1, (int(sizes[i]) - rounded) // PAGE_BYTES + 1)
                    try:
                        with _readable(files[i]):
                            os.preadv(descriptors[i], [buffer], int(rng.integers(places)) * PAGE_BYTES)
                    except DataError as error:
                        errors.append(error)
                        return
                    done[thread] += 1
                    if time.perf_counter() - began >= seconds:
                        break

    threads = [begin("survey", functools.partial(read, k), waited=True) for k in range(depth)]
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return sum(done) / (time.perf_counter() - began)


def _size(path: str) -> int:
    with _readable(path):
        return os.stat(path).st_size


@contextlib.contextmanager
def _open(path: str) -> Iterator[int]:
    with _readable(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _readable(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"expected a readable file: {error.strerror or error}", path=path) from error
