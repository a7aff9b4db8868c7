"""How fast do encoded pictures become minibatches, compared with the bare decoder and with what people use?

Limit: libjpeg alone in C (`bare_jpeg.c`), which decodes whole pictures row by row into one buffer and keeps nothing.
Peers, in this process: simplejpeg and NumPy, torchvision's transforms on Pillow's pictures, OpenCV's decoder and resize
(linear, not antialiased), if installed, and torch's DataLoader with two workers over torchvision's ImageFolder. Unit:
pictures a second of processor time, all threads counted. Where threads or processes are compared, of wall time.
Measured: made pictures of about 2.6 bits a pixel at quality 90; 256 x 256 cropped to 224 and normalised to float32
CHW; 500 x 375 cropped at random and resized to 224, as bytes. All contenders decode the same pictures. Random boxes of
peers other than torchvision are drawn beforehand, off the clock.
"""

from __future__ import annotations

import ctypes
import importlib.util
import io
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from feedline_demo import pictures as made
from numpy.typing import NDArray

import feedline as fl
from benchmarks.disk import fill
from benchmarks.harness import Answer, Contender, Race, Stage, compare, race
from benchmarks.loaders import alternated, sooner, steady
from feedline import images
from feedline.data import Schema
from feedline.feed.transforms import DrawKeys

SIDE, BATCH = 224, 64
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
UNIT = "pictures/s"
KEPT: list[Any] = []  # declarations end with their library
STREAMS = {"image": fl.Stream(dtype="bytes", field="jpg"), "label": fl.Stream((), "int64", field="cls")}


class Encoded(NamedTuple):
    """Pictures in memory.

    Attributes:
        contents: the files.
        data, bounds: the same, one after the other.
        bits: bits a pixel, on average.
    """

    contents: list[bytes]
    data: NDArray[np.uint8]
    bounds: NDArray[np.int64]
    bits: float


def run(stage: Stage) -> list[Answer]:
    """The decoder's work alone, then with files around it."""
    torch.set_num_threads(1)
    small = encode(stage.size(512, 64), 256, 256)
    large = encode(stage.size(256, 32), 500, 375)
    answers = cropped(stage, small)
    answers += resized(stage, large)
    answers += threaded(stage, small)
    folder = stage.data / "bench-pictures"
    shutil.rmtree(folder, ignore_errors=True)
    answers += loaded(stage, folder / "folder")
    answers += fed(stage, folder / "tar")
    shutil.rmtree(folder)
    return answers


def encode(count: int, width: int, height: int) -> Encoded:
    """Make pictures as cameras and websites save most of them."""
    contents, _ = made.rows(made.pictures(count, size=(width, height), kinds=["baseline"], qualities=[90], detail=0.95))
    bounds = np.concatenate([[0], np.cumsum([len(content) for content in contents])])
    data = np.frombuffer(b"".join(contents), np.uint8)
    return Encoded(contents, data, bounds, len(data) * 8 / (count * width * height))


# ---- the questions -------------------------------------------------------------------------------------------


def cropped(stage: Stage, encoded: Encoded) -> list[Answer]:
    """256 x 256 to 224 x 224, float32 CHW, one thread."""
    contenders = {"feedline": decoding(encoded, images.CenterCrop(SIDE), images.Normalize(MEAN, STD, layout="CHW"))}
    contenders |= bare(stage, encoded)
    out = np.empty((len(encoded.contents), 3, SIDE, SIDE), np.float32)
    mean, scale = (np.array(MEAN) * 255).astype(np.float32), (1 / (np.array(STD) * 255)).astype(np.float32)
    low = (256 - SIDE) // 2
    inner = np.s_[low : low + SIDE, low : low + SIDE]
    for name, decode in decoders().items():

        def each(decode: Callable[[bytes], Any] = decode) -> float:
            for i, content in enumerate(encoded.contents):
                out[i] = ((decode(content)[inner].astype(np.float32) - mean) * scale).transpose(2, 0, 1)
            return len(encoded.contents)

        contenders[f"{name} + NumPy"] = each
    contenders["torchvision + Pillow"] = by_torchvision(encoded, "CenterCrop", True)
    ran = race(contenders, stage.rounds(5), "process")
    bounds = {"libjpeg alone": 0.9, "simplejpeg + NumPy": 3.0, "torchvision + Pillow": 4.0}
    return table(ran, "256 x 256 to 224 x 224 float CHW, one thread", bounds, encoded)


