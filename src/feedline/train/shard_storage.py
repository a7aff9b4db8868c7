"""The storage of shards for `torch.distributed.checkpoint`. See `feedline.train.shards`.

It is a module by itself, as the storage of torch takes long to import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult

from feedline.interop.tensor_file import save_tensors


class _AsPlanned:
    """A storage that follows the plans of torch unchanged. Methods override the interface of torch."""

    def reset(self, checkpoint_id: Any = None) -> None:
        """Begin to write or read. There is nothing to reset."""

    def prepare_local_plan(self, plan: Any) -> Any:
        """Return the plan of this rank unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        """Return the plans of all ranks unchanged."""
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Accept any id, as the folder is known."""
        return True


class ShardWriter(_AsPlanned, StorageWriter):
    """Writes one file per rank. Rank 0 describes them all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.described: dict[str, Any] = {}

    def set_up_storage_writer(self, is_coordinator: bool, *_: Any, **__: Any) -> None:
        """Prepare to write. There is nothing to do."""

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Write the tensors of this rank to its file. Return a future of the results."""
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        name = f"shard-{rank}.safetensors"
        tensors = {f"{k}": planner.resolve_data(item) for k, item in enumerate(plan.items)}
        if not all(isinstance(tensor, torch.Tensor) for tensor in tensors.values()):
            raise TypeError("expected only tensors in the sharded part of a state")
        seal = save_tensors(self._folder / name, tensors) if tensors else ""
        done: Any = torch.futures.Future()
        done.set_result(
            [
                WriteResult(item.index, tensors[f"{k}"].nbytes, (name, seal, f"{k}", list(tensors[f"{k}"].shape)))
                for k, item in enumerate(plan.items)
            ]
        )
        return done

    def finish(self, metadata: Any, results: list[list[Any]]) -> None:
        """Describe all files from the results of all ranks. Called on rank 0."""
        tensors: dict[str, Any] = {
            name: {"shape": list(entry.size), "dtype": str(entry.properties.dtype).removeprefix("torch."), "parts": []}
            for name, entry in metadata.state_dict_metadata.items()
        }
        files = {}
        for result in (result for rank_results in results for result in rank_results):
            name, seal, key, shape = result.storage_data
            files[name] = seal
            offset = list(result.index.offset) if result.index.offset is not None else [0] * len(shape)
            tensors[result.index.fqn]["parts"].append({"at": offset, "shape": shape, "file": name, "key": key})
        self.described = {"files": files, "tensors": tensors}


class ShardReader(_AsPlanned, StorageReader):
    """Reads the files of a `ShardWriter`.

    Args:
        shapes: shapes and dtypes of all tensors, by name.
        described: description that a `ShardWriter` made.
        read: function that returns the tensors of a file, by name.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
        described: Mapping[str, Any],
        read: Callable[[str], Mapping[str, torch.Tensor]],
    ) -> None:
        self._shapes, self._described, self._read = shapes, described, read
        self._places: Any = None

    def read_metadata(self, *_: Any, **__: Any) -> Any:
        """Return the shapes and parts of all tensors, in the types of torch."""
        tensors: dict[str, Any] = {}
        places: dict[Any, tuple[str, str]] = {}
        for name, (shape, dtype) in self._shapes.items():
            chunks = []
            for part in self._described["tensors"][name]["parts"]:
                offset = torch.Size(part["at"])
                chunks.append(metadata.ChunkStorageMetadata(offset, torch.Size(part["shape"])))
                places[metadata.MetadataIndex(name, offset)] = part["file"], part["key"]
            properties = metadata.TensorProperties(dtype=dtype)
            tensors[name] = metadata.TensorStorageMetadata(properties, torch.Size(shape), chunks)
        return metadata.Metadata(tensors, storage_data=places)

    def set_up_storage_reader(self, metadata: Any, is_coordinator: bool, *_: Any, **__: Any) -> None:
        """Keep the places of the parts in files."""
        self._places = metadata.storage_data

    def read_data(self, plan: Any, planner: Any) -> Any:
        """Read the parts that this rank needs, file by file. Return a finished future."""
        by_file: dict[str, list[tuple[str, Any]]] = {}
        for item in plan.items:
            name, key = self._places[item.storage_index]
            by_file.setdefault(name, []).append((key, item))
        for name, items in by_file.items():
            tensors = self._read(name)
            for key, item in items:
                part = tensors[key]
                for dim, (begin, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                    part = part.narrow(dim, begin, length)
                target = planner.resolve_tensor(item).detach()
                target.copy_(part)
                planner.commit_tensor(item, target)
        done: Any = torch.futures.Future()
        done.set_result(None)
        return done
