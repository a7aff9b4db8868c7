"""Python programs forked from an interpreter that has imported torch and feedline, which takes each of them seconds.

`Python` and `run` are `subprocess.Popen` and `subprocess.run` without the interpreter in front. What they start is a
process like any other, with its own memory, id, signals and exit status. But its parent is the warm interpreter, its
imports are done, and modules and objects are not taken down at its end, which would take half a second, unless
``finalized=True``. So programs that look at imports or at memory, need options of Python, or have variables that are
read at import, are started as ever.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import hashlib
import importlib
import inspect
import multiprocessing.process
import os
import pickle
import runpy
import select
import signal
import socket
import subprocess
import sys
import types
from pathlib import Path

IMPORTED = ("torch._dynamo", "hypothesis.strategies", "pytest", "rich.table", "typer", "feedline")
IMPORTED += (
    "tests.cli.called",
    "rich.progress",
    "feedline.cntk",
    "feedline.kvstore",
    "feedline.mxnet",
    "feedline.train",
)
FEW = ("torch", "feedline", "feedline.interop.torch_loading")  # for objects that are torn down again
INT = 4  # bytes of an id, and of a status
LONGEST = 1 << 17


#: Names, for a program that was forked, who forked it and the socket to ask for more.
ASK = "FEEDLINE_TESTS_WARM"


class Python(subprocess.Popen):
    """A program: ``["-c", code, ...]``, ``["-m", module, ...]`` or ``[path, ...]``.

    Args:
        imported: modules that its interpreter has imported. There is one interpreter for each choice of them.
        finalized: whether it ends as Python does: the collector sees every object, and modules are torn down.
    """

    def __init__(self, arguments, *, imported=IMPORTED, finalized=False, **options):
        self._imported, self._finalized = tuple(imported), finalized
        super().__init__(arguments, **options)

    def _execute_child(self, *given):
        how = inspect.signature(super()._execute_child).bind(*given).arguments
        request = pickle.dumps(
            {
                "arguments": [os.fspath(argument) for argument in how["args"]],
                "folder": os.fspath(how["cwd"] or os.getcwd()),
                "environment": dict(os.environ if how["env"] is None else how["env"]),
                "new_session": how["start_new_session"],
                "finalized": self._finalized,
            }
        )
        assert len(request) < LONGEST
        streams = [how[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        self._ending, told = os.pipe()
        try:
            fds = [standard if fd == -1 else fd for standard, fd in enumerate(streams)]
            socket.send_fds(_interpreter(self._imported), [request], [told, *fds])
        finally:
            os.close(told)
            self._close_pipe_fds(
                *(how[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
            )
        self.pid = self._told()
        self._child_created = True

    def _told(self):
        found = os.read(self._ending, INT)
        if not found:
            raise RuntimeError("the warm interpreter is gone")
        return int.from_bytes(found, "little")

    def _try_wait(self, wait_flags):
        if wait_flags & os.WNOHANG and not select.select([self._ending], [], [], 0)[0]:
            return 0, 0
        status = self._told()
        os.close(self._ending)
        return self.pid, status

    def _internal_poll(self, *_, **__):
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                if self.returncode is None and (ended := self._try_wait(os.WNOHANG))[0]:
                    self._handle_exitstatus(ended[1])
            finally:
                self._waitpid_lock.release()
        return self.returncode


class Interpreter(Python):
    """As `subprocess.Popen` of ``[sys.executable, ...]``, to be put in its place in what starts programs itself."""

    def __init__(self, args, *, env=None, **options):
        python, *arguments = args
        assert python == sys.executable
        env = dict(os.environ if env is None else env)
        if arguments[0] == "-u":
            env["PYTHONUNBUFFERED"] = arguments.pop(0)
        super().__init__(arguments, env=env, **options)


def run(arguments, *, timeout=None, capture_output=False, check=False, **options):
    """As `subprocess.run`."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Python(arguments, **options) as program:
        try:
            printed = program.communicate(timeout=timeout)
        except BaseException:
            program.kill()
            raise
    done = subprocess.CompletedProcess(arguments, program.returncode, *printed)
    if check:
        done.check_returncode()
    return done


def start(imported=IMPORTED):
    """Start an interpreter, if there is none: its socket is open from then on."""
    _interpreter(tuple(imported))