def resized(stage: Stage, encoded: Encoded) -> list[Answer]:
    """500 x 375, cropped at random and resized to 224 x 224, uint8 HWC."""
    contenders = {"feedline": decoding(encoded, images.RandomResizedCrop(SIDE))} | bare(stage, encoded)
    if importlib.util.find_spec("cv2") is not None:
        import cv2

        out = np.empty((len(encoded.contents), SIDE, SIDE, 3), np.uint8)
        boxes = [box(500, 375, rng) for rng in map(np.random.default_rng, range(len(encoded.contents)))]
        cv2.setNumThreads(1)

        def each() -> float:
            for i, (content, (x, y, w, h)) in enumerate(zip(encoded.contents, boxes, strict=True)):
                pixels = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR_RGB)
                cv2.resize(pixels[y : y + h, x : x + w], (SIDE, SIDE), dst=out[i], interpolation=cv2.INTER_LINEAR)
            return len(encoded.contents)

        contenders["OpenCV"] = each
    contenders["torchvision + Pillow"] = by_torchvision(encoded, "RandomResizedCrop", False)
    ran = race(contenders, stage.rounds(5), "process")
    return table(ran, "RandomResizedCrop 224 of 500 x 375, one thread", {"OpenCV": 1.4}, encoded)


def threaded(stage: Stage, encoded: Encoded) -> list[Answer]:
    """Compare the first question's work by two threads with one."""
    steps = (images.CenterCrop(SIDE), images.Normalize(MEAN, STD, layout="CHW"))
    contenders = {
        f"{count} thread{'s' * (count > 1)}": decoding(encoded, *steps, threads=count, size=256) for count in (2, 1)
    }
    ran = race(contenders, stage.rounds(9), "wall")
    question = "the same by two threads, 256 a minibatch"
    return [compare(ran, "2 threads", "1 thread", question, f"{UNIT} (wall)", at_least=1.8)]


def loaded(stage: Stage, folder: Path) -> list[Answer]:
    """A folder of classes through both loaders: batches in steady state, and the first one."""
    count = stage.size(1536, 128)
    made.write_folder(folder, made.pictures(count, size=(500, 375), kinds=["baseline"], qualities=[90], detail=0.95))
    fill(folder)
    what = "a folder of 500 x 375, RandomResizedCrop 224, flips, float CHW"
    loaders = {"feedline": our_loader, "torch DataLoader": torch_loader}
    # Both make batches ahead between the turns, which are used up before the clock starts.
    running = {name: steady(make(folder), 4 if stage.quick else 12, 8) for name, make in loaders.items()}
    said = alternated(running, stage.rounds(5))
    question = f"{what}: a batch of {BATCH}, 2 threads vs 2 workers"
    paced = sooner(said, "feedline", "torch DataLoader", question, at_most=1 / 3)
    running.clear()
    said = alternated({name: first(make, folder) for name, make in loaders.items()}, stage.rounds(5))
    return [paced, sooner(said, "feedline", "torch DataLoader", f"{what}: the first batch", at_most=0.2)]


def fed(stage: Stage, folder: Path) -> list[Answer]:
    """Compare shuffled minibatches from shards with the same decoding without a feed."""
    count = stage.size(4096, 256)
    paths = made.write_tar(
        folder, made.pictures(count, size=(256, 256), kinds=["baseline"], qualities=[90], detail=0.95), shards=4
    )
    fill(*paths)
    corpus = fl.open_corpus(folder, streams=STREAMS)
    kept = corpus.select(np.arange(count))["image"]
    encoded = Encoded([], kept.data, kept.bounds, 0.0)
    steps = (images.RandomCrop(SIDE), images.Flip(0.5), images.Normalize(MEAN, STD, layout="CHW"))

    def feed() -> float:
        transforms = [images.Decode("image", *steps)]
        found = 0
        with fl.MinibatchSource(corpus, seed=1, partition=(0, 1), max_sweeps=1, transforms=transforms) as source:
            for minibatch in source.minibatches(256):
                found += minibatch.num_samples
        return found

    contenders = {"feedline": feed, "decoding alone": decoding(encoded, *steps, threads=2, size=256)}
    ran = race(contenders, stage.rounds(5), "wall")
    question = "256 x 3 x 224 x 224 from tar, shuffled"
    return [compare(ran, "feedline", "decoding alone", question, f"{UNIT} (wall)", at_least=0.85)]


def table(ran: Race, question: str, bounds: dict[str, float], encoded: Encoded) -> list[Answer]:
    """One answer a contender that there is."""
    note = f"{encoded.bits:.2f} bits a pixel"
    return [
        compare(ran, "feedline", peer, question, UNIT, at_least=bounds.get(peer), note=note)
        for peer in ran.rounds
        if peer != "feedline"
    ]


# ---- contenders ----------------------------------------------------------------------------------------------


