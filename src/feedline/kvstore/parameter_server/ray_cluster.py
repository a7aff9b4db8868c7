"""Ray clusters for ``dist_async``: a private one on this machine's loopback, or an existing one, joined with a token.

Guarantees: a private Ray listens on 127.0.0.1 alone, refuses connections without its token, has no dashboard, keeps its
files in a new folder that only this user can access, and ends with the process that started it, however that ends. No
other Ray of this machine is affected. A Ray on another address is joined only if it requires a token.

Costs: about 8 s to start; eight processes of 30 to 100 MB, and one for each server; memory for objects in use.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import secrets
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from feedline.collective.refusal import RefusedError
from feedline.errors import StoreError

ADDRESS, WORKERS, SERVERS, SNAPSHOTS = (f"FEEDLINE_STORE_{n}" for n in ("ADDRESS", "WORKERS", "SERVERS", "SNAPSHOTS"))
#: Longest path of Ray's folder: paths of Unix sockets are limited, and Ray's take 62 characters below its folder.
LONGEST_FOLDER = 45
#: Environment variables that Ray reads when it is first imported.
_LOOPBACK = {
    # Ray always takes this host's address from the routing table, except on systems where that would trigger firewall
    # prompts; there it listens on loopback alone.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Seconds until a wrong token or an unused address is an error.
    "RAY_NUM_REDIS_GET_RETRIES": "3",
    # Seconds until Ray ends a process that lost its connection; feedline raises errors instead.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "1000000",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray would replace `print` in the whole process.
    "RAY_TQDM_PATCH_PRINT": "0",
}
#: Variables that have no effect after Ray was imported.
_DECISIVE = ("RAY_AUTH_MODE", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")
#: Settings of a private Ray: no idle workers, each of which takes memory.
_SMALL = {"RAY_prestart_worker_first_driver": "0", "RAY_enable_worker_prestart": "0"}
#: Token of all clusters of this process, as Ray reads it only once in a process.
_token = ""


class AsyncCluster:
    """A private Ray on loopback, for the workers that this process starts. A context manager.

    Args:
        workers: number of processes that share a store.
        servers: number of processes that hold it.
        memory: bytes of shared memory for pushes and pulls in flight; more spills to disk.
        timeout: seconds to wait for Ray to start.

    Attributes:
        address: ``host:port`` of Ray.

    Raises:
        ModuleNotFoundError: Ray is not installed (``pip install 'feedline[async]'``).
        StoreError: Ray does not start.
    """

    def __init__(self, workers: int = 1, servers: int = 1, *, memory: int = 1 << 30, timeout: float = 60.0) -> None:
        global _token
        if workers < 1 or servers < 1:
            raise ValueError(f"expected at least 1 worker and 1 server, got {workers} and {servers}")
        _check_installed()
        _token = _token or secrets.token_hex(32)
        self._workers, self._servers = workers, servers
        self._folder = _new_folder()
        token = self._folder / "token"
        token.touch(0o600)
        token.write_text(_token)
        self._settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), **_LOOPBACK}
        path = os.pathsep.join(str(Path(one).resolve()) for one in sys.path if one)
        with open(self._folder / "supervisor.log", "wb") as log:
            self._supervisor = subprocess.Popen(
                # Without -P the folder of ray_supervisor.py would come first on the module path.
                [
                    sys.executable,
                    "-P",
                    str(Path(__file__).with_name("ray_supervisor.py")),
                    json.dumps({"folder": str(self._folder), "memory": memory}),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={**_without_ray(os.environ), **self._settings, **_SMALL, "PYTHONPATH": path},
            )
        try:
            self.address = self._started(timeout)
        except BaseException:
            self.close()
            raise

    def environment(self) -> dict[str, str]:
        """Return the variables with which ``create("dist_async")`` in another process finds this Ray and its token."""
        return {
            ADDRESS: self.address,
            WORKERS: str(self._workers),
            SERVERS: str(self._servers),
            SNAPSHOTS: str(self._folder),
            **self._settings,
        }

    def close(self) -> None:
        """End every process of this Ray, and delete its folder. Idempotent."""
        assert self._supervisor.stdin is not None
        assert self._supervisor.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._supervisor.stdin.close()
        try:
            self._supervisor.wait(30)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()  # Ray's processes end with it
            self._supervisor.wait()
        self._supervisor.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> AsyncCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _started(self, timeout_s: float) -> str:
        """Wait for the supervisor's line; returns Ray's address."""
        assert self._supervisor.stdout is not None
        said: dict[str, str] = {"error": f"no answer within {timeout_s:g} s"}
        if select.select([self._supervisor.stdout], [], [], timeout_s)[0]:
            line = self._supervisor.stdout.readline()
            said = json.loads(line) if line else {"error": "the end of its process"}
        if "error" in said:
            lines = (self._folder / "supervisor.log").read_text(errors="replace").splitlines()
            raise StoreError("\n".join([f"expected Ray to start, got {said['error']}", *lines[-10:]]))
        return said["address"]


class RayConnection:
    """Connection of this process to Ray as a driver. A process has one at a time, which stores share.

    Args:
        address: ``host:port`` of Ray.
        settings: environment variables for a private Ray; None: those of this process count.

    Raises:
        RefusedError: an address other than loopback without a token, or Ray was imported too early.
        StoreError: no Ray answers at the address, or the token is wrong.
    """

    _lock = threading.Lock()
    _users = 0
    _made = False
    _read: dict[str, str] = {}  # noqa: RUF012  # settings at Ray's import, if feedline imported it; process-wide

    def __init__(self, address: str, settings: dict[str, str] | None = None) -> None:
        _check_installed()
        self._before: dict[str, str | None] = {}
        self.loopback = is_loopback(address)
        with RayConnection._lock:
            early = "ray" in sys.modules
            if early and sys.modules["ray"].is_initialized():
                self._use(address)
            else:
                self._make(address, settings or {}, early)
            RayConnection._users += 1
        self._open = True

    def close(self) -> None:
        """Disconnect from Ray when the last store closes, if a store connected. Idempotent."""
        import ray

        with RayConnection._lock:
            if not self._open:
                return
            self._open = False
            RayConnection._users -= 1
            if RayConnection._users == 0 and RayConnection._made:
                RayConnection._made = False
                ray.shutdown()
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def _use(self, address: str) -> None:
        import ray

        current = ray.get_runtime_context().gcs_address
        if address != current:
            raise RefusedError(f"expected the Ray that this process is connected to, at {current}, got {address}")
        if not self.loopback:
            _check_token(address)

    def _make(self, address: str, settings: dict[str, str], early: bool) -> None:
        wanted = {**(_LOOPBACK if self.loopback else {}), **settings}
        wanted = {name: value for name, value in wanted.items() if name in settings or name not in os.environ}
        known = {**os.environ, **RayConnection._read}
        # The token's path is not decisive: its content never changes within this process.
        decisive = [n for n in wanted if n in _DECISIVE and known.get(n) != wanted[n]]
        if early and self.loopback and sys.modules["ray"]._private.ray_constants.ENABLE_RAY_CLUSTER:
            decisive = [_DECISIVE[1]]  # even if it is set now, which was after the import
        if early and decisive:
            shown = ", ".join(f"{name}={(wanted | _LOOPBACK)[name]}" for name in decisive)
            raise RefusedError(
                f"expected Ray not to be imported yet, as it reads {shown} when it is; "
                "create the store first, or set these before the import"
            )
        self._before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        if not self.loopback:
            _check_token(address)
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), 5).close()
        except OSError as error:
            raise StoreError(f"expected Ray at {address}, got {error}") from error
        import ray

        if not early:
            RayConnection._read = dict(wanted)
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        except (ConnectionError, RuntimeError) as error:
            raise StoreError(
                f"expected to join Ray at {address}, got {error}; most likely the token is not that Ray's "
                "(RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH or RAY_AUTH_TOKEN)"
            ) from error
        RayConnection._made = True


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
        found = {info[4][0] for info in socket.getaddrinfo(host.strip("[]"), None)}
    except OSError as error:
        raise StoreError(f"expected a host that resolves, got {host!r}: {error}") from error
    return all(ipaddress.ip_address(one).is_loopback for one in found)


def _check_token(address: str) -> None:
    mode = os.environ.get("RAY_AUTH_MODE", "")
    file = os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token"
    if mode.lower() != "token" or not (os.environ.get("RAY_AUTH_TOKEN") or Path(file).is_file()):
        raise RefusedError(
            f"expected a token to join Ray at {address}, which is not on loopback, got none: whoever reaches "
            "it can run code. Set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH, there and here"
        )


def _check_installed() -> None:
    import importlib.util

    if importlib.util.find_spec("ray") is None:
        raise ModuleNotFoundError("Ray is not installed; run: pip install 'feedline[async]'")


def _new_folder() -> Path:
    base = tempfile.gettempdir()
    if len(base) + len("/feedline-12345678") > LONGEST_FOLDER:
        base = "/tmp"
    return Path(tempfile.mkdtemp(prefix="feedline-", dir=base))  # 0700


def _without_ray(environment: Any) -> dict[str, str]:
    """Return the environment without settings meant for another Ray."""
    return {name: value for name, value in environment.items() if not name.startswith("RAY_")}


def remaining(deadline_s: float) -> float:
    """Return the seconds until a deadline of `time.monotonic`; at least 0."""
    return max(0.0, deadline_s - time.monotonic())
