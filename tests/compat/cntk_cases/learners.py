"""Learners under CNTK's names: calls as scripts make them, and the numbers that their rules have at each minibatch.

`configurations` are drawn. `trained` makes a few updates by a trainer, under CNTK or the façade, and `Told` has the
inputs with which `tests.oracles.learners.Oracle` makes the same ones.
"""

import random

import numpy as np

COUNTS = (4, 1, 3, 8, 2, 5)  # samples of the minibatches
START = np.array([[0.5, -0.25, 0.0], [1.5, 0.75, -1.0]])
RULES = ("sgd", "momentum_sgd", "nesterov", "adagrad", "adadelta", "fsadagrad", "adam", "rmsprop")


def data(step):
    """Samples (count, 3) and weights (2,) of a loss whose gradient does not depend on the parameters."""
    rng = np.random.RandomState(step)
    return np.round(rng.normal(size=(COUNTS[step], 3)) * 4) / 4


def configurations(count=120):
    r = random.Random(5)
    found = []
    for number in range(count):
        rule = RULES[number % len(RULES)]
        found.append({"rule": rule, "lr": _schedule(r, 0.1, "lr"), "options": _options(r), "own": _own(r, rule)})
    return found


def _schedule(r, number, what):
    """A number, a list by epoch, or pairs of epochs and numbers, with a reference size, or by sample."""
    kind = r.choice(["number", "schedule", "list", "pairs", "sample"])
    values = number if kind in ("number", "schedule", "sample") else [number, number / 2, number / 4]
    if kind == "pairs":
        values = [(2, number), (1, number / 2), (1, number / 4)]
    return {"kind": kind, "values": values, "size": r.choice([None, 1, 4]), "epoch": r.choice([None, 3]), "what": what}


def _options(r):
    options = {
        "l1_regularization_weight": r.choice([0.0, 0.0, 0.05]),
        "l2_regularization_weight": r.choice([0.0, 0.0, 0.1]),
        "gradient_clipping_threshold_per_sample": r.choice([float("inf"), 0.3]),
        "gradient_clipping_with_truncation": r.random() < 0.5,
        "minibatch_size": r.choice([None, None, 0, 1, 4]),
    }
    if options["minibatch_size"] is None and r.random() < 0.2:
        options["use_mean_gradient"] = True
    return options


def _own(r, rule):
    momentum = {"momentum": _momentum(r), "unit_gain": r.random() < 0.5}
    if rule in ("momentum_sgd", "nesterov"):
        return momentum
    if rule in ("fsadagrad", "adam"):
        momentum["variance_momentum"] = _momentum(r)
        if rule == "adam":
            momentum.update(adamax=r.random() < 0.5, epsilon=r.choice([1e-8, 0.1]))
        return momentum
    if rule in ("adagrad", "rmsprop"):
        own = {"need_ave_multiplier": r.random() < 0.5}
        if rule == "rmsprop":
            own.update(gamma=r.choice([0.5, 0.95]), inc=1.5, dec=0.5, max=r.choice([0.03, 10.0]), min=0.001)
        return own
    return {"rho": r.choice([0.5, 0.95]), "epsilon": r.choice([1e-8, 0.01])} if rule == "adadelta" else {}


def _momentum(r):
    kind = r.choice(["number", "schedule", "list", "constant", "sample"])
    values = {"constant": 20.0, "list": [0.9, 0.5]}.get(kind, r.choice([0.0, 0.5, 0.9]))
    return {"kind": kind, "values": values, "size": r.choice([None, 1, 4]), "epoch": r.choice([None, 3])}


def made(C, told, momentum=False):
    """The schedule as CNTK's functions make it."""
    values, size, epoch = told["values"], told["size"], told["epoch"]
    if told["kind"] == "number":
        return values
    if told["kind"] == "constant":
        return C.momentum_as_time_constant_schedule(values)
    if told["kind"] == "sample":
        of = C.momentum_schedule_per_sample if momentum else C.learning_parameter_schedule_per_sample
        return of(values)
    of = C.momentum_schedule if momentum else C.learning_parameter_schedule
    return of(values, minibatch_size=size, epoch_size=epoch if isinstance(values, list) else None)


def learner(C, told, parameters):
    own = dict(told["own"])
    for name in ("momentum", "variance_momentum"):
        if name in own:
            own[name] = made(C, own[name], momentum=True)
    return getattr(C, told["rule"])(parameters, made(C, told["lr"]), **dict(own, **told["options"]))


def trained(C, told):
    """Parameters after each update, and the samples that the learner has seen."""
    x = C.input_variable(3, dtype=np.float64)
    p = C.parameter(init=START, dtype=np.float64)
    z = C.reduce_sum(C.times_transpose(x, p) * C.constant(np.array([1.0, -2.0])))
    made_learner = learner(C, told, [p])
    trainer = C.Trainer(z, (z, None), [made_learner])
    found = []
    for step in range(len(COUNTS)):
        trainer.train_minibatch({x: data(step)})
        found.append(np.array(p.value).tolist())
    return found, made_learner.total_number_of_samples_seen()
