"""Lists, dictionaries and arrays in sealed shared memory, read-only, for datasets that workers read.

Reading a Python object writes its reference count, so a forked worker soon owns a copy of every page of a large list.
Here the records lie encoded in one anonymous file that all workers map, and `SharedList` and `SharedDict` decode one at
a time. Records are new objects at every access: changing one changes nothing else.

Cost: a microsecond for a small record, and as many bytes as its content.
"""

from __future__ import annotations

import array
import ctypes
import marshal
import mmap
import operator
import os
import pickle
import zlib
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from itertools import accumulate, chain
from multiprocessing import context
from multiprocessing.reduction import DupFd
from typing import Any, ClassVar, NoReturn, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from feedline import system
from feedline.concurrency.finalizers import unless_exiting
from feedline.feed.workers.limits import require_memory

_ALIGNMENT = 64
_CHECKED_BYTES = 16 << 20  # written between two looks at how much memory is free
_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))
_CONTAINERS = frozenset((list, tuple, set, frozenset, dict))
_LEVELS = 50  # of containers in containers, in a record that `marshal` encodes
_TOGETHER = 1 << 13  # records encoded between two writes


class Memory:
    """Sealed shared memory.

    Args:
        fd: its descriptor, which this object closes.
        wrote: whether this process has written it.

    Attributes:
        view: its bytes, read-only.
    """

    def __init__(self, fd: int, wrote: bool = False) -> None:
        self._fd = fd
        # A private mapping, as kernels before 6.7 refuse shared ones of sealed memory. Its pages are shared all the
        # same. The process that wrote them maps them at once: what only a worker has mapped would count as its own.
        self.view = memoryview(system.map_private(fd, os.fstat(fd).st_size, present=wrote))
        _copy_on_write(self.view)

    @unless_exiting
    def __del__(self) -> None:
        os.close(self._fd)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if context.get_spawning_popen() is not None:  # a process that starts gets the descriptor
            return _attach, (DupFd(self._fd),)
        return _sent(self.view, protocol)


def _copy_on_write(view: memoryview) -> None:
    """Let a write into a read-only mapping change this process's copy, rather than end the process.

    Python's objects over it stay read-only. But torch makes writable tensors of read-only arrays.
    """
    size = ctypes.c_size_t(view.nbytes)
    address = ctypes.c_void_p(np.frombuffer(view, np.uint8).ctypes.data)
    if ctypes.CDLL(None, use_errno=True).mprotect(address, size, mmap.PROT_READ | mmap.PROT_WRITE):
        raise OSError(ctypes.get_errno(), f"expected to map {view.nbytes} bytes: {os.strerror(ctypes.get_errno())}")


class SentMemory:
    """A copy of shared memory in another process, such as an actor of Ray on another machine.

    Attributes:
        view: its bytes, read-only.
    """

    def __init__(self, buffer: Any) -> None:
        self.view = memoryview(buffer).toreadonly()

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _sent(self.view, protocol)


def _sent(view: memoryview, protocol: SupportsIndex) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return SentMemory, (bytes(view) if operator.index(protocol) < 5 else pickle.PickleBuffer(view),)


def _attach(handle: Any) -> Memory:
    return Memory(handle.detach())


class MemoryWriter:
    """Writes records and arrays into an anonymous file, then seals it."""

    def __init__(self) -> None:
        fd = system.anonymous_file("feedline-shared")
        self._file = open(fd, "wb", 1 << 20)  # noqa: SIM115 - closed by `seal` or `close`
        self._unchecked = 0
        self.place = 0
        self.write(bytes(_ALIGNMENT))  # never empty, as no mapping is

    def write(self, data: bytes) -> None:
        """Write bytes at `place`.

        Raises:
            MemoryError: not enough memory is free.
        """
        self._unchecked -= len(data)
        if self._unchecked < 0:
            self._unchecked = _CHECKED_BYTES
            require_memory(len(data) + _CHECKED_BYTES)
        self.place += self._file.write(data)

    def write_array(self, array: NDArray[Any]) -> int:
        """Write an array, aligned, and return its place. Raises the errors of `write`."""
        self.write(bytes(-self.place % _ALIGNMENT))
        place, flat = self.place, array.reshape(-1).view(np.uint8)
        for start in range(0, len(flat), _CHECKED_BYTES):
            self.write(flat[start : start + _CHECKED_BYTES].data)  # type: ignore[arg-type]
        return place

    def seal(self) -> Memory:
        """Return what was written. On Linux, nothing can be written any more, by any process."""
        self._file.flush()
        fd = os.dup(self._file.fileno())
        self._file.close()
        system.seal(fd)
        return Memory(fd, wrote=True)

    def close(self) -> None:
        """Drop what was written."""
        self._file.close()


