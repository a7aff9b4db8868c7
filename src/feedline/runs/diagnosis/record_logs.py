"""Read the records of ranks from logs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from feedline.errors import DataError
from feedline.runs.diagnosis.record import RankRecord
from feedline.runs.folder import QUARANTINE, logs_of_ranks
from feedline.runs.log import read_log

_LATELY_S = 60.0  # least span of a run in progress that is diagnosed


class _Recorded(NamedTuple):
    """A line of a log: the record of its writer, and short ones of other ranks, which heartbeats have carried."""

    event: str
    records: tuple[RankRecord, ...]


def read_records(path: str | os.PathLike[str]) -> list[RankRecord]:
    """Return a record of each rank in the logs of a run folder, or in one log.

    Of a run that has ended, it covers the last process. Of a run in progress, it covers the last tenth, but at least a
    minute.

    Raises:
        FileNotFoundError: there is no such folder or log.
        DataError: a file is not a log, or no log has records.
    """
    logs = find_logs(path)
    records = [record for log in logs for record in _records_of(log)]
    if not records:
        raise DataError(
            "expected records of stages in the log, got none",
            path=str(logs[0]),
            hint="JsonLines of a session writes them, and a program with FEEDLINE_DOCTOR=<path of a log>",
        )
    return records


def find_logs(path: str | os.PathLike[str]) -> list[Path]:
    """Return the logs in a folder, or a log, or ``<path>.rank0`` and so on if ranks have written one each.

    Raises:
        FileNotFoundError: there is no such folder or log.
    """
    path = Path(path)
    if path.is_file():
        return [path]
    logs = logs_of_ranks(path)
    if path.is_dir():
        logs = sorted({*path.glob("*.jsonl"), *path.glob("*.jsonl.rank*")} - set(path.glob(QUARANTINE)))
    if not logs:
        raise FileNotFoundError(f"expected a run folder with logs, or a log, got {path}, where there is none")
    return logs


def _records_of(log: Path) -> list[RankRecord]:
    lines = [line for line in read_log(log, _recorded).events if line.records or line.event == "start"]
    starts = [number for number, line in enumerate(lines) if line.event == "start"]
    by_rank: dict[int, list[RankRecord]] = {}
    for line in lines[starts[-1] if starts else 0 :]:
        for record in line.records:
            by_rank.setdefault(record.rank, []).append(record)
    ended = any(line.event == "end" for line in lines)
    return [_covered(by_rank[rank], ended) for rank in sorted(by_rank)]


def _covered(records: list[RankRecord], ended: bool) -> RankRecord:
    last = records[-1]
    span_s = max(_LATELY_S, last.seconds / 10)
    before = [record for record in records if record.seconds <= last.seconds - span_s]
    return last.since(before[-1]) if before and not ended else last


def _recorded(line: dict[str, Any]) -> _Recorded:
    own = [RankRecord.from_json(line["record"])] if line.get("record") is not None else []
    ranks = [RankRecord.from_json(data) for data in line.get("ranks") or []]
    return _Recorded(line["event"], (*own, *(record for record in ranks if record.rank not in {r.rank for r in own})))
