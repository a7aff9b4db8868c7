"""`cntk.layers.layers`: dense, embedding, convolution, pooling, normalisation, dropout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from feedline.cntk import ops
from feedline.cntk._names import names_of
from feedline.cntk._nodes import dims
from feedline.cntk._settings import take_plain_settings
from feedline.cntk.default_options import (
    default_override_or,
    get_default_override,
    is_default_override,
    overridable,
)
from feedline.cntk.initializer import glorot_uniform
from feedline.cntk.layers._layer_helpers import INFERRED, activate, for_each_axis, layer, parameter
from feedline.cntk.ops._operation_helpers import at_least, build
from feedline.cntk.ops.functions import Function
from feedline.cntk.variables import Constant
from feedline.errors import CompatError

__all__, __getattr__ = names_of(__name__)


@overridable
def Dense(
    shape: Any,
    activation: Any = default_override_or(None),
    init: Any = default_override_or(glorot_uniform()),
    input_rank: int | None = None,
    map_rank: int | None = None,
    bias: Any = default_override_or(True),
    init_bias: Any = default_override_or(0),
    name: str = "",
) -> Function:
    """Return a fully connected layer, ``activation(x W + b)``.

    Args:
        shape: shape of the result.
        activation: a function, or None.
        init: initializer of W, (*input, *shape).
        input_rank: number of trailing axes of the input to contract with W. None means all.
        map_rank: number of leading axes of the input to keep, instead of ``input_rank``.
        bias: whether to add b.
        init_bias: initial value of b, (*shape).
        name: name of the layer.

    Raises:
        ValueError: both ``input_rank`` and ``map_rank``.
    """
    if input_rank is not None and map_rank is not None:
        raise ValueError("Dense: expected input_rank or map_rank, got both")
    out = dims(shape)
    W = parameter(INFERRED * (1 if input_rank is None else input_rank) + out, init, "W", output_rank=len(out))
    b = parameter(out, init_bias, "b") if bias else None
    map_axes = -1 if input_rank is not None else map_rank or 0

    def dense(x: Any) -> Any:
        y = ops.times(x, W, output_rank=len(out), infer_input_rank_to_map=map_axes)
        return activate(y if b is None else y + b, activation)

    return layer(dense, "Dense", name, {"W": W, "b": b})


def Embedding(
    shape: Any = None, init: Any = default_override_or(glorot_uniform()), weights: Any = None, name: str = ""
) -> Function:
    """Return a layer that looks up embeddings of one-hot samples, ``x E``.

    Args:
        shape: shape of an embedding.
        init: initializer of E, (classes, *shape).
        weights: array to use as a constant E instead of learning it.
        name: name of the layer.

    Raises:
        ValueError: neither a shape nor weights, or both, or weights and ``init``.
    """
    if (shape is None) == (weights is None):
        raise ValueError("Embedding: expected a shape or weights, got both or neither")
    if weights is None:
        init = get_default_override(Embedding, init=init)
        E: Any = parameter(INFERRED + dims(shape), init, "E", output_rank=len(dims(shape)))
    elif not is_default_override(init):
        raise ValueError("Embedding: expected init or weights, got both; weights are a constant")
    else:
        E = Constant(weights, name="E")
    rank = len(E.shape) - 1
    return layer(lambda x: ops.times(x, E, output_rank=rank), "Embedding", name, {"E": E})


@overridable
def Convolution(
    filter_shape: Any,
    num_filters: Any = None,
    sequential: bool = False,
    activation: Any = default_override_or(None),
    init: Any = default_override_or(glorot_uniform()),
    pad: Any = default_override_or(False),
    strides: Any = 1,
    sharing: bool = True,
    bias: Any = default_override_or(True),
    init_bias: Any = default_override_or(0),
    reduction_rank: int = 1,
    transpose_weight: bool = False,
    dilation: Any = 1,
    groups: int = 1,
    max_temp_mem_size_in_samples: int = 0,
    op_name: str = "Convolution",
    name: str = "",
) -> Function:
    """Return a convolution over samples (channels, *sizes).

    Args:
        filter_shape: shape of the window.
        num_filters: number of output channels. None, with ``reduction_rank=0``: no channel axis.
        sequential: whether the first axis of the window is along sequences, of samples (channels, *other sizes).
        activation: a function, or None.
        init: initializer of W, (filters, channels, *window).
        pad: whether to pad all axes, or each, so that windows are centred on every (strided) cell.
        strides: stride for all axes or for each.
        sharing: True, the only supported value.
        bias: whether to add b.
        init_bias: initial value of b, (filters, 1, ...), without an axis for steps.
        reduction_rank: 1, or 0 for data without channels.
        transpose_weight: not supported. Use `ConvolutionTranspose`.
        dilation: distance between cells of a window.
        groups: number of groups of channels, which are convolved separately.
        max_temp_mem_size_in_samples: accepted, without effect.
        op_name, name: names of the operation and of the block.

    Raises:
        CompatError: ``sharing=False`` or ``transpose_weight``.
        NotImplementedError: another ``reduction_rank``.
        ValueError: settings for another number of axes, groups below 1, or an array as ``init`` that is not a kernel of
            data without channels, (filters, *window).
    """
    window, filters, steps = _window(
        filter_shape, num_filters, (strides, pad, dilation, groups), (sharing, transpose_weight), reduction_rank
    )
    W = _kernel(window, filters, init, reduction_rank)
    b = parameter((filters or (1,)) + (1,) * len(window), init_bias, "b") if bias else None
    convolve = _convolution(W, b, sequential, steps, (filters, reduction_rank, activation))
    return layer(convolve, op_name, name, {"W": W, "b": b})


def _window(
    filter_shape: Any, num_filters: Any, steps: tuple[Any, ...], kinds: tuple[Any, ...], reduction_rank: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[Any, ...]]:
    """Return the window, the number of filters or (), and strides, padding and dilation for each axis, and groups."""
    strides, pad, dilation, groups = steps
    sharing, transpose_weight = kinds
    window = dims(filter_shape)
    at_least(1, filter_shape=window)
    if not all(for_each_axis(window, sharing, "sharing")) or transpose_weight:
        raise CompatError(
            "expected a shared kernel, got sharing=False or transpose_weight; use ConvolutionTranspose for transposed "
            "weights"
        )
    if reduction_rank not in (0, 1):
        raise NotImplementedError(f"expected a reduction_rank of 0 or 1, got {reduction_rank}")
    if groups < 1:
        raise ValueError(f"expected at least one group, got {groups}")
    each = [for_each_axis(window, v, s) for v, s in ((strides, "strides"), (pad, "pad"), (dilation, "dilation"))]
    return window, dims(num_filters) if num_filters else (), (*each, groups)


def _kernel(window: tuple[int, ...], filters: tuple[int, ...], init: Any, reduction_rank: int) -> Any:
    """Return the parameter of a convolution."""
    if isinstance(init, np.ndarray):
        if reduction_rank or init.shape != filters + window:
            raise ValueError(
                f"expected an initializer, or with reduction_rank=0 an array of shape {filters + window}, got an array "
                f"of shape {init.shape} with reduction_rank={reduction_rank}; set W.value once its shape is known"
            )
        init = init.reshape(*(filters or (1,)), 1, *window)
    return parameter((*(filters or (1,)), *INFERRED, *window), init, "W", filter_rank=len(window), output_rank=-1)


def _convolution(
    W: Any, b: Any, sequential: bool, steps: tuple[Any, ...], kind: tuple[Any, ...]
) -> Callable[[Any], Any]:
    """Return the function of a layer with these parameters."""
    (strides, pad, dilation, groups), (filters, reduction_rank, activation) = steps, kind

    def convolve(x: Any) -> Any:
        x = x if reduction_rank else ops.reshape(x, (1,), 0, 0)
        y = ops.convolution(W, x, strides, auto_padding=pad, sequential=sequential, dilation=dilation, groups=groups)
        if b is not None:
            # Drop the axis for the steps of the window.
            y = y + (ops.reshape(b, (), 1, 2) if sequential and len(b.shape) == len(W.shape) - 1 else b)
        return activate(y if filters else ops.reshape(y, (), 0, 1), activation)

    return convolve


@overridable
def SequentialConvolution(
    filter_shape: Any,
    num_filters: Any = None,
    activation: Any = default_override_or(None),
    init: Any = default_override_or(glorot_uniform()),
    pad: Any = default_override_or(False),
    strides: Any = 1,
    sharing: bool = True,
    bias: Any = default_override_or(True),
    init_bias: Any = default_override_or(0),
    reduction_rank: int = 1,
    transpose_weight: bool = False,
    dilation: Any = 1,
    groups: int = 1,
    max_temp_mem_size_in_samples: int = 0,
    op_name: str = "Convolution",
    name: str = "",
) -> Function:
    """Return a `Convolution` whose window has its first axis along sequences, of samples (channels, *other sizes).

    b has no axis for the steps: (filters, 1, ...).
    """
    window, filters, steps = _window(
        filter_shape, num_filters, (strides, pad, dilation, groups), (sharing, transpose_weight), reduction_rank
    )
    W = _kernel(window, filters, init, reduction_rank)
    b = parameter((filters or (1,)) + (1,) * (len(window) - 1), init_bias, "b") if bias else None
    convolve = _convolution(W, b, True, steps, (filters, reduction_rank, activation))
    return layer(convolve, op_name, name, {"W": W, "b": b})


def _ranked(rank: int, filter_shape: Any) -> tuple[int, ...]:
    window = dims(filter_shape)
    if len(window) == 1:
        return window * rank
    if len(window) != rank:
        raise ValueError(f"expected a window of {rank} axes, got {window}")
    return window


@overridable
def Convolution1D(
    filter_shape: Any,
    num_filters: Any = None,
    activation: Any = default_override_or(None),
    init: Any = default_override_or(glorot_uniform()),
    pad: Any = default_override_or(False),
    strides: Any = 1,
    bias: Any = default_override_or(True),
    init_bias: Any = default_override_or(0),
    reduction_rank: int = 1,
    dilation: Any = 1,
    name: str = "",
) -> Function:
    """Return a `Convolution` over one axis."""
    return Convolution(
        _ranked(1, filter_shape),
        num_filters,
        activation=activation,
        init=init,
        pad=pad,
        strides=strides,
        bias=bias,
        init_bias=init_bias,
        reduction_rank=reduction_rank,
        dilation=dilation,
        op_name="Convolution1D",
        name=name,
    )


@overridable
def Convolution2D(
    filter_shape: Any,
    num_filters: Any = None,
    activation: Any = default_override_or(None),
    init: Any = default_override_or(glorot_uniform()),
    pad: Any = default_override_or(False),
    strides: Any = 1,
    bias: Any = default_override_or(True),
    init_bias: Any = default_override_or(0),
    reduction_rank: int = 1,
    dilation: Any = 1,
    groups: int = 1,
    name: str = "",
) -> Function:
    """Return a `Convolution` over two axes. A single number means a square window."""
    return Convolution(
        _ranked(2, filter_shape),
        num_filters,
        activation=activation,
        init=init,
        pad=pad,
        strides=strides,
        bias=bias,
        init_bias=init_bias,
        reduction_rank=reduction_rank,
        dilation=dilation,
        groups=groups,
        op_name="Convolution2D",
        name=name,
    )


@overridable
def Convolution3D(
    filter_shape: Any,
    num_filters: Any = None,
    activation: Any = default_override_or(None),
    init: Any = default_override_or(glorot_uniform()),
    pad: Any = default_override_or(False),
    strides: Any = 1,
    bias: Any = default_override_or(True),
    init_bias: Any = default_override_or(0),
    reduction_rank: int = 1,
    dilation: Any = 1,
    groups: int = 1,
    name: str = "",
) -> Function:
    """Return a `Convolution` over three axes. A single number means a cubic window."""
    return Convolution(
        _ranked(3, filter_shape),
        num_filters,
        activation=activation,
        init=init,
        pad=pad,
        strides=strides,
        bias=bias,
        init_bias=init_bias,
        reduction_rank=reduction_rank,
        dilation=dilation,
        groups=groups,
        op_name="Convolution3D",
        name=name,
    )


@overridable
def ConvolutionTranspose(
    filter_shape: Any,
    num_filters: Any,
    activation: Any = default_override_or(None),
    init: Any = default_override_or(glorot_uniform()),
    pad: Any = default_override_or(False),
    strides: Any = 1,
    sharing: bool = True,
    bias: Any = default_override_or(True),
    init_bias: Any = default_override_or(0),
    output_shape: Any = None,
    reduction_rank: int = 1,
    dilation: Any = 1,
    max_temp_mem_size_in_samples: int = 0,
    name: str = "",
) -> Function:
    """Return a transposed convolution over (channels, *sizes); W is (channels, filters, *window). See `Convolution`."""
    window, filters, (strides, pad, dilation, _) = _window(
        filter_shape, num_filters, (strides, pad, dilation, 1), (sharing, False), reduction_rank
    )
    rank = len(window)
    W = parameter(INFERRED + filters + window, init, "W", filter_rank=rank, output_rank=-1)
    b = parameter(filters + (1,) * rank, init_bias, "b") if bias else None

    def convolve(x: Any) -> Any:
        x = x if reduction_rank else ops.reshape(x, (1,), 0, 0)
        y = ops.convolution_transpose(W, x, strides, auto_padding=pad, output_shape=output_shape, dilation=dilation)
        return activate(y if b is None else y + b, activation)

    return layer(convolve, "ConvolutionTranspose", name, {"W": W, "b": b})


@overridable
def ConvolutionTranspose1D(
    filter_shape: Any,
    num_filters: Any,
    activation: Any = default_override_or(None),
    init: Any = default_override_or(glorot_uniform()),
    pad: Any = default_override_or(False),
    strides: Any = 1,
    bias: Any = default_override_or(True),
    init_bias: Any = default_override_or(0),
    output_shape: Any = None,
    reduction_rank: int = 1,
    dilation: Any = 1,
    name: str = "",
) -> Function:
    """Return a `ConvolutionTranspose` over one axis."""
    return ConvolutionTranspose(
        _ranked(1, filter_shape),
        num_filters,
        activation,
        init,
        pad,
        strides,
        True,
        bias,
        init_bias,
        output_shape,
        reduction_rank,
        dilation,
        name=name,
    )


@overridable
def ConvolutionTranspose2D(
    filter_shape: Any,
    num_filters: Any,
    activation: Any = default_override_or(None),
    init: Any = default_override_or(glorot_uniform()),
    pad: Any = default_override_or(False),
    strides: Any = 1,
    bias: Any = default_override_or(True),
    init_bias: Any = default_override_or(0),
    output_shape: Any = None,
    reduction_rank: int = 1,
    dilation: Any = 1,
    name: str = "",
) -> Function:
    """Return a `ConvolutionTranspose` over two axes."""
    return ConvolutionTranspose(
        _ranked(2, filter_shape),
        num_filters,
        activation,
        init,
        pad,
        strides,
        True,
        bias,
        init_bias,
        output_shape,
        reduction_rank,
        dilation,
        name=name,
    )


@overridable
def ConvolutionTranspose3D(
    filter_shape: Any,
    num_filters: Any,
    activation: Any = default_override_or(None),
    init: Any = default_override_or(glorot_uniform()),
    pad: Any = default_override_or(False),
    strides: Any = 1,
    bias: Any = default_override_or(True),
    init_bias: Any = default_override_or(0),
    output_shape: Any = None,
    reduction_rank: int = 1,
    dilation: Any = 1,
    name: str = "",
) -> Function:
    """Return a `ConvolutionTranspose` over three axes."""
    return ConvolutionTranspose(
        _ranked(3, filter_shape),
        num_filters,
        activation,
        init,
        pad,
        strides,
        True,
        bias,
        init_bias,
        output_shape,
        reduction_rank,
        dilation,
        name=name,
    )


@overridable
def MaxPooling(filter_shape: Any, strides: Any = 1, pad: Any = default_override_or(False), name: str = "") -> Function:
    """Return a layer that takes the maximum of each window over the last axes."""
    return _pooling(ops.MAX_POOLING, filter_shape, strides, pad, "MaxPooling", name)


def MaxUnpooling(filter_shape: Any, strides: Any = 1, pad: Any = False, name: str = "") -> Function:
    """Return the inverse of `MaxPooling`, ``(x, pooled) -> y``: puts maxima back to their places, 0 elsewhere."""
    return layer(
        lambda x, y: ops.unpooling(x, y, ops.MAX_UNPOOLING, filter_shape, strides, pad),
        "MaxUnpooling",
        name,
        inputs=("x", "y"),
    )


@overridable
def AveragePooling(
    filter_shape: Any, strides: Any = 1, pad: Any = default_override_or(False), name: str = ""
) -> Function:
    """Return a layer that averages each window over the last axes, without padding."""
    return _pooling(ops.AVG_POOLING, filter_shape, strides, pad, "AveragePooling", name)


def _pooling(kind: int, filter_shape: Any, strides: Any, pad: Any, op_name: str, name: str) -> Function:
    window = dims(filter_shape)
    strides, pad = (for_each_axis(window, v, s) for v, s in ((strides, "strides"), (pad, "pad")))
    return layer(lambda x: ops.pooling(x, kind, window, strides, pad), op_name, name)


def GlobalMaxPooling(name: str = "") -> Function:
    """Return a layer that takes the maximum of each channel. The other axes remain, with length 1."""
    return layer(lambda x: build("global_max_pooling", [x], None, ""), "GlobalMaxPooling", name)


def GlobalAveragePooling(name: str = "") -> Function:
    """Return a layer that averages each channel. The other axes remain, with length 1."""
    return layer(lambda x: build("global_average_pooling", [x], None, ""), "GlobalAveragePooling", name)


def Dropout(
    dropout_rate: float | None = None, keep_prob: float | None = None, seed: Any = None, name: str = ""
) -> Function:
    """Return a layer that, in training, zeroes elements with ``dropout_rate``, or keeps them with ``keep_prob``.

    Raises:
        ValueError: both probabilities, or neither, or ``keep_prob`` below 0 or not below 1.
    """
    if (dropout_rate is None) == (keep_prob is None):
        raise ValueError("Dropout: expected dropout_rate or keep_prob, got both or neither")
    if keep_prob is not None and not 0 <= keep_prob < 1:
        raise ValueError(f"Dropout: expected a keep_prob of at least 0 and below 1, got {keep_prob}")
    rate = dropout_rate if keep_prob is None else 1 - keep_prob
    return layer(lambda x: ops.dropout(x, float(rate or 0.0), seed), "Dropout", name)


@overridable
def Activation(activation: Any = default_override_or(None), name: str = "") -> Function:
    """Return an activation as a layer."""
    return layer(lambda x: activate(ops.alias(x), activation), "Activation", name)


@overridable
def BatchNormalization(
    map_rank: Any = default_override_or(None),
    init_scale: Any = 1,
    normalization_time_constant: Any = default_override_or(5000),
    blend_time_constant: float = 0,
    epsilon: Any = default_override_or(0.00001),
    use_cntk_engine: Any = default_override_or(False),
    disable_regularization: Any = default_override_or(False),
    name: str = "",
) -> Function:
    """Return a layer that normalises each element, or each channel (``map_rank=1``), over the minibatch.

    See `ops.batch_normalization`.

    Raises:
        CompatError: another ``map_rank``.
    """
    if map_rank not in (None, 1):
        raise CompatError(f"expected map_rank None or 1, got {map_rank}")
    scale = parameter(INFERRED, init_scale, "scale")
    bias = parameter(INFERRED, 0, "bias")
    mean = Constant(0, INFERRED, name="aggregate_mean")
    variance = Constant(0, INFERRED, name="aggregate_variance")
    count = Constant(0, (), name="aggregate_count")

    def normalize(x: Any) -> Any:
        return ops.batch_normalization(
            x,
            scale,
            bias,
            mean,
            variance,
            map_rank == 1,
            normalization_time_constant,
            blend_time_constant,
            epsilon,
            running_count=count,
        )

    members = {"scale": scale, "bias": bias, "mean": mean, "variance": variance}
    return layer(normalize, "BatchNormalization", name, members)


@overridable
def LayerNormalization(
    initial_scale: Any = 1, initial_bias: Any = 0, epsilon: Any = default_override_or(0.00001), name: str = ""
) -> Function:
    """Return a layer that normalises each sample by its mean and its standard deviation plus ``epsilon``."""
    scale = parameter(INFERRED, initial_scale, "scale")
    bias = parameter(INFERRED, initial_bias, "bias")

    def normalize(x: Any) -> Any:
        centred = x - ops.reduce_mean(x)
        deviation = ops.sqrt(ops.reduce_mean(centred * centred)) + epsilon
        return (centred / deviation) * scale + bias

    return layer(normalize, "LayerNormalization", name, {"scale": scale, "bias": bias})


def Label(name: str) -> Function:
    """Return a layer that gives its operand a name."""
    return layer(lambda x: ops.alias(x, name), "Label", name)


take_plain_settings(globals())
