"""Tensors come out of a worker as they went in, in shared memory."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest

from tests.feed.workers.tasks import Task

torch = pytest.importorskip("torch")

DTYPES = ["float32", "float64", "float16", "bfloat16", "uint8", "int8", "int16", "int32", "int64", "bool"]
DTYPES += ["complex64", "float8_e5m2", "uint16"]


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3), (64, 70)])
@pytest.mark.parametrize("name", DTYPES)
def test_dtypes(pool, name, shape):
    dtype = getattr(torch, name)
    code = f"t.arange({math.prod(shape)}).reshape({shape}).to(t.{name})"
    got = pool.result(pool.submit(("evaluate", code.replace("t.", "__import__('torch')."))))
    assert got.dtype is dtype
    assert got.shape == shape
    common = torch.complex64 if dtype.is_complex else torch.float64  # float8 has no equality
    assert got.to(common).equal(eval(code, {"t": torch}).to(common))


CODES = {
    "slice": "t.arange(20000.).reshape(100, 200)[::2, 5:50]",
    "turned": "t.arange(20000.).reshape(100, 200).T",
    "channels last": "t.arange(48000.).reshape(4, 3, 40, 100).contiguous(memory_format=t.channels_last)",
    "expanded": "t.arange(3.).reshape(3, 1).expand(3, 4000)",
    "sparse": "t.eye(5).to_sparse()",
    "conjugate": "t.complex(t.arange(3.), t.ones(3)).conj()",
    "parameter": "t.nn.Parameter(t.ones(100, 100))",
    "leaf": "t.ones(100, 100, requires_grad=True)",
}


@pytest.mark.parametrize("name", CODES)
def test_kinds(pool, name):
    wanted = eval(CODES[name], {"t": torch})
    got = pool.result(pool.submit(("evaluate", CODES[name].replace("t.", "__import__('torch')."))))
    assert type(got) is type(wanted)
    assert got.requires_grad == wanted.requires_grad
    assert got.layout == wanted.layout
    assert (got.to_dense() if got.is_sparse else got).equal(wanted.to_dense() if wanted.is_sparse else wanted)
    if name in ("turned", "channels last"):
        assert got.stride() == wanted.stride()


def test_they_are_writable_views_of_the_workers_memory(pool):
    kept = [pool.result(pool.submit(("evaluate", f"__import__('torch').full((64, 64), {i})"))) for i in range(40)]
    for i, tensor in enumerate(kept):
        assert bool((tensor == i).all())
        tensor += 1
        assert bool((tensor == i + 1).all())


def test_a_tensor_over_an_empty_array_is_not_copied(pool):
    code = """[(a := __import__('torch').from_numpy(__import__('feedline').feed.workers.empty((1000, 100), 'f4'))),
               __import__('tests.inside').inside.result_memory(a)[1]][-1]"""
    assert pool.result(pool.submit(("evaluate", code))) == [400000]


def test_no_worker_imports_torch_for_its_own_sake(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from feedline.feed.workers import Pool\n"
        f"from {Task.__module__} import Task\n"
        "if __name__ == '__main__':\n"
        "    with Pool(Task(), 1) as pool:\n"
        "        assert (pool.result(pool.submit(('copied', 1))) == 1).all()\n"
        "        print(pool.result(pool.submit(('evaluate', \"'torch' in sys.modules\"))), 'torch' in sys.modules)\n"
    )
    out = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, env=_environment())
    assert out.stdout.split() == ["False", "False"], out.stderr


def _environment():
    return os.environ | {"PYTHONPATH": os.pathsep.join(p for p in [os.getcwd(), *sys.path] if p)}
