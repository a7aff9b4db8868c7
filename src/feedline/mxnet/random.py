"""`mxnet.random` (`mx.nd.random`): numbers drawn by torch's generators, which `seed` seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from feedline.mxnet._names import names_of
from feedline.mxnet.context import Context, current_context
from feedline.mxnet.ndarray import NDArray
from feedline.mxnet.ndarray._dense import torch_dtype

__all__, __getattr__ = names_of(__name__)


def seed(seed_state: int, ctx: Any = "all") -> None:
    """Seed torch's generators, of all devices.

    Raises:
        ValueError: not an integer.
    """
    if isinstance(seed_state, bool) or not isinstance(seed_state, int):
        raise ValueError(f"expected an int as seed, got {type(seed_state).__name__}")
    torch.manual_seed(seed_state)


def _draw(fill: Callable[[Any], Any], shape: Any, dtype: Any, ctx: Context | None, out: NDArray | None) -> NDArray:
    if out is not None:
        fill(out.tensor)
        return out
    ctx = current_context() if ctx is None else ctx
    lengths = (1,) if shape is None else (shape,) if isinstance(shape, int) else tuple(shape)
    tensor = torch.empty(lengths, dtype=torch_dtype(dtype), device=ctx.device)
    fill(tensor)
    return NDArray(tensor, ctx)


def uniform(
    low: float = 0, high: float = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None
) -> NDArray:
    """Uniform from ``low`` to ``high``."""
    return _draw(lambda t: t.uniform_(low, high), shape, dtype, ctx, out)


def normal(
    loc: float = 0, scale: float = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None
) -> NDArray:
    """Normal with this mean and standard deviation."""
    return _draw(lambda t: t.normal_(loc, scale), shape, dtype, ctx, out)


def randn(*shape: int, loc: float = 0, scale: float = 1, dtype: Any = None, ctx: Any = None) -> NDArray:
    """Normal numbers in the shape of these lengths."""
    return normal(loc, scale, shape or None, dtype, ctx)


def exponential(scale: float = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None) -> NDArray:
    """Exponential with the mean ``scale``."""
    return _draw(lambda t: t.exponential_(1 / scale), shape, dtype, ctx, out)


def gamma(
    alpha: float = 1, beta: float = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None
) -> NDArray:
    """Gamma with the shape ``alpha`` and the scale ``beta``."""

    def fill(tensor: Any) -> None:
        tensor.copy_(torch._standard_gamma(torch.full_like(tensor, alpha)) * beta)

    return _draw(fill, shape, dtype, ctx, out)


def poisson(lam: float = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None) -> NDArray:
    """Poisson with the mean ``lam``."""
    return _draw(lambda t: t.copy_(torch.poisson(torch.full_like(t, lam))), shape, dtype, ctx, out)


def negative_binomial(
    k: float = 1, p: float = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None
) -> NDArray:
    """Negative binomial: failures before ``k`` successes of probability ``p``."""
    return _draw(lambda t: _failures(t, k, (1 - p) / p), shape, dtype, ctx, out)


def generalized_negative_binomial(
    mu: float = 1, alpha: float = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None
) -> NDArray:
    """Negative binomial with the mean ``mu`` and the variance ``mu + alpha mu^2``, Poisson if ``alpha`` is 0."""
    if alpha == 0:
        return poisson(mu, shape, dtype, ctx, out)
    return _draw(lambda t: _failures(t, 1 / alpha, mu * alpha), shape, dtype, ctx, out)


def _failures(tensor: Any, shape: float, scale: float) -> None:
    """Fill a tensor from Poisson distributions whose means are from a gamma distribution."""
    tensor.copy_(torch.poisson(torch._standard_gamma(torch.full_like(tensor, shape, dtype=torch.float32)) * scale))


def randint(low: int, high: int, shape: Any = None, dtype: Any = "int32", ctx: Any = None, out: Any = None) -> NDArray:
    """Integers from ``low`` up to ``high``, which is excluded."""
    return _draw(lambda t: t.random_(low, high), shape, dtype, ctx, out)


def shuffle(data: NDArray, out: NDArray | None = None) -> NDArray:
    """Return the array with its rows in random order."""
    rows = data.tensor[torch.randperm(len(data), device=data.tensor.device)]
    return NDArray(rows, data.context) if out is None else NDArray(rows, data.context).copyto(out)


def multinomial(data: NDArray, shape: Any = None, get_prob: bool = False, dtype: Any = "int32") -> Any:
    """Draw classes by probabilities, (..., classes), with replacement.

    Args:
        data: probabilities along the last axis.
        shape: shape of the draws from each row. None means one.
        get_prob: whether to return the logarithms of their probabilities, too.
        dtype: element type of the classes.
    """
    lengths = () if shape is None else (shape,) if isinstance(shape, int) else tuple(shape)
    count = 1
    for n in lengths:
        count *= n
    rows = data.tensor.reshape(-1, data.shape[-1])
    draws = torch.multinomial(rows, count, replacement=True)
    full_shape = (*data.shape[:-1], *lengths) or (1,)
    classes = NDArray(draws.reshape(full_shape).to(torch_dtype(dtype)), data.context)
    if not get_prob:
        return classes
    chances = rows / rows.sum(1, keepdim=True)
    return [classes, NDArray(chances.gather(1, draws).log().reshape(full_shape), data.context)]


def _like(draw: Callable[..., NDArray], data: NDArray, out: NDArray | None, *numbers: float) -> NDArray:
    return draw(*numbers, shape=data.shape, dtype=data.dtype, ctx=data.context, out=out)


def uniform_like(data: NDArray, low: float = 0, high: float = 1, out: Any = None) -> NDArray:
    """As `uniform`, in the shape, dtype and context of ``data``."""
    return _like(uniform, data, out, low, high)


def normal_like(data: NDArray, loc: float = 0, scale: float = 1, out: Any = None) -> NDArray:
    """As `normal`, in the shape, dtype and context of ``data``."""
    return _like(normal, data, out, loc, scale)


def exponential_like(data: NDArray, lam: float = 1, out: Any = None) -> NDArray:
    """As `exponential` with the mean ``1 / lam``, in the shape, dtype and context of ``data``."""
    return _like(exponential, data, out, 1 / lam)


def gamma_like(data: NDArray, alpha: float = 1, beta: float = 1, out: Any = None) -> NDArray:
    """As `gamma`, in the shape, dtype and context of ``data``."""
    return _like(gamma, data, out, alpha, beta)


def poisson_like(data: NDArray, lam: float = 1, out: Any = None) -> NDArray:
    """As `poisson`, in the shape, dtype and context of ``data``."""
    return _like(poisson, data, out, lam)


def negative_binomial_like(data: NDArray, k: float = 1, p: float = 1, out: Any = None) -> NDArray:
    """As `negative_binomial`, in the shape, dtype and context of ``data``."""
    return _like(negative_binomial, data, out, k, p)


def generalized_negative_binomial_like(data: NDArray, mu: float = 1, alpha: float = 1, out: Any = None) -> NDArray:
    """As `generalized_negative_binomial`, in the shape, dtype and context of ``data``."""
    return _like(generalized_negative_binomial, data, out, mu, alpha)
