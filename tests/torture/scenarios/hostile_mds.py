"""Folders of MDS shards with any of their bytes changed, in the index or in a shard, compressed or not."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import feedline as fl
from tests.torture.hostile_shards import FIXTURES, WORDS, HostileShards


class HostileMDS(HostileShards):
    """Reads or refuses."""

    name = "hostile-mds"
    asks = "does any change of an MDS folder crash, read beyond it, or take memory without bound?"
    fixtures, shards = FIXTURES / "mds", "shard*"
    forms = ("raw", "zstd", "gz", "br", "bz2")
    words = (*WORDS, b'"pkl"', b'"ndarray:float64:4294967295"', b'"ndarray::"')

    def corpus(self, folder: Path, form: str) -> fl.Deserializer:
        streams = {
            "a": fl.Stream((2, 3)),
            "any": fl.Stream((1, 300), "uint8"),
            "b": fl.Stream(dtype="bytes"),
            "number": fl.Stream((), "int64", field="count"),
            "i": fl.Stream((), "int64"),
            "row": fl.Stream(4, "int16"),
            "s": fl.Stream(dtype="str"),
        }
        return fl.MDSDeserializer(folder, streams, chunk_size=1500, verify=True)

    def tell(self, folder: Path, shard: Path) -> None:
        index = json.loads((folder / "index.json").read_text())
        content = shard.read_bytes()
        for one in index["shards"]:
            for data in (one["raw_data"], one["zip_data"]):
                if data and data["basename"] == shard.name:
                    data.update(bytes=len(content), hashes={"sha1": hashlib.sha1(content).hexdigest()})
        (folder / "index.json").write_text(json.dumps(index))