def are_plain(records: Iterable[Any]) -> bool:
    """Return whether records consist of numbers, strings, None and Python's own containers only.

    Level by level, so that no function of Python is called for each object.
    """
    for _ in range(_LEVELS):
        by_kind: dict[type, list[Any]] = {kind: [] for kind in set(map(type, records)) - _PLAIN}
        if not by_kind:
            return True
        if not by_kind.keys() <= _CONTAINERS:
            return False
        for container in records:
            if (kind := type(container)) in by_kind:
                by_kind[kind].append(container)
        parts = chain.from_iterable(by_kind.values())
        records = list(chain(chain.from_iterable(parts), *map(dict.values, by_kind.get(dict, ()))))
    return False  # or a container contains itself


class Records:
    """Encoded records, by number.

    Args:
        memory: where they are.
        ends: place of the first of ``count`` + 1 places, int64: record i is between places i and i + 1.
        count: number of records.
        plain: whether `marshal` encoded them. Else pickle did, which takes any object and twice the time.
    """

    def __init__(self, memory: Memory | SentMemory, ends: int, count: int, plain: bool) -> None:
        self._state = memory, ends, count, plain
        self.view = memory.view
        self.ends = memory.view[ends : ends + 8 * (count + 1)].cast("q")
        self.loads: Callable[[Any], Any] = marshal.loads if plain else pickle.loads
        self.count = count

    def __reduce__(self) -> tuple[type[Records], tuple[Any, ...]]:
        return Records, self._state

    def __getitem__(self, i: int) -> Any:
        ends = self.ends
        return self.loads(self.view[ends[i] : ends[i + 1]])


