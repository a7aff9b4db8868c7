"""LitData's folders with any of their bytes changed, in the index or in a chunk: items in every form, tokens, rows."""

from __future__ import annotations

import json
from pathlib import Path

import feedline as fl
from tests.torture.hostile_shards import FIXTURES, WORDS, HostileShards

TOKENS = {"tokens": fl.Stream(16, "int32")}


class HostileLitData(HostileShards):
    """Reads or refuses."""

    name = "hostile-litdata"
    asks = "does any change of a LitData folder crash, read beyond it, or take memory without bound?"
    fixtures, shards = FIXTURES / "litdata", "chunk-*"
    forms = ("raw", "zstd", "runs", "each", "vectors", "tokens", "rows", "packed_rows")
    words = (*WORDS, b'"pickle"', b'"no_header_tensor:3"', b'"TokensLoader"', b'\\"children_spec\\": []', b"LDFZ01\0\0")

    def corpus(self, folder: Path, form: str) -> fl.Deserializer:
        streams = {
            "a": fl.Stream((2, 3)),
            "b": fl.Stream(dtype="bytes"),
            "boxes": fl.Stream((2, 2), "int64", field="meta.boxes"),
            "flag": fl.Stream((), "bool"),
            "half": fl.Stream((2, 2), "float16"),
            "ids": fl.Stream((), "int64"),
            "rows": fl.Stream(2, "int16"),
            "s": fl.Stream(dtype="str"),
        }
        if form == "tokens":
            streams = TOKENS
        elif form in ("vectors", "rows", "packed_rows"):
            streams = {}
        return fl.LitDataDeserializer(folder, streams, chunk_size=700, memory=1 << 20)

    def guess(self, folder: Path, form: str) -> None:
        fl.open_corpus(folder, streams=TOKENS if form == "tokens" else {})

    def tell(self, folder: Path, shard: Path) -> None:
        index = json.loads((folder / "index.json").read_text())
        for one in index["chunks"]:
            if one["filename"] == shard.name and index["config"]["compression_level"] != "chunk":
                one["chunk_bytes"] = shard.stat().st_size
        (folder / "index.json").write_text(json.dumps(index))
