"""The stages of a run's feeds, as a table of its page, and what limits them, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from feedline.errors import DataError
from feedline.runs import page
from feedline.runs.diagnosis import RankRecord, diagnose, read_records
from feedline.runs.diagnosis.rank_view import bytes_text, seconds_text

_HEADS = ("stage", "the loop waited", "work", "threads busy", "queue full", "units", "read or made", "slowest unit")


def stage_records(log: Path) -> list[RankRecord]:
    """Return the records of the ranks in a log, none if it was written without them."""
    try:
        return read_records(log)
    except DataError:
        return []


def limits(records: Sequence[RankRecord]) -> list[str]:
    """Return what limits the ranks, and what to change, in sentences, worst first."""
    several = len(records) > 1
    return [
        f"{f'Rank {finding.rank}: ' if several else ''}{finding.reason} {finding.setting} Predicted: "
        f"{finding.gain:.2f} times as fast."
        for finding in diagnose(records)
    ]


def stage_table(record: RankRecord) -> str:
    """Return a table of the stages of the feed with which a rank spent most of its time, as HTML."""
    feed = record.feed
    rows = []
    for name, stage in feed.stages.items():
        slowest = stage.slowest[0] if stage.slowest else None
        rows.append(
            (
                name.replace("_", "-"),
                "" if name == "step" else f"{seconds_text(stage.waiting)}, {stage.waiting / feed.seconds:.1%}",
                seconds_text(stage.seconds),
                f"{stage.seconds / feed.seconds:.2g} of {stage.threads}",
                "" if stage.fullness is None else f"{stage.fullness:.0%}",
                f"{stage.units:,}",
                bytes_text(stage.bytes) if stage.bytes else "",
                "" if slowest is None else f"{slowest['name']}, {seconds_text(slowest['seconds'])}",
            )
        )
    return page.table(f"Stages, {seconds_text(feed.seconds)} of the last process", _HEADS, rows) if rows else ""
