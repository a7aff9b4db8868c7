"""Trees of arrays and tensors on their way from a worker to the parent, and back into objects.

A tree is pickled with protocol 5. Its large buffers stay outside of the pickle, in the unit's shared memory: arrays
that were made there by `empty` are only named, others are copied once. Small ones travel inside the pickle. In the
parent arrays and tensors are views of that memory, writable, C-contiguous or with the strides they had where these
are dense. Pickle is used between our own processes only; nothing is read from a file or from another user.
"""

from __future__ import annotations

import copyreg
import importlib
import io
import pickle
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from feedline.feed.workers.memory import Arena, SharedSpan

Array = NDArray[Any]

INLINE = 4096
"""Bytes up to which a buffer travels inside the message: a copy of so little is cheaper than a view's bookkeeping."""

_PLAIN = "biufcmMSU"  # kinds of dtypes that their short string names completely

# The out-of-band mark in the stream; which memory it stands for is said beside it.
_MARK = pickle.PickleBuffer(bytearray(1))

_arena: Arena | None = None  # this process's, in a worker


def set_arena(arena: Arena) -> None:
    """Make `empty` allocate here: this process is a worker."""
    global _arena
    _arena = arena


def empty(shape: int | Sequence[int], dtype: DTypeLike = float) -> Array:
    """An uninitialised array for the result of the unit that is running.

    In a worker process it lies in the shared memory of the unit, so that returning it copies nothing; it is the
    worker's only until `Task.run` returns. Everywhere else, and where it is small, it is ``np.empty``.

    Args:
        shape: of the array.
        dtype: of the array; object dtypes are never shared.

    Raises:
        MemoryError: so much shared memory is not free.
    """
    kind = np.dtype(dtype)
    arena = _arena
    if arena is not None and not kind.hasobject and arena.thread == threading.get_ident():
        size = shape if isinstance(shape, int) else 1
        if not isinstance(shape, int):
            for n in shape:
                size *= n
        if size * kind.itemsize > INLINE:
            return np.ndarray(shape, kind, arena.take(size * kind.itemsize)[1])
    return np.empty(shape, kind)


class Encoder:
    """Makes messages out of trees.

    Args:
        arena: where large buffers go; None: into the pickle.
    """

    def __init__(self, arena: Arena | None) -> None:
        self._arena = arena
        self._table: dict[Any, Callable[[Any], Any]] = {np.ndarray: self._array}
        self._torch = False
        self._buffers: list[Any] = []
        self._reduced: Array | None = None

    def encode(self, tree: Any) -> tuple[list[SharedSpan], bytes | SharedSpan, int]:
        """The buffers outside of the pickle, the pickle (in shared memory where it is large), and all their bytes.

        Raises:
            MemoryError: so much shared memory is not free.
            Exception: what pickling raised.
        """
        if not self._torch and "torch" in sys.modules:
            self._table |= importlib.import_module("feedline.interop.torch_messages").reducers(self.reduce)
            self._torch = True
        buffers: list[Array] = []
        self._buffers = buffers
        stream = io.BytesIO()
        pickler = pickle.Pickler(stream, 5, buffer_callback=None if self._arena is None else self._buffer)
        # A private table hides the global one, which others may add to at any time.
        pickler.dispatch_table = copyreg.dispatch_table | self._table
        try:
            pickler.dump(tree)
        finally:
            self._buffers, self._reduced = [], None
        text = stream.getvalue()
        total = len(text)
        if self._arena is None or (not buffers and total <= 16 * INLINE):
            return [], text, total
        return self._place(buffers, text, total)

    def reduce(self, array: Array) -> tuple[Any, tuple[Any, ...]]:
        """A constructor and its arguments that make ``array``, whose dtype must be plain, again."""
        shape, strides = array.shape, None
        if not array.flags.c_contiguous:
            array, strides = _dense(array)
        if self._arena is None or array.nbytes <= INLINE:
            return np.ndarray, (shape, array.dtype.str, bytearray(array.tobytes()), 0, strides)
        self._reduced = array
        return np.ndarray, (shape, array.dtype.str, _MARK, 0, strides)

    def _array(self, array: Array) -> Any:
        if array.dtype.kind not in _PLAIN:
            return array.__reduce_ex__(5)
        return self.reduce(array)

    def _buffer(self, buffer: pickle.PickleBuffer) -> bool:
        # True: stays in the pickle. The mark of a reduced array always comes right after its reduction.
        if self._reduced is not None:
            self._buffers.append(self._reduced)
            self._reduced = None
            return False
        raw = buffer.raw()
        if raw.nbytes <= INLINE:
            return True
        self._buffers.append(np.frombuffer(raw, np.uint8))
        return False

    def _place(self, buffers: list[Array], text: bytes, total: int) -> tuple[list[SharedSpan], bytes | SharedSpan, int]:
        arena = self._arena
        assert arena is not None
        found = [arena.find(a.ctypes.data, a.nbytes) if a.flags.c_contiguous else None for a in buffers]
        outside = len(text) > 16 * INLINE
        sizes = [-(-a.nbytes // 64) * 64 for a, piece in zip(buffers, found, strict=True) if piece is None]
        pieces: list[SharedSpan] = []
        message: bytes | SharedSpan = text
        need = sum(sizes) + (len(text) if outside else 0)
        if need:
            whole, memory = arena.take(need)
            offset = 0
            for array, piece in zip(buffers, found, strict=True):
                if piece is not None:
                    pieces.append(piece)
                    continue
                np.copyto(np.ndarray(array.shape, array.dtype, memory, offset), array)
                pieces.append(SharedSpan(whole.number, whole.offset + offset, array.nbytes))
                offset += -(-array.nbytes // 64) * 64
            if outside:
                memory[offset : offset + len(text)] = text
                message = SharedSpan(whole.number, whole.offset + offset, len(text))
        else:
            pieces = [piece for piece in found if piece is not None]
        return pieces, message, total + sum(piece.nbytes for piece in pieces)


def decode(text: bytes | memoryview, buffers: Sequence[memoryview]) -> Any:
    """The tree of a message; its arrays are views of ``buffers``."""
    return pickle.loads(text, buffers=buffers)


def _dense(array: Array) -> tuple[Array, tuple[int, ...] | None]:
    """The same elements in the order of memory, C-contiguous, with the strides that undo it, where ``array`` has no
    holes and no overlaps; else ``array`` and None: it becomes C-contiguous."""
    order = np.argsort([-stride for stride in array.strides], kind="stable")
    turned = array.transpose(order)
    if turned.flags.c_contiguous:
        return turned, array.strides
    return array, None
