"""TFRecord: read as TensorFlow and protobuf read it. Damage costs its record. Laws: laws/test_byte_strings.py."""

import gzip
import json
import logging
import os
import pickle
import random
import struct
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline.cli.corpus import open_path
from feedline.data.scattered import ScatteredBytes
from feedline.feed.files import compressed_text
from feedline.feed.formats.detect import format_name
from feedline.feed.formats.tfrecord import infer_tfrecord_streams
from feedline.feed.protocol import Unread
from tests.effort import examples, stride
from tests.feed.formats.corpora import assert_read
from tests.oracles.tfrecord import (
    NO_BYTES,
    NO_FLOATS,
    NO_INTS,
    Disputed,
    Raw,
    example,
    feature,
    field,
    numbers_of,
    parsed,
    record,
    sequence_example,
    tag,
    tfrecords,
    varint,
)

HERE = Path(__file__).parents[2] / "fixtures" / "tfrecord"
READ = json.loads((HERE / "read.json").read_text())
FILES = ["plain", "gzip", "zlib", "fast"]
BYTES, TEXT, INT = fl.Stream(dtype="bytes"), fl.Stream(dtype="str"), fl.Stream((), "int64")
EXAMPLE = {
    "image": BYTES,
    "label": INT,
    "maybe": INT,
    "row": fl.Stream((2, 2)),
    "text": TEXT,
    "tokens": INT,
    "words": TEXT,
}


def row(i):
    draw = random.Random(i)
    return {
        "n": i,
        "x": [i / 4, -float(i)],
        "t": f"{i}é" * (i % 3),
        "ids": [draw.randrange(1 << draw.choice([3, 7, 20, 40])) - 5 for _ in range(i % 5)],
        "b": draw.randbytes(i % 40),
    }


ROWS = [row(i) for i in range(300)]
STREAMS = {"n": fl.Stream((), "int32"), "x": fl.Stream(2), "t": TEXT, "ids": INT, "b": BYTES}
MESSAGES = [example(**{**one, "ids": one["ids"] or NO_INTS}) for one in ROWS]
CONTENT = tfrecords(MESSAGES)


def deflated(data, level, bits=15):
    """In small blocks, to have points between them."""
    packer = zlib.compressobj(level, zlib.DEFLATED, bits, 1)
    return packer.compress(data) + packer.flush()


PACKINGS = {
    "plain": bytes,
    "gzip": lambda data: deflated(data, 6, 31),
    "zlib": lambda data: deflated(data, 6),
    "fast": lambda data: deflated(data, 3),
}


