"""`cntk.layers.blocks`: recurrent steps, stabilizers and identity.

The steps are CNTK's. An LSTM's gates are ordered input, candidate, forget, output. A GRU resets the state before
multiplying it, unlike torch's. No step has a second bias.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from feedline.cntk import ops
from feedline.cntk._names import names_of
from feedline.cntk._nodes import dims
from feedline.cntk._settings import take_plain_settings
from feedline.cntk.default_options import default_override_or, overridable
from feedline.cntk.initializer import glorot_uniform
from feedline.cntk.layers._layer_helpers import INFERRED, activate, layer, parameter
from feedline.cntk.ops.functions import BlockFunction as BlockFunction
from feedline.cntk.ops.functions import Function
from feedline.cntk.variables import Variable, placeholder

__all__, __getattr__ = names_of(__name__)


@dataclass(frozen=True)
class FusedStep:
    """A step that a recurrence can run with a fused kernel of torch.

    Attributes:
        op: operation of the graph.
        weights: parameters, in the order of the operation.
        attributes: attributes of the operation.
    """

    op: str
    weights: tuple[Any, ...]
    attributes: dict[str, Any]


def identity(keep: Any) -> Any:
    """Return the operand unchanged."""
    return ops.alias(keep)


def ForwardDeclaration(name: str = "forward_declaration") -> Variable:
    """Return a placeholder with a method ``resolve_to(function)``, which closes a recurrence."""
    declared = placeholder(name=name)

    def resolve_to(function: Any) -> None:
        function.replace_placeholders({declared: function})

    declared.resolve_to = resolve_to  # type: ignore[attr-defined]
    return declared


@overridable
def Stabilizer(steepness: float = 4, enable_self_stabilization: Any = default_override_or(True), name: str = "") -> Any:
    """Return a layer that scales by a learned factor, kept positive by a softplus, or the identity if disabled."""
    if not enable_self_stabilization:
        return identity
    if steepness <= 0:
        raise ValueError(f"Stabilizer: expected a steepness above 0, got {steepness}")
    # The initial factor is 1: softplus(steepness * 0.99537863) / steepness for a steepness of 4, as in CNTK.
    factor = parameter((), 0.99537863, "alpha")
    beta = ops.softplus(factor * steepness) * (1 / steepness)
    return layer(lambda x: beta * x, "Stabilizer", name, {"alpha": factor, "beta": beta})


@overridable
def LSTM(
    shape: Any,
    cell_shape: Any = None,
    activation: Any = default_override_or(ops.tanh),
    use_peepholes: Any = default_override_or(False),
    init: Any = default_override_or(glorot_uniform()),
    init_bias: Any = default_override_or(0),
    enable_self_stabilization: Any = default_override_or(False),
    name: str = "",
) -> Function:
    """Return the step of an LSTM, ``(h, c, x) -> (h, c)``.

    Args:
        shape: number of outputs.
        cell_shape: number of cells, projected to the outputs. None means as many as outputs, without a projection.
        activation: activation of candidates and outputs.
        use_peepholes: whether gates see the cells.
        init: initializer of weights.
        init_bias: initial value of the bias.
        enable_self_stabilization: whether to scale states by learned factors.
        name: name of the block.

    Raises:
        ValueError: a shape with several axes.
    """
    outputs, cells = _vectors("LSTM", shape, cell_shape)
    b, W, H = _weights(outputs, cells, 4, 4, init, init_bias)
    Ci, Cf, Co = (parameter((cells,), init, n) if use_peepholes else None for n in ("Ci", "Cf", "Co"))
    P = _projection(outputs, cells, cell_shape, init)
    Sdh, Sdc, Sct, Sht = _stabilizers(4, enable_self_stabilization)

    def peeping(x: Any, c: Any, weights: Any) -> Any:
        return x if weights is None else x + weights * c

    def step(dh: Any, dc: Any, x: Any) -> Any:
        dhs, dcs = Sdh(dh), Sdc(dc)
        gates = b + ops.times(x, W) + ops.times(dhs, H)
        it = ops.sigmoid(peeping(_gate(gates, 0, cells), dcs, Ci))
        ft = ops.sigmoid(peeping(_gate(gates, 2, cells), dcs, Cf))
        c = ft * dc + it * activate(_gate(gates, 1, cells), activation)
        ot = ops.sigmoid(peeping(_gate(gates, 3, cells), Sct(c), Co))
        return ops.alias(_project(ot * activate(c, activation), P, Sht), "h"), ops.alias(c, "c")

    members = {"b": b, "W": W, "H": H, "Ci": Ci, "Cf": Cf, "Co": Co, "P": P}
    function = layer(step, "LSTM", name, members, ("dh", "dc", "x"))
    if activation is ops.tanh and not use_peepholes and P is None and not enable_self_stabilization:
        function.step = FusedStep("lstm", (W, H, b), {})
    return function


@overridable
def GRU(
    shape: Any,
    cell_shape: Any = None,
    activation: Any = default_override_or(ops.tanh),
    init: Any = default_override_or(glorot_uniform()),
    init_bias: Any = default_override_or(0),
    enable_self_stabilization: Any = default_override_or(False),
    name: str = "",
) -> Function:
    """Return the step of a gated recurrent unit, ``(h, x) -> h``. For the arguments see `LSTM`."""
    outputs, cells = _vectors("GRU", shape, cell_shape)
    b, W, H = _weights(outputs, cells, 3, 2, init, init_bias)
    H1 = parameter((outputs, cells), init, "H1")
    P = _projection(outputs, cells, cell_shape, init)
    if P is not None and cells != outputs:
        raise ValueError(f"GRU: expected as many cells as outputs, which are its state, got {cells} and {outputs}")
    Sdh, Sht = _stabilizers(2, enable_self_stabilization)

    def step(dh: Any, x: Any) -> Any:
        dhs = Sdh(dh)
        from_x, from_h = b + ops.times(x, W), ops.times(dhs, H)
        update = ops.sigmoid(_gate(from_x, 0, cells) + _gate(from_h, 0, cells))
        reset = ops.sigmoid(_gate(from_x, 1, cells) + _gate(from_h, 1, cells))
        candidate = activate(_gate(from_x, 2, cells) + ops.times(dhs * reset, H1), activation)
        return ops.alias(_project((1 - update) * candidate + update * dhs, P, Sht), "h")

    members = {"b": b, "W": W, "H": H, "H1": H1, "P": P}
    return layer(step, "GRU", name, members, ("dh", "x"))


@overridable
def RNNStep(
    shape: Any,
    cell_shape: Any = None,
    activation: Any = default_override_or(ops.sigmoid),
    init: Any = default_override_or(glorot_uniform()),
    init_bias: Any = default_override_or(0),
    enable_self_stabilization: Any = default_override_or(False),
    name: str = "",
) -> Function:
    """Return the step of a plain RNN, ``(h, x) -> h = activation(x W + h H + b)``. For the arguments see `LSTM`."""
    outputs, cells = _vectors("RNNStep", shape, cell_shape)
    b, W, H = _weights(outputs, cells, 1, 1, init, init_bias)
    P = _projection(outputs, cells, cell_shape, init)
    Sdh, Sht = _stabilizers(2, enable_self_stabilization)

    def step(dh: Any, x: Any) -> Any:
        h = activate(ops.times(x, W) + ops.times(Sdh(dh), H) + b, activation)
        return ops.alias(_project(h, P, Sht), "h")

    function = layer(step, "RNNStep", name, {"b": b, "W": W, "H": H, "P": P}, ("dh", "x"))
    kernel = {ops.tanh: "tanh", ops.relu: "relu"}.get(activation)
    if kernel is not None and P is None and not enable_self_stabilization:
        function.step = FusedStep("rnn", (W, H, b), {"activation": kernel})
    return function


RNNUnit = RNNStep


def _weights(outputs: int, cells: int, gates: int, of_state: int, init: Any, init_bias: Any) -> tuple[Any, Any, Any]:
    """Return the bias, the weights of the input, and the weights of the state, which fewer gates may use."""
    return (
        parameter((gates * cells,), init_bias, "b"),
        parameter((*INFERRED, gates * cells), init, "W"),
        parameter((outputs, of_state * cells), init, "H"),
    )


def _projection(outputs: int, cells: int, cell_shape: Any, init: Any) -> Any:
    return None if cell_shape is None else parameter((cells, outputs), init, "P")


def _project(h: Any, weights: Any, stabilizer: Any) -> Any:
    return h if weights is None else ops.times(stabilizer(h), weights)


def _stabilizers(count: int, enabled: Any) -> list[Any]:
    return [Stabilizer(enable_self_stabilization=True) if enabled else lambda x: x for _ in range(count)]


def _gate(gates: Any, number: int, cells: int) -> Any:
    return ops.slice(gates, -1, number * cells, (number + 1) * cells)


def _vectors(step: str, shape: Any, cell_shape: Any) -> tuple[int, int]:
    outputs = dims(shape)
    cells = outputs if cell_shape is None else dims(cell_shape)
    if len(outputs) != 1 or len(cells) != 1:
        raise ValueError(f"{step}: expected shape and cell_shape to be vectors, got {outputs} and {cells}")
    return outputs[0], cells[0]


take_plain_settings(globals())
