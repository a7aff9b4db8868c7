"""Addresses of media: the path of a file, and optionally a time or a segment in it, as one text.

``clip.mp4#t=1.5`` is what is displayed at 1.5 s, ``talk.flac#t=1.5,4.25`` is the segment from 1.5 s up to 4.25 s, whose
end is excluded. These are media fragments of the W3C, in seconds. Numbers are written with all their digits. In paths
``%`` and ``#`` are written as ``%25`` and ``%23``, and no other character is escaped.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from feedline.errors import DataError

_FRAGMENT = re.compile(r"t=([0-9][0-9.e+-]*)(?:,([0-9][0-9.e+-]*))?", re.ASCII)
_UNESCAPED = re.compile("%(?!2[35])")


class MediaAddress(NamedTuple):
    """A file of media, or a part of it. ``str(address)`` is its text.

    Attributes:
        path: path of the file.
        begin_s: the time, or the begin of the segment, in seconds; None means the file as a whole.
        end_s: the end of the segment, which is excluded; None means a point in time.
    """

    path: str
    begin_s: float | None = None
    end_s: float | None = None

    def __str__(self) -> str:
        path = self.path.replace("%", "%25").replace("#", "%23")
        if self.begin_s is None:
            return path
        begin = repr(float(self.begin_s))
        return f"{path}#t={begin}" if self.end_s is None else f"{path}#t={begin},{float(self.end_s)!r}"


def parse(text: str) -> MediaAddress:
    """Return the address that a text denotes.

    Raises:
        DataError: it denotes none.
    """
    path, mark, fragment = text.partition("#")
    if not path or _UNESCAPED.search(path):
        raise _malformed(text)
    path = path.replace("%23", "#").replace("%25", "%")
    if not mark:
        return MediaAddress(path)
    match = _FRAGMENT.fullmatch(fragment)
    if match is None:
        raise _malformed(text)
    try:
        begin, end = float(match[1]), None if match[2] is None else float(match[2])
    except ValueError:
        raise _malformed(text) from None
    if not math.isfinite(begin) or (end is not None and not begin < end < math.inf):
        raise _malformed(text)
    return MediaAddress(path, begin, end)


def _malformed(text: str) -> DataError:
    return DataError(
        f"expected an address such as clip.mp4#t=1.5 or talk.flac#t=1.5,4.25, got {text!r:.200}",
        hint="times are seconds from 0 on, and a segment ends after it begins; write % and # of a path as %25 and %23",
    )
