"""The transform: laws of pictures in minibatches, masks and boxes with them, damage, schemas."""

import pickle
import threading
import weakref

import numpy as np
import pytest

import feedline as fl
from feedline import images
from feedline.feed.transforms import DrawKeys
from feedline.images import decoders
from feedline.images.step import CROP, PictureOp
from tests.forked import Forked
from tests.images.pictures import drawn, encoded
from tests.inside import copy_ahead_of, work_of, work_threads
from tests.oracles import pictures as reference

pytestmark = pytest.mark.usefixtures("executor")

KINDS = ["JPEG", "PNG", "JPEG", "WEBP", "JPEG", "JPEG"]
N = 12
PICTURES = [
    encoded(drawn(40 + 3 * i, 64 - 2 * i, i), KINDS[i % 6], **({"turned": 6} if i % 5 == 4 else {})) for i in range(N)
]
SIZES = [(40 + 3 * i, 64 - 2 * i) if i % 5 != 4 else (64 - 2 * i, 40 + 3 * i) for i in range(N)]
SCHEMA = fl.Schema({"image": fl.Stream(dtype="bytes"), "label": fl.Stream((), "int64")})
RANDOM = [
    images.RandomResizedCrop(24),
    images.Flip(0.5, 0.5),
    images.ColorJitter(0.4, 0.4, 0.4, 0.1),
    images.RandomCrop(24, padding=3),
    images.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
]


def values(which=range(N), pictures=PICTURES):
    return {
        "image": fl.Value.from_bytes([pictures[i] for i in which], "bytes"),
        "label": fl.Value.from_dense(np.array(list(which), np.int64)),
    }


def places(which=range(N), *, seed=7, sweep=0, stage=0):
    which = np.array(list(which), np.int64)
    return DrawKeys(seed, np.full(len(which), sweep), which, stage)


def rows(decode, which=range(N), **key):
    done = decode.run_all(SCHEMA, values(which), places(which, **key))
    assert done.errors == {}
    return done.values["image"].rows


# ---- laws ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "steps", [RANDOM, [images.MultiView([[], images.Flip(1.0)]), *RANDOM]], ids=["one view", "two views"]
)
def test_a_picture_is_the_same_in_any_company(steps):
    decode = images.Decode("image", *steps)
    everything = rows(decode)
    for which in ([5], [4, 1], list(range(N))[::-1], [0, 3, 7, 8, 9]):
        assert (rows(decode, which) == everything[which]).all(), which
    assert (rows(images.Decode("image", *steps, threads=1)) == everything).all()
    assert (rows(images.Decode("image", *steps, threads=7)) == everything).all()


@pytest.mark.parametrize("key", [{"seed": 8}, {"sweep": 1}, {"stage": 1}])
def test_draws_are_keyed_by_seed_sweep_and_stage(key):
    decode = images.Decode("image", *RANDOM)
    one, other = rows(decode), rows(decode, **key)
    assert all((a != b).any() for a, b in zip(one, other, strict=True))
    assert (rows(decode, **key) == other).all()


def test_draws_are_keyed_by_the_sequence():
    same = [PICTURES[0]] * N
    decode = images.Decode("image", *RANDOM)
    found = decode.run_all(SCHEMA, values(pictures=same), places()).values["image"].rows
    assert len({row.tobytes() for row in found}) == N


def test_equal_steps_draw_for_themselves():
    class Noted(images.Flip):
        def plan(self, sizes, u):
            seen.append(u)
            return super().plan(sizes, u)

    seen = []
    rows(images.Decode("image", Noted(), Noted(), images.MultiView([Noted(), Noted()]), Noted(), images.Resize((5, 5))))
    assert len(seen) == 8  # three or four a view
    distinct = {u.tobytes() for u in seen}
    assert len(distinct) == 6  # two are shared by both views
    assert all(0 <= u.min() <= u.max() < 1 for u in seen)


def test_work_ahead_is_the_same():
    decode = images.Decode("image", *RANDOM)
    assert decode.works_ahead
    begun = decode.start(SCHEMA, values(), places())
    done = begun.result()
    assert (done.values["image"].rows == rows(decode)).all()
    assert done.values["label"].rows.tolist() == list(range(N))
    assert done.seconds > 0
    assert decode.result_bytes(SCHEMA, 10) == 10 * 3 * 24 * 24 * 4


