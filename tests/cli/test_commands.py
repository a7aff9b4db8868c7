"""inspect, convert, plan and bench on small files, through the shell."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import feedline as fl
from feedline.cli import cost as costs
from feedline.cli.app import COMMANDS
from feedline.feed.timeline import BlockOrder, ChunkTable
from feedline.runs.history import read_history
from feedline.system import PORTABLE
from feedline.testing import bytes_digest
from tests.cli.shell import ENV, feedline, start
from tests.linux import linux_only

LENGTHS = [1, 2, 3, 3, 3, 40, 7, 1, 100, 12] * 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def ctf(folder):
    rng = np.random.default_rng(0)
    path = folder / "words.ctf"
    fl.write_ctf(
        path,
        word=fl.Value.one_hot([rng.integers(9, size=n) for n in LENGTHS[:-1]] + [np.full(12, 8)], 9),
        label=rng.normal(size=(len(LENGTHS), 2)).astype("f4"),
    )
    return path


@pytest.fixture(scope="module")
def npz(folder):
    path = folder / "arrays.npz"
    np.savez(path, x=np.arange(600, dtype="f4").reshape(300, 2), y=np.arange(300))
    return path


def document(*args, **options):
    return json.loads(feedline(*args, "--json", **options).stdout)


# ---- inspect ------------------------------------------------------------------------------------------


def test_inspect_counts(ctf):
    found = document("inspect", ctf)
    assert (found["format"], found["sequences"], found["samples"]) == ("ctf", len(LENGTHS), sum(LENGTHS))
    assert [(s["name"], s["shape"], s["sparse"]) for s in found["streams"]] == [
        ("word", [9], True),
        ("label", [2], False),
    ]
    assert found["streams_guessed"]
    lengths = found["lengths"]
    assert (lengths["min"], lengths["max"], lengths["mean"]) == (1, 100, pytest.approx(np.mean(LENGTHS)))
    for row in lengths["histogram"]:
        assert row["sequences"] == sum(row["from"] <= n <= row["to"] for n in LENGTHS)
    assert sum(row["sequences"] for row in lengths["histogram"]) == len(LENGTHS)
    assert found["bytes"] <= ctf.stat().st_size


def test_inspect_shows_the_first_sequences(ctf):
    corpus = fl.CTFDeserializer(ctf, word=fl.Stream(9, sparse=True), label=fl.Stream(2))
    found = document("inspect", ctf, "--stream", "word=9:sparse", "--stream", "label=2", "--preview", "3")
    assert not found["streams_guessed"]
    assert len(found["preview"]) == 3
    chunk = corpus.read(0)
    for i, shown in enumerate(found["preview"]):
        word = chunk["word"].sequences()[i]
        assert shown["streams"]["word"]["samples"] == LENGTHS[i]
        assert [[cell[0] for cell in row] for row in shown["streams"]["word"]["first"]] == [
            [index] for index in word.indices[:4].tolist()
        ]
        assert shown["streams"]["label"]["first"] == chunk["label"].rows[i : i + 1].tolist()


def test_inspect_for_people(ctf):
    out = feedline("inspect", ctf).stdout
    assert "guessed" in out
    assert "lengths in samples: 1 to 100" in out
    assert "█" in out or "#" in out


def test_inspect_arrays(npz):
    found = document("inspect", npz, "--preview", "0")
    assert (found["format"], found["random_access"], found["sequences"]) == ("npz", True, 300)
    assert found["lengths"]["histogram"] == [{"from": 1, "to": 1, "sequences": 300}]
    assert found["preview"] == []


def test_inspect_names_unreadable_sequences(tmp_path):
    path = tmp_path / "bad.ctf"
    path.write_text("0\t|x 1 2\n1\t|x 1 oops\n2\t|x 3 4\n")
    found = document("inspect", path, "--stream", "x=2")
    assert "oops" not in str(found["preview"][0])
    assert "bad.ctf:2" in found["preview"][1]["error"]


# ---- convert ------------------------------------------------------------------------------------------


def sweep(corpus):
    with fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1) as source:
        return bytes_digest(source.minibatches(64))


def test_convert_ctf(ctf, tmp_path):
    found = document("convert", ctf, tmp_path / "store")
    assert (found["sequences"], found["samples"], found["skipped"]) == (len(LENGTHS), sum(LENGTHS), 0)
    text = fl.CTFDeserializer(ctf, word=fl.Stream(9, sparse=True), label=fl.Stream(2))
    assert sweep(fl.StoreDeserializer(tmp_path / "store")) == sweep(text)


def test_convert_prints_guessed_streams(ctf, tmp_path):
    """A guess becomes part of the store: a class that the text does not use would be missing for good."""
    guessed = feedline("convert", ctf, tmp_path / "a").stdout
    assert "word (9,) sparse, label (2,)" in guessed
    assert "guessed" in guessed
    assert "--stream" in guessed
    assert document("convert", ctf, tmp_path / "b")["streams_guessed"]
    declared = feedline("convert", ctf, tmp_path / "c", "--stream", "word=20:sparse").stdout
    assert "word (20,) sparse" in declared
    assert "to be sure" not in declared


def test_convert_refuses_to_replace_by_default(npz, tmp_path):
    feedline("convert", npz, tmp_path / "store")
    done = feedline("convert", npz, tmp_path / "store", code=1)
    assert "Traceback" not in done.stderr
    assert "store" in done.stderr
    assert "pass --overwrite" in done.stderr
    feedline("convert", npz, tmp_path / "store", "--overwrite")


def test_convert_csv_columns(tmp_path):
    csv = tmp_path / "table.csv"
    csv.write_text("a,b,c\n" + "".join(f"{i},{2 * i},{i % 3}\n" for i in range(50)))
    found = document("convert", csv, tmp_path / "store", "--stream", "x=a,b", "--stream", "y=c")
    assert found["streams"] == ["x", "y"]
    chunk = fl.StoreDeserializer(tmp_path / "store").read(0)
    assert chunk["x"].rows.tolist() == [[i, 2 * i] for i in range(50)]
    assert chunk["y"].rows.tolist() == [i % 3 for i in range(50)]


def test_every_command_takes_columns_of_csv(tmp_path):
    csv = tmp_path / "table.csv"
    csv.write_text("a,b,c\n" + "".join(f"{i},{2 * i},{i % 3}\n" for i in range(50)))
    streams = ("--stream", "x=a,b", "--stream", "y=scalar:int8:field=c")
    assert [stream["name"] for stream in document("inspect", csv, *streams)["streams"]] == ["x", "y"]
    assert document("validate", csv, *streams)["sequences"] == 50
    (declared,) = document("inspect", csv, "--stream", "c=scalar:int8")["streams"]
    assert (declared["name"], declared["dtype"]) == ("c", "int8")
    done = feedline("validate", csv, "--stream", "x=a,b", "--stream", "x=c", code=2)
    assert "got `x` twice" in done.stderr


def test_convert_in_random_order(npz, tmp_path):
    found = document("convert", npz, tmp_path / "store", "--shuffle", "5", "--memory", "1k")
    fl.convert(npz, tmp_path / "same", shuffle=5)
    one, two = (sweep(fl.StoreDeserializer(tmp_path / name)) for name in ("store", "same"))
    assert one == two != sweep(fl.open_corpus(npz))
    assert found["sequences"] == 300


def test_convert_leaves_nothing_of_damaged_data(tmp_path):
    path = tmp_path / "bad.ctf"
    path.write_text("0\t|x 1 2\n1\t|x 1 oops\n2\t|x 3 4\n")
    done = feedline("convert", path, tmp_path / "store", "--stream", "x=2", code=1)
    assert "bad.ctf:2" in done.stderr
    assert "--skip-errors" in done.stderr
    assert done.stdout == ""
    assert not [p for p in tmp_path.iterdir() if "store" in p.name]
    found = document("convert", path, tmp_path / "store", "--stream", "x=2", "--skip-errors")
    assert (found["sequences"], found["skipped"]) == (2, 1)


def test_convert_with_threads_and_a_list(tmp_path):
    path = tmp_path / "bad.ctf"
    path.write_text("".join(f"|x {i} {i}\n" if i != 5 else "|x 1 2 3\n" for i in range(20)))
    shown = feedline("validate", path, "--stream", "x=2", "--list", tmp_path / "bad.jsonl", code=1).stdout
    assert "damaged    1" in shown
    assert "expected at most 2 values" in shown
    found = document("validate", path, "--stream", "x=2", "--jobs", "2", code=1)
    assert (found["sequences"], found["damaged"], found["errors"][0]["sequence"]) == (20, 1, 5)
    found = document(
        "convert", path, tmp_path / "s", "--stream", "x=2", "--jobs", "2", "--skip", tmp_path / "bad.jsonl"
    )
    assert (found["sequences"], found["skipped"]) == (19, 1)
    assert document("validate", tmp_path / "s")["damaged"] == 0


def test_inspect_and_plan_show_the_cost_of_reading(tmp_path):
    """The default order is marked. Figures of the disk are there where the file system has direct reads."""
    x = np.random.default_rng(0).random((5000, 100), np.float32)
    fl.convert(fl.ArrayDeserializer(x=x), tmp_path / "store", chunk_bytes=100_000)
    cost = document("inspect", tmp_path / "store")["cost"]
    assert cost["bytes"] == (tmp_path / "store" / "part-00000.arrow").stat().st_size
    assert [name for name, order in cost["orders"].items() if order["default"]] == ["whole"]
    assert cost["orders"]["windows"]["variance"] == 1  # one window holds everything
    shown = feedline("inspect", tmp_path / "store").stdout
    assert "all (default)" in shown
    assert "in the page cache" in shown
    assert document("plan", tmp_path / "store")["cost"].keys() == cost.keys()
    assert "in the page cache" not in feedline("plan", tmp_path / "store").stdout
    large = np.zeros((5000, 1000), np.float32)
    fl.convert(fl.ArrayDeserializer(x=large), tmp_path / "large")
    assert "in the page cache" in feedline("plan", tmp_path / "large").stdout


@linux_only("a page cache that can be emptied")
def test_bench_cold(tmp_path):
    """Evicts the files first, feeds one sweep at most, compares with bare reads, and refuses data in memory."""
    x = np.random.default_rng(0).random((5000, 100), np.float32)
    fl.convert(fl.ArrayDeserializer(x=x), tmp_path / "store")
    found = document("bench", tmp_path / "store", "--cold", "--seconds", "20")
    assert found["samples"] == 5000
    assert 0 <= found["cold"]["resident_before"] <= 1
    assert "of the data was in the page cache before" in feedline("bench", tmp_path / "store", "--cold").stdout
    np.savez(tmp_path / "a.npz", x=x)
    assert "data in files" in feedline("bench", tmp_path / "a.npz", "--cold", code=1).stderr


# ---- plan ---------------------------------------------------------------------------------------------


def delivered(corpus, steps, size=64, **options):
    with fl.MinibatchSource(corpus, **options) as source:
        return [
            (m.ids.tolist(), m.num_samples, m.position.samples)
            for m, _ in zip(source.minibatches(size), range(steps), strict=False)
        ]


def planned(*args):
    return [(s["ids"], s["num_samples"], s["position"]["samples"]) for s in document("plan", *args)["steps"]]


def test_plan_of_a_mixture_shows_earlier_stages(tmp_path):
    for name, count in (("a", 40), ("b", 20)):
        np.save(tmp_path / f"{name}.npy", np.arange(count, dtype=np.float32))
    described = {"mixture": {"a": "a.npy", "b": "b.npy"}, "weights": {"a": 3, "b": 1}}
    (tmp_path / "mixture.json").write_text(json.dumps(described))
    told = document("plan", tmp_path / "mixture.json", "--at", 4, "--size", 8)["corpora"]
    assert told["a"]["declared"] == 0.75
    assert told["a"]["sequences"] + told["b"]["sequences"] == 32
    shown = feedline("plan", tmp_path / "mixture.json", "--at", 4, "--size", 8).stdout
    assert "before step 4" in shown
    assert "75.0000%" in shown


@pytest.mark.parametrize("arcs", [None, 4])
def test_plan_matches_the_delivered_minibatches(ctf, arcs):
    corpus = fl.CTFDeserializer(ctf, word=fl.Stream(9, sparse=True), chunk_size=1024)
    options = {"seed": 5, "shuffle": fl.Window(bytes=4096), "partition": (1, 2)}
    options |= {} if arcs is None else {"order": fl.Arcs(arcs)}
    expected = delivered(corpus, 12, **options)
    common = ("--seed", 5, "--size", 64, "--window", "bytes=4k", "--chunk-size", "1k", "--partition", "1/2")
    common += () if arcs is None else ("--arcs", arcs)
    assert planned(ctf, "--at", 7, "--steps", 5, *common) == expected[7:12]
    shown = document("plan", ctf, "--at", f"samples:{expected[9][2]}", *common)["steps"]
    assert [shown[0]["ids"], shown[0]["step"]] == [expected[9][0], 0]


def test_plan_of_arrays(npz):
    expected = delivered(fl.open_corpus(npz), 6, seed=2)
    assert planned(npz, "--seed", 2, "--size", 64, "--at", 4, "--steps", 2) == expected[4:]
    assert planned(npz, "--size", 64, "--window", "none")[0][0] == list(range(64))
    assert planned(npz, "--size", 64, "--window", "all", "--seed", 2, "--at", 4) == expected[4:5]
    assert "step 4 " in feedline("plan", npz, "--at", 4).stdout


def test_one_window_over_text(ctf):
    (found,) = planned(ctf, "--chunk-size", "1k", "--size", 10000, "--window", "all")
    corpus = fl.CTFDeserializer(ctf, word=fl.Stream(9, sparse=True), chunk_size=1024)
    assert len(corpus.chunks()) > 3
    ((expected, *_),) = delivered(corpus, 1, size=10000, shuffle=fl.Window(chunks=len(corpus.chunks())))
    assert found[0] == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--at", "now"], "--at N"),
        (["--window", "some"], "--window bytes=N"),
        (["--window", "bytes=0"], "at least 1"),
        (["--partition", "2/2"], "0 <= I < K"),
        (["--order", "mine"], "feedline"),
        (["--stream", "x"], "NAME=SHAPE"),
        (["--stream", "x=2", "--stream", "x=2"], "twice"),
        (["--stream", "x=2:float99"], "float99"),
        (["--stream", "x=two"], "28x28"),
        (["--stream", "x=2x2:sparse"], "one dimension"),
        (["--chunk-size", "many"], "at least 1"),
        (["--partition", "4/4", "--debug"], "0 <= I < K"),
    ],
)
def test_unreadable_files_are_reported(npz, arguments, expected):
    done = feedline("plan", npz, *arguments, code=2)
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


# ---- bench --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ctf", "npz"])
def test_bench_accounts_for_its_time(kind, request):
    found = document("bench", request.getfixturevalue(kind), "--seconds", "0.3", "--size", "32")
    assert found["samples"] > 0
    assert found["minibatches"] > 0
    assert sum(found["time"].values()) >= found["seconds"] * 0.999
    assert found["samples_per_second"] == pytest.approx(found["samples"] / found["seconds"])
    assert found["share_of_copy"] == pytest.approx(
        found["delivered_bytes"] / found["seconds"] / found["copy_bytes_per_second"]
    )
    assert PORTABLE or found["private_bytes_peak"] > 0
    assert found["time"]["gathering"] > 0
    assert found["time"]["planning"] > 0
    assert found["indexed"] in (False, kind == "ctf")


def test_bench_writes_a_log_that_makes_a_page(npz, tmp_path):
    """The log's sums are the bench's figures, and `report` shows them."""
    log = tmp_path / "bench.jsonl"
    found = document("bench", npz, "--seconds", "0.3", "--size", "32", "--log", log)
    history = read_history(log)
    fed = history.fed()
    assert (fed.minibatches, fed.sequences, fed.samples) == tuple(
        found[name] for name in ("minibatches", "sequences", "samples")
    )
    assert history.seconds > 0
    assert history.ended["figures"]["copy_bytes_per_second"] == found["copy_bytes_per_second"]
    page = feedline("report", log, "--output", tmp_path / "page.html").stdout.strip()
    assert page == str(tmp_path / "page.html")
    assert f"samples a minibatch ({fed.minibatches:,})" in Path(page).read_text("utf-8")
    assert document("report", tmp_path)["page"] == str(tmp_path / "report.html")


def test_report_names_a_missing_log(tmp_path):
    """An exit code and a message. Nothing is written."""
    assert "expected a log in" in feedline("report", tmp_path, code=1).stderr
    assert list(tmp_path.iterdir()) == []
    assert "--loader" in feedline("bench", "--loader", "a:b", "--log", tmp_path / "a.jsonl", code=2).stderr


def test_bench_for_people(npz):
    out = feedline("bench", npz, "--seconds", "0.2").stdout
    assert "where the caller's time goes" in out
    assert "copies" in out


LOADERS = """
import time
from pathlib import Path

