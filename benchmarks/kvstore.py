"""What does a store within one process cost: a call, four large values, all tensors of a ResNet-50?

Peer: the same work by torch alone. A call: one ``add_`` of the same tensor of four floats. Four values of 10^6: three
additions, then four copies. 161 tensors for 1, 2 and 4 devices in one `pushpull`, and 1000 tiny ones: one flat
buffer for each device, added up and copied back, and a Python loop over the tensors. Unit: microseconds or milliseconds
a call. Measured: CPU time of the thread, torch on one thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.harness import Answer, Race, Stage, Target, race, spread
from benchmarks.learners import shapes
from feedline import kvstore


def run(stage: Stage) -> list[Answer]:
    """Calls, one large key, many keys."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        answers = [*calls(stage), large(stage)]
        sizes = [math.prod(shape) for shape in shapes(8 if stage.quick else 64)]
        for devices in (1, 2, 4):
            answers += many(stage, sizes, devices)
        answers += many(stage, [100] * 1000, 2)
    finally:
        torch.set_num_threads(threads)
    return answers


def repeated(work: Callable[[], Any], times: int) -> Callable[[], float]:
    """A contender whose unit is a call."""

    def contender() -> float:
        for _ in range(times):
            work()
        return times

    return contender


def answer(ran: Race, peer: str, question: str, unit: str, at_most: float | None = None, text: str = "") -> Answer:
    """Time a call against ``peer``; ``at_most`` bounds ours over theirs, and the ratio is theirs over ours."""
    scale = {"us": 1e6, "ms": 1e3}[unit]
    return Answer(
        question=question,
        unit=unit,
        ours=scale / ran.rate("ours"),
        peer=peer,
        peer_value=scale / ran.rate(peer),
        ratio=ran.ratio("ours", peer),
        target=None if at_most is None else Target("ratio", ">=", 1 / at_most, text),
        spread=ran.spread("ours"),
        detail={
            unit: {name: [scale / rate for rate in ran.rates(name)] for name in ("ours", peer)},
            "ratio_spread": spread(ran.ratios("ours", peer)),
        },
    )


def calls(stage: Stage) -> list[Answer]:
    """Push, pull and pushpull of four floats."""
    store = kvstore.create("local")
    value, out, other = torch.ones(4), torch.ones(4), torch.ones(4)
    store.init(3, value)
    answers = []
    for name, work, limit in (
        ("push", lambda: store.push(3, value), 6),
        ("pull", lambda: store.pull(3, out), 6),
        ("pushpull", lambda: store.pushpull(3, value, out), 10),
    ):
        times = stage.size(20_000, 200)
        contenders = {"ours": repeated(work, times), "add_": repeated(lambda: other.add_(value), times)}
        ran = race(contenders, stage.rounds(15))
        answers.append(answer(ran, "add_", f"{name} of 4 floats", "us", limit, f"1/{limit}"))
    return answers


def large(stage: Stage) -> Answer:
    """Four values of 10^6 floats pushed, and pulled to four."""
    n = stage.size(1_000_000, 10_000)
    values, outs = ([torch.randn(n) for _ in range(4)] for _ in range(2))
    store, total = kvstore.create("local"), torch.empty(n)
    store.init(3, total)

    def ours() -> None:
        store.push(3, values)
        store.pull(3, outs)

    def theirs() -> None:
        torch.add(values[0], values[1], out=total)
        total.add_(values[2])
        total.add_(values[3])
        for out in outs:
            out.copy_(total)

    ran = race({"ours": repeated(ours, 20), "sum, 4 copies": repeated(theirs, 20)}, stage.rounds(15))
    return answer(ran, "sum, 4 copies", f"push 4 values of {n:,} floats, pull to 4", "ms", 1.3, "1/1.3")


def many(stage: Stage, sizes: list[int], devices: int) -> list[Answer]:
    """Tensors of these sizes in one pushpull."""
    values, outs = ([[torch.randn(n) for _ in range(devices)] for n in sizes] for _ in range(2))
    store, keys = kvstore.create("local"), list(range(len(sizes)))
    store.init(keys, [value[0] for value in values])
    totals = [torch.empty(n) for n in sizes]
    flat_values, flat_outs = ([torch.randn(sum(sizes)) for _ in range(devices)] for _ in range(2))
    flat_total = torch.empty(sum(sizes))

    def one(given: list[Any], total: Any, to: list[Any]) -> None:
        if devices == 1:
            total.copy_(given[0])
        else:
            torch.add(given[0], given[1], out=total)
        for value in given[2:]:
            total.add_(value)
        for out in to:
            out.copy_(total)

    def loop() -> None:
        for given, total, to in zip(values, totals, outs, strict=True):
            one(given, total, to)

    contenders = {
        "ours": repeated(lambda: store.pushpull(keys, values, outs), 1),
        "flat buffers": repeated(lambda: one(flat_values, flat_total, flat_outs), 1),
        "loop": repeated(loop, 1),
    }
    ran = race(contenders, stage.rounds(15), warm_up=2)
    what = f"pushpull of {len(sizes)} tensors, {sum(sizes) / 1e6:.1f} M floats, {devices} device{'s' * (devices > 1)}"
    beside_loop = f"{what}, beside a loop"
    if max(sizes) < 1000:
        return [answer(ran, "loop", beside_loop, "ms")]
    return [answer(ran, "flat buffers", what, "ms", 1.3, "1/1.3"), answer(ran, "loop", beside_loop, "ms", 0.5, "2")]
