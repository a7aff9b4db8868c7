"""Compressed tar archives: the sequences of the plain ones, and damage that costs what cannot be decompressed."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import tarfile
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

import feedline as fl
from feedline.testing import assert_resumes, sequences_of
from tests.cli.shell import feedline
from tests.feed.formats.test_tar import member

COUNT, PIECE = 60, 750_000
STREAMS = {"x": fl.Stream(dtype="bytes", field="bin"), "y": fl.Stream((), "int64", field="cls")}
KEYED = {**STREAMS, "key": fl.Stream(dtype="str", field="__key__")}


def zstd(data):
    return pa.compress(data, codec="zstd", asbytes=True)


def streamed(data):
    """One frame of Zstandard, without the size of its content."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def in_pieces(pack):
    return lambda data: b"".join(pack(data[i : i + PIECE]) for i in range(0, len(data), PIECE))


PACKINGS = {
    "tar.gz": lambda data: gzip.compress(data, 1),
    "tgz": lambda data: gzip.compress(data, 1),
    "members.tar.gz": in_pieces(lambda data: gzip.compress(data, 1)),
    "tar.zst": in_pieces(zstd),
    "streamed.tar.zst": in_pieces(streamed),
    "tar.zstd": zstd,
}


def archive_of(first, end):
    """A tar archive of samples of 100 kB, which compress to about half."""
    rng, sink = np.random.default_rng(first), io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for i in range(first, end):
            member(archive, f"d/{i:04}.bin", rng.integers(0, 16, 100_000 + i, np.uint8).tobytes())
            member(archive, f"d/{i:04}.cls", b"%d" % i)
    return sink.getvalue()


