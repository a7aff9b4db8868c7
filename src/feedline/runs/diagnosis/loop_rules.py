"""Rules about the loop: slow steps and ranks, starts of workers, and the limiting stage where no cause is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil

from feedline.runs.diagnosis.finding import Finding
from feedline.runs.diagnosis.rank_view import OF_QUEUES, WORTH, RankView, Rule, seconds_text

_SLOW, _SLOW_S = 5, 20e-3  # times the median, and seconds, from which a step is slow
_LATE = 1.3
_PER_CORE = 4  # workers that wait for files or a network


def slow_step(view: RankView) -> Finding | None:
    """The steps of a rank are slower than those of the others, or some are much slower than most.

    Steps of ranks that wait for each other take equally long, see `late_rank`.
    """
    step, exchange_s = view.stage("step"), view.record.exchange_seconds
    own, usual = _step_s(view), None if exchange_s is not None else view.usual(_step_s)
    if usual is not None and own >= _LATE * usual and step.seconds >= WORTH * view.seconds:
        return view.finding(
            "step",
            "The step is slower on this rank than on the others.",
            f"A step takes {seconds_text(own)}, and {seconds_text(usual)} on the others, without waiting for data.",
            f"Look at the processors and the GPU of {view.record.host}: clocks, other programs, and work that only "
            "this rank does.",
            saved_s=step.seconds * (1 - usual / own),
        )
    slow = [unit for unit in step.slowest if unit["seconds"] >= max(_SLOW * step.median_seconds, _SLOW_S)]
    queued_s = OF_QUEUES * view.amount("loop_queued_seconds")
    lost_s = sum(unit["seconds"] for unit in slow) - (exchange_s or 0.0) - queued_s
    if not slow or not step.median_seconds or lost_s < WORTH * view.seconds:
        return None
    names = "; ".join(f"{unit['name']} ({seconds_text(unit['seconds'])})" for unit in slow)
    return view.finding(
        "step",
        f"Some steps take {slow[0]['seconds'] / step.median_seconds:.0f} times the median.",
        f"Slowest: {names}. The median is {seconds_text(step.median_seconds)}.",
        "Look at what the loop does there: checkpoints, validation, logging, garbage collection or compilation.",
        saved_s=lost_s,
    )


def late_rank(view: RankView) -> Finding | None:
    """The other ranks wait for this one in exchanges.

    Ranks that train together step together. The late rank is the one that waits least for the others.
    """
    usual = view.usual(_exchanging)
    if view.record.exchange_seconds is None or usual is None or usual < WORTH or view.exchanging > usual / 2:
        return None
    waits_s, works_s = _waiting_s(view), view.working_s
    usual_waits_s, usual_works_s = view.usual(_waiting_s) or 0.0, view.usual(_working_s) or 0.0
    for_data = waits_s - usual_waits_s > works_s - usual_works_s
    stage = view.slowest_stage if for_data else "step"
    host = view.record.host
    if stage == "step":
        cause = f"a step takes it {seconds_text(works_s)}, and the others {seconds_text(usual_works_s)}"
        setting = f"Look at the processors and the GPU of {host}: clocks, other programs, and work of this rank alone."
    else:
        cause = (
            f"it waits {seconds_text(waits_s)} for the data of a step, {_NAMES[stage]} first of all, and the others "
            f"{seconds_text(usual_waits_s)}"
        )
        setting = f"Look at the data of this rank, and at the disk, the processors and the workers of {host}."
    return view.finding(
        stage,
        "The other ranks wait for this one in every exchange.",
        f"The others wait for ranks {usual:.0%} of their time, and this one {view.exchanging:.0%}: {cause}.",
        setting,
        saved_s=(usual - view.exchanging) * view.seconds,
    )


def _exchanging(view: RankView) -> float:
    return view.exchanging


def _working_s(view: RankView) -> float:
    return view.working_s


def _waiting_s(view: RankView) -> float:
    return view.waiting() / max(1, view.stage("step").units)


def starts(view: RankView) -> Finding | None:
    """Workers start anew for each sweep."""
    feed = view.feed
    share = feed.starting_seconds / feed.seconds if feed.seconds else 0.0
    if feed.starts < 3 or share < WORTH or not view.workers or feed.facts.get("persistent_workers"):
        return None
    saved_s = feed.starting_seconds * (1 - 1 / feed.starts)
    return Finding(
        "fetch",
        view.record.rank,
        view.record.host,
        "Workers start again for each sweep, and the loop waits for them.",
        f"{feed.starts} starts took {share:.0%} of the time.",
        "Pass persistent_workers=True, or call loader.prefetch() before the loop.",
        feed.seconds / (feed.seconds - saved_s),
    )


def limit(view: RankView) -> Finding | None:
    """The stage that the loop waits for longest."""
    stage = view.slowest_stage
    if stage == "step":
        return None
    advice = _WITH_WORKERS if "dataset" in view.feed.facts else _OF_SOURCES
    setting, faster = advice[stage](view) if stage in advice else ("Make it cheaper.", 2.0)
    work = view.stage(stage)
    threads = "1 thread" if work.threads == 1 else f"{work.threads} threads"
    return view.finding(
        stage,
        f"The loop waits for {_NAMES[stage]} {view.share(stage):.0%} of its time.",
        f"It took {seconds_text(work.seconds)} on {threads}, and the step {seconds_text(view.stage('step').seconds)}; "
        f"{view.cores_busy_text} of {view.record.conditions.cores} processors were busy.",
        setting,
        saved_s=view.waiting(stage) * (1 - 1 / max(faster, 1.0)),
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


def _more_workers(view: RankView, most: int) -> tuple[str, float]:
    """Return advice to add workers, and how many times as fast they make the stage."""
    work_s = sum(view.stage(name).seconds for name in ("fetch", "decode", "gather"))
    step_s, workers = view.stage("step").seconds, view.workers
    needed = min(most, max(workers + 1, ceil(work_s / step_s) if step_s else most))
    if needed > workers:
        # Workers work during the step.
        left_s = max(0.0, work_s / needed - step_s) if not workers else view.waiting() * workers / needed
        return f"Pass num_workers={needed}.", view.waiting() / max(left_s, view.waiting() / 50)
    return (
        "Convert the dataset once, with fl.convert, if items are the same in every epoch, or do less for an item: all "
        "workers are busy.",
        2.0,
    )


def _threads(view: RankView) -> tuple[str, float]:
    threads, cores = view.stage("decode").threads, view.record.conditions.cores
    if threads < cores:
        return f"Pass threads={cores}.", cores / threads
    return "Convert the data to a store once, by fl.convert, which needs no decoding.", 10.0


_Advice = Mapping[str, Callable[[RankView], tuple[str, float]]]
_WITH_WORKERS: _Advice = {
    "fetch": lambda view: _more_workers(view, _PER_CORE * view.record.conditions.cores),
    "decode": lambda view: _more_workers(view, view.record.conditions.cores),
    "gather": lambda view: (
        "Make collate_fn cheaper: let items be arrays of one shape, which the default stacks.",
        3.0,
    ),
    "hand_over": lambda view: ("Make batches larger, or return arrays instead of Python objects.", 3.0),
    "device": lambda view: ("Send fewer bytes, such as uint8 that the device converts.", 2.0),
}
_OF_SOURCES: _Advice = {
    "plan": lambda view: ("Make minibatches larger: planning costs the same for each.", 2.0),
    "fetch": lambda view: (
        "Use a faster disk or a cache, or make the data smaller: fl.convert(..., compression='auto').",
        2.0,
    ),
    "decode": _threads,
    "gather": lambda view: ("Make minibatches larger, or streams narrower: copying is the limit.", 1.5),
    "transform": lambda view: ("Make pictures or sounds smaller, or use more cores: transforms are the limit.", 1.5),
    "device": lambda view: ("Send fewer bytes, such as uint8 that the device converts.", 2.0),
}


def _step_s(view: RankView) -> float:
    step = view.stage("step")
    return step.median_seconds or step.seconds / max(1, step.units)


RULES: tuple[Rule, ...] = (late_rank, slow_step, starts)
