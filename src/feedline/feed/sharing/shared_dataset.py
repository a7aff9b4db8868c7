"""`shared`: a dataset whose large parts lie once in shared memory, for any number of workers."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

import numpy as np

from feedline.feed.sharing.shared_records import (
    Memory,
    MemoryWriter,
    Records,
    SharedArray,
    SharedDict,
    SharedList,
    UnwritableError,
    hash_table,
    is_stable,
    write_records,
)

Dataset = TypeVar("Dataset")

#: Entries of a list or dictionary from which on it is shared. Fewer objects take less than a page or two for each.
LARGE = 1024
LARGE_BYTES = 64 << 10
_MOST_SEEN = 256  # objects, by `reads_shared_memory`
_ATOMS = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type,
    range,
    FunctionType,
    BuiltinFunctionType,
    ModuleType,
)
_LISTS, _DICTIONARIES = (list, tuple), (dict, OrderedDict, defaultdict)


def shared(dataset: Dataset) -> Dataset:
    """Return a copy of a dataset with its large lists, dictionaries and arrays in shared memory, read-only.

    Workers of a `DataLoader` read the same memory, under every start method. In ordinary lists, reading an object
    writes its reference count, so that each forked worker soon has a copy of its own.

    Lists and tuples of 1,024 entries or more become `collections.abc.Sequence`s, dictionaries
    `collections.abc.Mapping`s, with the same entries, order, ``==``, slices and ``len``. An entry is decoded at each
    access, in about a microsecond for a small record, and is an ordinary object: a change to it is not stored. Writing
    into a shared list, dictionary or array raises. Arrays of 64 KiB or more are read-only NumPy arrays. torch makes
    writable tensors of them, with a warning: writing into one changes the data for that process only. They are found in
    attributes of the dataset, of objects in these, and in smaller lists and dictionaries. All else stays as it is:
    tensors, which torch shares by itself, single strings, sets, and objects of other libraries.

    The original is untouched. A copy of its large parts is made, once.

    As the data cannot change, a `DataLoader` with ``persistent_workers`` in its own order reads the first batches of an
    epoch while the workers finish the preceding one. Such workers keep the dataset and ``collate_fn`` that they started
    with, as in torch. What they read elsewhere, such as files, has to stay the same, too.

    Args:
        dataset: a map-style dataset, or a list, dictionary or array.

    Raises:
        TypeError: an entry of a large list or dictionary cannot be pickled, or a key is not a number, a string, bytes,
            None or a tuple of these, or is NaN.
        MemoryError: there is not enough memory.
    """
    parts = _LargeParts(dataset)
    if not parts.by_id:
        return dataset
    memory = parts.write()
    copied: Dataset = parts.rebuilt(dataset, memory)
    return copied


def reads_shared_memory(dataset: Any) -> bool:
    """Return whether a dataset, or one that it wraps, holds shared memory, and nothing that is seen to be shared in
    another way, such as torch's shared tensors. Looks at a few objects only."""
    shared, seen, pending = False, {id(dataset)}, [dataset]
    while pending and len(seen) <= _MOST_SEEN:
        value = pending.pop()
        if isinstance(value, (Memory, Records, SharedList, SharedDict, SharedArray)):
            shared = True
            continue
        if type(value).__module__.partition(".")[0] == "multiprocessing" or getattr(value, "is_shared", bool)():
            return False
        for _, child in itertools.islice(_children(value), _MOST_SEEN):
            if not isinstance(child, _ATOMS) and id(child) not in seen:
                seen.add(id(child))
                pending.append(child)
    return shared


class _LargeParts:
    """The parts of a dataset that are to be shared, and what holds them."""

    def __init__(self, dataset: Any) -> None:
        self.by_id: dict[int, tuple[str, Any]] = {}  # with the path to each, for errors
        self._holders: dict[int, list[int]] = {}  # ids of what holds an object
        self._objects: dict[int, Any] = {}
        self._makers: dict[int, Callable[[Memory], Any]] = {}
        self._rebuilt: dict[int, Any] = {}
        pending = [(type(dataset).__name__, dataset)]
        while pending:
            path, value = pending.pop()
            if id(value) in self._objects:
                continue
            self._objects[id(value)] = value
            if _is_large(value):
                self.by_id[id(value)] = path, value
                continue
            for step, child in _children(value):
                if not isinstance(child, _ATOMS):
                    self._holders.setdefault(id(child), []).append(id(value))
                    pending.append((path + step, child))
        self._holding = set(self.by_id)  # what has to be rebuilt
        climbing = list(self.by_id)
        while climbing:
            for holder in self._holders.get(climbing.pop(), ()):
                if holder not in self._holding:
                    self._holding.add(holder)
                    climbing.append(holder)

    def write(self) -> Memory:
        """Write the large parts into shared memory."""
        writer = MemoryWriter()
        try:
            for number, (path, value) in self.by_id.items():
                self._makers[number] = _written(writer, path, value)
            return writer.seal()
        finally:
            writer.close()

    def rebuilt(self, value: Any, memory: Memory) -> Any:
        """Return a copy of ``value`` with its large parts in ``memory``, or itself if it has none."""
        number = id(value)
        if type(value) is MethodType:  # another object at each access, so it may not have been seen
            owner = self.rebuilt(value.__self__, memory)
            return value if owner is value.__self__ else MethodType(value.__func__, owner)
        if number not in self._holding or isinstance(value, _ATOMS):
            return value
        if number in self._rebuilt:
            return self._rebuilt[number]
        if number in self.by_id:
            copied = self._rebuilt[number] = self._makers[number](memory)
        elif type(value) is tuple:
            parts = tuple(self.rebuilt(child, memory) for child in value)
            copied = self._rebuilt.setdefault(number, parts)  # one of its parts may refer to it
        elif type(value) is partial:
            arguments = [self.rebuilt(child, memory) for child in value.args]
            options = {key: self.rebuilt(child, memory) for key, child in value.keywords.items()}
            bound = partial(self.rebuilt(value.func, memory), *arguments, **options)
            copied = self._rebuilt.setdefault(number, bound)
        else:
            copied = self._rebuilt[number] = _copied(value)  # before its parts, which may refer to it
            if copied is value:  # as of a logger, of which there is one
                return value
            entries = vars(copied) if type(value) not in (list, *_DICTIONARIES) else copied
            for key, child in list(enumerate(copied) if type(value) is list else entries.items()):
                entries[key] = self.rebuilt(child, memory)
        return copied


