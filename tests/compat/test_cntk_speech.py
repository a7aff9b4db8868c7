"""CNTK's binary format, ctf2bin, HTK features and labels under CNTK's names."""

from __future__ import annotations

import struct
import subprocess
import sys

import numpy as np
import pytest

import feedline as fl
import feedline.cntk as C
from feedline.cntk import ctf2bin
from tests.compat.golden import ROOT
from tests.feed.formats.corpora import everything
from tests.feed.formats.test_htk import LENGTHS, frames_of, write
from tests.oracles.cntk_files import cbf, htk, mlf, windows

Def, Defs = C.io.StreamDef, C.io.StreamDefs
TEXT = """\
0 |x 1:0.5 3:2 |y 1 2 |# a comment
0 |x 0:1
1 |x |y 3 4
 |x 2:7
5 |y 5 6.5
"""
STREAMS = ["features x sparse 4", "labels y dense 2"]
# Sequences of TEXT: a stream without values has no sample.
SEQUENCES = [
    ([[(1, 0.5), (3, 2)], [(0, 1)]], [[1, 2]]),
    ([[(2, 7)]], [[3, 4]]),
    ([], [[5, 6.5]]),
]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "data.ctf"
    path.write_text(TEXT)
    return path


# ---- ctf2bin ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["f", "d"])
def test_ctf2bin_writes_the_layout(text, code):
    out = text.with_suffix(".bin")
    ctf2bin.process(str(text), str(out), STREAMS, ctf2bin.ElementType.DOUBLE if code == "d" else 0)
    streams = [("features", True, code, 4), ("labels", False, code, 2)]
    assert out.read_bytes() == cbf(streams, [SEQUENCES])


def test_ctf2bin_does_not_reset_the_next_chunk(tmp_path):
    """CNTK's script never resets its size: after the first full chunk each sequence is a separate chunk."""
    text, out = tmp_path / "x.ctf", tmp_path / "x.bin"
    text.write_text("".join(f"|x {i} 0\n" for i in range(10)))
    for sound, sizes in ((False, [4, 1, 1, 1, 1, 1, 1]), (True, [4, 4, 2])):
        ctf2bin.process(str(text), str(out), ["x x dense 2"], 0, 32, sound_chunks=sound)
        assert [info.sequences for info in fl.CBFDeserializer(out, chunk_size=0).chunks()] == sizes
        assert everything(fl.CBFDeserializer(out))["x"].rows[:, 0].tolist() == list(range(10))


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("|x 1 2 3", "expected 2 values in a sample of `x`, got 3"),
        ("|x 1 zwei", "could not convert"),
        ("|z 1", "expected a stream of the header, got `z`"),
        ("|x 1 1e39", "can hold"),
        ("1 2", "with `|`"),
        ("", "with `|`"),
    ],
)
def test_ctf2bin_refuses(tmp_path, line, what):
    text = tmp_path / "x.ctf"
    text.write_text(f"|x 1 2\n{line}\n")
    with pytest.raises((ValueError, fl.DataError), match=what):
        ctf2bin.process(str(text), str(tmp_path / "x.bin"), ["x x dense 2"], 0)
    assert not (tmp_path / "x.bin").exists()
    with pytest.raises(ValueError, match="name alias dense"):
        ctf2bin.process(str(text), str(tmp_path / "x.bin"), ["x dense 2"], 0)


def test_ctf2bin_is_a_program(text):
    header, out = text.with_name("header"), text.with_suffix(".bin")
    header.write_text("\n".join(STREAMS) + "\n")
    command = ["--input", text, "--header", header, "--chunk_size", "1000", "--output", out, "--precision", "double"]
    ctf2bin.main([str(word) for word in command])
    assert fl.CBFDeserializer(out).schema["labels"].dtype == np.float64


def test_ctf2bin_writes_cntks_own_files(tmp_path):
    """Files that CNTK's developers made with their script, where they are at hand."""
    folder = next((p for p in (ROOT.parent, ROOT.parent.parent) if (p / "shared/data/cbf").is_dir()), None)
    if folder is None:
        pytest.skip("CNTK's own files are not there")
    for name, streams, element in (
        ("10x10_dense", ["features F0 dense 5"], 0),
        ("10x10_sparse", ["features F0 sparse 100"], 1),
        ("50x20_jagged_sequences_dense", ["features F0 dense 3"], 1),
        ("Simple_dense", ["features F dense 2", "labels L dense 2"], 0),
    ):
        path = folder / "shared/data/cbf" / name
        ctf2bin.process(f"{path}.ctf", str(tmp_path / name), streams, element)
        assert (tmp_path / name).read_bytes() == path.with_suffix(".bin").read_bytes()


# ---- CBFDeserializer ----------------------------------------------------------------------------------


def deliver(source, size=4):
    found = []
    while minibatch := source.next_minibatch(size):
        found.append({info.name: data.data.packed for info, data in minibatch.items()})
    return found


