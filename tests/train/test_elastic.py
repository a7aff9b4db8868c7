"""A rank is killed, torchrun starts all again, and later runs have other numbers of ranks: all one training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.ranks import run  # noqa: E402
from tests.train.elastic_program import main  # noqa: E402

ROOT = Path(__file__).parents[2]


def test_torchrun_starts_again_and_other_worlds_go_on(tmp_path):
    folder = str(tmp_path / "run")
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    # Without the variable the second start would meet at the addresses of the first.
    variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    started = subprocess.Popen(
        [sys.executable, "-m", *command, "-m", "tests.train.elastic_program", folder, "120", "7"],
        cwd=ROOT,
        env={**os.environ, **variables, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )
    try:
        told, _ = started.communicate(timeout=120)
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
    assert started.returncode == 0, told
    # It was killed after update 7, and the last checkpoint was that of update 6.
    assert len([line for line in told.splitlines() if line.startswith("1 (72, 120, ")]) == 2, told
    resumed = run(main, 3, folder=folder, samples=192)
    assert resumed[0] == resumed[1] == resumed[2]
    assert resumed[0][:2] == (120, 192)
    (last,) = run(main, 1, folder=folder, samples=240)
    (alone,) = run(main, 1, folder=None, samples=240)
    assert (last[:2], alone[:2]) == ((192, 240), (0, 240))
    np.testing.assert_allclose(last[2], alone[2], rtol=1e-5)
