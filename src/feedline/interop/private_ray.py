"""A private Ray on this machine's loopback, for programs that have none.

Guarantees: it listens on 127.0.0.1 alone, refuses connections without its token, has no dashboard, keeps its files in a
new folder that only this user can access, and ends with the process that started it, in any case. No other Ray
of this machine is affected.

Costs: about 8 s to start, eight processes of 30 to 100 MB, and memory for objects in use.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from feedline.errors import install_line

#: Longest path of Ray's folder: paths of Unix sockets are limited, and Ray's take 62 characters below its folder.
LONGEST_FOLDER = 45
#: Seconds within which a private Ray, or a process of a Ray, must start. Long, as a machine may be busy, or a cluster
#: may add one first. A process that ends instead is noticed at once.
START_S = 300.0
#: Environment variables that Ray reads when it is first imported.
LOOPBACK = {
    # Ray always takes this host's address from the routing table, except on systems where that would trigger firewall
    # prompts. There it listens on loopback alone.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Attempts, about a second each, until a wrong token or an unused address is an error.
    "RAY_NUM_REDIS_GET_RETRIES": "5",
    # Seconds until Ray ends a process that lost its connection. feedline raises errors instead.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "1000000",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray would replace `print` in the whole process.
    "RAY_TQDM_PATCH_PRINT": "0",
}
#: Variables without effect once Ray is imported.
DECISIVE = ("RAY_AUTH_MODE", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")
#: Settings of a private Ray.
_PRIVATE = {
    # No idle workers, each of which takes memory.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    # Its processes end with each other. A slow one, on a busy machine, must not be presumed dead.
    "RAY_gcs_server_port_wait_time_s": f"{START_S:.0f}",
    "RAY_raylet_start_wait_time_s": f"{START_S:.0f}",
    "RAY_worker_register_timeout_seconds": f"{START_S:.0f}",
    "RAY_agent_register_timeout_ms": f"{1000 * START_S:.0f}",
    "RAY_health_check_failure_threshold": "100",
}
#: Addresses of private Rays that this process has started, and not closed.
addresses: set[str] = set()
#: Token of all clusters of this process, as Ray reads it only once in a process.
_token = ""


class NotStartedError(RuntimeError):
    """Ray did not start. The text has its last lines of output."""


class PrivateRay:
    """A private Ray that lives until `close`, or as long as this process.

    Args:
        memory_bytes: shared memory for objects in use. The excess spills to disk.
        cpus: CPUs in Ray's count. It starts as many processes at a time.
        timeout_s: seconds to wait for Ray to start. Its end is noticed at once.

    Attributes:
        address: ``host:port`` of Ray.
        folder: its folder.
        settings: environment variables with which a process may join it.

    Raises:
        NotStartedError: Ray does not start.
    """

    def __init__(self, *, memory_bytes: int = 1 << 30, cpus: int = 1, timeout_s: float = START_S) -> None:
        global _token
        _token = _token or secrets.token_hex(32)
        self.folder = _new_folder()
        token = self.folder / "token"
        token.touch(0o600)
        token.write_text(_token)
        self.settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), **LOOPBACK}
        path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)
        with open(self.folder / "supervisor.log", "wb") as log:
            self._supervisor = subprocess.Popen(
                # Without -P the folder of ray_supervisor.py would come first on the module path.
                [
                    sys.executable,
                    "-P",
                    str(Path(__file__).with_name("ray_supervisor.py")),
                    json.dumps({"folder": str(self.folder), "memory": memory_bytes, "cpus": cpus}),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={**_without_ray(os.environ), **self.settings, **_PRIVATE, "PYTHONPATH": path},
            )
        try:
            self.address = self._wait_for_start(timeout_s)
            addresses.add(self.address)
        except BaseException:
            self.close()
            raise

    @property
    def supervisor(self) -> int:
        """Process id of the supervisor, whose descendants are Ray's processes."""
        return self._supervisor.pid

    @property
    def alive(self) -> bool:
        """Whether its supervisor runs."""
        return self._supervisor.poll() is None

    def close(self) -> None:
        """End every process of this Ray, and delete its folder. Idempotent."""
        assert self._supervisor.stdin is not None
        assert self._supervisor.stdout is not None
        addresses.discard(getattr(self, "address", ""))
        with contextlib.suppress(BrokenPipeError):
            self._supervisor.stdin.close()
        try:
            self._supervisor.wait(30)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()  # Ray's processes end with it
            self._supervisor.wait()
        self._supervisor.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait_for_start(self, timeout_s: float) -> str:
        """Wait for the supervisor's line. Returns Ray's address."""
        assert self._supervisor.stdout is not None
        answer: dict[str, str] = {"error": f"no answer within {timeout_s:g} s"}
        if select.select([self._supervisor.stdout], [], [], timeout_s)[0]:
            line = self._supervisor.stdout.readline()
            answer = json.loads(line) if line else {"error": "the end of its process"}
        if "error" in answer:
            lines = (self.folder / "supervisor.log").read_text(errors="replace").splitlines()
            raise NotStartedError("\n".join([f"expected Ray to start, got {answer['error']}", *lines[-10:]]))
        return answer["address"]


def check_installed(extra: str) -> None:
    """Check that Ray is installed, without importing it.

    Args:
        extra: extra of feedline that the error names.

    Raises:
        ModuleNotFoundError: Ray is not installed.
    """
    if importlib.util.find_spec("ray") is None:
        raise ModuleNotFoundError(f"Ray is not installed; run: {install_line(extra)}")


def reads_too_early() -> bool:
    """Return whether Ray was imported with settings under which it cannot join a Ray on loopback."""
    return "ray" in sys.modules and bool(sys.modules["ray"]._private.ray_constants.ENABLE_RAY_CLUSTER)


def _new_folder() -> Path:
    base = tempfile.gettempdir()
    if len(base) + len("/feedline-12345678") > LONGEST_FOLDER:
        base = "/tmp"
    return Path(tempfile.mkdtemp(prefix="feedline-", dir=base))  # 0700


def _without_ray(environment: Any) -> dict[str, str]:
    """Return the environment without settings meant for another Ray."""
    return {name: value for name, value in environment.items() if not name.startswith("RAY_")}
