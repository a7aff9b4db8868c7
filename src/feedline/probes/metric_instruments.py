"""Metrics as observable instruments of OpenTelemetry, for any exporter of the program."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from typing import Any

from feedline.probes.metric_names import ATTRIBUTES, METRICS, MetricValue

_TOGETHER_S = 0.1  # an exporter asks all instruments of a meter, one after the other

_Read = Callable[[], tuple[int, list[MetricValue]]]


class _Instruments:
    """The instruments of a meter. It has each name once, so that they stay, and later exports use them."""

    def __init__(self, meter: Any) -> None:
        self.reads: list[_Read] = []
        self._pid = os.getpid()
        self._values: dict[str, list[Any]] = {}
        self._read_at = -_TOGETHER_S
        for metric in METRICS:
            create = meter.create_observable_counter if metric.counts else meter.create_observable_gauge
            create(metric.instrument, [self._callback(metric.name)], metric.unit, metric.text)

    def begin(self, read: _Read) -> None:
        """Observe what ``read`` returns, from now on."""
        self.reads.append(read)
        self._read_at = -_TOGETHER_S

    def _callback(self, name: str) -> Callable[[Any], list[Any]]:
        return lambda _: self._all_values().get(name, [])

    def _all_values(self) -> dict[str, list[Any]]:
        """Return the observations by name of the metric. None in a forked child: its parent observes."""
        if os.getpid() != self._pid or not self.reads:
            return {}
        if time.monotonic() - self._read_at >= _TOGETHER_S:
            from opentelemetry.metrics import Observation

            rank, values = self.reads[-1]()
            observed: dict[str, list[Any]] = {}
            for metric, labels, value in values:
                attributes = dict(zip(map(ATTRIBUTES.__getitem__, metric.labels), labels, strict=True))
                observation = Observation(value, {ATTRIBUTES["rank"]: rank, **attributes})
                observed.setdefault(metric.name, []).append(observation)
            self._values, self._read_at = observed, time.monotonic()
        return self._values


_INSTRUMENTS: weakref.WeakKeyDictionary[Any, _Instruments] = weakref.WeakKeyDictionary()  # by meter


def observe(meter: Any, read: _Read) -> Callable[[], None]:
    """Let the instruments of a meter observe what ``read`` returns: the rank, and the values. The latest call counts.

    Returns:
        Function that ends it.
    """
    instruments = _INSTRUMENTS.get(meter)
    if instruments is None:
        instruments = _INSTRUMENTS[meter] = _Instruments(meter)
    instruments.begin(read)
    return lambda: instruments.reads.remove(read)