@pytest.fixture(autouse=True)
def small_spans(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # lists of skipped records are written here
    monkeypatch.setattr(compressed_text, "SPAN_BYTES", 5000)


@pytest.fixture(scope="module", params=PACKINGS)
def path(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("tfrecord") / "data.tfrecord"
    path.write_bytes(PACKINGS[request.param](CONTENT))
    return path


@pytest.fixture
def plain(tmp_path):
    path = tmp_path / "plain.tfrecord"
    path.write_bytes(CONTENT)
    return path


def opened(path, **options):
    return fl.TFRecordDeserializer(path, STREAMS, **{"chunk_size": 4000, **options})


def written(path, *messages):
    path.write_bytes(tfrecords(messages))
    return path


def check(chunk, rows):
    for name in STREAMS:
        assert chunk[name].tolist() == [one[name] for one in rows], name


def everything(corpus):
    return corpus.select(np.arange(sum(info.sequences for info in corpus.chunks())))


# ---- what TensorFlow and protobuf read ------------------------------------------------------------------


def hexed(values):
    return [[one.hex() for one in v] if isinstance(v, list) else v.hex() for v in values]


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("chunk_size", [1, 500, 1 << 20])
def test_examples_are_what_tensorflow_reads(kind, chunk_size):
    path = HERE / f"examples-{kind}.tfrecord"
    corpus = fl.TFRecordDeserializer(path, EXAMPLE, defaults={"maybe": -1}, chunk_size=chunk_size, cache=False)
    chunk = everything(corpus)
    assert not chunk.errors
    columns = {name: value.tolist() for name, value in chunk.values.items()}
    for name in ("text", "words"):
        columns[name] = [[s.encode() for s in v] if isinstance(v, list) else v.encode() for v in columns[name]]
    for name in ("image", "text", "words"):
        columns[name] = hexed(columns[name])
    assert [dict(zip(columns, one, strict=True)) for one in zip(*columns.values(), strict=True)] == READ["examples"]
    assert chunk.lengths.tolist() == [max(1, len(one["tokens"]), len(one["words"])) for one in READ["examples"]]


@pytest.mark.parametrize("kind", FILES)
def test_sequence_examples_equal_tensorflows(kind):
    """A name in both maps is the context's, unless `lists` has it."""
    path = HERE / f"sequences-{kind}.tfrecord"
    streams = {"id": INT, "tokens": INT, "frame": fl.Stream(3), "phone": fl.Stream((), "int16"), "word": BYTES}
    chunk = everything(fl.TFRecordDeserializer(path, streams, cache=False))
    assert not chunk.errors
    columns = {name: value.tolist() for name, value in chunk.values.items()}
    columns["word"] = hexed(columns["word"])
    for row, expected in zip(zip(*columns.values(), strict=True), READ["sequences"], strict=True):
        names = ("c/id", "c/tokens", "l/frame", "l/phone", "l/word")
        assert dict(zip(names, row, strict=True)) == expected


def test_undeclared():
    corpus = fl.open_corpus(HERE / "examples-zlib.tfrecord")
    assert isinstance(corpus, fl.TFRecordDeserializer)
    text = dict.fromkeys(("text", "words"), BYTES)
    shown = {**EXAMPLE, "row": fl.Stream(4), **text}
    assert dict(corpus.schema) == {name: shown[name] for name in sorted(shown) if name != "maybe"}
    streams = infer_tfrecord_streams(HERE / "sequences-plain.tfrecord")
    assert streams == {"frame": fl.Stream(3), "id": INT, "phone": INT, "tokens": INT, "word": BYTES}


def test_tensorflow_itself(tmp_path):
    """Written and read now."""
    tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed")
    for kind in ("", "GZIP", "ZLIB"):
        path = str(tmp_path / f"live{kind}.tfrecord")
        with tf.io.TFRecordWriter(path, kind) as out:
            for message in MESSAGES:
                out.write(message)
        check(everything(opened(path)), ROWS)
        assert [m.numpy() for m in tf.data.TFRecordDataset(path, kind)] == MESSAGES


TWINS = {"n": fl.Stream(2, "int16"), "x": fl.Stream((), "float64"), "t": TEXT, "s": fl.Stream(())}
USUAL = {"n": 3, "x": 2, "t": 1, "s": 3}  # kinds of their features
PIECES = {"n": [[2], [1, 1], [0, 2], [3]], "x": [[], [1], [2, 1], [20]], "t": [[], [1], [2]], "s": [[1], [0, 1], [2]]}
numbers = st.integers(-300, 300) | st.integers(-(2**15), 2**15 - 1) | st.integers(-(2**63), 2**63 - 1)
texts = st.sampled_from([b"", "é".encode(), b"abc" * 50, b"\xff"])
unknown = st.sampled_from(
    [
        *[b""] * 5,
        *(tag(9, 0) + varint(5), tag(9, 1) + b"8 bytes.", tag(9, 5) + b"four", field(15, b"?")),
        *(tag(7, 3) + tag(7, 4), tag(7, 3) + field(1, b"in") + tag(8, 3) + tag(8, 4) + tag(7, 4)),
        *(tag(1, 1) + b"8 bytes.", tag(2, 5) + b"four"),
    ]
)


@st.composite
def lists(draw, name):
    """A Feature's list, cut as no writer cuts it but any may."""
    kind = draw(st.sampled_from([USUAL[name]] * 4 + [1, 2, 3]))
    found = draw(unknown)
    for count in draw(st.sampled_from(PIECES[name])):
        values = [draw((texts, st.floats(width=32), numbers)[kind - 1]) for _ in range(count)]
        if kind == 1:
            found += b"".join(field(1, value) for value in values)
        elif values:
            found += numbers_of(values, packed=draw(st.booleans()))
        found += draw(unknown)
    return field(kind, found)


@st.composite
def messages(draw):
    """A stream's name, and a message of both maps in pieces: keys twice, values in parts, unknown fields anywhere."""
    name, found = draw(st.sampled_from(sorted(TWINS))), b""
    features = st.lists(lists(name), min_size=1, max_size=draw(st.sampled_from([1, 2, 3]))).map(b"".join) | unknown
    for _ in range(draw(st.integers(1, 2))):
        among, body = draw(st.sampled_from([name == "s"] * 4 + [name != "s"])), b""
        for _ in range(draw(st.integers(0, 3))):
            parts = []
            for _ in range(draw(st.sampled_from([1, 1, 1, 0, 2]))):
                value = draw(features)
                if among:
                    value = b"".join(field(1, draw(features)) for _ in range(draw(st.integers(0, 3)))) + draw(unknown)
                parts.append(field(2, value))
            key = field(1, draw(st.sampled_from([name] * 3 + ["other"])).encode())
            body += field(1, key + b"".join(parts)) + draw(unknown)
        found += field(2 if among else 1, body) + draw(unknown)
    return name, found


def held(kind, values, stream):
    """The samples of a feature or a step, None: it does not fit."""
    if stream.is_bytes:
        if kind != "bytes_list":
            return None
        try:
            return [value.decode() if stream.is_text else value for value in values]
        except UnicodeDecodeError:
            return None
    if kind == "int64_list" or (kind == "float_list" and stream.dtype.kind == "f"):
        if stream.dtype.kind == "i" and any(not -(2**15) <= value < 2**15 for value in values):
            return None
        return np.array(values, "int64" if kind == "int64_list" else "float32").astype(stream.dtype).tolist()
    return None


def expected_of(name, message):
    """The sequence of a record in one stream, by the rules of the page, None: it is unreadable."""
    features, steps = parsed(message)
    stream = TWINS[name]
    if name == "s":
        parts = [held(kind, values, stream) for kind, values in steps.get(name, [])]
        fits = name in steps and all(part is not None and len(part) == stream.size for part in parts)
        return [part[0] for part in parts] if fits else None
    kind, values = features.get(name, (None, []))
    part = held(kind, values, stream)
    return part if part is not None and (name in ("x", "t") or len(part) == stream.size) else None


@settings(max_examples=examples(150))
@given(messages(), st.data())
def test_messages_are_read_as_protobuf_reads_them(tmp_path_factory, drawn, data):
    """Damaged ones, too: where protobuf reads one, so do we, and find the same."""
    decode_error = pytest.importorskip("google.protobuf.message").DecodeError
    name, message = drawn
    if data.draw(st.integers(0, 3)) == 0 and message:
        at = data.draw(st.integers(0, len(message) - 1))
        message = message[:at] + bytes([data.draw(st.integers(0, 255))]) + message[at + 1 :]
    path = tmp_path_factory.getbasetemp() / "twin.tfrecord"
    path.write_bytes(tfrecords([message]))
    places = {"sequences": [name] if name in ("x", "t") else [], "lists": ["s"] if name == "s" else []}
    try:
        expected = expected_of(name, message)
    except (decode_error, Disputed):
        expected = "any"
    try:
        chunk = fl.TFRecordDeserializer(path, {name: TWINS[name]}, **places, cache=False).read(0)
    except fl.SchemaError:
        assert expected in (None, "any")
        return
    if expected != "any":
        assert bool(chunk.errors) == (expected is None), (chunk.errors, expected)
    if expected not in (None, "any"):
        (got,) = chunk[name].tolist()
        if name == "t":
            assert got == expected
        else:
            np.testing.assert_array_equal(np.array(got), np.array(expected))


# ---- values ---------------------------------------------------------------------------------------------


def test_values_equal_the_written_values(path):
    corpus = opened(path)
    assert_read(corpus, ROWS, check)
    again = pickle.loads(pickle.dumps(corpus))
    assert (again.digest(), again.chunks()) == (corpus.digest(), corpus.chunks())
    assert repr(corpus) == f"TFRecordDeserializer({path}: 300 records, {len(corpus.chunks())} chunks)"


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"]
)
def test_integers_become_what_is_declared(tmp_path, dtype):
    """At both ends of a type, packed or not, and beyond them."""
    kind = np.dtype(dtype).kind
    low, high = (0, 1) if kind == "b" else (-(2**63), 2**63 - 1)
    if kind in "iu":
        low, high = np.iinfo(dtype).min, min(np.iinfo(dtype).max, 2**63 - 1)
    values = [low, high, 0, 1, *([127, 100] if kind != "b" else [])] * 3
    good = [Raw(feature(values, packed)) for packed in (True, False)]
    path = written(tmp_path / "a.tfrecord", *(example(v=one) for one in good))
    stream = fl.Stream(len(values), dtype)
    chunk = everything(fl.TFRecordDeserializer(path, v=stream, cache=False))
    assert not chunk.errors
    np.testing.assert_array_equal(chunk["v"].rows, np.array([values, values]).astype(dtype))
    outside = [v for v in (low - 1, high + 1) if -(2**63) <= v < 2**63]
    if kind != "f" and outside:
        path = written(tmp_path / "b.tfrecord", *(example(v=v) for v in outside))
        chunk = fl.TFRecordDeserializer(path, v=fl.Stream((), dtype), cache=False).read(0)
        assert [f"an integer of {dtype} for stream `v`, got {v}" in str(chunk.errors[i]) for i, v in enumerate(outside)]
        assert len(chunk.errors) == len(outside)


def test_floats_keep_their_bits(tmp_path):
    bits = np.array([0, 1 << 31, 0x7FC00001, 0x7F800000, 1, 0x3DCCCCCD], "<u4").tobytes()
    message = example(v=Raw(field(2, field(1, bits))))
    path = written(tmp_path / "a.tfrecord", message)
    assert fl.TFRecordDeserializer(path).read(0)["v"].rows.tobytes() == bits
    wide = fl.TFRecordDeserializer(path, v=fl.Stream((), "float64")).read(0)["v"].rows
    np.testing.assert_array_equal(wide, np.frombuffer(bits, "<f4").astype("float64"))


def test_what_the_first_records_show(tmp_path, caplog):
    first = [
        {"same": [1, 2], "scalar": 1.5, "varying": [1], "empty": NO_FLOATS, "bytes": b"a", "several": ["a", "b"]},
        {"same": [3, 4], "scalar": 2.5, "varying": [], "empty": NO_FLOATS, "bytes": b"b", "several": NO_BYTES},
    ]
    first[1]["varying"] = NO_INTS
    odd = [{"kind": 1, "gone": 1, "none": Raw(b"")}, {"kind": 1.5, "none": Raw(b"")}]
    steps = [{"both": [1, 2], "same": [[1, 2]], "uneven": [[1], [1, 2]]}, {"both": [], "same": [], "uneven": [[1]]}]
    path = written(
        tmp_path / "a", *(sequence_example({**a, **b}, c) for a, b, c in zip(first, odd, steps, strict=True))
    )
    with caplog.at_level(logging.WARNING, "feedline"):
        corpus = fl.open_corpus(path)
    assert dict(corpus.schema) == {
        "both": INT,
        "bytes": BYTES,
        "empty": fl.Stream(()),
        "feature_lists/same": fl.Stream(2, "int64", field="same"),
        "same": fl.Stream(2, "int64"),
        "scalar": fl.Stream(()),
        "several": BYTES,
        "varying": INT,
    }
    assert "gone, kind, none, uneven" in caplog.text
    chunk = corpus.read(0)
    assert not chunk.errors
    assert chunk["both"].tolist() == [[1, 2], []]
    assert chunk["feature_lists/same"].tolist() == [[[1, 2]], []]
    assert chunk["same"].tolist() == [[1, 2], [3, 4]]
    assert (chunk["varying"].tolist(), chunk["empty"].tolist()) == ([[1], []], [[], []])
    assert chunk["several"].tolist() == [[b"a", b"b"], []]
    declared = fl.TFRecordDeserializer(path, same=fl.Stream(2, "int32"), lists=["same"])
    assert declared.read(0)["same"].tolist() == [[[1, 2]], []]
    assert pickle.loads(pickle.dumps(declared)).read(0)["same"].tolist() == [[[1, 2]], []]


def test_a_later_record_that_differs_keeps_its_tick(tmp_path):
    """Where it differs is told: file, byte, record, feature."""
    good = [example(n=i, x=[i / 2, 1.0]) for i in range(100)]
    bad = {
        103: (example(n=1), "expected the feature `x` for stream `x`, got none"),
        105: (example(n=1, x=Raw(b"")), "expected the feature `x`"),
        110: (example(n=1.5, x=[1.0, 2.0]), "expected integers for stream `n`, got floats"),
        111: (example(n=[1, 2], x=[1.0, 2.0]), "expected 1 values for stream `n`, got 2"),
        112: (example(n=1, x=[1.0]), "expected 2 values for stream `x`, got 1"),
        113: (example(n=b"1", x=[1.0, 1.0]), "expected integers for stream `n`, got bytes"),
        114: (b"\x0a\x05no", "bytes that are not a protobuf message"),
    }
    messages = good + [bad[i][0] if i in bad else example(n=i, x=[0.0, 0.0]) for i in range(100, 120)]
    path = written(tmp_path / "a.tfrecord", *messages)
    corpus = fl.TFRecordDeserializer(path)
    chunk = corpus.read(0)
    assert list(chunk.errors) == list(bad)
    starts = np.cumsum([0, *(len(record(message)) for message in messages)])
    for i, (_, why) in bad.items():
        error = chunk.errors[i]
        assert why in error.what
        assert error.what.endswith(f", in record {i}")
        assert (error.path, error.sequence, error.line) == (str(path), i, None)
        assert starts[i] <= error.byte < starts[i + 1]
    assert "sequences=" in str(chunk.errors[111])
    assert "missing=0" in str(chunk.errors[103])
    source = fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1, on_error="skip")
    assert [n for m in source.minibatches(9) for n in m.ids.tolist()] == [i for i in range(120) if i not in bad]
    with pytest.raises(fl.DataError, match="in record 103"):
        list(fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1).minibatches(9))


