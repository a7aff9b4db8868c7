"""Several nodes with separate caches: in arcs they fetch about one copy of the data together."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import feedline as fl
from feedline.feed.remote import object_cache as caches
from tests.docs.pages import ROOT
from tests.feed.remote.test_object_cache import MIB, rows
from tests.inside import wait_for_groups
from tests.linux import linux_only
from tests.namespaces import joined
from tests.ranks import run
from tests.servers.object_store import ObjectStoreProcess

NODES, FILES, GROUPS, GROUP_BYTES = 4, 3, 50, 250_000


@pytest.fixture
def files(store):
    contents = [rows(seed, GROUPS, GROUP_BYTES) for seed in range(FILES)]
    for number, content in enumerate(contents):
        store.put(f"b/{number}.parquet", content)
    return sum(map(len, contents))


@pytest.mark.parametrize(("order", "least", "most"), [(fl.Arcs(16), 1.0, 1.15), ("feedline", 3.9, 4.4)])
def test_arcs_fetch_one_copy_and_shares_by_position_one_for_each_node(
    store, opened, files, tmp_path, monkeypatch, order, least, most
):
    """A chunk that an arc's border cuts is read by two nodes, and pages at both ends of chunks are rounded."""
    monkeypatch.setattr(caches, "MIN_CACHE_BYTES", MIB)
    sources = [
        fl.MinibatchSource(
            opened("*.parquet", cache=tmp_path / str(node), cache_bytes=2 * MIB),
            seed=3,
            shuffle=fl.Window(bytes=8 * MIB),
            max_sweeps=1,
            read_ahead=MIB,
            partition=(node, NODES),
            order=order,
        )
        for node in range(NODES)
    ]
    store.reset()
    ids = [[minibatch.ids for minibatch in source.minibatches(64)] for source in sources]
    assert sorted(np.concatenate([np.concatenate(part) for part in ids])) == list(range(FILES * GROUPS * 4))
    assert len({len(part) for part in ids}) == 1
    assert least * files <= store.counters().sent_bytes["GET"] <= most * files


def read_in_groups(rank, how, folder, steps):
    """Deliver minibatches in step with the other ranks. Return their ids, and how many this rank got from another."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    wait_for_groups()
    torch.distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    corpus = fl.open_corpus("s3://b/*.parquet", remote=fl.Remote(folder, **how))
    ids = []
    with fl.MinibatchSource(
        corpus, seed=3, shuffle=fl.Window(bytes=8 * MIB), order=fl.Arcs(2), partition=mesh
    ) as source:
        for _ in range(steps):
            ids += source.next_minibatch(50).ids.tolist()
            torch.distributed.barrier()
        return ids, source.stats().shared_minibatches


@linux_only("sockets with names without files")
def test_groups_of_ranks_on_a_machine_fetch_one_copy_together(store, files, tmp_path):
    """One rank of each group reads. The groups have a cache in common, for pages that chunks of both lie in."""
    sequences, steps = FILES * GROUPS * 4, FILES * GROUPS * 4 // 50
    store.reset()
    results = run(read_in_groups, 4, how={"storage_options": store.s3()}, folder=str(tmp_path / "cache"), steps=steps)
    ids = [ids for ids, _ in results]
    assert ids[:2] == ids[1::-1]
    assert ids[2:] == ids[:1:-1]
    assert sorted(ids[0] + ids[2]) == list(range(sequences))
    assert sorted(shared for _, shared in results) == [0, 0, steps, steps]
    assert files <= store.counters().sent_bytes["GET"] <= 1.05 * files


NODE = """
    import json, sys
    import feedline as fl
    from feedline.feed.remote.requests import TRAFFIC

    node, nodes, how = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    corpus = fl.open_corpus("s3://b/*.parquet", remote=fl.Remote(**how))
    corpus.digest()
    opening = TRAFFIC.fetched_bytes
    print("open", flush=True)
    sys.stdin.readline()
    ids = []
    with fl.MinibatchSource(
        corpus, seed=3, shuffle=fl.Window(bytes=4 << 20), max_sweeps=1, partition=(node, nodes), order=fl.Arcs(16)
    ) as source:
        for minibatch in source.minibatches(64):
            ids += minibatch.ids.tolist()
    print(json.dumps([ids, TRAFFIC.fetched_bytes - opening]))
"""


@pytest.mark.slow
def test_four_hosts_fetch_about_one_copy_over_the_network(tmp_path):
    """Hosts with different addresses, caches and clocks, and the server on a fifth one."""
    groups, total = 100, 0
    (tmp_path / "root" / "b").mkdir(parents=True)
    for seed in range(FILES):
        data = rows(seed, groups, 200_000)
        total += len(data)
        (tmp_path / "root" / "b" / f"{seed}.parquet").write_bytes(data)
    with (
        joined(1 + NODES) as hosts,
        ObjectStoreProcess(
            tmp_path / "root", address=hosts.addresses[0], within=("ip", "netns", "exec", hosts.names[0])
        ) as server,
    ):
        running: list[subprocess.Popen] = []
        for node in range(NODES):
            how = {"cache": str(tmp_path / str(node)), "cache_bytes": 1 << 30, "storage_options": server.s3()}
            words = [sys.executable, "-c", textwrap.dedent(NODE), str(node), str(NODES), json.dumps(how)]
            running.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", hosts.names[1 + node], *words],
                    cwd=ROOT,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        try:
            assert [one.stdout.readline() for one in running] == ["open\n"] * NODES
            for one in running:
                one.stdin.write("go\n")
                one.stdin.flush()
            told = [json.loads(one.communicate(timeout=120)[0]) for one in running]
        finally:
            hosts.empty()
            for one in running:
                one.communicate()
    assert sorted(one for ids, _ in told for one in ids) == list(range(FILES * groups * 4))
    assert total <= sum(fetched for _, fetched in told) <= 1.15 * total
