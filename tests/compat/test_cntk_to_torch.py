"""Functions as modules of torch: the module computes what the function does, on sequences of every length."""

from __future__ import annotations

import json
import runpy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline as fl  # noqa: E402
import feedline.cntk as C  # noqa: E402
from feedline.cntk._torch_source import write_torch  # noqa: E402
from feedline.cntk.layers import GRU, LSTM, Dense, Embedding, Fold, Recurrence, RNNStep, Sequential  # noqa: E402
from feedline.networks.torch_source import torch_operators  # noqa: E402
from tests.cli.shell import feedline  # noqa: E402
from tests.compat.cntk_functions import CASES, RAGGED, flat, normal  # noqa: E402


def written(folder, function):
    """Write a function, and return the text of its module, and a function that loads the module."""
    path = folder / "net.py"
    roots, inputs = ([v.node for v in side] for side in (function.outputs, function.arguments))
    write_torch(path, roots, inputs, "net.dnn")
    text = path.read_text()
    assert "import feedline" not in text
    return text, runpy.run_path(str(path))["load"]


def padded(sequences):
    """Sequences side by side, (sequences, longest, ...), with numbers that must not matter at their ends."""
    lengths = np.array([len(x) for x in sequences])
    steps = np.full((len(sequences), lengths.max(), *sequences[0].shape[1:]), 9, sequences[0].dtype)
    for row, x in zip(steps, sequences, strict=True):
        row[: len(x)] = x
    return torch.from_numpy(steps), torch.from_numpy(lengths)


@pytest.mark.parametrize("name", CASES)
def test_the_module_computes_the_same(tmp_path, name):
    """The comparison is ours, not that of the export: a function's results beside its module's."""
    function, feeds = CASES[name]()
    text, load = written(tmp_path, function)
    arguments, lengths = [], []
    for variable in function.arguments:
        data = feeds[variable.name]
        if isinstance(data, list):
            data, lengths = padded(data)
        arguments.append(torch.as_tensor(data))
    with torch.no_grad():
        results = load()(*arguments, *([lengths] if "lengths: torch.Tensor" in text else []))
    results = [results] if isinstance(results, torch.Tensor) else results
    if name == "an output twice":
        expected = [np.exp(feeds["x"]), feeds["x"]]
    else:
        evaluated = function.eval({variable: feeds[variable.name] for variable in function.arguments})
        expected = [evaluated[v] if isinstance(evaluated, dict) else evaluated for v in function.outputs]
    for result, whole in zip(results, expected, strict=True):
        # All sequences of a case are equally long, so a list is as wide as a tensor.
        array = np.stack([np.asarray(x) for x in whole]) if isinstance(whole, list) else np.asarray(whole)
        assert tuple(result.shape) == array.shape
        np.testing.assert_allclose(result.numpy(), array, 1e-5, 1e-5)


@pytest.mark.parametrize("name", sorted(RAGGED))
def test_what_torch_cannot_express_is_refused(tmp_path, name):
    function, _ = RAGGED[name]()
    with pytest.raises(fl.CompatError, match=r"operation that torch can express.*in torch by hand"):
        written(tmp_path, function)
    assert not list(tmp_path.iterdir())


def of_words(*layers):
    return Sequential(layers)(C.sequence.input_variable(9, is_sparse=True, name="words"))


SEQUENCES = {
    "lstm": lambda: of_words(Embedding(3), Recurrence(LSTM(4), name="reader"), C.sequence.last, Dense(2, name="out")),
    "lstm backwards": lambda: of_words(Embedding(3), Recurrence(LSTM(4), go_backwards=True), Dense(2)),
    "lstm of classes": lambda: of_words(Fold(LSTM(4)), Dense(2)),
    "rnn": lambda: of_words(Embedding(3), Recurrence(RNNStep(4, activation=C.relu), initial_state=0.5)),
    "gru": lambda: of_words(Embedding(3), Recurrence(GRU(4)), Recurrence(GRU(3), go_backwards=True)),
}


