"""A file that one rank writes for all exists for every rank once the call returns, or the call fails on all ranks."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline as fl  # noqa: E402
import feedline.cntk as C  # noqa: E402
from feedline.train import KeepBest, MomentumSGD, Saving, Trainer, TrainingSession, data_parallel  # noqa: E402
from feedline.train.checkpoint import Checkpoints  # noqa: E402
from tests.ranks import Failure, Job, run  # noqa: E402

SOURCES = Path(fl.__file__).parent


class Late:
    """A writer that is slow on rank 0. It waits until rank 1 has returned from the call, for at most a second."""

    def __init__(self, write, rank, returned):
        self._write, self._rank, self._returned = write, rank, returned

    def __get__(self, owner, kind=None):
        return lambda *arguments: self(owner, *arguments)

    def __call__(self, *arguments):
        until = time.monotonic() + 1
        while self._rank == 0 and time.monotonic() < until and not self._returned.exists():
            time.sleep(0.01)
        return self._write(*arguments)


def cntk_trainer(rank, folder):
    x, w = C.input_variable(2), C.parameter((2, 1), init=1)
    learner = C.data_parallel_distributed_learner(C.sgd([w], C.learning_parameter_schedule_per_sample(0.1)))
    trainer = C.Trainer(None, (C.reduce_sum(C.times(x, w)), None), [learner])
    trainer.train_minibatch({x: np.ones((2, 2), "f4")})
    C.train.trainer.replace_tensors = Late(C.train.trainer.replace_tensors, rank, folder / "returned")
    return trainer


def checkpoint_of_cntk(rank, folder):
    trainer = cntk_trainer(rank, folder)
    trainer.save_checkpoint(str(folder / "model"), {"step": 1})
    (folder / "returned").touch()
    return trainer.restore_from_checkpoint(str(folder / "model"))["step"]


def session(rank, folder, **settings):
    torch.distributed.init_process_group("gloo")
    Checkpoints.save = Late(Checkpoints.save, rank, folder / "returned")
    model = torch.nn.Linear(1, 1)
    source = fl.MinibatchSource(fl.ArrayDeserializer(x=np.ones((8, 1), "f4")), max_sweeps=1)
    trainer = Trainer(
        model,
        lambda output, minibatch: output.sum(1),
        None,
        data_parallel(MomentumSGD(model.parameters(), 0.1, 0.9)),
        forward=lambda model, minibatch: model(minibatch["x"].torch(layout="packed")),
    )
    TrainingSession(trainer, source, 8, **settings).run()
    return model


def checkpoint_of_session(rank, folder):
    session(rank, folder, saving=Saving(folder / "run"))
    (folder / "returned").touch()
    return len(Checkpoints(folder / "run").paths())


class Reads:
    """A controller that reads the file that the controller before it has written."""

    def __init__(self, best):
        self.best = best

    def on_epoch_end(self, run, training, validation):
        (self.best.folder.parent / "returned").touch()
        self.best.restore(run.trainer.model)


def best_of_session(rank, folder):
    best = KeepBest(folder / "best")
    session(rank, folder, controllers=[best, Reads(best)], epoch=fl.sweeps(1))
    return 1


@pytest.mark.parametrize("saving", [checkpoint_of_cntk, checkpoint_of_session, best_of_session])
def test_every_rank_finds_what_was_saved(saving, tmp_path):
    assert run(saving, 2, folder=tmp_path) == [1, 1]


def fails(rank, folder):
    trainer = cntk_trainer(rank, folder)
    trainer.save_checkpoint(str(folder / "file" / "model"))


def test_what_rank_0_cannot_write_is_an_error_on_every_rank(tmp_path):
    (tmp_path / "file").touch()
    with Job(fails, 2, folder=tmp_path) as job:
        first, second = job.results()
    assert [type(first), type(second)] == [Failure, Failure]
    assert [first.kind, second.kind] == ["NotADirectoryError", "StateError"]
    assert "NotADirectoryError" in second.text


def absent_on_rank_1(rank, folder):
    """Start a session whose folder only rank 0 sees."""
    trainer = cntk_trainer(rank, folder)
    config = C.CheckpointConfig(str(folder / f"rank{rank}" / "model"), restore=True)
    source = C.io.MinibatchSourceFromData({"x": np.ones((4, 2), "f4")}, max_samples=4)
    key = trainer.loss_function.arguments[0]
    run = C.training_session(trainer, source, 4, {key: source.streams["x"]}, checkpoint_config=config)
    if rank == 0:
        (folder / "rank0").mkdir()
        (folder / "rank0" / "model.ckp").write_bytes(b"torn")
    run.train()


def test_the_ranks_look_for_a_checkpoint_together(tmp_path):
    """Rank 1 finds none, and does not begin without rank 0."""
    with Job(absent_on_rank_1, 2, folder=tmp_path) as job:
        first, second = job.results()
    assert [type(first), type(second)] == [Failure, Failure]
    assert [first.kind, second.kind] == ["CntkCheckpointError", "StateError"]
    assert "rank 0" in second.text


def names(node):
    return {getattr(part, "attr", getattr(part, "id", None)) for part in ast.walk(node)}


#: Folders whose code runs on every rank.
FOLDERS = ("cntk/train", "cntk/logging", "mxnet", "train", "kvstore", "collective", "feed", "runs", "interop")


def test_no_function_returns_early_on_a_rank():
    """A collective call that ends earlier on some ranks lets them read a missing file. `Ranks.first` prevents that."""
    early_returns = set()
    for path in (path for folder in FOLDERS for path in SOURCES.joinpath(folder).rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                for branch in ast.walk(function):
                    if isinstance(branch, ast.If) and isinstance(branch.body[-1], ast.Return):
                        identity = any(isinstance(part, (ast.Is, ast.IsNot)) for part in ast.walk(branch.test))
                        if names(branch.test) & {"rank", "is_main"} and not identity:
                            early_returns.add(f"{path.relative_to(SOURCES)}:{function.name}")
    # Joining a store writes no file.
    assert early_returns == {"kvstore/parameter_server/membership.py:_join"}
