"""Conversion of datasets: errors, names, declarations, kills. laws/test_conversion.py has the laws."""

from __future__ import annotations

import multiprocessing
import os
import time

import numpy as np
import pytest

import feedline as fl

torch = pytest.importorskip("torch")


class Late(torch.utils.data.Dataset):
    """Items of one shape, except number ``odd``."""

    def __init__(self, n, odd, other):
        self.n, self.odd, self.other = n, odd, other

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return self.other if index == self.odd else {"x": np.zeros(3, np.float32), "y": index}


class Failing(Late):
    def __getitem__(self, index):
        if index in (0, 500):
            raise OSError(f"no file for {index}")
        return {"x": np.full(2, index)}


def values(path, name):
    corpus = fl.open_corpus(path)
    return np.concatenate([corpus.read(i)[name].rows for i in range(len(corpus.chunks()))])


# ---- names and declarations ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "streams", "names"),
    [
        ([(1, 2.0)], None, ["0", "1"]),
        ([(1, 2.0)], ["image", "label"], ["image", "label"]),
        (
            [(1, 2.0)],
            {"image": fl.Stream((), field="1"), "label": fl.Stream((), "int8", field="0")},
            ["image", "label"],
        ),
        ([(1, 2.0)], ["1"], ["1"]),
        ([7], ["label"], ["label"]),
        ([{"a": 1, "b": "text"}], ["a"], ["a"]),
        ([{"a": {"b": 1, "c": (2, 3)}}], None, ["a.b", "a.c.0", "a.c.1"]),
        ([[torch.zeros(2), 5]], None, ["0", "1"]),
        ([[1, 2, 3]], None, ["x"]),
    ],
)
def test_names_of_streams(tmp_path, samples, streams, names):
    assert list(fl.convert(samples, tmp_path / "a", streams=streams).schema) == names


def test_fields_choose_parts(tmp_path):
    streams = {"image": fl.Stream((), field="1"), "label": fl.Stream((), "int8", field="0")}
    fl.convert([(1, 2.0)], tmp_path / "a", streams=streams)
    assert values(tmp_path / "a", "label").tolist() == [1]
    assert values(tmp_path / "a", "image").tolist() == [2.0]


def test_declared_streams_convert_numbers_that_fit(tmp_path):
    samples = [{"x": np.zeros(3), "y": 1, "t": [1.5]}, {"x": np.zeros(5), "y": 2, "t": [2, 3]}]
    streams = {"x": fl.Stream((), "float32"), "y": fl.Stream((), "uint8"), "t": None}
    schema = fl.convert(samples, tmp_path / "a", streams=streams).schema
    assert [(s.shape, s.dtype.name) for s in schema.values()] == [((), "float32"), ((), "uint8"), ((), "float64")]
    with pytest.raises(
        fl.SchemaError, match=r"expected numbers from 0 to 255 for uint8, got 256\n  at item 0, stream `y`"
    ):
        fl.convert([{"y": 256}], tmp_path / "b", streams={"y": fl.Stream((), "uint8")})
    with pytest.raises(fl.SchemaError, match=r"expected numbers of uint8, as declared, got float64\n  at item 0"):
        fl.convert([{"y": 2.5}], tmp_path / "b", streams={"y": fl.Stream((), "uint8")})


def test_sparse_rows(tmp_path):
    sparse = pytest.importorskip("scipy.sparse")
    rows = [sparse.random(1, 9, 0.4, "csr", np.float32, np.random.default_rng(i)) for i in range(50)]
    schema = fl.convert([{"x": row} for row in rows], tmp_path / "a").schema
    assert schema["x"] == fl.Stream(9, "float32", sparse=True)
    got = fl.open_corpus(tmp_path / "a").read(0)["x"].to_scipy()
    assert (got != sparse.vstack(rows)).nnz == 0


