"""A rank or a machine is lost, torchrun starts again, and later runs have other numbers of ranks, in one training.

Every run is compared with one that was never interrupted: the sequences of its global minibatches, and the weights.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.ranks import free_port, run  # noqa: E402
from tests.train.elastic_program import main  # noqa: E402
from tests.warm import Python  # noqa: E402

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def torchrun(*arguments):
    """torchrun in progress. It is ended at the end of the block, if not before."""
    # Without the variable the second start would use the rendezvous of the first.
    variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    started = Python(
        ["-m", "tests.torchrun", *arguments],
        cwd=ROOT,
        env={**os.environ, **variables, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )
    try:
        yield started
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()
        started.stdout.close()


def ended(started):
    """Return the results of the ranks by the number of their start."""
    text, _ = started.communicate()
    assert started.returncode == 0, text
    return [(int(start), *ast.literal_eval(rest)) for start, rest in re.findall(r"^(\d) (\(.*\))$", text, re.MULTILINE)]


@pytest.fixture(scope="module")
def alone():
    """A run of one rank without interruption: weights and minibatches after 120 and 240 samples."""
    results = {}
    for samples in (120, 240):
        ((_, _, _, weights, ids),) = run(main, 1, folder=None, samples=samples)
        results[samples] = weights, ids
    return results


def check(results, alone, world, began, samples):
    """Check that the ranks of a run ended with equal weights, and had the minibatches of the uninterrupted run."""
    assert [result[:3] for result in results] == [(world, began, samples)] * world
    assert all(result[3] == results[0][3] for result in results)
    *_, everything = alone[240]
    joined = [sum(parts, []) for parts in zip(*(result[4] for result in results), strict=True)]
    # Only their parts distinguish ranks: the first rank has the first sequences.
    assert joined == everything[began // 12 : samples // 12]
    if samples in alone:
        np.testing.assert_allclose(results[0][3], alone[samples][0], rtol=1e-5)


def in_rank_order(results, alone):
    """Return results in the order of printing."""
    first = alone[240][1][results[0][2] // 12]
    return sorted(results, key=lambda result: first.index(result[5][0][0]))


def test_torchrun_starts_again_and_other_worlds_go_on(tmp_path, alone):
    folder = str(tmp_path / "run")
    program = ["-m", "tests.train.elastic_program", folder, "120", "7"]
    with torchrun("--standalone", "--nproc-per-node", "2", "--max-restarts", "1", *program) as started:
        results = in_rank_order(ended(started), alone)
    assert [start for start, *_ in results] == [1, 1]
    # It was killed after update 7, and the last checkpoint was of update 6.
    check([tuple(rest) for _, *rest in results], alone, 2, 72, 120)
    check(run(main, 3, folder=folder, samples=192), alone, 3, 120, 192)
    check(run(main, 1, folder=folder, samples=240), alone, 1, 192, 240)


@pytest.mark.slow
def test_a_smaller_world_continues_after_a_machine_is_lost(tmp_path, alone):
    """Of two launchers with one rank each, one is killed with its rank, and the other starts again, alone."""
    common = ["--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "3", "--rdzv-backend", "c10d"]
    common += ["--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--local-addr", "127.0.0.1"]
    patience = "last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3"
    program = ["-m", "tests.train.elastic_program", str(tmp_path / "run"), "120"]
    with (
        torchrun(*common, "--rdzv-conf", f"{patience},is_host=1", *program) as stays,
        torchrun(*common, "--rdzv-conf", f"{patience},is_host=0", *program, "7", "machine") as goes,
    ):
        ((start, *result),) = ended(stays)
        assert goes.wait() == -signal.SIGKILL
    assert start == 1
    check([tuple(result)], alone, 1, 72, 120)
