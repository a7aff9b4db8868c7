"""The parameter server behind ``dist_async``: servers apply each push at once, and no worker waits for another.

The door of this folder: nothing outside imports its modules.
"""

from feedline.kvstore.parameter_server.ray_cluster import AsyncCluster
from feedline.kvstore.parameter_server.store import AsyncStore

__all__ = ["AsyncCluster", "AsyncStore"]
