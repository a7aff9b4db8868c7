"""Criteria that look at several samples at once: edit distances of sequences, and rankings within groups.

All are one number for the whole minibatch. Groups are runs of samples with the same number. Within a group samples are
ranked by score, highest first. Of equal scores the one with the smaller gain is first, as in CNTK.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.networks.node import Node
from feedline.networks.ops.align import dense, lower_directly
from feedline.networks.packed_minibatch import PackedBatch, SparseRows
from feedline.networks.registry import Shape, Site, declare

Labels = NDArray[np.int64]


def edits(first: Labels, second: Labels, substitution: float, deletion: float, insertion: float) -> int:
    """Return the number of edits that lead from one sequence of labels to another at the lowest price.

    Matches of equal labels are free. At equal prices a substitution is preferred, then an insertion to a deletion.
    Cells on one diagonal do not depend on each other: O(len(first) + len(second)) steps in NumPy.
    """
    n, m = len(first), len(second)
    price, count = np.zeros((n + 1, m + 1)), np.zeros((n + 1, m + 1), np.int64)
    price[:, 0], count[:, 0] = np.arange(n + 1) * deletion, np.arange(n + 1)
    price[0], count[0] = np.arange(m + 1) * insertion, np.arange(m + 1)
    for diagonal in range(2, n + m + 1):
        i = np.arange(max(1, diagonal - m), min(n, diagonal - 1) + 1)
        j = diagonal - i
        same = first[i - 1] == second[j - 1]
        prices = (price[i - 1, j - 1] + substitution, price[i - 1, j] + deletion, price[i, j - 1] + insertion)
        counts = (count[i - 1, j - 1] + 1, count[i - 1, j] + 1, count[i, j - 1] + 1)
        choices = [same, (prices[0] <= prices[1]) & (prices[0] <= prices[2]), prices[1] < prices[2]]
        price[i, j] = np.select(choices, [price[i - 1, j - 1], *prices[:2]], prices[2])
        count[i, j] = np.select(choices, [count[i - 1, j - 1], *counts[:2]], counts[2])
    return int(count[n, m])


def _labels(rows: Any) -> Labels:
    """Return the index of the largest element of each row."""
    if isinstance(rows, SparseRows):
        if rows.one_hot:
            classes: Labels = rows.indices.cpu().numpy()
            return classes
        rows = torch.sparse_coo_tensor(
            torch.stack([rows.owner(), rows.indices]),
            torch.ones(len(rows.indices)) if rows.values is None else rows.values,
            (len(rows), rows.width),
        ).to_dense()
    best: Labels = rows.detach().flatten(1).argmax(1).cpu().numpy()
    return best


def _filter(labels: Labels, squash: bool, ignored: tuple[int, ...]) -> Labels:
    """Merge runs of one label if ``squash`` is set, then omit ignored labels."""
    if squash:
        labels = labels[np.append(True, labels[1:] != labels[:-1])]
    return labels[~np.isin(labels, ignored)]


def _edit_distance(node: Node, batch: PackedBatch, a: Any, b: Any) -> torch.Tensor:
    get, axes = node.attributes, node.inputs[0].axes
    # Without a sequence axis each sample is a sequence of one.
    offsets = batch.sequences[axes[1]].offsets if len(axes) > 1 else np.arange(batch.count + 1)
    wrong = counted = 0
    first, second = _labels(a), _labels(b)
    for begin, end in itertools.pairwise(offsets):
        if begin == end:
            continue
        source, target = (_filter(x[begin:end], get["squash"], get["ignored"]) for x in (first, second))
        wrong += edits(source, target, get["substitution"], get["deletion"], get["insertion"])
        counted += len(target)
    dtype = next((x.dtype for x in (a, b) if isinstance(x, torch.Tensor)), torch.get_default_dtype())
    value = wrong * int(offsets[-1]) / counted if counted else float("nan") if not wrong else float("inf")
    device = next((x.device for x in (a, b) if isinstance(x, torch.Tensor)), None)
    return torch.tensor(value, dtype=dtype, device=device)


def _two_sequences(site: Site) -> tuple[str, ...]:
    if not site.types[0].axes or site.types[0].axes != site.types[1].axes:
        site.refuse("two operands along the same sequences, or with a batch axis each")
    return ()


def _numbers(site: Site) -> Shape:
    if any(shape not in ((), (1,)) for shape in site.shapes):
        site.refuse("one score, one gain and one group for each sample")
    return ()


def _of_minibatch(site: Site) -> tuple[str, ...]:
    axes = {t.axes for t in site.types}
    if len(axes) != 1 or axes == {()}:
        site.refuse("operands with the same dynamic axes")
    return ()


def _groups(group: torch.Tensor) -> Iterator[slice]:
    changes = np.diff(group.detach().cpu().numpy()) != 0
    ends: list[int] = (np.flatnonzero(np.append(changes, len(group) > 0)) + 1).tolist()
    begin = 0
    for end in ends:
        yield slice(begin, end)
        begin = end


def _order(scores: torch.Tensor, gains: torch.Tensor) -> torch.Tensor:
    """Return the samples of a group, best first."""
    by_gain = gains.sort(stable=True).indices
    return by_gain[scores.detach()[by_gain].sort(descending=True, stable=True).indices]


def _flat(node: Node, tensors: Any) -> list[torch.Tensor]:
    return [dense(x, node).reshape(-1) for x in tensors]


def _lambda_rank(node: Node, batch: PackedBatch, *tensors: Any) -> torch.Tensor:
    """Return the mean over groups of ``1 - NDCG``, times 100 and the number of samples.

    NDCG is ``sum(gain / log(1 + rank))`` over its largest value, with natural logarithms, or 0 if all gains are 0. The
    gradient is taken of the sum of ``|change of NDCG| log(1 + exp(-(s - t)))`` over pairs with gains g > h and scores s
    and t. The change is the effect of exchanging the two at their present ranks.
    """
    scores, gains, group = _flat(node, tensors)
    missing, pairs, number = scores.new_zeros(()), scores.sum() * 0, 0
    for part in _groups(group):
        s, g = scores[part], gains[part].detach()
        weights = 1 / torch.arange(2, len(s) + 2, dtype=s.dtype, device=s.device).log()
        at = torch.empty_like(weights).index_copy_(0, _order(s, g), weights)
        ideal = (g.sort(descending=True).values * weights).sum()
        number += 1
        missing += 1 - (g * at).sum() / ideal if ideal else 1
        if not ideal:
            continue
        change = (g[:, None] - g).clamp_min(0) * (at[:, None] - at).abs() / ideal
        pairs = pairs + (change * torch.nn.functional.softplus(s - s[:, None])).sum()
    value = missing / max(number, 1) * 100 * len(scores)
    return value + (pairs - pairs.detach())


def _ndcg_at_1(node: Node, batch: PackedBatch, *tensors: Any) -> torch.Tensor:
    """Return the mean over groups of the first sample's gain over the largest, times 100 and the number of samples.

    A group without gains counts as 0.
    """
    scores, gains, group = (x.detach() for x in _flat(node, tensors))
    ratios = []
    for part in _groups(group):
        first, largest = gains[part][_order(scores[part], gains[part])[0]], gains[part].max()
        ratios.append(first / largest if largest else largest)
    return torch.stack(ratios).mean() * 100 * len(scores) if ratios else scores.new_zeros(())


def _declare(name: str, lower: Callable[..., Any]) -> None:
    declare(name, _numbers, lower_directly(lower), axes=_of_minibatch, stepwise=False)


declare(
    "edit_distance_error",
    lambda site: (),
    lower_directly(_edit_distance),
    axes=_two_sequences,
    stepwise=False,
    whole=True,
)
_declare("lambda_rank", _lambda_rank)
_declare("ndcg_at_1", _ndcg_at_1)
