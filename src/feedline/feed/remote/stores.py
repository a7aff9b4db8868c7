"""Object stores, through the libraries that know them: list objects, read ranges of their bytes, write whole objects.

``s3``, ``gs``, ``az`` and ``http`` addresses are read through obstore, all others through fsspec. Neither retries here:
`requests` does, alike for all stores, and so every failed request is a `StoreFault` that says whether asking again may
help. Credentials are found as these libraries find them, or given in ``options``; they are never part of a message.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import datetime
import email.utils
import functools
import http.client
import os
import re
import time
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from feedline import _native
from feedline.errors import DataError

_OBSTORE = {"s3": "s3", "s3a": "s3", "gs": "gs", "az": "az", "azure": "az", "abfs": "az", "abfss": "az", "adl": "az"}
_HTTP = ("http", "https")
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_STATUS = re.compile(r"\bstatus(?: code)?:? (\d{3})\b")
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist", re.IGNORECASE)
_AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_KINDS = {401: "denied", 403: "denied", 404: "missing", 412: "changed"}
_THROTTLED = frozenset({429, 503})
WRITE_BYTES = 8 << 20
"""Most bytes of an object that is written with one request, and those of each part of a larger one, but for very large
ones."""

_MOST_PARTS = 9_000  # stores take 10,000
_WRITES_AT_ONCE = 8  # parts of one object
_WRITE_TIMEOUT = "120s"  # for one part
_SIGNED_FOR = datetime.timedelta(minutes=5)
_PROBE_S = 10.0
_MOST_ANSWER = 300


class ObjectInfo(NamedTuple):
    """What a store says of an object.

    Attributes:
        key: its name in the store.
        size: its size in bytes.
        etag: what changes when its content does.
        modified_ns: when it was last modified, in nanoseconds since 1970.
    """

    key: str
    size: int
    etag: str
    modified_ns: int


class StoreFault(Exception):  # noqa: N818  # a state of affairs, mostly mended by asking again
    """A request failed.

    Attributes:
        answer: what the store or the network said, in one line.
        again: whether asking again may help.
        throttled: whether the store refuses for now.
        kind: "missing", "denied", "changed" (the object has another ETag), "exists" (and was to be new), or "" for
            anything else.
    """

    def __init__(self, answer: str, *, again: bool = False, throttled: bool = False, kind: str = "") -> None:
        super().__init__(answer)
        self.answer, self.again, self.throttled, self.kind = answer, again, throttled, kind


class EndedError(Exception):
    """A body was ended before all of it was read."""


class Body:
    """The bytes of an object to be written, from a file or from memory; to be written once, in order.

    Args:
        source: path of the file, or the bytes.

    Attributes:
        size: number of bytes.
        whole: the bytes, if they go with one request.
        crc32c: checksum of what was read so far.
    """

    def __init__(self, source: Path | bytes) -> None:
        self._source = source
        self.size = len(source) if isinstance(source, bytes) else source.stat().st_size
        self.crc32c = 0
        self.whole: bytes | None = None
        if self.size <= WRITE_BYTES:
            self.whole = source if isinstance(source, bytes) else source.read_bytes()
            self.crc32c = _native.crc32c(self.whole)
        self._ended = False

    @property
    def part_bytes(self) -> int:
        """Bytes of one part of it."""
        return max(WRITE_BYTES, -(-self.size // _MOST_PARTS))

    def end(self) -> None:
        """Let `parts` raise, so that the store drops what it has of it."""
        self._ended = True

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield it in parts of `part_bytes`.

        Raises:
            EndedError: `end` was called.
        """
        assert isinstance(self._source, Path)
        with open(self._source, "rb") as file:
            while block := await asyncio.to_thread(file.read, self.part_bytes):
                if self._ended:
                    raise EndedError
                self.crc32c = _native.crc32c(block, self.crc32c)
                yield block
        if self._ended:
            raise EndedError


