"""feedline feeds training: same order every time, from any point, larger than memory.

The public names, in README order. Importing this needs NumPy alone; frameworks and pyarrow come at first use.
"""

import importlib as _importlib
from typing import Any as _Any

from feedline.data import (
    Chunk,
    Minibatch,
    Position,
    Schema,
    Span,
    Stream,
    Unit,
    Value,
    minibatches,
    register_exporter,
    samples,
    sweeps,
)
from feedline.errors import (
    CompatError,
    DataError,
    FeedlineError,
    SchemaError,
    StateError,
    StoreError,
    WorkerError,
)
from feedline.feed.convert import convert, open_corpus
from feedline.feed.formats.arrays import ArrayDeserializer
from feedline.feed.formats.ctf import CTFDeserializer
from feedline.feed.formats.ctf_write import write_ctf
from feedline.feed.formats.join import Join
from feedline.feed.formats.parquet import ParquetDeserializer
from feedline.feed.formats.store import StoreDeserializer, StoreWriter
from feedline.feed.formats.user import UserDeserializer
from feedline.feed.plan import PlannedMinibatch
from feedline.feed.protocol import ChunkInfo, Deserializer, Feed
from feedline.feed.source import MinibatchSource
from feedline.feed.timeline import Window
from feedline.feed.transforms import Map
from feedline.feed.user_source import UserMinibatch, UserMinibatchSource

__version__ = "0.1.0"

register_exporter("torch", "feedline.interop.torch:export")
register_exporter("jax", "feedline.interop.jax:export")


def __getattr__(name: str) -> _Any:
    # Rooms that need torch open when somebody comes.
    if name in ("kvstore", "train"):
        return _importlib.import_module(f"feedline.{name}")
    raise AttributeError(f"module 'feedline' has no attribute {name!r}")


__all__ = [  # noqa: RUF022  # README order
    "MinibatchSource",
    "Window",
    "PlannedMinibatch",
    "Map",
    "Stream",
    "Schema",
    "Value",
    "Chunk",
    "Minibatch",
    "Position",
    "Span",
    "Unit",
    "samples",
    "minibatches",
    "sweeps",
    "CTFDeserializer",
    "write_ctf",
    "ArrayDeserializer",
    "ParquetDeserializer",
    "StoreDeserializer",
    "StoreWriter",
    "convert",
    "open_corpus",
    "Deserializer",
    "ChunkInfo",
    "Join",
    "UserDeserializer",
    "UserMinibatchSource",
    "UserMinibatch",
    "Feed",
    "register_exporter",
    "FeedlineError",
    "SchemaError",
    "DataError",
    "StateError",
    "WorkerError",
    "StoreError",
    "CompatError",
]
