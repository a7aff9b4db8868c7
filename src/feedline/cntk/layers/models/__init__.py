"""`cntk.layers.models`: parts of models larger than a layer."""

from __future__ import annotations

from typing import Any

from feedline.cntk._names import names_of
from feedline.cntk.layers.models.attention import AttentionModel

__all__, __getattr__ = names_of(__name__)
