"""Rules about the machine and the process: hooks, swap, quotas, processors, locks."""

from __future__ import annotations

from feedline.runs.diagnosis.finding import Finding
from feedline.runs.diagnosis.rank_view import WORTH, RankView, Rule, bytes_text, seconds_text

_SWAPPED_BYTES, _FAULTS_S, _FAULT_S = 16 << 20, 20.0, 0.3e-3
_QUEUED, _RUNNABLE, _LOCKED, _LOOKS = 0.3, 0.4, 0.25, 10


def hook(view: RankView) -> Finding | None:
    """A debugger, profiler or coverage tool runs for each line of Python."""
    name = view.feed.hook or view.record.conditions.hook
    if not name:
        return None
    making = {name: view.feed.stage(name).waiting for name in ("fetch", "decode", "transform", "gather")}
    python_s, stage = sum(making.values()), max(making, key=lambda name: view.stage(name).waiting)
    if not view.feed.hook and python_s < WORTH * view.feed.seconds:
        python_s, stage = view.stage("step").seconds, "step"
    python_s *= view.seconds / view.feed.seconds
    if stage != "step" and view.feed.computing_seconds:  # not while it waits for files
        python_s = min(python_s, view.feed.computing_seconds / max(1, view.workers))
    return view.finding(
        stage,
        f"A debugger's or profiler's hook slows down all Python: {name}.",
        f"{name} is called for lines or functions of Python where batches are made; the stage took "
        f"{seconds_text(python_s)} of {seconds_text(view.seconds)}.",
        "Run without it, or let it look at a few steps only. The gain is an estimate: Python runs about twice as fast.",
        saved_s=python_s / 2,
    )


def swapping(view: RankView) -> Finding | None:
    """Memory of the process is in swap, and comes back page by page."""
    faults, swapped_bytes = view.amount("major_faults"), view.amount("swapped_bytes")
    faults_s = faults / max(view.record.seconds, 1e-9)
    if swapped_bytes < _SWAPPED_BYTES or faults_s < _FAULTS_S:
        return None
    return view.finding(
        view.slowest_stage,
        "The machine swaps: memory of this process is on a disk.",
        f"{bytes_text(swapped_bytes)} are in swap, {faults_s:.0f} accesses a second waited for the disk, "
        f"and {view.free_memory_text} of memory is free.",
        "Use less memory: fewer workers, a smaller read_ahead= or window, or a smaller cache in the dataset.",
        saved_s=min(0.9 * view.seconds, faults * _FAULT_S),
    )


def quota(view: RankView) -> Finding | None:
    """The container may use fewer processors than it tries to."""
    share = view.amount("throttled_seconds") / max(view.record.seconds, 1e-9)
    if share < WORTH or view.workers > view.record.conditions.cores:  # then there are too many workers
        return None
    return view.finding(
        view.slowest_stage,
        "The container has used up its quota of processor time.",
        f"It was stopped for {share:.0%} of the time, with {view.cores_busy_text} processors busy.",
        "Raise the container's limit of processors.",
        saved_s=share * view.seconds,
    )


def too_many_workers(view: RankView) -> Finding | None:
    """Workers wait for a processor."""
    cores = view.record.conditions.cores
    queued, computed = view.amount("queued_seconds"), view.amount("cpu_seconds")
    runnable = (queued + computed) / max(view.workers * view.record.seconds, 1e-9)
    if view.workers <= cores or queued < _QUEUED * computed or runnable < _RUNNABLE:
        return None
    if view.feed.waiting < WORTH * view.feed.seconds:
        return None
    return view.finding(
        "decode" if view.stage("decode").seconds >= view.stage("fetch").seconds else "fetch",
        f"There are too many workers: {view.workers} compete for {cores} processors.",
        f"Processes were ready to run and waited {seconds_text(queued)} for a processor, and ran "
        f"{seconds_text(computed)}.",
        f"Pass num_workers={max(1, cores - 1) if cores > 2 else cores}.",
        saved_s=min(0.1 * view.seconds, queued / max(1, view.workers)),
    )


def one_lock(view: RankView) -> Finding | None:
    """Workers wait for each other at a lock."""
    activity = view.feed.activity
    looks = sum(activity.values())
    locked = activity.get("lock", 0) / looks if looks else 0.0
    if view.workers < 2 or looks < _LOOKS or locked < _LOCKED or not view.waits():
        return None
    return view.finding(
        "fetch",
        f"The {view.workers} workers wait for one lock, and so work one after the other.",
        f"Workers were waiting for a lock in {locked:.0%} of {looks} looks at them, and kept {view.cores_busy_text} "
        "processors busy.",
        "Hold the lock for less, or give each worker a file, connection or client of its own, opened in "
        "worker_init_fn. More workers do not help.",
        saved_s=view.waiting() * min(0.95, locked),
    )


def interpreter_lock(view: RankView) -> Finding | None:
    """Threads compute in Python, one at a time."""
    cores = view.record.conditions.cores
    if view.feed.facts.get("kind") != "thread" or view.workers < 2 or cores < 2 or not view.waits():
        return None
    # On a busy machine the threads wait for a processor, too, which is no waiting for a file.
    computing = view.feed.computing_seconds / view.feed.seconds
    queued = view.amount("queued_seconds") / max(view.record.seconds, 1e-9)
    if not computing + queued >= 0.5 or computing > 1.3 or view.cores_busy + queued > 1.4:
        return None
    return view.finding(
        "transform",
        "Worker threads compute in Python, which runs one thread at a time (the GIL).",
        f"{view.workers} threads were busy all the time and kept {view.cores_busy_text} of {cores} processors busy.",
        'Pass workers="process", or call code that releases the GIL, such as NumPy on whole batches or '
        "feedline.images.",
        saved_s=view.waiting() * (1 - 1 / min(view.workers, cores)),
    )


RULES: tuple[Rule, ...] = (hook, swapping, quota, too_many_workers, one_lock, interpreter_lock)
