"""Scripts under MXNet's launch.py: servers and the scheduler end, workers meet at the root."""

from __future__ import annotations

import os
import subprocess

import pytest

import feedline as fl
from feedline.mxnet._launch import set_torch_variables
from tests.docs.pages import IMPORTED_FROM
from tests.ranks import free_port
from tests.warm import Python

WORKER = {
    "DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "3", "DMLC_NUM_SERVER": "1", "DMLC_TASK_ID": "2",
    "DMLC_PS_ROOT_URI": "10.0.0.1", "DMLC_PS_ROOT_PORT": "9091",
}  # fmt: skip


@pytest.mark.parametrize("role", ["server", "scheduler"])
def test_servers_and_the_scheduler_end_quietly(role):
    with pytest.raises(SystemExit) as caught:
        set_torch_variables({**WORKER, "DMLC_ROLE": role})
    assert caught.value.code == 0


def test_a_worker_gets_torchs_variables():
    env = dict(WORKER)
    set_torch_variables(env)
    found = {name: env[name] for name in env if name not in WORKER}
    assert found == {"RANK": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "9091"}
    env = {**WORKER, "DMLC_WORKER_ID": "1"}
    set_torch_variables(env)
    assert env["RANK"] == "1"


@pytest.mark.parametrize(
    "given", [{}, {"DMLC_ROLE": "worker"}, {**WORKER, "RANK": "0"}, {**WORKER, "DMLC_NUM_WORKER": "1"}]
)
def test_nothing_else_is_changed(given):
    env = dict(given)
    set_torch_variables(env)
    assert env == given


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"DMLC_TASK_ID": None}, "DMLC_WORKER_ID or DMLC_TASK_ID of a worker, got none"),
        ({"DMLC_TASK_ID": "3"}, "below DMLC_NUM_WORKER=3, got 3"),
        ({"DMLC_TASK_ID": "-1"}, "a whole number from 0, got '-1'"),
        ({"DMLC_NUM_WORKER": "two"}, "a whole number from 0, got 'two'"),
        ({"DMLC_PS_ROOT_URI": None}, "the address where workers meet, got none"),
        ({"DMLC_PS_ROOT_PORT": None}, "expected DMLC_PS_ROOT_PORT of a worker"),
    ],
)
def test_a_worker_that_cannot_be_placed(change, what):
    env = {name: value for name, value in {**WORKER, **change}.items() if value is not None}
    with pytest.raises(fl.CompatError, match=what):
        set_torch_variables(env)


SCRIPT = """
import mxnet as mx
kv = mx.kv.create("dist_sync")
kv.init(0, mx.nd.zeros((2,)))
kv.push(0, mx.nd.ones((2,)) * (kv.rank + 1))
out = mx.nd.zeros((2,))
kv.pull(0, out=out)
print(kv.rank, kv.num_workers, out.asnumpy().tolist(), flush=True)
kv.barrier()
"""


def test_a_script_launched_as_launch_py_does(tmp_path):
    """Two workers, two servers and the scheduler, with the variables of the local tracker."""
    (tmp_path / "script.py").write_text(SCRIPT)
    common = {
        **os.environ, "PYTHONPATH": IMPORTED_FROM, "DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "2",
        "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(free_port()),
    }  # fmt: skip
    roles = [("scheduler", ""), *(("worker" if i < 2 else "server", str(i)) for i in range(4))]
    started = [
        Python(
            ["-m", "feedline", "run", "--as", "mxnet", str(tmp_path / "script.py")],
            env={**common, "DMLC_ROLE": role, **({"DMLC_TASK_ID": number} if number else {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for role, number in roles
    ]
    said = [process.communicate(timeout=150)[0] for process in started]
    assert [process.returncode for process in started] == [0] * 5, said
    assert [said[0], said[3], said[4]] == [""] * 3
    assert sorted(said[1:3]) == ["0 2 [3.0, 3.0]\n", "1 2 [3.0, 3.0]\n"]
