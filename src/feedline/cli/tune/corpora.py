"""The settings of a corpus: shuffle window, threads, reading ahead, chunk size, and the format of a store.

A turn feeds a new source, and leaves out what it delivers from its first window, since that was read before the clock
began. It measures whole windows where there is time for them: while a window is delivered, the next one is read.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from feedline import system
from feedline.cli.arguments import DEFAULT_CHUNK_SIZE, parse_columns, parse_count, parse_streams, parse_window
from feedline.cli.bench import copy_speed
from feedline.cli.console import show_bytes
from feedline.cli.corpus import Opened, open_path
from feedline.cli.tune.paired_search import Setting, UnavailableError
from feedline.cli.window_page import distance_of
from feedline.data import Stream
from feedline.errors import FeedlineError
from feedline.feed.arguments import Remote
from feedline.feed.conversion.convert import convert
from feedline.feed.files.disk import evict
from feedline.feed.formats.cntk.ctf import CTFDeserializer
from feedline.feed.open_corpus import open_corpus
from feedline.feed.protocol import Deserializer, Ordered, RandomAccess, can, is_sized
from feedline.feed.reading.reader_factory import DEFAULT_WINDOW, order_of
from feedline.feed.remote.address_text import is_address
from feedline.feed.remote.placeholders import DEFAULT_BYTES
from feedline.feed.source import MinibatchSource
from feedline.feed.timeline import ChunkTable, Window
from feedline.system import usable_cores

AS_IS, STORE = "as it is", "store"
MIXES_LESS = "mixes less than the present setting"
_STORES: dict[str, str | None] = {STORE: None, "store, lz4": "lz4", "store, zstd": "zstd"}
# Bytes per second that a core decompresses: rough figures, as the setting is measured before it is chosen.
_DECOMPRESSION = {"lz4": 2e9, "zstd": 1e9}
_WRITE_SPEED = 3e8  # bytes per second that a disk writes, to estimate a conversion
_CONVERSION, _CONVERSIONS = 0.3, 0.6  # of the budget, that a conversion may take, and all of them
_AHEAD_BYTES = 64 << 20  # delivered from memory at first, where nothing is shuffled in windows
_PATIENCE = 3  # times the length of a turn, after which it ends in the middle of a window
_LOOKS = 16  # minibatches whose bytes are counted
_SAME = 0.99  # of the pieces in a window, which count as no fewer


@dataclass(frozen=True)
class Speed:
    """Figures of a turn.

    Attributes:
        rate: samples per second.
        take_s: seconds of the caller for a sample, apart from waiting.
        read_s: seconds of all threads to read and decode a sample.
        sample_bytes: delivered bytes of a sample.
    """

    rate: float
    take_s: float
    read_s: float
    sample_bytes: float


class _Border(NamedTuple):
    """The end of a lap: the time, samples delivered until then, and seconds of waiting and of reading."""

    time: float
    samples: int
    wait_s: float
    read_s: float


class Corpora:
    """The feed of a path: a `paired_search.Subject`, and a context manager that removes the stores it converted.

    Args:
        path, stream, schema: as typed.
        size: minibatch size in samples.
        seconds: budget of the search, which limits conversions.
        window, threads, chunk_size: the present setting, as typed.
        cold: whether the page cache, or for an address the cache of objects, is emptied before each turn.
        watch: called often, to show progress.
    """

    unit = "samples"

    def __init__(
        self,
        path: str,
        *,
        size: int,
        seconds: float,
        window: str | None,
        threads: int,
        stream: list[str] | None,
        schema: str,
        chunk_size: str,
        cold: bool,
        watch: Callable[[], object],
    ) -> None:
        self._watch = watch
        self._path, self._size, self._seconds, self._cold = path, size, seconds, cold
        self._stream, self._schema = stream, schema
        self._cores, self._copy_speed = usable_cores(), 0.0
        self._cleanup = contextlib.ExitStack()
        self._corpora: dict[tuple[Hashable, ...], Deserializer] = {}
        # Of the present setting. Fixed by the first prediction, so that all are comparable.
        self._figures: Speed | None = None
        self._predicting = False
        self._fastest = 0.0  # samples per second of the present setting, as a single turn may be disturbed
        self._conversion_s = self._converting_s = 0.0  # of the last conversion, and of all
        self._failed: dict[str, str] = {}  # why there is no store, by format
        opened = self._open(chunk_size)
        corpus, self.format = opened.corpus, opened.format
        self._files, self._declared = corpus.paths(), dict(corpus.schema)
        self._corpora[AS_IS, chunk_size] = corpus
        self.samples = self._stored_bytes = 0
        self._plain = is_sized(corpus) and corpus.capability(Ordered) is None
        if self._plain:
            table = ChunkTable(corpus.chunks())
            self.samples, self._stored_bytes = table.total_samples, int(table.bytes.sum())
        shuffle = parse_window(window, corpus)
        self.present: Setting = {
            "shuffle": shuffle,
            "chunk_size": chunk_size,
            "threads": threads,
            "read_ahead": None,
            "format": AS_IS,
        }
        self.axes: Mapping[str, Sequence[Hashable]] = {
            "shuffle": self._windows(corpus, shuffle),
            "chunk_size": self._chunk_sizes(chunk_size),
            "threads": self._threads(corpus, threads),
            "read_ahead": [None, 0, 2 * DEFAULT_WINDOW.bytes] if DEFAULT_WINDOW.bytes else [None, 0],
            "format": self._formats(),
        }

    def __enter__(self) -> Corpora:
        return self

    def __exit__(self, *_: object) -> None:
        for corpus in self._corpora.values():
            corpus.close()
        self._corpora.clear()
        self._cleanup.close()

    # ---- the settings ------------------------------------------------------------------------------

    def _windows(self, corpus: Deserializer, shuffle: Any) -> list[Hashable]:
        if not self._plain or shuffle is False:
            return [shuffle]
        windows: list[Hashable] = [shuffle]
        timeline, _ = order_of(corpus, order="feedline", seed=0, shuffle=shuffle)
        span = self._stored_bytes
        if timeline.window is not None:
            span = int(span / self._windows_of(corpus, timeline.window.to_json()))
        # Free bytes, of which the next window takes half. Where they are unknown, half of all memory counts as free.
        free_bytes = system.available_bytes() or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        most_bytes = min(self._stored_bytes - 1, free_bytes // 2)
        spans = (span // 4, 2 * span, 4 * span)
        return windows + [Window(bytes=nbytes) for nbytes in spans if 1 << 20 <= nbytes <= most_bytes]

    def _chunk_sizes(self, chunk_size: str) -> list[Hashable]:
        if self.format != "ctf" or is_address(self._path):
            return [chunk_size]
        present = parse_count(chunk_size)
        return [chunk_size, *(name for name in ("8M", "2M") if parse_count(name) < present)]

    def _threads(self, corpus: Deserializer, threads: int) -> list[Hashable]:
        if can(corpus, RandomAccess):
            return [threads]
        counts = {threads, self._cores, *(1 << k for k in range(8) if 1 << k <= 2 * self._cores)}
        return list[Hashable](sorted(counts))

    def _formats(self) -> list[Hashable]:
        if self.format == "store" or not self._plain or is_address(self._path):
            return [AS_IS]
        return [AS_IS, *_STORES]

    def normal(self, setting: Setting) -> Setting:
        """See `paired_search.Subject`."""
        if setting["format"] == AS_IS:
            return setting
        unused = ["chunk_size"] if _STORES[str(setting["format"])] else ["chunk_size", "threads"]
        return {**setting, **{name: self.present[name] for name in unused}}

    # ---- predictions -------------------------------------------------------------------------------

    def predict(self, setting: Setting) -> float:
        """Return samples per second, from the present setting's seconds of reading and of the caller."""
        figures, self._predicting = self._figures, True
        assert figures is not None
        read_s, workers = figures.read_s, min(int(str(setting["threads"])), self._cores)
        if setting["format"] != AS_IS:
            if not self._copy_speed:
                self._copy_speed = copy_speed()
            codec = _STORES[str(setting["format"])]
            read_s = figures.sample_bytes / (_DECOMPRESSION[codec] if codec else 4 * self._copy_speed)
        elif self.format == "ctf":
            workers = min(workers, max(1, self._stored_bytes // parse_count(str(setting["chunk_size"]))))
        if setting["read_ahead"] == 0:
            seconds = figures.take_s + read_s / workers
        else:
            seconds = max(figures.take_s, read_s / workers, (figures.take_s + read_s) / self._cores)
        return 1 / max(seconds, 1e-9)

    # ---- measuring ---------------------------------------------------------------------------------

    def measure(self, setting: Setting, seconds: float) -> float:
        """See `paired_search.Subject`."""
        corpus = self._corpus(setting)
        if self._cold and not is_address(self._path):
            evict(corpus.paths())
        options: dict[str, Any] = {name: setting[name] for name in ("shuffle", "threads", "read_ahead")}
        sweeps = 1 if self._cold and self._plain else None
        source = MinibatchSource(corpus, partition=(0, 1), max_sweeps=sweeps, **options)
        try:
            figures = self._feed(source, corpus, seconds)
        finally:
            source._reader.close()  # ends its threads. The corpus stays open for the next turn.
        if setting == self.present:
            self._fastest = max(self._fastest, figures.rate)
            self._figures = self._figures if self._predicting else figures
        return figures.rate

    def _feed(self, source: MinibatchSource, corpus: Deserializer, seconds: float) -> Speed:
        share = 1 / self._windows_of(corpus, source.state_dict()["shuffle"]) if self._plain else 0.0
        lap = int(share * self.samples)  # samples
        stats, began = source.stats(), time.perf_counter()
        borders: list[_Border] = []  # between laps
        delivered = nbytes = looks = seen = 0
        while minibatch := source.next_minibatch(self._size):
            delivered += minibatch.num_samples
            if looks < _LOOKS:
                looks, seen = looks + 1, delivered
                nbytes += sum(value.nbytes for value in minibatch.values())
            now = time.perf_counter()
            if delivered >= (borders[-1].samples if borders else 0) + lap:
                borders.append(_Border(now, delivered, stats.wait_seconds, stats.read_seconds))
            if now - began >= seconds and (len(borders) > 1 or now - began >= _PATIENCE * seconds):
                break
            self._watch()
        if not delivered:
            raise UnavailableError("no samples were delivered")
        start, end = _Border(began, 0, 0.0, 0.0), _Border(time.perf_counter(), delivered, stats.wait_seconds, 0.0)
        if minibatch and len(borders) > 1:
            start, end = borders[0], borders[-1]
            read_s = (end.read_s - start.read_s) / (end.samples - start.samples)
        elif self._plain and not can(corpus, RandomAccess):
            # Chunks that were read, but not delivered yet, count as read.
            read = max(1.0, stats.chunks_read * self.samples / len(corpus.chunks()))
            read_s = stats.read_seconds / read
        samples, passed, waited = end.samples - start.samples, end.time - start.time, end.wait_s - start.wait_s
        taken = max(1e-9, passed - waited)
        rate = samples / passed
        if can(corpus, RandomAccess) or not self._plain:
            read_s = waited / samples
        elif start.samples == 0:
            rate = max(rate, min(read / passed, samples / taken))
        return Speed(rate, taken / samples, read_s, nbytes / seen)

    def _windows_of(self, corpus: Deserializer, shuffle: Any) -> float:
        """Return the number of windows in a sweep, or of what is read ahead where nothing is shuffled in windows.

        Args:
            corpus: the corpus.
            shuffle: as in a state.
        """
        if not isinstance(shuffle, dict):
            return max(1.0, self._stored_bytes / _AHEAD_BYTES)
        ((unit, count),) = shuffle.items()
        whole = {"bytes": sum(info.bytes for info in corpus.chunks()), "samples": self.samples}
        return max(1.0, whole.get(unit, len(corpus.chunks())) / int(count))

    def _corpus(self, setting: Setting) -> Deserializer:
        """Return the open corpus of a setting. Cold ones are opened each time, as the kernel keeps mapped pages."""
        name = str(setting["format"])
        key = (name, setting["chunk_size"] if name == AS_IS else "")
        if self._cold and key in self._corpora:
            self._corpora.pop(key).close()
        if key not in self._corpora:
            if name != AS_IS:
                self._corpora[key] = open_corpus(self._converted(name))
            elif setting["chunk_size"] != self.present["chunk_size"]:
                nbytes = parse_count(str(setting["chunk_size"]))
                # Its index is another file, which is not to stay beside the data.
                self._corpora[key] = CTFDeserializer(
                    self._files, self._declared, chunk_size=nbytes, cache=str(self._temporary)
                )
            else:
                self._corpora[key] = self._open(str(setting["chunk_size"])).corpus
        return self._corpora[key]

    def _open(self, chunk_size: str) -> Opened:
        remote = None
        if is_address(self._path) and self._cold:
            cache = self._temporary / "objects"
            shutil.rmtree(cache, ignore_errors=True)
            remote = Remote(cache)
        return open_path(self._path, self._stream, chunk_size, self._schema, remote=remote)

    @functools.cached_property
    def _temporary(self) -> Path:
        """A folder that is removed at the end."""
        return Path(self._cleanup.enter_context(tempfile.TemporaryDirectory(prefix="feedline-tune-")))

    # ---- stores ------------------------------------------------------------------------------------

    def _converted(self, name: str) -> Path:
        """Return the path of the corpus as a store, in a temporary folder.

        Raises:
            UnavailableError: there is no room or no time for it, or the corpus cannot be converted.
        """
        path = self._temporary / name.replace(", ", "-")
        if path.exists():
            return path
        if name in self._failed:
            raise UnavailableError(self._failed[name])
        try:
            self._convert(path, _STORES[name])
        except UnavailableError as error:
            self._failed[name] = str(error)
            raise
        except (FeedlineError, ValueError, OSError) as error:
            self._failed[name] = f"cannot be converted: {error}"
            raise UnavailableError(self._failed[name]) from error
        return path

    def _convert(self, path: Path, compression: str | None) -> None:
        figures = self._figures
        assert figures is not None
        nbytes = figures.sample_bytes * self.samples
        free_bytes = shutil.disk_usage(path.parent).free
        if 2 * nbytes > free_bytes:
            raise UnavailableError(
                f"not converted: it takes about {show_bytes(nbytes)}, and {path.parent.parent} has "
                f"{show_bytes(free_bytes)} free. Set TMPDIR to another disk"
            )
        limit_s = min(_CONVERSION, _CONVERSIONS - self._converting_s / self._seconds) * self._seconds
        estimate_s = self._conversion_s or self.samples / self._fastest + nbytes / _WRITE_SPEED
        if estimate_s > limit_s:
            needed = math.ceil((estimate_s + self._converting_s) / _CONVERSION)
            raise UnavailableError(f"not converted: it takes about {estimate_s:.2g} s. Pass --seconds {needed}")
        began = time.perf_counter()

        def watch(done: int, total: int) -> None:
            self._watch()
            if time.perf_counter() - began > 2 * limit_s:
                needed = math.ceil(2 * limit_s / _CONVERSION)
                raise UnavailableError(f"not converted: it took more than {2 * limit_s:.2g} s. Pass --seconds {needed}")

        corpus = self._corpora[AS_IS, self.present["chunk_size"]]
        try:
            convert(corpus, path, jobs=self._cores, compression=compression, progress=watch)
        finally:
            self._conversion_s = time.perf_counter() - began
            self._converting_s += self._conversion_s

    # ---- the order ---------------------------------------------------------------------------------

    def refusal(self, setting: Setting) -> str:
        """See `paired_search.Subject`. A setting that mixes less than the present one is shown, but not chosen."""
        return MIXES_LESS if self._pieces(setting) < _SAME * self._pieces(self.present) else ""

    def keeps_order(self, setting: Setting) -> bool:
        """See `report.Reported`."""
        return all(setting[name] == self.present[name] for name in ("shuffle", "chunk_size", "format"))

    def mixing(self, setting: Setting) -> float | None:
        """See `report.Reported`."""
        if not self._plain or setting["shuffle"] is False:
            return None
        return min(1.0, distance_of(self._corpus(setting), setting["shuffle"], self._size))

    def _pieces(self, setting: Setting) -> float:
        """Return the number of pieces of the corpus, each from another place, that are shuffled together."""
        if not self._plain or setting["shuffle"] is False:
            return 0.0
        corpus, shuffle = self._corpus(setting), setting["shuffle"]
        timeline, _ = order_of(corpus, order="feedline", seed=0, shuffle=shuffle)  # type: ignore[arg-type]
        windows = 1.0 if timeline.window is None else self._windows_of(corpus, timeline.window.to_json())
        pieces = max(1.0, len(timeline.table) / windows)  # a window has at least one
        return timeline.table.total_sequences if pieces == len(timeline.table) else pieces

    # ---- the result --------------------------------------------------------------------------------

    def code(self, setting: Setting) -> str:
        """Return a program that makes the source of a setting."""
        opened, lines = self._opening(setting), ["import feedline as fl", ""]
        if setting["format"] == AS_IS:
            lines.append(f"corpus = {opened}")
        else:
            name, codec = f"{_stem(self._path)}.store", _STORES[str(setting["format"])]
            compression = f", compression={codec!r}" if codec else ""
            lines += [f"fl.convert({opened}, {name!r}{compression})", f"corpus = fl.open_corpus({name!r})"]
        arguments = []
        if setting["shuffle"] is not True:
            shuffle = setting["shuffle"]
            arguments.append(f"shuffle={'fl.' if isinstance(shuffle, Window) else ''}{shuffle!r}")
        if len(self.axes["threads"]) > 1:
            arguments.append(f"threads={setting['threads']}")
        if setting["read_ahead"] is not None:
            arguments.append(f"read_ahead={setting['read_ahead']}")
        return "\n".join([*lines, f"source = fl.MinibatchSource({', '.join(['corpus', *arguments])})"])

    def _opening(self, setting: Setting) -> str:
        """Return the expression that opens the corpus as it is."""
        text = self._path
        if self.format == "ctf" and self._schema != "union":
            nbytes = parse_count(str(setting["chunk_size"]))
            size = "" if nbytes == parse_count(DEFAULT_CHUNK_SIZE) else f", chunk_size={nbytes}"
            return f"fl.CTFDeserializer({text!r}, {_declaring(self._declared)}{size})"
        options = []
        if self._stream:
            parse = parse_columns if self.format == "csv" else parse_streams
            options.append(f"streams={_declaring(parse(self._stream))}")
        if self._schema != "strict":
            options.append(f"schema={self._schema!r}")
        return f"fl.open_corpus({', '.join([repr(text), *options])})"

    def notes(self) -> list[str]:
        """Return remarks about the data, in sentences."""
        if is_address(self._path):
            limit_bytes, shown = DEFAULT_BYTES, "The cache of objects keeps"
            remedy = f"pass remote=fl.Remote(cache_bytes={int(1.01 * self._stored_bytes)}) to fl.open_corpus"
        else:
            limit_bytes, shown = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "The memory holds at most"
            remedy = "pass --cold, as later sweeps read the disk again"
        if self._cold or self._stored_bytes <= limit_bytes:
            return []
        return [f"{shown} {show_bytes(limit_bytes)} of {show_bytes(self._stored_bytes)}: {remedy}."]


def _declaring(streams: Mapping[str, Any]) -> str:
    """Return the expression for declarations of streams."""
    shown = [f"{name!r}: {'fl.' if isinstance(to, Stream) else ''}{to!r}" for name, to in streams.items()]
    return f"{{{', '.join(shown)}}}"


def _stem(path: str) -> str:
    """Return a name for the store of a path, a pattern or an address."""
    return re.sub(r"[^\w-]+", "-", Path(path.rstrip("/")).name.partition(".")[0]).strip("-") or "converted"
