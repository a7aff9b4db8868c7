"""Dry runs: what twins without data show is what torch's fake tensors show, and rules for shapes are torch's."""

from __future__ import annotations

import subprocess
import sys
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from feedline.graph.importers import graph_of, torch_run
from feedline.graph.importers.torch_meta import NoTwinError, device_of
from feedline.graph.importers.torch_parts import arguments
from feedline.graph.importers.torch_run import from_fakes, from_twins
from feedline.graph.importers.torch_shapes import _ACTIVATIONS, _RULES, _UNARY, result_of
from tests.graph import known_networks as known
from tests.graph.architectures import cases

CASES = cases()
KNOWN = {
    "resnet18": (known.resnet18, (1, 3, 64, 64)),
    "vit": (known.vit_b_16, (1, 3, 224, 224)),
    "unet": (known.UNet, (1, 1, 64, 64)),
    "lstm": (lambda: nn.LSTM(4, 5, 2, bidirectional=True), (3, 2, 4)),
}


def held_by(model):
    return {name: id(tensor) for name, tensor in (*model.named_parameters(), *model.named_buffers())}


@pytest.mark.parametrize("name", [*CASES, *KNOWN])
def test_twins_and_fake_tensors_show_the_same(name):
    model, inputs = (KNOWN[name][0](), KNOWN[name][1]) if name in KNOWN else (CASES[name].model, CASES[name].inputs)
    args, kwargs = arguments(model, inputs)
    before = held_by(model)
    try:
        graph = from_twins(model, args, kwargs)
    except Exception:
        assert name not in KNOWN
        pytest.skip("has no twins")
    assert held_by(model) == before
    other = from_fakes(model, args, kwargs)
    assert replace(graph, operations=()) == replace(other, operations=())
    for one, two in zip(graph.operations, other.operations, strict=True):
        assert one == two


