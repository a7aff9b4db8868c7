"""``feedline`` as a background job of a shell, which ignores SIGINT. The demo's processes are forked with that
setting."""

from __future__ import annotations

import signal
import subprocess
from types import SimpleNamespace

from feedline_demo import processes

from feedline.cli import main
from tests.warm import Interpreter

#: In the place of `subprocess` in the module that starts the demo's processes.
FORKING = SimpleNamespace(Popen=Interpreter, PIPE=subprocess.PIPE)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    processes.subprocess = FORKING
    main()
