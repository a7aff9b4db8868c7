"""Shape rules of operations: the shape of the result from the shapes of the inputs.

Shapes broadcast as in NumPy: they are aligned at the last axis, and missing axes and axes of length 1 repeat. Axes are
numbered from the first (0, 1, …) or from the last (-1, -2, …) of a sample.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from feedline.networks.node import UNKNOWN
from feedline.networks.registry import Shape, Site, TriedLength, UnknownShapeError


def same(site: Site) -> Shape:
    """Shape of the first input."""
    return site.shape(0)


def scalar(site: Site) -> Shape:
    """Shape of one number per sample."""
    return ()


def declared_shape(site: Site) -> Shape:
    """Shape in the attribute ``shape``."""
    return tuple(site.attributes["shape"])


def broadcast(site: Site) -> Shape:
    """Shape to which all inputs broadcast. Parameters take their unknown dimensions from the other inputs."""
    shapes = [s for s in site.shapes if s is not None]
    # A state is guessed to have the shape of a tensor at the first attempt, and the shape of a number at the second.
    if not shapes or (len(shapes) < len(site.shapes) and not any(shapes) and site.guessing == 1):
        raise UnknownShapeError
    settled = [s for s in shapes if UNKNOWN not in s]
    shape: Shape = broadcast_shapes(site, settled) if settled else shapes[0]
    for i, mine in enumerate(site.shapes):
        if mine is not None and UNKNOWN in mine:
            # With a number, a single unknown axis vanishes. Otherwise it takes the last axis of the other inputs.
            fixed = shape if mine == (UNKNOWN,) and not shape else _fill_inferred(mine, shape, site)
            site.fix_shape(i, fixed)
            shape = broadcast_shapes(site, [shape, fixed])
    return shape


def broadcast_shapes(site: Site, shapes: Sequence[Shape]) -> Shape:
    """Broadcast as NumPy does, but faster, as it is called for every node."""
    rank = max(len(shape) for shape in shapes)
    out = [1] * rank
    for shape in shapes:
        offset = rank - len(shape)
        for i, size in enumerate(shape, offset):
            if size != out[i]:
                if out[i] == 1:
                    out[i] = size
                elif size != 1:
                    if not fits_length(size, out[i]):
                        site.refuse("shapes that broadcast")
                    out[i] = _known_length(size, out[i])
    return tuple(out)


def fits_length(a: int, b: int) -> bool:
    """Whether two lengths are equal, as far as known."""
    return a == b or isinstance(a, TriedLength) or isinstance(b, TriedLength)


def fits_lengths(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two shapes are equal, as far as known."""
    return a == b or (len(a) == len(b) and all(map(fits_length, a, b)))


def _known_length(a: int, b: int) -> int:
    """Return the length of two axes that fit. Of two trial lengths the larger stays."""
    if isinstance(a, TriedLength) and isinstance(b, TriedLength):
        return max(a, b)
    return b if isinstance(a, TriedLength) else a


def _fill_inferred(shape: Shape, reference: Shape, site: Site) -> Shape:
    if len(shape) > len(reference):
        site.refuse("an input with as many axes as the parameter, to fix its unknown dimensions")
    tail = reference[len(reference) - len(shape) :]
    return tuple(b if a == UNKNOWN else a for a, b in zip(shape, tail, strict=True))


def from_end(axis: int, rank: int, site: Site | None = None) -> int:
    """Return an axis of a sample as a negative number, which does not depend on leading axes.

    Raises:
        ValueError: there is no such axis.
    """
    if not -rank <= axis < rank:
        message = f"an axis from {-rank} to {rank - 1} for axis={axis}"
        if site is not None:
            site.refuse(message)
        raise ValueError(f"expected {message}")
    return axis - rank if axis >= 0 else axis


def axes_of(axis: int | Sequence[int] | None, rank: int, site: Site | None = None) -> tuple[int, ...]:
    """Return one, several or all (None) axes as negative numbers."""
    if axis is None:
        return tuple(range(-rank, 0))
    return tuple(from_end(a, rank, site) for a in ((axis,) if isinstance(axis, int) else axis))


def reduced_shape(site: Site) -> Shape:
    """Attributes ``axis`` (None means all) and ``keepdims``. Without axis the result is one number per sample."""
    shape, axis = site.shape(0), site.attributes.get("axis")
    if axis is None and not site.attributes.get("keepdims", False):
        return ()
    gone = axes_of(axis, len(shape), site)
    if site.attributes.get("keepdims", True):
        return tuple(1 if i - len(shape) in gone else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i - len(shape) not in gone)


