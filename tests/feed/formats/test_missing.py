"""Samples that the data lacks: filled, with or without a mask, as the columns' own Python values say."""

from __future__ import annotations

import itertools
import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow.parquet as pq  # noqa: E402

import feedline as fl  # noqa: E402
from tests.effort import examples  # noqa: E402
from tests.feed.formats.shard_writers import write_litdata, write_mds  # noqa: E402
from tests.oracles.tfrecord import example, tfrecords  # noqa: E402

FLOATS = st.floats(-9, 9, width=32)
PAIR = st.lists(FLOATS, min_size=2, max_size=2)


def optional(values):
    return st.one_of(st.none(), values)


#: By name: Arrow type, values of a row, declaration without `missing`, and the value that fills.
KINDS = {
    "float": (pa.float32(), optional(FLOATS), fl.Stream(), -1.5),
    "int": (pa.int64(), optional(st.integers(-(2**60), 2**60)), fl.Stream((), "int64"), 2**60 + 1),
    "bool": (pa.bool_(), optional(st.booleans()), fl.Stream((), "bool"), True),
    "category": (pa.dictionary(pa.int8(), pa.int32()), optional(st.integers(0, 3)), fl.Stream((), "int32"), 7),
    "text": (pa.string(), optional(st.text(max_size=4)), fl.Stream((), "str"), "häh"),
    "bytes": (pa.large_binary(), optional(st.binary(max_size=4)), fl.Stream((), "bytes"), b"\0?"),
    "pair": (
        pa.list_(pa.float32(), 2),
        optional(st.lists(optional(FLOATS), min_size=2, max_size=2)),
        fl.Stream(2),
        4.0,
    ),
    "lists": (
        pa.list_(pa.list_(pa.float32())),
        optional(st.lists(st.lists(optional(FLOATS), min_size=2, max_size=2), min_size=3, max_size=3)),
        fl.Stream((3, 2)),
        4.0,
    ),
    "ragged": (pa.list_(pa.float32()), optional(st.lists(optional(FLOATS), max_size=3)), fl.Stream(), 0.25),
    "ragged text": (pa.list_(pa.string()), optional(st.lists(optional(st.text(max_size=3)), max_size=3)), None, "?"),
    "ragged pairs": (pa.list_(pa.list_(pa.float32(), 2)), st.lists(optional(PAIR), max_size=3), fl.Stream(2), 8.0),
    "sparse": (
        pa.list_(pa.struct([("index", pa.int32()), ("value", pa.float32())])),
        optional(st.dictionaries(st.integers(0, 8), FLOATS, max_size=3).map(lambda d: sorted(d.items()))),
        fl.Stream(9, "float32", sparse=True),
        0,
    ),
}
NESTED = {"pair": (2,), "lists": (3, 2), "ragged pairs": (2,)}


def filled(item, shape, value):
    """A sample with its missing values filled, and whether all of it was there."""
    if not shape:
        return (value, False) if item is None else (item, True)
    parts = [filled(part, shape[1:], value) for part in ([None] * shape[0] if item is None else item)]
    return [part for part, _ in parts], all(present for _, present in parts)


def expected(kind, rows, value):
    """The samples of each row, and whether each was there."""
    ragged, shape = kind.startswith("ragged"), NESTED.get(kind, ())
    samples = [
        [filled(item, shape, value) for item in row or []] if ragged else [filled(row, shape, value)] for row in rows
    ]
    return [[s for s, _ in row] for row in samples], [[present for _, present in row] for row in samples]


def sparse_rows(value):
    matrices = value.sequences()
    return [[list(zip(m.indices.tolist(), m.values.tolist(), strict=True))] for m in matrices]


def written(folder, form, kind, rows):
    table = pa.table({"row": pa.array(range(len(rows))), "x": pa.array(rows, KINDS[kind][0])})
    path = folder / f"data.{form.split()[0]}"
    if form == "parquet":
        pq.write_table(table, path, row_group_size=3)
        return path
    with pa.OSFile(str(path), "wb") as sink:
        options = pa.ipc.IpcWriteOptions(compression="lz4" if "compressed" in form else None)
        with pa.ipc.new_file(sink, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=3)
    return path


