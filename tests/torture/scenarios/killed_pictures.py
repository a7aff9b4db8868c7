"""Pictures of all kinds, some damaged or cut, decoded and augmented by feeds that are killed at random instants."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
from feedline_demo import pictures

import feedline as fl
from feedline import images
from tests.torture import data
from tests.torture.case import Case
from tests.torture.damage import mutated
from tests.torture.restarts import commit, committed
from tests.torture.scenario import Scenario
from tests.torture.scenarios.killed_feeds import delivered, listed_in
from tests.torture.victims import Victim, draw, run

COUNT = 60
WORDS = (b"\xff\xd8", b"\xff\xd9", b"\xff\xda", b"\xff\xc0", b"\xff\xc2", b"\xff\xc4", b"\xff\xdb", b"\xff\xdd\x00\x04")
WORDS += (b"\xff\xe1", b"\xff\xee", b"\xff\x00", b"\xff\xff", b"\x00\x00", b"Adobe", b"Exif\x00\x00", b"IDAT", b"IHDR")
NORMALIZE = images.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4), layout="CHW")
STEPS = (
    (images.RandomResizedCrop(24), images.Flip(0.5)),
    (images.Resize((40, 40)), images.RandomCrop(24), images.ColorJitter(0.4, 0.4, 0.4, 0.1)),
    (images.RandomResizedCrop(24, scale=(0.2, 1.0)), images.Flip(0.5), NORMALIZE),
    (images.Resize((24, 24)), NORMALIZE),
)


class KilledPictures(Scenario):
    """All starts together deliver the pixels of an uninterrupted feed that decodes one picture at a time."""

    name = "killed-pictures"
    asks = "are augmented pictures the same bits after kills, damaged ones among them?"
    seconds = 120.0

    def missing(self) -> str | None:
        return None if importlib.util.find_spec("PIL") else "Pillow is not installed"

    def run(self, case: Case) -> None:
        kind = case.number % len(STEPS)
        folder, listed = case.folder / "pictures", case.folder / "quarantine.jsonl"
        write(folder, case.rng)
        slowly = {"threads": 1, "read_ahead": 0}
        with make(kind, folder, case.folder / "expected.jsonl", 1, **slowly) as source:
            expected = [item for minibatch in source.minibatches(1) for item in items_of(minibatch)]
        unreadable = listed_in(case.folder / "expected.jsonl")
        case.tally("unreadable", len(unreadable))
        # What is damaged elsewhere than in the crop of a sweep may be readable in that sweep.
        if {i for i, _ in expected} | unreadable != set(range(COUNT)) or len(expected) < 2 * (COUNT - len(unreadable)):
            case.fail("lost", f"never killed: {len(expected)} pictures of 2 x {COUNT}, {len(unreadable)} unreadable")
        path = case.folder / "record"
        seconds, operations = 0.1, 60
        for _ in range(case.rng.randint(2, 6)):
            instant = draw(case.rng, seconds, operations)
            victim = Victim(case, deliver, kind, folder, path, listed, case.rng.random(), instant=instant)
            ended = victim.wait()
            case.tally("kills", int(ended.hit))
            if ended.error is not None and not ended.hit:
                case.fail("lost" if ended.promised else "foreign", ended.error)
            elif ended.error is not None and ended.kind != "KeyboardInterrupt":
                case.fail("foreign", f"{victim.told()}: {ended.error}")
            elif not ended.hit and ended.error is None:
                break
        run(case, "going on", deliver, kind, folder, path, listed, case.rng.random())
        case.compare(f"steps {kind}", expected, delivered(path))
        if (found := listed_in(listed)) != unreadable:
            case.fail("lost", f"expected {sorted(unreadable)} in the quarantine list, got {sorted(found)}")


def write(folder: Path, rng: random.Random) -> None:
    """Small pictures of all kinds in two shards, a third of them changed, cut or none at all."""
    some = list(pictures.pictures(COUNT, seed=rng.randrange(1 << 32), sides=(16, 72)))
    for i, picture in enumerate(some):
        luck = rng.random()
        if luck < 0.2:
            content, _ = mutated(rng, picture.data, some[i - 1].data, WORDS)
        elif luck < 0.3:
            content = picture.data[: rng.randrange(len(picture.data))]
        elif luck < 0.33:
            content = rng.choice([b"", b"\xff\xd8\xff", b"no picture", picture.data[2:]])
        else:
            continue
        some[i] = picture._replace(data=content)
    pictures.write_tar(folder, some, shards=2)


def make(kind: int, folder: Path, listed: Path, decoding: int, **speed: Any) -> fl.MinibatchSource:
    """Create the feed of all starts, with ``decoding`` threads."""
    corpus = fl.open_corpus(
        folder, streams={"image": fl.Stream(dtype="bytes", field="jpg"), "label": fl.Stream((), "int64", field="cls")}
    )
    transforms = [images.Decode("image", *STEPS[kind], threads=decoding)]
    return fl.MinibatchSource(
        corpus, seed=kind, max_sweeps=2, transforms=transforms, on_error=fl.Quarantine(listed), **speed
    )


def items_of(minibatch: fl.Minibatch) -> list[data.Item]:
    """Return the number of each picture, and a digest of its pixels."""
    rows = np.asarray(minibatch["image"].rows)
    digests = (hashlib.blake2b(row.tobytes(), digest_size=8).hexdigest() for row in rows)
    return list(zip(minibatch.ids.tolist(), digests, strict=True))


def deliver(kind: int, folder: Path, path: Path, listed: Path, luck: float) -> None:
    """The loop of a start: from the position in ``path`` to the end. Every minibatch is committed with its state."""
    rng = random.Random(luck)
    with make(kind, folder, listed, rng.randint(1, 3), **data.speed(rng)) as source:
        state, length = committed(path)
        if state is not None:
            source.load_state_dict(state)
        with open(path, "ab") as file:
            file.truncate(length)
            while minibatch := source.next_minibatch(rng.choice([1, 5, 16, 40])):
                for item in items_of(minibatch):
                    file.write(json.dumps(item).encode() + b"\n")
                file.flush()
                commit(path, source.state_dict(), file.tell())
