"""A Ray for ``dist_async``: one of our own on this machine's loopback, or one that is there; reached with a token.

Guarantees: a Ray of our own listens on 127.0.0.1 alone, lets nobody in without its token, has no dashboard, keeps its
files in a new folder that only this user can enter, and goes with the process that started it, however that ends. No
other Ray of this machine is touched. A Ray on another address is joined only if it asks for a token too.

Costs: some 8 s to start, eight processes of 30 to 100 MB and one for each server; memory for objects as they are used.
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
#: Unix sockets have short names, and Ray's have 62 characters below its folder.
LONGEST_FOLDER = 45
#: What Ray reads when it is first imported.
_LOOPBACK = {
    # Ray asks the routing table for this host's address, whatever it is told, but where it expects a firewall's
    # questions; then it takes loopback, and listens nowhere else.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Seconds until a wrong token, or nobody at all, is an error.
    "RAY_NUM_REDIS_GET_RETRIES": "3",
    # Seconds until it ends a process that has lost it; ours get errors, and end when they like.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "1000000",
    "RAY_USAGE_STATS_ENABLED": "0",
    # It would replace `print` in the whole process.
    "RAY_TQDM_PATCH_PRINT": "0",
}
#: Those that cannot change once it is.
_DECISIVE = ("RAY_AUTH_MODE", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")
#: Of the Ray that we start: no idle workers, each of which takes memory.
_SMALL = {"RAY_prestart_worker_first_driver": "0", "RAY_enable_worker_prestart": "0"}
#: One for all that this process starts, as Ray reads a process's token only once.
_token = ""


class AsyncCluster:
    """A Ray on loopback, for the workers that this process starts; close it, or use it in a ``with``.

    Args:
        workers: processes that are to share a store.
        servers: processes that hold it.
        memory: bytes of shared memory that pushes and pulls on their way may take; more goes to disk.
        timeout: seconds to wait until Ray has started.

    Attributes:
        address: of Ray.

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
                # Without -P the folder of ray_supervisor.py would be the first to look for modules in.
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
            self.address = self._answer(timeout)
        except BaseException:
            self.close()
            raise

    def environment(self) -> dict[str, str]:
        """Variables by which ``create("dist_async")`` in another process finds this Ray and its token."""
        return {
            ADDRESS: self.address,
            WORKERS: str(self._workers),
            SERVERS: str(self._servers),
            SNAPSHOTS: str(self._folder),
            **self._settings,
        }

    def close(self) -> None:
        """End every process of this Ray, and delete its folder; again is as once."""
        assert self._supervisor.stdin is not None
        assert self._supervisor.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._supervisor.stdin.close()
        try:
            self._supervisor.wait(30)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()  # Ray's processes end when it is gone
            self._supervisor.wait()
        self._supervisor.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> AsyncCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answer(self, timeout: float) -> str:
        assert self._supervisor.stdout is not None
        said: dict[str, str] = {"error": f"nothing within {timeout:g} s"}
        if select.select([self._supervisor.stdout], [], [], timeout)[0]:
            line = self._supervisor.stdout.readline()
            said = json.loads(line) if line else {"error": "the end of its process"}
        if "error" in said:
            lines = (self._folder / "supervisor.log").read_text(errors="replace").splitlines()
            raise StoreError("\n".join([f"expected Ray to start, got {said['error']}", *lines[-10:]]))
        return said["address"]


class RayConnection:
    """This process as a driver of a Ray; there is one at a time, and stores may share it.

    Args:
        address: ``host:port``.
        settings: environment variables for Ray, if it is our own; else those that are there count.

    Raises:
        RefusedError: another address than loopback without a token, or a Ray that was imported too early.
        StoreError: nobody is there, or the token is wrong.
    """

    _lock = threading.Lock()
    _users = 0
    _made = False
    _read: dict[str, str] = {}  # noqa: RUF012  # what Ray was imported with, if we imported it; the same for the process

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
        """Leave Ray when the last store does, if the first one joined it."""
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
            raise RefusedError(f"expected the Ray that this process has joined already, at {current}, got {address}")
        if not self.loopback:
            _check_token(address)

    def _make(self, address: str, settings: dict[str, str], early: bool) -> None:
        wanted = {**(_LOOPBACK if self.loopback else {}), **settings}
        wanted = {name: value for name, value in wanted.items() if name in settings or name not in os.environ}
        known = {**os.environ, **RayConnection._read}
        # The path of the token does not count: what it holds is the same for the time of this process.
        decisive = [n for n in wanted if n in _DECISIVE and known.get(n) != wanted[n]]
        if early and self.loopback and sys.modules["ray"]._private.ray_constants.ENABLE_RAY_CLUSTER:
            decisive = [_DECISIVE[1]]  # set by now perhaps, but too late
        if early and decisive:
            shown = ", ".join(f"{name}={(wanted | _LOOPBACK)[name]}" for name in decisive)
            raise RefusedError(
                f"expected Ray not to be imported yet: it reads {shown} when it is; "
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
            raise StoreError(f"expected a Ray at {address}, got {error}") from error
        import ray

        if not early:
            RayConnection._read = dict(wanted)
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        except (ConnectionError, RuntimeError) as error:
            raise StoreError(
                f"expected to join the Ray at {address}, got {error}; most likely the token is not that Ray's "
                "(RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH or RAY_AUTH_TOKEN)"
            ) from error
        RayConnection._made = True


def is_loopback(address: str) -> bool:
    """Whether ``host:port`` is on this machine's loopback.

    Raises:
        RefusedError: it is no such address.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise RefusedError(f"expected an address such as 127.0.0.1:6379, got {address!r}")
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host.strip("[]"), None)}
    except OSError as error:
        raise StoreError(f"expected a host that is known as {host!r}, got {error}") from error
    return all(ipaddress.ip_address(one).is_loopback for one in found)


def _check_token(address: str) -> None:
    mode = os.environ.get("RAY_AUTH_MODE", "")
    file = os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token"
    if mode.lower() != "token" or not (os.environ.get("RAY_AUTH_TOKEN") or Path(file).is_file()):
        raise RefusedError(
            f"expected a token to join the Ray at {address}, which is not on loopback, got none: whoever reaches "
            "it runs code. Set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH, there and here"
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
    """Settings for another Ray would change ours."""
    return {name: value for name, value in environment.items() if not name.startswith("RAY_")}


def remaining(deadline: float) -> float:
    """Seconds until a moment of `time.monotonic`; not below 0."""
    return max(0.0, deadline - time.monotonic())