# ---- items that cannot be stored---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "says"),
    [
        ([{"t": "hello"}, {"t": b"x"}], r"same type in all samples, got str in item 0 and bytes in item 1\n.*`t`"),
        ([{"t": 1}, {"t": "x"}], r"same type in all samples, got str in item 1 and int in item 0\n.*`t`"),
        ([{"t": "\ud800"}], r"utf-8.*can't encode.*\n  at item 0, stream `t`"),
        ([{"a": 1}, {"a": None}], r"got NoneType None: replace it by a number.*\n  at item 1, stream `a`"),
        ([np.array(["a"])], "several texts as a tuple"),
        ([object()], "got object .*convert it in the dataset"),
        ([torch.zeros(2, dtype=torch.bfloat16)], "bfloat16"),
        ([2**63], r"integers from -2\*\*63 to 2\*\*63 - 1, got 9223372036854775808; np.uint64"),
        ([{"x": 5}, {"x": [2**70]}], r"integers from .*got \[1180591620717411303424\].*\n  at item 1, stream `x`"),
        ([np.zeros(2, complex)], "real numbers, got complex128"),
        ([[[1, 2], [3]]], "lists of equal length in a list"),
        ([np.ma.masked_array([1, 2], [0, 1])], "masked"),
        ([{"x": 1}, {"y": 1}], "expected `x` in every sample, as in item 0, but item 1 has `y`"),
        ([{"x": 1}, {"x": 1, "y": 1}], r"item 1 also has `y`; name those to store: streams=\['x'\]"),
        ([{"x": np.zeros((2, 3))}, {"x": np.zeros((2, 4))}], r"\(2, 3\) in item 0 and \(2, 4\) in item 1\n.*`x`"),
        ([{"x": np.zeros(3)}, {"x": np.float64(1)}], r"\(3,\) in item 0 and \(\) in item 1"),
        ([{"x": np.zeros(3)}, {"x": np.zeros(3, int)}], "same dtype in all samples, got float64 in item 0 and int64"),
        ([{"x": []}], r"only empty ones.*declare it: streams=\{'x': fl.Stream"),
        ([{"a.b": 1, "a": {"b": 2}}], "distinct names for all parts of a sample, got `a.b` twice, in item 0"),
    ],
)
def test_samples_that_cannot_be_stored(tmp_path, samples, says):
    with pytest.raises(fl.SchemaError, match=says):
        fl.convert(samples, tmp_path / "a")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize(
    ("other", "says"),
    [
        (
            {"x": np.zeros(4, np.float32), "y": 0},
            r"shape \(3,\), as in item 0, got \(4,\)\n  at item 700, stream `x`\n",
        ),
        (
            {"x": np.zeros(3), "y": 0},
            "expected numbers of float32, as in item 0, got float64\n  at item 700, stream `x`",
        ),
        ({"x": np.zeros(3, np.float32), "y": "a"}, "got str 'a': make it the same kind.*\n  at item 700, stream `y`"),
        (
            {"x": np.zeros(3, np.float32)},
            "expected `y` in every sample, as in item 0, but this one has `x`\n  at item 700",
        ),
    ],
)
def test_a_later_item_that_differs(tmp_path, jobs, other, says):
    """Whichever worker read it, the error is the item's, without a worker's traceback, and no files are left."""
    with pytest.raises(fl.SchemaError, match=says) as caught:
        fl.convert(Late(1000, 700, other), tmp_path / "a", jobs=jobs)
    assert "Caught" not in str(caught.value)
    assert not any(tmp_path.iterdir())


def test_the_remedy_in_the_error_works(tmp_path):
    data = Late(1000, 700, {"x": np.zeros(4, np.float32), "y": 0})
    with pytest.raises(fl.SchemaError) as caught:
        fl.convert(data, tmp_path / "a")
    written = str(caught.value).rpartition("streams=")[2]
    fl.convert(data, tmp_path / "a", streams=eval(written, {"fl": fl}))
    assert len(values(tmp_path / "a", "x")) == 3001


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"source": [1], "streams": "x"}, TypeError, r"write \['x'\]"),
        ({"source": [1], "streams": ["a", "a"]}, ValueError, "distinct names"),
        ({"source": [1], "streams": {"x": "int64"}}, TypeError, "expected an fl.Stream or None for stream `x`"),
        ({"source": [(1, 2)], "streams": ["a"]}, fl.SchemaError, "as many names"),
        ({"source": [{"a": 1}], "streams": ["b"]}, fl.SchemaError, "expected `b` in samples, which have `a`"),
        ({"source": []}, fl.DataError, "at least one item"),
        ({"source": iter([])}, fl.DataError, "at least one item"),
        ({"source": 5}, TypeError, "got int, which has neither"),
        ({"source": b"path"}, TypeError, "a path is a str"),
        ({"source": [1], "jobs": 0}, ValueError, "jobs"),
        ({"source": iter([1]), "jobs": 2}, ValueError, "expected jobs=1 for an IterableDataset"),
        ({"source": iter([1]), "on_error": "skip"}, ValueError, 'expected on_error="raise" for an IterableDataset'),
        ({"source": "a.ctf", "streams": ["x"]}, TypeError, "streams as a mapping"),
    ],
)
def test_arguments_that_do_not_go_together(tmp_path, arguments, error, says):
    with pytest.raises(error, match=says):
        fl.convert(destination=tmp_path / "a", **arguments)
    assert not any(tmp_path.iterdir())


# ---- errors in items, progress, kills ---------------------------------------------------------------


