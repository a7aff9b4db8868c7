"""Logistic regression in torch, as a script under CNTK's names would train it, and a writer that records its calls."""

from __future__ import annotations

import numpy as np
import torch

import feedline.cntk as C


class Logistic(torch.nn.Module):
    """z = x W + b, for minibatches with x (dense) and y (sparse, one-hot)."""

    def __init__(self, weights, bias):
        super().__init__()
        self.W = torch.nn.Parameter(torch.tensor(weights))
        self.b = torch.nn.Parameter(torch.tensor(bias))

    def forward(self, minibatch):
        return torch.from_numpy(minibatch["x"].rows) @ self.W + self.b


class Graph:
    """The same as functions of a graph, with all that a run needs: as attributes what `Module` has too."""

    def __init__(self, weights, bias, metric=True, sequence=False):
        given = C.sequence.input_variable if sequence else C.input_variable
        self.x, self.y = given(2), given(3, is_sparse=True)
        self.W, self.b = C.Parameter(init=np.array(weights, "f4")), C.Parameter(init=np.array(bias, "f4"))
        self.model = C.times(self.x, self.W) + self.b
        self.criterion = (
            C.cross_entropy_with_softmax(self.model, self.y),
            C.classification_error(self.model, self.y) if metric else None,
        )

    def streams_of(self, source):
        return {self.x: source.streams.x, self.y: source.streams.y}

    def values(self):
        return {"W": self.W.value.tolist(), "b": self.b.value.tolist()}


class Module:
    """A module, and functions of its output."""

    def __init__(self, weights, bias, metric=True, sequence=False):
        self.model = Logistic(weights, bias)
        self.W, self.b = self.model.W, self.model.b
        self.criterion = (loss, error if metric else None)

    def streams_of(self, source):
        return streams_of(source)

    def values(self):
        return {"W": self.W.tolist(), "b": self.b.tolist()}


def labels(minibatch):
    return torch.from_numpy(minibatch["y"].class_indices().rows)


def loss(output, minibatch):
    return torch.nn.functional.cross_entropy(output, labels(minibatch), reduction="none")


def error(output, minibatch):
    return (output.argmax(1) != labels(minibatch)).float()


def open_source(path, **options):
    streams = C.io.StreamDefs(
        x=C.io.StreamDef(field="x", shape=2), y=C.io.StreamDef(field="y", shape=3, is_sparse=True)
    )
    deserializer = C.io.CTFDeserializer(str(path), streams)
    if "chunkSizeInBytes" in options:
        deserializer["chunkSizeInBytes"] = options.pop("chunkSizeInBytes")
    return C.io.MinibatchSource(deserializer, **options)


def streams_of(source):
    return {"x": source.streams.x, "y": source.streams.y}


class Recorder(C.cntk_py.ProgressWriter):
    """Every call that a writer of frequency 1 gets."""

    def __init__(self):
        super().__init__(1, 0, 1, 0, 1, 0)
        self.events = []

    def on_write_training_update(self, samples, updates, aggregate_loss, aggregate_metric):
        told = [list(pair) for pair in (samples, updates, aggregate_loss, aggregate_metric)]
        self.events.append(["training_update", *told])

    def on_write_test_update(self, samples, updates, aggregate_metric):
        self.events.append(["test_update", *[list(pair) for pair in (samples, updates, aggregate_metric)]])

    def on_write_training_summary(
        self, samples, updates, summaries, aggregate_loss, aggregate_metric, elapsed_milliseconds
    ):
        self.events.append(["training_summary", samples, updates, summaries, aggregate_loss, aggregate_metric])

    def on_write_test_summary(self, samples, updates, summaries, aggregate_metric, elapsed_milliseconds):
        self.events.append(["test_summary", samples, updates, summaries, aggregate_metric])

    def write(self, key, value):
        self.events.append(["write", key, value])
