"""How fast do recordings become padded batches of sound: FLAC files of 1 to 3 s at 16 kHz to float32, 32 a batch?

Unit: recordings a second of wall time, from the first batch on. Measured: 2,000 made recordings, 2 s on average,
shuffled, in the page cache: files, where a peer has one with its manifest, or its own shards. All decode by soundfile,
whose library releases the GIL. 0 workers are one thread, the loop's or another; `audio.Decode` has as many threads as
workers for each of two minibatches at once, and one each for 0 workers.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.contender import OURS, Contender, Given, Opened, Workload
from benchmarks.peers.data import Block, makers, samples, shards
from benchmarks.peers.map_style import SEED, grain, nodes, ours, spdl, torch_loader

BATCH, RATE, BUFFER = 32, 16_000, 1000
#: Recordings in a shard of Lhotse's, so that two workers have several each.
SHAR = 50


def blocks(count: int) -> Iterator[Block]:
    """Encoded recordings: tones that glide, with noise."""
    import soundfile

    rng = np.random.default_rng(0)

    def recording(k: int) -> bytes:
        t = np.arange(int(RATE * rng.uniform(1, 3))) / RATE
        noise = 0.05 * rng.standard_normal(len(t)) * np.abs(np.sin(3 * t))
        sound = 0.3 * np.sin(2 * np.pi * (200 + k % 1000 + 50 * np.sin(t)) * t) + noise
        file = io.BytesIO()
        soundfile.write(file, sound.astype(np.float32), RATE, format="FLAC")
        return file.getvalue()

    for start in range(0, count, 500):
        ids = np.arange(start, min(start + 500, count))
        yield {"flac": [recording(int(k)) for k in ids], "id": ids}


def write_files(folder: Path, count: int) -> None:
    """Write a file for each recording."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for sample in samples(blocks(count)):
        (folder / f"{sample['id']}.flac").write_bytes(sample["flac"])


def write_manifest(folder: Path, count: int) -> None:
    """Write files, and a manifest as NeMo's."""
    import soundfile

    write_files(folder, count)
    with open(folder / "train.json", "w") as manifest:
        for k in range(count):
            duration = soundfile.info(folder / f"{k}.flac").duration
            print(json.dumps({"audio_filepath": f"{k}.flac", "duration": duration, "text": ""}), file=manifest)


def cuts_of(folder: Path, count: int) -> Any:
    """Return Lhotse's cuts of files."""
    from lhotse import CutSet, Recording

    return CutSet.from_cuts(Recording.from_file(folder / f"{k}.flac", str(k)).to_cut() for k in range(count))


def write_cuts(folder: Path, count: int) -> None:
    """Write files, and a manifest of Lhotse's."""
    write_files(folder, count)
    cuts_of(folder, count).to_file(folder / "cuts.jsonl.gz")


def write_shar(folder: Path, count: int) -> None:
    """Write shards of Lhotse's."""
    write_files(folder / "files", count)
    (folder / "shar").mkdir()
    cuts_of(folder / "files", count).to_shar(folder / "shar", fields={"recording": "flac"}, shard_size=SHAR)
    shutil.rmtree(folder / "files")


def decoded(file: Any) -> Any:
    """Return the samples of a file, or of its path."""
    import soundfile

    return soundfile.read(file, dtype="float32")[0]


class Recordings:
    """A map-style dataset over files."""

    def __init__(self, folder: Path) -> None:
        self.paths = [str(folder / f"{k}.flac") for k in range(len(shards(folder, "*.flac")))]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return decoded(self.paths[index]), index


def padded_arrays(samples: Sequence[Any]) -> Any:
    """A collate function: sound, lengths, and the numbers of recordings."""
    lengths = np.array([len(sound) for sound, _ in samples])
    sounds = np.zeros((len(samples), lengths.max()), np.float32)
    for row, (sound, _) in zip(sounds, samples, strict=True):
        row[: len(sound)] = sound
    return sounds, lengths, np.array([index for _, index in samples])


