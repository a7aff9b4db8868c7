"""Guessing formats and streams."""

import numpy as np
import pytest

from feedline.data import Stream
from feedline.errors import DataError
from feedline.feed.formats.detect import guess_format, infer_ctf_streams


def ctf(tmp_path, text):
    (tmp_path / "t.ctf").write_bytes(text.encode() if isinstance(text, str) else text)
    return tmp_path / "t.ctf"


def test_streams_of_ctf_text(tmp_path):
    text = "﻿0 |x 1 2 3 |y 3:1 |# a comment | z 1\n0\t|x\t4 5\n1 |x 1|y 7:1 0:2\r\n2 |w 1 |y\n"
    assert infer_ctf_streams(ctf(tmp_path, text)) == {
        "x": Stream(3),
        "y": Stream(8, sparse=True),
        "w": Stream(1),
    }


def test_a_cut_last_line_is_left_out(tmp_path):
    path = ctf(tmp_path, "|x 1 2\n|x 1 2 3\n|x 1 2 3 4\n")
    assert infer_ctf_streams(path, scan_bytes=20)["x"].shape == (3,)
    assert infer_ctf_streams(path, scan_bytes=5)["x"].shape == (1,)
    assert infer_ctf_streams(path)["x"].shape == (4,)
    # The cut line alone would look dense.
    assert infer_ctf_streams(ctf(tmp_path, "|x 1:1\n|x 123:1\n"), scan_bytes=12)["x"] == Stream(2, sparse=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "samples such as"),
        ("a,b\n1,2\n", "samples such as"),
        ("|x 1\n|x 1:2\n", "got both(.*\n)*.*:2"),
        ("|x 1 1:2\n", "got both"),
        ("|x 1:1 a:2\n", "index:value pairs, got `a:2`(.*\n)*.*declare"),
        ("|x 1 |y\n", "what `y` is"),
    ],
)
def test_text_that_tells_nothing(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        infer_ctf_streams(ctf(tmp_path, text))


def test_formats_by_content_then_by_name(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    np.savez(tmp_path / "b.npz", x=np.zeros(3))
    (tmp_path / "a.npy").rename(tmp_path / "a.bin")
    (tmp_path / "c.TXT").write_text("|x 1\n")
    (tmp_path / "d.csv").write_text("a\n1\n")
    (tmp_path / "e.parquet").write_bytes(b"PAR1")
    (tmp_path / "f.xyz").write_bytes(b"hello")
    found = {p.name: guess_format(p) for p in tmp_path.iterdir() if p.suffix != ".xyz"}
    assert found == {"a.bin": "npy", "b.npz": "npz", "c.TXT": "ctf", "d.csv": "csv", "e.parquet": "parquet"}
    with pytest.raises(DataError, match="b'hello'"):
        guess_format(tmp_path / "f.xyz")
    with pytest.raises(DataError, match="No such file"):
        guess_format(tmp_path / "none")


def test_folders(tmp_path):
    with pytest.raises(DataError, match="a folder with"):
        guess_format(tmp_path)
    np.save(tmp_path / "a.npy", np.zeros(3))
    assert guess_format(tmp_path) == "npy folder"
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "e.parquet").write_bytes(b"PAR1")
    assert guess_format(tmp_path) == "parquet"
    (tmp_path / "feedline.json").write_text("{}")
    assert guess_format(tmp_path) == "store"