FORMS = ["parquet", "arrow", "arrow compressed"]


def assert_filled(corpus, kind, rows, value, masked):
    """Assert that a source delivers the filled samples of the rows, and their masks."""
    assert list(corpus.schema) == ["row", "x", *["x_present"] * masked]
    samples, present = expected(kind, rows, value)
    with fl.MinibatchSource(corpus, shuffle=fl.Window(chunks=2), seed=3, max_sweeps=1) as source:
        for minibatch in source.minibatches(4):
            chosen = minibatch["row"].rows.tolist()
            if kind == "sparse":
                assert sparse_rows(minibatch["x"]) == [[rows[i] or []] for i in chosen]
            else:
                got = minibatch["x"].sequences()
                got = [[s] if isinstance(s, (str, bytes)) else s if isinstance(s, list) else s.tolist() for s in got]
                assert got == [samples[i] for i in chosen]
            if masked:
                assert [s.tolist() for s in minibatch["x_present"].sequences()] == [present[i] for i in chosen]


def declaration(kind, masked, fills):
    """The stream of a kind, and the value of its missing samples."""
    _, _, declared, value = KINDS[kind]
    declared = declared or fl.Stream((), "str")
    nothing = "" if declared.is_text else b"" if declared.is_bytes else 0
    options = {"missing": value if fills else None, "mask": masked or not fills}
    return fl.Stream(declared.shape, declared.dtype, declared.sparse, **options), value if fills else nothing


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(8))
@given(data=st.data(), masked=st.booleans(), fills=st.booleans())
def test_nulls_are_filled(tmp_path_factory, form, kind, data, masked, fills):
    rows = data.draw(st.lists(KINDS[kind][1], min_size=1, max_size=8))
    path = written(tmp_path_factory.mktemp("data"), form, kind, rows)
    stream, value = declaration(kind, masked, fills)
    corpus = fl.open_corpus(path, streams={"row": fl.Stream((), "int64"), "x": stream})
    assert_filled(corpus, kind, rows, value, stream.mask)


@pytest.mark.parametrize("form", FORMS)
def test_streams_of_one_column_are_filled_apart(tmp_path, form):
    rows = [None if i % 3 == 0 else float(i) for i in range(1000)]
    path = written(tmp_path, form, "float", rows)
    streams = {
        "zero": fl.Stream((), "float32", field="x", missing=0.0, mask=True),
        "less": fl.Stream((), "float32", field="x", missing=-1.0),
    }
    corpus = fl.open_corpus(path, streams=streams)
    for _ in range(2):
        chunks = [corpus.read(i) for i in range(len(corpus.chunks()))]
        got = {name: np.concatenate([chunk[name].rows for chunk in chunks]).tolist() for name in corpus.schema}
        assert got["zero"] == [0.0 if x is None else x for x in rows]
        assert got["less"] == [-1.0 if x is None else x for x in rows]
        assert got["zero_present"] == [x is not None for x in rows]


@pytest.mark.parametrize("kind", ["float", "int", "bool", "text", "pair", "ragged", "ragged text", "nested"])
@settings(max_examples=examples(20))
@given(data=st.data(), masked=st.booleans(), fills=st.booleans())
def test_nulls_and_absent_keys_of_json_are_filled(tmp_path_factory, kind, data, masked, fills):
    nested, kind = kind == "nested", "float" if kind == "nested" else kind
    rows = data.draw(st.lists(KINDS[kind][1], min_size=1, max_size=8))
    path = tmp_path_factory.mktemp("data") / "data.jsonl"
    lines = []
    for i, row in enumerate(rows):
        absent = row is None and data.draw(st.booleans())
        inner = {} if absent else {"x": row}
        if nested:
            inner = {"a": data.draw(st.sampled_from([inner, None])) if absent else inner}
        lines.append({"row": i, **inner})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    stream, value = declaration(kind, masked, fills)
    stream = fl.Stream(
        stream.shape, stream.dtype, field="a.x" if nested else None, missing=stream.missing, mask=stream.mask
    )
    sequences = ["x"] if kind.startswith("ragged") else []
    streams = {"row": fl.Stream((), "int64"), "x": stream}
    corpus = fl.JSONLinesDeserializer(path, streams, sequences=sequences, chunk_size=40, cache=False)
    assert_filled(corpus, kind, rows, value, stream.mask)


