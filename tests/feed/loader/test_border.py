"""What a program does between and around epochs is seen, or raises: the same checks on torch's DataLoader and ours."""

from __future__ import annotations

import copy
import itertools
import json
import multiprocessing
import multiprocessing.context
import threading

import numpy as np
import pytest
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

import feedline as fl
from tests.feed.loader.swapped import TORCH, Numbers, Stream, both, flat, torch, workers

# ---- changes between epochs ---------------------------------------------------------------------------------


class Held(Numbers):
    """Every sample is what something holds that the program can change."""

    def __init__(self, held, read=None) -> None:
        super().__init__(12)
        self.held, self.read = held, read

    def __getitem__(self, index):
        if self.read is not None:
            return self.read(self.held)
        return int(self.held[index])


def value_of(shared) -> int:
    return shared.value


def number_in(path) -> int:
    return int(path.read_text())


def fill(held, number) -> None:
    for i in range(12):
        held[i] = number


def of_value(_):
    shared = multiprocessing.Value("i", 0)
    return Held(shared, value_of), lambda number: setattr(shared, "value", number)


def of_shared_tensor(_):
    tensor = torch.zeros(12, dtype=torch.long).share_memory_()
    return Held(tensor), tensor.fill_


def of_memory_map(folder):
    mapped = np.memmap(folder / "map", np.int64, "w+", shape=12)
    return Held(mapped), lambda number: fill(mapped, number)


def of_file(folder):
    path = folder / "number"
    path.write_text("0")
    return Held(path, number_in), lambda number: path.write_text(str(number))


def of_array(_):
    held = Held(np.zeros(12, np.int64))
    return held, lambda number: fill(held.held, number)


def of_tensor(_):
    held = Held(torch.zeros(12, dtype=torch.long))
    return held, held.held.fill_


def of_list(_):
    held = Held([0] * 100)
    return held, lambda number: fill(held.held, number)


def of_dictionary(_):
    held = Held(dict.fromkeys(range(100), 0))
    return held, lambda number: fill(held.held, number)


def of_attribute(_):
    held = Held([0] * 12)
    return held, lambda number: setattr(held, "held", [number] * 12)


SHARED = [of_value, of_shared_tensor, of_memory_map, of_file]
COPIED = [of_array, of_tensor, of_list, of_dictionary, of_attribute]


@both
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    ("make", "options"),
    [
        *((make, {"num_workers": 2}) for make in (*SHARED, *COPIED)),
        *((make, {"num_workers": 2, "persistent_workers": True}) for make in SHARED),
        *((make, {}) for make in (of_value, of_array)),
    ],
    ids=lambda value: getattr(value, "__name__", "-".join(value) if isinstance(value, dict) else None),
)
def test_an_epoch_reads_what_it_finds_when_it_begins(Loader, tmp_path, make, options, shuffle):
    dataset, change = make(tmp_path)
    loader = Loader(dataset, batch_size=2, shuffle=shuffle, **options)
    for epoch in range(3):
        change(epoch)
        assert flat(loader) == 12 * [epoch]


@pytest.mark.parametrize("make", [of_array, of_attribute])
def test_persistent_workers_keep_their_copies(make):
    dataset, change = make(None)
    loader = fl.DataLoader(dataset, batch_size=2, num_workers=1, persistent_workers=True)
    change(1)
    assert flat(loader) == 12 * [1]
    change(2)
    assert flat(loader) == 12 * [1]


class Flags(Stream):
    """An iterable dataset that returns the program's settings."""

    flag = 0

    def __iter__(self):
        return (self.flag for _ in super().__iter__())


@both
@pytest.mark.parametrize("kind", ["here", "process", "thread"])
def test_attributes_of_an_iterable_dataset(Loader, kind):
    how = {} if kind == "here" else {"num_workers": 2}
    if kind == "thread" and Loader is not TORCH:
        how["workers"] = "thread"
    dataset = Flags(6)
    loader = Loader(dataset, batch_size=2, **how)
    for dataset.flag in range(3):
        assert flat(loader) == 6 * [dataset.flag]


