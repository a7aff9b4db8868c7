"""Meshes of ranks: which ranks read different samples, which the same, and which a cut of each sequence.

A dimension of a mesh has a role, by its name or by the user's choice: ``"data"`` splits minibatches, ``"model"`` gets
the same samples, ``"context"`` gets the same sequences, each cut along its length.

torch keeps no list of the `DeviceMesh`es that a program has made, so `share_of_program` searches the objects of
Python's garbage collector: a few hundredths of a second, once for each feed, and only with several ranks. It does not
find later meshes, meshes without references, or meshes moved away by ``gc.freeze()``, nor groups of ranks that are not
a mesh, such as Megatron's and DeepSpeed's.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

DATA, MODEL, CONTEXT = ROLES = ("data", "model", "context")

#: Usual names of dimensions, in lower case, by role. Expert parallelism (ep, etp) may be data or model.
NAMES = {
    DATA: "batch data data_parallel ddp dp dp_replicate dp_shard fsdp hsdp replica replicate shard",
    MODEL: "model model_parallel mp pipe pipeline pipeline_parallel pp stage tensor tensor_parallel tp",
    CONTEXT: "context context_parallel cp seq sequence sequence_parallel sp",
}
_ROLE_OF = {name: role for role, names in NAMES.items() for name in names.split()}


class TorchMesh(Protocol):
    """The part of torch's ``DeviceMesh`` that is used here."""

    @property
    def mesh_dim_names(self) -> tuple[str, ...] | None:
        """Names of the dimensions."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of ranks along each dimension."""

    @property
    def mesh(self) -> Any:
        """The ranks, a tensor of integers."""

    def get_coordinate(self) -> Sequence[int] | None:
        """Return the place of this rank, or None if it is not in the mesh."""


class JaxMesh(Protocol):
    """The part of JAX's ``Mesh`` that is used here."""

    @property
    def axis_names(self) -> tuple[Any, ...]:
        """Names of the dimensions."""

    @property
    def devices(self) -> NDArray[Any]:
        """The devices of all processes."""

    @property
    def local_devices(self) -> Sequence[Any]:
        """The devices of this process."""


Mesh = TorchMesh | JaxMesh


class MeshShare(NamedTuple):
    """The share of a rank.

    Attributes:
        part, parts: index of its part of each minibatch, and number of parts.
        cut, cuts: index of its cut of each sequence, and number of cuts.
        group: ranks with the same part, this one included, ascending. Empty without a mesh.
    """

    part: int
    parts: int
    cut: int = 0
    cuts: int = 1
    group: tuple[int, ...] = ()


def is_mesh(value: object) -> TypeGuard[Mesh]:
    """Return whether ``value`` is a torch ``DeviceMesh`` or a JAX ``Mesh``."""
    return _is_torch(value) or _is_jax(value)


