"""Ray clusters for ``dist_async``: a private one on this machine's loopback, or an existing one, joined with a token.

Guarantees: a private Ray listens on 127.0.0.1 alone, refuses connections without its token, has no dashboard, keeps its
files in a new folder that only this user can access, and ends with the process that started it, even if it is killed.
No other Ray of this machine is affected. A Ray on another address is joined only if it requires a token.

Costs: about 8 s to start, eight processes of 30 to 100 MB and one process for each server, and memory for objects in
use.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import sys
import threading
from pathlib import Path

from feedline.collective.refusal import RefusedError
from feedline.errors import StoreError
from feedline.interop.private_ray import (
    DECISIVE,
    LOOPBACK,
    START_S,
    NotStartedError,
    PrivateRay,
    check_installed,
    reads_too_early,
)
from feedline.interop.ray_session import environment

ADDRESS, WORKERS, SERVERS, SNAPSHOTS = (f"FEEDLINE_STORE_{n}" for n in ("ADDRESS", "WORKERS", "SERVERS", "SNAPSHOTS"))


class AsyncCluster:
    """A private Ray on loopback, for the workers that this process starts. A context manager.

    Args:
        workers: number of processes that share a store.
        servers: number of processes that hold it.
        memory: bytes of shared memory for pushes and pulls in flight. The excess spills to disk.
        timeout: seconds to wait for Ray to start. If its process ends, that is an error at once.

    Attributes:
        address: ``host:port`` of Ray.

    Raises:
        ModuleNotFoundError: Ray is not installed (``pip install 'feedline[async]'``).
        StoreError: Ray does not start.
    """

    def __init__(self, workers: int = 1, servers: int = 1, *, memory: int = 1 << 30, timeout: float = START_S) -> None:
        if workers < 1 or servers < 1:
            raise ValueError(f"expected at least 1 worker and 1 server, got {workers} and {servers}")
        check_installed("async")
        self._workers, self._servers = workers, servers
        try:
            self._ray = PrivateRay(memory_bytes=memory, timeout_s=timeout)
        except NotStartedError as error:
            raise StoreError(str(error)) from None
        self.address = self._ray.address

    def environment(self) -> dict[str, str]:
        """Return the variables with which ``create("dist_async")`` in another process finds this Ray and its token."""
        return {
            ADDRESS: self.address,
            WORKERS: str(self._workers),
            SERVERS: str(self._servers),
            SNAPSHOTS: str(self._ray.folder),
            **self._ray.settings,
        }

    def close(self) -> None:
        """End every process of this Ray, and delete its folder. Idempotent."""
        self._ray.close()

    def __enter__(self) -> AsyncCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RayConnection:
    """Connection of this process to Ray as a driver. A process has one at a time, which stores share.

    Args:
        address: ``host:port`` of Ray.
        settings: environment variables for a private Ray. None means the environment of this process.

    Raises:
        RefusedError: an address other than loopback without a token, or Ray was imported too early.
        StoreError: no Ray answers at the address, or the token is wrong.
    """

    _lock = threading.Lock()
    _users = 0
    _connected = False
    _read: dict[str, str] = {}  # noqa: RUF012  # settings at Ray's import by feedline, process-wide

    def __init__(self, address: str, settings: dict[str, str] | None = None) -> None:
        check_installed("async")
        self._settings = contextlib.ExitStack()
        self.loopback = is_loopback(address)
        with RayConnection._lock:
            early = "ray" in sys.modules
            if early and sys.modules["ray"].is_initialized():
                self._use(address)
            else:
                try:
                    self._join(address, settings or {}, early)
                except BaseException:
                    self._settings.close()
                    raise
            RayConnection._users += 1
        self._open = True

    def close(self) -> None:
        """Disconnect from Ray when the last store closes, if a store has connected to it. Idempotent."""
        import ray

        with RayConnection._lock:
            if not self._open:
                return
            self._open = False
            RayConnection._users -= 1
            if RayConnection._users == 0 and RayConnection._connected:
                RayConnection._connected = False
                ray.shutdown()
        self._settings.close()

    def _use(self, address: str) -> None:
        import ray

        current = ray.get_runtime_context().gcs_address
        if address != current:
            raise RefusedError(f"expected the Ray that this process is connected to, at {current}, got {address}")
        if not self.loopback:
            check_token(address)

    def _join(self, address: str, settings: dict[str, str], early: bool) -> None:
        required = {**(LOOPBACK if self.loopback else {}), **settings}
        required = {name: value for name, value in required.items() if name in settings or name not in os.environ}
        current = {**os.environ, **RayConnection._read}
        # The path of the token is not decisive, as its content never changes within this process.
        decisive = [n for n in required if n in DECISIVE and current.get(n) != required[n]]
        if early and self.loopback and reads_too_early():
            decisive = [DECISIVE[1]]  # even if it is set now, which was after the import
        if early and decisive:
            shown = ", ".join(f"{name}={(required | LOOPBACK)[name]}" for name in decisive)
            raise RefusedError(
                f"expected Ray not to be imported yet, as it reads {shown} at import; create the store first, or set "
                "these before the import"
            )
        self._settings.enter_context(environment(required))
        if not self.loopback:
            check_token(address)
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), 5).close()
        except OSError as error:
            raise StoreError(f"expected Ray at {address}, got {error}") from error
        import ray

        if not early:
            RayConnection._read = dict(required)
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        except (ConnectionError, RuntimeError) as error:
            raise StoreError(
                f"expected to join Ray at {address}, got {error}; most likely the token is not that Ray's "
                "(RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH or RAY_AUTH_TOKEN)"
            ) from error
        RayConnection._connected = True


def is_connected() -> bool:
    """Return whether Ray is connected. If it is not, most of its calls would start another one without a word."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def is_loopback(address: str) -> bool:
    """Return whether ``host:port`` is on this machine's loopback.

    Raises:
        RefusedError: the address is malformed.
        StoreError: the host is unknown.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise RefusedError(f"expected an address such as 127.0.0.1:6379, got {address!r}")
    try:
        resolved = {info[4][0] for info in socket.getaddrinfo(host.strip("[]"), None)}
    except OSError as error:
        raise StoreError(f"expected a host that resolves, got {host!r}: {error}") from error
    return all(ipaddress.ip_address(ip).is_loopback for ip in resolved)


def check_token(address: str) -> None:
    """Check that a token is set for a Ray off this machine.

    Raises:
        RefusedError: no token is set.
    """
    mode = os.environ.get("RAY_AUTH_MODE", "")
    file = os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token"
    if mode.lower() != "token" or not (os.environ.get("RAY_AUTH_TOKEN") or Path(file).is_file()):
        raise RefusedError(
            f"expected a token to join Ray at {address}, which is not on loopback, got none: anyone who can reach it "
            "can run code. Set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH, there and here"
        )
