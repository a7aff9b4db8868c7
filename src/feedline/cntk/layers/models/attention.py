"""`cntk.layers.models.attention`: attention of a decoder over the states of an encoder."""

from __future__ import annotations

from typing import Any

from feedline.cntk._names import names_of
from feedline.cntk._nodes import node_of
from feedline.cntk._settings import take_plain_settings
from feedline.cntk.default_options import default_options, default_override_or, overridable
from feedline.cntk.initializer import glorot_uniform
from feedline.cntk.layers._layer_helpers import layer, parameter
from feedline.cntk.layers.blocks import Stabilizer
from feedline.cntk.layers.layers import Dense
from feedline.cntk.ops.functions import Function
from feedline.networks import apply

__all__, __getattr__ = names_of(__name__)


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
    """Return additive attention, ``(encoder_hidden_state, decoder_hidden_state) -> weighted mean of encoder states``.

    The weights for a decoder state d are the softmax of ``tanh(e K + d Q) v`` over the encoder states e. It may be used
    in the step of a recurrence. The weights are its operation ``attention_weights``, of shape (longest, 1), with zeros
    after the end of shorter sequences.

    Args:
        attention_dim: width of the hidden layer.
        attention_span: number of encoder states to attend to, the last states of each sequence. None means all.
        attention_axis: accepted, without effect, as the result does not have the axis of the steps.
        init: initializer of weights.
        go_backwards: whether the states of ``attention_span`` are the first states of each sequence.
        enable_self_stabilization: whether to scale operands by learned factors.
        name: name of the layer.

    Raises:
        ValueError: an ``attention_span`` below 1.
    """
    if attention_span is not None and attention_span < 1:
        raise ValueError(f"expected an attention_span of at least 1, got {attention_span}")
    part = {} if attention_span is None else {"span": int(attention_span), "backwards": bool(go_backwards)}
    stabilize = bool(enable_self_stabilization)
    with default_options(bias=False, init=init, enable_self_stabilization=stabilize, activation=None):
        keys, query = (_projection(attention_dim) for _ in range(2))
        scale, final = Stabilizer(), Stabilizer()
    v = parameter((attention_dim, 1), init, "W")
    scaled = v * scale.beta if stabilize else v

    def attend(encoder_hidden_state: Any, decoder_hidden_state: Any) -> Any:
        padded = [apply("sequence_padded", [node_of(x)]) for x in (keys(encoder_hidden_state), encoder_hidden_state)]
        valid = apply("sequence_valid", [node_of(encoder_hidden_state)], part)
        query_node = node_of(query(decoder_hidden_state))
        keyed = [padded[0], valid, query_node, node_of(scaled)]
        shares = apply("attention_weights", keyed, label="attention_weights")
        return final(Function.of([apply("attention_mean", [shares, padded[1]])]))

    return layer(attend, "AttentionModel", name, inputs=("encoder_hidden_state", "decoder_hidden_state"))


def _projection(width: int) -> Any:
    stabilizer, dense = Stabilizer(), Dense(width, input_rank=1)
    return lambda x: dense(stabilizer(x))


take_plain_settings(globals())
