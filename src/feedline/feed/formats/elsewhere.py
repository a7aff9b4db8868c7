"""A corpus whose files lie in object stores: the same in every way, but for where its bytes come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feedline.feed.formats.forwarding import Forwarding
from feedline.feed.protocol import Deserializer
from feedline.feed.remote.mirror import Mirror


class RemoteCorpus(Forwarding):
    """A corpus over placeholders of objects.

    Args:
        corpus: the corpus.
        mirror: the objects.
        again: what opens it in another process: a function, and its arguments.

    Attributes:
        mirror: the objects, and the cache that holds parts of them.
    """

    def __init__(self, corpus: Deserializer, mirror: Mirror, again: tuple[Callable[..., Any], tuple[Any, ...]]) -> None:
        super().__init__(corpus)
        self.mirror, self._again = mirror, again

    def __reduce__(self) -> tuple[Any, ...]:
        return self._again

    def __repr__(self) -> str:
        return repr(self._corpus)

    def verified(self) -> Deserializer:  # type: ignore[override]
        """Return the same over the verified corpus; itself if that is the corpus."""
        corpus = self._corpus.verified()
        return self if corpus is self._corpus else RemoteCorpus(corpus, self.mirror, self._again)

    def close(self) -> None:
        """Close the corpus; what was fetched stays in the cache."""
        super().close()
        self.mirror.close()
