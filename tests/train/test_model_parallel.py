"""Sessions of ranks of which some read the same data: tensor-parallel ones, hybrid shards, groups."""

from __future__ import annotations

import functools

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline as fl  # noqa: E402
from feedline.train import (  # noqa: E402
    Adam,
    Evaluation,
    MomentumSGD,
    Saving,
    Trainer,
    TrainingSession,
    block_momentum,
    data_parallel,
    quantized,
)
from tests.ranks import run  # noqa: E402

HSDP = {"dp_replicate": 2, "dp_shard": 2}
FSDP_TP = {"dp_shard": 2, "tp": 2}
HSDP_TP = {"dp_replicate": 2, "dp_shard": 1, "tp": 2}
TP = {"dp": 1, "tp": 2}


class Model(torch.nn.Module):
    """A model of which tensor parallelism cuts two layers, and leaves one whole."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(6)
        self.body = torch.nn.Linear(6, 8)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, minibatch):
        return self.head(torch.tanh(self.body(self.norm(minibatch["x"].torch(layout="packed")))))


def losses(output, minibatch):
    return torch.nn.functional.cross_entropy(output, minibatch["y"].torch(layout="packed"), reduction="none")


def wrong(output, minibatch):
    return (output.argmax(1) != minibatch["y"].torch(layout="packed")).float()


def data(n=75):
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(k, 6)).astype("f4") for k in rng.integers(1, 5, n)]
    return fl.ArrayDeserializer(x=x, y=[one[:, :3].argmax(1) for one in x])


class Watch:
    """A reporter that records what a session tells of all ranks, and of its own updates."""

    def __init__(self, killed_after=None):
        self.left, self.together, self.own = killed_after, [], []

    def tell(self, summary):
        self.together.append([summary.samples, round(summary.loss, 3), round(summary.metric, 3)])

    def on_update(self, session, summary):
        self.own.append(summary.samples)
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt

    def on_progress(self, session, progress):
        self.tell(progress.summary)

    def on_test(self, session, what, result):
        self.tell(result.summary)

    def __getattr__(self, name):
        return lambda *arguments: None


def mesh_of(shape):
    return torch.distributed.device_mesh.init_device_mesh("cpu", tuple(shape.values()), mesh_dim_names=tuple(shape))


def parallel(model, mesh):
    """Cut a model among the ranks of ``tp``, and shard it among those of the other dimensions."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    if "tp" in mesh.mesh_dim_names:
        parallelize_module(model, mesh["tp"], {"body": ColwiseParallel(), "head": RowwiseParallel()})
    data_mesh = mesh[tuple(name for name in mesh.mesh_dim_names if name != "tp")]
    fully_shard(model.body, mesh=data_mesh)
    return fully_shard(model, mesh=data_mesh)


LEARNERS = {
    "adam": lambda p: Adam(p, 0.02),
    "clipped": lambda p: MomentumSGD(p, 0.1, 0.9, clip=0.05, clip_by="global_norm", l2=0.01),
}


def session_of(model, learner, watch, folder=None, max_sweeps=2, **options):
    class Source(fl.MinibatchSource):
        """A source that records what it delivers."""

        def next_minibatch(self, *arguments, **options):
            minibatch = super().next_minibatch(*arguments, **options)
            ids.append(minibatch.ids.tolist())
            return minibatch

    ids = []
    session = TrainingSession(
        Trainer(model, losses, wrong, learner),
        Source(data(), seed=3, max_sweeps=max_sweeps, **options),
        40,
        progress=fl.minibatches(3),
        reporters=[watch],
        saving=None if folder is None else Saving(folder, every=fl.minibatches(2)),
        validation=Evaluation(fl.MinibatchSource(data(17), max_sweeps=1, **options), every=fl.sweeps(1), size=4),
    )
    return session, ids


def whole(model):
    state = model.state_dict()
    return {name: (t.full_tensor() if hasattr(t, "full_tensor") else t).tolist() for name, t in state.items()}


def trains(rank, shape=None, learner="adam", folder=None, killed_after=None):
    if shape is not None:
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(1)
    model = Model()
    mesh = None if shape is None else mesh_of(shape)
    if mesh is not None:
        parallel(model, mesh)
    watch = Watch(killed_after)
    session, ids = session_of(model, LEARNERS[learner](model.named_parameters()), watch, folder)
    try:
        session.run()
    except KeyboardInterrupt:
        return None
    told = {"samples": session.samples, "together": watch.together, "state": whole(model)}
    return told, {"ids": ids, "own": watch.own}


@functools.cache
def one_process(learner):
    ((told, own),) = run(trains, 1, learner=learner)
    return told, own


def near(state, other):
    for name, values in other.items():
        np.testing.assert_allclose(state[name], values, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "learner", "readers"),
    [
        (HSDP, "clipped", [[0], [1], [2], [3]]),
        (FSDP_TP, "adam", [[0, 1], [2, 3]]),
        (FSDP_TP, "clipped", [[0, 1], [2, 3]]),
        (HSDP_TP, "adam", [[0, 1], [2, 3]]),
        (TP, "clipped", [[0, 1]]),
    ],
    ids=["hsdp", "fsdp tp", "fsdp tp clipped", "hsdp tp", "tp"],
)
def test_a_session_counts_the_samples_of_each_share_once(shape, learner, readers):
    ranks = run(trains, sum(map(len, readers)), shape=shape, learner=learner)
    expected, alone = one_process(learner)
    for told, _ in ranks:
        assert told["samples"] == expected["samples"]
        assert told["together"] == expected["together"]
        near(told["state"], expected["state"])
    for same in readers:
        assert all(ranks[r][1]["ids"] == ranks[same[0]][1]["ids"] for r in same)
        assert all(not any(ranks[r][1]["own"]) for r in same[1:])  # their running sums would count it again
    first = [ranks[same[0]][1] for same in readers]
    assert [sum(shares, []) for shares in zip(*(each["ids"] for each in first), strict=True)] == alone["ids"]
    assert [sum(counts) for counts in zip(*(each["own"] for each in first), strict=True)] == alone["own"]


