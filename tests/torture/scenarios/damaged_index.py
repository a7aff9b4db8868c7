"""Index files of CTF and tables of joins, changed one region at a time."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import feedline as fl
from tests.torture import data
from tests.torture.case import Case, Refused
from tests.torture.damage import draw
from tests.torture.scenario import Scenario


class DamagedIndex(Scenario):
    """A damaged index is rebuilt, and the data is right. Only damage to one in use may be an error."""

    name = "damaged-index"
    asks = "is a damaged index of CTF, or table of a join, noticed and made again?"

    seconds = 180.0

    def run(self, case: Case) -> None:
        rng = case.rng
        joined = rng.random() < 0.4
        folder, twin = case.folder / "few", case.folder / "other" / "few"
        for place, source in ((folder, "few"), (twin, "twin")):
            place.mkdir(parents=True)
            for name in ("data.ctf", "features.ctf", "labels.ctf"):
                shutil.copy2(case.data / source / name, place / name)
        cache = case.folder / "cache"

        def opened(place: Path, kept: Path) -> fl.Deserializer:
            return data.open_join(place, cache=kept) if joined else data.open_ctf(place)

        options = {"seed": rng.randrange(99), "max_sweeps": 2, "shuffle": rng.random() < 0.7}
        expected = data.in_order(fl.MinibatchSource(opened(folder, cache), **options))
        if wrong := data.check_sweeps(expected, data.FEW):
            case.fail("silent", f"undamaged: {wrong}")
        opened(twin, case.folder / "other" / "cache").close()
        files = [str(p.relative_to(case.folder)) for p in made(case.folder) if "other" not in p.parts[-3:-1]]
        files = [file for file in files if not file.startswith("other/")]
        in_use, in_place = rng.random() < 0.3, rng.random() < 0.5
        source, got = None, []
        if in_use:
            source = fl.MinibatchSource(opened(folder, cache), **options)
            if rng.random() < 0.7:
                got += data.items(source.next_minibatch(20))
        change = draw(rng, case.folder, files)
        what = f"{change}; {'in use, ' if in_use else ''}{'in place' if in_place else ''}"
        _same_names(case.folder, change.file)
        if not change.apply(case.folder, case.folder / "other", in_place):
            return

        def read() -> None:
            for minibatch in (source or fl.MinibatchSource(opened(folder, cache), **options)).minibatches(50):
                got.extend(data.items(minibatch))

        refused = isinstance(case.attempt(what, read), Refused)
        case.compare(what, expected[: len(got)] if refused else expected, got)
        if refused and not in_use and change.kind not in ("folder", "device", "fifo", "loop", "dangling"):
            case.fail("lost", f"{what}: refused, though it can be made again")


def made(folder: Path) -> list[Path]:
    """Files that feedline has written below ``folder``."""
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".ctf"]


def _same_names(folder: Path, file: str) -> None:
    """Give the twin's file the name of ours, for changes that take from it."""
    ours = folder / file
    theirs = [path for path in made(folder / "other") if path.suffix == ours.suffix]
    target = folder / "other" / file
    for path in sorted(theirs, key=lambda p: abs(p.stat().st_size - ours.stat().st_size))[:1]:
        if path != target:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, target)
