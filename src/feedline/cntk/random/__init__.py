"""`cntk.random`: numbers that are drawn at each run of a network.

Operations with a seed draw the numbers that CNTK draws on a CPU. In each network they begin anew. Without a seed,
torch's generator of the device draws.

All raise ValueError for numbers out of range: ``low`` not below ``high``, a ``scale`` below 0, a chance beyond 0 to 1.
"""

from __future__ import annotations

from typing import Any

from feedline.cntk._names import names_of
from feedline.cntk._nodes import dims, node_of
from feedline.cntk._seeds import rng_seed
from feedline.cntk._settings import take_plain_settings
from feedline.cntk.ops._operation_helpers import at_least
from feedline.cntk.ops.functions import Function
from feedline.cntk.variables import Constant
from feedline.networks import apply

__all__, __getattr__ = names_of(__name__)


def _draw(how: str, like: Any, arguments: tuple[float, ...], seed: Any, name: str) -> Function:
    attributes = {"arguments": tuple(map(float, arguments)), **rng_seed(seed)}
    return Function.of([apply(f"random_{how}", [node_of(like)], attributes, name)])


def _of(shape: Any, dtype: Any) -> Constant:
    return Constant(0, dims(shape), dtype)


def _range(low: float, high: float) -> tuple[float, float]:
    if low >= high:
        raise ValueError(f"expected low below high, got {low} and {high}")
    return low, high


def _chance(mean: float) -> tuple[float]:
    if not 0 <= mean <= 1:
        raise ValueError(f"expected a mean from 0 to 1, got {mean}")
    return (mean,)


def uniform(
    shape: Any, dtype: Any = None, low: float = 0.0, high: float = 1.0, seed: Any = None, name: str = ""
) -> Function:
    """Return uniform numbers from ``low`` to ``high``."""
    return _draw("uniform", _of(shape, dtype), _range(low, high), seed, name)


def uniform_like(x: Any, low: float = 0.0, high: float = 1.0, seed: Any = None, name: str = "") -> Function:
    """Return `uniform` numbers in the shape and along the axes of the operand."""
    return _draw("uniform", x, _range(low, high), seed, name)


def normal(
    shape: Any, dtype: Any = None, mean: float = 0.0, scale: float = 1.0, seed: Any = None, name: str = ""
) -> Function:
    """Return normal numbers with standard deviation ``scale``."""
    at_least(0, scale=scale)
    return _draw("normal", _of(shape, dtype), (mean, scale), seed, name)


def normal_like(x: Any, mean: float = 0.0, scale: float = 1.0, seed: Any = None, name: str = "") -> Function:
    """Return `normal` numbers in the shape and along the axes of the operand."""
    at_least(0, scale=scale)
    return _draw("normal", x, (mean, scale), seed, name)


def gumbel(
    shape: Any, dtype: Any = None, loc: float = 0.0, scale: float = 1.0, seed: Any = None, name: str = ""
) -> Function:
    """Return numbers with Gumbel's distribution."""
    at_least(0, scale=scale)
    return _draw("gumbel", _of(shape, dtype), (loc, scale), seed, name)


def gumbel_like(x: Any, loc: float = 0.0, scale: float = 1.0, seed: Any = None, name: str = "") -> Function:
    """Return `gumbel` numbers in the shape and along the axes of the operand."""
    at_least(0, scale=scale)
    return _draw("gumbel", x, (loc, scale), seed, name)


def bernoulli(shape: Any, dtype: Any = None, mean: float = 0.5, seed: Any = None, name: str = "") -> Function:
    """Return numbers that are 1 with probability ``mean``, else 0."""
    return _draw("bernoulli", _of(shape, dtype), _chance(mean), seed, name)


def bernoulli_like(x: Any, mean: float = 0.5, seed: Any = None, name: str = "") -> Function:
    """Return `bernoulli` numbers in the shape and along the axes of the operand."""
    return _draw("bernoulli", x, _chance(mean), seed, name)


take_plain_settings(globals())
