"""Gradient compression: nothing is lost except by rounding, and stores send the same codes as the oracle."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feedline.kvstore import RefusedError, create
from feedline.kvstore.compression import Channel, compression
from tests.oracles.kvstore import quantize

KINDS = [{"type": "2bit"}, {"type": "2bit", "threshold": 0.125}, {"type": "1bit"}, {"type": "1bit", "threshold": -1}]


@given(st.sampled_from(KINDS), st.lists(st.lists(st.integers(-40, 40), min_size=5, max_size=5), max_size=8))
def test_what_was_sent_and_the_residual_are_what_was_pushed(parameters, pushes):
    # Multiples of 1/8 add up exactly, thresholds and ones included.
    channel = Channel(compression(parameters), (5,), torch.float32, "cpu")
    sent, pushed = torch.zeros(5), torch.zeros(5)
    for push in pushes:
        gradient = torch.tensor(push, dtype=torch.float32) / 8
        sent += channel.send(gradient)
        channel.commit()
        pushed += gradient
    assert torch.equal(sent + channel.residual, pushed)


@given(st.sampled_from(KINDS), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_a_store_sends_what_the_oracle_sends(parameters, senders, seed):
    rng = np.random.default_rng(seed)
    codec = compression(parameters)
    store = create("device")
    store.init("w", torch.zeros(9))
    store.set_gradient_compression(parameters)
    residuals = [np.zeros(9, "f4")] * senders
    for _ in range(3):
        gradients = rng.normal(size=(senders, 9)).astype("f4")
        store.push("w", list(gradients))
        total = np.zeros(9, "f4")
        for i, gradient in enumerate(gradients):
            _, sent, residuals[i] = quantize(codec.bits, codec.threshold, gradient, residuals[i])
            total += sent
        out = np.empty(9, "f4")
        store.pull("w", out)
        np.testing.assert_array_equal(out, total)


@pytest.mark.parametrize(("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_half_precision_rounds(name, dtype):
    store = create("device")
    store.set_gradient_compression({"type": name})
    store.init("w", torch.zeros(100))
    values = [torch.randn(100), torch.randn(100)]
    store.push("w", values)
    out = torch.empty(100)
    store.pull("w", out)
    assert torch.equal(out, values[0].to(dtype).float() + values[1].to(dtype).float())


def test_a_failed_push_sends_nothing():
    store = create("device")
    store.init("w", torch.zeros(2))
    store.set_gradient_compression({"type": "2bit"})
    got = []

    def update(key, merged, stored):
        got.append(merged.tolist())
        if len(got) == 1:
            raise OSError("mine")

    store.set_updater(update)
    gradient = torch.tensor([0.75, 0.25])
    with pytest.raises(OSError, match="mine"):
        store.push("w", gradient)
    for _ in range(3):
        store.push("w", gradient)
    # 0.75, 1.0 and 1.25 are due, then 0.25, 0.5 and 0.25.
    assert got == [[0.5, 0], [0.5, 0], [0.5, 0.5], [0.5, 0]]


def test_number_of_values_may_change_and_compression_be_set_at_any_time():
    store = create("device")
    store.init("w", torch.zeros(1))
    store.push("w", [torch.ones(1)] * 3)
    store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    for count in (1, 3, 2):
        store.push("w", [torch.ones(1)] * count)
        assert pulled(store) == count * 0.5
    store.set_gradient_compression(None)
    store.push("w", torch.ones(1))
    assert pulled(store) == 1


def pulled(store):
    out = torch.empty(1)
    store.pull("w", out)
    return out.item()


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"threshold": 1.0}, "got None"),
        ({"type": "none"}, "got 'none'"),
        ({"type": "2bit", "threshold": 0}, "above 0"),
        ({"type": "2bit", "threshold": 1e-60}, "above 0"),
        ({"type": "2bit", "threshold": float("nan")}, "finite"),
        ({"type": "1bit", "threshold": "1"}, "finite"),
        ({"type": "fp16", "threshold": 1}, "'threshold'"),
        ({"type": "2bit", "bits": 2}, "'bits'"),
    ],
)
def test_parameters_are_checked(parameters, says):
    with pytest.raises(RefusedError, match=says):
        create("device").set_gradient_compression(parameters)


def test_where_it_cannot_be():
    with pytest.raises(RefusedError, match="'device'"):
        create("local").set_gradient_compression({"type": "2bit"})
    with pytest.raises(TypeError, match="mapping"):
        create("device").set_gradient_compression("2bit")
    store = create("device")
    store.init(["w", "whole"], [torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.int32)])
    store.set_gradient_compression({"type": "2bit"})
    with pytest.raises(RefusedError, match="float32"):
        store.push("w", torch.zeros(2, dtype=torch.float64))
    store.set_gradient_compression({"type": "bf16"})
    with pytest.raises(RefusedError, match="floating point"):
        store.push("whole", torch.zeros(2, dtype=torch.int32))
    with pytest.raises(RefusedError, match="dense"):
        store.push("w", torch.zeros(2, dtype=torch.float64).to_sparse())


@pytest.mark.parametrize("parameters", [*KINDS, {"type": "fp16"}])
def test_parameters_make_an_equal_one(parameters):
    codec = compression(parameters)
    assert compression(codec.parameters()).parameters() == codec.parameters()
    assert codec.parameters()["type"] == parameters["type"]
