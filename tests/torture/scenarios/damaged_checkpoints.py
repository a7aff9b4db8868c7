"""Every region of every file of a checkpoint, changed one at a time, and checkpoints mixed with each other."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.torture import training
from tests.torture.case import Case, Refused
from tests.torture.damage import Change, draw
from tests.torture.scenario import Scenario


class DamagedCheckpoints(Scenario):
    """Damaged checkpoints are skipped with a warning. The run ends like an uninterrupted one."""

    name = "damaged-checkpoints"
    asks = "is a damaged checkpoint passed over, and never believed?"
    seconds = 180.0

    def run(self, case: Case) -> None:
        rng, folder = case.rng, case.folder
        shutil.copytree(case.data / "run", folder / "run")
        shutil.copytree(case.data / "run-twin", folder / "twin")
        expected = training.reference(case.data)
        if rng.random() < 0.1:
            self._best(case)
            return
        checkpoints = sorted((folder / "run" / "checkpoints").glob("checkpoint-*"))
        everything = rng.random() < 0.15
        said = []
        for path in checkpoints if everything else checkpoints[-1:]:
            change = self._draw(case, path)
            if self._apply(change, folder, path, checkpoints):
                said.append(f"{path.name}/{change}")
        if not said or (everything and len(said) < len(checkpoints)):
            return
        what = "; ".join(said)
        newest = int(checkpoints[-1].name.split("-")[2])
        with training.Heard() as heard:
            got = case.attempt(what, lambda: training.train(folder / "run", case.data / "few"))
        if isinstance(got, Refused):
            if not everything:
                case.fail("lost", f"{what}: the run does not start: {got.error!r:.300}")
            return
        if wrong := training.differs(expected, got):
            case.fail("silent", f"{what}: began at {got['began']} of {newest}; other {wrong}")
        elif everything:
            case.fail("silent", f"{what}: all checkpoints are damaged, and the run began at {got['began']}")
        elif got["began"] != newest and not any(checkpoints[-1].name in told for told in heard.told):
            case.fail("silent", f"{what}: passed over without a warning; began at {got['began']}, told {heard.told}")

    def _best(self, case: Case) -> None:
        """The best model kept, which is alone in its folder."""
        place = case.folder / "run" / "best"
        (path,) = place.glob("checkpoint-*")
        expected = self._kept(place)
        change = draw(case.rng, path, [file.name for file in path.iterdir()])
        twins = sorted((case.folder / "twin" / "best").glob("checkpoint-*"))
        if change.apply(path, twins[0] if twins else None):
            found = case.attempt(f"{path.name}/{change}, the best model", lambda: self._kept(place))
            if not isinstance(found, Refused) and found != expected:
                case.fail("silent", f"{path.name}/{change}: another best model, of {found[0]} instead of {expected[0]}")

    def _kept(self, place: Path) -> tuple[float, str]:
        from feedline.train.controllers import KeepBest

        model = training.Model()
        value = KeepBest(place).restore(model)
        return value, training.print_of(model)

    def _draw(self, case: Case, path: Path) -> Change:
        files = [file.name for file in path.iterdir()]
        if case.rng.random() < 0.15:
            return Change("", case.rng.choice(("gone", "empty", "dangling", "file")), 0, 0, 0)
        return draw(case.rng, path, files)

    def _apply(self, change: Change, folder: Path, path: Path, checkpoints: list[Path]) -> bool:
        if change.file:
            # What is swapped comes from another run at the same place, or from the checkpoint before.
            twin = folder / "twin" / "checkpoints" / path.name
            other = twin if change.luck % 2 and twin.is_dir() else checkpoints[checkpoints.index(path) - 1]
            return change.apply(path, other)
        shutil.rmtree(path)
        if change.kind == "empty":
            path.mkdir()
        elif change.kind == "dangling":
            path.symlink_to("/nonexistent")
        elif change.kind == "file":
            path.write_text("x")
        # A missing one is not damage, as nothing can be detected.
        return change.kind != "gone"
