"""Mixtures described in files: their meaning, and errors with their place."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

import feedline as fl

pytest.importorskip("yaml")


@pytest.fixture
def folder(tmp_path):
    for name, count in (("web", 50), ("code", 30)):
        np.save(tmp_path / f"{name}.npy", np.arange(count))
    fl.convert(fl.ArrayDeserializer(tokens=[np.arange(n, dtype="int32") for n in (3, 9, 20, 4)]), tmp_path / "texts")
    return tmp_path


def written(folder, document, name="a.json"):
    path = folder / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def ids(corpus):
    with fl.MinibatchSource(corpus, seed=3, max_samples=80) as source:
        return [i for minibatch in source.minibatches(16) for i in minibatch.ids.tolist()]


def test_a_file_means_what_the_arguments_do(folder):
    web, code = (fl.open_corpus(folder / f"{name}.npy") for name in ("web", "code"))
    inner = fl.Mixture({"a": code, "b": fl.Take(web, 5, 15)}, {"a": 2, "b": 1}, when_empty="drop")
    expected = fl.Mixture(
        {"web": web, "both": inner}, {"web": 3, "both": 1}, stages=[(20, {"both": 1})], block=4, temperature=2
    )
    text = """
        mixture:
          web: web.npy
          both:
            mixture: {a: code.npy, b: {path: web.npy, take: [5, 15]}}
            weights: {a: 2, b: 1}
            when_empty: drop
        weights: {web: 3, both: 1}
        stages: [{at: 20, weights: {both: 1}}]
        block: 4
        temperature: 2
    """
    assert ids(fl.open_corpus(written(folder, text, "a.yaml"))) == ids(expected)
    assert ids(fl.open_corpus(written(folder, text, "a.yml"))) == ids(expected)
    document = {"mixture": {"rows": {"path": "texts", "packed": {"row": 16, "method": "split"}}}}
    packed = fl.Mixture({"rows": fl.Packed(fl.open_corpus(folder / "texts"), 16, method="split")})
    found = fl.open_corpus(written(folder, document))
    assert ids(found) == ids(packed)
    assert list(found.schema) == list(packed.schema)


GOOD = {"mixture": {"web": "web.npy", "code": "code.npy"}}


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({**GOOD, "weight": {}}, "expected one of mixture, stages, .* at `the top`, got 'weight'"),
        ({**GOOD, "weights": {"wob": 1}}, "`mixture`: expected weights for web, code, got one for 'wob'"),
        ({**GOOD, "weights": 3}, "`mixture`: expected weights as a mapping"),
        ({**GOOD, "stages": {}}, "expected a list of stages at `stages`"),
        ({**GOOD, "stages": [{"at": 3}]}, r"expected `at` and `weights` at `stages\[0\]`"),
        ({**GOOD, "stages": [{"at": 0, "weights": {"web": 1}}]}, "`mixture`: expected the place of a stage"),
        ({"mixture": {"web": 3}}, "expected a mapping at `mixture.web`, got 3"),
        ({"mixture": {"web": {"take": 3}}}, "expected a path, or a mapping with `path` or `mixture` at `mixture.web`"),
        ({"mixture": {"web": {"path": "web.npy", "take": [1, 2, 3]}}}, "`mixture.web.take`: expected Take"),
        ({"mixture": {"web": {"path": "web.npy", "take": 51}}}, "`mixture.web.take`: expected stop"),
        ({"mixture": {"web": {"path": "web.npy", "packed": {"rows": 3}}}}, "at `mixture.web.packed`, got 'rows'"),
        ({"mixture": {"web": {"path": "web.npy", "packed": {}}}}, "`mixture.web.packed`: .*row"),
        ({"mixture": {"web": {"path": "web.npy", "streams": {"x": {"shape": "a"}}}}}, "`mixture.web.streams.x`: "),
        ({"mixture": []}, "expected a mapping at `mixture`"),
        ('{"mixture": ', "expected JSON"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(folder, document, told):
    path = written(folder, document)
    with pytest.raises(fl.DataError, match=told) as caught:
        fl.open_corpus(path)
    assert caught.value.path == str(path)


def test_errors_of_described_corpora_name_the_description(folder):
    path = written(folder, {"mixture": {"web": "nowhere.npy"}})
    with pytest.raises(fl.DataError, match=r"nowhere\.npy") as caught:
        fl.open_corpus(path)
    assert caught.value.__notes__ == [f"described at `mixture.web` in {path}"]
    with pytest.raises(fl.DataError, match="expected YAML"):
        fl.open_corpus(written(folder, "mixture: [", "a.yaml"))
    with pytest.raises(fl.DataError, match="expected a mapping with `mixture` at `the top`"):
        fl.open_corpus(written(folder, "a: 3", "a.yaml"))


def test_aliases_of_aliases_are_refused_before_they_are_made(tmp_path):
    pytest.importorskip("yaml")
    path = tmp_path / "a.yaml"
    names = "abcdefghi"
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]" for before, name in itertools.pairwise(names)]
    for last in ("mixture: *i", "mixture: {m: {path: *i}}", "mixture: &m {m: *m}"):
        path.write_text("\n".join([*lines[: 9 if "*i" in last else 1], last]))
        with pytest.raises(fl.DataError, match="expected at most 1048576 values"):
            fl.open_corpus(path)


def test_aliases_are_read(tmp_path):
    pytest.importorskip("yaml")
    np.save(tmp_path / "x.npy", np.arange(4))
    path = tmp_path / "a.yaml"
    path.write_text("mixture:\n  a: &a {path: x.npy, take: 2}\n  b: *a\n")
    assert fl.MinibatchSource(fl.open_corpus(path), seed=1).next_minibatch(2).num_sequences == 2
