"""Runs trainings of `programs` on several ranks and gives back what each was fed."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from tests import warm
from tests.ranks import free_port

FRAMEWORKS = ("tests.frameworks.vision", "accelerate", "pytorch_lightning", "transformers.trainer")
SECONDS = 170.0
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")

Training = tuple[str, dict[str, Any]]


def run(world: int, trainings: list[Training], patched: bool = False) -> list[list[dict[str, Any]]]:
    """Return the samples that each training fed to each rank: ``fed``, ``said`` and its facts.

    Args:
        world: number of ranks. Each runs all trainings in one process, one after the other.
        trainings: functions of `programs`, and their options.
        patched: whether feedline's loader takes the place of torch's.

    Raises:
        RuntimeError: a training failed.
    """
    if not trainings:
        return []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "job.json")
        file.write_text(json.dumps({"folder": folder, "trainings": trainings}))
        port = str(free_port())
        imported = ("tests.frameworks.patched", *FRAMEWORKS) if patched else FRAMEWORKS
        ranks = []
        for rank in range(world):
            env = {name: value for name, value in os.environ.items() if name not in VARIABLES}
            env |= {
                "ACCELERATE_USE_CPU": "true",
                "OMP_NUM_THREADS": "1",
                "TOKENIZERS_PARALLELISM": "false",
                "HF_HUB_OFFLINE": "1",
            }
            if world > 1:
                env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "none"}
                env |= dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
                env |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(world))
            with Path(folder, f"printed-{rank}").open("w") as printed:
                ranks.append(
                    warm.Python(
                        ["-m", "tests.frameworks.program", str(file)],
                        imported=imported,
                        env=env,
                        stdout=printed,
                        stderr=subprocess.STDOUT,
                    )
                )
        _wait(ranks, folder)
        told = [json.loads(Path(folder, f"rank-{rank}.json").read_text()) for rank in range(world)]
    return [list(each) for each in zip(*told, strict=True)]


def _wait(ranks: list[Any], folder: str) -> None:
    """Wait for all ranks. One that fails ends the others."""
    until = time.monotonic() + SECONDS
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < until:
        if any(rank.poll() for rank in ranks):
            break
        time.sleep(0.02)
    late = [number for number, rank in enumerate(ranks) if rank.poll() is None]
    for rank in ranks:
        rank.kill()
        rank.wait()
    failed = [number for number, rank in enumerate(ranks) if rank.returncode and number not in late]
    if failed or late:
        number = (failed or late)[0]
        said = Path(folder, f"rank-{number}.json")
        errors = [told["error"] for told in json.loads(said.read_text()) if "error" in told] if said.exists() else []
        printed = Path(folder, f"printed-{number}").read_text()[-3000:]
        how = f"ended with {ranks[number].returncode}" if failed else "did not end"
        raise RuntimeError("\n".join([f"rank {number} {how}", *(errors or [printed])]))
