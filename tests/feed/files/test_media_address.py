"""Addresses of media become texts and come back, with all digits of their times; other texts are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import DataError
from feedline.feed.files.media_address import MediaAddress, parse

times = st.floats(0, 1e12)
paths = st.text(st.sampled_from("a/%#23=t,.5é "), min_size=1)


@given(paths, st.none() | times)
def test_a_point_in_time_comes_back(path, begin):
    address = MediaAddress(path, begin)
    assert parse(str(address)) == address


@given(paths, times, times)
def test_a_segment_comes_back(path, a, b):
    address = MediaAddress(path, min(a, b), max(a, b) + 1)
    assert parse(str(address)) == address


def test_texts_are_as_documented():
    assert str(MediaAddress("clip.mp4")) == "clip.mp4"
    assert str(MediaAddress("clip.mp4", 1.5)) == "clip.mp4#t=1.5"
    assert str(MediaAddress("a#b%.flac", 1.5, 4.25)) == "a%23b%25.flac#t=1.5,4.25"
    assert parse("a.mp4#t=2") == MediaAddress("a.mp4", 2.0)
    assert parse("a%2523.mp4") == MediaAddress("a%23.mp4")


MALFORMED = [
    "#t=1",
    "a#",
    "a#t=",
    "a#x=1",
    "a#t=-1",
    "a#t=nan",
    "a#t=inf",
    "a#t=1e999",
    "a#t=1,",
    "a#t=2,1",
    "a#t=1,1",
    "a#t=1,1e999",
    "a#t=1.2.3",
    "a#t=1-2",
    "a#t=1#t=2",
    "a%20b",
    "a%",
    "a#t=npt:1",
]


@pytest.mark.parametrize("text", ["", "a#t=1\n", *MALFORMED])
def test_other_texts_are_refused(text):
    with pytest.raises(DataError, match="expected an address"):
        parse(text)
