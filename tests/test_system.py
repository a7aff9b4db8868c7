"""What feedline asks of the system: in one place only, and the same with the portable version."""

from __future__ import annotations

import ast
import inspect
import mmap
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import feedline as fl
from feedline import system
from feedline.system import descendants, linux, linux_figures, portable, portable_figures

SOURCES = Path(fl.__file__).parent
BOTH = pytest.mark.parametrize("calls", [linux, portable], ids=["linux", "portable"])

# Names that not every system has. A star stands for any end.
RARE = {
    "os": "memfd_create MFD_* eventfd* EFD_* pidfd_open posix_fadvise POSIX_FADV_* posix_fallocate sched_* pipe2 uname "
    "copy_file_range sendfile splice waitid O_DIRECT O_TMPFILE O_PATH O_NOATIME getrandom name setns unshare",
    "select": "epoll EPOLL* POLLRDHUP kqueue kevent KQ_*",
    "socket": "SOCK_SEQPACKET SOCK_CLOEXEC SOCK_NONBLOCK SO_PEERCRED MSG_CMSG_CLOEXEC MSG_NOSIGNAL",
    "fcntl": "F_OFD_* F_SEAL_* F_ADD_SEALS F_SETPIPE_SZ F_GETPIPE_SZ F_FULLFSYNC",
    "mmap": "MAP_POPULATE MADV_HUGEPAGE MADV_POPULATE_READ",
    "signal": "sigtimedwait sigwaitinfo pidfd_send_signal",
    "resource": "RUSAGE_THREAD prlimit",
    "time": "pthread_getcpuclockid CLOCK_BOOTTIME",
    "sys": "platform",
    "platform": "system uname release mac_ver",
}
PLACES = ("/proc", "proc/self", "/sys/", "/dev/shm", "SC_AVPHYS_PAGES")


def rare_uses(text: str) -> list[str]:
    """Return what a source uses that not every system has."""
    uses = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module, name = node.value.id, node.attr
        elif isinstance(node, ast.ImportFrom):
            uses += [f"{node.module}.{entry.name}" for entry in node.names if is_rare(str(node.module), entry.name)]
            continue
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value).startswith("ctypes.CDLL("):
            module, name = "libc", node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(PLACES):
            uses.append(node.value)
            continue
        else:
            continue
        if is_rare(module, name):
            uses.append(f"{module}.{name}")
    return uses


def is_rare(module: str, name: str) -> bool:
    if module == "libc":
        return name != "mprotect"
    patterns = RARE.get(module, "").split()
    return any(name.startswith(entry[:-1]) if entry.endswith("*") else name == entry for entry in patterns)


def test_only_one_folder_knows_the_system():
    uses = {}
    for path in SOURCES.rglob("*.py"):
        if path.parent != SOURCES / "system" and (rare := rare_uses(path.read_text())):
            uses[str(path.relative_to(SOURCES))] = rare
    assert uses == {}, "put it into feedline.system, with a portable version"


@pytest.mark.parametrize(
    "text",
    [
        "os.memfd_create('x')",
        "from os import eventfd_write",
        "poller = select.epoll()",
        "open(f'/proc/{pid}/stat')",
        "ctypes.CDLL(None).tee(1, 2)",
        "if sys.platform == 'linux': pass",
        "folder / 'proc/self/cgroup'",
    ],
)
def test_such_uses_are_seen(text):
    assert rare_uses(text)


def test_both_versions_have_the_same_functions():
    for calls, figures in ((linux, linux_figures), (portable, portable_figures)):
        names = {name for module in (calls, figures) for name in vars(module) if callable(getattr(module, name))}
        assert {name for name in vars(system) if inspect.isfunction(getattr(system, name))} <= names
    for name, function in inspect.getmembers(system, inspect.isfunction):
        signatures = {
            str(inspect.signature(getattr(module, name)))
            for module in (linux, linux_figures, portable, portable_figures)
            if getattr(getattr(module, name, None), "__module__", None) == module.__name__
        }
        assert signatures == {str(inspect.signature(function))}, name


