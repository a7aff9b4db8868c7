"""Write a file completely or not at all.

The content goes to a temporary file in the same folder, is forced to disk and then takes the name at once:
readers see the old file or the whole new one, several writers cannot mix, and an error leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from feedline.errors import DataError

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextlib.contextmanager
def atomic_file(path: Path, mode: int = 0o644, hint: str | None = None) -> Iterator[BinaryIO]:
    """A new file open for reading and writing that becomes ``path`` when the block ends without an exception.

    Args:
        path: the name to take; whatever has it is replaced.
        mode: permission bits, narrowed by nothing else.
        hint: what a full disk's error advises.

    Raises:
        DataError: no space is left, or the file would pass a size limit.
        OSError: the folder does not exist or cannot be written.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
            os.replace(name, path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            raise DataError(
                f"expected room for {path.name} in {path.parent}, got: {error.strerror}", path=str(path), hint=hint
            ) from error
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    # The rename itself is data of the folder.
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        pass  # some network file systems refuse; the file's own bytes are safe
    finally:
        os.close(handle)
