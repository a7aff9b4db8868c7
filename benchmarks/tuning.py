"""Does `feedline tune` find settings as fast as the best ones that were set by hand?

Peer: the fastest of some settings that a person would try, each measured for much longer than a search measures any.
Unit: the speed of the setting that a search chose over that of the peer, both measured in turn, anew. Measured: ten
searches on each of five kinds of data, the worst of them: dense rows in a store, shuffled as a whole; CTF text and a
Parquet table, in windows of an eighth of the data; a folder of JPEGs that a dataset decodes with Pillow; a dataset
whose items wait and compute in Python. Settings that mix less than the present one are no peers.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import feedline as fl
from benchmarks.harness import Answer, Stage, Target, spread
from feedline.cli.tune.corpora import Corpora
from feedline.cli.tune.loaders import Loaders
from feedline.cli.tune.paired_search import search

SEARCHES, PAIRS = 10, 9
#: Opens the feed whose settings are searched.
Opened = Callable[[float], Any]

SLOW = """
import io
import pathlib
import time

import numpy as np

import feedline as fl


class Slow:
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.001)
        return np.full(1000, sum(k * index for k in range(4000)) % 7, np.float32)


class Pictures:
    def __init__(self):
        self.paths = sorted((pathlib.Path(__file__).parent / "bench-tuning-jpegs").iterdir())

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        from PIL import Image

        return np.asarray(Image.open(io.BytesIO(self.paths[index].read_bytes())).convert("RGB").resize((96, 96)))


def slow():
    return fl.DataLoader(Slow(), batch_size=16, shuffle=True, seed=0)


def pictures():
    return fl.DataLoader(Pictures(), batch_size=16, shuffle=True, seed=0)
