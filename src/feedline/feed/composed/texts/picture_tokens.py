"""Picture tokens, repeated as often as a model has tokens for each picture."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from feedline import _native
from feedline.data import Chunk, Schema, Stream, Value
from feedline.data.value import BytesValue, DenseValue
from feedline.errors import DataError, SchemaError
from feedline.feed.composed.texts.tokenized import TRAINED
from feedline.feed.protocol import ChunkInfo, Deserializer, Ints, Ordered, Unsized, num_chunks, whole_number

Count = Callable[[int, int], int]

# Sizes whose counts distinguish functions.
_SAMPLES = ((224, 224), (256, 256), (336, 336), (384, 512), (640, 480), (480, 640), (1000, 700), (4032, 3024))


class PictureTokens(Deserializer, Unsized):
    """A corpus of tokens and pictures in which the token that stands for a picture is repeated, as a model has several
    for one.

    The k-th picture token of a document is for its k-th picture. A document that has not as many of them as pictures
    is unreadable, and so is one with a picture whose size is not known from its first bytes. In a stream ``trained``,
    of `Tokenized`, labels that are picture tokens count as not trained. All other streams remain as they are. The
    number of tokens is known only after reading, as of `Tokenized`.

    Args:
        corpus: corpus with a stream of tokens and one of encoded pictures, any number to a sequence.
        picture_token: the token that stands for a picture.
        repeats: tokens of a picture, at least 1: a number, or a function of its width and height in pixels, upright,
            the same in every call. Its identity is its name and its results for some usual sizes, for which the
            constructor calls it. Functions get the sizes of JPEG and PNG. A document with a picture for which it
            raises a ValueError, or returns no number of at least 1, is unreadable.
        pictures: name of the stream of encoded pictures.
        tokens: name of the stream of tokens.

    Raises:
        SchemaError: there is no such stream, or it is one of another kind.
        TypeError, ValueError: an argument is of another kind or out of range, or the corpus has its own order.
    """

    def __init__(
        self,
        corpus: Deserializer,
        picture_token: int,
        repeats: int | Count,
        *,
        pictures: str = "image",
        tokens: str = "tokens",
    ) -> None:
        if corpus.capability(Ordered) is not None:
            raise ValueError(f"expected a corpus without an order of its own, got {corpus.name}: do this to its parts")
        for name, what in ((tokens, "integers with shape ()"), (pictures, "encoded pictures, dtype 'bytes'")):
            stream = corpus.schema.get(name)
            if stream is None or not (_holds_tokens(stream) if name == tokens else stream.is_bytes):
                raise SchemaError(f"expected a stream of {what} as `{name}` in {corpus.name}, got {stream or 'none'}")
        self._corpus, self._pictures, self._tokens = corpus, pictures, tokens
        self._picture_token = whole_number("picture_token of PictureTokens", picture_token, 0)
        self._repeats = repeats if callable(repeats) else whole_number("repeats of PictureTokens", repeats, 1)
        self._identity = _identity(repeats) if callable(repeats) else str(self._repeats)
        self.name = corpus.name
        streams = {name: Stream(s.shape, s.dtype, s.sparse, unit=s.unit) for name, s in corpus.schema.items()}
        self.schema = Schema(streams)

    def num_chunks(self) -> int:
        """Return the number of the corpus's chunks."""
        return num_chunks(self._corpus)

    def chunks(self) -> Sequence[ChunkInfo]:
        """Refuse: sizes are known only after reading."""
        raise NotImplementedError

    def read(self, chunk: int) -> Chunk:
        """Return a chunk with repeated picture tokens. Raises the errors of the corpus."""
        read = self._corpus.read(chunk)
        read = read.take(np.arange(read.num_sequences))  # a copy, as views of files must not be looked at
        tokens, pictures = read.values[self._tokens], read.values[self._pictures]
        assert isinstance(tokens, DenseValue)
        assert isinstance(pictures, BytesValue)
        errors = dict(read.errors)
        is_picture = tokens.rows == self._picture_token
        places = np.concatenate([[0], np.cumsum(is_picture)])[tokens.offsets]
        for i in np.flatnonzero(np.diff(places) != pictures.lengths).tolist():
            what = (
                f"expected a picture token, {self._picture_token}, for each of {pictures.lengths[i]} pictures, got "
                f"{places[i + 1] - places[i]}"
            )
            errors.setdefault(i, DataError(what, stream=self._tokens))
        counts = self._counts(pictures, errors)
        good = np.ones(read.num_sequences, np.bool_)
        good[list(errors)] = False
        repeats = np.repeat(good, tokens.lengths).astype(np.int64)
        repeats[is_picture & (repeats > 0)] = counts[np.repeat(good, pictures.lengths)]
        offsets = np.concatenate([[0], np.cumsum(repeats)])[tokens.offsets]
        values: dict[str, Value] = dict(read.values)
        values[self._tokens] = DenseValue(np.repeat(tokens.rows, repeats), offsets)
        if TRAINED in values:
            trained = values[TRAINED].rows & ~np.append(is_picture[1:], False)
            last = np.cumsum(repeats) - 1
            repeated = np.zeros(int(repeats.sum()), np.bool_)
            repeated[last[repeats > 0]] = trained[repeats > 0]
            values[TRAINED] = DenseValue(repeated, offsets)
        return Chunk(self.schema, values, errors)

    def _counts(self, pictures: BytesValue, errors: dict[int, DataError]) -> Ints:
        """Return the number of tokens of each picture. Documents with a picture of unknown size are added to
        ``errors``."""
        if not callable(self._repeats):
            return np.full(pictures.num_samples, self._repeats, np.int64)
        headers = _native.picture_headers(np.ascontiguousarray(pictures.data), np.ascontiguousarray(pictures.bounds))
        turned = headers[:, 4] >= 5  # by a quarter, in EXIF
        sizes = np.where(turned[:, None], headers[:, 2:0:-1], headers[:, 1:3])
        document = np.repeat(np.arange(pictures.num_sequences), pictures.lengths)
        for i in document[(sizes <= 0).any(1)].tolist():
            what = "expected pictures in JPEG or PNG, whose first bytes have their sizes, got another one"
            hint = "convert it, or pass a number as repeats to PictureTokens"
            errors.setdefault(i, DataError(what, stream=self._pictures, hint=hint))
        distinct, inverse = np.unique(sizes, axis=0, return_inverse=True)
        counts = np.ones(len(distinct), np.int64)
        for k, (width, height) in enumerate(distinct.tolist()):
            if min(width, height) <= 0:
                continue
            try:
                counts[k] = _checked(self._repeats, width, height)
            except (ArithmeticError, TypeError, ValueError) as error:
                for i in document[inverse.reshape(-1) == k].tolist():
                    errors.setdefault(i, DataError(f"{error}", stream=self._pictures, hint=_HINT))
        counted: Ints = counts[inverse.reshape(-1)]
        return counted

    def paths(self) -> Sequence[str]:
        """Return the corpus's paths."""
        return self._corpus.paths()

    def digest(self) -> str:
        """Return 32 hex digits over the corpus's digest and the settings."""
        settings = [self._corpus.digest(), self._picture_token, self._identity, self._pictures, self._tokens]
        return hashlib.blake2b(repr(settings).encode(), digest_size=16).hexdigest()

    def close(self) -> None:
        """Close the corpus."""
        self._corpus.close()


_HINT = "make repeats work for such pictures, or leave them out"


def _holds_tokens(stream: Stream) -> bool:
    return not stream.sparse and stream.shape == () and stream.dtype.kind in "iu"


def _identity(count: Count) -> str:
    """Return the identity of a function. Names alone would not distinguish two lambdas."""
    results = [_checked(count, width, height) for width, height in _SAMPLES]
    return f"{count.__module__}.{getattr(count, '__qualname__', type(count).__qualname__)} {results}"


def _checked(count: Count, width: int, height: int) -> int:
    """Return the tokens of a picture.

    Raises:
        TypeError, ValueError: it is no number of at least 1.
    """
    return whole_number(f"repeats of PictureTokens for {width} x {height} pixels", count(width, height), 1)