@pytest.fixture(scope="module")
def texts():
    """The bytes of two archives."""
    return archive_of(0, COUNT // 2), archive_of(COUNT // 2, COUNT)


@pytest.fixture(scope="module")
def plain(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("plain")
    for k, text in enumerate(texts):
        (folder / f"{k}.tar").write_bytes(text)
    return folder


@pytest.fixture(scope="module", params=PACKINGS)
def folder(request, tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("packed")
    for k, text in enumerate(texts):
        (folder / f"{k}.{request.param}").write_bytes(PACKINGS[request.param](text))
    return folder


def opened(path, **options):
    return fl.TarDeserializer(path, KEYED, chunk_size=1_000_000, **options)


def delivered(corpus, **options):
    return sequences_of(fl.MinibatchSource(corpus, **{"max_sweeps": 1, **options}).minibatches(7))


def test_equals_the_plain_archive(folder, plain):
    ours, theirs = opened(folder), opened(plain)
    assert ours.schema == theirs.schema
    assert ours.chunks() == theirs.chunks()
    np.testing.assert_array_equal(ours.keys(np.arange(COUNT)), theirs.keys(np.arange(COUNT)))
    for options in ({"shuffle": True}, {"shuffle": False}, {"shuffle": fl.Window(chunks=3)}):
        runs = [delivered(corpus, seed=3, max_sweeps=2, **options) for corpus in (ours, theirs)]
        assert runs[0] == runs[1]
    picked = np.random.default_rng(1).permutation(COUNT)[:20]
    for corpus in (ours, pickle.loads(pickle.dumps(ours))):
        chunk, expected = corpus.select(picked), theirs.select(picked)
        assert not chunk.errors
        for name in KEYED:
            assert chunk.values[name].tolist() == expected.values[name].tolist()


def test_is_opened_by_its_path_and_infers_streams(folder, plain):
    path = min(folder.iterdir())
    corpus = fl.open_corpus(path)
    assert set(corpus.schema) == {"bin", "cls"}
    assert corpus.digest() != fl.open_corpus(plain / "0.tar").digest()
    assert corpus.read(0).values["cls"].tolist() == list(range(COUNT // 2))
    for what in (folder, folder / f"*{path.name.partition('.')[2]}", sorted(folder.glob("[01].*[!x]"))):
        assert sum(info.sequences for info in fl.open_corpus(what).chunks()) == COUNT


def test_resumes(tmp_path, texts):
    path = tmp_path / "a.tar.gz"
    path.write_bytes(PACKINGS["members.tar.gz"](texts[0]))
    assert_resumes(lambda: fl.MinibatchSource(opened(path), seed=4, max_sweeps=2), sizes=(3, 20), minibatches=3)


def test_two_workers_then_three(tmp_path, texts):
    for k, (text, packing) in enumerate(zip(texts, ("tar.gz", "tar.zst"), strict=True)):
        (tmp_path / f"{k}.{packing}").write_bytes(PACKINGS[packing](text))
    loaders = [
        fl.DataLoader(opened(tmp_path), batch_size=6, shuffle=True, seed=2, num_workers=workers, collate_fn=list)
        for workers in (0, 2, 3)
    ]
    expected = [row["y"] for batch in loaders[0] for row in batch]
    assert sorted(expected) == list(range(COUNT))
    rows, state = [], None
    for loader, batches in zip(loaders[1:], (3, COUNT), strict=True):
        if state is not None:
            loader.load_state_dict(state)
        for _, batch in zip(range(batches), loader, strict=False):
            rows += [row["y"] for row in batch]
            state = json.loads(json.dumps(loader.state_dict()))
    assert rows == expected


def test_inspected_and_converted(tmp_path, texts):
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(texts[0], 1))
    shown = json.loads(feedline("inspect", tmp_path / "a.tar.gz", "--json").stdout)
    assert (shown["format"], shown["sequences"]) == ("tar", COUNT // 2)
    assert fl.convert(tmp_path / "a.tar.gz", tmp_path / "store").sequences == COUNT // 2
    (tmp_path / "a.tar").write_bytes(texts[0])
    stored, archived = (fl.open_corpus(tmp_path / name) for name in ("store", "a.tar"))
    assert delivered(stored, shuffle=False) == delivered(archived, shuffle=False)


def test_a_single_large_frame_is_unpacked_to_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for i in range(5):
            member(archive, f"{i}.bin", bytes([i]) * (7 << 20))
            member(archive, f"{i}.cls", b"%d" % i)
    (tmp_path / "a.tar.zst").write_bytes(streamed((tmp_path / "a.tar").read_bytes()))
    with pytest.raises(fl.DataError, match="frames of at most"):
        fl.TarDeserializer(tmp_path / "a.tar.zst", STREAMS, cache=False)
    with pytest.raises(fl.DataError, match=r"at most 1000 bytes of unpacked text \(unpack\)"):
        fl.TarDeserializer(tmp_path / "a.tar.zst", STREAMS, unpack=1000)
    corpus = fl.open_corpus(tmp_path / "a.tar.zst", streams=STREAMS)
    assert delivered(corpus) == delivered(fl.open_corpus(tmp_path / "a.tar", streams=STREAMS))
    assert corpus.paths() == [str(tmp_path / "a.tar.zst")]


# ---- damage -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", ["tar.gz", "tar.zst"])
def test_damage_after_indexing_costs_the_samples_that_it_hits(tmp_path, texts, packing):
    path = tmp_path / f"a.{packing}"
    content = PACKINGS[packing](texts[0])
    path.write_bytes(content)
    corpus = opened(path)
    status = path.stat()
    damaged = bytearray(content)
    damaged[len(content) // 2] ^= 0x55
    path.write_bytes(damaged)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(fl.DataError, match=f"expected intact {'gzip' if 'gz' in packing else 'zstd'}") as caught:
        delivered(corpus)
    assert caught.value.path == str(path)
    assert 0 <= caught.value.byte <= len(content) // 2
    quarantine = tmp_path / "bad.jsonl"
    source = fl.MinibatchSource(corpus, max_sweeps=1, shuffle=False, on_error=fl.Quarantine(quarantine))
    labels = [y for m in source.minibatches(5) for y in m["y"].tolist()]
    lost = sorted(set(range(COUNT // 2)) - set(labels))
    assert labels == [y for y in range(COUNT // 2) if y not in lost]
    assert 0 < len(lost) <= 23  # of 30: a span has at least 2 MiB of text, three frames
    assert lost == list(range(lost[0], lost[-1] + 1))
    assert [json.loads(line)["sequence"] for line in quarantine.read_text().splitlines()] == lost
    chosen = corpus.select(np.arange(COUNT // 2))
    assert sorted(chosen.errors) == lost


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("damage", ["truncated", "garbage behind it", "a byte"])
def test_a_damaged_stream_ends_with_an_error_that_names_the_byte(tmp_path, texts, packing, damage):
    content = bytearray(PACKINGS[packing](texts[0][:1_600_000]))
    if damage == "truncated":
        del content[len(content) * 2 // 3 :]
    elif damage == "garbage behind it":
        content += b"garbage" * 9
    elif "gz" in packing:
        content[len(content) // 2] ^= 0xFF
    else:
        content[5:9] = b"\xff\xff\xff\xff"  # in the head of the first frame, which need not have a checksum
    path = tmp_path / f"a.{packing}"
    path.write_bytes(content)
    with pytest.raises(fl.DataError, match="expected intact") as caught:
        fl.TarDeserializer(path, STREAMS)
    assert caught.value.path == str(path)
    assert 0 <= caught.value.byte <= len(content)


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_cut_archive_in_an_intact_stream_costs_its_last_sample(tmp_path, texts, packing):
    for size in (1_600_000, 1_600_001, 600):
        for name, content in (("a.tar", texts[0][:size]), (f"a.{packing}", PACKINGS[packing](texts[0][:size]))):
            (tmp_path / name).write_bytes(content)
        reports = []
        for name in ("a.tar", f"a.{packing}"):
            corpus = opened(tmp_path / name)
            errors = [e for k in range(len(corpus.chunks())) for e in corpus.read(k).errors.values()]
            reports.append([(error.sequence, error.byte, error.what) for error in errors])
        assert reports[0] == reports[1]
        assert len(reports[0]) == 1


def test_members_that_cannot_be_read_are_named_by_their_place_in_the_archive(tmp_path):
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        member(archive, "0.bin", b"1")
        member(archive, "1.bin", type=tarfile.SYMTYPE, linkname="0.bin")
    with pytest.raises(fl.DataError, match="got a link, in the decompressed archive") as caught:
        fl.TarDeserializer(tmp_path / "a.tar.gz", x=fl.Stream(dtype="bytes", field="bin"))
    assert caught.value.byte == 1024
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress(b"no archive " * 100))
    with pytest.raises(fl.DataError, match="expected a tar header"):
        fl.TarDeserializer(tmp_path / "b.tar.gz", x=fl.Stream(dtype="bytes", field="bin"))


@pytest.mark.parametrize("packing", ["tar.gz", "tar.zst"])
@pytest.mark.parametrize("bomb", ["zeros", "a member", "extended headers"])
def test_what_expands_takes_the_memory_of_a_window(tmp_path, packing, bomb):
    """A sample that is larger than the memory is refused, and what belongs to no sample is not kept."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as archive:
        if bomb == "a member":
            member(archive, "0.bin", bytes(64 << 20))
        elif bomb == "extended headers":
            for _ in range(64):
                info = tarfile.TarInfo("0.txt")
                info.type, info.size = tarfile.XHDTYPE, 1 << 20
                archive.addfile(info, io.BytesIO(b"1048576 comment=".ljust((1 << 20) - 1, b"c") + b"\n"))
        member(archive, "1.bin", b"1")
    text = sink.getvalue() + (bytes(64 << 20) if bomb == "zeros" else b"")
    (tmp_path / f"a.{packing}").write_bytes(PACKINGS[packing](text))
    del text, sink
    tracemalloc.start()
    try:
        corpus = fl.TarDeserializer(tmp_path / f"a.{packing}", memory=1 << 20, x=fl.Stream(dtype="bytes", field="bin"))
        for k in range(len(corpus.chunks())):
            if bomb != "zeros" and k == 0:
                with pytest.raises(fl.DataError, match=r"at most 1048576 bytes decoded at once \(memory\)"):
                    corpus.read(k)
            else:
                assert corpus.read(k).values["x"].tolist() == [b"1"]
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()
