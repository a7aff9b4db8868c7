"""A follower: it asks the leader of its group for minibatches, and maps them.

Mappings are copies on write, so a program may change its minibatch as if it were its own. The memory goes back to the
leader when the last array over it is gone.
"""

from __future__ import annotations

import os
import socket
import time

from feedline import _native, system
from feedline.feed.sharing.group_messages import NONE, REPLY, REQUEST, TABLE_BYTES
from feedline.feed.workers.memory import FORGOTTEN, FREE


class Follower:
    """Asks for minibatches.

    Args:
        channel: socket that is connected to the leader.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._table: _native.SharedMemory | None = None
        self._asked = self._answered = 0

    def ask(self, key: bytes, place: int, patience_s: float) -> memoryview | None:
        """Return the memory of a minibatch, or None if the leader does not have it.

        If the leader still owes an answer to an earlier request, it is busy or stopped, and this does not wait.

        Args:
            key: its digest.
            place: its place.
            patience_s: time to wait for it.

        Raises:
            OSError: the leader is gone.
        """
        if self._answered < self._asked:
            late = self._reply(0)
            if late is None:
                return None
            self._return(*late)
        self._asked += 1
        self._channel.settimeout(patience_s)
        self._channel.send(REQUEST.pack(self._asked, key, place))
        reply = self._reply(patience_s)
        return None if reply is None else self._map(*reply)

    def close(self) -> None:
        """Leave the leader. Minibatches stay."""
        self._channel.close()

    def _reply(self, patience_s: float) -> tuple[int, int, int] | None:
        """Return segment, bytes and descriptor of the reply to the last request. None if it does not come in time."""
        deadline = time.monotonic() + patience_s
        while True:
            message = bytearray(REPLY.size)
            self._channel.settimeout(max(deadline - time.monotonic(), 0))
            try:
                size, fds = system.receive(self._channel, memoryview(message))
            except (TimeoutError, BlockingIOError):
                return None
            if size != REPLY.size:
                raise ConnectionResetError("expected a reply, got the end of the connection")
            number, segment, nbytes = REPLY.unpack(message)
            fd = fds[0] if fds else NONE
            if number:
                self._answered = number
                return segment, nbytes, fd
            self._table = _native.SharedMemory(fd, TABLE_BYTES)
            os.close(fd)

    def _map(self, segment: int, size: int, fd: int) -> memoryview | None:
        if fd < 0 or self._table is None:
            return None
        try:
            loan = _native.Loan(
                _native.SharedMemory(fd, size, copy_on_write=True), self._table, segment, FREE, FORGOTTEN
            )
        finally:
            os.close(fd)
        loan.begin()
        return memoryview(loan)

    def _return(self, segment: int, _: int, fd: int) -> None:
        if fd >= 0 and self._table is not None:
            memoryview(self._table)[segment] = FREE
            os.close(fd)
