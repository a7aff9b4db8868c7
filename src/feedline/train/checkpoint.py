"""Checkpoints: one folder each, whole or not there, tensors as safetensors and everything else as JSON.

A folder is written under a temporary name, forced to disk, and then takes its name; a process killed at any
instant leaves either the whole checkpoint or none, and the ones before it untouched. Tensors carry a CRC-32C each.
What is found torn, damaged or foreign is passed over with a warning that says why, and the one before it is used.
Nothing is pickled, so a checkpoint from anywhere may be read.

Costs: the bytes of the tensors once to disk, a checksum at memory speed, one fsync a file. Tensors that share memory
(tied weights) are written once.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from feedline.errors import StateError
from feedline.interop.tensor_file import check_json, load_tensors, save_tensors, sync

VERSION = 1
TENSORS, STATE = "tensors.safetensors", "state.json"
_NAME, _TEMPORARY = re.compile(r"checkpoint-(\d+)-(\d+)"), ".writing-"

_log = logging.getLogger("feedline")


class Checkpoint(NamedTuple):
    """What was saved.

    Attributes:
        path: the folder.
        tensors: by name, on the CPU.
        state: JSON types.
    """

    path: Path
    tensors: dict[str, torch.Tensor]
    state: dict[str, Any]


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
            OSError: no space, no permission; nothing is left behind and the other checkpoints are untouched.
        """
        text = json.dumps({"feedline": VERSION, **check_json(state)}, allow_nan=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._clear_unfinished()
        before = self.paths()
        serial = 1 + (int(before[-1].name.split("-")[1]) if before else 0)
        target = self.folder / f"checkpoint-{serial:06d}-{number}"
        writing = self.folder / f"{_TEMPORARY}{os.getpid()}-{uuid.uuid4().hex[:8]}"
        try:
            writing.mkdir()
            save_tensors(writing / TENSORS, tensors)
            _write(writing / STATE, text.encode())
            sync(writing)
            writing.rename(target)
        except BaseException:
            shutil.rmtree(writing, ignore_errors=True)
            raise
        sync(self.folder)
        if self.keep is not None:
            for old in [*before, target][: -self.keep]:
                shutil.rmtree(old)
        return target

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole, or None; warns of each one passed over."""
        for path in reversed(self.paths()):
            try:
                return load(path)
            except StateError as error:
                _log.warning("passing over %s: %s", path, error)
        return None

    def _clear_unfinished(self) -> None:
        """Remove what killed processes left half written."""
        for path in self.folder.glob(f"{_TEMPORARY}*"):
            pid = path.name.removeprefix(_TEMPORARY).split("-")[0]
            # One of our own number is a dead namesake's: containers give out the same few numbers again and again.
            if not pid.isdigit() or int(pid) == os.getpid() or not _alive(int(pid)):
                shutil.rmtree(path, ignore_errors=True)


def load(path: str | os.PathLike[str]) -> Checkpoint:
    """Read one checkpoint.

    Raises:
        StateError: it is torn, damaged, of another version, or no checkpoint at all.
    """
    folder = Path(path)
    try:
        state = json.loads((folder / STATE).read_bytes())
    except OSError as error:
        raise StateError(f"expected a checkpoint in {folder}, got: {error.strerror}") from error
    except ValueError as error:
        raise StateError(f"expected JSON in {folder / STATE}, got: {error}") from error
    if not isinstance(state, dict) or state.get("feedline") != VERSION:
        found = state.get("feedline") if isinstance(state, dict) else type(state).__name__
        raise StateError(
            f"expected a checkpoint of version {VERSION} in {folder}",
            saved={"feedline": found},
            current={"feedline": VERSION},
        )
    state.pop("feedline")
    return Checkpoint(folder, load_tensors(folder / TENSORS)[0], state)


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