def reshaped_shape(site: Site) -> Shape:
    """Attributes ``shape``, with at most one -1, and ``begin`` and ``end``, the axes that it replaces."""
    old, new = site.shape(0), tuple(site.attributes["shape"])
    begin = site.attributes.get("begin") or 0
    end = site.attributes.get("end")
    stop = len(old) if end is None else end if end >= 0 else len(old) + end
    start = begin if begin >= 0 else len(old) + begin
    if not 0 <= start <= stop <= len(old):
        site.refuse(f"axes from {begin} to {end} within the shape")
    size, is_tried = math.prod(old[start:stop]), any(isinstance(n, TriedLength) for n in old[start:stop])
    if UNKNOWN in new:
        known_size = math.prod(n for n in new if n != UNKNOWN)
        if new.count(UNKNOWN) > 1 or known_size == 0 or (size % known_size and not is_tried):
            site.refuse(f"a shape that reshapes to {new}")
        new = tuple(size // known_size if n == UNKNOWN else n for n in new)
    if math.prod(new) != size and not is_tried:
        site.refuse(f"a shape that reshapes to {new}")
    return old[:start] + new + old[stop:]


def transposed_shape(site: Site) -> Shape:
    """Attribute ``perm``: the source of each axis."""
    shape, perm = site.shape(0), site.attributes["perm"]
    if sorted(perm) != list(range(len(shape))):
        site.refuse(f"a shape of {len(perm)} axes to permute by {tuple(perm)}")
    return tuple(shape[i] for i in perm)


def spliced_shape(site: Site) -> Shape:
    """Attribute ``axis``. Inputs with fewer axes, or with axes of length 1, repeat along the other axes.

    An axis before the first, or one behind the last, creates it. Axes of length 1 come between it and the others.
    Parameters take their unknown dimensions from the other inputs.
    """
    shapes = [site.shape(i) for i in range(len(site.inputs))]
    rank = max(len(s) for s in shapes)
    axis = site.attributes["axis"]
    rank = max(rank + (axis == rank), -axis)
    at = from_end(axis, rank, site) + rank
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    beside = [s[:at] + s[at + 1 :] for s in padded]
    around = broadcast_shapes(site, [s for s in beside if UNKNOWN not in s] or beside[:1])
    for i, s in enumerate(beside):
        if UNKNOWN in s:
            beside[i] = tuple(b if a == UNKNOWN else a for a, b in zip(s, around, strict=True))
            filled = (*beside[i][:at], padded[i][at], *beside[i][at:])
            site.fix_shape(i, filled[rank - len(shapes[i]) :])
    around = broadcast_shapes(site, beside)
    sizes = [s[at] for s in padded]
    return (*around[:at], UNKNOWN if UNKNOWN in sizes else sum(sizes), *around[at:])


def sliced_shape(site: Site) -> Shape:
    """Attributes ``axis``, ``begin``, ``end`` and ``strides``, of equal length. An end of 0 is the end of the axis."""
    shape = list(site.shape(0))
    for axis, part, stride in slices(site.attributes, len(shape), site):
        size = -(-len(range(*part.indices(shape[axis]))) // abs(stride))
        if size == 0:
            site.refuse(f"a non-empty slice along axis {axis} from {part.start} to {part.stop}")
        shape[axis] = size
    return tuple(shape)


def slices(attributes: Mapping[str, Any], rank: int, site: Site | None = None) -> list[tuple[int, slice, int]]:
    """Return the axis, counted from the end, the range and the stride of each sliced axis.

    A negative stride goes through the range from its end.
    """
    parts = (attributes[key] for key in ("axis", "begin", "end", "strides"))
    axes = []
    for axis, begin, end, stride in zip(*parts, strict=True):
        if stride == 0:
            raise ValueError("expected strides other than 0, got 0")
        axes.append((from_end(axis, rank, site), slice(begin, None if end == 0 else end), stride))
    return axes


def product(site: Site) -> Shape:
    """Left times right: sums over the first axes of the right, all but ``output_rank``, and the last of the left.

    Attribute ``map_rank``, None or a number: a right parameter takes all axes of the left but the first ``map_rank``.
    Attribute ``state_rank``: number of axes of the left when its type was guessed, for a state of a recurrence. As in
    CNTK, a right parameter takes no axes of length 1 that the operands of the recurrence put in front of these.
    """
    left, right = site.types[0].shape, site.types[1].shape
    out, map_rank = site.attributes.get("output_rank", 1), site.attributes.get("map_rank")
    if left is not None and (rank := site.attributes.get("state_rank", len(left))) < len(left):
        front = len(left) - rank
        map_rank = front if set(left[:front]) == {1} else map_rank
    if right is None:
        raise UnknownShapeError
    if len(right) < out:
        site.refuse(f"a right operand of at least {out} axes")
    inner = right[: len(right) - out]
    if left is None:
        # A state whose shape is being guessed: as many axes as the right operand sums over.
        return right[len(right) - out :]
    if UNKNOWN in inner:
        taken = left[map_rank if map_rank >= 0 else len(left) + map_rank :] if map_rank is not None else None
        if taken is None:
            if len(inner) > len(left):
                site.refuse(f"a left operand of at least {len(inner)} axes")
            taken = left[len(left) - len(inner) :]
        if inner != (UNKNOWN,) and len(inner) == len(taken):
            taken = tuple(b if a == UNKNOWN else a for a, b in zip(inner, taken, strict=True))
        if site.inputs[1].weights is None:
            site.refuse("a right operand of known shape")
        site.fix_shape(1, (*taken, *right[len(right) - out :]))
        inner = taken
    elif map_rank is not None and not fits_lengths(inner, left[map_rank:]):
        site.refuse(f"the left operand's axes after the first {map_rank} to be the first of the right operand")
    if len(inner) > len(left) or not fits_lengths(left[len(left) - len(inner) :], inner):
        site.refuse("the last axes of the left operand to be the first of the right one")
    return left[: len(left) - len(inner)] + right[len(right) - out :]


def times_transpose(site: Site) -> Shape:
    """Left times the transpose of right, a matrix or a vector. A vector is one row, which leaves an axis of 1."""
    left, right = site.shape(0), site.shape(1)
    if len(right) > 2 or not left or not right or not fits_length(left[-1], right[-1]):
        site.refuse("a right operand of at most two axes, whose last is as long as the left operand's last")
    rows = right[0] if len(right) == 2 else 1
    return (*left[:-1], rows)
