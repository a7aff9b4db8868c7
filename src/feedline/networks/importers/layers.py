"""Settings of a layer that is several operations, such as a convolution with its activation."""

from __future__ import annotations

from collections.abc import Sequence

from feedline.graph.graph import Operation, Setting
from feedline.graph.op_families import family
from feedline.graph.settings import brief

FOLLOWING = ("normalisation", "activation", "dropout")


def layer_settings(operations: Sequence[Operation]) -> tuple[Setting, ...]:
    """Return the settings of the first operation that has any to tell, and in words what follows it.

    Empty if neither is there. Of what follows, only normalisations, activations and dropout count.
    """
    at = next((i for i, operation in enumerate(operations) if brief(operation.settings)), 0)
    then = [_word(o) for o in operations[at + 1 :] if family(o.kind) in FOLLOWING]
    told = (Setting("then", ", ".join(then), f"then {', '.join(then)}"),) if then else ()
    return (*operations[at].settings, *told)


def _word(operation: Operation) -> str:
    """Return an operation in a word: ``relu`` for MXNet's Activation of this kind."""
    kinds = [setting.value for setting in operation.settings if setting.name == "kind"]
    return kinds[0] if kinds else operation.kind
