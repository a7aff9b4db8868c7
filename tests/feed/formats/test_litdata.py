"""LitData: folders that it wrote are read as it reads them. Compressed, missing and pickled samples are named.

The laws: test_shard_folders.py.
"""

from __future__ import annotations

import json
import pickle
import re
import shutil
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline.cli.corpus import open_path
from feedline.cli.inspect import describe
from feedline.feed.formats.shards import litdata_json
from feedline.feed.formats.shards.offset_shards import OffsetShards
from feedline.feed.protocol import can, chunk_extents, fetches_ahead
from tests.effort import examples
from tests.feed.formats.shard_writers import (
    bounds_of,
    edit_bytes,
    edit_index,
    leaf,
    tree,
    write_litdata,
    write_litdata_rows,
)

CHUNK = "chunk-0-0.bin"
HERE = Path(__file__).parents[2] / "fixtures" / "litdata"
FORMS = ["raw", "zstd", "runs", "each"]
READ = json.loads((HERE / "read.json").read_text())
COUNT = len(READ["raw"])
BYTES, TEXT, LONG = fl.Stream(dtype="bytes"), fl.Stream(dtype="str"), fl.Stream((), "int64")
SCHEMA = fl.Schema(
    {
        "a": fl.Stream((2, 3)),
        "b": BYTES,
        "flag": fl.Stream((), "bool"),
        "half": fl.Stream((2, 2), "float16"),
        "i": LONG,
        "ids": LONG,
        "meta.boxes": TEXT,
        r"meta.s\.core": fl.Stream((), "float64"),
        "picture": BYTES,
        "rows": fl.Stream(2, "int16"),
        "s": TEXT,
        "tuple.0": LONG,
        "tuple.1": fl.Stream(2, "uint8"),
    }
)
SEQUENCES = ("ids", "rows")


def values(chunk):
    """Every sample by the names of its leaves, as LitData's read.json has it."""
    rows = {}
    for name, value in chunk.values.items():
        if not chunk.schema[name].is_bytes:
            found = [one.tolist() for one in value.sequences()]
            rows[name] = found if name in SEQUENCES else [one[0] for one in found]
        else:
            found = value.tolist()
            rows[name] = found if chunk.schema[name].is_text else [one.hex() for one in found]
    return [dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)]


def flat(sample):
    """A sample of read.json by the names of its leaves."""
    found = {key: value for key, value in sample.items() if key not in ("meta", "tuple")}
    found |= {"meta.boxes": json.dumps(sample["meta"]["boxes"]), r"meta.s\.core": sample["meta"]["s.core"]}
    found |= {f"tuple.{k}": value for k, value in enumerate(sample["tuple"])}
    return {name: found[name] for name in SCHEMA}


@pytest.fixture
def copied(tmp_path):
    """Makes a folder of one's own."""
    return lambda form: Path(shutil.copytree(HERE / form, tmp_path / form))


def whole(corpus):
    return corpus.select(np.arange(sum(info.sequences for info in corpus.chunks())))


# ---- what LitData reads ---------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chunk_size", [1, 700, 1 << 20])
def test_equal_to_what_the_library_reads(form, chunk_size):
    corpus = fl.LitDataDeserializer(HERE / form, chunk_size=chunk_size)
    assert corpus.schema == SCHEMA
    found = whole(corpus)
    assert not found.errors
    assert values(found) == [flat(one) for one in READ["raw"]]
    counted = [max(1, len(one["ids"]), len(one["rows"])) for one in READ["raw"]]
    assert corpus.lengths(np.arange(COUNT)).tolist() == counted
    assert sum(info.samples for info in corpus.chunks()) == sum(counted)
    chunks = {"zstd": 3, "runs": 8, "raw": COUNT, "each": COUNT}[form]  # runs of 3 of 8, 8 and 4 samples
    assert len(corpus.chunks()) == (chunks if chunk_size == 1 else 3 if chunk_size > 700 else len(corpus.chunks()))


def test_vectors_alone_are_sequences():
    found = whole(fl.open_corpus(HERE / "vectors"))
    assert [one.tolist() for one in found["x"].sequences()] == READ["vectors"]


@pytest.mark.parametrize("form", ["rows", "packed_rows"])
def test_rows_are_columns(form):
    """Dicts of numbers, text and bytes, which LitData stores in Arrow's format after an empty table."""
    corpus = fl.open_corpus(HERE / form)
    found = whole(corpus)
    assert values(found) == READ[form]
    assert pickle.loads(pickle.dumps(corpus)).digest() == corpus.digest()
    assert [info.sequences for info in fl.ArrowDeserializer(HERE / form).chunks()] == [
        info.sequences for info in corpus.chunks()
    ]


