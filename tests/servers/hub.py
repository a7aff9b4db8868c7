"""A hub for tests: data sets with commits and branches, behind the requests that huggingface_hub makes.

`Hub` runs in threads of this process. ``python -m tests.servers.hub REPOSITORY FOLDER ELSEWHERE`` serves a folder as
the first commit of a data set, prints its address, and ends with its standard input.
"""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import re
import sys
import threading
import urllib.parse
from pathlib import Path
from typing import Any, Self

COMMIT = "1" * 40


class Hub:
    """Data sets in threads of this process.

    Attributes:
        commits: files of each commit, bytes by path.
        branches: the commit of each branch, by its name.
        token: the token that requests need. None: they need none.
        elsewhere: address below which another server has the files of any commit. Requests for their bytes are
            redirected, as the real hub does. None: they are sent from here.
        log: kind and path of each request.
    """

    def __init__(self, repository: str) -> None:
        self.commits: dict[str, dict[str, bytes]] = {}
        self.branches: dict[str, str] = {}
        self.token: str | None = None
        self.elsewhere: str | None = None
        self.log: list[tuple[str, str]] = []
        hub, about = self, f"/api/datasets/{repository}"

        class Handler(http.server.BaseHTTPRequestHandler):
            disable_nagle_algorithm = True  # an answer is sent in two pieces
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if match := re.fullmatch(rf"{about}/paths-info/([^/]+)", urllib.parse.unquote(self.path)):
                    self.describe(match[1], json.loads(body)["paths"])
                else:
                    self.reply(404, b"{}", {"X-Error-Code": "RepoNotFound"})

            def do_GET(self) -> None:
                path, _, query = self.path.partition("?")
                path = urllib.parse.unquote(path)
                if hub.token is not None and self.headers.get("authorization") != f"Bearer {hub.token}":
                    self.reply(401, b"{}", {"X-Error-Code": "RepoNotFound"})
                elif path == about or path.startswith(f"{about}/revision/"):
                    self.show_commit(path.removeprefix(about).removeprefix("/revision/") or "main")
                elif match := re.fullmatch(rf"{about}/tree/([^/]+)/?(.*)", path):
                    self.list_folder(*match.groups(), deep="recursive=true" in query.lower())
                elif match := re.fullmatch(rf"/datasets/{repository}/resolve/([^/]+)/(.+)", path):
                    self.send_file(*match.groups())
                else:
                    self.reply(404, b"{}", {"X-Error-Code": "RepoNotFound"})

            def reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def show_commit(self, revision: str) -> None:
                hub.log.append(("commit", revision))
                commit = hub.branches.get(revision, revision)
                if commit not in hub.commits:
                    return self.reply(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
                return self.reply(200, json.dumps({"id": repository, "sha": commit}).encode(), {})

            def list_folder(self, revision: str, folder: str, *, deep: bool) -> None:
                hub.log.append(("list", f"{revision}/{folder}"))
                prefix = f"{folder}/" if folder else ""
                entries = {}
                for name, data in hub.commits[hub.branches.get(revision, revision)].items():
                    if not name.startswith(prefix):
                        continue
                    parts = name.removeprefix(prefix).split("/")
                    for depth in range(1, len(parts)) if deep else range(1, min(2, len(parts))):
                        inside = prefix + "/".join(parts[:depth])
                        entries[inside] = {"type": "directory", "path": inside, "oid": "0", "size": 0}
                    if deep or len(parts) == 1:
                        entries[name] = _entry(name, data)
                if not entries:
                    return self.reply(404, b"{}", {"X-Error-Code": "EntryNotFound"})
                return self.reply(200, json.dumps(list(entries.values())).encode(), {})

            def describe(self, revision: str, names: list[str]) -> None:
                hub.log.append(("describe", f"{revision}/{','.join(names)}"))
                files = hub.commits[hub.branches.get(revision, revision)]
                entries = [_entry(name, files[name]) for name in names if name in files]
                self.reply(200, json.dumps(entries).encode(), {})

            def send_file(self, revision: str, name: str) -> None:
                hub.log.append(("read", f"{revision}/{name}"))
                commit = hub.branches.get(revision, revision)
                data = hub.commits[commit].get(name)
                if data is None:
                    return self.reply(404, b"", {"X-Error-Code": "EntryNotFound"})
                headers = {"X-Repo-Commit": commit, "ETag": f'"{_oid(data)}"'}
                if hub.elsewhere is not None:
                    headers |= {"Location": f"{hub.elsewhere}/{name}", "X-Linked-Size": str(len(data))}
                    return self.reply(302, b"", headers)
                if "range" not in self.headers:
                    return self.reply(200, data, headers)
                first, _, last = self.headers["range"].removeprefix("bytes=").partition("-")
                begin, end = int(first), min(int(last or len(data)), len(data) - 1)
                headers["Content-Range"] = f"bytes {begin}-{end}/{len(data)}"
                return self.reply(206, data[begin : end + 1], headers)

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _entry(name: str, data: bytes) -> dict[str, Any]:
    return {"type": "file", "path": name, "oid": _oid(data), "size": len(data)}


@functools.cache
def _oid(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


def main() -> None:
    """Serve a folder."""
    repository, folder, elsewhere = sys.argv[1:]
    with Hub(repository) as hub:
        paths = (path for path in sorted(Path(folder).rglob("*")) if path.is_file())
        hub.commits[COMMIT] = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
        hub.branches["main"], hub.elsewhere = COMMIT, elsewhere
        print(hub.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
