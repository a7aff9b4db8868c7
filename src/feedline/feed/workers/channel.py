"""Messages over a stream of bytes, with descriptors: what a worker and the parent say to each other.

A message is its length and its bytes. Its descriptors travel with the first of them. A message that a dead process has
not sent completely never arrives.
"""

from __future__ import annotations

import os
import socket
import struct
from array import array
from collections.abc import Sequence

from feedline import system

_HEAD = struct.Struct("=q")


def channel_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets.

    Raises:
        OSError: no descriptor is left.
    """
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def send(channel: socket.socket, text: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send a message. Wait until there is room for it.

    Raises:
        ConnectionError: the other end is closed.
    """
    head = _HEAD.pack(len(text))
    control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))] if descriptors else []
    size = channel.sendmsg([head, text], control)
    for part in (head, text):
        channel.sendall(memoryview(part)[min(size, len(part)) :])
        size -= min(size, len(part))


class MessageReceiver:
    """Receives messages, piece by piece.

    Args:
        channel: the socket. If it does not wait, `receive` does not.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._begin()

    def _begin(self) -> None:
        self._head, self._text, self._at = bytearray(_HEAD.size), bytearray(), 0
        self._headed = False
        self._descriptors: list[int] = []

    def receive(self) -> tuple[bytearray, list[int]]:
        """Return the next message and its descriptors, which the caller closes. Those that could not be opened lack.

        Raises:
            BlockingIOError: no complete message has come.
            EOFError: the channel is closed.
        """
        while not self._headed or self._at < len(self._text):
            into = self._text if self._headed else self._head
            try:
                size, descriptors = system.receive(self._channel, memoryview(into)[self._at :])
            except BlockingIOError:
                raise
            except OSError as error:
                raise EOFError from error
            if size == 0:
                raise EOFError
            self._descriptors += descriptors
            self._at += size
            if not self._headed and self._at == len(self._head):
                self._headed, self._at = True, 0
                self._text = bytearray(*_HEAD.unpack(self._head))
        message = self._text, self._descriptors
        self._begin()
        return message

    def close(self) -> None:
        """Close the descriptors of a message that did not come completely."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []
