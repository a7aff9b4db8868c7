"""Functions that generated modules call. The source of those that a module needs is copied into it.

Each is one function without a call of another, written with the names that a generated file imports: `torch` and
`functional`.
"""

from __future__ import annotations

import torch
from torch.nn import functional


def divide(a: torch.Tensor | float, b: torch.Tensor) -> torch.Tensor:
    """Return a / b, and 0 where b is 0."""
    return torch.where(b == 0, 0.0, a / torch.where(b == 0, 1.0, b))


def logarithm(x: torch.Tensor) -> torch.Tensor:
    """Return the natural logarithm, with a floor where x is smaller than 1e-37."""
    tiny = x < 1e-37
    return torch.where(tiny, -85.1, torch.log(torch.where(tiny, 1.0, x)))


def square_root(x: torch.Tensor) -> torch.Tensor:
    """Return the square root, and 0 below 0."""
    return torch.sqrt(x + (x.clamp_min(0) - x).detach())


def power(base: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """Return base ** exponent, and 0 for a base of 0 and a negative exponent."""
    return torch.where((base == 0) & (exponent < 0), 0.0, torch.pow(base, exponent))


def sign_through(x: torch.Tensor) -> torch.Tensor:
    """Return 1 above 0, else -1. The gradient passes where x is between -1 and 1."""
    passed = torch.where(x.abs() <= 1, x, x.detach())
    return torch.where(x > 0, 1.0, -1.0).to(x.dtype) + (passed - passed.detach())


def one_at_largest(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Return 1 at the first of the largest elements along an axis, and 0 elsewhere."""
    return torch.zeros_like(x).scatter(dim, x.argmax(dim, keepdim=True), 1.0)


def look_up(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return x @ weight. Integers in x are classes, which select rows of the weight."""
    return x @ weight if x.is_floating_point() else functional.embedding(x, weight)


def vectors(x: torch.Tensor, classes: int) -> torch.Tensor:
    """Return x, or one-hot vectors if x has classes: integers."""
    return x if x.is_floating_point() else functional.one_hot(x, classes).to(torch.get_default_dtype())


def real_steps(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return which steps of x, (batch, time, ...), are not padding; bool (batch, time)."""
    return torch.arange(x.shape[1], device=x.device) < lengths[:, None]


def fill_padding(x: torch.Tensor, lengths: torch.Tensor, value: float) -> torch.Tensor:
    """Return x, (batch, time, ...), with a number in the steps after the end of each sequence."""
    padding = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
    return x.masked_fill(padding.reshape(*padding.shape, *(1,) * (x.ndim - 2)), value)


def last_step(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return the last step of each sequence in x, (batch, time, ...)."""
    return x[torch.arange(len(x), device=x.device), lengths - 1]


def reverse(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return x, (batch, time, ...), with the steps of each sequence in reverse order. Padding stays at the end."""
    step = torch.arange(x.shape[1], device=x.device)
    place = torch.where(step < lengths[:, None], lengths[:, None] - 1 - step, step)
    return x[torch.arange(len(x), device=x.device)[:, None], place]


def delay(x: torch.Tensor, lengths: torch.Tensor, steps: int, initial: torch.Tensor | float) -> torch.Tensor:
    """Return the value some steps before each step, or after it if negative. Beyond the ends it is ``initial``."""
    place = torch.arange(x.shape[1], device=x.device) - steps
    outside = (place < 0) | (place >= lengths[:, None])
    moved = x[:, place.clamp(0, x.shape[1] - 1)]
    return torch.where(outside.reshape(*outside.shape, *(1,) * (x.ndim - 2)), initial, moved)


def slice_steps(
    x: torch.Tensor, lengths: torch.Tensor, begin: int, end: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the steps from ``begin`` to ``end`` of each sequence, and the new lengths. None is the end."""
    first = (lengths + begin if begin < 0 else torch.full_like(lengths, begin)).clamp(min=0)
    stop = lengths if end is None else lengths + end if end < 0 else lengths.clamp(max=end)
    count = (stop - first).clamp(min=0)
    place = first[:, None] + torch.arange(int(count.max()), device=x.device)
    return x[torch.arange(len(x), device=x.device)[:, None], place.clamp(max=x.shape[1] - 1)], count


def pad_mirrored(x: torch.Tensor, dim: int, before: int, after: int) -> torch.Tensor:
    """Return x with mirror images at both ends of an axis, which repeat the cells at the border."""
    size = x.shape[dim]
    place = torch.arange(-before, size + after, device=x.device) % (2 * size)
    return x.index_select(dim, torch.where(place < size, place, 2 * size - 1 - place))


def put_back(x: torch.Tensor, places: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor:
    """Return maxima in their cells, and 0 in all others. ``places`` are those of torch's pooling."""
    cells = x.new_zeros(*x.shape[:2], torch.Size(sizes).numel())
    return cells.scatter(2, places.flatten(2), x.flatten(2)).unflatten(2, sizes)
