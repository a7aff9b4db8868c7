"""Names of objects as a folder of placeholders, in which formats find what they would find in a folder of files.

The names come from one request for a list, or one for each object of a web server, and are written down beside the
placeholders: whoever else on this node opens the same addresses reads that. Placeholders are empty; what reads them is
told by `files.remote` where the bytes are, or finds nothing.
"""

from __future__ import annotations

import asyncio
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
from feedline.feed.files.cache import make_folder, user_cache
from feedline.feed.files.paths import INDEX_SUFFIX, expand_braces
from feedline.feed.remote.addresses import open_store
from feedline.feed.remote.cache import CachedObject, cache_at
from feedline.feed.remote.pages import PAGE_BYTES
from feedline.feed.remote.requests import Patience, listing, looked_up, wait_for
from feedline.feed.remote.stores import ObjectInfo, Store, StoreFault, is_address, scheme_of

DEFAULT_BYTES = 16 << 30
"""The most that a cache keeps, if not said otherwise."""

_AT_ONCE = 32  # requests for sizes
_BELONGS = {".bin": ".idx", ".idx": ".bin"}  # Megatron's tokens and their index
_MOST_NAME = 255  # bytes, of file systems

_log = logging.getLogger("feedline")


class LookedUp(NamedTuple):
    """What addresses, and paths between them, stand for. Can be pickled: what opens it again asks no store.

    Attributes:
        places: for each of them the address of its store, the key or pattern in it, and the objects; or the path.
        single: whether it was given alone, rather than in a list.
        listed: the objects that some of these list, and the addresses of their stores.
        options: options of the stores.
        patience: how long to wait for them.
    """

    places: list[tuple[str, str, list[ObjectInfo]] | str]
    single: bool
    options: dict[str, Any]
    patience: Patience
    listed: tuple[tuple[str, list[ObjectInfo]], ...] = ()


