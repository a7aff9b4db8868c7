"""Where a store is to appear: a folder of this machine, or, in `bucket`, of an object store.

The writer knows no other difference between them: it writes every store into a folder on a local disk, says when a file
of it is complete, and hands the folder over at the end.
"""

from __future__ import annotations

import abc
import os
from pathlib import Path

from feedline.feed.formats.store.manifest import MANIFEST
from feedline.feed.formats.store.staging import clear_leftovers, publish


class Target(abc.ABC):
    """A place for one store.

    Attributes:
        name: path or address, for people.
        beside: path beside which the work on it lies, in hidden folders, and what killed writers left.
    """

    name: str
    beside: Path

    def clear_leftovers(self) -> None:
        """Remove what dead writers left on this machine."""
        clear_leftovers(self.beside)

    @abc.abstractmethod
    def refuse_existing(self, overwrite: bool) -> None:
        """Check that a store may be written here.

        Raises:
            FileExistsError: something is there that is not a store, or must not be overwritten.
        """

    def begin(self, work: Path) -> None:  # noqa: B027  # folders have nothing to begin
        """Begin, or go on with, work whose records are in ``work``, which this process has locked."""

    def has(self, file: str, size: int) -> bool:
        """Return whether a file of the store has arrived, and need not be on the local disk any more."""
        return False

    def finished(self, path: Path) -> None:  # noqa: B027  # folders take all files at once, when they are published
        """Take over a file of the store that is complete, in the folder that will be published."""

    @abc.abstractmethod
    def publish(self, folder: Path) -> None:
        """Let the store appear, all at once: what ``folder`` holds, and what was taken over from it. It is gone then.

        Raises:
            FileExistsError: the name has been taken meanwhile.
        """

    def abort(self) -> None:  # noqa: B027  # folders have nothing under way
        """End what is under way."""


class LocalFolder(Target):
    """A folder of this machine.

    Args:
        path: its path.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.beside = Path(os.path.abspath(path))
        self.name = str(self.beside)

    def refuse_existing(self, overwrite: bool) -> None:
        """See `Target.refuse_existing`."""
        path = self.beside
        if not os.path.lexists(path):
            return
        if not overwrite:
            raise FileExistsError(f"{path} exists; pass overwrite=True to replace a store, or choose another name")
        if path.is_symlink() or not (path / MANIFEST).is_file():
            raise FileExistsError(f"{path} is not a feedline store, so overwrite=True does not replace it")

    def publish(self, folder: Path) -> None:
        """See `Target.publish`."""
        publish(folder, self.beside)