def test_dropped_work_ends(monkeypatch):
    entered, may_go, decoded = threading.Event(), threading.Event(), []

    def slow(data, header, **options):
        decoded.append(len(data))
        entered.set()
        may_go.wait(60)
        return np.zeros((9, 9, 3), np.uint8)

    monkeypatch.setattr(decoders, "decode", slow)
    png = [encoded(drawn(9, 9), "PNG")] * N
    begun = images.Decode("image", images.Resize((5, 5)), threads=1).start(SCHEMA, values(pictures=png), places())
    (thread,) = work_threads(begun)
    entered.wait(60)
    work = weakref.ref(work_of(begun))
    del begun
    may_go.set()
    thread.join(60)
    assert not thread.is_alive()
    assert len(decoded) == 1
    del thread
    assert work() is None  # and with it what native threads do


def test_a_failure_in_a_thread_is_raised(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("planted")

    monkeypatch.setattr(decoders, "decode", broken)
    decode = images.Decode("image", images.Resize((5, 5)))
    with pytest.raises(RuntimeError, match="planted"):
        decode.run_all(SCHEMA, values(), places())
    begun = decode.start(SCHEMA, values(), places())
    with pytest.raises(RuntimeError, match="planted"):
        begun.result()


# ---- the results --------------------------------------------------------------------------------------


@pytest.mark.parametrize("color", ["RGB", "BGR", "grey"])
def test_a_crop_matches_the_whole_picture(color):
    found = rows(images.Decode("image", images.CenterCrop((20, 30)), color=color))
    flat = values()["image"]
    headers = reference.picture_headers(flat.data, flat.bounds)
    for i, picture in enumerate(PICTURES):
        data = np.frombuffer(picture, np.uint8)
        whole = decoders.decode(data, headers[i], color=color, upright=True, max_pixels=10**6)
        height, width = whole.shape[:2]
        assert (width, height) == SIZES[i]
        y, x = round((height - 20) / 2), round((width - 30) / 2)
        assert (found[i] == whole[y : y + 20, x : x + 30]).all(), i


def test_shape_and_dtype():
    mean = [0.5] * 3
    for steps, color, shape, dtype in [
        ([], "RGB", (20, 30, 3), "uint8"),
        ([], "grey", (20, 30, 1), "uint8"),
        ([images.Normalize(mean, mean)], "BGR", (3, 20, 30), "float32"),
        ([images.Normalize(mean, mean, layout="HWC")], "RGB", (20, 30, 3), "float32"),
        ([images.Normalize(0.5, 0.5)], "grey", (1, 20, 30), "float32"),
        ([images.MultiView(4)], "RGB", (4, 20, 30, 3), "uint8"),
        ([images.MultiView(4), images.Normalize(mean, mean)], "RGB", (4, 3, 20, 30), "float32"),
    ]:
        decode = images.Decode("image", images.CenterCrop((20, 30)), *steps, color=color)
        assert decode.schema(SCHEMA)["image"] == fl.Stream(shape, dtype)
        found = decode.run_all(SCHEMA, values(), places()).values
        assert list(found) == ["image", "label"]
        found["image"].check("image", decode.schema(SCHEMA)["image"])
        none = decode.run_all(SCHEMA, values([]), places([])).values
        assert (none["image"].num_sequences, none["image"].shape) == (0, shape)


def test_normalize_matches_its_formula():
    levels = rows(images.Decode("image", images.CenterCrop(16)))
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    normalize = images.Normalize(mean, std)
    shift, factor = normalize.numbers(3)
    expected = (levels.astype(np.float32) - shift) * factor
    found = rows(images.Decode("image", images.CenterCrop(16), normalize))
    assert found.tobytes() == np.ascontiguousarray(expected.transpose(0, 3, 1, 2)).tobytes()


@pytest.mark.parametrize("layout", [None, "CHW", "HWC"])
@pytest.mark.parametrize("color", ["RGB", "grey"])
@pytest.mark.parametrize(
    "step", [images.CenterCrop((20, 30)), images.CenterCrop((9, 5)), images.Resize((17, 27))], ids=repr
)
def test_a_last_flip_and_floats_are_those_of_the_whole_picture(step, color, layout):
    """Rows are flipped and become floats on their way from the decoder or from a resize to the minibatch."""
    mean, std = ([0.4, 0.5, 0.6], [0.2, 0.3, 0.4]) if color == "RGB" else ([0.4], [0.2])
    normalize = images.Normalize(mean, std, layout=layout or "HWC")
    shift, factor = normalize.numbers(len(mean))
    levels = rows(images.Decode("image", step, color=color))
    for mirrored, upside_down in [(0, 0), (1, 0), (0, 1), (1, 1)]:
        expected = levels[:, :: 1 - 2 * upside_down, :: 1 - 2 * mirrored]
        steps = [step, images.Flip(float(mirrored), float(upside_down))]
        if layout is not None:
            expected = (expected.astype(np.float32) - shift) * factor
            steps.append(normalize)
        if layout == "CHW":
            expected = expected.transpose(0, 3, 1, 2)
        found = rows(images.Decode("image", *steps, color=color))
        assert found.tobytes() == np.ascontiguousarray(expected).tobytes()


def test_views_before_and_after():
    whole = rows(images.Decode("image", images.RandomCrop(24)))
    found = rows(images.Decode("image", images.RandomCrop(24), images.MultiView([[], images.Flip(1.0)])))
    assert (found[:, 0] == whole).all()
    assert (found[:, 1] == whole[:, :, ::-1]).all()
    found = rows(images.Decode("image", images.MultiView(3), images.RandomCrop(16)))
    assert len({row.tobytes() for row in found[0]}) == 3
    assert (found[:, :2] == rows(images.Decode("image", images.MultiView(2), images.RandomCrop(16)))).all()


def test_pictures_stay_as_stored_if_asked():
    stored = rows(images.Decode("image", images.CenterCrop(16), upright=False))
    turned = rows(images.Decode("image", images.CenterCrop(16)))
    for i in range(N):
        assert (turned[i] == reference.upright(stored[i], 6 if i % 5 == 4 else 1)).all()


# ---- masks and boxes -------------------------------------------------------------------------------------

WITH_MASK = fl.Schema(
    {**SCHEMA, "mask": fl.Stream(dtype="bytes"), "boxes": fl.Stream(4, "float32"), "classes": fl.Stream((), "int64")}
)
GEOMETRY = [
    images.RandomCrop(48, pad_if_needed=True),
    images.Flip(0.5, 0.5),
    images.RandomResizedCrop(40, scale=(0.5, 1.0), filter="nearest"),
    images.Pad(3),
]


def detection(which=range(N), masks=None):
    """Pictures that are their own masks: white where the one box is, in palettes of 1 and 0."""
    pictures, made, boxes = [], [], []
    for i in which:
        width, height = SIZES[i]
        x, y = 3 + i, 5 + 2 * i
        pixels = np.zeros((height, width), np.uint8)
        pixels[y : y + 20, x : x + 15] = 1
        pictures.append(encoded(np.repeat(pixels[:, :, None] * 255, 3, axis=2), "PNG"))
        made.append(encoded(pixels, "PNG"))
        boxes += [[x, y, x + 15, y + 20], [0, 0, 1, 1]]
    found = values(range(len(pictures)), pictures)
    found["mask"] = fl.Value.from_bytes(made if masks is None else masks, "bytes")
    offsets = np.arange(len(pictures) + 1) * 2
    found["boxes"] = fl.Value.from_dense(np.array(boxes, np.float32).reshape(-1, 4), offsets)
    found["classes"] = fl.Value.from_dense(np.arange(2 * len(pictures)), offsets)
    return found


def test_masks_and_boxes_move_with_their_pictures():
    decode = images.Decode(
        "image", *GEOMETRY, images.ColorJitter(0.5), mask="mask", boxes="boxes", mask_fill=9, color="grey"
    )
    schema = decode.schema(WITH_MASK)
    assert (schema["mask"], schema["boxes"]) == (fl.Stream((46, 46), "uint8"), fl.Stream(4, "float32"))
    done = decode.run_all(WITH_MASK, detection(), places())
    assert done.errors == {}
    found, masks, boxes = (done.values[name] for name in ("image", "mask", "boxes"))
    for name in WITH_MASK:
        done.values[name].check(name, schema[name])
    assert boxes.lengths.tolist() == [2] * N
    for i in range(N):
        inside = masks.rows[i] == 1
        assert (masks.rows[i][:3] == 9).all()  # the border, by Pad
        assert (inside == (found.rows[i, :, :, 0] > 0)).all()  # brightness changes levels, and black stays black
        x1, y1, x2, y2 = boxes.sequences()[i][0].tolist()
        ys, xs = np.nonzero(inside)
        if len(xs) == 0:  # cut off, but for a part of a pixel
            assert (x2 - x1 < 1) | (y2 - y1 < 1)
            continue
        assert abs(np.array([x1, y1, x2, y2]) - [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]).max() <= 1


def test_masks_and_boxes_have_views():
    decode = images.Decode(
        "image", images.CenterCrop(30), images.MultiView([[], images.Flip(1.0)]), mask="mask", boxes="boxes"
    )
    schema = decode.schema(WITH_MASK)
    done = decode.run_all(WITH_MASK, detection(), places())
    for name in WITH_MASK:
        done.values[name].check(name, schema[name])
    masks, boxes = done.values["mask"].rows, done.values["boxes"].rows
    assert masks.shape == (N, 2, 30, 30)
    assert (masks[:, 1] == masks[:, 0, :, ::-1]).all()
    assert boxes.shape == (2 * N, 2, 4)
    left = boxes[:, 0, 2] > 0
    assert (boxes[left, 1, 0] == 30 - boxes[left, 0, 2]).all()


def test_a_mask_must_have_the_size_of_its_picture():
    masks = [encoded(np.zeros(SIZES[i][::-1], np.uint8), "PNG") for i in range(N)]
    masks[3] = encoded(np.zeros((7, 9), np.uint8), "PNG")
    masks[4] = b"none"
    decode = images.Decode("image", images.CenterCrop(16), mask="mask")
    done = decode.run_all(WITH_MASK, detection(masks=masks), places())
    assert sorted(done.errors) == [3, 4]
    assert f"size of its picture, {SIZES[3][0]} x {SIZES[3][1]}, got 9 x 7" in done.errors[3].what
    assert "that Pillow knows" in done.errors[4].what


# ---- damage ----------------------------------------------------------------------------------------------


def damaged():
    found = list(PICTURES)
    found[1] = b""
    found[2] = found[2][: len(found[2]) // 2]  # JPEG, whose header is whole
    found[3] = b"no picture"
    found[4] = found[4][:30]  # JPEG, whose header is cut
    found[7] = encoded(drawn(400, 300), "PNG")
    found[8] = encoded(drawn(300, 400), "JPEG")
    found[9] = encoded(drawn(10, 30), "PNG")
    return found


DAMAGED = [1, 2, 3, 4]  # for any steps


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("views", [[], [images.MultiView(2)]], ids=["one view", "two views"])
def test_what_cannot_be_decoded_leaves_the_others_as_they_are(ahead, views):
    decode = images.Decode("image", *views, images.RandomCrop(20), images.Resize(20), max_pixels=300 * 300)
    given = values(pictures=damaged())
    done = decode.start(SCHEMA, given, places()).result() if ahead else decode.run_all(SCHEMA, given, places())
    assert sorted(done.errors) == [1, 2, 3, 4, 7, 8, 9]
    assert all(isinstance(error, fl.DataError) for error in done.errors.values())
    assert "at most 90000 pixels, got 400 x 300" in done.errors[7].what
    assert "at most 90000 pixels, got 300 x 400" in done.errors[8].what
    assert "at least 20 x 20 for RandomCrop(size=20), got 10 x 30" in done.errors[9].what
    assert all("on_error" in error.hint for error in done.errors.values())
    good = [0, 5, 6, 10, 11]
    assert (done.values["image"].rows[good] == rows(decode, good)).all()
    assert done.values["image"].num_sequences == N


def test_a_batch_of_nothing_but_damage():
    done = images.Decode("image", *RANDOM).run_all(SCHEMA, values(pictures=[b"junk"] * N), places())
    assert sorted(done.errors) == list(range(N))
    assert done.values["image"].num_sequences == N


@pytest.mark.parametrize("ahead", [False, True])
def test_sequences_of_several_pictures_stay_so(ahead):
    """Each picture is as it is alone, with the random numbers of its sequence."""
    decode = images.Decode("image", *RANDOM)
    lists = [[0, 1], [], [2, 2, 0], [1]]
    given = values(range(4))
    given["image"] = fl.Value.from_bytes([[PICTURES[i] for i in numbers] for numbers in lists], "bytes")
    keys = places(range(4))
    done = decode.start(SCHEMA, given, keys).result() if ahead else decode.run_all(SCHEMA, given, keys)
    assert not done.errors
    assert done.values["image"].lengths.tolist() == [2, 0, 3, 1]
    for sequence, numbers in enumerate(lists):
        for at, number in enumerate(numbers):
            alone = decode.run_all(SCHEMA, values([number]), places([sequence]))
            assert (done.values["image"].sequences()[sequence][at] == alone.values["image"].rows[0]).all()
    assert decode.run_all(SCHEMA, {name: value.slice(1, 2) for name, value in given.items()}, places([1])).errors == {}


def test_a_damaged_picture_costs_its_sequence():
    given = values(range(3))
    given["image"] = fl.Value.from_bytes([[PICTURES[0]], [PICTURES[1], b"junk"], [PICTURES[2]] * 2], "bytes")
    done = images.Decode("image", images.CenterCrop(9)).run_all(SCHEMA, given, places(range(3)))
    assert (list(done.errors), done.values["image"].lengths.tolist()) == ([1], [1, 2, 2])


def test_with_boxes_a_sequence_is_one_picture():
    given = values(range(2))
    given["image"] = fl.Value.from_bytes([[PICTURES[0]], [PICTURES[1], PICTURES[2]]], "bytes")
    given["box"] = fl.Value.from_dense(np.zeros((2, 4), np.float32))
    schema = fl.Schema({**SCHEMA, "box": fl.Stream(4)})
    done = images.Decode("image", images.CenterCrop(9), boxes="box").run_all(schema, given, places(range(2)))
    assert sorted(done.errors) == [1]
    assert "one picture in a sequence of stream `image`, got 2" in done.errors[1].what


def test_a_step_that_breaks_its_word_is_an_error():
    class Wrong(images.CenterCrop):
        def plan(self, sizes, u):
            return [PictureOp(CROP, np.zeros((len(sizes), 3)))], sizes

    class Other(images.CenterCrop):
        def plan(self, sizes, u):
            return [], sizes

    with pytest.raises(fl.SchemaError, match=r"kinds 1, 2, 3, 4, 5 with params of shape \(12, 4\) from Wrong"):
        rows(images.Decode("image", Wrong(5)))
    with pytest.raises(fl.SchemaError, match="pictures of 5 x 5 after the steps, got 40 x 64"):
        rows(images.Decode("image", Other(5)))


# ---- declarations ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([], r"one size, got none; add images\.CenterCrop\(224\), or images\.Resize\(\(224, 224\)\)"),
        ([images.Resize(256), images.Flip()], r"one size, got Resize\(size=256\), Flip\(\)"),
        ([images.Normalize(0, 1), images.CenterCrop(5)], r"images\.Normalize as the last step"),
        ([images.CenterCrop(5), images.Normalize(0, 1), images.Normalize(0, 1)], "as the last step"),
        ([images.MultiView([images.Normalize(0, 1)]), images.CenterCrop(5)], "as the last step"),
        ([images.MultiView(2), images.MultiView(2), images.CenterCrop(5)], r"one images\.MultiView at most"),
        ([images.MultiView([images.MultiView(2)]), images.CenterCrop(5)], r"one images\.MultiView at most"),
        ([images.MultiView([images.CenterCrop(5), images.CenterCrop(6)])], "views of one size .* 5 x 5, 6 x 6"),
        ([images.MultiView([images.CenterCrop(5), images.Flip()])], r"one size, got Flip\(\)"),
    ],
)
def test_steps_that_fix_no_size_or_are_misplaced(steps, words):
    with pytest.raises(fl.SchemaError, match=words):
        images.Decode("image", *steps)


