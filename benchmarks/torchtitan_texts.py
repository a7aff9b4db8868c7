"""How soon does torchtitan get its first batch from JSON Lines, and how many tokens a second after it?

Peer: torchtitan's own loader over the same files, which streams them through `datasets` without shuffling. Unit:
milliseconds on the wall from the constructor to the first batch; tokens a second of processor time, the opening and
what ours reads ahead included. Measured: 8 files
of 100 MB of English-like texts (seed 0), a BPE tokenizer of 8,000 tokens, batches of the tiny model, 8 rows of 2,048
tokens, without a model, whose step on a CPU takes longer than either loader. The index of the files is there, as from
the second run on. torchtitan contradicts the versions that the other questions need: it is measured in an environment
with the extra ``torchtitan``, by ``python -m benchmarks --only torchtitan_texts``.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Answer, Contender, Stage, compare, race
from benchmarks.loaders import alternated, sooner

ROWS, ROW, FILES = 8, 2048, 8


def run(stage: Stage) -> list[Answer]:
    """The first batch, then the rate."""
    question = "torchtitan's first batch of texts"
    if importlib.util.find_spec("torchtitan") is None:
        return [Answer(question, "ms", 0, "torchtitan: not installed", note="pip install '.[torchtitan]'")]
    folder = stage.data / "bench-torchtitan"
    write(folder, stage.size(100 << 20, 1 << 20))
    makes = loaders(folder)
    ours, peer = makes
    firsts = {name: lambda make=make: first(make) for name, make in makes.items()}  # type: ignore[misc]
    soon = sooner(alternated(firsts, stage.rounds(7)), ours, peer, question, at_most=0.5)
    count = 5 if stage.quick else 120
    contenders = {name: taking(make, count) for name, make in makes.items()}
    ran = race(contenders, stage.rounds(3), "process")
    return [soon, compare(ran, ours, peer, "torchtitan's batches of texts", "k tokens/s", 1e-3, at_least=1.0)]


def first(make: Callable[[], Any]) -> float:
    """Seconds to the first batch of a new loader."""
    began = time.perf_counter()
    loader = make()
    next(iter(loader))
    seconds = time.perf_counter() - began
    end(loader)
    return seconds


def taking(make: Callable[[], Any], count: int) -> Contender:
    """Batches of a new loader, which tokenizes them all in this turn."""

    def turn() -> float:
        loader = make()
        for _ in itertools.islice(loader, count):
            pass
        end(loader)
        return count * ROWS * ROW

    return turn


def end(loader: Any) -> None:
    """Close ours, so that it reads nothing during the peer's turn."""
    if hasattr(loader, "close"):
        loader.close()


def loaders(folder: Path) -> dict[str, Callable[[], Any]]:
    """Ours and torchtitan's own, as its trainer builds them."""
    from datasets import load_dataset
    from torchtitan.components.tokenizer import HuggingFaceTokenizer
    from torchtitan.hf_datasets import DatasetConfig
    from torchtitan.hf_datasets.text_datasets import DATASETS, HuggingFaceTextDataLoader

    from feedline.frameworks.torchtitan import FeedlineDataLoader

    def stream(files: str) -> Any:
        return load_dataset("json", data_files=files, split="train", streaming=True)

    files = str(folder / "*.jsonl")
    DATASETS["bench"] = DatasetConfig(path=files, loader=stream, sample_processor=lambda sample: sample["text"])
    tokenizer = HuggingFaceTokenizer(tokenizer_path=str(folder))
    settings = {"dp_world_size": 1, "dp_rank": 0, "seq_len": ROW, "local_batch_size": ROWS, "tokenizer": tokenizer}
    configs = {
        "feedline": FeedlineDataLoader.Config(dataset_path=files, text="text"),
        "torchtitan's own": HuggingFaceTextDataLoader.Config(dataset="bench", dataset_path=files),
    }
    return {
        name: lambda config=config: config.build(**settings)  # type: ignore[misc]
        for name, config in configs.items()
    }


def write(folder: Path, size: int) -> None:
    """Write a tokenizer, and files of ``size`` bytes each."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    shares = np.arange(len(letters), 0, -1) / np.arange(len(letters), 0, -1).sum()
    words = np.array(["".join(rng.choice(letters, rng.integers(2, 11), p=shares)) for _ in range(20_000)])

    def texts() -> Iterator[str]:
        while True:
            drawn = words[np.minimum(rng.zipf(1.2, int(rng.integers(50, 900))), len(words)) - 1]
            yield " ".join(drawn.tolist())

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=8000, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(itertools.islice(texts(), 2000), trainer)
    bpe.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    for number in range(FILES):
        with open(folder / f"{number}.jsonl", "w") as file:
            for text in texts():
                file.write(json.dumps({"text": text}) + "\n")
                if file.tell() >= size:
                    break
