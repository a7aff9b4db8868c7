"""The façade under its old name, for one test."""

from __future__ import annotations

import sys

import pytest

import feedline.cntk


@pytest.fixture
def facade(monkeypatch):
    """`import cntk` works in the test, and not after it."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    feedline.cntk.install()
    yield
    for name in [n for n in sys.modules if n == "cntk" or n.startswith("cntk.")]:
        del sys.modules[name]
