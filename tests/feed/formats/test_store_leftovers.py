"""Leftovers of killed writers of stores: the next writer of that name removes them, and nothing else."""

import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import feedline as fl
from feedline.errors import DataError
from feedline.feed.formats.store import staging as workplace
from tests.feed.formats.corpora import everything
from tests.feed.formats.test_store import write
from tests.linux import linux_only

SCHEMA = fl.Schema({"x": fl.Stream((), "int64")})
KILLED = """
    import os, shutil, signal, sys
    import numpy as np
    import feedline as fl

    path, moment, count = sys.argv[1], sys.argv[2], int(sys.argv[3])

    def die(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    rename, renames = os.rename, []

    def at_rename(*names):
        renames.append(names)
        if moment == f"rename {len(renames)}":
            die()
        rename(*names)

    os.rename = at_rename
    if moment == "removal":
        def some(folder, *_, **__):
            os.unlink(os.path.join(folder, "part-00000.arrow"))
            die()
        shutil.rmtree = some
    schema = fl.Schema({"x": fl.Stream((), "int64")})
    with fl.StoreWriter(path, schema, chunk_bytes=80, overwrite=True) as writer:
        for start in range(0, count, 10):
            writer.write({"x": fl.Value.from_dense(np.arange(start, start + 10))})
            if moment == "write":
                die()
            if moment == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
    print("written")
"""


def writer_process(path, moment, count=100, **options):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(path), moment, str(count)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


def names(folder):
    return sorted(re.sub("-[0-9a-f]{20}$", "", path.name) for path in Path(folder).iterdir())


def rows(path):
    return everything(fl.StoreDeserializer(path))["x"].rows.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "left", "found"),
    [
        ("write", [".a.writing", "a"], 3),
        ("rename 1", [".a.writing", "a"], 3),
        ("rename 2", [".a.old", ".a.writing"], 3),
        ("removal", [".a.old", "a"], 100),
    ],
)
def test_a_writer_killed_at_any_moment(tmp_path, moment, left, found):
    """The next one of that name finds the store that was there, or the new one, and no left-overs."""
    write(tmp_path / "a", {"x": np.arange(3)})
    (tmp_path / ".a.writing-mine").mkdir()
    process = writer_process(tmp_path / "a", moment)
    assert process.wait(60) == -signal.SIGKILL
    process.stdout.close()
    assert names(tmp_path) == sorted([*left, ".a.writing-mine"])
    with pytest.raises(FileExistsError, match="overwrite=True"):
        fl.StoreWriter(tmp_path / "a", SCHEMA)
    assert rows(tmp_path / "a") == list(range(found))
    assert names(tmp_path) == [".a.writing-mine", "a"]
    write(tmp_path / "a", {"x": np.arange(5)}, overwrite=True)
    assert rows(tmp_path / "a") == list(range(5))
    assert names(tmp_path) == [".a.writing-mine", "a"]


@pytest.mark.slow
def test_a_conversion_removes_what_a_killed_one_left(tmp_path):
    process = writer_process(tmp_path / "a", "write")
    assert process.wait(60) == -signal.SIGKILL
    process.stdout.close()
    fl.convert(fl.ArrayDeserializer(x=np.arange(4)), tmp_path / "b")
    assert names(tmp_path) == [".a.writing", "b"]  # of another name
    fl.convert(fl.ArrayDeserializer(x=np.arange(4)), tmp_path / "a")
    assert names(tmp_path) == ["a", "b"]


def test_a_living_writer_is_left_alone(tmp_path):
    first = fl.StoreWriter(tmp_path / "a", SCHEMA)
    first.write({"x": fl.Value.from_dense(np.arange(7))})
    second = fl.StoreWriter(tmp_path / "a", SCHEMA)
    assert names(tmp_path) == [".a.writing"] * 2
    second.abort()
    assert names(tmp_path) == [".a.writing"]
    first.close()
    assert rows(tmp_path / "a") == list(range(7))
    assert names(tmp_path) == ["a"]


