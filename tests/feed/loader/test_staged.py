"""Arrays in files give the batches of arrays in memory, wherever the bytes are, even if some cannot be read."""

from __future__ import annotations

import errno
import json
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline import _native
from feedline.feed.files import mapped_arrays as file_maps
from feedline.feed.loader.iterator import LoaderIterator
from feedline.feed.loader.staged import StagedExecutor
from tests.effort import examples
from tests.feed.page_cache import evict
from tests.inside import executor_of, fetch_mapped_files
from tests.linux import linux_only

torch = pytest.importorskip("torch", reason="torch is not installed")

ROWS, WIDTH = 3000, 700


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Row i of x is i. y has one byte, z none or one."""
    path = tmp_path_factory.mktemp("npy")
    np.save(path / "x.npy", np.repeat(np.arange(ROWS, dtype=np.float32), WIDTH).reshape(ROWS, WIDTH))
    np.save(path / "y.npy", np.arange(ROWS))
    np.save(path / "z.npy", np.arange(ROWS) % 3 == 0)
    return path


@pytest.fixture
def copy(folder, tmp_path):
    """Files that may be damaged."""
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def mapped(folder):
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in "xyz"}


def in_memory(folder):
    return {name: np.load(folder / f"{name}.npy") for name in "xyz"}


def same(one, two):
    assert len(one) == len(two)
    for a, b in zip(one, two, strict=True):
        assert list(a) == list(b)
        for name in a:
            assert a[name].dtype == b[name].dtype
            assert torch.equal(a[name], b[name])


@pytest.mark.parametrize("backend", ["any", "threads"])
@given(
    seed=st.integers(0, 99),
    size=st.integers(1, 700),
    kind=st.sampled_from(["order", "shuffle", "weights", "sampler"]),
    share=st.sampled_from([None, (0, 2), (2, 3)]),
    sweeps=st.integers(1, 2),
)
@settings(max_examples=examples(6))
def test_batches_equal_batches_from_memory(folder, backend, seed, size, kind, share, sweeps):
    """In order, shuffled, weighted and by a user's sampler, also a rank's part."""
    options = {"batch_size": size, "seed": seed}
    if kind == "sampler":
        options["sampler"] = np.random.default_rng(seed).permutation(ROWS)[:1500].tolist()
    else:
        options["partition"] = share
        options |= {"order": {}, "shuffle": {"shuffle": True}, "weights": {"sampler": fl.Weighted(np.arange(ROWS))}}[
            kind
        ]
    with pytest.MonkeyPatch.context() as patch:
        fetch_mapped_files(patch, backend)
        fetched, plain = (fl.DataLoader(make(folder), **options) for make in (mapped, in_memory))
        for _ in range(sweeps):
            iterator = iter(fetched)
            assert isinstance(iterator, LoaderIterator)
            assert isinstance(executor_of(iterator), StagedExecutor)
            same(list(iterator), list(plain))


@pytest.mark.parametrize("shuffle", [False, True])
def test_resumes_with_batches_on_their_way(folder, monkeypatch, shuffle):
    """Prefetched items were not delivered: a state covers only delivered ones."""
    fetch_mapped_files(monkeypatch)
    expected = list(fl.DataLoader(in_memory(folder), 64, shuffle=shuffle, seed=3))
    loader = fl.DataLoader(mapped(folder), 64, shuffle=shuffle, seed=3)
    iterator = iter(loader)
    found = [next(iterator) for _ in range(7)]
    again = fl.DataLoader(mapped(folder), 64, shuffle=shuffle, seed=3)
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    same(found + list(again), expected)
    same(found + list(iterator), expected)


@linux_only("a table of all maps")
@pytest.mark.parametrize("shuffle", [False, True])
def test_tensors_and_subsets_over_files(folder, monkeypatch, shuffle):
    """However the arrays are wrapped: their memory decides."""
    monkeypatch.setattr(file_maps, "_WORTH_A_LOOK_BYTES", 0)
    fetch_mapped_files(monkeypatch)
    x = np.load(folder / "x.npy", mmap_mode="r+")
    picks = np.random.default_rng(0).permutation(ROWS)[:500].tolist()
    for wrap in (
        torch.utils.data.TensorDataset,
        lambda tensor: torch.utils.data.Subset(torch.utils.data.TensorDataset(tensor), picks),
    ):
        fetched = fl.DataLoader(wrap(torch.from_numpy(x)), 64, shuffle=shuffle, seed=1)
        plain = fl.DataLoader(wrap(torch.from_numpy(np.array(x))), 64, shuffle=shuffle, seed=1)
        iterator = iter(fetched)
        assert isinstance(executor_of(iterator), StagedExecutor)
        for one, two in zip(iterator, plain, strict=True):
            assert torch.equal(one[0], two[0])


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_failing_disk_is_an_error_of_its_batch(folder, monkeypatch, shuffle, forced):
    """Errors name file, byte and item. The next call continues after it. Only uncached items fail."""
    place = 128 + 1234 * WIDTH * 4
    fetch_mapped_files(monkeypatch, forced=forced, fail=("x.npy", place + 40, place + 50, errno.EIO))
    expected = list(fl.DataLoader(in_memory(folder), 64, shuffle=shuffle, seed=3))
    if not forced:
        # Kept, the page that it shares with item 1233 would be in memory once that has been read.
        monkeypatch.setattr("feedline.feed.reading.fetching_reader.fits_page_cache", lambda total_bytes: False)
        if not evict([str(folder / "x.npy")], leave=0):
            pytest.skip("the file system lets go of no pages")
    iterator = iter(fl.DataLoader(mapped(folder), 64, shuffle=shuffle, seed=3))
    found, errors = [], []
    while True:
        try:
            found.append(next(iterator))
        except StopIteration:
            break
        except fl.DataError as error:
            errors.append(error)
    (error,) = errors
    assert error.path == str(folder / "x.npy")
    assert (error.byte, error.sequence) == (place + 40, 1234)
    assert "Input/output error" in str(error)
    same(found, [batch for batch in expected if 1234 not in batch["y"]])


@pytest.mark.parametrize("backend", ["any", "threads"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_items_that_cannot_be_read_are_passed_over(folder, monkeypatch, tmp_path, shuffle, backend):
    """Each keeps its place in the order and is listed. The other items of its batch come."""
    place = 128 + 77 * WIDTH * 4
    fetch_mapped_files(monkeypatch, backend, fail=("x.npy", place + 4, place + WIDTH * 4 + 4, errno.EIO))
    expected = list(fl.DataLoader(in_memory(folder), 64, shuffle=shuffle, seed=3))
    listed = tmp_path / "listed.jsonl"
    loader = fl.DataLoader(mapped(folder), 64, shuffle=shuffle, seed=3, on_error=fl.Quarantine(listed))
    found = list(loader)
    good = [torch.tensor([i not in (77, 78) for i in batch["y"].tolist()]) for batch in expected]
    same(found, [{k: v[g] for k, v in batch.items()} for batch, g in zip(expected, good, strict=True)])
    lines = [json.loads(line) for line in listed.read_text().splitlines()]
    assert sorted(line["sequence"] for line in lines) == [77, 78]
    assert all("Input/output error" in line["reason"] and "x.npy" in line["reason"] for line in lines)
    assert loader.stats().skipped == 2


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_truncated_file_costs_the_items_after_the_cut(copy, monkeypatch, shuffle, forced):
    """Also if its pages were in memory. Items before the cut are delivered."""
    fetch_mapped_files(monkeypatch, forced=forced)
    monkeypatch.setattr("feedline.feed.reading.fetching_reader.MIN_AHEAD_BYTES", 1 << 20)
    monkeypatch.setattr("feedline.feed.loader.staged.STAGED", 256)
    arrays = mapped(copy)
    loader = fl.DataLoader(arrays, 64, shuffle=shuffle, seed=3, on_error=fl.Quarantine(copy / "listed.jsonl"))
    iterator = iter(loader)
    seen = next(iterator)["y"].tolist()
    os.truncate(copy / "x.npy", 128 + 2000 * WIDTH * 4)
    found = list(iterator)
    for batch in found:
        assert torch.equal(batch["x"][:, WIDTH - 1], batch["y"].float())
    seen += torch.cat([batch["y"] for batch in found]).tolist()
    assert set(range(2000)) <= set(seen)
    lines = [json.loads(line) for line in (copy / "listed.jsonl").read_text().splitlines()]
    assert sorted(seen + [line["sequence"] for line in lines]) == list(range(ROWS))
    assert lines
    assert all("x.npy" in line["reason"] for line in lines)


def test_an_interrupt_loses_nothing(folder, monkeypatch):
    """Ctrl-C where reads begin and where they are waited for: the next call makes the same batch."""
    fetch_mapped_files(monkeypatch)
    expected = list(fl.DataLoader(in_memory(folder), 64, shuffle=True, seed=3))
    calls = []

    def interrupted(original):
        def call(*arguments):
            calls.append(1)
            if len(calls) in (2, 5, 6, 30):
                raise KeyboardInterrupt
            return original(*arguments)

        return call

    monkeypatch.setattr(_native.Gatherer, "stage", interrupted(_native.Gatherer.stage))
    monkeypatch.setattr(_native.Staged, "gather", interrupted(_native.Staged.gather))
    iterator, found = iter(fl.DataLoader(mapped(folder), 64, shuffle=True, seed=3)), []
    while True:
        try:
            found.append(next(iterator))
        except KeyboardInterrupt:
            continue
        except StopIteration:
            break
    assert len(calls) > 30
    same(found, expected)
