"""`--json`: each command prints one document with its schema in each of its modes, of errors too, and nothing else."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import feedline as fl
from feedline.cli.app import COMMANDS
from feedline.cli.schemas import schema
from feedline.concurrency.stages import FeedStage
from feedline.runs.diagnosis import FeedRecord, RankRecord
from feedline.system import KNOWS_PAGE_CACHE
from tests.cli.documents import document_in, objects_in, validator
from tests.cli.shell import ENV, feedline, start
from tests.docs import json_page
from tests.runs.logs import progress, rank_record
from tests.runs.logs import start as begun
from tests.servers.object_store import ObjectStore

#: By command, the arguments of its modes with their exit codes, in the folder of `data`.
MODES = {
    "inspect": {
        "words.ctf": 0,
        "bad.ctf --stream x=2": 0,
        "texts.jsonl": 0,
        "numbers.csv --statistics": 0,
        "pictures": 0,
        "pictures --pictures 3": 0,
        "words.ctf --pictures 2": 0,
        "mine:corpus --pictures 2": 0,
        "absent.ctf": 1,
    },
    "convert": {
        "words.ctf words.store": 0,
        "bad.ctf bad.store --stream x=2 --skip-errors": 0,
        "words.ctf words.store --stream word=9": 1,
        "words.ctf other.store --compression gzip": 2,
    },
    "validate": {"words.ctf": 0, "bad.ctf --stream x=2": 1, "absent.ctf": 1},
    "plan": {
        "words.ctf": 0,
        "words.ctf --partition 1/2 --at samples:20 --steps 2": 0,
        "rows.json --steps 3": 0,
        "words.ctf --mesh dp=2,cp=2 --role cp=context --steps 2": 0,
        "words.ctf --html windows.html": 0,
        "s3://b/train/*.parquet --nodes 2 --bandwidth 200MB/s --step 20ms": 0,
        "words.ctf --at soon": 2,
    },
    "audit": {
        "run/run.jsonl rows.json": 0,
        "fed.jsonl rows.json --steps 2:4 --sequence 3 --document web:5": 0,
        "absent.jsonl rows.json": 1,
    },
    "bench": {
        "numbers.store --seconds 0.1": 0,
        "numbers.store --seconds 0.1 --cold --log bench.jsonl --window 4k": 0 if KNOWS_PAGE_CACHE else 1,
        "--loader mine:loader --seconds 0.2": 0,
        "--loader mine:batches --seconds 0.1": 0,
        "--loader mine:empty": 1,
        "": 2,
    },
    "report": {"run": 0, "run again": 0, "run --watch": 0, "words.ctf": 1},
    "doctor": {"slow.jsonl": 0, "slow.jsonl run": 0, "fed.jsonl": 1, "absent": 1},
    "tune": {
        "numbers.store --seconds 1": 0,
        "mine:loader --seconds 2": 0,
        "absent.ctf": 1,
        "mine.py": 2,
    },
    "watch": {"run": 0, "run --once": 0, "absent": 1},
    "demo": {"--quick --out words.ctf/out": 1},  # the rest is in test_demo.py
    "index": {"texts.jsonl": 0, "numbers.store": 1},
    "state": {"states.json": 0, "rows.json": 1},
    "export": {
        "net-symbol.json net.params --to safetensors": 0,
        "net-symbol.json net.params --to onnx --shape data=2,3": 0,
        "net-symbol.json net.params --to torch --shape data=2,3": 0,
        "net-symbol.json absent.params --to onnx --shape data=2,3": 1,
        "absent.dnn net.py --to torch": 1,
        "net-symbol.json net.params --to text": 2,
    },
    "run": {
        "--as mxnet prints.py an --argument": 0,
        "--as mxnet notebook.ipynb": 0,
        "--as mxnet forks.py": 0,
        "--as mxnet ends.py 3": 3,
        "--as mxnet ends.py words": 1,
        "--as mxnet raises.py ValueError": 1,
        "--as mxnet raises.py KeyboardInterrupt": 130,
        "--as mxnet absent.py": 1,
        "--as theano prints.py": 2,
    },
}

MINE = """
import os

import numpy as np

import feedline as fl

print("printed at import")
corpus = fl.ArrayDeserializer(x=np.zeros((9, 2)))


class Dataset:
    def __len__(self):
        return 64

    def __getitem__(self, i):
        print("printed by a worker", flush=True)
        return np.full(3, i)


def loader():
    os.system("echo printed by a process")
    return fl.DataLoader(Dataset(), batch_size=4, num_workers=1), lambda batch: print("printed by a step")


