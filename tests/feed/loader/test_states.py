"""States of a loader: their content, refusals, and the ends of sweeps."""

from __future__ import annotations

import collections
import copy
import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl
from feedline.feed.loader.identity import digest_of
from tests.feed.loader.datasets import (
    Coarse,
    Drawing,
    MadeInIter,
    Noisy,
    OwnIterator,
    Plain,
    Resetting,
    Sampler,
    Stateless,
    TwoStates,
)

try:
    import torch
    from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, TensorDataset
except ModuleNotFoundError:
    torch = None

needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed")


def flat(batches):
    return [value for batch in batches for value in np.asarray(batch).reshape(-1).tolist()]


def saved(loader, batches):
    """Return the state after some batches, as a file would contain it, and the batches that follow."""
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    return state, flat(iterator)


# ---- which data --------------------------------------------------------------------------------------------------

Pair = collections.namedtuple("Pair", ["x", "y"])


def kinds():
    """Data of each kind, and the same with one number changed."""
    x, y = np.arange(40.0).reshape(20, 2), np.arange(20)
    z = y.copy()
    z[10] = 7
    made = {
        "array": (x, x + 1),
        "structured": (np.array([*zip(y, y, strict=True)], "i8,i8"), np.array([*zip(y, z, strict=True)], "i8,i8")),
        "dtype": (y, y.astype(np.int32)),
        "shape": (np.zeros((20, 4)), np.zeros((20, 2, 2))),
        "columns": ((x, y), (x, z)),
        "named columns": ({"x": x, "y": y}, {"x": x, "z": y}),
        "range": (range(20), range(1, 21)),
        "list": (list(range(20)), [*range(19), 99]),
        "texts": ([f"{i}.png" for i in range(20)], [f"{i}.jpg" for i in range(20)]),
        "rows": ([(f"{i}", i, None, 0.5) for i in range(20)], [(f"{i}", i, None, 0.25) for i in range(20)]),
        "dictionaries": ([{"x": row, "y": 1} for row in x], [{"x": row, "y": True} for row in x]),
        "bytes": ([bytes([i]) for i in range(20)], [bytes([i + 1]) for i in range(20)]),
        "named tuples": ([Pair(row, 1) for row in x], [Pair(row, 2) for row in x]),
        "array of objects": (np.array([str(i) for i in y], object), np.array([str(i) for i in z], object)),
    }
    if torch is not None:
        a, b = torch.arange(20.0), torch.arange(20.0) + 1
        made |= {
            "tensor": (a, b),
            "TensorDataset": (TensorDataset(a, a), TensorDataset(a, b)),
            "Subset": (Subset(TensorDataset(a), range(10)), Subset(TensorDataset(a), range(10, 20))),
            "ConcatDataset": (ConcatDataset([TensorDataset(a)] * 2), ConcatDataset([TensorDataset(b)] * 2)),
            "StackDataset": (StackDataset(TensorDataset(a), TensorDataset(b)), StackDataset(*[TensorDataset(a)] * 2)),
            "named StackDataset": (StackDataset(p=TensorDataset(a)), StackDataset(q=TensorDataset(a))),
            "list of tensors": ([a, a], [a, b]),
        }
    return made


@pytest.mark.parametrize("kind", kinds())
def test_a_state_of_other_data_of_the_same_length_is_refused(kind):
    data, other = kinds()[kind]
    loader = fl.DataLoader(data, seed=1, collate_fn=list)
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["dataset"] == digest_of(data) == digest_of(copy.deepcopy(data))
    fl.DataLoader(copy.deepcopy(data), seed=1, collate_fn=list).load_state_dict(state)
    reading = fl.DataLoader(other, seed=1, collate_fn=list)
    before = reading.state_dict()
    with pytest.raises(fl.StateError, match=r"dataset *saved:[\s\S]*load it over the same data"):
        reading.load_state_dict(state)
    assert reading.state_dict() == before
    # The way out that the error names.
    del state["dataset"]
    reading.load_state_dict(state)


