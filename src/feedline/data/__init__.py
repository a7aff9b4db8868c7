"""Streams and schemas, values, chunks, minibatches, and the clock that minibatches carry.

Imports only NumPy; frameworks are reached through the exporters that `feedline.interop` registers.
"""

from feedline.data.chunk import Chunk
from feedline.data.clock import Position, Span, Unit, minibatches, samples, sweeps
from feedline.data.minibatch import Minibatch
from feedline.data.schema import Schema, Stream
from feedline.data.value import Value, register_exporter

__all__ = [
    "Chunk",
    "Minibatch",
    "Position",
    "Schema",
    "Span",
    "Stream",
    "Unit",
    "Value",
    "minibatches",
    "register_exporter",
    "samples",
    "sweeps",
]