# ---- seeds --------------------------------------------------------------------------------------------------


def states(*generators):
    return [generator.get_state().tolist() for generator in (torch.default_generator, *generators)]


def sampler_of(kind, dataset, generator):
    return {
        "random": lambda: RandomSampler(dataset),
        "random with its own": lambda: RandomSampler(dataset, generator=generator),
        "replacing": lambda: RandomSampler(dataset, replacement=True, num_samples=40),
        "subset": lambda: SubsetRandomSampler(range(9)),
        "weighted": lambda: WeightedRandomSampler([1.0] * 11, 11),
        "distributed": lambda: DistributedSampler(dataset, num_replicas=2, rank=0),
    }[kind]()


def drawn(Loader, dataset, kind, *, given, size, drop_last, **options):
    """The states of the generators after each step of two epochs."""
    torch.manual_seed(5)
    own, samplers = torch.Generator().manual_seed(7), torch.Generator().manual_seed(8)
    how = {"batch_size": size, "drop_last": drop_last, "generator": own if given else None, **options}
    if kind == "batches":
        how |= {"batch_sampler": BatchSampler(RandomSampler(dataset, generator=samplers), size, drop_last)}
        del how["batch_size"], how["drop_last"]
    elif kind in ("in order", "shuffled"):
        how["shuffle"] = kind == "shuffled"
    else:
        how["sampler"] = sampler_of(kind, dataset, samplers)
    loader = Loader(dataset, **how)
    seen = [states(own, samplers)]
    for _ in range(2):
        iterator = iter(loader)
        seen.append(states(own, samplers))
        next(iterator)
        seen.append(states(own, samplers))
        for _ in iterator:
            pass
        seen.append(states(own, samplers))
    return seen


KINDS = ("in order", "shuffled", "batches", "random", "random with its own", "replacing", "subset", "weighted")


@pytest.mark.parametrize("kind", [*KINDS, "distributed"])
@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}])
def test_it_draws_as_many_numbers_as_torch(kind, options):
    """At every step, so that parameters that are initialised at any time are the same as with torch."""
    ours = {**options, "workers": "thread"}
    for given, (size, drop_last) in itertools.product(
        (False, True), [(3, False), (3, True), (5, False), (None, False)]
    ):
        if size is None and kind == "batches":
            continue
        for dataset in [Numbers(11)] if size != 3 else [Numbers(11), TensorDataset(torch.arange(11))]:
            how = {"given": given, "size": size, "drop_last": drop_last}
            expected = drawn(TORCH, dataset, kind, **how, **options)
            assert drawn(fl.DataLoader, dataset, kind, **how, **ours) == expected


@both
@workers
@pytest.mark.parametrize("set_by", ["manual_seed", "manual_seed of a generator", "the state of a generator"])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_seed_set_before_an_epoch_decides_its_order(Loader, workers, set_by, persistent):
    generator = None if set_by == "manual_seed" else torch.Generator()
    begin = torch.Generator().manual_seed(3).get_state()

    def set_to(epoch):
        if generator is None:
            torch.manual_seed(epoch)
        elif set_by.startswith("the state"):
            generator.set_state(begin)
        else:
            generator.manual_seed(epoch)

    def orders(epochs):
        how = {"persistent_workers": True} if persistent and workers else {}
        loader = Loader(Numbers(12), batch_size=4, shuffle=True, generator=generator, num_workers=workers, **how)
        return [(set_to(epoch), flat(loader))[1] for epoch in epochs]

    uninterrupted = orders(range(4))
    if Loader is TORCH and persistent and workers:  # which draws once more when it starts the workers
        assert orders([1, 2, 3])[1:] == uninterrupted[2:]
        return
    assert orders([2, 3]) == uninterrupted[2:]
    assert (uninterrupted[0] == uninterrupted[1]) is set_by.startswith("the state")


