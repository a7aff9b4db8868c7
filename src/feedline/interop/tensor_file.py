"""Tensors in a file: safetensors, with a CRC-32C each, and nothing pickled.

Tensors that share memory (tied weights) are written once. A file is forced to disk before `save_tensors` returns, and
one that was torn or damaged is refused when it is read.

Costs: the bytes of the tensors once to disk, a checksum at memory speed, one fsync.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
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


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any] | None = None) -> None:
    """Write tensors as one new safetensors file, forced to disk.

    Written by hand: the memory of the tensors goes to the file as it is, without the copy that the library makes.
    Names of tensors that share memory go to its metadata.

    Args:
        path: where; nothing may be there.
        tensors: by name, on any device.
        state: JSON types, kept in the file's metadata.

    Raises:
        TypeError: a tensor of a dtype that safetensors does not have, or a state of other types.
        FileExistsError: there is a file already.
    """
    about: dict[str, Any] = {}
    if state is not None:
        about["state"] = json.dumps(state)
        about["state_crc32c"] = _native.crc32c(about["state"].encode())
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
    about["aliases"] = aliases
    about["crc32c"] = {name: _native.crc32c(_bytes(tensor)) for name, tensor in stored.items()}
    header: dict[str, Any] = {"__metadata__": {"feedline": json.dumps(about)}}
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


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file that `save_tensors` wrote.

    Raises:
        StateError: the file is missing, torn or damaged.
    """
    return _load(path)[0]


def load_tensors_and_state(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors and the state of a file that `save_tensors` wrote with a state.

    Raises:
        StateError: the file is missing, torn or damaged, or holds no state.
    """
    tensors, about = _load(path)
    text = about.get("state")
    if not isinstance(text, str) or _native.crc32c(text.encode()) != about.get("state_crc32c"):
        raise StateError(f"expected a state beside the tensors in {path}, got {'none' if text is None else 'another'}")
    return tensors, json.loads(text)


def _load(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["feedline"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
        sums, aliases = about["crc32c"], about["aliases"]
        if sums.keys() != tensors.keys():
            raise StateError(f"expected the tensors {sorted(sums)} in {path}, got {sorted(tensors)}")
        for name, tensor in tensors.items():
            if _native.crc32c(_bytes(tensor)) != sums[name]:
                raise StateError(f"expected CRC-32C {sums[name]:08x} of tensor `{name}` in {path}, got another")
        return {**tensors, **{name: tensors[owner] for name, owner in aliases.items()}}, about
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise StateError(f"expected tensors in {path}, got a torn or foreign file: {error}") from error


def _bytes(tensor: torch.Tensor) -> Any:
    return tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else b""