@pytest.mark.parametrize("kind", ["float", "int", "bool", "text", "pair"])
@settings(max_examples=examples(20))
@given(data=st.data(), masked=st.booleans(), fills=st.booleans())
def test_empty_cells_are_filled(tmp_path_factory, kind, data, masked, fills):
    """A text in quotes is there, even if it is empty."""

    def cell(value):
        if value is None:
            return data.draw(st.sampled_from(["", " "])) if kind != "text" else ""
        return '"' + value.replace('"', '""') + '"' if kind == "text" else json.dumps(value)

    rows = data.draw(st.lists(KINDS[kind][1], min_size=1, max_size=8))
    path = tmp_path_factory.mktemp("data") / "data.csv"
    wide = kind == "pair"
    lines = ["row,x,y"] + [
        f"{i},{cell(row if not wide else row and row[0])},{cell(row[1] if wide and row else None)}"
        for i, row in enumerate(rows)
    ]
    path.write_text("".join(line + "\n" for line in lines), newline="")
    stream, value = declaration(kind, masked, fills)
    columns = {"x": ["x", "y"]} if wide else None
    streams = {"row": fl.Stream((), "int64"), "x": stream}
    corpus = fl.CSVDeserializer(path, streams, columns=columns, header=True, chunk_size=20, cache=False)
    assert_filled(corpus, kind, [row or [None] * 2 for row in rows] if wide else rows, value, stream.mask)


@pytest.mark.parametrize("masked", [False, True])
def test_absent_features_of_tfrecord_are_filled(tmp_path, masked):
    rows = [{"x": [1.5], "t": [b"a"], "r": [1, 2]}, {}, {"t": [b""], "r": []}]
    path = tmp_path / "data.tfrecord"
    path.write_bytes(tfrecords([example(row=[i], **row) for i, row in enumerate(rows)]))
    streams = {
        "row": fl.Stream((), "int64"),
        "x": fl.Stream((), "float32", missing=-1.0, mask=masked),
        "t": fl.Stream((), "str", missing="?", mask=masked),
        "r": fl.Stream((), "int64", missing=0, mask=masked),
    }
    corpus = fl.TFRecordDeserializer(path, streams, sequences=["r"], cache=False)
    with fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1) as source:
        minibatch = source.next_minibatch(9)
    assert minibatch["x"].tolist() == [1.5, -1.0, -1.0]
    assert minibatch["t"].tolist() == ["a", "?", ""]
    assert minibatch["r"].tolist() == [[1, 2], [], []]
    if masked:
        assert minibatch["x_present"].tolist() == [True, False, False]
        assert minibatch["t_present"].tolist() == [True, False, True]
        assert minibatch["r_present"].tolist() == [[True, True], [], []]


