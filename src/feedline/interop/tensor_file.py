"""Tensors and a state in a safetensors file: checksums over every byte, nothing pickled.

Tensors that share memory (tied weights) are written once. A file is flushed to disk before it is complete, and a torn
or damaged one is refused when it is read:

- The header has a `seal`. It contains names, shapes, the state, aliases and the checksums below.
- Each tensor has 64 bits of checksum: CRC-32C and CRC-32. Their polynomials have no common factor, so together they are
  one CRC of 64 bits: it detects every burst of up to 64 bits, and all but one in 2^64 of other damage.

Cost: the tensors' bytes once to disk, one fsync, and checksums, which a thread computes while the file is written.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import stat
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch

from feedline import _native
from feedline.concurrency.named_threads import begin
from feedline.errors import StateError
from feedline.interop.seal import BLANK, add_seal, check_seal, open_regular

VERSION = 2

#: dtypes by their names in safetensors.
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


_NAMES = {name: dtype for dtype, name in _DTYPES.items()}
#: The seal comes first, so that the first bytes identify a file.
_SEALED = b'{"__metadata__": {"seal": "'
#: Maximum bytes of a header, as in the safetensors library.
_LARGEST_HEADER_BYTES = 100_000_000
#: Offset of the seal in a file. The first 8 bytes are the size of its header.
_AT = 8 + len(_SEALED)
#: Bytes of tensors from which a thread for the checksums pays off.
_MANY_BYTES = 1 << 20


class Contents(NamedTuple):
    """The content of a file.

    Attributes:
        tensors: tensors by name, on the CPU.
        state: the state, empty if there is none.
        seal: seal of the header, and so of everything.
    """

    tensors: dict[str, torch.Tensor]
    state: dict[str, Any]
    seal: str


def replace_tensors(path: Path, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any] | None = None) -> None:
    """Write like `save_tensors`, atomically replacing ``path``: after a kill at any instant it is the old or the new
    file.

    The file is written as ``<path>.tmp``, overwriting the file of a killed process. Concurrent processes wait for each
    other, and the last one's file stays.
    """
    writing = path.with_name(f"{path.name}.tmp")
    with _claim(writing) as file:
        try:
            file.truncate(0)
            _write(file, tensors, state)
            writing.replace(path)
        except BaseException:
            if is_file_at(file.fileno(), writing):
                writing.unlink()
            raise
    sync(path.parent)


@contextlib.contextmanager
def _claim(path: Path) -> Iterator[BinaryIO]:
    """Create or open the file at ``path``, and lock it, so that no other process writes it."""
    while True:
        with contextlib.suppress(FileNotFoundError):  # it may have been removed
            if not stat.S_ISREG(os.lstat(path).st_mode):
                path.unlink()
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        with os.fdopen(handle, "r+b") as file:
            with contextlib.suppress(OSError):  # the file system may have no locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            if is_file_at(handle, path):
                yield file
                return
        # Its previous owner has renamed or removed it: try again.


def is_file_at(handle: int, path: Path) -> bool:
    """Return whether an open file is the one at a path."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any] | None = None) -> str:
    """Write tensors to a new safetensors file, flushed to disk. Its metadata lists names that share memory.

    Implemented here because the library would copy the tensors' memory.

    Args:
        path: path of the file.
        tensors: tensors by name, on any device.
        state: state to store in the metadata, in JSON types.

    Returns:
        The file's seal.

    Raises:
        TypeError: safetensors does not have a tensor's dtype, or the state is not JSON.
    """
    with open(path, "xb") as file:
        return _write(file, tensors, state)


def _write(file: BinaryIO, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any] | None) -> str:
    """Fill an empty file. See `save_tensors`."""
    stored: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    owners: dict[Any, str] = {}
    for name, tensor in tensors.items():
        # Views that are conjugates or negatives share memory with their base, so resolve them.
        plain = tensor.detach().resolve_conj().resolve_neg()
        if plain.dtype not in _DTYPES:
            raise TypeError(f"expected a dtype that a checkpoint can hold for tensor `{name}`, got {plain.dtype}")
        where = (plain.device, plain.data_ptr(), plain.shape, plain.stride(), plain.dtype)
        if plain.numel() and where in owners:
            aliases[name] = owners[where]
            continue
        owners[where] = name
        stored[name] = plain.cpu().contiguous()
    # Largest elements first, so that every tensor is aligned to the size of its elements.
    stored = dict(sorted(stored.items(), key=lambda item: -item[1].element_size()))
    state_text = None if state is None else json.dumps(check_json(state))
    header = _header(stored, aliases, dict.fromkeys(stored, "0" * 16), state_text)
    contents, checksums = [_bytes(tensor) for tensor in stored.values()], list[str]()

    def compute() -> None:
        checksums.extend(map(_checksum, contents))

    thread = begin("checksums", compute, waited=True) if sum(map(len, contents)) >= _MANY_BYTES else None
    try:
        file.write(header)
        for content in contents:
            file.write(content)
    finally:
        if thread is not None:
            thread.join()
    if thread is None:
        compute()
    filled = add_seal(_header(stored, aliases, dict(zip(stored, checksums, strict=True)), state_text), _AT)
    file.seek(0)
    file.write(filled)
    file.flush()
    os.fsync(file.fileno())
    return filled[_AT : _AT + len(BLANK)].decode()