class UnwritableError(Exception):
    """A record that cannot be pickled, for the reason that caused this.

    Attributes:
        number: its number.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def write_records(writer: MemoryWriter, records: Sequence[Any]) -> Callable[[Memory], Records]:
    """Write records. Return what makes them readable once the memory is sealed.

    Raises:
        UnwritableError: a record cannot be pickled.
    """
    blocks = [slice(start, start + _TOGETHER) for start in range(0, len(records), _TOGETHER)]
    plain = all(are_plain(records[block]) for block in blocks)
    dumps: Callable[[Any], bytes] = marshal.dumps if plain else _pickled
    ends = array.array("q", [writer.place])
    for block in blocks:
        encoded: list[bytes] = []
        try:
            encoded.extend(map(dumps, records[block]))
        except Exception as error:  # what pickle calls may raise anything
            raise UnwritableError(len(ends) - 1 + len(encoded)) from error
        ends.extend(accumulate(map(len, encoded), initial=ends.pop()))
        writer.write(b"".join(encoded))
    place, count = writer.write_array(np.frombuffer(ends, np.int64)), len(records)
    return lambda memory: Records(memory, place, count, plain)


def _pickled(record: Any) -> bytes:
    return pickle.dumps(record, 5)


class _ReadOnly:
    """Says why what changes an ordinary list or dictionary does not work.

    Attributes:
        ordinary: the ordinary type.
    """

    __slots__ = ()
    ordinary: ClassVar[type]

    def __setitem__(self, at: Any, value: Any) -> NoReturn:
        raise self._refusal(f"[{at!r:.40}] = ...")

    def __delitem__(self, at: Any) -> NoReturn:
        raise self._refusal(f"del [{at!r:.40}]")

    def __getattr__(self, name: str) -> NoReturn:
        if hasattr(self.ordinary, name) and not name.startswith("__"):  # append, update and the like
            raise self._refusal(name)
        raise AttributeError(f"'{type(self).__name__}' object has no attribute {name!r}")

    def _refusal(self, change: str) -> TypeError:
        return TypeError(
            f"expected no changes of shared data, which all workers read, got {change} on a shared "
            f"{self.ordinary.__name__}: change the original, and pass it to fl.shared again"
        )


class SharedList(_ReadOnly, Sequence[Any]):
    """A list or tuple in shared memory, read-only. Slices are ordinary ones.

    Args:
        records: its elements.
        kind: ``list`` or ``tuple``.
    """

    __slots__ = ("_count", "_ends", "_kind", "_loads", "_records", "_view")
    ordinary = list
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, records: Records, kind: type[list[Any] | tuple[Any, ...]]) -> None:
        self._records, self._kind = records, kind
        self._view, self._ends, self._loads, self._count = records.view, records.ends, records.loads, records.count

    def __reduce__(self) -> tuple[type[SharedList], tuple[Any, ...]]:
        return SharedList, (self._records, self._kind)

    def __len__(self) -> int:
        return self._records.count

    @overload
    def __getitem__(self, at: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> list[Any] | tuple[Any, ...]: ...
    def __getitem__(self, at: Any) -> Any:
        if type(at) is int and 0 <= at < self._count:  # as `Records` does, without another call
            return self._loads(self._view[self._ends[at] :])  # which reads one record, and not what follows it
        if isinstance(at, slice):
            return self._kind(map(self._records.__getitem__, range(*at.indices(self._count))))
        try:
            return self._records[range(self._count)[at]]
        except IndexError:
            raise IndexError(f"{self._kind.__name__} index out of range") from None

    def __iter__(self) -> Iterator[Any]:
        return map(self._records.__getitem__, range(self._records.count))

    def __eq__(self, other: object) -> bool:
        kind = other._kind if isinstance(other, SharedList) else type(other)
        if not issubclass(kind, self._kind) or not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __add__(self, other: Any) -> Any:
        return self.copy() + (other.copy() if isinstance(other, SharedList) else other)

    def __radd__(self, other: Any) -> Any:
        return other + self.copy()

    def __mul__(self, count: SupportsIndex) -> Any:
        return self.copy() * count

    def copy(self) -> Any:
        """Return an ordinary list or tuple."""
        return self[:]

    def __repr__(self) -> str:
        few = ", ".join(map(repr, self[:3]))
        return f"SharedList({len(self)} items: {few}{', ...' if len(self) > 3 else ''})"


class SharedDict(_ReadOnly, Mapping[Any, Any]):
    """A dictionary in shared memory, read-only, in its order.

    Keys are numbers, strings, bytes, None, or tuples of these.

    Args:
        keys, values: its keys and values, in order.
        table: int64 (a power of two,): number of the entry, or -1, by hash with open addressing.
        default: function of a ``defaultdict`` that makes the value for a missing key, which is not stored. Else None.
    """

    __slots__ = ("_default", "_keys", "_mask", "_slots", "_table", "_values")
    ordinary = dict
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, keys: Records, values: Records, table: SharedArray, default: Callable[[], Any] | None = None
    ) -> None:
        self._keys, self._values, self._table, self._default = keys, values, table, default
        self._slots, self._mask = table.data, len(table) - 1

    def __reduce__(self) -> tuple[type[SharedDict], tuple[Any, ...]]:
        return SharedDict, (self._keys, self._values, self._table, self._default)

    def __len__(self) -> int:
        return self._keys.count

    def __iter__(self) -> Iterator[Any]:
        return map(self._keys.__getitem__, range(self._keys.count))

    def _find(self, key: Any) -> int:
        slots, mask, keys = self._slots, self._mask, self._keys
        slot = stable_hash(key) & mask
        while (number := slots[slot]) >= 0:
            if keys[number] == key:
                return number
            slot = (slot + 1) & mask
        return -1

    def __getitem__(self, key: Any) -> Any:
        number = self._find(key)
        if number >= 0:
            return self._values[number]
        if self._default is not None:
            return self._default()
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return self._find(key) >= 0

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key, or ``default``."""
        number = self._find(key)
        return self._values[number] if number >= 0 else default

    def values(self) -> ValuesView[Any]:
        """Return the values, each decoded when it is reached."""
        return _Values(self)

    def items(self) -> ItemsView[Any, Any]:
        """Return the entries, each decoded when it is reached."""
        return _Items(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (dict, SharedDict)):
            return NotImplemented
        if len(self) != len(other):
            return False
        missing = object()
        return all(other.get(key, missing) == value for key, value in self.items())

    def __or__(self, other: Any) -> dict[Any, Any]:
        return dict(self) | dict(other)

    def copy(self) -> dict[Any, Any]:
        """Return an ordinary dictionary, as ``dict.copy`` does."""
        return dict(self)

    def __repr__(self) -> str:
        few = ", ".join(f"{key!r}: {self[key]!r}" for key in list(self)[:3])
        return f"SharedDict({len(self)} entries: {few}{', ...' if len(self) > 3 else ''})"


