"""Symbols have MXNet's names, attributes, shapes and files."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl
import feedline.mxnet as mx


@pytest.fixture(autouse=True)
def fresh_names():
    with mx.name.NameManager():
        yield


def mlp():
    x = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=4, name="fc1")
    x = mx.sym.Activation(x, act_type="relu")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data=x, num_hidden=3), name="softmax")


# ---- names --------------------------------------------------------------------------------------------------


def test_automatic_names_count_what_was_called():
    x, y = mx.sym.var("x"), mx.sym.var("y")
    made = [
        mx.sym.sum_axis(x, axis=1),
        mx.sym.sum(x),
        mx.sym.sum(x),
        mx.sym.Flatten(x),
        mx.sym.flatten(x),
        x + y,
        x - 1,
        2 - x,
        x * y,
        x / y,
        1 / x,
        x**2,
        2**x,
        -x,
        x > y,
        x == 1,
        abs(x),
        mx.sym.maximum(x, 3),
        mx.sym.maximum(x, y),
        x % 2,
        x.reshape((1, -1)),
    ]
    assert " ".join(symbol.name for symbol in made) == (
        "sum_axis0 sum0 sum1 flatten0 flatten1 _plus0 _minusscalar0 _rminusscalar0 _mul0 _div0 _rdivscalar0 "
        "_powerscalar0 _rpowerscalar0 _mulscalar0 _greater0 _equal_scalar0 abs0 _maximumscalar0 _maximum0 _modscalar0 "
        "reshape0"
    )
    ops = [json.loads(symbol.tojson())["nodes"][-1]["op"] for symbol in made]
    assert ops[:2] + ops[5:8] == ["sum", "sum", "elemwise_add", "_minus_scalar", "_rminus_scalar"]


def test_a_prefix_precedes_all_names_but_variables():
    with mx.name.Prefix("net_"):
        x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2)
        y = mx.sym.FullyConnected(x, num_hidden=2, name="fc")
    assert y.list_arguments() == [
        "data",
        "net_fullyconnected0_weight",
        "net_fullyconnected0_bias",
        "net_fc_weight",
        "net_fc_bias",
    ]
    assert mx.sym.exp(y).name == "exp0"


def test_lists():
    net = mlp()
    assert net.list_outputs() == ["softmax_output"]
    assert net.list_arguments() == [
        "data",
        "fc1_weight",
        "fc1_bias",
        "fullyconnected0_weight",
        "fullyconnected0_bias",
        "softmax_label",
    ]
    inside = net.get_internals()
    assert inside.list_outputs()[3:5] == ["fc1_output", "activation0_output"]
    assert inside["fc1_output"].list_arguments() == ["data", "fc1_weight", "fc1_bias"]
    bn = mx.sym.BatchNorm(net, name="bn")
    assert bn.list_auxiliary_states() == ["bn_moving_mean", "bn_moving_var"]
    assert bn.list_inputs() == [*net.list_arguments(), "bn_gamma", "bn_beta", *bn.list_auxiliary_states()]
    assert [s.name for s in net.get_children()] == ["fullyconnected0", "softmax_label"]
    assert mx.sym.var("x").get_children() is None
    halves = mx.sym.split(mx.sym.var("x"), num_outputs=2, name="halves")
    assert halves.list_outputs() == ["halves_output0", "halves_output1"]
    assert [one.list_outputs()[0] for one in halves] == halves.list_outputs()
    group = mx.sym.Group([net, halves[1]])
    assert group.list_outputs() == ["softmax_output", "halves_output1"]
    assert (group.name, net.name, len(group)) == (None, "softmax", 2)
    assert repr(group) == "<Symbol group [softmax, halves]>"
    with pytest.raises(IndexError, match="0 to 1"):
        group[2]
    with pytest.raises(ValueError, match="0 outputs with name 'x'"):
        group["x"]


def test_outputs_are_called_what_mxnet_calls_them():
    """Outputs have the operator's names, or numbers if there are several, including hidden ones."""
    x = mx.sym.var("x")
    for symbol, names in (
        (mx.sym.BatchNorm(x, name="it"), ["output"]),
        (mx.sym.BatchNorm(x, output_mean_var=True, name="it"), ["output", "mean", "var"]),
        (mx.sym.GroupNorm(x, output_mean_var=True, name="it"), ["output", "mean", "std"]),
        (mx.sym.RNN(x, state_size=2, num_layers=1, mode="gru", state_outputs=True, name="it"), "output state_output"),
        (
            mx.sym.RNN(x, state_size=2, num_layers=1, mode="lstm", state_outputs=True, name="it"),
            "output state_output statecell_output",
        ),
        (mx.sym.split(x, num_outputs=1, name="it"), ["output0"]),
        (mx.sym.Dropout(x, name="it"), ["output"]),
        (mx.sym.sort(x, name="it"), ["output0"]),
        (mx.sym.topk(x, name="it"), ["output"]),
        (mx.sym.topk(x, ret_typ="value", name="it"), ["output0"]),
        (mx.sym.topk(x, ret_typ="both", name="it"), ["output0", "output1"]),
    ):
        expected = names.split() if isinstance(names, str) else names
        assert symbol.list_outputs() == [f"it_{name}" for name in expected]


