"""Stacks of recurrences whose weights are a single parameter, in the layout of cuDNN."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from feedline._facades import defined_in
from feedline.cntk._nodes import InferredDimension as _INFERRED
from feedline.cntk._nodes import constant_node, node_of
from feedline.cntk._settings import take_plain_settings
from feedline.cntk._tracing import block_of
from feedline.cntk.ops._function import Function
from feedline.networks import Node, apply

_GATES = {"lstm": 4, "gru": 3, "rnnReLU": 1, "rnnTanh": 1}


def optimized_rnnstack(
    operand: Any,
    weights: Any,
    hidden_size: int,
    num_layers: int,
    bidirectional: bool = False,
    recurrent_op: str = "lstm",
    name: str = "",
) -> Function:
    """Return a stack of recurrences, which torch's kernels run on any device.

    Args:
        operand: sequences of vectors (size,).
        weights: parameter with the numbers of all layers, of any shape. An unknown dimension is inferred. First come
            for each layer and direction the weights (gates * hidden, size of its input) and (gates * hidden, hidden),
            then for each two biases (gates * hidden,). The gates of an LSTM are input, forget, candidate, output. The
            gates of a GRU, which resets the product of the state, are reset, update, candidate.
        hidden_size: number of outputs of each layer and direction.
        num_layers: number of layers.
        bidirectional: whether each layer runs both ways, and splices the two results.
        recurrent_op: ``'lstm'``, ``'gru'``, ``'rnnReLU'`` or ``'rnnTanh'``.
        name: name of the function.

    Raises:
        ValueError: another operation, or a parameter of another size.
    """
    if recurrent_op not in _GATES:
        raise ValueError(f"expected a recurrent_op of {', '.join(_GATES)}, got {recurrent_op!r}")
    x, flat = node_of(operand), node_of(weights)
    if len(x.shape) != 1:
        raise ValueError(f"expected sequences of vectors, got samples of shape {x.shape}")
    ways, rows = 2 if bidirectional else 1, _GATES[recurrent_op] * hidden_size
    sizes = [x.shape[0], *[ways * hidden_size] * (num_layers - 1)]
    total = sum(ways * rows * (size + hidden_size + 2) for size in sizes)
    _fix_shape(flat, total)
    cells = [_Cell(size, hidden_size, recurrent_op) for size in sizes for _ in range(ways)]
    numbers = _Numbers(apply("reshape", [flat], {"shape": (total,)}))
    matrices = [(numbers.matrix(rows, c.size), numbers.matrix(rows, hidden_size)) for c in cells]
    biases = [(numbers.vector(rows), numbers.vector(rows)) for _ in cells]
    runs = list(zip(cells, matrices, biases, strict=True))
    for layer in range(num_layers):
        outputs = [c.run(x, m, b, way) for way, (c, m, b) in enumerate(runs[layer * ways : (layer + 1) * ways])]
        x = outputs[0] if len(outputs) == 1 else apply("splice", outputs, {"axis": -1})
    settings = {
        "hiddenSize": hidden_size,
        "numLayers": num_layers,
        "bidirectional": bool(bidirectional),
        "recurrentOp": recurrent_op,
    }
    blocks = block_of([x], [node_of(operand), flat], "OptimizedRNNStack", name)
    return Function.of([apply("alias", b.inputs, {**b.attributes, **settings}, b.name) for b in blocks])


def _fix_shape(flat: Node, total: int) -> None:
    """Infer the unknown dimension of the parameter. ValueError: it has more or fewer numbers than ``total``."""
    known_size = 1
    for n in flat.shape:
        known_size *= 1 if n == _INFERRED else n
    unknown = list(flat.shape).count(_INFERRED)
    if unknown > 1 or total % known_size or (not unknown and known_size != total):
        raise ValueError(f"expected a parameter of {total} numbers, got the shape {flat.shape}")
    if unknown and flat.weights is not None:
        flat.weights.fix_shape(tuple(total // known_size if n == _INFERRED else n for n in flat.shape))


class _Numbers:
    """The numbers of a parameter, one part after another."""

    def __init__(self, flat: Node) -> None:
        self._flat, self._at = flat, 0

    def vector(self, size: int) -> Node:
        begin, self._at = self._at, self._at + size
        where = {"axis": (0,), "begin": (begin,), "end": (self._at,), "strides": (1,)}
        return apply("slice", [self._flat], where)

    def matrix(self, rows: int, columns: int) -> Node:
        """Return the transpose of the next (rows, columns)."""
        part = apply("reshape", [self.vector(rows * columns)], {"shape": (rows, columns)})
        return apply("transpose", [part], {"perm": (1, 0)})


class _Cell:
    """A direction of a layer."""

    def __init__(self, size: int, hidden: int, recurrent_op: str) -> None:
        self.size, self._hidden, self._op = size, hidden, recurrent_op

    def _reorder(self, x: Node) -> Node:
        """Return the gates of an LSTM in the graph's order: input, candidate, forget, output."""
        if self._op != "lstm":
            return x
        ends = list(itertools.accumulate([self._hidden] * 4))
        parts = [
            apply("slice", [x], {"axis": (-1,), "begin": (end - self._hidden,), "end": (end,), "strides": (1,)})
            for end in ends
        ]
        return apply("splice", [parts[i] for i in (0, 2, 1, 3)], {"axis": -1})

    def run(self, x: Node, matrices: tuple[Node, Node], biases: tuple[Node, Node], way: int) -> Node:
        settings, zero = {"backwards": bool(way)}, constant_node(0.0)
        W, H = map(self._reorder, matrices)
        if self._op == "gru":
            return apply("gru", [x, W, H, *biases, zero], settings)
        b = self._reorder(apply("plus", biases))
        if self._op == "lstm":
            return apply("lstm", [x, W, H, b, zero, zero], settings)
        return apply("rnn", [x, W, H, b, zero], {**settings, "activation": self._op.removeprefix("rnn").lower()})


if not TYPE_CHECKING:  # type checkers find out themselves
    take_plain_settings(globals())
    __all__ = defined_in(globals())
