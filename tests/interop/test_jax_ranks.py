"""Global arrays of several processes of JAX, on CPU devices, over loopback."""

from __future__ import annotations

import functools
import os

import numpy as np
import pytest

import feedline as fl
from tests import ranks
from tests.laws.items import Plain

pytestmark = pytest.mark.frameworks("jax")

#: Devices of each process.
DEVICES = 2
LENGTHS = np.random.default_rng(0).integers(1, 9, 64)
ROWS = {"x": np.arange(256, dtype=np.float32).reshape(64, 4), "y": np.arange(64, dtype=np.int32)}
WORDS = [np.full(n, i + 1, np.int32) for i, n in enumerate(LENGTHS)]

#: For a number of processes: the shape of a mesh, its axes, the spec of a batch, and the share of each process, or the
#: error.
MESHES = {
    2: [
        ((4,), "data", ("data",), [(0, 2), (1, 2)]),
        ((4,), "data", (), "expected partition=(0, 1) of this process, as P() over a mesh of data: 4 divides"),
        ((4,), "model", (), [(0, 1), (0, 1)]),
        ((2, 2), "data model", ("data",), [(0, 2), (1, 2)]),
        ((2, 2), "data model", ("data", "model"), [(0, 2), (1, 2)]),
        ((2, 2), "model data", ("data",), [(0, 1), (0, 1)]),
        ((2, 2), "model data", ("data", "model"), [(0, 1), (0, 1)]),
        ((2, 2), "fsdp data", (("fsdp", "data"),), [(0, 2), (1, 2)]),
        ((2, 2), "fsdp data", (("data", "fsdp"),), "to hold one block of the batch, got parts ["),
        ((4, 1), "data model", ("data", "model"), [(0, 2), (1, 2)]),
    ],
    4: [
        ((8,), "batch", ("batch",), [(0, 4), (1, 4), (2, 4), (3, 4)]),
        ((4, 2), "data model", ("data",), [(0, 4), (1, 4), (2, 4), (3, 4)]),
        ((2, 4), "data model", ("data", "model"), [(0, 2), (0, 2), (1, 2), (1, 2)]),
        ((2, 4), "model data", ("data", "model"), [(0, 2), (1, 2), (0, 2), (1, 2)]),
        ((4, 2), "model data", ("data",), [(0, 1)] * 4),
        ((2, 4), "data context", ("data", "context"), [(0, 2), (0, 2), (1, 2), (1, 2)]),
        ((2, 2, 2), "fsdp data model", (("fsdp", "data"), "model"), [(0, 4), (1, 4), (2, 4), (3, 4)]),
        ((2, 2, 2), "fsdp model data", (("fsdp", "data"),), [(0, 2), (0, 2), (1, 2), (1, 2)]),
        ((2, 2, 2), "model data fsdp", (("data", "fsdp"),), [(0, 2), (1, 2), (0, 2), (1, 2)]),
    ],
}


