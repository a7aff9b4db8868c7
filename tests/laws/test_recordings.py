"""The law of recordings: decoded and cut at random from segments in buckets, they have the same bits for any threads,
sizes, ranks and restarts.

FEEDLINE_KILLS sets how often the loop is killed (2).
"""

from __future__ import annotations

import hashlib
import io
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
from feedline import audio
from tests.warm import Python

pytestmark = pytest.mark.frameworks("soundfile", "soxr")

SEGMENTS, RATE = 150, 8000
KILLS = int(os.environ.get("FEEDLINE_KILLS", "2"))
THREADS, SIZES, WORLDS = (1, 2, 7), (RATE, 6 * RATE), (1, 3, 8)
BUDGET = 6 * RATE


def write(folder):
    """Write recordings of several rates, and a manifest of segments of them. Of one recording the end is missing."""
    import soundfile

    rng, rows = np.random.default_rng(3), []
    for k in range(10):
        rate = (RATE, 16000)[k % 2]
        file = io.BytesIO()
        soundfile.write(file, (rng.standard_normal(8 * rate) * 0.1).astype(np.float32), rate, format="FLAC")
        data = file.getvalue()
        (folder / f"{k}.flac").write_bytes(data if k != 4 else data[: len(data) // 2])
        for i in range(SEGMENTS // 10):
            offset, duration = round(rng.uniform(0, 5), 3), round(rng.uniform(0.1, 2.5), 3)
            rows.append({"audio_filepath": f"{k}.flac", "offset": offset, "duration": duration, "text": f"{k} {i}"})
    (folder / "train.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "train.json"


def make_source(manifest, threads, seed=7):
    """Create the source of one run. Runs differ only in the number of threads."""
    corpus = fl.Bucketed(fl.NeMoDeserializer(manifest, rate=RATE), 4, budget=BUDGET)
    transforms = [audio.Decode("audio", RATE, threads=threads), audio.Crop("audio", 0.5, rate=RATE)]
    listed = fl.Quarantine(manifest.with_name("bad.jsonl"))
    return fl.MinibatchSource(corpus, seed=seed, max_sweeps=2, transforms=transforms, on_error=listed)


def digests(minibatch):
    """Number, text and a digest of the samples of each recording, in order."""
    sounds = minibatch["audio"].sequences()
    texts = minibatch["text"].tolist()
    return [
        (number, text, hashlib.blake2b(sound.tobytes(), digest_size=8).hexdigest())
        for number, text, sound in zip(minibatch.ids.tolist(), texts, sounds, strict=True)
    ]


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return write(tmp_path_factory.mktemp("recordings"))


@pytest.fixture(scope="module")
def expected(manifest):
    with make_source(manifest, 1) as source:
        items = [item for minibatch in source.minibatches(BUDGET) for item in digests(minibatch)]
    numbers = [number for number, _, _ in items]
    assert 2 * SEGMENTS * 0.9 <= len(items) < 2 * SEGMENTS
    assert len(set(numbers)) * 2 == len(numbers)
    assert len({digest for _, _, digest in items}) > len(items) * 0.8  # cut anew in each sweep
    return items


@pytest.mark.parametrize(("threads", "size", "world"), [*zip(THREADS * 2, SIZES * 3, WORLDS * 2, strict=True)])
def test_threads_sizes_and_ranks_change_no_bit(manifest, expected, threads, size, world):
    parts = []
    for rank in range(world):
        with make_source(manifest, threads) as source:
            parts.append([digests(m) for m in source.minibatches(size, partition=(rank, world))])
    assert [item for step in zip(*parts, strict=True) for part in step for item in part] == expected


@pytest.mark.parametrize("seed", range(4))
def test_other_worlds_and_sizes_continue_anywhere(manifest, expected, seed):
    rng = random.Random(seed)
    delivered, state = [], None
    while True:
        world, size, threads = rng.choice(WORLDS), rng.choice(SIZES), rng.choice(THREADS)
        sources = [make_source(manifest, threads) for _ in range(world)]
        for source in sources:
            if state is not None:
                source.load_state_dict(state)
        ended = False
        for _ in range(rng.randrange(1, 12)):
            parts = [source.next_minibatch(size, partition=(rank, world)) for rank, source in enumerate(sources)]
            if ended := not any(parts):
                break
            delivered += [item for part in parts for item in digests(part)]
        state = json.loads(json.dumps(sources[0].state_dict()))
        for source in sources:
            source.close()
        if ended:
            break
    assert delivered == expected


def deliver(manifest, path, threads, size):
    """Continue from the state in ``path`` to the end. State and digests are saved in one step per minibatch."""
    state, items = None, []
    if path.exists():
        state, items = json.loads(path.read_text())
    with make_source(manifest, threads) as source:
        if state is not None:
            source.load_state_dict(state)
        for minibatch in source.minibatches(size):
            items += digests(minibatch)
            new = path.with_suffix(".new")
            new.write_text(json.dumps([source.state_dict(), items]))
            os.replace(new, path)


def delivered_by(path):
    """What was delivered so far, as `digests` gives it."""
    return [tuple(item) for item in json.loads(path.read_text())[1]] if path.exists() else []


@pytest.mark.slow
def test_kills_change_no_bit(manifest, expected, tmp_path):
    rng, path = random.Random(1), tmp_path / "record.json"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for kill in range(KILLS + 1):
        threads, size = rng.choice(THREADS), rng.choice(SIZES)
        command = ["-m", "tests.laws.test_recordings", str(manifest), str(path), str(threads), str(size)]
        process = Python(command, env=environment, stderr=subprocess.PIPE, text=True)
        if kill < KILLS:
            before = len(delivered_by(path))
            while process.poll() is None and len(delivered_by(path)) == before:
                time.sleep(0.002)
            time.sleep(rng.random() * 0.05)
            process.send_signal(signal.SIGKILL)
        process.communicate(timeout=300)
    assert delivered_by(path) == expected


if __name__ == "__main__":
    deliver(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