class _Values(ValuesView[Any]):
    _mapping: SharedDict

    def __iter__(self) -> Iterator[Any]:
        values = self._mapping._values
        return map(values.__getitem__, range(values.count))


class _Items(ItemsView[Any, Any]):
    _mapping: SharedDict

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return zip(self._mapping, self._mapping.values(), strict=True)


def stable_hash(key: Any) -> int:
    """Return a hash of a key that is the same in every process, unlike ``hash`` of a string. Equal keys have equal
    ones.

    Raises:
        TypeError: the key is not hashable.
    """
    if isinstance(key, str):
        return zlib.crc32(str.encode(key, "utf-8", "surrogatepass"))
    if isinstance(key, bytes):
        return zlib.crc32(key)
    if isinstance(key, tuple):
        return hash(tuple(map(stable_hash, key)))
    return 0 if key is None else hash(key)


def is_stable(key: object) -> bool:
    """Return whether `stable_hash` is the same in every process, and finds the key again."""
    if isinstance(key, tuple):
        return all(map(is_stable, key))
    if isinstance(key, (float, complex, np.number)):
        return bool(key == key)
    return key is None or isinstance(key, (str, bytes, int))


def hash_table(keys: Sequence[Any]) -> NDArray[np.int64]:
    """Return the table of a `SharedDict`."""
    size = 1 << max(1, (2 * len(keys)).bit_length())
    table = [-1] * size
    for number, key in enumerate(keys):
        slot = stable_hash(key) & (size - 1)
        while table[slot] >= 0:
            slot = (slot + 1) & (size - 1)
        table[slot] = number
    return np.array(table, np.int64)


class SharedArray(np.ndarray[Any, Any]):
    """An array in shared memory, read-only. What is taken or computed from it is an ordinary array."""

    _place: tuple[Any, ...] | None

    @classmethod
    def at(
        cls,
        memory: Memory | SentMemory,
        place: int,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        strides: tuple[int, ...],
    ) -> SharedArray:
        """Return the array at a place of a memory."""
        array = np.ndarray.__new__(cls, shape, dtype, buffer=memory.view, offset=place, strides=strides)
        array._place = memory, place, dtype, shape, strides
        return array

    def __array_finalize__(self, source: object) -> None:
        self._place = None

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        return array[()] if return_scalar else np.asarray(array)

    def __getitem__(self, at: Any) -> Any:
        item = super().__getitem__(at)
        return item.view(np.ndarray) if type(item) is SharedArray else item

    def __reduce__(self) -> Any:
        return super().__reduce__() if self._place is None else (SharedArray.at, self._place)
