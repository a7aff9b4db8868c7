"""Compressed text: gzip by our decoder and zlib's, points, damage, and formats without points."""

import errno
import gzip
import os
import random
import struct
import zlib

import numpy as np
import pyarrow as pa
import pytest

import feedline as fl
from feedline import _native
from feedline.feed.files import compressed_text
from feedline.feed.files.compressed_text import Points, head_of, packing_of, unpacker
from feedline.feed.files.paths import open_file
from tests.effort import examples, stride

DRAW = random.Random(7)
TEXTS = {
    "nothing": b"",
    "one byte": b"a",
    "runs": b"abc" * 90_000 + b"\0" * 70_000,
    "noise": DRAW.randbytes(200_000),
    "far apart": DRAW.randbytes(32_500) * 6,
    "numbers": b"".join(b"%d,%f\n" % (i, DRAW.random()) for i in range(20_000)),
}


def deflated(text, level=6, strategy=zlib.Z_DEFAULT_STRATEGY):
    packer = zlib.compressobj(level, zlib.DEFLATED, 31, 9, strategy)
    return packer.compress(text) + packer.flush()


def zstd(data):
    return pa.compress(data, codec="zstd", asbytes=True)


def unpack(path):
    """The text, the points and the windows of a file."""
    with open_file(path) as file:
        reader = unpacker(packing_of(file.read(4), zlib=True) or "zlib")
        size = path.stat().st_size
        text = b"".join(part.tobytes() for part in reader.parts(file, path, size))
        points = reader.points()
        reader.windows.seek(0)
        return text, points, reader.windows.read()


def from_points(path, points, windows):
    """The text, span by span, last one first."""
    data = np.frombuffer(path.read_bytes(), np.uint8)
    found = Points(packing_of(data[:4].tobytes(), zlib=True), points)
    parts = []
    for k in reversed(range(len(points) - 1)):
        window = None
        if points[k]["kind"]:
            window = np.frombuffer(windows, np.uint8, compressed_text.WINDOW_BYTES, int(points[k]["window"]))
        parts.append(found.span(k, data[int(points[k]["packed"]) : int(points[k + 1]["packed"])], window).tobytes())
    return b"".join(reversed(parts))


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("level", [0, 3, 6, 9])
def test_zlib_is_read_as_by_zlib(tmp_path, monkeypatch, name, level):
    """Whole, from points, and refused where its sum is another."""
    text, path = TEXTS[name], tmp_path / "a.zz"
    monkeypatch.setattr(compressed_text, "SPAN_BYTES", 5000)
    monkeypatch.setattr(compressed_text, "_BLOCK_BYTES", 3001)
    data = zlib.compress(text, level)
    path.write_bytes(data)
    found, points, windows = unpack(path)
    assert found == text
    assert from_points(path, points, windows) == text
    assert packing_of(data) is None  # a text may begin so
    with open_file(path) as file:
        assert head_of(file, 700, "zlib") == text[:700]
    for wrong in (data[:-1], data[:-1] + bytes([data[-1] ^ 1]), data + b"x", data[:1] + b"\0" + data[2:]):
        path.write_bytes(wrong)
        with pytest.raises(fl.DataError, match="expected intact zlib"):
            unpack(path)


@pytest.mark.parametrize("name", TEXTS)
def test_gzip_is_read_as_by_zlib(tmp_path, monkeypatch, name):
    text = TEXTS[name]
    for level in (0, 1, 6, 9):
        for strategy in (zlib.Z_DEFAULT_STRATEGY, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED):
            for span, block in ((2 << 20, 1 << 20), (5000, 3001)):
                monkeypatch.setattr(compressed_text, "SPAN_BYTES", span)
                monkeypatch.setattr(compressed_text, "_BLOCK_BYTES", block)
                (tmp_path / "a.gz").write_bytes(deflated(text, level, strategy))
                found, points, windows = unpack(tmp_path / "a.gz")
                assert found == text
                assert points["text"].tolist() == sorted(points["text"].tolist())
                assert from_points(tmp_path / "a.gz", points, windows) == text
                if name == "numbers" and span == 5000:
                    assert len(points) >= 4


