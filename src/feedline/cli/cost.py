"""The cost of reading a corpus on this machine in each order, and how well each order mixes."""

from __future__ import annotations

import math
from typing import Any

from feedline.cli.console import print_table, show_bytes, show_count, stdout
from feedline.feed.files.disk import survey
from feedline.feed.formats.remote_corpus import RemoteCorpus
from feedline.feed.protocol import Deserializer, RandomAccess, Sliceable, can
from feedline.feed.reading.reader_factory import DEFAULT_WINDOW
from feedline.feed.source import DEFAULT_MINIBATCH_SIZE, MinibatchSource
from feedline.feed.timeline import BlockOrder, ChunkTable


def cost(corpus: Deserializer, seconds: float = 1.0) -> dict[str, Any] | None:
    """Return figures in JSON types. None for a corpus that is not in files of this machine.

    Returns:
        ``bytes``, ``resident`` (share in the page cache), ``sequential`` (bytes per second of the disk), ``random``
        (sequences per second at random places), and ``orders``: by shuffle argument, ``samples_per_second`` from the
        disk alone (None if it cannot be measured, or the corpus cannot be read that way), ``variance`` of minibatch
        means over the variance of independent draws if the corpus is sorted by the averaged value, and ``default``.

    Raises:
        DataError: a file cannot be read.
    """
    if isinstance(corpus, RemoteCorpus):
        return None
    table = ChunkTable(corpus.chunks())
    stored = int(table.bytes.sum())
    measured = survey(corpus.paths(), -(-stored // max(1, table.total_sequences)), seconds)
    if measured is None:
        return None
    shuffle = MinibatchSource(corpus, partition=(0, 1), on_error="skip").state_dict()["shuffle"]
    samples = table.total_samples / max(1, stored)
    sequential = None if measured.sequential is None else measured.sequential * samples
    random_speed = None
    if measured.random is not None and can(corpus, RandomAccess):
        random_speed = measured.random * table.total_samples / table.total_sequences
    pieces = len(BlockOrder(table, 0, True, DEFAULT_WINDOW).table) if can(corpus, Sliceable) else len(table)
    windows = max(1.0, stored / DEFAULT_WINDOW.bytes) if DEFAULT_WINDOW.bytes else 1.0
    mixed = 1 + DEFAULT_MINIBATCH_SIZE * (windows - 1) / pieces  # of pieces drawn without replacement
    return {
        "bytes": measured.bytes,
        "resident": measured.resident,
        "sequential": measured.sequential,
        "random": measured.random,
        "orders": {
            "whole": {"samples_per_second": random_speed, "variance": 1.0, "default": shuffle == "all"},
            "windows": {"samples_per_second": sequential, "variance": mixed, "default": isinstance(shuffle, dict)},
            "none": {"samples_per_second": sequential, "variance": None, "default": False},
        },
    }


def print_cost(figures: dict[str, Any]) -> None:
    """Print the figures as a table."""
    console = stdout()
    console.print("\nreading on this machine", style="bold")
    console.print(f"  {_disk(figures)}")
    rows = []
    for name, order in figures["orders"].items():
        window = {"whole": "all", "windows": "bytes=256M"}.get(name, name) + " (default)" * order["default"]
        speed = "-" if order["samples_per_second"] is None else _about(order["samples_per_second"])
        rows.append([window, speed, "not shuffled" if order["variance"] is None else f"{order['variance']:.3g}"])
    print_table(["--window", "samples/s from the disk", "variance of means, sorted data"], rows, left=1)


def say_cost(figures: dict[str, Any]) -> str:
    """Return one line about the default order."""
    ((name, order),) = [(k, v) for k, v in figures["orders"].items() if v["default"]]
    speed = order["samples_per_second"]
    if speed is None:
        return _disk(figures)
    return f"{_disk(figures)}; the default ({name}) gets about {_about(speed)} samples/s from there"


def _disk(figures: dict[str, Any]) -> str:
    resident = "an unknown part" if figures["resident"] is None else f"{math.floor(100 * figures['resident'])} %"
    share = f"{resident} of {show_bytes(figures['bytes'])} in the page cache"
    if figures["sequential"] is None:
        return f"{share}; the file system does not support direct I/O"
    return (
        f"{share}; the disk delivers {show_bytes(figures['sequential'])}/s in order and "
        f"{_about(figures['random'])} sequences/s at random places"
    )


def _about(number: float) -> str:
    """Format two digits of a number: one second on a shared disk is no more precise."""
    return show_count(float(f"{number:.2g}"))
