"""JSON Lines and CSV, packed or not, with any of their bytes changed, under all options of the readers."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import feedline as fl
from tests.torture.case import Case, WrongError
from tests.torture.damage import mutated
from tests.torture.hostile import Hostile

WORDS = (
    *(
        b'{"x": [1, 2], "n": 1}',
        b'"x"',
        b'"n"',
        b"[",
        b"]",
        b"{",
        b"}",
        b",",
        b":",
        b'"',
        b'""',
        b"\\",
        b"\\ud800",
        b"\n",
    ),
    *(
        b"\r\n",
        b"\r",
        b"\0",
        b"\xff",
        b"\xef\xbb\xbf",
        b"\xff\xfe",
        b"null",
        b"NaN",
        b"-Infinity",
        b"1e999",
        b"-",
        b"[" * 600,
    ),
    *(
        b"18446744073709551616",
        b"9" * 400,
        b"0." + b"0" * 400 + b"1",
        b"\x1f\x8b\x08\0",
        b"\x28\xb5\x2f\xfd",
        b"\x50\x2a\x4d\x18",
    ),
)
PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}


class HostileRows(Hostile):
    """Reads numbers and texts, or refuses."""

    name = "hostile-rows"
    asks = "does any JSON Lines or CSV file, packed or not, crash its reader, or take what it may not?"

    def original(self, case: Case) -> Callable[[], Any]:
        for kind in ("jsonl", "csv"):
            (case.folder / f"whole.{kind}").write_bytes(_text(kind, 300))
        return lambda: [_read(case.folder / f"whole.{kind}", {}, "raise") for kind in ("jsonl", "csv")]

    def draw(self, case: Case, k: int) -> tuple[str, Callable[[], Any]]:
        rng = case.rng
        kind, packing = rng.choice(["jsonl", "csv"]), rng.choice(["", "", ".gz", ".zst"])
        text, other = _text(kind, rng.choice([3, 300])), _text(kind, 90)
        how = "whole"
        if rng.random() < 0.6 or not packing:
            text, how = mutated(rng, text, other, WORDS)
        data = PACK[packing](text)
        if packing and rng.random() < 0.7:
            data, more = mutated(rng, data, PACK[packing](other), WORDS)
            how += f"; packed: {more}"
        path = case.folder / f"{k}.{kind}{packing}"
        path.write_bytes(data)
        options = {
            "chunk_size": rng.choice([1, 100, 3000, 1 << 20]),
            "cache": rng.choice([True, False]),
            "memory": rng.choice([1, 1000, 1 << 20, 64 << 20]),
        }
        declared = rng.random() < 0.7
        on_error = rng.choice(["raise", "skip"])
        return f"{path.name}: {how}; {options}, {on_error}", lambda: _read(path, options, on_error, declared)


def _text(kind: str, count: int) -> bytes:
    if kind == "csv":
        return b"n,x0,x1,t\n" + b"".join(b'%d,%d.5,-1,"a\n""%d"""\n' % (i, i, i) for i in range(count))
    rows = ({"n": i, "x": [i / 2, -1], "m": {"t": ["a", "é"] * (i % 3)}} for i in range(count))
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _read(path: Path, options: dict[str, Any], on_error: str, declared: bool = True) -> None:
    if path.name.split(".")[1] == "csv":
        streams = {"n": fl.Stream((), "int16"), "x": fl.Stream(2, field="x?"), "t": fl.Stream(dtype="str")}
        corpus: Any = fl.CSVDeserializer(path, streams if declared else None, **options)
    else:
        streams = {"n": fl.Stream((), "int16"), "x": fl.Stream(2), "m.t": fl.Stream(dtype="str")}
        corpus = fl.JSONLinesDeserializer(path, streams if declared else None, **options)
    how = fl.Quarantine(path.with_suffix(".bad")) if on_error == "skip" else on_error
    source = fl.MinibatchSource(corpus, on_error=how, max_sweeps=1)
    for minibatch in source.minibatches(100):
        for name, stream in corpus.schema.items():
            value = minibatch[name]
            if stream.is_text and any("\ud800" <= c <= "\udfff" for text in value.samples() for c in text):
                raise WrongError(f"half a surrogate pair in `{name}`")
