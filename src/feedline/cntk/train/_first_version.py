"""Checkpoints of version 1, written when ``z.parameters`` had the first layer first.

A learner's state refers to parameters by name and by index in the learner's list. A script that passes
``z.parameters`` now passes another order, with the same names for other parameters; so the state is reordered. Lists
that scripts make themselves have not changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from feedline.cntk._criterion import tensors_of
from feedline.cntk._order import leaves_in_order
from feedline.cntk.learners import Learner
from feedline.cntk.variables import Parameter, variable_of
from feedline.errors import StateError
from feedline.networks import Node, leaves


def in_present_order(
    tensors: Mapping[str, Any], state: Mapping[str, Any], learners: Sequence[Learner], roots: Iterable[Node]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Convert tensors and state of a trainer to the present order.

    Args:
        tensors: learners' tensors by ``learnerN/kind.parameter``, and others.
        state: state of the trainer.
        learners: learners of the trainer to restore.
        roots: root nodes of model and criterion.

    Raises:
        StateError: the strategy's state has parameters in the old order.
    """
    nodes = list(roots)
    found: dict[str, Any] = dict(tensors)
    own: list[dict[str, Any]] = [dict(learner) for learner in state["learners"]]
    for i, (learner, saved) in enumerate(zip(learners, own, strict=False)):
        old = _list_then(learner, nodes)
        if old is None:
            continue
        if state.get("workers"):
            raise StateError(
                "expected a checkpoint of this version to continue with several workers: this one has parameters in "
                "another order; finish that training with the version that began it"
            )
        now = [p.node for p in learner.parameters]
        places = [old.index(node) for node in now]
        names_then, names_now = _names(old), _names(now)
        prefix = f"learner{i}/"
        renamed = {names_then[place]: name for name, place in zip(names_now, places, strict=True)}
        for name in [name for name in tensors if name.startswith(prefix)]:
            del found[name]
        for name, tensor in tensors.items():
            if name.startswith(prefix):
                kind, dot, parameter = name.partition(".")
                found[kind + dot + renamed.get(parameter, parameter)] = tensor
        saved["parameters"] = _moved(saved["parameters"], places, names_now)
        saved["own"] = {
            key: [values[k] for k in places] if isinstance(values, list) and len(values) == len(places) else values
            for key, values in saved["own"].items()
        }
    return found, {**state, "learners": own}


def _list_then(learner: Learner, roots: Sequence[Node]) -> list[Node] | None:
    """Return the list that the script passed then; None if it has not changed."""
    if not all(isinstance(p, Parameter) for p in learner.parameters):
        return None
    now = [p.node for p in learner.parameters]
    mine = set(now)
    then = [node for node in leaves(roots, "parameter") if node in mine]
    in_order = [node for node in leaves_in_order(roots, "parameter") if node in mine]
    return then if now == in_order and then != now else None


def _names(order: Iterable[Node]) -> list[str]:
    """Return a learner's names for the parameters of a list."""
    return [name for name, _ in tensors_of(variable_of(node) for node in order)]


def _moved(described: Sequence[Any], places: Sequence[int], names: Sequence[str]) -> list[Any]:
    return [[name, described[place][1]] for name, place in zip(names, places, strict=True)]
