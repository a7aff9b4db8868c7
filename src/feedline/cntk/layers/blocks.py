"""`cntk.layers.blocks`: recurrent steps, stabilizers and identity.

The steps are CNTK's: an LSTM's gates stand as input, candidate, forget, output; a GRU resets the state before its
product, unlike torch's; none has a second bias.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from feedline.cntk import ops
from feedline.cntk._names import explain
from feedline.cntk._nodes import dims
from feedline.cntk.default_options import default_override_or, get_default_override
from feedline.cntk.initializer import glorot_uniform
from feedline.cntk.layers._making import INFERRED, activated, layer, parameter
from feedline.cntk.ops.functions import Function
from feedline.cntk.variables import Variable, placeholder

__all__ = ["GRU", "LSTM", "ForwardDeclaration", "RNNStep", "RNNUnit", "Stabilizer", "identity"]


@dataclass(frozen=True)
class FusedStep:
    """What a recurrence needs to run a step by torch's kernel.

    Attributes:
        op: of the graph.
        weights: parameters in its order.
        attributes: its settings.
        states: number of states.
    """

    op: str
    weights: tuple[Any, ...]
    attributes: dict[str, Any]
    states: int


def identity(keep: Any) -> Any:
    """The operand."""
    return ops.alias(keep)


def ForwardDeclaration(name: str = "forward_declaration") -> Variable:
    """A placeholder with a method ``resolve_to(function)``, which ties a recurrence."""
    declared = placeholder(name=name)

    def resolve_to(function: Any) -> None:
        function.replace_placeholders({declared: function})

    declared.resolve_to = resolve_to  # type: ignore[attr-defined]
    return declared


def Stabilizer(steepness: float = 4, enable_self_stabilization: Any = default_override_or(True), name: str = "") -> Any:
    """Scales by a learned factor, kept positive by a softplus of this steepness; disabled, it is the identity."""
    if not get_default_override(Stabilizer, enable_self_stabilization=enable_self_stabilization):
        return identity
    # The factor begins as 1: softplus(steepness * 0.99537863) / steepness for a steepness of 4, as in CNTK.
    factor = parameter((), 0.99537863, "alpha")
    beta = ops.softplus(factor * steepness) * (1 / steepness)
    return layer(lambda x: beta * x, "Stabilizer", name, {"alpha": factor, "beta": beta})


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
    """One step of an LSTM: ``(h, c, x) -> (h, c)``.

    Args:
        shape: number of outputs.
        cell_shape: number of cells, projected to the outputs; None: as many, without projection.
        activation: of candidates and outputs.
        use_peepholes: gates see the cells.
        init: of weights.
        init_bias: of the bias.
        enable_self_stabilization: scale states by learned factors.
        name: its name.

    Raises:
        ValueError: shapes of more than one axis.
    """
    activation = get_default_override(LSTM, activation=activation)
    use_peepholes = get_default_override(LSTM, use_peepholes=use_peepholes)
    init = get_default_override(LSTM, init=init)
    init_bias = get_default_override(LSTM, init_bias=init_bias)
    stabilize = get_default_override(LSTM, enable_self_stabilization=enable_self_stabilization)
    outputs, cells = _vectors("LSTM", shape, cell_shape)
    b = parameter((4 * cells,), init_bias, "b")
    W = parameter((*INFERRED, 4 * cells), init, "W")
    H = parameter((outputs, 4 * cells), init, "H")
    Ci, Cf, Co = (parameter((cells,), init, n) if use_peepholes else None for n in ("Ci", "Cf", "Co"))
    P = parameter((cells, outputs), init, "P") if cell_shape is not None else None
    Sdh, Sdc, Sct, Sht = (Stabilizer(enable_self_stabilization=bool(stabilize)) for _ in range(4))

    def gate(x: Any, number: int) -> Any:
        return ops.slice(x, -1, number * cells, (number + 1) * cells)

    def peeping(x: Any, c: Any, weights: Any) -> Any:
        return x if weights is None else x + weights * c

    def step(dh: Any, dc: Any, x: Any) -> Any:
        dhs, dcs = (Sdh(dh), Sdc(dc)) if stabilize else (dh, dc)
        gates = b + ops.times(x, W) + ops.times(dhs, H)
        it = ops.sigmoid(peeping(gate(gates, 0), dcs, Ci))
        ft = ops.sigmoid(peeping(gate(gates, 2), dcs, Cf))
        c = ft * dc + it * activated(gate(gates, 1), activation)
        ot = ops.sigmoid(peeping(gate(gates, 3), Sct(c) if stabilize else c, Co))
        h = ot * activated(c, activation)
        if P is not None:
            h = ops.times(Sht(h) if stabilize else h, P)
        return ops.alias(h, "h"), ops.alias(c, "c")

    members = {"b": b, "W": W, "H": H, "Ci": Ci, "Cf": Cf, "Co": Co, "P": P}
    function = layer(step, "LSTM", name, members, ("dh", "dc", "x"))
    if activation is ops.tanh and not use_peepholes and P is None and not stabilize:
        function.step = FusedStep("lstm", (W, H, b), {}, 2)
    return function


def GRU(
    shape: Any,
    cell_shape: Any = None,
    activation: Any = default_override_or(ops.tanh),
    init: Any = default_override_or(glorot_uniform()),
    init_bias: Any = default_override_or(0),
    enable_self_stabilization: Any = default_override_or(False),
    name: str = "",
) -> Function:
    """One step of a gated recurrent unit: ``(h, x) -> h``; arguments as for `LSTM`."""
    activation = get_default_override(GRU, activation=activation)
    init = get_default_override(GRU, init=init)
    init_bias = get_default_override(GRU, init_bias=init_bias)
    stabilize = get_default_override(GRU, enable_self_stabilization=enable_self_stabilization)
    outputs, cells = _vectors("GRU", shape, cell_shape)
    b = parameter((3 * cells,), init_bias, "b")
    W = parameter((*INFERRED, 3 * cells), init, "W")
    H = parameter((outputs, 2 * cells), init, "H")
    H1 = parameter((outputs, cells), init, "H1")
    P = parameter((cells, outputs), init, "P") if cell_shape is not None else None
    if P is not None and cells != outputs:
        raise ValueError(f"GRU: expected as many cells as outputs, as the state is of both, got {cells} and {outputs}")
    Sdh, Sht = (Stabilizer(enable_self_stabilization=bool(stabilize)) for _ in range(2))

    def gate(x: Any, number: int) -> Any:
        return ops.slice(x, -1, number * cells, (number + 1) * cells)

    def step(dh: Any, x: Any) -> Any:
        dhs = Sdh(dh) if stabilize else dh
        from_x, from_h = b + ops.times(x, W), ops.times(dhs, H)
        update = ops.sigmoid(gate(from_x, 0) + gate(from_h, 0))
        reset = ops.sigmoid(gate(from_x, 1) + gate(from_h, 1))
        candidate = activated(gate(from_x, 2) + ops.times(dhs * reset, H1), activation)
        h = (1 - update) * candidate + update * dhs
        if P is not None:
            h = ops.times(Sht(h) if stabilize else h, P)
        return ops.alias(h, "h")

    members = {"b": b, "W": W, "H": H, "H1": H1, "P": P}
    return layer(step, "GRU", name, members, ("dh", "x"))


def RNNStep(
    shape: Any,
    cell_shape: Any = None,
    activation: Any = default_override_or(ops.sigmoid),
    init: Any = default_override_or(glorot_uniform()),
    init_bias: Any = default_override_or(0),
    enable_self_stabilization: Any = default_override_or(False),
    name: str = "",
) -> Function:
    """One step of a plain recurrence, ``h = activation(x W + h H + b)``: ``(h, x) -> h``; arguments as for `LSTM`."""
    activation = get_default_override(RNNStep, activation=activation)
    init = get_default_override(RNNStep, init=init)
    init_bias = get_default_override(RNNStep, init_bias=init_bias)
    stabilize = get_default_override(RNNStep, enable_self_stabilization=enable_self_stabilization)
    outputs, cells = _vectors("RNNStep", shape, cell_shape)
    b = parameter((cells,), init_bias, "b")
    W = parameter((*INFERRED, cells), init, "W")
    H = parameter((outputs, cells), init, "H")
    P = parameter((cells, outputs), init, "P") if cell_shape is not None else None
    Sdh, Sht = (Stabilizer(enable_self_stabilization=bool(stabilize)) for _ in range(2))

    def step(dh: Any, x: Any) -> Any:
        dhs = Sdh(dh) if stabilize else dh
        h = activated(ops.times(x, W) + ops.times(dhs, H) + b, activation)
        if P is not None:
            h = ops.times(Sht(h) if stabilize else h, P)
        return ops.alias(h, "h")

    function = layer(step, "RNNStep", name, {"b": b, "W": W, "H": H, "P": P}, ("dh", "x"))
    kernel = {ops.tanh: "tanh", ops.relu: "relu"}.get(activation)
    if kernel is not None and P is None and not stabilize:
        function.step = FusedStep("rnn", (W, H, b), {"activation": kernel}, 1)
    return function


RNNUnit = RNNStep


def _vectors(what: str, shape: Any, cell_shape: Any) -> tuple[int, int]:
    outputs = dims(shape)
    cells = outputs if cell_shape is None else dims(cell_shape)
    if len(outputs) != 1 or len(cells) != 1:
        raise ValueError(f"{what}: expected vectors as shape and cell_shape, got {outputs} and {cells}")
    return outputs[0], cells[0]


def __getattr__(name: str) -> Any:
    raise explain("cntk.layers.blocks", name)