def _copied(value: Any) -> Any:
    """Return a shallow copy of an object, whatever its class does for pickle. Return a logger, or another object of
    which there is one, itself."""
    kind = type(value)
    if kind in (list, *_DICTIONARIES):
        return copy.copy(value)
    plain: Any = object
    if hasattr(kind, "__copy__") or (kind.__reduce__, kind.__reduce_ex__) != (plain.__reduce__, plain.__reduce_ex__):
        with contextlib.suppress(Exception):  # its state is copied below
            if copy.copy(value) is value:
                return value
    try:
        copied = object.__new__(kind)
    except TypeError:  # of a class that is written in C
        return copy.copy(value)
    state = plain.__getstate__(value)
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    vars(copied).update(attributes or {})
    for name, content in (slots or {}).items():
        object.__setattr__(copied, name, content)
    return copied


def _is_large(value: Any) -> bool:
    """Return whether a container or array is to be shared as a whole."""
    kind = type(value)
    if kind is np.ndarray:
        return value.nbytes >= LARGE_BYTES and not value.dtype.hasobject
    if kind not in (*_LISTS, *_DICTIONARIES) or len(value) < LARGE:
        return False
    # If most entries are large, each is shared on its own, so that an access decodes no more than it needs.
    share = sum(map(_share_of_large, value if kind in _LISTS else value.values()))
    return share < len(value)


def _share_of_large(entry: Any) -> float:
    """Return the size of an entry, where 1 is a large one."""
    kind = type(entry)
    if kind is np.ndarray:
        return float(entry.nbytes / LARGE_BYTES)
    return len(entry) / LARGE if kind in (*_LISTS, *_DICTIONARIES) else 0.0


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the step to each object that ``value`` holds, and the object."""
    kind = type(value)
    if kind in _LISTS:
        yield from ((f"[{i}]", child) for i, child in enumerate(value))
    elif kind in _DICTIONARIES:
        yield from ((f"[{key!r}]", child) for key, child in value.items())
    elif kind is MethodType:
        yield ".__self__", value.__self__
    elif kind is partial:
        yield ".func", value.func
        yield from ((f".args[{i}]", child) for i, child in enumerate(value.args))
        yield from ((f".keywords[{key!r}]", child) for key, child in value.keywords.items())
    elif hasattr(value, "__dict__") and not isinstance(value, _ATOMS):
        yield from ((f".{name}", child) for name, child in vars(value).items())


def _written(writer: MemoryWriter, path: str, value: Any) -> Callable[[Memory], Any]:
    """Write a large part. Return what makes it from the memory."""
    kind = type(value)
    if kind is np.ndarray:
        array = value.copy("K")  # dense, with its axes in the order that they have in memory
        axes = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
        place, dtype, shape, strides = (
            writer.write_array(array.transpose(axes)),
            array.dtype,
            array.shape,
            array.strides,
        )
        return lambda memory: SharedArray.at(memory, place, dtype, shape, strides)
    if kind in _LISTS:
        records = _records(writer, path, value)
        return lambda memory: SharedList(records(memory), kind)
    keys = list(value)
    if unstable := [key for key in keys if not is_stable(key)]:
        raise TypeError(
            f"expected keys of {path} that are numbers but not NaN, strings, bytes, None or tuples of these, got "
            f"{unstable[0]!r}"
        )
    make_keys, make_values = _records(writer, path, keys), _records(writer, path, list(value.values()), keys)
    make_table = _written(writer, path, hash_table(keys))
    default = getattr(value, "default_factory", None)
    return lambda memory: SharedDict(make_keys(memory), make_values(memory), make_table(memory), default)


def _records(
    writer: MemoryWriter, path: str, entries: Any, keys: list[Any] | None = None
) -> Callable[[Memory], Records]:
    try:
        return write_records(writer, entries)
    except UnwritableError as error:
        key = error.number if keys is None else keys[error.number]
        raise TypeError(
            f"expected entries of {path} that can be pickled, got {entries[error.number]!r:.80} at [{key!r}]: "
            f"{error.__cause__}"
        ) from error.__cause__
