"""Shapes and element types of a whole symbol, inferred from some of its variables.

Output shapes come from an operator's rule, or else from running it on torch's meta tensors, which have shapes and no
data. Results are cached by operator, settings and shapes. Inputs whose shapes follow from others (weights from data,
terms from a sum) have rules, and a length that an operator passes on follows from the output. All are applied to all
nodes, forwards and backwards, until nothing changes: two or three rounds, each linear in the nodes.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from feedline.errors import CompatError
from feedline.mxnet.base import MXNetError
from feedline.mxnet.symbol._node import FAILURES, Entry, Node, topological, variables, within
from feedline.mxnet.symbol._operator import Operator, Site
from feedline.mxnet.symbol._parameters import Shape, dims
from feedline.mxnet.util import is_np_shape, np_shape

_TRIED = (1, 1 << 20)  # lengths tried in place of an unknown one
# Lengths tried to see whether an output's length is an input's, plus a constant. Few kernels are longer.
_LONG, _LONGER = 1 << 12, ((1 << 12) + 1, 1 << 13)
# Element types by MXNet's numbers, which attributes contain.
TYPES = ("float32", "float64", "float16", "uint8", "int32", "int8", "int64")


@dataclass
class Inferred:
    """Known shapes and types of outputs.

    Attributes:
        shapes: shapes by output, as far as known, where 0 is an unknown length.
        types: names of element types by output, as far as known.
    """

    shapes: dict[tuple[Node, int], Shape] = field(default_factory=dict)
    types: dict[tuple[Node, int], str] = field(default_factory=dict)

    def shape(self, entry: Entry | Node) -> Shape | None:
        """Return the shape of an output or a variable, or None if unknown."""
        return self.shapes.get(_key(entry))

    def type(self, entry: Entry | Node) -> str | None:
        """Return the element type of an output or a variable, or None if unknown."""
        return self.types.get(_key(entry))

    def knows(self, entry: Entry | Node) -> bool:
        """Return whether every length of the shape is known."""
        shape = self.shape(entry)
        return shape is not None and 0 not in shape


def _key(entry: Entry | Node) -> tuple[Node, int]:
    return (entry, 0) if isinstance(entry, Node) else (entry.node, entry.output)


def by_variable(
    outputs: Sequence[Entry], args: Sequence[Any], kwargs: Mapping[str, Any], read: Callable[[Any], Any]
) -> dict[Node, Any]:
    """Return the shapes or types that a caller passed, by variable. None is ignored.

    Raises:
        ValueError: both positional and keyword arguments.
        MXNetError: a name that is not a variable.
    """
    if args and kwargs:
        raise ValueError("Can only specify known argument shapes either by positional or kwargs way.")
    arguments, states = variables(outputs)
    if len(args) > len(arguments):
        raise MXNetError(f"expected at most {len(arguments)} arguments, got {len(args)}")
    pairs = zip(arguments, args, strict=False)
    if kwargs:
        names = {node.name for node in (*arguments, *states)}
        for key in kwargs:
            if key not in names:
                listed = " ".join(f"[{i}]{node.name}" for i, node in enumerate(arguments))
                raise MXNetError(
                    f"MXNetError: InferShapeKeyword argument name {key} not found. Candidate arguments: {listed}"
                )
        return {node: read(kwargs[node.name]) for node in (*arguments, *states) if kwargs.get(node.name) is not None}
    return {node: read(value) for node, value in pairs if value is not None}


def lengths(shape: Any) -> Shape:
    """Convert a shape that a caller passed. An unknown length is 0, or -1 under `mxnet.util.np_shape`.

    Raises:
        MXNetError: not a sequence of integers, or a length below that of an unknown one.
        CompatError: a length of 0 under ``np_shape``.
    """
    try:
        read = tuple(operator.index(length) for length in shape)
    except TypeError as error:
        raise MXNetError(f"expected a shape, a tuple of integers, got {shape!r}") from error
    unknown = -1 if is_np_shape() else 0
    if min(read, default=0) < unknown:
        raise MXNetError(
            f"expected a shape of lengths of at least {unknown}, where {unknown} is unknown, got {shape!r}"
        )
    if unknown and 0 in read:
        raise CompatError(f"expected lengths from 1, or -1 for an unknown one, got {shape!r}: arrays have elements")
    return tuple(max(length, 0) for length in read)


def shown(shape: Shape | None) -> Shape | None:
    """Return an inferred shape as callers see it, with their numbers for unknown lengths and shapes."""
    if is_np_shape():
        return shape and tuple(length or -1 for length in shape)
    return shape or ()


def _declared(text: str) -> Shape:
    """Return the shape in a variable's attribute, in which 0 and -1 are unknown lengths."""
    with np_shape(False):
        return lengths(max(length, 0) for length in dims(text))


