"""Files of sharded tensors (torch's `DTensor`), of which every rank has a part. Any number of ranks can read them.

`torch.distributed.checkpoint` plans the writes and reads of each rank. This module stores a sealed file of tensors for
each rank, and a description in JSON types, which belongs in the state of the checkpoint. Nothing is pickled into files.
(To plan, torch exchanges pickled plans over the group of the ranks.)

Costs: each rank writes its parts, and reads the files with the parts that it needs. Checking a checkpoint reads all of
it, a file at a time.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from feedline.errors import StateError, shown
from feedline.interop.tensor_file import load_contents
from feedline.updates.native_tensors import is_sharded


def save_shards(folder: Path, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Write this rank's parts to a folder. A collective call of all ranks of torch.distributed.

    Returns:
        The description for `check_shards` and `load_shards`, in JSON types, on rank 0.
    """
    from torch.distributed import checkpoint

    from feedline.train.shard_storage import ShardWriter

    writer = ShardWriter(folder)
    checkpoint.save(dict(tensors), storage_writer=writer)
    return writer.described


def check_shards(folder: Path, described: Any) -> None:
    """Check that all files of a checkpoint are intact, and were saved with it.

    Raises:
        StateError: a file is damaged or of another checkpoint.
    """
    for name, seal in files_of(folder, described).items():
        _read(folder, name, seal)


def load_shards(folder: Path, described: Any, tensors: Mapping[str, Any]) -> None:
    """Overwrite tensors, sharded or not, with the tensors saved under their names. Not a collective call.

    Raises:
        StateError: a file is damaged.
    """
    from torch.distributed import checkpoint

    from feedline.train.shard_storage import ShardReader

    if tensors:
        files = files_of(folder, described)
        reader = ShardReader(shapes(folder, described), described, lambda name: _read(folder, name, files[name]))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)  # intended
            checkpoint.load(dict(tensors), storage_reader=reader, no_dist=True)


def shapes(folder: Path, described: Any) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return shape and dtype of every tensor that was saved, by name."""
    try:
        result = {}
        for name, entry in described["tensors"].items():
            shape, dtype = tuple(entry["shape"]), getattr(torch, entry["dtype"])
            if not all(type(n) is int and n >= 0 for n in shape) or not isinstance(dtype, torch.dtype):
                raise TypeError(f"shape {shown(shape, 40)}, dtype {entry['dtype']!r:.20}")
            # Elements missing from all parts would keep their previous values.
            parts = sum(math.prod(part["shape"]) for part in entry["parts"])
            if parts != math.prod(shape):
                raise ValueError(f"{parts} of {math.prod(shape)} elements of {name!r:.80}")
            result[name] = shape, dtype
        return result
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(folder, error) from error


def files_of(folder: Path, described: Any) -> dict[str, str]:
    """Return the seal of each file, by name."""
    try:
        files = dict(described["files"])
        if not all(isinstance(name, str) and Path(name).name == name for name in files):
            raise ValueError(f"names {shown(list(files), 80)}")
        return files
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(folder, error) from error


def _damaged(folder: Path, error: Exception) -> StateError:
    return StateError(f"expected a description of sharded tensors in {folder}, got a wrong one: {shown(error, 200)}")


def _read(folder: Path, name: str, seal: str) -> dict[str, torch.Tensor]:
    tensors, _, actual = load_contents(folder / name)
    if actual != seal:
        what = f"expected the file of tensors that the state in {folder} was saved with, got another in {name}"
        raise StateError(what, saved={"seal": seal}, current={"seal": actual})
    return tensors


def load_in_layout(
    plain: Mapping[str, torch.Tensor],
    folder: Path,
    described: Any,
    current: Mapping[str, torch.Tensor],
    parameters: Mapping[str, torch.Tensor],
) -> dict[str, torch.Tensor]:
    """Return the tensors of a checkpoint, each in the layout of the tensor of that name in this program.

    Args:
        plain: tensors that were whole on rank 0.
        folder: folder of the checkpoint.
        described: description of sharded tensors. None if there were none.
        current: tensors of this program, by the same names.
        parameters: parameters by name, whose layout the states of an optimizer have.

    Raises:
        StateError: a file is damaged.
    """

    def layout_of(name: str, shape: tuple[int, ...]) -> Any:
        if name in current:
            return current[name]
        # `learner0/momentum.body.weight` has the layout of `body.weight`.
        parts = name.split("/", 1)[-1].replace("/", ".").split(".")
        for k in range(len(parts)):
            for candidate in (parameters.get(".".join(parts[k:])), parameters.get(".".join(parts[:k]))):
                if candidate is not None and tuple(candidate.shape) == shape:
                    return candidate
        return None

    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in plain.items():
        like = layout_of(name, tuple(tensor.shape))
        tensors[name] = _distribute(tensor, like) if is_sharded(like) and like.shape == tensor.shape else tensor
    if described is not None:
        targets = {}
        for name, (shape, dtype) in shapes(folder, described).items():
            like = layout_of(name, shape)
            if is_sharded(like) and tuple(like.shape) == shape:
                targets[name] = torch.empty_like(like, dtype=dtype, requires_grad=False)
            else:
                targets[name] = torch.empty(shape, dtype=dtype)
        load_shards(folder, described, targets)
        tensors |= targets
    return tensors


def _distribute(tensor: torch.Tensor, like: Any) -> torch.Tensor:
    """Return this rank's part of a tensor that is whole on all ranks."""
    from torch.distributed.tensor import distribute_tensor

    mesh = like.device_mesh
    return distribute_tensor(tensor.to(mesh.device_type), mesh, like.placements, src_data_rank=None)
