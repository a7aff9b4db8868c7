"""Metrics and initializers."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

import feedline.mxnet as mx

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def peers():
    """scikit-learn's metrics: imported by the one process that runs these tests, not by all that collect them."""
    from sklearn import metrics

    return metrics


LABELS = [RNG.integers(0, 4, 9) for _ in range(3)]
SCORES = [np.exp(x) / np.exp(x).sum(1, keepdims=True) for x in RNG.normal(size=(3, 9, 4))]


def value(metric, labels=LABELS, predictions=SCORES):
    """After a reset, which must undo all before."""
    metric.update([mx.nd.array(labels[0])], [mx.nd.array(predictions[0])])
    metric.reset()
    assert math.isnan(np.ravel(metric.get()[1])[0])
    for label, prediction in zip(labels, predictions, strict=True):
        metric.update([mx.nd.array(label)], [mx.nd.array(prediction)])
    return metric.get()[1]


ALL = np.concatenate(LABELS), np.concatenate(SCORES)


def test_classification(peers):
    assert value(mx.metric.Accuracy()) == peers.accuracy_score(ALL[0], ALL[1].argmax(1))
    assert value(mx.metric.TopKAccuracy(2)) == peers.top_k_accuracy_score(ALL[0], ALL[1], k=2)
    for metric in (mx.metric.CrossEntropy(), mx.metric.NegativeLogLikelihood()):
        assert value(metric) == pytest.approx(peers.log_loss(*ALL), rel=1e-6)
    assert value(mx.metric.Perplexity(None)) == pytest.approx(math.exp(peers.log_loss(*ALL)), rel=1e-6)
    kept = ALL[0] != 1
    some = math.exp(-np.log(ALL[1][kept, ALL[0][kept]]).mean())
    assert value(mx.metric.Perplexity(1)) == pytest.approx(some, rel=1e-6)
    turned = [np.moveaxis(s.reshape(3, 3, 4), -1, 1) for s in SCORES]
    assert value(mx.metric.Perplexity(1, axis=1), LABELS, turned) == pytest.approx(some, rel=1e-6)
    classes = [s.argmax(1) for s in SCORES]
    assert value(mx.metric.Accuracy(), LABELS, classes) == value(mx.metric.Accuracy())


def test_f1(peers):
    labels, scores = [label % 2 for label in LABELS], [score[:, :2] for score in SCORES]
    each = [peers.f1_score(y, s.argmax(1)) for y, s in zip(labels, scores, strict=True)]
    assert value(mx.metric.F1(), labels, scores) == pytest.approx(np.mean(each))
    whole = peers.f1_score(np.concatenate(labels), np.concatenate(scores).argmax(1))
    assert value(mx.metric.F1(average="micro"), labels, scores) == pytest.approx(whole)
    with pytest.raises(ValueError, match="binary"):
        value(mx.metric.F1())
    with pytest.raises(ValueError, match="macro or micro"):
        mx.metric.F1(average="some")


def test_regression_and_loss(peers):
    labels, predictions = list(RNG.normal(size=(3, 5))), list(RNG.normal(size=(3, 5)))
    pairs = list(zip(labels, predictions, strict=True))
    for name, peer in (
        ("mae", peers.mean_absolute_error),
        ("mse", peers.mean_squared_error),
        ("rmse", lambda y, p: math.sqrt(peers.mean_squared_error(y, p))),
    ):
        metric = mx.metric.create(name)
        assert metric.name == name
        assert value(metric, labels, predictions) == pytest.approx(np.mean([peer(*pair) for pair in pairs]), rel=1e-6)
        # A column is as good as a row.
        assert value(metric, labels, [p[:, None] for p in predictions]) == pytest.approx(metric.get()[1])
    assert value(mx.metric.Loss(), labels, predictions) == pytest.approx(np.mean(predictions), rel=1e-6)


