"""Modules that are legal but rare: how they are read, and their state afterwards."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import logging
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import feedline as fl
import feedline.cntk as C
import feedline.mxnet as mx
from feedline.graph.importers import graph_of, torch_module


class Wrapped(nn.Module):
    """A linear layer whose output is computed from its result."""

    def __init__(self, gives):
        super().__init__()
        self.inner, self.gives = nn.Linear(4, 3), gives

    def forward(self, x):
        return self.gives(self.inner(x))


@dataclasses.dataclass
class Out:
    """What some modules give."""

    scores: torch.Tensor
    loss: torch.Tensor


class Opaque:
    """An object that no library takes apart."""

    def __init__(self, scores):
        self.scores = scores


class Branching(nn.Module):
    """Only a run can follow it."""

    def __init__(self, inner, gives=lambda x: x):
        super().__init__()
        self.inner, self.gives = inner, gives

    def forward(self, x):
        y = self.inner(x)
        while y.abs().max() > 0.5:
            y = y / 2
        return self.gives(y)


RESULTS = [
    lambda y: y.sum().item(),
    lambda y: (y.sum().item(), y.argmax().item()),
    lambda y: Out(y, y.sum()),
    lambda y: Opaque(y),
    lambda y: {"loss": y.sum().item(), "none": None},
]


@pytest.mark.parametrize("gives", RESULTS)
@pytest.mark.parametrize("make", [Wrapped, lambda gives: Branching(nn.Linear(4, 3), gives)])
def test_results_that_are_no_tensors(gives, make):
    """Their original module is shown, and its parameters are used."""
    table = fl.summary(make(gives), torch.ones(2, 4))
    (row,) = [row for row in table.rows if row.name == "inner"]
    assert (row.parameters, row.multiply_adds) == (15, 24)
    assert not any("no operation" in row.name for row in table.rows)


@pytest.mark.parametrize("wrap", [nn.Sequential, Branching])
def test_weights_that_a_run_writes_are_put_back(wrap):
    """An embedding with a maximum norm scales its results."""
    module = wrap(nn.Embedding(5, 3, max_norm=0.01))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    fl.summary(module, torch.arange(5))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_what_autograd_keeps_stays_valid():
    """A table in mid-step takes no gradient away."""
    module = nn.Sequential(nn.BatchNorm1d(4))
    loss = module(torch.randn(3, 4)).sum()
    fl.summary(module, (3, 4))
    loss.backward()
    assert module[0].weight.grad is not None


@pytest.mark.parametrize(
    "lazy", [lambda: nn.LazyLinear(3), lambda: nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d())]
)
def test_lazy_modules_stay_lazy(lazy):
    """They are read as the first run would make them. Without inputs their shapes are not known."""
    module = lazy()
    assert fl.summary(module, (2, 4)).parameters in (15, 28)
    assert any(torch.nn.parameter.is_lazy(p) for p in module.parameters())
    assert fl.summary(module).parameters is None
    fl.plot_network(module)


def test_modules_without_memory():
    """Those on the meta device have shapes only."""
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to("meta")
    assert fl.summary(module, (2, 4)).parameters == 28


@pytest.mark.parametrize("make", [torch.jit.script, lambda m: nn.Sequential(torch.jit.trace(m, torch.zeros(2, 4)))])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_modules_are_reported(make):
    """Only TorchScript sees their inside."""
    module = make(nn.Linear(4, 3))
    for inputs in (None, (2, 4)):
        with pytest.raises(TypeError, match="pass the module that was scripted"):
            fl.summary(module, inputs)


def test_shapes_that_are_none():
    """Lengths below 0 fit no module, and are a ValueError as other inputs that do not."""
    with pytest.raises(ValueError, match=r"lengths of at least 0, got \(-1, 4\)"):
        fl.summary(nn.Linear(4, 3), (-1, 4))


def test_inputs_that_do_not_fit_are_reported_once():
    """In the error alone, not in torch's log too."""
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    logging.getLogger("torch").addHandler(handler)
    try:
        with contextlib.redirect_stderr(log), pytest.raises(ValueError, match="cannot be multiplied"):
            fl.summary(nn.Linear(4, 3), (2, 5))
    finally:
        logging.getLogger("torch").removeHandler(handler)
    assert log.getvalue() == ""


def test_shapes_that_are_not_all():
    """JSON shows given shapes and notes that it infers none. A shape of an unknown node is an error."""
    text = mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=3, name="fc").tojson()
    graph = graph_of(text, {"x": (2, 4)})
    assert graph.operations[0].outputs[0].shape == (2, 4)
    assert any("load_json" in note for note in graph.notes)
    every = {"x": (2, 4), "fc_weight": (3, 4), "fc_bias": (3,), "fc_output": (2, 3)}
    assert graph_of(text, every).notes == graph_of(text).notes == ()
    with pytest.raises(ValueError, match="got one of y"):
        graph_of(text, {"x": (2, 4), "y": (2,)})


