"""The JSON documents of ``feedline report``."""

from __future__ import annotations

from typing import TypedDict


class ReportDocument(TypedDict):
    """The page that was made. With ``--watch`` it is printed when the run has ended.

    Attributes:
        page: path of the page.
        bytes: bytes of the page.
    """

    page: str
    bytes: int


Document = ReportDocument
