"""Additions of `DataLoader` to torch's: arguments, states, skipping, lengths, corpora, devices, figures."""

from __future__ import annotations

import copy
import gc
import itertools
import json
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline.feed.loader import order
from feedline.feed.loader.fetch import WorkUnit
from tests.effort import examples
from tests.feed.elsewhere import Elsewhere
from tests.laws.items import Plain, content
from tests.oracles import loader as twins
from tests.warm import Python

try:
    import torch
except ModuleNotFoundError:
    torch = None

needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed")


def flat(batches):
    return [int(value) for batch in batches for value in np.asarray(batch).reshape(-1)]


# ---- arguments ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"seed": -1}, ValueError, "seed"),
        ({"seed": 2**64}, ValueError, "seed"),
        ({"seed": True}, ValueError, "seed"),
        ({"workers": "fibre"}, ValueError, "workers"),
        ({"partition": (2, 2)}, ValueError, "partition"),
        ({"partition": "half"}, ValueError, "partition"),
        ({"partition": (0, 2), "batch_size": None}, ValueError, "batch_size"),
        ({"on_error": "ignore"}, ValueError, "on_error"),
        ({"on_error": Path("bad.jsonl")}, ValueError, "fl.Quarantine"),
        ({"batch_sampler": fl.BatchByLength(4)}, ValueError, "number of samples of each item"),
        ({"batch_sampler": fl.BatchByLength(lengths=[1] * 10)}, ValueError, "number of samples of each item"),
        ({"batch_sampler": fl.BatchByLength(4, [1] * 9)}, ValueError, "10 items"),
        ({"batch_sampler": fl.BatchByLength(4, [1.5] * 10)}, ValueError, "integers"),
        ({"batch_sampler": fl.BatchByLength(4, [-1] * 10)}, ValueError, "at least 0"),
        ({"batch_sampler": fl.BatchByLength(4, [1] * 10), "batch_size": 3}, ValueError, "either .* or batch_size"),
        ({"batch_sampler": fl.BatchByLength(4, [1] * 10), "sampler": [1]}, ValueError, "BatchByLength or sampler"),
        ({"sampler": fl.Weighted([1] * 9)}, ValueError, "10 items"),
        ({"sampler": fl.Weighted([0] * 10)}, ValueError, "not all of them 0"),
        ({"sampler": fl.Weighted([-1] + [1] * 9)}, ValueError, "at least 0"),
        ({"sampler": fl.Weighted([np.inf] + [1] * 9)}, ValueError, "finite"),
        ({"sampler": fl.Weighted([1] * 10), "shuffle": True}, ValueError, "fl.Weighted or shuffle"),
        ({"sampler": fl.Weighted([1] * 10), "batch_sampler": [[1]]}, ValueError, "fl.Weighted or batch_sampler"),
    ],
)
def test_refused(options, error, says):
    with pytest.raises(error, match=says):
        fl.DataLoader(Plain(10), **options)


class Endless:
    def __iter__(self):
        return iter(range(10**9))


@pytest.mark.parametrize("option", [{"partition": (0, 2)}, {"sampler": fl.Weighted([1])}, {"on_error": "skip"}])
def test_refused_for_iterables(option):
    with pytest.raises(ValueError, match=f"{next(iter(option))}.*IterableDataset|IterableDataset"):
        fl.DataLoader(Endless(), **option)


def test_a_dataset_without_a_length():
    class Bare:
        def __getitem__(self, index):
            return index

    with pytest.raises(TypeError, match=r"__len__.*Bare"):
        fl.DataLoader(Bare())
    assert flat(fl.DataLoader(Bare(), sampler=[4, 2])) == [4, 2]


# ---- order --------------------------------------------------------------------------------------------------


def test_the_order_matches_a_minibatch_source():
    """Over the same number of sequences in one chunk, sweep by sweep."""
    x = np.arange(1000)
    loader = fl.DataLoader(Plain(1000), batch_size=7, shuffle=True, seed=11)
    corpus = fl.ArrayDeserializer(x=x, chunk_sequences=1000)
    source = fl.MinibatchSource(corpus, seed=11, max_sweeps=2)
    ids = np.concatenate([minibatch.ids for minibatch in source]).tolist()
    assert flat(loader) + flat(loader) == ids


@pytest.mark.parametrize("n", [1, 5, 100])
def test_weighted_draws_equal_their_twin(n):
    weights = np.random.default_rng(n).random(n) * (np.arange(n) % 3 != 1)
    loader = fl.DataLoader(Plain(n), batch_size=n, sampler=fl.Weighted(weights), seed=6)
    for sweep in range(3):
        assert flat(loader) == twins.weighted(weights.tolist(), 6, sweep)


def test_weights_are_met():
    """Chi-square over 10^5 draws. An item of weight 0 never comes, and items beyond 2^24 do."""
    weights = np.array([0, 1, 2, 3, 0, 4.0])
    draws = order.WeightedItems(np.tile(weights, 20000), 1).take(0, 0, 120000) % 6
    counts = np.bincount(draws, minlength=6)
    expected = 120000 * weights / 10
    assert counts[weights == 0].tolist() == [0, 0]
    assert ((counts - expected)[weights > 0] ** 2 / expected[weights > 0]).sum() < 25  # 3 degrees of freedom: 1e-5

    late = np.zeros(2**24 + 9)
    late[-2] = 1.0
    assert set(order.WeightedItems(late, 1).take(0, 0, 50).tolist()) == {2**24 + 7}


