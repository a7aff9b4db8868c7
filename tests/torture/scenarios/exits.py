"""Programs that end in the middle: the last line, an exception, an exit, a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.torture.case import Case
from tests.torture.scenario import Scenario

ROOT = Path(__file__).resolve().parents[3]

PROLOGUE = """
import atexit, os, signal, sys, threading, time
from pathlib import Path
import feedline as fl
from tests.torture import data, items, plants
plants.from_environment()
corpus = Path(sys.argv[1])
"""
BEGIN = {
    "source": """
source = fl.MinibatchSource(data.FORMATS[{kind!r}](corpus), seed=1, threads=3)
kept = [source.next_minibatch(50) for _ in range({steps})]
""",
    "loader": """
loader = fl.DataLoader(items.Augmented(200, slow=0.01), batch_size=3, shuffle=True, seed=1, num_workers=2,
                       workers={workers!r}, multiprocessing_context="fork")
batches = iter(loader)
kept = [next(batches) for _ in range({steps})]
""",
    "writer": """
writer = fl.StoreWriter(sys.argv[2] + "/out.store", fl.Schema(data.STREAMS))
for _ in range({steps}):
    writer.write(data.values(20))
""",
}
END = {
    "last line": "",
    "sys.exit": "sys.exit(0)",
    "exception": "raise ValueError('planted')",
    "interrupt": "raise KeyboardInterrupt",
    "os._exit": "os._exit(0)",
    "thread": "threading.Thread(target=lambda: time.sleep(0.05)).start()",
    "atexit": "atexit.register(lambda: kept.clear() if 'kept' in globals() else None)",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)",
    "cycle": "globals()['me'] = [globals()]; sys.modules['me'] = sys.modules[__name__]",
}
EXPECTED = {"exception": 1, "interrupt": -signal.SIGINT, "SIGTERM": -signal.SIGTERM}
NOISE = ("Exception ignored", "Fatal Python error", "leaked", "Segmentation", "resource_tracker", "core dumped")


class Exits(Scenario):
    """Python's own exit code, no noise from finalisers, no remaining process."""

    name = "exits"
    asks = "does a program end cleanly wherever it ends?"
    seconds = 120.0

    def run(self, case: Case) -> None:
        rng = case.rng
        what, how = rng.choice(list(BEGIN)), list(END)[case.number % len(END)]
        from tests.torture import data

        kind = rng.choice(list(data.FORMATS))
        workers = rng.choice(["process", "thread"])
        begin = BEGIN[what].format(kind=kind, steps=rng.randint(0, 6), workers=workers)
        program = f"{PROLOGUE}\n{begin}\n{END[how]}\n"
        told = f"{what} ({kind if what == 'source' else workers}), then {how}"
        case.doing(told)
        done = subprocess.Popen(
            [sys.executable, "-X", "dev", "-W", "ignore", "-c", program, str(case.data / "few"), str(case.folder)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if rng.random() < 0.15:
            time.sleep(rng.random())
            done.send_signal(signal.SIGINT)
            how = "interrupted"
        _, noise = done.communicate(timeout=100)
        wanted = EXPECTED.get(how, 0)
        if how == "interrupted":
            if done.returncode < 0 and done.returncode not in (-signal.SIGINT, -signal.SIGTERM):
                case.fail("crashes", f"{told}, interrupted: {done.returncode}\n{noise[-1500:]}")
            return
        if done.returncode != wanted:
            counter = "crashes" if done.returncode < 0 else "foreign"
            case.fail(counter, f"{told}: expected exit code {wanted}, got {done.returncode}\n{noise[-1500:]}")
        elif any(word in noise for word in NOISE):
            case.fail("foreign", f"{told}: {noise[-1500:]}")
        if what == "writer" and (left := [p for p in os.listdir(case.folder) if p.endswith(".store")]):
            case.fail("silent", f"{told}: an unfinished store took its name: {left}")
