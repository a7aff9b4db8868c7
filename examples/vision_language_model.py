"""A tiny model of pictures and texts, trained on packed rows of documents with any number of pictures of any size.

    python examples/vision_language_model.py

The pictures are made: a rectangle in one of four colours, plain or striped, somewhere on a dark ground. A document has
one to four of them, and after each the words that describe it. A picture token is repeated for each patch of 8 x 8
pixels, counted from the header of the file, so that documents are packed before any picture is decoded. A row has the
encoded pictures of its documents, and a transform cuts them into patches. The model puts their features into the places
of the picture tokens.

It has to name colour and pattern of pictures that it has not seen. A mask keeps the documents of a row apart.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch.nn.functional import cross_entropy, rms_norm, scaled_dot_product_attention, silu

import feedline as fl

COLOURS = ("red", "green", "blue", "yellow")
PATTERNS = ("plain", "striped")
WORDS = ("<unknown>", "<picture>", "<end>", *COLOURS, *PATTERNS)
NUMBERS = {word: number for number, word in enumerate(WORDS)}
PICTURE = NUMBERS["<picture>"]
SIDE = 8  # of a patch, in pixels


# ---- data ---------------------------------------------------------------------------------------------------


def picture(rng: np.random.Generator) -> tuple[bytes, str]:
    """Return an encoded picture of a random size, and its words."""
    width, height = (int(side) for side in rng.integers(16, 41, 2))
    colour, pattern = (str(rng.choice(names)) for names in (COLOURS, PATTERNS))
    drawn = Image.new("RGB", (width, height), tuple(rng.integers(0, 40, 3).tolist()))
    size = int(rng.integers(10, min(width, height)))
    left, top = int(rng.integers(0, width - size)), int(rng.integers(0, height - size))
    draw = ImageDraw.Draw(drawn)
    for y in range(top, top + size, 1 if pattern == "plain" else 2):
        draw.line((left, y, left + size, y), fill=colour)
    file = io.BytesIO()
    drawn.save(file, "PNG")
    return file.getvalue(), f"{pattern} {colour}"


def made_documents(count: int, seed: int) -> fl.Deserializer:
    """Return documents of texts with picture tokens, and the pictures of each."""
    rng = np.random.default_rng(seed)
    described = [[picture(rng) for _ in range(rng.integers(1, 5))] for _ in range(count)]
    texts = [" ".join(f"<picture> {words}" for _, words in each) + " <end>" for each in described]
    return fl.ArrayDeserializer(text=texts, image=[[data for data, _ in each] for each in described])


def tokens_of(texts: list[str]) -> list[list[int]]:
    """Return the tokens of texts: one for each word."""
    return [[NUMBERS.get(word, 0) for word in text.split()] for text in texts]


def patch_grid(width: int, height: int) -> tuple[int, int]:
    """Return the numbers of patches in a row of a picture and in a column."""
    return -(-width // SIDE), -(-height // SIDE)


def count_patches(width: int, height: int) -> int:
    """Return the number of patches of a picture."""
    across, down = patch_grid(width, height)
    return across * down


def cut_into_patches(row: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """Return the patches of the pictures of a row, in order, and the place of each in its picture."""
    patches, places = [np.empty((0, 3 * SIDE**2), np.uint8)], [np.empty((0, 2), np.int64)]
    for data in row["image"]:
        with Image.open(io.BytesIO(data)) as opened:
            across, down = patch_grid(*opened.size)
            pixels = np.zeros((down * SIDE, across * SIDE, 3), np.uint8)
            pixels[: opened.height, : opened.width] = np.asarray(opened)
        cut = pixels.reshape(down, SIDE, across, SIDE, 3).swapaxes(1, 2)
        patches.append(cut.reshape(down * across, -1))
        places.append(np.indices((down, across)).reshape(2, -1).T)
    return {"patches": np.concatenate(patches), "places": np.concatenate(places)}


def open_source(documents: fl.Deserializer, folder: Path, row: int, sweeps: int) -> fl.MinibatchSource:
    """Write tokens and encoded pictures to a store, which knows all lengths, and return a source of packed rows."""
    with_words = fl.Tokenized(documents, tokens_of, text="text", keep=["image"], dtype="int32")
    fl.convert(fl.PictureTokens(with_words, PICTURE, count_patches), folder)
    # A picture token costs as any other. Pictures have a length of their own, and cost nothing besides.
    packed = fl.Packed(fl.StoreDeserializer(folder), row, cost={"tokens": 1, "image": 0})
    print(f"{folder.name}: {packed.chunks()[0].sequences:,} rows, {packed.fill:.1%} full")
    decode = fl.Map(cut_into_patches, patches=fl.Stream(3 * SIDE**2, "uint8"), places=fl.Stream(2, "int64"))
    return fl.MinibatchSource(packed, seed=1, max_sweeps=sweeps, transforms=[decode])


# ---- model --------------------------------------------------------------------------------------------------


class Layer(torch.nn.Module):
    """Attention and a feed-forward net."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(width, 3 * width, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)
        self.up = torch.nn.Linear(width, 4 * width, bias=False)
        self.down = torch.nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows, row, width = x.shape
        qkv = self.qkv(rms_norm(x, (width,))).view(rows, row, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, row, width))
        return x + self.down(silu(self.up(rms_norm(x, (width,)))))


