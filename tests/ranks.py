"""Real processes that take part in one job, for tests of several ranks.

A rank is a function of a test module, called as ``function(rank, **settings)`` in its own process, which has the
variables that torchrun sets. Its result, or its exception, is returned. `say` sends something meanwhile.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import socket
import sys
from dataclasses import dataclass


@dataclass
class Failure:
    """What a rank raised."""

    kind: str
    text: str
    ranks: tuple[int, ...]


# A thousand ports for each process that runs tests, below the system's ports for connections and above Ray's ports for
# workers. A port must still be free when its rank binds it, seconds later.
_FIRST = 20_000 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 12 * 1000
_turns = itertools.count(os.getpid() * 37)


def free_port():
    while True:
        with socket.socket() as listening, contextlib.suppress(OSError):
            listening.bind(("127.0.0.1", _FIRST + next(_turns) % 1000))
            return listening.getsockname()[1]


class Job:
    """Running processes. Ends them at the end of the block, in any state.

    Args:
        function: function of a test module.
        world: number of ranks.
        settings: passed on.
    """

    def __init__(self, function, world, /, **settings):
        context = multiprocessing.get_context("forkserver")
        port = free_port()
        self.ranks = []
        for rank in range(world):
            variables = {
                "RANK": str(rank),
                "WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            ours, theirs = context.Pipe()
            process = context.Process(target=_main, args=(theirs, function, rank, variables, settings), daemon=True)
            process.start()
            theirs.close()
            self.ranks.append((process, ours))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process, ours in self.ranks:
            process.kill()
            process.join()
            ours.close()

    def heard(self, rank):
        """Return a rank's next message, or its end: a result, a `Failure`, or "gone"."""
        try:
            return self.ranks[rank][1].recv()
        except EOFError:
            return "gone"

    def tell(self, rank, what):
        """Send something that a rank hears."""
        self.ranks[rank][1].send(what)

    def results(self):
        """Return the next message of all ranks, or their ends."""
        found = []
        for rank in range(len(self.ranks)):
            try:
                found.append(self.heard(rank))
            except BaseException as error:  # pytest's time is over
                error.add_note(f"ranks before rank {rank} said {found}")
                raise
        return found

    def kill(self, rank, signum=signal.SIGKILL):
        os.kill(self.ranks[rank][0].pid, signum)


def run(function, world, /, **settings):
    """Return the results of all ranks. Raises AssertionError if one of them fails."""
    with Job(function, world, **settings) as job:
        found = job.results()
    for rank, result in enumerate(found):
        assert not isinstance(result, Failure), f"rank {rank}: {result.kind}: {result.text}"
        assert result != "gone", f"rank {rank} is gone"
    return found


_connection = None


def say(what):
    """From within a rank: send something to the test."""
    _connection.send(what)


def hear():
    """Wait within a rank for a message of the test."""
    return _connection.recv()


def _main(connection, function, rank, variables, settings):
    global _connection
    _connection = connection
    os.environ.update(variables)
    import torch

    torch.set_num_threads(1)
    try:
        connection.send(function(rank, **settings))
    except Exception as error:
        import traceback

        traceback.print_exc(file=sys.stderr)
        failure = Failure(type(error).__name__, str(error), getattr(error, "ranks", ()))
        connection.send(failure)
