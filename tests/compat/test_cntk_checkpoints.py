"""Checkpoints under CNTK's names: killed or interrupted anywhere, a training ends as if nothing had happened."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline as fl  # noqa: E402
import feedline.cntk as C  # noqa: E402
from feedline.cntk import DataUnit  # noqa: E402
from feedline.errors import StateError  # noqa: E402
from feedline.interop.tensor_file import load_state, load_tensors, replace_tensors, save_tensors  # noqa: E402
from tests.compat.logistic import Logistic, error, loss, open_source, streams_of  # noqa: E402
from tests.docs.pages import IMPORTED_FROM, ROOT  # noqa: E402
from tests.effort import examples, stride  # noqa: E402
from tests.warm import run  # noqa: E402

ROWS = 40


class Dropped(Logistic):
    """Draws random numbers at every step."""

    def forward(self, minibatch):
        return torch.nn.functional.dropout(super().forward(minibatch), 0.3, self.training)


def text(folder):
    rng = np.random.default_rng(3)
    path = folder / "rows.ctf"
    rows = zip(rng.normal(size=(ROWS, 2)), rng.integers(0, 3, ROWS), strict=True)
    path.write_text("".join(f"|x {a:.3f} {b:.3f} |y {k}:1\n" for (a, b), k in rows))
    return path


def trainer_of(lr=None, seed=5):
    torch.manual_seed(seed)
    model = Dropped([[0.1, -0.2, 0.3], [0.0, 0.5, -0.1]], [0.0, 0.1, 0.0])
    rate = C.learning_parameter_schedule([0.2, 0.1], epoch_size=30) if lr is None else lr
    return C.Trainer(model, (loss, error), [C.adam(model.parameters(), rate, 0.9)])


def session_of(path, name, max_samples=130, frequency=25, trainer=None, **options):
    source = open_source(path, chunkSizeInBytes=200, randomization_window_in_chunks=2, randomization_seed=4)
    return C.training_session(
        trainer or trainer_of(),
        source,
        10,
        streams_of(source),
        max_samples=max_samples,
        checkpoint_config=C.CheckpointConfig(str(name), frequency, **options),
    )


def trained(path, name, **options):
    session = session_of(path, name, **options)
    session.train()
    return session.trainer


def weights(trainer):
    return trainer.model.W.tolist() + trainer.model.b.tolist()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# ---- one process after the other ------------------------------------------------------------------


@settings(max_examples=examples(10), deadline=None)
@given(st.lists(st.integers(1, 12), max_size=4), st.sampled_from([7, 25, (1, DataUnit.minibatch), (1, DataUnit.sweep)]))
def test_parts_make_the_whole(tmp_path_factory, stops, frequency):
    """Stopped after any minibatches and restored: same parameters, bit for bit, and same counts, also with seeds."""
    folder = tmp_path_factory.mktemp("parts")
    path = text(folder)
    whole = trained(path, folder / "whole", frequency=frequency)
    for stop in [*sorted(set(stops)), 13]:
        last = trained(path, folder / "parts", frequency=frequency, max_samples=10 * stop)
    assert weights(last) == weights(whole)
    assert last.total_number_of_samples_seen == 130


def test_the_checkpoint_decides_the_learning_rate(tmp_path):
    path = text(tmp_path)
    whole = trained(path, tmp_path / "whole")
    trained(path, tmp_path / "m", max_samples=50)
    last = trained(path, tmp_path / "m", trainer=trainer_of(lr=123.0))
    assert weights(last) == weights(whole)
    learner = last.parameter_learners[0]
    assert (learner.learning_rate(), learner._learning_rate_schedule[0]) == (0.1, 0.2)


def test_all_are_kept_and_the_newest_is_used(tmp_path, capsys):
    """CNTK's third run would continue from the end of the first one."""
    path, folder = text(tmp_path), tmp_path / "kept"
    for until in (60, 90, 130):
        last = trained(path, folder / "m", frequency=50, preserve_all=True, max_samples=until)
        assert load_state(folder / "m.ckp")["trainer"]["learners"][0]["samples"] == until
    assert weights(last) == weights(trained(path, tmp_path / "whole", frequency=50))
    kept = [name for i in ("", 0, 1, 2) for name in (f"m{i}", f"m{i}.ckp")]
    assert names(folder) == sorted(kept)
    (folder / "other9.ckp").write_text("of somebody else")

    def restored():
        capsys.readouterr()
        trained(path, folder / "m", frequency=50, preserve_all=True, max_samples=1)
        return capsys.readouterr().err

    # The newest wins whatever its name, and of two alike the one without a number.
    assert restored() == f"Restoring training session from the checkpoint '{folder}/m'\n"
    (folder / "m.ckp").write_bytes((folder / "m0.ckp").read_bytes())
    assert restored() == f"Restoring training session from the checkpoint '{folder}/m2'\n"
    (folder / "m2.ckp").unlink()
    assert restored() == f"Restoring training session from the checkpoint '{folder}/m1'\n"


