"""Malicious stores with valid checksums."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import feedline as fl
from feedline import _native
from tests.torture import data, hostile
from tests.torture.case import Case
from tests.torture.hostile import Hostile
from tests.torture.scenarios.damaged_store import used


class HostileStore(Hostile):
    """Reads within the files and in range, or refuses."""

    name = "hostile-store"
    asks = "does a store that was made to do harm crash whoever reads it?"

    def original(self, case: Case) -> Callable[[], Any]:
        return lambda: _read(case.data / "few", True, True)

    def draw(self, case: Case, k: int) -> tuple[str, Callable[[], Any]]:
        rng = case.rng
        folder = case.folder / str(k) / "few"
        shutil.copytree(case.data / "few" / "data.store", folder / "data.store")
        how = self._parts(rng, folder / "data.store") if rng.random() < 0.5 else ""
        if not how or rng.random() < 0.3:
            manifest = folder / "data.store" / "feedline.json"
            changed, said = hostile.tree(rng, json.loads(manifest.read_text()))
            how += f" manifest: {said}"
            if isinstance(changed, dict):
                changed["crc32c"] = "00000000"
            text = (json.dumps(changed) + "\n").encode()
            unset = b'"crc32c": "00000000"'
            manifest.write_bytes(text.replace(unset, b'"crc32c": "%08x"' % _native.crc32c(text), 1))
        verify, shuffle = rng.random() < 0.3, rng.random() < 0.5
        return how, lambda: _read(folder, verify, shuffle)

    def _parts(self, rng: Any, store: Any) -> str:
        """Numbers of a part or of lengths, aligned, replaced by others."""
        file = rng.choice(sorted(store.glob("*.arrow")) + sorted(store.glob("*.npy")))
        content = bytearray(file.read_bytes())
        width = rng.choice(["<i4", "<i8"])
        numbers = np.frombuffer(content, width, len(content) // np.dtype(width).itemsize)
        said = []
        for _ in range(rng.choice([1, 3, 30])):
            at, what = rng.randrange(len(numbers)), rng.choice([-1, 5, 50, 1 << 24, 2**31 - 1, -(2**31), 0])
            if rng.random() < 0.5:
                what = int(np.clip(int(numbers[at]) + rng.choice([-1, 1, 8]), -(2**31), 2**31 - 1))
            numbers[at] = what
            said.append(f"{at}: {what}")
        file.write_bytes(content)
        return f"{file.name} as {width}: {', '.join(said[:5])};"


def _read(folder: Path, verify: bool, shuffle: bool) -> None:
    source = fl.MinibatchSource(data.open_store(folder, verify=verify), shuffle=shuffle, max_sweeps=1)
    for minibatch in source.minibatches(50):
        if set(minibatch) == {"word", "x", "y"} and minibatch["word"].shape == (data.WORDS,):
            used(minibatch)
        for value in minibatch.values():
            value.padded()