def test_the_same_data_somewhere_else(tmp_path):
    """Mapped, in memory, as a tensor."""
    x = np.arange(10**6, dtype=np.float32)
    np.save(tmp_path / "x.npy", x)
    digests = {digest_of(x), digest_of(np.load(tmp_path / "x.npy", mmap_mode="r"))}
    if torch is not None:
        digests.add(digest_of(torch.from_numpy(x)))
    assert len(digests) == 1
    # The limit that is documented: a number far from head, middle and tail.
    x[300_000] = -1
    assert {digest_of(x)} == digests
    x[500_000] = -1
    assert {digest_of(x)} != digests


class WithFingerprint:
    """A substitute for a Hugging Face dataset."""

    __module__ = "datasets.arrow_dataset"

    def __init__(self, fingerprint):
        self._fingerprint = fingerprint

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return index


def test_fingerprints():
    state = fl.DataLoader(WithFingerprint("a"), seed=1).state_dict()
    fl.DataLoader(WithFingerprint("a"), seed=1).load_state_dict(state)
    with pytest.raises(fl.StateError, match="drawn at random"):
        fl.DataLoader(WithFingerprint("b"), seed=1).load_state_dict(state)


def test_of_some_datasets_nothing_is_known():
    """Only lengths are compared, and only if both sides know them."""
    within = [1]
    within.append(within)
    unknown = [Plain(20), [object()] * 20, within, np.array([object()] * 20), [Plain(1)] * 20]
    if torch is not None:
        unknown += [Subset(Plain(20), range(20)), torch.zeros(20).to_sparse()]
    assert [digest_of(each) for each in unknown] == [None] * len(unknown)
    state = fl.DataLoader(Plain(20), seed=1).state_dict()
    assert "dataset" not in state
    fl.DataLoader(range(20), seed=1).load_state_dict(state)
    fl.DataLoader(Plain(20), seed=1).load_state_dict(fl.DataLoader(range(20), seed=1).state_dict())
    with pytest.raises(fl.StateError, match="with as many items"):
        fl.DataLoader(Plain(21), seed=1).load_state_dict(state)


def test_a_users_sampler_is_independent_of_the_data():
    """So the dataset does."""
    state = fl.DataLoader(range(20), sampler=[3, 1], seed=1).state_dict()
    with pytest.raises(fl.StateError, match="dataset"):
        fl.DataLoader(range(1, 21), sampler=[3, 1], seed=1).load_state_dict(state)


def test_the_digest_is_made_once(monkeypatch):
    from feedline.feed.loader import batches as module

    requests = []
    monkeypatch.setattr(module, "digest_of", lambda data: requests.append(1) or digest_of(data))
    data = list(range(10))
    loader = fl.DataLoader(data, seed=1)
    for _ in loader:
        loader.state_dict()
    assert requests == [1]
    data.append(10)
    list(loader)
    assert loader.state_dict()["dataset"] == digest_of(data)


# ---- damage ------------------------------------------------------------------------------------------------------

HUGE = [-1, 2**63, 2**64, 10**400, True, None, "3", 1.0, [], {}, [[1]], "z" * 16, float("nan")]

LOADERS = {
    "items": lambda: fl.DataLoader(range(13), batch_size=3, shuffle=True, seed=7),
    "without a seed": lambda: fl.DataLoader(range(13), batch_size=3, shuffle=True),
    "weights": lambda: fl.DataLoader(range(13), batch_size=3, sampler=fl.Weighted(range(13)), seed=7),
    "out of order": lambda: fl.DataLoader(
        range(13), batch_size=3, seed=7, num_workers=1, workers="thread", in_order=False
    ),
    "sampler": lambda: fl.DataLoader(range(13), batch_size=3, sampler=Sampler(13), seed=7),
    "iterable": lambda: fl.DataLoader(Resetting(13), batch_size=3, seed=7),
    "corpus": lambda: fl.DataLoader(fl.ArrayDeserializer(x=np.arange(13)), batch_size=3, seed=7),
}
if torch is not None:
    LOADERS["torch's sampler"] = lambda: fl.DataLoader(
        range(13),
        batch_size=3,
        sampler=torch.utils.data.RandomSampler(range(13), generator=torch.Generator().manual_seed(1)),
        seed=7,
    )


