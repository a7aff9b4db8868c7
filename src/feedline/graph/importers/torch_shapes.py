"""Results without data of the functions that most networks are made of, from the shapes of their arguments.

torch has its own rules for tensors without data, but in Python: fifty steps for a normalisation, which would be most of
a dry run's time, and the first one imports torch's compiler, which takes a second. A rule here answers the usual case
and nothing else: arguments that do not fit, and odd ones, are left to torch, which has the error messages. Rules are
compared with torch's results in the tests.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch.nn import functional

Result: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...] | None
Rule = Callable[..., Result]


def result_of(function: Any, args: Sequence[Any], kwargs: dict[str, Any], device: torch.device | None = None) -> Result:
    """Return the result of a torch function on tensors without data; None if there is no rule for it.

    Args:
        function: the torch function.
        args: its positional arguments.
        kwargs: its other arguments.
        device: where the tensors would be if they had data; None: where they say.
    """
    rule = _RULES.get(function)
    if rule is None or torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return None
    try:
        if rule is _attention:
            return _attention(*args, **kwargs, device=device or args[0].device)
        return rule(*args, **kwargs)
    except TypeError:  # called in a way that the rule does not know
        return None


def _is_plain(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.is_contiguous()


def _made(like: Any, shape: Sequence[int]) -> torch.Tensor:
    return torch.empty(tuple(shape), dtype=like.dtype, device=like.device)


def _is_like(tensor: Any, input: Any, shape: Any) -> bool:
    return tensor is None or (tuple(tensor.shape), tensor.dtype, tensor.device) == (
        tuple(shape),
        input.dtype,
        input.device,
    )


def _elementwise(input: Any, *_: Any, inplace: bool = False, **__: Any) -> torch.Tensor | None:
    """Return a tensor of the input's layout; None if there are gaps in it."""
    if inplace or not isinstance(input, torch.Tensor) or not input.is_floating_point() or not _is_dense(input):
        return None
    return torch.empty_strided(input.shape, input.stride(), dtype=input.dtype, device=input.device)


def _unary(input: Any) -> torch.Tensor | None:
    return _elementwise(input)


def _with_numbers(input: Any, *numbers: Any) -> torch.Tensor | None:
    return _elementwise(input) if numbers and all(isinstance(n, (int, float)) for n in numbers) else None


def _dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor | None:
    if not training or not 0 <= p <= 1:
        return None  # without training, the result is the input
    return _elementwise(input, inplace=inplace)


