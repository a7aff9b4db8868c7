"""Translate ONNX's operations into the graph's: the counterpart of `operators`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from feedline.cntk._nodes import constant_node
from feedline.cntk._onnx.read_recurrences import TRANSLATIONS as RECURRENT
from feedline.cntk._onnx.reader import Call, Translation
from feedline.cntk._onnx.values import (
    BATCHES,
    DIRECTIONS,
    EVERYTHING,
    MERGED,
    SINGLE,
    STEPS,
    Joined,
    Length,
    Moved,
    Value,
    is_lengths,
    lengths_of,
    reshape,
    same_layout,
    size_of,
    static_axis,
)
from feedline.networks import Node, apply
from feedline.networks.deferred import later
from feedline.networks.node import FREE
from feedline.networks.onnx import onnx_library as library
from feedline.networks.ops.convolution import window
from feedline.networks.traverse import element_type

_END = 2**31 - 1


def _apply(call: Call, op: str, **attributes: Any) -> Value:
    """Apply an operation that leaves the layout of the first input as it is."""
    value = call.value()
    return Value(apply(op, [value.node], attributes), value.layout)


# ---- operations on elements ---------------------------------------------------------------------------


def _unary(op: str) -> Translation:
    return lambda call: _apply(call, op)


def _combine(call: Call, op: str, values: Sequence[Value]) -> Value:
    nodes, layout = same_layout(values, call.label)
    return Value(apply(op, nodes), layout)


def _binary(op: str) -> Translation:
    """Translate an operation of two operands, or apply it to more of them one after another."""

    def translate(call: Call) -> Any:
        if all(isinstance(call.raw(i), np.ndarray) for i in range(len(call.inputs))) and op in _FOLDED:
            return _FOLDED[op](*(call.array(i) for i in range(len(call.inputs))))
        total = call.value(0)
        for i in range(1, len(call.inputs)):
            total = _combine(call, op, [total, call.value(i)])
        return total

    return translate


# Arithmetic of lengths.
_FOLDED: dict[str, Callable[..., Any]] = {
    "plus": np.add,
    "minus": np.subtract,
    "element_times": np.multiply,
    "element_divide": lambda a, b: a // b if a.dtype.kind in "iu" else a / b,
}


def _mean(call: Call) -> Value:
    total = _binary("plus")(call)
    return Value(apply("element_times", [total.node, constant_node(1 / len(call.inputs))]), total.layout)


def _clip(call: Call) -> Value:
    bounds = [call.attributes.get("min"), call.attributes.get("max")]
    values = [call.value(), Value(constant_node(-math.inf)), Value(constant_node(math.inf))]
    for i, bound in enumerate(bounds, 1):
        if bound is not None:
            values[i] = Value(constant_node(float(bound)))
        elif call.has(i):
            values[i] = call.value(i)
    return _combine(call, "clip", values)


def _where(call: Call) -> Value:
    return _combine(call, "element_select", call.values())


def _prelu(call: Call) -> Value:
    return _combine(call, "param_relu", [call.value(1), call.value(0)])


def _selu(call: Call) -> Value:
    value = call.value()
    alpha = float(call.attributes.get("alpha", 1.6732632423543772))
    gamma = float(call.attributes.get("gamma", 1.0507009873554805))
    below = apply("elu", [value.node], {"alpha": alpha})
    return Value(apply("element_times", [constant_node(gamma), below]), value.layout)


def _cast(call: Call) -> Any:
    raw, dtype = call.raw(0), library.NAMES.get(call.attributes["to"], "")
    if isinstance(raw, np.ndarray):
        return raw if is_lengths(raw) else raw.astype(dtype)
    if dtype in ("float16", "float32", "float64"):
        value = call.value()
        if element_type(value.node) == dtype:
            return value
        return Value(apply("cast", [value.node], {"dtype": dtype}), value.layout)
    return raw  # the graph has no integers or booleans


def _identity(call: Call) -> Any:
    return call.raw(0)


def _dropout(call: Call) -> list[Value]:
    rate = float(call.array(1)) if call.has(1) else float(call.attributes.get("ratio", 0.5))
    return [_apply(call, "dropout", rate=rate)]


def _set(op: str, **defaults: float) -> Translation:
    return lambda call: _apply(call, op, **{key: float(call.attributes.get(key, n)) for key, n in defaults.items()})


def _along(op: str) -> Translation:
    def translate(call: Call) -> Value:
        value = call.value()
        axis = int(call.attributes.get("axis", -1 if call.reader.opset >= 13 else 1))
        place = axis % value.rank
        if call.reader.opset < 13 and place != value.rank - 1:
            raise call.refuse(f"expected the last axis in a file of opset {call.reader.opset}, got {axis}")
        if place < len(value.layout) and value.layout[place] == STEPS and op == "softmax":
            return Value(apply("sequence_softmax", [value.node]), value.layout)
        number = static_axis(value, axis, call.label)
        if op == "hardmax":
            if len(value.node.shape) > 1:
                raise call.refuse(f"expected samples that are vectors, got shape {value.node.shape}")
            return Value(apply(op, [value.node], {"axis": None}), value.layout)
        return Value(apply(op, [value.node], {"axis": number}), value.layout)

    return translate


# ---- shapes -------------------------------------------------------------------------------------------


def _constant(call: Call) -> Any:
    for key, value in call.attributes.items():
        if key == "value":
            return value if value.dtype.kind != "f" else Value(constant_node(value))
        if key in ("value_int", "value_ints"):
            return np.asarray(value, np.int64)
        if key in ("value_float", "value_floats"):
            return Value(constant_node(np.asarray(value, np.float32)))
    raise call.refuse(f"expected a dense tensor, got {sorted(call.attributes)}")


def _shape(call: Call) -> Any:
    raw = call.raw(0)
    lengths = lengths_of(call.value()) if not isinstance(raw, np.ndarray) else np.array(raw.shape, np.int64)
    part = lengths[slice(call.attributes.get("start", 0), call.attributes.get("end"))]
    return part if any(isinstance(n, Length) for n in part) else part.astype(np.int64)


def _reshape(call: Call) -> Any:
    raw, shape = call.raw(0), call.array(1) if call.has(1) else np.asarray(call.attributes["shape"])
    if isinstance(raw, np.ndarray):
        return raw.reshape([int(n) for n in shape])
    value = call.value()
    target: list[Any] = shape.tolist()
    if value.layout == (MERGED,):
        return _unmerge(call, value, target)
    if target == [-1] and any(kind in (BATCHES, STEPS) for kind in value.layout):
        return Value(value.node, (EVERYTHING,))
    count = len(value.layout)
    for i in range(min(count, len(target))):
        if target[i] == 0 or (isinstance(target[i], Length) and target[i].kind == value.layout[i]):
            continue
        remaining = [n for n in target[i + 1 :] if not isinstance(n, Length)]
        static = [n if n != 0 else -7 for n in remaining]
        if target[i] == -1 and -7 not in static and size_of(remaining) == size_of(value.node.shape):
            layout = value.layout[:i] + ((value.layout[i],) if i == count - 1 else (MERGED,))
            return Value(reshape(value.node, remaining), layout)
        if value.layout[i] == SINGLE and i == 0 and size_of(target) == size_of(value.node.shape):
            return Value(reshape(value.node, target))
        raise call.refuse(f"expected a reshape of samples, got {target} of axes {value.layout} and {value.node.shape}")
    static = target[count:]
    if count and len(target) < count:
        raise call.refuse(f"expected a reshape of samples, got {target} of axes {value.layout}")
    sizes = value.node.shape
    static = [sizes[i] if n == 0 else n for i, n in enumerate(static)]
    if count == 0 and target[:1] == [-1] and size_of(target[1:]) == size_of(sizes):
        return Value(reshape(value.node, target[1:]), (SINGLE,))
    if FREE in sizes and -1 not in static:
        raise call.refuse(f"expected one inferred axis for a free dimension, got {target}")
    return Value(reshape(value.node, static), value.layout)


def _unmerge(call: Call, value: Value, target: Sequence[Any]) -> Value:
    if len(target) >= 2 and all(isinstance(n, Length) for n in target[:2]):
        return Value(reshape(value.node, target[2:]), (STEPS, BATCHES))
    if target[0] in (-1, 0):
        return Value(reshape(value.node, target[1:]), (MERGED,))
    raise call.refuse(f"expected steps and the batch as the first axes, got {list(target)}")


def _flatten(call: Call) -> Value:
    value, axis = call.value(), int(call.attributes.get("axis", 1))
    if axis % (value.rank + 1) != len(value.layout) or len(value.layout) != 1:
        raise call.refuse(f"expected all axes but the batch to be flattened, got axis {axis} of axes {value.layout}")
    return Value(reshape(value.node, (-1,) if value.node.shape else (1,)), value.layout)


def _squeeze(call: Call) -> Any:
    raw, axes = call.raw(0), call.numbers(1, "axes")
    if isinstance(raw, np.ndarray):
        return raw.squeeze(None if axes is None else tuple(axes))
    value = call.value()
    shape, layout = list(value.node.shape), list(value.layout)
    lengths: list[Any] = [*layout, *shape]
    places = [i for i, n in enumerate(lengths) if n in (1, SINGLE)] if axes is None else [a % value.rank for a in axes]
    for place in sorted(places, reverse=True):
        if place < len(layout):
            if layout[place] not in (SINGLE, 1):
                raise call.refuse(f"expected an axis of length 1, got {layout[place]}")
            del layout[place]
        else:
            del shape[place - len(value.layout)]
    return Value(reshape(value.node, shape), tuple(layout))


def _unsqueeze(call: Call) -> Any:
    raw, axes = call.raw(0), call.numbers(1, "axes") or []
    if isinstance(raw, np.ndarray):
        for axis in sorted(axes):
            raw = np.expand_dims(raw, axis)
        return raw
    value = call.value()
    rank = value.rank + len(axes)
    shape, layout = list(value.node.shape), list(value.layout)
    for place in sorted(a % rank for a in axes):
        if place < len(layout):
            layout.insert(place, SINGLE)
        else:
            shape.insert(place - len(layout), 1)
    return Value(reshape(value.node, shape), tuple(layout))


def _transpose(call: Call) -> Any:
    raw = call.raw(0)
    if isinstance(raw, np.ndarray):
        return raw.transpose(call.attributes.get("perm"))
    value = call.value()
    perm = list(call.attributes.get("perm", range(value.rank)[::-1]))
    count = len(value.layout)
    if perm[:count] == list(range(count)):
        order = tuple(i - count for i in perm[count:])
        return Value(apply("transpose", [value.node], {"perm": order}), value.layout)
    if (
        value.layout == (STEPS, DIRECTIONS, BATCHES)
        and perm[:3] == [0, 2, 1]
        and perm[3:] == list(range(3, value.rank))
    ):
        return Value(value.node, (STEPS, BATCHES))
    if value.layout == (STEPS, BATCHES) and perm == [1, 0, *range(2, value.rank)]:
        return Value(apply("sequence_unpacked", [value.node], {"padding": 0.0}), (BATCHES,))
    raise call.refuse(f"expected a transposition of axes of samples, got {perm} of axes {value.layout}")


def _expand(call: Call) -> Any:
    value, target = call.value(), call.array(1).tolist()
    rank = max(value.rank, len(target))
    front: list[Any] = [SINGLE] * (rank - value.rank) + list(value.layout) if value.layout else []
    target = [1] * (rank - len(target)) + target
    dynamic = max([i + 1 for i, n in enumerate(target) if isinstance(n, Length)], default=0)
    count = max(len(front), dynamic)
    node = value.node
    layout: list[str | int] = []
    sizes = list(node.shape)
    if len(front) < count:
        extra = max(0, len(sizes) - (rank - count))
        if any(n != 1 for n in sizes[:extra]):
            raise call.refuse(f"expected axes of length 1 to repeat, got {sizes}")
        sizes, front = sizes[extra:], [SINGLE] * count
        node = reshape(node, sizes)
    for kind, length in zip(front, target[:count], strict=True):
        if isinstance(length, Length):
            if length.kind == STEPS and kind == SINGLE and STEPS not in layout:
                node = apply("sequence_broadcast_as", [node, length.node])
            layout.append(length.kind)
        else:
            layout.append(kind if length == 1 else int(length))
    static = [int(n) for n in target[count:]]
    shape = [1] * (len(static) - len(node.shape)) + list(node.shape)
    if any(n not in (m, 1) for n, m in zip(static, shape, strict=True)):
        node = apply("plus", [node, constant_node(np.zeros(static, element_type(node)))])
    elif len(shape) != len(node.shape):
        node = reshape(node, shape)
    return Value(node, tuple(layout))


def _fill(call: Call) -> Any:
    lengths = call.array(0)
    number = np.asarray(call.attributes.get("value", np.zeros(1, np.float32))).reshape(())
    if not is_lengths(lengths):
        return np.full([int(n) for n in lengths], number)
    kinds = [n.kind if isinstance(n, Length) else n for n in lengths]
    like = next(n.node for n in lengths if isinstance(n, Length))
    if kinds == [BATCHES, STEPS] and float(number) == 1:
        return Value(apply("sequence_mask", [like]), (BATCHES,))
    dynamic = [k for k in kinds if isinstance(k, str)]
    if kinds[: len(dynamic)] != dynamic:
        raise call.refuse(f"expected dynamic axes first, got {kinds}")
    static = tuple(int(n) for n in kinds[len(dynamic) :])
    node = constant_node(np.full(static, number, "float32" if number.dtype.kind != "f" else number.dtype))
    if STEPS in dynamic:
        node = apply("sequence_broadcast_as", [node, like])
    return Value(node, tuple(dynamic))


def _concatenate(call: Call) -> Any:
    axis = int(call.attributes["axis"])
    raw = [call.raw(i) for i in range(len(call.inputs))]
    if all(isinstance(item, np.ndarray) for item in raw):
        return np.concatenate(raw, axis)
    values = call.values()
    rank = max(value.rank for value in values)
    place = axis % rank
    if len(values) == 2 and place == 0 and any(v.layout[:1] == (STEPS,) for v in values):
        return _join(call, values)
    if any(place < len(value.layout) for value in values):
        raise call.refuse("expected a concatenation of samples, got one of the batch or steps")
    nodes, layout = same_layout(values, call.label)
    return Value(apply("splice", nodes, {"axis": place - rank}), layout)


def _join(call: Call, values: Sequence[Value]) -> Joined:
    """Join steps with the initial states that a delay puts before or after them."""
    first, second = values
    before = first.layout[:1] != (STEPS,)
    extra, steps = (first, second) if before else (second, first)
    count = extra.layout[0] if extra.layout else extra.node.shape[0]
    if not isinstance(count, int) and count != SINGLE:
        raise call.refuse("expected a known number of further steps, got one that depends on the data")
    node = extra.node
    if not extra.layout:
        if count != 1:
            raise call.refuse("expected the same further steps for all sequences, got others")
        node = reshape(node, node.shape[1:])
    return Joined(steps, Value(node, extra.layout[1:]), 1 if count == SINGLE else int(count), before)


def _split(call: Call) -> Any:
    value = call.value()
    axis = int(call.attributes.get("axis", 0))
    number = static_axis(value, axis, call.label)
    size, parts = value.node.shape[number], call.numbers(1, "split")
    if parts is None:
        count = len(call.outputs)
        length = -(-size // count)
        parts = [length] * (count - 1) + [size - length * (count - 1)]
    ends = np.cumsum(parts).tolist()
    return [
        Value(_slice_node(value.node, number, end - part, end, 1), value.layout)
        for part, end in zip(parts, ends, strict=True)
    ]


def _slice_node(node: Node, axis: int, begin: int, end: int, step: int) -> Node:
    return apply("slice", [node], {"axis": (axis,), "begin": (begin,), "end": (end,), "strides": (step,)})


def _slice(call: Call) -> Any:
    raw = call.raw(0)
    starts, ends = call.numbers(1, "starts"), call.numbers(2, "ends")
    axes, steps = call.numbers(3, "axes"), call.numbers(4, "steps")
    if starts is None or ends is None:
        raise call.refuse("expected starts and ends, got at most one of them")
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if isinstance(raw, np.ndarray):
        index = [slice(None)] * raw.ndim
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
            index[axis] = slice(start, end if end > -_END else None, step)
        part = raw[tuple(index)]
        return part if not is_lengths(part) or any(isinstance(n, Length) for n in part) else part.astype(np.int64)
    if isinstance(raw, Joined):
        return _delay(call, raw, starts, ends, axes)
    value = call.value()
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        place = axis % value.rank
        if place < len(value.layout) and value.layout[place] == STEPS and step == 1:
            stop = 0 if end >= _END else end
            node = apply("sequence_slice", [value.node], {"begin": start, "end": stop})
            value = Value(node, value.layout)
            continue
        if place < len(value.layout) and isinstance(value.layout[place], int):
            continue  # of equal numbers
        number = static_axis(value, axis, call.label)
        size = value.node.shape[number]
        if size == FREE:
            value = Value(_slice_node(value.node, number, start, 0 if end >= _END else end, step), value.layout)
            continue
        rows = range(size)[slice(start, end, step)]
        if not rows:
            raise call.refuse(f"expected a non-empty slice, got {start} to {end} of {size}")
        if step > 0:
            node = _slice_node(value.node, number, rows[0], 0 if rows[-1] + 1 >= size else rows[-1] + 1, step)
        else:
            # A negative step goes through the range from its end.
            node = _slice_node(value.node, number, rows[-1], 0 if rows[0] + 1 >= size else rows[0] + 1, step)
        value = Value(node, value.layout)
    return value


def _delay(call: Call, joined: Joined, starts: list[int], ends: list[int], axes: list[int]) -> Value:
    if axes == [0] and joined.before and starts == [0] and ends == [-joined.further]:
        steps = joined.further
    elif axes == [0] and not joined.before and starts == [joined.further] and ends[0] >= _END:
        steps = -joined.further
    else:
        raise call.refuse(f"expected a slice that keeps the number of steps, got {starts} to {ends}")
    node = apply("delay", [joined.steps.node, joined.extra.node], {"steps": steps})
    return Value(node, joined.steps.layout)


def _pad(call: Call) -> Value:
    value, mode = call.value(), call.attributes.get("mode", "constant")
    amounts = call.numbers(1, "pads") or []
    number = float(call.array(2)) if call.has(2) else float(call.attributes.get("value", 0.0))
    rank, count = value.rank, len(value.layout)
    if call.has(3):
        axes = [a % rank for a in call.numbers(3, "axes") or []]
        expanded = [0] * (2 * rank)
        for i, axis in enumerate(axes):
            expanded[axis], expanded[rank + axis] = amounts[i], amounts[len(axes) + i]
        amounts = expanded
    pattern = list(zip(amounts[:rank], amounts[rank:], strict=True))
    if any(n for pair in pattern[:count] for n in pair):
        raise call.refuse("expected padding of samples, got padding of the batch or steps")
    if mode not in ("constant", "reflect"):
        raise call.refuse(f"expected padding by a constant or by reflection, got {mode}")
    return Value(_pad_node(value.node, pattern[count:], number, mode), value.layout)


def _pad_node(node: Node, pattern: Sequence[tuple[int, int]], number: float, mode: str = "constant") -> Node:
    """Pad, and crop where amounts are negative."""
    for i, (before, after) in enumerate(pattern, -len(pattern)):
        if before < 0 or after < 0:
            node = _slice_node(node, i, max(0, -before), min(0, after), 1)
    grown = tuple((max(0, a), max(0, b)) for a, b in pattern)
    if not any(n for pair in grown for n in pair):
        return node
    grown = ((0, 0),) * (len(node.shape) - len(grown)) + grown
    return apply("pad", [node], {"pattern": grown, "mode": mode, "value": number})


def _gather(call: Call) -> Any:
    raw, axis = call.raw(0), int(call.attributes.get("axis", 0))
    if isinstance(raw, np.ndarray):
        part = raw.take(call.array(1).astype(np.int64), axis)
        return np.asarray(part, object) if is_lengths(raw) else part
    value, index = call.value(), call.raw(1)
    place = axis % value.rank
    if place < len(value.layout) and value.layout[place] == STEPS and isinstance(index, np.ndarray) and index.ndim == 0:
        op = {0: "sequence_first", -1: "sequence_last"}.get(int(index))
        if op is None:
            raise call.refuse(f"expected the first or the last step, got step {int(index)}")
        return Value(apply(op, [value.node]), value.layout[1:])
    number = static_axis(value, axis, call.label)
    indices = call.value(1)
    at = number + len(value.node.shape)
    node = apply("gather", [indices.node, value.node], {"axis": None if at == 0 else number})
    if indices.layout and value.layout:
        raise call.refuse("expected an index or a reference that is the same for all samples, got neither")
    if indices.layout and at:
        # ONNX replaces the gathered axis by the axes of the index. Here dynamic axes stay in front.
        return Moved(node, indices.layout, at)
    return Value(node, value.layout or indices.layout)


def _turned(call: Call) -> Any:
    moved = call.raw(0)
    if isinstance(moved, Moved):
        count, rank, at = len(moved.layout), len(moved.layout) + len(moved.node.shape), moved.at
        perm = list(call.attributes["perm"])
        if perm == [*range(at, at + count), *range(at), *range(at + count, rank)]:
            return Value(moved.node, moved.layout)
        raise call.refuse(f"expected a transposition that moves the batch to the front, got {perm}")
    return _transpose(call)


def _one_hot(call: Call) -> Value:
    value, depth = call.value(), int(np.asarray(call.array(1)).reshape(()))
    off, on = (float(n) for n in call.array(2))
    if (off, on) != (0.0, 1.0):
        raise call.refuse(f"expected the values 0 and 1, got {off} and {on}")
    axis = int(call.attributes.get("axis", -1))
    rank = value.rank + 1
    number = axis % rank - rank
    if axis % rank < len(value.layout):
        raise call.refuse("expected classes along an axis of samples, got the batch or steps")
    # ONNX counts negative numbers from the last class.
    is_negative = apply("less", [value.node, constant_node(0.0)])
    from_start = apply("plus", [value.node, constant_node(float(depth))])
    index = apply("element_select", [is_negative, from_start, value.node])
    return Value(apply("one_hot", [index], {"classes": depth, "axis": number, "sparse": False}), value.layout)


def _top_k(call: Call) -> list[Value]:
    value, count = call.value(), call.numbers(1, "k") or [1]
    if not call.attributes.get("largest", 1):
        raise call.refuse("expected the largest elements, got the smallest")
    axis = static_axis(value, int(call.attributes.get("axis", -1)), call.label)
    settings = {"k": count[0], "axis": axis}
    return [Value(apply("top_k", [value.node], {**settings, "indices": part}), value.layout) for part in (False, True)]


def _identity_rows(call: Call) -> Value:
    return _apply(call, "eye_rows", sparse=False)


# ---- products -----------------------------------------------------------------------------------------


def _matmul(call: Call) -> Value:
    return _product(call, call.value(0), call.value(1))


def _product(call: Call, left: Value, right: Value) -> Value:
    if not right.layout:
        if len(right.node.shape) > 2:
            raise call.refuse(f"expected a matrix as the right operand, got {right.node.shape}")
        if not left.node.shape:
            raise call.refuse("expected samples that are vectors or matrices, got numbers")
        node = apply("times", [left.node, right.node], {"output_rank": len(right.node.shape) - 1, "map_rank": None})
        return Value(node, left.layout)
    if len(right.node.shape) != 2 or len(left.node.shape) not in (1, 2):
        raise call.refuse(f"expected matrices, got {left.node.shape} and {right.node.shape}")
    (first, second), layout = same_layout([left, right], call.label)
    return Value(apply("times", [first, second], {"output_rank": 1, "map_rank": None}), layout)


def _gemm(call: Call) -> Value:
    get = call.attributes
    if get.get("transA", 0):
        raise call.refuse("expected a left operand that is not transposed, got transA")
    left, right = call.value(0), call.value(1)
    if get.get("transB", 0):
        right = Value(apply("transpose", [right.node], {"perm": (1, 0)}), right.layout)
    product = _product(call, left, right)
    if get.get("alpha", 1.0) != 1.0:
        product = Value(apply("element_times", [product.node, constant_node(float(get["alpha"]))]), product.layout)
    if not call.has(2):
        return product
    bias = call.value(2)
    if get.get("beta", 1.0) != 1.0:
        bias = Value(apply("element_times", [bias.node, constant_node(float(get["beta"]))]), bias.layout)
    return _combine(call, "plus", [product, bias])


# ---- reductions ---------------------------------------------------------------------------------------


def _reduce(how: str) -> Translation:
    def translate(call: Call) -> Value:
        value, axes = call.value(), call.numbers(1, "axes")
        keep = bool(call.attributes.get("keepdims", 1))
        if axes is None:
            axes = [] if call.attributes.get("noop_with_empty_axes", 0) else list(range(value.rank))
        places = sorted(a % value.rank for a in axes)
        if value.layout == (EVERYTHING,):
            return Value(apply("reduce_everything", [value.node], {"how": how}))
        count = len(value.layout)
        front, static = [p for p in places if p < count], [p - value.rank for p in places if p >= count]
        kinds = [value.layout[p] for p in front]
        if kinds == [BATCHES] and value.layout == (BATCHES,):
            node = apply("reduce_batch", [value.node], {"how": how, "axis": tuple(static)} if static else {"how": how})
            layout: tuple[str | int, ...] = (SINGLE,) if keep else ()
            if static and not keep:
                node = _without(node, static)
            return Value(node, layout)
        if places == list(range(value.rank)) and count:
            return Value(apply("reduce_everything", [value.node], {"how": how}))
        node = value.node
        if static:
            node = apply(f"reduce_{how}", [node], {"axis": tuple(static), "keepdims": keep})
        if not front:
            return Value(node, value.layout)
        if kinds != [STEPS] or how not in ("sum", "mean", "max"):
            raise call.refuse(f"expected a reduction of samples, or a sum, mean or maximum of steps, got {kinds}")
        node = apply(f"sequence_reduce_{how}", [node])
        return Value(node, (SINGLE, *value.layout[1:]) if keep else value.layout[1:])

    return translate


def _without(node: Node, axes: Sequence[int]) -> Node:
    removed = {a % len(node.shape) for a in axes}
    return reshape(node, [n for i, n in enumerate(node.shape) if i not in removed])


def _index(op: str) -> Translation:
    def translate(call: Call) -> Value:
        value = call.value()
        if call.attributes.get("select_last_index", 0):
            raise call.refuse("expected the first of equal elements, got the last")
        axis = static_axis(value, int(call.attributes.get("axis", 0)), call.label)
        node = apply(op, [value.node], {"axis": axis})
        return Value(node if call.attributes.get("keepdims", 1) else _without(node, [axis]), value.layout)

    return translate


# ---- images -------------------------------------------------------------------------------------------


def _rows(call: Call, value: Value) -> tuple[Node, tuple[str | int, ...]]:
    """Return a node whose samples are images, and the layout of its only leading axis."""
    if len(value.layout) == 1:
        return value.node, value.layout
    if not value.layout and value.node.shape[:1] == (1,):
        return reshape(value.node, value.node.shape[1:]), (SINGLE,)
    raise call.refuse(f"expected one axis before the axes of an image, got {value.layout}")


def _pads(call: Call, sizes: Sequence[int], reach: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    get, rank = call.attributes, len(sizes)
    kind = get.get("auto_pad", "NOTSET")
    if kind in ("SAME_UPPER", "SAME_LOWER"):
        totals = [max(0, (-(-n // s) - 1) * s + k - n) for n, k, s in zip(sizes, reach, strides, strict=True)]
        halves = [(t // 2, t - t // 2) for t in totals]
        return halves if kind == "SAME_UPPER" else [(b, a) for a, b in halves]
    flat = list(get.get("pads", [0] * (2 * rank))) if kind == "NOTSET" else [0] * (2 * rank)
    return list(zip(flat[:rank], flat[rank:], strict=True))


def _conv(call: Call) -> Value:
    kernel = call.value(1).node
    node, layout = _rows(call, call.value())
    get, rank = call.attributes, len(kernel.shape) - 2
    strides, dilation = (tuple(get.get(key, [1] * rank)) for key in ("strides", "dilations"))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel.shape[2:], dilation, strict=True)]
    sizes = node.shape[1:]
    pads = _pads(call, sizes, reach, strides)
    node, pad = _automatic(node, pads, reach, strides, 0.0)
    settings = {"strides": strides, "pad": pad, "dilation": dilation, "groups": int(get.get("group", 1))}
    return _add_bias(call, apply("convolution", [kernel, node], settings), layout)


def _automatic(
    node: Node, pads: Sequence[tuple[int, int]], reach: Sequence[int], strides: Sequence[int], value: float
) -> tuple[Node, tuple[bool, ...]]:
    """Return a node, padded if automatic padding differs from ``pads``, and whether to pad each axis automatically."""
    rank = len(pads)
    if not any(n for pair in pads for n in pair):
        return node, (False,) * rank
    sizes = node.shape[len(node.shape) - rank :]
    pad = tuple(pair != (0, 0) for pair in pads)
    if window(sizes, reach, strides, pad)[1] == list(pads):
        return node, pad
    return _pad_node(node, pads, value), (False,) * rank


def _add_bias(call: Call, node: Node, layout: tuple[str | int, ...]) -> Value:
    if call.has(2):
        bias = call.value(2).node
        node = apply("plus", [node, reshape(bias, (*bias.shape, *[1] * (len(node.shape) - 1)))])
    return Value(node, layout)


def _conv_transpose(call: Call) -> Value:
    kernel = call.value(1).node
    node, layout = _rows(call, call.value())
    get, rank = call.attributes, len(kernel.shape) - 2
    if get.get("group", 1) != 1 or set(get.get("dilations", [1])) != {1} or "output_shape" in get:
        raise call.refuse("expected one group, no dilation and no output_shape, got other settings")
    if get.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise call.refuse(f"expected explicit pads, got {get['auto_pad']}")
    strides, output_padding = (tuple(get.get(key, [n] * rank)) for key, n in (("strides", 1), ("output_padding", 0)))
    pads = _pads(call, node.shape[1:], kernel.shape[2:], strides)
    node = apply("convolution_transpose", [kernel, node], {"strides": strides, "pad": (False,) * rank, "shape": None})
    cut = [(-a, m - b) for (a, b), m in zip(pads, output_padding, strict=True)]
    return _add_bias(call, _pad_node(node, cut, 0.0), layout)


def _pool(op: str) -> Translation:
    def translate(call: Call) -> Any:
        node, layout = _rows(call, call.value())
        get = call.attributes
        size = tuple(get["kernel_shape"])
        rank = len(size)
        strides = tuple(get.get("strides", [1] * rank))
        if set(get.get("dilations", [1])) != {1}:
            raise call.refuse("expected windows without dilation, got a dilation")
        if any(call.outputs[1:]):
            return _Places(node, layout, size, strides)
        pads = _pads(call, node.shape[len(node.shape) - rank :], size, strides)
        settings: dict[str, Any] = {"window": size, "strides": strides}
        if get.get("ceil_mode", 0):
            if any(n for pair in pads for n in pair):
                raise call.refuse("expected no padding with ceil_mode, got some")
            settings["ceil"] = True
        counts = bool(get.get("count_include_pad", 0))
        maximum = op == "max_pooling"
        if not maximum and not counts and any(n for pair in pads for n in pair):
            sizes = node.shape[len(node.shape) - rank :]
            if window(sizes, size, strides, (True,) * rank)[1] != list(pads):
                return Value(_inner_mean(node, pads, settings), layout)
        node, pad = _automatic(node, pads, size, strides, -math.inf if maximum else 0.0)
        settings["pad"] = pad
        if not maximum and counts and any(pad):
            settings["count_pad"] = True
        return Value(apply(op, [node], settings), layout)

    return translate


def _inner_mean(node: Node, pads: Sequence[tuple[int, int]], settings: dict[str, Any]) -> Node:
    """Average over cells of the input, without padding."""
    rank = len(pads)
    none = {**settings, "pad": (False,) * rank}
    ones = constant_node(np.ones((1, *node.shape[len(node.shape) - rank :]), element_type(node)))
    total, cells = (apply("average_pooling", [_pad_node(x, pads, 0.0)], none) for x in (node, ones))
    return apply("element_divide", [total, cells])


class _Places(list[Any]):
    """The results of a pool that also returns the places of maxima, which only `MaxUnpool` reads."""

    def __init__(self, node: Node, layout: tuple[str | int, ...], size: Sequence[int], strides: Sequence[int]) -> None:
        settings = {"window": tuple(size), "strides": tuple(strides), "pad": (False,) * len(size)}
        pooled = Value(apply("max_pooling", [node], settings), layout)
        super().__init__([pooled, _PooledFrom(node, settings)])


class _PooledFrom:
    """Places of maxima.

    Attributes:
        node: operand of the pool.
        settings: settings of the pool.
    """

    def __init__(self, node: Node, settings: dict[str, Any]) -> None:
        self.node, self.settings = node, settings


def _unpool(call: Call) -> Value:
    value, places = call.value(), call.raw(1)
    if not isinstance(places, _PooledFrom):
        raise call.refuse("expected indices that a MaxPool returns, got others")
    node, layout = _rows(call, value)
    return Value(apply("max_unpooling", [node, places.node], places.settings), layout)


def _global_pool(op: str) -> Translation:
    def translate(call: Call) -> Value:
        node, layout = _rows(call, call.value())
        return Value(apply(op, [node]), layout)

    return translate


def _batch_normalization(call: Call) -> Value:
    node, layout = _rows(call, call.value())
    weights = [call.value(i).node for i in range(1, 5)]
    settings = {
        "spatial": True,
        "normalization_time_constant": 5000.0,
        "blend_time_constant": 0.0,
        "epsilon": float(call.attributes.get("epsilon", 1e-5)),
    }
    if layout != (BATCHES,):
        raise call.refuse(f"expected the batch before the channels, got axes {layout}")
    return Value(apply("batch_normalization", [node, *weights, constant_node(0.0)], settings), layout)


def _local_response(call: Call) -> Value:
    get = call.attributes
    size = int(get["size"])
    if size % 2 == 0:
        raise call.refuse(f"expected an odd number of channels, got {size}")
    settings = {
        "depth_radius": size // 2,
        "bias": float(get.get("bias", 1.0)),
        "alpha": float(get.get("alpha", 1e-4)),
        "beta": float(get.get("beta", 0.75)),
    }
    value = call.value()
    return Value(later("local_response_normalization", [value.node], settings), value.layout)


_UNARY = {
    "Neg": "negate",
    "Relu": "relu",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "Exp": "exp",
    "Log": "log",
    "Sqrt": "sqrt",
    "Abs": "abs",
    "Floor": "floor",
    "Ceil": "ceil",
    "Reciprocal": "reciprocal",
    "Sign": "sign",
    "Sin": "sin",
    "Cos": "cos",
    "Tan": "tan",
    "Asin": "asin",
    "Acos": "acos",
    "Atan": "atan",
    "Sinh": "sinh",
    "Cosh": "cosh",
    "Asinh": "asinh",
    "Atanh": "atanh",
    "Softplus": "softplus",
    "Softsign": "softsign",
    "Not": "element_not",
}
_BINARY = {
    "Add": "plus",
    "Sum": "plus",
    "Sub": "minus",
    "Mul": "element_times",
    "Div": "element_divide",
    "Pow": "pow",
    "Max": "element_max",
    "Min": "element_min",
    "Equal": "equal",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "And": "element_and",
    "Or": "element_or",
    "Xor": "element_xor",
}
_REDUCED = {
    "ReduceSum": "sum",
    "ReduceMean": "mean",
    "ReduceMax": "max",
    "ReduceMin": "min",
    "ReduceProd": "prod",
    "ReduceLogSumExp": "log_sum_exp",
    "ReduceL1": "l1",
    "ReduceL2": "l2",
    "ReduceSumSquare": "sum_square",
}

TRANSLATIONS: dict[str, Translation] = {
    **{name: _unary(op) for name, op in _UNARY.items()},
    **{name: _binary(op) for name, op in _BINARY.items()},
    **{name: _reduce(how) for name, how in _REDUCED.items()},
    "Mean": _mean,
    "Clip": _clip,
    "Where": _where,
    "PRelu": _prelu,
    "Selu": _selu,
    "Elu": _set("elu", alpha=1.0),
    "LeakyRelu": _set("leaky_relu", alpha=0.01),
    "HardSigmoid": _set("hard_sigmoid", alpha=0.2, beta=0.5),
    "Cast": _cast,
    "Identity": _identity,
    "Dropout": _dropout,
    "Softmax": _along("softmax"),
    "LogSoftmax": _along("log_softmax"),
    "Hardmax": _along("hardmax"),
    "Constant": _constant,
    "ConstantOfShape": _fill,
    "Shape": _shape,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": _turned,
    "Expand": _expand,
    "Concat": _concatenate,
    "Split": _split,
    "Slice": _slice,
    "Pad": _pad,
    "Gather": _gather,
    "OneHot": _one_hot,
    "TopK": _top_k,
    "EyeLike": _identity_rows,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "ArgMax": _index("argmax"),
    "ArgMin": _index("argmin"),
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _pool("max_pooling"),
    "AveragePool": _pool("average_pooling"),
    "MaxUnpool": _unpool,
    "GlobalMaxPool": _global_pool("global_max_pooling"),
    "GlobalAveragePool": _global_pool("global_average_pooling"),
    "BatchNormalization": _batch_normalization,
    "LRN": _local_response,
    **RECURRENT,
}
