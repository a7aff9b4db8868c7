"""Whether a dataset over shared memory is still what it was.

Shared memory never changes, so only what lies beside it is compared: the attributes of the dataset, of datasets that it
wraps, and of its transforms, as pickle sees them.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

from feedline.feed.sharing.shared_records import Memory, SentMemory

#: Bytes beside the shared memory that are compared, in about a millisecond.
MOST_BYTES = 1 << 18


class SharedSnapshot:
    """Objects as they are at this moment. Equal snapshots are of equal objects.

    Args:
        objects: a dataset and functions, of which some read from shared memory.

    Raises:
        ValueError: nothing of them lies in shared memory, or too much lies beside it.
        Exception: something beside it cannot be pickled.
    """

    def __init__(self, *objects: Any) -> None:
        self.memories: list[Any] = []  # kept, so that their ids stay theirs
        text = _FewBytes()
        _MemoryPickler(text, self.memories).dump(objects)
        if not self.memories:
            raise ValueError("expected a dataset in shared memory, got none")
        self._text = text.getvalue()

    def is_of(self, *objects: Any) -> bool:
        """Return whether a snapshot of these objects now would equal this one."""
        try:
            return self._text == SharedSnapshot(*objects)._text
        except Exception:  # what pickle calls may raise anything
            return False


class _FewBytes(io.BytesIO):
    """Refuses to grow beyond `MOST_BYTES`."""

    def write(self, data: Any) -> int:
        if self.tell() + len(memoryview(data).cast("B")) > MOST_BYTES:
            raise ValueError(f"expected at most {MOST_BYTES} bytes beside the shared memory, got more")
        return super().write(data)


class _MemoryPickler(pickle.Pickler):
    """Writes shared memory by its identity."""

    def __init__(self, text: _FewBytes, memories: list[Any]) -> None:
        super().__init__(text, 5)
        self._memories = memories

    def reducer_override(self, value: Any) -> Any:
        """See `pickle.Pickler`."""
        if not isinstance(value, (Memory, SentMemory)):
            return NotImplemented
        self._memories.append(value)
        return int, (id(value),)
