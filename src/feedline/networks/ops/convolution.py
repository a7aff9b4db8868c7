"""Convolution and pooling over the last axes of a sample, channels first."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from feedline.networks.node import UNKNOWN, Node
from feedline.networks.ops.align import adapters, align_inputs, dense
from feedline.networks.packed_minibatch import PackedBatch, Run
from feedline.networks.registry import Shape, Site, declare
from feedline.networks.shapes import fits_length, fits_lengths

Pads = list[tuple[int, int]]

# torch's functions by the number of spatial axes.
ByRank = dict[int, Callable[..., Any]]
CONVOLVE: ByRank = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
TRANSPOSED: ByRank = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}
MAXIMUM: ByRank = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
AVERAGE: ByRank = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


def window(
    sizes: Sequence[int], reach: Sequence[int], strides: Sequence[int], pad: Sequence[bool], ceil: bool = False
) -> tuple[Shape, Pads]:
    """Return the sizes after sliding a window over the axes, and the padding before and after.

    With ``ceil`` an axis without padding gets a last window that begins inside and reaches beyond the end.

    Padded axes get ``ceil(size / stride)`` centred windows, with an odd cell of padding at the end. ``reach`` is the
    number of cells from the first to the last of a dilated kernel, both included.
    """
    out, pads = [], []
    for size, k, stride, padded in zip(sizes, reach, strides, pad, strict=True):
        if padded:
            count = (size - 1) // stride + 1
            extra = size - ((count - 1) * stride + 1)
            before = (k - 1) // 2 - extra // 2
            pads.append((before, (k - 1) - (k - 1) // 2 - (extra - extra // 2)))
        else:
            count = (size - k) // stride + 1
            beyond = ceil and size >= k and (count - 1) * stride + k < size
            count += beyond
            pads.append((0, (count - 1) * stride + k - size if beyond else 0))
        out.append(count)
    return tuple(out), pads


def _spatial(site: Site) -> tuple[Shape, Shape]:
    """Return the shapes of the input and of the kernel."""
    kernel, x = site.shape(0), site.shape(1)
    rank = len(kernel) - 2
    if rank not in CONVOLVE or len(x) != rank + 1:
        site.refuse("a kernel (filters, channels, *window) of 1 to 3 axes and an input (channels, *sizes)")
    return x, kernel


def _reach(kernel: Sequence[int], dilation: Sequence[int]) -> list[int]:
    return [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]


class _Settings(NamedTuple):
    """One for each spatial axis."""

    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    pad: tuple[bool, ...]


def _settings(attributes: Mapping[str, Any], rank: int) -> _Settings | None:
    """Return settings for ``rank`` axes, or None if the attributes have another number.

    CNTK's functions count the axes of the kernel, and one too few if the kernel has no axis for filters.
    """
    settings = _Settings(*(tuple(attributes[name]) for name in _Settings._fields))
    if len(settings.strides) == rank:
        return settings
    if len(settings.strides) != rank - 1 or any(len(set(values)) > 1 for values in settings):
        return None
    return _Settings(settings.strides[:1] * rank, settings.dilation[:1] * rank, settings.pad[:1] * rank)


def _convolved_shape(site: Site) -> Shape:
    groups = site.attributes["groups"]
    if len(site.shape(0)) == len(site.shape(1)) and UNKNOWN not in site.shape(0):
        x, kernel = site.shape(1), (1, *site.shape(0))  # one filter, without an axis for filters
    else:
        x, kernel = _spatial(site)
    settings = _settings(site.attributes, len(x) - 1)
    if settings is None or len(x) - 1 not in CONVOLVE:
        site.refuse("a kernel (filters, channels, *window) or (channels, *window), and settings for 1 to 3 axes")
    if kernel[1] == UNKNOWN:
        kernel = (kernel[0], x[0] // groups, *kernel[2:])
        site.fix_shape(0, kernel)
    if not fits_length(x[0], kernel[1] * groups):
        site.refuse("as many channels in the kernel as in the input")
    out, _ = window(x[1:], _reach(kernel[2:], settings.dilation), settings.strides, settings.pad)
    if min(out) < 1:
        site.refuse("a window that fits the input")
    return (kernel[0], *out)


def _flat(pads: Pads) -> list[int]:
    return [n for pair in reversed(pads) for n in pair]


def _convolution(node: Node) -> Run:
    kernel, x_shape, groups = node.inputs[0].shape, node.inputs[1].shape, node.attributes["groups"]
    rank = len(x_shape) - 1
    single, function, settings = len(kernel) == len(x_shape), CONVOLVE[rank], _settings(node.attributes, rank)
    assert settings is not None
    strides, dilation, pad = settings
    _, pads = window(x_shape[1:], _reach(kernel[len(kernel) - rank :], dilation), strides, pad)
    symmetric = all(a == b >= 0 for a, b in pads)
    padding = [a for a, _ in pads] if symmetric else 0

    def run(batch: PackedBatch, w: Any, x: Any, bias: Any = None) -> Any:
        x = dense(x, node)
        rows = x if node.axes else x[None]
        if not symmetric:
            rows = functional.pad(rows, _flat(pads))
        if bias is not None:
            bias = bias.reshape(-1)
        y = function(rows, w[None] if single else w, bias, strides, padding, dilation, groups)
        return y if node.axes else y[0]

    return run


def fuse_bias_of_filters(node: Node, below: Sequence[Node]) -> tuple[Node, Node, Run] | None:
    """Run the sum of a convolution and a number for each filter as one operation."""
    for part, bias in (below, below[::-1]):
        if part.op == "convolution" and bias.weights is not None and part.shape == node.shape:
            kernel = part.inputs[0]
            one_each = (part.shape[0], *(1,) * (len(part.shape) - 1))
            if bias.shape == one_each and kernel.weights is not None and kernel.weights.dtype == bias.weights.dtype:
                return part, bias, _convolution(part)
    return None


declare("convolution", _convolved_shape, _convolution, fresh=True)


def _transposed_shape(site: Site) -> Shape:
    x, kernel = _spatial(site)
    get = site.attributes
    if kernel[0] == UNKNOWN:
        kernel = (x[0], *kernel[1:])
        site.fix_shape(0, kernel)
    if not fits_length(kernel[0], x[0]):
        site.refuse("a kernel (channels, filters, *window) for the input's channels")
    if get.get("shape"):
        out, _ = window(get["shape"], kernel[2:], get["strides"], get["pad"])
        if out != x[1:]:
            site.refuse(f"an output_shape of which a convolution makes the input, not {get['shape']}")
        return (kernel[1], *get["shape"])
    # The smallest shape that a convolution with these settings reduces to the input's, with every cell in a window.
    return (
        kernel[1],
        *(
            (n - 1) * s + (1 if p else k)
            for n, k, s, p in zip(x[1:], kernel[2:], get["strides"], get["pad"], strict=True)
        ),
    )


def _convolution_transpose(node: Node) -> Run:
    kernel, get = node.inputs[0].shape, node.attributes
    function, strides = TRANSPOSED[len(kernel) - 2], list(get["strides"])
    _, pads = window(node.shape[1:], kernel[2:], strides, get["pad"])

    def run(batch: PackedBatch, w: Any, x: Any) -> Any:
        x = dense(x, node)
        y = function(x if node.axes else x[None], w, None, strides)
        # The padding of the forward convolution is cropped. Cells that it did not reach at the end are 0.
        sizes = y.shape[2:]
        cut = [(-a, n + a - have) for (a, _), n, have in zip(pads, node.shape[1:], sizes, strict=True)]
        y = functional.pad(y, _flat(cut))
        return y if node.axes else y[0]

    return run


declare("convolution_transpose", _transposed_shape, _convolution_transpose)


def _pooled_shape(site: Site) -> Shape:
    x, get = site.shape(0), site.attributes
    rank = len(get["window"])
    if not 1 <= rank <= 3 or len(x) < rank:
        site.refuse(f"an input of at least {rank} axes, for the window {tuple(get['window'])}")
    out, _ = window(x[len(x) - rank :], get["window"], get["strides"], get["pad"], get.get("ceil", False))
    if min(out) < 1:
        site.refuse(f"a window that fits the input, not {tuple(get['window'])}")
    return (*x[: len(x) - rank], *out)


def _pooling(how: Callable[..., Any]) -> Callable[[Node], Run]:
    def lower(node: Node) -> Run:
        get = node.attributes
        rank, size = len(get["window"]), list(get["window"])
        shape = node.inputs[0].shape
        sizes = shape[len(shape) - rank :]
        _, pads = window(sizes, size, get["strides"], get["pad"], get.get("ceil", False))
        padded = any(p != (0, 0) for p in pads)
        pool = how(rank, size, list(get["strides"]), _flat(pads), padded)
        if padded and get.get("count_pad", False):
            pool = _with_zeros(rank, size, list(get["strides"]), _flat(pads))

        def run(batch: PackedBatch, x: Any) -> Any:
            x = dense(x, node)
            if x.ndim == rank + 2:  # a minibatch of channels, as convolutions return it
                return pool(_by_channels(x))
            lead = x.shape[: x.ndim - rank]
            y = pool(x.reshape(-1, 1, *sizes))
            return y.reshape(*lead, *y.shape[2:])

        return run

    return lower


def _by_channels(x: torch.Tensor) -> torch.Tensor:
    """Return rows with their channels last in memory if torch pools these faster: up to 10 times on the CPU."""
    if x.ndim == 4 and x.is_cpu and x.shape[1] >= _MANY_CHANNELS:
        return x.contiguous(memory_format=torch.channels_last)
    return x


_MANY_CHANNELS = 16


def _maximum(rank: int, size: list[int], strides: list[int], pads: list[int], padded: bool) -> Callable[..., Any]:
    function = MAXIMUM[rank]
    if not padded:
        return lambda x: function(x, size, strides)
    return lambda x: function(functional.pad(x, pads, value=-torch.inf), size, strides)


def _average(rank: int, size: list[int], strides: list[int], pads: list[int], padded: bool) -> Callable[..., Any]:
    function = AVERAGE[rank]
    if not padded:
        return lambda x: function(x, size, strides)

    def pool(x: Any) -> Any:
        # The average is over cells of the input, without padding.
        cells = function(functional.pad(torch.ones_like(x[:1]), pads), size, strides)
        return function(functional.pad(x, pads), size, strides) / cells

    return pool


def _with_zeros(rank: int, size: list[int], strides: list[int], pads: list[int]) -> Callable[..., Any]:
    """Average that counts the padding."""
    return lambda x: AVERAGE[rank](functional.pad(x, pads), size, strides)


declare("max_pooling", _pooled_shape, _pooling(_maximum))
declare("average_pooling", _pooled_shape, _pooling(_average))


_INDICES: ByRank = {rank: getattr(functional, f"max_pool{rank}d_with_indices") for rank in (1, 2, 3)}


def _unpooled_shape(site: Site) -> Shape:
    x, like, get = site.shape(0), site.shape(1), site.attributes
    rank = len(get["window"])
    if not 1 <= rank <= 3 or len(like) < rank:
        site.refuse(f"a pooled operand of at least {rank} axes, for the window {tuple(get['window'])}")
    out, _ = window(like[len(like) - rank :], get["window"], get["strides"], get["pad"])
    if not fits_lengths(x, (*like[: len(like) - rank], *out)):
        site.refuse("an operand with the shape of the other one after pooling")
    return like


def _max_unpooling(node: Node) -> Run:
    get, like = node.attributes, node.inputs[1].shape
    rank, size, strides = len(get["window"]), list(get["window"]), list(get["strides"])
    sizes = like[len(like) - rank :]
    _, pads = window(sizes, size, strides, get["pad"])
    adapt = adapters(node)
    inside = (..., *(slice(a, a + n) for (a, _), n in zip(pads, sizes, strict=True)))

    def run(batch: PackedBatch, *tensors: Any) -> Any:
        x, pooled = align_inputs(adapt, node, batch, tensors)
        lead = (batch.rows(node.axes), *like[: len(like) - rank]) if node.axes else like[: len(like) - rank]
        x = x.expand(*lead, *x.shape[x.ndim - rank :])
        wide = functional.pad(
            pooled.detach().expand(*lead, *sizes).reshape(-1, 1, *sizes), _flat(pads), value=-torch.inf
        )
        _, where = _INDICES[rank](wide, size, strides)
        flat = x.new_zeros(len(wide), math.prod(wide.shape[2:]))
        y = flat.scatter(1, where.reshape(len(wide), -1), x.reshape(len(wide), -1))
        return y.reshape(*lead, *wide.shape[2:])[inside]

    return run


declare("max_unpooling", _unpooled_shape, _max_unpooling)
