"""The steps of the demo: write the words, train, kill -9, resume, compare with an uninterrupted run, feed a large file.

Two comparisons: the minibatches, with a pass that was never interrupted; and the parameters that several ranks end
with, with those of a single one that was never interrupted. Their logs are compared on a page, too.

Everything it makes is in a single folder, which is removed when it ends, however it ends.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feedline.cli.console import show_bytes, show_count
from feedline.errors import DataError, WorkerError

from .ledger import Digest, columns_of, digest, merge, read_ledger
from .processes import Child
from .view import View
from .words import CLASSES, Corpora, open_source, read_words, repeat_file, write_corpora

TRAIN, LARGE = "feedline_demo.train", "feedline_demo.large"
_REPLAY_SIZE = 1500
#: Tolerance between the parameters of several ranks and of one. Both sum the same gradients, in another order:
#: differences begin in the 8th digit, and Adam, which divides by tiny numbers, lets them grow from step to step.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Settings:
    """The sizes of the demo.

    Attributes:
        sweeps: number of sweeps over the words.
        size: size of a minibatch before the interruption, in letters.
        resumed_size: size of a minibatch after the interruption, in letters.
        workers: number of ranks after the interruption.
        every: number of minibatches from checkpoint to checkpoint.
        hidden: number of units of the LSTM.
        large_bytes: bytes of the large file. 0: no large file.
        large_seconds: seconds for which it is fed, at most.
        words: number of words of the dictionary, evenly spread. None: all.
        seed: seed of order and weights.
        replay_seed: seed of the run to compare with. Any other than ``seed`` has to be detected.
    """

    sweeps: int = 6
    size: int = 2048
    resumed_size: int = 3072
    workers: int = 2
    every: int = 50
    hidden: int = 64
    large_bytes: int = 2_000_000_000
    large_seconds: float = 20.0
    words: int | None = None
    seed: int = 7
    replay_seed: int = 7


QUICK = Settings(
    sweeps=1, size=4096, resumed_size=6144, every=20, large_bytes=200_000_000, large_seconds=4.0, words=60_000
)
#: Folders of the logs in the demo's own.
INTERRUPTED, UNINTERRUPTED = "interrupted", "uninterrupted"


@dataclass
class Outcome:
    """The result, in JSON types.

    Attributes:
        settings: as given.
        corpus: counts of words and letters, bytes of text.
        losses: by phase ("killed", "resumed") rows of (samples on the axis, mean loss of the minibatch).
        killed, resumed: figures of the phases.
        proof: fingerprints and digests of both streams, and whether they agree.
        agreement: distance of the ranks' parameters from one rank's, and whether it is within the tolerance.
        large: figures of the large file; None without one.
        seconds: wall time of everything.
    """

    settings: dict[str, Any]
    corpus: dict[str, Any]
    losses: dict[str, list[tuple[int, float]]]
    killed: dict[str, Any]
    resumed: dict[str, Any]
    proof: dict[str, Any]
    agreement: dict[str, Any]
    large: dict[str, Any] | None
    seconds: float

    @property
    def identical(self) -> bool:
        """Whether the interrupted stream is the uninterrupted one."""
        return bool(self.proof["identical"])

    @property
    def agrees(self) -> bool:
        """Whether all ranks ended with one model, the same as one rank's within the tolerance."""
        return bool(self.agreement["agrees"])

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)


def run(settings: Settings, out: Path, view: View) -> Outcome:
    """Run the whole demo.

    Raises:
        DataError: no room on the disk.
        WorkerError: a process failed, or could not be killed in time.
    """
    began = time.perf_counter()
    with work_folder(out, settings.large_bytes) as folder:
        corpora = prepare(settings, folder, view)
        with open_source(corpora.train, settings.seed, settings.sweeps) as source:
            total = source.num_samples * settings.sweeps
            facts = {
                "train_words": corpora.train_words,
                "held_out_words": corpora.held_out_words,
                "letters": source.num_samples,
                "bytes": corpora.train.stat().st_size,
                "chunks": len(source.corpus.chunks()),
            }
        view.say(
            f"{show_count(corpora.train_words)} words to train on, {show_count(corpora.held_out_words)} held out; "
            f"{show_bytes(facts['bytes'])} of text in {facts['chunks']} chunks"
        )
        killed = train_and_kill(settings, folder, corpora, total, view)
        resumed = resume(settings, folder, corpora, total, view)
        agreement = agree(settings, folder, corpora, (total, resumed["checkpoint_words"]), view)
        proof = prove(settings, folder, corpora, resumed, view)
        large = None
        if settings.large_bytes:
            large = feed_large(settings, folder, corpora, view)
        for name in ("run.jsonl", "network.svg"):
            if (folder / "checkpoints" / name).exists():  # the picture is drawn only where dot is installed
                shutil.copy(folder / "checkpoints" / name, out)
        for name in (INTERRUPTED, UNINTERRUPTED):
            (out / name).mkdir(exist_ok=True)
            shutil.copy(_checkpoints(folder, name) / "run.jsonl", out / name)
    losses = {"killed": killed.pop("losses"), "resumed": resumed.pop("losses")}
    seconds = time.perf_counter() - began
    return Outcome(asdict(settings), facts, losses, killed, resumed, proof, agreement, large, seconds)


