"""Real processes join, are killed and do not commit steps, and the job delivers what a single process would.

`make torture` does so for as long as it runs, in the scenario ``ranks-come-and-go``.
"""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from tests.elastic_job import run


@pytest.mark.slow
@pytest.mark.parametrize("case", ["a source", "a loader with threads"])
def test_each_committed_step_is_that_of_a_single_process(case):
    history, differences = run(case, random.Random(case), 20, "forkserver")
    assert differences == ([], [], [])
    assert history.codes == [0] * history.ended  # all ended by themselves, and together
    assert min(history.joins, history.deaths, history.lost, len(set(history.counts)), history.ended) > 0