@settings(max_examples=examples(20))
@given(data=st.data(), masked=st.booleans(), fills=st.booleans(), sparse=st.booleans(), ids=st.booleans())
def test_short_and_absent_samples_of_cntk_text_are_filled(tmp_path_factory, data, masked, fills, sparse, ids):
    """A sequence without samples of the stream gets one, a sample with too few values gets the rest."""
    sizes = st.lists(st.integers(1, 9), max_size=2)
    pairs = st.lists(st.integers(0, 8), max_size=3, unique=True).map(sorted)
    sample = pairs if sparse else sizes
    rows = data.draw(st.lists(st.lists(sample, max_size=2 if ids else 1), min_size=1, max_size=6))
    lines, expected_rows, present = [], [], []
    for i, row in enumerate(rows):
        count = max(1, len(row))
        for k in range(count):
            numbers = None if k >= len(row) else " ".join(f"{n}:1" if sparse else f"{n}" for n in row[k])
            x = "" if numbers is None else f"|x {numbers}"
            lines.append(f"{i} |row {i} {x}\n" if ids else f"|row {i} {x}\n")
        value = 2.5 if fills and not sparse else 0
        if sparse:
            expected_rows.append([[(n, 1.0) for n in sample] for sample in row] or [[]])
            present.append([True] * len(row) or [False])
        else:
            expected_rows.append([[*sample, *[value] * (2 - len(sample))] for sample in row] or [[value] * 2])
            present.append([len(sample) == 2 for sample in row] or [False])
    path = tmp_path_factory.mktemp("data") / "data.ctf"
    path.write_text("".join(lines))
    options = {"missing": (0 if sparse else 2.5) if fills else None, "mask": masked or not fills}
    streams = {"row": fl.Stream(1), "x": fl.Stream(9 if sparse else 2, sparse=sparse, **options)}
    corpus = fl.CTFDeserializer(path, streams, chunk_size=40, cache=False)
    assert list(corpus.schema) == ["row", "x", *["x_present"] * options["mask"]]
    with fl.MinibatchSource(corpus, seed=1, max_sweeps=1) as source:
        for minibatch in source.minibatches(3):
            chosen = [int(sequence[0, 0]) for sequence in minibatch["row"].sequences()]
            got = minibatch["x"].sequences()
            if sparse:
                got = [
                    [
                        list(zip(m.indices[a:b].tolist(), m.values[a:b].tolist(), strict=True))
                        for a, b in itertools.pairwise(m.indptr.tolist())
                    ]
                    for m in got
                ]
            else:
                got = [m.tolist() for m in got]
            assert got == [expected_rows[i] for i in chosen]
            if options["mask"]:
                assert [m.tolist() for m in minibatch["x_present"].sequences()] == [present[i] for i in chosen]


def test_what_cntk_text_cannot_fill(tmp_path):
    (tmp_path / "a.ctf").write_text("|x 1\n|y 2\n")
    for options in ({"streams": {"x": fl.Stream(1, defines_size=True, mask=True)}}, {"max_errors": 1}):
        streams = {"streams": {"x": fl.Stream(1, missing=0.0)}} | options
        with pytest.raises(ValueError, match="nor in the stream that defines the size, got it for x"):
            fl.CTFDeserializer(tmp_path / "a.ctf", **streams)
    chunk = fl.CTFDeserializer(tmp_path / "a.ctf", x=fl.Stream(1, missing=0.0), y=fl.Stream(1)).read(0)
    assert list(chunk.errors) == [0]
    assert "none in the whole sequence" in str(chunk.errors[0])


LITDATA_NULL = b"\x0b"


def litdata_json(text):
    return b"\0" + struct.pack("<I", len(text)) + text


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("form", ["mds", "litdata"])
def test_nulls_in_json_fields_of_shards_are_filled(tmp_path, form, masked):
    rows = [1.5, None, -2.0, None, 0.0]
    texts = [json.dumps(row).encode() for row in rows]
    words = ["a", None, "", None, "null"]
    encoded = [json.dumps(word).encode() for word in words]
    samples = [[t, w] for t, w in zip(texts, encoded, strict=True)]
    if form == "mds":
        write_mds(tmp_path / "s", {"x": ("json", None), "t": ("json", None)}, samples, 2)
    else:
        leaves = [[LITDATA_NULL if t == b"null" else litdata_json(t) for t in sample] for sample in samples]
        write_litdata(tmp_path / "s", {"x": "json", "t": "json"}, leaves, 2)
    streams = {
        "x": fl.Stream((), "float32", missing=9.0, mask=masked),
        "t": fl.Stream((), "str", missing="?", mask=masked),
    }
    corpus = fl.open_corpus(tmp_path / "s", streams=streams)
    with fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1) as source:
        minibatch = source.next_minibatch(9)
    assert minibatch["x"].tolist() == [9.0 if row is None else row for row in rows]
    assert minibatch["t"].tolist() == ["?" if word is None else json.dumps(word) for word in words]
    if masked:
        assert minibatch["x_present"].tolist() == minibatch["t_present"].tolist() == [row is not None for row in rows]


