"""CNTK's picture readers over feedline's corpora of encoded pictures.

As in CNTK, each picture of a map file is a chunk where the order depends on it, so that the randomizer's windows of
chunks count pictures. Base64 text has chunks of 32 MiB.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.cntk import cntk_py
from feedline.cntk.io import _pictures
from feedline.cntk.io._picture_steps import VIEWS, Step
from feedline.cntk.io._pictures import Pictures, PictureStream
from feedline.data import Chunk, Schema, Stream, Value
from feedline.data.value import BytesValue, DenseValue
from feedline.errors import DataError
from feedline.feed.formats.images import Base64ImageDeserializer as Base64Corpus
from feedline.feed.formats.images import ImageMapDeserializer as MapCorpus
from feedline.feed.protocol import (
    ChunkInfo,
    Deserializer,
    Fetchable,
    Keyed,
    Selective,
    chunk_starts,
    keys_of,
)
from feedline.feed.wrapper import Forwarding

MAP, BASE64 = "ImageDeserializer", "Base64ImageDeserializer"
_OPTIONS = {"grayscale", "multiViewCrop"}
_FIXED = {"type", "module", "file", "input"}


def ImageDeserializer(filename: str, streams: Mapping[str, Any]) -> cntk_py.Dictionary:
    """Return the configuration of a reader of pictures that a map file lists.

    A line is ``path<TAB>label`` or ``key<TAB>path<TAB>label``. A path ``archive.zip@/inner/path`` names a member of an
    archive. ``...`` means the map file's folder. Relative paths start from the working directory. Two items of the
    result may be set to True: ``grayscale``, for pictures of one channel, and ``multiViewCrop``, for ten copies of each
    picture in a row, from each of which ``crop("multiview10")`` cuts out a view.

    Args:
        filename: path of the map file.
        streams: mapping from names to `StreamDef`: one with ``field="image"`` and, if any, ``transforms``, and at most
            one with ``field="label"`` and ``shape``, the number of classes.

    Raises:
        ValueError: another field, or no stream of pictures, or two.
        AttributeError: a stream of labels without ``shape``.
    """
    return _configuration(MAP, filename, streams)


def Base64ImageDeserializer(filename: str, streams: Mapping[str, Any]) -> cntk_py.Dictionary:
    """Return the configuration of a reader of pictures as base64 text, ``label<TAB>base64`` a line.

    Lines may also be ``key<TAB>label<TAB>base64``. The first line decides for all. Pictures that cannot be decoded are
    left out with a warning. See also `ImageDeserializer`.
    """
    return _configuration(BASE64, filename, streams)


def _configuration(kind: str, filename: str, streams: Mapping[str, Any]) -> cntk_py.Dictionary:
    inputs: dict[str, cntk_py.Dictionary] = {}
    fields: dict[str, str] = {}
    for name, stream in streams.items():
        field = stream.stream_alias
        if field not in ("image", "label"):
            raise ValueError(f"{kind}: expected `image` or `label` as field of stream `{name}`, got {field!r}")
        if field in fields:
            raise ValueError(f"{kind}: expected one stream of field `{field}`, got `{fields[field]}` and `{name}`")
        fields[field] = name
        if field == "label":
            inputs[name] = cntk_py.Dictionary({"labelDim": stream.dim})
        else:
            transforms = [*(stream.get("transforms") or ()), cntk_py.Dictionary({"type": "Transpose"})]
            inputs[name] = cntk_py.Dictionary({"transforms": cntk_py.DictionaryValue(transforms)})
    if "image" not in fields:
        raise ValueError(f"{kind}: expected a stream of pictures, got none: write StreamDef(field='image')")
    return cntk_py.Dictionary(
        {"type": kind, "module": "ImageReader", "file": str(filename), "input": cntk_py.Dictionary(inputs)}
    )


def image_corpora(config: Mapping[str, Any], randomizes: bool) -> list[Deserializer]:
    """Open the pictures that a configuration describes. `pictures_of` decodes them.

    Args:
        config: dictionary as returned by `ImageDeserializer` and `Base64ImageDeserializer`.
        randomizes: whether the order depends on chunks.

    Raises:
        DataError: the file is missing or damaged, or an archive lacks members.
        RuntimeError: an option that CNTK does not have, or pictures whose size cannot be determined.
    """
    return [ImageCorpus(config, randomizes)]


def pictures_of(corpora: Sequence[Deserializer]) -> Pictures | None:
    """Return the transform that decodes the pictures among ``corpora``, or None without pictures."""
    streams = [corpus.pictures for corpus in corpora if isinstance(corpus, ImageCorpus)]
    return Pictures(streams) if streams else None


class ImageCorpus(Forwarding, Keyed):
    """Encoded pictures in CNTK's chunks: a chunk for each picture of a map file, and copies of it for views.

    Args:
        config, randomizes: see `image_corpora`.

    Attributes:
        pictures: stream of the pictures, with the steps that decode them.
    """

    # Chunks differ from the corpus's. Windows are small, and pictures are read one by one, since `select` checks more.
    _lacks = (Fetchable, Selective)

    def __init__(self, config: Mapping[str, Any], randomizes: bool) -> None:
        if unknown := config.keys() - _FIXED - _OPTIONS:
            raise RuntimeError(
                f"expected the options {', '.join(sorted(_OPTIONS))} of an image reader, got "
                f"{', '.join(sorted(map(str, unknown)))}"
            )
        image, streams, transforms = _read_declarations(config["input"])
        grayscale = bool(config.get("grayscale", False))
        self._copies = VIEWS if config.get("multiViewCrop", False) else 1
        self._strict = config["type"] == MAP
        self._single = self._strict and randomizes
        # First, so that a wrong configuration is refused before data is opened.
        steps = _pictures.steps_of(transforms, grayscale)
        if self._strict:
            corpus = MapCorpus(config["file"], streams)
            corpus.check()
            super().__init__(corpus)
        else:
            super().__init__(Base64Corpus(config["file"], streams, cache=False))
        if self._copies > 1:
            views = f"{image}: view"
            self.schema = Schema({**self.schema, views: Stream((), "int64")})
        self._starts, self._table = chunk_starts(self._corpus), self._chunks()
        self.pictures = PictureStream(
            image,
            steps,
            grayscale,
            (1 if grayscale else 3, *_size(self._corpus, image, steps)[::-1]),
            views if self._copies > 1 else None,
            not self._strict,
        )

    def chunks(self) -> Sequence[ChunkInfo]:
        """Return a chunk for each copy of each picture, or the corpus's chunks with all copies."""
        return self._table

    def _chunks(self) -> list[ChunkInfo]:
        infos = self._corpus.chunks()
        if not self._single:
            return [ChunkInfo(i.sequences * self._copies, i.samples * self._copies, i.bytes) for i in infos]
        single = [ChunkInfo(1, 1, max(1, info.bytes // info.sequences)) for info in infos]
        counts = [info.sequences * self._copies for info in infos]
        return [picture for picture, count in zip(single, counts, strict=True) for _ in range(count)]

    def digest(self) -> str:
        """Return 32 hex digits over the corpus's digest and the number of copies."""
        text = f"{self._corpus.digest()} {self._copies} {self._single}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def read(self, chunk: int) -> Chunk:
        """Return a picture, or a chunk of the corpus."""
        if self._single:
            return self.select(np.array([chunk]))
        first, last = self._starts[chunk] * self._copies, self._starts[chunk + 1] * self._copies
        return self.select(np.arange(first, last))

    def select(self, ordinals: NDArray[np.int64]) -> Chunk:
        """Return pictures. Repeated copies of a picture are read once.

        Raises:
            DataError: a label is no class.
        """
        pictures, copies = np.divmod(np.asarray(ordinals, np.int64), self._copies)
        distinct, places = np.unique(pictures, return_inverse=True)
        chunk = self._corpus.select(distinct)
        for error in chunk.errors.values():
            if error.stream is not None:  # of a label: CNTK drops text that is no picture, but refuses wrong labels
                raise _without_hint(error)
        chunk.errors = {i: _without_hint(error) for i, error in chunk.errors.items()}
        if self._copies == 1 and np.array_equal(distinct, pictures):
            return chunk
        repeated = chunk.take(places)
        if self.pictures.views is None:
            return repeated
        return Chunk(self.schema, {**repeated.values, self.pictures.views: DenseValue(copies)}, repeated.errors)

    def lengths(self, ordinals: NDArray[np.int64]) -> None:
        """Return None: every sequence has one sample."""

    def keys(self, ordinals: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the corpus's keys. Copies have the key of their picture."""
        return keys_of(self._corpus, np.asarray(ordinals, np.int64) // self._copies)


def _read_declarations(inputs: Mapping[str, Any]) -> tuple[str, dict[str, Stream], list[Mapping[str, Any]]]:
    """Return the name of the pictures, the streams to read, and the transforms."""
    image, transforms, streams = None, [], {}
    for name, settings in inputs.items():
        if "labelDim" in settings:
            streams[name] = Stream(int(settings["labelDim"]), "float32", sparse=True, field="label")
        else:
            image, transforms = name, list(settings.get("transforms") or ())
            streams[name] = Stream(dtype="bytes", field="image")
    if image is None:
        raise RuntimeError(f"expected an input with transforms, got {', '.join(inputs) or 'none'}")
    return image, streams, transforms


def _size(corpus: Deserializer, image: str, steps: Sequence[Step]) -> tuple[int, int]:
    """Return width and height of transformed pictures, from the steps if they determine it, or the first picture."""
    size = _pictures.size_after(steps, None)
    if size is None:
        first = corpus.select(np.zeros(1, np.int64))
        for error in first.errors.values():
            raise _without_hint(error)
        try:
            size = _pictures.size_after(steps, _pictures.size_of(_encode(first[image])))
        except DataError as error:
            raise DataError(error.what, path=corpus.name, sequence=0, hint=error.hint) from error
    if size is None:
        raise RuntimeError(
            f"expected transforms that give all pictures of stream `{image}` one size, got a crop of random size last; "
            "add cntk.io.transforms.scale"
        )
    return size


def _encode(value: Value) -> bytes:
    assert isinstance(value, BytesValue)
    (data,) = value.samples()
    assert isinstance(data, bytes)
    return data


def _without_hint(error: DataError) -> DataError:
    """Return an error of a corpus without its hint, which does not apply to a source that cannot skip."""
    return DataError(error.what, path=error.path, line=error.line, sequence=error.sequence, stream=error.stream)
