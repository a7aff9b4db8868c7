"""JSON of symbols that somebody wrote, cut off or changed: it is a symbol, or all that comes of it is an MXNetError."""

from __future__ import annotations

import copy
import json
import math
import warnings
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline.mxnet as mx
from feedline.mxnet.symbol._parameters import dims, ends, integer, real
from tests.compat.test_mxnet_operators import HEADS, OPERATORS, TABLE, symbol_of
from tests.effort import examples

MOST = 10_000  # limit on the numbers in an array that is actually allocated


def with_shapes(symbol, shapes):
    """Its JSON, with the shapes of its arguments in it."""
    document = json.loads(symbol.tojson())
    for node in document["nodes"]:
        if node["name"] in shapes:
            node.setdefault("attrs", {})["__shape__"] = str(tuple(shapes[node["name"]]))
    return document


def several_layers():
    x = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=2, pad=(1, 1), name="c")
    x = mx.sym.Pooling(mx.sym.BatchNorm(x, name="bn"), kernel=(2, 2), stride=(2, 2), pool_type="max")
    left, right = mx.sym.split(x, num_outputs=2)
    x = mx.sym.Dropout(mx.sym.concat(left, right, dim=1) + mx.sym.var("shift", shape=(2, 2, 2, 2)), p=0.5)
    x = mx.sym.FullyConnected(mx.sym.Activation(x, act_type="relu"), num_hidden=3, name="fc")
    return with_shapes(mx.sym.SoftmaxOutput(x, name="softmax"), {"data": (2, 1, 4, 4)})


def documents():
    """One of each operator, and one of many."""
    found = [several_layers(), several_layers()]
    for name, cases in TABLE.items():
        for case in cases:
            symbol, names = symbol_of(name, case)
            found.append(with_shapes(symbol, dict(zip(names, [a.shape for a in case.arrays()], strict=True))))
    found += [
        with_shapes(getattr(mx.sym, name)(mx.sym.var("data"), name="it"), {"data": (2, 3)}) for name in sorted(HEADS)
    ]
    return found


DOCUMENTS = documents()
WORDS = sorted({key for operator in OPERATORS.values() for key in operator.parameters})
NUMBERS = st.sampled_from(
    [0, 1, 2, 3, 5, 7, -1, -2, 10, 16, 100, 65536, 10**6, 2**31 - 1, 2**31, 2**63, 10**30, -(10**9)]
)
NUMBERS |= st.integers(-4, 8)
SPELLINGS = [
    "None", "True", "False", "true", "nan", "inf", "-inf", "1e400", "1e-300", "-0.0", "0.5", "1.5",
    "()", "[]", "(,", "(1,2", "(None,)", "1L", "float16", "int8", "bool", "object", "f4", "relu",
    "valid", "channel", "max", "null", "bilinear", "_zeros", "Convolution", "BatchNorm", "Concat",
    "RNN", "\ud800", "\x00", "١",
]  # fmt: skip
TEXTS = (
    st.sampled_from(SPELLINGS)
    | NUMBERS.map(str)
    | st.lists(NUMBERS, max_size=5).map(lambda several: str(tuple(several)))
    | st.lists(NUMBERS | st.none(), max_size=3).map(lambda several: str(tuple(several)))
    | st.floats().map(str)
    | st.text(max_size=4)
    | st.sampled_from(sorted(OPERATORS))
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS | st.sampled_from(WORDS), inner, max_size=3),
    max_leaves=4,
)