@pytest.mark.parametrize("per_chunk", [6, 7])
def test_rows_are_views_where_they_are_aligned(tmp_path, per_chunk):
    """After an even number of offsets. Others are decoded."""
    table = pa.table({"n": np.arange(20), "x": np.arange(20) / 8, "s": [f"é{k}" for k in range(20)]})
    write_litdata_rows(tmp_path / "a", table, per_chunk)
    corpus = fl.open_corpus(tmp_path / "a")
    assert can(corpus, fl.RandomAccess) == fetches_ahead(corpus) == (per_chunk == 6)
    assert bool(chunk_extents(corpus, 0)) == (per_chunk == 7)
    found = whole(corpus)
    assert not found.errors
    for name in ("n", "x"):
        assert found[name].rows.tolist() == table[name].to_pylist()
    assert found["s"].tolist() == table["s"].to_pylist()
    source = fl.MinibatchSource(corpus, seed=2, max_sweeps=1)
    assert sorted(n for m in source.minibatches(3) for n in m["n"].rows.tolist()) == list(range(20))


def test_tokens_are_rows_of_any_stride():
    corpus = fl.LitDataDeserializer(HERE / "tokens", tokens=fl.Stream(16, "int32"))
    assert whole(corpus)["tokens"].rows.tolist() == READ["tokens"]
    overlapping = fl.TokensDeserializer(HERE / "tokens", length=16, stride=5, targets=True, stream="t")
    assert whole(overlapping)["t"].rows.shape == (sum((n - 17) // 5 + 1 for n in (55, 56, 48)), 17)
    again = pickle.loads(pickle.dumps(corpus))
    assert (again.digest(), again.name) == (corpus.digest(), corpus.name)
    source = fl.MinibatchSource(corpus, seed=1, max_sweeps=1)
    rows = [row for minibatch in source.minibatches(4) for row in minibatch["tokens"].rows.tolist()]
    assert sorted(rows) == sorted(READ["tokens"])


def test_the_library_itself(tmp_path):
    """Written and read now."""
    pytest.importorskip("litdata", reason="litdata is not installed")
    from litdata.streaming import StreamingDataset
    from litdata.streaming.cache import Cache

    cache = Cache(str(tmp_path / "a"), chunk_bytes=3000, compression="zstd")
    for k in range(200):
        cache[k] = {"i": k, "b": b"x" * k, "x": np.full(5, k, np.float32), "any": np.full((2, 2), k)}
    cache.done()
    cache.merge()
    found = whole(fl.LitDataDeserializer(tmp_path / "a"))
    theirs = list(StreamingDataset(str(tmp_path / "a")))
    assert found["b"].tolist() == [bytes(one["b"]) for one in theirs]
    for name in ("i", "x", "any"):
        np.testing.assert_array_equal(found[name].rows, [one[name] for one in theirs])


def test_every_way_to_name_a_folder(tmp_path, copied):
    raw = copied("raw")
    twice = shutil.copytree(raw, tmp_path / "again")
    assert fl.open_corpus(raw).digest() == fl.open_corpus(raw / "index.json").digest()
    for what in ([raw, twice], [raw, raw], str(tmp_path / "{raw,again}" / "index.json")):
        assert whole(fl.open_corpus(what, streams={"i": LONG}))["i"].rows.tolist() == 2 * [*range(-5, COUNT - 5)]
    loader = fl.DataLoader(fl.open_corpus(copied("rows"), streams={"n": LONG, "text": TEXT}), batch_size=3)
    assert sum(len(batch["n"]) for batch in loader) == COUNT
    with pytest.raises(fl.DataError, match="expected folders of one kind, got items and rows"):
        fl.LitDataDeserializer([raw, HERE / "rows"])
    with pytest.raises(fl.DataError, match="the same fields"):
        fl.LitDataDeserializer([raw, HERE / "vectors"], i=LONG)


@pytest.mark.parametrize(
    ("form", "streams"), [("raw", []), ("runs", []), ("rows", []), ("vectors", []), ("tokens", ["tokens=16:int32"])]
)
def test_inspected(form, streams):
    told = describe(open_path(HERE / form, streams, "1M"), 3)
    assert (told["format"], told["sequences"]) == ("litdata", COUNT if form != "tokens" else len(READ["tokens"]))
    assert len(told["preview"]) == 3


def test_other_classes_name_the_right_one():
    with pytest.raises(fl.DataError, match="expected a folder of tokens, got items of a, b"):
        fl.TokensDeserializer(HERE / "raw", length=4)
    with pytest.raises(fl.DataError, match="expected a folder of rows, got tokens"):
        fl.ArrowDeserializer(HERE / "tokens")
    with pytest.raises(fl.SchemaError, match="one stream that says how long rows are"):
        fl.open_corpus(HERE / "tokens")
    with pytest.raises(fl.SchemaError, match=r"as the tokens of .* are, int32"):
        fl.open_corpus(HERE / "tokens", streams={"tokens": fl.Stream(16, "int64")})


def test_unpacked_chunks_are_preferred(copied):
    """LitData leaves them next to the compressed ones, when it reads the folder."""
    zstd, raw = copied("zstd"), copied("raw")
    for k in (0, 2):
        shutil.copy(raw / f"chunk-0-{k}.bin", zstd)
    corpus = fl.LitDataDeserializer(zstd)
    assert [Path(path).name for path in corpus.paths()] == ["chunk-0-0.bin", "chunk-0-1.zstd.bin", "chunk-0-2.bin"]
    assert values(whole(corpus)) == [flat(one) for one in READ["raw"]]


def test_folders_of_older_versions(tmp_path):
    """Sizes without the table, headers of tensors in little-endian order, a vector without its size."""
    head = struct.pack("<4I", 18, 2, 1, 2)
    rows = [[head + struct.pack("<2q", k, -k), struct.pack("<q", k)] for k in range(9)]
    write_litdata(tmp_path / "items", {"t": "tensor", "y": "int"}, rows, 4, older=True)
    corpus = fl.open_corpus(tmp_path / "items")
    assert corpus.schema == fl.Schema({"t": fl.Stream((1, 2), "int64"), "y": LONG})
    assert whole(corpus)["t"].rows.tolist() == [[[k, -k]] for k in range(9)]
    tokens = [(np.arange(k + 3, dtype=np.int64).tobytes(), k + 3) for k in range(5)]
    config = {"data_format": ["no_header_tensor:18"], "data_spec": json.dumps([1, leaf()])}
    write_litdata(tmp_path / "tokens", {}, tokens, 2, older=True, config=config)
    found = whole(fl.open_corpus(tmp_path / "tokens", streams={"x": fl.Stream(3, "int64")}))["x"].rows.tolist()
    assert found == [[0, 1, 2], [0, 1, 2], [0, 1, 2], [3, 4, 0], [1, 2, 3], [0, 1, 2], [3, 4, 5]]


# ---- declarations ---------------------------------------------------------------------------------------


def test_leaves_by_name():
    corpus = fl.LitDataDeserializer(
        HERE / "raw",
        picture=fl.Stream(dtype="bytes", field="b"),
        boxes=fl.Stream((2, 2), "int16", field="meta.boxes"),
        score=fl.Stream((), "float64", field=r"meta.s\.core"),
        array=fl.Stream(dtype="bytes", field="ids"),
        packed=fl.Stream(dtype="bytes", field="meta.boxes"),
    )
    found = whole(corpus)
    assert found["picture"].tolist() == [bytes.fromhex(one["b"]) for one in READ["raw"]]
    assert found["boxes"].rows.tolist() == [one["meta"]["boxes"] for one in READ["raw"]]
    assert found["score"].rows.tolist() == [one["meta"]["s.core"] for one in READ["raw"]]
    assert found["array"].tolist()[3] == np.array([3, 4, 5], "<i8").tobytes()
    assert found["packed"].tolist()[0][:1] == b"\0"


@pytest.mark.parametrize(
    "stream",
    [
        fl.Stream((), "int32", field="i"),
        fl.Stream((), "int32", field="ids"),
        fl.Stream((1, 3), "int64", field="ids"),
        fl.Stream(4, "uint8", field="b"),
        fl.Stream(3, sparse=True, field="a"),
        fl.Stream(dtype="str", field="b"),
        fl.Stream((), field="none"),
    ],
    ids=repr,
)
def test_streams_that_no_leaf_fills(stream):
    with pytest.raises(fl.SchemaError):
        fl.LitDataDeserializer(HERE / "raw", x=stream)


def test_vectors_of_one_length_or_sequences(tmp_path):
    """Without a declaration the first samples decide, and samples of the other kind are bad."""
    rows = [[struct.pack("<3f", k, 1, 2)] for k in range(6)] + [[struct.pack("<2f", 9, 9)]]
    write_litdata(tmp_path / "a", {"x": "no_header_tensor:1"}, rows[:6], 4)
    assert fl.open_corpus(tmp_path / "a").schema["x"] == fl.Stream(3)
    write_litdata(tmp_path / "b", {"x": "no_header_tensor:1"}, rows, 4)
    dense = fl.LitDataDeserializer(tmp_path / "b", x=fl.Stream(3))
    assert dense.lengths(np.arange(7)) is None
    found = whole(dense)
    assert list(found.errors) == [6]
    assert "got shape (2,) and float32; declare fl.Stream((), 'float32') if they are sequences" in str(found.errors[6])
    sequences = fl.LitDataDeserializer(tmp_path / "b", x=fl.Stream(()))
    assert sequences.lengths(np.arange(7)).tolist() == [3] * 6 + [2]
    assert whole(sequences)["x"].sequences()[6].tolist() == [9, 9]


def test_lengths_are_kept(tmp_path, monkeypatch):
    """They are counted once, and again if they are damaged, or a chunk changes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("feedline.feed.formats.shards.shard_lengths.MIN_CACHED_BYTES", 0)
    folder = Path(shutil.copytree(HERE / "runs", tmp_path / "runs"))
    counted = []
    original = OffsetShards._count_lengths
    monkeypatch.setattr(OffsetShards, "_count_lengths", lambda self: counted.append(1) or original(self))
    expected = fl.LitDataDeserializer(folder, ids=LONG).lengths(np.arange(COUNT)).tolist()
    assert expected == [len(one["ids"]) for one in READ["raw"]]

    def lengths(**streams):
        counted.clear()
        return fl.LitDataDeserializer(folder, streams).lengths(np.arange(COUNT)).tolist()

    assert lengths(ids=LONG) == expected
    assert not counted
    assert lengths(ids=fl.Stream(2, "int16", field="rows")) != expected  # another leaf
    assert counted
    (kept, *_) = sorted((tmp_path / "feedline").iterdir(), key=lambda path: path.stat().st_mtime)
    for damage in (b"", b"x" * 24, kept.read_bytes()[:-1] + b"\xff", kept.read_bytes() + b"x"):
        kept.write_bytes(damage)
        assert lengths(ids=LONG) == expected
        assert counted
    (folder / "chunk-0-1.bin").touch()
    assert lengths(ids=LONG) == expected
    assert counted


def test_a_cache_that_others_can_write_to(tmp_path, monkeypatch):
    """The error has advice for users of this format, who have no cache= to pass."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("feedline.feed.formats.shards.shard_lengths.MIN_CACHED_BYTES", 0)
    (tmp_path / "feedline").mkdir()
    (tmp_path / "feedline").chmod(0o777)
    with pytest.raises(fl.DataError, match=r"only you can write(.|\n)*set XDG_CACHE_HOME to another folder, or remove"):
        fl.LitDataDeserializer(HERE / "runs", ids=LONG)


def test_tokens_want_a_declaration():
    """Of the index's dtype."""
    for opener in (fl.LitDataDeserializer, fl.open_corpus):
        with pytest.raises(fl.SchemaError, match=r"write tokens=fl.Stream\(1024, 'int32'\)"):
            opener(HERE / "tokens")


def test_every_dtype(tmp_path):
    """By LitData's numbers for them."""
    for kind, dtypes in (
        ("tensor", "1 f4 3 f8 5 c8 7 c16 9 f2 11 u1 12 i1 14 i2 16 i4 18 i8 19 ? 20 u2"),
        ("numpy", "0 i1 1 i2 2 i4 3 i8 4 u1 5 u2 6 u4 7 u8 8 f2 9 f4 10 f8 11 c8 12 c16 13 ?"),
    ):
        order = ">" if kind == "tensor" else "<"
        for number, name in zip(map(int, dtypes.split()[::2]), dtypes.split()[1::2], strict=True):
            data = np.arange(2).astype(name)
            rows = [[data.tobytes(), struct.pack(f"{order}4I", number, 2, 2, 1) + data.tobytes()]]
            place = tmp_path / f"{kind}-{number}"
            write_litdata(place, {"v": f"no_header_{kind}:{number}", "a": kind}, rows, 1)
            chunk = fl.open_corpus(place).read(0)
            assert not chunk.errors
            assert (chunk["v"].rows == data).all()
            assert chunk["v"].dtype == chunk["a"].dtype == data.dtype
            assert (chunk["a"].rows == data[:, None]).all()


@pytest.mark.parametrize(
    ("encoding", "match"),
    [
        ("pickle", "never unpickles"),
        ("graph:pickle", "never unpickles"),
        ("no_header_tensor:10", "no such numbers"),
        ("no_header_numpy:14", "no such numbers"),
        ("no_header_numpy:x", "no such numbers"),
    ],
)
def test_leaves_that_are_refused(tmp_path, encoding, match):
    write_litdata(tmp_path / "a", {"i": "int", "x": encoding}, [[struct.pack("<q", 3), b"abcd"]], 1)
    for streams in ({}, {"x": BYTES}):
        with pytest.raises(fl.SchemaError, match=rf"`x` of encoding `{encoding}`.*{match}.*\(i\)"):
            fl.LitDataDeserializer(tmp_path / "a", streams)
    assert fl.LitDataDeserializer(tmp_path / "a", i=LONG).read(0)["i"].rows.tolist() == [3]


@pytest.mark.parametrize("order", "<>")
def test_tensors_of_bfloat16_are_named(tmp_path, order):
    """Their dtype is in the header of each. They can be read as bytes."""
    samples = [[struct.pack(f"{order}3I", 10, 1, n) + bytes(2 * n)] for n in (3, 2)]
    write_litdata(tmp_path / "a", {"x": "tensor"}, samples, 2)
    with pytest.raises(fl.DataError, match=r"numbers of bfloat16, which NumPy lacks(.|\n)*x=.*dtype='bytes'"):
        fl.open_corpus(tmp_path / "a")
    for stream in (fl.Stream(3, "uint16"), fl.Stream((), "float32")):
        errors = fl.LitDataDeserializer(tmp_path / "a", x=stream).read(0).errors
        assert all("bfloat16" in str(error) for error in errors.values())
        assert len(errors) == 2
    assert fl.LitDataDeserializer(tmp_path / "a", x=BYTES).read(0)["x"].tolist() == [one for (one,) in samples]


def test_pickles_of_the_library_are_refused():
    with pytest.raises(fl.SchemaError, match="`pickled` of encoding `pickle`"):
        fl.open_corpus(HERE / "pickled")


# ---- trees ----------------------------------------------------------------------------------------------


def node(kind, context, *children):
    return {"type": kind, "context": context, "children_spec": list(children)}


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        (leaf(), ["x"]),
        (node("builtins.list", "null", leaf(), leaf()), ["0", "1"]),
        (node("collections.namedtuple", "Point", leaf(), leaf()), ["0", "1"]),
        (node("collections.OrderedDict", '["b", "a"]', leaf(), tree("cd")), ["b", "a.c", "a.d"]),
        (node("collections.defaultdict", {"dict_context": ["k"]}, tree("x")), ["k.x"]),
        (node("collections.deque", "3", tree("a"), tree("a")), ["0.a", "1.a"]),
        (node("builtins.dict", '[1, "a.b"]', leaf(), leaf()), ["1", r"a\.b"]),
    ],
)
def test_names_of_leaves(tmp_path, spec, names):
    formats = dict.fromkeys(names, "int")
    write_litdata(tmp_path / "a", formats, [[struct.pack("<q", k) for k in range(len(names))]], 1, spec=spec)
    chunk = fl.LitDataDeserializer(tmp_path / "a").read(0)
    assert {name: value.rows.tolist() for name, value in chunk.values.items()} == {
        name: [k] for k, name in enumerate(names)
    }


