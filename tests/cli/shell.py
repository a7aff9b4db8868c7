"""`feedline ...` as a process, as a user has it: no terminal, no input."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import IMPORTED_FROM

ENV = {**os.environ, "PYTHONPATH": IMPORTED_FROM, "COLUMNS": "200"}


def feedline(*args, code=0, **options):
    """Runs the command to its end; checks the exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "feedline", *map(str, args)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        env=ENV,
        **options,
    )
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def start(*args, in_background=False):
    """Starts the command in a session of its own; in the background of a shell, SIGINT is ignored from the start."""
    shell = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"] if in_background else []
    return subprocess.Popen(
        [*shell, sys.executable, "-m", "feedline", *map(str, args)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENV,
        start_new_session=True,
    )


def naming(word):
    """Ids of the processes whose command line holds ``word``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().decode("utf-8", "replace")
            except OSError:
                continue
            if word in line:
                found.append(int(entry.name))
    return found