def padded(samples: Sequence[Any]) -> Any:
    """The same as tensors. torch's ``pad_sequence`` takes longer."""
    import torch

    return tuple(map(torch.from_numpy, padded_arrays(samples)))


# ---- contenders ----------------------------------------------------------------------------------------------


def manifest(given: Given) -> Opened:
    """A manifest of files, decoded in threads."""
    import feedline as fl
    from feedline import audio

    def opened() -> Any:
        streams = {"audio": fl.Stream(dtype="str"), "id": fl.Stream(dtype="str")}
        return fl.DataLoader(
            fl.NeMoDeserializer(given.data / "train.json", streams),
            batch_size=BATCH,
            shuffle=True,
            seed=SEED,
            transforms=[audio.Decode("audio", RATE, threads=max(given.workers, 1))],
        )

    return opened


def tar(given: Given) -> Opened:
    """Tar shards, decoded in threads."""
    import feedline as fl
    from feedline import audio

    def opened() -> Any:
        streams = {"audio": fl.Stream(dtype="bytes", field="flac"), "id": fl.Stream((), "int64", field="cls")}
        return fl.DataLoader(
            fl.open_corpus(given.data, streams=streams),
            batch_size=BATCH,
            shuffle=True,
            seed=SEED,
            transforms=[audio.Decode("audio", RATE, threads=max(given.workers, 1))],
        )

    return opened


def ids_of_paths(batch: Any) -> NDArray[np.int64]:
    """The numbers in the names of files."""
    return np.array([int(Path(path).stem) for path in batch["id"]])


def lhotse(shar: bool) -> Callable[[Given], Opened]:
    """Lhotse's dataset and sampler in torch's loader, over files, or over its shards, which workers share."""

    def start(given: Given) -> Opened:
        from lhotse import CutSet
        from lhotse.dataset import DynamicCutSampler, UnsupervisedWaveformDataset
        from lhotse.dataset.iterable_dataset import IterableDatasetWrapper
        from torch.utils.data import DataLoader

        def sampler_of(folder: Path) -> Any:
            if shar:
                shuffled = {"split_for_dataloading": True, "shuffle_shards": True, "seed": SEED}
                cuts = CutSet.from_shar(in_dir=folder / "shar", **shuffled)
            else:
                cuts = CutSet.from_file(folder / "cuts.jsonl.gz")
            return DynamicCutSampler(cuts, max_cuts=BATCH, shuffle=True, shuffle_buffer_size=BUFFER, seed=SEED)

        class Epochs:
            """Another order each time."""

            def __init__(self) -> None:
                dataset, sampler = UnsupervisedWaveformDataset(), sampler_of(given.data)
                self.ordered = IterableDatasetWrapper(dataset, sampler) if shar else sampler
                self.loader = DataLoader(
                    self.ordered if shar else dataset,
                    sampler=None if shar else sampler,
                    batch_size=None,
                    num_workers=given.workers,
                    persistent_workers=given.workers > 0,
                )
                self.epoch = -1

            def __iter__(self) -> Iterator[Any]:
                self.epoch += 1
                self.ordered.set_epoch(self.epoch)
                return iter(self.loader)

        return Epochs

    return start


def ids_of_cuts(batch: Any) -> NDArray[np.int64]:
    """The numbers in the names of recordings."""
    return np.array([int(cut.recording_id) for cut in batch["cuts"]])


def decoded_pair(sample: Any) -> Any:
    """Decode a pair of bytes and a number."""
    return decoded(io.BytesIO(sample[0])), int(sample[1])


def webdataset(given: Given) -> Opened:
    """WebDataset: a mapped function, batches made in the workers."""
    import webdataset as wds

    def opened() -> Any:
        tars = shards(given.data, "*.tar")
        rows = wds.WebDataset(tars, shardshuffle=len(tars), seed=SEED, empty_check=False).shuffle(BUFFER)
        rows = rows.to_tuple("flac", "cls").map(decoded_pair).batched(BATCH, collation_fn=padded)
        return wds.WebLoader(rows, batch_size=None, num_workers=given.workers, persistent_workers=given.workers > 0)

    return opened


