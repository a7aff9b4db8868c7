"""Lance tables, written by lance: values, versions, deletions, random access, damage."""

from __future__ import annotations

import pickle
import random
import struct

import numpy as np
import pytest

import feedline as fl
from feedline.testing import assert_resumes
from tests.forked import Forked

lance = pytest.importorskip("lance", reason="lance is not installed: the extra lance")
pa = pytest.importorskip("pyarrow")

COUNT = 200
X = np.arange(COUNT, dtype=np.int32)
TEXTS = [f"räum {i}" * (i % 3) for i in range(COUNT)]
LISTS = [list(range(i % 4)) for i in range(COUNT)]
# lance warns of every fork, as locks that a thread holds stay locked. None is held here.
pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning")


def table(count=COUNT):
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(X[:count], 3).astype(np.float32)), 3)
    return pa.table({"x": X[:count], "v": vectors, "s": TEXTS[:count], "r": LISTS[:count]})


@pytest.fixture
def path(tmp_path):
    lance.write_dataset(table(), tmp_path / "a.lance", max_rows_per_file=70)
    return tmp_path / "a.lance"


def rows(corpus, stream="x"):
    return [value.tolist() for i in range(len(corpus.chunks())) for value in corpus.read(i)[stream].sequences()]


@pytest.mark.parametrize("chunk_sequences", [None, 9, 1000])
def test_columns_are_streams_and_chunks_are_runs_of_fragments(path, chunk_sequences):
    corpus = fl.LanceDeserializer(path, chunk_sequences=chunk_sequences)
    sizes = [info.sequences for info in corpus.chunks()]
    assert sizes == ([9] * 7 + [7] + [9] * 7 + [7] + [9] * 6 + [6] if chunk_sequences == 9 else [70, 70, 60])
    assert [info.samples for info in corpus.chunks()][-1] == sum(max(1, n % 4) for n in range(COUNT - sizes[-1], COUNT))
    assert rows(corpus) == [[x] for x in X]
    assert rows(corpus, "r") == LISTS
    assert rows(corpus, "v") == [[[x] * 3] for x in X]
    assert [t for i in range(len(sizes)) for t in corpus.read(i)["s"].samples()] == TEXTS
    assert corpus.lengths(np.array([0, 1, 7])).tolist() == [1, 1, 3]


def test_it_is_recognised_and_resumes(path):
    def make_source():
        corpus = fl.open_corpus(path)
        assert isinstance(corpus, fl.LanceDeserializer)
        return fl.MinibatchSource(corpus, shuffle=fl.Window(chunks=2), max_sweeps=2, seed=3)

    assert_resumes(make_source)


def test_single_rows_are_selected_in_any_order(path):
    corpus = fl.LanceDeserializer(path, streams=["x", "s"])
    ordinals = np.array([150, 3, 150, 199, 0])
    chosen = corpus.select(ordinals)
    assert chosen["x"].rows.tolist() == ordinals.tolist()
    assert chosen["s"].samples() == [TEXTS[i] for i in ordinals]
    with pytest.raises(IndexError, match="200"):
        corpus.select(np.array([200]))


def test_a_version_stays_as_it_is_while_the_table_changes(path):
    before = fl.LanceDeserializer(path, ["x", "s"])
    digest, state = before.digest(), fl.MinibatchSource(before, seed=1).state_dict()
    changed = lance.dataset(path)
    changed.add_columns({"y": "x * 2"})
    with_column = fl.LanceDeserializer(path, ["x", "s"])
    assert (with_column.version, with_column.digest()) == (2, digest)  # columns that are not read change nothing
    assert rows(fl.LanceDeserializer(path, ["y"]), "y") == [[2 * x] for x in X]
    lance.dataset(path).delete("x % 3 = 1")
    after = fl.LanceDeserializer(path, ["x", "s"])
    assert rows(after) == [[x] for x in X if x % 3 != 1]
    assert after.select(np.array([1, 2]))["x"].rows.tolist() == [2, 3]
    assert after.digest() != digest
    assert rows(before) == rows(fl.LanceDeserializer(path, ["x"], version=1)) == [[x] for x in X]
    assert pickle.loads(pickle.dumps(before)).version == 1
    fl.MinibatchSource(fl.LanceDeserializer(path, ["x", "s"], version=1), seed=1).load_state_dict(state)
    with pytest.raises(fl.StateError):
        fl.MinibatchSource(after, seed=1).load_state_dict(state)


