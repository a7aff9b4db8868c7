"""Jobs of several processes in which contenders race in step: their start, their links and their answers."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.harness import Answer, Race, Target, spread
from benchmarks.learners import shapes

#: Flag of setns(2).
_NEWNET = 0x40000000
_ADDRESSES = ("10.77.0.1", "10.77.0.2")


def told_by_first(
    function: Callable[..., Any], count: int, *arguments: Any, namespaces: list[str] | None = None
) -> Any:
    """Run ``function(rank, *arguments)`` in the processes of one job, return the result of rank 0.

    Args:
        function: function of a module.
        count: number of processes, each with torch on one thread.
        arguments: passed on.
        namespaces: of the network, one for each process, as `link` gives them; None: loopback, where torch.distributed
            is initialised as well.
    """
    context = multiprocessing.get_context("spawn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    receiving, sending = context.Pipe(duplex=False)
    processes = []
    for rank in range(count):
        variables = {
            "MASTER_ADDR": _ADDRESSES[0] if namespaces else "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "WORLD_SIZE": str(count),
        }
        namespace = namespaces[rank] if namespaces else None
        told = sending if rank == 0 else None
        processes.append(context.Process(target=_main, args=(function, rank, variables, namespace, told, arguments)))
    for process in processes:
        process.start()
    sending.close()
    try:
        return receiving.recv()
    finally:
        for process in processes:
            process.join(60)
            process.kill()


def _main(
    function: Callable[..., Any],
    rank: int,
    variables: dict[str, str],
    namespace: str | None,
    told: Any,
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    os.environ |= variables
    if namespace is None:
        torch.distributed.init_process_group("gloo")
    else:
        _enter(namespace)
    found = function(rank, *arguments)
    if namespace is None:
        torch.distributed.destroy_process_group()
    if told is not None:
        told.send(found)


def of_a_resnet(width: int) -> tuple[list[int], list[torch.Tensor], list[torch.Tensor]]:
    """Keys, values and outs for all tensors of a ResNet-50, at a width of 64."""
    tensors = [torch.randn(shape) for shape in shapes(width)]
    return list(range(len(tensors))), tensors, [torch.empty_like(tensor) for tensor in tensors]


def answer(ran: Race, ours: str, peer: str, question: str, target: Target | None, told_as: str | None = None) -> Answer:
    """Return the answer of a race between two contenders, in milliseconds.

    Args:
        ran: the race.
        ours: name of our contender in it.
        peer: name of the other.
        question: the question.
        target: of the ratio. None: none.
        told_as: name of the other in the table. None: ``peer``.
    """
    return Answer(
        question=question,
        unit="ms",
        ours=1e3 / ran.rate(ours),
        peer=told_as or peer,
        peer_value=1e3 / ran.rate(peer),
        ratio=ran.ratio(ours, peer),
        target=target,
        spread=ran.spread(ours),
        detail={
            "ms": {name: [1e3 / rate for rate in ran.rates(name)] for name in (ours, peer)},
            "wall_ms": {name: [1e3 / rate for rate in ran.rates(name, "wall")] for name in (ours, peer)},
            "ratio_spread": spread(ran.ratios(ours, peer)),
        },
    )


# ---- a link between two processes ----------------------------------------------------------------------------------


@contextlib.contextmanager
def link(rate: str) -> Iterator[list[str] | None]:
    """Make two network namespaces with a link of that rate in each direction. None where that is not permitted."""
    names = [f"flb{os.getpid()}{side}" for side in "ab"]
    try:
        yield names if _linked(names, rate) else None
    finally:
        for name in names if shutil.which("ip") else ():
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20)


def _linked(names: list[str], rate: str) -> bool:
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return False
    try:
        for name in names:
            _call("ip", "netns", "add", name)
        _call("ip", "link", "add", names[0], "type", "veth", "peer", "name", names[1])
        for name, address in zip(names, _ADDRESSES, strict=True):
            _call("ip", "link", "set", name, "netns", name)
            _call("ip", "-n", name, "addr", "add", f"{address}/24", "dev", name)
            _call("ip", "-n", name, "link", "set", name, "up")
            _call("ip", "-n", name, "link", "set", "lo", "up")
            # A bucket of tokens holds what passes between two ticks of the slowest usual clock, 4 ms.
            burst = "256kb" if rate == "1gbit" else "8mb"
            shape = ["root", "tbf", "rate", rate, "burst", burst, "latency", "50ms"]
            _call("tc", "-n", name, "qdisc", "add", "dev", name, *shape)
    except subprocess.CalledProcessError:
        return False
    return True


def _call(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=20)


def _enter(name: str) -> None:
    namespace = os.open(f"/run/netns/{name}", os.O_RDONLY)
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(namespace, _NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(namespace)
