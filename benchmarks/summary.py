"""How long does a table of a network take, compared with torchinfo's?

Peer: `torchinfo.summary`, which runs the model on zeros. Limit: 2x its time. Unit: milliseconds of CPU time of the
thread. Measured: tables of a ResNet-18 and a ViT-B/16 for one picture of 224 x 224, models made before, one thread. The
first table of a process does not count: it takes a second more, as torch then imports its compiler.
"""

from __future__ import annotations

import statistics
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


def _once(make: Callable[[], Any]) -> Callable[[], float]:
    def made() -> float:
        make()
        return 1.0

    return made
