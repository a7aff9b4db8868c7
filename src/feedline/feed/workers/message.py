"""Encode trees of arrays and tensors in a worker, and decode them in the parent.

A tree is pickled with protocol 5. Small buffers travel inside the pickle, large ones in the unit's shared memory:
arrays allocated there by `empty` are passed by reference, others are copied once. In the parent, arrays and tensors are
writable views of that memory, with their strides if they are dense, C-contiguous otherwise. Pickle is used between our
own processes only, never for files or other users' data.
"""

from __future__ import annotations

import copyreg
import importlib
import io
import math
import pickle
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from feedline._native import recycled
from feedline.feed.workers.memory import Arena, SharedSpan

Array = NDArray[Any]

INLINE_BYTES = 4096
"""Bytes up to which a buffer travels inside the message: copying so few is cheaper than managing a view."""

_PLAIN = "biufcmMSU"  # kinds of dtypes that are fully described by `dtype.str`

# Placeholder of an out-of-band buffer in the pickle. `_buffers` holds the array.
_MARK = pickle.PickleBuffer(bytearray(1))

_arena: Arena | None = None  # set in worker processes only


def set_arena(arena: Arena) -> None:
    """Make `empty` allocate from ``arena``. Called in a worker process."""
    global _arena
    _arena = arena


def empty(shape: int | Sequence[int], dtype: DTypeLike = float) -> Array:
    """Return an uninitialised array for the result of the running unit.

    In a worker process the array is allocated in the unit's shared memory, so that returning it copies nothing. The
    worker may use it until `Task.run` returns. Elsewhere, and for small arrays, this is `recycled.empty`.

    Args:
        shape: shape of the array.
        dtype: dtype of the array. Object dtypes are never shared.

    Raises:
        MemoryError: not enough shared memory is free.
    """
    kind = np.dtype(dtype)
    arena = _arena
    if arena is not None and not kind.hasobject and arena.thread == threading.get_ident():
        size = shape if isinstance(shape, int) else math.prod(shape)
        if size * kind.itemsize > INLINE_BYTES:
            return np.ndarray(shape, kind, arena.take(size * kind.itemsize)[1])
    return recycled.empty((shape,) if isinstance(shape, int) else shape, kind)


