"""Members of tar archives by name: an archive is scanned when one of its members is first read."""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import Callable

from feedline.errors import DataError
from feedline.feed.files.lru import LruCache
from feedline.feed.files.paths import open_file, read_at, size_of

_MAX_MEMBERS = 1 << 20  # of all archives whose members are known
_DAMAGE = (tarfile.TarError, EOFError, ValueError, OverflowError, zlib.error)

Places = dict[str, tuple[int, int]]
"""First byte and size of each member, by its name."""


class TarMembers:
    """The members of archives.

    Args:
        key: function of a member's path in the archive that returns its name, or None if it is never read. Of two
            members with a name the last one counts, as when an archive is extracted.
    """

    def __init__(self, key: Callable[[str], str | None]) -> None:
        self._key = key
        self._places: LruCache[str, Places] = LruCache(self._scan, lambda places: len(places) + 1, _MAX_MEMBERS)

    def read(self, path: str, name: str, memory_bytes: int) -> bytes:
        """Return the content of a member of at most ``memory_bytes``.

        Raises:
            DataError: there is no such member, it is cut off or too large, or the archive cannot be read.
        """
        place = self._places.get(path).get(name)
        if place is None:
            raise DataError(f"expected `{name:.200}` in the archive, got no such member", path=path)
        begin, size = place
        if size > memory_bytes:
            what = f"expected recordings of at most {memory_bytes} bytes more in a chunk (memory), got one of {size}"
            raise DataError(what, path=path, byte=begin, hint="raise memory=")
        with open_file(path) as file:
            content = read_at(file, size, begin)
        if len(content) < size:
            what = f"expected {size} bytes of `{name:.200}`, got {len(content)}: truncated"
            raise DataError(what, path=path, byte=begin)
        return content

    def _scan(self, path: str) -> Places:
        """Return the members up to the end of the archive, or up to its first damage."""
        places: Places = {}
        with open_file(path, io.DEFAULT_BUFFER_SIZE) as file:
            try:
                with tarfile.open(fileobj=file, mode="r:") as archive:
                    for member in archive:
                        name = self._key(member.name)
                        if name is not None and member.isreg() and not member.issparse():
                            places[name] = (member.offset_data, member.size)
            except _DAMAGE as error:
                if not places:
                    what = f"expected a tar archive: {error}"
                    raise DataError(what, path=path, hint="restore the file, or write it again") from error
        return places


def sizes_of(paths: list[str]) -> list[int]:
    """Return the sizes of archives in bytes, 0 for a missing one, of which reading raises the error."""
    sizes = []
    for path in paths:
        try:
            sizes.append(size_of(path))
        except OSError:
            sizes.append(0)
    return sizes
