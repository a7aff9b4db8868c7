"""Workers: identity, start, lifetime, for torch's DataLoader and ours."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import pickle

import pytest

from tests.feed.loader.swapped import (
    Function,
    Numbers,
    Program,
    Stream,
    alive,
    both,
    flat,
    get_worker_info,
    pid_of,
    same,
    torch,
    wait_until,
    workers,
)

pytestmark = both


# ---- worker info --------------------------------------------------------------------------------------------


class Told(Numbers):
    """Sample ``i`` is the worker's own information."""

    def __getitem__(self, index):
        info = get_worker_info()
        if info is None:
            return None
        assert info.dataset is self
        return {"id": info.id, "of": info.num_workers, "seed": info.seed, "pid": os.getpid(), "rest": dir(info)}


def test_worker_info(Loader):
    (batches,) = [list(Loader(Told(20), num_workers=2, collate_fn=same, batch_size=2))]
    told = [sample for batch in batches for sample in batch]
    assert {sample["of"] for sample in told} == {2}
    assert {sample["id"] for sample in told} <= {0, 1}
    by_id = {sample["id"]: (sample["pid"], sample["seed"]) for sample in told}
    assert all(by_id[sample["id"]] == (sample["pid"], sample["seed"]) for sample in told)
    assert len(set(by_id.values())) == len(by_id)
    assert os.getpid() not in {sample["pid"] for sample in told}
    assert get_worker_info() is None


def test_no_worker_no_info(Loader):
    assert list(Loader(Told(3), collate_fn=same)) == [[None]] * 3


def change_the_info(index):
    info = get_worker_info()
    try:
        info.id = 7
    except (AttributeError, RuntimeError, dataclasses.FrozenInstanceError):
        return 1
    return 0


def test_worker_info_cannot_be_changed(Loader):
    assert flat(Loader(Function(change_the_info, 2), num_workers=1)) == [1, 1]


class Prepared(Numbers):
    """Sample ``i`` is the value that `prepare` set in the worker's own copy."""

    prepared: tuple = ()

    def __getitem__(self, index):
        return [*self.prepared, get_worker_info().id]


def prepare(worker):
    info = get_worker_info()
    info.dataset.prepared = (worker, info.id, int(info.seed == torch.initial_seed()))


def test_worker_init_fn_prepares_the_copy_of_each_worker(Loader):
    data = Prepared(8)
    got = list(Loader(data, batch_size=2, num_workers=2, worker_init_fn=prepare, collate_fn=same))
    assert len(got) == 4
    for sample in (sample for batch in got for sample in batch):
        assert sample == [sample[3], sample[3], 1, sample[3]]
    assert data.prepared == ()


def refuse(worker):
    raise AssertionError("there is no worker")


def test_worker_init_fn_is_for_workers_only(Loader):
    assert flat(Loader(Numbers(3), worker_init_fn=refuse)) == [0, 1, 2]


def threads_of_torch(index):
    return torch.get_num_threads()


def test_a_worker_is_one_thread_of_torch(Loader):
    assert set(flat(Loader(Function(threads_of_torch, 4), num_workers=2))) == {1}


# ---- start and end ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("prefetch", [1, 4])
def test_epochs_with_workers(Loader, persistent, prefetch):
    loader = Loader(Numbers(10), batch_size=3, num_workers=2, persistent_workers=persistent, prefetch_factor=prefetch)
    for _ in range(3):
        assert flat(loader) == list(range(10))


def test_persistent_workers_are_the_same_processes(Loader):
    loader = Loader(Function(pid_of, 16), num_workers=2, persistent_workers=True)
    pids = {pid for _ in range(3) for pid in flat(loader)}
    assert len(pids) in (1, 2)
    del loader
    assert wait_until(lambda: not any(map(alive, pids)))


@pytest.mark.parametrize("method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("as_object", [False, True])
def test_start_methods(Loader, method, as_object):
    context = multiprocessing.get_context(method) if as_object else method
    loader = Loader(Numbers(4), batch_size=2, num_workers=1, multiprocessing_context=context)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
    assert loader.multiprocessing_context.get_start_method() == method


@pytest.mark.skipif(multiprocessing.get_start_method() != "fork", reason="workers are not forked by default here")
def test_by_default_what_cannot_be_pickled_works(Loader):
    class Local(Numbers):
        pass

    assert flat(Loader(Local(4), num_workers=1, collate_fn=lambda items: torch.tensor(items) + 1)) == [1, 2, 3, 4]


UNGUARDED = """
    import torch

    class Local(torch.utils.data.Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            return torch.tensor([float(index)])

    print([len(batch) for batch in Loader(Local(), batch_size=4, num_workers=2, collate_fn=lambda items: items)])
"""


@pytest.mark.skipif(multiprocessing.get_start_method() != "fork", reason="workers are not forked by default here")
def test_by_default_a_program_needs_no_guard(Loader, tmp_path):
    assert Program(Loader, UNGUARDED, tmp_path).output() == "[4, 2]\n"


# ---- several at once ----------------------------------------------------------------------------------------


@workers
def test_two_iterators_of_one_loader(Loader, workers):
    loader = Loader(Numbers(6), batch_size=2, num_workers=workers)
    pairs = [(a.tolist(), b.tolist()) for a, b in zip(loader, loader, strict=True)]
    assert pairs == [([i, i + 1],) * 2 for i in (0, 2, 4)]


@workers
def test_nested_loops_over_one_loader(Loader, workers):
    loader = Loader(Numbers(4), batch_size=2, num_workers=workers)
    assert [flat([a, b]) for a in loader for b in loader] == [[0, 1, 0, 1], [0, 1, 2, 3], [2, 3, 0, 1], [2, 3, 2, 3]]


@workers
def test_two_loaders_of_one_dataset(Loader, workers):
    data = Numbers(4)
    loaders = [Loader(data, batch_size=2, num_workers=workers) for _ in range(2)]
    assert [flat(pair) for pair in zip(*loaders, strict=True)] == [[0, 1, 0, 1], [2, 3, 2, 3]]


@workers
def test_an_iterator_that_has_ended_stays_ended(Loader, workers):
    iterator = iter(Loader(Numbers(2), num_workers=workers))
    assert len(list(iterator)) == 2
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(iterator)


@workers
def test_an_iterator_knows_its_length_and_stays_here(Loader, workers):
    iterator = iter(Loader(Numbers(10), batch_size=4, num_workers=workers))
    assert len(iterator) == 3
    assert iter(iterator) is iterator
    with pytest.raises(NotImplementedError):
        pickle.dumps(iterator)


class Inner(Numbers):
    """Sample ``i`` is the sum that another loader reads, here."""

    def __init__(self, Loader, n: int) -> None:
        super().__init__(n)
        self.loader = Loader

    def __getitem__(self, index):
        return sum(flat(self.loader(Numbers(index + 1), batch_size=2)))


def test_a_loader_within_a_worker(Loader):
    assert flat(Loader(Inner(Loader, 4), num_workers=2)) == [0, 1, 3, 6]


# ---- sizes --------------------------------------------------------------------------------------------------


def large(index):
    return torch.full((4, 1024, 1024), index, dtype=torch.float32)


def test_large_tensors(Loader):
    """16 MB a sample, 32 MB a batch."""
    batches = list(Loader(Function(large, 6), batch_size=2, num_workers=2))
    assert len(batches) == 3
    for i, batch in enumerate(batches):
        assert batch.shape == (2, 4, 1024, 1024)
        assert [batch[k].unique().tolist() for k in range(2)] == [[2 * i], [2 * i + 1]]


def lopsided(index):
    return torch.full((1 << (3 * index),), index, dtype=torch.uint8)


def test_batches_of_very_different_sizes(Loader):
    """1 byte to 2 MB, up and down."""
    order = [0, 7, 1, 6, 0, 7, 2, 5, 7, 0]
    batches = list(Loader(Function(lopsided), sampler=order, num_workers=2))
    assert len(batches) == len(order)
    for i, batch in enumerate(batches):
        assert batch.shape == (1, 1 << (3 * order[i]))
        assert batch.unique().tolist() == [order[i]]


def test_many_batches_held_with_few_descriptors(Loader, tmp_path):
    """Either they come, or the error names the limit: no hang, no other error."""
    script = """
        import resource
        from tests.feed.loader.swapped import Function
        from tests.feed.loader.test_torch_workers import small

        if __name__ == "__main__":
            resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
            try:
                kept = list(Loader(Function(small, 300), num_workers=1))
            except (RuntimeError, OSError) as error:
                told = str(error).lower()
                assert "open files" in told or "ancdata" in told or "file descriptor" in told, error
                print("told")
            else:
                assert [int(batch[0, 0]) for batch in kept] == list(range(300))
                print("came")
    """
    assert Program(Loader, script, tmp_path).output() in ("told\n", "came\n")


def small(index):
    return torch.full((300,), index)


# ---- attributes changed between two sweeps -------------------------------------------------------------------


def negative(samples):
    return [-sample for sample in samples]


@pytest.mark.parametrize("data", [Numbers(13), Stream(13)], ids=["map", "iterable"])
@pytest.mark.parametrize("before", [0, 2])
def test_another_collate_fn_is_used_from_the_next_sweep_on(Loader, data, before):
    loader = Loader(data, batch_size=2, num_workers=before)
    assert sorted(flat(loader)) == list(range(13))
    loader.collate_fn = negative
    assert sorted(flat(loader)) == [-i for i in reversed(range(13))]


@pytest.mark.parametrize("data", [Numbers(13), Stream(13)], ids=["map", "iterable"])
@pytest.mark.parametrize(("before", "after"), [(2, 1), (2, 0), (1, 2)])
def test_another_number_of_workers_reads_the_same_samples(Loader, data, before, after):
    loader = Loader(data, batch_size=2, num_workers=before)
    assert sorted(flat(loader)) == list(range(13))
    loader.num_workers = after
    assert sorted(flat(loader)) == list(range(13))


def test_another_worker_init_fn_prepares_new_workers(Loader):
    loader = Loader(Prepared(4), num_workers=2, collate_fn=same)
    assert {len(sample) for batch in loader for sample in batch} == {1}
    loader.worker_init_fn = prepare
    assert {len(sample) for batch in loader for sample in batch} == {4}


# ---- a dataset that the loop changes between two sweeps ------------------------------------------------------


class Scaled:
    """A transform with a setting."""

    def __init__(self, by: int = 1) -> None:
        self.by = by

    def __call__(self, value):
        return self.by * value


class Staged(Numbers):
    """Has what training loops set: an epoch, transforms in a list, a part in a dictionary."""

    def __init__(self, n: int = 6) -> None:
        super().__init__(n)
        self.epoch, self.transforms, self.parts = 0, [Scaled()], {"scale": Scaled()}

    def __getitem__(self, index):
        value = index + 100 * self.epoch
        for transform in (*self.transforms, *self.parts.values()):
            value = transform(value)
        return value


class StagedStream(Stream):
    def __init__(self, n: int = 6) -> None:
        super().__init__(n)
        self.staged = Staged(n)

    def __iter__(self):
        return (self.staged[index] for index in super().__iter__())


class Rest(Numbers):
    """Wraps a dataset, as `Subset` does."""

    def __init__(self, dataset) -> None:
        super().__init__(len(dataset))
        self.dataset = dataset

    def __getitem__(self, index):
        return self.dataset[index]


def set_epoch(staged):
    staged.epoch = 1


def replace_a_transform(staged):
    staged.transforms[0] = Scaled(3)


def set_a_transform(staged):
    staged.transforms[0].by = 3


def add_a_transform(staged):
    staged.transforms.append(Scaled(3))


def set_a_part(staged):
    staged.parts["scale"].by = 3


def shadow_a_method(staged):
    staged.transforms = [Scaled(3).__call__]


CHANGES = [set_epoch, replace_a_transform, set_a_transform, add_a_transform, set_a_part, shadow_a_method]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_workers_see_what_the_loop_has_changed(Loader, change):
    staged = Staged()
    loader = Loader(staged, batch_size=2, num_workers=2)
    assert flat(loader) == list(range(6))
    change(staged)
    changed = [staged[i] for i in range(6)]
    assert flat(loader) == flat(loader) == changed != list(range(6))


@workers
@pytest.mark.parametrize("wrap", [Rest, lambda data: torch.utils.data.Subset(data, range(6))])
def test_they_see_it_inside_other_datasets(Loader, workers, wrap):
    staged = Staged()
    loader = Loader(wrap(staged), batch_size=2, num_workers=workers)
    assert flat(loader) == list(range(6))
    set_a_transform(staged)
    assert flat(loader) == [staged[i] for i in range(6)]


@workers
def test_workers_of_a_stream_see_what_the_loop_has_changed(Loader, workers):
    data = StagedStream()
    loader = Loader(data, batch_size=2, num_workers=workers)
    assert sorted(flat(loader)) == list(range(6))
    set_epoch(data.staged)
    assert sorted(flat(loader)) == [data.staged[i] for i in range(6)]


class Scaling:
    """A collate_fn with a setting."""

    by = 1

    def __call__(self, samples):
        return torch.tensor(samples) * self.by


def test_workers_see_a_changed_collate_fn(Loader):
    collate = Scaling()
    loader = Loader(Numbers(6), batch_size=2, num_workers=2, collate_fn=collate)
    assert flat(loader) == list(range(6))
    collate.by = 5
    assert flat(loader) == [5 * i for i in range(6)]


def test_persistent_workers_keep_their_copies(Loader):
    staged = Staged()
    loader = Loader(staged, batch_size=2, num_workers=2, persistent_workers=True)
    assert flat(loader) == list(range(6))
    set_epoch(staged)
    assert flat(loader) == list(range(6))
