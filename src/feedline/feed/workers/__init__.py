"""Run user code in a pool of processes, threads or Ray actors, and return its results through shared memory.

Inside: ``pool → process_pool | threads | ray_pool → worker_handle → start_methods | results → worker_process |
ray_actor → message | queue | control_block | failure | interrupts → memory → limits``. torch is used if it is already
imported, and never imported.
"""

from feedline.feed.workers.message import empty
from feedline.feed.workers.pool import Pool, Task
from feedline.feed.workers.results import PoolStats, WorkerStats
from feedline.feed.workers.start_methods import context, prepare

__all__ = ["Pool", "PoolStats", "Task", "WorkerStats", "context", "empty", "prepare"]
