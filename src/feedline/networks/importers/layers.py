"""Settings of a layer that is several operations, such as a convolution with its activation."""

from __future__ import annotations

from collections.abc import Sequence

from feedline.graph.graph import Operation, Setting
from feedline.graph.op_families import family
from feedline.graph.settings import brief

FOLLOWING = ("normalisation", "activation", "dropout")


def layer_settings(operations: Sequence[Operation]) -> tuple[Setting, ...]:
    """Return the settings of the first operation that shows any, and a text that lists the operations after it.

    Only normalisations, activations and dropout are listed. Empty without settings and such operations.
    """
    at = next((i for i, operation in enumerate(operations) if brief(operation.settings)), 0)
    then = [_word(o) for o in operations[at + 1 :] if family(o.kind) in FOLLOWING]
    following = (Setting("then", ", ".join(then), f"then {', '.join(then)}"),) if then else ()
    return (*operations[at].settings, *following)


def _word(operation: Operation) -> str:
    """Return one word for an operation, such as ``relu`` for MXNet's Activation of this kind."""
    kinds = [setting.value for setting in operation.settings if setting.name == "kind"]
    return kinds[0] if kinds else operation.kind
