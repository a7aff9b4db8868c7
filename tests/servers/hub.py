"""A hub for tests: data sets with commits and branches, behind the requests that huggingface_hub makes."""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import threading
import urllib.parse
from typing import Any, Self


class Hub:
    """Data sets in threads of this process.

    Attributes:
        commits: files of each commit, bytes by path.
        branches: the commit of each branch, by its name.
        token: the token that requests need. None: they need none.
        log: kind and path of each request.
    """

    def __init__(self, repository: str) -> None:
        self.commits: dict[str, dict[str, bytes]] = {}
        self.branches: dict[str, str] = {}
        self.token: str | None = None
        self.log: list[tuple[str, str]] = []
        hub, about = self, f"/api/datasets/{repository}"

        class Handler(http.server.BaseHTTPRequestHandler):
            disable_nagle_algorithm = True  # an answer is sent in two pieces
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

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
                        oid = hashlib.sha1(data).hexdigest()
                        entries[name] = {"type": "file", "path": name, "oid": oid, "size": len(data)}
                if not entries:
                    return self.reply(404, b"{}", {"X-Error-Code": "EntryNotFound"})
                return self.reply(200, json.dumps(list(entries.values())).encode(), {})

            def send_file(self, revision: str, name: str) -> None:
                hub.log.append(("read", f"{revision}/{name}"))
                data = hub.commits[hub.branches.get(revision, revision)][name]
                begin, end = map(int, self.headers["range"].removeprefix("bytes=").split("-"))
                self.reply(206, data[begin : end + 1], {"Content-Range": f"bytes {begin}-{end}/{len(data)}"})

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