def test_resuming_far_away_looks_at_nothing_before(monkeypatch):
    """Ten million items: only one segment of the order is computed, from the state on."""
    requests = []
    take = order.Items.take
    monkeypatch.setattr(order.Items, "take", lambda self, s, a, b: requests.append((self, a, b)) or take(self, s, a, b))
    loader = fl.DataLoader(Plain(10**7), batch_size=256, shuffle=True, seed=1)
    state = {**loader.state_dict(), "sequence": 9 * 10**6}
    loader.load_state_dict(state)
    first = next(iter(loader))
    assert flat([first]) == take(requests[0][0], 0, 9 * 10**6, 9 * 10**6 + 256).tolist()
    assert requests[0][1] == 9 * 10**6
    assert sum(b - a for _, a, b in requests) < 10**5


def test_each_pass_over_a_sampler_is_the_next_sweep():
    loader = fl.DataLoader(Plain(10), batch_size=4, shuffle=True, seed=2)
    sweeps = [flat(loader) for _ in range(5)]
    loader = fl.DataLoader(Plain(10), batch_size=4, shuffle=True, seed=2)
    assert len(loader.sampler) == 10
    assert list(loader.sampler) == sweeps[0]
    assert sum(loader.batch_sampler, []) == sweeps[1]
    assert flat(loader) == sweeps[2]
    assert list(map(len, loader.batch_sampler)) == [4, 4, 2]
    sampler = loader.sampler
    del loader
    gc.collect()
    assert list(sampler) == sweeps[4]


def test_a_state_follows_what_a_sampler_has_yielded():
    loader = fl.DataLoader(Plain(10), batch_size=4, shuffle=True, seed=2)
    expected = flat(loader)
    loader = fl.DataLoader(Plain(10), batch_size=4, shuffle=True, seed=2)
    indices = iter(loader.sampler)
    taken = [next(indices) for _ in range(7)]
    resumed = fl.DataLoader(Plain(10), batch_size=4, shuffle=True, seed=2)
    resumed.load_state_dict(loader.state_dict())
    assert taken + list(indices) == expected
    assert expected[:4] + flat(resumed) == expected  # of the batch it was in, nothing was delivered


def test_an_epoch_that_is_set_is_the_next_sweep():
    loader = fl.DataLoader(Plain(10), batch_size=4, shuffle=True, seed=2)
    sweeps = [flat(loader) for _ in range(4)]
    loader.sampler.set_epoch(1)
    assert loader.state_dict()["sweep"] == 1
    assert flat(loader) == sweeps[1]
    loader.sampler.set_epoch(2)
    assert flat(loader) == sweeps[2]
    iterator = iter(loader)
    first = flat([next(iterator)])
    loader.sampler.set_epoch(0)  # batches in flight are kept
    state = loader.state_dict()
    assert first + flat(iterator) == sweeps[3]
    assert flat(loader) == sweeps[0]
    loader.load_state_dict(state)
    loader.sampler.set_epoch(0)
    assert first + flat(loader) == sweeps[3]
    with pytest.raises(ValueError, match="epoch"):
        loader.sampler.set_epoch(-1)


@needs_torch
@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_has_the_epoch_of_a_users_sampler(workers):
    def loader():
        sampler = torch.utils.data.DistributedSampler(range(20), num_replicas=2, rank=1)
        return fl.DataLoader(Plain(20), batch_size=2, sampler=sampler, num_workers=workers)

    uninterrupted, resumed = loader(), loader()
    uninterrupted.sampler.set_epoch(3)
    expected = flat(uninterrupted)
    iterator = iter(uninterrupted)
    first = flat([next(iterator)])
    resumed.load_state_dict(uninterrupted.state_dict())
    assert first + flat(resumed) == expected
    resumed.load_state_dict(uninterrupted.state_dict())
    remaining = iter(resumed)
    resumed.sampler.set_epoch(3)  # as Lightning does, once workers have begun
    assert first + flat(remaining) == expected


@needs_torch
def test_batches_of_a_users_sampler_match_the_loader():
    def loader():
        return fl.DataLoader(Plain(20), batch_size=3, sampler=torch.utils.data.RandomSampler(range(20)), seed=5)

    expected, ours, later = loader(), loader(), loader()
    sweeps = [[batch.tolist() for batch in expected] for _ in range(3)]
    torch.rand(1)
    assert list(ours.batch_sampler) == sweeps[0]
    assert flat(ours) == [i for batch in sweeps[1] for i in batch]
    later.batch_sampler.set_epoch(2)
    assert list(later.batch_sampler) == sweeps[2]
    batches = iter(ours.batch_sampler)
    assert next(batches) == sweeps[2][0]
    resumed = loader()
    resumed.load_state_dict(ours.state_dict())
    assert [batch.tolist() for batch in resumed] == sweeps[2][1:]
    later.batch_sampler.sampler = range(20)  # as accelerate replaces it
    assert next(iter(later.batch_sampler)) == [0, 1, 2]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_is_true_however_epochs_are_set(workers):
    how = {"batch_size": 4, "shuffle": True, "seed": 2, "num_workers": workers}
    loader, resumed = fl.DataLoader(Plain(10), **how), fl.DataLoader(Plain(10), **how)
    sweeps = [flat(loader) for _ in range(4)]
    loader.sampler.set_epoch(3)
    iterator = iter(loader)
    first = flat([next(iterator)])
    for epoch in (0, 1):
        loader.sampler.set_epoch(epoch)
        resumed.load_state_dict(loader.state_dict())
        assert first + flat(resumed) == sweeps[3]
    assert first + flat(iterator) == sweeps[3]
    resumed.load_state_dict(loader.state_dict())
    assert flat(resumed) == flat(loader) == sweeps[1]


