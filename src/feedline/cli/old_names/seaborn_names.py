"""Arguments by position that seaborn 0.12 removed from its plots."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from feedline.cli.old_names.notes import Notes

#: Parameters by position of old versions, as far as all plots agreed.
_OLD = ("x", "y", "hue")


def restore_seaborn(seaborn: Any, notes: Notes) -> None:
    """Let plots take x, y and hue by position again, in a module that has been imported.

    A single argument by position is the data, as in newer versions.
    """
    for name, plot in list(vars(seaborn).items()):
        if inspect.isfunction(plot) and _takes_data_first(plot):
            setattr(seaborn, name, _by_position(f"seaborn.{name}", plot, notes))


def _takes_data_first(plot: Callable[..., Any]) -> bool:
    parameters = inspect.signature(plot).parameters
    by_position = [p.name for p in parameters.values() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    return by_position == ["data"] and {"x", "y"} <= parameters.keys()


def _by_position(name: str, plot: Callable[..., Any], notes: Notes) -> Callable[..., Any]:
    @functools.wraps(plot)
    def draw(*args: Any, **options: Any) -> Any:
        if not 2 <= len(args) <= len(_OLD):
            return plot(*args, **options)
        notes.used(f"{name}(x, y)", f"{name.partition('.')[2]}(x=..., y=...)")
        return plot(**dict(zip(_OLD, args, strict=False)), **options)

    return draw
