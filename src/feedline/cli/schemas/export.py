"""The JSON documents of ``feedline export``."""

from __future__ import annotations

from typing import TypedDict


class ExportDocument(TypedDict):
    """The file that was written.

    Attributes:
        path: path of the file.
        network: path of the network, as typed.
        parameters: number of arrays in the file of parameters.
        inputs: arguments of the network that have no parameter.
        bytes: bytes of the file.
    """

    path: str
    network: str
    parameters: int
    inputs: list[str]
    bytes: int


Document = ExportDocument
