"""Values and batches as JAX arrays, those of several processes as global arrays. Only this module imports JAX.

A sharding divides the sequences of a batch along its first axis. The partition of the feed has to divide them in the
same way, and every process knows the sizes of all shares. So what does not fit is refused on every process, before any
of them waits for the others. What only one process knows, such as a sequence that is too long, is an error there alone.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.data.minibatch import Minibatch, RankShare
from feedline.data.value import BytesValue, Value
from feedline.errors import SchemaError, install_line

try:
    import jax
    from jax.sharding import NamedSharding, PartitionSpec, Sharding
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"JAX is not installed; run: {install_line('jax')}") from error


def export(value: Value, device: Any = None) -> Any:
    """See `Value.jax`."""
    return jax.device_put(value.padded(), device)


def export_streams(streams: Mapping[str, Value], sharding: Any, share: RankShare, pad_to: Mapping[str, int]) -> Any:
    """See `Minibatch.jax`."""
    strings = {name for name, value in streams.items() if isinstance(value, BytesValue)}
    numbers = [name for name in streams if name not in strings]
    shardings = sharding if isinstance(sharding, Mapping) else dict.fromkeys(numbers, sharding)
    for name in (*shardings, *pad_to):
        if name not in numbers:
            raise ValueError(f"expected streams of numbers, {', '.join(numbers)}, got {name}")
    placer = functools.cache(lambda sharding: _placer(sharding, share, next(iter(streams.values())).num_sequences))
    arrays: dict[str, Any] = {}
    lengths: dict[str, Any] = {}
    for name, stream_sharding in shardings.items():
        value, length, place = streams[name], pad_to.get(name), placer(stream_sharding)
        if length is not None or not value.one_sample_each:
            if length is None and share.parts > 1 and _spans_processes(stream_sharding):
                raise ValueError(
                    f"expected a padded length of the ragged stream {name}, got none: each process knows only its own "
                    f'sequences. Write minibatch.jax(sharding, pad_to={{"{name}": length}}) with the length of the '
                    "longest sequence of the corpus, or pad in the collate_fn of a DataLoader, or name the streams "
                    'that you need: minibatch.jax({"x": sharding})'
                )
            lengths[name] = place(value.lengths)
        arrays[name] = place(value.padded(length=length))
    if lengths and "lengths" in arrays:
        raise SchemaError("expected no stream `lengths` with ragged ones: that key holds sequence lengths; rename it")
    return {**arrays, "lengths": lengths} if lengths else arrays


def export_batch(batch: Any, sharding: Any, share: RankShare) -> Any:
    """Return a batch of a loader with JAX arrays in place of its arrays and torch tensors.

    Args:
        batch: this process's share: a minibatch, or a tree of lists, tuples and dicts. The first axis of arrays is the
            batch.
        sharding: device or sharding.
        share: the share, which a minibatch knows.

    Raises:
        TypeError, ValueError: see `Minibatch.jax`.
    """
    if isinstance(batch, Minibatch):
        return batch.jax(sharding)
    arrays = [array for leaf in jax.tree.leaves(batch) if (array := _array(leaf)) is not None and array.ndim]
    place = _placer(sharding, share, len(arrays[0]) if arrays else 0)
    return jax.tree.map(lambda leaf: leaf if (array := _array(leaf)) is None else place(array), batch)


def _placer(sharding: Any, share: RankShare, rows: int) -> Callable[[NDArray[Any]], Any]:
    """Return the function that makes JAX arrays of arrays whose first axis are the ``rows`` sequences of a share."""
    if not _spans_processes(sharding):
        _check_divides(sharding, rows)
        return lambda array: jax.device_put(array, _cut_to(sharding, array.ndim))
    sizes = _sizes(sharding, share, rows)
    size, total = int(sizes[share.part]), int(sizes.sum())

    def place(array: NDArray[Any]) -> Any:
        if array.shape[:1] != (size,):
            raise ValueError(
                f"expected the {size} sequences of this share along the first axis, got shape {array.shape}. If "
                'unreadable ones were skipped, leave them out of the corpus: fl.convert(..., on_error="skip")'
            )
        cut = _cut_to(sharding, array.ndim)
        return jax.make_array_from_process_local_data(cut, array, (total, *array.shape[1:]))

    return place


def _sizes(sharding: Any, share: RankShare, rows: int) -> NDArray[np.int64]:
    """Return the sizes of all shares, which are equal and as the sharding divides the batch."""
    if not isinstance(sharding, NamedSharding):
        raise TypeError(f"expected a NamedSharding over several processes, got {sharding!r}")
    if share.cuts > 1:
        raise ValueError(
            f"expected whole sequences, got them cut in {share.cuts}: give the dimension that cuts them the role "
            f'"model", and JAX cuts them by {_described(sharding)}: partition=fl.Partition(mesh, roles=...)'
        )
    expected, partition = _part(sharding), (share.part, share.parts)
    if partition != expected:
        raise ValueError(
            f"expected partition={expected} of this process, as {_described(sharding)} divides the batch, got "
            f"{partition}: pass partition=mesh to the source or loader, and name the axes of the spec in the order of "
            "the mesh"
        )
    if share.parts == 1:
        sizes = np.array([rows])
    elif share.sizes is not None:
        sizes = share.sizes()
    else:
        raise ValueError(
            "expected a batch of which this process knows the sizes of all shares, to make global arrays, got pieces, "
            'or one by fl.BatchByLength, filling="cntk" or a UserMinibatchSource: use whole sequences of a '
            "MinibatchSource, or a DataLoader with a batch_size"
        )
    if np.ptp(sizes) > 1:  # those of rows differ by one if the batch axis does not divide them
        raise ValueError(
            f"expected shares with as many sequences each for {_described(sharding)}, got {sizes.tolist()}: a source "
            "divides samples. Use a DataLoader, whose ranks get as many sequences each, or fl.Packed"
        )
    _check_divides(sharding, int(sizes.sum()))
    return sizes


def _check_divides(sharding: Any, sequences: int) -> None:
    """Check that the batch axis of the sharding divides the batch."""
    axes = _batch_axes(sharding)
    parts = math.prod(sharding.mesh.shape[name] for name in axes)
    if sequences % parts:
        named = " and ".join(f"`{name}`" for name in axes)
        raise ValueError(
            f"expected a batch that {named} of size {parts} divides, got {sequences} sequences: choose a size that is "
            "a multiple, and leave out what remains at the end, with drop_last=True in a DataLoader"
        )


@functools.lru_cache(64)
def _part(sharding: NamedSharding) -> tuple[int, int]:
    """Return (index, count) of the part of the batch that the devices of this process hold."""
    parts = math.prod(sharding.mesh.shape[name] for name in _batch_axes(sharding))
    places = _cut_to(sharding, 1).addressable_devices_indices_map((parts,)).values()
    parts_here = sorted({place.indices(parts)[0] for (place,) in places}) if parts > 1 else [0] * bool(places)
    if not parts_here:
        raise ValueError(f"expected a sharding with devices of this process, got {sharding}")
    first, size = parts_here[0], len(parts_here)
    if parts_here[-1] - first + 1 != size or first % size or parts % size:
        raise ValueError(
            f"expected the devices of a process to hold one block of the batch, got parts {parts_here} of {parts}: "
            "order the devices of the mesh by process"
        )
    return first // size, parts // size


def _described(sharding: NamedSharding) -> str:
    return f"{sharding.spec} over a mesh of {', '.join(f'{name}: {n}' for name, n in sharding.mesh.shape.items())}"


def _batch_axes(sharding: Any) -> tuple[str, ...]:
    """Return the axes of a mesh that divide the batch."""
    axes = sharding.spec[0] if isinstance(sharding, NamedSharding) and len(sharding.spec) else None
    return () if axes is None else axes if isinstance(axes, tuple) else (axes,)


def _cut_to(sharding: Any, dimensions: int) -> Any:
    """Return a sharding for arrays with so many dimensions."""
    if not isinstance(sharding, NamedSharding) or len(sharding.spec) <= dimensions:
        return sharding
    return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:dimensions]), memory_kind=sharding.memory_kind)


def _spans_processes(sharding: Any) -> bool:
    return isinstance(sharding, Sharding) and not sharding.is_fully_addressable


def _array(leaf: Any) -> NDArray[Any] | None:
    """Return an array, a torch tensor or a value as a NumPy array, or None for anything else."""
    if isinstance(leaf, Value):
        return None if isinstance(leaf, BytesValue) else leaf.padded()
    if hasattr(leaf, "__dlpack__") and hasattr(leaf, "numpy"):
        return leaf.numpy()  # type: ignore[no-any-return]
    return leaf if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufcV" else None
