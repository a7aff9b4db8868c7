"""Tensors in files: complete or refused, for any changed byte. No other file in their place blocks a reader."""

from __future__ import annotations

import contextlib
import fcntl
import json
import multiprocessing
import os
import sys
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline as fl  # noqa: E402
from feedline import _native  # noqa: E402
from feedline.interop import tensor_file  # noqa: E402
from feedline.interop.seal import BLANK, add_seal  # noqa: E402
from feedline.interop.tensor_file import load_contents, load_state, load_tensors, save_tensors  # noqa: E402

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]


def tensors():
    rng = np.random.default_rng(0)
    made = {f"t{i}": torch.from_numpy(rng.normal(size=(i, 3)) * 4).to(d) for i, d in enumerate(DTYPES)}
    return {**made, "scalar": torch.tensor(2.5), "tied": made["t1"]}


STATE = {"rate": 0.1, "best": None, "name": "seal", "n": 2**53}


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    path = tmp_path_factory.mktemp("tensors") / "t"
    save_tensors(path, tensors(), STATE)
    return path.read_bytes()


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return tmp_path_factory.mktemp("damaged") / "t"


def same(a, b):
    return a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in a)


def changed(data, content):
    """The content with one change: a flipped bit, other bytes, some more or some less."""
    largest = len(content) - 1
    at = data.draw(st.one_of(st.integers(0, largest), st.integers(0, min(largest, 1200))))  # in the header, too
    bytes_ = st.binary(min_size=1, max_size=70)
    how = data.draw(st.sampled_from(["bit", "bytes", "insert", "delete", "cut", "extend"]))
    damaged = bytearray(content)
    if how == "bit":
        damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    elif how == "bytes":
        new = data.draw(bytes_)
        damaged[at : at + len(new)] = new[: len(damaged) - at]
    elif how == "insert":
        damaged[at:at] = data.draw(bytes_)
    elif how == "delete":
        del damaged[at : at + data.draw(st.integers(1, 70))]
    elif how == "cut":
        del damaged[at:]
    else:
        damaged += data.draw(bytes_)
    return bytes(damaged)


def test_round_trip(target):
    """Tensors, shared ones and the state, also read by the safetensors library."""
    from safetensors.torch import load_file

    target.unlink(missing_ok=True)
    seal = save_tensors(target, tensors(), STATE)
    found, state, found_seal = load_contents(target)
    assert same(found, tensors())
    assert found["tied"] is found["t1"]
    assert (state, found_seal) == (STATE, seal)
    assert load_state(target) == STATE
    library = load_file(target)
    assert same(library, {name: tensor for name, tensor in tensors().items() if name != "tied"})
    target.unlink()
    assert save_tensors(target, tensors(), {**STATE, "rate": 0.2}) != seal


@given(st.data())
def test_any_change_is_noticed(content, target, data):
    damaged = changed(data, content)
    target.write_bytes(damaged)
    if damaged == content:
        assert same(load_tensors(target)[0], tensors())
        return
    with pytest.raises(fl.StateError, match=str(target)):
        load_tensors(target)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"state"', b'"stats"'),  # once read as no state
        (b'\\"tied\\": \\"t1\\"', b'\\"tied\\": \\"t3\\"'),  # once read as another tensor's values
        (b"0.1", b"0.2"),
        (b'"t2"', b'"t9"'),
        (b'"version\\": 2', b'"version\\": 1'),
        (b'"seal"', b'"sead"'),
        (b"__metadata__", b"__metadate__"),
    ],
)
def test_a_changed_header_is_noticed(content, target, old, new):
    assert old in content
    target.write_bytes(content.replace(old, new, 1))
    for read in (load_tensors, load_state):
        with pytest.raises(fl.StateError, match=str(target)):
            read(target)


