"""Who runs the user's Python? A pool of processes or threads, and the memory that their results travel in.

Inside: ``pool → process_pool | threads → worker_handle → start_methods | results → worker_process → message | queue |
control_block | failure | interrupts → memory → limits``. torch is used where it is already imported, never imported for
its own sake.
"""

from feedline.feed.workers.message import empty
from feedline.feed.workers.pool import Pool, Task
from feedline.feed.workers.results import PoolStats, WorkerStats
from feedline.feed.workers.start_methods import warm

__all__ = ["Pool", "PoolStats", "Task", "WorkerStats", "empty", "warm"]
