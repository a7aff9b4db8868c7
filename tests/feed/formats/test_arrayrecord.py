"""ArrayRecord files, written by array_record: values, groups, random access, damage."""

from __future__ import annotations

import os
import pickle
import random

import numpy as np
import pytest

import feedline as fl
from feedline.testing import assert_resumes
from tests.forked import Forked

module = pytest.importorskip(
    "array_record.python.array_record_module", reason="array_record is not installed: the extra arrayrecord"
)

COUNT = 300
RECORDS = [random.Random(i).randbytes(i % 7 * 40) + b"%d" % i for i in range(COUNT)]
OPTIONS = ["group_size:1", "group_size:8", "group_size:8,uncompressed"]


def write(path, records=RECORDS, options="group_size:1"):
    writer = module.ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()
    return path


def records_of(corpus, stream="record"):
    return [record for i in range(len(corpus.chunks())) for record in corpus.read(i)[stream].samples()]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(("chunk_sequences", "sizes"), [(None, [300]), (100, [104, 104, 92]), (1000, [300])])
def test_chunks_are_whole_groups(tmp_path, options, chunk_sequences, sizes):
    corpus = fl.ArrayRecordDeserializer(write(tmp_path / "a", RECORDS, options), chunk_sequences=chunk_sequences)
    if options == "group_size:1" and chunk_sequences == 100:
        sizes = [100, 100, 100]
    assert [info.sequences for info in corpus.chunks()] == [info.samples for info in corpus.chunks()] == sizes
    assert records_of(corpus) == RECORDS


@pytest.fixture
def folder(tmp_path):
    """Two files with an empty one between them, as TensorFlow Datasets names them."""
    for number, part in enumerate((RECORDS[:120], [], RECORDS[120:])):
        write(tmp_path / f"set-train.array_record-0000{number}-of-00003", part, "group_size:4")
    (tmp_path / "features.json").write_text("{}")
    return tmp_path


def test_a_folder_is_recognised_and_resumes(folder):
    def make_source():
        corpus = fl.open_corpus(folder)
        assert isinstance(corpus, fl.ArrayRecordDeserializer)
        assert records_of(corpus) == RECORDS
        return fl.MinibatchSource(corpus, shuffle=fl.Window(chunks=2), max_sweeps=2, seed=3)

    assert_resumes(make_source)


@pytest.mark.parametrize("name", ["a.array_record", "a.arrayrecord", "a.bin", "a"])
def test_a_file_is_recognised_by_its_first_bytes(tmp_path, name):
    assert records_of(fl.open_corpus(write(tmp_path / name))) == RECORDS


def test_single_records_are_selected_in_any_order(folder):
    corpus = fl.ArrayRecordDeserializer(folder, {"x": fl.Stream(dtype="bytes", field="record")})
    ordinals = np.array([250, 3, 119, 250, 120, 0])
    assert corpus.select(ordinals)["x"].samples() == [RECORDS[i] for i in ordinals]
    assert corpus.select(ordinals[:0])["x"].samples() == []
    with pytest.raises(IndexError, match="300"):
        corpus.select(np.array([300]))


def test_copies_and_forked_children_read_the_same(folder):
    corpus = fl.ArrayRecordDeserializer(folder, chunk_sequences=50)
    other = pickle.loads(pickle.dumps(corpus))
    assert (other.digest(), records_of(other)) == (corpus.digest(), RECORDS)
    assert Forked(lambda: records_of(corpus) == RECORDS or 1 / 0).status() == 0
    write(sorted(folder.glob("*00000-of*"))[0], RECORDS[:119])
    assert fl.ArrayRecordDeserializer(folder).digest() != corpus.digest()


def test_a_damaged_record_costs_its_chunk(tmp_path):
    path = write(tmp_path / "a.array_record", RECORDS, "group_size:4,uncompressed")
    data = bytearray(path.read_bytes())
    data[data.index(RECORDS[153][5:])] ^= 1
    path.write_bytes(data)
    corpus = fl.ArrayRecordDeserializer(path, chunk_sequences=40)
    with pytest.raises(fl.DataError, match="hash mismatch") as caught:
        corpus.read(3)
    assert str(path) in str(caught.value)
    readable = [corpus.read(i)["record"].samples() for i in range(8) if i != 3]
    assert [record for records in readable for record in records] == RECORDS[:120] + RECORDS[160:]
    assert corpus.select(np.array([151, 156]))["record"].samples() == [RECORDS[151], RECORDS[156]]
    with pytest.raises(fl.DataError, match="hash mismatch"):
        corpus.select(np.array([1, 153]))


