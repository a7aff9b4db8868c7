"""The parts of torch that the loader uses: collation, generators, worker info, pinned memory.

Imported by name if torch is installed. The loader works without it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import inspect
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.utils.data
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    IterDataPipe,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    graph_settings,
)
from torch.utils.data._utils import collate as collation
from torch.utils.data._utils import worker as workers
from torch.utils.data._utils.pin_memory import pin_memory as pinned
from torch.utils.data.dataloader import _BaseDataLoaderIter as BaseIterator
from torch.utils.data.dataloader import _DatasetKind
from torch.utils.data.dataloader import _InfiniteConstantSampler as EndlessSampler

from feedline.concurrency.fork_local import PerProcess

__all__ = [
    "BaseIterator",
    "BatchSampler",
    "ConcatDataset",
    "DataLoader",
    "DistributedSampler",
    "EndlessSampler",
    "IterDataPipe",
    "IterableDataset",
    "RandomSampler",
    "SequentialSampler",
    "StackDataset",
    "Subset",
    "TensorDataset",
    "WeightedRandomSampler",
    "graph_settings",
    "pinned",
]

default_collate = torch.utils.data.default_collate
default_convert = torch.utils.data.default_convert
Tensor = torch.Tensor
from_numpy = torch.from_numpy

_COLLATE_MAP = dict(collation.default_collate_fn_map)
# Element types that NumPy and torch share. torch collates other types.
_INTEGERS = ("bool", "uint8", "int8", "int16", "int32", "int64")
_FLOATS = ("float16", "float32", "float64", "complex64", "complex128")
DTYPES = {np.dtype(name): getattr(torch, name) for name in _INTEGERS + _FLOATS}
_NUMPY = {dtype: name for name, dtype in DTYPES.items()}


def kind_of(iterable: bool) -> int:
    """Return torch's number for a kind of dataset."""
    return int(_DatasetKind.Iterable if iterable else _DatasetKind.Map)


def collates_as_usual() -> bool:
    """Return whether torch's table of collate functions is unchanged."""
    return bool(collation.default_collate_fn_map == _COLLATE_MAP)


def stack(tensors: Sequence[Any], empty: Callable[[Any, Any], Any]) -> Any:
    """Stack like ``torch.stack``, into memory from ``empty(shape, dtype)``. None if only torch can do it."""
    first = tensors[0]
    dtype = _NUMPY.get(first.dtype)
    if dtype is None or first.layout is not torch.strided or first.device.type != "cpu" or first.is_nested:
        return None
    # Lists and sets, not generators: with small items this takes as long as everything else.
    if set(map(type, tensors)) != {torch.Tensor} or [t.dtype for t in tensors].count(first.dtype) < len(tensors):
        return None
    out = from_numpy(empty((len(tensors), *first.shape), dtype))
    try:
        return torch.stack(tensors, 0, out=out)
    except RuntimeError:  # other shapes or devices, or gradients
        return None


def seed_pipe(pipe: Any, seed: int) -> None:
    """Seed the shufflers of a data pipe."""
    graph_settings.apply_random_seed(pipe, seeded_generator(seed))


def seeded_generator(seed: int) -> torch.Generator:
    """Return a new generator."""
    return torch.Generator().manual_seed(_positive(seed))


