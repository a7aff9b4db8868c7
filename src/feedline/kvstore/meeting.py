"""Where ranks meet, and the connections they make: stores and process groups of torch.distributed.

Ranks find each other through a TCPStore: the one of an initialised torch.distributed, of a launcher's variables, or of
an address that the caller gives. The connections between them are made anew, beside any that the program has.
"""

from __future__ import annotations

import datetime
import os
import socket
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
class Place:
    """A meeting point, and this process at it.

    Attributes:
        store: of torch.distributed.
        rank: of this process.
        count: ranks.
        name: of this set of ranks, the same on all of them.
        host: the rank that serves the store; None: none of them does.
    """

    store: Any
    rank: int
    count: int
    name: str
    host: int | None


def meet(group: Any, address: str | None, rank: int | None, count: int | None, span: datetime.timedelta) -> Place:
    """Find it; see `Collective` for where.

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
        return Place(_serve(rank, address, rank == 0, span), rank, count, "all", 0)
    if distributed.is_initialized():
        ranks = distributed.get_process_group_ranks(group or distributed.group.WORLD)
        own = distributed.get_rank()
        if own not in ranks:
            raise ValueError(f"expected a group that this process is in, got one of ranks {ranks}; this is rank {own}")
        store = distributed.distributed_c10d._get_default_store()
        whole = len(ranks) == distributed.get_world_size()
        name = "all" if whole else "of-" + "-".join(map(str, ranks))
        host = ranks.index(0) if 0 in ranks and _served_by_rank_0(store) else None
        return Place(store, ranks.index(own), len(ranks), name, host)
    if group is not None or not under_launcher():
        raise RuntimeError(
            "expected ranks that know of each other: call torch.distributed.init_process_group, start with torchrun, "
            f"or set {', '.join(VARIABLES)}"
        )
    own, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    serves = os.environ.get(BY_LAUNCHER) != "True"
    store = _serve(own, f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}", serves and own == 0, span)
    # A launcher's store outlives the ranks that it starts again.
    return Place(store, own, size, f"start-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", 0 if serves else None)


def under_launcher() -> bool:
    """Whether torchrun, or another launcher that sets its variables, has started this process."""
    return all(os.environ.get(name) is not None for name in VARIABLES)


def _serve(rank: int, address: str, serves: bool, span: datetime.timedelta) -> Any:
    """The store at an address; served from here, or reached."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"expected an address such as '127.0.0.1:29500', got {address!r}")
    if serves and address in _served:
        return _served[address]
    try:
        store = torch.distributed.TCPStore(
            host.strip("[]"), int(port), None, serves, span, wait_for_workers=False, multi_tenant=True
        )
        if serves:
            _served[address] = store
        return store
    except RuntimeError as error:
        why = str(error).splitlines()[0]
        if serves:
            raise StoreError(
                f"expected to serve the meeting point at {address}, rank {rank} could not: {why}"
            ) from error
        raise StoreError(
            f"expected rank 0 at {address} within {span.total_seconds():g} s, rank {rank} could not reach it: {why}\n"
            "  start rank 0 there, or correct the address",
            ranks=(0,),
        ) from error


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
