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
from typing import Any

import torch
from torch.nn import functional

Rule = Callable[..., "torch.Tensor | None"]


def result_of(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """Return the result of a torch function on tensors without data; None if there is no rule for it."""
    rule = _RULES.get(function)
    if rule is None or torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return None
    try:
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
    return None if inplace or not _is_plain(input) else _made(input, input.shape)


def _dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor | None:
    if not training or not 0 <= p <= 1:
        return None  # without training, the result is the input
    return _elementwise(input, inplace=inplace)


def _softmax(input: Any, dim: Any = None, *_: Any, **others: Any) -> torch.Tensor | None:
    if any(others.values()) or not isinstance(dim, int) or not -input.ndim <= dim < input.ndim:
        return None
    return _elementwise(input)


def _binary(input: Any, other: Any, **others: Any) -> torch.Tensor | None:
    if others or not _is_plain(input):
        return None
    if isinstance(other, (int, float)):
        return _made(input, input.shape)
    if not _is_plain(other) or (other.dtype, other.device) != (input.dtype, input.device):
        return None
    shape = _broadcast(input.shape, other.shape)
    return None if shape is None else _made(input, shape)


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


def _attention(query: Any, key: Any, value: Any, *others: Any, **named: Any) -> torch.Tensor | None:
    """Without mask and dropout: the result has the query's layout."""
    odd = [other for other in (*others, *(v for n, v in named.items() if n != "scale")) if other is not False]
    if any(other is not None and other != 0.0 for other in odd) or not all(t.ndim == 4 for t in (query, key, value)):
        return None
    width = query.shape[3]
    fits = key.shape[:2] == value.shape[:2] == query.shape[:2] and key.shape[2] == value.shape[2]
    same = all((t.dtype, t.device) == (query.dtype, query.device) for t in (key, value))
    if not fits or not same or key.shape[3] != width or value.shape[3] != width or not query.is_floating_point():
        return None
    if not _is_dense(query):
        return None
    return torch.empty_strided(query.shape, query.stride(), dtype=query.dtype, device=query.device)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's elements fill its memory, in any order of axes."""
    steps = sorted((step, n) for n, step in zip(tensor.shape, tensor.stride(), strict=True) if n > 1)
    widths = itertools.accumulate((n for _, n in steps), operator.mul, initial=1)
    return all(step == width for (step, _), width in zip(steps, widths, strict=False))


_RULES: dict[Any, Rule] = {
    functional.batch_norm: _batch_norm,
    functional.layer_norm: _layer_norm,
    functional.linear: _linear,
    functional.embedding: _embedding,
    functional.scaled_dot_product_attention: _attention,
    functional.conv1d: _convolution(1),
    functional.conv2d: _convolution(2),
    functional.conv3d: _convolution(3),
    functional.max_pool1d: _pooling(1, True),
    functional.max_pool2d: _pooling(2, True),
    functional.avg_pool2d: _pooling(2, False),
    functional.adaptive_avg_pool2d: _adaptive(2),
    functional.dropout: _dropout,
    functional.softmax: _softmax,
    functional.log_softmax: _softmax,
    torch.cat: _cat,
    torch.relu: _elementwise,
    torch.sigmoid: _elementwise,
    torch.tanh: _elementwise,
    **dict.fromkeys(
        (functional.relu, functional.gelu, functional.silu, functional.relu6, functional.leaky_relu), _elementwise
    ),
    **dict.fromkeys((torch.Tensor.add, torch.Tensor.sub, torch.Tensor.mul, torch.Tensor.div), _binary),
    **dict.fromkeys((torch.add, torch.sub, torch.mul, torch.div), _binary),
    **dict.fromkeys((torch.Tensor.add_, torch.Tensor.mul_), _in_place),
}
