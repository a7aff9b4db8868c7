"""`cntk.initializer`: first values of parameters, by CNTK's rules for fan-in and fan-out, from torch's generators.

Distributions and seeds are CNTK's, see `cntk._seeds`; random streams are not: the same seed gives other numbers here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from feedline.cntk._seeds import seeds

__all__ = [
    "DefaultParamInitScale",
    "SentinelValueForAutoSelectRandomSeed",
    "SentinelValueForInferParamInitRank",
    "bilinear",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "initializer_with_rank",
    "normal",
    "truncated_normal",
    "uniform",
    "xavier",
]

# CNTK's words for what is not given.
SentinelValueForAutoSelectRandomSeed = 2**64 - 3
SentinelValueForInferParamInitRank = 2**31 - 1
DefaultParamInitScale = 1


class Initializer:
    """Fills a new parameter.

    Args:
        draw: ``draw(tensor, fan_in, fan_out, generator)`` fills a torch tensor in place.
        output_rank: how many of the last axes are outputs; negative: of the first ones, as convolution kernels have it.
        filter_rank: how many axes, from the end, are a window of a convolution.
        seed: of a generator of its own at each fill; None: each parameter takes one when it is made.
    """

    def __init__(
        self,
        draw: Callable[[Any, float, float, Any], Any],
        output_rank: int | None = None,
        filter_rank: int | None = None,
        seed: int | None = None,
    ) -> None:
        self.draw, self.output_rank, self.filter_rank = draw, output_rank, filter_rank
        self.seed = None if seed == SentinelValueForAutoSelectRandomSeed else seed

    def __call__(self, shape: tuple[int, ...]) -> Any:
        """A tensor of this shape, float32."""
        import torch

        generator = torch.Generator().manual_seed(seeds.next() if self.seed is None else self.seed)
        tensor = torch.empty(shape)
        self.draw(tensor, *fans(shape, self.output_rank, self.filter_rank), generator)
        return tensor

    def seeded(self) -> Initializer:
        """The same for one parameter, which is filled alike however often."""
        if self.seed is not None:
            return self
        return Initializer(self.draw, self.output_rank, self.filter_rank, seeds.next())


def fans(shape: tuple[int, ...], output_rank: int | None, filter_rank: int | None) -> tuple[float, float]:
    """Inputs and outputs of one unit: the window counts for both."""
    if output_rank == SentinelValueForInferParamInitRank:
        output_rank = None
    window_rank = 0 if filter_rank in (None, SentinelValueForInferParamInitRank) else filter_rank
    own, window = shape[: len(shape) - window_rank], math.prod(shape[len(shape) - window_rank :])
    out_rank = 1 if output_rank is None else output_rank
    if abs(out_rank) > len(own):
        raise ValueError(f"expected a shape of at least {abs(out_rank)} axes besides the window, got {shape}")
    fan_out = math.prod(own[len(own) - out_rank :] if out_rank >= 0 else own[:-out_rank])
    fan_in = math.prod(own) // max(1, fan_out)
    return fan_in * window, fan_out * window


def initializer_with_rank(initializer: Any, output_rank: int | None = None, filter_rank: int | None = None) -> Any:
    """The same with ranks where it had none; what is no initializer stays itself."""
    if not isinstance(initializer, Initializer):
        return initializer
    return Initializer(
        initializer.draw,
        output_rank if initializer.output_rank is None else initializer.output_rank,
        filter_rank if initializer.filter_rank is None else initializer.filter_rank,
        initializer.seed,
    )


def _uniform_within(limit: Callable[[float, float], float]) -> Callable[..., Any]:
    def draw(tensor: Any, fan_in: float, fan_out: float, generator: Any) -> Any:
        width = limit(fan_in, fan_out)
        return tensor.uniform_(-width, width, generator=generator)

    return draw


def _normal_with(deviation: Callable[[float, float], float]) -> Callable[..., Any]:
    def draw(tensor: Any, fan_in: float, fan_out: float, generator: Any) -> Any:
        return tensor.normal_(0, deviation(fan_in, fan_out), generator=generator)

    return draw


def uniform(scale: float, seed: int | None = None) -> Initializer:
    """Uniform in [-scale, scale]."""
    return Initializer(_uniform_within(lambda i, o: scale), seed=seed)


def normal(
    scale: float, output_rank: int | None = None, filter_rank: int | None = None, seed: int | None = None
) -> Initializer:
    """Normal with standard deviation ``scale``."""
    return Initializer(_normal_with(lambda i, o: scale), output_rank, filter_rank, seed)


def truncated_normal(stdev: float = 1.0, seed: int | None = None) -> Initializer:
    """Normal, drawn again beyond two standard deviations."""

    def draw(tensor: Any, fan_in: float, fan_out: float, generator: Any) -> Any:
        from torch.nn.init import trunc_normal_

        return trunc_normal_(tensor, 0.0, stdev, -2 * stdev, 2 * stdev, generator=generator)

    return Initializer(draw, seed=seed)


def xavier(
    scale: float = 1.0, output_rank: int | None = None, filter_rank: int | None = None, seed: int | None = None
) -> Initializer:
    """Uniform within ``scale * sqrt(3 / fan_in)``."""
    return Initializer(_uniform_within(lambda i, o: scale * math.sqrt(3 / i)), output_rank, filter_rank, seed)


def glorot_uniform(
    scale: float = 1.0, output_rank: int | None = None, filter_rank: int | None = None, seed: int | None = None
) -> Initializer:
    """Uniform within ``scale * sqrt(6 / (fan_in + fan_out))``."""
    return Initializer(_uniform_within(lambda i, o: scale * math.sqrt(6 / (i + o))), output_rank, filter_rank, seed)


def glorot_normal(
    scale: float = 1.0, output_rank: int | None = None, filter_rank: int | None = None, seed: int | None = None
) -> Initializer:
    """Normal with standard deviation ``scale * sqrt(2 / (fan_in + fan_out))``."""
    return Initializer(_normal_with(lambda i, o: scale * math.sqrt(2 / (i + o))), output_rank, filter_rank, seed)


def he_uniform(
    scale: float = 1.0, output_rank: int | None = None, filter_rank: int | None = None, seed: int | None = None
) -> Initializer:
    """Uniform within ``scale * sqrt(6 / fan_in)``."""
    return Initializer(_uniform_within(lambda i, o: scale * math.sqrt(6 / i)), output_rank, filter_rank, seed)


def he_normal(
    scale: float = 1.0, output_rank: int | None = None, filter_rank: int | None = None, seed: int | None = None
) -> Initializer:
    """Normal with standard deviation ``scale * sqrt(2 / fan_in)``."""
    return Initializer(_normal_with(lambda i, o: scale * math.sqrt(2 / i)), output_rank, filter_rank, seed)


def bilinear(kernel_width: int, kernel_height: int) -> Initializer:
    """Weights of bilinear interpolation in each window (…, kernel_height, kernel_width)."""

    def draw(tensor: Any, fan_in: float, fan_out: float, generator: Any) -> Any:
        import torch

        def ramp(size: int) -> Any:
            factor = (size + 1) // 2
            centre = factor - 1 if size % 2 else factor - 0.5
            return 1 - np.abs(np.arange(size) - centre) / factor

        kernel = np.outer(ramp(kernel_height), ramp(kernel_width))
        return tensor.copy_(torch.from_numpy(kernel).to(tensor.dtype).expand_as(tensor))

    return Initializer(draw)