def test_operators_are_methods_too():
    x = mx.sym.var("x")
    for method, function in (
        (lambda: x.reshape((2, -1)), lambda: mx.sym.reshape(x, shape=(2, -1))),
        (lambda: x.sum(axis=1, keepdims=True), lambda: mx.sym.sum(x, axis=1, keepdims=True)),
        (lambda: x.broadcast_axes(axis=1, size=3), lambda: mx.sym.broadcast_axes(x, axis=1, size=3)),
        (lambda: x.astype("float16"), lambda: mx.sym.cast(x, dtype="float16")),
    ):
        with mx.name.NameManager():
            mine = method().tojson()
        with mx.name.NameManager():
            assert mine == function().tojson()


def test_inputs_follow_from_settings():
    x = mx.sym.var("x")
    once = mx.sym.UpSampling(x, scale=2, sample_type="bilinear", num_filter=3, name="up")
    assert once.list_arguments() == ["x", "up_weight"]
    assert once.attr_dict()["up_weight"]["__init__"] == '["bilinear", {}]'
    assert once.infer_shape(x=(1, 3, 4, 4))[0] == [(1, 3, 4, 4), (3, 1, 4, 4)]
    nearest = mx.sym.UpSampling(x, mx.sym.var("y"), scale=2, sample_type="nearest")
    assert nearest.list_arguments() == ["x", "y"]
    assert nearest.list_attr()["num_args"] == "2"
    assert mx.sym.Crop(x, num_args=2, name="part").list_arguments() == ["x", "part_arg1"]
    loss = mx.sym.CTCLoss(x, use_label_lengths=True, name="ctc")
    assert loss.list_arguments() == ["x", "ctc_label", "ctc_label_lengths"]
    assert mx.sym.SequenceMask(x, name="mask").list_arguments() == ["x"]


def test_inputs_may_be_given_in_any_form():
    x, w = mx.sym.var("x"), mx.sym.var("w")
    for net in (
        mx.sym.FullyConnected(x, w, num_hidden=2, name="f"),
        mx.sym.FullyConnected(data=x, weight=w, num_hidden=2, name="f"),
        mx.sym.FullyConnected(x, weight=w, num_hidden=2, name="f"),
        mx.sym.FullyConnected(x, w, None, 2, name="f"),
    ):
        assert net.list_arguments() == ["x", "w", "f_bias"]
    assert mx.sym.FullyConnected(num_hidden=1, name="f").list_arguments() == ["f_data", "f_weight", "f_bias"]
    bare = mx.sym.FullyConnected(x, num_hidden=1, no_bias=True, name="f")
    assert bare.list_arguments() == ["x", "f_weight"]
    for joined in (mx.sym.Concat(x, w, dim=0), mx.sym.concat(*[x, w], dim=0), mx.sym.Concat(x, arg1=w, dim=0)):
        assert joined.list_arguments() == ["x", "w"]
        assert joined.attr("num_args") == "2"
    assert mx.sym.slice_axis(x, 1, 0, 2).list_attr() == {"axis": "1", "begin": "0", "end": "2"}


