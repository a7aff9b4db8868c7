"""Results without data of the most common functions of networks, from the shapes of their arguments.

torch has rules for tensors without data, but they are slow. In Python a normalisation takes fifty steps, which would be
most of the time of a dry run, and the first rule imports the compiler of torch, which takes a second. A rule here
covers only the usual case. Arguments that do not fit, and unusual ones, are left to torch, which has the error
messages. Tests compare the rules with the results of torch.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.nn import functional

Result: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...] | None
Rule = Callable[..., Result]


def result_of(function: Any, args: Sequence[Any], kwargs: dict[str, Any], device: torch.device | None = None) -> Result:
    """Return the result of a torch function on tensors without data, or None if there is no rule for it.

    Args:
        function: torch function.
        args: positional arguments.
        kwargs: keyword arguments.
        device: device that the tensors would have if they had data. None means their present device.
    """
    rule = _RULES.get(function)
    if rule is None or torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return None
    try:
        if rule is _attention:
            return _attention(*args, **kwargs, device=device or args[0].device)
        return rule(*args, **kwargs)
    except TypeError:  # called with arguments that the rule does not know
        return None


def _expect(is_usual: object) -> None:
    """Leave an unusual call to torch."""
    if not is_usual:
        raise TypeError("expected a usual call")


def _is_plain(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.is_contiguous()


def _empty(like: Any, shape: Sequence[int]) -> torch.Tensor:
    return torch.empty(tuple(shape), dtype=like.dtype, device=like.device)


def _kind(tensor: Any) -> tuple[Any, Any]:
    """Return the properties that operands of one function must share."""
    return tensor.dtype, tensor.device


def _is_like(tensor: Any, input: Any, shape: Any) -> bool:
    return tensor is None or (tensor.shape == shape and tensor.dtype == input.dtype and tensor.device == input.device)


def _elementwise(input: Any, *_: Any, inplace: bool = False, **__: Any) -> torch.Tensor:
    """Return a tensor in the layout of the input, which must have no gaps."""
    _expect(not inplace and isinstance(input, torch.Tensor) and input.is_floating_point() and _is_dense(input))
    return torch.empty_strided(input.shape, input.stride(), dtype=input.dtype, device=input.device)


def _unary(input: Any) -> torch.Tensor:
    return _elementwise(input)


def _with_numbers(input: Any, *numbers: Any) -> torch.Tensor:
    _expect(numbers and all(isinstance(n, (int, float)) for n in numbers))
    return _elementwise(input)


def _dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    _expect(training and 0 <= p <= 1)  # without training, the result is the input
    return _elementwise(input, inplace=inplace)


def _softmax(input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> torch.Tensor:
    _expect(dtype is None and isinstance(dim, int) and -input.ndim <= dim < input.ndim and _is_plain(input))
    return _empty(input, input.shape)


def _binary(input: Any, other: Any) -> torch.Tensor:
    if isinstance(other, (int, float)):
        return _elementwise(input)
    _expect(isinstance(other, torch.Tensor) and other.dtype == input.dtype and other.device == input.device)
    if input.shape == other.shape and _is_dense(input) and _is_dense(other):
        return _elementwise(input)
    _expect(_is_plain(input) and _is_plain(other))
    return _empty(input, _broadcast(input.shape, other.shape))


def _product(input: Any, other: Any) -> torch.Tensor:
    _expect(input.is_floating_point() and _kind(input) == _kind(other))
    _expect(min(input.ndim, other.ndim) >= 2 and other.ndim in (2, input.ndim) and input.shape[-1] == other.shape[-2])
    return _empty(input, (*_broadcast(input.shape[:-2], other.shape[:-2]), input.shape[-2], other.shape[-1]))


def _batched_product(input: Any, mat2: Any) -> torch.Tensor:
    _expect(input.ndim == mat2.ndim == 3 and input.shape[0] == mat2.shape[0])
    return _product(input, mat2)


def _reduction(input: Any, dim: Any = None, keepdim: bool = False) -> torch.Tensor:
    _expect(_is_plain(input) and input.numel())
    axes = range(input.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    gone = {axis % input.ndim for axis in axes if -input.ndim <= axis < input.ndim}
    _expect(len(gone) == len(axes) and (axes or dim is None))
    return _empty(input, [1 if n in gone else size for n, size in enumerate(input.shape) if keepdim or n not in gone])


def _stack(tensors: Any, dim: int = 0) -> torch.Tensor:
    parts = list(tensors)
    first = parts[0]
    _expect(all(_is_plain(part) and _is_like(part, first, first.shape) for part in parts))
    _expect(-first.ndim - 1 <= dim <= first.ndim)
    dim %= first.ndim + 1
    return _empty(first, (*first.shape[:dim], len(parts), *first.shape[dim:]))


def _group_norm(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> torch.Tensor:
    _expect(_is_plain(input) and input.ndim >= 3 and num_groups >= 1 and input.shape[1] % num_groups == 0)
    _expect(all(_is_like(t, input, input.shape[1:2]) for t in (weight, bias)) and input.shape[2:].numel() > 1)
    return _empty(input, input.shape)


def _in_place(input: Any, other: Any) -> torch.Tensor:
    leaf = input.is_leaf and input.requires_grad and torch.is_grad_enabled()  # torch refuses to change it
    _expect(not leaf and _binary(input, other).shape == input.shape)
    return input


def _broadcast(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    pairs = list(itertools.zip_longest(reversed(a), reversed(b), fillvalue=1))
    _expect(all(n == m or 1 in (n, m) for n, m in pairs))
    return tuple(m if n == 1 else n for n, m in reversed(pairs))


def _linear(input: Any, weight: Any, bias: Any = None) -> torch.Tensor:
    _expect(input.is_floating_point() and input.ndim >= 2 and weight.ndim == 2)
    out, into = weight.shape
    _expect(_is_like(weight, input, (out, into)) and input.shape[-1] == into and _is_like(bias, input, (out,)))
    return _empty(input, (*input.shape[:-1], out))


def _convolution(
    rank: int,
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> torch.Tensor:
    _expect(_is_plain(input) and weight.is_contiguous() and input.ndim == weight.ndim == rank + 2)
    _expect(input.shape[1] == weight.shape[1] * groups and weight.shape[0] % groups == 0)
    _expect(_is_like(weight, input, weight.shape) and _is_like(bias, input, weight.shape[:1]))
    sizes = _kernel_places(input.shape[2:], weight.shape[2:], stride, padding, dilation)
    return _empty(input, (input.shape[0], weight.shape[0], *sizes))


def _pooling(
    rank: int, input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, *, dilation: Any = 1, **odd: Any
) -> torch.Tensor:
    _expect(not any(odd.get(name) for name in ("ceil_mode", "return_indices", "divisor_override")))
    _expect(_is_plain(input) and input.ndim == rank + 2)
    kernel = _all(kernel_size, rank)
    _expect(all(2 * p <= k for p, k in zip(_all(padding, rank), kernel, strict=True)))
    sizes = _kernel_places(input.shape[2:], kernel, kernel_size if stride in (None, ()) else stride, padding, dilation)
    return _empty(input, (*input.shape[:2], *sizes))


def _adaptive(rank: int, input: Any, output_size: Any) -> torch.Tensor:
    sizes = _all(output_size, rank)
    _expect(_is_plain(input) and input.ndim == rank + 2 and all(isinstance(n, int) and n > 0 for n in sizes))
    return _empty(input, (*input.shape[:2], *sizes))


def _all(value: Any, rank: int) -> tuple[int, ...]:
    """Return a value for each spatial axis. Raises TypeError for another number of values."""
    values = (value,) * rank if isinstance(value, int) else tuple(value)
    values = values * rank if len(values) == 1 else values
    _expect(len(values) == rank)
    return values


def _kernel_places(sizes: Sequence[int], kernel: Sequence[int], stride: Any, padding: Any, dilation: Any) -> list[int]:
    """Return the number of places of a kernel along each axis, at least one."""
    _expect(not isinstance(padding, str))
    rank = len(kernel)
    steps = zip(sizes, kernel, *(_all(v, rank) for v in (stride, padding, dilation)), strict=True)
    places = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in steps if s > 0 and p >= 0 and d > 0]
    _expect(len(places) == rank and min(places) > 0)
    return places


def _cat(tensors: Any, dim: int = 0) -> torch.Tensor:
    parts = list(tensors)
    first = parts[0]
    _expect(all(isinstance(t, torch.Tensor) and t.is_floating_point() and t.ndim == first.ndim for t in parts))
    _expect(first.ndim != 4 or all(t.is_contiguous() for t in parts))  # otherwise the result may have channels last
    _expect(-first.ndim <= dim < first.ndim and all(_kind(t) == _kind(first) for t in parts))
    dim %= first.ndim
    _expect(len({(*t.shape[:dim], *t.shape[dim + 1 :]) for t in parts}) == 1)
    return _empty(first, (*first.shape[:dim], sum(t.shape[dim] for t in parts), *first.shape[dim + 1 :]))


def _batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    **_: Any,
) -> torch.Tensor:
    _expect(not training or input.shape.numel() > input.shape[1])
    _expect(all(_is_like(t, input, input.shape[1:2]) for t in (running_mean, running_var, weight, bias)))
    _expect(_is_plain(input))
    return _empty(input, input.shape)


def _layer_norm(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> torch.Tensor:
    axes = input.shape[input.ndim - len(normalized_shape) :]
    _expect(tuple(axes) == tuple(normalized_shape) and all(_is_like(t, input, axes) for t in (weight, bias)))
    _expect(input.is_floating_point())
    return _empty(input, input.shape)


def _embedding(input: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, **_: Any) -> torch.Tensor:
    _expect(max_norm is None and input.dtype in _INTEGERS and weight.ndim == 2)
    return _empty(weight, (*input.shape, weight.shape[1]))


def _embedding_bag(
    input: Any,
    weight: Any,
    offsets: Any = None,
    max_norm: Any = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: Any = None,
) -> torch.Tensor:
    _expect(max_norm is None and input.dtype in _INTEGERS and weight.ndim == 2 and mode in ("sum", "mean", "max"))
    _expect(mode != "max" or not (scale_grad_by_freq or sparse))
    _expect(per_sample_weights is None or (mode == "sum" and _is_like(per_sample_weights, weight, input.shape)))
    if input.ndim == 2 and offsets is None:
        bags = input.shape[0]
    else:
        _expect(input.ndim == 1 and offsets is not None and offsets.ndim == 1 and offsets.dtype == input.dtype)
        bags = offsets.shape[0] - bool(include_last_offset)
    _expect(bags > 0)
    return _empty(weight, (bags, weight.shape[1]))


def _recurrence(
    states: int,
    input: Any,
    hx: Any,
    weights: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """Return the results of layers over padded sequences. With two states, the second is the state of the cell."""
    before = [hx] if states == 1 else list(hx)
    _expect(not isinstance(weights, torch.Tensor))  # packed sequences pass a tensor here
    _expect(all(_is_plain(tensor) for tensor in (input, *before, *weights)))
    _expect(input.ndim == 3 and len(before) == states and all(state.ndim == 3 for state in before))
    directions = 2 if bidirectional else 1
    steps, batch = input.shape[batch_first], input.shape[1 - batch_first]
    stacked, width = num_layers * directions, before[0].shape[2]
    projected = states == 2 and width != before[1].shape[2]
    _expect(len(weights) == stacked * (2 + 2 * has_biases + projected))
    _expect(all(tuple(state.shape[:2]) == (stacked, batch) for state in before) and 0 <= dropout < 1)
    _expect(weights[0].shape[1] == input.shape[2] and weights[1].shape[1] == width)
    _expect(all(_kind(t) == _kind(input) for t in (*before, *weights)) and steps * batch)
    output = _empty(input, (steps, batch, directions * width))
    return (output.transpose(0, 1) if batch_first else output, *(_empty(state, state.shape) for state in before))


def _recurrent_cell(states: int, gates: int, input: Any, hx: Any, inner: Any, outer: Any, *biases: Any) -> Result:
    before = [hx] if states == 1 else list(hx)
    _expect(len(before) == states and all(_is_plain(t) and t.ndim == 2 for t in (input, *before, inner, outer)))
    batch, width = before[0].shape
    _expect(input.shape[0] == batch and all(_is_like(state, input, (batch, width)) for state in before))
    _expect(_is_like(inner, input, (gates * width, input.shape[1])) and _is_like(outer, input, (gates * width, width)))
    _expect(all(_is_like(bias, input, (gates * width,)) for bias in biases))
    results = tuple(_empty(input, (batch, width)) for _ in before)
    return results if states > 1 else results[0]


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    device: torch.device,
) -> torch.Tensor:
    """Return the result of an attention. It has the layout of the query, or with dropout, on a CPU, the layout of a
    product."""
    _expect(not enable_gqa and 0 <= dropout_p < 1 and all(t.ndim == 4 for t in (query, key, value)))
    _expect(key.shape[:2] == value.shape[:2] == query.shape[:2] and key.shape[2] == value.shape[2])
    _expect(_kind(key) == _kind(value) == _kind(query) and query.is_floating_point())
    _expect(key.shape[3] == value.shape[3] == query.shape[3])
    if is_causal or attn_mask is not None:
        _expect(device.type == "cpu" and not (is_causal and attn_mask is not None))
        _expect(attn_mask is None or _is_mask(attn_mask, query, key))
    if dropout_p > 0:
        _expect(device.type == "cpu")
        return _empty(query, query.shape)
    return _elementwise(query)


def _is_mask(mask: Any, query: Any, key: Any) -> bool:
    """Return whether a mask is usual: it has two or four axes, and is not trained."""
    expected = (*query.shape[:3], key.shape[2])
    fits = mask.ndim in (2, 4) and _broadcast(mask.shape, expected) == expected
    return fits and mask.dtype in (torch.bool, query.dtype) and mask.device == query.device and not mask.requires_grad


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether the elements of a tensor fill its memory, in any order of axes."""
    steps = sorted((step, n) for n, step in zip(tensor.shape, tensor.stride(), strict=True) if n > 1)
    widths = itertools.accumulate((n for _, n in steps), operator.mul, initial=1)
    return all(step == width for (step, _), width in zip(steps, widths, strict=False))


