"""Write the graph's operations as expressions of torch: a function for each, of the writer and a node.

CNTK's rules at the edges of domains hold: 1 / 0 is 0, logarithms have a floor, the first of equal elements counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from feedline.errors import CompatError
from feedline.networks import Node
from feedline.networks.cells import CELLS
from feedline.networks.node import FREE
from feedline.networks.ops.convolution import window
from feedline.networks.shapes import axes_of, from_end, slices
from feedline.networks.torch_source.source_recurrences import write_layer, write_loop
from feedline.networks.torch_source.source_writer import (
    SourceWriter,
    check_fixed,
    check_padding,
    converted,
    dtype_argument,
)
from feedline.networks.torch_source.torch_layers import convolution_settings, over_pictures, padded, values
from feedline.networks.traverse import element_type, loop_parts, reads, resolve_alias

Operator = Callable[[SourceWriter, Node], str]


# ---- operations on elements ---------------------------------------------------------------------------


def _of(template: str) -> Operator:
    """Return an operator that puts the values of the operands, ``{0}``, in an expression."""
    return lambda w, node: template.format(*(w.value(child) for child in node.inputs))


def _called(function: str) -> Operator:
    return lambda w, node: w.call(function, *(w.value(child) for child in node.inputs))


def _pair(w: SourceWriter, node: Node) -> list[str]:
    """Return the operands so that they broadcast. At least one is a tensor."""
    aligned = [w.align(child, node) for child in node.inputs]
    if all(w.number(child) for child in node.inputs):
        aligned[0] = w.value(node.inputs[0])
    return aligned


def _tensors(w: SourceWriter, node: Node) -> list[str]:
    """Return the operands as tensors that broadcast."""
    return [w.value(c) if w.number(c) else w.align(c, node) for c in node.inputs]


def _binary(template: str) -> Operator:
    return lambda w, node: template.format(*_pair(w, node))


def _choice(template: str) -> Operator:
    return lambda w, node: template.format(*_tensors(w, node))


def _truth(template: str) -> Operator:
    return lambda w, node: converted(node, f"({template.format(*_pair(w, node))})")


def _quotient(w: SourceWriter, node: Node) -> str:
    a, b = _pair(w, node)
    divisor = w.number(node.inputs[1])
    return f"{a} / {b}" if divisor and float(divisor.strip("()")) else w.call("divide", *_tensors(w, node))


def find_quotients(w: SourceWriter) -> None:
    """Note the products with reciprocals, as which CNTK computes quotients."""
    for node in w.parts.order:
        if node.op == "element_times":
            a, b = reads(node)
            if b.op == "reciprocal" and w.parts.readers[b] == [node]:
                quotient = Node("element_divide", (a, *reads(b)), {}, node.type, node.name)
                w.parts.fused[node] = [x for x in quotient.inputs if x.weights is None], partial(_as, quotient)


def _as(quotient: Node, w: SourceWriter, node: Node) -> str:
    return _quotient(w, quotient)


def _power(w: SourceWriter, node: Node) -> str:
    base, exponent = _pair(w, node)
    number = w.number(node.inputs[1])
    if number and not number.startswith("("):
        return f"{base} ** {exponent}"
    return w.call("power", *_tensors(w, node))


def _clip(w: SourceWriter, node: Node) -> str:
    numbers = [w.number(child) for child in node.inputs[1:]]
    x, low, high = _pair(w, node)
    if all(numbers) and float(numbers[0].strip("()")) <= float(numbers[1].strip("()")):  # type: ignore[union-attr]
        return f"{x}.clamp({low.strip('()')}, {high.strip('()')})"
    return f"torch.where({x} < {low}, {low}, torch.where({x} > {high}, {high}, {x}))"


def _set(template: str, **defaults: float) -> Operator:
    """Return an operator whose expression has the node's attributes, or defaults, by name."""

    def write(w: SourceWriter, node: Node) -> str:
        settings = {name: float(node.attributes.get(name, default)) for name, default in defaults.items()}
        return template.format(w.value(node.inputs[0]), **settings)

    return write


def _cast(w: SourceWriter, node: Node) -> str:
    return f"{w.value(node.inputs[0])}.to(torch.{node.attributes['dtype']})"


def _dropout(w: SourceWriter, node: Node) -> str:
    layer = w.add_layer(w.parts.labels.get(node, "dropout"), f"nn.Dropout({node.attributes['rate']})", {})
    return f"{layer}({w.value(node.inputs[0])})"


def _along(template: str, function: str = "") -> Operator:
    """Softmax and its kin, along one axis or over a whole sample."""

    def write(w: SourceWriter, node: Node) -> str:
        if function:
            w.parts.called.add(function)
        axis, rank = node.attributes.get("axis", -1), len(node.shape)
        x = w.value(node.inputs[0])
        if axis is not None and rank:
            return template.format(x, from_end(axis, rank))
        if rank == 1:
            return template.format(x, -1)
        flat = f"{x}.flatten(-{rank})" if rank else f"{x}[..., None]"
        return f"{template.format(flat, -1)}.reshape({x}.shape)"

    return write


# ---- shapes -------------------------------------------------------------------------------------------


def _reshape(w: SourceWriter, node: Node) -> str:
    child = node.inputs[0]
    x = w.value(child)
    if len(node.shape) == 1 and w.leading(node) and len(child.shape) > 1:
        return f"{x}.flatten({w.leading(node)})"
    return w.reshape(x, node, node.shape)


def _transpose(w: SourceWriter, node: Node) -> str:
    leading = w.leading(node)
    order = [*range(leading), *(leading + i for i in node.attributes["perm"])]
    return f"{w.value(node.inputs[0])}.permute({', '.join(map(str, order))})"


def _splice(w: SourceWriter, node: Node) -> str:
    rank = len(node.shape)
    axis = from_end(node.attributes["axis"], rank)
    widest = max(node.inputs, key=lambda child: w.leading(child))
    parts = []
    for child in node.inputs:
        part = w.value(child) if w.number(child) else w.align(child, node)
        widened = (1,) * (rank - len(child.shape)) + child.shape
        if not w.leading(child) and len(child.shape) < rank:
            part = f"{part}[{'None, ' * (rank - len(child.shape))}...]"
        shape = list(node.shape)
        shape[axis] = widened[axis]
        if w.leading(child) < w.leading(node) or tuple(shape) != widened:
            part = w.expand(part, node, shape, w.value(widest))
        parts.append(part)
    return f"torch.cat([{', '.join(parts)}], {axis})"


def _slice(w: SourceWriter, node: Node) -> str:
    rank = len(node.shape)
    where, steps, turned = [":"] * rank, [":"] * rank, []
    for axis, part, stride in slices(node.attributes, rank):
        begin, end = part.start or "", "" if part.stop is None else part.stop
        where[axis] = f"{begin}:{end}" + (f":{stride}" if stride > 1 else "")
        if stride < 0:
            turned.append(axis)
            steps[axis] = f"::{-stride}" if stride < -1 else ":"
    y = f"{w.value(node.inputs[0])}[{_places(w, node, where)}]"
    if turned:
        y += f".flip({', '.join(map(str, turned))})"
    return y if set(steps) == {":"} else f"{y}[{_places(w, node, steps)}]"


def _places(w: SourceWriter, node: Node, where: Sequence[str]) -> str:
    """Return the index of ranges of a node's axes."""
    return ", ".join([":"] * w.leading(node) + list(where))


def _crop(w: SourceWriter, node: Node) -> str:
    begins, size = [node.attributes["offset_y"], node.attributes["offset_x"]], node.shape[-2:]
    check_fixed(node, size)
    where = [f"{begin}:{begin + n}" for begin, n in zip(begins, size, strict=True)]
    return f"{w.value(node.inputs[0])}[..., {', '.join(where)}]"


def _pad(w: SourceWriter, node: Node) -> str:
    child, pattern, mode = node.inputs[0], node.attributes["pattern"], node.attributes["mode"]
    x = w.value(child)
    if mode == "symmetric":
        for axis, (before, after) in enumerate(pattern, -len(pattern)):
            x = w.call("pad_mirrored", x, axis, before, after) if before or after else x
        return x
    if mode == "constant":
        return padded(x, pattern, repr(float(node.attributes.get("value", 0.0))))
    check_fixed(node, child.shape)
    flat = tuple(n for pair in reversed(pattern) for n in pair)
    inner = f"{x}.reshape(1, -1, {', '.join(map(str, child.shape))})"
    return w.reshape(f"functional.pad({inner}, {flat}, 'reflect')", node, node.shape, x)


def _one_hot(w: SourceWriter, node: Node) -> str:
    w.parts.limits[reads(node)[0]] = node.attributes["classes"]
    axis = from_end(node.attributes["axis"], len(node.shape))
    y = converted(node, f"functional.one_hot({w.value(node.inputs[0])}.long(), {node.attributes['classes']})")
    return y if axis == -1 else f"{y}.movedim(-1, {axis})"


def _gather(w: SourceWriter, node: Node) -> str:
    index, reference = node.inputs
    axis = node.attributes.get("axis")
    at = 0 if axis is None else axis % len(reference.shape)
    w.parts.limits[reads(node)[0]] = reference.shape[at]
    places, x = f"{w.value(index)}.long()", w.value(reference)
    if w.leading(reference):
        if w.leading(index):
            raise CompatError(
                f"{node.label}: expected an index or a reference that is the same for all samples, got neither"
            )
        return f"{x}[{':, ' * (w.leading(reference) + at)}{places}]"
    if not w.leading(index) or not at:
        return f"{x}[{':, ' * at}{places}]"
    rank = w.leading(index) + len(index.shape)
    before = tuple(range(w.leading(index), rank))
    return f"{x}.movedim({at}, 0)[{places}].movedim({before}, {tuple(i + at for i in before)})"


def _top_k(w: SourceWriter, node: Node) -> str:
    get = node.attributes
    best = f"{w.value(node.inputs[0])}.topk({get['k']}, {from_end(get['axis'], len(node.shape))})"
    return converted(node, f"{best}.indices") if get["indices"] else f"{best}.values"


def _rows_of_identity(w: SourceWriter, node: Node) -> str:
    x = w.value(node.inputs[0])
    return f"torch.eye(len({x}), {node.shape[0]}, device={x}.device{dtype_argument(element_type(node))})"


# ---- products -----------------------------------------------------------------------------------------


def _times(w: SourceWriter, node: Node) -> str:
    left, right = reads(node)
    outputs = right.shape[len(right.shape) - node.attributes.get("output_rank", 1) :]
    inner = len(right.shape) - len(outputs)
    x, y = w.value(left), w.value(right)
    if left.op == "input" and left.sparse and inner == 1 and len(outputs) == 1 and not w.leading(right):
        return w.call("look_up", x, y) if right.weights is not None else f"{x} @ {y}"
    if not w.leading(right):
        x = f"{x}.flatten(-{inner})" if inner > 1 else f"{x}[..., None]" if not inner else x
        if (inner, len(outputs)) != (1, 1):
            y = f"{y}.reshape({math.prod(right.shape[:inner])}, -1)"
        if len(outputs) == 1:
            return f"{x} @ {y}"
        return f"({x} @ {y}).unflatten(-1, {tuple(outputs)})" if outputs else f"({x} @ {y}).squeeze(-1)"
    matrices = w.reshape(y, right, (math.prod(right.shape[:inner]), math.prod(outputs)))
    return _of_matrices(w, node, inner, matrices)


def _of_matrices(w: SourceWriter, node: Node, inner: int, matrices: str) -> str:
    """Multiply the last axes of the left operand by a matrix for each sample."""
    left, right = reads(node)
    outer = left.shape[: len(left.shape) - inner]
    rows = FREE if FREE in outer else math.prod(outer)
    x = w.reshape(w.value(left), left, (rows, math.prod(left.shape[len(left.shape) - inner :])))
    if 0 < w.leading(left) < w.leading(node):
        x += "[:, None]"
    if 0 < w.leading(right) < w.leading(node):
        matrices += "[:, None]"
    widest = max((left, right), key=lambda child: w.leading(child))
    return w.reshape(f"({x} @ {matrices})", node, node.shape, w.value(widest))


def _times_transpose(w: SourceWriter, node: Node) -> str:
    left, right = reads(node)
    y = w.value(right)
    if w.leading(right):
        rows = right.shape[0] if len(right.shape) == 2 else 1
        return _of_matrices(w, node, 1, w.reshape(y, right, (rows, right.shape[-1])) + ".mT")
    return f"{w.value(left)} @ {y}{'.T' if len(right.shape) == 2 else '[:, None]'}"


def _cosine(w: SourceWriter, node: Node) -> str:
    rank = len(node.inputs[0].shape)
    a, b = (w.align(child, node, rank) for child in node.inputs)
    flat = f".flatten(-{rank})" if rank > 1 else ""
    return f"functional.cosine_similarity({a}{flat}, {b}{flat}, -1, 1e-8)"


def _weighted_binary(w: SourceWriter, node: Node) -> str:
    """Sum over the minibatch, with weights scaled to a mean of 1."""
    output, target, weight = (f"{w.value(child)}.flatten()" for child in node.inputs)
    output, target, weight = w.assign("output", output), w.assign("target", target), w.assign("weight", weight)
    losses = w.assign("losses", f"-torch.log({target} * {output} + (1 - {target}) * (1 - {output}))")
    return f"({weight} * {losses}).sum() * len({output}) / {weight}.sum()"


# ---- reductions ---------------------------------------------------------------------------------------

# The operand, its axes, whether they stay with length 1.
_REDUCTIONS = {
    "sum": "{0}.sum({1}, keepdim={2})",
    "mean": "{0}.mean({1}, keepdim={2})",
    "max": "{0}.amax({1}, keepdim={2})",
    "min": "{0}.amin({1}, keepdim={2})",
    "log_sum_exp": "{0}.logsumexp({1}, keepdim={2})",
    "l1": "{0}.abs().sum({1}, keepdim={2})",
    "l2": "{0}.square().sum({1}, keepdim={2}).sqrt()",
    "sum_square": "{0}.square().sum({1}, keepdim={2})",
}


def _reduced(how: str, x: str, dims: Sequence[int], keep: bool) -> str:
    if how == "prod":  # torch multiplies along one axis at a time
        for dim in sorted(dims):
            x = f"{x}.prod({dim}, keepdim=True)"
        return x if keep else f"{x}.squeeze({_listed(dims)})"
    text = _REDUCTIONS[how].format(x, _listed(dims), keep)
    return text.replace(", keepdim=False", "")


def _listed(dims: Sequence[int]) -> str:
    return str(dims[0]) if len(dims) == 1 else str(tuple(dims))


def _reduce(how: str) -> Operator:
    def write(w: SourceWriter, node: Node) -> str:
        child, axis = node.inputs[0], node.attributes.get("axis")
        dims = axes_of(axis, len(child.shape))
        keep = node.attributes.get("keepdims", axis is not None)
        if not dims:  # torch, too, reduces over all axes if none are listed
            return _reduced(how, f"{w.value(child)}[..., None]", (-1,), False)
        return _reduced(how, w.value(child), dims, keep)

    return write


def _index(function: str) -> Operator:
    def write(w: SourceWriter, node: Node) -> str:
        child, axis = node.inputs[0], node.attributes.get("axis")
        x, rank = w.value(child), len(child.shape)
        if axis is None:
            flat = f"{x}.flatten(-{rank})" if rank > 1 else x if rank else f"{x}[..., None]"
            return converted(node, f"{flat}.{function}(-1)")
        (dim,) = axes_of(axis, rank)
        return converted(node, f"{x}.{function}({dim}, keepdim=True)")

    return write


def _reduce_batch(w: SourceWriter, node: Node) -> str:
    child, get = node.inputs[0], node.attributes
    dims = axes_of(get.get("axis", ()), len(child.shape))
    y = _reduced(get["how"], w.value(child), (-len(child.shape) - 1, *dims), True)
    return f"{y}.squeeze({_listed((0, *dims) if not get.get('keepdims', True) else (0,))})"


