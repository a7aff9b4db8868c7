"""Buckets and containers, through obstore: ``s3``, ``gs`` and ``az`` addresses."""

from __future__ import annotations

import datetime
import functools
import math
import os
import re
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from feedline.errors import DataError, install_line
from feedline.feed.remote.address_text import AZURE, scheme_of, without_credentials
from feedline.feed.remote.stores import Body, ObjectInfo, OptionError, Store, StoreFault, faults
from feedline.feed.remote.web import WEB_OPTIONS, WebClient

_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist", re.IGNORECASE)
_STATUS = re.compile(r"\bstatus(?: code)?:? (\d{3})\b")
_PREFIX = re.compile(r"^(?:aws|azure|google)_")
_CLIENT_OPTIONS = frozenset(
    {
        *("allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "default_headers"),
        *("http1_only", "http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle"),
        *("http2_only", "pool_idle_timeout", "pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate"),
        *("proxy_excludes", "root_certificate", "randomize_addresses", "read_timeout", "timeout", "user_agent"),
    }
)
_WRITES_AT_ONCE = 8  # parts of one object
_WRITE_TIMEOUT = "600s"  # for one part
_SIGNED_FOR = datetime.timedelta(minutes=5)
_MIN_SECRET = 4  # characters: a shorter value may be a part of any word


class ObjectStore(Store):
    """A store that obstore reads."""

    def __init__(self, root: str, options: Mapping[str, Any]) -> None:
        super().__init__(root, options)
        try:
            import obstore
            import obstore.store
        except ImportError as error:
            raise DataError(
                "the package obstore, which reads from object stores, is not installed",
                path=self.address,
                hint=install_line("remote"),
            ) from error
        self._obstore = obstore
        options = dict(options)
        scheme = scheme_of(root)
        client = {"timeout": "600s", "connect_timeout": "10s", **options.pop("client_options", {})}
        self._check(options, client)
        if scheme in AZURE:
            _take_account(root, options)
        endpoint = str(options.get("endpoint") or options.get("aws_endpoint") or options.get("endpoint_url") or "")
        emulated = scheme == "s3" and os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
        if endpoint.startswith("http://") or emulated:
            client.setdefault("allow_http", True)
        # `requests` repeats failed requests, with the same counts and waits for all stores.
        retry = {"max_retries": 0, "retry_timeout": datetime.timedelta(seconds=600)}
        # Writes are the exception: it is better to repeat one part of an object than all of them.
        backoff = {"init_backoff": datetime.timedelta(seconds=0.1), "max_backoff": datetime.timedelta(seconds=1)}
        parts = {"max_retries": 2, "retry_timeout": datetime.timedelta(seconds=600), "backoff": {**backoff, "base": 2}}
        self._web = WebClient({name: client[name] for name in client if name in WEB_OPTIONS})
        # A new store finds credentials again: from the environment, the machine's role, or a credential provider.
        self._open = functools.partial(self._open_store, client, retry, options)
        self._open_writes = functools.partial(self._open_store, {**client, "timeout": _WRITE_TIMEOUT}, parts, options)
        self._store, self._writes = self._open(), self._open_writes()
        self._renewed_s = -math.inf

    def _check(self, options: Mapping[str, Any], client: Mapping[str, Any]) -> None:
        """Check the names of options, as obstore panics if an option of its client is among the options of the
        store."""
        for name in options:
            if _PREFIX.sub("", str(name).lower()) in _CLIENT_OPTIONS:
                raise OptionError(
                    f"expected options of the store in storage_options, got {name!r}, which is one of its client",
                    path=self.address,
                    hint="pass fl.Remote(storage_options={'client_options': "
                    f"{{{_PREFIX.sub('', str(name).lower())!r}: ...}}}})",
                )
        if unknown := [name for name in client if name not in _CLIENT_OPTIONS]:
            raise OptionError(
                f"expected client_options that obstore knows, got {unknown[0]!r}",
                path=self.address,
                hint=f"it knows {', '.join(sorted(_CLIENT_OPTIONS))}",
            )

    def _open_store(self, client: Mapping[str, Any], retry: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        try:
            return self._obstore.store.from_url(self.root, client_options=client, retry_config=retry, **options)
        except BaseException as error:  # exceptions of obstore and pyo3, including panics
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise OptionError(
                "expected an address and storage_options that obstore understands: "
                + _hide_values(str(error), {**client, **options}),
                path=self.address,
            ) from None

    async def head(self, key: str) -> ObjectInfo | None:
        """See `Store.head`."""
        try:
            with faults():
                return _info(await self._obstore.head_async(self._store, key))
        except StoreFault as fault:
            if fault.kind == "missing":
                return None
            raise

    async def list_objects(self, folder: str, *, deep: bool = True) -> AsyncIterator[list[ObjectInfo]]:
        """See `Store.list_objects`."""
        # obstore's prefixes are complete parts of a name, and it lists the empty object of a folder without its slash.
        prefix = folder.removesuffix("/")
        with faults():
            if not deep:
                page = await self._obstore.list_with_delimiter_async(self._store, prefix or None)
                yield [
                    *(_info(meta) for meta in page["objects"] if meta["path"] != prefix),
                    *(ObjectInfo(f"{path}/", 0, "", 0) for path in page["common_prefixes"]),
                ]
                return
            async for batch in self._obstore.list(self._store, prefix or None, chunk_size=1000):
                yield [_info(meta) for meta in batch if meta["path"] != prefix]

    async def read(self, info: ObjectInfo, begin: int, end: int) -> AsyncIterator[Any]:
        """See `Store.read`."""
        options: dict[str, Any] = {"range": (begin, end)}
        if info.etag and not info.etag.startswith("W/"):
            options["if_match"] = info.etag
        with faults():
            response = await self._obstore.get_async(self._store, info.key, options=options)
            if not info.is_same(now := _info(response.meta)):
                raise StoreFault(f"an object of {now}", kind="changed")
            # Pieces of any size, as they arrive. On a slow line, waiting for a larger piece would look like a stall.
            async for piece in response.stream(min_chunk_size=1):
                yield piece

    async def write(self, key: str, body: Body, *, new: bool = False) -> str:
        """See `Store.write`."""
        try:
            with faults():
                if body.whole is not None:
                    done = await self._put_whole(key, body.whole, new)
                else:
                    # obstore aborts an upload that fails or ends early, but not a cancelled one.
                    parts = {"chunk_size": body.part_bytes, "max_concurrency": _WRITES_AT_ONCE}
                    done = await self._obstore.put_async(self._writes, key, body.parts(), use_multipart=True, **parts)
        except StoreFault as fault:
            if fault.kind == "missing" and not _NO_BUCKET.search(fault.answer):
                # The upload may be complete, and only the answer is lost.
                raise StoreFault(fault.answer, again=True) from fault
            raise
        etag = done.get("e_tag")
        if etag:
            return str(etag)
        info = await self.head(key)
        if info is None:
            raise StoreFault("no object where it was written", again=True)
        return info.etag

    async def _put_whole(self, key: str, data: bytes, new: bool) -> Any:
        put = self._obstore.put_async
        if new:
            try:
                return await put(self._store, key, data, mode="create", use_multipart=False)
            except Exception as error:
                # Not every store knows this condition.
                if type(error).__name__ not in ("NotImplementedError", "NotSupportedError") and not (
                    (status := _STATUS.search(str(error))) and status[1] == "501"
                ):
                    raise
        return await put(self._store, key, data, use_multipart=False)

    async def delete(self, key: str) -> None:
        """See `Store.delete`."""
        try:
            with faults():
                await self._obstore.delete_async(self._store, key)
        except StoreFault as fault:
            if fault.kind != "missing":
                raise

    async def renew(self, since: float) -> bool:
        """See `Store.renew`."""
        if self._renewed_s < since:
            self._renewed_s = time.monotonic()
            self._store, self._writes = self._open(), self._open_writes()
        return True

    async def retry_after(self, key: str) -> float | None:
        """Ask for one byte, as obstore does not pass on the header with the time to wait."""
        try:
            url = await self._obstore.sign_async(self._store, "GET", key, _SIGNED_FOR)
            async with self._web.request("GET", url, {"Range": "bytes=0-0"}) as answer:
                return answer.wait_s
        except Exception:  # as if the header were missing
            return None


def etag_of(meta: Mapping[str, Any]) -> str:
    """Return the ETag of an object as in HTTP. Listings of Azure leave out the quotes."""
    etag = meta.get("e_tag") or ""
    return etag if not etag or etag.startswith(('"', "W/")) else f'"{etag}"'


def _info(meta: Any) -> ObjectInfo:
    modified = int(meta["last_modified"].timestamp() * 1e9)
    return ObjectInfo(meta["path"], meta["size"], etag_of(meta), modified)


def _take_account(root: str, options: dict[str, Any]) -> None:
    """Remove an option that repeats a part of the address, as obstore accepts it in only one place.

    Raises:
        OptionError: the option and the address differ.
    """
    container, separator, host = root.partition("://")[2].partition("@")
    if not separator:
        return
    named = {"account": host.partition(".")[0], "container": container.partition(":")[0]}
    for name in list(options):
        kind = re.fullmatch(r"(?:azure_)?(?:storage_)?(account|container)(?:_name)?", str(name).lower())
        if kind is None:
            continue
        if options[name] != named[kind[1]]:
            raise OptionError(
                f"expected {name} to name the {kind[1]} of the address, got another one", path=without_credentials(root)
            )
        del options[name]


def _hide_values(message: str, options: Mapping[str, Any]) -> str:
    """Return the first line of a message, with names of options in place of their values, which may be secret."""
    message = next(iter(message.splitlines()), "")
    for name, value in options.items():
        message = message.replace(f'"{value}"', f"the value of {name}")
        if len(str(value)) >= _MIN_SECRET:
            message = message.replace(str(value), f"<{name}>")
    return message
