"""Encoding of pushes: one message for each server, with the values of a worker for the parts that the server holds.

Costs: dense values are summed directly into the buffer of the message. The buffer is reused, and so is its layout while
the keys are the same. Row-sparse values allocate memory in each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from feedline.kvstore import merging
from feedline.kvstore import row_sparse as rows
from feedline.kvstore.aligned import Field, Layout
from feedline.kvstore.base import Key
from feedline.kvstore.compression import Channel, Compression
from feedline.kvstore.parameter_server.placement import RowRange
from feedline.kvstore.parameter_server.wire_format import Item, slice_rows


class ShardedKey(NamedTuple):
    """A key and its parts on the servers. ``meta`` is a meta tensor of its shape and dtype."""

    key: Key
    place: int
    meta: Any
    parts: tuple[RowRange, ...]


#: A key, and values of a push or outs of a pull.
Group = tuple[ShardedKey, Sequence[Any]]


#: A push to one server: its keys with the encodings of their values, and the bytes of the values, valid until the next
#: push.
PushMessage = tuple[list[Item], Any]


class PushEncoder:
    """Encoder of push messages.

    Attributes:
        compression: compression of values, or None. Set by `compress`.
    """

    def __init__(self) -> None:
        self.compression: Compression | None = None
        self._channels: dict[tuple[Key, int], Channel] = {}
        self._buffers: dict[int, Any] = {}
        self._layouts: tuple[tuple[Key, ...], dict[int, Layout]] = (), {}

    def compress(self, compression: Compression | None) -> None:
        """Set the compression of later messages, and drop residuals."""
        self.compression, self._channels = compression, {}

    def messages(self, groups: Sequence[Group]) -> dict[int, PushMessage]:
        """Return the message for each server."""
        items: dict[int, list[Item]] = {}
        sources: dict[int, list[Sequence[Any]]] = {}
        plain = self.compression is None
        for entry, values in groups:
            dense = [value for value in values if value.layout is torch.strided]
            all_dense = len(dense) == len(values)
            plain = plain and all_dense
            row_sum = None if all_dense else rows.sum_rows([v for v in values if v.layout is not torch.strided], "cpu")
            if dense and (row_sum is not None or self.compression is not None):
                total = torch.empty(entry.meta.shape, dtype=entry.meta.dtype)
                merging.run([(dense, (total,))])
                dense = [total if row_sum is None else total.add_(row_sum)]
            for part in entry.parts:
                encoding, arrays = self._encode(entry, part, dense, row_sum)
                items.setdefault(part.server, []).append((entry.key, encoding))
                sources.setdefault(part.server, []).extend(arrays)
        layouts = self.layouts(groups) if plain else {}
        result = {}
        for server, several in sources.items():
            layout = layouts.get(server) or Layout([(tensors[0].shape, tensors[0].dtype) for tensors in several])
            buffer = self._buffer(server, layout.size)
            layout.write(buffer, several)
            result[server] = items[server], buffer
        return result

    def _encode(
        self, entry: ShardedKey, part: RowRange, dense: Sequence[Any], merged: Any
    ) -> tuple[int | dict[str, Any] | None, list[Sequence[Any]]]:
        """Return the encoding of one part, and the tensors to sum into each of its arrays."""
        if not dense:
            ids = merged.indices()[0]
            low, high = (int(torch.searchsorted(ids, bound)) for bound in (part.start, part.stop))
            return high - low, [[ids[low:high] - part.start], [merged.values()[low:high]]]
        if self.compression is None:
            return None, [[slice_rows(tensor, part) for tensor in dense]]
        piece, slot = slice_rows(dense[0], part), (entry.key, part.server)
        if slot not in self._channels:
            self._channels[slot] = Channel(self.compression, piece.shape, piece.dtype, "cpu")
        channel = self._channels[slot]
        self.compression.encode([channel.job(piece)])
        return self.compression.parameters(), [[channel.codes]]

    def layouts(self, groups: Sequence[Group]) -> dict[int, Layout]:
        """Return the layout of each server's message for dense values of these keys. Cached for the last keys."""
        keys = tuple(entry.key for entry, _ in groups)
        if keys != self._layouts[0]:
            fields: dict[int, list[Field]] = {}
            for entry, _ in groups:
                for part in entry.parts:
                    field = slice_rows(entry.meta, part).shape, entry.meta.dtype
                    fields.setdefault(part.server, []).append(field)
            self._layouts = keys, {server: Layout(several) for server, several in fields.items()}
        return self._layouts[1]

    def commit(self, server: int, items: Sequence[Item]) -> None:
        """Commit the residuals of a message that was sent."""
        if self.compression is not None:
            for key, _ in items:
                self._channels[key, server].commit()

    def _buffer(self, server: int, size: int) -> Any:
        """Return the buffer for a server's messages, allocated again when their size changes."""
        if server not in self._buffers or self._buffers[server].numel() != size:
            self._buffers[server] = torch.empty(size, dtype=torch.uint8)
        return self._buffers[server]


def group_by_server(outs: Sequence[Group]) -> dict[int, list[tuple[ShardedKey, RowRange, Sequence[Any]]]]:
    """Return the parts of outs by the server that holds them."""
    groups: dict[int, list[tuple[ShardedKey, RowRange, Sequence[Any]]]] = {}
    for entry, tensors in outs:
        for part in entry.parts:
            groups.setdefault(part.server, []).append((entry, part, tensors))
    return groups