def test_what_does_not_fit_is_refused():
    x = mx.sym.var("x")
    for call, error, message in (
        (lambda: mx.sym.FullyConnected(x), mx.MXNetError, "Required parameter num_hidden"),
        (lambda: mx.sym.FullyConnected(x, num_hidden="many"), mx.MXNetError, "Invalid Parameter format for num_hidden"),
        (lambda: mx.sym.FullyConnected(x, hidden=3, num_hidden=1), mx.MXNetError, "Cannot find argument 'hidden'"),
        (lambda: mx.sym.Activation(x, act_type="step"), mx.MXNetError, "one of relu, sigmoid"),
        (lambda: mx.sym.Pooling(x, kernel="big"), mx.MXNetError, "tuple of whole numbers"),
        (lambda: mx.sym.FullyConnected(x, 3, num_hidden=1), TypeError, "num_hidden once"),
        (lambda: mx.sym.FullyConnected(data=3, num_hidden=1), TypeError, "a Symbol for data, got int"),
        (lambda: mx.sym.FullyConnected(x, data=x, num_hidden=1), TypeError, "each once, got one for data"),
        (lambda: mx.sym.Concat(x, 3), TypeError, "a Symbol for input, got int"),
        (lambda: mx.sym.exp(mx.sym.split(x, num_outputs=2, name="s")), mx.MXNetError, "one output for data, got 2"),
        (lambda: mx.sym.BatchNorm(x, moving_mean=x * 2), mx.MXNetError, "a variable for the state moving_mean"),
        (lambda: mx.sym.Group([]), TypeError, "list of symbols"),
        (lambda: mx.sym.Group([x, 3]), TypeError, "list of symbols"),
        (lambda: mx.sym.var(3), TypeError, "string for variable"),
        (lambda: mx.sym.var("v", mood="so so"), ValueError, "__yourattr__"),
        (lambda: mx.sym.var("v", dtype="complex64"), TypeError, "complex64"),
        (lambda: mx.AttrScope(a=1), ValueError, "need to be string"),
        (lambda: x + "one", TypeError, "unsupported operand"),
        (lambda: bool(x), mx.MXNetError, "no truth value"),
        (lambda: x.no_such_thing, AttributeError, "no_such_thing"),
        (lambda: mx.sym.maximum(1, 2), TypeError, "Symbol on one side"),
        (lambda: mx.sym.linalg, fl.CompatError, r"torch\.nn"),
        (lambda: mx.sym.contrib.ROIAlign, fl.CompatError, "torchvision"),
    ):
        with pytest.raises(error, match=message):
            call()


# ---- attributes ---------------------------------------------------------------------------------------------


def test_attributes():
    with mx.AttrScope(ctx_group="dev1", __mood__="fine"):
        data = mx.sym.var("data", attr={"__mood__": "angry"}, lr_mult=2, shape=(0, 3), dtype="int32")
        with mx.AttrScope(__mood__="so so"):
            net = mx.sym.FullyConnected(data, num_hidden=4, name="fc", attr={"wd_mult": "3"})
    assert data.list_attr() == {
        "__ctx_group__": "dev1",
        "ctx_group": "dev1",
        "__mood__": "angry",
        "__lr_mult__": "2",
        "lr_mult": "2",
        "__shape__": "(0, 3)",
        "__dtype__": "4",
    }
    assert (data.attr("lr_mult"), data.attr("nothing")) == ("2", None)
    # Made variables carry what their operator carries.
    assert net.attr_dict()["fc_weight"] == net.list_attr()
    assert net.list_attr()["__mood__"] == "so so"
    assert net.attr("wd_mult") == net.attr("__wd_mult__") == "3"
    assert "num_hidden" in json.loads(net.tojson())["nodes"][1]["attrs"]
    data._set_attr(lr_mult="5", color="red")
    assert (data.attr("lr_mult"), data.attr("color")) == ("5", "red")
    with pytest.raises(ValueError, match="only accepts string"):
        data._set_attr(color=3)
    with pytest.raises(mx.MXNetError, match="one node"):
        mx.sym.Group([data, net]).list_attr()


