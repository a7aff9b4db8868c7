"""Connectionist temporal classification: the probability of labels over all alignments to steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
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

    A label begins at the first step, and at each step whose largest element is above 1.
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
    each = functional.ctc_loss(steps, targets, lengths, counted, blank=node.attributes["blank"], reduction="none")
    return torch.where(each.isinf(), IMPOSSIBLE, each).sum()


def _same_steps(site: Site) -> tuple[str, ...]:
    if with_sequences(site, 0) != with_sequences(site, 1) or site.shapes[0] != site.shapes[1]:
        site.refuse("labels and scores of one shape, along the same sequences")
    if not 0 <= site.attributes["blank"] < (site.shape(0) or (0,))[0]:
        site.refuse(f"a blank among the labels, not {site.attributes['blank']}")
    return ()


declare("forward_backward", scalar, lower_directly(_forward_backward), axes=_same_steps, stepwise=False, whole=True)
