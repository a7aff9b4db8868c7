"""This process as a driver of Ray: of the Ray that it uses already, of the user's cluster, or of a private one.

`join` connects in this order: to the Ray that the program has initialised, to the cluster at ``RAY_ADDRESS`` or of
``ray start`` on this machine, or to a private one on loopback, which ends with this process. The connection stays until
the process ends, or until `leave` or ``ray.shutdown()`` is called.

This is the only file through which the feed imports Ray.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from feedline import system
from feedline.interop import private_ray
from feedline.interop.private_ray import PrivateRay, check_installed, reads_too_early

EXTRA = "ray"
"""The extra of feedline that has Ray."""

_lock = threading.RLock()
_private: PrivateRay | None = None
_private_pid = 0
_joined = False  # `join` connected, not the program


class RaySession(NamedTuple):
    """A connection to Ray.

    Attributes:
        ray: the module.
        private: whether nobody but this process uses this Ray.
    """

    ray: Any
    private: bool

    def resources(self) -> str:
        """Describe the processors of the cluster, for error messages."""
        total, free = self.ray.cluster_resources(), self.ray.available_resources()
        return f"{free.get('CPU', 0):g} of the cluster's {total.get('CPU', 0):g} CPUs are free"


class Pickling(NamedTuple):
    """Ways to pickle functions and classes by value that another process cannot import, such as in the main module.

    Attributes:
        dumps: function that pickles.
        kind: class of picklers.
    """

    dumps: Callable[[Any], bytes]
    kind: Any


def check() -> None:
    """Check that Ray is installed, without importing it.

    Raises:
        ModuleNotFoundError: Ray is not installed. The message names the extra.
    """
    check_installed(EXTRA)


def join() -> RaySession:
    """Connect this process to Ray, or return its connection. See the module.

    Raises:
        ModuleNotFoundError: Ray is not installed.
        ConnectionError: the cluster does not answer, or refuses this process.
        NotStartedError: a private Ray does not start (`feedline.interop.private_ray`).
    """
    global _private, _private_pid, _joined
    check()
    with _lock:
        ray = sys.modules.get("ray")
        if ray is not None and ray.is_initialized():
            # Also a private Ray of a `dist_async` store.
            return RaySession(ray, ray.get_runtime_context().gcs_address in private_ray.addresses)
        _joined = True
        private = _own()
        address = None if private is not None else running()
        if address is not None:
            return RaySession(_initialise(address, {}), False)
        if private is None and reads_too_early():
            # Ray was imported before the setting to join a Ray on loopback, so it starts one as `ray.init()` does.
            assert ray is not None
            ray.init(address="local", include_dashboard=False, configure_logging=False)
            return RaySession(ray, False)
        if private is None:
            private = _private = PrivateRay(cpus=system.allowed_cores())
            _private_pid = os.getpid()
        return RaySession(_initialise(private.address, private.settings), True)


def leave() -> None:
    """Disconnect from a Ray that `join` connected to, and end a private one. Does nothing else."""
    global _private, _joined
    with _lock:
        if _joined and "ray" in sys.modules:
            sys.modules["ray"].shutdown()
        _joined = False
        private, _private = _own(), None
        if private is not None:
            private.close()


def running() -> str | None:
    """Return the address of the user's cluster: of ``RAY_ADDRESS``, or of the last ``ray start`` on this machine.

    Ray's search would also find the private Rays of other processes.
    """
    setting = os.environ.get("RAY_ADDRESS")
    if setting:
        return None if setting == "local" else setting
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    try:
        address = (Path(folder) / "ray" / "ray_current_cluster").read_text().strip()
        host, _, port = address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), 5).close()
    except (OSError, ValueError):
        return None  # none was started, or it has ended
    return address


def pickling() -> Pickling:
    """Return Ray's ways to pickle."""
    import ray.cloudpickle

    return Pickling(functools.partial(ray.cloudpickle.dumps, protocol=5), ray.cloudpickle.Pickler)


def place() -> tuple[str, bool]:
    """Within a worker of Ray: return the address of its machine, and whether Ray has set its working folder."""
    import ray

    context = ray.get_runtime_context()
    return ray.util.get_node_ip_address(), bool(context.runtime_env.get("working_dir"))


def _initialise(address: str, settings: Mapping[str, str]) -> Any:
    with environment(settings):
        import ray

        try:
            ray.init(address=address, configure_logging=False)
        except (ConnectionError, RuntimeError) as error:
            raise ConnectionError(
                f"expected to join Ray at {address}, got {error}\n"
                "  the address comes from RAY_ADDRESS, or from the last `ray start` on this machine. If Ray requires "
                "a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH"
            ) from error
    return ray


def _own() -> PrivateRay | None:
    """Return the private Ray of this process, if it runs."""
    return _private if _private is not None and _private_pid == os.getpid() and _private.alive else None


@contextlib.contextmanager
def environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Open a block within which these environment variables are set, for Ray to read."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