@pytest.mark.parametrize("settings", [{"randomize": False}, {"randomization_seed": 3}])
def test_binary_and_text_are_the_same(tmp_path, settings):
    text, binary = tmp_path / "x.ctf", tmp_path / "x.bin"
    text.write_text("".join(f"{i} |x {i}:1 |y {i} {k}\n" for i in range(30) for k in range(i % 3 + 1)))
    ctf2bin.process(str(text), str(binary), ["features x sparse 30", "y y dense 2"], 0)
    defs = Defs(x=Def(field="x", shape=30, is_sparse=True), y=Def(field="y", shape=2))
    expected = deliver(C.io.MinibatchSource(C.io.CTFDeserializer(str(text), defs), max_sweeps=2, **settings))
    reader = C.io.CBFDeserializer(str(binary), Defs(x=Def(field="features")))
    found = deliver(C.io.MinibatchSource(reader, max_sweeps=2, **settings))
    assert found == expected
    plain = C.io.MinibatchSource(C.io.CBFDeserializer(str(binary)), max_sweeps=1)
    assert [info.name for info in plain.stream_infos()] == ["features", "y"]


def test_what_cntk_refuses_of_binary_files(text, tmp_path):
    out = tmp_path / "x.bin"
    ctf2bin.process(str(text), str(out), STREAMS, ctf2bin.ElementType.DOUBLE)
    with pytest.raises(RuntimeError, match="precision"):
        C.io.MinibatchSource(C.io.CBFDeserializer(str(out)))
    ctf2bin.process(str(text), str(out), STREAMS, 0)
    other = C.io.CTFDeserializer(str(text), Defs(a=Def(field="y", shape=2)))
    with pytest.raises(RuntimeError, match="as the first deserializer"):
        C.io.MinibatchSource([other, C.io.CBFDeserializer(str(out))])
    out.write_bytes(out.read_bytes()[:8] + struct.pack("<I", 2) + out.read_bytes()[12:])
    with pytest.raises(RuntimeError, match="version 1"):
        C.io.MinibatchSource(C.io.CBFDeserializer(str(out)))


# ---- HTK ----------------------------------------------------------------------------------------------


@pytest.fixture
def speech(tmp_path):
    tmp_path.joinpath("states").write_text("\n".join(f"s{i}" for i in range(9)))
    runs = {f"a/u{i}": [(1, f"s{i}"), (n - 1, "s8")] if n > 1 else [(1, f"s{i}")] for i, n in enumerate(LENGTHS)}
    tmp_path.joinpath("all.mlf").write_text(mlf(runs))
    return tmp_path, write(tmp_path)


def features(folder, **how):
    return C.io.HTKFeatureDeserializer(Defs(x=Def(**{"shape": 3, "scp": str(folder / "all.scp"), **how})))


def labels(folder, **how):
    given = Defs(y=Def(shape=9, mlf=str(folder / "all.mlf")))
    return C.io.HTKMLFDeserializer(str(folder / "states"), given, **how)


def test_features_and_labels(speech):
    folder, utterances = speech
    source = C.io.MinibatchSource([features(folder, context=(1, 2)), labels(folder)], randomize=False, max_sweeps=1)
    (found,) = deliver(source, 99)
    for x, y, i in zip(found["x"].sequences(), found["y"].dense().sequences(), range(7), strict=True):
        np.testing.assert_array_equal(x, windows(utterances[i], 1, 2))
        assert y.argmax(axis=1).tolist() == [i] + [8] * (LENGTHS[i] - 1)


def test_without_a_window_the_dimension_decides(speech):
    folder, utterances = speech
    (found,) = deliver(C.io.MinibatchSource(features(folder, shape=9), randomize=False, max_sweeps=1), 99)
    np.testing.assert_array_equal(found["x"].sequences()[0], windows(utterances[0], 1, 1))
    for shape, context in ((6, (0, 0)), (9, (1, 1))):
        with pytest.raises(RuntimeError, match="values"):
            C.io.MinibatchSource(features(folder, shape=shape, context=context))


@pytest.mark.parametrize("randomize", [False, True])
def test_frame_mode_takes_utterances_apart(speech, randomize):
    folder, utterances = speech
    readers = [features(folder, context=(1, 0)), labels(folder)]
    source = C.io.MinibatchSource(readers, frame_mode=True, randomize=randomize, max_sweeps=1)
    found = deliver(source, 5)
    assert [m["x"].num_sequences for m in found] == [5] * 6 + [1]
    rows = np.concatenate([m["x"].rows for m in found])
    expected = np.concatenate([windows(u, 1, 0) for u in utterances])
    assert (rows.tolist() == expected.tolist()) is not randomize
    assert sorted(rows.tolist()) == sorted(expected.tolist())


def test_phone_boundaries(speech):
    folder, _ = speech
    readers = [features(folder), labels(folder, phoneBoundaries=True)]
    (found,) = deliver(C.io.MinibatchSource(readers, randomize=False, max_sweeps=1), 99)
    assert found["y"].values[:6].tolist() == [2, 2, 1, 1, 2, 2]
    with pytest.raises(RuntimeError, match="frame mode"):
        C.io.MinibatchSource(readers, frame_mode=True)


