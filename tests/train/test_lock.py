"""A folder has one session. A second one gets an error that names the first. The lock of a dead one is replaced."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline as fl  # noqa: E402
from feedline.system import started_at  # noqa: E402
from feedline.train import KeepBest, Saving  # noqa: E402
from feedline.train.lock import NAME, FolderLock, Holder  # noqa: E402
from tests.forked import Forked  # noqa: E402
from tests.train.test_session import Stop, StopsAfter, session  # noqa: E402
from tests.warm import Python  # noqa: E402

# Takes the lock of a folder, then lives until it is killed. Its argument is run before.
PROGRAM = """
import os, pathlib, sys, time
from feedline.train.lock import FolderLock
lock = FolderLock(pathlib.Path(sys.argv[1]))
if sys.argv[2] != "forks" or os.fork() == 0:
    print(os.getpid(), flush=True)
time.sleep(10**6)
"""


@contextlib.contextmanager
def holder(folder, what="waits"):
    """Another process that has the folder's lock, and the number that it printed. Killed at the end of the block."""
    command = ["-c", PROGRAM, str(folder), what]
    started = Python(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    try:
        yield started, int(started.stdout.readline())
    finally:
        started.kill()
        started.communicate()


class Tries(StopsAfter):
    """Starts a second session while the first one runs."""

    def __init__(self, folder, **changes):
        super().__init__(-1)
        self.folder, self.changes = folder, changes

    def on_update(self, run, summary):
        if self.left == -1:
            self.left = 0
            with pytest.raises(fl.StateError) as caught:
                session(self.folder, **self.changes).run()
            self.error = caught.value


def test_the_second_session_is_refused_and_the_first_one_ends(tmp_path):
    """Also in one process, as if a notebook's cell is run again in a thread."""
    tries = Tries(tmp_path / "run")
    assert session(tmp_path / "run", reporters=[tries]).run().samples == 960
    for part in (str(tmp_path / "run"), socket.gethostname(), f"process {os.getpid()}", "its own folder"):
        assert part in str(tries.error)
    assert NAME not in os.listdir(tmp_path / "run")


def test_it_is_refused_with_restore_false_too_and_for_the_best_model(tmp_path):
    tries = Tries(tmp_path / "run", saving=Saving(tmp_path / "run", restore=False))
    session(tmp_path / "run", reporters=[tries]).run()
    assert "held by" in str(tries.error)
    tries = Tries(tmp_path / "other", controllers=[KeepBest(tmp_path / "best")])
    session(tmp_path / "third", reporters=[tries], controllers=[KeepBest(tmp_path / "best")]).run()
    assert str(tmp_path / "best") in str(tries.error)
    assert sorted(os.listdir(tmp_path)) == ["best", "other", "run", "third"]
    assert os.listdir(tmp_path / "other") == []  # its lock was released


def test_a_session_that_fails_gives_it_back(tmp_path):
    with pytest.raises(Stop):
        session(tmp_path, reporters=[StopsAfter(4)]).run()
    assert NAME not in os.listdir(tmp_path)
    for path in tmp_path.iterdir():
        (path / "state.json").write_text("{")
    with pytest.raises(fl.StateError, match="all of them damaged"):
        session(tmp_path).run()
    assert NAME not in os.listdir(tmp_path)


def test_another_process_is_named_and_a_killed_ones_lock_is_taken_over(tmp_path):
    with holder(tmp_path) as (started, process):
        with pytest.raises(fl.StateError, match=f"process {process} on host {socket.gethostname()}"):
            session(tmp_path).run()
        started.send_signal(signal.SIGSTOP)  # the lock file still exists
        with pytest.raises(fl.StateError, match=f"process {process}"):
            FolderLock(tmp_path)
        started.kill()
        started.wait()
    assert (tmp_path / NAME).exists()
    assert session(tmp_path).run().samples == 960
    assert NAME not in os.listdir(tmp_path)


def test_a_child_of_the_dead_one_does_not_hold_it(tmp_path):
    """A worker process may outlive its parent for some seconds."""
    with holder(tmp_path, "forks") as (started, child):
        try:
            assert child != started.pid
            started.kill()
            started.wait()
            os.kill(child, 0)
            FolderLock(tmp_path).release()
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_child_of_ours_leaves_the_lock_alone(tmp_path):
    lock = FolderLock(tmp_path)
    assert Forked(lambda: [lock.release()]).status() == 0
    with pytest.raises(fl.StateError):
        FolderLock(tmp_path)
    lock.release()
    lock.release()
    FolderLock(tmp_path).release()


def test_a_lock_removed_while_it_is_opened_is_made_again(tmp_path, monkeypatch):
    """The holder removes its file after we have opened and before we have locked it, so we create another one."""
    first, real, opened = FolderLock(tmp_path), os.open, []

    def between(path, *arguments, **options):
        handle = real(path, *arguments, **options)
        opened.append(path)
        if len(opened) == 1:
            first.release()
        return handle

    monkeypatch.setattr(os, "open", between)
    second = FolderLock(tmp_path)
    monkeypatch.undo()
    assert len(opened) == 2
    with pytest.raises(fl.StateError):
        FolderLock(tmp_path)
    second.release()


# ---- content of the file ------------------------------------------------------------------------------


def write_lock(folder, **changes):
    """Write the lock file of a holder that has ended."""
    holder_ = Holder.this()._replace(**changes)
    (folder / NAME).write_text(json.dumps(holder_._asdict()))
    return holder_


def dead():
    """The number of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


@pytest.mark.parametrize(
    "changes",
    [
        lambda: {"process": dead()},
        lambda: {"process": os.getppid(), "began": 1},  # its process id was used again
        lambda: {"host": "another", "process": os.getppid()},
        dict,
    ],
    ids=["dead", "recycled", "another host", "ourselves"],
)
def test_a_file_without_a_lock_keeps_no_session_out(tmp_path, changes):
    """If the operating system reports that the lock is free, the file has no effect."""
    write_lock(tmp_path, **changes())
    FolderLock(tmp_path).release()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "[" * 10_000, '{"host": 1}', '{"host": "a", "process": -1, "began": 0}']
)
def test_a_lock_file_without_information_is_taken_over(tmp_path, text):
    (tmp_path / NAME).write_text(text)
    lock = FolderLock(tmp_path)
    assert json.loads((tmp_path / NAME).read_text())["process"] == os.getpid()
    lock.release()


def test_what_is_no_file_is_refused_at_once(tmp_path):
    (tmp_path / NAME).mkdir()
    with pytest.raises(fl.StateError, match="regular file"):
        FolderLock(tmp_path)
    (tmp_path / NAME).rmdir()
    os.mkfifo(tmp_path / NAME)
    with pytest.raises(fl.StateError, match="regular file"):
        FolderLock(tmp_path)
    (tmp_path / NAME).unlink()
    (tmp_path / NAME).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(fl.StateError, match="regular file"):
        FolderLock(tmp_path)


# ---- file systems without locks -------------------------------------------------------------------------


@pytest.fixture
def without_locks(monkeypatch):
    def refuses(handle, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuses)


@pytest.mark.usefixtures("without_locks")
@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        (lambda: {"process": dead()}, False),
        (lambda: {"process": os.getppid(), "began": 1}, False),
        (lambda: {"process": os.getppid(), "began": started_at(os.getppid())}, True),
        (lambda: {"host": "another"}, True),
        (dict, True),
    ],
    ids=["dead", "recycled", "alive", "another host", "ourselves"],
)
def test_without_locks_the_text_decides(tmp_path, changes, refused):
    """A dead process of this host is replaced. One of another host counts as alive until a user removes the file."""
    lock = write_lock(tmp_path, **changes())
    if refused:
        with pytest.raises(fl.StateError, match=f"process {lock.process}.* on host {lock.host}[\\s\\S]*remove .*lock"):
            FolderLock(tmp_path)
    else:
        FolderLock(tmp_path).release()
        assert os.listdir(tmp_path) == []