def first_seed(generator: Any) -> int:
    """Draw a seed from ``generator``, or from torch's global generator."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def in_group() -> bool:
    """Return whether this process is a rank of an initialised torch.distributed."""
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def seed_at(generator: Any) -> int:
    """Return the next seed of `first_seed`, without drawing it."""
    return first_seed(generator_at(generator_state(generator)))


def permute(items: int, generator: Any) -> None:
    """Draw the numbers of a permutation from a generator."""
    torch.randperm(items, generator=generator)


def seed_of_rank_0(seed: int) -> int:
    """Return the seed of rank 0. Every rank of the process group calls this."""
    seeds = [seed]
    torch.distributed.broadcast_object_list(seeds, src=0)
    return seeds[0]


# A process that ends while a daemon thread is in a function of torch aborts. So at the end of the process, reading
# threads wait here forever, once none of them compares a state.
_ending = PerProcess(threading.RLock)
atexit.register(lambda: _ending.get().acquire())

_State = ctypes.c_char * torch.default_generator.get_state().nbytes


class GlobalGenerator:
    """torch's global CPU generator, which can be compared, restored and seeded."""

    def mark(self) -> Any:
        """Return its current state."""
        with _ending.get():
            state = torch.default_generator.get_state()
            mark = _State.from_address(state.data_ptr()).raw  # in half the time of an array's `tobytes`
            del state  # freeing a tensor is a call of torch's, too
            return mark

    def changed(self, mark: Any) -> bool:
        """Return whether its state differs from ``mark``."""
        return bool(self.mark() != mark)

    def restore(self, mark: Any) -> None:
        """Restore its state at ``mark``."""
        with _ending.get():
            torch.default_generator.set_state(torch.frombuffer(bytearray(mark), dtype=torch.uint8))

    def seed(self, number: int) -> None:
        """Seed it. Generators of other devices are unchanged."""
        with _ending.get():
            torch.default_generator.manual_seed(_positive(number))

    def save(self) -> dict[str, Any] | None:
        """Return its state in JSON types."""
        return {"state": self.mark().hex()}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Set it to a saved state."""
        self.restore(bytes.fromhex(saved["state"]))


def _positive(number: int) -> int:
    """Return a seed below 2**63, as ``torch.initial_seed()`` in a sample must fit the int64 of collated numbers.

    The dropped bit has no effect: torch's CPU generator uses the lower 32.
    """
    return number & 0x7FFF_FFFF_FFFF_FFFF


_FACTORIES = ("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson")
_IN_PLACE = ("uniform_", "normal_", "random_", "bernoulli_", "exponential_", "geometric_", "log_normal_", "cauchy_")
_RANDOM = frozenset(
    [getattr(torch, name) for name in _FACTORIES]
    + [getattr(torch.Tensor, name) for name in (*_IN_PLACE, "bernoulli", "multinomial")]
)


class own_generator(TorchFunctionMode):  # noqa: N801  # a context manager
    """A context in which torch's random functions, called in this thread, draw from the thread's generator.

    The training loop may be drawing from the global generator at the same moment. Functions with a ``generator``
    argument get the thread's generator, at a cost of a microsecond. For functions without one (dropout, attention) it
    is passed to each operation inside, at 50 us each. Other functions are not affected.

    Args:
        generator_of: function that returns the generator of the current sample.
    """

    def __init__(self, generator_of: Callable[[], Any]) -> None:
        super().__init__()
        self._generator_of = generator_of
        self._within = _Within(generator_of)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _RANDOM:
            if kwargs.get("generator") is None:
                kwargs = {**kwargs, "generator": self._generator_of()}
        elif _draws(func):
            with self._within:
                return func(*args, **kwargs)
        return func(*args, **kwargs)


class _Within(TorchDispatchMode):
    """Passes a generator to the operations that a function consists of."""

    def __init__(self, generator_of: Callable[[], Any]) -> None:
        super().__init__()
        self._generator_of = generator_of

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        return _with_generator(func)(*args, **{**kwargs, "generator": self._generator_of()})


@functools.cache
def _with_generator(op: Any) -> Any:
    """Return an operation, or its overload with an additional generator argument."""
    expected = {argument.name for argument in op._schema.arguments} | {"generator"}
    for overload in (op._overloadname, *op.overloadpacket.overloads()):
        variant = getattr(op.overloadpacket, overload)
        if {argument.name for argument in variant._schema.arguments} == expected:
            return variant
    raise RuntimeError(
        f"{op} draws from torch's global generator, which threads share with the training loop, and accepts no other: "
        "use worker processes for this dataset (workers='process')"
    )


@functools.cache
def _draws(func: Any) -> bool:
    """Return whether a function of torch draws random numbers: it is random itself, or names a function that is.

    Some functions only choose between two functions in their closures.
    """
    names = {getattr(func, "__name__", "")}
    for function in (func, *inspect.getclosurevars(func).nonlocals.values()) if inspect.isfunction(func) else ():
        names.update(getattr(getattr(function, "__code__", None), "co_names", ()))
    return any(_is_random(name) for name in names)


def _is_random(name: str) -> bool:
    packet = getattr(torch.ops.aten, name, None)
    return isinstance(packet, torch._ops.OpOverloadPacket) and any(
        torch.Tag.nondeterministic_seeded in getattr(packet, overload).tags for overload in packet.overloads()
    )


# ---- worker info --------------------------------------------------------------------------------------------------


class _Threads(threading.local):
    info: Any = None


_threads = _Threads()


def set_worker_info(index: int, count: int, seed: int, dataset: Any, thread: bool) -> None:
    """Set the result of ``torch.utils.data.get_worker_info()`` in this process, or in this thread."""
    info = workers.WorkerInfo(id=index, num_workers=count, seed=seed, dataset=dataset)
    if not thread:
        workers._worker_info = info
        return
    if not hasattr(workers, "_feedline_threads"):
        # Datasets have imported the function by name, so replacing its code is the only way to change it.
        workers._feedline_threads = _threads
        workers.get_worker_info.__code__ = _info_by_thread.__code__
    _threads.info = info


def _info_by_thread() -> Any:
    return _feedline_threads.info or _worker_info  # type: ignore[name-defined]  # noqa: F821  # in torch's module


# ---- devices ------------------------------------------------------------------------------------------------------


def pins(named: str) -> bool:
    """Return whether memory can be pinned. Warn, as torch does, if not, and if a device was ``named``."""
    if named:
        warnings.warn(
            f"pin_memory_device is deprecated: memory is pinned for the accelerator torch finds, not for {named!r}",
            stacklevel=4,
        )
    if torch.accelerator.is_available():
        return True
    warnings.warn("'pin_memory' argument is set as true but no accelerator is found: nothing is pinned", stacklevel=4)
    return False


class Transfer:
    """Copies batches to a device, to CUDA in a separate stream, so that copies overlap with computation.

    Args:
        device: target device.
    """

    def __init__(self, device: Any) -> None:
        self.device = torch.device(device)
        self.asynchronous = self.device.type == "cuda"
        self._stream = torch.cuda.Stream(self.device) if self.asynchronous else None

    def start(self, batch: Any) -> tuple[Any, Any]:
        """Return the batch on the device, possibly still being copied, and the argument of `finish`."""
        if self._stream is None:
            return _move_tensors(batch, lambda tensor: tensor.to(self.device), self._move_custom), None
        sources: list[Any] = []

        def move(tensor: Any) -> Any:
            source = tensor.pin_memory() if tensor.device.type == "cpu" and not tensor.is_pinned() else tensor
            sources.append(source)
            return source.to(self.device, non_blocking=True)

        with torch.cuda.stream(self._stream):
            moved = _move_tensors(batch, move, self._move_custom)
            event = torch.cuda.Event()
            event.record(self._stream)
        return moved, (event, sources)

    def finish(self, batch: Any, pending: Any) -> Any:
        """Return the batch, safe to use on the current stream."""
        if pending is not None:
            event, _ = pending
            current = torch.cuda.current_stream(self.device)
            current.wait_event(event)

            # The allocator must not reuse the memory before this stream is done with it.
            def record(tensor: Any) -> Any:
                if tensor.device.type == "cuda":
                    tensor.record_stream(current)
                return tensor

            _move_tensors(batch, record, lambda value: value)
        return batch

    def _move_custom(self, value: Any) -> Any:
        """Move a user-defined batch type, if it supports that."""
        return value.to(self.device) if callable(getattr(value, "to", None)) else value


def _move_tensors(tree: Any, move: Callable[[Any], Any], otherwise: Callable[[Any], Any]) -> Any:
    if isinstance(tree, Tensor):
        return move(tree)
    if isinstance(tree, np.ndarray) and tree.dtype in DTYPES:
        return move(from_numpy(np.ascontiguousarray(tree)))
    if isinstance(tree, Mapping):
        moved = {key: _move_tensors(value, move, otherwise) for key, value in tree.items()}
        with contextlib.suppress(TypeError):
            return type(tree)(moved)  # type: ignore[call-arg]
        return moved
    if isinstance(tree, tuple):
        parts = [_move_tensors(value, move, otherwise) for value in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    if isinstance(tree, list):
        return [_move_tensors(value, move, otherwise) for value in tree]
    return otherwise(tree)


def generator_state(generator: Any) -> str:
    """Return the state of a ``torch.Generator``, or of the global one, as hex digits."""
    return bytes((generator or torch.default_generator).get_state().numpy().tobytes()).hex()


def set_generator_state(generator: Any, state: str) -> None:
    """Set a ``torch.Generator`` to a state from `generator_state`. None means the global one."""
    (generator or torch.default_generator).set_state(torch.frombuffer(bytearray.fromhex(state), dtype=torch.uint8))


def generator_at(state: str) -> torch.Generator:
    """Return a new ``torch.Generator`` in a state from `generator_state`."""
    generator = torch.Generator()
    set_generator_state(generator, state)
    return generator


def check_generator_state(state: Any) -> None:
    """Check a state of a ``torch.Generator`` from `generator_state`.

    Raises:
        TypeError, ValueError: it is invalid.
    """
    if not isinstance(state, str):
        raise TypeError(f"expected the state of a torch.Generator as hex digits, got {state!r:.80}")
    try:
        generator_at(state)
    except RuntimeError as error:
        raise ValueError(f"expected the state of a torch.Generator: {error}") from error


def is_generator(value: Any) -> bool:
    """Return whether a value is a ``torch.Generator``."""
    return isinstance(value, torch.Generator)


def is_plain(tensor: Any) -> bool:
    """Return whether a tensor is host memory that NumPy can use directly."""
    strided = tensor.is_cpu and tensor.layout is torch.strided and tensor.dtype in _NUMPY
    return strided and not (tensor.is_nested or tensor.is_conj() or tensor.is_neg())