def test_a_size_may_follow_from_earlier_ones():
    assert images.Decode("image", images.CenterCrop((20, 40)), images.Resize(10), images.Pad(1)).shape == (12, 22, 3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stream": "picture"}, r"one of the streams image, label, .* for images\.Decode\('picture'\), got `picture`"),
        ({"stream": "label"}, r"encoded pictures as stream `label` .* declare label=fl\.Stream\(dtype='bytes'\)"),
        ({"mask": "label"}, "encoded pictures as stream `label`"),
        ({"boxes": "label"}, r"expected fl\.Stream\(4, 'float32'\) as boxes `label`"),
        ({"boxes": "mask"}, "as boxes `mask`"),
        ({"mask": "image"}, "different streams as picture, mask and boxes, got image, image"),
    ],
)
def test_streams_that_do_not_fit(options, words):
    others = {name: stream for name, stream in options.items() if name != "stream"}
    decode = images.Decode(options.get("stream", "image"), images.CenterCrop(5), **others)
    with pytest.raises(fl.SchemaError, match=words):
        decode.schema(WITH_MASK)


def test_text_is_no_picture():
    with pytest.raises(fl.SchemaError, match="encoded pictures"):
        images.Decode("image", images.CenterCrop(5)).schema(fl.Schema({"image": fl.Stream(dtype="str")}))


