"""`cntk.metrics`: criteria that are reported next to the loss."""

from __future__ import annotations

from typing import Any

from feedline.cntk._names import explain
from feedline.cntk.ops import classification_error

__all__ = ["classification_error"]


def __getattr__(name: str) -> Any:
    raise explain("cntk.metrics", name)
