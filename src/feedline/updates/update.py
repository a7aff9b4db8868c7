"""Update weights by a formula, with all its stages: natively in one pass, or by torch.

Native code does weights that lie densely in the processor's memory, in float32, float64, float16 or bfloat16, on as
many threads as torch uses. Torch does weights that are sharded, on other devices or of other layouts or dtypes, and
those with sparse gradients. Arithmetic of weights in half precision is in float32, of float64 weights in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version

from feedline import _native
from feedline.updates.arrays import TYPES, dense_format, is_plain
from feedline.updates.formulas import Formula
from feedline.updates.stages import PLAIN, Factor, Stages, finish, prepared

Tensors = list[torch.Tensor]


def update(
    formula: Formula,
    weights: Tensors,
    gradients: Tensors,
    states: Sequence[Tensors],
    stages: Stages = PLAIN,
    *,
    factors: Sequence[Factor] | None = None,
    noise: Tensors | None = None,
    copies: Sequence[Any] | None = None,
) -> None:
    """Change weights and states in place.

    Args:
        formula: rule with its numbers.
        weights: floating-point tensors, all float64 or none.
        gradients: one of each weight's shape; read-only.
        states: a list of tensors, one for each weight, for each state of the formula.
        stages: what is done besides.
        factors: a factor for each gradient; None: 1.
        noise: what is added to each weight; None: nothing.
        copies: a tensor for each weight that receives it, rounded to its dtype; None: none.
    """
    jobs, done, left, held = [], [], [], []
    for i, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
        arrays: list[Any] = [
            weight,
            gradient,
            None if noise is None else noise[i],
            None if copies is None else copies[i],
            *[state[i] for state in states],
        ]
        fitted = _fitted(arrays)
        if fitted is None:
            left.append(i)
            continue
        held.append(fitted)  # copies live until the call is over
        factor = 1.0 if factors is None else float(factors[i])
        addresses = [number for a in fitted for number in ((0, 0) if a is None else (a.data_ptr(), TYPES[a.dtype]))]
        jobs.append((weight.numel(), factor, *addresses))
        done.append(i)
    if jobs:
        _native.update(formula.native, formula.numbers(), stages.numbers(), jobs, torch.get_num_threads())
        for i in done:
            increment_version(weights[i])  # or autograd would not notice the change
    if left:
        _by_torch(formula, weights, gradients, states, stages, left, factors=factors, noise=noise, copies=copies)


def _fitted(arrays: list[Any]) -> list[Any] | None:
    """Return weight, gradient, noise, copy and states as native code reads them; None: it cannot."""
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
            arrays[k] = array.clone()  # it shares memory with what is written
    return arrays


def _by_torch(
    formula: Formula,
    weights: Tensors,
    gradients: Tensors,
    states: Sequence[Tensors],
    stages: Stages,
    left: list[int],
    *,
    factors: Sequence[Factor] | None,
    noise: Tensors | None,
    copies: Sequence[Any] | None,
) -> None:
    def these(tensors: Sequence[Any]) -> list[Any]:
        return [tensors[i] for i in left]

    weights, kept = these(weights), [these(state) for state in states]
    dtype = kept[0][0].dtype if kept else _arithmetic(weights[0].dtype)
    gradients = [g if g.dtype is dtype else g.to(dtype) for g in these(gradients)]
    gradients = prepared(weights, gradients, stages, None if factors is None else these(factors))
    formula.by_torch(weights, gradients, kept)
    finish(weights, stages, None if noise is None else these(noise))
    for copy, weight in zip([] if copies is None else these(copies), weights, strict=bool(copies)):
        copy.copy_(weight)


def _arithmetic(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
