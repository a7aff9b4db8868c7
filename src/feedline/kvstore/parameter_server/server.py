"""A server of a ``dist_async`` store: a Ray actor that holds a shard, applies pushes at once, and writes snapshots.

Ray restarts a server that dies. It then loads its last snapshot, and workers replay the pushes that the snapshot lacks.
Methods run one at a time, except `Server.beat`, which answers at any time while the process lives. The rare methods
(creating keys, setting a rule or states) return when their effect is on disk. Pushes are covered by the next snapshot,
and every answer has the number of the last push in a snapshot.

Costs: a snapshot blocks the server while its shard is copied. A thread writes the copy. A snapshot begins when the last
one is ``every_s`` seconds old, or when a worker's replay log fills up, but snapshots never take more than a twentieth
of the time.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import socket
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from feedline.concurrency.named_threads import NamedThread, begin
from feedline.errors import StoreError
from feedline.interop.tensor_file import load_tensors, replace_tensors
from feedline.kvstore.base import Key
from feedline.kvstore.parameter_server.shard import Rule, Shard
from feedline.kvstore.parameter_server.wire_format import Item

#: Concurrency group of `Server.beat`: a second thread, next to the one that works.
BEATS = "beats"
#: Shortest pause between snapshots, as a multiple of the time that the last one took.
PAUSE_FACTOR = 19.0


class Greeting(NamedTuple):
    """Status of a server, for a worker that connects or reconnects.

    Attributes:
        applied: number of the worker's last push that was applied.
        durable: number of its last push in a snapshot.
        keys: number of keys.
        lacks_rule: whether the rule has to be sent again.
        generation: generation of the rule.
        place: host and process.
        failures: exceptions of the updater that the worker has not acknowledged, with the numbers of the pushes.
    """

    applied: int
    durable: int
    keys: int
    lacks_rule: bool
    generation: int
    place: str
    failures: tuple[tuple[int, Exception], ...] = ()


class Answer(NamedTuple):
    """Answer to a push or pull.

    Attributes:
        refused: whether the call was refused, because earlier pushes or the rule have to be sent first.
        durable: number of the worker's last push in a snapshot.
        failure: exception of the updater. The shard is as it was before the push.
        snapshot_error: why the last snapshot failed. Empty if it succeeded.
        buffer: pulled arrays in one buffer.
    """

    refused: bool = False
    durable: int = 0
    failure: Exception | None = None
    snapshot_error: str = ""
    buffer: Any = None


class Server:
    """Actor class of a server.

    Args:
        index: number of the server, from 0.
        folder: folder of this store's snapshots, created if missing.
        every_s: seconds between snapshots while pushes arrive.

    Raises:
        StateError: the snapshot is damaged.
        StoreError: the folder is accessible to other users.
    """

    def __init__(self, index: int, folder: str, every_s: float) -> None:
        self._index, self._every_s = index, every_s
        self._shard = Shard()
        self._folder = Path(folder)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = self._folder.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise StoreError(f"expected a snapshot folder that only this user owns and can access, got {self._folder}")
        self._file = self._folder / f"server-{index}.safetensors"
        self._durable: dict[str, int] = {}
        self._snapshot_error = ""
        self._writer: NamedThread | None = None
        self._snapshot_ended, self._snapshot_s = time.monotonic(), 0.0
        if self._file.exists():
            self._shard.restore(*load_tensors(self._file))
            self._durable = dict(self._shard.applied)

    def beat(self) -> None:
        """Return at once, as a sign of life. In the concurrency group `BEATS` it runs while another method does."""

    # ---- frequent calls -------------------------------------------------------------------------------------

    def push(
        self,
        worker: str,
        number: int,
        items: Sequence[Item],
        buffer: Any,
        pull_keys: Sequence[Key],
        skips_lost: bool,
        urgent: bool,
        acknowledged: int = 0,
    ) -> Answer:
        """Apply a push, and return the arrays then stored under ``pull_keys``. Idempotent.

        Errors are part of the answer: with an exception of the call, it would be unknown whether the push was applied.

        Args:
            worker: name of the worker.
            number: number of its push.
            items: keys, and how their values are encoded.
            buffer: bytes of the values.
            pull_keys: keys to pull.
            skips_lost: whether the missing pushes before this one are lost.
            urgent: whether the worker needs a snapshot soon, because its replay log fills up.
            acknowledged: number of the last push whose outcome the worker has recorded.
        """
        shard = self._shard
        due = shard.due(worker, number, skips_lost)
        if due is None:
            return Answer(refused=True)
        shard.acknowledge(worker, acknowledged)
        if due:
            try:
                shard.apply(worker, number, items, buffer)
            except Exception as error:
                shard.failures.setdefault(worker, {})[number] = self._portable(error)
            self._start_snapshot_if_due(urgent)
        failure, pulled = shard.failures.get(worker, {}).get(number), None
        try:
            pulled = shard.read(pull_keys)
        except StoreError as error:
            failure = failure or error
        return Answer(False, self._durable.get(worker, 0), failure, self._snapshot_error, pulled)

    def pull(self, worker: str, after: int, keys: Sequence[Key]) -> Answer:
        """Return the arrays stored under the keys. Refuse unless push ``after`` of the worker was applied."""
        return self._answer(worker, after, lambda: self._shard.read(keys))

    def pull_rows(self, worker: str, after: int, keys: Sequence[Key], ids: Sequence[Any]) -> Answer:
        """Return rows of the keys. Otherwise like `pull`."""
        return self._answer(worker, after, lambda: self._shard.read_rows(keys, ids))

    def _answer(self, worker: str, after: int, read: Callable[[], Any], flush: bool = False) -> Answer:
        """Answer a call that must follow push ``after`` of the worker, which a restarted server may lack."""
        if self._shard.applied.get(worker, 0) < after:
            return Answer(refused=True)
        result = read()
        if flush:
            self._flush()
        return Answer(False, self._durable.get(worker, 0), None, self._snapshot_error, result)

    # ---- rare calls -----------------------------------------------------------------------------------------

    def greet(self, worker: str, acknowledged: int = 0) -> Greeting:
        """Return this server's status for a worker, which acknowledges its pushes up to ``acknowledged``."""
        shard = self._shard
        place = f"{socket.gethostname()}, process {os.getpid()}"
        applied, durable = shard.applied.get(worker, 0), self._durable.get(worker, 0)
        shard.acknowledge(worker, acknowledged)
        failures = tuple(sorted(shard.failures.get(worker, {}).items(), key=lambda item: item[0]))
        return Greeting(applied, durable, shard.size, shard.lacks_rule, shard.generation, place, failures)

    def key_shapes(self, keys: Sequence[Key]) -> dict[Key, tuple[tuple[int, ...], str]]:
        """See `Shard`."""
        return self._shard.key_shapes(keys)

    def create_keys(self, items: Sequence[tuple[Key, tuple[int, ...], str]], buffer: Any) -> None:
        """See `Shard`."""
        self._shard.create_keys(items, buffer)
        self._flush()

    def restore_rule(self, rule: Rule, generation: int) -> None:
        """Set a rule again that the snapshot could not contain. See `Shard`."""
        if self._shard.lacks_rule and generation == self._shard.generation:
            self._shard.set_rule(rule, generation)

    def set_rule(self, worker: str, after: int, rule: Rule, generation: int) -> Answer:
        """See `Shard`, and `pull`."""
        return self._answer(worker, after, lambda: self._shard.set_rule(rule, generation), flush=True)

    def states(self, worker: str, after: int) -> Answer:
        """Return name, parameters and states of the optimizer. See `Shard`, and `pull`."""
        return self._answer(worker, after, self._shard.states)

    def set_states(
        self, worker: str, after: int, parameters: dict[str, Any], states: Mapping[Key, tuple[dict[str, Any], int]]
    ) -> Answer:
        """See `Shard`, and `pull`."""
        return self._answer(worker, after, lambda: self._shard.set_states(parameters, states), flush=True)

    def flush(self, worker: str, after: int) -> Answer:
        """Write a snapshot and wait for it. See `pull`.

        Raises:
            StoreError: the snapshot could not be written.
        """
        return self._answer(worker, after, self._flush)

    def _flush(self) -> None:
        if self._writer is not None:
            self._writer.join()
        self._write(*self._shard.snapshot())
        if self._snapshot_error:
            raise StoreError(f"expected server {self._index} to write its snapshot, got {self._snapshot_error}")

    def discard(self) -> None:
        """Delete the snapshot, when the store ends."""
        if self._writer is not None:
            self._writer.join()
        self._file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty until the last server has discarded its snapshot
            self._folder.rmdir()

    # ---- snapshots ------------------------------------------------------------------------------------------

    def _start_snapshot_if_due(self, urgent: bool) -> None:
        """Start a snapshot if one is due."""
        if self._writer is not None and self._writer.is_alive():
            return
        pause = time.monotonic() - self._snapshot_ended
        if pause < (PAUSE_FACTOR * self._snapshot_s if urgent else max(self._every_s, PAUSE_FACTOR * self._snapshot_s)):
            return
        started = time.monotonic()
        tensors, about = self._shard.snapshot()
        self._writer = begin("snapshot", functools.partial(self._write, tensors, about, started))

    def _write(self, tensors: Mapping[str, Any], about: dict[str, Any], started: float | None = None) -> None:
        started = time.monotonic() if started is None else started
        try:
            replace_tensors(self._file, tensors, about)
            self._durable, self._snapshot_error = about["applied"], ""
        except OSError as error:
            self._snapshot_error = f"{type(error).__name__}: {error}"
        self._snapshot_ended = time.monotonic()
        self._snapshot_s = self._snapshot_ended - started

    def _portable(self, error: Exception) -> Exception:
        """Return an exception that can be pickled for the worker, with the server and traceback as a note."""
        error.add_note(f"in server {self._index}:\n{''.join(traceback.format_exception(error))}")
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return StoreError(f"expected the updater to succeed in server {self._index}, got {error!r}")
        return error
