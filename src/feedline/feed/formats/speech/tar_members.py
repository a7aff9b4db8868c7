"""Members of tar archives by name: an archive is scanned when one of its members is first read."""

from __future__ import annotations

import io
import os
import tarfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import BinaryIO, NamedTuple

from feedline.errors import DataError
from feedline.feed.files import remote
from feedline.feed.files.lru import LruCache
from feedline.feed.files.paths import open_file, read_at, status_of

_MAX_MEMBERS = 1 << 20  # of all archives whose members are known
_DAMAGE = (tarfile.TarError, EOFError, ValueError, OverflowError, zlib.error)


class ChangedArchiveError(DataError):
    """An archive was changed or replaced while its corpus was open. Never skipped, as all of its recordings may be
    wrong."""


class Member(NamedTuple):
    """A member of an archive.

    Attributes:
        path: its path in the archive.
        begin: first byte of its content.
        size: size of its content in bytes.
    """

    path: str
    begin: int
    size: int


class MemberNames(NamedTuple):
    """The members of an archive by one kind of name.

    Attributes:
        members: member by name; the first one of those with the same name.
        repeated: path of the second member by name, where there is one.
    """

    members: dict[str, Member]
    repeated: dict[str, str]


Version = tuple[int, ...]
"""Size of a file, what identifies it, and the times of its last changes."""


class TarMembers:
    """The members of archives.

    An archive is read as long as it is the file that it was when this was created. Later ones, and those that were
    missing then, are compared with their first scan.

    Args:
        names_of: function of a member's path in the archive that returns the names under which it is read, one of each
            kind, in the order in which they are tried. It returns none for a member that is never read.
        archives: paths of the archives.

    Attributes:
        sizes: sizes of the archives in bytes by path, 0 for a missing one, of which reading raises the error.
    """

    def __init__(self, names_of: Callable[[str], Sequence[str]], archives: Iterable[str]) -> None:
        self._names_of = names_of
        versions = {path: _version_at(path) for path in archives}
        self.sizes = {path: 0 if version is None else version[0] for path, version in versions.items()}
        self._versions = {path: version for path, version in versions.items() if version is not None}
        self._kinds: LruCache[str, list[MemberNames]] = LruCache(self._scan, _cost, _MAX_MEMBERS)

    def read(self, path: str, names: Sequence[str], memory_bytes: int) -> bytes:
        """Return the content of a member of at most ``memory_bytes``.

        Args:
            path: path of the archive.
            names: the member's name of each kind. The first one that a member has counts.
            memory_bytes: bytes that the content may have.

        Raises:
            ChangedArchiveError: the archive has changed.
            DataError: there is no such member, or several, it is cut off or too large, or the archive cannot be read.
        """
        member = self._member(path, names)
        if member.size > memory_bytes:
            what = f"expected recordings of at most {memory_bytes} bytes more in a chunk (memory), got one of "
            raise DataError(f"{what}{member.size}", path=path, byte=member.begin, hint="raise memory=")
        with open_file(path) as file:
            content = read_at(file, member.size, member.begin)
            self._check_unchanged(file, path)
        if len(content) < member.size:
            what = f"expected {member.size} bytes of `{names[0]:.200}`, got {len(content)}: truncated"
            raise DataError(what, path=path, byte=member.begin)
        return content

    def _member(self, path: str, names: Sequence[str]) -> Member:
        for kind, name in zip(self._kinds.get(path), names, strict=False):  # an archive without members has no kinds
            if name in kind.repeated:
                first, second = kind.members[name].path, kind.repeated[name]
                raise DataError(
                    f"expected one member `{name:.200}` in the archive, got {first!a:.200} and {second!a:.200}",
                    path=path,
                    hint="write the archive again with a unique name for each recording",
                )
            if name in kind.members:
                return kind.members[name]
        raise DataError(f"expected `{names[0]:.200}` in the archive, got no such member", path=path)

    def _scan(self, path: str) -> list[MemberNames]:
        """Return the members up to the end of the archive, or up to its first damage."""
        kinds: list[MemberNames] = []
        with open_file(path, io.DEFAULT_BUFFER_SIZE) as file:
            self._check_unchanged(file, path)
            try:
                with tarfile.open(fileobj=file, mode="r:") as archive:
                    for info in archive:
                        if info.isreg() and not info.issparse():
                            self._add(Member(info.name, info.offset_data, info.size), kinds)
            except _DAMAGE as error:
                if not kinds:
                    what = f"expected a tar archive: {error}"
                    raise DataError(what, path=path, hint="restore the file, or write it again") from error
            self._check_unchanged(file, path)
        return kinds

    def _add(self, member: Member, kinds: list[MemberNames]) -> None:
        for k, name in enumerate(self._names_of(member.path)):
            if k == len(kinds):
                kinds.append(MemberNames({}, {}))
            if kinds[k].members.setdefault(name, member) is not member:
                kinds[k].repeated.setdefault(name, member.path)

    def _check_unchanged(self, file: BinaryIO, path: str) -> None:
        """Check that an open archive is the one that it was before.

        Raises:
            ChangedArchiveError: it was changed or replaced since.
        """
        version = _version(file)
        if version != self._versions.setdefault(path, version):
            raise ChangedArchiveError(
                "expected the archive as it was when it was opened, got one that has changed since",
                path=path,
                hint="open it again; its recordings may have changed",
            )


def _cost(kinds: list[MemberNames]) -> int:
    return sum(len(kind.members) for kind in kinds) + 1


def _version(file: BinaryIO) -> Version:
    """Return the version of an open file.

    Raises:
        DataError: the file system does not return it.
    """
    status = status_of(file)
    if remote.remote_of(file) is not None:  # whose file changes with every fetch
        return status.st_size, status.st_mtime_ns
    return _local_version(status)


def _version_at(path: str) -> Version | None:
    """Return the version of the file at a path, or None if there is none."""
    remote_object = remote.object_at(path)
    if remote_object is not None:
        return remote_object.size, remote_object.modified_ns
    try:
        return _local_version(os.stat(path))
    except OSError:
        return None


def _local_version(status: os.stat_result) -> Version:
    return status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns
