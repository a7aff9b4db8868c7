"""Read the records of ranks from logs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from feedline.errors import DataError
from feedline.runs.diagnosis.record import RankRecord
from feedline.runs.folder import QUARANTINE
from feedline.runs.log import read_log

_LATELY_S = 60.0  # least span of a run in progress that is diagnosed


class _Recorded(NamedTuple):
    """A line of a log."""

    event: str
    record: RankRecord | None


def read_records(path: str | os.PathLike[str]) -> list[RankRecord]:
    """Return a record of each rank whose log is in a run folder, or of one log.

    Of a run that has ended, it covers the last process. Of a run in progress, it covers the last tenth, but at least a
    minute.

    Raises:
        FileNotFoundError: there is no such folder or log.
        DataError: a file is not a log, or no log has records.
    """
    logs = logs_of_ranks(path)
    records = [record for log in logs if (record := _record_of(log)) is not None]
    if not records:
        raise DataError(
            "expected records of stages in the log, got none",
            path=str(logs[0]),
            hint="JsonLines of a session writes them, and a program with FEEDLINE_DOCTOR=<path of a log>",
        )
    return records


def logs_of_ranks(path: str | os.PathLike[str]) -> list[Path]:
    """Return the logs in a folder, or a log, or ``<path>.rank0`` and so on if ranks have written one each.

    Raises:
        FileNotFoundError: there is no such folder or log.
    """
    path = Path(path)
    if path.is_file():
        return [path]
    if path.is_dir():
        logs = {*path.glob("*.jsonl"), *path.glob("*.jsonl.rank*")} - set(path.glob(QUARANTINE))
    else:
        logs = set(path.parent.glob(f"{path.name}.rank*"))
    if not logs:
        raise FileNotFoundError(f"expected a run folder with logs, or a log, got {path}, where there is none")
    return sorted(logs)


def _record_of(log: Path) -> RankRecord | None:
    lines = [line for line in read_log(log, _recorded).events if line.record is not None or line.event == "start"]
    starts = [number for number, line in enumerate(lines) if line.event == "start"]
    records = [line.record for line in lines[starts[-1] if starts else 0 :] if line.record is not None]
    if not records:
        return None
    last = records[-1]
    if any(line.event == "end" for line in lines):
        return last
    span_s = max(_LATELY_S, last.seconds / 10)
    before = [record for record in records if record.seconds <= last.seconds - span_s]
    return last.since(before[-1]) if before else last


def _recorded(line: dict[str, Any]) -> _Recorded:
    data = line.get("record")
    return _Recorded(line["event"], None if data is None else RankRecord.from_json(data))