@pytest.mark.parametrize("kind", ["json", "str_int"])
def test_undeclared_nulls_of_shards_name_the_column_and_both_remedies(tmp_path, kind):
    null = b"null" if kind == "json" else b""
    write_mds(tmp_path / "s", {"x": (kind, None)}, [[b"1"], [null], [b"?"], [b"4"]], 9)
    chunk = fl.MDSDeserializer(tmp_path / "s", price=fl.Stream((), "int64", field="x")).read(0)
    assert list(chunk.errors) == [1, 2]
    says = str(chunk.errors[1])
    assert "got a null in column 'x'" in says
    assert 'fl.Stream((), "int64", missing=0) for `price`' in says
    assert "`price_present`" in says
    assert "null" not in chunk.errors[2].what


def test_fields_of_shards_that_cannot_be_null(tmp_path):
    write_mds(tmp_path / "s", {"x": ("int", 8), "t": ("str", None)}, [[bytes(8), b"a"]], 1)
    for name, stream in (("x", fl.Stream((), "int64", missing=1)), ("t", fl.Stream((), "str", mask=True))):
        with pytest.raises(fl.SchemaError, match=f"for stream `{name}` with missing= or mask="):
            fl.open_corpus(tmp_path / "s", streams={name: stream})


def stored_hdf5(path, floats, integers, words):
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=floats, chunks=(2, 2)).attrs["_FillValue"] = np.float32(-999)
        file.create_dataset("n", data=integers, fillvalue=7)
        file.create_dataset("t", data=words, dtype=h5py.string_dtype()).attrs["missing_value"] = "none"
        file.create_dataset("plain", data=integers)


def stored_zarr(path, floats, integers, words, zarr_format=3):
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    group = zarr.create_group(path, zarr_format=zarr_format)
    group.create_array("x", data=floats, chunks=(2, 2), attributes={"_FillValue": -999.0})
    group.create_array("n", data=integers, fill_value=7)
    texts = group.create_array("t", shape=len(words), dtype=str, attributes={"missing_value": "none"})
    texts[:] = np.array(words, object)
    group.create_array("plain", data=integers)


def stored_zarr_2(*arguments):
    stored_zarr(*arguments, zarr_format=2)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("store", [stored_hdf5, stored_zarr, stored_zarr_2], ids=["hdf5", "zarr", "zarr 2"])
def test_fill_values_are_missing_if_they_are_declared(tmp_path, store, masked):
    floats = np.array([[1, -999], [2, 3], [-999, -999], [4, 5], [6, 7]], np.float32)
    integers, words = np.array([1, 7, 3, 7, 5]), ["a", "none", "b", "", "none"]
    path = tmp_path / store.__name__.replace("stored_", "data.").replace("hdf5", "h5").replace("_2", "")
    store(path, floats, integers, words)
    streams = {
        "x": fl.Stream(2, missing=0.5, mask=masked),
        "n": fl.Stream((), "int64", missing=-1, mask=masked),
        "t": fl.Stream((), "str", missing="?", mask=masked),
        "plain": fl.Stream((), "int64"),
    }
    corpus = fl.open_corpus(path, streams=streams)
    with fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1) as source:
        minibatch = source.next_minibatch(9)
    assert minibatch["x"].tolist() == np.where(floats == -999, 0.5, floats).tolist()
    assert minibatch["n"].tolist() == [1, -1, 3, -1, 5]
    assert minibatch["plain"].tolist() == integers.tolist()
    assert minibatch["t"].tolist() == ["a", "?", "b", "", "?"]
    if masked:
        assert minibatch["x_present"].tolist() == [False, True, False, True, True]
        assert minibatch["t_present"].tolist() == [True, False, True, True, False]
    plain = fl.open_corpus(path, streams={name: stream.delivered() for name, stream in streams.items()})
    assert plain.read(0)["x"].rows.tolist() == floats.tolist()
    assert plain.digest() != corpus.digest()
    with pytest.raises(fl.SchemaError, match="expected an array with a fill value for stream `plain`"):
        fl.open_corpus(path, streams={"plain": fl.Stream((), "int64", missing=0)})