def _softmax(input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> torch.Tensor | None:
    if dtype is not None or not isinstance(dim, int) or not -input.ndim <= dim < input.ndim:
        return None
    return _made(input, input.shape) if _is_plain(input) else None


def _binary(input: Any, other: Any, **others: Any) -> torch.Tensor | None:
    if others:
        return None
    if isinstance(other, (int, float)):
        return _elementwise(input)
    if not isinstance(other, torch.Tensor) or (other.dtype, other.device) != (input.dtype, input.device):
        return None
    if input.shape == other.shape and _is_dense(input) and _is_dense(other):
        return _elementwise(input)
    if not _is_plain(input) or not _is_plain(other):
        return None
    shape = _broadcast(input.shape, other.shape)
    return None if shape is None else _made(input, shape)


def _product(input: Any, other: Any) -> torch.Tensor | None:
    if not input.is_floating_point() or (input.dtype, input.device) != (other.dtype, other.device):
        return None
    if min(input.ndim, other.ndim) < 2 or other.ndim not in (2, input.ndim) or input.shape[-1] != other.shape[-2]:
        return None
    around = _broadcast(input.shape[:-2], other.shape[:-2])
    return None if around is None else _made(input, (*around, input.shape[-2], other.shape[-1]))


def _batched_product(input: Any, mat2: Any) -> torch.Tensor | None:
    fits = input.ndim == mat2.ndim == 3 and input.shape[0] == mat2.shape[0]
    return _product(input, mat2) if fits else None


def _reduced(input: Any, dim: Any = None, keepdim: bool = False, **others: Any) -> torch.Tensor | None:
    axes = (dim,) if isinstance(dim, int) else dim
    if others or not _is_plain(input) or not input.numel() or (axes is not None and not axes):
        return None
    axes = range(input.ndim) if axes is None else axes
    gone = {axis % input.ndim for axis in axes if -input.ndim <= axis < input.ndim}
    if len(gone) != len(axes):
        return None
    return _made(input, [1 if n in gone else size for n, size in enumerate(input.shape) if keepdim or n not in gone])


def _stack(tensors: Any, dim: int = 0) -> torch.Tensor | None:
    parts = list(tensors)
    first = parts[0]
    if not all(_is_plain(part) and _is_like(part, first, first.shape) for part in parts):
        return None
    if not -first.ndim - 1 <= dim <= first.ndim:
        return None
    dim %= first.ndim + 1
    return _made(first, (*first.shape[:dim], len(parts), *first.shape[dim:]))


def _group_norm(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    if not _is_plain(input) or input.ndim < 3 or num_groups < 1 or input.shape[1] % num_groups:
        return None
    fits = all(_is_like(t, input, input.shape[1:2]) for t in (weight, bias))
    return _made(input, input.shape) if fits and input.shape[2:].numel() > 1 else None


def _in_place(input: Any, other: Any, **others: Any) -> torch.Tensor | None:
    made = _binary(input, other, **others)
    leaf = input.is_leaf and input.requires_grad and torch.is_grad_enabled()  # which torch refuses to change
    return input if made is not None and made.shape == input.shape and not leaf else None


def _broadcast(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...] | None:
    pairs = list(itertools.zip_longest(reversed(one), reversed(other), fillvalue=1))
    if any(n != m and 1 not in (n, m) for n, m in pairs):
        return None
    return tuple(m if n == 1 else n for n, m in reversed(pairs))


def _linear(input: Any, weight: Any, bias: Any = None) -> torch.Tensor | None:
    if not input.is_floating_point() or input.ndim < 2 or weight.ndim != 2:
        return None
    out, into = weight.shape
    if not _is_like(weight, input, (out, into)) or input.shape[-1] != into or not _is_like(bias, input, (out,)):
        return None
    return _made(input, (*input.shape[:-1], out))


def _convolution(rank: int) -> Rule:
    def rule(
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> torch.Tensor | None:
        if not _is_plain(input) or not weight.is_contiguous() or input.ndim != rank + 2 or weight.ndim != rank + 2:
            return None
        if input.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups or isinstance(padding, str):
            return None
        if not _is_like(weight, input, weight.shape) or not _is_like(bias, input, weight.shape[:1]):
            return None
        sizes = _slid(input.shape[2:], weight.shape[2:], stride, padding, dilation)
        return None if sizes is None else _made(input, (input.shape[0], weight.shape[0], *sizes))

    return rule


def _pooling(rank: int, dilates: bool) -> Rule:
    def rule(input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, *odd: Any, **others: Any) -> Any:
        dilation = others.pop("dilation", 1) if dilates else 1
        if odd or any(others.get(name) for name in ("ceil_mode", "return_indices", "divisor_override")):
            return None
        if not _is_plain(input) or input.ndim != rank + 2:
            return None
        kernel = _all(kernel_size, rank)
        if any(2 * p > k for p, k in zip(_all(padding, rank), kernel, strict=True)):
            return None
        sizes = _slid(input.shape[2:], kernel, kernel_size if stride in (None, ()) else stride, padding, dilation)
        return None if sizes is None else _made(input, (*input.shape[:2], *sizes))

    return rule


def _adaptive(rank: int) -> Rule:
    def rule(input: Any, output_size: Any) -> torch.Tensor | None:
        sizes = _all(output_size, rank)
        if not _is_plain(input) or input.ndim != rank + 2 or not all(isinstance(n, int) and n > 0 for n in sizes):
            return None
        return _made(input, (*input.shape[:2], *sizes))

    return rule


def _all(value: Any, rank: int) -> tuple[int, ...]:
    """Return a value for each spatial axis; raise TypeError if there are not as many."""
    values = (value,) * rank if isinstance(value, int) else tuple(value)
    values = values * rank if len(values) == 1 else values
    if len(values) != rank:
        raise TypeError(f"expected {rank} values, got {value}")
    return values


def _slid(sizes: Sequence[int], kernel: Sequence[int], stride: Any, padding: Any, dilation: Any) -> list[int] | None:
    """Return the number of places of a kernel along each axis; None if an axis has none."""
    rank = len(kernel)
    steps = zip(sizes, kernel, *(_all(v, rank) for v in (stride, padding, dilation)), strict=True)
    found = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in steps if s > 0 and p >= 0 and d > 0]
    return found if len(found) == rank and min(found) > 0 else None


def _cat(tensors: Any, dim: int = 0) -> torch.Tensor | None:
    parts = list(tensors)
    first = parts[0]
    if not all(isinstance(t, torch.Tensor) and t.is_floating_point() and t.ndim == first.ndim for t in parts):
        return None
    if first.ndim == 4 and not all(t.is_contiguous() for t in parts):
        return None  # channels may come last in the result, too
    if not -first.ndim <= dim < first.ndim or any((t.dtype, t.device) != (first.dtype, first.device) for t in parts):
        return None
    dim %= first.ndim
    rests = {(*t.shape[:dim], *t.shape[dim + 1 :]) for t in parts}
    if len(rests) != 1:
        return None
    return _made(first, (*first.shape[:dim], sum(t.shape[dim] for t in parts), *first.shape[dim + 1 :]))


def _batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    **_: Any,
) -> torch.Tensor | None:
    if training and input.shape.numel() <= input.shape[1]:
        return None
    fits = all(_is_like(t, input, input.shape[1:2]) for t in (running_mean, running_var, weight, bias))
    return _made(input, input.shape) if fits and _is_plain(input) else None


def _layer_norm(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> torch.Tensor | None:
    axes = input.shape[input.ndim - len(normalized_shape) :]
    fits = tuple(axes) == tuple(normalized_shape) and all(_is_like(t, input, axes) for t in (weight, bias))
    return _made(input, input.shape) if fits and input.is_floating_point() else None


def _embedding(
    input: Any,
    weight: Any,
    padding_idx: Any = None,
    max_norm: Any = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor | None:
    if max_norm is not None or input.dtype not in (torch.int64, torch.int32) or weight.ndim != 2:
        return None
    return _made(weight, (*input.shape, weight.shape[1]))


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
) -> torch.Tensor | None:
    whole = (torch.int64, torch.int32)
    if max_norm is not None or input.dtype not in whole or weight.ndim != 2 or mode not in ("sum", "mean", "max"):
        return None
    if mode == "max" and (scale_grad_by_freq or sparse):
        return None
    if per_sample_weights is not None and (mode != "sum" or not _is_like(per_sample_weights, weight, input.shape)):
        return None
    if input.ndim == 2 and offsets is None:
        bags = input.shape[0]
    elif input.ndim == 1 and offsets is not None and offsets.ndim == 1 and offsets.dtype == input.dtype:
        bags = offsets.shape[0] - bool(include_last_offset)
    else:
        return None
    return _made(weight, (bags, weight.shape[1])) if bags > 0 else None


def _recurrence(states: int) -> Rule:
    """Layers over padded sequences; with two states, the second is the cell's."""

    def rule(
        input: Any,
        given: Any,
        weights: Any,
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[torch.Tensor, ...] | None:
        before = [given] if states == 1 else list(given)
        if isinstance(weights, torch.Tensor) or not all(_is_plain(tensor) for tensor in (input, *before, *weights)):
            return None  # sequences that are packed, or odd
        if input.ndim != 3 or len(before) != states or any(state.ndim != 3 for state in before):
            return None
        directions = 2 if bidirectional else 1
        steps, batch = input.shape[batch_first], input.shape[1 - batch_first]
        stacked, width = num_layers * directions, before[0].shape[2]
        projected = states == 2 and width != before[1].shape[2]
        if len(weights) != stacked * (2 + 2 * has_biases + projected):
            return None
        if any(tuple(state.shape[:2]) != (stacked, batch) for state in before) or not 0 <= dropout < 1:
            return None
        if weights[0].shape[1] != input.shape[2] or weights[1].shape[1] != width:
            return None
        if any((t.dtype, t.device) != (input.dtype, input.device) for t in (*before, *weights)) or not steps * batch:
            return None
        made = _made(input, (steps, batch, directions * width))
        return (made.transpose(0, 1) if batch_first else made, *(_made(state, state.shape) for state in before))

    return rule


def _recurrent_cell(states: int, gates: int) -> Rule:
    def rule(input: Any, given: Any, inner: Any, outer: Any, *biases: Any) -> Result:
        before = [given] if states == 1 else list(given)
        if len(before) != states or not all(_is_plain(t) and t.ndim == 2 for t in (input, *before, inner, outer)):
            return None
        batch, width = before[0].shape
        fits = input.shape[0] == batch and all(_is_like(state, input, (batch, width)) for state in before)
        fits &= _is_like(inner, input, (gates * width, input.shape[1]))
        fits &= _is_like(outer, input, (gates * width, width))
        if not fits or not all(_is_like(bias, input, (gates * width,)) for bias in biases):
            return None
        made = tuple(_made(input, (batch, width)) for _ in before)
        return made if states > 1 else made[0]

    return rule


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
) -> torch.Tensor | None:
    """With dropout, a CPU computes it in steps, the last of them a product; else the result has the query's layout."""
    if enable_gqa or not 0 <= dropout_p < 1 or not all(t.ndim == 4 for t in (query, key, value)):
        return None
    width = query.shape[3]
    fits = key.shape[:2] == value.shape[:2] == query.shape[:2] and key.shape[2] == value.shape[2]
    same = all((t.dtype, t.device) == (query.dtype, query.device) for t in (key, value))
    if not fits or not same or key.shape[3] != width or value.shape[3] != width or not query.is_floating_point():
        return None
    if is_causal or attn_mask is not None:
        if device.type != "cpu" or (is_causal and attn_mask is not None):
            return None
        if attn_mask is not None and not _is_mask(attn_mask, query, key):
            return None
    if dropout_p > 0:
        return _made(query, query.shape) if device.type == "cpu" else None
    return _elementwise(query)


def _is_mask(mask: Any, query: Any, key: Any) -> bool:
    """Return whether a mask is one that needs no care: of two or four axes, and not trained."""
    wanted = (*query.shape[:3], key.shape[2])
    fits = mask.ndim in (2, 4) and _broadcast(mask.shape, wanted) == wanted
    return fits and mask.dtype in (torch.bool, query.dtype) and mask.device == query.device and not mask.requires_grad


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's elements fill its memory, in any order of axes."""
    steps = sorted((step, n) for n, step in zip(tensor.shape, tensor.stride(), strict=True) if n > 1)
    widths = itertools.accumulate((n for _, n in steps), operator.mul, initial=1)
    return all(step == width for (step, _), width in zip(steps, widths, strict=False))


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
    torch.lstm: _recurrence(2),
    **dict.fromkeys((torch.gru, torch.rnn_tanh, torch.rnn_relu), _recurrence(1)),
    torch.lstm_cell: _recurrent_cell(2, 4),
    torch.gru_cell: _recurrent_cell(1, 3),
    **dict.fromkeys((torch.rnn_tanh_cell, torch.rnn_relu_cell), _recurrent_cell(1, 1)),
    functional.conv1d: _convolution(1),
    functional.conv2d: _convolution(2),
    functional.conv3d: _convolution(3),
    functional.max_pool1d: _pooling(1, True),
    functional.max_pool2d: _pooling(2, True),
    functional.avg_pool2d: _pooling(2, False),
    functional.adaptive_avg_pool1d: _adaptive(1),
    functional.adaptive_avg_pool2d: _adaptive(2),
    functional.adaptive_avg_pool3d: _adaptive(3),
    functional.group_norm: _group_norm,
    functional.dropout: _dropout,
    functional.softmax: _softmax,
    functional.log_softmax: _softmax,
    torch.cat: _cat,
    torch.stack: _stack,
    **dict.fromkeys((torch.bmm, torch.Tensor.bmm), _batched_product),
    **dict.fromkeys((torch.matmul, torch.Tensor.matmul), _product),
    **{getattr(module, name): _reduced for module in _BOTH for name in ("mean", "sum", "amax", "amin")},
    **{getattr(module, name): _unary for module in _BOTH for name in _UNARY},
    **{getattr(module, name): _with_numbers for module in _BOTH for name in ("pow", "clamp")},
    **{getattr(functional, name): _elementwise for name in _ACTIVATIONS},
    **{getattr(module, name): _binary for module in _BOTH for name in ("add", "sub", "mul", "div")},
    **dict.fromkeys((torch.Tensor.add_, torch.Tensor.mul_), _in_place),
}
