"""Memory comes back when the last array over it is gone, and not before."""

import gc
import threading

import numpy as np
import pytest

import feedline as fl
from feedline import _native
from feedline._native import recycled
from tests.forked import Forked

SHAPE = (1 << 18, 1)  # of float32: 1 MiB


def address(array):
    return array.__array_interface__["data"][0]


@pytest.fixture(autouse=True)
def fresh():
    """Begin without memory of earlier tests."""
    gc.collect()
    _native.release_memory()


def test_an_array_is_like_any_other():
    array = recycled.empty((3, 1 << 18), np.float32)
    assert (array.shape, array.dtype) == ((3, 1 << 18), np.float32)
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert array.flags.aligned
    array[:] = 1
    assert array.sum() == 3 << 18


@pytest.mark.parametrize(("shape", "dtype"), [((0,), "u1"), ((5,), "f8"), ((2, 0, 3), "u1"), ((1 << 20,), object)])
def test_small_arrays_and_objects_are_left_to_numpy(shape, dtype):
    assert recycled.empty(shape, dtype).flags.owndata


@pytest.mark.parametrize("dtype", ["datetime64[s]", ">i4", "U5", "V3", np.dtype([("a", "i1"), ("b", "f8")])])
def test_any_dtype_of_fixed_size(dtype):
    array = recycled.empty((1 << 17,), dtype)
    array[:] = np.zeros(1, dtype)
    assert array.dtype == dtype
    assert isinstance(array.base, _native.ArrayMemory)
    assert (array == np.zeros(1, dtype)).all()


def test_memory_is_used_again_once_nobody_refers_to_it():
    first = recycled.empty(SHAPE, np.float32)
    where = address(first)
    other = recycled.empty(SHAPE, np.float32)
    assert address(other) != where
    view = first[5:].T[..., ::2]
    del first
    assert address(recycled.empty(SHAPE, np.float32)) != where
    del view
    assert address(recycled.empty((1 << 17, 1), np.float64)) == where  # of another dtype


@pytest.mark.parametrize("via", ["from_numpy", "as_tensor", "from_dlpack", "frombuffer"])
def test_a_tensor_keeps_its_memory(via):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    first = recycled.empty(SHAPE, np.float32)
    first[:] = 7
    where = address(first)
    tensor = torch.frombuffer(first, dtype=torch.float32) if via == "frombuffer" else getattr(torch, via)(first)
    part = tensor[3:]
    del first, tensor
    gc.collect()
    recycled.empty(SHAPE, np.float32)[:] = 1
    assert (part == 7).all()
    del part
    gc.collect()
    kept = [recycled.empty(SHAPE, np.float32) for _ in range(3)]
    assert where in [address(array) for array in kept]


def test_a_buffer_keeps_its_memory():
    first = recycled.empty(SHAPE, np.uint8)
    first[:] = 7
    view = memoryview(first)[1:]
    del first
    recycled.empty(SHAPE, np.uint8)[:] = 1
    assert view[0, 0] == 7


def test_memory_of_another_size_is_not_used():
    where = address(recycled.empty(SHAPE, np.float32))
    small = recycled.empty((1 << 17, 1), np.float32)
    large = recycled.empty((1 << 19, 1), np.float32)
    assert where not in (address(small), address(large))
    assert large.nbytes == 2 << 20


def test_unused_memory_is_limited_by_what_was_in_use():
    for _ in range(200):
        kept = [recycled.empty(SHAPE, np.float32) for _ in range(3)]
        del kept
    assert _native.memory_usage()[1] == 3 << 20
    many = [recycled.empty(SHAPE, np.float32) for _ in range(150)]
    del many
    assert _native.memory_usage()[1] == 64 << 20


def test_released_memory_goes_back_with_the_last_array():
    kept, dropped = recycled.empty(SHAPE, np.float32), recycled.empty(SHAPE, np.float32)
    before = _native.memory_usage()[0]
    kept[:] = 7
    del dropped
    _native.release_memory()
    assert _native.memory_usage() == (before - (1 << 20), 0)
    assert (kept == 7).all()
    del kept
    assert _native.memory_usage() == (before - (2 << 20), 0)


def test_too_large_an_array_is_numpy_s_error():
    with pytest.raises(MemoryError):
        recycled.empty((1 << 50,), np.uint8)


def test_concatenated_rows():
    parts = [np.arange(12.0).reshape(6, 2), np.empty((0, 2)), np.arange(1 << 17).reshape(-1, 2) * 1.5]
    joined = recycled.concatenate(parts)
    assert joined.dtype == np.float64
    np.testing.assert_array_equal(joined, np.concatenate(parts))
    assert isinstance(joined.base, _native.ArrayMemory)


def test_threads_share_it():
    wrong = []

    def work(number):
        for _ in range(200):
            array = recycled.empty(SHAPE, np.int32)
            array[:] = number
            if (array != number).any():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_forked_child_has_copies():
    kept, dropped = recycled.empty(SHAPE, np.float32), recycled.empty(SHAPE, np.float32)
    kept[:] = 7
    del dropped

    def child():
        array = recycled.empty(SHAPE, np.float32)
        array[:], unchanged = 1, bool((kept == 7).all())
        kept[:] = 2
        _native.release_memory()
        return unchanged and bool((array == 1).all())

    assert Forked(child).status() == 0
    assert (kept == 7).all()


def test_a_decoded_chunk_gets_the_memory_of_one_that_is_gone(tmp_path):
    rows = np.random.default_rng(0).integers(0, 9, (40_000, 4))
    path = tmp_path / "x.ctf"
    path.write_text("".join(f"|x {' '.join(map(str, row))}\n" for row in rows.tolist()))
    corpus = fl.CTFDeserializer(path, {"x": fl.Stream((4,), "float32")}, cache=False)
    _native.release_memory()
    before = _native.memory_usage()
    held = corpus.read(0)["x"].rows
    second = corpus.read(0)["x"].rows
    memory = address(second)
    assert memory != address(held)
    second[:] = -1
    del second
    third = corpus.read(0)["x"].rows
    assert address(third) == memory
    assert np.array_equal(third, rows)
    assert np.array_equal(held, rows)
    del held, third
    gc.collect()
    _native.release_memory()
    assert _native.memory_usage() == before
