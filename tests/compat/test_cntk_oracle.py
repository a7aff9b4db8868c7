"""Every operator, criterion and metric under CNTK's names against its formula in NumPy: values, gradients and shapes.

The tables are in tests/compat/cntk_cases. A name of the façade that is in no table is an error here.
"""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline.cntk as C  # noqa: E402
from tests.compat.cntk_cases import TABLE, learners  # noqa: E402
from tests.compat.cntk_cases.case import Case, problems  # noqa: E402
from tests.docs.cntk_table import NAMES  # noqa: E402
from tests.oracles.learners import Oracle  # noqa: E402

#: Operators without a formula, and why.
EXCEPTIONS = {
    "as_block": "groups nodes; test_cntk_networks",
    "as_composite": "returns its operand",
    "input": "makes a variable",
    "input_variable": "makes a variable",
    "output_variable": "makes a variable",
    "parameter": "makes a variable",
    "constant": "makes a variable",
    "placeholder": "makes a variable",
    "placeholder_variable": "makes a variable",
    "load_model": "reads a file; test_cntk_networks",
    "user_function": "calls the script; test_cntk_networks",
    "batch_normalization": "has state; the numbers of CNTK are in cntk_numbers.json",
    "random_sample": "draws; test_cntk_ops",
    "random_sample_inclusion_frequency": "test_cntk_old_scripts",
    "optimized_rnnstack": "test_cntk_compositions",
    "hierarchical_softmax_layer": "test_cntk_compositions",
    "sequence.input": "makes a variable",
    "sequence.input_variable": "makes a variable",
}


def operators():
    """Functions of the façade by the name under which scripts call them."""
    found = {}
    for module, prefix in (("ops", ""), ("ops.sequence", "sequence."), ("losses", ""), ("metrics", "")):
        where = C
        for part in module.split("."):
            where = getattr(where, part)
        for name in NAMES[f"cntk.{module}"].importable:
            if inspect.isfunction(getattr(where, name)) and name[0].islower():
                found[prefix + name] = getattr(where, name)
    return found


def test_every_operator_has_a_formula():
    assert set(operators()) - set(TABLE) - set(EXCEPTIONS) == set()
    assert set(TABLE) | set(EXCEPTIONS) == set(operators()), "names that the façade does not have"
    assert set(TABLE) & set(EXCEPTIONS) == set()
    assert all(TABLE.values())


@pytest.mark.parametrize("name", sorted(TABLE))
def test_operators_are_their_formulas(name):
    found = {}
    for i, case in enumerate(TABLE[name]):
        for dtype in case.only or (np.float32, np.float64):
            wrong = problems(C, name, case, dtype)
            if wrong:
                found[f"case {i}, {np.dtype(dtype).name}"] = wrong
    assert found == {}


def test_a_wrong_formula_is_noticed():
    """Of the value, of the gradient, of the shape."""
    x = [[-1.0, 2.0]]
    right = Case([x], lambda x: np.maximum(x, 0), slopes=lambda x: (1.0 * (x > 0),))
    assert problems(C, "relu", right, np.float32) == []
    for wrong, what in (
        (Case([x], lambda x: x, slopes=right.slopes), "value"),
        (Case([x], right.formula, slopes=lambda x: (1.0 * (x < 0),)), "gradient 0"),
        (Case([x], right.formula, slopes=right.slopes, typed=(2, 1)), "shape (2,)"),
        (Case([x], right.formula, slopes=right.slopes, steepness=1), "TypeError"),
    ):
        (found,) = problems(C, "relu", wrong, np.float64)
        assert found.startswith(what)


# ---- learners -------------------------------------------------------------------------------------


def number_at(told, options, samples):
    """Return the number of a schedule after a number of samples, and its minibatch size. None: any size."""
    kind, values = told["kind"], told["values"]
    if kind == "constant":
        return math.exp(-1 / values), 1
    size = options["minibatch_size"] if kind == "number" or told["size"] is None else told["size"]
    if kind == "sample":
        size = 1
    if isinstance(values, list):
        each = [v for many, v in values for _ in range(many)] if isinstance(values[0], tuple) else values
        epoch = 0 if told["epoch"] is None else samples // told["epoch"]  # the arrays do not mark the end of a sweep
        values = each[min(epoch, len(each) - 1)]
    if options.get("use_mean_gradient") and size == 1 and told.get("what") == "lr":
        size = None
    return values, size or None


def by_the_rule(told):
    """Parameters after each minibatch by `tests.oracles.learners`, whose gradients are sums over the samples."""
    options, own = told["options"], told["own"]
    mean = options["minibatch_size"] == 0 or options.get("use_mean_gradient", False)
    rule = Oracle(
        told["rule"],
        learners.START,
        l1=options["l1_regularization_weight"],
        l2=options["l2_regularization_weight"],
        clip=options["gradient_clipping_threshold_per_sample"],
        clip_by="value" if options["gradient_clipping_with_truncation"] else "norm",
        gradients="mean" if mean else "sum",
        average=own.get("need_ave_multiplier", True),
        **{name: own[name] for name in own if name not in ("momentum", "variance_momentum", "need_ave_multiplier")},
    )
    samples, found = 0, []
    for step, count in enumerate(learners.COUNTS):
        rule.options["lr"] = number_at(told["lr"], options, samples)
        for name in {"momentum", "variance_momentum"} & set(own):
            rule.options[name] = number_at(own[name], options, samples)
        # Of the loss: sum of x p' (1, -2).
        rule.update(count, np.outer([1.0, -2.0], learners.data(step).sum(0)))
        samples += count
        found.append(rule.w.copy())
    return found, samples


@pytest.mark.parametrize("rule", learners.RULES)
def test_learners_are_their_rules(rule):
    for told in learners.configurations():
        if told["rule"] == rule:
            found, samples = learners.trained(C, told)
            expected, counted = by_the_rule(told)
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8, err_msg=str(told))
            assert samples == counted


def test_every_learner_has_a_rule():
    made = {name for name in NAMES["cntk.learners"].importable if "parameters" in parameters_of(name)}
    # Of `universal` and `UserLearner` the script is the rule: test_cntk_numbers, test_cntk_train.
    assert made - {"universal", "UserLearner", "Learner"} == set(learners.RULES)


def parameters_of(name):
    item = getattr(C.learners, name)
    return inspect.signature(item).parameters if callable(item) else {}
