"""How long does a table of a network take, compared with torchinfo's?

Peer: `torchinfo.summary`, which runs the model on zeros. Limit: 2x its time. Unit: milliseconds of CPU time of the
thread. Measured: tables of a ResNet-18 and a ViT-B/16 for one picture of 224 x 224, of an LSTM and an nn.Transformer
for ten steps, models made before, one thread. Both the first table of a process, with all imports but torch's, compiled
before as in installed packages, and later ones.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from tests.graph import known_networks
from torch import nn

import feedline as fl
from benchmarks.harness import Answer, Stage, Target, race, spread


class Network(NamedTuple):
    """A network, as an expression, and the shapes of its inputs."""

    name: str
    make: str
    shapes: Any


NETWORKS = (
    Network("ResNet-18", "known_networks.resnet18()", (1, 3, 224, 224)),
    Network("ViT-B/16", "known_networks.vit_b_16()", (1, 3, 224, 224)),
    Network("an LSTM", "nn.LSTM(64, 128, 2, bidirectional=True)", (10, 1, 64)),
    Network("nn.Transformer", "nn.Transformer(512, 8, 6, 6, 2048, batch_first=True)", [(1, 10, 512), (1, 12, 512)]),
)


def run(stage: Stage) -> list[Answer]:
    """One answer a network."""
    import torchinfo

    torch.set_num_threads(1)
    answers = []
    for network in NETWORKS:
        answers.append(_first(stage, network))
        model = eval(network.make, {"known_networks": known_networks, "nn": nn})

        def theirs(model: Any = model, shapes: Any = network.shapes) -> Any:
            return str(torchinfo.summary(model, input_size=shapes, verbose=0))

        def ours(model: Any = model, shapes: Any = network.shapes) -> Any:
            return str(fl.summary(model, shapes))

        ran = race({"ours": _once(ours), "theirs": _once(theirs)}, stage.rounds(9))
        took = {who: [each.seconds * 1e3 for each in ran.rounds[who]] for who in ("ours", "theirs")}
        answers.append(
            Answer(
                question=f"a table of {network.name}",
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


# The program of a fresh process, which prints the milliseconds.
_PROGRAM = """
import time, torch
from torch import nn
from tests.graph import known_networks
torch.set_num_threads(1)
model = {make}
begin = time.thread_time()
{table}
print((time.thread_time() - begin) * 1e3)
"""
_TABLES = {
    "ours": "import feedline as fl; str(fl.summary(model, {shapes}))",
    "theirs": "import torchinfo; str(torchinfo.summary(model, input_size={shapes}, verbose=0))",
}


def _first(stage: Stage, network: Network) -> Answer:
    """How long does the first table of a process take?"""
    took: dict[str, list[float]] = {who: [] for who in _TABLES}
    compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for n in range(1 + stage.rounds(5)):
        for who, table in _TABLES.items():
            program = _PROGRAM.format(make=network.make, table=table.format(shapes=network.shapes))
            command = [sys.executable, "-c", program]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=compiled)
            if n:  # the one before compiles the modules
                took[who].append(float(done.stdout))
    ours, theirs = (statistics.median(took[who]) for who in ("ours", "theirs"))
    return Answer(
        question=f"the first table of a process, {network.name}",
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
