"""Destinations of a store: a local folder, or a folder in an object store (see `object_store_target`).

The writer treats both in the same way. It writes every store into a folder on a local disk, reports each file when it
is complete, and passes the folder to the target at the end.
"""

from __future__ import annotations

import abc
import os
from pathlib import Path

from feedline.feed.formats.store.manifest import MANIFEST
from feedline.feed.formats.store.staging import clear_leftovers, publish


class Target(abc.ABC):
    """A destination of one store.

    Attributes:
        name: path or address, for errors and reports.
        local_path: path next to which the store is written, in a hidden folder.
    """

    name: str
    local_path: Path

    def clear_leftovers(self) -> None:
        """Remove the leftovers of dead writers on this machine."""
        clear_leftovers(self.local_path)

    @abc.abstractmethod
    def refuse_existing(self, overwrite: bool) -> None:
        """Check that a store may be written here.

        Raises:
            FileExistsError: the name belongs to a store that must not be overwritten, or to something else.
        """

    def begin(self, work: Path) -> None:  # noqa: B027  # folders have nothing to begin
        """Begin, or continue, work whose records are in ``work``, a folder locked by this process."""

    def has(self, file: str, size: int) -> bool:
        """Return whether a file of the store has arrived, so that the local disk does not need it."""
        return False

    def add_file(self, path: Path) -> None:  # noqa: B027  # folders take all files at once, when they are published
        """Add a complete file of the store, which is in the folder that will be published."""

    @abc.abstractmethod
    def publish(self, folder: Path) -> None:
        """Make the store appear at once, with the files in ``folder`` and the files that were added. Removes
        ``folder``.

        Raises:
            FileExistsError: another process has taken the name.
        """

    def abort(self) -> None:  # noqa: B027  # folders have no work in progress
        """Stop the work in progress."""


class LocalFolder(Target):
    """A local folder.

    Args:
        path: path of the folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.local_path = Path(os.path.abspath(path))
        self.name = str(self.local_path)

    def refuse_existing(self, overwrite: bool) -> None:
        """See `Target.refuse_existing`."""
        path = self.local_path
        if not os.path.lexists(path):
            return
        if not overwrite:
            raise FileExistsError(f"{path} exists; pass overwrite=True to replace a store, or choose another name")
        if path.is_symlink() or not (path / MANIFEST).is_file():
            raise FileExistsError(f"{path} is not a feedline store, so overwrite=True does not replace it")

    def publish(self, folder: Path) -> None:
        """See `Target.publish`."""
        publish(folder, self.local_path)
