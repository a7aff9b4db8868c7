"""A folder in an object store as the destination of a store.

Each file is uploaded as soon as it is complete, and its local copy is removed. The disk needs room for the file that is
being written and for the files that are being uploaded. The manifest comes last, so readers that open the address
earlier find no store (`is_unfinished_store`). The manifest of a store that is replaced is deleted before its first file
is touched, so no reader ever sees parts of two stores.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from feedline.feed.files.cache_files import make_folder, own_folder, user_cache
from feedline.feed.files.paths import PathLike
from feedline.feed.formats.store.manifest import MANIFEST
from feedline.feed.formats.store.staging import discard
from feedline.feed.formats.store.targets import Target
from feedline.feed.remote.address_text import without_credentials
from feedline.feed.remote.addresses import open_store
from feedline.feed.remote.requests import Patience, request_lookup, wait_for
from feedline.feed.remote.uploads import Uploads, list_stored

_FILE = re.compile(r"part-\d{5,9}\.arrow|lengths-\d{1,9}\.npy")


def is_unfinished_store(names: Iterable[str]) -> bool:
    """Return whether a folder has only files of a store, without a manifest."""
    listing = list(names)
    return bool(listing) and all(_FILE.fullmatch(name) for name in listing)


class ObjectStoreFolder(Target):
    """A folder in an object store. See the docstring of the module.

    Args:
        address: address of the folder.
        options: options for obstore or fsspec.
        patience: how long to wait for the store.
        work: local folder for unfinished work, by default ``converting`` in the user's cache folder.

    Raises:
        DataError: the address or the options are invalid, or the folder is not writable.
        ValueError: the address belongs to a web server, which takes no objects.
    """

    def __init__(self, address: str, options: Mapping[str, Any], patience: Patience, work: PathLike | None) -> None:
        self._store, key = open_store(address, options)
        key = key.strip("/")
        self._prefix, self._key, self._patience = f"{key}/" if key else "", key, patience
        self.name = without_credentials(self._store.url(key))
        if not self._store.lists:
            raise ValueError(
                f"expected an object store to write to, got {self.name}, a web server; name the bucket (s3://, gs://, "
                "az://), or write to a folder and copy it"
            )
        if work is None:
            folder = user_cache() / "converting"
            own_folder(folder, "pass work=<a folder of yours with room>")
        else:
            folder = Path(os.path.abspath(work))
            make_folder(folder)
        name = re.sub(r"[^A-Za-z0-9.-]+", "_", key.rpartition("/")[2])[:60]
        place = hashlib.blake2b(f"{self._store.place}/{key}".encode(), digest_size=8).hexdigest()
        self.local_path = folder / f"{name}-{place}"
        self._uploads: Uploads | None = None
        self._replaces = False

    def refuse_existing(self, overwrite: bool) -> None:
        """See `Target.refuse_existing`."""
        names = list_stored(self._store, self._prefix, self._patience)
        if MANIFEST in names:
            if not overwrite:
                raise FileExistsError(f"{self.name} exists; pass overwrite=True to replace a store, or another name")
            self._replaces = True
            return
        foreign = [name for name in names if not _FILE.fullmatch(name)]
        if not foreign and self._key:
            store, key = self._store, self._key
            status = wait_for(request_lookup(store, key, lambda: store.head(key), self._patience))
            foreign = [] if status is None else [""]
        if foreign:
            raise FileExistsError(
                f"{self.name} is not a feedline store, but has {len(foreign)} objects such as "
                f"{self._store.url(self._prefix + foreign[0] if foreign[0] else self._key)}; choose another name"
            )

    def begin(self, work: Path) -> None:
        """See `Target.begin`."""
        self._uploads = Uploads(self._store, self._prefix, work, self._patience)

    def has(self, file: str, size: int) -> bool:
        """See `Target.has`."""
        uploaded = None if self._uploads is None else self._uploads.stored.get(file)
        return uploaded is not None and uploaded.size == size

    def add_file(self, path: Path) -> None:
        """See `Target.finished`."""
        assert self._uploads is not None
        self._delete_old_manifest()
        self._uploads.begin(path)

    def publish(self, folder: Path) -> None:
        """See `Target.publish`."""
        uploads = self._uploads
        assert uploads is not None
        manifest = (folder / MANIFEST).read_bytes()
        self._delete_old_manifest()
        uploads.drain()
        for path in sorted(folder.iterdir()):
            if _FILE.fullmatch(path.name):
                uploads.begin(path)
        uploads.drain()
        uploads.check()
        # Processes on other machines may write here, too. Only one of them succeeds, if the object store supports that.
        if not uploads.write(MANIFEST, manifest, new=True):
            raise FileExistsError(f"{self.name} exists: another process has written a store there meanwhile")
        for name in uploads.list_stored():
            if _FILE.fullmatch(name) and name not in uploads.stored:
                uploads.delete(name)  # of a replaced store, or of an unfinished one
        uploads.close()
        discard(folder, self.local_path)

    def _delete_old_manifest(self) -> None:
        if self._replaces and self._uploads is not None:
            self._uploads.delete(MANIFEST)
        self._replaces = False

    def abort(self) -> None:
        """See `Target.abort`."""
        if self._uploads is not None:
            self._uploads.abort()
