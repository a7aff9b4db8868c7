"""Pictures on a device: torch operations against native ones, with a substitute for the device's decoder."""

import logging
import pickle

import numpy as np
import pytest

import feedline as fl
from feedline import _native, images
from feedline.images import picture_batch
from tests.images.conftest import BUILT
from tests.images.pictures import drawn, encoded
from tests.images.test_decode import PICTURES, SCHEMA, N, places, values
from tests.native.test_pictures import MIXED, MOVED

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.skipif(not BUILT, reason="native code for pictures is not built")


@pytest.fixture
def on_cpu(monkeypatch):
    """Make `Decode` take the processor as a device with this library's decoder. Returns the sizes of its calls."""
    from feedline.interop import torch_pictures

    calls = []

    def jpeg(pictures, grey):
        calls.append(len(pictures))
        found = []
        for picture in pictures:
            data = picture.numpy()
            header = _native.picture_headers(data, np.array([0, len(data)]))[0]
            color = "grey" if grey else "RGB"
            try:
                pixels = picture_batch.decode_pixels(data, header, color=color, upright=False, max_pixels=1 << 27)
            except fl.DataError as error:
                raise RuntimeError("the device refuses it") from error
            found.append(torch.from_numpy(pixels).permute(2, 0, 1))
        return found

    monkeypatch.setattr(torch_pictures, "jpeg_decoder", lambda device: jpeg)
    return calls


def both(*steps, which=range(N), pictures=PICTURES, **options):
    """What is decoded on the device, as a tensor, and what native code makes of the same."""
    device = images.Decode("image", *steps, device="cpu", **options)
    done = device.run_all(SCHEMA, values(which, pictures), places(which))
    native = images.Decode("image", *steps, **options).run_all(SCHEMA, values(which, pictures), places(which))
    assert done.errors.keys() == native.errors.keys()
    return done.values["image"], native.values["image"].rows


@pytest.mark.parametrize("upright", [True, False])
@pytest.mark.parametrize("color", ["RGB", "BGR", "grey"])
@pytest.mark.parametrize("steps", MOVED, ids=repr)
def test_moved_pixels_are_equal(on_cpu, steps, color, upright):
    ours, theirs = both(*steps, color=color, upright=upright)
    found = ours.torch()
    assert found.shape == theirs.shape
    assert found.dtype == torch.from_numpy(theirs).dtype
    assert (found.numpy() == theirs).all()


@pytest.mark.parametrize("color", ["RGB", "BGR", "grey"])
@pytest.mark.parametrize("steps", MIXED, ids=repr)
def test_mixed_pixels_are_equal_within_a_level(on_cpu, steps, color):
    ours, theirs = both(*steps, color=color)
    assert abs(ours.torch().numpy().astype(int) - theirs).max() <= 1


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_numbers_are_equal(on_cpu, layout):
    steps = [images.RandomCrop(24, padding=3), images.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.4], layout=layout)]
    ours, theirs = both(*steps)
    assert ours.torch().dtype == torch.float32
    np.testing.assert_allclose(ours.torch().numpy(), theirs, rtol=1e-6, atol=1e-6)


def test_what_the_device_refuses_is_decoded_on_the_processor(on_cpu, monkeypatch, caplog):
    from feedline.interop import torch_pictures

    jpeg = torch_pictures.jpeg_decoder("cpu")

    def picky(pictures, grey):
        if any(len(picture) % 2 for picture in pictures):
            raise RuntimeError("odd ones are refused")
        return jpeg(pictures, grey)

    monkeypatch.setattr(torch_pictures, "jpeg_decoder", lambda device: picky)
    monkeypatch.setattr(picture_batch, "_reported_refused", [])
    with caplog.at_level(logging.WARNING, logger="feedline"):
        ours, theirs = both(images.CenterCrop(20))
        both(images.CenterCrop(20))
    assert (ours.torch().numpy() == theirs).all()
    assert sum("refused" in record.message for record in caplog.records) == 1


def test_other_formats_and_damaged_pictures(on_cpu):
    pictures = [
        encoded(drawn(40, 30), "PNG"),
        encoded(drawn(40, 31, 1)),
        b"no picture",
        encoded(drawn(41, 30, 2))[:60],
        encoded(drawn(30, 40, 3), turned=6),
    ]
    ours, theirs = both(images.CenterCrop(20), which=range(5), pictures=pictures)
    assert (ours.torch().numpy()[[0, 1, 4]] == theirs[[0, 1, 4]]).all()


