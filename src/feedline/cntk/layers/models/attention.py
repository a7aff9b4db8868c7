"""`cntk.layers.models.attention`: attention of a decoder over the states of an encoder."""

from __future__ import annotations

import warnings
from typing import Any

from feedline.cntk import ops
from feedline.cntk._names import names_of
from feedline.cntk._nodes import node_of
from feedline.cntk._settings import take_plain_settings
from feedline.cntk.default_options import default_options, default_override_or, overridable
from feedline.cntk.initializer import glorot_uniform
from feedline.cntk.layers._layer_helpers import layer, parameter
from feedline.cntk.layers.blocks import Stabilizer
from feedline.cntk.layers.layers import Dense
from feedline.cntk.layers.sequence import PastValueWindow
from feedline.cntk.ops import sequence
from feedline.cntk.ops.functions import Function
from feedline.networks import apply

__all__, __getattr__ = names_of(__name__)

# Subtracted from the logits of absent states of a window, as in CNTK.
_HIDDEN_BY = 50


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

    With a span, a window of states is stacked along an axis, the last state first. For -3, weights have the shape
    (span, 1, 1), and the result (1, 1, width).

    Args:
        attention_dim: width of the hidden layer.
        attention_span: number of encoder states to attend to, the last states of each sequence. None means all.
        attention_axis: axis of the window, counted from the last axis of the states. None without a span.
        init: initializer of weights.
        go_backwards: whether the states of ``attention_span`` are the first states of each sequence.
        enable_self_stabilization: whether to scale operands by learned factors.
        name: name of the layer.

    Raises:
        ValueError: an ``attention_span`` below 1, or only one of ``attention_span`` and ``attention_axis``.
    """
    if attention_span is not None and attention_span < 1:
        raise ValueError(f"expected an attention_span of at least 1, got {attention_span}")
    if (attention_span is None) != (attention_axis is None):
        raise ValueError(
            "expected attention_span and attention_axis, or neither of them, got "
            f"attention_span={attention_span!r} and attention_axis={attention_axis!r}"
        )
    stabilize = bool(enable_self_stabilization)
    with default_options(bias=False, init=init, enable_self_stabilization=stabilize, activation=None):
        keys, query = (_projection(attention_dim) for _ in range(2))
        scale, final = Stabilizer(), Stabilizer()
    v = parameter((attention_dim, 1), init, "W")
    scaled = v * scale.beta if stabilize else v

    def attend(encoder_hidden_state: Any, decoder_hidden_state: Any) -> Any:
        padded = [apply("sequence_padded", [node_of(x)]) for x in (keys(encoder_hidden_state), encoder_hidden_state)]
        valid = apply("sequence_valid", [node_of(encoder_hidden_state)])
        query_node = node_of(query(decoder_hidden_state))
        keyed = [padded[0], valid, query_node, node_of(scaled)]
        shares = apply("attention_weights", keyed, label="attention_weights")
        return final(Function.of([apply("attention_mean", [shares, padded[1]])]))

    def attend_to_window(encoder_hidden_state: Any, decoder_hidden_state: Any) -> Any:
        states, valid = window(encoder_hidden_state).outputs

        def to_decoder(x: Any) -> Any:
            return sequence.broadcast_as(x, decoder_hidden_state)

        hidden = ops.tanh(query(decoder_hidden_state) + to_decoder(keys(states)))
        logits = ops.times(hidden, scaled) + (to_decoder(valid) - 1) * _HIDDEN_BY
        weights = ops.softmax(logits, axis=attention_axis, name="attention_weights")
        return final(ops.reduce_sum(to_decoder(states) * weights, axis=attention_axis))

    if attention_span is not None:
        window = PastValueWindow(attention_span, attention_axis, go_backwards)
        warnings.warn(
            "CNTK 2.2 deprecated attention_span and attention_axis: AttentionModel without them attends to all states",
            DeprecationWarning,
            stacklevel=2,
        )
        attend = attend_to_window
    return layer(attend, "AttentionModel", name, inputs=("encoder_hidden_state", "decoder_hidden_state"))


def _projection(width: int) -> Any:
    stabilizer, dense = Stabilizer(), Dense(width, input_rank=1)
    return lambda x: dense(stabilizer(x))


take_plain_settings(globals())