@pytest.mark.parametrize("form", FORMS)
def test_without_a_declaration_the_error_names_the_column_and_both_remedies(tmp_path, form):
    path = written(tmp_path, form, "float", [1.0, None, 3.0])
    renamed = {"price": fl.Stream((), "float32", field="x")}
    with pytest.raises(fl.DataError, match=r"null in column 'x'") as caught:
        fl.MinibatchSource(fl.open_corpus(path, streams=renamed), shuffle=False).next_minibatch(3)
    assert 'fl.Stream((), "float32", missing=0) for `price`' in str(caught.value)
    assert "`price_present`" in str(caught.value)


def test_loaders_and_workers_get_the_masks(tmp_path):
    path = written(tmp_path, "parquet", "ragged", [[1.0, None], None, [], [None], [2.0]])
    streams = {"x": fl.Stream((), "float32", missing=9.0, mask=True)}
    for workers in (0, 2):
        loader = fl.DataLoader(fl.open_corpus(path, streams=streams), batch_size=5, num_workers=workers)
        (batch,) = loader
        assert batch["x"].tolist() == [[1, 9], [0, 0], [0, 0], [9, 0], [2, 0]]
        assert batch["x_present"].tolist() == [[True, False], [False] * 2, [False] * 2, [False] * 2, [True, False]]
        assert batch["lengths"]["x_present"].tolist() == [2, 0, 0, 1, 1]


def test_a_store_keeps_the_values_and_the_masks(tmp_path):
    path = written(tmp_path, "arrow", "int", [1, None, 3, None])
    corpus = fl.open_corpus(path, streams={"x": fl.Stream((), "int64", missing=-1, mask=True)})
    fl.convert(corpus, tmp_path / "out.store")
    store = fl.open_corpus(tmp_path / "out.store")
    assert store.schema["x"] == fl.Stream((), "int64")
    with fl.MinibatchSource(store, shuffle=False) as source:
        minibatch = source.next_minibatch(4)
    assert minibatch["x"].rows.tolist() == [1, -1, 3, -1]
    assert minibatch["x_present"].rows.tolist() == [True, False, True, False]


def test_a_stream_with_the_name_of_a_mask_is_refused(tmp_path):
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"x": [1.0, None], "x_present": [1, 2]}), path)
    streams = {"x": fl.Stream((), "float64", mask=True), "x_present": fl.Stream((), "int64")}
    with pytest.raises(fl.SchemaError, match="no stream `x_present`, which mask=True adds for `x`"):
        fl.open_corpus(path, streams=streams)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtype": "int32", "missing": 0.5}, "missing to be a value of int32, got 0.5"),
        ({"dtype": "uint8", "missing": 256}, "missing to be a value of uint8, got 256"),
        ({"dtype": "float32", "missing": 1e300}, r"missing to be a value of float32, got 1e\+300"),
        ({"dtype": "str", "missing": "\ud800"}, "missing to be a value of str, got"),
        ({"dtype": "str", "missing": b"x"}, "missing to be a value of str, got b'x'"),
        ({"dtype": "float32", "missing": "x"}, "missing to be a value of float32, got 'x'"),
        ({"shape": 9, "sparse": True, "missing": 1.0}, "missing to be 0, as sparse samples"),
    ],
)
def test_a_value_that_the_stream_cannot_hold_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        fl.Stream(**arguments)


