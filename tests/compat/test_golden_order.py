"""The order of CNTK 2.7 over three sweeps and after restarts, delivered by a source over the same file."""

from __future__ import annotations

import numpy as np
import pytest

import feedline as fl
from tests.compat.golden import cases, shuffle_of


def open_source(case, folder):
    path = folder / "order.ctf"
    if not path.exists():
        path.write_text("".join(f"{i} |A {i}\n" * n for i, n in enumerate(case["lengths"])))
    return fl.MinibatchSource(
        fl.CTFDeserializer(path, A=fl.Stream(1), chunk_size=case["chunkSizeInBytes"], cache=folder),
        seed=case["randomization_seed"],
        shuffle=shuffle_of(case),
        max_sweeps=case["max_sweeps"],
        order="cntk",
        filling="cntk",
    )


def ids_of(source, size):
    return np.concatenate([np.empty(0, int), *(m.ids for m in source.minibatches(size))]).tolist()


@pytest.mark.parametrize("case", cases("order.json"))
def test_order_and_restarts_equal_cntk(case, tmp_path):
    """Also where CNTK forgets the seed on restore. Then the order equals the uninterrupted run's."""
    whole = sum(case["sweeps"], [])
    source = open_source(case, tmp_path)
    assert [info.sequences for info in source.corpus.chunks()] == case["chunks"]
    assert ids_of(source, case["minibatch_size"]) == whole
    for restart in case["restarts"]:
        again = open_source(case, tmp_path)
        again.seek(samples=restart["position"])
        assert ids_of(again, case["minibatch_size"]) == whole[restart["first_sequence_index"] :]
        if restart["first_sequence_index"] < len(whole) and not restart["same_as_uninterrupted"]:
            assert restart["cntk_order"] != whole[restart["first_sequence_index"] :]
