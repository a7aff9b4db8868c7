"""feedline feeds training: same order every time, from any point, larger than memory.

The public names, in README order. Importing this needs NumPy alone; frameworks and pyarrow are imported when first used.
"""

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
from feedline.feed.protocol import ChunkInfo, Deserializer, Feed
from feedline.feed.source import MinibatchSource
from feedline.feed.timeline import Window
from feedline.feed.transforms import Map

__version__ = "0.1.0"

register_exporter("torch", "feedline.interop.torch:export")
register_exporter("jax", "feedline.interop.jax:export")
