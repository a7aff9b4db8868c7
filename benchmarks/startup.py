"""How long does it take to start: importing, and opening a source?

Limit: 40 ms for ``import feedline`` over NumPy. Opening costs O(chunks). Unit: milliseconds of CPU time. Measured:
the import in fresh processes that have imported NumPy, and opening a source over corpora of 10^3 to 10^5 chunks without
data, where the figure is nanoseconds a chunk and the ratio shows how it grows from the smallest to the largest.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import feedline as fl
from benchmarks.harness import Answer, Stage, Target, spread
from benchmarks.restore import Synthetic

IMPORT = "import time, numpy; a = time.process_time(); import feedline; print(time.process_time() - a)"


def run(stage: Stage) -> list[Answer]:
    """Import, then opening."""
    took = []
    for _ in range(stage.rounds(15) + 1):
        ran = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
        took.append(float(ran.stdout) * 1e3)
    took = took[1:]  # the first one fills the page cache
    answers = [
        Answer(
            question="import feedline, over numpy",
            unit="ms",
            ours=statistics.median(took),
            target=Target("ours", "<=", 40, "40 ms"),
            spread=spread(took),
            detail={"ms": took},
        )
    ]
    each = {}
    for chunks in (10**3, 10**4) if stage.quick else (10**3, 10**4, 10**5):
        corpus = Synthetic(chunks * 10, random_access=True, chunk=10)
        times = []
        for _ in range(stage.rounds(7)):
            began = time.process_time()
            source = fl.MinibatchSource(corpus)
            source.load_state_dict(source.state_dict())
            times.append(time.process_time() - began)
            source.close()
        each[chunks] = [t * 1e9 / chunks for t in times]
    few, many = min(each), max(each)
    medians = {chunks: statistics.median(values) for chunks, values in each.items()}
    answers.append(
        Answer(
            question=f"opening a source of {many:,} chunks",
            unit="ns a chunk",
            ours=medians[many],
            peer=f"{few:,} chunks",
            peer_value=medians[few],
            ratio=medians[few] / medians[many],
            target=Target("ratio", ">=", 0.5),
            spread=spread(each[many]),
            note="the ratio would fall with the number of chunks if opening cost more than O(chunks)",
            detail={"ns_a_chunk": {str(chunks): value for chunks, value in medians.items()}},
        )
    )
    return answers
