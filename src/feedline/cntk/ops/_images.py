"""Convolution, pooling, normalisation and dropout."""

from __future__ import annotations

import builtins
import warnings
from typing import TYPE_CHECKING, Any

from feedline._facades import defined_in
from feedline.cntk._nodes import constant_node, dims, node_of, nodes_of
from feedline.cntk._seeds import rng_seed
from feedline.cntk._settings import take_plain_settings
from feedline.cntk.ops._elementwise import element_divide, minus, plus, pow, sqrt, square
from feedline.cntk.ops._function import Function
from feedline.cntk.ops._graphs import alias
from feedline.cntk.ops._operation_helpers import as_list, at_least, build, choice, late, spatial
from feedline.cntk.ops._reductions import reduce_mean
from feedline.cntk.ops._shape import pad, slice
from feedline.cntk.variables import Constant
from feedline.errors import CompatError
from feedline.networks import apply
from feedline.networks.traverse import element_type

MAX_POOLING, AVG_POOLING = 0, 1
PoolingType_Max, PoolingType_Average = MAX_POOLING, AVG_POOLING
MAX_UNPOOLING = 0


def convolution(
    convolution_map: Any,
    operand: Any,
    strides: Any = (1,),
    sharing: Any = (True,),
    auto_padding: Any = (True,),
    sequential: bool = False,
    dilation: Any = (1,),
    reduction_rank: int = 1,
    groups: int = 1,
    max_temp_mem_size_in_samples: int = 0,
    name: str = "",
) -> Function:
    """Convolve samples (channels, *sizes) with a kernel (filters, channels, *window).

    Args:
        convolution_map: kernel. With as many axes as the data, (channels, *window), it is a single filter.
        operand: data.
        strides: stride for all axes or for each. A leading stride for channels is dropped.
        sharing: True, the only supported value.
        auto_padding: whether to pad each axis, so that windows are centred on all (strided) cells.
        sequential: whether the first axis of the window is along sequences. The first items of the other settings are
            for it. With padding, windows are around every (strided) step, without padding within each sequence.
        dilation: distance between cells of a kernel.
        reduction_rank: 1, or 0 for data without channels.
        groups: number of groups of channels, which are convolved separately.
        max_temp_mem_size_in_samples: accepted, without effect.
        name: name of the operation.

    Raises:
        CompatError: ``sharing=False``.
        ValueError: strides, dilation or groups below 1.
    """
    at_least(1, strides=strides, dilation=dilation, groups=groups)
    if not all(as_list(sharing)):
        raise CompatError("expected a shared kernel, got sharing=False: splice and multiply slices of the operand")
    if sequential:
        settings = (strides, auto_padding, dilation, reduction_rank, groups)
        return _over_steps(convolution_map, operand, settings, name)
    kernel, data = nodes_of(convolution_map, operand)
    data_shape = data.type.shape
    if reduction_rank == 0 and data_shape is not None and len(data_shape) == len(kernel.shape):
        kernel = apply("reshape", [kernel], {"shape": (1,), "begin": 0, "end": 0})  # a single filter
    rank = len(kernel.shape) - 1 - reduction_rank
    if reduction_rank == 1 and data_shape is not None and len(data_shape) == len(kernel.shape):
        rank += 1
    if reduction_rank == 0:
        kernel = apply("reshape", [kernel], {"shape": (1,), "begin": 1, "end": 1})
        data = apply("reshape", [data], {"shape": (1,), "begin": 0, "end": 0})
    attributes = {**_steps(strides, auto_padding, rank), "dilation": spatial(dilation, rank, 1), "groups": groups}
    return Function.of([apply("convolution", [kernel, data], attributes, name)])


def _over_steps(convolution_map: Any, operand: Any, settings: tuple[Any, ...], name: str) -> Function:
    """Convolve along sequences: the steps of each window become an axis that is as long as the kernel."""
    strides, auto_padding, dilation, reduction_rank, groups = settings
    kernel, data = nodes_of(convolution_map, operand)
    rank = len(kernel.shape) - 1 - reduction_rank
    if rank < 1:
        raise ValueError(f"expected a kernel with an axis for steps, got {kernel.shape}")
    moves, pads, gaps = (spatial(v, rank, b) for v, b in ((strides, 1), (auto_padding, False), (dilation, 1)))
    reach = (kernel.shape[1 + reduction_rank] - 1) * gaps[0]
    before = reach // 2
    if reduction_rank == 0:
        kernel = apply("reshape", [kernel], {"shape": (1,), "begin": 1, "end": 1})
        data = apply("reshape", [data], {"shape": (1,), "begin": 0, "end": 0})
    steps = []
    for at in range(0, reach + 1, gaps[0]):
        moved = data if at == before else apply("delay", [data, constant_node(0.0)], {"steps": before - at})
        steps.append(apply("reshape", [moved], {"shape": (1,), "begin": 1, "end": 1}))
    windows = steps[0] if len(steps) == 1 else apply("splice", steps, {"axis": 1})
    if not pads[0] and reach:
        windows = apply("sequence_slice", [windows], {"begin": before, "end": before - reach})
    if moves[0] > 1:
        windows = apply("sequence_every", [windows], {"stride": moves[0]})
    attributes = {"strides": (1, *moves[1:]), "pad": (False, *pads[1:]), "dilation": (1, *gaps[1:]), "groups": groups}
    result = apply("convolution", [kernel, windows], attributes)
    return Function.of([apply("reshape", [result], {"shape": (), "begin": 1, "end": 2}, name)])