def places_of(tree, path=()):
    """Where there is something in a state."""
    yield path
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from places_of(value, (*path, key))
    elif isinstance(tree, list):
        for i, value in enumerate(tree):
            yield from places_of(value, (*path, i))


def changed(tree, path, value):
    if not path:
        return value
    tree = copy.copy(tree)
    if value is KeyError and len(path) == 1:
        del tree[path[0]]
    else:
        tree[path[0]] = changed(tree[path[0]], path[1:], value)
    return tree


@pytest.mark.filterwarnings("ignore:.*no state_dict")
@pytest.mark.parametrize("name", LOADERS)
def test_every_field_is_checked_when_it_is_loaded(name):
    """Refused as a StateError before anything has moved, or it continues to the end without another error."""
    make = LOADERS[name]
    loader = make()
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    rng = random.Random(1)
    accepted = 0
    for path in places_of(state):
        own = path[:2] == ("memo", "sampler") or (path[:2] == ("memo", "each") and path[3:4] == ("state",))
        if own and len(path) > (2 if path[1] == "sampler" else 4):
            continue  # the user's class may check anything
        for value in [*HUGE, KeyError, rng.choice(HUGE)]:
            damaged = changed(state, path, value) if path or value is not KeyError else {}
            restored = make()
            before = restored.state_dict()
            try:
                restored.load_state_dict(damaged)
            except fl.StateError:
                assert restored.state_dict() == before
                assert len(flat(b["x"] if isinstance(b, dict) else b for b in restored)) == 13
                continue
            if own:
                continue
            accepted += 1
            first = flat(b["x"] if isinstance(b, dict) else b for b in restored)
            assert len(first) <= 13, (path, value)
            json.dumps(restored.state_dict())
    assert accepted  # a state without a `dataset`, for one


@given(st.integers(0, 13), st.lists(st.tuples(st.integers(-1, 15), st.integers(-1, 15)), max_size=3))
def test_ranges_delivered_before_their_turn(start, ranges):
    state = fl.DataLoader(range(13), seed=1).state_dict() | {"sequence": start, "delivered": [list(r) for r in ranges]}
    loader = fl.DataLoader(range(13), seed=1)
    edges = [start, *(edge for pair in ranges for edge in pair)]
    if edges == sorted(set(edges)) and edges[-1] <= 13:
        loader.load_state_dict(state)
        assert flat(loader) == [i for i in range(start, 13) if not any(a <= i < b for a, b in ranges)]
    else:
        with pytest.raises(fl.StateError, match="damaged"):
            loader.load_state_dict(state)


def test_a_refused_state_leaves_workers_alone():
    """Also one of another seed, for a loader that was given none."""
    with fl.DataLoader(Plain(13), batch_size=3, num_workers=1) as loader:
        list(loader)
        pids = loader.pids
        state = fl.DataLoader(Plain(12), batch_size=3).state_dict()
        with pytest.raises(fl.StateError):
            loader.load_state_dict(state)
        assert loader.pids == pids
        assert len(flat(loader)) == 13


def test_a_sampler_that_has_shrunk_is_refused():
    """Its length is its own to know, so the error comes when it is drawn from."""
    state, _ = saved(fl.DataLoader(range(13), batch_size=3, sampler=list(range(13)), seed=1), 3)
    loader = fl.DataLoader(range(13), batch_size=3, sampler=[1, 2, 3], seed=1)
    loader.load_state_dict(state)
    with pytest.raises(fl.StateError, match="after 9 indices of the sampler, which now yields 3"):
        flat(loader)


def test_a_sampler_that_cannot_take_its_state_is_refused():
    """It began again, silently."""
    state, _ = saved(fl.DataLoader(range(13), batch_size=3, sampler=Sampler(13), seed=1), 2)
    loader = fl.DataLoader(range(13), batch_size=3, sampler=list(range(13)), seed=1)
    loader.load_state_dict(state)
    with pytest.raises(fl.StateError, match="no load_state_dict"):
        flat(loader)


# ---- the end of a sweep ------------------------------------------------------------------------------------------

