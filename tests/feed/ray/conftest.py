"""Tests with a real Ray: a private one, which a process of tests starts once, and which ends with it."""

from __future__ import annotations

import importlib.util
import os

import pytest

if importlib.util.find_spec("ray") is None:
    # Not imported, as it would read its settings before they are set.
    collect_ignore_glob = ["test_*"]


def pytest_collection_modifyitems(items):
    here = os.path.dirname(__file__)
    for item in items:
        if str(item.path).startswith(here):
            # Ray's own; and what pytest's filters turn into errors.
            for name in ("FutureWarning", "DeprecationWarning", "ResourceWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{name}"))


@pytest.fixture(autouse=True, scope="session")
def no_other_ray():
    """These tests never join a Ray that somebody has started on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", "local")
        yield