def test_states_and_slopes_have_first_values():
    bn = mx.sym.BatchNorm(mx.sym.var("x"), moving_var=mx.sym.var("v"), name="bn")
    assert {n: a.get("__init__") for n, a in bn.attr_dict().items()} == {
        "bn_moving_mean": '["zero", {}]',
        "v": '["one", {}]',
    }
    slope = mx.sym.LeakyReLU(mx.sym.var("x"), act_type="prelu", name="p").attr_dict()["p_gamma"]["__init__"]
    assert json.loads(slope) == ["Constant", {"value": 0.25}]
    assert mx.sym.var("w", init=mx.init.Normal(2)).attr("__init__") == '["normal", {"sigma": 2}]'


# ---- shapes and types ---------------------------------------------------------------------------------------


def test_shapes_come_from_above_too():
    a, b = mx.sym.var("a"), mx.sym.var("b")
    assert (a + b).infer_shape(a=(2, 3)) == ([(2, 3), (2, 3)], [(2, 3)], [])
    assert (a + b).infer_shape((2, 0), (0, 3)) == ([(2, 3), (2, 3)], [(2, 3)], [])
    state = mx.sym.zeros((0, 4))
    x = mx.sym.FullyConnected(a, num_hidden=4, name="fc")
    arguments, outs, _ = (x + state).infer_shape(a=(5, 7))
    assert (arguments[0], outs) == ((5, 7), [(5, 4)])
    told = mx.sym.var("t", shape=(2, 3))
    assert (told * 2).infer_shape() == ([(2, 3)], [(2, 3)], [])
    assert (told * 2).infer_shape(t=(4, 4)) == ([(4, 4)], [(4, 4)], [])


@pytest.mark.parametrize(
    ("make", "shapes", "expected"),
    {
        "elementwise": (lambda a: mx.sym.sqrt(a), {"a": (0, 10), "above": (5, 0)}, {"a": (5, 10)}),
        "dense": (lambda a: mx.sym.FullyConnected(a, num_hidden=21), {"a": (0, 10), "above": (5, 0)}, {"a": (5, 10)}),
        "weights": (
            lambda a: mx.sym.FullyConnected(a, name="fc", num_hidden=5),
            {"a": (100, 0), "fc_weight": (0, 30), "above": (0, 0)},
            {"a": (100, 30), "fc_weight": (5, 30)},
        ),
        "slices": (
            lambda a: mx.sym.SliceChannel(a, num_outputs=10, squeeze_axis=True)[1],
            {"a": (0, 10), "above": (5,)},
            {"a": (5, 10)},
        ),
        "convolution": (
            lambda a: mx.sym.Convolution(a, num_filter=2, kernel=(3, 3), pad=(1, 0)),
            {"a": (0, 4, 0, 0), "above": (5, 2, 8, 6)},
            {"a": (5, 4, 8, 8)},
        ),
        "strides": (  # several lengths have this output's
            lambda a: mx.sym.Convolution(a, num_filter=2, kernel=(3, 3), stride=(2, 1)),
            {"a": (5, 4, 0, 0), "above": (0, 0, 8, 6)},
            {"a": (5, 4, 0, 8)},
        ),
        "join": (
            lambda a: mx.sym.Concat(a, mx.sym.var("b"), dim=1),
            {"a": (0, 10), "b": (0, 0), "above": (2, 15)},
            {"a": (2, 10), "b": (2, 5)},
        ),
        "axes": (lambda a: mx.sym.transpose(a, axes=(1, 0)), {"a": (0, 10), "above": (0, 3)}, {"a": (3, 10)}),
        "product": (lambda a: mx.sym.Flatten(a), {"a": (0, 0, 0), "above": (2, 15)}, {"a": (2, 0, 0)}),
        "sum": (lambda a: mx.sym.sum(a, axis=1), {"a": (0, 0), "above": (3,)}, {"a": (3, 0)}),
    }.values(),
)
def test_lengths_follow_from_outputs(make, shapes, expected):
    net = make(mx.sym.var("a")) + mx.sym.var("above")
    arguments, _, _ = net.infer_shape_partial(**shapes)
    inferred = dict(zip(net.list_arguments(), arguments, strict=True))
    assert {name: inferred[name] for name in expected} == expected