def is_jax_placement(value: object) -> bool:
    """Return whether ``value`` is a device or a sharding of JAX."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, (jax.Device, jax.sharding.Sharding))


def share_of(mesh: Any, roles: Mapping[str, str] | None = None) -> MeshShare:
    """Return the share of this rank.

    Args:
        mesh: torch ``DeviceMesh``, a slice of one, or a JAX ``Mesh``.
        roles: role by name of a dimension, for names that are not in `NAMES` or mean something else.

    Raises:
        ValueError: a dimension has no known role, ``roles`` names an unknown dimension or role, this rank is not in the
            mesh, or the devices of a JAX process are not a block of the mesh.
    """
    names: Sequence[str | None]
    if _is_jax(mesh):
        names, sizes = mesh.axis_names, mesh.devices.shape
        local_ids = {device.id for device in mesh.local_devices}
        coordinates = np.argwhere(np.vectorize(lambda device: device.id in local_ids, otypes=[bool])(mesh.devices))
        ranks = np.vectorize(lambda device: device.process_index, otypes=[np.int64])(mesh.devices)
    else:
        sizes, ranks = tuple(mesh.shape), np.asarray(mesh.mesh)
        names = mesh.mesh_dim_names or (None,) * len(sizes)
        coordinate = mesh.get_coordinate()
        coordinates = np.empty((0, len(sizes)), np.int64) if coordinate is None else np.array([coordinate])
    of_dimension = roles_of(names, sizes, roles)
    if not len(coordinates):
        raise ValueError(f"expected a mesh with this rank, got {_shape(names, sizes)} without it")
    cells = np.argwhere(np.ones(sizes, bool))  # in the order of `ranks.flat`
    share = share_at(coordinates, sizes, of_dimension)
    places, total = _places(cells, sizes, [role == DATA for role in of_dimension])
    group = np.unique(ranks.reshape(-1)[places // (total // share.parts) == share.part])
    return share._replace(group=tuple(group.tolist()))


def share_at(coordinates: NDArray[np.int64], sizes: Sequence[int], roles: Sequence[str]) -> MeshShare:
    """Return the share of a process, without its group.

    Args:
        coordinates: int64 (n, dimensions), the places of its devices in a mesh, at least one.
        sizes: number of devices along each dimension.
        roles: role of each dimension, see `roles_of`.

    Raises:
        ValueError: the devices are not a block of the mesh.
    """
    data = _block(coordinates, sizes, [role == DATA for role in roles], "minibatches")
    return MeshShare(*data, *_block(coordinates, sizes, [role == CONTEXT for role in roles], "sequences"))


def share_of_program(world_size: int) -> MeshShare | None:
    """Return the share of this rank by the mesh that the program has made with torch, or None if there is none.

    Args:
        world_size: number of ranks of the program.

    Raises:
        ValueError: there are several meshes with different shares, one does not have all ranks, or a dimension has no
            known role.
    """
    module = sys.modules.get("torch.distributed.device_mesh")
    kind = getattr(module, "DeviceMesh", None)
    if kind is None:
        return None
    meshes = [obj for obj in gc.get_objects() if type(obj) is kind]
    # Slices of a mesh have fewer ranks than it, or one dimension. A mesh of one dimension may have been reshaped into
    # several, whose names then count.
    roots = [mesh for mesh in meshes if getattr(mesh, "_root_mesh", None) is None]
    parts = [mesh for mesh in meshes if getattr(mesh, "_root_mesh", None) is not None]
    reshaped = [mesh for mesh in parts if mesh.ndim > 1 and mesh.size() == world_size]
    shares: dict[bytes, tuple[MeshShare, str]] = {}
    for mesh in [*reshaped, *(mesh for mesh in roots if mesh.ndim > 1 or not reshaped)]:
        shape = _shape(mesh.mesh_dim_names or (None,) * mesh.ndim, mesh.shape)
        if mesh.size() != world_size:
            raise ValueError(
                f"expected a partition, as this program has made a mesh of some of its {world_size} ranks ({shape}). "
                "Pass partition=mesh if only these train together, else partition=(index, count)"
            )
        shares.setdefault(_shares_of_all(mesh), (share_of(mesh), shape))
    if len(shares) > 1:
        shapes = "; ".join(shape for _, shape in shares.values())
        raise ValueError(
            f"expected a partition, as this program has made several meshes ({shapes}), which give its "
            "ranks different shares. Pass the mesh of the ranks that train together: partition=mesh"
        )
    return next((share for share, _ in shares.values()), None)


def _shares_of_all(mesh: TorchMesh) -> bytes:
    """Return the shares of all ranks of a mesh as bytes. All ranks compare these, as the shares of one rank can agree
    where those of another one do not, and then only some would raise."""
    sizes, ranks = tuple(mesh.shape), np.asarray(mesh.mesh).reshape(-1)
    roles = roles_of(mesh.mesh_dim_names or (None,) * len(sizes), sizes)
    cells = np.argwhere(np.ones(sizes, bool))
    columns = [ranks]
    for role in (DATA, CONTEXT):
        places, total = _places(cells, sizes, [each == role for each in roles])
        columns += [places, np.full(len(ranks), total)]
    return np.stack(columns)[:, np.argsort(ranks)].astype(np.int64).tobytes()


def _is_torch(value: object) -> bool:
    module = sys.modules.get("torch.distributed.device_mesh")
    kind = getattr(module, "DeviceMesh", None)
    return kind is not None and isinstance(value, kind)


def _is_jax(value: object) -> bool:
    module = sys.modules.get("jax.sharding")
    kind = getattr(module, "Mesh", None)
    return kind is not None and isinstance(value, kind)


def roles_of(names: Sequence[str | None], sizes: Sequence[int], roles: Mapping[str, str] | None = None) -> list[str]:
    """Return the role of each dimension of a mesh.

    Args:
        names: names of the dimensions.
        sizes: number of ranks along each.
        roles: see `share_of`.

    Raises:
        ValueError: a dimension has no known role, or ``roles`` names an unknown dimension or role.
    """
    roles = roles or {}
    for dimension, role in roles.items():
        if dimension not in names:
            raise ValueError(f"expected roles of dimensions of the mesh, {_shape(names, sizes)}, got {dimension!r}")
        if role not in ROLES:
            raise ValueError(f"expected the role of {dimension!r} to be one of {', '.join(ROLES)}, got {role!r}")
    wide = [i for i, size in enumerate(sizes) if size > 1]
    result: list[str] = []
    unknown: list[str | None] = []
    for i, name in enumerate(names):
        known = None if name is None else roles.get(name) or _ROLE_OF.get(name.lower())
        # Any role fits a dimension of one rank, and the only one of a mesh without names divides minibatches.
        if known is None and i in wide and (name is not None or wide != [i]):
            unknown.append(name)
        result.append(known or DATA)
    if not unknown:
        return result
    if None in unknown:
        raise ValueError(
            f"expected names of the dimensions of the mesh, got none for {_shape(names, sizes)}: pass mesh_dim_names= "
            "to init_device_mesh"
        )
    written = ", ".join(f'"{name}": ...' for name in unknown)
    raise ValueError(
        f"expected known dimensions of the mesh, got {_shape(names, sizes)}, where {' and '.join(map(str, unknown))} "
        f'may read different samples ("data"), the same ones ("model") or pieces of them ("context"). Pass '
        f"partition=fl.Partition(mesh, roles={{{written}}})"
    )


def _block(
    coordinates: NDArray[np.int64], sizes: Sequence[int], chosen: Sequence[bool], divided: str
) -> tuple[int, int]:
    """Return (index, count) of this process along the chosen dimensions, which its devices cover as a block."""
    places, total = _places(coordinates, sizes, chosen)
    first, size = int(places.min()), len(np.unique(places))
    if int(places.max()) - first + 1 != size or first % size or total % size:
        raise ValueError(
            f"expected the devices of a process as one block of those that divide {divided}, got numbers "
            f"{np.unique(places).tolist()} of {total}: order the devices of the mesh by process"
        )
    return first // size, total // size


def _places(
    coordinates: NDArray[np.int64], sizes: Sequence[int], chosen: Sequence[bool]
) -> tuple[NDArray[np.int64], int]:
    """Return the number of each place along the chosen dimensions, and how many there are."""
    total, places = 1, np.zeros(len(coordinates), np.int64)
    for i, is_chosen in enumerate(chosen):
        if is_chosen:
            places, total = places * sizes[i] + coordinates[:, i], total * sizes[i]
    return places, total


def _shape(names: Sequence[str | None], sizes: Sequence[int]) -> str:
    labels = (name or f"dimension {i}" for i, name in enumerate(names))
    return ", ".join(f"{label}: {size}" for label, size in zip(labels, sizes, strict=True))
