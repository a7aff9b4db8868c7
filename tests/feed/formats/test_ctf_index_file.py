"""The stored index: used when it fits, built again when it does not, never trusted, written atomically."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline import _native
from feedline.feed.formats.indexed import file_index as ctf_index
from feedline.feed.formats.indexed.file_index import CHUNK, ENTRY, Header
from tests import warm
from tests.effort import examples
from tests.inside import index_builds

STREAMS = {"x": fl.Stream(2)}
TEXT = "".join(f"{i} |x {i} {i}\n" + (f"{i} |x 7 7\n" if i % 3 == 0 else "") for i in range(200))


def open_corpus(path, **options):
    return fl.CTFDeserializer(path, STREAMS, chunk_size=500, **options)


def content(corpus):
    return [corpus.read(i)["x"].rows.tolist() for i in range(len(corpus.chunks()))]


def index_files(folder):
    return sorted(folder.glob("*.feedline-index"))


def debris(folder):
    return [p.name for p in folder.rglob("*.tmp")]


@pytest.fixture
def builds(monkeypatch):
    """Counts how often an index is built."""
    return index_builds(monkeypatch)


def test_is_built_once(text_file, builds):
    path = text_file(TEXT)
    first = open_corpus(path)
    second = open_corpus(path)
    assert len(builds) == 1
    assert content(first) == content(second)
    assert first.digest() == second.digest()
    assert first.chunks() == second.chunks()
    (file,) = index_files(path.parent)
    assert file.name.startswith("data.ctf.")
    assert debris(path.parent) == []


def test_does_not_depend_on_the_streams_unless_they_define_the_size(text_file, builds):
    path = text_file("|x 1 |y 1\n|y 2 |x 2\n")
    fl.CTFDeserializer(path, x=fl.Stream(1))
    fl.CTFDeserializer(path, y=fl.Stream(1), z=fl.Stream(1, field="x"))
    assert len(builds) == 1
    fl.CTFDeserializer(path, x=fl.Stream(1, defines_size=True))
    fl.CTFDeserializer(path, z=fl.Stream(1, field="x", defines_size=True))
    assert len(builds) == 2
    fl.CTFDeserializer(path, x=fl.Stream(1), lenient=True)
    fl.CTFDeserializer(path, x=fl.Stream(1), skip_sequence_ids=True)
    fl.CTFDeserializer(path, x=fl.Stream(1), chunk_size=5)
    assert len(builds) == len(index_files(path.parent)) == 5


@pytest.mark.parametrize("change", ["longer", "time", "head", "tail"])
def test_stale_index_is_rebuilt(text_file, builds, change):
    path = text_file(TEXT)
    open_corpus(path)
    before = path.stat()
    if change == "longer":
        path.write_text(TEXT + "900 |x 1 2\n")
    elif change == "time":
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    else:
        # Same size, same time: only the content differs.
        text = TEXT.replace("0 |x 0 0", "0 |x 5 5", 1) if change == "head" else TEXT[:-2] + "3\n"
        assert len(text) == len(TEXT)
        path.write_text(text)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    corpus = open_corpus(path)
    assert len(builds) == 2
    assert content(corpus) == content(open_corpus(path, cache=False))


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=examples(75))
def test_flipped_bits_never_change_what_is_read(data, tmp_path):
    path = tmp_path / "data.ctf"
    if not path.exists():
        path.write_text(TEXT)
    good = open_corpus(path, cache=False)
    open_corpus(path)
    (file,) = index_files(tmp_path)
    raw = bytearray(file.read_bytes())
    kind = data.draw(st.sampled_from(["flip", "flip", "cut", "more", "zero"]))
    at = data.draw(st.integers(0, len(raw) - 1))
    if kind == "flip":
        raw[at] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "cut":
        del raw[at:]
    elif kind == "more":
        raw += bytes(at + 1)
    else:
        raw[at : at + 40] = bytes(len(raw[at : at + 40]))
    file.write_bytes(raw)
    corpus = open_corpus(path)
    assert corpus.chunks() == good.chunks()
    ordinals = np.array([0, 5, 199])
    assert corpus.lengths(ordinals).tolist() == good.lengths(ordinals).tolist()
    assert content(corpus) == content(good)
    assert debris(tmp_path) == []


@pytest.mark.parametrize("part", ["header", "table"])
def test_every_byte_of_header_and_table_is_guarded(text_file, part):
    path = text_file(TEXT)
    good = open_corpus(path, cache=False)
    open_corpus(path)
    (file,) = index_files(path.parent)
    whole = file.read_bytes()
    table_bytes = len(good.chunks()) * CHUNK.itemsize
    places = range(128) if part == "header" else range(len(whole) - table_bytes, len(whole), 3)
    for at in places:
        raw = bytearray(whole)
        raw[at] ^= 1 << at % 8
        file.write_bytes(raw)
        corpus = open_corpus(path)
        assert (corpus.chunks(), corpus.digest()) == (good.chunks(), good.digest())
        assert file.read_bytes() == whole


HOSTILE = {
    "first offset": lambda e: (e["offset"].__setitem__(0, 1), e["size"].__setitem__(0, e["size"][0] - 1)),
    "offset behind the file": lambda e: e["offset"].__setitem__(3, 2**63),
    "size behind the file": lambda e: e["size"].__setitem__(-1, 2**32 - 1),
    "overlap": lambda e: e["size"].__setitem__(2, e["size"][2] + 5),
    "backwards": lambda e: e["offset"].__setitem__(slice(0, 2), e["offset"][1::-1].copy()),
    "samples": lambda e: e["samples"].__setitem__(0, 2**31),
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_hostile_entries_with_right_checksums_are_not_used(text_file, builds, attack):
    path = text_file(TEXT)
    good = content(open_corpus(path))
    (file,) = index_files(path.parent)
    raw = file.read_bytes()
    header = Header(*ctf_index._HEADER.unpack_from(raw))
    table_at = 128 + header.sequences * ENTRY.itemsize
    entries = np.frombuffer(raw[128:table_at], ENTRY).copy()
    table = np.frombuffer(raw[table_at:], CHUNK).copy()
    HOSTILE[attack](entries)
    first = np.concatenate([[0], np.cumsum(table["sequences"])]).astype(int)
    for i in range(len(table)):
        table["crc"][i] = _native.crc32c(entries[first[i] : first[i + 1]].tobytes())
    header = header._replace(table_crc=_native.crc32c(table.tobytes()))
    file.write_bytes(header.pack() + entries.tobytes() + table.tobytes())

    # The table now differs from a fresh index in its checksums, so reading raises an error. A new deserializer starts
    # from the repaired index, and is complete again.
    corpus = open_corpus(path)
    assert len(builds) == 1
    with pytest.raises(fl.DataError, match="has changed since"):
        content(corpus)
    assert content(open_corpus(path)) == good


def test_damage_found_late_is_repaired(text_file, builds):
    path = text_file(TEXT)
    good = content(open_corpus(path))
    (file,) = index_files(path.parent)
    raw = bytearray(file.read_bytes())
    raw[128 + 24 * 100] ^= 1
    file.write_bytes(raw)
    corpus = open_corpus(path)
    assert len(builds) == 1
    assert content(corpus) == good
    assert len(builds) == 2
    assert content(open_corpus(path)) == good
    assert len(builds) == 2


@pytest.mark.parametrize("where", [0, 8, 11, 15, 16, 19, 20])
@pytest.mark.parametrize("bit", [1, 64])
def test_an_index_that_is_changed_in_place_while_it_is_in_use(text_file, where, bit):
    """Unsupported, but the sequences are right, as they are searched for again."""
    path = text_file(TEXT)
    good = open_corpus(path, cache=False)
    which = np.array([7, 3, 150])
    expected = content(good), [s.tolist() for s in good.select(which)["x"]], good.lengths(which).tolist()

    def answers(corpus):
        return content(corpus), [s.tolist() for s in corpus.select(which)["x"]], corpus.lengths(which).tolist()

    corpus = open_corpus(path)
    assert answers(corpus) == expected
    (file,) = index_files(path.parent)
    at = 128 + 24 * 7 + where
    with file.open("r+b") as index:
        index.seek(at)
        (byte,) = index.read(1)
        index.seek(at)
        index.write(bytes([byte ^ bit]))
    for _ in range(2):
        assert answers(corpus) == expected


def test_an_index_that_changes_between_the_check_and_the_use(text_file, monkeypatch):
    path = text_file(TEXT)
    corpus = open_corpus(path)

    def changed(self, chunk):
        entries = real(self, chunk).copy()
        entries["size"][3] = 2**31
        return entries

    real = ctf_index.TextIndex.entries
    monkeypatch.setattr(ctf_index.TextIndex, "entries", changed)
    with pytest.raises(fl.DataError, match=r"an unchanging index.*outside the text") as caught:
        corpus.read(0)
    assert caught.value.path == str(path)


# ---------------------------------------------------------------------------------------------- places


def test_cache_folder(text_file, tmp_path, builds):
    path = text_file(TEXT)
    folder = tmp_path / "deep" / "cache"
    for _ in range(2):
        corpus = open_corpus(path, cache=folder)
    assert len(builds) == 1
    assert len(index_files(folder)) == 1
    assert index_files(path.parent) == []
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert content(corpus) == content(open_corpus(path, cache=False))
    other = path.with_name("other") / "data.ctf"
    other.parent.mkdir()
    other.write_text(TEXT)
    open_corpus(other, cache=folder)
    assert len(index_files(folder)) == 2


def test_cache_folder_of_others_is_refused(text_file, tmp_path):
    path = text_file(TEXT)
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(fl.DataError, match="only you can write") as caught:
        open_corpus(path, cache=folder)
    assert "cache=" in caught.value.hint


def test_without_cache_nothing_is_left(text_file, builds):
    path = text_file(TEXT)
    assert content(open_corpus(path, cache=False)) == content(open_corpus(path, cache=False))
    assert len(builds) == 2
    assert [p.name for p in path.parent.iterdir()] == ["data.ctf"]


def test_read_only_folder_falls_back_to_the_users_cache(mounted, tmp_path, monkeypatch, builds):
    folder = mounted("size=1m,mode=755")
    path = folder / "data.ctf"
    path.write_text(TEXT)
    mounted("ro")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    for _ in range(2):
        corpus = open_corpus(path)
    assert len(builds) == 1
    assert len(index_files(tmp_path / "xdg" / "feedline")) == 1
    assert stat.S_IMODE((tmp_path / "xdg" / "feedline").stat().st_mode) == 0o700
    assert content(corpus) == content(open_corpus(path, cache=False))
    with pytest.raises(fl.DataError, match="expected to write an index"):
        open_corpus(path, cache=folder)


def test_a_folder_in_the_place_of_the_index(text_file, tmp_path, monkeypatch):
    """The file is not touched: the index goes to the user's cache, or if no other folder is allowed, it is an error."""
    path = text_file(TEXT)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    expected = content(open_corpus(path))
    (index,) = index_files(path.parent)
    index.unlink()
    index.mkdir()
    assert content(open_corpus(path)) == expected
    assert index.is_dir()
    assert len(index_files(tmp_path / "cache" / "feedline")) == 1
    own = tmp_path / "own"
    open_corpus(path, cache=own)
    (index,) = index_files(own)
    index.unlink()
    index.mkdir()
    with pytest.raises(fl.DataError, match="expected to write an index to"):
        open_corpus(path, cache=own)
    assert debris(tmp_path) == []


