"""The number of threads of a run: tried in its first steps, told once, or given."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from feedline.cntk import _threads  # noqa: E402
from feedline.cntk._threads import EACH, FEW, LONGEST, WARM, ThreadTrial  # noqa: E402
from tests.cli import shell  # noqa: E402
from tests.cli.shell import feedline  # noqa: E402


class World:
    """A clock, threads, and the messages. A step takes the time that is set for the number of threads."""

    def __init__(self, took, several=4):
        self.took, self.time, self.count, self.counts, self.said = took, 0.0, several, [], []
        self.trial = ThreadTrial(several, self.use, self.said.append, lambda: self.time)

    def use(self, count):
        self.count = count

    def run(self, steps):
        for _ in range(steps):
            with self.trial.step():
                self.counts.append(self.count)
                self.time += self.took(self.count, len(self.counts))
        return self


ALL = WARM + 2 * EACH


@pytest.mark.parametrize(
    ("one", "four", "chosen"), [(1e-3, 4e-3, 1), (1e-3, 1e-3, 1), (1.2e-3, 1e-3, 1), (2e-3, 1e-3, 4)]
)
def test_the_faster_number_is_chosen_and_reported_once(one, four, chosen):
    world = World(lambda count, step: one if count == 1 else four).run(ALL + 20)
    assert world.counts == [4] * WARM + [1, 4] * EACH + [chosen] * 20
    assert world.trial.chosen == world.count == chosen
    (line,) = world.said
    assert line.startswith(f"feedline: steps take {one * 1e3:.2g} ms with one thread and {four * 1e3:.2g} ms with 4")
    assert f"going on with {chosen} " in line
    assert "--threads" in line


def test_one_slow_step_does_not_decide():
    """The median of the steps, and neither the first one nor those before the trial."""
    world = World(lambda count, step: 0.015 if step in (1, 3) else 1e-3 if count == 1 else 2e-3).run(ALL)
    assert world.trial.chosen == 1


@pytest.mark.parametrize(("one", "four", "chosen"), [(2.0, 1.0, 4), (0.08, 2.0, 1), (0.021, 0.021, 1)])
def test_long_steps_are_tried_a_few_times(one, four, chosen):
    world = World(lambda count, step: one if count == 1 else four).run(WARM + 2 * FEW + 5)
    assert one > LONGEST
    assert world.counts == [4] * WARM + [1, 4] * FEW + [chosen] * 5
    (line,) = world.said
    assert f" {four * 1e3:.0f} ms with 4: going on with {chosen} " in line


def test_threads_that_hinder_each_other_are_not_chosen_for_their_long_steps():
    """Where others use the processors, a step of 3 ms may take 100 with several threads."""
    world = World(lambda count, step: 3e-3 if count == 1 else 0.1).run(ALL + 5)
    assert world.counts == [4] * WARM + [1, 4] * EACH + [1] * 5
    assert "steps take 3 ms with one thread and 100 ms with 4: going on with 1 " in world.said[0]


def test_between_the_steps_of_the_trial_there_are_all_threads():
    world = World(lambda count, step: 1e-3)
    for _ in range(ALL - 1):
        world.run(1)
        assert world.count == 4
    with pytest.raises(KeyError), World(lambda count, step: 1e-3).run(WARM).trial.step():
        raise KeyError("mine")
    assert world.run(1).count == 1


def test_a_single_thread_is_no_choice():
    world = World(lambda count, step: 1e-3, several=1).run(20)
    assert (world.trial.chosen, world.counts, world.said) == (1, [1] * 20, [])


def test_an_error_in_a_step_is_the_callers():
    world = World(lambda count, step: 1e-3)
    with pytest.raises(KeyError), world.trial.step():
        raise KeyError("mine")
    world.run(ALL)
    assert world.trial.chosen == 1


SCRIPT = """
import numpy as np
import cntk as C
import sys
import torch
for count in sys.argv[1:]:
    torch.set_num_threads(int(count))  # as many as a machine may have
x, y = C.input_variable(2), C.input_variable(1)
z = C.layers.Dense(1)(x)
loss = C.squared_error(z, y)
trainer = C.Trainer(z, loss, [C.sgd(z.parameters, C.learning_parameter_schedule(0.01))])
for i in range(40):
    trainer.train_minibatch({x: np.ones((3, 2), np.float32), y: np.ones((3, 1), np.float32)})
print(torch.get_num_threads())
"""


@pytest.mark.parametrize("given", ["tried", "option", "environment"])
def test_a_script_trains_with_the_number(given, tmp_path, monkeypatch):
    (tmp_path / "script.py").write_text(SCRIPT)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delitem(shell.ENV, name, raising=False)
    if given == "environment":
        monkeypatch.setitem(shell.ENV, "OMP_NUM_THREADS", "2")
    options, count = (["--threads", "3"], []) if given == "option" else ([], ["2"])
    done = feedline("run", "--as", "cntk", *options, tmp_path / "script.py", *count)
    if given == "tried":
        assert done.stderr.count(f"going on with {int(done.stdout)} ") == done.stderr.count("going on with") == 1
    else:
        assert "going on with" not in done.stderr
        assert int(done.stdout) == (3 if given == "option" else 2)


def test_nothing_is_tried_unless_wanted(monkeypatch):
    monkeypatch.setattr(_threads._Process, "enabled", False)
    monkeypatch.setattr(_threads._Process, "trial", None)
    with _threads.trained():
        pass
    assert _threads._Process.trial is None


def test_the_option_is_a_number(tmp_path):
    (tmp_path / "script.py").write_text("")
    assert "--threads" in feedline("run", "--as", "cntk", "--threads", "0", tmp_path / "script.py", code=2).stderr
