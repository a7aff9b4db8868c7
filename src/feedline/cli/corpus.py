"""Open a corpus by its path, with a progress bar while CTF text is indexed."""

from __future__ import annotations

import os
import re
import time
from typing import NamedTuple

from feedline.cli.arguments import DEFAULT_CHUNK_SIZE, parse_columns, parse_count, parse_schema, parse_streams
from feedline.cli.console import UsageError, progress
from feedline.feed.arguments import Remote
from feedline.feed.formats.cntk.ctf import CTFDeserializer
from feedline.feed.formats.cntk.ctf_streams import infer_ctf_streams
from feedline.feed.formats.detect import recognise
from feedline.feed.formats.remote_corpus import RemoteCorpus
from feedline.feed.open_corpus import open_corpus
from feedline.feed.protocol import CHUNK_MEMORY, Deserializer
from feedline.feed.remote.address_text import is_address

_GUESSED = ("csv", "jsonl", "tfrecord", "ctf")  # formats whose streams are inferred from the data


class Opened(NamedTuple):
    """A corpus and how it was opened.

    Attributes:
        corpus: the deserializer.
        format: name of the format, see `detect.FORMATS`.
        guessed: whether streams were inferred, neither declared nor stored.
        indexed: whether the text had to be indexed.
        seconds: wall time of opening, with indexing but without inferring streams.
    """

    corpus: Deserializer
    format: str
    guessed: bool
    indexed: bool
    seconds: float


def open_path(
    path: str | os.PathLike[str],
    streams: list[str] | None,
    chunk_size: str,
    schema: str = "strict",
    *,
    memory: int = CHUNK_MEMORY,
    remote: Remote | None = None,
) -> Opened:
    """Open the corpus at ``path``, which may be an address.

    Args:
        path, memory, remote: as for `feedline.open_corpus`.
        streams, chunk_size, schema: as typed.

    Raises:
        DataError, SchemaError: see `feedline.open_corpus`.
        UsageError: ``streams``, ``chunk_size`` or ``schema`` is invalid.
    """
    size, rule = parse_count(chunk_size), parse_schema(schema)
    began = time.perf_counter()
    if is_address(path):
        if chunk_size != DEFAULT_CHUNK_SIZE:
            raise UsageError(f"expected a path for --chunk-size {chunk_size}, got an address")
        name, is_csv = "", re.search(r"\.(csv|tsv)(\.\w+)?$", str(path)) is not None
    else:
        form, paths = recognise(path)
        name, is_csv = form.name, form.name == "csv"
    if name != "ctf" or rule == "union":  # which no CTF has
        parse = parse_columns if is_csv else parse_streams
        corpus = open_corpus(path, streams=parse(streams), memory=memory, remote=remote, schema=rule)
        if isinstance(corpus, RemoteCorpus):
            name = corpus.format
        return Opened(corpus, name, name in _GUESSED and not streams, False, time.perf_counter() - began)
    declared = parse_streams(streams)
    inferred, indexed = declared or infer_ctf_streams(paths[0]), False
    began = time.perf_counter()
    with progress("indexing") as show:

        def count(done: int, total: int) -> None:
            nonlocal indexed
            indexed = True
            show(done, total)

        what = paths if len(paths) > 1 else paths[0]
        text = CTFDeserializer(what, inferred, chunk_size=size, memory=memory, progress=count)
    return Opened(text, name, not declared, indexed, time.perf_counter() - began)