class Store(abc.ABC):
    """A bucket, a container, or a host.

    Attributes:
        address: its address, without a slash at the end and without credentials.
        root: the address that it was opened with.
        lists: whether it can list its objects.
    """

    address: str
    root: str
    lists: bool = True

    def url(self, key: str) -> str:
        """Return the address of an object."""
        return f"{self.address}/{key}"

    @abc.abstractmethod
    async def head(self, key: str) -> ObjectInfo | None:
        """Return what there is at a key; None: nothing.

        Raises:
            StoreFault: the store does not say.
        """

    @abc.abstractmethod
    async def listed(self, prefix: str) -> list[ObjectInfo]:
        """Return all objects whose keys begin with ``prefix``, sorted by the bytes of their keys.

        Raises:
            StoreFault: the store does not say, or cannot.
        """

    @abc.abstractmethod
    def read(self, info: ObjectInfo, begin: int, end: int) -> AsyncIterator[Any]:
        """Yield the bytes ``begin:end`` of an object in pieces, buffers.

        Raises:
            StoreFault: they cannot be had, or the object is not the one of ``info`` any more.
        """

    @abc.abstractmethod
    async def write(self, key: str, body: Body, *, new: bool = False) -> str:
        """Write an object, which appears whole or not at all; return its ETag.

        To be ended by `Body.end`: a cancelled call may leave parts of an upload in the store.

        Args:
            key: the key.
            body: its bytes.
            new: whether to refuse to replace an object, where the store can; only for bodies of one request.

        Raises:
            StoreFault: the store does not take it.
        """

    @abc.abstractmethod
    async def delete(self, key: str) -> None:
        """Remove an object, if it is there.

        Raises:
            StoreFault: the store does not.
        """

    async def retry_after(self, key: str) -> float | None:
        """Ask a store that refused how many seconds it wants to be left alone; None: it does not say."""
        return None


def scheme_of(address: str) -> str | None:
    """Return the scheme of an address, in lower case; None: it is a path."""
    match = _ADDRESS.match(address)
    return None if match is None else match[1].lower()


def is_address(what: Any) -> bool:
    """Return whether something, or one of a list, is an address rather than a path."""
    parts = what if isinstance(what, (list, tuple)) else [what]
    return any(isinstance(part, str) and scheme_of(part) not in (None, "file") for part in parts)


def without_credentials(address: str) -> str:
    """Return an address without user, password, query and fragment."""
    parts = urllib.parse.urlsplit(address)
    host = parts.netloc.rpartition("@")[2]
    return urllib.parse.urlunsplit((parts.scheme, host, parts.path, "", ""))


@functools.lru_cache(maxsize=64)
def _kept(root: str, options: tuple[tuple[str, Any], ...]) -> Store:
    scheme = scheme_of(root)
    if scheme in _OBSTORE or scheme in _HTTP:
        return _ObStore(root, dict(options))
    return _FsspecStore(root, dict(options))


def open_store(address: str, options: Mapping[str, Any]) -> tuple[Store, str]:
    """Return the store of an address, and the key in it.

    Raises:
        DataError: a package is missing, or the address or the options are not understood.
    """
    scheme = scheme_of(address)
    assert scheme is not None
    if scheme in _OBSTORE or scheme in _HTTP:
        rest = address[len(scheme) + 3 :]
        place, _, key = rest.partition("/")
        if not place:
            raise DataError("expected an address with a bucket or a host, got none", path=without_credentials(address))
        root = f"{_OBSTORE.get(scheme, scheme)}://{place}"
    else:
        root, key = _fsspec_root(address)
    try:
        return _kept(root, tuple(sorted(options.items()))), key
    except TypeError:  # an option that cannot be hashed, as a dictionary
        made = _kept.__wrapped__(root, tuple(sorted(options.items())))
        return made, key


def _fault_of(error: Exception) -> StoreFault:
    """Return what an exception of obstore, or of Python's network, says."""
    text = str(error).split("\n\nDebug source:")[0].split("<?xml")[0]
    text = re.sub(r"\s+", " ", text).strip(" :")[:_MOST_ANSWER]
    text = re.sub(r"https?://\S+", lambda found: without_credentials(found[0]), text)
    name = type(error).__name__
    if name == "NotFoundError" or isinstance(error, FileNotFoundError):
        return StoreFault(text, kind="missing")
    if name in ("PermissionDeniedError", "UnauthenticatedError") or isinstance(error, PermissionError):
        return StoreFault(text, kind="denied")
    if name == "PreconditionError":
        return StoreFault(text, kind="changed")
    if name == "AlreadyExistsError":
        return StoreFault(text, kind="exists")
    if name in ("NotSupportedError", "NotImplementedError"):
        return StoreFault(text)
    status = _STATUS.search(text)
    if status is not None:
        code = int(status[1])
        if code in _KINDS:
            return StoreFault(text, kind=_KINDS[code])
        return StoreFault(text, again=code in _AGAIN or code >= 500, throttled=code in _THROTTLED)
    if "non-partial response" in text:
        return StoreFault(text)
    return StoreFault(text, again=True)


