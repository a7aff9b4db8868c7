"""A web server for tests: objects by path and query, with the headers that a test wants, and a log of all requests."""

from __future__ import annotations

import hashlib
import http.server
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Asked:
    """A request: its method, the path with the query as it was sent, and its headers by names in lower case."""

    method: str
    path: str
    headers: dict[str, str]


class WebServer:
    """Objects behind paths, in threads of this process.

    Args:
        objects: their bytes by path, as in requests.

    Attributes:
        objects: as above. May change at any time.
        etag: whether answers have an ETag.
        modified: value of Last-Modified. None: answers have none.
        silent: methods whose answers have neither.
        content_range: Content-Range of partial answers, with places for begin, end and size. Empty: none.
        piece: bytes that are sent at a time. None: all at once.
        pause_s: seconds between pieces.
        closes: whether each connection is closed after its first answer, without an announcement.
        before: called with each request before it is answered. May return (status, headers) to answer itself.
        log: all requests.
        sent_bytes: bytes of bodies.
    """

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        self.etag, self.modified = True, "Mon, 02 Nov 2026 10:00:00 GMT"
        self.silent: tuple[str, ...] = ()
        self.content_range = "bytes {}-{}/{}"
        self.piece: int | None = None
        self.pause_s = 0.0
        self.closes = False
        self.before: Callable[[Asked], tuple[int, dict[str, str]] | None] = lambda asked: None
        self.log: list[Asked] = []
        self.sent_bytes = 0
        self._lock = threading.Lock()
        web = self

        class Handler(http.server.BaseHTTPRequestHandler):
            disable_nagle_algorithm = True  # an answer is sent in two pieces
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                web.answer(self)

            do_HEAD = do_GET

        class Server(http.server.ThreadingHTTPServer):
            request_queue_size = 256

            def handle_error(self, *_: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        asked = Asked(handler.command, handler.path, {name.lower(): value for name, value in handler.headers.items()})
        self.log.append(asked)
        status, headers = self.before(asked) or (0, {})
        data = self.objects.get(asked.path, b"")
        if not status and asked.path not in self.objects:
            status = 404
        if status:
            data, headers = b"", {**headers, "Content-Length": "0"}
        else:
            status, headers, data = self._object(asked, data)
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        if asked.method == "GET":
            self._send(handler, data)
        if self.closes:
            handler.close_connection = True

    def _object(self, asked: Asked, data: bytes) -> tuple[int, dict[str, str], bytes]:
        headers = {"Accept-Ranges": "bytes"}
        if self.etag and asked.method not in self.silent:
            headers["ETag"] = f'"{hashlib.md5(data).hexdigest()}"'
        if self.modified and asked.method not in self.silent:
            headers["Last-Modified"] = self.modified
        status, size = 200, len(data)
        if span := re.match(r"bytes=(\d+)-(\d+)", asked.headers.get("range", "")):
            begin, end = int(span[1]), min(int(span[2]) + 1, size)
            if begin >= size:
                return 416, {"Content-Range": f"bytes */{size}", "Content-Length": "0"}, b""
            status, data = 206, data[begin:end]
            if self.content_range:
                headers["Content-Range"] = self.content_range.format(begin, end - 1, size)
        return status, {**headers, "Content-Length": str(len(data))}, data

    def _send(self, handler: http.server.BaseHTTPRequestHandler, data: bytes) -> None:
        step = self.piece or max(1, len(data))
        try:
            for at in range(0, len(data), step):
                handler.wfile.write(data[at : at + step])
                with self._lock:
                    self.sent_bytes += len(data[at : at + step])
                if self.pause_s:
                    time.sleep(self.pause_s)
        except OSError:
            handler.close_connection = True

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
