"""Every region of every file of a store, changed one at a time, before it is opened or while it is in use."""

from __future__ import annotations

import shutil

import numpy as np

import feedline as fl
from tests.torture import data
from tests.torture.case import Case, Refused, WrongError
from tests.torture.damage import draw
from tests.torture.scenario import Scenario


class DamagedStore(Scenario):
    """The right data or a `FeedlineError`. Without checksums, at least indices in range and no crash."""

    name = "damaged-store"
    asks = "is a damaged store refused, or read right, also while it is mapped?"

    seconds = 180.0

    def run(self, case: Case) -> None:
        rng = case.rng
        folder = case.folder / "few"
        folder.mkdir()
        shutil.copytree(case.data / "few" / "data.store", folder / "data.store")
        files = [str(p.relative_to(folder)) for p in (folder / "data.store").iterdir()]
        options = {"seed": rng.randrange(99), "max_sweeps": 2, "shuffle": rng.random() < 0.7}
        expected = data.in_order(fl.MinibatchSource(data.open_store(folder), **options))
        verify, in_use, in_place = rng.random() < 0.6, rng.random() < 0.4, rng.random() < 0.6
        source, got = None, []
        if in_use:
            source = fl.MinibatchSource(data.open_store(folder, verify=verify), **options)
            got += data.items(source.next_minibatch(rng.choice([1, 40])))
        change = draw(rng, folder, files)
        what = f"{change}; {'in use, ' if in_use else ''}{'in place, ' if in_place else ''}verify={verify}"
        if not change.apply(folder, case.data / "twin", in_place):
            return

        def read() -> None:
            opened = source or fl.MinibatchSource(data.open_store(folder, verify=verify), **options)
            while minibatch := opened.next_minibatch(30):
                used(minibatch)
                got.extend(data.items(minibatch))

        if isinstance(case.attempt(what, read), Refused):
            case.compare(f"{what}, up to the error", *_content_only(expected[: len(got)], got, verify and not in_use))
        elif "another" in what and change.file.endswith("feedline.json"):
            return  # a valid manifest of a store with the same sizes, which only checksums can detect
        else:
            # What is mapped has been checked already: later changes of it are other data, as in memory.
            case.compare(what, *_content_only(expected, got, verify and not in_use))


def used(minibatch: fl.Minibatch) -> None:
    """Use the data as training does, trusting its indices."""
    for name, classes in (("word", data.WORDS), ("y", data.CLASSES)):
        value = minibatch[name]
        if not (np.asarray(value.indices) < classes).all() or not (np.asarray(value.indices) >= 0).all():
            raise WrongError(f"indices of `{name}` out of range: {value.indices.min()} to {value.indices.max()}")
        value.dense().rows.sum()
        value.torch()


def _content_only(
    expected: list[data.Item], got: list[data.Item], content: bool
) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    """Both, with contents only where they are promised."""
    if content:
        return list(expected), list(got)
    return [(i,) for i, _ in expected], [(i,) for i, _ in got]
