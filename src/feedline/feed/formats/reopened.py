"""Corpora that another process opens itself: maps, indexes and open files do not travel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Reopened:
    """A corpus that is pickled as the arguments of its constructor."""

    def _opened_with(self, *arguments: Any, **options: Any) -> None:
        """Note the arguments that open the same corpus."""
        kind: Callable[..., Any] = type(self)
        self._again = functools.partial(kind, *arguments, **options)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._again, ()
