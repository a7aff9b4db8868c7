"""Tensors through DLPack's C functions: accepted ones, refused ones, and equal sums with and without them."""

from __future__ import annotations

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed")
if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
    pytest.skip("this torch gives no C functions of DLPack", allow_module_level=True)

from feedline import _native, kvstore  # noqa: E402
from feedline.kvstore import merging  # noqa: E402

MAKE = {
    "float32": lambda n: torch.randn(n),
    "float64": lambda n: torch.randn(n, dtype=torch.float64),
    "float16": lambda n: torch.randn(n).half(),
    "int32": lambda n: torch.arange(n, dtype=torch.int32),
    "strided": lambda n: torch.randn(n, 2)[:, 0],
    "offset": lambda n: torch.randn(n + 1)[1:],
    "longer": lambda n: torch.randn(n + 1),
    "parameter": lambda n: torch.nn.Parameter(torch.randn(n), requires_grad=False),
    "sparse": lambda n: torch.ones(n).to_sparse(),
    "meta": lambda n: torch.empty(n, device="meta"),
}
if torch.cuda.is_available():
    MAKE["cuda"] = lambda n: torch.randn(n, device="cuda")
KINDS = st.sampled_from(sorted(MAKE))
JOBS = st.lists(
    st.tuples(st.integers(0, 9), st.lists(KINDS, min_size=1, max_size=3), st.lists(KINDS, max_size=2)), max_size=5
)


def plain(tensor):
    return type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.is_contiguous()


@given(JOBS, st.integers(1, 3))
def test_takes_exactly_plain_floats_of_one_size_and_adds_them_up_in_order(jobs, threads):
    jobs = [([MAKE[kind](n) for kind in a], [MAKE[kind](n) for kind in b]) for n, a, b in jobs]
    taken, before = [], []
    for inputs, outputs in jobs:
        every, first = [*inputs, *outputs], inputs[0]
        taken.append(
            first.dtype in (torch.float32, torch.float64)
            and all(
                plain(one) and one.is_cpu and one.dtype is first.dtype and one.numel() == first.numel() for one in every
            )
        )
        before.append([one.clone() for one in outputs])
    left = _native.merge_tensors(torch.Tensor, jobs, threads)
    assert [id(one) for one in left] == [id(job) for job, yes in zip(jobs, taken, strict=True) if not yes]
    for (inputs, outputs), yes, old in zip(jobs, taken, before, strict=True):
        if yes:
            total = inputs[0].clone()
            for one in inputs[1:]:
                total = total + one
            assert all(torch.equal(one, total) for one in outputs)
        else:
            assert all(a.is_meta or torch.equal(a.to_dense(), b.to_dense()) for a, b in zip(outputs, old, strict=True))


SHAPES = st.sampled_from([(), (0,), (3,), (1, 3), (3, 1), (2, 3), (3, 2), (0, 2)])


@given(st.lists(st.tuples(SHAPES, st.lists(st.tuples(SHAPES, st.booleans(), st.booleans()), max_size=3)), max_size=3))
def test_all_like_is_what_python_finds(groups):
    made = []
    for shape, others in groups:
        tensors = []
        for other, double, turned in others:
            one = torch.zeros(other[::-1]).T if turned and len(other) == 2 else torch.zeros(other)
            tensors.append(one.double() if double else one)
        made.append((torch.zeros(shape), tensors))
    for dtypes in (False, True):
        expected = all(
            one.shape == like.shape and one.is_contiguous() and (not dtypes or one.dtype is like.dtype)
            for like, tensors in made
            for one in tensors
        )
        assert _native.all_like(torch.Tensor, made, dtypes) is expected


@pytest.mark.parametrize("kind", ["parameter", "sparse"])
def test_all_like_does_not_vouch_for_what_it_cannot_see(kind):
    assert not _native.all_like(torch.Tensor, [(torch.ones(3), [MAKE[kind](3)])], True)
    assert not _native.all_like(torch.Tensor, [(torch.ones(3), [torch.ones(3).numpy()])], True)


def test_what_no_tensor_type_gives_is_refused():
    class Other:
        pass

    with pytest.raises(AttributeError, match="exchange_api"):
        _native.merge_tensors(Other, [])
    Other.__dlpack_c_exchange_api__ = 3
    with pytest.raises(ValueError, match="PyCapsule"):
        _native.all_like(Other, [], True)
    table = (ctypes.c_uint64 * 7)(2, 0, 1, 1, 1, 1, 1)  # version 2.0, with functions that must not be called
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    Other.__dlpack_c_exchange_api__ = new(ctypes.addressof(table), b"dlpack_exchange_api", None)
    with pytest.raises(ValueError, match="version 1"):
        _native.merge_tensors(Other, [])
    with pytest.raises(ValueError, match="threads >= 1"):
        _native.merge_tensors(torch.Tensor, [], 0)
    with pytest.raises(ValueError, match="at least one input"):
        _native.merge_tensors(torch.Tensor, [([], [torch.ones(2)])])


def test_a_store_without_the_functions_gives_the_same(monkeypatch):
    values = [[MAKE[kind](5).contiguous(), MAKE[kind](5)] for kind in ("float32", "float64", "int32", "strided")]

    def through():
        store, outs = kvstore.create("local"), [torch.zeros_like(value[0]) for value in values]
        store.init([1, 2, 3, 4], [value[0] for value in values])
        store.pushpull([1, 2, 3, 4], values, outs)
        return outs

    seen = []
    real = _native.merge_tensors
    monkeypatch.setattr(_native, "merge_tensors", lambda *given: seen.append(given) or real(*given))
    with_functions = through()
    assert seen
    seen.clear()
    monkeypatch.setattr(merging, "_EXCHANGE", False)
    without = through()
    assert not seen
    assert all(torch.equal(a, b) for a, b in zip(with_functions, without, strict=True))
