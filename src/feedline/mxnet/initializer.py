"""`mxnet.initializer` (`mx.init`): initial values of parameters, by their names, drawn by torch.

``initializer(name, array)`` fills an array in place: weights by the rule of the class, biases and ``beta`` with 0,
``gamma`` with 1, running means with 0 and variances with 1. ``torch.manual_seed`` makes them reproducible.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import torch

from feedline.mxnet._names import names_of
from feedline.mxnet.ndarray import NDArray

__all__, __getattr__ = names_of(__name__)

_BY_NAME = {"bias": 0.0, "beta": 0.0, "gamma": 1.0, "min": 0.0, "max": 0.0, "mean": 0.0, "inv_var": 0.0, "var": 1.0}


class InitDesc(str):
    """Name of an array, with attributes of its variable, whose ``__init__`` overrides the initializer.

    Attributes:
        attrs: attributes of the variable.
        global_init: default initializer.
    """

    attrs: Mapping[str, str]
    global_init: Any

    def __new__(cls, name: str, attrs: Mapping[str, str] | None = None, global_init: Any = None) -> InitDesc:
        """Create the name."""
        self = super().__new__(cls, name)
        self.attrs, self.global_init = attrs or {}, global_init
        return self


class Initializer:
    """Base class of initializers. Subclasses define how weights are filled.

    Args:
        kwargs: parameters of the rule, which `dumps` writes.
    """

    def __init__(self, **kwargs: Any) -> None:
        self._kwargs = kwargs

    def dumps(self) -> str:
        """Return class and parameters as JSON text."""
        return json.dumps([type(self).__name__.lower(), self._kwargs])

    def __call__(self, desc: str, arr: NDArray) -> None:
        """Fill an array in place.

        Raises:
            ValueError: a name that does not determine the kind of array.
        """
        named = getattr(desc, "attrs", {}).get("__init__")
        if named:
            create(named).fill(arr)
            return
        name = desc.lower()
        if name.endswith(("weight", "parameters")):
            self._init_weight(desc, arr)
            return
        for ending, number in _BY_NAME.items():
            if name.endswith(ending):
                arr[:] = number
                return
        raise ValueError(
            f"Unknown initialization pattern for {desc}: expected a name that ends with weight, bias, gamma or beta; "
            "name another initializer with mx.sym.Variable(name, init=...)"
        )

    def fill(self, arr: NDArray) -> None:
        """Fill an array as a weight."""
        raise NotImplementedError(f"{type(self).__name__}.fill")

    def _init_weight(self, name: Any, arr: NDArray) -> None:
        """Fill a weight. Initializers that users write override this."""
        self.fill(arr)


class Constant(Initializer):
    """One number."""

    def __init__(self, value: Any = 0.0) -> None:
        plain = value.asnumpy() if isinstance(value, NDArray) else value
        super().__init__(value=plain.tolist() if hasattr(plain, "tolist") else plain)
        self.value = value

    def fill(self, arr: NDArray) -> None:
        """See `Initializer.fill`."""
        arr[:] = self.value


class Zero(Initializer):
    """Zeros."""

    def fill(self, arr: NDArray) -> None:
        """See `Initializer.fill`."""
        arr[:] = 0


class One(Initializer):
    """Ones."""

    def fill(self, arr: NDArray) -> None:
        """See `Initializer.fill`."""
        arr[:] = 1


class Uniform(Initializer):
    """Uniform in ``[-scale, scale]``."""

    def __init__(self, scale: float = 0.07) -> None:
        super().__init__(scale=scale)

    def fill(self, arr: NDArray) -> None:
        """See `Initializer.fill`."""
        arr.tensor.uniform_(-self._kwargs["scale"], self._kwargs["scale"])


class Normal(Initializer):
    """Normal with mean 0."""

    def __init__(self, sigma: float = 0.01) -> None:
        super().__init__(sigma=sigma)

    def fill(self, arr: NDArray) -> None:
        """See `Initializer.fill`."""
        arr.tensor.normal_(0.0, self._kwargs["sigma"])


class Bilinear(Initializer):
    """Weights of a transposed convolution that interpolates linearly along both axes.

    Raises:
        ValueError: on filling, an array without the axes (channels, channels, height, width).
    """

    def fill(self, arr: NDArray) -> None:
        """See `Initializer.fill`."""
        if len(arr.shape) != 4:
            raise ValueError(f"expected a weight of four axes for Bilinear, got shape {arr.shape}")
        height, width = arr.shape[2:]
        half = math.ceil(width / 2)
        middle = (2 * half - 1 - half % 2) / (2 * half)

        def slopes(length: int) -> torch.Tensor:
            return 1 - (torch.arange(length, dtype=torch.float64) / half - middle).abs()

        arr.tensor.copy_(slopes(height)[:, None] * slopes(width))


class Xavier(Initializer):
    """Uniform or normal with a width of ``sqrt(magnitude / factor)``.

    The factor is the mean of fan-in and fan-out, or one of them.

    Raises:
        ValueError: an unknown type or factor, or, on filling, an array of fewer than two axes.
    """

    def __init__(self, rnd_type: str = "uniform", factor_type: str = "avg", magnitude: float = 3.0) -> None:
        super().__init__(rnd_type=rnd_type, factor_type=factor_type, magnitude=magnitude)
        if rnd_type not in ("uniform", "gaussian") or factor_type not in ("avg", "in", "out"):
            raise ValueError(f"expected uniform or gaussian, and avg, in or out, got {rnd_type!r} and {factor_type!r}")

    def fill(self, arr: NDArray) -> None:
        """See `Initializer.fill`."""
        shape = arr.shape
        if len(shape) < 2:
            raise ValueError(f"Xavier initializer cannot be applied to an array of shape {shape}: expected two axes")
        cells = math.prod(shape[2:])
        fan_in, fan_out = shape[1] * cells, shape[0] * cells
        factor = {"avg": (fan_in + fan_out) / 2, "in": fan_in, "out": fan_out}[self._kwargs["factor_type"]]
        scale = math.sqrt(self._kwargs["magnitude"] / factor)
        if self._kwargs["rnd_type"] == "uniform":
            arr.tensor.uniform_(-scale, scale)
        else:
            arr.tensor.normal_(0.0, scale)


_RULES: tuple[type[Initializer], ...] = (Bilinear, Constant, Normal, One, Uniform, Xavier, Zero)
_CLASSES = {rule.__name__.lower(): rule for rule in _RULES} | {"ones": One, "zeros": Zero}


def create(init: Any, **kwargs: Any) -> Initializer:
    """Return an initializer by name, or from the text of `Initializer.dumps`. An initializer is returned unchanged.

    Raises:
        ValueError: an unknown name.
    """
    if isinstance(init, Initializer):
        return init
    name, numbers = json.loads(init) if init.startswith("[") else (init, kwargs)
    if name.lower() not in _CLASSES:
        raise ValueError(f"expected an initializer of {', '.join(sorted(_CLASSES))}, got {name!r}")
    return _CLASSES[name.lower()](**numbers)
