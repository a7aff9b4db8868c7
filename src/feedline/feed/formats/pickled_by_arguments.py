"""Corpora that each process opens for itself: maps, indexes and open files cannot be pickled."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class PickledByArguments:
    """A corpus that is pickled as the arguments of its constructor."""

    def _set_arguments(self, *arguments: Any, **options: Any) -> None:
        """Set the arguments that open the same corpus."""
        kind: Callable[..., Any] = type(self)
        self._reopen = functools.partial(kind, *arguments, **options)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reopen, ()
