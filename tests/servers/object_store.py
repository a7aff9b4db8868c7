"""An object store for tests: S3 and plain HTTP on loopback, with latency, bandwidth, counters and faults on purpose.

`ObjectStore` runs in threads of this process, `ObjectStoreProcess` in a separate process, which does not share the
GIL with the client. Both have the methods of `Store`. Objects are in memory, or in a folder whose folders are buckets.

It speaks path-style S3 (signatures are accepted and ignored): GET and HEAD with ranges, ``If-Match`` and
``If-None-Match``, PUT, also conditional, copies, DELETE, bulk delete, multipart uploads, ListObjectsV2 with prefix,
delimiter, pages. Without S3 it is an HTTP server with ranges at ``/bucket/key``.

Requests are of these kinds, by which faults and counters name them: GET, HEAD, LIST, PUT, COPY, DELETE, DELETE_MANY,
UPLOAD (begins a multipart upload), PART, COMPLETE, ABORT, BUCKET (of a bucket itself) and OTHER.

It has a thread for each connection, and sends a gigabyte and more a second with ranges of megabytes. Connections,
bodies, unfinished uploads and the log are bounded. Closing ends all sockets and threads at once, in the middle of a
stall too.

    with ObjectStore() as store:
        store.put("bucket/a.tar", data)
        store.fail("status", key="bucket/*.tar", status=503, retry_after=1, times=2)
        obstore.store.S3Store("bucket", **store.s3()).get("a.tar")
        assert store.counters().requests["GET"] == 3
"""

from __future__ import annotations

import argparse
import base64
import binascii
import collections
import contextlib
import http.client
import json
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from email.utils import formatdate
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tests.servers import contents
from tests.servers.connection import Bad, Over, Reader, Request, Response, Sender
from tests.servers.faults import Fault, Faults
from tests.servers.link import Link

LOG = 1 << 18  # requests that are remembered
IDLE_S = 120  # how long a connection may be silent, or its client not read
ENDS_S = 10  # how long threads, or a process, may take to end
XMLNS = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
CODES = {
    400: "InvalidRequest", 403: "AccessDenied", 404: "NoSuchKey", 409: "Conflict", 412: "PreconditionFailed",
    413: "EntityTooLarge", 416: "InvalidRange", 429: "TooManyRequests", 500: "InternalError", 501: "NotImplemented",
    503: "SlowDown",
}  # fmt: skip


@dataclass
class Entry:
    """A request in the log, in the order of arrival.

    `name` is ``bucket/key``, or ``bucket/prefix`` of a listing. `span` is the bytes of the object in its range.
    """

    kind: str
    name: str
    range: str | None = None
    span: tuple[int, int] | None = None
    status: int | None = None  # None while it is not answered, and if it never is
    sent_bytes: int = 0  # of the body
    fault: str | None = None


@dataclass
class Counters:
    """Requests and bytes of bodies since the beginning, or the last `reset`."""

    requests: Counter[str] = field(default_factory=Counter)  # by kind
    methods: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    sent_bytes: Counter[str] = field(default_factory=Counter)  # by kind
    received_bytes: Counter[str] = field(default_factory=Counter)  # by kind
    most_at_once: int = 0  # requests
    connections: int = 0  # accepted
    refused: int = 0  # connections beyond the limit, closed at once


@dataclass(frozen=True)
class Settings:
    """How the server answers. May change while it runs.

    Args:
        latency_s: seconds before the first byte of each answer.
        bytes_per_second: of all bodies together, each way. None for no limit.
        page: most names in a page of a listing.
        access_key: access key that requests have to be signed with. None: any.
    """

    latency_s: float = 0.0
    bytes_per_second: float | None = None
    page: int = 1000
    access_key: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.latency_s <= threading.TIMEOUT_MAX or self.page < 1:
            raise ValueError(f"expected latency_s >= 0 and page >= 1: {self}")
        Link(self.bytes_per_second)