def infer_shapes(outputs: Sequence[Entry], passed: Mapping[Node, Shape]) -> Inferred:
    """Infer the shapes of all nodes, as far as possible.

    Raises:
        MXNetError: contradictory shapes. The error names the operator.
    """
    inferred = Inferred(shapes=_with_attributes(outputs, passed, "__shape__", _declared))
    working = [node for node in topological(outputs) if node.operator is not None]
    while _round(working, inferred) or _round(reversed(working), inferred):
        pass
    return inferred


def _with_attributes(
    outputs: Sequence[Entry], passed: Mapping[Node, Any], key: str, read: Callable[[str], Any]
) -> dict[tuple[Node, int], Any]:
    """Return the caller's values for variables, or else their attribute ``key``. Empty values are ignored."""
    values = dict(passed)
    for node in topological(outputs):
        if node.operator is None and node not in passed and key in node.attributes:
            try:
                values[node] = read(node.attributes[key])
            except (ValueError, LookupError) as error:
                raise MXNetError(f"variable `{node.name}`: expected {key}, got {node.attributes[key]!r}") from error
    return {(node, 0): value for node, value in values.items() if value}


def _forward(node: Node, ins: Sequence[Shape | None]) -> tuple[Shape, ...]:
    """Return the shapes of the outputs, 0 for unknown lengths, or an empty tuple if none can be inferred."""
    shapes = [shape for shape in ins if shape is not None]
    if len(shapes) < len(ins):
        return ()
    assert node.operator is not None
    settings = tuple(vars(node.p).values())
    if not any(0 in shape for shape in shapes):
        return _outs(node.operator, settings, tuple(shapes))
    # Output lengths are monotonic in input lengths: one that is equal for a short and a long input is equal for all.
    trials = []
    for length in _TRIED:
        try:
            trials.append(_outs(node.operator, settings, tuple(tuple(n or length for n in shape) for shape in shapes)))
        except FAILURES:  # The trial length is impossible. Real lengths are checked once they are known.
            return ()
    if any(len(a) != len(b) for a, b in zip(*trials, strict=True)):
        return ()
    return tuple(tuple(m if m == n else 0 for m, n in zip(a, b, strict=True)) for a, b in zip(*trials, strict=True))


def _backward(node: Node, ins: Sequence[Shape | None], outs: Sequence[Shape | None]) -> dict[int, Shape]:
    """Return shapes of inputs, by index, with lengths that follow from the outputs' lengths.

    An unknown length follows from an output's length that grows with it, by as much, and with no other unknown length.
    """
    shapes = [shape for shape in ins if shape is not None]
    unknown = [(i, axis) for i, shape in enumerate(shapes) for axis, n in enumerate(shape) if n == 0]
    if len(shapes) < len(ins) or not unknown or not any(any(out) for out in outs if out is not None):
        return {}
    assert node.operator is not None
    ours, settings = node.operator, tuple(vars(node.p).values())

    def trial(place: tuple[int, int] | None, length: int) -> tuple[Shape, ...]:
        lengths = [[n or (length if (i, a) == place else _LONG) for a, n in enumerate(s)] for i, s in enumerate(shapes)]
        return _outs(ours, settings, tuple(map(tuple, lengths)))

    try:
        base = trial(None, _LONG)
        grown = {place: [trial(place, length) for length in _LONGER] for place in unknown}
    except FAILURES:  # lengths that depend on each other, or impossible ones
        return {}
    inferred = {i: list(shape) for i, shape in enumerate(shapes)}
    for o, out in enumerate(outs):
        if out is None or any(len(t[o]) != len(out) for t in (base, *itertools.chain(*grown.values()))):
            continue
        for axis, length in enumerate(out):
            growth = {place: [t[o][axis] - base[o][axis] for t in trials] for place, trials in grown.items()}
            sources = [place for place in unknown if any(growth[place])]
            if length and len(sources) == 1 and growth[sources[0]] == [longer - _LONG for longer in _LONGER]:
                i, place = sources[0]
                inferred[i][place] = max(length + _LONG - base[o][axis], 0)
    return {i: tuple(shape) for i, shape in inferred.items()}


