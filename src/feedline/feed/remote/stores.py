"""The interface of object stores: list objects, read ranges of their bytes, write complete objects.

`object_store`, `file_systems` and `web` implement it, each with a library for its kind of store. `addresses` chooses
between them. None of them retries: `requests` does so for all stores. A failed request is a `StoreFault`, which records
whether a retry may help. Credentials come from ``options``, or from the places where the libraries look for them. They
are never part of a message.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import datetime
import hashlib
import json
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from feedline import _native
from feedline.errors import DataError
from feedline.feed.remote.address_text import ADDRESS, without_credentials, without_password
from feedline.feed.remote.blocking_calls import in_own_thread

_STATUS = re.compile(r"\bstatus(?: code)?:? (\d{3})\b")
_AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_KINDS = {401: "denied", 403: "denied", 404: "missing", 410: "missing", 412: "changed"}
_THROTTLED = frozenset({429, 503})
_PERMANENT = (ValueError, TypeError, LookupError, AttributeError, NotImplementedError, ArithmeticError)
_PERMANENT_TEXT = re.compile(
    r"non-partial response|invalid peer certificate|certificate verify failed|URL scheme is not allowed|BadScheme"
)
_CREDENTIALS = re.compile(
    r"keys?|accesskey|secretkey|apikey|secret|token|passw(?:or)?d|passphrase|pass|pwd|credentials?|signature|sas|auth"
    r"|authorization|bearer|cookies?|cert|certificate|timeout|retry"
)
_VARIABLES = re.compile(
    r"(?:AWS|AZURE|GOOGLE|HF|FSSPEC)_(?:\w*_)?(?:ENDPOINT|ACCOUNT_NAME|EMULATOR|BASE_URL|CONTAINER_NAME)"
    r"|STORAGE_EMULATOR_HOST"
)
_SECOND_NS = 1_000_000_000
_MAX_PARTS = 9_000  # stores take 10,000
_MAX_ANSWER = 300

WRITE_BYTES = 8 << 20
"""Limit of bytes that one request writes, and size of the parts of a larger object, except for very large ones."""


class ObjectInfo(NamedTuple):
    """The properties of an object in its store.

    Attributes:
        key: name of the object in the store.
        size: size in bytes.
        etag: text that changes with the content. Empty if the store has none.
        modified_ns: time of the last modification, in nanoseconds since 1970. 0 if the store has none.
        run: random text that serves as a version in this run, if the store has neither ETag nor time. Else empty.
    """

    key: str
    size: int
    etag: str
    modified_ns: int
    run: str = ""

    @property
    def version(self) -> str:
        """Text that changes with the content, if the store reports changes."""
        return json.dumps([self.size, self.etag, 0 if self.etag else self.modified_ns, self.run])

    def is_same(self, other: ObjectInfo) -> bool:
        """Return whether another answer of the store describes the same content, as far as both report it."""
        if self.size != other.size:
            return False
        if self.etag and other.etag:
            return self.etag == other.etag
        times = self.modified_ns, other.modified_ns
        if all(times):
            if any(time % _SECOND_NS == 0 for time in times):  # a header has whole seconds, a listing may have more
                return times[0] // _SECOND_NS == times[1] // _SECOND_NS
            return times[0] == times[1]
        return not self.etag and not self.modified_ns

    def __str__(self) -> str:
        facts = [f"{self.size} bytes"]
        if self.etag:
            facts.append(f"ETag {self.etag}")
        if self.modified_ns:
            modified = datetime.datetime.fromtimestamp(self.modified_ns / _SECOND_NS, datetime.UTC)
            facts.append(f"last modified {modified:%Y-%m-%d %H:%M:%S} UTC")
        return ", ".join(facts)


class StoreFault(Exception):  # noqa: N818  # a state, which a retry often resolves
    """A request failed.

    Attributes:
        answer: message of the store or the network, in one line.
        again: whether a retry may help.
        throttled: whether the store refuses for now.
        wait_s: seconds that the store asks to wait. None if it names no time.
        kind: "missing", "denied", "changed" (the object was replaced), "exists" (the object had to be new),
            "unnamable" (the library cannot ask for such a key), or "" for anything else.
    """

    def __init__(
        self, answer: str, *, again: bool = False, throttled: bool = False, wait_s: float | None = None, kind: str = ""
    ) -> None:
        super().__init__(answer)
        self.answer, self.again, self.throttled, self.wait_s, self.kind = answer, again, throttled, wait_s, kind


class OptionError(DataError, ValueError):
    """An unknown option of a store."""


class EndedError(Exception):
    """`Body.end` was called before all of the body was read."""


class Body:
    """The bytes of an object to write, from a file or from memory. They are read once, in order.

    Args:
        source: path of the file, or the bytes.

    Attributes:
        size: number of bytes.
        whole: the bytes, if one request sends them.
        crc32c: checksum of the bytes that were read so far.
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
        """Size of a part in bytes."""
        return max(WRITE_BYTES, -(-self.size // _MAX_PARTS))

    def end(self) -> None:
        """Make `parts` raise, so that the store drops the parts that it has received."""
        self._ended = True

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the bytes in parts of `part_bytes`.

        Raises:
            EndedError: `end` was called.
        """
        assert isinstance(self._source, Path)
        with open(self._source, "rb") as file:
            while block := await in_own_thread(lambda: file.read(self.part_bytes)):
                if self._ended:
                    raise EndedError
                self.crc32c = _native.crc32c(block, self.crc32c)
                yield block
        if self._ended:
            raise EndedError


class Store(abc.ABC):
    """A bucket, a container, or a host.

    Args:
        root: address of the store without a key, with its credentials, if any.
        options: options of the library that reads the store.

    Attributes:
        address: address for people, without a slash at the end and without credentials.
        place: hash of all properties that distinguish stores. Credentials are left out, so that pages that were fetched
            with other credentials are found.
        root: address that the store was opened with.
        lists: whether the store can list its objects.
        blocks: whether a listing arrives only as a whole.
        commits: whether keys can name a commit, whose objects never change, see `pinned`.
    """

    lists: bool = True
    blocks: bool = False
    commits: bool = False

    def __init__(self, root: str, options: Mapping[str, Any]) -> None:
        self.root, self.address = root, without_credentials(root)
        # The libraries take endpoints and accounts from these variables.
        named = ((name, without_credentials(value)) for name, value in os.environ.items() if _VARIABLES.match(name))
        about = json.dumps([without_password(root), _places(options), sorted(named)])
        self.place = hashlib.blake2b(about.encode(), digest_size=16).hexdigest()

    def url(self, key: str) -> str:
        """Return the address of an object."""
        return f"{self.address}/{key}"

    async def pinned(self, key: str) -> str:
        """Return a key or pattern at the commit that it names now, if the store has commits.

        Raises:
            StoreFault: the request failed, or there is no such commit.
        """
        return key

    @abc.abstractmethod
    async def head(self, key: str) -> ObjectInfo | None:
        """Return the object at a key, or None if there is none.

        Raises:
            StoreFault: the request failed.
        """

    @abc.abstractmethod
    def list_objects(self, folder: str, *, deep: bool = True) -> AsyncIterator[list[ObjectInfo]]:
        """Yield the objects of a folder, page by page. Folders are empty objects with a slash at the end.

        Args:
            folder: prefix of the keys, empty or with a slash at the end.
            deep: whether to list the objects in its folders, too, instead of these folders.

        Raises:
            StoreFault: the request failed, or the store cannot list objects.
        """

    @abc.abstractmethod
    def read(self, info: ObjectInfo, begin: int, end: int) -> AsyncIterator[Any]:
        """Yield the bytes ``begin:end`` of an object in pieces, as buffers.

        Raises:
            StoreFault: the request failed, or the object has changed since ``info``.
        """

    async def write(self, key: str, body: Body, *, new: bool = False) -> str:
        """Write an object, which appears completely or not at all, and return its ETag.

        To stop early, call `Body.end`: a cancelled call may leave parts of an upload in the store.

        Args:
            key: the key.
            body: bytes of the object.
            new: whether to refuse to replace an object, if the store can. Only for bodies of one request.

        Raises:
            StoreFault: the store does not accept the object.
        """
        raise StoreFault("a store that is only read")

    async def delete(self, key: str) -> None:
        """Remove an object, if it exists.

        Raises:
            StoreFault: the request failed.
        """
        raise StoreFault("a store that is only read")

    async def renew(self, since: float) -> bool:
        """Find the credentials again, unless that was done after the monotonic time ``since``, at which a request began
        that was denied. Return whether the store can do so."""
        return False

    async def retry_after(self, key: str) -> float | None:
        """Ask a store that refused a request how many seconds to wait. None if it names no time."""
        return None


def _is_credential(name: str) -> bool:
    """Return whether an option or a header of this name is a credential, or does not distinguish places."""
    words = re.findall(r"[a-z]+|[A-Z]+(?![a-z])|[A-Z][a-z]*", name)
    return any(_CREDENTIALS.fullmatch(word.lower()) for word in words)


def _places(options: Any) -> Any:
    """Return the options that may distinguish places: all JSON values except credentials, times and the like."""
    if isinstance(options, Mapping):
        named = {str(name): _places(value) for name, value in options.items() if not _is_credential(str(name))}
        return dict(sorted(named.items()))
    if isinstance(options, (list, tuple)):
        return [_places(value) for value in options]
    if isinstance(options, str):
        return without_credentials(options)
    return options if isinstance(options, (bool, int, float)) else None


@contextlib.contextmanager
def faults() -> Iterator[None]:
    """A context in which exceptions of libraries become a `StoreFault`. See `fault_of`."""
    try:
        yield
    except (StoreFault, EndedError):
        raise
    except Exception as error:
        raise fault_of(error) from error


def fault_of(error: BaseException) -> StoreFault:
    """Return the fault for an exception of a library or of Python's network modules."""
    text = str(error).split("\n\nDebug source:")[0].split("<?xml")[0]
    text = re.sub(r"\s+", " ", text).strip(" :")
    text = re.sub(ADDRESS.pattern + r"\S+", lambda match: without_credentials(match[0]), text)[:_MAX_ANSWER]
    name = type(error).__name__
    if isinstance(error, asyncio.IncompleteReadError):
        return StoreFault("the connection was closed", again=True)
    if name == "NotFoundError" or isinstance(error, FileNotFoundError):
        return StoreFault(text, kind="missing")
    if name in ("PermissionDeniedError", "UnauthenticatedError") or isinstance(error, PermissionError):
        return StoreFault(text, kind="denied")
    if name == "PreconditionError":
        return StoreFault(text, kind="changed")
    if name == "AlreadyExistsError":
        return StoreFault(text, kind="exists")
    if name == "InvalidPathError":
        return StoreFault(text, kind="unnamable")
    # The library lacks a feature, so the same request would fail again.
    if isinstance(error, _PERMANENT) or name == "NotSupportedError" or _PERMANENT_TEXT.search(text):
        return StoreFault(text or name)
    code = getattr(getattr(error, "response", None), "status_code", None)  # of requests and httpx
    if code is None and (status := _STATUS.search(text)) is not None:
        code = int(status[1])
    if code is not None:
        return fault_of_status(code, text)
    return StoreFault(text or name, again=True)


def fault_of_status(code: int, text: str, wait_s: float | None = None) -> StoreFault:
    """Return the fault for an HTTP status other than success."""
    if code in _KINDS:
        return StoreFault(text, kind=_KINDS[code])
    return StoreFault(text, again=code in _AGAIN or code >= 500, throttled=code in _THROTTLED, wait_s=wait_s)
