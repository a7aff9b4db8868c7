"""Checkpoints are complete or absent, and damaged ones are skipped with a reason."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl

torch = pytest.importorskip("torch", reason="torch is not installed")

from feedline.train.checkpoint import STATE, TENSORS, Checkpoints, load  # noqa: E402
from tests.effort import examples  # noqa: E402
from tests.warm import Python, run  # noqa: E402

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]


def tensors(seed=0):
    rng = np.random.default_rng(seed)
    result = {f"t{i}": torch.from_numpy(rng.normal(size=(i, 3)) * 4).to(d) for i, d in enumerate(DTYPES)}
    result["scalar"] = torch.tensor(float(seed))
    return result


def equal(a, b):
    return a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in a)


def test_round_trip(tmp_path):
    """All dtypes, empty tensors and scalars are loaded bit for bit, and the state as JSON."""
    state = {"position": {"sweep": 1, "samples": 2**53}, "rng": [1, 2, 3], "best": None, "rate": 0.1}
    path = Checkpoints(tmp_path / "a" / "b").save(7, tensors(), state)
    loaded = load(path)
    assert equal(loaded.tensors, tensors())
    assert loaded.state == state
    assert sorted(os.listdir(path)) == [STATE, TENSORS]


def test_tied_and_viewed_tensors(tmp_path):
    """Tensors that share memory are stored once, views separately."""
    matrix = torch.arange(12.0).reshape(3, 4)
    given_ = {"a": matrix, "tied": matrix, "row": matrix[1], "column": matrix[:, 2], "t": matrix.t()}
    path = Checkpoints(tmp_path).save(1, given_, {})
    assert equal(load(path).tensors, given_)
    assert (path / TENSORS).stat().st_size < 4 * (12 + 4 + 3 + 12) + 900


def test_keep_and_order(tmp_path):
    """The newest ones stay, by the order of saving and not by number or time stamp."""
    store = Checkpoints(tmp_path, keep=2)
    for number in (5, 30, 200):
        store.save(number, tensors(number), {"n": number})
    assert [p.name for p in store.paths()] == ["checkpoint-000002-30", "checkpoint-000003-200"]
    for number in (200, 7):
        store.save(number, tensors(1), {"n": "again"})
        assert store.latest().state == {"n": "again"}
    assert [p.name for p in store.paths()] == ["checkpoint-000004-200", "checkpoint-000005-7"]
    (tmp_path / "checkpoint-notes.txt").touch()
    assert Checkpoints(tmp_path, keep=1).save(3, {}, {}).name == "checkpoint-000006-3"
    assert sorted(os.listdir(tmp_path)) == ["checkpoint-000006-3", "checkpoint-notes.txt"]


def test_the_only_checkpoint_stays_until_the_next_is_complete(tmp_path, monkeypatch):
    """If it is killed between any two steps on the file system, with one to keep, there is always one to load."""
    store = Checkpoints(tmp_path, keep=1)
    store.save(5, tensors(5), {"n": 0})
    real = os.rename, os.fsync

    class Killed(BaseException): ...

    def step(call):
        def stepped(*arguments, **options):
            nonlocal remaining_steps
            assert store.latest() is not None
            if remaining_steps == 0:
                raise Killed
            remaining_steps -= 1
            return call(*arguments, **options)

        return stepped

    monkeypatch.setattr(os, "rename", step(real[0]))
    monkeypatch.setattr(os, "fsync", step(real[1]))
    killed = 0
    for steps in range(30):
        remaining_steps = steps
        try:
            store.save(5, tensors(5), {"n": steps})
            break
        except Killed:
            killed += 1
            assert store.latest() is not None
    assert 3 < killed < 29


def test_leftovers_of_a_dead_process_with_our_id_are_removed(tmp_path):
    """In containers process ids repeat, so incomplete folders with our id may be of another process."""
    (tmp_path / f".writing-{os.getpid()}-0").mkdir()
    (tmp_path / f".writing-{os.getppid()}-0").mkdir()
    Checkpoints(tmp_path).save(1, {}, {})
    assert sorted(os.listdir(tmp_path)) == [f".writing-{os.getppid()}-0", "checkpoint-000001-1"]


@settings(max_examples=examples(75))
@given(st.data())
def test_damage_anywhere_is_detected(tmp_path_factory, data):
    """After any cut, change, move or addition of bytes, the previous checkpoint is used, or the content is equal."""
    folder = tmp_path_factory.mktemp("c")
    store = Checkpoints(folder)
    store.save(1, tensors(1), {"n": 1})
    path = store.save(2, tensors(2), {"n": 2, "position": {"sweep": 0, "samples": 20}, "rate": 0.5})
    file = path / data.draw(st.sampled_from([STATE, TENSORS]))
    content = file.read_bytes()
    damaged = changed(data, content)
    file.write_bytes(damaged)
    latest = store.latest()
    if damaged == content:
        assert (latest.path, latest.state["n"]) == (path, 2)
    else:
        assert (latest.path.name, latest.state) == ("checkpoint-000001-1", {"n": 1})
        assert equal(latest.tensors, tensors(1))


def changed(data, content):
    """The content with one change to a bit, a digit, a key, a block, or its end."""
    at = data.draw(st.integers(0, len(content) - 1))
    how = data.draw(st.sampled_from(["bit", "digit", "bytes", "insert", "delete", "cut", "extend", "swap"]))
    damaged = bytearray(content)
    if how == "bit":
        damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    elif how == "digit":
        digits = [i for i, c in enumerate(content) if 48 <= c <= 57]
        damaged[data.draw(st.sampled_from(digits))] = data.draw(st.integers(48, 57))
    elif how == "bytes":
        damaged[at : at + 64] = bytes(len(damaged[at : at + 64]))
    elif how == "insert":
        damaged[at:at] = data.draw(st.binary(min_size=1, max_size=9))
    elif how == "delete":
        del damaged[at : at + 16]
    elif how == "cut":
        del damaged[at:]
    elif how == "extend":
        damaged += data.draw(st.binary(min_size=1, max_size=9))
    else:
        other_byte = data.draw(st.integers(0, len(content) - 1))
        damaged[at], damaged[other_byte] = damaged[other_byte], damaged[at]
    return bytes(damaged)


def two(folder, **second):
    """Save two checkpoints that differ by the arguments."""
    store = Checkpoints(folder)
    return (
        store,
        store.save(1, tensors(1), {"n": 1}),
        store.save(2, **{"tensors": tensors(2), "state": {"n": 2}, **second}),
    )


@pytest.mark.parametrize("equal_tensors", [False, True])
@pytest.mark.parametrize("file", [STATE, TENSORS])
def test_state_and_tensors_of_two_checkpoints_are_not_mixed(tmp_path, caplog, file, equal_tensors):
    """Not even if the tensors are equal, as the state would be an older one."""
    store, first, second = two(tmp_path, **({"tensors": tensors(1)} if equal_tensors else {}))
    (second / file).write_bytes((first / file).read_bytes())
    assert store.latest().path == first
    assert str(second / TENSORS) in caplog.text


def weird(what, path):
    """Replace a checkpoint, or one of its files, with something else."""
    state = path / STATE
    if what == "a folder":
        state.unlink()
        state.mkdir()
    elif what == "a FIFO":
        state.unlink()
        os.mkfifo(state)
    elif what == "a device":
        state.unlink()
        state.symlink_to("/dev/zero")
    elif what == "huge and empty":
        os.truncate(state, 1 << 40)
    elif what in TEXTS:
        state.write_text(TEXTS[what])
    else:
        shutil.rmtree(path)
        if what == "file":
            path.write_text("x")
        elif what == "FIFO":
            os.mkfifo(path)
        elif what == "link to nowhere":
            path.symlink_to(path / "nowhere")
        elif what == "link to itself":
            path.symlink_to(path)
        else:
            assert what == "empty"
            path.mkdir()


TEXTS = {
    "nested deeply": "[" * 200_000,
    "nested deeply, as an object": '{"feedline":' * 100_000,
    "a number of ten thousand digits": '{"feedline": 1' + "0" * 10_000 + "}",
    "an empty state": '{"feedline": 1}',
    "another version": '{"feedline": 99}',
    "no object": "3",
    "true": '{"feedline": true}',
    "not UTF-8": "\ud800".encode("utf-8", "surrogatepass").decode("latin1"),
    "a seal and no more": '{"feedline": 2, "seal": "' + "0" * 64 + '"}',
    "half a seal": '{"feedline": 2, "seal": "00',
}
OTHERS = [
    "a folder",
    "a FIFO",
    "a device",
    "huge and empty",
    "file",
    "FIFO",
    "link to nowhere",
    "link to itself",
    "empty",
]


@pytest.mark.parametrize("what", [*TEXTS, *OTHERS])
def test_nothing_in_the_folder_prevents_the_fallback(tmp_path, caplog, what):
    """The log names it, the checkpoint before it is used, and the next save removes it like any other."""
    store, first, second = two(tmp_path)
    weird(what, second)
    assert store.latest().path == first
    assert f"skipping {second}" in caplog.text
    Checkpoints(tmp_path, keep=1).save(3, tensors(3), {"n": 3})
    assert sorted(os.listdir(tmp_path)) == ["checkpoint-000003-3"]


def test_a_run_with_only_damaged_checkpoints_is_an_error(tmp_path):
    """It does not restart at 0. Without any checkpoint, it returns None."""
    store = Checkpoints(tmp_path / "none")
    assert store.latest() is None
    store, first, second = two(tmp_path)
    for path in (first, second):
        (path / STATE).write_text("{")
    with pytest.raises(
        fl.StateError, match=r"whole checkpoint in .*, got 2 and all of them damaged.*checkpoint-000002-2"
    ):
        store.latest()


def test_a_skipped_checkpoint_does_not_count(tmp_path):
    """With two to keep and the newest one damaged, two good ones stay."""
    store = Checkpoints(tmp_path, keep=2)
    for n in (1, 2, 3):
        path = store.save(n, tensors(n), {"n": n})
    (path / TENSORS).write_bytes(b"torn")
    store = Checkpoints(tmp_path, keep=2)
    assert store.latest().state == {"n": 2}
    names = []
    for n in (4, 5):
        store.save(n, tensors(n), {"n": n})
        names.append([int(path.name.split("-")[1]) for path in store.paths()])
    assert names == [[2, 3, 4], [4, 5]]  # the damaged one is removed once good ones are newer


def test_unknown_serial_numbers_are_reported_and_left_alone(tmp_path, caplog):
    store, _, second = two(tmp_path)
    shutil.copytree(second, tmp_path / f"checkpoint-{'9' * 200}-1")
    (tmp_path / "checkpoint-٣-1").mkdir()  # digits, but not ASCII ones
    assert store.latest().path == second
    assert "skipping" in caplog.text
    assert "9" * 200 in caplog.text
    assert store.save(3, {}, {}).name == "checkpoint-000003-3"
    (tmp_path / f"checkpoint-{'9' * 18}-1").mkdir()
    with pytest.raises(fl.StateError, match="up to 18 digits"):
        store.save(4, {}, {})


def test_a_missing_file_is_logged(tmp_path, caplog):
    """The log has the reason for skipping a checkpoint."""
    store = Checkpoints(tmp_path)
    store.save(1, tensors(), {})
    (store.save(2, tensors(), {}) / TENSORS).unlink()
    with caplog.at_level(logging.WARNING):
        assert store.latest().path.name.endswith("1")
    assert "skipping" in caplog.text
    assert TENSORS in caplog.text
    with pytest.raises(fl.StateError, match="No such file"):
        load(tmp_path / "nowhere")
    newer = tmp_path / "checkpoint-000000000000009"
    newer.mkdir()
    (newer / STATE).write_text(json.dumps({"feedline": 99}))
    with pytest.raises(fl.StateError, match="version 2"):
        load(newer)


def test_other_types_than_json_are_refused(tmp_path):
    """Nothing is pickled, and no files are left."""
    with pytest.raises(TypeError, match="JSON"):
        Checkpoints(tmp_path).save(1, {}, {"x": object()})
    assert os.listdir(tmp_path) == []


def test_a_full_disk_leaves_the_folder_unchanged(tmp_path):
    """If the file cannot be written completely, the folder is unchanged."""
    code = (
        "import resource, sys, torch\nfrom feedline.train.checkpoint import Checkpoints\n"
        f"store = Checkpoints({str(tmp_path)!r})\n"
        "store.save(1, {'a': torch.zeros(10)}, {})\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))\n"
        "try: store.save(2, {'a': torch.zeros(10**5)}, {})\n"
        "except Exception as e: print(type(e).__name__, e)\n"
        "else: raise SystemExit('no error')\n"
    )
    run(["-c", code], check=True)
    assert os.listdir(tmp_path) == ["checkpoint-000001-1"]


def test_kill_at_any_instant(tmp_path):
    """After SIGKILL while saving in a loop, the newest is complete, and the next save removes incomplete ones."""
    code = (
        "import torch\nfrom feedline.train.checkpoint import Checkpoints\n"
        f"store = Checkpoints({str(tmp_path)!r}, keep=2)\nn = 0\n"
        "while True:\n"
        "    n += 1\n"
        "    store.save(n, {'a': torch.full((200_000,), float(n))}, {'n': n})\n"
        "    print(n, flush=True)\n"
    )
    store = Checkpoints(tmp_path)
    for delay in (0.0, 0.003, 0.011):
        process = Python(["-c", code], stdout=subprocess.PIPE)
        assert process.stdout is not None
        for _ in range(3):
            process.stdout.readline()
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        latest = store.latest()
        assert latest.state["n"] >= 3
        assert torch.equal(latest.tensors["a"], torch.full((200_000,), float(latest.state["n"])))
    store.save(10**6, {}, {})
    assert all(name.startswith("checkpoint-") for name in os.listdir(tmp_path))


@pytest.mark.parametrize("name", [f"{10**30}-0", "²-0", "-1-0", "", "x"])
def test_unfinished_folders_of_any_name_keep_nothing_from_being_saved(tmp_path, name):
    (tmp_path / f".writing-{name}").mkdir()
    Checkpoints(tmp_path).save(1, {}, {})
    assert os.listdir(tmp_path) == ["checkpoint-000001-1"]
