"""The rendezvous of ranks, and the connections they make: stores and process groups of torch.distributed.

Ranks find each other through a TCPStore: the one of an initialised torch.distributed, of a launcher's variables, or of
an address that the caller gives. The connections between them are made anew, beside any that the program has.

A meeting point that is served from here listens on the address that was given, and on no other. Where that cannot be
(a name that means the machine itself to itself, an address that is translated on the way), it listens on all of the
machine's addresses, and a warning says so.
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
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from feedline.errors import StoreError

#: What launchers set.
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
#: "True" where the launcher itself serves the store.
BY_LAUNCHER = "TORCHELASTIC_USE_AGENT_STORE"

#: Stores that this process serves, by address: others may come again, so they stay as long as the process.
_served: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class MeetingPoint:
    """A meeting point, and this process at it.

    Attributes:
        store: of torch.distributed.
        rank: of this process.
        count: ranks.
        name: of this set of ranks, the same on all of them.
        host: the rank that serves the store; None: none of them does.
        line: a connection to the process that serves it, on which nothing is sent: it ends when that process does.
            None: it is this process, or the store is of another kind.
    """

    store: Any
    rank: int
    count: int
    name: str
    host: int | None
    line: socket.socket | None = None


def meet(
    group: Any, address: str | None, rank: int | None, count: int | None, span: datetime.timedelta
) -> MeetingPoint:
    """Find the rendezvous; see `Communicator` for where.

    Raises:
        RuntimeError: no ranks are known.
        ValueError: arguments that do not fit together.
        StoreError: rank 0 is not to be reached.
    """
    distributed = torch.distributed
    given = (address is not None, rank is not None, count is not None)
    if any(given) and (not all(given) or group is not None):
        raise ValueError("expected address, rank and count together, and no group beside them")
    if address is not None and rank is not None and count is not None:
        if not 0 <= rank < count:
            raise ValueError(f"expected a rank below {count}, got {rank}")
        store, line = _reached(rank, address, rank == 0, span)
        return MeetingPoint(store, rank, count, "all", 0, line)
    if distributed.is_initialized():
        ranks = distributed.get_process_group_ranks(group or distributed.group.WORLD)
        own = distributed.get_rank()
        if own not in ranks:
            raise ValueError(f"expected a group that this process is in, got one of ranks {ranks}; this is rank {own}")
        store = distributed.distributed_c10d._get_default_store()
        whole = len(ranks) == distributed.get_world_size()
        name = "all" if whole else "of-" + "-".join(map(str, ranks))
        host = ranks.index(0) if 0 in ranks and _served_by_rank_0(store) else None
        return MeetingPoint(store, ranks.index(own), len(ranks), name, host, None if own == 0 else _line_to(store))
    if group is not None or not under_launcher():
        raise RuntimeError(
            "expected ranks that know of each other: call torch.distributed.init_process_group, start with torchrun, "
            f"or set {', '.join(VARIABLES)}"
        )
    own, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    serves = os.environ.get(BY_LAUNCHER) != "True"
    store, line = _reached(own, f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}", serves and own == 0, span)
    # A launcher's store outlives the ranks that it starts again.
    name = f"start-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    return MeetingPoint(store, own, size, name, 0 if serves else None, line)


@contextlib.contextmanager
def holding(place: MeetingPoint) -> Iterator[None]:
    """A block that uses the store before signs of life are exchanged.

    Raises:
        StoreError: the process that serves it has ended meanwhile.
    """
    try:
        yield
    except RuntimeError as error:
        who = "the process that serves it" if place.host is None else f"rank {place.host}, which serves it,"
        raise StoreError(
            f"expected a meeting point that stays, rank {place.rank} lost it: {who} has ended: {brief(error)}\n"
            "  start all ranks again, from the last checkpoint",
            ranks=() if place.host is None else (place.host,),
        ) from None


def under_launcher() -> bool:
    """Whether torchrun, or another launcher that sets its variables, has started this process."""
    return all(os.environ.get(name) is not None for name in VARIABLES)


def _reached(rank: int, address: str, serves: bool, span: datetime.timedelta) -> tuple[Any, socket.socket | None]:
    """The store at an address, and a line to whoever serves it; served from here, or reached."""
    host, _, digits = address.rpartition(":")
    host = host.strip("[]")
    if not host or not digits.isdecimal() or not 0 < int(digits) < 1 << 16:
        raise ValueError(f"expected an address such as '127.0.0.1:29500', got {address!r}")
    if serves:
        return _serve(rank, address, host, int(digits), span), None
    line = _line(host, int(digits), span.total_seconds())
    try:
        if line is None:
            raise RuntimeError("nobody listens there")
        return torch.distributed.TCPStore(
            host, int(digits), None, False, span, wait_for_workers=False, multi_tenant=True
        ), line
    except RuntimeError as error:
        if line is not None:
            line.close()
        raise StoreError(
            f"expected rank 0 at {address} within {span.total_seconds():g} s, rank {rank} could not reach it: "
            f"{brief(error)}\n  start rank 0 there, or correct the address",
            ranks=(0,),
        ) from None


def _serve(rank: int, address: str, host: str, port: int, span: datetime.timedelta) -> Any:
    if address in _served:
        return _served[address]
    store = torch.distributed.TCPStore
    try:
        listening = _listening(host, port)
        options: dict[str, Any] = {} if listening is None else {"master_listen_fd": listening.detach()}
        # Without a socket of ours it is torch's server on this port, if this process has one, or a new one.
        made = store(host, port, None, True, span, wait_for_workers=False, multi_tenant=True, **options)
    except (RuntimeError, OSError) as error:
        raise StoreError(
            f"expected to serve the meeting point at {address}, rank {rank} could not: {brief(error)}\n"
            "  end what listens there, or take another port"
        ) from None
    _served[address] = made
    return made


def _listening(host: str, port: int) -> socket.socket | None:
    """A socket on this address alone; None: torch has to listen, which it does on all addresses."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family = socket.AF_INET if any(info[0] == socket.AF_INET for info in found) else found[0][0]
    places = sorted({info[4] for info in found if info[0] == family})
    if not _literal(host) and host != "localhost":
        # Other machines may take another of several addresses; and /etc/hosts often calls this machine 127.0.1.1.
        if len(places) > 1:
            _warn(f"{host!r} is {', '.join(str(place[0]) for place in places)}")
            return None
        if ipaddress.ip_address(places[0][0]).is_loopback:
            _warn(f"{host!r} is {places[0][0]} here, where only this machine could reach it")
            return None
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(places[0])
        made.listen(4096)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRNOTAVAIL:
            _warn(f"{places[0][0]} is no address of this machine")
            return None
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return made