# ---- each function, in both versions ---------------------------------------------------------------------------


@BOTH
def test_an_anonymous_file_leaves_nothing(calls, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    descriptor = calls.anonymous_file("feedline-test")
    try:
        assert not os.get_inheritable(descriptor)
        calls.allocate(descriptor, 3 * mmap.PAGESIZE + 1)
        assert os.fstat(descriptor).st_size == 3 * mmap.PAGESIZE + 1
        assert os.fstat(descriptor).st_blocks * 512 >= 3 * mmap.PAGESIZE
        os.pwrite(descriptor, b"abc", 1)
        calls.allocate(descriptor, 5 * mmap.PAGESIZE)
        calls.allocate(descriptor, 10)
        assert os.fstat(descriptor).st_size == 5 * mmap.PAGESIZE
        assert os.pread(descriptor, 5, 0) == b"\0abc\0"
        calls.seal(descriptor)
        for present in (False, True):
            view = calls.map_private(descriptor, mmap.PAGESIZE, present)
            assert view[:5] == b"\0abc\0"
            calls.populate(view, 0, 100)
        assert list(tmp_path.iterdir()) == []
    finally:
        os.close(descriptor)


@BOTH
def test_parts_of_files_are_freed(calls, tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"x" * (1 << 20))
    with open(path, "r+b") as file:
        if not calls.free_range(file.fileno(), 1 << 18, 1 << 19):
            pytest.skip("this file system cannot free parts of files")
        assert os.fstat(file.fileno()).st_blocks * 512 <= 1 << 19
        assert os.pread(file.fileno(), 2, (1 << 18) - 1) == b"x\0"
        assert os.fstat(file.fileno()).st_size == 1 << 20


@BOTH
def test_an_open_file_is_opened_again(calls, tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"abcdef")
    with open(path, "r+b") as file:
        file.read(3)
        again = calls.reopen(file.fileno(), str(path))
        assert os.read(again, 2) == b"ab"
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(again, b"x")
        os.close(again)
        path.unlink()
        path.write_bytes(b"other")
        if calls is portable:
            with pytest.raises(FileNotFoundError, match="another one"):
                calls.reopen(file.fileno(), str(path))
        else:
            again = calls.reopen(file.fileno(), str(path))
            assert os.read(again, 2) == b"ab"
            os.close(again)


LOCKS = """
import os, sys
from feedline.system import {module} as calls
descriptor = os.open({path!r}, os.O_RDWR)
print(*(calls.lock_range(descriptor, first, 2) for first in (0, 2, 3, 5)))
"""


@BOTH
def test_ranges_are_locked_against_other_processes(calls, tmp_path):
    path = tmp_path / "data"
    path.write_bytes(bytes(10))
    with open(path, "r+b") as file:
        assert calls.lock_range(file.fileno(), 3, 2)
        program = LOCKS.format(module=calls.__name__.rpartition(".")[2], path=str(path))
        ask = [sys.executable, "-c", program]
        assert subprocess.check_output(ask, text=True).split() == ["True", "False", "False", "True"]
        calls.unlock_range(file.fileno(), 3, 2)
        assert subprocess.check_output(ask, text=True).split() == ["True"] * 4


@BOTH
def test_text_is_handed_on(calls):
    reading, writing = os.pipe()
    forward = calls.forwarder(reading, 100)
    os.write(writing, b"some text")
    texts = []
    assert forward(texts.append)
    assert texts == [b"some text"]
    os.write(writing, b"more")
    if calls is linux:
        with pytest.raises(ZeroDivisionError):  # it stays
            forward(lambda text: 1 / 0)
    assert forward(texts.append)
    assert texts == [b"some text", b"more"]
    os.close(writing)
    assert not forward(texts.append)
    os.close(reading)


@BOTH
def test_descriptors_travel(calls, tmp_path):
    ours, theirs = socket.socketpair()
    with ours, theirs, open(tmp_path / "data", "w+b") as file:
        socket.send_fds(ours, [b"abc"], [file.fileno(), file.fileno()])
        into = bytearray(10)
        size, descriptors = calls.receive(theirs, memoryview(into))
        assert (size, bytes(into[:3]), len(descriptors)) == (3, b"abc", 2)
        for descriptor in descriptors:
            assert not os.get_inheritable(descriptor)
            assert os.path.samestat(os.fstat(descriptor), os.fstat(file.fileno()))
            os.close(descriptor)
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            calls.receive(theirs, memoryview(into))
        ours.close()
        assert calls.receive(theirs, memoryview(into)) == (0, [])


@BOTH
def test_a_worker_waits_for_both(calls):
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    with ours, theirs:
        poller = calls.work_poller(theirs.fileno(), reading)
        os.write(writing, b"x")
        assert [fd for fd, _ in poller.poll()] == [reading]
        os.read(reading, 1)
        ours.shutdown(socket.SHUT_RDWR)
        assert [fd for fd, _ in poller.poll()] == [theirs.fileno()]
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("figures", [linux_figures, portable_figures], ids=["linux", "portable"])
def test_figures_are_known_or_none(figures):
    mine = figures.process_figures(os.getpid())
    assert mine["cpu_seconds"] >= mine["system_seconds"] >= 0
    assert all(value is None or value >= 0 for value in mine.values())
    assert mine.keys() == linux_figures.process_figures(os.getpid()).keys()
    assert figures.thread_reads().keys() <= mine.keys()
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    assert figures.process_figures(done.pid) is None
    assert figures.activity_of(done.pid) == ""
    assert figures.copied_counts(done.pid) is None
    assert 1 <= figures.usable_cores() <= (os.cpu_count() or 1)


@BOTH
def test_the_file_of_a_map_is_known(calls, tmp_path):
    table = portable.file_maps if calls is portable else linux_figures.file_maps
    path = tmp_path / "a file"
    path.write_bytes(bytes(3 * mmap.PAGESIZE))
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    calls.note_map(mapped, path)
    address = np.frombuffer(mapped, np.uint8).ctypes.data
    (entry,) = [entry for entry in table(True) if entry[0] <= address < entry[1]]
    assert entry == (address, address + 3 * mmap.PAGESIZE, True, 0, str(path))
    path.unlink()
    path.write_bytes(b"other")
    (entry,) = [entry for entry in table(False) if entry[0] <= address < entry[1]]
    assert entry[4] == f"{path} (deleted)"
    del mapped
    assert not any(entry[0] <= address < entry[1] for entry in table(False))


def test_descendants_are_seen(monkeypatch):
    """By both ways, whether or not the process between has ended."""
    program = "import subprocess, sys; p = subprocess.Popen(['sleep', '1000']); print(p.pid, flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    grandchild = int(child.stdout.readline())
    try:
        for on_linux in (True, False):
            monkeypatch.setattr(descendants, "_LINUX", on_linux)
            assert {child.pid, grandchild} <= set(descendants.descendants(os.getpid()))
        child.stdin.close()
        child.wait()
        assert grandchild in descendants.descendants(os.getpid())
    finally:
        os.kill(grandchild, 9)
        monkeypatch.setattr(descendants, "_seen", set())


# ---- as on another system ---------------------------------------------------------------------------------------

HIDDEN = """
import builtins, fcntl, io, mmap, os, resource, select, selectors, signal, socket

selectors.DefaultSelector = selectors.PollSelector  # it may have been imported before

NAMES = {names!r}
for module in (fcntl, mmap, os, resource, select, signal, socket):
    for pattern in NAMES.get(module.__name__, "").split():
        for name in [name for name in dir(module) if name == pattern or
                     (pattern.endswith("*") and name.startswith(pattern[:-1]))]:
            if name not in ("uname", "name"):  # Python's own modules use these everywhere
                delattr(module, name)


def hide(module, name):
    call = getattr(module, name)

    def hiding(path=".", *arguments, **options):
        if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(("/proc", "/sys/", "/dev/shm")):
            raise FileNotFoundError(2, "hidden", path)
        return call(path, *arguments, **options)

    setattr(module, name, hiding)


for module, name in ((builtins, "open"), (io, "open"), (os, "open"), (os, "listdir"), (os, "readlink")):
    hide(module, name)
"""

PROGRAM = """
import os, select, signal, threading, time
import numpy as np
import feedline as fl
from feedline import system

assert system.PORTABLE and not hasattr(os, "memfd_create") and not hasattr(select, "epoll")
try:
    open("/proc/self/status")
    raise SystemExit("expected /proc to be hidden")
except FileNotFoundError:
    pass


class Items:
    def __len__(self):
        return 60

    def __getitem__(self, i):
        if i == 13 and os.path.exists("die"):
            os.unlink("die")
            os.kill(os.getpid(), signal.SIGKILL)
        return np.full(50_000, i, np.float32)


def loader(method, **options):
    return fl.DataLoader(
        Items(), batch_size=4, shuffle=True, seed=3, num_workers=2, multiprocessing_context=method, **options
    )


def show(kind, values):
    print(kind, *(int(value) for value in values), flush=True)


if __name__ == "__main__":
    fl.convert(fl.ArrayDeserializer(x=np.arange(4000, dtype=np.float32).reshape(1000, 4)), "rows.store")
    with fl.MinibatchSource(fl.open_corpus("rows.store"), seed=7, shuffle=True) as source:
        for _ in range(5):
            source.next_minibatch(32)
        state = source.state_dict()
        show("source", source.next_minibatch(32)["x"].rows[:, 0])
    with fl.MinibatchSource(fl.open_corpus("rows.store"), seed=7, shuffle=True) as source:
        source.load_state_dict(state)
        show("resumed", source.next_minibatch(32)["x"].rows[:, 0])
    for method in ("fork", "forkserver", "spawn"):
        open("die", "w").close()
        with loader(method) as feed:
            batches = [np.asarray(batch)[:, 0] for batch in feed]
            show(method, np.concatenate(batches))
        with loader(method) as feed:
            batches = iter(feed)
            for _ in range(6):
                next(batches)
            state = feed.state_dict()
        with loader(method) as feed:
            feed.load_state_dict(state)
            show(method + "-resumed", np.concatenate([np.asarray(batch)[:, 0] for batch in feed]))
    shared = fl.shared([{"word": str(i)} for i in range(100)])
    show("shared", [int(shared[i]["word"]) for i in (0, 50, 99)])
    with loader("fork") as feed:
        next(iter(feed))
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            time.sleep(100)
        except KeyboardInterrupt:
            show("interrupted", [1])
"""


class Items:
    def __len__(self):
        return 60

    def __getitem__(self, i):
        return np.full(10, i, np.float32)


def test_where_linux_is_hidden(request, tmp_path):
    """The order, the values, resume, the death of a worker and Ctrl-C, without what only Linux has."""
    (tmp_path / "sitecustomize.py").write_text(HIDDEN.format(names=RARE))
    (tmp_path / "program.py").write_text(PROGRAM)
    temporary = Path(tempfile.mkdtemp(prefix="feedline-"))  # short, as it holds the names of sockets
    request.addfinalizer(lambda: shutil.rmtree(temporary))
    variables = {"FEEDLINE_PORTABLE": "1", "PYTHONPATH": str(tmp_path), "TMPDIR": str(temporary)}
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    got = {kind: list(map(int, values)) for kind, *values in lines}

    with fl.MinibatchSource(fl.open_corpus(tmp_path / "rows.store"), seed=7, shuffle=True) as source:
        for _ in range(5):
            source.next_minibatch(32)
        minibatch = source.next_minibatch(32)["x"].rows[:, 0].astype(int).tolist()
    with fl.DataLoader(Items(), batch_size=4, shuffle=True, seed=3) as loader:
        items = [int(row[0]) for batch in loader for row in np.asarray(batch)]
    expected = {"source": minibatch, "resumed": minibatch}
    for method in ("fork", "forkserver", "spawn"):
        expected |= {method: items, f"{method}-resumed": items[24:]}
    assert got == expected | {"shared": [0, 50, 99], "interrupted": [1]}
    assert list(temporary.iterdir()) == [], "nothing is left behind"
