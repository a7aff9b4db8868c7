"""Describe a source to those who look for what is slow in it: its settings, and the size and form of its data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from feedline.feed.protocol import Deserializer, RandomAccess, is_sized
from feedline.feed.remote.address_text import is_address
from feedline.feed.timeline import Window
from feedline.feed.timeline.elements import Timeline


def corpus_facts(corpus: Deserializer) -> dict[str, Any]:
    """Return facts about a corpus in JSON types. Reads nothing.

    Returns:
        Its name and format, the number of its files and chunks, their bytes, whether they are objects of a store, and
        whether chunks are mapped without decoding. Numbers that are unknown before reading are None.
    """
    paths, chunks = list(corpus.paths()), corpus.chunks() if is_sized(corpus) else None
    return {
        "corpus": corpus.name,
        "format": type(corpus).__name__.removesuffix("Deserializer"),
        "files": len(paths),
        "remote": is_address(corpus.name),
        "mapped": corpus.capability(RandomAccess) is not None,
        "compressed": any(path.endswith((".gz", ".zst", ".bz2", ".xz", ".lz4")) for path in paths),
        "stored_bytes": None if chunks is None else sum(chunk.bytes for chunk in chunks),
        "chunks": None if chunks is None else len(chunks),
    }


def facts_of(
    corpus: Deserializer,
    timeline: Timeline,
    *,
    shuffle: bool | str | Window,
    threads: int,
    read_ahead: int | None,
    transforms: Sequence[str],
) -> dict[str, Any]:
    """Return the facts in JSON types. Reads nothing.

    Args:
        corpus: corpus of the source.
        timeline: its order.
        shuffle, threads, read_ahead: arguments of the source.
        transforms: names of its transforms.

    Returns:
        Those about the corpus, the number of sequences or None if it is unknown, and the arguments.
    """
    return {
        "feed": "MinibatchSource",
        **corpus_facts(corpus),
        "sequences": timeline.sweep_length,
        "shuffle": repr(shuffle),
        "whole_shuffle": timeline.window is None and not timeline.in_corpus_order,
        "read_ahead": read_ahead,
        "threads": threads,
        "transforms": list(transforms),
    }