class Encoder:
    """Encodes trees as messages.

    Args:
        arena: memory for large buffers, for `encode`. None if they stay apart, see `parts`.
        fallback: class of picklers for objects that pickle refuses. None if they are an error.
    """

    def __init__(self, arena: Arena | None, *, fallback: Any = None) -> None:
        self._arena, self._fallback = arena, fallback
        self._table: dict[Any, Callable[[Any], Any]] = {np.ndarray: self._array}
        self._torch = False
        self._buffers: list[Any] = []
        self._reduced: Array | None = None

    def encode(self, tree: Any) -> tuple[list[SharedSpan], bytes | SharedSpan, int]:
        """Return the out-of-band buffers, the pickle (in shared memory if large), and the number of bytes of all.

        Raises:
            MemoryError: not enough shared memory is free.
            Exception: pickling failed.
        """
        text, buffers = self._pickle(tree)
        if not buffers and len(text) <= 16 * INLINE_BYTES:
            return [], text, len(text)
        return self._place(buffers, text)

    def parts(self, tree: Any) -> tuple[bytes, list[Array], int]:
        """Return the pickle, the out-of-band buffers, which are `tree`'s own memory, and the number of bytes of all.

        Raises:
            Exception: pickling failed.
        """
        text, buffers = self._pickle(tree)
        # Buffers may be read-only, or not C-contiguous.
        buffers = [np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in buffers]
        return text, buffers, len(text) + sum(each.nbytes for each in buffers)

    def _pickle(self, tree: Any) -> tuple[bytes, list[Array]]:
        if not self._torch and "torch" in sys.modules:
            self._table |= importlib.import_module("feedline.interop.torch_messages").reducers(self.reduce)
            self._torch = True
        try:
            return self._pickle_by(pickle.Pickler, tree)
        except (pickle.PicklingError, AttributeError, TypeError):
            if self._fallback is None:
                raise
            return self._pickle_by(self._fallback, tree)

    def _pickle_by(self, kind: Any, tree: Any) -> tuple[bytes, list[Array]]:
        buffers: list[Array] = []
        self._buffers = buffers
        stream = io.BytesIO()
        pickler = kind(stream, 5, buffer_callback=self._buffer)
        # A private table, since other code may add to the global one at any time.
        reducers = copyreg.dispatch_table if kind is pickle.Pickler else dict(kind.dispatch_table)
        pickler.dispatch_table = reducers | self._table
        try:
            pickler.dump(tree)
        finally:
            self._buffers, self._reduced = [], None
        return stream.getvalue(), buffers

    def reduce(self, array: Array) -> tuple[Any, tuple[Any, ...]]:
        """Return a constructor and arguments that rebuild ``array``, whose dtype must be plain."""
        shape, strides = array.shape, None
        if not array.flags.c_contiguous:
            array, strides = _dense(array)
        if array.nbytes <= INLINE_BYTES:
            return np.ndarray, (shape, array.dtype.str, bytearray(array.tobytes()), 0, strides)
        self._reduced = array
        return np.ndarray, (shape, array.dtype.str, _MARK, 0, strides)

    def _array(self, array: Array) -> Any:
        if array.dtype.kind not in _PLAIN:
            return array.__reduce_ex__(5)
        return self.reduce(array)

    def _buffer(self, buffer: pickle.PickleBuffer) -> bool:
        # True: stays in the pickle. The placeholder of a reduced array always comes right after its reduction.
        if self._reduced is not None:
            self._buffers.append(self._reduced)
            self._reduced = None
            return False
        raw = buffer.raw()
        if raw.nbytes <= INLINE_BYTES:
            return True
        self._buffers.append(np.frombuffer(raw, np.uint8))
        return False

    def _place(self, buffers: list[Array], text: bytes) -> tuple[list[SharedSpan], bytes | SharedSpan, int]:
        arena = self._arena
        assert arena is not None
        spans = [arena.find(a.ctypes.data, a.nbytes) if a.flags.c_contiguous else None for a in buffers]
        outside = len(text) > 16 * INLINE_BYTES
        sizes = [-(-a.nbytes // 64) * 64 for a, piece in zip(buffers, spans, strict=True) if piece is None]
        pieces: list[SharedSpan] = []
        message: bytes | SharedSpan = text
        need = sum(sizes) + (len(text) if outside else 0)
        if need:
            span, memory = arena.take(need)
            offset = 0
            for array, piece in zip(buffers, spans, strict=True):
                if piece is not None:
                    pieces.append(piece)
                    continue
                np.copyto(np.ndarray(array.shape, array.dtype, memory, offset), array)
                pieces.append(SharedSpan(span.number, span.offset + offset, array.nbytes))
                offset += -(-array.nbytes // 64) * 64
            if outside:
                memory[offset : offset + len(text)] = text
                message = SharedSpan(span.number, span.offset + offset, len(text))
        else:
            pieces = [piece for piece in spans if piece is not None]
        return pieces, message, len(text) + sum(piece.nbytes for piece in pieces)


def decode(text: bytes | memoryview, buffers: Sequence[memoryview]) -> Any:
    """Return the tree of a message. Its arrays are views of ``buffers``."""
    return pickle.loads(text, buffers=buffers)


def _dense(array: Array) -> tuple[Array, tuple[int, ...] | None]:
    """Return ``array`` transposed to be C-contiguous and the strides that undo it. If it has holes or overlaps, return
    ``array`` and None: it is sent as a C-contiguous copy."""
    order = np.argsort([-stride for stride in array.strides], kind="stable")
    turned = array.transpose(order)
    if turned.flags.c_contiguous:
        return turned, array.strides
    return array, None