@pytest.mark.parametrize("kind", ["own", "cntk"])
@pytest.mark.parametrize("name", SEQUENCES)
def test_files_of_sequences_of_several_lengths(tmp_path, name, kind):
    """From both kinds of files. CNTK's hold a recurrence as the operations of its cell."""
    if kind == "cntk":
        pytest.importorskip("google.protobuf", reason="protobuf is not installed")
    function = SEQUENCES[name]()
    path = str(tmp_path / "net.dnn")
    function.save(path, format=C.ModelFormat.CNTKv2 if kind == "cntk" else None)
    text, load = written(tmp_path, C.Function.load(path))
    layer = {"rnn": "nn.RNN(3, 4, nonlinearity='relu'", "gru": "for step in range("}.get(name, "nn.LSTM(")
    assert layer in text
    rng = np.random.default_rng(0)
    sentences = [rng.integers(0, 9, n) for n in (4, 1, 7)]
    expected = flat(function.eval([np.eye(9, dtype="f4")[words] for words in sentences]))
    if len(expected) == 1:
        expected = list(expected[0])
    words, lengths = padded([np.append(sentence, []).astype(np.int64) for sentence in sentences])
    words[torch.arange(words.shape[1]) >= lengths[:, None]] = 5
    vectors = torch.nn.functional.one_hot(words, 9).float()
    for data in (words, vectors):
        with torch.no_grad():
            results = load()(data, lengths)
        for result, array, count in zip(results, expected, lengths, strict=True):
            real = result[:count] if result.ndim > 1 else result
            np.testing.assert_allclose(real.numpy(), array, 1e-5, 1e-5)


