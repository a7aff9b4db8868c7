"""The fetcher's binding: bytes of files, runs of sequences, and errors."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest

from feedline import _native


@pytest.fixture
def file(tmp_path):
    """(path, its bytes, a map of it)."""
    content = np.random.default_rng(1).integers(0, 256, 500_000, np.uint8)
    path = tmp_path / "file"
    path.write_bytes(content.tobytes())
    return str(path), content, np.memmap(path, np.uint8, "r")


def address(array):
    return array.__array_interface__["data"][0]


@pytest.fixture(params=["any", "threads"])
def fetcher(request):
    return _native.Fetcher(request.param, 16, 1 << 20)


def test_ranges_are_the_bytes_of_the_file(fetcher, file):
    path, content, _ = file
    number = fetcher.add(path, len(content))
    ranges = [(number, 0, 10), (number, 4096, 8192), (number, 77_777, 333_333), (number, 499_999, 1), (number, 5, 0)]
    fetch = fetcher.read(ranges)
    found = fetch.result()
    assert fetch.done
    for got, (_, offset, size) in zip(found, ranges, strict=True):
        assert len(got) == size
        np.testing.assert_array_equal(np.frombuffer(got, np.uint8, size), content[offset : offset + size])
    assert 0 < fetcher.disk_bytes <= 600_000
    view = np.frombuffer(found[2], np.uint8)
    del fetch, found, got, fetcher
    gc.collect()
    np.testing.assert_array_equal(view, content[77_777 : 77_777 + 333_333])
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


def test_a_cut_file_is_reported_with_its_place(fetcher, file):
    path, content, _ = file
    number = fetcher.add(path, len(content))
    os.truncate(path, 100_000)
    assert fetcher.read([(number, 0, 99_000), (number, 50_000, 100_000)]).result()[1] == (-1, 100_000)


def test_refusals(fetcher, file, tmp_path):
    path, content, _ = file
    number = fetcher.add(path, len(content))
    for offset, size in ((-1, 5), (0, 500_001), (500_000, 1), (2**62, 2**62)):
        with pytest.raises(ValueError, match="expected a range of the 500000 bytes"):
            fetcher.read([(number, offset, size)])
    with pytest.raises(IndexError, match="expected a file"):
        fetcher.read([(7, 0, 1)])
    with pytest.raises(FileNotFoundError):
        fetcher.add(str(tmp_path / "none"), 1)
    with pytest.raises(OSError, match="Stale"):
        fetcher.add(path, len(content), 0, (1, 2))
    with pytest.raises(OSError, match="Stale"):
        fetcher.add(str(tmp_path), 1)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="Stale"):
        fetcher.add(str(tmp_path / "pipe"), 1)
    with pytest.raises(ValueError, match="backend"):
        _native.Fetcher("disk")
    with pytest.raises(ValueError, match="depth"):
        _native.Fetcher("any", 0)


def dense(content):
    gatherer = _native.Gatherer([None, None])
    x, y = content[:400_000].view(np.float32).reshape(1000, 100), content[400_000:408_000].view(np.int64)
    gatherer.add(0, [(x[:600], None), (y[:600], None)])
    gatherer.add(3, [(x[600:], None), (y[600:], None)])
    return gatherer, x, y


@pytest.mark.parametrize("keep", [[0, 0], [0, 1]])
@pytest.mark.parametrize("ask", [True, False])
def test_runs_match_the_file(fetcher, file, keep, ask):
    path, content, mapped = file
    fetcher.add(path, len(content), address(mapped), None, True, ask)
    gatherer, x, y = dense(mapped)
    rng = np.random.default_rng(2)
    slots = rng.choice([0, 3], 50).astype(np.uint32)
    index = rng.integers(0, 300, 50)
    where = np.where(slots == 0, 0, 600) + index
    staged = gatherer.stage(fetcher, slots, index, None, keep)
    assert staged.faults() == []
    (rows, offsets), (labels, _) = staged.gather()
    assert offsets is None
    assert rows.tobytes() == x[where].tobytes()
    assert labels.tobytes() == y[where].tobytes()
    which = np.array([4, 4, 49, 0])
    assert staged.gather(which)[0][0].tobytes() == x[where[which]].tobytes()
    asked, missing, nbytes = staged.found()
    assert asked >= missing
    assert (missing > 0) == (staged.memory > 0) == (nbytes > 0)
    assert ask or missing == asked

    counts = rng.integers(1, 90, 50)
    staged = gatherer.stage(fetcher, slots, index, counts, keep)
    for run in range(50):
        gatherer.adopt(5, staged, run)
        assert gatherer.sequences(5) == counts[run]
        rows = gatherer.gather(np.full(counts[run], 5, np.uint32), np.arange(counts[run]))[0][0]
        assert rows.tobytes() == x[where[run] : where[run] + counts[run]].tobytes()
        gatherer.remove(5)


def test_what_was_staged_outlives_its_slots(fetcher, file):
    path, content, mapped = file
    fetcher.add(path, len(content), address(mapped), None, True, False)
    gatherer, x, _ = dense(mapped)
    staged = gatherer.stage(fetcher, None, np.arange(600), None, [0, 0])
    gatherer.clear()
    del gatherer, fetcher, mapped
    gc.collect()
    assert staged.gather()[0][0].tobytes() == x[:600].tobytes()


def test_refused_runs(fetcher, file):
    path, content, mapped = file
    number = fetcher.add(path, len(content), address(mapped), None, True, False)
    gatherer, x, y = dense(mapped)
    index = np.zeros(1, np.int64)
    with pytest.raises(IndexError, match="slot that holds a chunk"):
        gatherer.stage(fetcher, np.array([1], np.uint32), index, None, [0, 0])
    with pytest.raises(IndexError, match="expected a run inside the 600 sequences"):
        gatherer.stage(fetcher, None, index + 599, np.array([2]), [0, 0])
    with pytest.raises(IndexError, match="expected a run inside the 600 sequences"):
        gatherer.stage(fetcher, None, index, index, [0, 0])
    with pytest.raises(ValueError, match="equal length"):
        gatherer.stage(fetcher, None, index, np.array([1, 2]), [0, 0])
    with pytest.raises(ValueError, match="2 streams"):
        gatherer.stage(fetcher, None, index, None, [0])
    with pytest.raises(TypeError, match="expected a Fetcher"):
        gatherer.stage("disk", None, index, None, [0, 0])
    staged = gatherer.stage(fetcher, None, index, None, [0, 0])
    with pytest.raises(IndexError, match="expected a run"):
        staged.gather(np.array([1]))
    with pytest.raises(ValueError, match="a vacant slot, got slot"):
        gatherer.adopt(0, staged, 0)
    with pytest.raises(IndexError, match="expected a run"):
        gatherer.adopt(9, staged, 1)
    other = _native.Gatherer([None])
    with pytest.raises(ValueError, match="same streams"):
        other.adopt(0, staged, 0)
    other = _native.Gatherer([None, None])
    other.add(0, [(x[:4].view(f"S{x.itemsize}"), None), (y[:4], None)])
    with pytest.raises(ValueError, match="stream 0 of slot 9: expected dtype"):
        other.adopt(9, staged, 0)
    fetcher.fail(number, 0, 10, 5)
    staged = gatherer.stage(fetcher, None, np.array([1, 0, 2]), None, [0, 0])
    assert staged.faults() == [(1, 0, 5, path, 0)]
    with pytest.raises(ValueError, match="faults"):
        staged.gather()
    assert len(staged.gather(np.array([2, 0]))[0][0]) == 2
    with pytest.raises(IndexError, match="expected a run that could be read"):
        gatherer.adopt(9, staged, 1)


def test_what_the_page_cache_lacks(fetcher, file):
    path, content, mapped = file
    gatherer, _, _ = dense(mapped)
    where = np.arange(0, 600, 10)
    assert gatherer.lacking(fetcher, None, where, None, 5, 1) == 0  # in no file that is known
    number = fetcher.add(path, len(content), address(mapped))
    mapped.sum()
    assert gatherer.lacking(fetcher, None, where, None, 5, 1) == 0
    assert fetcher.held(number, 0, 500_000, 1000) == fetcher.held(number, 0, 500_000, 123) == 123
    other = _native.Fetcher("any", 4, 0)
    other.add(path, len(content), address(mapped), None, True, False)
    assert gatherer.lacking(other, None, where, None, 5, 1) == 5
    assert gatherer.lacking(other, None, where, np.full(60, 3), 1000, 3) == 60
