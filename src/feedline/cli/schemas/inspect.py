"""The JSON documents of ``feedline inspect``."""

from __future__ import annotations

from typing import Any, TypedDict


class StreamDeclaration(TypedDict):
    """A stream.

    Attributes:
        name: its name.
        shape: shape of a sample.
        dtype: dtype of its numbers, or ``"bytes"`` or ``"str"``.
        sparse: whether its samples are sparse.
        defines_size: whether its samples are counted for the size of a minibatch.
        unit: unit of its numbers, such as ``"duration[s]"``. None if unknown.
        nulls: number of nulls. None if the format does not count them.
    """

    name: str
    shape: list[int]
    dtype: str
    sparse: bool
    defines_size: bool
    unit: str | None
    nulls: int | None


_Bounds = TypedDict("_Bounds", {"from": int, "to": int})


class LengthRange(_Bounds):
    """Sequences of similar length.

    Attributes:
        from: smallest length, in samples.
        to: largest length, in samples.
        sequences: number of sequences of such a length.
    """

    sequences: int


class SequenceLengths(TypedDict):
    """Lengths of sequences, in samples.

    Attributes:
        min: smallest length. None without sequences.
        mean: mean length. None without sequences.
        max: largest length. None without sequences.
        histogram: numbers of sequences by length.
    """

    min: int | None
    mean: float | None
    max: int | None
    histogram: list[LengthRange]


class StringPreview(TypedDict):
    """The beginning of a byte string.

    Attributes:
        bytes: number of bytes in the string.
        first: its first bytes, as a literal of Python.
    """

    bytes: int
    first: str


class StreamPreview(TypedDict):
    """The first samples of a stream in a sequence.

    Attributes:
        samples: number of samples.
        first: of each of the first samples the first numbers, as pairs of index and number if it is sparse.
    """

    samples: int
    first: list[list[float | bool | tuple[int, float | bool | None] | None] | StringPreview]


class SequencePreview(TypedDict):
    """One of the first sequences.

    Attributes:
        sequence: its ordinal.
        streams: its samples, by stream.
    """

    sequence: int
    streams: dict[str, StreamPreview]


class OrderCost(TypedDict):
    """The speed of an order, and how well it mixes.

    Attributes:
        samples_per_second: samples per second from the disk alone. None if it cannot be measured.
        variance: variance of the means of minibatches, divided by the variance of independent draws, if the data is
            sorted. None if it is not shuffled.
        default: whether this is the order of a source without ``shuffle=``.
    """

    samples_per_second: float | None
    variance: float | None
    default: bool


class ReadingOrders(TypedDict):
    """Orders to compare.

    Attributes:
        whole: all of a sweep is shuffled together.
        windows: windows of the default size are shuffled.
        none: the order of the corpus.
    """

    whole: OrderCost
    windows: OrderCost
    none: OrderCost


class ReadingCost(TypedDict):
    """The cost of reading on this machine.

    Attributes:
        bytes: bytes of the files.
        resident: share of them in the page cache, 0 to 1. None if the system does not tell.
        sequential: bytes per second of the disk, in order. None if the file system has no direct I/O.
        random: sequences per second of the disk, at random places. None if the file system has no direct I/O.
        orders: the cost of each order.
    """

    bytes: int
    resident: float | None
    sequential: float | None
    random: float | None
    orders: ReadingOrders


class StreamPictures(TypedDict):
    """Encoded pictures in a stream.

    Attributes:
        stream: name of the stream.
        decoders: library that decodes each format.
        looked_at: number of pictures whose headers were read.
        formats: numbers of these pictures, by format.
        sizes: width and height of these pictures, in pixels.
        classes: numbers of all pictures, by the name of their folder. Empty if folders do not name classes.
    """

    stream: str
    decoders: dict[str, str]
    looked_at: int
    formats: dict[str, int]
    sizes: list[tuple[int, int]]
    classes: dict[str, int]


class CorpusDocument(TypedDict):
    """The corpus.

    Attributes:
        path: path of the corpus.
        format: name of the format.
        random_access: whether single sequences are read in place.
        streams: streams of its minibatches.
        streams_guessed: whether streams were inferred from the beginning of the data.
        nested: paths of values within columns.
        sequences: number of sequences.
        samples: number of samples.
        chunks: number of chunks.
        bytes: stored bytes.
        lengths: lengths of the sequences.
        preview: the first sequences, or their errors.
        cost: cost of reading. None for data that is not in files of this machine.
        pictures: its encoded pictures. None if there are none.
    """

    path: str
    format: str
    random_access: bool
    streams: list[StreamDeclaration]
    streams_guessed: bool
    nested: list[str]
    sequences: int
    samples: int
    chunks: int
    bytes: int
    lengths: SequenceLengths
    preview: list[SequencePreview | UnreadablePreview]
    cost: ReadingCost | None
    pictures: StreamPictures | None


class UnreadablePreview(TypedDict):
    """One of the first sequences, which cannot be read.

    Attributes:
        sequence: its ordinal.
        error: message of the error.
    """

    sequence: int
    error: str


class StreamFigures(TypedDict):
    """Statistics of a stream. For texts, numbers are lengths in bytes.

    Attributes:
        dtype: dtype of the stream.
        samples: number of samples.
        nulls: number of samples that the data lacks.
        nan: number of numbers that are NaN.
        mean: mean, as a list if a sample has several elements. None without numbers.
        deviation: standard deviation, likewise.
        low: smallest number, likewise.
        high: largest number, likewise.
        percentiles: quantiles 0.00, 0.01 to 1.00 of scalars. Empty for other streams.
        rank_error: how far the rank of a percentile may be off, as a share of all numbers.
        distinct: number of distinct integers or texts. None for other streams.
        distinct_error: standard error of ``distinct``, as a share of it.
        values: the most frequent values with their counts, at most 100.
        count_error: how much too small a count may be.
        lengths: mean, deviation, minimum and maximum of the lengths of sequences, in samples. None if each has one.
    """

    dtype: str
    samples: int
    nulls: int
    nan: int
    mean: float | list[Any] | None
    deviation: float | list[Any] | None
    low: float | list[Any] | None
    high: float | list[Any] | None
    percentiles: list[float | None]
    rank_error: float
    distinct: int | None
    distinct_error: float
    values: list[tuple[int | str, int]]
    count_error: int
    lengths: tuple[float, float, int, int] | None


class StatisticsDocument(TypedDict):
    """The corpus with ``--statistics``.

    Attributes:
        path: path of the corpus.
        sequences: number of sequences.
        streams: statistics, by stream.
    """

    path: str
    sequences: int
    streams: dict[str, StreamFigures]


class PicturesDocument(TypedDict):
    """The page with ``--pictures``, of a stream of encoded pictures.

    Attributes:
        page: path of the page.
        bytes: bytes of the page.
        stream: name of the stream.
        pictures: number of pictures on the page.
        unreadable: number of these that cannot be read.
        formats: numbers of these, by format.
        steps: steps of `feedline.images` that were applied.
        decoders: library that decodes each format.
    """

    page: str
    bytes: int
    stream: str
    pictures: int
    unreadable: int
    formats: dict[str, int]
    steps: list[str]
    decoders: dict[str, str]


class StillsDocument(TypedDict):
    """The page with ``--pictures``, of other data.

    Attributes:
        page: path of the page.
        sequences: number of sequences on the page.
        unreadable: number of these that cannot be read.
    """

    page: str
    sequences: int
    unreadable: int


Document = CorpusDocument | StatisticsDocument | PicturesDocument | StillsDocument
