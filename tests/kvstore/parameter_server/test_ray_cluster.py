"""How a process connects to Ray, without Ray."""

from __future__ import annotations

import os
import socket
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from feedline.errors import StoreError  # noqa: E402
from feedline.kvstore.parameter_server import ray_cluster  # noqa: E402


def test_a_connection_that_fails_leaves_the_environment_as_it_was(monkeypatch):
    """At once, and not when the error is collected, as the next connection reads these variables."""
    monkeypatch.setattr(ray_cluster, "check_installed", lambda extra: None)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    before = dict(os.environ)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and no process listens there
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(StoreError, match=f"expected Ray at {address}") as raised:
            ray_cluster.RayConnection(address, {"RAY_AUTH_TOKEN_PATH": "token"})
    assert dict(os.environ) == before, raised