def test_most_architectures_have_twins():
    made = []
    for name, case in CASES.items():
        args, kwargs = arguments(case.model, case.inputs)
        try:
            made.append((name, from_twins(case.model, args, kwargs)))
        except Exception:
            continue
    assert len(made) >= 0.7 * len(CASES)


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        ("known_networks.resnet18()", (1, 3, 224, 224)),
        ("known_networks.vit_b_16()", (1, 3, 224, 224)),
        ("nn.LSTM(8, 4, 2, bidirectional=True)", (3, 2, 8)),
        ("nn.GRU(8, 4, batch_first=True)", (2, 3, 8)),
        ("nn.RNN(8, 4)", (3, 2, 8)),
        ("nn.LSTMCell(8, 4)", (2, 8)),
        ("nn.MultiheadAttention(8, 2, batch_first=True)", [(1, 3, 8)] * 3),
        ("nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2)", (3, 1, 8)),
        ("nn.Transformer(8, 2, 2, 2, 16, batch_first=True)", [(1, 3, 8), (1, 4, 8)]),
    ],
)
def test_a_table_does_not_import_torchs_compiler(model, inputs):
    program = (
        "import sys, feedline as fl\nfrom torch import nn\nfrom tests.graph import known_networks\n"
        f"fl.summary({model}, {inputs})\nprint([name for name in ('torch._dynamo', 'sympy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.strip() == "[]"


class Asks(nn.Module):
    """Asks on which device it is, and puts tensors there."""

    def forward(self, x):
        if x.is_meta or not x.is_cpu or x.device != torch.device("cpu") or x.get_device() != -1:
            return x
        places = torch.arange(x.shape[1], device=x.device).to(x.device, torch.float32)
        return F.softmax(x + places + torch.zeros(x.shape[1], device="cpu") + torch.ones(1), -1)


def test_modules_see_their_device():
    graph = graph_of(Asks(), (2, 3))
    assert graph.importer == "a dry run"
    assert [o.kind for o in graph.operations].count("softmax") == 1
    twin = from_twins(Asks(), (torch.zeros(2, 3),), {})
    assert [o.kind for o in twin.operations] == [o.kind for o in graph.operations]


def test_a_module_is_as_before_after_a_failure():
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.cell = nn.Linear(2, 2), nn.LSTM(2, 2)

        def forward(self, x):
            raise KeyError("no")

    model = Fails()
    before, flat = held_by(model), [id(weight) for weight in model.cell._flat_weights]
    with pytest.raises(KeyError):
        from_twins(model, (torch.zeros(1, 2),), {})
    assert held_by(model) == before
    assert [id(weight) for weight in model.cell._flat_weights] == flat


def test_tensors_of_other_kinds_have_no_twins():
    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("matrix", torch.eye(3).to_sparse())

        def forward(self, x):
            return torch.sparse.mm(self.matrix, x)

    with pytest.raises(NoTwinError, match="dense tensors"):
        device_of(Sparse(), (), {})
    with pytest.raises(NoTwinError, match="one device, got them on cpu, meta"):
        device_of(nn.Linear(2, 2), (torch.zeros(1, 2, device="meta"),), {})
    assert graph_of(Sparse(), (3, 2)).operations[-1].inputs


X, S = torch.randn(2, 4, 9, 9), torch.randn(2, 5, 8)
Q, BAGS = torch.randn(2, 3, 5, 4), torch.zeros(2, 3, dtype=torch.int64)
BOTH = (torch, torch.Tensor)


def recurrent(function, layer, *inputs, **changes):
    """A call of a torch function as a recurrent layer makes it, with some arguments changed."""
    seen = []

    class Seen(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is function:
                seen.append(args)
            return func(*args, **(kwargs or {}))

    with Seen(), torch.no_grad(), warnings.catch_warnings(action="ignore"):
        layer(*inputs)
    (args,) = seen
    return function, tuple(changes.get(f"at_{i}", arg) for i, arg in enumerate(args)), {}


CALLS = [
    *[
        (F.conv2d, (X, torch.randn(6, 4 // groups if groups != 4 else 1, 3, 3)), {"groups": groups, **more})
        for groups in (1, 2)
        for more in ({}, {"stride": 2}, {"padding": (1, 0)}, {"dilation": 2, "stride": (1, 2)})
    ],
    (F.conv2d, (X, torch.randn(6, 3, 3, 3)), {}),  # channels that do not fit
    (F.conv2d, (X, torch.randn(6, 4, 3, 3)), {"padding": "same"}),
    (F.conv2d, (X, torch.randn(6, 4, 11, 3)), {}),  # larger than the picture
    (F.conv1d, (S, torch.randn(3, 5, 2), torch.randn(3)), {"stride": 2}),
    (F.conv1d, (S, torch.randn(3, 5, 2), torch.randn(2)), {}),
    (F.conv3d, (torch.randn(1, 2, 5, 5, 5), torch.randn(3, 2, 2, 3, 1)), {}),
    (F.conv2d, (X.to(memory_format=torch.channels_last), torch.randn(6, 4, 3, 3)), {}),
    *[
        (function, (X, *size), more)
        for function in (F.max_pool2d, F.avg_pool2d)
        for size, more in [
            ((2,), {}),
            ((3, 2, 1), {}),
            (((3, 2),), {"stride": 1}),
            ((2,), {"ceil_mode": True}),
            ((3,), {"padding": 2}),
        ]
    ],
    (F.max_pool2d, (X, 2), {"return_indices": True}),
    (F.max_pool2d, (X, 2), {"dilation": 2}),
    (F.max_pool1d, (S, 3), {}),
    (F.adaptive_avg_pool2d, (X, 1), {}),
    (F.adaptive_avg_pool2d, (X, (2, None)), {}),
    (F.adaptive_avg_pool2d, (X[0], 2), {}),
    (F.linear, (S, torch.randn(3, 8), torch.randn(3)), {}),
    (F.linear, (S.transpose(0, 1), torch.randn(3, 8)), {}),
    (F.linear, (S, torch.randn(3, 7)), {}),
    (F.linear, (S, torch.randn(3, 8), torch.randn(2)), {}),
    (F.linear, (S[0, 0], torch.randn(3, 8)), {}),
    (F.linear, (S, torch.randn(3, 8, dtype=torch.float64)), {}),
    *[
        (getattr(module, name), (given, *more), {})
        for module, name, more in (
            *[(F, name, ()) for name in _ACTIVATIONS],
            *[(module, name, ()) for module in BOTH for name in _UNARY],
            *[(module, "pow", (n,)) for module in BOTH for n in (2, 0.5, S[..., 0])],
            *[(module, "clamp", numbers) for module in BOTH for numbers in ((0,), (0, 0.5), ())],
        )
        for given in (S, S.transpose(0, 1), S[..., :3], X.to(memory_format=torch.channels_last), torch.ones(2).long())
    ],
    *[
        (getattr(module, name), (S,), more)
        for module in BOTH
        for name in ("mean", "sum", "amax", "amin")
        for more in (
            {"dim": 1},
            {"dim": -1, "keepdim": True},
            {"dim": (0, 2)},
            {"dim": 3},
            {"dim": (0, 0)},
            {"dim": ()},
            {"dtype": torch.float64},
        )
    ],
    (torch.mean, (S,), {}),
    (torch.Tensor.sum, (S.transpose(0, 1), 0), {}),
    *[
        (function, pair, {})
        for function in (torch.matmul, torch.Tensor.matmul, torch.bmm, torch.Tensor.bmm)
        for pair in (
            (S, torch.randn(2, 8, 3)),
            (S.transpose(1, 2), S),
            (S, torch.randn(8, 3)),
            (S[0], torch.randn(8, 3)),
            (S[0], torch.randn(2, 8, 3)),
            (Q, Q.transpose(2, 3)),
            (Q, torch.randn(3, 4, 2)),
            (Q, torch.randn(1, 3, 4, 2)),
            (S, torch.randn(3, 8, 3)),
            (S, torch.randn(8)),
            (S, torch.randn(2, 7, 3)),
            (S, torch.randn(2, 8, 3).double()),
        )
    ],
    *[(torch.stack, ([S, S], dim), {}) for dim in (0, 1, -1, 4)],
    (torch.stack, ([S, S[:1]],), {}),
    (torch.stack, ([S.transpose(0, 1)] * 2,), {}),
    *[(F.group_norm, (X, groups), {}) for groups in (1, 2, 3)],
    (F.group_norm, (X, 2, torch.ones(4), torch.zeros(4)), {}),
    (F.group_norm, (X, 2, torch.ones(3)), {}),
    (F.adaptive_avg_pool1d, (S, 2), {}),
    (F.adaptive_avg_pool3d, (torch.randn(1, 2, 5, 5, 5), (1, 2, 3)), {}),
    *[
        (torch.add, pair, {})
        for pair in ((S.transpose(0, 1), S.transpose(0, 1)), (S.transpose(0, 1), torch.ones(5, 2, 8)))
    ],
    (torch.add, (torch.ones(5, 2, 8), S.transpose(0, 1)), {}),
    (torch.sub, (S[..., :4], S[..., 4:]), {}),
    (F.gelu, (S,), {"approximate": "tanh"}),
    (F.relu, (S.clone(),), {"inplace": True}),
    (F.relu, (S.transpose(0, 1),), {}),
    (torch.sigmoid, (torch.ones(3, dtype=torch.int64),), {}),
    (F.softmax, (S, -1), {}),
    (F.softmax, (S, 7), {}),
    (F.log_softmax, (S,), {"dim": 1, "dtype": torch.float64}),
    (F.dropout, (S,), {"p": 0.1}),
    (F.dropout, (S.transpose(0, 1),), {"p": 0.1}),
    (F.softmax, (S.transpose(0, 1), -1), {}),
    (F.dropout, (S,), {"training": False}),
    (F.layer_norm, (S, (8,)), {}),
    (F.layer_norm, (S, (7,)), {}),
    (F.layer_norm, (S.transpose(0, 1), (8,), torch.ones(8)), {}),
    (F.batch_norm, (X, torch.zeros(4), torch.ones(4)), {}),
    (F.batch_norm, (X, torch.zeros(3), torch.ones(3)), {}),
    (F.batch_norm, (torch.zeros(1, 4), torch.zeros(4), torch.ones(4)), {"training": True}),
    (F.embedding, (torch.zeros(2, 3, dtype=torch.int64), torch.randn(5, 4)), {}),
    (F.embedding, (torch.zeros(2, 3), torch.randn(5, 4)), {}),
    *[(torch.cat, ([S, S[:, :2]], dim), {}) for dim in (1, -2, 0, 5)],
    (torch.cat, ([X.to(memory_format=torch.channels_last)] * 2, 1), {}),
    (torch.cat, ([S, S.double()],), {}),
    (torch.cat, ([S.transpose(0, 1), S.transpose(0, 1)], 2), {}),
    *[
        (function, (S, other), {})
        for function in (torch.add, torch.Tensor.mul, torch.div)
        for other in (S, 2, 0.5, torch.randn(8), torch.randn(5, 1), torch.randn(3), S.double(), torch.ones(8).long())
    ],
    (torch.add, (S[:, :1], S[:1]), {}),
    (torch.add, (S, S), {"alpha": 2}),
    (torch.add, (torch.ones(2, dtype=torch.int64), 0.5), {}),
    *[(torch.Tensor.add_, (S.clone(), other), {}) for other in (S, 1, torch.randn(8), torch.randn(4, 2, 5, 8))],
    (F.scaled_dot_product_attention, (torch.randn(2, 3, 5, 4),) * 3, {}),
    (F.scaled_dot_product_attention, (torch.randn(2, 5, 3, 4).transpose(1, 2),) * 3, {}),
    (F.scaled_dot_product_attention, (torch.randn(2, 5, 3, 8)[..., :4].transpose(1, 2),) * 3, {}),
    (F.scaled_dot_product_attention, (torch.randn(2, 3, 5, 4), *[torch.randn(2, 3, 7, 4)] * 2), {}),
    (F.scaled_dot_product_attention, (torch.randn(2, 3, 5, 4), *[torch.randn(2, 1, 7, 4)] * 2), {}),
    *[
        (F.scaled_dot_product_attention, (query, Q, Q), more)
        for query in (Q, torch.randn(2, 5, 3, 4).transpose(1, 2))
        for more in (
            {"is_causal": True},
            {"dropout_p": 0.1},
            {"dropout_p": 0.1, "is_causal": True},
            {"attn_mask": torch.zeros(5, 5)},
            {"attn_mask": torch.ones(2, 1, 5, 5, dtype=torch.bool), "dropout_p": 0.5},
            {"attn_mask": torch.zeros(5, 4)},
            {"attn_mask": torch.zeros(5, 5), "is_causal": True},
            {"attn_mask": torch.zeros(5, 5, dtype=torch.float64)},
            {"enable_gqa": True},
        )
    ],
    (torch.mul, (Q.transpose(1, 2), 0.5), {}),
    (torch.mul, (Q[..., :2], 0.5), {}),
    *[
        recurrent(function, kind(8, 3, layers, bidirectional=both, batch_first=first, **more), S, **odd)
        for function, kind, more in (
            (torch.lstm, nn.LSTM, {}),
            (torch.lstm, nn.LSTM, {"proj_size": 2}),
            (torch.lstm, nn.LSTM, {"bias": False}),
            (torch.gru, nn.GRU, {}),
            (torch.rnn_tanh, nn.RNN, {}),
            (torch.rnn_relu, nn.RNN, {"nonlinearity": "relu"}),
        )
        for layers, both, first in ((1, False, False), (2, True, False), (1, True, True), (2, False, True))
        for odd in ({}, {"at_0": torch.randn(2, 5, 7)}, {"at_0": S.double()}, {"at_2": []})
    ],
    recurrent(torch.lstm, nn.LSTM(8, 3), pack_padded_sequence(S, [2, 1, 1, 1, 1])),
    *[
        recurrent(function, kind(8, 3, **more), S[0], **odd)
        for function, kind, more in (
            (torch.lstm_cell, nn.LSTMCell, {}),
            (torch.gru_cell, nn.GRUCell, {"bias": False}),
            (torch.rnn_tanh_cell, nn.RNNCell, {}),
            (torch.rnn_relu_cell, nn.RNNCell, {"nonlinearity": "relu"}),
        )
        for odd in ({}, {"at_0": torch.randn(5, 7)}, {"at_2": torch.randn(2, 8)})
    ],
    *[
        (F.embedding_bag, (BAGS, torch.randn(5, 4)), {"mode": mode, **more})
        for mode in ("sum", "mean", "max", "median")
        for more in ({}, {"per_sample_weights": torch.randn(2, 3)}, {"offsets": torch.zeros(1, dtype=torch.int64)})
    ],
    *[
        (F.embedding_bag, (BAGS[0], torch.randn(5, 4), offsets), {"include_last_offset": last})
        for offsets in (torch.tensor([0, 2]), torch.tensor([0, 3], dtype=torch.int32), None)
        for last in (False, True)
    ],
]


RECURRENT = {function for function in _RULES if any(kind in str(function) for kind in ("lstm", "gru", "rnn"))}


def test_every_rule_is_tried():
    assert set(_RULES) - {function for function, *_ in CALLS} <= {
        *(torch.relu, torch.sub, torch.mul, torch.Tensor.add, torch.Tensor.sub, torch.Tensor.div, torch.Tensor.mul_),
    }


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("call", CALLS, ids=lambda call: getattr(call[0], "__name__", ""))
def test_rules_give_what_torch_gives(call):
    function, args, kwargs = call
    made = result_of(function, args, kwargs)
    try:
        real = function(*args, **kwargs)
    except (RuntimeError, ValueError, IndexError, TypeError):
        assert made is None
        return
    if made is not None:
        mine, theirs = (tree_leaves(result) for result in (made, real))
        assert [(t.shape, t.dtype, t.stride()) for t in mine] == [(t.shape, t.dtype, t.stride()) for t in theirs]
    if function in RECURRENT and args[0].shape[-1] == 8 and not isinstance(args[3], list):  # neither odd nor packed
        assert made is not None
    usual = all(not isinstance(arg, torch.Tensor) or arg.is_contiguous() for arg in args)
    plain = not kwargs and function in (F.conv2d, F.relu, F.softmax, F.linear, torch.add)
    if usual and plain and all(arg.dtype == torch.float32 for arg in args if isinstance(arg, torch.Tensor)):
        assert made is not None or args[0].ndim < 2


def test_fake_tensors_read_what_twins_do_not(monkeypatch):
    def fail(*_):
        raise NoTwinError("none today")

    monkeypatch.setattr(torch_run, "from_twins", fail)
    graph = graph_of(nn.Linear(2, 3), (1, 2))
    assert (graph.importer, graph.notes) == ("a dry run", ())