def test_weights_that_no_features_fit():
    net = mx.sym.FullyConnected(mx.sym.var("x"), name="fc", num_hidden=5)
    with pytest.raises(mx.MXNetError, match=r"operator fc: expected data whose features fit weights of shape \(5, 7\)"):
        net.infer_shape(x=(2, 3, 0), fc_weight=(0, 7))


def test_axes_of_broadcast_like():
    x, y = mx.sym.var("x"), mx.sym.var("y")
    net = mx.sym.broadcast_like(x, y, lhs_axes=(0,), rhs_axes=(-1,))
    assert net.infer_shape(x=(1, 9), y=(2, 5))[1] == [(5, 9)]
    assert mx.nd.broadcast_like(mx.nd.ones((1, 2)), mx.nd.ones((3,)), lhs_axes=(0,), rhs_axes=(0,)).shape == (3, 2)
    with pytest.raises(mx.MXNetError, match="equally many lhs_axes and rhs_axes"):
        mx.sym.broadcast_like(x, y, lhs_axes=(0,)).infer_shape(x=(1, 9), y=(2, 5))


def test_sizes_as_arrays():
    assert mx.nd.shape_array(mx.nd.ones((2, 3))).asnumpy().tolist() == [2, 3]
    assert mx.nd.size_array(mx.nd.ones((2, 3))).asnumpy().tolist() == [6]
    assert mx.sym.shape_array(mx.sym.var("x")).infer_type(x="float32")[1] == [np.int64]


def test_operators_of_the_internal_module():
    w, shift = mx.sym.var("w"), mx.sym.var("shift", shape=(1,))
    same = mx.sym._internal._identity_with_attr_like_rhs(mx.sym.broadcast_add(w, shift), w)
    net = mx.sym.FullyConnected(mx.sym.var("x"), same, num_hidden=11, no_bias=True)
    arguments, _, _ = net.infer_shape(x=(7, 100))
    assert dict(zip(net.list_arguments(), arguments, strict=True))["w"] == (11, 100)


def test_shapes_that_are_not_known():
    net = mlp()
    with pytest.warns(UserWarning, match=r"Cannot decide shape(?s:.*)\n\tdata: \(\)\n\tfc1_weight: \(\)"):
        assert net.infer_shape() == (None, None, None)
    arguments, outs, _ = net.infer_shape_partial(data=(0, 7))
    assert dict(zip(net.list_arguments(), arguments, strict=True)) == {
        "data": (0, 7),
        "fc1_weight": (4, 7),
        "fc1_bias": (4,),
        "fullyconnected0_weight": (3, 4),
        "fullyconnected0_bias": (3,),
        "softmax_label": (),
    }
    assert outs == [(0, 3)]
    many = mx.sym.add_n(*[mx.sym.var(f"v{i:02}") for i in range(15)])
    with pytest.warns(UserWarning, match=r"v09: \(\)\n\t\.\.\.$"):
        many.infer_shape()


