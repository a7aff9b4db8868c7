"""Settings for all tests: hypothesis profiles, and a law that no test may leave anything behind."""

from __future__ import annotations

import os
import threading

import pytest
from hypothesis import HealthCheck, settings

# CI machines are shared and noisy: time limits of single examples would fail there without a defect.
settings.register_profile("ci", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("long", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("FEEDLINE_HYPOTHESIS", "ci"))


@pytest.fixture
def leaves_nothing():
    """Checks that threads and descriptors are as many after the test as before."""
    before = threads(), descriptors()
    yield
    import gc
    import time

    for _ in range(50):
        gc.collect()
        if (threads(), descriptors()) <= before:
            return
        time.sleep(0.02)
    assert (threads(), descriptors()) <= before


def threads() -> list[str]:
    """Names of reading threads that are alive."""
    return sorted(t.name for t in threading.enumerate() if t.name.startswith("feedline"))


def descriptors() -> int:
    """Number of open file descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))
