"""The laws of converting a dataset: the store has its samples, and does not depend on the workers that read them."""

from __future__ import annotations

import collections
import hashlib
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from tests.effort import examples

torch = pytest.importorskip("torch")

DTYPES = ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64"]
Pair = collections.namedtuple("Pair", "image label")


def numbers(draw, shape, dtype):
    """Numbers that differ from item to item, and that every dtype can represent."""
    values = np.random.default_rng(draw(st.integers(0, 2**32))).integers(0, 100, shape)
    return values.astype(dtype)


STRINGS = {"text": st.text(max_size=8), "bytes": st.binary(max_size=8)}


@st.composite
def columns(draw, n, alone=False):
    """Draw one part of n samples. It is never a plain list of texts, which would be taken for paths."""
    kinds = ["int", "float", "bool", "scalar", "array", "tensor", "ragged", "lists", "tensors", "bytes"]
    kind = draw(st.sampled_from(kinds if alone else [*kinds, "text"]))
    if kind in STRINGS:
        return draw(st.lists(STRINGS[kind], min_size=n, max_size=n))
    if kind == "int":
        return draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=n, max_size=n))
    if kind == "float":
        return draw(st.lists(st.floats(allow_nan=False), min_size=n, max_size=n))
    if kind == "bool":
        return draw(st.lists(st.booleans(), min_size=n, max_size=n))
    dtype = draw(st.sampled_from(DTYPES))
    if kind == "scalar":
        return list(numbers(draw, n, dtype))
    row_shape = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    if kind in ("array", "tensor"):
        shape = (draw(st.integers(1, 4)), *row_shape) if row_shape or draw(st.booleans()) else ()
        rows = [numbers(draw, shape, dtype) for _ in range(n)]
        return [torch.from_numpy(np.asarray(a)) for a in rows] if kind == "tensor" else rows
    lengths = draw(st.lists(st.integers(0, 4), min_size=n, max_size=n))
    if kind == "lists":
        lengths[0] += 1  # a dataset of empty lists does not determine a dtype
        return [numbers(draw, k, "int64").tolist() for k in lengths]
    rows = [numbers(draw, (k, *row_shape), dtype) for k in lengths]
    return [torch.from_numpy(a) for a in rows] if kind == "tensors" else rows


@st.composite
def datasets(draw):
    """(samples, the parts of each by name)."""
    n = draw(st.integers(1, 12))
    kind = draw(st.sampled_from(["dict", "nested", "tuple", "named", "alone"]))
    if kind == "alone":
        column = draw(columns(n, alone=True))
        return column, [{"x": part} for part in column]
    drawn_columns = [draw(columns(n)) for _ in range(2 if kind == "named" else draw(st.integers(1, 4)))]
    rows = list(zip(*drawn_columns, strict=True))
    if kind == "tuple":
        return rows, [{str(i): part for i, part in enumerate(row)} for row in rows]
    if kind == "named":
        return [Pair(*row) for row in rows], [Pair(*row)._asdict() for row in rows]
    flat = [{f"part {i}": part for i, part in enumerate(row)} for row in rows]
    if kind == "dict":
        return flat, flat
    deep = [{"a": {"b": list(row[:1]) if isinstance(row[0], dict) else row[0]}, "rest": row[1:]} for row in rows]
    names = [{"a.b": row[0], **{f"rest.{i}": part for i, part in enumerate(row[1:])}} for row in rows]
    return deep, names


class ItemsOf(torch.utils.data.Dataset):
    """Samples in arrays, as torch would collate lists of numbers to lists of tensors."""

    def __init__(self, parts):
        self.parts = parts

    def __len__(self):
        return len(self.parts)

    def __getitem__(self, index):
        return {k: np.asarray(v) if isinstance(v, list) else v for k, v in self.parts[index].items()}


def read(path, size=5):
    """The samples of a store, in order, as a `DataLoader` has them."""
    loader = fl.DataLoader(path, batch_size=size, collate_fn=list)
    return [sample for batch in loader for sample in batch]


def assert_equal(got, expected):
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert list(a) == list(b)
        for name in a:
            if isinstance(b[name], (str, bytes)):
                assert (type(a[name]), a[name]) == (type(b[name]), b[name])
                continue
            part = np.asarray(b[name])
            if part.dtype == np.float64 and part.shape == (0,) and isinstance(b[name], list):
                part = part.astype(a[name].dtype)  # an empty list has the type of the others
            assert (a[name].dtype, a[name].shape) == (part.dtype, part.shape), name
            np.testing.assert_array_equal(a[name], part)


@given(datasets(), st.integers(1, 7))
@settings(max_examples=examples(40))
def test_a_loader_over_the_store_has_the_samples_of_the_dataset(tmp_path_factory, data, size):
    samples, parts = data
    path = tmp_path_factory.mktemp("converted") / "store"
    summary = fl.convert(samples, path)
    assert summary.sequences == len(samples)
    assert_equal(read(path, size), parts)
    if "lengths" not in next(iter(fl.DataLoader(path, batch_size=len(samples)))):
        batches = fl.DataLoader(path, batch_size=size), torch.utils.data.DataLoader(ItemsOf(parts), batch_size=size)
        for got, expected in zip(*batches, strict=True):
            assert list(got) == list(expected)
            for name, part in expected.items():
                if isinstance(part, list):
                    assert got[name] == part
                else:
                    assert got[name].dtype == part.dtype
                    assert torch.equal(got[name], part)


@given(datasets())
@settings(max_examples=examples(8))
def test_a_generator_is_converted_as_a_list_is(tmp_path_factory, data):
    samples, _ = data
    folder = tmp_path_factory.mktemp("converted")
    fl.convert(samples, folder / "list")
    fl.convert((sample for sample in samples), folder / "generator")
    assert files(folder / "list") == files(folder / "generator")


def files(path):
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.iterdir()}


class Augmented(torch.utils.data.Dataset):
    """Samples of varying length with random numbers from every generator."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if not 0 <= index < self.n:
            raise IndexError(index)
        noise = random.random(), np.random.rand(), float(torch.rand(())), float(fl.sample_rng().random())
        return {"index": index, "steps": np.arange(index % 5), "noise": np.array(noise)}


@pytest.mark.parametrize(("n", "jobs"), [(1, 2), (64, 2), (300, 3)])
@pytest.mark.parametrize("options", [{}, {"shuffle": 3}, {"compression": "lz4", "chunk_bytes": 1000}])
def test_the_store_is_the_same_for_any_number_of_jobs(tmp_path, n, jobs, options):
    """Random augmentation included, as its numbers are keyed by the item."""
    fl.convert(Augmented(n), tmp_path / "one", **options)
    fl.convert(Augmented(n), tmp_path / "many", jobs=jobs, **options)
    assert files(tmp_path / "one") == files(tmp_path / "many")
    indices = [int(sample["index"]) for sample in read(tmp_path / "many")]
    assert sorted(indices) == list(range(n))
    assert (indices == list(range(n))) or options.get("shuffle")