@functools.cache
def _interpreter(imported):
    """A socket of the warm interpreter: of the one that forked this process, of another test process's, or a new one's.

    An interpreter ends when the last of these sockets is closed, as the process does that holds it.
    """
    parent, _, fd = os.environ.get(ASK, "").partition(" ")
    if parent == str(os.getpid()):
        return socket.socket(fileno=int(fd))
    # Processes of one run of tests share their interpreters.
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"{os.getpid()}")
    address = "\0feedline-tests-" + hashlib.sha256(repr((run, os.getuid(), imported)).encode()).hexdigest()
    asking = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    atexit.register(asking.close)
    with contextlib.suppress(ConnectionRefusedError):
        asking.connect(address)
        return asking
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        with contextlib.suppress(OSError):  # another one has begun to listen in between
            listening.bind(address)
            listening.listen()
            subprocess.Popen(
                [sys.executable, __file__, str(listening.fileno()), *imported],
                pass_fds=[listening.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
            )
        asking.connect(address)
    return asking


# ---- within the warm interpreter ------------------------------------------------------------------------


def _serve(listening, imported):
    """Fork for each request. In the fork, return the arguments of the program to run."""
    for name in imported:
        importlib.import_module(name)
    threads = [Path(f"/proc/self/task/{task}/comm").read_text().strip() for task in os.listdir("/proc/self/task")]
    others = [name for name in threads[1:] if name != "jemalloc_bg_thd"]  # pyarrow's: not needed in a fork
    assert not others, f"a fork would have no other threads: {others}"
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    running, asking = {}, [listening.accept()[0]]
    gc.collect()
    gc.freeze()  # pages that are not written are not copied
    while True:
        ready = select.select([*asking, listening, reading], [], [])[0]
        if reading in ready:
            os.read(reading, 1 << 12)
            while running and (ended := os.waitpid(-1, os.WNOHANG))[0]:
                _tell(told := running.pop(ended[0]), ended[1])
                os.close(told)
        if listening in ready:
            asking.append(listening.accept()[0])
        for client in [each for each in asking if each in ready]:
            request, fds = b"", []
            with contextlib.suppress(ConnectionError):
                request, fds, *_ = socket.recv_fds(client, LONGEST, 4)
            if not fds:
                asking.remove(client)
                client.close()
                if not asking and not select.select([listening], [], [], 0)[0]:  # the tests are over
                    os._exit(0)
                continue
            told, *streams = fds
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            if pid := os.fork():
                _tell(told, pid)
                running[pid] = told
                asking.append(ours)
                theirs.close()
                for fd in streams:
                    os.close(fd)
                continue
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, before)
            for fd, stream in enumerate(streams):
                os.dup2(stream, fd)
            for each in (*asking, listening, ours):
                each.close()
            for fd in (*streams, *running.values(), told, reading, writing):
                os.close(fd)
            return _prepared(theirs.detach(), **pickle.loads(request))


def _tell(told, number):
    with contextlib.suppress(BrokenPipeError):  # who asked has ended, and its programs go on
        os.write(told, number.to_bytes(INT, "little"))


def _prepared(ask, arguments, folder, environment, new_session, finalized):
    if new_session:
        os.setsid()
    if finalized:
        gc.unfreeze()
        atexit.unregister(_end)
    if environment.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)
    os.chdir(folder)
    multiprocessing.process.ORIGINAL_DIR = folder  # where processes that it starts look for the main module
    os.environ.clear()
    os.environ.update(environment | {ASK: f"{os.getpid()} {ask}"})
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = paths + [path for path in sys.path[1:] if path not in paths]
    return arguments


def _become(first, *rest):
    """Run a program as Python does."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if first == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = list(rest)
        runpy._run_module_as_main(rest[0])
    elif first == "-c":
        sys.path.insert(0, "")
        sys.argv = [first, *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(first)))
        sys.argv = [first, *rest]
        main.__file__ = first
        with open(first, "rb") as file:
            exec(compile(file.read(), first, "exec"), main.__dict__)


def _end(ended):
    """The last exit function: the process ends with the status that Python would end with."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if isinstance(ended.error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    code = ended.error.code if isinstance(ended.error, SystemExit) else ended.error and 1
    os._exit(code & 0xFF if isinstance(code, int) else code is not None)


if __name__ == "__main__":
    _ended = types.SimpleNamespace(error=None)
    atexit.register(_end, _ended)  # before all others: the last one called
    _arguments = _serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
    try:
        _become(*_arguments)
    except BaseException as _error:
        _ended.error = _error
        raise