_INTEGERS = (torch.int64, torch.int32)
_BOTH = (torch, torch.Tensor)
_UNARY = (*("relu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "square", "neg", "abs", "sin", "cos", "erf"),)
_ACTIVATIONS = (
    *("relu", "gelu", "silu", "relu6", "leaky_relu", "elu", "selu", "hardswish", "hardsigmoid", "softplus", "mish"),
)
_RULES: dict[Any, Rule] = {
    functional.batch_norm: _batch_norm,
    functional.layer_norm: _layer_norm,
    functional.linear: _linear,
    functional.embedding: _embedding,
    functional.embedding_bag: _embedding_bag,
    functional.scaled_dot_product_attention: _attention,
    torch.lstm: partial(_recurrence, 2),
    **dict.fromkeys((torch.gru, torch.rnn_tanh, torch.rnn_relu), partial(_recurrence, 1)),
    torch.lstm_cell: partial(_recurrent_cell, 2, 4),
    torch.gru_cell: partial(_recurrent_cell, 1, 3),
    **dict.fromkeys((torch.rnn_tanh_cell, torch.rnn_relu_cell), partial(_recurrent_cell, 1, 1)),
    functional.conv1d: partial(_convolution, 1),
    functional.conv2d: partial(_convolution, 2),
    functional.conv3d: partial(_convolution, 3),
    functional.max_pool1d: partial(_pooling, 1),
    functional.max_pool2d: partial(_pooling, 2),
    functional.avg_pool2d: partial(_pooling, 2),
    functional.adaptive_avg_pool1d: partial(_adaptive, 1),
    functional.adaptive_avg_pool2d: partial(_adaptive, 2),
    functional.adaptive_avg_pool3d: partial(_adaptive, 3),
    functional.group_norm: _group_norm,
    functional.dropout: _dropout,
    functional.softmax: _softmax,
    functional.log_softmax: _softmax,
    torch.cat: _cat,
    torch.stack: _stack,
    **dict.fromkeys((torch.bmm, torch.Tensor.bmm), _batched_product),
    **dict.fromkeys((torch.matmul, torch.Tensor.matmul), _product),
    **{getattr(module, name): _reduction for module in _BOTH for name in ("mean", "sum", "amax", "amin")},
    **{getattr(module, name): _unary for module in _BOTH for name in _UNARY},
    **{getattr(module, name): _with_numbers for module in _BOTH for name in ("pow", "clamp")},
    **{getattr(functional, name): _elementwise for name in _ACTIVATIONS},
    **{getattr(module, name): _binary for module in _BOTH for name in ("add", "sub", "mul", "div")},
    **dict.fromkeys((torch.Tensor.add_, torch.Tensor.mul_), _in_place),
}
