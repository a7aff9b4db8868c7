"""Write the graph's operations as ONNX's: a function for each, which takes the writer and a node and returns a name.

CNTK's rules at the edges of domains hold: 1 / 0 is 0, logarithms have a floor, the first of equal elements counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from feedline.errors import CompatError
from feedline.networks import Node
from feedline.networks.cells import CELLS
from feedline.networks.compile import tensor_of
from feedline.networks.node import is_fixed
from feedline.networks.onnx import onnx_library as library
from feedline.networks.onnx.onnx_recurrences import scan
from feedline.networks.onnx.onnx_writer import Writer
from feedline.networks.ops.convolution import window
from feedline.networks.ops.edges import LOG_OF_SMALLEST, SMALLEST_IN_LOG
from feedline.networks.shapes import axes_of, from_end, slices
from feedline.networks.traverse import element_type

Operator = Callable[[Writer, Node], str]
_FIRST, _END = -(2**31), 2**31 - 1


# ---- operations on elements ---------------------------------------------------------------------------


def _unary(op: str, **attributes: Any) -> Operator:
    return lambda w, node: w(op, w.value(node.inputs[0]), **attributes)


def _pair(w: Writer, node: Node) -> list[str]:
    """Return the values of all inputs, aligned and of one type."""
    return w.promote(*(w.align(child, len(node.shape)) for child in node.inputs))


def _binary(op: str) -> Operator:
    return lambda w, node: w(op, *_pair(w, node))


def _truth(op: str) -> Operator:
    def write(w: Writer, node: Node) -> str:
        a, b = _pair(w, node)
        flag = w("Not", w("Equal", a, b, dtype="bool")) if op == "NotEqual" else w(op, a, b, dtype="bool")
        return w.cast(flag, w.dtype_of(a))

    return write


def _logic(op: str) -> Operator:
    def write(w: Writer, node: Node) -> str:
        a, b = _pair(w, node)
        flags = [w("Greater", x, w.number(0, x), dtype="bool") for x in (a, b)]
        return w.cast(w(op, *flags), w.dtype_of(a))

    return write


def _not(w: Writer, node: Node) -> str:
    x = w.value(node.inputs[0])
    return w.cast(w("Not", w("Greater", x, w.number(0, x), dtype="bool")), w.dtype_of(x))


def _inverse(w: Writer, x: str) -> str:
    zero, one = w.number(0, x), w.number(1, x)
    is_zero = w("Equal", x, zero, dtype="bool")
    safe = w("Where", is_zero, one, x, dtype=w.dtype_of(x))
    return w("Where", is_zero, zero, w("Reciprocal", safe), dtype=w.dtype_of(x))


def _quotient(w: Writer, node: Node) -> str:
    a, b = _pair(w, node)
    zero, one, dtype = w.number(0, b), w.number(1, b), w.dtype_of(b)
    is_zero = w("Equal", b, zero, dtype="bool")
    quotient = w("Div", a, w("Where", is_zero, one, b, dtype=dtype))
    return w("Where", is_zero, zero, quotient, dtype=dtype)


def _power(w: Writer, node: Node) -> str:
    base, exponent = _pair(w, node)
    zero, dtype = w.number(0, base), w.dtype_of(base)
    edge = w("And", w("Equal", base, zero, dtype="bool"), w("Less", exponent, zero, dtype="bool"))
    return w("Where", edge, zero, w("Pow", base, exponent), dtype=dtype)


def _logarithm(w: Writer, node: Node) -> str:
    x = w.value(node.inputs[0])
    small, floor, one = (w.number(n, x) for n in (SMALLEST_IN_LOG, LOG_OF_SMALLEST, 1))
    tiny = w("Less", x, small, dtype="bool")
    return w("Where", tiny, floor, w("Log", w("Where", tiny, one, x, dtype=w.dtype_of(x))), dtype=w.dtype_of(x))


def _log_add_exp(w: Writer, node: Node) -> str:
    a, b = _pair(w, node)
    distance = w("Neg", w("Abs", w("Sub", a, b)))
    return w("Add", w("Max", a, b), w("Log", w("Add", w("Exp", distance), w.number(1, a))))


def _select(w: Writer, node: Node) -> str:
    flag, a, b = (w.align(child, len(node.shape)) for child in node.inputs)
    a, b = w.promote(a, b)
    off = w("Equal", flag, w.number(0, flag), dtype="bool")
    return w("Where", off, b, a, dtype=w.dtype_of(a))


def _clip(w: Writer, node: Node) -> str:
    x, low, high = _pair(w, node)
    return w("Max", w("Min", x, high), low)


def _param_relu(w: Writer, node: Node) -> str:
    slope, x = _pair(w, node)
    return w("Where", w("Less", x, w.number(0, x), dtype="bool"), w("Mul", slope, x), x, dtype=w.dtype_of(x))


def _cast(w: Writer, node: Node) -> str:
    x = w.value(node.inputs[0])
    return w.cast(x, node.attributes["dtype"])


def _plus_half(w: Writer, node: Node) -> str:
    x = w.value(node.inputs[0])
    return w("Floor", w("Add", x, w.number(0.5, x)))


def _root(w: Writer, node: Node) -> str:
    return w("Sqrt", w("Relu", w.value(node.inputs[0])))


def _square(w: Writer, node: Node) -> str:
    x = w.value(node.inputs[0])
    return w("Mul", x, x)


def _dropout(w: Writer, node: Node) -> str:
    x = w.value(node.inputs[0])
    return w("Dropout", x, w.constant(np.array(node.attributes["rate"], "f4"), "rate"))


def _along(op: str) -> Operator:
    """Softmax and its kin, along one axis or over a whole sample."""

    def write(w: Writer, node: Node) -> str:
        child, axis = node.inputs[0], node.attributes.get("axis", -1)
        x, rank = w.value(child), len(node.shape)
        if axis is not None and rank:
            return w(op, x, axis=from_end(axis, rank))
        flat = w.reshape(x, child, [-1 if rank else 1])
        return w.reshape(w(op, flat, axis=-1), child, _lengths(node.shape))

    return write


def _lengths(shape: Sequence[int]) -> list[int]:
    """Return the lengths for a reshape. One may be free."""
    return [n if is_fixed((n,)) else -1 for n in shape]


# ---- shapes -------------------------------------------------------------------------------------------


def _reshape(w: Writer, node: Node) -> str:
    return w.reshape(w.value(node.inputs[0]), node, _lengths(node.shape))


def _transpose(w: Writer, node: Node) -> str:
    leading = w.leading(node)
    return w(
        "Transpose", w.value(node.inputs[0]), perm=[*range(leading), *(leading + i for i in node.attributes["perm"])]
    )


def _splice(w: Writer, node: Node) -> str:
    rank = len(node.shape)
    axis = from_end(node.attributes["axis"], rank)
    parts = []
    widest = max(node.inputs, key=lambda child: w.leading(child))
    for child in node.inputs:
        shape = list(node.shape)
        widened = (1,) * (rank - len(child.shape)) + child.shape
        shape[axis] = widened[axis]
        part = w.align(child, rank)
        if w.leading(child) == 0 and len(child.shape) < rank:
            part = w("Reshape", part, w.constant(list(widened)))
        if w.leading(child) < w.leading(node):
            part = w("Expand", part, w("Concat", w.lengths(widest), w.constant(shape), axis=0))
        elif tuple(shape) != widened:
            part = w("Expand", part, w.constant([1] * w.leading(node) + shape))
        parts.append(part)
    return w("Concat", *w.promote(*parts), axis=axis)


def _slice(w: Writer, node: Node) -> str:
    child = node.inputs[0]
    starts, ends, axes, steps = [], [], [], []
    for axis, part, stride in slices(node.attributes, len(node.shape)):
        size = child.shape[axis]
        axes.append(axis)
        steps.append(stride)
        if not is_fixed((size,)):
            if stride < 0:
                raise CompatError(f"{node.label}: expected a known length for a negative stride, got a free one")
            starts.append(part.start or 0)
            ends.append(_END if part.stop is None else part.stop)
            continue
        rows = range(*part.indices(size))
        rows = rows[::-1][::-stride] if stride < 0 else rows[::stride]
        starts.append(rows[0])
        last = rows[-1] + (1 if stride > 0 else -1)
        ends.append(_FIRST if last < 0 else last)
    return w("Slice", w.value(child), *(w.constant(numbers) for numbers in (starts, ends, axes, steps)))


def _crop(w: Writer, node: Node) -> str:
    get, size = node.attributes, node.shape[-2:]
    if not is_fixed(size):
        raise CompatError(f"{node.label}: expected a known size, got a free one; crop with a slice")
    starts = [get["offset_y"], get["offset_x"]]
    ends = [start + n for start, n in zip(starts, size, strict=True)]
    return w("Slice", w.value(node.inputs[0]), *(w.constant(numbers) for numbers in (starts, ends, [-2, -1])))


def _pad(w: Writer, node: Node) -> str:
    x, pattern, mode = w.value(node.inputs[0]), node.attributes["pattern"], node.attributes["mode"]
    leading = w.leading(node)
    if mode == "symmetric":
        # Mirror images that repeat the cells at the border, which ONNX does not have.
        for axis, (before, after) in enumerate(pattern, -len(pattern)):
            size = node.inputs[0].shape[axis]
            place = np.arange(-before, size + after) % (2 * size)
            x = w("Gather", x, w.constant(np.where(place < size, place, 2 * size - 1 - place).tolist()), axis=axis)
        return x
    amounts = [*[0] * leading, *(a for a, _ in pattern), *[0] * leading, *(b for _, b in pattern)]
    value = [w.number(float(node.attributes.get("value", 0.0)), x)] if mode == "constant" else []
    return w("Pad", x, w.constant(amounts), *value, mode=mode)


def _one_hot(w: Writer, node: Node) -> str:
    x, get = w.value(node.inputs[0]), node.attributes
    dtype = w.dtype_of(x)
    values = w.constant(np.array([0, 1], dtype), "values")
    axis = from_end(get["axis"], len(node.shape))
    # ONNX counts negative numbers from the last class. A number beyond the classes gives zeros.
    is_negative = w("Less", x, w.number(0, x), dtype="bool")
    index = w.cast(w("Where", is_negative, w.number(get["classes"], x), x, dtype=dtype), "int64")
    return w("OneHot", index, w.constant([get["classes"]]), values, dtype=dtype, axis=axis)


def _gather(w: Writer, node: Node) -> str:
    index, reference = node.inputs
    axis = node.attributes.get("axis")
    at = 0 if axis is None else axis % len(reference.shape)
    places = w.cast(w.value(index), "int64")
    x, leading = w.value(reference), w.leading(index)
    if w.leading(reference):
        if leading:
            raise CompatError(
                f"{node.label}: expected an index or a reference that is the same for all samples, got neither"
            )
        return w("Gather", x, places, axis=w.leading(reference) + at)
    gathered = w("Gather", x, places, axis=at)
    if not leading or not at:
        return gathered
    rank = leading + len(node.shape)
    order = [*range(at, at + leading), *range(at), *range(at + leading, rank)]
    return w("Transpose", gathered, perm=order)


def _top_k(w: Writer, node: Node) -> str:
    x, get = w.value(node.inputs[0]), node.attributes
    axis = from_end(get["axis"], len(node.shape))
    values, places = w.several("TopK", [x, w.constant([get["k"]])], ["", "int64"], axis=axis)
    return w.cast(places, w.dtype_of(x)) if get["indices"] else values


def _identity(w: Writer, node: Node) -> str:
    return w("Identity", w.value(node.inputs[0]))


# ---- products -----------------------------------------------------------------------------------------


def _matrices(w: Writer, node: Node, inner: int, transposed: bool) -> str:
    """Multiply along the left operand's last axes and the right operand's first, or its last one if ``turned``."""
    left, right = node.inputs
    outer = left.shape[: len(left.shape) - inner]
    width = math.prod(left.shape[len(left.shape) - inner :])
    columns = math.prod(right.shape[:-1]) if transposed else math.prod(right.shape[inner:])
    x, y = w.value(left), w.value(right)
    rows = math.prod(outer) if is_fixed(outer) else -1
    plain = inner == 1 and len(right.shape) == 2 and not w.leading(right) and w.leading(left) + len(left.shape) > 1
    if not plain:
        x = w.reshape(x, left, [rows, width])
        y = w.reshape(y, right, [columns, width] if transposed else [width, columns])
    if transposed:
        leading = w.leading(right)
        y = w("Transpose", y, perm=[*range(leading), leading + 1, leading])
    if w.leading(left) and w.leading(left) < w.leading(node):
        x = w("Unsqueeze", x, w.constant([0]))
    if w.leading(right) and w.leading(right) < w.leading(node):
        y = w("Unsqueeze", y, w.constant([0]))
    product = w("MatMul", *w.promote(x, y))
    return product if plain else w.reshape(product, node, _lengths(node.shape))


def _times(w: Writer, node: Node) -> str:
    return _matrices(w, node, len(node.inputs[1].shape) - node.attributes.get("output_rank", 1), False)


def _times_transpose(w: Writer, node: Node) -> str:
    return _matrices(w, node, 1, True)


def _cosine(w: Writer, node: Node) -> str:
    rank = len(node.inputs[0].shape)
    a, b = w.promote(*(w.align(child, rank) for child in node.inputs))
    axes = w.constant(list(range(-rank, 0)))
    small = w.number(1e-8, a)
    norms = [w("Max", w("ReduceL2", x, axes, keepdims=0), small) for x in (a, b)]
    return w("Div", w("ReduceSum", w("Mul", a, b), axes, keepdims=0), w("Mul", *norms))


def _weighted_binary(w: Writer, node: Node) -> str:
    """Sum over the minibatch, with weights scaled to a mean of 1."""
    flat = w.constant([-1])
    output, target, weight = w.promote(*(w("Reshape", w.value(child), flat) for child in node.inputs))
    one = w.number(1, output)
    hit = w("Mul", target, output)
    miss = w("Mul", w("Sub", one, target), w("Sub", one, output))
    losses = w("Neg", w("Log", w("Add", hit, miss)))
    total = w("ReduceSum", w("Mul", weight, losses), w.constant([0]), keepdims=0)
    return w("Div", total, w("ReduceMean", weight, w.constant([0]), keepdims=0))


# ---- reductions ---------------------------------------------------------------------------------------

_REDUCTIONS = {
    "sum": "ReduceSum",
    "mean": "ReduceMean",
    "max": "ReduceMax",
    "min": "ReduceMin",
    "prod": "ReduceProd",
    "log_sum_exp": "ReduceLogSumExp",
    "l1": "ReduceL1",
    "l2": "ReduceL2",
    "sum_square": "ReduceSumSquare",
}


def _reduce(op: str) -> Operator:
    def write(w: Writer, node: Node) -> str:
        child, axis = node.inputs[0], node.attributes.get("axis")
        x, dims = w.value(child), axes_of(axis, len(child.shape))
        keep = node.attributes.get("keepdims", axis is not None)
        if not dims:  # ONNX, too, reduces over all axes if none are given
            x, dims, keep = w("Unsqueeze", x, w.constant([-1])), (-1,), False
        return w(op, x, w.constant(list(dims)), keepdims=int(keep))

    return write


def _index(op: str) -> Operator:
    def write(w: Writer, node: Node) -> str:
        child, axis = node.inputs[0], node.attributes.get("axis")
        x = w.value(child)
        if axis is None:
            flat = w.reshape(x, child, [-1 if child.shape else 1])
            places = w(op, flat, dtype="int64", axis=-1, keepdims=0)
        else:
            (dim,) = axes_of(axis, len(child.shape))
            places = w(op, x, dtype="int64", axis=dim, keepdims=1)
        return w.cast(places, w.dtype_of(x))

    return write


def _reduce_batch(w: Writer, node: Node) -> str:
    child, get = node.inputs[0], node.attributes
    axes = axes_of(get.get("axis", ()), len(child.shape))
    reduced = w(_REDUCTIONS[get["how"]], w.value(child), w.constant([0, *axes]), keepdims=1)
    return w("Squeeze", reduced, w.constant([0]))


def _reduce_everything(w: Writer, node: Node) -> str:
    flat = w("Reshape", w.value(node.inputs[0]), w.constant([-1]))
    return w(_REDUCTIONS[node.attributes["how"]], flat, w.constant([0]), keepdims=0)


def _per_channel(op: str) -> Operator:
    def write(w: Writer, node: Node) -> str:
        return w(op, w.value(node.inputs[0]), w.constant(list(range(1 - len(node.shape), 0))), keepdims=1)

    return write


# ---- images -------------------------------------------------------------------------------------------


def _pad_constant(w: Writer, x: str, pads: Sequence[tuple[int, int]], value: float) -> str:
    """Pad, or crop by negative amounts, all axes of a value but the first two."""
    if not any(n for pair in pads for n in pair):
        return x
    amounts = [0, 0, *(a for a, _ in pads), 0, 0, *(b for _, b in pads)]
    return w("Pad", x, w.constant(amounts), w.number(value, x))


def _convolution(w: Writer, node: Node) -> str:
    kernel, data = node.inputs
    get, rank = node.attributes, len(data.shape) - 1
    y = w.value(kernel)
    shape = kernel.shape
    if len(shape) == rank + 1:  # a single filter, without an axis for filters
        y, shape = w("Unsqueeze", y, w.constant([0])), (1, *shape)
    strides, dilation, pad = (tuple(get[key]) for key in ("strides", "dilation", "pad"))
    if len(strides) != rank:  # as many as the kernel has axes, one of which is not for filters
        strides, dilation, pad = (values[:1] * rank for values in (strides, dilation, pad))
    reach = [(k - 1) * d + 1 for k, d in zip(shape[2:], dilation, strict=True)]
    _, pads = window(data.shape[1:], reach, strides, pad)
    x, y = w.promote(w.merge(w.value(data), data, data.shape), y)
    inside = all(n >= 0 for pair in pads for n in pair)
    if not inside:
        x, pads = _pad_constant(w, x, pads, 0.0), [(0, 0)] * rank
    result = w(
        "Conv",
        x,
        y,
        kernel_shape=list(shape[2:]),
        strides=list(strides),
        dilations=list(dilation),
        group=int(get["groups"]),
        pads=[*(a for a, _ in pads), *(b for _, b in pads)],
    )
    return _unmerge(w, result, node, data)


def _is_image(node: Node, data: Node) -> bool:
    """Whether a window slides over all of a node's axes but one, the channels."""
    window = node.attributes.get("window")
    return window is None or len(data.shape) == len(window) + 1


