"""The statistics of features in the metadata of a robot dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DataError, shown
from feedline.feed.formats.arrow.hugging_face import read_json
from feedline.feed.formats.lerobot.robot_info import HINT
from feedline.feed.formats.lerobot.robot_tables import json_lines

Statistics = dict[str, dict[str, NDArray[Any]]]
_COMBINED = ("min", "max", "mean", "std", "count")


def read_statistics(meta: Path) -> Statistics:
    """Return the statistics by feature: ``min``, ``max``, ``mean``, ``std``, ``count`` and others, as they are written.

    Those of single episodes, of version 2.1, are combined. Without a file of either there are none.

    Raises:
        DataError: a file is damaged.
    """
    path, of_episodes = meta / "stats.json", meta / "episodes_stats.jsonl"
    if path.is_file():
        return _checked(read_json(path), path)
    if not of_episodes.is_file():
        return {}
    parts: list[Statistics] = []
    for row, error in json_lines(of_episodes):
        if not isinstance(row.get("stats"), dict):
            raise error("an object as stats", row.get("stats"))
        parts.append(_checked(row["stats"], of_episodes))
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _combined([part.get(name, {}) for part in parts], name, of_episodes) for name in names}


def _checked(document: Mapping[str, Any], path: Path) -> Statistics:
    statistics: Statistics = {}
    for name, entries in document.items():
        if not isinstance(entries, dict):
            raise _error(f"an object as the statistics of {name!r}", entries, path)
        statistics[name] = {}
        for key, value in entries.items():
            try:
                array = np.array(value)
            except (ValueError, OverflowError, RecursionError):  # lists of different lengths, or in lists without end
                array = np.array(None)
            if array.dtype.kind not in "iuf":
                raise _error(f"numbers as {key} of {name!r}", value, path)
            statistics[name][key] = array
    return statistics


def _combined(parts: Sequence[Mapping[str, NDArray[Any]]], name: str, path: Path) -> dict[str, NDArray[Any]]:
    """Return the statistics of all frames of several episodes."""
    columns: dict[str, NDArray[Any]] = {}
    for key in _COMBINED:
        arrays = [part[key] for part in parts if key in part]
        if len(arrays) < len(parts) or len({array.shape for array in arrays}) > 1:
            raise _error(f"{key} of {name!r} of one shape for every episode", "others", path)
        columns[key] = np.stack(arrays)
    count = columns["count"].reshape(len(parts), -1)[:, 0].astype(np.float64)
    if not (count > 0).all():
        raise _error(f"a count above 0 for {name!r}", columns["count"].min(), path)
    share = (count / count.sum()).reshape(-1, *[1] * (columns["mean"].ndim - 1))
    try:
        mean = (share * columns["mean"]).sum(axis=0)
        variance = (share * (columns["std"] ** 2 + (columns["mean"] - mean) ** 2)).sum(axis=0)
    except ValueError as error:  # shapes that differ between statistics
        raise _error(f"mean and std of {name!r} of one shape", "others", path) from error
    return {
        "min": columns["min"].min(axis=0),
        "max": columns["max"].max(axis=0),
        "mean": mean,
        "std": np.sqrt(variance),
        "count": columns["count"].sum(axis=0),
    }


def _error(expected: str, got: Any, path: Path) -> DataError:
    return DataError(f"expected {expected}, got {shown(got, 80)}", path=str(path), hint=HINT)
