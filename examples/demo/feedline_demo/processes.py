"""Child processes that print JSON lines and never outlive their parent.

A child runs in its own session, so that Ctrl-C reaches only the parent, which then ends the children; and it watches
its standard input, which the parent holds open: when that closes, however the parent died, the child exits.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from feedline.errors import WorkerError

_TAIL = 2000  # bytes of a dead child's stderr to show


def end_with_parent() -> None:
    """In a child: exit as soon as the parent is gone."""

    def watch() -> None:
        # Not through sys.stdin: its lock, held here, would keep the interpreter from exiting.
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


class Child:
    """A Python module running in a separate process.

    Args:
        module: the module.
        argument: its only argument.
        errors: file for its stderr.
        env: environment variables, in addition to the parent's.
    """

    def __init__(self, module: str, argument: str, errors: Path, env: dict[str, str] | None = None) -> None:
        self._errors = errors
        self._lines: queue.Queue[str | None] = queue.Queue()
        with open(errors, "wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, argument],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **(env or {})},
                start_new_session=True,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                self._lines.put(line)
        self._lines.put(None)

    def messages(self, others: Sequence[Child] = ()) -> Iterator[dict[str, Any]]:
        """Yield what the child prints until it ends.

        Raises:
            WorkerError: it, or one of ``others``, ended with an error; its last words are in the message.
        """
        while True:
            for child in others:
                child.check()
            try:
                line = self._lines.get(timeout=0.2)
            except queue.Empty:
                continue
            if line is None:
                self.process.wait()
                self.check()
                return
            yield json.loads(line)

    def check(self) -> None:
        """Raise a WorkerError if the child has ended with an error."""
        code = self.process.poll()
        if code not in (None, 0):
            said = self._errors.read_bytes()[-_TAIL:].decode("utf-8", "replace").strip()
            raise WorkerError(f"a process of the demo ended with exit code {code}; it said:\n{said or '(nothing)'}")

    def kill(self) -> None:
        """Kill it with SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdin is not None
        self.process.stdin.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
