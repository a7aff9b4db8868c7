"""How fast are documents of 600 tokens packed into rows of 8,192, 16 rows a batch?

Unit: documents a second of wall time, from the first batch on. Measured: 20,000 documents, lengths lognormal and at
most a row, int32, 48 MB, in the page cache, shuffled as a whole. Ours and Grain's never cut a document. torchtitan's
way joins documents and cuts them into rows, a few lines of its recipe over torch's loader, and fills the last row with
zeros where it would wait for more. A document counts in the row in which it begins. Rows have tokens, segments and
positions. torchtitan's have tokens, positions and labels. Ours have all of these and the bounds of documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.contender import OURS, Contender, Given, Opened, Workload
from benchmarks.peers.data import Block, makers, plain
from benchmarks.peers.map_style import SEED

ROW, ROWS, MEAN = 8192, 16, 600
#: Rows that Grain packs at a time, and the most documents in one of them.
BINS, MOST = 64, 512


def blocks(count: int) -> Iterator[Block]:
    """Documents of random tokens."""
    rng = np.random.default_rng(6)
    for start in range(0, count, 5_000):
        ids = np.arange(start, min(start + 5_000, count))
        lengths = rng.lognormal(0, 1, len(ids)) * MEAN / np.exp(0.5)
        lengths = np.clip(lengths, 1, ROW).astype(int)
        yield {"tokens": [rng.integers(1, 50_000, length, np.int32) for length in lengths], "id": ids}


def without_ids(count: int) -> Iterator[Block]:
    """The same without numbers: ours counts documents itself."""
    return ({"tokens": block["tokens"]} for block in blocks(count))


class Documents:
    """A map-style dataset over mapped tokens and their bounds."""

    def __init__(self, folder: Path) -> None:
        self.tokens, self.bounds = plain(folder, "tokens"), np.load(folder / "tokens.bounds.npy")

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, index: int) -> dict[str, Any]:
        tokens = np.array(self.tokens[self.bounds[index] : self.bounds[index + 1]])
        return {"tokens": tokens, "id": np.array([index])}


# ---- contenders ----------------------------------------------------------------------------------------------


def ours(given: Given) -> Opened:
    """A loader over packed rows of a store."""
    import pyarrow  # noqa: F401

    import feedline as fl

    def opened() -> Any:
        packed = fl.Packed(fl.open_corpus(given.data / "store"), ROW)
        return fl.DataLoader(packed, batch_size=ROWS, shuffle=True, seed=SEED, num_workers=given.workers)

    return opened


def ours_ids(batch: Any) -> NDArray[np.int64]:
    """The documents of our rows, which differ in number."""
    documents = np.asarray(batch["document"])
    ids: NDArray[np.int64] = documents[
        np.arange(documents.shape[1]) < np.asarray(batch["lengths"]["document"])[:, None]
    ]
    return ids


def grain(how: str) -> Callable[[Given], Opened]:
    """Grain's packing. The numbers of documents are packed beside the tokens."""

    def start(given: Given) -> Opened:
        import grain
        from grain import experimental

        def opened() -> Any:
            documents = grain.MapDataset.source(Documents(given.data)).shuffle(seed=SEED).to_iter_dataset()
            packer = getattr(experimental, how)
            rows = packer(documents, length_struct={"tokens": ROW, "id": MOST}, num_packing_bins=BINS)
            batches = rows.batch(ROWS)
            if given.workers:
                batches = batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=given.workers))
            return batches

        return opened

    return start


def grain_ids(batch: Any) -> NDArray[np.int64]:
    """The documents of Grain's rows: where there is a segment."""
    ids: NDArray[np.int64] = batch["id"][batch["id_segment_ids"] > 0]
    return ids


def torchtitan(given: Given) -> Opened:
    """A buffer of joined documents, cut into rows, in an iterable dataset whose workers share the documents."""
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    class Joined(IterableDataset):  # type: ignore[misc]
        """Rows of some of the documents."""

        def __init__(self) -> None:
            self.documents, self.epoch = Documents(given.data), 0

        def __iter__(self) -> Iterator[dict[str, Any]]:
            worker = get_worker_info()
            first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
            order = np.random.default_rng((SEED, self.epoch)).permutation(len(self.documents))
            self.epoch += 1
            tokens: list[int] = []
            positions: list[int] = []
            begun: list[tuple[int, int]] = []  # place in the buffer, document
            for index in order[first::step]:
                document = self.documents[int(index)]["tokens"].tolist()
                begun.append((len(tokens), int(index)))
                tokens.extend(document)
                positions.extend(range(len(document)))
                while len(tokens) > ROW:
                    yield row_of(tokens[: ROW + 1], positions[:ROW], [each for at, each in begun if at < ROW])
                    tokens, positions = tokens[ROW:], positions[ROW:]
                    begun = [(at - ROW, each) for at, each in begun if at >= ROW]
            if tokens:
                room = ROW - len(tokens)
                yield row_of(tokens + [0] * (room + 1), positions + [0] * room, [each for _, each in begun])

    def row_of(tokens: list[int], positions: list[int], ids: list[int]) -> dict[str, Any]:
        joined = torch.tensor(tokens)
        return {"tokens": joined[:-1], "labels": joined[1:], "positions": torch.tensor(positions), "id": ids}

    def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = {name: torch.stack([row[name] for row in rows]) for name in rows[0] if name != "id"}
        return batch | {"id": torch.tensor([each for row in rows for each in row["id"]], dtype=torch.int64)}

    return lambda: DataLoader(
        Joined(),
        batch_size=ROWS,
        num_workers=given.workers,
        collate_fn=collate,
        persistent_workers=given.workers > 0,
    )


BEST, FIRST = "BestFitPackIterDataset", "FirstFitPackIterDataset"
WORKLOAD = Workload(
    title="packed documents: 600 tokens, into rows of 8,192, 16 rows a batch",
    unit="documents/s",
    contenders=[
        Contender(OURS, ours, "best-fit", form="store", ids=ours_ids),
        Contender("Grain", grain(BEST), "best-fit", needs=("grain",), delivers="NumPy", ids=grain_ids),
        Contender("Grain", grain(FIRST), "first-fit", needs=("grain",), delivers="NumPy", ids=grain_ids),
        Contender("torchtitan's way", torchtitan, "cut"),
    ],
    makers=makers(blocks, "raw") | makers(without_ids, "store"),
    count=(20_000, 2_000),
    batch=ROWS,
    absent={"MosaicML Streaming": "it does not pack documents that are stored."},
)
