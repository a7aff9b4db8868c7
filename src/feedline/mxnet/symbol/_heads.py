"""Loss heads: operators that ignore incoming gradients and produce their own, by MXNet's rules.

They return probabilities or predictions, not the loss. ``backward`` starts at them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch.nn import functional

from feedline.mxnet.symbol._operator import Site, define, from_data, same
from feedline.mxnet.symbol._parameters import Fraction

Gradient = Callable[..., Any]
Normalization = Literal["batch", "null", "valid"]


class _Head(torch.autograd.Function):
    """Autograd function whose forward pass returns ``out``, with the gradient ``gradient(incoming, out, *tensors)``."""

    @staticmethod
    def forward(context: Any, gradient: Gradient, out: Any, *tensors: Any) -> Any:
        context.gradient = gradient
        context.save_for_backward(out, *tensors)
        return out.clone()

    @staticmethod
    def backward(context: Any, incoming: Any) -> Any:
        out, *tensors = context.saved_tensors
        result = context.gradient(incoming, out, *tensors)
        return (None, None, result, *[None] * (len(tensors) - 1))


def _head(gradient: Gradient, out: Any, data: Any, *labels: Any) -> Any:
    return _Head.apply(gradient, out.detach(), data, *[tensor.detach() for tensor in labels])


# ---- softmax ------------------------------------------------------------------------------------------------


def _predicting(site: Site) -> None:
    """Record the data's shape as the output's, even while the label's is unknown."""
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


@define("SoftmaxOutput Softmax", labels="label", head=True, shape=_softmax_shape)
def _softmax_output(
    data: Any,
    label: Any,
    *,
    grad_scale: float = 1.0,
    ignore_label: float = -1.0,
    multi_output: bool = False,
    use_ignore: bool = False,
    preserve_shape: bool = False,
    normalization: Normalization = "null",
    out_grad: bool = False,
    smooth_alpha: Fraction = 0.0,
) -> Any:
    # Reshaped to (rows, classes, positions).
    if multi_output:
        columns = (len(data), data.shape[1], -1)
    else:
        columns = (-1, data.shape[-1], 1) if preserve_shape else (len(data), -1, 1)

    def gradient(incoming: Any, out: Any, data: Any, label: Any) -> Any:
        if out.shape == label.shape:  # labels are probabilities
            result = (out - label) * grad_scale
            return result * incoming if out_grad else result
        y = out.reshape(columns)
        target = label.reshape(y.shape[0], 1, y.shape[2]).to(torch.int64)
        # As in MXNet, a class that does not exist subtracts nothing.
        hot = (target == torch.arange(y.shape[1], device=y.device).reshape(1, -1, 1)).to(y.dtype)
        if smooth_alpha:
            hot = hot * (1 - smooth_alpha) + (1 - hot) * smooth_alpha / (y.shape[1] - 1)
        result = y - hot
        ignored = target == int(ignore_label)
        if use_ignore:
            result = torch.where(ignored, torch.zeros((), dtype=y.dtype, device=y.device), result)
        scale: Any = grad_scale
        if normalization == "valid":
            scale = scale / (target.numel() - ignored.sum()).clamp_min(1).to(y.dtype)
        else:
            scale = scale / y.shape[2] / (len(label) if normalization == "batch" else 1)
        result = (result * scale).reshape(out.shape)
        return result * incoming if out_grad else result

    return _head(gradient, torch.softmax(data.reshape(columns), 1).reshape(data.shape), data, label)


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
    def run(data: Any, label: Any, *, grad_scale: float = 1.0) -> Any:
        def gradient(incoming: Any, y: Any, data: Any, label: Any) -> Any:
            each = label.numel() / len(label)  # the mean over the predictions of one row
            return difference(y, label.reshape(y.shape)) * (grad_scale / each)

        return _head(gradient, out(data), data, label)

    return run


for _name, _out, _difference in (
    ("LinearRegressionOutput", torch.clone, lambda y, label: y - label),
    ("LogisticRegressionOutput", torch.sigmoid, lambda y, label: y - label),
    # The gradient is -1 where output and label are equal, as where the output is less.
    ("MAERegressionOutput", torch.clone, lambda y, label: (y > label).to(y.dtype) * 2 - 1),
):
    define(_name, labels="label", head=True, shape=_regression_shape)(_regression(_out, _difference))

# ---- margins ------------------------------------------------------------------------------------------------


@define("SVMOutput", labels="label", head=True, shape=from_data(lambda x, p: [x[:-1] or (1,)]))
def _margin(
    data: Any, label: Any, *, margin: float = 1.0, regularization_coefficient: float = 1.0, use_linear: bool = False
) -> Any:
    def gradient(incoming: Any, out: Any, data: Any, label: Any) -> Any:
        right = label.to(torch.int64)[..., None] == torch.arange(data.shape[-1], device=data.device)
        # The correct class should lie above the margin, the others below its negative.
        sign = torch.where(right, 1.0, -1.0).to(data.dtype)
        short = (margin - sign * data).clamp_min(0)
        each = (short > 0).to(data.dtype) if use_linear else 2 * short
        return -sign * each * regularization_coefficient

    return _head(gradient, data, data, label)


# ---- losses that are outputs --------------------------------------------------------------------------------


@define("MakeLoss", head=True, shape=same)
def _scaled_loss(
    data: Any, *, grad_scale: float = 1.0, valid_thresh: float = 0.0, normalization: Normalization = "null"
) -> Any:
    def gradient(incoming: Any, out: Any, data: Any) -> Any:
        scale = torch.full_like(data, grad_scale)
        if normalization == "batch":
            return scale / len(data)
        return scale / (data > valid_thresh).sum().clamp_min(1).to(data.dtype) if normalization == "valid" else scale

    return _head(gradient, data, data)


@define("make_loss", head=True, shape=same)
def _make_loss(data: Any) -> Any:
    return _head(lambda incoming, out, data: torch.ones_like(data), data, data)


@define("softmax_cross_entropy", labels="label", shape=from_data(lambda x, p: [x[:1]], complete=True))
def _cross_entropy(data: Any, label: Any) -> Any:
    return functional.cross_entropy(data, label.to(torch.int64), reduction="sum").reshape(1)
