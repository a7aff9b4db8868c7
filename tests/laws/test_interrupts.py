"""The law of interrupts: Ctrl-C anywhere in a feed loses nothing, repeats nothing, and moves no state.

CPython checks for signals when a Python function begins, when a call into C returns, and where a loop jumps back.
`Interrupt` calls SIGINT's handler at the n-th of these moments inside feedline, or inside the user's dataset that it
calls, for n = 1, 2, 3, … until a sweep ends without one. After each interrupt the loop requests the next batch, as the
user of a notebook would, and another loader continues from the state at that moment.
"""

from __future__ import annotations

import collections
import dis
import itertools
import json
import os
import signal
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

import feedline as fl
from tests.effort import stride
from tests.inside import copy_ahead_of
from tests.laws import items
from tests.laws.items import Augmented, Counting, Looping, Plain, Shuffling, Slots, content

try:
    import torch
    from torch.utils.data import DistributedSampler, RandomSampler

    from feedline.interop import torch_loading
except ModuleNotFoundError:
    torch = None

needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed")

WATCHED = (str(Path(fl.__file__).parent), items.__file__)

#: Distance between the moments that are tried. FEEDLINE_INTERRUPTS=1: all of them.
STRIDE = int(os.environ.get("FEEDLINE_INTERRUPTS", str(stride(41))))


