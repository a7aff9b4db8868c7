"""torchrun, whose workers are forked from the warm interpreter as itself is: ``python -m tests.torchrun ...``.

Workers find the launcher's id in LAUNCHER, as it is not their parent. If LAUNCHED names a folder, their own ids are in
files there, named after their ranks.
"""

from __future__ import annotations

import os
from pathlib import Path

from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler
from torch.distributed.run import main

from tests.warm import Interpreter


class Worker(Interpreter):
    """A worker."""

    def __init__(self, args, *, env, **options):
        super().__init__(args, env=env, **options)
        if "LAUNCHED" in env:
            Path(env["LAUNCHED"], env["RANK"]).write_text(str(self.pid))


if __name__ == "__main__":
    os.environ["LAUNCHER"] = str(os.getpid())
    subprocess_handler.Popen = Worker
    main()