def test_shapes_that_contradict():
    net = mlp()
    with pytest.raises(mx.MXNetError, match=r"operator fc1: Shape inconsistent at input 1, Provided = \[4,5\]"):
        net.infer_shape(data=(2, 7), fc1_weight=(4, 5))
    with pytest.raises(mx.MXNetError, match=r"name nope not found\. Candidate arguments: \[0\]data \[1\]fc1_weight"):
        net.infer_shape(nope=(2, 7))
    with pytest.raises(ValueError, match="positional or kwargs"):
        net.infer_shape((2, 7), data=(2, 7))
    x = mx.sym.var("x")
    for bad, shape in (
        (mx.sym.Convolution(x, kernel=(9, 9), num_filter=1), (1, 1, 4, 4)),
        (mx.sym.Convolution(x, kernel=(1, 1), num_filter=3, num_group=2), (1, 2, 4, 4)),
        (mx.sym.Pooling(x, kernel=(9, 9)), (1, 1, 4, 4)),
        (mx.sym.Reshape(x, shape=(5, -1)), (2, 3)),
        (mx.sym.transpose(x, axes=(0, 0)), (2, 3)),
        (mx.sym.slice_axis(x, axis=2, begin=0, end=1), (2, 3)),
        (mx.sym.slice(x, begin=(0,), end=(0,)), (2, 3)),
        (mx.sym.split(x, num_outputs=2, axis=1), (2, 3)),
        (mx.sym.squeeze(x, axis=0), (2, 3)),
        (mx.sym.dot(x, x), (2, 3)),
        (mx.sym.batch_dot(x, x), (2, 3)),
        (mx.sym.broadcast_to(x, shape=(4, 4)), (2, 3)),
        (mx.sym.sum(x, axis=5), (2, 3)),
    ):
        with pytest.raises(mx.MXNetError, match=f"Error in operator {bad.name}"):
            bad.infer_shape(x=shape)


def test_types():
    word = mx.sym.Embedding(mx.sym.var("word"), input_dim=4, output_dim=3, name="e")
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(word, num_hidden=2, name="fc"), name="s")
    arguments, outs, _ = net.infer_type(word="int32")
    assert dict(zip(net.list_arguments(), arguments, strict=True)) == {
        "word": np.int32,
        "e_weight": np.float32,
        "fc_weight": np.float32,
        "fc_bias": np.float32,
        "s_label": np.float32,
    }
    assert outs == [np.float32]
    assert mlp().infer_type() == (None, None, None)
    cast = mx.sym.FullyConnected(mx.sym.Cast(mx.sym.var("x"), dtype="float32"), num_hidden=2)
    assert cast.infer_type_partial() == ([None, np.float32, np.float32], [np.float32], [])
    assert mlp().infer_type(data=np.float16)[1] == [np.float16]
    assert mx.sym.Cast(mx.sym.var("x"), dtype="int32").infer_type(x="float64")[1] == [np.int32]
    with pytest.raises(mx.MXNetError, match="one element type for inputs and outputs, got float32, float64"):
        mlp().infer_type(data="float32", fc1_weight="float64")


# ---- composition, files -------------------------------------------------------------------------------------


def test_batches_of_halves_are_normalised_in_floats():
    """As in MXNet, statistics and scales of float16 data are float32, and the result is float16 again."""
    net = mx.sym.BatchNorm(mx.sym.var("x"), name="bn")
    for kind, other in (("float16", "float32"), ("float64", "float64")):
        arguments, outputs, states = net.infer_type(x=kind)
        assert [np.dtype(t).name for t in (*arguments, *outputs, *states)] == [kind, other, other, kind, other, other]
    with pytest.raises(mx.MXNetError, match="expected float32 for bn_gamma, got float16"):
        net.infer_type(x="float16", bn_gamma="float16")
    executor = net.simple_bind(mx.cpu(), x=(2, 3), type_dict={"x": "float16"})
    assert executor.forward(is_train=True)[0].dtype == np.float16
    assert executor.aux_dict["bn_moving_mean"].dtype == np.float32


def test_composition():
    first = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="a")
    second = mx.sym.FullyConnected(mx.sym.var("data2"), num_hidden=3, name="b")
    joined = second(data2=first, name="whole")
    assert joined.list_arguments() == ["data", "a_weight", "a_bias", "b_weight", "b_bias"]
    assert joined.list_outputs() == ["whole_output"]
    assert second.list_arguments()[0] == "data2"  # a copy was changed
    assert second(first).list_arguments() == joined.list_arguments()
    with pytest.raises(ValueError, match="a variable among data2"):
        second(nope=first)
    with pytest.raises(TypeError, match="not both"):
        second(first, data2=first)
    with pytest.raises(TypeError, match="Symbol of one output"):
        second(3)
    for twin in (copy.copy(second), copy.deepcopy(second), pickle.loads(pickle.dumps(second))):
        assert twin.tojson() == second.tojson()
        twin._set_attr(__mood__="other")
        assert second.attr("__mood__") is None


