"""`cntk.layers.models.attention`: attention of a decoder to the states of an encoder."""

from __future__ import annotations

from typing import Any

from feedline.cntk._names import explain
from feedline.cntk._nodes import node_of
from feedline.cntk.default_options import default_options, default_override_or, overridable
from feedline.cntk.initializer import glorot_uniform
from feedline.cntk.layers._making import layer, parameter
from feedline.cntk.layers.blocks import Stabilizer
from feedline.cntk.layers.layers import Dense
from feedline.cntk.ops.functions import Function
from feedline.errors import CompatError
from feedline.networks import apply

__all__ = ["AttentionModel"]


@overridable
def AttentionModel(
    attention_dim: int,
    attention_span: int | None = None,
    attention_axis: Any = None,
    init: Any = default_override_or(glorot_uniform()),
    go_backwards: Any = default_override_or(False),
    enable_self_stabilization: Any = default_override_or(True),
    name: str = "",
) -> Function:
    """Additive attention: ``(encoder_hidden_state, decoder_hidden_state) -> weighted mean of encoder states``.

    The weights of a decoder's state d are the softmax over an encoder's steps of ``tanh(e K + d Q) v``. It may stand in
    the step of a recurrence.

    Args:
        attention_dim: width of the hidden layer.
        attention_span, attention_axis: only None.
        init: of weights.
        go_backwards: without meaning over whole sequences, and not looked at.
        enable_self_stabilization: scale operands by learned factors.
        name: its name.

    Raises:
        CompatError: an ``attention_span`` or ``attention_axis``.
    """
    if attention_span is not None or attention_axis is not None:
        raise CompatError("expected no attention_span and no attention_axis: leave them out to attend to all steps")
    stabilize = bool(enable_self_stabilization)
    with default_options(bias=False, init=init, enable_self_stabilization=stabilize, activation=None):
        keys, query = (_projected(attention_dim) for _ in range(2))
        scale, final = Stabilizer(), Stabilizer()
    v = parameter((attention_dim, 1), init, "v")
    scaled = v * scale.beta if stabilize else v

    def attend(encoder_hidden_state: Any, decoder_hidden_state: Any) -> Any:
        padded = [apply("sequence_padded", [node_of(x)]) for x in (keys(encoder_hidden_state), encoder_hidden_state)]
        valid = apply("sequence_valid", [node_of(encoder_hidden_state)])
        wanted = node_of(query(decoder_hidden_state))
        return final(Function.of([apply("attend", [*padded, valid, wanted, node_of(scaled)])]))

    return layer(attend, "AttentionModel", name, inputs=("encoder_hidden_state", "decoder_hidden_state"))


def _projected(width: int) -> Any:
    stabilizer, dense = Stabilizer(), Dense(width, input_rank=1)
    return lambda x: dense(stabilizer(x))


def __getattr__(name: str) -> Any:
    raise explain("cntk.layers.models.attention", name)
