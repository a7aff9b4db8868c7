"""Sums over label samples, returned by a trainer, accumulated by a session, and kept in checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from feedline.collective.ranks import Ranks
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


def sum_over_ranks(ranks: Ranks, total: Summary, shared: bool = False) -> Summary:
    """Sum the parts of all ranks. ``shared`` means that each rank had all of every minibatch. A collective call."""
    if ranks.alone:
        return total
    numbers = [float(total.loss_sum), float(total.metric_sum or 0.0), float(total.metric_sum is not None)]
    rows = ranks.gather([float(shared), float(total.samples), *numbers])
    if all(row[0] for row in rows):
        return total
    _, samples, loss, metric, measured = (sum(column) for column in zip(*rows, strict=True))
    return Summary(loss, metric if measured else None, round(samples)) if samples else NOTHING


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
