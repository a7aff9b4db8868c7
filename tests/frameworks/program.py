"""One rank of a job: trainings under frameworks, one after the other in this process. Writes the samples that each was
fed.

``python -m tests.frameworks.program FILE`` where FILE has JSON: ``folder``, and ``trainings``, a list of pairs of a
function in `programs` and its options:

- ``loader``: "torch", "feedline" (the program imports feedline's), or "patched" (as "torch", in an interpreter that has
  feedline's in the place of torch's),
- ``workers``, ``items``, ``batch``, ``epochs``, ``seed``, ``mode`` (the used part of a framework),
- ``folder``: of checkpoints, ``stop``: steps after which one is saved, ``resume``: go on from the one saved there.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def main(file: str) -> None:
    """Run the trainings that a file lists."""
    import torch

    from tests.frameworks import programs

    torch.set_num_threads(1)
    job = json.loads(Path(file).read_text())
    if WORLD > 1:
        store = torch.distributed.FileStore(str(Path(job["folder"], "store")), WORLD)
        torch.distributed.init_process_group("gloo", store=store, rank=RANK, world_size=WORLD)
    told: list[dict[str, Any]] = []
    for function, options in job["trainings"]:
        Path(options["folder"]).mkdir(parents=True, exist_ok=True)
        fed: list[Any] = []
        facts: dict[str, Any] = {}
        with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(sys.stderr):
            warnings.simplefilter("always")
            try:
                getattr(programs, function)(options, fed, facts)
            except Exception:
                facts["error"] = traceback.format_exc()
        said = [str(w.message) for w in caught if "every rank" in str(w.message)]
        told.append({"fed": fed, "said": said, **facts})
        if "error" in facts and WORLD > 1:  # the others wait for this one
            break
    Path(job["folder"], f"rank-{RANK}.json").write_text(json.dumps(told))
    sys.stderr.flush()
    os._exit(any("error" in each for each in told))  # nothing is torn down: half a second a rank


if __name__ == "__main__":
    main(sys.argv[1])
