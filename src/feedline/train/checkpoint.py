"""Atomic checkpoints. Each is a folder, with tensors as safetensors and everything else as JSON.

A folder is written under a temporary name, synced to disk, and renamed. A process that is killed at any moment leaves
either the whole checkpoint or none of it, and earlier ones untouched. The seal of ``state.json`` covers everything: the
file contains the seal of the tensors' file, which contains a checksum of each tensor. Any changed byte is detected. So
is a state with the tensors of another checkpoint. Incomplete, damaged or foreign checkpoints are skipped with a warning
that gives the reason, and the previous one is used. If none is whole, the run does not start. Nothing is pickled, so
checkpoints from untrusted places can be read.

Checkpoints of version 0.1, which had checksums over the tensors alone, are still read.

Costs: the tensors are written once, with checksums computed on the way, and one fsync a file. Tensors that share memory
(tied weights) are written once.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from feedline.concurrency.processes import is_running
from feedline.errors import StateError, shown
from feedline.interop.seal import BLANK, add_seal, check_seal, read_regular
from feedline.interop.tensor_file import check_json, load_contents, save_tensors, sync
from feedline.train.shards import check_shards

VERSION = 2
TENSORS, STATE = "tensors.safetensors", "state.json"
_NAME, _TEMPORARY = re.compile(r"checkpoint-([0-9]{1,18})-([0-9]{1,19})"), ".writing-"
_PROCESS = re.compile(r"[0-9]{1,9}")
#: Names like ``checkpoint-*``, with a serial number that may be too large to have a successor.
_STRANGE = re.compile(r"checkpoint-[0-9]+-[0-9]+")
#: First bytes of a state, before the seal.
_SEALED = f'{{"feedline": {VERSION}, "seal": "'.encode()
_LARGEST_STATE_BYTES = 1 << 30

_log = logging.getLogger("feedline")


class Checkpoint(NamedTuple):
    """A checkpoint in memory.

    Attributes:
        path: folder of the checkpoint.
        tensors: tensors by name, on the CPU.
        state: state in JSON types.
        seal: checksum of the whole content.
        shards: description of sharded tensors, see `feedline.train.shards`. None if there are none.
    """

    path: Path
    tensors: dict[str, torch.Tensor]
    state: dict[str, Any]
    seal: str
    shards: Any = None


class Checkpoints:
    """The checkpoints of one run, in one folder.

    Args:
        folder: folder, created if missing.
        keep: number of checkpoints to keep, the newest. None means all.

    Raises:
        ValueError: ``keep`` below 1.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int | None = None) -> None:
        if keep is not None and keep < 1:
            raise ValueError(f"expected to keep at least 1 checkpoint, or None for all, got {keep}")
        self.folder, self.keep = Path(folder), keep
        self._skipped: set[Path] = set()

    def paths(self) -> list[Path]:
        """Return the folders of checkpoints, whole or not, oldest first."""
        if not self.folder.is_dir():
            return []
        numbered = [(int(m[1]), path) for path in self.folder.iterdir() if (m := _NAME.fullmatch(path.name))]
        return [path for _, path in sorted(numbered)]

    def save(
        self,
        number: int,
        tensors: Mapping[str, torch.Tensor],
        state: Mapping[str, Any],
        shards: Callable[[Path], Any] | None = None,
    ) -> Path:
        """Write a checkpoint, which becomes the newest.

        Args:
            number: progress of the run, such as its label samples, for the name. It does not order checkpoints, as a
                run that fell back to an earlier one repeats these numbers. The order of saving does.
            tensors: tensors by name, on any device.
            state: state in JSON types.
            shards: function that writes sharded tensors to a folder, together with other ranks, and returns their
                description. None if there are none.

        Raises:
            TypeError: ``state`` contains values of other than JSON types.
            StateError: the serial number of the newest checkpoint is too large to have a successor.
            OSError: no space, no permission. No partial checkpoint remains, and other checkpoints are untouched.
        """
        checked_state = check_json(state)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._clear_unfinished()
        before = self.paths()
        serial = 1 + (int(before[-1].name.split("-")[1]) if before else 0)
        target = self.folder / f"checkpoint-{serial:06d}-{number}"
        if not _NAME.fullmatch(target.name):
            raise StateError(f"expected serial numbers of up to 18 digits in {self.folder}, got {before[-1].name}")
        writing = self.folder / f"{_TEMPORARY}{os.getpid()}-{uuid.uuid4().hex[:8]}"
        try:
            writing.mkdir()
            # With the name, checkpoints of equal tensors differ, too, and their states cannot be swapped.
            tie = save_tensors(writing / TENSORS, tensors, {"checkpoint": target.name})
            content = {"feedline": VERSION, "seal": BLANK, "tensors": tie, "state": checked_state}
            if shards is not None:
                content["shards"] = shards(writing)
            with open(writing / STATE, "xb") as file:
                file.write(add_seal(json.dumps(content).encode(), len(_SEALED)))
                file.flush()
                os.fsync(file.fileno())
            sync(writing)
            writing.rename(target)
        except BaseException:
            shutil.rmtree(writing, ignore_errors=True)
            raise
        sync(self.folder)
        self._prune([*before, target])
        return target

    def latest(self) -> Checkpoint | None:
        """Return the newest whole checkpoint, or None if there are none. Logs a warning for each one skipped.

        Raises:
            StateError: there are checkpoints, but none is whole.
        """
        return next(self.newest_first(), None)

    def newest_first(self) -> Iterator[Checkpoint]:
        """Iterate over whole checkpoints, newest first. Logs a warning for each one skipped.

        Raises:
            StateError: there are checkpoints, but none is whole.
        """
        paths, intact = self.paths(), False
        strange = self.folder.glob("checkpoint-*") if self.folder.is_dir() else ()
        for path in strange:
            if _STRANGE.fullmatch(path.name) and not _NAME.fullmatch(path.name):
                _log.warning("skipping %s: expected at most 18 and 19 digits in its name", path)
        for path in reversed(paths):
            try:
                checkpoint = load(path)
            except StateError as error:
                self.skip(path, error)
                continue
            intact = True
            yield checkpoint
        if paths and not intact:
            raise StateError(
                f"expected a whole checkpoint in {self.folder}, got {len(paths)} and all of them damaged; the newest "
                f"is {paths[-1].name}",
                hint="the log has the fault of each. Recover one, use another folder, or pass restore=False",
            )

    def skip(self, path: Path, why: object) -> None:
        """Log a warning for a checkpoint that is skipped. It does not count as one to keep."""
        _log.warning("skipping %s: %s", path, why)
        self._skipped.add(path)

    def _prune(self, paths: Iterable[Path]) -> None:
        """Remove checkpoints older than the `keep` newest."""
        if self.keep is None:
            return
        remaining = self.keep
        for path in reversed(list(paths)):
            if remaining == 0:
                _remove(path)
            remaining -= remaining > 0 and path not in self._skipped

    def _clear_unfinished(self) -> None:
        """Remove unfinished checkpoints of killed processes."""
        for path in self.folder.glob(f"{_TEMPORARY}*"):
            pid = path.name.removeprefix(_TEMPORARY).split("-")[0]
            # A folder with our process id is of a dead process: containers reuse the same few ids.
            if not _PROCESS.fullmatch(pid) or int(pid) == os.getpid() or not is_running(int(pid)):
                shutil.rmtree(path, ignore_errors=True)


