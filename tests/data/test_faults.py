"""Errors about memory name the file that it is mapped from."""

import mmap
import os
import pickle

import numpy as np
import pytest

from feedline import system
from feedline.data import faults
from feedline.errors import DataError

PAGE = mmap.PAGESIZE


@pytest.fixture(params=["rows", "a name with spaces", "näme (deleted)"])
def file(request, tmp_path):
    """A file of three pages, mapped, and the address of its first byte."""
    path = tmp_path / request.param
    path.write_bytes(bytes(3 * PAGE))
    rows = np.memmap(path, np.uint8, "r")
    system.note_map(rows.base, path)
    return path, rows.__array_interface__["data"][0], rows


def test_an_address_is_looked_up(file):
    path, address, _ = file
    assert faults.locate(address) == (str(path), 0)
    assert faults.locate(address + 3 * PAGE - 1) == (str(path), 3 * PAGE - 1)
    assert faults.locate(np.zeros(4).__array_interface__["data"][0]) is None
    assert faults.locate(0) is None


def test_part_of_a_file_is_looked_up(tmp_path):
    path = tmp_path / "rows"
    path.write_bytes(bytes(3 * PAGE))
    with open(path, "rb") as opened:
        part = mmap.mmap(opened.fileno(), PAGE, access=mmap.ACCESS_READ, offset=2 * PAGE)
    system.note_map(part, path, 2 * PAGE)
    address = np.frombuffer(part, np.uint8).__array_interface__["data"][0]
    assert faults.locate(address + 5) == (str(path), 2 * PAGE + 5)


def test_a_cut_file_is_distinct_from_a_failing_disk(file):
    path, address, _ = file
    error = faults.unreadable(address + PAGE)
    assert "the disk failed" in error.what
    assert (error.path, error.byte) == (str(path), PAGE)
    assert "dmesg" in error.hint
    os.truncate(path, 10)
    assert faults.unreadable(address + PAGE).what.endswith("got one that was truncated to 10 bytes")
    assert "the disk failed" in faults.unreadable(address).what
    assert faults.cut(address + 8).what.endswith("got one that was modified or truncated")
    os.unlink(path)
    assert faults.unreadable(address + PAGE).what.endswith("got one that was truncated, and is gone")
    assert "restore the file" in faults.unreadable(address).hint


def test_memory_of_no_file():
    address = np.zeros(4).__array_interface__["data"][0]
    for error in (faults.unreadable(address), faults.cut(address), faults.changed(address)):
        assert isinstance(error, DataError)
        assert error.path is None


def test_bad_entries_by_sequence():
    entries = [(4, 1, -1, 5, 0), (2, 0, 9, None, 0), (4, 0, 3, None, 0)]
    error = faults.BadEntriesError([(np.zeros(1), None)], entries)
    assert error.what == "expected bools of 0 or 1, got 9"
    found = error.errors(["b", "y"], [10, 11, 12, 13, 14], "the corpus")
    assert {place: (e.what, e.stream, e.sequence, e.path) for place, e in found.items()} == {
        2: ("expected bools of 0 or 1, got 9", "b", 12, "the corpus"),
        4: ("expected bools of 0 or 1, got 3", "b", 14, "the corpus"),
    }
    assert error.errors(["b", "y"], None, None)[2].sequence is None
    again = pickle.loads(pickle.dumps(error))
    assert (again.entries, str(again)) == (error.entries, str(error))


def test_an_error_is_given_its_place_once():
    error = DataError("torn", byte=3, stream="x", hint="mend it")
    error.__cause__ = OSError()
    located = error.located(path="file", sequence=7)
    assert (located.path, located.byte, located.sequence, located.stream) == ("file", 3, 7, "x")
    assert located.__cause__ is error.__cause__
    assert str(located) == "torn\n  at file (byte 3), sequence 7\n  mend it"
    assert located.located(path="other", sequence=8) is located
    assert error.located() is error
