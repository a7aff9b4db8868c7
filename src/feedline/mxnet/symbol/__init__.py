"""`mxnet.symbol` (`mx.sym`): networks as graphs of operators, to inspect, draw, save and bind.

Names, attributes and files are MXNet 1.9's. Execution is torch's. Operators have MXNet's signatures: inputs, then
settings, ``name`` and ``attr``. Omitted inputs become variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from feedline.mxnet._names import names_of
from feedline.mxnet.attribute import AttrScope
from feedline.mxnet.base import MXNetError

# Importing these modules declares the operators, which `_make` turns into functions. `contrib` gets some of them.
from feedline.mxnet.symbol import (  # noqa: F401
    _arrange,
    _elementwise,
    _heads,
    _layers,
    _lookup,
    _normalise,
    _recurrent,
    _reductions,
    _resize,
    _sequences,
    _sorting,
    contrib,
)
from feedline.mxnet.symbol._make import FUNCTIONS, apply
from feedline.mxnet.symbol._symbol import Symbol as Symbol
from feedline.mxnet.symbol._symbol import _from_json, type_number, variable

_OPERATORS = {name: function for name, function in FUNCTIONS.items() if not name.startswith("_")}
globals().update(_OPERATORS)
# Operators whose names begin with an underscore, as `mxnet.symbol._internal._plus`.
_internal = SimpleNamespace(**{name: function for name, function in FUNCTIONS.items() if name.startswith("_")})

__all__, __getattr__ = names_of(__name__)


def var(
    name: str,
    attr: Mapping[str, str] | None = None,
    shape: Sequence[int] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    dtype: Any = None,
    init: Any = None,
    stype: str | None = None,
    **kwargs: str,
) -> Symbol:
    """Return a variable: data, a label or a parameter.

    Args:
        name: name by which arrays are bound.
        attr: additional attributes.
        shape: shape, if known, with 0 for unknown lengths.
        lr_mult: factor of the learning rate.
        wd_mult: factor of the weight decay.
        dtype: element type.
        init: initializer, or its text.
        stype: storage type, recorded without effect.
        kwargs: attributes whose names begin and end with two underscores.

    Raises:
        TypeError: the name is not a str.
        ValueError: an attribute without these underscores.
    """
    if not isinstance(name, str):
        raise TypeError(f"Expect a string for variable `name`, got {type(name).__name__}")
    attributes = AttrScope.current().get(attr)
    settings = {"shape": shape and tuple(shape), "lr_mult": lr_mult, "wd_mult": wd_mult, "storage_type": stype}
    attributes.update({f"__{key}__": str(value) for key, value in settings.items() if value is not None})
    if dtype is not None:
        attributes["__dtype__"] = type_number(dtype)
    if init is not None:
        attributes["__init__"] = init if isinstance(init, str) else init.dumps()
    for key, value in kwargs.items():
        if not (key.startswith("__") and key.endswith("__")):
            raise ValueError(
                f"Attribute name={key} is not supported. Additional attributes must start and end with double "
                "underscores, e.g, __yourattr__"
            )
        attributes[key] = str(value)
    return variable(name, attributes)


Variable = var


def Group(symbols: Sequence[Symbol]) -> Symbol:  # noqa: N802 - MXNet's name
    """Return a symbol with all outputs of several symbols.

    Raises:
        TypeError: something other than a Symbol, or nothing.
    """
    several = list(symbols)
    if not several or not all(isinstance(symbol, Symbol) for symbol in several):
        raise TypeError(f"Expected a list of symbols as input, got {symbols!r}")
    return Symbol([entry for symbol in several for entry in symbol.entries])


def load_json(json_str: str) -> Symbol:
    """Return a symbol from JSON text.

    Raises:
        TypeError: not a str.
        MXNetError: not the text of a symbol, or unsupported operators.
    """
    if not isinstance(json_str, str):
        raise TypeError(f"json_str needs to be string, got {type(json_str).__name__}")
    return _from_json(json_str)


def load(fname: str) -> Symbol:
    """Load a symbol from a file.

    Raises:
        TypeError: the name is not a str.
        OSError: no such file.
        MXNetError: the file is no text, or see `load_json`.
    """
    if not isinstance(fname, str):
        raise TypeError(f"fname need to be string, got {type(fname).__name__}")
    try:
        text = Path(fname).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise MXNetError(f"expected the JSON of a symbol in {fname}, got bytes that are no text: {error}") from error
    return _from_json(text)


def _either(both: str, symbol_first: str, number_first: str, a: Any, b: Any) -> Any:
    """Apply an operator to two symbols, or to a symbol and a number, in either order."""
    if isinstance(a, Symbol) and isinstance(b, Symbol):
        return apply(both, [a, b], {})
    if isinstance(a, Symbol):
        return apply(symbol_first, [a], {"scalar": b})
    if isinstance(b, Symbol):
        return apply(number_first, [b], {"scalar": a})
    raise TypeError(f"expected a Symbol on one side, got {type(a).__name__} and {type(b).__name__}")


def maximum(left: Any, right: Any) -> Any:
    """Return the element-wise maximum. One side may be a number."""
    return _either("_Maximum", "_MaximumScalar", "_MaximumScalar", left, right)


def minimum(left: Any, right: Any) -> Any:
    """Return the element-wise minimum. One side may be a number."""
    return _either("_Minimum", "_MinimumScalar", "_MinimumScalar", left, right)


def power(base: Any, exp: Any) -> Any:
    """Return the base to the power of the exponent. One side may be a number."""
    return _either("_Power", "_PowerScalar", "_RPowerScalar", base, exp)


pow = power


def hypot(left: Symbol, right: Symbol) -> Symbol:
    """Return the hypotenuse of two legs, which are both symbols."""
    return apply("_hypot", [left, right], {})


def zeros(shape: Any, dtype: Any = "float32", name: str | None = None) -> Symbol:
    """Return an array of zeros."""
    return apply("_zeros", [], {"shape": shape, "dtype": dtype}, name=name)


def ones(shape: Any, dtype: Any = "float32", name: str | None = None) -> Symbol:
    """Return an array of ones."""
    return apply("_ones", [], {"shape": shape, "dtype": dtype}, name=name)


def full(shape: Any, val: float, dtype: Any = "float32", name: str | None = None) -> Symbol:
    """Return an array filled with one number."""
    return apply("_full", [], {"shape": shape, "dtype": dtype, "value": float(val)}, name=name)


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1.0,
    repeat: int = 1,
    name: str | None = None,
    dtype: Any = "float32",
) -> Symbol:
    """Return numbers from ``start`` up to ``stop``, each ``repeat`` times. Without a stop, from 0 up to ``start``."""
    settings = {"start": start, "stop": stop, "step": step, "repeat": repeat, "dtype": dtype}
    return apply("_arange", [], settings, name=name)


def eye(N: int, M: int = 0, k: int = 0, dtype: Any = "float32", name: str | None = None) -> Symbol:  # noqa: N803
    """Return an ``N`` by ``M`` (0: ``N``) matrix with ones on the ``k``-th diagonal above the main one."""
    return apply("_eye", [], {"N": N, "M": M, "k": k, "dtype": dtype}, name=name)
