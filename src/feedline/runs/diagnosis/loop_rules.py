"""Rules about the loop: slow steps and ranks, starts of workers, and the limiting stage where no cause is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil

from feedline.runs.diagnosis.finding import Finding
from feedline.runs.diagnosis.rank_view import OF_QUEUES, WORTH, RankView, Rule, seconds_text

_SLOW, _SLOW_S = 5, 20e-3  # times the median, and seconds, from which a step is slow
_LATE = 1.3
_PER_CORE = 4  # workers that wait for files or a network


def slow_step(rank: RankView) -> Finding | None:
    """The steps of a rank are slower than those of the others, or some are much slower than most.

    Steps of ranks that wait for each other take equally long, see `late_rank`.
    """
    step, exchange_s = rank.stage("step"), rank.record.exchange_seconds
    own, usual = _step_s(rank), None if exchange_s is not None else rank.usual(_step_s)
    if usual is not None and own >= _LATE * usual and step.seconds >= WORTH * rank.seconds:
        return rank.finding(
            "step",
            "The step is slower on this rank than on the others.",
            f"A step takes {seconds_text(own)}, and {seconds_text(usual)} on the others, without waiting for data.",
            f"Look at the processors and the GPU of {rank.record.host}: clocks, other programs, and work that only "
            "this rank does.",
            saved_s=step.seconds * (1 - usual / own),
        )
    slow = [unit for unit in step.slowest if unit["seconds"] >= max(_SLOW * step.median_seconds, _SLOW_S)]
    queued_s = OF_QUEUES * rank.record.conditions.loop_queued_seconds
    lost_s = sum(unit["seconds"] for unit in slow) - (exchange_s or 0.0) - queued_s
    if not slow or not step.median_seconds or lost_s < WORTH * rank.seconds:
        return None
    names = "; ".join(f"{unit['name']} ({seconds_text(unit['seconds'])})" for unit in slow)
    return rank.finding(
        "step",
        f"Some steps take {slow[0]['seconds'] / step.median_seconds:.0f} times the median.",
        f"Slowest: {names}. The median is {seconds_text(step.median_seconds)}.",
        "Look at what the loop does there: checkpoints, validation, logging, garbage collection or compilation.",
        saved_s=lost_s,
    )


def late_rank(rank: RankView) -> Finding | None:
    """The other ranks wait for this one in exchanges.

    Ranks that train together step together. The late rank is the one that waits least for the others.
    """
    usual = rank.usual(_exchanging)
    if rank.record.exchange_seconds is None or usual is None or usual < WORTH or rank.exchanging > usual / 2:
        return None
    waits_s, works_s = _waiting_s(rank), rank.working_s
    usual_waits_s, usual_works_s = rank.usual(_waiting_s) or 0.0, rank.usual(_working_s) or 0.0
    for_data = waits_s - usual_waits_s > works_s - usual_works_s
    stage = rank.slowest_stage if for_data else "step"
    host = rank.record.host
    if stage == "step":
        cause = f"a step takes it {seconds_text(works_s)}, and the others {seconds_text(usual_works_s)}"
        setting = f"Look at the processors and the GPU of {host}: clocks, other programs, and work of this rank alone."
    else:
        cause = (
            f"it waits {seconds_text(waits_s)} for the data of a step, {_NAMES[stage]} first of all, and the others "
            f"{seconds_text(usual_waits_s)}"
        )
        setting = f"Look at the data of this rank, and at the disk, the processors and the workers of {host}."
    return rank.finding(
        stage,
        "The other ranks wait for this one in every exchange.",
        f"The others wait for ranks {usual:.0%} of their time, and this one {rank.exchanging:.0%}: {cause}.",
        setting,
        saved_s=(usual - rank.exchanging) * rank.seconds,
    )


def _exchanging(rank: RankView) -> float:
    return rank.exchanging


def _working_s(rank: RankView) -> float:
    return rank.working_s


def _waiting_s(rank: RankView) -> float:
    return rank.waiting() / max(1, rank.stage("step").units)


def starts(rank: RankView) -> Finding | None:
    """Workers start anew for each sweep."""
    feed = rank.feed
    share = feed.starting_seconds / feed.seconds if feed.seconds else 0.0
    if feed.starts < 3 or share < WORTH or not rank.workers or feed.facts.get("persistent_workers"):
        return None
    saved_s = feed.starting_seconds * (1 - 1 / feed.starts)
    return Finding(
        "fetch",
        rank.record.rank,
        rank.record.host,
        "Workers start again for each sweep, and the loop waits for them.",
        f"{feed.starts} starts took {share:.0%} of the time.",
        "Pass persistent_workers=True, or call loader.prefetch() before the loop.",
        feed.seconds / (feed.seconds - saved_s),
    )


def limit(rank: RankView) -> Finding | None:
    """The stage that the loop waits for longest."""
    stage = rank.slowest_stage
    if stage == "step":
        return None
    advice = _WITH_WORKERS if "dataset" in rank.feed.facts else _OF_SOURCES
    setting, faster = advice[stage](rank) if stage in advice else ("Look at docs/how-to/slow-loader.md.", 1.0)
    work = rank.stage(stage)
    threads = "1 thread" if work.threads == 1 else f"{work.threads} threads"
    return rank.finding(
        stage,
        f"The loop waits for {_NAMES[stage]} {rank.share(stage):.0%} of its time.",
        f"It took {seconds_text(work.seconds)} on {threads}, and the step {seconds_text(rank.stage('step').seconds)}; "
        f"{rank.cores_busy:.2g} of {rank.record.conditions.cores} processors were busy.",
        setting,
        saved_s=rank.waiting(stage) * (1 - 1 / max(faster, 1.0)),
    )


_NAMES = {
    "plan": "the plan of minibatches",
    "fetch": "reading",
    "decode": "decoding",
    "gather": "putting batches together",
    "transform": "transforms",
    "hand_over": "the hand-over from workers",
    "device": "copies to the device",
}


def _more_workers(rank: RankView, most: int) -> tuple[str, float]:
    """Return advice to add workers, and how many times as fast they make the stage."""
    work_s = sum(rank.stage(name).seconds for name in ("fetch", "decode", "gather"))
    step_s, workers = rank.stage("step").seconds, rank.workers
    needed = min(most, max(workers + 1, ceil(work_s / step_s) if step_s else most))
    if needed > workers:
        return f"Pass num_workers={needed}.", needed / max(1, workers)
    return (
        "Convert the dataset once, with fl.convert, if items are the same in every epoch, or do less for an item: all "
        "workers are busy.",
        2.0,
    )


def _threads(rank: RankView) -> tuple[str, float]:
    threads, cores = rank.stage("decode").threads, rank.record.conditions.cores
    if threads < cores:
        return f"Pass threads={cores}.", cores / threads
    return "Convert the data to a store once, by fl.convert, which needs no decoding.", 10.0


_Advice = Mapping[str, Callable[[RankView], tuple[str, float]]]
_WITH_WORKERS: _Advice = {
    "fetch": lambda rank: _more_workers(rank, _PER_CORE * rank.record.conditions.cores),
    "decode": lambda rank: _more_workers(rank, rank.record.conditions.cores),
    "gather": lambda rank: (
        "Make collate_fn cheaper: let items be arrays of one shape, which the default stacks.",
        3.0,
    ),
    "hand_over": lambda rank: ("Make batches larger, or return arrays instead of Python objects.", 3.0),
    "device": lambda rank: ("Send fewer bytes, such as uint8 that the device converts.", 2.0),
}
_OF_SOURCES: _Advice = {
    "plan": lambda rank: ("Make minibatches larger: planning costs the same for each.", 2.0),
    "fetch": lambda rank: (
        "Use a faster disk or a cache, or make the data smaller: fl.convert(..., compression='auto').",
        2.0,
    ),
    "decode": _threads,
    "gather": lambda rank: ("Make minibatches larger, or streams narrower: copying is the limit.", 1.5),
    "transform": lambda rank: ("Make pictures or sounds smaller, or use more cores: transforms are the limit.", 1.5),
    "device": lambda rank: ("Send fewer bytes, such as uint8 that the device converts.", 2.0),
}


def _step_s(rank: RankView) -> float:
    step = rank.stage("step")
    return step.median_seconds or step.seconds / max(1, step.units)


RULES: tuple[Rule, ...] = (late_rank, slow_step, starts)
