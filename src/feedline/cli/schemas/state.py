"""The JSON documents of ``feedline state``."""

from __future__ import annotations

from typing import Literal, TypedDict


class SavedNumbers(TypedDict, total=False):
    """Fields of a state from which its place in words is made. Each is there if the state has it.

    Attributes:
        sweep: number of the sweep, from 0.
        sequence: number of sequences, items or batches delivered in this sweep.
        sequences: number of sequences in a sweep.
        items: number of items in a sweep.
        samples: number of samples delivered.
        label_samples: number of label samples delivered.
        window: number of the window in the order.
    """

    sweep: int | str
    sequence: int | str
    sequences: int | str
    items: int | str
    samples: int | str
    label_samples: int | str
    window: int | str


class SavedState(TypedDict):
    """A state in the file.

    Attributes:
        key: keys and indices that lead to it, joined by dots. Empty if it is the whole file.
        of: class of the object that was saved.
        facts: place, order and data, in words.
        state: place, in numbers.
    """

    key: str
    of: Literal["MinibatchSource", "DataLoader"]
    facts: dict[str, str]
    state: SavedNumbers


class StateDocument(TypedDict):
    """The states in a file.

    Attributes:
        file: path of the file.
        states: states, at least one.
    """

    file: str
    states: list[SavedState]


Document = StateDocument