def join(rank):
    """Join the processes of a job."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    jax.distributed.initialize(f"127.0.0.1:{os.environ['MASTER_PORT']}", int(os.environ["WORLD_SIZE"]), rank)


def ending_together(function):
    """Let no process of a job end before the others: JAX ends those that lose the first one."""

    @functools.wraps(function)
    def in_job(rank, **settings):
        import jax

        try:
            return function(rank, **settings)
        finally:
            jax.distributed.shutdown()

    return in_job


def sharding_of(shape, axes, spec):
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    return NamedSharding(Mesh(np.array(jax.devices()).reshape(shape), tuple(axes.split())), PartitionSpec(*spec))


def rows_source(partition, count=64, **options):
    corpus = fl.ArrayDeserializer(**{name: rows[:count] for name, rows in ROWS.items()})
    return fl.MinibatchSource(corpus, seed=3, max_sweeps=1, partition=partition, **options)


def words_source(partition, **options):
    corpus = fl.ArrayDeserializer(word=WORDS, label=np.arange(64))
    return fl.MinibatchSource(corpus, seed=3, max_sweeps=1, partition=partition, **options)


def same(arrays, expected):
    """Return whether global arrays are these arrays, by all parts on devices of this process."""
    if isinstance(expected, dict):
        return arrays.keys() == expected.keys() and all(same(arrays[name], expected[name]) for name in expected)
    return arrays.shape == expected.shape and all(
        np.array_equal(shard.data, expected[shard.index]) for shard in arrays.addressable_shards
    )


def error_of(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


@ending_together
def in_all_meshes(rank, meshes):
    """Return for each mesh: the share, and whether three minibatches and two batches are the single process's,
    or the error."""
    join(rank)
    said = []
    for shape, axes, spec, _ in meshes:
        sharding = sharding_of(shape, axes, spec)
        # Each process gets whole sequences, which JAX cuts along the context.
        roles = {"context": "model"} if "context" in axes else None
        partition = fl.Partition(sharding.mesh, roles=roles)
        source, alone, share = rows_source(partition), rows_source((0, 1)), partition.share()
        loader = fl.DataLoader(
            (ROWS["x"], ROWS["y"]),
            batch_size=16 // share[1],
            shuffle=True,
            seed=4,
            partition=partition,
            device=sharding,
        )
        plain = fl.DataLoader((ROWS["x"], ROWS["y"]), batch_size=16, shuffle=True, seed=4)
        outcome = []

        def compare(outcome=outcome, source=source, alone=alone, loader=loader, plain=plain, sharding=sharding):
            for _ in range(3):
                arrays, whole = source.next_minibatch(16).jax(sharding), alone.next_minibatch(16)
                outcome.append(same(arrays, {name: whole[name].rows for name in ROWS}))
            for _, batch, (x, y) in zip(range(2), loader, plain, strict=False):
                outcome.append(same(batch[0], x.numpy()) and same(batch[1], y.numpy()))

        said.append((share, outcome, error_of(compare)))
    return said


@pytest.mark.parametrize("world", MESHES)
def test_global_arrays_are_the_minibatches_of_a_single_process(world):
    for rank, said in enumerate(ranks.run(in_all_meshes, world, meshes=MESHES[world])):
        for (shape, axes, spec, shares), (share, outcome, error) in zip(MESHES[world], said, strict=True):
            where = shape, axes, spec, rank
            if isinstance(shares, str):
                assert error.startswith("ValueError: "), where
                assert shares in error, where
            else:
                assert (share, outcome, error) == (shares[rank], [True] * 5, None), where


def by_data(axes="data"):
    """Return a sharding of the first axis over all devices."""
    import jax

    return sharding_of((len(jax.devices()),), axes, (axes,))


def sum_of_all(number):
    """Return the sum over all processes, which each of them waits for."""
    from jax.experimental.multihost_utils import process_allgather

    return int(process_allgather(np.int32(number)).sum())


@ending_together
def to_the_end(rank, count, size):
    """Train on ``count`` rows, and leave out what cannot be divided. Return the sequences of each share, the errors,
    the sum of the rows, and the steps of all processes."""
    join(rank)
    import jax

    sharding = by_data()
    add = jax.jit(lambda total, batch: total + batch["x"].sum())
    total, owned, errors = 0.0, [], []
    for minibatch in rows_source(sharding.mesh, count).minibatches(size):
        owned.append(minibatch.num_sequences)
        try:
            batch = minibatch.jax(sharding)
        except ValueError as error:
            errors.append(str(error))
        else:
            total = add(total, batch)
    return owned, errors, float(total), sum_of_all(len(owned))


@pytest.mark.parametrize(("world", "count", "last", "shares"), [(2, 17, 1, [1, 0]), (4, 18, 2, [1, 0, 1, 0])])
def test_processes_end_together(world, count, last, shares):
    """A batch that cannot be divided, of which a share may be empty, is refused in all processes."""
    trained = rows_source((0, 1), count)
    expected = sum(trained.next_minibatch(8)["x"].rows.sum() for _ in range(2))
    axis = f"expected a batch that `data` of size {world * DEVICES} divides, got {last} sequences: choose a size"
    for rank, (owned, errors, total, steps) in enumerate(ranks.run(to_the_end, world, count=count, size=8)):
        assert owned == [8 // world] * 2 + [shares[rank]]
        assert [error.startswith(axis) for error in errors] == [True]
        assert (total, steps) == (expected, world * 3)


@ending_together
def what_is_refused(rank):
    """Return the errors of batches that cannot be global arrays, by name."""
    join(rank)
    import jax
    from jax.sharding import SingleDeviceSharding

    sharding, mesh = by_data(), by_data().mesh
    word = {"word": sharding}

    class Own(fl.UserMinibatchSource):
        schema = fl.Schema({"x": fl.Stream(())})
        partition = mesh

        def make_minibatch(self, num_samples, number_of_workers, worker_rank, device):
            return {"x": np.zeros(num_samples // number_of_workers, np.float32)}

    def first(**options):
        return next(iter(fl.DataLoader(device=sharding, **options)))

    long = 10 if rank else 8
    remote = next(device for device in jax.devices() if device.process_index != rank)
    batch = rows_source(mesh).next_minibatch(8)
    context = sharding_of((2, 2), "context data", ("data", "context"))
    packed = fl.Packed(fl.ArrayDeserializer(word=WORDS), row=16)
    own = {"partition": context.mesh, "device": context}
    calls = {
        "cut": lambda: fl.MinibatchSource(packed, partition=context.mesh).next_minibatch(64).jax({"word": context}),
        "cut batch": lambda: next(
            iter(fl.DataLoader(packed, batch_size=4, collate_fn=lambda rows: [np.zeros(4)], **own))
        ),
        "whole": lambda: rows_source((0, 1)).next_minibatch(8).jax(sharding),
        "other mesh": lambda: rows_source((rank, 2)).next_minibatch(8).jax(by_data("model")),
        "indivisible": lambda: rows_source(mesh).next_minibatch(10).jax(sharding),
        "unequal": lambda: words_source(mesh).next_minibatch(60).jax(word, {"word": 8}),
        "ragged": lambda: words_source(fl.Partition(mesh, balance=np.ones_like)).next_minibatch(48).jax(word),
        "lanes": lambda: rows_source(mesh, truncation_length=4).next_minibatch(64).jax(sharding),
        "cntk": lambda: rows_source(mesh, filling="cntk", shuffle=False).next_minibatch(8).jax(sharding),
        "own": lambda: Own().next_minibatch(8).jax(sharding),
        "part": lambda: next(batch.parts(2)).jax(sharding),
        "no stream": lambda: batch.jax({"z": sharding}),
        "not to pad": lambda: batch.jax(sharding, {"z": 3}),
        "elsewhere": lambda: batch.jax(SingleDeviceSharding(remote)),
        "ended": lambda: fl.Minibatch.end(batch.schema, batch.position).jax(sharding),
        "no partition": lambda: first(dataset=ROWS, batch_size=8),
        "sampler": lambda: first(dataset=Plain(64), batch_size=8, sampler=range(64)),
        "batch size": lambda: first(dataset=ROWS, batch_size=3, partition=mesh),
        "last": lambda: list(fl.DataLoader({"x": ROWS["x"][:17]}, batch_size=4, partition=mesh, device=sharding)),
        "by length": lambda: first(
            dataset=[np.zeros(n) for n in LENGTHS], batch_sampler=fl.BatchByLength(60, LENGTHS), partition=mesh
        ),
        "ragged corpus": lambda: first(dataset=fl.ArrayDeserializer(word=WORDS), batch_size=4, partition=mesh),
        "collated": lambda: first(
            dataset=Plain(64), batch_size=4, partition=mesh, collate_fn=lambda items: np.zeros((long, 2))
        ),
    }
    return {name: error_of(call) for name, call in calls.items()}


REFUSED = {
    "cut": "ValueError: expected whole sequences, got them cut in 2: give the dimension that cuts them the role",
    "cut batch": "ValueError: expected whole sequences, got them cut in 2: give the dimension that cuts them the role",
    "whole": "ValueError: expected partition=({rank}, 2) of this process, as P('data',) over a mesh of "
    "data: 4 divides the batch, got (0, 1): pass partition=mesh",
    "other mesh": None,
    "indivisible": "ValueError: expected a batch that `data` of size 4 divides, got 10 sequences: choose a size that",
    "unequal": "ValueError: expected shares with as many sequences each for P('data',) over a mesh of data: "
    "4, got [8, 6]: a source divides samples. Use a DataLoader",
    "ragged": "ValueError: expected a padded length of the ragged stream word, got none: each process knows only its "
    'own sequences. Write minibatch.jax(sharding, pad_to={"word": length})',
    "lanes": "ValueError: expected a batch of which this process knows the sizes of all shares",
    "cntk": "ValueError: expected a batch of which this process knows the sizes of all shares",
    "own": "ValueError: expected a batch of which this process knows the sizes of all shares",
    "part": "ValueError: expected a batch of which this process knows the sizes of all shares",
    "no stream": "ValueError: expected streams of numbers, x, y, got z",
    "not to pad": "ValueError: expected streams of numbers, x, y, got z",
    "elsewhere": "TypeError: expected a NamedSharding over several processes, got SingleDeviceSharding",
    "ended": "ValueError: expected a minibatch, got the end of the source",
    "no partition": "ValueError: expected partition=({rank}, 2) of this process",
    "sampler": "ValueError: expected partition=({rank}, 2) of this process",
    "batch size": "ValueError: expected a batch that `data` of size 4 divides, got 6 sequences",
    "last": "ValueError: expected a batch that `data` of size 4 divides, got 1 sequences: choose a size that is a "
    "multiple, and leave out what remains at the end, with drop_last=True",
    "by length": "ValueError: expected a batch of which this process knows the sizes of all shares",
    "ragged corpus": "ValueError: expected a padded length of the ragged stream word, got none",
    "collated": "ValueError: expected the 4 sequences of this share along the first axis, got shape ({long}, 2)",
}


def test_what_cannot_be_a_global_array_is_refused():
    for rank, errors in enumerate(ranks.run(what_is_refused, 2)):
        texts = {"{rank}": str(rank), "{long}": str(10 if rank else 8)}
        expected = {}
        for name, error in REFUSED.items():
            for key, text in texts.items():
                error = error and error.replace(key, text)
            expected[name] = error
        assert {name: error and error[: len(expected[name])] for name, error in errors.items()} == expected


@ending_together
def ragged_and_packed(rank):
    """Return whether global arrays of ragged and packed sequences are those of a single process."""
    join(rank)
    sharding = by_data()
    # By their squares, the first rank gets sequences 0 and 1, and the second 2 and 3.
    lengths = [9, 1, 1, 9] * 8
    corpus = fl.ArrayDeserializer(
        word=[np.full(n, i, np.int32) for i, n in enumerate(lengths)], label=np.arange(32, dtype=np.int32)
    )
    balanced, alone = (
        fl.MinibatchSource(corpus, shuffle=False, partition=fl.Partition(partition, balance="squares"))
        for partition in (sharding.mesh, (0, 1))
    )
    said = []
    for _ in range(3):
        arrays, whole = balanced.next_minibatch(20).jax(sharding, {"word": 12}), alone.next_minibatch(20)
        padded = {"word": whole["word"].padded(length=12), "label": whole["label"].rows}
        said.append(same(arrays, {**padded, "lengths": {"word": np.array(lengths[:4])}}))
    rows = fl.Packed(fl.ArrayDeserializer(word=WORDS), row=16)
    share, whole = (
        fl.MinibatchSource(rows, seed=2, partition=partition).next_minibatch(8 * 16)
        for partition in (sharding.mesh, (0, 1))
    )
    names = ("word", "labels", "segment", "positions")
    arrays = share.jax(dict.fromkeys(names, sharding), dict.fromkeys(names, 16))
    expected = {name: whole[name].padded() for name in names}
    said.append(same(arrays, {**expected, "lengths": dict.fromkeys(names, np.full(8, 16))}))
    return said


def test_ragged_sequences_have_the_same_length_in_all_processes():
    assert ranks.run(ragged_and_packed, 2) == [[True] * 4] * 2


@ending_together
def loaders(rank, folder):
    """Return whether the batches of loaders are those of a single process, by kind of data."""
    join(rank)
    sharding = by_data()
    own = {"partition": sharding.mesh, "device": sharding}

    def pad(items):
        return [np.stack([np.pad(item["word"], (0, 10 - len(item["word"]))) for item in items])]

    def read(dataset, **options):
        batches = zip(
            fl.DataLoader(dataset, batch_size=4, seed=1, **own, **options),
            fl.DataLoader(dataset, batch_size=8, seed=1, **options),
            strict=True,
        )
        return [
            all(same(array, np.asarray(of_one)) for array, of_one in zip(leaves(batch), leaves(one), strict=True))
            for batch, one in batches
        ]

    begun = fl.DataLoader(ROWS, batch_size=4, shuffle=True, seed=2, **own)
    for _ in zip(range(3), begun, strict=False):
        state = begun.state_dict()
    resumed = fl.DataLoader(ROWS, batch_size=4, shuffle=True, seed=2, **own)
    resumed.load_state_dict(state)
    rest = list(fl.DataLoader(ROWS, batch_size=8, shuffle=True, seed=2))[3:]
    return {
        "store": read(folder, shuffle=True),
        "collated": read(fl.ArrayDeserializer(word=WORDS), collate_fn=pad, shuffle=True),
        "threads": read(Plain(64), num_workers=1, workers="thread", shuffle=True),
        "dropped": read(Plain(71), drop_last=True),
        "sparse": read(fl.ArrayDeserializer(hot=fl.Value.one_hot(np.arange(64) % 5, 5).to_scipy()), shuffle=True),
        "resumed": [same(batch["x"], one["x"].numpy()) for batch, one in zip(resumed, rest, strict=True)],
    }


def leaves(tree):
    """Return the arrays of a batch, sparse ones dense."""
    if isinstance(tree, (dict, list)):
        return [array for part in (tree.values() if isinstance(tree, dict) else tree) for array in leaves(part)]
    return [tree.to_dense() if hasattr(tree, "to_dense") else tree]


def test_batches_of_loaders_are_those_of_a_single_process(tmp_path):
    folder = str(tmp_path / "rows.store")
    fl.convert(fl.ArrayDeserializer(**ROWS), folder)
    for read in ranks.run(loaders, 2, folder=folder):
        steps = {"resumed": 5}
        assert read == {name: [True] * steps.get(name, 8) for name in read}


def in_one_process(rank):
    """Return what one process with several devices makes of a minibatch."""
    join(rank)
    import jax

    sharding = by_data()
    batch, words = rows_source((0, 1)).next_minibatch(8), words_source((0, 1)).next_minibatch(30)
    padded = {"word": words["word"].padded(), "label": words["label"].rows.astype(np.int32)}
    lengths = {"lengths": {"word": words["word"].lengths.astype(np.int32)}}
    texts = fl.ArrayDeserializer(text=np.array(["a", "bc"] * 4), n=np.arange(8, dtype=np.int32))
    (one,) = fl.DataLoader(Plain(8), batch_size=8, device=jax.devices()[1])
    return {
        "sharded": same(batch.jax(sharding), {name: batch[name].rows for name in ROWS}),
        "on one device": batch.jax(jax.devices()[1])["x"].devices() == {jax.devices()[1]},
        "by default": same(words.jax(), {**padded, **lengths}),
        "chosen": same(words.jax({"label": None}), {"label": padded["label"]}),
        "without text": sorted(fl.MinibatchSource(texts).next_minibatch(8).jax()) == ["n"],
        "loader": one.devices() == {jax.devices()[1]} and one.tolist() == list(range(8)),
        "indivisible": error_of(lambda: rows_source((0, 1)).next_minibatch(9).jax(sharding)),
        "called lengths": error_of(
            lambda: fl.MinibatchSource(fl.ArrayDeserializer(lengths=np.zeros(64), word=WORDS)).next_minibatch(9).jax()
        ),
    }


def test_one_process_needs_no_partition():
    (said,) = ranks.run(in_one_process, 1)
    assert said.pop("indivisible").startswith("ValueError: expected a batch that `data` of size 2 divides, got 9 seq")
    assert said.pop("called lengths").startswith("SchemaError: expected no stream `lengths` with ragged ones")
    assert said == dict.fromkeys(said, True)
