"""Which Ray a program's workers run on, without Ray: the one that it has initialised, the user's, or a private one."""

from __future__ import annotations

import importlib.machinery
import os
import socket
import sys
import types

import pytest

from feedline.interop import private_ray, ray_session
from tests import inside


class Ray(types.ModuleType):
    """A substitute for the module ``ray``.

    Args:
        early: whether it was imported with settings under which it cannot join a Ray on loopback.

    Attributes:
        address: of the Ray that this process is connected to.
        calls: arguments of `init`.
    """

    def __init__(self, early):
        super().__init__("ray")
        self.__spec__ = importlib.machinery.ModuleSpec("ray", None)
        self._private = types.SimpleNamespace(ray_constants=types.SimpleNamespace(ENABLE_RAY_CLUSTER=early))
        self.address, self.calls, self.settings = None, [], []

    def is_initialized(self):
        return self.address is not None

    def init(self, address, **options):
        self.calls.append((address, options))
        self.settings.append(os.environ.get("RAY_AUTH_MODE"))
        self.address = address

    def shutdown(self):
        self.address = None

    def get_runtime_context(self):
        return types.SimpleNamespace(gcs_address=self.address)


class Private:
    """A substitute for a private Ray."""

    started = 0

    def __init__(self, cpus):
        Private.started += 1
        self.address, self.alive = f"127.0.0.1:{Private.started}", True
        self.settings = {"RAY_AUTH_MODE": "token"}
        private_ray.addresses.add(self.address)

    def close(self):
        self.alive = False
        private_ray.addresses.discard(self.address)


@pytest.fixture(params=[False, True], ids=["late", "early"])
def ray(request, monkeypatch, tmp_path):
    """Neither this process nor this machine has a Ray. The module is imported late, or too early."""
    made = Ray(request.param)
    monkeypatch.setitem(sys.modules, "ray", made)
    for name, value in (("_private", None), ("_private_pid", 0), ("_joined", False), ("PrivateRay", Private)):
        monkeypatch.setattr(ray_session, name, value)
    monkeypatch.setattr(private_ray, "addresses", set())
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    Private.started = 0
    return made


def is_early(ray):
    return ray._private.ray_constants.ENABLE_RAY_CLUSTER


def test_a_ray_that_the_program_has_initialised_is_used_and_not_left(ray):
    ray.address = "10.0.0.1:6379"
    assert not ray_session.join().private
    ray_session.leave()
    assert ray.address == "10.0.0.1:6379"
    assert ray.calls == []
    assert Private.started == 0


def test_the_cluster_at_ray_address_is_joined_and_left(ray, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert not ray_session.join().private
    assert not ray_session.join().private  # once
    assert [address for address, _ in ray.calls] == ["10.0.0.1:6379"]
    ray_session.leave()
    assert ray.address is None
    assert Private.started == 0


def test_else_a_private_one_is_started_and_after_leaving_it_another(ray):
    for number in (1, 2):
        assert ray_session.join().private is not is_early(ray)
        if is_early(ray):  # it cannot join a private one any more, and starts one itself
            assert [address for address, _ in ray.calls] == ["local"] * number
            assert Private.started == 0
        else:
            own = inside.private_ray()
            assert private_ray.addresses == {own.address} == {ray.address}
            assert ray.settings[-1] == "token"
            assert "RAY_AUTH_MODE" not in os.environ
        assert ray_session.join().private is not is_early(ray)
        assert len(ray.calls) == number
        ray_session.leave()
        assert ray.address is None
        assert is_early(ray) or not own.alive


def test_a_private_ray_is_joined_again_after_a_shutdown_and_replaced_when_it_is_dead(ray):
    if is_early(ray):
        return
    ray_session.join()
    ray.shutdown()
    ray_session.join()
    assert Private.started == 1
    inside.private_ray().alive = False
    ray.shutdown()
    ray_session.join()
    assert Private.started == 2
    assert ray.address == inside.private_ray().address


def test_where_the_users_cluster_is(monkeypatch, tmp_path):
    """RAY_ADDRESS comes first, then the address that `ray start` has written, if that cluster still runs."""
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert ray_session.running() == "10.0.0.1:6379"
    monkeypatch.setenv("RAY_ADDRESS", "")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert ray_session.running() is None
    (tmp_path / "ray").mkdir()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        (tmp_path / "ray" / "ray_current_cluster").write_text(address)
        assert ray_session.running() == address
    assert ray_session.running() is None
    (tmp_path / "ray" / "ray_current_cluster").write_text("nonsense")
    assert ray_session.running() is None