def test_members_with_every_header(tmp_path, monkeypatch):
    monkeypatch.setattr(compressed_text, "SPAN_BYTES", 1)
    text = TEXTS["numbers"]
    members = []
    for k in range(16):
        part = text[k * 1000 : (k + 1) * 1000]
        flags = (k & 1) * 4 | (k & 2) * 4 | (k & 4) * 4 | (k & 8) // 4
        head = b"\x1f\x8b\x08" + bytes([flags, 0, 0, 0, 0, 0, 255])
        head += (struct.pack("<H", 3) + b"xyz" if flags & 4 else b"") + (b"name\0" if flags & 8 else b"")
        head += (b"a comment\0" if flags & 16 else b"") + (b"\0\0" if flags & 2 else b"")
        members.append(head + zlib.compress(part)[2:-4] + struct.pack("<II", zlib.crc32(part), len(part)))
    (tmp_path / "a.gz").write_bytes(b"".join(members) + bytes(700))
    found, points, windows = unpack(tmp_path / "a.gz")
    assert found == text[:16_000]
    assert not windows  # members need none
    assert from_points(tmp_path / "a.gz", points, windows) == found


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_a_span_is_checked(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(compressed_text, "SPAN_BYTES", 5000)
    text = TEXTS["numbers"]
    pieces = [text[i : i + 6000] for i in range(0, len(text), 6000)]
    path = tmp_path / f"a.{kind}"
    path.write_bytes(deflated(text) if kind == "gz" else b"".join(map(zstd, pieces)))
    found, points, windows = unpack(path)
    assert from_points(path, points, windows) == found == text
    data = path.read_bytes()
    for at in range(100, len(data), stride(max(1, len(data) // 40))):
        path.write_bytes(data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :])
        try:
            assert from_points(path, points, windows) == text
        except ValueError:
            continue


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[: len(data) // 2], "it was cut"),
        (lambda data: data[:5], "it was cut in a member's header"),
        (lambda data: data[:-3], "it was cut"),
        (lambda data: data + b"x", "it was cut in a member's header|no gzip member"),
        (lambda data: data + b"\0\0x", "neither a member nor zeros"),
        (lambda data: data[:-8] + b"abcd" + data[-4:], "a checksum that does not match"),
        (lambda data: data[:10] + b"\x07" + data[11:], "unknown type"),
        (lambda data: b"\x1f\x8b\x09" + data[3:], "no gzip member begins here"),
    ],
)
def test_what_is_no_gzip(tmp_path, change, message):
    path = tmp_path / "a.gz"
    path.write_bytes(change(deflated(b'{"a": 1}\n' * 3000 + DRAW.randbytes(3000))))
    with pytest.raises(fl.DataError, match=message) as caught:
        unpack(path)
    assert caught.value.path == str(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[: len(data) // 2], "a truncated file"),
        (lambda data: data[:5], "a truncated file"),
        (lambda data: data + b"xyzxyz", "no frame begins here"),
        (lambda data: data + b"\x50\x2a\x4d\x18\xff\xff\0\0", "a truncated file"),
        (lambda data: data[:4] + bytes([data[4] | 0xE0]) + b"\xff" * 8 + data[13:], "impossible size|a truncated file"),
        (lambda data: data[:20] + bytes(40) + data[60:], "expected intact Zstandard"),
    ],
)
def test_what_is_no_zstandard(tmp_path, change, message):
    path = tmp_path / "a.zst"
    path.write_bytes(change(zstd(TEXTS["numbers"])))
    with pytest.raises(fl.DataError, match=message):
        unpack(path)


def streamed(data):
    """A frame without the length of its text."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as out:
        out.write(data)
    return sink.getvalue().to_pybytes()


def test_frames_of_all_kinds(tmp_path, monkeypatch):
    """With and without their size, skippable ones, empty ones."""
    monkeypatch.setattr(compressed_text, "SPAN_BYTES", 3000)
    skippable = struct.pack("<II", 0x184D2A5E, 5) + b"seek!"
    parts = [TEXTS["numbers"][i : i + 2500] for i in range(0, 40_000, 2500)]
    frames = [streamed(part) if k % 3 == 0 else zstd(part) for k, part in enumerate(parts)]
    path = tmp_path / "a.zst"
    path.write_bytes(skippable + skippable.join(frames) + zstd(b"") + skippable)
    found, points, windows = unpack(path)
    assert found == b"".join(parts)
    assert len(points) > 5
    assert from_points(path, points, windows) == found
    with open_file(path) as file:
        assert head_of(file, 100) == found[:100]


def test_a_large_frame_is_unpacked_once(tmp_path, monkeypatch):
    monkeypatch.setattr(compressed_text, "FRAME_BYTES", 10_000)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = b"".join(b'{"a": %d}\n' % i for i in range(20_000))
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstd(text))
    unpacks = []
    real = compressed_text._stream_text
    monkeypatch.setattr(compressed_text, "_stream_text", lambda *a: unpacks.append(1) or real(*a))
    for _ in range(3):
        corpus = fl.JSONLinesDeserializer(path, a=fl.Stream((), "int64"), chunk_size=50_000)
        assert corpus.paths() == [str(path)]
        assert [n for i in range(len(corpus.chunks())) for n in corpus.read(i)["a"].rows.tolist()] == list(
            range(20_000)
        )
    assert unpacks == [1]
    (place,) = (tmp_path / "cache" / "feedline").glob("*.feedline-text")
    assert place.read_bytes() == text
    assert place.stat().st_mode & 0o777 == 0o600
    with pytest.raises(fl.DataError, match=r"or a cache to unpack it in(.*\n)*.*--seekable"):
        fl.JSONLinesDeserializer(path, a=fl.Stream(), cache=False)
    with pytest.raises(fl.DataError, match="at most 1000 bytes of unpacked text"):
        fl.JSONLinesDeserializer(path, a=fl.Stream(), cache=tmp_path / "other", unpack=1000)
    assert not [p for p in (tmp_path / "other").iterdir() if not p.name.endswith(".feedline-index")]
    # Another file of that name is unpacked again.
    path.write_bytes(zstd(text[: len(text) // 2]))
    corpus = fl.JSONLinesDeserializer(path, a=fl.Stream((), "int64"))
    assert len(corpus.chunks()) == 1
    assert len(unpacks) == 3


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_the_head_of_many_members(tmp_path, pack):
    """It continues after the first one, as bgzip and `cat a.gz b.gz` write them."""
    path = tmp_path / "a"
    parts = [b"", b"x,y\n", *(b"%d,%d\n" % (i, i) for i in range(200))]
    text = b"".join(parts)
    path.write_bytes(b"".join(map(pack, parts)))
    with open_file(path) as file:
        for size in (1, 4, 100, len(text), len(text) + 1):
            assert head_of(file, size) == text[:size]
    corpus = fl.CSVDeserializer(path)
    assert {name: stream.dtype.name for name, stream in corpus.schema.items()} == {"x": "int64", "y": "int64"}
    # What is stored as it is becomes longer: more of the file is needed than there is text.
    noise = DRAW.randbytes(3 << 20)
    path.write_bytes(pack(noise))
    with open_file(path) as file:
        assert head_of(file, len(noise) - 9) == noise[:-9]


def test_a_disk_that_fails_loses_rows_only(tmp_path, monkeypatch):
    monkeypatch.setattr(compressed_text, "SPAN_BYTES", 20_000)
    path = tmp_path / "a.jsonl.gz"
    numbers = [DRAW.getrandbits(60) for _ in range(4000)]
    path.write_bytes(b"".join(gzip.compress(b'{"a": %d}\n' % n) for n in numbers))
    corpus = fl.JSONLinesDeserializer(path, a=fl.Stream((), "int64"))
    preadv = os.preadv

    def failing(descriptor, buffers, offset):
        if offset < 5 * 4096 + 10 and offset + sum(map(len, buffers)) > 5 * 4096:
            raise OSError(errno.EIO, "Input/output error")
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", failing)
    for chunk in (corpus.read(0), corpus.select(np.arange(4000))):
        lost = list(chunk.errors)
        assert lost == list(range(lost[0], lost[-1] + 1))
        assert 300 < len(lost) < 3000
        assert "Input/output error" in chunk.errors[lost[0]].what
        assert chunk.errors[lost[0]].byte == 5 * 4096
        good = [i for i in range(4000) if i not in chunk.errors]
        assert chunk["a"].rows[good].tolist() == [numbers[i] for i in good]


def test_an_indexed_file_is_opened_without_a_pass(tmp_path, monkeypatch):
    """Frames are found once: their headers lie all over the file."""
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(b"".join(zstd(b'{"a": %d}\n' % i) for i in range(50)))
    fl.JSONLinesDeserializer(path, a=fl.Stream((), "int64"))
    monkeypatch.setattr(compressed_text, "_frames", None)
    corpus = fl.JSONLinesDeserializer(path, a=fl.Stream((), "int64"))
    assert corpus.read(0)["a"].rows.tolist() == list(range(50))


def test_a_span_that_is_damaged_loses_its_rows_only(tmp_path, monkeypatch):
    monkeypatch.setattr(compressed_text, "SPAN_BYTES", 6000)
    rows = [b'{"a": %d}\n' % i for i in range(4000)]
    path = tmp_path / "a.jsonl.zst"
    text = b"".join(rows)
    frames = [zstd(text[i : i + 6001]) for i in range(0, len(text), 6001)]
    path.write_bytes(b"".join(frames))
    corpus = fl.JSONLinesDeserializer(path, a=fl.Stream((), "int64"))
    status = path.stat()
    damaged = bytearray(path.read_bytes())
    at = len(frames[0]) + len(frames[1]) // 2
    damaged[at : at + 8] = bytes(8)
    path.write_bytes(damaged)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    chunk = corpus.read(0)
    lost = list(chunk.errors)
    assert len(chunk) == 4000
    assert lost == list(range(lost[0], lost[-1] + 1))
    assert 300 < len(lost) < 700
    assert "expected intact zstd" in str(chunk.errors[lost[0]])
    assert chunk.errors[lost[5]].line == lost[5] + 1
    good = [i for i in range(4000) if i not in chunk.errors]
    assert chunk["a"].rows[good].tolist() == good


def test_bombs_cost_little(tmp_path):
    """A small file of a long text: a span is bounded, and so is a row."""
    bomb = deflated(b" " * (8 << 20) + b'{"a": 1}\n', 9)
    assert len(bomb) < 10_000
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(bomb)
    corpus = fl.JSONLinesDeserializer(path, a=fl.Stream(), memory=1 << 20, cache=False)
    with pytest.raises(fl.DataError, match="bytes of text at once"):
        corpus.read(0)


def test_the_decoder_is_given_anything():
    """It never writes beyond the room, and never crashes. Values are checked elsewhere."""
    whole = deflated(TEXTS["numbers"][:30_000])
    draw = random.Random(9)
    for _ in range(examples(200)):
        data = bytearray(whole)
        for _ in range(draw.choice([1, 2, 8])):
            data[draw.randrange(len(data))] = draw.randrange(256)
        given = np.frombuffer(bytes(data[draw.choice([0, 0, draw.randrange(99)]) :]), np.uint8)
        inflater = (
            _native.Inflater.file() if draw.random() < 0.5 else _native.Inflater(draw.randrange(8), draw.randrange(256))
        )
        out = np.full(draw.choice([300, 40_000, 70_000]), 7, np.uint8)
        begin = draw.randrange(len(out))
        status, consumed, end, _ = inflater.run(
            given, 0, len(given), draw.random() < 0.5, out, begin, draw.choice([0, 1 << 40])
        )
        assert -1 <= status <= 3
        assert consumed <= len(given)
        assert begin <= end <= len(out)
    for arguments in ((1, 0), (0, len(given) + 1)):
        with pytest.raises(ValueError, match="start <= stop"):
            inflater.run(given, *arguments, True, out, 0, 0)
    with pytest.raises(ValueError, match="a position of at most"):
        inflater.run(given, 0, 1, True, out, len(out) + 1, 0)


def test_gzip_files_of_the_gzip_module(tmp_path):
    with gzip.open(tmp_path / "a.gz", "wb") as file:
        for i in range(0, 200_000, 1000):
            file.write(TEXTS["numbers"][i : i + 1000])
            file.flush()
    assert unpack(tmp_path / "a.gz")[0] == TEXTS["numbers"][:200_000]
