"""HTTP/1.1 as a server of tests speaks it over one socket: requests in, responses out, with faults on purpose.

`read_request` understands a content length, chunks, ``aws-chunked`` and ``Expect: 100-continue``, and bounds what it
reads. `Sender` sends a response: bytes from memory without a copy, files by ``sendfile``, both in the pieces of a
`Link`. A response is counted before its last byte leaves, so a client that has all of it finds it counted.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

from tests.servers.contents import Opened
from tests.servers.faults import Fault
from tests.servers.link import Link

HEAD_BYTES = 64 << 10  # no longer head of a request is read
UNLIMITED = 1 << 20  # bytes of a piece on a link without limit
AT_ONCE = 1 << 16  # bytes. The last byte of a longer body is sent by itself
DRAINED_S = 5.0  # how long a reset waits for the bytes sent before it

REASONS = {
    100: "Continue", 200: "OK", 204: "No Content", 206: "Partial Content", 304: "Not Modified", 400: "Bad Request",
    403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed", 409: "Conflict", 412: "Precondition Failed",
    413: "Content Too Large", 416: "Range Not Satisfiable", 429: "Too Many Requests", 500: "Internal Server Error",
    501: "Not Implemented", 503: "Service Unavailable",
}  # fmt: skip


class Over(Exception):
    """The connection is at its end."""


class Bad(Exception):
    """The request cannot be answered otherwise than by a status and the end of the connection."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@dataclass
class Request:
    """A request with its body."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes = b""

    @property
    def stays(self) -> bool:
        """Whether the connection is kept."""
        return self.headers.get("connection", "").lower() != "close"


class Part(NamedTuple):
    """A part of a body: bytes `begin` to `end`."""

    begin: int
    end: int


@dataclass
class Response:
    """What is answered: `body` is sent from byte `begin` to `end`."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: Opened | bytes = b""
    begin: int = 0
    end: int | None = None
    length: int | None = None  # the announced length, without a body for HEAD

    @property
    def part(self) -> Part:
        """The bytes of `body` that are sent."""
        if self.end is not None:
            return Part(self.begin, self.end)
        return Part(self.begin, self.body.facts.size if isinstance(self.body, Opened) else len(self.body))

    def close(self) -> None:
        """Close the file."""
        if isinstance(self.body, Opened):
            self.body.close()


class Reader:
    """Reads requests from a socket.

    Args:
        sock: the socket, blocking.
        most_bytes: longest body.
        crossed: called with 0 before a body and with the size of each of its pieces. May wait.
    """

    def __init__(self, sock: socket.socket, most_bytes: int, crossed: Callable[[int], None]) -> None:
        self._sock, self._most, self._crossed = sock, most_bytes, crossed
        self._ahead = bytearray()

    def read_request(self) -> Request:
        """Read the next request. Raises `Over` at the end of the connection, `Bad` for a malformed one."""
        head = self._until(b"\r\n\r\n", HEAD_BYTES).decode("latin-1").split("\r\n")
        try:
            method, target, version = head[0].split(" ")
            headers = {name.strip().lower(): value.strip() for name, value in (line.split(":", 1) for line in head[1:])}
        except ValueError:
            raise Bad(400) from None
        if version not in ("HTTP/1.1", "HTTP/1.0"):
            raise Bad(400)
        if version == "HTTP/1.0":
            headers.setdefault("connection", "close")
        path, _, query = target.partition("?")
        request = Request(method, unquote(path), dict(parse_qsl(query, keep_blank_values=True)), headers)
        if headers.get("expect", "").lower() == "100-continue":
            self._sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if headers.get("transfer-encoding", "").lower() == "chunked":
            request.body = self._chunks()
        elif length := headers.get("content-length"):
            if not length.isdecimal():
                raise Bad(400)
            request.body = self._exactly(int(length))
        if "aws-chunked" in headers.get("content-encoding", "") or headers.get("x-amz-content-sha256", "").startswith(
            "STREAMING-"
        ):
            request.body = _unchunked(request.body)
        return request

    def _more(self) -> None:
        data = self._sock.recv(AT_ONCE)
        if not data:
            raise Over
        self._ahead += data

    def _until(self, mark: bytes, most: int) -> bytes:
        while (at := self._ahead.find(mark)) < 0:
            if len(self._ahead) > most:
                raise Bad(400)
            self._more()
        found = bytes(self._ahead[:at])
        del self._ahead[: at + len(mark)]
        return found

    def _exactly(self, size: int) -> bytes:
        if size > self._most:
            raise Bad(413)
        body = bytearray(size)
        have = min(size, len(self._ahead))
        body[:have] = self._ahead[:have]
        del self._ahead[:have]
        self._crossed(0)
        if have:
            self._crossed(have)
        with memoryview(body) as view:
            while have < size:
                got = self._sock.recv_into(view[have : have + (256 << 10)])
                if not got:
                    raise Over
                have += got
                self._crossed(got)
        return bytes(body)

    def _chunks(self) -> bytes:
        found = bytearray()
        while size := _chunk_size(self._until(b"\r\n", HEAD_BYTES)):
            if len(found) + size > self._most:
                raise Bad(413)
            found += self._exactly(size)
            self._until(b"\r\n", 0)
        while self._until(b"\r\n", HEAD_BYTES):
            pass
        return bytes(found)


