"""The learners' rules as plain NumPy in float64, a parameter at a time, all scalars written out."""

from __future__ import annotations

import numpy as np


class Oracle:
    """One parameter's update rule and state.

    Options are the learners' options. ``lr``, ``momentum`` and ``variance_momentum`` are (number, reference) pairs.
    """

    def __init__(self, rule, parameter, **options):
        self.rule, self.options = rule, options
        self.w = np.array(parameter, np.float64)
        self.state = {name: np.zeros_like(self.w) for name in ("s", "v", "x", "steps", "signs")}
        self.updates, self.count = 0, 0.0

    def update(self, samples, gradient):
        """``gradient`` is the sum over the samples."""
        options, n = self.options, samples
        mean = options.get("gradients", "mean") == "mean"
        g = gradient / n if mean else np.array(gradient, np.float64)
        weight = 1 if mean else n
        limit = options.get("clip", np.inf) * weight
        if options.get("clip_by", "value") == "value":
            g = np.clip(g, -limit, limit)
        elif np.sqrt(np.sum(g * g)) > limit:
            g = g * (limit / np.sqrt(np.sum(g * g)))
        g = g + options.get("l2", 0.0) * weight * self.w
        number, reference = options["lr"]
        if mean:
            rate = number if reference is None else number * n / reference
        else:
            rate = number / n if reference is None else number / reference
        self.w = self.w + getattr(self, self.rule)(g, rate, n)
        shrink = rate * options.get("l1", 0.0) * weight
        self.w = np.sign(self.w) * np.maximum(np.abs(self.w) - shrink, 0)
        self.updates += 1

    def decay(self, which, n):
        number, reference = self.options[which]
        return number if reference is None else number ** (n / reference)

    def gain(self, decay):
        return 1 - decay if self.options.get("unit_gain", True) else 1.0

    def sgd(self, g, rate, n):
        return -rate * g

    def momentum_sgd(self, g, rate, n):
        m = self.decay("momentum", n)
        self.state["s"] = m * self.state["s"] + rate * self.gain(m) * g
        return -self.state["s"]

    def nesterov(self, g, rate, n):
        m = self.decay("momentum", n)
        self.state["s"] = m * self.state["s"] + rate * self.gain(m) * g
        return -(m * self.state["s"] + rate * self.gain(m) * g)

    def adagrad(self, g, rate, n):
        self.state["v"] = self.state["v"] + g * g
        factor = 1 / np.sqrt(self.state["v"] + 1e-16)
        return -rate * g * factor / (factor.mean() if self.options.get("average", True) else 1)

    def adadelta(self, g, rate, n):
        rho, epsilon = self.options.get("rho", 0.95), self.options.get("epsilon", 1e-8)
        self.state["v"] = rho * self.state["v"] + (1 - rho) * g * g
        d = -np.sqrt(self.state["x"] + epsilon) / np.sqrt(self.state["v"] + epsilon) * g
        self.state["x"] = rho * self.state["x"] + (1 - rho) * d * d
        return rate * d

    def adam(self, g, rate, n):
        m, v = self.decay("momentum", n), self.decay("variance_momentum", n)
        t = self.updates + 1
        self.state["s"] = m * self.state["s"] + self.gain(m) * g
        if self.options.get("adamax", False):
            self.state["v"] = np.maximum(v * self.state["v"], np.abs(g))
            return -rate * self.state["s"] / (1 - m**t) / (self.state["v"] + self.options.get("epsilon", 1e-8))
        self.state["v"] = v * self.state["v"] + (1 - v) * g * g
        unbias = np.sqrt(1 - v**t) / (1 - m**t)
        return -rate * self.state["s"] * unbias / (np.sqrt(self.state["v"]) + self.options.get("epsilon", 1e-8))

    def fsadagrad(self, g, rate, n):
        m, v = self.decay("momentum", n), self.decay("variance_momentum", n)
        self.count = v * self.count + (1 - v) * n
        self.state["v"] = v * self.state["v"] + (1 - v) * g * g
        g = np.array(g)
        for i in np.ndindex(g.shape):
            root = np.sqrt(self.state["v"][i])
            g[i] = 0 if root == 0 else g[i] * min(np.sqrt(self.count) / root, 10)
        if m > 0:
            g = self.state["s"] = m * self.state["s"] + self.gain(m) * g
        return -rate * g

    def rmsprop(self, g, rate, n):
        o = {"gamma": 0.95, "inc": 1.2, "dec": 0.7, "max": 10.0, "min": 1e-8} | self.options
        if self.updates == 0:
            self.state["v"], self.state["steps"] = g * g, np.full_like(g, 0.02)
        self.state["v"] = o["gamma"] * self.state["v"] + (1 - o["gamma"]) * g * g
        for i in np.ndindex(g.shape):
            step = self.state["steps"][i]
            same = self.state["signs"][i] * np.sign(g[i]) > 0
            self.state["steps"][i] = min(step * o["inc"], o["max"]) if same else max(step * o["dec"], o["min"])
        self.state["signs"] = np.sign(g)
        factor = self.state["steps"] / np.sqrt(self.state["v"] + 1e-6)
        return -rate * g * factor / (factor.mean() if o.get("average", True) else 1)
