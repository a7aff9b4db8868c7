"""The law of resuming, with real kills: a loop killed anywhere delivers the same as an uninterrupted one.

The loop saves the state after every batch, in one atomic step with the delivered items. Each start after a kill uses
another number of workers and another batch size. FEEDLINE_KILLS sets how often the loop is killed (2). `make torture`
kills hundreds of loops and their workers.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import feedline as fl
from tests.warm import Python

torch = pytest.importorskip("torch", reason="torch is not installed")

SAMPLES, SWEEPS = 150, 2
KILLS = int(os.environ.get("FEEDLINE_KILLS", "2"))
WORKERS = ({}, {"num_workers": 1}, {"num_workers": 2}, {"num_workers": 2, "workers": "thread"})


class Augmented(torch.utils.data.Dataset):
    """Sample ``i`` is ``i`` and three random numbers, one of each global generator."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index):
        import numpy as np

        time.sleep(0.001)
        return index, float(torch.rand(())), float(np.random.random()), random.random()


def make_loader(batch_size: int, **options):
    """Create the loader of one run. Runs differ only in batch size and options."""
    return fl.DataLoader(Augmented(), batch_size=batch_size, shuffle=True, seed=11, collate_fn=list, **options)


def train(path: Path, options: dict[str, object]) -> None:
    """Run the loop from the state in ``path`` to the end of the last sweep."""
    loader = make_loader(**options)
    delivered = []
    if path.exists():
        saved = json.loads(path.read_text())
        delivered = saved["delivered"]
        loader.load_state_dict(saved["state"])
    while len(delivered) < SAMPLES * SWEEPS:
        for batch in loader:
            delivered += batch
            new = path.with_suffix(".new")
            new.write_text(json.dumps({"delivered": delivered, "state": loader.state_dict()}))
            os.replace(new, path)


def delivered_by(path: Path) -> list[list[float]]:
    """Return every sample that the loop has received so far."""
    return json.loads(path.read_text())["delivered"] if path.exists() else []


@pytest.mark.slow
def test_killed_anywhere_the_samples_are_the_same(tmp_path):
    expected = [list(sample) for sample in never_stopped()]
    rng = random.Random(1)
    path = tmp_path / "state.json"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    kills = 0
    while len(delivered_by(path)) < len(expected):
        options = {"batch_size": rng.choice([1, 3, 4, 7, 16]), **rng.choice(WORKERS)}
        command = ["-m", "tests.laws.test_loader_killed", str(path), json.dumps(options)]
        process = Python(command, env=environment, stderr=subprocess.PIPE, text=True)
        if kills < KILLS:
            # A kill before the first batch would test nothing.
            before = len(delivered_by(path))
            while process.poll() is None and len(delivered_by(path)) == before:
                time.sleep(0.002)
            time.sleep(rng.random() * 0.08)
            process.send_signal(signal.SIGKILL)
            kills += 1
        _, errors = process.communicate(timeout=60)
        assert process.returncode in (0, -signal.SIGKILL), errors
        assert delivered_by(path) == expected[: len(delivered_by(path))]
    assert kills == KILLS
    assert delivered_by(path) == expected


def never_stopped() -> list[tuple[float, ...]]:
    """Return the samples of one loop in this process."""
    loader = make_loader(5)
    return [sample for _ in range(SWEEPS) for batch in loader for sample in batch]


if __name__ == "__main__":
    # Imported by its name, so that workers find the dataset's class.
    from tests.laws import test_loader_killed

    test_loader_killed.train(Path(sys.argv[1]), json.loads(sys.argv[2]))
