"""`cntk.logging`: how much is told, and progress writers.

feedline tells nothing by itself but warnings of the `feedline` logger and of Python's `warnings`; the level is kept,
checked and handed back.
"""

from __future__ import annotations

import enum
import importlib
from typing import Any

from feedline.cntk._names import explain
from feedline.cntk.logging import graph
from feedline.cntk.logging.graph import (
    depth_first_search,
    find_all_with_name,
    find_by_name,
    find_by_uid,
    get_node_outputs,
    plot,
)

_WITH_TORCH = (
    "ProgressPrinter",
    "TensorBoardProgressWriter",
    "TrainingSummaryProgressCallback",
    "log_number_of_parameters",
)

__all__ = [
    *_WITH_TORCH,
    "TraceLevel",
    "depth_first_search",
    "find_all_with_name",
    "find_by_name",
    "find_by_uid",
    "get_node_outputs",
    "get_trace_level",
    "graph",
    "plot",
    "set_trace_level",
]


class TraceLevel(enum.IntEnum):
    """Verbosity."""

    Error = 0
    Warning = 1
    Info = 2


_level = TraceLevel.Warning


def get_trace_level() -> int:
    """The process-wide level, 0 to 2."""
    return int(_level)


def set_trace_level(value: int | TraceLevel) -> None:
    """Set the process-wide level.

    Raises:
        ValueError: neither a `TraceLevel` nor 0, 1 or 2.
    """
    global _level
    _level = TraceLevel(value)


def __getattr__(name: str) -> Any:
    if name in (*_WITH_TORCH, "progress_print"):
        module = importlib.import_module("feedline.cntk.logging.progress_print")
        return module if name == "progress_print" else getattr(module, name)
    raise explain("cntk.logging", name)