class Drawing(Plain):
    """Items and what an augmentation draws."""

    def __getitem__(self, index):
        return np.array([index, fl.sample_rng().random()])


@needs_torch
@pytest.mark.parametrize(("workers", "kind"), [(0, "process"), (2, "process"), (2, "thread")])
def test_a_generator_given_to_a_sampler_decides_what_samples_draw(workers, kind):
    """Also if the loader has workers already."""
    loader = fl.DataLoader(Drawing(12), batch_size=4, shuffle=True, num_workers=workers, workers=kind)
    list(loader)
    loader.sampler.generator = torch.Generator().manual_seed(7)
    plain = fl.DataLoader(Drawing(12), batch_size=4, shuffle=True)
    plain.sampler.generator = torch.Generator().manual_seed(7)
    plain.load_state_dict(loader.state_dict())
    for _ in range(2):
        for got, expected in zip(loader, plain, strict=True):
            np.testing.assert_array_equal(got, expected)


@needs_torch
def test_a_generator_given_to_a_sampler_decides_its_order():
    samplers = [fl.DataLoader(Plain(50), shuffle=True).sampler for _ in range(2)]
    for sampler in samplers:
        sampler.generator = torch.Generator().manual_seed(7)
    first = [list(sampler) for sampler in samplers]
    assert first[0] == first[1]
    assert sorted(first[0]) == list(range(50))
    assert list(samplers[0]) == list(samplers[1]) != first[0]
    samplers[0].generator.manual_seed(7)
    assert list(samplers[0]) == first[0]
    # The program names its epochs: each has the order of its name, from the generator as it was given.
    samplers[1].set_epoch(0)
    assert list(samplers[1]) == first[0]
    samplers[0].set_epoch(1)
    samplers[1].set_epoch(1)
    assert list(samplers[0]) == list(samplers[1]) != first[0]
    seeded = fl.DataLoader(Plain(50), shuffle=True, seed=1)
    expected = flat(fl.DataLoader(Plain(50), shuffle=True, seed=1))
    seeded.sampler.generator = torch.Generator()
    assert list(seeded.sampler) == expected


def test_a_collate_fn_without_empty_parts_is_reported():
    how = {"batch_size": 2, "partition": (2, 3), "collate_fn": lambda samples: samples[0]}
    assert list(fl.DataLoader(Plain(6), **how)) == [4]
    with pytest.raises(IndexError) as caught:
        list(fl.DataLoader(Plain(7), **how))
    assert "drop_last=True" in caught.value.__notes__[0]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("items", [1, 15, 16, 17, 20])
def test_a_partition_shows_in_the_samplers(items, drop_last):
    for rank in range(3):
        options = {"batch_size": 2, "shuffle": True, "seed": 1, "partition": (rank, 3), "drop_last": drop_last}
        expected = [batch.tolist() for batch in fl.DataLoader(Plain(items), **options)]
        loader = fl.DataLoader(Plain(items), **options)
        assert len(loader.sampler) == sum(map(len, expected))
        assert list(loader.batch_sampler) == [batch for batch in expected if batch]
        assert (loader.sampler.num_replicas, loader.sampler.rank) == (3, rank)


def test_a_dataset_that_grows_is_read_whole():
    data = [1, 2]
    loader = fl.DataLoader(data, seed=0)
    assert len(flat(loader)) == 2
    data.append(3)
    assert flat(loader) == [1, 2, 3]