class Mirror:
    """Objects, and the folder of their placeholders.

    Args:
        looked: the objects.
        cache: folder that keeps parts of them; None: ``objects`` in the user's cache folder.
        cache_bytes: the most that it keeps.

    Attributes:
        folder: the folder of placeholders.
        paths: the path, or a list of paths, to open instead of what was looked up.
        cache: the cache.
        total_bytes: sizes of all objects together.
        objects: the objects by the paths of their placeholders.
        roomy: whether the cache has room for all of them, so that nothing of them is dropped.

    Raises:
        DataError: the cache cannot be used, or no file can have an object's name.
        ValueError: the cache is too small.
    """

    def __init__(self, looked: LookedUp, cache: str | os.PathLike[str] | None, cache_bytes: int | None) -> None:
        with cache_at(
            user_cache() / "objects" if cache is None else Path(cache),
            DEFAULT_BYTES if cache_bytes is None else cache_bytes,
        ) as self.cache:
            self._enter(looked)

    def _enter(self, looked: LookedUp) -> None:
        folders: list[str] = []
        found: dict[tuple[str, str], tuple[Store, ObjectInfo]] = {}
        for root, infos in [*(place[::2] for place in looked.places if not isinstance(place, str)), *looked.listed]:
            store = open_store(root, looked.options)[0]
            folders.append(store.place)
            found.update(((store.place, info.key), (store, info)) for info in infos)
        about = sorted((store.place, info.key, info.version) for store, info in found.values())
        name = hashlib.blake2b(json.dumps(about).encode(), digest_size=16).hexdigest()
        self.folder = self.cache.folder / "names" / name
        self.total_bytes = sum(info.size for _, info in found.values())
        self.objects = {
            str(self._place(store, info.key)): CachedObject(self.cache, store, info, looked.patience)
            for store, info in found.values()
        }
        folder_of = iter(folders)
        paths = [
            place if isinstance(place, str) else str(self.folder / next(folder_of) / place[1])
            for place in looked.places
        ]
        self.paths: Any = paths[0] if looked.single else paths
        self._lay_out()
        # Also by the paths of the files themselves, which is how the kernel names what is mapped.
        known: dict[str, remote.RemoteObject] = {**self.objects, **{one.place(): one for one in self.objects.values()}}
        remote.register(known)
        errors.show_paths({str(self.folder / store.place): store.address for store, _ in found.values()})
        self.cache.enter(list(self.objects.values()))
        in_order = list(self.objects.values())
        for one, following in itertools.pairwise(in_order):
            one.following = following
        # Not left: somebody may still have chunks that are views of its files.
        self._known = known
        self._finalizer = weakref.finalize(self, remote.unregister, self._known)
        self._finalizer.atexit = False
        pages = sum(-(-info.size // PAGE_BYTES) for _, info in found.values())
        self.roomy = pages * PAGE_BYTES <= self.cache.budget_bytes
        if self.roomy:
            for one in self.objects.values():
                one.stay()

    def _place(self, store: Store, key: str) -> Path:
        """Return the path of a placeholder.

        Raises:
            DataError: no file can have the object's name.
        """
        parts = key.split("/")
        if any(part in ("", ".", "..") or "\0" in part or len(os.fsencode(part)) > _MOST_NAME for part in parts):
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
        for path, one in self.objects.items():
            place = Path(path)
            try:
                make_folder(place.parent)
                place.touch(mode=0o600)
            except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
                raise DataError(
                    "expected objects whose names can be a file or a folder, got one that would have to be both",
                    path=one.url,
                    hint="name single objects",
                ) from error
            os.utime(place, ns=(one.modified_ns, one.modified_ns))
        with atomic_file(complete, 0o600) as file:
            file.write(json.dumps({one.url: one.size for one in self.objects.values()}).encode())

    def fetch_whole(self, what: str) -> None:
        """Fetch all objects, and put them in the place of their placeholders.

        Args:
            what: what they are, for errors and the log.

        Raises:
            DataError: they cannot be had, or the cache has no room for all of them.
        """
        remote.check_room(
            list(self.objects),
            f"{what}, whose rows are read from all over the files",
            "convert it to a store, tar, Parquet or JSON Lines, which are read by ranges",
        )
        remote.settle(list(self.objects))

    @property
    def whole(self) -> bool:
        """Whether the cache has all of all objects, and keeps them."""
        return self.roomy and all(not one.size or one.seems_whole(0, one.size) for one in self.objects.values())

    def close(self) -> None:
        """Forget the objects. What was fetched stays in the cache, for as long as nothing else needs its room: chunks
        that are views of its files must not be used any more."""
        if self._finalizer.detach() is not None:
            remote.unregister(self._known)
            self.cache.leave(list(self.objects.values()))


def without_file(what: Any) -> Any:
    """Return paths for addresses that begin with ``file://``."""
    if isinstance(what, (list, tuple)):
        return [without_file(one) for one in what]
    if isinstance(what, str) and scheme_of(what) == "file":
        return what[len("file://") :]
    return what


def look_up(what: Any, options: Mapping[str, Any], patience: Patience) -> LookedUp:
    """Ask stores which objects there are.

    Args:
        what: an address of an object, of a folder of them, a pattern with ``*``, ``**`` or braces, or a list of these;
            a list may have paths, too.
        options: options for obstore or fsspec.
        patience: how long to wait for a store.

    Raises:
        DataError: there is no such object, the store does not answer, or a package is missing.
    """
    single = isinstance(what, (str, os.PathLike))
    given = [what] if single else list(what)
    places = [wait_for(_look_up(one, options, patience)) if is_address(one) else os.fspath(one) for one in given]
    return LookedUp(places, single, dict(options), patience)


def look_up_listed(looked: LookedUp, mirror: Mirror, paths: Sequence[str]) -> LookedUp | None:
    """Ask stores for the objects that others list.

    Args:
        looked: those that list them.
        mirror: their placeholders.
        paths: paths of placeholders that would be there if the folders of the lists were; others are left out.

    Returns:
        The same with the objects that there are; None: all are known, or were asked for.

    Raises:
        DataError: a store does not answer.
    """
    wanted = [os.path.normpath(path) for path in paths]
    asked = {root for root, _ in looked.listed}
    listed = []
    for root in {place[0]: None for place in looked.places if not isinstance(place, str) and place[0] not in asked}:
        store = open_store(root, looked.options)[0]
        folder = f"{mirror.folder / store.place}/"
        keys = {
            path[len(folder) :]
            for path in wanted
            if path.startswith(folder) and path not in mirror.objects and _is_text(path)
        }
        if keys:
            infos = wait_for(_of_keys(store, keys, looked.patience))
            listed.append((root, [_of_this_run(store, info) for info in infos]))
    return looked._replace(listed=(*looked.listed, *listed)) if listed else None


async def _of_keys(store: Store, keys: set[str], patience: Patience) -> list[ObjectInfo]:
    if store.lists:
        folder = os.path.commonpath([os.path.dirname(key) for key in keys])
        found = await _listed(store, f"{folder}/" if folder else "", patience)
        return [info for info in found if info.key in keys]
    return await _heads(store, sorted(keys), patience)


def _is_text(path: str) -> bool:
    """Return whether a path is one of an object: those are texts, not bytes."""
    return not any("\udc80" <= character <= "\udcff" for character in path)


async def _look_up(address: str, options: Mapping[str, Any], patience: Patience) -> tuple[str, str, list[ObjectInfo]]:
    store, pattern = open_store(address, options)
    is_folder = pattern.endswith("/")
    pattern = pattern.rstrip("/")
    names = expand_braces(pattern)
    beside = [other for name in names if (other := _belonging_to(name)) is not None and other not in names]
    if not store.lists and (glob.has_magic(pattern) or not pattern):
        raise DataError(
            "expected the address of an object, got a pattern or a folder: a web server does not list what it has",
            path=store.url(pattern),
            hint="name the objects, in a list or with braces: shard-{000..099}.tar",
        )
    if glob.has_magic(pattern):
        chosen = await _matching(store, pattern, [*names, *beside], patience)
    elif len(names) > 1 or not store.lists:
        # Of many, one request for each thousand in their folder costs less than one for each.
        if store.lists and len(names) > _AT_ONCE:
            chosen = await _matching(store, pattern, [*names, *beside], patience)
        else:
            chosen = await _heads(store, names, patience)
            chosen += await _heads(store, beside, patience, perhaps=True) if chosen else []
        there = {info.key for info in chosen}
        if missing := [name for name in names if name not in there]:
            more = f" (and {len(missing) - 1} more of {len(names)})" if len(missing) > 1 else ""
            raise DataError(f"expected an object{more}, got none", path=store.url(missing[0]))
    else:
        chosen = await _object_or_folder(store, "" if is_folder else pattern, pattern, beside, patience)
    if not chosen:
        raise DataError(
            "expected an object, a folder or a pattern that matches some, got none", path=store.url(pattern)
        )
    return store.root, pattern, [_of_this_run(store, info) for info in chosen]


def _belonging_to(name: str) -> str | None:
    """Return the name of the object without which one of this name cannot be read rightly; None: there is none."""
    stem, suffix = os.path.splitext(name)
    return stem + _BELONGS[suffix] if suffix in _BELONGS else None


async def _object_or_folder(
    store: Store, name: str, folder: str, beside: Sequence[str], patience: Patience
) -> list[ObjectInfo]:
    """Return an object and what stands beside it, or what is in a folder.

    Args:
        store: the store.
        name: name of the object; empty: it can only be a folder.
        folder: name of the folder.
        beside: names of objects that belong to the object.
        patience: how long to wait.
    """
    found = refused = None
    if name:
        try:
            found = next(iter(await _heads(store, [name], patience)), None)
        except DataError as error:  # who may list a folder may not be allowed to ask for an object of its name
            if isinstance(error.__cause__, StoreFault) and error.__cause__.again:
                raise  # the store did not answer in time: it would have as much of it again
            refused = error
        # An object without bytes may be what a folder is shown as.
        if found is not None and found.size:
            return sorted([found, *await _heads(store, beside, patience, perhaps=True)], key=_by_key)
    inside = await _listed(store, f"{folder}/" if folder else "", patience)
    if not inside and refused is not None:
        raise refused
    return inside or ([found] if found is not None else [])


async def _matching(store: Store, pattern: str, names: Sequence[str], patience: Patience) -> list[ObjectInfo]:
    """Return the objects that match a pattern, or those in folders that do."""
    folder = re.split(r"[*?\[{]", pattern, maxsplit=1)[0].rpartition("/")[0]
    infos = await _candidates(store, f"{folder}/" if folder else "", names, patience, asyncio.Semaphore(_AT_ONCE))
    chosen = [info for info in infos if any(_matches(info.key, name) for name in names)]
    return chosen or [info for info in infos if any(_within(info.key, name) for name in names)]


async def _candidates(
    store: Store, folder: str, names: Sequence[str], patience: Patience, room: asyncio.Semaphore
) -> list[ObjectInfo]:
    """Return the objects of a folder that can match patterns, and those in folders that can. Nothing else is listed."""

    async def all_of(inside: str) -> list[ObjectInfo]:
        async with room:
            return await _listed(store, inside, patience)

    if any("**" in name for name in names):
        return await all_of(folder)
    depth = folder.count("/")
    heads = {name: "/".join(name.split("/")[: depth + 1]) for name in names}
    async with room:
        infos = await listing(store, folder, patience, deep=False)
    matching = [info for info in infos if any(_matches(info.key.rstrip("/"), head) for head in heads.values())]
    folders = {info.key.rstrip("/") for info in matching if info.key.endswith("/")}
    if folders and len(matching) == len(infos):  # nothing else is there: a request for all of it, not one for each
        return await all_of(folder)
    # Stores show folders also as objects without bytes of their names.
    objects = [info for info in matching if _is_data(info) and (info.size or info.key not in folders)]
    found = []
    for name in sorted(folders):
        deeper = [one for one, head in heads.items() if one != head and _matches(name, head)]
        if deeper:
            found.append(_candidates(store, f"{name}/", deeper, patience, room))
        elif not objects:
            found.append(all_of(f"{name}/"))
    return sorted([*objects, *itertools.chain(*await asyncio.gather(*found))], key=_by_key)


def _of_this_run(store: Store, info: ObjectInfo) -> ObjectInfo:
    """Return what is known of an object; if that does not tell its versions apart, as one of this run alone."""
    if info.etag or info.modified_ns:
        return info
    if store.place not in _said:
        _said.add(store.place)
        _log.warning(
            "%s gives neither an ETag nor the time of the last change, so that a replaced object is only noticed by "
            "its size: what is fetched of it is not used by later runs",
            store.url(info.key),
        )
    return info._replace(run=secrets.token_hex(8))


_said: set[str] = set()  # places of which that was said


async def _listed(store: Store, folder: str, patience: Patience) -> list[ObjectInfo]:
    """Return the objects of a folder that have data."""
    found = [info for info in await listing(store, folder, patience) if _is_data(info)]
    # An object without bytes shows a folder if others lie in it; whether it is one that is empty, only it can say.
    folders = {info.key[:at] for info in found for at in range(len(info.key)) if info.key[at] == "/"}
    empty = [info for info in found if not info.size and info.key not in folders]
    there = {info.key for info in await _heads(store, [info.key for info in empty], patience)} if empty else set()
    return [info for info in found if info.size or info.key in there]


def _is_data(info: ObjectInfo) -> bool:
    """Return whether an object is not a folder shown as one, nor an index, which belongs to the file it was made of."""
    return (
        bool(info.key)
        and not info.key.endswith(("/", INDEX_SUFFIX))
        and (info.size > 0 or not info.key.endswith("_$folder$"))
    )


def _by_key(info: ObjectInfo) -> bytes:
    return os.fsencode(info.key)


async def _heads(store: Store, names: Sequence[str], patience: Patience, *, perhaps: bool = False) -> list[ObjectInfo]:
    """Return those of these objects that there are.

    Args:
        store: the store.
        names: their names.
        patience: how long to wait.
        perhaps: whether a refusal says that there is none, as stores answer to who may not list.
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
            return await looked_up(store, name, lambda: ask(name), patience)

    return [found for found in await asyncio.gather(*map(head, names)) if found is not None]


def _within(key: str, pattern: str) -> bool:
    """Return whether a key lies in a folder that matches."""
    return any(_matches(key[:at], pattern) for at in range(len(key)) if key[at] == "/")


def _matches(key: str, pattern: str) -> bool:
    """Return whether a key matches as a path would: ``*`` within a part, ``**`` over parts; nothing hidden."""
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
