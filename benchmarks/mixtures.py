"""How far does a mixture stray from its weights, and what does it cost?

Limit: Tijdeman's bound 1 - 1/(2K - 2), which no schedule of K sources betters for all weights. Unit: sequences, the
largest |count - n * weight| over all prefixes of a period and all sources. Measured: in whole numbers, for 3,000 random
vectors of weights of 1 to 100 sources. Peers: the rules of other libraries, a few lines each, over eight vectors of 2
to 200 sources, even and skewed, and Grain's and `datasets`' own code for a sample where they are installed. Feedline
has two rows: sources taking turns (`block=1`), for which the bound holds at every place, and shuffled in blocks
of 256, as by default, where it holds at their borders.

Also: the time of arithmetic at place 10^15 in a mixture of 10 sources with stages (limit 10 us a call, 10 ms to build a
period of 65,536 places), of planning (limit 100 ns a sequence; arrays of 1,000,000 rows), and rows a second of a
mixture of 10 arrays, 784 floats, in minibatches of 256, by CPU time of all threads. Peers: one array of all rows, and
`fl.Concat` of the ten.
"""

from __future__ import annotations

import importlib.util
import itertools
import random
import statistics
import time
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

import feedline as fl
from benchmarks.harness import Answer, Stage, Target, compare, race, spread
from feedline import _native
from feedline.feed.composed.mixture_stages import Declared, Stages
from feedline.feed.composed.schedule import PeriodicSchedule
from feedline.feed.composed.weights import quotas_of

Sources = NDArray[np.int64]

FAR = 10**15
PARTS, WIDTH, BATCH = 10, 784, 256
#: Sources, places in a period, whether weights are skewed.
WORLDS = (
    (2, 1000, False),
    (3, 2000, False),
    (10, 4000, False),
    (10, 4000, True),
    (50, 8000, False),
    (50, 8000, True),
    (200, 8000, False),
    (200, 8000, True),
)


def run(stage: Stage) -> list[Answer]:
    """Deviation, arithmetic, planning, delivery."""
    return [bound(stage), *beside_others(stage), *far_away(stage), built(stage), planned(stage), *delivered(stage)]


# ---- deviation ------------------------------------------------------------------------------------------


def deviations(quotas: list[int], sources: Sources) -> NDArray[np.int64]:
    """Return the largest |count * D - n * quota| over all prefixes, for each source: whole numbers."""
    total = sum(quotas)
    n = np.arange(1, len(sources) + 1, dtype=np.int64)
    worst = [np.abs(np.cumsum(sources == k) * total - n * q).max() for k, q in enumerate(quotas)]
    return np.array(worst, np.int64)


def even(quotas: list[int]) -> Sources:
    """Return the source of each place of a period."""
    return _native.mixture_schedule(np.array(quotas, np.int64))[0].astype(np.int64)


def bound(stage: Stage) -> Answer:
    """The bound, over random weights."""
    rng, met, used = random.Random(0), 0, []
    vectors = 100 if stage.quick else 3000
    for _ in range(vectors):
        count = rng.choice([1, 2, 3, 4, 5, 7, 10, 30, 100])
        total = rng.randint(count, 2000)
        cuts = [0, *sorted(rng.sample(range(1, total), count - 1)), total]
        quotas = [b - a for a, b in itertools.pairwise(cuts)]
        worst = int(deviations(quotas, even(quotas)).max())
        limit = Fraction(2 * count - 3, 2 * count - 2) * total if count > 1 else Fraction(0)
        met += worst <= limit
        used.append(worst / total)
    return Answer(
        question=f"weight vectors within the bound at every prefix, of {vectors:,}",
        unit="vectors",
        ours=met,
        target=Target("ours", ">=", vectors, f"{vectors:,}"),
        note=f"1 to 100 sources; largest deviation {max(used):.4f} sequences",
    )


def megatron(quotas: list[int], _: int) -> Sources:
    """Choose the source that lags max(n, 1) times its weight the most."""
    return _greedy(quotas, lambda n: max(n, 1))


def ahead(quotas: list[int], _: int) -> Sources:
    """Choose the source that would lag the most after this place."""
    return _greedy(quotas, lambda n: n + 1)


def _greedy(quotas: list[int], wanted: Callable[[int], int]) -> Sources:
    total = sum(quotas)
    weights = np.array(quotas) / total
    counts, out = np.zeros(len(quotas)), np.empty(total, np.int64)
    for n in range(total):
        out[n] = k = int((weights * wanted(n) - counts).argmax())
        counts[k] += 1
    return out


def grain(quotas: list[int], _: int) -> Sources:
    """Source by source, a share of what those before it have left, rounded down each time."""

    def of(n: int) -> int:
        left, a, b = sum(quotas), n, n + 1
        for k, quota in enumerate(quotas):
            rest_a, rest_b = a * (left - quota) // left, b * (left - quota) // left
            if b - rest_b > a - rest_a:
                return k
            left, a, b = left - quota, rest_a, rest_b
        raise AssertionError("every place has a source")

    return np.array([of(n) for n in range(sum(quotas))])


