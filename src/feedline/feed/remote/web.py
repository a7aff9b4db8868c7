"""Web servers, read by ranges over HTTP/1.1, on the event loop of `requests`.

obstore is not used for web servers: it escapes addresses that are escaped already, drops their queries, and sends the
headers of the user to any host that a server redirects to. Here an address is requested as written, and the headers,
name and password of the user are sent only to its host.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import email.message
import email.utils
import functools
import http.client
import io
import itertools
import re
import socket
import ssl
import time
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

from feedline.concurrency.finalizers import unless_exiting
from feedline.errors import DataError
from feedline.feed.remote.address_text import without_credentials
from feedline.feed.remote.blocking_calls import in_own_thread
from feedline.feed.remote.stores import ObjectInfo, OptionError, Store, StoreFault, fault_of_status, faults

WEB_OPTIONS = (
    "default_headers",
    "user_agent",
    "allow_http",
    "allow_invalid_certificates",
    "root_certificate",
    "proxy_url",
)
"""Options of obstore's client that this client supports."""

_PIECE = 256 << 10
_MAX_HEAD = 256 << 10
_MAX_REDIRECTS = 10
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAX_IDLE = 32
_CONNECT_S = 2.0  # for one of several addresses of a host
_MISSING = frozenset({404, 410})
_REFUSED = frozenset({401, 408, 425, 429, 500, 502, 503, 504})
_UNESCAPED = "/:@!$&'()*+,;=~%"
_BARE_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
_UNSENDABLE = re.compile(r"[^!-~]+")  # spaces, control characters and non-ASCII characters
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", re.IGNORECASE)

_open_writers: set[asyncio.StreamWriter] = set()  # Python warns about one that is collected before it is closed


def close_connections() -> None:
    """Close all connections. Called on their loop, before the loop ends."""
    for writer in _open_writers:
        writer.transport.abort()
    _open_writers.clear()


def _close(writer: asyncio.StreamWriter) -> None:
    """Close a connection. Called on its loop."""
    writer.transport.abort()
    _open_writers.discard(writer)


