"""Optimizers that users write, as rules of stores."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from feedline.errors import StateError
from feedline.kvstore import optimizers as rules
from feedline.kvstore.base import Key
from feedline.mxnet.ndarray import NDArray
from feedline.mxnet.ndarray.sparse import RowSparseNDArray, from_tensor
from feedline.mxnet.optimizer import Optimizer, ScriptOptimizer, create

_METHODS = ("create_state", "create_state_multi_precision", "update", "update_multi_precision")


def as_rule(optimizer: Any) -> Any:
    """Return the rule by which a store makes the updates of an optimizer, or of the name of one.

    MXNet's rules are rules of stores. A class that defines one of their methods anew is called by `UserRule`.
    """
    if isinstance(optimizer, str):
        optimizer = create(optimizer)
    kind = type(optimizer)
    if isinstance(optimizer, ScriptOptimizer) and all(
        getattr(kind, name) is getattr(ScriptOptimizer, name) for name in _METHODS
    ):
        return optimizer
    return UserRule(optimizer) if isinstance(optimizer, Optimizer) else optimizer


class UserRule(rules.Optimizer):
    """A rule that calls an optimizer with NDArrays.

    Each store has a rule, with states. Counts of updates are the optimizer's, as in MXNet. If an update fails, arrays
    among the states are restored, numbers and other attributes are not.

    Args:
        optimizer: the optimizer.
    """

    _updating = False

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__()
        self.optimizer = optimizer
        self._user_states: dict[Key, Any] = {}
        self._attach()

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name of the optimizer's class, in lower case."""
        return type(self.optimizer).__name__.lower()

    def _attach(self) -> None:
        """Register with the optimizer, to be notified before one of its attributes changes."""
        living = [reference for reference in self.optimizer.__dict__.get("_rules", ()) if reference() is not None]
        self.optimizer.__dict__["_rules"] = [*living, weakref.ref(self)]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._attach()

    def before_change(self) -> None:
        """See `feedline.kvstore.Optimizer`. Changes that an update makes are its results."""
        if not self._updating:
            super().before_change()

    def agreed(self) -> str:
        """See `feedline.kvstore.Optimizer`."""
        settings = vars(self.optimizer).items()
        numbers = {
            name: value
            for name, value in settings
            if not name.startswith("_") and name != "num_update" and isinstance(value, (int, float, str, type(None)))
        }
        return f"{numbers} {self.optimizer._settings()}"

    # ---- updates ------------------------------------------------------------------------------------------------

    def prepare(self, key: Key, weight: Any) -> None:
        """Create the state that a key lacks, and fill it if its arrays have been loaded.

        Raises:
            StateError: loaded arrays do not fit.
        """
        if key not in self._user_states:
            state = self.optimizer.create_state_multi_precision(key, from_tensor(weight))
            if key in self._states:
                _fill(state, self._states[key], f"{self.name} for key {key!r}")
            self._user_states[key] = state
            self._states.pop(key, None)

    def rule(self, weight: Any, gradient: Any, states: rules.States, count: int) -> None:
        """See `feedline.kvstore.Optimizer`."""
        state = self._user_states[self.key]
        self.optimizer.update_multi_precision(self.key, from_tensor(weight), from_tensor(gradient), state)

    def __call__(self, key: Key, gradient: Any, weight: Any) -> None:
        """See `feedline.kvstore.Optimizer`."""
        self.key, self._updating = key, True
        try:
            self.rule(weight, gradient, {}, 0)
        finally:
            self._updating = False

    # ---- states -------------------------------------------------------------------------------------------------

    def states(self, keys: Iterable[Key] | None = None) -> dict[Key, tuple[rules.States, int]]:
        """See `feedline.kvstore.Optimizer`."""
        begin, counts = self.optimizer.begin_num_update, self.optimizer._index_update_count
        arrays = {**self._states, **{key: dict(_tensors(state)) for key, state in self._user_states.items()}}
        selected = arrays if keys is None else [key for key in keys if key in arrays]
        return {key: (arrays[key], counts.get(key, begin) - begin) for key in selected}

    def set_states(self, states_by_key: Mapping[Key, tuple[rules.States, int]]) -> None:
        """See `feedline.kvstore.Optimizer`. A key whose weight is unknown gets them in `prepare`."""
        for key, (states, count) in states_by_key.items():
            self.optimizer._set_count(key, count)
            if key in self._user_states:
                _fill(self._user_states[key], states, f"{self.name} for key {key!r}")
            else:
                self._states[key] = dict(states)

    def fits(self, states: rules.States) -> bool:
        """See `feedline.kvstore.Optimizer`. `prepare` compares them with the state that the optimizer creates."""
        return True

    def lasting_parameters(self) -> dict[str, Any]:
        """Return no parameters, as only the class of the optimizer knows which attributes are parameters."""
        return {}

    def forget(self) -> None:
        """See `feedline.kvstore.Optimizer`."""
        super().forget()
        self._user_states = {}


def _fill(state: Any, tensors: rules.States, owner: str) -> None:
    """Copy tensors into the arrays of a state.

    Raises:
        StateError: other names or shapes.
    """
    saved = {name: tuple(tensor.shape) for name, tensor in tensors.items() if not name.endswith((".indices", ".rows"))}
    current = {name: array.shape for name, array in _arrays(state) if isinstance(array, NDArray)}
    if saved != current:
        raise StateError(f"expected the states of {owner}", saved=saved, current=current)
    for name, array in _arrays(state):
        if isinstance(array, RowSparseNDArray):
            array.set(tensors[f"{name}.indices"], tensors[f"{name}.rows"])
        else:
            array.tensor.copy_(tensors[name])


def _arrays(state: Any, name: str = "state") -> Iterator[tuple[str, Any]]:
    """Return the arrays of a state, with names by their places."""
    if isinstance(state, (NDArray, RowSparseNDArray)):
        yield name, state
    elif isinstance(state, (list, tuple, dict)):
        for place, part in state.items() if isinstance(state, dict) else enumerate(state):
            yield from _arrays(part, f"{name}.{place}")


def _tensors(state: Any) -> Iterator[tuple[str, Any]]:
    for name, array in _arrays(state):
        if isinstance(array, RowSparseNDArray):
            yield f"{name}.indices", array.indices.tensor
            yield f"{name}.rows", array.data.tensor
        else:
            yield name, array.tensor
