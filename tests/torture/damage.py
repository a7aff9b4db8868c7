"""Damage to files, one change at a time: every kind at every place.

A change is drawn from random numbers alone and describes itself in words, so that it can be repeated by hand.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

INSIDE = ("bit", "byte", "digit", "zeros", "ones", "insert", "delete", "cut", "moved", "swapped")
"""Changes of some bytes; ``swapped`` takes those of another file of the same kind."""

WHOLE = ("extended", "grown", "empty", "gone", "another", "folder", "fifo", "dangling", "loop", "device")
"""Changes of a file as a whole; ``another`` is another file of the same kind in its place."""


@dataclass(frozen=True)
class Change:
    """One change of one file.

    Attributes:
        file: its path, relative to the folder.
        kind: one of `INSIDE` or `WHOLE`.
        at: byte where it begins.
        size: bytes it concerns.
        luck: seed of its random numbers.
    """

    file: str
    kind: str
    at: int
    size: int
    luck: int

    def __str__(self) -> str:
        return f"{self.file}: {self.kind}" + (f" at byte {self.at}, {self.size} bytes" if self.kind in INSIDE else "")

    def apply(self, folder: Path, other: Path | None = None, in_place: bool = False) -> bool:
        """Make the change, return whether anything differs.

        Args:
            folder: folder of the file.
            other: a folder with another file of that name, for ``swapped`` and ``another``.
            in_place: write to the existing file, which a process may have open or mapped, instead of replacing it
                by a new one.
        """
        path = folder / self.file
        before = path.read_bytes()
        theirs = (other / self.file).read_bytes() if other is not None and (other / self.file).is_file() else before
        if self.kind in WHOLE and not self._replaces(path, before, theirs):
            return True
        after = self.bytes_of(before, theirs)
        if after == before:
            return False
        if in_place:
            with open(path, "r+b") as file:
                file.write(after)
                file.truncate()
        else:
            new = path.with_name(f"{path.name}.changed")
            new.write_bytes(after)
            shutil.copystat(path, new)
            os.replace(new, path)
        return True

    def _replaces(self, path: Path, before: bytes, theirs: bytes) -> bool:
        """Return whether the result is a plain file. Else it was put there."""
        if self.kind in ("extended", "empty", "another"):
            return True
        if self.kind == "grown":
            os.truncate(path, len(before) + (1 << 30))
            return False
        path.unlink()
        if self.kind == "folder":
            path.mkdir()
        elif self.kind == "fifo":
            os.mkfifo(path)
        elif self.kind == "dangling":
            path.symlink_to("/nonexistent/file")
        elif self.kind == "loop":
            path.symlink_to(path.name)
        elif self.kind == "device":
            path.symlink_to("/dev/zero")
        return False

    def bytes_of(self, before: bytes, theirs: bytes) -> bytes:
        """Return the content of the file after the change."""
        rng, at, end = random.Random(self.luck), self.at, self.at + self.size
        data = bytearray(before)
        if self.kind == "bit":
            data[at] ^= 1 << rng.randrange(8)
        elif self.kind == "byte":
            data[at] = rng.randrange(256)
        elif self.kind == "digit":
            digits = [i for i in range(at, len(data)) if 48 <= data[i] <= 57][:1]
            for i in digits:
                data[i] = rng.choice([c for c in b"0123456789" if c != data[i]])
        elif self.kind in ("zeros", "ones"):
            data[at:end] = (b"\0" if self.kind == "zeros" else b"\xff") * len(data[at:end])
        elif self.kind == "insert":
            data[at:at] = rng.randbytes(self.size)
        elif self.kind == "delete":
            del data[at:end]
        elif self.kind == "cut":
            del data[at:]
        elif self.kind == "moved":
            start = rng.randrange(len(data))
            data[at:end] = data[start : start + len(data[at:end])]
        elif self.kind == "swapped":
            data[at:end] = theirs[at:end]
        elif self.kind == "extended":
            data += rng.choice([b"\0", b"\n", b"x" * 8, rng.randbytes(64), bytes(before[: len(before) // 2])])
        elif self.kind == "empty":
            data.clear()
        elif self.kind == "another":
            data[:] = theirs
        return bytes(data)


def draw(rng: random.Random, folder: Path, files: Sequence[str], kinds: Sequence[str] = INSIDE + WHOLE) -> Change:
    """Draw a random change of one of some files, anywhere or in a header or footer with equal probability."""
    file = rng.choice(sorted(files))
    size = (folder / file).stat().st_size
    kind = rng.choice([k for k in kinds if size or k not in INSIDE])
    at = rng.randrange(max(size, 1))
    if size > 256 and rng.random() < 0.4:
        near = rng.randrange(256)
        at = near if rng.random() < 0.6 else size - 1 - near
    return Change(file, kind, at, rng.choice([1, 2, 4, 8, 16, 64, 512]), rng.randrange(1 << 32))


def mutated(rng: random.Random, text: bytes, other: bytes = b"", words: Sequence[bytes] = ()) -> tuple[bytes, str]:
    """Return a hostile variant of ``text``, and a description of the changes.

    Args:
        rng: decides.
        text: the original.
        other: another of its kind, from which parts are taken.
        words: of the format's grammar, put in anywhere.
    """
    done = []
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        if not text:
            break
        at = rng.randrange(len(text))
        if words and rng.random() < 0.4:
            word = rng.choice(list(words))
            end = at + rng.choice([0, 0, len(word), rng.randrange(16)])
            text = text[:at] + word + text[end:]
            done.append(f"{word!r:.40} at {at}")
            continue
        change = Change("text", rng.choice(INSIDE), at, rng.choice([1, 2, 4, 8, 32, 300]), rng.randrange(1 << 32))
        text = change.bytes_of(text, other or text)
        done.append(f"{change.kind} at {at}, {change.size}")
    return text, "; ".join(done)