def _unmerge(w: Writer, result: str, node: Node, data: Node) -> str:
    if w.leading(node) == 1 and len(node.shape) == len(data.shape) and _is_image(node, data):
        return result
    return w.reshape(result, node, node.shape, data)


def _convolution_transpose(w: Writer, node: Node) -> str:
    kernel, data = node.inputs
    strides = list(node.attributes["strides"])
    x, y = w.promote(w.merge(w.value(data), data, data.shape), w.value(kernel))
    result = w("ConvTranspose", x, y, kernel_shape=list(kernel.shape[2:]), strides=strides)
    _, pads = window(node.shape[1:], kernel.shape[2:], strides, node.attributes["pad"])
    produced = [(n - 1) * s + k for n, s, k in zip(data.shape[1:], strides, kernel.shape[2:], strict=True)]
    cut = [(-a, n + a - h) for (a, _), n, h in zip(pads, node.shape[1:], produced, strict=True)]
    return _unmerge(w, _pad_constant(w, result, cut, 0.0), node, data)


def _cells(w: Writer, data: Node, rank: int) -> str:
    """Reshape to a leading axis, an axis for all that a window does not slide over, and ``rank`` axes that it does."""
    lead = data.shape[: len(data.shape) - rank]
    return w.merge(w.value(data), data, (math.prod(lead), *data.shape[len(data.shape) - rank :]))


