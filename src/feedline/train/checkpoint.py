"""Checkpoints: one folder each, whole or not there, tensors as safetensors and everything else as JSON.

A folder is written under a temporary name, forced to disk, and then takes its name; a process killed at any
instant leaves either the whole checkpoint or none, and the ones before it untouched. One seal is over all of it: that
of ``state.json``, which holds the seal of the tensors' file, which holds a checksum of each tensor. So no byte can
change unnoticed, and a state goes with its own tensors alone. What is found torn, damaged or foreign is passed over
with a warning that says why, and the one before it is used; where there are only such, the run does not start.
Nothing is pickled, so a checkpoint from anywhere may be read.

Checkpoints of version 0.1, which had checksums over the tensors alone, are still read.

Costs: the bytes of the tensors once to disk, checksums while they are written, one fsync a file. Tensors that share
memory (tied weights) are written once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from feedline.errors import StateError, shown
from feedline.interop.seal import BLANK, check_seal, read_regular, sealed
from feedline.interop.tensor_file import check_json, load_contents, save_tensors, sync

VERSION = 2
TENSORS, STATE = "tensors.safetensors", "state.json"
_NAME, _TEMPORARY = re.compile(r"checkpoint-([0-9]{1,18})-([0-9]{1,19})"), ".writing-"
_PROCESS = re.compile(r"[0-9]{1,9}")
#: Looks like one, but has a serial number that none of ours reaches and that no other could follow.
_STRANGE = re.compile(r"checkpoint-[0-9]+-[0-9]+")
#: The seal stands in the first bytes of a state.
_SEALED = f'{{"feedline": {VERSION}, "seal": "'.encode()
_LARGEST_STATE = 1 << 30

_log = logging.getLogger("feedline")


class Checkpoint(NamedTuple):
    """What was saved.

    Attributes:
        path: the folder.
        tensors: by name, on the CPU.
        state: JSON types.
        seal: stands for its content.
    """

    path: Path
    tensors: dict[str, torch.Tensor]
    state: dict[str, Any]
    seal: str


class Checkpoints:
    """The checkpoints of one run, in one folder.

    Args:
        folder: made if it is not there.
        keep: how many to keep, the newest; None: all.

    Raises:
        ValueError: ``keep`` below 1.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int | None = None) -> None:
        if keep is not None and keep < 1:
            raise ValueError(f"expected to keep at least 1 checkpoint, or None for all, got {keep}")
        self.folder, self.keep = Path(folder), keep
        self._passed_over: set[Path] = set()

    def paths(self) -> list[Path]:
        """Folders of checkpoints, oldest first; they need not be whole."""
        if not self.folder.is_dir():
            return []
        found = [(int(m[1]), path) for path in self.folder.iterdir() if (m := _NAME.fullmatch(path.name))]
        return [path for _, path in sorted(found)]

    def save(self, number: int, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> Path:
        """Write a checkpoint, which becomes the newest.

        Args:
            number: where the run stands (label samples, say), for the name; checkpoints are ordered by when they were
                saved, as a run that fell back to an earlier one comes by the same numbers again.
            tensors: by name, on any device.
            state: JSON types.

        Raises:
            TypeError: ``state`` is not made of JSON types.
            StateError: the newest there has a serial number that no other can follow.
            OSError: no space, no permission; nothing is left behind and the other checkpoints are untouched.
        """
        given = check_json(state)
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
            # With the name, checkpoints of equal tensors differ, too: a state goes with none but its own.
            tie = save_tensors(writing / TENSORS, tensors, {"checkpoint": target.name})
            text = json.dumps({"feedline": VERSION, "seal": BLANK, "tensors": tie, "state": given})
            _write(writing / STATE, sealed(text.encode(), len(_SEALED)))
            sync(writing)
            writing.rename(target)
        except BaseException:
            shutil.rmtree(writing, ignore_errors=True)
            raise
        sync(self.folder)
        self._prune([*before, target])
        return target

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole, or None without any; warns of each one passed over.

        Raises:
            StateError: there are some, and none is whole.
        """
        return next(self.newest_first(), None)

    def newest_first(self) -> Iterator[Checkpoint]:
        """Checkpoints that are whole; warns of each one passed over.

        Raises:
            StateError: there are some, and none is whole.
        """
        paths, whole = self.paths(), False
        strange = self.folder.glob("checkpoint-*") if self.folder.is_dir() else ()
        for path in strange:
            if _STRANGE.fullmatch(path.name) and not _NAME.fullmatch(path.name):
                _log.warning("passing over %s: expected at most 18 and 19 digits in its name", path)
        for path in reversed(paths):
            try:
                found = load(path)
            except StateError as error:
                self.pass_over(path, error)
                continue
            whole = True
            yield found
        if paths and not whole:
            raise nothing_whole(self.folder, paths)

    def pass_over(self, path: Path, why: object) -> None:
        """Warn of a checkpoint that is not used; it does not count as one of those to keep."""
        _log.warning("passing over %s: %s", path, why)
        self._passed_over.add(path)

    def _prune(self, paths: Iterable[Path]) -> None:
        """Remove what is older than the newest checkpoints that are kept."""
        if self.keep is None:
            return
        left = self.keep
        for path in reversed(list(paths)):
            if left == 0:
                _remove(path)
            left -= left > 0 and path not in self._passed_over

    def _clear_unfinished(self) -> None:
        """Remove what killed processes left half written."""
        for path in self.folder.glob(f"{_TEMPORARY}*"):
            pid = path.name.removeprefix(_TEMPORARY).split("-")[0]
            # One of our own number is a dead namesake's: containers give out the same few numbers again and again.
            if not _PROCESS.fullmatch(pid) or int(pid) == os.getpid() or not _alive(int(pid)):
                shutil.rmtree(path, ignore_errors=True)


def load(path: str | os.PathLike[str]) -> Checkpoint:
    """Read one checkpoint.

    Raises:
        StateError: it is torn, damaged, of another version, or no checkpoint at all.
    """
    folder = Path(path)
    try:
        text = read_regular(folder / STATE, _LARGEST_STATE)
        if text.startswith(_SEALED):
            seal = check_seal(text, len(_SEALED), str(folder / STATE))
            content = json.loads(text)
            state, tie = content["state"], content["tensors"]
        else:
            state, tie, seal = _state_of_0_1(folder, text), None, hashlib.sha256(text).hexdigest()
    except OSError as error:
        raise StateError(f"expected a checkpoint in {folder}, got no {STATE}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise StateError(f"expected a state as JSON in {folder / STATE}, got: {shown(error, 200)}") from error
    tensors, _, found = load_contents(folder / TENSORS)
    if found != tie:
        raise StateError(
            f"expected the tensors that {folder / STATE} was saved with, got others in {folder / TENSORS}",
            saved={"seal": tie},
            current={"seal": found},
        )
    return Checkpoint(folder, tensors, state, seal)


def nothing_whole(folder: Path, paths: Sequence[Path]) -> StateError:
    """The error of a run whose checkpoints cannot be used."""
    return StateError(
        f"expected a whole checkpoint in {folder}, got {len(paths)} and all of them damaged; the newest is "
        f"{paths[-1].name}",
        hint="the log says what is wrong with each: bring one back, take another folder, or pass restore=False",
    )


def _state_of_0_1(folder: Path, text: bytes) -> dict[str, Any]:
    """The state of a checkpoint that has no seal."""
    state = json.loads(text)
    if not isinstance(state, dict) or state.get("feedline") != 1 or "seal" in state:
        found = state.get("feedline") if isinstance(state, dict) else type(state).__name__
        raise StateError(
            f"expected a checkpoint of version {VERSION} in {folder}",
            saved={"feedline": found},
            current={"feedline": VERSION},
        )
    state.pop("feedline")
    return state


def _remove(path: Path) -> None:
    """Delete a checkpoint, or what stands in its place."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("could not remove %s: %s", path, error)


def _write(path: Path, content: bytes) -> None:
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
