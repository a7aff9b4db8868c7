"""How fast are gradients compressed to 2 bits and 1, and decompressed: 10^7 floats, one thread?

Peer: ``memcpy`` of the floats. Unit: GB/s of floats. Measured: CPU time of the thread, compressing and decompressing
together; residuals are read and written as in training.
"""

from __future__ import annotations

import numpy as np

from benchmarks.harness import Answer, Stage, compare, race
from feedline import _native


def run(stage: Stage) -> list[Answer]:
    """2 bits, then 1."""
    n = stage.size(10_000_000, 100_000)
    rng = np.random.default_rng(0)
    gradient = rng.normal(size=n).astype(np.float32)
    residual, left, out, copy = (np.zeros(n, np.float32) for _ in range(4))

    def memcpy() -> float:
        np.copyto(copy, gradient)
        return float(gradient.nbytes)

    answers = []
    for bits in (2, 1):
        codes = np.zeros((n * bits + 31) // 32 * 4, np.uint8)

        def ours(bits: int = bits, codes: np.ndarray = codes) -> float:
            _native.quantize(bits, 0.5, gradient, residual, left, codes)
            _native.dequantize(bits, 0.5, codes, out)
            return float(gradient.nbytes)

        ran = race({"ours": ours, "memcpy": memcpy}, stage.rounds(25))
        question = f"compress to {bits} bit{'s' * (bits > 1)} and decompress, {n / 1e6:g} M floats"
        answers.append(compare(ran, "ours", "memcpy", question, "GB/s", scale=1e-9, at_least=0.15))
    return answers
