"""`cntk.metrics`: criteria to report next to the loss."""

from __future__ import annotations

from typing import Any

from feedline.cntk._names import names_of
from feedline.cntk.ops import classification_error, edit_distance_error, ndcg_at_1

__all__, __getattr__ = names_of(__name__)