def test_a_filled_feature_may_be_absent_from_the_first_records(tmp_path):
    path = written(tmp_path / "a.tfrecord", *(example(n=i) for i in range(150)), example(n=150, x=2.5))
    for x, expected in (fl.Stream((), missing=-1.0), -1.0), (fl.Stream((), mask=True), 0.0):
        rows = everything(fl.TFRecordDeserializer(path, n=fl.Stream((), "int64"), x=x))
        assert rows["x"].tolist() == [*[expected] * 150, 2.5]
    with pytest.raises(fl.SchemaError, match=r"the feature `x`.* or missing= for one that few records have"):
        fl.TFRecordDeserializer(path, x=fl.Stream(()))


def test_defaults_replace_missing_features(tmp_path):
    path = written(tmp_path / "a.tfrecord", example(n=1), example(n=2, x=[1.0, 2.0], t="t", s=[1, 2]), example(n=3))
    streams = {"n": INT, "x": fl.Stream(2), "t": TEXT, "s": INT, "rare": fl.Stream((2, 2), "uint8")}
    defaults = {"x": [0.5, -1], "t": "é", "s": [], "rare": 7}
    corpus = fl.TFRecordDeserializer(path, streams, defaults=defaults)
    chunk = pickle.loads(pickle.dumps(corpus)).read(0)
    assert not chunk.errors
    assert chunk["x"].tolist() == [[0.5, -1], [1, 2], [0.5, -1]]
    assert chunk["t"].tolist() == ["é", "t", "é"]
    assert chunk["s"].tolist() == [[], [1, 2], []]
    assert chunk["rare"].rows.tolist() == [[[7, 7], [7, 7]]] * 3
    assert corpus.digest() != fl.TFRecordDeserializer(path, streams, defaults={**defaults, "rare": 8}).digest()
    several = ({"x": [1]}, {"x": "a"}, {"x": "1.5"}, {"x": None}, {"x": 1e300}, {"x": [1, None]}, {"s": [1]}, {"s": 0})
    for wrong in (*several, {"t": b"t"}, {"t": "\ud800"}, {"n": 1.5}, {"n": "1"}, {"n": 2**70}, {"rare": -1}):
        with pytest.raises(fl.SchemaError, match=r"in `defaults` for stream"):
            fl.TFRecordDeserializer(path, streams, defaults={**defaults, **wrong})