def test_invalid_and_missing_labels_drop_their_utterances(speech):
    folder, _ = speech
    path = folder / "all.mlf"
    text = path.read_text().replace("100000 400000 s8", "200000 400000 s8", 1)  # of u0, after 0 to 100000
    head, _, rest = text.partition('"*/a/u3.lab"')
    path.write_text(head + rest.partition(".\n")[2])
    source = C.io.MinibatchSource([features(folder), labels(folder)], randomize=False, max_sweeps=1)
    (found,) = deliver(source, 99)
    assert found["x"].lengths.tolist() == [1, 7, 2, 9, 5]


def test_a_vector_of_the_speaker_is_repeated(speech):
    folder, _ = speech
    (folder / "v.mfc").write_bytes(htk(frames_of(7, 2)))
    (folder / "v.scp").write_text("".join(f"a/u{i}={folder}/v.mfc[{i},{i}]\n" for i in range(7)))
    vector = C.io.HTKFeatureDeserializer(Defs(v=Def(shape=2, scp=str(folder / "v.scp"), broadcast=True)))
    source = C.io.MinibatchSource([features(folder), vector, labels(folder)], randomize=False, max_sweeps=1)
    (found,) = deliver(source, 99)
    assert found["v"].lengths.tolist() == LENGTHS
    assert found["v"].rows[:, 0].tolist() == np.repeat(np.arange(7), LENGTHS).tolist()
    with pytest.raises(RuntimeError, match="with broadcast=True"):
        C.io.MinibatchSource([vector, features(folder)])


def test_settings_that_cntk_ignores_are_reported(speech, caplog):
    folder, _ = speech
    features(folder)
    assert not caplog.text
    features(folder, defines_mb_size=True)
    assert "defines_mb_size has no effect" in caplog.text
    features(folder, max_sequence_length=2)
    assert "max_sequence_length has no effect" in caplog.text


def test_what_cntk_refuses(speech):
    folder, _ = speech
    for make, what in (
        (lambda: C.io.HTKFeatureDeserializer(Defs()), "at least one stream"),
        (lambda: features(folder, field="x"), "no field"),
        (lambda: C.io.HTKFeatureDeserializer(Defs(x=Def(shape=3))), "a script"),
        (lambda: C.io.HTKMLFDeserializer("s", Defs()), "exactly one stream"),
        (lambda: C.io.HTKMLFDeserializer("s", Defs(y=Def(shape=3))), "label file"),
    ):
        with pytest.raises(ValueError, match=what):
            make()
    with pytest.raises(RuntimeError, match="does not support primary mode"):
        C.io.MinibatchSource(labels(folder))
    scp = folder / "all.scp"
    scp.write_text(scp.read_text() + f"w={folder}/0.chunk\n")
    with pytest.raises(RuntimeError, match="requires an input script with start and end frames") as caught:
        C.io.MinibatchSource(features(folder))
    assert caught.value.line == 8


# ---- a script -----------------------------------------------------------------------------------------

SCRIPT = """
import _cntk_py, ctf2bin, cntk
from cntk.io import HTKFeatureDeserializer, HTKMLFDeserializer, MinibatchSource, StreamDef, StreamDefs
cntk.debugging.set_computation_network_trace_level(0)
_cntk_py.set_computation_network_trace_level(0)
fd = HTKFeatureDeserializer(StreamDefs(fs=StreamDef(shape=3, context=(2, 2), scp="all.scp")))
ld = HTKMLFDeserializer("states", StreamDefs(ls=StreamDef(shape=9, mlf="all.mlf")))
source = MinibatchSource([fd, ld], truncation_length=4, max_samples=62)
x, y = cntk.sequence.input_variable(15), cntk.sequence.input_variable(9)
model = cntk.layers.Sequential([cntk.layers.Recurrence(cntk.layers.LSTM(8)), cntk.layers.Dense(9)])(x)
loss = cntk.cross_entropy_with_softmax(model, y)
learner = cntk.fsadagrad(model.parameters, cntk.learning_parameter_schedule_per_sample(0.01),
                         cntk.momentum_schedule_per_sample(0.9))
trainer = cntk.Trainer(model, (loss, cntk.classification_error(model, y)), learner)
losses = []
while True:
    minibatch = source.next_minibatch(16, {x: source.streams.fs, y: source.streams.ls})
    if not minibatch:
        break
    trainer.train_minibatch(minibatch)
    losses.append(trainer.previous_minibatch_loss_average)
print(trainer.total_number_of_samples_seen, all(0 < loss < 10 for loss in losses), ctf2bin.ElementType.FLOAT)
"""


def test_a_script_trains_on_pieces_of_utterances(speech):
    """CNTK's speech example runs unchanged."""
    folder, _ = speech
    (folder / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "feedline", "run", "--as", "cntk", "train.py"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert ran.stdout.split() == ["62", "True", "0"], ran.stderr
