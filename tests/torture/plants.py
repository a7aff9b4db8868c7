"""Planted defects, which show that every scenario can find one, and that every counter rises.

``python -m tests.torture --plants`` plants one after the other, each in its own process, and runs the scenario
that has to notice it. A plant touches names that are public, or the standard library's, so that it stays one when
feedline changes within.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

MAX_CASES = 200
"""Number of cases within which a defect must be noticed."""


@dataclass(frozen=True)
class Plant:
    """A defect.

    Attributes:
        name: for people and the command line.
        scenario: that has to notice it.
        counters: one of them has to rise.
        plant: does it, in a process that does nothing else afterwards.
        before: it has to be there when the data is made, too.
        every: look at each so manieth case only, from the second on.
    """

    name: str
    scenario: str
    counters: tuple[str, ...]
    plant: Callable[[], None]
    before: bool = False
    every: int = 1


def _wrapped(kind: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Replace a method by ``wrapper(original, self, *arguments)``."""
    original = getattr(kind, name)

    @functools.wraps(original)
    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        return wrapper(original, self, *arguments, **options)

    setattr(kind, name, method)


# ---- feeds ----------------------------------------------------------------------------------------------


def _restores_late() -> None:
    import feedline as fl

    def late(original: Any, source: Any, state: Any) -> None:
        original(source, state)
        source.next_minibatch(1)

    _wrapped(fl.MinibatchSource, "load_state_dict", late)


def _begins_early() -> None:
    """A loader begins its next sweep when the one before ends."""
    import feedline as fl

    begun: dict[int, Any] = {}

    def early(original: Any, loader: Any) -> Any:
        iterator = begun.pop(id(loader), None) or original(loader)
        yield from iterator
        begun[id(loader)] = original(loader)

    _wrapped(fl.DataLoader, "__iter__", early)


def _state_of_yesterday() -> None:
    """A loader returns its previous state."""
    import feedline as fl

    last: dict[int, Any] = {}

    def stale(original: Any, loader: Any) -> Any:
        now = original(loader)
        told, last[id(loader)] = last.get(id(loader), now), now
        return told

    _wrapped(fl.DataLoader, "state_dict", stale)


def _backwards() -> None:
    """Parts have their sequences reversed."""
    import numpy as np

    import feedline as fl

    def reverse(original: Any, source: Any, *arguments: Any, **options: Any) -> Any:
        m = original(source, *arguments, **options)
        if m.num_sequences < 2:
            return m
        back = np.arange(m.num_sequences)[::-1]
        values = {name: value.select(back) for name, value in m.items()}
        return fl.Minibatch(
            source.schema,
            values,
            m.ids[back],
            num_samples=m.num_samples,
            global_samples=m.global_samples,
            position=m.position,
            sweep_end=m.sweep_end,
        )

    _wrapped(fl.MinibatchSource, "next_minibatch", reverse)
    # Expected items come from iterators, which are not changed.
    original = fl.MinibatchSource.next_minibatch.__wrapped__  # type: ignore[attr-defined]

    def minibatches(source: Any, size: int = 256) -> Any:
        while m := original(source, size):
            yield m

    fl.MinibatchSource.minibatches = minibatches  # type: ignore[assignment]


def _augments_by_place() -> None:
    """Random numbers of pictures depend on their place in the minibatch."""
    import numpy as np

    from feedline import images

    def by_place(original: Any, decode: Any, before: Any, values: Any, keys: Any) -> Any:
        return original(decode, before, values, keys._replace(ordinals=np.arange(len(keys.ordinals))))

    for name in ("run_all", "start"):
        _wrapped(images.Decode, name, by_place)


def _keeps_its_share() -> None:
    """A source keeps the share of the ranks from before."""
    import feedline as fl

    def keep(original: Any, source: Any, partition: Any) -> None:
        if not source.position.samples:
            original(source, partition)

    _wrapped(fl.MinibatchSource, "repartition", keep)


def _weights_forgotten() -> None:
    """States do not carry the weights that were changed in the run."""
    import feedline as fl

    def without(original: Any, source: Any) -> Any:
        state = original(source)
        if "stages" in state:
            state["stages"] = [stage for stage in state["stages"] if not stage[2]]
        return state

    _wrapped(fl.MinibatchSource, "state_dict", without)


def _packed_by_process() -> None:
    """Which documents share a row depends on the process."""
    import feedline as fl

    def other(original: Any, packed: Any, chunk: int, *pieces: Any) -> Any:
        return original(packed, chunk + (os.getpid() % 2 << 32), *pieces)

    _wrapped(fl.Packed, "read", other)
    _wrapped(fl.Packed, "read_fetched", other)


def _forked_skips() -> None:
    import feedline as fl

    def skip(original: Any, source: Any, size: int, *more: Any) -> Any:
        if source.__dict__.setdefault("planted", os.getpid()) != os.getpid():
            source.planted = os.getpid()
            original(source, 1)
        return original(source, size, *more)

    _wrapped(fl.MinibatchSource, "next_minibatch", skip)
    original_init = fl.MinibatchSource.__init__

    def init(source: Any, *arguments: Any, **options: Any) -> None:
        original_init(source, *arguments, **options)
        source.planted = os.getpid()

    fl.MinibatchSource.__init__ = init  # type: ignore[method-assign]
    original = fl.MinibatchSource.next_minibatch

    def minibatches(source: Any, size: int = 256) -> Any:
        while m := original(source, size):
            yield m

    fl.MinibatchSource.minibatches = minibatches  # type: ignore[assignment]


def _twice_in_threads() -> None:
    """Threads other than the main one get the last delivered item once more."""
    import feedline as fl

    seen: dict[int, Any] = {}

    def again(original: Any, source: Any, *arguments: Any) -> Any:
        if threading.current_thread() is not threading.main_thread() and id(source) in seen:
            return seen.pop(id(source))
        found = original(source, *arguments)
        seen[id(source)] = found
        return found

    _wrapped(fl.MinibatchSource, "next_minibatch", again)


def _interrupted_loses() -> None:
    import feedline as fl

    def lose(original: Any, source: Any, *arguments: Any) -> Any:
        try:
            return original(source, *arguments)
        except KeyboardInterrupt:
            original(source, 1)
            raise

    _wrapped(fl.MinibatchSource, "next_minibatch", lose)


def _drops_first_batch() -> None:
    import feedline as fl

    original = fl.DataLoader.__iter__

    def shorter(loader: Any) -> Any:
        iterator = original(loader)
        if loader.num_workers:
            next(iterator)
        return iterator

    fl.DataLoader.__iter__ = shorter  # type: ignore[method-assign]


def _freeing_crashes() -> None:
    import feedline as fl

    fl.DataLoader.__del__ = lambda loader: os.kill(os.getpid(), signal.SIGSEGV)  # type: ignore[attr-defined]


def _noisy_end() -> None:
    import feedline as fl

    def end(thing: Any) -> None:
        raise ValueError("planted")

    for kind in (fl.MinibatchSource, fl.DataLoader, fl.StoreWriter):
        kind.__del__ = end  # type: ignore[attr-defined]
    os.environ["FEEDLINE_TORTURE_PLANT"] = "noisy end"


# ---- files ----------------------------------------------------------------------------------------------


def _no_checksums() -> None:
    """Every checksum and every seal is the same, so they detect nothing."""
    from feedline import _native
    from feedline.interop import seal

    _native.crc32c = lambda data, crc=0: 0  # type: ignore[assignment]
    seal.seal_of = lambda text, at: seal.BLANK


def _torn_renames() -> None:
    """Files that should appear atomically are copied, in two steps."""

    def copy(source: Any, target: Any) -> None:
        if os.path.isdir(source):
            os.makedirs(target, exist_ok=True)
            for name in sorted(os.listdir(source)):
                copy(os.path.join(source, name), os.path.join(target, name))
            shutil.rmtree(source)
            return
        with open(source, "rb") as file:
            content = file.read()
        with open(target, "wb") as file:
            file.write(content[: len(content) // 2])
        with open(target, "ab") as file:
            file.write(content[len(content) // 2 :])
        os.unlink(source)

    os.replace = copy  # type: ignore[assignment]
    os.rename = copy  # type: ignore[assignment]


def _writes_late() -> None:
    """What is written at a place of a file reaches it a moment later, as if it were buffered."""
    write = os.pwrite

    def late(descriptor: int, data: Any, at: int) -> int:
        content, again = bytes(data), os.dup(descriptor)
        threading.Timer(0.05, lambda: (write(again, content, at), os.close(again))).start()
        return len(content)

    os.pwrite = late  # type: ignore[assignment]


def _fetches_again() -> None:
    """A cache begins empty, with any content."""
    from feedline.feed.remote.pages import ObjectPages

    def empty(original: Any, pages: Any) -> int:
        pages.drop(0, pages.count)
        return int(original(pages))

    _wrapped(ObjectPages, "sweep", empty)


def _keeps_too_much() -> None:
    """A cache has twice the room that it was given."""
    from feedline.feed.remote.object_cache import Cache

    def more(original: Any, cache: Any, *arguments: Any) -> Any:
        cache.budget_bytes *= 2
        try:
            return original(cache, *arguments)
        finally:
            cache.budget_bytes //= 2

    _wrapped(Cache, "reserve", more)


def _one_folder() -> None:
    """Places whose names differ in what no word has share a folder."""
    from feedline.feed.remote.stores import Store

    def short(original: Any, store: Any, *arguments: Any) -> None:
        original(store, *arguments)
        store.place = re.sub(r"[\W_]+", "_", store.address)

    _wrapped(Store, "__init__", short)


def _any_version() -> None:
    """Any version in a store passes for the opened one."""
    from feedline.feed.remote.stores import ObjectInfo

    ObjectInfo.is_same = lambda *_: True  # type: ignore[method-assign]
    ObjectInfo.version = property(lambda info: str(info.size))  # type: ignore[assignment]


def _waits_for_much() -> None:
    """Bytes are only heard of by the mebibyte."""
    from feedline.feed.remote.web import WebStore

    plain = WebStore.read

    async def read(self: Any, info: Any, begin: int, end: int) -> Any:
        held = b""
        async for piece in plain(self, info, begin, end):
            held += piece
            if len(held) >= 1 << 20:
                yield held
                held = b""
        if held:
            yield held

    WebStore.read = read  # type: ignore[method-assign]


def _nothing_is_removed() -> None:
    keep: Callable[..., None] = lambda *_, **__: None  # noqa: E731
    os.unlink = os.remove = keep  # type: ignore[assignment]


def _generators_stay() -> None:
    """Random generators are not restored."""
    import random

    import numpy as np
    import torch

    stay: Callable[..., None] = lambda *_, **__: None  # noqa: E731
    random.setstate = stay  # type: ignore[assignment]
    np.random.set_state = stay
    torch.set_rng_state = stay


# ---- errors ---------------------------------------------------------------------------------------------


def _errors_of_nobody() -> None:
    """Exceptions have types that were not promised."""
    import feedline as fl
    from feedline import errors
    from feedline.mxnet import base

    class NobodysError(Exception):
        """An exception that is never raised."""

    errors.FeedlineError = fl.FeedlineError = NobodysError  # type: ignore[misc]
    base.MXNetError = NobodysError  # type: ignore[misc]
    for name in ("hostile_states", "hostile_cntk"):
        module = importlib.import_module(f"tests.torture.scenarios.{name}")
        for kind in ("StateError", "FeedlineError"):
            if hasattr(module, kind):
                setattr(module, kind, NobodysError)


def _cntk_refuses_foreign() -> None:
    """Under CNTK's names every refusal becomes a KeyError."""
    import feedline.cntk as C

    def refuse(original: Any, source: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return original(source, *arguments, **options)
        except Exception as error:
            raise KeyError("planted") from error

    for name in ("__init__", "restore_from_checkpoint"):
        _wrapped(C.io.MinibatchSource, name, refuse)


def _parquet_hangs() -> None:
    import feedline as fl
    from tests.torture.scenarios.hostile_parquet import HostileParquet

    HostileParquet.seconds = 5.0
    original = fl.ParquetDeserializer.__init__

    def hang(corpus: Any, *arguments: Any, **options: Any) -> None:
        try:
            original(corpus, *arguments, **options)
        except fl.DataError:
            time.sleep(3600)

    fl.ParquetDeserializer.__init__ = hang  # type: ignore[method-assign]


def _csv_leaves() -> None:
    """A child that is never waited for, and does not end."""
    import feedline as fl
    from tests.torture import arena

    arena.GRACE = 1.0

    original = fl.convert

    def convert(*arguments: Any, **options: Any) -> Any:
        if os.fork() == 0:
            signal.pause()
        return original(*arguments, **options)

    fl.convert = convert


def _says_all_is_well() -> None:
    """The doctor finds nothing, here and in the programs that it examines."""
    from feedline.probes import examination
    from feedline.runs import diagnosis

    os.environ["FEEDLINE_TORTURE_PLANT"] = "says that all is well"
    examination.diagnose = diagnosis.diagnose = lambda records: []


def _replicas_differ() -> None:
    import feedline as fl

    original = fl.kvstore.create

    def create(*arguments: Any, **options: Any) -> Any:
        store = original(*arguments, **options)
        if arguments[:1] == ("dist_sync",):
            pull = store.pull

            def off(key: Any, out: Any, *more: Any, **named: Any) -> Any:
                pull(key, out, *more, **named)
                out += store.rank

            store.pull = off
        return store

    fl.kvstore.create = create


PLANTS = (
    Plant("restores late", "killed-feeds", ("lost",), _restores_late),
    Plant("begins early", "changed-data", ("silent",), _begins_early),
    Plant("state of yesterday", "killed-loaders", ("twice",), _state_of_yesterday),
    Plant("backwards", "worlds", ("out of place",), _backwards),
    Plant("keeps its share", "ranks-come-and-go", ("lost", "twice"), _keeps_its_share),
    Plant("weights forgotten", "killed-mixtures", ("lost", "twice", "out of place"), _weights_forgotten),
    Plant("packed by process", "killed-compositions", ("silent",), _packed_by_process),
    Plant("augments by place", "killed-pictures", ("silent",), _augments_by_place),
    Plant("forked skips", "forks", ("lost",), _forked_skips),
    Plant("twice in threads", "threads", ("twice",), _twice_in_threads),
    Plant("interrupted loses", "interrupts", ("out of place",), _interrupted_loses),
    Plant("drops first batch", "small-shared-memory", ("lost",), _drops_first_batch),
    Plant("freeing crashes", "collector", ("crashes",), _freeing_crashes),
    Plant("noisy end", "exits", ("foreign",), _noisy_end),
    Plant("no checksums", "damaged-store", ("silent",), _no_checksums, before=True),
    Plant("no checksums, index", "damaged-index", ("silent", "foreign", "lost"), _no_checksums, before=True),
    Plant("no checksums, tensors", "hostile-tensors", ("silent",), _no_checksums, before=True),
    Plant("no checksums, checkpoints", "damaged-checkpoints", ("silent",), _no_checksums, before=True),
    Plant("torn renames", "killed-writers", ("lost",), _torn_renames),
    Plant("nothing is removed", "full-disks", ("left over",), _nothing_is_removed),
    Plant("writes late", "killed-fetchers", ("silent",), _writes_late),
    Plant("fetches again", "killed-fetchers", ("twice",), _fetches_again),
    Plant("keeps too much", "killed-fetchers", ("left over",), _keeps_too_much),
    Plant("one folder", "killed-neighbours", ("silent", "lost", "foreign"), _one_folder),
    Plant("any version", "replaced-objects", ("silent",), _any_version),
    Plant("waits for much", "slow-lines", ("lost", "foreign", "twice"), _waits_for_much),
    Plant("generators stay", "killed-sessions", ("silent",), _generators_stay),
    Plant("replicas differ", "killed-ranks", ("silent",), _replicas_differ, every=4),
    Plant("errors of nobody, descriptors", "few-descriptors", ("foreign",), _errors_of_nobody),
    Plant("errors of nobody, Arrow", "hostile-arrow", ("foreign",), _errors_of_nobody),
    Plant("errors of nobody, ArrayRecord", "hostile-arrayrecord", ("foreign",), _errors_of_nobody),
    Plant("errors of nobody, Lance", "hostile-lance", ("foreign",), _errors_of_nobody),
    Plant("errors of nobody, CTF", "hostile-ctf", ("foreign",), _errors_of_nobody),
    Plant("errors of nobody, HDF5", "hostile-hdf5", ("foreign",), _errors_of_nobody),
    Plant("errors of nobody, images", "hostile-images", ("foreign",), _errors_of_nobody),
    Plant("errors of nobody, index", "hostile-index", ("foreign",), _errors_of_nobody),
    Plant("errors of nobody, LitData", "hostile-litdata", ("foreign",), _errors_of_nobody),
    Plant("errors of nobody, LeRobot", "hostile-lerobot", ("foreign",), _errors_of_nobody),
    Plant("errors of nobody, logs", "hostile-logs", ("foreign",), _errors_of_nobody),
    Plant("errors of nobody, manifests", "hostile-manifests", ("foreign",), _errors_of_nobody),
    Plant("errors of nobody, MDS", "hostile-mds", ("foreign",), _errors_of_nobody),
    Plant("errors of nobody, speech", "hostile-speech", ("foreign",), _errors_of_nobody),
    Plant("errors of nobody, states", "hostile-states", ("foreign",), _errors_of_nobody),
    Plant("errors of nobody, store", "hostile-store", ("foreign",), _errors_of_nobody),
    Plant("errors of nobody, symbols", "hostile-symbols", ("foreign",), _errors_of_nobody),
    Plant("errors of nobody, rows", "hostile-rows", ("foreign",), _errors_of_nobody),
    Plant("errors of nobody, tar", "hostile-tar", ("foreign",), _errors_of_nobody),
    Plant("errors of nobody, RecordIO", "hostile-recordio", ("foreign",), _errors_of_nobody),
    Plant("errors of nobody, TFRecord", "hostile-tfrecord", ("foreign",), _errors_of_nobody),
    Plant("errors of nobody, tokens", "hostile-tokens", ("foreign",), _errors_of_nobody),
    Plant("errors of nobody, other writers", "hostile-foreign", ("foreign",), _errors_of_nobody),
    Plant("errors of nobody, Zarr", "hostile-zarr", ("foreign",), _errors_of_nobody),
    Plant("errors of nobody, files", "damaged-files", ("foreign",), _errors_of_nobody),
    Plant("refused as KeyError", "hostile-cntk", ("foreign",), _cntk_refuses_foreign),
    Plant("says that all is well", "verdicts", ("silent",), _says_all_is_well),
    Plant("hangs on damage", "hostile-parquet", ("hangs",), _parquet_hangs),
    Plant("leaves children", "hostile-arrays", ("left over",), _csv_leaves),
)


def plant(name: str) -> None:
    """Plant a defect in this process, for good."""
    for one in PLANTS:
        if one.name == name:
            one.plant()
            return
    raise ValueError(f"no plant {name!r}; there are {', '.join(one.name for one in PLANTS)}")


def from_environment() -> None:
    """Plant the suite's defect in programs that a case restarts."""
    if name := os.environ.get("FEEDLINE_TORTURE_PLANT"):
        plant(name)


def check(plants: Sequence[Plant], seed: int, out: TextIO) -> list[str]:
    """Plant defects one after another, return the ones that no scenario noticed.

    Args:
        plants: defects.
        seed: of the cases.
        out: stream for the report.
    """
    from tests.torture.scenarios import ALL
    from tests.torture.suite import Suite, in_child, prepare, temporary

    missed = []
    with temporary() as work:
        in_child(lambda: prepare(work / "data"))
        for one in plants:
            (scenario,) = (s for s in ALL if s.name == one.scenario)
            if reason := scenario.missing():
                print(f"not tried  {one.name}: {reason}", file=out, flush=True)
                continue
            found = work / "found"

            def noticed(one: Plant = one, scenario: Any = scenario, found: Any = found) -> None:
                one.plant()
                with open(os.devnull, "w") as quiet:
                    suite = Suite([scenario], seed, 1, out=quiet, data=None if one.before else work / "data")
                    suite.repeat(scenario, range(one.every > 1, MAX_CASES * one.every, one.every), one.counters)
                found.write_text(json.dumps(suite.rows[scenario.name].counts))

            began = time.monotonic()
            in_child(noticed)
            counts = json.loads(found.read_text())
            hit = any(counts.get(counter) for counter in one.counters)
            told = f"{one.name}: {one.scenario} counts {counts} in {time.monotonic() - began:.1f} s"
            print(f"{'noticed' if hit else 'MISSED '}    {told}", file=out, flush=True)
            if not hit:
                missed.append(one.name)
    return missed
