"""Sequences of several pictures, such as windows in time: decoded as pictures, delivered as sequences."""

from __future__ import annotations

import numpy as np

from feedline.data import Value
from feedline.errors import DataError
from feedline.feed.joined_values import in_sequences
from feedline.feed.transforms import DrawKeys, Transformed
from feedline.images.picture_batch import Decoding, PictureWork


class PictureSequences:
    """The work on one minibatch of sequences of pictures. See `PictureWork`.

    The pictures of a sequence get the same random numbers, so that they are cut and mirrored alike.
    """

    def __init__(self, decoding: Decoding, names: list[str], values: dict[str, Value], keys: DrawKeys) -> None:
        self._stream, self._names, self._values = decoding.stream, names, values
        value = values[decoding.stream]
        self._owners = np.repeat(np.arange(value.num_sequences), value.lengths)
        own = DrawKeys(keys.seed, keys.sweeps[self._owners], keys.ordinals[self._owners], keys.stage)
        single = {decoding.stream: in_sequences(value, None)}
        self._work = PictureWork(decoding, [decoding.stream], single, own)

    def begin(self) -> None:
        """Begin in other threads."""
        self._work.begin()

    def result(self) -> Transformed:
        """Return the result of `Transform.run_all`."""
        done = self._work.result()
        errors: dict[int, DataError] = {}
        for i in sorted(done.errors):
            errors.setdefault(int(self._owners[i]), done.errors[i])
        values = {name: self._values[name] for name in self._names}
        values[self._stream] = in_sequences(done.values[self._stream], self._values[self._stream].offsets)
        return Transformed(values, errors, done.seconds)

    def cancel(self) -> None:
        """End the work after the pictures that are being decoded."""
        self._work.cancel()
