"""Arrow files: equal to the values that `datasets` and pyarrow read, views, splits, damage, the laws."""

from __future__ import annotations

import json
import os
import pickle
import random
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc as ipc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline import _native
from feedline.feed.formats.arrow import arrow as module
from feedline.feed.formats.store import stream_columns
from feedline.feed.formats.store.compressed import dictionary_id
from feedline.feed.protocol import can
from feedline.testing import assert_resumes, bytes_digest, sequences_of
from tests.effort import examples
from tests.feed.formats.corpora import assert_same, corpora, everything
from tests.feed.formats.test_parquet import as_table
from tests.inside import files_of, reader_of

COUNT = 230


def write(path, table, *, kind="stream", rows=None, **options):
    """Write a table as an IPC stream or file, or as Feather, in batches of this many rows."""
    if kind == "feather":
        pyarrow.feather.write_feather(table, str(path), chunksize=rows, **options)
        return path
    make = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
    with make(str(path), table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def table_of(count=COUNT):
    """A table with every kind of column that is a stream, and what Python's lists of it are."""
    draw = random.Random(3)
    blobs = [draw.randbytes(draw.choice([0, 1, 7, 300])) for _ in range(count)]
    texts = [f"é{i}" * (i % 3) for i in range(count)]
    lists = [list(range(i % 5)) for i in range(count)]
    pairs = [[[i, j] for j in range(i % 3)] for i in range(count)]
    made = {
        "n": pa.array(range(count)),
        "half": pa.array(np.arange(count, dtype=np.float16)),
        "flag": pa.array([i % 3 == 0 for i in range(count)]),
        "v": pa.array([[i, 2 * i] for i in range(count)], pa.list_(pa.float32(), 2)),
        "m": pa.array([[[i, 1, 2]] * 2 for i in range(count)], pa.list_(pa.list_(pa.uint8(), 3), 2)),
        "flags": pa.array([[i % 2 == 0] * 3 for i in range(count)], pa.list_(pa.bool_(), 3)),
        "l": pa.array(lists),
        "large": pa.array(lists, pa.large_list(pa.int16())),
        "frames": pa.array(pairs, pa.list_(pa.list_(pa.float32(), 2))),
        "b": pa.array(blobs),
        "lb": pa.array(blobs, pa.large_binary()),
        "fixed": pa.array([b"%03d" % i for i in range(count)], pa.binary(3)),
        "s": pa.array(texts),
        "ls": pa.array(texts, pa.large_string()),
        "words": pa.array([texts[i : i + i % 4] for i in range(count)]),
        "image": pa.array([{"bytes": blob, "path": None} for blob in blobs]),
    }
    expected = {name: column.to_pylist() for name, column in made.items() if name != "image"}
    return pa.table(made), {**expected, "image": blobs}


def read_back(corpus):
    """All values as Python's lists, in corpus order."""
    got = everything(corpus)
    return {name: value.tolist() for name, value in got.items()}


TABLE, EXPECTED = table_of()


# ---- values ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["stream", "file", "feather"])
@pytest.mark.parametrize("rows", [1, 41, 1000])
def test_values_equal_the_written_ones(tmp_path, kind, rows):
    plain = {"compression": "uncompressed"} if kind == "feather" else {}
    path = write(tmp_path / "a", TABLE, kind=kind, rows=rows, **plain)
    corpus = fl.open_corpus(path)
    assert isinstance(corpus, fl.ArrowDeserializer)
    assert list(corpus.schema) == TABLE.column_names
    assert (can(corpus, fl.RandomAccess), len(corpus.chunks())) == (True, -(-COUNT // rows))
    assert read_back(corpus) == EXPECTED
    longest = [
        max(1, *map(len, row)) for row in zip(*(EXPECTED[name] for name in ("l", "frames", "words")), strict=True)
    ]
    assert corpus.lengths(np.arange(COUNT)).tolist() == longest
    assert sum(info.samples for info in corpus.chunks()) == sum(longest)
    for start, stop in ((0, 1), (3, 40), (7, 7)):
        if stop <= min(rows, COUNT):
            part = corpus.read_slice(0, start, stop)
            assert {name: value.tolist() for name, value in part.values.items()} == {
                name: EXPECTED[name][start:stop] for name in TABLE.column_names
            }


@pytest.mark.parametrize("kind", ["stream", "file", "feather"])
@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_batches_are_decoded(tmp_path, kind, compression):
    path = write(tmp_path / "a", TABLE, kind=kind, rows=50, compression=compression)
    corpus = fl.open_corpus(path)
    assert (can(corpus, fl.RandomAccess), can(corpus, fl.Sliceable), len(corpus.extents(0))) == (False, False, 1)
    assert read_back(corpus) == EXPECTED
    source = fl.MinibatchSource(corpus, seed=1, max_sweeps=1)
    assert sorted(i for m in source.minibatches(60) for i in m.ids.tolist()) == list(range(COUNT))
    with pytest.raises(fl.DataError, match=r"at most 3000 bytes in a decoded batch \(memory\)"):
        fl.ArrowDeserializer(path, memory=3000).read(0)


def test_types_that_arrow_decodes(tmp_path):
    """Dictionaries, which are separate messages, and views."""
    words = [f"w{i % 7}" for i in range(60)]
    table = pa.table(
        {"d": pa.array(words).dictionary_encode(), "view": pa.array(words, pa.string_view()), "n": range(60)}
    )
    for kind in ("stream", "file"):
        corpus = fl.ArrowDeserializer(write(tmp_path / kind, table, kind=kind, rows=25))
        assert not can(corpus, fl.RandomAccess)
        assert read_back(corpus) == {"d": words, "view": words, "n": list(range(60))}


def coded(words):
    return pa.array(words).dictionary_encode()


@pytest.mark.parametrize("deltas", [False, True])
def test_each_batch_of_a_stream_has_the_dictionary_that_is_before_it(tmp_path, deltas):
    """Later ones replace it, or add to it. Two columns, as each has a dictionary."""
    first, second = ["x", "y"], ["x", "y", "z", "q"] if deltas else ["P", "Q"]
    batches = [
        pa.record_batch({"a": coded(first), "b": coded(["u", "u"])}),
        pa.record_batch({"a": coded(second), "b": coded(["u"] * len(second))}),
        pa.record_batch({"a": coded(second), "b": coded(["w"] * len(second))}),
    ]
    path = str(tmp_path / "a.arrow")
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=deltas)
    with pa.ipc.new_stream(path, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    corpus = fl.ArrowDeserializer(path)
    for i in (2, 0, 1):
        assert {name: corpus.read(i)[name].tolist() for name in "ab"} == batches[i].to_pydict()


def test_a_file_that_replaces_a_dictionary_is_refused(tmp_path):
    """Arrow's files may not: their batches may be read in any order."""
    parts = [
        messages(write(tmp_path / "a", pa.table({"a": coded(words)}))) for words in (["x", "y", "x"], ["P", "Q", "P"])
    ]
    path = tmp_path / "b"
    body = b"".join([*parts[0][:-1], *parts[1][1:]])
    path.write_bytes(body)
    assert read_back(fl.ArrowDeserializer(path)) == {"a": ["x", "y", "x", "P", "Q", "P"]}
    batches = [pa.record_batch({"a": coded(words)}) for words in (["x", "y"], ["x", "y", "z"])]
    with ipc.new_file(path, batches[0].schema, options=ipc.IpcWriteOptions(emit_dictionary_deltas=True)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    assert read_back(fl.ArrowDeserializer(path)) == {"a": ["x", "y", "x", "y", "z"]}
    data = bytearray(path.read_bytes())
    with open(path, "rb") as file:
        messages_read, *_ = _native.arrow_messages(file.fileno(), len(data), 0, True)
    _, second = (row for row in messages_read.reshape(-1, 6).tolist() if row[0] == 2)
    start, head = second[1:3]
    for at in range(start + 8, start + head):
        if data[at] == 1 and not dictionary_id(data[start:at] + b"\0" + data[at + 1 : start + head], 8)[1]:
            data[at] = 0
            break
    path.write_bytes(data)
    with pytest.raises(fl.DataError, match="replaces a dictionary"):
        fl.ArrowDeserializer(path)


def test_a_dictionary_that_claims_much_is_not_unpacked(tmp_path):
    path = tmp_path / "a"
    write(path, pa.table({"a": coded([f"word {i} " * 99 for i in range(50)])}), compression="zstd")
    good, (_, message, *_) = path.read_bytes(), messages(path)
    at = good.index(message) + message.rindex(b"\x28\xb5\x2f\xfd") - 8  # the size that a buffer claims is before it
    assert 8 * 50 <= int.from_bytes(good[at : at + 8], "little") < 1 << 20
    assert not fl.ArrowDeserializer(path, memory=1 << 20).read(0).errors
    path.write_bytes(good[:at] + (1 << 32).to_bytes(8, "little") + good[at + 8 :])
    with pytest.raises(fl.DataError, match=r"at most 1048576 bytes in a decoded batch \(memory\), got 42949"):
        fl.ArrowDeserializer(path, memory=1 << 20).read(0)


@given(corpora(smallest=1), st.integers(1, 30), st.sampled_from(["stream", "file"]))
@settings(deadline=None)
def test_round_trip_of_what_a_store_holds(tmp_path_factory, data, rows, kind):
    """Sparse streams and bools among them: a store's own columns, by the declaration in their metadata."""
    path = write(tmp_path_factory.mktemp("arrow") / "a.arrow", as_table(data), kind=kind, rows=rows)
    corpus = fl.ArrowDeserializer(path)
    assert corpus.schema == fl.ArrayDeserializer(data).schema
    assert_same(everything(corpus), data)


def test_dense_rows_and_large_strings_are_views(tmp_path):
    chunk = fl.ArrowDeserializer(write(tmp_path / "a", TABLE, rows=100)).read(1)
    buffer = chunk.seals[0]
    while buffer.base is not None and isinstance(buffer.base, np.ndarray):
        buffer = buffer.base
    for array in (chunk["n"].rows, chunk["v"].rows, chunk["m"].rows, chunk["frames"].rows, chunk["s"].data):
        assert np.shares_memory(array, buffer)


def test_nulls_make_their_sequences_unreadable_and_keep_their_place(tmp_path):
    entry = pa.struct({"index": pa.int64(), "value": pa.float32()})
    table = pa.table(
        {
            "a": pa.array([1, None, 3, 4, 5, 6, 7, 8, 9], pa.int32()),
            "v": pa.array([[1, 2], [1, 2], None, [1, None], *[[1, 2]] * 5], pa.list_(pa.float32(), 2)),
            "s": pa.array([["x"], [], [], [], None, ["y", None], [], [], []], pa.list_(pa.string())),
            "p": pa.array([[]] * 6 + [[{"index": 9, "value": 1}], [{"index": 2, "value": 3}], []], pa.list_(entry)),
            "i": pa.array([{"bytes": b"z", "path": None}] * 8 + [{"bytes": None, "path": "p"}]),
        }
    )
    streams = {
        "a": fl.Stream((), "int32"),
        "v": fl.Stream(2),
        "s": fl.Stream(dtype="str"),
        "p": fl.Stream(9, sparse=True),
        "i": fl.Stream(dtype="bytes"),
    }
    for options in ({}, {"compression": "zstd"}):
        path = write(tmp_path / "a.arrow", table, rows=4, **options)
        corpus = fl.ArrowDeserializer(path, streams)
        errors = [e for i in range(3) for _, e in sorted(corpus.read(i).errors.items())]
        assert [(e.sequence, e.stream) for e in errors] == [
            *((1, "a"), (2, "v"), (3, "v"), (4, "s"), (5, "s"), (6, "p"), (8, "i"))
        ]
        assert errors[0].path == str(path)
        skipped = fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1, on_error=fl.Quarantine(tmp_path / "q.jsonl"))
        assert [a for m in skipped.minibatches(20) for a in m["a"].rows.tolist()] == [1, 8]


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("shuffle", [False, True, fl.Window(samples=40)])
def test_nulls_keep_their_tick_wherever_their_bytes_come_from(tmp_path, forced, shuffle):
    """From the map, or past the page cache in blocks and one by one."""
    numbers = [None if i % 10 == 3 else i for i in range(200)]
    path = write(tmp_path / "a", pa.table({"a": numbers, "t": [f"t{i}" for i in range(200)]}), rows=30)

    def opened(**options):
        new_source = fl.MinibatchSource(fl.ArrowDeserializer(path), seed=1, max_sweeps=1, shuffle=shuffle, **options)
        reader_of(new_source).forced = forced
        return new_source

    with pytest.raises(fl.DataError, match="got a null in column 'a', in 20 of 200 sequences"):
        opened()
    skipping = opened(on_error=fl.Quarantine(tmp_path / "q.jsonl"))
    delivered = [
        pair for m in skipping.minibatches(7) for pair in zip(m["a"].rows.tolist(), m["t"].tolist(), strict=True)
    ]
    assert sorted(delivered) == [(i, f"t{i}") for i in range(200) if i % 10 != 3]
    assert skipping.stats().skipped == 20


def test_a_text_that_is_not_utf8_is_one_bad_sequence(tmp_path):
    texts = pa.array([b"good", b"\xff", b"fine"]).view(pa.string())
    for options in ({}, {"compression": "lz4"}):
        corpus = fl.ArrowDeserializer(write(tmp_path / "a", pa.table({"t": texts}), **options))
        taken = corpus.read(0).take(np.arange(3))
        assert (list(taken.errors), taken["t"].tolist()[::2]) == ([1], ["good", "fine"])


@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.list_(pa.field("in_side", pa.int32())), pa.struct([("in_side", pa.int8())])], ids=str
)
def test_names_that_are_not_utf8_are_damage(tmp_path, kind):
    """Those of fields within fields, too."""
    name = "name" if kind.num_fields else "na_me"
    path = write(tmp_path / "a", pa.table({name: pa.nulls(3, kind), "n": range(3)}))
    path.write_bytes(path.read_bytes().replace(b"_", b"\xc0"))
    for streams in (None, ["n"]):
        with pytest.raises(fl.DataError, match="its schema cannot be read: UnicodeDecodeError"):
            fl.ArrowDeserializer(path, streams)


@pytest.mark.parametrize("declared", [(2, 3), (6,), (3,), None])
def test_lists_that_have_equal_lengths(tmp_path, declared):
    """Undeclared ones are named, not dropped silently. Declared ones are dense, and views if all are equal."""
    rows = [[[i, 1, 2], [3, 4, 5]] for i in range(9)]
    flat = [sum(row, []) for row in rows]
    table = pa.table({"m": pa.array(flat if declared == (6,) else rows), "n": range(9)})
    path = write(tmp_path / "a", table, rows=4)
    if declared is None:
        with pytest.warns(UserWarning, match=r"not read from .*'m' \(list<item: list<item: int64>>\)"):
            assert list(fl.ArrowDeserializer(path).schema) == ["n"]
        with pytest.raises(fl.SchemaError, match=r"in column 'm'.*m=fl.Stream"):
            fl.ArrowDeserializer(path, ["m"])
        return
    stream = {"m": fl.Stream(declared, "int64")}
    assert read_back(fl.ArrowDeserializer(path, stream))["m"] == (flat if declared == (6,) else rows)
    uneven = [*flat[:4], [1], *flat[5:]] if declared == (6,) else [*rows[:4], [[1, 2, 3], [4]], *rows[5:]]
    path = write(tmp_path / "a", pa.table({"m": uneven}), rows=4)
    chunk = fl.ArrowDeserializer(path, stream).read(1)
    assert list(chunk.errors) == [0]
    assert chunk["m"].tolist()[1:] == uneven[5:8]


def test_columns_are_chosen_as_in_parquet(tmp_path):
    path = write(tmp_path / "a", TABLE)
    corpus = fl.ArrowDeserializer(path, ["l", "n"], defines_size="n")
    assert (list(corpus.schema), corpus.lengths(np.arange(3))) == (["l", "n"], None)
    corpus = fl.open_corpus(path, streams={"text": fl.Stream(dtype="str", field="s"), "m": fl.Stream((3, 2), "uint8")})
    assert (list(corpus.schema), corpus.schema["m"].shape) == (["text", "m"], (3, 2))
    with pytest.raises(fl.SchemaError, match="for stream `v`"):
        fl.ArrowDeserializer(path, {"v": fl.Stream(3)})
    with pytest.raises(fl.SchemaError, match="column 'q'"):
        fl.ArrowDeserializer(path, ["q"])
    with pytest.raises(TypeError, match=r"write \['n'\]"):
        fl.ArrowDeserializer(path, "n")
    write(tmp_path / "b", TABLE.set_column(0, "n", pa.array([0.5] * COUNT)))
    with pytest.raises(fl.SchemaError, match=r"int64 in .* and double in"):
        fl.ArrowDeserializer([path, tmp_path / "b"], ["n"])
    # Columns may be in another order in other files of a corpus.
    write(tmp_path / "b", TABLE.select(TABLE.column_names[::-1]))
    assert read_back(fl.ArrowDeserializer([path, tmp_path / "b"], ["n", "s"]))["s"] == 2 * EXPECTED["s"]


# ---- datasets of Hugging Face ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hub():
    """The library, without progress bars."""
    import datasets

    datasets.disable_progress_bars()
    return datasets


def dataset(hub, count=COUNT):
    features = hub.Features(
        {
            "x": hub.List(hub.Value("float32"), length=5),
            "y": hub.ClassLabel(names=["cat", "dog"]),
            "text": hub.Value("string"),
            "tokens": hub.List(hub.Value("int32")),
            "large": hub.LargeList(hub.Value("int64")),
            "a": hub.Array2D((2, 3), "float32"),
            "ragged": hub.Array2D((None, 3), "int16"),
            "image": {"bytes": hub.Value("binary"), "path": hub.Value("string")},
        }
    )
    rng = np.random.default_rng(1)
    rows = {
        "x": rng.random((count, 5), np.float32),
        "y": np.arange(count) % 2,
        "text": [f"row {i}" for i in range(count)],
        "tokens": [list(range(i % 7)) for i in range(count)],
        "large": [list(range(i % 3)) for i in range(count)],
        "a": rng.random((count, 2, 3)).astype(np.float32),
        "ragged": [np.full((i % 4, 3), i) for i in range(count)],
        "image": [{"bytes": bytes([i]) * (i % 5), "path": None} for i in range(count)],
    }
    return hub.Dataset.from_dict(rows, features=features)


def as_lists(rows):
    """What the library reads back, as Python's lists."""
    columns = {name: [row[name] for row in rows] for name in rows.column_names}
    columns["image"] = [image["bytes"] for image in columns["image"]]
    return columns


@pytest.fixture(scope="module")
def saved(hub, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "dataset"
    rows = dataset(hub)
    rows.save_to_disk(folder, num_shards=3)
    return folder, as_lists(rows)


@pytest.mark.frameworks("datasets")
def test_a_saved_dataset_is_what_the_library_reads(saved):
    folder, expected = saved
    corpus = fl.open_corpus(folder)
    assert (can(corpus, fl.RandomAccess), corpus.classes) == (True, {"y": ["cat", "dog"]})
    assert corpus.schema["a"].shape == (2, 3)
    assert read_back(corpus) == expected
    assert len(corpus.paths()) == 3
    loader = fl.DataLoader(str(folder), batch_size=7)
    assert next(iter(loader))["y"].tolist() == expected["y"][:7]


@pytest.mark.frameworks("datasets")
def test_its_types_do_not_depend_on_what_was_imported(saved):
    """Arrow knows the library's extension types only where it was imported."""
    kinds = [pa.ipc.open_stream(path).schema.field("a").type for path in fl.open_corpus(saved[0]).paths()[:1]]
    assert hasattr(kinds[0], "storage_type")
    name, kind = kinds[0].extension_name, kinds[0]
    pa.unregister_extension_type(name)
    try:
        assert fl.open_corpus(saved[0]).schema["a"].shape == (2, 3)
    finally:
        pa.register_extension_type(kind)


@pytest.mark.frameworks("datasets")
def test_splits_of_a_saved_dict(hub, tmp_path):
    rows = dataset(hub, 20)
    hub.DatasetDict({"train": rows.select(range(12)), "test": rows.select(range(12, 20))}).save_to_disk(tmp_path / "d")
    with pytest.raises(fl.DataError, match="expected one split, got 2: train, test") as caught:
        fl.open_corpus(tmp_path / "d")
    assert f"train: {str(tmp_path / 'd' / 'train')!r}" in caught.value.hint
    named = fl.ArrowDeserializer(tmp_path / "d", split="test")
    assert (
        read_back(named) == read_back(fl.open_corpus(tmp_path / "d" / "test")) == as_lists(rows.select(range(12, 20)))
    )
    with pytest.raises(fl.DataError, match="one of the splits train, test, got 'dev'"):
        fl.ArrowDeserializer(tmp_path / "d", split="dev")
    with pytest.raises(fl.DataError, match="a folder to choose the split"):
        fl.ArrowDeserializer(named.paths()[0], split="test")
    hub.DatasetDict({"train": rows}).save_to_disk(tmp_path / "one")
    assert len(fl.open_corpus(tmp_path / "one").select(np.arange(20))) == 20
    with pytest.raises(fl.DataError, match="expected one dataset, got 2: d, one"):
        fl.open_corpus(tmp_path)


@pytest.mark.frameworks("datasets")
def test_the_cache_of_a_loaded_dataset(hub, tmp_path):
    """As `load_dataset` leaves it, with results of `map`, which have other names."""
    for split, count in (("train", 30), ("test", 5)):
        with open(tmp_path / f"{split}.jsonl", "w") as file:
            file.writelines(json.dumps({"n": i, "t": f"t{i}"}) + "\n" for i in range(count))
    files = {split: str(tmp_path / f"{split}.jsonl") for split in ("train", "test")}
    both = hub.load_dataset("json", data_files=files, cache_dir=str(tmp_path / "cache"))
    both["train"].map(lambda row: {"n": -row["n"]})
    (folder,) = {os.path.dirname(file["filename"]) for rows in both.values() for file in rows.cache_files}
    with pytest.raises(fl.DataError, match=r"expected one split, got 2: (test, train|train, test)") as caught:
        fl.open_corpus(folder)
    place = f"{folder}/json-train.arrow"
    assert place in caught.value.hint
    for corpus in (fl.ArrowDeserializer(folder, split="train"), fl.open_corpus(place)):
        assert read_back(corpus) == {"n": list(range(30)), "t": [f"t{i}" for i in range(30)]}
    # The folders above it lead to it.
    assert len(fl.ArrowDeserializer(tmp_path / "cache", split="test").select(np.arange(5))) == 5


@pytest.mark.frameworks("datasets")
@pytest.mark.parametrize("view", ["shuffle", "select", "filter"])
def test_views_are_read_by_their_indices(hub, saved, tmp_path, view):
    folder, _ = saved
    rows = hub.load_from_disk(folder)
    place = str(tmp_path / "indices.arrow")
    if view == "shuffle":
        selected = rows.shuffle(seed=1, indices_cache_file_name=place)
    elif view == "select":
        selected = rows.select([5, 5, 200, *range(50, 20, -1), 0], indices_cache_file_name=place)
    else:
        selected = rows.filter(lambda row: len(row["tokens"]) > 2, cache_file_name=place)
    corpus = fl.ArrowDeserializer(folder, indices=place)
    assert (can(corpus, fl.RandomAccess), can(corpus, fl.Sliceable)) == (False, True)
    assert read_back(corpus) == as_lists(selected)
    lengths = np.array(
        [max(1, *map(len, row)) for row in zip(selected["tokens"], selected["large"], selected["ragged"], strict=True)]
    )
    assert corpus.lengths(np.arange(len(selected))).tolist() == lengths.tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_VIEW_BYTES", 3000)
        assert_resumes(lambda: source(fl.ArrowDeserializer(folder, indices=place)), sizes=(30,))
        assert len(fl.ArrowDeserializer(folder, indices=place).chunks()) > 1


@pytest.mark.frameworks("datasets")
def test_a_folder_that_is_a_view(hub, tmp_path):
    """As earlier versions of `datasets` saved one: row numbers next to the data."""
    rows = dataset(hub, 20)
    rows.save_to_disk(tmp_path / "d")
    numbers = pa.table({"indices": pa.array([7, 3, 3, 19], pa.uint64())})
    write(tmp_path / "d" / "indices.arrow", numbers)
    state = json.loads((tmp_path / "d" / "state.json").read_text())
    for named in ([], [{"filename": "indices.arrow"}]):
        (tmp_path / "d" / "state.json").write_text(json.dumps({**state, "_indices_data_files": named}))
        assert read_back(fl.open_corpus(tmp_path / "d"))["text"] == ["row 7", "row 3", "row 3", "row 19"]
    write(tmp_path / "d" / "indices.arrow", pa.table({"indices": pa.array([7, 20, 2**63, 1], pa.uint64())}))
    chunk = fl.open_corpus(tmp_path / "d").read(0)
    assert list(chunk.errors) == [1, 2]
    assert "a row number below 20" in str(chunk.errors[1])
    write(tmp_path / "d" / "indices.arrow", pa.table({"rows": [1]}))
    with pytest.raises(fl.DataError, match="a column `indices` of uint64"):
        fl.open_corpus(tmp_path / "d")


def test_a_view_of_compressed_files(tmp_path):
    path = write(tmp_path / "a.feather", TABLE, kind="feather", rows=50)
    place = write(tmp_path / "indices.arrow", pa.table({"indices": pa.array([9, 220, 9, 3], pa.uint64())}))
    corpus = fl.ArrowDeserializer(path, ["n", "s"], indices=place)
    assert read_back(corpus)["n"] == [9, 220, 9, 3]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("state.json", "{"),
        ("state.json", "[]"),
        ("state.json", '{"_data_files": []}'),
        ("state.json", '{"_data_files": [{"filename": "../../etc/passwd"}]}'),
        ("state.json", '{"_data_files": [{"filename": "/etc/passwd"}]}'),
        ("state.json", '{"_data_files": [{"filename": "none.arrow"}]}'),
        ("state.json", '{"_data_files": [7]}'),
        ("dataset_dict.json", '{"splits": 3}'),
        ("dataset_dict.json", '{"splits": [".."]}'),
        ("dataset_dict.json", '{"splits": ["none"]}'),
        ("dataset_dict.json", "[" * 100_000),
    ],
)
def test_descriptions_that_cannot_be_right(tmp_path, name, text):
    write(tmp_path / "a.arrow", TABLE)
    (tmp_path / name).write_text(text)
    with pytest.raises(fl.DataError):
        fl.open_corpus(tmp_path)


