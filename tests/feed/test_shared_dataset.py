"""`fl.shared`: the same data as before, once in memory, read-only, under every start method."""

from __future__ import annotations

import gc
import mmap
import operator
import pickle
import warnings
from collections import OrderedDict, defaultdict
from enum import Enum
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl
from feedline.feed.workers import copied_memory
from tests.forked import Forked
from tests.linux import linux_only

PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary(max_size=9)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers()), inner, max_size=3),
    ),
    max_leaves=6,
)
KEYS = st.one_of(st.text(), st.integers(), st.floats(allow_nan=False), st.binary(max_size=5), st.tuples(st.text()))


class Annotations:
    """A dataset as people write them, with lists of dictionaries in its attributes."""

    def __init__(self, count):
        self.records = [{"file": f"img_{i:08d}.jpg", "box": [i, i + 1], "class": i % 80} for i in range(count)]
        self.by_name = {record["file"]: i for i, record in enumerate(self.records)}
        self.splits = {"train": list(range(count)), "few": [1, 2]}
        self.pixels = np.arange(count * 8).reshape(count, 8)
        self.other = Other(self)

    def __len__(self):
        return len(self.records)

    def __getitem__(self, i):
        record = self.records[i]
        place = self.by_name[record["file"]]
        return np.array([*record["box"], record["class"], place, self.splits["train"][i], self.pixels[i, 3]])


class Other:
    """An object that a dataset refers to, and that refers back."""

    def __init__(self, owner):
        self.owner, self.paths = owner, tuple(Path(f"{i}") for i in range(2000))


@given(st.lists(PLAIN, min_size=1, max_size=30))
def test_a_shared_list_is_the_list(entries):
    entries *= 1 + 1024 // len(entries)
    shared = fl.shared(entries)
    assert shared == entries
    assert entries == shared
    assert list(shared) == entries
    assert len(shared) == len(entries)
    assert [type(entry) for entry in shared[:50]] == [type(entry) for entry in entries[:50]]
    for at in (0, -1, len(entries) - 1, np.int64(3), slice(2, 9), slice(None, None, -7), slice(-3, None)):
        assert shared[at] == entries[at]
    assert entries[5] in shared
    assert shared.index(entries[7]) == entries.index(entries[7])
    assert [*shared, 1] == [*entries, 1]
    assert operator.add([1], shared) == [1, *entries]
    assert fl.shared(tuple(entries)) == tuple(entries)
    assert fl.shared(tuple(entries)) != entries
    assert shared != entries[1:]
    for past in (len(entries), -len(entries) - 1):
        with pytest.raises(IndexError, match="list index out of range"):
            _ = shared[past]


@given(st.dictionaries(KEYS, PLAIN, min_size=1, max_size=20), st.lists(KEYS, max_size=5))
def test_a_shared_dictionary_is_the_dictionary(entries, others):
    entries = {**{("row", str(i)): i for i in range(1024)}, **entries}
    shared = fl.shared(entries)
    assert shared == entries
    assert entries == shared
    assert list(shared.items()) == list(entries.items())
    assert list(shared.values()) == list(entries.values())
    assert list(shared) == list(entries)
    for key in [*entries, *others]:
        assert (key in shared) == (key in entries)
        assert shared.get(key, "none") == entries.get(key, "none")
    with pytest.raises(KeyError, match="nothing"):
        _ = shared["nothing"]
    with pytest.raises(TypeError, match="unhashable"):
        _ = shared[[1]]
    assert shared | {"new": 1} == entries | {"new": 1}


def test_equal_keys_of_other_types_and_defaults():
    shared = fl.shared(defaultdict(list, {i: [i] for i in range(3000)}))
    assert shared[5] == shared[5.0] == shared[np.int64(5)] == [5]
    assert shared[True] == [1]
    assert shared[5000] == []
    assert 5000 not in shared
    ordered = fl.shared(OrderedDict((str(i), i) for i in reversed(range(2000))))
    assert list(ordered)[:2] == ["1999", "1998"]
    assert ordered[np.str_("7")] == 7


class Color(str, Enum):  # noqa: UP042 - older than StrEnum, and still written
    RED = "red"


class Point(NamedTuple):
    name: str
    x: int


def test_keys_are_found_under_equal_ones_of_subclasses():
    entries = {Color.RED: 1, Point("a", 2): 2, b"red": 3, **{i: i for i in range(2000)}}
    shared = fl.shared(entries)
    assert shared["red"] == shared[Color.RED] == shared[np.str_("red")] == 1
    assert shared["a", 2] == shared[Point("a", 2)] == 2
    assert shared[b"red"] == shared[np.bytes_(b"red")] == 3
    with pytest.raises(TypeError, match=r"numbers but not NaN, .* got nan"):
        fl.shared({float("nan"): 1, **entries})