class _Origin(NamedTuple):
    """The endpoint of a connection."""

    scheme: str
    host: str
    port: int

    @property
    def shown(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = 443 if self.scheme == "https" else 80
        return host if self.port == usual else f"{host}:{self.port}"


class _Connection(NamedTuple):
    """A connection to a server. The address of the proxy is empty if there is none."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    origin: _Origin
    proxy: str = ""


class Response:
    """The answer to a request.

    Attributes:
        status: HTTP status.
        headers: headers of the response.
    """

    def __init__(self, connection: _Connection, status: int, reason: str, headers: email.message.Message) -> None:
        self.connection, self.status, self.reason, self.headers = connection, status, reason, headers
        self.ended = False  # whether the body was read to its end, so that the connection can be used again

    @property
    def wait_s(self) -> float | None:
        """Seconds that the server asks to wait. None if it names no time."""
        value = self.headers.get("Retry-After")
        if value is None or self.status not in (429, 503):
            return None
        return _seconds(value, self.headers.get("Date", ""))

    def fault(self) -> StoreFault:
        """Return the fault for a status other than success."""
        return fault_of_status(self.status, f"HTTP status {self.status} {self.reason}".rstrip(), self.wait_s)

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the bytes of the body as they arrive."""
        reader = self.connection.reader
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
                async for piece in _exactly(reader, size):
                    yield piece
                await reader.readexactly(2)
            while await reader.readuntil(b"\r\n") != b"\r\n":
                pass
        elif (length := self.headers.get("Content-Length")) is not None:
            async for piece in _exactly(reader, int(length)):
                yield piece
        else:
            while piece := await reader.read(_PIECE):
                yield piece
            return
        self.ended = self.headers.get("Connection", "").lower() != "close"


async def _exactly(reader: asyncio.StreamReader, size: int) -> AsyncIterator[bytes]:
    while size:
        piece = await reader.read(min(size, _PIECE))
        if not piece:
            return  # the caller notices that bytes are missing
        size -= len(piece)
        yield piece


class WebClient:
    """Requests with the same headers, certificates and proxy, over reused connections.

    Args:
        options: options of the client, as obstore names them.
        address: address that the options belong to, for errors.

    Raises:
        OptionError: an option is unknown.
    """

    def __init__(self, options: Mapping[str, Any], address: str = "") -> None:
        self._idle: dict[tuple[_Origin, str], list[_Connection]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        if unknown := [name for name in options if name not in WEB_OPTIONS]:
            raise OptionError(
                f"expected client_options for a web server, got {unknown[0]!r}",
                path=address,
                hint=f"known ones are {', '.join(WEB_OPTIONS)}",
            )
        self._own: dict[str, str] = {}
        for name, value in (options.get("default_headers") or {}).items():
            text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
            if re.search(r"[\r\n]", f"{name}{text}"):
                raise OptionError(f"expected a header of one line, got {name!r}", path=address)
            self._own[str(name)] = text
        if options.get("user_agent"):
            self._own["User-Agent"] = str(options["user_agent"])
        self._options = options

    @unless_exiting
    def __del__(self) -> None:
        # The loop may serve others for long after this client.
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and has closed them
                for connection in itertools.chain(*self._idle.values()):
                    self._loop.call_soon_threadsafe(_close, connection.writer)

    @functools.cached_property
    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if certificate := self._options.get("root_certificate"):
            text = certificate.decode() if isinstance(certificate, bytes) else certificate
            context.load_verify_locations(cadata=text)
        if self._options.get("allow_invalid_certificates"):
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    @contextlib.asynccontextmanager
    async def request(self, method: str, url: str, headers: Mapping[str, str]) -> AsyncIterator[Response]:
        """Send a request. A context with the answer, whose body is not read yet. Follows redirects.

        Raises:
            StoreFault: there is no answer.
        """
        first = _origin_of(url)
        client_headers: Mapping[str, str] = self._own
        with faults():
            for _ in range(_MAX_REDIRECTS):
                answer = await self._send(method, url, {**client_headers, **headers})
                try:
                    place = answer.headers.get("Location")
                    if answer.status not in _REDIRECTS or not place:
                        yield answer
                        return
                    # The raw bytes, as browsers do it. Headers are read as Latin-1.
                    url = urllib.parse.urljoin(url, urllib.parse.quote(place.strip(), _PRINTABLE, "latin-1"))
                    if _origin_of(url) != first:
                        client_headers = {}
                finally:
                    self._keep_idle(answer)
            raise StoreFault(f"more than {_MAX_REDIRECTS} redirects")

    async def _send(self, method: str, url: str, headers: Mapping[str, str]) -> Response:
        parts, origin = urllib.parse.urlsplit(url), _origin_of(url)
        proxy = self._proxy(origin)
        target = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
        target = _UNSENDABLE.sub(lambda unsendable: urllib.parse.quote(unsendable[0]), target)
        if proxy and origin.scheme == "http":
            target = f"http://{origin.shown}{target}"
        lines = {"Host": origin.shown, "User-Agent": "feedline", "Accept": "*/*", "Accept-Encoding": "identity"}
        if proxy and origin.scheme == "http":
            lines.update(_authorization("Proxy-Authorization", proxy))
        for name, value in headers.items():
            lines.pop(next((header for header in lines if header.lower() == name.lower()), name), None)
            lines[name] = value
        while True:
            connection, used = await self._connection(origin, proxy)
            try:
                return await _answer(connection, method, target, lines)
            except (OSError, asyncio.IncompleteReadError) as error:
                _close(connection.writer)
                # A server may close an idle connection at any moment.
                if not used or getattr(error, "partial", None):
                    raise
            except BaseException:
                _close(connection.writer)
                raise

    async def _connection(self, origin: _Origin, proxy: str) -> tuple[_Connection, bool]:
        """Return a connection, and whether it was used before."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._idle = loop, {}
        idle = self._idle.get((origin, proxy), [])
        while idle:
            connection = idle.pop()
            if not connection.reader.at_eof() and not connection.writer.is_closing():
                return connection, True
            _close(connection.writer)
        return await self._open_connection(origin, proxy), False

    async def _open_connection(self, origin: _Origin, proxy: str) -> _Connection:
        tls = self._tls if origin.scheme == "https" else None
        if not proxy:
            return await _connect(origin, tls)
        through = _origin_of(proxy)
        connection = await _connect(through, self._tls if through.scheme == "https" else None)
        if tls is None:
            return connection._replace(origin=origin, proxy=proxy)
        place = f"{origin.shown}" if ":" in origin.shown.rpartition("]")[2] else f"{origin.shown}:{origin.port}"
        lines = {"Host": place, **_authorization("Proxy-Authorization", proxy)}
        try:
            answer = await _answer(connection, "CONNECT", place, lines)
            if answer.status != 200:
                raise StoreFault(
                    f"HTTP status {answer.status} {answer.reason} of the proxy", again=answer.status >= 500
                )
            await connection.writer.start_tls(tls, server_hostname=origin.host)
        except BaseException:
            _close(connection.writer)
            raise
        return connection._replace(origin=origin, proxy=proxy)

    def _proxy(self, origin: _Origin) -> str:
        """Return the address of the proxy to a host. Empty: none."""
        proxy = str(self._options.get("proxy_url") or "")
        if not proxy and not urllib.request.proxy_bypass(origin.host):
            proxies = urllib.request.getproxies()
            proxy = proxies.get(origin.scheme) or proxies.get("all") or ""
        return f"http://{proxy}" if proxy and "://" not in proxy else proxy

    def _keep_idle(self, answer: Response) -> None:
        """Keep a connection for the next request, if the whole answer was read."""
        connection = answer.connection
        idle = self._idle.setdefault((connection.origin, connection.proxy), [])
        if answer.ended and len(idle) < _MAX_IDLE:
            idle.append(connection)
        else:
            _close(connection.writer)


def _origin_of(url: str) -> _Origin:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise StoreFault(f"a redirect or a proxy at {without_credentials(url)}, which is not a web server")
    host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode()
    return _Origin(parts.scheme, host, parts.port or (443 if parts.scheme == "https" else 80))


def _authorization(header: str, address: str) -> dict[str, str]:
    """Return the header with the user and password of an address, or nothing if it has none."""
    netloc = urllib.parse.urlsplit(address).netloc
    user, at, _ = netloc.rpartition("@")
    if not at:
        return {}
    user = urllib.parse.unquote(user if ":" in user else f"{user}:")
    return {header: "Basic " + base64.b64encode(user.encode()).decode()}


async def _connect(origin: _Origin, tls: ssl.SSLContext | None) -> _Connection:
    # In a separate thread, as the threads of the loop would keep the process alive until the call returns.
    places = await in_own_thread(lambda: socket.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM))
    error: OSError | None = None
    for number, (family, _, _, _, place) in enumerate(places, 1):
        try:
            # Try the next address if one does not answer, such as an IPv6 address without a route.
            async with asyncio.timeout(_CONNECT_S if number < len(places) else None):
                reader, writer = await asyncio.open_connection(
                    str(place[0]),
                    origin.port,
                    family=family,
                    ssl=tls,
                    server_hostname=origin.host if tls is not None else None,
                    limit=_MAX_HEAD,
                )
        except ssl.SSLCertVerificationError:
            raise
        except OSError as failed:
            error = failed
            continue
        _open_writers.add(writer)
        return _Connection(reader, writer, origin)
    raise error or OSError(f"no address of {origin.host}")


async def _answer(connection: _Connection, method: str, target: str, lines: Mapping[str, str]) -> Response:
    """Send a request, and read the head of the answer."""
    request = "\r\n".join([f"{method} {target} HTTP/1.1", *(f"{k}: {v}" for k, v in lines.items()), "", ""])
    connection.writer.write(request.encode("latin-1"))
    await connection.writer.drain()
    while True:
        head = await connection.reader.readuntil(b"\r\n\r\n")
        first, _, fields = head.partition(b"\r\n")
        version, _, status = first.decode("latin-1").partition(" ")
        code, _, reason = status.partition(" ")
        if not version.startswith("HTTP/1.") or not code.isdecimal():
            raise StoreFault(f"no answer of a web server, but one that begins with {first[:40]!r}", again=True)
        headers = http.client.parse_headers(io.BytesIO(fields))
        if int(code) >= 200:
            break
    answer = Response(connection, int(code), reason, headers)
    if version == "HTTP/1.0" and not headers.get("Connection"):
        headers["Connection"] = "close"
    nothing = method in ("HEAD", "CONNECT") or answer.status in (204, 304) or headers.get("Content-Length") == "0"
    answer.ended = nothing and headers.get("Connection", "").lower() != "close"
    return answer


class WebStore(Store):
    """A web server. The query of its address is used for all objects of this store."""

    lists = False

    def __init__(self, root: str, options: Mapping[str, Any]) -> None:
        super().__init__(root, options)
        client = options.get("client_options") or {}
        if unknown := [name for name in options if name != "client_options"]:
            raise OptionError(
                f"expected client_options alone in storage_options of a web server, got {unknown[0]!r}",
                path=self.address,
                hint="pass headers as fl.Remote(storage_options={'client_options': {'default_headers': {...}}})",
            )
        base, _, self._query = root.partition("?")
        scheme, _, place = base.partition("://")
        self._base = f"{scheme}://{place.rpartition('@')[2]}"
        try:
            _origin_of(self._base)
        except (ValueError, StoreFault) as error:
            raise DataError(
                "expected an address with a host and, after a colon, a number as its port",
                path=f"{scheme}://{place.rpartition('@')[2].partition(':')[0]}",  # what follows may be a password
                hint="write %2F, %3F and %23 for /, ? and # in a password",
            ) from error
        headers = {**_authorization("Authorization", base), **(client.get("default_headers") or {})}
        self._client = WebClient({**client, "default_headers": headers}, self.address)

    def _target(self, key: str) -> str:
        """Return the address of an object for requests. Characters that are escaped already stay as they are."""
        path = urllib.parse.quote(_BARE_PERCENT.sub("%25", key), safe=_UNESCAPED)
        return f"{self._base}/{path}" + (f"?{self._query}" if self._query else "")

    async def head(self, key: str) -> ObjectInfo | None:
        """See `Store.head`."""
        # Servers may refuse HEAD for an address that is signed for GET. Some do not implement HEAD, or send a version
        # only with GET.
        if not self._query:
            async with self._client.request("HEAD", self._target(key), {}) as answer:
                if answer.status in _MISSING:
                    return None
                if answer.status in _REFUSED:
                    raise answer.fault()
                if answer.status == 200 and (size := _size_of(answer)) is not None:
                    info = _info(key, answer, size)
                    if info.etag or info.modified_ns:
                        return info
        async with self._client.request("GET", self._target(key), {"Range": "bytes=0-0"}) as answer:
            size = _size_of(answer)
            if answer.status in (200, 206, 416) and size is not None:
                return _info(key, answer, size)
            if answer.status in (200, 206):
                raise StoreFault("an answer that does not say how large the object is")
            if answer.status in _MISSING:
                return None
            raise answer.fault()

    async def list_objects(self, folder: str, *, deep: bool = True) -> AsyncIterator[list[ObjectInfo]]:
        """See `Store.list_objects`."""
        raise StoreFault("a web server does not list its files")
        yield []  # type: ignore[unreachable]  # makes it a generator

    async def read(self, info: ObjectInfo, begin: int, end: int) -> AsyncIterator[Any]:
        """See `Store.read`."""
        headers = {"Range": f"bytes={begin}-{end - 1}"}
        if info.etag and not info.etag.startswith("W/"):
            headers["If-Match"] = info.etag
        async with self._client.request("GET", self._target(info.key), headers) as answer:
            size, span = _size_of(answer), _CONTENT_RANGE.match(answer.headers.get("Content-Range", ""))
            at = None if span is None or span[1] is None else int(span[1])
            if answer.status == 206:
                if at is None:
                    raise StoreFault("a part of the object without Content-Range, which says which one")
                size = info.size if size is None else size  # the server may not know
            if answer.status in (200, 206, 416) and size is not None:
                now = _info(info.key, answer, size)
                if answer.status == 416 and not now.etag:  # an error may come without an ETag
                    now = now._replace(etag=info.etag, modified_ns=info.modified_ns)
                if not info.is_same(now):
                    raise StoreFault(f"an object of {now}", kind="changed")
            if answer.status == 200:
                raise StoreFault("Range request not supported: the server answers with the whole object")
            if answer.status != 206:
                raise answer.fault()
            if at != begin:
                raise StoreFault(f"bytes from {at} on, rather than from {begin}", again=True)
            async for piece in answer.body():
                yield piece


def _size_of(answer: Response) -> int | None:
    """Return the size of the complete object, or None if the answer does not include it."""
    if answer.status == 200:
        length = answer.headers.get("Content-Length", "")
        return int(length) if length.isdecimal() else None
    span = _CONTENT_RANGE.match(answer.headers.get("Content-Range", ""))
    return None if span is None or span[3] == "*" else int(span[3])


def _info(key: str, answer: Response, size: int) -> ObjectInfo:
    modified = int(_time_of(answer.headers.get("Last-Modified", "")) or 0)
    return ObjectInfo(key, size, answer.headers.get("ETag", "").strip(), modified * 1_000_000_000)


def _seconds(value: str, now: str) -> float | None:
    """Return the value of Retry-After, seconds or a date, in seconds. A date is compared with the clock of the server,
    which may differ from ours."""
    if value.strip().isdecimal():
        return float(value)
    until = _time_of(value)
    return None if until is None else max(0.0, until - (_time_of(now) or time.time()))


def _time_of(date: str) -> float | None:
    """Return a date of HTTP in seconds since 1970, or None if it is not a date."""
    try:
        return email.utils.parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
