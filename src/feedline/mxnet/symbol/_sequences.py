"""Operators on batches of sequences of unequal lengths, time in front: (steps, batch, ...), lengths (batch,)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from feedline.mxnet.symbol._operator import Names, Site, define
from feedline.mxnet.symbol._parameters import Parameter, flag, integer, real, word


def _inputs(p: Any) -> Names:
    return ("data", "sequence_length") if p.use_sequence_length else ("data",)


def _one_length_each(site: Site) -> None:
    shape = site.ins[0]
    if shape is not None and site.p.use_sequence_length:
        _check(site.p, shape)
        site.put_in(1, (shape[1 - site.p.axis],))


def _check(p: Any, shape: Sequence[int]) -> None:
    if p.axis not in (0, 1):
        raise ValueError(f"expected time as axis 0 or 1, got {p.axis}")
    if len(shape) < 2:
        raise ValueError(f"expected data (steps, batch, ...), got {tuple(shape)}")


def _steps(x: Any) -> Any:
    """Numbers of the steps, as a column beside the lengths."""
    return torch.arange(x.shape[0], device=x.device)[:, None]


def _last(p: Any, training: bool, x: Any, lengths: Any = None) -> Any:
    _check(p, x.shape)
    x = x.transpose(0, p.axis)
    if lengths is None:
        return x[-1].clone()
    return x[lengths.to(torch.int64) - 1, torch.arange(x.shape[1], device=x.device)]


def _mask(p: Any, training: bool, x: Any, lengths: Any = None) -> Any:
    _check(p, x.shape)
    if lengths is None:
        return x.clone()
    turned = x.transpose(0, p.axis)
    beyond = (_steps(turned) >= lengths).reshape(*turned.shape[:2], *(1,) * (x.dim() - 2))
    return turned.masked_fill(beyond, p.value).transpose(0, p.axis)


def _reverse(p: Any, training: bool, x: Any, lengths: Any = None) -> Any:
    _check(p, x.shape)
    if lengths is None:
        return x.flip(0)
    step, ends = _steps(x), lengths.to(torch.int64)
    source = torch.where(step < ends, ends - 1 - step, step)
    return x[source, torch.arange(x.shape[1], device=x.device)]


_LENGTHS = {"use_sequence_length": Parameter(flag, False)}

define(
    "SequenceLast",
    _inputs,
    _last,
    {**_LENGTHS, "axis": Parameter(integer, 0)},
    free="sequence_length",
    shape=_one_length_each,
)
define(
    "SequenceMask",
    _inputs,
    _mask,
    {**_LENGTHS, "value": Parameter(real, 0.0), "axis": Parameter(integer, 0)},
    free="sequence_length",
    shape=_one_length_each,
)
define(
    "SequenceReverse",
    _inputs,
    _reverse,
    {**_LENGTHS, "axis": Parameter(lambda text: int(word("0")(text)), 0)},
    free="sequence_length",
    shape=_one_length_each,
)

# ---- connectionist temporal classification ------------------------------------------------------------------


def _alignment_inputs(p: Any) -> Names:
    lengths = {"data_lengths": p.use_data_lengths, "label_lengths": p.use_label_lengths}
    return ("data", "label", *(name for name, used in lengths.items() if used))


def _alignment_shape(site: Site) -> None:
    data, label = site.ins[:2]
    if data is None:
        return
    batch = label[0] if label else 0
    if len(data) != 3 or (label is not None and len(label) != 2) or (batch and data[1] and batch != data[1]):
        site.refuse(f"expected data (steps, batch, classes) and labels (batch, length), got {data} and {label}")
    for i in range(2, len(site.ins)):
        site.put_in(i, (data[1],))


def _alignment(p: Any, training: bool, x: Any, label: Any, *given: Any) -> Any:
    steps, batch, classes = x.shape
    if x.is_meta:  # torch has no such kernel for shapes alone
        return x.new_empty(batch)
    lengths = dict(zip(_alignment_inputs(p)[2:], (one.to(torch.int64) for one in given), strict=True))
    targets = label.to(torch.int64)
    # The classes that mean nothing: between labels, and after the last where no lengths are given.
    blank, padding = (0, 0) if p.blank_label == "first" else (classes - 1, -1)
    if "label_lengths" not in lengths:
        lengths["label_lengths"] = (targets != padding).to(torch.int64).cumprod(1).sum(1)
    times = lengths.get("data_lengths", torch.full((batch,), steps, device=x.device))
    return functional.ctc_loss(
        torch.log_softmax(x, 2), targets.clamp_min(0), times, lengths["label_lengths"], blank, reduction="none"
    )


define(
    "CTCLoss ctc_loss _contrib_CTCLoss _contrib_ctc_loss",
    _alignment_inputs,
    _alignment,
    {
        "use_data_lengths": Parameter(flag, False),
        "use_label_lengths": Parameter(flag, False),
        "blank_label": Parameter(word("first", "last"), "first"),
    },
    labels="label",
    free="label data_lengths label_lengths",
    hidden=1,
    shape=_alignment_shape,
)