def test_what_cannot_be_declared(plain):
    for streams, options, message in (
        (
            {"q": INT},
            {},
            r"the feature `q` for stream `q` in one of the first 100 .* which have b, ids, n, t, x",
        ),
        ({"n": TEXT}, {}, r"expected integers for stream `n`, as the feature `n`"),
        ({"x": INT}, {}, r"expected floats for stream `x`"),
        ({"b": fl.Stream(3)}, {}, r"expected bytes for stream `b`"),
        ({"n": fl.Stream(9, sparse=True)}, {}, "no sparse vectors"),
        ({"n": fl.Stream((), "float16")}, {}, "expected one of bool, int8"),
        ({"n": INT, "m": fl.Stream((), "int64", field="n")}, {}, "separate features, got `n` and `m`"),
        (
            {"n": fl.Stream((), field="\ud800"), "m": fl.Stream((), field="\ud800")},
            {"defaults": {"n": 0, "m": 0}},
            "got `n` and `m`",
        ),
        ({"n": INT}, {"sequences": ["q"]}, "names of streams in `sequences`, got q"),
        ({"n": INT}, {"lists": ["q"]}, "names of streams in `lists`, got q"),
        ({"n": INT}, {"lists": ["n"]}, "the feature `n`"),
        ({}, {"lists": ["n"]}, "declared streams with `lists`, or `lists` of none, .* got n"),
        ({"n": INT}, {"defaults": {"q": 1}}, "names of streams in `defaults`, got q"),
    ):
        with pytest.raises(fl.SchemaError, match=message):
            fl.TFRecordDeserializer(plain, streams, **options)
    with pytest.raises(fl.SchemaError, match="each stream once, got n"):
        fl.TFRecordDeserializer(plain, {"n": INT}, n=INT)
    with pytest.raises(fl.DataError, match="No such file"):
        fl.TFRecordDeserializer(plain.parent / "none.tfrecord")


