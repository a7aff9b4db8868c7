"""`feedline tune` on small data, through the shell: the arguments that it prints run, and nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time

import numpy as np
import pytest

import feedline as fl
from feedline.cli.tune.corpora import AS_IS, MIXES_LESS, Corpora
from feedline.cli.tune.loaders import Loaders
from feedline.cli.tune.paired_search import UnavailableError
from tests.cli.shell import ENV, feedline, naming, start
from tests.linux import linux_only

MINE = """
import pathlib
import threading
import time

import numpy as np

import feedline as fl


class Slow:
    def __len__(self):
        return 64

    def __getitem__(self, i):
        time.sleep(0.002)
        return np.full(3, i, np.float32)


class OfOneThread(Slow):
    def __init__(self):
        self.thread = threading.get_ident()

    def __getitem__(self, i):
        if threading.get_ident() != self.thread:
            raise RuntimeError("not from another thread")
        return super().__getitem__(i)


def loader():
    return fl.DataLoader(Slow(), batch_size=4, shuffle=True, seed=1)


def with_step():
    return loader(), lambda batch: time.sleep(0.05)


class Marking(Slow):
    def __getitem__(self, i):
        pathlib.Path(__file__).with_suffix(".read").touch()
        return super().__getitem__(i)


def marking():
    return fl.DataLoader(Marking(), batch_size=4, num_workers=2)


def of_one_thread():
    return fl.DataLoader(OfOneThread(), batch_size=4)


def empty():
    return fl.DataLoader([], batch_size=4)


def numbers():
    return [1, 2, 3]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tune")
    rng = np.random.default_rng(0)
    x = rng.random((4000, 20), np.float32)
    fl.write_ctf(folder / "words.ctf", x=x, y=np.arange(4000, dtype="f4")[:, None])
    fl.convert(fl.ArrayDeserializer(x=x, y=np.arange(4000)), folder / "table.store")
    (folder / "rows.jsonl").write_text("".join(json.dumps({"x": i, "y": [i, i]}) + "\n" for i in range(4000)))
    (folder / "mine.py").write_text(MINE)
    return folder


def tuned(folder, *args, seconds=2):
    """Run the command in the folder, and return the document."""
    return json.loads(feedline("tune", *args, "--seconds", seconds, "--json", cwd=folder).stdout)


def run_code(code, folder, monkeypatch, tmp_path):
    """Run a program of the command, and return its variables."""
    monkeypatch.chdir(tmp_path)
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    variables = {}
    exec(code, variables)
    return variables


@pytest.mark.parametrize("name", ["words.ctf", "table.store", "rows.jsonl"])
def test_the_arguments_that_it_prints_run(folder, monkeypatch, tmp_path, name):
    result = tuned(folder, name)
    assert result["subject"] == name
    assert result["unit"] == "samples"
    present = [row for row in result["settings"] if row["present"]]
    chosen = [row for row in result["settings"] if row["chosen"]]
    assert len(present) == len(chosen) == 1
    assert present[0]["measured"] > 0
    assert present[0]["ratio"] == 1.0
    assert chosen[0]["arguments"] == result["arguments"]
    assert chosen[0]["arguments"] == present[0]["arguments"] | result["changes"]
    with run_code(result["code"], folder, monkeypatch, tmp_path)["source"] as source:
        assert source.num_samples == 4000
        assert source.next_minibatch(256).num_samples == 256


def test_every_setting_has_its_prediction_beside_its_measurement(folder):
    result = tuned(folder, "words.ctf", seconds=4)
    measured = [row for row in result["settings"] if row["measured"] is not None]
    assert len(measured) > 2
    for row in result["settings"]:
        assert row["predicted"] > 0
        assert (row["ratio"] is None) == (row["mixing"] is None) == (row["measured"] is None)
    for row in measured:
        assert row["mixing"] > 0.5
        changed = {name for name, value in row["arguments"].items() if value != measured[0]["arguments"][name]}
        assert row["keeps_order"] == changed.isdisjoint({"shuffle", "chunk_size", "format"})
    assert not [row for row in measured if row["chosen"] and row["remark"]]


