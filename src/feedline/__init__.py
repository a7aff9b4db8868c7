"""feedline feeds training: same order every time, from any point, larger than memory.

The public names, in the order of docs/index.md. Importing this needs NumPy alone; frameworks and pyarrow are imported
at first use.
"""

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from feedline._version import __version__ as __version__
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
from feedline.feed.composed import Bucketed, Mixture, Packed
from feedline.feed.convert import convert
from feedline.feed.convert import register_dataset_reader as _register_dataset_reader
from feedline.feed.corpora import open_corpus
from feedline.feed.formats.arrays import ArrayDeserializer
from feedline.feed.formats.arrow import ArrowDeserializer
from feedline.feed.formats.cbf import CBFDeserializer
from feedline.feed.formats.cbf_write import write_cbf
from feedline.feed.formats.concat import Concat
from feedline.feed.formats.csv import CSVDeserializer
from feedline.feed.formats.ctf import CTFDeserializer
from feedline.feed.formats.ctf_write import write_ctf
from feedline.feed.formats.filtered import Filtered
from feedline.feed.formats.frames import Frames
from feedline.feed.formats.hdf5 import HDF5Deserializer
from feedline.feed.formats.htk import HTKFeatureDeserializer
from feedline.feed.formats.images import Base64ImageDeserializer, ImageFolderDeserializer, ImageMapDeserializer
from feedline.feed.formats.join import Join
from feedline.feed.formats.jsonl import JSONLinesDeserializer
from feedline.feed.formats.litdata import LitDataDeserializer
from feedline.feed.formats.mds import MDSDeserializer
from feedline.feed.formats.mlf import MLFDeserializer
from feedline.feed.formats.parquet import ParquetDeserializer
from feedline.feed.formats.store import StoreDeserializer, StoreWriter
from feedline.feed.formats.take import Take
from feedline.feed.formats.tar import TarDeserializer
from feedline.feed.formats.tfrecord import TFRecordDeserializer
from feedline.feed.formats.tokenized import Tokenized
from feedline.feed.formats.tokens import TokensDeserializer
from feedline.feed.formats.user import UserDeserializer
from feedline.feed.formats.zarr import ZarrDeserializer
from feedline.feed.plan import PlannedMinibatch
from feedline.feed.protocol import ChunkInfo, Deserializer, Feed
from feedline.feed.skipping import Skipping
from feedline.feed.source import MinibatchSource
from feedline.feed.timeline import Window
from feedline.feed.transforms import Map
from feedline.feed.user_source import UserMinibatch, UserMinibatchSource
from feedline.feed.validate import validate
from feedline.graph.importers import register_importer as _register_importer

if _TYPE_CHECKING:
    from feedline.feed.loader import DataLoader, sample_rng
    from feedline.graph.plot import plot_network
    from feedline.graph.summary import summary
    from feedline.runs import report

register_exporter("torch", "feedline.interop.torch:export")
register_exporter("jax", "feedline.interop.jax:export")
_register_dataset_reader("feedline.feed.loader.dataset_chunks:DatasetChunks")
_register_importer("a torch.nn.Module", "feedline.graph.importers:read_module")
_register_importer("an ONNX model or its file", "feedline.graph.importers:read_onnx")
_register_importer("a symbol of MXNet or its JSON", "feedline.networks.importers:read_symbol")
_register_importer("a network of nodes", "feedline.networks.importers:read_network")
_register_importer("a Graph", "feedline.graph.importers:read_graph")

# What takes long to import, or needs torch, comes when somebody asks for it.
_NAMES = {
    "DataLoader": "feedline.feed.loader",
    "sample_rng": "feedline.feed.loader",
    "plot_network": "feedline.graph.plot",
    "summary": "feedline.graph.summary",
    "report": "feedline.runs",
}
_ROOMS = ("images", "kvstore", "train")


def __getattr__(name: str) -> _Any:
    if name in _ROOMS:
        return _importlib.import_module(f"feedline.{name}")
    if name not in _NAMES:
        raise AttributeError(f"module 'feedline' has no attribute {name!r}")
    found = globals()[name] = getattr(_importlib.import_module(_NAMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES, *_ROOMS})


__all__ = [  # noqa: RUF022  # the order of docs/index.md
    "MinibatchSource",
    "DataLoader",
    "sample_rng",
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
    "CBFDeserializer",
    "write_cbf",
    "HDF5Deserializer",
    "ZarrDeserializer",
    "HTKFeatureDeserializer",
    "MLFDeserializer",
    "Frames",
    "ImageFolderDeserializer",
    "ImageMapDeserializer",
    "Base64ImageDeserializer",
    "TarDeserializer",
    "MDSDeserializer",
    "LitDataDeserializer",
    "TFRecordDeserializer",
    "ArrayDeserializer",
    "ArrowDeserializer",
    "ParquetDeserializer",
    "TokensDeserializer",
    "JSONLinesDeserializer",
    "CSVDeserializer",
    "StoreDeserializer",
    "StoreWriter",
    "convert",
    "open_corpus",
    "validate",
    "Skipping",
    "Mixture",
    "Packed",
    "Tokenized",
    "Bucketed",
    "Concat",
    "Join",
    "Take",
    "Filtered",
    "Deserializer",
    "ChunkInfo",
    "UserDeserializer",
    "UserMinibatchSource",
    "UserMinibatch",
    "Feed",
    "register_exporter",
    "plot_network",
    "summary",
    "report",
    "FeedlineError",
    "SchemaError",
    "DataError",
    "StateError",
    "WorkerError",
    "StoreError",
    "CompatError",
]
