"""The JSON documents of ``feedline tune``."""

from __future__ import annotations

from typing import Any, TypedDict


class TunedSetting(TypedDict):
    """A setting of the search.

    Attributes:
        arguments: arguments by name.
        predicted: predicted speed, in units per second.
        measured: measured speed, in units per second. None if it was not measured.
        ratio: measured speed, divided by that of the present setting. None if it was not measured.
        pairs: number of turns beside another setting.
        keeps_order: whether sequences come in the same order as with the present setting.
        mixing: distance of neighbours in the data, 1 for a full shuffle. None if it was not measured.
        remark: why it cannot be chosen. Empty if it can.
        present: whether it is the present setting.
        chosen: whether it is the result.
    """

    arguments: dict[str, Any]
    predicted: float
    measured: float | None
    ratio: float | None
    pairs: int
    keeps_order: bool
    mixing: float | None
    remark: str
    present: bool
    chosen: bool


class TuneDocument(TypedDict):
    """The result of a search.

    Attributes:
        subject: path, address or factory, as typed.
        cold: whether data was evicted before each measurement.
        unit: unit of speeds, each per second.
        seconds: seconds of the search.
        turns: number of measurements.
        settings: settings, the present one first.
        arguments: arguments of the chosen setting, by name.
        changes: those among them that differ from the present setting.
        ratio: speed of the chosen setting, divided by that of the present one.
        code: Python that uses it.
        notes: what else is worth knowing, in sentences.
    """

    subject: str
    cold: bool
    unit: str
    seconds: float
    turns: int
    settings: list[TunedSetting]
    arguments: dict[str, Any]
    changes: dict[str, Any]
    ratio: float | None
    code: str
    notes: list[str]


Document = TuneDocument
