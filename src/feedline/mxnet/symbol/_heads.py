"""Loss heads: operators that take no gradient from above and make their own, by MXNet's rules.

What they return is what a user wants to see (probabilities, predictions), not the loss; ``backward`` starts at them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from feedline.mxnet.symbol._operator import Site, define, same
from feedline.mxnet.symbol._parameters import Parameter, between, flag, real, word

Gradient = Callable[..., Any]


class _Head(torch.autograd.Function):
    """``forward`` gives what was computed, ``backward`` what ``gradient(given, out, *tensors)`` makes of it."""

    @staticmethod
    def forward(context: Any, gradient: Gradient, out: Any, *tensors: Any) -> Any:
        context.gradient = gradient
        context.save_for_backward(out, *tensors)
        return out.clone()

    @staticmethod
    def backward(context: Any, given: Any) -> Any:
        out, *tensors = context.saved_tensors
        found = context.gradient(given, out, *tensors)
        return (None, None, found, *[None] * (len(tensors) - 1))


def _head(gradient: Gradient, out: Any, data: Any, *others: Any) -> Any:
    return _Head.apply(gradient, out.detach(), data, *[tensor.detach() for tensor in others])


# ---- softmax ------------------------------------------------------------------------------------------------


def _predicting(site: Site) -> None:
    """The output has the data's shape, even while the label's is unknown."""
    if site.ins[0] is not None:
        site.put_out(site.ins[0])


def _softmax_shape(site: Site) -> None:
    _predicting(site)
    data, label = site.full(), site.ins[1]
    if data is None or label == data:
        return
    if not site.p.multi_output:
        site.put_in(1, data[:-1] or (1,))
        return
    allowed = [(data[0], math.prod(data[2:])), (data[0], *data[2:]), (data[0], 1, *data[2:])]
    if label is None:
        site.put_in(1, allowed[0])
    elif label not in allowed:
        site.refuse(f"Expecting {allowed[0]} or {allowed[1]}. But got {label}")


def _columns(p: Any, x: Any) -> Any:
    """As (rows, classes, places)."""
    if p.multi_output:
        return x.reshape(x.shape[0], x.shape[1], -1)
    return x.reshape(-1, x.shape[-1], 1) if p.preserve_shape else x.reshape(x.shape[0], -1, 1)


def _softmax_output(p: Any, training: bool, data: Any, label: Any) -> Any:
    out = torch.softmax(_columns(p, data), 1).reshape(data.shape)
    return _head(lambda given, out, data, label: _softmax_gradient(p, given, out, label), out, data, label)


def _softmax_gradient(p: Any, given: Any, out: Any, label: Any) -> Any:
    if out.shape == label.shape:  # labels are probabilities
        gradient = (out - label) * p.grad_scale
        return gradient * given if p.out_grad else gradient
    y = _columns(p, out)
    target = label.reshape(y.shape[0], 1, y.shape[2]).to(torch.int64)
    # A class that does not exist subtracts nothing, as in MXNet.
    hot = (target == torch.arange(y.shape[1], device=y.device).reshape(1, -1, 1)).to(y.dtype)
    if p.smooth_alpha:
        hot = hot * (1 - p.smooth_alpha) + (1 - hot) * p.smooth_alpha / (y.shape[1] - 1)
    gradient = y - hot
    ignored = target == int(p.ignore_label)
    if p.use_ignore:
        gradient = torch.where(ignored, torch.zeros((), dtype=y.dtype, device=y.device), gradient)
    scale = p.grad_scale
    if p.normalization == "valid":
        scale = scale / (target.numel() - ignored.sum()).clamp_min(1).to(y.dtype)
    else:
        scale = scale / y.shape[2] / (len(label) if p.normalization == "batch" else 1)
    gradient = (gradient * scale).reshape(out.shape)
    return gradient * given if p.out_grad else gradient


define(
    "SoftmaxOutput Softmax",
    "data label",
    _softmax_output,
    {
        "grad_scale": Parameter(real, 1.0),
        "ignore_label": Parameter(real, -1.0),
        "multi_output": Parameter(flag, False),
        "use_ignore": Parameter(flag, False),
        "preserve_shape": Parameter(flag, False),
        "normalization": Parameter(word("batch", "null", "valid"), "null"),
        "out_grad": Parameter(flag, False),
        "smooth_alpha": Parameter(between(real, 0, 1), 0.0),
    },
    labels="label",
    free="label",
    head=True,
    shape=_softmax_shape,
)

# ---- regression ---------------------------------------------------------------------------------------------


def _regression_shape(site: Site) -> None:
    _predicting(site)
    data, label = site.full(0), site.ins[1]
    if data is None:
        return
    column = len(data) == 2 and data[1] == 1
    if label is None:
        site.put_in(1, data[:1] if column else data)
    elif label != data and not (column and label == data[:1]):
        site.refuse(f"Shape inconsistent, Provided = {label}, inferred shape={data}")


def _regression(out: Callable[[Any], Any], difference: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def run(p: Any, training: bool, data: Any, label: Any) -> Any:
        def gradient(given: Any, y: Any, data: Any, label: Any) -> Any:
            each = label.numel() / len(label)  # the mean over what one row has to predict
            return difference(y, label.reshape(y.shape)) * (p.grad_scale / each)

        return _head(gradient, out(data), data, label)

    return run


for _name, _out, _difference in (
    ("LinearRegressionOutput", torch.clone, lambda y, label: y - label),
    ("LogisticRegressionOutput", torch.sigmoid, lambda y, label: y - label),
    # Where both are equal it is -1, as below.
    ("MAERegressionOutput", torch.clone, lambda y, label: (y > label).to(y.dtype) * 2 - 1),
):
    define(
        _name,
        "data label",
        _regression(_out, _difference),
        {"grad_scale": Parameter(real, 1.0)},
        labels="label",
        free="label",
        head=True,
        shape=_regression_shape,
    )

# ---- margins ------------------------------------------------------------------------------------------------


def _margin_shape(site: Site) -> None:
    data = site.ins[0]
    if data is not None:
        site.put_in(1, data[:-1] or (1,))


def _margin(p: Any, training: bool, data: Any, label: Any) -> Any:
    def gradient(given: Any, out: Any, data: Any, label: Any) -> Any:
        right = label.to(torch.int64)[..., None] == torch.arange(data.shape[-1], device=data.device)
        # The right class is to lie above the margin, the others below its negative.
        sign = torch.where(right, 1.0, -1.0).to(data.dtype)
        short = (p.margin - sign * data).clamp_min(0)
        each = (short > 0).to(data.dtype) if p.use_linear else 2 * short
        return -sign * each * p.regularization_coefficient

    return _head(gradient, data, data, label)


define(
    "SVMOutput",
    "data label",
    _margin,
    {
        "margin": Parameter(real, 1.0),
        "regularization_coefficient": Parameter(real, 1.0),
        "use_linear": Parameter(flag, False),
    },
    labels="label",
    free="label",
    head=True,
    shape=_margin_shape,
)

# ---- losses that are outputs --------------------------------------------------------------------------------


def _make_loss(p: Any, training: bool, data: Any) -> Any:
    def gradient(given: Any, out: Any, data: Any) -> Any:
        scale = torch.full_like(data, p.grad_scale)
        if p.normalization == "batch":
            return scale / len(data)
        return (
            scale / (data > p.valid_thresh).sum().clamp_min(1).to(data.dtype) if p.normalization == "valid" else scale
        )

    return _head(gradient, data, data)


define(
    "MakeLoss",
    "data",
    _make_loss,
    {
        "grad_scale": Parameter(real, 1.0),
        "valid_thresh": Parameter(real, 0.0),
        "normalization": Parameter(word("batch", "null", "valid"), "null"),
    },
    head=True,
    shape=same,
)
define(
    "make_loss",
    "data",
    lambda p, training, data: _head(lambda given, out, data: torch.ones_like(data), data, data),
    head=True,
    shape=same,
)


def _cross_entropy_shape(site: Site) -> None:
    data = site.full()
    if data is not None:
        site.put_in(1, data[:1])


define(
    "softmax_cross_entropy",
    "data label",
    lambda p, training, data, label: torch.nn.functional.cross_entropy(
        data, label.to(torch.int64), reduction="sum"
    ).reshape(1),
    labels="label",
    free="label",
    shape=_cross_entropy_shape,
)