def corpora(folder, name, **options):
    usual = {"size": 64, "seconds": 60.0, "window": None, "threads": 2, "stream": None, "schema": "strict"}
    usual |= {"chunk_size": "32M", "cold": False, "watch": lambda: None}
    return Corpora(str(folder / name), **(usual | options))


def settings_of(subject):
    """Every setting with one value that differs."""
    for name, values in subject.axes.items():
        for value in values:
            yield subject.normal({**subject.present, name: value})


@pytest.mark.parametrize("name", ["words.ctf", "table.store", "rows.jsonl"])
@pytest.mark.parametrize("cold", [False, pytest.param(True, marks=linux_only("a page cache that can be emptied"))])
def test_every_setting_runs_and_so_does_its_program(folder, monkeypatch, tmp_path, name, cold):
    with corpora(folder, name, window="32k", cold=cold) as subject:
        subject.measure(subject.present, 0.01)
        before = set(folder.iterdir())
        for setting in settings_of(subject):
            assert subject.measure(setting, 0.01) > 0
            assert set(folder.iterdir()) == before
            assert subject.predict(setting) > 0
            if setting == subject.present:
                assert not subject.refusal(setting)
            if cold:
                continue
            here = tmp_path / str(len(list(tmp_path.iterdir())))
            here.mkdir()
            code = subject.code(setting).replace(str(folder) + "/", "")
            with run_code(code, folder, monkeypatch, here)["source"] as source:
                assert source.next_minibatch(64).num_samples == 64


def test_a_smaller_window_is_refused_and_a_larger_one_is_not(folder):
    with corpora(folder, "words.ctf", window="80k", chunk_size="20k") as subject:
        subject.measure(subject.present, 0.01)
        small, large = (
            subject.normal({**subject.present, "shuffle": fl.Window(bytes=n)}) for n in (40 << 10, 160 << 10)
        )
        assert subject.refusal(small) == MIXES_LESS
        assert subject.refusal(large) == ""
        assert subject.mixing(small) < subject.mixing(subject.present) < subject.mixing(large) <= 1
        assert not subject.keeps_order(large)
        coarse = {**subject.present, "chunk_size": "40k"}
        assert subject.refusal(coarse) == MIXES_LESS


def test_windows_are_searched_around_the_present_one(folder):
    with corpora(folder, "table.store", window="16M") as subject:
        assert subject.axes["shuffle"] == [fl.Window(bytes=16 << 20)]  # all data fit into it
    with corpora(folder, "table.store", window="none") as subject:
        assert subject.axes["shuffle"] == [False]
        assert subject.mixing(subject.present) is None


def test_a_conversion_without_time_or_room_is_not_begun(folder, monkeypatch):
    store = {"format": "store"}
    with corpora(folder, "words.ctf", seconds=1e-6) as subject:
        subject.measure(subject.present, 0.01)
        with pytest.raises(UnavailableError, match=r"not converted: it takes about [\d.]+ s. Pass --seconds \d+"):
            subject.measure({**subject.present, **store}, 0.01)
        with pytest.raises(UnavailableError, match="not converted"):  # nor later
            subject.measure({**subject.present, **store}, 0.01)
    with corpora(folder, "words.ctf") as subject:
        subject.measure(subject.present, 0.01)
        monkeypatch.setattr("shutil.disk_usage", lambda path: os.terminal_size((0, 0)) and Usage)
        with pytest.raises(UnavailableError, match=r"has 5 B free. Set TMPDIR"):
            subject.measure({**subject.present, **store}, 0.01)


class Usage:
    free = 5


def test_a_corpus_without_sizes_or_an_end_is_searched_too(folder, tmp_path):
    (tmp_path / "mixture.yaml").write_text(
        "mixture:\n  a: {path: PATH}\n  b: {path: PATH}\nweights: {a: 1, b: 2}\n".replace(
            "PATH", str(folder / "table.store")
        )
    )
    result = tuned(folder, tmp_path / "mixture.yaml", seconds=1)
    assert {row["arguments"]["format"] for row in result["settings"]} == {AS_IS}
    assert all(row["mixing"] is None for row in result["settings"])


