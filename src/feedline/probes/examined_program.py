"""Examine a whole program, if ``FEEDLINE_DOCTOR`` is set when it imports feedline."""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import sys

from feedline.probes.examination import Examination
from feedline.runs.diagnosis import findings_document

_OFF, _TEXT, _JSON = ("", "0", "no", "off", "false"), ("1", "yes", "on", "true"), "json"
_started = False


def start() -> None:
    """Begin to examine this process, unless it is a worker of another one."""
    global _started
    mode = os.environ.get("FEEDLINE_DOCTOR", "")
    mode = mode.lower() if mode.lower() in (*_OFF, *_TEXT, _JSON) else mode  # else the path of a log
    if _started or mode in _OFF or _is_worker():
        return
    _started = True
    examination = Examination(None if mode in (*_TEXT, _JSON) else mode)
    atexit.register(_end, examination, mode, os.getpid())


def _is_worker() -> bool:
    """Whether this process works for another, which reports."""
    # Processes that are spawned, and the server that forks workers, import the program before they know their parent.
    started = any(argument.startswith("from multiprocessing.") for argument in sys.orig_argv)
    return started or multiprocessing.parent_process() is not None


def _end(examination: Examination, mode: str, pid: int) -> None:
    if os.getpid() != pid:  # a forked child, whose parent reports
        return
    examination.end()
    if mode == _JSON:
        print(json.dumps(findings_document(examination.findings)), flush=True)
    else:
        print(examination.report(), file=sys.stderr, flush=True)