def _literal(host: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False


def _warn(why: str) -> None:
    warnings.warn(
        f"the ranks' meeting point listens on all addresses of this machine: {why}; give an address of an interface "
        "that only the ranks can reach",
        stacklevel=2,
    )


def _line(host: str, port: int, seconds: float) -> socket.socket | None:
    """A connection, once somebody listens there; torch's own attempts fill stderr while nobody does."""
    until = time.monotonic() + seconds
    while True:
        try:
            made = socket.create_connection((host, port), max(0.1, until - time.monotonic()))
        except OSError:
            if time.monotonic() >= until:
                return None
            time.sleep(0.05)
        else:
            made.setblocking(False)
            return made


def _line_to(store: Any) -> socket.socket | None:
    server = _tcp(store)
    return None if server is None else _line(server.host, server.port, 1.0)


def brief(error: BaseException) -> str:
    """The first line of an error of torch, which its C++ stack follows."""
    return str(error).partition("\n")[0] or type(error).__name__


def _served_by_rank_0(store: Any) -> bool:
    return _tcp(store) is not None and os.environ.get(BY_LAUNCHER) != "True"


# ---- connections --------------------------------------------------------------------------------------------


def gloo_backend(store: Any, rank: int, count: int, span: datetime.timedelta) -> Any:
    """Connections through the interface that ``GLOO_SOCKET_IFNAME`` names, or else the one that leads to the store."""
    gloo = torch.distributed.ProcessGroupGloo
    options = gloo._Options()
    options._timeout, options._threads = span, 2
    """Connections through the interface that ``GLOO_SOCKET_IFNAME`` names, or else the one that leads to the store."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    address = None if interface else _own_address(store)
    if interface:
        device = gloo.create_device(interface=interface)
    else:
        device = gloo.create_default_device() if address is None else gloo.create_device(hostname=address)
    options._devices = [device]
    return gloo(store, rank, count, options)


def nccl_backend(store: Any, rank: int, count: int, span: datetime.timedelta) -> Any:
    """Connections for tensors on CUDA devices."""
    nccl = torch.distributed.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = span
    return nccl(store, rank, count, options)


def _own_address(store: Any) -> str | None:
    """This machine's address as the machine that serves the meeting point sees it; None: cannot be known.

    What a machine calls itself is often its loopback address, which other machines cannot reach.
    """
    server = _tcp(store)
    if server is None:
        return None
    try:
        ((family, _, _, _, there), *_) = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_DGRAM)
        with socket.socket(family, socket.SOCK_DGRAM) as asked:
            asked.connect(there)  # sends nothing
            return str(asked.getsockname()[0])
    except OSError:
        return None


def _tcp(store: Any) -> Any:
    while isinstance(store, torch.distributed.PrefixStore):
        store = store.underlying_store
    return store if isinstance(store, torch.distributed.TCPStore) else None