def test_nulls_are_unreadable_or_filled(tmp_path):
    holes = pa.table({"n": pa.array([1.0, None, 3.0], pa.float32()), "x": [0, 1, 2]})
    lance.write_dataset(holes, tmp_path / "a.lance")
    corpus = fl.LanceDeserializer(tmp_path / "a.lance")
    assert list(corpus.read(0).errors) == [1]
    error = corpus.select(np.array([2, 1])).errors[1]
    assert error.sequence == 1
    assert "missing=" in str(error)
    filled = fl.LanceDeserializer(tmp_path / "a.lance", {"n": fl.Stream((), missing=-1, mask=True)})
    assert filled.read(0)["n"].rows.tolist() == [1, -1, 3]
    assert filled.read(0)["n_present"].rows.tolist() == [True, False, True]


def test_forked_children_read_too(path):
    corpus = fl.LanceDeserializer(path, ["x"])
    corpus.read(0)

    assert Forked(lambda: corpus.read(1)["x"].rows.tolist() == X[70:140].tolist()).status() == 0


def test_damage_is_an_error_that_names_the_table(path):
    whole = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    rng = random.Random(4)
    errors = []
    for _ in range(30):
        file = rng.choice(sorted(whole))
        data = bytearray(whole[file])
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        else:
            for _ in range(rng.choice([1, 30])):
                data[rng.randrange(len(data))] = rng.randrange(256)
        file.write_bytes(data)
        try:
            corpus = fl.LanceDeserializer(path, ["x", "s", "r"], memory=1 << 20)
            for i in range(len(corpus.chunks())):
                corpus.read(i)
        except (fl.DataError, fl.SchemaError) as error:
            errors.append(error)
        file.write_bytes(whole[file])
    # Not each: lance has no checksums.
    assert any(isinstance(error, fl.DataError) for error in errors)
    assert [error for error in errors if str(path) not in str(error)] == []
    assert rows(fl.LanceDeserializer(path, ["x"])) == [[x] for x in X]


def test_a_place_beyond_a_data_file_is_an_error_before_lance_reads_there(path):
    file = path / "data" / lance.dataset(path).get_fragments()[0].metadata.files[0].path
    data = file.read_bytes()
    (begin,) = struct.unpack_from("<Q", data, len(data) - 40)
    places = begin + 45  # of the first page, behind the encoding of its column
    lengths = places + 2 + data[places + 1]
    assert (data[places], data[lengths]) == (0x0A, 0x12)
    for change in (b"\xff" * data[lengths + 1], b"\xff\x7f" + bytes(data[lengths + 1] - 2)):
        file.write_bytes(data[: lengths + 2] + change + data[lengths + 2 + len(change) :])
        with pytest.raises(fl.DataError, match="expected a data file of Lance, but ") as caught:
            fl.LanceDeserializer(path, ["x"]).read(0)
        assert str(file) in str(caught.value)
        assert fl.LanceDeserializer(path, ["x"]).read(1)["x"].rows.tolist() == X[70:140].tolist()
    file.write_bytes(data[:-9] + b"\xff" + data[-8:])
    with pytest.raises(fl.DataError, match="a table has"):
        fl.LanceDeserializer(path, ["x"]).select(np.array([3]))


@pytest.mark.parametrize(("form", "stream"), [("2.0", "s"), ("2.0", "r"), ("legacy", "s")])
def test_offsets_out_of_order_are_an_error_before_lance_allocates_for_them(tmp_path, form, stream):
    path = tmp_path / "a.lance"
    lance.write_dataset(table(), path, max_rows_per_file=70, data_storage_version=form)
    assert rows(fl.LanceDeserializer(path), "r") == LISTS
    file = path / "data" / lance.dataset(path).get_fragments()[0].metadata.files[0].path
    data = file.read_bytes()
    ends = np.cumsum([len(items) for items in (LISTS[:70] if stream == "r" else map(str.encode, TEXTS))][:70])
    start = data.index("".join(TEXTS[:70]).encode()) if form == "legacy" else 0
    at = data.index((ends + start).astype("<i8").tobytes())
    for place, change in ((at + 80, b"\xff" * 8), (at + 87, b"\x10"), (at + 80, bytes(8))):
        file.write_bytes(changed(data, place, change))
        with pytest.raises(fl.DataError, match="are not in order") as caught:
            fl.LanceDeserializer(path, [stream]).read(0)
        assert str(file) in str(caught.value)
    assert fl.LanceDeserializer(path, ["x"]).read(1)["x"].rows.tolist() == X[70:140].tolist()