@pytest.mark.parametrize(
    "spec",
    [
        tree("ab"),
        node("builtins.dict", "not JSON", leaf()),
        node("builtins.dict", '["a"]'),
        node("builtins.dict", '["a"]', {"type": None}),
        [],
        None,
        1,
    ],
)
def test_damaged_trees(tmp_path, spec):
    config = {"data_spec": json.dumps([1, spec])}
    write_litdata(tmp_path / "a", {"a": "int"}, [[bytes(8)]], 1, config=config)
    with pytest.raises(fl.DataError, match="a tree with 1 leaves as `data_spec`"):
        fl.LitDataDeserializer(tmp_path / "a")


def test_trees_that_are_too_deep(tmp_path):
    spec = leaf()
    for _ in range(100):
        spec = node("builtins.list", "null", spec)
    write_litdata(tmp_path / "a", {"a": "int"}, [[bytes(8)]], 1, spec=spec)
    with pytest.raises(fl.DataError, match="deeper than 64"):
        fl.LitDataDeserializer(tmp_path / "a")


# ---- lists and dicts in a leaf --------------------------------------------------------------------------


def packed(value):
    """As LitData encodes it: every kind that it has for a value."""

    def text(value):
        return struct.pack("<I", len(value.encode())) + value.encode()

    def many(kind, what, items):
        return struct.pack("<BI", kind, len(items)) + what(items)

    if value is None:
        return b"\x0b"
    for kind, number, one in ((bool, 10, "?"), (int, 8, "q"), (float, 9, "d")):
        if type(value) is kind:
            return bytes([number]) + struct.pack(f"<{one}", value)
        if type(value) is list and value and all(type(item) is kind for item in value):
            flat = struct.pack(f"<{len(value)}{one}", *value)
            return many({10: 4, 8: 2, 9: 3}[number], lambda _, flat=flat: flat, value)
    if type(value) is str:
        return b"\x07" + text(value)
    if type(value) is dict:
        return many(5, lambda items: b"".join(text(key) + packed(one) for key, one in items.items()), value)
    if all(type(item) is str for item in value):
        return many(1, lambda items: b"".join(map(text, items)), value)
    keys = list(value[0]) if type(value[0]) is dict else []
    kinds = {type(None): 16, str: 17, int: 18, float: 19, bool: 20}
    plain = all(type(row) is dict and set(row) == set(keys) for row in value)
    if keys and plain and all(type(one) in kinds for row in value for one in row.values()):
        cells = [bytes([kinds[type(row[key])]]) + packed(row[key])[1:] for row in value for key in keys]
        return struct.pack("<BII", 6, len(value), len(keys)) + b"".join([*map(text, keys), *cells])
    raw = json.dumps(value).encode()
    return b"\0" + struct.pack("<I", len(raw)) + raw


SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text()
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)


@settings(max_examples=examples(30))
@given(TREES)
@example([{"a": 1, "b": None}, {"a": "é", "b": True}])
def test_lists_and_dicts_are_their_json_text(value):
    assert json.loads(litdata_json.json_text(packed(value))) == value
    if isinstance(value, (list, dict)):
        assert json.loads(litdata_json.json_text(json.dumps(value).encode())) == value  # as older versions wrote


@settings(max_examples=examples(30))
@given(TREES, st.integers(0, 400), st.integers(0, 255), st.booleans())
@example([{"a": 1}], 5, 0, False)
def test_damaged_lists_and_dicts_are_a_value_or_refused(value, at, byte, cut):
    data = packed(value)
    at %= len(data)
    damaged = data[:at] if cut else data[:at] + bytes([byte]) + data[at + 1 :]
    try:
        litdata_json.json_text(damaged)
    except (ValueError, RecursionError):
        pass


def test_counts_of_nothing_take_no_memory():
    for data in (struct.pack("<BII", 6, 2**32 - 1, 0), struct.pack("<BI", 1, 2**32 - 1), b"\5\xff\xff\xff\xff"):
        with pytest.raises(ValueError, match="expected room for"):
            litdata_json.json_text(data)
    with pytest.raises(ValueError, match="nested at most"):
        litdata_json.json_text(b"\5\1\0\0\0\0\0\0\0" * 300 + b"\x0b")