def test_full_disk_is_an_error_without_debris(mounted, tmp_path):
    folder = mounted("size=16k,mode=700")
    path = tmp_path / "data.ctf"
    path.write_text("".join(f"|x {i} {i}\n" for i in range(5000)))
    with pytest.raises(fl.DataError, match="expected room for") as caught:
        open_corpus(path, cache=folder)
    assert "cache=" in caught.value.hint
    assert list(folder.iterdir()) == []


def test_file_size_limit_is_an_error_without_debris(tmp_path):
    """As a full disk, where mounting is not allowed."""
    path = tmp_path / "data.ctf"
    path.write_text("".join(f"|x {i} {i}\n" for i in range(5000)))
    code = (
        "import resource, sys, feedline as fl\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))\n"
        "try: fl.CTFDeserializer(sys.argv[1], x=fl.Stream(2))\n"
        "except fl.DataError as error: print(error.what)\n"
    )
    run = warm.run(["-c", code, str(path)], capture_output=True, text=True, check=True)
    assert "expected room for" in run.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["data.ctf"]


# ---------------------------------------------------------------------------------------------- building


def test_progress_and_interruption(text_file, monkeypatch):
    monkeypatch.setattr(ctf_index, "_BLOCK_BYTES", 256)
    path = text_file(TEXT)
    other = text_file(TEXT, "other.ctf")
    seen = []

    def stop_half_way(done, total):
        seen.append((done, total))
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_corpus(path, progress=stop_half_way)
    assert sorted(p.name for p in path.parent.iterdir()) == ["data.ctf", "other.ctf"]
    assert len(seen) > 2
    seen.clear()
    corpus = open_corpus([path, other], progress=lambda done, total: seen.append((done, total)))
    assert [total for _, total in seen] == [2 * len(TEXT)] * len(seen)
    done = [d for d, _ in seen]
    assert done == sorted(done)
    assert done[-1] == 2 * len(TEXT)
    assert content(corpus)[: len(corpus.chunks()) // 2] == content(open_corpus(path, cache=False))


def test_text_that_grows_while_it_is_indexed(text_file, monkeypatch):
    monkeypatch.setattr(ctf_index, "_BLOCK_BYTES", 256)
    path = text_file(TEXT)

    def grow(done, total):
        with path.open("a") as file:
            file.write("999 |x 1 1\n")

    with pytest.raises(fl.DataError, match="changes while it is indexed"):
        open_corpus(path, progress=grow)
    assert [p.name for p in path.parent.iterdir()] == ["data.ctf"]


@pytest.mark.slow
def test_several_processes_build_at_once(tmp_path):
    path = tmp_path / "data.ctf"
    path.write_text("".join(f"{i} |x {i} {i}\n" for i in range(60_000)))
    go = tmp_path / "go"
    code = (
        "import os, sys, time, feedline as fl\n"
        "print('ready', flush=True)\n"
        "while not os.path.exists(sys.argv[2]): time.sleep(0.001)\n"
        "c = fl.CTFDeserializer(sys.argv[1], x=fl.Stream(2), chunk_size=20000)\n"
        "print(c.digest(), sum(float(c.read(i)['x'].rows.sum()) for i in range(len(c.chunks()))))\n"
    )
    workers = [warm.Python(["-c", code, str(path), str(go)], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for worker in workers:
        assert worker.stdout.readline() == "ready\n"
    go.touch()
    answers = {worker.communicate()[0] for worker in workers}
    assert [worker.returncode for worker in workers] == [0] * 4
    assert len(answers) == 1
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix == ".tmp") == []
    assert len(index_files(tmp_path)) == 1


@pytest.mark.slow
def test_opening_holds_no_index(tmp_path):
    """Private memory does not grow with the number of sequences: 24 bytes of index each stay in the file."""
    path = tmp_path / "data.ctf"
    with path.open("w") as file:
        for _ in range(400):
            file.write("|x 1 1\n" * 10_000)  # 4 million sequences, 96 MB of index
    code = (
        "import sys, feedline as fl\n"
        "def private():\n"
        "    rows = dict(l.split(':', 1) for l in open('/proc/self/status') if ':' in l)\n"
        "    return int(rows['RssAnon'].split()[0]) // 1024\n"
        "before = private()\n"
        "c = fl.CTFDeserializer(sys.argv[1], x=fl.Stream(2), chunk_size=1 << 20)\n"
        "c.read(0); print(private() - before)\n"
    )
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    run = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 40


def test_points_that_the_index_has_no_room_for(text_file, builds):
    """A right checksum over a number of points that would take more memory than there is."""
    path = text_file(TEXT)
    open_corpus(path)
    (file,) = index_files(path.parent)
    raw = bytearray(file.read_bytes())
    head = Header(*ctf_index._HEADER.unpack_from(raw))
    raw[: ctf_index._HEADER_BYTES] = head._replace(points=2**40).pack()
    file.write_bytes(raw)
    open_corpus(path)
    assert len(builds) == 2
