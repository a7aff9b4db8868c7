"""What does a first sweep over CTF files cost, index and packing included?

Peer: our own parse of the same bytes (`CTFDeserializer.read`, chunk by chunk, index warm). Unit: MB of text a second
of processor time, all threads counted, so also MB/s a core. Measured: cold index, parse, shuffle in the default
windows, minibatches of 256 samples, one sweep. CNTK 2.7 does about 215 MB/s a core on dense text and 55 on sparse,
measured on other machines with its own reader. Also: the sweep over text that was evicted from the page cache, on
the wall clock.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import feedline as fl
from benchmarks import data
from benchmarks.disk import coldly
from benchmarks.harness import Answer, Stage, compare, race

CNTK = {"mnist": 215, "one-hot": 55}


def run(stage: Stage) -> list[Answer]:
    """Dense and sparse text."""
    answers = []
    for kind, elsewhere in CNTK.items():
        text = data.TEXTS[kind]
        path = data.ctf_file(stage, kind, stage.size(192 << 20, 1 << 20))
        ran = race({"sweep": sweep(path, text), "parse": parse(path, text)}, stage.rounds(5), "process")
        answer = compare(ran, "sweep", "parse", f"CTF end to end, {text.name}", "MB/s a core", 1e-6, 0.3)
        wall = ran.rate("sweep", "wall") * 1e-6
        note = f"{wall:.0f} MB/s on the wall clock; CNTK 2.7, measured elsewhere: about {elsewhere} MB/s a core"
        answers.append(dataclasses.replace(answer, note=note))
        question = f"CTF end to end, {text.name}"
        answers.append(coldly(stage, question, "MB/s", sweep(path, text), path, scale=1e-6))
    return answers


def sweep(path: Path, text: data.Text):  # type: ignore[no-untyped-def]
    """Return a contender: index, then one shuffled sweep in minibatches of 256 samples."""

    def feed() -> float:
        source = fl.MinibatchSource(fl.CTFDeserializer(path, text.streams, cache=False), max_sweeps=1)
        with source:
            for _ in source.minibatches(256):
                pass
        return path.stat().st_size

    return feed


def parse(path: Path, text: data.Text):  # type: ignore[no-untyped-def]
    """Return a contender: every chunk once, with a warm index."""
    corpus = fl.CTFDeserializer(path, text.streams)

    def read() -> float:
        for chunk in range(len(corpus.chunks())):
            corpus.read(chunk)
        return path.stat().st_size

    return read
