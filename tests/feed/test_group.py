"""Groups of ranks that get the same sequences: one rank makes each minibatch, and every rank gets what it would make.

Ranks are real processes, connected by gloo. The test says who reads when.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

import numpy as np
import pytest

from tests.linux import linux_only

pytestmark = linux_only("sockets with names without files")

torch = pytest.importorskip("torch", reason="torch is not installed")
pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow.parquet as pq  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402

import feedline as fl  # noqa: E402
from feedline import images  # noqa: E402
from feedline.testing import sequences_of  # noqa: E402
from tests.effort import examples  # noqa: E402
from tests.fake_ranks import as_rank  # noqa: E402
from tests.forked import Forked  # noqa: E402
from tests.images.pictures import drawn, encoded  # noqa: E402
from tests.inside import wait_for_groups  # noqa: E402
from tests.ranks import Job, hear, say  # noqa: E402

ROWS, WIDTH, ROW, PICTURES, BROKEN = 200, 20_000, 8192, 60, 7
MESHES = {"dp tp": (2, 2), "dp cp": (2, 2), "tp": (4,), "cp": (4,)}


def table(folder):
    return fl.open_corpus(os.path.join(folder, "rows.parquet"))


def documents(folder):
    return fl.Packed(fl.open_corpus(os.path.join(folder, "documents.parquet")), ROW)


def pictures(folder, broken=()):
    data = [encoded(drawn(40 + i % 5, 36, i)) for i in range(PICTURES)]
    return fl.ArrayDeserializer(image=[b"no picture" if i in broken else p for i, p in enumerate(data)])


def broken_pictures(folder):
    return pictures(folder, {BROKEN})


class Counted(fl.Deserializer):
    """Rows in chunks, made when they are read."""

    def __init__(self):
        self.schema, self.reads, self.name = fl.Schema({"x": fl.Stream(WIDTH)}), 0, "counted"

    def chunks(self):
        return [fl.ChunkInfo(30, 30, 30 * 4 * WIDTH)] * 12

    def read(self, chunk):
        self.reads += 1
        rows = np.arange(30, dtype=np.float32) + 30 * chunk
        return fl.Chunk(self.schema, {"x": fl.Value.from_dense(np.repeat(rows[:, None], WIDTH, axis=1))})

    def digest(self):
        return "twelve chunks"


def loader(corpus, partition):
    return fl.DataLoader(corpus, batch_size=8, shuffle=True, seed=5, partition=partition)


def decode():
    return images.Decode("image", images.RandomResizedCrop(96), images.Flip(), images.Normalize((0.5,) * 3, (0.5,) * 3))


CORPORA = {
    "rows": (table, {"shuffle": fl.Window(chunks=2)}),
    "pictures": (pictures, {"transforms": [decode()]}),
    "broken pictures": (broken_pictures, {"transforms": [decode()]}),
    "documents": (documents, {}),
}


def opened(name, folder, partition, **options):
    corpus, own = CORPORA[name]
    return fl.MinibatchSource(corpus(folder), **{"seed": 3, "partition": partition, **own, **options})


def content(minibatch):
    """What a rank delivers, without its memory. None at the end."""
    if not minibatch:
        return None
    return minibatch.position, minibatch.sweep_end, minibatch.num_samples, sequences_of([minibatch])


class Reader:
    """What a rank does when the test says so."""

    def __init__(self, rank, meshes):
        self.meshes, self.rank, self.minibatch, self.kept = meshes, rank, None, []

    def open(self, name, folder, mesh, options):
        if "quarantine" in options:
            path = os.path.join(options.pop("quarantine"), f"{self.rank}.jsonl")
            options["on_error"] = fl.Quarantine(path)
        if options.pop("by rank", False):  # a function that each rank has to run itself
            rank = self.rank
            options["transforms"] = [lambda sequence: {"x": sequence["x"] + rank}]
        self.source = opened(name, folder, self.partition(mesh), **options)

    def partition(self, mesh):
        cut = "zigzag" if "cp" in mesh else None
        return fl.Partition(self.meshes[mesh], cut=cut)

    def next(self, size):
        self.minibatch = self.source.next_minibatch(size)
        return content(self.minibatch)

    def keep(self, size):
        self.kept.append(self.source.next_minibatch(size))
        return content(self.kept[-1])

    def kept_content(self):
        return [content(minibatch) for minibatch in self.kept]

    def spoil(self):
        self.minibatch["image"].rows[:] = 0

    def in_child(self, size):
        """Deliver in a forked child what the parent delivers next."""
        self.kept.append(self.minibatch)
        expected = content(self.minibatch)
        child = Forked(lambda: content(self.minibatch) == expected and bool(self.source.next_minibatch(size)))
        return child.status()

    def seek(self, samples):
        self.source.seek(samples=samples)

    def load(self, state):
        self.source.load_state_dict(state)

    def state(self):
        return self.source.state_dict()

    def repartition(self, mesh):
        self.source.repartition(self.partition(mesh))

    def close(self):
        self.source.close()

    def load_epochs(self, mesh):
        """Deliver two epochs of a loader in step with the other ranks. Return the batches, and the chunks read."""
        corpus, batches = Counted(), []
        epochs = loader(corpus, self.partition(mesh))
        for _ in range(2):
            for batch in epochs:
                batches.append(batch["x"][:, 0].tolist())
                torch.distributed.barrier()
        return batches, corpus.reads

    def figures(self):
        """Minibatches, those that another rank had read, chunks read, seconds in transforms, and bytes."""
        s = self.source.stats()
        return s.minibatches, s.shared_minibatches, s.chunks_read, s.transform_seconds, s.asked_bytes


def serve(rank, patient):
    if patient:
        wait_for_groups()
    torch.distributed.init_process_group("gloo")
    meshes = {names: init_device_mesh("cpu", shape, mesh_dim_names=names.split()) for names, shape in MESHES.items()}
    reader = Reader(rank, {names: meshes[names] for names in MESHES})
    say("ready")
    while True:
        try:
            name, *arguments = hear()
            say(getattr(reader, name)(*arguments))
        except (Exception, KeyboardInterrupt) as error:
            say(type(error).__name__)


class Team:
    """The four ranks, of which those alive read in step."""

    def __init__(self, job):
        self.job, self.alive = job, list(range(4))
        for rank in self.alive:
            assert job.heard(rank) == "ready"

    def each(self, name, *arguments, by_rank=None):
        """Have all ranks do something at once, with other arguments ``by_rank``, and return their results by rank."""
        for rank in self.alive:
            self.job.tell(rank, (name, *(arguments if by_rank is None else by_rank[rank])))
        return {rank: self.job.heard(rank) for rank in self.alive}

    def only(self, rank, name, *arguments):
        self.job.tell(rank, (name, *arguments))
        return self.job.heard(rank)

    def open(self, name, folder, mesh, **options):
        self.each("open", name, str(folder), mesh, options)

    def leader(self, ranks):
        """Return the rank that reads for others."""
        (leader,) = [rank for rank in ranks if rank in self.alive and self.only(rank, "figures")[1] == 0]
        return leader

    def kill(self, rank):
        self.job.kill(rank)
        self.alive.remove(rank)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    words = ["a" * int(n) for n in rng.integers(0, 40, ROWS)]
    x = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(WIDTH * ROWS, np.float32)), WIDTH)
    rows = {"x": x, "text": words}
    pq.write_table(pa.table(rows), folder / "rows.parquet", compression="zstd", row_group_size=25)
    tokens = [rng.integers(0, 99, n).astype(np.int32) for n in rng.integers(300, 6000, 300)]
    pq.write_table(pa.table({"tokens": tokens}), folder / "documents.parquet", compression="zstd", row_group_size=50)
    return str(folder)


@pytest.fixture(scope="module")
def team():
    with Job(serve, 4, patient=True) as job:
        yield Team(job)


@pytest.fixture
def mortal_team():
    with Job(serve, 4, patient=False) as job:
        yield Team(job)


def alone(name, folder, mesh, **options):
    """Return by rank a source that reads for itself."""
    shares = {"dp tp": lambda rank: (rank // 2, 2), "tp": lambda _: (0, 1)}
    if "cp" not in mesh:
        return {rank: opened(name, folder, shares[mesh](rank), **options) for rank in range(4)}
    sources = {}
    for rank in range(4):
        with as_rank(rank, 4):
            own = init_device_mesh("cpu", MESHES[mesh], mesh_dim_names=mesh.split())
            sources[rank] = opened(name, folder, fl.Partition(own, cut="zigzag"), **options)
    return sources


def assert_same_to_the_end(team, sources, size):
    steps = 0
    while True:
        expected = {rank: content(sources[rank].next_minibatch(size)) for rank in team.alive}
        assert team.each("next", size) == expected
        if None in expected.values():
            assert set(expected.values()) == {None}
            return steps
        steps += 1


GROUPS = {"dp tp": ((0, 1), (2, 3)), "dp cp": ((0, 1), (2, 3)), "tp": ((0, 1, 2, 3),), "cp": ((0, 1, 2, 3),)}


@pytest.mark.parametrize(
    ("name", "mesh", "size", "end"),
    [
        ("rows", "dp tp", 20, {"max_sweeps": 2}),
        ("rows", "tp", 40, {"max_sweeps": 2}),
        ("pictures", "dp tp", 12, {"max_sweeps": 2}),
        ("pictures", "tp", 8, {"max_sweeps": 2}),
        ("documents", "dp cp", 20 * ROW, {"max_samples": 200 * ROW}),
        ("documents", "cp", 10 * ROW, {"max_samples": 100 * ROW}),
    ],
)
def test_one_rank_reads_for_its_group(team, folder, name, mesh, size, end):
    team.open(name, folder, mesh, **end)
    steps = assert_same_to_the_end(team, alone(name, folder, mesh, **end), size)
    figures = team.each("figures")
    for group in GROUPS[mesh]:
        leader = team.leader(group)
        assert figures[leader][2] + figures[leader][3] > 0
        for rank in set(group) - {leader}:
            assert figures[rank] == (steps, steps, 0, 0.0, 0)


def test_one_rank_reads_for_the_loaders_of_its_group(team):
    results = team.each("load_epochs", "dp tp")
    for group in GROUPS["dp tp"]:
        corpus = Counted()
        expected = loader(corpus, (group[0] // 2, 2))
        batches = [batch["x"][:, 0].tolist() for _ in range(2) for batch in expected]
        assert [results[rank][0] for rank in group] == [batches, batches]
        assert sum(results[rank][1] for rank in group) == corpus.reads  # one of them reads in each epoch


def test_a_source_continues_from_the_state_of_another_rank(team, folder):
    for name, size in (("rows", 20), ("pictures", 12)):
        sources = alone(name, folder, "dp tp", max_sweeps=2)
        team.open(name, folder, "dp tp", max_sweeps=2)
        for _ in range(4):
            team.each("next", size)
            for source in sources.values():
                source.next_minibatch(size)
        state = team.only(2, "state")
        team.each("close")
        team.open(name, folder, "dp tp", max_sweeps=2)
        team.each("load", state)
        assert_same_to_the_end(team, sources, size)
        assert sum(figures[1] > 0 for figures in team.each("figures").values()) == 2


def test_ranks_that_read_in_step_or_not_get_what_they_would_alone(team, folder):
    rng = np.random.default_rng(11)
    for _ in range(examples(2)):
        name = ("rows", "pictures")[rng.integers(2)]
        sources = alone(name, folder, "tp")
        team.open(name, folder, "tp")
        for _ in range(20):
            kind = rng.choice(["same", "same", "same", "size", "seek", "seek apart", "one"])
            size = int(rng.integers(1, 40))
            sizes = dict.fromkeys(range(4), size)
            if kind == "size":
                sizes[int(rng.integers(4))] = int(rng.integers(1, 40))
            if kind == "seek":
                place = int(rng.integers(0, 200))
                team.each("seek", place)
                for source in sources.values():
                    source.seek(samples=place)
            if kind == "seek apart":
                rank, place = int(rng.integers(4)), int(rng.integers(0, 200))
                team.only(rank, "seek", place)
                sources[rank].seek(samples=place)
            expected = {rank: content(sources[rank].next_minibatch(n)) for rank, n in sizes.items()}
            assert team.each("next", by_rank={rank: (n,) for rank, n in sizes.items()}) == expected
        team.each("close")


def test_a_rank_that_lags_or_is_ahead_gets_what_it_would_alone(team, folder):
    sources = alone("rows", folder, "tp")
    team.open("rows", folder, "tp", read_ahead=0)
    assert team.each("next", 20) == {rank: content(source.next_minibatch(20)) for rank, source in sources.items()}
    leader = team.leader(range(4))
    late = next(rank for rank in range(4) if rank != leader)
    for _ in range(25):
        assert team.only(leader, "next", 20) == content(sources[leader].next_minibatch(20))
    for _ in range(20):
        assert team.only(late, "next", 20) == content(sources[late].next_minibatch(20))
    minibatches, shared, *_ = team.only(late, "figures")
    assert shared < minibatches
    place = sources[leader].position.samples
    team.each("seek", place)
    for source in sources.values():
        source.seek(samples=place)
    for _ in range(40):  # it asks again after a while
        assert team.each("next", 20) == {rank: content(source.next_minibatch(20)) for rank, source in sources.items()}
    assert team.only(late, "figures")[1] > shared


def test_small_minibatches_are_not_worth_sharing(team, folder):
    sources = alone("pictures", folder, "tp")
    team.open("pictures", folder, "tp")
    for _ in range(6):
        assert team.each("next", 2) == {rank: content(source.next_minibatch(2)) for rank, source in sources.items()}
    assert {figures[1] for figures in team.each("figures").values()} == {0}


def test_minibatches_that_are_kept_stay_what_they_were(team, folder):
    team.open("pictures", folder, "tp")
    delivered = [team.each("keep", 9) for _ in range(24)]
    assert all(len(set(map(repr, step.values()))) == 1 for step in delivered)
    for rank, kept in team.each("kept_content").items():
        assert kept == [step[rank] for step in delivered]
    assert sum(figures[1] == 24 for figures in team.each("figures").values()) == 3


def test_a_rank_may_change_its_minibatch(team, folder):
    sources = alone("pictures", folder, "tp")
    team.open("pictures", folder, "tp")
    for _ in range(8):
        expected = content(sources[0].next_minibatch(10))
        for rank in (0, 1, 2, 3):
            assert team.only(rank, "next", 10) == expected
            team.only(rank, "spoil")
    assert sum(figures[1] == 8 for figures in team.each("figures").values()) == 3


def test_functions_of_the_user_run_on_every_rank(team, folder):
    team.open("rows", folder, "tp", **{"by rank": True})
    sources = {
        rank: opened("rows", folder, (0, 1), transforms=[lambda s, rank=rank: {"x": s["x"] + rank}])
        for rank in range(4)
    }
    for _ in range(5):
        expected = {rank: content(source.next_minibatch(8)) for rank, source in sources.items()}
        assert team.each("next", 8) == expected
    assert sum(figures[1] == 5 for figures in team.each("figures").values()) == 3


def test_damage_is_listed_or_raised_by_every_rank(team, folder, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    options = {"max_sweeps": 1, "shuffle": False}
    sources = {
        rank: opened("broken pictures", folder, (0, 1), on_error=fl.Quarantine(own / f"{rank}.jsonl"), **options)
        for rank in range(4)
    }
    team.open("broken pictures", folder, "tp", quarantine=str(tmp_path), **options)
    assert_same_to_the_end(team, sources, 5)
    for rank in range(4):
        assert (tmp_path / f"{rank}.jsonl").read_text() == (own / f"{rank}.jsonl").read_text()
    assert sorted(figures[1] for figures in team.each("figures").values()) == [0, 11, 11, 11]

    team.open("broken pictures", folder, "tp", **options)
    assert len(set(map(repr, team.each("next", 5).values()))) == 1
    for _ in range(2):  # the position stays
        assert set(team.each("next", 5).values()) == {"DataError"}


def test_a_group_changes_in_mid_run(team, folder):
    whole, halves = alone("rows", folder, "tp"), alone("rows", folder, "dp tp")
    team.open("rows", folder, "tp")
    for _ in range(3):
        assert team.each("next", 16) == {rank: content(source.next_minibatch(16)) for rank, source in whole.items()}
    team.each("repartition", "dp tp")
    for rank, source in halves.items():
        source.load_state_dict(whole[rank].state_dict())
    for _ in range(5):
        assert team.each("next", 16) == {rank: content(source.next_minibatch(16)) for rank, source in halves.items()}
    figures = team.each("figures")
    assert all(max(figures[rank][1] for rank in group) >= 5 for group in GROUPS["dp tp"])


def test_a_leader_that_closes_leaves_the_others_to_read(team, folder):
    sources = alone("pictures", folder, "tp")
    team.open("pictures", folder, "tp")
    assert team.each("next", 6) == {rank: content(source.next_minibatch(6)) for rank, source in sources.items()}
    leader = team.leader(range(4))
    team.only(leader, "close")
    rest = [rank for rank in range(4) if rank != leader]
    before = {rank: team.only(rank, "figures")[1] for rank in rest}
    for _ in range(5):
        for rank in rest:
            team.job.tell(rank, ("next", 6))
        assert {rank: team.job.heard(rank) for rank in rest} == {
            rank: content(sources[rank].next_minibatch(6)) for rank in rest
        }
    gained = sorted(team.only(rank, "figures")[1] - before[rank] for rank in rest)
    assert gained == [0, 5, 5]


def test_a_forked_child_reads_its_copy(team, folder):
    sources = alone("pictures", folder, "tp")
    team.open("pictures", folder, "tp")
    for _ in range(4):
        assert team.each("next", 6) == {rank: content(source.next_minibatch(6)) for rank, source in sources.items()}
        assert set(team.each("in_child", 6).values()) == {0}
    assert sum(figures[1] == 4 for figures in team.each("figures").values()) == 3


def test_an_interrupted_wait_leaves_the_position(team, folder):
    sources = alone("pictures", folder, "tp")
    team.open("pictures", folder, "tp")
    assert team.each("next", 6) == {rank: content(source.next_minibatch(6)) for rank, source in sources.items()}
    leader = team.leader(range(4))
    late = next(rank for rank in range(4) if rank != leader)
    team.job.tell(late, ("next", 6))  # the leader does not read
    time.sleep(0.5)
    team.job.kill(late, signal.SIGINT)
    assert team.job.heard(late) == "KeyboardInterrupt"
    for _ in range(3):
        assert team.each("next", 6) == {rank: content(source.next_minibatch(6)) for rank, source in sources.items()}


def test_ranks_that_die_or_stop_leave_the_others_to_read(mortal_team, folder):
    team = mortal_team
    sources = {name: alone(name, folder, "tp") for name in ("pictures", "rows")}
    for name in sources:
        team.open(name, folder, "tp")

        def step(name=name):
            expected = content(sources[name][0].next_minibatch(10))
            assert team.each("next", 10) == dict.fromkeys(team.alive, expected)

        step()
        leader = team.leader(team.alive)
        team.kill(leader if name == "pictures" else next(rank for rank in team.alive if rank != leader))
        for _ in range(4):
            step()
    stopped = team.leader(team.alive)
    (other,) = [rank for rank in team.alive if rank != stopped]
    team.job.kill(stopped, signal.SIGSTOP)
    with contextlib.ExitStack() as stack:
        stack.callback(team.job.kill, stopped, signal.SIGCONT)
        for _ in range(3):
            assert team.only(other, "next", 10) == content(sources["rows"][0].next_minibatch(10))
