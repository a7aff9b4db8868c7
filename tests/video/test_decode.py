"""Frames are bit for bit those of the whole file, in any order, with any threads, and after damage."""

import os
import resource
import shutil
import threading

import numpy as np
import pytest

import feedline as fl
from feedline import images, video
from feedline.errors import DataError, SchemaError
from feedline.video.open_decoders import MOST_OPEN
from tests.video.clips import SIDE, decode_all, make_video, packets, picture

pytestmark = pytest.mark.frameworks("av", "torchcodec")

SIZE = (SIDE, SIDE)


def addresses(path, times=None):
    return [f"{path}#t={time!r}" for time in (decode_all(path).times if times is None else times)]


def corpus_of(*paths, times=None):
    texts = [text for path in paths for text in addresses(path, times)]
    return fl.ArrayDeserializer({"frame": texts, "number": np.arange(len(texts))})


def source_of(corpus, *steps, threads=2, seed=1, size=SIZE, **options):
    decode = video.Decode("frame", *steps, size=size, threads=threads)
    return fl.MinibatchSource(corpus, seed=seed, max_sweeps=1, transforms=[decode], **options)


def decoded(source, size):
    """Return frames by number."""
    frames = {}
    for batch in source.minibatches(size):
        frames.update(zip(batch["number"].rows.tolist(), batch["frame"].rows, strict=True))
    return frames


def assert_equal(frames, expected):
    assert sorted(frames) == list(range(len(expected)))
    for number, frame in frames.items():
        np.testing.assert_array_equal(frame, expected[number])


# ---- pixels ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "threads"), [(7, 1), (64, 2), (1000, 3)])
def test_frames_in_any_order_are_those_of_the_whole_file(path, size, threads):
    expected = decode_all(path).frames
    assert expected.shape == (40, *SIZE, 3)
    assert_equal(decoded(source_of(corpus_of(path), threads=threads), size), expected)


def test_frames_are_the_pictures_that_were_encoded(videos):
    frames = decoded(source_of(corpus_of(videos("h264"))), 64)
    for number, frame in frames.items():
        assert np.abs(frame.astype(int) - picture(number)).mean() < 20


def test_several_files_in_one_minibatch(videos):
    paths = [videos(kind) for kind in ("h264", "mpeg4", "h264 Matroska", "vp9")]
    expected = np.concatenate([decode_all(path).frames for path in paths])
    assert_equal(decoded(source_of(corpus_of(*paths), threads=3), 50), expected)


def test_equal_frames_in_one_minibatch(videos):
    path = videos("h264")
    times = [decode_all(path).times[i] for i in (5, 5, 30, 5, 29, 30)]
    expected = decode_all(path).frames[[5, 5, 30, 5, 29, 30]]
    assert_equal(decoded(source_of(corpus_of(path, times=times)), 6), expected)


def test_rounded_times(videos):
    path = videos("h264")
    times = np.array(decode_all(path).times, np.float32).astype(np.float64).tolist()
    assert_equal(decoded(source_of(corpus_of(path, times=times)), 64), decode_all(path).frames)


def test_a_path_with_marks(videos, tmp_path):
    path = tmp_path / "50% #1.mp4"
    shutil.copy(videos("h264"), path)
    texts = addresses(str(path).replace("%", "%25").replace("#", "%23"), decode_all(path).times)
    corpus = fl.ArrayDeserializer({"frame": texts, "number": np.arange(len(texts))})
    assert_equal(decoded(source_of(corpus), 64), decode_all(path).frames)


def test_windows_of_frames(videos):
    path = videos("h264")
    windows = fl.TimeWindows(video.VideoDeserializer(path), {"frame": range(4)}, within="video", every=3)
    source = fl.MinibatchSource(windows, seed=1, max_sweeps=1, transforms=[video.Decode("frame", size=SIZE)])
    seen = 0
    for batch in source.minibatches(5):
        for time, clip in zip(batch["time"].rows.tolist(), batch["frame"].sequences(), strict=True):
            first = decode_all(path).times.index(time)
            at = np.minimum(np.arange(first, first + 4), 39)  # padded by the last one
            np.testing.assert_array_equal(clip, decode_all(path).frames[at])
            seen += 1
    assert seen == 14


