"""A server of a ``dist_async`` store: a Ray actor that holds a shard, takes pushes at once, and keeps snapshots.

Ray starts the process again when it dies; it then reads its last snapshot, and workers send again what is not in it.
Methods run one after the other. Those that are rare (making keys, setting a rule or states) return when their effect
is on disk; pushes are covered by the next snapshot, and every answer says how far the last one reaches.

Costs: a snapshot stops the server for one copy of its shard; a thread writes it. One begins when the last is ``every``
seconds old, or when a worker's log fills up, but never takes more than a twentieth of the time.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from feedline.errors import StoreError
from feedline.interop.tensor_file import load_tensors, replace_tensors
from feedline.kvstore.base import Key
from feedline.kvstore.parameter_server.shard import Rule, Shard
from feedline.kvstore.parameter_server.wire_format import Item

#: Seconds without snapshots for each second that the last one took.
REST = 19.0


class Greeting(NamedTuple):
    """What a worker must know of a server that it meets (again).

    Attributes:
        applied: number of the worker's last push here.
        durable: number of its last push in the snapshot.
        keys: how many there are.
        missing: whether the rule is to be sent again.
        generation: of the rule.
        place: host and process.
        failures: what the updater raised at pushes that the worker has not heard of, with their numbers.
    """

    applied: int
    durable: int
    keys: int
    missing: bool
    generation: int
    place: str
    failures: tuple[tuple[int, Exception], ...] = ()


class Answer(NamedTuple):
    """To a push or pull.

    Attributes:
        behind: it was not taken: earlier pushes, or the rule, are to be sent first.
        durable: number of the worker's last push in the snapshot.
        failure: what the updater raised; the shard is as it was before the push.
        trouble: why the last snapshot failed, if it did.
        run: what was pulled.
    """

    behind: bool = False
    durable: int = 0
    failure: Exception | None = None
    trouble: str = ""
    run: Any = None


class Server:
    """One server.

    Args:
        index: its number.
        folder: of this store's snapshots; made if it is not there.
        every: seconds between snapshots while there are pushes.

    Raises:
        StateError: there is a snapshot, and it is damaged.
        StoreError: the folder is open to others.
    """

    def __init__(self, index: int, folder: str, every: float) -> None:
        self._index, self._every = index, every
        self._shard = Shard()
        self._folder = Path(folder)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self._folder.stat()
        if found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise StoreError(f"expected a folder of our own and closed to others for snapshots, got {self._folder}")
        self._file = self._folder / f"server-{index}.safetensors"
        self._durable: dict[str, int] = {}
        self._trouble = ""
        self._writer: threading.Thread | None = None
        self._ended, self._took = time.monotonic(), 0.0
        if self._file.exists():
            self._shard.restore(*load_tensors(self._file))
            self._durable = dict(self._shard.applied)

    # ---- often ----------------------------------------------------------------------------------------------

    def push(
        self,
        worker: str,
        number: int,
        items: Sequence[Item],
        run: Any,
        wanted: Sequence[Key],
        skip: bool,
        pressing: bool,
        heard: int = 0,
    ) -> Answer:
        """Take a push, once, and give what is stored afterwards under the ``wanted`` keys.

        Whatever is wrong with it is in the answer: an exception of the call would leave open whether it was taken.

        Args:
            worker: its name.
            number: of its push.
            items: keys, and how they come.
            run: of bytes.
            wanted: keys to pull.
            skip: whether pushes before this one are lost.
            pressing: whether the worker would like a snapshot.
            heard: number of the last of its pushes of which the worker knows how it went.
        """
        shard = self._shard
        due = shard.due(worker, number, skip)
        if due is None:
            return Answer(behind=True)
        shard.heard(worker, heard)
        if due:
            try:
                shard.take(worker, number, items, run)
            except Exception as error:
                shard.failures.setdefault(worker, {})[number] = self._portable(error)
            self._consider(pressing)
        failure, found = shard.failures.get(worker, {}).get(number), None
        try:
            found = shard.give(wanted)
        except StoreError as error:
            failure = failure or error
        return Answer(False, self._durable.get(worker, 0), failure, self._trouble, found)

    def pull(self, worker: str, after: int, keys: Sequence[Key]) -> Answer:
        """What is stored, once the worker's push of that number is in it."""
        return self._answer(worker, after, lambda: self._shard.give(keys))

    def pull_rows(self, worker: str, after: int, keys: Sequence[Key], ids: Sequence[Any]) -> Answer:
        """Rows, as `pull`."""
        return self._answer(worker, after, lambda: self._shard.give_rows(keys, ids))

    def _answer(self, worker: str, after: int, give: Callable[[], Any]) -> Answer:
        """What is to follow a worker's pushes up to a number: a server that has died may lack some of them."""
        if self._shard.applied.get(worker, 0) < after:
            return Answer(behind=True)
        found = give()
        return Answer(False, self._durable.get(worker, 0), None, self._trouble, found)

    # ---- seldom ---------------------------------------------------------------------------------------------

    def greet(self, worker: str, heard: int = 0) -> Greeting:
        """How far the worker has come here, which knows how its pushes went up to a number."""
        shard = self._shard
        place = f"{socket.gethostname()}, process {os.getpid()}"
        applied, durable = shard.applied.get(worker, 0), self._durable.get(worker, 0)
        shard.heard(worker, heard)
        failures = tuple(sorted(shard.failures.get(worker, {}).items(), key=lambda kept: kept[0]))
        return Greeting(applied, durable, shard.size, shard.missing, shard.generation, place, failures)

    def known(self, keys: Sequence[Key]) -> dict[Key, tuple[tuple[int, ...], str]]:
        """See `Shard`."""
        return self._shard.known(keys)

    def make(self, items: Sequence[tuple[Key, tuple[int, ...], str]], run: Any) -> None:
        """See `Shard`."""
        self._shard.make(items, run)
        self._flush()

    def bring_rule(self, rule: Rule, generation: int) -> None:
        """Bring again what a snapshot cannot hold; see `Shard`."""
        if self._shard.missing and generation == self._shard.generation:
            self._shard.set_rule(rule, generation)

    def set_rule(self, worker: str, after: int, rule: Rule, generation: int) -> Answer:
        """See `Shard`; as `pull`."""

        def change() -> None:
            self._shard.set_rule(rule, generation)
            self._flush()

        return self._answer(worker, after, change)

    def states(self, worker: str, after: int) -> Answer:
        """Name, parameters and states of the optimizer, as `pull`; see `Shard`."""
        return self._answer(worker, after, self._shard.states)

    def set_states(
        self,
        worker: str,
        after: int,
        parameters: dict[str, Any],
        found: Mapping[Key, tuple[dict[str, Any], int]],
    ) -> Answer:
        """See `Shard`; as `pull`."""

        def change() -> None:
            self._shard.set_states(parameters, found)
            self._flush()

        return self._answer(worker, after, change)

    def flush(self, worker: str, after: int) -> Answer:
        """Bring everything to disk; as `pull`.

        Raises:
            StoreError: the disk does not take it.
        """
        return self._answer(worker, after, self._flush)

    def _flush(self) -> None:
        if self._writer is not None:
            self._writer.join()
        self._write(*self._shard.snapshot())
        if self._trouble:
            raise StoreError(f"expected server {self._index} to write its snapshot, got {self._trouble}")

    def discard(self) -> None:
        """Delete the snapshot, at the store's end."""
        if self._writer is not None:
            self._writer.join()
        self._file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # others are not done yet
            self._folder.rmdir()

    # ---- snapshots ------------------------------------------------------------------------------------------

    def _consider(self, pressing: bool) -> None:
        """Begin a snapshot if it is time."""
        if self._writer is not None and self._writer.is_alive():
            return
        pause = time.monotonic() - self._ended
        if pause < (REST * self._took if pressing else max(self._every, REST * self._took)):
            return
        started = time.monotonic()
        tensors, about = self._shard.snapshot()
        self._writer = threading.Thread(target=self._write, args=(tensors, about, started), daemon=True)
        self._writer.start()

    def _write(self, tensors: Mapping[str, Any], about: dict[str, Any], started: float | None = None) -> None:
        started = time.monotonic() if started is None else started
        try:
            replace_tensors(self._file, tensors, about)
            self._durable, self._trouble = about["applied"], ""
        except OSError as error:
            self._trouble = f"{type(error).__name__}: {error}"
        self._ended = time.monotonic()
        self._took = self._ended - started

    def _portable(self, error: Exception) -> Exception:
        """An exception that reaches the worker, with where it was raised."""
        error.add_note(f"in server {self._index}:\n{''.join(traceback.format_exception(error))}")
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return StoreError(f"expected an updater without errors in server {self._index}, got {error!r}")
        return error