def drawn(quotas: list[int], seed: int) -> Sources:
    """An independent draw for every place: `datasets`, LitData, torchdata."""
    weights = np.array(quotas) / sum(quotas)
    return np.random.default_rng(seed).choice(len(quotas), sum(quotas), p=weights)


def shuffled(quotas: list[int], seed: int) -> Sources:
    """Quotas of the whole, shuffled: Streaming, OLMo-core."""
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(quotas)), quotas))


def in_blocks(quotas: list[int], seed: int) -> Sources:
    """Feedline's default."""
    schedule = PeriodicSchedule(tuple(quotas))
    return schedule.items(0, schedule.period, seed=seed, stage=0, block=256, length=None)[0].astype(np.int64)


RULES: dict[str, Callable[[list[int], int], Sources]] = {
    "feedline, blocks of 256": in_blocks,
    "Megatron-LM's rule": megatron,
    "the same, one place ahead": ahead,
    "Grain's rule": grain,
    "independent draws": drawn,
    "shuffled quotas": shuffled,
}


def beside_others(stage: Stage) -> list[Answer]:
    """Print the largest deviation of each rule, and of the installed libraries."""
    found: dict[str, list[float]] = {name: [] for name in ("feedline, taking turns", *RULES)}
    names = []
    for count, places, skewed in WORLDS[: 4 if stage.quick else None]:
        rng = np.random.default_rng(count * 10 + skewed)
        raw = rng.dirichlet(np.full(count, 0.2 if skewed else 5.0))
        quotas = _rounded(raw, places)
        names.append(f"{count}{' skewed' if skewed else ''}")
        found["feedline, taking turns"].append(int(deviations(quotas, even(quotas)).max()) / places)
        for name, rule in RULES.items():
            found[name].append(int(deviations(quotas, rule(quotas, 1)).max()) / places)
    ours = max(found["feedline, taking turns"])
    table = {name: dict(zip(names, map(_short, row), strict=True)) for name, row in found.items()}
    answers = [
        Answer(
            question=f"largest deviation, {len(names)} mixtures",
            unit="sequences",
            ours=ours,
            peer=name,
            peer_value=max(row),
            ratio=max(row) / ours,
            note=", ".join(f"{world} sources {value:g}" for world, value in table[name].items()),
            detail={"deviation": table[name], "feedline": table["feedline, taking turns"]},
        )
        for name, row in found.items()
        if name in RULES
    ]
    return [*answers, *installed(stage)]


def _rounded(weights: NDArray[np.float64], places: int) -> list[int]:
    """Return quotas of about these weights, at least 1 each."""
    quotas = np.maximum(1, np.floor(weights * places)).astype(np.int64)
    quotas[quotas.argmax()] += places - quotas.sum()
    return [int(quota) for quota in quotas]


def _short(value: float) -> float:
    return round(value, 3)


def installed(stage: Stage) -> list[Answer]:
    """Peers' own code, over 10 sources of skewed weights."""
    quotas = _rounded(np.random.default_rng(101).dirichlet(np.full(10, 0.2)), 4000)
    places = 500 if stage.quick else 4000
    ours = int(deviations(quotas, even(quotas)[:places]).max()) / 4000
    answers = []
    for name, package, mix in (
        ("Grain itself", "grain", grain_itself),
        ("datasets itself", "datasets", datasets_itself),
    ):
        if importlib.util.find_spec(package) is None:
            continue
        sources = mix(quotas, places)
        theirs = int(deviations(quotas, sources).max()) / 4000
        answers.append(
            Answer(
                question=f"largest deviation, 10 skewed sources, {places:,} places",
                unit="sequences",
                ours=ours,
                peer=name,
                peer_value=theirs,
                ratio=theirs / ours,
            )
        )
    return answers


def grain_itself(quotas: list[int], places: int) -> Sources:
    """The first places of `MapDataset.mix`."""
    import grain

    parts = [grain.MapDataset.source([k]).repeat(places) for k in range(len(quotas))]
    mixed = grain.MapDataset.mix(parts, weights=[quota / sum(quotas) for quota in quotas])
    return np.array([mixed[n] for n in range(places)])


def datasets_itself(quotas: list[int], places: int) -> Sources:
    """The first places of `interleave_datasets`."""
    import datasets

    parts = [datasets.Dataset.from_dict({"source": [k] * places}) for k in range(len(quotas))]
    weights = [quota / sum(quotas) for quota in quotas]
    mixed = datasets.interleave_datasets(parts, probabilities=weights, seed=1)
    return np.array(mixed["source"][:places])


# ---- time -----------------------------------------------------------------------------------------------


def staged() -> Stages:
    """Ten sources under two vectors of weights with a common period of 65,536 places."""
    rng = np.random.default_rng(3)
    vectors = [tuple(Fraction(str(w)) for w in rng.dirichlet(np.ones(PARTS)).round(9) + 1e-6) for _ in range(2)]
    declared = [Declared(0, vectors[0]), Declared(10**9, vectors[1])]
    return Stages(declared, [None] * PARTS, dropping=False, seed=7, block=256)


