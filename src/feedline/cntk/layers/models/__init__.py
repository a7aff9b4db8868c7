"""`cntk.layers.models`: parts of models that are more than a layer."""

from __future__ import annotations

from typing import Any

from feedline.cntk._names import explain
from feedline.cntk.layers.models.attention import AttentionModel

__all__ = ["AttentionModel"]


def __getattr__(name: str) -> Any:
    raise explain("cntk.layers.models", name)