ENDS = {
    "items": {"dataset": range(12)},
    "one by one": {"dataset": range(12), "batch_size": None},
    "short": {"dataset": range(13)},
    "shuffled": {"dataset": range(12), "shuffle": True},
    "weighted": {"dataset": range(12), "sampler": fl.Weighted(range(12))},
    "columns": {"dataset": np.arange(12)},
    "sampler": {"dataset": range(12), "sampler": list(range(12))},
    "short sampler with a state": {"dataset": range(13), "sampler": Sampler(13)},
    "sampler with a state": {"dataset": range(12), "sampler": Sampler(12)},
    "batch sampler": {"dataset": range(12), "batch_size": 1, "batch_sampler": [[1, 2], [3, 4]]},
    "iterable": {"dataset": Resetting(12)},
    "short iterable": {"dataset": Resetting(13)},
    "iterable without a state": {"dataset": Stateless(13)},
    "threads": {"dataset": range(13), "num_workers": 2, "workers": "thread"},
    "iterable in threads": {"dataset": Resetting(13), "num_workers": 2, "workers": "thread"},
    "corpus": {"dataset": fl.ArrayDeserializer(x=np.arange(12)), "collate_fn": lambda rows: [r["x"] for r in rows]},
}


@pytest.mark.filterwarnings("ignore:.*no state_dict")
@pytest.mark.parametrize("name", ENDS)
def test_at_the_last_batch_nothing_remains_and_after_it_a_whole_sweep(name):
    def make():
        return fl.DataLoader(**copy.deepcopy({"batch_size": 4, "seed": 3, **ENDS[name]}))

    loader = make()
    sweeps = [flat(loader) for _ in range(3)]
    loader = make()
    for _ in loader:
        within = json.loads(json.dumps(loader.state_dict()))
    behind = json.loads(json.dumps(loader.state_dict()))
    assert (within["sweep"], behind["sweep"]) == (0, 1)
    for state, expected in ((within, [[], *sweeps[1:]]), (behind, sweeps[1:])):
        again = make()
        again.load_state_dict(state)
        assert again.state_dict() == state
        assert [flat(again) for _ in expected] == expected


def test_ranks_end_together():
    """The state of the last batch is the same on all ranks, for any number of them."""
    ranks = [fl.DataLoader(range(10), batch_size=2, partition=(i, 2), seed=1) for i in range(2)]
    for _ in zip(*ranks, strict=True):
        states = [rank.state_dict() for rank in ranks]
    assert states[0] == states[1]
    for count in (1, 2, 3):
        for i in range(count):
            again = fl.DataLoader(range(10), batch_size=2, partition=(i, count), seed=1)
            again.load_state_dict(states[0])
            assert flat(again) == []
            assert again.state_dict()["sweep"] == 1


# ---- a dataset that grows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"num_workers": 1}, {"batch_size": None}])
def test_length_samplers_and_batches_follow_a_dataset(options):
    data = list(range(8))
    how = {"batch_size": 3, "seed": 1, **options}
    loader = fl.DataLoader(data, **how)
    for n in (8, 9, 12, 5):
        data[:] = range(n)
        assert len(loader) == len(fl.DataLoader(list(data), **how))
        assert len(loader.sampler) == n
        batches = list(loader)
        indices = sorted(loader.sampler)
        assert len(batches) == len(fl.DataLoader(list(data), **how))
        assert sorted(flat(batches)) == indices == list(range(n))
    loader.close()


def test_a_length_asked_for_in_the_middle_changes_nothing():
    """A progress bar calls it. The sweep and its state stay the same."""
    data = list(range(8))
    loader = fl.DataLoader(data, batch_size=3, shuffle=True, seed=1)
    iterator = iter(loader)
    first = flat([next(iterator)])
    data.append(8)
    assert len(loader) == len(iterator) == 3
    state = loader.state_dict()
    assert state["items"] == 8
    assert sorted(first + flat(iterator)) == list(range(8))
    data.pop()
    again = fl.DataLoader(data, batch_size=3, shuffle=True, seed=1)
    again.load_state_dict(state)
    assert sorted(first + flat(again)) == list(range(8))