def test_what_is_no_tfrecord_file(tmp_path):
    for name, data in (("short", b"abc"), ("text", b"hello, this is a text"), ("packed", gzip.compress(b"hello" * 9))):
        (tmp_path / name).write_bytes(data)
        for streams in ({}, {"n": INT}):
            with pytest.raises(fl.DataError, match=r"expected a TFRecord file.*got one that begins with") as caught:
                fl.TFRecordDeserializer(tmp_path / name, streams)
            assert (caught.value.path, caught.value.byte) == (str(tmp_path / name), 0)
    for content, message in (
        (b"", "that can be read at the beginning"),
        (record(b""), "alike in all of the first 100"),
    ):
        (tmp_path / "a.tfrecord").write_bytes(content)
        with pytest.raises(fl.DataError, match=message):
            fl.TFRecordDeserializer(tmp_path / "a.tfrecord")
    (tmp_path / "a.tfrecord").write_bytes(b"")
    with pytest.raises(fl.DataError, match="at least one record, got none"):
        fl.TFRecordDeserializer(tmp_path / "a.tfrecord", n=INT)


# ---- files ----------------------------------------------------------------------------------------------


def test_recognised_by_content(tmp_path):
    """Also compressed, with any length of the first record, and any name."""
    for size in (0x8B1F, 0x9C78, 0x5E78, 0x7B, 0x7C, 0xD8FF, 0x5A42):  # of gzip, zlib, JSON, CTF, JPEG, bzip2
        (message,) = (found for k in (2, 3, 4) if len(found := field(9, bytes(size - k))) == size)
        path = written(tmp_path / "plain", message, example(n=1))
        assert format_name(path) == "tfrecord"
        assert fl.open_corpus(path, streams={"n": INT}).read(0)["n"].rows[1] == 1
    for kind, pack in PACKINGS.items():
        path = tmp_path / f"{kind}-00000-of-00002"
        path.write_bytes(pack(CONTENT))
        assert format_name(path) == "tfrecord"
    (tmp_path / "a.tfrecord-00001-of-00002").touch()
    assert format_name(tmp_path / "a.tfrecord-00001-of-00002") == "tfrecord"


