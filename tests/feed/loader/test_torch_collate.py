"""The content of batches: `default_collate` and `collate_fn`, for torch's DataLoader and ours."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from tests.feed.loader.swapped import Function, Numbers, Pair, both, same, torch, workers

pytestmark = [both, workers]


def one_batch(Loader, workers, function, n=3, **options):
    """The only batch of samples 0 … n-1."""
    (batch,) = list(Loader(Function(function, n), batch_size=n, num_workers=workers, **options))
    return batch


def is_tensor(got, values, dtype):
    assert isinstance(got, torch.Tensor)
    assert got.dtype == dtype
    assert torch.equal(got, torch.tensor(values, dtype=dtype))


def as_int(i):
    return i


def as_float(i):
    return i / 2


def as_bool(i):
    return i > 0


def as_numpy_float64(i):
    return np.float64(i)


def as_numpy_int32(i):
    return np.int32(i)


def as_numpy_bool(i):
    return np.bool_(i > 0)


def as_numpy_uint8(i):
    return np.uint8(i)


@pytest.mark.parametrize(
    ("function", "values", "dtype"),
    [
        (as_int, [0, 1, 2], torch.int64),
        (as_float, [0, 0.5, 1], torch.float64),
        (as_bool, [False, True, True], torch.bool),
        (as_numpy_float64, [0, 1, 2], torch.float64),
        (as_numpy_int32, [0, 1, 2], torch.int32),
        (as_numpy_uint8, [0, 1, 2], torch.uint8),
        (as_numpy_bool, [False, True, True], torch.bool),
    ],
)
def test_numbers_become_a_tensor(Loader, workers, function, values, dtype):
    is_tensor(one_batch(Loader, workers, function), values, dtype)


def tensor(i):
    return torch.full((2, 3), i, dtype=torch.float16)


def array(i):
    return np.full((2, 3), i, np.int16)


def scalar_array(i):
    return np.array(i, np.float32)


def empty_array(i):
    return np.zeros((0, 3), np.float32)


def test_tensors_and_arrays_are_stacked(Loader, workers):
    rows = [[[i] * 3] * 2 for i in range(3)]
    is_tensor(one_batch(Loader, workers, tensor), rows, torch.float16)
    is_tensor(one_batch(Loader, workers, array), rows, torch.int16)
    is_tensor(one_batch(Loader, workers, scalar_array), [0, 1, 2], torch.float32)
    assert one_batch(Loader, workers, empty_array).shape == (3, 0, 3)


def strided(i):
    return np.arange(12, dtype=np.float32).reshape(3, 4).T[::-1].copy()[:, ::2] + i


def turned(i):
    return torch.arange(12).reshape(3, 4).t() + i


def test_layout_in_memory_is_not_seen(Loader, workers):
    is_tensor(one_batch(Loader, workers, strided), np.stack([strided(i) for i in range(3)]).tolist(), torch.float32)
    is_tensor(one_batch(Loader, workers, turned), [turned(i).tolist() for i in range(3)], torch.int64)


def text(i):
    return "abc"[i] * i


def binary(i):
    return b"abc"[i : i + 1]


def test_strings_stay(Loader, workers):
    assert one_batch(Loader, workers, text) == ["", "b", "cc"]
    assert one_batch(Loader, workers, binary) == [b"a", b"b", b"c"]


def nested(i):
    return {"image": np.full(2, i, np.float32), "label": i, "name": str(i), "more": [i, (float(i), f"x{i}")]}


def test_trees_keep_their_shape(Loader, workers):
    batch = one_batch(Loader, workers, nested)
    assert type(batch) is dict
    assert list(batch) == ["image", "label", "name", "more"]
    is_tensor(batch["image"], [[0, 0], [1, 1], [2, 2]], torch.float32)
    is_tensor(batch["label"], [0, 1, 2], torch.int64)
    assert batch["name"] == ["0", "1", "2"]
    numbers, (floats, names) = batch["more"]
    is_tensor(numbers, [0, 1, 2], torch.int64)
    is_tensor(floats, [0, 1, 2], torch.float64)
    assert list(names) == ["x0", "x1", "x2"]


def two(i):
    return i, float(i)


def two_listed(i):
    return [i, float(i)]


def test_tuples_and_lists_become_lists(Loader, workers):
    for function in (two, two_listed):
        batch = one_batch(Loader, workers, function)
        assert type(batch) is list
        is_tensor(batch[0], [0, 1, 2], torch.int64)
        is_tensor(batch[1], [0, 1, 2], torch.float64)


def pair(i):
    return Pair(data=torch.tensor([i, i + 1]), label=i)


def test_named_tuples_keep_their_type(Loader, workers):
    batch = one_batch(Loader, workers, pair)
    assert type(batch) is Pair
    is_tensor(batch.data, [[0, 1], [1, 2], [2, 3]], torch.int64)
    is_tensor(batch.label, [0, 1, 2], torch.int64)


def ordered(i):
    return OrderedDict([("b", i), ("a", str(i))])


def user_dict(i):
    return UserDict(a=i)


def test_mappings_keep_their_type(Loader, workers):
    batch = one_batch(Loader, workers, ordered)
    assert type(batch) is OrderedDict
    assert list(batch) == ["b", "a"]
    assert type(one_batch(Loader, workers, user_dict)) is UserDict


class ReadOnly(Mapping):
    """A mapping that cannot be made from a dictionary: the batch is a dictionary then."""

    def __init__(self, i: int, j: int) -> None:
        self.i, self.j = i, j

    def __getitem__(self, key):
        return {"i": self.i, "j": self.j}[key]

    def __iter__(self):
        return iter("ij")

    def __len__(self):
        return 2


def read_only(i):
    return ReadOnly(i, -i)


def test_mappings_that_cannot_be_built_become_dictionaries(Loader, workers):
    batch = one_batch(Loader, workers, read_only)
    assert type(batch) is dict
    is_tensor(batch["j"], [0, -1, -2], torch.int64)


def growing(i):
    return list(range(i))


def growing_tensor(i):
    return torch.zeros(i)


def nothing(i):
    return None


def text_array(i):
    return np.array(["a", "b"])


def object_array(i):
    return np.array([object()], dtype=object)


@dataclass
class Sample:
    """No type that `default_collate` knows."""

    value: int


def known_by_nobody(i):
    return Sample(i)


@pytest.mark.parametrize(
    ("function", "error", "says"),
    [
        (growing, RuntimeError, "equal size"),
        (growing_tensor, RuntimeError, "size"),
        (nothing, TypeError, "NoneType"),
        (text_array, TypeError, "U"),
        (object_array, TypeError, "object"),
        (known_by_nobody, TypeError, "Sample"),
    ],
)
def test_what_cannot_be_batched_is_an_error(Loader, workers, function, error, says):
    with pytest.raises(error, match=says):
        one_batch(Loader, workers, function)


def mixed(i):
    return [1, "a", 2.5][i]


def test_mixed_types_are_an_error_unless_collated_by_the_user(Loader, workers):
    with pytest.raises(TypeError):
        one_batch(Loader, workers, mixed)
    assert one_batch(Loader, workers, mixed, collate_fn=same) == [1, "a", 2.5]


def test_any_type_by_a_custom_collate_fn(Loader, workers):
    assert one_batch(Loader, workers, known_by_nobody, collate_fn=same) == [Sample(0), Sample(1), Sample(2)]


class Packed:
    """A batch of one's own type."""

    def __init__(self, samples) -> None:
        self.rows = torch.cat(samples)
        self.lengths = [len(sample) for sample in samples]
        self.pinned = False

    def pin_memory(self):
        self.pinned = True
        return self