def _pooling(op: str) -> Operator:
    def write(w: Writer, node: Node) -> str:
        get, data = node.attributes, node.inputs[0]
        rank = len(get["window"])
        sizes = data.shape[len(data.shape) - rank :]
        _, pads = window(sizes, get["window"], get["strides"], get["pad"], get.get("ceil", False))
        x = _cells(w, data, rank)
        settings: dict[str, Any] = {"kernel_shape": list(get["window"]), "strides": list(get["strides"])}
        if op == "MaxPool":
            pooled = w(op, _pad_constant(w, x, pads, -math.inf), **settings)
        else:
            pooled = w(op, _pad_constant(w, x, pads, 0.0), **settings)
            if any(n for pair in pads for n in pair) and not get.get("count_pad", False):
                # Only cells of the input count: divide by their share of each window.
                ones = w.constant(np.ones((1, 1, *sizes), w.dtype_of(x)), "cells")
                pooled = w("Div", pooled, w(op, _pad_constant(w, ones, pads, 0.0), **settings))
        return _unmerge(w, pooled, node, data)

    return write


def _unpooling(w: Writer, node: Node) -> str:
    """Put maxima back: a pool returns their places among the cells of the padded minibatch."""
    values, data = node.inputs
    get = node.attributes
    rank = len(get["window"])
    sizes = data.shape[len(data.shape) - rank :]
    _, pads = window(sizes, get["window"], get["strides"], get["pad"])
    wide = _pad_constant(w, _cells(w, data, rank), pads, -math.inf)
    settings: dict[str, Any] = {"kernel_shape": list(get["window"]), "strides": list(get["strides"])}
    _, places = w.several("MaxPool", [wide], ["", "int64"], **settings)
    if w.leading(values) != w.leading(data) or values.shape[:-rank] != data.shape[:-rank]:
        raise CompatError(
            f"{node.label}: expected both operands along the same axes, got {values.label} and {data.label}"
        )
    result = w("MaxUnpool", _cells(w, values, rank), places, w("Shape", wide, dtype="int64"), **settings)
    return _unmerge(w, _pad_constant(w, result, [(-a, -b) for a, b in pads], 0.0), node, data)


