"""`feedline plan --mesh` without torch shows what sources deliver, under the shares that torch's meshes have."""

from __future__ import annotations

import itertools
import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest

import feedline as fl
from tests.cli.shell import feedline

LENGTHS = np.random.default_rng(0).integers(1, 60, 400) ** 2
SIZE, STEPS = 20_000, 2


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("mesh") / "documents.store"
    fl.convert(fl.ArrayDeserializer(tokens=[np.full(n, i, np.int32) for i, n in enumerate(LENGTHS)]), path)
    return path


def planned(path, mesh, *arguments):
    done = feedline("plan", path, "--mesh", mesh, "--size", SIZE, "--steps", STEPS, "--seed", 5, "--json", *arguments)
    return json.loads(done.stdout)


def by_rank(document):
    """Return share, cut and group of each rank."""
    groups = {rank: group for group in document["groups"] for rank in group["ranks"]}
    assert sorted(groups) == list(range(len(groups)))
    return [(tuple(groups[rank]["share"]), tuple(groups[rank]["cut"]), groups[rank]) for rank in sorted(groups)]


@pytest.mark.parametrize(
    ("mesh", "roles"),
    [
        ("dp=3", ()),
        ("dp=4,tp=2", ()),
        ("tp=2,dp=4", ()),
        ("hsdp=2,tp=2,cp=2", ()),
        ("dp_replicate=2,pp=2,dp_shard=2", ()),
        ("Data=2,ep=2", ("ep=model",)),
        ("ep=2,tp=2", ("ep=data", "tp=context")),
        ("pp=4", ()),
    ],
)
def test_shares_are_those_of_a_mesh_of_torch(store, mesh, roles):
    pytest.importorskip("torch", reason="torch is not installed")
    from torch.distributed.device_mesh import init_device_mesh

    from feedline.interop.meshes import share_of
    from tests.fake_ranks import as_rank

    options = [word for role in roles for word in ("--role", role)]
    ranks = by_rank(planned(store, mesh, *options))
    names, sizes = zip(*(part.split("=") for part in mesh.split(",")), strict=True)
    for rank, (share, cut, _) in enumerate(ranks):
        with as_rank(rank, len(ranks)):
            made = init_device_mesh("cpu", tuple(map(int, sizes)), mesh_dim_names=names)
            expected = share_of(made, dict(role.split("=") for role in roles))
            assert (*share, *cut) == expected[:4]


