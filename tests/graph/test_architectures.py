"""Laws of graphs, pictures and tables, on all architectures: nothing is counted twice, omitted or misread."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

from feedline.graph.fold_to_fit import fit
from feedline.graph.folding import collapse, fold_repeats
from feedline.graph.graph import size
from feedline.graph.importers import graph_of, torch_module
from feedline.graph.importers.torch_fx import from_fx
from feedline.graph.importers.torch_parts import arguments
from feedline.graph.importers.torch_run import from_dry_run, from_run
from feedline.graph.layer_table import summary
from feedline.graph.plot import plot_network
from tests.graph.architectures import cases
from tests.graph.dot import parsed

CASES = cases()
GRAPHS = {}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


@pytest.fixture
def graph(request, case):
    name = request.node.callspec.params["case"]
    if name not in GRAPHS:
        GRAPHS[name] = graph_of(case.model, case.inputs)
    return GRAPHS[name]


def seen_by_hooks(model, inputs):
    """Return the shapes of every layer call's result, by path."""
    args, kwargs = arguments(model, inputs)
    calls, seen, hooks = {}, {}, []

    def note(name):
        def hook(module, _, result):
            n = calls[name] = calls.get(name, -1) + 1
            first = result[0] if isinstance(result, tuple) else result
            if isinstance(first, torch.Tensor):
                seen[f"{name}@{n}" if n else name or type(module).__name__] = tuple(first.shape)

        return hook

    for name, module in model.named_modules():
        if name or not list(model.children()):
            hooks.append(module.register_forward_hook(note(name)))
    try:
        model(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def called(scope):
    """The qualified name of a scope's module and the number of the call."""
    number = scope[-1].partition("@")[2]
    name = ".".join(part.partition("@")[0] for part in scope)
    return f"{name}@{number}" if number else name


def test_importer_is_the_best_that_can(case, graph):
    assert graph.importer == case.importer, graph.notes
    assert bool(graph.notes) == (case.importer != "a dry run")


def test_parameters_match_the_module(case, graph):
    own = list(case.model.parameters())
    assert graph.num_parameters() == sum(p.numel() for p in own)
    assert graph.num_parameters(trains=True) == sum(p.numel() for p in own if p.requires_grad)


def test_multiply_adds_match_the_formulas(case, graph):
    assert sum(o.multiply_adds for o in graph.operations) == case.multiply_adds


def test_edges_have_the_shapes_that_hooks_see(case, graph):
    seen = seen_by_hooks(case.model, case.inputs)
    layers = collapse(graph)
    edges = [(layers[e.tail], e) for e in layers.edges() if layers[e.tail].whole and e.index == 0]
    wrong = {o.key: (e.type.shape, seen[called(o.scope)]) for o, e in edges if e.type.shape != seen[called(o.scope)]}
    assert not wrong


def test_a_run_sees_what_a_dry_run_sees(case, graph):
    run = from_run(case.model, *arguments(case.model, case.inputs))
    if case.importer == "a dry run":
        assert run.operations == graph.operations
        assert (run.parameters, run.scopes) == (graph.parameters, graph.scopes)
    assert sum(o.multiply_adds for o in run.operations) == case.multiply_adds
    assert run.num_parameters() == graph.num_parameters()
    assert results(run) == results(graph)


def test_the_exporter_sees_what_a_dry_run_sees(case, graph, monkeypatch):
    if case.importer != "a dry run":
        pytest.skip("its flow depends on data")

    def fail(*_):
        raise RuntimeError("no dry run today")

    monkeypatch.setattr(torch_module, "from_dry_run", fail)
    exported = graph_of(case.model, case.inputs)
    assert exported.importer == "torch.export"
    assert exported.notes == ("a dry run: RuntimeError: no dry run today",)
    assert sum(o.multiply_adds for o in exported.operations) == case.multiply_adds
    assert exported.num_parameters() == graph.num_parameters()
    assert results(exported) == results(graph)


def results(graph):
    """Names and types of the outputs."""
    found = [o for o in graph.operations if o.role == "output"]
    return [(o.name, graph[o.inputs[0].key].outputs[o.inputs[0].index]) for o in found]


def test_fx_sees_the_same_where_it_can(case, graph):
    try:
        with torch.random.fork_rng():
            fx = from_fx(case.model, *arguments(case.model, case.inputs))
    except Exception:
        pytest.skip("torch.fx does not trace it")
    costs = [o.multiply_adds for o in fx.operations]
    assert None in costs or sum(costs) == case.multiply_adds
    assert fx.num_parameters() == graph.num_parameters()


def test_every_operation_leads_to_an_output(graph):
    used = {source.key for o in graph.operations for source in o.inputs}
    assert all(o.key in used or o.role != "operation" for o in graph.operations)


def dead_ends(graph):
    """Operations on which nothing depends."""
    used = {source.key for o in graph.operations for source in o.inputs}
    return {o.key for o in graph.operations if o.key not in used and o.role == "operation"}


def kernels(graph, path):
    """How often each kind of operation, with its kernel, is inside of a module."""
    inside = [o for o in graph.operations if o.scope[: len(path)] == path]
    return Counter((o.kind, *(s.value for s in o.settings if s.name == "kernel")) for o in inside)


def expect_true_to(graph, small):
    """Folding adds no dead end, and the blocks of a run have the same kinds and kernels."""
    assert dead_ends(small) <= dead_ends(graph)
    for path, scope in small.scopes.items():
        if scope.repeats > 1 and path in graph.scopes:
            ran = dict.fromkeys(o.scope[: len(path)] for o in graph.operations if o.scope[: len(path) - 1] == path[:-1])
            names = [p[-1] for p in ran if len(p) == len(path)]
            run = names[names.index(path[-1]) : names.index(scope.last) + 1]
            first, *others = (kernels(graph, (*path[:-1], name)) for name in run)
            assert len(run) == scope.repeats
            assert all(other == others[0] for other in others)
            assert others[0] <= first
            assert scope.first_only or others[0] == first


@pytest.mark.parametrize("alike", [False, True])
def test_folding_is_true_to_the_network(graph, alike):
    for depth in (None, 1, 2):
        whole = collapse(graph, depth)
        expect_true_to(whole, fold_repeats(whole, alike))


class Block(nn.Sequential):
    """A convolution, normalised and activated unless it is bare."""

    def __init__(self, i, o, stride=1, bare=False, **more):
        more = {"kernel_size": 3, "padding": 1, **more}
        rest = [] if bare else [nn.BatchNorm2d(o), nn.ReLU()]
        super().__init__(nn.Conv2d(i, o, stride=stride, **more), *rest)


class Deep(nn.Sequential):
    """A module in which a run of others differs in length from one such module to the next."""

    def __init__(self, i, o, stride, times):
        inner = [Block(o, o) for _ in range(times)]
        super().__init__(nn.Conv2d(i, o, 3, stride, 1), nn.Sequential(*inner))


POINT = {"kernel_size": 1, "padding": 0}
# Chains in which the second block is not the first one with another stride.
NO_STAGES = {
    "the second lacks what ends the first": [Block(3, 16, 2), Block(16, 16, bare=True)],
    "kernel": [Block(3, 16, 2), Block(16, 16, **POINT)],
    "groups": [Block(4, 16, 2, groups=4), Block(16, 16, groups=2)],
    "grouped, then 1×1 without activation": [Block(16, 16, 2, groups=4), Block(16, 16, bare=True, **POINT)],
    "bias": [Block(3, 16, 2, bias=False), Block(16, 16)],
    "an inner run of another length": [Deep(3, 16, 2, 3), Deep(16, 16, 1, 2)],
}


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("name", NO_STAGES)
def test_what_is_no_stage_does_not_fold(name, alike):
    model = nn.Sequential(nn.Sequential(*NO_STAGES[name]), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    graph = collapse(graph_of(model, (1, model[0][0][0].in_channels, 32, 32)))
    small = fold_repeats(graph, alike)
    expect_true_to(graph, small)
    assert [scope.repeats for path, scope in small.scopes.items() if path[0] == "0" and len(path) == 2] == [1, 1]


@pytest.mark.parametrize(
    ("first", "second", "only"),
    [
        (Block(3, 16, 2), Block(16, 16), ("stride 2",)),
        (Block(3, 16, 2), Block(16, 16, dilation=2, padding=2), ("stride 2", "padding 1", "dilation 1")),
        (Block(16, 16, 2, groups=16), Block(16, 16, groups=16), ("stride 2",)),
        (
            nn.Sequential(Block(8, 48, **POINT), Block(48, 48, 2, groups=48), Block(48, 16, bare=True, **POINT)),
            nn.Sequential(Block(16, 96, **POINT), Block(96, 96, groups=96), Block(96, 16, bare=True, **POINT)),
            ("other widths", "stride 2"),
        ),
    ],
)
def test_the_first_of_a_stage_is_distinct(first, second, only):
    convolutions = [m for m in first.modules() if isinstance(m, nn.Conv2d)]
    model = nn.Sequential(nn.Sequential(first, second), nn.Flatten(), nn.LazyLinear(2))
    graph = collapse(graph_of(model, (1, convolutions[0].in_channels, 16, 16)))
    small = fold_repeats(graph)
    expect_true_to(graph, small)
    assert (small.scopes[("0", "0")].repeats, small.scopes[("0", "0")].first_only) == (2, only)


class Ravel(torch.nn.Module):
    def forward(self, x):
        return x.ravel().exp()


def test_runs_see_what_shares_memory():
    for read in (from_run, from_dry_run):
        graph = read(Ravel(), (torch.ones(2, 3),), {})
        assert [o.activations for o in graph.operations if o.role == "operation"] == [0, 24]


class Parts(torch.nn.Module):
    def forward(self, x):
        narrow, wide = x.split([1, 3], 1)
        return narrow.exp(), wide.log()


@pytest.mark.parametrize(
    "read", [graph_of, lambda m, x: from_fx(m, *arguments(m, x)), lambda m, x: from_run(m, *arguments(m, x))]
)
def test_operations_take_the_output_that_they_take(read):
    taken = {
        head.kind: (e.index, e.type.shape) for g in [read(Parts(), (2, 4))] for e in g.edges() for head in [g[e.head]]
    }
    assert taken["exp"] == (0, (2, 1))
    assert taken["log"] == (1, (2, 3))


@pytest.mark.parametrize("fold", [False, True])
def test_picture_has_the_nodes_and_edges_of_the_graph(graph, fold):
    for expand in (False, True):
        drawn = fit(graph, expand)[0] if fold else collapse(graph, None, expand)
        nodes, edges = parsed(plot_network(graph, fold=fold, expand=expand, legend=False, height=None).source)
        assert sorted(nodes) == sorted(o.key for o in drawn.operations)
        assert sorted((a, b) for a, b, _ in edges) == sorted((e.tail, e.head) for e in drawn.edges())
        assert sorted(label.strip() for *_, label in edges) == sorted(str(e.type) for e in drawn.edges())


@pytest.mark.parametrize("height", [200, 1600])
def test_columns_change_neither_nodes_nor_edges(graph, height):
    """An arrow to a circle, and those from the other one, are the arrows of one tensor."""
    drawn, _ = fit(graph, height=height)
    nodes, edges = parsed(plot_network(graph, legend=False, height=height).source)
    circles = {name for name in nodes if name.startswith(("to ", "from "))}
    assert sorted(nodes.keys() - circles) == sorted(o.key for o in drawn.operations)
    seen = [(a, b) for a, b, label in edges if label or not circles]  # without the invisible ones between columns
    into = {b.removeprefix("to "): a for a, b in seen if b in circles}
    found = [(into[a.removeprefix("from ")] if a in circles else a, b) for a, b in seen if b not in circles]
    assert sorted(found) == sorted((e.tail, e.head) for e in drawn.edges())


def test_collapsing_loses_no_parameter_and_no_work(graph):
    total = sum(o.multiply_adds for o in graph.operations)
    memory = sum(o.activations for o in graph.operations)
    used = {name for o in graph.operations for name in o.parameters}
    for depth in (0, 1, 2, None):
        small = collapse(graph, depth)
        assert sum(o.multiply_adds for o in small.operations) == total
        assert sum(o.activations for o in small.operations) == memory
        assert {name for o in small.operations for name in o.parameters} == used
        if depth is not None:
            assert all(len(o.scope) - o.whole <= depth for o in small.operations)


def test_collapsing_keeps_what_goes_in_and_out(graph):
    for small in (collapse(graph, 0), collapse(graph, 1), fold_repeats(graph), fold_repeats(collapse(graph))):
        for role in ("input", "output"):
            kept = [[(o.key, o.name) for o in g.operations if o.role == role] for g in (small, graph)]
            assert kept[0] == kept[1]


def test_columns_of_the_table_add_up(case, graph):
    for depth in (0, 1, None):
        table = summary(graph, depth=depth)
        assert sum(row.parameters for row in table.rows) == table.parameters
        assert sum(row.multiply_adds for row in table.rows) == table.multiply_adds == case.multiply_adds
        assert sum(row.activations for row in table.rows) == sum(o.activations for o in graph.operations)
        assert f"{table.parameters:,}" in str(table)


def test_activations_are_what_operations_allocate(graph):
    for o in graph.operations:
        assert o.activations in (0, sum(t.bytes for t in o.outputs))
        assert all(t.bytes == size(t.shape) * {"float32": 4, "int64": 8}.get(t.dtype, 1) for t in o.outputs)


def test_nothing_is_changed(case):
    args, kwargs = arguments(case.model, case.inputs)
    before = {name: tensor.clone() for name, tensor in case.model.state_dict().items()}
    random = torch.get_rng_state()
    graph_of(case.model, case.inputs)
    assert torch.equal(torch.get_rng_state(), random)
    after = case.model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert all(type(p) is torch.nn.Parameter for p in case.model.parameters())
    case.model(*args, **kwargs)
    case.model.load_state_dict(before)


class Untidy(torch.nn.Module):
    """Leaks an object at every run."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("last", torch.zeros(2))
        self.log, self.runs = [], 0

    def forward(self, x):
        self.steps += 1
        self.last = x.detach()
        self.log.append(x)
        self.runs += 1
        return torch.rand(2) + (x if x.sum() > 0 else -x)


def test_changes_of_a_run_are_undone():
    model = Untidy()
    steps, last, random = model.steps, model.last, torch.get_rng_state()
    assert graph_of(model, torch.ones(2)).importer == "a run"
    assert model.steps is steps
    assert model.last is last
    assert (steps.item(), last.tolist(), model.log, model.runs) == (0, [0, 0], [], 0)
    assert torch.equal(torch.get_rng_state(), random)
    assert not model._forward_hooks
    graph_of(model)
    assert torch.equal(torch.get_rng_state(), random)


def test_without_inputs_there_is_a_picture(case):
    graph = graph_of(case.model)
    assert graph.importer in ("torch.fx", "the module tree")
    assert graph.num_parameters() == sum(p.numel() for p in case.model.parameters())
    assert str(summary(graph))
    assert plot_network(graph).source


def test_there_are_twenty_architectures():
    assert len(CASES) >= 20
