"""Pictures and tables of small symbols. The real MXNet's are in test_golden_viz.py."""

from __future__ import annotations

import builtins
from pathlib import Path

import pytest

import feedline as fl
import feedline.mxnet as mx
from tests.cli.shell import feedline

SCRIPT = """
import mxnet as mx
user = mx.symbol.Embedding(data=mx.symbol.Variable('user'), input_dim=100, output_dim=64)
item = mx.symbol.Embedding(data=mx.symbol.Variable('item'), input_dim=50, output_dim=64)
net = mx.symbol.Flatten(data=mx.symbol.sum_axis(data=user * item, axis=1))
net = mx.symbol.LinearRegressionOutput(data=net, label=mx.symbol.Variable('score'))
print(mx.viz.plot_network(net).source)
"""
BOX = "fixedsize=true height=0.8034 shape=box style=filled width=1.3"
OVAL = BOX.replace("box", "oval")


@pytest.fixture(autouse=True)
def fresh_names():
    with mx.name.NameManager():
        yield


def net():
    x = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=8, name="conv")
    x = mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="avg", name="pool")
    x = mx.sym.FullyConnected(x, num_hidden=10, name="fc")
    return mx.sym.SoftmaxOutput(mx.sym.LeakyReLU(x, name="leaky"), name="softmax")


def test_an_old_script_draws(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    lines = feedline("run", "--as", "mxnet", tmp_path / "script.py").stdout.splitlines()
    assert lines[:4] == [
        "digraph plot {",
        f'\tuser [label=user fillcolor="#8dd3c7" {OVAL}]',
        f'\tembedding0 [label=embedding0 fillcolor="#fccde5" {BOX}]',
        f'\titem [label=item fillcolor="#8dd3c7" {OVAL}]',
    ]
    edges = [line.split(" [")[0].strip() for line in lines if "->" in line]
    assert edges == [
        "embedding0 -> user",
        "embedding1 -> item",
        "_mul0 -> embedding0",
        "_mul0 -> embedding1",
        "sum_axis0 -> _mul0",
        "flatten0 -> sum_axis0",
        "linearregressionoutput0 -> flatten0",
        "linearregressionoutput0 -> score",
    ]
    assert all('[label="" arrowtail=open dir=back]' in line for line in lines if "->" in line)


def test_labels_and_colours():
    source = mx.viz.plot_network(
        net(), shape={"data": (2, 1, 8, 8)}, node_attrs={"shape": "hexagon", "color": "red"}
    ).source
    for text in (
        '\tdata [label=data color=red fillcolor="#8dd3c7" fixedsize=true height=0.8034 shape=oval',
        '\tconv [label="Convolution\n3x3/1, 8" color=red fillcolor="#fb8072"',
        '\tpool [label="Pooling\navg, 2x2/2x2" color=red fillcolor="#80b1d3"',
        '\tfc [label="FullyConnected\n10" color=red fillcolor="#fb8072"',
        '\tleaky [label="LeakyReLU\nLeaky" color=red fillcolor="#ffffb3"',
        '\tpool -> conv [label="8x6x6" ',
        '\tfc -> pool [label="8x3x3" ',
        '\tsoftmax -> softmax_label [label="" ',
        "shape=hexagon",
    ):
        assert text in source
    assert "conv_weight" not in source
    assert (
        'conv -> conv_weight [label="1x3x3" '
        in mx.viz.plot_network(net(), shape={"data": (2, 1, 8, 8)}, hide_weights=False).source
    )


def test_outputs_of_several():
    """MXNet shows the last output's shape of a split, whichever is used, and fails for outputs without a name."""
    x = mx.sym.var("x")
    one = mx.sym.Flatten(mx.sym.split(x, num_outputs=1, name="one"), name="flat")
    best = mx.sym.topk(one, k=2, ret_typ="both", name="best")
    last = mx.sym.Flatten(mx.sym.BatchNorm(best[0], output_mean_var=True, name="bn")[0], name="last")
    source = mx.viz.plot_network(last, shape={"x": (4, 3, 5)}, dtype={"x": "float32"}).source
    for text in (
        'flat -> one [label="3x5(float32)"',
        'best -> flat [label="15(float32)"',
        'bn -> best [label="2(float32)"',
        'last -> bn [label="2(float32)"',
    ):
        assert text in source


def test_of_a_resized_image_only_what_is_resized_is_joined():
    a, b = mx.sym.var("a"), mx.sym.var("b")
    resized = mx.sym.contrib.BilinearResize2D(a, b, mode="like")
    assert resized.name == "bilinearresize2d0"
    lines = mx.viz.plot_network(resized, shape={"a": (1, 2, 3, 3), "b": (1, 1, 5, 5)}).source.splitlines()
    assert [line.split(" [")[0].strip() for line in lines if "->" in line] == ["bilinearresize2d0 -> a"]
    assert any(line.startswith("\tb [") for line in lines)


def test_what_cannot_be_drawn(monkeypatch):
    with pytest.raises(TypeError, match="symbol must be a Symbol, got str"):
        mx.viz.plot_network("net")
    with pytest.raises(mx.MXNetError, match="Shape inconsistent"):
        mx.viz.plot_network(net(), shape={"data": (2, 1, 8, 8), "fc_weight": (3, 3)})
    with pytest.raises(ValueError, match="Input type is incomplete"):
        mx.viz.plot_network(net(), dtype={})
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "graphviz":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="requires graphviz library"):
        mx.viz.plot_network(net())