@pytest.mark.parametrize("shapes", [{"y": (2, 4)}, {"x": (2, -4)}, {"x": (2, 4), "fc_bias": (7,)}, {"fc_bias": (3,)}])
def test_shapes_that_do_not_fit_a_symbol(shapes):
    """They are a ValueError, as for a module, without further output."""
    symbol = mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=3, name="fc")
    with warnings.catch_warnings(), pytest.raises(ValueError, match="expected shapes"):
        warnings.simplefilter("error")
        fl.summary(symbol, shapes)


def test_numbers_of_outputs_are_believed_up_to_a_bound():
    """Or a file of a hundred bytes would take all memory."""
    nodes = [{"op": "null", "name": "x", "inputs": []}, {"op": "split", "name": "s", "inputs": [[0, 0]]}]
    with pytest.raises(ValueError, match="in head 0"):
        graph_of(json.dumps({"nodes": nodes, "heads": [[1, 10**12, 0]]}))
    nodes.append({"op": "relu", "name": "r", "inputs": [[1, 10**12]]})
    with pytest.raises(ValueError, match="inputs of node 2"):
        graph_of(json.dumps({"nodes": nodes, "heads": [[2, 0, 0]]}))


def test_symbols_take_shapes_by_name():
    """A text, or a symbol, with any other argument is an error."""
    text = json.dumps({"nodes": [{"op": "null", "name": "x", "inputs": []}], "heads": [[0, 0, 0]]})
    assert graph_of(text, {"x": (2, 3)}).operations[0].outputs[0].shape == (2, 3)
    for inputs in ((2, 3), [(2, 3)], torch.zeros(2)):
        with pytest.raises(TypeError, match="by name"):
            graph_of(text, inputs)
    with pytest.raises(ValueError, match="JSON of a symbol"):
        graph_of("[" * 100_000)


class Nonzero(nn.Module):
    """The shape of its result depends on data."""

    def forward(self, x):
        return torch.nonzero(x > 0).float().sum(0)


class Mapped(nn.Module):
    """Applies a function to tensors without memory."""

    def forward(self, x):
        return torch.vmap(lambda row: row.tanh())(x * 2) + 1


class Quiet(nn.Module):
    """Calls a function without reporting it."""

    def forward(self, x):
        with torch._C.DisableTorchFunction():
            y = (x * 2).tanh()
        return y + 1


@pytest.mark.parametrize(
    ("model", "note"),
    [
        (Nonzero(), "DynamicOutputShapeException"),
        (Mapped(), "BatchedTensor"),
        (Quiet(), "comes from code that reports no"),
    ],
)
def test_what_a_dry_run_cannot_see_the_exporter_does(model, note):
    graph = graph_of(model, torch.ones(3))
    assert graph.importer == "torch.export", graph.notes
    assert len(graph.notes) == 1
    assert note in graph.notes[0]
    assert {"nonzero", "mul"} & {o.kind for o in graph.operations}
    assert graph[graph.operations[-1].inputs[0].key].kind in ("sum", "add")


@pytest.mark.parametrize(
    ("model", "shape", "message"),
    [
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(3)), (1, 1, 8, 8), "running_mean should contain 2 elements"),
        (nn.BatchNorm1d(3), (1, 3), "more than 1 value per channel"),
        (nn.LayerNorm(4), (2, 3), r"normalized_shape=\[4\]"),
    ],
)
def test_inputs_that_a_normalisation_refuses(model, shape, message):
    """A dry run knows the shapes of normalisations, and leaves what does not fit to torch."""
    with pytest.raises(ValueError, match=message):
        graph_of(model, shape)


def test_a_dry_run_computes_nothing():
    """It neither allocates results nor takes their time: this product has 2**60 multiply-adds."""
    model = nn.Linear(1 << 10, 1 << 10, bias=False)
    table = fl.summary(model, torch.empty(1).expand(1 << 40, 1 << 10))
    assert table.graph.importer == "a dry run"
    assert table.multiply_adds == 1 << 60


def test_threads_take_turns(monkeypatch):
    """Warnings silenced while reading are restored afterwards."""
    barrier, read = threading.Barrier(2), torch_module.from_dry_run

    def meet(*args):
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait(1)
        return read(*args)

    monkeypatch.setattr(torch_module, "from_dry_run", meet)
    monkeypatch.setattr(sys, "stderr", sys.stderr)  # puts it back in any case
    heard = sys.stderr
    with ThreadPoolExecutor(2) as pool:
        tables = list(pool.map(lambda _: fl.summary(nn.ReLU(), (2,)), range(2)))
    assert barrier.broken  # none came while the other was there
    assert sys.stderr is heard
    assert [table.activations for table in tables] == [8, 8]


def test_inputs_without_a_name_have_one():
    """Under CNTK's names inputs need none."""
    rows = fl.summary(C.relu(C.input_variable(4))).rows
    assert all(row.name for row in rows)
