"""Update weights by a formula, with all adjustments, natively in one pass or by torch.

Native code updates weights that are dense in the processor's memory, in float32, float64, float16 or bfloat16, on as
many threads as torch uses. Torch updates weights that are sharded, on other devices, of other layouts or dtypes, or
with sparse gradients. Arithmetic of weights in half precision is in float32, of float64 weights in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version

from feedline import _native
from feedline.updates.adjustments import NO_ADJUSTMENTS, Adjustments, Factor, adjust, finish
from feedline.updates.formulas import Formula
from feedline.updates.native_tensors import PLAIN_TYPES, TYPES, Tensors, computing_dtype, dense_format, is_plain

#: Whether native code can inspect tensors itself, in a tenth of the time of Python. It can from torch 2.10 on.
_EXCHANGE = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")


def update(
    formula: Formula,
    weights: Tensors,
    gradients: Tensors,
    states: Sequence[Tensors],
    adjustments: Adjustments = NO_ADJUSTMENTS,
    *,
    factors: list[Factor] | None = None,
    noise: Tensors | None = None,
    copies: list[Any] | None = None,
) -> None:
    """Change weights and states in place.

    Args:
        formula: rule with its numbers.
        weights: floating-point tensors, all float64 or none.
        gradients: a gradient in the shape of each weight, read-only.
        states: a list of tensors, one for each weight, for each state of the formula.
        adjustments: numbers of the adjustments around the rule.
        factors: a factor for each gradient. None means 1.
        noise: noise added to each weight, if any.
        copies: a tensor for each weight that receives it, rounded to its dtype, if any.
    """
    remaining = list(range(len(weights)))
    # Native code would not see a lazy negation.
    if _EXCHANGE and not any([t.is_neg() for t in (*weights, *gradients)]):  # noqa: C419  # faster than a generator
        remaining = _native.update_tensors(
            PLAIN_TYPES,
            formula.native,
            formula.numbers(),
            adjustments.numbers(),
            weights,
            gradients,
            states,
            factors,
            noise,
            copies,
            torch.get_num_threads(),
        )
        increment_version(weights)  # otherwise autograd would not notice the change
    if not remaining:
        return

    def arrays_of(i: int) -> list[Any]:
        optional = [None if tensors is None else tensors[i] for tensors in (noise, copies)]
        return [weights[i], gradients[i], *optional, *[state[i] for state in states]]

    jobs, by_torch_indices, fitted_arrays = [], [], []
    for i in remaining:
        fitted = _fit_native(arrays_of(i))
        if fitted is None:
            by_torch_indices.append(i)
            continue
        fitted_arrays.append(fitted)  # so that copies live until the call is over
        addresses = [x for a in fitted for x in ((0, 0) if a is None else (a.data_ptr(), TYPES[a.dtype]))]
        jobs.append((weights[i].numel(), 1.0 if factors is None else float(factors[i]), *addresses))
    if jobs:
        _native.update(formula.native, formula.numbers(), adjustments.numbers(), jobs, torch.get_num_threads())
        for weight, *_ in fitted_arrays:
            increment_version(weight)
    if by_torch_indices:
        slow_factors = None if factors is None else [factors[i] for i in by_torch_indices]
        _by_torch(formula, adjustments, [arrays_of(i) for i in by_torch_indices], slow_factors)


def _fit_native(arrays: list[Any]) -> list[Any] | None:
    """Return weight, gradient, noise, copy and states as native code reads them, or None if it cannot."""
    weight = arrays[0]
    if not is_plain(weight):
        return None
    layout = dense_format(weight)
    if layout is None:
        return None
    begin, size = weight.data_ptr(), weight.nbytes
    for k, array in enumerate(arrays[1:], 1):
        if array is None:
            continue
        if not is_plain(array):
            return None
        read_only = k in (1, 2)
        if not array.is_contiguous(memory_format=layout):
            if not read_only:
                return None
            arrays[k] = array.contiguous(memory_format=layout)
        elif read_only and begin - array.nbytes < array.data_ptr() < begin + size:
            arrays[k] = array.clone()  # it shares memory with the weight
    return arrays


def _by_torch(
    formula: Formula, adjustments: Adjustments, arrays: list[list[Any]], factors: Sequence[Factor] | None
) -> None:
    """Update by operations of torch. ``arrays``: weight, gradient, noise, copy and states, for each weight."""
    weights, gradients, noise, copies, *states = (list(tensors) for tensors in zip(*arrays, strict=True))
    dtype = states[0][0].dtype if states else computing_dtype(weights[0])
    gradients = [gradient if gradient.dtype is dtype else gradient.to(dtype) for gradient in gradients]
    formula.by_torch(weights, adjust(weights, gradients, adjustments, factors), states)
    finish(weights, adjustments, None if noise[0] is None else noise)
    for copy, weight in zip(copies, weights, strict=True):
        if copy is not None:
            copy.copy_(weight)