def rows(capsys, symbol, **settings):
    """Return the cells of a table: name, shape, count, and the first layer before, and the last line."""
    mx.viz.print_summary(symbol, **settings)
    lines = capsys.readouterr().out.splitlines()
    cells = [[line[:52], line[52:76], line[76:88], line[88:]] for line in lines[3:-2] if not set(line) <= set("_=")]
    return [[cell.strip() for cell in row] for row in cells], lines[-2]


def test_a_table_counts_what_there_is(capsys):
    found, total = rows(capsys, net(), shape={"data": (2, 1, 8, 8)})
    assert found == [
        ["data(null)", "1x8x8", "0", ""],
        ["conv(Convolution)", "8x6x6", "80", "data"],
        ["pool(Pooling)", "8x3x3", "0", "conv"],
        ["fc(FullyConnected)", "10", "730", "pool"],  # 8 * 3 * 3 * 10 + 10. MXNet prints 90
        ["leaky(LeakyReLU)", "10", "0", "fc"],
        ["softmax(SoftmaxOutput)", "10", "0", "leaky"],
    ]
    assert total == "Total params: 810"
    _, old = rows(capsys, net(), shape={"data": (2, 1, 8, 8)}, exact_mxnet=True)
    assert old == "Total params: 170"


def test_a_table_marks_unknown_values(capsys):
    found, total = rows(capsys, net())
    assert [row[2] for row in found] == ["0", "?", "0", "?", "0", "0"]
    assert total == "Total params: at least 0"
    embedded = mx.sym.Embedding(mx.sym.var("x"), input_dim=5, output_dim=3)
    assert rows(capsys, embedded)[1] == "Total params: 15"
    assert rows(capsys, mx.sym.FullyConnected(embedded, num_hidden=2))[1] == "Total params: at least 15"


def test_a_table_counts_shared_parameters_once(capsys):
    w, b = mx.sym.var("w"), mx.sym.var("b")
    x = mx.sym.FullyConnected(mx.sym.var("x"), w, b, num_hidden=4, name="one")
    both = mx.sym.FullyConnected(x, w, b, num_hidden=4, name="two") + mx.sym.var("bias_by_hand")
    found, total = rows(capsys, both, shape={"x": (2, 4)})
    assert [row[2] for row in found] == ["0", "20", "0", "0", ""]
    assert [row[3] for row in found] == ["", "x", "one", "two", "bias_by_hand"]
    assert total == "Total params: 20"


def test_no_network_is_too_odd_for_a_table(capsys):
    """MXNet fails on outputs of one axis, and shows no variable but the first."""
    symbol = mx.sym.sum_axis(mx.sym.var("a") * mx.sym.var("b"), axis=1) * 2
    shape = {"a": (8, 3), "b": (8, 3)}
    found, _ = rows(capsys, symbol, shape=shape)
    assert found == [
        ["a(null)", "3", "0", ""],
        ["_mul0(elemwise_mul)", "3", "0", "a"],
        ["", "", "", "b"],
        ["sum_axis0(sum)", "", "0", "_mul0"],
        ["_mulscalar0(_mul_scalar)", "", "0", "sum_axis0"],
    ]
    with pytest.raises(IndexError, match="tuple index out of range"):
        mx.viz.print_summary(symbol, shape=shape, exact_mxnet=True)
    for bad, error in (
        ({"symbol": "x"}, TypeError),
        ({"symbol": symbol, "shape": {"a": (1, 2, 3), "b": (1,)}}, mx.MXNetError),
    ):
        with pytest.raises(error):
            mx.viz.print_summary(**bad)


def test_the_seeds_script_draws():
    project = Path(fl.__file__).resolve().parents[2]
    places = [p / "shared" / "seeds" / "seed_002_plot_network.py" for p in project.parents[:2]]
    script = next((place for place in places if place.exists()), None)
    if script is None:
        pytest.skip(f"{places[0]} is not there")
    assert feedline("run", "--as", "mxnet", script).stdout.count("->") == 8


def test_tables_have_four_columns(capsys):
    """Too few positions are an error before a line is printed. Of too many, the first four count, as in MXNet."""
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc")
    for positions in ([], [0.5, 1.0]):
        with pytest.raises(ValueError, match="positions of 4 columns"):
            mx.viz.print_summary(symbol, positions=positions)
    assert capsys.readouterr().out == ""
    mx.viz.print_summary(symbol, line_length=60, positions=[20, 30, 40, 60])
    four = capsys.readouterr().out
    mx.viz.print_summary(symbol, line_length=60, positions=[20, 30, 40, 60, 90])
    assert capsys.readouterr().out == four