def _reduce_everything(w: SourceWriter, node: Node) -> str:
    child = node.inputs[0]
    x = w.value(child)
    if w.leading(child) == 2:
        x = f"{x}[{w.call('real_steps', x, w.lengths_of(child))}]"
    return _reduced(node.attributes["how"], f"{x}.flatten()", (0,), False)


def _per_channel(how: str) -> Operator:
    def write(w: SourceWriter, node: Node) -> str:
        return _reduced(how, w.value(node.inputs[0]), tuple(range(1 - len(node.shape), 0)), True)

    return write


# ---- images -------------------------------------------------------------------------------------------


def _convolution(w: SourceWriter, node: Node) -> str:
    """Write a convolution whose kernel is no layer's weights."""
    kernel, data = reads(node)
    filters, shape = w.value(kernel), kernel.shape
    if len(shape) == len(data.shape):  # a single filter, without an axis for filters
        filters, shape = f"{filters}[None]", (1, *shape)
    settings, pads = convolution_settings(node, shape, data.shape)
    function = f"functional.conv{len(data.shape) - 1}d"
    return over_pictures(w, node, data, lambda x: f"{function}({padded(x, pads)}, {filters}{settings})")


def _convolution_transpose(w: SourceWriter, node: Node) -> str:
    kernel, data = reads(node)
    check_fixed(node, node.shape)
    strides, rank = tuple(node.attributes["strides"]), len(data.shape) - 1
    _, pads = window(node.shape[1:], kernel.shape[2:], strides, node.attributes["pad"])
    produced = [(n - 1) * s + k for n, s, k in zip(data.shape[1:], strides, kernel.shape[2:], strict=True)]
    cut = [(-a, n + a - h) for (a, _), n, h in zip(pads, node.shape[1:], produced, strict=True)]
    filters, function = w.value(kernel), f"functional.conv_transpose{rank}d"
    return over_pictures(w, node, data, lambda x: padded(f"{function}({x}, {filters}, stride={strides})", cut))


def _over_cells(w: SourceWriter, node: Node, data: Node, rank: int, write: Callable[[str], str]) -> str:
    """Apply an expression to cells (batch, channels, *sizes), with all that a window does not slide over in front."""
    x, lead = w.value(data), w.leading(data)
    if lead == 1 and len(data.shape) == rank + 1:
        return write(x)
    sizes = ", ".join(map(str, data.shape[len(data.shape) - rank :]))
    return w.reshape(write(f"{x}.reshape(-1, 1, {sizes})"), node, node.shape, x)


