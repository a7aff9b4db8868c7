"""`cntk.initializer`: initial values of parameters, with the numbers that CNTK draws on a CPU.

Seeds are assigned as in CNTK, see `cntk._seeds`. Numbers agree to the last bit or two of the parameters' type.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from feedline.cntk._names import names_of
from feedline.cntk._seeds import SentinelValueForAutoSelectRandomSeed, seeds
from feedline.cntk._settings import take_plain_settings
from feedline.networks.random_numbers import SeededNumbers

__all__, __getattr__ = names_of(__name__)

# CNTK's values for omitted arguments.
SentinelValueForInferParamInitRank = 2**31 - 1
DefaultParamInitScale = 1


class Initializer:
    """Initializer of parameters.

    Args:
        draw: function ``draw(flat, fan_in, fan_out, seed)`` that fills a torch tensor of one axis in place.
        output_rank: number of trailing output axes, or if negative of leading ones, as in convolution kernels.
        filter_rank: number of trailing axes of a convolution's window.
        seed: seed of the generator at each fill. None means that each parameter gets a seed when it is created.
        dtype: name of the element type to compute in.
    """

    def __init__(
        self,
        draw: Callable[[Any, float, float, Any], Any],
        output_rank: int | None = None,
        filter_rank: int | None = None,
        seed: int | None = None,
        dtype: str = "float32",
    ) -> None:
        self.dtype = dtype
        self.draw, self.output_rank, self.filter_rank = draw, output_rank, filter_rank
        self.seed = None if seed == SentinelValueForAutoSelectRandomSeed else seed

    def __call__(self, shape: tuple[int, ...]) -> Any:
        """Return a tensor of this shape."""
        import torch

        tensor = torch.empty(shape, dtype=torch.float64 if self.dtype == "float64" else torch.float32)
        seed = seeds.next() if self.seed is None else self.seed
        self.draw(tensor.reshape(-1), *fans(shape, self.output_rank, self.filter_rank), seed)
        return tensor

    def with_seed(self, dtype: str) -> Initializer:
        """Return an initializer for a parameter of a type, with a fixed seed, so that repeated fills are equal."""
        seed = seeds.next() if self.seed is None else self.seed
        return Initializer(self.draw, self.output_rank, self.filter_rank, seed, dtype)


def fans(shape: tuple[int, ...], output_rank: int | None, filter_rank: int | None) -> tuple[float, float]:
    """Return fan-in and fan-out of one unit, both including the window."""
    if output_rank == SentinelValueForInferParamInitRank:
        output_rank = None
    window_rank = 0 if filter_rank in (None, SentinelValueForInferParamInitRank) else filter_rank
    axes, window = shape[: len(shape) - window_rank], math.prod(shape[len(shape) - window_rank :])
    out_rank = 1 if output_rank is None else output_rank
    if abs(out_rank) > len(axes):
        raise ValueError(f"expected a shape of at least {abs(out_rank)} axes besides the window, got {shape}")
    fan_out = math.prod(axes[len(axes) - out_rank :] if out_rank >= 0 else axes[:-out_rank])
    fan_in = math.prod(axes) // max(1, fan_out)
    return fan_in * window, fan_out * window


def initializer_with_rank(initializer: Any, output_rank: int | None = None, filter_rank: int | None = None) -> Any:
    """Return the initializer with ranks where it had none. Other values are returned unchanged."""
    if not isinstance(initializer, Initializer):
        return initializer
    return Initializer(
        initializer.draw,
        output_rank if initializer.output_rank is None else initializer.output_rank,
        filter_rank if initializer.filter_rank is None else initializer.filter_rank,
        initializer.seed,
    )


_PIECE = 1 << 24  # largest number of values to draw at once


def _positive(scale: float) -> float:
    """Return the scale of an initializer. ValueError: it is not above 0."""
    if not scale > 0:
        raise ValueError(f"expected a scale above 0, got {scale}; for constant values pass a number as init")
    return float(scale)


def _uniform_within(limit: Callable[[float, float], float]) -> Callable[..., Any]:
    def draw(flat: Any, fan_in: float, fan_out: float, seed: int) -> None:
        import torch

        width = limit(fan_in, fan_out)
        numbers = SeededNumbers(seed % 2**64)
        for part in flat.split(_PIECE):
            part.copy_(torch.from_numpy((2 * numbers.uniform(len(part)) - 1) * width))

    return draw


def _normal_with(deviation: Callable[[float, float], float], numbers: Any = SeededNumbers.normal) -> Any:
    def draw(flat: Any, fan_in: float, fan_out: float, seed: int) -> None:
        import torch

        flat.copy_(torch.from_numpy(numbers(SeededNumbers(seed % 2**64), len(flat)) * deviation(fan_in, fan_out)))

    return draw


def uniform(scale: float, seed: int | None = None) -> Initializer:
    """Return an initializer of uniform numbers in [-scale, scale]."""
    scale = _positive(scale)
    return Initializer(_uniform_within(lambda i, o: scale), seed=seed)


def normal(
    scale: float, output_rank: int | None = None, filter_rank: int | None = None, seed: int | None = None
) -> Initializer:
    """Return an initializer of normal numbers with standard deviation ``scale``."""
    scale = _positive(scale)
    return Initializer(_normal_with(lambda i, o: scale), output_rank, filter_rank, seed)


def truncated_normal(stdev: float = 1.0, seed: int | None = None) -> Initializer:
    """Return an initializer of normal numbers, drawn again beyond two standard deviations."""
    stdev = _positive(stdev)
    return Initializer(_normal_with(lambda i, o: stdev, SeededNumbers.truncated_normal), seed=seed)


def xavier(
    scale: float = 1.0, output_rank: int | None = None, filter_rank: int | None = None, seed: int | None = None
) -> Initializer:
    """Return an initializer of uniform numbers within ``scale * sqrt(3 / fan_in)``."""
    scale = _positive(scale)
    return Initializer(_uniform_within(lambda i, o: scale * math.sqrt(3 / i)), output_rank, filter_rank, seed)


def glorot_uniform(
    scale: float = 1.0, output_rank: int | None = None, filter_rank: int | None = None, seed: int | None = None
) -> Initializer:
    """Return an initializer of uniform numbers within ``scale * sqrt(6 / (fan_in + fan_out))``."""
    scale = _positive(scale)
    return Initializer(_uniform_within(lambda i, o: scale * math.sqrt(6 / (i + o))), output_rank, filter_rank, seed)


def glorot_normal(
    scale: float = 1.0, output_rank: int | None = None, filter_rank: int | None = None, seed: int | None = None
) -> Initializer:
    """Return an initializer of normal numbers with standard deviation ``scale * sqrt(2 / (fan_in + fan_out))``."""
    scale = _positive(scale)
    return Initializer(_normal_with(lambda i, o: scale * math.sqrt(2 / (i + o))), output_rank, filter_rank, seed)


def he_uniform(
    scale: float = 1.0, output_rank: int | None = None, filter_rank: int | None = None, seed: int | None = None
) -> Initializer:
    """Return an initializer of uniform numbers within ``scale * sqrt(6 / fan_in)``."""
    scale = _positive(scale)
    return Initializer(_uniform_within(lambda i, o: scale * math.sqrt(6 / i)), output_rank, filter_rank, seed)


def he_normal(
    scale: float = 1.0, output_rank: int | None = None, filter_rank: int | None = None, seed: int | None = None
) -> Initializer:
    """Return an initializer of normal numbers with standard deviation ``scale * sqrt(2 / fan_in)``."""
    scale = _positive(scale)
    return Initializer(_normal_with(lambda i, o: scale * math.sqrt(2 / i)), output_rank, filter_rank, seed)


def bilinear(kernel_width: int, kernel_height: int) -> Initializer:
    """Return an initializer of bilinear interpolation in each window (…, kernel_height, kernel_width)."""

    def draw(flat: Any, fan_in: float, fan_out: float, seed: int) -> None:
        import torch

        def ramp(size: int) -> Any:
            factor = (size + 1) // 2
            centre = factor - 1 if size % 2 else factor - 0.5
            return 1 - np.abs(np.arange(size) - centre) / factor

        if len(flat) % (kernel_height * kernel_width):
            raise ValueError(
                f"expected a shape that ends with the window {(kernel_height, kernel_width)}, got {len(flat)} numbers"
            )
        kernel = torch.from_numpy(np.outer(ramp(kernel_height), ramp(kernel_width)).ravel())
        flat.reshape(-1, len(kernel)).copy_(kernel)

    return Initializer(draw, seed=0)  # draws no numbers, so it takes no seed


take_plain_settings(globals())
