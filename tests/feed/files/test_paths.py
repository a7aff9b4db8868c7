"""How files are opened and replaced: regular ones alone, and nothing of a killed writer stays."""

from __future__ import annotations

import ast
import errno
import fcntl
import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import feedline as fl
from feedline.feed.files import atomic, cache_files
from feedline.feed.files.atomic import atomic_file
from feedline.feed.files.paths import open_file
from feedline.feed.formats.cntk.ctf_streams import infer_ctf_streams
from tests.inside import index_builds
from tests.warm import Python

# Waiting for a FIFO would last until then.
pytestmark = pytest.mark.timeout(60)

X = {"x": fl.Stream(2)}


# ---- regular files ------------------------------------------------------------------------------------


def make_fifo(path):
    os.mkfifo(path)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        here = os.getcwd()
        os.chdir(path.parent)  # its name may be longer than a socket's can be
        made.bind(path.name)
        os.chdir(here)


def make_device(path):
    path.symlink_to("/dev/zero")


READERS = {
    "ctf": ("a.ctf", lambda path: fl.CTFDeserializer(path, X)),
    "ctf without a cache": ("a.ctf", lambda path: fl.CTFDeserializer(path, X, cache=False)),
    "a guess": ("a.ctf", infer_ctf_streams),
    "any": ("a", fl.open_corpus),
    "parquet": ("a.parquet", fl.ParquetDeserializer),
    "npy": ("a.npy", fl.open_corpus),
    "npz": ("a.npz", fl.open_corpus),
    "csv": ("a.csv", fl.CSVDeserializer),
    "json lines": ("a.jsonl", fl.JSONLinesDeserializer),
    "tar": ("a.tar", fl.TarDeserializer),
    "arrow": ("a.arrow", fl.ArrowDeserializer),
    "hdf5": ("a.h5", fl.HDF5Deserializer),
    "zarr archive": ("a.zip", fl.ZarrDeserializer),
    "zarr": ("zarr.json", lambda path: fl.ZarrDeserializer(path.parent)),
    "converted csv": ("a.csv", lambda path: fl.convert(path, path.parent / "store")),
    "shuffled csv": ("a.csv", lambda path: fl.convert(path, path.parent / "store", shuffle=1)),
    "folder of npy": ("a.npy", lambda path: fl.open_corpus(path.parent)),
    "manifest": ("feedline.json", lambda path: fl.StoreDeserializer(path.parent)),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("make", [make_fifo, make_socket, make_device])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path, make, reader):
    name, read = READERS[reader]
    make(tmp_path / name)
    with pytest.raises(fl.DataError, match=r"it is a (FIFO|socket|device)|expected a folder with|got a link") as caught:
        read(tmp_path / name)
    assert caught.value.path in (str(tmp_path / name), str(tmp_path))


def test_a_fifo_that_takes_the_place_of_a_file_that_was_looked_at(tmp_path, monkeypatch):
    """Between the look and the opening it may become another."""
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "fifo")
    looks = [os.stat(tmp_path / "file"), os.stat(tmp_path / "fifo")]
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", lambda *_, **__: looks[0])
        with pytest.raises(fl.DataError, match="it is a FIFO"):
            open_file(tmp_path / "fifo")


def test_a_part_or_lengths_of_a_store_that_became_a_fifo(tmp_path):
    data = [np.ones(n, "f4") for n in (1, 2, 3)]
    for name in ("part-00000.arrow", "lengths-0.npy"):
        fl.convert(fl.ArrayDeserializer(x=data), tmp_path / "store", overwrite=True)
        store = fl.StoreDeserializer(tmp_path / "store")
        os.unlink(tmp_path / "store" / name)
        os.mkfifo(tmp_path / "store" / name)
        with pytest.raises(fl.DataError):
            store.read(0), store.lengths(np.arange(3))
        with pytest.raises(fl.DataError):
            fl.StoreDeserializer(tmp_path / "store")


def test_a_fifo_in_the_place_of_an_index_is_replaced(text_file):
    path = text_file("|x 1 2\n|x 3 4\n")
    fl.CTFDeserializer(path, X)
    (index,) = path.parent.glob("*.feedline-index")
    index.unlink()
    os.mkfifo(index)
    assert fl.CTFDeserializer(path, X).read(0)["x"].rows.tolist() == [[1, 2], [3, 4]]
    assert index.is_file()