def test_texts_that_utf8_cannot_hold_stay_escaped(tmp_path):
    """JSON may escape half of a surrogate pair. The other samples are read."""
    texts = [b'"\\ud800"', '"é"'.encode(), b'{"\\udc00": 1}']
    rows = [[b"\0" + struct.pack("<I", len(text)) + text] for text in texts]
    write_litdata(tmp_path / "a", {"x": "json"}, rows, 3)
    chunk = fl.open_corpus(tmp_path / "a").read(0)
    assert chunk["x"].tolist() == [text.decode() for text in texts]
    assert not chunk.errors


def test_a_damaged_list_is_one_bad_sample(tmp_path):
    rows = [[packed([k, 2 * k])] for k in range(4)]
    rows[2] = [b"\x63"]
    write_litdata(tmp_path / "a", {"x": "json"}, rows, 4)
    texts = fl.LitDataDeserializer(tmp_path / "a").read(0)
    assert list(texts.errors) == [2]
    assert texts["x"].tolist()[3] == "[3, 6]"
    numbers = fl.LitDataDeserializer(tmp_path / "a", x=fl.Stream(2, "int8")).read(0)
    assert list(numbers.errors) == [2]
    assert numbers["x"].rows.tolist() == [[0, 0], [1, 2], [0, 0], [3, 6]]


