"""A server of metrics, with one thread: it answers one request at a time, as scrapers ask every few seconds."""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import sys
import weakref
from typing import Any

from feedline.concurrency.named_threads import begin

_CLIENT_S = 2.0  # in which a client has to send its request, or to take an answer


class MetricsServer:
    """Serves a registry of prometheus_client over HTTP until it is closed.

    Args:
        host: address to listen on.
        port: port, 0 for any free one.
        registry: registry to serve.

    Raises:
        OSError: the port is in use, or may not be used.
    """

    def __init__(self, host: str, port: int, registry: Any) -> None:
        from prometheus_client import MetricsHandler

        handler = type("Handler", (MetricsHandler.factory(registry),), {"timeout": _CLIENT_S})
        try:
            self._server = _Server((host, port), handler)
        except OSError as error:
            reason = error.strerror or str(error)
            message = f"expected a port to serve metrics on, got {host}:{port}: {reason}; pass another, or 0 for any"
            raise OSError(error.errno, message) from error
        _servers.add(self)
        self.port: int = self._server.server_address[1]
        self._thread = begin("metrics", self._server.serve_forever)

    def close(self) -> None:
        """End the thread, and close the port."""
        _servers.discard(self)
        self._server.closing = True
        for connection in (self._server.socket, self._server.connection):  # wakes the thread, wherever it waits
            if connection is not None:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self._server.shutdown()
        self._thread.end(_CLIENT_S)
        self._server.server_close()

    def forget(self) -> None:
        """Close a forked child's copies of the sockets. The parent's stay open."""
        for connection in (self._server.socket, self._server.connection):
            if connection is not None:
                connection.close()


class _Server(socketserver.TCPServer):
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.connection: Any = None  # of the request that is answered
        self.closing = False
        super().__init__(address, handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        self.connection = request
        try:
            if not self.closing:
                super().finish_request(request, client_address)
        finally:
            self.connection = None

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):  # the client has gone
            super().handle_error(request, client_address)


_servers: weakref.WeakSet[MetricsServer] = weakref.WeakSet()


def _forget_in_child() -> None:
    """Close a forked child's copies of the ports, which would stay in use as long as the child lives."""
    for server in list(_servers):
        server.forget()
    _servers.clear()


os.register_at_fork(after_in_child=_forget_in_child)