class Interrupt:
    """Ctrl-C at the ``moment``-th moment inside the ``with`` blocks."""

    def __init__(self, moment):
        self.left, self.where, self.calls, self.pid = moment, None, {}, os.getpid()
        # Made once and kept: a method that only the interpreter holds is freed in its own call by `__exit__`.
        self.tracer, self.profiler = self.trace, self.profile

    def __enter__(self):
        if self.where is None:
            # Python 3.12 reports opcodes only if some frame has requested them before.
            sys._getframe().f_trace_opcodes = True
            sys.settrace(self.tracer)
            sys.setprofile(self.profiler)

    def __exit__(self, *_):
        sys.setprofile(None)
        sys.settrace(None)
        self.calls.clear()

    def profile(self, frame, event, arg):
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(WATCHED):
            self.calls.pop(frame, None)
            self.moment(frame)

    def trace(self, frame, event, arg):
        """Detect loops and calls of classes, which profilers miss. Called when a function begins."""
        frame.f_trace_lines = False
        if frame.f_code.co_filename.startswith(WATCHED):
            frame.f_trace_opcodes = True
            return self.watched
        return self.elsewhere if frame.f_back in self.calls else None

    def elsewhere(self, frame, event, arg):
        if event == "return" and frame.f_code.co_name not in ("__init__", "__new__"):
            self.calls.pop(frame.f_back, None)  # the return of a Python function is not a moment

    def watched(self, frame, event, arg):
        if event != "opcode":
            self.elsewhere(frame, event, arg)
            return self.watched
        code, at = frame.f_code, frame.f_lasti
        turn, call = instructions(code)[at // 2]
        # An exception raised here belongs to this instruction, and must reach the handler of the call's exceptions.
        called = self.calls.pop(frame, None)
        if turn or (called is not None and handler(code, called) == handler(code, at)):
            self.moment(frame)
        if call:
            self.calls[frame] = at
        return self.watched

    def moment(self, frame):
        if os.getpid() != self.pid:  # a worker, forked meanwhile
            self.__exit__()
            return
        self.left -= 1
        if self.left == 0:
            self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"
            self.__exit__()
            signal.getsignal(signal.SIGINT)(signal.SIGINT, frame)


def of_code(look):
    """A cache by the identity of a code object, whose hash takes longer than the cached computation."""
    cache = {}

    def cached(code, *where):
        try:
            return cache[(id(code), *where)][0]
        except KeyError:
            return cache.setdefault((id(code), *where), (look(code, *where), code))[0]

    return cached


@of_code
def instructions(code):
    """For each instruction, whether it is a loop's jump back, and whether it is a call."""
    names = [dis.opname[opcode] for opcode in code.co_code[::2]]
    return [(name.startswith("JUMP_BACKWARD"), name.startswith("CALL")) for name in names]


@of_code
def handler(code, at):
    """Return the handler of an exception at this instruction."""
    return next((entry.target for entry in dis._parse_exception_table(code) if entry.start <= at < entry.end), None)


def moments(which, stride=STRIDE):
    """Return moments to interrupt. Each case begins at another one, as many cases share code."""
    return itertools.count(1 + zlib.crc32(which.encode()) % stride, stride)


def received_after_interrupt(begin, interrupt, then=lambda got: None):
    """Return the items of a loop that requests the next batch after an interrupt."""
    got, iterator = [], None
    while True:
        try:
            with interrupt:
                if iterator is None:
                    iterator = begin()
                batch = next(iterator)
        except KeyboardInterrupt:
            then(got)
        except StopIteration:
            return got
        else:
            got.append(batch)


def values(batches):
    """Return the items of each batch."""
    return [np.asarray(batch["x"]).tolist() if isinstance(batch, dict) else content_of(batch) for batch in batches]


def content_of(batch):
    return [np.asarray(part).tolist() for part in (batch if isinstance(batch, list) else [batch])]


WORLDS = {
    "items": lambda: {"dataset": Plain(13), "shuffle": True},
    "drawing items": lambda: {"dataset": Augmented(13), "shuffle": True},
    "single items": lambda: {"dataset": Plain(13), "batch_size": None},
    "columns": lambda: {"dataset": np.arange(26).reshape(13, 2), "shuffle": True},
    "weights": lambda: {"dataset": Plain(13), "sampler": fl.Weighted(range(13))},
    "samples": lambda: {"dataset": Slots(13), "batch_sampler": fl.BatchByLength(6, [1 + i % 3 for i in range(13)])},
    "skipping": lambda: {"dataset": Plain(13, bad=[2, 3, 4, 5, 9]), "batch_size": 2, "on_error": "skip"},
    "threads": lambda: {"dataset": Augmented(13), "num_workers": 2, "workers": "thread"},
    "list of indices": lambda: {"dataset": Plain(13), "sampler": list(range(12, -1, -1))},
    "sampler with a state": lambda: {"dataset": Plain(13), "sampler": Shuffling(13)},
    "sampler of one use": lambda: {"dataset": Plain(13), "sampler": iter(range(13))},
    "batch sampler": lambda: {"dataset": Plain(13), "batch_size": 1, "batch_sampler": [[1, 2], [3], [4, 5, 6]]},
    "sampler in threads": lambda: {
        "dataset": Plain(13),
        "sampler": Shuffling(13),
        "num_workers": 2,
        "workers": "thread",
    },
    "iterable": lambda: {"dataset": Looping(13)},
    "iterable with a state": lambda: {"dataset": Counting(13)},
    "iterable in threads": lambda: {"dataset": Counting(13), "num_workers": 2, "workers": "thread"},
    "corpus": lambda: {"dataset": fl.ArrayDeserializer(x=np.arange(13), chunk_sequences=4), "shuffle": True},
    "corpus, collated": lambda: {"dataset": fl.ArrayDeserializer(x=np.arange(13)), "collate_fn": items.numbers},
}
if torch is not None:
    WORLDS |= {
        "torch's sampler": lambda: {
            "dataset": Plain(13),
            "sampler": RandomSampler(Plain(13), generator=torch.Generator().manual_seed(3)),
        },
        "device": lambda: {"dataset": Plain(13), "shuffle": True, "device": "cpu"},
        "travelling": lambda: {"dataset": Plain(13), "shuffle": True, "device": "somewhere"},
        "travelling from threads": lambda: {
            "dataset": Plain(13),
            "device": "somewhere",
            "num_workers": 2,
            "workers": "thread",
        },
        "travelling, skipping": lambda: {
            "dataset": Plain(13, bad=[3, 4, 5]),
            "on_error": "skip",
            "device": "somewhere",
        },
    }


class Slow:
    """A device to which batches are copied during the computation."""

    def __init__(self, device):
        self.asynchronous = device == "somewhere"

    def start(self, batch):
        return batch, "pending"

    def finish(self, batch, pending):
        assert pending == "pending"
        return batch


@pytest.mark.filterwarnings("ignore:.*no state_dict")
@pytest.mark.parametrize("name", WORLDS)
def test_a_loader(name, tmp_path, monkeypatch):
    if torch is not None:
        monkeypatch.setattr(torch_loading, "Transfer", Slow)

    def loader():
        arguments = {"batch_size": 3, "seed": 5, **WORLDS[name]()}
        if "batch_sampler" in arguments:
            del arguments["batch_size"]
        if arguments.get("on_error"):
            arguments["on_error"] = fl.Quarantine(tmp_path / "quarantine")
        return fl.DataLoader(**arguments)

    expected = values(loader())
    replays = name != "sampler of one use"
    tried = 0
    for moment in moments(name):
        interrupt, states = Interrupt(moment), []
        with loader() as reading:

            def then(got, reading=reading, states=states):
                states.append((len(got), json.dumps(reading.state_dict())))

            got = received_after_interrupt(lambda reading=reading: iter(reading), interrupt, then)
            assert values(got) == expected, interrupt.where
        if interrupt.where is None:
            break
        tried += 1
        for count, saved in states if replays else []:
            with loader() as restored:
                restored.load_state_dict(json.loads(saved))
                assert values(restored) == expected[count:], (interrupt.where, saved)
    assert tried > 5


@pytest.mark.parametrize(
    "name", ["items", "columns", "threads"] + ["torch's distributed sampler"] * (torch is not None)
)
def test_an_iterator_with_another_epoch(name):
    """The epoch is set after ``iter``, as Lightning does."""

    def loader():
        arguments = {"dataset": Plain(13), "sampler": DistributedSampler(range(13), 1, 0)} if name not in WORLDS else {}
        return fl.DataLoader(**{"batch_size": 3, "seed": 5, **(arguments or WORLDS[name]())})

    def told(reading):
        iterator = iter(reading)
        reading.sampler.set_epoch(2)
        return iterator

    expected = values(told(loader()))
    tried = 0
    for moment in moments(name):
        interrupt = Interrupt(moment)
        with loader() as reading:
            assert values(received_after_interrupt(lambda reading=reading: told(reading), interrupt)) == expected, (
                interrupt.where
            )
        if interrupt.where is None:
            break
        tried += 1
    assert tried > 5


class Repartitioned:
    """An iterator whose loader takes other shares as it goes on."""

    SHARES = ((0, 2), (0, 2), (1, 2), (1, 2), (0, 1), (0, 1), (1, 2))

    def __init__(self, loader):
        self.loader, self.batches, self.count = loader, iter(loader), 0

    def __next__(self):
        self.loader.repartition(self.SHARES[min(self.count, 6)])
        batch = next(self.batches)
        self.count += 1
        return batch


@pytest.mark.parametrize("name", ["items", "threads", "corpus"] + ["travelling"] * (torch is not None))
def test_a_loader_of_other_ranks(name, monkeypatch):
    """Also in `repartition`. What was made for the old ranks is dropped, and nothing else."""
    if torch is not None:
        monkeypatch.setattr(torch_loading, "Transfer", Slow)

    def loader():
        return fl.DataLoader(**{"batch_size": 1, "seed": 5, "partition": (0, 2), **WORLDS[name]()})

    def places(batch):
        batch = batch["x"] if isinstance(batch, dict) else batch[0] if isinstance(batch, list) else batch
        return np.ravel(batch).tolist()

    order = [i for batch in fl.DataLoader(**{"seed": 5, **WORLDS[name]()}) for i in places(batch)]
    tried = 0
    for moment in moments(name):
        interrupt = Interrupt(moment)
        with loader() as reading:
            got = received_after_interrupt(lambda reading=reading: Repartitioned(reading), interrupt)
            assert (reading.batch_size, reading.partition.ranks) == (1, (1, 2))
        shares = [order[2 * k : 2 * k + 2][i::n] for k, (i, n) in enumerate(Repartitioned.SHARES)]
        assert [places(batch) for batch in got] == shares, interrupt.where
        if interrupt.where is None:
            break
        tried += 1
    assert tried > 5


@pytest.mark.parametrize("dataset", [Augmented(13), Counting(13)], ids=["items", "iterable"])
@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "new"])
def test_processes(dataset, persistent):
    """Sweep after sweep from the same workers or from new ones, each interrupted somewhere else."""
    how = {"dataset": dataset, "batch_size": 3, "seed": 5}
    apart = {"num_workers": 1, "persistent_workers": True} if isinstance(dataset, Counting) else {}
    workers = {"num_workers": 1, "prefetch_factor": 2, "persistent_workers": persistent}
    with fl.DataLoader(**how, **workers) as reading, fl.DataLoader(**how, **apart) as restored:
        expected = fl.DataLoader(**how)
        for moment in moments(type(dataset).__name__):
            sweep, interrupt, states = values(expected), Interrupt(moment), []

            def then(got, states=states):
                states.append((len(got), json.dumps(reading.state_dict())))

            got = received_after_interrupt(lambda: iter(reading), interrupt, then)
            assert values(got) == sweep, interrupt.where
            for count, saved in states:
                restored.load_state_dict(json.loads(saved))
                assert values(restored) == sweep[count:], interrupt.where
            if interrupt.where is None:
                break
        assert reading.stats().workers[0].restarts == 0