def test_data_larger_than_the_memory_are_to_be_searched_cold(folder, monkeypatch):
    with corpora(folder, "table.store") as subject, corpora(folder, "table.store", cold=True) as evicted:
        assert subject.notes() == evicted.notes() == []
        monkeypatch.setattr("os.sysconf", lambda name: 64)
        (note,) = subject.notes()
        assert re.fullmatch(r"The memory holds at most 4.1 kB of .* kB: pass --cold, .*", note)
        assert evicted.notes() == []


# ---- loaders ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["mine:loader", "mine.py:loader"])
def test_workers_are_added_to_a_slow_dataset(folder, spec):
    result = tuned(folder, spec, seconds=4)
    assert result["unit"] == "batches"
    assert result["code"].startswith("fl.DataLoader(..., num_workers=")
    loader = eval(result["code"].replace("...", "list(range(8)), batch_size=4"), {"fl": fl})
    with loader:
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert all(row["keeps_order"] for row in result["settings"])
    predicted = {row["arguments"]["num_workers"]: row["predicted"] for row in result["settings"]}
    assert predicted[4] > predicted[2] > predicted[0]  # items wait
    assert not naming(str(folder / "mine.py"))


@pytest.fixture
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])


def test_every_setting_of_a_loader_runs(here):
    with Loaders("mine:loader", lambda: None) as subject:
        subject.measure(subject.present, 0.01)
        for setting in settings_of(subject):
            assert subject.measure({**setting, "num_workers": setting["num_workers"] or 2}, 0.01) > 0
        assert subject.measure(subject.present, 0.01) > 0


def test_the_work_of_the_loop_counts(here):
    with Loaders("mine:with_step", lambda: None) as subject:
        assert subject.measure(subject.present, 0.2) < 1 / 0.05
        more = {**subject.present, "num_workers": 4}
        assert subject.predict(subject.present) < subject.predict(more) < 1 / 0.05


def test_a_setting_that_the_dataset_does_not_bear_is_not_chosen(here):
    with Loaders("mine:of_one_thread", lambda: None) as subject:
        subject.measure(subject.present, 0.01)
        with pytest.raises(UnavailableError, match="not from another thread"):
            subject.measure({**subject.present, "num_workers": 1, "workers": "thread"}, 0.01)
        assert subject.measure(subject.present, 0.01) > 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["mine.py"], 2, "pass mine.py:FACTORY"),
        (["mine:none"], 1, "expected a factory at mine:none"),
        (["none.py:loader"], 1, "expected a script at none.py"),
        (["mine:numbers"], 1, "expected a feedline.DataLoader from mine:numbers, got builtins.list"),
        (["mine:empty"], 1, "no batches were delivered"),
        (["mine:loader", "--cold"], 2, "expected a path with --cold"),
        (["nothing.ctf"], 1, "nothing.ctf"),
    ],
)
def test_errors(folder, arguments, code, message):
    assert message in feedline("tune", *arguments, code=code, cwd=folder).stderr


# ---- the command --------------------------------------------------------------------------------------


def test_the_table(folder):
    shown = feedline("tune", "words.ctf", "--seconds", 2, cwd=folder).stdout
    head, *lines = shown.splitlines()
    assert head.startswith("words.ctf: ")
    assert lines[0].split() == ["setting", "predicted", "samples/s", "ratio", "order"]
    assert re.search(r" present .* same, +(9\d|100)%", shown)
    assert "import feedline as fl\n" in shown
    assert shown.splitlines()[-1].startswith("source = fl.MinibatchSource(corpus")


@pytest.mark.parametrize(("name", "sign"), [("words.ctf", "temporary/*"), ("mine.py:marking", "work/mine.read")])
def test_ctrl_c_leaves_nothing(folder, tmp_path, monkeypatch, name, sign):
    work, temporary = tmp_path / "work", tmp_path / "temporary"
    work.mkdir()
    temporary.mkdir()
    for path in ("words.ctf", "mine.py"):
        shutil.copy(folder / path, work)
    monkeypatch.setattr("tests.cli.shell.ENV", {**ENV, "TMPDIR": str(temporary)})
    process = start("tune", work / name, "--seconds", "60")
    try:
        while not list(tmp_path.glob(sign)):  # the command is at work
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert (out, err.strip().splitlines()[-1]) == ("", "interrupted")
    assert not list(temporary.iterdir())
    assert not naming(str(work))
