"""Values reach torch without hidden copies, in four layouts."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from feedline import Stream, Value

torch = pytest.importorskip("torch", reason="torch is not installed")


def test_samples_share_memory():
    """One sample a sequence: the tensor is the array."""
    value = Value.from_dense(np.arange(6, dtype="f4").reshape(3, 2))
    tensor = value.torch()
    assert tensor.data_ptr() == value.rows.ctypes.data
    assert tensor.tolist() == value.rows.tolist()


def test_layouts_of_sequences():
    """Padded, packed, nested and CSR hold the same rows."""
    parts = [np.arange(4, dtype="f4").reshape(2, 2), np.ones((3, 2), "f4")]
    value = Value.from_sequences(parts)
    assert value.torch().shape == (2, 3, 2)
    assert value.torch(layout="packed").shape == (5, 2)
    nested = value.torch(layout="nested")
    assert [t.tolist() for t in nested.unbind()] == [p.tolist() for p in parts]
    assert value.torch(layout="csr").to_dense().tolist() == np.concatenate(parts).tolist()
    with pytest.raises(ValueError, match="'padded', 'packed', 'nested', 'csr'"):
        value.torch(layout="wide")


def test_sparse_values():
    """CSR by default. The other layouts densify, and repeated indices add up in products."""
    value = Value.from_csr([0, 2, 2, 3], [3, 1, 1], np.array([1, 2, 4], "f4"), 5, [0, 2, 3])
    csr = value.torch()
    assert csr.layout == torch.sparse_csr
    assert (csr @ torch.eye(5)).tolist() == value.dense().rows.tolist()
    assert value.torch(layout="padded").shape == (2, 2, 5)
    assert Value.one_hot([1, 2], 3).torch(layout="padded").tolist() == [[0, 1, 0], [0, 0, 1]]


def test_empty_parts():
    """An empty part is a tensor of no rows."""
    assert Value.empty(Stream(4)).torch().shape == (0, 4)
    assert Value.empty(Stream(4), ragged=True).torch().shape == (0, 0, 4)
    assert Value.empty(Stream(4, sparse=True)).torch().shape == (0, 4)


def test_read_only_memory_is_copied():
    """torch would write through a mapped file, so it gets a copy instead."""
    rows = np.zeros((2, 2), "f4")
    rows.flags.writeable = False
    tensor = Value.from_dense(rows).torch()
    tensor += 1
    assert rows.sum() == 0


def test_a_missing_framework_names_the_extra():
    """Without torch, and without JAX, the error names the extra to install."""
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['jax'] = None\n"
        "import numpy as np, feedline as fl\n"
        "from feedline.errors import install_line\n"
        "for name in ('torch', 'jax'):\n"
        "    try: getattr(fl.Value.from_dense(np.zeros(2)), name)()\n"
        "    except ModuleNotFoundError as e: assert install_line(name) in str(e), e\n"
        "    else: raise SystemExit('no error')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_arrays_that_torch_does_not_know_are_copied():
    """Another byte order, or steps backwards: torch would refuse them."""
    rows = np.arange(6, dtype=">f4").reshape(3, 2)
    for array in (rows, rows[::-1], rows.astype("f4")[:, ::-1]):
        tensor = Value.from_dense(array).torch()
        assert tensor.dtype == torch.float32
        assert tensor.tolist() == array.tolist()


@pytest.mark.skipif(torch.accelerator.is_available(), reason="an accelerator is there to pin for")
def test_pinning_without_an_accelerator_is_reported():
    with pytest.raises(RuntimeError, match=r"expected an accelerator.*leave out pin_memory"):
        Value.from_dense(np.ones((3, 2))).torch(pin_memory=True)


@pytest.mark.parametrize("layout", ["padded", "packed", "nested", "csr"])
@pytest.mark.parametrize("stream", [Stream(3), Stream((2, 2)), Stream(5, sparse=True)])
@pytest.mark.parametrize("ragged", [False, True])
def test_empty_parts_in_every_layout(layout, stream, ragged):
    """A rank's part of a minibatch may be empty."""
    tensor = Value.empty(stream, ragged).torch(layout=layout)
    assert tensor.size(0) == 0
    assert tensor.dtype == torch.float32