def test_steps_are_those_of_pictures(videos, tmp_path):
    """The same draws and pixels as for pictures that have the frames."""
    from PIL import Image

    path, encoded = videos("h264"), []
    for i, frame in enumerate(decode_all(path).frames):
        Image.fromarray(frame).save(tmp_path / f"{i}.png")
        encoded.append((tmp_path / f"{i}.png").read_bytes())
    corpus = fl.ArrayDeserializer({"frame": addresses(path), "png": encoded})
    steps = [
        images.RandomResizedCrop(24),
        images.Flip(0.5),
        images.ColorJitter(0.4),
        images.Normalize([0.5] * 3, [0.2] * 3),
    ]

    def rows(stream, transform):
        source = fl.MinibatchSource(corpus, seed=3, max_sweeps=1, transforms=[transform])
        return np.concatenate([batch[stream].rows for batch in source.minibatches(16)])

    ours, theirs = rows("frame", video.Decode("frame", *steps)), rows("png", images.Decode("png", *steps))
    assert ours.shape == (40, 3, 24, 24)
    np.testing.assert_array_equal(ours, theirs)


def test_frames_of_a_sequence_get_the_same_draws(videos):
    path = videos("h264 key frames")
    texts = addresses(path)[:1] * 3
    corpus = fl.TimeWindows(
        fl.ArrayDeserializer({"frame": texts * 4, "clip": np.repeat(np.arange(4), 3)}),
        {"frame": range(3)},
        within="clip",
        every=3,
    )
    source = fl.MinibatchSource(corpus, seed=3, max_sweeps=1, transforms=[video.Decode("frame", images.RandomCrop(16))])
    (batch,) = source.minibatches(4)
    clips = batch["frame"].sequences()
    assert all((clip == clip[0]).all() for clip in clips)
    assert len({clip[0].tobytes() for clip in clips}) > 1


def test_views(videos):
    path = videos("h264")
    steps = [images.MultiView([images.CenterCrop(16), images.Resize((16, 16))])]
    frames = decoded(source_of(corpus_of(path), *steps), 64)
    np.testing.assert_array_equal(frames[7][0], decode_all(path).frames[7][16:32, 16:32])
    assert frames[7].shape == (2, 16, 16, 3)


# ---- whole clips -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [False, True])
def test_frames_of_whole_clips(videos, text):
    paths = [videos(kind) for kind in ("h264", "vp9", "mpeg4")]
    clips = [str(path) if text else path.read_bytes() for path in paths]
    corpus = fl.ArrayDeserializer({"frame": clips, "number": np.arange(3)})
    decode = video.Decode("frame", frames=(30, 0, 7, 7), size=SIZE)
    source = fl.MinibatchSource(corpus, seed=1, max_sweeps=1, transforms=[decode])
    (batch,) = source.minibatches(3)
    assert batch["frame"].rows.shape == (3, 4, *SIZE, 3)
    for number, clip in zip(batch["number"].rows.tolist(), batch["frame"].rows, strict=True):
        np.testing.assert_array_equal(clip, decode_all(paths[number]).frames[[30, 0, 7, 7]])


@pytest.mark.parametrize("kind", ["h264 open groups", "h264 intra refresh", "h264 variable rate", "mpeg2"])
def test_clips_of_bytes_have_the_frames_of_files(videos, kind):
    path = videos(kind)
    decoded = decode_all(path)
    for numbers in ([len(decoded.frames) - 1], [13, 31], [5, 20, 6]):
        corpus = fl.ArrayDeserializer({"frame": [path.read_bytes()]})
        source = fl.MinibatchSource(corpus, transforms=[video.Decode("frame", frames=numbers, size=SIZE)])
        np.testing.assert_array_equal(source.next_minibatch(1)["frame"].rows[0], decoded.frames[numbers])


def first_error(corpus, decode):
    source = fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1, transforms=[decode])
    with pytest.raises(DataError) as error:
        list(source.minibatches(64))
    return str(error.value)


