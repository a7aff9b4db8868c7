"""`mxnet.test_utils`: comparisons and random arrays, which tests of scripts import."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from feedline.mxnet._names import names_of
from feedline.mxnet.context import Context, current_context
from feedline.mxnet.ndarray import NDArray, array, sparse

__all__, __getattr__ = names_of(__name__)

# Relative and absolute tolerances by element type, as in MXNet 1.9.1.
_TOLERANCES = {"float16": (1e-2, 1e-1), "float32": (1e-4, 1e-3), "float64": (1e-5, 1e-20)}
_default: list[Context] = []


def default_context() -> Context:
    """Return the context of `set_default_context`, or the current one."""
    return _default[-1] if _default else current_context()


def set_default_context(ctx: Context) -> None:
    """Set the context of arrays of this module."""
    _default[:] = [ctx]


def default_dtype() -> Any:
    """Return float32."""
    return np.float32


def _numpy(value: Any) -> Any:
    return value.asnumpy() if hasattr(value, "asnumpy") else np.asarray(value)


def same(a: Any, b: Any) -> bool:
    """Return whether two arrays are equal, element by element."""
    return bool(np.array_equal(_numpy(a), _numpy(b)))


def _tolerances(a: Any, b: Any, rtol: float | None, atol: float | None) -> tuple[float, float]:
    pairs = [_TOLERANCES.get(x.dtype.name, (0.0, 0.0)) for x in (a, b)]
    return (max(r for r, _ in pairs) if rtol is None else rtol, max(t for _, t in pairs) if atol is None else atol)


def almost_equal(a: Any, b: Any, rtol: float | None = None, atol: float | None = None, equal_nan: bool = False) -> bool:
    """Return whether ``|a - b| <= atol + rtol |b|`` everywhere. None means the tolerance of the element types."""
    a, b = _numpy(a), _numpy(b)
    rtol, atol = _tolerances(a, b, rtol, atol)
    return bool(np.allclose(a, b, rtol, atol, equal_nan))


def assert_almost_equal(
    a: Any,
    b: Any,
    rtol: float | None = None,
    atol: float | None = None,
    names: Sequence[str] = ("a", "b"),
    equal_nan: bool = False,
) -> None:
    """Raise AssertionError with the largest differences unless `almost_equal`."""
    a, b = _numpy(a), _numpy(b)
    rtol, atol = _tolerances(a, b, rtol, atol)
    np.testing.assert_allclose(a, b, rtol, atol, equal_nan, f"{names[0]} and {names[1]} differ")


def assert_exception(f: Any, exception_type: type[BaseException], *args: Any, **kwargs: Any) -> None:
    """Raise AssertionError unless a call raises an exception of this type."""
    try:
        f(*args, **kwargs)
    except exception_type:
        return
    raise AssertionError(f"expected {exception_type.__name__}, got none")


@contextmanager
def environment(*args: Any) -> Iterator[None]:
    """Set environment variables within ``with``.

    Args:
        args: a name and its value, or a dict of values by name. None removes a variable.

    Raises:
        TypeError: other arguments.
    """
    if len(args) == 1 and isinstance(args[0], Mapping):
        values = dict(args[0])
    elif len(args) == 2:
        values = {args[0]: args[1]}
    else:
        raise TypeError(f"expected a name and a value, or a dict of values by name, got {args!r}")
    before = {name: os.environ.get(name) for name in values}
    try:
        _set_variables(values)
        yield
    finally:
        _set_variables(before)


def _set_variables(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = str(value)


def random_arrays(*shapes: Sequence[int]) -> Any:
    """Return normal NumPy arrays, float32: one array for one shape, else a list."""
    arrays = [np.array(np.random.randn(), "f4") if not s else np.random.randn(*s).astype("f4") for s in shapes]
    return arrays[0] if len(arrays) == 1 else arrays


def rand_shape_2d(dim0: int = 10, dim1: int = 10) -> tuple[int, int]:
    """Return random lengths of two axes, from 1 up to these."""
    return np.random.randint(1, dim0 + 1), np.random.randint(1, dim1 + 1)


def rand_shape_3d(dim0: int = 10, dim1: int = 10, dim2: int = 10) -> tuple[int, int, int]:
    """Return random lengths of three axes, from 1 up to these."""
    return (*rand_shape_2d(dim0, dim1), np.random.randint(1, dim2 + 1))


def rand_shape_nd(num_dim: int, dim: int = 10) -> tuple[int, ...]:
    """Return random lengths of axes, from 1 up to ``dim``."""
    return tuple(np.random.randint(1, dim + 1, size=num_dim).tolist())


def rand_ndarray(
    shape: Sequence[int], stype: str = "default", density: float | None = None, dtype: Any = None, ctx: Any = None
) -> Any:
    """Return an array of numbers from -1 to 1, dense or row-sparse.

    Args:
        shape: shape of the array.
        stype: ``default`` or ``row_sparse``.
        density: fraction of the rows of a row-sparse array that are not 0. None means random.
        dtype: element type. None means float32.
        ctx: context. None means the default one.
    """
    numbers = np.random.uniform(-1, 1, tuple(shape))
    if stype == "row_sparse":
        share = np.random.rand() if density is None else density
        numbers[np.random.rand(shape[0]) >= share] = 0
    result = array(numbers, default_context() if ctx is None else ctx, dtype)
    return result if stype == "default" else result.tostype(stype)


def rand_sparse_ndarray(
    shape: Sequence[int], stype: str, density: float | None = None, dtype: Any = None
) -> tuple[Any, tuple[NDArray, NDArray]]:
    """Return a row-sparse array as `rand_ndarray`, and its rows and their indices."""
    result = rand_ndarray(shape, stype, density, dtype)
    assert isinstance(result, sparse.RowSparseNDArray)
    return result, (result.data, result.indices)