def _header(
    stored: Mapping[str, torch.Tensor], aliases: Mapping[str, str], checksums: Mapping[str, str], state_text: str | None
) -> bytes:
    """Return the header with its length, unsealed. Its size does not depend on the checksums."""
    about = {"version": VERSION, "aliases": aliases, "crc64": checksums}
    metadata = {"seal": BLANK, "feedline": json.dumps(about)}
    if state_text is not None:
        metadata["state"] = state_text
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, tensor in stored.items():
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def load_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Read a file of `save_tensors`: the tensors, and the state, empty if there is none.

    Raises:
        StateError: the file is missing, torn or damaged.
    """
    return load_contents(path)[:2]


def load_state(path: Path) -> dict[str, Any]:
    """Read only the state of a file of `save_tensors`.

    Raises:
        StateError: the file is missing, torn or damaged.
    """
    return load_contents(path, with_tensors=False).state


# Exceptions that the content of a damaged file can cause.
_DAMAGED = (OSError, KeyError, ValueError, TypeError, AttributeError, RecursionError, OverflowError)


def load_contents(path: Path, with_tensors: bool = True) -> Contents:
    """Read like `load_tensors`, with the seal, and optionally without the tensors."""
    try:
        with open_regular(path) as file:
            header, start, seal = _read_header(file, path)
            metadata = header.pop("__metadata__")
            about = json.loads(metadata["feedline"])
            if about["version"] != VERSION:
                raise StateError(
                    f"expected tensors of version {VERSION} in {path}",
                    saved={"version": about["version"]},
                    current={"version": VERSION},
                )
            state = json.loads(metadata.get("state", "{}"))
            places = _places(header, os.fstat(file.fileno()).st_size - start)
            tensors = _read_tensors(file, start, places, about, path) if with_tensors else {}
            return Contents(tensors, state, seal)
    except _DAMAGED as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else repr(error)
        raise StateError(f"expected a file of tensors at {path}, got a damaged or foreign file: {why}") from error


def _read_header(file: BinaryIO, path: Path) -> tuple[dict[str, Any], int, str]:
    """Return the header, the offset of the tensors, and the seal."""
    size = file.read(8)
    length = int.from_bytes(size, "little")
    if len(size) < 8 or not 2 <= length <= _LARGEST_HEADER_BYTES:
        raise ValueError(f"a header of {length} bytes")
    text = size + file.read(length)
    if len(text) != 8 + length:
        raise ValueError(f"it ends within its header of {length} bytes")
    if not text[8:].startswith(_SEALED):
        raise ValueError("a header without a seal")
    seal = check_seal(text, _AT, f"the header of {path}")
    header: dict[str, Any] = json.loads(text[8:])
    return header, 8 + length, seal


def _places(header: Mapping[str, Any], size: int) -> list[tuple[str, torch.dtype, list[int]]]:
    """Return names, dtypes and shapes of the tensors, in the order in which they fill ``size`` bytes without gaps."""
    at, places = 0, []
    for name, about in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape, (start, end) = _NAMES[about["dtype"]], about["shape"], about["data_offsets"]
        if not all(type(n) is int and n >= 0 for n in (start, end, *shape)):
            raise ValueError(f"tensor `{name}` of shape {shape!r:.80} at {start!r:.40}")
        if start != at or end - start != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"tensor `{name}` of {end - start} bytes at {start}, expected {shape!r:.80} at {at}")
        at = end
        places.append((name, dtype, shape))
    if at != size:
        raise ValueError(f"{size} bytes of tensors, expected {at}")
    return places


def _read_tensors(
    file: BinaryIO, start: int, places: list[tuple[str, torch.dtype, list[int]]], about: Mapping[str, Any], path: Path
) -> dict[str, torch.Tensor]:
    checksums, aliases = about["crc64"], about["aliases"]
    names = [name for name, _, _ in places]
    if sorted(checksums) != sorted(names):
        raise StateError(f"expected the tensors {sorted(checksums)} in {path}, got {sorted(names)}")
    tensors: dict[str, torch.Tensor] = {}
    file.seek(start)
    for name, dtype, shape in places:
        tensor = tensors[name] = torch.empty(shape, dtype=dtype)
        content = _bytes(tensor)
        if file.readinto(content) != tensor.nbytes:  # type: ignore[attr-defined]  # of every file opened to be read
            raise ValueError(f"it ends within tensor `{name}`")
        checksum = _checksum(content)
        if checksum != checksums[name]:
            raise StateError(f"expected checksum {checksums[name]} of tensor `{name}` in {path}, got {checksum}")
    return {**tensors, **{name: tensors[owner] for name, owner in aliases.items()}}


def _checksum(content: Any) -> str:
    """Return CRC-32C and CRC-32 as 16 hex digits."""
    return f"{_native.crc32c(content):08x}{zlib.crc32(content):08x}"


def _bytes(tensor: torch.Tensor) -> Any:
    """Return the memory of a contiguous tensor."""
    return tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else bytearray()


def check_json(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state as JSON restores it.

    Raises:
        TypeError: it is not a mapping, or not of JSON types.
    """
    try:
        again = json.loads(json.dumps(state))
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"expected a state of JSON types only: {error}") from error
    if not isinstance(again, dict):
        raise TypeError(f"expected a mapping as state, got {type(state).__name__}")
    return again


def sync(folder: Path) -> None:
    """Flush a folder's names to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
