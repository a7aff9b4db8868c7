"""The JSON documents of ``feedline export``."""

from __future__ import annotations

from typing import TypedDict


class ExportDocument(TypedDict):
    """The file that was written.

    Attributes:
        path: path of the file.
        network: path of the network, as typed.
        parameters: number of arrays in the file of parameters, or of parameters in the model.
        inputs: arguments of the network that have no parameter.
        weights: path of the weights of a module of torch. Null for other files.
        largest_difference: largest difference of an output of the module from the network's, on random inputs,
            relative to its largest value or 1. Null for other files.
        bytes: bytes of the file.
    """

    path: str
    network: str
    parameters: int
    inputs: list[str]
    weights: str | None
    largest_difference: float | None
    bytes: int


Document = ExportDocument
