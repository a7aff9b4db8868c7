"""How fast are gradients compressed to 2 bits, 1 and bfloat16, and decompressed: 10^7 floats, one thread?

Peer: ``memcpy`` of the floats. Unit: GB/s of floats. Measured: CPU time of the thread, compressing and decompressing
together. Residuals are read and written as in training.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.harness import Answer, Stage, compare, race
from feedline.kvstore.compression import Channel, compression


def run(stage: Stage) -> list[Answer]:
    """2 bits, 1, and half precision."""
    torch.set_num_threads(1)
    n = stage.size(10_000_000, 100_000)
    gradient, out, copy = torch.randn(n), torch.zeros(n), torch.zeros(n)

    def memcpy() -> float:
        copy.copy_(gradient)
        return float(gradient.nbytes)

    answers = []
    for kind in ("2bit", "1bit", "bf16"):
        chosen = compression({"type": kind})
        channel = Channel(chosen, gradient.shape, gradient.dtype, "cpu")

        def ours(chosen: Any = chosen, channel: Channel = channel) -> float:
            chosen.encode([channel.job(gradient)])
            chosen.decode_sums([((channel.codes,), out)])
            channel.commit()
            return float(gradient.nbytes)

        ran = race({"ours": ours, "memcpy": memcpy}, stage.rounds(25))
        question = f"compress by {kind} and decompress, {n / 1e6:g} M floats"
        answers.append(compare(ran, "ours", "memcpy", question, "GB/s", scale=1e-9, at_least=0.15))
    return answers
