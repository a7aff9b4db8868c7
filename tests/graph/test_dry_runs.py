"""Dry runs: what twins without data show is what torch's fake tensors show, and rules for shapes are torch's."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from feedline.graph.importers import graph_of, torch_run
from feedline.graph.importers.torch_meta import NoTwinError, device_of
from feedline.graph.importers.torch_parts import arguments
from feedline.graph.importers.torch_run import from_fakes, from_twins
from feedline.graph.importers.torch_shapes import _RULES, result_of
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


@pytest.mark.parametrize(("model", "shape"), [("resnet18", (1, 3, 224, 224)), ("vit_b_16", (1, 3, 224, 224))])
def test_a_table_does_not_import_torchs_compiler(model, shape):
    program = (
        f"import sys, feedline as fl\nfrom tests.graph.known_networks import {model}\n"
        f"fl.summary({model}(), {shape})\nprint([name for name in ('torch._dynamo', 'sympy') if name in sys.modules])"
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
    *[(function, (S,), {}) for function in (F.relu, F.gelu, F.silu, F.relu6, F.leaky_relu, torch.tanh, torch.sigmoid)],
    (F.gelu, (S,), {"approximate": "tanh"}),
    (F.relu, (S.clone(),), {"inplace": True}),
    (F.relu, (S.transpose(0, 1),), {}),
    (torch.sigmoid, (torch.ones(3, dtype=torch.int64),), {}),
    (F.softmax, (S, -1), {}),
    (F.softmax, (S, 7), {}),
    (F.log_softmax, (S,), {"dim": 1, "dtype": torch.float64}),
    (F.dropout, (S,), {"p": 0.1}),
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
]


def test_every_rule_is_tried():
    assert set(_RULES) - {function for function, *_ in CALLS} <= {
        *(torch.relu, torch.sub, torch.mul, torch.Tensor.add, torch.Tensor.sub, torch.Tensor.div, torch.Tensor.mul_),
    }


@pytest.mark.parametrize("call", CALLS, ids=lambda call: getattr(call[0], "__name__", ""))
def test_rules_give_what_torch_gives(call):
    function, args, kwargs = call
    made = result_of(function, args, kwargs)
    try:
        real = function(*args, **kwargs)
    except (RuntimeError, ValueError, IndexError):
        assert made is None
        return
    if made is not None:
        assert (made.shape, made.dtype, made.stride()) == (real.shape, real.dtype, real.stride())
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
