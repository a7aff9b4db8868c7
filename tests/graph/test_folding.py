"""Smaller graphs mean the same: random ones collapse without cycles or loss, and only equal chains fold."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.graph.folding import collapse, fold_repeats
from feedline.graph.graph import Graph, Operation, OutputReference, Parameter, Scope, TensorType
from tests.effort import examples

WIDE = TensorType((2, 3))


@st.composite
def graphs(draw):
    """Any operations in any scopes, with any edges to those before."""
    names = st.sampled_from("abc")
    operations, scopes = [], {}
    for i in range(draw(st.integers(1, 14))):
        path = tuple(draw(st.lists(names, max_size=3)))
        for n in range(1, len(path) + 1):
            scopes.setdefault(path[:n], Scope("Layer", builtin=draw(st.booleans())))
        keys = st.sampled_from([o.key for o in operations]) if i else st.nothing()
        sources = tuple(OutputReference(key) for key in draw(st.lists(keys, max_size=3 if i else 0)))
        costs = {"multiply_adds": draw(st.integers(0, 9)), "activations": draw(st.integers(0, 9))}
        used = tuple(draw(st.lists(st.sampled_from("pq"), unique=True)))
        operations.append(Operation(f"o{i}", "relu", "", "operation", path, sources, (WIDE,), used, **costs))
    return Graph(tuple(operations), {n: Parameter(n, WIDE) for n in "pq"}, scopes)


def image(graph, small):
    """Return for each operation the one that represents it."""
    whole = {o.scope: o.key for o in small.operations if o.whole}
    found = {}
    for o in graph.operations:
        inside = [whole[o.scope[:n]] for n in range(1, len(o.scope) + 1) if o.scope[:n] in whole]
        found[o.key] = inside[0] if inside else o.key
    return found


@settings(max_examples=examples(200))  # scopes that wait for each other are rare
@given(graphs(), st.none() | st.integers(0, 3), st.booleans())
def test_collapsing_keeps_edges_between_what_is_left(graph, depth, expand):
    small = collapse(graph, depth, expand)  # Graph itself refuses cycles and missing sources
    stands = image(graph, small)
    assert set(stands.values()) == {o.key for o in small.operations}
    edges = {(stands[e.tail], stands[e.head]) for e in graph.edges() if stands[e.tail] != stands[e.head]}
    assert {(e.tail, e.head) for e in small.edges()} == edges


@given(graphs(), st.none() | st.integers(0, 3))
def test_collapsing_keeps_sums_and_parameters(graph, depth):
    small = collapse(graph, depth)
    for name in ("multiply_adds", "activations"):
        assert sum(getattr(o, name) for o in small.operations) == sum(getattr(o, name) for o in graph.operations)
    assert {n for o in small.operations for n in o.parameters} == {n for o in graph.operations for n in o.parameters}


@given(graphs())
def test_folding_leaves_no_edge_without_ends(graph):
    small = fold_repeats(graph)
    assert {o.key for o in small.operations} <= {o.key for o in graph.operations}
    assert sum(s.repeats for p, s in small.scopes.items() if len(p) == 1) <= sum(1 for p in graph.scopes if len(p) == 1)


def chain(kinds, times, odd=None, tied=False, spy=None):
    """``times`` blocks of operations in sequence, the first of each added to its last. Block ``odd`` differs."""
    operations = [Operation("x", "input", "x", "input", outputs=(WIDE,))]
    parameters, scopes, before = {}, {}, "x"
    for b in range(times):
        scopes[(f"{b}",)] = Scope("Block")
        name = "w" if tied else f"w{b}"
        parameters[name] = Parameter(name, WIDE)
        first = before
        for i, kind in enumerate(kinds):
            kind = "tanh" if b == odd and i == 0 else kind
            sources = tuple(
                dict.fromkeys(
                    [OutputReference(before), OutputReference(first)]
                    if i == len(kinds) - 1
                    else [OutputReference(before)]
                )
            )
            key = f"b{b}_{i}"
            operations.append(Operation(key, kind, "", "operation", (f"{b}",), sources, (WIDE,), (name,)))
            before = key
    last = [OutputReference(before), *([OutputReference(f"b{spy}_0")] if spy is not None else [])]
    operations.append(Operation("y", "output", "", "output", inputs=tuple(last)))
    return Graph(tuple(operations), parameters, scopes)


kinds = st.lists(st.sampled_from(["relu", "linear", "add"]), min_size=1, max_size=4)


@given(kinds, st.integers(2, 9), st.booleans())
def test_equal_blocks_in_sequence_fold(kinds, times, tied):
    small = fold_repeats(chain(kinds, times, tied=tied))
    assert [o.key for o in small.operations] == ["x", *[f"b0_{i}" for i in range(len(kinds))], "y"]
    scope = small.scopes[("0",)]
    assert (scope.repeats, scope.last, scope.tied) == (times, f"{times - 1}", tied)
    assert small["y"].inputs == (OutputReference(f"b0_{len(kinds) - 1}"),)


@given(kinds, st.integers(3, 7), st.data())
def test_another_block_does_not_fold_in(kinds, times, data):
    odd = data.draw(st.integers(0, times - 1))
    small = fold_repeats(chain(kinds, times, odd))
    runs = [n for n in (odd, 1, times - odd - 1) if n]
    assert sorted(s.repeats for s in small.scopes.values()) == sorted(runs)


def test_modules_of_another_class_do_not_fold():
    graph = chain(["relu"], 3)
    other = replace(graph, scopes={**graph.scopes, ("2",): Scope("Other")})
    assert [s.repeats for s in fold_repeats(other).scopes.values()] == [2, 1]


@given(st.integers(3, 7), st.data())
def test_a_block_that_somebody_else_looks_into_ends_the_run(times, data):
    spy = data.draw(st.integers(0, times - 2))
    small = fold_repeats(chain(["linear", "relu"], times, spy=spy))
    assert sorted(s.repeats for s in small.scopes.values()) == sorted([spy + 1, times - spy - 1])


def test_scopes_that_wait_for_each_other_stay_open():
    operations = [
        Operation("a1", "relu", scope=("a",), outputs=(WIDE,)),
        Operation("b1", "relu", scope=("b",), inputs=(OutputReference("a1"),), outputs=(WIDE,)),
        Operation("b2", "relu", scope=("b",), outputs=(WIDE,)),
        Operation("a2", "relu", scope=("a",), inputs=(OutputReference("b2"),), outputs=(WIDE,)),
    ]
    small = collapse(Graph(tuple(operations), {}, {("a",): Scope("A"), ("b",): Scope("B")}), 0)
    assert [o.key for o in small.operations if o.whole] == ["a"]
    assert [(e.tail, e.head) for e in small.edges()] == [("b2", "a"), ("a", "b1")]


def test_negative_depth_is_refused():
    with pytest.raises(ValueError, match="from 0, got -1"):
        collapse(chain(["relu"], 2), -1)


GOOD = Operation("a", "relu", outputs=(WIDE,))


@pytest.mark.parametrize(
    ("operations", "message"),
    [
        ([GOOD, GOOD], "a unique key"),
        ([replace(GOOD, key="a:b")], "letters, digits"),
        ([replace(GOOD, role="sink")], "expected a role"),
        ([replace(GOOD, inputs=(OutputReference("b"),))], "an output of an operation before it"),
        ([GOOD, replace(GOOD, key="b", inputs=(OutputReference("a", 1),))], "an output of an operation before it"),
        ([replace(GOOD, parameters=("w",))], "one of the graph's parameters, got 'w'"),
        ([replace(GOOD, scope=("s",))], "one of the graph's scopes"),
    ],
)
def test_impossible_graphs_are_refused(operations, message):
    with pytest.raises(ValueError, match=message):
        Graph(tuple(operations))


def test_feedback_may_come_from_later_layers():
    graph = Graph((replace(GOOD, inputs=(OutputReference("a", feedback=True),)),))
    assert [e.feedback for e in graph.edges()] == [True]