def batches():
    return [np.zeros(4)] * 9


def empty():
    return []
"""

SCRIPTS = {
    "prints.py": """
import os, sys
import mxnet

print("printed", sys.argv[1:], flush=True)
os.system("echo printed by a process")
""",
    "forks.py": """
import os, sys

if os.fork() == 0:
    sys.exit(0)
os.wait()
""",
    "ends.py": """
import sys

print("printed")
sys.exit(int(sys.argv[1]) if sys.argv[1].isdigit() else sys.argv[1])
""",
    "raises.py": """
import sys
import torch

raise ValueError("mine") if sys.argv[1] == "ValueError" else KeyboardInterrupt
""",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with what the modes read, and an object store."""
    folder = tmp_path_factory.mktemp("json")
    for module in ("obstore", "onnx", "PIL", "torch"):
        pytest.importorskip(module, reason=f"{module} is not installed")
    _write_corpora(folder)
    _write_logs_and_states(folder)
    _write_programs(folder)
    from tests.feed.remote.test_fetch_plan import rows  # which needs obstore

    with ObjectStore() as server, pytest.MonkeyPatch.context() as patch:
        server.put("b/train/0.parquet", rows(0, 20, 150_000))
        names = {"ENDPOINT_URL": server.url, "ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s", "REGION": "us-east-1"}
        for name, value in names.items():
            patch.setitem(ENV, f"AWS_{name}", value)
        patch.setitem(ENV, "XDG_CACHE_HOME", str(folder / "home"))
        yield folder


def _write_corpora(folder):
    from feedline_demo import pictures

    rng = np.random.default_rng(0)
    words = fl.Value.one_hot([rng.integers(9, size=n) for n in rng.integers(1, 60, 200)], 9)
    fl.write_ctf(folder / "words.ctf", word=words, label=rng.normal(size=(200, 2)).astype("f4"))
    (folder / "bad.ctf").write_text("0\t|x 1 2\n1\t|x 1 oops\n2\t|x 3 4\n")
    (folder / "numbers.csv").write_text("n,x\n1,nan\n2,nan\n")
    (folder / "texts.jsonl").write_text('{"text": "a", "x": NaN}\n{"text": "b", "x": 1.5}\n')
    fl.convert(fl.ArrayDeserializer(x=rng.random((5000, 100), np.float32)), folder / "numbers.store")
    (folder / "pictures").mkdir()
    pictures.write_folder(folder / "pictures", list(pictures.pictures(6, sides=(40, 90))))
    for name, count in (("web", 300), ("code", 60)):
        tokens = [rng.integers(1, 99, n, dtype=np.int32) for n in rng.integers(1, 30, count)]
        fl.convert(fl.ArrayDeserializer(tokens=tokens), folder / f"{name}.store")
    packed = {name: {"path": f"{name}.store", "packed": {"row": 32}} for name in ("web", "code")}
    (folder / "rows.json").write_text(json.dumps({"mixture": packed, "weights": {"web": 2, "code": 1}, "block": 8}))


