"""Names that NumPy 1.24, 2.0 and later versions removed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from feedline.cli.old_names.notes import Notes

#: Types and constants of NumPy.
_VALUES: dict[str, tuple[Any, str]] = {
    **{kind.__name__: (kind, kind.__name__) for kind in (bool, int, float, complex, object, str)},
    "unicode": (str, "str"),
    "long": (int, "int"),
    "float_": (np.float64, "np.float64"),
    **dict.fromkeys(("complex_", "cfloat"), (np.complex128, "np.complex128")),
    "singlecomplex": (np.complex64, "np.complex64"),
    "longfloat": (np.longdouble, "np.longdouble"),
    **dict.fromkeys(("longcomplex", "clongfloat"), (np.clongdouble, "np.clongdouble")),
    **dict.fromkeys(("string_", "bytes0"), (np.bytes_, "np.bytes_")),
    **dict.fromkeys(("unicode_", "str0"), (np.str_, "np.str_")),
    "bool8": (np.bool_, "np.bool_"),
    "object0": (np.object_, "np.object_"),
    "void0": (np.void, "np.void"),
    "int0": (np.intp, "np.intp"),
    "uint0": (np.uintp, "np.uintp"),
    **dict.fromkeys(("Inf", "Infinity", "infty", "PINF"), (np.inf, "np.inf")),
    "NINF": (-np.inf, "-np.inf"),
    "NaN": (np.nan, "np.nan"),
    "PZERO": (0.0, "0.0"),
    "NZERO": (-0.0, "-0.0"),
    "typeDict": (np.sctypeDict, "np.sctypeDict"),
}

#: Functions of NumPy.
_FUNCTIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "asscalar": (lambda a: np.asarray(a).item(), "a.item()"),
    "product": (np.prod, "np.prod"),
    "cumproduct": (np.cumprod, "np.cumprod"),
    "sometrue": (np.any, "np.any"),
    "alltrue": (np.all, "np.all"),
    "round_": (np.round, "np.round"),
    "rank": (np.ndim, "np.ndim"),
    "mat": (np.asmatrix, "np.asmatrix"),
    "trapz": (lambda y, *args, **options: np.trapezoid(y, *args, **options), "np.trapezoid"),
    "row_stack": (np.vstack, "np.vstack"),
    "msort": (lambda a: np.sort(a, axis=0), "np.sort(a, axis=0)"),
    "alen": (lambda a: len(np.atleast_1d(a)), "len(a)"),
    "asfarray": (lambda a, dtype=np.float64: np.asarray(a, dtype), "np.asarray(a, float)"),
    "in1d": (lambda a, b, *args, **options: np.isin(np.ravel(a), b, *args, **options), "np.isin"),
    "find_common_type": (lambda arrays, scalars: np.result_type(*arrays, *scalars), "np.result_type"),
    "obj2sctype": (lambda kind: np.dtype(kind).type, "np.dtype(kind).type"),
    "ndfromtxt": (np.genfromtxt, "np.genfromtxt"),
}


def restore_numpy(notes: Notes) -> None:
    """Add the old names to NumPy."""
    look_up = vars(np)["__getattr__"]  # of names that the module lacks
    parse = np.fromstring

    def get(name: str) -> Any:
        if name not in _VALUES and name not in _FUNCTIONS:
            return look_up(name)
        value, instead = _VALUES.get(name) or _FUNCTIONS[name]
        notes.used(f"numpy.{name}", instead)
        setattr(np, name, value)
        return value

    def fromstring(string: Any, dtype: Any = float, count: int = -1, sep: str = "", **options: Any) -> Any:
        if sep:
            return parse(string, dtype, count, sep=sep, **options)
        notes.used("numpy.fromstring without sep", "np.frombuffer(...).copy()")
        return np.frombuffer(string, dtype, count).copy()

    vars(np).update(__getattr__=get, fromstring=fromstring)
    if not hasattr(np.lib, "pad"):
        vars(np.lib)["pad"] = notes.wrap("numpy.lib.pad", np.pad, "np.pad")
