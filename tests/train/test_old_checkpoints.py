"""Files of version 0.1 can be resumed: a session's checkpoint, one under CNTK's names, an optimizer's states."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline as fl  # noqa: E402
from feedline.kvstore import create  # noqa: E402
from feedline.train.checkpoint import STATE, TENSORS, Checkpoints, load  # noqa: E402
from tests.train.old_run import old_run  # noqa: E402

OLD = Path(__file__).parents[1] / "fixtures" / "checkpoints-0.1"
NAME = "checkpoint-000003-96"


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(OLD / "session", tmp_path / "run")
    return tmp_path / "run"


def test_a_run_of_0_1_ends_as_one_of_today(folder):
    """It continues from its checkpoint, and writes sealed ones.

    The bias in front of the batch norm has no gradient but what rounding leaves, which Adam makes steps of: it, and the
    mean that follows it, differ among processors.
    """
    whole, resumed = old_run().run(), old_run(folder)
    assert resumed.run().samples == whole.samples == 240
    assert (resumed.scale, resumed.sweeps, resumed.minibatches) == (whole.scale, whole.sweeps, whole.minibatches)
    parameters = whole.trainer.model.state_dict()
    del parameters["body.bias"], parameters["norm.running_mean"]
    for name, tensor in parameters.items():
        torch.testing.assert_close(resumed.trainer.model.state_dict()[name], tensor)
    newest = Checkpoints(folder).paths()[-1]
    assert (newest / STATE).read_bytes().startswith(b'{"feedline": 2, "seal": "')
    assert load(newest).state["samples"] == 240


def test_it_is_not_mixed_with_todays(folder):
    """A state without a seal does not go with sealed tensors, nor the other way round; versions are not relabelled."""
    old_run(folder).run()
    newest, old = Checkpoints(folder).paths()[-1], folder / "old"
    shutil.copytree(OLD / "session" / NAME, old)
    for source, target in ((newest / TENSORS, old / TENSORS), (newest / STATE, old / STATE)):
        before = target.read_bytes()
        shutil.copy(source, target)
        with pytest.raises(fl.StateError, match="were saved with"):
            load(old)
        target.write_bytes(before)
    text = (newest / STATE).read_text()
    (newest / STATE).write_text(text.replace('"feedline": 2', '"feedline": 1', 1))
    with pytest.raises(fl.StateError, match="version 2"):
        load(newest)


WRONG = [None, "x", -1, 1.5, True, [], {}, 10**30, [[1, 2], 3], float("nan")]


@pytest.mark.parametrize("key", sorted(json.loads((OLD / "session" / NAME / STATE).read_text()).keys() - {"feedline"}))
def test_a_wrong_field_is_refused_before_anything_moves(folder, key):
    """In 0.1 only tensors had checksums: a damaged state is refused, and the run is unchanged."""
    path = folder / NAME / STATE
    state = json.loads(path.read_text())
    for wrong in WRONG:
        if key in ("samples", "minibatches", "sweeps", "scale") and type(wrong) is type(state[key]) and wrong > 0:
            continue
        if (key, wrong) in (("stopped", True), ("validation", None)):
            continue
        path.write_text(json.dumps({**state, key: wrong}))
        run = old_run(folder)
        before = told(run)
        with pytest.raises(fl.StateError, match=NAME):
            run.run()
        assert told(run) == before


def told(run):
    """Return everything that a restore could change."""
    tensors, state = run.trainer.state_dict()
    return repr(
        [
            run.samples,
            run.minibatches,
            run.sweeps,
            run.scale,
            run.stopped,
            run.source.state_dict(),
            run.validation.source.state_dict(),
            [controller.state_dict() for controller in run.controllers],
            {name: tensor.tolist() for name, tensor in tensors.items()},
            state,
            torch.get_rng_state().tolist(),
            np.random.get_state()[1].tolist(),
        ]
    )


def test_optimizers_of_0_1_go_on():
    store = create("local")
    store.init(3, torch.ones(2, 2))
    store.set_optimizer("adam", learning_rate=0.1)
    store.load_optimizer_states(OLD / "optimizer")
    assert store._table.updater.learning_rate == 0.25
    states, count = store._table.updater.states()[3]
    torch.testing.assert_close(states["mean"], torch.full((2, 2), 0.2))
    assert count == 1


def test_checkpoints_under_cntks_names_go_on():
    from tests.compat.test_cntk_checkpoints import trainer_of

    trainer = trainer_of(seed=6)
    external = trainer.restore_from_checkpoint(str(OLD / "cntk"))
    assert external["note"] == "0.1"
    assert external["a"].tolist() == [0.0, 1.0, 2.0]
    assert torch.equal(trainer.model.W, trainer_of(seed=5).model.W)