def test_the_stream_that_defines_the_size_keeps_doing_so():
    before = fl.Schema({**WITH_MASK, "image": fl.Stream(dtype="bytes", defines_size=True)})
    after = images.Decode("image", images.CenterCrop(5), mask="mask", boxes="boxes").schema(before)
    assert after.size_stream == "image"
    assert list(after) == list(before)


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"color": "gray"}, ValueError, "'RGB', 'BGR', 'grey' as color of Decode, got 'gray'"),
        ({"threads": 0}, ValueError, "above 0"),
        ({"max_pixels": 0}, ValueError, "above 0"),
        ({"mask_fill": 256}, ValueError, "mask_fill of Decode from 0 to 255"),
    ],
)
def test_wrong_options(options, kind, words):
    with pytest.raises(kind, match=words):
        images.Decode("image", images.CenterCrop(5), **options)


def test_steps_are_steps():
    with pytest.raises(TypeError, match=r"images\.CenterCrop\(224\) for Decode, got 224"):
        images.Decode("image", 224)
    with pytest.raises(ValueError, match="mean of Normalize for 3 channels"):
        images.Decode("image", images.CenterCrop(5), images.Normalize([1, 2], 1))


# ---- in a source -----------------------------------------------------------------------------------------


@pytest.fixture
def train(tmp_path):
    for i, picture in enumerate(damaged()):
        folder = tmp_path / "train" / ("cat", "dog")[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i:02}.jpg").write_bytes(picture)
    return tmp_path / "train"


