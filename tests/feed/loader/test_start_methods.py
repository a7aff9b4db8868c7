"""When the server of worker processes starts, and which modules it imports before."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, multiprocessing, sys
from multiprocessing import forkserver
import feedline as fl

server = forkserver._forkserver

def pid():
    return server._forkserver_pid

class Items:
    def __len__(self): return 8
    def __getitem__(self, index):
        return index, sys.modules["feedline.feed.loader.loader"].__name__, multiprocessing.current_process().name

if __name__ == "__main__":
    said = {"before": pid()}
    fl.DataLoader(Items(), num_workers=2)
    said["default"] = pid(), multiprocessing.get_start_method(allow_none=True)
    fl.DataLoader(Items(), num_workers=0)
    said["none"] = pid()
    loader = fl.DataLoader(Items(), batch_size=4, num_workers=2, multiprocessing_context="forkserver")
    said["forkserver"] = pid() is not None
    said["preloads"] = "feedline.feed.loader.loader" in server._preload_modules
    said["batches"] = [[str(part) for part in batch] for batch in loader]
    started = pid()
    fl.DataLoader(Items(), num_workers=2, multiprocessing_context="forkserver")
    said["once"] = pid() == started
    print(json.dumps(said))
"""


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_class_of_a_notebook_cannot_be_imported(method):
    """Nor can one of a program that is typed. Its error says what to do."""
    typed = "import feedline as fl\nclass Items:\n    def __len__(self): return 8\n\n"
    typed += f"list(fl.DataLoader(Items(), num_workers=1, multiprocessing_context={method!r}))\n"
    ran = subprocess.run([sys.executable, "-i"], input=typed, capture_output=True, text=True, timeout=120, check=True)
    assert "AttributeError: Can't get attribute 'Items'" in ran.stderr
    assert 'Define them at the top level of a module, or pass workers="thread" or multiprocessing_context' in ran.stderr


def test_a_fork_server_starts_with_the_loader_and_imports_what_workers_need(tmp_path):
    """Its imports take a second, which a program spends on its model. Programs without a start method are not
    changed."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ran = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120, check=True)
    said = json.loads(ran.stdout)
    assert said["before"] is None
    assert said["default"] == [None, None]
    assert said["none"] is None
    assert said["forkserver"]
    assert said["preloads"]
    assert len(said["batches"]) == 2
    assert "feedline-worker-" in said["batches"][0][2]
    assert said["once"]
