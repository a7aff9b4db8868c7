"""`cntk.layers.layers`: dense, embedding, convolution, pooling, normalisation, dropout."""

from __future__ import annotations

from typing import Any

from feedline.cntk import ops
from feedline.cntk._names import explain
from feedline.cntk._nodes import dims
from feedline.cntk.default_options import default_override_or, get_default_override, overridable
from feedline.cntk.initializer import glorot_uniform
from feedline.cntk.layers._making import INFERRED, activated, layer, parameter
from feedline.cntk.ops._making import made
from feedline.cntk.ops.functions import Function
from feedline.cntk.variables import Constant
from feedline.errors import CompatError

__all__ = [
    "Activation",
    "AveragePooling",
    "BatchNormalization",
    "Convolution",
    "Convolution1D",
    "Convolution2D",
    "Convolution3D",
    "ConvolutionTranspose",
    "ConvolutionTranspose1D",
    "ConvolutionTranspose2D",
    "ConvolutionTranspose3D",
    "Dense",
    "Dropout",
    "Embedding",
    "GlobalAveragePooling",
    "GlobalMaxPooling",
    "Label",
    "LayerNormalization",
    "MaxPooling",
    "MaxUnpooling",
]


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
    """``activation(x W + b)``.

    Args:
        shape: shape of the result.
        activation: a function, or None.
        init: initializer of W, (*input, *shape).
        input_rank: number of last axes of the input to multiply; None: all.
        map_rank: number of first axes of the input to leave alone; not with ``input_rank``.
        bias: whether to add b.
        init_bias: initial value of b, (*shape).
        name: its name.

    Raises:
        ValueError: ``input_rank`` and ``map_rank``.
    """
    if input_rank is not None and map_rank is not None:
        raise ValueError("Dense: expected input_rank or map_rank, got both")
    out = dims(shape)
    W = parameter(INFERRED * (1 if input_rank is None else input_rank) + out, init, "W", output_rank=len(out))
    b = parameter(out, init_bias, "b") if bias else None
    rest = -1 if input_rank is not None else map_rank or 0

    def dense(x: Any) -> Any:
        y = ops.times(x, W, output_rank=len(out), infer_input_rank_to_map=rest)
        return activated(y if b is None else y + b, activation)

    return layer(dense, "Dense", name, {"W": W, "b": b})


@overridable
def Embedding(
    shape: Any = None, init: Any = default_override_or(glorot_uniform()), weights: Any = None, name: str = ""
) -> Function:
    """``x E``: look up embeddings of one-hot samples.

    Args:
        shape: shape of an embedding.
        init: initializer of E, (classes, *shape).
        weights: an array to use as E, which is not learned then.
        name: its name.

    Raises:
        ValueError: neither a shape nor weights, or both.
    """
    if (shape is None) == (weights is None):
        raise ValueError("Embedding: expected a shape or weights, got both or neither")
    if weights is None:
        E: Any = parameter(INFERRED + dims(shape), init, "E", output_rank=len(dims(shape)))
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
    """Convolution of (channels, *sizes).

    Args:
        filter_shape: shape of the window.
        num_filters: number of channels of the result; None, with ``reduction_rank=0``: no channels.
        sequential: over a sequence: refused.
        activation: a function, or None.
        init: initializer of W, (filters, channels, *window).
        pad: centre windows on every (strided) cell, or keep them inside; one for all axes or one each.
        strides: one for all axes or one each.
        sharing: True: all else is refused.
        bias: whether to add b.
        init_bias: initial value of b, (filters, 1, ...).
        reduction_rank: 1, or 0 for data without channels.
        transpose_weight: refused; use `ConvolutionTranspose`.
        dilation: distance between cells of a window.
        groups: number of groups of channels, which are convolved separately.
        max_temp_mem_size_in_samples: not used.
        op_name, name: names of the operation and of the block.

    Raises:
        CompatError: ``sequential``, no sharing, or ``transpose_weight``.
    """
    if sequential or not sharing or transpose_weight:
        raise CompatError("expected a shared kernel over static axes; ConvolutionTranspose has transposed weights")
    window = dims(filter_shape)
    rank = len(window)
    filters = () if num_filters is None else dims(num_filters)
    kernel = (
        ((filters or (1,)) + (INFERRED if reduction_rank else ()) + window)
        if filters or reduction_rank
        else (1, *window)
    )
    W = parameter(kernel, init, "W", filter_rank=rank, output_rank=-1)
    b = parameter((filters or (1,)) + (1,) * rank, init_bias, "b") if bias else None

    def convolve(x: Any) -> Any:
        y = ops.convolution(
            W,
            x,
            strides=_each(strides, rank),
            auto_padding=_each(pad, rank),
            dilation=_each(dilation, rank),
            reduction_rank=reduction_rank,
            groups=groups,
        )
        y = y if b is None else y + b
        if not filters:
            y = ops.reshape(y, (), 0, 1)
        return activated(y, activation)

    return layer(convolve, op_name, name, {"W": W, "b": b})


