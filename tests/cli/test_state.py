"""`feedline state`: what states of sources and loaders say, wherever they were saved."""

from __future__ import annotations

import json

import numpy as np
import pytest

import feedline as fl
from feedline.train.checkpoint import Checkpoints
from tests.cli.shell import feedline


def corpus(count=100):
    return fl.ArrayDeserializer({"x": np.arange(count)})


def described(path):
    return json.loads(feedline("state", path, "--json").stdout)["states"]


def test_a_source_in_json(tmp_path):
    source = fl.MinibatchSource(corpus(), seed=(1 << 63) + 5, shuffle=fl.Window(samples=20), jumps=[(40, 60)])
    source.next_minibatch(30)
    (tmp_path / "a.json").write_text(json.dumps(source.state_dict()))
    (about,) = described(tmp_path / "a.json")
    assert about["key"] == ""
    assert about["of"] == "MinibatchSource"
    assert about["state"] == {"sweep": 0, "sequence": 30, "sequences": 100, "samples": 30, "label_samples": 0}
    facts = about["facts"]
    assert facts["place"] == "sweep 0 (from 0), 30 of 100 sequences of it delivered; 30 samples in all"
    assert facts["seed"] == str((1 << 63) + 5)
    assert facts["shuffled"] == "within windows of 20 samples"
    assert facts["passed over"] == "40 to 60"
    shown = feedline("state", tmp_path / "a.json").stdout
    assert all(text in shown for text in facts.values())


def test_mixtures_say_their_weights(tmp_path):
    mixture = fl.Mixture({"a": corpus(), "b": corpus(50)}, {"a": 1, "b": 2}, stages=[(40, {"a": 1, "b": 1})])
    source = fl.MinibatchSource(mixture, seed=1)
    source.next_minibatch(10)
    source.change_weights({"a": 3, "b": 1})
    (tmp_path / "a.json").write_text(json.dumps({"run": [source.state_dict()]}))
    (about,) = described(tmp_path / "a.json")
    assert about["key"] == "run.0"
    assert about["facts"]["weights of the mixture"].startswith("from 0 on 1/3 : 2/3")
    assert "3/4 : 1/4 (changed on the way)" in about["facts"]["weights of the mixture"]


def test_loaders_in_a_file_of_torch(tmp_path):
    torch = pytest.importorskip("torch")

    class Numbers(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(12))

    states = {}
    for name, dataset in (("items", list(range(50))), ("stream", Numbers())):
        loader = fl.DataLoader(dataset, batch_size=4)
        batches = iter(loader)
        next(batches), next(batches)
        states[name] = loader.state_dict()
    torch.save({"model": torch.zeros(2), "loaders": states}, tmp_path / "a.pt")
    items, stream = described(tmp_path / "a.pt")
    assert (items["key"], stream["key"]) == ("loaders.items", "loaders.stream")
    assert {items["of"], stream["of"]} == {"DataLoader"}
    assert items["facts"]["place"] == "sweep 0 (from 0), 8 of 50 items of it delivered"
    assert stream["facts"]["place"] == "sweep 0 (from 0), 2 batches of it delivered"


def test_a_checkpoint(tmp_path):
    source = fl.MinibatchSource(corpus())
    source.next_minibatch(7)
    folder = Checkpoints(tmp_path).save(7, {}, {"source": source.state_dict(), "step": 3})
    (about,) = described(folder)
    assert about["state"]["sequence"] == 7


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"feedline": 1}', "expected a state of a MinibatchSource or a DataLoader"),
        (b"\x80not a state", "neither JSON nor a file that torch loads"),
        (b"[" * 100_000, "RecursionError"),
        (b'{"a": 1}\n{"a": 2}\n', "Extra data"),
        (None, "No such file"),
    ],
)
def test_other_files_are_errors(tmp_path, content, message):
    if content is not None:
        (tmp_path / "a").write_bytes(content)
    assert message in feedline("state", tmp_path / "a", code=1).stderr


def test_damaged_fields_are_shown_as_they_are(tmp_path):
    saved = fl.MinibatchSource(corpus()).state_dict() | {"seed": 3, "shuffle": [1], "jumps": 4, "more": "x" * 500}
    (tmp_path / "a.json").write_text(json.dumps(saved | {"stages": 1, "versions": [2], "lanes": 5, "windows": 1}))
    (about,) = described(tmp_path / "a.json")
    assert (about["facts"]["seed"], about["facts"]["shuffled"], about["facts"]["passed over"]) == ("3", "[1]", "4")
    assert len(about["facts"]["more"]) < 80
