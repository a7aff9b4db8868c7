"""Meshes of a program's ranks: whether ranks that need the same samples would get different ones.

torch keeps no list of the `DeviceMesh`es that a program has made, so this module searches the objects of Python's
garbage collector: some hundredths of a second, once for each feed, and only with several ranks. It does not find later
meshes, meshes without references, or meshes moved away by ``gc.freeze()``, nor groups of ranks that are no mesh, such
as Megatron's and DeepSpeed's.
"""

from __future__ import annotations

import gc
import sys

#: Names of dimensions whose ranks read different samples. The ranks of any other dimension are presumed to read the
#: same ones.
DATA = (
    *("batch", "data", "data_parallel", "ddp", "dp", "dp_replicate"),
    *("dp_shard", "fsdp", "hsdp", "replica", "replicate", "shard"),
)


def check_meshes() -> None:
    """Check that every rank may read other samples than all others.

    Raises:
        ValueError: the program has made a mesh with ranks that have to read the same samples.
    """
    module = sys.modules.get("torch.distributed.device_mesh")
    kind = getattr(module, "DeviceMesh", None)
    if kind is None:
        return
    for mesh in [obj for obj in gc.get_objects() if type(obj) is kind]:
        part = getattr(mesh, "_root_mesh", None) is not None  # a slice of another mesh, which is found itself
        if mesh.get_coordinate() is None or (part and mesh.ndim == 1):
            continue
        names = mesh.mesh_dim_names or (None,) * mesh.ndim
        wide = {name or f"dimension {i}": mesh.size(i) for i, name in enumerate(names) if mesh.size(i) > 1}
        unnamed = mesh.mesh_dim_names is None
        unknown = [name for name in wide if name.lower() not in DATA]
        if unknown and not (unnamed and len(wide) == 1):
            raise ValueError(_refusal(wide, unknown, unnamed))


def _refusal(wide: dict[str, int], unknown: list[str], unnamed: bool) -> str:
    data = [name for name in wide if name not in unknown]
    shape = ", ".join(f"{name}: {size}" for name, size in wide.items())
    if len(data) == 1:
        write = f'partition=(mesh["{data[0]}"].get_local_rank(), mesh["{data[0]}"].size())'
    elif unnamed or data:
        write = "partition=(index, count), counting the ranks that read different samples"
    else:
        write = "partition=(0, 1), if all of them read the same samples"
    return (
        f"expected a partition, as this program has made a mesh of ranks ({shape}): ranks that differ only in "
        f"{' and '.join(unknown)} may have to read the same samples, but would get different ones. Pass {write}"
    )