@pytest.mark.parametrize("options", OPTIONS)
def test_damage_is_an_error_and_never_another_record(tmp_path, options):
    path = write(tmp_path / "a.array_record", RECORDS, options)
    whole = path.read_bytes()
    used = [at for at in range(len(whole)) if whole[at]]
    footer = [at for at in used if at >= len(whole) - (64 << 10)]
    rng, errors = random.Random(4), list[fl.DataError]()
    for attempt in range(60):
        data = bytearray(whole)
        if attempt % 5 == 0:
            del data[rng.randrange(len(data)) :]
        for _ in range(rng.choice([1, 30])):
            at = rng.choice(footer if attempt % 2 else used)
            if at < len(data):
                data[at] = rng.randrange(256)
        path.write_bytes(data)
        try:
            corpus = fl.ArrayRecordDeserializer(path, chunk_sequences=40)
        except fl.DataError as error:
            errors.append(error)
            continue
        assert sum(info.sequences for info in corpus.chunks()) == COUNT
        for i in range(len(corpus.chunks())):
            try:
                assert corpus.read(i)["record"].samples() == RECORDS[40 * i :][:40]
            except fl.DataError as error:
                errors.append(error)
    assert len(errors) > 40
    assert [error for error in errors if str(path) not in str(error)] == []


def test_what_is_refused(tmp_path):
    path = write(tmp_path / "a.array_record")
    with pytest.raises(fl.DataError, match="none"):
        fl.ArrayRecordDeserializer(tmp_path / "none")
    (tmp_path / "text.array_record").write_bytes(b"text")
    with pytest.raises(fl.DataError, match="64KB"):
        fl.open_corpus(tmp_path / "text.array_record")
    with pytest.raises(fl.DataError, match="at least one record"):
        fl.ArrayRecordDeserializer(write(tmp_path / "empty", []))
    with pytest.raises(fl.DataError, match="at most 1000 bytes"):
        fl.ArrayRecordDeserializer(path, memory=1000).read(0)
    for streams in (
        {"x": fl.Stream(dtype="bytes")},
        {"record": fl.Stream(dtype="str")},
        {"record": fl.Stream(3)},
        {"record": fl.Stream(dtype="bytes"), "x": fl.Stream(dtype="bytes", field="record")},
    ):
        with pytest.raises(fl.SchemaError):
            fl.ArrayRecordDeserializer(path, streams)
    corpus = fl.ArrayRecordDeserializer(path)
    write(path, RECORDS[:10])
    with pytest.raises(fl.DataError, match="as it was when it was opened, got one that has changed since"):
        corpus.read(0)


def test_objects_are_fetched_whole(tmp_path):
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    memory = fsspec.filesystem("memory")
    memory.pipe("/arrayrecord/a.array_record", write(tmp_path / "a").read_bytes())
    corpus = fl.open_corpus("memory://arrayrecord", remote=fl.Remote(tmp_path / "cache"))
    assert records_of(corpus) == RECORDS
    assert corpus.select(np.array([7]))["record"].samples() == [RECORDS[7]]


@pytest.mark.parametrize("by", ["read", "select"])
def test_a_file_that_is_replaced_while_it_is_open_is_an_error(tmp_path, by):
    """It has as many records as before."""
    path = write(tmp_path / "a", [b"old %d" % i for i in range(20)])
    corpus = fl.ArrayRecordDeserializer(path)
    assert corpus.select(np.array([3]))["record"].samples() == [b"old 3"]
    later = path.stat().st_mtime_ns + 1_000_000  # clocks of file systems may be coarse
    os.replace(write(tmp_path / "b", [b"new %d" % i for i in range(20)]), path)
    os.utime(path, ns=(0, later))
    for _ in range(2):
        with pytest.raises(fl.DataError, match=r"(?s)expected the file as it was when it was opened.*open it again"):
            corpus.read(0) if by == "read" else corpus.select(np.array([3]))
