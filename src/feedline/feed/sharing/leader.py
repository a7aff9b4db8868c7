"""The leader of a group: it keeps its latest minibatches in shared memory, and hands them to the followers.

A thread of its own answers requests. A request for the minibatch that comes next waits until that is made, any other
one gets what there is, or nothing, at once. The leader itself never waits for a follower: while all segments are lent,
the oldest becomes the followers' own, and a new one is made.

Cost: a copy of each minibatch, and memory for at least `FEWEST` of them. Nothing is copied while no follower asks, nor
of minibatches so small that followers make them for less.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from feedline import _native
from feedline.concurrency import named_threads
from feedline.concurrency.finalizers import unless_exiting
from feedline.data import Value
from feedline.feed.sharing.group_messages import NONE, REPLY, REQUEST, TABLE_BYTES, accept
from feedline.feed.sharing.value_memory import ValueMemory
from feedline.feed.workers.memory import FORGOTTEN, FREE, TAKEN, create

#: Minibatches that are kept for followers that are late: as many as fit into some bytes, within bounds. The least is
#: one in use, one that comes next, and one in between.
KEPT_BYTES, FEWEST, MOST = 16 << 20, 3, 16
#: To ask for a minibatch costs a follower 0.4 ms, and 0.15 ms for each megabyte. To make it costs 3 ms for a megabyte
#: of pictures, 4 ms of Parquet in Zstandard, and 1.6 ms of JSON Lines. While all are smaller, little is gained.
LEAST_BYTES = 512 << 10
#: Minibatches after which a leader that nobody asks stops copying, until the next request.
UNASKED = 64
_PAGE_BYTES = 1 << 12
_END_S = 1.0


class _KeptMinibatch:
    """Shared memory for a minibatch.

    Attributes:
        number: its number, its place in the tables of followers.
        fd, size: its descriptor and bytes.
        view: its bytes, writable.
        key: digest of the minibatch in it.
    """

    __slots__ = ("fd", "key", "number", "size", "view")

    def __init__(self, number: int, size: int) -> None:
        self.number, self.size = number, -(-size // _PAGE_BYTES) * _PAGE_BYTES
        self.fd = create(self.size, "feedline-group")
        self.view = memoryview(_native.SharedMemory(self.fd, self.size))
        self.key = b""

    @unless_exiting
    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)


@dataclass(slots=True)
class _ConnectedFollower:
    """A follower.

    Attributes:
        channel: its socket.
        table: which segments are lent to it.
        request: what it waits for: number, digest and place. None: nothing.
    """

    channel: socket.socket
    table: memoryview
    request: tuple[int, bytes, int] | None = None


class Leader:
    """Hands minibatches to the followers of a group.

    Args:
        listener: socket that they connect to.
        memory: writes values.
    """

    def __init__(self, listener: socket.socket, memory: ValueMemory) -> None:
        self._listener, self._memory = listener, memory
        self._lock = threading.Lock()  # guards all of the following
        self._connections: dict[int, _ConnectedFollower] = {}  # by descriptor
        self._segments: list[_KeptMinibatch] = []  # oldest first
        self._next: int | None = None  # place of the minibatch that is made next. None: unknown
        self._is_worth_it = False  # so far. The last minibatch of a sweep is small, but would cost followers a window
        self._refused = b""  # digest of a minibatch that could not be made or shared
        self._unasked, self._closed, self._pid = 0, False, os.getpid()
        self._awake, self._wake = os.pipe()
        self._poller = selectors.DefaultSelector()
        for each in (self._awake, listener.fileno()):
            self._poller.register(each, selectors.EVENT_READ)
        self._thread = named_threads.begin("group", self._serve)

    # ---- called by the source ---------------------------------------------------------------------

    def begin(self, place: int) -> None:
        """Note that the minibatch at a place is made now. Requests for others are answered."""
        with self._lock:
            self._next, self._refused = place, b""
            self._answer_all()

    def hand_on(self, key: bytes, values: Mapping[str, Value] | None, after: int) -> None:
        """Offer a minibatch to the followers.

        Args:
            key: its digest.
            values: its values. None: followers have to make it themselves.
            after: place of the next minibatch.
        """
        segment = None if values is None or self._unasked >= UNASKED else self._copy(values)
        with self._lock:
            self._unasked += 1
            self._next, self._refused = after, key if segment is None else b""
            if segment is not None:
                segment.key = key
                self._segments.append(segment)
            self._answer_all()

    def close(self) -> None:
        """Leave the followers to themselves. Idempotent."""
        if self._closed or self._pid != os.getpid():
            return
        # First, as the thread closes the descriptor once it sees that this is closed.
        os.write(self._wake, b"!")
        self._closed = True
        self._thread.end(_END_S)

    # ---- memory -----------------------------------------------------------------------------------

    def _copy(self, values: Mapping[str, Value]) -> _KeptMinibatch | None:
        arrays = self._memory.arrays(values)
        if arrays is None:
            return None
        size = self._memory.size(arrays)
        self._is_worth_it = self._is_worth_it or size >= LEAST_BYTES
        if not self._is_worth_it:
            return None
        try:
            with self._lock:
                segment = self._take(size)
        except (OSError, MemoryError):  # followers make their own minibatches
            return None
        self._memory.write(arrays, segment.view)
        return segment

    def _take(self, size: int) -> _KeptMinibatch:
        """Take a segment that is not lent out of the list, or make one."""
        tables = [connection.table for connection in self._connections.values()]
        free = []
        for segment in list(self._segments):
            states = [table[segment.number] for table in tables]
            if FORGOTTEN in states:  # a forked child of a follower may still read it
                self._segments.remove(segment)
                for table in tables:
                    if table[segment.number] == FORGOTTEN:
                        table[segment.number] = FREE
            elif TAKEN not in states:
                free.append(segment)
        if len(self._segments) >= max(FEWEST, min(MOST, KEPT_BYTES // max(size, 1))):
            segment = free[0] if free else self._segments[0]
            self._segments.remove(segment)
            if free and size <= segment.size <= 4 * size + (1 << 20):
                return segment
        used = {segment.number for segment in self._segments}
        for number in range(TABLE_BYTES):
            if number not in used and all(table[number] == FREE for table in tables):
                return _KeptMinibatch(number, size + size // 4)  # the next one may be larger
        raise MemoryError("expected followers to return segments, got none back")

    # ---- requests, in the thread and in the source ------------------------------------------------

    def _serve(self) -> None:
        while not self._closed:
            for ready, _ in self._poller.select():
                fd = ready.fd
                with self._lock:
                    if fd in self._connections:
                        self._hear(fd)
                    elif fd == self._listener.fileno():
                        self._welcome()
        with self._lock:
            for fd in list(self._connections):
                self._drop(fd)
            self._segments = []
        self._listener.close()
        self._poller.close()
        os.close(self._awake)
        os.close(self._wake)

    def _welcome(self) -> None:
        channel = accept(self._listener)
        if channel is None:
            return
        try:
            fd = create(TABLE_BYTES, "feedline-group")
            try:
                table = memoryview(_native.SharedMemory(fd, TABLE_BYTES))
                socket.send_fds(channel, [REPLY.pack(0, NONE, 0)], [fd])
            finally:
                os.close(fd)
        except (OSError, MemoryError):
            channel.close()
            return
        self._connections[channel.fileno()] = _ConnectedFollower(channel, table)
        self._poller.register(channel.fileno(), selectors.EVENT_READ)

    def _hear(self, fd: int) -> None:
        connection = self._connections[fd]
        try:
            message = connection.channel.recv(REQUEST.size)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if len(message) != REQUEST.size:
            self._drop(fd)
            return
        self._unasked, connection.request = 0, REQUEST.unpack(message)
        self._answer(fd)

    def _answer_all(self) -> None:
        for fd in [fd for fd, connection in self._connections.items() if connection.request is not None]:
            self._answer(fd)

    def _answer(self, fd: int) -> None:
        """Answer a request, unless its minibatch comes next."""
        connection = self._connections[fd]
        assert connection.request is not None
        number, key, place = connection.request
        segment = next((segment for segment in self._segments if segment.key == key), None)
        if segment is None and key != self._refused and self._next in (None, place):
            return
        connection.request = None
        try:
            if segment is None:
                connection.channel.send(REPLY.pack(number, NONE, 0))
            else:
                connection.table[segment.number] = TAKEN
                socket.send_fds(connection.channel, [REPLY.pack(number, segment.number, segment.size)], [segment.fd])
        except OSError:
            self._drop(fd)

    def _drop(self, fd: int) -> None:
        connection = self._connections.pop(fd)
        with contextlib.suppress(OSError, KeyError):
            self._poller.unregister(fd)
        connection.channel.close()