@pytest.mark.parametrize("taken", [0, 1, 3])
@pytest.mark.parametrize("kind", ["shuffled", "generator", "random", "random with its own", "corpus"])
@pytest.mark.parametrize("workers", [0, 1])
def test_the_state_of_a_loader_without_a_seed_resumes_its_epoch(kind, taken, workers):
    """With any seeds of the program that resumes. A seed set before the next epoch decides that epoch."""

    def loader(seed):
        torch.manual_seed(seed)
        how = {"batch_size": 3, "num_workers": workers, "workers": "thread"}
        if kind == "generator":
            how["generator"] = torch.Generator().manual_seed(seed)
        if kind == "corpus":
            return fl.DataLoader(fl.ArrayDeserializer(x=np.arange(11)), shuffle=True, **how)
        if kind.startswith("random"):
            generator = torch.Generator().manual_seed(seed)
            return fl.DataLoader(Numbers(11), sampler=sampler_of(kind, Numbers(11), generator), **how)
        return fl.DataLoader(Numbers(11), shuffle=True, **how)

    def samples(batches):
        return flat(batch["x"] if kind == "corpus" else batch for batch in batches)

    first, second = loader(1), loader(2)
    samples(first)
    iterator = iter(first)
    before = samples(itertools.islice(iterator, taken))
    if not taken and kind == "random" and not workers:
        return  # the sampler has not been started, and follows from the generators then
    state = json.loads(json.dumps(first.state_dict()))
    torch.rand(3)
    second.load_state_dict(state)
    assert second.state_dict() == state
    global_state = torch.get_rng_state()
    remaining = samples(second)
    if taken or workers or kind not in ("shuffled", "corpus"):  # else the first batch draws, as with torch
        assert torch.equal(torch.get_rng_state(), global_state), "nothing is drawn a second time"
    assert remaining == samples(iterator)
    assert sorted(before + remaining) == list(range(11))
    torch.manual_seed(9)
    following = samples(second)
    torch.manual_seed(9)
    assert samples(first) == following


class Noise(Numbers):
    def __getitem__(self, index):
        return float(index + torch.rand(()))


@pytest.mark.filterwarnings("ignore:.*no state_dict")
@pytest.mark.parametrize("taken", [0, 1, 4])
@pytest.mark.parametrize("kind", ["shuffled", "generator", "in order", "iterable", "corpus"])
@pytest.mark.parametrize("workers", [0, 1])
def test_the_epochs_after_a_state_match_the_run_that_it_is_of(kind, taken, workers):
    """Whatever the program that resumes was started with, unless it draws or sets a seed itself."""

    def loader(seed):
        torch.manual_seed(seed)
        dataset = {"iterable": Stream(11), "corpus": fl.ArrayDeserializer(x=np.arange(11))}.get(kind, Noise(11))
        how = {} if kind in ("in order", "iterable") else {"shuffle": True}
        if kind == "generator":
            how["generator"] = torch.Generator().manual_seed(seed)
        return fl.DataLoader(dataset, batch_size=3, num_workers=workers, workers="thread", **how)

    def epoch(batches):
        return flat(batch["x"] if kind == "corpus" else batch for batch in batches)

    first = loader(1)
    epoch(first)
    iterator = iter(first)
    epoch(itertools.islice(iterator, taken))
    state = json.loads(json.dumps(first.state_dict()))
    remaining = [epoch(iterator), epoch(first), epoch(first)]
    second = loader(2)
    before = torch.get_rng_state()
    second.load_state_dict(state)
    assert torch.equal(torch.get_rng_state(), before), "the program's numbers are its own"
    assert second.state_dict() == state
    second = copy.copy(second)
    assert [epoch(second), epoch(second), epoch(second)] == remaining
    if kind == "generator":
        return
    third, fourth = loader(3), loader(3)
    torch.rand(3)  # as a network's parameters are
    third.load_state_dict(state)
    epoch(third)
    orders = []
    for each in (third, fourth):
        torch.manual_seed(3)
        orders.append(epoch(each))
    assert orders[0] == orders[1], "the program has set a seed"


