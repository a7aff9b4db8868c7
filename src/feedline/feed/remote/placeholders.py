"""Names of objects as a folder of placeholders, which formats list like a folder of files.

The names come from one request for a list, or from one request for each object of a web server. They are recorded next
to the placeholders, so that other processes of this node find them when they open the same addresses. Placeholders are
empty: `files.remote` opens the objects in their place.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import fnmatch
import glob
import hashlib
import itertools
import json
import logging
import os
import re
import secrets
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from feedline import errors
from feedline.errors import DataError
from feedline.feed.files import remote
from feedline.feed.files.atomic import atomic_file
from feedline.feed.files.cache_files import make_folder, own_folder, user_cache
from feedline.feed.files.paths import INDEX_SUFFIX, expand_braces, open_regular
from feedline.feed.remote.address_text import is_address
from feedline.feed.remote.addresses import open_store
from feedline.feed.remote.object_cache import CachedObject, cache_at
from feedline.feed.remote.pages import PAGE_BYTES
from feedline.feed.remote.requests import Patience, listing, request_lookup, wait_for
from feedline.feed.remote.stores import ObjectInfo, Store, StoreFault

DEFAULT_BYTES = 16 << 30
"""The default limit of a cache."""

_AT_ONCE = 32  # requests for sizes
_BELONGS = {".bin": ".idx", ".idx": ".bin"}  # Megatron's tokens and their index
_MAX_NAME = 255  # bytes, of file systems

_log = logging.getLogger("feedline")


class Lookup(NamedTuple):
    """The objects of addresses that were looked up, and paths among them. A pickled copy is opened without any request.

    Attributes:
        places: for each address the address of its store, the key or pattern in the store, and the objects. For a path
            the path.
        single: whether there is one address that was not in a list.
        listed: objects that are listed in these objects, by the addresses of their stores.
        options: options of the stores.
        patience: limits for waiting.
    """

    places: list[tuple[str, str, list[ObjectInfo]] | str]
    single: bool
    options: dict[str, Any]
    patience: Patience
    listed: tuple[tuple[str, list[ObjectInfo]], ...] = ()


class Placeholders:
    """Objects, and the folder of their placeholders.

    Args:
        lookup: the objects.
        cache: folder for parts of them. None: ``objects`` in the user's cache folder.
        cache_bytes: limit of the folder.

    Attributes:
        folder: the folder of placeholders.
        paths: the path, or a list of paths, to open in place of the addresses.
        cache: the cache.
        total_bytes: sum of the sizes of all objects.
        objects: the objects by the paths of their placeholders.
        roomy: whether the cache has room for all objects, so that no page is dropped.

    Raises:
        DataError: the cache cannot be used, or no file can have an object's name.
        ValueError: the cache is too small.
    """

    def __init__(self, lookup: Lookup, cache: str | os.PathLike[str] | None, cache_bytes: int | None) -> None:
        with cache_at(
            user_cache() / "objects" if cache is None else Path(cache),
            DEFAULT_BYTES if cache_bytes is None else cache_bytes,
        ) as self.cache:
            self._enter(lookup)

    def _enter(self, lookup: Lookup) -> None:
        folders: list[str] = []
        objects: dict[tuple[str, str], tuple[Store, ObjectInfo]] = {}
        for root, infos in [*(place[::2] for place in lookup.places if not isinstance(place, str)), *lookup.listed]:
            store = open_store(root, lookup.options)[0]
            folders.append(store.place)
            objects.update(((store.place, info.key), (store, info)) for info in infos)
        about = sorted((store.place, info.key, info.version) for store, info in objects.values())
        name = hashlib.blake2b(json.dumps(about).encode(), digest_size=16).hexdigest()
        self.folder = self.cache.folder / "names" / name
        self.total_bytes = sum(info.size for _, info in objects.values())
        self.objects = {
            str(self._place(store, info.key)): CachedObject(self.cache, store, info, lookup.patience)
            for store, info in objects.values()
        }
        folder_of = iter(folders)
        paths = [
            place if isinstance(place, str) else str(self.folder / next(folder_of) / place[1])
            for place in lookup.places
        ]
        self.paths: Any = paths[0] if lookup.single else paths
        self._lay_out()
        # Also by the paths of the files, which are the names of maps in the kernel.
        registered: dict[str, remote.RemoteObject] = {**self.objects, **{o.place(): o for o in self.objects.values()}}
        remote.register(registered)
        errors.show_paths({str(self.folder / store.place): store.address for store, _ in objects.values()})
        self.cache.enter(list(self.objects.values()))
        in_order = list(self.objects.values())
        for cached, following in itertools.pairwise(in_order):
            cached.following = following
        # The finalizer does not leave the cache, because chunks that are views of its files may still be in use.
        self._known = registered
        self._finalizer = weakref.finalize(self, remote.unregister, self._known)
        self._finalizer.atexit = False
        pages = sum(-(-info.size // PAGE_BYTES) for _, info in objects.values())
        self.roomy = pages * PAGE_BYTES <= self.cache.budget_bytes
        if self.roomy:
            for cached in self.objects.values():
                cached.pin()

    def _place(self, store: Store, key: str) -> Path:
        """Return the path of a placeholder.

        Raises:
            DataError: no file can have the object's name.
        """
        parts = key.split("/")
        if any(part in ("", ".", "..") or "\0" in part or len(os.fsencode(part)) > _MAX_NAME for part in parts):
            raise DataError(
                "expected objects with names that files can have, got one with an empty part, `..` or a part that is "
                "too long",
                path=store.url(key),
                hint="name other objects, or copy this one",
            )
        return self.folder.joinpath(store.place, *parts)

    def _lay_out(self) -> None:
        complete = self.folder.with_suffix(".complete")
        if complete.exists():
            return
        for path, cached in self.objects.items():
            place = Path(path)
            try:
                make_folder(place.parent)
                place.touch(mode=0o600)
            except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
                raise DataError(
                    "expected objects whose names can be a file or a folder, got one that would have to be both",
                    path=cached.url,
                    hint="name single objects",
                ) from error
            os.utime(place, ns=(cached.modified_ns, cached.modified_ns))
        with atomic_file(complete, 0o600) as file:
            file.write(json.dumps({cached.url: cached.size for cached in self.objects.values()}).encode())

    def fetch_whole(self, what: str) -> None:
        """Fetch all objects, and replace their placeholders with them.

        Args:
            what: name of the data, for errors and the log.

        Raises:
            DataError: objects cannot be fetched, or the cache has no room for all of them.
        """
        remote.check_room(
            list(self.objects),
            f"{what}, whose rows are read from all over the files",
            "convert it to a store, tar, Parquet or JSON Lines, which are read by ranges",
        )
        remote.materialize(list(self.objects))

    @property
    def whole(self) -> bool:
        """Whether the cache has all bytes of all objects, and keeps them."""
        return self.roomy and all(not o.size or o.seems_whole(0, o.size) for o in self.objects.values())

    def close(self) -> None:
        """Unregister the objects. Fetched pages stay in the cache until their room is needed, so chunks that are views
        of its files must not be used any more."""
        if self._finalizer.detach() is not None:
            remote.unregister(self._known)
            self.cache.leave(list(self.objects.values()))


def look_up(
    what: Any, options: Mapping[str, Any], patience: Patience, cache: str | os.PathLike[str] | None = None
) -> Lookup:
    """Look up the objects of addresses in their stores.

    Args:
        what: an address of an object, of a folder of them, a pattern with ``*``, ``**`` or braces, or a list of these,
            which may contain paths.
        options: options for obstore or fsspec.
        patience: limits for waiting.
        cache: see `Placeholders`. It keeps lists of objects that never change.

    Raises:
        DataError: there is no such object, the store does not answer, or a package is missing.
    """
    single = isinstance(what, (str, os.PathLike))
    items = [what] if single else list(what)
    places = [_look_up_once(item, options, patience, cache) if is_address(item) else os.fspath(item) for item in items]
    return Lookup(places, single, dict(options), patience)


def look_up_listed(lookup: Lookup, placeholders: Placeholders, paths: Sequence[str]) -> Lookup | None:
    """Look up the objects that are listed in other objects.

    Args:
        lookup: the objects with the lists.
        placeholders: placeholders of these objects.
        paths: paths that placeholders of the listed objects would have. Other paths are left out.

    Returns:
        ``lookup`` with the listed objects that exist. None if all of them were looked up before.

    Raises:
        DataError: a store does not answer.
    """
    normalised = [os.path.normpath(path) for path in paths]
    roots = {root for root, _ in lookup.listed}
    listed = []
    for root in {place[0]: None for place in lookup.places if not isinstance(place, str) and place[0] not in roots}:
        store = open_store(root, lookup.options)[0]
        folder = f"{placeholders.folder / store.place}/"
        keys = {
            path[len(folder) :]
            for path in normalised
            if path.startswith(folder) and path not in placeholders.objects and _is_text(path)
        }
        if keys:
            infos = wait_for(_of_keys(store, keys, lookup.patience))
            listed.append((root, [_of_this_run(store, info) for info in infos]))
    return lookup._replace(listed=(*lookup.listed, *listed)) if listed else None


async def _of_keys(store: Store, keys: set[str], patience: Patience) -> list[ObjectInfo]:
    if store.lists:
        folder = os.path.commonpath([os.path.dirname(key) for key in keys])
        infos = await _list_data(store, f"{folder}/" if folder else "", patience)
        return [info for info in infos if info.key in keys]
    return await _heads(store, sorted(keys), patience)


def _is_text(path: str) -> bool:
    """Return whether a path is UTF-8 text, as names of objects are."""
    return not any("\udc80" <= character <= "\udcff" for character in path)


def _look_up_once(
    address: str, options: Mapping[str, Any], patience: Patience, cache: str | os.PathLike[str] | None
) -> tuple[str, str, list[ObjectInfo]]:
    """Look up the objects of an address. If they never change, one process of this machine does so for all."""
    store, pattern = open_store(address, options)
    if not store.commits:
        return wait_for(_look_up(store, pattern, patience))
    pinned = wait_for(request_lookup(store, pattern, lambda: store.pinned(pattern), patience))
    folder = (user_cache() / "objects" if cache is None else Path(cache)) / "listings"
    own_folder(folder)
    name = hashlib.blake2b(json.dumps([store.place, pinned]).encode(), digest_size=16).hexdigest()
    with open(folder / f"{name}.lock", "ab") as lock:
        with contextlib.suppress(OSError):  # a file system without locks: each process lists
            fcntl.flock(lock, fcntl.LOCK_EX)
        known = folder / f"{name}.json"
        if known.exists():
            with open_regular(known) as file:
                return store.root, pinned.rstrip("/"), [ObjectInfo(*fields) for fields in json.load(file)]
        found = wait_for(_look_up(store, pinned, patience))
        with atomic_file(known, 0o600) as file:
            file.write(json.dumps(found[2]).encode())
        return found


async def _look_up(store: Store, pattern: str, patience: Patience) -> tuple[str, str, list[ObjectInfo]]:
    is_folder = pattern.endswith("/")
    pattern = pattern.rstrip("/")
    names = expand_braces(pattern)
    companions = [pair for name in names if (pair := _belonging_to(name)) is not None and pair not in names]
    if not store.lists and (glob.has_magic(pattern) or not pattern):
        raise DataError(
            "expected the address of an object, got a pattern or a folder: a web server does not list its files",
            path=store.url(pattern),
            hint="name the objects, in a list or with braces: shard-{000..099}.tar",
        )
    if glob.has_magic(pattern):
        infos = await _matching(store, pattern, [*names, *companions], patience)
    elif len(names) > 1 or not store.lists:
        # For many names, a listing of their folder in pages of a thousand costs less than one request for each.
        if store.lists and len(names) > _AT_ONCE:
            infos = await _matching(store, pattern, [*names, *companions], patience)
        else:
            infos = await _heads(store, names, patience)
            if infos:
                infos += await _heads(store, companions, patience, perhaps=True)
                infos += await _indexes_of(store, [info.key for info in infos], patience)
        keys = {info.key for info in infos}
        if missing := [name for name in names if name not in keys]:
            suffix = f" (and {len(missing) - 1} more of {len(names)})" if len(missing) > 1 else ""
            raise DataError(f"expected an object{suffix}, got none", path=store.url(missing[0]))
    else:
        infos = await _object_or_folder(store, "" if is_folder else pattern, pattern, companions, patience)
    infos = _without_strays(infos)
    if not infos:
        raise DataError("expected an object, a folder or a pattern with matches, got none", path=store.url(pattern))
    return store.root, pattern, [_of_this_run(store, info) for info in infos]


def _without_strays(infos: list[ObjectInfo]) -> list[ObjectInfo]:
    """Return objects without the indexes that were shipped with none of them."""
    keys = {info.key for info in infos}
    return [info for info in infos if not info.key.endswith(INDEX_SUFFIX) or info.key[: -len(INDEX_SUFFIX)] in keys]


async def _indexes_of(store: Store, names: Sequence[str], patience: Patience) -> list[ObjectInfo]:
    """Return the indexes that were shipped with objects, of which the first has one if any has."""
    if "?" in store.root:  # the query, such as a signature, is for these objects only
        return []
    indexes = [f"{name}{INDEX_SUFFIX}" for name in names]
    first = await _heads(store, indexes[:1], patience, perhaps=True)
    return [*first, *(await _heads(store, indexes[1:], patience, perhaps=True) if first else [])]


def _belonging_to(name: str) -> str | None:
    """Return the name of the object without which an object of this name cannot be read, or None."""
    stem, suffix = os.path.splitext(name)
    return stem + _BELONGS[suffix] if suffix in _BELONGS else None


async def _object_or_folder(
    store: Store, name: str, folder: str, companions: Sequence[str], patience: Patience
) -> list[ObjectInfo]:
    """Return an object and its companions, or the objects of a folder.

    Args:
        store: the store.
        name: name of the object. Empty: it can only be a folder.
        folder: name of the folder.
        companions: names of objects that belong to the object.
        patience: limits for waiting.
    """
    info = refused = None
    if name:
        try:
            info = next(iter(await _heads(store, [name], patience)), None)
        except DataError as error:  # a client that may list a folder may not ask for an object of its name
            if isinstance(error.__cause__, StoreFault) and error.__cause__.again:
                raise  # the store did not answer in time: a listing would take as long again
            refused = error
        # An empty object may represent a folder.
        if info is not None and info.size:
            others = await _heads(store, companions, patience, perhaps=True)
            return sorted([info, *others, *await _indexes_of(store, [name], patience)], key=_by_key)
    inside = await _list_data(store, f"{folder}/" if folder else "", patience)
    if not inside and refused is not None:
        raise refused
    return inside or ([info] if info is not None else [])


async def _matching(store: Store, pattern: str, names: Sequence[str], patience: Patience) -> list[ObjectInfo]:
    """Return the objects that match a pattern, or else the objects in matching folders."""
    folder = re.split(r"[*?\[{]", pattern, maxsplit=1)[0].rpartition("/")[0]
    infos = await _candidates(store, f"{folder}/" if folder else "", names, patience, asyncio.Semaphore(_AT_ONCE))
    matching = [info for info in infos if any(_matches(info.key.removesuffix(INDEX_SUFFIX), name) for name in names)]
    return matching or [info for info in infos if any(_within(info.key, name) for name in names)]


async def _candidates(
    store: Store, folder: str, names: Sequence[str], patience: Patience, room: asyncio.Semaphore
) -> list[ObjectInfo]:
    """Return the objects of a folder that can match patterns, and the objects in its folders that can. No other folders
    are listed."""

    async def all_of(inside: str) -> list[ObjectInfo]:
        async with room:
            return await _list_data(store, inside, patience)

    if any("**" in name for name in names):
        return await all_of(folder)
    depth = folder.count("/")
    heads = {name: "/".join(name.split("/")[: depth + 1]) for name in names}
    async with room:
        infos = await listing(store, folder, patience, deep=False)
    names_of = {info.key: info.key.rstrip("/").removesuffix(INDEX_SUFFIX) for info in infos}
    matching = [info for info in infos if any(_matches(names_of[info.key], head) for head in heads.values())]
    folders = {info.key.rstrip("/") for info in matching if info.key.endswith("/")}
    if folders and len(matching) == len(infos):  # all entries match, so one request lists all of them
        return await all_of(folder)
    # Stores may also represent folders by empty objects with their names.
    objects = [info for info in matching if _is_data(info) and (info.size or info.key not in folders)]
    listings = []
    for name in sorted(folders):
        deeper = [pattern for pattern, head in heads.items() if pattern != head and _matches(name, head)]
        if deeper:
            listings.append(_candidates(store, f"{name}/", deeper, patience, room))
        elif not objects:
            listings.append(all_of(f"{name}/"))
    return sorted([*objects, *itertools.chain(*await asyncio.gather(*listings))], key=_by_key)


def _of_this_run(store: Store, info: ObjectInfo) -> ObjectInfo:
    """Return the properties of an object. Mark them as valid in this run only if they do not identify its version."""
    if info.etag or info.modified_ns:
        return info
    if store.place not in _warned:
        _warned.add(store.place)
        _log.warning(
            "%s gives neither an ETag nor the time of the last change, so a replaced object is noticed only by its "
            "size: later runs do not use what was fetched of it",
            store.url(info.key),
        )
    return info._replace(run=secrets.token_hex(8))


_warned: set[str] = set()  # places for which the warning was logged


async def _list_data(store: Store, folder: str, patience: Patience) -> list[ObjectInfo]:
    """Return the objects of a folder that have data."""
    infos = [info for info in await listing(store, folder, patience) if _is_data(info)]
    # An empty object represents a folder if other objects are in it. Otherwise only a request for it shows its kind.
    folders = {info.key[:at] for info in infos for at in range(len(info.key)) if info.key[at] == "/"}
    empty = [info for info in infos if not info.size and info.key not in folders]
    existing = {info.key for info in await _heads(store, [info.key for info in empty], patience)} if empty else set()
    return [info for info in infos if info.size or info.key in existing]


def _is_data(info: ObjectInfo) -> bool:
    """Return whether an object is no folder."""
    key = info.key
    return bool(key) and not key.endswith("/") and (info.size > 0 or not key.endswith("_$folder$"))


def _by_key(info: ObjectInfo) -> bytes:
    return os.fsencode(info.key)


async def _heads(store: Store, names: Sequence[str], patience: Patience, *, perhaps: bool = False) -> list[ObjectInfo]:
    """Return the objects of these names that exist.

    Args:
        store: the store.
        names: names of the objects.
        patience: limits for waiting.
        perhaps: whether a refusal means that there is no object. Stores also refuse if the client may not list.
    """
    room = asyncio.Semaphore(_AT_ONCE)

    async def ask(name: str) -> ObjectInfo | None:
        try:
            return await store.head(name)
        except StoreFault as fault:
            if perhaps and fault.kind == "denied":
                return None
            raise

    async def head(name: str) -> ObjectInfo | None:
        async with room:
            return await request_lookup(store, name, lambda: ask(name), patience)

    return [info for info in await asyncio.gather(*map(head, names)) if info is not None]


def _within(key: str, pattern: str) -> bool:
    """Return whether a key is in a folder that matches."""
    return any(_matches(key[:at], pattern) for at in range(len(key)) if key[at] == "/")


def _matches(key: str, pattern: str) -> bool:
    """Return whether a key matches as a path would: ``*`` within a part, ``**`` over parts, and no hidden names."""
    keys, parts = key.split("/"), pattern.split("/")

    def match(i: int, k: int) -> bool:
        if i == len(parts):
            return k == len(keys)
        if parts[i] == "**":
            return any(match(i + 1, at) for at in range(k, len(keys) + 1)) or (i == len(parts) - 1 and k < len(keys))
        if k == len(keys):
            return False
        hidden = keys[k].startswith(".") and not parts[i].startswith(".")
        return not hidden and fnmatch.fnmatchcase(keys[k], parts[i]) and match(i + 1, k + 1)

    return match(0, 0)