def test_a_few_large_entries_do_not_keep_a_list_from_being_shared():
    uneven = [list(range(1 + 3000 * (i % 500 == 0))) for i in range(2000)]
    arrays = [np.arange(5) + i for i in range(2000)]
    assert fl.shared(uneven) == uneven
    assert type(fl.shared(uneven)) is not list
    shared = fl.shared(arrays)
    assert type(shared) is not list
    assert all(map(np.array_equal, shared, arrays))
    long = [list(range(5000))] * 2 + [list(range(4000)) for _ in range(1100)]
    shared = fl.shared(long)
    assert type(shared) is list
    assert shared[0] is shared[1]
    assert all(type(row) is not list for row in shared)
    assert shared == long


class Only:
    """An object of which there is one, as a logger."""

    def __init__(self):
        self.records = list(range(2000))

    def __copy__(self):
        return self


def test_objects_that_copy_to_themselves_stay_as_they_are():
    dataset = Annotations(2000)
    dataset.only = Only()
    shared = fl.shared(dataset)
    assert shared.only is dataset.only
    assert type(dataset.only.records) is list
    assert type(shared.records) is not list


def test_large_parts_are_found_and_the_original_stays():
    original = Annotations(3000)
    shared = fl.shared(original)
    assert type(shared) is Annotations
    assert shared.records == original.records
    assert type(original.records) is list
    assert type(shared.records) is not list
    assert type(shared.splits) is dict
    assert shared.splits["few"] is original.splits["few"]
    assert shared.splits["train"] == original.splits["train"]
    assert shared.other.owner is shared
    assert shared.other.paths == original.other.paths
    assert isinstance(shared.pixels, np.ndarray)
    assert np.array_equal(shared.pixels, original.pixels)
    assert type(shared.pixels[1:3]) is type(shared.pixels + 1) is np.ndarray
    original.records[0] = None
    assert shared.records[0] == {"file": "img_00000000.jpg", "box": [0, 1], "class": 0}
    small = Annotations(5)
    assert fl.shared(small).records is small.records


def add(dataset, number):
    return len(dataset.records) + number


class Bound:
    """A dataset with functions bound to itself, in attributes, lists and tuples."""

    def __init__(self):
        self.records = list(range(2000))
        self.add = partial(add, self)
        self.by_keyword = partial(add, number=1, dataset=self)
        self.steps = [self.count, partial(self.count)]
        self.pair = (self, self.add)
        self.own = partial(sum, list(range(3000)))
        self.unbound = partial(int, "7")

    def count(self):
        return len(self.records)


def test_bound_functions_follow_the_copy():
    original = Bound()
    shared = fl.shared(original)
    assert shared.add.args[0] is shared.by_keyword.keywords["dataset"] is shared
    assert shared.steps[0].__self__ is shared.steps[1].func.__self__ is shared
    assert shared.pair[0] is shared
    assert shared.pair[1] is shared.add
    assert shared.unbound is original.unbound
    assert type(shared.own.args[0]) is not list
    original.records.clear()
    assert [shared.add(3), shared.by_keyword(), *(step() for step in shared.steps), shared.own()] == [
        2003,
        2001,
        2000,
        2000,
        sum(range(3000)),
    ]


def arrays():
    floats = np.arange(24 * 1000, dtype="float64")
    return {
        "fortran": np.asfortranarray(floats.reshape(40, 600)),
        "axes": floats.reshape(20, 30, 40).transpose(1, 2, 0),
        "backwards": floats[::-1].reshape(60, 400),
        "every second": floats.repeat(2)[::2],
        "no axes": np.array((b"x" * 70_000, 3), [("bytes", "S70000"), ("n", "i4")]),
        "repeated": np.broadcast_to(floats, (3, len(floats))),
    }


@pytest.mark.parametrize("name", arrays())
def test_arrays_keep_shape_and_order(name):
    original = arrays()[name]
    shared = fl.shared({"array": original})["array"]
    for array in (shared, pickle.loads(pickle.dumps(shared, 5)), pickle.loads(pickle.dumps(shared, 4))):
        assert type(array) is type(shared) is not np.ndarray
        assert array.tobytes() == original.tobytes()
        assert (array.shape, array.dtype) == (original.shape, original.dtype)
        assert array.strides == original.copy("K").strides
        assert not array.flags.writeable


def test_a_write_through_torch_stays_in_its_process():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    shared = fl.shared(np.zeros(20_000))

    def write():
        with warnings.catch_warnings(action="ignore"):
            tensor = torch.from_numpy(shared)
        tensor[7] = 1.0
        return float(tensor.sum()) == 1.0

    assert Forked(write).status() == 0
    assert not shared.any()


