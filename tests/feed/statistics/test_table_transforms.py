"""Standardize, Vocabulary and Hash against NumPy and dictionaries, with nulls, ragged and pickled."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import feedline as fl
from tests.oracles.order import M64, G, mix64

RNG = np.random.default_rng(8)
ROWS = 5000
WORDS = np.array(["", "a", "Straße", "日本", *(f"w{i}" for i in range(200))])


@pytest.fixture(scope="module")
def table():
    return {
        "x": np.where(RNG.random(ROWS) < 0.1, None, RNG.normal(1e6, 3, ROWS)).tolist(),
        "word": np.where(RNG.random(ROWS) < 0.1, None, WORDS[RNG.zipf(1.5, ROWS).clip(0, 203)]).tolist(),
        "n": RNG.zipf(1.5, ROWS).clip(0, 500).tolist(),
        "big": (RNG.integers(0, 5, ROWS, "uint64") + np.uint64(2**64 - 5)).tolist(),
    }


@pytest.fixture(scope="module")
def corpus(table, tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "rows.parquet"
    kinds = {"x": pa.float64(), "word": pa.string(), "n": pa.int32(), "big": pa.uint64()}
    pq.write_table(pa.table({name: pa.array(column, kinds[name]) for name, column in table.items()}), path)
    streams = {
        "x": fl.Stream((), "float64", mask=True),
        "word": fl.Stream((), "str", mask=True),
        "n": fl.Stream((), "int32"),
        "big": fl.Stream((), "uint64"),
    }
    return fl.ParquetDeserializer(path, streams)


@pytest.fixture(scope="module")
def statistics(corpus):
    return fl.statistics(corpus)


def delivered(corpus, *transforms):
    with fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1, transforms=transforms) as source:
        minibatches = list(source.minibatches(700))
    return {name: np.concatenate([m[name].rows for m in minibatches]) for name in ("x", "n", "big", "word")}


@pytest.mark.parametrize("copied", [False, True])
def test_all_three_against_an_oracle(corpus, statistics, table, copied):
    transforms = [
        fl.Standardize(statistics),
        fl.Vocabulary(statistics, ["word", "big"], size=100, least=2),
        fl.Hash(64, ["n"], seed=3),
    ]
    if copied:
        transforms = pickle.loads(pickle.dumps(transforms))
    rows = delivered(corpus, *transforms)
    there = np.array([x for x in table["x"] if x is not None])
    expected = [0 if x is None else (x - there.mean()) / there.std() for x in table["x"]]
    assert rows["x"].dtype == np.float32
    assert np.allclose(rows["x"], expected, atol=1e-6)
    for name in ("word", "big"):
        counts = {}
        for value in table[name]:
            counts[value] = counts.get(value, 0) + 1
        counts.pop(None, None)
        ranking = sorted(counts, key=lambda value: (-counts[value], str(value).encode() if name == "word" else value))
        if name == "big":  # counts of equal size are in the order of int64
            ranking = sorted(counts, key=lambda value: (-counts[value], value))
        ids = {value: i for i, value in enumerate(ranking[:99], 1) if counts[value] >= 2}
        assert rows[name].tolist() == [ids.get(value, 0) for value in table[name]]
        assert transforms[1].size(name) == len(ids) + 1
    by_value = {}
    for value, bucket in zip(table["n"], rows["n"].tolist(), strict=True):
        assert by_value.setdefault(value, bucket) == bucket
        assert 0 <= bucket < 64
    assert len(set(by_value.values())) > 50


def hash_of(value, seed):
    if isinstance(value, int):
        return mix64((value % 2**64) ^ seed)
    text = value.encode()
    h = mix64(len(text) + G & M64)
    for i in range(0, len(text), 8):
        h = mix64(h ^ int.from_bytes(text[i : i + 8], "little"))
    return mix64(h ^ seed)


@pytest.mark.parametrize("seed", [0, 7, 2**64 - 1])
def test_hashes_against_an_oracle(seed):
    values = {"n": [0, 1, -1, 2**62, -(2**63)], "t": ["", "a", "8 bytes!", "日本 and a longer text", "\0"]}
    corpus = fl.ArrayDeserializer(n=np.array(values["n"]), t=values["t"])
    transform = fl.Hash(1000, ["n", "t"], seed=seed)
    with fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1, transforms=[transform]) as source:
        (minibatch,) = source.minibatches(9)
    for name, column in values.items():
        assert minibatch[name].rows.tolist() == [hash_of(value, seed) % 1000 for value in column]


def test_vectors_and_ragged_sequences():
    vectors = RNG.normal([1, 2, 3], [4, 5, 0.0], (600, 3)).astype("float32")
    ragged = [RNG.normal(7, 2, n) for n in RNG.integers(0, 5, 600)]
    corpus = fl.ArrayDeserializer(v=vectors, r=ragged)
    change = fl.Standardize(fl.statistics(corpus))
    with fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1, transforms=[change]) as source:
        minibatches = list(source.minibatches(64))
    varying = vectors[:, :2]
    rows = np.concatenate([minibatch["v"].rows for minibatch in minibatches])
    assert np.allclose(rows[:, :2], (varying - varying.mean(0)) / varying.std(0), atol=1e-4)
    assert not rows[:, 2].any()  # always the same
    flat = np.concatenate(ragged)
    sequences = [sequence for minibatch in minibatches for sequence in minibatch["r"].sequences()]
    assert [len(sequence) for sequence in sequences] == [len(sequence) for sequence in ragged]
    assert np.allclose(np.concatenate(sequences), (flat - flat.mean()) / flat.std(), atol=1e-4)


def test_what_cannot_be_changed(statistics):
    with pytest.raises(fl.SchemaError, match="expected statistics of `y`, got those of x, word, n, big"):
        fl.Standardize(statistics, ["y"])
    with pytest.raises(fl.SchemaError, match="expected statistics of integers or texts `x`"):
        fl.Vocabulary(statistics, ["x"])
    with pytest.raises(ValueError, match="expected names of streams in a list, got 'n'"):
        fl.Hash(5, "n")
    with pytest.raises(ValueError, match="expected buckets of at least 1"):
        fl.Hash(0, ["n"])
    other = fl.ArrayDeserializer(x=np.ones((3, 2)))
    with pytest.raises(fl.SchemaError, match=r"expected samples of shape \(\) in `x`, as in its statistics"):
        fl.MinibatchSource(other, transforms=[fl.Standardize(statistics)])
    with pytest.raises(fl.SchemaError, match="expected streams y for the transform Hash, got `n`"):
        fl.MinibatchSource(fl.ArrayDeserializer(y=np.ones(3)), transforms=[fl.Hash(9, ["n"])])
    with pytest.raises(fl.SchemaError, match="expected scalar integers or texts for the transform Hash, got `x`"):
        fl.MinibatchSource(other, transforms=[fl.Hash(9, ["x"])])


@pytest.mark.parametrize(
    ("numbers", "got"),
    [([0.0, np.inf, 1.0], "0.0 to inf"), ([-np.inf, np.inf, 1.0], "-inf to inf"), ([-1.7e308, 1.7e308], "-1.7e")],
)
def test_numbers_without_a_mean_are_refused(numbers, got):
    """They made every number NaN."""
    rows = np.array(numbers)
    pairs = np.stack([np.arange(len(rows)), rows], axis=1)
    for name, corpus in ("x", fl.ArrayDeserializer(x=rows)), ("v", fl.ArrayDeserializer(v=pairs)):
        statistics = fl.statistics(corpus)
        with pytest.raises(ValueError, match=f"a mean and a deviation in `{name}`, got {got}"):
            fl.Standardize(statistics, [name])
    percentiles = fl.statistics(fl.ArrayDeserializer(x=rows))["x"].percentiles
    assert percentiles == tuple(sorted(percentiles))
    assert set(numbers) >= {percentiles[0], percentiles[-1]}


def test_a_stream_without_numbers_is_standardized():
    corpus = fl.ArrayDeserializer(x=np.array([np.nan, np.nan]))
    change = fl.Standardize(fl.statistics(corpus))
    with fl.MinibatchSource(corpus, max_sweeps=1, transforms=[change]) as source:
        assert np.isnan(source.next_minibatch(2)["x"].rows).all()


def test_statistics_of_other_types_are_refused():
    numbers, texts = fl.ArrayDeserializer(x=np.arange(3)), fl.ArrayDeserializer(x=["0", "1", "2"])
    for counted, other, says in (numbers, texts, "int64 in `x`.*got str"), (texts, numbers, "str in `x`.*got int64"):
        with pytest.raises(fl.SchemaError, match=f"expected {says}: make statistics of this corpus"):
            fl.MinibatchSource(other, transforms=[fl.Vocabulary(fl.statistics(counted), ["x"])])
    narrow = fl.ArrayDeserializer(x=np.array([2, 7], np.int8))
    change = fl.Vocabulary(fl.statistics(numbers), ["x"])
    with fl.MinibatchSource(narrow, shuffle=False, max_sweeps=1, transforms=[change]) as source:
        assert source.next_minibatch(2)["x"].rows.tolist() == [3, 0]


@pytest.mark.parametrize("present", [np.array([5, 0, 7, 1], np.int8), np.ones((4, 2), np.bool_), ["a", "", "b", "c"]])
def test_a_stream_with_the_name_of_a_mask_is_no_mask_without_bools(present):
    columns = {"x": np.array([1.0, 2.0, 4.0, 5.0]), "n": np.array([7, 7, 8, 7])}
    corpus = fl.ArrayDeserializer(**columns, x_present=present, n_present=present)
    statistics, alone = fl.statistics(corpus), fl.statistics(fl.ArrayDeserializer(**columns))
    assert [statistics[name] for name in columns] == [alone[name] for name in columns]
    assert list(statistics) == ["x", "n", "x_present", "n_present"]
    changes = [fl.Standardize(statistics, ["x"]), fl.Vocabulary(statistics, ["n"])]
    rows = []
    for data in corpus, fl.ArrayDeserializer(**columns):
        with fl.MinibatchSource(data, shuffle=False, max_sweeps=1, transforms=changes) as source:
            minibatch = source.next_minibatch(4)
            rows.append([minibatch[name].rows.tolist() for name in columns])
    assert rows[0] == rows[1]


def test_a_mask_of_other_samples_is_refused():
    ragged = fl.ArrayDeserializer(x=[np.ones(2), np.ones(1)], x_present=np.array([True, False]))
    with pytest.raises(fl.SchemaError, match="each of 3 samples of `x` in its mask `x_present`, got 2: open that"):
        fl.statistics(ragged)
    change = fl.Standardize(fl.statistics(fl.ArrayDeserializer(x=np.arange(2.0))))
    source = fl.MinibatchSource(ragged, transforms=[change])
    with source, pytest.raises(fl.SchemaError, match="in its mask"):
        source.next_minibatch(9)