def test_a_state_of_an_earlier_version_goes_on_under_its_seed():
    """It had one seed for all sweeps."""
    saved_loader = fl.DataLoader(Numbers(11), batch_size=3, shuffle=True, seed=5)
    flat(saved_loader)
    iterator = iter(saved_loader)
    next(iterator)
    state = saved_loader.state_dict()
    assert state.keys() == {"feedline", "order", "seed", "shuffle", "items", "sweep", "sequence"}
    resumed = fl.DataLoader(Numbers(11), batch_size=3, shuffle=True)
    resumed.load_state_dict(state)
    assert flat(resumed) == flat(iterator)


# ---- the order of calls ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"partition": (1, 2)}, {"device": "cpu"}, {"in_order": False}])
@pytest.mark.parametrize("how", [{}, {"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}])
def test_each_sweep_once_when_set_epoch_comes_after_iter(options, how):
    expected = fl.DataLoader(Numbers(24), batch_size=4, shuffle=True, seed=1, **options)
    loader = fl.DataLoader(Numbers(24), batch_size=4, shuffle=True, seed=1, workers="thread", **options, **how)
    for epoch in (0, 1, 2, 5, 0):
        iterator = iter(loader)
        loader.sampler.set_epoch(epoch)
        expected.sampler.set_epoch(epoch)
        got = flat(iterator)
        assert sorted(got) == sorted(flat(expected))
        assert len(got) == len(set(got))
        assert loader.state_dict()["sweep"] == epoch + 1


@pytest.mark.parametrize("kind", ["in order", "distributed"])
def test_the_last_epoch_that_is_set_counts_for_any_call_of_the_state(kind):
    sampler = None if kind == "in order" else sampler_of(kind, Numbers(24), None)
    loader = fl.DataLoader(Numbers(24), sampler=sampler, num_workers=1, workers="thread")
    iterator = iter(loader)
    for epoch in (3, 5, 4):
        loader.sampler.set_epoch(epoch)
        assert loader.state_dict()["sweep"] == epoch
    flat(iterator)
    assert loader.state_dict()["sweep"] == 5


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", ["random with its own", "distributed"])
def test_a_batch_taken_to_learn_its_size_leaves_the_order_alone(kind, workers, persistent):
    def epochs(Loader):
        sampler = sampler_of(kind, Numbers(50), torch.Generator().manual_seed(3))
        how = {"persistent_workers": True} if persistent and workers else {}
        loader, orders = Loader(Numbers(50), batch_size=8, sampler=sampler, num_workers=workers, **how), []
        for epoch in range(3):
            assert len(next(iter(loader))) == 8
            if kind == "distributed":
                sampler.set_epoch(epoch)
            orders.append(flat(loader))
        return orders

    assert epochs(fl.DataLoader) == epochs(TORCH)


class Told(RandomSampler):
    """A sampler with its own generator that is told epochs."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch


@pytest.mark.parametrize("workers", [0, 1])
def test_an_epoch_that_is_set_late_draws_no_more(workers):
    def after(Loader):
        generator = torch.Generator().manual_seed(1)
        sampler = Told(range(9), generator=generator)
        loader = Loader(Numbers(9), batch_size=2, sampler=sampler, num_workers=workers)
        for epoch in (3, 4):
            iterator = iter(loader)
            sampler.set_epoch(epoch)
            flat(iterator)
        return states(generator)

    torch.manual_seed(0)
    ours = after(fl.DataLoader)
    torch.manual_seed(0)
    assert after(TORCH) == ours


# ---- attributes -------------------------------------------------------------------------------------------------


def make(**options):
    options = {"batch_size": 4, "shuffle": True, "seed": 1, **options}
    return fl.DataLoader(Numbers(64), **{name: value for name, value in options.items() if value is not None})


def listed(samples):
    return [0, *samples]


SETTINGS = [
    ("partition", (1, 3)),
    ("seed", 99),
    ("num_workers", 1),
    ("collate_fn", listed),
    ("device", "meta"),
    ("progress", lambda done, total: None),
    ("in_order", False),
    ("prefetch_factor", None),
]


@pytest.mark.parametrize(
    ("name", "value", "past"),
    [
        *((*setting, past) for setting in SETTINGS for past in (False, True)),
        ("shuffle", False, False),  # no attribute of torch's loader, nor of ours before it is set
    ],
)
def test_an_attribute_takes_effect_at_the_next_sweep(name, value, past):
    """Also one that is set past ``__setattr__``."""
    loader, fresh = make(workers="thread"), make(workers="thread", **{name: value})
    iterator = iter(loader)
    next(iterator)
    (object.__setattr__ if past else setattr)(loader, name, value)
    assert len(list(iterator)) == 15, "the sweep in progress goes on as it began"
    list(fresh)
    assert getattr(loader, name) == getattr(fresh, name, value)
    for got, expected in zip(loader, fresh, strict=True):
        assert type(got) is type(expected)
        assert got == expected if isinstance(got, list) else got.is_meta or torch.equal(got, expected)
    assert loader.state_dict() == fresh.state_dict()
    assert type(loader.sampler) is type(fresh.sampler)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partition", (3, 2)),
        ("partition", "some"),
        ("seed", -1),
        ("num_workers", -1),
        ("timeout", -1),
        ("workers", "some"),
        ("on_error", "some"),
        ("transforms", [len]),
        ("progress", 3),
        ("generator", 3),
    ],
)
def test_an_attribute_that_cannot_take_effect_raises_and_changes_nothing(name, value):
    loader, fresh = make(), make()
    before = getattr(loader, name)
    with pytest.raises((ValueError, TypeError)):
        setattr(loader, name, value)
    assert getattr(loader, name) is before
    assert flat(loader) == flat(fresh)


def test_another_generator_is_refused_once_ranks_share_a_seed():
    loader = make(seed=None, partition="auto")
    flat(loader)
    with pytest.raises(ValueError, match="generator"):
        loader.generator = torch.Generator()


@both
@workers
@pytest.mark.parametrize("sampler", [None, range(12)])
def test_attributes_of_the_batch_sampler(Loader, workers, sampler):
    """Programs let batches grow as training goes on."""
    loader = Loader(Numbers(12), batch_size=4, sampler=sampler, num_workers=workers)
    flat(loader)
    held = loader.batch_sampler
    for held.batch_size, lengths in ((3, [3, 3, 3, 3]), (5, [5, 5, 2])):
        assert len(loader) == len(lengths)
        assert [len(batch) for batch in loader] == lengths
    held.drop_last = True
    assert [len(batch) for batch in loader] == [5, 5]
    held.sampler = [3, 1, 2, 5, 4]
    assert flat(loader) == [3, 1, 2, 5, 4]
    held.batch_size = 0
    with pytest.raises((ValueError, StopIteration)):
        next(iter(loader))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"partition": (0, 2)}, "seed"),
        ({"partition": (0, 2)}, "shuffle"),
        ({"partition": (0, 2)}, "rank"),
        ({"shuffle": None, "sampler": fl.Weighted(range(64))}, "weights"),
        ({}, "data_source"),
    ],
)
def test_attributes_of_the_sampler_are_fixed(options, name):
    with pytest.raises(AttributeError):
        setattr(make(**options).sampler, name, 1)


def test_a_subclass_keeps_its_own_shuffle():
    class Kept(fl.DataLoader):
        def __init__(self, dataset, shuffle, **options):
            super().__init__(dataset, shuffle=shuffle, **options)
            self.shuffle = shuffle

    class Sampling(fl.DataLoader):
        def __init__(self, dataset, shuffle, **options):
            super().__init__(dataset, sampler=RandomSampler(dataset) if shuffle else None, **options)
            self.shuffle = shuffle

    for kind in (Kept, Sampling):
        loader = kind(Numbers(8), True)
        assert loader.shuffle is True
        assert sorted(flat(loader)) == list(range(8))


def test_a_dataset_that_is_put_in_its_place_has_its_samplers():
    loader = make()
    flat(loader)
    object.__setattr__(loader, "dataset", Numbers(8))
    assert sorted(flat(loader)) == list(range(8))
    assert len(loader.sampler) == 8
    loader.sampler.set_epoch(0)
    assert loader.state_dict()["sweep"] == 0


def test_skipping_is_set_later(tmp_path):
    loader = fl.DataLoader([1, 2, object(), 4], batch_size=None, collate_fn=int)
    loader.on_error = "skip"
    with pytest.raises(TypeError):  # what collate_fn raises is no unreadable item
        list(loader)
    loader = make()
    loader.on_error, loader.quarantine = "skip", tmp_path / "bad.jsonl"
    assert sorted(flat(loader)) == list(range(64))


def test_another_seed_is_refused_while_a_state_is_to_be_continued():
    loader = make()
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="seed"):
        loader.seed = 3
    assert len(flat(loader)) == 60


def test_a_copy_has_what_was_set():
    loader = make()
    loader.partition = (0, 2)
    assert flat(copy.copy(loader)) == flat(make(partition=(0, 2)))


# ---- subclasses and contexts of known projects ------------------------------------------------------------------


class Again:
    """A sampler without end."""

    def __init__(self, sampler) -> None:
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from self.sampler


def endless(Loader):
    """The loader of detection frameworks: one endless iterator, over a batch sampler that replaces its own."""

    class Endless(Loader):
        def __init__(self, *arguments, **options) -> None:
            super().__init__(*arguments, **options)
            object.__setattr__(self, "batch_sampler", Again(self.batch_sampler))
            self.iterator = super().__iter__()

        def __len__(self) -> int:
            return len(self.batch_sampler.sampler)

        def __iter__(self):
            for _ in range(len(self)):
                yield next(self.iterator)

    return Endless


@both
@workers
@pytest.mark.parametrize("given", [False, True])
def test_an_endless_loader(Loader, workers, given):
    def epochs():
        torch.manual_seed(4)
        generator = torch.Generator().manual_seed(4) if given else None
        loader = endless(Loader)(
            Numbers(16), batch_size=4, shuffle=True, num_workers=workers, generator=generator, prefetch_factor=None
        )
        return [[batch.tolist() for batch in loader] for _ in range(3)]

    orders = epochs()
    assert [len(epoch) for epoch in orders] == [4, 4, 4]
    assert all(sorted(itertools.chain(*epoch)) == list(range(16)) for epoch in orders)
    assert orders[0] != orders[1]
    assert epochs() == orders


@pytest.mark.parametrize("given", [False, True])
def test_an_endless_loader_resumes(given):
    def loader(seed):
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed) if given else None
        return endless(fl.DataLoader)(Numbers(16), batch_size=4, shuffle=True, generator=generator)

    first, second = loader(1), loader(2)
    flat(first)
    for _ in range(2):
        next(first.iterator)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    second.iterator = fl.DataLoader.__iter__(second)
    for _ in range(3):
        assert flat(second) == flat(first)


class ThreadAsProcess(threading.Thread):
    """A thread with the interface of a process, as in MONAI's thread workers."""

    pid = threading.get_native_id()
    exitcode = 0

    def terminate(self) -> None:
        pass


class ThreadContext(multiprocessing.context.BaseContext):
    """A context whose processes are threads."""

    _name = "threads"
    Process = ThreadAsProcess


def test_a_context_whose_processes_are_threads():
    """Not for torch's loader, whose workers would leave their number and their signal handlers in this process."""
    loader = fl.DataLoader(Numbers(8), batch_size=4, num_workers=2, multiprocessing_context=ThreadContext())
    for _ in range(2):
        assert flat(loader) == list(range(8))
        assert multiprocessing.active_children() == []
        assert get_worker_info() is None
