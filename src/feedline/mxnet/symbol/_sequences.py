"""Operators on batches of sequences of different lengths, time first: (steps, batch, ...), lengths (batch,)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from torch.nn import functional

from feedline.mxnet.symbol._operator import Site, define, from_data
from feedline.mxnet.symbol._parameters import Shape, word


@from_data
def _one_length_each(x: Shape, p: Any) -> Sequence[Shape]:
    _check(p.axis, x)
    return [(x[1 - p.axis],)]


def _check(axis: int, shape: Sequence[int]) -> None:
    if axis not in (0, 1):
        raise ValueError(f"expected time as axis 0 or 1, got {axis}")
    if len(shape) < 2:
        raise ValueError(f"expected data (steps, batch, ...), got {tuple(shape)}")


def _steps(x: Any) -> Any:
    """Return the numbers of the steps, as a column that broadcasts against the lengths."""
    return torch.arange(x.shape[0], device=x.device)[:, None]


_LENGTHS: dict[str, Any] = {
    "when": {"sequence_length": lambda p: p.use_sequence_length},
    "free": "sequence_length",
    "shape": _one_length_each,
}


@define("SequenceLast", **_LENGTHS)
def _last(data: Any, sequence_length: Any = None, *, use_sequence_length: bool = False, axis: int = 0) -> Any:
    _check(axis, data.shape)
    x = data.transpose(0, axis)
    if sequence_length is None:
        return x[-1].clone()
    return x[sequence_length.to(torch.int64) - 1, torch.arange(x.shape[1], device=x.device)]


@define("SequenceMask", **_LENGTHS)
def _mask(
    data: Any, sequence_length: Any = None, *, use_sequence_length: bool = False, value: float = 0.0, axis: int = 0
) -> Any:
    _check(axis, data.shape)
    if sequence_length is None:
        return data.clone()
    x = data.transpose(0, axis)
    beyond = (_steps(x) >= sequence_length).reshape(*x.shape[:2], *(1,) * (x.dim() - 2))
    return x.masked_fill(beyond, value).transpose(0, axis)


Front = Annotated[int, lambda text: int(word("0")(text))]


@define("SequenceReverse", **_LENGTHS)
def _reverse(data: Any, sequence_length: Any = None, *, use_sequence_length: bool = False, axis: Front = 0) -> Any:
    _check(axis, data.shape)
    if sequence_length is None:
        return data.flip(0)
    step, ends = _steps(data), sequence_length.to(torch.int64)
    source = torch.where(step < ends, ends - 1 - step, step)
    return data[source, torch.arange(data.shape[1], device=data.device)]


# ---- connectionist temporal classification ------------------------------------------------------------------


def _alignment_shape(site: Site) -> None:
    data, label = site.ins[:2]
    if data is None:
        return
    batch = label[0] if label else 0
    if len(data) != 3 or (label is not None and len(label) != 2) or (batch and data[1] and batch != data[1]):
        site.refuse(f"expected data (steps, batch, classes) and labels (batch, length), got {data} and {label}")
    for i in range(2, len(site.ins)):
        site.put_in(i, (data[1],))
    site.put_out((data[1],))  # even while the label is unknown


@define(
    "CTCLoss ctc_loss _contrib_CTCLoss _contrib_ctc_loss",
    when={"data_lengths": lambda p: p.use_data_lengths, "label_lengths": lambda p: p.use_label_lengths},
    labels="label",
    free="data_lengths label_lengths",
    hidden=1,
    shape=_alignment_shape,
)
def _alignment(
    data: Any,
    label: Any,
    data_lengths: Any = None,
    label_lengths: Any = None,
    *,
    use_data_lengths: bool = False,
    use_label_lengths: bool = False,
    blank_label: Literal["first", "last"] = "first",
) -> Any:
    steps, batch, classes = data.shape
    if data.is_meta:  # torch has no meta kernel for it
        return data.new_empty(batch)
    if not use_data_lengths:  # the third input is then the lengths of the labels
        data_lengths, label_lengths = torch.full((batch,), steps, device=data.device), data_lengths
    targets = label.to(torch.int64)
    # Classes without meaning: the blank between labels, and the padding after them if there are no lengths.
    blank, padding = (0, 0) if blank_label == "first" else (classes - 1, -1)
    if label_lengths is None:
        label_lengths = (targets != padding).to(torch.int64).cumprod(1).sum(1)
    times, lengths = data_lengths.to(torch.int64), label_lengths.to(torch.int64)
    return functional.ctc_loss(
        torch.log_softmax(data, 2), targets.clamp_min(0), times, lengths, blank, reduction="none"
    )
