"""Arguments as values: their fields, their combinations, and the old arguments that they replace."""

import inspect
import json
import pickle

import numpy as np
import pytest

import feedline as fl
from tests.laws.corpora import CountedCorpus

ITEMS = [np.full(n, n) for n in (2, 3, 1, 4)]
LENGTHS = [2, 3, 1, 4]


def corpus():
    return fl.ArrayDeserializer(x=ITEMS)


@pytest.mark.parametrize(
    ("call", "instead"),
    [
        (lambda path: fl.DataLoader(ITEMS, quarantine=path), "on_error=fl.Quarantine(path)"),
        (lambda path: fl.DataLoader(ITEMS, max_errors=3), "on_error=fl.Quarantine(path, limit)"),
        (lambda path: fl.DataLoader(ITEMS, batch_samples=3), "batch_sampler=fl.BatchByLength("),
        (lambda path: fl.DataLoader(ITEMS, lengths=LENGTHS), "batch_sampler=fl.BatchByLength("),
        (lambda path: fl.DataLoader(ITEMS, layout="packed"), "batch_sampler=fl.BatchByLength("),
        (lambda path: fl.DataLoader(ITEMS, weights=LENGTHS), "sampler=fl.Weighted(weights)"),
        (lambda path: fl.MinibatchSource(corpus(), quarantine=path), "on_error=fl.Quarantine(path)"),
        (lambda path: fl.MinibatchSource(corpus(), max_errors=3), "on_error=fl.Quarantine(path, limit)"),
        (lambda path: fl.MinibatchSource(corpus(), lanes=64), "order=fl.Arcs(count)"),
        (lambda path: fl.open_corpus(path, cache=path), "remote=fl.Remote(cache)"),
        (lambda path: fl.open_corpus(path, cache_bytes=1), "remote=fl.Remote(cache_bytes=...)"),
        (lambda path: fl.open_corpus(path, storage_options={}), "remote=fl.Remote(storage_options=...)"),
        (lambda path: fl.open_corpus(path, deadline_s=1), "remote=fl.Remote(deadline_s=...)"),
        (lambda path: fl.convert(path, path / "store", storage_options={}), "remote=fl.Remote(storage_options=...)"),
        (lambda path: fl.convert(path, path / "store", deadline_s=1), "remote=fl.Remote(deadline_s=...)"),
    ],
)
def test_a_former_argument_names_its_replacement(call, instead, tmp_path):
    with pytest.raises(TypeError) as caught:
        call(tmp_path)
    assert "has been replaced; write " in str(caught.value)
    assert instead in str(caught.value)


def test_a_stream_as_an_argument_names_the_replacement(tmp_path):
    with pytest.raises(TypeError, match="unexpected keyword argument 'x'"):
        fl.open_corpus(tmp_path, x=fl.Stream(3))
    with pytest.raises(TypeError, match="expected streams as a mapping from names to declarations"):
        fl.open_corpus(tmp_path, streams=["x"])


@pytest.mark.parametrize("takes", [fl.DataLoader, fl.MinibatchSource, fl.open_corpus, fl.convert])
def test_arguments_have_names(takes):
    """So that an editor completes them, and a misspelt one is an error."""
    kinds = {parameter.kind for parameter in inspect.signature(takes).parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds


@pytest.mark.parametrize(
    "value",
    [
        fl.Quarantine("listed.jsonl", limit=3),
        fl.Arcs(64, version=1),
        fl.Weighted([1, 2]),
        fl.BatchByLength(4, [1, 2], "packed"),
        fl.Remote("cache", 1 << 30, {"region": "x"}, deadline_s=5.0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_holds_its_arguments_and_no_more(value):
    """It may be pickled, and nobody can change it."""
    assert repr(pickle.loads(pickle.dumps(value))) == repr(value)
    with pytest.raises(AttributeError):
        setattr(value, next(iter(vars(value))), 1)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: fl.Quarantine(limit=-1), ValueError, "limit of at least 0"),
        (lambda: fl.Quarantine(limit=1.5), TypeError, "limit as an int"),
        (lambda: fl.Arcs(0), ValueError, "count of at least 1"),
        (lambda: fl.Arcs(4, version=3), ValueError, "version 1, 2 or None"),
        (lambda: fl.BatchByLength(0), ValueError, "samples of at least 1"),
        (lambda: fl.BatchByLength(4, layout="nested"), ValueError, "layout"),
        (lambda: fl.Remote(cache_bytes=0), ValueError, "cache_bytes of at least 1"),
        (lambda: fl.Remote(deadline_s=0), ValueError, "deadline_s above 0"),
    ],
)
def test_a_value_checks_itself(make, error, says):
    with pytest.raises(error, match=says):
        make()


def test_one_quarantine_for_several_sources(tmp_path):
    """Each counts for itself, as the value has no state."""
    quarantine = fl.Quarantine(tmp_path / "q.jsonl", limit=2)
    for _ in range(2):
        bad = CountedCorpus([1] * 6, [6], bad=[2, 5])
        source = fl.MinibatchSource(bad, shuffle=False, max_sweeps=1, on_error=quarantine)
        assert [m.ids.tolist() for m in source.minibatches(6)] == [[0, 1, 3, 4]]
    listed = [json.loads(line)["sequence"] for line in (tmp_path / "q.jsonl").read_text().splitlines()]
    assert listed == [2, 5, 2, 5]


def test_weights_and_lengths_go_with_each_other_and_with_a_partition():
    how = {"sampler": fl.Weighted([0, 1, 0, 1]), "batch_sampler": fl.BatchByLength(7, LENGTHS), "seed": 3}
    (whole,) = [[batch[1].tolist() for batch in fl.DataLoader(ITEMS, **how)]]
    drawn = [length for batch in whole for length in batch]
    assert len(drawn) == 4
    assert set(drawn) <= {3, 4}
    shares = [fl.DataLoader(ITEMS, partition=(rank, 2), **how) for rank in range(2)]
    steps = [a[1].tolist() + b[1].tolist() for a, b in zip(*shares, strict=True)]
    assert [length for step in steps for length in step] == drawn


def test_the_layout_of_a_corpus_with_batches_of_items():
    """Without a limit of samples, a batch has `batch_size` sequences."""
    packed = list(fl.DataLoader(corpus(), 2, batch_sampler=fl.BatchByLength(layout="packed")))
    assert [np.asarray(batch["x"]).ravel().tolist() for batch in packed] == [[2, 2, 3, 3, 3], [1, 4, 4, 4, 4]]
    padded = list(fl.DataLoader(corpus(), 2))
    assert [np.asarray(batch["x"]).shape[:2] for batch in padded] == [(2, 3), (2, 4)]


def test_a_stream_may_have_any_name(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"cache": 1, "memory": 2}\n')
    streams = {"cache": fl.Stream((), "int64"), "memory": fl.Stream((), "int64")}
    opened = fl.open_corpus(tmp_path / "rows.jsonl", streams=streams)
    assert sorted(opened.schema) == ["cache", "memory"]


def test_a_remote_of_paths_is_refused(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"i": 1}\n')
    with pytest.raises(ValueError, match="expected an address for remote=, got paths"):
        fl.open_corpus(tmp_path / "rows.jsonl", remote=fl.Remote())
    with pytest.raises(ValueError, match="remote= only with an address as source or destination"):
        fl.convert(tmp_path / "rows.jsonl", tmp_path / "store", remote=fl.Remote())