class Sender:
    """Sends responses over a socket.

    Args:
        sock: the socket, blocking.
        link: gives the link as it is now.
        wait: waits a number of seconds. Raises `Over` if the server ends.
    """

    def __init__(self, sock: socket.socket, link: Callable[[], Link], wait: Callable[[float], None]) -> None:
        self._sock, self._link, self._wait = sock, link, wait
        self._since: float | None = None
        self.sent = 0  # bytes of the body of this response

    def send(self, response: Response, fault: Fault | None, over: Callable[[], None], stays: bool) -> None:
        """Send a response. Raises `Over` after one that ends the connection.

        Args:
            response: the response, whose file stays open.
            fault: a fault of a body, or None.
            over: called before the last byte leaves, when `sent` has all.
            stays: whether the connection is kept.
        """
        begin, end = response.part
        size, self.sent, self._since = end - begin, 0, None
        announced = size if response.length is None else response.length
        kind = fault.kind if fault and size else None
        at = 0 if fault is None else min(size // 2 if fault.at is None else fault.at, size)
        if kind == "narrow":
            announced = at = max(at, 1)
            _narrow(response.headers, at)
        cut = begin + at
        if kind in ("narrow", "short", "reset"):
            end = cut
        empty = end == begin
        if empty:
            over()
        self._sock.sendall(_head(response, announced, stays), 0 if empty else socket.MSG_MORE)
        if empty:
            pass
        elif kind == "stall":
            self._send_part(response.body, Part(begin, cut), end - begin, over)
            assert fault is not None
            self._wait(fault.seconds)
            self._send_part(response.body, Part(cut, end), end - begin, over)
        elif kind == "wrong":
            cut = min(cut, end - 1)
            self._send_part(response.body, Part(begin, cut), end - begin, over)
            self._send_part(_inverted(response.body, cut), Part(0, 1), end - begin, over)
            self._send_part(response.body, Part(cut + 1, end), end - begin, over)
        else:
            self._send_part(response.body, Part(begin, end), end - begin, over)
        if kind in ("short", "reset"):
            self.end(reset=kind == "reset")
        if not stays:
            self.end(reset=False)

    def end(self, reset: bool) -> None:
        """End the connection, raise `Over`."""
        if reset:
            self._wait_until_received()
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            self._sock.shutdown(socket.SHUT_WR)
        raise Over

    def _send_part(self, body: Opened | bytes, part: Part, total: int, over: Callable[[], None]) -> None:
        link = self._link()
        piece = UNLIMITED if link.bytes_per_second is None else link.piece
        is_last = self.sent + part.end - part.begin == total
        stop = part.end - 1 if is_last and part.end - part.begin > AT_ONCE else part.end
        begin = part.begin
        while begin < part.end:
            end = min(begin + piece, stop) if begin < stop else part.end
            now = time.monotonic()
            self._since = link.crosses(end - begin, now, self._since)
            if self._since > now:
                self._wait(self._since - now)
            if ends := self.sent + end - begin == total:
                self.sent = total
                over()
            self._put(body, begin, end)
            if not ends:
                self.sent += end - begin
            begin = end

    def _put(self, body: Opened | bytes, begin: int, end: int) -> None:
        if isinstance(body, Opened) and body.data is None:
            while begin < end:
                put = os.sendfile(self._sock.fileno(), body.fd, begin, end - begin)
                if not put:  # the file is shorter than it was
                    self.end(reset=True)
                begin += put
            return
        with memoryview(body.data if isinstance(body, Opened) else body) as view:  # type: ignore[arg-type]
            self._sock.sendall(view[begin:end])

    def _wait_until_received(self) -> None:
        """Wait for bytes in transit, which a reset would discard."""
        for _ in range(int(DRAINED_S / 0.001)):
            (waiting,) = struct.unpack("i", fcntl.ioctl(self._sock, termios.TIOCOUTQ, bytes(4)))
            if not waiting:
                return
            self._wait(0.001)


def _head(response: Response, announced: int, stays: bool) -> bytes:
    lines = [f"HTTP/1.1 {response.status} {REASONS.get(response.status, 'Other')}", f"Date: {formatdate(usegmt=True)}"]
    lines += [f"{name}: {value}" for name, value in response.headers.items()]
    if response.status not in (204, 304):
        lines.append(f"Content-Length: {announced}")
    if not stays:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "\r\n"]).encode("latin-1", "replace")


def _narrow(headers: dict[str, str], size: int) -> None:
    if given := headers.get("Content-Range"):
        first, whole = given.removeprefix("bytes ").split("-")[0], given.split("/")[1]
        headers["Content-Range"] = f"bytes {first}-{int(first) + size - 1}/{whole}"


def _inverted(body: Opened | bytes, at: int) -> bytes:
    if isinstance(body, Opened) and body.data is None:
        (byte,) = os.pread(body.fd, 1, at)
    else:
        byte = (body.data if isinstance(body, Opened) else body)[at]  # type: ignore[index]
    return bytes([byte ^ 0xFF])


def _chunk_size(line: bytes) -> int:
    try:
        return int(line.split(b";")[0], 16)
    except ValueError:
        raise Bad(400) from None


def _unchunked(body: bytes) -> bytes:
    """Return the body in ``aws-chunked``, without signatures and trailers."""
    found, at = [], 0
    while True:
        end = body.find(b"\r\n", at)
        if end < 0:
            raise Bad(400)
        size = _chunk_size(body[at:end])
        if not size:
            return b"".join(found)
        found.append(body[end + 2 : end + 2 + size])
        at = end + 2 + size + 2
