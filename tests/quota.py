"""A decorator for tests of the doctor's findings, of which a quota of processor time is the first, and a right one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from feedline import system


@contextlib.contextmanager
def skipped_if_stopped() -> Iterator[None]:
    """Skip a test that fails if the quota of its container has stopped it meanwhile."""
    stopped_s = system.throttled_seconds() or 0.0
    try:
        yield
    except AssertionError:
        if (system.throttled_seconds() or 0.0) > stopped_s:
            pytest.skip("needs processor time without a quota, which the doctor names first")
        raise