def test_checksums_are_both_polynomials(content):
    """64 bits for each tensor: as CRC-32C and CRC-32 have no common factor, together they are a CRC of 64 bits."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    sums = json.loads(header["__metadata__"]["feedline"])["crc64"]
    for name, about in header.items():
        if name != "__metadata__":
            a, b = about["data_offsets"]
            part = content[8 + length + a : 8 + length + b]
            assert sums[name] == f"{_native.crc32c(part):08x}{zlib.crc32(part):08x}"


def test_large_tensors_are_checked_on_a_thread_that_does_not_stay(target, leaves_nothing):
    big = {"a": torch.arange(1 << 19), "b": torch.rand(1 << 18)}
    target.unlink(missing_ok=True)
    save_tensors(target, big)
    assert same(load_tensors(target)[0], big)
    with open(target, "r+b") as file:
        file.seek(1 << 20)
        file.write(b"\xff")
    with pytest.raises(fl.StateError, match="checksum"):
        load_tensors(target)


def header_of(**entries):
    """Return a sealed header with any content."""
    about = json.dumps({"version": tensor_file.VERSION, "aliases": {}, "crc64": {}})
    text = json.dumps({"__metadata__": {"seal": BLANK, "feedline": about}, **entries}).encode()
    return add_seal(len(text).to_bytes(8, "little") + text, 8 + text.index(BLANK.encode()))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        (1 << 62).to_bytes(8, "little") + b"{}",
        (10**6).to_bytes(8, "little") + b"[" * 10**6,
        (2).to_bytes(8, "little") + b"[]",
        header_of(a={"dtype": "F32", "shape": [10**30], "data_offsets": [0, 4 * 10**30]}),
        header_of(a={"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4 << 40]}),
        header_of(a={"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}) + b"1234",
        header_of(a={"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}) + b"1234",
        header_of(a={"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}) + b"1234",
        header_of(a={"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}) + b"12345678",
        header_of(a=3),
        header_of() + b"more",
    ],
    ids=lambda content: f"{content[8:70]!r}",
)
def test_hostile_files_are_refused(target, content):
    target.write_bytes(content)
    with pytest.raises(fl.StateError, match=str(target)):
        load_tensors(target)


# ---- not regular files---------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["fifo", "folder", "device", "dangling", "loop", "nothing"])
def test_other_things_in_a_files_place_are_refused_at_once(tmp_path, what):
    path = tmp_path / "t"
    if what == "fifo":
        os.mkfifo(path)  # to open it would wait for a writer
    elif what == "folder":
        path.mkdir()
    elif what != "nothing":
        path.symlink_to({"device": "/dev/zero", "dangling": tmp_path / "none", "loop": path}[what])
    for read in (load_tensors, load_state):
        with pytest.raises(fl.StateError, match=str(path)):
            read(path)


def test_a_link_to_a_file_is_a_file(tmp_path, content):
    (tmp_path / "t").write_bytes(content)
    (tmp_path / "link").symlink_to("t")
    assert same(load_tensors(tmp_path / "link")[0], tensors())


def test_a_state_that_is_nested_too_deeply_is_refused(tmp_path):
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(TypeError, match="JSON"):
        tensor_file.check_json({"deep": deep})


def test_conjugates_and_negatives_are_not_what_they_share_memory_with(tmp_path):
    numbers = torch.complex(torch.ones(3), torch.ones(3))
    given = {"a": numbers, "b": numbers.conj(), "c": numbers.imag, "d": numbers.conj().imag}
    save_tensors(tmp_path / "t", given)
    tensors, _ = load_tensors(tmp_path / "t")
    assert all(torch.equal(tensors[name], tensor) for name, tensor in given.items())


def save_again_and_again(path, value, count):
    for _ in range(count):
        # Small ones, as a forked process cannot use torch's threads.
        made = {f"t{i}": torch.full((4000,), float(value)) for i in range(20 + value)}
        tensor_file.replace_tensors(path, made, {"value": value})


def test_processes_that_save_to_one_path_wait_for_each_other(tmp_path):
    """At any instant the file is one process's and complete. None of them fails, and nothing else stays."""
    path = tmp_path / "t"
    save_again_and_again(path, 0, 1)
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=save_again_and_again, args=(path, value, 25)) for value in (1, 2, 3)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        found = load_contents(path)
        value = found.state["value"]
        assert len(found.tensors) == 20 + value
        assert all((tensor == value).all() for tensor in found.tensors.values())
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert os.listdir(tmp_path) == ["t"]


class AtOpcode:
    """An action before the ``moment``-th bytecode of a function, where other processes may come in between."""

    def __init__(self, moment, code, action):
        self.left, self.code, self.action = moment, code, action

    def __enter__(self):
        # Python 3.12 traces opcodes only if some frame has asked for them before.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(self.call)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def call(self, frame, event, arg):
        if frame.f_code is self.code:
            frame.f_trace_opcodes = True
            return self.step
        return None

    def step(self, frame, event, arg):
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                self.action()
        return self.step


def test_another_process_may_rename_the_file_at_any_moment(tmp_path):
    """As it may while it has the lock, and at no other time."""
    path, writing = tmp_path / "t", tmp_path / "t.tmp"

    def finish_as_the_other():
        with contextlib.suppress(FileNotFoundError), open(writing, "r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            writing.rename(tmp_path / "other")

    renamed, moment, reached = 0, 0, True
    while reached:
        moment += 1
        writing.write_bytes(b"the other's")
        with AtOpcode(moment, tensor_file._claim.__wrapped__.__code__, finish_as_the_other) as at:
            save_again_and_again(path, 1, 1)
        reached = at.left <= 0
        assert len(load_contents(path).tensors) == 21, moment
        renamed += (tmp_path / "other").exists()
        (tmp_path / "other").unlink(missing_ok=True)
        assert os.listdir(tmp_path) == ["t"], moment
    assert renamed > 10


@pytest.mark.parametrize("what", ["file", "link", "pipe"])
def test_leftovers_and_links_in_the_place_of_a_file_do_no_harm(tmp_path, what):
    """Leftovers of a killed process are overwritten, and nothing is written through a link."""
    path, writing, other = tmp_path / "t", tmp_path / "t.tmp", tmp_path / "other"
    other.write_bytes(b"kept")
    if what == "file":
        writing.write_bytes(bytes(1 << 20))
    elif what == "link":
        writing.symlink_to(other)
    else:
        os.mkfifo(writing)
    save_again_and_again(path, 2, 1)
    assert len(load_contents(path).tensors) == 22
    assert not path.is_symlink()
    assert other.read_bytes() == b"kept"
    assert sorted(os.listdir(tmp_path)) == ["other", "t"]
