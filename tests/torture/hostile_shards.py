"""Folders of shards with any of their bytes changed, in the index or in a shard, compressed or not."""

from __future__ import annotations

import shutil
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import feedline as fl
from tests.torture.case import Case
from tests.torture.damage import mutated
from tests.torture.hostile import Hostile

FIXTURES = Path(__file__).parents[1] / "fixtures"
WORDS = (
    *(b"\0" * 4, b"\xff" * 4, b"\xff\xff\xff\x7f", b"\x01\0\0\0", b"null", b"-1", b"99999999999999999999", b"1e999"),
    *(b"[" * 600, b"../", b"\\u0000", b"NaN", b"{}"),
)


class HostileShards(Hostile):
    """Reads or refuses.

    Attributes:
        fixtures: folder of the folders ``forms``.
        shards: pattern of the names of their shards.
        words: words that are written into them, in addition to other damage.
    """

    fixtures: ClassVar[Path]
    forms: ClassVar[tuple[str, ...]]
    shards: ClassVar[str]
    words: ClassVar[tuple[bytes, ...]]

    @abstractmethod
    def corpus(self, folder: Path, form: str) -> fl.Deserializer:
        """Open a folder, with streams of many kinds."""

    def guess(self, folder: Path, form: str) -> None:
        """Open a folder by its own description."""
        fl.open_corpus(folder)

    @abstractmethod
    def tell(self, folder: Path, shard: Path) -> None:
        """Update the index to describe the changed shard."""

    def original(self, case: Case) -> Callable[[], Any]:
        for form in self.forms:
            shutil.copytree(self.fixtures / form, case.folder / form)
        return lambda: [self.read(case.folder / form, form, "raise") for form in self.forms]

    def draw(self, case: Case, k: int) -> tuple[str, Callable[[], Any]]:
        rng = case.rng
        form = rng.choice((*self.forms, "raw", "raw", "raw"))
        folder = Path(shutil.copytree(case.folder / form, case.folder / f"case-{k}"))
        shards = sorted(folder.glob(self.shards))
        target = folder / "index.json" if rng.random() < 0.3 else rng.choice(shards)
        twin = rng.choice(shards).read_bytes()
        corpus = self.corpus(folder, form) if target.name != "index.json" and rng.random() < 0.2 else None
        size = target.stat().st_size
        text, how = mutated(rng, target.read_bytes(), twin, self.words)
        if corpus is not None:
            # Damaged after it was opened.
            target.write_bytes(text[:size].ljust(size, b"\0"))
            return f"{form}/{target.name}: {how}, in use", lambda: deliver(corpus, folder, "skip")
        target.write_bytes(text)
        if target.name != "index.json" and rng.random() < 0.8:
            self.tell(folder, target)  # else it would be refused for its size
        return f"{form}/{target.name}: {how}", lambda: self.read(folder, form, "skip")

    def read(self, folder: Path, form: str, on_error: str) -> None:
        """Read all of a folder."""
        deliver(self.corpus(folder, form), folder, on_error)
        self.guess(folder, form)


def deliver(corpus: fl.Deserializer, folder: Path, on_error: str) -> None:
    skipping: dict[str, Any] = {"on_error": fl.Quarantine(folder / "q.jsonl")} if on_error == "skip" else {}
    for minibatch in fl.MinibatchSource(corpus, max_sweeps=1, **skipping).minibatches(4):
        dict(minibatch.items())