def test_in_any_order(tmp_path):
    """Each batch is delivered once, as it becomes ready, and the state records which ones were."""
    for moment in moments("any order", 5 * STRIDE):
        how = {"dataset": Plain(13), "batch_size": 2, "seed": 1}
        with fl.DataLoader(num_workers=2, workers="thread", in_order=False, **how) as reading:
            interrupt, states = Interrupt(moment), []

            def then(got, reading=reading, states=states):
                states.append((content(got), json.dumps(reading.state_dict())))

            got = received_after_interrupt(lambda reading=reading: iter(reading), interrupt, then)
        assert collections.Counter(content(got)) == collections.Counter(content(fl.DataLoader(**how)))
        for before, saved in states:
            restored = fl.DataLoader(**how)
            restored.load_state_dict(json.loads(saved))
            assert collections.Counter(before + content(restored)) == collections.Counter(content(got))
        if interrupt.where is None:
            break


SOURCES = {
    "arrays": {},
    "whole windows": {"shuffle": fl.Window(chunks=2)},
    "in order": {"shuffle": False},
    "lanes": {"truncation_length": 2},
    "transforms": {"transforms": [items.doubled]},
    "copied ahead": {"copied": True},
    "CNTK's order": {"order": "cntk"},
}


def source_of(name, path):
    """A source over a text, whose chunks are read by threads, or over arrays."""
    how = dict(SOURCES[name])
    if how.pop("copied", False):
        source = fl.MinibatchSource(fl.ArrayDeserializer(x=np.arange(14.0).reshape(7, 2)), seed=3, max_sweeps=2)
        copy_ahead_of(source).threshold = 0
        return source
    corpus = fl.CTFDeserializer(path, x=fl.Stream(1), chunk_size=30)
    return fl.MinibatchSource(corpus, seed=3, max_sweeps=2, **how)


