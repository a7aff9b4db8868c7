"""Addresses of objects, and the stores that hold them."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any

from feedline.errors import DataError
from feedline.feed.remote.address_text import AZURE, WEB, scheme_of, without_credentials
from feedline.feed.remote.file_systems import FileSystemStore
from feedline.feed.remote.hub import HubStore
from feedline.feed.remote.object_store import ObjectStore
from feedline.feed.remote.stores import Store
from feedline.feed.remote.web import WebStore

_OBJECT_STORES = {"s3": "s3", "s3a": "s3", "gs": "gs", **dict.fromkeys(AZURE, "az")}


def open_store(address: str, options: Mapping[str, Any]) -> tuple[Store, str]:
    """Return the store of an address, and the key in it.

    Raises:
        DataError: a package is missing, or the address or an option is invalid.
    """
    scheme = scheme_of(address)
    assert scheme is not None
    location, query = address[len(scheme) + 3 :], ""
    if scheme in WEB:
        location, _, query = location.partition("#")[0].partition("?")
    place, _, key = location.partition("/")
    # A bucket of the hub has no commits.
    kind: type[Store] = HubStore if scheme == "hf" and place != "buckets" else FileSystemStore
    if scheme in _OBJECT_STORES or scheme in WEB:
        kind = WebStore if scheme in WEB else ObjectStore
        if not place:
            raise DataError("expected an address with a bucket or a host, got none", path=without_credentials(address))
        if "@" not in place:
            scheme = _OBJECT_STORES.get(scheme, scheme)
    root = f"{scheme}://{place}?{query}" if query else f"{scheme}://{place}"
    # Other credentials in the environment make another store.
    return _cached_store(kind, root, _Options(options), hash(tuple(sorted(os.environ.items())))), key


class _Options(dict[str, Any]):
    """Options that can be hashed."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(repr(sorted(self.items())))


@functools.lru_cache(maxsize=64)
def _cached_store(kind: type[Store], root: str, options: _Options, environment: int) -> Store:
    return kind(root, options)
