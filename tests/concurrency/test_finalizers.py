"""Objects that outlive the globals of modules, as the interpreter ends, leave no message."""

import ast
import builtins
import subprocess
import sys
from pathlib import Path

import pytest

import feedline

ROOT = Path(feedline.__file__).parent

PROGRAM = """if True:
    import encodings, sys
    import numpy as np
    import torch
    import feedline as fl

    class Items:
        def __len__(self):
            return 50

        def __getitem__(self, i):
            return np.full(1000, i, np.float32)

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter([np.full(1000, i, np.float32) for i in range(50)])

    encodings.held = []  # of the modules, the interpreter clears the first last
    for workers in 0, 2:
        for kind in "process", "thread":
            for dataset in Items(), Stream():
                options = {"num_workers": workers, "workers": kind, "progress": lambda done, total: None}
                if workers and kind == "process":
                    options["multiprocessing_context"] = "fork"  # no other process could import this program
                loader = fl.DataLoader(dataset, 3, **options)
                batches = iter(loader)
                encodings.held += loader, batches, next(batches)
    with open(sys.argv[1] + "/data.ctf", "w") as file:
        file.writelines(f"{i} |x {i}\\n" for i in range(200))
    corpus = fl.CTFDeserializer(sys.argv[1] + "/data.ctf", {"x": fl.Stream(1)})
    source = fl.MinibatchSource(corpus, seed=1, threads=2)
    encodings.held += source, source.next_minibatch(10), iter(source.minibatches(10))
    next(encodings.held[-1])
    print("held", len(encodings.held))
    sys.living = list(sys.modules.values())  # only those that live are cleared
"""


def test_objects_that_are_deleted_last(tmp_path):
    command = [sys.executable, "-X", "dev", "-W", "ignore", "-c", PROGRAM, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "held 27\n", "")


#: Files' own `close` uses no global.
PLAIN = {"mxnet/recordio.py"}


def finalizers():
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name == "__del__":
                yield pytest.param(path, node, id=str(path.relative_to(ROOT)))


@pytest.mark.parametrize(("path", "finalizer"), list(finalizers()))
def test_a_finaliser_that_calls_others_ends_with_the_interpreter(path, finalizer):
    if any(ast.unparse(decorator) == "unless_exiting" for decorator in finalizer.decorator_list):
        return
    calls = {ast.unparse(node.func) for node in ast.walk(finalizer) if isinstance(node, ast.Call)}
    allowed = {*dir(builtins), "file.close", *(["self.close"] if str(path.relative_to(ROOT)) in PLAIN else [])}
    assert calls <= allowed, "decorate it with `unless_exiting`, as globals are None when it runs last"