def delivered(source, size):
    """Bytes of each picture by its ordinal, over one sweep."""
    found = {}
    while minibatch := source.next_minibatch(size):
        for i, row in zip(minibatch.ids.tolist(), minibatch["image"].rows, strict=True):
            assert i not in found
            found[i] = row.tobytes()
    return found


def test_a_sweep_in_a_source(train, tmp_path):
    """One order, one set of pictures: for any size, partition, restart and work ahead, with damaged pictures."""

    def source(part, number=0, count=1, steps=RANDOM):
        return fl.MinibatchSource(
            images.folder(train),
            seed=3,
            max_sweeps=1,
            partition=(number, count),
            on_error=fl.Quarantine(tmp_path / f"{part}.jsonl"),
            transforms=[images.Decode("image", *steps)],
        )

    everything = delivered(source("a"), 64)
    assert len(everything) == N - len(DAMAGED)
    assert delivered(source("b"), 1) == everything
    assert delivered(source("c", 0, 2), 5) | delivered(source("d", 1, 2), 5) == everything
    ahead = source("e")
    copy_ahead_of(ahead).threshold = 0
    assert delivered(ahead, 2) == everything
    first = source("f")
    first.next_minibatch(4)
    second = source("g")
    second.load_state_dict(first.state_dict())
    assert everything.items() > delivered(second, 3).items()
    assert delivered(source("h", steps=[images.CenterCrop(24)]), 64) != everything