def test_writes_raise():
    shared = fl.shared(Annotations(2000))
    for write in (
        lambda: shared.records.append(1),
        lambda: shared.records.sort(),
        lambda: shared.records.__setitem__(0, 1),
        lambda: shared.records.__delitem__(0),
        lambda: shared.by_name.update({}),
        lambda: shared.by_name.pop("a"),
        lambda: shared.by_name.__setitem__("a", 1),
    ):
        with pytest.raises(TypeError, match="expected no changes of shared data"):
            write()
    with pytest.raises(ValueError, match="read-only"):
        shared.pixels[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        shared.pixels.flags.writeable = True
    with pytest.raises(AttributeError):
        _ = shared.records.no_such_method


def test_what_cannot_be_shared_is_named():
    dataset = Annotations(3)
    dataset.splits["train"] = [*range(2000), lambda: None]
    with pytest.raises(TypeError, match=r"entries of Annotations.splits\['train'\] that can be pickled.*\[2000\]"):
        fl.shared(dataset)
    dataset.splits["train"] = {Path(str(i)): i for i in range(2000)}
    with pytest.raises(TypeError, match=r"keys of Annotations.splits\['train'\] that are numbers.*Path"):
        fl.shared(dataset)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_copy_by_pickle_is_equal(protocol):
    shared = fl.shared(Annotations(2000))
    for _ in range(2):
        shared = pickle.loads(pickle.dumps(shared, protocol))
    assert shared.records == Annotations(2000).records
    assert shared.by_name == Annotations(2000).by_name
    assert np.array_equal(shared.pixels, Annotations(2000).pixels)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_read_the_same(method):
    pytest.importorskip("torch", reason="torch is not installed")
    original = Annotations(1500)
    options = {"batch_size": 300, "shuffle": True, "seed": 3}
    expected = [batch.tolist() for batch in fl.DataLoader(original, **options)]
    loader = fl.DataLoader(fl.shared(original), **options, num_workers=2, multiprocessing_context=method)
    assert [batch.tolist() for batch in loader] == expected


def private_bytes(pid):
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))


def test_forked_workers_stay_small():
    pytest.importorskip("torch", reason="torch is not installed")

    def grown(dataset):
        """Return the private bytes of a worker after it has read everything."""
        gc.collect()
        loader = fl.DataLoader(dataset, batch_size=500, shuffle=True, seed=1, num_workers=2)
        for number, _ in enumerate(loader):
            if number == len(loader) - 2:
                return max(map(private_bytes, loader.pids))
        return None

    original = Annotations(60_000)
    shared = fl.shared(original)
    assert grown(shared) < grown(original) / 2


@linux_only("figures of the pages of processes")
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_that_copy_are_noticed_and_those_of_shared_data_are_not(method, monkeypatch):
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(copied_memory, "FIRST_LOOK_S", 0.0)
    monkeypatch.setattr(copied_memory, "SHARE_OF_LOOKS", 1.0)
    monkeypatch.setattr(copied_memory, "MUCH", 8 << 20)

    def stats(dataset):
        gc.collect()
        loader = fl.DataLoader(
            dataset, batch_size=250, shuffle=True, seed=1, num_workers=2, multiprocessing_context=method
        )
        assert sum(1 for _ in loader) == 400
        return loader.stats()

    original = Annotations(100_000)
    noticed, quiet = stats(original), stats(fl.shared(original))
    assert ("fl.shared(dataset)" in noticed.memory_advice) == (method == "fork")
    assert noticed.memory_advice in repr(noticed)
    assert noticed.to_json()["memory_advice"] == noticed.memory_advice
    assert quiet.memory_advice == ""


class Keeping(Annotations):
    """A dataset that keeps what it has read."""

    def __getitem__(self, i):
        page = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # new, unlike what malloc may reuse
        page[0] = 1
        vars(self).setdefault("kept", []).append(page)
        return super().__getitem__(i)


def test_what_workers_allocate_is_not_what_they_copy(monkeypatch):
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(copied_memory, "FIRST_LOOK_S", 0.0)
    monkeypatch.setattr(copied_memory, "SHARE_OF_LOOKS", 1.0)
    loader = fl.DataLoader(fl.shared(Keeping(30_000)), batch_size=250, num_workers=2)
    grown = [private_bytes(loader.pids[0]) for number, _ in enumerate(loader) if number in (10, 110)]
    assert grown[1] - grown[0] > 16 << 20
    assert max(worker.copied_bytes for worker in loader.stats().workers) < (grown[1] - grown[0]) / 4
    assert loader.stats().memory_advice == ""


class Hooked:
    """A dataset whose pickle would be of another state, with a method of its own among its attributes."""

    def __init__(self):
        self.records = [{"number": i} for i in range(2000)]
        self.offset, self.get = 0, self._get

    def _get(self, i):
        return self.records[i]["number"] + self.offset

    def __getstate__(self):
        return {"records": []}

    def __copy__(self):
        raise AssertionError("a copy for somebody else")


class Constructed(Hooked):
    """The same, pickled by its constructor."""

    def __reduce__(self):
        return Constructed, ()


@pytest.mark.parametrize("kind", [Hooked, Constructed])
def test_hooks_for_pickle_leave_the_state_as_it_is(kind):
    original = kind()
    original.offset = 7
    copied = fl.shared(original)
    assert type(copied) is kind
    assert not isinstance(copied.records, list)
    assert copied.get(3) == 10
    copied.offset = 100
    assert (copied.get(3), original.get(3)) == (103, 10)