def _batch_normalization(w: Writer, node: Node) -> str:
    x, *parameters = node.inputs
    get, rank = node.attributes, len(node.shape)
    data = w.value(x)
    scale, bias, mean, variance = (w.cast(w.value(child), w.dtype_of(data)) for child in parameters[:4])
    if get["spatial"] and w.leading(x) == 1 and rank:
        return w("BatchNormalization", data, scale, bias, mean, variance, epsilon=float(get["epsilon"]))
    deviation = w("Sqrt", w("Add", variance, w.number(get["epsilon"], variance)))
    factor = w("Div", scale, deviation)
    fit = w.constant([-1, *[1] * (rank - 1)] if get["spatial"] and rank else list(node.shape))
    mean, factor, bias = (w("Reshape", value, fit) for value in (mean, factor, bias))
    return w("Add", w("Mul", w("Sub", data, mean), factor), bias)


# ---- sequences ----------------------------------------------------------------------------------------


def _one_step(place: int) -> Operator:
    return lambda w, node: w("Gather", w.value(node.inputs[0]), w.constant(np.array(place, "i8")), axis=0)


def _delay(w: Writer, node: Node) -> str:
    data, initial = node.inputs
    steps, x = node.attributes["steps"], w.value(data)
    count = abs(steps)
    state = w.cast(w.align(initial, len(node.shape)), w.dtype_of(x))
    if w.leading(initial) == 2:
        # Of an initial state with sequences, past values take the last steps, and future values the first ones.
        state = w("Slice", state, *(w.constant([n]) for n in ((-count, _END, 0) if steps > 0 else (0, count, 0))))
        return _shift(w, x, state, steps)
    lengths = w("Slice", w("Shape", x, dtype="int64"), w.constant([1]), w.constant([_END]), w.constant([0]))
    before = w("Expand", state, w("Concat", w.constant([count]), lengths, axis=0))
    return _shift(w, x, before, steps)