@functools.lru_cache(maxsize=1 << 14)
def _outs(ours: Operator, settings: tuple[Any, ...], ins: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return the shapes of the operator's outputs for these inputs."""
    p = SimpleNamespace(**dict(zip(ours.parameters, settings, strict=True)))
    with torch.device("meta"), torch.no_grad():
        outs = ours.bind(p, training=False)(*map(torch.empty, ins))
    return tuple(tuple(out.shape) for out in (outs if isinstance(outs, tuple) else (outs,)))


def _round(nodes: Iterable[Node], inferred: Inferred) -> bool:
    changed = False
    for node in nodes:
        assert node.operator is not None
        outs = [(node, i) for i in range(node.visible)]
        site = Site(node.p, node.name, [inferred.shape(e) for e in node.inputs], [inferred.shapes.get(o) for o in outs])
        with within(node.name):
            node.operator.shape(site)
            # The shape that consumers imply for an output is compared with that from its inputs, once these are known.
            if not all(i in site.recorded and out and 0 not in out for i, out in enumerate(site.outs)):
                for i, out in enumerate(_forward(node, site.ins)):
                    site.put_out(out, i)
            for i, lengths_in in _backward(node, site.ins, site.outs).items():
                site.put_in(i, lengths_in)
        for key, shape in (*zip(map(_key, node.inputs), site.ins, strict=True), *zip(outs, site.outs, strict=True)):
            if shape is not None and inferred.shapes.get(key) != shape:
                inferred.shapes[key] = shape
                changed = True
    return changed


def infer_types(outputs: Sequence[Entry], passed: Mapping[Node, str], default: str | None = None) -> Inferred:
    """Infer the element types of all nodes: an operator's inputs and outputs share one, except indices, labels, casts.

    Args:
        outputs: outputs of the symbol.
        passed: types that the caller passed, by variable.
        default: type of indices and labels that stay unknown. None means the type of the operator that uses them.

    Raises:
        MXNetError: contradictory types. The error names the operator.
    """
    types = _with_attributes(outputs, passed, "__dtype__", lambda text: TYPES[range(len(TYPES)).index(int(text))])
    inferred = Inferred(types=types)
    working = [node for node in topological(outputs) if node.operator is not None]
    while True:
        if sum(_unify(node, inferred) for node in (*working, *reversed(working))):
            continue
        # Indices and labels of unknown type take the type of the operator that uses them.
        if not sum(_fix_types(node, inferred, default) for node in working):
            return inferred


def _unify(node: Node, inferred: Inferred) -> bool:
    assert node.operator is not None
    ours, fixed = node.operator, node.operator.dtype(node.p)
    names, free = node.input_names, ours.free_names(node.p)
    together = [_key(e) for name, e in zip(names, node.inputs, strict=True) if name not in (*free, *ours.wide)]
    outs = [(node, i) for i in range(node.visible)]
    kinds = {inferred.types[key] for key in (*together, *outs) if key in inferred.types} | ({fixed} if fixed else set())
    if len(kinds) > 1:
        raise MXNetError(
            f"Error in operator {node.name}: expected one element type for inputs and outputs, got "
            f"{', '.join(sorted(kinds))}"
        )
    if not kinds:
        return False
    kind = next(iter(kinds))
    wide = "float32" if kind == "float16" else kind
    required = dict.fromkeys((*together, *outs), kind)
    required.update((_key(e), wide) for name, e in zip(names, node.inputs, strict=True) if name in ours.wide)
    changed = False
    for key, expected in required.items():
        if key not in inferred.types:
            inferred.types[key] = expected
            changed = True
        elif inferred.types[key] != expected:
            got = inferred.types[key]
            raise MXNetError(f"Error in operator {node.name}: expected {expected} for {key[0].name}, got {got}")
    return changed


def _fix_types(node: Node, inferred: Inferred, default: str | None) -> bool:
    assert node.operator is not None
    mine, free = inferred.types.get((node, 0)), node.operator.free_names(node.p)
    changed = False
    for name, entry in zip(node.input_names, node.inputs, strict=True):
        # The output of another operator has that operator's type, once it is known.
        if name in free and entry.node.operator is None and _key(entry) not in inferred.types:
            kind = (mine if name in node.operator.labels else None) or default
            if kind is not None:
                inferred.types[_key(entry)] = kind
                changed = True
    return changed