# ---- damage ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "change", "match"),
    [
        ("raw", lambda index: index["config"].update(encryption={"algorithm": "fernet"}), "not encrypted"),
        ("raw", lambda index: index["config"].update(item_loader="ParquetLoader"), "index of Parquet files"),
        ("raw", lambda index: index["config"].update(item_loader="TemporalArrayLoader"), "TemporalArrayLoader"),
        ("raw", lambda index: index["config"].update(compression="lz4"), "compressed by zstd"),
        ("raw", lambda index: index["config"].update(data_format=["int"]), "1 leaves as `data_spec`"),
        ("raw", lambda index: index["config"].update(data_format=[]), "the formats of leaves"),
        ("raw", lambda index: index["config"].update(data_format=[1]), "a list `data_format` of str"),
        ("raw", lambda index: index.update(config=1), "an object"),
        ("raw", lambda index: index.update(chunks=[]), "at least one sample"),
        ("raw", lambda index: index["chunks"][1].update(chunk_size=-1), "a number `chunk_size`"),
        ("raw", lambda index: index["chunks"][1].update(chunk_size=1 << 40), "a number `chunk_size`"),
        ("raw", lambda index: index["chunks"][1].update(chunk_bytes=7), "chunk of 7 bytes"),
        ("raw", lambda index: index["chunks"][1].update(filename="../raw/chunk-0-0.bin"), "within the folder"),
        ("raw", lambda index: index["chunks"][1].update(filename="none.bin"), "No such file"),
        ("runs", lambda index: index["config"].update(compression_level="all"), "as `compression_level`"),
        ("runs", lambda index: index["config"].update(compression_batch_size="3"), "a number `compression_batch_size`"),
        ("runs", lambda index: index["config"].update(compression_batch_size=1 << 40), "`compression_batch_size`"),
        ("tokens", lambda index: index["chunks"][1].update(dim=None), "a number `dim`"),
        ("tokens", lambda index: index["chunks"][1].update(dim=55), "for 55 tokens of int32"),
        ("tokens", lambda index: index["config"].update(data_format=["no_header_tensor:1"]), "that are integers"),
        ("tokens", lambda index: index["config"].update(compression="zstd"), "tokens that can be mapped"),
        ("rows", lambda index: index["chunks"][2].update(chunk_size=5), "expected 19 rows"),
    ],
)
def test_an_index_that_is_not_as_expected(copied, form, change, match):
    folder = copied(form)
    edit_index(folder, change)
    streams = {"tokens": fl.Stream(16, "int32")} if form == "tokens" else {}
    with pytest.raises(fl.DataError, match=match):
        fl.LitDataDeserializer(folder, streams)