def test_a_fifo_in_the_place_of_a_resolved_join_is_replaced(tmp_path):
    def join():
        return fl.Join(fl.ArrayDeserializer(x=[1, 2, 3]), fl.ArrayDeserializer(y=[4, 5, 6]), cache=tmp_path)

    join()
    (kept,) = tmp_path.iterdir()
    kept.unlink()
    os.mkfifo(kept)
    assert join().read(0)["y"].rows.tolist() == [4, 5, 6]
    assert kept.is_file()


def test_a_fifo_as_quarantine_is_refused(text_file, tmp_path):
    os.mkfifo(tmp_path / "listed")
    corpus = fl.CTFDeserializer(text_file("|x 1 2\n|x ?\n"), X)
    source = fl.MinibatchSource(corpus, shuffle=False, on_error=fl.Quarantine(tmp_path / "listed"))
    with pytest.raises(fl.DataError, match="cannot list unreadable sequence 1"):
        source.next_minibatch(2)


# Modules that open only their own files, by name.
EXEMPT = {
    "feed/conversion/shuffling.py": "its work folder",
    "feed/formats/store/combine.py": "stores that the same call has written",
    "feed/formats/store/staging.py": "/proc, and folders",
    "feed/formats/store/writer.py": "lengths that it has written",
    "feed/workers/copied_memory.py": "/proc",
    "feed/workers/limits.py": "/proc and /sys",
    "feed/remote/object_cache.py": "its own files, by descriptors that are open",
    "feed/formats/store/object_store_target.py": "stores that the same call has written",
    "feed/remote/stores.py": "files that the same call has written",
    "feed/remote/uploads.py": "files that the same call has written",
    "feed/remote/holders.py": "its own files, in a private folder",
    "feed/files/disk.py": "measures, and never waits for a FIFO",
    "feed/files/paths.py": "is the one place",
}


def test_nothing_in_the_feed_opens_files_for_reading_by_itself():
    """Only one function opens files, so that none can block on a FIFO."""
    root = Path(fl.__file__).parent
    found = []
    for path in sorted((root / "feed").rglob("*.py")):
        name = str(path.relative_to(root))
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or name in EXEMPT:
                continue
            called = ast.unparse(node.func)
            mode = next((ast.literal_eval(a) for a in node.args[1:2] if isinstance(a, ast.Constant)), "r")
            reads = called == "open" and not set(mode) & set("wax")
            reads |= called.endswith((".read_text", ".read_bytes", "OSFile", "memory_map"))
            reads |= (
                called.endswith("os.open") and "O_RDONLY" in ast.unparse(node) and "folder" not in ast.unparse(node)
            )
            if reads:
                found.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    assert found == []


# ---- writers that were killed -------------------------------------------------------------------------

KILLED = """
    import os, signal, sys
    from pathlib import Path
    from feedline.feed.files.atomic import atomic_file
    with atomic_file(Path(sys.argv[1])) as file:
        file.write(b"half")
        file.flush()
        if sys.argv[2] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        print("writing", flush=True)
        sys.stdin.readline()
"""


def writer(path, how):
    command = ["-c", textwrap.dedent(KILLED), str(path), how]
    return Python(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def temporary(folder):
    return sorted(p.name for p in folder.iterdir() if p.suffix == ".tmp")


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path):
    path = tmp_path / "data"
    with writer(path, "killed") as killed:
        killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert len(temporary(tmp_path)) == 1
    with atomic_file(tmp_path / "other") as file:
        file.write(b"whole")
    assert len(temporary(tmp_path)) == 1  # another name's
    with atomic_file(path) as file:
        file.write(b"whole")
    assert temporary(tmp_path) == []
    assert path.read_bytes() == b"whole"


def test_what_is_being_written_is_left_alone(tmp_path):
    path = tmp_path / "data"
    with writer(path, "slow") as slow:
        assert slow.stdout.readline() == b"writing\n"
        with atomic_file(path) as file:
            file.write(b"whole")
        assert len(temporary(tmp_path)) == 1
        assert path.read_bytes() == b"whole"
        slow.communicate(b"\n")
        assert slow.returncode == 0
    assert temporary(tmp_path) == []
    assert path.read_bytes() == b"half"


