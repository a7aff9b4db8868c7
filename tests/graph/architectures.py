"""Small networks of torch.nn, one of every sort that people build, each with inputs and its multiply-adds by hand."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional


class Case(NamedTuple):
    """A network, its inputs, and the multiply-adds by closed formulas."""

    model: nn.Module
    inputs: Any
    multiply_adds: int
    importer: str = "a dry run"


class Residual(nn.Module):
    def __init__(self, i, o, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.conv2, self.bn2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.relu = nn.ReLU()
        self.down = nn.Conv2d(i, o, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + self.down(x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 7, 2, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2))
        self.layer1 = nn.Sequential(*[Residual(4, 4) for _ in range(3)])
        self.layer2 = nn.Sequential(Residual(4, 8, 2), Residual(8, 8))
        self.fc = nn.Linear(8, 10)

    def forward(self, x):
        return self.fc(self.layer2(self.layer1(self.stem(x))).mean((2, 3)))


class Tagger(nn.Module):
    def __init__(self, kind, **settings):
        super().__init__()
        self.embedding = nn.Embedding(20, 6)
        self.recurrent = kind(6, 5, batch_first=True, **settings)
        self.out = nn.Linear(10 if settings.get("bidirectional") else 5, 4)

    def forward(self, words):
        return self.out(self.recurrent(self.embedding(words))[0])


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.LSTMCell(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        state = (x, x)
        for _ in range(4):
            state = self.cell(x, state)
        return self.out(state[0])


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, 2)

    def forward(self, target, memory):
        return self.decoder(target, memory)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, 4, 3, 1, 1), nn.Conv2d(4, 8, 3, 1, 1)
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)
        self.last = nn.Conv2d(8, 1, 1)

    def forward(self, x):
        a = functional.relu(self.down1(x))
        b = functional.relu(self.down2(functional.max_pool2d(a, 2)))
        return self.last(torch.cat([a, self.up(b)], 1))


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))

    def forward(self, left, right):
        return functional.cosine_similarity(self.tower(left), self.tower(right))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, words):
        return self.out(self.embedding(words))


class Dictionaries(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(6, 4), nn.Linear(5, 4)

    def forward(self, batch):
        both = self.image(batch["image"]) + self.text(batch["text"])
        return {"logits": both, "norms": (both.norm(dim=1), both.sum())}


class DataDependent(nn.Module):
    def __init__(self):
        super().__init__()
        self.small, self.large = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        x = self.norm(x)
        while x.abs().max() > 0.3:
            x = self.small(x) * 0 + x * 0.5
        if x.sum() > 1e9:
            x = self.large(x)
        return x


class AttentionThatBranches(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        y = self.attention(x, x, x)[0]
        return y * 2 if y.sum() > 1e9 else y


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(6, 3), nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        outs = torch.stack([expert(x) for expert in self.experts], 1)
        return torch.einsum("be,bed->bd", self.gate(x).softmax(-1), outs)


class Factorisation(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Embedding(100, 64), nn.Embedding(50, 64)

    def forward(self, user, item):
        return (self.user(user) * self.item(item)).sum(1)


class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(2 + 2 * i, 2, 3, padding=1) for i in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.cat([x, layer(x).relu_()], 1)
        return x


class Leftovers(nn.Module):
    """Unused layers, frozen ones, bare parameters, buffers."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(3, 3), nn.Linear(7, 7)
        self.used.weight.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("shift", torch.zeros(3))

    def forward(self, x):
        return self.used(x) * self.scale + self.shift


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(12, 6), nn.GELU(), nn.Linear(6, 4))
        self.decode = nn.Sequential(nn.Linear(2, 6), nn.GELU(), nn.Linear(6, 12))

    def forward(self, x):
        mean, deviation = self.encode(x).chunk(2, -1)
        return self.decode(mean + deviation.exp()), mean, deviation


def conv(out, weight):
    return math.prod(out) * math.prod(weight[1:])


def attention(batch, steps, memory, width):
    return batch * width * width * (2 * steps + 2 * memory) + 2 * batch * steps * memory * width


def feed_forward(rows, width, hidden):
    return 2 * rows * width * hidden


