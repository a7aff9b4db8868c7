"""Rules about the data: disks, page cache, object stores, windows, files, compression and single slow samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from feedline.runs.diagnosis.finding import Finding
from feedline.runs.diagnosis.rank_view import OF_QUEUES, WORTH, RankView, Rule, bytes_text, seconds_text

_SLOW, _SLOW_S = 8, 5e-3  # times the median, and seconds, from which a unit is slow
_OF_EXCESS = 0.4  # least share of the time above the median that the slowest units take
_TINY_BYTES, _MANY = 64 << 10, 100
_READ_S, _OPENING = 25e-6, 0.25  # cost of a read, with its part of opening; share of the time from which files are tiny
_AGAIN = 1.2  # times the data that was read, from which parts were read again
_REFUSED = 0.02
_FILE_EACH = ("ImageFolder", "ImageMap")  # formats with a file for each sequence
_TEXT = ("CTF", "CSV", "JSONLines", "MLF")


def slow_samples(view: RankView) -> Finding | None:
    """Few units take much longer than the others."""
    for name in ("fetch", "decode", "transform"):
        stage = view.stage(name)
        slow = [u for u in stage.slowest if u["seconds"] >= max(_SLOW * stage.median_seconds, _SLOW_S)]
        slow = [unit for unit in slow if unit["seconds"] >= slow[0]["seconds"] / 10]
        slow_s = _seconds_of(slow)
        queued_s = view.queued_s + view.amount("loop_queued_seconds")
        if "dataset" in view.feed.facts or name == "transform":  # the waits spread over more units than chunks
            queued_s *= OF_QUEUES / stage.threads
        lost_s = min(slow_s - queued_s, view.waiting())
        if not slow or not stage.median_seconds or lost_s < max(WORTH * view.seconds, view.waiting() / 3):
            continue
        # The slowest are all that is slow, and not the last of many, or slow for what another stage does.
        if not _OF_EXCESS * (stage.seconds - stage.units * stage.median_seconds) <= slow_s <= 1.1 * stage.seconds:
            continue
        times = slow[0]["seconds"] / stage.median_seconds
        names = "; ".join(f"{unit['name']} ({seconds_text(unit['seconds'])})" for unit in slow)
        several = "1 sample takes" if len(slow) == 1 else f"{len(slow)} samples take"
        return view.finding(
            name,
            f"{several} up to {times:.0f} times the median, and the loop waits for them.",
            f"Slowest: {names}. The median is {seconds_text(stage.median_seconds)}.",
            "Look at these samples."
            + (
                " Raise prefetch_factor=, or pass in_order=False, so that others are delivered meanwhile."
                if view.workers
                else ""
            ),
            saved_s=lost_s,
        )
    return None


def refused_requests(view: RankView) -> Finding | None:
    """An object store refuses requests because there are too many."""
    record = view.record
    refused = record.refused_requests / max(1, record.requests)
    if refused < _REFUSED or not view.waits():
        return None
    return view.finding(
        "fetch",
        "The object store refuses requests because there are too many.",
        f"{record.refused_requests} of {record.requests} requests were refused, and made again later.",
        "Ask for a higher limit, spread the objects over more prefixes, or keep them in the cache: "
        "remote=fl.Remote(cache_bytes=...). Larger chunks take fewer requests.",
        saved_s=view.waiting("fetch", "decode") * min(0.9, 2 * refused + 0.1),
    )


def small_cache(view: RankView) -> Finding | None:
    """Bytes of objects are fetched again, as the cache did not keep them."""
    facts, fetched = view.feed.facts, view.stage("fetch").bytes
    stored = facts.get("stored_bytes") or 0
    if not facts.get("remote") or not stored or fetched < _AGAIN * stored or not view.waits():
        return None
    size = -(-stored * 11 // 10 >> 20)
    return view.finding(
        "fetch",
        "The cache of objects is too small: it fetches again what it has dropped.",
        f"{bytes_text(fetched)} were fetched, {fetched / stored:.1f} times the {bytes_text(stored)} of the data.",
        f"Pass remote=fl.Remote(cache_bytes={size} << 20), or a shuffle window that fits the cache.",
        saved_s=view.waiting("fetch", "decode") * (1 - stored / fetched),
    )


def slow_disk(view: RankView) -> Finding | None:
    """The disk of one rank is slower than those of the others."""
    if not view.waits():
        return None
    own, usual = _fetch_s(view), view.usual(_fetch_s)
    if usual is None or own <= 2 * usual or view.share("fetch") < WORTH / 2:
        return None
    rate, usual_rate = _rate(view), view.usual(_rate)
    rates = f" It reads {bytes_text(rate)}/s, the others {bytes_text(usual_rate)}/s." if rate and usual_rate else ""
    return view.finding(
        "fetch",
        "Reading is slower on this rank than on the others: a slow or busy disk, or network.",
        f"It waits for {seconds_text(own)} per unit where the others wait for {seconds_text(usual)}, and for data "
        f"{view.share():.0%} of its time.{rates}",
        f"Look at the disk of {view.record.host}, or copy the data to a local disk there.",
        saved_s=view.waiting("fetch") * (1 - usual / own),
    )


def bad_window(view: RankView) -> Finding | None:
    """The order reads single sequences from a disk, or a window is not read ahead."""
    facts = view.feed.facts
    share = view.share("fetch", "decode")
    if "corpus" not in facts or share < WORTH:
        return None
    if facts.get("read_ahead") is not None:
        return view.finding(
            "fetch" if view.stage("fetch").waiting > view.stage("decode").waiting else "decode",
            "Less than a window is read ahead, so that each window waits for the rest of it.",
            f"read_ahead={facts['read_ahead']}, with shuffle={facts.get('shuffle')}; the loop waits for data "
            f"{share:.0%} of its time.",
            "Leave read_ahead out, or pass at least the bytes of a decoded window.",
            saved_s=view.waiting("fetch", "decode") * 0.8,
            limit_s=_decoding_limit(view),
        )
    if facts.get("whole_shuffle") and view.stage("fetch").bytes and view.share("fetch") >= WORTH:
        return view.finding(
            "fetch",
            "A whole shuffle reads single sequences from a disk, as the data is not in memory.",
            f"{bytes_text(view.stage('fetch').bytes)} were read in {view.stage('step').units} minibatches; the loop "
            f"waits for the disk {view.share('fetch'):.0%} of its time.",
            "Pass shuffle=fl.Window(bytes=256 << 20), which reads large pieces, or write the data in random order "
            "once: fl.convert(..., shuffle=seed), then shuffle=False.",
            saved_s=view.waiting("fetch") * 0.8,
        )
    return None


def full_page_cache(view: RankView) -> Finding | None:
    """A disk is read again, as memory does not hold the data."""
    facts, fetched = view.feed.facts, view.stage("fetch").bytes
    stored = facts.get("stored_bytes") or 0
    if facts.get("remote") or not stored or fetched < _AGAIN * stored or view.share("fetch", "gather") < WORTH:
        return None
    return view.finding(
        "fetch",
        "The page cache does not hold the data, so each sweep reads it from the disk again.",
        f"{bytes_text(fetched)} were read from the disk, {fetched / stored:.1f} times the {bytes_text(stored)} of the "
        f"data; {view.free_memory_text} of memory is free.",
        'Make the data smaller, by fl.convert(..., compression="auto") or narrower dtypes, or use more memory or a '
        "faster disk.",
        saved_s=view.waiting("fetch", "gather") * (1 - stored / fetched),
    )


def tiny_files(view: RankView) -> Finding | None:
    """Much time goes into opening small files."""
    facts, calls, asked_bytes = view.feed.facts, view.amount("read_calls"), view.amount("asked_bytes")
    files = facts.get("sequences" if facts.get("format") in _FILE_EACH else "files") or 0
    stored = facts.get("stored_bytes") or 0
    if files >= _MANY and stored < _TINY_BYTES * files and view.waits("fetch", "decode"):
        size, evidence = stored / files, f"{files:,} files"
    else:
        fetch, decode = view.stage("fetch"), view.stage("decode")
        size = asked_bytes / max(1, calls)
        looks = sum(view.feed.activity.values())
        shares = [
            view.feed.activity.get("file", 0) / looks if looks else 0.0,
            calls * _READ_S / max(fetch.seconds + decode.seconds, 1e-9),
            view.share("fetch") if view.amount("read_bytes") >= asked_bytes / 2 > 0 else 0.0,
        ]
        if "dataset" not in facts or not view.waits("fetch", "decode") or size > _TINY_BYTES:
            return None
        if calls < fetch.units or max(shares) < _OPENING:
            return None
        evidence = f"{calls:,.0f} reads"
    return view.finding(
        "fetch",
        f"The data is in many small files, of about {bytes_text(size)}, and opening them takes the time.",
        f"{evidence}; the loop waits for data {view.share('fetch', 'decode'):.0%} of its time.",
        "Put them together once, with fl.convert or in tar shards, which are read in large pieces.",
        saved_s=view.waiting("fetch", "decode") * 0.9,
    )


def compression(view: RankView) -> Finding | None:
    """Decompressing or parsing is slower than the disk."""
    facts, decode = view.feed.facts, view.stage("decode")
    compressed, is_store = facts.get("compressed"), facts.get("format") == "Store"
    text = facts.get("format") in _TEXT
    if not view.waits("decode") or facts.get("mapped") or "corpus" not in facts:
        return None
    if not (compressed or is_store or text):
        return None
    rate = decode.bytes / max(decode.seconds, 1e-9)
    verb = "Decompressing" if compressed or is_store else "Parsing text"
    instead = "compression=None" if is_store else "which is mapped, or compressed fast with compression='lz4'"
    return view.finding(
        "decode",
        f"{verb} is slower than the disk.",
        f"A thread decodes {bytes_text(rate)}/s, and {decode.threads} threads decode; the loop waits for it "
        f"{view.share('decode'):.0%} of its time, and for the disk {view.share('fetch'):.0%}.",
        f"Convert the data to a store once: fl.convert(..., {instead})."
        if is_store
        else f"Convert the data to a store once, by fl.convert, {instead}.",
        saved_s=view.waiting("decode"),
    )


def pageable_copies(view: RankView) -> Finding | None:
    """Copies to the device start from memory that is not pinned."""
    facts = view.feed.facts
    if not view.waits("device") or facts.get("pin_memory") or facts.get("device") is not None:
        return None
    return view.finding(
        "device",
        "Copies to the device begin in memory that is not pinned, so they block the loop.",
        f"Copies take {view.share('device'):.0%} of the loop's time.",
        "Pass device=, which pins memory and copies during the step before, or pin_memory=True and copy with "
        "non_blocking=True.",
        saved_s=view.waiting("device") * 0.7,
    )


def _seconds_of(units: Sequence[Mapping[str, Any]]) -> float:
    return float(sum(unit["seconds"] for unit in units))


def python_transform(view: RankView) -> Finding | None:
    """A function of the user's transforms sequences in the loop's thread."""
    names = [name for name in view.feed.facts.get("transforms", ()) if name.startswith("the transform ")]
    cores = view.record.conditions.cores
    if not names or not view.waits("transform"):
        return None
    function = ", ".join(name.removeprefix("the transform ") for name in names)
    units = max(1, view.stage("transform").units)
    return view.finding(
        "transform",
        f"A Python function transforms one sequence after the other, holding the GIL: {function}.",
        f"It takes {view.share('transform'):.0%} of the loop's time, {seconds_text(view.waiting('transform') / units)} "
        f"for a sequence, on one of {cores} processors.",
        "Let it work on whole minibatches with NumPy or torch, in the step, or call it in the __getitem__ of a dataset "
        f"with num_workers={cores}.",
        saved_s=view.waiting("transform") * (1 - 1 / max(2, cores)),
    )


def _fetch_s(view: RankView) -> float:
    return view.stage("fetch").seconds / max(1, view.stage("step").units)


def _rate(view: RankView) -> float:
    nbytes = view.stage("fetch").bytes or view.amount("read_bytes")
    return nbytes / max(view.stage("fetch").seconds, 1e-9)


def _decoding_limit(view: RankView) -> float:
    """Return the seconds that fetching and decoding take with all threads busy."""
    stages = (view.stage("fetch"), view.stage("decode"))
    return sum(stage.seconds for stage in stages) / max(1, view.stage("decode").threads)


RULES: tuple[Rule, ...] = (
    slow_samples,
    python_transform,
    slow_disk,
    refused_requests,
    small_cache,
    bad_window,
    full_page_cache,
    tiny_files,
    pageable_copies,
)
#: What decoding costs, where nothing is wrong with the way the data is read.
DECODING_RULES: tuple[Rule, ...] = (compression,)