def convolution_transpose(
    convolution_map: Any,
    operand: Any,
    strides: Any = (1,),
    sharing: Any = (True,),
    auto_padding: Any = (True,),
    output_shape: Any = None,
    dilation: Any = (1,),
    reduction_rank: int = 1,
    max_temp_mem_size_in_samples: int = 0,
    name: str = "",
) -> Function:
    """Return the transposed convolution with a kernel (channels, filters, *window), the gradient of a convolution.

    A kernel (channels, *window), with as many axes as the data, is a single filter. With ``reduction_rank=0`` data and
    kernel have no axis for channels.

    Raises:
        CompatError: ``sharing=False``, or dilation.
    """
    at_least(1, strides=strides)
    if not all(as_list(sharing)) or set(as_list(dilation)) != {1}:
        raise CompatError("expected a shared kernel without dilation")
    kernel, data = nodes_of(convolution_map, operand)
    data_shape = data.type.shape
    if data_shape is not None and len(data_shape) == len(kernel.shape):  # a single filter, without an axis for filters
        kernel = apply("reshape", [kernel], {"shape": (1,), "begin": reduction_rank, "end": reduction_rank})
    if reduction_rank == 0:
        kernel = apply("reshape", [kernel], {"shape": (1,), "begin": 0, "end": 0})
        data = apply("reshape", [data], {"shape": (1,), "begin": 0, "end": 0})
    rank = len(kernel.shape) - 2
    sizes = None if output_shape is None else dims(output_shape)
    shape = None if sizes is None else sizes[len(sizes) - rank :]
    attributes = {**_steps(strides, auto_padding, rank), "shape": shape}
    return Function.of([apply("convolution_transpose", [kernel, data], attributes, name)])


def pooling(
    operand: Any,
    pooling_type: int,
    pooling_window_shape: Any,
    strides: Any = (1,),
    auto_padding: Any = (False,),
    ceil_out_dim: bool = False,
    include_pad: bool = False,
    name: str = "",
) -> Function:
    """Return the maximum or average of each window over the last axes.

    Args:
        operand: data.
        pooling_type: `MAX_POOLING` or `AVG_POOLING`.
        pooling_window_shape: shape of the window.
        strides: stride for all axes or for each.
        auto_padding: whether to pad each axis, so that windows are centred on all (strided) cells.
        ceil_out_dim: whether a last window counts that reaches beyond an unpadded axis, with its cells inside.
        include_pad: whether averages count padding, as zeros.
        name: name of the operation.

    Raises:
        ValueError: another type, or a window or stride below 1.
    """
    size = dims(pooling_window_shape)
    op = choice("pooling_type", pooling_type, {MAX_POOLING: "max_pooling", AVG_POOLING: "average_pooling"})
    at_least(1, pooling_window_shape=size, strides=strides)
    attributes: dict[str, Any] = {"window": size, **_steps(strides, auto_padding, len(size))}
    if ceil_out_dim:
        attributes["ceil"] = True
    if include_pad and pooling_type == AVG_POOLING:
        attributes["count_pad"] = True
    return build(op, [operand], attributes, name)


def roipooling(
    operand: Any, rois: Any, pooling_type: int, roi_output_shape: Any, spatial_scale: float, name: str = ""
) -> Function:
    """Return the maxima of the windows of regions, (regions, channels, height, width) for each sample.

    A region is scaled and rounded. Its windows may share a cell. A window without cells is 0.

    Args:
        operand: data (channels, height, width).
        rois: regions (count, 4), each (x1, y1, x2, y2), including both ends. They get no gradient.
        pooling_type: `MAX_POOLING`.
        roi_output_shape: number of windows down and across.
        spatial_scale: size of ``operand`` divided by the size of the picture whose pixels regions count.
        name: name of the operation.

    Raises:
        ValueError: another type, or other shapes.
    """
    if pooling_type != MAX_POOLING:
        raise ValueError(f"expected MAX_POOLING, got {pooling_type}")
    at_least(1, roi_output_shape=roi_output_shape)
    attributes = {"size": dims(roi_output_shape), "scale": float(spatial_scale)}
    return build("roi_pooling", [operand, rois], attributes, name)


