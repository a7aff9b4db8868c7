"""Values, devices, axes, records and configurations of the CNTK façade."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl
import feedline.cntk as C
from feedline.cntk import device as devices
from tests.docs.pages import IMPORTED_FROM
from tests.warm import run

SEQUENCES = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=5), min_size=1, max_size=6)

# ---- values ---------------------------------------------------------------------------------------


@given(SEQUENCES)
def test_one_hot_and_dense_agree(sequences):
    sparse = C.Value.one_hot(sequences, 7)
    dense = C.Value([np.eye(7, dtype=np.float32)[s] for s in sequences])
    longest = max(map(len, sequences))
    assert sparse.shape == dense.shape == (len(sequences), longest, 7)
    assert (sparse.is_sparse, dense.is_sparse) == (True, False)
    for a, b in zip(sparse.as_sequences("variable"), dense.as_sequences(), strict=True):
        np.testing.assert_array_equal(a.toarray(), b)
    padded = dense.asarray()
    assert padded.shape == dense.shape
    for row, sequence in zip(padded, sequences, strict=True):
        assert row[: len(sequence)].argmax(axis=1).tolist() == sequence
        assert not row[len(sequence) :].any()
    if longest > 1:
        assert dense.mask.tolist() == sparse.mask.tolist()
        assert (dense.mask > 0).sum(axis=1).tolist() == [len(s) for s in sequences]
        assert set(dense.mask[:, 0].tolist()) == {2}
    if len({len(s) for s in sequences}) == 1:
        np.testing.assert_array_equal(sparse.asarray(), padded)
    else:
        with pytest.raises(ValueError, match="as_sequences"):
            sparse.asarray()


def test_one_hot_skips():
    value = C.Value.one_hot([[1, C.Value.ONE_HOT_SKIP], [2]], num_classes=3, dtype=np.float64)
    assert [s.toarray().tolist() for s in value.as_sequences(0)] == [[[0, 1, 0], [0, 0, 0]], [[0, 0, 1]]]
    assert value.dtype == np.float64


@pytest.mark.parametrize(
    ("batch", "classes", "options", "kind"),
    [
        ([1, 3], 3, {}, ValueError),
        ([1, [2]], 3, {}, ValueError),
        ([0.5], 3, {}, ValueError),
        ([[[1]]], 3, {}, ValueError),
        (1, 3, {}, ValueError),
        ([], 3, {}, ValueError),
        ([[0.5]], 3, {}, ValueError),
        ([["a"]], 3, {}, ValueError),
        ([[3]], 3, {}, ValueError),
        ([[-1]], 3, {}, ValueError),
        ([[1]], 3, {"dtype": np.int8}, ValueError),
        ([[1]], (2, 3), {}, ValueError),
    ],
)
def test_one_hot_errors(batch, classes, options, kind):
    with pytest.raises(kind):
        C.Value.one_hot(batch, classes, **options)


def test_rectangular_values():
    rows = np.arange(6, dtype=np.float32).reshape(2, 1, 3)
    value = C.Value(batch=rows, device=C.device.cpu())
    assert (value.shape, len(value), value.packed) == ((2, 1, 3), 2, None)
    assert value.asarray().tolist() == rows.tolist()
    assert [s.tolist() for s in value.as_sequences()] == rows.tolist()
    assert repr(value) == "Value([2 x 1 x 3], CPU)"
    with pytest.raises(AttributeError):
        value.mask  # noqa: B018
    matrix = scipy.sparse.csr_matrix(np.eye(3, dtype=np.float32))
    assert C.Value(matrix).asarray() is not None
    assert C.Value(matrix).shape == (3, 3)
    assert C.Value(matrix).is_sparse
    np.testing.assert_array_equal(np.asarray(C.Value(matrix)), np.eye(3))
    assert C.Value([[1, 2], [3, 4]]).dtype == np.float32
    assert C.Value(C.NDArrayView.from_dense(rows, read_only=True)).is_read_only
    with pytest.raises(ValueError, match="batch"):
        C.Value()
    with pytest.raises(TypeError, match="float32"):
        C.Value(np.zeros(3, np.int64))
    with pytest.raises(ValueError, match=r"ragged|inhomogeneous"):
        C.Value([[1], [2, 3]])


def test_sequences_that_go_on():
    value = C.Value([np.zeros((n, 1), np.float32) for n in (2, 1)], seq_starts=[True, False])
    assert value.mask.tolist() == [[2, 1], [1, 0]]
    with pytest.raises(ValueError, match="a bool for each of 2 sequences, got 1"):
        C.Value([np.zeros((n, 1), np.float32) for n in (2, 1)], seq_starts=[True])


def test_create_as_a_variable_takes_it():
    variable = C.sequence.input_variable(2)
    value = C.asvalue(variable, [np.ones((3, 2)), np.ones((1, 2))])
    assert (value.shape, value.dtype) == ((2, 3, 2), np.float32)
    assert C.Value.create(variable, np.ones((4, 2)), read_only=True).is_read_only
    assert C.Value.create(variable, value) is value
    with pytest.raises(ValueError, match=r"got \(3, 5\) as item 0"):
        C.asvalue(variable, [np.ones((3, 5))])
    with pytest.raises(TypeError, match="expected a variable, got int"):
        C.asvalue(2, [np.ones((3, 2))])


def test_clones_share_nothing():
    value = C.Value([np.ones((2, 1), np.float32)])
    clone = value.deep_clone()
    value.asarray()[:] = 5
    value.packed.rows[:] = 5
    assert clone.asarray().tolist() == [[[1], [1]]]
    value.erase()
    with pytest.raises(ValueError, match="erased"):
        value.asarray()


def test_views():
    array = np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3)
    view = C.NDArrayView.from_dense(array)
    assert (view.shape, view.dtype, view.is_sparse, len(view)) == ((1, 1, 2, 3), np.float32, False, 1)
    sliced = view.slice_view([0, 0, 0, 1], [2, 2])
    assert np.asarray(sliced).tolist() == [[1, 2], [4, 5]]
    borrowed = C.NDArrayView.from_dense(array, borrow=True)
    array[0, 0, 0] = 9
    assert borrowed.asarray()[0, 0, 0].tolist() == [9, 9, 9]
    assert view.asarray()[0, 0, 0].tolist() == [0, 1, 2]
    assert C.NDArrayView((2, 2), np.float32).asarray().tolist() == [[0, 0], [0, 0]]
    matrix = scipy.sparse.csr_matrix(np.eye(2, dtype=np.float32))
    assert np.asarray(C.NDArrayView.from_data(matrix)).tolist() == [[1, 0], [0, 1]]
    assert C.NDArrayView.from_data(np.float32(3)).shape == ()
    assert C.NDArrayView.from_data(view) is view
    assert C.Value(array).data.shape == array.shape
    with pytest.raises(TypeError, match="NumPy"):
        C.NDArrayView.from_dense([1])
    with pytest.raises(TypeError, match="tocsr"):
        C.NDArrayView.from_csr(matrix.tocoo())
    assert C.asarray(C.Value(array)).tolist() == C.asarray(array).tolist()
    assert C.asarray([1, 2], np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="array"):
        C.asarray(object())


# ---- devices --------------------------------------------------------------------------------------


@pytest.fixture
def fresh(monkeypatch):
    """A process that has used no device, on a machine with two GPUs."""
    monkeypatch.setattr(devices, "_choice", devices._Choice())
    monkeypatch.setattr(devices, "_gpu_count", lambda: 2)


def test_devices(fresh):
    cpu, gpu = C.device.cpu(), C.device.gpu(1)
    assert (cpu.type(), gpu.type(), gpu.id()) == (C.DeviceKind.CPU, C.DeviceKind.GPU, 1)
    assert (str(cpu), str(gpu)) == ("CPU", "GPU[1]")
    assert {cpu: 1}[C.cpu()] == 1
    assert [str(d) for d in C.all_devices()] == ["GPU[0]", "GPU[1]", "CPU"]
    assert (str(cpu.torch()), str(gpu.torch())) == ("cpu", "cuda:1")
    assert not gpu.is_locked()
    with pytest.raises(AttributeError, match="label"):
        cpu.label = "mine"
    with pytest.raises(AttributeError, match="cannot assign to field 'name'"):
        cpu.name = "mine"
    with pytest.raises(ValueError, match="0 to 1, got 2"):
        C.device.gpu(2)
    with pytest.raises(ValueError, match="expected a GPU"):
        C.device.get_gpu_properties(cpu)


def test_the_default_device_is_fixed_by_its_first_use(fresh):
    assert C.device.intended_device() == C.cpu()
    assert C.device.try_set_default_device(C.gpu(1))
    assert C.device.intended_device() == C.gpu(1)
    assert C.Value([[1]]).device == C.gpu(1)
    assert C.device.try_set_default_device(C.cpu())
    assert C.device.use_default_device() == C.cpu()
    assert C.device.try_set_default_device(C.cpu())
    with pytest.raises(RuntimeError, match="in use"):
        C.device.try_set_default_device(C.gpu(0))
    C.device.set_excluded_devices([C.cpu()])
    assert C.device.use_default_device() == C.cpu()


def test_excluded_devices(fresh):
    C.device.set_excluded_devices([C.gpu(0)])
    assert not C.device.try_set_default_device(C.gpu(0))
    assert not C.device.try_set_default_device(C.cpu(), acquire_device_lock=True)
    with pytest.raises(fl.CompatError, match="CUDA_VISIBLE_DEVICES"):
        C.device.try_set_default_device(C.gpu(1), acquire_device_lock=True)
    assert C.device.use_default_device() == C.gpu(1)


def test_all_devices_excluded(fresh, monkeypatch):
    C.device.set_excluded_devices(C.all_devices())
    with pytest.raises(RuntimeError, match="not excluded"):
        C.device.use_default_device()
    with pytest.warns(DeprecationWarning, match="deprecated"):
        assert not C.device.set_default_device(C.cpu())
    monkeypatch.setattr(devices, "_gpu_count", lambda: 0)
    with pytest.raises(ValueError, match="use cpu"):
        C.device.gpu(0)


# ---- axes, records, configurations ----------------------------------------------------------------


def test_axes():
    batch, sequence = C.Axis.default_input_variable_dynamic_axes()
    assert batch == C.Axis.default_batch_axis()
    assert sequence == C.Axis.default_dynamic_axis()
    assert (batch.name, sequence.name) == ("defaultBatchAxis", "defaultDynamicAxis")
    assert (batch.is_ordered, sequence.is_ordered) == (False, True)
    assert (batch.is_batch_axis, batch.is_sequence_axis, batch.is_static_axis) == (True, False, False)
    assert (sequence.is_batch_axis, sequence.is_sequence_axis) == (False, True)
    assert (C.Axis(1).is_static_axis, C.Axis(-1).static_axis_index()) == (True, -1)
    assert C.Axis("words") == C.Axis("words") != C.Axis("labels")
    assert C.Axis.new_unique_dynamic_axis("x") != C.Axis.new_unique_dynamic_axis("x")
    assert (
        len({C.Axis.all_axes(), C.Axis.all_static_axes(), C.Axis.new_leading_axis(), *C.Axis.unknown_dynamic_axes()})
        == 4
    )
    assert repr(batch) == "Axis('defaultBatchAxis')"
    with pytest.raises(ValueError, match="static"):
        batch.static_axis_index()
    assert batch.static_axis_index(checked=False) == 2**31 - 1
    with pytest.warns(DeprecationWarning, match="deprecated"):
        assert C.Axis.end_static_axis() == C.Axis.new_leading_axis()
    with pytest.raises(TypeError):
        C.Axis(1.5)


def test_records():
    record = C.variables.Record(a=1, b=2)
    assert (record.a, record["b"], dict(record)) == (1, 2, {"a": 1, "b": 2})
    assert record.updated_with(b=3, c=4) == {"a": 1, "b": 3, "c": 4}
    with pytest.raises(AttributeError, match="a record cannot be changed"):
        record.a = 2
    definition = C.io.StreamDef(field="A", shape=2, mlf="labels.mlf")
    assert definition == {
        "stream_alias": "A",
        "dim": 2,
        "is_sparse": True,
        "mlf": "labels.mlf",
        "defines_mb_size": False,
        "max_sequence_length": 65535,
    }


def test_configurations():
    text = C.io.CTFDeserializer("x.ctf", C.io.StreamDefs(a=C.io.StreamDef(field="A", shape=2, is_sparse=True)))
    stream = {"dim": 2, "format": "sparse", "definesMBSize": False, "alias": "A"}
    assert text == {
        "type": "CNTKTextFormatDeserializer",
        "module": "CNTKTextFormatReader",
        "file": "x.ctf",
        "input": {"a": stream},
    }
    config = C.cntk_py.MinibatchSourceConfig([text])
    settings = C.cntk_py.to_dictionary(config)
    assert settings == {
        "frameMode": False,
        "traceLevel": 1,
        "multiThreadedDeserialization": False,
        "deserializers": [text],
        "randomize": True,
        "randomizationWindow": 128,
        "sampleBasedRandomizationWindow": False,
        "randomizationSeed": 0,
    }
    config.truncation_length = 5
    config.randomization_window_in_chunks, config.randomization_window_in_samples = 0, 7
    config.is_multithreaded.set(True)
    settings = C.cntk_py.to_dictionary(config)
    assert len(settings) == 10
    assert (settings["truncated"], settings["truncationLength"], settings["randomizationWindow"]) == (True, 5, 7)
    assert settings["sampleBasedRandomizationWindow"]
    assert settings["multiThreadedDeserialization"]
    assert len(C.cntk_py.to_dictionary(C.cntk_py.MinibatchSourceConfig([text], randomize=False))) == 5
    config.is_frame_mode_enabled = True
    with pytest.raises(RuntimeError, match="truncation"):
        C.cntk_py.to_dictionary(config)
    with pytest.raises(ValueError, match="string as key"):
        text[3] = 4
    text.add("cacheIndex", C.cntk_py.DictionaryValue(True))
    assert text["cacheIndex"] is True


def test_transforms():
    crop = C.io.transforms.crop(crop_type="randomside", side_ratio=(0.5, 0.8))
    assert (crop["type"], crop["cropSize"], crop["sideRatio"], crop["aspectRatio"]) == (
        "Crop",
        "0:0",
        "0.5:0.8",
        "1.0:1.0",
    )
    with pytest.raises(ValueError, match="side_ratio"):
        C.io.transforms.crop(side_ratio=(0.8, 0.5))
    assert C.io.transforms.scale(4, 5, 3)["height"] == 5
    assert C.io.transforms.mean("mean.xml")["meanFile"] == "mean.xml"
    assert C.io.transforms.color(0.1)["brightnessRadius"] == 0.1


def test_trace_levels(monkeypatch):
    monkeypatch.setattr(C.logging, "_level", C.logging.TraceLevel.Warning)
    assert C.logging.get_trace_level() == 1
    C.logging.set_trace_level(C.logging.TraceLevel.Info)
    assert C.logging.get_trace_level() == 2
    with pytest.raises(ValueError, match="9"):
        C.logging.set_trace_level(9)


def test_seed_fixes_the_numbers_of_torch():
    code = (
        "import feedline.cntk as C, torch; C.cntk_py.force_deterministic_algorithms(); "
        "draw = lambda: (C.cntk_py.set_fixed_random_seed(4), torch.rand(3).tolist())[1]; "
        "assert draw() == draw() and torch.are_deterministic_algorithms_enabled()"
    )
    run(["-c", code], check=True, timeout=100, env={"PYTHONPATH": IMPORTED_FROM})