def _ranked(rank: int, filter_shape: Any) -> tuple[int, ...]:
    window = dims(filter_shape)
    if len(window) == 1:
        return window * rank
    if len(window) != rank:
        raise ValueError(f"expected a window of {rank} axes, got {window}")
    return window


def Convolution1D(filter_shape: Any, num_filters: Any = None, **options: Any) -> Function:
    """`Convolution` over one axis."""
    return Convolution(_ranked(1, filter_shape), num_filters, **_with(Convolution1D, options, "Convolution1D"))


def Convolution2D(filter_shape: Any, num_filters: Any = None, **options: Any) -> Function:
    """`Convolution` over two axes; one number is a square window."""
    return Convolution(_ranked(2, filter_shape), num_filters, **_with(Convolution2D, options, "Convolution2D"))


def Convolution3D(filter_shape: Any, num_filters: Any = None, **options: Any) -> Function:
    """`Convolution` over three axes; one number is a cubic window."""
    return Convolution(_ranked(3, filter_shape), num_filters, **_with(Convolution3D, options, "Convolution3D"))


def _with(factory: Any, options: dict[str, Any], op_name: str) -> dict[str, Any]:
    """Options, with those that a with-block gives for this factory alone."""
    given = dict(options)
    for name in ("activation", "init", "pad", "bias", "init_bias"):
        if name not in given:
            unset = object()
            found = get_default_override(factory, **{name: default_override_or(unset)})
            if found is not unset:
                given[name] = found
    return {**given, "op_name": op_name}


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
    dilation: Any = 1,
    reduction_rank: int = 1,
    max_temp_mem_size_in_samples: int = 0,
    name: str = "",
) -> Function:
    """Transposed convolution of (channels, *sizes); W is (channels, filters, *window). See `Convolution`."""
    if not sharing:
        raise CompatError("expected a shared kernel")
    window, filters = dims(filter_shape), dims(num_filters)
    rank = len(window)
    W = parameter(INFERRED + filters + window, init, "W", filter_rank=rank, output_rank=-1)
    b = parameter(filters + (1,) * rank, init_bias, "b") if bias else None

    def convolve(x: Any) -> Any:
        y = ops.convolution_transpose(
            W,
            x,
            strides=_each(strides, rank),
            auto_padding=_each(pad, rank),
            output_shape=output_shape,
            dilation=_each(dilation, rank),
            reduction_rank=reduction_rank,
        )
        return activated(y if b is None else y + b, activation)

    return layer(convolve, "ConvolutionTranspose", name, {"W": W, "b": b})


def ConvolutionTranspose1D(filter_shape: Any, num_filters: Any, **options: Any) -> Function:
    """`ConvolutionTranspose` over one axis."""
    return ConvolutionTranspose(_ranked(1, filter_shape), num_filters, **options)


def ConvolutionTranspose2D(filter_shape: Any, num_filters: Any, **options: Any) -> Function:
    """`ConvolutionTranspose` over two axes."""
    return ConvolutionTranspose(_ranked(2, filter_shape), num_filters, **options)


def ConvolutionTranspose3D(filter_shape: Any, num_filters: Any, **options: Any) -> Function:
    """`ConvolutionTranspose` over three axes."""
    return ConvolutionTranspose(_ranked(3, filter_shape), num_filters, **options)


@overridable
def MaxPooling(filter_shape: Any, strides: Any = 1, pad: Any = default_override_or(False), name: str = "") -> Function:
    """Maximum of windows over the last axes."""
    return _pooling(ops.MAX_POOLING, filter_shape, strides, pad, "MaxPooling", name)