def test_several_files_are_one_corpus(tmp_path):
    """Empty ones among them, as writers of shards leave them."""
    for k, pack in enumerate([lambda data: b"", *PACKINGS.values()]):
        (tmp_path / f"p.tfrecord-{k:05}-of-00005").write_bytes(pack(tfrecords(MESSAGES[k - 1 :: 4] if k else [])))
    reports = []
    opened(f"{tmp_path}/p*", cache=False, progress=lambda *at: reports.append(at))
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert reports[-1] == (size, size)
    corpus = fl.open_corpus(f"{tmp_path}/p*", streams=STREAMS)
    check(everything(corpus), [one for k in range(4) for one in ROWS[k::4]])
    shard = open_path(tmp_path / "p.tfrecord-00002-of-00005", None, "1M")
    assert (shard.format, shard.guessed, shard.corpus.schema["n"]) == ("tfrecord", True, INT)


def test_converted(path, tmp_path):
    done = fl.convert(str(path), tmp_path / "store", streams=STREAMS)
    assert done.sequences == len(ROWS)
    check(everything(fl.StoreDeserializer(tmp_path / "store")), ROWS)


def test_the_digest_covers_the_content(plain, tmp_path):
    moved = tmp_path / "moved"
    moved.write_bytes(CONTENT)
    digest = opened(plain).digest()
    assert opened(moved).digest() == digest
    assert fl.TFRecordDeserializer(moved, STREAMS, sequences=[], chunk_size=4000).digest() != digest
    moved.write_bytes(tfrecords([example(a=[1], b=[2])] * 9))
    ragged = [[], ["a"], ["b"], ["a", "b"]]  # the same schema and sizes, values of other forms
    assert len({fl.TFRecordDeserializer(moved, a=INT, b=INT, sequences=names).digest() for names in ragged}) == 4
    moved.write_bytes(tfrecords([example(n=1000, x=[1.0, 2.0], t="", ids=NO_INTS, b=b""), *MESSAGES[1:]]))
    assert opened(moved).digest() != digest


