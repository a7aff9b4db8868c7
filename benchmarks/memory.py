"""How much private memory does reading a corpus take that is larger than the window?

Limit: the decoded bytes of two shuffle windows (at least 64 MiB for the second), plus 150 MB. Unit: MB of private
memory (anonymous and shared pages, `RssAnon` + `RssShmem`) of a fresh process at its peak, interpreter and libraries
included. Pages of mapped files, which the kernel takes back at will, are given apart. Measured: 4 GB of CTF text
(one-hot sequences, the most index entries a byte) and a 4 GB store, read shuffled for 20 s, sampled every 20 ms, and
the store once more, evicted from the page cache before, in windows. Also: bytes of index a sequence, on disk and
mapped.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import feedline as fl
from benchmarks import data
from benchmarks.disk import WINDOW, evict
from benchmarks.harness import Answer, Stage, Target

SLACK = 150e6


def run(stage: Stage) -> list[Answer]:
    """Text, then store."""
    seconds = 2 if stage.quick else 20
    text = data.ctf_file(stage, "one-hot", stage.size(4 << 30, 8 << 20))
    began = time.monotonic()
    fl.CTFDeserializer(text, data.ONE_HOT.streams).close()
    indexing = time.monotonic() - began
    ctf = watch("ctf", text, seconds)
    (index,) = text.parent.glob(f"{text.name}.*.feedline-index")
    entries = index.stat().st_size / ctf["sequences"]
    store = watch("store", data.dense_store(stage), seconds)
    evict(data.dense_store(stage))
    cold = watch("windows", data.dense_store(stage), seconds)
    size = f"{text.stat().st_size / 1e9:.1f} GB"
    answers = [
        Answer(
            question=f"private memory, {size} of CTF",
            unit="MB",
            ours=ctf["private"] / 1e6,
            peer="window + read-ahead + 150 MB",
            peer_value=ctf["limit"] / 1e6,
            target=Target("ours", "<=", ctf["limit"] / 1e6),
            note=said(ctf) + f"; indexing took {indexing:.1f} s",
            detail=ctf,
        ),
        Answer(
            question=f"private memory, {data.dense_rows(stage) * 3144 / 1e9:.1f} GB store",
            unit="MB",
            ours=store["private"] / 1e6,
            peer="read-ahead + 150 MB",
            peer_value=store["limit"] / 1e6,
            target=Target("ours", "<=", store["limit"] / 1e6),
            note=said(store),
            detail=store,
        ),
        Answer(
            question=f"private memory, {data.dense_rows(stage) * 3144 / 1e9:.1f} GB store, evicted, in windows",
            unit="MB",
            ours=cold["private"] / 1e6,
            peer="two windows + 150 MB",
            peer_value=cold["limit"] / 1e6,
            target=Target("ours", "<=", cold["limit"] / 1e6),
            note=said(cold),
            detail=cold,
        ),
        Answer(
            question="CTF index",
            unit="B a sequence",
            ours=entries,
            target=Target("ours", "<=", 24.01, "24 B"),
            note=f"{ctf['sequences']:,} sequences, {index.stat().st_size / 1e6:.0f} MB, mapped; header and a row "
            "a chunk come on top",
        ),
    ]
    index.unlink()
    text.unlink()
    return answers


def said(found: dict[str, float]) -> str:
    """Return the figures besides the peak."""
    return (
        f"{found['start'] / 1e6:.0f} MB before opening; chunks held at most {found['held'] / 1e6:.0f} MB, "
        f"file-backed pages {found['file'] / 1e6:.0f} MB; {found['samples']:,} samples read"
    )


def watch(kind: str, path: Path, seconds: float) -> dict[str, float]:
    """Start a reader in a fresh process and watch its memory from here until it ends."""
    return watch_command("benchmarks.memory", kind, str(path), str(seconds))


def watch_command(*command: str) -> dict[str, float]:
    """Run a module with arguments in a fresh process, and return the figures that it prints, and its peak of memory."""
    with subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True) as process:
        peak = {"private": 0, "file": 0}
        while process.poll() is None:
            for name, value in usage(process.pid).items():
                peak[name] = max(peak[name], value)
            time.sleep(0.02)
        assert process.stdout is not None
        said = process.stdout.read()
    if process.returncode != 0:
        raise RuntimeError(f"the reading process failed with exit code {process.returncode}")
    return {**json.loads(said), **peak}


def usage(pid: int | str) -> dict[str, int]:
    """Return the bytes of private and of file-backed memory of a process. Zeros once it is gone."""
    found = {}
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            key, _, rest = line.partition(":")
            if key.startswith("Rss"):
                found[key] = int(rest.split()[0]) * 1024
    except (OSError, ValueError):
        pass
    return {
        "private": found.get("RssAnon", 0) + found.get("RssShmem", 0),
        "file": found.get("RssFile", 0),
    }


def read(kind: str, path: str, seconds: float) -> dict[str, float]:
    """Feed for a while in the fresh process, and print the limit."""
    start = usage("self")["private"]
    corpus: fl.Deserializer
    corpus = fl.CTFDeserializer(path, data.ONE_HOT.streams) if kind == "ctf" else fl.StoreDeserializer(path)
    source = fl.MinibatchSource(corpus, shuffle=fl.Window(bytes=WINDOW) if kind == "windows" else True)
    window = float(WINDOW) if kind == "windows" else 0.0
    samples = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        samples += source.next_minibatch(256).num_samples
    if not (corpus.capability(fl.RandomAccess) is not None):
        # What the window's stored bytes become when they are decoded, by the average of a chunk.
        infos = corpus.chunks()
        decoded = corpus.read(0).nbytes / infos[0].bytes
        from feedline.feed.reading.reader_factory import DEFAULT_WINDOW

        assert DEFAULT_WINDOW.bytes is not None
        window = min(DEFAULT_WINDOW.bytes, sum(info.bytes for info in infos)) * decoded
    from feedline.feed.reading.reader import MIN_AHEAD_BYTES

    return {
        "start": start,
        "limit": window + max(window, MIN_AHEAD_BYTES) + SLACK,
        "held": source.stats().peak_bytes,
        "samples": samples,
        "sequences": source.num_sequences,
    }


if __name__ == "__main__":
    print(json.dumps(read(sys.argv[1], sys.argv[2], float(sys.argv[3]))))