def test_a_damaged_picture_is_reported_with_its_file(train):
    source = fl.MinibatchSource(
        images.folder(train), shuffle=False, transforms=[images.Decode("image", images.CenterCrop(5))]
    )
    with pytest.raises(fl.DataError, match="expected a") as caught:
        while source.next_minibatch(1):
            pass
    assert (caught.value.stream, caught.value.sequence, caught.value.path) == ("image", 1, str(train))


def test_the_corpus_of_a_folder(train):
    assert images.folder(train).classes == ["cat", "dog"]
    keyed = images.folder(train, name=fl.Stream(dtype="str", field="key"))
    assert keyed.read(0)["name"].tolist()[1] == "cat/02.jpg"


def test_the_transform_can_be_sent_to_another_process():
    decode = pickle.loads(pickle.dumps(images.Decode("image", *RANDOM, mask="mask")))
    assert repr(decode) == repr(images.Decode("image", *RANDOM))
    assert decode.shape == (3, 24, 24)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_what_was_begun_before_a_fork_is_done_again_in_the_child(kind):
    """The child has none of the threads. Also after the work was cancelled."""
    decode = images.Decode("image", images.CenterCrop(20), threads=2)
    corpus = fl.ArrayDeserializer(image=[encoded(drawn(40, 30, i), kind) for i in range(12)])
    keys = DrawKeys(1, np.zeros(12, np.int64), np.arange(12), stage=0)
    values = corpus.read(0).values
    expected = decode.run_all(corpus.schema, values, keys).values["image"].rows
    begun = decode.start(corpus.schema, values, keys)
    assert Forked(lambda: (begun.result().values["image"].rows == expected).all()).status() == 0
    work_of(begun).cancel()
    assert (begun.result().values["image"].rows == expected).all()