def test_through_a_source_tensors_stay_where_they_are(on_cpu):
    """Minibatches across windows, unreadable sequences left out, slices, pickles."""
    pictures = [encoded(drawn(40, 30, i)) for i in range(11)]
    pictures[4] = b"damaged"
    corpus = fl.ArrayDeserializer(image=pictures, label=np.arange(11))
    steps = [images.RandomCrop(24), images.Flip(0.5)]

    def minibatches(tmp, **options):
        decode = images.Decode("image", *steps, **options)
        with fl.MinibatchSource(
            corpus, seed=3, max_sweeps=1, transforms=[decode], on_error=fl.Quarantine(tmp)
        ) as source:
            return list(source.minibatches(4))

    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        ours = minibatches(f"{folder}/a", device="cpu")
        theirs = minibatches(f"{folder}/b")
    for one, other in zip(ours, theirs, strict=True):
        value = one["image"]
        assert isinstance(value.torch(), torch.Tensor)
        assert value.torch() is value.torch()
        assert (value.rows == other["image"].rows).all()
        assert (value.shape, value.dtype, value.num_samples) == ((24, 24, 3), np.uint8, other.num_samples)
        assert (one["label"].rows == other["label"].rows).all()
        assert one.to("cpu").tensors["image"].shape == (one.num_sequences, 24, 24, 3)
        parts = [part["image"].torch() for part in one.parts(2)]
        assert (torch.cat(parts) == value.torch()).all()
        again = pickle.loads(pickle.dumps(one))
        assert (again["image"].rows == value.rows).all()


def test_views_and_boxes(on_cpu):
    steps = [images.RandomCrop(24), images.MultiView([[], images.Flip(1.0)])]
    ours, theirs = both(*steps)
    assert ours.torch().shape == theirs.shape
    assert (ours.torch().numpy() == theirs).all()


def test_values_of_a_device_can_be_joined():
    from feedline.feed.joined_values import join_values
    from feedline.interop.device_value import DeviceValue

    a, b = (torch.arange(n * 3, dtype=torch.float32).reshape(n, 3) + n for n in (2, 4))
    value = join_values([DeviceValue(a), DeviceValue(b)])
    assert (value.torch() == torch.cat([a, b])).all()
    assert (value.select([5, 0]).torch() == torch.stack([b[3], a[0]])).all()
    assert (value.select(np.array([True] + [False] * 5)).torch() == a[:1]).all()
    assert (join_values([DeviceValue(a), fl.Value.from_dense(b.numpy())]).rows == torch.cat([a, b]).numpy()).all()
    assert value.nbytes == 72


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_raises_at_once():
    with pytest.raises(RuntimeError, match="finds no CUDA devices; leave out device="):
        images.Decode("image", images.CenterCrop(20), device="cuda")


def test_something_other_than_a_cuda_device_is_refused():
    with pytest.raises(ValueError, match="expected a CUDA device to decode pictures on, such as 'cuda', got 'cpu'"):
        images.Decode("image", images.CenterCrop(20), device="cpu")


def test_without_a_decoder_the_error_names_the_package(monkeypatch):
    from feedline.interop import torch_pictures

    def nothing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch_pictures.importlib, "import_module", nothing)
    with pytest.raises(
        ModuleNotFoundError, match=r"pip install torchcodec \(torchcodec.decoders: torchcodec.decoders; "
    ):
        torch_pictures.jpeg_decoder("cuda")


def test_a_device_without_memory_is_no_refusal(on_cpu, monkeypatch):
    from feedline.interop import torch_pictures

    def full(pictures, grey):
        raise torch.OutOfMemoryError("planted")

    monkeypatch.setattr(torch_pictures, "jpeg_decoder", lambda device: full)
    with pytest.raises(torch.OutOfMemoryError, match="planted"):
        images.Decode("image", images.CenterCrop(20), device="cpu").run_all(SCHEMA, values(), places())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs torch with CUDA, and torchcodec or torchvision")
def test_on_a_cuda_device_pixels_are_within_some_levels():
    steps = [images.CenterCrop(20), images.Flip(0.5)]
    device = images.Decode("image", *steps, device="cuda").run_all(SCHEMA, values(), places())
    native = images.Decode("image", *steps).run_all(SCHEMA, values(), places())
    found = device.values["image"].torch()
    assert found.device.type == "cuda"
    difference = abs(found.cpu().numpy().astype(int) - native.values["image"].rows)
    assert difference.mean() < 2
    assert np.quantile(difference, 0.99) <= 16