def test_a_state_goes_with_the_dataset_as_it_is_now():
    data = list(range(8))
    state, remaining = saved(fl.DataLoader(list(range(10)), batch_size=3, shuffle=True, seed=1), 2)
    loader = fl.DataLoader(data, batch_size=3, shuffle=True, seed=1)
    data += [8, 9]
    loader.load_state_dict(state)
    assert flat(loader) == remaining
    loader.load_state_dict(state)
    data.append(10)  # its first items are still those of the state
    assert flat(loader) == remaining
    data.pop()
    loader.load_state_dict(state)
    data.insert(0, 10)
    for ask in (lambda: len(loader), lambda: iter(loader)):
        with pytest.raises(ValueError, match=r"expected 10 items, .*got 11"):
            ask()


# ---- seeds -------------------------------------------------------------------------------------------------------


@needs_torch
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}])
def test_seeds_in_samples_collate(options):
    """Below 2**63, for any seed of the loader. torch draws the same numbers as with all 64 bits."""
    from feedline import _native
    from feedline.feed.loader.sample_seeds import ITEM

    numbers = []
    for seed in (0, 7, 2**63, 2**64 - 1):
        with fl.DataLoader(Noisy(4), batch_size=1, seed=seed, **options) as loader:
            batches = list(loader)
        numbers += [int(number) for number, _ in batches]
        assert all(number.dtype == torch.int64 for number, _ in batches)
        keys = [_native.hash_key([seed, 0, ITEM, i]) for i in range(4)]
        expected = [torch.rand((), generator=torch.Generator().manual_seed(key)).item() for key in keys]
        assert [drawn.item() for _, drawn in batches] == expected
    assert min(numbers) >= 0


# ---- iterable datasets -------------------------------------------------------------------------------------------

APART = {"here": {}, "threads": {"num_workers": 2, "workers": "thread"}, "processes": {"num_workers": 1}}


@pytest.mark.filterwarnings("ignore:.*no state_dict")
@pytest.mark.parametrize("where", APART)
@pytest.mark.parametrize("kind", [OwnIterator, MadeInIter, Resetting, TwoStates, Stateless, Coarse])
def test_iterable_datasets_continue(kind, where):
    """With a state of the dataset, its iterator or both, that is kept, reset or made in `__iter__`."""
    how = {"batch_size": 3, "seed": 2, **APART[where]}
    for batches in (1, 2, 3):
        with fl.DataLoader(kind(23), **how) as loader, fl.DataLoader(kind(23), **how) as again:
            state, remaining = saved(loader, batches)
            again.load_state_dict(state)
            assert flat(again) == remaining


@pytest.mark.filterwarnings("ignore:.*no state_dict")
@pytest.mark.parametrize("kind", [Resetting, Stateless])
@pytest.mark.parametrize("other", [1, 2, 5])
def test_iterable_datasets_continue_with_another_batch_size(kind, other):
    """Samples are counted, not batches: a dataset without a state was read from another place."""
    state, remaining = saved(fl.DataLoader(kind(23), batch_size=3, seed=2), 4)
    again = fl.DataLoader(kind(23), batch_size=other, seed=2)
    again.load_state_dict(state)
    assert flat(again) == remaining == list(range(12, 23))


@pytest.mark.filterwarnings("ignore:.*no state_dict")
@pytest.mark.parametrize("stateful", [True, False])
def test_draws_in_next_continue_after_a_restore(stateful):
    """In its own process a worker draws one stream per sweep, which used to restart after a restore."""
    how = {"batch_size": 3, "seed": 2, "num_workers": 1}
    with fl.DataLoader(Drawing(14, stateful), **how) as loader, fl.DataLoader(Drawing(14, stateful), **how) as again:
        for batches in (1, 3, 2):
            loader.load_state_dict(fl.DataLoader(Drawing(14, stateful), **how).state_dict())
            state, remaining = saved(loader, batches)
            assert (state["memo"]["each"][0].get("random") is not None) is True
            again.load_state_dict(state)
            assert flat(again) == remaining
    still = fl.DataLoader(Resetting(14), **how)
    with still:
        state, _ = saved(still, 2)
    assert "random" not in state["memo"]["each"][0]  # nothing was drawn, nothing is kept