def test_sizes_that_do_not_add_up_and_other_headers_are_one_bad_sample(copied):
    raw = copied("raw")
    bounds, leaves = bounds_of(raw / CHUNK), len(SCHEMA)
    edit_bytes(raw / CHUNK, int(bounds[1]), b"\xff\xff\xff\x7f")
    edit_bytes(raw / CHUNK, int(bounds[3]) + 4 * leaves, b"\x08")  # the dtype of `a`
    corpus = fl.LitDataDeserializer(raw, SCHEMA.streams)
    chunk = corpus.read(0)
    assert list(chunk.errors) == [1, 3]
    assert (chunk.errors[1].byte, chunk.errors[1].sequence) == (bounds[1], 1)
    assert "expected fields of" in chunk.errors[1].what
    assert chunk.errors[3].stream == "a"
    assert "expected an array of shape (2, 3) and float32, got" in chunk.errors[3].what
    expected = [flat(one) for one in READ["raw"]]
    assert values(chunk.slice(2, 3)) == expected[2:3]
    skipping = fl.MinibatchSource(corpus, max_sweeps=1, on_error=fl.Quarantine(raw / "q.jsonl"), shuffle=False)
    numbers = [n for m in skipping.minibatches(5) for n in m["i"].rows.tolist()]
    assert numbers == [one["i"] for k, one in enumerate(READ["raw"]) if k not in (1, 3)]


def test_a_damaged_sample_that_is_compressed_for_itself_is_one(copied):
    folder = copied("each")
    bounds = bounds_of(folder / CHUNK)
    edit_bytes(folder / CHUNK, int(bounds[2]), b"\0\0\0\0")
    chunk = fl.LitDataDeserializer(folder, SCHEMA.streams).read(0)
    assert list(chunk.errors) == [2]
    assert "expected a sample compressed by zstd" in chunk.errors[2].what
    assert values(chunk.slice(3, 4)) == [flat(READ["raw"][3])]


@pytest.mark.parametrize(
    ("byte", "data", "match"),
    [
        (0, b"XDFZ", "8 samples in 3 runs"),
        (8, b"\2", "8 samples in 3 runs"),
        (24 + 4 * 8, b"\xff\xff", "offsets of samples"),
        (24 + 4 * 9, b"\1", "runs of samples"),
        (24 + 4 * 9 + 8, b"\1", "runs of bytes"),
        (24 + 4 * 9 + 20, b"\1", "offsets of samples"),
        (24 + 4 * 9 + 24 * 3 + 1, b"\0\0\0", "compressed by zstd"),
    ],
)
def test_damaged_runs(copied, byte, data, match):
    folder = copied("runs")
    edit_bytes(folder / CHUNK, byte, data)
    with pytest.raises(fl.DataError, match=match):
        fl.LitDataDeserializer(folder, i=LONG).read(0)


@pytest.mark.parametrize("form", ["zstd", "runs", "each"])
def test_what_is_unpacked_takes_no_more_than_memory(form):
    with pytest.raises(fl.DataError, match=r"at most 500 bytes when unpacked \(memory\), got (\d+) or more") as caught:
        fl.LitDataDeserializer(HERE / form, i=LONG, memory=500).read(0)
    assert int(re.search(r"got (\d+)", str(caught.value))[1]) > 500
    assert f"raise memory=, or {'unpack the shards' if form == 'zstd' else 'lower chunk_size='}" in str(caught.value)


def test_a_compressed_chunk_of_another_size(copied):
    folder = copied("zstd")
    edit_index(folder, lambda index: index["chunks"][0].update(chunk_bytes=1900))
    with pytest.raises(fl.DataError, match="expected a shard compressed by zstd: expected 1900 or 1940 bytes"):
        fl.LitDataDeserializer(folder, i=LONG).read(0)