@needs_torch
def test_partition_auto_finds_torch_distributed(tmp_path):
    script = """
        import sys, torch, feedline as fl
        torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=int(sys.argv[2]),
                                             world_size=2)
        torch.distributed.barrier()
        for partition in ("auto", None):
            loader = fl.DataLoader(list(range(8)), batch_size=2, partition=partition, seed=0)
            print([batch.tolist() for batch in loader])
    """
    running = [
        Python(
            ["-c", textwrap.dedent(script), str(tmp_path / "meet"), str(rank)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0].splitlines() for process in running]
    expected = "[[0, 1], [2, 3], [4, 5], [6, 7]]"
    assert outputs == [["[[0, 1], [4, 5]]", expected], ["[[2, 3], [6, 7]]", expected]]


# ---- state --------------------------------------------------------------------------------------------------


def test_a_state_is_a_few_numbers():
    loader = fl.DataLoader(Plain(50), batch_size=3, shuffle=True, seed=7)
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    assert loader.state_dict() == {
        "feedline": 1,
        "order": "feedline-1",
        "seed": "0000000000000007",
        "shuffle": "all",
        "items": 50,
        "sweep": 0,
        "sequence": 12,
    }


def test_with_several_iterators_the_state_is_the_newest_s():
    loader = fl.DataLoader(Plain(50), batch_size=3, seed=7)
    old, new = iter(loader), iter(loader)
    next(new)
    next(old), next(old)
    state = loader.state_dict()
    assert (state["sweep"], state["sequence"]) == (1, 3)
    list(old)
    assert loader.state_dict() == state


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seed": 8}, r"pass seed=7"),
        ({"shuffle": False}, "pass the same shuffle"),
        ({"sampler": fl.Weighted([1] * 50), "shuffle": None}, "dataset and sampler"),
        ({"sampler": [1, 2], "shuffle": None}, "sampler"),
        ({"dataset": Plain(49)}, "with as many items"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change, says):
    saved = fl.DataLoader(Plain(50), shuffle=True, seed=7)
    next(iter(saved))
    changed = fl.DataLoader(**{"dataset": Plain(50), "shuffle": True, "seed": 7, **change})
    before = changed.state_dict()
    with pytest.raises(fl.StateError, match=f"saved:[\\s\\S]*current:[\\s\\S]*{says}"):
        changed.load_state_dict(saved.state_dict())
    assert changed.state_dict() == before


@pytest.mark.parametrize(
    "damage",
    [
        {"sweep": -1},
        {"sequence": 51},
        {"sequence": "3"},
        {"sweep": None},
        {"delivered": [[1]]},
        {"sequence": 5, "delivered": [[2, 4]]},
    ],
)
def test_a_damaged_state_is_refused(damage):
    loader = fl.DataLoader(Plain(50), seed=7)
    with pytest.raises(fl.StateError, match="damaged"):
        loader.load_state_dict({**loader.state_dict(), **damage})
    for nothing in (None, {}, [1], {"feedline": 9}):
        with pytest.raises(fl.StateError):
            loader.load_state_dict(nothing)


def test_a_seed_that_was_drawn_matches_the_state():
    """A seed in use is not changed by a state that is refused."""
    first, second = (fl.DataLoader(Plain(50), batch_size=10, shuffle=True) for _ in range(2))
    iterator = iter(first)
    second.load_state_dict(first.state_dict())
    assert flat(second) == flat(iterator)
    assert first.state_dict()["seed"] is None  # of the next sweep, which has not begun
    third = fl.DataLoader(Plain(40), shuffle=True)
    next(iter(third))
    before = third.state_dict()
    with pytest.raises(fl.StateError, match="items"):
        third.load_state_dict(first.state_dict())
    assert third.state_dict() == before


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_goes_on_by_itself(copied):
    loader = fl.DataLoader(Plain(20), batch_size=4, shuffle=True, seed=3)
    iterator = iter(loader)
    next(iterator)
    twin = copied(loader)
    assert content(twin) == content(iterator)
    expected = flat(copied(twin))
    assert list(twin.sampler) == expected


@needs_torch
@pytest.mark.parametrize("given", [True, False])
def test_torch_s_random_samplers_are_replayed(given):
    """Their order is drawn when they begin, from their own generator or the global one."""

    def loader():
        generator = torch.Generator().manual_seed(4) if given else None
        sampler = torch.utils.data.RandomSampler(Plain(30), generator=generator)
        return fl.DataLoader(Plain(30), batch_size=4, sampler=sampler, seed=1)

    first = loader()
    list(first)
    iterator = iter(first)
    next(iterator), next(iterator)
    second = loader()
    torch.rand(7)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    remaining = flat(iterator)
    assert flat(second) == remaining
    assert flat(second) == flat(first)
    assert remaining != sorted(remaining)
    third = loader()
    third.load_state_dict(first.state_dict())
    assert flat(third) == flat(first)


# ---- unreadable items ---------------------------------------------------------------------------------------


def test_skipping_in_workers_and_single_items(tmp_path):
    for options in ({"num_workers": 2}, {"batch_size": None}, {"num_workers": 2, "workers": "thread"}):
        how = {"batch_size": 4, **options}
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        loader = fl.DataLoader(Plain(10, bad=[2, 4, 5, 6, 7]), on_error=fl.Quarantine(file), seed=0, **how)
        assert flat(loader) == [0, 1, 3, 8, 9]
        listed = [json.loads(line) for line in file.read_text().splitlines()]
        assert [line["sequence"] for line in listed] == [2, 4, 5, 6, 7]
        assert listed[0]["reason"] == "ValueError: planted in 2"
        assert loader.stats().skipped == 5


def test_too_many_to_skip(tmp_path):
    loader = fl.DataLoader(Plain(10, bad=[2, 4]), on_error=fl.Quarantine(tmp_path / "q", limit=1), batch_size=2)
    with pytest.raises(fl.DataError, match="at most 1"):
        list(loader)


def test_a_rank_without_a_readable_item_is_an_error(tmp_path):
    """Without a batch there the other ranks would wait for it."""
    loader = fl.DataLoader(Plain(10, bad=[2]), on_error=fl.Quarantine(tmp_path / "q"), batch_size=1, partition=(0, 2))
    with pytest.raises(fl.DataError, match="fall a step behind"):
        list(loader)


# ---- lengths ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1])
def test_padded_and_packed(workers):
    items = [{"t": np.arange(n, dtype=np.int32) + 10 * n, "y": n, "f": np.ones((n, 2), "f4")} for n in (2, 3, 1, 4)]
    how = {"num_workers": workers}
    padded = list(fl.DataLoader(items, batch_sampler=fl.BatchByLength(6, [2, 3, 1, 4]), **how))
    assert [batch["y"].tolist() for batch in padded] == [[2, 3, 1], [4]]
    assert padded[0]["t"].tolist() == [[20, 21, 0], [30, 31, 32], [10, 0, 0]]
    assert padded[0]["lengths"].tolist() == [2, 3, 1]
    assert padded[0]["f"].shape == (3, 3, 2)
    assert np.asarray(padded[0]["f"]).sum() == 12
    packed = list(fl.DataLoader(items, batch_sampler=fl.BatchByLength(6, [2, 3, 1, 4], "packed"), **how))
    assert packed[0]["t"].tolist() == [20, 21, 30, 31, 32, 10]
    assert packed[0]["f"].shape == (6, 2)
    assert packed[1]["lengths"].tolist() == [4]


def test_lone_arrays_and_empty_parts():
    items = [np.full(n, n) for n in (2, 3)]
    how = {"batch_sampler": fl.BatchByLength(3, [2, 3])}
    (first, _), (second, lengths) = fl.DataLoader(items, **how)
    assert (first.tolist(), second.tolist(), lengths.tolist()) == ([[2, 2]], [[3, 3, 3]], [3])
    parts = [list(fl.DataLoader(items, partition=(i, 3), **how)) for i in range(3)]
    assert [[len(batch[1]) for batch in part] for part in parts] == [[1], [1], [0]]
    ((rows, lengths),) = parts[2]
    assert (len(rows), rows.ndim) == (0, 2)


def test_the_number_of_batches_by_samples_matches_the_next_sweep():
    lengths = np.random.default_rng(1).integers(1, 9, 100)
    loader = fl.DataLoader(
        [np.zeros(n) for n in lengths], batch_sampler=fl.BatchByLength(13, lengths), shuffle=True, seed=1
    )
    counts = set()
    for _ in range(4):
        counts.add(len(loader))
        assert len(loader) == sum(1 for _ in loader)
    assert len(counts) > 1


# ---- corpora ------------------------------------------------------------------------------------------------


@pytest.fixture
def corpora(tmp_path):
    """The same 40 sequences as a store, CTF text and Parquet."""
    x, y = np.arange(80, dtype=np.float32).reshape(40, 2), np.arange(40, dtype=np.float32)
    fl.convert(fl.ArrayDeserializer(x=x, y=y.reshape(40, 1), chunk_sequences=16), tmp_path / "store")
    text = "".join(f"|x {a:g} {b:g} |y {label:g}\n" for (a, b), label in zip(x, y, strict=True))
    (tmp_path / "data.ctf").write_text(text)
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    import pyarrow as pa

    pq.write_table(pa.table({"x": x.tolist(), "y": y}), tmp_path / "data.parquet", row_group_size=16)
    return tmp_path


@pytest.mark.parametrize("name", ["store", "data.ctf", "data.parquet"])
def test_a_path_is_a_dataset(corpora, name):
    loader = fl.DataLoader(corpora / name, batch_size=7, shuffle=True, seed=3)
    assert len(loader) == 6
    batches = list(loader)
    labels = flat(batch["y"] for batch in batches)
    assert [len(batch["y"]) for batch in batches] == [7] * 5 + [5]
    assert sorted(labels) == list(range(40))
    assert labels != sorted(labels)
    for batch in batches:
        assert np.array_equal(np.asarray(batch["x"])[:, 0], 2 * np.asarray(batch["y"]).reshape(-1))
    again = fl.DataLoader(fl.open_corpus(corpora / name), batch_size=7, shuffle=True, seed=3)
    iterator = iter(again)
    assert flat(batch["y"] for batch in (next(iterator), next(iterator))) == labels[:14]
    another_loader = fl.DataLoader(corpora / name, batch_size=3, shuffle=True, seed=3)
    another_loader.load_state_dict(json.loads(json.dumps(again.state_dict())))
    for _ in iterator:
        ended = again.state_dict()
    assert (ended["sweep"], ended["sequence"]) == (0, 40)
    at_the_end = fl.DataLoader(corpora / name, batch_size=3, shuffle=True, seed=3)
    at_the_end.load_state_dict(ended)
    assert list(at_the_end) == []
    ended = again.state_dict()
    assert (ended["sweep"], ended["sequence"]) == (1, 0)
    assert flat(batch["y"] for batch in another_loader) == labels[14:]
    second = flat(batch["y"] for batch in another_loader)
    assert flat(batch["y"] for batch in at_the_end) == second
    assert second == flat(batch["y"] for batch in loader)
    assert second != labels


def test_the_order_of_a_corpus_matches_its_source(corpora):
    parts = [fl.DataLoader(corpora / "store", batch_size=3, partition=(i, 2), seed=1, shuffle=True) for i in range(2)]
    source = fl.MinibatchSource(fl.open_corpus(corpora / "store"), seed=1, max_sweeps=1)
    for first, second, undivided in zip(*parts, source.minibatches(6), strict=True):
        assert flat([first["y"], second["y"]]) == flat([undivided["y"].padded()])
    assert parts[0].state_dict() == parts[1].state_dict()
    dropping = fl.DataLoader(corpora / "store", batch_size=7, drop_last=True)
    assert len(dropping) == len(list(dropping)) == 5


def some_mixture(**options):
    corpora = {"a": fl.ArrayDeserializer(x=np.arange(40)), "b": fl.ArrayDeserializer(x=100 + np.arange(10))}
    return fl.Mixture(corpora, {"a": 3, "b": 1}, block=8, **options)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batches", [1, 5, 6, 7])
def test_a_mixture_resumes_in_a_loader(workers, batches):
    """Its sweep is longer than its corpora together."""

    def make():
        mixture = some_mixture(when_empty="drop", max_sweeps=3)
        return fl.DataLoader(mixture, batch_size=16, shuffle=True, seed=3, num_workers=workers)

    with fl.MinibatchSource(some_mixture(when_empty="drop", max_sweeps=3), seed=3, max_sweeps=2) as source:
        expected = [int(x) for minibatch in source.minibatches(1) for x in minibatch["x"].rows]
    loader = make()
    assert len(loader) == -(-150 // 16)
    values, taking = [], iter(loader)
    for _ in range(batches):
        values += [int(x) for x in next(taking)["x"]]
    restored = make()
    restored.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    for _ in range(2):
        values += [int(x) for batch in restored for x in batch["x"]]
    assert values == expected


@pytest.mark.parametrize("batches", [1, 7])
def test_a_mixture_without_end_in_a_loader(batches):
    """It has one sweep, which every loop continues, and no length."""

    def make():
        return fl.DataLoader(some_mixture(), batch_size=16, shuffle=True, seed=3)

    with fl.MinibatchSource(some_mixture(), seed=3, max_samples=16 * 40) as source:
        expected = [int(x) for minibatch in source.minibatches(1) for x in minibatch["x"].rows]
    loader = make()
    with pytest.raises(TypeError, match=r"expected a corpus that ends for a length, got mixture of a, b"):
        len(loader)
    values = []
    for _ in range(3):  # loops that are left
        values += [int(x) for batch in itertools.islice(loader, batches) for x in batch["x"]]
    restored = make()
    restored.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    values += [int(x) for batch in itertools.islice(restored, 2) for x in batch["x"]]
    values += [int(x) for batch in itertools.islice(restored, 2) for x in batch["x"]]
    assert values == expected[: len(values)]
    ranks = [fl.DataLoader(some_mixture(), batch_size=8, shuffle=True, seed=3, partition=(r, 2)) for r in range(2)]
    pairs = itertools.islice(zip(*ranks, strict=True), 4)
    assert [int(x) for pair in pairs for batch in pair for x in batch["x"]] == expected[:64]


def test_a_mixture_under_other_weights_is_refused_by_a_loader():
    """Later stages may be replaced, but not the ones that have begun, which a state has."""
    loader = fl.DataLoader(some_mixture(when_empty="stop"), batch_size=16, shuffle=True, seed=3)
    begun = iter(loader)
    next(begun)
    first_state = json.loads(json.dumps(loader.state_dict()))
    next(begun)
    two = loader.state_dict()
    options = {"when_empty": "stop"}
    staged = fl.DataLoader(some_mixture(stages=[(24, {"a": 1})], **options), batch_size=16, shuffle=True, seed=3)
    with pytest.raises(fl.StateError, match="other weights"):
        staged.load_state_dict(two)
    staged.load_state_dict(first_state)
    with fl.MinibatchSource(some_mixture(stages=[(24, {"a": 1})], **options), seed=3, max_sweeps=1) as source:
        expected = [int(x) for minibatch in source.minibatches(1) for x in minibatch["x"].rows]
    assert [int(x) for batch in staged for x in batch["x"]] == expected[16:]
    for damage in ({"stages": [[0, ["1/0", "1"], False]]}, {"stages": 3}, {"windows": ["1"]}, {"sequence": 10**9}):
        with pytest.raises(fl.StateError):
            staged.load_state_dict({**first_state, **damage})


@pytest.mark.parametrize("options", [{}, {"when_empty": "stop"}, {"when_empty": "drop", "max_sweeps": 2}])
@given(data=st.data())
@settings(max_examples=examples(15))
def test_weights_changed_in_a_loader(options, data):
    """As in a source, wherever loops are left and states are taken."""
    ends = "when_empty" in options
    mixtures = [some_mixture(**options) for _ in range(2)]
    source = fl.MinibatchSource(mixtures[0], seed=3, max_sweeps=1 if ends else None)
    loader = fl.DataLoader(mixtures[1], batch_size=5, shuffle=True, seed=3)
    for _ in range(data.draw(st.integers(1, 5))):
        loops = iter(loader)
        for _ in range(data.draw(st.integers(0, 4))):
            batch = next(loops, None)
            minibatch = source.next_minibatch(5)
            assert (batch is None) == (not minibatch)
            if batch is None:
                return
            assert batch["x"].tolist() == minibatch["x"].rows.tolist()
        weights = data.draw(st.sampled_from([{"a": 1}, {"b": 1}, {"a": 1, "b": 3}, {"a": 5, "b": 2}]))
        at = data.draw(st.none() | st.integers(0, 60))
        places = []
        for receiver in (source, loader):
            try:
                places.append(receiver.change_weights(weights, at))
            except ValueError as error:
                places.append(str(error))
        assert places[0] == places[1]
        if isinstance(places[0], str) or data.draw(st.booleans()):
            saved = json.loads(json.dumps(loader.state_dict()))
            loader = fl.DataLoader(some_mixture(**options), batch_size=5, shuffle=True, seed=3)
            loader.load_state_dict(saved)
    if ends:
        remaining = [x for minibatch in source.minibatches(5) for x in minibatch["x"].rows.tolist()]
        assert len(loader) * 5 >= len(remaining)
        assert [x for batch in loader for x in batch["x"].tolist()] == remaining


def test_only_mixtures_have_weights_to_change():
    for dataset in (fl.ArrayDeserializer(x=np.arange(4)), list(range(4))):
        with pytest.raises(TypeError, match="expected a Mixture"):
            fl.DataLoader(dataset, batch_size=2).change_weights({"a": 1})


def test_sequences_of_a_corpus():
    sequences = [np.full((n, 2), n, np.float32) for n in (1, 4, 2, 3)]
    corpus = fl.ArrayDeserializer(x=sequences, y=np.arange(4))
    padded = list(fl.DataLoader(corpus, batch_size=3))
    assert [tuple(batch["x"].shape) for batch in padded] == [(3, 4, 2), (1, 3, 2)]
    assert padded[0]["lengths"]["x"].tolist() == [1, 4, 2]
    packed = fl.DataLoader(corpus, batch_sampler=fl.BatchByLength(5, layout="packed"))
    assert [tuple(batch["x"].shape) for batch in packed] == [(5, 2), (5, 2)]
    assert len(packed) == 2
    listed = next(iter(fl.DataLoader(corpus, batch_size=2, collate_fn=list)))
    assert [(len(item["x"]), int(item["y"])) for item in listed] == [(1, 0), (4, 1)]


def test_transforms_of_a_corpus():
    """They draw as a source's do, for any number of workers and from any place."""

    def noisy(sequence, rng):
        return {"x": sequence["x"] + rng.random(sequence["x"].shape, np.float32)}

    corpus = fl.ArrayDeserializer(x=np.arange(60, dtype=np.float32)[:, None])
    source = fl.MinibatchSource(corpus, seed=3, max_sweeps=1, transforms=[noisy, Elsewhere()])
    expected = [m["x"].rows.tolist() for m in source.minibatches(7)]
    options = {"batch_size": 7, "shuffle": True, "seed": 3, "transforms": [noisy, Elsewhere()]}
    loader = fl.DataLoader(corpus, num_workers=2, **options)
    iterator, again = iter(loader), fl.DataLoader(corpus, **options)
    first = [next(iterator)["x"].tolist() for _ in range(3)]
    again.load_state_dict(loader.state_dict())
    assert first + [batch["x"].tolist() for batch in again] == expected
    with pytest.raises(ValueError, match="expected transforms for a corpus or a path only"):
        fl.DataLoader(Plain(3), transforms=[noisy])


def test_what_is_not_asked_of_a_corpus():
    corpus = fl.ArrayDeserializer(x=np.zeros(4))
    for option in (
        {"sampler": [1]},
        {"sampler": fl.Weighted([1] * 4)},
        {"worker_init_fn": print},
        {"batch_size": None},
    ):
        with pytest.raises(ValueError, match="corpus"):
            fl.DataLoader(corpus, **option)


def test_a_corpus_with_unreadable_sequences(tmp_path):
    path = tmp_path / "bad.ctf"
    path.write_text("|x 1\n|x 2\n|x what\n|x 4\n")
    loader = fl.DataLoader(
        fl.CTFDeserializer(path, {"x": fl.Stream(1)}), batch_size=2, on_error=fl.Quarantine(tmp_path / "q")
    )
    assert [flat([batch["x"]]) for batch in loader] == [[1, 2], [4]]
    assert (tmp_path / "q").exists()


# ---- without torch, devices, figures ------------------------------------------------------------------------


def test_without_torch():
    """NumPy arrays in the same trees."""
    script = """
        import sys
        sys.modules["torch"] = None
        import collections, numpy as np, feedline as fl
        P = collections.namedtuple("P", "a b")
        items = [{"x": np.full(2, i), "p": P(i, float(i)), "t": (str(i), np.float32(i)), "b": i > 1} for i in range(5)]
        batches = list(fl.DataLoader(items, batch_size=3))
        first = batches[0]
        assert first["x"].tolist() == [[0, 0], [1, 1], [2, 2]] and type(first["x"]) is np.ndarray
        assert type(first["p"]) is P and first["p"].a.dtype == np.int64 and first["p"].b.dtype == np.float64
        assert list(first["t"][0]) == ["0", "1", "2"] and first["t"][1].dtype == np.float32
        assert first["b"].tolist() == [False, False, True]
        for bad, error in (([np.zeros(1), np.zeros(2)], RuntimeError), ([object()] * 2, TypeError),
                           ([(1,), (1, 2)], RuntimeError), ([np.array("a")] * 2, TypeError)):
            try:
                list(fl.DataLoader(bad, batch_size=2))
            except error:
                pass
            else:
                raise AssertionError(bad)
        assert [b.tolist() for b in fl.DataLoader(np.arange(4), batch_size=3)] == [[0, 1, 2], [3]]
        np.random.seed(3)
        one = [b.tolist() for b in fl.DataLoader(range(9), batch_size=4, shuffle=True)]
        np.random.seed(3)
        assert one == [b.tolist() for b in fl.DataLoader(range(9), batch_size=4, shuffle=True)]
        assert next(iter(fl.DataLoader(fl.ArrayDeserializer(x=np.zeros((3, 2))), batch_size=2)))["x"].shape == (2, 2)
        assert "torch" not in {name for name, module in sys.modules.items() if module is not None}
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr


@needs_torch
def test_on_a_device():
    """The meta device represents any: a batch arrives complete, and nothing is lost."""
    items = [{"x": torch.full((2,), float(i)), "more": (i, "name")} for i in range(5)]
    for workers in (0, 1):
        batches = list(fl.DataLoader(items, batch_size=2, device="meta", num_workers=workers))
        assert [batch["x"].device.type for batch in batches] == ["meta"] * 3
        assert [batch["more"][0].device.type for batch in batches] == ["meta"] * 3
        assert [list(batch["more"][1]) for batch in batches] == [["name"] * 2, ["name"] * 2, ["name"]]
    source = fl.MinibatchSource(fl.ArrayDeserializer(x=np.arange(5.0)), shuffle=False, max_sweeps=1)
    for minibatch in source.minibatches(2, device="cpu"):
        assert minibatch.tensors["x"].tolist() == minibatch["x"].padded().tolist()
        assert source.position.sequence in (0, int(minibatch.ids[-1]) + 1)
    assert next(source.minibatches(2, device="meta"), None) is None


@needs_torch
@pytest.mark.parametrize("fails", [None, 4])
def test_one_batch_is_copied_while_another_is_used(monkeypatch, fails):
    """States are after delivered batches, errors come in order, and the end is final."""
    from feedline.interop import torch_loading

    log = []

    class Slow:
        asynchronous = True

        def __init__(self, device):
            assert device == "somewhere"

        def start(self, batch):
            log.append(("start", batch.tolist()))
            return batch, "pending"

        def finish(self, batch, pending):
            assert pending == "pending"
            log.append(("finish", batch.tolist()))
            return batch

    monkeypatch.setattr(torch_loading, "Transfer", Slow)
    loader = fl.DataLoader(Plain(8, [] if fails is None else [fails]), batch_size=2, device="somewhere", seed=1)
    iterator, got, states = iter(loader), [], []
    while True:
        try:
            got.append(next(iterator).tolist())
        except ValueError:
            got.append("error")
        except StopIteration:
            break
        states.append(loader.state_dict()["sequence"])
    assert got == [[0, 1], [2, 3], [4, 5] if fails is None else "error", [6, 7]]
    assert states == ([2, 4, 6, 8] if fails is None else [2, 4, 4, 4])
    assert log[:3] == [("start", [0, 1]), ("finish", [0, 1]), ("start", [2, 3])]
    assert loader.state_dict()["sweep"] == 1
    with pytest.raises(StopIteration):
        next(iterator)


@pytest.mark.skipif(torch is None or not torch.cuda.is_available(), reason="needs torch with CUDA")
def test_on_cuda():
    x = torch.arange(4096.0).reshape(1024, 4)
    loader = fl.DataLoader(torch.utils.data.TensorDataset(x), batch_size=100, shuffle=True, seed=1, device="cuda")
    plain = fl.DataLoader(torch.utils.data.TensorDataset(x), batch_size=100, shuffle=True, seed=1)
    iterator, other = iter(loader), iter(plain)
    for (here,), (there,) in zip(iterator, other, strict=True):
        assert here.is_cuda
        assert torch.equal(here.cpu(), there)
        assert loader.state_dict() == plain.state_dict()


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", ["thread", "process"])
def test_figures_of_workers_go_on_over_sweeps(workers, persistent):
    """Also of threads, which begin before the loader hands them the figures of the sweeps before."""
    loader = fl.DataLoader(Plain(32), 4, num_workers=2, workers=workers, persistent_workers=persistent)
    for sweep in range(1, 4):
        assert len(list(loader)) == 8
        assert sum(worker.units for worker in loader.stats().workers) == 8 * sweep


def test_figures():
    loader = fl.DataLoader(Plain(10), batch_size=4)
    list(loader)
    figures = loader.stats().to_json()
    assert (figures["batches"], figures["items"], figures["skipped"], figures["workers"]) == (3, 10, 0, [])
    assert figures["waiting"] >= figures["reading"] + figures["collating"] > 0
    assert loader.stats().gain >= 1
    with fl.DataLoader(Plain(10), batch_size=4, num_workers=2) as loader:
        list(loader)
        workers = loader.stats().to_json()["workers"]
        assert len(workers) == 2
        assert sum(worker["units"] for worker in workers) >= 3


class Ordered:
    """A dataset that records its reads in a file."""

    def __init__(self, file, n):
        self.file, self.n = file, n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        with self.file.open("a") as file:
            file.write(f"{index} ")
        return index


@pytest.mark.parametrize("persistent", [False, True])
def test_nothing_is_read_before_its_sweep_begins(tmp_path, persistent):
    """Whatever a program changes between two epochs holds for the whole next one."""
    file = tmp_path / "reads"
    data = Ordered(file, 12)
    loader = fl.DataLoader(data, batch_size=3, num_workers=1, prefetch_factor=2, persistent_workers=persistent)
    list(loader)
    loader.close()  # the workers have read all that they will
    assert file.read_text().split() == [str(i) for i in range(12)]
    assert flat(loader) == list(range(12))
    loader.close()
    assert file.read_text().split() == 2 * [str(i) for i in range(12)]


def test_samplers_of_the_user_are_not_asked_early():
    requests = []

    class Sampler:
        def __iter__(self):
            requests.append(1)
            return iter(range(6))

    loader = fl.DataLoader(Plain(6), sampler=Sampler(), batch_size=2, num_workers=1)
    assert flat(loader) == list(range(6))
    assert requests == [1]
    assert flat(loader) == list(range(6))
    assert requests == [1, 1]


def test_a_corpus_without_sizes_is_refused_when_the_loader_is_made():
    class Unsized(fl.UserDeserializer):
        def stream_infos(self):
            return {"x": fl.Stream((1,))}

        def num_chunks(self):
            return 1

        def get_chunk(self, chunk):
            return {"x": [np.zeros(1, np.float32)]}

    with pytest.raises(ValueError, match="knows the sizes of its chunks"):
        fl.DataLoader(Unsized())


SENT = np.array([7, 1, 2**40])


@pytest.mark.parametrize(
    ("indices", "keys"),
    [(SENT, SENT), (SENT, 5), (SENT, SENT + 1), (SENT.astype(np.int32), 5), ([3, "a"], SENT), ("a", "a"), (b"a", 1)],
    ids=["the indices", "a number", "an array", "another dtype", "a list", "single", "bytes"],
)
def test_a_unit_arrives_as_it_was_sent(indices, keys):
    """Indices of our orders travel as bytes, those of users as they are."""
    unit = WorkUnit(2**64 - 1, 3, indices, keys, spare=9, start=4)
    arrived = pickle.loads(pickle.dumps(unit, 5))
    assert (arrived.keys is arrived.indices) == (keys is indices)
    assert repr(arrived) == repr(unit)
    for field, value in zip(arrived, unit, strict=True):
        assert type(field) is type(value)
        assert np.array_equal(field, value)
        assert getattr(field, "dtype", None) == getattr(value, "dtype", None)