def test_a_dataset_whose_state_can_never_be_loaded_is_reported():
    class Never(MadeInIter):
        def __iter__(self):  # a generator: attributes that load_state_dict needs are created only with the first item
            self.inner = {"at": 0}
            while self.inner["at"] < self.n:
                self.inner["at"] += 1
                yield self.inner["at"] - 1

    state, _ = saved(fl.DataLoader(Never(12), batch_size=3), 2)
    again = fl.DataLoader(Never(12), batch_size=3)
    again.load_state_dict(state)
    with pytest.raises(fl.StateError, match=r"load_state_dict raised AttributeError.*\n?[\s\S]*create what it needs"):
        flat(again)


def test_a_sweep_that_is_read_again_puts_back_a_dataset_that_keeps_its_place():
    """A state from before a sweep, loaded in the middle of it."""
    for options in APART.values():
        with fl.DataLoader(Resetting(12), batch_size=3, seed=1, **options) as loader:
            before = loader.state_dict()
            uninterrupted = flat(loader)
            loader.load_state_dict(before)
            iterator = iter(loader)
            next(iterator), next(iterator)
            del iterator
            loader.load_state_dict(before)
            assert flat(loader) == uninterrupted


if torch is not None:

    class Growing(Dataset):
        """Grows with torch's own samplers too."""

        n = 4

        def __len__(self):
            return self.n

        def __getitem__(self, index):
            return index


@needs_torch
def test_torch_agrees_on_growing_datasets():
    data = Growing()
    ours, theirs = fl.DataLoader(data), torch.utils.data.DataLoader(data)
    for n in (4, 7, 2):
        data.n = n
        assert len(ours) == len(theirs) == len(list(ours)) == len(list(theirs)) == n


@pytest.mark.parametrize("kind", [np.int64, np.uint8])
@pytest.mark.parametrize(
    "options",
    [
        {"seed": 3},
        {"batch_size": 3},
        {"num_workers": 1, "workers": "thread", "prefetch_factor": 2},
        {"limit": 2},
    ],
    ids=str,
)
def test_any_integer_is_taken_and_a_state_is_json(options, kind):
    def loader(kind):
        converted = {name: kind(value) if type(value) is int else value for name, value in options.items()}
        if "limit" in converted:
            converted["on_error"] = fl.Quarantine(limit=converted.pop("limit"))
        return fl.DataLoader(np.arange(20), **{"seed": 1, "shuffle": True} | converted)

    with loader(kind) as first, loader(int) as second:
        for one, other in zip(first, second, strict=True):
            assert np.array_equal(one, other)
            assert json.loads(json.dumps(first.state_dict())) == second.state_dict()
        assert len(first) == len(second)


def test_the_identity_of_a_dataset_survives_a_new_attribute():
    """It was determined when the sweep began. A dataset that has grown since is another one."""
    for change in (lambda loader: setattr(loader, "timeout", 0), lambda loader: None):
        data = list(range(8))
        loader = fl.DataLoader(data, batch_size=2, seed=1)
        next(iterator := iter(loader))
        dataset_state = loader.state_dict()["dataset"]
        change(loader)
        data.append(8)
        assert loader.state_dict()["dataset"] == dataset_state
        del iterator


def test_states_of_sources_and_of_loaders_are_distinguished():
    """Each refuses the other's, by name rather than field by field. The formats of both have only the version."""
    corpus = fl.ArrayDeserializer(x=np.zeros(10))
    loaders = [fl.DataLoader(range(10)), fl.DataLoader(corpus, batch_size=2), fl.DataLoader(range(10), shuffle=True)]
    source = fl.MinibatchSource(corpus)
    for loader in loaders:
        with pytest.raises(fl.StateError, match="state of a feedline MinibatchSource, got one of a DataLoader"):
            source.load_state_dict(loader.state_dict())
        with pytest.raises(fl.StateError, match="state of a feedline DataLoader, got one of a MinibatchSource"):
            loader.load_state_dict(source.state_dict())
