"""A language model on three corpora in changing proportions: killed twice, resumed by other ranks, the same losses.

    python examples/language_model.py

The corpora are texts that come with Python, their bytes the tokens: the library's source files, the pages of
``help()``, the names of Unicode's characters. Each becomes a store, is packed into rows of one length, and the rows are
mixed by weights that change in the middle of the run. A mask keeps the documents of a row apart.

Two runs make the same steps. The first, of two ranks, is never interrupted. The second is killed, resumes from its last
checkpoint, is killed again after the weights changed, and resumes with three ranks. As long as it has two, its losses
equal the first run's bit for bit. Three ranks add the same numbers in another order, and so round differently; the
tolerance is one rounding of a float64 for each token and step.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pydoc_data.topics
import signal
import subprocess
import sys
import sysconfig
import tempfile
import unicodedata
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, rms_norm, scaled_dot_product_attention, silu

import feedline as fl

NAMES = ("code", "manual", "names")
WEIGHTS = {"code": 5, "manual": 3, "names": 2}
LATER = {"code": 2, "manual": 6, "names": 2}
TOKENS = 256  # bytes
BLOCK = 32  # rows of the mixture that are shuffled together; new weights begin at a multiple of it


# ---- data ---------------------------------------------------------------------------------------------------


def documents(name: str) -> Iterator[bytes]:
    """Yield the texts of a corpus, one at a time, so that it may be larger than memory."""
    if name == "code":
        for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
            yield path.read_bytes()
    elif name == "manual":
        for topic in sorted(pydoc_data.topics.topics):
            yield pydoc_data.topics.topics[topic].encode()
    else:
        for number in range(0x3000):
            if text := unicodedata.name(chr(number), ""):
                yield text.encode()


def write_stores(folder: Path) -> None:
    """Write each corpus as a store."""
    for name in NAMES:
        with fl.StoreWriter(folder / name, fl.Schema({"tokens": fl.Stream((), "uint8")}), chunk_bytes=1 << 18) as store:
            for text in documents(name):
                store.write({"tokens": fl.Value.from_sequences([np.frombuffer(text, np.uint8)])})


def open_source(folder: Path, row: int, samples: int) -> fl.MinibatchSource:
    """Rows of all corpora, mixed. As rows have one length, weights of rows are weights of tokens."""
    packed = {name: fl.Packed(fl.StoreDeserializer(folder / name), row=row) for name in NAMES}
    mixture = fl.Mixture(packed, WEIGHTS, block=BLOCK)
    return fl.MinibatchSource(mixture, seed=1, shuffle=fl.Window(bytes=1 << 20), max_samples=samples)


# ---- model --------------------------------------------------------------------------------------------------


def within_documents(segment: torch.Tensor) -> torch.Tensor:
    """Return the mask (rows, 1, row, row), by which a token sees itself and earlier ones of its document.

    Args:
        segment: number of the document of each token, (rows, row).
    """
    same = segment[:, :, None] == segment[:, None, :]
    return torch.tril(same)[:, None]


def rotated(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return queries or keys (rows, heads, row, features) turned by their positions (rows, row)."""
    half = x.shape[-1] // 2
    frequencies = 10_000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    angles = positions[:, None, :, None].to(x.dtype) * frequencies
    first, second = x[..., :half], x[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


class Layer(torch.nn.Module):
    """Attention and a feed-forward net."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(width, 3 * width, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)
        self.up = torch.nn.Linear(width, 4 * width, bias=False)
        self.down = torch.nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows, row, width = x.shape
        qkv = self.qkv(rms_norm(x, (width,))).view(rows, row, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(rotated(q, positions), rotated(k, positions), v, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, row, width))
        return x + self.down(silu(self.up(rms_norm(x, (width,)))))


class LanguageModel(torch.nn.Module):
    """Scores (rows, row, TOKENS) of the tokens that may come next."""

    def __init__(self, width: int = 48, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(TOKENS, width)
        self.layers = torch.nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.scores = torch.nn.Linear(width, TOKENS, bias=False)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, positions, mask)
        return self.scores(rms_norm(x, x.shape[-1:]))


# ---- training -----------------------------------------------------------------------------------------------


def loss_and_gradients(model: torch.nn.Module, minibatch: fl.Minibatch) -> tuple[float, list[int]]:
    """Set gradients to the mean over the labels of all ranks; return the mean loss, and the rows of each corpus.

    Ranks have different numbers of labels, so a mean of the ranks' means would depend on who has which row.
    """
    tokens, labels, segment, positions = (
        minibatch[name].torch() for name in ("tokens", "labels", "segment", "positions")
    )
    scores = model(tokens.long(), positions, within_documents(segment))
    total = cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum")  # ignores -100
    model.zero_grad()
    total.backward()
    parameters = list(model.parameters())
    assert minibatch.source is not None  # a mixture's minibatches have it
    rows = np.bincount(minibatch.source, minlength=len(NAMES))
    others = torch.tensor([*rows.tolist(), int((labels != -100).sum()), total.item()], dtype=torch.float64)
    sums = torch.cat([parameter.grad.flatten() for parameter in parameters] + [others])
    dist.all_reduce(sums)
    *rows_of_all, count, loss = sums[-len(others) :].tolist()
    for parameter, part in zip(parameters, sums.split([p.numel() for p in parameters] + [len(others)]), strict=False):
        parameter.grad = (part / count).view_as(parameter)
    return loss / count, [int(each) for each in rows_of_all]


def kill_all_ranks() -> None:
    """Kill every rank, this one last, as a machine does that loses power."""
    pids: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(pids, os.getpid())
    if dist.get_rank() == 0:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGKILL)
    signal.pause()


def train(options: argparse.Namespace, folder: Path, killed_in: int) -> None:
    """Train as one of several ranks, from the last checkpoint if there is one, to the end or the kill."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'rendezvous'}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=datetime.timedelta(seconds=120),
    )
    torch.manual_seed(0)  # all ranks begin with the same parameters
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    size, checkpoint = options.rows * options.row, folder / "checkpoint.pt"
    with open_source(folder.parent, options.row, options.steps * size) as source:
        first = 0
        if checkpoint.exists():
            saved = torch.load(checkpoint)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            source.load_state_dict(saved["source"])
            first = saved["step"]
        for step in range(first, options.steps):
            if step == options.steps // 2:
                source.change_weights(LATER)
            loss, rows = loss_and_gradients(model, source.next_minibatch(size))  # this rank's share of the minibatch
            if dist.get_rank() == 0:
                line = {"step": step, "ranks": dist.get_world_size(), "loss": loss, "rows": rows}
                with open(folder / "log.jsonl", "a") as log:
                    log.write(json.dumps(line) + "\n")
            if step == killed_in:
                kill_all_ranks()
            optimizer.step()
            if dist.get_rank() == 0 and ((step + 1) % options.save_every == 0 or step + 1 == options.steps):
                states = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "source": source.state_dict(),
                }
                torch.save({**states, "step": step + 1}, folder / "checkpoint.new")
                os.replace(folder / "checkpoint.new", checkpoint)
    dist.barrier()  # no rank leaves before the last checkpoint is complete
    dist.destroy_process_group()