@pytest.mark.parametrize("jobs", [1, 2])
def test_items_that_raise(tmp_path, jobs):
    data = Failing(1000, None, None)
    with pytest.raises(OSError, match="no file for 0"):
        fl.convert(data, tmp_path / "a", jobs=jobs)
    assert not any(tmp_path.iterdir())
    summary = fl.convert(data, tmp_path / "a", jobs=jobs, on_error="skip")
    assert (summary.sequences, summary.skipped) == (998, 2)
    assert values(tmp_path / "a", "x")[:, 0].tolist() == [i for i in range(1000) if i not in (0, 500)]


class Logged(Late):
    """Leaves the ids of the processes that read it."""

    def __init__(self, n, odd, other, folder):
        super().__init__(n, odd, other)
        self.folder = folder

    def __getitem__(self, index):
        (self.folder / str(os.getpid())).touch()
        return super().__getitem__(index)


@pytest.mark.parametrize("options", [{}, {"shuffle": 1}])
@pytest.mark.parametrize("why", ["item", "progress"])
def test_no_worker_outlives_a_failed_conversion(tmp_path, options, why):
    """Not even while its error is inspected, whose traceback holds local variables."""
    read = tmp_path / "read"
    read.mkdir()

    def progress(done, total):
        if why == "progress":
            raise RuntimeError("enough")

    data = Logged(1000, 700 if why == "item" else None, {"x": 1}, read)
    with pytest.raises((RuntimeError, fl.SchemaError)) as caught:
        fl.convert(data, tmp_path / "a", jobs=2, progress=progress, **options)
    assert caught.value.__traceback__ is not None
    workers = [int(entry.name) for entry in read.iterdir() if int(entry.name) != os.getpid()]
    assert workers
    assert not any(os.path.exists(f"/proc/{pid}") for pid in workers)


def test_an_existing_destination_is_refused_before_items_are_read(tmp_path):
    fl.convert([1], tmp_path / "a")
    with pytest.raises(FileExistsError):
        fl.convert(Failing(1000, None, None), tmp_path / "a")


def test_progress_counts_items(tmp_path):
    seen = []
    fl.convert(list(range(1000)), tmp_path / "a", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (1000, 1000)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert len(seen) > 10
    seen.clear()
    fl.convert(iter(range(1000)), tmp_path / "b", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (1000, 0)


class Slow(torch.utils.data.Dataset):
    """Items that take ``pause`` seconds each."""

    def __init__(self, pause):
        self.pause = pause

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        time.sleep(self.pause)
        return {"x": np.full(3, index), "t": np.arange(index % 4)}


def convert_slowly(path, shuffle, said):
    fl.convert(Slow(0.002), path, jobs=2, shuffle=shuffle, progress=lambda done, total: said.send(done))


@pytest.mark.parametrize("shuffle", [None, 5])
def test_killed_it_starts_again(tmp_path, shuffle):
    """The name appears only when all is written. The next call removes all files of the killed one."""
    context = multiprocessing.get_context("forkserver")
    heard, said = context.Pipe(duplex=False)
    process = context.Process(target=convert_slowly, args=(tmp_path / "store", shuffle, said))
    process.start()
    while heard.recv() < 300:
        pass
    process.kill()
    process.join()
    assert not (tmp_path / "store").exists()
    fl.convert(Slow(0), tmp_path / "store", jobs=2, shuffle=shuffle)
    assert [entry.name for entry in tmp_path.iterdir()] == ["store"]
    found = values(tmp_path / "store", "x")[:, 0].tolist()
    assert sorted(found) == list(range(1000))
    assert (found == list(range(1000))) is (shuffle is None)


# ---- Hugging Face -----------------------------------------------------------------------------------


@pytest.mark.frameworks("datasets")
def test_datasets_of_hugging_face(tmp_path):
    import datasets

    rows = {"ids": [[1, 2], [3], [], [4, 5, 6]] * 20, "label": list(range(80)), "text": ["a"] * 80}
    data = datasets.Dataset.from_dict(rows)
    fl.convert(data, tmp_path / "a")
    assert fl.open_corpus(tmp_path / "a").select(np.arange(80))["text"].tolist() == rows["text"]
    for number, given in enumerate([data, data.with_format("torch"), data.to_iterable_dataset()]):
        path = tmp_path / str(number)
        schema = fl.convert(given, path, streams=["ids", "label"]).schema
        assert [(s.shape, s.dtype.name) for s in schema.values()] == [((), "int64"), ((), "int64")]
        assert values(path, "ids").tolist() == sum(rows["ids"], [])
        assert values(path, "label").tolist() == rows["label"]
    with pytest.raises(TypeError, match=r"choose a split, such as splits\['train'\]"):
        fl.convert(datasets.DatasetDict(train=data), tmp_path / "b")
