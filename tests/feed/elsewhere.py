"""A transform that works ahead, in a thread for each minibatch."""

from __future__ import annotations

import threading

import numpy as np

from feedline import _native
from feedline.data import Value
from feedline.errors import DataError
from feedline.feed.transforms import Transform, Transformed


class Elsewhere(Transform):
    """Adds numbers to stream `x` that a sequence's place and the stage determine. Sequences ``bad`` become unreadable.

    Attributes:
        begun, finished: minibatches begun ahead, and taken.
    """

    name = "the transform Elsewhere"

    def __init__(self, bad=(), ahead=True):
        self.works_ahead, self._bad = ahead, frozenset(bad)
        self.begun = self.finished = 0

    def schema(self, before):
        return before

    def run_all(self, before, values, keys):
        assert len(keys.sweeps) == len(keys.ordinals) == values["x"].num_sequences
        sequences = []
        for i, x in enumerate(values["x"].sequences()):
            drawn = _native.hash_key([keys.seed, int(keys.sweeps[i]), int(keys.ordinals[i]), keys.stage]) % 1000
            sequences.append(x + np.float32(drawn))
        made = Value.from_sequences(sequences) if sequences else values["x"]
        errors = {i: DataError(f"planted in {n}") for i, n in enumerate(keys.ordinals.tolist()) if n in self._bad}
        return Transformed({**values, "x": made}, errors, 0.25)

    def start(self, before, values, keys):
        self.begun += 1
        return _Begun(self, lambda: self.run_all(before, values, keys))

    def result_bytes(self, before, sequences):
        return 8 * sequences


class _Begun:
    def __init__(self, transform, work):
        self._transform = transform
        self._thread = threading.Thread(target=lambda: setattr(self, "_result", work()))
        self._thread.start()

    def result(self):
        self._thread.join()
        self._transform.finished += 1
        return self._result