class OneByOne:
    """`next_minibatch` as an iterator."""

    def __init__(self, source):
        self.source = source

    def __iter__(self):
        return self

    def __next__(self):
        minibatch = self.source.next_minibatch(4)
        if minibatch._ended:  # a method would add a moment after the last delivery
            raise StopIteration
        return minibatch


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "data.ctf"
    path.write_text("".join(f"{i} |x {i + k}\n" for i in range(7) for k in range(1 + i % 3)))
    return str(path)


@pytest.mark.parametrize("way", ["next_minibatch", "minibatches", pytest.param("device", marks=needs_torch)])
@pytest.mark.parametrize("name", SOURCES)
def test_a_source(name, way, text):
    def reader(source):
        if way == "next_minibatch":
            return OneByOne(source)
        return source.minibatches(4, device="cpu" if way == "device" else None)

    def bytes_of(minibatches):
        return [(m.position, m.ids.tolist(), m["x"].rows.tobytes()) for m in minibatches]

    with source_of(name, text) as source:
        expected = bytes_of(reader(source))
    for moment in moments(f"{name}, {way}", 4 * STRIDE):
        interrupt, states = Interrupt(moment), []
        with source_of(name, text) as source:
            got = []

            def then(now, source=source, got=got, states=states):
                states.append((len(got) + len(now), json.dumps(source.state_dict())))

            # An interrupted generator has ended, so the next one continues at the source's position.
            while True:
                now, iterator = [], reader(source)
                try:
                    while True:
                        with interrupt:
                            now.append(next(iterator))
                except KeyboardInterrupt:
                    then(now)
                    got += now
                except StopIteration:
                    got += now
                    break
            assert bytes_of(got) == expected, interrupt.where
        for count, saved in states:
            with source_of(name, text) as restored:
                restored.load_state_dict(json.loads(saved))
                assert bytes_of(reader(restored)) == expected[count:], interrupt.where
        if interrupt.where is None:
            break
