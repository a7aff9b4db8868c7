"""What does compression bring: all tensors of a ResNet-50 through a `dist_sync` store, 2 processes, bf16 and 2 bits?

Peer: the same store without compression, alternating with ours in the same processes: on loopback, and over links of
1, 2.5 and 10 Gbit/s between two network namespaces (``tc tbf`` on both ends of a veth pair), if the process is root and
iproute2 is installed. Unit: milliseconds a ``pushpull`` of 161 tensors. Measured: wall time of worker 0, torch on one
thread.
"""

from __future__ import annotations

from typing import Any

from benchmarks.harness import Answer, Race, Stage, Target, race
from benchmarks.jobs import answer, link, of_a_resnet, told_by_first

KINDS = {"bf16": {"type": "bf16"}, "2bit": {"type": "2bit", "threshold": 0.5}}
#: Rate, name, and what compression is to bring.
LINKS: tuple[tuple[str, str, dict[str, float]], ...] = (
    ("1gbit", "1 Gbit/s", {"bf16": 1.7, "2bit": 5.0}),
    ("2500mbit", "2.5 Gbit/s", {}),
    ("10gbit", "10 Gbit/s", {}),
)


def run(stage: Stage) -> list[Answer]:
    """Measure on loopback, and over each link."""
    answers = on_link(stage, None, "loopback", {"bf16": 1 / 1.3, "2bit": 1 / 1.3})
    for rate, what, at_least in LINKS:
        with link(rate) as namespaces:
            if namespaces is not None:
                answers += on_link(stage, namespaces, what, at_least)
    return answers


def on_link(stage: Stage, namespaces: list[str] | None, what: str, at_least: dict[str, float]) -> list[Answer]:
    """Race over one link."""
    width, rounds = 8 if stage.quick else 64, stage.rounds(9 if namespaces else 15)
    ran: Race = told_by_first(worker, 2, width, rounds, namespaces=namespaces)
    return [
        answer(
            ran,
            kind,
            "uncompressed",
            f"161 tensors, pushpull by {kind}, {what}",
            Target("ratio", ">=", at_least[kind], "" if namespaces else "1/1.3") if kind in at_least else None,
        )
        for kind in KINDS
    ]


def worker(rank: int, width: int, rounds: int) -> Race:
    """One process: race all kinds, in step with the other."""
    from feedline.kvstore import create

    keys, tensors, outs = of_a_resnet(width)
    stores = {}
    for kind in ("uncompressed", *KINDS):
        store = stores[kind] = create("dist_sync")
        store.init(keys, tensors)
        store.set_gradient_compression(KINDS.get(kind))

    def contender(store: Any) -> Any:
        def one() -> float:
            store.pushpull(keys, tensors, outs)
            return 1

        return one

    ran = race({kind: contender(store) for kind, store in stores.items()}, rounds, clock="wall", warm_up=2)
    for store in stores.values():
        store.close()
    return ran