def test_the_index_is_kept_and_checked(path):
    indices = path.parent.glob
    for old in indices("*.feedline-index"):
        old.unlink()
    built = []

    def noted(name):
        return lambda done, total: built.append(name)

    for name in ("first", "second"):
        opened(path, progress=noted(name)).read(0)
    (index,) = indices("*.feedline-index")
    # Without sequences an index does not depend on the streams.
    for name, streams in (("third", {"n": INT}), ("fourth", {"x": fl.Stream(2)})):
        fl.TFRecordDeserializer(path, streams, progress=noted(name))
    assert set(built) == {"first", "third"}
    content = index.read_bytes()
    for at in random.Random(1).sample(range(len(content)), 10):
        index.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        check(everything(opened(path)), ROWS)


def test_chunks_of_fetched_bytes(path):
    corpus = opened(path, chunk_size=700)
    data = path.read_bytes()
    for i in range(0, len(corpus.chunks()), 7):
        (extent,) = corpus.extents(i)
        piece = memoryview(data[extent.offset : extent.offset + extent.size])
        assert corpus.read_fetched(i, [piece]).values == corpus.read(i).values
        assert corpus.read_fetched(i, [Unread(5, extent.offset)]).values == corpus.read(i).values


# ---- damage ---------------------------------------------------------------------------------------------