def test_offsets_of_nulls_dictionaries_and_nested_lists_of_old_files_are_in_order(tmp_path):
    texts = [None if i % 3 == 0 else f"text {i % 5}" * 9 for i in range(COUNT)]
    nested = [None if i % 4 == 0 else [[f"a{i}"], []][: i % 3] for i in range(COUNT)]
    columns = {
        "s": texts,
        "code": pa.array(texts).dictionary_encode(),
        "none": pa.array([None] * COUNT, pa.string()),
        "empty": [""] * COUNT,
        "deep": [None if rows is None else [len(row) for row in rows] for rows in nested],
        "nested": nested,
        "long": [f"{i} and more " * 30 for i in range(COUNT)],
    }
    lance.write_dataset(pa.table(columns), tmp_path / "a.lance", max_rows_per_group=30, data_storage_version="2.0")
    lance.dataset(tmp_path / "a.lance").add_columns({"later": "s || 'x'"})
    lance.dataset(tmp_path / "a.lance").drop_columns(["empty"])
    streams = {name: fl.Stream((), "str", missing="-") for name in ("s", "code", "none", "later")}
    corpus = fl.LanceDeserializer(tmp_path / "a.lance", streams)
    filled = [text or "-" for text in texts]
    assert corpus.read(0)["s"].samples() == corpus.read(0)["code"].samples() == filled
    assert corpus.read(0)["none"].samples() == ["-"] * COUNT
    assert corpus.read(0)["later"].samples() == [text + "x" if text else "-" for text in texts]


def test_old_files_of_the_first_format_with_later_columns_are_read(tmp_path):
    path = tmp_path / "a.lance"
    texts = pa.table({"a": TEXTS, "s": [{"b": text, "c": i} for i, text in enumerate(TEXTS)], "x": X})
    lance.write_dataset(texts, path, max_rows_per_group=30, data_storage_version="legacy")
    lance.dataset(path).add_columns({"later": "a || 'x'"})
    lance.dataset(path).drop_columns(["a"])
    corpus = fl.LanceDeserializer(path, ["later", "s.b"])
    assert corpus.read(0)["later"].samples() == [text + "x" for text in TEXTS]
    assert corpus.read(0)["s.b"].samples() == TEXTS


def test_a_damaged_file_of_deleted_rows_is_named(path):
    lance.dataset(path).delete("x = 7 or x = 9")
    (file,) = (path / "_deletions").iterdir()
    whole = file.read_bytes()
    with pa.ipc.open_file(file) as reader:
        at = whole.index(struct.pack("<II", *reader.get_batch(0).column(0).to_pylist()))
    head = whole.index(struct.pack("<qqq", 192, 192, 128)) + 8  # of the batch, in the footer
    body = head + 8
    for damaged, message in (
        (whole[:-20], "as it begins"),
        (changed(whole, head, struct.pack("<q", 196)), "of 196 and 128 bytes, which has 192 and 128"),
        (changed(whole, body, struct.pack("<q", 1 << 40)), "of 192 and 1099511627776 bytes"),
        (changed(whole, at - 8, struct.pack("<q", 1 << 40)), "decodes to"),
        (changed(whole, at, struct.pack("<II", 7, 7)), "expected 2 deleted rows, each below 70, got 1, up to 7"),
        (changed(whole, at, struct.pack("<II", 7, 70)), "got 2, up to 70"),
        (whole.replace(b"row_id", b"row_is"), "row_is"),
    ):
        file.write_bytes(damaged)
        with pytest.raises(fl.DataError, match=message) as caught:
            fl.LanceDeserializer(path)
        assert str(file) in str(caught.value)


def test_deleted_rows_of_any_fragment_are_checked_again_before_the_first_read(path):
    lance.dataset(path).delete("x % 70 = 7")
    corpus = fl.LanceDeserializer(path, ["x"])
    file = path / lance.dataset(path).get_fragments()[0].deletion_file()
    whole = file.read_bytes()
    file.write_bytes(changed(whole, whole.index(struct.pack("<qqq", 192, 192, 128)) + 16, struct.pack("<q", 1 << 40)))
    with pytest.raises(fl.DataError, match=file.name):
        corpus.read(2)
    file.write_bytes(whole)
    assert corpus.read(2)["x"].rows.tolist() == [x for x in X[140:].tolist() if x % 70 != 7]