def test_several_and_custom(peers):
    several = mx.metric.create(["acc", mx.metric.create("ce"), lambda label, prediction: 3.0])
    assert several.get_metric(0).name == "accuracy"
    names, values = [], value(several)
    names = several.get()[0]
    assert names == ["accuracy", "cross-entropy", "custom(<lambda>)"]
    assert values == [value(mx.metric.Accuracy()), value(mx.metric.CrossEntropy()), 3.0]
    assert dict(several.get_name_value()) == dict(zip(names, values, strict=True))
    several.add("mse")
    with pytest.raises(ValueError, match="out of range 0 and 4"):
        several.get_metric(4)

    def count(label, prediction):
        return label.sum(), label.size

    custom = mx.metric.np(count)
    assert value(custom) == ALL[0].mean()
    assert custom.name == "count"
    assert str(custom) == f"EvalMetric: {{'count': {ALL[0].mean()}}}"
    extra = mx.metric.CustomMetric(count, allow_extra_outputs=True)
    extra.update([mx.nd.array([1, 2])], [mx.nd.ones(2), mx.nd.ones(2)])
    assert extra.get()[1] == 1.5
    named = mx.metric.Accuracy(output_names=["p"], label_names=["y"])
    named.update_dict({"z": None, "y": mx.nd.array(LABELS[0])}, {"p": mx.nd.array(SCORES[0]), "q": None})
    assert named.get()[1] == peers.accuracy_score(LABELS[0], SCORES[0].argmax(1))


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="labels 1 does not match shape of predictions 2"):
        mx.metric.Accuracy().update([mx.nd.ones(1)], [mx.nd.ones(1)] * 2)
    with pytest.raises(ValueError, match=r"labels \(3,\) does not match"):
        mx.metric.Accuracy().update([mx.nd.ones(3)], [mx.nd.ones((4, 2))])
    for metric in (mx.metric.CrossEntropy(), mx.metric.Perplexity(None)):
        with pytest.raises(ValueError, match="a label for each of 4 rows, got 3"):
            metric.update([mx.nd.ones(3)], [mx.nd.ones((4, 2))])
    with pytest.raises(ValueError, match="use Accuracy"):
        mx.metric.TopKAccuracy(1)
    with pytest.raises(ValueError, match="expected a metric of acc"):
        mx.metric.create("nothing")


# ---- initializers -------------------------------------------------------------------------------------------


def filled(initializer, name, shape=(300, 40)):
    torch.manual_seed(0)
    a = mx.nd.full(shape, 9.0)
    initializer(name, a)
    return a.asnumpy()


def test_weights():
    for scale in (0.07, 2):
        w = filled(mx.init.Uniform(scale), "fc_weight")
        assert -scale <= w.min() < -0.99 * scale
        assert 0.99 * scale < w.max() <= scale
    w = filled(mx.init.Normal(0.5), "rnn_parameters")
    assert (abs(w.mean()) < 0.02, abs(w.std() - 0.5) < 0.02) == (True, True)
    for factor, fan in (("avg", (300 + 40) / 2), ("in", 40), ("out", 300)):
        bound = math.sqrt(3 / fan)
        w = filled(mx.init.Xavier(factor_type=factor), "w_weight")
        assert 0.99 * bound < w.max() <= bound
        w = filled(mx.init.Xavier("gaussian", factor, 2), "w_weight")
        assert w.std() == pytest.approx(math.sqrt(2 / fan), rel=0.03)
    w = filled(mx.init.Xavier(), "conv_weight", (8, 4, 3, 3))
    assert 0.95 * math.sqrt(3 / 54) < w.max() <= math.sqrt(3 / 54)


def test_others_go_by_name():
    initializer = mx.init.Uniform()
    for name, number in (
        ("fc_bias", 0),
        ("bn_beta", 0),
        ("bn_gamma", 1),
        ("bn_moving_mean", 0),
        ("bn_moving_var", 1),
        ("bn_running_var", 1),
    ):
        assert set(np.unique(filled(initializer, name))) == {number}
    with pytest.raises(ValueError, match="Unknown initialization pattern for data"):
        initializer("data", mx.nd.ones(2))
    with pytest.raises(ValueError, match=r"shape \(2,\): expected two axes"):
        mx.init.Xavier()("w_weight", mx.nd.ones(2))
    with pytest.raises(ValueError, match="uniform or gaussian"):
        mx.init.Xavier("other")
    named = mx.init.InitDesc("data", {"__init__": mx.init.Constant(3).dumps()})
    assert set(np.unique(filled(initializer, named))) == {3}


def test_text_and_back():
    for made in (mx.init.Zero(), mx.init.One(), mx.init.Constant(2.5), mx.init.Normal(2), mx.init.Xavier(magnitude=2)):
        again = mx.init.create(made.dumps())
        assert type(again) is type(made)
        assert again.dumps() == made.dumps()
        assert isinstance(json.loads(made.dumps())[1], dict)
    assert set(np.unique(filled(mx.init.create("ones"), "w_weight"))) == {1}
    assert mx.init.create("uniform", scale=3).dumps() == '["uniform", {"scale": 3}]'
    with pytest.raises(ValueError, match="expected an initializer of constant"):
        mx.init.create("nothing")