def _pooling(how: str) -> Operator:
    def write(w: SourceWriter, node: Node) -> str:
        get, data = node.attributes, reads(node)[0]
        size, strides, rank = tuple(get["window"]), tuple(get["strides"]), len(get["window"])
        sizes, ceil = data.shape[len(data.shape) - rank :], get.get("ceil", False)
        if ceil or w.leading(data) != 1 or len(data.shape) > rank + 1:
            check_fixed(node, data.shape)
        check_padding(node, sizes, strides, get["pad"])
        _, pads = window(sizes, size, strides, get["pad"], ceil)
        counts_pads, any_pad = get.get("count_pad", False), any(n for pair in pads for n in pair)
        text = str(size) if strides == size else f"{size}, {strides}"
        # torch pads equally at both ends, by at most half of the window.
        plain = all(a == b and 0 <= a <= k // 2 for (a, b), k in zip(pads, size, strict=True))
        settings = f"{size}, {strides}, {tuple(a for a, _ in pads)}" if any_pad else text
        if how == "avg" and any_pad and not counts_pads:
            settings += ", count_include_pad=False"

        def pool(x: str) -> str:
            function = f"functional.{how}_pool{rank}d"
            if plain:
                return f"{function}({x}, {settings})"
            if how == "max":
                return f"{function}({padded(x, pads, '-torch.inf')}, {text})"
            mean = f"{function}({padded(x, pads)}, {text})"
            if counts_pads:
                return mean
            # Only cells of the input count: divide by their share of each window.
            share = w.assign("share", f"{function}({padded(f'torch.ones_like({x}[:1])', pads)}, {text})")
            return f"{mean} / {share}"

        return _over_cells(w, node, data, rank, pool)

    return write


def _unpooling(w: SourceWriter, node: Node) -> str:
    """Put maxima back: a pool returns their places among the cells of the padded picture."""
    maxima, data = reads(node)
    get, rank = node.attributes, len(node.attributes["window"])
    check_fixed(node, data.shape)
    sizes = data.shape[len(data.shape) - rank :]
    _, pads = window(sizes, get["window"], get["strides"], get["pad"])
    if w.leading(maxima) != w.leading(data) or maxima.shape[:-rank] != data.shape[:-rank]:
        raise CompatError(
            f"{node.label}: expected both operands along the same axes, got {maxima.label} and {data.label}"
        )
    wide = tuple(n + a + b for n, (a, b) in zip(sizes, pads, strict=True))
    pooled = ", ".join(map(str, maxima.shape[len(maxima.shape) - rank :]))
    cells = f"{w.value(maxima)}.reshape(-1, 1, {pooled})"

    def unpool(x: str) -> str:
        function = f"functional.max_pool{rank}d"
        settings = f"{tuple(get['window'])}, {tuple(get['strides'])}, return_indices=True"
        places = w.assign("places", f"{function}({padded(x, pads, '-torch.inf')}, {settings})[1]")
        return padded(w.call("put_back", cells, places, wide), [(-a, -b) for a, b in pads])

    x = f"{w.value(data)}.reshape(-1, 1, {', '.join(map(str, sizes))})"
    return w.reshape(unpool(x), node, node.shape, w.value(data))


def _batch_normalization(w: SourceWriter, node: Node) -> str:
    x, *statistics = reads(node)
    get, rank = node.attributes, len(node.shape)
    leaves = [child for child in statistics if child.weights is not None]
    if len(leaves) != 5 or any(len(w.parts.readers[leaf]) != 1 for leaf in leaves):
        raise CompatError(f"{node.label}: expected weights that no other operation reads, got shared ones")
    scale, bias, mean, variance, count = values(*leaves)
    # Without ``spatial`` every element of a sample is a feature.
    kind = min(rank - 1, 3) if get["spatial"] and rank > 1 else 1
    kind = max(kind, 1)
    tensors = {
        "weight": scale.flatten(),
        "bias": bias.flatten(),
        "running_mean": mean.flatten(),
        "running_var": variance.flatten(),
        "num_batches_tracked": count.reshape(()).long(),
    }
    layer = w.add_layer(
        w.parts.labels.get(statistics[0], "batch_norm"),
        f"nn.BatchNorm{kind}d({scale.numel()}, eps={float(get['epsilon'])}{dtype_argument(element_type(x))})",
        tensors,
        all(leaf.weights is not None and leaf.weights.trains for leaf in leaves[:2]),
    )
    data = w.value(x)
    if get["spatial"] and rank > 1:
        return over_pictures(w, node, x, lambda pictures: f"{layer}({pictures})")
    if w.leading(x) == 2:
        real = w.assign("real", w.call("real_steps", data, w.lengths_of(x)))
        rows = f"{data}[{real}]" + (".flatten(1)" if rank > 1 else "")
        w.lines.append("# The statistics are of real steps, without padding.")
        y = w.assign("rows", f"{layer}({rows})" + (f".unflatten(1, {node.shape})" if rank > 1 else ""))
        return f"torch.zeros_like({data}).masked_scatter({real}{'[..., None]' * rank}, {y})"
    if rank == 1:
        return f"{layer}({data})"
    return w.reshape(f"{layer}({data}.reshape(-1, {scale.numel()}))", node, node.shape, data)


# ---- sequences ----------------------------------------------------------------------------------------


def _last(w: SourceWriter, node: Node) -> str:
    return w.call("last_step", w.value(node.inputs[0]), w.lengths_of(node.inputs[0]))


def _end(expression: str) -> Operator:
    """Mark the first or the last step of each sequence by 1."""

    def write(w: SourceWriter, node: Node) -> str:
        x, lengths = w.value(node.inputs[0]), w.lengths_of(node.inputs[0])
        step = f"torch.arange({x}.shape[1], device={x}.device)"
        return converted(node, f"({expression.format(step, lengths)}).expand({x}.shape[:2])")

    return write


def _over_steps(padding: str, template: str) -> Operator:
    """Reduce steps: padding gets a number, then an expression of the filled tensor, the tensor and lengths follows."""

    def write(w: SourceWriter, node: Node) -> str:
        child = node.inputs[0]
        lengths = w.lengths_of(child)
        filled = w.call("fill_padding", w.value(child), lengths, padding)
        return template.format(filled, f"{lengths}[:{', None' * len(child.shape)}]")

    return write


def _delay(w: SourceWriter, node: Node) -> str:
    data, initial = node.inputs
    return w.call("delay", w.value(data), w.lengths_of(data), node.attributes["steps"], w.align(initial, node))


def _broadcast_as(w: SourceWriter, node: Node) -> str:
    operand, like = node.inputs
    if w.leading(operand) == w.leading(node):
        return w.value(operand)
    value = w.value(operand) if w.number(operand) else w.align(operand, node)
    return w.expand(value, node, node.shape, w.value(like))


def _sequence_slice(w: SourceWriter, node: Node) -> str:
    child, begin, end = node.inputs[0], node.attributes["begin"], node.attributes["end"] or None
    arguments = w.value(child), w.lengths_of(child), begin, end
    axis = node.axes[1]
    lengths = w.parts.lengths[axis] if axis in w.parts.lengths else w.free("lengths")
    w.parts.lengths[axis] = lengths
    name = w.free("steps")
    w.lines.append(f"{name}, {lengths} = {w.call('slice_steps', *arguments)}")
    return name


def _unpack(w: SourceWriter, node: Node) -> str:
    child, padding = node.inputs[0], node.attributes.get("padding")
    return w.call("fill_padding", w.value(child), w.lengths_of(child), float(padding or 0.0))


def _all_steps(w: SourceWriter, node: Node) -> str:
    if node.attributes.get("span") is not None:
        raise CompatError(f"{node.label}: expected all steps, got a span of them; use a window of steps in torch")
    child = node.inputs[0]
    return converted(node, w.call("real_steps", w.value(child), w.lengths_of(child)))


def _ones(w: SourceWriter, node: Node) -> str:
    if node.attributes["factor"] != 1:
        raise CompatError(
            f"{node.label}: expected sequences of the same length, got {node.attributes['factor']:g} times as many "
            "steps; repeat the data's steps before the network"
        )
    x = w.value(node.inputs[0])
    return f"torch.ones({x}.shape[:2], device={x}.device{dtype_argument(element_type(node))})"


def _to_sequence(w: SourceWriter, node: Node) -> str:
    x = w.value(node.inputs[0])
    if node.axes[1] not in w.parts.lengths:
        full = f"torch.full((len({x}),), {x}.shape[1], device={x}.device)"
        sizes = f"{w.value(node.inputs[1])}.flatten().long()" if len(node.inputs) > 1 else full
        w.parts.lengths[node.axes[1]] = w.assign("lengths", sizes)
    if len(node.inputs) == 1:
        return x
    lengths = w.lengths_of(node)
    return f"{x}[:, : int({lengths}.max())]"


def _pick(w: SourceWriter, node: Node) -> str:
    """Return an output of a recurrence, all outputs of which one loop computes."""
    loop = node.inputs[0]
    number: int = node.attributes["index"]
    if loop not in w.loops:
        w.loops[loop] = write_loop(w, loop)
    results = w.loops[loop]
    if not results[number].isidentifier():
        output = resolve_alias(loop_parts(loop)[0][number])
        results[number] = w.assign(w.base_name(output), results[number])
    return results[number]


def _functions(*names: str) -> dict[str, Operator]:
    return {name: _of(f"torch.{name}({{0}})") for name in names}


OPERATORS: dict[str, Operator] = {
    **_functions("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "exp", "floor"),
    **_functions("relu", "sigmoid", "sign", "sin", "sinh", "square", "tan", "tanh"),
    "negate": _of("-{0}"),
    "softplus": _of("functional.softplus({0})"),
    "softsign": _of("functional.softsign({0})"),
    "selu": _of("functional.selu({0})"),
    "round": _of("torch.floor({0} + 0.5)"),
    "stop_gradient": _of("{0}.detach()"),
    "to_batch": _of("{0}"),
    "unpack_batch": _of("{0}"),
    "element_not": lambda w, node: converted(node, f"({w.value(node.inputs[0])} <= 0)"),
    "reciprocal": lambda w, node: w.call("divide", "1.0", w.value(node.inputs[0])),
    "log": _called("logarithm"),
    "sqrt": _called("square_root"),
    "straight_through": _called("sign_through"),
    "dropout": _dropout,
    "cast": _cast,
    "elu": _set("functional.elu({0}, {alpha})", alpha=1.0),
    "leaky_relu": _set("functional.leaky_relu({0}, {alpha})", alpha=0.01),
    "hard_sigmoid": _set("({alpha} * {0} + {beta}).clamp(0, 1)", alpha=0.2, beta=0.5),
    "plus": _binary("{0} + {1}"),
    "minus": _binary("{0} - {1}"),
    "element_times": _binary("{0} * {1}"),
    "element_divide": _quotient,
    "element_max": _choice("torch.where({0} > {1}, {0}, {1})"),
    "element_min": _choice("torch.where({0} < {1}, {0}, {1})"),
    "pow": _power,
    "log_add_exp": _choice("torch.logaddexp({0}, {1})"),
    "equal": _truth("{0} == {1}"),
    "not_equal": _truth("{0} != {1}"),
    "less": _truth("{0} < {1}"),
    "less_equal": _truth("{0} <= {1}"),
    "greater": _truth("{0} > {1}"),
    "greater_equal": _truth("{0} >= {1}"),
    "element_and": _truth("({0} > 0) & ({1} > 0)"),
    "element_or": _truth("({0} > 0) | ({1} > 0)"),
    "element_xor": _truth("({0} > 0) ^ ({1} > 0)"),
    "element_select": _choice("torch.where({0} != 0, {1}, {2})"),
    "clip": _clip,
    "param_relu": _choice("torch.where({1} >= 0, {1}, {0} * {1})"),
    "softmax": _along("torch.softmax({0}, {1})"),
    "log_softmax": _along("torch.log_softmax({0}, {1})"),
    "hardmax": _along("one_at_largest({0}, {1})", "one_at_largest"),
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
    **{f"reduce_{how}": _reduce(how) for how in (*_REDUCTIONS, "prod")},
    "argmax": _index("argmax"),
    "argmin": _index("argmin"),
    "reduce_batch": _reduce_batch,
    "reduce_everything": _reduce_everything,
    "global_max_pooling": _per_channel("max"),
    "global_average_pooling": _per_channel("mean"),
    "convolution": _convolution,
    "convolution_transpose": _convolution_transpose,
    "max_pooling": _pooling("max"),
    "average_pooling": _pooling("avg"),
    "max_unpooling": _unpooling,
    "batch_normalization": _batch_normalization,
    "sequence_first": _of("{0}[:, 0]"),
    "sequence_last": _last,
    "sequence_is_first": _end("{0} == 0"),
    "sequence_is_last": _end("{0} == {1}[:, None] - 1"),
    "sequence_reduce_sum": _over_steps("0.0", "{0}.sum(1)"),
    "sequence_reduce_mean": _over_steps("0.0", "{0}.sum(1) / {1}"),
    "sequence_reduce_max": _over_steps("-torch.inf", "{0}.amax(1)"),
    "sequence_softmax": _over_steps("-torch.inf", "torch.softmax({0}, 1)"),
    "sequence_broadcast_as": _broadcast_as,
    "sequence_slice": _sequence_slice,
    "sequence_unpacked": _unpack,
    "sequence_mask": _all_steps,
    "sequence_ones": _ones,
    "to_sequence": _to_sequence,
    "to_sequence_like": _of("{0}"),
    "delay": _delay,
    **dict.fromkeys((*CELLS, "gru"), write_layer),
    "pick": _pick,
}