def changed(data, at, change):
    return data[:at] + change + data[at + len(change) :]


def write_bitmap(path, deleted):
    """Write a table, most rows of which are deleted, and return the file that says so: a bitmap."""
    lance.write_dataset(pa.table({"x": np.arange(70_000, dtype=np.int32)}), path)
    lance.dataset(path).delete(deleted)
    (file,) = (path / "_deletions").iterdir()
    assert file.suffix == ".bin"
    return file


def test_deleted_rows_in_a_bitmap_are_counted_before_lance_reads_them(tmp_path):
    path = tmp_path / "a.lance"
    file = write_bitmap(path, "x < 69900 and x % 100 != 5")  # bits of two containers: 65,536 rows and the others
    left = [[x] for x in range(70_000) if x >= 69_900 or x % 100 == 5]
    assert rows(fl.LanceDeserializer(path)) == left
    whole = file.read_bytes()
    count, bits = int.from_bytes(whole[4:8], "little"), 8 + 2 * 8
    assert (count, len(whole)) == (2, bits + 2 * 8192)
    for damaged, message in (
        (whole[:-1], "buffer is smaller|of 16407"),
        (whole + b"x", "end at byte 16408 of 16409"),
        (changed(whole, 0, b"x"), "it begins with"),
        (changed(whole, 4, b"\xff" * 4), "has 4294967295 containers"),
        (changed(whole, 4, b"\1"), "its 1 containers"),
        (changed(whole, 12, b"\0\0"), "its 2 containers"),  # the key of the second
        (changed(whole, 12, b"\2\0"), "each below 70000, got .* up to 1"),
        (changed(whole, 10, b"\0\0"), "containers end at|got"),  # the size of the first
        (changed(whole, len(whole) - 1, b"\x80"), "up to 131071"),
    ):
        file.write_bytes(damaged)
        with pytest.raises(fl.DataError, match=message) as caught:
            fl.LanceDeserializer(path)
        assert str(file) in str(caught.value)


def test_deleted_rows_in_runs_and_sorted_numbers_are_read(tmp_path):
    path = tmp_path / "a.lance"
    file = write_bitmap(path, "x < 6000 or x % 1000 = 999")
    left = [[x] for x in range(70_000) if x >= 6_000 and x % 1000 != 999]
    assert rows(fl.LanceDeserializer(path)) == left
    first, second = ([*range(6_000), *range(6_999, 1 << 16, 1000)], range(65_999 - (1 << 16), 70_000 - (1 << 16), 1000))
    runs = [(0, 5_999), *((x, 0) for x in first[6_000:])]
    header = struct.pack("<HHBHHHH", 12347, 1, 0b01, 0, len(first) - 1, 1, len(second) - 1)
    containers = struct.pack(f"<H{2 * len(runs)}H", len(runs), *sum(runs, ())), struct.pack(f"<{len(second)}H", *second)
    file.write_bytes(header + b"".join(containers))
    assert rows(fl.LanceDeserializer(path)) == left


def test_more_chunks_than_can_be_listed_are_refused(tmp_path):
    lance.write_dataset(pa.table({"x": np.zeros((1 << 20) + 1, np.int8)}), tmp_path / "a.lance")
    with pytest.raises(fl.DataError, match="at most 1048576 chunks"):
        fl.LanceDeserializer(tmp_path / "a.lance", chunk_sequences=1)


def test_what_is_refused(tmp_path, path):
    with pytest.raises(fl.DataError, match="versions"):
        fl.LanceDeserializer(path, version=9)
    with pytest.raises(fl.DataError, match="none"):
        fl.LanceDeserializer(tmp_path / "none")
    with pytest.raises(fl.SchemaError, match="'y'"):
        fl.LanceDeserializer(path, ["y"])
    with pytest.raises(fl.DataError, match="at most 100 bytes"):
        fl.LanceDeserializer(path, ["x"], memory=100).read(0)
    lance.write_dataset(table(0), tmp_path / "empty.lance")
    with pytest.raises(fl.DataError, match="at least one row"):
        fl.LanceDeserializer(tmp_path / "empty.lance", ["x"])
