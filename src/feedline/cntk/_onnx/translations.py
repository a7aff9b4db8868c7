"""ONNX's operations as the graph's; the counterpart of `operators`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from feedline.cntk._nodes import constant_node, element_type
from feedline.cntk._onnx import library
from feedline.cntk._onnx.gates import TRANSLATIONS as RECURRENT
from feedline.cntk._onnx.reader import Given, Translation
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
    reshaped,
    size_of,
    static_axis,
    together,
)
from feedline.networks import Node, apply
from feedline.networks.deferred import later
from feedline.networks.node import FREE
from feedline.networks.ops.convolution import window

_END = 2**31 - 1


def _kept(given: Given, op: str, **attributes: Any) -> Value:
    """Apply an operation to the first input, whose layout stays."""
    value = given.value()
    return Value(apply(op, [value.node], attributes), value.layout)


# ---- operations on elements ---------------------------------------------------------------------------


def _unary(op: str) -> Translation:
    return lambda given: _kept(given, op)


def _combined(given: Given, op: str, values: Sequence[Value]) -> Value:
    nodes, layout = together(values, given.label)
    return Value(apply(op, nodes), layout)


def _binary(op: str) -> Translation:
    """Two operands, or more, one after another."""

    def translate(given: Given) -> Any:
        if all(isinstance(given.raw(i), np.ndarray) for i in range(len(given.inputs))) and op in _FOLDED:
            return _FOLDED[op](*(given.known(i) for i in range(len(given.inputs))))
        total = given.value(0)
        for i in range(1, len(given.inputs)):
            total = _combined(given, op, [total, given.value(i)])
        return total

    return translate


# Arithmetic of lengths.
_FOLDED: dict[str, Callable[..., Any]] = {
    "plus": np.add,
    "minus": np.subtract,
    "element_times": np.multiply,
    "element_divide": lambda a, b: a // b if a.dtype.kind in "iu" else a / b,
}


def _mean(given: Given) -> Value:
    total = _binary("plus")(given)
    return Value(apply("element_times", [total.node, constant_node(1 / len(given.inputs))]), total.layout)


def _clip(given: Given) -> Value:
    bounds = [given.attributes.get("min"), given.attributes.get("max")]
    values = [given.value(), Value(constant_node(-math.inf)), Value(constant_node(math.inf))]
    for i, bound in enumerate(bounds, 1):
        if bound is not None:
            values[i] = Value(constant_node(float(bound)))
        elif given.has(i):
            values[i] = given.value(i)
    return _combined(given, "clip", values)


def _where(given: Given) -> Value:
    return _combined(given, "element_select", given.values())


def _prelu(given: Given) -> Value:
    return _combined(given, "param_relu", [given.value(1), given.value(0)])


def _selu(given: Given) -> Value:
    value = given.value()
    alpha = float(given.attributes.get("alpha", 1.6732632423543772))
    gamma = float(given.attributes.get("gamma", 1.0507009873554805))
    below = apply("elu", [value.node], {"alpha": alpha})
    return Value(apply("element_times", [constant_node(gamma), below]), value.layout)


def _cast(given: Given) -> Any:
    found, dtype = given.raw(0), library.NAMES.get(given.attributes["to"], "")
    if isinstance(found, np.ndarray):
        return found if is_lengths(found) else found.astype(dtype)
    if dtype in ("float16", "float32", "float64"):
        value = given.value()
        if element_type(value.node) == dtype:
            return value
        return Value(apply("cast", [value.node], {"dtype": dtype}), value.layout)
    return found  # whole numbers and truth values are numbers like others here


def _identity(given: Given) -> Any:
    return given.raw(0)


def _dropout(given: Given) -> list[Value]:
    rate = float(given.known(1)) if given.has(1) else float(given.attributes.get("ratio", 0.5))
    return [_kept(given, "dropout", rate=rate)]


def _set(op: str, **defaults: float) -> Translation:
    return lambda given: _kept(given, op, **{key: float(given.attributes.get(key, n)) for key, n in defaults.items()})


def _along(op: str) -> Translation:
    def translate(given: Given) -> Value:
        value = given.value()
        axis = int(given.attributes.get("axis", -1 if given.reader.opset >= 13 else 1))
        place = axis % value.rank
        if given.reader.opset < 13 and place != value.rank - 1:
            raise given.refuse(f"expected the last axis in a file of opset {given.reader.opset}, got {axis}")
        if place < len(value.layout) and value.layout[place] == STEPS and op == "softmax":
            return Value(apply("sequence_softmax", [value.node]), value.layout)
        number = static_axis(value, axis, given.label)
        if op == "hardmax":
            if len(value.node.shape) > 1:
                raise given.refuse("expected samples that are vectors")
            return Value(apply(op, [value.node], {"axis": None}), value.layout)
        return Value(apply(op, [value.node], {"axis": number}), value.layout)

    return translate


# ---- shapes -------------------------------------------------------------------------------------------


def _constant(given: Given) -> Any:
    for key, value in given.attributes.items():
        if key == "value":
            return value if value.dtype.kind != "f" else Value(constant_node(value))
        if key in ("value_int", "value_ints"):
            return np.asarray(value, np.int64)
        if key in ("value_float", "value_floats"):
            return Value(constant_node(np.asarray(value, np.float32)))
    raise given.refuse(f"expected a dense tensor, got {sorted(given.attributes)}")


def _shape(given: Given) -> Any:
    found = given.raw(0)
    whole = lengths_of(given.value()) if not isinstance(found, np.ndarray) else np.array(found.shape, np.int64)
    part = whole[slice(given.attributes.get("start", 0), given.attributes.get("end"))]
    return part if any(isinstance(n, Length) for n in part) else part.astype(np.int64)


def _reshape(given: Given) -> Any:
    found, shape = given.raw(0), given.known(1) if given.has(1) else np.asarray(given.attributes["shape"])
    if isinstance(found, np.ndarray):
        return found.reshape([int(n) for n in shape])
    value = given.value()
    wanted: list[Any] = shape.tolist()
    if value.layout == (MERGED,):
        return _unmerged(given, value, wanted)
    if wanted == [-1] and any(kind in (BATCHES, STEPS) for kind in value.layout):
        return Value(value.node, (EVERYTHING,))
    count = len(value.layout)
    for i in range(min(count, len(wanted))):
        if wanted[i] == 0 or (isinstance(wanted[i], Length) and wanted[i].kind == value.layout[i]):
            continue
        rest = [n for n in wanted[i + 1 :] if not isinstance(n, Length)]
        static = [n if n != 0 else -7 for n in rest]
        if wanted[i] == -1 and -7 not in static and size_of(rest) == size_of(value.node.shape):
            layout = value.layout[:i] + ((value.layout[i],) if i == count - 1 else (MERGED,))
            return Value(reshaped(value.node, rest), layout)
        if value.layout[i] == SINGLE and i == 0 and size_of(wanted) == size_of(value.node.shape):
            return Value(reshaped(value.node, wanted))
        raise given.refuse(f"expected a reshape of samples, got {wanted} of axes {value.layout} and {value.node.shape}")
    static = wanted[count:]
    if count and len(wanted) < count:
        raise given.refuse(f"expected a reshape of samples, got {wanted} of axes {value.layout}")
    own = value.node.shape
    static = [own[i] if n == 0 else n for i, n in enumerate(static)]
    if count == 0 and wanted[:1] == [-1] and size_of(wanted[1:]) == size_of(own):
        return Value(reshaped(value.node, wanted[1:]), (SINGLE,))
    if FREE in own and -1 not in static:
        raise given.refuse(f"expected one inferred axis for a free dimension, got {wanted}")
    return Value(reshaped(value.node, static), value.layout)


def _unmerged(given: Given, value: Value, wanted: Sequence[Any]) -> Value:
    if len(wanted) >= 2 and all(isinstance(n, Length) for n in wanted[:2]):
        return Value(reshaped(value.node, wanted[2:]), (STEPS, BATCHES))
    if wanted[0] in (-1, 0):
        return Value(reshaped(value.node, wanted[1:]), (MERGED,))
    raise given.refuse(f"expected steps and the batch in front, got {list(wanted)}")


def _flatten(given: Given) -> Value:
    value, axis = given.value(), int(given.attributes.get("axis", 1))
    if axis % (value.rank + 1) != len(value.layout) or len(value.layout) != 1:
        raise given.refuse(f"expected the batch and the rest, got axis {axis} of axes {value.layout}")
    return Value(reshaped(value.node, (-1,) if value.node.shape else (1,)), value.layout)


def _squeeze(given: Given) -> Any:
    found, axes = given.raw(0), given.numbers(1, "axes")
    if isinstance(found, np.ndarray):
        return found.squeeze(None if axes is None else tuple(axes))
    value = given.value()
    shape, layout = list(value.node.shape), list(value.layout)
    whole: list[Any] = [*layout, *shape]
    places = [i for i, n in enumerate(whole) if n in (1, SINGLE)] if axes is None else [a % value.rank for a in axes]
    for place in sorted(places, reverse=True):
        if place < len(layout):
            if layout[place] not in (SINGLE, 1):
                raise given.refuse(f"expected an axis of length 1, got {layout[place]}")
            del layout[place]
        else:
            del shape[place - len(value.layout)]
    return Value(reshaped(value.node, shape), tuple(layout))


def _unsqueeze(given: Given) -> Any:
    found, axes = given.raw(0), given.numbers(1, "axes") or []
    if isinstance(found, np.ndarray):
        for axis in sorted(axes):
            found = np.expand_dims(found, axis)
        return found
    value = given.value()
    rank = value.rank + len(axes)
    shape, layout = list(value.node.shape), list(value.layout)
    for place in sorted(a % rank for a in axes):
        if place < len(layout):
            layout.insert(place, SINGLE)
        else:
            shape.insert(place - len(layout), 1)
    return Value(reshaped(value.node, shape), tuple(layout))


def _transpose(given: Given) -> Any:
    found = given.raw(0)
    if isinstance(found, np.ndarray):
        return found.transpose(given.attributes.get("perm"))
    value = given.value()
    perm = list(given.attributes.get("perm", range(value.rank)[::-1]))
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
    raise given.refuse(f"expected axes of samples to change places, got {perm} of axes {value.layout}")


def _expand(given: Given) -> Any:
    value, wanted = given.value(), given.known(1).tolist()
    rank = max(value.rank, len(wanted))
    front: list[Any] = [SINGLE] * (rank - value.rank) + list(value.layout) if value.layout else []
    wanted = [1] * (rank - len(wanted)) + wanted
    dynamic = max([i + 1 for i, n in enumerate(wanted) if isinstance(n, Length)], default=0)
    count = max(len(front), dynamic)
    node = value.node
    layout: list[str | int] = []
    own = list(node.shape)
    if len(front) < count:
        extra = max(0, len(own) - (rank - count))
        if any(n != 1 for n in own[:extra]):
            raise given.refuse(f"expected axes of length 1 to repeat, got {own}")
        own, front = own[extra:], [SINGLE] * count
        node = reshaped(node, own)
    for kind, length in zip(front, wanted[:count], strict=True):
        if isinstance(length, Length):
            if length.kind == STEPS and kind == SINGLE and STEPS not in layout:
                node = apply("sequence_broadcast_as", [node, length.node])
            layout.append(length.kind)
        else:
            layout.append(kind if length == 1 else int(length))
    static = [int(n) for n in wanted[count:]]
    shape = [1] * (len(static) - len(node.shape)) + list(node.shape)
    if any(n not in (m, 1) for n, m in zip(static, shape, strict=True)):
        node = apply("plus", [node, constant_node(np.zeros(static, element_type(node)))])
    elif len(shape) != len(node.shape):
        node = reshaped(node, shape)
    return Value(node, tuple(layout))


def _filled(given: Given) -> Any:
    lengths = given.known(0)
    number = np.asarray(given.attributes.get("value", np.zeros(1, np.float32))).reshape(())
    if not is_lengths(lengths):
        return np.full([int(n) for n in lengths], number)
    kinds = [n.kind if isinstance(n, Length) else n for n in lengths]
    like = next(n.node for n in lengths if isinstance(n, Length))
    if kinds == [BATCHES, STEPS] and float(number) == 1:
        return Value(apply("sequence_mask", [like]), (BATCHES,))
    dynamic = [k for k in kinds if isinstance(k, str)]
    if kinds[: len(dynamic)] != dynamic:
        raise given.refuse(f"expected dynamic axes in front, got {kinds}")
    static = tuple(int(n) for n in kinds[len(dynamic) :])
    node = constant_node(np.full(static, number, "float32" if number.dtype.kind != "f" else number.dtype))
    if STEPS in dynamic:
        node = apply("sequence_broadcast_as", [node, like])
    return Value(node, tuple(dynamic))


def _concatenated(given: Given) -> Any:
    axis = int(given.attributes["axis"])
    raw = [given.raw(i) for i in range(len(given.inputs))]
    if all(isinstance(found, np.ndarray) for found in raw):
        return np.concatenate(raw, axis)
    values = given.values()
    rank = max(value.rank for value in values)
    place = axis % rank
    if len(values) == 2 and place == 0 and any(v.layout[:1] == (STEPS,) for v in values):
        return _joined(given, values)
    if any(place < len(value.layout) for value in values):
        raise given.refuse("expected samples to be concatenated, got the batch or steps")
    nodes, layout = together(values, given.label)
    return Value(apply("splice", nodes, {"axis": place - rank}), layout)


def _joined(given: Given, values: Sequence[Value]) -> Joined:
    """Steps, and what a delay puts before or after them."""
    first, second = values
    before = first.layout[:1] != (STEPS,)
    more, steps = (first, second) if before else (second, first)
    count = more.layout[0] if more.layout else more.node.shape[0]
    if not isinstance(count, int) and count != SINGLE:
        raise given.refuse("expected a known number of further steps")
    node = more.node
    if not more.layout:
        if count != 1:
            raise given.refuse("expected the same further steps for all sequences")
        node = reshaped(node, node.shape[1:])
    return Joined(steps, Value(node, more.layout[1:]), 1 if count == SINGLE else int(count), before)


def _split(given: Given) -> Any:
    value = given.value()
    axis = int(given.attributes.get("axis", 0))
    number = static_axis(value, axis, given.label)
    size, parts = value.node.shape[number], given.numbers(1, "split")
    if parts is None:
        count = len(given.outputs)
        each = -(-size // count)
        parts = [each] * (count - 1) + [size - each * (count - 1)]
    ends = np.cumsum(parts).tolist()
    return [
        Value(_sliced(value.node, number, end - part, end, 1), value.layout)
        for part, end in zip(parts, ends, strict=True)
    ]


def _sliced(node: Node, axis: int, begin: int, end: int, step: int) -> Node:
    return apply("slice", [node], {"axis": (axis,), "begin": (begin,), "end": (end,), "strides": (step,)})


def _slice(given: Given) -> Any:
    found = given.raw(0)
    starts, ends = given.numbers(1, "starts"), given.numbers(2, "ends")
    axes, steps = given.numbers(3, "axes"), given.numbers(4, "steps")
    if starts is None or ends is None:
        raise given.refuse("expected starts and ends")
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if isinstance(found, np.ndarray):
        index = [slice(None)] * found.ndim
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
            index[axis] = slice(start, end if end > -_END else None, step)
        part = found[tuple(index)]
        return part if not is_lengths(part) or any(isinstance(n, Length) for n in part) else part.astype(np.int64)
    if isinstance(found, Joined):
        return _delayed(given, found, starts, ends, axes)
    value = given.value()
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        place = axis % value.rank
        if place < len(value.layout) and value.layout[place] == STEPS and step == 1:
            stop = 0 if end >= _END else end
            node = apply("sequence_slice", [value.node], {"begin": start, "end": stop})
            value = Value(node, value.layout)
            continue
        if place < len(value.layout) and isinstance(value.layout[place], int):
            continue  # of equal numbers
        number = static_axis(value, axis, given.label)
        size = value.node.shape[number]
        if size == FREE:
            value = Value(_sliced(value.node, number, start, 0 if end >= _END else end, step), value.layout)
            continue
        rows = range(size)[slice(start, end, step)]
        if not rows:
            raise given.refuse(f"expected a part that is not empty, got {start} to {end} of {size}")
        if step > 0:
            node = _sliced(value.node, number, rows[0], 0 if rows[-1] + 1 >= size else rows[-1] + 1, step)
        else:
            # A range that is gone through from its end.
            node = _sliced(value.node, number, rows[-1], 0 if rows[0] + 1 >= size else rows[0] + 1, step)
        value = Value(node, value.layout)
    return value


def _delayed(given: Given, joined: Joined, starts: list[int], ends: list[int], axes: list[int]) -> Value:
    if axes == [0] and joined.before and starts == [0] and ends == [-joined.further]:
        steps = joined.further
    elif axes == [0] and not joined.before and starts == [joined.further] and ends[0] >= _END:
        steps = -joined.further
    else:
        raise given.refuse(f"expected as many steps as there were before, got {starts} to {ends}")
    node = apply("delay", [joined.steps.node, joined.more.node], {"steps": steps})
    return Value(node, joined.steps.layout)


def _pad(given: Given) -> Value:
    value, mode = given.value(), given.attributes.get("mode", "constant")
    amounts = given.numbers(1, "pads") or []
    number = float(given.known(2)) if given.has(2) else float(given.attributes.get("value", 0.0))
    rank, count = value.rank, len(value.layout)
    if given.has(3):
        axes = [a % rank for a in given.numbers(3, "axes") or []]
        whole = [0] * (2 * rank)
        for i, axis in enumerate(axes):
            whole[axis], whole[rank + axis] = amounts[i], amounts[len(axes) + i]
        amounts = whole
    pattern = list(zip(amounts[:rank], amounts[rank:], strict=True))
    if any(n for pair in pattern[:count] for n in pair):
        raise given.refuse("expected samples to be padded, got the batch or steps")
    if mode not in ("constant", "reflect"):
        raise given.refuse(f"expected padding by a constant or by reflection, got {mode}")
    return Value(_padded(value.node, pattern[count:], number, mode), value.layout)


def _padded(node: Node, pattern: Sequence[tuple[int, int]], number: float, mode: str = "constant") -> Node:
    """Pad, and crop where amounts are negative."""
    for i, (before, after) in enumerate(pattern, -len(pattern)):
        if before < 0 or after < 0:
            node = _sliced(node, i, max(0, -before), min(0, after), 1)
    grown = tuple((max(0, a), max(0, b)) for a, b in pattern)
    if not any(n for pair in grown for n in pair):
        return node
    grown = ((0, 0),) * (len(node.shape) - len(grown)) + grown
    return apply("pad", [node], {"pattern": grown, "mode": mode, "value": number})


def _gather(given: Given) -> Any:
    found, axis = given.raw(0), int(given.attributes.get("axis", 0))
    if isinstance(found, np.ndarray):
        part = found.take(given.known(1).astype(np.int64), axis)
        return np.asarray(part, object) if is_lengths(found) else part
    value, index = given.value(), given.raw(1)
    place = axis % value.rank
    if place < len(value.layout) and value.layout[place] == STEPS and isinstance(index, np.ndarray) and index.ndim == 0:
        op = {0: "sequence_first", -1: "sequence_last"}.get(int(index))
        if op is None:
            raise given.refuse(f"expected the first or the last step, got step {int(index)}")
        return Value(apply(op, [value.node]), value.layout[1:])
    number = static_axis(value, axis, given.label)
    chosen = given.value(1)
    at = number + len(value.node.shape)
    node = apply("gather", [chosen.node, value.node], {"axis": None if at == 0 else number})
    if chosen.layout and value.layout:
        raise given.refuse("expected an index or a reference that is the same for all samples")
    if chosen.layout and at:
        # ONNX puts the axes of the index where the gathered one was; here the dynamic ones are in front anyway.
        return Moved(node, chosen.layout, at)
    return Value(node, value.layout or chosen.layout)


def _turned(given: Given) -> Any:
    found = given.raw(0)
    if isinstance(found, Moved):
        count, rank, at = len(found.layout), len(found.layout) + len(found.node.shape), found.at
        perm = list(given.attributes["perm"])
        if perm == [*range(at, at + count), *range(at), *range(at + count, rank)]:
            return Value(found.node, found.layout)
        raise given.refuse(f"expected the batch to be put in front, got {perm}")
    return _transpose(given)


def _one_hot(given: Given) -> Value:
    value, depth = given.value(), int(np.asarray(given.known(1)).reshape(()))
    off, on = (float(n) for n in given.known(2))
    if (off, on) != (0.0, 1.0):
        raise given.refuse(f"expected the values 0 and 1, got {off} and {on}")
    axis = int(given.attributes.get("axis", -1))
    rank = value.rank + 1
    number = axis % rank - rank
    if axis % rank < len(value.layout):
        raise given.refuse("expected classes along an axis of samples")
    return Value(apply("one_hot", [value.node], {"classes": depth, "axis": number, "sparse": False}), value.layout)


def _top_k(given: Given) -> list[Value]:
    value, count = given.value(), given.numbers(1, "k") or [1]
    if not given.attributes.get("largest", 1):
        raise given.refuse("expected the largest elements, got the smallest")
    axis = static_axis(value, int(given.attributes.get("axis", -1)), given.label)
    settings = {"k": count[0], "axis": axis}
    return [Value(apply("top_k", [value.node], {**settings, "indices": part}), value.layout) for part in (False, True)]


def _identity_rows(given: Given) -> Value:
    return _kept(given, "eye_rows", sparse=False)


# ---- products -----------------------------------------------------------------------------------------


def _matmul(given: Given) -> Value:
    return _product(given, given.value(0), given.value(1))


def _product(given: Given, left: Value, right: Value) -> Value:
    if not right.layout:
        if len(right.node.shape) > 2:
            raise given.refuse(f"expected a matrix as the right operand, got {right.node.shape}")
        if not left.node.shape:
            raise given.refuse("expected samples that are vectors or matrices")
        node = apply("times", [left.node, right.node], {"output_rank": len(right.node.shape) - 1, "map_rank": None})
        return Value(node, left.layout)
    if len(right.node.shape) != 2 or len(left.node.shape) not in (1, 2):
        raise given.refuse(f"expected matrices, got {left.node.shape} and {right.node.shape}")
    (first, second), layout = together([left, right], given.label)
    return Value(apply("times", [first, second], {"output_rank": 1, "map_rank": None}), layout)


def _gemm(given: Given) -> Value:
    get = given.attributes
    if get.get("transA", 0):
        raise given.refuse("expected a left operand that is not transposed")
    left, right = given.value(0), given.value(1)
    if get.get("transB", 0):
        right = Value(apply("transpose", [right.node], {"perm": (1, 0)}), right.layout)
    found = _product(given, left, right)
    if get.get("alpha", 1.0) != 1.0:
        found = Value(apply("element_times", [found.node, constant_node(float(get["alpha"]))]), found.layout)
    if not given.has(2):
        return found
    bias = given.value(2)
    if get.get("beta", 1.0) != 1.0:
        bias = Value(apply("element_times", [bias.node, constant_node(float(get["beta"]))]), bias.layout)
    return _combined(given, "plus", [found, bias])


# ---- reductions ---------------------------------------------------------------------------------------


def _reduce(how: str) -> Translation:
    def translate(given: Given) -> Value:
        value, axes = given.value(), given.numbers(1, "axes")
        keep = bool(given.attributes.get("keepdims", 1))
        if axes is None:
            axes = [] if given.attributes.get("noop_with_empty_axes", 0) else list(range(value.rank))
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
            raise given.refuse(f"expected a reduction of samples, or a sum, mean or maximum of steps, got {kinds}")
        node = apply(f"sequence_reduce_{how}", [node])
        return Value(node, (SINGLE, *value.layout[1:]) if keep else value.layout[1:])

    return translate


def _without(node: Node, axes: Sequence[int]) -> Node:
    gone = {a % len(node.shape) for a in axes}
    return reshaped(node, [n for i, n in enumerate(node.shape) if i not in gone])


def _index(op: str) -> Translation:
    def translate(given: Given) -> Value:
        value = given.value()
        if given.attributes.get("select_last_index", 0):
            raise given.refuse("expected the first of equal elements, got the last")
        axis = static_axis(value, int(given.attributes.get("axis", 0)), given.label)
        node = apply(op, [value.node], {"axis": axis})
        return Value(node if given.attributes.get("keepdims", 1) else _without(node, [axis]), value.layout)

    return translate


# ---- images -------------------------------------------------------------------------------------------


def _rows(given: Given, value: Value) -> tuple[Node, tuple[str | int, ...]]:
    """Return a node whose samples are what slides over them, and the layout of the one axis in front."""
    if len(value.layout) == 1:
        return value.node, value.layout
    if not value.layout and value.node.shape[:1] == (1,):
        return reshaped(value.node, value.node.shape[1:]), (SINGLE,)
    raise given.refuse(f"expected one axis before those of an image, got {value.layout}")


def _pads(given: Given, sizes: Sequence[int], reach: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    get, rank = given.attributes, len(sizes)
    kind = get.get("auto_pad", "NOTSET")
    if kind in ("SAME_UPPER", "SAME_LOWER"):
        totals = [max(0, (-(-n // s) - 1) * s + k - n) for n, k, s in zip(sizes, reach, strides, strict=True)]
        halves = [(t // 2, t - t // 2) for t in totals]
        return halves if kind == "SAME_UPPER" else [(b, a) for a, b in halves]
    flat = list(get.get("pads", [0] * (2 * rank))) if kind == "NOTSET" else [0] * (2 * rank)
    return list(zip(flat[:rank], flat[rank:], strict=True))


def _conv(given: Given) -> Value:
    kernel = given.value(1).node
    node, layout = _rows(given, given.value())
    get, rank = given.attributes, len(kernel.shape) - 2
    strides, dilation = (tuple(get.get(key, [1] * rank)) for key in ("strides", "dilations"))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel.shape[2:], dilation, strict=True)]
    sizes = node.shape[1:]
    pads = _pads(given, sizes, reach, strides)
    node, pad = _automatic(node, pads, reach, strides, 0.0)
    settings = {"strides": strides, "pad": pad, "dilation": dilation, "groups": int(get.get("group", 1))}
    return _biased(given, apply("convolution", [kernel, node], settings), layout)


def _automatic(
    node: Node, pads: Sequence[tuple[int, int]], reach: Sequence[int], strides: Sequence[int], value: float
) -> tuple[Node, tuple[bool, ...]]:
    """Return a node and which axes to pad automatically: all where that is the padding, or none after padding here."""
    rank = len(pads)
    if not any(n for pair in pads for n in pair):
        return node, (False,) * rank
    sizes = node.shape[len(node.shape) - rank :]
    pad = tuple(pair != (0, 0) for pair in pads)
    if window(sizes, reach, strides, pad)[1] == list(pads):
        return node, pad
    return _padded(node, pads, value), (False,) * rank


def _biased(given: Given, node: Node, layout: tuple[str | int, ...]) -> Value:
    if given.has(2):
        bias = given.value(2).node
        node = apply("plus", [node, reshaped(bias, (*bias.shape, *[1] * (len(node.shape) - 1)))])
    return Value(node, layout)


def _conv_transpose(given: Given) -> Value:
    kernel = given.value(1).node
    node, layout = _rows(given, given.value())
    get, rank = given.attributes, len(kernel.shape) - 2
    if get.get("group", 1) != 1 or set(get.get("dilations", [1])) != {1} or "output_shape" in get:
        raise given.refuse("expected one group, no dilation, and no output_shape")
    if get.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise given.refuse(f"expected given pads, got {get['auto_pad']}")
    strides, more = (tuple(get.get(key, [n] * rank)) for key, n in (("strides", 1), ("output_padding", 0)))
    pads = _pads(given, node.shape[1:], kernel.shape[2:], strides)
    node = apply("convolution_transpose", [kernel, node], {"strides": strides, "pad": (False,) * rank, "shape": None})
    cut = [(-a, m - b) for (a, b), m in zip(pads, more, strict=True)]
    return _biased(given, _padded(node, cut, 0.0), layout)


def _pool(op: str) -> Translation:
    def translate(given: Given) -> Any:
        node, layout = _rows(given, given.value())
        get = given.attributes
        size = tuple(get["kernel_shape"])
        rank = len(size)
        strides = tuple(get.get("strides", [1] * rank))
        if set(get.get("dilations", [1])) != {1}:
            raise given.refuse("expected windows without dilation")
        if any(given.outputs[1:]):
            return _Places(node, layout, size, strides)
        pads = _pads(given, node.shape[len(node.shape) - rank :], size, strides)
        settings: dict[str, Any] = {"window": size, "strides": strides}
        if get.get("ceil_mode", 0):
            if any(n for pair in pads for n in pair):
                raise given.refuse("expected no padding with ceil_mode")
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
    total, cells = (apply("average_pooling", [_padded(x, pads, 0.0)], none) for x in (node, ones))
    return apply("element_divide", [total, cells])


class _Places(list[Any]):
    """The results of a pool that also tells the places of maxima, which only `MaxUnpool` reads."""

    def __init__(self, node: Node, layout: tuple[str | int, ...], size: Sequence[int], strides: Sequence[int]) -> None:
        settings = {"window": tuple(size), "strides": tuple(strides), "pad": (False,) * len(size)}
        pooled = Value(apply("max_pooling", [node], settings), layout)
        super().__init__([pooled, _PooledFrom(node, settings)])


class _PooledFrom:
    """Places of maxima.

    Attributes:
        node: what was pooled.
        settings: of the pool.
    """

    def __init__(self, node: Node, settings: dict[str, Any]) -> None:
        self.node, self.settings = node, settings


def _unpool(given: Given) -> Value:
    value, places = given.value(), given.raw(1)
    if not isinstance(places, _PooledFrom):
        raise given.refuse("expected places that a MaxPool tells")
    node, layout = _rows(given, value)
    return Value(apply("max_unpooling", [node, places.node], places.settings), layout)


def _global_pool(op: str) -> Translation:
    def translate(given: Given) -> Value:
        node, layout = _rows(given, given.value())
        return Value(apply(op, [node]), layout)

    return translate


def _batch_normalization(given: Given) -> Value:
    node, layout = _rows(given, given.value())
    weights = [given.value(i).node for i in range(1, 5)]
    settings = {
        "spatial": True,
        "normalization_time_constant": 5000.0,
        "blend_time_constant": 0.0,
        "epsilon": float(given.attributes.get("epsilon", 1e-5)),
    }
    if layout != (BATCHES,):
        raise given.refuse("expected the batch before channels")
    return Value(apply("batch_normalization", [node, *weights, constant_node(0.0)], settings), layout)


def _local_response(given: Given) -> Value:
    get = given.attributes
    size = int(get["size"])
    if size % 2 == 0:
        raise given.refuse(f"expected an odd number of channels, got {size}")
    settings = {
        "depth_radius": size // 2,
        "bias": float(get.get("bias", 1.0)),
        "alpha": float(get.get("alpha", 1e-4)),
        "beta": float(get.get("beta", 0.75)),
    }
    value = given.value()
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
    "ConstantOfShape": _filled,
    "Shape": _shape,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": _turned,
    "Expand": _expand,
    "Concat": _concatenated,
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