def test_files_of_others_and_of_other_names_stay(tmp_path):
    kept = [".data.tmp", ".data.12345678.txt", ".data.1234567.tmp", ".data.more.12345678.tmp", "data.12345678.tmp"]
    for name in kept:
        (tmp_path / name).touch()
    (tmp_path / ".data.abcdefgh.tmp").mkdir()
    (tmp_path / ".data.abcd_fgh.tmp").symlink_to(tmp_path / kept[0])
    os.mkfifo(tmp_path / ".data.abcde_gh.tmp")
    (tmp_path / ".data.abcdef_h.tmp").touch()
    before = set(os.listdir(tmp_path))
    with atomic_file(tmp_path / "data") as file:
        file.write(b"whole")
    assert before - set(os.listdir(tmp_path)) == {".data.abcdef_h.tmp"}


def test_a_writer_whose_new_file_was_taken_for_a_left_over_makes_another(tmp_path, monkeypatch):
    """Between making its file and locking it there is an instant."""
    real, taken = atomic.try_lock, []

    def lock(handle):
        if not taken:
            taken.append(True)
            with atomic_file(tmp_path / "data") as file:
                file.write(b"another's")
            assert temporary(tmp_path) == []
        return real(handle)

    monkeypatch.setattr(atomic, "try_lock", lock)
    with atomic_file(tmp_path / "data") as file:
        file.write(b"whole")
    assert (tmp_path / "data").read_bytes() == b"whole"
    assert temporary(tmp_path) == []