# ---- the two runs -------------------------------------------------------------------------------------------


def launch(folder: Path, arguments: Sequence[str], ranks: int, killed_in: int = -1) -> None:
    """Start the ranks, and wait until they end or are killed."""
    folder.mkdir(exist_ok=True)
    (folder / "rendezvous").unlink(missing_ok=True)
    command = [sys.executable, __file__, *arguments, "--train-in", str(folder), str(killed_in)]
    started = [
        subprocess.Popen(command, env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks)})
        for rank in range(ranks)
    ]
    codes = [process.wait() for process in started]
    expected = 0 if killed_in < 0 else -signal.SIGKILL
    if codes != [expected] * ranks:
        raise SystemExit(f"expected {ranks} ranks to end with {expected}, got {codes}")


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Return what was logged of each step, with steps that a kill made necessary again."""
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def compare(
    whole: list[dict[str, Any]], killed: list[dict[str, Any]], steps: int, every: int, tolerance: float
) -> None:
    """Print losses side by side; the tolerance is relative, and for three ranks.

    Raises:
        SystemExit: they differ.
    """
    print("step  ranks  uninterrupted  killed, resumed  difference")
    expected = {line["step"]: line["loss"] for line in whole}
    before, largest = -1, 0.0
    for line in killed:
        step, loss = line["step"], line["loss"]
        difference = abs(loss - expected[step])
        if step <= before:
            print(f"      killed in step {before}")
        if step % every == 0 or step == steps - 1 or step <= before:
            print(f"{step:4}  {line['ranks']:5}  {expected[step]:13.6f}  {loss:15.6f}  {difference:10.1e}")
        if difference > (0 if line["ranks"] == 2 else tolerance * loss):
            raise SystemExit(f"expected a loss of {expected[step]!r} in step {step}, got {loss!r}")
        before, largest = step, max(largest, difference / loss)
    print("with two ranks the same losses, bit for bit;", end=" ")
    print(f"with three they differ by up to {largest:.0e} of a loss, the tolerance is {tolerance:.0e}\n")


def print_shares(log: list[dict[str, Any]], stages: list[Any]) -> None:
    """Print which share of the rows each corpus was to give, and gave, in each stage."""
    last = {line["step"]: line["rows"] for line in log}
    rows = np.array([last[step] for step in sorted(last)])
    places = rows.sum(1).cumsum() - rows.sum(1)
    starts = [start for start, _, _ in stages]
    for start, stop, (_, weights, _) in zip(starts, [*starts[1:], sum(rows.sum(1))], stages, strict=True):
        of_stage = rows[(places >= start) & (places < stop)].sum(0)
        print(f"rows {start} to {stop}".ljust(18) + "".join(f"{name:>10}" for name in NAMES))
        print("  declared".ljust(18) + "".join(f"{float(Fraction(weight)):10.1%}" for weight in weights))
        print("  delivered".ljust(18) + "".join(f"{share:10.1%}" for share in of_stage / of_stage.sum()))


def main(arguments: Sequence[str] | None = None) -> None:
    """Train without interruption, then with two kills, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=96)
    parser.add_argument("--rows", type=int, default=16, help="rows of a minibatch, over all ranks")
    parser.add_argument("--row", type=int, default=256, help="tokens of a row")
    parser.add_argument("--train-in", nargs=2, metavar=("FOLDER", "STEP"), help=argparse.SUPPRESS)
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(given)
    if options.steps < 8:
        parser.error(f"expected at least 8 steps, for a checkpoint before the first kill; got {options.steps}")
    options.save_every = max(1, options.steps // 8)
    if options.train_in:
        train(options, Path(options.train_in[0]), int(options.train_in[1]))
        return

    half, steps = options.steps // 2, options.steps
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_stores(folder)
        launch(folder / "whole", given, ranks=2)
        launch(folder / "killed", given, ranks=2, killed_in=half - 2)
        launch(folder / "killed", given, ranks=2, killed_in=half + steps // 4 - 1)
        launch(folder / "killed", given, ranks=3)
        # A sum of n numbers in another order differs by up to about n roundings, and the next step begins with that.
        tolerance = steps * options.rows * options.row * np.finfo(np.float64).eps
        log = read_log(folder / "killed")
        compare(read_log(folder / "whole"), log, steps, options.save_every, tolerance)
        stages = torch.load(folder / "killed" / "checkpoint.pt")["source"]["stages"]
    print_shares(log, stages)


if __name__ == "__main__":
    main()
