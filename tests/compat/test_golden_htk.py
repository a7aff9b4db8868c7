"""HTK features and MLF labels: what CNTK 2.7 reads, natively and through the façade."""

from __future__ import annotations

import numpy as np
import pytest

import feedline as fl
import feedline.cntk as C
from tests.compat.golden import ROOT, cases, shuffle_of

FEATURES = 33  # values of a frame in the archive


def data_folder():
    bases = [ROOT.parent, ROOT.parent.parent]
    return next(base / "shared" / "data" / "an4" for base in bases if (base / "shared" / "data" / "an4").is_dir())


@pytest.fixture(autouse=True)
def _in_its_folder(monkeypatch):
    """Paths of the script are relative."""
    monkeypatch.chdir(data_folder())


def facade(case):
    """Minibatches of a case as ((features, labels), sequences, samples, end of sweep) through CNTK's names."""
    files, streams = case["files"], case["streams"]
    readers = []
    if streams["features"]:
        given = streams["features"]
        features = C.io.StreamDef(shape=given["shape"], context=tuple(given["context"]), scp=files["scp"])
        readers.append(C.io.HTKFeatureDeserializer(C.io.StreamDefs(features=features)))
    if streams["labels"]:
        given = streams["labels"]
        labels = C.io.StreamDefs(labels=C.io.StreamDef(shape=given["shape"], mlf=files["mlf"]))
        readers.append(C.io.HTKMLFDeserializer(files["state_list"], labels, phoneBoundaries=given["phoneBoundaries"]))
    source = C.io.MinibatchSource(readers, **case["source"])
    for size in case["calls"]:
        minibatch = source.next_minibatch(size)
        if not minibatch:
            yield None
            continue
        values = {info.name: data.data.packed for info, data in minibatch.items()}
        data = next(iter(minibatch.values()))
        yield values, data.num_sequences, data.num_samples, data.end_of_sweep


def native(case):
    """The same through feedline's own."""
    files, streams, settings = case["files"], case["streams"], case["source"]
    given = streams["features"]
    left, right = given["context"]
    shape = given["shape"] * (left + 1 + right)
    corpus = fl.HTKFeatureDeserializer(files["scp"], features=fl.Stream(shape), context=(left, right))
    if streams["labels"]:
        labels = fl.MLFDeserializer(
            files["mlf"],
            labels=fl.Stream(streams["labels"]["shape"], sparse=True),
            states=files["state_list"],
            boundaries=streams["labels"]["phoneBoundaries"],
            cache=False,
        )
        corpus = fl.Join(corpus, labels, cache=False)
    source = fl.MinibatchSource(
        fl.Frames(corpus) if settings.get("frame_mode") else corpus,
        seed=settings.get("randomization_seed", 0),
        shuffle=shuffle_of(settings),
        max_sweeps=settings.get("max_sweeps"),
        truncation_length=settings.get("truncation_length"),
        order="cntk",
        filling="cntk",
    )
    for size in case["calls"]:
        m = source.next_minibatch(size)
        yield (dict(m), m.num_sequences, m["features"].num_samples, m.sweep_end) if m else None


def told(entry, case, wanted):
    """Return a minibatch in the golden file's form."""
    if entry is None:
        return {"end": True}
    values, sequences, samples, end = entry
    found = {"end": False, "num_sequences": sequences, "num_samples": samples, "end_of_sweep": end}
    if "features" in values:
        x = values["features"]
        first, last = x.offsets[:-1], x.offsets[1:]
        middle = case["streams"]["features"]["context"][0] * FEATURES
        found |= {
            "first_frame": x.rows[first, middle].astype(int).tolist(),
            "frames": (last - first).tolist(),
            "sum": [float(x.rows[a:b].sum(dtype=np.float64)) for a, b in zip(first, last, strict=True)],
            "window_first": x.rows[first[0]].tolist(),
            "window_last": x.rows[last[0] - 1].tolist(),
        }
    if "labels" in values:
        y = values["labels"]
        assert y.indptr.tolist() == list(range(y.num_samples + 1))
        pairs = list(zip(y.indices.tolist(), y.values.tolist(), strict=True))
        bounds = zip(y.offsets[:-1].tolist(), y.offsets[1:].tolist(), strict=True)
        found["label_runs"] = [runs(pairs[a:b]) for a, b in bounds]
    return {key: found[key] for key in wanted}


def runs(pairs):
    """[class, number] or, where it is not 1, [class, number, value]."""
    found = []
    for label, value in pairs:
        if found and (found[-1][0], found[-1][2]) == (label, value):
            found[-1][1] += 1
        else:
            found.append([label, 1, value])
    return [[*run[:2], int(run[2])] if run[2] != 1 else run[:2] for run in found]


@pytest.mark.parametrize("case", cases("htk.json"))
def test_the_facade_reads_what_cntk_reads(case):
    if "error" in case["expect"][0]:
        message = case["expect"][0]["error"]["message"].rstrip(".")
        with pytest.raises(RuntimeError, match=message):
            list(facade(case))
        return
    for entry, expected in zip(facade(case), case["expect"], strict=True):
        assert told(entry, case, expected) == expected


@pytest.mark.parametrize("case", cases("htk.json"))
def test_feedline_reads_what_cntk_reads(case):
    if "error" in case["expect"][0]:
        pytest.skip("labels alone are a corpus like any other here")
    for entry, expected in zip(native(case), case["expect"], strict=True):
        assert told(entry, case, expected) == expected
