"""Networks that everybody knows, as MXNet's examples build them under its names: LeNet, ResNet, Inception-v3."""

from __future__ import annotations

import functools

import feedline.mxnet as mx


def named_anew(build):
    """Make a network's names independent of networks built before it."""

    @functools.wraps(build)
    def built():
        with mx.name.NameManager():
            return build()

    return built


@named_anew
def lenet():
    """Two convolutions and two products, with names that MXNet makes."""
    x = mx.sym.Variable("data")
    for filters in (20, 50):
        x = mx.sym.Activation(mx.sym.Convolution(x, kernel=(5, 5), num_filter=filters), act_type="tanh")
        x = mx.sym.Pooling(x, pool_type="max", kernel=(2, 2), stride=(2, 2))
    x = mx.sym.Activation(mx.sym.FullyConnected(mx.sym.Flatten(x), num_hidden=500), act_type="tanh")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(x, num_hidden=10), name="softmax")


def residual_unit(data, filters, stride, dim_match, name):
    """A unit of a ResNet of the second version: normalisation first, the sum without a separate name."""
    norm = {"fix_gamma": False, "eps": 2e-5, "momentum": 0.9}
    act, x = None, data
    for i, (width, kernel, step) in enumerate([(filters // 4, 1, 1), (filters // 4, 3, stride), (filters, 1, 1)], 1):
        x = mx.sym.BatchNorm(x, name=f"{name}_bn{i}", **norm)
        x = mx.sym.Activation(x, act_type="relu", name=f"{name}_relu{i}")
        act = x if act is None else act
        pad = (kernel // 2, kernel // 2)
        x = mx.sym.Convolution(
            x,
            num_filter=width,
            kernel=(kernel, kernel),
            stride=(step, step),
            pad=pad,
            no_bias=True,
            name=f"{name}_conv{i}",
        )
    if dim_match:
        return x + data
    shortcut = mx.sym.Convolution(
        act, num_filter=filters, kernel=(1, 1), stride=(stride, stride), no_bias=True, name=f"{name}_sc"
    )
    return x + shortcut


@named_anew
def resnet50():
    """A ResNet-50 of the second version."""
    x = mx.sym.BatchNorm(mx.sym.Variable("data"), fix_gamma=True, name="bn_data")
    x = mx.sym.Convolution(x, num_filter=64, kernel=(7, 7), stride=(2, 2), pad=(3, 3), no_bias=True, name="conv0")
    x = mx.sym.Activation(mx.sym.BatchNorm(x, name="bn0"), act_type="relu", name="relu0")
    x = mx.sym.Pooling(x, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="max")
    for stage, count in enumerate((3, 4, 6, 3), 1):
        for unit in range(1, count + 1):
            stride = 2 if unit == 1 and stage > 1 else 1
            x = residual_unit(x, 128 << stage, stride, unit > 1, f"stage{stage}_unit{unit}")
    x = mx.sym.Activation(mx.sym.BatchNorm(x, name="bn1"), act_type="relu", name="relu1")
    x = mx.sym.Flatten(mx.sym.Pooling(x, global_pool=True, kernel=(7, 7), pool_type="avg", name="pool1"))
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(x, num_hidden=1000, name="fc1"), name="softmax")


def conv(data, filters, kernel=(1, 1), stride=(1, 1), pad=(0, 0), name=""):
    """A convolution, its normalisation and a relu, as Inception's example names them."""
    x = mx.sym.Convolution(
        data, num_filter=filters, kernel=kernel, stride=stride, pad=pad, no_bias=True, name=f"{name}_conv2d"
    )
    x = mx.sym.BatchNorm(x, fix_gamma=True, name=f"{name}_batchnorm")
    return mx.sym.Activation(x, act_type="relu", name=f"{name}_relu")


def tower(data, name, *convolutions):
    """A chain of convolutions: (filters, kernel, pad) each, the padding as TensorFlow's SAME."""
    for i, (filters, kernel, *stride) in enumerate(convolutions):
        same = not stride
        pad = (kernel[0] // 2, kernel[1] // 2) if same else (0, 0)
        data = conv(data, filters, kernel, (2, 2) if stride else (1, 1), pad, f"{name}_conv{f'_{i}' if i else ''}")
    return data


def pool(data, kind, name, stride=(1, 1)):
    """A pooling of 3×3 next to the towers."""
    pad = (1, 1) if stride == (1, 1) else (0, 0)
    return mx.sym.Pooling(data, kernel=(3, 3), stride=stride, pad=pad, pool_type=kind, name=f"{kind}_pool_{name}_pool")


def joined(name, *parts):
    """The end of a block."""
    return mx.sym.Concat(*parts, name=f"ch_concat_{name}_chconcat")


def block_a(x, pooled, name):
    """1×1, 5×5, twice 3×3, and a pooling."""
    return joined(
        name,
        conv(x, 64, name=f"{name}_conv"),
        tower(x, f"{name}_tower", (48, (1, 1)), (64, (5, 5))),
        tower(x, f"{name}_tower_1", (64, (1, 1)), (96, (3, 3)), (96, (3, 3))),
        tower(pool(x, "avg", name), f"{name}_tower_2", (pooled, (1, 1))),
    )


def block_c(x, width, name):
    """1×1, 7×7 in two, 7×7 twice in two, and a pooling."""
    seven, high = (1, 7), (7, 1)
    return joined(
        name,
        conv(x, 192, name=f"{name}_conv"),
        tower(x, f"{name}_tower", (width, (1, 1)), (width, seven), (192, high)),
        tower(x, f"{name}_tower_1", (width, (1, 1)), (width, high), (width, seven), (width, high), (192, seven)),
        tower(pool(x, "avg", name), f"{name}_tower_2", (192, (1, 1))),
    )


def block_e(x, kind, name):
    """1×1, 3×3 split in two, 3×3 and 3×3 split in two, and a pooling."""
    left = tower(x, f"{name}_tower", (384, (1, 1)))
    right = tower(x, f"{name}_tower_1", (448, (1, 1)), (384, (3, 3)))
    wide, high = {"kernel": (1, 3), "pad": (0, 1)}, {"kernel": (3, 1), "pad": (1, 0)}
    return joined(
        name,
        conv(x, 320, name=f"{name}_conv"),
        conv(left, 384, name=f"{name}_tower_mixed_conv", **wide),
        conv(left, 384, name=f"{name}_tower_mixed_conv_1", **high),
        conv(right, 384, name=f"{name}_tower_1_mixed_conv", **wide),
        conv(right, 384, name=f"{name}_tower_1_mixed_conv_1", **high),
        tower(pool(x, kind, name), f"{name}_tower_2", (192, (1, 1))),
    )


@named_anew
def inception_v3():
    """An Inception-v3, for pictures of 299×299."""
    x = conv(mx.sym.Variable("data"), 32, (3, 3), (2, 2), name="conv")
    x = conv(x, 32, (3, 3), name="conv_1")
    x = conv(x, 64, (3, 3), pad=(1, 1), name="conv_2")
    x = mx.sym.Pooling(x, kernel=(3, 3), stride=(2, 2), pool_type="max", name="pool")
    x = conv(conv(x, 80, name="conv_3"), 192, (3, 3), name="conv_4")
    x = mx.sym.Pooling(x, kernel=(3, 3), stride=(2, 2), pool_type="max", name="pool1")
    for i, pooled in enumerate((32, 64, 64)):
        x = block_a(x, pooled, f"mixed_{i}" if i else "mixed")
    x = joined(
        "mixed_3",
        tower(x, "mixed_3", (384, (3, 3), 2)),
        tower(x, "mixed_3_tower", (64, (1, 1)), (96, (3, 3)), (96, (3, 3), 2)),
        pool(x, "max", "mixed_3", (2, 2)),
    )
    for i, width in enumerate((128, 160, 160, 192), 4):
        x = block_c(x, width, f"mixed_{i}")
    x = joined(
        "mixed_8",
        tower(x, "mixed_8_tower", (192, (1, 1)), (320, (3, 3), 2)),
        tower(x, "mixed_8_tower_1", (192, (1, 1)), (192, (1, 7)), (192, (7, 1)), (192, (3, 3), 2)),
        pool(x, "max", "mixed_8", (2, 2)),
    )
    for i, kind in ((9, "avg"), (10, "max")):
        x = block_e(x, kind, f"mixed_{i}")
    x = mx.sym.Pooling(x, kernel=(8, 8), global_pool=True, pool_type="avg", name="global_pool")
    x = mx.sym.FullyConnected(mx.sym.Flatten(x, name="flatten"), num_hidden=1000, name="fc1")
    return mx.sym.SoftmaxOutput(x, name="softmax")