@overridable
def MaxUnpooling(
    filter_shape: Any, strides: Any = 1, pad: Any = default_override_or(False), name: str = ""
) -> Function:
    """What `MaxPooling` made of its second operand, put back where the maxima were: ``(x, pooled) -> y``."""
    size = dims(filter_shape)
    step = dims(strides) if isinstance(strides, (tuple, list)) else (strides,) * len(size)
    padded = pad if isinstance(pad, (tuple, list)) else (pad,) * len(size)

    def unpool(x: Any, y: Any) -> Any:
        return ops.unpooling(x, y, ops.MAX_UNPOOLING, size, step, padded)

    return layer(unpool, "MaxUnpooling", name, inputs=("x", "y"))


@overridable
def AveragePooling(
    filter_shape: Any, strides: Any = 1, pad: Any = default_override_or(False), name: str = ""
) -> Function:
    """Average of windows over the last axes; padding is not counted."""
    return _pooling(ops.AVG_POOLING, filter_shape, strides, pad, "AveragePooling", name)


def _pooling(kind: int, filter_shape: Any, strides: Any, pad: Any, op_name: str, name: str) -> Function:
    window = dims(filter_shape)
    steps, padded = _each(strides, len(window)), _each(pad, len(window))
    return layer(lambda x: ops.pooling(x, kind, window, strides=steps, auto_padding=padded), op_name, name)


def GlobalMaxPooling(name: str = "") -> Function:
    """Maximum of each channel; the other axes stay, 1 wide."""
    return _over_channels("global_max_pooling", "GlobalMaxPooling", name)


def GlobalAveragePooling(name: str = "") -> Function:
    """Average of each channel; the other axes stay, 1 wide."""
    return _over_channels("global_average_pooling", "GlobalAveragePooling", name)


def _over_channels(op: str, op_name: str, name: str) -> Function:
    return layer(lambda x: made(op, [x], None, ""), op_name, name)


def Dropout(
    dropout_rate: float | None = None, keep_prob: float | None = None, seed: Any = None, name: str = ""
) -> Function:
    """In training, sets elements to 0 with a probability, or keeps them with one.

    Raises:
        ValueError: both, or neither, probability.
    """
    if (dropout_rate is None) == (keep_prob is None):
        raise ValueError("Dropout: expected dropout_rate or keep_prob, got both or neither")
    rate = dropout_rate if keep_prob is None else 1 - keep_prob
    return layer(lambda x: ops.dropout(x, float(rate or 0.0), seed), "Dropout", name)


@overridable
def Activation(activation: Any = default_override_or(None), name: str = "") -> Function:
    """An activation as a layer."""
    return layer(lambda x: activated(ops.alias(x), activation), "Activation", name)


def BatchNormalization(
    map_rank: int | None = None,
    init_scale: Any = 1,
    normalization_time_constant: float = 5000,
    blend_time_constant: float = 0,
    epsilon: float = 0.00001,
    use_cntk_engine: bool = False,
    disable_regularization: bool = False,
    name: str = "",
) -> Function:
    """Normalises each element, or each channel (``map_rank=1``), over the minibatch; see `ops.batch_normalization`.

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


def LayerNormalization(
    initial_scale: Any = 1, initial_bias: Any = 0, epsilon: float = 0.00001, name: str = ""
) -> Function:
    """Normalises each sample by its mean and standard deviation, to which ``epsilon`` is added."""
    scale = parameter(INFERRED, initial_scale, "scale")
    bias = parameter(INFERRED, initial_bias, "bias")

    def normalize(x: Any) -> Any:
        centred = x - ops.reduce_mean(x)
        deviation = ops.sqrt(ops.reduce_mean(centred * centred)) + epsilon
        return (centred / deviation) * scale + bias

    return layer(normalize, "LayerNormalization", name, {"scale": scale, "bias": bias})


def Label(name: str) -> Function:
    """The operand under a name."""
    return layer(lambda x: ops.alias(x, name), "Label", name)


def _each(value: Any, rank: int) -> tuple[Any, ...]:
    """One for each axis."""
    items = tuple(value) if isinstance(value, (list, tuple)) else (value,) * rank
    return items if len(items) == rank else items * rank if len(items) == 1 else items


def __getattr__(name: str) -> Any:
    raise explain("cntk.layers.layers", name)