def test_groups_and_machines_read_what_their_sources_deliver(store):
    document = planned(store, "dp=4,tp=2", "--ranks-per-node", 4)
    shares = []
    for rank, (share, cut, group) in enumerate(by_rank(document)):
        assert (share, cut) == ((rank // 2, 4), (0, 1))
        with fl.MinibatchSource(fl.open_corpus(store), seed=5, partition=share) as source:
            delivered = [source.next_minibatch(SIZE) for _ in range(STEPS)]
            assert group["samples"] == sum(m.num_samples for m in delivered)
            assert group["sequences"] == sum(m.num_sequences for m in delivered)
            assert group["bytes"] == pytest.approx(source.stats().asked_bytes, rel=0.01)
        shares.append(group)
    assert [machine["ranks"] for machine in document["machines"]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [machine["shares"] for machine in document["machines"]] == [[0, 1], [2, 3]]
    for machine in document["machines"]:
        assert machine["bytes"] == pytest.approx(sum(shares[rank]["bytes"] for rank in machine["ranks"][::2]), abs=2)
    assert document["bytes"] == pytest.approx(sum(machine["bytes"] for machine in document["machines"]), abs=2)
    with fl.MinibatchSource(fl.open_corpus(store), seed=5, partition=(0, 4)) as source:
        figures = [next(source.plan(SIZE)).unevenness()["samples"]["squares"]]
        source.next_minibatch(SIZE)
        figures.append(next(source.plan(SIZE)).unevenness()["samples"]["squares"])
    assert document["unevenness"]["samples"]["squares"] == pytest.approx(np.mean(figures))


def test_sequences_of_several_sweeps_count_once(store):
    document = planned(store, "dp=2", "--ranks-per-node", 1, "--steps", 80)
    stored = sum(info.bytes for info in fl.open_corpus(store).chunks())
    assert sum(group["samples"] for group in document["groups"]) > 2 * sum(LENGTHS)
    assert document["bytes"] == stored
    assert all(stored / 2 < machine["bytes"] <= stored for machine in document["machines"])


def test_formats_that_are_read_whole_count_chunks_once(tmp_path):
    fl.write_ctf(tmp_path / "x.ctf", x=[np.full((3, 1), i) for i in range(20_000)])
    streams = ("--stream", "x=1", "--chunk-size", "4k")
    read = []
    for rank in range(2):
        corpus = fl.CTFDeserializer(str(tmp_path / "x.ctf"), {"x": fl.Stream(1)}, chunk_size=4096)
        with fl.MinibatchSource(corpus, shuffle=False, partition=(rank, 2)) as source:
            ids = {i for _ in range(STEPS) for i in source.next_minibatch(SIZE).ids.tolist()}
        starts = np.cumsum([0, *(info.sequences for info in corpus.chunks())])
        read.append({k for k, (a, b) in enumerate(itertools.pairwise(starts)) if ids & set(range(a, b))})
    stored = [info.bytes for info in corpus.chunks()]
    each, together = (sum(stored[k] for k in chunks) for chunks in (read[0], read[0] | read[1]))
    apart = planned(tmp_path / "x.ctf", "dp=2", "--ranks-per-node", 1, "--window", "none", *streams)
    assert [machine["bytes"] for machine in apart["machines"]] == [each, sum(stored[k] for k in read[1])]
    one = planned(tmp_path / "x.ctf", "dp=2", "--window", "none", *streams)
    assert [machine["bytes"] for machine in one["machines"]] == [one["bytes"]] == [together]
    assert together < sum(machine["bytes"] for machine in apart["machines"])  # chunks at the borders of shares


def test_a_picture_has_every_rank_once(store, tmp_path):
    svg = tmp_path / "mesh.svg"
    arguments = ("--mesh", "dp=2,<cp>=2,tp=2", "--role", "<cp>=context", "--ranks-per-node", 2)
    text = feedline("plan", store, *arguments, "--size", SIZE, "--svg", svg).stdout
    assert re.search(r"0-1 +0 of 2 +cut 0 of 2 of the same sequences", text)
    assert re.search(r"6-7 +1 of 2 +cut 1 of 2 of the same sequences", text)
    assert re.search(r"\n +3 +6-7 +1 +\d", text)
    root = ElementTree.parse(svg).getroot()
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [text for text in texts if text.startswith("rank ")] == [f"rank {i}" for i in range(8)]
    assert texts[texts.index("rank 5") + 1 :][:3] == ["dp 1, <cp> 0, tp 1", "share 1 of 2", "cut 0 of 2"]
    machines = planned(store, "dp=2,tp=2")["machines"]
    assert len([text for text in texts if text.startswith("machine ")]) == 4 != len(machines) == 1


def test_the_shares_of_one_rank_show_how_uneven_all_are(store):
    arguments = ("plan", store, "--size", SIZE, "--partition", "1/4")
    figures = json.loads(feedline(*arguments, "--json").stdout)["unevenness"]
    with fl.MinibatchSource(fl.open_corpus(store), partition=(2, 4)) as source:
        assert next(source.plan(SIZE)).unevenness() == figures
    assert re.search(rf"samples +1\.\d+ +{figures['samples']['squares']:.3f}", feedline(*arguments).stdout)
    assert json.loads(feedline("plan", store, "--json").stdout)["unevenness"] == {}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--mesh", "dp=2,ep=2"), 1, r'where ep may .* \("context"\)\. Pass --role ep=\.\.\.$'),
        (
            ("--mesh", "dp=2,ep=2", "--role", "ep=both"),
            1,
            "expected the role of 'ep' to be one of data, model, context",
        ),
        (("--mesh", "dp=2", "--role", "tp=model"), 1, "expected roles of dimensions of the mesh, dp: 2, got 'tp'"),
        (("--mesh", "dp=2", "--role", "dp"), 2, "expected --role NAME=ROLE such as ep=model, got 'dp'"),
        (("--mesh", "dp"), 2, "expected --mesh NAME=SIZE,NAME=SIZE such as dp=4,tp=2, each name once, got 'dp'"),
        (("--mesh", "dp=2,dp=2"), 2, "each name once, got 'dp=2,dp=2'"),
        (("--mesh", "dp=0"), 2, "got 'dp=0'"),
        (("--mesh", "dp=6", "--ranks-per-node", "4"), 2, "expected --ranks-per-node that divides the 6 ranks, got 4"),
        (
            ("--mesh", "dp=2", "--partition", "1/2"),
            2,
            "neither --partition nor --html, with --mesh, got --partition 1/2",
        ),
        (("--mesh", "dp=2", "--html", "x.html"), 2, "with --mesh, got --html"),
        (("--mesh", "dp=2", "--nodes", "2"), 2, "expected an address, .* for --nodes, got the path"),
        (("--role", "ep=model"), 2, "expected --mesh with --role, got none"),
        (("--svg", "x.svg"), 2, "expected --mesh with --svg, got none"),
    ],
)
def test_wrong_arguments_are_named(store, arguments, code, message):
    assert re.search(message, feedline("plan", store, *arguments, code=code).stderr, re.MULTILINE)


def test_an_address_is_refused():
    assert "expected a path of this machine" in feedline("plan", "s3://b/x.store", "--mesh", "dp=2", code=2).stderr
