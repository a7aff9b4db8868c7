"""Checkpoints: one folder each, whole or not there, tensors as safetensors and everything else as JSON.

A folder is written under a temporary name, forced to disk, and then takes its name; a process killed at any
instant leaves either the whole checkpoint or none, and the ones before it untouched. Tensors carry a CRC-32C each.
What is found torn, damaged or foreign is passed over with a warning that says why, and the one before it is used.
Nothing is pickled, so a checkpoint from anywhere may be read.

Costs: the bytes of the tensors once to disk, a checksum at memory speed, one fsync a file. Tensors that share memory
(tied weights) are written once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from feedline import _native
from feedline.errors import StateError

VERSION = 1
TENSORS, STATE = "tensors.safetensors", "state.json"
_NAME, _TEMPORARY = re.compile(r"checkpoint-(\d+)-(\d+)"), ".writing-"

#: As safetensors names them.
_DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}

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
        text = json.dumps({"feedline": VERSION, **_check_json(state)}, allow_nan=True)
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
            _sync(writing)
            writing.rename(target)
        except BaseException:
            shutil.rmtree(writing, ignore_errors=True)
            raise
        _sync(self.folder)
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


def replace_tensors(path: Path, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any] | None = None) -> None:
    """As `save_tensors`, in place of a file that may be there: killed at any instant, ``path`` is the old or the new.

    It is written as ``<path>.tmp``; what a killed process left of that is written over.
    """
    writing = path.with_name(f"{path.name}.tmp")
    writing.unlink(missing_ok=True)
    try:
        save_tensors(writing, tensors, state)
        writing.replace(path)
    except BaseException:
        writing.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any] | None = None) -> None:
    """Write tensors as one new safetensors file, forced to disk; names that share memory go to its metadata.

    Written by hand: the memory of the tensors goes to the file as it is, without the copy that the library makes.

    Args:
        path: of the file.
        tensors: by name, on any device.
        state: JSON types that belong to them, kept in the metadata.

    Raises:
        TypeError: a tensor of a dtype that safetensors does not have, or a state that is not JSON.
    """
    stored: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    owners: dict[Any, str] = {}
    for name, tensor in tensors.items():
        plain = tensor.detach()
        if plain.dtype not in _DTYPES:
            raise TypeError(f"expected tensor `{name}` of a dtype that a checkpoint can hold, got {plain.dtype}")
        where = (plain.device, plain.data_ptr(), plain.shape, plain.stride(), plain.dtype)
        if plain.numel() and where in owners:
            aliases[name] = owners[where]
            continue
        owners[where] = name
        stored[name] = plain.cpu().contiguous()
    # The largest elements first: every tensor then begins at a multiple of its elements' size.
    stored = dict(sorted(stored.items(), key=lambda item: -item[1].element_size()))
    sums = {name: _native.crc32c(_bytes(tensor)) for name, tensor in stored.items()}
    header: dict[str, Any] = {"__metadata__": {"feedline": json.dumps({"aliases": aliases, "crc32c": sums})}}
    if state is not None:
        told = json.dumps(_check_json(state))
        header["__metadata__"] |= {"state": told, "state_crc32c": f"{_native.crc32c(told.encode()):08x}"}
    end = 0
    for name, tensor in stored.items():
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in stored.values():
            file.write(_bytes(tensor))
        file.flush()
        os.fsync(file.fileno())


def load_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Read what `save_tensors` wrote: the tensors and the state, empty if there was none.

    Raises:
        StateError: the file is missing, torn or damaged.
    """
    with _opened(path) as file:
        metadata = file.metadata() or {}
        about = json.loads(metadata["feedline"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
        sums, aliases = about["crc32c"], about["aliases"]
        if sums.keys() != tensors.keys():
            raise StateError(f"expected the tensors {sorted(sums)} in {path}, got {sorted(tensors)}")
        for name, tensor in tensors.items():
            if _native.crc32c(_bytes(tensor)) != sums[name]:
                raise StateError(f"expected CRC-32C {sums[name]:08x} of tensor `{name}` in {path}, got another")
        return {**tensors, **{name: tensors[owner] for name, owner in aliases.items()}}, _state(path, metadata)


def load_state(path: Path) -> dict[str, Any]:
    """The state alone of what `save_tensors` wrote, without reading the tensors.

    Raises:
        StateError: the file is missing, torn or damaged.
    """
    with _opened(path) as file:
        return _state(path, file.metadata() or {})


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The file within the block; what is wrong with it as StateError."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        if isinstance(error, StateError):
            raise
        raise StateError(f"expected tensors in {path}, got a torn or foreign file: {error}") from error


def _state(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    text = metadata.get("state", "{}")
    if "state" in metadata and f"{_native.crc32c(text.encode()):08x}" != metadata["state_crc32c"]:
        raise StateError(f"expected CRC-32C {metadata['state_crc32c']} of the state in {path}, got another")
    state: dict[str, Any] = json.loads(text)
    return state


def _bytes(tensor: torch.Tensor) -> Any:
    return tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else b""


def _check_json(state: Mapping[str, Any]) -> dict[str, Any]:
    try:
        again = json.loads(json.dumps(state))
    except (TypeError, ValueError) as error:
        raise TypeError(f"expected a state of JSON types only: {error}") from error
    if not isinstance(again, dict):
        raise TypeError(f"expected a mapping as state, got {type(state).__name__}")
    return again


def _write(path: Path, content: bytes) -> None:
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
