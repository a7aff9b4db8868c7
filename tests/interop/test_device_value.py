"""Values of tensors on a device, here on the processor: the same as values of arrays."""

import pickle

import numpy as np
import pytest

import feedline as fl

torch = pytest.importorskip("torch", reason="torch is not installed")

from feedline.feed.joined_values import join_values  # noqa: E402
from feedline.interop.device_value import DeviceValue  # noqa: E402


@pytest.fixture(params=["single", "ragged"])
def pair(request):
    """The same value on a device and as arrays."""
    rows = np.random.default_rng(0).standard_normal((10, 3)).astype(np.float32)
    offsets = None if request.param == "single" else np.array([0, 4, 4, 9, 10])
    return DeviceValue(torch.from_numpy(rows), offsets), fl.Value.from_dense(rows, offsets)


def same(a, b):
    assert isinstance(a, DeviceValue)
    np.testing.assert_array_equal(a.rows, b.rows)
    np.testing.assert_array_equal(a.offsets, b.offsets)
    for layout in (None, "padded", "packed"):
        np.testing.assert_array_equal(a.torch(layout=layout).numpy(), b.torch(layout=layout).numpy())


def test_it_is_the_value_of_its_rows(pair):
    same(*pair)
    assert (pair[0].shape, pair[0].dtype, pair[0].num_samples) == ((3,), np.float32, 10)


def test_parts_and_selections(pair):
    on_device, here = pair
    same(on_device.slice(1, 3), here.slice(1, 3))
    same(on_device.slice(2, 2), here.slice(2, 2))
    same(on_device.select([3, 0, 2, 2]), here.select([3, 0, 2, 2]))
    flags = np.arange(len(here)) % 2 == 0
    same(on_device.select(flags), here.select(np.flatnonzero(flags)))


def test_joined_and_pickled(pair):
    on_device, here = pair
    same(join_values([on_device, on_device.slice(0, 2)]), join_values([here, here.slice(0, 2)]))
    copied = pickle.loads(pickle.dumps(on_device))
    np.testing.assert_array_equal(copied.padded(), here.padded())