class Store:
    """What a test asks of either kind of server."""

    address: str
    port: int

    @property
    def url(self) -> str:
        """Where it listens: ``http://127.0.0.1:port``."""
        return f"http://{self.address}:{self.port}"

    def http(self, name: str) -> str:
        """URL of ``bucket/key``."""
        return f"{self.url}/{quote(name)}"

    def s3(self) -> dict[str, Any]:
        """Keyword arguments of `obstore.store.S3Store`."""
        return {
            "endpoint": self.url,
            "access_key_id": "key",
            "secret_access_key": "secret",
            "region": "us-east-1",
            "virtual_hosted_style_request": False,
            "client_options": {"allow_http": True},
        }

    def put(self, name: str, data: bytes) -> str:
        """Store ``bucket/key``, make the bucket, and return the ETag. Neither counted nor delayed."""
        raise NotImplementedError

    def fail(self, kind: str, **how: Any) -> Fault:
        """Add a fault (see `Fault`). With a process, the returned fault does not count (see `faults`)."""
        raise NotImplementedError

    def faults(self) -> list[Fault]:
        """Return all faults, with their counts."""
        raise NotImplementedError

    def heal(self) -> None:
        """Remove all faults."""
        raise NotImplementedError

    def set(self, **settings: Any) -> None:
        """Change some `Settings`."""
        raise NotImplementedError

    def counters(self) -> Counters:
        """A copy of the counters."""
        raise NotImplementedError

    def log(self) -> list[Entry]:
        """A copy of the log: the last requests, up to 262,144 of them."""
        raise NotImplementedError

    def reset(self) -> None:
        """Reset the counters and the log."""
        raise NotImplementedError

    def unfinished(self) -> list[str]:
        """``bucket/key`` of each multipart upload that is neither completed nor aborted."""
        raise NotImplementedError

    def close(self) -> None:
        """End the server, its connections and its threads."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ObjectStore(Store):
    """A server in threads of this process.

    Args:
        root: folder of buckets. None to keep objects in memory.
        address: address on which it listens.
        port: 0 for any free one.
        most_connections: at once. Others are closed as they come.
        most_bytes: of the body of a request, and of all unfinished uploads.
        settings: see `Settings`.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        address: str = "127.0.0.1",
        port: int = 0,
        most_connections: int = 256,
        most_bytes: int = 1 << 30,
        **settings: Any,
    ) -> None:
        self._settings = Settings(**settings)
        self.link, self.uplink = Link(self._settings.bytes_per_second), Link(self._settings.bytes_per_second)
        self.contents: contents.Contents = contents.InMemory() if root is None else contents.InFolder(root)
        self._uploads = contents.Uploads(most_bytes)
        self._faults = Faults()
        self._most_connections, self._most_bytes = most_connections, most_bytes
        self._lock = threading.Lock()
        self._writing = threading.Lock()  # conditions of a PUT hold until it is done
        self._counters, self._log, self._running = Counters(), collections.deque[Entry](maxlen=LOG), 0
        self._connections: set[socket.socket] = set()
        self._serving: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # including connections that are ending
        self._closing = threading.Event()
        self._listening = socket.create_server((address, port), backlog=256)
        self.address, self.port = self._listening.getsockname()[:2]
        self._accepting = threading.Thread(target=self._accept, name="object store", daemon=True)
        self._accepting.start()

    # ---- for tests

    def put(self, name: str, data: bytes) -> str:
        bucket, _, key = name.partition("/")
        self.contents.create(bucket)
        return self.contents.put(bucket, key, [data]).etag

    def fail(self, kind: str, **how: Any) -> Fault:
        return self._faults.add(Fault(kind, **how))

    def faults(self) -> list[Fault]:
        return self._faults.all()

    def heal(self) -> None:
        self._faults.clear()

    def set(self, **settings: Any) -> None:
        with self._lock:
            self._settings = replace(self._settings, **settings)
            if "bytes_per_second" in settings:
                self.link, self.uplink = (Link(settings["bytes_per_second"]) for _ in range(2))

    def counters(self) -> Counters:
        with self._lock:
            made = {
                name: value.copy() if isinstance(value, Counter) else value
                for name, value in vars(self._counters).items()
            }
            return Counters(**made)

    def log(self) -> list[Entry]:
        with self._lock:
            return [replace(entry) for entry in self._log]

    def reset(self) -> None:
        with self._lock:
            self._counters = Counters(most_at_once=self._running)
            self._log.clear()

    def unfinished(self) -> list[str]:
        return self._uploads.unfinished()

    def close(self) -> None:
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._accepting.join(ENDS_S)
        self._listening.close()
        with self._lock:
            for sock in self._connections:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
            serving = list(self._serving)
        for thread in serving:
            thread.join(ENDS_S)
        left = [thread for thread in (self._accepting, *serving) if thread.is_alive()]
        assert not left, f"threads of the object store do not end: {left}"

    # ---- connections

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                sock, _ = self._listening.accept()
            except OSError:  # closed, or out of descriptors
                if self._closing.wait(0.01):
                    return
                continue
            with self._lock:
                self._counters.connections += 1
                if len(self._connections) >= self._most_connections:
                    self._counters.refused += 1
                    sock.close()
                    continue
                thread = threading.Thread(target=self._serve, args=(sock,), name="object store", daemon=True)
                self._connections.add(sock)
                self._serving.add(thread)
                thread.start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", IDLE_S, 0))
            reader = Reader(sock, self._most_bytes, self._receives())
            sender = Sender(sock, lambda: self.link, self._wait)
            while not self._closing.is_set():
                try:
                    request = reader.read_request()
                except Bad as bad:
                    sender.send(_error(bad.status), None, lambda: None, stays=False)
                else:
                    self._answer(request, sender)
        except (Over, OSError):  # the other side is gone, silent, or gets no more
            pass
        finally:
            with self._lock:
                self._connections.remove(sock)
            sock.close()

    def _wait(self, seconds: float) -> None:
        if self._closing.wait(seconds):
            raise Over

    def _receives(self) -> Any:
        since: list[float | None] = [None]

        def crossed(size: int) -> None:
            if not size:  # a new body
                since[0] = None
                return
            now = time.monotonic()
            since[0] = self.uplink.crosses(size, now, since[0])
            if since[0] > now:
                self._wait(since[0] - now)

        return crossed

    # ---- requests

    def _answer(self, request: Request, sender: Sender) -> None:
        bucket, _, key = request.path.removeprefix("/").partition("/")
        if bucket == "-":
            sender.send(self._control(request, key), None, lambda: None, request.stays)
            return
        kind = _kind(request, bucket, key)
        name = f"{bucket}/{request.query.get('prefix', '') if kind == 'LIST' else key}"
        entry = Entry(kind, name, request.headers.get("range"))
        with self._lock:
            counters = self._counters
            counters.requests[kind] += 1
            counters.methods[request.method] += 1
            counters.received_bytes[kind] += len(request.body)
            self._running += 1
            counters.most_at_once = max(counters.most_at_once, self._running)
            self._log.append(entry)
        is_over = False

        def over() -> None:
            nonlocal is_over
            if is_over:
                return
            is_over = True
            with self._lock:
                self._running -= 1
                entry.sent_bytes = sender.sent
                counters.sent_bytes[kind] += sender.sent
                if entry.status is not None:
                    counters.statuses[entry.status] += 1

        sender.sent = 0
        response = None
        try:
            fault = self._fault(kind, name, entry)
            if self._settings.latency_s:
                self._wait(self._settings.latency_s)
            what = fault.kind if fault else None
            if what == "slow":
                assert fault is not None
                self._wait(fault.seconds)
            if what == "drop":
                over()
                sender.end(reset=True)
            if fault is not None and what == "changed":
                self._change(bucket, key, fault)
            if fault is not None and what == "status":
                response = _error(fault.status)
                if fault.retry_after is not None:
                    response.headers["Retry-After"] = str(fault.retry_after)
            else:
                if what == "whole":
                    request.headers.pop("range", None)
                response = self._done(kind, request, bucket, key)
            if what == "lost":
                over()
                sender.end(reset=True)
            if request.method == "HEAD":
                given = response.length
                response.length = response.part.end - response.part.begin if given is None else given
                response.close()
                response.body, response.begin, response.end = b"", 0, 0
            entry.status = response.status
            sender.send(response, fault, over, request.stays)
        finally:
            over()
            if response is not None:
                response.close()

    def _fault(self, kind: str, name: str, entry: Entry) -> Fault | None:
        bucket, _, key = name.partition("/")
        span = (0, 0)
        if kind in ("GET", "HEAD"):
            with contextlib.suppress(contents.Missing, contents.Refused):
                size = self.contents.facts(bucket, key).size
                span = _span(entry.range, size) or (0, size)
                entry.span = span if entry.range else None
        fault = self._faults.of(kind, name, span)
        entry.fault = fault.kind if fault else None
        return fault

    def _change(self, bucket: str, key: str, fault: Fault) -> None:
        if fault.replacement is None:
            self.contents.change(bucket, key)
        else:
            self.contents.put(bucket, key, [fault.replacement])

    def _done(self, kind: str, request: Request, bucket: str, key: str) -> Response:
        access_key = self._settings.access_key
        if access_key is not None and f"Credential={access_key}/" not in request.headers.get("authorization", ""):
            return _error(403)
        try:
            return getattr(self, f"_do_{kind.lower()}")(request, bucket, key)
        except contents.Missing as missing:
            return _error(404, str(missing))
        except contents.Refused as refused:
            return _error(400, message=str(refused))
        except (ElementTree.ParseError, ValueError) as error:
            return _error(400, message=str(error))

    def _do_get(self, request: Request, bucket: str, key: str) -> Response:
        opened = self.contents.open(bucket, key)
        facts = opened.facts
        if refused := _unmet(request, facts):
            opened.close()
            return refused
        headers = _object_headers(facts)
        given = request.headers.get("range")
        if given and request.headers.get("if-range", facts.etag) == facts.etag:
            span = _span(given, facts.size)
            if span == (0, 0):
                opened.close()
                answer = _error(416)
                answer.headers["Content-Range"] = f"bytes */{facts.size}"
                return answer
            if span:
                headers["Content-Range"] = f"bytes {span[0]}-{span[1] - 1}/{facts.size}"
                return Response(206, headers, opened, *span)
        return Response(200, headers, opened)

    def _do_head(self, request: Request, bucket: str, key: str) -> Response:
        return self._do_get(request, bucket, key)

    def _do_put(self, request: Request, bucket: str, key: str) -> Response:
        return self._stored(request, bucket, key, [request.body])

    def _do_copy(self, request: Request, bucket: str, key: str) -> Response:
        source, _, name = unquote(request.headers["x-amz-copy-source"]).removeprefix("/").partition("/")
        opened = self.contents.open(source, name)
        try:
            data = opened.data if opened.data is not None else os.pread(opened.fd, opened.facts.size, 0)
        finally:
            opened.close()
        answer = self._stored(request, bucket, key, [data])
        if answer.status != 200:
            return answer
        etag = escape(answer.headers["ETag"])
        return _xml(f"<CopyObjectResult {XMLNS}><ETag>{etag}</ETag>{_modified(time.time())}</CopyObjectResult>")

    def _stored(
        self, request: Request, bucket: str, key: str, pieces: list[bytes], etag: str | None = None
    ) -> Response:
        with self._writing:
            facts = None
            with contextlib.suppress(contents.Missing):
                facts = self.contents.facts(bucket, key)
            if refused := _unmet(request, facts, writes=True):
                return refused
            return Response(200, {"ETag": self.contents.put(bucket, key, pieces, etag).etag})

    def _do_delete(self, request: Request, bucket: str, key: str) -> Response:
        self.contents.delete(bucket, key)
        return Response(204)

    def _do_delete_many(self, request: Request, bucket: str, key: str) -> Response:
        keys = [found.text or "" for found in ElementTree.fromstring(request.body).iterfind("{*}Object/{*}Key")]
        for each in keys:
            self.contents.delete(bucket, each)
        deleted = "".join(f"<Deleted><Key>{escape(each)}</Key></Deleted>" for each in keys)
        return _xml(f"<DeleteResult {XMLNS}>{deleted}</DeleteResult>")

    def _do_upload(self, request: Request, bucket: str, key: str) -> Response:
        self.contents.names(bucket)  # is there such a bucket?
        upload = self._uploads.begin(bucket, key)
        return _xml(
            f"<InitiateMultipartUploadResult {XMLNS}><Bucket>{escape(bucket)}</Bucket><Key>{escape(key)}</Key>"
            f"<UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
        )

    def _do_part(self, request: Request, bucket: str, key: str) -> Response:
        number = int(request.query["partNumber"])
        return Response(200, {"ETag": self._uploads.add(request.query["uploadId"], bucket, key, number, request.body)})

    def _do_complete(self, request: Request, bucket: str, key: str) -> Response:
        chosen = [
            (int(part.findtext("{*}PartNumber", "")), part.findtext("{*}ETag", ""))
            for part in ElementTree.fromstring(request.body).iterfind("{*}Part")
        ]
        upload = request.query["uploadId"]
        pieces, etag = self._uploads.complete(upload, bucket, key, chosen)
        answer = self._stored(request, bucket, key, pieces, etag)
        if answer.status != 200:
            return answer
        self._uploads.forget(upload, bucket, key)
        return _xml(
            f"<CompleteMultipartUploadResult {XMLNS}><Bucket>{escape(bucket)}</Bucket><Key>{escape(key)}</Key>"
            f"<ETag>{escape(answer.headers['ETag'])}</ETag></CompleteMultipartUploadResult>"
        )

    def _do_abort(self, request: Request, bucket: str, key: str) -> Response:
        self._uploads.forget(request.query["uploadId"], bucket, key)
        return Response(204)

    def _do_list(self, request: Request, bucket: str, key: str) -> Response:
        query = request.query
        if query.get("list-type") != "2":
            return _error(501, message="only ListObjectsV2")
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("start-after", "").encode()
        if token := query.get("continuation-token"):
            try:
                after = base64.urlsafe_b64decode(token)
            except binascii.Error:
                return _error(400, message="not a continuation token of ours")
        most = min(self._settings.page, int(query.get("max-keys", self._settings.page)))
        found = contents.page(self.contents.names(bucket), prefix, delimiter, after, most)
        told = quote if query.get("encoding-type") == "url" else str
        rows = []
        for name in found.keys:
            with contextlib.suppress(contents.Missing):  # it is gone by now
                facts = self.contents.facts(bucket, name)
                rows.append(
                    f"<Contents><Key>{escape(told(name))}</Key>{_modified(facts.modified)}<ETag>{escape(facts.etag)}"
                    f"</ETag><Size>{facts.size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
                )
        rows += [f"<CommonPrefixes><Prefix>{escape(told(each))}</Prefix></CommonPrefixes>" for each in found.prefixes]
        if found.rest is not None:
            rows.append(
                f"<NextContinuationToken>{base64.urlsafe_b64encode(found.rest).decode()}</NextContinuationToken>"
            )
        return _xml(
            f"<ListBucketResult {XMLNS}><Name>{escape(bucket)}</Name><Prefix>{escape(told(prefix))}</Prefix>"
            f"<Delimiter>{escape(told(delimiter))}</Delimiter><MaxKeys>{most}</MaxKeys>"
            f"<KeyCount>{len(found.keys) + len(found.prefixes)}</KeyCount>"
            f"<IsTruncated>{str(found.rest is not None).lower()}</IsTruncated>{''.join(rows)}</ListBucketResult>"
        )

    def _do_bucket(self, request: Request, bucket: str, key: str) -> Response:
        if not bucket:
            names = "".join(f"<Bucket><Name>{escape(each)}</Name></Bucket>" for each in self.contents.buckets())
            return _xml(f"<ListAllMyBucketsResult {XMLNS}><Buckets>{names}</Buckets></ListAllMyBucketsResult>")
        if request.method == "PUT":
            self.contents.create(bucket)
        self.contents.names(bucket)
        if "location" in request.query:
            return _xml(f"<LocationConstraint {XMLNS}/>")
        return Response(200)

    def _do_other(self, request: Request, bucket: str, key: str) -> Response:
        return _error(501)

    # ---- control of a process

    def _control(self, request: Request, what: str) -> Response:
        try:
            given = json.loads(request.body or b"null") if what != "put" else None
            match request.method, what:
                case "GET", "faults":
                    return _json([fault.described() for fault in self.faults()])
                case "POST", "faults":
                    for each in given if isinstance(given, list) else [given]:
                        self._faults.add(Fault.of(each))
                case "DELETE", "faults":
                    self.heal()
                case "GET", "counters":
                    return _json(vars(self.counters()))
                case "DELETE", "counters":
                    self.reset()
                case "GET", "log":
                    return _json([asdict(entry) for entry in self.log()])
                case "GET", "unfinished":
                    return _json(self.unfinished())
                case "POST", "settings":
                    self.set(**given)
                case "PUT", "put":
                    return _json(self.put(request.query["name"], request.body))
                case _:
                    return _error(404)
        except (ValueError, TypeError, KeyError, contents.Refused) as error:
            return Response(400, {"Content-Type": "text/plain"}, str(error).encode())
        return Response(204)