@pytest.mark.parametrize("text", [False, True])
def test_a_clip_that_is_too_short(videos, text):
    path = videos("h264")
    corpus = fl.ArrayDeserializer({"frame": [str(path) if text else path.read_bytes()]})
    message = first_error(corpus, video.Decode("frame", frames=[39, 40], size=SIZE))
    assert "40 frames, got 40" in message if text else "more than 40 frames, got one of 40" in message


def test_a_clip_that_is_none():
    corpus = fl.ArrayDeserializer({"frame": [b"no video"]})
    assert "expected an encoded clip" in first_error(corpus, video.Decode("frame", frames=[0], size=SIZE))


# ---- errors ----------------------------------------------------------------------------------------


def test_a_time_outside(videos):
    path = videos("h264")
    message = first_error(corpus_of(path, times=[99.0]), video.Decode("frame", size=SIZE))
    assert "expected a time from 0.0 s up to" in message
    assert "got 99.0 s" in message
    assert str(path) in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", "expected the address of a frame"),
        ("{}#t=1,2", "expected the address of a frame"),
        ("{}#x=1", "expected an address such as"),
        ("{}.missing#t=0", "No such file"),
        ("/dev/zero#t=0", "expected a regular file"),
    ],
)
def test_addresses_of_no_frame(videos, text, expected):
    corpus = fl.ArrayDeserializer({"frame": [text.format(videos("h264"))]})
    assert expected in first_error(corpus, video.Decode("frame", size=SIZE))


def test_frames_of_another_size(videos):
    message = first_error(corpus_of(videos("h264")), video.Decode("frame", size=(SIDE, 50)))
    assert f"expected frames of 50 x {SIDE}, got {SIDE} x {SIDE}" in message


def test_arguments_that_do_not_fit(videos):
    with pytest.raises(SchemaError, match="expected size="):
        video.Decode("frame")
    with pytest.raises(TypeError, match="expected steps"):
        video.Decode("frame", 224)
    with pytest.raises(ValueError, match="at least one number"):
        video.Decode("frame", frames=[], size=SIZE)
    with pytest.raises(ValueError, match="at least 0"):
        video.Decode("frame", frames=[-1], size=SIZE)
    texts, clips = corpus_of(videos("h264")), fl.ArrayDeserializer({"frame": [b"x"]})
    for corpus, decode, expected in [
        (texts, video.Decode("picture", size=SIZE), "expected one of the streams"),
        (texts, video.Decode("number", size=SIZE), "expected addresses of frames"),
        (clips, video.Decode("frame", size=SIZE), "expected frames="),
    ]:
        with pytest.raises(SchemaError, match=expected):
            fl.MinibatchSource(corpus, transforms=[decode])


# ---- damage --------------------------------------------------------------------------------------------


def damaged(path, folder, number, kind):
    """Return a copy of a file in which the packet of a frame is damaged."""
    data = bytearray(path.read_bytes())
    _, _, offset, size, _ = packets(path)[number]
    data[offset : offset + size] = {"random": np.random.default_rng(number).bytes(size), "length": b"\xff" * size}[kind]
    copy = folder / f"damaged-{number}-{kind}{path.suffix}"
    copy.write_bytes(data)
    return copy


@pytest.mark.parametrize("number", [0, 3, 12, 20, 26])
def test_a_damaged_packet_costs_frames_of_its_group_only(videos, tmp_path, number):
    """Frames are right or unreadable, and the same ones whatever they are decoded with."""
    path = videos("h264")
    copy, expected = damaged(path, tmp_path, number, "length"), decode_all(path).frames
    corpus = fl.ArrayDeserializer(
        {"frame": [f"{copy}#t={time!r}" for time in decode_all(path).times], "number": np.arange(40)}
    )
    results = []
    for size, threads, seed in [(64, 1, 1), (5, 3, 2), (1, 2, 3)]:
        source = source_of(corpus, threads=threads, seed=seed, on_error=fl.Quarantine(tmp_path / "skipped"))
        frames = decoded(source, size)
        for at, frame in frames.items():
            np.testing.assert_array_equal(frame, expected[at])
        results.append(sorted(frames))
    assert results[0] == results[1] == results[2]
    lost = set(range(40)) - set(results[0])
    assert number in lost
    # A decoder needs some packets more than those of the frame that it returns.
    keys = [i for i, row in enumerate(packets(path)) if row[4]]
    begin = max(key for key in keys if key <= number)
    end = min([key for key in keys if key > number], default=40)
    assert lost <= set(range(begin - 3, end))


