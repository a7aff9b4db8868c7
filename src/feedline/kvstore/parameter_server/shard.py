"""The state of one parameter server: parts of arrays, their update rule, and the progress of each worker.

Each worker numbers its pushes 1, 2, 3, … A shard applies each number once, in order. A repeated push is ignored, and
one that skips a number is refused. Arrays and numbers are saved in one snapshot, so a restored shard knows which pushes
it contains and applies exactly the missing ones when pushes are replayed. An updater's exception is kept until the
worker acknowledges it, so that a lost answer does not lose it.

This module knows no processes or messages (see `feedline.kvstore.parameter_server.server`). Arrays are exchanged in
contiguous buffers (`feedline.kvstore.parameter_server.wire_format`), and keys created together are stored in one
buffer. Costs: a snapshot copies all arrays and states once. A pull copies only arrays that are not contiguous.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from feedline.errors import StateError, StoreError
from feedline.kvstore.aligned import Layout
from feedline.kvstore.base import Key, check_updater
from feedline.kvstore.call_arguments import group_by_key
from feedline.kvstore.key_table import Table
from feedline.kvstore.optimizers import Optimizer, optimizer, optimizer_for
from feedline.kvstore.parameter_server.wire_format import (
    Item,
    dtype_name,
    dtype_of,
    fields_of,
    receive_buffer,
    receive_ids,
    to_buffer,
    value_of,
)

VERSION = 1
#: Description of an updater: a name and parameters, or an object of user code.
Rule = Mapping[str, Any] | None


class Shard:
    """Parts of arrays under one update rule. Applying a push is idempotent.

    Attributes:
        applied: number of the last push applied, by worker.
        failures: exceptions of the updater that were not acknowledged, by worker and number of the push. See
            `acknowledge`.
        generation: number of times that the rule was set.
        rule: rule set by `set_rule`. Snapshots do not contain an object.
        lacks_rule: whether the shard was restored without its rule, an object. No push is applied until it is set
            again.
    """

    def __init__(self) -> None:
        self._table = Table(on_cpu=True)
        self.applied: dict[str, int] = {}
        self.failures: dict[str, dict[int, Exception]] = {}
        self.generation = 0
        self.rule: Rule = None
        self.lacks_rule = False
        self._pending_states: dict[Key, tuple[dict[str, Any], int]] = {}

    # ---- keys -----------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of keys."""
        return len(self._table.entries)

    def key_shapes(self, keys: Sequence[Key]) -> dict[Key, tuple[tuple[int, ...], str]]:
        """Return shape and dtype of each key that exists in this shard."""
        arrays = {key: self._table.entries[key].stored for key in keys if key in self._table.entries}
        return {key: (tuple(stored.shape), dtype_name(stored.dtype)) for key, stored in arrays.items()}

    def create_keys(self, items: Sequence[tuple[Key, tuple[int, ...], str]], buffer: Any) -> None:
        """Create keys with these shapes and dtypes. Existing ones are left unchanged."""
        for key, shape, _ in items:
            if any(type(n) is not int or n < 0 for n in shape):
                raise StoreError(f"expected non-negative integers as shape of key {key!r}, got {shape!r}")
        layout = Layout([(shape, dtype_of(name)) for _, shape, name in items])
        values = layout.views(receive_buffer(buffer, layout.size, "a worker"))
        self._gather([(key, v) for (key, *_), v in zip(items, values, strict=True) if key not in self._table.entries])

    def _gather(self, pairs: Sequence[tuple[Key, Any]]) -> None:
        """Create keys in one contiguous buffer."""
        if not pairs:
            return
        initial = group_by_key([key for key, _ in pairs], [value for _, value in pairs], "value")
        self._table.check_new(initial)
        self._table.add(self._table.entries_of(initial))
        fields = [(value.shape, value.dtype) for _, value in pairs]
        places = Layout(fields).views(to_buffer([value for _, value in pairs]))
        for (key, _), place in zip(pairs, places, strict=True):
            self._table.entries[key].stored = place

    # ---- pushes and pulls -----------------------------------------------------------------------------------

    def due(self, worker: str, number: int, skip: bool) -> bool | None:
        """Return True if the push has to be applied, False if it was, None if earlier pushes are missing.

        Args:
            worker: name of the worker.
            number: number of the push.
            skip: whether the missing pushes before this one are lost, so that it skips them.
        """
        last = self.applied.get(worker, 0)
        if number <= last:
            return False
        return None if self.lacks_rule or (number > last + 1 and not skip) else True

    def acknowledge(self, worker: str, number: int) -> None:
        """Acknowledge the outcome of a worker's pushes up to this number, and drop their exceptions."""
        failures = self.failures.get(worker, {})
        for n in [n for n in failures if n <= number]:
            del failures[n]

    def apply(self, worker: str, number: int, items: Sequence[Item], buffer: Any) -> None:
        """Apply a push, whole or not at all. Its number counts as applied either way.

        Raises:
            StoreError: the push does not fit the stored arrays.
            Exception: exception of the updater.
        """
        self.applied[worker] = number
        stored = self._arrays_of([key for key, _ in items])
        fields = [fields_of(item, target.shape, target.dtype) for item, target in zip(items, stored, strict=True)]
        layout = Layout([field for key_fields in fields for field in key_fields])
        arrays = iter(layout.views(receive_buffer(buffer, layout.size, f"worker {worker}")))
        values = [
            value_of(item, [next(arrays) for _ in key_fields], target)
            for item, key_fields, target in zip(items, fields, stored, strict=True)
        ]
        self._table.push(self._table.values(group_by_key([key for key, _ in items], values, "value")))

    def read(self, keys: Sequence[Key]) -> Any:
        """Return the stored arrays as one buffer, without a copy if they are contiguous.

        Raises:
            StoreError: a key does not exist in this shard.
        """
        stored = self._arrays_of(keys)
        if not stored:
            return np.empty(0, np.uint8)
        layout = Layout([(array.shape, array.dtype) for array in stored])
        memory = stored[0].untyped_storage()
        first = stored[0].data_ptr()
        if all(
            array.data_ptr() == first + begin and array.untyped_storage().data_ptr() == memory.data_ptr()
            for array, begin in zip(stored, layout.begins, strict=True)
        ):
            memory_run = torch.empty(0, dtype=torch.uint8).set_(memory)
            start = first - memory.data_ptr()
            return memory_run[start : start + layout.size].numpy()
        return to_buffer(stored).numpy()

    def read_rows(self, keys: Sequence[Key], ids: Sequence[Any]) -> Any:
        """Return rows of keys as one buffer, in the order of the ids (int64, relative to the part's first row).

        Raises:
            StoreError: a key or row does not exist in this shard.
        """
        selected = []
        for key, stored, row_ids in zip(keys, self._arrays_of(keys), ids, strict=True):
            if not stored.dim():
                raise StoreError(f"expected a key with rows, got {key!r}, which is a scalar")
            selected.append(stored.index_select(0, receive_ids(row_ids, len(stored), "a worker")))
        return to_buffer(selected).numpy()

    def _arrays_of(self, keys: Sequence[Key]) -> list[Any]:
        missing = [key for key in keys if key not in self._table.entries]
        if missing:
            raise StoreError(f"expected a key of this server, got {missing[0]!r}: the server has lost its snapshot")
        return [self._table.entries[key].stored for key in keys]

    # ---- the rule -------------------------------------------------------------------------------------------

    def set_rule(self, rule: Rule, generation: int) -> None:
        """Set the update rule.

        Args:
            rule: ``{"name": …, "parameters": {…}}``, ``{"object": …}``, or None, which means that pushes
                assign. An unchanged name with unchanged parameters keeps the states, for example when worker 0
                was restarted.
            generation: count of worker 0. The current one is ignored, unless the rule is missing.
        """
        if generation == self.generation and not self.lacks_rule:
            return
        same = rule is not None and "name" in rule and rule == self.rule
        if not same:
            updater = None if rule is None else _updater_of(rule)
            self._set_updater(updater)
            if isinstance(updater, Optimizer) and generation == self.generation:
                updater.set_states(self._pending_states)  # the states of the rule that it lacked
        self.rule, self.generation, self.lacks_rule, self._pending_states = rule, generation, False, {}

    def _set_updater(self, rule: Any) -> None:
        check_updater(rule)
        self._table.set_updater(optimizer_for(rule, {}, self._table) if isinstance(rule, Optimizer) else rule)

    def states(self) -> tuple[str, dict[str, Any], dict[Key, tuple[dict[str, Any], int]]]:
        """Return name, parameters and states of the optimizer.

        Raises:
            RefusedError: no optimizer is set.
        """
        rule = self._table.optimizer
        return rule.name, rule.parameters(), rule.states()

    def set_states(self, parameters: dict[str, Any], states_by_key: Mapping[Key, tuple[dict[str, Any], int]]) -> None:
        """Replace parameters and all states of the optimizer.

        Raises:
            StoreError: keys or shapes do not match.
        """
        rule = self._table.optimizer
        for key, stored in zip(states_by_key, self._arrays_of(list(states_by_key)), strict=True):
            states, count = states_by_key[key]
            for name, state in states.items():
                if state.shape != stored.shape or not state.dtype.is_floating_point:
                    raise StoreError(
                        f"expected floating point of shape {tuple(stored.shape)} as {name} of key {key!r}, got "
                        f"{state.dtype} of {tuple(state.shape)}"
                    )
            if type(count) is not int or count < 0:
                raise StoreError(f"expected a non-negative count of updates of key {key!r}, got {count!r}")
        rule.set_parameters(parameters)
        rule.forget()
        rule.set_states(states_by_key)
        if self.rule is not None and "name" in self.rule:
            self.rule = {"name": rule.name, "parameters": parameters}

    # ---- snapshots ------------------------------------------------------------------------------------------

    def snapshot(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a copy of the whole state: tensors, and JSON types."""
        entries = list(self._table.entries.values())
        states = self._table.updater.states() if isinstance(self._table.updater, Optimizer) else self._pending_states
        tensors = {f"value.{i}": entry.stored.clone() for i, entry in enumerate(entries)}
        for i, (key_states, _) in enumerate(states.values()):
            tensors |= {f"state.{i}.{name}": tensor.clone() for name, tensor in key_states.items()}
        about = {
            "feedline": VERSION,
            "keys": [entry.key for entry in entries],
            "applied": dict(self.applied),
            "failures": [[worker, n, repr(e)] for worker, errors in self.failures.items() for n, e in errors.items()],
            "generation": self.generation,
            "rule": self.rule if self.rule is None or "name" in self.rule else {},
            "states": [[key, list(key_states), count] for key, (key_states, count) in states.items()],
        }
        return tensors, about

    def restore(self, tensors: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        """Restore a fresh shard from a snapshot.

        Raises:
            StateError: the snapshot has another version.
        """
        if about.get("feedline") != VERSION:
            saved, current = {"version": about.get("feedline")}, {"version": VERSION}
            raise StateError("expected a snapshot of a server", saved=saved, current=current)
        keys = about["keys"]
        self._gather([(key, tensors[f"value.{i}"]) for i, key in enumerate(keys)])
        states = {
            key: ({name: tensors[f"state.{i}.{name}"] for name in names}, count)
            for i, (key, names, count) in enumerate(about["states"])
        }
        self.applied, self.generation = dict(about["applied"]), about["generation"]
        for worker, number, text in about.get("failures", []):
            self.failures.setdefault(worker, {})[number] = StoreError(f"expected the updater to succeed, got {text}")
        self.rule = about["rule"]
        if self.rule == {}:
            self.lacks_rule, self._pending_states = True, states
        elif self.rule is not None:
            updater = optimizer(self.rule["name"], **self.rule["parameters"])
            self._set_updater(updater)
            updater.set_states(states)


def _updater_of(rule: Mapping[str, Any]) -> Any:
    return rule["object"] if "object" in rule else optimizer(rule["name"], **rule["parameters"])
