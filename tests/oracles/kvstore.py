"""Slow, obvious twins: a store that is a dictionary of lists of numbers, and gradients coded one by one."""

from __future__ import annotations

import numpy as np


class DictStore:
    """One process, float64 numbers that need no rounding."""

    def __init__(self):
        self.values, self.updater = {}, None

    def init(self, keys, values):
        if any(key in self.values for key in keys) or len(set(keys)) < len(keys):
            raise ValueError
        self.values.update({key: list(value) for key, value in zip(keys, values, strict=True)})

    def push(self, keys, lists):
        if any(key not in self.values for key in keys):
            raise ValueError
        sums = {}
        for key, values in zip(keys, lists, strict=True):
            for value in values:
                old = sums.get(key, [0.0] * len(value))
                sums[key] = [a + b for a, b in zip(old, value, strict=True)]
        order = sorted(sums) if all(isinstance(key, int) for key in sums) else [k for k in self.values if k in sums]
        changed = {}
        for key in order:
            changed[key] = sums[key] if self.updater is None else self.updater(key, sums[key], self.values[key])
        self.values.update(changed)

    def pull(self, keys):
        return [list(self.values[key]) for key in keys]


def quantize(bits, threshold, gradient, residual):
    """Return codes as bytes, decoded values and the residual, all in float32."""
    threshold, one = np.float32(threshold), np.float32(1)
    codes, sent, left = [], [], []
    for g, r in zip(gradient, residual, strict=True):
        total = np.float32(np.float32(r) + np.float32(g))
        if bits == 2:
            code = 3 if total >= threshold else 2 if total <= -threshold else 0
            value = {3: threshold, 2: -threshold, 0: np.float32(0)}[code]
        else:
            code = 1 if total > threshold else 0
            value = one if code else -one
        codes.append(code)
        sent.append(value)
        left.append(np.float32(total - value))
    per_byte = 8 // bits
    packed = bytearray((len(codes) * bits + 31) // 32 * 4)
    for i, code in enumerate(codes):
        packed[i // per_byte] |= code << (8 - bits - i % per_byte * bits)
    return bytes(packed), np.array(sent, "f4"), np.array(left, "f4")
