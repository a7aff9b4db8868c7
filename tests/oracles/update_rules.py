"""Update rules of MXNet 1.9.1, step by step in double precision, from the formulas of its documentation."""

from __future__ import annotations

import numpy as np


def follow(name, p, w, gradients, noise=None):
    """Return the weight after all gradients: float64 arrays of one shape. ``noise(t)`` is the draw of update ``t``."""
    w, lr, wd = np.array(w, float), p["learning_rate"], p["wd"]
    a, b, c = np.zeros((3, *w.shape))
    before, product = w.copy(), 1.0
    momentum, last, total = p.get("momentum", 0.0), lr, np.zeros_like(w)
    for t, raw in enumerate(np.asarray(gradients, float), 1):
        g = raw * p["rescale_grad"]
        if name in ("rmsprop", "adamax", "nadam", "ftml"):
            g = g + wd * w
        if p["clip_gradient"] is not None:
            g = np.clip(g, -p["clip_gradient"], p["clip_gradient"])
        if "beta2" in p and name != "adamax":
            b = p["beta2"] * b + (1 - p["beta2"]) * g**2
        if name in ("adamax", "nadam", "lamb"):
            a = p["beta1"] * a + (1 - p["beta1"]) * g

        if name == "rmsprop":
            b = p["gamma1"] * b + (1 - p["gamma1"]) * g**2
            a = p["gamma1"] * a + (1 - p["gamma1"]) * g
            c = p["gamma2"] * c - lr * g / np.sqrt(b - a**2 + p["epsilon"])
            w = np.clip(w + c, -p["clip_weights"], p["clip_weights"])
        elif name == "adadelta":
            b = p["rho"] * b + (1 - p["rho"]) * g**2
            step = np.sqrt(a + p["epsilon"]) / np.sqrt(b + p["epsilon"]) * g
            a = p["rho"] * a + (1 - p["rho"]) * step**2
            w = w - step - wd * w
        elif name == "adamax":
            b = np.maximum(p["beta2"] * b, abs(g))
            w = w - lr / (1 - p["beta1"] ** t) * np.divide(a, b, out=np.zeros_like(a), where=b > 0)
        elif name == "nadam":
            now, later = (p["beta1"] * (1 - 0.5 * 0.96 ** (i * p["schedule_decay"])) for i in (t, t + 1))
            product *= now
            step = (1 - now) * g / (1 - product) + later * a / (1 - product * later)
            w = w - lr * step / (np.sqrt(b / (1 - p["beta2"] ** t)) + p["epsilon"])
        elif name == "ftml":
            d = (1 - p["beta1"] ** t) / lr * (np.sqrt(b / (1 - p["beta2"] ** t)) + p["epsilon"])
            a = p["beta1"] * a + (1 - p["beta1"]) * g - (d - p["beta1"] * c) * w
            c, w = d, -a / d
        elif name == "ftrl":
            a = a + g - (np.sqrt(b + g**2) - np.sqrt(b)) * w / lr
            b = b + g**2
            beyond = (np.sign(a) * p["lamda1"] - a) / ((p["beta"] + np.sqrt(b)) / lr + wd)
            w = np.where(abs(a) > p["lamda1"], beyond, 0)
        elif name == "signum" and momentum:
            a = momentum * a - (1 - momentum) * (g + wd * w)
            w = (1 - lr * p["wd_lh"]) * w + lr * np.sign(a)
        elif name == "signum":
            w = (1 - lr * wd) * w - lr * np.sign(g)
        elif name == "dcasgd":
            a = momentum * a - lr * (g + wd * w + p["lamda"] * g**2 * (w - before))
            before, w = w, w + a
        elif name == "sgld":
            w = w - lr / 2 * (g + wd * w) + np.sqrt(lr) * noise(t)
        elif name == "lamb":
            m, v = (a / (1 - p["beta1"] ** t), b / (1 - p["beta2"] ** t)) if p["bias_correction"] else (a, b)
            step = m / (np.sqrt(v) + p["epsilon"]) + wd * w
            r1, r2 = np.linalg.norm(w), np.linalg.norm(step)
            r1 = max(r1, p["lower_bound"]) if p["lower_bound"] is not None else r1
            r1 = min(r1, p["upper_bound"]) if p["upper_bound"] is not None else r1
            w = w - lr * (r1 / r2 if r1 and r2 else 1) * step
        elif name == "lars":
            r1, r2 = np.linalg.norm(w), np.linalg.norm(raw * p["rescale_grad"])
            rate = lr * (p["eta"] * r1 / (r2 + wd * r1 + p["eps"]) if r1 and r2 else 1)
            a = momentum * lr / last * a - rate * (g + wd * w)
            w, last = w + a, lr
        else:
            assert name == "lbsgd"
            seen, length = p["begin_epoch"] * p["updates_per_epoch"] + t, p["warmup_epochs"] * p["updates_per_epoch"]
            total, scale = total + raw, p["batch_scale"]
            if seen % scale:
                continue
            mean, total = total / scale, np.zeros_like(w)
            part = min(seen / length, 1)
            if p["warmup_strategy"] == "lars":
                factor = np.clip(np.sqrt((w**2).sum() / ((mean**2).sum() + wd * (w**2).sum() + 1e-18)), 0.01, 100)
            else:
                factor = 1 + (scale - 1) * {"linear": part, "power2": part**2, "sqrt": part**0.5}[p["warmup_strategy"]]
            a = momentum * a - lr * factor * (mean * p["rescale_grad"] + wd * w)
            w = w + a
    return w
