"""A path into a corpus, with a bar while CTF text is indexed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from feedline.cli.arguments import parse_count, parse_streams
from feedline.cli.console import progress
from feedline.feed.convert import open_corpus
from feedline.feed.formats.ctf import CTFDeserializer
from feedline.feed.formats.detect import guess_format, infer_ctf_streams
from feedline.feed.protocol import CHUNK_MEMORY, Deserializer


class Opened(NamedTuple):
    """A corpus and how it was opened.

    Attributes:
        corpus: the deserializer.
        format: as `guess_format` names it.
        guessed: streams were guessed, not declared or stored.
        indexed: the text had to be indexed.
        seconds: wall time of opening, indexing included, guessing not.
    """

    corpus: Deserializer
    format: str
    guessed: bool
    indexed: bool
    seconds: float


def open_path(path: Path, streams: list[str] | None, chunk_size: str, memory: int = CHUNK_MEMORY) -> Opened:
    """Open what is at ``path``.

    Raises:
        DataError, SchemaError: see `feedline.open_corpus`.
        ValueError: ``streams`` or ``chunk_size`` cannot be read.
    """
    declared, size = parse_streams(streams), parse_count(chunk_size)
    began = time.perf_counter()
    kind = guess_format(path)
    if kind != "ctf":
        corpus = open_corpus(path, memory=memory, **declared)
        return Opened(corpus, kind, False, False, time.perf_counter() - began)
    known, indexed = declared or infer_ctf_streams(path), False
    began = time.perf_counter()
    with progress("indexing") as show:

        def count(done: int, total: int) -> None:
            nonlocal indexed
            indexed = True
            show(done, total)

        text = CTFDeserializer(path, known, chunk_size=size, memory=memory, progress=count)
    return Opened(text, kind, not declared, indexed, time.perf_counter() - began)
