"""Ratings as products of two tables, of which each step uses few rows: only those travel to the store and back.

    python examples/matrix_factorisation.py
    python -m torch.distributed.run --standalone --nproc-per-node 2 examples/matrix_factorisation.py --store dist_sync

Embeddings with ``sparse=True`` have row-sparse gradients. They are pushed as they are; AdaGrad in the store updates
only these rows; and before the next step a rank pulls the rows that it is about to use, whichever rank changed
them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import torch

import feedline as fl

USERS, ITEMS, FACTORS = 400, 300, 4
TABLES = ["user", "item"]


class Ratings(torch.nn.Module):
    """The product of a user's row and an item's."""

    def __init__(self) -> None:
        super().__init__()
        self.user = torch.nn.Embedding(USERS, FACTORS, sparse=True)
        self.item = torch.nn.Embedding(ITEMS, FACTORS, sparse=True)
        for table in (self.user, self.item):
            torch.nn.init.normal_(table.weight, std=0.3)

    def forward(self, minibatch: fl.Minibatch) -> torch.Tensor:
        return (self.user(minibatch["user"].torch()) * self.item(minibatch["item"].torch())).sum(1)


def ratings(count: int, seed: int) -> fl.ArrayDeserializer:
    """Ratings of items by users, with some noise (0.1)."""
    of_tables, rng = np.random.default_rng(0), np.random.default_rng([1, seed])
    tables = [of_tables.normal(size=(rows, FACTORS)) for rows in (USERS, ITEMS)]
    user, item = rng.integers(0, USERS, count), rng.integers(0, ITEMS, count)
    rating = (tables[0][user] * tables[1][item]).sum(1) + rng.normal(scale=0.1, size=count)
    return fl.ArrayDeserializer(user=user, item=item, rating=rating.astype("float32"))


def use_rows(store: fl.kvstore.KVStore, model: Ratings, minibatch: fl.Minibatch) -> int:
    """Pull the rows that a minibatch needs; returns how many."""
    ids = [torch.unique(minibatch[name].torch()) for name in TABLES]
    rows = [torch.empty(len(wanted), FACTORS) for wanted in ids]
    store.row_sparse_pull(TABLES, rows, ids)
    with torch.no_grad():
        for name, wanted, held in zip(TABLES, ids, rows, strict=True):
            getattr(model, name).weight[wanted] = held
    return sum(map(len, ids))


def main(arguments: Sequence[str] | None = None) -> float:
    """Train, and return the root of the mean squared error on ratings that were held out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=12, help="passes over the data")
    parser.add_argument("--store", default="local", help="'dist_sync' with several ranks")
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    model = Ratings()
    weights = [model.user.weight, model.item.weight]
    with fl.kvstore.create(options.store) as store:
        store.init(TABLES, weights)
        store.set_optimizer("adagrad", learning_rate=0.2)
        source = fl.MinibatchSource(
            ratings(30_000, seed=0), seed=1, max_sweeps=options.sweeps, partition=(store.rank, store.num_workers)
        )
        steps = pulled = 0
        for minibatch in source.minibatches(256):
            if minibatch.num_sequences == 0:  # this rank's share of a small last minibatch
                store.push(TABLES, None)
                continue
            pulled += use_rows(store, model, minibatch)
            model.zero_grad()
            loss = ((model(minibatch) - minibatch["rating"].torch()) ** 2).sum() / minibatch.global_samples
            loss.backward()
            store.push(TABLES, [weight.grad for weight in weights])
            steps += 1

        store.pull(TABLES, weights)  # all rows, to the end
        with torch.no_grad():
            held_out = fl.MinibatchSource(ratings(3000, seed=1), max_sweeps=1, partition=(0, 1)).next_minibatch(3000)
            error = (model(held_out) - held_out["rating"].torch()).square().mean().sqrt().item()
        print(
            f"rank {store.rank} of {store.num_workers}: error {error:.4f}, "
            f"{pulled / steps:.0f} of {USERS + ITEMS} rows pulled a step\n",
            end="",
        )
    return error


if __name__ == "__main__":
    main()
