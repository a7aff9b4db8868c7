"""Which Ray a program's workers run on: the one that it has initialised, the user's cluster, or a private one."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import textwrap

import pytest

import feedline as fl
from feedline.errors import WorkerError
from feedline.feed.workers import Pool
from feedline.interop import private_ray, ray_session
from tests.docs.pages import IMPORTED_FROM, ROOT
from tests.feed.workers.tasks import Task, alive, eventually
from tests.laws.items import Augmented, content

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed (pip install 'feedline[ray]')", allow_module_level=True)

pytestmark = [
    pytest.mark.frameworks("ray"),
    pytest.mark.slow,
    # Ray's own.
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"),
]

PROGRAM = """
    import json, sys
    import feedline as fl
    from feedline.interop import private_ray, ray_session
    from tests.feed.workers.tasks import eventually
    from tests.laws.items import Augmented, content

    def read():
        with fl.DataLoader(Augmented(20), batch_size=4, seed=1, num_workers=1, workers="ray") as loader:
            return [[part.hex() for part in item] for item in content(loader)], loader.pids
"""


def said_by(program, **environment):
    """Run a program to its end; returns what it says in JSON."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM) + textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([IMPORTED_FROM, str(ROOT)]), **environment},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def expected():
    loader = fl.DataLoader(Augmented(20), batch_size=4, seed=1)
    return [[part.hex() for part in item] for item in content(loader)]


def test_the_cluster_at_ray_address_is_joined_and_left_as_it_was():
    with Pool(Task(), 1, kind="ray") as pool:  # of a private Ray, which stands in for the user's cluster
        pool.result(pool.submit(("echo", 1)))
        cluster = ray_session._private
        items, actors, started = said_by(
            "print(json.dumps([*read(), len(private_ray.addresses)]))",
            **cluster.settings,
            RAY_ADDRESS=cluster.address,
        )
        assert items == expected()
        assert started == 0
        assert eventually(lambda: not any(map(alive, actors)))
        assert pool.result(pool.submit(("echo", 2))) == 2
        assert cluster.alive


def test_a_ray_that_the_program_has_initialised_is_used():
    """And one that was only imported, which cannot join a private one any more, is started by it."""
    program = """
        import ray

        first = read()[0]  # it was imported, not initialised
        assert ray.is_initialized()
        ray_session.leave()
        ray.init(address="local", num_cpus=1, include_dashboard=False)
        mine = ray.get_runtime_context().gcs_address
        second = read()[0]
        assert ray.get_runtime_context().gcs_address == mine
        ray_session.leave()
        assert ray.is_initialized()  # the program's, not ours to leave
        print(json.dumps([first, second, len(private_ray.addresses)]))
    """
    first, second, started = said_by(program, RAY_ADDRESS="local")
    assert first == second == expected()
    assert started == 0


def test_after_leaving_a_private_ray_another_is_started():
    ray_session.join()
    before = ray_session._private
    ray_session.leave()
    assert not before.alive
    assert not before.folder.exists()
    with Pool(Task(), 1, kind="ray") as pool:
        assert pool.result(pool.submit(("echo", 1))) == 1
    assert private_ray.addresses == {ray_session._private.address}


def test_a_shutdown_of_ray_is_an_error_and_not_a_wait():
    pool = Pool(Task(), 1, kind="ray")
    pool.result(pool.submit(("echo", 1)))
    sys.modules["ray"].shutdown()
    with pytest.raises(WorkerError, match=r"ray\.shutdown"):
        pool.result(pool.submit(("echo", 2)))
    pool.close()
    with Pool(Task(), 1, kind="ray") as again:
        assert again.result(again.submit(("echo", 3))) == 3


def test_where_the_users_cluster_is(monkeypatch, tmp_path):
    """RAY_ADDRESS comes first; then what `ray start` has written, if that cluster still runs."""
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