def test_without_locks_nothing_is_removed(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    (tmp_path / ".data.abcdefgh.tmp").touch()
    with atomic_file(tmp_path / "data") as file:
        file.write(b"whole")
    assert temporary(tmp_path) == [".data.abcdefgh.tmp"]


def test_a_killed_indexing_leaves_nothing_to_the_next(tmp_path):
    path = tmp_path / "data.ctf"
    path.write_text("|x 1 2\n" * 100)
    code = (
        "import os, signal, sys, feedline as fl\n"
        "kill = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "fl.CTFDeserializer(sys.argv[1], x=fl.Stream(2), progress=kill)\n"
    )
    run = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert run.returncode == -signal.SIGKILL
    assert len(temporary(tmp_path)) == 1
    fl.CTFDeserializer(path, X)
    assert temporary(tmp_path) == []


# ---- full disks ---------------------------------------------------------------------------------------


@pytest.fixture
def full_disk():
    """Limit files to 1000 bytes, to simulate a full disk where mounting is not allowed."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.parametrize("options", [{}, {"cache": False}, {"cache": "cache"}])
def test_an_index_without_room(text_file, tmp_path, request, options):
    path = text_file("|x 1 2\n" * 10_000)
    if options.get("cache"):
        options = {"cache": tmp_path / "cache"}
    request.getfixturevalue("full_disk")
    with pytest.raises(fl.DataError, match=r"expected room for .*index.* in .*got: File too large") as caught:
        fl.CTFDeserializer(path, X, **options)
    assert "cache=" in caught.value.hint
    assert temporary(tmp_path) == []


@pytest.mark.parametrize("kept", [True, False])
def test_a_join_without_room(tmp_path, request, kept):
    parts = [fl.ArrayDeserializer(**{name: np.arange(5000)}) for name in "xy"]
    request.getfixturevalue("full_disk")
    with pytest.raises(fl.DataError, match=r"expected room for .*feedline-join in .*got: File too large"):
        fl.Join(*parts, cache=tmp_path if kept else False)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("code", [28, 122])
def test_no_room_for_the_name_itself(tmp_path, monkeypatch, code):
    """No inode left, or none within the quota: it shows before anything is written."""

    def refuse(*_, **__):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(atomic.tempfile, "mkstemp", refuse)
    with pytest.raises(fl.DataError, match="expected room for data in"), atomic_file(tmp_path / "data"):
        pass
    monkeypatch.setattr(cache_files.Path, "mkdir", refuse)
    (tmp_path / "data.ctf").write_text("|x 1 2\n")
    with pytest.raises(fl.DataError, match="expected room for"):
        fl.CTFDeserializer(tmp_path / "data.ctf", X, cache=tmp_path / "new")


# ---- whose index it is --------------------------------------------------------------------------------

NOBODY = 65534


@pytest.fixture
def shared_folder(tmp_path, monkeypatch):
    """A folder that everybody can write, with a text and an index that somebody else may have written."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    folder = tmp_path / "shared"
    folder.mkdir()
    path = folder / "data.ctf"
    path.write_text("".join(f"|x {i} {i}\n" for i in range(50)))
    fl.CTFDeserializer(path, X)
    folder.chmod(0o777)
    return folder


@pytest.fixture
def builds(monkeypatch):
    """The indexes that are built."""
    return index_builds(monkeypatch)


def only_index(folder):
    (index,) = folder.glob("*.feedline-index")
    return index


def test_an_index_in_a_folder_that_others_can_write_is_believed_if_it_is_ours(shared_folder, builds):
    fl.CTFDeserializer(shared_folder / "data.ctf", X)
    assert builds == []


@pytest.mark.parametrize("change", ["owner", "writable"])
def test_an_index_that_others_may_have_written_is_not_believed(shared_folder, tmp_path, builds, change):
    index = only_index(shared_folder)
    if change == "owner":
        os.chown(index, NOBODY, NOBODY)
    else:
        index.chmod(0o666)
    before = index.read_bytes()
    for _ in range(2):
        fl.CTFDeserializer(shared_folder / "data.ctf", X)
    assert len(builds) == 1  # in the user's own cache folder, as the other one belongs to others
    assert only_index(shared_folder).read_bytes() == before
    assert only_index(tmp_path / "xdg" / "feedline")
    shared_folder.chmod(0o755)  # now no other user can have created it
    fl.CTFDeserializer(shared_folder / "data.ctf", X)
    assert len(builds) == 1


def test_the_index_of_the_owner_of_the_text_is_believed(shared_folder, builds):
    """Who can write the text need not forge its index."""
    for path in shared_folder.iterdir():
        os.chown(path, NOBODY, NOBODY)
    fl.CTFDeserializer(shared_folder / "data.ctf", X)
    assert builds == []


def test_an_index_is_written_for_its_owner_alone_to_change(shared_folder):
    path = shared_folder / "data.ctf"
    only_index(shared_folder).unlink()
    path.chmod(0o664)
    fl.CTFDeserializer(path, X)
    assert only_index(shared_folder).stat().st_mode & 0o777 == 0o644


def test_a_stranger_in_a_cache_folder_that_others_can_write_is_not_read_either(shared_folder, tmp_path, builds):
    folder = tmp_path / "cache"
    fl.CTFDeserializer(shared_folder / "data.ctf", X, cache=folder)
    builds.clear()
    folder.chmod(0o777)
    with pytest.raises(fl.DataError, match="only you can write"):
        fl.CTFDeserializer(shared_folder / "data.ctf", X, cache=folder)
    assert builds == []


# ---- npz ----------------------------------------------------------------------------------------------


def test_an_npz_file_that_holds_more_than_was_given_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros((1000, 100)), y=np.zeros(1000, "i4"))
    assert path.stat().st_size < 10_000
    with pytest.raises(
        fl.DataError, match=r"at most 804000 bytes when loaded \(memory\), got 804256 in x, y"
    ) as caught:
        fl.open_corpus(path, memory=804_000)
    assert caught.value.path == str(path)
    assert fl.open_corpus(path, memory=804_256).schema["x"].shape == (100,)
    assert list(fl.open_corpus(path, streams={"y": fl.Stream((), "int32")}, memory=5000).schema) == ["y"]
    with pytest.raises(fl.SchemaError, match=r"expected the arrays z in .*has x, y"):
        fl.open_corpus(path, streams={"z": fl.Stream(())})


def test_conversion_of_a_path_obeys_memory(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros((1000, 100)))
    monkeypatch.setattr("feedline.feed.conversion.convert.CHUNK_MEMORY", 1000)
    for shuffle in (None, 1):
        with pytest.raises(fl.DataError, match=r"\(memory\)"):
            fl.convert(path, tmp_path / "store", shuffle=shuffle, memory=1000)
        assert fl.convert(path, tmp_path / f"store {shuffle}", shuffle=shuffle, memory=1 << 20).sequences == 1000


