"""`feedline ...` as a process, as a user has it: no terminal, no input."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import IMPORTED_FROM
from tests.warm import run

ENV = {**os.environ, "PYTHONPATH": IMPORTED_FROM, "COLUMNS": "200"}


def feedline(*args, code=0, **options):
    """Run the command to its end, and check the exit code. With ``--json``, check the document, too."""
    done = run(
        ["-m", "feedline", *map(str, args)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        env=ENV,
        **options,
    )
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    if "--json" in args and args[0] != "run":  # where it may be the script's
        from tests.cli.documents import document_in  # needs jsonschema, which not every environment has

        document_in(done.stdout, args[0])
    return done


def start(*args):
    """Starts the command in its own session."""
    return subprocess.Popen(
        [sys.executable, "-m", "feedline", *map(str, args)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENV,
        start_new_session=True,
    )


def naming(word):
    """Ids of the processes whose command line, or the name of a file that they hold open, has ``word`` in it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                names = [(entry / "cmdline").read_bytes().decode("utf-8", "replace")]
                names += [os.readlink(fd) for fd in (entry / "fd").iterdir()]
            except OSError:
                continue
            if any(word in name for name in names):
                found.append(int(entry.name))
    return found
