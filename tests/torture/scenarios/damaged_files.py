"""Text, Parquet and NumPy's files that change before they are read, or while a source has them open or mapped."""

from __future__ import annotations

import shutil
from pathlib import Path

import feedline as fl
from tests.torture import data
from tests.torture.case import Case, Refused
from tests.torture.damage import draw
from tests.torture.scenario import Scenario

FILES = {
    "ctf": ("data.ctf",),
    "parquet": ("data.parquet",),
    "npz": ("data.npz",),
    "npy": ("arrays/x.npy", "arrays/y.npy"),
    "join": ("features.ctf", "labels.ctf"),
    "tar": ("features.ctf", "data.tar"),
    "mds": ("features.ctf", *(f"data.mds/{name}" for name in ("index.json", "shard.00000.mds", "shard.00001.mds"))),
    "litdata": tuple(f"data.litdata/{name}" for name in ("index.json", "chunk-0-0.bin", "chunk-0-1.bin")),
    "hdf5": ("data.h5",),
}


class DamagedFiles(Scenario):
    """These formats have no full checksums: content may differ, but without crash, hang or foreign error."""

    name = "damaged-files"
    asks = "does a file of data that changes, even under its reader, end in words?"
    seconds = 180.0

    def run(self, case: Case) -> None:
        rng = case.rng
        kind = list(FILES)[case.number % len(FILES)]
        folder = case.folder / "few"
        for file in FILES[kind]:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(case.data / "few" / file, folder / file)
        options = {"seed": rng.randrange(99), "max_sweeps": 2, "shuffle": rng.random() < 0.7}
        if rng.random() < 0.5 and kind in ("ctf", "join", "tar", "mds"):
            _opened(kind, folder)  # so that there is an index already
        in_use, in_place = rng.random() < 0.6, rng.random() < 0.7
        source, seen = None, 0
        if in_use:
            source = fl.MinibatchSource(_opened(kind, folder), **options, **data.speed(rng))
            for _ in range(rng.randint(0, 3)):
                seen += source.next_minibatch(10).num_sequences
        change = draw(rng, folder, FILES[kind])
        what = f"{change}; {'in use, ' if in_use else ''}{'in place' if in_place else ''}"
        if not change.apply(folder, case.data / "twin", in_place):
            return

        def read() -> None:
            for minibatch in (source or fl.MinibatchSource(_opened(kind, folder), **options)).minibatches(30):
                for value in minibatch.values():
                    value.padded()
                    value.torch()

        if isinstance(case.attempt(what, read), Refused) and in_use:
            # The next one is refused or right as well, and does not crash either.
            case.attempt(f"{what}, once more", read)


def _opened(kind: str, folder: Path) -> fl.Deserializer:
    if kind == "npz":
        return fl.open_corpus(folder / "data.npz")
    if kind == "npy":
        return fl.open_corpus(folder / "arrays")
    return data.FORMATS[kind](folder)
