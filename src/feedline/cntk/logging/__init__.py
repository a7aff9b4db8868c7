"""`cntk.logging`: trace level and progress writers.

feedline logs only warnings, through the `feedline` logger and Python's `warnings`. The trace level is stored and
validated, but has no effect.
"""

from __future__ import annotations

import enum
import importlib
from typing import Any

from feedline.cntk._names import NAMES, look_up
from feedline.cntk.logging import graph
from feedline.cntk.logging.graph import *

__all__ = NAMES["cntk.logging"].exported


class TraceLevel(enum.IntEnum):
    """Verbosity."""

    Error = 0
    Warning = 1
    Info = 2


_level = TraceLevel.Warning


def get_trace_level() -> int:
    """Return the process-wide level, 0 to 2."""
    return int(_level)


def set_trace_level(value: int | TraceLevel) -> None:
    """Set the process-wide level.

    Raises:
        ValueError: neither a `TraceLevel` nor 0, 1 or 2.
    """
    global _level
    _level = TraceLevel(value)


def __getattr__(name: str) -> Any:
    if name in (*NAMES["cntk.logging.progress_print"].importable, "progress_print"):  # imports torch
        module = importlib.import_module("feedline.cntk.logging.progress_print")
        return module if name == "progress_print" else getattr(module, name)
    return look_up("cntk.logging", name)
