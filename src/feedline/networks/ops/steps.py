"""Sequences from an axis of samples, and every n-th step of sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.networks.node import BATCH, Node
from feedline.networks.ops.align import dense, lower_directly
from feedline.networks.ops.sequence import with_sequences
from feedline.networks.packed_minibatch import PackedBatch, Sequences
from feedline.networks.registry import Shape, Site, declare
from feedline.networks.shapes import same


def _samples_with_steps(site: Site) -> None:
    if site.types[0].axes != (BATCH,):
        site.refuse("an operand with only a batch axis")


def _one_step(site: Site) -> Shape:
    shape = site.shape(0)
    if len(shape) < 2:
        site.refuse("samples of at least two axes, the first of them for the steps")
    return shape[1:]


def _new_axes(site: Site) -> tuple[str, ...]:
    _samples_with_steps(site)
    if len(site.inputs) > 1 and site.types[1].axes != (BATCH,):
        site.refuse("a length for each sample")
    # Operations that take the same steps of the same operand are along the same sequences.
    return (BATCH, f"steps of {' by '.join(str(n.uid) for n in site.inputs)}")


def _axes_like(site: Site) -> tuple[str, ...]:
    _samples_with_steps(site)
    return with_sequences(site, 1)


def _rows(x: torch.Tensor, lengths: NDArray[np.int64]) -> torch.Tensor:
    """Return the first ``lengths`` steps of each sample, back to back."""
    rows = np.arange(lengths.sum()) + np.repeat(np.arange(len(x)) * x.shape[1] - np.cumsum(lengths) + lengths, lengths)
    return x.flatten(0, 1).index_select(0, torch.from_numpy(rows).to(x.device))


def _to_sequence(node: Node, batch: PackedBatch, x: Any, sizes: Any = None) -> torch.Tensor:
    x = dense(x, node)
    lengths = np.full(len(x), x.shape[1], np.int64)
    if sizes is not None:
        lengths = dense(sizes, node).detach().reshape(-1).cpu().numpy().astype(np.int64)
        if ((lengths < 1) | (lengths > x.shape[1])).any():
            raise ValueError(f"{node.label}: expected lengths from 1 to {x.shape[1]}, got {lengths.tolist()}")
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    batch.sequences[node.axes[1]] = Sequences(offsets, x.device)
    return _rows(x, lengths)


def _to_sequence_like(node: Node, batch: PackedBatch, x: Any, like: Any) -> torch.Tensor:
    x, sequences = dense(x, node), batch.sequences[node.axes[1]]
    if sequences.longest != x.shape[1]:
        raise ValueError(
            f"{node.label}: expected {sequences.longest} steps, as the longest sequence has, got {x.shape[1]}"
        )
    return _rows(x, sequences.lengths)


def _every_axes(site: Site) -> tuple[str, ...]:
    return (BATCH, f"{with_sequences(site)[1]} by {site.attributes['stride']}")


def _every(node: Node, batch: PackedBatch, x: Any) -> Any:
    """Take the first step of each sequence, and every ``stride``-th step after it."""
    stride, old = node.attributes["stride"], batch.sequences[node.inputs[0].axes[1]]
    lengths = -(-old.lengths // stride)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    batch.sequences[node.axes[1]] = Sequences(offsets, old.device)
    rows = place * stride + np.repeat(old.offsets[:-1], lengths)
    return x.index_select(0, torch.from_numpy(rows).to(old.device))


declare("to_sequence", _one_step, lower_directly(_to_sequence), axes=_new_axes, stepwise=False)
declare("to_sequence_like", _one_step, lower_directly(_to_sequence_like), axes=_axes_like, stepwise=False, whole=True)
declare("sequence_every", same, lower_directly(_every), axes=_every_axes, stepwise=False, whole=True)
