"""Answers of the real CNTK 2.7, recorded outside the project, in files under ``../shared/golden``."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path

import pytest

import feedline as fl

ROOT = Path(__file__).resolve().parents[2]


def cases(name):
    """Return the cases of a golden file as pytest parameters. Without the file one that skips and names it."""
    path = _path(name)
    if path.exists():
        return [pytest.param(case, id=case["id"]) for case in json.loads(path.read_text())["cases"]]
    return [pytest.param(None, marks=pytest.mark.skip(reason=f"{path} is not there"), id="none")]


@functools.cache
def datasets(name):
    """The texts of a golden file, by name."""
    return json.loads(_path(name).read_text())["datasets"]


def _path(name):
    # A worktree may lie one folder deeper than the project itself.
    bases = [ROOT.parent / "shared" / "golden", ROOT.parent.parent / "shared" / "golden"]
    if "FEEDLINE_GOLDEN" in os.environ:
        bases = [Path(os.environ["FEEDLINE_GOLDEN"])]
    return next((base / name for base in bases if (base / name).exists()), bases[0] / name)


def shuffle_of(settings):
    """CNTK's window settings as ours."""
    chunks = settings.get("randomization_window_in_chunks", 128)
    samples = settings.get("randomization_window_in_samples", 0)
    if not settings.get("randomize", True) or chunks == samples == 0:
        return False
    return fl.Window(chunks=chunks) if chunks else fl.Window(samples=samples)