def test_a_finished_run_does_nothing_more(tmp_path):
    path = text(tmp_path)
    trained(path, tmp_path / "m", preserve_all=True)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    trained(path, tmp_path / "m", preserve_all=True)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_the_model_is_a_separate_file(tmp_path):
    trainer = trainer_of()
    trainer.save_checkpoint(str(tmp_path / "m"))
    tensors, state = load_tensors(tmp_path / "m")
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {
        name: tensor.tolist() for name, tensor in trainer.model.state_dict().items()
    }
    assert state == {}


values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
states = st.recursive(values, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


@settings(max_examples=examples(20), deadline=None)
@given(external=st.dictionaries(st.text(), states))
def test_external_state_comes_back(tmp_path_factory, external):
    name = str(tmp_path_factory.mktemp("external") / "m")
    trainer_of().save_checkpoint(name, external)
    assert trainer_of().restore_from_checkpoint(name) == external


def test_external_state_may_hold_arrays(tmp_path):
    given = {"a": np.arange(6.0).reshape(2, 3), "b": [np.float32(1.5), np.array(7)], "array": {"mapping": "text"}}
    trainer_of().save_checkpoint(str(tmp_path / "m"), given)
    back = trainer_of().restore_from_checkpoint(str(tmp_path / "m"))
    np.testing.assert_array_equal(back["a"], given["a"])
    assert (back["b"][0], back["b"][1].shape, back["b"][1].item(), back["array"]) == (1.5, (), 7, given["array"])
    for wrong in ({"a": object()}, {"a": {1: 2}}, {"a": np.array(["text"])}):
        with pytest.raises(ValueError, match="external"):
            trainer_of().save_checkpoint(str(tmp_path / "m"), wrong)


# ---- files that are none --------------------------------------------------------------------------


def damage_truncated(path):
    path.write_bytes(path.read_bytes()[:-3])


def damage_empty(path):
    path.write_bytes(b"")


def damage_foreign(path):
    path.write_bytes(b"\x0a\x10a protobuf of CNTK" * 10)


def damage_other(path):
    path.unlink()
    save_tensors(path, {"w": torch.zeros(3)}, {"format": "something else"})


def damage_missing(path):
    path.unlink()


def damage_a_tensor(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def damage_the_state(path):
    content = path.read_bytes()
    assert content.count(b'samples\\": 20') == 1
    path.write_bytes(content.replace(b'samples\\": 20', b'samples\\": 30'))


DAMAGES = [
    damage_truncated,
    damage_empty,
    damage_foreign,
    damage_other,
    damage_missing,
    damage_a_tensor,
    damage_the_state,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path, damage):
    path, name = text(tmp_path), tmp_path / "m"
    trained(path, name, max_samples=20)
    damage(tmp_path / "m.ckp")
    with pytest.raises(RuntimeError, match=r"m\.ckp") as caught:
        trainer_of().restore_from_checkpoint(str(name))
    assert isinstance(caught.value, fl.StateError)
    if damage is not damage_missing:
        with pytest.raises(RuntimeError, match=r"m\.ckp"):
            trained(path, name)


@pytest.mark.parametrize("damage", [damage_truncated, damage_a_tensor, damage_the_state, damage_foreign])
def test_a_damaged_newest_is_passed_over(tmp_path, caplog, capsys, damage):
    """The newest whole checkpoint is used, skipped ones are named, and none at all is an error."""
    path, name = text(tmp_path), tmp_path / "run" / "m"
    whole = trained(path, tmp_path / "whole", frequency=20)
    trained(path, name, frequency=20, preserve_all=True, max_samples=20)
    trained(path, name, frequency=20, preserve_all=True, max_samples=60)
    kept = {load_state(p)["trainer"]["learners"][0]["samples"]: p for p in name.parent.glob("*.ckp")}
    newest = [p for p in name.parent.glob("*.ckp") if load_state(p) == load_state(kept[60])]
    for damaged in newest:
        content = damaged.read_bytes()
        damage(damaged) if damage is not damage_the_state else damaged.write_bytes(content.replace(b": 60", b": 70"))
    capsys.readouterr()
    last = trained(path, name, frequency=20, preserve_all=True)
    assert f"from the checkpoint '{kept[40].with_suffix('')}'" in capsys.readouterr().err
    assert all(str(damaged) in caplog.text for damaged in newest)
    assert weights(last) == weights(whole)
    for damaged in name.parent.glob("*.ckp"):
        damaged.write_bytes(b"torn")
    with pytest.raises(RuntimeError, match=r"\.ckp"):
        trained(path, name, preserve_all=True)


def test_another_model_is_refused(tmp_path):
    trainer_of().save_checkpoint(str(tmp_path / "m"))
    model = torch.nn.Linear(2, 3)
    learners = [C.sgd([model.weight], 0.1), C.sgd([model.bias], 0.1)]
    with pytest.raises(RuntimeError, match="learners"):
        C.Trainer(model, loss, learners).restore_from_checkpoint(str(tmp_path / "m"))


# ---- interrupts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("at", range(1, 5))
def test_ctrl_c_while_saving_leaves_no_half_file(tmp_path, monkeypatch, at):
    """Ctrl-C at any fsync: no temporary files, and a checkpoint from which the run ends as if nothing had happened."""
    path, folder = text(tmp_path), tmp_path / "run"
    folder.mkdir()
    trained(path, folder / "m", max_samples=50)
    kept, synced = names(folder), []
    real = os.fsync

    def interrupted(handle):
        real(handle)
        synced.append(handle)
        if len(synced) == at:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trained(path, folder / "m")
    monkeypatch.undo()
    assert names(folder) == kept == ["m", "m.ckp"]
    assert weights(trained(path, folder / "m")) == weights(trained(path, tmp_path / "whole"))


def test_what_a_killed_process_left_is_written_over(tmp_path):
    (tmp_path / "m.tmp").write_text("half")
    (tmp_path / "m.ckp.tmp").write_text("half")
    trainer_of().save_checkpoint(str(tmp_path / "m"))
    assert names(tmp_path) == ["m", "m.ckp"]


def test_a_full_disk_leaves_the_old_one(tmp_path):
    path = tmp_path / "t"
    replace_tensors(path, {"a": torch.zeros(2)}, {"n": 1})
    with pytest.raises(TypeError):
        replace_tensors(path, {"a": torch.zeros(2, dtype=torch.complex128)}, {"n": 2})
    assert names(tmp_path) == ["t"]
    assert load_tensors(path)[1] == {"n": 1}


# Each child is killed at its k-th system call on a checkpoint's file. The next one resumes from the remaining files.
KILLED = """
import os, signal, sys
from pathlib import Path
from tests.compat.test_cntk_checkpoints import trained, weights
from tests.forked import Forked

path, folder = Path(sys.argv[1]), Path(sys.argv[2])
expected = weights(trained(path, folder / "whole" / "m"))
calls = 0


def watch(event, arguments):
    global calls
    if event in ("open", "os.rename", "os.remove") and "killed" in str(arguments[0]):
        calls += 1
        if calls == deadly:
            os.kill(os.getpid(), signal.SIGKILL)


def child(k, name):
    def train():
        global deadly
        deadly = k
        sys.addaudithook(watch)
        return weights(trained(path, name)) == expected

    return Forked(train).status()


for k in range(1, 1000, int(sys.argv[3])):
    name = folder / f"killed{k}" / "m"
    code = child(k, name)
    if code == 0:
        break
    assert code == -signal.SIGKILL, (k, code)
    assert child(0, name) == 0, k
    assert sorted(p.name for p in name.parent.iterdir()) == ["m", "m.ckp"], k
    assert name.read_bytes() == (folder / "whole" / "m").read_bytes(), k
print(k - 1, "killed")
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_every_step_of_saving(tmp_path):
    """kill -9 before every third opening, renaming and removing of a file, over a run with several checkpoints."""
    done = run(
        ["-c", KILLED, str(text(tmp_path)), str(tmp_path), str(stride(3))],
        capture_output=True,
        text=True,
        timeout=170,
        cwd=tmp_path,
        env={"PYTHONPATH": os.pathsep.join([IMPORTED_FROM, str(ROOT)]), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) >= 6 * 4 - stride(3)  # several calls a checkpoint, several checkpoints
    assert not list(Path(tmp_path).rglob("*.tmp"))


@pytest.mark.parametrize("axes", [[["batch"]], [7], "batch", {"batch": 1}])
def test_a_saved_function_whose_axes_are_no_names_is_refused(tmp_path, axes):
    C.plus(C.input_variable(3), 1.0).save(tmp_path / "f")
    tensors, state = load_tensors(tmp_path / "f")
    (place,) = (i for i, node in enumerate(state["nodes"]) if node["op"] == "input")
    state["nodes"][place]["axes"] = axes
    replace_tensors(tmp_path / "f", tensors, state)
    with pytest.raises(StateError, match="expected names of axes"):
        C.Function.load(tmp_path / "f")