# ---- laws -----------------------------------------------------------------------------------------------


def source(corpus, **options):
    return fl.MinibatchSource(corpus, **{"seed": 4, "max_sweeps": 2, **options})


@pytest.fixture(params=["mapped", "compressed", "view"])
def reopen(request, tmp_path):
    """Opens the same kinds of streams, in several files."""
    options = {"compression": "zstd"} if request.param == "compressed" else {}
    paths = [write(tmp_path / f"{i}.arrow", TABLE.slice(100 * i, 100), rows=17, **options) for i in range(3)]
    indices = None
    if request.param == "view":
        order = np.random.default_rng(0).permutation(COUNT).astype(np.uint64)
        indices = write(tmp_path / "indices", pa.table({"indices": order}), rows=50)
    return lambda: fl.ArrowDeserializer(paths, indices=indices)


def test_one_order_parts_and_resume(reopen):
    for shuffle in (True, fl.Window(samples=90), False):
        digests = {bytes_digest(source(reopen(), shuffle=shuffle).minibatches(size)) for size in (25, 64)}
        assert len(digests) == 1
        assert_resumes(lambda shuffle=shuffle: source(reopen(), shuffle=shuffle), sizes=(37,))
    unpartitioned, parts = source(reopen()), [source(reopen(), partition=(i, 3)) for i in range(3)]
    for minibatch in unpartitioned.minibatches(31):
        assert [one for part in parts for one in sequences_of([part.next_minibatch(31)])] == sequences_of([minibatch])


