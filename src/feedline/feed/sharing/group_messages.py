"""What a leader and its followers say to each other, and the sockets that they say it through.

Sockets have names without files and memory has none, so a process leaves nothing behind, however it ends. Where the
system has no such names, there are no groups, and each rank makes its minibatches itself. Messages are packets of
fixed fields. Both sides talk only to processes of their own user.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import weakref

from feedline import system

#: Follower to leader: number of the request from 1, digest of the minibatch, and its place: samples on the axis before.
REQUEST = struct.Struct("<q16sq")
#: Leader to follower: number of the request, of the segment or `NONE`, and its bytes. With the segment's descriptor.
#: The first message, number 0, comes with the descriptor of the follower's table: a byte for each segment.
REPLY = struct.Struct("<qqq")
NONE = -1
#: Bytes of a table, and so the number of segments.
TABLE_BYTES = 256

_open: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def listen(address: bytes) -> socket.socket | None:
    """Return a socket that listens at an abstract address, or None if another process does, or none can be made."""
    channel = _new()
    try:
        channel.bind(address)
        channel.listen(64)
        channel.setblocking(False)
    except OSError:
        channel.close()
        return None
    return channel


def connect(address: bytes) -> socket.socket | None:
    """Return a socket that is connected to an abstract address, or None if no other process of this user listens."""
    channel = _new()
    try:
        channel.connect(address)
        if is_trusted(channel):
            return channel
    except OSError:
        pass
    channel.close()
    return None


def accept(listener: socket.socket) -> socket.socket | None:
    """Return the next connection, or None if it is gone or of another user."""
    try:
        channel, _ = listener.accept()
    except OSError:
        return None
    _open.add(channel)
    channel.setblocking(False)
    if is_trusted(channel):
        return channel
    channel.close()
    return None


def is_trusted(channel: socket.socket) -> bool:
    """Return whether the other end is another process of this user."""
    process, user = system.peer_of(channel)
    return bool(user == os.geteuid() and process != os.getpid())


def _new() -> socket.socket:
    channel = system.group_socket()
    _open.add(channel)
    return channel


def _after_fork() -> None:
    # A child that outlives its parent must not keep the parent's connections open, nor its address taken.
    for channel in list(_open):
        with contextlib.suppress(OSError):
            channel.close()


os.register_at_fork(after_in_child=_after_fork)