def cases() -> dict[str, Case]:
    torch.manual_seed(0)
    words = torch.arange(14).reshape(2, 7)
    separable = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.GroupNorm(2, 4), nn.Conv2d(4, 8, 1), nn.SiLU())
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 3, enable_nested_tensor=False
    )
    whole = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    once = attention(2, 5, 5, 8) + feed_forward(10, 8, 16)
    lstm, gru = 14 * 4 * 5 * (6 + 5), 14 * 3 * 5 * (6 + 5)
    cnn = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10))
    stem = conv((2, 4, 16, 16), (4, 3, 7, 7))
    first = 6 * conv((2, 4, 8, 8), (4, 4, 3, 3))
    second = conv((2, 8, 4, 4), (8, 4, 3, 3)) + 3 * conv((2, 8, 4, 4), (8, 8, 3, 3)) + conv((2, 8, 4, 4), (8, 4, 1, 1))
    unet = conv((1, 4, 8, 8), (4, 1, 3, 3)) + conv((1, 8, 4, 4), (8, 4, 3, 3)) + conv((1, 1, 8, 8), (1, 8, 1, 1))
    branch = {"importer": "a run"}
    return {
        "mlp": Case(nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Dropout(), nn.Linear(6, 2)), (3, 8), 3 * (48 + 12)),
        "cnn": Case(cnn, (2, 1, 8, 8), conv((2, 4, 6, 6), (4, 1, 3, 3)) + 2 * 360),
        "resnet": Case(ResNet(), (2, 3, 32, 32), stem + first + second + 2 * 80),
        "separable": Case(separable, (1, 4, 5, 5), 36 * 9 + 72 * 4),
        "lstm": Case(Tagger(nn.LSTM), words, lstm + 14 * 20),
        "bidirectional lstm": Case(
            Tagger(nn.LSTM, num_layers=2, bidirectional=True), words, 14 * 2 * 20 * (6 + 5 + 10 + 5) + 14 * 40
        ),
        "gru": Case(Tagger(nn.GRU), words, gru + 14 * 20),
        "rnn": Case(Tagger(nn.RNN), words, 14 * 5 * 11 + 14 * 20),
        "cells": Case(Cells(), (3, 4), 4 * 3 * 16 * 8 + 3 * 8),
        "transformer encoder": Case(encoder, (2, 5, 8), 3 * once),
        "transformer decoder": Case(
            Decoder(), [torch.zeros(2, 5, 8), torch.zeros(2, 3, 8)], 2 * (once + attention(2, 5, 3, 8))
        ),
        "transformer": Case(
            whole, [(2, 3, 8), (2, 5, 8)], attention(2, 3, 3, 8) + feed_forward(6, 8, 16) + once + attention(2, 5, 3, 8)
        ),
        "unet": Case(UNet(), (1, 1, 8, 8), unet + 8 * 16 * 4 * 4),
        "siamese": Case(Siamese(), [(2, 6), (2, 6)], 2 * 2 * (30 + 15)),
        "tied": Case(Tied(), torch.arange(4), 4 * 36),
        "dictionaries": Case(Dictionaries(), ({"image": (2, 6), "text": (2, 5)},), 2 * (24 + 20)),
        "keywords": Case(Siamese(), {"left": (2, 6), "right": (2, 6)}, 2 * 2 * (30 + 15)),
        "mixture": Case(Mixture(), (4, 6), 4 * 18 + 3 * 4 * 36 + 4 * 3 * 6),
        "factorisation": Case(Factorisation(), [torch.arange(8), torch.arange(8)], 0),
        "densenet": Case(Dense(), (1, 2, 9), sum(conv((1, 2, 9), (2, 2 + 2 * i, 3)) for i in range(4))),
        "leftovers": Case(Leftovers(), (2, 3), 2 * 9),
        "autoencoder": Case(Autoencoder(), (5, 12), 5 * (72 + 24 + 12 + 72)),
        "data dependent": Case(DataDependent(), torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 1]]), 2 * 2 * 16, **branch),
        "attention that branches": Case(AttentionThatBranches(), (2, 5, 8), attention(2, 5, 5, 8), **branch),
        "conv3d": Case(nn.Conv3d(1, 2, 2), (1, 1, 3, 3, 3), 16 * 8),
    }
