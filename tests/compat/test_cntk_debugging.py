"""CNTK's profiler calls, its debugger, and the two habits of its readers and files that its examples rely on."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline.cntk as C  # noqa: E402
from feedline.cntk.debugging import profiler  # noqa: E402


def test_the_profiler_records_what_happens_while_it_is_enabled(tmp_path):
    x = C.input_variable(3)
    y = C.exp(x)
    C.debugging.enable_profiler()  # without a start, as some examples: no effect
    C.debugging.stop_profiler()
    folder = tmp_path / "a" / "profile"
    C.debugging.start_profiler(str(folder), True)
    with pytest.raises(RuntimeError, match="second start_profiler"):
        C.debugging.start_profiler(str(folder))
    y.eval({x: np.ones((1, 3), np.float32)})
    for function in (C.exp, C.tanh):
        C.debugging.enable_profiler()
        C.debugging.enable_profiler()
        function(x).eval({x: np.ones((1, 3), np.float32)})
        C.debugging.disable_profiler()
    C.debugging.enable_profiler()
    profiler.stop_profiler()
    found = [json.loads((folder / f"trace-{i}.json").read_text())["traceEvents"] for i in range(3)]
    names = [{event.get("name") for event in events} & {"aten::exp", "aten::tanh"} for events in found]
    assert names == [{"aten::exp"}, {"aten::tanh"}, set()]
    C.debugging.start_profiler(str(tmp_path / "b"))
    C.debugging.stop_profiler()
    assert not list((tmp_path / "b").iterdir())


def test_flat_samples_of_a_reader_fill_an_input_of_the_same_size(tmp_path):
    """But not arrays, whose shape the script itself decides."""
    path = tmp_path / "a.ctf"
    path.write_text("|x 1 2 3 4 5 6\n|x 7 8 9 10 11 12\n")
    streams = C.io.StreamDefs(x=C.io.StreamDef(field="x", shape=6))
    source = C.io.MinibatchSource(C.io.CTFDeserializer(str(path), streams), randomize=False)
    x = C.input_variable((1, 2, 3))
    minibatch = source.next_minibatch(2, {x: source.streams.x})
    np.testing.assert_array_equal(C.plus(x, 1).eval(minibatch), np.arange(2, 14).reshape(2, 1, 2, 3))
    with pytest.raises(ValueError, match="expected an array"):
        C.plus(x, 1).eval({x: np.ones((2, 6), np.float32)})
    ragged = C.sequence.input_variable((2, 1))
    path.write_text("0 |x 1 2\n0 |x 3 4\n1 |x 5 6\n")
    streams = C.io.StreamDefs(x=C.io.StreamDef(field="x", shape=2))
    source = C.io.MinibatchSource(C.io.CTFDeserializer(str(path), streams), randomize=False)
    first, second = C.plus(ragged, 1).eval(source.next_minibatch(3, {ragged: source.streams.x}))
    assert (first.tolist(), second.tolist()) == ([[[2], [3]], [[4], [5]]], [[[6], [7]]])


def test_saving_creates_folders(tmp_path):
    x = C.input_variable(2)
    path = tmp_path / "Models" / "1" / "net.dnn"
    C.exp(x).save(str(path))
    assert C.Function.load(str(path)).eval(np.zeros((1, 2), np.float32)).tolist() == [[1, 1]]


# ---- node by node -------------------------------------------------------------------------------------


def stepped(commands):
    x = C.input_variable(2, needs_gradient=True, name="x")
    w = C.parameter((2, 2), init=2, name="w")
    z = C.relu(C.times(x, w, name="product"), name="result")
    written, left = io.StringIO(), []
    f = C.debugging.debug_model(z, io.StringIO("\n".join(commands) + "\n"), written, left.append)
    assert f.parameters == (w,)
    gradients = f.grad({x: np.float32([[1, -2], [3, 4]])}, wrt=[x, w])
    return gradients[x], written.getvalue(), left


def test_a_model_stops_at_each_node_on_both_ways():
    found, text, left = stepped(["n", "n", "n", "n", "n", "n"])
    np.testing.assert_array_equal(found, [[0, 0], [4, 4]])
    stops = [line.split(" with uid")[0] for line in text.splitlines() if " with uid" in line]
    assert [s.split("(")[0] for s in stops] == ["Parameter", "Times", "ReLU", "ReLU", "Times", "Parameter"]
    assert (text.count(">>> "), text.count("forward  ="), text.count("backward ="), left) == (6, 1, 1, [])


@pytest.mark.parametrize(
    ("commands", "asked"),
    [
        (["c"], 1),
        (["n 3", "c"], 2),
        (["u b", "c"], 2),
        (["u product", "p", "c"], 3),
        (["u lambda arg, node: np.max(arg) > 10", "p", "c"], 3),
        (["what", "u nothing", "u lambda :", "c"], 4),
    ],
)
def test_commands(commands, asked):
    found, text, left = stepped(commands)
    np.testing.assert_array_equal(found, [[0, 0], [4, 4]])
    assert (text.count(">>> "), left) == (asked, [])
    if commands[0] == "what":
        assert text.count(C.debugging.DEBUG_USAGE) == 2
        assert 'does not contain a node with name "nothing"' in text
    if commands[0] in ("n 3", "u b"):
        assert text.rsplit("[CNTK ", 1)[1].startswith("backward")
    if "p" in commands:
        assert "Input: \n[[-2. -2.]\n [14. 14.]]" in text


def test_quitting_and_the_end_of_the_input():
    for commands in (["n", "q", "c"], ["n"]):
        assert stepped(commands)[2][0] == 0


def test_sequences_and_blocks_are_gone_through():
    x = C.sequence.input_variable(2)
    z = C.sequence.last(C.layers.Recurrence(C.layers.LSTM(3))(C.layers.Dense(2, name="d")(x)))
    data = [np.ones((n, 2), "f4") for n in (2, 1)]
    written = io.StringIO()
    f = C.debugging.debug_model(z, io.StringIO("c\n"), written)
    np.testing.assert_allclose(f.eval({x: data}), z.eval({x: data}), rtol=1e-6)
    assert "Times" in written.getvalue()
