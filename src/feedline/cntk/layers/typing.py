"""`cntk.layers.typing`: types of arguments, such as ``Tensor[13]`` and ``Sequence[SparseTensor[9000]]``.

A type is a `Record` of the arguments of `input_variable`: shape, dynamic axes, sparsity and optionally element type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feedline.cntk._names import names_of
from feedline.cntk._nodes import dims
from feedline.cntk._settings import plain
from feedline.cntk._tracing import is_number_type, parameters_of
from feedline.cntk.axis import Axis
from feedline.cntk.variables import Record

__all__, __getattr__ = names_of(__name__)


class _Tensors:
    """Type of one sample without a sequence axis: ``Tensor[13, 42]``, ``Tensor[np.float64, 13]``."""

    def __init__(self, name: str, axes: list[Axis], sparse: bool = False) -> None:
        self._name, self._axes, self._sparse = name, axes, sparse

    def __getitem__(self, shape: Any) -> Record:
        shape = plain(shape)
        parts = tuple(shape) if isinstance(shape, (list, tuple)) else (shape,)
        settings: dict[str, Any] = {}
        if parts and is_number_type(parts[0]):
            settings["dtype"], parts = parts[0], parts[1:]
        return Record(shape=dims(parts), is_sparse=self._sparse, dynamic_axes=list(self._axes), **settings)

    def __repr__(self) -> str:
        return self._name


class _Sequences:
    """Type of samples along a sequence axis: ``Sequence[Tensor[13]]``."""

    def __init__(self, axis: Axis) -> None:
        self._axis = axis

    def __getitem__(self, item: Any) -> Record:
        kind = item if isinstance(item, Record) else Tensor[item]
        if list(kind["dynamic_axes"]) != [Axis.default_batch_axis()]:
            raise TypeError(f"expected a type of one sample for a sequence, got {dict(kind)}: sequences do not nest")
        return kind.updated_with(dynamic_axes=[Axis.default_batch_axis(), self._axis])


class _SequencesOver:
    """Type of samples along a named sequence axis: ``SequenceOver[axis][Tensor[13]]``."""

    def __getitem__(self, axis: Axis) -> _Sequences:
        return _Sequences(axis)


Tensor = _Tensors("Tensor", [Axis.default_batch_axis()])
SparseTensor = _Tensors("SparseTensor", [Axis.default_batch_axis()], sparse=True)
ParameterTensor = _Tensors("ParameterTensor", [])
Sequence = _Sequences(Axis.default_dynamic_axis())
SequenceOver = _SequencesOver()
tensor = Record(shape=None, is_sparse=False, dynamic_axes=[Axis.default_batch_axis()])  # of any shape


def Signature(*args: Any, **kwargs: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that annotates the parameters of a Python function with types, for `Function`.

    Raises:
        TypeError: types that do not match the parameters.
        ValueError: a function that already has annotations.
    """

    def annotate(f: Callable[..., Any]) -> Callable[..., Any]:
        if f.__annotations__:
            raise ValueError(f"expected a function without annotations, got one with {f.__annotations__}")
        names = parameters_of(f)
        types = {**dict(zip(names, args, strict=False)), **kwargs}
        if set(types) != set(names) or len(args) + len(kwargs) != len(names):
            raise TypeError(f"expected a type for each of {', '.join(names)}, got {len(args) + len(kwargs)}")
        f.__annotations__ = types
        return f

    return annotate
