"""The two commands of the README report missing programs at once. Tests of the tools that they use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from tests.docs.pages import ROOT

ENVIRONMENT = ROOT / "tools" / "environment.py"

pytestmark = pytest.mark.skipif(not ENVIRONMENT.is_file(), reason="tools are out of reach of a test of the wheel")


def program(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def refused(folder):
    """The message of environment.py if only the programs of a folder can be found."""
    done = subprocess.run(
        [sys.executable, ENVIRONMENT, folder / "venv", "core", "demo"],
        env={"PATH": str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert not (folder / "venv").exists()
    return done.stderr


def test_a_missing_compiler_is_named_with_the_command_that_installs_it(tmp_path):
    program(tmp_path / "apt-get", "")
    assert refused(tmp_path) == (
        "expected g++ and cmake to compile the native core, found none; run: apt-get install g++ cmake\n"
    )
    (tmp_path / "apt-get").unlink()
    program(tmp_path / "cmake", "echo cmake version 3.25.1")
    assert "run: dnf install gcc-c++\n" in refused(tmp_path)


def test_an_old_cmake_is_refused(tmp_path):
    program(tmp_path / "g++", "")
    program(tmp_path / "cmake", "echo cmake version 3.9.6")
    assert "expected CMake 3.15 or later, got 3.9" in refused(tmp_path)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_an_old_python_is_refused(tmp_path):
    program(tmp_path / "python3", "echo False")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "-n", "demo", f"PYTHON={tmp_path / 'python3'}"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "expected Python 3.11 or later" in done.stderr


def test_a_throttled_command_keeps_its_status():
    command = [sys.executable, ROOT / "tools" / "throttle.py", "0.5", "sh", "-c", "echo here; exit 3"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stdout.endswith("here\n")
