"""The costs of operations: multiply-adds, and memory of outputs.

Matrix products, convolutions, recurrent layers and attention are counted, by closed formulas over shapes. As usual,
work that is linear in its input (sums, activations, normalisation, pooling) is not counted. Kinds may be words of
torch, MXNet, CNTK or ONNX.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from feedline.graph.graph import Shape, TensorType, size, total


def base(kind: str) -> str:
    """Return a kind without case and underscores, so that kinds of different libraries agree."""
    return kind.replace("_", "").lower()


# Operations whose output shares the memory of their input.
VIEWS = frozenset(
    (
        *("view", "viewas", "reshape", "reshapeas", "flatten", "unflatten", "squeeze", "unsqueeze", "expanddims"),
        *("transpose", "permute", "swapaxes", "movedim", "t", "mt", "h", "mh", "real", "imag"),
        *("select", "slice", "narrow", "getitem", "diagonal", "asstrided", "pick"),
        *("split", "splitwithsizes", "chunk", "tensorsplit", "unbind", "slicechannel"),
        *("expand", "expandas", "broadcastto", "detach", "blockgrad", "alias", "identity", "contiguous", "to"),
    )
)

# Operations that read weights without multiplying.
LOOKS_UP = ("embedding", "embeddingbag")


def activations(kind: str, outputs: Sequence[TensorType]) -> int | None:
    """Return the bytes that an operation allocates for its outputs, 0 for views and in-place ones. None if unknown."""
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
    """Return the multiply-adds of one run.

    Args:
        kind: kind of the operation.
        operands: shapes of its arguments, weights included, in order.
        weights: shapes of the parameters among them.
        output: shape of its first output.
        equation: equation of an ``einsum``.
        layer: whether the operation is a complete layer, whose use of its weights may not follow a formula.

    Returns:
        The number, 0 for operations without any. None if a shape or the formula is unknown.
    """
    formula = _FORMULAS.get(base(kind))
    if formula is None:
        matrices = layer and base(kind) not in LOOKS_UP and any(s is None or len(s) > 1 for s in weights)
        return None if matrices else 0
    shapes = [s for s in operands if s is not None]
    known_weights = [s for s in weights if s is not None]
    if len(shapes) < max(2, len(operands)) or len(known_weights) < len(weights) or output is None:
        return None
    return formula(OperationShapes(shapes, known_weights, output, equation))


class OperationShapes(NamedTuple):
    """Shapes around an operation."""

    operands: Sequence[Shape]
    weights: Sequence[Shape]
    out: Shape
    equation: str


def _times(at: OperationShapes) -> int:
    """Return the work of CNTK's product. It sums over the first axes of the right operand. Their number follows from
    the ranks."""
    a, b = at.operands[:2]
    rank = sum(isinstance(n, int) for n in a) + sum(isinstance(n, int) for n in b)
    summed = (rank - sum(isinstance(n, int) for n in at.out)) // 2
    return size(at.out) * size(tuple(n for n in b if isinstance(n, int))[:summed])


def _recurrent(at: OperationShapes) -> int | None:
    """Return the work of a recurrent layer, or None if its weights are in one vector.

    Each weight matrix multiplies once for each step of each sequence. ONNX stacks the weights of both directions, and
    then has matrices of biases, too.
    """
    rank = max((len(shape) for shape in at.weights), default=0)
    matrices = [size(shape) for shape in at.weights if len(shape) == rank > 1]
    return size(at.operands[0][:-1]) * sum(matrices) if matrices else None


def _attention(at: OperationShapes) -> int:
    query, key, value = at.operands[:3]
    scores = size(query[:-1]) * size(key[-2:-1])
    return scores * size(query[-1:]) + scores * size(value[-1:])


def _attention_layer(at: OperationShapes) -> int:
    """Return the work of a multi-head attention: projections, scores and sums. Operands are (steps, batch, width)."""
    query, key, value = at.operands[:3]
    width = size(query[-1:])
    projections = sum(size(rows) * width for rows in (query, key, value, query))
    return projections + 2 * size(query[:-1]) * size(key[:1]) * width


def _einsum(at: OperationShapes) -> int | None:
    """Return one for each combination of indices of two operands, or None for more, whose order torch chooses."""
    terms = at.equation.replace(" ", "").split("->")[0].split(",")
    if len(terms) != 2 or len(at.operands) != 2 or "." in at.equation:
        return None
    lengths = {i: n for term, shape in zip(terms, at.operands, strict=True) for i, n in zip(term, shape, strict=True)}
    return size(tuple(lengths.values()))


_BY_WORDS: dict[str, Callable[[OperationShapes], int | None]] = {
    # Weights are (out, in), (out, in / groups, *kernel), and (in, out / groups, *kernel).
    "linear fullyconnected": lambda at: size(at.out) * size(at.operands[1][-1:]),
    "conv conv1d conv2d conv3d convolution": lambda at: size(at.out) * size(at.operands[1][1:]),
    "convtranspose convtranspose1d convtranspose2d convtranspose3d deconvolution": (
        lambda at: size(at.operands[0]) * size(at.operands[1][1:])
    ),
    "matmul mm bmm mv dot inner batchdot": lambda at: size(at.out) * size(at.operands[0][-1:]),
    "addmm baddbmm addmv": lambda at: size(at.out) * size(at.operands[1][-1:]),
    "gemm": lambda at: size(at.operands[0]) * size(at.out[-1:]),
    "times": _times,
    "lstm gru rnn rnntanh rnnrelu": _recurrent,
    "lstmcell grucell rnncell rnntanhcell rnnrelucell": _recurrent,
    "bilinear": lambda at: size(at.operands[0][:-1]) * size(at.operands[2]),
    "scaleddotproductattention": _attention,
    "multiheadattentionforward": _attention_layer,
    "multiheadattention": lambda at: None,  # shapes do not show whether the batch comes first
    "einsum": _einsum,
}
_FORMULAS = {word: formula for words, formula in _BY_WORDS.items() for word in words.split()}
