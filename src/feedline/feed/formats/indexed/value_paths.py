"""Paths of keys to nested values: ``"meta.score"``, and ``"messages[].content"`` for a value of each item of a list."""

from __future__ import annotations

import re
from typing import TypeAlias

Steps: TypeAlias = list[str | None]
"""The steps of a path, from outside in: a key, or None for the items of a list."""

_PARTS = re.compile(r"(?:[^.\\]|\\.)+", re.DOTALL)
_OF_ITEMS = re.compile(r"((?:[^\\]|\\.)+?)\[\]", re.DOTALL)


def steps_of(path: str) -> Steps:
    """Return the steps of a path. A backslash escapes the next character."""
    steps: Steps = []
    for part in _PARTS.findall(path) or [path]:
        levels = 0
        while of_items := _OF_ITEMS.fullmatch(part):
            part, levels = of_items[1], levels + 1
        steps += [re.sub(r"\\(.)", r"\1", part, flags=re.DOTALL), *[None] * levels]
    return steps


def escape_key(key: str) -> str:
    """Return a key with backslashes before its dots, and before brackets at its end, for a path of keys."""
    escaped = re.sub(r"([.\\])", r"\\\1", key)
    return rf"{escaped[:-2]}\[]" if escaped.endswith("[]") else escaped


def join_steps(steps: Steps) -> str:
    """Return the path of some steps."""
    path = ""
    for step in steps:
        path += "[]" if step is None else f".{escape_key(step)}" if path else escape_key(step)
    return path
