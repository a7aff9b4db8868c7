"""A thread-safe LRU cache with a budget."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from feedline.concurrency.fork_local import PerProcess
from feedline.concurrency.thread_pool import Job

Key = TypeVar("Key")
Item = TypeVar("Item")


class LruCache(Generic[Key, Item]):
    """Caches the results of ``make(key)``, and evicts the least recently used ones. Thread-safe.

    Args:
        make: function called once per missing key, however many threads request it. Exceptions are not cached.
        cost: function that returns the cost of an item, in the unit of ``budget``.
        budget: maximum total cost of cached items. An item that costs more is returned, but not cached.
    """

    def __init__(self, make: Callable[[Key], Item], cost: Callable[[Item], int], budget: int) -> None:
        self._make, self._cost, self._budget = make, cost, budget
        self._shelf: PerProcess[_Shelf[Key, Item]] = PerProcess(_Shelf)

    def get(self, key: Key) -> Item:
        """Return the item of ``key``, calling ``make`` if it is not cached."""
        shelf = self._shelf.get()
        with shelf.lock:
            job = shelf.items.get(key)
            if job is None or job.failed:
                job = shelf.items[key] = Job(lambda: self._make(key))
            shelf.items.move_to_end(key)
        job.run()
        if job.failed:
            with shelf.lock:
                if shelf.items.get(key) is job:
                    del shelf.items[key]
            return job.result()
        item = job.result()
        with shelf.lock:
            if shelf.items.get(key) is not job or key in shelf.costs:
                return item
            shelf.costs[key] = self._cost(item)
            shelf.used += shelf.costs[key]
            for old in [old for old in shelf.items if old in shelf.costs]:
                if shelf.used <= self._budget:
                    break
                del shelf.items[old]
                shelf.used -= shelf.costs.pop(old)
        return item

    @property
    def used(self) -> int:
        """Total cost of the cached items."""
        return self._shelf.get().used

    def clear(self) -> None:
        """Remove all items."""
        self._shelf = PerProcess(_Shelf)


class _Shelf(Generic[Key, Item]):
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.items: OrderedDict[Key, Job[Item]] = OrderedDict()
        self.costs: dict[Key, int] = {}
        self.used = 0
