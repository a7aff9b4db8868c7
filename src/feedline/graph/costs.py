"""What an operation costs: multiplications with an addition, and the memory of what it gives.

Counted are products of matrices, convolutions, recurrent layers and attention, by closed formulas over shapes; work
that is linear in its input (sums, activations, normalisation, pooling) is not, as everywhere. Kinds are words of torch,
MXNet and CNTK alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from feedline.graph.graph import Shape, TensorType, size, total


def base(kind: str) -> str:
    """The word without case and underscores: ``Conv2d``, ``conv2d``, ``relu_`` and ``ReLU`` agree over libraries."""
    return kind.replace("_", "").lower()


# They hand out memory of their input.
VIEWS = frozenset(
    (
        *("view", "viewas", "reshape", "reshapeas", "flatten", "unflatten", "squeeze", "unsqueeze", "expanddims"),
        *("transpose", "permute", "swapaxes", "movedim", "t", "mt", "h", "mh", "real", "imag"),
        *("select", "slice", "narrow", "getitem", "diagonal", "asstrided", "pick"),
        *("split", "splitwithsizes", "chunk", "tensorsplit", "unbind", "slicechannel"),
        *("expand", "expandas", "broadcastto", "detach", "blockgrad", "alias", "identity", "contiguous", "to"),
    )
)

# Their weights are read, not multiplied.
LOOKS_UP = ("embedding", "embeddingbag")


def activations(kind: str, outputs: Sequence[TensorType]) -> int | None:
    """Bytes that an operation allocates for its outputs: none for views and in place; None: not known."""
    in_place = kind.endswith("_") and not kind.endswith("__")
    return 0 if in_place or base(kind) in VIEWS else total([t.bytes for t in outputs])


def multiply_adds(
    kind: str,
    operands: Sequence[Shape | None],
    weights: Sequence[Shape | None],
    output: Shape | None,
    equation: str = "",
    layer: bool = False,
) -> int | None:
    """Multiplications with an addition that one run costs.

    Args:
        kind: of the operation.
        operands: shapes of what it is applied to, weights included, in the order of its arguments.
        weights: shapes of those among them that are parameters.
        output: shape of what it gives, the first if there are several.
        equation: of an ``einsum``.
        layer: the operation is a layer as a whole, which may do with its weights what no formula here tells.

    Returns:
        their number; 0 for operations that have none; None if a shape or the formula is not known.
    """
    formula = _FORMULAS.get(base(kind))
    if formula is None:
        matrices = layer and base(kind) not in LOOKS_UP and any(s is None or len(s) > 1 for s in weights)
        return None if matrices else 0
    known = [s for s in operands if s is not None]
    known_weights = [s for s in weights if s is not None]
    if len(known) < max(2, len(operands)) or len(known_weights) < len(weights) or output is None:
        return None
    return formula(OperationShapes(known, known_weights, output, equation))


class OperationShapes(NamedTuple):
    """Shapes around an operation."""

    operands: Sequence[Shape]
    weights: Sequence[Shape]
    out: Shape
    equation: str


def _linear(at: OperationShapes) -> int:
    return size(at.out) * size(at.operands[1][-1:])


def _convolution(at: OperationShapes) -> int:
    return size(at.out) * size(at.operands[1][1:])  # weights are (out, in / groups, *kernel)


def _transposed(at: OperationShapes) -> int:
    return size(at.operands[0]) * size(at.operands[1][1:])  # weights are (in, out / groups, *kernel)


def _product(at: OperationShapes) -> int:
    return size(at.out) * size(at.operands[0][-1:])


def _added_product(at: OperationShapes) -> int:
    return size(at.out) * size(at.operands[1][-1:])


def _times(at: OperationShapes) -> int:
    """CNTK's product sums over the first axes of the right operand; how many, the ranks tell."""
    left, right = at.operands[:2]
    rank = sum(isinstance(n, int) for n in left) + sum(isinstance(n, int) for n in right)
    summed = (rank - sum(isinstance(n, int) for n in at.out)) // 2
    return size(at.out) * size(tuple(n for n in right if isinstance(n, int))[:summed])


def _recurrent(at: OperationShapes) -> int | None:
    """Every matrix of weights multiplies once for each step of each sequence; not known of weights in one vector."""
    matrices = [size(shape) for shape in at.weights if len(shape) == 2]
    return size(at.operands[0][:-1]) * sum(matrices) if matrices else None


def _bilinear(at: OperationShapes) -> int:
    return size(at.operands[0][:-1]) * size(at.operands[2])


def _attention(at: OperationShapes) -> int:
    query, key, value = at.operands[:3]
    scores = size(query[:-1]) * size(key[-2:-1])
    return scores * size(query[-1:]) + scores * size(value[-1:])


def _attention_layer(at: OperationShapes) -> int:
    """Projections, scores and sums of a multi-head attention: query, key, value of (steps, batch, width)."""
    query, key, value = at.operands[:3]
    width = size(query[-1:])
    projections = sum(size(rows) * width for rows in (query, key, value, query))
    return projections + 2 * size(query[:-1]) * size(key[:1]) * width


def _einsum(at: OperationShapes) -> int | None:
    """Of two operands: one for each combination of indices. Of more torch chooses the order: not known."""
    terms = at.equation.replace(" ", "").split("->")[0].split(",")
    if len(terms) != 2 or len(at.operands) != 2 or "." in at.equation:
        return None
    lengths = {i: n for term, shape in zip(terms, at.operands, strict=True) for i, n in zip(term, shape, strict=True)}
    return size(tuple(lengths.values()))


_FORMULAS: dict[str, Callable[[OperationShapes], int | None]] = {
    **dict.fromkeys(("linear", "fullyconnected"), _linear),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), _convolution),
    **dict.fromkeys(("convtranspose1d", "convtranspose2d", "convtranspose3d", "deconvolution"), _transposed),
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "dot", "inner", "batchdot"), _product),
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), _added_product),
    "times": _times,
    **dict.fromkeys(("lstm", "gru", "rnn", "rnntanh", "rnnrelu"), _recurrent),
    **dict.fromkeys(("lstmcell", "grucell", "rnncell", "rnntanhcell", "rnnrelucell"), _recurrent),
    "bilinear": _bilinear,
    "scaleddotproductattention": _attention,
    "multiheadattentionforward": _attention_layer,
    "multiheadattention": lambda at: None,  # a layer may have the batch first, which shapes do not tell
    "einsum": _einsum,
}
