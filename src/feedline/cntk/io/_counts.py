"""Number of samples of each stream in a sweep, counted on demand."""

from __future__ import annotations

from collections.abc import Callable

from feedline.cntk._errors import as_cntk
from feedline.feed.protocol import is_sized, num_chunks
from feedline.feed.source import MinibatchSource


class SampleCounts:
    """Sample counts of a feed's streams.

    If chunk sizes determine them, nothing is read. Otherwise the first request reads every chunk once.
    """

    def __init__(self, feed: MinibatchSource) -> None:
        self._feed = feed
        self._counts: dict[str, int] | None = None

    def of(self, name: str) -> Callable[[], int]:
        """Return a function that returns the number of samples of one stream."""
        return lambda: self._count(name)

    def _count(self, name: str) -> int:
        corpus, schema = self._feed.corpus, self._feed.corpus.schema
        if is_sized(corpus):
            longest = self._feed.num_samples
            one_each = schema.size_stream is None and longest == self._feed.num_sequences
            if one_each or schema.size_stream == name or list(schema) == [name]:
                return longest
        if self._counts is None:
            with as_cntk():
                self._counts = dict.fromkeys(schema, 0)
                for number in range(num_chunks(corpus)):
                    chunk = corpus.read(number)
                    for stream in schema:
                        self._counts[stream] += chunk[stream].num_samples
        return self._counts[name]
