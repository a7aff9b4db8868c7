"""Sums over label samples, returned by a trainer, accumulated by a session, and kept in checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from feedline.collective.ranks import Ranks
from feedline.errors import StoreError
from feedline.runs.fields import maybe, real, whole


@dataclass(frozen=True, slots=True)
class Summary:
    """Sums over the label samples of one or more minibatches.

    Attributes:
        samples: number of label samples.
        updated: whether parameters were updated. False for an empty minibatch, the end of a source, a rate of 0, and
            evaluations.
    """

    loss_sum: torch.Tensor | float
    metric_sum: torch.Tensor | float | None
    samples: int
    updated: bool = False

    @property
    def loss(self) -> float:
        """Mean loss per label sample, NaN without samples. Waits for the device."""
        return float(self.loss_sum) / self.samples if self.samples else float("nan")

    @property
    def metric(self) -> float | None:
        """Mean metric per label sample, None without a metric. Waits for the device."""
        if self.metric_sum is None:
            return None
        return float(self.metric_sum) / self.samples if self.samples else float("nan")

    def __bool__(self) -> bool:
        return self.updated

    def __add__(self, other: Summary) -> Summary:
        metrics = [m for m in (self.metric_sum, other.metric_sum) if m is not None]
        return Summary(
            self.loss_sum + other.loss_sum,
            sum(metrics[1:], metrics[0]) if metrics else None,
            self.samples + other.samples,
            self.updated or other.updated,
        )

    def __repr__(self) -> str:
        metric = "" if self.metric_sum is None else f", metric {self.metric:.6g}"
        return f"Summary(loss {self.loss:.6g}{metric} over {self.samples} label samples)"


#: Summary of no samples.
NOTHING = Summary(0.0, None, 0)


def plus(total: Summary, summary: Summary) -> Summary:
    """Return the sum of two summaries. One without samples is ignored."""
    if summary.samples == 0:
        return total
    return summary if total.samples == 0 else total + summary


#: Index and count of a rank without data.
NO_SHARE = (-1, 0)


def sum_over_ranks(ranks: Ranks, total: Summary, partition: tuple[int, int] = NO_SHARE) -> Summary:
    """Sum the parts of all ranks. A collective call.

    Args:
        ranks: the ranks.
        total: sums of this rank.
        partition: the share that these sums cover, which counts once if several ranks have it.

    Raises:
        StoreError: see `counted_ranks`.
    """
    if ranks.alone:
        return total
    numbers = [float(total.loss_sum), float(total.metric_sum or 0.0), float(total.metric_sum is not None)]
    rows = ranks.gather([*map(float, partition), float(total.samples), *numbers])
    counted = [rows[r] for r in counted_ranks([(row[0], row[1], row[2]) for row in rows])]
    _, _, samples, loss, metric, measured = (sum(column) for column in zip(*counted, strict=True))
    return Summary(loss, metric if measured else None, round(samples)) if samples else NOTHING


def counted_ranks(rows: Sequence[tuple[float, float, float]]) -> list[int]:
    """Return the ranks whose numbers count: of those that have the same share, the first.

    Args:
        rows: partition (index, count) and number of label samples of each rank. An index of -1 is a rank without data.

    Raises:
        StoreError: ranks with the same share have different numbers of label samples, or one share has more ranks than
            another.
    """
    ranks_of: dict[tuple[float, float], list[int]] = {}
    for r, (index, count, _) in enumerate(rows):
        ranks_of.setdefault((index, count) if index >= 0 else (-1, r), []).append(r)
    for (index, count), ranks in ranks_of.items():
        if len({rows[r][2] for r in ranks}) > 1:
            got = ", ".join(f"rank {r}: {rows[r][2]:.0f}" for r in ranks)
            raise StoreError(
                f"expected the same data on ranks with the same partition ({index:.0f}, {count:.0f}), got label "
                f"samples {got}\n  pass the mesh as partition= of the source"
            )
    sizes = {len(ranks) for (index, _), ranks in ranks_of.items() if index >= 0}
    if len(sizes) > 1:
        got = ", ".join(f"({i:.0f}, {n:.0f}): ranks {ranks}" for (i, n), ranks in ranks_of.items() if i >= 0)
        raise StoreError(
            f"expected equally many ranks for each share, got {got}\n  pass the mesh as partition= of the source"
        )
    return [ranks[0] for ranks in ranks_of.values()]


def summary_to_json(summary: Summary) -> list[Any]:
    """Return a summary in JSON types."""
    # In full precision, so that a resumed run continues with the same numbers.
    metric = None if summary.metric_sum is None else float(summary.metric_sum)
    return [float(summary.loss_sum), metric, summary.samples, summary.updated]


def summary_from_json(data: Any, name: str) -> Summary:
    """Read the result of `summary_to_json`. Raises ValueError for anything else."""
    loss, metric, samples, updated = check_list(data, 4, name)
    if type(updated) is not bool:
        raise ValueError(f"{name}: expected true or false, got {updated!r:.40}")
    fields = _number(loss, name), maybe(_number, metric, name), whole(samples, f"{name}, samples")
    return Summary(*fields, updated) if samples else NOTHING


def _number(value: Any, name: str) -> float:
    """Return a checked sum, which may be infinite or NaN."""
    return value if type(value) is float else real(value, name)


def check_list(value: Any, length: int | None, name: str) -> list[Any]:
    """Return a list if it has ``length`` items. Raises ValueError otherwise."""
    if not isinstance(value, list) or length not in (None, len(value)):
        raise ValueError(f"{name}: expected a list{'' if length is None else f' of size {length}'}, got {value!r:.80}")
    return value
