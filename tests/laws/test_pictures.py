"""The law of pictures: augmented pictures have the same bits for any threads, sizes, ranks and restarts.

The test compares one hash of all pictures of a sweep. FEEDLINE_PICTURES sets their number (150), FEEDLINE_KILLS how
often the loop is killed (2). The law has been tested with 10,000 and 50.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import feedline as fl
from feedline import images
from tests.warm import Python

pytest.importorskip("PIL", reason="Pillow is not installed")

from feedline_demo import pictures as made

PICTURES = int(os.environ.get("FEEDLINE_PICTURES", "150"))
KILLS = int(os.environ.get("FEEDLINE_KILLS", "2"))
THREADS, SIZES, WORLDS = (1, 2, 7), (1, 64), (1, 3, 8)


def make_source(folder, threads, seed=7):
    """Create the source of one run. Runs differ only in the number of threads."""
    steps = [
        images.RandomResizedCrop(24),
        images.Flip(0.5),
        images.ColorJitter(0.4, 0.4, 0.4, 0.1),
        images.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225], layout="CHW"),
    ]
    streams = {"image": fl.Stream(dtype="bytes", field="jpg"), "label": fl.Stream((), "int64", field="cls")}
    corpus = fl.open_corpus(folder, streams=streams)
    return fl.MinibatchSource(
        corpus,
        seed=seed,
        max_sweeps=1,
        threads=1 + threads % 2,
        transforms=[images.Decode("image", *steps, threads=threads)],
    )


def digests(minibatch):
    """Number, label and a digest of the pixels of each picture, in order."""
    rows = np.ascontiguousarray(minibatch["image"].rows)
    labels = minibatch["label"].rows.tolist()
    return [
        (number, label, hashlib.blake2b(row.tobytes(), digest_size=8).hexdigest())
        for number, label, row in zip(minibatch.ids.tolist(), labels, rows, strict=True)
    ]


def hash_of(items):
    """One hash of pictures in their order."""
    return hashlib.blake2b(json.dumps(items).encode(), digest_size=16).hexdigest()


def whole_sweep(folder, threads, size, world):
    """The pictures of a sweep, as the ranks take them one after the other."""
    parts = []
    for rank in range(world):
        with make_source(folder, threads) as source:
            parts.append([digests(m) for m in source.minibatches(size, partition=(rank, world))])
    assert len({len(part) for part in parts}) == 1
    return [item for step in zip(*parts, strict=True) for part in step for item in part]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    made.write_tar(folder, made.pictures(PICTURES, seed=3, sides=(28, 80)), shards=4)
    return folder


@pytest.fixture(scope="module")
def expected(folder):
    items = whole_sweep(folder, 1, 16, 1)
    assert sorted(number for number, _, _ in items) == list(range(PICTURES))
    assert len({digest for _, _, digest in items}) > PICTURES * 0.99
    return hash_of(items)


@pytest.mark.parametrize(("threads", "size", "world"), [*itertools.product(THREADS, SIZES, WORLDS)])
def test_threads_sizes_and_ranks_change_no_bit(folder, expected, threads, size, world):
    assert hash_of(whole_sweep(folder, threads, size, world)) == expected


def test_another_seed_draws_other_numbers(folder, expected):
    with make_source(folder, 1) as one, make_source(folder, 1, seed=8) as other:
        pixels = [{item[0]: item[2] for m in source.minibatches(16) for item in digests(m)} for source in (one, other)]
    assert pixels[0].keys() == pixels[1].keys()
    assert sum(pixels[0][number] == pixels[1][number] for number in pixels[0]) < PICTURES * 0.01


def deliver(folder, path, threads, size):
    """Continue from the state in ``path`` to the end. State and pictures are saved in one step per minibatch."""
    state, items = None, []
    if path.exists():
        state, items = json.loads(path.read_text())
    with make_source(folder, threads) as source:
        if state is not None:
            source.load_state_dict(state)
        for minibatch in source.minibatches(size):
            items += digests(minibatch)
            new = path.with_suffix(".new")
            new.write_text(json.dumps([source.state_dict(), items]))
            os.replace(new, path)


def delivered_by(path):
    """The pictures delivered so far, as `digests` gives them."""
    return [tuple(item) for item in json.loads(path.read_text())[1]] if path.exists() else []


@pytest.mark.slow
def test_kills_change_no_bit(folder, expected, tmp_path):
    rng, path = random.Random(1), tmp_path / "record.json"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for kill in range(KILLS + 1):
        threads, size = rng.choice(THREADS), rng.choice([1, 5, 16, 64]) if kill == KILLS else rng.choice([1, 2])
        command = ["-m", "tests.laws.test_pictures", str(folder), str(path), str(threads), str(size)]
        process = Python(command, env=environment, stderr=subprocess.PIPE, text=True)
        if kill < KILLS:
            before = len(delivered_by(path))
            while process.poll() is None and len(delivered_by(path)) == before:
                time.sleep(0.002)
            time.sleep(rng.random() * 0.05)
            process.send_signal(signal.SIGKILL)
        _, errors = process.communicate(timeout=300)
        assert process.returncode == (0 if kill == KILLS else -signal.SIGKILL), errors
    assert hash_of(delivered_by(path)) == expected


if __name__ == "__main__":
    deliver(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