def test_layers_have_the_names_of_blocks(tmp_path):
    image = C.input_variable((3, 8, 8), name="image")
    function = Sequential(
        [
            C.layers.Convolution2D((3, 3), 4, pad=True, activation=C.relu, name="conv1"),
            C.layers.BatchNormalization(map_rank=1, name="bn"),
            C.layers.Dropout(0.5),
            Dense(3),
        ]
    )(image)
    text, load = written(tmp_path, function)
    assert "image: float32 (batch, 3, 8, 8)." in text
    assert list(load().state_dict()) == [
        *("conv1.weight", "conv1.bias", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"),
        *("bn.num_batches_tracked", "dense.weight", "dense.bias"),
    ]


def test_a_layer_that_is_applied_twice_is_one_layer(tmp_path):
    layer = Dense(4, name="twin")
    a, b = C.input_variable(4, name="a"), C.input_variable(4, name="b")
    text, _ = written(tmp_path, layer(a) * layer(b))
    assert text.count("nn.Linear") == 1


def test_weights_that_others_read_stay_the_same_weights(tmp_path):
    weight = C.parameter(init=normal(4, 4), name="tied")
    x = C.input_variable(4, name="x")
    text, load = written(tmp_path, C.times_transpose(C.tanh(C.times(x, weight)), weight))
    assert list(load().state_dict()) == ["tied"]
    assert text.count("self.tied") == 3


def test_names_of_layers_that_modules_use_get_a_number(tmp_path):
    x = C.input_variable(4, name="x")
    function = Sequential([Dense(3, name="training"), Dense(2, name="forward"), Dense(2, name="weight")])(x)
    _, load = written(tmp_path, function)
    assert [name for name, _ in load().named_children()] == ["training_2", "forward_2", "weight"]


def test_quotients_are_written_as_quotients(tmp_path):
    x, y = C.input_variable(4, name="x"), C.input_variable(4, name="y")
    text, load = written(tmp_path, (x / 255.0 - 0.5) / y)
    assert "x / 255.0" in text
    assert "reciprocal" not in text
    assert not load().state_dict()
    assert load()(torch.full((1, 4), 255.0), torch.tensor([[2.0, 0.0, -1.0, 1.0]])).tolist() == [[0.25, 0, -0.5, 0.5]]


def test_a_reciprocal_that_others_read_is_computed_once(tmp_path):
    x, y = C.input_variable(4, name="x"), C.input_variable(4, name="y")
    inverse = C.reciprocal(y)
    text, _ = written(tmp_path, C.splice(x * inverse, inverse))
    assert text.count("divide(") == 2  # the function and its call


def test_only_states_that_are_read_leave_a_loop(tmp_path):
    x = C.sequence.input_variable(3, name="x")
    text, _ = written(tmp_path, Recurrence(LSTM(4, use_peepholes=True))(x))
    assert text.count("torch.stack") == 1


def test_pictures_of_any_size(tmp_path):
    x = C.input_variable((3, C.FreeDimension, C.FreeDimension), name="x")
    with C.default_options(activation=C.relu):
        body = [C.layers.Convolution((3, 3), 4, pad=True), C.layers.MaxPooling((2, 2), 2), C.layers.GlobalMaxPooling()]
        function = Sequential([*body, Dense(2)])(x)
    _, load = written(tmp_path, function)
    for sizes in ((6, 6), (9, 5)):
        data = normal(2, 3, *sizes)
        np.testing.assert_allclose(load()(torch.from_numpy(data)).detach(), function.eval({x: data}), 1e-5, 1e-5)


def test_padding_that_depends_on_a_free_length_is_refused(tmp_path):
    x = C.input_variable((3, C.FreeDimension, 8), name="x")
    with pytest.raises(fl.CompatError, match=r"fixed lengths to write its padding, got \(free, 8\)"):
        written(tmp_path, C.layers.Convolution((3, 3), 4, strides=2, pad=True)(x))


def test_it_learns_as_the_function_does(tmp_path):
    """Training changes the bias of an LSTM once, though torch's layer has two."""
    function = SEQUENCES["lstm"]()
    _, load = written(tmp_path, function)
    kind = C.input_variable(2, name="kind")
    loss = C.cross_entropy_with_softmax(function, kind)
    rate = C.learning_parameter_schedule(0.5)
    trainer = C.Trainer(function, loss, [C.sgd(function.parameters, rate, minibatch_size=C.learners.IGNORE)])
    module = load().train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    rng = np.random.default_rng(1)
    for _ in range(5):
        sentences, labels = [rng.integers(0, 9, n) for n in (3, 5, 2, 4)], rng.integers(0, 2, 4)
        vectors = [np.eye(9, dtype="f4")[words] for words in sentences]
        trainer.train_minibatch({function.arguments[0]: vectors, kind: np.eye(2, dtype="f4")[labels]})
        scores = module(*padded(vectors))
        mean = torch.nn.functional.cross_entropy(scores, torch.from_numpy(labels))
        optimizer.zero_grad()
        mean.backward()
        optimizer.step()
        assert mean.item() == pytest.approx(trainer.previous_minibatch_loss_average, rel=1e-5)


def test_a_difference_is_an_error_that_names_the_first_layer(tmp_path, monkeypatch):
    x = C.input_variable(4, name="x")
    function = Dense(2, name="last")(C.tanh(Dense(3, name="first")(x), name="wrong"))
    monkeypatch.setitem(torch_operators.OPERATORS, "tanh", lambda w, node: f"torch.sin({w.value(node.inputs[0])})")
    with pytest.raises(fl.CompatError, match=r"first in tanh `wrong` \(`wrong` in forward, difference"):
        written(tmp_path, function)
    assert not list(tmp_path.iterdir())


def test_the_command(tmp_path):
    x = C.input_variable(4, name="x")
    function = Dense(2, name="scores")(x)
    path = tmp_path / "z.model"
    function.save(str(path))
    document = json.loads(feedline("export", path, tmp_path / "net", "--to", "torch", "--json").stdout)
    assert document["path"] == str(tmp_path / "net.py")
    assert document["weights"] == str(tmp_path / "net.safetensors")
    assert document["inputs"] == ["x"]
    assert document["largest_difference"] < 1e-5
    assert "largest difference" in feedline("export", path, "--to", "torch").stdout
    Dense(2)(C.input_variable(4)).save(str(path))
    assert "unnamed" in feedline("export", path, "--to", "torch").stdout
    for arguments, message in (
        (["--to", "safetensors"], "expected --to onnx or torch for"),
        (["--to", "torch", "--out", "net.onnx"], "expected the name of a Python file, NAME.py"),
        (["--to", "torch", "--shape", "x=1,4"], "expected --shape for symbols of MXNet only"),
        (["one.py", "--to", "torch", "--out", "two.py"], "expected one file to write, got one.py and two.py"),
        ([], "expected --to onnx, safetensors, torch, got nothing"),
    ):
        assert message in feedline("export", path, *arguments, code=2).stderr
    assert "the .params of" in feedline("export", tmp_path / "net-symbol.json", "--to", "onnx", code=2).stderr


def test_the_command_writes_onnx(tmp_path):
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    path = tmp_path / "z.model"
    Dense(2, name="scores")(C.input_variable(4, name="x")).save(str(path))
    document = json.loads(feedline("export", path, "--to", "onnx", "--json").stdout)
    assert document["path"] == str(tmp_path / "z.onnx")
    assert document["weights"] is None
    assert [value.name for value in onnx.load(document["path"]).graph.input] == ["x"]
