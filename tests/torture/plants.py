"""Defects that are planted on purpose, to see that the suite counts them."""

from __future__ import annotations


def plant(name: str) -> None:
    raise SystemExit(f"no plant {name}")