class VisionLanguageModel(torch.nn.Module):
    """Scores (rows, row, words) of the words that may come next."""

    def __init__(self, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(len(WORDS), width)
        self.patches = torch.nn.Sequential(
            torch.nn.Linear(3 * SIDE**2, 2 * width), torch.nn.SiLU(), torch.nn.Linear(2 * width, width)
        )
        self.places = torch.nn.ModuleList(torch.nn.Embedding(8, width) for _ in range(2))
        self.layers = torch.nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.scores = torch.nn.Linear(width, len(WORDS), bias=False)

    def forward(self, minibatch: fl.Minibatch) -> torch.Tensor:
        tokens, segment = minibatch["tokens"].torch(), minibatch["segment"].torch()
        patches, places = (minibatch[name].torch(layout="packed") for name in ("patches", "places"))
        features = self.patches(patches.to(self.scores.weight.dtype) / 255)
        features = features + sum(embed(places[:, k]) for k, embed in enumerate(self.places))
        # The patches of all rows are in the order of their tokens.
        x = self.words(tokens).masked_scatter((tokens == PICTURE)[:, :, None], features)
        same = segment[:, :, None] == segment[:, None, :]
        mask = torch.tril(same)[:, None]  # earlier tokens of the same document
        for layer in self.layers:
            x = layer(x, mask)
        return self.scores(rms_norm(x, x.shape[-1:]))


def labels_of(minibatch: fl.Minibatch) -> torch.Tensor:
    """Return the labels without those that are picture tokens."""
    labels = minibatch["labels"].torch()
    return labels.masked_fill(labels == PICTURE, -100)


def wrong_words(model: torch.nn.Module, source: fl.MinibatchSource, size: int) -> float:
    """Return the share of colours and patterns that the model does not name."""
    wrong = total = 0
    with torch.no_grad():
        for minibatch in source.minibatches(size):
            labels = labels_of(minibatch)
            described = labels >= NUMBERS[COLOURS[0]]
            wrong += int((model(minibatch).argmax(-1) != labels)[described].sum())
            total += int(described.sum())
    return wrong / total


def main(arguments: Sequence[str] | None = None) -> float:
    """Train, and return the share of words that are wrong for pictures that the model has not seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=2000)
    parser.add_argument("--sweeps", type=int, default=8)
    parser.add_argument("--row", type=int, default=256, help="tokens of a row, those of pictures among them")
    parser.add_argument("--rows", type=int, default=8, help="rows of a minibatch")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    model = VisionLanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    size = options.rows * options.row
    with tempfile.TemporaryDirectory() as name:
        training = made_documents(options.documents, seed=0)
        testing = made_documents(max(50, options.documents // 10), seed=1)
        with open_source(training, Path(name, "training"), options.row, options.sweeps) as source:
            for minibatch in source.minibatches(size):
                labels = labels_of(minibatch)
                loss = cross_entropy(model(minibatch).flatten(0, 1), labels.flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if minibatch.sweep_end:
                    print(f"sweep {source.position.sweep}: loss {loss.item():.3f}", flush=True)
        with open_source(testing, Path(name, "testing"), options.row, 1) as source:
            wrong = wrong_words(model, source, size)
    print(f"of the words for unseen pictures {wrong:.1%} are wrong")
    return wrong


if __name__ == "__main__":
    main()
