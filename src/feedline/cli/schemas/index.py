"""The JSON documents of ``feedline index``."""

from __future__ import annotations

from typing import TypedDict


class IndexDocument(TypedDict):
    """The indexes that were written.

    Attributes:
        indexes: paths or addresses of the indexes, in the order of the files.
    """

    indexes: list[str]


Document = IndexDocument
