"""Two hosts, as network namespaces with a virtual cable: stores across it, cut cables, killed processes.

Needs the right to make namespaces (root) and iproute2.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from feedline.kvstore import create  # noqa: E402
from tests.docs.pages import IMPORTED_FROM, ROOT, blocks, commands  # noqa: E402
from tests.namespaces import joined  # noqa: E402
from tests.ranks import Failure, Job, run, say  # noqa: E402

NEWNET = 0x40000000
ADDRESS = "10.0.0.1"  # of the first host, from the guide
GUIDE = ROOT / "docs" / "how-to" / "several-workers.md"


@pytest.fixture
def hosts():
    with joined() as machines:
        yield machines


def enter(name):
    namespace = os.open(f"/run/netns/{name}", os.O_RDONLY)
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(namespace, NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(namespace)


def works(rank, names, timeout):
    """Push and pull from a separate host, until something happens."""
    enter(names[rank])
    store = create("dist_sync", address=f"{ADDRESS}:29500", rank=rank, num_workers=2, timeout=timeout)
    store.init("w", torch.zeros(1 << 16))
    out = torch.empty(1 << 16)
    for step in range(10**9):
        store.pushpull("w", torch.full((1 << 16,), float(rank + 1)), out)
        if step == 20:
            say(out.unique().tolist())


@pytest.mark.parametrize("happens", ["cut", "killed", "stopped"])
def test_a_host_that_is_gone_is_named(hosts, happens):
    with Job(works, 2, names=hosts.names, timeout=4) as job:
        assert job.results() == [[3.0]] * 2
        if happens == "cut":
            hosts.cut()
        else:
            job.kill(1, signal.SIGKILL if happens == "killed" else signal.SIGSTOP)
        for rank in (0, 1) if happens == "cut" else (0,):
            failure = job.heard(rank)
            assert isinstance(failure, Failure)
            assert failure.kind == "StoreError"
            assert failure.ranks == (1 - rank,)


def sums(rank, names, kind):
    """Sum pushes key by key from a separate host."""
    enter(names[rank])
    store = create("dist_sync", address=f"{ADDRESS}:29500", rank=rank, num_workers=2)
    store.set_gradient_compression(None if kind is None else {"type": kind})
    sizes, results = [1 << 20, 3, 70_000], []
    for key, size in enumerate(sizes):
        store.init(key, torch.zeros(size))
    for step in range(3):
        for key, size in enumerate(sizes):
            store.push(key, torch.full((size,), (1 + rank + step + key) / 2))
        outs = [torch.empty(size) for size in sizes]
        for key, out in enumerate(outs):
            store.pull(key, out)
        results.append([out.unique().tolist() for out in outs])
    store.close()
    return results


@pytest.mark.parametrize("kind", [None, "bf16", "2bit"])
def test_pushes_over_a_link_of_one_gigabit(hosts, kind):
    if shutil.which("tc") is None:
        pytest.skip("tc (iproute2) is not installed")
    shape = ["root", "tbf", "rate", "1gbit", "burst", "256kb", "latency", "50ms"]
    for name in hosts.names:
        shaped = subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", name, *shape], capture_output=True, text=True)
        if shaped.returncode:
            pytest.skip(f"links cannot be shaped here: {shaped.stderr.strip()}")
    first, second = run(sums, 2, names=hosts.names, kind=kind)
    assert first == second
    each = [[1.0 if kind == "2bit" else (3 + 2 * (step + key)) / 2 for key in range(3)] for step in range(3)]
    assert first == [[[one] for one in step] for step in each]


def test_the_guides_commands_work_on_two_hosts(hosts, tmp_path):
    """The programs of the guide, unchanged, each on a separate host."""
    guide_blocks = blocks(GUIDE.read_text("utf-8"))
    (program,) = (block.text for block in guide_blocks if block.text.startswith("# train.py\n"))
    (launch,) = (block.text for block in guide_blocks if block.reason == "needs two machines")
    (tmp_path / "train.py").write_text(program)
    started = []
    for (command, _), name in zip(commands(launch.replace("\\\n", " ")), hosts.names, strict=True):
        python, *words = shlex.split(command)
        assert python == "python"
        environment = {**os.environ, "PYTHONPATH": IMPORTED_FROM, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": name}
        started.append(
            subprocess.Popen(
                ["ip", "netns", "exec", name, sys.executable, *words],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        outputs = [one.communicate()[0] for one in started]
    finally:
        hosts.empty()
        for one in started:
            one.wait()
            one.stdout.close()
    assert [one.returncode for one in started] == [0, 0], outputs
    assert "16 steps on each of 2 ranks, sum 499500" in outputs[0]
