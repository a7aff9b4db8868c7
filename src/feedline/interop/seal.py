"""Seals: JSON text that contains its own SHA-256, and reading files without trusting them.

A sealed text has 64 hex digits at a place of its writer's choice: the digest of the text with zeros in that place. So a
change of any byte, even in the seal, is detected. A seal proves that a text is intact, not who wrote it: there is no
key.

Cost: a microsecond, and about a nanosecond per byte of text.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from typing import BinaryIO

from feedline.errors import StateError

#: Placeholder for a seal in a text.
BLANK = "0" * 64
_SEAL = re.compile(rb"[0-9a-f]{64}")


def seal_of(text: bytes, at: int) -> str:
    """Return the seal of a text that has, or will have, one at ``at``."""
    return hashlib.sha256(text[:at] + BLANK.encode() + text[at + len(BLANK) :]).hexdigest()


def add_seal(text: bytes, at: int) -> bytes:
    """Return the text with its seal at ``at``, in place of `BLANK`."""
    return text[:at] + seal_of(text, at).encode() + text[at + len(BLANK) :]


def check_seal(text: bytes, at: int, what: str) -> str:
    """Check and return the seal at ``at``.

    Raises:
        StateError: it does not match the text, which the error calls ``what``.
    """
    seal = text[at : at + len(BLANK)]
    if not _SEAL.fullmatch(seal) or seal.decode() != seal_of(text, at):
        raise StateError(f"expected the seal of {what} to match its content, got another: it is damaged")
    return seal.decode()


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading. A FIFO or a device in its place could block, or never end.

    Raises:
        StateError: it is not a regular file.
        OSError: it cannot be opened.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"))
    kind = next((name for test, name in kinds if test(mode)), "a device")
    raise StateError(f"expected a regular file at {path}, got {kind}")


def read_regular(path: str | os.PathLike[str], limit: int) -> bytes:
    """Return the content of a file of at most ``limit`` bytes.

    Raises:
        StateError: it is larger, or not a regular file.
        OSError: it cannot be read.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise StateError(f"expected at most {limit} bytes in {path}, got {size}")
        return file.read(limit)