@pytest.mark.filterwarnings("ignore:expected at most")
def test_a_loader_with_workers_continues_with_other_workers(reopen):
    """Two workers, a state, then three workers deliver the sequences of a loader without workers."""

    def loader(workers):
        return fl.DataLoader(reopen(), batch_size=10, shuffle=True, seed=2, num_workers=workers)

    def numbers(batches):
        return [batch["n"].ravel().tolist() for batch in batches]

    expected = numbers(loader(0))
    first = loader(2)
    batches = iter(first)
    begun = numbers(next(batches) for _ in range(7))
    state = first.state_dict()
    del batches
    after = loader(3)
    after.load_state_dict(json.loads(json.dumps(state)))
    assert begun + numbers(after) == expected


def test_other_processes_and_digests(reopen, tmp_path):
    corpus = reopen()
    again = pickle.loads(pickle.dumps(corpus))
    assert (again.digest(), again.schema) == (corpus.digest(), corpus.schema)
    assert read_back(again) == read_back(corpus)
    moved = [write(tmp_path / f"{i}.moved", TABLE.slice(100 * i, 100), rows=17) for i in range(3)]
    moved_corpus = fl.ArrowDeserializer(moved)
    if can(corpus, fl.RandomAccess):
        assert moved_corpus.digest() == corpus.digest()
    write(moved[2], TABLE.slice(200, 100), rows=18)
    assert fl.ArrowDeserializer(moved).digest() != corpus.digest()
    corpus.close()