def _shift(w: Writer, x: str, before: str, steps: int) -> str:
    if steps > 0:
        extended = w("Concat", before, x, axis=0)
        return w("Slice", extended, w.constant([0]), w.constant([-steps]), w.constant([0]))
    extended = w("Concat", x, before, axis=0)
    return w("Slice", extended, w.constant([-steps]), w.constant([_END]), w.constant([0]))


def _over_steps(op: str) -> Operator:
    return lambda w, node: w(op, w.value(node.inputs[0]), w.constant([0]), keepdims=0)


def _broadcast_as(w: Writer, node: Node) -> str:
    operand, like = node.inputs
    if w.leading(operand) == w.leading(node):
        return w.value(operand)
    return w.expand(operand, node, like)


def _sequence_slice(w: Writer, node: Node) -> str:
    begin, end = node.attributes["begin"], node.attributes["end"] or _END
    return w("Slice", w.value(node.inputs[0]), *(w.constant([n]) for n in (begin, end, 0)))


def _unpack(w: Writer, node: Node) -> str:
    rank = len(node.inputs[0].shape)
    return w("Transpose", w.value(node.inputs[0]), perm=[1, 0, *range(2, rank + 2)])


def _all_steps(w: Writer, node: Node) -> str:
    if node.attributes.get("span") is not None:
        raise CompatError(f"{node.label}: expected all steps, got a span of them, which ONNX cannot express here")
    lengths = w("Gather", w.lengths(node.inputs[0]), w.constant([1, 0]), axis=0)
    dtype = element_type(node)
    return w("ConstantOfShape", lengths, dtype=dtype, value=library.tensor(np.ones(1, dtype), "one"))