def load(path: str | os.PathLike[str]) -> Checkpoint:
    """Read one checkpoint.

    Raises:
        StateError: the checkpoint is incomplete, damaged or of another version, or the folder is no checkpoint.
    """
    folder = Path(path)
    try:
        text = read_regular(folder / STATE, _LARGEST_STATE_BYTES)
        if not text.startswith(_SEALED):
            raise ValueError(f"{text[:40]!r}, not the beginning of a checkpoint of version {VERSION}")
        seal = check_seal(text, len(_SEALED), str(folder / STATE))
        content = json.loads(text)
        state, tie, shards = content["state"], content["tensors"], content.get("shards")
    except OSError as error:
        raise StateError(f"expected a checkpoint in {folder}, got no {STATE}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise StateError(f"expected a state as JSON in {folder / STATE}, got: {shown(error, 200)}") from error
    tensors, _, tensors_seal = load_contents(folder / TENSORS)
    if tensors_seal != tie:
        what = f"expected the tensors that were saved with {folder / STATE}, got others in {folder / TENSORS}"
        raise StateError(what, saved={"seal": tie}, current={"seal": tensors_seal})
    if shards is not None:
        check_shards(folder, shards)
    return Checkpoint(folder, tensors, state, seal, shards)


def _remove(path: Path) -> None:
    """Delete a checkpoint, or a file in its place."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("could not remove %s: %s", path, error)