@pytest.mark.parametrize("then", [FSDP_TP, HSDP, None], ids=["the same", "hsdp", "alone"])
def test_a_checkpoint_continues_in_any_mesh(then, tmp_path):
    assert run(trains, 4, shape=FSDP_TP, folder=str(tmp_path), killed_after=7) == [None] * 4
    ranks = run(trains, 1 if then is None else 4, shape=then, folder=str(tmp_path))
    expected, _ = one_process("adam")
    for told, _ in ranks:
        assert told["samples"] == expected["samples"]
        assert told["together"] == expected["together"][-len(told["together"]) :]
        near(told["state"], expected["state"])


TOGETHER = {
    "data_parallel": data_parallel,
    "quantized": functools.partial(quantized, bits=16),
    "block_momentum": functools.partial(block_momentum, block_size=80),
}


def in_groups(rank, way):
    """Train twins of a model, which ranks of ``tp`` would cut themselves: in the group, then in that of all ranks."""
    torch.distributed.init_process_group("gloo")
    mesh = mesh_of({"dp": 2, "tp": 2})
    answers = []
    for options in ({"group": mesh["dp"].get_group()}, {}):
        torch.manual_seed(1)
        model, watch = Model(), Watch()
        learner = TOGETHER[way](LEARNERS["clipped"](model.named_parameters()), **options)
        session, ids = session_of(model, learner, watch)
        try:
            session.run()
            answers.append(({"samples": session.samples, "together": watch.together, "state": whole(model)}, ids))
        except fl.StoreError as error:
            answers.append(str(error))
    return answers


@pytest.mark.parametrize("way", TOGETHER)
def test_strategies_sum_over_the_group_that_reads_different_data(way):
    ranks = run(in_groups, 4, way=way)
    expected, alone = one_process("clipped")
    for (told, _), refusal in ranks:
        assert told["samples"] == expected["samples"]
        if way != "block_momentum":  # which makes larger minibatches, and other updates
            assert [row[0] for row in told["together"]] == [row[0] for row in expected["together"]]
        if way == "data_parallel":
            assert told["together"] == expected["together"]
            near(told["state"], expected["state"])
        assert "share of its own for each rank of the strategy, got rank 0: (0, 2), rank 1: (0, 2)" in refusal
        assert 'group=mesh["dp"].get_group()' in refusal
    ids = [told[1] for told, _ in ranks]
    assert (ids[0], ids[2]) == (ids[1], ids[3])
    if way != "block_momentum":
        assert [a + b for a, b in zip(ids[0], ids[2], strict=True)] == alone["ids"]


def wrapped(rank, shares, sizes=None):
    """Train a model in DDP, each rank with its share of data of its own size."""
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(Model())
    trainer = Trainer(model, losses, None, LEARNERS["clipped"](model.named_parameters()))
    source = fl.MinibatchSource(data(sizes[rank] if sizes else 75), seed=3, max_sweeps=2, partition=shares[rank])
    try:
        session = TrainingSession(trainer, source, 40).run()
    except fl.StoreError as error:
        return str(error)
    return session.samples, whole(model.module)


def test_ranks_with_one_partition_count_once_without_a_mesh():
    expected, _ = one_process("clipped")
    for samples, state in run(wrapped, 4, shares=[(0, 2), (1, 2), (1, 2), (0, 2)]):
        assert samples == expected["samples"]
        near(state, expected["state"])


@pytest.mark.parametrize(
    ("shares", "sizes", "message"),
    [
        (
            [(0, 1), (0, 1)],
            [5, 6],
            "same data on ranks with the same partition (0, 1), got label samples rank 0: ",
        ),
        (
            [(0, 2), (1, 2), (0, 2)],
            None,
            "equally many ranks for each share, got (0, 2): ranks [0, 2], (1, 2): ranks [1]",
        ),
    ],
    ids=["other data", "uneven"],
)
def test_ranks_that_cannot_be_counted_are_refused(shares, sizes, message):
    for text in run(wrapped, len(shares), shares=shares, sizes=sizes):
        assert message in text
        assert "pass the mesh as partition=" in text


def cut_apart(rank):
    """Train a model in DDP, each rank with a cut of each sequence of its share."""
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(Model())
    mesh = mesh_of({"dp": 2, "cp": 2})
    x = [np.full((4 * k, 6), k, "f4") for k in range(1, 9)]
    corpus = fl.ArrayDeserializer(x=x, y=[one[:, :3].argmax(1) for one in x])
    partition = fl.Partition(mesh, cut=fl.Cut("contiguous", {"x": 0, "y": 0}))
    source = fl.MinibatchSource(corpus, seed=3, max_sweeps=1, partition=partition)
    trainer = Trainer(model, losses, None, LEARNERS["adam"](model.named_parameters()))
    return TrainingSession(trainer, source, 48).run().samples


def test_each_cut_of_a_sequence_counts():
    assert run(cut_apart, 4) == [4 * sum(range(1, 9))] * 4
