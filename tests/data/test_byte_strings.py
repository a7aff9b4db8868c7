"""Values of byte strings and texts: views of one buffer, as Python, NumPy and torch want them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from feedline import Schema, Stream, Value
from feedline.errors import SchemaError


def test_a_declaration():
    assert Stream(dtype="bytes") == Stream(dtype=bytes) == Stream(dtype="S")
    assert Stream(dtype="str") == Stream(dtype=str)
    assert repr(Stream(dtype="str", field="t")) == "Stream(dtype='str', field='t')"
    assert [Stream(dtype=d).kind for d in ("bytes", "str", "float32", "S3")] == ["bytes", "str", "dense", "dense"]
    assert (Stream(dtype="str").is_text, Stream(dtype="bytes").is_text) == (True, False)
    assert not Stream((), "S3").is_bytes  # of one size
    digests = {Schema({"x": Stream((), dtype)}).digest for dtype in ("bytes", "str", "uint8", "S1")}
    assert len(digests) == 4


def test_one_sample_each():
    value = Value.from_bytes([b"abc", b"", b"\0\0"])
    assert value.tolist() == [b"abc", b"", b"\0\0"]
    assert value.sequences() == [[b"abc"], [b""], [b"\0\0"]]
    assert (value.bounds.tolist(), value.data.tobytes(), value.sizes.tolist()) == ([0, 3, 3, 5], b"abc\0\0", [3, 0, 2])
    assert (value.num_sequences, value.num_samples, value.one_sample_each, value.kind) == (3, 3, True, "bytes")
    assert value.slice(1, 3).tolist() == [b"", b"\0\0"]
    assert value.select([2, 0, 0]).tolist() == [b"\0\0", b"abc", b"abc"]
    assert repr(value) == "Value(bytes, 3 samples, 5 bytes)"
    assert value == Value.from_buffer(b"abc\0\0", [0, 3, 3, 5])
    assert value != Value.from_buffer(b"abc\0\0", [0, 3, 3, 5], "str")
    assert value != Value.from_buffer(b"abc\0\0", [0, 2, 3, 5])


def test_several_samples_each():
    value = Value.from_bytes([["a", "é"], [], ["\0"]])
    assert value.tolist() == value.sequences() == [["a", "é"], [], ["\0"]]
    assert (value.offsets.tolist(), value.bounds.tolist()) == ([0, 2, 2, 3], [0, 1, 3, 4])
    assert value.slice(1, 3).tolist() == [[], ["\0"]]
    assert value.select([2, 0]).tolist() == [["\0"], ["a", "é"]]
    assert value.padded().tolist() == [[[97, 0], [195, 169]], [[0, 0], [0, 0]], [[0, 0], [0, 0]]]
    assert Value.from_bytes([["a"], ["b"]]).one_sample_each


def test_a_buffer_is_not_copied():
    data = np.frombuffer(b"0123456789", np.uint8)
    value = Value.from_buffer(data, [0, 4, 10])
    assert np.shares_memory(value.data, data)
    assert np.shares_memory(value.slice(1, 2).data, data)


def test_padded():
    value = Value.from_bytes([b"abc", b"", b"d"])
    assert value.padded().tolist() == np.asarray(value).tolist() == [[97, 98, 99], [0, 0, 0], [100, 0, 0]]
    padded, mask = value.padded_samples(fill=1, length=4)
    assert padded[1].tolist() == [1, 1, 1, 1]
    assert mask.sum(axis=1).tolist() == [3, 0, 1]
    assert value.dense().rows.dtype == np.uint8
    assert Value.from_bytes([]).padded().shape == (0, 0)


def test_torch():
    value = Value.from_bytes([b"abc", b"", b"d"])
    listed = value.torch()
    assert [t.dtype for t in listed] == [torch.uint8] * 3
    assert [bytes(t.tolist()) for t in listed] == [b"abc", b"", b"d"]
    assert value.torch(layout="padded").tolist() == value.padded().tolist()
    assert [len(t) for t in value.torch(layout="nested").unbind()] == [3, 0, 1]
    ragged = Value.from_bytes([["a", "é"], []])
    assert [[bytes(t.tolist()).decode() for t in row] for row in ragged.torch()] == [["a", "é"], []]
    assert ragged.torch(layout="packed").tolist() == [[97, 0], [195, 169]]
    with pytest.raises(ValueError, match="layout='list'"):
        ragged.torch(layout="nested")
    with pytest.raises(ValueError, match="numbers for layout='csr'"):
        value.torch(layout="csr")
    with pytest.raises(ValueError, match="'list' for byte strings"):
        Value.from_dense([1]).torch(layout="list")


def test_what_byte_strings_are_not():
    value = Value.from_bytes([b"a"])
    for what, message in (("class_indices", "one-hot"), ("to_scipy", "SciPy")):
        with pytest.raises(TypeError, match=message):
            getattr(value, what)()
    with pytest.raises(TypeError, match=r"\.tolist\(\)"):
        value.rows  # noqa: B018
    with pytest.raises(SchemaError, match="expected samples of str for stream `x`, got samples of bytes"):
        value.check("x", Stream(dtype="str"))
    with pytest.raises(SchemaError, match=r"expected dense float32 .* for stream `x`, got samples of bytes"):
        value.check("x", Stream())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Value.from_bytes([b"a", "b"]), TypeError, "only bytes samples, got str"),
        (lambda: Value.from_bytes([b"a"], "str"), TypeError, "str samples, got bytes"),
        (lambda: Value.from_bytes([1]), TypeError, "bytes or str"),
        (lambda: Value.from_bytes(["\ud800"]), ValueError, "UTF-8 can represent"),
        (lambda: Value.from_buffer(b"ab", [0, 3]), ValueError, "from 0 to 2"),
        (lambda: Value.from_buffer(b"ab", [0, 2], "float32"), ValueError, "'bytes' or 'str'"),
        (lambda: Value.from_buffer(np.zeros(2), [0, 2]), ValueError, "uint8"),
        (lambda: Value.from_buffer(b"ab", [0, 1, 2], offsets=[0, 1]), ValueError, "offsets from 0 to 2"),
    ],
)
def test_impossible_byte_strings(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_tolist_of_numbers():
    assert Value.from_dense([[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]
    assert Value.from_dense([1, 2, 3], offsets=[0, 2, 3]).tolist() == [[1, 2], [3]]
    assert Value.one_hot([1, 0], 2).tolist() == [[0, 1], [1, 0]]
