"""CNTK's declarations of streams."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np

from feedline.cntk import cntk_py
from feedline.cntk._names import absent_members
from feedline.cntk.variables import Record
from feedline.data import Stream
from feedline.errors import CompatError

_STORAGE = {"dense": cntk_py.StorageFormat_Dense, "sparse": cntk_py.StorageFormat_SparseCSC}
ELEMENTS: dict[np.dtype[Any], int] = {
    np.dtype(np.float32): cntk_py.DataType_Float,
    np.dtype(np.float64): cntk_py.DataType_Double,
    np.dtype(np.float16): cntk_py.DataType_Float16,
    np.dtype(np.int8): cntk_py.DataType_Int8,
    np.dtype(np.int16): cntk_py.DataType_Int16,
}

StreamDefs = Record


def StreamDef(
    field: str | None = None,
    shape: int | tuple[int, ...] | None = None,
    is_sparse: bool = False,
    transforms: Any = None,
    context: Any = None,
    scp: Any = None,
    mlf: Any = None,
    broadcast: bool | None = None,
    defines_mb_size: bool = False,
    max_sequence_length: int = 65535,
) -> Record:
    """Declare one stream of a deserializer.

    Args:
        field: name of the stream in the data.
        shape: number of values in a sample, or of classes of a sparse one.
        is_sparse: whether samples are sparse.
        context, scp, mlf, broadcast: options of speech readers: (left, right) neighbours of a frame, the script of
            features, label files, and whether to repeat utterances of one frame.
        transforms: option of image readers: a list of `cntk.io.transforms`, run in turn.
        max_sequence_length: without effect, as in CNTK.
        defines_mb_size: whether its samples count for the minibatch size.
    """
    optional = {
        "dim": shape,
        "transforms": transforms,
        "context": context,
        "scp": scp,
        "mlf": mlf,
        "broadcast": broadcast,
    }
    return Record(
        stream_alias=field,
        is_sparse=is_sparse or mlf is not None,
        defines_mb_size=bool(defines_mb_size),
        max_sequence_length=max_sequence_length,
        **{name: value for name, value in optional.items() if value is not None},
    )


@absent_members("cntk.io")
class StreamConfiguration:
    """A stream of a text reader.

    Args:
        name: name of the stream.
        dim: number of values in a sample.
        is_sparse: whether samples are sparse.
        stream_alias: name of the stream in the data. Empty: ``name``.
        defines_mb_size: whether its samples count for the minibatch size.

    Raises:
        NotImplementedError: ``dim`` is not an int.
    """

    def __init__(
        self, name: str, dim: int, is_sparse: bool = False, stream_alias: str = "", defines_mb_size: bool = False
    ) -> None:
        try:
            self.m_dim = operator.index(dim)
        except TypeError:
            raise NotImplementedError(
                f"expected an int as shape of stream `{name}`, got {dim!r}: text has flat samples; reshape them later"
            ) from None
        self.m_stream_name, self.m_stream_alias = name, stream_alias
        self.m_is_sparse, self.m_defines_mb_size = bool(is_sparse), bool(defines_mb_size)


@absent_members("cntk.io")
class StreamInformation:
    """A stream that a source delivers, used as key in the result of `next_minibatch`.

    Two are equal if their names, ids, storage, element types and shapes are equal.

    Args:
        name: name of the stream.
        stream_id: number of the stream, unique within its source.
        storage_format: ``"dense"`` or ``"sparse"``.
        dtype: element type.
        shape: shape of a sample.
        defines_mb_size: whether its samples count for the minibatch size.

    Raises:
        KeyError: another storage format.
        ValueError: an element type that CNTK does not have.
    """

    def __init__(
        self,
        name: str,
        stream_id: int,
        storage_format: str,
        dtype: Any,
        shape: tuple[int, ...],
        defines_mb_size: bool = False,
    ) -> None:
        kind = np.dtype(dtype)
        if kind not in ELEMENTS:
            raise ValueError(f"expected one of {', '.join(t.name for t in ELEMENTS)}, got {kind.name}")
        self.m_storage_format = _STORAGE[storage_format]
        self.m_element_type = ELEMENTS[kind]
        self.m_name, self.m_id, self.m_defines_mb_size = name, stream_id, bool(defines_mb_size)
        self.storage_format, self.dtype = storage_format, kind
        self.sample_shape = tuple(shape)
        self.m_sample_layout = self.sample_shape[::-1]  # column-major
        self._count: Callable[[], int] | None = None

    @classmethod
    def of(cls, name: str, number: int, stream: Stream, count: Callable[[], int]) -> StreamInformation:
        """Create CNTK's description of a feedline stream; ``count``: returns its number of samples in a sweep."""
        storage = "sparse" if stream.sparse else "dense"
        info = cls(name, number, storage, stream.dtype, stream.shape, stream.defines_size)
        info._count = count
        return info

    name = property(attrgetter("m_name"), doc="Name of the stream.")

    @property
    def is_sparse(self) -> bool:
        """Whether samples are sparse."""
        return self.m_storage_format == cntk_py.StorageFormat_SparseCSC

    @property
    def stream(self) -> Stream:
        """The feedline declaration, in which sparse samples are flat."""
        shape = (math.prod(self.sample_shape),) if self.is_sparse else self.sample_shape
        return Stream(shape, self.dtype, self.is_sparse, defines_size=self.m_defines_mb_size)

    def size(self) -> int:
        """Return the number of samples of this stream in a sweep.

        If each sequence has one sample, nothing is read. Otherwise the first call reads the data once.

        Raises:
            CompatError: a stream of a source that does not know it, such as a user-defined one.
        """
        if self._count is None:
            raise CompatError(f"the number of samples of stream `{self.m_name}` is unknown: its source does not say")
        return self._count()

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, StreamInformation) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return self.m_id, self.m_name, self.m_storage_format, self.m_element_type, self.sample_shape

    def __repr__(self) -> str:
        return f"{self.m_name}([{' x '.join(map(str, self.sample_shape))}])"