def decoding(encoded: Encoded, *steps: Any, threads: int = 1, size: int = BATCH) -> Contender:
    """Return a contender: all pictures in minibatches, without a source around it."""
    decode = images.Decode("image", *steps, threads=threads)
    schema = Schema({"image": fl.Stream(dtype="bytes")})
    count = len(encoded.bounds) - 1
    values = []
    for low in range(0, count, size):
        high = min(low + size, count)
        a, b = encoded.bounds[low], encoded.bounds[high]
        strings = fl.Value.from_buffer(encoded.data[a:b], encoded.bounds[low : high + 1] - a, "bytes")
        values.append((np.arange(low, high), strings))

    def decode_all() -> float:
        for ordinals, value in values:
            keys = DrawKeys(1, np.zeros(len(ordinals), np.int64), ordinals, stage=0)
            done = decode.run_all(schema, {"image": value}, keys)
            if done.errors:
                raise RuntimeError(f"expected sound pictures, got {done.errors}")
        return count

    return decode_all


def bare(stage: Stage, encoded: Encoded) -> dict[str, Contender]:
    """Return the C loop. None without a compiler or libjpeg's headers."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return {}
    stage.data.mkdir(parents=True, exist_ok=True)
    library, source = stage.data / "bench-jpeg.so", Path(__file__).with_name("bare_jpeg.c")
    if subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source, "-ljpeg"], check=False).returncode:
        return {}
    call = ctypes.CDLL(str(library)).bare_jpeg
    call.restype, call.argtypes = ctypes.c_int64, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]

    def decode_all() -> float:
        count = len(encoded.contents)
        if (found := call(encoded.data.ctypes.data, encoded.bounds.ctypes.data, count)) < 0:
            raise RuntimeError(f"picture {-1 - found} cannot be decoded")
        return count

    return {"libjpeg alone": decode_all}


def decoders() -> dict[str, Callable[[bytes], Any]]:
    """Return functions from a file to RGB pixels, of the libraries that are installed."""
    found: dict[str, Callable[[bytes], Any]] = {}
    if importlib.util.find_spec("simplejpeg") is not None:
        import simplejpeg

        found["simplejpeg"] = simplejpeg.decode_jpeg
    if importlib.util.find_spec("cv2") is not None:
        import cv2

        found["OpenCV"] = lambda content: cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR_RGB)
    return found


def by_torchvision(encoded: Encoded, crop: str, normalised: bool) -> Contender:
    """Return a contender: Pillow's pictures through torchvision's transforms."""
    from PIL import Image

    transforms = torchvision().transforms
    steps = [getattr(transforms, crop)(SIDE)]
    if normalised:
        steps += [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    chain = transforms.Compose(steps)

    def each() -> float:
        for content in encoded.contents:
            np.asarray(chain(Image.open(io.BytesIO(content)).convert("RGB")))
        return len(encoded.contents)

    return each


def torchvision() -> Any:
    """Import torchvision, also where its binary is built for CUDA and torch is not: nothing of it is needed here."""
    if not KEPT:
        KEPT.append(torch.library.Library("torchvision", "FRAGMENT"))
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                KEPT[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return importlib.import_module("torchvision")


def box(width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Draw x, y, width, height as torchvision's RandomResizedCrop does."""
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1)
        aspect = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
        w, h = round((area * aspect) ** 0.5), round((area / aspect) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            return int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1)), w, h
    return 0, 0, width, height


def our_loader(folder: Path) -> Iterator[Any]:
    """Batches of two native threads."""
    steps = (images.RandomResizedCrop(SIDE), images.Flip(0.5), images.Normalize(MEAN, STD, layout="CHW"))
    decode = images.Decode("image", *steps, threads=2)
    with fl.MinibatchSource(images.folder(folder), seed=1, partition=(0, 1), transforms=[decode]) as source:
        for minibatch in source.minibatches(BATCH):
            yield minibatch["image"].torch(), minibatch["label"].torch()


def torch_loader(folder: Path) -> Any:
    """Batches of two worker processes."""
    library = torchvision()
    transforms = library.transforms
    chain = transforms.Compose(
        [
            transforms.RandomResizedCrop(SIDE),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    rows = library.datasets.ImageFolder(str(folder), chain)
    return torch.utils.data.DataLoader(
        rows, batch_size=BATCH, shuffle=True, num_workers=2, persistent_workers=True, drop_last=True
    )


def first(make: Callable[[Path], Any], folder: Path) -> Callable[[], float]:
    """Return a function: seconds from the constructor to the first batch."""

    def turn() -> float:
        began = time.perf_counter()
        loader = make(folder)
        batches = iter(loader)
        next(batches)
        took = time.perf_counter() - began
        del batches, loader
        time.sleep(0.3)  # it ends completely before the next contender's turn
        return took

    return turn
