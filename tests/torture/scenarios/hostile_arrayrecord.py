"""ArrayRecord files with any of their bytes changed, which their checksums show.

Parts of other files are not put in, as a block that is whole has its own checksum.
"""

from __future__ import annotations

import importlib
import importlib.util
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline as fl
from tests.torture.case import Case, WrongError
from tests.torture.damage import mutated
from tests.torture.hostile import Hostile

FORMS = ("group_size:1", "group_size:4", "group_size:4,uncompressed")
RECORDS = tuple(random.Random(i).randbytes(i % 7 * 9) + b"%d" % i for i in range(40))
AROUND = 150  # bytes before and after a place that is in use
WORDS = (
    *(b"\0" * 8, b"\xff" * 8, b"\xff\xff\xff\x7f", struct.pack("<q", 2**40), struct.pack("<q", 1 << 16)),
    *(b"\x80\x80\x80\x80\x08", b"group_size:0", b"group_size:99999999999"),
)


class HostileArrayRecord(Hostile):
    """Reads the records that were written, or refuses."""

    name = "hostile-arrayrecord"
    asks = "does any change of an ArrayRecord file crash its reader, or deliver another record?"

    def missing(self) -> str | None:
        return None if importlib.util.find_spec("array_record") else "array_record is not installed"

    def prepare(self, case: Case) -> None:
        module: Any = importlib.import_module("array_record.python.array_record_module")
        for i, form in enumerate(FORMS):
            writer = module.ArrayRecordWriter(str(case.folder / f"{i}.array_record"), form)
            for record in RECORDS:
                writer.write(record)
            writer.close()
        _read(case.folder / "0.array_record")  # starts 64 threads, which wait for ever where memory is limited

    def original(self, case: Case) -> Callable[[], Any]:
        return lambda: [_read(case.folder / f"{i}.array_record") for i in range(len(FORMS))]

    def draw(self, case: Case, k: int) -> tuple[str, Callable[[], Any]]:
        rng = case.rng
        form = rng.randrange(len(FORMS))
        text = (case.folder / f"{form}.array_record").read_bytes()
        path = case.folder / f"changed-{k}.array_record"
        data, how = _changed(rng, text)
        if rng.random() < 0.2:
            path.write_bytes(text)
            corpus = fl.ArrayRecordDeserializer(path, chunk_sequences=12)
            path.write_bytes(data)
            return f"{FORMS[form]}: {how}, in use", lambda: _check(corpus)
        path.write_bytes(data)
        return f"{FORMS[form]}: {how}", lambda: _read(path)


def _changed(rng: random.Random, text: bytes) -> tuple[bytes, str]:
    """Return a file with changes, mostly where it has content: nearly all of it is filled up with zeros."""
    if rng.random() < 0.2:
        return mutated(rng, text, words=WORDS)
    at = rng.choice([i for i, byte in enumerate(text) if byte])
    begin, end = max(0, at - rng.randrange(AROUND)), at + 1 + rng.randrange(AROUND)
    piece, how = mutated(rng, text[begin:end], words=WORDS)
    if rng.random() < 0.8:
        piece = piece[: len(text[begin:end])].ljust(len(text[begin:end]), b"\0")
    return text[:begin] + piece + text[end:], f"from {begin} to {end}: {how}"


def _read(path: Path) -> None:
    _check(fl.open_corpus(path))
    _check(fl.ArrayRecordDeserializer(path, chunk_sequences=12))


def _check(corpus: fl.Deserializer) -> None:
    """Read all chunks, after which the first refusal is raised."""
    refusal: fl.DataError | None = None
    first = 0
    if sum(info.sequences for info in corpus.chunks()) != len(RECORDS):
        raise WrongError(f"{sum(info.sequences for info in corpus.chunks())} records")
    for chunk, info in enumerate(corpus.chunks()):
        try:
            records = corpus.read(chunk)["record"].samples()
        except fl.DataError as error:
            refusal = refusal or error
        else:
            if tuple(records) != RECORDS[first : first + info.sequences]:
                raise WrongError(f"other records in chunk {chunk}: {records!r:.300}")
        first += info.sequences
    if refusal:
        raise refusal
