"""The JSON documents of ``feedline validate``."""

from __future__ import annotations

from typing import TypedDict


class DamagedSequence(TypedDict):
    """A sequence that cannot be read.

    Attributes:
        sequence: its ordinal. None if unknown.
        error: message of the error.
    """

    sequence: int | None
    error: str


class ValidateDocument(TypedDict):
    """The result of reading every sequence. If one is damaged, the exit code is 1.

    Attributes:
        path: path of the corpus.
        sequences: number of sequences.
        samples: number of samples.
        bytes: stored bytes that were read. 0 for texts that are tokenized.
        damaged: number of unreadable sequences.
        errors: the first of them, at most ten.
    """

    path: str
    sequences: int
    samples: int
    bytes: int
    damaged: int
    errors: list[DamagedSequence]


Document = ValidateDocument
