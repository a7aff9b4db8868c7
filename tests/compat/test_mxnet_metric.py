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


def test_f1_counts_as_mxnet_does():
    labels, scores = [label % 2 for label in LABELS], [score[:, :2] for score in SCORES]
    macro, micro = mx.metric.F1(), mx.metric.F1(average="micro")
    for metric, counts in ((macro, [1, 2]), (micro, [27, 27 + 18])):
        metric.update([mx.nd.array(y) for y in labels], [mx.nd.array(s) for s in scores])
        assert metric.num_inst == counts[0]
        metric.update([mx.nd.array(y) for y in labels[:2]], [mx.nd.array(s) for s in scores[:2]])
        assert (metric.num_inst, metric.global_num_inst) == (counts[1], counts[1])
        assert metric.sum_metric == pytest.approx(metric.get()[1] * counts[1])


def slow_mcc(y, p):
    """One minus and plus at a time, from the definition of two classes."""
    n = {
        pair: sum(1 for one in zip(y, p, strict=True) if one == pair)
        for pair in [(a, b) for a in (0, 1) for b in (0, 1)]
    }
    tp, tn, fp, fn = n[1, 1], n[0, 0], n[0, 1], n[1, 0]
    below = 1.0
    for factor in (tp + fp, tp + fn, tn + fp, tn + fn):
        below *= factor or 1
    return (tp * tn - fp * fn) / math.sqrt(below)


def test_correlation_of_classes(peers):
    labels, scores = [label % 2 for label in LABELS], [score[:, :2] for score in SCORES]
    said = [score.argmax(1) for score in scores]
    each = [slow_mcc(list(y), list(p)) for y, p in zip(labels, said, strict=True)]
    assert each[0] == pytest.approx(peers.matthews_corrcoef(labels[0], said[0]))
    assert value(mx.metric.MCC(), labels, scores) == pytest.approx(np.mean(each))
    whole = peers.matthews_corrcoef(np.concatenate(labels), np.concatenate(said))
    assert value(mx.metric.create("mcc", average="micro"), labels, scores) == pytest.approx(whole)
    assert value(mx.metric.create("pcc"), labels, scores) == pytest.approx(whole)
    assert value(mx.metric.PCC()) == pytest.approx(peers.matthews_corrcoef(ALL[0], ALL[1].argmax(1)))
    assert value(mx.metric.PCC(), LABELS, [s.argmax(1) for s in SCORES]) == value(mx.metric.PCC())
    # MXNet leaves out factors of zero, and has no correlation where one side is of one class.
    ones, zeros = [np.ones(9)], [np.eye(2)[np.zeros(9, int)]]
    assert value(mx.metric.MCC(), ones, zeros) == 0
    assert math.isnan(value(mx.metric.PCC(), ones, zeros))
    with pytest.raises(ValueError, match="MCC currently only supports binary"):
        value(mx.metric.MCC())
    with pytest.raises(ValueError, match="classes from 0, got -1"):
        value(mx.metric.PCC(), [np.array([-1, 0])], [np.array([0, 1])])


def test_correlation_of_numbers():
    labels = [RNG.normal(size=(n, 2)) + 50 for n in (4, 5, 1)]
    predictions = [label * 0.5 + RNG.normal(size=label.shape) for label in labels]
    each = [np.corrcoef(y.ravel(), p.ravel())[0, 1] for y, p in zip(labels, predictions, strict=True)]
    assert value(mx.metric.PearsonCorrelation(), labels, predictions) == pytest.approx(np.mean(each), rel=1e-4)
    whole = np.corrcoef(*[np.concatenate([one.ravel() for one in some]) for some in (labels, predictions)])[0, 1]
    micro = mx.metric.create("pearsonr", average="micro")
    assert value(micro, labels, predictions) == pytest.approx(whole, rel=1e-4)
    assert (micro.num_inst, micro.get_global()[1]) == (3, micro.get()[1])
    with pytest.raises(ValueError, match=r"labels \(2,\) does not match"):
        micro.update([mx.nd.ones(2)], [mx.nd.ones((2, 1))])


def test_recent_and_all():
    """`reset_local` forgets what `get` returns, and not what `get_global` does."""
    several = mx.metric.create(
        ["acc", "mcc", "pcc", mx.metric.PearsonCorrelation(average="micro"), mx.metric.F1(), "mse"]
    )
    several.add(mx.metric.Perplexity(None))
    labels, scores = [np.array([0, 1, 1]), np.array([1, 0, 0])], [SCORES[0][:3, :2], SCORES[1][:3, :2]]
    for metric in several.metrics:
        one_sided = isinstance(metric, (mx.metric.PearsonCorrelation, mx.metric.MSE))
        given = [s[:, 1] for s in scores] if one_sided else scores
        batches = [([mx.nd.array(y)], [mx.nd.array(p)]) for y, p in zip(labels, given, strict=True)]
        fresh, whole = mx.metric.create(metric.get_config()), mx.metric.create(metric.get_config())
        metric.update(*batches[0])
        metric.reset_local()
        assert math.isnan(metric.get()[1])
        metric.update(*batches[1])
        fresh.update(*batches[1])
        for batch in batches:
            whole.update(*batch)
        assert metric.get() == fresh.get() != whole.get()
        assert metric.get_global() == pytest.approx(whole.get()) or metric.get_global()[1] == pytest.approx(
            whole.get()[1]
        )
        assert metric.get_global_name_value() == [metric.get_global()]
    several.reset_local()
    assert np.isnan(several.get()[1]).all()
    assert not np.isnan(several.get_global()[1]).any()
    several.reset()
    assert np.isnan(several.get_global()[1]).all()


def test_configurations():
    assert mx.metric.Accuracy(axis=2, output_names=["p"]).get_config() == {
        "metric": "Accuracy", "name": "accuracy", "output_names": ["p"], "label_names": None, "axis": 2,
    }  # fmt: skip
    made = mx.metric.create(
        **mx.metric.create(["acc", mx.metric.TopKAccuracy(3), mx.metric.F1(average="micro")]).get_config()
    )
    assert [metric.name for metric in made.metrics] == ["accuracy", "top_k_accuracy_3", "f1"]
    assert (made.metrics[1].top_k, made.metrics[2].average) == (3, "micro")
    assert set(mx.metric.PCC().get_config()) == {"metric", "name", "output_names", "label_names"}
    with pytest.raises(NotImplementedError, match="keep its function"):
        mx.metric.np(lambda y, p: 1.0).get_config()


def test_a_metric_of_a_script(monkeypatch):
    monkeypatch.setattr(mx.metric, "_CLASSES", dict(mx.metric._CLASSES))

    @mx.metric.register
    @mx.metric.alias("late", "Later")
    class Lateness(mx.metric.EvalMetric):
        def update(self, labels, preds):
            self.sum_metric += 3
            self.num_inst += 2

    for name in ("lateness", "late", "later"):
        made = mx.metric.create(name, "lateness")
        made.update([], [])
        assert made.get() == made.get_global() == ("lateness", 1.5)


def test_losses_of_other_frameworks():
    for name in ("torch", "caffe"):
        made = mx.metric.create(name)
        made.update(None, [mx.nd.array([1, 3])])
        assert made.get() == (name, 2.0)


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
    with pytest.raises(ValueError, match="expected an initializer of bilinear, constant"):
        mx.init.create("nothing")