def test_formats_without_missing_samples_say_so(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(3, np.float32))
    with pytest.raises(fl.SchemaError, match="`x` with missing= or mask=, which this format does not take"):
        fl.Schema({"x": fl.Stream(missing=0.0)})


def test_the_digest_names_the_filled_values(tmp_path):
    (tmp_path / "data.jsonl").write_text('{"x": 1.0}\n{}\n')
    pq.write_table(pa.table({"x": pa.array([1.0, None], pa.float32())}), tmp_path / "data.parquet")
    for name in ("data.jsonl", "data.parquet"):
        streams = [fl.Stream(missing=value, mask=mask) for value in (None, 0.0, 1.0) for mask in (False, True)]
        digests = [fl.open_corpus(tmp_path / name, streams={"x": stream}).digest() for stream in streams]
        assert len(set(digests)) == len(digests)


# ---- nulls that files count -----------------------------------------------------------------------------


def with_nulls(path, form):
    """A file in which 2 of 4 prices are null."""
    table = pa.table({"price": [1.0, None, 3.0, None], "y": [1, 2, 3, 4]})
    if form == "parquet":
        pq.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    return path


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_nulls_that_a_file_counts_are_an_error_before_anything_is_read(tmp_path, form):
    path = with_nulls(tmp_path / f"a.{form}", form)
    corpus = fl.open_corpus(path)
    with pytest.raises(fl.DataError, match="null in column 'price', in 2 of 4 sequences") as caught:
        fl.MinibatchSource(corpus)
    assert (caught.value.path, caught.value.stream, caught.value.sequence) == (str(path), "price", None)
    assert "missing=0" in caught.value.hint
    assert "mask=True" in caught.value.hint
    assert 'on_error="skip"' in caught.value.hint
    with pytest.raises(fl.DataError, match="in 2 of 4 sequences"):
        next(iter(fl.DataLoader(path, batch_size=2)))


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_nulls_that_are_filled_skipped_or_left_out_are_no_errors(tmp_path, form):
    path, listed = with_nulls(tmp_path / f"a.{form}", form), tmp_path / "bad.jsonl"

    def delivered(corpus, **options):
        source = fl.MinibatchSource(corpus, max_sweeps=1, shuffle=False, **options)
        return [y for m in source.minibatches(3) for y in m["y"].rows.tolist()]

    corpus = fl.open_corpus(path)
    assert delivered(corpus, on_error=fl.Quarantine(listed)) == [1, 3]
    assert delivered(corpus, skip=listed) == [1, 3]
    assert delivered(fl.Skipping(corpus, listed)) == [1, 3]
    assert delivered(fl.Take(corpus, 1)) == [1]
    assert delivered(fl.Filtered(corpus, [0, 2])) == [1, 3]
    assert [y for batch in fl.DataLoader(path, batch_size=1, on_error="skip") for y in batch["y"].tolist()] == [1, 3]
    for declared in ({"missing": 0}, {"mask": True}):
        streams = {"price": fl.Stream((), "float64", **declared), "y": fl.Stream((), "int64")}
        assert delivered(fl.open_corpus(path, streams=streams)) == [1, 2, 3, 4]
    assert delivered(fl.open_corpus(path, streams={"y": fl.Stream((), "int64")})) == [1, 2, 3, 4]


def test_an_error_of_a_minibatch_notes_how_many_of_its_sequences_are_unreadable(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": 1}\n{"x": null}\n{"x": 2}\n{}\n')
    source = fl.MinibatchSource(fl.JSONLinesDeserializer(path, {"x": fl.Stream(())}), shuffle=False)
    with pytest.raises(fl.DataError, match="got null") as caught:
        source.next_minibatch(4)
    assert caught.value.__notes__ == ["2 of the 4 sequences of this minibatch are unreadable"]
