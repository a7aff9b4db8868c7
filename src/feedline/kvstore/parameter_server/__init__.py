"""The parameter server of ``dist_async``: servers apply each push at once, and no worker waits for another.

Interface of this folder: code outside imports no other module of it.
"""

from feedline.kvstore.parameter_server.ray_cluster import AsyncCluster
from feedline.kvstore.parameter_server.store import AsyncStore

__all__ = ["AsyncCluster", "AsyncStore"]