def places(value, path=()):
    """Paths to everything in a document."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def at(value, path):
    for key in path:
        value = value[key]
    return value


@st.composite
def changed(draw):
    """A document with a few changes."""
    document = copy.deepcopy(draw(st.sampled_from(DOCUMENTS)))
    for _ in range(draw(st.integers(1, 3))):
        settings = [node for node in document["nodes"] if isinstance(node, dict) and node.get("op") != "null"]
        if settings and draw(st.booleans()):
            # The likeliest mistakes: a setting.
            node = draw(st.sampled_from(settings))
            attributes = node.get("attrs")
            if not isinstance(attributes, dict):
                attributes = node["attrs"] = {}
            operator = OPERATORS.get(node["op"]) if isinstance(node.get("op"), str) else None
            known = sorted(operator.parameters) if operator else []
            attributes[draw(st.sampled_from(known or WORDS) | st.sampled_from(WORDS))] = draw(TEXTS)
            continue
        *above, key = draw(st.sampled_from([path for path in places(document) if path]))
        inside = at(document, above)
        what = draw(st.sampled_from(["replace", "drop", "twice", "copy"]))
        if what == "drop":
            del inside[key]
        elif what == "twice" and isinstance(inside, list):
            inside.insert(key, inside[key])
        elif what == "copy":
            other = draw(st.sampled_from([path for path in places(document) if path]))
            inside[key] = copy.deepcopy(at(document, other))
        else:
            inside[key] = draw(TEXTS if isinstance(inside[key], str) and draw(st.booleans()) else ANYTHING)
        if not isinstance(document.get("nodes"), list):
            break
    return document


def use(text):
    """All that a symbol can be asked, and a step with it if its arrays are small."""
    net = mx.sym.load_json(text)
    repr(net), net.list_arguments(), net.list_auxiliary_states(), net.list_outputs(), net.attr_dict()
    again = net.tojson()
    assert mx.sym.load_json(again).tojson() == again
    internals = net.get_internals()
    internals.list_outputs()
    net.get_children()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shapes = [*internals.infer_shape_partial(), *net.infer_shape_partial()]
        net.infer_type()
    if any(math.prod(shape) > MOST for several in shapes for shape in several):
        return
    executor = net.simple_bind(mx.cpu())
    executor.forward()
    heads = executor.forward(is_train=True)
    executor.backward([mx.nd.ones(one.shape) for one in heads])
    for array in executor.outputs:
        array.asnumpy()


@settings(max_examples=examples(200), deadline=None)
@given(changed())
def test_what_comes_of_changed_json_is_an_mxnet_error(document):
    text = json.dumps(document)
    try:
        use(text)
    except mx.MXNetError:
        pass


def test_what_is_not_changed_is_used():
    for document in DOCUMENTS:
        use(json.dumps(document))


def nodes_of(count, inputs, op="Concat", **settings):
    """Return the JSON of one operator that declares a number of inputs and has another."""
    x = {"op": "null", "name": "x", "inputs": []}
    attributes = {"num_args": str(count), **settings}
    many = {"op": op, "name": "many", "attrs": attributes, "inputs": [[0, 0, 0]] * inputs}
    return json.dumps({"nodes": [x, many], "arg_nodes": [0], "heads": [[1, 0, 0]]})


@pytest.mark.parametrize("op", sorted(name for name, operator in OPERATORS.items() if operator.variadic))
def test_inputs_that_are_not_there_get_no_names(op, monkeypatch):
    """A few bytes that claim 65536 inputs."""
    settings = {"scale": "2", "sample_type": "nearest"} if op == "UpSampling" else {}
    asked = []
    monkeypatch.setattr(type(OPERATORS[op]), "input_names", lambda self, p: asked.append(p))
    for inputs in (0, 2):
        with pytest.raises(mx.MXNetError, match=f"expected 65536 inputs for node 1, `many`, got {inputs}"):
            mx.sym.load_json(nodes_of(65536, inputs, op, **settings))
    assert not asked


@pytest.mark.parametrize("count", [65537, 2**31, 10**30, 0, -1])
def test_no_node_has_so_many_inputs(count):
    with pytest.raises(mx.MXNetError, match="num_args of operator Concat"):
        mx.sym.load_json(nodes_of(count, 1))


def test_inputs_that_nobody_announced_are_refused():
    with pytest.raises(mx.MXNetError, match="expected inputs arg0 for node 1, `many`, got 2"):
        mx.sym.load_json(nodes_of(1, 2))


def test_a_node_may_have_as_many_outputs_as_declared():
    """Their names cost no more than they are many."""
    several = mx.sym.split(mx.sym.var("x"), num_outputs=65536, name="part").get_internals()
    assert several.list_outputs() == ["x", *(f"part_output{i}" for i in range(65536))]


@pytest.mark.parametrize("kind", [integer, partial(integer, bits=64), real, dims, ends])
@pytest.mark.parametrize("text", ["(1" + " " * 10**6, " " * 10**6, "1" * 10**6, "1." + "1" * 10**6, "(" + "1," * 10**6])
def test_long_texts_are_refused_in_linear_time(kind, text):
    with pytest.raises(ValueError, match="number"):
        kind(text + "x")


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (dims, "(2, 3)", (2, 3)),
        (dims, " [2L,-3 , ] ", (2, -3)),
        (dims, "( )", ()),
        (dims, "(1,)", (1,)),
        (dims, "7", (7,)),
        (ends, "(None, 3L)", (None, 3)),
        (ends, "None,", (None,)),
        (ends, " ( 1 , ) ", (1,)),
        (ends, "", ()),
        (integer, " +7L ", 7),
        (real, "-1.5e-3f", -1.5e-3),
        (real, ".5", 0.5),
        (real, "2.", 2.0),
        (real, "-inf", -math.inf),
        (real, "infinityf", math.inf),
        (real, "1e5", 1e5),
    ],
)
def test_texts_that_are_read(kind, text, expected):
    assert kind(text) == expected


@pytest.mark.parametrize("kind", [dims, ends])
@pytest.mark.parametrize("text", ["(,)", "(1 2)", "(1,,2)", "(1.5)", "x", "(1e3,)", "(\u0661,)", f"({2**63},)"])
def test_tuples_that_are_none(kind, text):
    with pytest.raises(ValueError, match="number"):
        kind(text)


def test_a_hidden_output_is_counted_and_not_computed():
    """Files count the mask of a dropout. A head or an input that points there cannot be run."""
    document = json.loads(mx.sym.Dropout(mx.sym.var("x", shape=(2, 3)), name="drop").tojson())
    document["heads"] = [[1, 1, 0]]
    with pytest.raises(mx.MXNetError, match="one of the 1 visible outputs of `drop`, got number 1"):
        mx.sym.load_json(json.dumps(document)).simple_bind(mx.cpu())
    document["nodes"].append({"op": "zeros_like", "name": "it", "inputs": [[1, 1, 0]]})
    document["heads"] = [[2, 0, 0]]
    symbol = mx.sym.load_json(json.dumps(document))
    with pytest.raises(mx.MXNetError):
        symbol.bind(mx.cpu(), {"x": mx.nd.zeros((2, 3))})