class _ObStore(Store):
    """A store that obstore reads."""

    def __init__(self, root: str, options: dict[str, Any]) -> None:
        try:
            import obstore
            import obstore.store
        except ImportError as error:
            raise DataError(
                "expected the package obstore to read from object stores, got none",
                path=without_credentials(root),
                hint="pip install 'feedline[remote]'",
            ) from error
        self._obstore = obstore
        self.address, self.root = without_credentials(root), root
        scheme = scheme_of(root)
        self.lists = scheme not in _HTTP
        client = {"timeout": "600s", "connect_timeout": "10s", **options.pop("client_options", {})}
        endpoint = str(options.get("endpoint") or options.get("aws_endpoint") or options.get("endpoint_url") or root)
        emulated = scheme == "s3" and os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
        if endpoint.startswith("http://") or emulated:
            client.setdefault("allow_http", True)
        # What fails is asked for again by `requests`, which counts and waits alike for all stores.
        retry = {"max_retries": 0, "retry_timeout": datetime.timedelta(seconds=600)}
        # But for parts of an object that is being written: to repeat one is better than to repeat all of them.
        backoff = {"init_backoff": datetime.timedelta(seconds=0.1), "max_backoff": datetime.timedelta(seconds=1)}
        parts = {"max_retries": 2, "retry_timeout": datetime.timedelta(seconds=600), "backoff": {**backoff, "base": 2}}
        writes = {**client, "timeout": _WRITE_TIMEOUT}
        try:
            self._store = obstore.store.from_url(root, client_options=client, retry_config=retry, **options)
            self._writes = obstore.store.from_url(root, client_options=writes, retry_config=parts, **options)
        except Exception as error:  # obstore's own exceptions, and pyo3's of unknown options
            raise DataError(
                f"expected an address and storage_options that obstore understands: {str(error).splitlines()[0]}",
                path=self.address,
            ) from None

    async def head(self, key: str) -> ObjectInfo | None:
        try:
            return _info(await self._obstore.head_async(self._store, key))
        except Exception as error:
            fault = _fault_of(error)
            if fault.kind == "missing":
                return None
            raise fault from error

    async def listed(self, prefix: str) -> list[ObjectInfo]:
        if not self.lists:
            raise StoreFault("a web server does not list what it has")
        # obstore's prefixes are whole path segments: ask for the folder, and compare names here.
        folder = prefix.rpartition("/")[0]
        found = []
        try:
            async for batch in self._obstore.list(self._store, folder or None, chunk_size=1000):
                found += [_info(meta) for meta in batch if meta["path"].startswith(prefix)]
        except Exception as error:
            raise _fault_of(error) from error
        return sorted(found, key=lambda one: os.fsencode(one.key))

    async def read(self, info: ObjectInfo, begin: int, end: int) -> AsyncIterator[Any]:
        options: dict[str, Any] = {"range": (begin, end)}
        if info.etag and not info.etag.startswith("W/"):
            options["if_match"] = info.etag
        try:
            found = await self._obstore.get_async(self._store, info.key, options=options)
            meta = found.meta
            if _etag_of(meta) != info.etag or meta["size"] != info.size:
                raise StoreFault(f"an object of {meta['size']} bytes with ETag {meta.get('e_tag')}", kind="changed")
            async for piece in found.stream(min_chunk_size=1 << 20):
                yield piece
        except StoreFault:
            raise
        except Exception as error:
            raise _fault_of(error) from error

    async def write(self, key: str, body: Body, *, new: bool = False) -> str:
        try:
            if body.whole is None:
                # Of what fails, or ends before its time, obstore aborts the upload; not of what is cancelled.
                done = await self._obstore.put_async(
                    self._writes,
                    key,
                    body.parts(),
                    use_multipart=True,
                    chunk_size=body.part_bytes,
                    max_concurrency=_WRITES_AT_ONCE,
                )
            else:
                done = await self._put_whole(key, body.whole, new)
        except EndedError:
            raise
        except Exception as error:
            fault = _fault_of(error)
            if fault.kind == "missing" and not _NO_BUCKET.search(fault.answer):
                # The upload: it may be complete, and the answer that says so be lost.
                fault = StoreFault(fault.answer, again=True)
            raise fault from error
        etag = done.get("e_tag")
        if etag:
            return str(etag)
        found = await self.head(key)
        if found is None:
            raise StoreFault("no object where it was written", again=True)
        return found.etag

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
        try:
            await self._obstore.delete_async(self._store, key)
        except Exception as error:
            fault = _fault_of(error)
            if fault.kind != "missing":
                raise fault from error

    async def retry_after(self, key: str) -> float | None:
        """Ask for one byte: obstore does not pass on the header that says how long to wait."""
        try:
            if self.lists:
                url = await self._obstore.sign_async(self._store, "GET", key, _SIGNED_FOR)
            else:
                url = f"{self.address}/{urllib.parse.quote(key)}"
            return await asyncio.to_thread(_retry_after, url)
        except Exception:  # as without the header
            return None


def _etag_of(meta: Mapping[str, Any]) -> str:
    """Return the ETag of an object as HTTP has it: Azure's listings leave out the quotes."""
    etag = meta.get("e_tag") or ""
    return etag if not etag or etag.startswith(('"', "W/")) else f'"{etag}"'