def test_a_row_group_is_read_by_open_corpus_within_memory(tmp_path):
    pq.write_table(pa.table({"x": np.zeros(100_000)}), tmp_path / "a.parquet")
    with pytest.raises(fl.DataError, match=r"\(memory\)"):
        fl.open_corpus(tmp_path / "a.parquet", memory=1000)
    (tmp_path / "a.ctf").write_text("|x 1 2\n" * 1000)
    with pytest.raises(fl.DataError, match=r"\(memory\)"):
        fl.open_corpus(tmp_path / "a.ctf", memory=1000).read(0)


# ---- disks that fail ----------------------------------------------------------------------------------


def fail_at(monkeypatch, path, name, number, code):
    """Have the ``number``-th call of ``os.name`` for the open file ``path`` fail. Returns the number of calls."""
    real, calls = getattr(os, name), []

    def call(file, *arguments, **options):
        if os.path.samefile(f"/proc/self/fd/{file}", path):
            calls.append(None)
            if len(calls) == number:
                raise OSError(code, os.strerror(code))
        return real(file, *arguments, **options)

    monkeypatch.setattr(os, name, call)
    return calls


def a_compressed_store(folder):
    fl.convert(fl.ArrayDeserializer(x=np.zeros((50, 2))), folder / "store", compression="zstd")
    return folder / "store" / "part-00000.arrow", lambda: fl.StoreDeserializer(folder / "store")


def a_ctf_file(folder):
    path = folder / "data.ctf"
    path.write_text("|x 1 2\n" * 50 + "|x 1 2 3\n")
    return path, lambda: fl.CTFDeserializer(path, x=fl.Stream(2), cache=False)


def what_is_no_ctf(folder):
    path = folder / "data.ctf"
    path.write_text("nothing\n")
    return path, lambda: fl.CTFDeserializer(path, x=fl.Stream(2), cache=False)


def a_parquet_file(folder):
    path = folder / "data.parquet"
    pq.write_table(pa.table({"x": [[1.0] * (1 + i % 3) for i in range(50)]}), path)
    return path, lambda: fl.ParquetDeserializer(path)


@pytest.mark.parametrize("make", [a_compressed_store, a_ctf_file, what_is_no_ctf, a_parquet_file])
@pytest.mark.parametrize("name", ["pread", "preadv", "fstat"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_a_disk_that_fails_at_any_read_is_an_error_with_the_file(tmp_path, make, name, code):
    """NFS returns ESTALE for a file that was replaced on the server."""
    path, corpus = make(tmp_path)
    number, failed = 0, True
    while failed:
        number += 1
        with pytest.MonkeyPatch.context() as patch:
            calls = fail_at(patch, path, name, number, code)
            try:
                with fl.MinibatchSource(
                    corpus(), shuffle=False, max_sweeps=1, on_error=fl.Quarantine(tmp_path / "bad")
                ) as source:
                    source.next_minibatch(100)
                    source.state_dict()
            except fl.DataError as error:
                assert error.path == str(path)  # noqa: PT017  # files other than CTF raise it, too
            failed = len(calls) >= number


@pytest.mark.parametrize(
    "look",
    [
        fl.open_corpus,
        fl.ParquetDeserializer,
        lambda path: fl.CTFDeserializer(path, x=fl.Stream(2)),
        fl.StoreDeserializer,
    ],
)
def test_an_unreadable_place_is_reported(look):
    name = "x" * 300  # longer than any file system allows
    with pytest.raises(fl.DataError) as error:
        look(name)
    assert error.value.path == name


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE, errno.ENXIO])
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_fails_during_a_write_is_reported_with_the_file(tmp_path, monkeypatch, error, call):
    (tmp_path / "data.ctf").write_text("|x 1 2\n")

    def fail(*args, **kwargs):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(atomic.os, call, fail)
    for write in (
        lambda: fl.CTFDeserializer(tmp_path / "data.ctf", {"x": fl.Stream(2)}),
        lambda: fl.write_ctf(tmp_path / "new.ctf", x=np.zeros((1, 2), "f4")),
    ):
        with pytest.raises(fl.DataError, match=f"expected to write .* in .*, got: {os.strerror(error)}") as caught:
            write()
        assert Path(caught.value.path).parent == tmp_path
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data.ctf"]
