"""An interrupt while a chunk is added leaves a gatherer as it was."""

from __future__ import annotations

import signal

import numpy as np
import pytest

from feedline import _native
from tests.torture.interruption import Interrupter


@pytest.fixture
def interrupter():
    before = signal.getsignal(signal.SIGINT)
    yield Interrupter()
    signal.signal(signal.SIGINT, before)


def test_interrupted_anywhere_the_next_chunk_can_be_added(interrupter):
    """Native code calls `str`, which handles signals, but only before it begins to store a chunk."""
    rng = np.random.default_rng(0)
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    values = [(rows, None)] * 8
    interrupted = 0
    for _ in range(20_000):
        gatherer = _native.Gatherer([None] * 8)
        _, came = interrupter.call(lambda g=gatherer: g.add(0, values, []), float(rng.uniform(1e-6, 40e-6)))
        interrupted += came
        if 0 not in gatherer.slots:
            gatherer.add(0, values, [])
        found = gatherer.gather(None, np.array([2]), 1)
        assert found[0][0].tolist() == [[6.0, 7.0, 8.0]]
    assert interrupted > 100