def _info(meta: Any) -> ObjectInfo:
    modified = int(meta["last_modified"].timestamp() * 1e9)
    return ObjectInfo(meta["path"], meta["size"], _etag_of(meta), modified)


def _retry_after(url: str) -> float | None:
    parts = urllib.parse.urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=_PROBE_S)
    try:
        connection.request(
            "GET", f"{parts.path}?{parts.query}" if parts.query else parts.path, headers={"Range": "bytes=0-0"}
        )
        answer = connection.getresponse()
        value = answer.headers.get("Retry-After")
        return None if value is None or answer.status not in _THROTTLED else _seconds(value)
    finally:
        connection.close()


def _seconds(value: str) -> float | None:
    """Return what Retry-After says, seconds or a date, in seconds from now."""
    if value.strip().isdecimal():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def _fsspec_root(address: str) -> tuple[str, str]:
    # What stands between scheme and first slash is a bucket, a host or, for some file systems, the first folder.
    scheme = scheme_of(address)
    assert scheme is not None
    place, _, key = address[len(scheme) + 3 :].partition("/")
    return f"{scheme}://{place}", key


class _FsspecStore(Store):
    """A file system that fsspec knows."""

    def __init__(self, root: str, options: dict[str, Any]) -> None:
        self.address, self.root = without_credentials(root), root
        scheme = scheme_of(root)
        try:
            import fsspec

            self._system, self._root = fsspec.core.url_to_fs(root, **options)
        except (ImportError, ValueError) as error:
            raise DataError(
                f"expected a kind of address that obstore or fsspec reads, got {scheme}://: {error}",
                path=self.address,
                hint="pip install 'feedline[remote]', and the package that the message names, if it names one",
            ) from error
        self._root = self._root.rstrip("/")

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}" if self._root else key

    def _found(self, path: str, about: Mapping[str, Any]) -> ObjectInfo:
        name = str(about["name"]).removeprefix("/")
        key = name.removeprefix(self._root.removeprefix("/")).removeprefix("/")
        etag = next((str(about[k]) for k in ("ETag", "etag", "blob_id", "sha", "checksum", "md5") if about.get(k)), "")
        when = next((about[k] for k in ("LastModified", "last_modified", "mtime", "created") if about.get(k)), 0)
        if isinstance(when, datetime.datetime):
            when = when.timestamp()
        modified = int(float(when) * 1e9) if isinstance(when, (int, float)) else 0
        return ObjectInfo(key, int(about["size"] or 0), etag or f"{modified}", modified)

    async def head(self, key: str) -> ObjectInfo | None:
        path = self._path(key)
        try:
            about = await asyncio.to_thread(self._system.info, path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except Exception as error:
            raise _fault_of(error) from error
        return self._found(path, about) if about.get("type", "file") == "file" else None

    async def listed(self, prefix: str) -> list[ObjectInfo]:
        folder = self._path(prefix.rpartition("/")[0])
        try:
            found = await asyncio.to_thread(self._system.find, folder, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except Exception as error:
            raise _fault_of(error) from error
        infos = [self._found(path, about) for path, about in found.items() if about.get("type", "file") == "file"]
        return sorted((one for one in infos if one.key.startswith(prefix)), key=lambda one: os.fsencode(one.key))

    async def read(self, info: ObjectInfo, begin: int, end: int) -> AsyncIterator[Any]:
        try:
            found = await asyncio.to_thread(self._system.cat_file, self._path(info.key), start=begin, end=end)
        except Exception as error:
            raise _fault_of(error) from error
        yield found

    async def write(self, key: str, body: Body, *, new: bool = False) -> str:
        path = self._path(key)
        try:
            if new and await asyncio.to_thread(self._system.exists, path):
                raise StoreFault("an object of that name", kind="exists")
            with contextlib.suppress(FileExistsError):
                await asyncio.to_thread(self._system.makedirs, path.rpartition("/")[0], exist_ok=True)
            if body.whole is not None:
                await asyncio.to_thread(self._system.pipe_file, path, body.whole)
            else:
                # Where it cannot be discarded, what is left is no whole file, and without a record.
                file = await asyncio.to_thread(self._system.open, path, "wb")
                try:
                    async for part in body.parts():
                        await asyncio.to_thread(file.write, part)
                except BaseException:
                    with contextlib.suppress(Exception):
                        await asyncio.to_thread(file.discard)
                    raise
                await asyncio.to_thread(file.close)
            about = await asyncio.to_thread(self._system.info, path)
        except (StoreFault, EndedError):
            raise
        except Exception as error:
            raise _fault_of(error) from error
        return self._found(path, about).etag

    async def delete(self, key: str) -> None:
        try:
            await asyncio.to_thread(self._system.rm_file, self._path(key))
        except FileNotFoundError:
            pass
        except Exception as error:
            raise _fault_of(error) from error
