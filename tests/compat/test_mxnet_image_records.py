"""`mxnet.io.ImageRecordIter` delivers what MXNet's rules make of a RecordIO file, epoch after epoch, and resumes."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

import feedline as fl
import feedline.mxnet as mx
from tests.oracles.recordio import packed, write

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

COUNT, HEIGHT, WIDTH = 11, 9, 12
PIXELS = np.random.default_rng(3).integers(0, 256, (COUNT, HEIGHT, WIDTH, 3), np.uint8)


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def path(tmp_path):
    write(tmp_path / "a.rec", [packed(float(i), png(pixels), i) for i, pixels in enumerate(PIXELS)])
    return str(tmp_path / "a.rec")


def iterator(path, batch_size=4, data_shape=(3, 6, 5), **options):
    return mx.io.ImageRecordIter(path_imgrec=path, data_shape=data_shape, batch_size=batch_size, **options)


def labels_of(batches):
    """Labels of the batches of one epoch, and their padding."""
    return [(batch.label[0].asnumpy().astype(int).tolist(), batch.pad) for batch in batches]


def middle(pixels, height=6, width=5):
    y, x = (HEIGHT - height) // 2, (WIDTH - width) // 2
    return pixels[y : y + height, x : x + width].transpose(2, 0, 1).astype(np.float32)


def test_batches_are_the_middles_of_pictures_in_the_order_of_the_file(path):
    batches = iterator(path)
    assert [tuple(desc) for desc in batches.provide_data] == [("data", (4, 3, 6, 5))]
    assert [tuple(desc) for desc in batches.provide_label] == [("softmax_label", (4,))]
    first = next(batches)
    assert (first.data[0].shape, first.data[0].dtype, first.pad) == ((4, 3, 6, 5), np.float32, 0)
    assert first.data[0].asnumpy().tolist() == [middle(pixels).tolist() for pixels in PIXELS[:4]]
    assert labels_of([first]) == [([0, 1, 2, 3], 0)]


def test_mean_deviation_and_scale_are_applied_to_each_colour(path):
    numbers = {"mean_r": 120, "mean_g": 110, "mean_b": 100, "std_r": 2, "std_g": 4, "std_b": 8, "scale": 0.5}
    (data,) = next(iterator(path, mirror=True, **numbers)).data
    expected = [
        (middle(pixels)[:, :, ::-1] - np.array([120, 110, 100]).reshape(3, 1, 1))
        * 0.5
        / np.array([2, 4, 8]).reshape(3, 1, 1)
        for pixels in PIXELS[:4]
    ]
    np.testing.assert_allclose(data.asnumpy(), expected, rtol=1e-6, atol=1e-5)


def test_the_next_epoch_begins_behind_what_filled_the_last_batch(path):
    batches = iterator(path)
    assert labels_of(batches) == [([0, 1, 2, 3], 0), ([4, 5, 6, 7], 0), ([8, 9, 10, 0], 1)]
    assert labels_of(batches) == []
    batches.reset()
    assert labels_of(batches) == [([1, 2, 3, 4], 0), ([5, 6, 7, 8], 0), ([9, 10, 0, 1], 2)]
    batches.reset()
    next(batches)
    batches.reset()
    assert labels_of(batches)[0] == ([0, 1, 2, 3], 0)


def test_without_round_batch_every_epoch_begins_at_the_first_picture(path):
    batches = iterator(path, round_batch=False)
    for _ in range(2):
        assert labels_of(batches) == [([0, 1, 2, 3], 0), ([4, 5, 6, 7], 0), ([8, 9, 10, 0], 1)]
        batches.reset()


def test_shuffled_epochs_have_each_picture_once_and_differ(path):
    batches, epochs = iterator(path, shuffle=True, seed=5, round_batch=False), []
    for _ in range(3):
        rows = [row for labels, pad in labels_of(batches) for row in labels[: 4 - pad]]
        assert sorted(rows) == [*range(COUNT)]
        epochs.append(rows)
        batches.reset()
    assert len(set(map(tuple, epochs))) == 3


def test_parts_make_up_the_file(path):
    parts = [labels_of(iterator(path, 1, num_parts=3, part_index=k)) for k in range(3)]
    assert [[label for (label,), _ in part] for part in parts] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    with pytest.raises(ValueError, match="part_index"):
        iterator(path, num_parts=2, part_index=2)


def test_random_crops_and_mirrors_are_parts_of_pictures(path):
    (data,) = next(iterator(path, COUNT, rand_crop=True, rand_mirror=True, seed=1)).data
    mirrored = 0
    for pixels, got in zip(PIXELS, data.asnumpy(), strict=True):
        windows = np.lib.stride_tricks.sliding_window_view(pixels.transpose(2, 0, 1), (6, 5), axis=(1, 2))
        places = [(windows == picture[:, None, None]).all(axis=(0, 3, 4)).sum() for picture in (got, got[..., ::-1])]
        assert sum(places) == 1
        mirrored += int(places[1])
    assert 0 < mirrored < COUNT


def test_padding_resizing_and_resized_crops_have_the_shape(path):
    (data,) = next(iterator(path, data_shape=(3, 15, 18), pad=3, fill_value=7)).data
    border = data.asnumpy()[:, :, [0, 1, 2, -1, -2, -3]]
    assert (border == 7).all()
    assert data.asnumpy()[0, :, 3:-3, 3:-3].tolist() == PIXELS[0].transpose(2, 0, 1).tolist()
    for options in ({"resize": 24}, {"random_resized_crop": True, "min_random_area": 0.2, "max_aspect_ratio": 0.25}):
        assert next(iterator(path, data_shape=(3, 20, 20), **options)).data[0].shape == (4, 3, 20, 20)
    assert next(iterator(path, data_shape=(1, 6, 5))).data[0].shape == (4, 1, 6, 5)


def test_several_labels_are_a_row(tmp_path):
    write(tmp_path / "a.rec", [packed([i, -i, 2], png(PIXELS[i])) for i in range(4)])
    batch = next(iterator(str(tmp_path / "a.rec"), 2, label_width=3))
    assert batch.label[0].asnumpy().tolist() == [[0, 0, 2], [1, -1, 2]]
    with pytest.raises(fl.DataError, match="expected 1 labels, got 3"):
        next(iterator(str(tmp_path / "a.rec"), 2))


@pytest.mark.parametrize("round_batch", [True, False])
def test_it_resumes_at_any_batch(path, round_batch):
    options = {"shuffle": True, "seed": 3, "rand_crop": True, "round_batch": round_batch}

    def epoch(batches):
        return [(batch.data[0].asnumpy().tolist(), batch.label[0].asnumpy().tolist(), batch.pad) for batch in batches]

    batches, states, expected = iterator(path, **options), [], []
    for _ in range(2):
        for batch in batches:
            expected += epoch([batch])
            states.append(json.dumps(batches.state_dict()))
        batches.reset()
    for done, state in enumerate(states, 1):
        again = iterator(path, **options)
        again.load_state_dict(json.loads(state))
        rest = epoch(again)
        while len(rest) < len(expected) - done:
            again.reset()
            rest += epoch(again)
        assert rest == expected[done:]
    with pytest.raises(fl.StateError, match="ImageRecordIter"):
        batches.load_state_dict({})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_rotate_angle": 10}, "max_rotate_angle=0"),
        ({"mean_img": "mean.bin"}, r"mean_img=''.*images\.Decode"),
        ({"max_random_area": 0.5}, "random_resized_crop=True"),
        ({"rand_corp": True}, "'rand_corp': leave it out"),
    ],
)
def test_what_is_not_provided_is_named(path, options, expected):
    with pytest.raises(fl.CompatError, match=expected):
        iterator(path, **options)


def test_what_is_out_of_range_is_named(path):
    with pytest.raises(ValueError, match="expected a number for rand_crop, got 'False'"):
        mx.io.ImageRecordIter(path_imgrec=str(path), data_shape=(3, 8, 8), batch_size=4, rand_crop="False")
    with pytest.raises(ValueError, match="expected data_shape as"):
        mx.io.ImageRecordIter(path_imgrec=str(path), data_shape=(3, 0, 8), batch_size=4)
    for options in ({"label_width": 0}, {"label_width": "1"}, {"shuffle": "False"}, {"round_batch": "False"}):
        (name,) = options
        with pytest.raises(ValueError, match=f"expected .* for {name}, got"):
            mx.io.ImageRecordIter(path_imgrec=str(path), data_shape=(3, 8, 8), batch_size=4, **options)
    with pytest.raises(ValueError, match="data_shape"):
        iterator(path, data_shape=(4, 6, 5))
    with pytest.raises(ValueError, match="from 1 to 11"):
        iterator(path, batch_size=12)
    with pytest.raises(fl.DataError, match="at least 20 x 20, got 12 x 9; pass resize="):
        next(iterator(path, data_shape=(3, 20, 20)))
    assert next(iterator(path, path_imgidx="a.idx", prefetch_buffer=2, preprocess_threads=1, dtype="float32")).pad == 0