LEAVES = st.sampled_from(["a", "b", "c"])


@st.composite
def networks(draw):
    """Networks of elementwise and structural operators, with shared parts and several outputs."""
    pool = [mx.sym.var(name) for name in "abc"]
    for _ in range(draw(st.integers(1, 8))):
        x, y = draw(st.sampled_from(pool)), draw(st.sampled_from(pool))
        kind = draw(st.integers(0, 6))
        if kind == 0:
            pool.append(x + y)
        elif kind == 1:
            pool.append(mx.sym.FullyConnected(x, num_hidden=draw(st.integers(1, 3))))
        elif kind == 2:
            pool.extend(mx.sym.split(x, num_outputs=2))
        elif kind == 3:
            pool.append(mx.sym.BatchNorm(x, fix_gamma=draw(st.booleans())))
        elif kind == 4:
            pool.append(mx.sym.Concat(x, y, x, dim=0))
        elif kind == 5:
            pool.append(x * draw(st.floats(-2, 2)))
        else:
            pool.append(mx.sym.Dropout(x, attr={"lr_mult": "2"}))
    return mx.sym.Group(draw(st.lists(st.sampled_from(pool), min_size=1, max_size=3)))


@given(networks())
def test_what_is_read_back_is_what_was_written(net):
    text = net.tojson()
    again = mx.sym.load_json(text)
    assert again.tojson() == text == copy.copy(net).tojson()
    assert again.list_arguments() == net.list_arguments()
    assert again.list_outputs() == net.list_outputs()
    assert again.attr_dict() == net.attr_dict()
    found = json.loads(text)
    assert found["arg_nodes"] == [i for i, node in enumerate(found["nodes"]) if node["op"] == "null"]
    for i, node in enumerate(found["nodes"]):
        for number, output, _ in node["inputs"]:
            assert number < i
            assert output < found["node_row_ptr"][number + 1] - found["node_row_ptr"][number]


@given(networks(), st.tuples(st.sampled_from([2, 4]), st.sampled_from([2, 4])))
def test_inference_agrees_with_the_run(net, shape):
    try:
        told = {name: shape for name in net.list_arguments() if name in "abc"}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            executor = net.simple_bind(mx.cpu(), **told)
    except mx.MXNetError:
        return  # parts that do not fit each other
    _, outs, _ = net.infer_shape(**told)
    assert [o.shape for o in executor.forward()] == outs


def test_files(tmp_path):
    net = mlp()
    net.save(str(tmp_path / "net.json"))
    assert mx.sym.load(str(tmp_path / "net.json")).tojson() == net.tojson()
    with pytest.raises(TypeError, match="string"):
        net.save(3)
    with pytest.raises(TypeError, match="string"):
        mx.sym.load_json(b"{}")
    with pytest.raises(OSError, match="nothing"):
        mx.sym.load(str(tmp_path / "nothing"))


def test_files_of_before_1_0():
    """Attributes were called `param` and `attr` then, and entries had two numbers."""
    text = json.dumps(
        {
            "nodes": [
                {"op": "null", "param": {}, "name": "data", "inputs": [], "backward_source_id": -1},
                {"op": "null", "param": {}, "name": "fc_weight", "inputs": [], "attr": {"lr_mult": "2"}},
                {
                    "op": "FullyConnected",
                    "param": {"no_bias": "True", "num_hidden": "4"},
                    "name": "fc",
                    "inputs": [[0, 0], [1, 0]],
                },
            ],
            "arg_nodes": [0, 1],
            "heads": [[2, 0]],
        }
    )
    net = mx.sym.load_json(text)
    assert net.infer_shape(data=(2, 3))[0] == [(2, 3), (4, 3)]
    assert net.attr_dict()["fc_weight"]["lr_mult"] == "2"


