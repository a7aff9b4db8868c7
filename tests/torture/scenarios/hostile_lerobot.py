"""Robot datasets with any of their bytes changed: metadata as JSON trees and as bytes, tables as bytes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline as fl
from tests.feed.formats.robot_datasets import write_robot
from tests.torture.case import Case, WrongError
from tests.torture.damage import mutated
from tests.torture.hostile import Hostile, tree

VERSIONS = ("v2.1", "v3.0")
LENGTHS = (7, 4, 9)
WORDS = (b"{episode_index:9d}", b"../", b"NaN", b"1e999", b'"video"', b"[]", b"\xff" * 8, b"\x00" * 8)


class HostileLeRobot(Hostile):
    """Reads as many frames as there are, or refuses."""

    name = "hostile-lerobot"
    asks = "does any change of a robot dataset crash, deliver other frames, or take all memory?"
    memory = 1 << 31

    def prepare(self, case: Case) -> None:
        for version in VERSIONS:
            write_robot(case.folder / version, version, LENGTHS)
            _read(case.folder / version)  # pyarrow's threads reserve addresses

    def original(self, case: Case) -> Callable[[], Any]:
        return lambda: [_read(case.folder / version) for version in VERSIONS]

    def draw(self, case: Case, k: int) -> tuple[str, Callable[[], Any]]:
        rng = case.rng
        version = rng.choice(VERSIONS)
        folder = Path(shutil.copytree(case.folder / version, case.folder / f"changed-{k}"))
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        target = rng.choice([path for path in files if ("meta" in path.parts) == (rng.random() < 0.8)] or files)
        if target.suffix != ".parquet" and rng.random() < 0.7:
            rows = [json.loads(line) for line in target.read_text().splitlines()]
            at = rng.randrange(len(rows))
            rows[at], how = tree(rng, rows[at])
            target.write_text("\n".join(map(json.dumps, rows)), "utf-8", "surrogatepass")
        else:
            twin = rng.choice([path for path in files if path.suffix == target.suffix])
            data, how = mutated(rng, target.read_bytes(), twin.read_bytes(), WORDS)
            target.write_bytes(data)
        return f"{version}/{target.relative_to(folder)}: {how}", lambda: _read(folder)


def _read(folder: Path) -> None:
    """Read windows of all frames."""
    corpus = fl.LeRobotDeserializer(folder)
    corpus.digest()
    within = corpus.episode_lengths
    windows = fl.TimeWindows(corpus, {next(iter(corpus.schema)): (-1, 0)}, within=within)
    source = fl.MinibatchSource(windows, max_sweeps=1, on_error=fl.Quarantine(str(folder / "q.jsonl")))
    minibatches = list(source.minibatches(20))
    frames = sum(m.num_sequences for m in minibatches) + source.stats().skipped
    if frames != sum(LENGTHS):
        raise WrongError(f"{frames} frames, not {sum(LENGTHS)}")
