"""The index of a file's packets is what PyAV and torchcodec say, and any bytes are an index or refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline import _native
from feedline.errors import DataError
from feedline.video.packet_cache import packets_of, version_of
from feedline.video.packet_index import FRAME, DamagedPacketsError, PacketIndex, from_bytes
from feedline.video.packets import list_packets
from tests.effort import examples
from tests.video.clips import decode_all, make_video, packets

pytestmark = pytest.mark.frameworks("av", "torchcodec")

IDENTITY = bytes(range(16))


def index_of(times, keys, durations=None, base=(1, 30), size=1 << 20):
    table = np.zeros(len(times), FRAME)
    table["pts"], table["key"] = times, keys
    table["duration"] = 1 if durations is None else durations
    table["offset"], table["size"] = np.arange(len(times)) * 10, 10
    return PacketIndex(table, 0, base, size)


# ---- files ------------------------------------------------------------------------------------------


def test_packets_are_those_that_a_demuxer_returns(path):
    assert list_packets(str(path)).frames.tolist() == packets(path)


def test_frames_are_those_of_torchcodec(path):
    from torchcodec.decoders import VideoDecoder

    index, decoder = list_packets(str(path)), VideoDecoder(str(path), seek_mode="exact")
    assert index.begins.tolist() == decode_all(path).times
    # Versions of FFmpeg differ in the duration of the last frame if durations vary.
    assert index.end == decoder.metadata.end_stream_seconds or "variable" in path.name
    keys = [i for i, row in enumerate(packets(path)) if row[4]]
    assert index.groups.tolist() == [*keys, len(decoder)]


def test_times_are_those_of_torchcodec(path):
    """The frame at a time is the one that torchcodec plays, but for times that rounding has moved."""
    from torchcodec.decoders import VideoDecoder

    decoder, index = VideoDecoder(str(path), dimension_order="NHWC"), list_packets(str(path))
    times = np.random.default_rng(0).uniform(index.begins[0], decoder.metadata.end_stream_seconds, 60)
    times = times[np.abs(times[:, None] - index.begins).min(1) > 0.0002]
    times = np.concatenate([index.begins, times])
    played = decoder.get_frames_played_at(times.tolist())
    assert index.begins[index.frames_at(times)].tolist() == played.pts_seconds.tolist()


def test_only_the_tables_of_mp4_are_read(videos, tmp_path):
    """The media may be anything, so they need not be fetched."""
    path = videos("h264")
    data = bytearray(path.read_bytes())
    for _, _, offset, size, _ in packets(path):
        data[offset : offset + size] = b"\xaa" * size
    blank = tmp_path / "blank.mp4"
    blank.write_bytes(data)
    assert list_packets(str(blank)).frames.tolist() == list_packets(str(path)).frames.tolist()


@pytest.mark.parametrize(
    "content", [b"", b"no video", bytes(100), b"\0\0\0\x18ftypisom\0\0\0\0isomiso2", b"\x1a\x45\xdf\xa3" + bytes(50)]
)
def test_a_file_that_is_no_video(tmp_path, content):
    path = tmp_path / "a.mp4"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"expected a video file|expected the packets|stream of video") as error:
        list_packets(str(path))
    assert error.value.path == str(path)


def test_a_sound_file_has_no_frames(tmp_path):
    import av

    path = tmp_path / "a.wav"
    with av.open(str(path), "w") as output:
        stream = output.add_stream("pcm_s16le", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        frame.rate = 8000
        output.mux(stream.encode(frame))
    with pytest.raises(DataError, match="stream of video, got none"):
        list_packets(str(path))


@pytest.mark.parametrize("kind", ["h264", "h264 tables first", "h264 Matroska", "h264 fragments"])
def test_a_file_that_is_cut_anywhere_is_an_error_or_has_the_first_packets(videos, tmp_path, kind):
    path = videos(kind)
    data, whole = path.read_bytes(), packets(path)
    cut = tmp_path / f"cut{path.suffix}"
    for size in np.random.default_rng(1).integers(1, len(data), examples(25)).tolist():
        cut.write_bytes(data[:size])
        try:
            rows = list_packets(str(cut)).frames.tolist()
        except DataError:
            continue
        # The container may have estimated the duration and the size of the last packet.
        assert {row[0] for row in rows} <= {row[0] for row in whole}
        assert all(offset + size_of <= size for _, _, offset, size_of, _ in rows)


# ---- the cache ----------------------------------------------------------------------------------------


def files_in(folder):
    return sorted((folder / "feedline" / "video").iterdir())


def test_an_index_is_made_once(tmp_path, own_cache, monkeypatch):
    path = make_video(tmp_path / "a", frames=5)
    index = packets_of(version_of(str(path)))
    (file,) = files_in(own_cache)
    identity = version_of(str(path)).identity
    assert from_bytes(file.read_bytes(), identity).frames.tolist() == index.frames.tolist()


def test_a_replaced_file_gets_another_index(tmp_path, own_cache):
    path = make_video(tmp_path / "a", frames=5)
    assert len(packets_of(version_of(str(path)))) == 5
    make_video(tmp_path / "a", frames=9)
    assert len(packets_of(version_of(str(path)))) == 9
    assert len(files_in(own_cache)) == 2


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_changed_bit_is_noticed(at, bit):
    data = bytearray(index_of([0, 1, 2], [1, 0, 1]).to_bytes(IDENTITY))
    data[at % len(data)] ^= 1 << bit
    with pytest.raises(DamagedPacketsError):
        from_bytes(bytes(data), IDENTITY)


def test_an_index_of_another_file_is_refused():
    with pytest.raises(DamagedPacketsError, match="another file"):
        from_bytes(index_of([0], [1]).to_bytes(IDENTITY), bytes(16))


edges = st.sampled_from([0, 1, 2, 7, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 63) - 1])


@given(data=st.data())
def test_hostile_bytes_with_right_checksums_are_an_index_or_refused(data):
    """The checksum may have the same author as the rest."""
    count = data.draw(st.integers(0, 6))
    body = bytearray(index_of(np.arange(max(count, 1)), [1] * max(count, 1)).to_bytes(IDENTITY))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(32, len(body) - 1))
        width = data.draw(st.sampled_from([1, 4, 8]))
        number = data.draw(edges) % (1 << (8 * width))
        body[at : at + width] = number.to_bytes(width, "little")[: len(body) - at]
    cut = data.draw(st.integers(0, 3))
    body = body[: len(body) - cut]
    body[12:16] = _native.crc32c(bytes(body[16:])).to_bytes(4, "little")
    try:
        index = from_bytes(bytes(body), IDENTITY)
    except DamagedPacketsError:
        return
    times = np.array([0.0, -1.0, 1e300, float(index.begins[-1]), index.end])
    at = index.frames_at(times)
    assert ((at >= -1) & (at < len(index))).all()
    assert index.groups[0] == 0
    assert (np.diff(index.groups) >= 0).all()
    assert index.groups[-1] == len(index)
    begin, end = index.extent(0, len(index) - 1) if len(index.groups) == 2 else index.extent(0, 0)
    assert 0 <= begin <= end <= index.file_size
    assert index.mappings().startswith('{"frames":[{')


# ---- times ------------------------------------------------------------------------------------------


def at(index, *times):
    return index.frames_at(np.array(times)).tolist()


def test_a_time_a_little_before_a_frame_is_a_time_of_it():
    index = index_of([0, 1, 2, 3], [1, 0, 0, 0])
    singles = np.arange(4, dtype=np.float32) / np.float32(30)
    assert at(index, *singles.astype(np.float64)) == [0, 1, 2, 3]
    assert at(index, 1 / 30 - 9e-5, 1 / 30 - 2e-4) == [1, 0]


def test_a_time_in_the_first_half_of_a_short_frame_is_a_time_of_it():
    index = index_of([0, 1, 2], [1, 0, 0], base=(1, 20_000))  # 50 microseconds
    assert at(index, 0, 0.00002, 0.00003, 0.00005) == [0, 0, 1, 1]


def test_times_outside_have_no_frame():
    index = index_of([30, 31], [1, 0])
    assert at(index, 0.99, 1 - 5e-5, 1, 32 / 30 - 1e-9, 32 / 30, 1e9) == [-1, 0, 0, 1, -1, -1]


def test_frames_before_the_first_key_frame_are_in_the_first_group():
    index = index_of([0, 1, 2, 3, 4], [0, 0, 1, 0, 1])
    assert index.groups.tolist() == [0, 4, 5]
    assert index.group_of(np.arange(5)).tolist() == [0, 0, 0, 0, 1]