class ObjectStoreProcess(Store):
    """A server in a separate process, which ends with this one.

    Args:
        root: folder of buckets. None to keep objects in memory.
        address: address on which it listens.
        port: 0 for any free one.
        within: words before the command, such as ``("ip", "netns", "exec", "a")``.
        settings: see `Settings`.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        address: str = "127.0.0.1",
        port: int = 0,
        within: Iterable[str] = (),
        **settings: Any,
    ) -> None:
        given = Settings(**settings)
        command = [*within, sys.executable, "-m", "tests.servers.object_store", "--address", address]
        command += ["--port", str(port), "--latency", str(given.latency_s), "--page", str(given.page)]
        if root is not None:
            command += ["--root", os.path.abspath(root)]
        if given.bytes_per_second is not None:
            command += ["--bandwidth", str(given.bytes_per_second)]
        self._process = subprocess.Popen(
            command, cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.close()
            raise RuntimeError(f"the object store did not start: it ended with {self._process.returncode}")
        told = json.loads(line)
        self.address, self.port = told["address"], told["port"]

    def put(self, name: str, data: bytes) -> str:
        return self._ask("PUT", f"put?name={quote(name, safe='')}", data)

    def fail(self, kind: str, **how: Any) -> Fault:
        fault = Fault(kind, **how)
        self._ask("POST", "faults", json.dumps(fault.described()).encode())
        return fault

    def faults(self) -> list[Fault]:
        found = []
        for described in self._ask("GET", "faults"):
            found.append(Fault.of(described))
            found[-1].seen, found[-1].hits = described["seen"], described["hits"]
        return found

    def heal(self) -> None:
        self._ask("DELETE", "faults")

    def set(self, **settings: Any) -> None:
        self._ask("POST", "settings", json.dumps(settings).encode())

    def counters(self) -> Counters:
        told = self._ask("GET", "counters")
        told["statuses"] = {int(status): count for status, count in told["statuses"].items()}
        return Counters(**{name: Counter(value) if isinstance(value, dict) else value for name, value in told.items()})

    def log(self) -> list[Entry]:
        told = self._ask("GET", "log")
        return [Entry(**each | {"span": each["span"] and tuple(each["span"])}) for each in told]

    def reset(self) -> None:
        self._ask("DELETE", "counters")

    def unfinished(self) -> list[str]:
        return self._ask("GET", "unfinished")

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _ask(self, method: str, what: str, body: bytes | None = None) -> Any:
        connection = http.client.HTTPConnection(self.address, self.port, timeout=60)
        try:
            connection.request(method, f"/-/{what}", body, {"Connection": "close"})
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if answer.status >= 400:
            raise ValueError(data.decode())
        return json.loads(data) if data else None


def main(arguments: list[str] | None = None) -> None:
    """Serve until standard input or the parent ends. Print the address as one line of JSON."""
    parser = argparse.ArgumentParser("python -m tests.servers.object_store", description=main.__doc__)
    parser.add_argument("--root", help="folder of buckets; objects are kept in memory without it")
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument("--bandwidth", type=float, help="bytes per second of all connections together")
    parser.add_argument("--page", type=int, default=1000, help="names in a page of a listing")
    given = parser.parse_args(arguments)
    parent = os.getppid()
    with ObjectStore(
        given.root,
        address=given.address,
        port=given.port,
        latency_s=given.latency,
        bytes_per_second=given.bandwidth,
        page=given.page,
    ) as store:
        print(json.dumps({"address": store.address, "port": store.port, "url": store.url}), flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            while os.getppid() == parent:
                if select.select([0], [], [], 0.5)[0] and not os.read(0, 1 << 12):
                    return


def _kind(request: Request, bucket: str, key: str) -> str:
    method, query = request.method, request.query
    if not key:
        if method == "POST" and "delete" in query:
            return "DELETE_MANY"
        if method == "GET" and bucket and "location" not in query:
            return "LIST"
        return "BUCKET" if method in ("GET", "HEAD", "PUT") else "OTHER"
    if method == "PUT":
        return "PART" if "uploadId" in query else "COPY" if "x-amz-copy-source" in request.headers else "PUT"
    if method == "POST":
        return "UPLOAD" if "uploads" in query else "COMPLETE" if "uploadId" in query else "OTHER"
    if method == "DELETE":
        return "ABORT" if "uploadId" in query else "DELETE"
    return method if method in ("GET", "HEAD") else "OTHER"


def _span(given: str | None, size: int) -> tuple[int, int] | None:
    """Bytes that a range names: None for all if there is none or it is not understood, (0, 0) if it has none."""
    if not given or not given.startswith("bytes=") or given.count("-") != 1:
        return None
    first, last = (each.strip() for each in given.removeprefix("bytes=").split("-"))
    if not (first or last) or not (first + last).isdecimal():
        return None
    if not first:
        begin, end = max(0, size - int(last)), size
    else:
        begin, end = int(first), min(int(last) + 1, size) if last else size
        if last and int(last) < begin:
            return None
    return (begin, end) if begin < end else (0, 0)


def _unmet(request: Request, facts: contents.Facts | None, writes: bool = False) -> Response | None:
    """Return the answer to a condition that does not hold. `facts` are None if there is no object."""
    wanted, unwanted = request.headers.get("if-match"), request.headers.get("if-none-match")
    if wanted is not None and (facts is None or not _matches(wanted, facts.etag)):
        return _error(412)
    if unwanted is not None and facts is not None and _matches(unwanted, facts.etag):
        return _error(412) if writes else Response(304, {"ETag": facts.etag})
    return None


def _matches(condition: str, etag: str) -> bool:
    given = [each.strip().removeprefix("W/").strip('"') for each in condition.split(",")]
    return "*" in given or etag.strip('"') in given


def _object_headers(facts: contents.Facts) -> dict[str, str]:
    return {
        "Content-Type": "application/octet-stream",
        "ETag": facts.etag,
        "Last-Modified": formatdate(facts.modified, usegmt=True),
        "Accept-Ranges": "bytes",
    }


def _modified(seconds: float) -> str:
    return f"<LastModified>{time.strftime('%Y-%m-%dT%H:%M:%S.000Z', time.gmtime(seconds))}</LastModified>"


def _xml(text: str, status: int = 200) -> Response:
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode("utf-8", "replace")
    return Response(status, {"Content-Type": "application/xml"}, body)


def _json(value: Any) -> Response:
    return Response(200, {"Content-Type": "application/json"}, json.dumps(value).encode())


def _error(status: int, code: str | None = None, message: str = "") -> Response:
    code = code or CODES.get(status, "Error")
    return _xml(f"<Error><Code>{code}</Code><Message>{escape(message or code)}</Message></Error>", status)


if __name__ == "__main__":
    main()