def test_an_unreadable_frame_names_its_place(videos, tmp_path):
    path = videos("h264")
    copy = damaged(path, tmp_path, 12, "length")
    message = first_error(corpus_of(copy, times=[0.4]), video.Decode("frame", size=SIZE))
    assert "expected a frame at 0.4 s that can be decoded, got: Could not push packet to decoder" in message
    assert f"{copy} (byte {packets(path)[12][2]})" in message


def test_a_file_that_is_overwritten_in_place_is_read_again(videos, tmp_path):
    """Of the same size, and with the time of its last change set back."""
    path = tmp_path / "a.mp4"
    shutil.copy(videos("h264"), path)
    times = decode_all(path).times
    corpus = fl.ArrayDeserializer({"frame": [f"{path}#t={time!r}" for time in times[1:3]]})
    source = fl.MinibatchSource(corpus, shuffle=False, transforms=[video.Decode("frame", size=SIZE)])
    np.testing.assert_array_equal(source.next_minibatch(2)["frame"].rows, decode_all(path).frames[1:3])
    status, other = path.stat(), make_video(tmp_path / "b", frames=30, first=7)
    with open(path, "r+b") as file:
        file.write(other.read_bytes().ljust(status.st_size, b"\0"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size
    np.testing.assert_array_equal(source.next_minibatch(2)["frame"].rows, decode_all(other).frames[1:3])


@pytest.mark.parametrize("kind", ["h264 tables first", "h264 fragments", "h264 Matroska", "vp9"])
def test_a_cut_file_has_the_frames_before_the_end(videos, tmp_path, kind):
    path = videos(kind)
    rows, expected = packets(path), decode_all(path)
    copy = tmp_path / f"cut{path.suffix}"
    copy.write_bytes(path.read_bytes()[: rows[25][2] + 2])
    corpus = fl.ArrayDeserializer({"frame": addresses(copy, expected.times), "number": np.arange(40)})
    frames = decoded(source_of(corpus, on_error=fl.Quarantine(tmp_path / "skipped")), 64)
    assert set(range(20)) <= frames.keys() <= set(range(26))
    for number, frame in frames.items():
        np.testing.assert_array_equal(frame, expected.frames[number])


# ---- what stays open --------------------------------------------------------------------------------


def test_many_files_leave_memory_and_descriptors_flat(tmp_path):
    """More files than decoders stay open."""
    first = make_video(tmp_path / "0", "h264", frames=3)
    files = [tmp_path / f"{i}.mp4" for i in range(400)]
    for file in files[1:]:
        os.link(first, file)
    corpus = fl.ArrayDeserializer({"frame": [f"{file}#t=0.0" for file in files]})
    decode = video.Decode("frame", size=SIZE)
    source = fl.MinibatchSource(corpus, seed=1, max_sweeps=3, transforms=[decode])
    descriptors, memory = [], []
    for batch in source.minibatches(100):
        assert len(batch["frame"].rows) == 100
        descriptors.append(len(os.listdir("/proc/self/fd")))
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    assert len(descriptors) == 12
    assert max(descriptors) < descriptors[0] + MOST_OPEN + 10
    assert memory[-1] - memory[3] < 20_000  # KiB, after the first sweep


def test_threads_share_the_open_decoders(videos):
    path = videos("h264")
    corpus, expected, failed = corpus_of(path), decode_all(path).frames, []

    def run(seed):
        try:
            assert_equal(decoded(source_of(corpus, seed=seed), 9), expected)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_a_file_that_changes_is_opened_again(tmp_path):
    path = make_video(tmp_path / "a", frames=5)
    corpus = fl.ArrayDeserializer({"frame": [f"{path}#t=0.0"], "number": [0]})
    before = decoded(source_of(corpus), 1)[0]
    make_video(tmp_path / "a", frames=5, first=100)
    after = decoded(source_of(corpus), 1)[0]
    assert (before != after).any()
    decode_all.cache_clear()
    np.testing.assert_array_equal(after, decode_all(path).frames[0])