def test_any_flipped_byte_is_noticed(tmp_path):
    """It costs its record, or all records after its length. The others keep their values."""
    rows = ROWS[3:9]
    content = tfrecords(MESSAGES[3:9])
    starts = np.cumsum([0, *(len(record(message)) for message in MESSAGES[3:9])])
    path = tmp_path / "a.tfrecord"
    for at in range(0, len(content), stride(5)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
        number = int(np.searchsorted(starts, at, side="right")) - 1
        if at < 12:
            with pytest.raises(fl.DataError, match="expected a TFRecord file"):
                opened(path, cache=False)
            continue
        chunk = opened(path, cache=False, chunk_size=1 << 20).read(0)
        assert list(chunk.errors) == [number]
        head = at - starts[number] < 12
        assert len(chunk) == (number + 1 if head else len(rows))
        for i in range(len(chunk)):
            if i != number:
                check(chunk.slice(i, i + 1), rows[i : i + 1])
        error = chunk.errors[number]
        assert (
            "the records after it cannot be found" if head else "expected a message with the checksum"
        ) in error.what
        assert (error.byte, error.sequence) == (starts[number] + (0 if head else 12), number)


@pytest.mark.parametrize("at", [1, 11, 12, 15, 40])
def test_a_file_that_was_cut_ends_with_a_bad_record(tmp_path, at):
    start = sum(len(record(message)) for message in MESSAGES[:7])
    (tmp_path / "a.tfrecord").write_bytes(CONTENT[: start + at])
    corpus = opened(tmp_path / "a.tfrecord", cache=False, chunk_size=1 << 20)
    chunk = corpus.read(0)
    assert list(chunk.errors) == [7]
    assert "expected a whole record" in str(chunk.errors[7])
    assert (chunk.errors[7].byte, corpus.chunks()[0].sequences) == (start, 8)
    check(chunk.slice(0, 7), ROWS[:7])


def test_a_record_that_is_too_long_is_left_out(tmp_path):
    length = struct.pack("<Q", 2**40)
    head = record(length)[12:]  # the checksum of a message is replaced by that for a length
    (tmp_path / "a.tfrecord").write_bytes(CONTENT[: len(record(MESSAGES[0]))] + head + bytes(99))
    chunk = opened(tmp_path / "a.tfrecord", cache=False).read(0)
    assert list(chunk.errors) == [1]
    assert f"at most {2**32 - 17} bytes, got one of {2**40}" in str(chunk.errors[1])


def test_a_record_that_is_too_long_costs_no_other(tmp_path):
    """Nor does reading its neighbours read it."""
    messages, size = [example(n=i) for i in range(3)], 2**32 + 5
    with open(tmp_path / "a.tfrecord", "wb") as file:
        file.write(record(messages[0]) + record(struct.pack("<Q", size))[12:])
        file.seek(size + 4, os.SEEK_CUR)  # a hole
        file.write(tfrecords(messages[1:]))
    corpus = fl.TFRecordDeserializer(tmp_path / "a.tfrecord", n=INT, cache=False)
    assert sum(info.bytes for info in corpus.chunks()) == sum(len(record(one)) for one in messages) + 12
    chunks = [corpus.read(i) for i in range(2)]
    assert [chunk["n"].tolist() for chunk in chunks] == [[0, 0], [1, 2]]
    assert [list(chunk.errors) for chunk in chunks] == [[1], []]


def test_bad_records_keep_their_tick(plain):
    def order(**options):
        source = fl.MinibatchSource(opened(plain), seed=2, max_sweeps=1, shuffle=fl.Window(chunks=2), **options)
        return [i for m in source.minibatches(30) for i in m.ids.tolist()]

    uninterrupted = order()
    data = bytearray(CONTENT)
    starts = np.cumsum([0, *(len(record(message)) for message in MESSAGES)])
    for i in (41, 200, 299):
        data[starts[i] + 14] ^= 1
    plain.write_bytes(data)
    good = order(on_error="skip")
    assert sorted(good) == [i for i in range(300) if i not in (41, 200, 299)]
    assert [i for i in uninterrupted if i not in (41, 200, 299)] == good


def test_damage_after_indexing_loses_its_records(path):
    """Which a file of the same size and time, but other bytes, cannot hide."""
    corpus = opened(path, cache=False)
    before = path.read_bytes()
    at = len(before) // 2
    stat = path.stat()
    try:
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(bytes([before[at] ^ 0x55]))
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        chunk = everything(corpus)
        assert 0 < len(chunk.errors) < len(ROWS)
        for i in set(range(len(ROWS))) - chunk.errors.keys():
            check(chunk.slice(i, i + 1), ROWS[i : i + 1])
        path.write_bytes(before[:at])
        with pytest.raises(fl.DataError, match=r"truncated|has changed since"):
            everything(corpus)
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize("names", [["b"], ["n", "t"], ["b", "n"], ["b", "ids", "n", "t", "x"]])
def test_chunks_hold_what_they_count(tmp_path, names):
    """The names of pictures do not keep the pictures in memory, see `Chunk.nbytes`, by which budgets are kept."""
    rows = [{**one, "b": os.urandom(5000)} for one in ROWS[:100]]
    path = written(tmp_path / "a.tfrecord", *(example(**{**one, "ids": one["ids"] or NO_INTS}) for one in rows))
    corpus = fl.TFRecordDeserializer(path, {name: STREAMS[name] for name in names}, chunk_size=50_000)
    chunks = [corpus.read(i) for i in range(len(corpus.chunks()))]
    for chunk in chunks:
        views = [value for value in chunk.values.values() if isinstance(value, ScatteredBytes)]
        between = len(views[0].memory) - sum(int(value.sizes.sum()) for value in views) if views else 0
        assert between <= chunk.nbytes / 2
    assert [one for chunk in chunks for one in chunk[names[0]].tolist()] == [one[names[0]] for one in rows]


def test_chunks_that_are_held_stay_as_they_are(path):
    """While several threads read other chunks into buffers that were in use before."""
    corpus = fl.TFRecordDeserializer(path, {"b": BYTES}, chunk_size=1500)
    count = len(corpus.chunks())
    expected = [corpus.read(i)["b"].tolist() for i in range(count)]
    wrong = []

    def use(seed):
        draw, held = random.Random(seed), {}
        for _ in range(stride(1) * 100):
            i = draw.randrange(count)
            chunk = corpus.read(i)
            held[draw.randrange(6)] = (i, draw.choice([chunk, chunk.slice(0, len(chunk)), chunk["b"]]))
            for k, one in held.values():
                value = one if isinstance(one, fl.Value) else one["b"]
                if value.slice(0, value.num_sequences).tolist() != expected[k]:
                    wrong.append(k)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_memory_is_bounded(plain, tmp_path):
    with pytest.raises(fl.DataError, match=r"at most 2000 bytes of records at once.*\n.*\n.*chunk_size"):
        opened(plain, memory=2000).read(0)
    # Bad records take room, too, and small integers grow to eight bytes.
    path = written(tmp_path / "a", *[example(n=1)] * 2000, *[example(n=1, v=[1] * 1000)] * 2000)
    with pytest.raises(fl.DataError, match="decoded at once"):
        fl.TFRecordDeserializer(path, v=fl.Stream(1000, "int64"), memory=4 << 20, defaults={"v": 0}).read(0)
    # A length that a file of a few bytes cannot have costs nothing.
    head = record(struct.pack("<Q", 3 << 30))[12:]
    for pack in PACKINGS.values():
        path.write_bytes(pack(head + bytes(50)))
        assert list(fl.TFRecordDeserializer(path, n=INT, sequences=["n"], cache=False).read(0).errors) == [0]
