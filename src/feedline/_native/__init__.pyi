"""The native kernels; contracts in native/include/feedline. `make check` compares this with the module."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

Array = TypeVar("Array", bound=NDArray[Any])

CTF_ERRORS: dict[str, int]
MLF_ERRORS: dict[str, int]
ROW_ERRORS: dict[str, int]
RECORDIO_ERRORS: dict[str, int]
TAR_ERRORS: dict[str, int]
UPDATE_RULES: dict[str, tuple[int, int]]

class Bytes:
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...

class Copy:
    def result(self) -> list[tuple[Any, ...]]: ...
    @property
    def done(self) -> bool: ...

class CsvParser:
    def __init__(
        self,
        fields: Sequence[tuple[int, Sequence[int], bool, bool]],
        columns: Sequence[tuple[int, int]],
        delimiter: int,
        memory_bytes: int,
    ) -> None: ...
    def parse(
        self, text: NDArray[np.uint8], start: int, entries: NDArray[np.uint8], origin: int
    ) -> tuple[list[tuple[Any, ...]], NDArray[np.uint8]]: ...

# What the classes below have in common; in the module they have no base.
class _TextIndexer:
    def feed(self, block: NDArray[np.uint8]) -> NDArray[np.uint8]: ...
    def finish(self) -> NDArray[np.uint8]: ...
    @property
    def bytes(self) -> int: ...
    @property
    def error(self) -> tuple[int, int] | None: ...
    @property
    def has_ids(self) -> bool: ...
    @property
    def lines(self) -> int: ...

class CtfIndexer(_TextIndexer):
    def __init__(self, size_stream: bytes | None, skip_ids: bool = False, lenient: bool = False) -> None: ...

class CtfParser:
    def __init__(
        self,
        fields: Sequence[bytes],
        dims: Sequence[int],
        sparse: Sequence[bool],
        float64: Sequence[bool],
        fill: Sequence[int],
        size_stream: int = -1,
        lenient: bool = False,
        *,
        memory_bytes: int,
    ) -> None: ...
    def parse(
        self,
        text: NDArray[np.uint8],
        start: int,
        entries: NDArray[np.uint8],
        origin: int,
        allowed_errors: int = -1,
    ) -> tuple[list[tuple[Any, ...]], NDArray[np.uint8] | None, NDArray[np.uint8], int]: ...

class ExampleParser:
    def __init__(
        self,
        fields: Sequence[tuple[int, Sequence[int], bool, bool]],
        features: Sequence[tuple[bytes, bool, bytes | None]],
        memory_bytes: int,
    ) -> None: ...
    def parse(
        self, text: NDArray[np.uint8], start: int, entries: NDArray[np.uint8], origin: int
    ) -> tuple[list[tuple[Any, ...]], NDArray[np.uint8]]: ...
    def view(
        self, text: NDArray[np.uint8], start: int, entries: NDArray[np.uint8], origin: int
    ) -> tuple[list[tuple[Any, ...]], NDArray[np.uint8]]: ...

class Fetch:
    def result(self) -> list[Bytes | tuple[int, int]]: ...
    @property
    def done(self) -> bool: ...

class Fetcher:
    def __init__(self, backend: str = "any", depth: int = 128, keep_bytes: int = 0) -> None: ...
    def add(
        self,
        path: str,
        size: int,
        address: int = 0,
        identity: tuple[int, int] | None = None,
        direct: bool = True,
        ask: bool = True,
        first: int = 0,
        share: bool = False,
    ) -> int: ...
    def close(self, file: int) -> None: ...
    def direct(self, file: int) -> bool: ...
    def fail(self, file: int, begin: int, end: int, error: int) -> None: ...
    def held(self, file: int, offset: int, size: int, max_pages: int) -> int: ...
    def read(self, ranges: Sequence[tuple[int, int, int]]) -> Fetch: ...
    @property
    def backend(self) -> str: ...
    @property
    def depth(self) -> int: ...
    @property
    def memory(self) -> int: ...
    @property
    def disk_bytes(self) -> int: ...

class Gatherer:
    def __init__(self, classes: Sequence[int | str | None], bools: bool = False) -> None: ...
    def add(self, slot: int, streams: Sequence[tuple[Any, ...]], seals: Sequence[NDArray[np.uint8]] = ()) -> None: ...
    def remove(self, slot: int) -> None: ...
    def clear(self) -> None: ...
    def sequences(self, slot: int) -> int: ...
    @property
    def slots(self) -> list[int]: ...
    def gather(
        self, slots: NDArray[np.uint32] | None, index: NDArray[np.int64], threads: int = 1
    ) -> list[tuple[Any, ...]]: ...
    def gather_parts(
        self, slots: NDArray[np.uint32] | None, index: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> tuple[list[list[tuple[Any, ...]]], int] | None: ...
    def start(self, slots: NDArray[np.uint32] | None, index: NDArray[np.int64]) -> Copy: ...
    def stage(
        self,
        fetcher: Fetcher,
        slots: NDArray[np.uint32] | None,
        index: NDArray[np.int64],
        counts: NDArray[np.int64] | None,
        keep: Sequence[int],
    ) -> Staged: ...
    def adopt(self, slot: int, staged: Staged, run: int) -> None: ...
    def lacking(
        self,
        fetcher: Fetcher,
        slots: NDArray[np.uint32] | None,
        index: NDArray[np.int64],
        counts: NDArray[np.int64] | None,
        max_runs: int,
        max_pages: int,
    ) -> int: ...

NATIVE_JPEG: str

class PictureBatch:
    def __init__(
        self,
        data: NDArray[np.uint8],
        bounds: NDArray[np.int64],
        pixels: dict[int, NDArray[np.uint8]],
        kinds: NDArray[np.uint8],
        params: NDArray[np.float64],
        *,
        out: NDArray[Any],
        color: int,
        upright: bool,
        shrink: bool = False,
        threads: int = 1,
        max_pixels: int = ...,
        mean: NDArray[np.float32] | None = None,
        scale: NDArray[np.float32] | None = None,
        chw: bool = False,
    ) -> None: ...
    def result(self) -> list[tuple[int, str]]: ...
    @property
    def done(self) -> bool: ...
    @property
    def seconds(self) -> float: ...

class Staged:
    def faults(self) -> list[tuple[int, int, int, str, int]]: ...
    def gather(self, which: NDArray[np.int64] | None = None) -> list[tuple[Any, ...]]: ...
    def found(self) -> tuple[int, int, int]: ...
    def forget(self) -> None: ...
    @property
    def memory(self) -> int: ...
    @property
    def done(self) -> bool: ...

class Loan:
    def __init__(self, memory: SharedMemory, table: SharedMemory, at: int, free: int, forgotten: int) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def begin(self) -> None: ...
    @staticmethod
    def forking() -> None: ...

class Inflater:
    def __init__(self, bits: int, byte: int, zlib: bool = False) -> None: ...
    @staticmethod
    def file(zlib: bool = False) -> Inflater: ...
    def run(
        self,
        input: NDArray[np.uint8],
        start: int,
        stop: int,
        last: bool,
        out: NDArray[np.uint8],
        position: int,
        point_after: int,
    ) -> tuple[int, int, int, bool]: ...
    @property
    def bits(self) -> int: ...
    @property
    def byte(self) -> int: ...
    @property
    def problem(self) -> str: ...

class JsonParser:
    def __init__(
        self,
        fields: Sequence[tuple[int, Sequence[int], bool, bool]],
        paths: Sequence[Sequence[bytes | None]],
        memory_bytes: int,
    ) -> None: ...
    def parse(
        self, text: NDArray[np.uint8], start: int, entries: NDArray[np.uint8], origin: int
    ) -> tuple[list[tuple[Any, ...]], NDArray[np.uint8]]: ...

class MlfIndexer(_TextIndexer):
    def __init__(self, drop_invalid: bool) -> None: ...

class MlfParser:
    def __init__(self, states: Sequence[bytes] | None, classes: int) -> None: ...
    def parse(
        self, text: NDArray[np.uint8], begin: NDArray[np.int64], size: NDArray[np.uint32]
    ) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint8]]: ...

class RecordIndexer(_TextIndexer):
    def __init__(self, parser: ExampleParser | None, size_stream: int) -> None: ...

class RowIndexer(_TextIndexer):
    @staticmethod
    def csv(delimiter: int, skip: int, max_bytes: int) -> RowIndexer: ...
    @staticmethod
    def json(parser: JsonParser | None, size_stream: int, max_bytes: int) -> RowIndexer: ...

class SharedMemory:
    def __init__(self, fd: int, size: int, copy_on_write: bool = False) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...

class RecordIOIndexer:
    def __init__(
        self, descriptor: int, size: int, reach: Callable[[int, int], tuple[int, int]] | None = None
    ) -> None: ...
    def next(self, headers: int) -> NDArray[np.uint8]: ...
    @property
    def bytes(self) -> int: ...
    @property
    def done(self) -> bool: ...
    @property
    def error(self) -> tuple[int, int] | None: ...
    @property
    def error_number(self) -> int: ...

class TarIndexer:
    @overload
    def __init__(
        self, descriptor: int, size: int, reach: Callable[[int, int], tuple[int, int]] | None = None
    ) -> None: ...
    @overload
    def __init__(self, blocks: Iterator[NDArray[np.uint8]]) -> None: ...
    def next(self, headers: int) -> NDArray[np.uint8]: ...
    @property
    def bytes(self) -> int: ...
    @property
    def done(self) -> bool: ...
    @property
    def error(self) -> tuple[int, int] | None: ...
    @property
    def error_number(self) -> int: ...

def cbf_dense(
    data: Any, begin: NDArray[np.int64], samples: NDArray[np.uint32], row_bytes: int, out: NDArray[np.uint8]
) -> None: ...
def cbf_find(
    data: Any,
    sizes: NDArray[np.int64],
    sequences: NDArray[np.uint32],
    samples: NDArray[np.uint32],
    streams: list[tuple[bool, int, int]],
    open_end: bool,
) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.int32], NDArray[np.uint8]]: ...
def cbf_sparse(
    data: Any,
    begin: NDArray[np.int64],
    samples: NDArray[np.uint32],
    stored: NDArray[np.int32],
    value_bytes: int,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.uint8], NDArray[np.bool_]]: ...
def cntk_chunk_order(seed: int, chunks: int) -> NDArray[np.int64]: ...
def cntk_numbers(seed: int, first: int, count: int) -> NDArray[np.uint64]: ...
def cntk_sequence_order(
    seed: int, counts: NDArray[np.int64], window_begin: NDArray[np.int64], window_end: NDArray[np.int64]
) -> NDArray[np.int64]: ...
def arrow_batch(head: Any, body: int) -> tuple[int, bool, NDArray[np.int64], NDArray[np.int64]]: ...
def arrow_messages(
    fd: int, size: int, start: int, footer: bool, reach: Callable[[int, int], tuple[int, int]] | None = None
) -> tuple[NDArray[np.int64], bool, bool, bytes, bytes]: ...
def best_fit(
    lengths: NDArray[np.int64], row: int, order: NDArray[np.int64] | NDArray[np.uint32] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]: ...
def bounds_end(bounds: NDArray[np.int64], name: str) -> int: ...
def copied(array: Array) -> Array: ...
def crc32c(data: Any, value: int = 0) -> int: ...
def decode_sums(
    code: str, threshold: float, jobs: Sequence[tuple[int, Sequence[int], int]], threads: int = 1
) -> None: ...
def encode(code: str, threshold: float, jobs: Sequence[tuple[int, int, int, int, int]], threads: int = 1) -> None: ...
def example_features(message: NDArray[np.uint8]) -> list[tuple[bytes, bool, int, int, int, int]] | None: ...
def feistel(key: int, n: int, first: int, count: int) -> NDArray[np.int64]: ...
def first_bad_index(indices: NDArray[np.int32], classes: int) -> int: ...
def first_bad_text(data: NDArray[np.uint8], bounds: NDArray[np.int64]) -> int: ...
def first_fit(
    lengths: NDArray[np.int64], row: int, order: NDArray[np.int64] | NDArray[np.uint32] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]: ...
def first_uneven(offsets: NDArray[np.int64], lengths: NDArray[np.int32]) -> int: ...
def fingerprint(h: int, ordinals: NDArray[np.int64]) -> NDArray[np.uint64]: ...
def fisher_yates(key: int, n: int) -> NDArray[np.uint32]: ...
def hash_key(words: Sequence[int]) -> int: ...
def htk_expand(
    data: Any,
    kind: int,
    swapped: bool,
    dim: int,
    scale: NDArray[np.float32],
    offset: NDArray[np.float32],
    lengths: NDArray[np.int64],
    left: int,
    right: int,
    out: NDArray[np.float32],
) -> None: ...
def locate(
    starts: NDArray[np.int64], t: NDArray[np.int64] | NDArray[np.uint32]
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]: ...
def all_like(type: type[Any], groups: Sequence[tuple[Any, Sequence[Any]]], dtypes: bool) -> bool: ...
def merge(jobs: Sequence[tuple[int, Sequence[int], Sequence[int]]], item_bytes: int, threads: int = 1) -> None: ...
def merge_tensors(
    type: type[Any], jobs: Sequence[tuple[Sequence[Any], Sequence[Any]]], threads: int = 1
) -> list[tuple[Sequence[Any], Sequence[Any]]]: ...
def mixture_items(
    quotas: NDArray[np.int64],
    source: NDArray[np.uint16],
    rank: NDArray[np.int32],
    seed: int,
    stage: int,
    block: int,
    length: int | None,
    first: int,
    count: int,
) -> tuple[NDArray[np.uint16], NDArray[np.int64]]: ...
def mixture_schedule(quotas: NDArray[np.int64]) -> tuple[NDArray[np.uint16], NDArray[np.int32]]: ...
def name_keys(data: Any, begin: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.uint64]: ...
def one_hot_classes(rows: NDArray[np.floating[Any]]) -> NDArray[np.int64] | None: ...
def packed_rows(
    tokens: NDArray[Any],
    rows: NDArray[np.int64],
    offsets: NDArray[np.int64],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    positions: NDArray[np.int64] | None = None,
    goes_on: NDArray[np.bool_] | None = None,
    *,
    count: int,
    row: int,
    pad: int = 0,
    ignore: int | None = -100,
    wide: bool = False,
    threads: int = 1,
) -> tuple[
    NDArray[Any],
    NDArray[np.int64] | None,
    NDArray[np.int32],
    NDArray[np.int32],
    NDArray[np.int32],
    NDArray[np.int64],
    int,
]: ...
def packed_values(
    values: Array,
    rows: NDArray[np.int64],
    offsets: NDArray[np.int64],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    *,
    count: int,
    row: int,
    fill: NDArray[Any],
    threads: int = 1,
) -> Array: ...
def pad(
    rows: NDArray[Any], offsets: NDArray[np.int64], fill: NDArray[Any], length: int = -1
) -> tuple[NDArray[Any], NDArray[np.bool_]]: ...
def parquet_footer(
    data: Any,
) -> tuple[
    NDArray[np.int64],
    int,
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.int64],
]: ...
def parquet_page(data: Any) -> tuple[int, int, int, int] | None: ...
def row_contents(
    rows: NDArray[np.int64], offsets: NDArray[np.int64], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]: ...
def balance(work: NDArray[np.int64], ranks: int, counts: NDArray[np.int64] | None = None) -> NDArray[np.int32]: ...
def run_ends(
    ends: NDArray[np.int64], at: int, limit: int, room: int, alone: bool = True, max_runs: int = 1
) -> list[int]: ...
def recordio_records(
    data: NDArray[np.uint8],
    begin: NDArray[np.int64],
    sizes: NDArray[np.int64],
    label_bounds: NDArray[np.int64],
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.uint8] | None, NDArray[np.uint8]]: ...
def tar_members(
    data: NDArray[np.uint8],
    begin: NDArray[np.int64],
    sizes: NDArray[np.int64],
    fields: Sequence[bytes],
    keys: bool = False,
) -> tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.int64] | None, NDArray[np.uint8] | None]: ...
def square_sums(jobs: Sequence[tuple[int, int, int]], threads: int = 1) -> list[float]: ...
def tar_suffixes(data: NDArray[np.uint8]) -> list[tuple[bytes, int, int]]: ...
def picture_headers(data: NDArray[np.uint8], bounds: NDArray[np.int64]) -> NDArray[np.int32]: ...
def update(
    rule: str,
    numbers: Sequence[float],
    stages: tuple[float, ...],
    jobs: Sequence[tuple[float, ...]],
    threads: int = 1,
) -> None: ...
def update_tensors(
    types: tuple[type[Any], type[Any]],
    rule: str,
    numbers: Sequence[float],
    stages: tuple[float, ...],
    weights: list[Any],
    gradients: list[Any],
    states: Sequence[list[Any]],
    factors: list[Any] | None,
    noise: list[Any] | None,
    copies: list[Any] | None,
    threads: int = 1,
) -> list[int]: ...
def uniforms(
    seed: int, sweeps: NDArray[np.int64], ordinals: NDArray[np.int64], stage: int, step: int, count: int
) -> NDArray[np.float64]: ...
def moments(
    rows: NDArray[Any], column: int, present: NDArray[np.uint8] | None
) -> tuple[int, int, float, float, Any, Any]: ...
def sample_rows(first: int, count: int, threshold: int) -> tuple[NDArray[np.int64], NDArray[np.uint64]]: ...
def hash_integers(values: NDArray[np.int64], key: int) -> NDArray[np.uint64]: ...
def hash_texts(bounds: NDArray[np.int64], data: NDArray[np.uint8], key: int) -> NDArray[np.uint64]: ...

class ValueTable:
    error: int
    registers: bytes
    def __init__(self, bytes: bool, capacity: int) -> None: ...
    def __len__(self) -> int: ...
    def add_integers(
        self,
        values: NDArray[Any],
        present: NDArray[np.uint8] | None,
        counts: NDArray[np.int64] | None = None,
    ) -> None: ...
    def add_texts(
        self,
        bounds: NDArray[np.int64],
        data: NDArray[np.uint8],
        present: NDArray[np.uint8] | None,
        counts: NDArray[np.int64] | None = None,
    ) -> None: ...
    def find_integers(self, values: NDArray[np.int64]) -> NDArray[np.int64]: ...
    def find_texts(self, bounds: NDArray[np.int64], data: NDArray[np.uint8]) -> NDArray[np.int64]: ...
    def merge(self, other: ValueTable) -> None: ...
    def items(self) -> tuple[list[Any], NDArray[np.int64]]: ...
    def entries(self) -> tuple[list[Any], NDArray[np.int64]]: ...