@contextlib.contextmanager
def work_folder(out: Path, large_bytes: int) -> Iterator[Path]:
    """Yield a temporary folder in ``out``; remove it, and those of demos that were killed."""
    out.mkdir(parents=True, exist_ok=True)
    for left in out.glob("work-*"):
        if not Path(f"/proc/{left.name.removeprefix('work-')}").exists():
            shutil.rmtree(left, ignore_errors=True)
    # The text, its index, and the small files.
    needed, free = int(1.3 * large_bytes) + (100 << 20), shutil.disk_usage(out).free
    if free < needed:
        raise DataError(
            f"expected {show_bytes(needed)} of room for the large file, got {show_bytes(free)}",
            path=str(out),
            hint="--quick needs less; --out puts it elsewhere",
        )
    folder = out / f"work-{os.getpid()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def prepare(settings: Settings, folder: Path, view: View) -> Corpora:
    """Read the dictionary and write it as CTF."""
    view.say("reading the CMU Pronouncing Dictionary and writing it as CTF")
    words = {word: n for word, n in read_words().items() if n < CLASSES}
    if settings.words is not None:
        words = dict(itertools.islice(words.items(), 0, None, max(1, len(words) // settings.words)))
    return write_corpora(folder, words)


def train_and_kill(settings: Settings, folder: Path, corpora: Corpora, total: int, view: View) -> dict[str, Any]:
    """Train in one process for half of ``total`` samples, and kill it with SIGKILL between two checkpoints."""
    losses, last = [], None
    with _trainer(settings, folder, corpora, 0, 1) as child, view.stage("training, one process") as show:
        for message in child.messages():
            if "step" not in message:
                continue
            last = message
            losses.append((message["samples"], message["loss"]))
            show(message["samples"] / total, f"loss {message['loss']:.3f}")
            since = message["step"] % settings.every
            if message["samples"] >= total // 2 and message["step"] > settings.every and since >= settings.every // 2:
                child.kill()
                break
    if last is None or child.process.returncode != -9:
        raise WorkerError("expected to kill the training process halfway, but it had ended before; train longer")
    view.say(f"kill -9 after {last['step']} minibatches of {settings.size}, {last['samples'] / total:.0%} of the way")
    return {"losses": losses, "steps": last["step"], "samples": last["samples"], **_speed(last)}


def resume(settings: Settings, folder: Path, corpora: Corpora, total: int, view: View) -> dict[str, Any]:
    """Resume from the checkpoint in several processes, with minibatches of another size, to the end."""
    losses, last, resumed, accuracy = [], None, None, None
    results: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        world = settings.workers
        children = [stack.enter_context(_trainer(settings, folder, corpora, rank, world)) for rank in range(world)]
        show = stack.enter_context(view.stage(f"training on, {world} processes"))
        for message in children[0].messages(others=children[1:]):
            if "resumed" in message:
                resumed = message
            elif "step" in message:
                last = message
                losses.append((message["samples"], message["loss"]))
                show(message["samples"] / total, f"loss {message['loss']:.3f}")
            elif "accuracy" in message:
                accuracy = message["accuracy"]
            else:
                results.append(message["result"])
        for child in children[1:]:
            results.extend(message["result"] for message in child.messages() if "result" in message)
    if resumed is None or last is None or accuracy is None or len(results) != world:
        raise WorkerError("expected every rank to resume from the checkpoint and to end with a result")
    view.say(
        f"resumed from the checkpoint at {resumed['resumed'] / total:.0%} with {world} ranks, minibatches of "
        f"{settings.resumed_size}, to the end"
    )
    return {
        "losses": losses,
        "checkpoint_samples": resumed["resumed"],
        "checkpoint_words": resumed["words"],
        "steps": last["step"],
        "samples": last["samples"],
        **_speed(last),
        "accuracy": accuracy,
        "states": [result["state"] for result in results],
        "peak_bytes_by_worker": [result["stats"]["peak_bytes"] for result in results],
    }


def agree(settings: Settings, folder: Path, corpora: Corpora, extent: tuple[int, int], view: View) -> dict[str, Any]:
    """Train without interruption in one process, with the same minibatches, and compare the parameters.

    Args:
        settings, folder, corpora, view: of the demo.
        extent: letters in all, and words before the checkpoint, from which on minibatches have their other size.
    """
    total, words = extent
    with (
        _trainer(settings, folder, corpora, 0, 1, other_size_from=words) as child,
        view.stage("the same, one process, never interrupted") as show,
    ):
        for message in child.messages():
            if "step" in message:
                show(message["samples"] / total, f"loss {message['loss']:.3f}")
    one = _parameters(folder, "alone-0-of-1")
    workers = [_parameters(folder, f"train-{rank}-of-{settings.workers}") for rank in range(settings.workers)]
    equal = all(np.array_equal(worker[name], workers[0][name]) for worker in workers for name in one)
    difference = max(float(np.abs(workers[0][name] - one[name]).max()) for name in one)
    return {
        "workers_equal": equal,
        "difference": difference,
        "tolerance": TOLERANCE,
        "largest_parameter": max(float(np.abs(values).max()) for values in one.values()),
        "agrees": equal and difference <= TOLERANCE,
    }


def prove(settings: Settings, folder: Path, corpora: Corpora, resumed: dict[str, Any], view: View) -> dict[str, Any]:
    """Compare what the two runs delivered with one pass that was never interrupted."""
    until = resumed["checkpoint_samples"]
    before = digest(record.columns for record in read_ledger(_ledger(folder, 0, 1), until))
    parts = [read_ledger(_ledger(folder, rank, settings.workers)) for rank in range(settings.workers)]
    interrupted = digest(
        itertools.chain(
            (record.columns for record in read_ledger(_ledger(folder, 0, 1), until)),
            merge(parts),
        )
    )
    whole = Digest()
    with (
        open_source(corpora.train, settings.replay_seed, settings.sweeps) as source,
        view.stage("the same without interruption") as show,
    ):
        total = source.num_samples * settings.sweeps
        for minibatch in source.minibatches(_REPLAY_SIZE, partition=(0, 1)):
            whole.update(columns_of(minibatch))
            show(source.position.samples / total, "")
        fingerprint = source.state_dict()["fingerprint"]
    states = resumed["states"]
    fingerprints = sorted({state["fingerprint"] for state in states})
    return {
        "sequences_before": before.sequences,
        "sequences": interrupted.sequences,
        "sequences_uninterrupted": whole.sequences,
        "fingerprint": ", ".join(fingerprints),
        "fingerprint_uninterrupted": fingerprint,
        "digest": interrupted.hexdigest(),
        "digest_uninterrupted": whole.hexdigest(),
        "states_equal": all(state == states[0] for state in states),
        "identical": fingerprints == [fingerprint]
        and interrupted.hexdigest() == whole.hexdigest()
        and interrupted.sequences == whole.sequences
        and all(state == states[0] for state in states),
    }


def feed_large(settings: Settings, folder: Path, corpora: Corpora, view: View) -> dict[str, Any]:
    """Feed a file much larger than the window from the disk: how fast, and how much does private memory grow?"""
    path = folder / "large.ctf"
    view.say(
        f"writing a CTF file of {show_bytes(settings.large_bytes)} from the same words, and feeding it from the disk"
    )
    repeat_file(corpora.train, path, settings.large_bytes)
    argument = {"path": str(path), "seconds": settings.large_seconds, "seed": settings.seed, "size": settings.size}
    result: dict[str, Any] = {}
    with (
        Child(LARGE, json.dumps(argument), folder / "large.log") as child,
        view.stage("feeding the large file") as show,
    ):
        for message in child.messages():
            if "indexed" in message:
                show(0.0, f"indexing {message['indexed']:.0%}")
            elif "done" in message:
                show(message["done"], "")
            else:
                result = message["result"]
    if not result:
        raise WorkerError("expected figures of the large file, got none")
    return result


def _trainer(
    settings: Settings, folder: Path, corpora: Corpora, rank: int, world: int, other_size_from: int = 0
) -> Child:
    """Start a rank.

    With ``other_size_from`` it is one that is never interrupted: it begins anew, and its minibatches have the size of
    the resumed ones from this number of words on.
    """
    alone = other_size_from > 0
    name = f"{'alone' if alone else 'train'}-{rank}-of-{world}"
    job = {
        "train": str(corpora.train),
        "held_out": str(corpora.held_out),
        "checkpoints": str(_checkpoints(folder, UNINTERRUPTED if alone else INTERRUPTED)),
        "ledger": str(folder / "ledger-alone" if alone else _ledger(folder, rank, world)),
        "size": settings.resumed_size if world > 1 else settings.size,
        "other_size": settings.resumed_size,
        "other_size_from": other_size_from,
        "sweeps": settings.sweeps,
        "every": settings.every,
        "seed": settings.seed,
        "hidden": settings.hidden,
        "rank": rank,
        "world": world,
        "rendezvous": str(folder.absolute() / "rendezvous"),
        "parameters": str(folder / f"{name}.npz"),
    }
    # The rendezvous is on loopback, whatever the machine's name resolves to.
    env = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return Child(TRAIN, json.dumps(job), folder / f"{name}.log", env)


def _parameters(folder: Path, name: str) -> dict[str, Any]:
    with np.load(folder / f"{name}.npz") as found:
        return dict(found)


def _checkpoints(folder: Path, name: str) -> Path:
    return folder / ("checkpoints" if name == INTERRUPTED else f"checkpoints-{name}")


def _ledger(folder: Path, rank: int, world: int) -> Path:
    return folder / f"ledger-{rank}-of-{world}"


def _speed(last: dict[str, Any]) -> dict[str, Any]:
    return {
        "words": last["words"],
        "seconds": last["seconds"],
        "words_per_second": last["words"] / last["seconds"],
        "data_share": last["data_seconds"] / last["seconds"],
        "peak_bytes": last["stats"]["peak_bytes"],
    }
