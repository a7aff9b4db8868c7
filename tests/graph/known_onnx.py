"""A network as an exporter writes it into an ONNX file: inverted residual blocks, as MobileNet-v2 has them."""

from __future__ import annotations

import math
from typing import Any


def mobile_net(widths: tuple[int, ...] = (16, 24, 24, 32, 32, 32, 64)) -> Any:
    """Return an `onnx.ModelProto` with a stem, a block for each width, and a head. The weights are zeros.

    Raises:
        ModuleNotFoundError: onnx is not installed.
    """
    from onnx import TensorProto, helper  # an optional package

    nodes, held = [], []

    def conv(given: str, scope: str, shape: tuple[int, ...], step: int = 1, groups: int = 1) -> str:
        name = scope.strip("/").replace("/", ".")
        held.append(
            helper.make_tensor(f"{name}.weight", TensorProto.FLOAT, shape, bytes(4 * math.prod(shape)), raw=True)
        )
        out, pad = f"{scope}/Conv_output_0", shape[-1] // 2
        nodes.append(
            helper.make_node(
                "Conv", [given, f"{name}.weight"], [out], f"{scope}/Conv",
                kernel_shape=list(shape[2:]), strides=[step, step], pads=[pad] * 4, group=groups,
            )
        )  # fmt: skip
        return out

    def clip(given: str, scope: str) -> str:
        nodes.append(helper.make_node("Clip", [given, "zero", "six"], [f"{scope}/Clip_output_0"], f"{scope}/Clip"))
        return f"{scope}/Clip_output_0"

    for name, number in (("zero", 0.0), ("six", 6.0)):
        held.append(helper.make_tensor(name, TensorProto.FLOAT, (), [number]))
    x, channels = clip(conv("x", "/stem", (8, 3, 3, 3), 2), "/stem"), 8
    for i, width in enumerate(widths):
        scope, wide, step = f"/features.{i}", 6 * channels, 1 if width == channels else 2
        y = clip(conv(x, f"{scope}/expand", (wide, channels, 1, 1)), f"{scope}/expand")
        y = clip(conv(y, f"{scope}/depthwise", (wide, 1, 3, 3), step, wide), f"{scope}/depthwise")
        y = conv(y, f"{scope}/project", (width, wide, 1, 1))
        if width == channels:
            nodes.append(helper.make_node("Add", [x, y], [f"{scope}/Add_output_0"], f"{scope}/Add"))
            y = f"{scope}/Add_output_0"
        x, channels = y, width
    held.append(helper.make_tensor("head.weight", TensorProto.FLOAT, (10, channels), bytes(40 * channels), raw=True))
    nodes += [
        helper.make_node("GlobalAveragePool", [x], ["pooled"], "/GlobalAveragePool"),
        helper.make_node("Flatten", ["pooled"], ["flat"], "/Flatten"),
        helper.make_node("Gemm", ["flat", "head.weight"], ["y"], "/head/Gemm", transB=1),
    ]
    value = helper.make_tensor_value_info
    inputs, outputs = [value("x", TensorProto.FLOAT, [1, 3, 224, 224])], [value("y", TensorProto.FLOAT, [1, 10])]
    return helper.make_model(helper.make_graph(nodes, "net", inputs, outputs, held))
