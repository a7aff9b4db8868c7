"""A mark for tests of what Linux alone has. With ``FEEDLINE_PORTABLE=1``, and elsewhere, they are skipped by name."""

from __future__ import annotations

import pytest

from feedline import system


def linux_only(fact: str) -> pytest.MarkDecorator:
    """Return a mark for a test of ``fact``, which the portable version of `feedline.system` does not have."""
    return pytest.mark.skipif(system.PORTABLE, reason=f"needs what only Linux has: {fact}")