def _rows_of_identity(w: Writer, node: Node) -> str:
    return w("EyeLike", w.value(node.inputs[0]))


# ---- recurrences --------------------------------------------------------------------------------------


def _fuse(w: Writer, node: Node) -> str:
    """Write ONNX's LSTM or RNN: gates come first, in the order input, output, forget, candidate."""
    x, kernel, recurrent, bias, *initial = node.inputs
    cells, dtype = node.shape[0], element_type(x)

    def ordered(child: Node) -> Any:
        if child.weights is None:
            raise CompatError(f"{node.label}: expected parameters as weights, got {child.label}")
        array = tensor_of(child.weights).detach().cpu().numpy().astype(dtype)
        gates = np.split(array, array.shape[-1] // cells, -1)
        order = [gates[i] for i in (0, 3, 2, 1)] if node.op == "lstm" else gates
        return np.concatenate(order, -1)

    b = ordered(bias)
    arrays = [ordered(kernel).T[None], ordered(recurrent).T[None], np.concatenate([b, np.zeros_like(b)])[None]]
    weights = [w.constant(a, label) for a, label in zip(arrays, ("W", "R", "B"), strict=True)]
    data = w.cast(w.value(x), dtype)
    batch = w("Shape", data, dtype="int64", start=1, end=2)
    shape = w("Concat", w.constant([1]), batch, w.constant([cells]), axis=0)
    states = []
    for state in initial:
        value = w.cast(w.value(state), dtype)
        states.append(w("Expand", value, shape))
    settings: dict[str, Any] = {"hidden_size": cells}
    if node.attributes.get("backwards", False):
        settings["direction"] = "reverse"
    if node.op == "rnn":
        settings["activations"] = [node.attributes["activation"].capitalize()]
    value = w("LSTM" if node.op == "lstm" else "RNN", data, *weights, "", *states, **settings)
    return w("Squeeze", value, w.constant([1]))


def _pick(w: Writer, node: Node) -> str:
    """Return an output of a recurrence, which becomes a ``Scan`` with all its outputs."""
    loop = node.inputs[0]
    if loop not in w.loops:
        w.loops[loop] = scan(w, loop)
    number: int = node.attributes["index"]
    return w.loops[loop][number]


OPERATORS: dict[str, Operator] = {
    **{
        op: _unary(name)
        for op, name in {
            "negate": "Neg",
            "relu": "Relu",
            "sigmoid": "Sigmoid",
            "tanh": "Tanh",
            "exp": "Exp",
            "abs": "Abs",
            "floor": "Floor",
            "ceil": "Ceil",
            "sign": "Sign",
            "sin": "Sin",
            "cos": "Cos",
            "tan": "Tan",
            "asin": "Asin",
            "acos": "Acos",
            "atan": "Atan",
            "sinh": "Sinh",
            "cosh": "Cosh",
            "asinh": "Asinh",
            "atanh": "Atanh",
            "softplus": "Softplus",
            "softsign": "Softsign",
            "selu": "Selu",
        }.items()
    },
    "reciprocal": lambda w, node: _inverse(w, w.value(node.inputs[0])),
    "log": _logarithm,
    "sqrt": _root,
    "square": _square,
    "round": _plus_half,
    "element_not": _not,
    "stop_gradient": _identity,
    "to_batch": _identity,
    "unpack_batch": _identity,
    "dropout": _dropout,
    "cast": _cast,
    "elu": lambda w, node: w("Elu", w.value(node.inputs[0]), alpha=float(node.attributes.get("alpha", 1.0))),
    "leaky_relu": lambda w, node: w(
        "LeakyRelu", w.value(node.inputs[0]), alpha=float(node.attributes.get("alpha", 0.01))
    ),
    "hard_sigmoid": lambda w, node: w(
        "HardSigmoid",
        w.value(node.inputs[0]),
        alpha=float(node.attributes["alpha"]),
        beta=float(node.attributes["beta"]),
    ),
    "plus": _binary("Add"),
    "minus": _binary("Sub"),
    "element_times": _binary("Mul"),
    "element_max": _binary("Max"),
    "element_min": _binary("Min"),
    "element_divide": _quotient,
    "pow": _power,
    "log_add_exp": _log_add_exp,
    "equal": _truth("Equal"),
    "not_equal": _truth("NotEqual"),
    "less": _truth("Less"),
    "less_equal": _truth("LessOrEqual"),
    "greater": _truth("Greater"),
    "greater_equal": _truth("GreaterOrEqual"),
    "element_and": _logic("And"),
    "element_or": _logic("Or"),
    "element_xor": _logic("Xor"),
    "element_select": _select,
    "clip": _clip,
    "param_relu": _param_relu,
    "softmax": _along("Softmax"),
    "log_softmax": _along("LogSoftmax"),
    "hardmax": _along("Hardmax"),
    "reshape": _reshape,
    "transpose": _transpose,
    "splice": _splice,
    "slice": _slice,
    "crop": _crop,
    "pad": _pad,
    "one_hot": _one_hot,
    "gather": _gather,
    "top_k": _top_k,
    "eye_rows": _rows_of_identity,
    "times": _times,
    "times_transpose": _times_transpose,
    "cosine_distance": _cosine,
    "weighted_binary_cross_entropy": _weighted_binary,
    **{f"reduce_{how}": _reduce(op) for how, op in _REDUCTIONS.items()},
    "argmax": _index("ArgMax"),
    "argmin": _index("ArgMin"),
    "reduce_batch": _reduce_batch,
    "reduce_everything": _reduce_everything,
    "global_max_pooling": _per_channel("ReduceMax"),
    "global_average_pooling": _per_channel("ReduceMean"),
    "convolution": _convolution,
    "convolution_transpose": _convolution_transpose,
    "max_pooling": _pooling("MaxPool"),
    "average_pooling": _pooling("AveragePool"),
    "max_unpooling": _unpooling,
    "batch_normalization": _batch_normalization,
    "sequence_first": _one_step(0),
    "sequence_last": _one_step(-1),
    "sequence_reduce_sum": _over_steps("ReduceSum"),
    "sequence_reduce_mean": _over_steps("ReduceMean"),
    "sequence_reduce_max": _over_steps("ReduceMax"),
    "sequence_softmax": lambda w, node: w("Softmax", w.value(node.inputs[0]), axis=0),
    "sequence_broadcast_as": _broadcast_as,
    "sequence_slice": _sequence_slice,
    "sequence_unpacked": _unpack,
    "sequence_mask": _all_steps,
    "delay": _delay,
    **dict.fromkeys(CELLS, _fuse),
    "pick": _pick,
}