class Transform:
    """A function for ``with_transform``: of a batch of columns."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the batch."""
        return {"sound": [decoded(io.BytesIO(content)) for content in batch["flac"]], "id": batch["id"]}


def padded_rows(rows: Sequence[dict[str, Any]]) -> Any:
    """`padded` for rows of ``datasets``."""
    return padded([(row["sound"], row["id"]) for row in rows])


def hugging_face(given: Given) -> Opened:
    """``datasets``, with a transform, through torch's loader."""
    import datasets
    from torch.utils.data import DataLoader

    def opened() -> Any:
        rows = datasets.load_from_disk(str(given.data / "arrow")).with_transform(Transform())
        return DataLoader(
            rows,
            batch_size=BATCH,
            shuffle=True,
            collate_fn=padded_rows,
            num_workers=given.workers,
            persistent_workers=given.workers > 0,
        )

    return opened


WORKLOAD = Workload(
    title="FLAC files: 2 s to padded float32, 32 a batch",
    unit="recordings/s",
    contenders=[
        Contender(OURS, manifest, "a manifest, decoded in threads", form="manifest", ids=ids_of_paths),
        Contender(OURS, tar, "tar, decoded in threads", form="tar"),
        Contender(OURS, ours(Recordings, BATCH, padded), "the dataset", form="manifest", workers=(0,)),
        Contender(
            OURS,
            ours(Recordings, BATCH, padded, workers="thread"),
            "the dataset, threads",
            form="manifest",
            workers=(2,),
        ),
        Contender(OURS, ours(Recordings, BATCH, padded), "the dataset, processes", form="manifest", workers=(2,)),
        Contender("torch DataLoader", torch_loader(Recordings, BATCH, padded), "persistent", form="manifest"),
        Contender("torchdata.nodes", nodes(Recordings, BATCH, padded), form="manifest", needs=("torchdata",)),
        Contender(
            "Grain",
            grain(Recordings, BATCH, padded_arrays),
            form="manifest",
            needs=("grain",),
            workers=(0,),
            delivers="NumPy",
        ),
        Contender(
            "Grain",
            grain(Recordings, BATCH, padded_arrays, threads=2),
            "threads",
            form="manifest",
            needs=("grain",),
            workers=(2,),
            delivers="NumPy",
        ),
        Contender(
            "Grain",
            grain(Recordings, BATCH, padded_arrays),
            "processes",
            form="manifest",
            needs=("grain",),
            workers=(2,),
            delivers="NumPy",
        ),
        Contender("Lhotse", lhotse(shar=False), "cuts of files", form="cuts", needs=("lhotse",), ids=ids_of_cuts),
        Contender("Lhotse", lhotse(shar=True), "Shar", form="Shar", needs=("lhotse",), order="buffer", ids=ids_of_cuts),
        Contender("WebDataset", webdataset, form="tar", needs=("webdataset",), order="buffer"),
        Contender("HF datasets", hugging_face, form="Arrow", needs=("datasets",)),
        Contender("SPDL", spdl(Recordings, BATCH, padded_arrays), form="manifest", needs=("spdl",), delivers="NumPy"),
    ],
    makers=makers(blocks, "tar", "Arrow") | {"manifest": write_manifest, "cuts": write_cuts, "Shar": write_shar},
    count=(2_000, 200),
    batch=BATCH,
    check=200,
    seconds=1.5,
    absent={
        "StatefulDataLoader": "without a state to save it is torch's DataLoader.",
        "SPDL's own decoder": "spdl.io needs FFmpeg's shared libraries on the system; its threads call soundfile.",
        "The Audio feature of HF datasets": "it needs torchcodec and FFmpeg's shared libraries on the system; a "
        "transform calls soundfile.",
        "tf.data": "of sound it decodes WAV only.",
    },
)