def test_files_may_use_other_names_of_operators():
    """Such as the name before an operator was renamed. Written again they have today's."""
    text = mx.sym.CTCLoss(mx.sym.var("x"), name="ctc").tojson()
    old = mx.sym.load_json(text.replace('"CTCLoss"', '"_contrib_ctc_loss"'))
    assert old.tojson() == text


def test_texts_that_are_no_symbols():
    good = json.loads(mlp().tojson())
    for change, message in (
        (lambda t: t.pop("nodes"), "with nodes and heads"),
        (lambda t: t["nodes"][3].update(op="Teleport"), "Operator Teleport is not registered: node 3, `fc1`"),
        (lambda t: t["nodes"][3].update(inputs=[[7, 0, 0]]), "node 3 to have op, name and earlier nodes as inputs"),
        (lambda t: t["nodes"][3].update(inputs=[[0, 5, 0]]), "node 3 to have op"),
        (lambda t: t["nodes"][3].update(inputs=[[-1, 0, 0]]), "node 3 to have op"),
        (lambda t: t["nodes"][3].update(inputs=[[0, 0, 0]]), "expected inputs data, weight, bias for node 3"),
        (lambda t: t["nodes"][3].pop("attrs"), "Required parameter num_hidden"),
        (lambda t: t.update(heads=[[99, 0, 0]]), "heads among the"),
    ):
        text = copy.deepcopy(good)
        change(text)
        with pytest.raises(mx.MXNetError, match=message):
            mx.sym.load_json(json.dumps(text))
    with pytest.raises(mx.MXNetError, match="expected the JSON text"):
        mx.sym.load_json("not json")


@pytest.mark.parametrize("shape", [(-1, 4), "ab", (2.5, 4), 4, (None, 4)])
def test_shapes_that_are_none(shape):
    """Duplicate names are reported wherever they occur, and nothing is inferred for them."""
    net = mlp()
    for use in (
        lambda: net.infer_shape(data=shape),
        lambda: net.infer_shape_partial(shape),
        lambda: net.simple_bind(mx.cpu(), data=shape),
        lambda: mx.viz.print_summary(net, shape={"data": shape}),
    ):
        with pytest.raises(mx.MXNetError, match="expected a shape"):
            use()


def test_shapes_may_be_arrays():
    """Lists, and NumPy's numbers, are shapes of plain numbers afterwards."""
    (data, *_), _, _ = mlp().infer_shape(data=list(np.array([2, 4])))
    assert data == (2, 4)
    assert all(type(length) is int for length in data)


def test_shapes_of_a_recurrence_are_known_without_running_it(monkeypatch):
    """Torch goes through it step by step, and an unknown number of steps is tried as a million."""

    def run(*args):
        raise AssertionError("it was run")

    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        monkeypatch.setattr(torch, name, run)
        for both, layers in ((False, 1), (True, 2)):
            cell = mx.sym.RNN(
                mx.sym.var("x"), state_size=7, num_layers=layers, bidirectional=both, mode=name, state_outputs=True
            )
            states = [(layers * (1 + both), 5, 7)] * (2 if name == "lstm" else 1)
            assert cell.infer_shape(x=(3, 5, 11))[1] == [(3, 5, 7 * (1 + both)), *states]
            leaves = dict(zip(cell.list_arguments(), cell.infer_shape(x=(3, 5, 11))[0], strict=True))
            assert cell.infer_shape_partial(**leaves | {"x": (0, 5, 11)})[1] == [(0, 5, 7 * (1 + both)), *states]


def test_shapes_of_dense_layers_are_known_without_the_compiler_of_torch():
    program = (
        "import sys, feedline.mxnet as mx\n"
        "h = mx.sym.Activation(mx.sym.FullyConnected(mx.sym.var('x'), num_hidden=8), act_type='relu')\n"
        "y = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(h, num_hidden=3, flatten=False), name='softmax')\n"
        "print(y.infer_shape(x=(4, 2, 3))[1])\n"
        "assert not {'torch._dynamo', 'sympy'} & sys.modules.keys()\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "[(4, 3)]\n"), run.stderr
