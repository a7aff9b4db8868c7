"""Seals: JSON text that carries the SHA-256 of itself, and files that are read without being trusted.

A sealed text holds 64 hex digits at a place that its writer chose. They are the digest of the text with zeros in that
place, so one changed byte anywhere, the seal's own included, is noticed. A seal says that a text is whole, not who
wrote it: there is no key.

Cost: a microsecond, and a nanosecond or so for each byte of text.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from typing import BinaryIO

from feedline.errors import StateError

#: What stands in a text where its seal will be.
BLANK = "0" * 64
_SEAL = re.compile(rb"[0-9a-f]{64}")


def seal_of(text: bytes, at: int) -> str:
    """The seal of a text that has, or is to have, one at ``at``."""
    return hashlib.sha256(text[:at] + BLANK.encode() + text[at + len(BLANK) :]).hexdigest()


def sealed(text: bytes, at: int) -> bytes:
    """The text with its seal at ``at``, where `BLANK` is now."""
    return text[:at] + seal_of(text, at).encode() + text[at + len(BLANK) :]


def check_seal(text: bytes, at: int, what: str) -> str:
    """The seal at ``at``.

    Raises:
        StateError: it is not that of the text; says of ``what``.
    """
    found = text[at : at + len(BLANK)]
    if not _SEAL.fullmatch(found) or found.decode() != seal_of(text, at):
        raise StateError(f"expected the seal of {what} to be that of its content, got another: it was damaged")
    return found.decode()


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading if it is one: a FIFO or a device in its place would block, or never end.

    Raises:
        StateError: it is something else.
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
    """The content of a file of at most ``limit`` bytes.

    Raises:
        StateError: it is larger, or no regular file.
        OSError: it cannot be read.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise StateError(f"expected at most {limit} bytes in {path}, got {size}")
        return file.read(limit)