@pytest.mark.parametrize("size", [0, 3, 5, 27, 30, 61, 70])
@pytest.mark.parametrize("form", ["zstd", "runs", "each", "raw"])
def test_chunks_that_end_before_their_samples(copied, form, size):
    """Within their tables, too, and anywhere in a number."""
    folder = copied(form)
    path = next(folder.glob("chunk-0-0*"))
    path.write_bytes(path.read_bytes()[:size])
    edit_index(folder, lambda index: index["chunks"][0].update(chunk_bytes=size))
    corpus = fl.LitDataDeserializer(folder, i=LONG)
    if form in ("each", "raw") and size > 40:  # all offsets, and less than a sample
        assert list(corpus.read(0).errors) == list(range(8))
    else:
        with pytest.raises(fl.DataError, match="expected"):
            corpus.read(0)


def test_an_unpacked_chunk_shorter_than_a_number(copied):
    folder = copied("zstd")
    (folder / "chunk-0-0.zstd.bin").write_bytes(pa.compress(b"abc", "zstd", asbytes=True))
    edit_index(folder, lambda index: index["chunks"][0].update(chunk_bytes=3))
    with pytest.raises(fl.DataError, match=r"offsets of 8 samples, as .* says, got nothing"):
        fl.LitDataDeserializer(folder, i=LONG).read(0)


def test_offsets_that_overlap_are_refused(copied):
    raw = copied("raw")
    size = (raw / "chunk-0-0.bin").stat().st_size
    edit_bytes(raw / CHUNK, 4, np.array([0, size] * 5, "<u4").tobytes()[: 4 * 9])
    with pytest.raises(fl.DataError, match="overlap"):
        fl.LitDataDeserializer(raw, b=BYTES).read(0)


def test_cut_chunks(copied):
    for form, streams in (("raw", {"b": BYTES}), ("rows", {}), ("tokens", {"t": fl.Stream(16, "int32")})):
        folder = copied(form)
        with open(folder / "chunk-0-1.bin", "r+b") as file:
            file.truncate(100)
        with pytest.raises(fl.DataError, match="expected a chunk of"):
            fl.LitDataDeserializer(folder, streams)


def test_rows_that_are_not_there(copied):
    folder = copied("rows")
    edit_bytes(folder / "chunk-0-1.bin", -1, b"x")
    with pytest.raises(fl.DataError, match="rows in Arrow's format at the end of the chunk"):
        fl.open_corpus(folder)


def test_another_number_of_rows_than_in_the_index(copied):
    folder = copied("rows")
    edit_index(folder, lambda index: index["chunks"][2].update(chunk_size=5))
    with pytest.raises(fl.DataError, match=r"expected 19 rows, as the index says, got 20") as raised:
        fl.open_corpus(folder)
    assert raised.value.path == str(folder)


def test_a_chunk_is_not_a_file_of_tokens(copied):
    """Its table would be tokens."""
    folder = copied("tokens")
    for path in (folder / CHUNK, str(folder / "*.bin")):
        with pytest.raises(fl.DataError, match="got a chunk of LitData's"):
            fl.TokensDeserializer(path, length=4)
        with pytest.raises(fl.DataError, match="got a chunk of LitData's"):
            fl.open_corpus(path, streams={"tokens": fl.Stream(4, "int32")})
    (folder / "other.bin").write_bytes(bytes(40))
    assert fl.TokensDeserializer(folder / "other.bin", length=4).tokens == 20


def test_tokens_with_another_count(copied):
    folder = copied("tokens")
    edit_bytes(folder / CHUNK, 0, b"\1")
    with pytest.raises(fl.DataError, match="expected a chunk of 7 samples"):
        fl.TokensDeserializer(folder, length=4)


def test_moved_folders_resume_and_changed_ones_do_not(copied):
    raw = copied("raw")
    digest = fl.LitDataDeserializer(HERE / "raw").digest()
    assert fl.LitDataDeserializer(raw).digest() == digest
    edit_bytes(raw / "chunk-0-1.bin", -1, b"\xff")
    assert fl.LitDataDeserializer(raw, SCHEMA.streams).digest() != digest


def test_validated_and_converted(tmp_path, copied):
    assert fl.validate(HERE / "runs").sequences == COUNT
    folder = copied("each")
    edit_bytes(folder / CHUNK, int(bounds_of(folder / CHUNK)[2]), b"\0\0\0\0")
    assert fl.validate(fl.LitDataDeserializer(folder, SCHEMA.streams)).damaged == 1
    fl.convert(HERE / "zstd", tmp_path / "store")
    assert values(whole(fl.StoreDeserializer(tmp_path / "store"))) == [flat(one) for one in READ["raw"]]
