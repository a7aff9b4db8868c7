"""Members of zip archives, read by one thread at a time. Sizes in an archive's directory are checked before memory is
allocated for them."""

from __future__ import annotations

import lzma
import os
import struct
import zipfile
import zlib

from feedline.errors import DataError
from feedline.feed.files.paths import open_file
from feedline.feed.files.remote import object_at

_ERRORS = (
    *(OSError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, NotImplementedError, RuntimeError, ValueError),
)
_LOCAL_HEADER_BYTES = 30  # before the name


def open_archive(path: str) -> zipfile.ZipFile:
    """Open a zip archive.

    Raises:
        DataError: the file is missing, or its directory is damaged.
    """
    with open_file(path):  # refuses a FIFO, which would block
        pass
    try:
        return zipfile.ZipFile(path if object_at(path) is None else open_file(path, -1))
    except _ERRORS as error:
        raise DataError(f"expected a zip archive: {error}", path=path) from error


def read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Return the content of a member, whose checksum is compared.

    Raises:
        DataError: the member is damaged.
    """
    _check_end(archive, member)
    try:
        return archive.read(member)
    except _ERRORS as error:
        raise DataError(f"expected `{member.filename}` to be readable in the archive: {error}") from error


def read_part(archive: zipfile.ZipFile, member: zipfile.ZipInfo, start: int, stop: int) -> bytes:
    """Return the bytes ``start:stop`` of a member. Nothing else is read if the member is stored uncompressed.

    Raises:
        DataError: the member is damaged.
    """
    if member.compress_type != zipfile.ZIP_STORED or archive.fp is None:
        return read_member(archive, member)[start:stop]
    _check_end(archive, member)
    file = archive.fp.fileno()
    try:
        header = os.pread(file, _LOCAL_HEADER_BYTES, member.header_offset)
        if not header.startswith(b"PK\x03\x04"):
            raise ValueError("no header")
        # The extra fields here may differ from the extra fields in the directory.
        data = member.header_offset + _LOCAL_HEADER_BYTES + sum(struct.unpack("<HH", header[26:30]))
        return os.pread(file, max(0, min(stop, member.compress_size) - start), data + start)
    except _ERRORS as error:
        raise DataError(f"expected `{member.filename}` to be readable in the archive: {error}") from error


def _check_end(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    if member.header_offset + member.compress_size > archive.start_dir:  # zipfile would allocate that size
        raise DataError(f"expected `{member.filename}` to end before the archive's directory, got a damaged size")