def _write_logs_and_states(folder):
    states = []
    with fl.MinibatchSource(fl.open_corpus(folder / "rows.json"), seed=6, max_samples=100_000) as source:
        for _ in range(9):
            states.append(source.state_dict())
            source.next_minibatch(256)
    feeds = [{"step": step, "size": 256, "state": state} for step, state in enumerate(states)]
    lines = [{"event": "progress", "samples": step, "feed": feed} for step, feed in enumerate(feeds)]
    (folder / "fed.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    lines = [begun(time=0.0) | {"feed": feeds[0]}]
    for i in range(1, 6):
        ranks = [rank_record(rank, 10.0 * i) for rank in range(2)]
        lines.append(progress(100 * i, time=10.0 * i, done=i / 10, ranks=ranks) | {"feed": feeds[i]})
    lines.append({"event": "end", "samples": 500, "time": 60.0})
    for name in ("run", "again"):
        (folder / name).mkdir()
        (folder / name / "run.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    stages = {"fetch": FeedStage(8.0, 8.0, 400), "step": FeedStage(2.0, 0.0, 100)}
    record = RankRecord(0, "host", 10.0, [FeedRecord({"feed": "DataLoader", "dataset": "D", "workers": 0}, stages)])
    line = {"event": "end", "samples": 100, "record": record.to_json()}
    (folder / "slow.jsonl").write_text(json.dumps(line) + "\n")
    loader = fl.DataLoader(list(range(50)), batch_size=4)
    next(iter(loader))
    plain = fl.MinibatchSource(fl.ArrayDeserializer(x=np.zeros(9))).state_dict()
    saved = {"train": states[-1] | {"window": 3}, "others": [plain, loader.state_dict()]}
    (folder / "states.json").write_text(json.dumps(saved))


def _write_programs(folder):
    import feedline.mxnet as mx

    mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc").save(str(folder / "net-symbol.json"))
    params = {"arg:fc_weight": mx.nd.array(np.ones((2, 3))), "arg:fc_bias": mx.nd.array(np.ones(2))}
    mx.nd.save(str(folder / "net.params"), params)
    (folder / "mine.py").write_text(MINE)
    for name, text in SCRIPTS.items():
        (folder / name).write_text(text)
    cells = [{"cell_type": "code", "source": text} for text in ("%matplotlib inline\n", "print('printed')\n")]
    (folder / "notebook.ipynb").write_text(json.dumps({"nbformat": 4, "metadata": {}, "cells": cells}))


def document(data, command, mode, code=0):
    """Run a command in a mode with ``--json``. Return its document, and what is on stderr."""
    done = feedline(command, "--json", *mode.split(), code=code, cwd=data)
    return document_in(done.stdout, command), done.stderr


def test_every_command_is_tested():
    assert MODES.keys() == COMMANDS.keys()


@pytest.mark.parametrize("command", MODES)
def test_documents_have_every_field_of_the_schema(data, command):
    """Each field is in the document of a mode, and a field that the schema does not have is refused."""
    fields = {(name, field) for name, about in schema(command)["$defs"].items() for field in about["properties"]}
    for mode, code in MODES[command].items():
        shown, _ = document(data, command, mode, code)
        for name, part in objects_in(command, shown):
            fields -= {(name, field) for field in part}
            part["surplus"] = 0
            assert not validator(command).is_valid(shown), (mode, name)
            del part["surplus"]
        assert validator(command).is_valid(shown)
        if command not in ("run", "validate"):
            assert ("error" in shown) == (code != 0)
    # Where the page cache cannot be emptied, no cold feed is measured.
    assert fields == set() or command == "demo" or (command == "bench" and not KNOWS_PAGE_CACHE)


@pytest.mark.parametrize("command", COMMANDS)
def test_schemas_describe_every_field(command):
    described = schema(command)
    for name, about in described["$defs"].items():
        assert about["description"].endswith("."), name
        for field, kind in about["properties"].items():
            assert kind["description"].endswith("."), f"{name}.{field}"
    assert json.loads(feedline("--json-schema", command).stdout) == described


def test_unknown_commands_have_no_schema():
    assert "expected inspect, convert" in feedline("--json-schema", "none", code=2).stderr


def test_a_document_of_another_schema_is_noticed(data):
    shown, _ = document(data, "convert", "words.ctf words.store --overwrite")
    for change in ({"skipped": "none"}, {"bytes": None}):
        with pytest.raises(AssertionError, match=f"convert at \\$.{next(iter(change))}"):
            document_in(json.dumps(shown | change), "convert")
    lacking = copy.copy(shown)
    del lacking["store"]
    with pytest.raises(AssertionError, match="is not valid"):
        document_in(json.dumps(lacking), "convert")
    with pytest.raises(ValueError, match="expected JSON, got NaN"):
        document_in('{"page": NaN}', "report")


# ---- nothing else ---------------------------------------------------------------------------------------------


def test_output_of_user_code_goes_to_stderr(data):
    _, printed = document(data, "bench", "--loader mine:loader --seconds 0.2")
    for source in ("at import", "by a worker", "by a process", "by a step"):
        assert f"printed {source}\n" in printed
    assert "printed by a step\n" in feedline("bench", "--loader", "mine:loader", "--seconds", 0.1, cwd=data).stdout


def test_run_tells_how_a_script_ended(data):
    shown, printed = document(data, "run", "--as mxnet prints.py an --argument")
    assert printed == "printed ['an', '--argument']\nprinted by a process\n"
    assert (shown["script"], shown["facade"], shown["arguments"]) == ("prints.py", "mxnet", ["an", "--argument"])
    assert (shown["exit_code"], shown["left_out"], shown["versions"]["feedline"]) == (0, [], fl.__version__)
    shown, _ = document(data, "run", "--as mxnet notebook.ipynb")
    assert shown["left_out"] == ["notebook.ipynb, code cell 1: left out %matplotlib inline"]
    document(data, "run", "--as mxnet forks.py")  # the child prints none
    shown, _ = document(data, "run", "--as mxnet ends.py 3", code=3)
    assert shown["exit_code"] == 3
    assert "error" not in shown
    for mode, code, error in (
        ("ends.py words", 1, {"type": "SystemExit", "message": "words"}),
        ("raises.py ValueError", 1, {"type": "ValueError", "message": "mine"}),
        ("raises.py KeyboardInterrupt", 130, {"type": "KeyboardInterrupt", "message": "interrupted"}),
    ):
        shown, _ = document(data, "run", f"--as mxnet {mode}", code)
        assert (shown["exit_code"], shown["error"]) == (code, error)
    assert "torch" in shown["versions"]
    _, printed = document(data, "run", "--as mxnet raises.py ValueError", code=1)
    assert printed.startswith("Traceback")
    # Behind the script, options are the script's.
    assert feedline("run", "--as", "mxnet", "prints.py", "--json", cwd=data).stdout.startswith("printed ['--json']\n")


def test_numbers_that_are_not_finite_are_null(data):
    shown, _ = document(data, "inspect", "numbers.csv --statistics")
    assert (shown["streams"]["x"]["nan"], shown["streams"]["x"]["mean"]) == (2, None)
    assert shown["streams"]["n"]["mean"] == 1.5
    shown, _ = document(data, "inspect", "texts.jsonl")
    assert shown["preview"][0]["streams"]["x"]["first"] == [[None]]


def test_names_may_have_bytes_that_are_no_text(data):
    path = os.fsdecode(os.fsencode(data) + b"/caf\xe9.npy")
    np.save(path, np.zeros((4, 2)))
    assert document_in(feedline("inspect", path, "--json").stdout, "inspect")["path"] == path


# ---- errors ---------------------------------------------------------------------------------------------------


def test_an_error_is_a_document(data):
    shown, printed = document(data, "inspect", "absent.ctf", code=1)
    assert shown["error"]["type"] == "DataError"
    assert shown["error"]["message"].startswith("expected a readable file")
    assert printed == f"DataError: {shown['error']['message']}\n"
    shown, printed = document(data, "inspect", "absent.ctf --debug", code=1)
    assert shown["error"]["type"] == "DataError"
    assert "Traceback" in printed
    shown, _ = document(data, "plan", "words.ctf --at soon", code=2)
    assert shown["error"] == {"type": "UsageError", "message": "expected --at N or --at samples:N, got 'soon'"}


@pytest.mark.parametrize("mode", ["words.ctf --nonsense", "words.ctf --size few", "", "words.ctf --seed"])
def test_wrong_arguments_are_a_document(data, mode):
    shown, printed = document(data, "plan", mode, code=2)
    assert shown["error"]["type"] == "UsageError"
    assert shown["error"]["message"]
    assert "Error" in printed


def before_commands(defect):
    """Run `feedline inspect x --json` with a defect before there is a command. Return what has ended, and its error."""
    code = f"import sys; {defect}; from feedline.cli import main; main()"
    arguments = [sys.executable, "-c", code, "inspect", "x", "--json"]
    done = subprocess.run(arguments, capture_output=True, text=True, env=ENV, timeout=100)
    return done, document_in(done.stdout, "inspect")["error"]


def test_errors_before_there_is_a_command_are_documents():
    done, error = before_commands("sys.modules['rich'] = None")
    assert (done.returncode, error["type"]) == (1, "ModuleNotFoundError")
    assert done.stderr.strip() == error["message"]
    interrupted = "import signal, typer; typer.Typer = lambda **_: signal.raise_signal(signal.SIGINT)"
    done, error = before_commands(interrupted)
    assert (done.returncode, error["type"], done.stderr) == (130, "KeyboardInterrupt", "")


def test_ctrl_c_is_a_document(tmp_path):
    path = tmp_path / "text.ctf"
    fl.write_ctf(path, x=np.ones((1000, 2), "f4"))
    process = start("bench", path, "--seconds", "80", "--json")
    end = time.monotonic() + 150
    try:
        while not list(tmp_path.glob("*.feedline-index")):  # it is not at work yet
            assert time.monotonic() < end
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=150)
    finally:
        process.kill()
    assert process.returncode == 130
    assert document_in(out, "bench") == {"error": {"type": "KeyboardInterrupt", "message": "interrupted"}}
    assert err.strip() == "interrupted"


# ---- the page -------------------------------------------------------------------------------------------------


def test_the_page_has_the_schemas():
    assert json_page.PAGE.read_text("utf-8") == json_page.page(), "run python -m tests.docs.json_page"
