"""feedline feeds training: same order every time, from any point, larger than memory.

The public names, in the order of docs/index.md. Frameworks and pyarrow are imported at first use.
"""

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from feedline._version import __version__ as __version__

if _TYPE_CHECKING:
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
    from feedline.feed.composed.concat import Concat
    from feedline.feed.composed.filtered import Filtered
    from feedline.feed.composed.frames import Frames
    from feedline.feed.composed.join import Join
    from feedline.feed.composed.skipping import Skipping
    from feedline.feed.composed.take import Take
    from feedline.feed.composed.tokenized import Tokenized
    from feedline.feed.conversion.convert import convert
    from feedline.feed.corpora import open_corpus
    from feedline.feed.formats.arrays import ArrayDeserializer
    from feedline.feed.formats.arrow.arrow import ArrowDeserializer
    from feedline.feed.formats.arrow.parquet import ParquetDeserializer
    from feedline.feed.formats.cntk.cbf import CBFDeserializer
    from feedline.feed.formats.cntk.cbf_write import write_cbf
    from feedline.feed.formats.cntk.ctf import CTFDeserializer
    from feedline.feed.formats.cntk.ctf_write import write_ctf
    from feedline.feed.formats.cntk.htk import HTKFeatureDeserializer
    from feedline.feed.formats.cntk.mlf import MLFDeserializer
    from feedline.feed.formats.csv import CSVDeserializer
    from feedline.feed.formats.format import Format
    from feedline.feed.formats.images import Base64ImageDeserializer, ImageFolderDeserializer, ImageMapDeserializer
    from feedline.feed.formats.jsonl import JSONLinesDeserializer
    from feedline.feed.formats.litdata import LitDataDeserializer
    from feedline.feed.formats.shards.mds import MDSDeserializer
    from feedline.feed.formats.store import StoreDeserializer, StoreWriter
    from feedline.feed.formats.stored.hdf5 import HDF5Deserializer
    from feedline.feed.formats.stored.zarr import ZarrDeserializer
    from feedline.feed.formats.tar import TarDeserializer
    from feedline.feed.formats.tfrecord import TFRecordDeserializer
    from feedline.feed.formats.tokens import TokensDeserializer
    from feedline.feed.formats.user import UserDeserializer
    from feedline.feed.loader import DataLoader, sample_rng
    from feedline.feed.plan import PlannedMinibatch
    from feedline.feed.protocol import ChunkInfo, Deserializer, Feed
    from feedline.feed.source import MinibatchSource
    from feedline.feed.timeline import Window
    from feedline.feed.transforms import Map
    from feedline.feed.user_source import UserMinibatch, UserMinibatchSource
    from feedline.feed.validate import validate
    from feedline.graph.plot import plot_network
    from feedline.graph.summary import summary
    from feedline.runs import report

# Importing the package costs next to nothing: each name comes with its module, when somebody asks for it.
_MODULES = {
    "feedline.data": "Chunk Minibatch Position Schema Span Stream Unit Value minibatches register_exporter samples "
    "sweeps",
    "feedline.errors": "CompatError DataError FeedlineError SchemaError StateError StoreError WorkerError",
    "feedline.feed.composed": "Bucketed Mixture Packed",
    "feedline.feed.conversion.convert": "convert",
    "feedline.feed.corpora": "open_corpus",
    "feedline.feed.formats.arrays": "ArrayDeserializer",
    "feedline.feed.formats.arrow.arrow": "ArrowDeserializer",
    "feedline.feed.formats.cntk.cbf": "CBFDeserializer",
    "feedline.feed.formats.cntk.cbf_write": "write_cbf",
    "feedline.feed.composed.concat": "Concat",
    "feedline.feed.formats.csv": "CSVDeserializer",
    "feedline.feed.formats.cntk.ctf": "CTFDeserializer",
    "feedline.feed.formats.cntk.ctf_write": "write_ctf",
    "feedline.feed.composed.filtered": "Filtered",
    "feedline.feed.formats.format": "Format",
    "feedline.feed.composed.frames": "Frames",
    "feedline.feed.formats.stored.hdf5": "HDF5Deserializer",
    "feedline.feed.formats.cntk.htk": "HTKFeatureDeserializer",
    "feedline.feed.formats.images": "Base64ImageDeserializer ImageFolderDeserializer ImageMapDeserializer",
    "feedline.feed.composed.join": "Join",
    "feedline.feed.formats.jsonl": "JSONLinesDeserializer",
    "feedline.feed.formats.litdata": "LitDataDeserializer",
    "feedline.feed.formats.shards.mds": "MDSDeserializer",
    "feedline.feed.formats.cntk.mlf": "MLFDeserializer",
    "feedline.feed.formats.arrow.parquet": "ParquetDeserializer",
    "feedline.feed.formats.store": "StoreDeserializer StoreWriter",
    "feedline.feed.composed.take": "Take",
    "feedline.feed.formats.tar": "TarDeserializer",
    "feedline.feed.formats.tfrecord": "TFRecordDeserializer",
    "feedline.feed.composed.tokenized": "Tokenized",
    "feedline.feed.formats.tokens": "TokensDeserializer",
    "feedline.feed.formats.user": "UserDeserializer",
    "feedline.feed.formats.stored.zarr": "ZarrDeserializer",
    "feedline.feed.loader": "DataLoader sample_rng",
    "feedline.feed.plan": "PlannedMinibatch",
    "feedline.feed.protocol": "ChunkInfo Deserializer Feed",
    "feedline.feed.composed.skipping": "Skipping",
    "feedline.feed.source": "MinibatchSource",
    "feedline.feed.timeline": "Window",
    "feedline.feed.transforms": "Map",
    "feedline.feed.user_source": "UserMinibatch UserMinibatchSource",
    "feedline.feed.validate": "validate",
    "feedline.graph.plot": "plot_network",
    "feedline.graph.summary": "summary",
    "feedline.runs": "report",
}
_NAMES = {name: module for module, names in _MODULES.items() for name in names.split()}
_ROOMS = ("data", "errors", "feed", "graph", "images", "kvstore", "networks", "runs", "train")


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
    "Format",
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