def test_a_custom_batch_type(Loader, workers):
    batch = one_batch(Loader, workers, growing_tensor, collate_fn=Packed)
    assert type(batch) is Packed
    assert batch.lengths == [0, 1, 2]
    assert batch.rows.shape == (3,)
    assert batch.pinned is False


@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinning memory needs CUDA")
def test_a_custom_batch_type_pins_itself(Loader, workers):
    assert one_batch(Loader, workers, growing_tensor, collate_fn=Packed, pin_memory=True).pinned is True


@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinning memory needs CUDA")
def test_trees_are_pinned(Loader, workers):
    batch = one_batch(Loader, workers, nested, pin_memory=True)
    assert batch["image"].is_pinned()
    assert batch["more"][0].is_pinned()
    assert batch["name"] == ["0", "1", "2"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA")
def test_without_an_accelerator_pinning_warns(Loader, workers):
    with pytest.warns(UserWarning, match="pin_memory"):
        batch = one_batch(Loader, workers, growing_tensor, collate_fn=Packed, pin_memory=True)
    assert batch.pinned is False


def ten_times(samples):
    return torch.tensor(samples) * 10


def test_a_collate_fn_gets_the_samples_in_order(Loader, workers):
    loader = Loader(Numbers(5), batch_size=2, collate_fn=ten_times, num_workers=workers)
    assert [batch.tolist() for batch in loader] == [[0, 10], [20, 30], [40]]


def nothing_at_all(samples):
    return None


def test_a_batch_may_be_none(Loader, workers):
    assert list(Loader(Numbers(4), batch_size=2, collate_fn=nothing_at_all, num_workers=workers)) == [None, None]


def test_a_batch_is_its_readers_own(Loader, workers):
    """Writing into a batch changes no other batch and no later sweep."""
    loader = Loader(Function(tensor, 4), batch_size=2, num_workers=workers)
    iterator = iter(loader)
    first = next(iterator)
    second = next(iterator)
    first.fill_(-1)
    assert torch.equal(second, torch.stack([tensor(2), tensor(3)]))
    kept = list(loader)
    assert torch.equal(torch.cat(kept), torch.stack([tensor(i) for i in range(4)]))


def test_batches_kept_stay_as_they_were(Loader, workers):
    """However many are held."""
    kept = list(Loader(Function(tensor, 60), batch_size=2, num_workers=workers))
    assert [batch[:, 0, 0].tolist() for batch in kept] == [[i, i + 1] for i in range(0, 60, 2)]


def sparse(i):
    return torch.sparse_coo_tensor([[i]], [float(i + 1)], (3,), check_invariants=True)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_sparse_tensors(Loader, workers):
    batch = one_batch(Loader, workers, sparse, collate_fn=torch.stack)
    assert torch.equal(batch.to_dense(), torch.diag(torch.tensor([1.0, 2.0, 3.0])))


def complex_number(i):
    return torch.complex(torch.tensor(float(i)), torch.tensor(1.0))


def half(i):
    return torch.tensor([i, 1], dtype=torch.bfloat16)


def test_types_numpy_has_not(Loader, workers):
    is_tensor(one_batch(Loader, workers, complex_number), [0 + 1j, 1 + 1j, 2 + 1j], torch.complex64)
    is_tensor(one_batch(Loader, workers, half), [[0, 1], [1, 1], [2, 1]], torch.bfloat16)
