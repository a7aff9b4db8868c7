"""Settings in one vocabulary: the same layers in torch (as modules and as functions), CNTK and MXNet."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import feedline as fl
import feedline.cntk as C
import feedline.mxnet as mx
from feedline.graph.folding import collapse
from feedline.graph.importers import graph_of
from feedline.graph.importers.torch_fx import from_fx
from feedline.graph.importers.torch_module import from_module
from feedline.graph.settings import ShapesAround, brief, settings_of

IMAGE = (2, 4, 12, 12)


def told(graph):
    """Settings of the operations that have some, in words."""
    return [brief(o.settings) for o in collapse(graph).operations if o.settings]


class Functions(nn.Module):
    """The layers of `LAYERS` as functions."""

    def __init__(self):
        super().__init__()
        self.conv, self.up = nn.Parameter(torch.zeros(8, 2, 3, 3)), nn.Parameter(torch.zeros(8, 3, 2, 2))
        self.matrix = nn.Parameter(torch.zeros(5, 3))

    def forward(self, x):
        x = functional.conv2d(x, self.conv, None, 2, (1, 1), groups=2)
        x = functional.max_pool2d(x, 3, stride=1, padding=1)
        x = functional.avg_pool2d(x, (3, 1), 1)
        x = functional.conv_transpose2d(x, self.up, stride=2)
        x = functional.dropout(functional.relu(x), 0.25, self.training)
        x = functional.adaptive_avg_pool2d(x, 1)
        return functional.linear(x.flatten(1), self.matrix)


LAYERS = nn.Sequential(
    nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2, bias=False),
    nn.MaxPool2d(3, 1, 1),
    nn.AvgPool2d((3, 1), 1),
    nn.ConvTranspose2d(8, 3, 2, 2, bias=False),
    nn.ReLU(),
    nn.Dropout(0.25),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(3, 5, bias=False),
)
WORDS = [
    "3×3, stride 2, padding 1, 2 groups, 8 filters",
    "3×3, stride 1, padding 1",
    "3×1, stride 1",
    "2×2, stride 2, 3 filters",
    "",
    "rate 0.25",
    "to 1×1",
    "5 units",
]


def test_torch_modules():
    assert told(graph_of(LAYERS, IMAGE)) == WORDS


def test_torch_functions():
    assert told(graph_of(Functions(), IMAGE)) == WORDS


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.LSTM(8, 4), (5, 3, 8)),
        (nn.Conv1d(4, 8, 3, padding="same", padding_mode="circular"), (2, 4, 9)),
        (nn.MultiheadAttention(8, 2), [(5, 3, 8)] * 3),
    ],
)
def test_a_layer_given_alone_is_one(layer, shape):
    kind = type(layer).__name__
    rows = fl.summary(layer, shape).rows
    assert [(row.name, row.kind) for row in rows if row.kind != "input"] == [(kind, kind)]
    assert sum(f'label="{kind}' in line for line in fl.plot_network(layer, shape).source.splitlines()) == 1
    assert len(graph_of(layer, shape).operations) > 3  # which `expand` shows


def test_other_importers_agree(monkeypatch):
    def fail(*_):
        raise RuntimeError

    assert told(from_fx(Functions())) == WORDS[:-1]  # without shapes, no units
    assert told(graph_of(LAYERS)) == WORDS  # by fx, without shapes
    monkeypatch.setattr("feedline.graph.importers.torch_module.from_dry_run", fail)
    exported = from_module(Functions(), IMAGE)
    assert exported.importer == "torch.export"
    assert told(exported) == WORDS


def test_recurrent_layers_and_attention():
    lstm = nn.LSTM(3, 5, num_layers=2, bidirectional=True)
    (found,) = told(graph_of(lstm, (4, 1, 3)))
    assert found == "5 units, 2 layers, both directions"
    elman = nn.Sequential(nn.RNN(3, 5, nonlinearity="relu"))
    assert told(graph_of(elman, (4, 1, 3))) == ["relu, 5 units"]
    assert told(graph_of(nn.RNN(3, 5, nonlinearity="relu"), (4, 1, 3))) == ["relu, 5 units"]
    layer = nn.TransformerEncoderLayer(8, 4, 16, dropout=0.2)
    assert told(graph_of(layer, (3, 1, 8)))[:2] == ["4 heads, rate 0.2", "rate 0.2"]
    assert told(graph_of(nn.LSTM(8, 4, proj_size=2, num_layers=2), (5, 3, 8))) == ["4 units, 2 layers"]
    assert told(graph_of(nn.GRU(8, 4, num_layers=2, dropout=0.2), (5, 3, 8))) == ["4 units, 2 layers, rate 0.2"]
    three = [(5, 3, 8)] * 3
    assert told(graph_of(nn.MultiheadAttention(8, 2, dropout=0.1), three)) == ["2 heads, rate 0.1"]
    assert told(graph_of(nn.MultiheadAttention(8, 2), three)) == ["2 heads"]

    class Dot(nn.Module):
        def forward(self, x):
            return functional.scaled_dot_product_attention(x, x, x)

    assert told(graph_of(Dot(), (1, 6, 3, 8))) == ["6 heads"]


def test_cntk():
    x = C.input_variable((3, 32, 32))
    layers = [
        C.layers.Convolution2D((5, 5), 16, activation=C.relu, pad=True),
        C.layers.MaxPooling((3, 3), strides=(2, 2)),
        C.layers.Dropout(0.3),
        C.layers.Dense(10),
    ]
    assert told(graph_of(C.layers.Sequential(layers)(x))) == [
        "5×5, padding same, 16 filters, then relu",
        "3×3, stride 2",
        "rate 0.3",
        "10 units",
    ]
    words = C.sequence.input_variable(9)
    graph = graph_of(C.layers.Recurrence(C.layers.LSTM(7))(words))
    assert told(graph) == ["7 units"]
    assert str(graph.operations[0].outputs[0]) == "batch×steps×9"


def test_mxnet():
    data = mx.sym.Variable("data")
    x = mx.sym.Convolution(data, kernel=(5, 5), num_filter=20, stride=(2, 2), pad=(1, 2), num_group=1)
    x = mx.sym.Activation(x, act_type="tanh")
    x = mx.sym.Pooling(x, pool_type="max", kernel=(2, 2), stride=(2, 2))
    x = mx.sym.Pooling(x, pool_type="avg", kernel=(1, 1), global_pool=True)
    x = mx.sym.Dropout(mx.sym.FullyConnected(x, num_hidden=500), p=0.5)
    expected = ["5×5, stride 2, padding 1×2, 20 filters", "tanh", "max, 2×2, stride 2", "average, to 1×1"]
    assert told(graph_of(x, {"data": (1, 1, 28, 28)})) == [*expected, "500 units", "rate 0.5"]
    assert told(graph_of(x.tojson()))[:3] == expected[:3]


@pytest.mark.parametrize("kind", ["elu", "prelu", "gelu", "selu"])
def test_a_kind_in_the_middle_of_a_word_is_reported(kind):
    """LeakyReLU has "elu" in its name, and means something else."""
    graph = graph_of(mx.sym.LeakyReLU(mx.sym.Variable("data"), act_type=kind), {"data": (2, 3)})
    assert told(graph) == [kind]
    assert [brief(settings_of(k, {"mode": "max"})) for k in ("MaxPool", "max_pool2d", "Maxout_pool")] == ["", "", "max"]


def test_they_are_shown():
    assert "3×3, stride 2, padding 1, 2 groups, 8 filters" in str(fl.summary(LAYERS, IMAGE))
    source = fl.plot_network(LAYERS, IMAGE).source
    assert "3×3, stride 2, padding 1,\n2 groups, 8 filters" in source
    assert "rate 0.25" in source


@pytest.mark.parametrize("value", [None, object(), "a b", "((((", [1, "x"], {}, float("nan")])
def test_values_that_mean_nothing_are_left_out(value):
    assert settings_of("Convolution", {"kernel": value}) in ((), settings_of("Convolution", {"kernel": float("nan")}))


def test_shapes_show_settings_that_no_argument_does():
    around = ShapesAround([("batch", 3, 8, 8), (16, 3, 7, 7)], [(16, 3, 7, 7)], ("batch", 16, 2, 2))
    assert brief(settings_of("Conv", {"pads": [1, 1, 1, 1], "strides": [4, 4]}, around)) == (
        "7×7, stride 4, padding 1, 16 filters"
    )
    assert brief(settings_of("Conv", {"pads": [0, 1, 2, 3]}, around)) == "7×7, padding 0×1×2×3, 16 filters"
