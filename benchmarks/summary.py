"""How long does a table of a network take, compared with torchinfo's?

Peer: `torchinfo.summary`, which runs the model on zeros. Limit: 2x its time. Unit: milliseconds of CPU time of the
thread. Measured: tables of a ResNet-18 and a ViT-B/16 for one picture of 224 x 224, models made before, one thread;
the first one of a process, with all imports but torch's, and later ones.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
from tests.graph.known_networks import resnet18, vit_b_16

import feedline as fl
from benchmarks.harness import Answer, Stage, Target, race, spread

SHAPE = (1, 3, 224, 224)


def run(stage: Stage) -> list[Answer]:
    """One answer a network."""
    import torchinfo

    torch.set_num_threads(1)
    answers = []
    for name, make in (("ResNet-18", resnet18), ("ViT-B/16", vit_b_16)):
        answers.append(_first(stage, name, make.__name__))
        model = make()

        def theirs(model: Any = model) -> Any:
            return str(torchinfo.summary(model, input_size=SHAPE, verbose=0))

        def ours(model: Any = model) -> Any:
            return str(fl.summary(model, SHAPE))

        ran = race({"ours": _once(ours), "theirs": _once(theirs)}, stage.rounds(9))
        took = {who: [each.seconds * 1e3 for each in ran.rounds[who]] for who in ("ours", "theirs")}
        answers.append(
            Answer(
                question=f"a table of {name}",
                unit="ms",
                ours=statistics.median(took["ours"]),
                peer="torchinfo",
                peer_value=statistics.median(took["theirs"]),
                ratio=ran.ratio("ours", "theirs"),
                target=Target("ratio", ">=", 0.5),
                spread=spread(took["ours"]),
                detail={"ms": took},
            )
        )
    return answers


# What a fresh process does; says the milliseconds.
_PROGRAM = """
import time, torch
from tests.graph.known_networks import {make}
torch.set_num_threads(1)
model = {make}()
begin = time.thread_time()
{table}
print((time.thread_time() - begin) * 1e3)
"""
_TABLES = {
    "ours": f"import feedline as fl; str(fl.summary(model, {SHAPE}))",
    "theirs": f"import torchinfo; str(torchinfo.summary(model, input_size={SHAPE}, verbose=0))",
}


def _first(stage: Stage, name: str, make: str) -> Answer:
    """How long does the first table of a process take?"""
    took: dict[str, list[float]] = {who: [] for who in _TABLES}
    for _ in range(stage.rounds(5)):
        for who, table in _TABLES.items():
            program = _PROGRAM.format(make=make, table=table)
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
            took[who].append(float(done.stdout))
    ours, theirs = (statistics.median(took[who]) for who in ("ours", "theirs"))
    return Answer(
        question=f"the first table of a process, {name}",
        unit="ms",
        ours=ours,
        peer="torchinfo",
        peer_value=theirs,
        ratio=theirs / ours,
        target=Target("ratio", ">=", 0.5),
        spread=spread(took["ours"]),
        detail={"ms": took},
    )


def _once(make: Callable[[], Any]) -> Callable[[], float]:
    def made() -> float:
        make()
        return 1.0

    return made