def test_converted_and_back(tmp_path):
    path = write(tmp_path / "a.arrow", TABLE.drop(["half"]), rows=50)
    fl.convert(path, tmp_path / "store")
    assert_same_lists(read_back(fl.StoreDeserializer(tmp_path / "store")), {n: EXPECTED[n] for n in TABLE.column_names})
    # The parts of a store are Arrow files themselves.
    assert read_back(fl.ArrowDeserializer(sorted((tmp_path / "store").glob("*.arrow"))))["s"] == EXPECTED["s"]


def assert_same_lists(got, expected):
    assert got == {name: expected[name] for name in got}


# ---- damage ---------------------------------------------------------------------------------------------


SMALL = TABLE.slice(0, 40)


def read_all(path, tmp_path):
    """Everything that reads a file, with its bad sequences skipped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of columns that damage has made something else
        corpus = fl.ArrowDeserializer(path)
    with fl.MinibatchSource(
        corpus, shuffle=False, max_sweeps=1, on_error=fl.Quarantine(tmp_path / "q.jsonl")
    ) as opened:
        for minibatch in opened.minibatches(16):
            dict(minibatch.items())
    corpus.digest()


@pytest.mark.parametrize("kind", ["stream", "file"])
def test_a_cut_file_is_noticed(tmp_path, kind):
    good = write(tmp_path / "a", SMALL, kind=kind, rows=15).read_bytes()
    ends = set()
    for size in range(0, len(good) - 8, 13):
        (tmp_path / "a").write_bytes(good[:size])
        with pytest.raises(fl.DataError, match="Arrow file") as caught:
            fl.ArrowDeserializer(tmp_path / "a")
        ends.add(caught.value.byte)
    assert len(ends) > 2


@pytest.mark.frameworks("datasets")
def test_a_stream_without_an_end_is_complete_but_not_in_a_dataset(hub, tmp_path):
    """In Arrow a stream may end with the file, but `datasets` writes an end of stream."""
    dataset(hub, 20).save_to_disk(tmp_path / "d")
    (path,) = (tmp_path / "d").glob("*.arrow")
    path.write_bytes(path.read_bytes()[:-8])
    assert len(fl.ArrowDeserializer(path, ["y"]).select(np.arange(20))) == 20
    with pytest.raises(fl.DataError, match="its writer was killed"):
        fl.open_corpus(tmp_path / "d")


@pytest.mark.parametrize("options", [{}, {"compression": "lz4"}], ids=["mapped", "compressed"])
def test_any_byte_changed_is_data_or_a_data_error(tmp_path, options):
    """Heads are where everything is said: each of their bytes, of the body some."""
    path = tmp_path / "a"
    good = write(path, SMALL, rows=15, **options).read_bytes()
    draw = random.Random(9)
    heads = [i for i in range(len(good)) if good[i] or i % 8 == 0]
    for at in draw.sample(heads, examples(60)):
        bad = bytearray(good)
        bad[at] = draw.choice([bad[at] ^ 1 << draw.randrange(8), 0, 255, 127, 128])
        path.write_bytes(bad)
        try:
            read_all(path, tmp_path)
        except (fl.DataError, fl.SchemaError):
            pass


def messages(path):
    """The messages of a stream, with the end-of-stream marker as the last."""
    data, at, parts = path.read_bytes(), 0, []
    while length := int.from_bytes(data[at + 4 : at + 8], "little"):
        body = pa.ipc.read_message(data[at:]).body
        end = at + 8 + length + (0 if body is None else body.size)
        parts.append(data[at:end])
        at = end
    return [*parts, data[at:]]


@pytest.mark.parametrize(
    "claimed",
    [
        {"x": pa.list_(pa.float64(), 2**31 - 1)},
        {"x": pa.list_(pa.list_(pa.float64(), 2**15), 2**15)},
        {"x": pa.list_(pa.int64())},
        {"x": pa.string()},
        {"x": pa.int64(), "y": pa.int64()},
        {"x": pa.struct([("bytes", pa.binary()), ("path", pa.string())])},
    ],
)
@pytest.mark.parametrize("options", [{}, {"compression": "zstd"}], ids=["mapped", "compressed"])
def test_batches_of_another_schema(tmp_path, claimed, options):
    """Whatever a schema claims, a small file costs little and no process ends."""
    path = tmp_path / "a"
    claimed_messages = messages(
        write(path, pa.table({n: pa.array([], kind) for n, kind in claimed.items()}), **options)
    )
    real_messages = messages(write(path, pa.table({"x": pa.array(range(100))}), **options))
    path.write_bytes(claimed_messages[0] + b"".join(real_messages[1:]))
    try:
        corpus = fl.ArrowDeserializer(path, memory=1 << 20)
        corpus.lengths(np.arange(3))
        assert len(corpus.read(0).errors) == 100
    except fl.DataError:
        pass


@pytest.mark.parametrize("rows", [2**20 + 10_000, 2**31, 2**62, -1])
def test_more_rows_than_bytes(tmp_path, rows):
    path = write(tmp_path / "a", pa.table({"x": pa.array(range(100))}))
    good = path.read_bytes()
    # The batch's and the column's number of rows.
    assert good.count((100).to_bytes(8, "little")) >= 2
    path.write_bytes(good.replace((100).to_bytes(8, "little"), rows.to_bytes(8, "little", signed=True)))
    with pytest.raises(fl.DataError, match=r"claims \d+ rows|of -1 rows"):
        fl.ArrowDeserializer(path)


def test_a_compressed_batch_that_claims_many_rows_is_one_error(tmp_path):
    """Not one for each of a billion sequences."""
    path = write(tmp_path / "a", pa.table({"x": pa.array(range(100))}), compression="zstd")
    good = path.read_bytes()
    path.write_bytes(good.replace((100).to_bytes(8, "little"), (10**9).to_bytes(8, "little"), 1))
    with pytest.raises(fl.DataError, match="a record batch of 1000000000 rows"):
        fl.ArrowDeserializer(path).read(0)


def test_a_damaged_head_costs_its_batch_alone(tmp_path):
    path = tmp_path / "a"
    good = bytearray(write(path, TABLE.select(["n", "l"]), rows=50).read_bytes())
    corpus = fl.ArrowDeserializer(path, ["n"])
    file = files_of(corpus)[0]
    start = int(file.starts[1])
    # The second field's number of nulls becomes more than it has items.
    rows = good.index((50).to_bytes(8, "little") + bytes(8), start)
    good[rows + 8] = 99
    path.write_bytes(good)
    corpus = fl.ArrowDeserializer(path, ["n"])
    chunk = corpus.read(1)
    assert (sorted(chunk.errors), chunk.errors[0].path) == (list(range(50)), str(path))
    assert chunk.errors[49].sequence == 99
    assert start < chunk.errors[0].byte < start + int(file.heads[1])
    skipped = source(corpus, shuffle=False, max_sweeps=1, on_error=fl.Quarantine(tmp_path / "q.jsonl"))
    assert [n for m in skipped.minibatches(300) for n in m["n"].rows.tolist()] == [*range(50), *range(100, COUNT)]


def test_offsets_that_fall_are_no_sequences(tmp_path):
    path = write(tmp_path / "a", pa.table({"s": ["abc", "de", "f"], "n": [1, 2, 3]}))
    good = bytearray(path.read_bytes())
    at = good.index(np.array([0, 3, 5, 6], "<i4").tobytes())
    good[at + 4 : at + 8] = (6).to_bytes(4, "little")
    path.write_bytes(good)
    chunk = fl.ArrowDeserializer(path).read(0)
    assert len(chunk.errors) == 3
    assert "never decrease" in str(chunk.errors[0])
    good[at + 4 : at + 16] = np.array([3, 5, 1], "<i4").tobytes()
    path.write_bytes(good)
    assert "never decrease" in str(fl.ArrowDeserializer(path).read(0).errors[0])
    good[at : at + 16] = np.array([0, 3, 5, 7000], "<i4").tobytes()
    path.write_bytes(good)
    assert "expected 7000 elements" in str(fl.ArrowDeserializer(path).read(0).errors[0])


def test_a_file_that_is_truncated_while_in_use(tmp_path):
    path = write(tmp_path / "a", pa.table({"v": np.random.default_rng(0).random(100_000)}), rows=5000)
    corpus = fl.ArrowDeserializer(path)
    opened = source(corpus)
    opened.next_minibatch(100)
    os.truncate(path, 300_000)
    with pytest.raises(fl.DataError):
        for minibatch in opened.minibatches(1000):
            assert (minibatch["v"].rows != 0).all()
    with pytest.raises(fl.DataError, match="as when the file was opened"):
        corpus.read(19)


def test_what_is_not_read_is_named(tmp_path):
    (tmp_path / "empty").mkdir()
    for what, message in (
        (tmp_path / "none.arrow", "No such file"),
        (tmp_path / "empty", "got none"),
        (write(tmp_path / "rows", TABLE.slice(0, 0)), "at least one row"),
    ):
        with pytest.raises(fl.DataError, match=message):
            fl.ArrowDeserializer(what)
    with pytest.raises(ValueError, match="empty list"):
        fl.ArrowDeserializer([])
    path = write(tmp_path / "pauses", pa.table({"pause": pa.array([(0, 1, 2)], pa.month_day_nano_interval())}))
    with pytest.raises(fl.SchemaError, match="a column of numbers"):
        fl.ArrowDeserializer(path)
    with pytest.raises(IndexError, match="from 0 to 0, got 1"):
        fl.ArrowDeserializer(write(tmp_path / "b", TABLE)).read(1)


def test_declarations_of_a_store_are_checked(tmp_path):
    note = stream_columns.field("x", fl.Stream(3), False).metadata
    table = pa.table([[1]], schema=pa.schema([pa.field("x", pa.int64(), metadata=note)]))
    with pytest.raises(fl.DataError, match="metadata declares"):
        fl.ArrowDeserializer(write(tmp_path / "a", table))
