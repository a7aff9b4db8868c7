"""Malicious index files of CTF with valid checksums."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline as fl
from feedline import _native
from feedline.feed.formats.indexed.file_index import CHUNK, ENTRY, Header
from tests.torture import data
from tests.torture.case import Case
from tests.torture.hostile import Hostile

_HEADER = struct.Struct("<8sIIIIQqQQQQI16s")
_BYTES = 128


class HostileIndex(Hostile):
    """Nothing outside the text is read, and only feedline's errors are raised."""

    name = "hostile-index"
    asks = "does an index that was made to do harm crash whoever opens the text?"

    def original(self, case: Case) -> Callable[[], Any]:
        shutil.copytree(case.data / "few", case.folder / "few")
        return lambda: _read(case.folder / "few", True)

    def draw(self, case: Case, k: int) -> tuple[str, Callable[[], Any]]:
        import numpy as np

        rng, folder = case.rng, case.folder / str(k) / "few"
        folder.mkdir(parents=True)
        shutil.copy2(case.data / "few" / "data.ctf", folder / "data.ctf")
        data.open_ctf(folder).close()
        (path,) = folder.glob("*.feedline-index")
        content = bytearray(path.read_bytes())
        head = Header(*_HEADER.unpack_from(content))
        entries = np.frombuffer(content, ENTRY, head.sequences, _BYTES)
        table = np.frombuffer(content, CHUNK, head.chunks, _BYTES + head.sequences * ENTRY.itemsize)
        said = []
        for _ in range(rng.choice([1, 2, 6])):
            which, array = rng.choice([("entry", entries), ("chunk", table)])
            at, field = rng.randrange(len(array)), rng.choice([n for n in array.dtype.names if n != "crc"])
            old = int(array[field][at])
            most = np.iinfo(array.dtype[field]).max
            new = rng.choice([0, 1, old + 1, max(old - 1, 0), old * 2, most, most // 2, rng.randrange(most)]) % (
                most + 1
            )
            array[field][at] = new
            said.append(f"{which} {at} {field}: {new}")
        if rng.random() < 0.3:
            field = rng.choice(["flags", "sequences", "samples", "chunks", "lines"])
            new = rng.choice([0, 1, 3, getattr(head, field) + 1, (1 << 32) - 1])
            head = head._replace(**{field: new})
            said.append(f"{field}: {new}")
        at = 0
        for row in table:
            n = int(row["sequences"])
            row["crc"] = _native.crc32c(entries[at : at + n]) if at + n <= len(entries) else 0
            at += n
        content[:_BYTES] = head._replace(table_crc=_native.crc32c(table)).pack()
        path.write_bytes(content)
        shuffle = rng.random() < 0.5
        return "; ".join(said), lambda: _read(folder, shuffle)


def _read(folder: Path, shuffle: bool) -> None:
    for minibatch in fl.MinibatchSource(data.open_ctf(folder), shuffle=shuffle, max_sweeps=1).minibatches(100):
        dict(minibatch.items())
