"""The rendezvous of ranks, and their connections: stores and backends of torch.distributed.

Ranks find each other through a TCPStore: the one of an initialised torch.distributed, one that variables of a launcher
name, or one at an address from the caller. Connections are new, and separate from the connections of the program.

A rendezvous that this process serves listens on its address only. If that is impossible (a name that resolves to
loopback on its machine, a translated address), it listens on all addresses of the machine and warns.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import ipaddress
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from feedline.concurrency.named_threads import begin
from feedline.concurrency.thread_pool import Job
from feedline.errors import StoreError
from feedline.interop.launchers import launcher_rank, where_to_meet

T = TypeVar("T")

#: Seconds for ranks to start, if their timeout is shorter, as machines may be busy, and programs read data first.
START_S = 300.0
#: Seconds beyond a timeout for a slow store.
GRACE_S = 4.0

#: Environment variables that launchers set.
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
#: Variable whose value is "True" if the launcher itself serves the store.
BY_LAUNCHER = "TORCHELASTIC_USE_AGENT_STORE"

#: Stores that this process serves, by address, kept until it ends, as ranks may come back.
_served: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """A rendezvous that this process has reached.

    Attributes:
        store: store of torch.distributed.
        rank: rank of this process.
        count: number of ranks.
        name: name of this set of ranks, the same on all of them.
        host: rank that serves the store. None if no rank does.
        idle_connection: connection to the process that serves the store, which ends when that process does. None if it
            is this process, or the store is not a TCPStore.
    """

    store: Any
    rank: int
    count: int
    name: str
    host: int | None
    idle_connection: socket.socket | None = None


def meet(group: Any, address: str | None, rank: int | None, count: int | None, span: datetime.timedelta) -> Rendezvous:
    """Reach the rendezvous. See `Communicator` for the choice among several.

    Raises:
        RuntimeError: no ranks are known.
        ValueError: arguments contradict each other.
        StoreError: rank 0 cannot be reached.
    """
    distributed = torch.distributed
    present = (address is not None, rank is not None, count is not None)
    if any(present) and (not all(present) or group is not None):
        raise ValueError("expected address, rank and count together, and no group with them")
    if address is not None and rank is not None and count is not None:
        if not 0 <= rank < count:
            raise ValueError(f"expected a rank below {count}, got {rank}")
        store, idle_connection = _reach(rank, address, rank == 0, span)
        return Rendezvous(store, rank, count, "all", 0, idle_connection)
    if distributed.is_initialized():
        ranks = distributed.get_process_group_ranks(group or distributed.group.WORLD)
        this_rank = distributed.get_rank()
        if this_rank not in ranks:
            raise ValueError(f"expected a group with this process, rank {this_rank}, got one of ranks {ranks}")
        store = distributed.distributed_c10d._get_default_store()
        all_ranks = len(ranks) == distributed.get_world_size()
        name = "all" if all_ranks else "of-" + "-".join(map(str, ranks))
        served_by_rank_0 = _tcp(store) is not None and os.environ.get(BY_LAUNCHER) != "True"
        host = ranks.index(0) if 0 in ranks and served_by_rank_0 else None
        idle_connection = None if this_rank == 0 else _connect_to(store)
        return Rendezvous(store, ranks.index(this_rank), len(ranks), name, host, idle_connection)
    if group is not None or not under_launcher():
        raise RuntimeError(
            "expected a rendezvous of ranks, got none: call torch.distributed.init_process_group, start with torchrun "
            f"or mpiexec, or set {', '.join(VARIABLES)}"
        )
    this_rank, size = launcher_rank() or (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    serves = os.environ.get(BY_LAUNCHER) != "True"
    store, idle_connection = _reach(this_rank, ":".join(where_to_meet()), serves and this_rank == 0, span)
    # A launcher's store outlives the ranks that it restarts.
    name = f"start-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    return Rendezvous(store, this_rank, size, name, 0 if serves else None, idle_connection)


@contextlib.contextmanager
def closing_on_error(place: Rendezvous) -> Iterator[None]:
    """Open a block that uses the store before heartbeats begin. If it fails, the idle connection is closed.

    Raises:
        StoreError: the process that serves the store has ended.
    """
    try:
        with contextlib.ExitStack() as undo:
            if place.idle_connection is not None:
                undo.callback(place.idle_connection.close)
            yield
            undo.pop_all()
    except RuntimeError as error:
        who = "the process that serves it" if place.host is None else f"rank {place.host}, which serves it,"
        what = "does not answer" if isinstance(error, SilentStoreError) else "has ended"
        raise StoreError(
            f"expected the rendezvous to stay connected, but rank {place.rank} lost it: {who} {what}: "
            f"{first_line(error)}\n"
            "  restart all ranks from the last checkpoint",
            ranks=() if place.host is None else (place.host,),
        ) from None


class SilentStoreError(RuntimeError):
    """A store does not answer, though its server lives: the server is stopped, or disconnected."""


def request(requests: Callable[[], T], timeout_s: float, discard: Callable[[T], None] = lambda _: None) -> T:
    """Return the result of requests to a store.

    A TCPStore waits for its server's answer without a time limit, and ignores Ctrl-C. Therefore a separate thread makes
    the requests. If they are abandoned, the thread lives until its connection ends.

    Args:
        requests: function that makes the requests.
        timeout_s: seconds that they may take. A slow store has `GRACE_S` more.
        discard: function that disposes of a result that arrives too late.

    Raises:
        SilentStoreError: the requests took longer.
        Exception: exception of ``requests``.
    """
    job = Job(requests)
    thread = begin("rendezvous", job.run)
    try:
        thread.join(timeout_s + GRACE_S)
        if not job.done:
            raise SilentStoreError(f"no answer within {timeout_s + GRACE_S:g} s")
    except BaseException:
        begin("rendezvous", lambda: _discard(job, discard))
        raise
    try:
        return job.result()
    finally:
        job.error = None  # a reference cycle with its frames would keep their connections open until garbage collection


def _discard(job: Job[T], discard: Callable[[T], None]) -> None:
    """Dispose of the result of abandoned requests when it arrives."""
    with contextlib.suppress(BaseException):  # nobody waits for their errors any more
        discard(job.result())


def under_launcher() -> bool:
    """Return whether torchrun, another launcher that sets its variables, mpiexec or srun has started this process.

    Raises:
        RuntimeError: variables are missing, or contradict each other.
    """
    if launcher_rank():
        where_to_meet()
        return True
    missing = [name for name in VARIABLES if os.environ.get(name) is None]
    if "RANK" in os.environ and missing and os.environ.get("WORLD_SIZE") != "1":
        raise RuntimeError(f"expected all of {', '.join(VARIABLES)} in addition to RANK, got no {', '.join(missing)}")
    return not missing


def _reach(rank: int, address: str, serves: bool, span: datetime.timedelta) -> tuple[Any, socket.socket | None]:
    """Serve or reach the store at an address. Return it with an idle connection to its server."""
    host, _, digits = address.rpartition(":")
    host = host.strip("[]")
    if not host or not digits.isdecimal() or not 0 < int(digits) < 1 << 16:
        raise ValueError(f"expected an address such as '127.0.0.1:29500', got {address!r}")
    if serves:
        return _serve(rank, address, host, int(digits), span), None
    start_s = max(START_S, span.total_seconds())
    idle_connection = _connect(host, int(digits), start_s)
    try:
        if idle_connection is None:
            raise RuntimeError("nothing listens there")
        return request(
            lambda: torch.distributed.TCPStore(
                host, int(digits), None, False, span, wait_for_workers=False, multi_tenant=True
            ),
            span.total_seconds(),
        ), idle_connection
    except RuntimeError as error:
        if idle_connection is not None:
            idle_connection.close()
        raise StoreError(
            f"expected rank 0 at {address} within {start_s:g} s, but rank {rank} could not reach it: "
            f"{first_line(error)}\n"
            "  start rank 0 there, or correct the address",
            ranks=(0,),
        ) from None


def _serve(rank: int, address: str, host: str, port: int, span: datetime.timedelta) -> Any:
    if address in _served:
        return _served[address]
    store = torch.distributed.TCPStore
    try:
        listening = listening_socket(host, port)
        options: dict[str, Any] = {} if listening is None else {"master_listen_fd": listening.detach()}
        # Without a socket, torch starts a server on this port, or reuses one of this process.
        server = store(host, port, None, True, span, wait_for_workers=False, multi_tenant=True, **options)
    except (RuntimeError, OSError) as error:
        raise StoreError(
            f"expected to serve the rendezvous at {address}, but rank {rank} could not: {first_line(error)}\n"
            "  end the process that listens there, or choose another port"
        ) from None
    _served[address] = server
    return server


def listening_socket(host: str, port: int) -> socket.socket | None:
    """Return a socket that listens on this address alone. None means that torch has to listen, on all addresses."""
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family = socket.AF_INET if any(info[0] == socket.AF_INET for info in infos) else infos[0][0]
    addresses = sorted({info[4] for info in infos if info[0] == family})
    if not _literal(host) and host != "localhost":
        # Other machines may choose another of several addresses, and /etc/hosts often names this machine 127.0.1.1.
        if len(addresses) > 1:
            _warn(f"{host!r} resolves to {', '.join(str(socket_address[0]) for socket_address in addresses)}")
            return None
        if ipaddress.ip_address(addresses[0][0]).is_loopback:
            _warn(f"{host!r} resolves to {addresses[0][0]} here, which only this machine could reach")
            return None
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(addresses[0])
        listener.listen(4096)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            _warn(f"{addresses[0][0]} is not an address of this machine")
            return None
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return listener


def _literal(host: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False


def _warn(why: str) -> None:
    warnings.warn(
        f"the ranks' rendezvous listens on all addresses of this machine: {why}; give an address of an interface "
        "that only the ranks can reach",
        stacklevel=2,
    )


def _connect(host: str, port: int, seconds: float) -> socket.socket | None:
    """Connect once a process listens at the address. Until then, attempts by torch would fill stderr."""
    until = time.monotonic() + seconds
    while True:
        try:
            connection = socket.create_connection((host, port), max(0.1, until - time.monotonic()))
        except OSError:
            if time.monotonic() >= until:
                return None
            time.sleep(0.05)
        else:
            connection.setblocking(False)
            return connection


def _connect_to(store: Any) -> socket.socket | None:
    server = _tcp(store)
    return None if server is None else _connect(server.host, server.port, 1.0)


def first_line(error: BaseException) -> str:
    """Return the first line of an error of torch, without its C++ stack."""
    return str(error).partition("\n")[0] or type(error).__name__


# ---- connections --------------------------------------------------------------------------------------------


def gloo_backend(store: Any, rank: int, count: int, span: datetime.timedelta) -> Any:
    """Connect through the interface that ``GLOO_SOCKET_IFNAME`` names, or else the one that routes to the store."""
    gloo = torch.distributed.ProcessGroupGloo
    options = gloo._Options()
    options._timeout, options._threads = span, 2
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    address = None if interface else _own_address(store)
    if interface:
        device = gloo.create_device(interface=interface)
    else:
        device = gloo.create_default_device() if address is None else gloo.create_device(hostname=address)
    options._devices = [device]
    backend = gloo(store, rank, count, options)
    # A rank that closes its connections at once would cut off ranks that are still connecting.
    backend.barrier().wait()
    return backend


def nccl_backend(store: Any, rank: int, count: int, span: datetime.timedelta) -> Any:
    """Connect for tensors on CUDA devices."""
    nccl = torch.distributed.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = span
    return nccl(store, rank, count, options)


def _own_address(store: Any) -> str | None:
    """Return this machine's address as seen by the host of the rendezvous, or None.

    A machine's name often resolves to loopback, which other machines cannot reach.
    """
    server = _tcp(store)
    if server is None:
        return None
    try:
        ((family, _, _, _, target), *_) = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_DGRAM)
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _tcp(store: Any) -> Any:
    while isinstance(store, torch.distributed.PrefixStore):
        store = store.underlying_store
    return store if isinstance(store, torch.distributed.TCPStore) else None