def batch_normalization(
    operand: Any,
    scale: Any,
    bias: Any,
    running_mean: Any,
    running_inv_std: Any,
    spatial: bool,
    normalization_time_constant: float = 5000,
    blend_time_constant: float = 0,
    epsilon: float = 0.00001,
    use_cudnn_engine: bool = False,
    disable_regularization: bool = False,
    name: str = "",
    running_count: Any = None,
) -> Function:
    """Normalise by the statistics of the minibatch in training, and by running statistics otherwise.

    Args:
        operand: data with a batch axis.
        scale, bias: parameters with the shape of a channel (``spatial``) or of a sample.
        running_mean, running_inv_std: constants of that shape. The second is the variance, in spite of its name.
        spatial: whether to compute one statistic per channel, the first axis.
        normalization_time_constant: samples after which old statistics have decayed to 1/e. Negative: average all.
        blend_time_constant: weight in samples of the running statistics in training.
        epsilon: number added to the variance.
        use_cudnn_engine, disable_regularization: accepted, without effect.
        name: name of the operation.
        running_count: scalar constant, the number of samples in the running statistics. None, with a warning, means a
            new one.
    """
    attributes = {
        "spatial": builtins.bool(spatial),
        "normalization_time_constant": float(normalization_time_constant),
        "blend_time_constant": float(blend_time_constant),
        "epsilon": float(epsilon),
    }
    if running_count is None:
        warnings.warn(
            "batch_normalization: expected a running_count, got none, and counts samples in a new constant; pass "
            "running_count=constant(0)",
            stacklevel=2,
        )
        running_count = Constant(0, name="aggregate_count")
    kind = element_type(node_of(operand))
    # As in CNTK, statistics may be of another element type.
    nodes = [node_of(o, kind) for o in (operand, scale, bias, running_mean, running_inv_std, running_count)]
    return Function.of([apply("batch_normalization", nodes, attributes, name)])


def dropout(x: Any, dropout_rate: float = 0.0, seed: Any = None, name: str = "") -> Function:
    """In training, zero elements with this probability, and scale up the rest.

    Without a ``seed``, torch's generator decides which.
    """
    if not 0 <= dropout_rate < 1:
        raise ValueError(f"expected a dropout rate of at least 0 and below 1, got {dropout_rate}")
    return build("dropout", [x], {"rate": float(dropout_rate), **rng_seed(seed)}, name)


def unpooling(
    operand: Any,
    pooling_input: Any,
    unpooling_type: int,
    unpooling_window_shape: Any,
    strides: Any = (1,),
    auto_padding: Any = (False,),
    name: str = "",
) -> Function:
    """Put the maxima of windows of ``pooling_input`` back to their places, with 0 elsewhere.

    Raises:
        ValueError: another type.
    """
    if unpooling_type != MAX_UNPOOLING:
        raise ValueError(f"expected MAX_UNPOOLING, got {unpooling_type}")
    size = dims(unpooling_window_shape)
    at_least(1, unpooling_window_shape=size, strides=strides)
    attributes = {"window": size, **_steps(strides, auto_padding, len(size))}
    return build("max_unpooling", [operand, pooling_input], attributes, name)


@late(1)
def mean_variance_normalization(
    operand: Any,
    epsilon: float = 0.00001,
    use_stats_across_channels: bool = False,
    do_variance_scaling: bool = True,
    name: str = "",
) -> Function:
    """Subtract the mean and divide by the standard deviation plus ``epsilon``, per channel or over a whole sample."""
    rank = len(node_of(operand).shape)
    axes = list(range(0 if use_stats_across_channels else 1, rank))
    if not axes:
        raise ValueError("expected an operand (channels, *sizes), got a vector: pass use_stats_across_channels=True")
    centred = minus(operand, reduce_mean(operand, axes))
    if not do_variance_scaling:
        return alias(centred, name)
    return element_divide(centred, sqrt(reduce_mean(square(centred), axes)) + epsilon, name)


@late(1)
def local_response_normalization(
    operand: Any, depth_radius: int, bias: float, alpha: float, beta: float, name: str = ""
) -> Function:
    """Return ``x / (bias + alpha * s) ** beta``, where s is the mean square of channels within ``depth_radius``.

    Channels beyond either end count as 0.
    """
    at_least(0, depth_radius=depth_radius)
    channels, rank = node_of(operand).shape[0], len(node_of(operand).shape)
    around = pad(square(operand), [(depth_radius, depth_radius), *[(0, 0)] * (rank - 1)])
    total = plus(*(slice(around, 0, i, i + channels) for i in range(2 * depth_radius + 1))) if depth_radius else around
    return element_divide(operand, pow(total * (alpha / (2 * depth_radius + 1)) + bias, beta), name)


def _steps(strides: Any, auto_padding: Any, rank: int) -> dict[str, Any]:
    return {"strides": spatial(strides, rank, 1), "pad": spatial(auto_padding, rank, False)}


if not TYPE_CHECKING:  # type checkers find out themselves
    take_plain_settings(globals())
    __all__ = defined_in(globals())
