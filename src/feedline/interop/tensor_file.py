"""Tensors in a file, and a state with them: safetensors, a CRC-32C each, nothing pickled.

Tensors that share memory (tied weights) are written once. A file is forced to disk before it is done, and one that was
torn or damaged is refused when it is read.

Costs: the bytes of the tensors once to disk, a checksum at memory speed, one fsync.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from feedline import _native
from feedline.errors import StateError

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
    sync(path.parent)


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
        told = json.dumps(check_json(state))
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


def check_json(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state as JSON gives it back.

    Raises:
        TypeError: it is no mapping, or not of JSON types.
    """
    try:
        again = json.loads(json.dumps(state))
    except (TypeError, ValueError) as error:
        raise TypeError(f"expected a state of JSON types only: {error}") from error
    if not isinstance(again, dict):
        raise TypeError(f"expected a mapping as state, got {type(state).__name__}")
    return again


def sync(folder: Path) -> None:
    """Force a folder's names to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
