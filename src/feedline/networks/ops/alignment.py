"""Connectionist temporal classification: the probability of labels over all alignments to steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from feedline.networks.node import Node
from feedline.networks.ops.align import dense, lower_directly
from feedline.networks.ops.sequence import with_sequences
from feedline.networks.packed_minibatch import PackedBatch
from feedline.networks.registry import Site, declare
from feedline.networks.shapes import scalar

# CNTK's loss of labels that do not fit into their steps: the negative of its logarithm of 0.
IMPOSSIBLE = 1e11


def _forward_backward(node: Node, batch: PackedBatch, labels: Any, scores: Any) -> torch.Tensor:
    """Return minus the logarithm of the probability of the labels, summed over sequences.

    A label begins at the first step, and at each step whose largest element is above 1. Attribute ``delay``: how many
    steps after the begin of the next label an alignment may leave a label. -1 means any number.
    """
    sequences, scores = batch.sequences[node.inputs[0].axes[1]], dense(scores, node)
    maxima = dense(labels, node).detach().max(-1)
    begins = (maxima.values > 1.5).cpu().numpy()
    begins[sequences.offsets[:-1]] = True
    targets = maxima.indices[torch.from_numpy(begins).to(scores.device)]
    counts = np.add.reduceat(begins.astype(np.int64), sequences.offsets[:-1])
    logs = torch.log_softmax(scores, -1)
    steps = pad_sequence(list(logs.split(sequences.lengths.tolist())))
    lengths, counted = torch.from_numpy(sequences.lengths), torch.from_numpy(counts)
    blank, delay = node.attributes["blank"], node.attributes.get("delay", -1)
    if delay == -1:
        each = functional.ctc_loss(steps, targets, lengths, counted, blank=blank, reduction="none")
    else:
        rows = np.flatnonzero(begins) - np.repeat(sequences.offsets[:-1], counts)
        ends = [np.append(first[1:], n) for first, n in zip(_split(rows, counts), sequences.lengths, strict=True)]
        each = _within_delay(steps, targets.split(counts.tolist()), sequences.lengths, ends, blank, delay)
    return torch.where(each > -_NEVER / 2, IMPOSSIBLE, each).sum()


# Logarithm of a probability of 0 that sums can be differentiated over.
_NEVER = -1e30


def _split(rows: NDArray[np.int64], counts: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    return np.split(rows, np.cumsum(counts)[:-1])


def _within_delay(
    logs: torch.Tensor,
    labels: Sequence[torch.Tensor],
    lengths: NDArray[np.int64],
    ends: Sequence[NDArray[np.int64]],
    blank: int,
    delay_steps: int,
) -> torch.Tensor:
    """Return minus the logarithm of the probability of each sequence's labels over alignments of a bounded delay.

    State 2k of a sequence is the blank before label k, and state 2k + 1 the label, which alignments leave
    ``delay_steps`` steps after its end at the latest. So they leave the blank before it earlier. The last blank has no
    bound.

    Args:
        logs: logarithms of probabilities, (longest, sequences, classes).
        labels: classes of each sequence's labels.
        lengths: steps of each sequence.
        ends: steps after the last one of each label, for each sequence.
        blank: class of the blank.
        delay_steps: how late alignments may leave a label.
    """
    device, count = logs.device, max(map(len, labels))
    classes = torch.full((len(labels), 2 * count + 1), blank, device=device)
    latest = torch.full(classes.shape, len(logs), device=device)
    for i, (items, after) in enumerate(zip(labels, ends, strict=True)):
        classes[i, 1 : 2 * len(items) : 2] = items
        latest[i, 1 : 2 * len(items) : 2] = torch.from_numpy(after + delay_steps).to(device)
    skips = torch.zeros_like(classes, dtype=torch.bool)
    skips[:, 3::2] = classes[:, 3::2] != classes[:, 1:-2:2]
    observed = logs.gather(2, classes.expand(len(logs), *classes.shape))
    never = observed.new_full((), _NEVER)
    scores = torch.where(torch.arange(2 * count + 1, device=device) < 2, observed[0], never)
    steps = torch.from_numpy(lengths).to(device)[:, None]
    for t in range(1, len(logs)):
        by_one, by_two = (functional.pad(scores, (n, 0), value=_NEVER)[:, :-n] for n in (1, 2))
        ways = torch.stack([scores, by_one, torch.where(skips, by_two, never)])
        reached = torch.where(t <= latest, ways.logsumexp(0) + observed[t], never)
        scores = torch.where(t < steps, reached, scores)
    last = torch.tensor([2 * len(items) for items in labels], device=device)[:, None]
    return -torch.cat([scores.gather(1, last), scores.gather(1, last - 1)], 1).logsumexp(1)


def _same_steps(site: Site) -> tuple[str, ...]:
    if with_sequences(site, 0) != with_sequences(site, 1) or site.shapes[0] != site.shapes[1]:
        site.refuse("labels and scores of one shape, along the same sequences")
    if not 0 <= site.attributes["blank"] < (site.shape(0) or (0,))[0]:
        site.refuse(f"a blank among the labels, not {site.attributes['blank']}")
    return ()


declare("forward_backward", scalar, lower_directly(_forward_backward), axes=_same_steps, stepwise=False, whole=True)