import numpy as np

import feedline as fl


class Slow:
    def __len__(self):
        return 40

    def __getitem__(self, i):
        time.sleep(0.002)
        return np.full(1000, i, np.float32)


def slow():
    return fl.DataLoader(Slow(), batch_size=4, seed=0), lambda batch: time.sleep(0.002)


def workers():
    return fl.DataLoader(Slow(), batch_size=4, seed=0, num_workers=2)


def of_torch():
    from torch.utils.data import DataLoader

    return DataLoader(Slow(), batch_size=4), lambda batch: time.sleep(0.002)


def outrun():
    return fl.DataLoader(np.zeros((40, 2)), batch_size=4), lambda batch: time.sleep(0.03)


def empty():
    return []


def wrong():
    return 3
"""


def test_bench_of_a_loader(tmp_path):
    """Reports the cost of waiting and the gain of a perfect loader: 8 ms of reading for 2 ms of work per batch."""
    (tmp_path / "mine.py").write_text(LOADERS)

    def measured(spec):
        out = feedline("bench", "--loader", spec, "--seconds", "0.5", "--json", cwd=tmp_path).stdout
        return json.loads(out)

    found = measured("mine:slow")
    assert found["batches"] > 2
    assert found["bytes_per_second"] == pytest.approx(found["batches_per_second"] * 4 * 4000)
    assert found["waiting_seconds"] >= 0.008 * found["batches"]
    assert found["perfect_seconds_per_batch"] >= 0.002
    assert found["gain"] > 1.5
    found = measured("mine:workers")
    assert len(found["stats"]["workers"]) == 2
    assert found["gain"] > 1.5
    out = feedline("bench", "--loader", "mine:workers", "--seconds", "0.2", cwd=tmp_path).stdout
    assert "a perfect loader would make this loop" in out
    assert found["advice"] == found["stats"]["advice"]
    assert "  advice       " in out
    assert measured("mine:outrun")["advice"].startswith("The loop is the limit")
    assert measured("mine:slow")["advice"].startswith("Add workers: num_workers=")
    assert measured("mine:of_torch")["advice"].startswith("The loader is the limit. It has no figures")
    for spec, said in (
        ("mine:none", "mine:none"),
        ("none:x", "none"),
        ("mine:wrong", "int"),
    ):
        assert said in feedline("bench", "--loader", spec, cwd=tmp_path, code=1).stderr
    assert "without" in feedline("bench", "--loader", "mine:empty", cwd=tmp_path, code=1).stderr
    assert "module:factory" in feedline("bench", "--loader", "mine", cwd=tmp_path, code=2).stderr
    assert "got neither" in feedline("bench", code=2).stderr


# ---- how commands end ---------------------------------------------------------------------------------


def test_errors_are_messages_and_debug_shows_more(tmp_path):
    done = feedline("inspect", tmp_path / "none.ctf", code=1)
    assert done.stdout == ""
    assert done.stderr.startswith("DataError: expected a readable file")
    assert "Traceback" not in done.stderr
    assert "Traceback" in feedline("inspect", tmp_path / "none.ctf", "--debug", code=1).stderr


def test_wrong_usage():
    assert "Usage" in feedline("plan", code=2).stderr
    assert "No such option" in feedline("inspect", "x", "--nonsense", code=2).stderr
    assert "zstd or auto" in feedline("convert", "x", "y", "--compression", "gzip", code=2).stderr


def test_version_and_help():
    assert feedline("--version").stdout.strip().partition(" (")[0] == f"feedline {fl.__version__}"
    out = feedline("--help").stdout
    for command in ("inspect", "convert", "plan", "bench", "demo"):
        assert command in out


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_missing_packages_are_named(package):
    code = f"import sys; sys.modules[{package!r}] = None; from feedline.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENV, timeout=60)
    assert done.returncode == 1
    assert re.search(r"pip install .*\[cli\]'", done.stderr)
    assert "Traceback" not in done.stderr


def test_ctrl_c(tmp_path):
    path = tmp_path / "text.ctf"
    fl.write_ctf(path, x=np.ones((1000, 2), "f4"))
    process = start("bench", path, "--seconds", "80")
    try:
        wait_until(lambda: list(tmp_path.glob("*.feedline-index")))  # the command is at work
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=150)
    finally:
        process.kill()
    assert process.returncode == 130
    assert out == ""
    assert err.strip() == "interrupted"


def test_a_reader_that_leaves_is_no_crash(npz):
    process = start("plan", npz, "--steps", "5000", "--size", "64", "--json")
    assert process.stdout.read(1) == "{"
    process.stdout.close()
    assert process.wait(timeout=60) == 1
    assert process.stderr.read() == ""
    process.stderr.close()


def test_bars_on_a_terminal_and_json_elsewhere(ctf, tmp_path):
    copy = tmp_path / "fresh.ctf"  # has no index yet, so that there is something to wait for
    copy.write_bytes(ctf.read_bytes())
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "feedline", "inspect", str(copy), "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**ENV, "TERM": "xterm"},
    )
    os.close(theirs)
    out = process.stdout.read()
    process.stdout.close()
    drawn = b""
    try:
        while part := os.read(ours, 4096):
            drawn += part
    except OSError:  # how Linux reports that the other end is closed
        pass
    os.close(ours)
    assert process.wait(timeout=60) == 0
    assert json.loads(out)["sequences"] == len(LENGTHS)
    assert b"indexing" in drawn


def wait_until(condition, seconds=150):
    stop = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < stop, "waited in vain"
        time.sleep(0.01)


def test_mixing_follows_the_share_of_the_data_in_a_window(tmp_path, monkeypatch):
    """Blocks drawn without replacement: 1 when one window holds all, and the page's 1 + B/k when windows are many."""
    x = np.zeros((5000, 2000), np.float32)
    fl.convert(fl.ArrayDeserializer(x=x), tmp_path / "store")
    corpus = fl.StoreDeserializer(tmp_path / "store")
    blocks = len(BlockOrder(ChunkTable(corpus.chunks()), 0, True, fl.Window(bytes=4 << 20)).table)
    stored = sum(info.bytes for info in corpus.chunks())
    for share in (1, 2, 8):
        monkeypatch.setattr(costs, "DEFAULT_WINDOW", fl.Window(bytes=stored // share))
        found = costs.cost(corpus, 0.05)["orders"]["windows"]["variance"]
        assert found == pytest.approx(1 + 256 * (share - 1) / blocks, rel=0.01)


def test_help_has_the_summary_of_each_commands_help():
    """Only the command that is run is imported. A table has the summaries of the others."""
    for name, about in COMMANDS.items():
        command = getattr(importlib.import_module(f"feedline.cli.{name}"), name)
        assert " ".join(inspect.getdoc(command).partition("\n\n")[0].split()) == about
    shown = feedline("--help").stdout
    assert all(f" {name} " in shown for name in COMMANDS)
    loaded = "import sys; from feedline.cli.app import app_for; app_for(None); print('feedline.feed' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True).stdout == "False\n"