"""


def run(stage: Stage) -> list[Answer]:
    """The worst of ten searches, for each kind of data."""
    seconds = 2.0 if stage.quick else 20.0
    return [answer(stage, name, opened, seconds) for name, opened in kinds(stage).items()]


def answer(stage: Stage, name: str, opened: Opened, seconds: float) -> Answer:
    """Search, look for the best setting by hand, and compare."""
    results: list[dict[str, Any]] = []
    for _ in range(2 if stage.quick else SEARCHES):
        with opened(seconds) as feed:
            results.append(dict(search(feed, seconds).best.setting))
    with opened(600.0) as feed:
        turn_s = seconds / 30
        feed.measure(feed.present, turn_s)
        best = by_hand(feed, turn_s, stage.rounds(2))
        compared: dict[str, float] = {}
        for setting in results:
            if str(setting) not in compared:
                compared[str(setting)] = compare(feed, setting, best, turn_s, stage.rounds(PAIRS))
        gain = compare(feed, best, dict(feed.present), turn_s, stage.rounds(PAIRS))
    shares = [compared[str(setting)] for setting in results]
    return Answer(
        question=f"{name}: the slowest of {len(shares)} searches of {seconds:.0f} s, over the best setting by hand",
        unit="of 1",
        ours=min(shares),
        peer="by hand",
        peer_value=1.0,
        ratio=min(shares),
        target=Target("ratio", ">=", 0.9),
        spread=spread(shares),
        note=f"median {statistics.median(shares):.2f}; by hand {gain:.2f} times the present setting: {best}",
        detail={"shares": shares, "settings": [str(setting) for setting in results], "hand": str(best), "gain": gain},
    )


def by_hand(feed: Any, seconds: float, rounds: int) -> dict[str, Any]:
    """Return the fastest setting of a grid. The best of a first pass are measured again, as the first may be luck."""
    grid = [dict(zip(feed.axes, values, strict=True)) for values in itertools.product(*feed.axes.values())]
    settings = {str(feed.normal(setting)): dict(feed.normal(setting)) for setting in grid if worth(feed, setting)}
    rates: dict[str, list[float]] = {name: [] for name in settings}
    for number in range(2 * rounds):
        if number == rounds:
            best = sorted(settings, key=lambda name: statistics.median(rates[name]))[-4:]
            settings = {name: settings[name] for name in best}
        for name, setting in list(settings.items()):
            rates[name].append(feed.measure(setting, seconds))
            if feed.refusal(setting):
                del settings[name]
    return settings[max(settings, key=lambda name: statistics.median(rates[name]))]


def worth(feed: Any, setting: Mapping[str, Any]) -> bool:
    """Whether a person would try a setting: at most two arguments differ from the present ones."""
    changed = [name for name, value in setting.items() if value != feed.present[name]]
    return len(changed) <= 2 and not {"read_ahead", "prefetch_factor"} & set(changed)


def compare(feed: Any, setting: dict[str, Any], base: dict[str, Any], seconds: float, pairs: int) -> float:
    """Return the speed of one setting over that of another, in turn."""
    if setting == base:
        return 1.0
    ratios = []
    for number in range(pairs):
        first, second = (setting, base) if number % 2 else (base, setting)
        rates = feed.measure(first, seconds), feed.measure(second, seconds)
        ratios.append(rates[0] / rates[1] if number % 2 else rates[1] / rates[0])
    return statistics.median(ratios)


def kinds(stage: Stage) -> dict[str, Opened]:
    """The feeds, by the name of their data."""
    rng = np.random.default_rng(3)
    rows = stage.size(50_000, 5_000)
    store, text, table = (stage.data / f"bench-tuning.{suffix}" for suffix in ("store", "ctf", "parquet"))
    x = rng.random((rows, 784), np.float32)
    fl.convert(fl.ArrayDeserializer(x=x, y=np.arange(rows)), store, overwrite=True)
    fl.write_ctf(text, x=x[:, :100], y=np.arange(rows, dtype=np.float32)[:, None])
    write_table(table, 20 * rows, rng)
    script = stage.data / "bench_tuning_loaders.py"
    script.write_text(SLOW)
    feeds: dict[str, Opened] = {
        "rows in a store": corpus(store, None),
        "CTF text": corpus(text, str(text.stat().st_size // 8), str(text.stat().st_size // 16)),
        "Parquet table": corpus(table, str(table.stat().st_size // 8)),
    }
    with contextlib.suppress(ModuleNotFoundError):
        write_pictures(stage.data / "bench-tuning-jpegs", stage.size(2_000, 200), rng)
        feeds["folder of JPEGs, Pillow"] = loader(f"{script}:pictures")
    return feeds | {"slow Python dataset": loader(f"{script}:slow")}


def corpus(path: Path, window: str | None, chunk_size: str = "32M") -> Opened:
    """A path whose present setting has a window."""
    options: dict[str, Any] = {"size": 256, "threads": 2, "stream": None, "schema": "strict", "cold": False}
    return lambda seconds: Corpora(
        str(path), seconds=seconds, window=window, chunk_size=chunk_size, watch=lambda: None, **options
    )


def loader(spec: str) -> Opened:
    """A function of a script."""
    return lambda seconds: Loaders(spec, lambda: None)


def write_table(path: Path, rows: int, rng: np.random.Generator) -> None:
    """Six columns of numbers and one of few values, in row groups of a fortieth of the rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {f"c{k}": rng.random(rows) for k in range(6)} | {"k": rng.integers(0, 50, rows)}
    pq.write_table(pa.table(columns), path, row_group_size=max(1, rows // 40))


def write_pictures(folder: Path, count: int, rng: np.random.Generator) -> None:
    """Smooth pictures of 320 x 240 pixels."""
    from PIL import Image

    folder.mkdir(exist_ok=True)
    for number in range(count):
        small = Image.fromarray(rng.integers(0, 256, (12, 16, 3), np.uint8))
        small.resize((320, 240)).save(folder / f"{number:05}.jpg", quality=90)