def far_away(stage: Stage) -> list[Answer]:
    """Arithmetic at place 10^15."""
    stages, calls = staged(), 50 if stage.quick else 3000
    given = [stages.counts(FAR)[k] for k in range(PARTS)]
    # The counted entries are the existing ones.
    last = stages.at(FAR)
    block = stages.block_of(last, 3, given[3])
    assert block is not None
    a, b = stages.block_bounds(last, block)
    assert [3, given[3]] in np.stack(stages.items(a, b - a), axis=1).tolist()
    questions: dict[str, Callable[[int], object]] = {
        "item at place 10^15": lambda i: stages.items(FAR + 977 * i, 1),
        "counts before place 10^15": lambda i: stages.counts(FAR + 977 * i),
        "block of an item near 10^15": lambda i: stages.block_of(last, i % PARTS, given[i % PARTS] + i),
    }
    answers = []
    for question, ask in questions.items():
        each = _microseconds(stage, calls, ask)
        answers.append(
            Answer(
                question=question,
                unit="us",
                ours=statistics.median(each),
                target=Target("ours", "<=", 10, "10 us"),
                spread=spread(each),
                note="called from Python; 10 sources, two stages, blocks of 256",
                detail={"us": each},
            )
        )
    return answers


def _microseconds(stage: Stage, calls: int, ask: Callable[[int], object]) -> list[float]:
    each = []
    for _ in range(stage.rounds(9)):
        began = time.thread_time()
        for i in range(calls):
            ask(i)
        each.append((time.thread_time() - began) / calls * 1e6)
    return each


def built(stage: Stage) -> Answer:
    """A period of the greatest length, of 100 sources."""
    weights = np.random.default_rng(5).dirichlet(np.ones(100)) + 1e-4
    quotas = np.array(quotas_of([Fraction(int(w * 10**12)) for w in weights]), np.int64)
    each = [us / 1000 for us in _microseconds(stage, 1, lambda _: _native.mixture_schedule(quotas))]
    return Answer(
        question=f"building a period of {int(quotas.sum()):,} places",
        unit="ms",
        ours=statistics.median(each),
        target=Target("ours", "<=", 10, "10 ms"),
        spread=spread(each),
    )


def planned(stage: Stage) -> Answer:
    """Segments of a mixture of arrays in memory, planned and not delivered."""
    size = 10_000 if stage.quick else 1_000_000
    corpora = {f"p{k}": fl.ArrayDeserializer(x=np.zeros(size, np.float32)) for k in range(PARTS)}
    source = fl.MinibatchSource(fl.Mixture(corpora, _harmonic()), seed=1)
    axis = source._axis
    plan, start, each = axis.timeline.window_at(0, 0), 0, []
    segments = 10 if stage.quick else 100
    for _ in range(stage.rounds(9)):
        began, sequences = time.thread_time(), 0
        for _ in range(segments):
            segment = axis.segment(plan, start)
            sequences, start = sequences + segment.n, start + segment.n
            if start == plan.count:
                plan, start = axis.timeline.window_after(plan), 0
        each.append((time.thread_time() - began) / sequences * 1e9)
    source.close()
    return Answer(
        question=f"planning a mixture of {PARTS} arrays of {size:,} rows",
        unit="ns/sequence",
        ours=statistics.median(each),
        target=Target("ours", "<=", 100, "100 ns"),
        spread=spread(each),
        detail={"ns": each},
    )


def _harmonic() -> dict[str, Fraction]:
    return {f"p{k}": Fraction(1, k + 1) for k in range(PARTS)}


def delivered(stage: Stage) -> list[Answer]:
    """Compare the rows of a mixture with the rows of one array."""
    rows = stage.size(60_000, 6_000) // PARTS
    whole = np.random.default_rng(4).random((rows * PARTS, WIDTH), np.float32)
    pieces = {f"p{k}": fl.ArrayDeserializer(x=whole[k * rows : (k + 1) * rows].copy()) for k in range(PARTS)}
    corpora = {
        "feedline": fl.Mixture(pieces, _harmonic()),
        "one array": fl.ArrayDeserializer(x=whole),
        "fl.Concat": fl.Concat(*pieces.values()),
    }
    sources = {name: fl.MinibatchSource(corpus, seed=1) for name, corpus in corpora.items()}
    count = 20 if stage.quick else 500

    def taking(source: fl.MinibatchSource) -> Callable[[], float]:
        return lambda: sum(source.next_minibatch(BATCH).num_sequences for _ in range(count))

    takers = {name: taking(source) for name, source in sources.items()}
    ran = race(takers, stage.rounds(15), "process", warm_up=3)
    for source in sources.values():
        source.close()
    question = f"a mixture of {PARTS} arrays, {WIDTH} floats, {BATCH} rows"
    return [
        compare(ran, "feedline", "one array", question, "rows/s", at_least=0.9),
        compare(ran, "feedline", "fl.Concat", question, "rows/s"),
    ]
