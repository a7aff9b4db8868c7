"""`Minibatch.to` and `Minibatch.pin_memory`: what torch and the frameworks call on a batch of any type."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl
from tests.laws.corpora import worlds

torch = pytest.importorskip("torch")
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def dense(tensor):
    return tensor.to_dense() if tensor.layout is torch.sparse_csr else tensor


@given(worlds(), st.integers(1, 30), st.booleans(), st.sampled_from([{}, {"truncation_length": 3}]))
def test_it_is_the_same_minibatch_with_tensors_on_a_device(world, size, non_blocking, rule):
    """Ragged and sparse streams, too. Nothing else changes, and the original minibatch is unchanged."""
    for minibatch in world.source(max_sweeps=1, **rule).minibatches(size):
        before = copy.deepcopy(minibatch)
        moved = minibatch.to("cpu", non_blocking=non_blocking)
        assert minibatch.tensors is None
        assert minibatch == before == moved
        for name in fl.Minibatch.__slots__:
            if name not in ("tensors", "values_by_name"):
                assert getattr(moved, name) is getattr(minibatch, name)
        assert list(moved.tensors) == [name for name in minibatch if name != "t"]  # texts stay on the host
        for name, tensor in moved.tensors.items():
            expected = minibatch[name].torch()
            assert (tensor.dtype, tensor.layout) == (expected.dtype, expected.layout)
            assert torch.equal(dense(tensor), dense(expected))


def make(device=None):
    corpus = fl.ArrayDeserializer(x=[np.ones((n, 2), np.float32) * n for n in (1, 3, 2)], y=np.arange(3))
    return next(fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1).minibatches(10, device=device))


def test_moves_can_be_chained():
    minibatch = make().to("meta")
    assert {name: (tensor.device.type, tuple(tensor.shape)) for name, tensor in minibatch.tensors.items()} == {
        "x": ("meta", (3, 3, 2)),
        "y": ("meta", (3,)),
    }
    moved = make("cpu")
    tensors = moved.tensors
    assert moved.to("cpu").tensors["x"] is tensors["x"]  # as torch: no copy where there is nothing to move
    assert moved.to(torch.device("meta")).tensors["x"].is_meta


def test_the_end_of_a_source_can_be_moved():
    source = fl.MinibatchSource(fl.ArrayDeserializer(x=np.arange(3)), max_sweeps=0)
    end = source.next_minibatch(5).to("cpu")
    assert not end
    assert end.tensors == {}


@pytest.mark.parametrize("device", [torch.float16, None, 1.5])
def test_only_devices(device):
    with pytest.raises(TypeError, match=r"expected a device, .*write minibatch.tensors\[name\].to"):
        make().to(device)


@pytest.mark.parametrize(
    ("module", "name"),
    [("accelerate.utils", "send_to_device"), ("lightning_fabric.utilities.apply_func", "move_data_to_device")],
)
def test_frameworks_move_it(module, name):
    """Libraries move batches of a loader by the same method."""
    move = getattr(pytest.importorskip(module, exc_type=ImportError), name)
    moved = move(make(), torch.device("meta"))
    assert isinstance(moved, fl.Minibatch)
    assert moved.tensors["x"].is_meta


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_pinning_needs_an_accelerator():
    with pytest.raises(RuntimeError):
        make().pin_memory()


@cuda
def test_pinned_and_copied_without_waiting():
    from torch.utils.data._utils.pin_memory import pin_memory

    pinned = pin_memory(make())
    assert isinstance(pinned, fl.Minibatch)
    assert all(tensor.is_pinned() for tensor in pinned.tensors.values())
    moved = pinned.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    assert all(tensor.is_cuda for tensor in moved.tensors.values())
    for name, tensor in moved.tensors.items():
        assert torch.equal(tensor.cpu(), make()[name].torch())
