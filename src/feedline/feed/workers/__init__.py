"""Run user code in a pool of processes, threads or Ray actors, and return its results through shared memory.

Inside: ``pool → process_pool | threads | ray_pool → worker_handle | copied_memory → start_methods | results →
worker_process | ray_actor → message | queue | control_block | failure | interrupts → memory → limits``. torch is used
if it is already imported, and never imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from feedline.feed.workers.message import empty

if TYPE_CHECKING:
    from feedline.feed.workers.pool import Pool, Task
    from feedline.feed.workers.results import Taken, WorkerStats
    from feedline.feed.workers.start_methods import context, prepare

__all__ = ["Pool", "Taken", "Task", "WorkerStats", "context", "empty", "prepare"]

# Modules that start workers are imported on demand: many programs have no workers.
_MODULES = {"pool": ("Pool", "Task"), "results": ("Taken", "WorkerStats"), "start_methods": ("context", "prepare")}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
