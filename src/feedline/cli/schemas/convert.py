"""The JSON documents of ``feedline convert``."""

from __future__ import annotations

from typing import TypedDict


class ConvertDocument(TypedDict):
    """The store that was written.

    Attributes:
        source: source, as typed.
        store: path or address of the store.
        streams: names of the streams.
        streams_guessed: whether streams were inferred from the beginning of the data.
        sequences: number of sequences in the store.
        samples: number of samples in the store.
        bytes: bytes of the store.
        skipped: number of unreadable sequences that were left out.
    """

    source: str
    store: str
    streams: list[str]
    streams_guessed: bool
    sequences: int
    samples: int
    bytes: int
    skipped: int


Document = ConvertDocument