@pytest.mark.slow
def test_a_living_process_is_left_alone(tmp_path):
    """Even a stopped writer keeps its folder. Once it is dead, the folder is removed."""
    process = writer_process(tmp_path / "a", "stop")
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    fl.StoreWriter(tmp_path / "a", SCHEMA).abort()
    assert names(tmp_path) == [".a.writing"]
    process.kill()
    process.wait(60)
    process.stdout.close()
    fl.StoreWriter(tmp_path / "a", SCHEMA).abort()
    assert names(tmp_path) == []


def machine(folder):
    """What writers call this machine in the names of their folders."""
    writer = fl.StoreWriter(folder / "looked at", SCHEMA)
    (found,) = (re.fullmatch(r"\.looked at\.writing-([0-9a-f]{12})[0-9a-f]{8}", name) for name in os.listdir(folder))
    writer.abort()
    return found[1]


@pytest.mark.parametrize("name", ["a", "a.b", "a+(c)", "*"])
def test_only_folders_of_that_name_and_this_machine(tmp_path, name, monkeypatch):
    here = machine(tmp_path)
    elsewhere = "0" * 12
    kept = [
        f".{name}.writing-{elsewhere}00000000",  # of another machine
        f".{name}.writing-{here}0000000",
        f".{name}.writing-{here}000000000",
        f".{name}.writing-0123456789ab",  # as the first version called them, without a lock
        f".x{name}.writing-{here}00000000",
        f".{name}.reading-{here}00000000",
        f"{name}.writing-{here}00000000",
    ]
    gone = [
        f".{name}.writing-{here}00000000",
        f".{name}.writing-{here[:6]}00000011111111",  # the same start of the machine under another name: a container
        f".{name}.writing-000000{here[6:]}22222222",  # the same name before the machine was started again
        f".{name}.old-{here}33333333",
    ]
    for folder in kept + gone:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "part-00000.arrow").write_bytes(b"half")
    target = tmp_path / "target"
    target.mkdir()
    os.symlink(target, tmp_path / f".{name}.writing-{here}44444444")
    kept.append(f".{name}.writing-{here}44444444")
    write(tmp_path / name, {"x": np.arange(3)})
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, name, "target"])
    assert target.is_dir()


def test_without_locks_nothing_is_removed(tmp_path, monkeypatch):
    left = tmp_path / f".a.writing-{machine(tmp_path)}00000000"
    left.mkdir()

    def refuse(*_):
        raise OSError(9, "Bad file descriptor")  # as NFS reports for folders

    monkeypatch.setattr(workplace.fcntl, "flock", refuse)
    path = write(tmp_path / "a", {"x": np.arange(3)})
    assert rows(path) == [0, 1, 2]
    assert names(tmp_path) == [".a.writing", "a"]


def test_a_folder_that_was_taken_for_a_leftover_is_made_again(tmp_path, monkeypatch):
    """Between making its folder and locking it a writer looks dead."""
    real, taken = workplace.fcntl.flock, []

    def take(descriptor, how):
        folder = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if len(taken) < 3 and ".writing-" in folder.name:
            taken.append(folder)
            folder.rmdir()
        real(descriptor, how)

    monkeypatch.setattr(workplace.fcntl, "flock", take)
    assert rows(write(tmp_path / "a", {"x": np.arange(3)})) == [0, 1, 2]
    assert len(taken) == 3
    assert names(tmp_path) == ["a"]


def test_writers_leave_no_descriptors(tmp_path, leaves_nothing):
    for i in range(3):
        write(tmp_path / "a", {"x": np.arange(3)}, overwrite=True)
        with pytest.raises(FileExistsError):
            fl.StoreWriter(tmp_path / "a", SCHEMA)
        fl.StoreWriter(tmp_path / "b", SCHEMA).abort()
        with pytest.raises(DataError, match="cannot write the store"):
            fl.StoreWriter(tmp_path / "no" / f"b{i}", SCHEMA)


@linux_only("names of a start of the machine")
def test_the_machine_has_a_name_and_a_start(monkeypatch, tmp_path):
    here = machine(tmp_path)
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    assert machine(tmp_path)[:6] == here[:6]
    assert machine(tmp_path) != here
