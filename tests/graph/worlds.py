"""Small ragged minibatches for graphs, in float64, and what runs a graph over them."""

from __future__ import annotations

import numpy as np
import torch

from feedline.data import Value
from feedline.networks import BATCH, Weights
from feedline.networks.compile import Network
from feedline.networks.node import input_node, parameter_node
from feedline.networks.packed_minibatch import PackedRows, Sequences

LENGTHS = (3, 1, 4, 2)
AXES = {"": (), "b": (BATCH,), "s": (BATCH, "steps")}


def offsets(lengths=LENGTHS):
    return np.cumsum([0, *lengths])


def rows(kind, lengths=LENGTHS):
    return {"": (), "b": (len(lengths),), "s": (sum(lengths),)}[kind]


def given(shape, kind, name="", sparse=False):
    return input_node(shape, AXES[kind], name, sparse, "float64")


def weights(array, name="w", trains=True):
    array = np.asarray(array, np.float64)
    return parameter_node(Weights(array.shape, lambda shape: array, "float64", trains), name)


def draw(rng, shape, kind, low=-1.0, high=1.0, lengths=LENGTHS):
    return torch.from_numpy(rng.uniform(low, high, rows(kind, lengths) + shape))


def packed(tensor, kind, lengths=LENGTHS):
    return PackedRows(tensor, Sequences(offsets(lengths), torch.device("cpu")) if kind == "s" else None)


def run(roots, feeds, training=False):
    network = Network(roots).train(training)
    return network({node: value for node, value in feeds.items() if node in network.inputs})


def one_hot(rng, classes, lengths=LENGTHS):
    return Value.one_hot([rng.integers(0, classes, n) for n in lengths], classes, np.float64)


def sparse(rng, classes, lengths=LENGTHS):
    """Rows of 0 to 3 entries, in any order, some twice."""
    counts = rng.integers(0, 4, sum(lengths))
    total = counts.sum()
    return Value.from_csr(
        np.concatenate([[0], np.cumsum(counts)]),
        rng.integers(0, classes, total),
        rng.uniform(-1, 1, total),
        classes,
        offsets(lengths),
    )


def dense(value):
    """Return the rows (num_samples, classes) of a sparse value. Entries of one column add up."""
    out = np.zeros((value.num_samples, value.shape[0]))
    for i in range(value.num_samples):
        for k in range(value.indptr[i], value.indptr[i + 1]):
            out[i, value.indices[k]] += value.values[k]
    return out


def sample(tensor, kind, row, lengths=LENGTHS):
    """What belongs to one row of the whole minibatch."""
    if kind == "":
        return tensor
    return tensor[row] if kind == "s" else tensor[np.searchsorted(offsets(lengths), row, side="right") - 1]
