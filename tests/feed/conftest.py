"""Fixtures of the CTF tests: small files, external cases, folders that cannot be written."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import feedline as fl

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"


def shared_file(name: str) -> Path:
    """A file that is not part of the project: golden answers of CNTK, real data."""
    # A worktree may lie one folder deeper than the project itself.
    for base in (ROOT.parent, ROOT.parent.parent):
        path = base / "shared" / name
        if path.exists():
            return path
    pytest.skip(f"{SHARED / name} is not there")


@pytest.fixture
def text_file(tmp_path):
    """Write a text, get its path."""

    def write(text: bytes | str, name: str = "data.ctf") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.fixture
def mounted(tmp_path):
    """Mount a small file system in a folder. Skip if mounting is not allowed."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    done = []

    def mount(options: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if done:
            command = ["mount", "-o", f"remount,{options}", str(folder)]
        try:
            run = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("no mount command")
        if run.returncode != 0:
            pytest.skip(f"mounting is not allowed here: {run.stderr.strip()}")
        done.append(True)
        return folder

    yield mount
    if done:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def two_streams():
    return {"a": fl.Stream(2, field="A"), "b": fl.Stream(3, sparse=True, field="B")}
